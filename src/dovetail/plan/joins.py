"""What the builders of all joins share: the arguments of a call, and its sides; and a table with
its rows kept, as which some read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from pyspark.sql.types import StructType

from dovetail.errors import PlanError
from dovetail.laws.table_join import How
from dovetail.plan.checks import refuse_given
from dovetail.plan.matching import OnComputed
from dovetail.plan.nodes import Derived, Describe, Entry, Node, Rows, Selected, join_name
from dovetail.plan.select import Selection, resolve, select_all
from dovetail.plan.spans import Span, microseconds

TWICE = "Leave it out or give it another name with select="
"""What to do about a column that a join's result has twice."""


class Chosen(TypedDict):
    """What of a join's node its arguments and sides give."""

    how: How
    select: tuple[Selected, ...]
    values: StructType
    align_us: int | None
    label: str | None


@dataclass(frozen=True, eq=False)
class Materialized(Rows):
    """A table with its rows kept in a stage of its own: only what changes a row passes."""

    summary = "materialized"

    def described(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """What is kept."""
        return {"materialized": describe(self.node)}


@dataclass(frozen=True)
class Call:
    """The arguments that all joins take."""

    left: Node
    right: Node
    on: OnComputed | None
    how: How
    select: Selection | None
    align: Span | None = None
    label: str | None = None

    @property
    def name(self) -> str:
        """What errors call the join."""
        return self.label or join_name(self.how, self.left, self.right)

    def chosen(self, left: Node, right: Node, *, one_key: bool = True) -> Chosen:
        """The join of these sides as it is asked for, with all value columns by default."""
        if self.select is None:
            selected = select_all(self.name, left, right)
            values = StructType([*left.values.fields, *right.values.fields])
        else:
            how = self.how
            selected, values = resolve(self.name, left, right, how, self.select, one_key=one_key)
        align = self.align
        return {
            "how": self.how,
            "select": selected,
            "values": values,
            "align_us": None if align is None else microseconds(self.name, "align=", align),
            "label": self.label,
        }

    def refuse(
        self, given: Mapping[str, object], problem: str, remedy: str = "Leave it out"
    ) -> None:
        """Refuse arguments that do not go with these sides: all but those that are None."""
        refuse_given(self.label or "join", problem, remedy, **given)


def as_entry(name: str, side: Node, *, exact: bool = False) -> Entry:
    """A side as an input of the join's own stage; ``exact``: without tombstones of keys that had no
    row, which a stage of its own leaves out.
    """
    if isinstance(side, Entry) and not (exact and side.loose):
        return side
    if side.withdraws:
        raise PlanError(
            name,
            f"{side.name} withdraws rows (unmatched='retract'), which a stream's reader cannot",
            "Use unmatched='on_close' or 'eager' there",
        )
    return Derived(side)


def as_changes(name: str, side: Node) -> Entry:
    """A side as an input of what keeps no rows, and passes each change as it comes: of a versioned
    table a stage of its own leaves out the late ones, which change no row.
    """
    if isinstance(side, Entry) and side.versioned_us is not None:
        return Derived(Materialized(side))
    return as_entry(name, side, exact=True)


def materialized(node: Node) -> Materialized:
    """A table with its rows kept."""
    refuse_corrected(node.name, node)
    return Materialized(as_entry(node.name, node))


def table_side(side: Node) -> Node:
    """A table as one side of a join by key: joins by the same key run in one stage."""
    return side if side.by_key else Derived(side)


def refuse_how(name: str, how: str, known: Sequence[str], what: str) -> None:
    """Refuse what is not among the ``known`` ways to join these sides."""
    if how not in known:
        options = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
        swap = (
            "; for a right join swap the sides: right.join(left, how='left')"
            if "outer" in known
            else "; a table's records do not trigger this join"
        )
        raise PlanError(name, f"how={how!r} is not a join of {what}", f"Use {options}{swap}")


def refuse_corrected(name: str, side: Node) -> None:
    """The result of a join of histories is a history, not a table's current rows."""
    if side.corrects:
        raise PlanError(
            name,
            f"{side.name} emits corrections of its past (late='history')",
            "Join its inputs with late='ignore', or write it out and read it as a versioned table",
        )
