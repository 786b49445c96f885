"""Alignment (``align=``): rows that are ahead of another input wait until it has caught up.

What Kafka Streams does by not reading a partition while another is behind (task idling) is done
across micro-batches, in state: of each input only rows up to the smallest timestamp that the others
have reached are let through. An input that has brought nothing for the time given, by the wall
clock, is not waited for. Stream time is that of what has been let through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import NO_TIME, Mask
from dovetail.columns import DUE, EVENT_TIME, HASH, LOG_PARTITION, SEQUENCE
from dovetail.laws.arrival import before_all, running_clock
from dovetail.operators.job import Batch
from dovetail.physical.fragment import Fragment, ahead_of
from dovetail.physical.source import SourceSpec, unique
from dovetail.state.blobs import Blobs
from dovetail.state.manifest import Manifest
from dovetail.state.queue import QueueState
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache


@dataclass(frozen=True)
class Aligned:
    """What has been let through: ``batches``; ``manifest``: the bucket's, with the clocks of what
    is read and of what is let through; ``stores``: the rows that wait, by their stores' names.
    """

    batches: Sequence[Batch]
    manifest: Manifest
    stores: Mapping[str, Runs]


def align(
    fragment: Fragment,
    came: Sequence[Batch],
    manifest: Manifest,
    before: Manifest,
    now_us: int,
    blobs: Blobs,
    cache: SegmentCache,
) -> Aligned:
    """Let through what need not wait.

    ``came``: per source the rows of the batch; ``manifest``: the bucket's with the largest
    timestamps that have been read, of any bucket, and when sources last brought something;
    ``before``: as it was before the batch; ``now_us``: the batch's time by the wall clock.
    """
    assert fragment.align_us is not None
    read_us = [NO_TIME if time is None else time for time in manifest.read_us]
    quiet_us = [now_us if last is None else now_us - last for last in manifest.heard_us]
    reached = [
        None if quiet >= max(fragment.align_us, 1) else time
        for time, quiet in zip(read_us, quiet_us, strict=True)
    ]
    batches, passed_us, stores = [], [], {}
    names = unique([source.name for source in fragment.sources])
    for number, (source, name, batch) in enumerate(zip(fragment.sources, names, came, strict=True)):
        passed = before.stream_time_us[number]
        before_us = NO_TIME if passed is None else passed
        others = [time for o, time in enumerate(reached) if o != number and time is not None]
        upto_us = max(before_us, min([*others, read_us[number]]))
        schema = source.wire_schema.append(pa.field(DUE, pa.int64()))
        store = ahead_of(name)
        runs = before.stores.get(store, Runs())
        queue = QueueState(schema, runs, blobs, cache, taken_us=before_us)
        waited = queue.take(upto_us).drop_columns(DUE)
        time = batch.rows.column(EVENT_TIME).to_numpy()
        passes = time <= upto_us
        ahead = np.flatnonzero(~passes)
        ahead = ahead[np.argsort(time[ahead], kind="stable")]
        held = batch.rows.take(pa.array(ahead))
        queue.store(held.append_column(DUE, held.column(EVENT_TIME)).cast(schema))
        batches.append(_let_through(source, waited, batch, passes, upto_us))
        stores[store] = queue.runs
        passed_us.append(None if upto_us == NO_TIME else upto_us)
    return Aligned(
        batches,
        replace(manifest, stream_time_us=tuple(passed_us)),
        stores,
    )


def _let_through(
    source: SourceSpec, waited: pa.Table, came: Batch, passing: Mask, upto_us: int
) -> Batch:
    """The rows that waited, in the order of their times, and those that need not wait."""
    rows = pa.concat_tables([waited, came.rows.filter(pa.array(passing))]).combine_chunks()
    time = waited.column(EVENT_TIME).to_numpy()
    clock_us = np.append(time, np.minimum(came.clock_us[passing], upto_us))
    if source.log_partition:
        log, place = (rows.column(name).to_numpy() for name in (LOG_PARTITION, SEQUENCE))
        row = np.lexsort((place, log))
        rows = rows.take(pa.array(row)).combine_chunks()
        clock_us = running_clock(log[row], clock_us[row])
        return Batch(rows, clock_us, clock_us)
    order, hash_ = None, waited.column(HASH).to_numpy()
    if came.order is not None:
        order = np.append(before_all(hash_), came.order[passing])
    tie = None if came.tie is None else np.append(hash_, came.tie[passing])
    return Batch(rows, clock_us, clock_us, order, tie)
