"""What must be in the truth tables of streams and versioned tables (no kind of join lacks a table,
and no situation that matters to it), and the laws of their definition.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from bench import truth_tables
from bench.families import streams
from bench.models.streams import (
    OTHER,
    Join,
    StreamStream,
    StreamTable,
    Table,
    VersionedTables,
    at_end,
    each_record,
    kept,
    preserves,
)
from bench.records import WHOLE, Record, Result, cut, flat, one_hash, parts
from bench.runners import driver

from dovetail import testing
from dovetail.state import runs

TABLES = truth_tables.read(*streams.FOLDERS)
SECOND = 1_000_000

Kind: TypeAlias = "dict[str, Any]"

STREAM_TABLE: list[Kind] = [
    {"how": how, "versioned": versioned, "grace": grace}
    for how in ("inner", "left")
    for versioned, grace in ((False, False), (True, False), (True, True))
]
STREAM_STREAM: list[Kind] = [
    {"how": how, "unmatched": unmatched}
    for how in ("inner", "left", "outer")
    for unmatched in ("on_close", "eager", "retract")
    if how != "inner" or unmatched == "on_close"
]
VERSIONED: list[Kind] = [
    {"how": how, "versioned": versioned, "late": late}
    for how in ("inner", "left", "outer")
    for versioned, late in (("L", "ignore"), ("R", "ignore"), ("LR", "ignore"), ("LR", "history"))
]


# The grid: what kinds of join there are, and what must happen to each in some table.


def kind_of(join: Join) -> Kind:
    if isinstance(join, StreamTable):
        versioned, grace = join.versioned is not None, join.grace is not None
        return {"how": join.how, "versioned": versioned, "grace": grace}
    if isinstance(join, StreamStream):
        return {"how": join.how, "unmatched": join.unmatched}
    retentions = {"L": join.left_versioned, "R": join.right_versioned}
    versioned_sides = "".join(side for side in "LR" if retentions[side] is not None)
    return {"how": join.how, "versioned": versioned_sides, "late": join.late}


def situations(join: Join, records: list[Record]) -> set[str]:
    """What happens in a table, by the names that ``wanted`` uses."""
    found = {"several keys"} if len({r.key for r in records}) > 2 else set()
    for r in records:
        value, key = "no value" if r.deleted else "value", "no key" if r.key is None else "key"
        found.add(f"{value}, {key}: {r.table}")
    if isinstance(join, StreamStream):
        clocks, closing = _of_clocks(join, records), _of_closing(join, records)
        return found.union(_of_windows(join, records), clocks, closing)
    if isinstance(join, StreamTable):
        tables = {"R": Table(join.versioned)}
        return found.union(_of_tables(tables, records), _of_waits(join, records))
    tables = {"L": Table(join.left_versioned), "R": Table(join.right_versioned)}
    return found.union(_of_tables(tables, records))


def _of_tables(tables: dict[str, Table], records: list[Record]) -> Iterator[str]:
    """What records do to tables, and what a stream's records find there."""
    for record in records:
        side, time = record.table, record.time
        if record.key is None or (side not in tables and record.deleted):
            continue
        if side not in tables:
            yield from _of_reads(tables[OTHER[side]], record)
            continue
        table = tables[side]
        times = table.times(record.key)
        what = "tombstone" if record.deleted else "row"
        if times and time < times[-1]:
            latest = "tombstone" if table.latest(record.key) is None else "row"
            yield f"{what} older than the latest, a {latest}: {side}"
        if time in times:
            yield f"{what} of the same time: {side}"
        if table.retention is not None and time == table.horizon:
            yield f"at history's edge: {side}"
        if not table.put(record):
            yield f"{what} refused: {side}"


def _of_reads(table: Table, record: Record) -> Iterator[str]:
    times = table.times(record.key)
    if times and record.time < times[0]:
        yield "reads before the first version"
    if table.retention is not None and times and times[0] <= record.time < times[-1]:
        forgotten = record.time < table.horizon
        yield "reads what is forgotten" if forgotten else "reads an old version"
        if record.time == table.horizon:
            yield "reads at history's edge"


