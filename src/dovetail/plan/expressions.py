"""Spark expressions as users give them: what they make, and as text, the same one in every session,
by which a checkpoint knows them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException
from pyspark.sql.types import StructField

from dovetail.columns import quoted
from dovetail.errors import PlanError
from dovetail.plan.analysis import analysis_of
from dovetail.plan.arrow import nullable
from dovetail.refusals import reason

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RANDOM = "dovetail.random"
"""In a field's metadata: what in its expression makes another value of a row each time."""
AGAIN = (
    "which makes other values when a micro-batch is run again after a failure, so that rows of its "
    "first run would stay for ever"
)
REMEDY = (
    "Compute it of the row, for instance by F.xxhash64 of its key, or before: in what writes the "
    "source"
)

_PLAIN = re.compile(r"[A-Za-z0-9_]+")

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
    """What an expression over a frame makes of each row, as Spark resolves it, nullable at every
    depth; with ``RANDOM`` in its metadata where that is another value each time.

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
    """Refuse an expression that makes another value of a row when it is computed again, as
    ``field_of`` has found.
    """
    if field.metadata and RANDOM in field.metadata:
        raise PlanError(operator, f"{what} has {field.metadata[RANDOM]}, {AGAIN}", REMEDY)


def text_of(owner: object, item: str | Column, row: Callable[[], DataFrame]) -> str:
    """What an ``owner``'s column, by its name or as an expression over the frame ``row``, is
    computed by: its SQL as Spark resolves it. A Python function is known by its name alone.

    What was found of an owner's expression is remembered.
    """
    if isinstance(item, str):
        return item if _PLAIN.fullmatch(item) else quoted(item)
    known = _KNOWN.setdefault(owner, {})
    if id(item) not in known:
        known[id(item)] = analysis_of(row(), item).text
    return known[id(item)]
