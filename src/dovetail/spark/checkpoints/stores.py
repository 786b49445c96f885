"""The stores of a checkpoint after a micro-batch: their description, and the blobs in which they
lie.

The description is in the checkpoint's own file and in the buckets' manifests. Blobs are read by
Spark's reader of state, from the files that the micro-batch has left. So a running query is not
disturbed.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property, reduce
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dovetail.arrays.timeline import NO_TIME
from dovetail.engine.store_contents import horizon_us
from dovetail.errors import CheckpointError, ConfigurationError
from dovetail.physical.specs.law import Store
from dovetail.platform.spark_errors import refused
from dovetail.spark.checkpoints import checkpoint as binding
from dovetail.spark.checkpoints.stage_layout import StageLayout, layout
from dovetail.state import manifest as manifests
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.manifest import Manifest
from dovetail.state.runs import Runs

_QUOTED = re.compile(r'[\s"<>\\^`{|}%#?\[\]]')
"""The characters of a path that a URI must quote."""
MANIFESTS = f"name = '{manifests.NAME}' OR name LIKE '{manifests.PAGE}%'"
"""The SQL condition for blobs that are not segments."""


_FIRST = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST = datetime(9999, 12, 31, tzinfo=timezone.utc)


class StatefulOperator(NamedTuple):
    """One of Spark's operators with state: its number, and the number of its partitions."""

    number: int
    partitions: int


def runs_of(manifest: Manifest, store: str) -> Runs:
    """Return the sorted runs of a store, without incomplete merges."""
    return Runs(manifest.stores.get(store, Runs()).runs)


class Kept(NamedTuple):
    """A store of a stage, and the manifests of the buckets that have it, by their labels."""

    stage: StageLayout
    name: str
    store: Store
    operator: StatefulOperator
    buckets: Mapping[int, Manifest]

    def runs(self, bucket: int) -> Runs:
        """Return the sorted runs of the store in a bucket."""
        return runs_of(self.buckets[bucket], self.name)


