"""The value columns of a join's result: the default ones, or those selected from the joined row.

The joined row has the key and the structs ``left`` and ``right``. A selection names columns of it,
such as ``"left.amount"``, or ``"amount"`` if only one side has such a column. It may also compute
with them, by Spark expressions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, TypeAlias

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from dovetail.base.columns import quoted
from dovetail.base.validation import Rule, Text
from dovetail.errors import PlanError
from dovetail.laws.joins.table_join import How, sides_preserved
from dovetail.plan.nodes import Node, Selected
from dovetail.plan.types.checks import refuse_duplicates, refuse_names, unknown_name_advice
from dovetail.plan.types.expressions import field_of

Selection: TypeAlias = Annotated[
    Sequence[str | Column] | Mapping[Text, str | Column],
    Rule('a list such as ["left.x", F.col("right.y") + 1], or a mapping of new names to such'),
]

SIDES = ("left", "right")


def select_all(operator: str, left: Node, right: Node) -> tuple[Selected, ...]:
    """Return all value columns of the left side, then all of the right side, each under its name
    and with its side as origin.

    ``operator``: the join in errors. Raises ``PlanError`` for a name among the values of both
    sides, and for a value column of either side with a left key column's name. Case is ignored.
    """
    shared = {name.lower() for name in left.values.names} & {n.lower() for n in right.values.names}
    if shared:
        name = next(n for n in left.values.names if n.lower() in shared)
        raise PlanError(
            operator,
            f"both sides have a value column {name!r}",
            f"Choose and rename with select=, for instance select={{'left_{name}': 'left.{name}', "
            f"'right_{name}': 'right.{name}'}}",
        )
    for name in (*left.values.names, *right.values.names):
        _refuse_key_name(operator, name, left)
    return tuple(
        Selected(name, (side, name))
        for side, node in zip(SIDES, (left, right), strict=True)
        for name in node.values.names
    )


def resolve_selection(
    operator: str,
    left: Node,
    right: Node,
    how: How,
    selection: Selection,
    *,
    one_key: bool = True,
    paired: Sequence[str] | None = None,
    repeatable: bool = False,
) -> tuple[tuple[Selected, ...], StructType]:
    """Check a selection against the joined row of ``left`` and ``right``. Return the selected
    columns and their fields, in the order of the selection; the fields are nullable. A ``Selected``
    has a name and either a side with its column (``ref``) or an expression (``column``).

    ``selection``: names such as ``"left.x"`` or ``"x"`` and expressions, or a mapping of new names
    to such. ``"x"`` is a left key column, or a value column that only one side has; a right key
    column needs ``"right."``. Key columns that the result has anyway are left out. ``operator``:
    the join in errors. ``how``: the kind of join.

    ``one_key``: True if both sides have the same key, so that the result's key is filled if one
    side is missing. A key column that is named with a side then becomes an expression if ``how``
    lets that side be missing. It is null without that side. ``paired``: the left column that equals
    each right key column; None for the left key with ``one_key``, else for none. ``repeatable``:
    True if expressions must make the same value of a row each time. Raises ``PlanError`` for
    unknown, ambiguous, reserved and duplicate names, and for an expression that Spark does not
    resolve. Expressions need a Spark session; without one it is raised, too.
    """
    items: Iterable[tuple[str | None, str | Column]] = (
        selection.items()
        if isinstance(selection, Mapping)
        else ((None, item) for item in selection)
    )
    hides = how if one_key else "inner"
    selected = tuple(
        _column_by_text(operator, left, right, hides, name, item)
        if isinstance(item, str)
        else Selected(name or "", None, item)
        for name, item in items
    )
    if any(item.column is not None for item in selected):
        selected, computed = _resolve_expressions(
            operator, left, right, selected, repeatable=repeatable
        )
    else:
        computed = {}
    if paired is None:
        paired = left.key.names if one_key else ()
    selected = tuple(s for s in selected if not _is_key_column(s, left, right, paired))
    refuse_names(operator, [s.name for s in selected], "Give it another name in select=")
    refuse_duplicates(
        operator,
        [*left.key.names, *(s.name for s in selected)],
        "Give each its own name in select=",
    )
    fields = [computed.get(s.name) or _plain_column_field(left, right, s) for s in selected]
    return selected, StructType(fields)


def _is_key_column(selected: Selected, left: Node, right: Node, paired: Sequence[str]) -> bool:
    """Return True if a selected column is a key column under its name, which the result has anyway.

    This is a left key column or, under the left name, the right key column that equals it.
    ``paired``: the left column that equals each right key column, in order; perhaps fewer.
    Expressions and renamed key columns give False.
    """
    if selected.ref is None or selected.name not in left.key.names:
        return False
    side, column = selected.ref
    if side == "left":
        return column == selected.name
    equal = dict(zip(right.key.names, paired, strict=False))
    return equal.get(column) == selected.name


def joined_row_columns(left: Node, right: Node) -> tuple[StructType, dict[str, tuple[str, str]]]:
    """Return the schema of the joined row of ``left`` and ``right``, and a dict of its plain names:
    by each, the side (``"left"`` or ``"right"``) and the column behind it.

    The row has the key of ``left``, the structs ``left`` and ``right``, then the plain names, left
    ones first. A struct has a side's key and values. A plain name is a value column that only one
    side has, and that is no key column of ``left`` and no side's name. Names that differ only in
    case count as equal.
    """
    plain: dict[str, tuple[str, str]] = {}
    taken = {name.lower() for name in (*left.key.names, *SIDES)}
    names = [n.lower() for node in (left, right) for n in node.values.names]
    for side, node in zip(SIDES, (left, right), strict=True):
        for name in node.values.names:
            if name.lower() not in taken and names.count(name.lower()) == 1:
                plain[name] = (side, name)
    fields = [*left.key.fields]
    for side, node in zip(SIDES, (left, right), strict=True):
        fields.append(StructField(side, node.row, True))
    fields += [_plain_column_field(left, right, Selected(name, ref)) for name, ref in plain.items()]
    return StructType(fields), plain


def _column_by_text(
    operator: str, left: Node, right: Node, how: How, name: str | None, text: str
) -> Selected:
    """Return the result column for ``text``, such as ``"left.x"`` or ``"x"``. ``operator``: the
    join in errors. ``name``: the result's name, None for the column's.

    A key column that is named with a side becomes an expression if ``how`` lets that side be
    missing. A name without a side means the left key column of that name, else the value column of
    the one side that has it. A right key column is found only with ``right.`` before its name.
    Raises ``PlanError`` for an unknown column, and for a value column that is on both sides. An
    expression without a Spark session raises it, too.
    """
    side, dot, column = text.partition(".")
    nodes = dict(zip(SIDES, (left, right), strict=True))
    if dot and side in nodes:
        columns = nodes[side].row.names
        if column not in columns:
            raise _unknown_column_error(operator, text, [f"{side}.{k}" for k in columns])
        other_is_preserved = sides_preserved(how)[side == "left"]
        if column in nodes[side].key.names and other_is_preserved:
            session_for(operator, "select=")
            return Selected(name or column, None, F.col(f"{side}.{quoted(column)}"))
        return Selected(name or column, (side, column))
    if text in left.key.names:
        return Selected(name or text, ("left", text))
    holders = [s for s in SIDES if text in nodes[s].values.names]
    if len(holders) == 2:
        raise PlanError(
            operator,
            f"column {text!r} in select= is on both sides",
            f"Write 'left.{text}' or 'right.{text}'",
        )
    if not holders:
        raise _unknown_column_error(operator, text, [*left.values.names, *right.values.names])
    return Selected(name or text, (holders[0], text))


def _resolve_expressions(
    operator: str,
    left: Node,
    right: Node,
    selected: tuple[Selected, ...],
    *,
    repeatable: bool,
) -> tuple[tuple[Selected, ...], dict[str, StructField]]:
    """Resolve the expressions of a selection over the joined row of ``left`` and ``right``. Return
    all of ``selected`` in order, expressions under their names, and the fields of these by name.

    ``operator``: the join in errors. ``selected``: expressions may have an empty name, for the one
    that Spark gives. Spark resolves them over a frame without rows. ``repeatable``: True to refuse
    expressions that depend on chance, the time or the user. Raises ``PlanError`` with Spark's
    complaint, and if there is no Spark session.
    """
    row, _ = joined_row_columns(left, right)
    remedy = "Columns of the joined row are the key, left.<column> and right.<column>"
    named, computed = [], {}
    for item in selected:
        if item.column is None:
            named.append(item)
            continue
        column = item.column.alias(item.name) if item.name else item.column
        field = computed_field(operator, "select=", row, column, remedy, repeatable=repeatable)
        named.append(Selected(field.name, None, column))
        computed[field.name] = field
    return tuple(named), computed


def computed_field(
    operator: str,
    argument: str,
    row: StructType,
    column: Column,
    remedy: str,
    *,
    repeatable: bool = False,
) -> StructField:
    """Return the name and type of the expression ``column`` over a row, as Spark resolves it. The
    field is nullable at every depth.

    ``operator``, ``argument``, ``remedy``: subject, argument and advice in errors. ``row``: the
    schema of the row. ``repeatable``: True to refuse an expression that depends on chance, the time
    or the user. Without it, a random expression is marked in the field's metadata, for
    ``refuse_random``. Raises ``PlanError`` with Spark's complaint, and if there is no Spark
    session. Aggregates, windows, generators and expressions of several columns are refused, too.
    """
    empty = session_for(operator, argument).createDataFrame([], row)
    which = f"an expression in {argument}"
    return field_of(operator, which, empty, column, remedy, repeatable=repeatable)


def session_for(operator: str, argument: str) -> SparkSession:
    """Return the active Spark session. Raises ``PlanError`` if there is none. ``operator``,
    ``argument``: the subject of the error, and the argument whose expressions need a session, such
    as ``select=``.
    """
    spark = SparkSession.getActiveSession()
    if spark is None:
        raise PlanError(
            operator,
            f"{argument} has Spark expressions, and there is no Spark session",
            "Start one; a test gives it to testing.Driver(..., spark=spark), too. Or name columns "
            "only, as in select={'total': 'left.amount'}",
        )
    return spark


def _plain_column_field(left: Node, right: Node, selected: Selected) -> StructField:
    """Return the field of a selected column that is no expression. It is nullable, and has the name
    in the selection and the type of the column on its side, a key or a value.
    """
    assert selected.ref is not None
    side, name = selected.ref
    node = left if side == "left" else right
    schema = node.key if name in node.key.names else node.values
    return StructField(selected.name, schema[name].dataType, True)


def _refuse_key_name(operator: str, name: str, left: Node) -> None:
    """Raise ``PlanError`` if ``name``, a value column of either side, is the name of a key column
    of the left side. Case is ignored. ``operator``: the join in errors.
    """
    if name.lower() in (key.lower() for key in left.key.names):
        raise PlanError(
            operator,
            f"value column {name!r} has the name of a key column",
            f"Rename it with select=, for instance select={{'right_{name}': 'right.{name}'}}",
        )


def _unknown_column_error(operator: str, text: str, columns: Sequence[str]) -> PlanError:
    """Return the error for the column ``text`` in ``select=`` that is not among ``columns``, the
    known ones. The error lists ``columns``, and suggests a similar name if there is one.
    ``operator``: the join in errors.
    """
    return PlanError(
        operator,
        f"select= names an unknown column {text!r}",
        f"Known are {', '.join(columns)}{unknown_name_advice('select=', text, columns)}",
    )
