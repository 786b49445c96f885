"""From a join's arguments to its node: everything a user can get wrong is found here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pyspark.sql import Column
from pyspark.sql.types import StructType

from dovetail.arguments import Rule, validated, validated_fields
from dovetail.errors import PlanError
from dovetail.laws.stream_join import Unmatched
from dovetail.laws.table_join import How
from dovetail.plan.checks import refuse_duplicates
from dovetail.plan.matching import On, pairs_of, refuse_other_keys
from dovetail.plan.nodes import (
    Derived,
    Entry,
    ForeignKeyJoin,
    Late,
    Materialized,
    Node,
    Selected,
    Source,
    StreamJoin,
    StreamTableJoin,
    TableJoin,
    entries,
)
from dovetail.plan.select import Selection, resolve, select_all
from dovetail.plan.spans import Span, microseconds


@validated_fields
@dataclass(frozen=True)
class Within:
    """The window of a stream-stream join, in microseconds; made by ``within``."""

    before_us: int
    after_us: int
    grace_us: int


AWithin: TypeAlias = Annotated[Within, Rule('a window such as dt.within(before="5 min")')]


@validated
def within(*, before: Span = "0 s", after: Span = "0 s", grace: Span = "0 s") -> Within:
    """The window of a stream-stream join: R joins L when L.ts - before <= R.ts <= L.ts + after,
    both ends included.

    Spans are texts such as ``"5 min"`` or ``datetime.timedelta``. ``before`` or ``after`` may be
    negative as long as the window is not empty: ``within(before="-1 min", after="5 min")`` joins
    what comes one to five minutes later. ``grace``: how much later than its window, in stream time,
    a record may still arrive.

    Raises ``PlanError`` for what is not a span and for an empty window.
    Source: Kafka Streams join design, "windowed join"; KIP-77.
    """
    before_us = microseconds("within", "before=", before, negative=True)
    after_us = microseconds("within", "after=", after, negative=True)
    grace_us = microseconds("within", "grace=", grace)
    if before_us + after_us < 0:
        raise PlanError(
            "within",
            f"the window from before={before!r} to after={after!r} is empty",
            "Let before + after be zero or more",
        )
    return Within(before_us, after_us, grace_us)


def table_join(
    left: Node,
    right: Node,
    *,
    how: How,
    select: Selection | None,
    late: Late,
    align: Span | None,
    label: str | None,
) -> TableJoin:
    """Two tables joined by key."""
    name = label or _name(how, left, right)
    left, right = _table_side(left), _table_side(right)
    _refuse_how(name, how, ("inner", "left", "outer"), "tables by key")
    for side in (left, right):
        refuse_corrected(name, side)
    if late == "history":
        _refuse_without_histories(name, left, right)
    selected, values = selected_of(name, left, right, how, select)
    return TableJoin(
        left=left,
        right=right,
        how=how,
        select=selected,
        values=values,
        late=late,
        align_us=_align(name, align),
        label=label,
    )


def foreign_key_join(
    left: Node,
    right: Node,
    *,
    how: How,
    on: tuple[str | Column, ...],
    select: Selection | None,
    label: str | None,
) -> ForeignKeyJoin:
    """Two tables joined by what the left one's rows say of the right one's key."""
    name = label or _name(how, left, right)
    for side in (left, right):
        refuse_corrected(name, side)
    left, right = as_entry(name, left), as_entry(name, right)
    selected, values = selected_of(name, left, right, how, select, one_key=False)
    node = ForeignKeyJoin(
        left=left, right=right, how=how, select=selected, values=values, on=on, label=label
    )
    refuse_duplicates(
        name,
        [*node.key.names, *values.names],
        "Leave it out or give it another name with select=",
    )
    return node


def materialized(node: Node) -> Materialized:
    """A table with its rows kept."""
    refuse_corrected(node.name, node)
    return Materialized(as_entry(node.name, node))


def stream_table_join(
    left: Node,
    right: Node,
    *,
    how: How,
    on: On | None,
    grace: Span | None,
    select: Selection | None,
    align: Span | None,
    label: str | None,
) -> StreamTableJoin:
    """A stream joined with a table."""
    name = label or _name(how, left, right)
    _refuse_how(name, how, ("inner", "left"), "a stream with a table")
    refuse_corrected(name, right)
    columns = tuple(str(column) for column, _ in pairs_of(name, left, right, on))
    if grace is not None or not _same_look_up(left, columns):
        left = as_entry(name, left)
    right = _table_side(right)
    grace_us = None
    if grace is not None:
        grace_us = microseconds(name, "grace=", grace)
        _refuse_short_history(name, right, grace, grace_us)
    selected, values = selected_of(name, left, right, how, select)
    return StreamTableJoin(
        left=left,
        right=right,
        how=how,
        on=columns,
        grace_us=grace_us,
        select=selected,
        values=values,
        align_us=_align(name, align),
        label=label,
    )


def stream_join(
    left: Node,
    right: Node,
    *,
    how: How,
    on: On | None,
    within: Within | None,
    unmatched: Unmatched,
    select: Selection | None,
    align: Span | None,
    label: str | None,
) -> StreamJoin:
    """Two streams, or one with itself, joined within a window of time."""
    name = label or _name(how, left, right)
    _refuse_how(name, how, ("inner", "left", "outer"), "streams")
    if within is None:
        raise PlanError(
            name,
            "a join of two streams needs a window",
            'Give one, for instance within=dt.within(before="5 min", after="1 min")',
        )
    refuse_other_keys(name, left, right, on)
    left, right = as_entry(name, left), as_entry(name, right)
    selected, values = selected_of(name, left, right, how, select)
    return StreamJoin(
        left=left,
        right=right,
        how=how,
        before_us=within.before_us,
        after_us=within.after_us,
        grace_us=within.grace_us,
        unmatched=unmatched,
        select=selected,
        values=values,
        align_us=_align(name, align),
        label=label,
    )


def _name(how: str, left: Node, right: Node) -> str:
    return f"{how} join of {left.name} and {right.name}"


def _refuse_how(name: str, how: str, known: Sequence[str], what: str) -> None:
    if how not in known:
        options = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
        swap = (
            "; for a right join swap the sides: right.join(left, how='left')"
            if "outer" in known
            else "; a table's records do not trigger this join"
        )
        raise PlanError(name, f"how={how!r} is not a join of {what}", f"Use {options}{swap}")


def selected_of(
    name: str,
    left: Node,
    right: Node,
    how: How,
    select: Selection | None,
    *,
    one_key: bool = True,
) -> tuple[tuple[Selected, ...], StructType]:
    """The value columns of a join's result, all of both sides by default."""
    if select is None:
        both = StructType([*left.values.fields, *right.values.fields])
        return select_all(name, left, right), both
    return resolve(name, left, right, how, select, one_key=one_key)


