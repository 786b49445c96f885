"""Pack: rows of one input partition become one columnar blob for each bucket.

So the shuffle moves a few large blobs instead of rows. Every bucket also hears the partition's
largest timestamp, as a *heartbeat* if it gets no rows. So no bucket's stream time falls behind.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from time import time_ns
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.grouping import bucket_of
from dovetail.arrays.hashing import stable_hash
from dovetail.arrays.timeline import NO_TIME, Mask
from dovetail.base.columns import DELETED, EVENT_TIME, HASH, LETTER, OPERATOR, PLACE, PROBLEM
from dovetail.engine.arrival import arrange_rows
from dovetail.engine.batches.pack_time import SIZE_BYTES, PackTime
from dovetail.engine.batches.pieces import Piece
from dovetail.engine.bucket_report import BucketReport
from dovetail.errors import DataError
from dovetail.operators.counts import Counts, example_of, first_row_as_text
from dovetail.physical.source import SourceSpec
from dovetail.plan.metrics import MetricKind, metric_name
from dovetail.state.ipc import COMPRESSED, from_ipc, to_ipc

if TYPE_CHECKING:
    import pandas as pd

PACKED = pa.schema(
    [
        *((name, pa.int32()) for name in ("bucket", "reader", "source", "partition", "number")),
        ("facts", pa.binary()),
        ("counted", pa.string()),
        ("payload", pa.binary()),
    ]
)
"""Rows for one bucket of stage ``reader``, or for a result (``physical.routing``).

- ``facts``: what all buckets hear of the rows (``Tag``). ``payload``: the rows, null for none.
- ``counted``: null, or the text of ``counted_text``.

Spark takes its time for each column of a stage's small tables, so they have few.
"""

DEAD_LETTERS = pa.schema(
    [(name, pa.string()) for name in (OPERATOR, PROBLEM, LETTER)] + [(EVENT_TIME, pa.int64())]
)
"""Rows that were left out: the operator, the problem, and the row as JSON."""

_FLUSH_BYTES = 32 << 20
_FACTS = struct.Struct("<4q")
"""The numbers in ``facts`` behind ``PackTime``: two times, then the bytes of ``runs`` and
``stairs``, -1 for None."""


class Packing(ABC):
    """The route of an input partition's rows to one of their readers."""

    places: Sequence[int] | None
    """The numbers of the reader's columns in the incoming rows; None for all."""
    out: int | None
    """The number of a column that is null in the reader's rows; None if it has all rows."""

    def select_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of ``batch`` that are for this reader, in order, with its columns in the
        order of ``places``. All rows are for it if ``out`` is None or null throughout; else those
        with a null in column ``out`` of ``batch``.
        """
        rows = batch if self.places is None else batch.select(self.places)
        out = None if self.out is None else batch.column(self.out)
        if out is None or out.null_count == len(out):
            return rows
        return rows.filter(out.is_null())

    @abstractmethod
    def begin_partition(self, partition: int) -> Pack:
        """Return a new ``Pack`` for the input partition with the number ``partition``. Its rows are
        numbered from 0.
        """


class Pack(ABC):
    """The packing of one input partition: rows come in, rows of ``PACKED`` go out."""

    @abstractmethod
    def add_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add the flat rows in ``batch``, with the columns that ``Packing.select_rows`` returns.
        Yield rows of ``PACKED`` if enough have come together, else nothing.

        Raises ``DataError`` for a row with a null timestamp that a stage needs.
        """

    @abstractmethod
    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``PACKED`` for all rows and counts that were added since the last rows
        were yielded; nothing if there are none. Rows that are added later begin anew.
        """


def pack_partition(
    packings: Sequence[Packing], batches: Iterable[pa.RecordBatch], partition: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an input partition, read once, packed for all readers: rows of ``PACKED``.
    A reader without rows and counts gets none. Raises ``DataError`` for a row with a null timestamp
    that a stage needs; rows may have been yielded before.

    ``packings``: one per reader; ``batches``: the flat rows, in order; ``partition``: the
    partition's number.
    """
    begun = [(packing, packing.begin_partition(partition)) for packing in packings]
    for batch in batches:
        for packing, open_pack in begun:
            yield from open_pack.add_batch(packing.select_rows(batch))
    for _, open_pack in begun:
        yield from open_pack.flush()


