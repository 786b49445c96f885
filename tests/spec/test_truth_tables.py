"""Every truth table, every join of it, every runner: the exact results in their exact order.

Families: the grid (no operator lacks a table, no transition lacks a row), the definition (the
tables agree with the slow model), the runners in this process, and the runners on Spark.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
import truth_tables
from answers import by_key, flat, per_join
from naive import (
    Cells,
    Record,
    Result,
    Topology,
    each_batch,
    each_record,
    names,
    row,
    seen,
)
from runners import Batches, cut, driver, kernel, one_hash, static, stream
from truth_tables import TruthTable

from dovetail.plan.spec import Emit

TABLES = truth_tables.read_all()
CHANGE = [table for table in TABLES if table.emission == "change"]
BATCH = [table for table in TABLES if table.emission == "batch"]

OPERATORS = {"table_table": ("L inner R", "L left R", "L outer R")}
EMISSIONS = ("change", "batch")


# The grid.


@pytest.mark.parametrize("emission", EMISSIONS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_and_mode_has_tables(operator: str, emission: str) -> None:
    own = [t for t in TABLES if t.name.startswith(f"{operator}/") and t.emission == emission]
    covered = {topology for table in own for topology in table.joins.values()}
    wanted = {truth_tables.parse_topology(text) for text in OPERATORS[operator]}
    assert wanted <= covered
    assert any(not isinstance(t[0], str) or not isinstance(t[2], str) for t in covered - wanted)
    assert any(len(set(names(topology))) < len(names(topology)) for topology in covered)


def test_every_folder_is_an_operators() -> None:
    assert {table.name.split("/")[0] for table in TABLES} == OPERATORS.keys()


def test_every_table_cites_its_source() -> None:
    for table in TABLES:
        assert table.source, table.name
        assert table.joins, table.name


@pytest.mark.parametrize("text", OPERATORS["table_table"])
def test_every_transition_has_a_row(text: str) -> None:
    """Side, own row there, other row there, tombstone or not: all sixteen."""
    topology = truth_tables.parse_topology(text)
    met = set()
    for table in CHANGE:
        if topology in table.joins.values():
            rows: set[tuple[str, str]] = set()
            for record in table.records:
                own = (record.table, record.key)
                other = ("R" if record.table == "L" else "L", record.key)
                met.add((record.table, own in rows, other in rows, record.deleted))
                (rows.discard if record.deleted else rows.add)(own)
    assert met == set(product("LR", (False, True), (False, True), (False, True)))


# The format.


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 L k 1", "not enough values"),
        ("1 X k 1 A | j -", "no join reads table X"),
        ("1 L k 1 A | i -", "results for"),
        ("1 L k one A | j -", "invalid literal"),
        ("---", "a border in a table of single changes"),
        ("1 L k 1 A | j A", "invalid literal"),
        ("# join i = L right R", "unknown join right"),
        ("# join i = (L left R", "unbalanced parentheses"),
        ("# join i = L left R)", "unexpected"),
    ],
)
def test_a_malformed_line_is_found(line: str, message: str) -> None:
    header = "# source: none\n# emission: change\n# join j = L inner R\n"
    with pytest.raises(ValueError, match=message):
        truth_tables.parse("x", header + line)


# The definition.


@pytest.mark.parametrize(("table", "join"), per_join(CHANGE))
def test_the_definition_of_single_changes(table: TruthTable, join: str) -> None:
    changes = each_record(table.joins[join], table.records)
    assert [seen(change) for change in changes] == table.expected[join]


@pytest.mark.parametrize(("table", "join"), per_join(BATCH))
def test_the_definition_of_batches(table: TruthTable, join: str) -> None:
    changes = each_batch(table.joins[join], table.batches)
    assert [seen(change) for change in changes] == table.expected[join]


@pytest.mark.parametrize(("table", "join"), per_join(TABLES))
def test_the_changes_add_up_to_the_join(table: TruthTable, join: str) -> None:
    """After each record (or batch) the changes so far make the table that a static join gives."""
    topology = table.joins[join]
    inputs: dict[str, dict[str, Any]] = {name: {} for name in names(topology)}
    keys = {record.key for record in table.records}
    made: dict[Any, Cells] = {}
    parts = cut(table.records, 1) if table.emission == "change" else table.batches
    for part, results in zip(parts, table.expected[join], strict=True):
        for record in part:
            if record.table not in inputs:
                continue
            if record.deleted:
                inputs[record.table].pop(record.key, None)
            else:
                inputs[record.table][record.key] = (((record.value,),), record.time)
        made = shown(made, results)
        rows = {key: row(topology, inputs, key) for key in keys}
        expected = {
            key: tuple(c and c[0] for c in found[0]) for key, found in rows.items() if found
        }
        assert made == expected


def shown(made: dict[Any, Any], results: list[Result]) -> dict[Any, Any]:
    made = dict(made)
    for result in results:
        made[result.key] = result.values
    return {key: values for key, values in made.items() if values is not None}


# The runners in this process.

IN_PROCESS: dict[str, Callable[[Topology, Batches], list[list[Result]]]] = {
    "kernel": kernel,
    "kernel-restarted": partial(kernel, restart=True),
    "kernel-colliding": partial(kernel, key_hash=one_hash),
    "kernel-colliding-restarted": partial(kernel, key_hash=one_hash, restart=True),
    "driver": driver,
    "driver-restarted": partial(driver, restart=True),
    "driver-colliding": partial(driver, key_hash=one_hash),
}


# Row by row for all; larger batches where they can differ.
SIZES = [
    *((runner, 1) for runner in IN_PROCESS),
    *((runner, 10**6) for runner in ("kernel", "kernel-colliding", "driver")),
    *((runner, 3) for runner in ("kernel-restarted", "kernel-colliding-restarted")),
]


@pytest.mark.parametrize(("runner", "size"), SIZES, ids=str)
@pytest.mark.parametrize(("table", "join"), per_join(CHANGE))
def test_single_changes(table: TruthTable, join: str, runner: str, size: int) -> None:
    answers = IN_PROCESS[runner](table.joins[join], cut(table.records, size))
    expected = table.expected[join]
    assert answers == [flat(expected[i : i + size]) for i in range(0, len(expected), size)]


@pytest.mark.parametrize("runner", IN_PROCESS)
@pytest.mark.parametrize(("table", "join"), per_join(BATCH))
def test_batches(table: TruthTable, join: str, runner: str) -> None:
    answers = IN_PROCESS[runner](table.joins[join], table.batches, emit="batch")
    assert answers == table.expected[join]


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize(("table", "join"), per_join(TABLES))
def test_many_buckets(table: TruthTable, join: str, restart: bool) -> None:
    emit = table.emission
    batches = cut(table.records, 1) if emit == "change" else table.batches
    answers = driver(table.joins[join], batches, buckets=5, emit=emit, restart=restart)
    assert [by_key(part) for part in answers] == [by_key(part) for part in table.expected[join]]


# The runners on Spark: all tables of one join and mode in one query, each under keys of its own.


def together(tables: list[TruthTable], batches: Callable[[TruthTable], Batches]) -> Batches:
    """The micro-batches of several tables side by side, keys prefixed by the table's name."""
    parts = [[[named(t, r) for r in batch] for batch in batches(t)] for t in tables]
    longest = max(map(len, parts))
    return [flat(part[i] for part in parts if i < len(part)) for i in range(longest)]


