"""Keys of lookups: equal keys, the rows that have a key, and the keys that a store could have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.equality import canonical_key
from dovetail.arrays.grouping import any_null, by_key
from dovetail.arrays.hashing import stable_hash
from dovetail.arrays.timeline import Ints, Mask
from dovetail.errors import DataError
from dovetail.laws.joins.delta_join import NO_GROUP
from dovetail.lookup_sources.conversion import is_text

_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = pa.array([date.min, date.max]).cast(pa.int32()).to_pylist()
"""The first and the last day that Python's dates have, in days since 1970."""


def index_distinct_keys(keys: Sequence[pa.Table]) -> tuple[list[Ints], int, list[pa.Array]]:
    """Index the distinct keys of some tables with the same columns, at least one of both. A key is
    a whole row.

    Return three things: for each table the index of each row's key, int64[rows]; the count of
    distinct keys; and an array of these keys for each column. A key with nulls has the index
    ``NO_GROUP``, -1, and does not count. -0.0 is 0.0, and a NaN equals a NaN. Example, for tables
    of one column:

        keys                            indices                       count   distinct keys
        [a, b, a], [c, null, b]         [0, 1, 0], [2, NO_GROUP, 1]   3       [a, b, c]

    An index is a position among the distinct keys, from 0. These are in an arbitrary order. Columns
    are taken by position, and must have the same types in all tables.
    """
    lengths = [table.num_rows for table in keys]
    columns = [
        pa.chunked_array([c for t in keys for c in t.column(i).chunks], keys[0].schema.types[i])
        for i in range(keys[0].num_columns)
    ]
    whole = [canonical_key(column.combine_chunks()) for column in columns]
    rows = np.flatnonzero(~any_null(whole, sum(lengths)))
    order, new, arranged = by_key(stable_hash(whole), whole, rows)
    group = np.full(sum(lengths), NO_GROUP)
    group[rows[order]] = np.cumsum(new) - 1
    first = pa.array(np.flatnonzero(new))
    edges = np.cumsum(lengths)[:-1]
    return np.split(group, edges), int(new.sum()), [column.take(first) for column in arranged]


def positions_among(distinct: pa.Table, keys: pa.Table) -> Ints:
    """Return the position of each row of ``keys`` among the rows of ``distinct``, int64[keys] from
    0; ``NO_GROUP``, -1, if it is not there or has a null.

    ``distinct``: distinct keys without nulls. Both tables have the same columns, in order and type;
    names do not count. -0.0 is 0.0, and a NaN equals a NaN.
    """
    (first, second), count, _ = index_distinct_keys([distinct, keys])
    position_by_group = np.full(count + 1, NO_GROUP)
    position_by_group[first] = np.arange(len(first))
    position_by_group[-1] = NO_GROUP
    return position_by_group[second]


def find_rows_of_own_query(key: Ints, step: int, counts: Sequence[int]) -> Mask:
    """Return a mask of n rows that keeps each for the query that asked for its key: bool[n]. A
    store that compares loosely, such as without case, gives a row to other queries, too.

    ``key``: the position of each row's key, int64[n], ``NO_GROUP`` for a key that no query asked
    for. Rows come query by query. ``step``: the number of keys that each query but the last asked
    for, in the order of their positions. ``counts``: the number of rows that each query gave.
    """
    query = np.repeat(np.arange(len(counts)), np.array(counts, np.int64))
    return key // step == query  # type: ignore[no-any-return]


def find_whole_keys(keys: pa.Array, low: int, high: int) -> Mask:
    """Return a mask of the n ``keys`` that are whole and from ``low`` to ``high``, both included:
    bool[n]. ``keys``: one column of whole numbers or decimals, without nulls. Whole numbers must
    fit int64.
    """
    if pa.types.is_decimal(keys.type):
        wide = keys.cast(pa.decimal256(76, keys.type.scale))
        bounds = [pa.scalar(Decimal(bound), wide.type) for bound in (low, high)]
        return find_all_true(
            pc.equal(pc.round(wide), wide),
            pc.less_equal(bounds[0], wide),
            pc.less_equal(wide, bounds[1]),
        )
    numbers = keys.cast(pa.int64()).to_numpy()
    return (numbers >= low) & (numbers <= high)  # type: ignore[no-any-return]


