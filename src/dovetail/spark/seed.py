"""Tables that begin with static frames: a query of their rows alone runs first, into a checkpoint
of its own that nothing reads but the first micro-batch of the real one, which takes over what every
bucket has stored there.

So what is stored is what the frames' rows would have left as a first micro-batch, through all
stages; and it is there as a whole or not at all. In the query's checkpoint, ``initial`` has:
``rows``, the frames as files; ``checkpoint``, of the query of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from dovetail.arguments import Rule
from dovetail.columns import LOG_PARTITION, SEQUENCE, TIMESTAMP, quoted
from dovetail.engine import flow
from dovetail.errors import PlanError
from dovetail.files import files_of
from dovetail.physical.line import Plan, Step
from dovetail.plan.fingerprint import origins_of
from dovetail.plan.nodes import Entry, Node, Source
from dovetail.plan.views import View
from dovetail.spark.frames import Streaming
from dovetail.spark.stored import Stored

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Initial: TypeAlias = Annotated[
    Mapping[str, Annotated[DataFrame, Rule("a DataFrame")]],
    Rule("a mapping of tables' names to frames"),
]
FOLDER = "initial"


def folder_of(checkpoint: str) -> str:
    """Where in a query's checkpoint that of the frames' rows is."""
    return f"{checkpoint.rstrip('/')}/{FOLDER}/checkpoint"


def rows_of(
    operator: str, nodes: Sequence[Node], initial: Mapping[str, DataFrame]
) -> dict[Source, DataFrame]:
    """By table the rows that it begins with: key, values and ``_timestamp``; ``operator``: the
    call.

    Raises ``PlanError`` for frames that do not fit the tables, and for names that are none of them.
    """
    for node in nodes:
        if any(part.eventual for part in node.walk()):
            raise PlanError(
                node.name,
                "initial= is for tables that are kept, a join by look-ups keeps none",
                "Leave it out, or join them in state with delta=dt.delta(strategy='none')",
            )
    tables = {source.name: source for source in origins_of(nodes) if not source.stream}
    for name in initial:
        if name not in tables:
            raise PlanError(
                operator,
                f"initial= names {name!r}, which is no table of {nodes[0].name}",
                f"Its tables are {', '.join(tables) or 'none'}",
            )
    return {tables[name]: _rows(tables[name], frame) for name, frame in initial.items()}


def _rows(source: Source, frame: DataFrame) -> DataFrame:
    if frame.isStreaming:
        raise PlanError(
            source.title, "its frame of initial= is a streaming one", "Read it with spark.read"
        )
    for field in source.row:
        known = [own for own in frame.schema if own.name == field.name]
        if len(known) != 1 or known[0].dataType != field.dataType:
            has = f"is {known[0].dataType.simpleString()}" if known else "is missing"
            raise PlanError(
                source.title,
                f"in its frame of initial= column {field.name!r} {has}",
                f"Give it once, as {field.dataType.simpleString()}",
            )
    assert source.timestamp is not None
    time = F.col(TIMESTAMP) if TIMESTAMP in frame.columns else source.timestamp
    columns = [F.col(quoted(name)) for name in source.row.names]
    try:
        rows = frame.select(*columns, time.alias(TIMESTAMP))
    except AnalysisException as error:
        raise PlanError(
            source.title,
            "its frame of initial= has no time",
            f"Give it a column {TIMESTAMP}, or what timestamp= reads",
        ) from error
    if rows.schema[TIMESTAMP].dataType != TimestampType():
        raise PlanError(
            source.title, f"{TIMESTAMP} of its frame of initial= is no timestamp", "Cast it"
        )
    return rows


def written(
    session: SparkSession, checkpoint: str, nodes: Sequence[Node], rows: Mapping[Source, DataFrame]
) -> dict[Source, Source]:
    """By source one that reads the rows that it begins with, from files that are written here in
    place of what an earlier start has left.
    """
    remove(session, checkpoint)
    found = {}
    for number, source in enumerate(origins_of(nodes)):
        path, own = f"{checkpoint.rstrip('/')}/{FOLDER}/rows/{number}", rows.get(source)
        if own is None:
            fields = [*source.row.fields, StructField(TIMESTAMP, TimestampType())]
            own = session.createDataFrame([], StructType(fields))
        made = own.withColumns(
            {LOG_PARTITION: F.spark_partition_id(), SEQUENCE: F.monotonically_increasing_id()}
        )
        made.write.parquet(path)
        # In a log that all inputs share, the rows of several frames come in the order of their
        # times.
        sequence = F.unix_micros(TIMESTAMP) if source.ordered else F.col(SEQUENCE)
        found[source] = replace(
            source,
            frame=session.readStream.schema(made.schema).parquet(path),
            timestamp=F.col(TIMESTAMP),
            deleted=None,
            sequence=None if source.sequence is None else sequence,
            log_partition=None if source.log_partition is None else F.col(LOG_PARTITION),
        )
    return found


@dataclass
class Seeding(Streaming):
    """The stages of a query on the rows that its ``sources`` begin with."""

    sources: Mapping[Source, Source]

    def read(self, step: Step) -> DataFrame:
        """Rows of ``PACKED``, as ``Frames`` makes them."""
        assert isinstance(step.origin, Entry)
        return super().read(replace(step, origin=self._begun(step.origin)))

    def _begun(self, entry: Entry) -> Entry:
        """A source, or a view of it, on its own rows."""
        if isinstance(entry, Source):
            return self.sources[entry]
        assert isinstance(entry, View)
        return replace(entry, node=self._begun(entry.node))


def writer_of(plan: Plan, seeding: Seeding, checkpoint: str) -> DataStreamWriter:
    """The query of the rows, which writes nothing but state."""
    changes = reduce(DataFrame.union, flow.results(plan, seeding))
    writer = changes.writeStream.format("noop").option("checkpointLocation", folder_of(checkpoint))
    return writer.trigger(availableNow=True)


def blobs_of(operator: str, session: SparkSession, checkpoint: str) -> dict[str, DataFrame]:
    """By the fingerprint of a stage what its buckets begin with: ``bucket``, ``name``, ``blob``."""
    stored = Stored.of(operator, session, folder_of(checkpoint), None)
    return {
        kept.stage.topology: stored.blobs(kept.operator)
        for kept in {kept.operator: kept for kept in stored.stores}.values()
    }


def remove(session: SparkSession, checkpoint: str) -> None:
    """Remove what the query no longer needs, if it is there."""
    files_of(session).clear(f"{checkpoint.rstrip('/')}/{FOLDER}")
