"""A stream without records that repeat another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.plan.joins.join_call import refuse_corrected, side_as_input
from dovetail.plan.nodes import Describe, Node, RowsNode
from dovetail.plan.types.spans import Span, microseconds, span_as_text


@dataclass(frozen=True, eq=False)
class Deduplicated(RowsNode):
    """The records of a stream, without those that repeat an emitted record of their key."""

    within_us: int
    """The distance in event time, in microseconds, within which a record of the same key is a
    repetition.
    """

    stream = True
    timed = True

    @property
    def summary(self) -> str:
        """The line of text that describes the node in ``explain``: ``deduplicate within 5 min``."""
        return f"deduplicate within {span_as_text(self.within_us)}"

    def state_properties(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """Return, as JSON data for a topology's fingerprint (a hash), the parts on which the state
        depends: ``deduplicated``, the stream as ``describe`` returns it, and ``within_us``.
        ``whole``: True to include the columns that the stream's selections make.
        """
        return {
            "deduplicated": describe(self.node, whole=whole),
            "within_us": self.within_us,
        }


def deduplicate(node: Node, within: Span) -> Deduplicated:
    """Return the stream ``node`` without records that repeat an emitted record of their key. A
    record repeats an emitted one if their event times are at most ``within`` apart, in either
    direction. Of such records the one that arrived first is emitted.

    Late records, more than ``within`` behind stream time, are left out and counted, as are repeated
    ones. A record without a value is dropped. One with a null in its key is always emitted. Raises
    ``PlanError`` if ``within`` is no span or negative, and for a stream joined with
    ``unmatched="retract"``.
    """
    name = f"deduplicate of {node.name}"
    refuse_corrected(name, node)
    return Deduplicated(side_as_input(name, node), microseconds(name, "within=", within))