@dataclass(frozen=True)
class CheckpointStores:
    """All stores after a micro-batch."""

    caller: str
    """The function that errors name."""
    spark: SparkSession
    checkpoint: str
    batch: int | None
    """The micro-batch; None if none is committed."""
    topology: tuple[str, Mapping[str, Any]]
    """The fingerprint and the description of the plan to which the checkpoint is bound."""
    buckets: int
    """The number of buckets."""
    stages: Mapping[str, StageLayout]
    """The stages by the fingerprint of their state."""
    reads: Sequence[tuple[Any, int | None, Sequence[int] | None]] = ()
    """The inputs in the order of Spark's sources, each with the number of these and of their
    folders."""
    operators: Mapping[StatefulOperator, Mapping[int, MemoryBlobs]] = field(default_factory=dict)
    """The operators with state, each with the blobs of its buckets' manifests by label."""

    @classmethod
    def of(
        cls, caller: str, spark: SparkSession, checkpoint: str, batch: int | None
    ) -> CheckpointStores:
        """Return the stores after a micro-batch, with their manifests read. Before any state is
        stored, there are none.

        ``batch``: None for the last committed one. Raises ``CheckpointError`` for another folder or
        batch.
        """
        bound = _bound(caller, spark, checkpoint)
        refuse_unreadable(caller, checkpoint)
        operators, after = _operators(caller, spark, checkpoint, batch)
        stores = cls(
            caller=caller,
            spark=spark,
            checkpoint=checkpoint,
            batch=after,
            topology=(bound["topology"], bound["plan"]),
            buckets=bound["buckets"],
            stages={stage.topology: stage for stage in layout(bound["stages"])},
            reads=[
                (source_identity, leaves, *(folders or [None]))
                for source_identity, leaves, *folders in bound.get("reads", ())
            ],
        )
        frames = [
            stores.blobs(operator).withColumn("operator", F.lit(operator_index))
            for operator_index, operator in enumerate(operators)
        ]
        blobs_by_bucket = [defaultdict[int, MemoryBlobs](MemoryBlobs) for _ in operators]
        for row in reduce(DataFrame.union, frames).where(MANIFESTS).collect() if frames else ():
            blobs_by_bucket[row["operator"]][row["bucket"]].put(row["name"], bytes(row["blob"]))
        return replace(stores, operators=dict(zip(operators, blobs_by_bucket, strict=True)))

    @cached_property
    def _buckets(self) -> dict[str, tuple[StatefulOperator, Mapping[int, Manifest]]]:
        """The operator of each stage, by its fingerprint, with its buckets' manifests."""
        by_topology = dict[str, tuple[StatefulOperator, Mapping[int, Manifest]]]()
        for operator, blobs in self.operators.items():
            buckets = {label: _whole(bucket_blobs) for label, bucket_blobs in blobs.items()}
            for topology in {manifest.topology for manifest in buckets.values()}:
                by_topology[topology] = operator, buckets
        return by_topology

    @cached_property
    def stores(self) -> Sequence[Kept]:
        """All stores, in the order of their stages; none if nothing is stored yet."""
        stage_stores = []
        for topology, (operator, buckets) in self._buckets.items():
            stage = self.stages[topology]
            stage_stores += [
                Kept(stage, name, store, operator, buckets) for name, store in stage.stores.items()
            ]
        return sorted(stage_stores, key=lambda stage_store: stage_store.stage.number)

    def states(self) -> dict[str, DataFrame]:
        """Return the blobs of each stage's buckets, by its fingerprint, also of a stage without a
        store.
        """
        return {topology: self.blobs(operator) for topology, (operator, _) in self._buckets.items()}

    def named(self, table: str, among: Callable[[Kept], bool] = lambda _: True) -> Kept:
        """Return the store of a table or with a name; prefer an input's rows to those that wait.

        Raises ``ConfigurationError`` if there is none that can be read.
        """
        stores = [stage_store for stage_store in self.stores if among(stage_store)]
        readable = [
            stage_store
            for stage_store in stores
            if stage_store.store.kind is not None and stage_store.store.of
        ]
        by_table = [stage_store for stage_store in readable if stage_store.store.of == table]
        by_table.sort(key=lambda stage_store: stage_store.store.kind == "queue")
        for stage_store in [
            *by_table,
            *(stage_store for stage_store in readable if stage_store.name == table),
        ]:
            return stage_store
        names = dict.fromkeys(
            name for stage_store in readable for name in (stage_store.store.of, stage_store.name)
        )
        problem = f"the checkpoint {self.checkpoint} holds no rows of {table!r}"
        if any(table in (stage_store.name, stage_store.store.of) for stage_store in stores):
            problem = f"what {table!r} holds cannot be read by itself"
        has = f"It has {', '.join(names) or 'none yet'}"
        raise ConfigurationError(self.caller, problem, f"{has}; a join's result takes topology=")

    def offsets(self) -> list[str | None]:
        """Return the offset up to which each of the query's sources is read, in Spark's form.

        None for a source that has brought nothing yet.
        """
        path = f"{self.checkpoint.rstrip('/')}/offsets/{self.batch}"
        text = self.spark.read.text(path, wholetext=True).head()
        assert text is not None
        _, _, *offsets = str(text[0]).splitlines()
        return [None if offset == "-" else offset for offset in offsets]

    def blobs(self, operator: StatefulOperator) -> DataFrame:
        """Return the blobs of a stage's buckets: ``bucket`` (the label), ``name`` and ``blob``.
        Raises ``ConfigurationError`` if Spark cannot read the checkpoint.
        """
        reader = self.spark.read.format("statestore").option("operatorId", operator.number)
        reader = reader.option("stateVarName", "blobs").option("batchId", str(self.batch))
        problem = f"Spark cannot read {self.checkpoint}"
        with refused(self.caller, problem, "Mend what it names"):
            return reader.load(self.checkpoint).select(
                F.col("key.bucket").alias("bucket"),
                F.col("user_map_key.name").alias("name"),
                F.col("user_map_value.blob").alias("blob"),
            )


