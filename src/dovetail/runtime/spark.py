"""Stages on Spark: pack, a stage's work per bucket, unpack, in a streaming query or over static
frames.

In a streaming query the state store holds each bucket's blobs and commits them with the
micro-batch; its exactly-once promise is the stage's. Values cross as Arrow and never become Python
objects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    LongType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dovetail.columns import HASH, PLACE
from dovetail.kernels.hashing import spark_preimage
from dovetail.kernels.timeline import NO_TIME
from dovetail.plan.nodes import Node, origins
from dovetail.plan.output import Output, output_of
from dovetail.plan.spec import Eventual, Regroup, StageSpec
from dovetail.plan.stages import Stage
from dovetail.runtime import delta_spark, project, task
from dovetail.runtime.blame import blamed
from dovetail.runtime.job import COUNTS
from dovetail.runtime.merge import merge
from dovetail.runtime.pack import PACKED, Packer, Tag, packed, packing, unpack_piece
from dovetail.runtime.spool import Spool
from dovetail.runtime.stage import SLICE_BYTES, Piece, Processed, process
from dovetail.runtime.wire import wire_rows
from dovetail.state.ipc import from_ipc, parts_of, to_ipc
from dovetail.state.segment import SegmentCache

if TYPE_CHECKING:
    import pandas as pd

_OUTPUT_ROWS_MAX = 100_000
_OUTPUT_BYTES_MAX = 32 << 20
_PAYLOAD = StructType(
    [
        StructField("changes", BinaryType()),
        *(StructField(name, LongType()) for name in COUNTS),
    ]
)
_FLAT = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    NumericType,
    StringType,
    TimestampType,
)


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
    """As Arrow IPC streams, which carry every type; ``unpack`` makes rows of them."""

    output: Output

    def __post_init__(self) -> None:
        self.columns = _PAYLOAD

    def frames(self, done: Processed, bucket: int, high_time_us: int) -> Iterator[pd.DataFrame]:
        """One row per stream, and a last one that counts."""
        import pandas as pd

        none = {name: [0] for name in COUNTS}
        for rows in _parts(done.changes):
            yield pd.DataFrame({"changes": [to_ipc(self.output.rows(rows))], **none})
        counts = {name: [done.counts[name]] for name in COUNTS}
        yield pd.DataFrame({"changes": [None], **counts})


@dataclass
class ToBuckets(Emission):
    """As the packed rows of a next step's first input, dealt out to its buckets by the hash in
    column ``by``. Every bucket hears the time.
    """

    labels: Sequence[int]
    by: str

    def __post_init__(self) -> None:
        self.columns = PACKED

    def frames(self, done: Processed, bucket: int, high_time_us: int) -> Iterator[pd.DataFrame]:
        """Rows of ``PACKED``."""
        bucket, number = self.labels.index(bucket), 0
        tag = Tag(0, bucket, 0, high_time_us)
        for rows in _parts(done.changes):
            told = packed(rows, self.labels, replace(tag, number=number), by=self.by)
            yield told.to_pandas()
            number += 1
        # The last piece has no rows; it brings the time, and what the bucket has counted.
        tag = replace(tag, number=number, dropped=done.counts["ungrouped"])
        yield packed(None, self.labels, tag).to_pandas()


def _parts(changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
    for table in changes:
        yield from parts_of(table, _OUTPUT_BYTES_MAX, _OUTPUT_ROWS_MAX)


@dataclass
class Run(ABC):
    """One way to run stages. ``labels``: the number under which each bucket is shuffled;
    ``partitions``: to how many tasks; ``flat``: whether flat rows may leave a stage as they are.
    """

    labels: Sequence[int]
    partitions: int
    _metrics: Counter[str] = field(default_factory=Counter, init=False)

    flat: ClassVar[bool]

    def metric(self, name: str) -> str:
        """A name for an observed metric that no other of the query has."""
        self._metrics[name] += 1
        return name if self._metrics[name] == 1 else f"{name}#{self._metrics[name]}"

    @abstractmethod
    def staged(self, packed: DataFrame, spec: StageSpec, emission: Emission) -> DataFrame:
        """What a stage emits of its packed inputs."""


def changelog(stage: Stage, run: Run) -> DataFrame:
    """The changelog of a stage's node.

    Flat columns leave a stage of a query as they are. Others, which pandas' Arrow types do not
    carry through, leave it in blobs that a second step unpacks; and so do those of a stage that
    counts, in observed metrics ``<name>.late`` and ``<name>.astray``.
    """
    packed = pack_inputs(stage, run)
    output = output_of(stage)
    operator = stage.spec.operator
    if isinstance(operator, Eventual):
        schema = _in_session_timezone(packed, output)
        metric = run.metric(f"{operator.name}.lookups")
        rows = delta_spark.joined(
            packed, stage.spec, output, schema, partitions=run.partitions, metric=metric
        )
    elif stage.merges:
        results = run.staged(packed, stage.spec, ToBuckets(run.labels, PLACE))
        rows = merged(results.repartition(run.partitions, "bucket"), stage.spec, output)
    elif not stage.counts and run.flat and _is_flat(output):
        rows = run.staged(packed, stage.spec, Rows(output))
    else:
        blobs = run.staged(packed, stage.spec, Blobs(output))
        for name, count in stage.counts.items():
            blobs = observed(blobs, run.metric(name), count)
        rows = unpack(blobs, output)
    return rows if output.held is not None else project.changelog(rows, stage)


def pack_inputs(stage: Stage, run: Run) -> DataFrame:
    """All inputs of a stage as rows of ``PACKED``; what a first stage sends on has gone through it.

    What is dropped, for a null in the key or a stream's record without a value, is counted, as
    observed metric ``<name>.dropped``; a foreign key that fails, as ``<name>.failed``.
    """
    upstream = {number: changelog(made, run) for number, made in stage.upstream}
    packed = []
    for number, (input_, own) in enumerate(zip(stage.inputs, stage.spec.sources, strict=True)):
        first = stage.first if number == 0 else None
        spec, keys = (own, stage.spec.keys) if first is None else (first.sources[0], first.keys)
        rows = wire_rows(input_, spec, upstream.get(number))
        by = _settled_by(stage, number)
        rows = rows.mapInArrow(packing(Packer(number, spec, keys, run.labels, by)), PACKED)
        for count in ("dropped", "failed") if spec.fallible else ("dropped",):
            rows = observed(rows, run.metric(f"{spec.name}.{count}"), count)
        if first is not None:
            rows = run.staged(rows, first, ToBuckets(run.labels, HASH))
            if isinstance(first.operator, Regroup):
                rows = observed(rows, run.metric(f"{spec.name}.ungrouped"), "dropped")
        elif by:
            rows = delta_spark.by_primary_key(rows, stage.spec, run.labels, run.partitions)
        packed.append(rows)
    return reduce(DataFrame.union, packed)


def observed(rows: DataFrame, metric: str, count: str) -> DataFrame:
    """The rows, with the sum of a column of theirs as an observed metric."""
    return rows.observe(metric, F.coalesce(F.sum(count), F.lit(0)).alias("records"))


def _is_flat(output: Output) -> bool:
    return all(isinstance(f.dataType, _FLAT) for f in output.columns)


def _settled_by(stage: Stage, number: int) -> tuple[str, ...]:
    """The columns by which an input's changes meet before the stage: the primary key of a table
    whose join key may change.
    """
    operator = stage.spec.operator
    moving = isinstance(operator, Eventual) and operator.moving and number == 0
    return tuple(stage.inputs[number].source.key.names) if moving else ()


def bucket_labels(buckets: int) -> list[int]:
    """The number under which each bucket is shuffled and its state is kept: the one whose hash is
    the bucket's own number.

    So bucket b goes to partition ``b % partitions``, as evenly as can be for any number of
    partitions, and a bucket's state is found again whatever the session says of them.
    """
    return [spark_preimage(bucket) for bucket in range(buckets)]


@cache
def _number_of(buckets: int) -> dict[int, int]:
    """The bucket of each label; once in a worker."""
    return {label: bucket for bucket, label in enumerate(bucket_labels(buckets))}


def unpack(staged: DataFrame, output: Output) -> DataFrame:
    """A stage's rows from the blobs that it emits."""
    schema = _in_session_timezone(staged, output)

    @task.mapping
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in _payloads(batches, "changes"):
            yield from table.cast(schema).to_batches()

    return staged.mapInArrow(rows, output.columns)


