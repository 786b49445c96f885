"""Spark's hashes without Spark: ``xxhash64`` of keys, and the inverse of its shuffle hash."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.grouping import start_mask

_Words: TypeAlias = "npt.NDArray[np.uint64]"
_Ints: TypeAlias = "npt.NDArray[np.int64]"
_Bytes: TypeAlias = "npt.NDArray[np.uint8]"
_INT32 = 1 << 32
_SEED = 42
_LONG_DIGITS = 18
"""The most digits of a decimal that Spark keeps in a long."""
_STRIPE = 32
"""The bytes that XXH64 mixes into four lanes at a time."""
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def spark_hash(keys: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Compute Spark's ``xxhash64`` of each row's key, column after column, from Spark's seed 42:
    int64[n].

    ``keys``: at least one column, n rows each, with one NaN and without -0.0
    (``equality.canonical_key``). Timestamps and durations are in microseconds, times of day in
    nanoseconds. A null adds nothing to the hash. Raises ``ValueError`` for a map that is not null,
    which Spark does not hash either.

    >>> spark_hash([pa.array([1, 2]), pa.array(["a", None])]).tolist()
    [-8527884376001292090, -3341702809300393011]
    """
    hashes = np.full(len(keys[0]), _SEED, np.uint64)
    for key in keys:
        hashes = _hash_column(key, hashes)
    return hashes.astype(np.int64)


def _hash_column(column: pa.Array, seeds: _Words) -> _Words:
    """Return the hash of each value of ``column``, begun with the value's seed: uint64[n]. A null
    gives its seed.

    ``seeds``: uint64[n], the hash of what precedes each value in its key. Raises ``ValueError`` for
    a map that is not null.
    """
    if column.null_count == 0:
        return _hash_valid(column, seeds)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    hashes: _Words = seeds.copy()
    if valid.any():
        hashes[valid] = _hash_valid(column.drop_null(), seeds[valid])
    return hashes


def _hash_valid(column: pa.Array, seeds: _Words) -> _Words:
    """Return what ``_hash_column`` does, for a column without nulls. Nested values may have
    them.
    """
    type_ = column.type
    if pa.types.is_struct(type_):
        for part in column.flatten():
            seeds = _hash_column(part, seeds)
        return seeds
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _hash_lists(column, seeds)
    if pa.types.is_decimal(type_):
        unscaled = np.frombuffer(column.buffers()[1], np.uint64)
        unscaled = unscaled.reshape(-1, 2)[column.offset : column.offset + len(column)]
        if type_.precision > _LONG_DIGITS:
            return _hash_big_integers(unscaled, seeds)
        return _hash_rows(_bytes_of(np.ascontiguousarray(unscaled[:, 0])), seeds)
    if type_ in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return _hash_binary(column.cast(pa.large_binary()), seeds)
    return _hash_rows(_bytes_of(_java_numbers(column)), seeds)


def _java_numbers(column: pa.Array) -> npt.NDArray[np.generic]:
    """Return the numbers that Spark hashes for a column of fixed width without nulls: an int of
    Java for booleans (0 or 1) and types up to 32 bits, a long for others, a float or a double.
    Decimals are not among these types. Raises ``ValueError`` for a map.
    """
    type_ = column.type
    if pa.types.is_floating(type_):
        return _numpy_of(column)
    if pa.types.is_map(type_):
        raise ValueError("Spark has no hash of maps")
    small = pa.types.is_boolean(type_) or type_.bit_width <= 32
    if pa.types.is_date(type_):
        column = column.cast(pa.int32())
    return _numpy_of(column.cast(pa.int32() if small else pa.int64()))


def _numpy_of(column: pa.Array) -> npt.NDArray[np.generic]:
    """Return the integers or floats of a column without nulls as numpy's array, without a copy."""
    numbers: npt.NDArray[np.generic] = column.to_numpy()
    return numbers


