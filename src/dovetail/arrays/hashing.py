"""Hashes without Spark: a stable hash of rows, two hashes in one number, Spark's ``xxhash64``, and
the inverse of Spark's shuffle hash.

The stable hash is persisted. Windows, sessions, rows with another key and the test driver's
snapshots are ordered by it in state, and it fills the registers of distinct counts. All other rows
of a query are ordered by Spark's ``xxhash64``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Context
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

Ints = npt.NDArray[np.int64]
_Words: TypeAlias = "npt.NDArray[np.uint64]"
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_INT32 = 1 << 32
_LOW = (1 << 32) - 1
_SPARK_SEED = 42
_LONG_DIGITS, _DIGITS_MAX = 18, 38
"""The digits of a decimal that Spark keeps in a long, and of any decimal."""


def stable_hash(keys: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Hash each row's key, the same in every process and release: int64[n].

    Each value becomes 64-bit words, mixed by the finaliser of SplitMix64. A fixed-width value gives
    its bytes; a string, binary or list gives a polynomial of its elements. The work is columnar
    throughout.

    ``keys``: at least one column, n rows each, with equal bits for equal values
    (``equality.canonical_key``). A null hashes alike in all types. Raises ``ValueError`` for a map,
    at any depth, unless all its values are null.
    """
    mixed = np.zeros(len(keys[0]), dtype=np.uint64)
    for column in keys:
        mixed = _mix_words(mixed + _hash_array(column))
    return mixed.astype(np.int64)


def _mix_words(words: _Words) -> _Words:
    """Mix each word by one step of SplitMix64, and return as many words. Different words give
    different ones.
    """
    mixed: _Words = words + _FACTOR
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _hash_array(array: pa.Array) -> _Words:
    """Return a word (64 bits) per element of an array: uint64[n], 0 for null. Raises ``ValueError``
    for a map, at any depth, unless all its values are null.
    """
    type_ = array.type
    words = np.zeros(len(array), dtype=np.uint64)
    if array.null_count == len(array):
        return words
    if pa.types.is_struct(type_):
        for field in range(type_.num_fields):
            words = _mix_words(words + _hash_array(pc.struct_field(array, field)))
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        words = _hash_runs(_hash_array(array.flatten()), lengths.astype(np.int64))
    elif type_ in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        array = array.cast(pa.large_binary())
        _, offsets, data = array.buffers()
        end = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        elements = np.frombuffer(data or b"", np.uint8)[end[0] : end[-1]]
        words = _hash_runs(elements.astype(np.uint64), np.diff(end))
    else:
        words = _hash_bytes(array.cast(pa.uint8()) if pa.types.is_boolean(type_) else array)
    if array.null_count == 0:
        return words
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return np.where(valid, words, np.uint64(0))


def _hash_runs(elements: _Words, lengths: npt.NDArray[np.int64]) -> _Words:
    """Return a word per run of ``elements``: uint64[runs], its polynomial, mixed with its length.
    ``elements``: uint64, a word each. Runs lie one after another, without gaps.

    ``lengths``: int64[runs], the count of elements of each run, which may be 0; at least one run.
    """
    end = np.cumsum(lengths)
    start = end - lengths
    powers = np.full(int(lengths.max()) + 1, _FACTOR)
    powers[0] = 1
    np.cumprod(powers, out=powers)
    offset = np.arange(len(elements)) - np.repeat(start, lengths)
    terms = np.zeros(len(elements) + 1, dtype=np.uint64)
    np.cumsum((elements + np.uint64(1)) * powers[offset], out=terms[1:])
    return _mix_words(terms[end] - terms[start] + lengths.astype(np.uint64))


