"""A table whose records may leave values out, which stay as they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pyspark.sql.types import ArrayType, StringType, StructType

from dovetail.errors import PlanError
from dovetail.plan.checks import known_field
from dovetail.plan.joins import as_entry, refuse_corrected
from dovetail.plan.nodes import Describe, Node, Rows

Missing: TypeAlias = Literal["fail", "null"]
"""What becomes of a value that was not sent where there is no former row."""


@dataclass(frozen=True, eq=False)
class Filled(Rows):
    """The rows of a table, in which the values that ``unsent`` names are those of the key's former
    row.
    """

    unsent: str
    missing: Missing

    @property
    def summary(self) -> str:
        """What ``explain`` calls it."""
        return f"keeps what {self.unsent} names"

    @property
    def values(self) -> StructType:
        """The table's, but for the names."""
        return StructType([field for field in self.node.values if field.name != self.unsent])

    def described(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """The table, all of whose columns are kept, and the column of names."""
        return {"filled": describe(self.node, whole=True), "unsent": self.unsent}


def filled(node: Node, unsent: str, missing: Missing) -> Filled:
    """A table with what its records leave out."""
    name = f"keep_former of {node.name}"
    refuse_corrected(name, node)
    found = known_field(name, "unsent=", unsent, node.values)
    if not (
        isinstance(found.dataType, ArrayType) and isinstance(found.dataType.elementType, StringType)
    ):
        raise PlanError(
            name,
            f"unsent= names column {unsent!r} of type {found.dataType.simpleString()}, not "
            "array<string>",
            "Let it have the names of the columns that a record leaves out",
        )
    if node.versioned_us is not None:
        raise PlanError(
            name,
            f"{node.name} is versioned: the row before is another one as soon as an older one "
            "comes",
            "Read it without versioned=",
        )
    return Filled(as_entry(name, node), unsent, missing)
