"""Conversion of a store's values to Arrow columns of the declared types, or an error; never a
guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.base.error_text import first_line
from dovetail.errors import DataError, PlanError

Filters: TypeAlias = Sequence[tuple[str, Sequence[Any]]]
"""Pairs of a column and the constants that it may have, None for null."""


def rows_as_table(
    title: str,
    rows: Sequence[Sequence[Any]],
    schema: pa.Schema,
    key: Sequence[str],
    *,
    typeless: bool = False,
    counted: bool = False,
) -> pa.Table:
    """Return rows as a table of ``schema``, in their order.

    ``title``: the source in errors. ``rows``: the Python values of each row, in the order of the
    schema; there may be none. None becomes null. ``key``: the names of the columns that must not be
    null; those that the schema lacks do not count.

    ``typeless``: True if the store only has numbers, texts and bytes. Such a store has times, dates
    and decimals as texts, times also as whole seconds since 1970, and booleans as 0 and 1. A text
    of a time must have a zone if the declared type has one, and none otherwise. ``counted``: True
    if the store has types but may have booleans as 0 and 1; ``typeless`` includes this.

    Floats and decimals are rounded to a declared float type; nothing else is rounded. Raises
    ``DataError`` if a value does not fit its column, or if a key column has nulls.
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    make = partial(_values_as_array, typeless=typeless, counted=counted or typeless)
    arrays = [
        _convert_column(title, field, lambda v=v, t=field.type: make(list(v), t))  # type: ignore[misc]
        for v, field in zip(columns, schema, strict=True)
    ]
    return without_null_keys(title, pa.table(arrays, schema=schema), key)


def texts_as_table(
    title: str, columns: Sequence[Sequence[bytes | None]], schema: pa.Schema
) -> pa.Table:
    """Return rows of a store that only has bytes as a table of ``schema``, in their order.

    ``title``: the source in errors. ``columns``: for each column of the schema, in order, its
    values in all rows, None for null. Without rows each list is empty, or ``columns`` itself is.
    Binary columns take the bytes themselves.

    Other values are texts in UTF-8. A boolean is ``true``, ``false``, ``1`` or ``0`` in any case. A
    time is in ISO 8601, with a zone if its type has one, else without. Only floats are rounded.
    Raises ``DataError`` if a value is not the text of a value of its column's type, and for nested
    types.
    """
    if not columns:
        columns = [()] * len(schema)
    arrays = [
        _convert_column(title, field, lambda v=v, t=field.type: _parse_values(list(v), t))  # type: ignore[misc]
        for v, field in zip(columns, schema, strict=True)
    ]
    return pa.table(arrays, schema=schema)


