"""Inputs of several logs, as topics of several partitions are, read in unlike portions.

With ``align=`` each key's changes are those of one micro-batch that has it all. Without it, a
table has in the end the newest row of each key.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from bench.forced import forced

import dovetail as dt
from dovetail import testing
from dovetail.arrays.hashing import stable_hash
from dovetail.base.columns import DELETED, EVENT_TIME, LOG_PARTITION, POSITION, SEQUENCE
from dovetail.engine.local import LocalRun
from dovetail.laws.logs import REPLAY_LOG
from dovetail.physical.inputs import Arrival
from dovetail.physical.planner import plan_of
from dovetail.plan.nodes import RowOrder, Source

SCHEMA = {"k": pa.string(), "v": pa.string()}
SELECT = {"l": "left.v", "r": "right.v"}
ALIGN_US = 60_000_000

Record: TypeAlias = "tuple[str, str, int, bool]"
"""Key, value, time, whether it is deleted."""
Logs: TypeAlias = "dict[tuple[str, int], list[Record]]"
"""By side and log."""


def topic(kind: type, name: str, *, limited: bool = True) -> Any:
    """A table or stream that says of each row in which log it lies. ``limited``: whether a table's
    micro-batches may leave rows unread.
    """
    made = testing.table if kind is dt.Table else testing.stream
    source: Any = made(name, key="k", schema=SCHEMA).plan
    place: Any = "place"
    several = {"partitioned": True, "limited": limited and kind is dt.Table}
    order = RowOrder(sequence=place, log_partition=place, **several)
    return kind(replace(source, order=order))


JOINS: dict[str, Callable[..., Any]] = {
    "tables": lambda **how: topic(dt.Table, "L").join(
        topic(dt.Table, "R"), how="outer", select=SELECT, **how
    ),
    "stream and table": lambda **how: topic(dt.Stream, "L").join(
        topic(dt.Table, "R"), how="left", select=SELECT, **how
    ),
    "streams": lambda **how: topic(dt.Stream, "L").join(
        topic(dt.Stream, "R"),
        how="outer",
        within=dt.within(before="40 us", after="40 us"),
        select=SELECT,
        **how,
    ),
}


def drawn(random_: random.Random, sides: str, *, streams: str = "") -> Logs:
    """Logs of both sides, their times all different, some of them late."""
    names = [(side, log) for side in sides for log in range(random_.randint(1, 3))]
    logs: Logs = {}
    for number, (side, log) in enumerate(names):
        at, made = 0, []
        for place in range(random_.randint(1, 12)):
            at += random_.randint(1, 3)
            time = max(at - random_.choice([0, 0, 0, 2, 5]), 0) * len(names) + number
            gone = side not in streams and random_.random() < 0.2
            made.append((random_.choice("abc"), f"{side}{log}-{place}", time, gone))
        logs[side, log] = made
    return logs


def rows_of(log: int, first: int, given: list[Record]) -> pa.Table:
    keys, values, times, gone = zip(*given, strict=True)
    return pa.table(
        {
            "k": pa.array(keys),
            "v": pa.array(values),
            EVENT_TIME: pa.array(times, pa.int64()),
            DELETED: pa.array(gone),
            SEQUENCE: pa.array(range(first, first + len(given)), pa.int64()),
            LOG_PARTITION: pa.array([log] * len(given), pa.int64()),
        }
    )


def run(topology: Any, logs: Logs, portion: Callable[[], int]) -> dict[str, list[Any]]:
    """By key the changes, of micro-batches that have so much of each log, the first one something
    of all; then nothing comes until nothing is waited for.
    """
    node = topology.plan
    local = LocalRun(
        plan_of([node], buckets=3, emit="change", arrival=Arrival.of(node)), stable_hash
    )
    sources: dict[str, Source] = {source.name: source for source in node.origins}
    read = dict.fromkeys(logs, 0)
    found: dict[str, list[Any]] = {}
    batch, waiting = 0, True
    while waiting:
        waiting = any(read[log] < len(rows) for log, rows in logs.items())
        for (side, log), rows in logs.items():
            given = rows[read[side, log] :][: portion() or batch == 0]
            if given:
                table = rows_of(log, read[side, log], given)
                local.accept_rows(sources[side], table, partition=log)
                read[side, log] += len(given)
        now_us = batch if waiting else 10 * ALIGN_US
        for _, made in local.run_batch(batch, now_us):
            for row in made.drop_columns([POSITION]).to_pylist():
                found.setdefault(row.pop("k"), []).append(row)
        batch += 1
    return found


@pytest.mark.parametrize("kind", JOINS)
def test_aligned_inputs_equal_the_batch_run(kind: str) -> None:
    differs = 0
    for seed in range(3):
        random_ = random.Random(f"{kind} {seed}")
        streams = {"tables": "", "stream and table": "L", "streams": "LR"}[kind]
        logs = drawn(random_, "LR", streams=streams)
        expected = run(JOINS[kind](), logs, lambda: 1000)
        aligned = run(JOINS[kind](align="1 min"), logs, unlike(random_))
        assert aligned == expected, seed
        differs += run(JOINS[kind](), logs, unlike(random_)) != expected
    assert differs, "the rows would be in this order without align="


def unlike(random_: random.Random) -> Callable[[], int]:
    """Portions of which none is like another."""
    return lambda: random_.choice([0, 1, 4])


def newest(logs: Logs) -> dict[str, str]:
    """By key the newest row, where each log's rows are as old as their newest so far."""
    last: dict[str, tuple[tuple[int, int, int], str | None]] = {}
    for (_, log), rows in logs.items():
        ages: dict[str, int] = {}
        for place, (key, value, time, gone) in enumerate(rows):
            ages[key] = max(time, ages.get(key, time))
            rank = (ages[key], log, place)
            if key not in last or rank > last[key][0]:
                last[key] = rank, None if gone else value
    return {key: value for key, (_, value) in last.items() if value is not None}


