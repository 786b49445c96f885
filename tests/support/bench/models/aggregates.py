"""Scripts of rows that join and leave groups, and how a kernel is run on them.

A script is a list of updates in order of arrival: the group, whether a row is retracted, and its
values. The kernel sees them in batches, by group; its answers are put back in order of arrival.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from dovetail.aggregates.aggregate import Aggregate, GroupUpdates, null_accumulators
from dovetail.arrays.equality import rows_equal

GROUPS = 4
UTC = dt.timezone.utc
LOWEST, HIGHEST = -(2**63), 2**63 - 1
DAYS = st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))
TIMES = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))  # noqa: DTZ001
ORDERED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-2, 2) | st.sampled_from([LOWEST, HIGHEST]),
    pa.float32(): st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan]),
    pa.float64(): st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf]),
    pa.bool_(): st.booleans(),
    pa.string(): st.sampled_from(["", "a", "Z", "aa", "é", "\U0001f600", "\uffee", "b"]),
    pa.binary(): st.binary(max_size=2),
    pa.date32(): DAYS,
    pa.timestamp("us", "UTC"): TIMES.map(lambda time: time.replace(tzinfo=UTC)),
    pa.timestamp("us"): TIMES,
    pa.duration("us"): st.timedeltas(dt.timedelta(-9), dt.timedelta(9)),
    pa.decimal128(5, 2): st.integers(-999, 999).map(lambda n: Decimal(n).scaleb(-2)),
    pa.decimal128(38, 0): st.integers(-(10**37), 10**37).map(Decimal) | st.just(Decimal(0)),
}
"""Values of types that have an order."""
PAIR = pa.struct([("a", pa.int64()), ("b", pa.float64())])
LIST = pa.list_(pa.field("element", pa.string()))
FLOATS = st.sampled_from([0.0, -0.0, math.nan, 1.5])
COMPARED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(0, 3),
    pa.float64(): FLOATS,
    pa.string(): st.sampled_from(["", "a", "b", "é"]),
    pa.bool_(): st.booleans(),
    pa.decimal128(38, 2): st.integers(0, 3).map(lambda n: Decimal(n).scaleb(-2)),
    PAIR: st.fixed_dictionaries({"a": st.none() | st.integers(0, 1), "b": st.none() | FLOATS}),
    LIST: st.lists(st.none() | st.sampled_from(["", "a"]), max_size=2),
}
"""Values of types that have equality."""


@dataclass(frozen=True)
class Update:
    group: int
    retracted: bool
    values: tuple[Any, ...]


class Model(Protocol):
    """One group, the plainest way."""

    def update(self, retracted: bool, *values: Any) -> None: ...

    def result(self) -> Any: ...


class Held:
    """The values of a group but nulls; of equal ones the first is retracted."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def update(self, retracted: bool, *values: Any) -> None:
        for value in values:
            if value is not None and retracted:
                del self.values[[bits(held) for held in self.values].index(bits(value))]
            elif value is not None:
                self.values.append(value)


@st.composite
def scripts(
    draw: st.DrawFn, *values: st.SearchStrategy[Any], retracts: bool, size: int = 16
) -> list[Update]:
    """Random scripts; only a row that is in its group is retracted."""
    script: list[Update] = []
    rows: dict[int, list[tuple[Any, ...]]] = {group: [] for group in range(GROUPS)}
    for _ in range(draw(st.integers(0, size))):
        group = draw(st.integers(0, GROUPS - 1))
        if retracts and rows[group] and draw(st.integers(0, 2)) == 0:
            gone = rows[group].pop(draw(st.integers(0, len(rows[group]) - 1)))
            script.append(Update(group, True, gone))
        else:
            row = tuple(draw(value) for value in values)
            rows[group].append(row)
            script.append(Update(group, False, row))
    return script


def cuts(script: Sequence[Update]) -> st.SearchStrategy[list[int]]:
    """Where a script is cut into batches, empty ones included."""
    return st.lists(st.integers(0, len(script)), max_size=4).map(sorted)


def columns(script: Sequence[Update], types: Sequence[pa.DataType]) -> list[pa.Array]:
    return [
        pa.array([update.values[i] for update in script], type_) for i, type_ in enumerate(types)
    ]


def by_group(script: Sequence[Update]) -> tuple[GroupUpdates, np.ndarray]:
    group = np.array([update.group for update in script], dtype=np.int64)
    retracted = np.array([update.retracted for update in script], dtype=np.bool_)
    order = np.argsort(group, kind="stable")
    return GroupUpdates(group[order], GROUPS, retracted[order]), order


