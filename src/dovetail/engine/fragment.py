"""A fragment on one bucket: decode a batch's rows, run its operators over state, emit, store.

There is no Spark here. The same code runs under ``transformWithState``, over static frames and in
the test driver. They differ in how rows come and go (``engine.flow``) and in where the blobs lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from time import perf_counter_ns
from time import time as wall_clock
from typing import NamedTuple

import pyarrow as pa

from dovetail.arrays.timeline import NO_TIME
from dovetail.engine import idle as idling
from dovetail.engine import operator_chain
from dovetail.engine.alignment import align_inputs
from dovetail.engine.batches.pieces import Piece, batch_of
from dovetail.engine.batches.row_store import Stock, rows_in_memory
from dovetail.engine.batches.slices import Slices
from dovetail.engine.bucket_report import BucketReport
from dovetail.engine.error_context import failing_key, locate_errors, place_of_failure
from dovetail.engine.idle import IdleRules, Times
from dovetail.engine.logs import LogsOfSlices, drop_rows_without_effect
from dovetail.engine.store_contents import horizon_us
from dovetail.operators.counts import Counts
from dovetail.operators.job import Batch, Share
from dovetail.physical.fragment import Fragment
from dovetail.state import manifest as manifests
from dovetail.state.blobs import Blobs
from dovetail.state.manifest import Manifest
from dovetail.state.queue import count_waiting_rows
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache

SLICE_BYTES = 128 << 20
"""The size from which a batch is worked on in slices, and about that of a slice."""


@dataclass(frozen=True)
class BatchOutcome:
    """The result of a micro-batch.

    State has advanced once the last table of changes has been taken.
    """

    changes: Iterable[pa.Table]
    """The changes (``Fragment.output_schema``) in order, in tables of at least one row."""
    again_us: int | None = None
    """The wall-clock time at which the bucket must run again at the latest; None for never."""
    time: Heartbeat | None = None
    """The heartbeat for the stages that read this one; None for none."""
    counts: Counts = field(default_factory=Counts)
    """The counts of rows that had no use, by metric; complete once all changes have been taken."""
    report: BucketReport | None = None
    """The work of the bucket, complete once all changes have been taken; None if there was none."""
    fused: Sequence[str | None] = ()
    """The counts and reports of the stages that ran before in the same Spark operator, as texts of
    ``counted_text``. Each stage is followed by the inputs for which its rows are packed. None for
    a stage that had no work, and for its inputs."""


class Heartbeat(NamedTuple):
    """A heartbeat: the time that a stage tells its readers when nothing comes."""

    stream_us: int
    """The stream time of the stage's results, less the longest that one is held back."""
    heard_us: int
    """The wall-clock time since which nothing has come."""


def process_batch(
    fragment: Fragment,
    pieces: Sequence[Piece],
    blobs: Blobs,
    cache: SegmentCache,
    now_us: int = 0,
    bucket: int = 0,
    idle: IdleRules | None = None,
) -> BatchOutcome:
    """Run one micro-batch of one bucket: advance the state in ``blobs`` and return the changes with
    counts and times. The first table of changes is computed at once, the others as they are taken.

    - ``pieces``: the bucket's input, each piece with rows of one source; possibly none.
    - ``blobs``: the bucket's stored state. It has advanced at the latest once all changes have been
      taken, perhaps before.
    - ``cache``: the opened segments of this process.
    - ``now_us``: the batch's wall-clock time in microseconds, for sources that are waited for.
    - ``bucket``: the index of the bucket, for errors only.
    - ``idle``: the rules by which time goes on when nothing comes; None for none.

    Without pieces the operators run all the same. With ``idle`` and without ``align=``, they then
    run only if stream time goes on; else no state changes, and the outcome has no changes.

    Raises ``CheckpointError`` for state of another topology, ``StateError`` for another format,
    ``DataError`` for a row that an operator cannot take. Any other exception becomes a
    ``BatchError``. All name their place, also those raised while changes are taken.
    """
    with locate_errors(fragment.title, lambda _: place_of_failure(fragment, bucket)):
        return _process_batch(fragment, pieces, blobs, cache, now_us, bucket, idle)


