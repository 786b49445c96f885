"""Running sums, minima and maxima within segments of an array."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dovetail.kernels.aggregates import Ints, Mask, Touches

Floats = npt.NDArray[np.float64]

_SHORT = 64
"""Segments up to this length are scanned together, longer ones each for itself."""


def running_sum(touches: Touches, summands: Ints, initial: Ints) -> Ints:
    """The sum of each group's summands up to each touch, over its ``initial``: int64[n].

    One cumulative sum over all: it may wrap round, the differences do not.
    """
    total = np.zeros(len(summands) + 1, dtype=np.int64)
    np.cumsum(summands, out=total[1:])
    base = initial - total[touches.bounds[:-1]]
    return total[1:] + base[touches.group]  # type: ignore[no-any-return]


def any_so_far(touches: Touches, flags: Mask, initial: Mask) -> Mask:
    """Whether a flag was set in the group up to each touch, or ``initial`` is: bool[n]."""
    touch = np.arange(len(flags))
    latest = np.maximum.accumulate(np.where(flags, touch, -1)) if len(flags) else touch
    return (latest >= touches.bounds[touches.group]) | initial[touches.group]  # type: ignore[no-any-return]


def scan_in_order(operation: np.ufunc, start: Ints, values: Ints | Floats) -> Ints | Floats:
    """``operation`` accumulated within each segment, one element after the other, as a loop does.

    ``start``: where segments begin, ascending, the first at 0. Of floats the order of additions
    decides the last bits, so this is exactly sequential: segments of up to 64 elements advance
    together, one element a step, and each longer one is accumulated for itself. So there are at
    most 64 steps and n/64 calls.

    >>> scan_in_order(np.add, np.array([0, 2]), np.array([1.0, 2.0, 3.0, 4.0])).tolist()
    [1.0, 3.0, 3.0, 7.0]
    """
    scanned = values.copy()
    length = np.diff(start, append=len(values))
    for first, end in zip(*_ranges(start, length, length > _SHORT), strict=True):
        operation.accumulate(values[first:end], out=scanned[first:end])
    by_length = np.flatnonzero(length <= _SHORT)
    by_length = by_length[np.argsort(-length[by_length], kind="stable")]
    first, length = start[by_length], length[by_length]
    for step in range(1, int(length[0]) if len(length) else 0):
        at = first[: np.searchsorted(-length, -step)] + step
        scanned[at] = operation(scanned[at - 1], scanned[at])
    return scanned


def _ranges(start: Ints, length: Ints, chosen: Mask) -> tuple[list[int], list[int]]:
    return start[chosen].tolist(), (start + length)[chosen].tolist()
