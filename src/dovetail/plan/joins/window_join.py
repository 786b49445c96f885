"""Joins with at least one windowed side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pyspark.sql import Column
from pyspark.sql.types import TimestampType

from dovetail.errors import PlanError
from dovetail.laws.joins.table_join import How
from dovetail.plan.joins.join_call import JoinCall, side_as_input
from dovetail.plan.joins.join_keys import expression_type, refuse_other_keys
from dovetail.plan.nodes import Entry, JoinNode, Node, Text
from dovetail.plan.types.checks import known_field
from dovetail.plan.types.spans import Span, microseconds, span_as_text
from dovetail.plan.types.windows import Windows


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowJoin(JoinNode):
    """A join with at least one windowed side, run by the key without its window.

    If both sides have windows, rows of the same window match, or of windows ``shift_us`` apart. If
    only the left side has windows, its rows match the right row of their key. If only the right
    side has windows, ``window_of`` gives the start of the window that a left row looks in.
    """

    kind: ClassVar[str] = "windowed tables"
    has_own_key = True

    left: Entry
    right: Entry
    shift_us: int = 0
    """The time from a left window's start to the right window's start, in microseconds; may be
    negative.
    """
    window_of: str | Column | None = None
    """A column of the left side, or an expression over its row; None if the left
    side has windows.
    """

    @property
    def windows(self) -> Windows | None:
        """The windows of the result: those of the left side, or None if that has none.

        If both sides have windows, their grace period and retention differ from the left side's: a
        window of the result is closed when those of both sides are, and retained as long as both.
        The right side's retention counts as longer by the length of the shift, later or earlier.
        """
        left, right = self.left.windows, self.right.windows
        if left is None or right is None:
            return left
        return replace(
            left,
            grace_us=max(left.grace_us, right.grace_us + self.shift_us),
            # A right window that is earlier is long complete when its rows go.
            retention_us=min(left.retention_us, right.retention_us + abs(self.shift_us)),
        )

    @property
    def stream(self) -> bool:
        """True if the left side is a stream; the result is one then."""
        return self.left.stream

    @property
    def meets_by_key(self) -> bool:
        """True if rows of both sides meet as in a join by key, not as by a foreign key.

        They do if both sides have windows and the same window meets. So does a stream without
        windows, whose records look up the window of ``window_of`` as they arrive. False for shifted
        windows, for a table without windows on the left, and if the right side has no windows.
        """
        if self.right.windows is None:
            return False
        return self.left.stream if self.left.windows is None else self.shift_us == 0

    @property
    def fallible(self) -> bool:
        """True if ``window_of`` may fail on a left row: if it is an expression. A column cannot."""
        return isinstance(self.window_of, Column)

    @property
    def manner(self) -> str:
        """A few words for ``explain`` on the windows that meet: the same ones, shifted ones, those
        of ``window_of``, or a row without a window.
        """
        if self.left.windows is None:
            looks = self.window_of if isinstance(self.window_of, str) else "an expression"
            return f"of the window that begins at {looks}"
        if self.right.windows is None:
            return "of windows with their key's row"
        if self.shift_us:
            way = "later" if self.shift_us > 0 else "earlier"
            return f"of windows with those {span_as_text(abs(self.shift_us))} {way}"
        return "of the same windows"

    def options(self, text: Text) -> Mapping[str, Any]:
        """Return, as JSON data, the options on which stored state depends. ``shift_us`` is the time
        from a left window to the right one. ``window_of`` is the text of the column or expression
        of the right window's start, None without one. ``text``: returns that text, given the item
        and the schema of the left row.
        """
        looks = self.window_of
        window_text = None if looks is None else text(looks, self.left.row)
        return {"shift_us": self.shift_us, "window_of": window_text}


class _Partitioned:
    """A side of a join as ``refuse_other_keys`` reads it: its name, its values, and as key the
    columns that its rows are partitioned by, without a window.
    """

    def __init__(self, side: Node) -> None:
        self.name, self.key, self.values = side.name, side.base_key, side.values


def window_join(
    call: JoinCall,
    *,
    shift: Span | None = None,
    window_of: str | Column | None = None,
    others: Mapping[str, object] | None = None,
) -> WindowJoin:
    """Return the join of the two sides of ``call``, of which at least one has windows.

    Without a requested kind, windowed tables on the same window join inner, all others left.
    ``shift``: the time from a left window to the right one that it meets; it may be negative. None
    and a zero span mean the same window. ``window_of``: for a left side without windows, a column
    or an expression: the timestamp at which the right window begins that a left row meets.

    ``others``: arguments that do not apply, by name, with None for those that were not given.
    Raises ``PlanError`` for given ones, for ``align=``, and for windows that do not fit together. A
    ``shift`` needs windows on both sides, ``window_of`` none on the left. Also for keys that
    ``on=`` does not pair as a whole (without windows), and for a kind of join that these sides do
    not have. It refuses columns that cannot be selected, and a stream that withdraws records
    (``unmatched="retract"``).
    """
    others = {"align": call.align, **(others or {})}
    call.refuse(others, "does not apply to a windowed table")
    left, right = call.left, call.right
    ours, theirs = left.windows, right.windows
    call = replace(call, default="left")
    shift_us = 0 if shift is None else microseconds(call.name, "shift=", shift, negative=True)
    same = ours is not None and theirs is not None and shift_us == 0
    if same:
        call = replace(call, default="inner")
    name = call.name
    _refuse_how(name, call.how, both=same)
    refuse_other_keys(name, _Partitioned(left), _Partitioned(right), call.on)
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
    return WindowJoin(
        left=side_as_input(name, left),
        right=side_as_input(name, right, exact=True),
        shift_us=shift_us,
        window_of=window_of,
        **call.join_fields(left, right, one_key=same or left.stream),
    )


def _refuse_how(name: str, how: How, *, both: bool) -> None:
    """Raise ``PlanError`` for a kind of join that these sides do not have. ``name``: the join in
    errors. ``both``: True for the same window on both sides, which can be joined inner, left and
    outer. Other sides can only be joined left.
    """
    kinds = ("inner", "left", "outer") if both else ("left",)
    if how not in kinds:
        what = "windowed tables on the same window" if both else "these"
        raise PlanError(
            name,
            f"how={how!r} is not a join of {what}",
            f"Use {' or '.join(map(repr, kinds))}"
            + ("" if both or how != "inner" else ", and leave out what has no match with a filter"),
        )


def _refuse_other_windows(name: str, left: Windows, right: Windows, shift_us: int) -> None:
    """Raise ``PlanError`` unless the windows of both sides fit together.

    Both must have the same kind, size and advance. A shift needs fixed windows, tumbling or hopping
    ones, and is a multiple of the advance. Each side must retain a window as long as the other
    side's window may still change: for its size and grace period, corrected by the shift. Equal
    spans pass. ``name``: the join in errors. ``shift_us``: the microseconds from a left window to
    the right one, perhaps negative; 0 for the same window.
    """
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
            f"shift={span_as_text(abs(shift_us))} falls between windows that begin every "
            f"{span_as_text(left.advance_us)}",
            "Shift by a multiple of that",
        )
    # A window that changes must find the other side's window, so that must be retained as long.
    for what, windows, other, away_us in (
        ("right", left, right, -shift_us),
        ("left", right, left, shift_us),
    ):
        needed_us = windows.size_us + windows.grace_us + away_us
        if other.retention_us < needed_us:
            raise PlanError(
                name,
                f"the {what} side keeps windows for {span_as_text(other.retention_us)}, "
                f"and they are asked for after {span_as_text(needed_us)}",
                f"Give its windows retention={span_as_text(needed_us)!r} or more",
            )


def _refuse_no_window(
    name: str, left: Node, windows: Windows, window_of: str | Column | None
) -> None:
    """Raise ``PlanError`` unless ``window_of`` is a timestamp column of the left side, or an
    expression of that type over the left row. None is refused. So are ``windows``, those of the
    right side, if they are not fixed (tumbling or hopping). ``name``: the join in errors. An
    expression needs a Spark session.
    """
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
        type_ = known_field(name, "window_of=", window_of, left.row, input_name=left.name).dataType
    if not isinstance(type_, TimestampType):
        raise PlanError(name, f"window_of= is of type {type_.simpleString()}", remedy)
