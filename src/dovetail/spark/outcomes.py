"""Where results leave a query that has several, or several sinks: each micro-batch is computed once
and kept while it is written, each result by its own sinks, all of them at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pyspark import InheritableThread
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dovetail.columns import CHANGE, EVENT_TIME, POSITION, TIMESTAMP, UPSERT, quoted
from dovetail.engine.pack import DEAD_LETTERS
from dovetail.errors import DovetailError, TargetError, line_of
from dovetail.physical.line import Plan, walk
from dovetail.physical.output import Output, output_of
from dovetail.physical.stage import Stage
from dovetail.plan.arrow import spark_schema
from dovetail.plan.dead_letters import DeadLetters
from dovetail.plan.nodes import Node, changelog_schema
from dovetail.plan.views import View
from dovetail.sessions import keep, numbered, release
from dovetail.spark import project
from dovetail.spark.frames import unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WriteBatch: TypeAlias = "Callable[[DataFrame, int], None]"
"""Writes a micro-batch's rows of a result, given with its number; again after a failure, and then
the target is as if it had been once.
"""
WriteBatches: TypeAlias = "Callable[[Sequence[DataFrame], int], None]"
"""Writes a micro-batch's rows of several results, in the same way."""


class Sink(Protocol):
    """Where a changelog goes."""

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer; the query adds checkpoint, trigger and name, and starts it."""


class BatchSink(Sink, Protocol):
    """A sink that can be one of several of a query."""

    @property
    def title(self) -> str:
        """What errors call it."""

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """What writes the micro-batches of a query with several results; called once, before the
        query starts. The rows of a batch have the columns of the node's changelog.
        """


class JointSink(BatchSink, Protocol):
    """A sink that is written together with others of its database."""

    @property
    def database(self) -> Hashable:
        """Where the sink's micro-batches are committed."""

    def joint(
        self, session: SparkSession, sinks: Sequence[tuple[JointSink, Node]], checkpoint: str
    ) -> WriteBatches:
        """As ``batches``, for several sinks of one database, each with its result."""


@dataclass(frozen=True)
class Outcome:
    """A result, and where it goes; one of several must be a ``BatchSink``."""

    node: Node
    sinks: tuple[Any, ...]

    def across_runs(self) -> Outcome:
        """The result, its sinks such that two runs of a query are one for them."""
        sinks = (s.across_runs() if hasattr(s, "across_runs") else s for s in self.sinks)
        return replace(self, sinks=tuple(sinks))


@dataclass(frozen=True)
class _End:
    """How the rows of a result lie in what the query puts out, addressed to ``number``: as those of
    ``output``, of which ``stage`` still makes the changelog if it is one that computes; ``views``:
    as what that is read.
    """

    number: int
    node: Node
    output: Output
    stage: Stage | None
    views: tuple[View, ...] = ()

    def rows(self, kept: DataFrame, batch: int) -> DataFrame:
        """Its changelog of a micro-batch, a key's changes in their order."""
        own = kept.where(F.col("reader") == self.number)
        rows = unpacked(own.sortWithinPartitions("partition", "number"), self.output)
        names = changelog_schema(self.node).names
        if isinstance(self.node, DeadLetters):
            time = F.coalesce(F.timestamp_micros(EVENT_TIME), F.current_timestamp())
            place = F.lit(batch).cast("long") * (1 << 32) + F.monotonically_increasing_id()
            rows = (
                rows.coalesce(1)
                .withColumn(CHANGE, F.lit(UPSERT))
                .withColumn(TIMESTAMP, time)
                .withColumn(POSITION, place)
            )
        elif self.stage is not None:
            rows = project.changelog(rows, self.stage)
        rows = reduce(project.viewed, self.views, rows)
        return rows.select(*map(F.col, map(quoted, names)))


