"""What must be in the truth tables of joins of tables (no kind of join lacks a table, no transition
a row), and that their changes add up to the join.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from bench import truth_tables
from bench.families import tables
from bench.models.tables import names, static_join
from bench.records import add_up, cut, flat
from bench.truth_tables import Column, TruthTable, per_column

from dovetail.physical.fragment import Emit

TABLES = truth_tables.read(*tables.FOLDERS)
JOINS = ["L inner R", "L left R", "L outer R"]


@pytest.mark.parametrize("emit", ["change", "batch"])
def test_every_mode_has_tables(emit: Emit) -> None:
    covered = {column.join for table in TABLES for column in table.emitting(emit).values()}
    wanted = {parsed(text) for text in JOINS}
    assert wanted <= covered
    assert any(not isinstance(t[0], str) or not isinstance(t[2], str) for t in covered - wanted)
    assert any(len(set(names(topology))) < len(names(topology)) for topology in covered)


def parsed(text: str) -> Any:
    return tables.read_join("table_table", text, {})


@pytest.mark.parametrize("text", JOINS)
def test_every_transition_has_a_row(text: str) -> None:
    """Side, own row there, other row there, tombstone or not: all sixteen."""
    topology = parsed(text)
    met = set()
    for table in TABLES:
        if topology in [column.join for column in table.emitting("change").values()]:
            rows: set[tuple[str, str]] = set()
            for record in table.records:
                own = (record.table, record.key)
                other = ("R" if record.table == "L" else "L", record.key)
                met.add((record.table, own in rows, other in rows, record.deleted))
                (rows.discard if record.deleted else rows.add)(own)
    assert met == set(product("LR", (False, True), (False, True), (False, True)))


@pytest.mark.parametrize(("table", "column"), per_column(TABLES))
def test_the_changes_add_up_to_the_join(table: TruthTable, column: Column) -> None:
    """After each record (or batch) the changes so far make the table that a static join gives."""
    made: dict[Any, Any] = {}
    parts = cut(table.records, 1) if column.emit == "change" else table.batches
    for number, results in enumerate(column.results, 1):
        add_up(made, results)
        assert made == static_join(column.join, flat(parts[:number]))
    assert number == len(parts)