@pytest.mark.parametrize(
    "kind",
    {
        "as it is": lambda rows: rows,
        "materialized": lambda rows: rows.materialize(),
        "grouped": lambda rows: rows.group_by("k").agg(v=dt.max("v")),
        "expiring": lambda rows: rows.expire(after="1 day"),
    }.items(),
    ids=lambda kind: kind[0],
)
def test_a_table_has_the_newest_row_of_each_key(kind: Any) -> None:
    for seed in range(8):
        random_ = random.Random(seed)
        logs = drawn(random_, "T")
        for portion in (lambda: 1000, unlike(random_)):
            made = run(kind[1](topic(dt.Table, "T")), logs, portion)
            last = {key: rows[-1] for key, rows in made.items()}
            assert {k: r["v"] for k, r in last.items() if not r[DELETED]} == newest(logs), seed


@pytest.mark.parametrize("limited", [True, False])
def test_replayed_rows_and_those_of_a_topic_do_not_replace_each_other(limited: bool) -> None:
    """Each takes effect as it arrives, and partitions are compared as if none was replayed."""
    node = topic(dt.Table, "T", limited=limited).plan
    local = LocalRun(
        plan_of([node], buckets=1, emit="change", arrival=Arrival.of(node)), stable_hash
    )
    steps = [
        (0, "first", 100, True),
        (REPLAY_LOG, "mended", 50, True),
        (REPLAY_LOG, "mended late", 200, True),
        (0, "next", 150, True),
        (1, "old", 120, not limited),
    ]
    for batch, (log, value, time, has_effect) in enumerate(steps):
        rows = rows_of(log, batch, [("a", value, time, False)])
        local.accept_rows(node, rows, partition=log)
        made = [row["v"] for _, rows in local.run_batch(batch, batch) for row in rows.to_pylist()]
        assert made == [value] * has_effect
    for log, time in ((0, 300), (REPLAY_LOG, 310)):
        rows = rows_of(log, 9, [("b", "", 400 * (log == 0), False), ("a", f"{time}", time, False)])
        local.accept_rows(node, rows, partition=log)
    ((_, made_together),) = local.run_batch(9, 9)
    assert [row["v"] for row in made_together.to_pylist() if row["k"] == "a"] == ["310", "300"]


def test_a_table_has_the_newest_row_of_each_key_over_slices() -> None:
    for seed in range(8, 12):
        logs = drawn(random.Random(seed), "T")
        with forced("own", {"slice_bytes": 1}):
            made = run(topic(dt.Table, "T", limited=False), logs, lambda: 1000)
        last = {key: rows[-1] for key, rows in made.items()}
        assert {k: r["v"] for k, r in last.items() if not r[DELETED]} == newest(logs), seed