def _ends(plan: Plan, nodes: Sequence[Node]) -> list[_End]:
    """``nodes``: the plan's results, the dead letters last if they are wanted."""
    raw = {step.result for step in walk(plan.ends) if not step.is_read}
    found = []
    for number, node in enumerate(nodes):
        place = plan.addresses[number]
        if isinstance(node, DeadLetters):
            output = Output(spark_schema(DEAD_LETTERS), {})
            found.append(_End(place, node, output, None))
            continue
        stage, views = plan.results[number].stage, plan.results[number].views
        output = output_of(stage)
        computes = stage if output.held is None else None
        if place not in raw:
            output, computes = Output(_nullable(changelog_schema(stage.node)), {}), None
        found.append(_End(place, node, output, computes, views))
    return found


def writer(
    rows: DataFrame, plan: Plan, outcomes: Sequence[Outcome], checkpoint: str
) -> DataStreamWriter:
    """The writer of a query that puts out ``rows``, all results of a plan."""
    session = rows.sparkSession
    ends = _ends(plan, [outcome.node for outcome in outcomes])
    pairs = [(e, sink) for e, o in zip(ends, outcomes, strict=True) for sink in o.sinks]
    writes = [_write(session, own, checkpoint) for own in _by_database(pairs)]

    def write(batch: DataFrame, number: int) -> None:
        results = batch.where(F.col("payload").isNotNull())
        kept = keep(results.select("reader", "partition", "number", "payload"))
        try:
            # All of it is computed here, so what fails from now on is a sink.
            kept.select("reader").collect()
            _write_all(writes, kept, number)
        finally:
            release(kept)

    return rows.writeStream.foreachBatch(numbered(session, write))


def _by_database(pairs: Sequence[tuple[_End, Any]]) -> list[list[tuple[_End, Any]]]:
    """Sinks in groups that are written together: those of one database, and each other one."""
    joint = [hasattr(sink, "joint") for _, sink in pairs]
    if sum(joint) < 2:
        return [[pair] for pair in pairs]
    groups: dict[Hashable, list[tuple[_End, Any]]] = {}
    for number, (pair, is_joint) in enumerate(zip(pairs, joint, strict=True)):
        groups.setdefault(pair[1].database if is_joint else number, []).append(pair)
    return [*groups.values()]


def _write(session: SparkSession, pairs: Sequence[tuple[_End, Any]], checkpoint: str) -> _Write:
    """The writer of sinks that are written together."""
    ends, sinks = [end for end, _ in pairs], [sink for _, sink in pairs]
    title = ", ".join(sink.title for sink in sinks)
    if len(pairs) > 1:
        joint = [(sink, end.node) for end, sink in pairs]
        return _Write(ends, title, sinks[0].joint(session, joint, checkpoint))
    alone = sinks[0].batches(session, ends[0].node, checkpoint)
    return _Write(ends, title, lambda batches, number: alone(batches[0], number))


@dataclass(frozen=True)
class _Write:
    """Sinks that are written together."""

    ends: Sequence[_End]
    """The results of the sinks."""
    title: str
    write: WriteBatches

    def __call__(self, kept: DataFrame, number: int) -> None:
        try:
            self.write([end.rows(kept, number) for end in self.ends], number)
        except DovetailError:
            raise
        except Exception as error:
            results = ", ".join(end.node.name for end in self.ends)
            raise TargetError(
                self.title,
                f"micro-batch {number} of {results} cannot be written: {line_of(error)}",
                "Mend what it names and start the query again",
            ) from error


def _write_all(writes: Sequence[_Write], kept: DataFrame, number: int) -> None:
    """All sinks at the same time; what the first of them raises, when all are done."""
    failed: list[Exception] = []

    def attempt(write: _Write) -> None:
        try:
            write(kept, number)
        except Exception as error:
            failed.append(error)

    threads = [
        InheritableThread(target=attempt, args=(write,), session=kept.sparkSession)
        for write in writes[1:]
    ]
    for thread in threads:
        thread.start()
    attempt(writes[0])
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def _nullable(columns: StructType) -> StructType:
    return spark_schema(Output(columns, {}).schema)
