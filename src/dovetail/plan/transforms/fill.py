"""A table whose records may omit values, which then stay as they were. Names or nulls say which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pyspark.sql.types import ArrayType, StringType, StructType

from dovetail.errors import PlanError
from dovetail.plan.joins.join_call import refuse_corrected, side_as_input
from dovetail.plan.nodes import Describe, Node, RowsNode
from dovetail.plan.types.checks import known_field, refuse_duplicates

Missing: TypeAlias = Literal["fail", "null"]
"""Treatment of an omitted value of a key without a former row: ``"fail"`` stops the query,
``"null"`` makes it null.
"""


@dataclass(frozen=True, eq=False)
class Filled(RowsNode):
    """The rows of a table, with omitted values taken from the key's former row."""

    unsent: str | None
    """A column with an array of the names of the omitted columns; None if nulls say which."""
    missing: Missing
    """The effect of an omitted value of a key without a former row."""
    nulls: tuple[str, ...] = ()
    """The columns in which a null is an omitted value."""

    patches = True

    @property
    def summary(self) -> str:
        """The line of text that describes the node in ``explain``: ``ignores nulls of a, b``, or
        ``keeps what unsent names`` with the column ``unsent``.
        """
        if self.unsent is None:
            return f"ignores nulls of {', '.join(self.nulls)}"
        return f"keeps what {self.unsent} names"

    @property
    def values(self) -> StructType:
        """The table's value columns in order, without the column ``unsent``, if there is one."""
        return StructType([field for field in self.node.values if field.name != self.unsent])

    def state_properties(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """Return, as JSON data for a topology's fingerprint (a hash), the parts on which the state
        depends: ``filled``, the table as ``describe`` returns it with all columns, and the column
        ``unsent``. Without such a column, ``nulls`` has the sorted columns of nulls in its place.
        ``whole`` changes nothing.
        """
        table = describe(self.node, whole=True)
        if self.unsent is None:
            return {"filled": table, "nulls": sorted(self.nulls)}
        return {"filled": table, "unsent": self.unsent}


def fill_unsent(node: Node, unsent: str, missing: Missing) -> Filled:
    """Return the table ``node`` with omitted values filled in from the key's former row. After a
    tombstone a key has no former row.

    ``unsent``: the column with the names of the omitted ones, an ``array<string>``, which the
    result lacks. A null array, and names that are no value columns, omit nothing. ``missing``: the
    effect of an omitted value without a former row: ``"fail"`` stops the query, ``"null"`` makes it
    null.

    Raises ``PlanError`` for an unknown column or one of another type, for a versioned table, and
    for a table joined with ``late="history"``.
    """
    name = f"keep_former of {node.name}"
    refuse_corrected(name, node)
    unsent_field = known_field(name, "unsent=", unsent, node.values)
    if not (
        isinstance(unsent_field.dataType, ArrayType)
        and isinstance(unsent_field.dataType.elementType, StringType)
    ):
        raise PlanError(
            name,
            f"unsent= names column {unsent!r} of type {unsent_field.dataType.simpleString()}, not "
            "array<string>",
            "Let it have the names of the columns that a record leaves out",
        )
    _refuse_versioned(name, node)
    return Filled(side_as_input(name, node), unsent, missing)


def without_null_updates(node: Node, columns: Sequence[str] | None) -> Filled:
    """Return the table ``node`` with nulls in ``columns`` replaced by the values of the key's
    former row. So a record cannot set such a column to null. A null without a former row stays;
    after a tombstone a key has none. ``columns``: value columns, or None for all.

    Raises ``PlanError`` for an unknown column, one named twice or no column, for a versioned table,
    and for a table joined with ``late="history"``.
    """
    name = f"ignore_null_updates of {node.name}"
    refuse_corrected(name, node)
    _refuse_versioned(name, node)
    names = node.values.names if columns is None else list(columns)
    for column in names:
        known_field(name, "columns=", column, node.values)
    refuse_duplicates(name, names, "Name it once in columns=")
    if not names:
        raise PlanError(name, "no column is named", "Name value columns, or leave columns= out")
    return Filled(side_as_input(name, node), None, "null", tuple(names))


def _refuse_versioned(name: str, node: Node) -> None:
    """Raise ``PlanError`` if ``node`` is a versioned table, even one whose changes never go back in
    time. Late records may change a versioned table's former rows, from which values would be
    filled. ``name``: the subject of the error, such as ``keep_former of orders``.
    """
    if node.versioned_us is not None:
        raise PlanError(
            name,
            f"{node.name} is versioned: the row before is another one as soon as an older one "
            "comes",
            "Read it without versioned=",
        )