def named(table: TruthTable, record: Record) -> Record:
    return record._replace(key=f"{table.name}:{record.key}")


def halves(table: TruthTable) -> Batches:
    return cut(table.records, -(-len(table.records) // 2))


def apart(results: list[Result]) -> dict[str, list[Result]]:
    """Results by table, keys as the table has them."""
    found: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        name, key = result.key.split(":")
        found[name].append(result._replace(key=key))
    return found


def batches_of(table: TruthTable) -> Batches:
    return table.batches


def tables_of(topology: Topology, emission: str) -> list[TruthTable]:
    return [t for t in TABLES if t.emission == emission and topology in t.joins.values()]


@pytest.fixture(scope="session")
def streamed(
    spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Topology, str], dict[str, list[Result]]]:
    """Per table the results of one query over all records of a topology's tables."""

    @cache
    def run(topology: Topology, emission: Emit) -> dict[str, list[Result]]:
        cutting = halves if emission == "change" else batches_of
        batches = together(tables_of(topology, emission), cutting)
        folder = tmp_path_factory.mktemp("streamed")
        return apart(stream(spark, folder, topology, batches, emit=emission))

    return run


@pytest.fixture(scope="session")
def computed(
    spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Topology, str], dict[str, list[Result]]]:
    """Per table the results of a batch run over all of a topology's records."""

    @cache
    def run(topology: Topology, emission: Emit) -> dict[str, list[Result]]:
        together_ = together(tables_of(topology, emission), lambda table: [table.records])
        folder = tmp_path_factory.mktemp("computed")
        return apart(static(spark, folder, topology, flat(together_), emit=emission))

    return run


# Net changes on Spark: each operator and one join of each other kind, or all when time allows.
RARE = {"inner-inner", "left-outer", "left-inner"}


@pytest.mark.parametrize(("table", "join"), per_join(TABLES))
def test_a_streaming_query(table: TruthTable, join: str, streamed: Any) -> None:
    rare = join in RARE or (table.name.endswith("twice-batch") and join != "chain")
    if rare and table.emission == "batch" and "DOVETAIL_CASES" not in os.environ:
        pytest.skip("runs when DOVETAIL_CASES is set")
    answers = streamed(table.joins[join], table.emission)
    assert answers[table.name] == flat(table.expected[join])


@pytest.mark.parametrize(("table", "join"), per_join(CHANGE))
def test_a_batch_run(table: TruthTable, join: str, computed: Any) -> None:
    answers = computed(table.joins[join], "change")
    assert by_key(answers[table.name]) == by_key(flat(table.expected[join]))


@pytest.mark.parametrize(("table", "join"), per_join(BATCH))
def test_a_batch_run_gives_the_final_table(table: TruthTable, join: str, computed: Any) -> None:
    topology = table.joins[join]
    answers = computed(topology, "batch")[table.name]
    (expected,) = each_batch(topology, [table.records])
    assert by_key(answers) == by_key(seen(expected))
    assert shown({}, answers) == shown({}, flat(table.expected[join]))
