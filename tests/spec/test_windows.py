"""What must be in the truth tables of aggregates and windowed tables: no kind of join, of windows
and of emission lacks a table.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from bench import runners, truth_tables
from bench.families import windows
from bench.families.windows import SHOWS
from bench.models.windows import View, has_windows, inputs_of
from bench.records import cut, parts
from bench.truth_tables import Column, TruthTable, per_column

TABLES = truth_tables.read(*windows.FOLDERS)

# The grid.

KINDS = ("tumbling", "hopping", "sliding", "session")


def kind_of(view: View) -> str:
    return view.windows[0][1].kind if view.windows else ""


def matter_of(view: View) -> str:
    """What is joined: ``L inner R``, ``L left T``, ``S left L`` and so on."""
    topology = view.topology
    if isinstance(topology, str):
        return f"{topology} {view.shows.partition(' ')[0]}".strip()
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
    found |= {(e, "", f"{m} {s}") for e, m, s in product(("change", "batch"), "GH", SHOWS)}
    found |= {(e, "tumbling", f"L {s}") for e, s in product(("change", "final"), SHOWS)}
    found |= {("change", kind, f"L {s}") for kind, s in product(KINDS[2:], SHOWS)}
    batch = ("L inner R", "L outer R", "L left T", "U left L")
    return found | {("batch", "tumbling", matter) for matter in batch}


def test_every_kind_has_a_table() -> None:
    met = {
        (
            "final" if column.join.final else column.emit,
            kind_of(column.join),
            matter_of(column.join),
        )
        for table in TABLES
        for column in table.columns.values()
    }
    assert not wanted() - met


@pytest.mark.parametrize(
    ("table", "column"),
    [p for p in per_column(TABLES, "change") if has_windows(p.values[1].join.topology)],
)
def test_windows_that_leave_as_a_stream(table: TruthTable, column: Column) -> None:
    """The same changes, under the key alone; what is deleted is a record without a value."""

    def build(view: View, inputs: Any) -> Any:
        return windows.windowed(view, inputs).to_stream(
            windows="on_close" if view.final else "on_change"
        )

    batches = cut(table.records, 3)
    answers = runners.driver(windows, column.join, batches, build=build)
    assert answers == parts(column.results, 3)
