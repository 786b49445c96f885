"""Exact sums of doubles, and the doubles to which sums and quotients round.

Every finite double is a whole multiple of 2**-1074, so a sum of doubles is a whole number, too long
for one column. It is held as limbs of 32 bits: the sum of ``limb * 2**(32 * i)``, where the number
i of a limb is from -34 to 33. Only the limbs between a batch's smallest and largest bits exist, so
most sums have three or four.

A stored sum is the number of its lowest limb and a list of 32-bit words in two's complement, the
lowest first. The list is as short as possible, so equal sums are stored alike; zero is an empty
list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.aggregates.aggregate import Columns, GroupUpdates, Ints, Mask, int64_values
from dovetail.aggregates.exact_sums import long_division
from dovetail.aggregates.multiset import list_of, list_sizes, lists_of
from dovetail.arrays.search import expand_ranges

Floats = npt.NDArray[np.float64]

STORED = (pa.int16(), list_of(pa.int32()))
"""The types of a stored sum's columns."""

_BITS = 32
_LOW = (1 << _BITS) - 1
_BLOCK = 1 << 15
"""The number of sums that are worked on at a time, so that their limbs stay in the processor's
cache.
"""
_TINY = -30
"""The lowest limb number whose power of two, and its inverse, are normal doubles."""
_TINY_SCALE = 10
_LEAST_EXPONENT = -1074
_NORMAL_EXPONENT = -1022


@dataclass(frozen=True)
class Limbs:
    """The n sums as limbs of any sign and size."""

    lowest: int
    """The index of the limbs in row 0, perhaps negative; 0 without rows."""
    rows: Ints
    """int64[limbs, n]. A limb of row i stands for ``limb * 2**(32 * (lowest + i))``."""

    @property
    def highest(self) -> int:
        """The exclusive end of the range of limb indices: one more than that of the last row,
        ``lowest`` without rows.
        """
        return self.lowest + len(self.rows)

    def to_range(self, lowest: int, highest: int) -> Ints:
        """Return a new array of the limbs with the indices ``lowest`` to before ``highest``:
        int64[highest - lowest, n]. Limbs outside of the present range are 0. The new range must
        contain the present one, unless there are no limbs; this is not checked.
        """
        rows = np.zeros((highest - lowest, self.rows.shape[1]), np.int64)
        if len(self.rows):
            rows[self.lowest - lowest : self.highest - lowest] = self.rows
        return rows

    def last(self) -> Limbs:
        """Return the last of the n sums alone, as a copy with n = 1. There must be one."""
        return Limbs(self.lowest, self.rows[:, -1:].copy())


def sums_after_each(updates: GroupUpdates, stored: Columns, summands: Floats) -> Iterator[Limbs]:
    """Yield each group's sum after each update, its ``stored`` sum included, as ``Limbs``: a block
    of at most 32768 updates at a time, in order. Limbs are not normalised: they may have any sign
    and size. Without updates yield nothing.

    ``updates``: n rows, by group, then time. ``stored``: the two columns of the sums before
    (``STORED``), one row per group, null for 0. ``summands``: float64[n], finite, already negative
    for rows that are retracted.
    """
    carried = None
    for block in _cut_into_blocks(updates):
        start = block.initial(updates, stored, carried)
        limbs = _split_doubles(summands[block.updates])
        lowest, highest = _common_limb_range(start, limbs)
        sums = np.zeros((highest - lowest, len(block.group)), np.int64)
        for base, total, limb_number in zip(start.to_range(lowest, highest), sums, count(lowest)):
            if limbs.lowest <= limb_number < limbs.highest:
                np.cumsum(limbs.rows[limb_number - limbs.lowest], out=total)
                base[1:] -= total[block.first[1:] - 1]
            if base.any():
                total += base[0] if block.groups == 1 else base[block.group]
        limbs = Limbs(lowest, sums)
        carried = limbs.last()
        yield limbs


