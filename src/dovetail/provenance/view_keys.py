"""Columns through views: from the row of a view to the row that it shows, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.plan.view_columns import Constant, FieldOf, item_as_text
from dovetail.plan.views import View


def viewed_columns(view: View, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the viewed row that equal columns of the view's row, by their names in
    the viewed node.

    ``columns``: the columns of the view's row that are known. Computed columns and an exploded
    array are not among the results.
    """
    exploded = None if view.exploded is None else view.row.names[view.exploded]
    return {
        origin: columns[name]
        for name, origin in zip(view.row.names, view.columns, strict=True)
        if isinstance(origin, str) and name in columns and name != exploded
    }


def shown_columns(view: View, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the view's row that need no expression: columns, constants and fields
    of structs. ``columns``: the known columns of the viewed row; those made of others are left out.
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


def excluded(view: View, columns: Mapping[str, Any]) -> bool:
    """Say whether a constant of the view differs from a known column of the row asked for, so that
    the row is another table's.
    """
    origins = zip(view.row.names, view.columns, strict=True)
    return any(
        isinstance(origin, Constant) and name in columns and columns[name] != origin.value
        for name, origin in origins
    )


def condition_of(view: View) -> str:
    """Return the view's condition in words; an empty text without one."""
    return "" if view.condition is None else item_as_text(view.condition)
