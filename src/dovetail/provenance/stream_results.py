"""Results of joins of two streams, of the records that the joins keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dovetail.laws.joins.stream_join import Window
from dovetail.laws.joins.table_join import sides_preserved
from dovetail.physical.specs.by_key import waiting_store_name
from dovetail.physical.stage import Stage
from dovetail.plan.joins.stream_join import StreamJoin
from dovetail.plan.nodes import Entry
from dovetail.provenance.entries import Key, explanation_of, store_of, unknown_row
from dovetail.provenance.explanation import RowExplanation, columns_in_words
from dovetail.provenance.joined_rows import JoinedRows
from dovetail.provenance.stored_rows import StoredRow

_UNMATCHED = "of the records that are kept, none matches another or has come out alone"


@dataclass(frozen=True)
class StreamResults(JoinedRows):
    """The explanations of results of joins of two streams."""

    def explain_stream_results(
        self, node: StreamJoin, key: Key, stages: Sequence[Stage]
    ) -> RowExplanation:
        """Explain the results of a join of two streams that have this key: by the records of both
        sides that are still stored. Of each side the earliest ones are named, at most ``members``,
        an attribute of this object.

        The presence is ``"row"`` if one of these records has been emitted, in a pair or alone. It
        is ``"row"``, too, if the attribute ``emitted`` is set: the values of the result row. Then
        only records that have the values selected from their side count. Otherwise it is
        ``"unknown"``, as it is without records, since former ones may have been emitted. The
        explanation has no values and no time of its own.

        ``key``: at least a value for each of the node's key columns, by name. ``stages``: those
        that compute the node.
        """
        rows_by_side: list[list[StoredRow]] = []
        waits: list[int] = []
        records = []
        for index, (side, entry) in enumerate(zip(("left", "right"), node.entries, strict=True)):
            match = dict(zip(entry.key.names, [key[n] for n in node.key.names], strict=True))
            side_rows = self._kept_records(stages, entry, match)
            if self.emitted is not None:
                refs = {
                    s.name: s.ref[1] for s in node.select if s.ref is not None and s.ref[0] == side
                }
                side_rows = [
                    row
                    for row in side_rows
                    if all(
                        _is_same(row.values.get(c), self.emitted.get(name))
                        for name, c in refs.items()
                    )
                ]
            rows_by_side.append(side_rows)
            queues = [
                stage for stage in stages if waiting_store_name(index) in stage.fragment.stores
            ]
            waits.append(
                sum(len(self.rows(stage, waiting_store_name(index), match)) for stage in queues)
            )
            records += [self.explain_stored_record(entry, row) for row in side_rows[: self.members]]
        shown = {n: key[n] for n in node.key.names}
        if not records:
            return unknown_row(node, shown, f"no records with {columns_in_words(key)} are kept")
        if self.emitted is None and not _is_any_emitted(node, rows_by_side, waits):
            unknown = unknown_row(node, shown, _UNMATCHED)
            return replace(unknown, inputs=tuple(records))
        return explanation_of(
            node, shown, "row", reason="of the records that are kept", inputs=tuple(records)
        )

    def _kept_records(self, stages: Sequence[Stage], entry: Entry, match: Key) -> list[StoredRow]:
        """Return the records of the stream ``entry`` that the join still stores and that have the
        values ``match``, in ascending order of event time.

        The list is empty if there are none, or if no stage stores any. ``stages``: those that
        compute the join; the first that stores the stream counts. ``match``: values by column.
        """
        for stage in stages:
            for port in stage.ports:
                if port.input is not None and port.input.source == entry:
                    name = store_of(stage, port.source.name, ("records",), match)
                    if name is not None:
                        return sorted(
                            self.rows(stage, name, match), key=lambda row: row.time_us or 0
                        )
        return []

    def explain_stored_record(self, entry: Entry, row: StoredRow) -> RowExplanation:
        """Explain ``row``, a stored record of the stream ``entry``, at its own time. It has met the
        conditions of all views before it was stored, so no condition makes it ``"unknown"``.
        """
        # What is stored has met the conditions of views.
        walk = replace(self, at_us=row.time_us, emitted=self.emitted or {})
        return walk.explain_record(entry, row.values)


def _is_same(value: Any, other: Any) -> bool:
    """Return True if two values of a column are equal. A NaN equals a NaN."""
    if isinstance(value, float) and isinstance(other, float) and math.isnan(value):
        return math.isnan(other)
    return bool(value == other)


def _is_any_emitted(
    node: StreamJoin, rows_by_side: Sequence[Sequence[StoredRow]], waits: Sequence[int]
) -> bool:
    """Return True if a stored record of a key has been emitted, in a pair or alone. It has in a
    pair if the times of a record of each side lie within the join's window.

    ``rows_by_side``: the stored records of the left side and of the right side, each in the order
    of time. ``waits``: the count of records of each side that wait for their window to close. A
    side with more records than that has emitted one alone, if the join preserves this side without
    a match.
    """
    left_us, right_us = (np.array([row.time_us for row in rows], np.int64) for rows in rows_by_side)
    least_us, greatest_us = Window(**asdict(node.within)).other_side_bounds(0, left_us)
    first = np.searchsorted(right_us, least_us, "left")
    if (first < np.searchsorted(right_us, greatest_us, "right")).any():
        return True
    sides = zip(rows_by_side, waits, sides_preserved(node.how), strict=True)
    return any(comes_alone and len(rows) > n for rows, n, comes_alone in sides)
