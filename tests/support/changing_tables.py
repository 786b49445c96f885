"""Tables whose changes lie in files, one a micro-batch, each with a time and whether it deletes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from timed_files import timed_file

import dovetail as dt

Rows = dict[Any, dict[str, Any]]
"""The rows of a table by their keys."""
Columns = Mapping[str, pa.DataType]
"""Of a table, longs and texts. The first is its key."""

_TYPES = {pa.int64(): "long", pa.string(): "string"}


def write_changes(
    path: Path,
    number: int,
    columns: Columns,
    changes: Iterable[tuple[dict[str, Any], bool]],
    begin: datetime,
    rows: Rows,
) -> None:
    """Write rows, and whether each is deleted, as the file ``number``; keep what is left in
    ``rows``. The first is at ``begin``, the others a minute apart.
    """
    written, key_column = [], next(iter(columns))
    for place, (row, gone) in enumerate(changes):
        written.append(row | {"at": begin + timedelta(minutes=place), "gone": gone})
        rows.pop(row[key_column], None)
        if not gone:
            rows[row[key_column]] = row
    schema = pa.schema({**columns, "at": pa.timestamp("us", "UTC"), "gone": pa.bool_()})
    with timed_file(path / f"{number}.parquet", number + 1) as file:
        pq.write_table(pa.Table.from_pylist(written, schema), file)


def read_changes(spark: SparkSession, path: Path, columns: Columns) -> dt.Table:
    """The table of these files, named as their folder."""
    schema = ", ".join(f"{column} {_TYPES[type_]}" for column, type_ in columns.items())
    frame = spark.readStream.schema(f"{schema}, at timestamp, gone boolean")
    return dt.Table.from_changelog(
        frame.option("maxFilesPerTrigger", 1).parquet(str(path)),
        key=next(iter(columns)),
        timestamp="at",
        deleted="gone",
        name=path.name,
    )