def sums_at_the_end(updates: GroupUpdates, stored: Columns, summands: Floats) -> list[pa.Array]:
    """Return the two columns (``STORED``) of the sum after the last update of each group that has
    updates, in the order of groups. There must be an update.

    ``updates``: n rows, by group, then time. ``stored``: the two columns of the sums before, one
    row for each group of ``updates``, null for 0. ``summands``: float64[n], finite, already
    negative for rows that are retracted.
    """
    parts: list[list[pa.Array]] = []
    carried = None
    for block in _cut_into_blocks(updates):
        start = block.initial(updates, stored, carried)
        limbs = _split_doubles(summands[block.updates])
        limbs = Limbs(limbs.lowest, np.add.reduceat(limbs.rows, block.first, axis=1))
        ended = _add_sums(start, limbs)
        carried = ended.last()
        if block.ends:
            parts.append(_sums_as_columns(Limbs(ended.lowest, ended.rows[:, : block.ends])))
    return [pa.concat_arrays(list(column)) for column in zip(*parts, strict=True)]


def add_stored_sums(left: Columns, right: Columns) -> list[pa.Array]:
    """Return the sums of ``left`` and ``right``, added row by row, in their stored form. Each is
    the two columns of n stored sums (``STORED``); null counts as 0.
    """
    parts = [
        _sums_as_columns(_add_sums(a, b))
        for a, b in zip(load_stored_sums(left), load_stored_sums(right), strict=True)
    ]
    if not parts:
        return list(left)
    return [pa.concat_arrays(list(column)) for column in zip(*parts, strict=True)]


def load_stored_sums(stored: Columns) -> Iterator[Limbs]:
    """Yield the sums in the two columns ``stored`` (``STORED``) as ``Limbs``: a block of at most
    32768 rows at a time, in order. Null counts as 0; no rows yield nothing.
    """
    for start in range(0, len(stored[0]), _BLOCK):
        yield _load_sums(*(column.slice(start, _BLOCK) for column in stored))


def to_nearest(limbs: Limbs) -> Floats:
    """Return the double nearest to each of the n sums ``limbs``: float64[n], the even one on a tie,
    infinite beyond the largest double. A sum of 0 gives 0.0.
    """
    magnitude, negative = _absolute_values(limbs)
    rows, top, sticky = _highest_limbs(magnitude, 3)
    result = _round_to_double(rows, limbs.lowest + top, sticky)
    return np.where(negative, -result, result)


def to_quotients(limbs: Limbs, divisor: Ints) -> Floats:
    """Return the double nearest to each of the n sums ``limbs`` divided by its ``divisor``:
    float64[n], the even one on a tie, infinite beyond the largest double. A sum of 0 gives 0.0, a
    negative quotient too small for a double -0.0. ``divisor``: int64[n], from 1 to 2**47.
    """
    magnitude, negative = _absolute_values(limbs)
    small = int(divisor.max(initial=1)) <= _LOW
    rows, top, sticky = _highest_limbs(magnitude, 4 if small else 5)
    quotient, remainder = long_division(rows, divisor, _BITS if small else 16)
    sticky |= remainder != 0
    lowest = limbs.lowest + top - len(rows) + 1
    rows, top, more = _highest_limbs(np.array(quotient), 3)
    result = _round_to_double(rows, lowest + top, sticky | more)
    return np.where(negative, -result, result)


