"""Group rows by key: equal keys side by side, in hash order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.hashing import stable_hash

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_SPARSE = 16
"""Numbers are sorted if they are fewer than their range divided by this."""


def by_key(
    hash_: Ints, keys: Sequence[pa.Array], rows: Ints
) -> tuple[Ints, Mask, Sequence[pa.Array]]:
    """Arrange ``rows`` by key, keys in hash order.

    Returns three results. ``order``, int64[m], is such that ``rows[order]`` lists the m rows by
    key. A mask, bool[m], marks the first row of each key in that order. The last is the list of key
    columns, m rows each, in that order. Rows of one key keep the order given.

    ``rows``: int64[m], indices into ``hash_`` and ``keys``. ``hash_``: int64, the hash of each
    row's key. ``keys``: at least one column, with equal bits for equal values
    (``canonical_key``). Equal keys must have equal hashes, but equal hashes are only a hint: keys
    are compared. Keys whose hashes collide are kept apart, in the order in which they are first
    seen. Rows with a null in the key may have different hashes, and are different keys then. With
    equal hashes, two nulls are equal.

    | row | key | hash | by hash   | by key (result) | first of its key |
    |-----|-----|------|-----------|-----------------|------------------|
    | 0   | a   | 7    | row 1 (b) | row 1 (b)       | yes              |
    | 1   | b   | 3    | row 2 (c) | row 3 (b)       | no               |
    | 2   | c   | 3    | row 3 (b) | row 2 (c)       | yes              |
    | 3   | b   | 3    | row 0 (a) | row 0 (a)       | yes              |
    | 4   | a   | 7    | row 4 (a) | row 4 (a)       | no               |
    """
    order = stable_argsort(hash_[rows])
    arranged = rows[order]
    sorted_hash = hash_[arranged]
    columns = [key.take(pa.array(arranged)) for key in keys]
    new = start_mask(sorted_hash)
    same_key = _equal_neighbours(columns)
    if not np.all(same_key | new[1:]):
        split = _split_collisions(columns, np.cumsum(new) - 1)
        order = order[split]
        columns = [column.take(pa.array(split)) for column in columns]
        new[1:] |= ~_equal_neighbours(columns)
    return order, new, columns


def any_null(keys: Sequence[pa.Array], rows: int) -> Mask:
    """Find the rows that have a null in any key column: bool[rows], all false without columns. In
    SQL such a key equals no other. ``rows``: the length of each column.
    """
    null = np.zeros(rows, dtype=np.bool_)
    for key in keys:
        if key.null_count:
            null |= key.is_null().to_numpy(zero_copy_only=False)
    return null


def rank_of_keys(keys: Sequence[pa.Array], hash_: Ints) -> Ints:
    """Return a rank per row, from 0 without gaps: int64[n]. Equal keys have one rank, and two nulls
    are equal. Ranks ascend with the keys, column by column, NaN after other floats, nulls last.

    ``keys``: at least one column of n rows, with equal bits for equal values (``canonical_key``).
    ``hash_``: int64[n], equal for equal keys. If a key column is nested, ranks are those of the
    hashes. Keys whose hashes collide then share one.

    >>> rank_of_keys([pa.array([3, None, 1, 3])], np.array([1, 2, 3, 1])).tolist()
    [1, 2, 0, 1]
    """
    if len(hash_) == 0 or any(pa.types.is_nested(key.type) for key in keys):
        return np.unique(hash_, return_inverse=True)[1]
    table = pa.table(list(keys), names=[str(column_index) for column_index in range(len(keys))])
    order = pc.sort_indices(table, [(name, "ascending") for name in table.schema.names])
    arranged = order.to_numpy()
    same = rows_equal(
        [key.take(order.slice(1)) for key in keys],
        [key.take(order.slice(0, len(order) - 1)) for key in keys],
    )
    rank = np.zeros(len(arranged), dtype=np.int64)
    rank[arranged[1:]] = np.cumsum(~same)
    return rank


def by_group_and_time(group: Ints, time_us: Ints) -> Ints:
    """Return the stable order by (group, time) of n rows that lie by (group, arrival), as indices
    of rows: int64[n]. Rows of one group and time stay in the order of arrival. ``group``: int64[n],
    non-decreasing. ``time_us``: int64[n], in microseconds.

    If no time is less than the one before it in its group, the result is 0 to n - 1.
    """
    same = group[1:] == group[:-1]
    if not np.any(same & (time_us[1:] < time_us[:-1])):
        return np.arange(len(group))
    return np.lexsort((time_us, group))


def start_mask(*columns: Ints) -> Mask:
    """Find the rows that differ from the one before them in any of ``columns``: bool[n], true for
    the first row, too. ``columns``: at least one, int64[n] each.

    >>> start_mask(np.array([4, 4, 7, 7]), np.array([1, 1, 1, 2])).tolist()
    [True, False, True, True]
    """
    differs = reduce(or_, (values[1:] != values[:-1] for values in columns))
    return np.append(True, differs)[: len(columns[0])]


def last_of_each(numbers: Ints) -> Ints:
    """Return the index of the last occurrence of each distinct value of ``numbers``, ascending:
    int64, one per distinct value.

    ``numbers``: int64[n], from 0. Memory grows with the largest, so they should have few gaps, such
    as the indices of groups.

    >>> last_of_each(np.array([4, 7, 4, 5])).tolist()
    [1, 2, 3]
    """
    last = np.full(int(numbers.max(initial=-1)) + 1, -1)
    last[numbers] = np.arange(len(numbers))
    return np.sort(last[last >= 0])


def bucket_of(hash_: Ints, buckets: int) -> npt.NDArray[np.unsignedinteger]:
    """Return the index of the bucket of each hash, ``hash mod buckets``, from 0 to ``buckets - 1``.
    ``hash_``: int64[n], perhaps negative. ``buckets``: the count of buckets, at least 1. The result
    has the smallest unsigned type that holds it, because numpy sorts small integers by counting.
    """
    return np.mod(hash_, buckets).astype(np.min_scalar_type(buckets - 1))


# numpy sorts numbers faster than it finds their order, so each value is sorted together with its
# index: the upper bits are the value's, the lower ones are the index. A million rows leave 43 bits
# to values, enough for the microseconds of 100 days. Wider values are cut off at their lower end,
# where few hashes differ alone. An example with digits in place of bits, the last one cut off:
#
# | index | value | value and index, sorted | by its upper part | result |
# |-------|-------|-------------------------|-------------------|--------|
# | 0     | 27    | 1 and 1                 | 1                 | 1      |
# | 1     | 15    | 2 and 0                 | 0, out of order   | 3      |
# | 2     | 31    | 2 and 3                 | 3, out of order   | 0      |
# | 3     | 24    | 3 and 2                 | 2                 | 2      |
#
# Only rows whose upper part has values out of order are sorted again.
def stable_argsort(values: Ints) -> Ints:
    """Return the indices that sort ``values``, equal values in the order given: int64[n], as
    ``np.argsort(values, kind="stable")``. It is faster, by one vectorised sort or, if the values
    ascend, by none. ``values``: int64[n].
    """
    if not np.any(values[1:] < values[:-1]):
        return np.arange(len(values))
    low, high = int(values.min()), int(values.max())
    index_bits = len(values).bit_length()
    cut_bits = max((high - low).bit_length() - (63 - index_bits), 0)
    # The difference from the lowest value needs up to 64 bits.
    above = values.view(np.uint64) - np.uint64(low % 2**64)
    packed = (above >> np.uint64(cut_bits)).view(np.int64) << index_bits
    packed |= np.arange(len(values))
    packed.sort()
    order: Ints = packed & ((1 << index_bits) - 1)
    if not cut_bits:
        return order
    ordered = values[order]
    falls = np.flatnonzero(ordered[1:] < ordered[:-1])
    if len(falls):
        part = np.cumsum(np.append(0, np.diff(packed >> index_bits) != 0))
        crowded = np.zeros(int(part[-1]) + 1, np.bool_)
        crowded[part[falls]] = True
        again = crowded[part]
        order[again] = order[again][np.argsort(ordered[again], kind="stable")]
    return order


# Rows that are equal in the keys so far lie side by side, and only they are sorted by the next key:
#
# | row | last key | first key | by the last key | runs of equal rows | result |
# |-----|----------|-----------|-----------------|--------------------|--------|
# | 0   | 7        | 4         | 1               | 1                  | 1      |
# | 1   | 3        | 9         | 0               | 0, 2               | 2      |
# | 2   | 7        | 1         | 2               |                    | 0      |
# | 3   | 8        | 5         | 3               | 3                  | 3      |
def lexsort(keys: Sequence[Ints]) -> Ints:
    """Return the indices that sort n rows by several keys, the last key first: int64[n], as
    ``np.lexsort(keys)``. Rows that tie keep their order. It is faster, above all if a key is in
    order or has few equal rows. ``keys``: at least one, int64[n] each.
    """
    order = stable_argsort(keys[-1])
    ordered = keys[-1][order]
    same = ordered[1:] == ordered[:-1]
    for key in keys[-2::-1]:
        ordered = key[order]
        if np.any(same & (ordered[1:] < ordered[:-1])):
            equal = np.flatnonzero(np.append(same, False) | np.append(False, same))
            run = np.append(0, np.cumsum(~same))[equal]
            within = stable_argsort(ordered[equal])
            within = equal[within[stable_argsort(run[within])]]
            order[equal], ordered[equal] = order[within], ordered[within]
        same &= ordered[1:] == ordered[:-1]
    return order


def argsort_distinct(numbers: Ints, below: int) -> Ints:
    """Return the indices that sort distinct numbers from 0 to ``below - 1``: int64[n], mostly
    without a sort. ``numbers``: int64[n]; duplicates are not noticed.

    >>> argsort_distinct(np.array([5, 0, 3]), 6).tolist()
    [1, 2, 0]
    """
    if len(numbers) < below // _SPARSE:
        return np.argsort(numbers)
    index = np.full(below, -1)
    index[numbers] = np.arange(len(numbers))
    return index if len(numbers) == below else index[index >= 0]


def _equal_neighbours(columns: Sequence[pa.Array]) -> Mask:
    """Return for each row but the first whether it equals the row before it: bool[n - 1], or
    bool[0] for no rows. Two nulls are equal, and floats are compared by their bits. ``columns``: at
    least one, n rows each.
    """
    if len(columns[0]) == 0:
        return np.zeros(0, dtype=np.bool_)
    return rows_equal([c.slice(1) for c in columns], [c.slice(0, len(c) - 1) for c in columns])


# Two keys share hash group 0, and group 1 has one key. Only rows of crowded groups move:
#
# | row | group | key | crowded | number | first row of the number | result |
# |-----|-------|-----|---------|--------|-------------------------|--------|
# | 0   | 0     | b   | yes     | 0      | 0                       | row 0  |
# | 1   | 0     | c   | yes     | 1      | 1                       | row 2  |
# | 2   | 0     | b   | yes     | 0      | 0                       | row 1  |
# | 3   | 1     | a   |         |        |                         | row 3  |
# | 4   | 1     | a   |         |        |                         | row 4  |
def _split_collisions(columns: Sequence[pa.Array], group: Ints) -> Ints:
    """Return a stable order of n rows, as indices, that puts equal keys of one hash group side by
    side: int64[n]. Within a hash group keys come in the order in which they are first seen.

    ``columns``: the key columns, n rows by hash group, at least one. ``group``: int64[n], the index
    of each row's hash group, ascending from 0 without gaps.

    Many keys may share a hash: keys with a null that arrived at one time do. Colliding keys are
    told apart by a second hash.
    """
    rows = np.arange(len(group))
    alike = _equal_neighbours(columns) | (np.diff(group) != 0)
    crowded = np.zeros(int(group[-1]) + 1, np.bool_)
    crowded[group[1:][~alike]] = True
    crowded_row = rows[crowded[group]]
    key = _key_numbers(
        [column.take(pa.array(crowded_row)) for column in columns], group[crowded_row]
    )
    first = np.full(int(key.max()) + 1, len(group))
    np.minimum.at(first, key, crowded_row)
    rows[crowded_row] = crowded_row[np.lexsort((crowded_row, first[key], group[crowded_row]))]
    return rows


# Keys whose second hashes collide, too, in groups 0 and 1. A pass keeps the first key of each
# number and gives the others of that number a common one:
#
# | row | group | key | by hashes | after pass 1 | after pass 2 |
# |-----|-------|-----|-----------|--------------|--------------|
# | 0   | 0     | b   | 0         | 0            | 0            |
# | 1   | 0     | c   | 0         | 1            | 1            |
# | 2   | 0     | d   | 0         | 1            | 2            |
# | 3   | 0     | b   | 0         | 0            | 0            |
# | 4   | 1     | a   | 1         | 2            | 3            |
def _key_numbers(columns: Sequence[pa.Array], group: Ints) -> Ints:
    """Return an id per row, from 0 without gaps: int64[n]. Rows share an id if they have equal keys
    in one group, and only then. ``columns``: the key columns, at least one, n rows each, at least
    one row. ``group``: int64[n], the hash group of each row.

    If keys collide under the second hash, too, each pass separates the first key of an id from the
    rest.
    """
    key_number = _dense_rank(group, stable_hash(columns))
    while True:
        order = stable_argsort(key_number)
        begins = start_mask(key_number[order])
        first = order[np.flatnonzero(begins)][np.cumsum(begins) - 1]
        differs = ~rows_equal(
            [c.take(pa.array(order)) for c in columns], [c.take(pa.array(first)) for c in columns]
        )
        if not differs.any():
            return key_number
        other = np.zeros(len(key_number), np.int64)
        other[order[differs]] = 1
        key_number = _dense_rank(key_number, other)


def _dense_rank(major: Ints, minor: Ints) -> Ints:
    """Return the rank of each of n rows by (major, minor), from 0 without gaps, equal for equal
    pairs: int64[n]. ``major``, ``minor``: int64[n].
    """
    order = np.lexsort((minor, major))
    begins = (np.diff(major[order]) != 0) | (np.diff(minor[order]) != 0)
    rank = np.zeros(len(order), np.int64)
    rank[order[1:]] = np.cumsum(begins)
    return rank