def run(
    aggregate: Aggregate,
    script: Sequence[Update],
    types: Sequence[pa.DataType],
    cut: Sequence[int] = (),
) -> tuple[list[Any], list[pa.Array]]:
    """The results after each update, and the accumulators at the end. Checks on the way that types
    are those declared and that ``final`` is what ``running`` ends with.
    """
    state = null_accumulators(aggregate.state, GROUPS)
    emitted: list[Any] = []
    for first, end in zip([0, *cut], [*cut, len(script)], strict=True):
        batch = script[first:end]
        updates, order = by_group(batch)
        values = [column.take(pa.array(order)) for column in columns(batch, types)]
        running = aggregate.scan(updates, state, values)
        before, state = state, aggregate.fold(updates, state, values)
        assert running.type == aggregate.result
        assert len(running) == len(batch)
        assert [column.type for column in state] == list(aggregate.state)
        assert [len(column) for column in state] == [GROUPS] * len(state)
        results = aggregate.results(state)
        assert results.type == aggregate.result
        last = pa.array(updates.last)
        updated = pa.array(updates.updated)
        assert same([results.take(updated)], [running.take(last)])
        idle = pa.array(np.setdiff1d(np.arange(GROUPS), updates.updated))
        assert same([c.take(idle) for c in state], [c.take(idle) for c in before])
        arrived = running.take(pa.array(np.argsort(order, kind="stable")))
        emitted += arrived.to_pylist()
    return emitted, state


def final(
    aggregate: Aggregate, script: Sequence[Update], types: Sequence[pa.DataType]
) -> list[pa.Array]:
    """The accumulators after a script."""
    updates, order = by_group(script)
    values = [column.take(pa.array(order)) for column in columns(script, types)]
    return aggregate.fold(updates, null_accumulators(aggregate.state, GROUPS), values)


def model(make: Callable[[], Model], script: Iterable[Update]) -> list[Any]:
    """The result after each update."""
    groups: dict[int, Model] = {}
    emitted = []
    for update in script:
        group = groups.setdefault(update.group, make())
        group.update(update.retracted, *update.values)
        emitted.append(group.result())
    return emitted


def bits(value: Any) -> Any:
    """A value that equals another only if all bits do, NaNs being one."""
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("<d", value)
    if isinstance(value, (list, tuple)):
        return [bits(element) for element in value]
    if isinstance(value, dict):
        return sorted((key, bits(element)) for key, element in value.items())
    return value


def rank(value: Any) -> Any:
    """What values are compared by: NaN is the largest, -0.0 below 0.0, texts by their bytes."""
    if isinstance(value, float):
        return (True,) if math.isnan(value) else (False, value, math.copysign(1, value))
    return value.encode() if isinstance(value, str) else value


def same(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> bool:
    """Whether columns are equal bit for bit."""
    assert len(left) == len(right)
    return bool(rows_equal(left, right).all())


def check(
    aggregate: Aggregate,
    make: Callable[[], Model],
    script: Sequence[Update],
    types: Sequence[pa.DataType],
    cut: Sequence[int],
) -> None:
    """A kernel emits what the model emits, and the same bits however the script is cut."""
    emitted, state = run(aggregate, script, types)
    assert bits(emitted) == bits(model(make, script))
    emitted_in_pieces, state_of_pieces = run(aggregate, script, types, cut)
    assert bits(emitted_in_pieces) == bits(emitted)
    assert same(state_of_pieces, state)


def check_merged(
    aggregate: Aggregate,
    left: Sequence[Update],
    right: Sequence[Update],
    types: Sequence[pa.DataType],
) -> None:
    """Accumulators merged are those of the left's updates, then the right's."""
    whole = final(aggregate, [*left, *right], types)
    merged = aggregate.merged(final(aggregate, left, types), final(aggregate, right, types))
    assert [column.type for column in merged] == list(aggregate.state)
    found, expected = aggregate.results(merged), aggregate.results(whole)
    assert bits(found.to_pylist()) == bits(expected.to_pylist())
    # they can be carried on with, too
    empty = GroupUpdates(np.zeros(0, np.int64), GROUPS, np.zeros(0, np.bool_))
    nothing = [pa.nulls(0, type_) for type_ in types]
    assert same(aggregate.fold(empty, merged, nothing), merged)