@dataclass(frozen=True)
class _Block:
    """Some consecutive updates, and the groups that they belong to."""

    updates: slice
    group: Ints
    """The group of each update, from 0 within the block."""
    first: Ints
    """The first update of each group within the block."""
    number: int
    """The index of the first group in ``GroupUpdates.updated``."""
    began: bool
    """The first group has updates before the block."""
    ends: int
    """The number of groups that have no updates after the block."""

    @property
    def groups(self) -> int:
        """The count of groups with updates in this block."""
        return len(self.first)

    def initial(self, updates: GroupUpdates, stored: Columns, carried: Limbs | None) -> Limbs:
        """Return the sum of each of the block's groups before the block, in their order: the
        group's stored sum. If the first group's updates ``began`` in an earlier block, its sum is
        ``carried``.

        ``updates``: all updates of the batch. ``stored``: the two columns of stored sums
        (``STORED``), one row per group of ``updates``. ``carried``: one sum, that of the last group
        at the end of the block before. It may be None only if ``began`` is false.
        """
        updated = updates.updated[self.number : self.number + self.groups]
        begin, end = int(updated[0]), int(updated[-1]) + 1
        if end - begin == len(updated):
            stored_sums = _load_sums(*(column.slice(begin, len(updated)) for column in stored))
        else:
            stored_sums = _load_sums(*(column.take(pa.array(updated)) for column in stored))
        if not self.began:
            return stored_sums
        assert carried is not None
        lowest, highest = _common_limb_range(stored_sums, carried)
        rows = stored_sums.to_range(lowest, highest)
        rows[:, :1] = carried.to_range(lowest, highest)
        return Limbs(lowest, rows)


def _cut_into_blocks(updates: GroupUpdates) -> Iterator[_Block]:
    """Yield consecutive blocks of at most ``_BLOCK`` (32768) updates; without updates, nothing. A
    group may reach over several blocks.
    """
    group_index = -1
    for start in range(0, len(updates), _BLOCK):
        stop = min(start + _BLOCK, len(updates))
        group = updates.group[start:stop]
        new = group[1:] != group[:-1]
        began = start > 0 and bool(updates.group[start - 1] == group[0])
        group_index += not began
        first = np.append(0, np.flatnonzero(new) + 1)
        goes_on = stop < len(updates) and bool(updates.group[stop] == group[-1])
        yield _Block(
            updates=slice(start, stop),
            group=np.append(0, np.cumsum(new)),
            first=first,
            number=group_index,
            began=began,
            ends=len(first) - goes_on,
        )
        group_index += len(first) - 1


def _split_doubles(values: Floats) -> Limbs:
    """Split n finite doubles exactly into limbs of 32 bits, each with the sign of its double. They
    are int64[limbs, n], the lowest in row 0, which has the index ``lowest`` (``Limbs``). Rows
    between the lowest and the highest limb are all there. Zeros alone, or no doubles, give
    ``lowest`` 0 and int64[0, n]. ``values`` is not changed.
    """
    remainder = values.copy()
    digits: dict[int, Ints] = {}
    scaled = 0
    while True:
        largest = max(float(remainder.max(initial=0.0)), -float(remainder.min(initial=0.0)))
        if largest == 0.0:
            break
        limb_number = (int(np.frexp(largest)[1]) - 1) // _BITS
        if limb_number < _TINY:
            remainder *= 2.0 ** (_BITS * _TINY_SCALE)
            limb_number, scaled = limb_number + _TINY_SCALE, _TINY_SCALE
        digit = np.trunc(remainder * 2.0 ** (-_BITS * limb_number))
        digits[limb_number - scaled] = digit.astype(np.int64)
        digit *= 2.0 ** (_BITS * limb_number)
        remainder -= digit
    if not digits:
        return Limbs(0, np.zeros((0, len(values)), np.int64))
    none = np.zeros(len(values), np.int64)
    numbered = range(min(digits), max(digits) + 1)
    return Limbs(
        numbered.start, np.array([digits.get(limb_number, none) for limb_number in numbered])
    )


def _common_limb_range(left: Limbs, right: Limbs) -> tuple[int, int]:
    """Return the range of limb indices, (lowest, exclusive highest), that contains those of
    ``left`` and ``right``. A side without rows of limbs does not count, unless both have none.
    """
    some = [limbs for limbs in (left, right) if len(limbs.rows)] or [left]
    return min(limbs.lowest for limbs in some), max(limbs.highest for limbs in some)


