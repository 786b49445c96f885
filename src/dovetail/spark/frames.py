"""Stages on Spark: pack, a stage's work per bucket, unpack, in a streaming query or over static
frames. Values cross as Arrow and never become Python objects.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    TimestampType,
)

from dovetail.engine.blame import blamed
from dovetail.engine.flow import Flow
from dovetail.engine.pack import PACKED, Packer
from dovetail.operators.in_order import merge
from dovetail.physical.delta_join import DeltaJoin, Settle
from dovetail.physical.fragment import Fragment
from dovetail.physical.operators import InOrder
from dovetail.physical.output import Output, output_of
from dovetail.physical.stage import Port, Stage
from dovetail.plan.nodes import Node
from dovetail.spark import delta_join, project, task
from dovetail.spark.buckets import Work
from dovetail.spark.emission import (
    CHANGES,
    PAYLOAD,
    Blobs,
    Emission,
    Rows,
    ToBuckets,
    count_column,
    payloads,
)
from dovetail.spark.processor import BucketProcessor
from dovetail.spark.wire import wire_rows

_FLAT = (BinaryType, BooleanType, DateType, NumericType, StringType, TimestampType)


@dataclass
class Frames(Flow[DataFrame, DataFrame]):
    """``labels``: the number under which each bucket is shuffled; ``partitions``: to how many
    tasks; ``flat``: whether flat rows may leave a stage as they are.
    """

    labels: Sequence[int]
    partitions: int
    _metrics: Counter[str] = field(default_factory=Counter, init=False)

    flat: ClassVar[bool]

    @abstractmethod
    def staged(self, packed: DataFrame, fragment: Fragment, emission: Emission) -> DataFrame:
        """What a fragment with state emits of its packed inputs."""

    def packed(self, stage: Stage, number: int, port: Port, rows: DataFrame | None) -> DataFrame:
        """Rows of ``PACKED``.

        What is dropped, for a null in the key or a stream's record without a value, is counted, as
        observed metric ``<name>.dropped``; a foreign key that fails, as ``<name>.failed``.
        """
        assert port.input is not None
        source = port.source
        wire = wire_rows(port.input, source, rows)
        made = wire.mapInArrow(packing(Packer(number, source, self.labels, port.by)), PACKED)
        for count in ("dropped", "failed") if source.fallible else ("dropped",):
            made = self._observed(made, f"{source.name}.{count}", count)
        return made

    def partitioned(self, stage: Stage, inputs: list[DataFrame], by: str, number: int) -> DataFrame:
        """Rows of ``PACKED``. What the stage counts is an observed metric."""
        packed, fragment = reduce(DataFrame.union, inputs), stage.fragment
        if isinstance(fragment.last.law, Settle):
            return delta_join.by_primary_key(packed, fragment, self.labels, self.partitions)
        made = self.staged(packed, fragment, ToBuckets(self.labels, by, number))
        for metric in fragment.counts:
            made = self._observed(made, metric, "dropped")
        return made

    def changes(self, stage: Stage, inputs: list[DataFrame]) -> DataFrame:
        """The changelog."""
        packed, fragment = reduce(DataFrame.union, inputs), stage.fragment
        output, law = output_of(stage), fragment.last.law
        if fragment.stateful:
            rows = self._stateful(packed, fragment, output)
        elif isinstance(law, DeltaJoin):
            schema = _in_session_timezone(packed, output)
            metric = self._metric(f"{law.name}.lookups")
            rows = delta_join.joined(
                packed, fragment, output, schema, partitions=self.partitions, metric=metric
            )
        else:
            assert isinstance(law, InOrder)
            results = packed.repartition(self.partitions, "bucket")
            rows = _merged(results, fragment, law, output)
        made = rows if output.held is not None else project.changelog(rows, stage)
        return reduce(project.viewed, stage.views, made)

    def _stateful(self, packed: DataFrame, fragment: Fragment, output: Output) -> DataFrame:
        """The rows that a fragment with state sends out.

        Flat columns leave a stage of a query as they are. Others, which pandas' Arrow types do not
        carry through, leave it in blobs that a second step unpacks; and so do those of a stage that
        counts, in observed metrics.
        """
        if not fragment.counts and self.flat and _is_flat(output):
            return self.staged(packed, fragment, Rows(output))
        blobs = self.staged(packed, fragment, Blobs(output, fragment.counts))
        for number, metric in enumerate(fragment.counts):
            blobs = self._observed(blobs, metric, count_column(number))
        return _unpacked(blobs, output)

    def _metric(self, name: str) -> str:
        """A name for an observed metric that no other of the query has."""
        self._metrics[name] += 1
        return name if self._metrics[name] == 1 else f"{name}#{self._metrics[name]}"

    def _observed(self, rows: DataFrame, metric: str, count: str) -> DataFrame:
        """The rows, with the sum of a column of theirs as an observed metric."""
        total = F.coalesce(F.sum(count), F.lit(0)).alias("records")
        return rows.observe(self._metric(metric), total)


@dataclass
class Streaming(Frames):
    """In a streaming query.

    ``timers``: rows that wait for another source are let through when their time has come even if
    no data does. A query with timers runs micro-batches without end, so it never stops by itself.
    ``stateful``: how many stages with state have been made.
    """

    timers: bool
    stateful: int = field(default=0, init=False)

    flat = True

    def staged(self, packed: DataFrame, fragment: Fragment, emission: Emission) -> DataFrame:
        """By ``transformWithState``."""
        self.stateful += 1
        timers = self.timers and fragment.align_us is not None
        if fragment.align_us is not None:
            # The time of the micro-batch, which is the same when a batch is run again. Only where
            # rows may wait: the projection copies every blob.
            packed = packed.withColumn("now_us", F.unix_micros(F.current_timestamp()))
        return packed.groupBy("bucket").transformWithStateInPandas(
            BucketProcessor(Work(fragment, emission, timers)),
            emission.columns,
            "append",
            "processingTime" if timers else "none",
        )


def packing(packer: Packer) -> task.BatchFunction:
    """The function for ``mapInArrow``."""

    @task.mapping
    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with blamed(packer.source.title, lambda _: f"input partition {task.partition()}"):
            yield from packer(batches, task.partition())

    return pack


def _is_flat(output: Output) -> bool:
    return all(isinstance(f.dataType, _FLAT) for f in output.columns)


def _unpacked(staged: DataFrame, output: Output) -> DataFrame:
    """A stage's rows from the blobs that it emits."""
    schema = _in_session_timezone(staged, output)

    @task.mapping
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in payloads(batches, CHANGES):
            yield from table.cast(schema).to_batches()

    return staged.mapInArrow(rows, output.columns)


def _merged(results: DataFrame, fragment: Fragment, law: InOrder, output: Output) -> DataFrame:
    """The rows of a join by foreign key from its packed results, each primary key's in order."""
    schema, title = _in_session_timezone(results, output), fragment.sources[0].title
    columns = fragment.output_schema.names

    @task.mapping
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with blamed(fragment.title, lambda _: title):
            tables = payloads(batches, PAYLOAD)
            for table in merge(tables, law, columns, task.micro_batch()):
                yield from output.rows(table).cast(schema).to_batches()

    return results.mapInArrow(rows, output.columns)


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


def session_of(node: Node) -> SparkSession:
    """The Spark session of a node's inputs."""
    frame = node.origins[0].frame
    assert frame is not None
    session: SparkSession = frame.sparkSession
    return session
