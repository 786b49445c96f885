"""A Delta table that keeps deleted rows, marked: what it has, whatever the cuts and kills."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bench.parameters import slow_after
from parquet_rows import add_file
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from small_session import with_delta

import dovetail as dt
from dovetail.base.columns import quoted
from dovetail.io.sinks.delta import tombstones
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.sessions import cloned_session

START = datetime(2024, 1, 1, tzinfo=timezone.utc)
SETTINGS = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
}

Rows = list[tuple[Any, ...]]


class Change(NamedTuple):
    """A change of a key at a second; ``gone``: its delete."""

    key: Any
    second: int
    value: int
    gone: bool = False


@pytest.fixture(scope="module")
def delta_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, which must have been started with Delta Lake."""
    yield from with_delta(spark, SETTINGS)


def model(changes: Sequence[Change]) -> Rows:
    """Key, value, second and mark of each row, one change after the other."""
    rows: dict[Any, tuple[Any, ...]] = {}
    for key, second, value, gone in changes:
        if not gone:
            rows[key] = (key, value, second, False)
        elif key in rows:
            rows[key] = (*rows[key][:2], second, True)
    return sorted(rows.values(), key=repr)


def read(spark: SparkSession, path: Path, key: str = "id") -> Rows:
    rows = spark.read.format("delta").load(str(path)).toArrow().to_pylist()
    return sorted(
        (
            (
                row[key],
                row["v"],
                round((row["_timestamp"].astimezone(timezone.utc) - START).total_seconds()),
                row["_deleted"],
            )
            for row in rows
        ),
        key=repr,
    )


@pytest.mark.parametrize(
    ("cuts", "few", "nulls", "key"),
    slow_after(1, [(1, True, True, "id"), (2, False, False, "a`b.c"), (2, True, True, "id")]),
)
def test_rows_are_those_of_the_changelog_however_it_is_cut(
    delta_spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cuts: int,
    few: bool,
    nulls: bool,
    key: str,
) -> None:
    """Deletes come twice and first, times go back, and each micro-batch is merged twice."""
    if not few:
        monkeypatch.setattr(delta_upsert, "ROWS_MAX", 0)
    rng = random.Random(few)
    keys = [*"abcde", None if nulls else "f"]
    changes = [
        Change(rng.choice(keys), rng.randrange(50), at, rng.random() < 0.4) for at in range(60)
    ]
    session = cloned_session(delta_spark)
    delta_tables.tune(session)
    declared = f"{quoted(key)} string, v long"
    schema = StructType(
        [*StructType.fromDDL(f"{declared}, _timestamp timestamp"), tombstones.MARK_FIELD]
    )
    path = tmp_path / "table"
    table = delta_tables.sql_name(str(path))
    delta_tables.create(delta_spark.createDataFrame([], schema), table, {}, replace=False)

    def frame(first: int, last: int) -> DataFrame:
        rows = [
            (
                c.key,
                None if c.gone else c.value,
                "delete" if c.gone else "upsert",
                START + timedelta(seconds=c.second),
                at,
            )
            for at, c in enumerate(changes[first:last], first)
        ]
        rng.shuffle(rows)
        return delta_spark.createDataFrame(
            rows, f"{declared}, _change string, _timestamp timestamp, _position long"
        )

    for first, last in pairwise([0, *sorted(rng.sample(range(1, 60), cuts)), 60]):
        for _ in range(2):
            tombstones.mark_changes(session, frame(first, last), table, schema, [key], nulls=nulls)
        assert read(delta_spark, path, key) == model(changes[:last])
    tombstones.marked_rows(frame(0, 60), schema, [key]).write.format("delta").save(
        str(tmp_path / "whole")
    )
    assert read(delta_spark, tmp_path / "whole", key) == model(changes)


def test_a_query_keeps_deleted_rows_also_if_it_is_killed(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one goes on with the table, or puts its own rows in place of it."""
    source, target = tmp_path / "in", tmp_path / "out"
    given: list[Change] = []

    def come(*changes: Change) -> None:
        given.extend(changes)
        rows = [(c.key, c.value, START + timedelta(seconds=c.second), c.gone) for c in changes]
        add_file(source, rows, "id string, v long, at timestamp, gone boolean")

    def table() -> dt.Table:
        columns = "id string, v long, at timestamp, gone boolean"
        return dt.Table.from_changelog(
            delta_spark.readStream.schema(columns).parquet(str(source)),
            key="id",
            timestamp="at",
            deleted="gone",
            name="t",
        )

    def run(checkpoint: str = "checkpoint", **options: Any) -> None:
        table().write_stream(
            dt.to_delta(target, deletes="mark", **options),
            checkpoint=tmp_path / checkpoint,
            trigger={"availableNow": True},
            buckets=1,
        ).awaitTermination()

    merged = tombstones.mark_changes
    calls = []

    def dies(*arguments: Any, **options: Any) -> None:
        merged(*arguments, **options)
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("killed")

    monkeypatch.setattr(tombstones, "mark_changes", dies)
    come(Change("a", 1, 1), Change("b", 2, 2), Change("b", 3, 3, gone=True))
    run()
    come(Change("a", 4, 4, gone=True), Change("b", 5, 5), Change("c", 6, 6, gone=True))
    with suppress(StreamingQueryException):
        run()
    run()
    assert len(calls) == 3
    assert read(delta_spark, target) == model(given) == [("a", 1, 4, True), ("b", 5, 5, False)]
    come(Change("b", 7, 7, gone=True))
    run("another", existing="replace")
    assert read(delta_spark, target) == model(given)


def test_what_has_no_marks_is_refused(delta_spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(dt.errors.PlanError, match="history=True and deletes='mark' are both given"):
        dt.to_delta(tmp_path, history=True, deletes="mark")
    with pytest.raises(dt.errors.PlanError, match="track= is given without history=True"):
        dt.to_delta(tmp_path, track="v")
    rows = delta_spark.readStream.format("rate").load()
    table = dt.Table.from_changelog(rows, key="value", timestamp="timestamp", name="t")
    stream = table.to_stream()
    with pytest.raises(dt.errors.PlanError, match="deletes='mark' is for tables"):
        stream.write_stream(
            dt.to_delta(tmp_path / "out", deletes="mark"), checkpoint=tmp_path / "checkpoint"
        )
    assert not (tmp_path / "out").exists()