def _of_waits(join: StreamTable, records: list[Record]) -> Iterator[str]:
    """Where a stream's records stand to the stream's clock."""
    clock = 0
    for record in records:
        if join.grace is not None and record.table == "L" and record.key and not record.deleted:
            clock = max(clock, record.time)
            order = record.time - (clock - join.grace)
            yield "late" if order < 0 else "just in time" if order == 0 else "in time"


def _of_windows(join: StreamStream, records: list[Record]) -> Iterator[str]:
    """Pairs at both ends of the window and just beyond, whichever comes second."""
    ends = {
        -join.before: "first in the window",
        join.after: "last in the window",
        -join.before - 1: "just before the window",
        join.after + 1: "just after the window",
    }
    joinable = [r for r in records if r.key is not None and not r.deleted]
    for first, second in combinations(joinable, 2):
        if first.key != second.key:
            continue
        if first.table == second.table:
            if first.time == second.time:
                yield f"twice the same key and time: {first.table}"
            continue
        left, right = (first, second) if second.table == "R" else (second, first)
        if (difference := right.time - left.time) in ends:
            yield f"{ends[difference]}, {second.table} comes second"


def _of_clocks(join: StreamStream, records: list[Record]) -> Iterator[str]:
    """Where a record stands to the clock, and the clock to what is stored."""
    clock = records[0].time
    stored: list[Record] = []
    for record in records:
        if record.time > clock + 1000:
            yield "time jumps"
        clock = max(clock, record.time)
        for row in stored:
            if record.time == _window_end(join, row) + join.grace == clock:
                yield f"the clock at the end of the wait: {row.table}"
            if record.time == _window_end(join, row) + join.grace + 1 == clock:
                yield f"the clock past the end of the wait: {row.table}"
        if record.key is None or record.deleted:
            continue
        if (behind := clock - _window_end(join, record)) > 0:
            yield f"{'within the grace' if behind <= join.grace else 'too late'}: {record.table}"
        edges = {clock - kept(join): "just", clock - kept(join) - 1: "no longer"}
        yield from (
            f"finds what is {edges[row.time]} kept: {record.table}"
            for row in stored
            if row.time in edges and row.key == record.key and row.table != record.table
        )
        stored.append(record)


def _of_closing(join: StreamStream, records: list[Record]) -> Iterator[str]:
    """What records find that has closed, where closing is final: rows that have been joined, and
    rows that have been emitted alone.
    """
    clock = records[0].time
    paired: set[tuple[str, Any]] = set()
    alone: set[tuple[str, Any]] = set()
    stored: list[Record] = []
    for record, results in zip(records, each_record(join, records), strict=True):
        clock = max(clock, record.time)
        for row in stored:
            left, right = (record, row) if record.table == "L" else (row, record)
            in_window = left.time - join.before <= right.time <= left.time + join.after
            closed = _window_end(join, row) + join.grace < clock <= row.time + kept(join)
            if row.key == record.key and row.table != record.table and in_window and closed:
                if (row.table, row.value) in paired:
                    yield f"joins what has closed: {record.table}"
                if (row.table, row.value) in alone:
                    yield f"too late for what has closed: {record.table}"
        for values in (result.values for result in results if result.values):
            found = {(s, v) for s, v in zip("LR", values, strict=True) if v is not None}
            (alone if None in values else paired).update(found)
        if record.key is not None and not record.deleted:
            stored.append(record)


def _window_end(join: StreamStream, row: Record) -> int:
    return row.time + (join.after if row.table == "L" else join.before)


