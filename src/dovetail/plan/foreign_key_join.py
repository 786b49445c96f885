"""Two tables joined by what the left one's rows say of the right one's key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column
from pyspark.sql.types import StructType

from dovetail.laws.table_join import preserved
from dovetail.plan.checks import refuse_duplicates
from dovetail.plan.joins import TWICE, Call, as_entry, refuse_corrected
from dovetail.plan.nodes import Entry, Join, Text, with_right_key


@dataclass(frozen=True, eq=False, kw_only=True)
class ForeignKeyJoin(Join):
    """Rows of the left table, each with the right row whose key is the left row's foreign key:
    ``on``, columns of the left row or expressions over it.

    A right row that no left row refers to has a result of its own where the right side is
    preserved. Then the key is the pair of both keys, and of each result one of them is null.
    """

    kind: ClassVar[str] = "tables by foreign key"
    has_own_key = True

    left: Entry
    right: Entry
    on: tuple[str | Column, ...]

    @property
    def manner(self) -> str:
        """How the sides meet, in words."""
        on = (item if isinstance(item, str) else "an expression" for item in self.on)
        return f"by foreign key {', '.join(on)}"

    @property
    def fallible(self) -> bool:
        """Whether the foreign key may fail on a row: an expression can, a column cannot."""
        return any(not isinstance(item, str) for item in self.on)

    @property
    def key(self) -> StructType:
        """The left side's key and, where right rows appear alone, theirs."""
        if not preserved(self.how)[1]:
            return self.left.key
        return with_right_key(self.left.key, self.right.key)

    @property
    def null_keys(self) -> bool:
        """Where right rows appear alone, or the left side's keys have nulls."""
        return preserved(self.how)[1] or self.left.null_keys

    def options(self, text: Text) -> Mapping[str, Any]:
        """The foreign key."""
        return {"on": [text(item, self.left.row) for item in self.on]}


def foreign_key_join(call: Call, on: tuple[str | Column, ...]) -> ForeignKeyJoin:
    """Two tables joined by what the left one's rows say of the right one's key."""
    for side in (call.left, call.right):
        refuse_corrected(call.name, side)
    left, right = as_entry(call.name, call.left), as_entry(call.name, call.right, exact=True)
    node = ForeignKeyJoin(left=left, right=right, on=on, **call.chosen(left, right, one_key=False))
    refuse_duplicates(call.name, node.row.names, TWICE)
    return node
