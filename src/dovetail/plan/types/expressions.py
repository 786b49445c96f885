"""Users' Spark expressions: their result columns, and their texts.

A checkpoint recognizes an expression by its text, which is the same in every session.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException
from pyspark.sql.types import StructField

from dovetail.base.columns import quoted
from dovetail.errors import PlanError
from dovetail.plan.types.analysis import analysis_of
from dovetail.plan.types.arrow import nullable
from dovetail.platform.spark_errors import reason

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RANDOM = "dovetail.random"
"""A key in a field's metadata: the part of its expression that makes another value each time."""
REPEATED_PROBLEM = (
    "which makes other values when a micro-batch is run again after a failure, so that rows of its "
    "first run would stay for ever"
)
RANDOM_REMEDY = (
    "Compute it of the row, for instance by F.xxhash64 of its key, or before: in what writes the "
    "source"
)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")

_KNOWN_TEXTS: WeakKeyDictionary[object, dict[int, str]] = WeakKeyDictionary()


def field_of(
    operator: str,
    argument: str,
    frame: DataFrame,
    column: Column,
    remedy: str,
    *,
    repeatable: bool = False,
) -> StructField:
    """Return the field that the expression ``column`` makes over a frame, nullable at every depth.

    If a random part makes the value differ each time, the field's metadata has its text under
    ``RANDOM``, such as ``rand()``. ``operator``, ``argument``, ``remedy``: for errors.
    ``repeatable``: True to refuse expressions that depend on chance, the time or the user.

    Raises ``PlanError`` with Spark's complaint if the expression does not resolve. Aggregates,
    windows, generators, and expressions that make several columns, such as ``*``, are also refused.
    Without ``repeatable``, random expressions are not (``refuse_random``). Errors of
    ``analysis_of`` pass.
    """
    try:
        selected = frame.select(column)
        fields = selected.schema.fields
    except PySparkException as error:
        raise PlanError(
            operator, f"{argument} does not resolve: {reason(error)}", remedy
        ) from error
    if len(fields) != 1:
        raise PlanError(
            operator, f"{argument} makes {len(fields)} columns, not one", "Name columns one by one"
        )
    analysis = analysis_of(frame, column)
    if not analysis.of_one_row:
        raise PlanError(
            operator,
            f"{argument} is not of one row: it has an aggregate, a window or a generator",
            "Compute it in the frame before it is read, or aggregate with group_by(...).agg(...)",
        )
    if repeatable and not analysis.repeatable:
        raise PlanError(
            operator,
            f"{argument} does not make the same of a row each time",
            "Leave out what is random or the time of the moment, or store it in the table itself",
        )
    random = analysis.random
    metadata = {} if random is None else {RANDOM: random}
    return StructField(fields[0].name, nullable(fields[0].dataType), True, metadata)


def refuse_random(operator: str, what: str, field: StructField) -> None:
    """Raise ``PlanError`` if ``field_of`` marked ``field`` as random: its metadata has ``RANDOM``.
    Else return None. ``operator``: the subject of the error. ``what``: the column in words.
    """
    if field.metadata and RANDOM in field.metadata:
        raise PlanError(
            operator, f"{what} has {field.metadata[RANDOM]}, {REPEATED_PROBLEM}", RANDOM_REMEDY
        )


def text_of(owner: object, item: str | Column, row: Callable[[], DataFrame]) -> str:
    """Return the text of ``item``, a column's name or an expression, the same in every session. A
    name is quoted where SQL needs it. An expression is the SQL that Spark resolves it to; a Python
    function is its name alone.

    ``row``: makes a frame to resolve the expression over; called for an expression only. ``owner``:
    the node or reader that has the expression. The text is cached until this object is freed, so it
    must be hashable, by its identity, and take weak references. Spark's own error passes if the
    expression does not resolve.
    """
    if isinstance(item, str):
        return item if _PLAIN_NAME.fullmatch(item) else quoted(item)
    texts = _KNOWN_TEXTS.setdefault(owner, {})
    if id(item) not in texts:
        texts[id(item)] = analysis_of(row(), item).text
    return texts[id(item)]
