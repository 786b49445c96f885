"""The forms in which a bucket's changes leave a stage on Spark, for the next step to read."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from dovetail.base.columns import COUNTED
from dovetail.engine.arrival import stairs_of
from dovetail.engine.fragment import Processed
from dovetail.engine.pack import PACKED, Tag, packed, whole
from dovetail.physical.output import Output
from dovetail.plan.types.arrow import spark_schema
from dovetail.state.ipc import from_ipc, parts_of

if TYPE_CHECKING:
    import pandas as pd

PACKED_COLUMNS = spark_schema(PACKED)

_OUTPUT_ROWS_MAX = 100_000
_OUTPUT_BYTES_MAX = 32 << 20
_COPIED_ROWS_MAX = 5_000


class Emission(ABC):
    """The form in which a bucket's changes leave a stage: rows of ``columns``."""

    columns: StructType

    @abstractmethod
    def frames(self, done: Processed, bucket: int, high_time_us: int) -> Iterator[pd.DataFrame]:
        """Yield the result of one bucket, known by its label, for a batch.

        ``high_time_us``: the largest time that the batch has.
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
        self.columns = StructType([*self.output.columns, StructField(COUNTED, StringType())])

    def frames(self, done: Processed, bucket: int, high_time_us: int) -> Iterator[pd.DataFrame]:
        """Yield the changes as frames with pandas columns of Arrow types. The last frame ends with
        a row without a change that has the counts and the report as JSON. That row has a frame of
        its own where copying the last changes would cost more.
        """
        schema = self.output.schema.append(pa.field(COUNTED, pa.string()))
        last = schema.empty_table()
        for rows in _parts(done.changes):
            if len(last):
                yield _in_pandas(last)
            table = self.output.rows(rows)
            last = table.append_column(schema.field(COUNTED), pa.nulls(len(table), pa.string()))
        if done.report is not None:
            if len(last) > _COPIED_ROWS_MAX:
                yield _in_pandas(last)
                last = schema.empty_table()
            last = pa.concat_tables([last, self._counted(done, schema)]).combine_chunks()
        if len(last):
            yield _in_pandas(last)

    def _counted(self, done: Processed, schema: pa.Schema) -> pa.Table:
        """Return the row without a change that has the counts and the report."""
        assert done.report is not None
        counts, examples = done.counts.number, done.counts.examples
        pairs = json.dumps([[counts[name], examples.get(name)] for name in self.counts])
        separator = ", " if self.counts else ""
        counted = f"{pairs[:-1]}{separator}{done.report.as_text()}]"
        empty = [
            pa.nulls(1, field.type) if declared.nullable else _ZERO.cast(field.type)
            for field, declared in zip(self.output.schema, self.output.columns, strict=True)
        ]
        return pa.table([*empty, pa.array([counted])], schema=schema)


_ZERO = pa.array([0])
"""A value for columns without nulls, in a row that is dropped."""


def _in_pandas(table: pa.Table) -> pd.DataFrame:
    import pandas as pd

    return table.to_pandas(types_mapper=pd.ArrowDtype)


@dataclass
class BlobEmission(Emission):
    """Changes as Arrow IPC streams, which carry every type.

    A last row has the counts of ``counts``, metrics of rows without use, and the report.
    """

    output: Output
    counts: Sequence[str]
    reader: int
    """The address of the streams."""

    def __post_init__(self) -> None:
        self.columns = PACKED_COLUMNS

    def frames(self, done: Processed, bucket: int, high_time_us: int) -> Iterator[pd.DataFrame]:
        """Yield rows of ``PACKED``, one per stream of changes. A last row has the counts and the
        report alone; it is missing if there are none.
        """
        tag = Tag(self.reader, 0, bucket, 0)
        for piece_index, rows in enumerate(_parts(done.changes)):
            yield whole(
                self.output.rows(rows), bucket, replace(tag, number=piece_index)
            ).to_pandas()
        if self.counts or done.report is not None:
            tag = tag.counting(done.counts, self.counts).reporting(done.report)
            yield whole(None, bucket, tag).to_pandas()


@dataclass
class ToBuckets(Emission):
    """Changes as the packed rows of a stage's input, partitioned over its buckets by a hash.

    Every bucket gets the time, and one gets the counts of ``counts`` and the report.
    """

    labels: Sequence[int]
    """The labels of the stage's buckets."""
    by: str
    """The name of the column with the hash."""
    reader: int
    """The number of the stage."""
    number: int
    """The number of the stage's input."""
    counts: Sequence[str]

    def __post_init__(self) -> None:
        self.columns = PACKED_COLUMNS

    def frames(self, done: Processed, bucket: int, high_time_us: int) -> Iterator[pd.DataFrame]:
        """Yield rows of ``PACKED``, one per bucket for each part of the changes. A last part has no
        rows; it brings the time, the counts and the report.
        """
        bucket, piece = self.labels.index(bucket), 0
        tag = Tag(self.reader, self.number, bucket, 0, high_time_us)
        for rows in _parts(done.changes):
            rises = replace(tag, number=piece, stairs=stairs_of(rows))
            message = packed(rows, self.labels, rises, by=self.by)
            yield message.to_pandas()
            piece += 1
        tag = replace(tag, number=piece).counting(done.counts, self.counts)
        tag = tag.reporting(done.report)
        yield packed(None, self.labels, tag).to_pandas()


def _parts(changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the changes in tables of limited rows and bytes."""
    for table in changes:
        yield from parts_of(table, _OUTPUT_BYTES_MAX, _OUTPUT_ROWS_MAX)


def payloads(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the tables in rows of ``PACKED``; rows without a payload are skipped."""
    for batch in batches:
        for payload in batch.column("payload"):
            if payload.is_valid:
                yield from_ipc(payload.as_buffer())
