"""A stage on Spark: pack, ``transformWithState`` per bucket, unpack.

The state store holds each bucket's blobs and commits them with the micro-batch; its exactly-once
promise is the stage's. Values cross as Arrow and never become Python objects.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dovetail.columns import (
    quoted,
)
from dovetail.plan.nodes import Node, sources
from dovetail.plan.output import Output, output_of
from dovetail.plan.spec import StageSpec
from dovetail.plan.stages import Input, Stage
from dovetail.runtime import project
from dovetail.runtime.pack import PACKED, Packer, packing, to_ipc, unpack_piece
from dovetail.runtime.stage import Piece, process
from dovetail.state.segment import SegmentCache

if TYPE_CHECKING:
    import pandas as pd

_OUTPUT_ROWS_MAX = 100_000
_PAYLOAD = StructType([StructField("changes", BinaryType())])
_FLAT = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    NumericType,
    StringType,
    TimestampType,
)


def changelog(stage: Stage, partitions: int, *, timers: bool) -> DataFrame:
    """The changelog of a stage's node as a streaming frame.

    ``timers``: rows that wait for another source are let through when their time has come even if
    no data does. A query with timers runs micro-batches without end, so it never stops by itself.

    Flat columns leave the stage as they are. Others, which pandas' Arrow types do not carry
    through, leave it in blobs that a second step unpacks.
    """
    spark = session_of(stage.node)
    timers = timers and stage.spec.align_us is not None
    packed = pack_inputs(stage, bucket_labels(spark, stage.spec.buckets, partitions))
    # The time of the micro-batch, which is the same when a batch is run again.
    packed = packed.withColumn("now_us", F.unix_micros(F.current_timestamp()))
    output = output_of(stage)
    flat = all(isinstance(f.dataType, _FLAT) for f in output.columns)
    staged = packed.groupBy("bucket").transformWithStateInPandas(
        BucketProcessor(stage.spec, output, flat=flat, timers=timers),
        output.columns if flat else _PAYLOAD,
        "append",
        "processingTime" if timers else "none",
    )
    rows = staged if flat else unpack(staged, output)
    return rows if output.held is not None else project.changelog(rows, stage)


def pack_inputs(stage: Stage, labels: Sequence[int]) -> DataFrame:
    """All inputs of a stage as rows of ``PACKED``.

    What is dropped, for a null in the key or a stream's record without a value, is counted, as
    observed metric ``<name>.dropped``.
    """
    packed = []
    for number, (input_, spec) in enumerate(zip(stage.inputs, stage.spec.sources, strict=True)):
        packer = Packer(number, spec, stage.spec.keys, labels)
        rows = wire_rows(input_, null_keys=spec.null_keys or spec.keeps_time).mapInArrow(
            packing(packer), PACKED
        )
        dropped = F.coalesce(F.sum("dropped"), F.lit(0)).alias("records")
        packed.append(rows.observe(f"{spec.name}.dropped", dropped))
    return reduce(DataFrame.union, packed)


def wire_rows(input_: Input, *, null_keys: bool) -> DataFrame:
    """An input's rows in the columns of ``SourceSpec.wire_schema``; without ``_deleted`` where the
    source has no tombstones.

    ``null_keys``: such rows travel too, spread over the buckets by their times. The columns' names
    are plain, for ``mapInArrow`` takes the dots of a user's names for nesting.
    """
    source = input_.source
    assert source.frame is not None
    assert source.timestamp is not None
    keys = [_canonical(F.col(quoted(f.name)), f.dataType) for f in input_.key_fields]
    hash_ = F.xxhash64(*keys)
    if null_keys:
        null = reduce(Column.__or__, (key.isNull() for key in keys))
        hash_ = F.when(null, F.xxhash64(source.timestamp)).otherwise(hash_)
    columns = [hash_, F.unix_micros(source.timestamp)]
    if source.deleted is not None:
        columns.append(F.coalesce(source.deleted, F.lit(False)))
    columns += [*keys, *(F.col(quoted(f.name)) for f in input_.value_fields)]
    for position in (source.sequence, source.log_partition):
        if position is not None:
            columns.append(position.cast(LongType()))
    plain = (column.alias(f"_c{number}") for number, column in enumerate(columns))
    return source.frame.select(*plain)


def bucket_labels(spark: SparkSession, buckets: int, partitions: int) -> list[int]:
    """A number per bucket such that Spark's hash partitioning deals buckets out evenly.

    Bucket b goes to partition ``b % partitions``; the numbers are the smallest that do so.
    """
    numbers = spark.range(32 * max(buckets, partitions)).select(F.col("id").cast("int"))
    placed = numbers.select("id", F.pmod(F.hash("id"), F.lit(partitions))).collect()
    free: dict[int, list[int]] = {partition: [] for partition in range(partitions)}
    for number, partition in sorted(placed):
        free[partition].append(number)
    return [free[bucket % partitions].pop(0) for bucket in range(buckets)]


def unpack(staged: DataFrame, output: Output) -> DataFrame:
    """A stage's rows from the blobs that it emits."""
    timezone = staged.sparkSession.conf.get("spark.sql.session.timeZone")
    schema = in_timezone(output.schema, str(timezone))

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for payload in batch.column(0):
                table = pa.ipc.open_stream(payload.as_buffer()).read_all()
                yield from table.cast(schema).to_batches()

    return staged.mapInArrow(rows, output.columns)


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


