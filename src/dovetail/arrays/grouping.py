"""Rows by key: equal keys side by side, in hash order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.hashing import stable_hash

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def by_key(
    hash_: Ints, keys: Sequence[pa.Array], rows: Ints
) -> tuple[Ints, Mask, Sequence[pa.Array]]:
    """The ``rows`` (indices into ``hash_`` and ``keys``) with equal keys side by side, in hash
    order and otherwise in the order given.

    Returns ``order``, where ``rows[order]`` is that arrangement; where a new key begins in it; and
    its key columns. Equal hashes are only a hint: keys are compared, and keys that collide are kept
    apart. (Rows with a null in the key, which is no key, may have hashes of their own.)
    """
    order = stable_argsort(hash_[rows])
    arranged = rows[order]
    sorted_hash = hash_[arranged]
    columns = [key.take(pa.array(arranged)) for key in keys]
    new = np.ones(len(rows), dtype=np.bool_)
    new[1:] = sorted_hash[1:] != sorted_hash[:-1]
    same_key = _equal_neighbours(columns)
    if not np.all(same_key | new[1:]):
        split = _split_collisions(columns, np.cumsum(new) - 1)
        order = order[split]
        columns = [column.take(pa.array(split)) for column in columns]
        new[1:] |= ~_equal_neighbours(columns)
    return order, new, columns


def any_null(keys: Sequence[pa.Array], rows: int) -> Mask:
    """Which of ``rows`` keys have a null in them: they equal no other key."""
    null = np.zeros(rows, dtype=np.bool_)
    for key in keys:
        if key.null_count:
            null |= key.is_null().to_numpy(zero_copy_only=False)
    return null


def rank_of_keys(keys: Sequence[pa.Array], hash_: Ints) -> Ints:
    """A number per row in the order of the keys; where a key is nested, of their hashes."""
    if len(hash_) == 0 or any(pa.types.is_nested(key.type) for key in keys):
        return np.unique(hash_, return_inverse=True)[1]
    table = pa.table(list(keys), names=[str(number) for number in range(len(keys))])
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
    """The stable order by group, then time, of rows that already lie by group and arrival; where
    they arrived in order of time that is as they lie.
    """
    same = group[1:] == group[:-1]
    if not np.any(same & (time_us[1:] < time_us[:-1])):
        return np.arange(len(group))
    return np.lexsort((time_us, group))


def bucket_of(hash_: Ints, buckets: int) -> npt.NDArray[np.unsignedinteger]:
    """Each hash's bucket, as the least type that holds their numbers: numpy sorts small ones by
    counting.
    """
    return np.mod(hash_, buckets).astype(np.min_scalar_type(buckets - 1))


def stable_argsort(values: Ints) -> Ints:
    """``np.argsort(values, kind="stable")`` by two unstable sorts, which numpy vectorises."""
    order = np.argsort(values)
    ordered = values[order]
    rank = np.zeros(len(values), dtype=np.int64)
    np.cumsum(ordered[1:] != ordered[:-1], out=rank[1:])
    return np.sort((rank << 32) | order) & 0xFFFFFFFF


def _equal_neighbours(columns: Sequence[pa.Array]) -> Mask:
    """Whether row i + 1 equals row i."""
    if len(columns[0]) == 0:
        return np.zeros(0, dtype=np.bool_)
    return rows_equal([c.slice(1) for c in columns], [c.slice(0, len(c) - 1) for c in columns])


def _split_collisions(columns: Sequence[pa.Array], group: Ints) -> Ints:
    """A stable order of the rows that puts equal keys of one hash group side by side, in the order
    in which they are first seen.

    Many keys may share a hash (those with a null in them that came at one time do), so keys that
    collide are told apart by another one.
    """
    rows = np.arange(len(group))
    alike = _equal_neighbours(columns) | (np.diff(group) != 0)
    crowded = np.zeros(int(group[-1]) + 1, np.bool_)
    crowded[group[1:][~alike]] = True
    own = rows[crowded[group]]
    key = _key_numbers([column.take(pa.array(own)) for column in columns], group[own])
    first = np.full(int(key.max()) + 1, len(group))
    np.minimum.at(first, key, own)
    rows[own] = own[np.lexsort((own, first[key], group[own]))]
    return rows


def _key_numbers(columns: Sequence[pa.Array], group: Ints) -> Ints:
    """A number per row: the same for equal keys of one group, another for others.

    Where keys collide again, each pass tells the first key of each number from the others.
    """
    number = _numbers(group, stable_hash(columns))
    while True:
        order = stable_argsort(number)
        begins = np.append(True, np.diff(number[order]) != 0)
        first = order[np.flatnonzero(begins)][np.cumsum(begins) - 1]
        differs = ~rows_equal(
            [c.take(pa.array(order)) for c in columns], [c.take(pa.array(first)) for c in columns]
        )
        if not differs.any():
            return number
        other = np.zeros(len(number), np.int64)
        other[order[differs]] = 1
        number = _numbers(number, other)


def _numbers(major: Ints, minor: Ints) -> Ints:
    """A number per row, the same where both are, in their order."""
    order = np.lexsort((minor, major))
    begins = (np.diff(major[order]) != 0) | (np.diff(minor[order]) != 0)
    number = np.zeros(len(order), np.int64)
    number[order[1:]] = np.cumsum(begins)
    return number
