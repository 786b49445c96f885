"""Files of rows, written and read without a job of Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from dovetail.plan.types.arrow import arrow_schema


def add_file(folder: Path, rows: Sequence[tuple[Any, ...]], columns: str) -> Path:
    """Write rows as one more Parquet file of a folder; ``columns``: their names and Spark types."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{uuid4().hex}.parquet"
    pq.write_table(arrow_table(rows, columns), file)
    time.sleep(0.005)  # Spark reads files in the order of their times, which are coarse
    return file


def arrow_table(rows: Sequence[tuple[Any, ...]], columns: str | StructType) -> pa.Table:
    """Return rows in Arrow's form; ``columns``: their names and Spark types."""
    schema = arrow_schema(StructType.fromDDL(columns) if isinstance(columns, str) else columns)
    return pa.Table.from_pylist([dict(zip(schema.names, r, strict=True)) for r in rows], schema)


def rows_of(folder: Path, *order: str) -> list[dict[str, Any]]:
    """All rows of a folder that a query writes, in the order of these columns."""
    table = pq.read_table(
        folder, ignore_prefixes=[".", "_checkpoint", "_spark_metadata", "_SUCCESS"]
    )
    return (table.sort_by([(name, "ascending") for name in order]) if order else table).to_pylist()
