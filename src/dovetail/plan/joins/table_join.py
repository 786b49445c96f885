"""The join of two tables by key: of their current rows, or of all of their history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dovetail.errors import PlanError
from dovetail.plan.joins.join_call import JoinCall, refuse_corrected, refuse_how, table_side
from dovetail.plan.nodes import JoinNode, Late, Node, Text


@dataclass(frozen=True, eq=False, kw_only=True)
class TableJoin(JoinNode):
    """A join of two tables by primary key."""

    kind: ClassVar[str] = "tables by key"
    manner = "by key"
    by_key = True

    def options(self, text: Text) -> Mapping[str, Any]:
        """Return an empty mapping: stored state depends on the sides alone. ``text`` is not
        used.
        """
        return {}


@dataclass(frozen=True, eq=False, kw_only=True)
class HistoryJoin(TableJoin):
    """A join of two versioned tables by primary key, over all of their history. Late records
    correct it.
    """

    kind: ClassVar[str] = "histories by key"
    manner = "by key, late records correct the history"
    by_key = False
    corrects = True


def table_join(call: JoinCall, late: Late) -> TableJoin:
    """Return the join of the two tables of ``call`` by key. ``late``: ``"ignore"`` joins their
    current rows, ``"history"`` all of their history, as a ``HistoryJoin``. ``call.on`` is not read:
    the caller must have checked with ``pairs_of`` that it pairs both keys.

    Raises ``PlanError`` for joins other than inner, left and outer, and for columns that cannot be
    selected. So it does for a side that is itself a join of histories (``late="history"``). With
    ``"history"``, it also refuses tables without a history, and a table with itself.
    """
    left, right = table_side(call.left), table_side(call.right)
    refuse_how(call.name, call.how, ("inner", "left", "outer"), "tables by key")
    for side in (call.left, call.right):
        refuse_corrected(call.name, side)
    if late == "history":
        _refuse_without_histories(call.name, left, right)
    kind = HistoryJoin if late == "history" else TableJoin
    return kind(left=left, right=right, **call.join_fields(left, right))


def _refuse_without_histories(name: str, left: Node, right: Node) -> None:
    """Raise ``PlanError`` for a join of histories if a side keeps no history, or if both sides are
    the same node. ``name``: the join in errors.
    """
    for side in (left, right):
        if side.versioned_us is None:
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
