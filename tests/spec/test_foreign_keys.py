"""What must be in the truth tables of foreign-key joins (no kind of join lacks a table, no
transition a line), and the laws of their definition.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, TypeAlias

import pytest
from bench import truth_tables
from bench.families import foreign_keys
from bench.models.foreign_keys import (
    HOWS,
    Cells,
    ForeignKeyJoin,
    Key,
    Running,
    accumulate,
    each_batch,
    each_record,
    foreign_key,
)
from bench.models.streams import Cell, Table
from bench.records import Record, cut

TABLES = truth_tables.read(*foreign_keys.FOLDERS)

Situation: TypeAlias = "tuple[Any, ...]"


# The grid: what must happen to each kind of join in some table.


def situations(join: ForeignKeyJoin, records: Sequence[Record]) -> Iterator[Situation]:
    """What the records of a table do."""
    running = Running(join)
    for record in records:
        if record.key is None:
            yield "no key", record.table, record.deleted
        else:
            yield from _of_versions(running, record)
            yield from (_of_left if record.table == "L" else _of_right)(running, record)
        running.step(record)


def _of_left(running: Running, record: Record) -> Iterator[Situation]:
    """The old row, the new one, whether others name what they name, and whose time is larger."""
    old = running.left.latest(record.key)
    new = None if record.deleted else (record.value,)
    was, now = foreign_key(old), foreign_key(new)
    same = was is not None and was == now
    yield "L", _state(running, old), "same" if same else _state(running, new)
    alone = []
    for key in (was, now):
        there = not same and running.row(key) is not None
        alone.append(set(running.naming(key)) <= {record.key} if there else None)
        if there:
            order = "older" if record.time < running.right.times(key)[-1] else "younger"
            yield "time", _state(running, old), _state(running, new), order
    yield "alone", *alone


def _of_right(running: Running, record: Record) -> Iterator[Situation]:
    """Whether there was a row, whether there is one, how many name it, and whose time is larger."""
    named = running.naming(record.key)
    yield "R", running.row(record.key) is not None, record.deleted, min(len(named), 2)
    for key in named:
        order = "older" if record.time < running.left.times(key)[-1] else "younger"
        yield "time", "R", record.deleted, order


def _of_versions(running: Running, record: Record) -> Iterator[Situation]:
    """Where a record stands in its table's history."""
    table: Table = running.left if record.table == "L" else running.right
    times = table.times(record.key)
    horizon = None if table.retention is None else table.horizon
    if times and record.time < times[-1]:
        latest = "tombstone" if table.latest(record.key) is None else "row"
        yield "older than", latest, record.table, record.deleted
    if record.time in times:
        yield "same time", record.table, record.deleted
    if horizon is not None and record.time < horizon:
        yield "refused", record.table, record.deleted
    if record.time == horizon:
        yield "edge", record.table


def _state(running: Running, row: Cell) -> str:
    """A left row, and whether its right row is there."""
    if row is None:
        return "none"
    key = foreign_key(row)
    if key is None:
        return "no foreign key"
    return "missing" if running.row(key) is None else "there"


STATES = ("none", "no foreign key", "missing", "there")


def wanted(versioned: str, how: str) -> set[Situation]:
    """The situations that some table of this kind of join must have."""
    found: set[Situation] = set()
    if versioned:
        for side in versioned:
            found |= {("older than", "row", side, True), ("older than", "row", side, False)}
            found |= {("same time", side, True), ("same time", side, False), ("edge", side)}
            found |= {("refused", side, True), ("refused", side, False)}
            found |= {("older than", "tombstone", side, False), ("no key", side, False)}
        return found
    found |= {("L", old, new) for old, new in product(STATES, STATES)}
    found |= {("L", "missing", "same"), ("L", "there", "same")}
    found |= {("R", *rest) for rest in product((False, True), (False, True), (0, 1, 2))}
    found |= {("no key", *rest) for rest in product("LR", (False, True))}
    found |= {("time", "R", *rest) for rest in product((False, True), ("older", "younger"))}
    for old, new, order in product(STATES, STATES, ("older", "younger")):
        if "there" in (old, new):
            found.add(("time", old, new, order))
    if how in ("right", "outer"):
        found |= {("alone", *rest) for rest in product((None, False, True), repeat=2)}
    return found


