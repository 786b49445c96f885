"""The elements of a table's array as rows of their own, on one bucket of the table's keys
(``Explode``). The store holds each key's last row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dovetail.aggregates.multiset import classes, elements, sizes
from dovetail.arrays.equality import arrays_equal, canonical, rows_equal
from dovetail.arrays.timeline import ABSENT, Ints, Mask
from dovetail.laws.explode import Elements, emitted, last_of_each
from dovetail.operators.counts import Counts
from dovetail.operators.job import Done, Job, output
from dovetail.operators.row_changes import RowChanges
from dovetail.physical.specs.by_key import Explode
from dovetail.plan.metrics import Kind, metric


def run(job: Job, law: Explode) -> Done:
    """Emit the elements that leave and come with each change, in the order of the records. With
    ``emit="batch"``, emit each element's last change if it changes anything.
    """
    store = job.table_store(0)
    if not job.any_rows:
        return Done(None, job.stores)
    changes = RowChanges.of(job, store)
    columns = job.sources[0].value_columns
    rows = [changes.pool.values(refs, columns) for refs in (changes.old, changes.new)]
    found, value = _elements([side.pop(law.column) for side in rows], law)
    source, rows_of_batch = job.sources[0], job.batches[0].rows
    counts = Counts()
    if not law.position:
        null = value.is_null().to_numpy(zero_copy_only=False)
        repeated = found.repeated & ~null
        left_out: dict[Kind, Mask] = {"null_element": null, "repeated": repeated}
        for kind, one in left_out.items():
            lost = changes.event[found.change[one & found.is_new]]
            name = metric(source.name, kind)
            counts.add_rows(name, source, rows_of_batch, changes.events.row[lost])
        found, value = _where(found, value, np.flatnonzero(~(null | repeated)))
    which = emitted(found, changes.events.arrival[changes.event])
    if job.operator.emit == "batch":
        which = which[_differing(changes, found, value, which, rows)]
    out, value = _where(found, value, which)
    event = changes.event[out.change]
    group = pa.array(changes.events.group[event])
    own = pa.array(out.place, pa.int32()) if law.position else value
    values = [column.take(pa.array(out.change, mask=~out.is_new)) for column in rows[1]]
    if law.position:
        values.insert(law.column, value.take(pa.array(np.arange(len(value)), mask=~out.is_new)))
    made = output(
        job.operator,
        [*(key.take(group) for key in changes.events.keys), own],
        [values],
        [np.where(out.is_new, out.change, ABSENT)],
        deleted=~out.is_new,
        event_time_us=changes.events.event_time_us[event],
        position=job.manifest.position,
        cause=job.causes(changes.events).of(event),
    )
    counts.update(changes.keep(job, store))
    stores = {job.operator.names[0]: store.runs}
    return Done(made if len(event) else None, stores, counts=counts)


def _elements(lists: Sequence[pa.Array], law: Explode) -> tuple[Elements, pa.Array]:
    """Return the elements of each change's array before and after, and their values."""
    joined, half = pa.concat_arrays(lists), len(lists[0])
    row, value = elements(joined)
    place = np.arange(len(row)) - (np.cumsum(sizes(joined)) - sizes(joined))[row]
    is_new = row >= half
    change = row - half * is_new
    if law.position:
        return Elements(change, is_new, place, place), value
    value = canonical(value)
    return Elements(change, is_new, place, classes(value)), value


def _where(found: Elements, value: pa.Array, which: Ints) -> tuple[Elements, pa.Array]:
    """Keep the selected elements and their values."""
    return found.where(which), value.take(pa.array(which))


def _differing(
    changes: RowChanges,
    found: Elements,
    value: pa.Array,
    which: Ints,
    rows: Sequence[Sequence[pa.Array]],
) -> Ints:
    """Return each element's last change among the emitted ones, if its row differs from the one
    before the batch: indices into ``which``.
    """
    group = changes.events.group[changes.event]
    known = found.known_by(group)
    last = last_of_each(known[which])
    ends = which[last]
    first = np.append(True, np.diff(group) != 0)[: len(group)]
    before = np.flatnonzero(~found.is_new & first[found.change])
    before = before[np.argsort(known[before])]
    place = np.searchsorted(known[before], known[ends])
    was = before[np.minimum(place, len(before) - 1)] if len(before) else np.zeros_like(ends)
    there = (known[was] == known[ends]) & (len(before) > 0)
    same = there == found.is_new[ends]
    both = np.flatnonzero(there & found.is_new[ends])
    former, present = was[both], ends[both]
    same[both] = arrays_equal(value.take(pa.array(former)), value.take(pa.array(present)))
    if rows[0]:
        then, now = pa.array(found.change[former]), pa.array(found.change[present])
        same[both] &= rows_equal(
            [column.take(then) for column in rows[0]], [column.take(now) for column in rows[1]]
        )
    differing: Ints = last[~same]
    return differing
