"""Types with all the values of another type, and values in such a type."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StructType,
)

_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_EXACT_DIGITS = 15
"""The number of decimal digits of whole numbers that a double has at least."""


def widens(was: DataType, is_: DataType) -> bool:
    """Return True if every value of the type ``was`` is one of ``is_``, too, at any depth of
    structs, arrays and maps; equal types do. Integers widen to longer ones, and to decimals with
    room for them. Decimals widen to those with as many digits or more on both sides of the point.
    Integers below a long, and floats, widen to doubles. No other type widens: neither long to
    double nor date to timestamp.

    A struct's fields are matched by name, like columns: a new one is null, a missing one is left
    out. At least one must match.
    """
    if isinstance(was, StructType) and isinstance(is_, StructType):
        common = [name for name in is_.names if name in was.names]
        return bool(common) and all(widens(was[n].dataType, is_[n].dataType) for n in common)
    if isinstance(was, ArrayType) and isinstance(is_, ArrayType):
        return widens(was.elementType, is_.elementType)
    if isinstance(was, MapType) and isinstance(is_, MapType):
        return widens(was.keyType, is_.keyType) and widens(was.valueType, is_.valueType)
    return was == is_ or _is_wider(was, is_)


def _is_wider(was: DataType, is_: DataType) -> bool:
    """Return True if every number of the type ``was`` is one of ``is_``, too. Return False if one
    of both is no type of numbers. For two equal types, which callers compare before, return True
    for integers and decimals alone.
    """
    if isinstance(was, DecimalType) and isinstance(is_, DecimalType):
        added_scale = is_.scale - was.scale
        return added_scale >= 0 and is_.precision - was.precision >= added_scale
    if isinstance(was, IntegralType) and isinstance(is_, DecimalType):
        return is_.precision - is_.scale >= _DIGITS[was.typeName()]
    if isinstance(was, IntegralType) and isinstance(is_, IntegralType):
        return _DIGITS[was.typeName()] <= _DIGITS[is_.typeName()]
    small = isinstance(was, IntegralType) and _DIGITS[was.typeName()] <= _EXACT_DIGITS
    return isinstance(is_, DoubleType) and (small or isinstance(was, FloatType))


def cast_to_wider(column: Column, was: DataType, is_: DataType) -> Column:
    """Return ``column``, which has the type ``was``, cast to the wider type ``is_``, for which
    ``widens`` is true. Nulls stay null. Struct fields that ``was`` lacks become null, those that
    ``is_`` lacks are left out, at any depth.
    """
    if isinstance(was, StructType) and isinstance(is_, StructType):
        fields = (
            cast_to_wider(column[f.name], was[f.name].dataType, f.dataType)
            if f.name in was.names
            else F.lit(None).cast(f.dataType)
            for f in is_
        )
        named = (field.alias(name) for field, name in zip(fields, is_.names, strict=True))
        return F.when(column.isNotNull(), F.struct(*named))
    if isinstance(was, ArrayType) and isinstance(is_, ArrayType):
        inner = (was.elementType, is_.elementType)
        return F.transform(column, lambda item: cast_to_wider(item, *inner))
    if isinstance(was, MapType) and isinstance(is_, MapType):
        keys, values = (was.keyType, is_.keyType), (was.valueType, is_.valueType)
        by_key = F.transform_keys(column, lambda key, _: cast_to_wider(key, *keys))
        return F.transform_values(by_key, lambda _, value: cast_to_wider(value, *values))
    return column.cast(is_)