def merged(results: DataFrame, spec: StageSpec, output: Output) -> DataFrame:
    """The rows of a join by foreign key from its packed results, each primary key's in order."""
    schema = _in_session_timezone(results, output)

    @task.mapping
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with blamed(spec.title, lambda _: ", ".join(s.title for s in spec.sources)):
            for table in merge(_payloads(batches, "payload"), spec, task.micro_batch()):
                yield from output.rows(table).cast(schema).to_batches()

    return results.mapInArrow(rows, output.columns)


def _payloads(batches: Iterator[pa.RecordBatch], column: str) -> Iterator[pa.Table]:
    """The tables in a column of Arrow IPC streams, nulls left out."""
    for batch in batches:
        for payload in batch.column(column):
            if payload.is_valid:
                yield from_ipc(payload.as_buffer())


def _in_session_timezone(frame: DataFrame, output: Output) -> pa.Schema:
    timezone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    return in_timezone(output.schema, str(timezone))


def in_timezone(schema: pa.Schema, timezone: str) -> pa.Schema:
    """The schema with its timestamps, nested ones too, labelled with a time zone."""
    return pa.schema([pa.field(f.name, _type_in_timezone(f.type, timezone)) for f in schema])


def _type_in_timezone(type_: pa.DataType, timezone: str) -> pa.DataType:
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp(type_.unit, timezone)
    if pa.types.is_struct(type_):
        return pa.struct([_field_in_timezone(field, timezone) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(_field_in_timezone(type_.value_field, timezone))
    if pa.types.is_map(type_):
        return pa.map_(
            _field_in_timezone(type_.key_field, timezone),
            _field_in_timezone(type_.item_field, timezone),
        )
    return type_


def _field_in_timezone(field: pa.Field, timezone: str) -> pa.Field:
    return field.with_type(_type_in_timezone(field.type, timezone))


@dataclass
class Streaming(Run):
    """In a streaming query.

    ``timers``: rows that wait for another source are let through when their time has come even if
    no data does. A query with timers runs micro-batches without end, so it never stops by itself.
    ``stateful``: how many stages with state have been made.
    """

    timers: bool
    stateful: int = field(default=0, init=False)

    flat = True

    def staged(self, packed: DataFrame, spec: StageSpec, emission: Emission) -> DataFrame:
        """What a stage emits of its packed inputs."""
        self.stateful += 1
        timers = self.timers and spec.align_us is not None
        if spec.align_us is not None:
            # The time of the micro-batch, which is the same when a batch is run again. Only where
            # rows may wait: the projection copies every blob.
            packed = packed.withColumn("now_us", F.unix_micros(F.current_timestamp()))
        return packed.groupBy("bucket").transformWithStateInPandas(
            BucketProcessor(spec, emission, timers=timers),
            emission.columns,
            "append",
            "processingTime" if timers else "none",
        )


class BucketProcessor(StatefulProcessor):
    """Runs a stage for each bucket of a partition; its one state variable holds the blobs."""

    def __init__(self, spec: StageSpec, emission: Emission, *, timers: bool) -> None:
        self._spec = spec
        self._emission = emission
        self._timers = timers

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state variable."""
        self._handle = handle
        self._blobs = StoreBlobs(
            handle.getMapState(
                "blobs",
                StructType([StructField("name", StringType())]),
                StructType([StructField("blob", BinaryType())]),
            )
        )

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """One micro-batch of one bucket."""
        spool, now_us = Spool(task.directory("dovetail-spool"), SLICE_BYTES), 0
        for frame in rows:
            for row in frame.itertuples(index=False):
                spool.add(unpack_piece(row), row.payload)
                now_us = 0 if self._spec.align_us is None else row.now_us
        yield from self._run(key, spool.pieces, now_us)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Rows have waited for another source as long as they may."""
        yield from self._run(key, [], 1000 * timerValues.getCurrentProcessingTimeInMs())

    def _run(self, key: Any, pieces: Sequence[Piece], now_us: int) -> Iterator[pd.DataFrame]:
        bucket = _number_of(self._spec.buckets)[key[0]]
        done = process(self._spec, pieces, self._blobs, segment_cache(), now_us, bucket)
        if self._timers and done.waiting:
            assert self._spec.align_us is not None
            self._handle.registerTimer((now_us + self._spec.align_us) // 1000 + 1)
        yield from self._emission.frames(done, key[0], high_time_us(pieces))

    def close(self) -> None:
        """Nothing to release: what is open belongs to the worker process."""
        task.freeze_imports()


def high_time_us(pieces: Sequence[Piece]) -> int:
    """The largest time that a bucket has heard of in a batch."""
    return max((piece.high_time_us for piece in pieces), default=NO_TIME)


class StoreBlobs:
    """A bucket's blobs in Spark's state store."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def get(self, name: str) -> bytes | None:
        """The blob, or None where there is none."""
        found = self._state.getValue((name,))
        return None if found is None else bytes(found[0])

    def put(self, name: str, blob: bytes) -> None:
        """Store or replace a blob."""
        self._state.updateValue((name,), (blob,))

    def delete(self, name: str) -> None:
        """Remove a blob."""
        self._state.removeKey((name,))


_CACHES: dict[Path, SegmentCache] = {}


def segment_cache() -> SegmentCache:
    """This worker process's open segments."""
    directory = task.directory("dovetail-segments")
    if directory not in _CACHES:
        _CACHES[directory] = SegmentCache(directory)
    return _CACHES[directory]


def session_of(node: Node) -> SparkSession:
    """The Spark session of a node's inputs."""
    frame = origins(node)[0].frame
    assert frame is not None
    session: SparkSession = frame.sparkSession
    return session