def find_calendar_keys(keys: pa.Array) -> Mask:
    """Return a mask of the n ``keys`` within the years 1 to 9999, both included, which Python's
    dates have: bool[n]. ``keys``: one column of date32 or of timestamps in microseconds, without
    nulls.
    """
    if pa.types.is_timestamp(keys.type):
        return find_whole_keys(
            keys.cast(pa.int64()), _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1
        )
    return find_whole_keys(keys.cast(pa.int32()), _FIRST_DAY, _LAST_DAY)


def find_out_of_range_keys(by: Sequence[str], keys: pa.Table, stored: pa.Schema) -> Mask:
    """Return a mask of the n rows of ``keys`` with a whole number outside the range of its column
    in the store, above or below: bool[n]. The least and the largest number of the range are inside.
    Columns of other types are never outside.

    ``keys``: without nulls; whole numbers must fit int64. ``by``: the columns of ``keys`` in order,
    by their names in ``stored``. ``stored``: the store's columns. A key of whole numbers must have
    a column of signed whole numbers there, as ``refuse_other_kinds`` checks. Raises ``KeyError``
    for a name that ``stored`` lacks.
    """
    outside = np.zeros(keys.num_rows, np.bool_)
    for name, column in zip(by, keys.columns, strict=True):
        if pa.types.is_integer(column.type):
            bound = 2 ** (stored.field(name).type.bit_width - 1)
            outside |= ~find_whole_keys(column, -bound, bound - 1)
    return outside


def refuse_types(
    title: str,
    by: Sequence[str],
    keys: pa.Table,
    kinds: Sequence[Callable[[pa.DataType], bool]],
    remedy: str,
) -> None:
    """Raise ``DataError`` for keys of a type that a store does not compare exactly, even if there
    is no key.

    ``title``: the source in errors. ``by``: the names of the columns of ``keys``, in order.
    ``kinds``: tests of an Arrow type, one of which each column must pass. ``remedy``: the advice of
    the error, which names the types that pass.
    """
    for name, column in zip(by, keys.columns, strict=True):
        if not any(kind(column.type) for kind in kinds):
            raise DataError(
                title, f"column {name!r} of type {column.type} cannot be looked up", remedy
            )


def refuse_other_kinds(title: str, by: Sequence[str], keys: pa.Table, stored: pa.Schema) -> None:
    """Raise ``DataError`` unless each key column and its column in the store are both whole
    numbers, both booleans or both texts. Other types are not compared to the letter.

    ``title``: the source in errors. ``by``: the columns of ``keys`` in order, by their names in
    ``stored``. ``stored``: the store's columns, among them all of ``by``.
    """
    kinds = (pa.types.is_integer, pa.types.is_boolean, is_text)
    for name, column in zip(by, keys.columns, strict=True):
        there = stored.field(name).type
        if not any(kind(column.type) and kind(there) for kind in kinds):
            raise DataError(
                title,
                f"column {name!r} is {there} there, which cannot be looked up by keys of type "
                f"{column.type}",
                "Join by whole numbers or texts that have the same type in the store",
            )


def find_all_true(*conditions: pa.Array | pa.ChunkedArray) -> Mask:
    """Return a mask of the n rows in which all of some boolean Arrow columns are true: bool[n].
    There must be a column; all have the same length and no nulls.
    """
    mask: Mask = np.logical_and.reduce([c.to_numpy(zero_copy_only=False) for c in conditions])
    return mask


def refuse_repeated_keys(title: str, key_in_words: str, key_indices: Ints) -> None:
    """Raise ``DataError`` if a value occurs twice in ``key_indices``: a lookup found two rows with
    one key.

    ``title``: the source in errors. ``key_in_words``: such as ``its primary key``.
    ``key_indices``: for each row found the index of its key, int64[rows], equal for equal keys.
    ``NO_GROUP`` (-1) is a value like any other, so rows without a key must be left out.
    """
    if len(np.unique(key_indices)) < len(key_indices):
        raise DataError(
            title,
            f"a lookup found two rows that are one by {key_in_words}",
            "Declare as key= and index(unique=True) only what the store enforces",
        )
