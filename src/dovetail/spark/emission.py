"""How a bucket's changes leave a stage on Spark, and how another step reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from dovetail.engine.arranged import stairs_of
from dovetail.engine.fragment import Processed
from dovetail.engine.pack import PACKED, Tag, packed, whole
from dovetail.physical.output import Output
from dovetail.plan.arrow import spark_schema
from dovetail.state.ipc import from_ipc, parts_of

if TYPE_CHECKING:
    import pandas as pd

PACKED_COLUMNS = spark_schema(PACKED)

_OUTPUT_ROWS_MAX = 100_000
_OUTPUT_BYTES_MAX = 32 << 20


class Emission(ABC):
    """How a bucket's changes leave a stage: rows of ``columns``."""

    columns: StructType

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
    """As Arrow IPC streams, which carry every type, addressed to ``reader``, and a last row with
    what is counted by ``counts``, metrics of rows that had no use.
    """

    output: Output
    counts: Sequence[str]
    reader: int

    def __post_init__(self) -> None:
        self.columns = PACKED_COLUMNS

    def frames(self, done: Processed, bucket: int, high_time_us: int) -> Iterator[pd.DataFrame]:
        """Rows of ``PACKED``, one per stream."""
        tag = Tag(self.reader, 0, bucket, 0)
        for number, rows in enumerate(_parts(done.changes)):
            yield whole(self.output.rows(rows), bucket, replace(tag, number=number)).to_pandas()
        if self.counts:
            yield whole(None, bucket, tag.counting(done.counts, self.counts)).to_pandas()


@dataclass
class ToBuckets(Emission):
    """As the packed rows of a stage's input, partitioned over its buckets by the hash in column
    ``by``. ``reader``, ``number``: the stage's number and its input's. Every bucket hears the time,
    and one what is counted by ``counts``.
    """

    labels: Sequence[int]
    by: str
    reader: int
    number: int
    counts: Sequence[str]

    def __post_init__(self) -> None:
        self.columns = PACKED_COLUMNS

    def frames(self, done: Processed, bucket: int, high_time_us: int) -> Iterator[pd.DataFrame]:
        """Rows of ``PACKED``."""
        bucket, piece = self.labels.index(bucket), 0
        tag = Tag(self.reader, self.number, bucket, 0, high_time_us)
        for rows in _parts(done.changes):
            rises = replace(tag, number=piece, stairs=stairs_of(rows))
            message = packed(rows, self.labels, rises, by=self.by)
            yield message.to_pandas()
            piece += 1
        # The last piece has no rows; it brings the time, and what the bucket has counted.
        tag = replace(tag, number=piece).counting(done.counts, self.counts)
        yield packed(None, self.labels, tag).to_pandas()


def _parts(changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
    for table in changes:
        yield from parts_of(table, _OUTPUT_BYTES_MAX, _OUTPUT_ROWS_MAX)


def payloads(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The tables among rows of ``PACKED``."""
    for batch in batches:
        for payload in batch.column("payload"):
            if payload.is_valid:
                yield from_ipc(payload.as_buffer())
