"""A stage's buckets in a streaming query, with their state in Spark's state store.

Spark commits that state with the micro-batch, so Spark's exactly-once promise is the stage's.

With one bucket there is nothing to exchange between stages. They are *fused* if workers can make
the rows that leave them: one Spark operator runs them, one after the other. Of the totals of a join
by foreign key::

    PACKED ──▶ 1: subscribe ──▶ 2: foreign key, in order ──▶ 3: leave ──▶ 4: group ──▶ rows
               blobs "<1>/…"    blobs "<2>/…"                "<3>/…"      "<4>/…"

The stages share the map of blobs, so the name of a blob begins with its stage's fingerprint.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import compress
from operator import not_
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from dovetail.arrays.bucket_labels import bucket_number
from dovetail.arrays.timeline import NO_TIME
from dovetail.engine.batches.parts import PartJoiner
from dovetail.engine.batches.pieces import Piece, high_time_us
from dovetail.engine.batches.spool import Spool
from dovetail.engine.fragment import SLICE_BYTES, BatchOutcome, process_batch
from dovetail.engine.idle import IdleRules
from dovetail.engine.pack import (
    PACKED,
    PackedRow,
    add_counted_text,
    counted_text,
    pack_heartbeat,
    unpack_piece,
    whole_rows,
)
from dovetail.operators.counts import Counts
from dovetail.operators.joins.foreign_key_order import merge_buckets
from dovetail.physical.fragment import Fragment
from dovetail.physical.specs.by_key import InOrderLaw
from dovetail.spark import task
from dovetail.spark.execution.emission import Emission, Rows, as_pandas, cut_large
from dovetail.state.segment import SegmentCache

if TYPE_CHECKING:
    import pandas as pd

_PASSING_BYTES_MAX = 1 << 20
"""The most bytes of passing rows that wait for the changes of their bucket."""


class Ordering(NamedTuple):
    """The stage without state that puts the changes of a join by foreign key in order."""

    law: InOrderLaw
    columns: Sequence[str]
    """The columns of its output."""


@dataclass(frozen=True)
class StageWork:
    """The work of one stage with state in a Python worker, and of those fused with it."""

    fragment: Fragment
    emission: Emission
    number: int
    """The stage's index among all stages and relays, which its rows have as ``reader``."""
    passes: bool
    """True if rows for other stages pass through this one."""
    timers: bool
    """True if a bucket may register a timer, to be run again without input."""
    idle: IdleRules | None = None
    """The behavior when no input comes; None to wait."""
    beats: tuple[tuple[int, int], ...] = ()
    """The inputs to which this stage sends heartbeats: (index of the reading stage, index of its
    input).
    """
    prefix: str = ""
    """The text before the names of the stage's blobs: the stage's fingerprint and a slash if
    several stages share the operator's state, else empty."""
    fused: tuple[StageWork, ...] = ()
    """The stages that run before this one in the same operator, in order. They emit rows of
    ``PACKED``."""
    ordering: Ordering | None = None
    """The stage that puts this one's changes in order, in the same operator; None for none."""
    takes_rows: bool = True
    """False if rows for it are left out, because its state already has what they bring."""

    def rows(
        self, label: int, rows: Iterator[pd.DataFrame], state: Any, handle: Any
    ) -> Iterator[pd.DataFrame]:
        """Process one micro-batch of one bucket from frames of ``PACKED`` rows. Each is a blob of
        rows for one input (``source``) of one ``reader``. Yield the rows for other stages
        unchanged, then the stage's changes, then its heartbeats: rows without a blob, which tell
        reading stages the time. Fused stages run first.

        ``label``: the bucket's label. ``state``, ``handle``: its map state and its handle in Spark.
        ``rows`` may mix inputs and readers, all of one micro-batch. Frames may have a column
        ``now_us``, the time of the micro-batch in microseconds; else it is 0.

        Frames that are yielded have the columns of ``emission.columns``, named by index. Without a
        row for this stage nothing is processed. Without rows nothing is yielded. Up to 1 MiB of
        rows that pass come out in one frame with the first changes: Spark takes longer for a frame
        than for its content. A stage's input of more than 128 MiB is spooled to the worker's disk.
        """
        spools, now_us = self._empty_spools(), 0
        begun_ns, passing_ns = perf_counter_ns(), 0
        passing, joiner = PACKED.empty_table(), PartJoiner()
        for frame in rows:
            stage_rows = PackedRow.from_rows(frame)
            if self.passes:
                stage_rows, others = split_passing(frame, spools)
                passing = pa.concat_tables([passing, others])
                if passing.nbytes > _PASSING_BYTES_MAX:
                    left_ns = perf_counter_ns()
                    yield as_pandas(passing)
                    passing_ns += perf_counter_ns() - left_ns
                    passing = PACKED.empty_table()
            for row in whole_rows(stage_rows, joiner):
                spools[row.reader].add(unpack_piece(row), row.payload)
            if "now_us" in frame:
                now_us = int(frame["now_us"].iloc[0])
        joiner.finish()
        receive_us = (perf_counter_ns() - begun_ns - passing_ns) // 1000
        emitted = self._run_stages(label, spools, passing, now_us, state, handle, receive_us)
        yield from map(as_pandas, map(cut_large, emitted))

    def expired_rows(
        self, label: int, now_us: int, state: Any, handle: Any
    ) -> Iterator[pd.DataFrame]:
        """Process one bucket without input, because its timer has expired. Yield the changes, then
        heartbeats, in frames with the columns of ``emission.columns``, named by index. There may be
        none. Of the operator's stages, those run that have timers, and those to which a fused stage
        has sent rows.

        ``label``: the bucket's label. ``now_us``: the wall-clock time in microseconds. ``state``,
        ``handle``: the bucket's map state and its handle in Spark.
        """
        emitted = self._run_stages(
            label, self._empty_spools(), PACKED.empty_table(), now_us, state, handle, expired=True
        )
        yield from map(as_pandas, map(cut_large, emitted))

    def _empty_spools(self) -> dict[int, Spool]:
        """Return a new spool for the pieces of each stage of the operator, by its index."""
        directory = task.temporary_directory("dovetail-spool")
        return {work.number: Spool(directory, SLICE_BYTES) for work in (*self.fused, self)}

    def pieces_to_take(self, spool: Spool) -> Sequence[Piece]:
        """Return the pieces for this stage in ``spool``; none unless ``takes_rows``."""
        return spool.pieces if self.takes_rows else ()

    def _run_stages(
        self,
        label: int,
        spools: dict[int, Spool],
        passing: pa.Table,
        now_us: int,
        state: Any,
        handle: Any,
        receive_us: int = 0,
        *,
        expired: bool = False,
    ) -> Iterator[Rows]:
        """Run the stages of the operator on one bucket, one after the other. Yield the rows that
        pass, with heartbeats of fused stages for other readers, then what the last stage emits.

        A stage without pieces is left out. If the bucket's timer has ``expired``, this holds only
        for stages without timers. If fused stages have reports or counts of unused rows, and the
        last stage has nothing to do, it emits these alone.

        - ``label``: the bucket's label. ``passing``: rows for other stages.
        - ``spools``: the pieces of each stage by its index. A fused stage adds pieces to those of
          its readers. Its own are taken out, so that its rows do not stay in memory.
        - ``now_us``: the wall-clock time of the micro-batch in microseconds.
        - ``state``, ``handle``: the bucket's map state and its handle in Spark, which sets timers.
        - ``receive_us``: the duration of taking the pieces in, for the report of the first stage
          that runs.
        """
        counted: list[str | None] = []
        for work in self.fused:
            pieces = work.pieces_to_take(spools.pop(work.number))
            packers = [reading.packer for reading in work.emission.readings]
            metrics = {(of.reader, of.number): of.source.metric_names for of in packers}
            texts: list[str | None] = [None] * (1 + len(metrics))
            if pieces or (expired and work.timers):
                done = work.outcome(label, pieces, now_us, state, handle, receive_us)
                unused = {address: Counts() for address in metrics}
                for sent in work.emitted_rows(done, label, pieces):
                    assert isinstance(sent, pa.RecordBatch)
                    (row,) = PackedRow.from_rows(sent)  # there is one bucket
                    if row.reader in spools:
                        spools[row.reader].add(unpack_piece(row), row.payload)
                    else:
                        passing = pa.concat_tables([passing, pa.Table.from_batches([sent])])
                        if passing.nbytes > _PASSING_BYTES_MAX:
                            yield passing
                            passing = PACKED.empty_table()
                    address, text = (row.reader, row.source), sent.column("counted")[0].as_py()
                    if address in metrics and text is not None:
                        add_counted_text(unused[address], metrics[address], text)
                texts = [
                    counted_text(done.counts, work.fragment.metric_names, done.report),
                    *(counted_text(unused[address], names) for address, names in metrics.items()),
                ]
                receive_us = 0
            counted += texts
        emitted: Iterator[Rows] = iter(())
        pieces = self.pieces_to_take(spools[self.number])
        if pieces or (expired and self.timers):
            done = self.outcome(label, pieces, now_us, state, handle, receive_us)
            emitted = self.emitted_rows(replace(done, fused=counted), label, pieces)
        elif any(counted):
            emitted = self.emission.rows(BatchOutcome((), fused=counted), label, NO_TIME)
        if len(passing):
            emitted = _prepend_passing(passing, emitted)
        yield from emitted

    def outcome(
        self,
        label: int,
        pieces: Sequence[Piece],
        now_us: int,
        state: Any,
        handle: Any,
        receive_us: int = 0,
    ) -> BatchOutcome:
        """Process one micro-batch of the bucket with this label, and return its outcome. If
        ``ordering`` is given, changes are in its order.

        The blobs in ``state`` are changed as changes are taken, so a caller that stops early leaves
        them half changed. A timer may be registered.

        ``pieces``: the bucket's input, each the rows of one input from one partition; empty if only
        time has passed. ``state``: Spark's map state of the bucket. ``handle``: Spark's handle,
        which sets timers. ``now_us``: the wall-clock time of the micro-batch in microseconds.
        ``receive_us``: the duration of taking the pieces in, for the report.
        """
        began_us = time_ns() // 1000 - receive_us
        bucket = bucket_number(label, self.fragment.buckets)
        blobs = StoreBlobs(state, self.prefix)
        done = process_batch(
            self.fragment, pieces, blobs, segment_cache(), now_us, bucket, self.idle
        )
        if done.report is not None:
            done.report.add_times(began_us, receive_us, [piece.time for piece in pieces])
        done = replace(done, changes=_with_state_time(done, blobs))
        if self.ordering is not None:
            law, columns = self.ordering
            ordered = merge_buckets(done.changes, law, columns, task.micro_batch())
            done = replace(done, changes=ordered)
        if self.timers and done.again_us is not None:
            _register_timer(handle, now_us // 1000, done.again_us // 1000 + 1)
        return done

    def emitted_rows(
        self, done: BatchOutcome, label: int, pieces: Sequence[Piece]
    ) -> Iterator[Rows]:
        """Yield tables or batches of ``emission.columns``: the changes of ``done``, then the
        heartbeats, which are rows without a blob that tell reading stages the time.

        ``done``: the outcome of the bucket with this ``label`` on ``pieces``.
        """
        yield from self.emission.rows(done, label, high_time_us(pieces))
        if done.time is not None:
            for reader, source_index in self.beats:
                heard = Piece.source_heartbeat(
                    source_index, done.time.stream_us, heard_us=done.time.heard_us
                )
                yield pack_heartbeat(reader, label, heard)


def _prepend_passing(passing: pa.Table, emitted: Iterator[Rows]) -> Iterator[Rows]:
    """Yield one table of the ``passing`` rows of ``PACKED`` and the first of ``emitted``, then the
    rest of ``emitted``. Without emitted rows, yield the passing ones alone.
    """
    first = next(emitted, None)
    if first is not None:
        if isinstance(first, pa.RecordBatch):
            first = pa.Table.from_batches([first])
        passing = pa.concat_tables([passing, first])
    yield passing
    yield from emitted


def _with_state_time(done: BatchOutcome, blobs: StoreBlobs) -> Iterator[pa.Table]:
    """Yield the changes of ``done``. Once all are taken, complete its report: the time of calls of
    the state store (``blobs``) in microseconds, and their count. Also the present wall-clock time
    as the bucket's end, in microseconds since 1970. Without a report, set nothing.
    """
    yield from done.changes
    if done.report is not None:
        done.report.ended_us = time_ns() // 1000
        done.report.state_us, done.report.state_calls = blobs.elapsed_ns // 1000, blobs.calls


def _register_timer(handle: Any, now_ms: int, at_ms: int) -> None:
    """Register a timer for ``at_ms``, unless one is due after ``now_ms`` and not after ``at_ms``.
    An earlier timer suffices, because it asks again. One that is due at ``now_ms`` does not count.
    Times are in milliseconds since 1970; ``handle`` is Spark's.
    """
    if not any(now_ms < timer <= at_ms for timer in handle.listTimers()):
        handle.registerTimer(at_ms)


def split_passing(
    frame: pd.DataFrame, stage_numbers: Container[int]
) -> tuple[Iterator[PackedRow], pa.Table]:
    """Split a frame of ``PACKED`` rows by the column ``reader``. Return an iterator over the rows
    for the stages ``stage_numbers``, and a table of those for other stages or results. Both keep
    their order and may be empty. Further columns of the frame are dropped.

    ``stage_numbers``: the stages' indices, from 0, among all stages and relays. A ``PackedRow`` has
    the columns of ``PACKED`` as fields.

    The columns are read as lists, since pandas takes long to make frames of a frame. A column of
    text has NaN for null from pandas 3 on.
    """
    columns = {name: frame[name].tolist() for name in PACKED.names}
    for_stage = [reader in stage_numbers for reader in columns["reader"]]
    others = [
        pa.array(
            [*compress(columns[field.name], map(not_, for_stage))], field.type, from_pandas=True
        )
        for field in PACKED
    ]
    rows = map(PackedRow._make, zip(*(columns[name] for name in PackedRow._fields), strict=True))
    return compress(rows, for_stage), pa.table(others, schema=PACKED)


@lru_cache(maxsize=64)
def unpickle_work(pickled: bytes) -> StageWork:
    """Return a stage's work from its pickled bytes. The last 64 are cached in the process, so all
    its buckets in one worker share it.
    """
    work: StageWork = pickle.loads(pickled)  # noqa: S301 -- Spark's own, from the driver
    return work


class StoreBlobs:
    """A bucket's blobs in Spark's state store, and the time that their calls take."""

    elapsed_ns = 0
    """The nanoseconds that all calls took."""
    calls = 0
    """The count of calls."""

    def __init__(self, state: Any, prefix: str = "") -> None:
        """Begin with no calls. ``state``: Spark's map state of the bucket, from names to bytes.
        ``prefix``: the text before each name there (``StageWork.prefix``).
        """
        self._state, self._prefix = state, prefix

    def get(self, name: str) -> bytes | None:
        """Return the blob of this name from Spark's state store, None if there is none."""
        with self._timed():
            value = self._state.getValue((self._prefix + name,))
        return None if value is None else bytes(value[0])

    def put(self, name: str, blob: bytes) -> None:
        """Store ``blob`` under ``name`` in Spark's state store, in place of a former blob of that
        name.
        """
        with self._timed():
            self._state.updateValue((self._prefix + name,), (blob,))

    def delete(self, name: str) -> None:
        """Remove the blob of this name from Spark's state store. A missing one is no error."""
        with self._timed():
            self._state.removeKey((self._prefix + name,))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Return a context that adds 1 to ``calls`` and its duration to ``elapsed_ns``. If the
        block raises, nothing is added.
        """
        begun_ns = perf_counter_ns()
        yield
        self.elapsed_ns += perf_counter_ns() - begun_ns
        self.calls += 1


_CACHES: dict[Path, SegmentCache] = {}


def segment_cache() -> SegmentCache:
    """Return this worker process's cache of open segments, made on first use. The environment
    variable ``DOVETAIL_MAPPED_BYTES_MAX`` limits the bytes that the cache keeps mapped; without it
    there is no limit.
    """
    directory = task.temporary_directory("dovetail-segments")
    if directory not in _CACHES:
        mapped_bytes_max = float(os.environ.get(task.MAPPED_BYTES_MAX, "inf"))
        _CACHES[directory] = SegmentCache(directory, mapped_bytes_max)
    return _CACHES[directory]
