"""Exact sums of doubles, and what they and their quotients round to.

Every finite double is a whole multiple of 2**-1074, so a sum of them is a whole number, too long
for a column. It is held as limbs, 32 bits each: the number is the sum of ``limb * 2**(32 * i)`` for
the numbers i of its limbs, -34..33. Only the limbs between a batch's smallest and largest bits are
there, so most sums have three or four.

Stored, a sum is the number of its lowest limb and a list of 32-bit words in two's complement, the
lowest first, as short as can be: equal sums are stored alike, zero as an empty list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.aggregates.aggregate import Columns, Ints, Mask, Updates, numbers
from dovetail.aggregates.exact import long_division
from dovetail.aggregates.multiset import list_of, lists_of, sizes
from dovetail.arrays.search import expand

Floats = npt.NDArray[np.float64]

STORED = (pa.int16(), list_of(pa.int32()))
"""The types of a stored sum's columns."""

_BITS = 32
_LOW = (1 << _BITS) - 1
_BLOCK = 1 << 15
"""So many sums are worked on at a time: their limbs stay within a processor's cache."""
_TINY = -30
"""The powers of two of limbs below this one, or their inverses, are no normal doubles."""
_TINY_SCALE = 10
_LEAST_EXPONENT = -1074
_NORMAL_EXPONENT = -1022


@dataclass(frozen=True)
class Limbs:
    """n sums: ``rows``: int64[limbs, n], of any sign and size; ``lowest``: the first row's
    number.
    """

    lowest: int
    rows: Ints

    @property
    def highest(self) -> int:
        """The number after the last row's."""
        return self.lowest + len(self.rows)

    def within(self, lowest: int, highest: int) -> Ints:
        """The rows of a wider range, a copy."""
        rows = np.zeros((highest - lowest, self.rows.shape[1]), np.int64)
        if len(self.rows):
            rows[self.lowest - lowest : self.highest - lowest] = self.rows
        return rows

    def last(self) -> Limbs:
        """The last sum."""
        return Limbs(self.lowest, self.rows[:, -1:].copy())


def sums_after_each(updates: Updates, stored: Columns, summands: Floats) -> Iterator[Limbs]:
    """The sum of each group's summands up to each update, over its ``stored`` one, some updates at
    a time.
    """
    carried = None
    for block in _blocks(updates):
        start = block.initial(updates, stored, carried)
        made = _split(summands[block.updates])
        lowest, highest = _range(start, made)
        sums = np.zeros((highest - lowest, len(block.group)), np.int64)
        for base, total, number in zip(start.within(lowest, highest), sums, count(lowest)):
            if made.lowest <= number < made.highest:
                np.cumsum(made.rows[number - made.lowest], out=total)
                base[1:] -= total[block.first[1:] - 1]
            if base.any():
                total += base[0] if block.groups == 1 else base[block.group]
        made = Limbs(lowest, sums)
        carried = made.last()
        yield made


def sums_at_the_end(updates: Updates, stored: Columns, summands: Floats) -> list[pa.Array]:
    """The stored sums after the last update of each group that has one."""
    parts: list[list[pa.Array]] = []
    carried = None
    for block in _blocks(updates):
        start = block.initial(updates, stored, carried)
        made = _split(summands[block.updates])
        made = Limbs(made.lowest, np.add.reduceat(made.rows, block.first, axis=1))
        ended = _added(start, made)
        carried = ended.last()
        if block.ends:
            parts.append(_store(Limbs(ended.lowest, ended.rows[:, : block.ends])))
    return [pa.concat_arrays(list(column)) for column in zip(*parts, strict=True)]


def added(left: Columns, right: Columns) -> list[pa.Array]:
    """Stored sums added, row by row."""
    parts = [_store(_added(a, b)) for a, b in zip(loaded(left), loaded(right), strict=True)]
    if not parts:
        return list(left)
    return [pa.concat_arrays(list(column)) for column in zip(*parts, strict=True)]


def loaded(stored: Columns) -> Iterator[Limbs]:
    """Stored sums, some at a time."""
    for start in range(0, len(stored[0]), _BLOCK):
        yield _load(*(column.slice(start, _BLOCK) for column in stored))


def to_nearest(limbs: Limbs) -> Floats:
    """The nearest doubles, of two that are as near the even one; infinite beyond the largest."""
    magnitude, negative = _magnitude(limbs)
    rows, top, sticky = _window(magnitude, 3)
    result = _rounded(rows, limbs.lowest + top, sticky)
    return np.where(negative, -result, result)


