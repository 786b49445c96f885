"""Two tables compared: any form of a table, and the words on their difference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dovetail.errors import PlanError
from dovetail.testing import Driver, assert_table_equal, table

ROWS = [{"id": 1, "amount": 40}, {"id": 2, "amount": None}]


def message(*tables: Any, **options: Any) -> list[str]:
    with pytest.raises(AssertionError) as raised:
        assert_table_equal(*tables, **options)
    return str(raised.value).splitlines()


def forms() -> list[Any]:
    frames = [ROWS, ROWS[::-1], tuple(ROWS), pd.DataFrame(ROWS), pa.Table.from_pylist(ROWS)]
    polars = pytest.importorskip("polars")
    return [*frames, pa.RecordBatch.from_pylist(ROWS), polars.DataFrame(ROWS)]


def test_any_form_of_a_table_equals_any_other() -> None:
    for actual in forms():
        for expected in forms():
            assert_table_equal(actual, expected)
            assert_table_equal(actual, expected, key="id")


def test_rows_of_a_driver_are_compared() -> None:
    orders = table("orders", key="id", schema={"id": pa.int64(), "amount": pa.int64()})
    driver = Driver(orders)
    driver.pipe(orders, ROWS, timestamp=1)
    rows = driver.table(orders)
    assert_table_equal(rows, {2: {"amount": None}, 1: {"amount": 40}})
    assert_table_equal(rows, ROWS, key="id")
    assert message(rows, {1: {"amount": 41}, 2: {"amount": None}}) == [
        "the tables differ: 1 row changed (~)",
        "~ key=1: amount is 40, expected 41",
    ]
    with pytest.raises(PlanError, match=r"a mapping has the key 1, key= has 0 columns. Name"):
        assert_table_equal(rows, ROWS)
    with pytest.raises(PlanError, match=r"key= names nope, which is no column. The columns are"):
        assert_table_equal(ROWS, ROWS, key=["id", "nope"])


def test_keys_of_several_columns_are_tuples_of_a_driver() -> None:
    rows = {(1, "a"): {"n": 5}, (1, "b"): {"n": 6}}
    flat = [{"id": 1, "kind": "a", "n": 5}, {"id": 1, "kind": "b", "n": 6}]
    assert_table_equal(rows, flat, key=["id", "kind"])
    assert_table_equal(rows, dict(reversed(rows.items())))


def test_the_message_has_rows_that_are_missing_too_many_or_other() -> None:
    actual = [{"id": 2, "a": 7, "b": "x"}, {"id": 1, "a": 41, "b": "y"}, {"id": 4, "a": 0, "b": ""}]
    expected = [{"id": 1, "a": 40, "b": None}, {"a": 9, "b": "z", "id": 3}, actual[2]]
    assert message(actual, expected, key="id") == [
        "the tables differ: 1 row changed (~), 1 row missing (-), 1 row too many (+)",
        "~ id=1: a is 41, expected 40; b is 'y', expected None",
        "- id=3, a=9, b='z'",
        "+ id=2, a=7, b='x'",
    ]
    assert message(actual, expected) == [
        "the tables differ: 2 rows missing (-), 2 rows too many (+)",
        "- id=1, a=40, b=None",
        "- id=3, a=9, b='z'",
        "+ id=2, a=7, b='x'",
        "+ id=1, a=41, b='y'",
    ]
    assert message(actual, expected, max_lines=1) == [
        "the tables differ: 2 rows missing (-), 2 rows too many (+)",
        "- id=1, a=40, b=None",
        "... and 3 more",
    ]


def test_a_row_counts_as_often_as_it_occurs() -> None:
    twice = [{"id": 1}, {"id": 1}]
    for key in (None, "id"):
        assert message(twice, twice[:1], key=key) == [
            "the tables differ: 1 row too many (+)",
            "+ id=1",
        ]


def test_order_counts_where_it_is_asked_for() -> None:
    rows = [{"id": 1}, {"id": 2}, {"id": 3}]
    assert_table_equal(rows, rows, ordered=True)
    assert message(rows, [rows[1], rows[0]], ordered=True) == [
        "the tables differ: 2 rows changed (~), 1 row too many (+)",
        "~ row 0: id is 1, expected 2",
        "~ row 1: id is 2, expected 1",
        "+ id=3",
    ]


def test_floats_have_a_tolerance() -> None:
    actual = [{"id": 1, "x": 0.1 + 0.2, "y": [1.0]}, {"id": 2, "x": math.nan, "y": None}]
    expected = [{"id": 1, "x": 0.3, "y": [1.001]}, {"id": 2, "x": math.nan, "y": None}]
    for key in (None, "id"):
        assert_table_equal(actual, expected, key=key, abs_tol=0.01)
        assert_table_equal(actual, expected, key=key, rel_tol=0.01)
    assert message(actual, expected, key="id", abs_tol=1e-9) == [
        "the tables differ: 1 row changed (~)",
        "~ id=1: y is [1.0], expected [1.001]",
    ]
    assert message([{"x": 1.0}], [{"x": 1.2}], abs_tol=0.1)[1:] == ["- x=1.2", "+ x=1.0"]


def test_values_of_other_types_differ_but_numbers_do_not() -> None:
    assert_table_equal([{"x": 1, "y": np.array([1])}], [{"x": 1.0, "y": [1]}])
    assert_table_equal([{"x": {"a": [1, None]}}], [{"x": {"a": (1, None)}}])
    assert_table_equal([{"x": bytearray(b"a")}], [{"x": b"a"}])
    for actual, expected in [(True, 1), (1, "1"), (None, 0), ({"a": 1}, {"a": 2}), (True, 1.0)]:
        assert message([{"x": actual}], [{"x": expected}])


def test_other_columns_are_named() -> None:
    assert message([{"id": 1, "a": 1}], [{"id": 1, "b": 1}]) == [
        "the tables have other columns, missing (-) or too many (+)",
        "- b",
        "+ a",
    ]
    assert_table_equal([], pa.table({"id": pa.array([], pa.int64())}))
    assert message([], [{"id": 1}], key="id")[1:] == ["- id=1"]


@pytest.mark.parametrize("wrong", ["rows", 3, None, {1: 2}, [1], {"id"}])
def test_what_is_no_table_is_refused(wrong: Any) -> None:
    with pytest.raises(PlanError, match=r"^assert_table_equal: actual= .* Give a list of rows"):
        assert_table_equal(wrong, [])