def cast_table(title: str, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of ``table``, which is from a store with types, with the names and types
    of ``schema``. Columns are taken by their position, so their count must be the same.

    ``title``: the source in errors. Whole numbers may become whole numbers, decimals or floats.
    Decimals may become decimals or whole numbers, and floats only floats at least as wide. Every
    other type stays of its kind, such as a timestamp of any unit or a text. Raises ``DataError``
    for another type, and for a value that does not fit without loss. Another count of columns
    raises ``ValueError``.
    """
    arrays = [
        _convert_column(title, field, lambda c=c, t=field.type: _cast_array(c, t, narrows=False))  # type: ignore[misc]
        for c, field in zip(table.columns, schema, strict=True)
    ]
    return pa.table(arrays, schema=schema)


def without_null_keys(title: str, table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the table unchanged if none of the columns ``key`` has nulls, else raise
    ``DataError``. Columns that the table lacks do not count. ``title``: the source in errors.
    """
    for name in key:
        if name in table.schema.names and table.column(name).null_count:
            raise DataError(
                title,
                f"key column {name!r} is null in a row that was looked up",
                "Declare the columns that are never null as key=",
            )
    return table


def refuse_mixed_constants(title: str, filters: Filters) -> None:
    """Raise ``PlanError`` for a filter whose constants Arrow cannot put into one column, so that no
    column of a store with types has them all. Examples are a text beside a number, True beside 1,
    and whole numbers beyond int64.

    Whole numbers beside floats pass, and None beside anything. ``title``: the source in errors.
    ``filters``: pairs of a column and its constants.
    """
    for name, constants in filters:
        if not _have_common_type(constants):
            raise PlanError(
                title,
                f"where= has constants for {name!r} that no column has together: {list(constants)}",
                "Give constants of the column's type",
            )


def _have_common_type(constants: Sequence[Any]) -> bool:
    """Return True if Arrow has one type for all of some constants, None left aside. Whole numbers
    and floats have one. Numbers, texts and booleans have none with each other. Whole numbers beyond
    int64 give False. Without constants, return True.
    """
    try:
        pa.array(constants)
    except (pa.ArrowException, OverflowError):
        return False
    return True


def typed_constants(title: str, filters: Filters, stored: pa.Schema) -> dict[str, pa.Array]:
    """Return, by column name, the constants of each filter as an array of the column's type, in
    their order and with null for None. Those of a float column are doubles, even if it is narrower.

    ``title``: the source in errors. ``filters``: pairs of a column and its constants, each column
    once. ``stored``: the columns of the store. A constant may be of another type than its column if
    it can be cast without loss: 1 for a float, 2.0 for a whole number, a text for a time. But only
    texts are constants of a text column, and only booleans of a boolean one.

    Raises ``DataError`` for a column that the store lacks, and for constants that cannot be cast.
    """
    arrays = {}
    for name, constants in filters:
        if name not in stored.names:
            raise changed_store_error(title, f"there is no column {name!r}")
        type_ = stored.field(name).type
        try:
            array = pa.array(constants)
            exact = is_text(type_) or pa.types.is_boolean(type_) or pa.types.is_boolean(array.type)
            if exact and not _is_castable(array.type, type_, narrows=False):
                raise pa.ArrowInvalid(f"the constants are {array.type}")
            # As in SQL: 0.1 is no single float, so it must not become the nearest one.
            target = pa.float64() if pa.types.is_floating(type_) else type_
            arrays[name] = _with_room_for_decimals(array, target).cast(target)
        except (pa.ArrowException, OverflowError) as error:
            raise DataError(
                title,
                f"where= has {list(constants)} for column {name!r}, which is {type_} there",
                "Give constants of the column's type",
            ) from error
    return arrays


def find_constants(rows: pa.Table, constants: Mapping[str, pa.Array]) -> pa.Array:
    """Return a boolean for each of n rows: True if each column of ``constants`` has one of its
    constants there. A null equals a null among the constants, a NaN a NaN, and -0.0 equals 0.0.

    ``rows``: with all of these columns. ``constants``: those of some filters by column, as
    ``typed_constants`` makes them; without filters all are True. Raises an Arrow exception for a
    column that cannot be cast to the type of its constants.
    """
    has_all = pa.array(np.ones(rows.num_rows, np.bool_))
    for name, values in constants.items():
        column = rows[name].combine_chunks().cast(values.type)
        if pa.types.is_floating(values.type):
            # Arrow finds no -0.0 among zeros, and this sum is 0.0.
            column, values = pc.add(column, 0.0), pc.add(values, 0.0)
        has_all = pc.and_(has_all, pc.is_in(column, values))
    return has_all


def changed_store_error(title: str, problem: object) -> DataError:
    """Return, not raise, the ``DataError`` for a store that no longer has the declared columns.
    ``title``: the source in errors. ``problem``: the store's own error or text, of which the first
    line is shown.
    """
    return DataError(
        title,
        f"its columns are not those of the table: {first_line(problem)}",
        "Bring the store's schema and the changelog's together, then start the query again",
    )


def _convert_column(title: str, field: pa.Field, make: Callable[[], pa.Array]) -> pa.Array:
    """Return the column that ``make`` returns. An Arrow exception, ``TypeError``, ``ValueError`` or
    ``OverflowError`` of ``make`` becomes ``DataError``: the values do not fit ``field``. ``title``:
    the source in errors.
    """
    try:
        return make()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            title,
            f"a row does not fit the table's schema: column {field.name!r} is declared "
            f"{field.type}, and {error}",
            "Give the changelog and the lookup source the same types",
        ) from error


def _parse_values(values: list[bytes | None], declared: pa.DataType) -> pa.Array:
    """Return an array of the type ``declared`` with the values that are written in ``values``, as
    texts in UTF-8; null for None. For a binary type these are the bytes themselves.

    A boolean is ``true``, ``false``, ``1`` or ``0`` in any case. A time is in ISO 8601, with a zone
    if the type has one, else without. Raises an Arrow exception for other texts, for nested types,
    for hexadecimal digits, and for a number that is too large for a float.
    """
    array = pa.array(values, pa.binary())
    if _is_binary(declared):
        return array.cast(declared)
    if declared.num_fields:
        raise pa.ArrowInvalid("the store only has texts")
    texts = array.cast(pa.string())
    # Arrow reads the bits of hexadecimal digits, so that 0xFF is -1 as a byte.
    if pa.types.is_integer(declared) and pc.any(pc.match_substring_regex(texts, "[xX]")).as_py():
        raise pa.ArrowInvalid("the store has a number that is not decimal")
    parsed_array = texts.cast(declared)
    if pa.types.is_floating(declared):
        _refuse_infinite(parsed_array, pc.invert(pc.match_substring_regex(texts, "[0-9]")))
    return parsed_array


