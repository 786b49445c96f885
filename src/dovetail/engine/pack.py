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
from time import time_ns
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.casts import cast_rows
from dovetail.arrays.hashing import stable_hash
from dovetail.arrays.timeline import NO_TIME, Mask
from dovetail.base.columns import DELETED, EVENT_TIME, HASH, LETTER, OPERATOR, PLACE, PROBLEM
from dovetail.engine.arrival import arrange_rows, rows_with_places
from dovetail.engine.batches.pack_time import SIZE_BYTES, PackTime
from dovetail.engine.batches.parts import PartJoiner
from dovetail.engine.batches.pieces import Piece
from dovetail.engine.batches.spread import spread_rows
from dovetail.engine.bucket_report import BucketReport
from dovetail.errors import DataError
from dovetail.operators.counts import Counts, example_of, first_row_as_text
from dovetail.physical.source import SourceSpec
from dovetail.plan.metrics import MetricKind, metric_name
from dovetail.state.ipc import from_ipc, split_by_bucket, to_ipc

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
"""Packed rows: each has some rows for one bucket of stage ``reader``, or for a result
(``physical.routing``).

- ``bucket``: the label under which the bucket is shuffled. ``source``: the index of the stage's
  input; 0 for a result.
- ``partition``: the index of the input partition. ``number``: the index of the packing in it, from
  0.
- ``facts``: the bytes of ``Tag.facts``, which all buckets hear. ``payload``: the rows, as an Arrow
  IPC stream; null for none. A large row travels in parts, where both differ (``batches.parts``).
- ``counted``: null, or the text of ``counted_text``.

Spark takes its time for each column of a stage's small tables, so they have few.
"""

DEAD_LETTERS = pa.schema(
    [(name, pa.string()) for name in (OPERATOR, PROBLEM, LETTER)] + [(EVENT_TIME, pa.int64())]
)
"""Rows that were left out: the operator, the problem, and the row as JSON."""

_FLUSH_BYTES = 32 << 20
_FACTS = struct.Struct("<4q")
"""The ints in ``facts`` behind ``PackTime``: two times, then the bytes of ``runs`` and ``stairs``,
-1 for None.
"""


class Packing(ABC):
    """The route of an input partition's rows to one of their readers."""

    places: Sequence[int] | None
    """The indices of the reader's columns in the incoming rows; None for all."""
    out: int | None
    """The index of an incoming column that is null in the reader's rows; None if it has all rows.
    """

    def select_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return all rows of ``batch``, with the columns at the indices ``places``, in that order;
        with all columns for None.
        """
        return batch if self.places is None else batch.select(self.places)

    def select_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of ``batch`` that are for this reader, in order, with the columns that
        ``select_columns`` returns.

        ``out`` is the index of a column of ``batch`` that is null in the reader's rows; other rows
        are left out. If ``out`` is None, or the column is null throughout, all rows are returned.
        """
        rows = self.select_columns(batch)
        out = None if self.out is None else batch.column(self.out)
        if out is None or out.null_count == len(out):
            return rows
        return rows.filter(out.is_null())

    @abstractmethod
    def begin_partition(self, partition: int) -> Pack:
        """Return a new, empty ``Pack``, which packs one input partition's rows for this reader.

        ``partition``: the partition's index. Packed rows bear it, and the partition's packings are
        counted from 0.
        """


class Pack(ABC):
    """The packing of one input partition: rows come in, rows of ``PACKED`` go out."""

    @abstractmethod
    def add_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add the rows in ``batch`` that are for this reader. Yield rows of ``PACKED`` once about
        32 MiB of rows are held, else nothing. ``batch``: flat rows, with the columns of all readers
        (``Packing.places``).

        Rows are added only while the iterator is read. Rows that a stage cannot use are counted
        instead; results leave out rows that are not theirs. Raises ``DataError`` if the reader is a
        stage and a usable row has a null timestamp.
        """

    @abstractmethod
    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``PACKED`` for all rows and counts held, in one batch, and forget them.
        Yield nothing if none are held. Rows may be added afterwards.
        """


