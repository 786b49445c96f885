"""Delta tables that record their changes, written and read without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql.types import StructType

from dovetail.plan.types.arrow import arrow_schema


def add_rows(path: str, columns: str, *rows: Sequence[Any], overwrite: bool = False) -> None:
    """Commit rows to a table, which is made if it is not there; ``columns``: their names and Spark
    types. Columns that the table lacks come to it. ``overwrite``: these replace all others.
    """
    schema = arrow_schema(StructType.fromDDL(columns))
    table = pa.Table.from_pylist([dict(zip(schema.names, r, strict=True)) for r in rows], schema)
    mode: Any = ("append", "merge") if not overwrite else ("overwrite", "overwrite")
    recorded = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(path, table, mode=mode[0], schema_mode=mode[1], configuration=recorded)


def rows_of(path: str, version: int | None = None) -> list[dict[str, Any]]:
    """The rows of a table, at its last version or another one. It may have deletion vectors."""
    table = QueryBuilder().register("t", DeltaTable(path, version=version))
    return pa.table(table.execute("SELECT * FROM t").read_all()).to_pylist()
