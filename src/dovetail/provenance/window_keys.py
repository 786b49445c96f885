"""Keys of rows that meet in a join of windowed tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from dovetail.base.columns import WINDOW_END, WINDOW_START
from dovetail.plan.joins.window_join import WindowJoin


def renamed(key: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the first values of a key under the names ``names``, in order. Further values, and
    further names, are left out.
    """
    return dict(zip(names, key.values(), strict=False))


def right_of_window(node: WindowJoin, left: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the key of the right row that a left row meets, if that is not the row with its own
    key; None if it is not known. The key has nulls if the left row looks in no window.

    ``left``: the columns of the left row that are known, at least its key. It is not known if an
    expression, or a column that ``left`` lacks, says the window.
    """
    match = renamed(
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
