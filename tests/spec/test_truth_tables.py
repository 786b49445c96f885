"""Every truth table, every column of it, every runner: the exact results in their exact order.

What must be in the tables of an operator, and its laws, are in files of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bench import kafka_streams, runners, truth_tables
from bench.families import foreign_keys, streams, tables, views, windows
from bench.family import Family
from bench.forced import HASHES, forced
from bench.models.windows import View
from bench.records import (
    WHOLE,
    Answers,
    Batches,
    Record,
    Result,
    by_key,
    cut,
    flat,
    parts,
    per_batch,
)
from bench.truth_tables import Column, TruthTable, per_column

from dovetail.engine.batches import slices
from dovetail.physical.fragment import Emit

TABLES = truth_tables.read()
CHANGE = per_column(TABLES, "change")
BATCH = per_column(TABLES, "batch")


def test_every_folder_is_an_operators() -> None:
    folders = {path.name for path in truth_tables.SPEC.iterdir() if path.is_dir()}
    assert folders == {table.folder for table in TABLES}


def test_a_list_of_records_is_one_table() -> None:
    """Whatever the modes of its joins."""
    lists = [(table.folder, *table.records) for table in TABLES]
    assert len(set(lists)) == len(lists)


def test_every_table_cites_its_source() -> None:
    for table in TABLES:
        assert table.source, table.name
        assert table.columns, table.name
        assert table.records, table.name


# The definition.


@pytest.mark.parametrize(("table", "column"), CHANGE)
def test_the_definition_of_single_changes(table: TruthTable, column: Column) -> None:
    family = table.family
    assert list(family.each_record(column.join, table.records)) == column.results
    assert family.at_end(column.join, table.records) == column.at_end


@pytest.mark.parametrize(("table", "column"), BATCH)
def test_the_definition_of_batches(table: TruthTable, column: Column) -> None:
    found = list(table.family.each_batch(column.join, table.batches))
    assert found == [table.family.arranged(part) for part in column.results]


GRACE, SIDES = ("before", "after", "grace"), ("left_versioned", "right_versioned")
ASKED: dict[str, set[tuple[str, ...]]] = {
    "table_table": {("inner",), ("left",), ("outer",)},
    "stream_table": {
        (how, *options)
        for how in ("inner", "left")
        for options in ((), ("versioned",), ("versioned", "grace"))
    },
    "stream_stream": {
        (how, *options)
        for how in ("inner", "left", "outer")
        for options in (GRACE[:2], GRACE, (*GRACE, "self_join"))
    },
    "versioned": {
        (how, *options)
        for how in ("inner", "left", "outer")
        for options in (SIDES[:1], SIDES[1:], SIDES)
    },
    "foreign_key": {
        (how, *options)
        for how in ("inner", "left")
        for options in ((), SIDES[:1], SIDES[1:], SIDES)
    },
    "windowed": {("tumbling",), ("hopping",)},
}
"""The kinds of join that Kafka Streams is asked about, by folder: those that it has."""
NOT_ASKED = {
    *("table_table/chain", "table_table/same-table-twice"),  # more than two tables, or fewer
    *(f"{folder}/null-values" for folder in streams.FOLDERS),  # it has no null values
    *("table_table/values", "foreign_key/values", "foreign_key/null-keys"),
    *("stream_stream/ties",),  # whose rows it could not tell apart
    *("versioned/history", "foreign_key/right-outer"),  # joins that it has not
}
"""The tables of single changes of which it is asked nothing, but those of aggregates and of
windows, of which it is asked for counts alone."""


def kind_of(join: Any) -> tuple[str, ...]:
    """Return the join's ``how`` and its options, or the kind of its windows."""
    if isinstance(join, View):
        return (join.windows[0][1].kind,)
    if isinstance(join, tuple):
        return (join[1],)
    given = [f.name for f in fields(join)[1:] if getattr(join, f.name) != f.default]
    return (join.how, *given)


