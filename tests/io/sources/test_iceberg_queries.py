"""Streaming queries over an Iceberg table: restarts, snapshots that go, columns that change."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import iceberg_tables as iceberg
import pyarrow as pa
import pytest
from parquet_rows import rows_of
from pyiceberg.table import Table
from pyiceberg.types import LongType, TimeType
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail.platform.jvm import activate

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def rows(*pairs: tuple[int, str]) -> pa.Table:
    return pa.Table.from_pylist([{"id": i, "v": v} for i, v in pairs], SCHEMA)


class Query:
    """A table of a catalog of its own, and a query that writes its changes as Parquet."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.catalog = iceberg.properties(folder)
        iceberg.opened(self.catalog).create_table("shop.orders", SCHEMA)

    @property
    def table(self) -> Table:
        return iceberg.opened(self.catalog).load_table("shop.orders")

    def read(self, **arguments: Any) -> dt.Table:
        return dt.Table.from_iceberg(
            self.spark, "shop.orders", catalog=self.catalog, key="id", **arguments
        )

    def run(self, **arguments: Any) -> list[tuple[Any, ...]]:
        """The changes of one start of the query, in order."""
        before = self.changes()
        query = self.read(**arguments).write_stream(
            dt.to_parquet(self.folder / "out"),
            checkpoint=self.folder / "checkpoint",
            trigger={"availableNow": True},
            buckets=1,
            partitions=1,
        )
        query.awaitTermination()
        self.batches = len([p for p in query.recentProgress if p["numInputRows"]])
        found = self.changes()
        assert found[: len(before)] == before
        return found[len(before) :]

    def changes(self) -> list[tuple[Any, ...]]:
        if not (self.folder / "out").exists():
            return []
        rows = rows_of(self.folder / "out")
        return sorted((row["_position"], row["_change"], row["id"], row["v"]) for row in rows)


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


def by_key(found: list[tuple[Any, ...]]) -> dict[int, list[tuple[str, str | None]]]:
    """The changes of each key, in order."""
    changes: dict[int, list[tuple[str, str | None]]] = defaultdict(list)
    for _, change, i, v in found:
        changes[i].append((change, v))
    return dict(changes)


@pytest.mark.long
def test_content_then_changes_over_restarts(query: Query) -> None:
    """Each start goes on behind the last snapshot that was read; nothing is lost or doubled."""
    query.table.append(rows((1, "a"), (2, "b")))
    query.table.append(rows((3, "c")))
    first = query.run()
    assert by_key(first) == {1: [("upsert", "a")], 2: [("upsert", "b")], 3: [("upsert", "c")]}

    table = query.table
    file = like(table)
    new = iceberg.values(table, ["id"], rows((1, "-")), file)
    iceberg.row_delta(table, [new], rows((1, "d")))
    iceberg.row_delta(query.table, [iceberg.values(table, ["id"], rows((2, "-")), file)])
    query.table.append(rows((2, "e"), (4, "f")))
    second = query.run(max_snapshots=1)
    assert by_key(second) == {
        1: [("upsert", "d")],
        2: [("delete", None), ("upsert", "e")],
        4: [("upsert", "f")],
    }
    assert query.batches == 3

    # The last micro-batch runs once more: its rows are read again, and are the same.
    last = max(int(p.name) for p in (query.folder / "checkpoint/commits").glob("[0-9]*"))
    (query.folder / f"checkpoint/commits/{last}").unlink()
    assert query.run() == []

    content = query.read(streaming=False).changelog()
    assert {(row["id"], row["v"]) for row in content.collect()} == {
        (1, "d"),
        (2, "e"),
        (3, "c"),
        (4, "f"),
    }


def like(table: Table) -> Any:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)
    return next(
        entry.data_file
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content == 0
    )


def test_columns_are_read_by_their_ids(query: Query) -> None:
    assert query.read(streaming=False).changelog().collect() == []
    # A session that does not know the data source yet, while the active one does.
    arguments: dict[str, Any] = {"catalog": query.catalog, "key": "id", "streaming": False}
    other = dt.Table.from_iceberg(query.spark.newSession(), "shop.orders", **arguments)
    assert other.changelog().collect() == []
    activate(query.spark)
    query.table.append(rows((1, "a")))
    with query.table.update_schema() as update:
        update.rename_column("v", "w")
    with query.table.update_schema() as update:
        update.add_column("v", LongType())
    query.table.append(pa.table({"id": [2], "w": ["b"], "v": [7]}))
    read = query.read(streaming=False, columns=["w", "v"])
    found = {(row["id"], row["w"], row["v"]) for row in read.changelog().collect()}
    assert found == {(1, "a", None), (2, "b", 7)}
    first = query.table.metadata.snapshots[0].snapshot_id
    changes = query.read(
        streaming=False,
        snapshot=first,
        columns="w",
        timestamp=F.lit("2024-01-01").cast("timestamp"),
    )
    times = {(row["id"], row["w"], str(row["_timestamp"])) for row in changes.changelog().collect()}
    assert times == {(1, "a", "2024-01-01 00:00:00"), (2, "b", "2024-01-01 00:00:00")}


def test_what_cannot_be_read_says_so(query: Query) -> None:
    for v in "abc":
        query.table.append(rows((1, v)))
    query.run()
    first, second, last = (s.snapshot_id for s in query.table.metadata.snapshots)
    query.table.append(rows((2, "d")))
    query.table.maintenance.expire_snapshots().by_ids([first, second, last]).commit()
    with pytest.raises(StreamingQueryException, match=f"snapshot {last} has expired"):
        query.run()
    with pytest.raises(dt.errors.PlanError, match="has expired"):
        query.read(snapshot=first)
    with pytest.raises(dt.errors.PlanError, match="columns="):
        query.read(columns="nothing")
    with query.table.update_schema() as update:
        update.add_column("at", TimeType())
    with pytest.raises(dt.errors.PlanError, match="column 'at' is of type time"):
        query.read()
    beside = query.read(columns="v", timestamp=F.col("_commit_timestamp"))
    assert "at" not in beside.schema.names
    with pytest.raises(dt.errors.PlanError, match="column 'at' is of type time"):
        query.read(columns=["v", "at"], timestamp=F.col("_commit_timestamp"))
    with query.table.update_schema() as update:
        update.add_column("_change_type", LongType())
    with pytest.raises(dt.errors.PlanError, match="column '_change_type' has a name that the"):
        query.read()
    for time in (None, F.col("_commit_timestamp")):
        assert "v" in query.read(columns="v", timestamp=time).schema.names
    with pytest.raises(dt.errors.ConfigurationError, match="cannot be read"):
        dt.Table.from_iceberg(query.spark, "shop.none", catalog=query.catalog, key="id")
