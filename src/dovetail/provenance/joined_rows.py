"""Rows of joins, of the rows of their sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.laws.joins.table_join import How
from dovetail.plan.nodes import JoinNode
from dovetail.provenance.entries import Entries, Key, explanation_of, has_all_columns
from dovetail.provenance.evaluation import computed_row
from dovetail.provenance.explanation import Presence, RowExplanation


@dataclass(frozen=True)
class JoinedRows(Entries):
    """The explanations of joined rows."""

    def explain_joined_row(
        self,
        node: JoinNode,
        key: Key,
        sides: tuple[RowExplanation, ...],
        *,
        missing: str | None = None,
    ) -> RowExplanation:
        """Explain the row of a join with this key, whether it is there or not. The presence follows
        from those of the sides, by the kind of the join (``_joined_presence``).

        ``key``: values by key column of the join. ``sides``: the explanation of the left row, then
        that of the right row. It is the left one alone if the left row is not there or not known,
        so nothing says which right row to look for. The result then has the presence of the left
        row, for all kinds of join. ``missing``: the reason to give if the right row is why there is
        no result; None for the reason in its explanation.

        The time is the later one of both sides, or that of the only side with a time; None if both
        have none. Values that cannot be computed are left out. Without a row there are no values,
        and the reason is that of the side that decides.
        """
        left = sides[0].presence
        presence = left if len(sides) == 1 else _joined_presence(node.how, left, sides[1].presence)
        if presence != "row":
            index = next(n for n, side in enumerate(sides) if side.presence == presence)
            reason = missing if missing is not None and index else sides[index].reason
            return explanation_of(node, key, presence, reason=reason, inputs=sides)
        times = [side.time for side in sides if side.time is not None]
        values = self._selected_values(node, sides)
        return explanation_of(
            node, key, "row", values=values, time=max(times, default=None), inputs=sides
        )

    def _selected_values(self, node: JoinNode, sides: Sequence[RowExplanation]) -> dict[str, Any]:
        """Return the values that a join selects from its sides, by name. Values of a side without a
        row are null; those that are not known are left out. ``sides``: the explanations of the left
        side and of the right one.

        If a selection is an expression, all values are computed by ``expressions``, if that is
        there and all columns of both sides are known. Otherwise only plain columns are returned.
        """
        rows: dict[str, dict[str, Any] | None] = {
            name: {**side.key, **side.values} if side.presence == "row" else None
            for name, side in zip(("left", "right"), sides, strict=True)
        }
        unknown = {n for n, side in zip(rows, sides, strict=True) if side.presence == "unknown"}
        if any(item.column is not None for item in node.select):
            nodes = {"left": node.left, "right": node.right}
            known = all(r is None or has_all_columns(nodes[name], r) for name, r in rows.items())
            if known and not unknown and self.expressions is not None:
                computed = computed_row(node, rows, self.expressions) or {}
                return {name: computed[name] for name in node.values.names if name in computed}
        values = {}
        for item in node.select:
            if item.ref is not None:
                side, column = item.ref
                row = rows[side]
                if side not in unknown and (row is None or column in row):
                    values[item.name] = None if row is None else row[column]
        return values


def _joined_presence(how: How, left: Presence, right: Presence) -> Presence:
    """Return the presence of a joined row: ``"row"``, ``"none"`` or ``"unknown"``. ``left``,
    ``right``: those of the sides.

    | ``how`` | result |
    |---|---|
    | ``left``, ``right`` | that of the preserved side |
    | ``inner`` | ``"none"`` if a side is, else ``"unknown"`` if a side is, else ``"row"`` |
    | ``outer`` | ``"row"`` if a side is, else ``"unknown"`` if a side is, else ``"none"`` |
    """
    if how == "left":
        return left
    if how == "right":
        return right
    decides: Presence = "none" if how == "inner" else "row"
    if decides in (left, right):
        return decides
    return "unknown" if "unknown" in (left, right) else left
