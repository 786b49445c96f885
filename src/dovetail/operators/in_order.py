"""After a join by foreign key: the results of each primary key in one place and in their order.

A primary key's results come from the buckets of the foreign keys that its row has had. Mostly that
is one, whose order is the primary key's. Those of a row that moved from bucket to bucket within the
micro-batch wait until all have come, and are ordered by the change of the row after which they were
made (``_epoch``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.grouping import by_key
from dovetail.columns import DELETED, EPOCH, PLACE, POSITION
from dovetail.laws.foreign_key_join import BEFORE, SETTLED
from dovetail.operators.job import Done, Job
from dovetail.physical.operators import InOrder

_BATCH_SHIFT = 32


def merge(
    tables: Iterable[pa.Table], law: InOrder, columns: Sequence[str], batch: int
) -> Iterator[pa.Table]:
    """The changes of a join by foreign key, in tables of these ``columns``, from what its buckets
    put out, each one's tables in order.

    A change's position is the number of the micro-batch, then its place in what is merged here.
    """
    position = batch << _BATCH_SHIFT
    held: list[pa.Table] = []
    for table in tables:
        settled = table.column(EPOCH).to_numpy() == SETTLED
        if not settled.all():
            held.append(table.filter(pa.array(~settled)))
            table = table.filter(pa.array(settled))
        yield _placed(table, columns, position)
        position += len(table)
    if held:
        moved = pa.concat_tables(held)
        moved = moved.take(pa.array(np.argsort(moved.column(EPOCH).to_numpy(), kind="stable")))
        if law.net:
            moved = _net(moved.combine_chunks(), len(law.keys))
        yield _placed(moved, columns, position)


def run(job: Job, law: InOrder) -> Done:
    """Those of one bucket, where no exchange lies before."""
    rows = job.batches[0].rows
    columns = job.operator.output_schema.names
    tables = list(merge([rows], law, columns, 0)) if len(rows) else []
    return Done(pa.concat_tables(tables) if tables else None, {})


def _placed(table: pa.Table, columns: Sequence[str], position: int) -> pa.Table:
    positions = pa.array(np.arange(position, position + len(table)))
    number = table.schema.get_field_index(POSITION)
    placed = table.set_column(number, POSITION, positions)
    return placed.select(columns)


def _net(rows: pa.Table, keys: int) -> pa.Table:
    """Of each key the last row, where it differs from the one marked ``BEFORE``."""
    place = rows.column(PLACE).to_numpy()
    key = [rows.column(number).combine_chunks() for number in range(keys)]
    order, new, _ = by_key(place, key, np.arange(len(rows)))
    first = order[new]
    last = order[np.append(np.flatnonzero(new)[1:], len(order)) - 1]
    epoch = rows.column(EPOCH).to_numpy()
    was = epoch[first] == BEFORE
    deleted = rows.column(DELETED).to_numpy()[last].astype(np.bool_)
    same = deleted & ~was
    both = np.flatnonzero(~deleted & was)
    values = rows.select(range(keys, rows.schema.get_field_index(DELETED)))
    now, then = (values.take(pa.array(side[both])).columns for side in (last, first))
    same[both] = rows_equal([c.combine_chunks() for c in now], [c.combine_chunks() for c in then])
    emitted = last[~same & (epoch[last] != BEFORE)]
    return rows.take(pa.array(np.sort(emitted)))
