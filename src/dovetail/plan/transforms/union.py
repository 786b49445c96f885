"""The union of streams, or of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.types import StructType

from dovetail.base.columns import is_reserved
from dovetail.errors import PlanError
from dovetail.plan.joins.join_call import refuse_corrected, side_as_changes
from dovetail.plan.nodes import Describe, Entry, Node
from dovetail.plan.types.checks import columns_as_text
from dovetail.plan.views import select_columns, with_name_in_key


@dataclass(frozen=True, eq=False, kw_only=True)
class Union(Node):
    """The records of several streams, or the rows of several tables, in the order of arrival.

    All ``parts`` have the same columns. No two tables have a key in common.
    """

    parts: tuple[Entry, ...]
    """The streams or tables, at least two, from left to right."""
    label: str | None = None
    """The user's name for the union; None for none."""

    @property
    def name(self) -> str:
        """The user's name for the union, or else a description by its parts, such as ``union of a,
        b``.
        """
        return self.label or f"union of {', '.join(part.name for part in self.parts)}"

    @property
    def summary(self) -> str:
        """The line of text that describes the union in ``explain``: ``union``."""
        return "union"

    @property
    def key(self) -> StructType:
        """The key columns, the same in all parts."""
        return self.parts[0].key

    @property
    def values(self) -> StructType:
        """The value columns, the same in all parts."""
        return self.parts[0].values

    @property
    def stream(self) -> bool:
        """True if the parts are streams, False if they are tables."""
        return self.parts[0].stream

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The streams or tables that are united, from left to right."""
        return self.parts

    def state_properties(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """Return, as JSON data for a topology's fingerprint (a hash), the parts on which the state
        depends: ``union``, a list of all inputs as ``describe`` returns them, from left to right.
        ``whole`` changes nothing.
        """
        return {"union": [describe(part, whole=True) for part in self.parts]}


def union(nodes: Sequence[Node], label: str | None, source: str | None = None) -> Union:
    """Return the union of ``nodes``, at least two streams or at least two tables. ``label``: the
    union's name, None for the names of the inputs.

    ``source``: for tables, the name of a new last key column with the name of each row's table.
    Without it no two tables may have a key in common, which is not checked: each change, a deletion
    too, then replaces the key's row of any table. Value columns may differ in order; the first
    node's counts.

    Raises ``PlanError`` if the columns differ, for a single node, or if a part occurs twice. With
    ``source``, also if two nodes have one name, or if ``source`` is reserved or the name of a
    column. It refuses tables joined with ``late="history"``, and streams joined with
    ``unmatched="retract"``.
    """
    name = label or f"union of {', '.join(node.name for node in nodes)}"
    first = nodes[0]
    argument = "streams" if first.stream else "tables"
    if len(nodes) < 2:
        raise PlanError(name, f"{argument} are none", "Give one or more to add")
    if source is not None:
        if source in first.row.names or is_reserved(source):
            what = "a column of its own" if source in first.row.names else "a name of changelogs"
            raise PlanError(name, f"source= is {source!r}, {what}", "Give another name")
        names = [node.name for node in nodes]
        if len(set(names)) < len(names):
            raise PlanError(
                name,
                f"source= tells inputs apart by their names, which are {', '.join(names)}",
                "Give each a name of its own with name=",
            )
        nodes = [with_name_in_key(node, source) for node in nodes]
        first = nodes[0]
    parts = []
    for node in nodes:
        refuse_corrected(name, node)
        if _comparable_columns(node) != _comparable_columns(first):
            raise PlanError(
                name,
                f"one of {argument}, {node.name}, has {_columns_in_words(node)}, "
                f"{first.name} {_columns_in_words(first)}",
                "Give both the same columns with select(), rename() or with_columns()",
            )
        same = node.values.names == first.values.names
        part = node if same else replace(select_columns(node, first.values.names, {}), chosen=False)
        parts.append(side_as_changes(name, part))
    if len(set(parts)) < len(parts):
        raise PlanError(name, f"one of {argument} is there twice", "Leave it out")
    return Union(parts=tuple(parts), label=label)


def _comparable_columns(node: Node) -> tuple[Any, ...]:
    """Return a pair of lists: a node's key columns in order, and its value columns sorted by name,
    each as (name, type). Nodes with equal pairs can be united.
    """
    key, values = ([(f.name, f.dataType) for f in part] for part in (node.key, node.values))
    return key, sorted(values, key=lambda column: column[0])


def _columns_in_words(node: Node) -> str:
    """Return the names and types of a node's columns in words, for errors: ``key (id bigint) and
    values (city string)``.
    """
    return f"key {columns_as_text(node.key)} and values {columns_as_text(node.values)}"
