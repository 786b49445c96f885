"""Spark expressions as users give them: what they make, and as text, the same one in every session,
by which a checkpoint knows them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException
from pyspark.sql.types import StructField

from dovetail.columns import quoted
from dovetail.errors import PlanError
from dovetail.refusals import reason

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PLAIN = re.compile(r"[A-Za-z0-9_]+")
# Spark draws a seed for each that is written without one.
_SEED = re.compile(r"\b(randn?)\(-?\d+L?\)")
# Of these SQL says less than Spark's own form, where names carry numbers.
_UNTOLD = re.compile(r"namedlambdavariable\(\)|update_fields\(|from_(json|csv|xml)\(")
_NUMBERED = re.compile(r"(lambda \w+)?#\d+L?")

_KNOWN: WeakKeyDictionary[object, dict[int, str]] = WeakKeyDictionary()


def field_of(
    operator: str,
    argument: str,
    frame: DataFrame,
    column: Column,
    remedy: str,
    *,
    repeatable: bool = False,
) -> StructField:
    """What an expression over a frame makes of each row, as Spark resolves it.

    ``repeatable``: it must make the same of the same row at any time. Raises ``PlanError`` with
    Spark's complaint, and for expressions of more than a row, or that make more than a column.
    """
    try:
        made = frame.select(column)
        fields = made.schema.fields
    except PySparkException as error:
        raise PlanError(
            operator, f"{argument} does not resolve: {reason(error)}", remedy
        ) from error
    if len(fields) != 1:
        raise PlanError(
            operator, f"{argument} makes {len(fields)} columns, not one", "Name columns one by one"
        )
    plan = _analysed(made)
    if (plan.nodeName(), plan.child().nodeName()) != ("Project", _analysed(frame).nodeName()):
        raise PlanError(
            operator,
            f"{argument} is not of one row: it has an aggregate, a window or a generator",
            "Compute it in the frame before it is read, or aggregate with group_by(...).agg(...)",
        )
    if repeatable and not _is_repeatable(plan.expressions().head()):
        raise PlanError(
            operator,
            f"{argument} does not make the same of a row each time",
            "Leave out what is random or the time of the moment, or store it in the table itself",
        )
    return fields[0]


def _analysed(frame: DataFrame) -> Any:
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 -- no public face
    return plan


def _is_repeatable(expression: Any) -> bool:
    """Whether nothing in an expression is random or of the moment, such as ``now()``."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 -- no public face
    assert context is not None
    jvm: Any = context._jvm  # noqa: SLF001
    moment = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return bool(expression.deterministic()) and not expression.containsPattern(moment)


def text_of(owner: object, item: str | Column, row: Callable[[], DataFrame]) -> str:
    """What an ``owner``'s column, by its name or as an expression over the frame ``row``, is
    computed by: its SQL as Spark resolves it. A Python function is known by its name alone.

    What was found of an owner's expression is remembered.
    """
    if isinstance(item, str):
        return item if _PLAIN.fullmatch(item) else quoted(item)
    known = _KNOWN.setdefault(owner, {})
    if id(item) not in known:
        known[id(item)] = _resolved(row(), item)
    return known[id(item)]


def _resolved(frame: DataFrame, column: Column) -> str:
    expression = _analysed(frame.select(column)).expressions().head()
    while expression.getClass().getSimpleName() == "Alias":
        expression = expression.child()
    text = _SEED.sub(r"\1()", expression.sql())
    if _UNTOLD.search(text) is None:
        return text
    numbers: dict[str, str] = {}

    def anew(found: re.Match[str]) -> str:
        if found[1] is None:
            return ""
        return numbers.setdefault(found[0], f"lambda {len(numbers)}")

    return f"{text}, {_NUMBERED.sub(anew, expression.toString())}"