def _hash_bytes(array: pa.Array) -> _Words:
    """Return a word per element of an array of fixed width, a whole count of bytes: uint64[n],
    arbitrary for null.
    """
    width = array.type.bit_width // 8
    stored = np.frombuffer(array.buffers()[1], np.uint8)
    stored = stored[array.offset * width : (array.offset + len(array)) * width]
    if width == 8:
        return _mix_words(stored.view("<u8"))
    padded = np.zeros((len(array), -(-width // 8) * 8), dtype=np.uint8)
    padded[:, :width] = stored.reshape(len(array), width)
    words = np.zeros(len(array), dtype=np.uint64)
    for word in padded.view("<u8").T:
        words = _mix_words(words + word)
    return words


def combine_hashes(major_hash: Ints, minor_hash: Ints) -> Ints:
    """Combine the hashes of two keys into one int64 per row: the upper 32 bits of ``major_hash``,
    then the lower 32 bits of ``minor_hash``. So rows that have the major key in common lie side by
    side in state. Different pairs may have one result. Both: int64[n].

    >>> hashes = np.array([0x11112222AAAA, 0x33334444BBBB])
    >>> [f"{hash_:x}" for hash_ in combine_hashes(hashes, np.array([7, 8]))]
    ['111100000007', '333300000008']
    """
    return (major_hash & ~_LOW) | (minor_hash & _LOW)


def combined_hash_range(major_hash: Ints) -> tuple[Ints, Ints]:
    """Return the least and the greatest result, both inclusive, that ``combine_hashes`` gives for
    ``major_hash`` and any minor hash: int64[n] each. ``major_hash``: int64[n].

    >>> [f"{h[0]:x}" for h in combined_hash_range(np.array([0x11112222AAAA]))]
    ['111100000000', '1111ffffffff']
    """
    return major_hash & ~_LOW, major_hash | _LOW


def lower_hash_bits(minor_hash: Ints) -> Ints:
    """Return the lower 32 bits of ``minor_hash``, int64[n], the part that ``combine_hashes`` keeps
    of it: int64[n], from 0 to 2**32 - 1.
    """
    return minor_hash & _LOW


def separate_key_spaces(hash_: Ints, key_space: npt.NDArray[np.integer], spaces: int) -> Ints:
    """Move the hashes of each key space (such as one kind of key) into a range of their own:
    int64[n]. So keys of different spaces have different hashes.

    Hashes keep their order within a space, and lose their lowest bits. So different hashes of one
    space may become equal.

    ``hash_``: int64[n]. ``key_space``: the index of each key's space, from 0 to ``spaces - 1``.
    ``spaces``: the count of spaces, at least 2.

    >>> top = separate_key_spaces(np.array([-(2**63), 2**63 - 1, -(2**63)]), np.array([0, 0, 1]), 2)
    >>> top.tolist() == [-(2**63), -1, 0]
    True
    """
    bits = np.uint64((spaces - 1).bit_length())
    sign = np.uint64(1 << 63)
    within = (hash_.view(np.uint64) ^ sign) >> bits
    ranged = within | (key_space.astype(np.uint64) << (np.uint64(64) - bits))
    moved: Ints = (ranged ^ sign).view(np.int64)
    return moved


def spark_hash(keys: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Compute Spark's ``xxhash64`` of each row's key: int64[n]. The function works row by row, so
    use it for few rows.

    ``keys``: at least one column, n rows each, with one NaN and without -0.0
    (``equality.canonical_key``). Timestamps and durations are in microseconds, times of day in
    nanoseconds. A null adds nothing to the hash. Raises ``struct.error`` for a map that is not
    null, which Spark does not hash either.

    >>> spark_hash([pa.array([1, 2]), pa.array(["a", None])]).tolist()
    [-8527884376001292090, -3341702809300393011]
    """
    rows = zip(*(_times_as_integers(key).to_pylist() for key in keys), strict=True)
    types = [_plain_type(key.type) for key in keys]
    hashes = []
    for row in rows:
        hash_ = _SPARK_SEED
        for value, type_ in zip(row, types, strict=True):
            hash_ = _spark_hash_value(value, type_, hash_)
        hashes.append(hash_)
    return np.array(hashes, np.uint64).astype(np.int64)


def _plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type with timestamps, durations and times of day as int64 and dates as int32, in
    structs and lists at any depth. Other types are returned as they are.
    """
    if pa.types.is_date(type_):
        return pa.int32()
    if pa.types.is_timestamp(type_) or pa.types.is_duration(type_) or pa.types.is_time64(type_):
        return pa.int64()
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(_plain_type(type_.value_type))
    return type_


def _times_as_integers(key: pa.Array) -> pa.Array:
    """Return the key column with timestamps, durations and times of day as int64 and dates as
    int32, in structs and lists at any depth.
    """
    return key.cast(_plain_type(key.type))


def _spark_hash_value(value: Any, type_: pa.DataType, seed: int) -> int:
    """Hash one value on from ``seed`` and return the new hash; both are from 0 to ``2**64 - 1``.
    ``value``: as pyarrow's ``to_pylist`` returns it for ``type_``, times as integers. Numbers count
    as the little-endian bytes of a Java int or long. Nested values are hashed part by part; a null
    returns ``seed``.
    """
    if value is None:
        return seed
    if pa.types.is_struct(type_):
        for field in type_:
            seed = _spark_hash_value(value[field.name], field.type, seed)
        return seed
    if pa.types.is_list(type_):
        for element in value:
            seed = _spark_hash_value(element, type_.value_type, seed)
        return seed
    return xxhash.xxh64_intdigest(_java_bytes(value, type_), seed)


def _java_bytes(value: Any, type_: pa.DataType) -> bytes:
    """Return the bytes that Spark's ``xxhash64`` reads for a scalar of ``type_`` that is not null.
    Times and dates are integers here (``_times_as_integers``). Raises ``struct.error`` for a map.
    """
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if pa.types.is_floating(type_):
        return struct.pack("<d" if type_ == pa.float64() else "<f", value)
    if pa.types.is_decimal(type_):
        unscaled = int(value.scaleb(type_.scale, Context(prec=_DIGITS_MAX)))
        if type_.precision > _LONG_DIGITS:
            return unscaled.to_bytes(
                (unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True
            )
        return struct.pack("<q", unscaled)
    return struct.pack("<q" if type_ == pa.int64() else "<i", value)


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