def _process_batch(
    fragment: Fragment,
    pieces: Sequence[Piece],
    blobs: Blobs,
    cache: SegmentCache,
    now_us: int,
    bucket: int,
    idle: IdleRules | None,
) -> BatchOutcome:
    """Run one micro-batch of one bucket: advance the state in ``blobs`` and return the changes with
    counts and times. Errors before the operators run do not name their place; those of operators
    do.

    - ``pieces``: the bucket's input, possibly none. ``blobs``: its stored state.
    - ``cache``: the opened segments of this process.
    - ``now_us``: the batch's wall-clock time in microseconds.
    - ``bucket``: the index of the bucket, for errors only.
    - ``idle``: the rules by which time goes on when nothing comes; None for none.

    State has advanced at the latest once all changes have been taken. With ``idle`` and without
    ``align=``, a batch without pieces changes no state and returns no changes, unless stream time
    goes on.
    """
    begun_ns, sources = perf_counter_ns(), fragment.sources
    before = manifests.load(blobs, fragment.topology, fragment.buckets, len(sources), cache.pages)
    read_us = _advance_read_times(before.read_us, pieces)
    after = replace(
        before, read_us=read_us, stream_time_us=latest_times(before.stream_time_us, read_us)
    )
    if idle is not None or fragment.align_us is not None:
        hears = frozenset[int]() if idle is None else idle.hears
        after = replace(after, heard_us=idling.heard_times(before.heard_us, pieces, now_us, hears))
    stock = Stock([piece.rows for piece in pieces if piece.rows is not None])
    sliced = fragment.align_us is None and stock.nbytes > SLICE_BYTES
    pieces = _pieces_in_memory(pieces, stock if sliced else None)
    batches: Sequence[Batch] = [batch_of(source, pieces, n) for n, source in enumerate(sources)]
    waiting_stores: Mapping[str, Runs] = {}
    again_us, time = None, None
    if fragment.align_us is not None:
        aligned = align_inputs(fragment, batches, pieces, after, before, now_us, blobs, cache)
        batches, after, waiting_stores = aligned.batches, aligned.manifest, aligned.stores
        if any(runs.runs for runs in waiting_stores.values()):
            again_us = now_us + fragment.align_us
    if idle is not None:
        pause = idling.pause_at(idle, after.heard_us, now_us)
        moves = pause.moves and again_us is None
        if not moves and not pieces and fragment.align_us is None:
            return BatchOutcome((), pause.again_us)
        time_us = NO_TIME
        if moves:
            after = replace(after, stream_time_us=idling.idle_stream_times(idle, after, now_us))
            time_us = idling.result_time(fragment, after.stream_time_us)
        time = Heartbeat(time_us, pause.heard_us)
        again_us = pause.again_us if again_us is None else min(again_us, pause.again_us)
    share = Share(
        fragment=fragment,
        sources=sources,
        batches=batches,
        manifest=before,
        final_us=[NO_TIME if time is None else time for time in after.stream_time_us],
        blobs=blobs,
        cache=cache,
    )
    shares = Slices(share, stock, SLICE_BYTES).shares() if sliced else iter([(share, True)])
    counts: Counts = Counts()
    report = BucketReport.empty(after.stream_time_us)
    report.work_us = (perf_counter_ns() - begun_ns) // 1000
    shares = _located(shares, fragment, bucket)
    changes = report.count_changes(
        _run_shares(shares, before, after, waiting_stores, counts, report, bucket)
    )
    first = next(changes, None)
    changes = chain(() if first is None else (first,), changes)
    return BatchOutcome(changes, again_us, time, counts, report)


def _located(
    shares: Iterator[tuple[Share, bool]], fragment: Fragment, bucket: int
) -> Iterator[tuple[Share, bool]]:
    """Yield ``shares``. An error while one is read becomes a ``DovetailError`` that names its
    place, also once the first changes have been taken.
    """
    with locate_errors(fragment.title, lambda _: place_of_failure(fragment, bucket)):
        yield from shares