def _bytes_of(numbers: npt.NDArray[np.generic]) -> _Bytes:
    """Return the bytes of n numbers, the lowest first: uint8[n, width]."""
    return numbers.view(np.uint8).reshape(len(numbers), numbers.dtype.itemsize)


def _hash_lists(lists: pa.Array, seeds: _Words) -> _Words:
    """Return the hash of each list, begun with its seed: uint64[n]. Elements follow each other, and
    an empty list gives its seed. ``lists``: without nulls, but elements may be null.
    """
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    elements, first = lists.flatten(), np.cumsum(lengths) - lengths
    hashes: _Words = seeds.copy()
    for index in range(lengths.max(initial=0)):
        rows = np.flatnonzero(lengths > index)
        hashes[rows] = _hash_column(elements.take(pa.array(first[rows] + index)), hashes[rows])
    return hashes


def _hash_binary(column: pa.Array, seeds: _Words) -> _Words:
    """Return the hash of the bytes of each value, begun with its seed: uint64[n]. ``column``: large
    binary, without nulls; values may be empty.
    """
    lengths = pc.binary_length(column).to_numpy()
    order = np.argsort(lengths, kind="stable")
    ordered = column.take(pa.array(order))
    _, offsets, data = ordered.buffers()
    edges = np.frombuffer(offsets, np.int64)[ordered.offset :]
    content = np.frombuffer(data or b"", np.uint8)
    hashes = np.empty_like(seeds)
    for start, stop, length in _runs_of_equal(lengths[order]):
        spans = content[edges[start] : edges[stop]].reshape(stop - start, length)
        hashes[order[start:stop]] = _hash_rows(spans, seeds[order[start:stop]])
    return hashes


def _hash_big_integers(unscaled: _Words, seeds: _Words) -> _Words:
    """Return the hash of each integer, begun with its seed: uint64[n]. As Java's ``BigInteger``
    does, it takes the fewest bytes that hold the number with its sign, the highest first.

    ``unscaled``: uint64[n, 2], the lower and the upper half of each integer of 128 bits.
    """
    digits = _bytes_of(unscaled.ravel()).reshape(-1, 16)[:, ::-1]
    sign = np.where(digits[:, :1] >> 7, np.uint8(255), np.uint8(0))
    # A byte is redundant if it and the next one's first bit repeat the sign.
    same_sign = (digits[:, 1:] >> 7) == (sign & 1)
    redundant = np.logical_and.accumulate((digits[:, :-1] == sign) & same_sign, axis=1).sum(axis=1)
    order = np.argsort(redundant, kind="stable")
    hashes = np.empty_like(seeds)
    for start, stop, count in _runs_of_equal(redundant[order]):
        rows = order[start:stop]
        hashes[rows] = _hash_rows(digits[rows, count:], seeds[rows])
    return hashes


def _runs_of_equal(ascending: _Ints) -> Iterator[tuple[int, int, int]]:
    """Yield the first index, the end (exclusive) and the value of each run of equal values, in
    order; nothing without values. ``ascending``: none negative.
    """
    starts = np.flatnonzero(start_mask(ascending))
    for start, stop in pairwise([*starts.tolist(), len(ascending)]):
        yield start, stop, int(ascending[start])