TABLE_SITUATIONS = {
    *(f"{what} older than the latest, a row" for what in ("row", "tombstone")),
    *(f"{what} of the same time" for what in ("row", "tombstone")),
}
VERSION_SITUATIONS = {
    *(f"row older than the latest, a {what}" for what in ("row", "tombstone")),
    *(f"{what} refused" for what in ("row", "tombstone")),
    "at history's edge",
}
STREAM_SITUATIONS = {
    *("value, no key", "no value, key", "no value, no key", "within the grace"),
    *("too late", "twice the same key and time"),
    *("finds what is just kept", "finds what is no longer kept"),
    *("the clock at the end of the wait", "the clock past the end of the wait"),
}


def wanted(operator: str, kind: Kind) -> set[str]:
    """The situations that some table of this kind of join must have."""
    if operator == "stream_stream":
        ends = ("first in the window", "last in the window")
        ends += ("just before the window", "just after the window")
        return {
            *(f"{situation}: {side}" for situation in STREAM_SITUATIONS for side in "LR"),
            *(f"{end}, {side} comes second" for end in ends for side in "LR"),
            *("time jumps", "several keys"),
            *(
                f"{situation}: {OTHER[side]}"
                for situation in ("joins what has closed", "too late for what has closed")
                for side in "LR"
                if kind["unmatched"] == "on_close" and preserves(kind["how"], side)
            ),
        }
    if operator == "versioned":
        found = {f"{situation}: {side}" for situation in TABLE_SITUATIONS for side in "LR"}
        found |= {f"{s}: {side}" for s in VERSION_SITUATIONS for side in kind["versioned"]}
        return found | {"value, no key: L", "value, no key: R", "several keys"}
    found = {"value, no key: L", "no value, key: L", "no value, no key: L", "value, no key: R"}
    found |= {"no value, key: R", "several keys", "reads before the first version"}
    if kind["grace"]:
        found |= {"late", "just in time", "in time"}
    elif kind["versioned"]:
        found |= {"reads an old version", "reads what is forgotten", "reads at history's edge"}
        found |= {f"{s}: R" for s in TABLE_SITUATIONS | VERSION_SITUATIONS}
    else:
        found |= {"row older than the latest, a row: R", "row of the same time: R"}
    return found


GRID = [
    pytest.param(operator, kind, id=f"{operator}-{'-'.join(map(str, kind.values()))}")
    for operator, kinds in (
        ("stream_table", STREAM_TABLE),
        ("stream_stream", STREAM_STREAM),
        ("versioned", VERSIONED),
    )
    for kind in kinds
]


@pytest.mark.parametrize(("operator", "kind"), GRID)
def test_every_kind_of_join_meets_every_situation(operator: str, kind: Kind) -> None:
    met: set[str] = set()
    for table in TABLES:
        for column in table.columns.values():
            if table.folder == operator and kind_of(column.join) == kind:
                met |= situations(column.join, table.records)
    assert not wanted(operator, kind) - met


@pytest.mark.parametrize(("operator", "kind"), GRID)
def test_every_kind_of_join_has_the_fifteen_steps(operator: str, kind: Kind) -> None:
    assert any(
        kind_of(column.join) == kind
        for table in TABLES
        if table.name == f"{operator}/kip-77"
        for column in table.columns.values()
    )


@pytest.mark.parametrize("kind", STREAM_STREAM, ids=lambda kind: "-".join(kind.values()))
def test_every_shape_of_window_has_tables(kind: Kind) -> None:
    def shape(join: StreamStream) -> str:
        sides = "self" if join.self_join else "both"
        if join.before + join.after == 0:
            return f"equal times, {'some' if join.grace else 'no'} grace, {sides}"
        if join.before < 0:
            return f"later, {sides}"
        return f"earlier, {sides}" if join.after < 0 else f"around, {sides}"

    columns = [c for t in TABLES if t.folder == "stream_stream" for c in t.columns.values()]
    joins = [column.join for column in columns]
    met = {shape(join) for join in joins if kind_of(join) == kind}
    both = {f"{shape}, both" for shape in ("later", "earlier", "around")}
    equal = {"equal times, no grace, both", "equal times, some grace, both"}
    assert both | equal | {"around, self", "later, self"} <= met


