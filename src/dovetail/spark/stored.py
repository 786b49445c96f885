"""The stores of a checkpoint after a micro-batch: what its own file and the buckets' manifests say
of them, and the blobs in which they lie. Spark's reader of state is asked, which goes by the files
that the micro-batch has left, so a query that runs meanwhile is not disturbed.
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
from dovetail.engine.contents import horizon_us
from dovetail.errors import CheckpointError, ConfigurationError
from dovetail.physical.law import Store
from dovetail.refusals import refused
from dovetail.spark import checkpoint as binding
from dovetail.spark.layout import StageLayout, layout
from dovetail.state import manifest as manifests
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.manifest import Manifest
from dovetail.state.runs import Runs

_QUOTED = re.compile(r'[\s"<>\\^`{|}%#?\[\]]')
"""What a path cannot have in a URI as it is."""
MANIFESTS = f"name = '{manifests.NAME}' OR name LIKE '{manifests.PAGE}%'"
"""Which blobs are not segments."""


_FIRST = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST = datetime(9999, 12, 31, tzinfo=timezone.utc)


class Operator(NamedTuple):
    """Spark's number of an operator with state, and in how many partitions it has it."""

    number: int
    partitions: int


def runs_of(manifest: Manifest, store: str) -> Runs:
    """What a store consists of, without what merges have not completed."""
    return Runs(manifest.stores.get(store, Runs()).runs)


class Kept(NamedTuple):
    """A store of a stage, and the manifests of the buckets in which it is, by their labels."""

    stage: StageLayout
    name: str
    store: Store
    operator: Operator
    buckets: Mapping[int, Manifest]

    def runs(self, bucket: int) -> Runs:
        """What the store consists of in a bucket."""
        return runs_of(self.buckets[bucket], self.name)


@dataclass(frozen=True)
class Stored:
    """All stores after micro-batch ``batch``, which is None where none is committed.

    ``caller``: the function that errors name; ``topology``: the fingerprint and the description of
    the plan that the checkpoint is bound to, with so many ``buckets``; ``stages``: by the
    fingerprint that their state has; ``reads``: what is read, in the order of Spark's sources, each
    with how many of these it is, and the numbers of their folders; ``operators``: those that have
    state, with the blobs of each bucket's manifest by its label.
    """

    caller: str
    spark: SparkSession
    checkpoint: str
    batch: int | None
    topology: tuple[str, Mapping[str, Any]]
    buckets: int
    stages: Mapping[str, StageLayout]
    reads: Sequence[tuple[Any, int | None, Sequence[int] | None]] = ()
    operators: Mapping[Operator, Mapping[int, MemoryBlobs]] = field(default_factory=dict)

    @classmethod
    def of(cls, caller: str, spark: SparkSession, checkpoint: str, batch: int | None) -> Stored:
        """What manifests and the checkpoint's file say."""
        bound = _bound(caller, spark, checkpoint)
        refuse_unreadable(caller, checkpoint)
        operators, after = _operators(caller, spark, checkpoint, batch)
        made = cls(
            caller=caller,
            spark=spark,
            checkpoint=checkpoint,
            batch=after,
            topology=(bound["topology"], bound["plan"]),
            buckets=bound["buckets"],
            stages={stage.topology: stage for stage in layout(bound["stages"])},
            reads=[
                (known, leaves, *(rest or [None]))
                for known, leaves, *rest in bound.get("reads", ())
            ],
        )
        frames = [
            made.blobs(operator).withColumn("operator", F.lit(number))
            for number, operator in enumerate(operators)
        ]
        found = [defaultdict[int, MemoryBlobs](MemoryBlobs) for _ in operators]
        for row in reduce(DataFrame.union, frames).where(MANIFESTS).collect() if frames else ():
            found[row["operator"]][row["bucket"]].put(row["name"], bytes(row["blob"]))
        return replace(made, operators=dict(zip(operators, found, strict=True)))

    @cached_property
    def _buckets(self) -> dict[str, tuple[Operator, Mapping[int, Manifest]]]:
        """By the fingerprint of a stage its operator, and its buckets' manifests."""
        found = dict[str, tuple[Operator, Mapping[int, Manifest]]]()
        for operator, blobs in self.operators.items():
            buckets = {label: _whole(own) for label, own in blobs.items()}
            for topology in {manifest.topology for manifest in buckets.values()}:
                found[topology] = operator, buckets
        return found

    @cached_property
    def stores(self) -> Sequence[Kept]:
        """All stores, in the order of their stages."""
        found = []
        for topology, (operator, buckets) in self._buckets.items():
            stage = self.stages[topology]
            found += [
                Kept(stage, name, store, operator, buckets) for name, store in stage.stores.items()
            ]
        return sorted(found, key=lambda kept: kept.stage.number)

    def states(self) -> dict[str, DataFrame]:
        """By the fingerprint of a stage the blobs of its buckets, also of one that has no store."""
        return {topology: self.blobs(own) for topology, (own, _) in self._buckets.items()}

    def named(self, table: str, among: Callable[[Kept], bool] = lambda _: True) -> Kept:
        """The store that is meant: of an input its rows rather than those that wait."""
        stores = [kept for kept in self.stores if among(kept)]
        own = [kept for kept in stores if kept.store.kind is not None and kept.store.of]
        by_table = [kept for kept in own if kept.store.of == table]
        by_table.sort(key=lambda kept: kept.store.kind == "queue")
        for kept in [*by_table, *(kept for kept in own if kept.name == table)]:
            return kept
        names = dict.fromkeys(name for kept in own for name in (kept.store.of, kept.name))
        problem = f"the checkpoint {self.checkpoint} holds no rows of {table!r}"
        if any(table in (kept.name, kept.store.of) for kept in stores):
            problem = f"what {table!r} holds cannot be read by itself"
        has = f"It has {', '.join(names) or 'none yet'}"
        raise ConfigurationError(self.caller, problem, f"{has}; a join's result takes topology=")

    def offsets(self) -> list[str | None]:
        """Up to where each of the query's sources is read, as Spark has written it down; None for
        one that has brought nothing yet.
        """
        path = f"{self.checkpoint.rstrip('/')}/offsets/{self.batch}"
        text = self.spark.read.text(path, wholetext=True).head()
        assert text is not None
        _, _, *offsets = str(text[0]).splitlines()
        return [None if offset == "-" else offset for offset in offsets]

    def blobs(self, operator: Operator) -> DataFrame:
        """What a stage's buckets have stored: ``bucket``, its label; ``name``; ``blob``."""
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
    """The checkpoint's own file."""
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
        known: dict[str, Any] = json.loads(text[0])
    except ValueError as error:
        problem = f"{path} cannot be read"
        raise CheckpointError(caller, problem, "Restore it from a copy") from error
    if known.get("version") != binding.FORMAT_VERSION:
        raise CheckpointError(
            caller,
            f"{path} has format {known.get('version')}, this version reads "
            f"{binding.FORMAT_VERSION}",
            "Read it with the version that wrote it",
        )
    return binding.CheckpointFile(spark, checkpoint).in_its_place(known, caller)


