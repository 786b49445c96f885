"""Keys of rows that meet in a join of windowed tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from dovetail.base.columns import WINDOW_END, WINDOW_START
from dovetail.plan.joins.window_join import WindowJoin


def key_under_names(key: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the values of a key under other names, by position, such as ``{"id": 7}`` as
    ``{"order": 7}``. Values beyond the last name, and names beyond the last value, are left out.
    """
    return dict(zip(names, key.values(), strict=False))


def key_of_right_window(node: WindowJoin, left: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the key of the right row that a left row meets in a join of windowed tables, by right
    key column. None if it is not known.

    ``left``: the known columns of the left row, by name, at least its key; times are datetimes. A
    left row with a window meets the right window that is shifted by the join's ``shift_us``. Any
    other left row names the start of the right window in a column.

    The right window is not known if an expression computes its start, or if ``left`` lacks that
    column. Its start and end are None if that column is null, so the row meets nothing. If the
    right table has no windows, the key has no window columns.
    """
    match = key_under_names(
        {name: left[name] for name in node.left.base_key.names}, node.right.base_key.names
    )
    windows = node.right.windows
    if windows is None:
        return match
    if node.left.windows is not None:
        shift = timedelta(microseconds=node.shift_us)
        return {**match, **{name: left[name] + shift for name in (WINDOW_START, WINDOW_END)}}
    if not isinstance(node.window_of, str) or node.window_of not in left:
        return None
    start = left[node.window_of]
    end = None if start is None else start + timedelta(microseconds=windows.size_us)
    return {**match, WINDOW_START: start, WINDOW_END: end}