def _bound(caller: str, spark: SparkSession, checkpoint: str) -> dict[str, Any]:
    """Return the checkpoint's own file as JSON data. Raises ``CheckpointError`` if it is missing,
    unreadable or of another version.
    """
    path = f"{checkpoint.rstrip('/')}/{binding.NAME}"
    try:
        text = spark.read.text(path, wholetext=True).head()
    except PySparkException as error:
        raise CheckpointError(
            caller,
            f"{checkpoint} has no {binding.NAME}",
            "Give the checkpoint= of a query that was started with write_stream",
        ) from error
    assert text is not None
    try:
        bound: dict[str, Any] = json.loads(text[0])
    except ValueError as error:
        problem = f"{path} cannot be read"
        raise CheckpointError(caller, problem, "Restore it from a copy") from error
    if bound.get("version") != binding.FORMAT_VERSION:
        raise CheckpointError(
            caller,
            f"{path} has format {bound.get('version')}, this version reads "
            f"{binding.FORMAT_VERSION}",
            "Read it with the version that wrote it",
        )
    return binding.CheckpointFile(spark, checkpoint).in_its_place(bound, caller)


def refuse_unreadable(caller: str, checkpoint: str) -> None:
    """Raise ``ConfigurationError`` for a path that Spark's readers of state would quote twice, and
    so not find.
    """
    quoted = _QUOTED.search(checkpoint)
    if quoted is not None:
        raise ConfigurationError(
            caller,
            f"Spark cannot read the state of {checkpoint}, for its path has a {quoted[0]!r}",
            "Move the checkpoint to a path without it",
        )


def _whole(blobs: MemoryBlobs) -> Manifest:
    """Return the manifest of a bucket with its pages."""
    manifest = manifests.read(blobs)
    assert manifest is not None, "pages without a manifest"
    return manifest


def _operators(
    caller: str, spark: SparkSession, checkpoint: str, batch: int | None
) -> tuple[list[StatefulOperator], int | None]:
    """Return the operators with state, and the micro-batch after which they are read.

    An empty list and None if nothing is stored yet. Raises ``CheckpointError`` for an unknown
    batch.
    """
    spark.streams.active  # noqa: B018 -- starts what Spark's reader of state asks
    with refused(caller, f"Spark cannot read {checkpoint}", "Mend what it names"):
        rows = spark.read.format("state-metadata").load(checkpoint).collect()
    if not rows:
        return [], None
    first, last = max(r["minBatchId"] for r in rows), min(r["maxBatchId"] for r in rows)
    if batch is not None and not first <= batch <= last:
        raise CheckpointError(
            caller,
            f"{checkpoint} has no micro-batch {batch}",
            f"Spark has kept {first} to {last}",
        )
    operators = [StatefulOperator(row["operatorId"], row["numPartitions"]) for row in rows]
    return operators, last if batch is None else batch


def refuse_other_times(caller: str, table: str, stage_store: Kept, as_of: datetime) -> None:
    """Raise ``ConfigurationError`` for a time before the stored history, or a table without
    history.
    """
    if stage_store.store.kind != "versions":
        raise ConfigurationError(
            caller,
            f"as_of= asks for the past of {table}, which is not a versioned table",
            "Leave it out, or keep its history with versioned=",
        )
    horizons = (
        horizon_us(stage_store.store, manifest) for manifest in stage_store.buckets.values()
    )
    begin_us = max(horizons, default=NO_TIME)
    if begin_us != NO_TIME and as_of < moment(begin_us):
        raise ConfigurationError(
            caller,
            f"as_of={as_of} lies before the history of {stage_store.store.of}, which begins at "
            f"{moment(begin_us)}",
            "Ask for a later time",
        )


def moment(us: int) -> datetime:
    """Return a time in microseconds as a ``datetime`` in UTC; the end of time is in the year
    9999.
    """
    return _FIRST + min(timedelta(microseconds=us), _LAST - _FIRST)


def in_us(time: datetime) -> int:
    """Return a ``datetime`` in microseconds since 1970."""
    return (time - moment(0)) // timedelta(microseconds=1)
