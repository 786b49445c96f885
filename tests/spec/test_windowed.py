"""The truth tables of aggregates and windowed tables, every join of them, every runner.

Families: the grid (no kind of join, of windows and of emission lacks a table), the format, the
definition (the tables agree with the model, and with Kafka Streams where it has the operator), the
driver in this process, and the runners on Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import window_tables
from answers import by_key, flat, per_join
from matrix_runners import ORACLE
from runners import cut, one_hash
from window_model import (
    View,
    at_end,
    each_batch,
    each_record,
    has_windows,
    in_key_order,
    inputs_of,
    seen,
)
from window_runners import Answers, counted, driver, kafka_streams, static, stream
from window_tables import WindowTable

import dovetail.runtime.gather
import dovetail.runtime.steps

LOCAL = "DOVETAIL_CASES" not in os.environ

TABLES = window_tables.read_all()
CHANGE = [table for table in TABLES if table.emission == "change"]
BATCH = [table for table in TABLES if table.emission == "batch"]


# The grid.

KINDS = ("tumbling", "hopping", "sliding", "session")


def kind_of(view: View) -> str:
    return view.windows[0][1].kind if view.windows else ""


def matter_of(view: View) -> str:
    """What is joined: ``L inner R``, ``L left T``, ``S left L`` and so on."""
    topology = view.topology
    if isinstance(topology, str):
        return topology
    left, right = (inputs_of(side)[0] for side in (topology.left, topology.right))
    return f"{left} {topology.how} {right}" + " shift" * bool(topology.shift)


def wanted() -> set[tuple[str, str, str]]:
    """Emission, windows, matter."""
    found = {(emit, "", matter) for emit, matter in product(("change", "batch"), "GH")}
    matters = ["L", "L left T", *(f"L {how} R" for how in ("inner", "left", "outer"))]
    found |= {("change", kind, matter) for kind, matter in product(KINDS, matters)}
    found -= {("change", "sliding", "L left R")}  # as inner and outer
    placed = ("S left L", "U left L", "L left R shift", "L left L shift")
    found |= {("change", kind, matter) for kind, matter in product(KINDS[:2], placed)}
    found |= {("final", kind, "L") for kind in KINDS}
    found |= {("final", kind, "L left T") for kind in KINDS}
    found |= {("final", "tumbling", matter) for matter in ("L outer R", "L left R shift")}
    found |= {("batch", kind, "L") for kind in ("tumbling", "sliding", "session")}
    batch = ("L inner R", "L outer R", "L left T", "U left L")
    return found | {("batch", "tumbling", matter) for matter in batch}


def test_every_kind_has_a_table() -> None:
    met = {
        ("final" if view.final else table.emission, kind_of(view), matter_of(view))
        for table in TABLES
        for view in table.joins.values()
    }
    assert not wanted() - met


def test_every_table_cites_its_source() -> None:
    for table in TABLES:
        assert table.source.startswith("Kafka Streams join design"), table.name
        assert table.joins, table.name
        assert table.records, table.name


# The format.


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 X k 1 A | j -", "no input X"),
        ("1 L k 1 | j -", "not enough values"),
        ("1 S k 1 A | j -", "not enough values"),
        ("1 L k one A | j -", "invalid literal"),
        ("1 L k 1 A | i -", "results for"),
        ("1 L k 1 A | j A@1", "pop from empty list"),
        ("1 L k 1 A | j 0..10 A@1", "no window before"),
        ("1 L k 1 A | j a b 0-10 A@1", "too many values"),
        ("--- | j -\n1 L k 1 A | j -", "a line after the end"),
        ("--- | j 0-10 A@1", "no key before"),
        ("# join i = L middle T", "unknown join"),
        ("# join i = (L left T", "unbalanced"),
        ("# join i = L left T T", "unexpected"),
        ("# join i = L left X", "no input X"),
        ("# join i = L, late", "unknown option"),
        ("# windows R = tumbling 10 wait 5", "not windows"),
    ],
)
def test_a_malformed_line_is_found(line: str, message: str) -> None:
    header = "# source: none\n# emission: change\n# windows L = tumbling 10\n# join j = L\n"
    with pytest.raises((ValueError, IndexError), match=message):
        window_tables.parse("x", header + line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 G k 1 x:A | j -", "results belong on the border"),
        ("1 G k 1 x:A\n--- | j A@1", "no key before"),
        ("1 G k 1 x:A", "the last batch has no border"),
    ],
)
def test_a_malformed_batch_is_found(text: str, message: str) -> None:
    header = "# source: none\n# emission: batch\n# join j = G\n"
    with pytest.raises(ValueError, match=message):
        window_tables.parse("x", header + text)


# The definition.


@pytest.mark.parametrize(("table", "join"), per_join(CHANGE))
def test_the_definition_of_single_changes(table: WindowTable, join: str) -> None:
    view = table.joins[join]
    assert [seen(part) for part in each_record(view, table.records)] == table.expected[join]
    assert seen(at_end(view, table.records)) == table.at_end[join]


@pytest.mark.parametrize(("table", "join"), per_join(BATCH))
def test_the_definition_of_batches(table: WindowTable, join: str) -> None:
    found = [seen(part) for part in each_batch(table.joins[join], table.batches)]
    assert found == [in_key_order(part) for part in table.expected[join]]


@pytest.mark.skipif(not ORACLE.exists(), reason="Kafka Streams' oracle is not here")
def test_kafka_streams_agrees() -> None:
    """On single changes of windows without a time before 0."""
    cases = [
        (table, join, (table.joins[join], table.records))
        for table in CHANGE
        for join, view in table.joins.items()
        if view.topology == "L"
        and not view.final
        and kind_of(view) in KINDS[:2]
        and all(record.time >= 0 for record in table.records)
    ]
    assert {table.name for table, _, _ in cases} == {"windowed/tumbling", "windowed/hopping"}
    answers = kafka_streams([case for _, _, case in cases])
    for (table, join, _), answer in zip(cases, answers, strict=True):
        assert answer == counted(table.expected[join]), (table.name, join)


# The driver in this process.


@pytest.fixture
def colliding(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys have one hash, between steps, too."""
    monkeypatch.setattr(dovetail.runtime.steps, "stable_hash", one_hash)
    monkeypatch.setattr(dovetail.runtime.gather, "stable_hash", one_hash)


