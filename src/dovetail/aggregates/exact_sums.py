"""Exact sums of longs and decimals, as columns of limbs.

A number is a list of int64 columns, its *limbs*, of 32 bits each, the lowest first: the sum of
``limb[i] * 2**(32 * i)``. It is *normal* if all limbs but the last are within 0..2**32-1. The last
limb is signed and holds the rest. Billions of numbers can be added limb by limb before the result
must be made normal.

| number    | limbs             | normal              |
|-----------|-------------------|---------------------|
| 5         | 5, 0              | yes                 |
| -1        | 2**32 - 1, -1     | yes                 |
| -1 + 5    | 2**32 + 4, -1     | no: 4, 0 is         |
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.aggregates.aggregate import Ints, Mask, int64_values, not_null_mask

Limbs = list[Ints]

_BITS = 32
_LOW = (1 << _BITS) - 1
_LONG_DIGITS = 18
"""The most digits of a decimal that always fits a long."""


def limb_count(type_: pa.DataType) -> int:
    """Return the count of limbs, columns with 32 bits of each number, for sums of values of an
    integer or decimal type. It is 4 for a decimal of more than 18 digits, else 2.
    """
    return 4 if pa.types.is_decimal(type_) and type_.precision > _LONG_DIGITS else 2


def limbs_of(values: pa.Array) -> Limbs:
    """Return the limbs of n integers or decimals (their unscaled values), lowest first, int64[n]
    each; all are 0 for null. Limb i counts ``2**(32 * i)``. It is from 0 to 2**32 - 1, but the last
    one is signed. There are 4 for a decimal of more than 18 digits, else 2.
    """
    if not pa.types.is_decimal(values.type):
        return _split_longs(int64_values(values))
    words = _decimal_words(values)
    present = not_null_mask(values)
    low, high = (np.where(present, words[:, word], 0) for word in (0, 1))
    if limb_count(values.type) == 2:
        return _split_longs(low)
    return [low & _LOW, (low >> _BITS) & _LOW, *_split_longs(high)]


def normalize(limbs: Sequence[Ints]) -> Limbs:
    """Return the same n numbers in new limbs, as many, each but the last from 0 to 2**32 - 1. The
    last limb has the sign and all that is carried. ``limbs``: int64[n] each, lowest first; limb i
    counts ``2**(32 * i)``. They may have any sign and size that leaves room for what is carried.
    """
    carried, carry = [], np.int64(0)
    for limb in limbs[:-1]:
        limb = limb + carry
        carried.append(limb & _LOW)
        carry = limb >> _BITS
    return [*carried, limbs[-1] + carry]


def to_longs(limbs: Limbs) -> tuple[Ints, Mask]:
    """Convert n numbers of two limbs, ``low + 2**32 * high``, to int64[n], and return a mask,
    bool[n], of those that fit; the others have arbitrary longs. ``limbs``: (low, high), int64[n]
    each, low from 0 to 2**32 - 1, high signed.
    """
    low, high = limbs
    return (high << _BITS) | low, (high >= -(1 << 31)) & (high < 1 << 31)


def to_doubles(limbs: Limbs) -> npt.NDArray[np.float64]:
    """Convert n numbers of two limbs, ``low + 2**32 * high``, to float64[n]. Numbers below 2**84
    are rounded once, larger ones perhaps twice. ``limbs``: (low, high), int64[n] each, low from 0
    to 2**32 - 1, high signed.
    """
    low, high = limbs
    return high.astype(np.float64) * float(1 << _BITS) + low.astype(np.float64)


def to_decimals(limbs: Limbs, type_: pa.DataType, present: Mask) -> tuple[pa.Array, Mask]:
    """Convert n numbers to decimals whose unscaled values they are, null where ``present``,
    bool[n], is false. Also return a mask, bool[n], of those that fit the precision of ``type_``;
    the others have arbitrary decimals.

    ``limbs``: the numbers, int64[n] each, lowest first; limb i counts ``2**(32 * i)``. There may be
    any count of limbs, normal (all but the last from 0 to 2**32 - 1). ``type_``: a decimal128.
    """
    limbs = _extend_limbs(limbs, 4)
    magnitude, _ = _absolute_limbs(limbs)
    fits = _below_bound(magnitude, 10**type_.precision)
    words = np.empty((len(limbs[0]), 2), dtype=np.int64)
    words[:, 0] = limbs[0] | (limbs[1] << _BITS)
    words[:, 1] = limbs[2] | (limbs[3] << _BITS)
    validity = pa.array(present).buffers()[1]  # a bitmap, as Arrow wants
    return pa.Array.from_buffers(type_, len(words), [validity, pa.py_buffer(words)]), fits


def quotients(limbs: Limbs, factor: int, divisor: Ints) -> Limbs:
    """Return ``limbs * factor / divisor`` as whole numbers, rounded half away from zero (HALF_UP):
    the limbs of n numbers, normal, two more than in ``limbs``. Limb i counts ``2**(32 * i)``.

    ``limbs``: lowest first, normal: all but the last are from 0 to 2**32 - 1. ``factor``: from 1 to
    2**16. ``divisor``: int64[n] from 1 to 2**47. Neither range is checked.
    """
    magnitude, negative = _absolute_limbs(limbs)
    wider = _extend_limbs(magnitude, len(limbs) + 1)
    dividend = _extend_limbs([limb * factor for limb in wider], len(limbs) + 2)
    small = int(divisor.max(initial=1)) <= _LOW
    quotient, remainder = long_division(dividend, divisor, _BITS if small else 16)
    quotient[0] = quotient[0] + (remainder >= divisor - remainder)
    return normalize([np.where(negative, -limb, limb) for limb in quotient])


def long_division(dividend: Limbs, divisor: Ints, bits: int) -> tuple[Limbs, Ints]:
    """Divide n numbers by ``divisor`` digit by digit: (limbs of the quotients, remainders as
    int64[n]). A limb is a digit of 32 bits: limb i counts ``2**(32 * i)``. There are as many limbs
    of a quotient as of ``dividend``, lowest first.

    ``dividend``: limbs of 32 bits, int64[n] each, lowest first, all from 0 to 2**32 - 1. ``bits``:
    the bits of a digit, 16 or 32. ``divisor``: int64[n], from 1 to 2**32 - 1 for digits of 32 bits,
    to 2**47 for digits of 16; not checked.

    A quotient of doubles is at most one off, and the remainder corrects it. Division of long
    integers would be several times slower.
    """
    float_divisor = divisor.astype(np.float64)
    remainder = np.zeros_like(divisor)
    quotient = []
    for limb in reversed(dividend):
        digits = np.zeros_like(divisor)
        for shift in range(_BITS - bits, -1, -bits):
            digit = (limb >> shift) & ((1 << bits) - 1)
            near = (remainder * float(1 << bits) + digit) / float_divisor
            digit = (remainder << bits) + digit  # may overflow, the difference does not
            estimate = near.astype(np.int64)
            remainder = digit - estimate * divisor
            off = (remainder >= divisor).astype(np.int64) - (remainder < 0)
            remainder -= off * divisor
            digits |= (estimate + off) << shift
        quotient.append(digits)
    return quotient[::-1], remainder


def _split_longs(longs: Ints) -> Limbs:
    """Return n longs as two limbs, (low, high): low from 0 to 2**32 - 1, high signed. A long is
    ``low + 2**32 * high``.
    """
    return [longs & _LOW, longs >> _BITS]


def _decimal_words(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the two 64-bit words of each unscaled decimal, the lower first: int64[n, 2], not to be
    changed, arbitrary for null. ``values``: decimals of any width, with at most 38 digits.
    """
    if not pa.types.is_decimal128(values.type):
        values = values.cast(pa.decimal128(values.type.precision, values.type.scale))
    stored = np.frombuffer(values.buffers()[1] or b"", np.int64).reshape(-1, 2)
    return stored[values.offset : values.offset + len(values)]