@pytest.mark.long
@kafka_streams.needed
def test_kafka_streams_agrees() -> None:
    """With every column of single changes that it can be asked for, of all operators."""
    kinds: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    cases = [
        (table, column.join, table.family.flushed(column.join, table.records))
        for table in TABLES
        for column in table.emitting("change").values()
        if table.family.kafka_can(column.join, table.records)
    ]
    answers = kafka_streams.answers_of_all([(t.family, join, given) for t, join, given in cases])
    for (table, join, records), answer in zip(cases, answers, strict=True):
        given = list(table.family.each_record(join, records))
        assert table.family.agree(join, records, given, answer), (table.name, join)
        kinds[table.folder].add(kind_of(join))
    asked = {table.name for table, _, _ in cases}
    assert kinds == ASKED
    others = (views, windows)
    joins = {t.name for t in TABLES if t.emitting("change") and t.family not in others}
    assert asked == joins - NOT_ASKED | {"windowed/tumbling", "windowed/hopping"}
    assert joins > NOT_ASKED


# The runners in this process.


class Runner(NamedTuple):
    """A run in the driver, by micro-batches of ``size`` records."""

    size: int
    restart: bool = False
    buckets: int = 1
    hash: str = "own"
    sliced: bool = False


RUNNERS = {
    "one by one": Runner(1),
    "by three": Runner(3),
    "at once": Runner(WHOLE),
    "restarted": Runner(1, restart=True),
    "colliding": Runner(WHOLE, hash="one"),
    "colliding, restarted": Runner(5, restart=True, hash="one"),
    "in slices": Runner(WHOLE, sliced=True),
    "2 buckets": Runner(1, restart=True, buckets=2),
    "4 buckets": Runner(8, restart=True, buckets=4),
    "8 buckets": Runner(3, restart=True, buckets=8),
    "16 buckets": Runner(WHOLE, buckets=16),
}
TURNS = ("one by one", "4 buckets", "at once", "colliding, restarted")
"""The columns of a table take turns in these ways, until each column and each way has had one.
Other runs are slow; random cases have slices, too.
"""


def in_turns(emit: Emit, runners: Iterable[str] = RUNNERS) -> list[Any]:
    """Parameters: each column of this mode with each runner."""
    ways = [name for name in TURNS if name in runners]
    found = []
    for first, table in enumerate(table for table in TABLES if table.emitting(emit)):
        columns = table.emitting(emit)
        turns = range(max(len(columns), len(ways)))
        usual = {(turn % len(columns), ways[(first + turn) % len(ways)]) for turn in turns}
        found += [
            pytest.param(
                *(table, column, name),
                id=f"{table.name}-{column_name}-{name}",
                marks=[] if (place, name) in usual else pytest.mark.slow,
            )
            for place, (column_name, column) in enumerate(columns.items())
            for name in runners
        ]
    return found


BY_BATCH = [name for name in RUNNERS if name not in ("one by one", "by three")]
"""Where the batches are those of a table, these two are as "at once"."""


def run(family: Family, join: Any, batches: Batches, runner: Runner, emit: Any) -> Answers:
    with forced(runner.hash, {"slice_bytes": 1} if runner.sliced else {}):
        return runners.driver(
            family,
            join,
            batches,
            emit=emit,
            restart=runner.restart,
            buckets=runner.buckets,
            key_hash=HASHES[runner.hash],
        )


@pytest.mark.parametrize(("table", "column", "name"), in_turns("change"))
def test_single_changes(table: TruthTable, column: Column, name: str) -> None:
    """In several buckets, and in slices of some keys, the keys may come in any order."""
    runner = RUNNERS[name]
    batches = cut(table.records, runner.size)
    found = run(table.family, column.join, batches, runner, "change")
    expected = parts(column.results, runner.size)
    if runner.buckets == 1 and not (runner.sliced and table.family is foreign_keys):
        assert found == expected
    else:
        assert [*map(by_key, found)] == [*map(by_key, expected)]


@pytest.mark.parametrize(("table", "column", "name"), in_turns("batch", BY_BATCH))
def test_batches(table: TruthTable, column: Column, name: str) -> None:
    """The batches are those of the table."""
    runner, family = RUNNERS[name], table.family
    found = run(family, column.join, table.batches, runner, "batch")
    arranged = family.arranged if runner.buckets == 1 and not runner.sliced else by_key
    assert [*map(arranged, found)] == [*map(arranged, column.results)]


KERNEL = {
    "one by one": (1, {}),
    "colliding, restarted": (3, {"restart": True, "key_hash": HASHES["one"]}),
}


@pytest.mark.parametrize("name", KERNEL)
@pytest.mark.parametrize(("table", "column"), per_column(truth_tables.read(*tables.FOLDERS)))
def test_the_stage_by_itself(table: TruthTable, column: Column, name: str) -> None:
    size, options = KERNEL[name]
    net = column.emit == "batch"
    batches = table.batches if net else cut(table.records, size)
    expected = column.results if net else parts(column.results, size)
    given: Any = options
    found = runners.kernel(table.family, column.join, batches, emit=column.emit, **given)
    assert found == expected