def test_the_fifteen_steps_are_the_same_everywhere() -> None:
    found = [tuple(t.records) for t in truth_tables.read() if t.name.endswith("/kip-77")]
    assert len(found) == 4
    assert len(set(found)) == 1


# The laws.


def drawn(seed: int, keys: Sequence[Any] = "kj") -> list[Record]:
    """A few records in any order of time; values are distinct."""
    random_ = random.Random(seed)
    return [
        Record(side, random_.choice(keys), random_.randint(0, 12), f"{side}{n}", deleted)
        for n in range(random_.randint(1, 16))
        for side in [random_.choice("LR")]
        for deleted in [random_.random() < 0.3]
    ]


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_law_of_history(how: str) -> None:
    """In any order of arrival, the emitted history is the join of the two histories."""
    join = VersionedTables(how, 1000, 1000, late="history")
    for number in range(300):
        records = drawn(number)
        emitted: dict[Any, dict[int, Any]] = {"k": {}, "j": {}}
        tables = {"L": Table(1000), "R": Table(1000)}
        for record, results in zip(records, each_record(join, records), strict=True):
            tables[record.table].put(record)
            for result in results:
                emitted[result.key][result.time] = result.values
            for key, time in product("kj", range(14)):
                points = [t for t in emitted[key] if t <= time]
                left, right = (tables[side].as_of(key, time) for side in "LR")
                row = (left and left[0], right and right[0])
                there = (left or preserves(how, "R")) and (right or preserves(how, "L"))
                expected = row if there and (left or right) else None
                assert (emitted[key][max(points)] if points else None) == expected, records


