"""Cells of tables in text: what is written, and what of it is cut or coded."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dovetail.base.text_cells import CELL_MAX, cell_text, cells_of, changes_text, printable

UTC = pa.timestamp("us", "UTC")


def test_time_comes_first_and_change_last() -> None:
    rows = pa.table(
        {
            "id": pa.array([1, 2]),
            "_change": pa.array(["upsert", "delete"]),
            "_timestamp": pa.array([3, 1_714_557_600_000_000], UTC),
            "_position": pa.array([0, 1]),
            "note": pa.array(["a|b", None]),
        }
    )
    assert changes_text(rows) == (
        "time                 | id | note  | change\n"
        '3                    | 1  | "a|b" | upsert\n'
        "2024-05-01T10:00:00Z | 2  |       | delete"
    )


def test_long_cells_are_cut_and_far_times_are_numbers() -> None:
    far = 1 << 62
    rows = pa.table({"text": ["x" * 1000], "at": pa.array([far], pa.timestamp("us"))})
    header, (text, at) = cells_of(rows)
    assert header == ["text", "at"]
    assert len(text) == CELL_MAX
    assert text.endswith("x…")
    assert at == str(far)


def test_a_row_without_columns_has_no_cells() -> None:
    assert cells_of(pa.table({"_position": [1]})) == [[]]


@given(st.text())
def test_text_is_printable_and_can_be_read_back(text: str) -> None:
    cell = cell_text(text, pa.string())
    assert cell.isprintable()
    assert (json.loads(cell) if cell.startswith('"') else cell) == text
    assert printable(text).isprintable()


def test_nested_times_are_as_those_of_columns() -> None:
    moment = datetime(2024, 5, 1, 10, tzinfo=timezone.utc)
    assert cell_text([moment], pa.list_(UTC)) == '["2024-05-01T10:00:00Z"]'
