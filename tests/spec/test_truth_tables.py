"""Every truth table, every join of it, every runner: the exact results in their exact order.

What must be in the tables of an operator, and its laws, are in files of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bench import kafka_streams, runners, truth_tables
from bench.families import foreign_keys, streams, tables
from bench.family import Family
from bench.forced import HASHES, forced
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
from bench.truth_tables import TruthTable, per_join

from dovetail.engine import slices

TABLES = truth_tables.read()
CHANGE = [table for table in TABLES if table.emission == "change"]
BATCH = [table for table in TABLES if table.emission == "batch"]


def test_every_folder_is_an_operators() -> None:
    folders = {path.name for path in truth_tables.SPEC.iterdir() if path.is_dir()}
    assert folders == {table.folder for table in TABLES}


def test_every_table_cites_its_source() -> None:
    for table in TABLES:
        assert table.source, table.name
        assert table.joins, table.name
        assert table.records, table.name


# The definition.


@pytest.mark.parametrize(("table", "join"), per_join(CHANGE))
def test_the_definition_of_single_changes(table: TruthTable, join: str) -> None:
    family, of = table.family, table.joins[join]
    assert list(family.each_record(of, table.records)) == table.expected[join]
    assert family.at_end(of, table.records) == table.at_end[join]


@pytest.mark.parametrize(("table", "join"), per_join(BATCH))
def test_the_definition_of_batches(table: TruthTable, join: str) -> None:
    found = list(table.family.each_batch(table.joins[join], table.batches))
    assert found == [table.family.arranged(part) for part in table.expected[join]]


@kafka_streams.needed
def test_kafka_streams_agrees() -> None:
    """With every table of single changes that it can be asked for, of all operators."""
    asked: dict[str, list[str]] = defaultdict(list)
    for family in {id(f): f for f in truth_tables.FAMILIES.values()}.values():
        cases = [
            (table, join, (of, family.flushed(of, table.records)))
            for table in CHANGE
            if table.family is family
            for join, of in table.joins.items()
            if family.kafka_can(of, table.records)
        ]
        answers = kafka_streams.answers(family, [case for _, _, case in cases])
        for (table, join, (of, records)), answer in zip(cases, answers, strict=True):
            given = list(family.each_record(of, records))
            assert family.agree(of, records, given, answer), (table.name, join)
            asked[table.folder].append(table.name.split("/")[1])
    assert asked.keys() == {table.folder for table in TABLES} - {"aggregate"}
    assert sum(len(asked[folder]) for folder in streams.FOLDERS) > 50
    names = {t.name.split("/")[1] for t in CHANGE if t.family is foreign_keys}
    assert set(asked["foreign_key"]) == names - {"null-keys", "right-outer", "values"}
    assert set(asked["windowed"]) == {"tumbling", "hopping"}


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
    "colliding, restarted": Runner(3, restart=True, hash="one"),
    "in slices": Runner(WHOLE, sliced=True),
    "2 buckets": Runner(1, restart=True, buckets=2),
    "8 buckets": Runner(3, restart=True, buckets=8),
    "64 buckets": Runner(WHOLE, buckets=64),
}


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


@pytest.mark.parametrize("name", RUNNERS)
@pytest.mark.parametrize(("table", "join"), per_join(CHANGE))
def test_single_changes(table: TruthTable, join: str, name: str) -> None:
    """In several buckets, and in slices of some keys, the keys may come in any order."""
    runner = RUNNERS[name]
    batches = cut(table.records, runner.size)
    found = run(table.family, table.joins[join], batches, runner, "change")
    expected = parts(table.expected[join], runner.size)
    if runner.buckets == 1 and not (runner.sliced and table.family is foreign_keys):
        assert found == expected
    else:
        assert [*map(by_key, found)] == [*map(by_key, expected)]


@pytest.mark.parametrize("name", RUNNERS)
@pytest.mark.parametrize(("table", "join"), per_join(BATCH))
def test_batches(table: TruthTable, join: str, name: str) -> None:
    """The batches are those of the table, or all of them at once."""
    runner, family, of = RUNNERS[name], table.family, table.joins[join]
    found = run(family, of, table.batches, runner, "batch")
    arranged = family.arranged if runner.buckets == 1 and not runner.sliced else by_key
    assert [*map(arranged, found)] == [*map(arranged, table.expected[join])]


KERNEL = {
    "one by one": (1, {}),
    "at once": (WHOLE, {}),
    "restarted": (3, {"restart": True}),
    "colliding": (WHOLE, {"key_hash": HASHES["one"]}),
    "colliding, restarted": (1, {"restart": True, "key_hash": HASHES["one"]}),
}


@pytest.mark.parametrize("name", KERNEL)
@pytest.mark.parametrize(("table", "join"), per_join(truth_tables.read(*tables.FOLDERS)))
def test_the_stage_by_itself(table: TruthTable, join: str, name: str) -> None:
    size, options = KERNEL[name]
    of, net = table.joins[join], table.emission == "batch"
    batches = table.batches if net else cut(table.records, size)
    expected = table.expected[join] if net else parts(table.expected[join], size)
    given: Any = options
    assert runners.kernel(table.family, of, batches, emit=table.emission, **given) == expected  # type: ignore[arg-type]


def test_slices_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests in slices would pass without any: there are."""
    made = []
    jobs = slices.Slices.jobs

    def counted(self: slices.Slices) -> Iterator[Any]:
        for made_job in jobs(self):
            made.append(made_job)
            yield made_job

    monkeypatch.setattr(slices.Slices, "jobs", counted)
    table, join = per_join(CHANGE)[0].values
    run(table.family, table.joins[join], [table.records], RUNNERS["in slices"], "change")
    assert len(made) > 2