def to_quotients(limbs: Limbs, divisor: Ints) -> Floats:
    """The doubles nearest to the sums divided by whole numbers from 1 to 2**47."""
    magnitude, negative = _magnitude(limbs)
    small = int(divisor.max(initial=1)) <= _LOW
    rows, top, sticky = _window(magnitude, 4 if small else 5)
    quotient, remainder = long_division(rows, divisor, _BITS if small else 16)
    sticky |= remainder != 0
    lowest = limbs.lowest + top - len(rows) + 1
    rows, top, more = _window(np.array(quotient), 3)
    result = _rounded(rows, lowest + top, sticky | more)
    return np.where(negative, -result, result)


@dataclass(frozen=True)
class _Block:
    """Some updates, ``updates``, of ``groups`` groups, one after the other of those that have any,
    the first of them ``number``. ``group``: of each, from 0; ``first``: each group's first update
    here; ``began``: whether the first group has updates before it; ``ends``: how many of the groups
    have none after it.
    """

    updates: slice
    group: Ints
    first: Ints
    number: int
    began: bool
    ends: int

    @property
    def groups(self) -> int:
        return len(self.first)

    def initial(self, updates: Updates, stored: Columns, carried: Limbs | None) -> Limbs:
        """What its groups' sums begin with, ``carried`` that of the first if it ``began``."""
        updated = updates.updated[self.number : self.number + self.groups]
        begin, end = int(updated[0]), int(updated[-1]) + 1
        if end - begin == len(updated):
            own = _load(*(column.slice(begin, len(updated)) for column in stored))
        else:
            own = _load(*(column.take(pa.array(updated)) for column in stored))
        if not self.began:
            return own
        assert carried is not None
        lowest, highest = _range(own, carried)
        rows = own.within(lowest, highest)
        rows[:, :1] = carried.within(lowest, highest)
        return Limbs(lowest, rows)


def _blocks(updates: Updates) -> Iterator[_Block]:
    """The updates, some at a time."""
    number = -1
    for start in range(0, len(updates), _BLOCK):
        stop = min(start + _BLOCK, len(updates))
        group = updates.group[start:stop]
        new = group[1:] != group[:-1]
        began = start > 0 and bool(updates.group[start - 1] == group[0])
        number += not began
        first = np.append(0, np.flatnonzero(new) + 1)
        goes_on = stop < len(updates) and bool(updates.group[stop] == group[-1])
        yield _Block(
            updates=slice(start, stop),
            group=np.append(0, np.cumsum(new)),
            first=first,
            number=number,
            began=began,
            ends=len(first) - goes_on,
        )
        number += len(first) - 1


def _split(values: Floats) -> Limbs:
    """The limbs of finite doubles, each of its value's sign: taken off from the largest down."""
    rest = values.copy()
    taken: dict[int, Ints] = {}
    scaled = 0
    while True:
        largest = max(float(rest.max(initial=0.0)), -float(rest.min(initial=0.0)))
        if largest == 0.0:
            break
        number = (int(np.frexp(largest)[1]) - 1) // _BITS
        if number < _TINY:
            rest *= 2.0 ** (_BITS * _TINY_SCALE)
            number, scaled = number + _TINY_SCALE, _TINY_SCALE
        digit = np.trunc(rest * 2.0 ** (-_BITS * number))
        taken[number - scaled] = digit.astype(np.int64)
        digit *= 2.0 ** (_BITS * number)
        rest -= digit
    if not taken:
        return Limbs(0, np.zeros((0, len(values)), np.int64))
    none = np.zeros(len(values), np.int64)
    numbered = range(min(taken), max(taken) + 1)
    return Limbs(numbered.start, np.array([taken.get(number, none) for number in numbered]))


def _range(left: Limbs, right: Limbs) -> tuple[int, int]:
    """The numbers of the limbs that either has."""
    some = [limbs for limbs in (left, right) if len(limbs.rows)] or [left]
    return min(limbs.lowest for limbs in some), max(limbs.highest for limbs in some)


def _added(left: Limbs, right: Limbs) -> Limbs:
    lowest, highest = _range(left, right)
    return Limbs(lowest, left.within(lowest, highest) + right.within(lowest, highest))


def _normal(limbs: Limbs) -> tuple[Ints, Mask]:
    """The numbers in two's complement, with one limb more, and which are negative."""
    count, n = limbs.rows.shape
    normal = np.empty((count + 1, n), np.int64)
    carry = np.zeros(n, np.int64)
    for row, own in zip(limbs.rows, normal, strict=False):
        carry += row
        np.bitwise_and(carry, _LOW, out=own)
        carry >>= _BITS
    np.bitwise_and(carry, _LOW, out=normal[-1])
    return normal, carry < 0


def _magnitude(limbs: Limbs) -> tuple[Ints, Mask]:
    """The numbers without their sign, each limb within 0..2**32-1, and which are negative."""
    rows, negative = _normal(limbs)
    if negative.any():
        rows ^= negative * np.int64(_LOW)
        carry: Ints = negative.astype(np.int64)
        for row in rows:
            row += carry
            np.right_shift(row, _BITS, out=carry)
            row &= _LOW
    return rows, negative


