"""A table's changes, each with the row before it and the row after it, as a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pyspark.sql.types import StringType, StructField, StructType

from dovetail.arguments import Rule
from dovetail.errors import PlanError
from dovetail.plan.checks import refuse_duplicates, refuse_names
from dovetail.plan.joins import as_entry, refuse_corrected
from dovetail.plan.nodes import Describe, Node, Rows

_FOUR = 4
KINDS = ("insert", "update_before", "update_after", "delete")
ChangeNames: TypeAlias = Annotated[
    Sequence[str],
    Rule(
        "four words, for a row that comes, one that is replaced, what replaces it, one that goes",
        lambda given: len(given) == _FOUR and not isinstance(given, str),
    ),
]


@dataclass(frozen=True, eq=False)
class ToChanges(Rows):
    """The rows before and after each change of a table; ``column``, a value column more, says which
    it is, by the words of ``kinds``.
    """

    column: str
    kinds: tuple[str, ...]

    stream = True

    @property
    def summary(self) -> str:
        """What ``explain`` calls it."""
        return f"changes, as {', '.join(self.kinds)}"

    @property
    def values(self) -> StructType:
        """The table's, and which row it is."""
        return StructType([*self.node.values, StructField(self.column, StringType(), True)])

    def described(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """The table, all of whose columns show changes, and what these are called."""
        return {
            "changes": describe(self.node, whole=True),
            "column": self.column,
            "kinds": list(self.kinds),
        }


def to_changes(node: Node, column: str, kinds: Sequence[str]) -> ToChanges:
    """The changes of a table."""
    name = f"to_changes of {node.name}"
    refuse_corrected(name, node)
    refuse_names(name, [column], "Give column= another name")
    refuse_duplicates(name, [*node.row.names, column], "Give column= another name")
    if len(set(kinds)) < len(kinds):
        raise PlanError(name, f"kinds= has a word twice: {', '.join(kinds)}", "Name four")
    return ToChanges(as_entry(name, node), column, tuple(kinds))
