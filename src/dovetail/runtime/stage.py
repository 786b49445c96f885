"""One stage on one bucket: decode a batch's rows, run its operator over state, emit, store.

No Spark here: the same code runs under ``transformWithState`` (``runtime.spark``), in a batch run
(``runtime.batch``) and in the test driver (``dovetail.testing``); what differs is where the blobs
lie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from time import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.columns import (
    CLOCK,
    EVENT_TIME,
    FILE,
    FILE_BLOCK,
    FILE_PATH,
    FILE_TIME,
    FIRST,
    HASH,
    HIGH,
    LAST,
    LOG_PARTITION,
    ORDER,
    POSITION,
    SEQUENCE,
    STREAM_TIME,
    TIE,
)
from dovetail.kernels.arrival import (
    NEVER,
    LogRuns,
    Stairs,
    before_all,
    clocks,
    order_by_log,
    order_by_run,
    running_clock,
)
from dovetail.kernels.search import bisect
from dovetail.kernels.timeline import NO_TIME, Ints, Mask
from dovetail.plan.spec import SourceSpec, StageSpec, Steps
from dovetail.runtime import steps
from dovetail.runtime.blame import blamed, culprit, place_of
from dovetail.runtime.gate import pass_gate
from dovetail.runtime.job import Batch, Done, Job
from dovetail.runtime.operators import operate, store_count
from dovetail.runtime.slices import Slices
from dovetail.runtime.stock import Stock, Stored, table_of
from dovetail.state import manifest as manifests
from dovetail.state.blobs import Blobs
from dovetail.state.manifest import Manifest
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache

SLICE_BYTES = 128 << 20
"""Where a batch has more rows, about as much is worked on at a time."""

RUNS = pa.schema(
    [
        *((name, pa.int64()) for name in (LOG_PARTITION, FIRST, LAST, HIGH, FILE_TIME, FILE_BLOCK)),
        (FILE_PATH, pa.string()),
    ]
)
"""Runs: their log and its positions, or their file; their largest timestamps."""
STAIRS = pa.schema([(POSITION, pa.int64()), (STREAM_TIME, pa.int64())])


@dataclass(frozen=True)
class Piece:
    """Some rows of one source and input partition for one bucket, in order; ``number`` orders the
    pieces of a partition. A piece without rows is a heartbeat: it brings only the time.

    ``high_time_us``: the largest timestamp of the piece in all buckets, ``NO_TIME`` for none;
    ``runs``: the piece's runs (``RUNS``) where it is not one; ``stairs``: how the source's stream
    time rises in it (``STAIRS``), where another source asks. All buckets hear these.
    """

    source: int
    partition: int
    number: int
    high_time_us: int
    rows: Stored | None
    runs: pa.Table | None = None
    stairs: pa.Table | None = None

    @classmethod
    def beat(cls, source: int, time_us: int) -> Piece:
        """A heartbeat of no input partition."""
        return cls(source, -1, 0, time_us, None)


@dataclass(frozen=True)
class Processed:
    """What a micro-batch leaves: the changes (``spec.output_schema``) in the order in which they
    are emitted, in tables of one row or more; ``waiting``: whether rows wait for another source;
    ``counts``: of rows that had no use, by ``job.COUNTS``.

    State has advanced, and all is counted, when the last table has been asked for.
    """

    changes: Iterable[pa.Table]
    waiting: bool = False
    counts: Counter[str] = field(default_factory=Counter)


def process(
    spec: StageSpec,
    pieces: Sequence[Piece],
    blobs: Blobs,
    cache: SegmentCache,
    now_us: int = 0,
    bucket: int = 0,
) -> Processed:
    """Run one micro-batch of one bucket: state in ``blobs`` advances, the changes are returned.

    ``now_us``: the batch's time by the wall clock, for sources that are waited for; ``bucket``: its
    number. What fails is told as ``blame`` does.
    """
    with blamed(spec.title, lambda _: place_of(spec, bucket)):
        return _process(spec, pieces, blobs, cache, now_us, bucket)


def _process(
    spec: StageSpec,
    pieces: Sequence[Piece],
    blobs: Blobs,
    cache: SegmentCache,
    now_us: int,
    bucket: int,
) -> Processed:
    own = store_count(spec)
    gates = 0 if spec.align_us is None else len(spec.sources)
    before = manifests.load(
        blobs, spec.topology, spec.buckets, len(spec.sources), own + gates, cache.pages
    )
    read_us = _advance(before.read_us, pieces)
    after = replace(before, stream_time_us=read_us, read_us=read_us)
    stock = Stock([piece.rows for piece in pieces if piece.rows is not None])
    sliced = not gates and stock.nbytes > SLICE_BYTES
    pieces = _in_memory(pieces, stock if sliced else None)
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
            _after_gate(source, waited, batch, passing, upto_us)
            for source, waited, batch, passing, upto_us in zip(
                spec.sources, gate.waited, batches, gate.passing, gate.upto_us, strict=True
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
    jobs = Slices(job, stock, SLICE_BYTES).jobs() if sliced else iter([(job, True)])
    counts: Counter[str] = Counter()
    changes = _worked(jobs, job.manifest, after, held, counts, bucket)
    first = next(changes, None)
    waiting = any(runs.runs for runs in held)
    return Processed(chain(() if first is None else (first,), changes), waiting, counts)


def _worked(
    jobs: Iterator[tuple[Job, bool]],
    manifest: Manifest,
    after: Manifest,
    held: tuple[Runs, ...],
    counts: Counter[str],
    bucket: int,
) -> Iterator[pa.Table]:
    """The changes that jobs make, one after the other, each on the state that the one before it
    left; ``after``: what the last leaves but for what jobs do, with the stores ``held`` besides.
    """
    for part, last in jobs:
        job = replace(part, manifest=manifest)
        with blamed(job.spec.title, partial(_place, job, bucket)):
            done = _run(job)
            counts.update(done.counts)
            told = [] if done.output is None else [done.output]
            manifest = replace(
                manifest,
                stream_time_us=tuple(None if time == NO_TIME else time for time in job.final_us),
                position=manifest.position + sum(map(len, told)) + done.later,
                rows=done.rows,
                stores=done.stores,
            )
            if last:
                stores = (*manifest.stores, *held)
                after = replace(
                    after, position=manifest.position, rows=manifest.rows, stores=stores
                )
                job.cache.see(manifests.save(job.blobs, after))
                job.cache.settle((s for runs in stores for s in runs.segments), time())
            yield from told
            yield from done.chunks


def _run(job: Job) -> Done:
    operator = job.spec.operator
    return steps.run(job, operator) if isinstance(operator, Steps) else operate(job)


def _place(job: Job, bucket: int, error: Exception) -> str:
    """Where a job has failed, with the key where it can be found."""
    return place_of(job.spec, bucket, culprit(job, _run, error))


def batch_of(source: SourceSpec, pieces: Sequence[Piece], number: int) -> Batch:
    """The rows of one source in the order they were read, each column in one piece, for rows are
    picked from them again and again.
    """
    heard = sorted(
        (piece for piece in pieces if piece.source == number),
        key=lambda piece: (piece.partition, piece.number),
    )
    own = [piece for piece in heard if piece.rows is not None]
    rows = pa.concat_tables([piece.rows for piece in own] or [source.wire_schema.empty_table()])
    rows = rows.combine_chunks()
    stairs = _stairs(heard) if source.stairs else None
    if not source.clocked:
        return _brought(source, rows, stairs)
    if source.ordered:
        clock_us = rows.column(CLOCK).to_numpy()
        if stairs is not None:
            clock_us = stairs.at(rows.column(SEQUENCE).to_numpy(), inclusive=True)
        return Batch(rows, clock_us, clock_us, stairs=stairs)
    return _in_runs(source, rows, heard, stairs)


def _in_memory(pieces: Sequence[Piece], stock: Stock | None) -> Sequence[Piece]:
    """The pieces with their rows; of a stock, with what orders them."""
    number, found = 0, []
    for piece in pieces:
        if piece.rows is not None:
            rows = table_of(piece.rows) if stock is None else stock.ordering(number)
            piece, number = replace(piece, rows=rows), number + 1
        found.append(piece)
    return found


def _brought(source: SourceSpec, rows: pa.Table, stairs: Stairs | None) -> Batch:
    """Rows of another stage, which have what they need."""
    found = {n: rows.column(n).to_numpy() for n in source.carries}
    clock_us = found.get(CLOCK, np.zeros(len(rows), np.int64))
    stream_us = found.get(STREAM_TIME, clock_us)
    return Batch(rows, clock_us, stream_us, found.get(ORDER), found.get(TIE), stairs)


def _in_runs(
    source: SourceSpec, rows: pa.Table, heard: Sequence[Piece], stairs: Stairs | None
) -> Batch:
    """Rows that were read from logs in runs, in the order of the logs."""
    runs, first = _runs(source, heard)
    counts = np.array([0 if p.rows is None else p.rows.num_rows for p in heard], np.int64)
    # Of files the positions are the ranks of their runs; other runs come in their order.
    rank = runs.first if source.files else np.arange(len(runs.log))
    if source.log_partition:
        log, position = (rows.column(name).to_numpy() for name in (LOG_PARTITION, SEQUENCE))
        piece = np.repeat(np.arange(len(heard)), np.diff(np.append(first, len(runs.log))))
        run = _run_of_rows(runs, piece, counts, log, position)
        row = np.lexsort((position, log))
    else:
        run = np.repeat(first, counts)
        if source.files:
            run = run + rows.column(FILE).to_numpy()
        log, position = runs.log[run], runs.first[run]
        row = np.argsort(rank[run], kind="stable")
    clock_us = clocks(runs, run, rows.column(CLOCK).to_numpy(), log, position)
    order = None
    if source.numbered:
        if source.log_partition:
            logs, number = np.unique(runs.log, return_inverse=True)
            begins = np.full(len(logs), NEVER)
            np.minimum.at(begins, number, runs.first)
            of = np.searchsorted(logs, log)
            order = order_by_log(source.origin, of, position - begins[of])
        else:
            order = order_by_run(source.origin, rank[run], rows.column(ORDER).to_numpy())
    if np.any(row[1:] < row[:-1]):
        rows, clock_us = rows.take(pa.array(row)).combine_chunks(), clock_us[row]
        order = None if order is None else order[row]
    return Batch(rows, clock_us, clock_us, order, stairs=stairs)


def _runs(source: SourceSpec, heard: Sequence[Piece]) -> tuple[LogRuns, Ints]:
    """The runs of all pieces, and which of them is each piece's first."""
    if not (source.files or source.log_partition):
        # Each piece is a run, each input partition a log.
        partition, number, high_us = (
            np.array([getattr(piece, name) for piece in heard], np.int64)
            for name in ("partition", "number", "high_time_us")
        )
        return LogRuns(partition, number, number, high_us), np.arange(len(heard))
    tables = [RUNS.empty_table() if piece.runs is None else piece.runs for piece in heard]
    first = np.cumsum([0, *(len(runs) for runs in tables)])[:-1]
    table = pa.concat_tables([RUNS.empty_table(), *tables]).combine_chunks()
    high_us = table.column(HIGH).to_numpy()
    if not source.files:
        log, begins, ends = (table.column(n).to_numpy() for n in (LOG_PARTITION, FIRST, LAST))
        return LogRuns(log, begins, ends, high_us), first
    # All files are one log, by age, then by name; of one file, by its blocks.
    keys = table.select([FILE_TIME, FILE_PATH, FILE_BLOCK])
    keys = keys.append_column(FIRST, pa.array(np.arange(len(keys))))
    place = np.empty(len(keys), np.int64)
    sorted_ = pc.sort_indices(keys, [(name, "ascending") for name in keys.schema.names])
    place[sorted_.to_numpy()] = np.arange(len(keys))
    return LogRuns(np.zeros(len(keys), np.int64), place, place, high_us), first


def _run_of_rows(runs: LogRuns, piece: Ints, counts: Ints, log: Ints, position: Ints) -> Ints:
    """The run of each row. Both lie by piece, log and position; ``piece``: that of each run;
    ``counts``: how many rows each piece has.
    """
    end = np.cumsum(counts)[piece]
    start = end - counts[piece]
    low = bisect(log, start, end, runs.log, right=False)
    high = bisect(log, start, end, runs.log, right=True)
    begins = bisect(position, low, high, runs.first, right=False)
    found: Ints = np.searchsorted(begins, np.arange(len(log)), side="right") - 1
    return found


def _stairs(heard: Sequence[Piece]) -> Stairs:
    tables = [piece.stairs for piece in heard if piece.stairs is not None]
    if not tables:
        none = np.zeros(0, np.int64)
        return Stairs(none, none)
    table = pa.concat_tables(tables)
    return Stairs.of(*(table.column(name).to_numpy() for name in (POSITION, STREAM_TIME)))


def _after_gate(
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
