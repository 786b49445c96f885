"""A table's array as rows of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

from dovetail.errors import PlanError
from dovetail.plan.checks import known_field, refuse_duplicates, refuse_key_type, refuse_names
from dovetail.plan.joins import as_entry, refuse_corrected
from dovetail.plan.nodes import Describe, Node, Rows


@dataclass(frozen=True, eq=False)
class Exploded(Rows):
    """A table with a row for each element of an array, known by the key and the element or, where
    it is named, the element's ``position``.
    """

    column: str
    position: str | None

    has_own_key: ClassVar[bool] = True

    @property
    def summary(self) -> str:
        """What ``explain`` calls it."""
        return f"explode {self.column} by {self.position or 'element'}"

    @property
    def element(self) -> StructField:
        """The column that has the elements."""
        array = self.node.values[self.column].dataType
        assert isinstance(array, ArrayType)
        return StructField(self.column, array.elementType, True)

    @property
    def key(self) -> StructType:
        """The table's, and the element or its position."""
        own = self.element
        if self.position is not None:
            own = StructField(self.position, IntegerType(), True)
        return StructType([*self.node.key, own])

    @property
    def values(self) -> StructType:
        """The table's other columns and, behind a position, the element."""
        named = {field.name: field for field in self.node.values}
        if self.position is None:
            del named[self.column]
        else:
            named[self.column] = self.element
        return StructType([*named.values()])

    def described(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """The table, which array, and by what its rows are known."""
        return {
            "exploded": describe(self.node, whole=True),
            "column": self.column,
            "position": self.position,
        }


def exploded(node: Node, column: str, position: str | None) -> Exploded:
    """A table with a row for each element of an array."""
    name = f"explode of {node.name}"
    refuse_corrected(name, node)
    found = known_field(name, "column=", column, node.values)
    if not isinstance(found.dataType, ArrayType):
        raise PlanError(
            name,
            f"column {column!r} is of type {found.dataType.simpleString()}, not an array",
            "Make it one with with_columns(), for instance by F.split or F.map_entries",
        )
    if position is None:
        _refuse_element(name, StructField(column, found.dataType.elementType))
    else:
        refuse_names(name, [position], "Give position= another name")
        refuse_duplicates(name, [*node.row.names, position], "Give position= another name")
    return Exploded(as_entry(name, node), column, position)


def _refuse_element(name: str, element: StructField) -> None:
    """Refuse elements that cannot be a key."""
    try:
        refuse_key_type(name, element)
    except PlanError as error:
        remedy = "Key the rows by the elements' positions: position='n'"
        raise PlanError(name, error.problem, remedy) from None
