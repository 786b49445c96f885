"""A stable hash of rows, and two hashes in one number.

The stable hash is persisted. Windows, sessions and rows with another key are ordered by it in
state, and it fills the registers of distinct counts. All other rows, of a query and of the test
driver, are ordered by Spark's ``xxhash64`` (``arrays.spark_hash``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
_Words: TypeAlias = "npt.NDArray[np.uint64]"
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_LOW = (1 << 32) - 1


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
