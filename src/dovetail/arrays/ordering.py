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
        """Return the values whose keys are ``keys``, null where not ``present``: n values.
        ``keys``: int64[n], each among the keys of ``self`` where ``present``, else arbitrary.
        """
        if self.distinct is None:
            return _values_of_keys(keys, self.type, ~present)
        return self.distinct.take(pa.array(keys, mask=~present))


def is_ordered(type_: pa.DataType) -> bool:
    """Return True if values of the type have an order, so that ``to_ordered_keys`` takes them."""
    return _is_computed(type_) or pa.types.is_decimal(type_) or type_ in _BYTES


def to_ordered_keys(arrays: Sequence[pa.Array]) -> OrderedKeys:
    """Return the values of arrays of one type as int64 keys that compare alike in all of them. A
    null has the key of some value.

    ``arrays``: at least one, of a type for which ``is_ordered`` is true. Ranks are shared by all of
    them.
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
    """Return the values with one bit pattern for every NaN. -0.0 stays, as do values that are no
    floats.
    """
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(np.nan, values.type), values)


_BYTES = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def _is_computed(type_: pa.DataType) -> bool:
    """Say whether keys of values of this type are computed from the value alone. Keys of other
    ordered types are ranks.
    """
    kinds = ("integer", "boolean", "floating", "temporal")
    return any(getattr(pa.types, f"is_{kind}")(type_) for kind in kinds)


def _computed_keys(values: pa.Array) -> Ints:
    """Return the key of each value of a type whose keys are computed: int64[n], that of 0 or false
    for null.
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
    """Return the values of ``type_`` that ``_computed_keys`` turns into the int64 ``keys``, null
    where
    ``null`` is true. Keys may be arbitrary there.
    """
    if pa.types.is_floating(type_):
        floats = _in_float_order(keys).view(np.float64)
        return pa.array(floats.astype(type_.to_pandas_dtype()), mask=null)
    if pa.types.is_temporal(type_):
        integer = _integer_type(type_)
        return pa.array(keys.astype(integer.to_pandas_dtype()), mask=null).view(type_)
    return pa.array(keys.astype(type_.to_pandas_dtype()), mask=null)


def _in_float_order(bits: Ints) -> Ints:
    """Turn the bits of doubles into int64[n] that compare as the doubles do. The function is its
    own inverse. ``bits``: int64[n].
    """
    return bits ^ ((bits >> 63) & _LOWER_BITS)  # type: ignore[no-any-return]


def _integer_type(type_: pa.DataType) -> pa.DataType:
    """Return the integer type of the width of a time, date or duration type."""
    return pa.int32() if type_.bit_width == 32 else pa.int64()
