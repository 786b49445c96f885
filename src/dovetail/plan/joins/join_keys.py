"""``on=``: the columns of both sides of a join that are equal. All joins share these rules.

- A name or a list of names: left columns that equal the right side's key, in the key's order.
- A mapping: each left column equals the right column that it maps to.
- Left out: the keys of both sides are equal, and must have the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

from pyspark.sql import Column
from pyspark.sql.types import DataType, StructField, StructType

from dovetail.base.validation import Rule
from dovetail.errors import PlanError
from dovetail.plan.select import computed_field
from dovetail.plan.types.checks import KeyedNode, columns_as_text, known_field, refuse_key_type
from dovetail.plan.types.expressions import refuse_random

On: TypeAlias = Annotated[
    str | Sequence[str] | Mapping[str, str],
    Rule("the name of a column, a list of names, or a mapping of left names to right ones"),
]
OnComputed: TypeAlias = Annotated[
    str | Column | Sequence[str | Column] | Mapping[str, str],
    Rule(
        "the name of a column, a Spark expression, a list of such, or a mapping of left names to "
        "right ones"
    ),
]
Pairs: TypeAlias = tuple[tuple[str | Column, str], ...]
"""Equal columns: a left column or expression, and a right column."""


def pairs_of(
    name: str, left: KeyedNode, right: KeyedNode, on: OnComputed | None, *, whole: bool = True
) -> Pairs:
    """Return the pairs (left column or expression, right column) that are equal, in the order of
    the right side's key. Pairs with other right columns follow in the order given.

    ``name``: the join in errors. ``left``, ``right``: the sides, anything with a name, a key and
    values. ``on``: a column, an expression or a list of these, one for each column of the right
    key; or a mapping of left to right columns. None pairs keys of the same names in the same order.
    ``whole``: True if a mapping must name exactly the columns of the right key. Otherwise it may
    name any right columns, also one twice.

    Raises ``PlanError`` for unknown columns, different types, an empty mapping, and a list that is
    longer or shorter than the key. So it does for keys of other names if ``on`` is None, and for a
    mapping that ``whole`` forbids. It refuses expressions that do not resolve or are random, and
    types that cannot be keys.
    """
    key = right.key.names
    if on is None:
        if left.key.names != key:
            raise PlanError(
                name, f"without on= {_keys_in_words(left, right)}", _advice_for_on(left, right)
            )
        pairs: list[tuple[str | Column, str]] = [(column, column) for column in key]
    elif isinstance(on, Mapping):
        pairs = [*on.items()]
        named = [column for _, column in pairs]
        if not pairs:
            raise PlanError(name, "on= names no column", "Name the columns that are equal")
        if whole and sorted(named) != sorted(key) and set(named) <= {*key, *right.values.names}:
            raise PlanError(
                name,
                f"on= names {', '.join(named)} of {right.name}, whose key is "
                f"{columns_as_text(right.key)}",
                "Name each column of its key once; only delta joins, of tables with lookup "
                "sources, find rows by others",
            )
    else:
        items = [on] if isinstance(on, (str, Column)) else list(on)
        if len(items) != len(key):
            raise PlanError(
                name,
                f"on= has {len(items)} parts, "
                f"the key of {right.name} is {columns_as_text(right.key)}",
                "Give as many, in the key's order, or write pairs: on={'left column': 'right "
                "column'}",
            )
        pairs = [*zip(items, key, strict=True)]
    for a, b in pairs:
        right_type = known_field(name, "on=", b, _row_schema(right), input_name=right.name).dataType
        if isinstance(a, Column):
            left_type, shown = expression_type(name, "on=", left, a), "an expression in on="
        else:
            left_type, shown = (
                known_field(name, "on=", a, _row_schema(left), input_name=left.name).dataType,
                f"{left.name}.{a}",
            )
            refuse_key_type(name, StructField(a, left_type))
        if left_type != right_type:
            raise PlanError(
                name,
                f"{shown} is {left_type.simpleString()}, {right.name}.{b} is "
                f"{right_type.simpleString()}",
                "Cast one so that both have the same type",
            )
    key_index = {column: index for index, column in enumerate(key)}
    return tuple(sorted(pairs, key=lambda pair: key_index.get(pair[1], len(key))))


def refuse_other_keys(name: str, left: KeyedNode, right: KeyedNode, on: OnComputed | None) -> None:
    """Raise ``PlanError`` unless ``on`` pairs the whole keys of both sides in the same order, by
    names, not expressions. None pairs keys of the same names. Paired columns must have the same
    type. ``name``: the join in errors.
    """
    alike = len(left.key) == len(right.key)
    pairs = pairs_of(name, left, right, on) if alike else ()
    if not alike or [a if isinstance(a, str) else None for a, _ in pairs] != left.key.names:
        raise PlanError(
            name,
            f"its sides meet by their whole keys, in the same order: {_keys_in_words(left, right)}",
            "Give both sides such keys, or group them so, and pair these in on=",
        )


def expression_type(name: str, argument: str, left: KeyedNode, column: Column) -> DataType:
    """Return the type of the expression ``column`` over a row of the side ``left``. ``name``,
    ``argument``: the join and its argument in errors.

    Raises ``PlanError`` if it does not resolve or is random, and if there is no Spark session.
    """
    row = _row_schema(left)
    remedy = f"Its columns are those of {left.name}: {', '.join(row.names)}"
    field = computed_field(name, argument, row, column, remedy)
    refuse_random(name, f"an expression in {argument}", field)
    return field.dataType


def _row_schema(side: KeyedNode) -> StructType:
    """Return the schema of a side's row: its key columns, then its value columns."""
    return StructType([*side.key.fields, *side.values.fields])


def _keys_in_words(left: KeyedNode, right: KeyedNode) -> str:
    """Return the names and types of both sides' keys in words, for errors: ``the key of a is (id
    bigint), of b (code string)``.
    """
    return (
        f"the key of {left.name} is {columns_as_text(left.key)}, "
        f"of {right.name} {columns_as_text(right.key)}"
    )


def _advice_for_on(left: KeyedNode, right: KeyedNode) -> str:
    """Return advice on the value of ``on=``, as the last sentence of an error.

    The advice shows a mapping of left to right key columns if both keys have the same length and
    types. Columns are paired by name if the names are the same, else by position. Otherwise the
    advice has words only.
    """
    left_key, right_key = left.key, right.key
    names = right_key.names if {*left_key.names} == {*right_key.names} else left_key.names
    pairs = dict(zip(names, right_key.names, strict=False))
    if len(left_key) != len(right_key) or any(
        left_key[a].dataType != right_key[b].dataType for a, b in pairs.items()
    ):
        return f"Name in on= the columns of {left.name} that equal the key of {right.name}"
    return f"Say which columns are equal, if these are: on={pairs}"
