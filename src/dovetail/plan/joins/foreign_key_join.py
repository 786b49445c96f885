"""The join of two tables by a foreign key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column
from pyspark.sql.types import StructType

from dovetail.errors import PlanError
from dovetail.laws.joins.table_join import sides_preserved
from dovetail.plan.joins.join_call import TWICE_REMEDY, JoinCall, refuse_corrected, side_as_input
from dovetail.plan.nodes import Entry, JoinNode, Text, with_right_key
from dovetail.plan.types.checks import refuse_duplicates


@dataclass(frozen=True, eq=False, kw_only=True)
class ForeignKeyJoin(JoinNode):
    """A join of two tables: each left row with the right row whose key is the left row's foreign
    key.

    If the right side is preserved, a right row without left rows has a result of its own. The
    result's key is the pair of both keys then. One of the two is null in each result.
    """

    kind: ClassVar[str] = "tables by foreign key"
    has_own_key = True

    left: Entry
    right: Entry
    on: tuple[str | Column, ...]
    """The foreign key: columns of the left row or expressions over it."""
    spread: int = 1
    """The count of buckets over which the left rows of one foreign key are spread, if there are as
    many."""

    @property
    def manner(self) -> str:
        """A few words for ``explain`` on how rows of both sides match, such as ``by foreign key
        customer``.
        """
        on = (item if isinstance(item, str) else "an expression" for item in self.on)
        return f"by foreign key {', '.join(on)}"

    @property
    def spread_text(self) -> str:
        """The words for ``explain`` that follow the foreign key by which rows are shuffled, such as
        ``, spread over 8 buckets``; empty for one bucket.
        """
        return f", spread over {self.spread} buckets" if self.spread > 1 else ""

    @property
    def fallible(self) -> bool:
        """True if the foreign key may fail on a row: if it has an expression. Columns cannot."""
        return any(not isinstance(item, str) for item in self.on)

    @property
    def key(self) -> StructType:
        """The left key, followed by the right key if right rows may appear alone."""
        if not sides_preserved(self.how)[1]:
            return self.left.key
        return with_right_key(self.left.key, self.right.key)

    @property
    def null_keys(self) -> bool:
        """True if a row's key may contain nulls: if right rows may appear alone, with a null left
        key, or if left keys may.
        """
        return sides_preserved(self.how)[1] or self.left.null_keys

    def options(self, text: Text) -> Mapping[str, Any]:
        """Return, as JSON data, the options on which stored state depends. ``on`` has the texts of
        the columns and expressions of the foreign key in order. ``spread`` is the count of buckets
        over which rows are spread, and is missing if there is one. ``text``: returns the text of a
        column or an expression, given that and the schema of the left row.
        """
        spread = {"spread": self.spread} if self.spread > 1 else {}
        return {"on": [text(item, self.left.row) for item in self.on], **spread}


def foreign_key_join(call: JoinCall, on: tuple[str | Column, ...]) -> ForeignKeyJoin:
    """Join the two tables of ``call`` by the foreign key ``on``: left columns, or expressions over
    the left row, one for each column of the right key, in its order.

    ``call.on`` is not read, and the caller must have checked the types with ``pairs_of``. Raises
    ``PlanError`` for a side that is a join of histories (``late="history"``), and for columns that
    cannot be selected. So it does for key or value columns that the result has twice, and for
    ``call.spread`` of a join that keeps right rows alone.
    """
    spread = call.spread or 1
    if spread > 1 and sides_preserved(call.how)[1]:
        raise PlanError(
            call.name,
            f"spread= and how={call.how!r} exclude each other: no bucket sees all left rows that "
            "refer to a right row",
            "Use how='inner' or 'left', or leave spread= out",
        )
    for side in (call.left, call.right):
        refuse_corrected(call.name, side)
    left, right = (
        side_as_input(call.name, call.left),
        side_as_input(call.name, call.right, exact=True),
    )
    node = ForeignKeyJoin(
        left=left,
        right=right,
        on=on,
        spread=spread,
        **call.join_fields(left, right, one_key=False),
    )
    refuse_duplicates(call.name, node.row.names, TWICE_REMEDY)
    return node
