"""How a bucket's changes leave a stage on Spark, and how another step reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from dovetail.engine.fragment import Processed
from dovetail.engine.pack import PACKED, Tag, packed
from dovetail.physical.output import Output
from dovetail.state.ipc import from_ipc, parts_of, to_ipc

if TYPE_CHECKING:
    import pandas as pd

_OUTPUT_ROWS_MAX = 100_000
_OUTPUT_BYTES_MAX = 32 << 20
CHANGES, PAYLOAD = "changes", "payload"


class Emission(ABC):
    """How a bucket's changes leave a stage: rows of ``columns``."""

    columns: StructType | str

    @abstractmethod
    def frames(self, done: Processed, bucket: int, high_time_us: int) -> Iterator[pd.DataFrame]:
        """What one bucket, known by its label, has made of a batch; ``high_time_us``: the largest
        time it has read.
        """


@dataclass
class Rows(Emission):
    """As the rows of a query's output."""

    output: Output

    def __post_init__(self) -> None:
        self.columns = self.output.columns

    def frames(self, done: Processed, bucket: int, high_time_us: int) -> Iterator[pd.DataFrame]:
        """Pandas columns of Arrow types."""
        import pandas as pd

        for rows in _parts(done.changes):
            yield self.output.rows(rows).to_pandas(types_mapper=pd.ArrowDtype)


@dataclass
class Blobs(Emission):
    """As Arrow IPC streams, which carry every type, and a column for each of ``counts``, metrics of
    rows that had no use.
    """

    output: Output
    counts: Sequence[str]

    def __post_init__(self) -> None:
        names = map(count_column, range(len(self.counts)))
        counts = [StructField(name, LongType()) for name in names]
        self.columns = StructType([StructField(CHANGES, BinaryType()), *counts])

    def frames(self, done: Processed, bucket: int, high_time_us: int) -> Iterator[pd.DataFrame]:
        """One row per stream, and a last one that counts."""
        import pandas as pd

        columns = [count_column(number) for number in range(len(self.counts))]
        none = {name: [0] for name in columns}
        for rows in _parts(done.changes):
            yield pd.DataFrame({CHANGES: [to_ipc(self.output.rows(rows))], **none})
        counted = ([done.counts[name]] for name in self.counts)
        yield pd.DataFrame({CHANGES: [None], **dict(zip(columns, counted, strict=True))})


def count_column(number: int) -> str:
    """The column of a metric among ``Blobs``."""
    return f"count_{number}"


@dataclass
class ToBuckets(Emission):
    """As the packed rows of another stage's input ``number``, partitioned over its buckets by the
    hash in column ``by``. Every bucket hears the time.
    """

    labels: Sequence[int]
    by: str
    number: int

    def __post_init__(self) -> None:
        self.columns = PACKED

    def frames(self, done: Processed, bucket: int, high_time_us: int) -> Iterator[pd.DataFrame]:
        """Rows of ``PACKED``."""
        bucket, piece = self.labels.index(bucket), 0
        tag = Tag(self.number, bucket, 0, high_time_us)
        for rows in _parts(done.changes):
            message = packed(rows, self.labels, replace(tag, number=piece), by=self.by)
            yield message.to_pandas()
            piece += 1
        # The last piece has no rows; it brings the time, and what the bucket has counted.
        tag = replace(tag, number=piece, dropped=done.counts.total())
        yield packed(None, self.labels, tag).to_pandas()


def _parts(changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
    for table in changes:
        yield from parts_of(table, _OUTPUT_BYTES_MAX, _OUTPUT_ROWS_MAX)


def payloads(batches: Iterator[pa.RecordBatch], column: str) -> Iterator[pa.Table]:
    """The tables in a column of Arrow IPC streams, nulls left out."""
    for batch in batches:
        for payload in batch.column(column):
            if payload.is_valid:
                yield from_ipc(payload.as_buffer())
