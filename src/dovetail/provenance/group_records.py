"""The records of a stream that came into one group, where all records are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.timeline import NO_TIME
from dovetail.base.columns import EVENT_TIME, WINDOW_END, WINDOW_START
from dovetail.base.text_cells import microseconds_of
from dovetail.plan.nodes import Entry
from dovetail.plan.transforms.aggregation import Aggregation
from dovetail.plan.types.spans import span_as_text
from dovetail.provenance.stored_rows import StoredRow, matching

_LATE = "_late_us"
"""The column with the time by which a record came too late; negative for one in time."""


class Records(Protocol):
    """All records of a topology's streams."""

    def records_of(self, stream: Entry) -> pa.Table | None:
        """Return the records of ``stream`` so far that are not deletes, in order of arrival. None
        if they are not known.

        The table has the stream's columns and ``_event_time``, int64 in microseconds, perhaps with
        more columns.
        """


class GroupRecords(NamedTuple):
    """The records of a group."""

    taken: list[StoredRow]
    """The records that came into the group, in order of arrival, with all columns of the stream."""
    late_us: list[int]
    """For each record that came after the group's window had closed, by how much: the stream time
    at its arrival less that of the close, in microseconds."""

    @property
    def late_in_words(self) -> str:
        """The records that came too late for the group, in words: their count, and the delay of the
        last one to arrive. The delay is the stream time then, less that of the window's close.
        Empty for none.
        """
        if not self.late_us:
            return ""
        if len(self.late_us) == 1:
            return f"a record arrived {span_as_text(self.late_us[0])} after its window had closed"
        last = span_as_text(self.late_us[-1])
        return (
            f"{len(self.late_us):,} records arrived after their window had closed, the last one "
            f"{last} after"
        )


def group_records(
    records: Records, node: Aggregation, key: Mapping[str, Any]
) -> GroupRecords | None:
    """Return the records of the group with this key that came in time (``taken``). Return with them
    the delay of each that came too late (``late_us``, in microseconds). Both are in order of
    arrival, and empty for a group without records. None if the records are not known.

    They are not known if ``records`` lacks the stream, or if windows slide. For a session, they are
    not known if a record of it came after the session of this record alone would have closed.
    ``node``: an aggregation of a stream. ``key``: the group columns and, with windows, the start
    and end of the window. The end is inclusive for a session, else exclusive. A record is late from
    a delay of 0 on. Records with a null in a group column have no group and do not advance stream
    time.
    """
    rows = records.records_of(node.input)
    if rows is None or (node.windows is not None and node.windows.kind == "sliding"):
        return None
    for name in node.by:
        rows = rows.filter(pc.is_valid(rows.column(name)))
    rows = rows.append_column(_LATE, pa.array(np.full(len(rows), -1)))
    if node.windows is not None:
        time_us = rows.column(EVENT_TIME).to_numpy().astype(np.int64)
        begin_us, end_us = (microseconds_of(key[name]) for name in (WINDOW_START, WINDOW_END))
        fixed = node.windows.fixed
        inside = (time_us >= begin_us) & (time_us < end_us + (not fixed))
        stream_us = np.maximum.accumulate(np.append(NO_TIME, time_us))[:-1]
        closes_us = (end_us if fixed else time_us + 1) + node.windows.wait_us
        late = inside & (stream_us >= closes_us)
        if not fixed and late.any():
            return None  # such a record may have joined a session that was open
        late_us = np.where(late, stream_us - closes_us, -1)
        rows = rows.set_column(len(rows.column_names) - 1, _LATE, pa.array(late_us))
        rows = rows.filter(pa.array(inside))
    of_group = matching(rows, {name: key[name] for name in node.by}).to_pylist()
    names = node.input.row.names
    taken = [
        StoredRow({name: row[name] for name in names}, row[EVENT_TIME])
        for row in of_group
        if row[_LATE] < 0
    ]
    return GroupRecords(taken, [row[_LATE] for row in of_group if row[_LATE] >= 0])
