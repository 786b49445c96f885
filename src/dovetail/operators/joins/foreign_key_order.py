"""After a join by foreign key: the results of each primary key in one place, in their order.

A primary key's results come from the buckets of the foreign keys that its row has had. Usually that
is one bucket, and its order is the primary key's. A row may move from bucket to bucket within the
micro-batch. Its results wait until all have arrived, and are then ordered by ``_epoch``, the change
of the row that caused them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.grouping import by_key
from dovetail.base.columns import DELETED, EPOCH, PLACE, POSITION
from dovetail.laws.joins.foreign_key_join import BEFORE, SETTLED
from dovetail.operators.job import Job, OperatorOutcome
from dovetail.physical.specs.by_key import InOrderLaw

_BATCH_SHIFT = 32


def merge_buckets(
    tables: Iterable[pa.Table], law: InOrderLaw, columns: Sequence[str], batch: int
) -> Iterator[pa.Table]:
    """Merge the output of all buckets of a join by foreign key. Yield a table of ``columns`` for
    each of ``tables``, perhaps empty, then one more if keys moved between buckets; nothing without
    input.

    ``tables``: each has ``columns`` (among them ``_position``), ``_place`` and ``_epoch``, and the
    key columns come first. Tables of several buckets may interleave, but the rows of one bucket
    must be in the order of its results. ``batch``: the id of the micro-batch.

    Rows with the epoch ``SETTLED`` pass through at once, in the order given. Rows of keys that
    moved between buckets follow at the end, by epoch, those of one epoch in the order given. With
    ``law.net``, these are only each key's last one, if it differs from the row before the batch. A
    change's position is ``batch`` shifted left by 32 bits, plus its index in the merged output.
    """
    position = batch << _BATCH_SHIFT
    moved_tables: list[pa.Table] = []
    for table in tables:
        settled = table.column(EPOCH).to_numpy() == SETTLED
        if not settled.all():
            moved_tables.append(table.filter(pa.array(~settled)))
            table = table.filter(pa.array(settled))
        yield _renumber_positions(table, columns, position)
        position += len(table)
    if moved_tables:
        moved = pa.concat_tables(moved_tables)
        moved = moved.take(pa.array(np.argsort(moved.column(EPOCH).to_numpy(), kind="stable")))
        if law.net:
            moved = _net_rows(moved.combine_chunks(), len(law.keys))
        yield _renumber_positions(moved, columns, position)


def run(job: Job, law: InOrderLaw) -> OperatorOutcome:
    """Order the results of one bucket, when no exchange lies before it. Positions begin at 0. The
    output is None if no rows came; it may be an empty table. Nothing is stored.
    """
    rows = job.batches[0].rows
    columns = job.operator.output_schema.names
    tables = list(merge_buckets([rows], law, columns, 0)) if len(rows) else []
    return OperatorOutcome(pa.concat_tables(tables) if tables else None, {})


def _renumber_positions(table: pa.Table, columns: Sequence[str], position: int) -> pa.Table:
    """Return the ``columns`` of ``table``, in that order, with ``_position`` replaced by
    ``position``, ``position + 1`` and so on.
    """
    positions = pa.array(np.arange(position, position + len(table)))
    position_column = table.schema.get_field_index(POSITION)
    placed = table.set_column(position_column, POSITION, positions)
    return placed.select(columns)


def _net_rows(rows: pa.Table, keys: int) -> pa.Table:
    """Return the last row of each key, in their order, if it differs in a value from the row before
    the batch: the key's row with the epoch ``BEFORE``. Without such a row, a tombstone is left out.

    ``rows``: at least one, ordered by epoch, with one chunk a column. ``keys``: the count of key
    columns, which come first.

    | key | epoch      | row       | emitted                          |
    |-----|------------|-----------|----------------------------------|
    | 1   | ``BEFORE`` | x         |                                  |
    | 1   | 5          | y         |                                  |
    | 1   | 8          | x         | no: equal to the row before      |
    | 2   | 6          | z         | yes                              |
    | 3   | 7          | tombstone | no: there was no row             |
    """
    place_hash = rows.column(PLACE).to_numpy()
    key = [rows.column(column_index).combine_chunks() for column_index in range(keys)]
    order, new, _ = by_key(place_hash, key, np.arange(len(rows)))
    first = order[new]
    last = order[np.append(np.flatnonzero(new)[1:], len(order)) - 1]
    epoch = rows.column(EPOCH).to_numpy()
    was = epoch[first] == BEFORE
    deleted = rows.column(DELETED).to_numpy()[last].astype(np.bool_)
    same = deleted & ~was
    compared = np.flatnonzero(~deleted & was)
    values = rows.select(range(keys, rows.schema.get_field_index(DELETED)))
    now, then = (values.take(pa.array(side[compared])).columns for side in (last, first))
    same[compared] = rows_equal(
        [c.combine_chunks() for c in now], [c.combine_chunks() for c in then]
    )
    emitted = last[~same & (epoch[last] != BEFORE)]
    return rows.take(pa.array(np.sort(emitted)))