def _values_as_array(
    values: list[Any], declared: pa.DataType, *, typeless: bool, counted: bool
) -> pa.Array:
    """Return Python values as an array of the type ``declared``, in order; None becomes null.

    ``typeless``: True if whole numbers become timestamps by seconds since 1970, and texts become
    timestamps, dates and decimals. A text of a time needs a zone exactly if the type has one.
    ``counted``: True if 0 and 1 become booleans. Without these flags such values do not fit. Floats
    may be rounded to a narrower type, and decimals to floats.

    Raises an Arrow exception, ``TypeError``, ``ValueError`` or ``OverflowError`` if a value does
    not fit.
    """
    if pa.types.is_floating(declared) or declared.num_fields:
        # A driver of PEP 249 gives a struct with all fields that the database has.
        fills = typeless or not counted
        values = [convert_parts(value, declared, _nearest_float, fills=fills) for value in values]
    if pa.types.is_decimal(declared):
        values = _with_one_number_type(values, texts=typeless)
    array = pa.array(values)
    if counted and pa.types.is_integer(array.type) and pa.types.is_boolean(declared):
        if not pc.all(pc.is_in(array.drop_null(), pa.array([0, 1]))).as_py():
            raise pa.ArrowInvalid("the store has a number other than 0 and 1")
        return array.cast(declared)
    if typeless and pa.types.is_integer(array.type) and pa.types.is_timestamp(declared):
        return array.cast(pa.timestamp("s", declared.tz)).cast(declared)
    if typeless and pa.types.is_string(array.type):
        written = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_decimal)
        if any(kind(declared) for kind in written):
            return array.cast(declared)
    return _cast_array(array, declared, narrows=True)


