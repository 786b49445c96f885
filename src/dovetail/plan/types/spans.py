"""Spans of time as users write them, such as ``"5 min"``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, TypeAlias

from dovetail.base.validation import Rule
from dovetail.errors import PlanError

_EXAMPLES = '"30 s", "5 min", "1 hour" or "7 days"'

Span: TypeAlias = Annotated[
    str | timedelta, Rule(f"a span of time, such as {_EXAMPLES}, or a datetime.timedelta")
]

_UNITS_US = {
    "us": 1,
    "microsecond": 1,
    "ms": 1_000,
    "millisecond": 1_000,
    "s": 1_000_000,
    "sec": 1_000_000,
    "second": 1_000_000,
    "min": 60_000_000,
    "minute": 60_000_000,
    "h": 3_600_000_000,
    "hour": 3_600_000_000,
    "d": 86_400_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
}
_PLURALS_US = {f"{unit}s": length for unit, length in _UNITS_US.items() if len(unit) > 2}
_LONGEST_US = 1000 * 366 * 86_400_000_000


def microseconds(operator: str, argument: str, span: Span, *, negative: bool = False) -> int:
    """Return a span in microseconds. A span is a ``timedelta``, or a text such as ``"7 days"`` or
    ``"7d"``: a whole number, perhaps with a sign, and a unit in lower case. Units are ``us``,
    ``ms``, ``s``, ``sec``, ``min``, ``h``, ``d`` and the words from ``microsecond`` to ``week``.
    Those of three letters and more have a plural, too.

    ``operator``, ``argument``: for errors. ``negative``: True if the span may be below zero. Raises
    ``PlanError`` for a text that is no span, for more than 1000 years of 366 days and, unless
    ``negative``, for less than zero.

    >>> microseconds("join", "grace=", "1 min")
    60000000
    """
    remedy = f"Write it as {_EXAMPLES}, or as a datetime.timedelta"
    if isinstance(span, timedelta):
        length = span // timedelta(microseconds=1)
    else:
        match = re.fullmatch(r"\s*([-+]?\d+)\s*([a-z]+)\s*", span)
        unit = match[2] if match else ""
        per_unit = _UNITS_US.get(unit) or _PLURALS_US.get(unit)
        if match is None or per_unit is None:
            raise PlanError(operator, f"{argument}{span!r} is not a span of time", remedy)
        length = int(match[1]) * per_unit
    if length < 0 and not negative:
        raise PlanError(operator, f"{argument}{span!r} is negative", "Use zero or more")
    if abs(length) > _LONGEST_US:
        raise PlanError(operator, f"{argument}{span!r} is too long", "Use at most 1000 years")
    return length


def span_as_text(span_us: int) -> str:
    """Return a span of microseconds in words, in the largest unit up to days that divides it. The
    sign of a negative span is kept.

    >>> span_as_text(90_000_000), span_as_text(7 * 86_400_000_000), span_as_text(0)
    ('90 s', '7 days', '0 s')
    """
    for name in ("day", "hour", "min", "s", "ms"):
        if span_us and span_us % _UNITS_US[name] == 0:
            count = span_us // _UNITS_US[name]
            plural = "s" if name in ("day", "hour") and abs(count) != 1 else ""
            return f"{count} {name}{plural}"
    return f"{span_us} us" if span_us else "0 s"