def kind_of(join: ForeignKeyJoin) -> tuple[str, str]:
    retentions = {"L": join.left_versioned, "R": join.right_versioned}
    return join.how, "".join(side for side in "LR" if retentions[side] is not None)


@pytest.mark.parametrize("versioned", ["", "L", "R", "LR"])
@pytest.mark.parametrize("how", HOWS)
def test_every_kind_of_join_meets_every_situation(how: str, versioned: str) -> None:
    met: set[Situation] = set()
    for table in TABLES:
        for column in table.emitting("change").values():
            if kind_of(column.join) == (how, versioned):
                met.update(situations(column.join, table.records))
    assert not wanted(versioned, how) - met


def test_every_join_emits_by_batch() -> None:
    columns = [column for table in TABLES for column in table.emitting("batch").values()]
    assert {column.join.how for column in columns} == set(HOWS)


# The laws.


def drawn(seed: int) -> list[Record]:
    """A few records in any order of time; values repeat."""
    random_ = random.Random(seed)
    records = []
    for _ in range(random_.randint(1, 25)):
        side, deleted = random_.choice("LR"), random_.random() < 0.3
        value: Any = random_.choice("AB")
        if side == "L":
            value = (random_.choice(["x", "y", None]), value)
        key = random_.choice("kji" if side == "L" else "xy")
        value = None if deleted else value
        records.append(Record(side, key, random_.randint(0, 12), value, deleted))
    return records


def kinds() -> list[ForeignKeyJoin]:
    """Every join, versioned on any side."""
    retentions = (None, 0, 5, 100)
    return [ForeignKeyJoin(*rest) for rest in product(HOWS, retentions, retentions)]


def static_join(how: str, left: dict[Any, Cell], right: dict[Any, Cell]) -> dict[Key, Cells]:
    """The join of two tables as they are."""
    rows: dict[Key, Cells] = {}
    named = {foreign_key(row) for row in left.values()}
    for key, row in left.items():
        match = right.get(foreign_key(row))
        if match is not None or how in ("left", "outer"):
            rows[key, None] = (row, match)
    if how in ("right", "outer"):
        rows |= {(None, key): (None, row) for key, row in right.items() if key not in named}
    return rows


def table_of(table: Table) -> dict[Any, Cell]:
    latest = {key: table.latest(key) for key in table.versions}
    return {key: row for key, row in latest.items() if row is not None}


@pytest.mark.parametrize("join", kinds(), ids=str)
def test_law_of_the_table(join: ForeignKeyJoin) -> None:
    """After each record, the changes so far make the join of the two tables as they are."""
    for number in range(50):
        running = Running(join)
        rows: dict[Key, Cells] = {}
        for record in drawn(number):
            accumulate(rows, running.step(record))
            left, right = table_of(running.left), table_of(running.right)
            assert rows == static_join(join.how, left, right), number


@pytest.mark.parametrize(("how", "with_alone"), [("inner", "right"), ("left", "outer")])
def test_law_of_right_and_outer(how: str, with_alone: str) -> None:
    """Without the rows of right keys, right is inner and outer is left."""
    for number in range(300):
        records = drawn(number)
        expected = list(each_record(ForeignKeyJoin(how), records))
        changes = each_record(ForeignKeyJoin(with_alone), records)
        assert [[c for c in part if c.key[1] is None] for part in changes] == expected


@pytest.mark.parametrize("how", HOWS)
def test_law_of_batches(how: str) -> None:
    """However it is cut, a batch has each key once, changes its row, and all make one table."""
    join = ForeignKeyJoin(how)
    for number, size in product(range(50), (1, 3, 100)):
        records = drawn(number)
        rows: dict[Key, Cells] = {}
        final: dict[Key, Cells] = {}
        for part in each_record(join, records):
            accumulate(final, part)
        for part in each_batch(join, cut(records, size)):
            assert len({change.key for change in part}) == len(part)
            assert all(rows.get(change.key) != change.cells for change in part)
            accumulate(rows, part)
        assert rows == final
