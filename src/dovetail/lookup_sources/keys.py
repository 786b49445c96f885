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


def number_keys(keys: Sequence[pa.Table]) -> tuple[list[Ints], int, list[pa.Array]]:
    """Number the distinct keys of some tables with the same columns, at least one of both.

    Returns three things: for each table the number of each row's key, int64[rows]; the count of
    distinct keys; and the columns of these keys. A key with nulls has the number ``NO_GROUP``, -1,
    and does not count. -0.0 is 0.0, and a NaN equals a NaN. Example, for tables of one column:

        keys                            numbers                       count   distinct keys
        [a, b, a], [c, null, b]         [0, 1, 0], [2, NO_GROUP, 1]   3       [a, b, c]

    Numbers follow the distinct keys, which are in an arbitrary order. Columns are taken by
    position, and must have the same types in all tables.
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
    """Return the position of each of ``keys`` among ``distinct``, int64[keys]; ``NO_GROUP`` if it
    is not there or has a null.

    ``distinct``: distinct keys without nulls. Both tables have the same columns, in order and type;
    names do not count. -0.0 is 0.0, and a NaN equals a NaN.
    """
    (first, second), count, _ = number_keys([distinct, keys])
    position_by_group = np.full(count + 1, NO_GROUP)
    position_by_group[first] = np.arange(len(first))
    position_by_group[-1] = NO_GROUP
    return position_by_group[second]


def find_whole_keys(keys: pa.Array, low: int, high: int) -> Mask:
    """Find the keys that are whole and from ``low`` to ``high``, both included: bool[n]. ``keys``:
    whole numbers or decimals, without nulls. Whole numbers must fit int64.
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
    """Find the keys within the years 1 to 9999, both included, which Python's dates have: bool[n].
    ``keys``: date32 or timestamps in microseconds, without nulls.
    """
    if pa.types.is_timestamp(keys.type):
        return find_whole_keys(
            keys.cast(pa.int64()), _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1
        )
    return find_whole_keys(keys.cast(pa.int32()), _FIRST_DAY, _LAST_DAY)


def find_too_large_keys(by: Sequence[str], keys: pa.Table, stored: pa.Schema) -> Mask:
    """Find the keys with a whole number outside the range of its column in the store: bool[n]. Keys
    of other types all fit.

    ``by``: the columns of ``keys`` in order, by their names in ``stored``. ``stored``: the store's
    columns. A key of whole numbers must have a column of signed whole numbers there, as
    ``refuse_other_kinds`` checks.
    """
    large = np.zeros(keys.num_rows, np.bool_)
    for name, column in zip(by, keys.columns, strict=True):
        if pa.types.is_integer(column.type):
            bound = 2 ** (stored.field(name).type.bit_width - 1)
            large |= ~find_whole_keys(column, -bound, bound - 1)
    return large


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
    """Find the rows in which all of some boolean Arrow columns are true: bool[n]. There must be a
    column, and none may have nulls.
    """
    mask: Mask = np.logical_and.reduce([c.to_numpy(zero_copy_only=False) for c in conditions])
    return mask


def refuse_twice(title: str, what: str, numbers: Ints) -> None:
    """Raise ``DataError`` if a number occurs twice: a lookup found two rows with one key.

    ``title``: the source in errors. ``what``: the key in words, such as ``its primary key``.
    ``numbers``: the number of each row's key, int64[rows].
    """
    if len(np.unique(numbers)) < len(numbers):
        raise DataError(
            title,
            f"a lookup found two rows that are one by {what}",
            "Declare as key= and index(unique=True) only what the store enforces",
        )
