"""A Delta table as a source: its content, then every commit, whatever commits do to a key."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from delta_rows import add_rows
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from small_session import RECORDING_CHANGES, with_delta

import dovetail as dt
from dovetail.io.sources import change_feed
from dovetail.io.sources.change_feed import changes_of
from dovetail.plan.nodes import Source
from dovetail.plan.spark_sources import spark_sources_of

START = datetime(2024, 1, 1, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def delta_spark(spark: SparkSession) -> Iterator[SparkSession]:
    yield from with_delta(spark, RECORDING_CHANGES)


def rows(table: dt.Table) -> list[tuple[Any, ...]]:
    """The position, whether it is a delete, the key and the value of each change."""
    frame = table.plan.frame.select("_commit_position", "_deleted", "id", "v")
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.long
def test_content_then_changes(delta_spark: SparkSession, tmp_path: Path) -> None:
    """A query over its restarts has the table at each commit; so has a batch of the changes."""
    spark, path, columns = delta_spark, str(tmp_path / "t"), "id long, v string"
    held: dict[int, str] = {}

    def hold(changes: DataFrame, _: int) -> None:
        for row in sorted(changes.collect(), key=lambda row: row["_position"]):
            if row["_change"] == "upsert":
                held[row["id"]] = row["v"]
            else:
                del held[row["id"]]

    def run() -> None:
        dt.Table.from_delta(spark, path, key="id").materialize().write_stream(
            dt.to_foreach_batch(hold),
            checkpoint=tmp_path / "checkpoint",
            trigger={"availableNow": True},
            buckets=1,
        ).awaitTermination()

    add_rows(path, columns, (1, "a"), (2, "b"))
    run()
    assert held == {1: "a", 2: "b"}
    stored = deltalake.DeltaTable(path)
    stored.update(predicate="id = 1", updates={"v": "'c'"})
    stored.update(predicate="id = 2", updates={"id": "3"})
    stored.delete("id = 1")
    add_rows(path, columns, (1, "d"))
    run()
    assert held == {1: "d", 3: "b"}

    def read(**options: Any) -> dt.Table:
        return dt.Table.from_delta(spark, path, key="id", streaming=False, **options)

    moved = (4, True, 2, "b")
    changed = [(3, False, 1, "c"), (5, False, 3, "b"), (6, True, 1, "c"), (9, False, 1, "d")]
    assert rows(read(version=1)) == sorted([*changed, moved])
    assert rows(read(version=1, key_updates=False)) == changed
    add_rows(path, columns, (1, "d"), (3, "e"), overwrite=True)
    assert rows(read(version=5)) == [(11, False, 3, "e")]
    content = read()
    assert rows(content) == [(11, False, 1, "d"), (11, False, 3, "e")]
    (first,) = {row["_timestamp"] for row in content.plan.frame.collect()}
    assert first.year == datetime.now(timezone.utc).year
    assert content.plan.name == "t"
    former = read(options={"versionAsOf": "0"})
    assert rows(former) == [(1, False, 1, "a"), (1, False, 2, "b")]
    (began,) = {row["_timestamp"] for row in former.plan.frame.collect()}
    assert began < first
    options = {"timestampAsOf": (began + timedelta(milliseconds=1)).astimezone().isoformat()}
    former = read(options=options)
    assert rows(former) == [(1, False, 1, "a"), (1, False, 2, "b")]
    assert rows(read(options={"startingVersion": "5"})) == [(11, False, 3, "e")]


@pytest.mark.slow
def test_columns_that_are_not_read_are_renamed_and_dropped(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    """In a table with column mapping, of which Delta notes the columns in the checkpoint."""
    spark, path, checkpoint = delta_spark, str(tmp_path / "t"), str(tmp_path / "checkpoint")
    mapping = "'delta.columnMapping.mode' = 'name'"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id long, v string, w long) USING delta "
        f"TBLPROPERTIES ({mapping})"
    )
    allowed = dict.fromkeys(("allowSourceColumnRename", "allowSourceColumnDrop"), "always")
    held: dict[int, str] = {}

    def hold(changes: DataFrame, _: int) -> None:
        held.update((row["id"], row["v"]) for row in changes.collect())

    def run() -> None:
        dt.Table.from_delta(
            spark,
            path,
            key="id",
            columns=["v"],
            options={"schemaTrackingLocation": f"{checkpoint}/_columns", **allowed},
        ).write_stream(
            dt.to_foreach_batch(hold),
            checkpoint=checkpoint,
            trigger={"availableNow": True},
            buckets=1,
        ).awaitTermination()

    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, 'a', 1)")
    run()
    for change, id_ in (("RENAME COLUMN w TO x", 2), ("DROP COLUMN x", 3)):
        spark.sql(f"ALTER TABLE delta.`{path}` {change}")
        spark.sql(f"INSERT INTO delta.`{path}` BY NAME SELECT {id_}L AS id, 'b' AS v")
        with pytest.raises(StreamingQueryException, match="DELTA_STREAMING_METADATA_EVOLUTION"):
            run()
        run()
        assert held == {1: "a", **dict.fromkeys(range(2, id_ + 1), "b")}


class Simulated:
    """Tables side by side, each with keys of its own, and what their change feed says."""

    def __init__(self, draw: random.Random, tables: int) -> None:
        self.draw, self.tables = draw, tables
        self.rows: dict[int, tuple[int, int]] = {}
        self.feed: list[tuple[Any, ...]] = []
        self.effects: dict[int, list[tuple[int, int | None]]] = defaultdict(list)

    def commit(self, version: int) -> None:
        """Insert, update, delete and rewrite rows; a row is its value and its time."""
        before, moved = dict(self.rows), dict[int, int]()
        for table in range(self.tables):
            keys = range(4 * table, 4 * table + 3)
            step = self.draw.choice((self.change, self.change, self.shift))
            step(version, keys, moved)
        for key in {*before, *self.rows}:
            if key in self.rows and before.get(key) != self.rows[key]:
                value, time = self.rows[key]
                self.effects[key].append((time, value))
            elif key not in self.rows:
                time = moved.get(key, max(before[key][1], 20 * version))
                self.effects[key].append((time, None))

    def shift(self, version: int, keys: range, moved: dict[int, int]) -> None:
        """An update of all keys, each of which becomes the next."""
        own = {key: self.rows.pop(key) for key in keys if key in self.rows}
        time = self.draw.randrange(100)
        for key, (value, was) in own.items():
            new = keys[0] + (key + 1 - keys[0]) % len(keys)
            self.say(version, "update_preimage", key, value, was)
            self.say(version, "update_postimage", new, value, time)
            self.rows[new], moved[key] = (value, time), time

    def change(self, version: int, keys: range, _: object) -> None:
        """Some rows come, go, are updated, or rewritten as they are."""
        for key in self.draw.sample(keys, self.draw.randint(0, len(keys))):
            row = self.draw.randrange(3), self.draw.randrange(100)
            kinds = self.draw.choice(
                (("update_preimage", "update_postimage"), ("delete", "insert"))
            )
            stays = self.draw.random() < 0.7
            before = self.rows.pop(key, None)
            if before is not None:
                row = self.draw.choice((row, before))
                self.say(version, kinds[0] if stays else "delete", key, *before)
            if stays:
                self.say(version, "insert" if before is None else kinds[1], key, *row)
                self.rows[key] = row

    def say(self, version: int, kind: str, key: int, value: int, time: int) -> None:
        at = START + timedelta(seconds=20 * version)
        row = key, value, START + timedelta(seconds=time), kind, version, at
        self.feed.append(row)

    def standing(self, key: int, time: int) -> int | None:
        """The value at a time, when each change takes effect no earlier than those before it."""
        end, found = -1, None
        for at, value in self.effects[key]:
            end = max(end, at)
            found = value if end <= time else found
        return found


def test_an_expression_is_the_time_of_rows(delta_spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    add_rows(path, "id long, v string", (1, "2024-01-01"))
    table = dt.Table.from_delta(
        delta_spark,
        path,
        key="id",
        timestamp=F.to_timestamp("v"),
        streaming=False,
        options={"versionAsOf": "0"},
    )
    assert isinstance(table.plan, Source)
    assert table.plan.time_text == "to_timestamp(v)"
    (row,) = table.changelog().collect()
    assert (row["id"], row["v"], str(row["_timestamp"])) == (1, "2024-01-01", "2024-01-01 00:00:00")


def test_a_history_is_the_table_at_each_time(spark: SparkSession) -> None:
    simulated = Simulated(random.Random(7), tables=25)
    for version in range(6):
        simulated.commit(version)
    schema = (
        "id long, v long, updated timestamp, "
        "_change_type string, _commit_version long, _commit_timestamp timestamp"
    )
    feed = spark.createDataFrame(simulated.feed, schema).coalesce(1)
    made = changes_of(feed, "table t", ["id"], "updated", partitions=2)
    assert made.columns == ["id", "v", "_deleted", "_timestamp", "_commit_position"]
    read = dt.Table.from_changelog(
        made,
        key="id",
        timestamp="_timestamp",
        deleted="_deleted",
        sequence="_commit_position",
        versioned="100 days",
        name="t",
    )
    assert isinstance(read.plan, Source)
    table = dt.Table(replace(read.plan, order=replace(read.plan.order, by_commit=True)))
    asked = [(key, time) for key in simulated.effects for time in range(0, 130, 3)]
    questions = spark.createDataFrame(
        [(n, key, START + timedelta(seconds=time)) for n, (key, time) in enumerate(asked)],
        "n long, id long, at timestamp",
    )
    stream = dt.Stream.from_changelog(questions, key="n", timestamp="at", name="s")
    found = stream.join(table, on="id", how="left", grace="1 day", select=["v"]).changelog()
    answers = {row["n"]: row["v"] for row in found.collect()}
    assert answers == {n: simulated.standing(*one) for n, one in enumerate(asked)}


def test_large_partitions_are_netted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {
        "id": pa.array(range(1000)),
        "gone": pa.array([False] * 1000),
        "time": pa.array([0] * 1000),
        "position": pa.array([3] * 1000),
        "own": pa.nulls(1000, pa.int64()),
    }
    come = pa.table(columns)
    go = come.set_column(1, "gone", pa.array([True] * 1000))
    go = go.set_column(3, "position", pa.array([2] * 1000)).slice(0, 900)
    batches = pa.concat_tables([come, go]).to_batches(max_chunksize=100)
    kept = [change_feed._net_partition(iter(batches), [0])]
    monkeypatch.setattr(change_feed, "HELD_BYTES_MAX", 1000)
    kept.append(change_feed._net_partition(iter(batches), [0]))
    for rows_kept in kept:
        ids = [id_ for batch in rows_kept for id_ in batch.column(0).to_pylist()]
        assert sorted(ids) == [*range(900, 1000)]


def test_what_cannot_be_read_is_refused(delta_spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "plain")
    deltalake.write_deltalake(path, pa.table({"id": [1]}))
    with pytest.raises(
        dt.errors.ConfigurationError, match="table plain: its change data feed is not"
    ):
        dt.Table.from_delta(delta_spark, path, key="id")
    assert dt.Table.from_delta(delta_spark, path, key="id", streaming=False).plan.name == "plain"
    with pytest.raises(dt.errors.PlanError, match="key= names an unknown column 'no'"):
        dt.Table.from_delta(delta_spark, path, key="no", streaming=False)
    with pytest.raises(dt.errors.ConfigurationError, match="cannot be read"):
        dt.Table.from_delta(delta_spark, tmp_path / "none", key="id")
    add_rows(path := str(tmp_path / "fed"), "id long, v string", (1, "a"))
    with pytest.raises(dt.errors.PlanError, match="options= has MaxFilesPerTrigger, with which De"):
        dt.Table.from_delta(delta_spark, path, key="id", options={"MaxFilesPerTrigger": "9"})
    (source,) = spark_sources_of(dt.Table.from_delta(delta_spark, path, key="id").plan.frame)
    assert source.options["maxfilespertrigger"] == "2147483647"
    written = str(tmp_path / "written")  # as by to_delta
    deltalake.write_deltalake(written, pa.table({"id": [1], "_timestamp": [START]}))
    with pytest.raises(dt.errors.PlanError, match="in columns=, or pass timestamp='_timestamp'"):
        dt.Table.from_delta(delta_spark, written, key="id", streaming=False)
    table = dt.Table.from_delta(
        delta_spark, written, key="id", timestamp="_timestamp", streaming=False
    )
    (row,) = table.plan.frame.collect()
    assert row["_timestamp"].astimezone() == START


def test_a_former_row_finds_its_new_one_behind_an_empty_batch() -> None:
    type_ = pa.struct([("kind", pa.string()), ("version", pa.int64()), ("time", pa.int64())])

    def batch(*rows: tuple[str, int, int]) -> pa.Array:
        return pa.array(
            [dict(zip(("kind", "version", "time"), row, strict=True)) for row in rows], type_
        )

    batches = [batch(("update_preimage", 1, 5)), batch(), batch(("update_postimage", 1, 7))]
    times = [times.to_pylist() for times in change_feed._times_of_next(iter(batches))]
    assert times == [[7], [None]]
