"""The steps of a timeline: records and clocks as columns, and lanes with the marks of both.

Each record has a column. A micro-batch of one record has its changes in the record's column, since
the record has caused them. A micro-batch of several records has a column more, for their changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dovetail.base.columns import DELETE, DELETED, EVENT_TIME, WINDOW_END
from dovetail.base.text_cells import cell_text, instant
from dovetail.operators.job import END_OF_TIME
from dovetail.plan.nodes import Node, Source
from dovetail.plan.types.arrow import arrow_schema
from dovetail.plan.types.spans import span_as_text
from dovetail.testing.changes import Change
from dovetail.testing.driver_explanations import MicroBatch
from dovetail.testing.timeline_layout import Lane, Mark, TimelineColumn

STACK_MAX = 8
"""The largest number of changes of a lane in one column."""
LABEL_MAX = 40
"""The largest number of characters of a label."""


def first_shown_batch(batches: Sequence[MicroBatch], limit: int) -> int:
    """Return the index, from 0, of the first micro-batch to show.

    The micro-batches from there on have at most ``limit`` steps: each record is one, and each
    micro-batch without records. The last micro-batch is shown in any case, even if it has more. The
    index is 0 without micro-batches.
    """
    first, steps = len(batches), 0
    while first and steps + (more := max(1, records_of(batches[first - 1]))) <= limit:
        first, steps = first - 1, steps + more
    return max(0, min(first, len(batches) - 1))


def records_of(batch: MicroBatch) -> int:
    """Return the count of records in a micro-batch, of all sources together."""
    return sum(len(rows) for _, rows in batch.fed)


def steps_of(
    batches: Sequence[MicroBatch],
    sources: Sequence[Source],
    results: Sequence[Node],
    *,
    first: int,
    limit: int,
) -> tuple[list[TimelineColumn], list[Lane]]:
    """Lay out the micro-batches from index ``first``, counted from 0, of each the last ``limit``
    records. Return the columns, in the order of arrival, and the lanes: one per input or result,
    with its marks by column. Those of ``sources`` come before those of ``results``.

    A record has a column of its own, and so has a micro-batch without records. One of several
    records has a further column if it has changes. ``sources``, ``results``: all that the
    micro-batches have rows of. ``limit``: at least 1.
    """
    columns: list[TimelineColumn] = []
    inputs = {source: Lane(source.name, False, {}) for source in sources}
    outputs = {node: Lane(node.name, True, {}) for node in results}
    now_us = batches[first - 1].now_us if first else 0
    for number, batch in enumerate(batches[first:], first + 1):
        records = [(source, row) for source, rows in batch.fed for row in rows.to_pylist()]
        for source, row in records[-limit:]:
            mark = _record_mark(source, row, len(columns))
            inputs[source].stacks[mark.column] = [mark]
            columns.append(
                TimelineColumn(number, _time_text(row[EVENT_TIME]), source, row[EVENT_TIME])
            )
        if not records:
            columns.append(_clock_column(number, batch, now_us))
        elif len(records) > 1 and any(batch.changes.values()):
            columns.append(TimelineColumn(number, ""))
        now_us = batch.now_us
        for node, changes in batch.changes.items():
            marks = [*_change_marks(node, changes, len(columns) - 1, columns[-1])]
            if marks:
                outputs[node].stacks[len(columns) - 1] = marks
    return columns, [*inputs.values(), *outputs.values()]


def _clock_column(number: int, batch: MicroBatch, before_us: int) -> TimelineColumn:
    """Return the column of a micro-batch that has no records. Its label says how time has moved:
    stream time if it was moved, else the wall clock.

    ``number``: the index of the micro-batch, from 1, as ``TimelineColumn.batch``. ``before_us``:
    the wall clock before the micro-batch, in microseconds.
    """
    if batch.beat_us == END_OF_TIME:
        return TimelineColumn(number, "end of input", None, END_OF_TIME)
    if batch.beat_us is not None:
        return TimelineColumn(number, f"time to {_time_text(batch.beat_us)}", None, batch.beat_us)
    passed_us = batch.now_us - before_us
    return TimelineColumn(
        number, f"clock +{span_as_text(passed_us)}" if passed_us else "no records"
    )


def _record_mark(source: Source, row: dict[str, Any], column: int) -> Mark:
    """Return the mark of the record ``row``, values by column, in the timeline's column with index
    ``column``, from 0. The mark of a tombstone has no values. ``row`` has ``_deleted`` and
    ``_event_time`` (microseconds), too.
    """
    key = {name: row[name] for name in source.key.names}
    values = None if row[DELETED] else {name: row[name] for name in source.values.names}
    label, title = _row_texts(source, key, values, row[DELETED])
    return Mark(
        column, label, f"{source.name}: {title}, time {_time_text(row[EVENT_TIME])}", row[DELETED]
    )


def _change_marks(
    node: Node, changes: Sequence[Change], column: int, cause: TimelineColumn
) -> Iterator[Mark]:
    """Yield the marks of a result's changes in the timeline's column with index ``column``, from 0:
    the first ``STACK_MAX`` (8), then one that counts the others. No changes yield none.

    ``cause``: the column with that index. A change has its time behind its cut label, unless the
    column is a record's of the same time.
    """
    for change in changes[:STACK_MAX]:
        deleted = change.change == DELETE
        label, title = _row_texts(node, change.key, change.values, deleted)
        time = _time_text(change.timestamp_us)
        at = "" if cause.source is not None and time == cause.label else f" @{time}"
        yield Mark(column, label + at, f"{node.name}: {title}, time {time}", deleted)
    if more := len(changes[STACK_MAX:]):
        yield Mark(column, f"{more} more", f"{node.name}: {more} more changes", False)


def _row_texts(
    node: Node, key: dict[str, Any], values: dict[str, Any] | None, deleted: bool
) -> tuple[str, str]:
    """Return a short and a long text of a row. The short one has the key and the values without
    names, cut to ``LABEL_MAX`` (40) characters. The long one has ``name=value`` of all columns.

    The end of a window is in the long text only. A null is ``null``. ``values``: None for a
    tombstone. ``deleted``: True to end the long text with ``deleted``.
    """
    types = {field.name: field.type for field in arrow_schema(node.row)}

    def cells(row: dict[str, Any]) -> dict[str, str]:
        """Return the text of each value by its column, in order, ``null`` for a null."""
        texts = {name: cell_text(value, types[name]) for name, value in row.items()}
        return {name: text or "null" for name, text in texts.items()}

    short_key = {name: text for name, text in cells(key).items() if name != WINDOW_END}
    label = ", ".join(short_key.values())
    if values:
        label += f": {', '.join(cells(values).values())}"
    long = ", ".join(f"{name}={text}" for name, text in cells({**key, **(values or {})}).items())
    return _cut_label(label), f"{long}, deleted" if deleted else long


def _cut_label(text: str) -> str:
    """Return a text cut to at most ``LABEL_MAX`` (40) characters; the last one of a cut text is
    ``…``.
    """
    return text if len(text) <= LABEL_MAX else f"{text[: LABEL_MAX - 1]}…"


def _time_text(time_us: int | None) -> str:
    """Return a time in microseconds since 1970 as text. It is a date and time, or the digits if it
    lies in 1970's first day or outside of the years 1 to 9999. None is ``no time``.
    """
    return "no time" if time_us is None else str(instant(time_us))