# XXH64 of 45 bytes: one stripe, then the tail of 13 bytes, as a word of 8, one of 4 and a byte.
#
# | bytes | 0 to 7 | 8 to 15 | 16 to 23 | 24 to 31 | 32 to 39 | 40 to 43 | 44 |
# |---|---|---|---|---|---|---|---|
# | mixed into | lane 0 | lane 1 | lane 2 | lane 3 | the hash | the hash | the hash |
#
# https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
def _hash_rows(spans: _Bytes, seeds: _Words) -> _Words:
    """Return XXH64 of each row of ``spans``, begun with its seed: uint64[n].

    ``spans``: uint8[n, length]; ``length`` may be 0. ``seeds``: uint64[n].
    """
    length = spans.shape[1]
    whole = length - length % _STRIPE
    if whole:
        lanes = [seeds + _P1 + _P2, seeds + _P2, seeds, seeds - _P1]
        for start in range(0, whole, _STRIPE):
            words = _words(spans, start, _STRIPE, np.uint64)
            lanes = [_mix(lane, words[:, number]) for number, lane in enumerate(lanes)]
        hashes = sum(
            (_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)),
            np.zeros(len(seeds), np.uint64),
        )
        for lane in lanes:
            hashes = (hashes ^ _mix(np.uint64(0), lane)) * _P1 + _P4
    else:
        hashes = seeds + _P5
    hashes = hashes + np.uint64(length)
    at = length - length % 8
    for word in _words(spans, whole, at - whole, np.uint64).T:
        hashes = _rotate(hashes ^ _mix(np.uint64(0), word), 27) * _P1 + _P4
    if length - at >= 4:
        word = _words(spans, at, 4, np.uint32)[:, 0].astype(np.uint64)
        hashes = _rotate(hashes ^ (word * _P1), 23) * _P2 + _P3
        at += 4
    for byte in spans[:, at:].T:
        hashes = _rotate(hashes ^ (byte.astype(np.uint64) * _P5), 11) * _P1
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    finished: _Words = hashes ^ (hashes >> np.uint64(32))
    return finished


def _words(
    spans: _Bytes, start: int, size: int, word: type[np.unsignedinteger]
) -> npt.NDArray[np.unsignedinteger]:
    """Return the bytes ``start`` to ``start + size``, exclusive, of each row of ``spans`` as
    little-endian words: ``word``[n, count]. ``size``: a multiple of the word's bytes, perhaps 0.
    """
    return np.ascontiguousarray(spans[:, start : start + size]).view(word)


def _mix(lane: _Words | np.uint64, word: npt.NDArray[np.unsignedinteger]) -> _Words:
    """Return each lane after one round of XXH64 with a word of eight bytes: uint64[n]."""
    mixed: _Words = _rotate(lane + word * _P2, 31) * _P1
    return mixed


def _rotate(words: _Words, bits: int) -> _Words:
    """Return each word rotated to the left by ``bits``, from 1 to 63: uint64[n]."""
    rotated: _Words = (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
    return rotated


def spark_preimage(hashed: int) -> int:
    """Return the int32, perhaps negative, that Spark's shuffle hashes to ``hashed``. Of ``hashed``
    the lower 32 bits count.

    Spark's hash of an integer is Murmur3 (32 bits, seed 42). Each of its steps has an inverse, so
    it is a permutation.

    >>> [spark_preimage(n) for n in range(4)]
    [-1693959553, -1910889132, -1382833682, -876271479]
    """
    mixed = _invert_shift(hashed % _INT32, 16) * pow(0xC2B2AE35, -1, _INT32) % _INT32
    mixed = _invert_shift(mixed, 13) * pow(0x85EBCA6B, -1, _INT32) % _INT32
    mixed = _invert_shift(mixed, 16) ^ 4
    word = _rotate_right((mixed - 0xE6546B64) * pow(5, -1, _INT32) % _INT32, 13) ^ 42
    word = _rotate_right(word * pow(0x1B873593, -1, _INT32) % _INT32, 15)
    preimage = word * pow(0xCC9E2D51, -1, _INT32) % _INT32
    return preimage - _INT32 if preimage >= _INT32 // 2 else preimage


def _invert_shift(mixed: int, bits: int) -> int:
    """Return the 32-bit ``word`` for which ``word ^ (word >> bits)`` is ``mixed``. ``bits`` is at
    least 11.
    """
    return mixed ^ (mixed >> bits) ^ (mixed >> 2 * bits)


def _rotate_right(word: int, bits: int) -> int:
    """Return a 32-bit word rotated to the right by ``bits``, from 0 to 31."""
    return (word >> bits | word << (32 - bits)) % _INT32
