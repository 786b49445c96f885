"""A table whose rows expire some time after their last change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dovetail.errors import PlanError
from dovetail.plan.joins.join_call import refuse_corrected, side_as_input
from dovetail.plan.nodes import Describe, Node, RowsNode
from dovetail.plan.types.spans import Span, microseconds, span_as_text


@dataclass(frozen=True, eq=False)
class Expired(RowsNode):
    """The rows of a table that are no more than ``after_us`` behind stream time."""

    after_us: int
    """The age in microseconds of stream time after which a row expires."""

    timed = True
    expires: ClassVar[bool] = True

    @property
    def summary(self) -> str:
        """The line of text that describes the node in ``explain``: ``expires after 7 days``."""
        return f"expires after {span_as_text(self.after_us)}"

    def state_properties(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """Return, as JSON data for a topology's fingerprint (a hash), the parts on which the state
        depends: ``expired``, the table as ``describe`` returns it with all columns, and
        ``after_us``. ``whole`` changes nothing.
        """
        return {"expired": describe(self.node, whole=True), "after_us": self.after_us}


def expire_rows(node: Node, after: Span) -> Expired:
    """Return the table ``node`` with rows that expire ``after`` their last change. A row expires
    once stream time is more than ``after`` ahead of the event time of its key's last record. A
    tombstone is emitted then, with that event time plus ``after`` as its own. Stream time is the
    largest event time of the table's records so far.

    A row that had expired when it arrived is counted and not emitted. If its key has a row, that is
    deleted by such a tombstone.

    Raises ``PlanError`` for a versioned table, for a table joined with ``late="history"``, and if
    ``after`` is no span or negative.
    """
    name = f"expire of {node.name}"
    refuse_corrected(name, node)
    if node.versioned_us is not None:
        raise PlanError(
            name,
            f"{node.name} is versioned: it keeps a history, of which no version leaves by itself",
            "Read it without versioned=, or let its materialize() expire",
        )
    return Expired(side_as_input(name, node), microseconds(name, "after=", after))
