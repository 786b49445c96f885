"""Rows of a key counted within a transaction, on one bucket (``TransactLaw``). The store holds of
each key with a row its last transaction, and how many rows the key has at the moment.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.grouping import last_of_each
from dovetail.arrays.timeline import ABSENT, Mask, Timeline, last_of_source, timeline
from dovetail.base.columns import DELETED, EVENT_TIME, HASH
from dovetail.laws.transact import BARE, CHANGES, COMES, GOES, Steps, Tally, settle_events
from dovetail.operators.counts import Counts
from dovetail.operators.emission import changes_at_events, event_output_table
from dovetail.operators.job import Job, OperatorOutcome, combine_chunks, take_rows
from dovetail.physical.specs.by_key import TransactLaw
from dovetail.plan.metrics import metric_name
from dovetail.state.run_state import Located
from dovetail.state.table_state import TableState

_STATE: Final = (
    pa.field("transaction", pa.string()),
    pa.field("rows", pa.int64()),
    pa.field("order", pa.int64()),
    pa.field("place", pa.int64()),
    pa.field("skipped", pa.bool_()),
)
"""The stored columns behind the key: a ``Tally``, with the transaction's id."""


def run(job: Job, law: TransactLaw) -> OperatorOutcome:
    """Emit the events that change a table's row, in their order, without the column of the
    transaction. With ``emit="batch"``, emit each key's last one; a delete of a key without a stored
    row then emits nothing. Return the changes as ``output``, with the store and the counts.

    Rows of a key are counted within a transaction. A delete of one of several rows is left out, and
    so is a record without a value right after it. An event that its transaction has brought before
    is counted as repeated, and left out, too. Neither its order nor its place in the log is beyond
    those that the transaction has brought for the key. An event without a transaction or order
    never repeats.

    Each key's last transaction and count of rows are stored. Without rows in the batch, emit
    nothing and leave the store as it is.
    """
    (name,), source, rows = job.operator.names, job.sources[0], job.batches[0].rows
    shape = source.shape
    schema = pa.schema([*list(shape.schema)[: shape.key_columns.stop], *_STATE])
    store = TableState(schema, shape.keys, job.stored_runs(name), job.blobs, job.cache)
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    events = timeline([job.source_rows(0)])
    located = store.locate(events.hash, events.keys)
    given = combine_chunks(rows.column(shape.value_columns[law.column])).take(pa.array(events.row))
    ids, steps, tally = _read_events(events, given, store, located)
    made = settle_events(events.start, steps, tally)
    _store_tallies(store, events, made.tally, ids)
    event = np.flatnonzero(~made.left_out)
    if job.operator.emit == "batch":
        event = event[last_of_each(events.group[event])]
        event = event[~events.deleted[event] | located.present[events.group[event]]]
    event = event[events.by_arrival(event)]
    others = [n for place, n in enumerate(shape.value_columns) if place != law.column]
    values = take_rows(rows.select(others).columns, events.row[event])
    counts = Counts()
    counts.add_rows(metric_name(source.name, "repeated"), source, rows, events.row[made.repeated])
    changes = event_output_table(job, events, changes_at_events(events, event), [values])
    return OperatorOutcome(changes, {name: store.runs}, counts=counts)


def _read_events(
    events: Timeline, given: pa.StructArray, store: TableState, located: Located
) -> tuple[pa.Array, Steps, Tally]:
    """Return the ids of all transactions, a step per event, and the state of each group before the
    batch. Steps and states name a transaction by its index in the ids, ABSENT for none.

    ``given``: per event, a struct of its operation, transaction, order and place
    (``laws.transact.Steps``), null for a record without a value. ``store``, ``located``: the store,
    and the stored row of each group in it. A group that is not stored has the state
    ``Tally.empty``. An event without an order counts as one without a transaction.
    """
    op, id_, order, place = given.flatten()
    known = np.flatnonzero(located.present)
    columns = range(store.value_columns.start, len(store.schema))
    stored, *numbers = located.fetch(known, columns).columns
    own = pc.if_else(order.is_valid(), id_, pa.scalar(None, id_.type))
    coded = pa.chunked_array([*stored.chunks, own]).dictionary_encode().combine_chunks()
    number = coded.indices.fill_null(ABSENT).to_numpy().astype(np.int64)
    bare = op.is_null().to_numpy(zero_copy_only=False) & events.deleted
    steps = Steps(
        np.select(
            [_has_operation(op, "d"), _has_operation(op, "u"), bare], [GOES, CHANGES, BARE], COMES
        ),
        number[len(known) :],
        order.fill_null(0).to_numpy(),
        place.fill_null(0).to_numpy(),
    )
    rows, last_order, last_place, skipped = (column.to_numpy() for column in numbers)
    tally = Tally.empty(events.groups)
    tally.replace(known, Tally(rows, number[: len(known)], last_order, last_place, skipped))
    return coded.dictionary, steps, tally


def _has_operation(op: pa.Array, kind: str) -> Mask:
    """Return a mask of the events whose operation ``op``, a string array, is ``kind``: bool[n],
    false for null.
    """
    return pc.equal(op, kind).fill_null(False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _store_tallies(store: TableState, events: Timeline, tally: Tally, ids: pa.Array) -> None:
    """Put the state of each key in ``events`` into ``store``, a tombstone for a key without rows.

    ``tally``: the state after the batch, one per group of ``events``. ``ids``: the transactions'
    ids; a state names one by its index, ABSENT for none.
    """
    last = last_of_source(events, 0)
    number = pa.array(tally.transaction, mask=tally.transaction == ABSENT)
    columns = {
        HASH: pa.array(events.hash),
        EVENT_TIME: pa.array(events.event_time_us[last]),
        DELETED: pa.array(tally.rows == 0),
        **dict(zip(store.schema.names[3:], events.keys, strict=False)),
        "transaction": ids.take(number),
        "rows": pa.array(tally.rows),
        "order": pa.array(tally.order),
        "place": pa.array(tally.place),
        "skipped": pa.array(tally.skipped),
    }
    store.store(pa.table([*columns.values()], schema=store.schema))