def _with_one_number_type(values: list[Any], *, texts: bool) -> list[Any]:
    """Return the values with whole numbers as decimals if there is a decimal, because Arrow takes
    only one of both; else ``values`` itself. Booleans, None and other values stay as they are.

    ``texts``: True if texts may be decimals. If a value is a text then, all whole numbers and
    decimals become texts instead; floats stay.
    """
    if texts and any(isinstance(value, str) for value in values):
        is_number = [isinstance(v, (int, Decimal)) and not isinstance(v, bool) for v in values]
        # Decimal's own form, since that of an int would go through a float.
        return [f"{Decimal(v):f}" if n else v for v, n in zip(values, is_number, strict=True)]
    if not any(isinstance(value, Decimal) for value in values):
        return values
    return [Decimal(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in values]


def convert_parts(
    value: Any,
    declared: pa.DataType,
    convert: Callable[[Any, pa.DataType], Any],
    *,
    fills: bool = False,
) -> Any:
    """Return a Python value with its parts, at any depth of lists and structs (dicts), converted. A
    part that is no list or struct, such as a whole map, becomes ``convert(part, its type)``.

    ``declared``: the type of the value. Fields of a struct that its type lacks stay as they are.
    ``fills``: True to give a struct each field of its type that it lacks, as ``convert`` makes it
    of None. A value of another kind than its type, such as None for a list, is one part.
    """
    if isinstance(value, list) and pa.types.is_list(declared):
        type_ = declared.value_type
        return [convert_parts(item, type_, convert, fills=fills) for item in value]
    if isinstance(value, dict) and pa.types.is_struct(declared):
        types = {field.name: field.type for field in declared}
        return {
            name: convert_parts(item, types[name], convert, fills=fills) if name in types else item
            for name, item in ((dict.fromkeys(types) if fills else {}) | value).items()
        }
    return convert(value, declared)


def _nearest_float(value: Any, declared: pa.DataType) -> Any:
    """Return the float nearest to a decimal if ``declared`` is a float type. All else stays as it
    is. Raises ``OverflowError`` for a decimal that is too large, which Python takes for infinity.
    """
    if not (isinstance(value, Decimal) and pa.types.is_floating(declared)):
        return value
    nearest = float(value)
    if math.isinf(nearest) and value.is_finite():
        raise OverflowError(f"{value} is too large")
    return nearest


def _with_room_for_decimals(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return ``array`` in a form that Arrow can cast to ``target``: integers that become decimals
    as wider decimals, anything else unchanged. Arrow requires room for the largest integer of the
    type, even if all values are smaller.
    """
    if pa.types.is_integer(array.type) and pa.types.is_decimal(target):
        return array.cast(pa.decimal256(76, target.scale))
    return array


def _cast_array(array: pa.Array, declared: pa.DataType, *, narrows: bool) -> pa.Array:
    """Return ``array`` cast to the type ``declared``. Raises ``pa.ArrowInvalid`` if the array is of
    another kind, such as texts for numbers, or if a value does not fit without loss.

    ``narrows``: True if floats may be wider than the declared type, and decimals may become floats;
    these are rounded. A finite float that would become infinite raises nevertheless.
    """
    if not _is_castable(array.type, declared, narrows=narrows):
        raise pa.ArrowInvalid(f"the store has {array.type}")
    cast_array = _with_room_for_decimals(array, declared).cast(declared)
    if pa.types.is_floating(declared) and pa.types.is_floating(array.type):
        _refuse_infinite(cast_array, pc.is_inf(array))
    return cast_array


def _refuse_infinite(floats: pa.Array, may_be: pa.Array) -> None:
    """Raise ``pa.ArrowInvalid`` for an infinite float that the store does not have as infinity: its
    value there is finite, and too large for the type. ``floats``: the values after a cast.

    ``may_be``: a boolean for each of ``floats``, True if infinity is right there: the store has
    infinity itself, or a text without digits such as ``inf``. A null in either raises nothing.
    """
    if pc.any(pc.and_not(pc.is_inf(floats), may_be)).as_py():
        raise pa.ArrowInvalid(f"a number is too large for {floats.type}")


def _is_castable(stored: pa.DataType, declared: pa.DataType, *, narrows: bool) -> bool:
    """Return True if values of the type ``stored`` may have the declared type; the cast checks each
    value.

    | stored | declared | and with ``narrows`` |
    |---|---|---|
    | whole numbers | whole numbers, decimals, floats | |
    | decimals | decimals, whole numbers | floats |
    | floats | floats at least as wide | any floats |

    All else stays of its kind: a timestamp, with or without a zone and of any unit, a date, time,
    duration, text or bytes. The null type fits all. A list or map goes by its parts. A struct goes
    by the names of its fields, in any order: Arrow gives nulls for names that it does not find.
    """
    types = pa.types
    if types.is_null(stored) or stored == declared:
        return True
    if stored.num_fields and declared.num_fields == stored.num_fields:
        parts, wanted = _types_of_parts(stored), _types_of_parts(declared)
        same = (
            types.is_struct(stored) == types.is_struct(declared) and parts.keys() == wanted.keys()
        )
        return same and all(_is_castable(parts[n], wanted[n], narrows=narrows) for n in wanted)
    if types.is_integer(stored):
        wider = (types.is_integer, types.is_floating, types.is_decimal)
        return any(kind(declared) for kind in wider)
    if types.is_decimal(stored):
        exact = types.is_integer(declared) or types.is_decimal(declared)
        return exact or (narrows and types.is_floating(declared))
    if types.is_floating(stored):
        return types.is_floating(declared) and (narrows or stored.bit_width <= declared.bit_width)
    times = (types.is_timestamp, types.is_date, types.is_time, types.is_duration)
    kinds = (*times, is_text, _is_binary)
    return any(kind(stored) and kind(declared) for kind in kinds)


def _types_of_parts(type_: pa.DataType) -> dict[str, pa.DataType]:
    """Return the types of the parts of a struct, map or list by their names. A struct has the names
    of its fields, a map ``key`` and ``item``, a list ``element``. A plain type raises
    ``AttributeError``.
    """
    if pa.types.is_struct(type_):
        return {field.name: field.type for field in type_}
    if pa.types.is_map(type_):
        return {"key": type_.key_type, "item": type_.item_type}
    return {"element": type_.value_type}


def is_text(type_: pa.DataType) -> bool:
    """Return True if values of the type are texts, in any of Arrow's layouts."""
    return type_ in (pa.string(), pa.large_string(), pa.string_view())


def _is_binary(type_: pa.DataType) -> bool:
    """Return True if values of the type are bytes, in any of Arrow's layouts of variable length."""
    return type_ in (pa.binary(), pa.large_binary(), pa.binary_view())
