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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
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
    DELETED,
    EVENT_TIME,
    HASH,
    LOG_PARTITION,
    POSITION,
    SEQUENCE,
    VISIBLE,
    quoted,
    value_name,
)
from dovetail.plan.nodes import Node, Source, sources
from dovetail.plan.spec import StageSpec
from dovetail.plan.stages import Stage
from dovetail.runtime.pack import PACKED, Packer, packing, to_ipc, unpack_piece
from dovetail.runtime.stage import process
from dovetail.state.segment import SegmentCache

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column

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


def stage_changes(stage: Stage, partitions: int) -> DataFrame:
    """The stage's changes as a streaming frame with ``output_type(stage)``'s columns.

    Flat columns leave the stage as they are. Others, which pandas' Arrow types do not carry
    through, leave it in blobs that a second step unpacks.
    """
    spark = session_of(stage.node)
    packed = pack_inputs(stage, bucket_labels(spark, stage.spec.buckets, partitions))
    output = output_type(stage)
    flat = all(isinstance(f.dataType, _FLAT) for f in output)
    emitted = _as_longs(output) if flat else _PAYLOAD
    staged = packed.groupBy("bucket").transformWithStateInPandas(
        BucketProcessor(stage.spec, flat=flat), emitted, "append", "none"
    )
    return _as_timestamps(staged, output) if flat else unpack_changes(staged, stage)


def pack_inputs(stage: Stage, labels: Sequence[int]) -> DataFrame:
    """All inputs of a stage as rows of ``PACKED``.

    What is dropped for a null in the key is counted, as observed metric ``<name>.dropped``.
    """
    packed = []
    for number, (source, spec) in enumerate(zip(stage.inputs, stage.spec.sources, strict=True)):
        packer = Packer(number, spec, stage.spec.keys, labels)
        rows = wire_rows(source).mapInArrow(packing(packer), PACKED)
        null_keys = F.coalesce(F.sum("null_keys"), F.lit(0)).alias("null_key")
        packed.append(rows.observe(f"{spec.name}.dropped", null_keys))
    return reduce(DataFrame.union, packed)


def wire_rows(source: Source) -> DataFrame:
    """A source's rows in the columns of ``SourceSpec.wire_schema``; without ``_deleted`` where the
    source has no tombstones.
    """
    assert source.frame is not None
    assert source.timestamp is not None
    keys = [_canonical(name, source.key[name].dataType).alias(name) for name in source.key.names]
    columns = [F.xxhash64(*keys).alias(HASH), F.unix_micros(source.timestamp).alias(EVENT_TIME)]
    if source.deleted is not None:
        columns.append(F.coalesce(source.deleted, F.lit(False)).alias(DELETED))
    columns += [*keys, *(F.col(quoted(name)) for name in source.values.names)]
    for role, column in ((SEQUENCE, source.sequence), (LOG_PARTITION, source.log_partition)):
        if column is not None:
            columns.append(column.cast(LongType()).alias(role))
    return source.frame.select(*columns)


def bucket_labels(spark: SparkSession, buckets: int, partitions: int) -> list[int]:
    """A number per bucket such that Spark's hash partitioning deals buckets out evenly.

    Bucket b goes to partition ``b % partitions``; the numbers are the smallest that do so.
    """
    numbers = spark.range(32 * buckets).select(F.col("id").cast("int"))
    placed = numbers.select("id", F.pmod(F.hash("id"), F.lit(partitions))).collect()
    free: dict[int, list[int]] = {partition: [] for partition in range(partitions)}
    for number, partition in sorted(placed):
        free[partition].append(number)
    return [free[bucket % partitions].pop(0) for bucket in range(buckets)]


def unpack_changes(staged: DataFrame, stage: Stage) -> DataFrame:
    """Rows of ``output_type(stage)`` from the blobs that a stage emits."""
    timezone = staged.sparkSession.conf.get("spark.sql.session.timeZone")
    schema = in_timezone(stage.spec.output_schema, str(timezone))

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for payload in batch.column(0):
                table = pa.ipc.open_stream(payload.as_buffer()).read_all()
                yield from table.cast(schema).to_batches()

    return staged.mapInArrow(unpack, output_type(stage))


def output_type(stage: Stage) -> StructType:
    """The columns of ``StageSpec.output_schema`` as Spark types."""
    fields = [StructField(f.name, f.dataType, True) for f in stage.inputs[0].key]
    for leaf, source in enumerate(sources(stage.node)):
        for number, value in enumerate(source.values):
            fields.append(StructField(value_name(leaf, number), value.dataType, True))
    fields += [
        StructField(DELETED, BooleanType()),
        StructField(EVENT_TIME, LongType()),
        StructField(POSITION, LongType()),
    ]
    if stage.spec.visible:
        fields.append(StructField(VISIBLE, LongType()))
    return StructType(fields)


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

    def __init__(self, spec: StageSpec, *, flat: bool) -> None:
        self._spec = spec
        self._emitted = _flat_frame if flat else _payload_frame

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state variable."""
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
        pieces = [
            unpack_piece(row.source, row.partition, row.number, row.high_time_us, row.payload)
            for frame in rows
            for row in frame.itertuples(index=False)
        ]
        changes = process(self._spec, pieces, self._blobs, segment_cache())
        if changes is not None:
            for start in range(0, changes.num_rows, _OUTPUT_ROWS_MAX):
                yield self._emitted(changes.slice(start, _OUTPUT_ROWS_MAX))

    def close(self) -> None:
        """Nothing to release: what is open belongs to the worker process."""


def _payload_frame(changes: pa.Table) -> pd.DataFrame:
    """One row, the changes as an Arrow IPC stream."""
    import pandas as pd

    return pd.DataFrame({"changes": [to_ipc(changes)]})


def _flat_frame(changes: pa.Table) -> pd.DataFrame:
    """The changes as pandas columns of Arrow types, timestamps as their microseconds."""
    import pandas as pd

    schema = pa.schema(
        [f.with_type(pa.int64()) if pa.types.is_timestamp(f.type) else f for f in changes.schema]
    )
    return changes.cast(schema).to_pandas(types_mapper=pd.ArrowDtype)


def _as_longs(output: StructType) -> StructType:
    """The schema with timestamps as whole microseconds."""
    return StructType(
        [
            StructField(f.name, LongType() if isinstance(f.dataType, TimestampType) else f.dataType)
            for f in output
        ]
    )


def _as_timestamps(frame: DataFrame, output: StructType) -> DataFrame:
    return frame.select(
        *(
            F.timestamp_micros(quoted(f.name)).alias(f.name)
            if isinstance(f.dataType, TimestampType)
            else F.col(quoted(f.name))
            for f in output
        )
    )


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


def _canonical(name: str, type_: Any) -> Column:
    """A key column in which equal values have equal bits: one NaN, and no negative zero."""
    column = F.col(quoted(name))
    if isinstance(type_, (FloatType, DoubleType)):
        zero = F.lit(0.0).cast(type_)
        nan = F.lit(float("nan")).cast(type_)
        return F.when(F.isnan(column), nan).when(column == zero, zero).otherwise(column)
    return column
