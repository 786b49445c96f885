"""What a checkpoint holds, as frames. Spark reads the files that a committed micro-batch has left,
so a query that runs meanwhile is not disturbed.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import reduce
from os import fspath
from pathlib import Path as LocalPath
from typing import Annotated, Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dovetail.arguments import Natural, Path, Rule, Text, validated
from dovetail.arrays.timeline import NO_TIME
from dovetail.columns import CHANGE, TIMESTAMP, UPSERT, quoted
from dovetail.engine import contents
from dovetail.errors import CheckpointError, ConfigurationError
from dovetail.physical.law import Store
from dovetail.plan.arrow import spark_schema
from dovetail.refusals import refused
from dovetail.spark import checkpoint as binding
from dovetail.spark.layout import StageLayout, layout
from dovetail.spark.task import BatchFunction, mapping
from dovetail.state import manifest as manifests
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.manifest import Manifest
from dovetail.state.runs import Runs
from dovetail.state.segment import Segment, SegmentCache, decode

Session: TypeAlias = Annotated[SparkSession, Rule("a SparkSession")]
Moment: TypeAlias = Annotated[
    datetime, Rule("a datetime with its time zone", lambda t: t.tzinfo is not None)
]

_MANIFESTS = f"name = '{manifests.NAME}' OR name LIKE '{manifests.PAGE}%'"
_NAMES_MAX = 10_000
_LISTING = StructType(
    [
        StructField("stage", LongType(), False),
        StructField("operator", StringType(), False),
        StructField("store", StringType(), False),
        StructField("table", StringType()),
        StructField("holds", StringType(), False),
        StructField("rows", LongType(), False),
        StructField("bytes", LongType(), False),
        StructField("segments", LongType(), False),
        StructField("buckets", LongType(), False),
        StructField("stream_time", TimestampType()),
    ]
)


@validated
def read_state(
    spark: Session,
    checkpoint: Path,
    table: Text | None = None,
    *,
    batch: Natural | None = None,
    as_of: Moment | None = None,
) -> DataFrame:
    """What a query's checkpoint holds after a micro-batch: ``batch``, of those that Spark has kept,
    or the last one that is committed when this is called. The query may be running.

    Without ``table`` the stores, one a row: ``stage``, as ``explain()`` numbers them, and
    ``operator``; ``store``, and the ``table`` whose rows it has, null where it only says something
    of another store's; ``holds``, in words; how many ``rows`` are stored, those that newer ones
    replace included, ``bytes`` before compression, ``segments``, ``buckets`` that have any, and
    ``stream_time``, the latest of the store's inputs.

    With ``table``, the name of an input or of a store: its rows, with the columns of its key, its
    values and ``_timestamp``. Of a table the last row of each key; of a versioned table all
    versions that it still has, with ``_change`` (``upsert`` or ``delete``), or with ``as_of=`` a
    time the rows as they were then; of a stream the records that a window still needs; of a store
    of records that wait those records, with ``_due``, the stream time up to which they do; of an
    aggregate, which is named as errors name it, the result of each group, of windows until they are
    closed. A table that several stages store is the same in all of them.

    Nothing is read before the frame is used but the manifests of all buckets.

    Raises ``CheckpointError`` where the folder is no checkpoint of a query or has no such
    micro-batch, ``ConfigurationError`` for what it does not hold.
    """
    state = _State.of(spark, fspath(checkpoint), batch)
    if table is None:
        if as_of is not None:
            raise ConfigurationError("read_state", "as_of= goes with a table", "Name one")
        return spark.createDataFrame(list(state.listing()), _LISTING)
    kept = state.named(table)
    frame = state.rows(kept)
    if as_of is None:
        return frame
    if kept.store.kind != "versions":
        raise ConfigurationError(
            "read_state",
            f"as_of= asks for the past of {table}, which is not a versioned table",
            "Leave it out, or keep its history with versioned=",
        )
    return _as_of(frame, kept, as_of)


class _Bucket(NamedTuple):
    """Of a store what is in a bucket, and of those that are read beside it."""

    runs: Runs
    beside: Mapping[str, Runs]
    horizon_us: int

    @property
    def segments(self) -> list[Segment]:
        """All that are read."""
        return [s for runs in (self.runs, *self.beside.values()) for s in runs.segments]


def _runs(manifest: Manifest, store: str) -> Runs:
    """What a store consists of, without what merges have not completed."""
    return Runs(manifest.stores.get(store, Runs()).runs)


class _Operator(NamedTuple):
    """Spark's number of an operator with state, and the micro-batch after which it is read."""

    number: int
    batch: int


