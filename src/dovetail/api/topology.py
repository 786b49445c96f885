"""The common part of tables, streams and windowed tables, whose plan is made. ``Topology`` can be
run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from dovetail.base.columns import DELETED, PROBLEM, TIMESTAMP
from dovetail.base.hints import Hinted, HintedWindows
from dovetail.base.validation import ColumnName, ColumnNames, Path, Positive, Rule, Text, validated
from dovetail.errors import PlanError
from dovetail.io.formats.plain import ReadFormat, format_of
from dovetail.io.formats.unsent import UNSENT
from dovetail.io.sources.kafka import Servers, Starting, Topic, topic_records
from dovetail.io.sources.records import (
    OFFSET,
    PARTITION,
    Malformed,
    RecordMetadata,
    Records,
    readable,
    sound_source,
)
from dovetail.physical.explain import explain
from dovetail.physical.fragment import Buckets, Emit
from dovetail.plan import views
from dovetail.plan.changelog_source import Given, Session, source_of
from dovetail.plan.nodes import Node, changelog_schema
from dovetail.plan.transforms.fill import filled
from dovetail.plan.types.spans import Span
from dovetail.plan.views import Condition, Errors, Item
from dovetail.spark.migration.initial_rows import Initial
from dovetail.spark.query import start
from dovetail.spark.query.dead_letters import dead_letters
from dovetail.spark.query.results import Outcome
from dovetail.spark.query.start import ASink

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from typing_extensions import Self


class Planned(Hinted):
    """A table, a stream or a windowed table with all its inputs. It is immutable."""

    @validated
    def __init__(self, plan: Node) -> None:
        self.plan = plan

    def _columns(self) -> Iterable[str]:
        """Return the names that hints compare a misspelled one with."""
        return self.plan.row.names

    def explain(self) -> None:
        """Print the topology: its joins, its stages, their shuffles and their state."""
        print(explain(self.plan))

    def __repr__(self) -> str:
        names = ", ".join(self.plan.key.names)
        return f"{type(self).__name__}[{self.plan.name}; key {names}]"


class Windowed(HintedWindows, Planned):
    """A windowed table, as a side of a join."""


AWindowedTable: TypeAlias = Annotated[Windowed, Rule("a WindowedTable")]


class Topology(Planned):
    """A table or a stream, which can be run."""

    _stream: ClassVar[bool] = False

    @classmethod
    @validated
    def from_changelog(
        cls,
        frame: DataFrame,
        *,
        key: ColumnNames,
        timestamp: Given,
        deleted: Given | None = None,
        sequence: Given | None = None,
        log_partition: Given | None = None,
        shared_log: bool = False,
        malformed: Malformed = "fail",
        max_ahead: Span | None = None,
        versioned: Span | None = None,
        name: Text | None = None,
    ) -> Self:
        """Read a table or a stream from the rows of a frame.

        Each row of ``frame`` replaces or deletes the row of its key in a table. In a stream each
        row is a record.

        ``key``: the primary key's columns; a table's row with a null among them is dropped and
        counted (metric ``<name>.dropped``). ``timestamp``: the event time, a column or an
        expression of type timestamp; a null fails the query. ``deleted``: a boolean, true for a
        tombstone (a row that deletes its key's row). A column named in ``timestamp``, ``deleted``,
        ``sequence`` or ``log_partition`` is used up; every other column is a value.

        ``sequence``: a whole number, the row's position in a log:

        - alone, in the one log of this source;
        - with ``log_partition``, in that of its partition (Kafka: offset and partition);
        - with ``shared_log``, in one log that all inputs of the topology share, whose rows it
        orders together.

        Without it, files are read in their order, and other rows as Spark reads each partition.

        ``max_ahead``: how far a row's event time may be ahead of the time of reading (``"1 day"``);
        without it there is no limit. ``malformed``: the effect of a row that is further ahead, or
        that has no event time. ``"fail"`` stops the query; ``"drop"`` leaves it out and counts it
        (metric ``<name>.malformed``); ``"dead_letter"`` also keeps it for ``dead_letters()``.

        ``versioned``, for tables: keep the history so long, in stream time (``"7 days"``). A stream
        then joins the version of its record's own time, records may come out of order, and one
        older than the history is ignored.

        ``name``: its name in errors, metrics and checkpoints, ``table[<key>]`` or
        ``stream[<key>]`` by default.

        Raises ``PlanError`` for unknown or duplicate columns and for types that cannot serve.
        Source: Kafka Streams join design, "KTable", "KStream"; KIP-914.
        """
        roles = {
            "timestamp=": timestamp,
            "deleted=": deleted,
            "sequence=": sequence,
            "log_partition=": log_partition,
        }
        source = source_of(
            frame,
            key,
            roles,
            shared_log=shared_log,
            versioned=versioned,
            name=name,
            stream=cls._stream,
        )
        return cls(sound_source(source, malformed, max_ahead))

    @classmethod
    @validated
    def from_topic(
        cls,
        spark: Session,
        topic: Topic,
        *,
        servers: Servers,
        key: ReadFormat | None = None,
        value: ReadFormat = "string",
        key_columns: ColumnNames | None = None,
        timestamp: Given | None = None,
        deleted: Given | None = None,
        metadata: RecordMetadata | None = None,
        name: Text | None = None,
        starting: Starting = "earliest",
        max_per_trigger: Positive | None = None,
        malformed: Malformed = "fail",
        max_ahead: Span | None = None,
        versioned: Span | None = None,
        streaming: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> Self:
        """Read a table or a stream from a Kafka topic.

        A table's record replaces the row of its key; one whose value is null deletes it.

        ``servers``: the brokers. ``starting``: ``"earliest"``, ``"latest"`` or Kafka's JSON of
        offsets. ``max_per_trigger``: the most records of a micro-batch. ``streaming=False`` reads
        the present content of the topic, for a batch run. ``options``: the Kafka source's own.
        ``name``: the topic's by default. All else is as in ``from_records``. Records keep their
        order within a partition.
        """
        frame = topic_records(
            "from_topic",
            spark,
            topic,
            servers=servers,
            starting=starting,
            max_per_trigger=max_per_trigger,
            streaming=streaming,
            options=options,
        )
        return cls._of_records(
            frame,
            key=key,
            value=value,
            key_columns=key_columns,
            timestamp=timestamp,
            deleted=deleted,
            metadata=metadata,
            malformed=malformed,
            max_ahead=max_ahead,
            versioned=versioned,
            name=name or topic,
            topic=topic,
        )

    @classmethod
    @validated
    def from_records(
        cls,
        frame: DataFrame,
        *,
        key: ReadFormat | None = None,
        value: ReadFormat = "string",
        key_columns: ColumnNames | None = None,
        timestamp: Given | None = None,
        deleted: Given | None = None,
        metadata: RecordMetadata | None = None,
        sequence: Given | None = None,
        log_partition: Given | None = None,
        malformed: Malformed = "fail",
        max_ahead: Span | None = None,
        versioned: Span | None = None,
        name: Text | None = None,
    ) -> Self:
        """Read a table or a stream from records of bytes, whatever has brought them.

        A table's record replaces the row of its key; one whose value is null deletes it.

        ``frame``: its columns have the names of Spark's Kafka source: ``value``, binary or
        text, and where there are any ``key``, ``topic``, ``partition``, ``offset``, ``timestamp``
        and ``headers``. So text files are records, too, one a line.

        ``key``, ``value``: ``"string"`` (the default) or ``"bytes"`` (one column, named ``key`` or
        ``value``), the schema of a JSON object, whose fields become columns, or a format:
        ``dt.json(...)``, ``dt.avro(...)``, ``dt.protobuf(...)``, ``dt.debezium(...)``.

        ``key_columns``: the columns that are the key. They may be of the value, of ``metadata``
        and, where ``key`` is given, of the record's key; without ``key`` the record's own is not
        read. A record without a value is a tombstone. It cannot be read where key columns are the
        value's.

        ``metadata``: further columns, by their part of the record: ``{"shard": "topic", "op":
        "headers.__op"}``, or ``"partition"``, ``"offset"``, ``"timestamp"``. A header is the last
        one of its name, as text. ``deleted``: a boolean column, which is used up, or a condition
        over the columns. Where it is true, a record deletes its key's row, as tombstones do.

        ``timestamp``: the event time, a column of the rows, which is used up, or an expression over
        them. Without it, and for deletes that have none, it is the record's own: that of a Debezium
        change, else the header ``dovetail.timestamp_us``, else the record's timestamp.
        ``sequence``, ``log_partition``: as in ``from_changelog``, over the rows; by default the
        record's offset and partition.

        ``max_ahead``: how far an event time may be ahead of the time of reading (``"1 day"``);
        without it there is no limit. ``malformed``: the effect of a record that cannot be read, is
        further ahead, or has no event time. ``"fail"`` stops the query with its place and the
        problem; ``"drop"`` leaves it out and counts it (metric ``<name>.malformed``);
        ``"dead_letter"`` also keeps it for ``dead_letters()``.

        ``versioned``, ``name``: as in ``from_changelog``.

        Raises ``PlanError`` for formats that do not fit, unknown or duplicate columns.
        """
        return cls._of_records(
            frame,
            key=key,
            value=value,
            key_columns=key_columns,
            timestamp=timestamp,
            deleted=deleted,
            metadata=metadata,
            sequence=sequence,
            log_partition=log_partition,
            malformed=malformed,
            max_ahead=max_ahead,
            versioned=versioned,
            name=name,
        )

    @classmethod
    def _of_records(
        cls,
        frame: DataFrame,
        *,
        key: ReadFormat | None,
        value: ReadFormat,
        key_columns: ColumnNames | None,
        timestamp: Given | None,
        deleted: Given | None,
        metadata: RecordMetadata | None,
        malformed: Malformed,
        max_ahead: Span | None,
        versioned: Span | None,
        name: str | None,
        sequence: Given | None = None,
        log_partition: Given | None = None,
        topic: str | None = None,
    ) -> Self:
        """Return a table or a stream of records; see ``from_records``. ``topic``: its name, if
        known.
        """
        kind = "stream" if cls._stream else "table"
        keys = [key_columns] if isinstance(key_columns, str) else list(key_columns or ())
        title = f"{kind} {name}" if name else f"{kind}[{', '.join(keys)}]" if keys else f"a {kind}"
        records = Records(
            title,
            frame,
            None if keys and key is None else format_of("string" if key is None else key),
            format_of(value),
            keys,
            timestamp,
            topic,
            deleted,
            dict(metadata or {}),
            max_ahead,
            cls._stream,
        )
        keys, rows = records.rows()
        label = name or f"{kind}[{', '.join(keys)}]"
        if records.value.keeps and cls._stream:
            raise PlanError(
                title,
                "unsent='keep' is for tables: a stream's records replace none",
                "Read it as a table, and its changes by to_stream()",
            )
        rows, with_unread = readable(records, rows, label, malformed)
        if sequence is None and records.ordered:
            sequence, log_partition = OFFSET, PARTITION
        elif records.ordered:
            rows = rows.drop(OFFSET, PARTITION)
        roles = {
            "timestamp=": TIMESTAMP,
            "deleted=": DELETED,
            "sequence=": sequence,
            "log_partition=": log_partition,
        }
        source = source_of(
            rows.drop("_record", PROBLEM),
            keys,
            roles,
            shared_log=False,
            versioned=versioned,
            name=label,
            stream=cls._stream,
            with_unread=with_unread,
        )
        source = replace(source, grows=records.value.grows)
        return cls(filled(source, UNSENT, "fail") if records.value.keeps else source)

    @validated
    def where(self, condition: Condition, *, errors: Errors = "fail") -> Self:
        """Return the rows that meet a condition.

        ``condition``: a boolean column's name, a Spark expression or SQL over the key, the values
        and ``_timestamp``; a null does not meet it.

        A table's row that ceases to meet it is deleted by a tombstone; one that never met it emits
        nothing. A stream's other records are left out, and those without a value.

        ``errors``: the effect of a row on which the expression fails, as a cast or a division may:

        - ``"fail"`` stops the query;
        - ``"dead_letter"`` leaves the row out as if it had never come, so that a table's former row
        of the key stays. The row is counted (metric ``<name>.failed``) and is a dead letter, for
        ``dt.run`` and ``dead_letters()``.

        Nothing is computed for a tombstone. (A Python function must catch its own errors.)
        """
        return type(self)(views.where(self.plan, condition, errors))

    @validated
    def select(self, *columns: Item, errors: Errors = "fail", **named: Item) -> Self:
        """Return these value columns, by name or as Spark expressions.

        Expressions are over the key, the values and ``_timestamp``; ``name=`` gives another name.
        The key stays, whether named or not. ``errors``: as in ``where``.
        """
        return type(self)(views.selected(self.plan, columns, named, errors))

    @validated
    def with_columns(self, *, errors: Errors = "fail", **named: Item) -> Self:
        """Return all columns, with further computed ones, or ones that replace those of their
        names.

        ``errors``: as in ``where``.
        """
        return type(self)(views.with_columns(self.plan, named, errors))

    @validated
    def drop(self, *columns: ColumnName) -> Self:
        """Return all columns but these; those of the key cannot be dropped."""
        return type(self)(views.dropped(self.plan, columns))

    @validated
    def rename(self, names: Mapping[str, Text]) -> Self:
        """Return all columns, some under new names: ``{"old": "new"}``, of key and values."""
        return type(self)(views.renamed(self.plan, names))

    @property
    def schema(self) -> StructType:
        """The columns of this node's changelog."""
        return changelog_schema(self.plan)

    @validated
    def changelog(self, *, emit: Emit = "change", buckets: Buckets | None = None) -> DataFrame:
        """Return the changes as a frame.

        Over streaming frames any Spark sink takes it, in append mode. Over static frames the same
        topology is one batch, in which the end of the input ends all waiting: windows close, grace
        periods are over.

        Columns: the key, the values, ``_change`` (``upsert`` or ``delete``), ``_timestamp``, and
        ``_position``, which orders the changes of a key. A stream's records are all upserts, but
        for the rows that a join with ``unmatched="retract"`` withdraws: a ``delete`` with the row's
        own values.

        ``emit="change"``: every record's own result. ``emit="batch"``, for tables: per key and
        micro-batch the last one, and none where nothing changed; of static frames these are the
        rows of the final table. ``buckets``: the number of parts of the key space, 8 by default
        and of static frames the session's number of shuffle partitions.

        For a streaming frame the session must have the settings of ``dovetail.settings``;
        ``write_stream`` sets them.
        """
        return start.changelog(self.plan, emit=emit, buckets=buckets)

    @validated
    def write_stream(
        self,
        sink: ASink,
        *,
        checkpoint: Path,
        processingTime: Span | None = None,  # noqa: N803 -- as in DataStreamWriter.trigger
        availableNow: bool = False,  # noqa: N803
        emit: Emit = "change",
        buckets: Buckets | None = None,
        partitions: Buckets | None = None,
        name: Text | None = None,
        initial: Initial | None = None,
        emit_initial: bool = False,
        close_at_end: bool = False,
        idle: Span | None = None,
    ) -> StreamingQuery:
        """Start a query that keeps ``sink`` up to date; an ordinary ``StreamingQuery``.

        ``checkpoint``: a directory for the query's state. Started again with it, the query goes on
        where it stopped, having lost and doubled nothing.

        ``processingTime``, ``availableNow``: as in ``DataStreamWriter.trigger``, a micro-batch
        every so long (``"10 seconds"``), or all there is and then stop; with neither of them as
        fast as data comes. ``buckets``: the number of parts of the key space (8 by default).
        ``partitions``: the number of tasks over which they are spread, by default as many as there
        are cores, and at most as many as buckets. The checkpoint fixes both.

        ``initial``: by name the static frames with which tables begin, one row a key: their columns
        of key and values, and ``_timestamp`` or what ``timestamp=`` reads. Or the checkpoint of a
        query that stands still, whose state and sources this one goes on with, as in
        ``dt.upgrade``. The call stores what the query begins with before it starts it.
        ``emit_initial``: the sink gets its results, as a first micro-batch. A checkpoint that has
        begun ignores both.

        ``close_at_end``, with ``availableNow=True``: once all that there is has been read, a last
        micro-batch ends all waiting: windows close, grace periods are over. Over all of its input
        the result is then that of ``changelog()`` over static frames, however it was cut. The
        query has ended for good: its checkpoint is refused when it is started again.

        ``idle``: once nothing has come for so long, by the wall clock, stream time goes on with
        it, until something comes: windows close, grace periods end, rows expire. Each stage waits
        for its own inputs, all of them. Given when a query starts for the first time, it may be
        left out, or be another, later.

        Raises ``CheckpointError`` where the checkpoint is another topology's, ``PlanError`` where
        two inputs have one name and the same columns.
        """
        return start.start(
            "write_stream",
            [Outcome(self.plan, (sink,))],
            checkpoint=checkpoint,
            trigger=start.trigger_of("write_stream", processingTime, availableNow),
            emit=emit,
            buckets=buckets,
            partitions=partitions,
            name=name,
            initial=initial,
            emit_initial=emit_initial,
            close_at_end=close_at_end,
            idle=idle,
        )

    def dead_letters(self) -> DataFrame:
        """Return the rows that the topology leaves out, as a frame for a query of its own.

        They are records that cannot be read, of sources with ``malformed="dead_letter"``, and rows
        on which an expression fails: a foreign key's, or one with ``errors="dead_letter"``. The
        frame is streaming where the inputs are. ``dt.run`` writes dead letters beside the results,
        without reading or computing them again.

        Columns:

        - ``_operator``: the source, view or join;
        - ``_problem``: the expression that fails, or what is wrong with a record and its place;
        - ``_timestamp``: the row's own or the record's;
        - ``row``: the row as JSON, of a record its ``key`` and ``value`` (``key_base64``,
          ``value_base64`` where they are no text).

        Raises ``PlanError`` where the topology leaves nothing out in these ways.
        """
        return dead_letters(self.plan)


ATopology: TypeAlias = Annotated[
    Topology, Rule("a Table or a Stream (a WindowedTable becomes one by to_table() or to_stream())")
]