def test_slices_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests in slices would pass without any: there are."""
    made = []
    shares = slices.Slices.shares

    def counted(self: slices.Slices) -> Iterator[Any]:
        for share in shares(self):
            made.append(share)
            yield share

    monkeypatch.setattr(slices.Slices, "shares", counted)
    table, column = CHANGE[0].values
    run(table.family, column.join, [table.records], RUNNERS["in slices"], "change")
    assert len(made) > 2


# The runners on Spark: all tables with one and the same join in one query, one after the other.

FAR = 10**11
USUAL = {
    "table_table/chain-left-outer",
    "stream_table/grace-left",
    "stream_stream/closing-final-outer",
    "versioned/versions-outer-LR",
    *("foreign_key/versioned-outer-LR", "foreign_key/batch-outer"),
    *("aggregate/stream-by", "aggregate/table-batch-by"),
    *("windowed/nested-shift", "windowed/table-session-final"),
    *("view/union-where", "view/explode-keyed", "view/expire-twice", "view/changes-met"),
}
"""The others are slow because they are many."""


class Query(NamedTuple):
    """A join in one mode, and the tables that have it."""

    family: Family
    join: Any
    emit: Emit
    tables: list[TruthTable]

    @property
    def net(self) -> bool:
        """True for ``emit="batch"``."""
        return self.emit == "batch"

    @property
    def batches(self) -> list[list[Record]]:
        """The tables' records, each table's far after those of the one before, in two batches; in
        four where the join emits by batch.
        """
        records = [
            self.family.later(record, number * FAR)
            for number, table in enumerate(self.tables)
            for record in table.records
        ]
        return cut(records, -(-len(records) // (4 if self.net else 2)))

    def expected(self, batches: Batches) -> Answers:
        """Return the results of these batches, by definition."""
        if self.net:
            return list(self.family.each_batch(self.join, batches))
        return per_batch(self.family.each_record(self.join, flat(batches)), batches)


def queries() -> list[Any]:
    """Each join once in each mode, named by the first table that has it."""
    found: dict[Any, Query] = {}
    names: dict[Any, str] = {}
    for table in TABLES:
        for name, column in table.columns.items():
            key = (table.folder, column.emit, column.join)
            query = Query(table.family, column.join, column.emit, [])
            found.setdefault(key, query).tables.append(table)
            names.setdefault(key, f"{table.name}-{name}")
    assert set(names.values()) >= USUAL
    return [
        pytest.param(query, id=name, marks=[] if name in USUAL else [pytest.mark.slow])
        for query, name in zip(found.values(), names.values(), strict=True)
    ]


QUERIES = queries()
OF_SEVERAL_STAGES = [
    one for one in QUERIES if str(one.id).startswith(("foreign_key/", "aggregate/table"))
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_streaming_query(query: Query, spark: Any, tmp_path: Path) -> None:
    """Started anew half way."""
    batches = query.batches
    answers = runners.stream(
        spark, tmp_path, query.family, query.join, batches, emit=query.emit, restart=True
    )
    arranged = query.family.arranged if query.net else list[Result]
    assert [*map(arranged, answers)] == [*map(arranged, query.expected(batches))]


@pytest.mark.parametrize("query", OF_SEVERAL_STAGES)
def test_a_streaming_query_in_two_buckets(query: Query, spark: Any, tmp_path: Path) -> None:
    """Whose stages are fused with one bucket; here each is an operator of its own."""
    answers = runners.stream(
        spark,
        tmp_path,
        query.family,
        query.join,
        query.batches,
        emit=query.emit,
        restart=True,
        buckets=2,
    )
    assert [*map(by_key, answers)] == [*map(by_key, query.expected(query.batches))]


@pytest.mark.parametrize("query", QUERIES)
def test_a_batch_run(query: Query, spark: Any, tmp_path: Path) -> None:
    records = flat(query.batches)
    answer = runners.static(spark, tmp_path, query.family, query.join, records, emit=query.emit)
    (expected,) = query.expected([records])
    if not query.net:
        expected = expected + query.family.at_end(query.join, records)
    assert by_key(answer) == by_key(expected)
