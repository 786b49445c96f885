"""From the arguments of a join with a windowed table to its node, checked."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql.types import StructField, TimestampType

from dovetail.errors import PlanError
from dovetail.laws.table_join import How
from dovetail.plan.joins import as_entry, selected_of
from dovetail.plan.matching import OnComputed, expression_type, refuse_other_keys
from dovetail.plan.nodes import Node, WindowJoin, base_key, is_stream, windows_of
from dovetail.plan.select import Selection
from dovetail.plan.spans import Span, microseconds, written
from dovetail.plan.windows import Windows


class _Partitioned:
    """A side under the key that its rows are partitioned by, without a window."""

    def __init__(self, side: Node) -> None:
        self.name, self.key, self.values = side.name, base_key(side), side.values


def window_join(
    left: Node,
    right: Node,
    *,
    on: OnComputed | None,
    how: How,
    select: Selection | None,
    shift: Span | None = None,
    window_of: str | Column | None = None,
    label: str | None = None,
) -> WindowJoin:
    """A join in which at least one side has windows."""
    name = label or f"{how} join of {left.name} and {right.name}"
    ours, theirs = windows_of(left), windows_of(right)
    shift_us = 0 if shift is None else microseconds(name, "shift=", shift, negative=True)
    same = ours is not None and theirs is not None and shift_us == 0
    _refuse_how(name, how, both=same)
    refuse_other_keys(name, _Partitioned(left), _Partitioned(right), on)
    if ours is not None and theirs is not None:
        _refuse_other_windows(name, ours, theirs, shift_us)
    elif shift is not None:
        raise PlanError(
            name,
            "shift= is for two windowed tables",
            "Leave it out, or say with window_of= which window a row looks in",
        )
    if ours is None:
        assert theirs is not None
        _refuse_no_window(name, left, theirs, window_of)
    elif window_of is not None:
        raise PlanError(
            name, "window_of= is for a left side without windows", "Leave it out, or use shift="
        )
    one_key = same or is_stream(left)
    selected, values = selected_of(name, left, right, how, select, one_key=one_key)
    return WindowJoin(
        left=as_entry(name, left),
        right=as_entry(name, right),
        how=how,
        select=selected,
        values=values,
        shift_us=shift_us,
        window_of=window_of,
        label=label,
    )


def _refuse_how(name: str, how: How, *, both: bool) -> None:
    known = ("inner", "left", "outer") if both else ("left",)
    if how not in known:
        what = "windowed tables on the same window" if both else "these"
        raise PlanError(
            name,
            f"how={how!r} is not a join of {what}",
            f"Use {' or '.join(map(repr, known))}"
            + ("" if both or how != "inner" else ", and leave out what has no match with a filter"),
        )


def _refuse_other_windows(name: str, left: Windows, right: Windows, shift_us: int) -> None:
    if (left.kind, left.size_us, left.advance_us) != (right.kind, right.size_us, right.advance_us):
        raise PlanError(
            name,
            f"the sides have different windows: {left}; {right}",
            "Aggregate both over the same windows",
        )
    if shift_us and not left.fixed:
        raise PlanError(
            name, f"{left.kind} windows have no fixed places to shift to", "Use fixed windows"
        )
    if shift_us and shift_us % left.advance_us:
        raise PlanError(
            name,
            f"shift={written(abs(shift_us))} falls between windows that begin every "
            f"{written(left.advance_us)}",
            "Shift by a multiple of that",
        )
    # A window that changes must find the other side's, however far behind that begins.
    for what, own, other, away_us in (
        ("right", left, right, -shift_us),
        ("left", right, left, shift_us),
    ):
        needed_us = own.size_us + own.grace_us + away_us
        if other.retention_us < needed_us:
            raise PlanError(
                name,
                f"the {what} side keeps windows for {written(other.retention_us)}, and they are "
                f"asked for after {written(needed_us)}",
                f"Give its windows retention={written(needed_us)!r} or more",
            )


def _refuse_no_window(
    name: str, left: Node, windows: Windows, window_of: str | Column | None
) -> None:
    """The left side must say in which of the right side's windows it looks."""
    if not windows.fixed:
        raise PlanError(
            name,
            f"{windows.kind} windows begin where records are, so no row can name one",
            "Use tumbling or hopping windows",
        )
    remedy = "Give a timestamp, the start of a window: a column or an expression over the row"
    if window_of is None:
        raise PlanError(
            name, "nothing says which window a row looks in", f"window_of= is missing. {remedy}"
        )
    if isinstance(window_of, Column):
        type_ = expression_type(name, "window_of=", left, window_of)
    else:
        known: dict[str, StructField] = {f.name: f for f in (*left.key, *left.values)}
        if window_of not in known:
            raise PlanError(
                name,
                f"window_of= names an unknown column {window_of!r}",
                f"Known in {left.name} are {', '.join(known)}",
            )
        type_ = known[window_of].dataType
    if not isinstance(type_, TimestampType):
        raise PlanError(name, f"window_of= is of type {type_.simpleString()}", remedy)