@dataclass(frozen=True)
class Packer(Packing):
    """The packing of one source for input ``number`` of stage ``reader``.

    Incoming rows have ``source.travel_schema``, with two exceptions. ``_deleted`` is missing if no
    row is deleted. If the foreign key may fail, a last column is null in rows on which it does not.

    Null in ``_deleted`` means that a condition leaves a table's row out. The row removes its key's
    former row, but it is no record of the table, so it does not advance stream time.

    | rows | are counted as | are dropped |
    |---|---|---|
    | with a foreign key that fails | failed | always |
    | with a null in the key, unless ``null_keys`` | dropped | unless ``keeps_time`` |
    | with a null in a ``primary`` column, and with values | dropped | unless ``keeps_time`` |
    | of a stream, without a value, unless ``valueless`` | dropped | unless ``keeps_time`` |

    Outgoing rows have ``PACKED``: one for each bucket and about ``_FLUSH_BYTES`` of input.
    """

    reader: int
    """The number of the stage that gets the rows."""
    number: int
    """The number of the stage's input."""
    source: SourceSpec
    """The input, as its operators read it."""
    labels: Sequence[int]
    """The number under which each bucket is shuffled, by bucket."""
    by: tuple[str, ...] = ()
    """The columns that partition rows; the key if empty."""
    places: Sequence[int] | None = None
    out: int | None = None

    def begin_partition(self, partition: int) -> Pack:
        """Begin an input partition with the number ``partition``, and return its packing."""
        return _BucketPack(self, partition)

    def drop_failed_keys(self, batch: pa.RecordBatch, counts: Counts) -> pa.RecordBatch:
        """Return the rows of ``batch`` whose foreign key did not fail, in order and under the
        source's own names. The last column, which says where the key failed, is left out. Add the
        others to ``counts`` as failed. If the foreign key cannot fail, all rows are returned.
        """
        if not self.source.shape.fallible:
            return self._rename_columns(batch)
        failure = batch.column(batch.num_columns - 1)
        batch = self._rename_columns(batch.select(range(batch.num_columns - 1)))
        if failure.null_count < len(failure):
            self._count_rows(counts, "failed", batch.filter(failure.is_valid()))
            batch = batch.filter(failure.is_null())
        return batch

    def drop_unusable_rows(self, batch: pa.RecordBatch, counts: Counts) -> pa.RecordBatch:
        """Return the rows of ``batch`` that a join can use, in order. Add the others to ``counts``
        as dropped; they are still returned if the source's ``keeps_time`` is set.

        ``batch``: rows of ``drop_failed_keys``. The class's table lists the rows of no use.
        """
        usable = self._usable_mask(batch)
        if usable is None or usable.true_count == len(usable):
            return batch
        self._count_rows(counts, "dropped", batch.filter(pc.invert(usable)))
        return batch if self.source.meaning.keeps_time else batch.filter(usable)

    def _count_rows(self, counts: Counts, kind: MetricKind, rows: pa.RecordBatch) -> None:
        """Add the number of ``rows``, at least one, to the metric of this source and ``kind``, with
        the first row as the example. ``counts`` is changed.
        """
        first = pa.Table.from_batches([rows.slice(0, 1)])
        counts.add(metric_name(self.source.name, kind), len(rows), example_of(first, self.source))

    def _usable_mask(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return for each row of ``batch`` whether a join can use it: bool[rows], None if all can.
        The class's table lists the rows of no use.
        """
        usable = []
        needs_value = self.source.meaning.stream and not self.source.meaning.valueless
        if needs_value and DELETED in batch.schema.names:
            usable.append(pc.invert(batch.column(DELETED)))
        required = [] if self.source.meaning.null_keys else self._key_names
        usable += [
            batch.column(name).is_valid() for name in required if batch.column(name).null_count
        ]
        for name in self.source.shape.primary:
            column = batch.column(name)
            if name not in required and column.null_count:
                # A record without a value has nulls in all values, a former key's among them. A row
                # that a condition leaves out is taken for one.
                valid = column.is_valid()
                if name not in self._key_names and DELETED in batch.schema.names:
                    valid = pc.or_(valid, batch.column(DELETED).fill_null(True))
                usable.append(valid)
        return reduce(pc.and_, usable) if usable else None

    def _rename_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch under the names of ``travel_schema``, without ``_deleted`` if that
        column is missing. The columns of ``batch`` lie in that order, under the plain names in
        which they travel.
        """
        names = self.source.travel_schema.names
        if batch.num_columns < len(names):
            names = [name for name in names if name != DELETED]
        return batch.rename_columns(names)

    def refuse_timeless(self, batch: pa.RecordBatch) -> None:
        """Raise ``DataError`` if a row of ``batch`` has a null timestamp, so it has no place in
        event time. The error gives the number of such rows, that of deletes among them, and the
        first one's key.
        """
        time = batch.column(EVENT_TIME)
        if time.null_count:
            timeless = pa.Table.from_batches([batch.filter(time.is_null())])
            first = timeless.schema.get_field_index(self._key_names[0])
            keys = range(first, first + self.source.shape.keys)
            deletes = 0
            if DELETED in timeless.schema.names:
                deletes = pc.sum(timeless.column(DELETED)).as_py() or 0
            of_deletes = f", {deletes} of them deletes" if deletes else ""
            raise DataError(
                self.source.title,
                f"{time.null_count} rows have a null timestamp, so no place in event time"
                f"{of_deletes}, the first of key {first_row_as_text(timeless, keys, ())}",
                "Give the deletes a time with F.coalesce in timestamp=, such as that of the file "
                "or of the commit that brought them: without them their rows would stay"
                if deletes
                else "Filter them out or give them a time with F.coalesce before from_changelog, "
                "or pass malformed='drop' or 'dead_letter'",
            )

    @property
    def _key_names(self) -> list[str]:
        """The names of the source's key columns, in order."""
        return [field.name for field in self.source.shape.key_fields]

    def pack_batches(self, batches: Sequence[pa.RecordBatch], tag: Tag) -> pa.RecordBatch:
        """Return the rows of ``PACKED`` for ``batches``, one for each bucket of the stage, without
        rows if none are for that bucket. Without batches all are heartbeats, which bring the
        counts.

        ``batches``: rows of ``drop_failed_keys`` and ``drop_unusable_rows``, with timestamps.
        ``tag``: the address and the counts; its time, runs and stairs are replaced by those of the
        rows.
        """
        if not batches:
            return pack_table(None, self.labels, tag)
        schema = self.source.travel_schema
        table = pa.Table.from_batches(batches)
        if DELETED not in table.schema.names:
            none = pa.array(np.zeros(len(table), dtype=np.bool_))
            table = table.add_column(schema.get_field_index(DELETED), DELETED, none)
        if not table.schema.equals(schema):
            table = table.cast(schema)
        counted, left_out, deleted = self._advances_time(table), None, table.column(DELETED)
        if deleted.null_count:
            left_out = deleted.is_null().to_numpy()
            counted = ~left_out if counted is None else counted & ~left_out
            table = table.set_column(schema.names.index(DELETED), DELETED, deleted.fill_null(True))
        table, arrived = arrange_rows(self.source, table, counted, left_out)
        tag = replace(tag, high_time_us=arrived.high_us, runs=arrived.runs, stairs=arrived.stairs)
        if not self.by:
            return pack_table(table, self.labels, tag)
        place_hash = stable_hash([table.column(name).combine_chunks() for name in self.by])
        table = table.append_column(PLACE, pa.array(place_hash))
        return pack_table(table, self.labels, tag, by=PLACE)

    def _advances_time(self, table: pa.Table) -> Mask | None:
        """Return for each row of ``table`` whether it advances stream time: bool[rows], None if all
        do. A row with a null in the key does so only under ``keeps_time``.
        """
        keys = [table.column(name) for name in self._key_names]
        if self.source.meaning.keeps_time or not any(key.null_count for key in keys):
            return None
        valid = reduce(pc.and_, (key.is_valid() for key in keys))
        return valid.to_numpy()  # type: ignore[no-any-return]


class _BucketPack(Pack):
    """The packing of one input partition for the buckets of a stage."""

    def __init__(self, packer: Packer, partition: int) -> None:
        """Begin the input partition with the number ``partition``, without rows."""
        self._packer, self._partition = packer, partition
        self._number = 0
        self._reset()

    def _reset(self) -> None:
        """Forget all rows and counts that are held, to begin anew."""
        self._held: list[pa.RecordBatch] = []
        self._bytes, self._counts = 0, Counts()

    def add_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add the rows in ``batch`` that ``drop_unusable_rows`` keeps; count those of no use. Once
        about ``_FLUSH_BYTES`` are held, yield all of them as rows of ``PACKED``; else yield
        nothing.

        Raises ``DataError`` for a null timestamp among the added rows, and then adds none of
        ``batch``.
        """
        packer = self._packer
        taken = packer.drop_unusable_rows(
            packer.drop_failed_keys(batch, self._counts), self._counts
        )
        if taken.num_rows:
            packer.refuse_timeless(taken)
            self._held.append(taken)
            self._bytes += taken.nbytes
        if self._bytes >= _FLUSH_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``PACKED`` for all rows and counts not yet yielded, if there are any,
        and begin anew.
        """
        if self._held or self._counts.number:
            packer = self._packer
            tag = Tag(packer.reader, packer.number, self._partition, self._number)
            tag = replace(tag, counted=counted_text(self._counts, packer.source.metric_names))
            yield packer.pack_batches(self._held, tag)
            self._number += 1
            self._reset()


@dataclass(frozen=True)
class Carrier(Packing):
    """The packing of rows for result ``reader``, as columns of ``schema``.

    Rows of an input partition stay together, in their order.
    """

    reader: int
    """The address of the result (``physical.routing``)."""
    schema: pa.Schema
    labels: Sequence[int]
    """The number under which each bucket is shuffled, by bucket."""
    places: Sequence[int] | None = None
    out: int | None = None

    def begin_partition(self, partition: int) -> Pack:
        """Begin an input partition with the number ``partition``, and return its packing."""
        return _ResultPack(self, partition)

    def result_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of ``batch`` that go to the result, in order, with the columns of
        ``schema``. Here it is all rows, and columns are matched by position. Raises
        ``pa.ArrowInvalid`` if a value does not fit its type.
        """
        return batch.rename_columns(self.schema.names).cast(self.schema)


@dataclass(frozen=True)
class Strays(Carrier):
    """The packing of dead letters (``DEAD_LETTERS``) that come in place of rows.

    They are structs in a column that is null in rows.
    """

    def result_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the dead letters in the first column of ``batch``, in order. The column has
        structs, null where ``batch`` has a row instead.
        """
        letters = batch.column(0).drop_null()
        return super().result_rows(pa.RecordBatch.from_struct_array(letters))


@dataclass(frozen=True)
class Letters(Carrier):
    """The packing of rows on which something fails, as dead letters (``DEAD_LETTERS``).

    Incoming rows have the event time and the row as text, null if nothing fails on it.
    """

    operator: str = ""
    """The operator that fails."""
    problem: str = ""
    """The problem."""

    def result_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a dead letter for each row of ``batch`` whose text is not null, in order. The
        first column of ``batch`` is the event time, the second the text.
        """
        time, row = batch.filter(batch.column(1).is_valid()).columns
        text_columns = (
            pa.array([text] * len(row), pa.string()) for text in (self.operator, self.problem)
        )
        return pa.record_batch([*text_columns, row, time], schema=self.schema)


class _ResultPack(Pack):
    """The packing of one input partition for a result."""

    def __init__(self, carrier: Carrier, partition: int) -> None:
        """Begin the input partition with the number ``partition``, without rows."""
        self._carrier, self._partition = carrier, partition
        self._label = carrier.labels[partition % len(carrier.labels)]
        self._held: list[pa.RecordBatch] = []
        self._number = self._bytes = 0

    def add_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add the rows of ``batch`` that go to the result. Once about ``_FLUSH_BYTES`` are held,
        yield them as rows of ``PACKED``; else yield nothing.
        """
        rows = self._carrier.result_rows(batch)
        if rows.num_rows:
            self._held.append(rows)
            self._bytes += rows.nbytes
        if self._bytes >= _FLUSH_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield one row of ``PACKED`` with all rows that are not yet yielded, nothing if there are
        none, and begin anew. Its bucket follows from the number of the partition.
        """
        if self._held:
            tag = Tag(self._carrier.reader, 0, self._partition, self._number)
            yield pack_whole_table(pa.Table.from_batches(self._held), self._label, tag)
            self._held, self._bytes, self._number = [], 0, self._number + 1


@dataclass(frozen=True)
class Tag:
    """The address of some packed rows, and the facts that every bucket hears of them.

    All but ``reader`` and ``counted`` become attributes of ``pieces.Piece``.
    """

    reader: int
    """The number of the stage, or the address of the result, that the rows go to."""
    source: int
    """The number of the source among the inputs of the stage."""
    partition: int
    """The number of the input partition; -1 for a heartbeat of none."""
    number: int
    """The number of these rows among those of the partition, from 0."""
    high_time_us: int = NO_TIME
    """The largest timestamp of these rows in all buckets; ``NO_TIME`` for none."""
    counted: str | None = None
    """The numbers of rows that had no use and the report (``counted_text``); None for neither."""
    runs: pa.Table | None = None
    """The runs of logs (``RUNS``); None if the rows are one run."""
    stairs: pa.Table | None = None
    """The steps of the source's stream time (``STAIRS``), None unless another source asks."""
    heard_us: int = NO_TIME
    """In a stage's heartbeat, the time since which nothing has come to it."""

    @property
    def facts(self) -> bytes:
        """The bytes that each packed row brings to all buckets, as ``unpack_piece`` reads them:
        times, runs of logs and stairs. They include the present time.
        """
        tables = [None if table is None else to_ipc(table) for table in (self.runs, self.stairs)]
        sizes = (-1 if table is None else len(table) for table in tables)
        numbers = _FACTS.pack(self.high_time_us, self.heard_us, *sizes)
        time = PackTime(packed_us=time_ns() // 1000)
        return b"".join((time.encoded, numbers, *(table for table in tables if table is not None)))


def counted_text(counts: Counts, metrics: Sequence[str], report: BucketReport | None = None) -> str:
    """Return counts of rows and the report of a bucket as JSON: ``[[number, example], ...,
    report]``.

    There is a pair for each of ``metrics``, the names in ``SourceSpec.metric_names``. It is ``[0,
    null]`` if there were no such rows. Other metrics of ``counts`` are left out, and the report is
    missing for None.
    """
    number, examples = counts.number, counts.examples
    parts = [json.dumps([number[name], examples.get(name)]) for name in metrics]
    if report is not None:
        parts.append(report.as_text())
    return f"[{','.join(parts)}]"


def pack_table(
    table: pa.Table | None, labels: Sequence[int], tag: Tag, *, by: str = HASH
) -> pa.RecordBatch:
    """Return rows of ``PACKED``, one for each bucket in order, each with the rows of ``table`` that
    belong there. A bucket without rows gets null, and so do all buckets if ``table`` is None: these
    are heartbeats.

    ``labels``: by bucket, the number under which it is shuffled. ``tag``: the address and facts of
    the rows. ``by``: the int64 column with the hash that chooses a row's bucket.
    """
    buckets = len(labels)
    payloads = (
        pa.nulls(buckets, pa.binary()) if table is None else split_by_bucket(table, buckets, by)
    )
    return _tag_payloads(labels, tag, payloads)


def pack_whole_table(table: pa.Table | None, label: int, tag: Tag) -> pa.RecordBatch:
    """Return one row of ``PACKED``: all of ``table`` for one bucket. None for ``table`` makes a
    heartbeat.

    ``label``: the number under which the bucket is shuffled. ``tag``: the address and facts of the
    rows.
    """
    payload = None if table is None else to_ipc(table)
    return _tag_payloads([label], tag, pa.array([payload], pa.binary()))


def pack_end(reader: int, sources: int, labels: Sequence[int]) -> pa.RecordBatch:
    """Return the rows of ``PACKED`` by which buckets hear that all sources have ended: one
    heartbeat per source and bucket.

    ``reader``: the number of the stage. ``sources``: the number of its inputs, at least 1.
    ``labels``: by bucket, the number under which it is shuffled.
    """
    batches = [
        pack_table(None, labels, _heartbeat_tag(reader, beat))
        for beat in Piece.end_heartbeats(sources)
    ]
    return pa.Table.from_batches(batches, PACKED).combine_chunks().to_batches()[0]


def pack_heartbeat(reader: int, label: int, piece: Piece) -> pa.RecordBatch:
    """Return the row of ``PACKED`` that brings the heartbeat ``piece`` to one bucket of stage
    ``reader``. Rows in ``piece`` are left out.

    ``label``: the number under which the bucket is shuffled.
    """
    return pack_whole_table(None, label, _heartbeat_tag(reader, piece))


def _heartbeat_tag(reader: int, beat: Piece) -> Tag:
    """Return the tag of the heartbeat ``beat`` for the stage with the number ``reader``."""
    address = (beat.source, beat.partition, beat.number)
    return Tag(reader, *address, beat.high_time_us, heard_us=beat.heard_us)


def _tag_payloads(labels: Sequence[int], tag: Tag, payloads: pa.Array) -> pa.RecordBatch:
    """Return n rows of ``PACKED`` for n labels and payloads, binary[n] with null for a heartbeat,
    with the facts of ``tag`` in each. Only the first row has the counts and the report, so that
    they are counted once.
    """
    rows = len(labels)
    numbers = (tag.reader, tag.source, tag.partition, tag.number)
    columns = [
        pa.array(labels, pa.int32()),
        *(pa.array([value] * rows, pa.int32()) for value in numbers),
        pa.array([tag.facts] * rows, pa.binary()),
        pa.array([tag.counted] + [None] * (rows - 1), pa.string()),
        payloads,
    ]
    return pa.record_batch(columns, schema=PACKED)


# An example with three buckets; the middle one gets no rows:
#
# | bucket of each row | 0 0 2 |
# |---|---|
# | edges | 0 2 2 3 |
# | streams | rows 0 and 1, null, row 2 |
def split_by_bucket(table: pa.Table, buckets: int, by: str = HASH) -> pa.BinaryArray:
    """Return for each bucket its rows of ``table`` as an Arrow IPC stream, null if it gets none:
    binary[buckets]. Rows keep their order within a bucket. All streams together must take less than
    2 GiB.

    ``buckets``: the number of buckets. ``by``: the int64 column with the hash that chooses a row's
    bucket.
    """
    schema = table.schema
    bucket = bucket_of(table.column(by).to_numpy(), buckets)
    if np.any(bucket[1:] < bucket[:-1]):
        order = np.argsort(bucket, kind="stable")
        table, bucket = table.take(pa.array(order)), bucket[order]
    edges = np.searchsorted(bucket, np.arange(buckets + 1))
    sink = pa.BufferOutputStream()
    ends = []
    for start, end in pairwise(edges):
        if end > start:
            with pa.ipc.new_stream(sink, schema, options=COMPRESSED) as writer:
                writer.write_table(table.slice(start, end - start))
        ends.append(sink.tell())
    offsets = pa.py_buffer(np.array([0, *ends], dtype=np.int32))
    present = pa.array(edges[1:] > edges[:-1]).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), buckets, [present, offsets, sink.getvalue()])


