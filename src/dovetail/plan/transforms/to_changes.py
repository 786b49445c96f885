"""A table's changes as a stream: the row before each change and the row after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pyspark.sql.types import StringType, StructField, StructType

from dovetail.base.validation import Rule
from dovetail.errors import PlanError
from dovetail.plan.joins.join_call import refuse_corrected, side_as_input
from dovetail.plan.nodes import Describe, Node, RowsNode
from dovetail.plan.types.checks import refuse_duplicates, refuse_names

_FOUR = 4
KINDS = ("insert", "update_before", "update_after", "delete")
"""The default kinds of rows: inserted, replaced, replacing, deleted."""
ChangeNames: TypeAlias = Annotated[
    Sequence[str],
    Rule(
        "four words, for a row that comes, one that is replaced, what replaces it, one that goes",
        lambda names: len(names) == _FOUR and not isinstance(names, str),
    ),
]


@dataclass(frozen=True, eq=False)
class ToChanges(RowsNode):
    """A stream of the rows before and after each change of a table."""

    column: str
    """The name of a new value column with the kind of row."""
    kinds: tuple[str, ...]
    """The words for a row that comes, one that is replaced, its replacement, and one that goes."""

    stream = True

    @property
    def summary(self) -> str:
        """The line of text that describes the node in ``explain``: ``changes, as``, then the four
        words for changes.
        """
        return f"changes, as {', '.join(self.kinds)}"

    @property
    def values(self) -> StructType:
        """The table's value columns, then the kind of row."""
        return StructType([*self.node.values, StructField(self.column, StringType(), True)])

    def state_properties(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """Return, as JSON data for a topology's fingerprint (a hash), the parts on which the state
        depends: ``changes``, the table as ``describe`` returns it with all columns, the new
        ``column``, and the four ``kinds``. ``whole`` changes nothing.
        """
        return {
            "changes": describe(self.node, whole=True),
            "column": self.column,
            "kinds": list(self.kinds),
        }


def to_changes(node: Node, column: str, kinds: Sequence[str]) -> ToChanges:
    """Return the changes of the table ``node`` as a stream, with the kind of each in a new text
    column ``column``, the last value. An update makes two records: the row before it, then the row
    after it, both with the update's event time. A change that leaves the row as it was makes none.

    ``kinds``: four different words for a new row, a row before and after an update, and a deleted
    row, in this order. That there are four is not checked. Raises ``PlanError`` for a column name
    in use or reserved, for a word that occurs twice, and for a table joined with
    ``late="history"``.
    """
    name = f"to_changes of {node.name}"
    refuse_corrected(name, node)
    refuse_names(name, [column], "Give column= another name")
    refuse_duplicates(name, [*node.row.names, column], "Give column= another name")
    if len(set(kinds)) < len(kinds):
        raise PlanError(name, f"kinds= has a word twice: {', '.join(kinds)}", "Name four")
    return ToChanges(side_as_input(name, node), column, tuple(kinds))
