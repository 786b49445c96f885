"""Row equality over Arrow columns of any type.

Two rows are equal when all their columns are equal. Null equals null, and NaN equals a NaN of the
same bits. Nested values are compared element by element. Hashes only find candidates; this module
decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]

_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
"""The type that has the bits of a number or a time, by its width."""


def rows_equal(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask:
    """Return for each i whether row i of ``left`` equals row i of ``right``: bool[n], for columns
    of n rows each. Rows are equal if all columns are. Two nulls are equal, and floats are compared
    by their bits, at any depth.

    ``left`` and ``right``: as many columns, at least one, of the same types in pairs. Raises
    ``ValueError`` for another count of columns on one side.

    >>> rows_equal([pa.array([1, None, 3])], [pa.array([1, None, 4])]).tolist()
    [True, True, False]
    """
    equal = np.ones(len(left[0]), dtype=np.bool_)
    for left_column, right_column in zip(left, right, strict=True):
        equal &= arrays_equal(left_column, right_column)
    return equal


def arrays_equal(left: pa.Array, right: pa.Array) -> Mask:
    """Return for each i whether element i of ``left`` equals element i of ``right``: bool[n].
    Floats are compared by their bits, at any depth.

    Two nulls are equal, and so are NaNs of the same bits; 0.0 and -0.0 are not. Both arrays have
    one type and n elements. Lists of a fixed size raise ``ArrowNotImplementedError``.
    """
    both_null = _null_mask(left) & _null_mask(right)
    type_ = left.type
    if pa.types.is_null(type_):
        return both_null
    if pa.types.is_struct(type_):
        equal = ~(_null_mask(left) | _null_mask(right))
        for field in range(type_.num_fields):
            equal &= arrays_equal(pc.struct_field(left, field), pc.struct_field(right, field))
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_):
        equal = _lists_equal(_as_list(left), _as_list(right))
    else:
        if pa.types.is_floating(type_) or (pa.types.is_temporal(type_) and type_.bit_width <= 64):
            left, right = (column.view(_BITS[type_.bit_width]) for column in (left, right))
        if pa.types.is_integer(left.type) and not (left.null_count or right.null_count):
            return left.to_numpy() == right.to_numpy()  # type: ignore[no-any-return]
        equal = pc.equal(left, right).fill_null(False).to_numpy(zero_copy_only=False)
    return equal | both_null


def canonical_key(key: pa.Array) -> pa.Array:
    """Return the key column with equal bits for equal values: one NaN for all, and 0.0 for -0.0.
    Spark normalises its keys in the same way. Nulls stay.

    Floats in structs and lists are made canonical, too, at any depth. Those in maps, large lists
    and lists of a fixed size stay. Arrays of other types are returned as they are.
    """
    if pa.types.is_struct(key.type):
        parts = [canonical_key(part) for part in key.flatten()]
        return pa.StructArray.from_arrays(parts, fields=list(key.type), mask=key.is_null())
    if pa.types.is_list(key.type):
        items = canonical_key(key.flatten())
        ends = np.cumsum(pc.list_value_length(key).fill_null(0).to_numpy())
        offsets = pa.array(np.append(0, ends), pa.int32())
        return pa.ListArray.from_arrays(offsets, items, type=key.type, mask=key.is_null())
    if not pa.types.is_floating(key.type):
        return key
    key = pc.if_else(pc.is_nan(key), pa.scalar(float("nan"), key.type), key)
    return pc.if_else(pc.equal(key, pa.scalar(0.0, key.type)), pa.scalar(0.0, key.type), key)


def _lists_equal(left: pa.Array, right: pa.Array) -> Mask:
    """Return for each i whether list i of ``left`` equals list i of ``right``: bool[n], false where
    either is null or the lengths differ. Elements are compared as in ``arrays_equal``: null equals
    null, floats by their bits. Both arrays have one list type.
    """
    left_length = pc.list_value_length(left).fill_null(-1).to_numpy(zero_copy_only=False)
    right_length = pc.list_value_length(right).fill_null(-1).to_numpy(zero_copy_only=False)
    equal: Mask = (left_length == right_length) & (left_length >= 0)
    aligned = pa.array(equal)
    elements = arrays_equal(left.filter(aligned).flatten(), right.filter(aligned).flatten())
    differing = np.concatenate(([0], np.cumsum(~elements)))
    end = np.cumsum(left_length[equal])
    start = end - left_length[equal]
    equal[equal] = differing[end] == differing[start]
    return equal


def _as_list(array: pa.Array) -> pa.Array:
    """Return a map array as a list array of structs of key and value, any other array as it is."""
    if not pa.types.is_map(array.type):
        return array
    entry = pa.struct([array.type.key_field, array.type.item_field])
    return array.cast(pa.list_(entry))


def _null_mask(array: pa.Array) -> Mask:
    """Return for each element whether it is null: bool[n]."""
    if array.null_count == 0:
        return np.zeros(len(array), dtype=np.bool_)
    return array.is_null().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
