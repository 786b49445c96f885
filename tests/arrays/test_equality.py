"""Row equality over every type a Spark column can have."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dovetail.arrays.equality import arrays_equal, rows_equal

NAN = float("nan")

# Spark's variant. (Its other intervals do not cross to Arrow at all.)
VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False),
    ]
)

# Per type, values of which no two are equal.
DISTINCT: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [0, 1, -1]),
    (pa.int64(), [0, 2**62, -1]),
    (pa.float32(), [0.0, 1.5, NAN, math.inf, -math.inf]),
    (pa.float64(), [0.0, 5e-324, NAN, math.inf, -math.inf]),
    (pa.decimal128(38, 2), [Decimal(0), Decimal("0.01"), Decimal(-1)]),
    (pa.string(), ["", "a", "A", "aa", "é"]),
    (pa.large_string(), ["", "a"]),
    (pa.binary(), [b"", b"\0", b"\0\0"]),
    (pa.date32(), [date(1970, 1, 1), date(1969, 12, 31)]),
    (pa.timestamp("us", "UTC"), [datetime(1970, 1, 1, tzinfo=timezone.utc), 1]),
    (pa.timestamp("us"), [0, 1]),
    (pa.duration("us"), [timedelta(0), timedelta(microseconds=1)]),
    (pa.list_(pa.int64()), [[], [None], [0], [0, 0], [0, None], [1]]),
    (pa.list_(pa.float64()), [[], [NAN], [0.0]]),
    (pa.list_(pa.list_(pa.string())), [[], [[]], [None], [[], []], [[None]], [["a"]]]),
    (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": None, "b": None}, {"a": None, "b": "x"}],
    ),
    (pa.struct([("s", pa.struct([("a", pa.int8())]))]), [{"s": None}, {"s": {"a": None}}]),
    (
        pa.map_(pa.string(), pa.int64()),
        [[], [("a", 1)], [("a", None)], [("b", 1)], [("a", 1), ("b", 1)], [("b", 1), ("a", 1)]],
    ),
    (
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.int64())))])),
        [[], [None], [{"m": None}], [{"m": []}], [{"m": [("k", None)]}], [{"m": [("k", [1])]}]],
    ),
    (VARIANT, [{"value": b"", "metadata": b""}, {"value": b"", "metadata": b"x"}]),
    (pa.null(), []),
]


@pytest.mark.parametrize(("type_", "values"), DISTINCT, ids=lambda x: str(x)[:30])
def test_a_value_equals_itself_and_no_other(type_: pa.DataType, values: list[Any]) -> None:
    pairs = [(i, j) for i in range(len(values) + 1) for j in range(len(values) + 1)]
    every = pa.array([None, *values], type_)
    left = every.take(pa.array([i for i, _ in pairs]))
    right = every.take(pa.array([j for _, j in pairs]))
    assert arrays_equal(left, right).tolist() == [i == j for i, j in pairs]


@pytest.mark.parametrize(("type_", "values"), DISTINCT, ids=lambda x: str(x)[:30])
def test_slices_are_compared_from_their_start(type_: pa.DataType, values: list[Any]) -> None:
    every = pa.array([None, *values, None], type_)
    n = len(every)
    shifted = arrays_equal(every.slice(1), every.slice(0, n - 1)).tolist()
    assert shifted == ([True] if not values else [False] * (n - 1))
    assert arrays_equal(every.slice(1), every.slice(1)).all()
    assert len(arrays_equal(every.slice(n), every.slice(n))) == 0


def test_a_row_is_equal_when_every_column_is() -> None:
    left = [pa.array([1, 1, None, None]), pa.array(["a", "b", None, "c"])]
    right = [pa.array([1, 1, None, 3]), pa.array(["a", "c", None, "c"])]
    assert rows_equal(left, right).tolist() == [True, False, True, False]