def _extend_limbs(limbs: Limbs, count: int) -> Limbs:
    """Return the same n numbers, normal, with at least ``count`` limbs: the missing ones are added
    at the top, with the sign. ``limbs``: int64[n] each, lowest first; limb i counts
    ``2**(32 * i)``. They may have any sign and size that leaves room for what is carried.
    """
    zeros = [np.zeros_like(limbs[0])] * (count - len(limbs))
    return normalize([*limbs, *zeros])


def _absolute_limbs(limbs: Limbs) -> tuple[Limbs, Mask]:
    """Return the limbs of the absolute values of n numbers, normal, and a mask, bool[n], of the
    negative numbers. ``limbs``: normal, lowest first, int64[n] each; limb i counts ``2**(32 * i)``.
    """
    negative = limbs[-1] < 0
    return normalize([np.where(negative, -limb, limb) for limb in limbs]), negative


def _below_bound(magnitude: Limbs, bound: int) -> Mask:
    """Find the numbers below ``bound``: bool[n].

    ``magnitude``: the limbs of n numbers, lowest first; limb i counts ``2**(32 * i)``. All limbs
    but the last must be from 0 to 2**32 - 1, and the last one must not be negative. Neither is
    checked. ``bound``: not negative.
    """
    below = np.zeros(len(magnitude[0]), dtype=np.bool_)
    for limb_index, limb in enumerate(magnitude):
        top = limb_index == len(magnitude) - 1
        digit = bound >> (_BITS * limb_index) if top else (bound >> (_BITS * limb_index)) & _LOW
        below = (limb < digit) | ((limb == digit) & below)
    return below