def _align(name: str, align: Span | None) -> int | None:
    return None if align is None else microseconds(name, "align=", align)


def _same_look_up(left: Node, columns: tuple[str, ...]) -> bool:
    """Whether these columns of a join's result are those by which it looked its own table up, at
    once.
    """
    if not isinstance(left, StreamTableJoin) or left.grace_us is not None:
        return False
    held = {s.name: s.ref for s in left.select}
    return columns == left.on and all(
        column in left.key.names or held.get(column) == ("left", column) for column in columns
    )


def as_entry(name: str, side: Node) -> Entry:
    """A side as an input of the join's own stage."""
    if isinstance(side, Entry):
        return side
    if isinstance(side, StreamJoin) and side.how != "inner" and side.unmatched == "retract":
        raise PlanError(
            name,
            f"{side.name} withdraws rows (unmatched='retract'), which a stream's reader cannot",
            "Use unmatched='on_close' or 'eager' there",
        )
    return Derived(side)


def _table_side(side: Node) -> Node:
    """A table as one side of a join by key: joins by the same key run in one stage."""
    return side if isinstance(side, (Source, Derived, TableJoin)) else Derived(side)


def refuse_corrected(name: str, side: Node) -> None:
    """The result of a join of histories is a history, not a table's current rows."""
    if isinstance(side, TableJoin) and side.late == "history":
        raise PlanError(
            name,
            f"{side.name} emits corrections of its past (late='history')",
            "Join its inputs with late='ignore', or write it out and read it as a versioned table",
        )


def _refuse_without_histories(name: str, left: Node, right: Node) -> None:
    for side in (left, right):
        if not isinstance(side, Source) or side.versioned_us is None:
            raise PlanError(
                name,
                f"late='history' needs the history of {side.name}, which it does not keep",
                "Read both sides as versioned tables, for instance versioned='7 days'",
            )
    if left is right:
        raise PlanError(
            name,
            "late='history' joins a table with itself",
            "Read the table twice, under two names",
        )


def _refuse_short_history(name: str, right: Node, grace: Span, grace_us: int) -> None:
    for source in entries(right):
        if source.versioned_us is None:
            raise PlanError(
                name,
                f"grace= lets records wait, and {source.name} forgets what it was when they came",
                "Read it as a versioned table, for instance versioned='7 days'",
            )
        if source.versioned_us < grace_us:
            raise PlanError(
                name,
                f"grace={grace!r} is longer than the history of {source.name}",
                "Let the table's versioned= be at least as long",
            )