IN_PROCESS: dict[str, Callable[..., Answers]] = {
    "driver": driver,
    "restarted": partial(driver, restart=True),
}
SIZES = [("driver", 10**6), ("driver", 3), ("restarted", 1)]


def parts_of(answers: Answers, size: int) -> Answers:
    return [flat(answers[i : i + size]) for i in range(0, len(answers), size)]


@pytest.mark.parametrize(("runner", "size"), SIZES, ids=str)
@pytest.mark.parametrize(("table", "join"), per_join(CHANGE))
def test_single_changes(table: WindowTable, join: str, runner: str, size: int) -> None:
    answers = IN_PROCESS[runner](table.joins[join], cut(table.records, size))
    assert answers == parts_of(table.expected[join], size)


@pytest.mark.usefixtures("colliding")
@pytest.mark.parametrize(("table", "join"), per_join(CHANGE))
def test_colliding_keys(table: WindowTable, join: str) -> None:
    answers = driver(table.joins[join], cut(table.records, 4), restart=True, key_hash=one_hash)
    assert answers == parts_of(table.expected[join], 4)


@pytest.mark.parametrize("runner", IN_PROCESS)
@pytest.mark.parametrize(("table", "join"), per_join(BATCH))
def test_batches(table: WindowTable, join: str, runner: str) -> None:
    answers = IN_PROCESS[runner](table.joins[join], table.batches, emit="batch")
    assert [*map(in_key_order, answers)] == [*map(in_key_order, table.expected[join])]


@pytest.mark.parametrize(("table", "join"), per_join(CHANGE))
def test_many_buckets(table: WindowTable, join: str) -> None:
    """Per key, record by record: within a batch a bucket knows its own time only."""
    answers = driver(table.joins[join], cut(table.records, 1), buckets=3, restart=True)
    assert [*map(by_key, answers)] == [*map(by_key, table.expected[join])]


@pytest.mark.parametrize(("table", "join"), per_join(BATCH))
def test_batches_in_many_buckets(table: WindowTable, join: str) -> None:
    view = table.joins[join]
    batches = [[record] for record in table.records]
    answers = driver(view, batches, emit="batch", buckets=3, restart=True)
    expected = [seen(part) for part in each_batch(view, batches)]
    assert [*map(in_key_order, answers)] == expected


@pytest.mark.parametrize(
    ("table", "join"),
    [p for p in per_join(CHANGE) if has_windows(p.values[0].joins[p.values[1]].topology)],
)
def test_windows_that_leave_as_a_stream(table: WindowTable, join: str) -> None:
    """The same changes, under the key alone; what is deleted is a record without a value."""
    answers = driver(table.joins[join], cut(table.records, 3), as_stream=True)
    assert answers == parts_of(table.expected[join], 3)


# The runners on Spark; without ``DOVETAIL_CASES``, a few.

USUAL = {"windowed/nested-shift", "windowed/table-session-final", "aggregate/table-by"}


def queries(tables: list[WindowTable]) -> list[Any]:
    usual = pytest.mark.skipif(LOCAL, reason="runs when DOVETAIL_CASES is set")
    return [
        pytest.param(*p.values, id=p.id, marks=[] if p.id in USUAL else [usual])
        for p in per_join(tables)
    ]


@pytest.mark.parametrize(("table", "join"), queries(CHANGE))
def test_a_streaming_query(table: WindowTable, join: str, spark: Any, tmp_path: Path) -> None:
    size = -(-len(table.records) // 2)
    batches = cut(table.records, size)
    answers = stream(spark, tmp_path, table.joins[join], batches, restart=True)
    assert answers == parts_of(table.expected[join], size)


@pytest.mark.parametrize(("table", "join"), queries(CHANGE))
def test_a_batch_run(table: WindowTable, join: str, spark: Any, tmp_path: Path) -> None:
    expected = flat([*table.expected[join], table.at_end[join]])
    answer = static(spark, tmp_path, table.joins[join], table.records)
    assert by_key(answer) == by_key(expected)