def _add_sums(left: Limbs, right: Limbs) -> Limbs:
    """Return n sums, not normalised: sum i of ``left`` plus sum i of ``right``."""
    lowest, highest = _common_limb_range(left, right)
    return Limbs(lowest, left.to_range(lowest, highest) + right.to_range(lowest, highest))


def _to_twos_complement(limbs: Limbs) -> tuple[Ints, Mask]:
    """Return the n numbers ``limbs`` in two's complement, with one limb more: int64[limbs + 1, n],
    each from 0 to 2**32 - 1, the lowest in row 0. Also return a mask, bool[n], of the negative
    numbers.
    """
    count, n = limbs.rows.shape
    normal = np.empty((count + 1, n), np.int64)
    carry = np.zeros(n, np.int64)
    for row, normal_row in zip(limbs.rows, normal, strict=False):
        carry += row
        np.bitwise_and(carry, _LOW, out=normal_row)
        carry >>= _BITS
    np.bitwise_and(carry, _LOW, out=normal[-1])
    return normal, carry < 0


def _absolute_values(limbs: Limbs) -> tuple[Ints, Mask]:
    """Return the absolute values of n numbers with one limb more: int64[limbs + 1, n], each from 0
    to 2**32 - 1, the lowest in row 0. Also return a mask, bool[n], of the negative numbers.
    """
    rows, negative = _to_twos_complement(limbs)
    if negative.any():
        rows ^= negative * np.int64(_LOW)
        carry: Ints = negative.astype(np.int64)
        for row in rows:
            row += carry
            np.right_shift(row, _BITS, out=carry)
            row &= _LOW
    return rows, negative


def _load_sums(position: pa.Array, words: pa.Array) -> Limbs:
    """Load n stored sums as ``Limbs``, null or empty ones as 0. ``position``: the index of each
    sum's lowest limb (the power of two is 32 times it). ``words``: the list of its limbs, 32 bits
    each, lowest first, the last one signed.
    """
    size = list_sizes(words)
    some = np.flatnonzero(size)
    if len(some) == 0:
        return Limbs(0, np.zeros((0, len(size)), np.int64))
    first = int64_values(position)
    stored = words.flatten().to_numpy().astype(np.int64)
    limbs = stored & _LOW
    last = np.cumsum(size)[some] - 1
    limbs[last] = stored[last]
    sum_index, limb_number = expand_ranges(first, first + size)
    lowest = int(first[some].min())
    rows = np.zeros((int((first + size)[some].max()) - lowest, len(size)), np.int64)
    rows[limb_number - lowest, sum_index] = limbs
    return Limbs(lowest, rows)


def _sums_as_columns(limbs: Limbs) -> list[pa.Array]:
    """Convert n sums to their two stored columns (``STORED``), one row each: the index of the
    lowest limb that is not 0, and the list of limbs from there on. Zero has the index 0 and no
    limbs.

    A stored limb is a word of 32 bits, the lowest first. Together they are the number in two's
    complement, in as few words as possible.
    """
    rows, negative = _to_twos_complement(limbs)
    beyond = negative * np.int64(_LOW)
    n = len(negative)
    low, high = np.full(n, len(rows)), np.full(n, -1)
    sign = negative
    for row_index, row in enumerate(rows):
        np.copyto(low, np.minimum(low, row_index), where=row != 0)
        differs = row != beyond
        np.copyto(high, row_index, where=differs)
        sign = np.where(differs, row >> (_BITS - 1) != 0, sign)
    # One word more if the sign bit of the last word is not the number's sign.
    end = np.where(high < low, low, high + (sign != negative)) + 1
    empty = low == len(rows)
    low[empty] = end[empty] = 0
    sum_index, limb_row = expand_ranges(low, end)
    words = rows[limb_row, sum_index].astype(np.uint32).view(np.int32)
    position = np.where(empty, 0, low + limbs.lowest).astype(np.int16)
    return [pa.array(position), lists_of(end - low, pa.array(words))]


