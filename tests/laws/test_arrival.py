"""Clocks of rows that a condition leaves out, in logs that are cut into runs anywhere."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dovetail.arrays.timeline import NO_TIME
from dovetail.laws.arrival import (
    NEVER,
    LogRuns,
    clocks_with_left_out,
    record_clocks,
    running_clock,
    trailing_times,
)


def _one_by_one(times: list[int], left_out: list[bool]) -> list[int]:
    """The clock of each row of a log, by going through all of it."""
    stream, highest = [], NO_TIME
    for time, out in zip(times, left_out, strict=True):
        highest = highest if out else max(highest, time)
        stream.append(highest)
    found, trail = [], NO_TIME
    for row, out in enumerate(left_out):
        trail = max(trail, times[row]) if out else NO_TIME
        following = [stream[n] for n in range(row + 1, len(times)) if not left_out[n]]
        bound = min(following, default=NEVER)
        found.append(min(max(trail, stream[row]), bound) if out else stream[row])
    return found


def _in_runs(times: list[int], left_out: list[bool], begins: list[bool]) -> list[int]:
    """The same by the runs of the log: a run begins at each row of ``begins``."""
    time, out = np.array(times), np.array(left_out)
    first = np.flatnonzero(begins)
    last, run = np.append(first[1:], len(time)) - 1, np.cumsum(begins) - 1
    stream = running_clock(run, np.where(out, NO_TIME, time))
    trail = trailing_times(run, time, out)
    runs = LogRuns(
        np.zeros(len(first), np.int64),
        first,
        last,
        stream[last],
        np.minimum.reduceat(np.where(out, NEVER, stream), first),
        trail[last],
    )
    of_run = clocks_with_left_out(run, stream, trail, out)
    zeros = np.zeros(len(time), np.int64)
    return record_clocks(runs, run, of_run, zeros, np.arange(len(time))).tolist()  # type: ignore[no-any-return]


def test_a_row_that_is_left_out_does_not_hold_up_its_log() -> None:
    times, left_out = [10, 99, 20, 25, 22, 30], [False, True, False, True, True, False]
    assert _one_by_one(times, left_out) == [10, 20, 20, 25, 25, 30]
    for begins in ([True] * 6, [True, False, False, False, False, False]):
        assert _in_runs(times, left_out, begins) == [10, 20, 20, 25, 25, 30]


@pytest.mark.parametrize("seed", range(5))
def test_clocks_do_not_depend_on_runs(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(300):
        count = random_.randrange(1, 12)
        times = [random_.choice([random_.randrange(30), 1000]) for _ in range(count)]
        left_out = [random_.random() < 0.5 for _ in range(count)]
        begins = [True, *(random_.random() < 0.4 for _ in range(count - 1))]
        expected = _one_by_one(times, left_out)
        assert _in_runs(times, left_out, begins) == expected, (times, left_out, begins)