class _Kept(NamedTuple):
    """A store of a stage, and the manifests of the buckets in which it is, by their labels."""

    stage: StageLayout
    name: str
    store: Store
    operator: _Operator
    buckets: Mapping[int, Manifest]

    def runs(self, bucket: int) -> Runs:
        """What the store consists of in a bucket."""
        return _runs(self.buckets[bucket], self.name)


@dataclass(frozen=True)
class _State:
    """The stores of a checkpoint after a micro-batch."""

    spark: SparkSession
    checkpoint: str
    stores: Sequence[_Kept]

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str, batch: int | None) -> _State:
        """What the manifests say."""
        stages = {stage.topology: stage for stage in _layout(spark, checkpoint)}
        found = []
        for operator, buckets in _manifests(spark, checkpoint, batch):
            for topology in {manifest.topology for manifest in buckets.values()}:
                stage = stages[topology]
                found += [
                    _Kept(stage, name, store, operator, buckets)
                    for name, store in stage.stores.items()
                ]
        found.sort(key=lambda kept: kept.stage.number)
        return cls(spark, checkpoint, found)

    def listing(self) -> Iterator[tuple[Any, ...]]:
        """A row for each store."""
        for kept in self.stores:
            runs = [kept.runs(bucket) for bucket in kept.buckets]
            segments = [segment for own in runs for run in own.runs for segment in run.segments]
            times = [
                own.stream_time_us[clock]
                for own in kept.buckets.values()
                for clock in kept.store.clocks or range(len(own.stream_time_us))
            ]
            yield (
                kept.stage.number,
                kept.stage.title,
                kept.name,
                kept.store.of or None,
                kept.store.holds,
                sum(segment.rows for segment in segments),
                sum(segment.size_bytes for segment in segments),
                len(segments),
                sum(bool(own.runs) for own in runs),
                max((_moment(time) for time in times if time is not None), default=None),
            )

    def named(self, table: str) -> _Kept:
        """The store that is meant: of an input its rows rather than those that wait."""
        own = [kept for kept in self.stores if kept.store.kind is not None]
        by_table = [kept for kept in own if kept.store.of == table]
        by_table.sort(key=lambda kept: kept.store.kind == "queue")
        for kept in [*by_table, *(kept for kept in own if kept.name == table)]:
            return kept
        names = dict.fromkeys(name for kept in own for name in (kept.store.of, kept.name))
        problem = f"the checkpoint {self.checkpoint} holds no rows of {table!r}"
        if any(table in (kept.name, kept.store.of) for kept in self.stores):
            problem = f"what {table!r} holds cannot be read by itself"
        raise ConfigurationError("read_state", problem, f"It has {', '.join(names) or 'none yet'}")

    def rows(self, kept: _Kept) -> DataFrame:
        """The rows of a store, each bucket's by one task."""
        buckets = {
            label: _Bucket(
                kept.runs(label),
                {name: _runs(manifest, name) for name in kept.store.beside},
                contents.horizon_us(kept.store, manifest),
            )
            for label, manifest in kept.buckets.items()
        }
        names = [segment.id for own in buckets.values() for segment in own.segments]
        blobs = _blobs(self.spark, self.checkpoint, kept.operator)
        blobs = blobs.where(
            F.col("name").isin(names) if len(names) <= _NAMES_MAX else f"NOT ({_MANIFESTS})"
        )
        schema = spark_schema(contents.schema_of(kept.store))
        return blobs.mapInArrow(_reading(kept.store, buckets), schema)


def _layout(spark: SparkSession, checkpoint: str) -> Iterator[StageLayout]:
    """The stages, as the checkpoint's own file has them."""
    path = f"{checkpoint.rstrip('/')}/{binding.NAME}"
    try:
        text = spark.read.text(path, wholetext=True).head()
    except PySparkException as error:
        raise CheckpointError(
            "read_state",
            f"{checkpoint} has no {binding.NAME}",
            "Give the checkpoint= of a query that was started with write_stream",
        ) from error
    assert text is not None
    known = json.loads(text[0])
    if known.get("version") != binding.FORMAT_VERSION:
        raise CheckpointError(
            "read_state",
            f"{path} has format {known.get('version')}, this version reads "
            f"{binding.FORMAT_VERSION}",
            "Read it with the version that wrote it",
        )
    return layout(known["stages"])


