"""Parts that the builders of all joins share: a call's arguments, its sides, and
``materialize``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from pyspark.sql.types import StructType

from dovetail.errors import PlanError
from dovetail.laws.joins.table_join import How
from dovetail.plan.joins.join_keys import OnComputed
from dovetail.plan.nodes import Derived, Describe, Entry, Node, RowsNode, Selected, join_name
from dovetail.plan.select import Selection, resolve_selection, select_all
from dovetail.plan.types.checks import refuse_given
from dovetail.plan.types.spans import Span, microseconds

TWICE_REMEDY = "Leave it out or give it another name with select="
"""Advice on a column that a join's result has twice."""


class JoinFields(TypedDict):
    """The fields of a join node that follow from a call's arguments."""

    how: How
    select: tuple[Selected, ...]
    values: StructType
    align_us: int | None
    label: str | None


@dataclass(frozen=True, eq=False)
class Materialized(RowsNode):
    """A table with its rows stored in a stage of its own, which passes on only changes of rows."""

    summary = "materialized"

    def state_properties(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """Return, as JSON data for a topology's fingerprint (a hash), the part on which the state
        depends: the stored table under ``materialized``, as ``describe`` returns it. ``whole``
        changes nothing.
        """
        return {"materialized": describe(self.node)}


@dataclass(frozen=True)
class JoinCall:
    """The arguments that all joins take."""

    left: Node
    """The left side."""
    right: Node
    """The right side."""
    on: OnComputed | None
    """The columns that are equal; None for the keys of both sides."""
    requested: How | None
    """The kind of join that the user names, such as ``"left"``; None for ``default``."""
    select: Selection | None
    """The selected value columns; None for all."""
    align: Span | None = None
    """The time that a side waits for the other side to catch up; None for no wait."""
    label: str | None = None
    """The user's name for the join, or None."""
    default: How = "inner"
    """The kind of join if the user names none: left for sides that have no inner join."""
    spread: int | None = None
    """The count of buckets over which a join by foreign key spreads the left rows of one foreign
    key; None for one."""

    @property
    def how(self) -> How:
        """The kind of join: the user's or, if none is named, the default."""
        return self.requested or self.default

    @property
    def name(self) -> str:
        """The name of the join in errors: the user's, or one made of the sides."""
        return self.label or join_name(self.how, self.left, self.right)

    def join_fields(
        self,
        left: Node,
        right: Node,
        *,
        one_key: bool = True,
        paired: Sequence[str] | None = None,
    ) -> JoinFields:
        """Return the fields of the join's node that follow from the call, by name: ``how``,
        ``select`` (the selected columns), ``values`` (their fields, in the same order),
        ``align_us`` (None without a wait) and ``label``. By default all value columns are selected,
        the left ones first.

        ``left``, ``right``: the sides as the join reads them, in place of those of the call.
        ``one_key``: True if both sides have the same key, whose columns the result has anyway.
        ``paired``: the left column that equals each right key column. None means the left key's
        columns with ``one_key``, else none. Both matter to a selection only. Raises ``PlanError``
        for unknown, ambiguous, reserved and repeated columns, for expressions that do not resolve,
        and if ``align`` is no span.
        """
        if self.select is None:
            selected = select_all(self.name, left, right)
            values = StructType([*left.values.fields, *right.values.fields])
        else:
            how = self.how
            selected, values = resolve_selection(
                self.name, left, right, how, self.select, one_key=one_key, paired=paired
            )
        align = self.align
        return {
            "how": self.how,
            "select": selected,
            "values": values,
            "align_us": None if align is None else microseconds(self.name, "align=", align),
            "label": self.label,
        }

    def refuse(
        self, arguments: Mapping[str, object], problem: str, remedy: str = "Leave it out"
    ) -> None:
        """Raise ``PlanError`` for the first of ``arguments`` whose value is not None; raise nothing
        if all are None.

        ``arguments``: the values by the argument's name without ``=``. ``problem``: the words that
        follow the name in the error. ``remedy``: the error's advice.
        """
        refuse_given(self.label or "join", problem, remedy, **arguments)


def side_as_input(name: str, side: Node, *, exact: bool = False) -> Entry:
    """Return a side as an input of the join's own stage: a source, a stage's result or a view as it
    is, another node as the result of its stage (``Derived``). Two such results are equal if they
    are of the same node.

    ``name``: the join in errors. ``exact``: True to give an input that may emit tombstones of keys
    without a row a stage of its own, which drops them. Raises ``PlanError`` for a join of streams
    with ``unmatched="retract"``, which withdraws records that it has emitted. A source, a result
    and a view are not checked for that.
    """
    if isinstance(side, Entry) and not (exact and side.emits_spurious_tombstones):
        return side
    if side.withdraws:
        raise PlanError(
            name,
            f"{side.name} withdraws rows (unmatched='retract'), which a stream's reader cannot",
            "Use unmatched='on_close' or 'eager' there",
        )
    return Derived(side)


def side_as_changes(name: str, side: Node) -> Entry:
    """Return a side as an input of a node that stores no rows and passes on each change. A side
    with tombstones that views add for keys without a row gets a stage of its own, which drops them.

    So does a versioned table, whose stage drops late changes, as these change no current row. Other
    sources and stage results are returned as they are, other nodes as the result of their stage.
    ``name``: the node in errors. Raises ``PlanError`` for a join of streams with
    ``unmatched="retract"``, which withdraws records that it has emitted.
    """
    if isinstance(side, Entry) and side.versioned_us is not None:
        return Derived(Materialized(side))
    return side_as_input(name, side, exact=True)


def materialize(node: Node) -> Materialized:
    """Return the table ``node`` with its rows stored in a stage of their own, which emits a change
    only if it changes a row. Raises ``PlanError`` for a join of histories (``late="history"``),
    which emits corrections of past rows.
    """
    refuse_corrected(node.name, node)
    return Materialized(side_as_input(node.name, node))


def table_side(side: Node) -> Node:
    """Return a table as a side of a join by key. A join of current rows by key stays as it is,
    since both joins share one stage. So does an input of stages: a source, a view or a stage's
    result. Any other table becomes the result of its stage (``Derived``).
    """
    return side if side.by_key else Derived(side)


def refuse_how(name: str, how: str, kinds: Sequence[str], what: str) -> None:
    """Raise ``PlanError`` if ``how`` is not among the ``kinds`` of join, at least two. The error
    lists them, and advises on right joins if outer ones are among them.

    ``name``: the join in errors. ``what``: the sides in errors, such as ``"streams"``.
    """
    if how not in kinds:
        options = f"{', '.join(map(repr, kinds[:-1]))} or {kinds[-1]!r}"
        swap = (
            "; for a right join swap the sides: right.join(left, how='left')"
            if "outer" in kinds
            else "; a table's records do not trigger this join"
        )
        raise PlanError(name, f"how={how!r} is not a join of {what}", f"Use {options}{swap}")


def refuse_corrected(name: str, side: Node) -> None:
    """Raise ``PlanError`` if ``side`` is a join of histories (``late="history"``,
    ``Node.corrects``). It emits corrections of past rows, so its last change of a key is not the
    current row. ``name``: the reader of the side in errors. The result of its stage (``Derived``)
    passes, so ``side`` must be the node that the user gave.
    """
    if side.corrects:
        raise PlanError(
            name,
            f"{side.name} emits corrections of its past (late='history')",
            "Join its inputs with late='ignore', or write it out and read it as a versioned table",
        )
