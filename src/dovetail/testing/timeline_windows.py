"""The windows of a timeline as bars: when each begins, ends and is closed, in columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pyarrow.compute as pc

from dovetail.base.columns import EVENT_TIME, UPSERT, WINDOW_END, WINDOW_START
from dovetail.base.text_cells import instant, microseconds_of
from dovetail.laws.windows.fixed import assign_windows
from dovetail.plan.nodes import Node, Source
from dovetail.plan.transforms.aggregation import Aggregation
from dovetail.plan.types.spans import span_as_text
from dovetail.plan.types.windows import Windows
from dovetail.testing.changes import Change
from dovetail.testing.driver_explanations import MicroBatch
from dovetail.testing.timeline_layout import TimelineColumn, WindowBar


def bars_of(
    columns: Sequence[TimelineColumn],
    batches: Sequence[MicroBatch],
    nodes: Sequence[Node],
    first: int,
) -> list[WindowBar]:
    """Return the bars of all windows, of any aggregation below ``nodes``, that hold records of
    ``columns``. They are in the order of their first record; an empty list if there are none.

    Fixed windows follow from the records' times. Other windows are those of the changes of any
    result that has the aggregation's windows in its key. A window that was closed before its first
    record in the columns is left out.

    ``batches``: all micro-batches. ``first``: the index, from 0, of the first one that ``columns``
    show.
    """
    bars: list[WindowBar] = []
    for aggregation in _windowed_aggregations(nodes):
        windows, sources = aggregation.windows, {*aggregation.origins}
        assert windows is not None
        times_us = {
            n: column.time_us
            for n, column in enumerate(columns)
            if column.source in sources and column.time_us is not None
        }
        before_us = _stream_time_us(batches[:first], sources)
        clocks_us = _stream_times_us(columns, sources, before_us)
        spans = (
            _fixed_windows(times_us.values(), windows)
            if windows.fixed
            else {
                span
                for node in nodes
                if aggregation in _origins_of_windows(node)
                for span in _windows_in_changes(c for b in batches[first:] for c in b.changes[node])
            }
        )
        for start_us, end_us in sorted(spans):
            if bar := _bar(aggregation, windows, start_us, end_us, times_us, clocks_us):
                bars.append(bar)
    return sorted(bars, key=lambda bar: bar.first)


def _windowed_aggregations(nodes: Sequence[Node]) -> list[Aggregation]:
    """Return the aggregations over windows at and below these nodes, each once, in the order of the
    walk.
    """
    walked = dict.fromkeys(inner for node in nodes for inner in node.walk())
    return [node for node in walked if isinstance(node, Aggregation) and node.windows is not None]


def _origins_of_windows(node: Node) -> set[Aggregation]:
    """Return the aggregations whose windows the rows of ``node`` have: itself, or the nearest ones
    below it. The search ends at inputs without the two columns of a window. It goes on in both
    sides of a join. Empty if there are none.
    """
    if isinstance(node, Aggregation) and node.windows is not None:
        return {node}
    inputs = [input_ for input_ in node.inputs if {WINDOW_START, WINDOW_END} <= {*input_.row.names}]
    return set[Aggregation]().union(*map(_origins_of_windows, inputs))


def _stream_time_us(batches: Sequence[MicroBatch], sources: Collection[Source]) -> int | None:
    """Return the stream time of ``sources`` after these micro-batches, in microseconds. It is the
    largest time of all records that were fed, tombstones and dropped ones included, or one to which
    stream time was moved. None without any.
    """
    fed = (rows for batch in batches for source, rows in batch.fed if source in sources)
    times_us = [pc.max(rows[EVENT_TIME]).as_py() for rows in fed]
    times_us += [batch.beat_us for batch in batches]
    return max((time_us for time_us in times_us if time_us is not None), default=None)


def _stream_times_us(
    columns: Sequence[TimelineColumn], sources: Collection[Source], before_us: int | None
) -> list[int | None]:
    """Return the stream time (largest time so far) of ``sources`` after each column, in
    microseconds, None before the first record. A column with a record of other sources does not
    move it. A column without records that has a time (a move of stream time) does.

    ``before_us``: the stream time before the first column, None for none.
    """
    clocks_us = []
    for column in columns:
        time_us = column.time_us if column.source in {None, *sources} else None
        if time_us is not None and (before_us is None or time_us > before_us):
            before_us = time_us
        clocks_us.append(before_us)
    return clocks_us


def _fixed_windows(times_us: Collection[int], windows: Windows) -> set[tuple[int, int]]:
    """Return (start, end) of the windows that hold one of the times at least, in microseconds since
    1970. The end is exclusive. ``windows``: tumbling or hopping ones, which the clock determines.
    """
    if not times_us:
        return set()
    _, start_us = assign_windows(np.array([*times_us]), windows.size_us, windows.advance_us)
    return {(start, start + windows.size_us) for start in start_us.tolist()}


def _windows_in_changes(changes: Iterable[Change]) -> set[tuple[int, int]]:
    """Return (start, end) of the windows in the keys of changes, in microseconds since 1970.
    Changes without windows, and windows whose key's last change is a delete, are left out.
    """
    last = {str(c.key): c for c in changes if WINDOW_START in c.key and WINDOW_END in c.key}
    return {
        (microseconds_of(change.key[WINDOW_START]), microseconds_of(change.key[WINDOW_END]))
        for change in last.values()
        if change.change == UPSERT
    }


def _bar(
    aggregation: Aggregation,
    windows: Windows,
    start_us: int,
    end_us: int,
    times_us: Mapping[int, int],
    clocks_us: Sequence[int | None],
) -> WindowBar | None:
    """Return the bar of the window from ``start_us`` to ``end_us``, in microseconds since 1970. The
    end of a session or a sliding window is inclusive, that of other windows exclusive. Return None
    if no record is in the window, or if it was closed when the first one came.

    ``aggregation``, ``windows``: the aggregation and its windows, for the title. ``times_us``: the
    times of the records, by the index of their column, from 0. ``clocks_us``: stream time after
    each column, None before the first record.
    """
    # The end of a session or a sliding window belongs to it.
    last_us = end_us - windows.fixed
    close_us = end_us + windows.wait_us + (windows.kind == "session")
    inside = [n for n, time_us in times_us.items() if start_us <= time_us <= last_us]

    def column_reaching(time_us: int) -> int:
        """Return the index of the first column with this stream time or a later one; the count of
        columns if there is none.
        """
        clocks = enumerate(clocks_us)
        return next((n for n, now in clocks if now is not None and now >= time_us), len(clocks_us))

    first, closed = min(inside, default=len(clocks_us)), column_reaching(close_us)
    if first >= closed:
        return None
    state = "closed" if closed < len(clocks_us) else "not closed"
    span = f"{instant(start_us)} to {instant(end_us)}"
    title = f"{aggregation.name}, {windows}: window {span}, {state}"
    label = f"{instant(start_us)}, {span_as_text(end_us - start_us)}"
    return WindowBar(label, title, first, max(first, column_reaching(last_us + 1)), closed)
