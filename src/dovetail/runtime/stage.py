"""One stage on one bucket: decode a batch's rows, run its operator over state, emit, store.

No Spark here: the same code runs under ``transformWithState`` (``runtime.spark``), in a batch run
(``runtime.batch``) and in the test driver (``dovetail.testing``); what differs is where the blobs
lie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from dovetail.columns import LOG_PARTITION, SEQUENCE
from dovetail.kernels.timeline import NO_TIME, Ints, Mask
from dovetail.plan.spec import SourceSpec, StageSpec, Steps
from dovetail.runtime import steps
from dovetail.runtime.gate import pass_gate
from dovetail.runtime.job import Batch, Job
from dovetail.runtime.operators import operate, store_count
from dovetail.state import manifest as manifests
from dovetail.state.blobs import Blobs
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache


@dataclass(frozen=True)
class Piece:
    """Some rows of one source and input partition for one bucket, in order; ``number`` orders the
    pieces of a partition. A piece without rows is a heartbeat: it brings only the time.

    ``high_time_us``: the largest timestamp the partition has read in this batch, of any bucket,
    ``NO_TIME`` for none.
    """

    source: int
    partition: int
    number: int
    high_time_us: int
    rows: pa.Table | None


@dataclass(frozen=True)
class Processed:
    """What a micro-batch leaves: the changes (``spec.output_schema``) in the order in which they
    are emitted, in tables of one row or more; ``waiting``: whether rows wait for another source;
    ``counts``: of rows that had no use, by ``job.COUNTS``.

    State has advanced when the first table is asked for.
    """

    changes: Iterable[pa.Table]
    waiting: bool = False
    counts: Counter[str] = field(default_factory=Counter)


def process(
    spec: StageSpec, pieces: Sequence[Piece], blobs: Blobs, cache: SegmentCache, now_us: int = 0
) -> Processed:
    """Run one micro-batch of one bucket: state in ``blobs`` advances, the changes are returned.

    ``now_us``: the batch's time by the wall clock, for sources that are waited for.
    """
    own = store_count(spec)
    gates = 0 if spec.align_us is None else len(spec.sources)
    before = manifests.load(blobs, spec.topology, spec.buckets, len(spec.sources), own + gates)
    read_us = _advance(before.read_us, pieces)
    after = replace(before, stream_time_us=read_us, read_us=read_us)
    batches = [batch_of(source, pieces, number) for number, source in enumerate(spec.sources)]
    held: tuple[Runs, ...] = ()
    if gates:
        heard = [any(piece.source == s for piece in pieces) for s in range(len(spec.sources))]
        gate = pass_gate(
            spec,
            [batch.rows for batch in batches],
            [NO_TIME if time is None else time for time in read_us],
            heard,
            before,
            before.stores[own:],
            now_us,
            blobs,
            cache,
        )
        after, held = gate.manifest, gate.stores
        batches = [
            _after_gate(source, waited, batch, passing)
            for source, waited, batch, passing in zip(
                spec.sources, gate.waited, batches, gate.passing, strict=True
            )
        ]
    job = Job(
        spec=spec,
        batches=batches,
        manifest=replace(before, stores=before.stores[:own]),
        final_us=[NO_TIME if time is None else time for time in after.stream_time_us],
        blobs=blobs,
        cache=cache,
    )
    operator = spec.operator
    done = steps.run(job, operator) if isinstance(operator, Steps) else operate(job)
    emitted = 0 if done.output is None else done.output.num_rows
    manifests.save(
        blobs,
        replace(
            after,
            position=before.position + emitted,
            rows=done.rows,
            stores=(*done.stores, *held),
        ),
    )
    changes = () if done.output is None else (done.output,)
    waiting = any(runs.runs for runs in held)
    return Processed(chain(changes, done.chunks), waiting, done.counts)


def batch_of(source: SourceSpec, pieces: Sequence[Piece], number: int) -> Batch:
    """The rows of one source in the order they were read."""
    own = sorted(
        (piece for piece in pieces if piece.source == number and piece.rows is not None),
        key=lambda piece: (piece.partition, piece.number),
    )
    rows = pa.concat_tables([piece.rows for piece in own] or [source.wire_schema.empty_table()])
    lengths = [piece.rows.num_rows for piece in own if piece.rows is not None]
    partition = np.repeat(np.array([piece.partition for piece in own], np.int64), lengths)
    return _in_order(source, rows, partition)


def _after_gate(source: SourceSpec, waited: pa.Table, came: Batch, passing: Mask) -> Batch:
    """The rows that waited, as if of a partition of their own, and those that need not wait."""
    rows = pa.concat_tables([waited, came.rows.filter(pa.array(passing))])
    first = np.full(len(waited), -1)
    return _in_order(source, rows, np.concatenate((first, came.partition[passing])))


def _in_order(source: SourceSpec, rows: pa.Table, partition: Ints) -> Batch:
    """The rows in the order of their log, where they have one of their own; each column in one
    piece, for rows are picked from them again and again.
    """
    if source.log_partition:
        partition = rows.column(LOG_PARTITION).to_numpy()
        order = np.lexsort((rows.column(SEQUENCE).to_numpy(), partition))
        return Batch(rows.take(pa.array(order)), partition[order])
    return Batch(rows.combine_chunks(), partition)


def _advance(read_us: tuple[int | None, ...], pieces: Sequence[Piece]) -> tuple[int | None, ...]:
    highest: list[int | None] = list(read_us)
    for piece in pieces:
        if piece.high_time_us == NO_TIME:
            continue
        known = highest[piece.source]
        highest[piece.source] = (
            piece.high_time_us if known is None else max(known, piece.high_time_us)
        )
    return tuple(highest)
