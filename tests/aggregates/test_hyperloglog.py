"""How far approximate counts are from the true ones, and that nothing else decides them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bench.models.aggregates import Update, check_merged, cuts, run, same, scripts
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.aggregates.aggregate import GroupUpdates, null_accumulators
from dovetail.aggregates.hyperloglog import ApproxCountDistinct

SKETCH = ApproxCountDistinct()
LONG = pa.int64()


def estimates(distinct: int, groups: int, *, repeats: int = 1) -> np.ndarray:
    """The estimates for groups of so many values each, none in two groups."""
    group = np.repeat(np.arange(groups), distinct * repeats)
    values = np.repeat(np.arange(groups * distinct), repeats) * 7919
    updates = GroupUpdates(group, groups, np.zeros(len(group), np.bool_))
    initial = null_accumulators(SKETCH.state, groups)
    running = SKETCH.scan(updates, initial, [pa.array(values)])
    found = SKETCH.results(SKETCH.fold(updates, initial, [pa.array(values)])).to_numpy()
    assert running.to_numpy()[updates.last].tolist() == found.tolist()
    return found


@pytest.mark.parametrize(
    ("distinct", "groups"), [(10, 300), (100, 300), (1_000, 300), (2_500, 100), (100_000, 12)]
)
def test_accuracy(distinct: int, groups: int) -> None:
    """The standard error is within 5 %, at no size are they all too large or too small, and none is
    off by more than four times that.
    """
    error = estimates(distinct, groups) / distinct - 1
    assert math.sqrt((error**2).mean()) < 0.05
    assert abs(error.mean()) < 4 * 0.05 / math.sqrt(groups)
    assert np.abs(error).max() < 0.2


def test_few_values_are_nearly_exact() -> None:
    assert SKETCH.results(null_accumulators(SKETCH.state, 5)).to_pylist() == [0] * 5
    assert estimates(1, 300).tolist() == [1] * 300
    assert np.abs(estimates(3, 300) - 3).max() <= 1


def test_repeated_values_count_once() -> None:
    assert estimates(500, 10, repeats=3).tolist() == estimates(500, 10).tolist()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_pieces_and_merges(data: st.DataObject) -> None:
    """Few values are counted exactly but for rare collisions of registers: these have none."""
    script, right = (
        data.draw(scripts(st.none() | st.integers(0, 12), retracts=False)) for _ in range(2)
    )
    emitted, state = run(SKETCH, script, [LONG])
    seen: dict[int, set[Any]] = {}
    expected = []
    for update in script:
        seen.setdefault(update.group, set()).update(set(update.values) - {None})
        expected.append(len(seen[update.group]))
    assert emitted == expected
    emitted_in_pieces, state_of_pieces = run(SKETCH, script, [LONG], data.draw(cuts(script)))
    assert emitted_in_pieces == emitted
    assert same(state_of_pieces, state)
    check_merged(SKETCH, script, right, [LONG])


@pytest.mark.parametrize(
    ("type_", "values", "distinct"),
    [
        (pa.float64(), [0.0, -0.0, math.nan, -math.nan, 1.5, None], 3),
        (pa.float32(), [0.0, -0.0, 1.5], 2),
        (pa.string(), ["", "a", "aa", None, "a"], 3),
        (pa.bool_(), [True, False, True], 2),
        (pa.list_(LONG), [[], [1], [1, None], [1]], 3),
        (pa.struct([("a", LONG)]), [{"a": 1}, {"a": None}, None], 2),
        (LONG, [None, None], 0),
        (pa.list_(pa.float64()), [[0.0], [-0.0], [math.nan], [-math.nan]], 2),
    ],
    ids=str,
)
def test_what_is_distinct(type_: pa.DataType, values: list[Any], distinct: int) -> None:
    emitted, _ = run(SKETCH, [Update(0, False, (value,)) for value in values], [type_], [2])
    assert emitted[-1] == distinct


def test_registers_stay_what_they_are() -> None:
    """Stored sketches outlive a release: which value sets which register is part of the format."""
    script = [Update(0, False, (value,)) for value in (0, 1, 2**40, -1)]
    _, state = run(SKETCH, script, [LONG])
    registers = np.frombuffer(state[0][0].as_py(), np.uint8)
    at = np.flatnonzero(registers)
    assert dict(zip(at.tolist(), registers[at].tolist(), strict=True)) == {
        102: 1,
        187: 3,
        188: 4,
        334: 2,
    }
