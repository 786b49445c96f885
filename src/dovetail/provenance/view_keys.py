"""Columns through views: from the row of a view to the row that it shows, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.plan.view_columns import Constant, FieldOf, item_as_text
from dovetail.plan.views import View


def viewed_columns(view: View, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the viewed row that a view shows unchanged, by their names in the viewed
    node.

    ``columns``: the known columns of the view's row, by name. Computed columns and an exploded
    array are not among the results.
    """
    exploded = None if view.exploded is None else view.row.names[view.exploded]
    return {
        origin: columns[name]
        for name, origin in zip(view.row.names, view.columns, strict=True)
        if isinstance(origin, str) and name in columns and name != exploded
    }


def shown_columns(view: View, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the view's row that need no expression, by name: plain columns,
    constants and fields of structs.

    ``columns``: the known columns of the viewed row, by name. Columns of the view that need another
    one are left out. A field of a null struct is null.
    """
    shown = {}
    for name, origin in zip(view.row.names, view.columns, strict=True):
        if isinstance(origin, str) and origin in columns:
            shown[name] = columns[origin]
        elif isinstance(origin, Constant):
            shown[name] = origin.value
        elif isinstance(origin, FieldOf) and origin.struct in columns:
            struct = columns[origin.struct]
            shown[name] = None if struct is None else struct[origin.field]
    return shown


def has_other_constant(view: View, columns: Mapping[str, Any]) -> bool:
    """Return True if a constant column of the view differs from its value in ``columns``: the row
    is then of another table. ``columns``: the known columns of the view's row, by name; unknown
    ones never differ.
    """
    origins = zip(view.row.names, view.columns, strict=True)
    return any(
        isinstance(origin, Constant) and name in columns and columns[name] != origin.value
        for name, origin in origins
    )


def condition_of(view: View) -> str:
    """Return the view's condition as text; empty without one."""
    return "" if view.condition is None else item_as_text(view.condition)
