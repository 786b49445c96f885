"""Scripts of rows that join and leave groups, and how a kernel is run on them.

A script is a list of touches in order of arrival: the group, whether a row is retracted, and its
values. The kernel sees them in batches, by group; its answers are put back in order of arrival.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from dovetail.aggregates.aggregate import Aggregate, Touches, nulls
from dovetail.arrays.equality import rows_equal

GROUPS = 4


@dataclass(frozen=True)
class Touch:
    group: int
    retracted: bool
    values: tuple[Any, ...]


class Model(Protocol):
    """One group, the plainest way."""

    def touch(self, retracted: bool, *values: Any) -> None: ...

    def result(self) -> Any: ...


class Held:
    """The values of a group but nulls; of equal ones the first is retracted."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def touch(self, retracted: bool, *values: Any) -> None:
        for value in values:
            if value is not None and retracted:
                del self.values[[bits(held) for held in self.values].index(bits(value))]
            elif value is not None:
                self.values.append(value)


@st.composite
def scripts(
    draw: st.DrawFn, *values: st.SearchStrategy[Any], retracts: bool, size: int = 16
) -> list[Touch]:
    """Random scripts; only a row that is in its group is retracted."""
    script: list[Touch] = []
    rows: dict[int, list[tuple[Any, ...]]] = {group: [] for group in range(GROUPS)}
    for _ in range(draw(st.integers(0, size))):
        group = draw(st.integers(0, GROUPS - 1))
        if retracts and rows[group] and draw(st.integers(0, 2)) == 0:
            gone = rows[group].pop(draw(st.integers(0, len(rows[group]) - 1)))
            script.append(Touch(group, True, gone))
        else:
            row = tuple(draw(value) for value in values)
            rows[group].append(row)
            script.append(Touch(group, False, row))
    return script


def cuts(script: Sequence[Touch]) -> st.SearchStrategy[list[int]]:
    """Where a script is cut into batches, empty ones included."""
    return st.lists(st.integers(0, len(script)), max_size=4).map(sorted)


def columns(script: Sequence[Touch], types: Sequence[pa.DataType]) -> list[pa.Array]:
    return [pa.array([touch.values[i] for touch in script], type_) for i, type_ in enumerate(types)]


def by_group(script: Sequence[Touch]) -> tuple[Touches, np.ndarray]:
    group = np.array([touch.group for touch in script], dtype=np.int64)
    retracted = np.array([touch.retracted for touch in script], dtype=np.bool_)
    order = np.argsort(group, kind="stable")
    return Touches(group[order], GROUPS, retracted[order]), order


def run(
    aggregate: Aggregate,
    script: Sequence[Touch],
    types: Sequence[pa.DataType],
    cut: Sequence[int] = (),
) -> tuple[list[Any], list[pa.Array]]:
    """The results after each touch, and the accumulators at the end. Checks on the way that types
    are those declared and that ``final`` is what ``running`` ends with.
    """
    state = nulls(aggregate.state, GROUPS)
    told: list[Any] = []
    for first, end in zip([0, *cut], [*cut, len(script)], strict=True):
        batch = script[first:end]
        touches, order = by_group(batch)
        values = [column.take(pa.array(order)) for column in columns(batch, types)]
        running = aggregate.running(touches, state, values)
        before, state = state, aggregate.final(touches, state, values)
        assert running.type == aggregate.result
        assert len(running) == len(batch)
        assert [column.type for column in state] == list(aggregate.state)
        assert [len(column) for column in state] == [GROUPS] * len(state)
        results = aggregate.results(state)
        assert results.type == aggregate.result
        last = pa.array(touches.last)
        touched = pa.array(touches.touched)
        assert same([results.take(touched)], [running.take(last)])
        idle = pa.array(np.setdiff1d(np.arange(GROUPS), touches.touched))
        assert same([c.take(idle) for c in state], [c.take(idle) for c in before])
        arrived = running.take(pa.array(np.argsort(order, kind="stable")))
        told += arrived.to_pylist()
    return told, state


def final(
    aggregate: Aggregate, script: Sequence[Touch], types: Sequence[pa.DataType]
) -> list[pa.Array]:
    """The accumulators after a script."""
    touches, order = by_group(script)
    values = [column.take(pa.array(order)) for column in columns(script, types)]
    return aggregate.final(touches, nulls(aggregate.state, GROUPS), values)


def model(make: Callable[[], Model], script: Iterable[Touch]) -> list[Any]:
    """The result after each touch."""
    groups: dict[int, Model] = {}
    told = []
    for touch in script:
        group = groups.setdefault(touch.group, make())
        group.touch(touch.retracted, *touch.values)
        told.append(group.result())
    return told


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
        return (math.isnan(value), 0 if math.isnan(value) else value, math.copysign(1, value))
    return value.encode() if isinstance(value, str) else value


def same(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> bool:
    """Whether columns are equal bit for bit."""
    assert len(left) == len(right)
    return bool(rows_equal(left, right).all())


def check(
    aggregate: Aggregate,
    make: Callable[[], Model],
    script: Sequence[Touch],
    types: Sequence[pa.DataType],
    cut: Sequence[int],
) -> None:
    """A kernel tells what the model tells, and the same bits however the script is cut."""
    told, state = run(aggregate, script, types)
    assert bits(told) == bits(model(make, script))
    told_in_pieces, state_of_pieces = run(aggregate, script, types, cut)
    assert bits(told_in_pieces) == bits(told)
    assert same(state_of_pieces, state)


def check_merged(
    aggregate: Aggregate,
    left: Sequence[Touch],
    right: Sequence[Touch],
    types: Sequence[pa.DataType],
) -> None:
    """Accumulators merged are those of the left's touches, then the right's."""
    whole = final(aggregate, [*left, *right], types)
    merged = aggregate.merged(final(aggregate, left, types), final(aggregate, right, types))
    assert [column.type for column in merged] == list(aggregate.state)
    found, expected = aggregate.results(merged), aggregate.results(whole)
    assert bits(found.to_pylist()) == bits(expected.to_pylist())
    # they can be carried on with, too
    empty = Touches(np.zeros(0, np.int64), GROUPS, np.zeros(0, np.bool_))
    nothing = [pa.nulls(0, type_) for type_ in types]
    assert same(aggregate.final(empty, merged, nothing), merged)
