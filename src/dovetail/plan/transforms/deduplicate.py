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
        """Return, as JSON data, the stream, by ``describe``, and the span within which records
        repeat each other. ``whole``: True to include the columns that the stream's selections make.
        """
        return {
            "deduplicated": describe(self.node, whole=whole),
            "within_us": self.within_us,
        }


def deduplicate(node: Node, within: Span) -> Deduplicated:
    """Return the stream ``node`` without records that repeat an emitted record of their key
    ``within`` a span of event time; the span itself is included.

    Raises ``PlanError`` if ``within`` is no span or negative, and for a stream that takes records
    back.
    """
    name = f"deduplicate of {node.name}"
    refuse_corrected(name, node)
    return Deduplicated(side_as_input(name, node), microseconds(name, "within=", within))
