"""Keys that a reader of state asks for, as columns of a store's own types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import pyarrow as pa

from dovetail.arrays.equality import canonical_key
from dovetail.base.validation import Rule
from dovetail.errors import PlanError
from dovetail.physical.specs.law import Store

Keys: TypeAlias = Annotated[
    Sequence[Any],
    Rule("a list of keys, each a value or, of several columns, a tuple or a mapping"),
]


def key_columns(caller: str, store: Store, keys: Sequence[Any]) -> list[pa.Array]:
    """Return one array for each column of the store's ``own_key``, with a row for each of ``keys``,
    in order and with duplicates. ``own_key`` has the key columns that users see, without internal
    ones. Equal values have equal bits (``canonical_key``).

    ``keys``: each the value of a single column, a tuple or list of the values of several, or a
    mapping by name. Without keys the arrays are empty. Raises ``PlanError`` for other columns, for
    a null, and for a value of another type. ``caller``: the user's call, to begin errors.
    """
    fields = store.own_key
    names = [field.name for field in fields]
    rows = [_key_values(caller, names, key) for key in keys]
    return [
        canonical_key(_key_column(caller, field, [row[index] for row in rows]))
        for index, field in enumerate(fields)
    ]


def keys_of_text(caller: str, store: Store, texts: Sequence[str]) -> list[Any]:
    """Return one key for each of ``texts``, in order: the text is the value or, of a key of several
    columns, a JSON list of the values, which become a tuple. ``caller``: the user's call, to begin
    errors. Raises ``PlanError`` for a text that is no key.
    """
    return [_key_of_text(caller, store.own_key, text) for text in texts]


def key_of_column_texts(caller: str, store: Store, texts: Sequence[str]) -> Any:
    """Return the key of ``store`` with one text for each of its columns, in their order: a value
    or, of several columns, a tuple. ``caller``: the user's call, to begin errors.

    Raises ``PlanError`` for fewer or more texts, and for a text that is no value of its column.
    """
    try:
        return _parse_key(store.own_key, texts)
    except (ValueError, pa.ArrowException) as error:
        raise key_texts_error(caller, [field.name for field in store.own_key], texts) from error


def key_texts_error(caller: str, names: Sequence[str], texts: Sequence[str]) -> PlanError:
    """Return, without raising it, the error for ``texts`` that are no key of the columns ``names``.
    There should be one text per column. ``caller``: the user's call, to begin the error.
    """
    shown = ", ".join(texts) or "nothing"
    remedy = "Give a value for each of its columns" if len(names) > 1 else "Give its value"
    return _key_error(caller, names, shown, remedy)


def _key_of_text(caller: str, fields: Sequence[pa.Field], text: str) -> Any:
    """Return a key from a text: the value of a single column or, of several ``fields``, a tuple
    from a JSON list. ``caller``: the user's call, to begin errors. Raises ``PlanError`` if the text
    is no key.
    """
    try:
        return _parse_key(fields, _json_texts(text) if len(fields) > 1 else [text])
    except (ValueError, pa.ArrowException) as error:
        remedy = "Give a JSON list of the values of its columns"
        names = [field.name for field in fields]
        raise _key_error(
            caller, names, text, remedy if len(fields) > 1 else "Give its value"
        ) from error


def _parse_key(fields: Sequence[pa.Field], texts: Sequence[str]) -> Any:
    """Return the key whose values in the columns ``fields`` are written in ``texts``, one per
    column. It is a tuple if there are several columns. Raises ``ValueError`` for fewer or more
    texts, and Arrow's errors for a text that is no value of its column.
    """
    key = [
        pa.array([text], pa.string()).cast(field.type)[0].as_py()
        for field, text in zip(fields, texts, strict=True)
    ]
    return key[0] if len(key) == 1 else tuple(key)


def _json_texts(text: str) -> list[str]:
    """Return the values in a JSON list as texts, numbers as they are written. Raises ``ValueError``
    for other JSON, and for elements without a text: null, lists and objects.

    >>> _json_texts('["x", 1.50, true]')
    ['x', '1.50', 'true']
    """
    values = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    if not isinstance(values, list):
        raise ValueError(text)
    texts = [json.dumps(value) if isinstance(value, bool) else value for value in values]
    if not all(isinstance(value, str) for value in texts):
        raise ValueError(text)
    return texts


def _key_error(caller: str, names: Sequence[str], text: str, remedy: str) -> PlanError:
    """Return, without raising it, the error for a text that is no key of the columns ``names``.
    ``caller``: the user's call, to begin the error. ``remedy``: its last sentence.
    """
    return PlanError(caller, f"{text} is no key, which is {', '.join(names)}", remedy)


def _key_values(caller: str, names: Sequence[str], key: Any) -> Sequence[Any]:
    """Return the values of a key in the order of its columns ``names``, as a tuple. Their types are
    not checked.

    ``key``: a mapping that has just these names. Else a tuple or list for several columns, or the
    value of a single column. ``caller``: the user's call, to begin errors. Raises ``PlanError`` for
    a key of other columns.
    """
    if isinstance(key, Mapping):
        row = tuple(key.get(name) for name in names) if {*key} == {*names} else ()
    elif len(names) > 1:
        row = tuple(key) if isinstance(key, (tuple, list)) else ()
    else:
        row = (key,)
    if len(row) != len(names):
        raise PlanError(
            caller, f"keys= has {key!r}, the key is {', '.join(names)}", "Give these columns"
        )
    return row


def _key_column(caller: str, field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """Return a key column of the type of ``field`` with ``values``, in order; empty without values.
    ``caller``: the user's call, to begin errors.

    Raises ``PlanError`` for a null and for a value of another type. A float is no value of an
    integer column, not even a whole one.
    """
    column = []
    for value in values:
        try:
            if isinstance(value, float) and pa.types.is_integer(field.type):
                raise TypeError  # Arrow would cut off its fraction
            array = pa.array([value], field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            array = pa.nulls(1, field.type)
        if array.null_count:
            from dovetail.plan.types.arrow import spark_schema

            (type_,) = spark_schema(pa.schema([field]))
            raise PlanError(
                caller,
                f"keys= has {value!r} for {field.name}, which is a {type_.dataType.simpleString()}",
                "Give a value of that type",
            )
        column.append(array)
    return pa.concat_arrays([pa.array([], field.type), *column])
