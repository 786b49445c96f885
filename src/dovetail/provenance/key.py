"""The key of a row that is to be explained, as users give it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import pyarrow as pa

from dovetail.base.validation import Rule, shown_value
from dovetail.errors import PlanError
from dovetail.plan.nodes import Node
from dovetail.plan.types.arrow import arrow_schema

KeyValue: TypeAlias = Annotated[
    Any, Rule("a key: a value or, of several columns, a tuple or a mapping", lambda _: True)
]


def key_of(caller: str, node: Node, key: Any) -> dict[str, Any]:
    """Return a key that a user gives as values by the names of the node's key columns, in their
    order and types.

    ``caller``: the call in errors. ``key``: of one column its value, of several columns a tuple or
    a list in their order. It may always be a mapping by column. A mapping for a stream may have
    further columns of the record; the result then has all of them, in the order of the mapping.

    Raises ``PlanError`` for missing or other columns and for values of another type. Also for a
    null, unless the node's keys may have nulls or a stream's record is given as a mapping.
    """
    if node.stream and isinstance(key, Mapping):
        return _checked_record(caller, node, key)
    fields = [*arrow_schema(node.key)]
    names = [field.name for field in fields]
    if isinstance(key, Mapping):
        values = [key[name] for name in names] if {*key} == {*names} else []
    elif len(names) > 1:
        values = [*key] if isinstance(key, (tuple, list)) else []
    else:
        values = [key]
    if len(values) != len(names):
        raise PlanError(
            caller,
            f"key= is {_key_in_words(key)}, the key of {node.name} is {', '.join(names)}",
            "Give these",
        )
    if not node.null_keys and any(value is None for value in values):
        raise PlanError(
            caller, f"key= is {_key_in_words(key)}, and no key has a null", "Give a value"
        )
    return {
        field.name: _checked_value(caller, field, value)
        for field, value in zip(fields, values, strict=True)
    }


def _key_in_words(key: Any) -> str:
    """Return a key, or a value of one, for an error in one line. A tuple, list or mapping is shown
    by its ``repr`` if that has at most 80 characters. For anything else, longer ones included,
    return the result of ``shown_value``.
    """
    text = repr(key)
    short = isinstance(key, (tuple, list, Mapping)) and len(text) <= 80 and "\n" not in text
    return text if short else shown_value(key)


def _checked_record(caller: str, node: Node, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given columns of a stream's record, by name, in the types of the columns.

    ``caller``: the call in errors. ``record``: values by column. They may be columns of any stream
    below the node. Raises ``PlanError`` if a key column is missing, for an unknown column, and for
    a value of another type.
    """
    fields = {
        field.name: field for part in node.walk() if part.stream for field in arrow_schema(part.row)
    }
    missing = [name for name in node.key.names if name not in record]
    if missing:
        raise PlanError(caller, f"key= has no column {missing[0]!r}", "Give the whole key")
    unknown = [name for name in record if name not in fields]
    if unknown:
        column_names = ", ".join(fields)
        raise PlanError(caller, f"key= has no column {unknown[0]!r}", f"Columns are {column_names}")
    return {name: _checked_value(caller, fields[name], value) for name, value in record.items()}


def key_of_named_texts(caller: str, node: Node, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return a key from texts by column, in the types and the order of the node's key. The text
    ``null`` is null, also where keys may have no nulls. ``caller``: the call in errors.

    Raises ``PlanError`` for missing or other columns, and for a text that is no value of its column
    (``_value_of_text``).
    """
    fields = {field.name: field for field in arrow_schema(node.key)}
    if {*texts} != {*fields}:
        raise PlanError(
            caller,
            f"the key is given as {', '.join(texts) or 'nothing'}",
            f"The key of {node.name} is {', '.join(fields)}",
        )
    return {name: _value_of_text(caller, field, texts[name]) for name, field in fields.items()}


def _value_of_text(caller: str, field: pa.Field, text: str) -> Any:
    """Return the value of the column ``field`` that a text means; None for ``null``. ``caller``:
    the call in errors. Raises ``PlanError`` for a text that is no value of the column's type.

    Dates and times are in ISO 8601; a time needs a zone, such as ``2024-05-01T12:00Z``, unless the
    type has none. Booleans are ``true`` and ``false``. Binary values are the text in UTF-8. Nested
    types have no text.
    """
    try:
        texts = pa.array([None if text == "null" else text], pa.string())
        return texts.cast(field.type)[0].as_py()
    except pa.ArrowException as error:
        problem = f"{field.name}={text} is no {field.type}"
        raise PlanError(caller, problem, "Give a value of that type") from error


def _checked_value(caller: str, field: pa.Field, value: Any) -> Any:
    """Return a value that a user gives in the type of the column ``field``; None for None. A time
    without a zone is one in UTC.

    ``caller``: the call in errors. Raises ``PlanError`` for a value that Arrow does not convert to
    the type. So it does for any float, such as 7.0, in a column of whole numbers.
    """
    try:
        if isinstance(value, float) and pa.types.is_integer(field.type):
            raise TypeError  # Arrow would cut off its fraction
        return pa.array([value], field.type)[0].as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise PlanError(
            caller,
            f"key= has {_key_in_words(value)} for {field.name}, of type {field.type}",
            "Give such a value",
        ) from error
