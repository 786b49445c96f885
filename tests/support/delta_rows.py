"""Delta tables read and written by deltalake, and frames of rows, without a job of Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from parquet_rows import arrow_table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


def read(path: Path | str, version: int | None = None) -> pa.Table:
    """Return the rows of a table, or of one of its versions. Deletion vectors count."""
    return pa.table(DeltaTable(str(path), version=version).scan())


def rows_of(path: Path | str, version: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table, or of one of its versions, as dicts."""
    rows: list[dict[str, Any]] = read(path, version).to_pylist()
    return rows


def create(path: Path | str, schema: StructType | str) -> None:
    """Make an empty table with deletion vectors, as ``to_delta`` does; ``schema``: or its text."""
    if isinstance(schema, str):
        schema = StructType.fromDDL(schema)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions = [
        {"commitInfo": {"timestamp": 0, "operation": "CREATE TABLE", "engineInfo": "a test"}},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {
            "metaData": {
                "id": str(uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema.toNullable().json(),
                "partitionColumns": [],
                "configuration": {"delta.enableDeletionVectors": "true"},
            }
        },
    ]
    log = Path(path) / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))


def write(path: Path | str, rows: Sequence[tuple[Any, ...]], columns: str) -> None:
    """Make a table of rows that is no query's; ``columns``: their names and Spark types."""
    write_deltalake(str(path), arrow_table(rows, columns))


def add_rows(
    path: Path | str, columns: str, *rows: tuple[Any, ...], overwrite: bool = False
) -> None:
    """Commit rows to a table that records its changes, which is made if it is not there.

    ``columns``: their names and Spark types; those that the table lacks come to it. ``overwrite``:
    these rows replace all others.
    """
    mode: Any = ("overwrite", "overwrite") if overwrite else ("append", "merge")
    recorded = {"delta.enableChangeDataFeed": "true"}
    table = arrow_table(rows, columns)
    write_deltalake(str(path), table, mode=mode[0], schema_mode=mode[1], configuration=recorded)


def frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], columns: str) -> DataFrame:
    """Return a frame of rows; ``columns``: their names and Spark types."""
    schema = StructType.fromDDL(columns)
    return spark.createDataFrame(arrow_table(rows, columns), schema)


def operations(path: Path | str) -> list[str]:
    """Return the operation of each commit, the first one first."""
    return [str(commit["operation"]) for commit in DeltaTable(str(path)).history()][::-1]
