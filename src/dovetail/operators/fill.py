"""Partial records of a table completed from the key's former row, on one bucket (``FillLaw``). The
store holds each key's last row, completed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.aggregates.multiset import list_elements
from dovetail.arrays.equality import rows_equal
from dovetail.arrays.timeline import (
    ABSENT,
    Mask,
    Timeline,
    last_of_source,
    timeline,
    versions_around,
)
from dovetail.errors import DataError
from dovetail.laws.fill import find_value_origins
from dovetail.operators.counts import Counts
from dovetail.operators.emission import changes_at_events, event_output_table
from dovetail.operators.job import Job, OperatorOutcome
from dovetail.operators.tables import Pool, locate_last_rows
from dovetail.physical.specs.by_key import FillLaw
from dovetail.plan.metrics import metric_name


def run(job: Job, law: FillLaw) -> OperatorOutcome:
    """Emit the records in their order, with unsent values completed from the key's former row. With
    ``emit="batch"``, emit each key's last row, if it differs from the stored one.

    Each key's last completed row is stored. A tombstone for a key without a row is emitted unless
    the source may have spurious ones (``loose``). With ``emit="batch"`` it never is, if the key has
    no stored row. A value that stays missing is null, and counted as ``unsent`` if a column lists
    the unsent names. Without rows in the batch, emit and store nothing. Return the changes as
    ``output``, with the store and the counts. Raises ``DataError`` for a missing value if
    ``law.fails``.
    """
    store, columns = job.table_store(0), job.sources[0].shape.value_columns
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    rows = job.batches[0].rows
    events = timeline([job.source_rows(0)])
    located = locate_last_rows(store, events)
    pool = Pool(rows, located, events.groups)
    filled, missing = _fill_columns(job, law, events, pool, located.present)
    last = last_of_source(events, 0)
    last_rows = rows.select(range(len(store.schema))).take(pa.array(events.row[last]))
    for column_index, values in zip(columns, filled, strict=True):
        last_rows = last_rows.set_column(
            column_index, store.schema.field(column_index), values.take(pa.array(last))
        )
    store.store(last_rows)
    before = versions_around(events, 0, located.present)[0]
    event = np.flatnonzero(
        ~(events.deleted & (before == ABSENT)) | (not job.sources[0].meaning.loose)
    )
    others = [column_index for column_index in range(len(columns)) if column_index != law.column]
    if job.operator.emit == "batch":
        stored = np.where(located.present[events.group], events.group, ABSENT)[last]
        then = pool.columns_at(stored, [columns[column_index] for column_index in others])
        now = [filled[column_index].take(pa.array(last)) for column_index in others]
        has_both = (stored != ABSENT) & ~events.deleted[last]
        differs = (stored != ABSENT) | ~events.deleted[last]
        if others:
            differs &= ~(has_both & rows_equal(then, now))
        else:
            differs &= ~has_both
        event = last[differs]
    event = event[events.by_arrival(event)]
    values = [filled[column_index].take(pa.array(event)) for column_index in others]
    counts = Counts()
    if law.column >= 0:
        counts.add(metric_name(job.sources[0].name, "unsent"), missing)
    stores = {job.operator.names[0]: store.runs}
    changes = event_output_table(job, events, changes_at_events(events, event), [values])
    return OperatorOutcome(changes, stores, counts=counts)


def _fill_columns(
    job: Job, law: FillLaw, events: Timeline, pool: Pool, stored: Mask
) -> tuple[list[pa.Array], int]:
    """Return the value columns of all ``events``, completed from former rows, and the count of
    values that stay missing.

    Each column has an element per event, null for a tombstone and for a missing value. The column
    with index ``law.column``, which lists the unsent names, becomes all null; if that is negative,
    nulls are unsent. ``pool``: the stored rows of all groups, then the batch's. ``stored``:
    bool[groups], the group has a stored row.

    Raises ``DataError`` for a missing value if ``law.fails``.
    """
    columns = job.sources[0].shape.value_columns
    event_ref = np.where(events.deleted, ABSENT, events.groups + events.row)
    filled = pool.columns_at(event_ref, columns)
    unsent_events = _null_events(filled, law) if law.column < 0 else _named_events(filled, law)
    if law.column >= 0:
        filled[law.column] = pa.nulls(len(event_ref), filled[law.column].type)
    missing = 0
    for column_index, unsent in unsent_events.items():
        former_values = find_value_origins(events, stored, unsent)
        if law.fails and former_values.missing.any():
            first = int(np.argmax(former_values.missing))
            _refuse_missing(job, law, law.names[column_index], events, first)
        missing += int(np.count_nonzero(former_values.missing))
        filled[column_index] = pool.columns_at(former_values.reference, [columns[column_index]])[0]
    return filled, missing


def _named_events(values: Sequence[pa.Array], law: FillLaw) -> dict[int, Mask]:
    """Return the events that name a column as unsent: a dict from the index of a value column to
    bool[events], for named columns only.

    ``values``: the value columns, one element per event. ``law.column``: the index of the column
    with the lists of names, which itself is never unsent. Null lists and unknown names name
    nothing.
    """
    row, name = list_elements(values[law.column])
    events: dict[int, Mask] = {}
    for column_index, column in enumerate(law.names):
        named = pc.equal(name, column).fill_null(False).to_numpy(zero_copy_only=False)
        if column_index != law.column and named.any():
            unsent = np.zeros(len(values[law.column]), np.bool_)
            unsent[row[named]] = True
            events[column_index] = unsent
    return events


def _null_events(values: Sequence[pa.Array], law: FillLaw) -> dict[int, Mask]:
    """Return the events with a null in a column: a dict from the index of a value column to
    bool[events]. Only columns of ``law.nulls`` with any null are there. ``values``: the value
    columns, one element per event.
    """
    return {
        column_index: values[column_index].is_null().to_numpy(zero_copy_only=False)
        for column_index in law.nulls
        if values[column_index].null_count
    }


def _refuse_missing(job: Job, law: FillLaw, column: str, events: Timeline, event: int) -> None:
    """Raise ``DataError`` for the event with the index ``event``, which does not bring the column
    named ``column`` and has no former value. The error names the event's key.
    """
    group = int(events.group[event])
    fields = job.sources[0].shape.key_fields
    key = ", ".join(
        f"{field.name}={part[group].as_py()!r}"
        for field, part in zip(fields, events.keys, strict=True)
    )
    raise DataError(
        law.name,
        f"a record does not bring column {column}, and there is no row before it that has a value: "
        f"{key}",
        "Read the table from a snapshot on, or take null for such values: by missing='null', or "
        "with Debezium by unsent='keep_or_null'",
    )
