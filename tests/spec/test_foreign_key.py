"""The truth tables of foreign-key joins, every join of them, every runner.

Families: the grid (no kind of join lacks a table, no transition a line), the format, the
definition (the tables agree with the model, the model with its laws and with Kafka Streams), the
driver in this process, and the runners on Spark.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import fk_tables
import pytest
from answers import by_key, flat, per_join
from fk_model import (
    HOWS,
    Cells,
    ForeignKeyJoin,
    Key,
    Result,
    Running,
    accumulate,
    each_batch,
    each_record,
    foreign_key,
    in_key_order,
    seen,
)
from fk_runners import Answers, driver, kafka_can, kafka_streams, static, stream
from fk_tables import ForeignKeyTable
from matrix import Cell, Table
from matrix_runners import ORACLE
from naive import Record
from runners import cut, one_hash

LOCAL = "DOVETAIL_CASES" not in os.environ

TABLES = fk_tables.read_all()
CHANGE = [table for table in TABLES if table.emission == "change"]
BATCH = [table for table in TABLES if table.emission == "batch"]

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
    for table in CHANGE:
        for join in table.joins.values():
            if kind_of(join) == (how, versioned):
                met.update(situations(join, table.records))
    assert not wanted(versioned, how) - met


def test_every_join_has_tables_of_batches() -> None:
    assert {join.how for table in BATCH for join in table.joins.values()} == set(HOWS)


def test_every_table_cites_its_source() -> None:
    for table in TABLES:
        assert table.source, table.name
        assert table.joins, table.name
        assert table.records, table.name


# The format.


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 L k 1 | j -", "not enough values"),
        ("1 X k 1 A | j -", "no side X"),
        ("1 L k 1 A | j -", "not enough values"),
        ("1 R x 1 a | i -", "results for"),
        ("1 R x one a | j -", "invalid literal"),
        ("1 R x 1 a | j a@1", "not enough values"),
        ("1 R x 1 a | j k k A+a@1", "too many values"),
        ("---", "a border in a table of single changes"),
        ("# join i = R right L", "not a join"),
        ("# join i = L right R, late 5", "not a join"),
    ],
)
def test_a_malformed_line_is_found(line: str, message: str) -> None:
    header = "# source: none\n# emission: change\n# join j = L inner R\n"
    with pytest.raises(ValueError, match=message):
        fk_tables.parse("x", header + line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 R x 1 a | j -", "results belong on the border"),
        ("1 R x 1 a\n--- | j A+a@1", "no key before"),
        ("1 R x 1 a", "the last batch has no border"),
    ],
)
def test_a_malformed_batch_is_found(text: str, message: str) -> None:
    header = "# source: none\n# emission: batch\n# join j = L inner R\n"
    with pytest.raises(ValueError, match=message):
        fk_tables.parse("x", header + text)


# The definition: the tables, then the model's laws.


@pytest.mark.parametrize(("table", "join"), per_join(CHANGE))
def test_the_definition_of_single_changes(table: ForeignKeyTable, join: str) -> None:
    changes = each_record(table.joins[join], table.records)
    assert [seen(part) for part in changes] == table.expected[join]


@pytest.mark.parametrize(("table", "join"), per_join(BATCH))
def test_the_definition_of_batches(table: ForeignKeyTable, join: str) -> None:
    changes = each_batch(table.joins[join], table.batches)
    assert [seen(part) for part in changes] == ordered(table.expected[join])


def ordered(batches: list[list[Result]]) -> list[list[Result]]:
    return [in_key_order(results) for results in batches]


@pytest.mark.skipif(not ORACLE.exists(), reason="Kafka Streams' oracle is not here")
def test_kafka_streams_agrees() -> None:
    cases = [
        (table, join, (table.joins[join], table.records))
        for table in CHANGE
        for join in table.joins
        if kafka_can(table.joins[join], table.records)
    ]
    asked = {table.name for table, _, _ in cases}
    assert asked == {t.name for t in CHANGE} - {"null-keys", "right-outer", "values"}
    answers = kafka_streams([case for _, _, case in cases])
    for (table, join, _), answer in zip(cases, answers, strict=True):
        assert answer == table.expected[join], (table.name, join)


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


# The driver in this process.

IN_PROCESS: dict[str, Callable[..., Answers]] = {
    "driver": driver,
    "colliding": partial(driver, key_hash=one_hash),
    "colliding-restarted": partial(driver, key_hash=one_hash, restart=True),
}

SIZES = [
    ("driver", 1),
    ("driver", 10**6),
    ("colliding", 10**6),
    ("colliding-restarted", 3),
]


@pytest.mark.parametrize(("runner", "size"), SIZES, ids=str)
@pytest.mark.parametrize(("table", "join"), per_join(CHANGE))
def test_single_changes(table: ForeignKeyTable, join: str, runner: str, size: int) -> None:
    answers = IN_PROCESS[runner](table.joins[join], cut(table.records, size))
    expected = table.expected[join]
    assert answers == [flat(expected[i : i + size]) for i in range(0, len(expected), size)]


@pytest.mark.parametrize("runner", IN_PROCESS)
@pytest.mark.parametrize(("table", "join"), per_join(BATCH))
def test_batches(table: ForeignKeyTable, join: str, runner: str) -> None:
    answers = IN_PROCESS[runner](table.joins[join], table.batches, emit="batch")
    assert ordered(answers) == ordered(table.expected[join])


@pytest.mark.parametrize(("table", "join"), per_join(CHANGE))
def test_many_buckets(table: ForeignKeyTable, join: str) -> None:
    """Per key. Versioned tables row by row: within a batch, a bucket knows its own time only."""
    expected = table.expected[join]
    for size in (1,) if kind_of(table.joins[join])[1] else (4, 10**6):
        batches = cut(table.records, size)
        answers = driver(table.joins[join], batches, buckets=3, restart=size < 10**6)
        parts = [flat(expected[i : i + size]) for i in range(0, len(expected), size)]
        assert [by_key(part) for part in answers] == [by_key(part) for part in parts]


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize(("table", "join"), per_join(BATCH))
def test_batches_in_many_buckets(table: ForeignKeyTable, join: str, restart: bool) -> None:
    answers = driver(table.joins[join], table.batches, emit="batch", buckets=3, restart=restart)
    assert ordered(answers) == ordered(table.expected[join])


# The runners on Spark: all tables with one and the same join in one query, one after the other.

FAR = 10**11


def one_after_the_other(join: ForeignKeyJoin, tables: list[ForeignKeyTable]) -> list[list[Record]]:
    """The batches of all tables that have this join, each table's far after the one before."""
    own = [table for table in tables if join in table.joins.values()]
    return [
        [record._replace(time=record.time + number * FAR) for record in batch]
        for number, table in enumerate(own)
        for batch in table.batches
    ]


