"""The common part of tables, streams and windowed tables, whose plan is made. ``Topology`` can be
run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from os import fspath
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias, overload

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from dovetail.api.previews import Preview, preview_of
from dovetail.base.columns import DELETED, PROBLEM, TIMESTAMP
from dovetail.base.hints import Hinted, HintedWindows
from dovetail.base.text_cells import columns_text
from dovetail.base.validation import (
    ColumnName,
    ColumnNames,
    Path,
    Positive,
    Rule,
    Seconds,
    Text,
    validated,
)
from dovetail.errors import PlanError
from dovetail.io.formats.plain import ReadFormat, format_of
from dovetail.io.formats.transactions import TRANSACTION
from dovetail.io.formats.unsent_values import UNSENT
from dovetail.io.sources.kafka import Servers, Starting, Topic, topic_records
from dovetail.io.sources.records import (
    OFFSET,
    PARTITION,
    Malformed,
    RecordFrame,
    RecordMetadata,
    readable_rows,
    source_without_unplaced,
)
from dovetail.io.sources.replays import source_with_replays
from dovetail.physical.fragment import Buckets, Emit
from dovetail.pictures.formats import ExplainFormat, PictureFormat, notebook_forms, print_or_draw
from dovetail.plan import views
from dovetail.plan.changelog_source import Given, Session, source_of
from dovetail.plan.nodes import Node, changelog_schema
from dovetail.plan.transforms.expectation import ExpectationName, OnFail, expectation
from dovetail.plan.transforms.fill import Missing, fill_unsent
from dovetail.plan.transforms.transact import without_replaced_rows
from dovetail.plan.types.spans import Span
from dovetail.plan.views import Condition, Errors, Item
from dovetail.spark.query import start
from dovetail.spark.query.dead_letters import dead_letters
from dovetail.spark.query.options import QueryOptions
from dovetail.spark.query.results import Outcome
from dovetail.spark.query.start import ASink

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from typing_extensions import Self, Unpack


class Planned(Hinted):
    """A table, a stream or a windowed table with all its inputs. It is immutable."""

    @validated
    def __init__(self, plan: Node) -> None:
        self.plan = plan

    def _columns(self) -> Iterable[str]:
        """Return the names of the key columns, then of the value columns. If a user writes one as
        an attribute, the error says how to name a column (``Hinted``).
        """
        return self.plan.row.names

    @overload
    def explain(self, *, format: Literal["text"] = "text", reasons: bool = False) -> None: ...

    @overload
    def explain(self, *, format: PictureFormat, reasons: bool = False) -> str: ...

    @validated
    def explain(
        self,
        *,
        format: ExplainFormat = "text",  # noqa: A002
        reasons: bool = False,
    ) -> str | None:
        """Print the topology, or draw it: its joins, its stages, their shuffles and their state.

        Nothing runs. A topology is a table, a stream or a windowed table with all its
        inputs.

        Parameters
        ----------
        format : {"text", "mermaid", "svg", "html"}, default "text"
            ``"text"`` prints trees of joins and the stages. ``"mermaid"`` is a flowchart
            that GitHub and many notebooks draw. ``"svg"`` is an image, and ``"html"`` a page
            with the image and a table of its boxes. These two need
            ``pip install 'dovetail[pictures]'``.
        reasons : bool, default False
            True to print why each stage shuffles and stores rows. An image shows it where the
            pointer rests on a stage, a page in a table.

        Returns
        -------
        str or None
            The picture, or None for ``"text"``.

        Raises
        ------
        ConfigurationError
            If ``"svg"`` or ``"html"`` is asked for and the package ``grandalf`` is missing.

        See Also
        --------
        explain : The same of several results of one query.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> schema = {"id": pa.int64(), "paid": pa.int64()}
        >>> payments = testing.table("payments", key="id", schema=schema)
        >>> orders.join(payments, how="left").explain()
        Topology
        left join by key  (key id; amount, paid)
        ├─ orders  (key id; amount)
        └─ payments  (key id; paid)
        <BLANKLINE>
        Stage 1
          shuffle  orders, payments by key (id bigint)
          state    orders: last row per key
                   payments: last row per key
        """
        return print_or_draw((self.plan,), format, reasons=reasons)

    @validated
    def preview(
        self,
        n: Positive = 20,
        *,
        changes: bool = False,
        input_rows: Positive = 1000,
        timeout_s: Seconds = 60,
    ) -> Preview:
        """Return the first rows: current rows of a table, or records of a stream.

        A preview is for looking. No query starts that lasts, and no checkpoint is touched.

        Parameters
        ----------
        n : int, default 20
            The most rows to return.
        changes : bool, default False
            True for the changes of a table, in their order, instead of its current rows.
        input_rows : int, default 1000
            The most rows that are read of each streaming input. Static inputs are read
            whole.
        timeout_s : float, default 60
            The most seconds that the inputs may take, and again the result.

        Returns
        -------
        Preview
            The rows. It prints as a table in text, and notebooks show it as a table.

        Raises
        ------
        ConfigurationError
            If an input cannot be read, or if an input or the result takes too long. Also
            for streaming inputs on Spark Connect.
        PlanError
            If an argument is not of its kind, or if an input cannot be run.

        See Also
        --------
        Table.show : Print the first rows.
        Table.changelog : Return all changes as a frame.
        Table.write_stream : Start a query that keeps a sink up to date.

        Notes
        -----
        - Over streaming inputs the result is that of their first rows, as if no more would
          come. Windows close, and a row whose match was not read stays unmatched.
        - Rows of a table are in the order of its key, changes and records in their own.
        - A query of its own reads a streaming input, from where a new query would begin. It
          takes what is there now. Of ``rate`` and ``socket`` it waits for first rows.
        - A table with ``late="history"`` shows its changes, because they correct the past.

        Examples
        --------
        >>> import dovetail as dt
        >>> columns = "id long, amount long, time long"
        >>> rows = spark.createDataFrame([(1, 40, 1), (2, 7, 2), (1, 55, 3)], columns)
        >>> rows = rows.selectExpr("id", "amount", "timestamp_micros(time) AS at")
        >>> orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders")
        >>> orders.preview()
        time | id | amount
        3    | 1  | 55
        2    | 2  | 7
        2 rows of orders

        Its changes, in their order:

        >>> orders.preview(2, changes=True)
        time | id | amount | change
        1    | 1  | 40     | upsert
        2    | 2  | 7      | upsert
        the first 2 changes of orders; there are more
        """
        return preview_of(
            self.plan, limit=n, changes=changes, input_rows=input_rows, timeout_s=timeout_s
        )

    @validated
    def show(
        self,
        n: Positive = 20,
        *,
        changes: bool = False,
        input_rows: Positive = 1000,
        timeout_s: Seconds = 60,
    ) -> None:
        """Print the first rows: current rows of a table, or records of a stream.

        Parameters
        ----------
        n : int, default 20
            The most rows to print.
        changes : bool, default False
            True for the changes of a table, in their order, instead of its current rows.
        input_rows : int, default 1000
            The most rows that are read of each streaming input. Static inputs are read
            whole.
        timeout_s : float, default 60
            The most seconds that the inputs may take, and again the result.

        Raises
        ------
        ConfigurationError
            If an input cannot be read, or if an input or the result takes too long. Also
            for streaming inputs on Spark Connect.
        PlanError
            If an argument is not of its kind, or if an input cannot be run.

        See Also
        --------
        Table.preview : Return these rows, and what a preview is.

        Examples
        --------
        >>> import dovetail as dt
        >>> rows = spark.createDataFrame([(1, 40), (2, 7)], "id long, amount long")
        >>> rows = rows.selectExpr("id", "amount", "timestamp_micros(id) AS at")
        >>> clicks = dt.Stream.from_changelog(rows, key="id", timestamp="at", name="clicks")
        >>> clicks.show(1)
        time | id | amount
        1    | 1  | 40
        the first 1 row of clicks; there are more
        """
        print(self.preview(n, changes=changes, input_rows=input_rows, timeout_s=timeout_s))

    @property
    def _title(self) -> str:
        """The class, the name and the key columns as text, such as ``Table[orders; key id]``."""
        return f"{type(self).__name__}[{self.plan.name}; key {', '.join(self.plan.key.names)}]"

    def __repr__(self) -> str:
        columns = ((field.name, field.dataType.simpleString()) for field in self.plan.row)
        return columns_text(self._title, columns)

    def _repr_html_(self) -> str:
        return notebook_forms(self._title, self.plan)["text/html"]

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": repr(self), **notebook_forms(self._title, self.plan)}


class WindowedSide(HintedWindows, Planned):
    """A windowed table, as a side of a join."""


AWindowedTable: TypeAlias = Annotated[WindowedSide, Rule("a WindowedTable")]


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

        Each row replaces or deletes the row of its key in a table. In a stream each row
        is a record.

        Parameters
        ----------
        frame : DataFrame
            The rows: a streaming frame in a query, a static frame in a batch run.
        key : str or sequence of str
            The columns of the key. A table's row with a null among them is dropped and
            counted in the metric ``<name>.dropped``. A stream keeps such a record.
        timestamp : str or Column
            The event time: a column or an expression of type timestamp. For nulls see
            ``malformed``.
        deleted : str or Column, optional
            A boolean column or expression; null counts as false. In a table, true marks a
            tombstone: a row that deletes its key's row. In a stream, true marks a record
            without a value. By default none is.
        sequence : str or Column, optional
            A whole number, the row's position in a log. Alone, it is a position in the
            one log of this source. By default files are read in their order, and other
            rows as Spark reads each partition.
        log_partition : str or Column, optional
            A whole number, the log that ``sequence`` belongs to, such as Kafka's partition.
        shared_log : bool, default False
            True if ``sequence`` is a position in one log that all inputs of the topology
            share. Rows of all inputs are then ordered together.
        malformed : {"fail", "drop", "dead_letter"}, default "fail"
            The effect of a row that has no event time, or one further ahead than
            ``max_ahead``. ``"fail"`` stops the query. ``"drop"`` leaves the row out and
            counts it in the metric ``<name>.malformed``. ``"dead_letter"`` also keeps it
            for ``dead_letters``.
        max_ahead : str or timedelta, optional
            The span by which an event time may be ahead of the time of reading, such as
            ``"1 day"``. By default there is no limit.
        versioned : str or timedelta, optional
            For tables: keep the history of rows for this span of stream time, such as
            ``"7 days"``. Stream time is the largest event time so far. A stream then
            joins the version of its record's own time. Rows may come out of order; one
            older than the history is ignored. By default a table has its latest rows
            alone: a row replaces that of its key, whatever its event time.
        name : str, optional
            The name in errors, metrics and checkpoints. By default ``table[<key>]`` or
            ``stream[<key>]``.

        Returns
        -------
        Table or Stream
            A table from ``Table.from_changelog``, a stream from
            ``Stream.from_changelog``. A column named in ``timestamp``, ``deleted``,
            ``sequence`` or ``log_partition`` is used up. An expression uses nothing up.
            All columns but these and the key are values.

        Raises
        ------
        PlanError
            If a column is unknown, reserved or occurs twice, if a type cannot serve, or if
            arguments contradict each other. Also if a streaming frame makes other rows when it
            is read again, as one with ``rand()`` does.
        DataError
            In a batch, if a row has no event time under ``malformed="fail"``.

        See Also
        --------
        Table.from_records : Read records of bytes, such as JSON or Avro.
        Table.from_topic : Read a Kafka topic.
        Table.from_delta : Read a Delta table with its changes.
        Table.from_static : Read rows that do not change.

        Notes
        -----
        Source: Kafka Streams join design, "KTable", "KStream"; KIP-914.

        Examples
        --------
        >>> import dovetail as dt
        >>> rows = spark.createDataFrame(
        ...     [(1, 40, False, 1), (1, 55, False, 2), (1, None, True, 3)],
        ...     "id long, amount long, gone boolean, time long",
        ... ).selectExpr("id", "amount", "gone", "timestamp_micros(time) AS at")
        >>> orders = dt.Table.from_changelog(rows, key="id", timestamp="at", deleted="gone")
        >>> orders.schema.names
        ['id', 'amount', '_change', '_timestamp', '_position']
        >>> changes = orders.changelog().orderBy("_position").select("id", "amount", "_change")
        >>> [tuple(row) for row in changes.collect()]
        [(1, 40, 'upsert'), (1, 55, 'upsert'), (1, None, 'delete')]
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
        return cls(source_without_unplaced(source, malformed, max_ahead))

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

        In a table, a record replaces the row of its key, and a null value deletes it.
        Records keep their order within a partition. The session needs Kafka's jar.

        Parameters
        ----------
        spark : SparkSession
            The session.
        topic : str
            The name of one topic.
        servers : str
            The brokers as ``host:port``, separated by commas.
        key : str, schema or format, optional
            The format of a record's key, given as in ``value``. By default ``"string"``
            without ``key_columns``; with them, the record's own key is not read.
        value : str, schema or format, default "string"
            The format of a record's value. ``"string"`` or ``"bytes"``: one column, named
            ``key`` or ``value``. The schema of a JSON object: its fields become columns.
            Or a format of ``dt.formats``, such as ``json``, ``avro``, ``protobuf`` or
            ``dt.formats.debezium`` make.
        key_columns : str or sequence of str, optional
            The columns of the key. They may be of the value, of ``metadata`` and, if
            ``key`` is given, of the record's key. By default all columns of the record's
            key. A table's row with a null among them is dropped and counted in the metric
            ``<name>.dropped``. A stream keeps such a record.
        timestamp : str or Column, optional
            The event time: a column, which is used up, or an expression. By default the
            record's own time: that of a Debezium change, else the header
            ``dovetail.timestamp_us``, else Kafka's timestamp.
        deleted : str or Column, optional
            A boolean column, which is used up, or a condition; null counts as false. Where
            it is true, the record deletes its key's row, as a null value does.
        metadata : mapping of str to str, optional
            Further columns by their part of the record, such as ``{"op": "headers.__op"}``.
        name : str, optional
            The name in errors, metrics and checkpoints; by default the topic's.
        starting : str, default "earliest"
            The first offsets of a new query: ``"earliest"``, ``"latest"`` or Kafka's JSON
            of offsets.
        max_per_trigger : int, optional
            The largest number of records of a micro-batch. By default there is no limit.
        malformed : {"fail", "drop", "dead_letter"}, default "fail"
            The effect of a record that cannot be read, has no event time, or is further
            ahead than ``max_ahead``. ``"fail"`` stops the query with its place and the
            problem. ``"drop"`` leaves the record out and counts it in the metric
            ``<name>.malformed``. ``"dead_letter"`` also keeps it for ``dead_letters``.
        max_ahead : str or timedelta, optional
            The span by which an event time may be ahead of the time of reading, such as
            ``"1 day"``. By default there is no limit.
        versioned : str or timedelta, optional
            For tables: keep the history of rows for this span of stream time, such as
            ``"7 days"`` (see ``from_changelog``). By default a table has its latest rows
            alone.
        streaming : bool, default True
            False reads the present content of the topic, for a batch run.
        options : mapping of str to str, optional
            Options of the Kafka source itself.

        Returns
        -------
        Table or Stream
            A table if the call is made on ``Table``, a stream if it is made on ``Stream``.

        Raises
        ------
        PlanError
            If ``topic`` is not the name of one topic, or if ``max_per_trigger`` is given
            without ``streaming``. If a format does not fit, or if a column is unknown or
            occurs twice. Also if a format of tables is read as a stream.
        ConfigurationError
            If the session lacks Kafka's jar, or if the topic cannot be read.

        See Also
        --------
        Table.from_records : The same arguments in detail, for records from anywhere.
        to_topic : Write changes to a Kafka topic.

        Examples
        --------
        >>> import dovetail as dt
        >>> def read_orders(spark):
        ...     return dt.Table.from_topic(
        ...         spark,
        ...         "orders",
        ...         servers="localhost:9092",
        ...         value=dt.formats.json("id long, amount long, at timestamp"),
        ...         key_columns="id",
        ...         timestamp="at",
        ...     )

        ``from_records`` reads a frame of such records in the same way:

        >>> records = spark.createDataFrame([('{"id": 1, "amount": 40}',)], "value string")
        >>> records = records.selectExpr("value", "current_timestamp() AS timestamp")
        >>> value = dt.formats.json("id long, amount long")
        >>> dt.Table.from_records(records, value=value, key_columns="id", name="orders")
        Table[orders; key id]
          id bigint, amount bigint
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
        """Read a table or a stream from a frame of records of bytes, from any system.

        In a table, a record replaces the row of its key. A record without a value is a
        tombstone: it deletes its key's row.

        Parameters
        ----------
        frame : DataFrame
            The records. Its columns have the names of Spark's Kafka source: ``value``,
            binary or text. It may also have ``key``, ``topic``, ``partition``,
            ``offset``, ``timestamp`` and ``headers``. So text files are records, too, one
            a line.
        key : str, schema or format, optional
            The format of a record's key, given as in ``value``. By default ``"string"``
            without ``key_columns``; with them, the record's own key is not read.
        value : str, schema or format, default "string"
            The format of a record's value. ``"string"`` or ``"bytes"``: one column, named
            ``key`` or ``value``. The schema of a JSON object: its fields become columns.
            Or a format of ``dt.formats``, such as ``json``, ``avro``, ``protobuf`` or
            ``dt.formats.debezium`` make.
        key_columns : str or sequence of str, optional
            The columns of the key. They may be of the value, of ``metadata`` and, if
            ``key`` is given, of the record's key. By default all columns of the record's
            key. If they are the value's, a record without a value cannot be read. A table's
            row with a null among them is dropped and counted in the metric
            ``<name>.dropped``. A stream keeps such a record.
        timestamp : str or Column, optional
            The event time: a column of the rows, which is used up, or an expression over
            them. By default, and for deletes that have none, the record's own time. The
            own time is that of a Debezium change, else the header
            ``dovetail.timestamp_us``, else the record's ``timestamp``.
        deleted : str or Column, optional
            A boolean column, which is used up, or a condition over the columns; null counts
            as false. Where it is true, a record deletes its key's row, as a record without a
            value does.
        metadata : mapping of str to str, optional
            Further columns by their part of the record: ``"topic"``, ``"partition"``,
            ``"offset"``, ``"timestamp"`` or ``"headers.<name>"``. A header is the last
            one of its name, as text. For instance
            ``{"shard": "topic", "op": "headers.__op"}``.
        sequence : str or Column, optional
            A whole number over the rows, the position in a log; by default the record's
            offset.
        log_partition : str or Column, optional
            A whole number over the rows, the log that ``sequence`` belongs to. By default all
            rows are in one log or, without ``sequence``, in that of the record's partition.
            With a column ``topic``, each topic has its own partitions.
        malformed : {"fail", "drop", "dead_letter"}, default "fail"
            The effect of a record that cannot be read, has no event time, or is further
            ahead than ``max_ahead``. ``"fail"`` stops the query with its place and the
            problem. ``"drop"`` leaves the record out and counts it in the metric
            ``<name>.malformed``. ``"dead_letter"`` also keeps it for ``dead_letters``.
        max_ahead : str or timedelta, optional
            The span by which an event time may be ahead of the time of reading, such as
            ``"1 day"``. By default there is no limit.
        versioned : str or timedelta, optional
            For tables: keep the history of rows for this span of stream time, such as
            ``"7 days"`` (see ``from_changelog``). By default a table has its latest rows
            alone.
        name : str, optional
            The name in errors, metrics and checkpoints. By default ``table[<key>]`` or
            ``stream[<key>]``.

        Returns
        -------
        Table or Stream
            A table if the call is made on ``Table``, a stream if it is made on ``Stream``.

        Raises
        ------
        PlanError
            If a format does not fit, or if a column is unknown or occurs twice. If the frame
            lacks a column that is read, or has it in another type. Also if a format of tables
            is read as a stream.

        See Also
        --------
        Table.from_topic : Read a Kafka topic.
        Table.from_changelog : Read rows whose columns need no decoding.
        json : A format for JSON with options.
        debezium : A format for Debezium's change events.

        Examples
        --------
        >>> import dovetail as dt
        >>> rows = [("A1", '{"state": "open", "at": "2024-05-01T10:00:00Z"}')]
        >>> records = spark.createDataFrame(rows, "key string, value string")
        >>> accounts = dt.Table.from_records(
        ...     records,
        ...     key="string",
        ...     value=dt.formats.json("state string, at timestamp"),
        ...     timestamp="at",
        ... )
        >>> accounts
        Table[table[key]; key key]
          key string, state string
        >>> accounts.schema.names
        ['key', 'state', '_change', '_timestamp', '_position']
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
        """Return a table or a stream of the records in ``frame``, whose columns have the names of
        Spark's Kafka source, such as ``value``.

        - ``key``, ``value``: the formats of a record's key and value. ``key`` None is ``"string"``
          or, with ``key_columns``, leaves the record's key unread.
        - ``key_columns``: the columns of the result's key; None for those of the record's key.
        - ``timestamp``: the event time; None for the record's own. ``deleted``: a condition that
          makes a record a delete, as a missing value does; None for no condition.
        - ``metadata``: further columns, by their part of the record.
        - ``malformed``: the effect of a record that cannot be read or has no event time.
        - ``max_ahead``: the most that an event time may be ahead; None for no limit.
        - ``versioned``: the span of a table's history; None for none. ``name``: the user's name.
        - ``sequence``, ``log_partition``: the position in a log, and the log; None for the record's
          offset and partition.
        - ``topic``: the topic that all records are from; None if they may be from others.

        With a format that has ``transactions=True`` or ``unsent="keep"``, the result's plan is a
        node above its source. Raises ``PlanError`` if formats, columns or the frame do not fit, and
        for a stream with such a format. Also for a versioned table whose format ``mixes_clocks``,
        unless ``timestamp`` is given.
        """
        kind = "stream" if cls._stream else "table"
        keys = [key_columns] if isinstance(key_columns, str) else list(key_columns or ())
        title = f"{kind} {name}" if name else f"{kind}[{', '.join(keys)}]" if keys else f"a {kind}"
        records = RecordFrame(
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
        for option, is_given in (
            (f"unsent={records.value.unsent!r}", records.value.keeps),
            ("transactions=True", records.value.transacts),
        ):
            if is_given and cls._stream:
                raise PlanError(
                    title,
                    f"{option} is for tables: a stream's records replace none",
                    "Read it as a table, and its changes by to_stream()",
                )
        if versioned is not None and timestamp is None and records.value.mixes_clocks:
            raise PlanError(
                title,
                "it is versioned, and with tombstones='delete' a tombstone has the time of its "
                "record. That is later than the delete, so a row that came again in between would "
                "be gone",
                "Leave out tombstones=, or give all changes the time of their records: "
                "metadata={'written': 'timestamp'}, timestamp='written'",
            )
        rows, with_unread = readable_rows(records, rows, label, malformed)
        if records.ordered and sequence is None:
            sequence, log_partition = OFFSET, PARTITION if log_partition is None else log_partition
        if records.ordered:
            unused = {OFFSET, PARTITION}.difference(
                role for role in (sequence, log_partition) if isinstance(role, str)
            )
            rows = rows.drop(*unused)
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
        plan: Node = (
            without_replaced_rows(source, TRANSACTION) if records.value.transacts else source
        )
        if not records.value.keeps:
            return cls(plan)
        missing: Missing = "null" if records.value.unsent == "keep_or_null" else "fail"
        return cls(fill_unsent(plan, UNSENT, missing))

    @validated
    def with_replays(self, folder: Path) -> Self:
        """Read mended dead letters from a folder, beside the rows of this source.

        ``dt.replay`` sends them there, while the query runs or before its next start.

        Parameters
        ----------
        folder : str or path
            A folder of this source's own, which is created.

        Returns
        -------
        Table or Stream
            The source, with the mended rows among its rows.

        Raises
        ------
        PlanError
            If this is not what a reader has returned, or if it is read with ``shared_log``.
            Also for a table of ``from_static``, and for a source that has a folder already.
        ConfigurationError
            If the folder cannot be created.

        See Also
        --------
        replay : Send mended dead letters to the folder.
        dead_letters : The dead letters of a query, as one of its results.

        Notes
        -----
        A mended row takes effect when it is read, as any other row that arrives late. It
        is in no order with the rows of a topic's partition. Files of rows and of mended
        rows are read in the order in which they were written.

        A query has the folder from its first start on, because its checkpoint counts its
        sources.

        Examples
        --------
        >>> import tempfile
        >>> import dovetail as dt
        >>> folder = tempfile.TemporaryDirectory()
        >>> rows = spark.createDataFrame([(1, 40)], "id long, amount long")
        >>> rows = rows.selectExpr("id", "amount", "timestamp_micros(1) AS at")
        >>> orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders")
        >>> orders.with_replays(f"{folder.name}/mended")
        Table[orders; key id]
          id bigint, amount bigint
        """
        return type(self)(source_with_replays(self.plan, fspath(folder)))

    @validated
    def where(self, condition: Condition, *, errors: Errors = "fail") -> Self:
        """Keep the rows that meet a condition.

        Parameters
        ----------
        condition : str or Column
            The name of a boolean column, a Spark expression or a text in SQL. It is over
            the key, the values and ``_timestamp``, the event time. A row for which it is
            null does not meet it.
        errors : {"fail", "dead_letter"}, default "fail"
            The effect of a row on which the expression fails, as a cast or a division
            may. ``"fail"`` stops the query. ``"dead_letter"`` leaves the row out as if it
            had never come, so a table's former row of the key stays. The row is counted
            in the metric ``<name>.failed``, and is a dead letter for ``dt.run`` and
            ``dead_letters``.

        Returns
        -------
        Table or Stream
            The rows that meet the condition. A table's row that ceases to meet it is
            deleted by a tombstone: a change with the key and no values, under the time of
            the record. A row that never met it emits nothing. A stream's other records are
            left out, and so are records without a value.

        Raises
        ------
        PlanError
            If the condition names an unknown column, is not boolean, or is random. An
            expression or SQL needs a Spark session. For a join of histories
            (``late="history"``), and for a stream that withdraws rows
            (``unmatched="retract"``).

        See Also
        --------
        Table.select : Choose value columns.

        Notes
        -----
        Nothing is computed for a tombstone. A Python function must catch its own errors.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "open": pa.bool_()}
        >>> doors = testing.table("doors", key="id", schema=schema)
        >>> driver = testing.Driver(doors.where("open"))
        >>> driver.pipe(doors, {"id": 1, "open": None}, timestamp=1)
        []
        >>> driver.pipe(doors, {"id": 1, "open": True}, timestamp=2)
        [<id=1: open=True @2>]
        >>> driver.pipe(doors, {"id": 1, "open": False}, timestamp=3)
        [<id=1: deleted @3>]
        """
        return type(self)(views.where(self.plan, condition, errors))

    @validated
    def expect(
        self,
        condition: Condition,
        *,
        on_fail: OnFail = "fail",
        name: ExpectationName | None = None,
    ) -> Self:
        """Check a condition on each row, and count the rows that do not meet it.

        Parameters
        ----------
        condition : str or Column
            The name of a boolean column, a Spark expression or a text in SQL. It is over
            the key, the values and ``_timestamp``, the event time. A row on which it is
            null, or cannot be computed, does not meet it.
        on_fail : {"fail", "drop", "dead_letter", "warn"}, default "fail"
            The treatment of a row that does not meet the condition.

            - ``"fail"`` stops the query. The error names the expectation and a row.
            - ``"drop"`` leaves the row out as if it had never come.
            - ``"dead_letter"`` also makes it a dead letter for ``dt.run`` and
              ``dead_letters``.
            - ``"warn"`` keeps the row.
        name : str, optional
            The name of the expectation in counters, errors and dead letters. By default
            the text of the condition.

        Returns
        -------
        Table or Stream
            The rows, without those that are left out. A table's former row of the key
            stays then.

        Raises
        ------
        PlanError
            If the condition names an unknown column, is not boolean, or is random. An
            expression or SQL needs a Spark session. For a join of histories
            (``late="history"``), and for a stream that withdraws rows
            (``unmatched="retract"``).

        See Also
        --------
        Table.where : Delete a table's rows that cease to meet a condition.
        progress : Read the counters of a query.

        Notes
        -----
        The metric ``<name>.<expectation>.unmet`` counts the rows. A tombstone, and a
        stream's record without a value, meet every condition.

        Equivalent to Databricks' ``expect``, ``expect_or_drop`` and ``expect_or_fail`` on
        the feed of AUTO CDC.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64(), "paid": pa.bool_()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders.expect("paid", on_fail="drop"))
        >>> driver.pipe(orders, {"id": 1, "amount": 40, "paid": True}, timestamp=1)
        [<id=1: amount=40, paid=True @1>]
        >>> driver.pipe(orders, {"id": 1, "amount": 50, "paid": None}, timestamp=2)
        []
        >>> driver.counts
        {'orders.paid.unmet': 1}
        """
        return type(self)(expectation(self.plan, condition, on_fail, name))

    @validated
    def select(self, *columns: Item, errors: Errors = "fail", **named: Item) -> Self:
        """Choose value columns, by name or as Spark expressions; the key stays.

        Parameters
        ----------
        *columns : str or Column
            Names of columns, and Spark expressions over the key, the values and
            ``_timestamp``, the event time. A key column may be named; it stays anyway.
        errors : {"fail", "dead_letter"}, default "fail"
            The effect of a row on which an expression fails. ``"fail"`` stops the query.
            ``"dead_letter"`` leaves the row out as if it had never come. The row is
            counted in the metric ``<name>.failed``, and becomes a dead letter (see
            ``dead_letters``).
        **named : str or Column
            Columns and expressions under other names: ``name=...``.

        Returns
        -------
        Table or Stream
            The rows with these value columns, in this order. Without any, the key alone.

        Raises
        ------
        PlanError
            If a column is unknown, occurs twice, or has a reserved name, or if an expression
            does not resolve. Also for a join of histories (``late="history"``), and for a
            stream that withdraws rows (``unmatched="retract"``).

        See Also
        --------
        Table.with_columns : Add or replace some columns.
        Table.drop : Leave out some columns.
        Table.rename : Rename columns, of the key, too.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64(), "note": pa.string()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> driver = testing.Driver(orders.select("note", total="amount"))
        >>> driver.pipe(orders, {"id": 1, "amount": 40, "note": "new"}, timestamp=1)
        [<id=1: note='new', total=40 @1>]
        """
        return type(self)(views.select_columns(self.plan, columns, named, errors))

    @validated
    def with_columns(self, *, errors: Errors = "fail", **named: Item) -> Self:
        """Add computed columns, or replace columns by computed ones.

        Parameters
        ----------
        errors : {"fail", "dead_letter"}, default "fail"
            The effect of a row on which an expression fails. ``"fail"`` stops the query.
            ``"dead_letter"`` leaves the row out as if it had never come. The row is
            counted in the metric ``<name>.failed``, and becomes a dead letter (see
            ``dead_letters``).
        **named : str or Column
            The columns by their names: a column's name, or a Spark expression over the
            key, the values and ``_timestamp``, the event time, all as they were before this
            call. A name of a value column replaces it.

        Returns
        -------
        Table or Stream
            The rows with all columns. New columns come last; replaced ones keep their
            places.

        Raises
        ------
        PlanError
            If a name is that of a key column or reserved, or if a column is unknown. If an
            expression does not resolve. Also for a join of histories (``late="history"``), and
            for a stream that withdraws rows (``unmatched="retract"``).

        See Also
        --------
        Table.select : Choose value columns.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from pyspark.sql import functions as F
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> doubled = orders.with_columns(twice=F.col("amount") * 2)
        >>> driver = testing.Driver(doubled, spark=spark)
        >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
        [<id=1: amount=40, twice=80 @1>]
        """
        return type(self)(views.with_columns(self.plan, named, errors))

    @validated
    def drop(self, *columns: ColumnName) -> Self:
        """Leave out some value columns.

        Parameters
        ----------
        *columns : str
            The columns to leave out; none leaves out nothing. One may be named twice.
            Columns of the key cannot be dropped.

        Returns
        -------
        Table or Stream
            The rows with all other columns.

        Raises
        ------
        PlanError
            If a column is unknown or belongs to the key. Also for a join of histories
            (``late="history"``), and for a stream that withdraws rows
            (``unmatched="retract"``).

        See Also
        --------
        Table.select : Choose value columns.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64(), "note": pa.string()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> orders.drop("note").schema.names
        ['id', 'amount', '_change', '_timestamp', '_position']
        """
        return type(self)(views.drop_columns(self.plan, columns))

    @validated
    def rename(self, names: Mapping[str, Text]) -> Self:
        """Give columns of the key and of the values new names.

        Parameters
        ----------
        names : mapping of str to str
            The new names by the old ones: ``{"old": "new"}``. Two columns may swap names.

        Returns
        -------
        Table or Stream
            The rows with all columns, in the same order.

        Raises
        ------
        PlanError
            If a column is unknown, or if a new name is reserved or another column's. Also for
            a join of histories (``late="history"``), and for a stream that withdraws rows
            (``unmatched="retract"``).

        See Also
        --------
        Table.select : Choose value columns, under other names, too.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> orders.rename({"id": "order", "amount": "total"}).schema.names
        ['order', 'total', '_change', '_timestamp', '_position']
        """
        return type(self)(views.rename_columns(self.plan, names))

    @property
    def schema(self) -> StructType:
        """The columns of the changelog: key, values, then three that say what a row is.

        These are ``_change`` (``"upsert"`` or ``"delete"``), ``_timestamp`` and ``_position``.

        See Also
        --------
        Table.changelog : The changes as a frame, with a description of these columns.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from dovetail import testing
        >>> schema = {"id": pa.int64(), "amount": pa.int64()}
        >>> orders = testing.table("orders", key="id", schema=schema)
        >>> orders.schema.simpleString()
        'struct<id:bigint,amount:bigint,_change:string,_timestamp:timestamp,_position:bigint>'
        """
        return changelog_schema(self.plan)

    @validated
    def changelog(self, *, emit: Emit = "change", buckets: Buckets | None = None) -> DataFrame:
        """Return the changes as a frame.

        Over streaming frames, any Spark sink takes it in append mode. Over static frames
        the same topology is one batch. The end of the input then ends all waiting:
        windows close, grace periods are over.

        Parameters
        ----------
        emit : {"change", "batch"}, default "change"
            ``"change"``: every record's own result. ``"batch"``, for tables: the last
            result per key and micro-batch, and none if nothing changed. Of static frames
            these are the rows of the final table.
        buckets : int, optional
            The number of parts of the key space. By default 8; of static frames, the
            session's number of shuffle partitions.

        Returns
        -------
        DataFrame
            The key, the values, ``_change``, ``_timestamp`` and ``_position``.
            ``_change`` is ``"upsert"`` or ``"delete"``. ``_position``, a long, grows with
            each change of a key, also from one micro-batch to the next. It does not order
            changes of different keys. A stream's record is an upsert; a record without a
            value is a delete. The rows that a join with ``unmatched="retract"`` withdraws
            are deletes with the row's own values.

        Raises
        ------
        PlanError
            If ``emit="batch"`` is given for a stream, or if an input cannot be run.
        ConfigurationError
            If the session lacks a setting that a query needs.

        See Also
        --------
        Table.write_stream : Start a query that keeps a sink up to date.
        settings : The settings for a session.

        Notes
        -----
        For a streaming frame, the session must have the settings of ``dt.checkpoints.settings``.
        ``write_stream`` sets them.

        Examples
        --------
        >>> import dovetail as dt
        >>> rows = spark.createDataFrame(
        ...     [(1, "Oslo", 1), (2, "Oslo", 2)], "id long, city string, time long"
        ... ).selectExpr("id", "city", "timestamp_micros(time) AS at")
        >>> orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders")
        >>> cities = orders.group_by("city").agg(orders=dt.count())
        >>> cities.changelog(emit="batch").select("city", "orders", "_change").collect()
        [Row(city='Oslo', orders=2, _change='upsert')]
        """
        return start.changelog(self.plan, emit=emit, buckets=buckets)

    @validated
    def write_stream(
        self,
        sink: ASink,
        *,
        checkpoint: Path,
        **options: Unpack[QueryOptions],
    ) -> StreamingQuery:
        """Start a query that keeps a sink up to date.

        Parameters
        ----------
        sink : Sink
            The sink, such as ``dt.to_delta(path)`` or ``dt.to_topic(...)``.
        checkpoint : str or path
            A directory for the query's state. Started again with it, the query goes on
            where it stopped, and has lost and doubled nothing.
        **options : QueryOptions
            Settings of the query, each an argument of its own. ``dt.typing.QueryOptions``
            describes them.

        Returns
        -------
        StreamingQuery
            The running query, an ordinary one of Spark.

        Raises
        ------
        CheckpointError
            If the checkpoint is another topology's, or that of a query that was closed.
        PlanError
            If two inputs have one name and the same columns, or if arguments contradict
            each other.
        ConfigurationError
            If the session lacks a setting that the query needs.
        TargetError
            If the sink refuses its target.

        See Also
        --------
        run : Start one query for several results and sinks.
        Table.changelog : The changes as a frame, for any Spark sink.

        Notes
        -----
        The call stores ``initial``, the rows or the state with which the query begins, before
        it starts the query. A checkpoint that has begun ignores ``initial`` and
        ``emit_initial``.

        With ``close_at_end=True``, the result over all of the input is that of
        ``changelog`` over static frames, wherever micro-batches end. The query has ended
        for good. Its checkpoint is refused when it is started again.

        ``idle`` is a span by the wall clock. Stream time goes on in a stage once none of the
        stage's inputs has brought anything for that span. If ``idle`` is given when a query
        starts for the first time, later starts may leave it out or give another span.

        Examples
        --------
        >>> import tempfile
        >>> import dovetail as dt
        >>> folder = tempfile.TemporaryDirectory()
        >>> rows = spark.createDataFrame([(1, 40)], "id long, amount long")
        >>> rows = rows.selectExpr("id", "amount", "timestamp_micros(1) AS at")
        >>> rows.write.parquet(f"{folder.name}/orders")
        >>> live = spark.readStream.schema(rows.schema).parquet(f"{folder.name}/orders")
        >>> orders = dt.Table.from_changelog(live, key="id", timestamp="at", name="orders")
        >>> query = orders.write_stream(
        ...     dt.to_memory("written_orders"),
        ...     checkpoint=f"{folder.name}/checkpoint",
        ...     trigger={"availableNow": True},
        ...     buckets=1,
        ... )
        >>> query.awaitTermination()
        >>> spark.table("written_orders").select("id", "amount", "_change").collect()
        [Row(id=1, amount=40, _change='upsert')]
        >>> folder.cleanup()
        """
        return start.start_query(
            "write_stream",
            [Outcome(self.plan, (sink,))],
            checkpoint,
            options,
        )

    def dead_letters(self) -> DataFrame:
        """Return the rows that the topology leaves out, as a frame for a query of its own.

        They are records that cannot be read, and rows on which an expression fails. The
        records are those of sources with ``malformed="dead_letter"``. The expressions are
        those of foreign keys, of ``window_of`` and of calls with ``errors="dead_letter"``. Rows
        that do not meet an ``expect`` with ``on_fail="dead_letter"`` are among them, too.

        Returns
        -------
        DataFrame
            A row for each dead letter, in no order; a streaming frame if the inputs are. Its
            columns:

            - ``_operator``: the source, view or join;
            - ``_problem``: the expression that fails, or the problem with a record and its place;
            - ``_timestamp``: the event time of the row or the record, null if it has none;
            - ``row``: the row as JSON. Of a record it has ``key`` and ``value``, or ``key_base64``
              and ``value_base64`` if they are no text.

        Raises
        ------
        PlanError
            If the topology leaves nothing out in these ways.

        See Also
        --------
        run : Write dead letters beside results, without computing them again.
        dead_letters : The dead letters of a query, as one of its results.

        Examples
        --------
        >>> import dovetail as dt
        >>> from pyspark.sql import functions as F
        >>> rows = spark.createDataFrame([(1, "40"), (2, "many")], "id long, amount string")
        >>> rows = rows.selectExpr("id", "amount", "timestamp_micros(1) AS at")
        >>> orders = dt.Table.from_changelog(rows, key="id", timestamp="at", name="orders")
        >>> numbers = orders.select(amount=F.col("amount").cast("long"), errors="dead_letter")
        >>> numbers.dead_letters().select("_operator", "row").collect()
        [Row(_operator='select of orders', row='{"id":2,"amount":"many"}')]
        """
        return dead_letters(self.plan)


ATopology: TypeAlias = Annotated[
    Topology, Rule("a Table or a Stream (a WindowedTable becomes one by to_table() or to_stream())")
]
