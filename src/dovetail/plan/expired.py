"""A table whose rows leave it some time after their last change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dovetail.errors import PlanError
from dovetail.plan.joins import as_entry, refuse_corrected
from dovetail.plan.nodes import Describe, Node, Rows
from dovetail.plan.spans import Span, microseconds, written


@dataclass(frozen=True, eq=False)
class Expired(Rows):
    """The rows of a table that are no more than ``after_us`` behind stream time."""

    after_us: int

    timed = True
    expires: ClassVar[bool] = True

    @property
    def summary(self) -> str:
        """What ``explain`` calls it."""
        return f"expires after {written(self.after_us)}"

    def described(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """The table, and how long its rows stay."""
        return {"expired": describe(self.node, whole=True), "after_us": self.after_us}


def expired(node: Node, after: Span) -> Expired:
    """A table whose rows expire."""
    name = f"expire of {node.name}"
    refuse_corrected(name, node)
    if node.versioned_us is not None:
        raise PlanError(
            name,
            f"{node.name} is versioned: it keeps a history, of which no version leaves by itself",
            "Read it without versioned=, or let its materialize() expire",
        )
    return Expired(as_entry(name, node), microseconds(name, "after=", after))