def queries(tables: list[ForeignKeyTable], usual: Sequence[ForeignKeyJoin]) -> list[Any]:
    """Every join of the tables once; without ``DOVETAIL_CASES``, the usual ones."""
    joins = dict.fromkeys(join for table in tables for join in table.joins.values())
    assert set(usual) <= joins.keys()
    rare = {
        join: pytest.mark.skipif(
            join not in usual and LOCAL, reason="runs when DOVETAIL_CASES is set"
        )
        for join in joins
    }
    return [pytest.param(join, id=str(join), marks=[mark]) for join, mark in rare.items()]


CHANGES = queries(CHANGE, [ForeignKeyJoin("outer", 10, 10)])
BATCHES = queries(BATCH, [ForeignKeyJoin("outer")])


@pytest.mark.parametrize("join", CHANGES)
def test_a_streaming_query(join: ForeignKeyJoin, spark: Any, tmp_path: Path) -> None:
    """Restarted between batches where a table is versioned."""
    records = flat(one_after_the_other(join, CHANGE))
    batches = cut(records, -(-len(records) // 2))
    answers = stream(spark, tmp_path, join, batches, restart=bool(kind_of(join)[1]))
    changes = each_record(join, records)
    assert answers == [flat(seen(next(changes)) for _ in batch) for batch in batches]


@pytest.mark.parametrize("join", BATCHES)
def test_a_streaming_query_of_net_changes(join: ForeignKeyJoin, spark: Any, tmp_path: Path) -> None:
    batches = one_after_the_other(join, BATCH)
    answers = stream(spark, tmp_path, join, batches, emit="batch")
    assert ordered(answers) == [seen(part) for part in each_batch(join, batches)]


@pytest.mark.parametrize("join", CHANGES)
def test_a_batch_run(join: ForeignKeyJoin, spark: Any, tmp_path: Path) -> None:
    records = flat(one_after_the_other(join, CHANGE))
    expected = flat(seen(part) for part in each_record(join, records))
    assert by_key(static(spark, tmp_path, join, records)) == by_key(expected)


@pytest.mark.parametrize("join", BATCHES)
def test_a_batch_run_gives_the_final_table(
    join: ForeignKeyJoin, spark: Any, tmp_path: Path
) -> None:
    records = flat(one_after_the_other(join, BATCH))
    (expected,) = each_batch(join, [records])
    answer = static(spark, tmp_path, join, records, emit="batch")
    assert ordered([answer]) == [seen(expected)]
