"""The forms in which a bucket's changes leave a stage on Spark, for the next step to read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StringType, StructField, StructType

from dovetail.arrays.spark_hash import spark_hash
from dovetail.base.columns import COUNTED
from dovetail.engine.arrival import stairs_of
from dovetail.engine.batches.parts import PartJoiner, cut, is_part
from dovetail.engine.fragment import BatchOutcome
from dovetail.engine.pack import (
    PACKED,
    Carrier,
    Packer,
    Tag,
    counted_text,
    pack_table,
    pack_whole_table,
)
from dovetail.physical.output import Output
from dovetail.physical.travel_columns import TravelColumns
from dovetail.plan.types.arrow import spark_schema
from dovetail.platform.arrow_batches import UNIT_BYTES
from dovetail.state.ipc import from_ipc, parts_of

if TYPE_CHECKING:
    import pandas as pd

PACKED_COLUMNS = spark_schema(PACKED)

Rows: TypeAlias = "pa.Table | pa.RecordBatch"

_OUTPUT_ROWS_MAX = 100_000
_OUTPUT_BYTES_MAX = 32 << 20
_COPIED_ROWS_MAX = 5_000


class Emission(ABC):
    """The form in which a bucket's changes leave a stage: rows of ``columns``."""

    columns: StructType
    """The Spark columns of the rows."""
    readings: Sequence[Reading] = ()
    """The inputs for which rows are packed here that are counted in packing."""

    @abstractmethod
    def rows(self, done: BatchOutcome, bucket: int, high_time_us: int) -> Iterator[Rows]:
        """Yield rows of ``columns`` as Arrow tables or batches: the changes that one bucket emits
        in a micro-batch, in order. They bring the bucket's counts of unused rows and its report
        (``BucketReport``).

        ``done``: the outcome of the micro-batch. Its changes can be taken once, and all must be
        taken for the state to be complete. ``bucket``: the bucket's label. ``high_time_us``: the
        largest timestamp of the bucket's input, in microseconds; ``NO_TIME`` without input.
        """


@dataclass
class FlatEmission(Emission):
    """Changes as the rows of a query's output.

    The rows have a column ``_counted`` besides. It is null, except in a last row, which is no
    change: there it has ``[[number, example], ..., report]`` as JSON, one pair for each of
    ``counts``. A bucket without any work has no such row::

        _change  _position  _counted
        upsert   7          null
        delete   8          null
        0        0          [[2, "id=7 at 1970-01-01T00:00:00Z"], [1, [3, 1], ...]]
    """

    output: Output
    counts: Sequence[str]
    """The metrics of rows without use."""

    def __post_init__(self) -> None:
        """Set ``columns``: those of the output, then ``_counted``."""
        self.columns = StructType([*self.output.columns, StructField(COUNTED, StringType())])

    def rows(self, done: BatchOutcome, bucket: int, high_time_us: int) -> Iterator[Rows]:
        """Yield the changes of ``done`` as tables of ``columns``. Without changes and reports,
        yield nothing.

        If there are reports, those of fused stages too, the last table ends with a row without a
        change. It has the counts and the reports as JSON in ``_counted``. That row has a table of
        its own if the last table has more than 5,000 changes, which are not copied for it.
        ``bucket`` and ``high_time_us`` are not used.
        """
        last = self._empty_output
        for rows in _split_changes(done.changes):
            if len(last):
                yield last
            table = self.output.rows_of_changes(rows)
            last = table.append_column(_COUNTED, pa.nulls(len(table), pa.string()))
        if done.report is not None or any(done.fused):
            if len(last) > _COPIED_ROWS_MAX:
                yield last
                last = self._empty_output
            text = pa.array([counted_text(done.counts, self.counts, done.report, done.fused)])
            counted = pa.table([*self._blank_row, text], schema=self._empty_output.schema)
            last = pa.concat_tables([last, counted]).combine_chunks()
        if len(last):
            yield last

    @cached_property
    def _empty_output(self) -> pa.Table:
        """An Arrow table of the output's columns and ``_counted``, without rows."""
        return self.output.schema.append(_COUNTED).empty_table()

    @cached_property
    def _blank_row(self) -> list[pa.Array]:
        """The columns of one output row that is no change, each an array of length 1: null, or zero
        where null is not allowed. ``_counted`` is not among them.
        """
        return [
            pa.nulls(1, field.type) if declared.nullable else _ZERO.cast(field.type)
            for field, declared in zip(self.output.schema, self.output.columns, strict=True)
        ]