def pack_partition(
    packings: Sequence[Packing], batches: Iterable[pa.RecordBatch], partition: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one input partition, read once, packed for all readers: batches of
    ``PACKED``, which have a blob of rows per bucket.

    ``packings``: one per reader. ``batches``: the flat rows, in order, with the columns of all
    readers. ``partition``: the partition's index, which packed rows bear.

    All readers' packed rows come whenever about 32 MiB are held for one of them, and at the end. So
    a row has the same place in the packed rows of each reader that numbers its rows. A reader
    without rows and without counts of unused rows gets none. Raises ``DataError`` for a row with a
    null timestamp that a stage needs; packed rows may have been yielded before.
    """
    begun = [packing.begin_partition(partition) for packing in packings]
    for batch in batches:
        full = False
        for open_pack in begun:
            for packed in open_pack.add_batch(batch):
                full = True
                yield packed
        if full:
            for open_pack in begun:
                yield from open_pack.flush()
    for open_pack in begun:
        yield from open_pack.flush()


@dataclass(frozen=True)
class Packer(Packing):
    """The packing of one source for the input with index ``number`` of stage ``reader``.

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
    """The index of the stage that gets the rows, in the order in which stages run."""
    number: int
    """The index of the input among those of the stage."""
    source: SourceSpec
    """The input, as its operators read it."""
    labels: Sequence[int]
    """``labels[b]`` is the int under which Spark shuffles bucket b."""
    by: tuple[str, ...] = ()
    """The columns that partition rows; the key if empty."""
    places: Sequence[int] | None = None
    out: int | None = None

    def begin_partition(self, partition: int) -> Pack:
        """Return a new, empty ``Pack`` for the input partition with the index ``partition``."""
        return _BucketPack(self, partition)

    def usable_rows(
        self, batch: pa.RecordBatch, counts: Counts
    ) -> tuple[pa.RecordBatch, Mask | None]:
        """Return the rows of ``batch`` that an operator can use, in order, with the columns named
        as in ``source.travel_schema``, and None.

        If the source numbers its rows, return all rows and a mask of those: bool[rows], None for
        all. Another reader of the same rows may use others, and a row has one number for both.

        Unusable are rows that are for other readers (``out``), rows whose foreign key fails, and
        those of ``_usable_mask``. Of the last, those with ``keeps_time`` are used all the same. All
        but the first kind are added to ``counts``, as failed or dropped.
        """
        rows = self.select_columns(batch)
        masks = [] if self.out is None else [batch.column(self.out).is_null()]
        if self.source.shape.fallible:
            masks.append(rows.column(rows.num_columns - 1).is_null())
            rows = self._rename_columns(rows.select(range(rows.num_columns - 1)))
            self._count_rows(counts, "failed", rows, *masks)
        else:
            rows = self._rename_columns(rows)
        usable = self._usable_mask(rows)
        if usable is not None:
            self._count_rows(counts, "dropped", rows, *masks, usable)
            masks += [] if self.source.meaning.keeps_time else [usable]
        used = reduce(pc.and_, masks) if masks else None
        if used is None or used.true_count == len(used):
            return rows, None
        if self.source.arrival.numbered:
            return rows, used.to_numpy(zero_copy_only=False)
        return rows.filter(used), None

    def _count_rows(
        self, counts: Counts, kind: MetricKind, rows: pa.RecordBatch, *masks: pa.Array
    ) -> None:
        """Count those ``rows`` that the last mask leaves out and all masks before it keep. The
        first of them becomes the example if there is none yet.

        ``counts``: gets the count, by the name of this source's metric of ``kind``, ``"dropped"``
        or ``"failed"``. ``rows``: named as in ``source.travel_schema``. ``masks``: bool[rows]
        without nulls.
        """
        left_out = reduce(pc.and_, [*masks[:-1], pc.invert(masks[-1])])
        if left_out.true_count:
            first = pa.Table.from_batches([rows.filter(left_out).slice(0, 1)])
            name = metric_name(self.source.name, kind)
            counts.add(name, left_out.true_count, example_of(first, self.source))

    def _usable_mask(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return a mask of the rows of ``batch`` that an operator can use: bool[rows] without
        nulls, None if all can.

        Unusable are rows with a null in the key (unless ``null_keys``) and a stream's rows without
        a value (unless ``valueless``). So are rows with values and a null in a ``primary`` column.
        Rows are without a value if ``_deleted`` is true. A table's row with a null in ``_deleted``
        counts as one of these, too. A stream must have no such null.
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
        return reduce(pc.and_, usable).fill_null(False) if usable else None

    def _rename_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``batch`` with its columns renamed to the names of ``source.travel_schema``. The
        columns already lie in that order; ``_deleted`` alone may be missing, and is then left out
        of the names.
        """
        names = self.source.travel_schema.names
        if batch.num_columns < len(names):
            names = [name for name in names if name != DELETED]
        return batch.rename_columns(names)

    def refuse_timeless(self, batch: pa.RecordBatch) -> None:
        """Raise ``DataError`` if a row of ``batch`` has a null ``_event_time``. Else do nothing.

        The error gives the count of such rows, the count of deletes among them, and the first one's
        key.
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

    def pack_batches(
        self, batches: Sequence[pa.RecordBatch], tag: Tag, masks: Sequence[Mask]
    ) -> pa.RecordBatch:
        """Return one row of ``PACKED`` per bucket of the stage, in order of buckets, each with the
        bucket's rows of ``batches`` as a blob. A bucket without rows gets a null blob: a heartbeat.

        ``batches``: usable rows with timestamps, named as in ``source.travel_schema``; a missing
        ``_deleted`` means that no row is deleted. If empty, all packed rows are heartbeats, which
        still bring the counts. Rows go to buckets by ``_hash``, or by a hash of the columns ``by``
        that becomes ``_place``. ``masks``: for each batch the rows that are packed, bool[rows].
        Other rows only have places among them.

        ``tag``: the address and the counts. Its largest time, log runs and stairs (steps of stream
        time) are replaced by those of the rows. A null ``_deleted`` becomes true.
        """
        if not batches:
            return pack_table(None, self.labels, tag)
        schema = self.source.travel_schema
        table = pa.Table.from_batches(batches)
        if DELETED not in table.schema.names:
            none = pa.array(np.zeros(len(table), dtype=np.bool_))
            table = table.add_column(schema.get_field_index(DELETED), DELETED, none)
        if not table.schema.equals(schema):
            table = cast_rows(table, schema)
        mask, used = np.concatenate(masks), None
        if not mask.all():
            table, used = rows_with_places(self.source.arrival, table, mask)
            if not len(table):
                return pack_table(None, self.labels, tag)
        counted, left_out, deleted = self._advances_time(table), None, table.column(DELETED)
        if deleted.null_count:
            left_out = deleted.is_null().to_numpy()
            counted = ~left_out if counted is None else counted & ~left_out
            table = table.set_column(schema.names.index(DELETED), DELETED, deleted.fill_null(True))
        table, arrived = arrange_rows(self.source, table, counted, left_out, used)
        table = spread_rows(self.source, table, len(self.labels))
        tag = replace(tag, high_time_us=arrived.high_us, runs=arrived.runs, stairs=arrived.stairs)
        if not self.by:
            return pack_table(table, self.labels, tag)
        place_hash = stable_hash([table.column(name).combine_chunks() for name in self.by])
        table = table.append_column(PLACE, pa.array(place_hash))
        return pack_table(table, self.labels, tag, by=PLACE)

    def _advances_time(self, table: pa.Table) -> Mask | None:
        """Return a mask of the rows of ``table`` that advance stream time: bool[rows], None if all
        do. A row with a null in a key column does not, with two exceptions: a source that has
        ``keeps_time``, and a table whose rows may have such keys.
        """
        keys = [table.column(name) for name in self._key_names]
        meaning = self.source.meaning
        all_count = meaning.keeps_time or (meaning.null_keys and not meaning.stream)
        if all_count or not any(key.null_count for key in keys):
            return None
        valid = reduce(pc.and_, (key.is_valid() for key in keys))
        return valid.to_numpy()  # type: ignore[no-any-return]


class _BucketPack(Pack):
    """The packing of one input partition for the buckets of a stage."""

    def __init__(self, packer: Packer, partition: int) -> None:
        """Begin the packing of an input partition by the rules of ``packer``, without rows.
        ``partition``: the partition's index.
        """
        self._packer, self._partition = packer, partition
        self._number = 0
        self._reset()

    def _reset(self) -> None:
        """Forget all rows, counts and bytes that are held. The index of the next packing stays."""
        self._held: list[pa.RecordBatch] = []
        self._masks: list[Mask] = []
        self._bytes, self._counts = 0, Counts()

    def add_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Hold the rows in ``batch`` that the stage can use, and count the others. Of rows that are
        numbered hold all. Once about ``_FLUSH_BYTES`` (32 MiB) are held, yield all of them as one
        batch of ``PACKED``; else yield nothing.

        Raises ``DataError`` for a null timestamp among the rows to hold, and then holds none of
        ``batch``. The unusable rows are counted by then.
        """
        packer = self._packer
        taken, mask = packer.usable_rows(batch, self._counts)
        if taken.num_rows:
            packer.refuse_timeless(taken if mask is None else taken.filter(pa.array(mask)))
            self._held.append(taken)
            self._masks.append(np.ones(len(taken), np.bool_) if mask is None else mask)
            self._bytes += taken.nbytes * packer.source.arrival.copies
        if self._bytes >= _FLUSH_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield one batch of ``PACKED``, a row per bucket, for all rows and counts held, then
        forget them. Yield nothing if there are neither.
        """
        if self._held or self._counts.number:
            packer = self._packer
            tag = Tag(packer.reader, packer.number, self._partition, self._number)
            tag = replace(tag, counted=counted_text(self._counts, packer.source.metric_names))
            yield packer.pack_batches(self._held, tag, self._masks)
            self._number += 1
            self._reset()


@dataclass(frozen=True)
class Carrier(Packing):
    """The packing of rows for the result with the address ``reader``, as columns of ``schema``.

    Rows of an input partition stay together, in their order.
    """

    reader: int
    """The address of the result (``physical.routing``)."""
    schema: pa.Schema
    labels: Sequence[int]
    """``labels[b]`` is the int under which Spark shuffles bucket b."""
    places: Sequence[int] | None = None
    out: int | None = None

    def begin_partition(self, partition: int) -> Pack:
        """Return a new, empty ``Pack`` for the input partition with the index ``partition``."""
        return _ResultPack(self, partition)

    def result_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return all rows of ``batch``, in order, with names and types of ``schema``. Columns are
        matched by position, so there must be as many.

        Raises ``pa.ArrowInvalid`` if a value does not fit its type. Subclasses return fewer rows.
        """
        return cast_rows(batch.rename_columns(self.schema.names), self.schema)


@dataclass(frozen=True)
class Strays(Carrier):
    """The packing of dead letters (``DEAD_LETTERS``) that come in place of rows.

    They are structs in a column that is null in rows.
    """

    def result_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the dead letters in the first column of ``batch``, in order, with the columns of
        ``schema``. A dead letter is a row left out because of an error.

        The column has structs, null where ``batch`` has an ordinary row instead.
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
        """Return a dead letter, a row of ``DEAD_LETTERS``, for each row of ``batch`` whose text is
        not null, in order.

        ``batch``: two columns, the event time in microseconds and the row as text. Operator and
        problem are those of this packing.
        """
        time, row = batch.filter(batch.column(1).is_valid()).columns
        text_columns = (
            pa.array([text] * len(row), pa.string()) for text in (self.operator, self.problem)
        )
        return pa.record_batch([*text_columns, row, time], schema=self.schema)


class _ResultPack(Pack):
    """The packing of one input partition for a result."""

    def __init__(self, carrier: Carrier, partition: int) -> None:
        """Begin the packing of an input partition for a result by the rules of ``carrier``, without
        rows. ``partition``: the partition's index. Modulo the count of buckets, which may be
        smaller than that of partitions, it is the bucket of all rows.
        """
        self._carrier, self._partition = carrier, partition
        self._label = carrier.labels[partition % len(carrier.labels)]
        self._held: list[pa.RecordBatch] = []
        self._number = self._bytes = 0

    def add_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Hold the rows of ``batch`` that ``carrier.result_rows`` returns. Once about
        ``_FLUSH_BYTES`` (32 MiB) are held, yield all of them as one row of ``PACKED``; else yield
        nothing.
        """
        rows = self._carrier.result_rows(self._carrier.select_rows(batch))
        if rows.num_rows:
            self._held.append(rows)
            self._bytes += rows.nbytes
        if self._bytes >= _FLUSH_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield one row of ``PACKED`` with all rows held, then forget them; nothing if there are
        none. It goes to the result that ``carrier`` names (``Carrier.reader``), not to a stage. Its
        bucket is the partition's index modulo the count of buckets.
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
    """The index of the stage, or the address of the result, that the rows go to."""
    source: int
    """The index of the source among the inputs of the stage; 0 for a result."""
    partition: int
    """The index of the input partition; -1 for a heartbeat of none."""
    number: int
    """The index of these rows among the packings of the partition, from 0."""
    high_time_us: int = NO_TIME
    """The largest timestamp of these rows in all buckets; ``NO_TIME`` for none."""
    counted: str | None = None
    """The counts of rows that had no use, and the report (``counted_text``); None for neither."""
    runs: pa.Table | None = None
    """The runs of logs (``RUNS``); None if the rows are one run."""
    stairs: pa.Table | None = None
    """The steps of the source's stream time (``STAIRS``), None unless another source asks."""
    heard_us: int = NO_TIME
    """In a stage's heartbeat, the time since which nothing has come to it."""

    @property
    def facts(self) -> bytes:
        """The bytes that each packed row brings to all buckets, for ``unpack_piece``.

        They are a ``PackTime`` with the present wall-clock time, ``high_time_us``, ``heard_us``,
        and the tables ``runs`` and ``stairs`` as Arrow IPC. Reading the property again gives a new
        time.
        """
        tables = [None if table is None else to_ipc(table) for table in (self.runs, self.stairs)]
        sizes = (-1 if table is None else len(table) for table in tables)
        numbers = _FACTS.pack(self.high_time_us, self.heard_us, *sizes)
        time = PackTime(packed_us=time_ns() // 1000)
        return b"".join((time.encoded, numbers, *(table for table in tables if table is not None)))


def counted_text(
    counts: Counts,
    metrics: Sequence[str],
    report: BucketReport | None = None,
    fused: Sequence[str | None] = (),
) -> str:
    """Return counts of rows and the report of a bucket as a JSON list: ``[[count, example], ...,
    report, fused]``.

    ``metrics``: names of metrics (``SourceSpec.metric_names``); each has a pair, in order, ``[0,
    null]`` if there were no such rows. Other metrics of ``counts`` are left out. ``report``: the
    next item, as a nested list; without it the list has only the pairs. ``fused``: such texts of
    other stages, None for null. If there are any, they are the last item, as a nested list behind
    the report or null.
    """
    number, examples = counts.number, counts.examples
    parts = [json.dumps([number[name], examples.get(name)]) for name in metrics]
    if report is not None or fused:
        parts.append("null" if report is None else report.as_text())
    if fused:
        parts.append(f"[{','.join('null' if text is None else text for text in fused)}]")
    return f"[{','.join(parts)}]"


def add_counted_text(counts: Counts, metrics: Sequence[str], text: str) -> None:
    """Add the pairs of ``text``, which ``counted_text`` has made, to ``counts``. A report in it and
    the texts of other stages are left out.

    ``metrics``: the names of the first pairs, in order; other pairs are left out.
    """
    for name, (count, example) in zip(metrics, json.loads(text), strict=False):
        counts.add(name, count, example)


def pack_table(
    table: pa.Table | None, labels: Sequence[int], tag: Tag, *, by: str = HASH
) -> pa.RecordBatch:
    """Return one row of ``PACKED`` per bucket, in order, each with its rows of ``table`` as a blob.
    A bucket without rows gets a null blob, a heartbeat; so do all if ``table`` is None.

    ``labels``: ``labels[b]`` is the int under which Spark shuffles bucket b; their count is that of
    buckets. ``tag``: the address and facts of all these rows; only the first has its counts.
    ``by``: the int64 column whose value modulo the count of buckets is the row's bucket.
    """
    buckets = len(labels)
    payloads = (
        pa.nulls(buckets, pa.binary()) if table is None else split_by_bucket(table, buckets, by)
    )
    return _tag_payloads(labels, tag, payloads)


def pack_whole_table(table: pa.Table | None, label: int, tag: Tag) -> pa.RecordBatch:
    """Return one row of ``PACKED`` with all rows of ``table`` as the blob of one bucket. None for
    ``table`` makes a heartbeat, whose blob is null.

    ``label``: the int under which Spark shuffles the bucket. ``tag``: the address, facts and
    counts.
    """
    payload = None if table is None else to_ipc(table)
    return _tag_payloads([label], tag, pa.array([payload], pa.binary()))


def pack_end(reader: int, sources: int, labels: Sequence[int]) -> pa.RecordBatch:
    """Return rows of ``PACKED`` that tell all buckets that all sources of a stage have ended: one
    heartbeat per source and bucket, source by source. Its time is ``END_OF_TIME``.

    ``reader``: the index of the stage. ``sources``: the count of its inputs, at least 1.
    ``labels``: the int under which Spark shuffles each bucket, in order of buckets.
    """
    batches = [
        pack_table(None, labels, _heartbeat_tag(reader, beat))
        for beat in Piece.end_heartbeats(sources)
    ]
    return pa.Table.from_batches(batches, PACKED).combine_chunks().to_batches()[0]


def pack_heartbeat(reader: int, label: int, piece: Piece) -> pa.RecordBatch:
    """Return the one row of ``PACKED`` that brings the times of ``piece`` as a heartbeat to one
    bucket. Rows, log runs and stairs (steps of stream time) of ``piece`` are left out.

    ``reader``: the index of the stage that hears it. ``label``: the int under which Spark shuffles
    the bucket.
    """
    return pack_whole_table(None, label, _heartbeat_tag(reader, piece))


def _heartbeat_tag(reader: int, beat: Piece) -> Tag:
    """Return the tag of a heartbeat for the stage with the index ``reader``. It has the source, the
    partition, the index (``number``) and the two times of ``beat``. Log runs, stairs (steps of
    stream time) and counts are None.
    """
    address = (beat.source, beat.partition, beat.number)
    return Tag(reader, *address, beat.high_time_us, heard_us=beat.heard_us)


def _tag_payloads(labels: Sequence[int], tag: Tag, payloads: pa.Array) -> pa.RecordBatch:
    """Return n rows of ``PACKED``, one for each label and its blob, with the address and the facts
    of ``tag`` in each.

    ``labels``: n ints under which Spark shuffles the buckets, at least one. ``payloads``:
    binary[n], null for a heartbeat. Only the first row has ``tag.counted``, so that counts are not
    added twice.
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


class PackedRow(NamedTuple):
    """The part of a row of ``PACKED`` that a stage reads."""

    bucket: int
    """The label under which the bucket is shuffled."""
    reader: int
    """The index of the stage that gets the rows."""
    source: int
    """The index of the source among the inputs of the stage."""
    partition: int
    """The index of the input partition; -1 for a heartbeat of none."""
    number: int
    """The index of these rows among the packings of the partition, from 0."""
    facts: bytes
    """The bytes of ``Tag.facts``."""
    payload: bytes | None
    """The rows as an Arrow IPC stream; None for a heartbeat."""

    @classmethod
    def from_rows(cls, rows: pd.DataFrame | pa.RecordBatch) -> Iterator[PackedRow]:
        """Yield each row of ``rows``, a frame or batch with the columns of ``PACKED``, as a
        ``PackedRow``, in order. ``counted`` and any further columns are left out; a missing column
        raises ``KeyError``. Parts of large rows come as they are (``whole_rows``).

        The frame is read column by column, since pandas takes long to make rows of a frame.
        """
        columns = (rows[name] for name in cls._fields)
        values = (c.to_pylist() if isinstance(c, pa.Array) else c for c in columns)
        return map(cls._make, zip(*values, strict=True))


def whole_rows(rows: Iterable[PackedRow], joiner: PartJoiner) -> Iterator[PackedRow]:
    """Yield the whole rows of ``rows``, in order, a large one where the last of its parts comes.
    ``joiner`` takes the parts of others, for the next call.
    """
    for row in rows:
        whole = joiner.add(row.facts, row.payload)
        if whole is not None:
            yield row._replace(facts=whole[0], payload=whole[1])


def unpack_piece(row: PackedRow) -> Piece:
    """Decode a row of ``PACKED`` into the piece (rows of one source for one bucket) that a stage
    reads. A heartbeat, a row without a payload, becomes a piece whose rows are None.

    The rows become a table in memory. The facts give the times, log runs and stairs (steps of
    stream time).
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
