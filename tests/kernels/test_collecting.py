"""first, last, collect_list and collect_set against Python's lists."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aggregate_model import Touch, bits, by_group, check, check_merged, cuts, run, scripts
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.kernels import multiset
from dovetail.kernels.aggregates import AggregateError, Touches, nulls
from dovetail.kernels.collecting import CollectList, CollectSet
from dovetail.kernels.ends import End
from dovetail.kernels.ordering import is_ordered

PAIR = pa.struct([("a", pa.int64()), ("b", pa.float64())])
LIST = pa.list_(pa.field("element", pa.string()))
FLOATS = st.sampled_from([0.0, -0.0, math.nan, 1.5])
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(0, 3),
    pa.float64(): FLOATS,
    pa.string(): st.sampled_from(["", "a", "b", "é"]),
    pa.bool_(): st.booleans(),
    pa.decimal128(38, 2): st.integers(0, 3).map(lambda n: Decimal(n).scaleb(-2)),
    PAIR: st.fixed_dictionaries({"a": st.none() | st.integers(0, 1), "b": st.none() | FLOATS}),
    LIST: st.lists(st.none() | st.sampled_from(["", "a"]), max_size=2),
}


class EndModel:
    def __init__(self, last: bool, ignore_nulls: bool) -> None:
        self.place, self.ignore_nulls = (-1 if last else 0), ignore_nulls
        self.values: list[Any] = []

    def touch(self, retracted: bool, *values: Any) -> None:
        self.values += [v for v in values if not (v is None and self.ignore_nulls)]

    def result(self) -> Any:
        return self.values[self.place] if self.values else None


class ListModel:
    def __init__(self) -> None:
        self.values: list[Any] = []

    def touch(self, retracted: bool, *values: Any) -> None:
        for value in values:
            if value is not None and retracted:
                del self.values[[repr(bits(v)) for v in self.values].index(repr(bits(value)))]
            elif value is not None:
                self.values.append(value)

    def result(self) -> list[Any]:
        return list(self.values)


def rank(value: Any) -> Any:
    if isinstance(value, float):
        return (math.isnan(value), 0 if math.isnan(value) else value, math.copysign(1, value))
    return value.encode() if isinstance(value, str) else value


class SetModel:
    """Counts, in the order in which values came to stay."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.counts: dict[str, tuple[Any, int]] = {}

    def touch(self, retracted: bool, *values: Any) -> None:
        for value in values:
            if value is None:
                continue
            key = repr(bits(value))
            first, count = self.counts.pop(key, (value, 0)) if retracted else (value, 0)
            if not retracted:
                first, count = self.counts.get(key, (value, 0))
                self.counts[key] = (first, count + 1)
            elif count > 1:
                self.counts = {**self.counts, key: (first, count - 1)}

    def result(self) -> list[Any]:
        values = [value for value, _ in self.counts.values()]
        return sorted(values, key=rank) if self.ordered else values