_COUNTED = pa.field(COUNTED, pa.string())
_ZERO = pa.array([0])
"""A value for columns without nulls, in a row that is dropped."""


def as_pandas(rows: Rows) -> pd.DataFrame:
    """Return rows as a pandas frame with columns of Arrow types, each in one chunk as Spark needs
    it. The columns are named by their indices: Spark takes such columns by position, and would copy
    named ones.
    """
    import pandas as pd

    if isinstance(rows, pa.Table):
        rows = rows.combine_chunks()
    columns = enumerate(map(pd.arrays.ArrowExtensionArray, rows.columns))
    return pd.DataFrame(dict(columns), copy=False)


@dataclass
class BlobEmission(Emission):
    """Changes as Arrow IPC streams, which carry every type, in rows of ``PACKED``.

    The last row also has the counts of ``counts`` (metrics of rows without use) and the report.
    """

    output: Output
    counts: Sequence[str]
    reader: int
    """The address of the streams: a result's, or the index of the stage itself if its flat rows are
    unpacked next.
    """

    def __post_init__(self) -> None:
        """Set ``columns``: those of ``PACKED``."""
        self.columns = PACKED_COLUMNS

    def rows(self, done: BatchOutcome, bucket: int, high_time_us: int) -> Iterator[Rows]:
        """Yield rows of ``PACKED``, each with changes of ``done`` as an Arrow IPC stream in
        ``payload``: at most 100,000, or 32 MiB of them. The last row has the counts and the report
        in ``counted``; without changes it has them alone.

        ``bucket``: the label that the rows carry. ``high_time_us`` is not used. Without changes,
        metrics in ``counts`` and reports, those of fused stages too, nothing is yielded.
        """
        tag, last = Tag(self.reader, 0, bucket, 0), None
        for rows in _split_changes(done.changes):
            if last is not None:
                yield pack_whole_table(last, bucket, tag)
                tag = replace(tag, number=tag.number + 1)
            last = self.output.rows_of_changes(rows)
        if last is not None or self.counts or done.report is not None or any(done.fused):
            counted = counted_text(done.counts, self.counts, done.report, done.fused)
            yield pack_whole_table(last, bucket, replace(tag, counted=counted))


@dataclass
class ToBuckets(Emission):
    """Changes as the packed rows of a stage's input, partitioned over its buckets by a hash.

    Every bucket gets the time, and one gets the counts of ``counts`` and the report.
    """

    labels: Sequence[int]
    """The label of each bucket of the reading stage, by the bucket's index."""
    by: str
    """The name of the int64 column with the hash that chooses a change's bucket."""
    reader: int
    """The index of the reading stage among all stages and relays."""
    number: int
    """The index of the input among those of the reading stage."""
    counts: Sequence[str]
    """The metrics of rows without use."""

    def __post_init__(self) -> None:
        """Set ``columns``: those of ``PACKED``."""
        self.columns = PACKED_COLUMNS

    def rows(self, done: BatchOutcome, bucket: int, high_time_us: int) -> Iterator[Rows]:
        """Yield a batch of ``PACKED`` rows for each part of ``done``: at most 100,000 changes, or
        32 MiB of them. It has one row per bucket of the reader, with the changes whose hash in the
        column ``by`` falls to that bucket. A bucket without changes has a null ``payload``. The
        last part brings the counts and the report. Without changes, there is one part, all without
        payload.

        All rows bring ``high_time_us``: the largest timestamp of the emitting bucket's input, in
        microseconds, or ``NO_TIME``. ``bucket``: the label of the bucket that emits, one of
        ``labels``; else a ``ValueError``.
        """
        tag = Tag(self.reader, self.number, self.labels.index(bucket), 0, high_time_us)
        last = None
        for rows in _split_changes(done.changes):
            if last is not None:
                yield pack_table(last, self.labels, tag, by=self.by)
                tag = replace(tag, number=tag.number + 1)
            last, tag = rows, replace(tag, stairs=stairs_of(rows))
        counted = counted_text(done.counts, self.counts, done.report, done.fused)
        yield pack_table(last, self.labels, replace(tag, counted=counted), by=self.by)


