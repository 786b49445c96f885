"""A table of a database's events, in which a key may have several rows within a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from dovetail.errors import PlanError
from dovetail.plan.joins.join_call import side_as_input
from dovetail.plan.nodes import Describe, Node, RowsNode


@dataclass(frozen=True, eq=False)
class Transacted(RowsNode):
    """The rows of a table without the events that concern a row which another one has replaced."""

    transaction: str
    """The name of a column with the event's kind and its place in its transaction, a struct."""

    @property
    def summary(self) -> str:
        """The line of text that describes the node in ``explain``: ``counts rows within
        transactions``.
        """
        return "counts rows within transactions"

    @property
    def values(self) -> StructType:
        """The table's value columns in order, without the column ``transaction``."""
        return StructType([field for field in self.node.values if field.name != self.transaction])

    def state_properties(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """Return, as JSON data for a topology's fingerprint (a hash), the parts on which the state
        depends: ``transacted``, the table as ``describe`` returns it, and the column
        ``transaction``. State keeps no other column of the table. ``whole``: True to include the
        columns that the table's selections make.
        """
        return {"transacted": describe(self.node, whole=whole), "transaction": self.transaction}


def without_replaced_rows(node: Node, transaction: str) -> Transacted:
    """Return the table ``node`` without deletes of a row whose key has another row by then. Within
    a transaction a new row of a key may come before the former one is deleted. Events that the
    connector sends again are left out, too, and counted.

    ``transaction``: the name of a struct column with an event's ``op`` (text: ``d`` deletes, ``u``
    updates, others create) and the ``id`` (text) of its transaction. Further fields are the longs
    ``total_order``, its position in the transaction, and ``place``, that in the database's log. The
    type is not checked. The result lacks this column. Raises ``PlanError`` for a versioned table.
    """
    name = f"transactions of {node.name}"
    if node.versioned_us is not None:
        raise PlanError(
            name,
            f"{node.name} is versioned: its rows count by their times, and those of a transaction "
            "share one",
            "Read it without versioned=",
        )
    return Transacted(side_as_input(name, node), transaction)