class BucketProcessor(StatefulProcessor):
    """Runs a stage for each bucket of a partition; its one state variable holds the blobs."""

    def __init__(self, spec: StageSpec, output: Output, *, flat: bool, timers: bool) -> None:
        self._spec = spec
        self._timers = timers
        self._output = output
        self._emitted = _flat_frame if flat else _payload_frame

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
        packed = [row for frame in rows for row in frame.itertuples(index=False)]
        pieces = [
            unpack_piece(row.source, row.partition, row.number, row.high_time_us, row.payload)
            for row in packed
        ]
        yield from self._run(pieces, packed[0].now_us)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Rows have waited for another source as long as they may."""
        yield from self._run([], 1000 * timerValues.getCurrentProcessingTimeInMs())

    def _run(self, pieces: Sequence[Piece], now_us: int) -> Iterator[pd.DataFrame]:
        done = process(self._spec, pieces, self._blobs, segment_cache(), now_us)
        if self._timers and done.waiting:
            assert self._spec.align_us is not None
            self._handle.registerTimer((now_us + self._spec.align_us) // 1000 + 1)
        changes = done.output
        if changes is not None:
            for start in range(0, changes.num_rows, _OUTPUT_ROWS_MAX):
                rows = self._output.rows(changes.slice(start, _OUTPUT_ROWS_MAX))
                yield self._emitted(rows)

    def close(self) -> None:
        """Nothing to release: what is open belongs to the worker process."""


def _payload_frame(changes: pa.Table) -> pd.DataFrame:
    """One row, the changes as an Arrow IPC stream."""
    import pandas as pd

    return pd.DataFrame({"changes": [to_ipc(changes)]})


def _flat_frame(changes: pa.Table) -> pd.DataFrame:
    """The changes as pandas columns of Arrow types."""
    import pandas as pd

    return changes.to_pandas(types_mapper=pd.ArrowDtype)


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


_CACHES: dict[str, SegmentCache] = {}


def segment_cache() -> SegmentCache:
    """This worker process's open segments, in the application's own temporary directory."""
    from pyspark import SparkFiles

    root = SparkFiles.getRootDirectory() or tempfile.gettempdir()
    if root not in _CACHES:
        _CACHES[root] = SegmentCache(Path(root) / "dovetail-segments")
    return _CACHES[root]


def session_of(node: Node) -> SparkSession:
    """The Spark session of a node's inputs."""
    frame = next(sources(node)).frame
    assert frame is not None
    return frame.sparkSession


def _canonical(column: Column, type_: DataType) -> Column:
    """A key in which equal values have equal bits: one NaN and no negative zero, at any depth."""
    if isinstance(type_, (FloatType, DoubleType)):
        zero = F.lit(0.0).cast(type_)
        nan = F.lit(float("nan")).cast(type_)
        return F.when(F.isnan(column), nan).when(column == zero, zero).otherwise(column)
    if isinstance(type_, ArrayType):
        element_type = type_.elementType
        return F.transform(column, lambda element: _canonical(element, element_type))
    if isinstance(type_, StructType):
        fields = (_canonical(column.getField(f.name), f.dataType).alias(f.name) for f in type_)
        return F.when(column.isNotNull(), F.struct(*fields))
    return column