@pytest.mark.parametrize("fanout", [2, 100])
def test_what_a_merge_forgets_is_not_emitted(fanout: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tombstone before the history may be stored still, or not: no point tells which."""
    monkeypatch.setattr(runs, "FANOUT", fanout)
    left = testing.table("left", key="id", schema={"id": pa.int64()}, versioned="1 day")
    right = testing.table("right", key="id", schema={"id": pa.int64()}, versioned="10 seconds")
    driver = testing.Driver(left.join(right, how="left", late="history"))
    driver.pipe(right, {"id": 1}, timestamp=10 * SECOND)
    driver.pipe(right, {"id": 1}, deleted=True, timestamp=20 * SECOND)
    for number in range(12):
        driver.pipe(right, {"id": 2}, timestamp=(1000 + number) * SECOND)
    found = driver.pipe(left, {"id": 1}, timestamp=5 * SECOND)
    assert [change.timestamp_us for change in found] == [5 * SECOND]


@pytest.mark.parametrize("how", ["left", "outer"])
def test_law_of_withdrawal(how: str) -> None:
    """What stands in the end is every pair, and every preserved row that never found a match."""
    for number in range(300):
        records = [r._replace(deleted=False) for r in drawn(number)]
        standing = Counter[Result]()
        for result in flat(each_record(StreamStream(how, 2, 3, 1, "retract"), records)):
            standing[result._replace(withdrawn=False)] += -1 if result.withdrawn else 1
        pairs = flat(each_record(StreamStream("inner", 2, 3, 1), records))
        met = {value for pair in pairs for value in pair.values or ()}
        lone = [
            Result(r.key, (r.value, None) if r.table == "L" else (None, r.value), r.time)
            for r in records
            if preserves(how, r.table) and r.value not in met
        ]
        assert standing == Counter(pairs + lone), records


@pytest.mark.parametrize("how", ["left", "outer"])
def test_law_of_closing(how: str) -> None:
    """In any order, a preserved row is in some pairs or comes out alone, once, but never both."""
    for number in range(300):
        records = [r._replace(deleted=False) for r in drawn(number)]
        join = StreamStream(how, 2, 3, 1)
        results = flat(each_record(join, records)) + at_end(join, records)
        rows = [
            (side, value)
            for result in results
            for side, value in zip("LR", result.values or (), strict=True)
            if value is not None
        ]
        alone = Counter(
            (side, value)
            for result in results
            if result.values and None in result.values
            for side, value in zip("LR", result.values, strict=True)
            if value is not None
        )
        preserved = {(r.table, r.value) for r in records if preserves(how, r.table)}
        assert preserved <= set(rows), records
        assert alone.keys() <= preserved, records
        assert all(rows.count(row) == 1 for row in alone), records


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_law_of_order(how: str) -> None:
    """In order of time the window alone says what is joined, whatever its bounds and grace."""
    for number in range(300):
        records = sorted((r._replace(deleted=False) for r in drawn(number)), key=lambda r: r.time)
        for before, after in ((0, 0), (0, 2), (3, 1), (-1, 3), (4, -2)):
            join = StreamStream(how, before, after)
            results = flat(each_record(join, records))
            made = {result.values for result in results if None not in (result.values or ())}
            assert made == {
                (left.value, right.value)
                for left, right in product(records, records)
                if (left.table, right.table, left.key) == ("L", "R", right.key)
                and left.time - before <= right.time <= left.time + after
            }, records


@pytest.mark.parametrize("how", ["left", "outer"])
def test_law_of_waiting(how: str) -> None:
    """In order, a preserved row comes out alone once if it never finds a match, else not at all."""
    for number in range(300):
        records = sorted((r._replace(deleted=False) for r in drawn(number)), key=lambda r: r.time)
        results = {}
        for unmatched in ("on_close", "retract"):
            join = StreamStream(how, 2, 3, 1, unmatched)
            emitted = flat(each_record(join, records)) + at_end(join, records)
            results[unmatched] = Counter(r for r in emitted if not r.withdrawn)
            results[unmatched] -= Counter(
                r._replace(withdrawn=False) for r in emitted if r.withdrawn
            )
        assert results["on_close"] == results["retract"], records


# Random cases of each kind.

CASES = int(os.environ.get("DOVETAIL_CASES", "200"))
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))
CUTS: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (1, {"restart": True}),
    (1, {"key_hash": one_hash}),
    (1, {"key_hash": one_hash, "restart": True}),
    (3, {}),
    (3, {"key_hash": one_hash, "restart": True}),
    (WHOLE, {}),
    (WHOLE, {"key_hash": one_hash}),
]


@pytest.mark.parametrize(("operator", "kind"), GRID)
def test_random_cases(operator: str, kind: Kind) -> None:
    """Every kind of join with small options, in every way to cut its input."""
    for number in range(CASES // 25):
        seed = SEED * 1000 + number
        join = small(operator, kind, random.Random(seed))
        records = drawn(seed, ("k", "j", "", None))
        if isinstance(join, StreamStream) and join.self_join:
            records = [record._replace(table="L") for record in records]
        size, options = CUTS[number % len(CUTS)]
        expected = parts([*each_record(join, records)], size)
        found = driver(streams, join, cut(records, size), **options)
        assert found == expected, (join, records, size)


def small(operator: str, kind: Kind, random_: random.Random) -> Join:
    """A join of this kind whose windows, graces and histories the drawn times cross."""
    retention, other = random_.choice([0, 2, 5, 100]), random_.choice([0, 2, 5, 100])
    if operator == "stream_table":
        grace = random_.randint(0, min(retention, 5)) if kind["grace"] else None
        return StreamTable(kind["how"], retention if kind["versioned"] else None, grace)
    if operator == "versioned":
        left, right = ("L" in kind["versioned"], "R" in kind["versioned"])
        retentions = (retention if left else None, other if right else None)
        return VersionedTables(kind["how"], *retentions, late=kind["late"])
    before, after = random_.choice([(0, 0), (0, 2), (3, 1), (5, 5), (-1, 3), (4, -2), (-2, 2)])
    self_join = random_.random() < 0.2
    grace = random_.choice([0, 1, 3, 20])
    return StreamStream(kind["how"], before, after, grace, kind["unmatched"], self_join)
