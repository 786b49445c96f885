"""A Delta table that keeps deleted rows, marked: what it has, whatever the cuts and kills."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import delta_rows
import pyarrow as pa
import pytest
from bench.parameters import slow_after
from delta_changes import Change, Place, Rows, changelog, second_of
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import dovetail as dt
from dovetail.base.columns import quoted
from dovetail.io.sinks.delta import tombstones
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.sessions import cloned_session


def model(changes: Sequence[Change]) -> Rows:
    """Key, value, second and mark of each row, one change after the other."""
    rows: dict[Any, tuple[Any, ...]] = {}
    for key, second, value, gone in changes:
        if not gone:
            rows[key] = (key, value, second, False)
        elif key in rows:
            rows[key] = (*rows[key][:2], second, True)
    return sorted(rows.values(), key=repr)


def marked(rows: pa.Table, key: str = "id") -> Rows:
    """Key, value, second and mark of each row that a table has."""
    return sorted(
        (
            (row[key], row["v"], second_of(row["_timestamp"]), row["_deleted"])
            for row in rows.to_pylist()
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
    """Deletes come twice and first, times go back, and the last micro-batch is merged twice."""
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
    delta_rows.create(path, schema)

    batches = [*pairwise([0, *sorted(rng.sample(range(1, 60), cuts)), 60])]
    for first, last in [*batches, batches[-1]]:
        frame = changelog(delta_spark, changes[first:last], first, declared)
        tombstones.mark_changes(session, frame, table, schema, [key], nulls=nulls)
        assert marked(delta_rows.read(path), key) == model(changes[:last])
    whole = tombstones.marked_rows(changelog(delta_spark, changes, 0, declared), schema, [key])
    assert marked(whole.toArrow(), key) == model(changes)


@pytest.mark.long
def test_a_query_keeps_deleted_rows_also_if_it_is_killed(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one puts its own rows in place of the table."""
    merged = tombstones.mark_changes
    calls = []

    def dies(*arguments: Any, **options: Any) -> None:
        merged(*arguments, **options)
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("killed")

    monkeypatch.setattr(tombstones, "mark_changes", dies)
    place = Place(delta_spark, tmp_path)
    place.come(Change("a", 1, 1), Change("b", 2, 2), Change("b", 3, 3, gone=True))
    place.come(Change("a", 4, 4, gone=True), Change("b", 5, 5), Change("c", 6, 6, gone=True))
    marks = {"history": False, "deletes": "mark"}
    with pytest.raises(StreamingQueryException, match="killed"):
        place.run(**marks)
    place.run(**marks)
    assert len(calls) == 3
    expected = [("a", 1, 4, True), ("b", 5, 5, False)]
    assert marked(delta_rows.read(place.target)) == model(place.changes) == expected
    place.come(Change("b", 7, 7, gone=True))
    place.run("another", place.table(files=3), existing="replace", **marks)
    assert marked(delta_rows.read(place.target)) == model(place.changes)


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