def _highest_limbs(magnitude: Ints, size: int) -> tuple[list[Ints], Ints, Mask]:
    """Return ``size`` limbs of each of n numbers, int64[n] each, the lowest first: the highest that
    is not 0, and those below it, 0 where there are none.

    Also return the row of that highest limb in ``magnitude``, int64[n], 0 for the number 0. The
    last result, bool[n], is true for numbers that have more below the returned limbs.
    ``magnitude``: int64[limbs, n], limbs from 0 to 2**32 - 1, the lowest in row 0.
    """
    limbs, n = magnitude.shape
    top, bottom = np.zeros(n, np.int64), np.full(n, limbs)
    for limb_row in range(limbs):
        some = magnitude[limb_row] != 0
        np.copyto(top, limb_row, where=some)
        if limb_row < limbs - size:
            np.copyto(bottom, np.minimum(bottom, limb_row), where=some)
    padded = np.zeros((limbs + size - 1, n), np.int64)
    padded[size - 1 :] = magnitude
    if top.min(initial=limbs) == top.max(initial=0):  # as mostly
        rows = list(padded[int(top[0]) :][:size])
    else:
        flat, top_index = padded.ravel(), top * n + np.arange(n)
        rows = [flat[top_index + limb_row * n] for limb_row in range(size)]
    return rows, top, bottom <= top - size


def _round_to_double(rows: list[Ints], limb_number: Ints, sticky: Mask) -> Floats:
    """Round n numbers of three limbs each, none negative, to the nearest double, ties to even:
    float64[n], infinity beyond the largest.

    ``rows``: three limbs, int64[n] each, lowest first; the last is not 0 unless all are.
    ``limb_number``: int64[n], the index of the last limb (the power of two is 32 times it).
    ``sticky``: bool[n], the number has more below these limbs.

    The first 64 bits, with the last bit set if any rest follows, round as the whole number does.
    """
    low, middle, high = (row.view(np.uint64) for row in rows)
    bits = np.maximum((rows[2].astype(np.float64).view(np.int64) >> 52) - 1022, 0)
    length = bits.view(np.uint64)
    first = ((high << np.uint64(_BITS)) | middle) << (np.uint64(_BITS) - length)
    first |= low >> length
    below = low & ((np.uint64(1) << length) - np.uint64(1))
    first |= sticky | (below != 0)
    exponent = _BITS * limb_number - 64 + bits
    half = exponent >> 1
    with np.errstate(over="ignore"):
        result: Floats = (
            first.astype(np.float64) * _power_of_two(half) * _power_of_two(exponent - half)
        )
    tiny = np.flatnonzero(exponent + 63 < _NORMAL_EXPONENT)
    if len(tiny):
        result[tiny] = _scale_once_rounded(first[tiny], exponent[tiny])
    return result


def _scale_once_rounded(first: npt.NDArray[np.uint64], exponent: Ints) -> Floats:
    """Return ``first * 2**exponent`` as doubles, float64[n], rounded once to the nearest, ties to
    even. The products must be below the normal doubles (2**-1022).

    ``first``: uint64[n], the leading bits of a number. ``exponent``: int64[n].
    """
    shift = np.minimum(_LEAST_EXPONENT - exponent - 8, 60).astype(np.uint64)
    first = (first >> np.uint64(8)) | ((first & np.uint64(255)) != 0)
    whole = first >> shift
    half = np.uint64(1) << (shift - np.uint64(1))
    remainder = first & ((half << np.uint64(1)) - np.uint64(1))
    whole += (remainder > half) | ((remainder == half) & (whole & np.uint64(1) == 1))
    return whole.astype(np.float64) * 2.0**_LEAST_EXPONENT


def _power_of_two(exponent: Ints) -> Floats:
    """Return two to the power of ``exponent``, float64[n]. ``exponent``: int64[n], from -1022 to
    1023.
    """
    return ((exponent + 1023) << 52).view(np.float64)
