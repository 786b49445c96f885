"""The records of streams that a driver was fed, for the groups that they came into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.base.columns import DELETED
from dovetail.engine.view_rows import apply_plain_view
from dovetail.plan.nodes import Entry, Source
from dovetail.plan.views import View
from dovetail.testing.inputs import arrow_rows, columns_of


@dataclass(frozen=True)
class DriverRecords:
    """The records that a driver was fed in all micro-batches, in order."""

    fed: Sequence[tuple[Source, pa.Table]]
    """The rows of inputs, with their event times, in the order in which they were fed."""

    def records_of(self, stream: Entry) -> pa.Table | None:
        """Return the records of an input, or of a view of one without expressions, in the order in
        which they were fed. None for a table and for any other stream.

        The result has the stream's columns, then ``_event_time``, in microseconds, ``_deleted`` and
        ``_sequence``. Records without a value are left out, as aggregates drop them. An input that
        was not fed gives an empty table.
        """
        if not stream.stream:
            return None
        if isinstance(stream, Source):
            empty = arrow_rows(stream, columns_of(stream), [], [], [], 0)
            rows = pa.concat_tables([empty, *(rows for s, rows in self.fed if s is stream)])
            return rows.filter(pc.invert(rows.column(DELETED)))
        if not isinstance(stream, View) or stream.computed or not stream.row_by_row:
            return None
        below = self.records_of(stream.node)
        return None if below is None else apply_plain_view(below, stream)


def merge_batches(batches: Iterable[Sequence[tuple[Source, pa.Table]]]) -> DriverRecords:
    """Return the records of all micro-batches, in order. ``batches``: for each micro-batch the fed
    tables of rows with their sources.
    """
    return DriverRecords([step for batch in batches for step in batch])
