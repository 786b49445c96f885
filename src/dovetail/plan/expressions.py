"""Spark expressions as text: the same one in every session, by which a checkpoint knows them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dovetail.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PLAIN = re.compile(r"[A-Za-z0-9_]+")
# Spark draws a seed for each that is written without one.
_SEED = re.compile(r"\b(randn?)\(-?\d+L?\)")
# Of these SQL tells less than Spark's own form, where names carry numbers.
_UNTOLD = re.compile(r"namedlambdavariable\(\)|update_fields\(|from_(json|csv|xml)\(")
_NUMBERED = re.compile(r"(lambda \w+)?#\d+L?")

_KNOWN: WeakKeyDictionary[object, dict[int, str]] = WeakKeyDictionary()


def text_of(owner: object, item: str | Column, row: Callable[[], DataFrame]) -> str:
    """What an ``owner``'s column, by its name or as an expression over the frame ``row``, is
    computed by: its SQL as Spark resolves it. A Python function is told by its name alone.

    What was told of an owner's expression is remembered.
    """
    if isinstance(item, str):
        return item if _PLAIN.fullmatch(item) else quoted(item)
    known = _KNOWN.setdefault(owner, {})
    if id(item) not in known:
        known[id(item)] = _resolved(row(), item)
    return known[id(item)]


def _resolved(frame: DataFrame, column: Column) -> str:
    plan: Any = frame.select(column)._jdf.queryExecution().analyzed()  # noqa: SLF001 -- no public face
    expression = plan.expressions().head()
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
