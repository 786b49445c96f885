"""Alignment (``align=``): rows that are ahead of another input wait until it has caught up.

What Kafka Streams does by not reading a partition while another is behind (task idling) is done
across micro-batches, in state: of each input only rows up to the smallest timestamp that the others
have reached are let through. An input that has brought nothing for the time given, by the wall
clock, is not waited for. Stream time is that of what has been let through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dovetail.columns import DUE, EVENT_TIME
from dovetail.kernels.timeline import NO_TIME, Mask
from dovetail.plan.spec import StageSpec
from dovetail.state.blobs import Blobs
from dovetail.state.manifest import Manifest
from dovetail.state.queue import QueueState
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache


@dataclass(frozen=True)
class Gate:
    """What has been let through. ``waited``: per source the rows that waited, in order of time;
    ``passing``: per source which of those that came need not; ``upto_us``: per source the time up
    to which it has been let through; ``manifest``: the bucket's, with the clocks of inputs and
    gate; ``stores``: per source the rows that wait.
    """

    waited: Sequence[pa.Table]
    passing: Sequence[Mask]
    upto_us: Sequence[int]
    manifest: Manifest
    stores: tuple[Runs, ...]


def pass_gate(
    spec: StageSpec,
    came: Sequence[pa.Table],
    read_us: Sequence[int],
    heard: Sequence[bool],
    manifest: Manifest,
    stores: Sequence[Runs],
    now_us: int,
    blobs: Blobs,
    cache: SegmentCache,
) -> Gate:
    """Let through what need not wait.

    ``came``: per source the rows of the batch; ``read_us``: per source the largest timestamp read,
    of any bucket, ``NO_TIME`` for none; ``heard``: which sources brought something; ``now_us``: the
    batch's time by the wall clock.
    """
    assert spec.align_us is not None
    heard_us = tuple(
        now_us if brought or known is None else known
        for brought, known in zip(heard, manifest.heard_us, strict=True)
    )
    reached = [
        None if now_us - last >= spec.align_us and not brought else time
        for time, last, brought in zip(read_us, heard_us, heard, strict=True)
    ]
    waited, passing, upto, runs, passed_us = [], [], [], [], []
    for source, rows in enumerate(came):
        before = manifest.stream_time_us[source]
        before_us = NO_TIME if before is None else before
        others = [time for o, time in enumerate(reached) if o != source and time is not None]
        upto_us = max(before_us, min([*others, read_us[source]]))
        schema = spec.sources[source].wire_schema.append(pa.field(DUE, pa.int64()))
        queue = QueueState(schema, stores[source], blobs, cache, taken_us=before_us)
        waited.append(queue.take(upto_us).drop_columns(DUE))
        time = rows.column(EVENT_TIME).to_numpy()
        passes = time <= upto_us
        ahead = np.flatnonzero(~passes)
        ahead = ahead[np.argsort(time[ahead], kind="stable")]
        held = rows.take(pa.array(ahead))
        queue.store(held.append_column(DUE, held.column(EVENT_TIME)).cast(schema))
        passing.append(passes)
        upto.append(upto_us)
        runs.append(queue.runs)
        passed_us.append(None if upto_us == NO_TIME else upto_us)
    clocks = replace(
        manifest,
        stream_time_us=tuple(passed_us),
        read_us=tuple(None if time == NO_TIME else time for time in read_us),
        heard_us=heard_us,
    )
    return Gate(waited, passing, upto, clocks, tuple(runs))
