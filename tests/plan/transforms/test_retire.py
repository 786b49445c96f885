"""Rows that a feed's latest whole snapshot lacks leave, wherever micro-batches end."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail import testing
from dovetail.errors import PlanError

COLUMNS = {"id": pa.int64(), "v": pa.string(), "mark": pa.string(), "read": pa.int64()}
Event = tuple[int, str | None, str, int]
"""A key, its value (None: the row is deleted), the snapshot's mark, and the time of reading."""


def snapshot(
    ids: list[int], read: int, *, begun: str = "first", ended: str = "last"
) -> list[Event]:
    """The rows of a snapshot, one a moment."""
    marks = [begun, *["true"] * len(ids), ended]
    marks = [ended] if len(ids) == 1 else [begun, *marks[2 : len(ids)], ended]
    return [
        (id_, f"v{read + n}", mark, read + n)
        for n, (id_, mark) in enumerate(zip(ids, marks, strict=True))
    ]


def left(events: list[Event]) -> dict[int, str]:
    """By definition: the rows of those that were read since the latest whole snapshot began. A
    snapshot may lack its first row, but rows between that one and the last one are marked.
    """
    rows: dict[int, tuple[str, str, int]] = {}
    begun: int | None = None
    ended = whole = since = -1
    for id_, value, mark, read in events:
        if value is None:
            rows.pop(id_, None)
            continue
        rows[id_] = (value, mark, read)
        if mark.startswith("first"):
            begun = read
        elif mark.startswith("last"):
            whole, since = (read, ended) if begun is None else (begun, begun)
            begun, ended = None, read
    return {
        id_: value
        for id_, (value, mark, read) in rows.items()
        if read >= whole or (mark == "true" and read > since)
    }


def driven(spark: SparkSession, events: list[Event], cut: random.Random) -> dict[int, str]:
    """What the driver has of the events, which are cut into micro-batches."""
    table = testing.table("t", key="id", schema=COLUMNS)
    retired = table.retire(snapshot="mark", at="read")
    driver = testing.Driver(retired, spark=spark)
    while events:
        size = cut.randint(1, 8)
        with driver.batch():
            for id_, value, mark, read in events[:size]:
                row = {"id": id_, "v": value, "mark": mark, "read": read}
                gone = value is None
                driver.pipe(table, {"id": id_} if gone else row, deleted=gone, timestamp=read)
        events = events[size:]
    return {id_: row["v"] for id_, row in driver.table(retired).items()}


@pytest.mark.slow
def test_rows_that_a_second_snapshot_lacks_leave(spark: SparkSession) -> None:
    first = [*snapshot([1, 2, 3], 10), (2, "changed", "false", 20), (4, "new", "false", 21)]
    again = snapshot([1, 3], 30, begun="first_in_data_collection", ended="last_in_data_collection")
    cut = random.Random(0)
    assert driven(spark, first, cut) == {1: "v10", 2: "changed", 3: "v12", 4: "new"}
    assert driven(spark, [*first, *again[:1]], cut).keys() == {1, 2, 3, 4}
    assert driven(spark, [*first, *again], cut) == {1: "v30", 3: "v31"}
    assert driven(spark, [*first, *again, (5, "x", "false", 40)], cut).keys() == {1, 3, 5}
    # One that was broken off retires nothing, nor brings back what has left.
    broken = snapshot([3, 5], 50)[:1]
    assert driven(spark, [*first, *again, *broken], cut).keys() == {1, 3}
    assert driven(spark, [*first, *again, *snapshot([3], 60)], cut).keys() == {3}
    # The first row has changed, and the topic is compacted; or a condition leaves it out.
    changed = (1, "later", "false", 22)
    assert driven(spark, [*snapshot([1, 2, 3], 10)[1:], changed], cut).keys() == {1, 2, 3}
    more = snapshot([1, 3, 4], 30)
    assert driven(spark, [*first, *more[1:]], cut) == {3: "v31", 4: "v32"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_feeds(spark: SparkSession, seed: int) -> None:
    draw = random.Random(seed)
    events: list[Event] = []
    for _ in range(3):
        ids = draw.sample(range(8), draw.randint(1, 6))
        whole = snapshot(ids, len(events))
        if draw.random() < 0.3 and len(whole) > 1:
            whole[0] = (ids[0], None, "false", len(events))
        events += whole if draw.random() < 0.7 else whole[: draw.randint(0, len(whole) - 1)]
        for _ in range(draw.randint(0, 5)):
            value = None if draw.random() < 0.3 else f"c{len(events)}"
            events.append((draw.randrange(8), value, "false", len(events)))
    assert driven(spark, events, draw) == left(events)


def test_what_cannot_serve_is_refused(spark: SparkSession) -> None:
    table = testing.table("t", key="id", schema=COLUMNS)
    with pytest.raises(PlanError, match=r"snapshot= names an unknown column 'no'"):
        table.retire(snapshot="no", at="read")
    with pytest.raises(PlanError, match=r"at= v is of type string, not bigint. Cast it"):
        table.retire(snapshot="mark", at="v")


def test_without_a_session_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(PlanError, match=r"retire of t: .* there is no Spark session"):
        testing.table("t", key="id", schema=COLUMNS).retire(snapshot="mark", at="read")


def static_rows(
    spark: SparkSession, events: list[Event], key: str = "id", value: str = "v"
) -> list[tuple[int, str]]:
    """The rows that stay of a static frame, by their key."""
    names = f"{key} long, {value} string, mark string, read long"
    frame = spark.createDataFrame(events, names).coalesce(1)
    frame = frame.selectExpr("*", "timestamp_seconds(read) AS at")
    table = dt.Table.from_changelog(frame, key=key, timestamp="at", name="t")
    rows = table.retire(snapshot="mark", at="read").changelog(emit="batch").collect()
    return sorted((row[key], row[value]) for row in rows)


def test_static_frames(spark: SparkSession) -> None:
    """Also with columns named as those that are made on the way."""
    events = [*snapshot([1, 2, 3], 10), *snapshot([1, 3], 30)]
    shown = static_rows(spark, events, "snapshot_copy", "snapshot_moments")
    assert shown == [(1, "v30"), (3, "v31")]


def test_the_first_row_of_a_snapshot_may_be_missing(spark: SparkSession) -> None:
    """It changed later in a compacted topic, or a condition leaves it out. No row may leave."""
    events = [*snapshot([1, 2, 3, 4], 10)[1:], (1, "later", "false", 20)]
    again = [*events, *snapshot([1, 3, 4], 30)[1:], (1, "again", "false", 40)]
    for given, stays in ((events, [1, 2, 3, 4]), (again, [1, 3, 4])):
        assert [id_ for id_, _ in static_rows(spark, given)] == stays