def _run_shares(
    shares: Iterator[tuple[Share, bool]],
    manifest: Manifest,
    after: Manifest,
    waiting_stores: Mapping[str, Runs],
    counts: Counts,
    report: BucketReport,
    bucket: int,
) -> Iterator[pa.Table]:
    """Yield the changes of ``shares`` in turn, as non-empty tables, each share computed on the
    state that the one before left. After the last share's operators, store the manifest. If the
    iteration stops before, the manifest stays as it was.

    - ``shares``: pairs of a share (the rows of the batch or of a slice) and True for the last.
    - ``manifest``: that before the batch; ``after``: that at the end but for the operators' stores.
    - ``waiting_stores``: the runs of stores that belong to no operator, by name.
    - ``counts``: unused rows are added; ``report``: the rows that come, and the state, are added.
    - ``bucket``: the index of the bucket, for errors.

    An error of an operator becomes a ``DovetailError`` whose ``where`` names tables, bucket and
    perhaps the key. Errors of ``shares`` pass unchanged.
    """
    slices = None
    for part, last in shares:
        if not last and slices is None:
            slices = LogsOfSlices()
        share = replace(part, manifest=manifest)
        report.add_rows([batch.rows for batch in share.batches])
        with locate_errors(share.fragment.title, partial(_describe_failure, share, bucket)):
            share, logs = drop_rows_without_effect(share, counts, slices)
            done = operator_chain.run_operators(share)
            counts.update(done.counts)
            emitted = [] if done.output is None else [done.output]
            manifest = replace(
                manifest,
                stream_time_us=tuple(None if time == NO_TIME else time for time in share.final_us),
                position=manifest.position + sum(map(len, emitted)) + done.later,
                rows=done.rows,
                stores={**done.stores, **logs},
            )
            if last:
                stores = {**manifest.stores, **waiting_stores}
                after = replace(
                    after, position=manifest.position, rows=manifest.rows, stores=stores
                )
                report.add_pairs(counts, share.fragment.match_counted_inputs)
                report.add_state(stores)
                report.waiting = [*_count_waiting_rows(share, after)]
                share.cache.remember_pages(manifests.save(share.blobs, after))
                runs = stores.values()
                share.cache.clean_up((s for of in runs for s in of.segments), wall_clock())
            yield from emitted
            yield from done.chunks


def _count_waiting_rows(share: Share, after: Manifest) -> Iterator[int]:
    """Yield the count of stored rows that wait for a time, for each of the fragment's ``waits`` in
    order. It is 0 for a store without rows. ``share``: the fragment, with the bucket's blobs.
    ``after``: the manifest at the end of the micro-batch.
    """
    for wait in share.fragment.waits:
        runs = after.stores.get(wait.name)
        if runs is None:
            yield 0
            continue
        yield count_waiting_rows(
            runs,
            horizon_us(wait.store, after),
            lambda segment: share.cache.open(segment, share.blobs.get),
        )


def _describe_failure(share: Share, bucket: int, error: Exception) -> str:
    """Return in words at which tables, bucket and, if it can be found, key ``error`` happened.
    Operators run again on parts of ``share`` to find the key, without a change of state.
    ``bucket``: the index of the bucket.
    """
    return place_of_failure(
        share.fragment, bucket, failing_key(share, operator_chain.run_operators, error)
    )


def _pieces_in_memory(pieces: Sequence[Piece], stock: Stock | None) -> Sequence[Piece]:
    """Return the pieces with their rows as tables in memory, in the same order; heartbeats stay as
    they are.

    ``stock``: the rows of the same pieces, without heartbeats. If given, tables have only the
    columns that order rows, and ``_at``, the rows' indices in the stock. With None, they have all
    columns.
    """
    piece_index, loaded = 0, []
    for piece in pieces:
        if piece.rows is not None:
            rows = (
                rows_in_memory(piece.rows)
                if stock is None
                else stock.numbered_ordering_columns(piece_index)
            )
            piece, piece_index = replace(piece, rows=rows), piece_index + 1
        loaded.append(piece)
    return loaded


def latest_times(*times: Times) -> Times:
    """Return for each input the latest of its times, None if it has none. ``times``: at least one
    tuple, each with an element per input, in microseconds or None.
    """
    times_by_input = (
        [time for time in of_input if time is not None] for of_input in zip(*times, strict=True)
    )
    return tuple(max(input_times, default=None) for input_times in times_by_input)


def _advance_read_times(read_us: Times, pieces: Sequence[Piece]) -> Times:
    """Return for each input the largest timestamp read so far, those of ``pieces`` included, in
    microseconds; None for an input that has had none. ``END_OF_TIME`` of an input that has ended
    counts, too. ``read_us``: the same before the micro-batch.
    """
    highest: list[int | None] = list(read_us)
    for piece in pieces:
        if piece.high_time_us == NO_TIME:
            continue
        before_us = highest[piece.source]
        highest[piece.source] = (
            piece.high_time_us if before_us is None else max(before_us, piece.high_time_us)
        )
    return tuple(highest)