def _load(position: pa.Array, words: pa.Array) -> Limbs:
    """Stored sums, whose last limb is signed."""
    size = sizes(words)
    some = np.flatnonzero(size)
    if len(some) == 0:
        return Limbs(0, np.zeros((0, len(size)), np.int64))
    first = numbers(position)
    stored = words.flatten().to_numpy().astype(np.int64)
    limbs = stored & _LOW
    last = np.cumsum(size)[some] - 1
    limbs[last] = stored[last]
    which, place = expand(first, first + size)
    lowest = int(first[some].min())
    rows = np.zeros((int((first + size)[some].max()) - lowest, len(size)), np.int64)
    rows[place - lowest, which] = limbs
    return Limbs(lowest, rows)


def _store(limbs: Limbs) -> list[pa.Array]:
    """Sums as they are stored."""
    rows, negative = _normal(limbs)
    beyond = negative * np.int64(_LOW)
    n = len(negative)
    low, high = np.full(n, len(rows)), np.full(n, -1)
    sign = negative
    for number, row in enumerate(rows):
        np.copyto(low, np.minimum(low, number), where=row != 0)
        differs = row != beyond
        np.copyto(high, number, where=differs)
        sign = np.where(differs, row >> (_BITS - 1) != 0, sign)
    # One word more where the last one's own sign is not the number's.
    end = np.where(high < low, low, high + (sign != negative)) + 1
    empty = low == len(rows)
    low[empty] = end[empty] = 0
    which, place = expand(low, end)
    words = rows[place, which].astype(np.uint32).view(np.int32)
    position = np.where(empty, 0, low + limbs.lowest).astype(np.int16)
    return [pa.array(position), lists_of(end - low, pa.array(words))]


def _window(magnitude: Ints, size: int) -> tuple[list[Ints], Ints, Mask]:
    """The first limb that is not zero and those below it, ``size`` in all, the lowest first; the
    row of the first one; and whether any limb below them is not zero.
    """
    limbs, n = magnitude.shape
    top, bottom = np.zeros(n, np.int64), np.full(n, limbs)
    for number in range(limbs):
        some = magnitude[number] != 0
        np.copyto(top, number, where=some)
        if number < limbs - size:
            np.copyto(bottom, np.minimum(bottom, number), where=some)
    padded = np.zeros((limbs + size - 1, n), np.int64)
    padded[size - 1 :] = magnitude
    if top.min(initial=limbs) == top.max(initial=0):  # as mostly
        rows = list(padded[int(top[0]) :][:size])
    else:
        flat, at = padded.ravel(), top * n + np.arange(n)
        rows = [flat[at + number * n] for number in range(size)]
    return rows, top, bottom <= top - size


def _rounded(rows: list[Ints], number: Ints, sticky: Mask) -> Floats:
    """Doubles from three limbs each, the lowest first and the last not zero unless all are, that
    has this number; ``sticky``: whether there is more below them.

    The first 64 bits, the last of them set where anything below is, round as the whole does.
    """
    low, middle, high = (row.view(np.uint64) for row in rows)
    bits = np.maximum((rows[2].astype(np.float64).view(np.int64) >> 52) - 1022, 0)
    length = bits.view(np.uint64)
    first = ((high << np.uint64(_BITS)) | middle) << (np.uint64(_BITS) - length)
    first |= low >> length
    below = low & ((np.uint64(1) << length) - np.uint64(1))
    first |= sticky | (below != 0)
    exponent = _BITS * number - 64 + bits
    half = exponent >> 1
    with np.errstate(over="ignore"):
        result: Floats = first.astype(np.float64) * _power(half) * _power(exponent - half)
    tiny = np.flatnonzero(exponent + 63 < _NORMAL_EXPONENT)
    if len(tiny):
        result[tiny] = _subnormal(first[tiny], exponent[tiny])
    return result


def _subnormal(first: npt.NDArray[np.uint64], exponent: Ints) -> Floats:
    """``first * 2**exponent`` below the normal doubles, rounded once."""
    shift = np.minimum(_LEAST_EXPONENT - exponent - 8, 60).astype(np.uint64)
    first = (first >> np.uint64(8)) | ((first & np.uint64(255)) != 0)
    whole = first >> shift
    half = np.uint64(1) << (shift - np.uint64(1))
    rest = first & ((half << np.uint64(1)) - np.uint64(1))
    whole += (rest > half) | ((rest == half) & (whole & np.uint64(1) == 1))
    return whole.astype(np.float64) * 2.0**_LEAST_EXPONENT


def _power(exponent: Ints) -> Floats:
    """Two to the power of exponents of normal doubles."""
    return ((exponent + 1023) << 52).view(np.float64)
