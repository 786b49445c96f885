"""Changes of a table of two columns, and what a Delta table has of them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import delta_rows
import pyarrow as pa
from parquet_rows import add_file
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import dovetail as dt
from dovetail.io.sinks.delta.versions import VERSION_FIELDS
from dovetail.platform import delta_tables
from dovetail.platform.sessions import cloned_session

START = datetime(2024, 1, 1, tzinfo=timezone.utc)
COLUMNS = "id string, v long, at timestamp, gone boolean"

Rows = list[tuple[Any, ...]]


class Change(NamedTuple):
    """A change of a key at a second; with ``gone``, its delete."""

    key: Any
    second: int
    value: int | None
    gone: bool = False


def moment(second: int | None) -> datetime | None:
    return None if second is None else START + timedelta(seconds=second)


def second_of(time: datetime | None) -> int | None:
    return None if time is None else round((time.astimezone(timezone.utc) - START).total_seconds())


def changelog(
    spark: SparkSession,
    changes: Sequence[Change],
    first: int,
    columns: str,
    values: Callable[[int | None], tuple[Any, ...]] = lambda value: (value,),
) -> DataFrame:
    """Return changes as a sink gets them, in any order.

    ``first``: the position of the first one. ``columns``: the key's and those of ``values``, which
    make a value's columns; deletes have nulls.
    """
    rows = [
        (
            c.key,
            *values(None if c.gone else c.value),
            "delete" if c.gone else "upsert",
            moment(c.second),
            position,
        )
        for position, c in enumerate(changes, first)
    ]
    added = "_change string, _timestamp timestamp, _position long"
    random.Random(first).shuffle(rows)
    return delta_rows.frame(spark, rows, f"{columns}, {added}")


class Versions(NamedTuple):
    """A table with a history, the columns that it has, and a session for merges."""

    session: SparkSession
    path: Path
    schema: StructType

    @classmethod
    def empty(cls, spark: SparkSession, path: Path, columns: str) -> Versions:
        """Make a table without rows. ``columns``: the key's and those of its values."""
        session = cloned_session(spark)
        delta_tables.tune(session)
        made = cls(session, path, StructType([*StructType.fromDDL(columns), *VERSION_FIELDS]))
        delta_rows.create(path, made.schema)
        return made

    @property
    def name(self) -> str:
        return delta_tables.sql_name(str(self.path))


def versions(rows: pa.Table, key: str = "id") -> Rows:
    """Return the versions of a table with a history: key, value, begin and end. Check that what it
    says of currency is so.
    """
    found = rows.to_pylist()
    assert all(row["_current"] == (row["_valid_to"] is None) for row in found)
    return sorted(
        (
            (row[key], row["v"], second_of(row["_valid_from"]), second_of(row["_valid_to"]))
            for row in found
        ),
        key=repr,
    )


class Place:
    """Files of a table, one for each micro-batch, a checkpoint and a target."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.target = directory / "target"
        self.changes: list[Change] = []
        self._files = 0

    def come(self, *changes: Change) -> None:
        """Write one more file."""
        self.changes += changes
        rows = [(c.key, c.value, moment(c.second), c.gone) for c in changes]
        file = add_file(self.directory / "in", rows, COLUMNS)
        os.utime(file, (1_700_000_000 + self._files,) * 2)
        self._files += 1

    def table(self, files: int = 1) -> dt.Table:
        """The table, of which a micro-batch reads so many files."""
        reader = self.spark.readStream.option("maxFilesPerTrigger", files).schema(COLUMNS)
        return dt.Table.from_changelog(
            reader.parquet(str(self.directory / "in")),
            key="id",
            timestamp="at",
            deleted="gone",
            name="t",
        )

    def run(self, checkpoint: str = "checkpoint", of: Any = None, **options: Any) -> None:
        """Write what has come, by default with a history."""
        (of or self.table()).write_stream(
            dt.to_delta(self.target, **{"history": True} | options),
            checkpoint=str(self.directory / checkpoint),
            trigger={"availableNow": True},
            buckets=1,
        ).awaitTermination()

    def stored(self) -> Rows:
        """The versions that the target has."""
        return versions(delta_rows.read(self.target))