# The runners on Spark: all tables with one and the same join in one query, one after the other.

FAR = 10**11
USUAL = {
    *("table_table/keys-inner", "table_table/keys-left", "table_table/keys-outer"),
    *("table_table/chain-left-outer", "table_table/same-table-twice-chain"),
    *("table_table/batch-outer", "table_table/chain-batch-outer-left"),
    *("stream_table/arrival-inner", "stream_table/grace-left"),
    *("stream_stream/closing-eager-outer", "stream_stream/closing-final-outer"),
    *("stream_stream/closing-retract-outer", "stream_stream/self-later-left"),
    *("versioned/both-outer", "versioned/history-outer"),
    *("foreign_key/fan-out-left", "foreign_key/versioned-both-outer", "foreign_key/batch-outer"),
    *("aggregate/stream-by", "aggregate/table-batch-by"),
    *("windowed/nested-shift", "windowed/table-session-final"),
}
"""The others are slow because they are many."""


class Query(NamedTuple):
    """A join, and the tables that have it, of one emission."""

    family: Family
    join: Any
    tables: list[TruthTable]

    @property
    def net(self) -> bool:
        """Whether they are of batches."""
        return self.tables[0].emission == "batch"

    @property
    def batches(self) -> list[list[Record]]:
        """The tables' batches, each table's far after those of the one before; of single changes
        two.
        """
        given = [
            [self.family.later(record, number * FAR) for record in batch]
            for number, table in enumerate(self.tables)
            for batch in table.batches
        ]
        records = flat(given)
        return given if self.net else cut(records, -(-len(records) // 2))

    def expected(self, batches: Batches) -> Answers:
        """What is due."""
        if self.net:
            return list(self.family.each_batch(self.join, batches))
        return per_batch(self.family.each_record(self.join, flat(batches)), batches)


def queries() -> list[Any]:
    """Each join once for each emission, named by the first table that has it."""
    found: dict[Any, Query] = {}
    names: dict[Any, str] = {}
    for table in TABLES:
        for join, of in table.joins.items():
            key = (table.folder, table.emission, of)
            found.setdefault(key, Query(table.family, of, [])).tables.append(table)
            names.setdefault(key, f"{table.name}-{join}")
    assert set(names.values()) >= USUAL
    return [
        pytest.param(query, id=name, marks=[] if name in USUAL else [pytest.mark.slow])
        for query, name in zip(found.values(), names.values(), strict=True)
    ]


QUERIES = queries()


def emitted(query: Query) -> Any:
    return query.tables[0].emission


@pytest.mark.parametrize("query", QUERIES)
def test_a_streaming_query(query: Query, spark: Any, tmp_path: Path) -> None:
    """Started anew between batches."""
    batches = query.batches
    answers = runners.stream(
        spark, tmp_path, query.family, query.join, batches, emit=emitted(query), restart=True
    )
    arranged = query.family.arranged if query.net else list[Result]
    assert [*map(arranged, answers)] == [*map(arranged, query.expected(batches))]


@pytest.mark.parametrize("query", QUERIES)
def test_a_batch_run(query: Query, spark: Any, tmp_path: Path) -> None:
    records = flat(query.batches)
    answer = runners.static(spark, tmp_path, query.family, query.join, records, emit=emitted(query))
    (expected,) = query.expected([records])
    if not query.net:
        expected = expected + query.family.at_end(query.join, records)
    assert by_key(answer) == by_key(expected)
