"""Values as int64 keys in Spark's order, and back.

Numbers are ordered by value, -0.0 below 0.0, and one NaN above all others. False is below true;
dates and times go by time; strings and binaries by their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.timeline import Ints, Mask

_LOWER_BITS = np.int64(0x7FFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class OrderedKeys:
    """Arrays of one type as int64 keys. Two values compare as their keys do."""

    type: pa.DataType
    keys: list[Ints]
    """int64[n] per array; arbitrary where the element is null."""
    distinct: pa.Array | None
    """The value of each key where keys are ranks; None where keys are computed from values."""

    def values(self, keys: Ints, present: Mask) -> pa.Array:
        """Return the n values whose keys are ``keys``, null where ``present``, bool[n], is false.
        ``keys``: int64[n], each one of the keys of ``self`` where ``present``, else arbitrary.
        """
        if self.distinct is None:
            return _values_of_keys(keys, self.type, ~present)
        return self.distinct.take(pa.array(keys, mask=~present))


def is_ordered(type_: pa.DataType) -> bool:
    """Return True if ``to_ordered_keys`` takes values of the type: integers, booleans, floats,
    times, decimals, and strings and binaries, also large ones. Nested types have no order.
    """
    return _is_computed(type_) or pa.types.is_decimal(type_) or type_ in _BYTES


def to_ordered_keys(arrays: Sequence[pa.Array]) -> OrderedKeys:
    """Return the values of all arrays as int64 keys: two values compare as their keys do, also
    between the arrays. All NaNs have one key, above all other floats; -0.0 is below 0.0. A null has
    an arbitrary key.

    ``arrays``: at least one, all of one type for which ``is_ordered`` is true. Keys of decimals,
    strings and binaries are ranks among the distinct values of all arrays, from 0. Keys of other
    types depend on the value alone.
    """
    type_ = arrays[0].type
    if _is_computed(type_):
        return OrderedKeys(type_, [_computed_keys(array) for array in arrays], None)
    encoded = pa.concat_arrays(arrays).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    index = encoded.indices.fill_null(0).to_numpy()
    keys = rank[index] if len(rank) else np.zeros(len(index), dtype=np.int64)
    cuts = np.cumsum([len(array) for array in arrays])[:-1]
    return OrderedKeys(type_, np.split(keys, cuts), encoded.dictionary.take(order))


def with_one_nan(values: pa.Array) -> pa.Array:
    """Return the array with one bit pattern for every NaN. -0.0 and nulls stay. An array whose type
    is no float, nested ones included, is returned as it is.
    """
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(np.nan, values.type), values)


_BYTES = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def _is_computed(type_: pa.DataType) -> bool:
    """Return True if the key of a value of this type is computed from that value alone: integers,
    booleans, floats and times. Keys of other ordered types are ranks.
    """
    kinds = ("integer", "boolean", "floating", "temporal")
    return any(getattr(pa.types, f"is_{kind}")(type_) for kind in kinds)


def _computed_keys(values: pa.Array) -> Ints:
    """Return a sort key of each value: int64[n]. Keys compare as the values do, and only equal
    values have equal keys. All NaNs have one key, above all other floats; -0.0 is below 0.0. A null
    has the key of 0 or false.

    ``values``: n integers, booleans, floats or times, with nulls or without. Integers must fit
    int64.
    """
    type_ = values.type
    if pa.types.is_temporal(type_):
        values = values.view(_integer_type(type_))
    elif pa.types.is_floating(type_):
        values = with_one_nan(values).cast(pa.float64()).view(pa.int64())
    keys = values.fill_null(False if pa.types.is_boolean(type_) else 0)
    ints = keys.to_numpy(zero_copy_only=False).astype(np.int64)
    return _in_float_order(ints) if pa.types.is_floating(type_) else ints


def _values_of_keys(keys: Ints, type_: pa.DataType, null: Mask) -> pa.Array:
    """Return the n values of ``type_`` whose sort keys (``_computed_keys``) are ``keys``, null
    where ``null``, bool[n], is true. ``keys``: int64[n], arbitrary there.
    """
    if pa.types.is_floating(type_):
        floats = _in_float_order(keys).view(np.float64)
        return pa.array(floats.astype(type_.to_pandas_dtype()), mask=null)
    if pa.types.is_temporal(type_):
        integer = _integer_type(type_)
        return pa.array(keys.astype(integer.to_pandas_dtype()), mask=null).view(type_)
    return pa.array(keys.astype(type_.to_pandas_dtype()), mask=null)


def _in_float_order(bits: Ints) -> Ints:
    """Turn the bits of doubles, int64[n], into integers that compare as the doubles do: -0.0 below
    0.0. The function is its own inverse.
    """
    return bits ^ ((bits >> 63) & _LOWER_BITS)  # type: ignore[no-any-return]


def _integer_type(type_: pa.DataType) -> pa.DataType:
    """Return the integer type, int32 or int64, of the width of a time, date or duration type."""
    return pa.int32() if type_.bit_width == 32 else pa.int64()