class PackedRow(NamedTuple):
    """The part of a row of ``PACKED`` that a stage reads."""

    bucket: int
    """The number under which the bucket is shuffled, one of ``labels``."""
    source: int
    """The number of the source among the inputs of the stage."""
    partition: int
    """The number of the input partition; -1 for a heartbeat of none."""
    number: int
    """The number of these rows among those of the partition, from 0."""
    facts: bytes
    """The bytes of ``Tag.facts``."""
    payload: bytes | None
    """The rows as an Arrow IPC stream; None for a heartbeat."""

    @classmethod
    def all_of(cls, rows: pd.DataFrame | pa.RecordBatch) -> Iterator[PackedRow]:
        """Yield the rows of a frame or batch that has the columns of ``PACKED``, in order.

        The frame may have more columns. It is read column by column, since pandas takes long to
        make rows of a frame.
        """
        columns = (rows[name] for name in cls._fields)
        values = (c.to_pylist() if isinstance(c, pa.Array) else c for c in columns)
        return map(cls._make, zip(*values, strict=True))


def unpack_piece(row: PackedRow) -> Piece:
    """Decode a row of ``PACKED`` into the piece that a stage reads. A heartbeat has no rows, so its
    piece has None for them.
    """
    high_us, heard_us, runs_size, stairs_size = _FACTS.unpack_from(row.facts, SIZE_BYTES)
    tables = row.facts[SIZE_BYTES + _FACTS.size :]
    runs = None if runs_size < 0 else tables[:runs_size]
    stairs = None if stairs_size < 0 else tables[max(runs_size, 0) :]
    rows, runs, stairs = (
        None if blob is None else from_ipc(blob) for blob in (row.payload, runs, stairs)
    )
    numbers = (row.source, row.partition, row.number)
    return Piece(*numbers, high_us, rows, runs, stairs, heard_us, PackTime.decode(row.facts))