class Reading(NamedTuple):
    """An input that reads a stage's changes by key, as a worker packs them for it."""

    columns: TravelColumns
    packer: Packer


@dataclass
class ToReaders(Emission):
    """Changes as the packed rows of all inputs that read the stage by key, and of a result.

    For a stage whose operator runs its readers as well, in one bucket.
    """

    output: Output
    """The changelog's rows. No selection computes."""
    result: Carrier | None
    """The packing of the changelog as a result; None if it is no result."""
    readings: Sequence[Reading]

    def __post_init__(self) -> None:
        """Set ``columns``: those of ``PACKED``."""
        self.columns = PACKED_COLUMNS

    def rows(self, done: BatchOutcome, bucket: int, high_time_us: int) -> Iterator[Rows]:
        """Yield batches of ``PACKED``, each of one row: the changes of ``done`` for one input, or
        as a result. Each comes whenever about 32 MiB are held for it, and at the end. They bring
        the counts of rows that their input cannot use. Those of ``done`` are left to the caller.

        Without changes nothing is yielded. ``bucket`` and ``high_time_us`` are not used.
        """
        inputs = [(of.columns, of.packer.begin_partition(0)) for of in self.readings]
        result = None if self.result is None else self.result.begin_partition(0)
        for changes in _split_changes(done.changes):
            by_name = self.output.rows_by_name(changes) if inputs else changes
            for columns, open_pack in inputs:
                for batch in columns.travelling_rows(by_name, spark_hash).to_batches():
                    yield from open_pack.add_batch(batch)
            if result is not None:
                assert self.result is not None
                rows = self.output.rows_of_changes(changes).select(self.result.schema.names)
                for batch in rows.to_batches():
                    yield from result.add_batch(batch)
        for _, open_pack in inputs:
            yield from open_pack.flush()
        if result is not None:
            yield from result.flush()


def _split_changes(changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield all changes in order, in tables of at most ``_OUTPUT_ROWS_MAX`` (100,000) rows and
    ``_OUTPUT_BYTES_MAX`` bytes (32 MiB), but of at least one row. A table of ``changes`` without
    rows is yielded, too.
    """
    for table in changes:
        yield from parts_of(table, _OUTPUT_BYTES_MAX, _OUTPUT_ROWS_MAX)


def payloads(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the table in each row of ``PACKED``, in order: its column ``payload``, an Arrow IPC
    stream. Rows with a null there are skipped. A large row comes where the last of its parts comes.
    """
    joiner = PartJoiner()
    for batch in batches:
        columns = (batch[name].to_pylist() for name in ("facts", "payload"))
        for facts, payload in zip(*columns, strict=True):
            whole = joiner.add(facts, payload)
            if whole is not None and whole[1] is not None:
                yield from_ipc(whole[1])
    joiner.finish()


def cut_large(rows: Rows) -> Rows:
    """Return rows of ``PACKED`` with each one of more than ``UNIT_BYTES`` of payload in parts, in
    order. All parts have its address, and the first its ``counted``. Parts, which pass from other
    stages, and rows with another schema are returned as they are.
    """
    if not rows.schema.equals(PACKED):
        return rows
    longest = pc.max(pc.binary_length(rows["payload"])).as_py()
    if longest is None or longest <= UNIT_BYTES:
        return rows
    columns = {name: list[Any]() for name in PACKED.names}
    for row in rows.to_pylist():
        facts, payload = row["facts"], row["payload"]
        parts = [(facts, payload)]
        if payload is not None and len(payload) > UNIT_BYTES and not is_part(facts):
            parts = [*cut(facts, payload, UNIT_BYTES)]
        for part_facts, part_payload in parts:
            for name, value in (row | {"facts": part_facts, "payload": part_payload}).items():
                columns[name].append(value)
            row["counted"] = None
    return pa.record_batch([pa.array(columns[f.name], f.type) for f in PACKED], schema=PACKED)
