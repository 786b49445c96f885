"""A table's array column exploded into rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

from dovetail.errors import PlanError
from dovetail.plan.joins.join_call import refuse_corrected, side_as_input
from dovetail.plan.nodes import Describe, Node, RowsNode
from dovetail.plan.types.checks import known_field, refuse_duplicates, refuse_key_type, refuse_names


@dataclass(frozen=True, eq=False)
class Exploded(RowsNode):
    """A table with a row for each element of an array of another table."""

    column: str
    """The array column."""
    position: str | None
    """The name of a key column with the element's position, or None. Without it, the element itself
    is part of the key.
    """

    has_own_key: ClassVar[bool] = True

    @property
    def summary(self) -> str:
        """The line of text that describes the node in ``explain``: the array, and the name of the
        position or the word ``element``.
        """
        return f"explode {self.column} by {self.position or 'element'}"

    @property
    def element(self) -> StructField:
        """The field of an element of the array, nullable, under the array column's name."""
        array = self.node.values[self.column].dataType
        assert isinstance(array, ArrayType)
        return StructField(self.column, array.elementType, True)

    @property
    def key(self) -> StructType:
        """The table's key columns, then the element's position (an int) or, without ``position``,
        the element under the array column's name.
        """
        last_field = self.element
        if self.position is not None:
            last_field = StructField(self.position, IntegerType(), True)
        return StructType([*self.node.key, last_field])

    @property
    def values(self) -> StructType:
        """The table's values without the array. With a position, the element stands in the array's
        place.
        """
        named = {field.name: field for field in self.node.values}
        if self.position is None:
            del named[self.column]
        else:
            named[self.column] = self.element
        return StructType([*named.values()])

    def state_properties(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """Return, as JSON data for a topology's fingerprint (a hash), the parts on which the state
        depends.

        - ``exploded``: the table, as ``describe`` returns it with all columns;
        - ``column``: the array's name;
        - ``position``: the name of the position, None for none.

        ``whole`` changes nothing.
        """
        return {
            "exploded": describe(self.node, whole=True),
            "column": self.column,
            "position": self.position,
        }


def explode_rows(node: Node, column: str, position: str | None) -> Exploded:
    """Return a table with a row for each element of the array ``column`` of the table ``node``. A
    null or empty array gives no row.

    The key of such a row is the table's key and the element. Null elements and repetitions of an
    element within its array are left out then, and counted. With ``position``, the name of a new
    column, the key is the table's key and the element's position from 0. All elements have rows
    then.

    Raises ``PlanError`` if the column is unknown, a key, or no array, or if elements cannot be keys
    and there is no ``position``. Raises it for names that occur twice or are reserved, and for a
    table joined with ``late="history"``.
    """
    name = f"explode of {node.name}"
    refuse_corrected(name, node)
    array_field = known_field(name, "column=", column, node.values)
    if not isinstance(array_field.dataType, ArrayType):
        raise PlanError(
            name,
            f"column {column!r} is of type {array_field.dataType.simpleString()}, not an array",
            "Make it one with with_columns(), for instance by F.split or F.map_entries",
        )
    if position is None:
        _refuse_element(name, StructField(column, array_field.dataType.elementType))
    else:
        refuse_names(name, [position], "Give position= another name")
        refuse_duplicates(name, [*node.row.names, position], "Give position= another name")
    return Exploded(side_as_input(name, node), column, position)


def _refuse_element(name: str, element: StructField) -> None:
    """Raise ``PlanError`` if elements of the type of ``element`` cannot be a key, as maps cannot
    (``refuse_key_type``), with advice to use positions. ``name``: the node in errors.
    """
    try:
        refuse_key_type(name, element)
    except PlanError as error:
        remedy = "Key the rows by the elements' positions: position='n'"
        raise PlanError(name, error.problem, remedy) from None