def _manifests(
    spark: SparkSession, checkpoint: str, batch: int | None
) -> Iterator[tuple[_Operator, Mapping[int, Manifest]]]:
    """Of each operator those of its buckets, by their labels."""
    operators = _operators(spark, checkpoint, batch)
    blobs = [defaultdict[int, MemoryBlobs](MemoryBlobs) for _ in operators]
    frames = [
        _blobs(spark, checkpoint, operator).withColumn("operator", F.lit(number))
        for number, operator in enumerate(operators)
    ]
    for row in reduce(DataFrame.union, frames).where(_MANIFESTS).collect() if frames else ():
        blobs[row["operator"]][row["bucket"]].put(row["name"], bytes(row["blob"]))
    for operator, buckets in zip(operators, blobs, strict=True):
        yield operator, {label: _whole(own) for label, own in buckets.items()}


def _whole(blobs: MemoryBlobs) -> Manifest:
    manifest = manifests.read(blobs)
    assert manifest is not None, "pages without a manifest"
    return manifest


def _operators(spark: SparkSession, checkpoint: str, batch: int | None) -> list[_Operator]:
    """Those that have state, all after the same micro-batch; none where nothing is stored yet."""
    spark.streams.active  # noqa: B018 -- starts what Spark's reader of state asks
    with refused("read_state", f"Spark cannot read {checkpoint}", "Mend what it names"):
        known = spark.read.format("state-metadata").load(checkpoint).collect()
    if not known:
        return []
    first, last = max(r["minBatchId"] for r in known), min(r["maxBatchId"] for r in known)
    if batch is not None and not first <= batch <= last:
        raise CheckpointError(
            "read_state",
            f"{checkpoint} has no micro-batch {batch}",
            f"Spark has kept {first} to {last}",
        )
    return [_Operator(row["operatorId"], last if batch is None else batch) for row in known]


def _blobs(spark: SparkSession, checkpoint: str, operator: _Operator) -> DataFrame:
    """What a stage's buckets have stored: ``bucket``, its label; ``name``; ``blob``."""
    reader = spark.read.format("statestore").option("operatorId", operator.number)
    reader = reader.option("stateVarName", "blobs").option("batchId", operator.batch)
    with refused("read_state", f"Spark cannot read {checkpoint}", "Mend what it names"):
        return reader.load(checkpoint).select(
            F.col("key.bucket").alias("bucket"),
            F.col("user_map_key.name").alias("name"),
            F.col("user_map_value.blob").alias("blob"),
        )


def _reading(store: Store, buckets: Mapping[int, _Bucket]) -> BatchFunction:
    """A function for ``mapInArrow``: from the segments of buckets to a store's rows. Segments go to
    disk as they come, and are merged from there.
    """

    @mapping
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known = {
            label: {segment.id: segment for segment in own.segments}
            for label, own in buckets.items()
        }
        with tempfile.TemporaryDirectory(prefix="dovetail-read-") as directory:
            cache, here = SegmentCache(LocalPath(directory)), dict[int, None]()
            for batch in batches:
                for label, name, blob in zip(*map(pa.Array.to_pylist, batch.columns), strict=True):
                    segment = known[label].get(name)
                    if segment is not None:
                        here[label] = None
                        cache.add(segment, decode(blob))
            for label in here:
                runs, beside, horizon_us = buckets[label]
                none = MemoryBlobs()
                for table in contents.rows(store, runs, beside, horizon_us, none, cache):
                    yield from table.combine_chunks().to_batches()

    return read


def _as_of(frame: DataFrame, kept: _Kept, as_of: datetime) -> DataFrame:
    """Each key's version at a time."""
    horizons = (contents.horizon_us(kept.store, own) for own in kept.buckets.values())
    begin_us = max(horizons, default=NO_TIME)
    if begin_us != NO_TIME and as_of < _moment(begin_us):
        raise ConfigurationError(
            "read_state",
            f"as_of={as_of} lies before the history of {kept.store.of}, which begins at "
            f"{_moment(begin_us)}",
            "Ask for a later time",
        )
    window = Window.partitionBy(*map(quoted, kept.store.key)).orderBy(F.desc(TIMESTAMP))
    last = frame.where(F.col(TIMESTAMP) <= F.lit(as_of)).withColumn(
        "_n", F.row_number().over(window)
    )
    return last.where((F.col("_n") == 1) & (F.col(CHANGE) == UPSERT)).drop("_n", CHANGE)


def _moment(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=us)
