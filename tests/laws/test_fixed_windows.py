"""The largest value so far in each group, with and without times that are none."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dovetail.arrays.timeline import NO_TIME
from dovetail.laws.windows.fixed import running_max

FAR = int(np.iinfo(np.int64).max)


@pytest.mark.parametrize("values", [[1, 5, 3, NO_TIME], [NO_TIME], [-FAR, 0, FAR, NO_TIME]])
def test_the_largest_value_so_far(values: list[int]) -> None:
    random_ = random.Random(len(values))
    for _ in range(300):
        lengths = [random_.randrange(1, 5) for _ in range(random_.randrange(4))]
        group = np.repeat(np.arange(len(lengths)), lengths)
        start = np.cumsum([0, *lengths])[:-1]
        drawn = np.array([random_.choice(values) for _ in group], np.int64)
        initial = np.array([random_.choice(values) for _ in lengths], np.int64)
        expected: list[int] = []
        for row, number in enumerate(group):
            before = initial[number] if row == start[number] else expected[-1]
            expected.append(max(before, drawn[row]))
        assert running_max(drawn, start, group, initial).tolist() == expected