def refuse_unreadable(caller: str, checkpoint: str) -> None:
    """Refuse a checkpoint of which Spark's readers of state take the path for that of another
    folder: they quote it twice.
    """
    quoted = _QUOTED.search(checkpoint)
    if quoted is not None:
        raise ConfigurationError(
            caller,
            f"Spark cannot read the state of {checkpoint}, for its path has a {quoted[0]!r}",
            "Move the checkpoint to a path without it",
        )


def _whole(blobs: MemoryBlobs) -> Manifest:
    manifest = manifests.read(blobs)
    assert manifest is not None, "pages without a manifest"
    return manifest


def _operators(
    caller: str, spark: SparkSession, checkpoint: str, batch: int | None
) -> tuple[list[Operator], int | None]:
    """Those that have state, and the micro-batch after which all are read; none where nothing is
    stored yet.
    """
    spark.streams.active  # noqa: B018 -- starts what Spark's reader of state asks
    with refused(caller, f"Spark cannot read {checkpoint}", "Mend what it names"):
        known = spark.read.format("state-metadata").load(checkpoint).collect()
    if not known:
        return [], None
    first, last = max(r["minBatchId"] for r in known), min(r["maxBatchId"] for r in known)
    if batch is not None and not first <= batch <= last:
        raise CheckpointError(
            caller,
            f"{checkpoint} has no micro-batch {batch}",
            f"Spark has kept {first} to {last}",
        )
    operators = [Operator(row["operatorId"], row["numPartitions"]) for row in known]
    return operators, last if batch is None else batch


def refuse_other_times(caller: str, table: str, kept: Kept, as_of: datetime) -> None:
    """Refuse to look into the past of what has none, or further than it is kept."""
    if kept.store.kind != "versions":
        raise ConfigurationError(
            caller,
            f"as_of= asks for the past of {table}, which is not a versioned table",
            "Leave it out, or keep its history with versioned=",
        )
    horizons = (horizon_us(kept.store, own) for own in kept.buckets.values())
    begin_us = max(horizons, default=NO_TIME)
    if begin_us != NO_TIME and as_of < moment(begin_us):
        raise ConfigurationError(
            caller,
            f"as_of={as_of} lies before the history of {kept.store.of}, which begins at "
            f"{moment(begin_us)}",
            "Ask for a later time",
        )


def moment(us: int) -> datetime:
    """A time in microseconds as Python has it; the end of time is in the year 9999."""
    return _FIRST + min(timedelta(microseconds=us), _LAST - _FIRST)


def in_us(time: datetime) -> int:
    """A time in microseconds."""
    return (time - moment(0)) // timedelta(microseconds=1)
