"""The elements of a table's array as rows of their own, on one bucket of the table's keys
(``ExplodeLaw``). The store holds each key's last row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dovetail.aggregates.aggregate import not_null_mask
from dovetail.aggregates.multiset import list_elements, list_sizes, value_numbers
from dovetail.arrays.equality import arrays_equal, canonical_key, rows_equal
from dovetail.arrays.grouping import last_of_each, start_mask
from dovetail.arrays.timeline import ABSENT, Ints, Mask
from dovetail.laws.explode import Elements, elements_to_emit
from dovetail.operators.counts import Counts
from dovetail.operators.job import Job, OperatorOutcome, output_table
from dovetail.operators.row_changes import RowChanges
from dovetail.physical.specs.by_key import ExplodeLaw
from dovetail.plan.metrics import MetricKind, metric_name


def run(job: Job, law: ExplodeLaw) -> OperatorOutcome:
    """Emit the elements that leave and enter the array with each change of a row, in the order of
    the records. With ``emit="batch"``, emit each element's last change, if its row differs from the
    one before the batch.

    Each key's last row is stored. Unless ``law.position``, null elements and elements that an array
    repeats are left out. Those of new arrays are counted as ``null_element`` and ``repeated``. All
    NaNs are one element then, and so are 0.0 and -0.0. Without rows in the batch, emit nothing and
    leave the store as it is. Return the changes as ``output``, with the store and the counts.
    """
    store = job.table_store(0)
    if not job.any_rows:
        return OperatorOutcome(None, job.stores)
    changes = RowChanges.read_batch(job, store)
    columns = job.sources[0].shape.value_columns
    rows = [changes.pool.columns_at(refs, columns) for refs in (changes.old, changes.new)]
    element_changes, value = _list_elements([side.pop(law.column) for side in rows], law)
    source, rows_of_batch = job.sources[0], job.batches[0].rows
    counts = Counts()
    if not law.position:
        null = value.is_null().to_numpy(zero_copy_only=False)
        repeated = element_changes.repeated & ~null
        left_out: dict[MetricKind, Mask] = {"null_element": null, "repeated": repeated}
        for kind, mask in left_out.items():
            lost = changes.event[element_changes.change[mask & element_changes.is_new]]
            name = metric_name(source.name, kind)
            counts.add_rows(name, source, rows_of_batch, changes.events.row[lost])
        element_changes, value = _select_elements(
            element_changes, value, np.flatnonzero(~(null | repeated))
        )
    which = elements_to_emit(element_changes, changes.events.arrival[changes.event])
    if job.operator.emit == "batch":
        which = which[_last_differing(changes, element_changes, value, which, rows)]
    out, value = _select_elements(element_changes, value, which)
    event = changes.event[out.change]
    group = pa.array(changes.events.group[event])
    element_key = pa.array(out.place, pa.int32()) if law.position else value
    values = [column.take(pa.array(out.change, mask=~out.is_new)) for column in rows[1]]
    if law.position:
        values.insert(law.column, value.take(pa.array(np.arange(len(value)), mask=~out.is_new)))
    table = output_table(
        job.operator,
        [*(key.take(group) for key in changes.events.keys), element_key],
        [values],
        [np.where(out.is_new, out.change, ABSENT)],
        deleted=~out.is_new,
        event_time_us=changes.events.event_time_us[event],
        position=job.manifest.position,
        cause=job.event_causes(changes.events).take(event),
    )
    counts.update(changes.store_rows(job, store))
    stores = {job.operator.names[0]: store.runs}
    return OperatorOutcome(table if len(event) else None, stores, counts=counts)


def _list_elements(lists: Sequence[pa.Array], law: ExplodeLaw) -> tuple[Elements, pa.Array]:
    """Return the elements of all arrays and their values, those of the arrays before the changes
    first. A null array has no elements.

    ``lists``: the array column before, then after, one row per change each. With ``law.position``
    an element is identified by its position in the array, from 0. Else equal elements have one
    identity, a null element has identity 0, and values are canonical.
    """
    joined, half = pa.concat_arrays(lists), len(lists[0])
    row, value = list_elements(joined)
    position = np.arange(len(row)) - (np.cumsum(list_sizes(joined)) - list_sizes(joined))[row]
    is_new = row >= half
    change = row - half * is_new
    if law.position:
        return Elements(change, is_new, position, position), value
    value = canonical_key(value)
    # Of value_numbers, a null has that of some value.
    number = np.where(not_null_mask(value), value_numbers(value) + 1, 0)
    return Elements(change, is_new, position, number), value


def _select_elements(
    element_changes: Elements, value: pa.Array, which: Ints
) -> tuple[Elements, pa.Array]:
    """Return some of ``element_changes`` and their values, in the order of ``which``, indices of
    elements. ``value``: the value of each element.
    """
    return element_changes.select(which), value.take(pa.array(which))


def _last_differing(
    changes: RowChanges,
    element_changes: Elements,
    value: pa.Array,
    which: Ints,
    rows: Sequence[Sequence[pa.Array]],
) -> Ints:
    """Return the last emitted change of each element, without those that leave its row as it was
    before the batch: int64, indices into ``which``, ascending.

    ``element_changes``: all elements that leave or enter with ``changes``; ``value``: their values.
    ``which``: int64, the indices of the emitted ones, in order. ``rows``: the other value columns
    before and after, one row per change each.
    """
    group = changes.events.group[changes.event]
    element_id = element_changes.element_ids(group)
    last = last_of_each(np.unique(element_id[which], return_inverse=True)[1])
    ends = which[last]
    first = start_mask(group)
    before = np.flatnonzero(~element_changes.is_new & first[element_changes.change])
    before = before[np.argsort(element_id[before])]
    before_index = np.searchsorted(element_id[before], element_id[ends])
    was = before[np.minimum(before_index, len(before) - 1)] if len(before) else np.zeros_like(ends)
    there = (element_id[was] == element_id[ends]) & (len(before) > 0)
    same = there == element_changes.is_new[ends]
    compared = np.flatnonzero(there & element_changes.is_new[ends])
    former, present = was[compared], ends[compared]
    same[compared] = arrays_equal(value.take(pa.array(former)), value.take(pa.array(present)))
    if rows[0]:
        then, now = (
            pa.array(element_changes.change[former]),
            pa.array(element_changes.change[present]),
        )
        same[compared] &= rows_equal(
            [column.take(then) for column in rows[0]], [column.take(now) for column in rows[1]]
        )
    differing: Ints = last[~same]
    return differing
