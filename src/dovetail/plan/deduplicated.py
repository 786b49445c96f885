"""A stream without the records that repeat another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.plan.joins import as_entry, refuse_corrected
from dovetail.plan.nodes import Describe, Node, Rows
from dovetail.plan.spans import Span, microseconds, written


@dataclass(frozen=True, eq=False)
class Deduplicated(Rows):
    """The records of a stream of which none of their key came out so near in time."""

    within_us: int

    stream = True
    timed = True

    @property
    def summary(self) -> str:
        """What ``explain`` calls it."""
        return f"deduplicate within {written(self.within_us)}"

    def described(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """The stream, and how near."""
        return {
            "deduplicated": describe(self.node, whole=whole),
            "within_us": self.within_us,
        }


def deduplicated(node: Node, within: Span) -> Deduplicated:
    """A stream without the records that repeat another."""
    name = f"deduplicate of {node.name}"
    refuse_corrected(name, node)
    return Deduplicated(as_entry(name, node), microseconds(name, "within=", within))
