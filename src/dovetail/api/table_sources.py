"""Sources of tables that streams lack: tables of Delta, Iceberg and other connectors with their
changes, and rows that never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dovetail.api.topology import Topology
from dovetail.base.columns import DELETED, TIMESTAMP, quoted
from dovetail.base.validation import ColumnNames, Natural, Path, Positive, Rule, Text, validated
from dovetail.errors import PlanError
from dovetail.iceberg.catalogs import GivenCatalog, TableAddress
from dovetail.io.sources.change_feed import POSITION
from dovetail.io.sources.connector_changes import ConnectorChanges
from dovetail.io.sources.delta_feed import DeltaChanges
from dovetail.io.sources.iceberg_feed import IcebergChanges
from dovetail.io.sources.records import Malformed, source_without_unplaced
from dovetail.plan.changelog_source import Given, Session, source_of
from dovetail.plan.nodes import Source
from dovetail.plan.transforms.key_by import Duplicates
from dovetail.plan.types.spans import Span
from dovetail.platform import delta_tables

if TYPE_CHECKING:
    from typing_extensions import Self

Snapshot: TypeAlias = Annotated[int, Rule("the id of a snapshot, a whole number")]
_TWICE_COLUMN = "_dovetail_twice"


class TableSources(Topology):
    """The readers of tables."""

    @classmethod
    @validated
    def from_delta(
        cls,
        spark: Session,
        path: Path | None = None,
        *,
        table: Text | None = None,
        key: ColumnNames,
        version: Natural | None = None,
        key_updates: bool = True,
        timestamp: Given | None = None,
        malformed: Malformed = "fail",
        max_ahead: Span | None = None,
        columns: ColumnNames | None = None,
        versioned: Span | None = None,
        name: Text | None = None,
        streaming: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> Self:
        """Read a Delta table with its changes.

        The present content comes first, then the changes, commit by commit. The table
        must have its change data feed enabled. The session needs Delta's jar and
        settings.

        Parameters
        ----------
        spark : SparkSession
            The session.
        path : str or path, optional
            The folder of the table. Give this or ``table``.
        table : str, optional
            The name of the table in a catalog.
        key : str or sequence of str
            The columns that tell the table's rows apart. If two rows have one key, any one of
            them counts. A row with a null in the key is dropped and counted in the metric
            ``<name>.dropped``.
        version : int, optional
            Read the changes of this version and of those after it, instead of the content.
        key_updates : bool, default True
            False promises that no update changes the key, so that former rows need not be
            read.
        timestamp : str or Column, optional
            The event time of the rows: a column or an expression over the table's columns
            and ``_commit_timestamp``. A column is no column of the result, unless
            ``columns`` names it. By default the time of the commit.
        malformed : {"fail", "drop", "dead_letter"}, default "fail"
            The effect of a row that has no event time, or one further ahead than
            ``max_ahead``. ``"fail"`` stops the query. ``"drop"`` leaves the row out and
            counts it in the metric ``<name>.malformed``. ``"dead_letter"`` also keeps it
            for ``dead_letters``.
        max_ahead : str or timedelta, optional
            The span by which an event time may be ahead of the time of reading, such as
            ``"1 day"``. By default there is no limit.
        columns : str or sequence of str, optional
            The value columns that are read; by default all. With an empty list the table has
            the key alone. Other columns may be added and altered as if they were not there. In
            a table with column mapping, one that is renamed or dropped stops the query, unless
            ``options`` has ``schemaTrackingLocation``.
        versioned : str or timedelta, optional
            Keep the history of rows for this span of stream time, such as ``"7 days"`` (see
            ``from_changelog``). By default the table has its latest rows alone.
        name : str, optional
            The name in errors, metrics and checkpoints; by default the last part of the
            path or of the table's name.
        streaming : bool, default True
            False reads what there is now, for a batch run: the content, or the changes from
            ``version`` on.
        options : mapping of str to str, optional
            Options of the Delta source itself. They overrule ``version``. Limits of a
            micro-batch are only for a table with ``delta.appendOnly``.

        Returns
        -------
        Table
            The rows under ``key``.

        Raises
        ------
        PlanError
            If neither or both of ``path`` and ``table`` are given. If a column is unknown,
            named twice or reserved, or if a type cannot serve. Also if ``timestamp`` names a
            column of the key, and for ``options`` that would split commits.
        ConfigurationError
            If the session does not know Delta, or if the table has no change data feed or
            cannot be read.
        DataError
            In a batch, if a row has no event time under ``malformed="fail"``.

        See Also
        --------
        Table.from_static : Read rows that do not change.
        SnapshotTable.from_delta : Join Delta tables at one version each.
        to_delta : Keep a Delta table equal to a table.

        Notes
        -----
        A commit is one change of each key at most. Rows that it rewrites as they are
        change nothing. A row that it replaces is an upsert. So is an update, unless it
        changes the key: then the former key's row is deleted.

        A deleted row ends at the commit's time, or at the row's own time if that is
        later. A row whose key has changed ends when its new key's row begins.

        With ``versioned``, a row that is not later than its key's history takes effect at
        the end of that history. So the table's present row is always the latest version.

        Examples
        --------
        >>> import dovetail as dt
        >>> def read_orders(spark):
        ...     return dt.Table.from_delta(spark, "data/orders", key="id", versioned="7 days")
        >>> try:
        ...     dt.Table.from_delta(spark, key="id")
        ... except dt.errors.PlanError as error:
        ...     print(error)
        from_delta: it needs a path or table=. Give one of them.
        """
        delta_tables.refuse_but_one("from_delta", path, table)
        delta_tables.refuse_without_delta(spark, "from_delta")
        location, default_name = DeltaChanges.locate_table(spark, path, table)
        label = name or default_name
        changes = DeltaChanges(
            spark, location, label, version, streaming, key_updates, dict(options or {})
        )
        return cls(
            _source_by_commit(changes, key, columns, timestamp, versioned, malformed, max_ahead)
        )

    @classmethod
    @validated
    def from_iceberg(
        cls,
        spark: Session,
        table: Text,
        *,
        catalog: GivenCatalog = "default",
        key: ColumnNames,
        snapshot: Snapshot | None = None,
        timestamp: Given | None = None,
        malformed: Malformed = "fail",
        max_ahead: Span | None = None,
        columns: ColumnNames | None = None,
        versioned: Span | None = None,
        name: Text | None = None,
        streaming: bool = True,
        max_snapshots: Positive | None = None,
    ) -> Self:
        """Read an Iceberg table with its changes.

        The present content comes first, then what each snapshot changes. The package
        pyiceberg reads the table, so Spark needs no jar: ``pip install
        'dovetail[iceberg]'``, on the driver and the workers.

        Parameters
        ----------
        spark : SparkSession
            The session.
        table : str
            The name of the table with its namespace, such as ``"sales.orders"``.
        catalog : str or mapping of str to str, default "default"
            The catalog: its name in pyiceberg's configuration, or its properties. The
            property ``name`` is the catalog's own name, by default ``default``.
        key : str or sequence of str
            The columns that tell the table's rows apart. If two rows have one key, any one of
            them counts. A row with a null in the key is dropped and counted in the metric
            ``<name>.dropped``.
        snapshot : int, optional
            Read the changes of this snapshot and of those after it, instead of the content.
        timestamp : str or Column, optional
            The event time of the rows: a column or an expression over the table's columns
            and ``_commit_timestamp``. A column is no column of the result, unless
            ``columns`` names it. By default the time of the snapshot.
        malformed : {"fail", "drop", "dead_letter"}, default "fail"
            The effect of a row that has no event time, or one further ahead than
            ``max_ahead``. ``"fail"`` stops the query. ``"drop"`` leaves the row out and
            counts it in the metric ``<name>.malformed``. ``"dead_letter"`` also keeps it
            for ``dead_letters``.
        max_ahead : str or timedelta, optional
            The span by which an event time may be ahead of the time of reading, such as
            ``"1 day"``. By default there is no limit.
        columns : str or sequence of str, optional
            The value columns that are read; by default all. With an empty list the table has
            the key alone. Other columns may be added, dropped and altered as if they were not
            there.
        versioned : str or timedelta, optional
            Keep the history of rows for this span of stream time, such as ``"7 days"`` (see
            ``from_changelog``). By default the table has its latest rows alone.
        name : str, optional
            The name in errors, metrics and checkpoints; by default the last part of the
            table's name.
        streaming : bool, default True
            False reads what there is now, for a batch run: the content, or the changes from
            ``snapshot`` on.
        max_snapshots : int, optional
            The most snapshots of a micro-batch. By default it takes all that there are.

        Returns
        -------
        Table
            The rows under ``key``.

        Raises
        ------
        PlanError
            If a column is unknown, named twice, reserved or of a type that Spark does not
            have. Also if ``snapshot`` is not there, or if ``timestamp`` names a column of the
            key.
        ConfigurationError
            If pyiceberg is not installed, or if the catalog or the table cannot be read.
            Also for a table of format version 1, whose commits have no numbers.
        TargetError
            In a query, if a snapshot has expired before its changes were read, or if the
            table was rolled back behind what was read.
        DataError
            In a query, for delete files in Avro or ORC, and for deletes by a field of a struct.
            Also if a row has no event time under ``malformed="fail"``.

        See Also
        --------
        Table.from_delta : Read a Delta table and its changes as a table.
        Table.from_static : Read rows that do not change.

        Notes
        -----
        The changes of a snapshot are the difference between its rows and those of its
        parent. So it does not matter how rows go: by new files, by position deletes, by
        deletion vectors or by equality deletes. A row that moves to another file is no
        change. Snapshots that only replace files, as compaction does, are not read.

        A snapshot is one change of each key at most, as a commit is for ``from_delta``. A
        deleted row ends at the snapshot's time, or at the row's own time if that is later.

        Columns are read by their ids. A renamed column is read on, under the name that it had
        at this call. A dropped one is null in later rows. A column whose type has changed
        stops the query. Started again, it reads the new type.

        Examples
        --------
        >>> import dovetail as dt
        >>> def read_orders(spark):
        ...     catalog = {"type": "sql", "uri": "sqlite:////data/catalog.db"}
        ...     return dt.Table.from_iceberg(spark, "sales.orders", catalog=catalog, key="id")
        >>> try:
        ...     dt.Table.from_iceberg(spark, "sales.orders", catalog={"type": "none"}, key="id")
        ... except dt.errors.ConfigurationError as error:
        ...     print(error)
        table orders: the catalog 'default' cannot be opened: ValueError: 'none' is not a \
valid CatalogType. Give its properties in catalog=, or name one of pyiceberg's configuration.
        """
        address = TableAddress.of(table, catalog)
        label = name or address.short_name
        changes = IcebergChanges(spark, label, address, snapshot, streaming, max_snapshots)
        return cls(
            _source_by_commit(changes, key, columns, timestamp, versioned, malformed, max_ahead)
        )

    @classmethod
    @validated
    def from_changes(
        cls,
        spark: Session,
        table: Text,
        *,
        key: ColumnNames,
        version: Natural,
        timestamp: Given | None = None,
        malformed: Malformed = "fail",
        max_ahead: Span | None = None,
        columns: ColumnNames | None = None,
        versioned: Span | None = None,
        name: Text | None = None,
        streaming: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> Self:
        """Read the changes of a table by Spark's own call, whatever its connector is.

        Spark 4.2 asks connectors for the changes of their tables, by ``spark.read.changes``,
        ``spark.readStream.changes`` and ``CHANGES FROM VERSION`` in SQL. Few connectors answer.

        Parameters
        ----------
        spark : SparkSession
            The session.
        table : str
            The name of the table in a catalog.
        key : str or sequence of str
            The columns that tell the table's rows apart. If a commit brings two rows of one
            key, any one of them counts. A row with a null in the key is dropped and counted
            in the metric ``<name>.dropped``.
        version : int
            The first version whose changes are read, itself included. The content before it is
            not read. If the connector no longer has it, its error comes at this call, as a
            ``ConfigurationError``, or as rows are read.
        timestamp : str or Column, optional
            The event time of the rows: a column or an expression over the table's columns
            and ``_commit_timestamp``. A column is no column of the result, unless
            ``columns`` names it. By default the time of the commit.
        malformed : {"fail", "drop", "dead_letter"}, default "fail"
            The effect of a row that has no event time, or one further ahead than
            ``max_ahead``. ``"fail"`` stops the query. ``"drop"`` leaves the row out and
            counts it in the metric ``<name>.malformed``. ``"dead_letter"`` also keeps it
            for ``dead_letters``.
        max_ahead : str or timedelta, optional
            The span by which an event time may be ahead of the time of reading, such as
            ``"1 day"``. By default there is no limit.
        columns : str or sequence of str, optional
            The value columns that are read; by default all. With an empty list the table has
            the key alone.
        versioned : str or timedelta, optional
            Keep the history of rows for this span of stream time, such as ``"7 days"`` (see
            ``from_changelog``). By default the table has its latest rows alone.
        name : str, optional
            The name in errors, metrics and checkpoints; by default the last part of the
            table's name.
        streaming : bool, default True
            False reads the changes that there are now, for a batch run.
        options : mapping of str to str, optional
            Further options of the call, such as ``endingVersion``. They overrule ``version``.

        Returns
        -------
        Table
            The rows under ``key``.

        Raises
        ------
        PlanError
            If a column is unknown, named twice or reserved, or if the connector's versions are
            no numbers. Also if ``timestamp`` names a column of the key.
        ConfigurationError
            If Spark is older than 4.2, if the connector of the table does not have changes, or
            if the table cannot be read.
        DataError
            In a batch, if a row has no event time under ``malformed="fail"``.

        See Also
        --------
        Table.from_delta : Read a Delta table and its changes as a table.
        Table.from_iceberg : Read an Iceberg table and its changes as a table.

        Notes
        -----
        A commit is one change of each key at most, as for ``from_delta``. Both parts of an
        update count: the former row goes, the new one comes. Rows that a commit writes again
        as they are change nothing.

        *Connectors.* Delta Lake 4.4 answers to ``streaming=False`` alone, with its setting
        ``spark.databricks.delta.changelogV2.enabled``, for tables with row tracking.

        Examples
        --------
        >>> import dovetail as dt
        >>> try:
        ...     dt.Table.from_changes(spark, "nothing", key="id", version=0)
        ... except dt.errors.ConfigurationError as error:
        ...     print(str(error)[:78])
        table nothing: the changes of table='nothing' from version=0 on cannot be read
        """
        label = name or table.rsplit(".", 1)[-1].strip("`")
        changes = ConnectorChanges(spark, table, label, version, streaming, options or {})
        return cls(
            _source_by_commit(changes, key, columns, timestamp, versioned, malformed, max_ahead)
        )

    @classmethod
    @validated
    def from_static(
        cls,
        frame: DataFrame,
        *,
        key: ColumnNames,
        duplicates: Duplicates = "fail",
        name: Text | None = None,
    ) -> Self:
        """Read a table that does not change, from the rows of a static frame.

        An input that changes is read with ``from_changelog``.

        Parameters
        ----------
        frame : DataFrame
            The rows. A streaming frame is refused.
        key : str or sequence of str
            The columns that tell the rows apart. A row with a null among them is dropped.
        duplicates : {"fail", "last"}, default "fail"
            The effect of a key that is there twice. ``"fail"`` refuses the rows as they
            are read, with an error of Spark's. ``"last"`` takes the row that Spark reads
            last, which may be another one each time.
        name : str, optional
            The name in errors, metrics and checkpoints; by default ``table[<key>]``.

        Returns
        -------
        Table
            The rows, as upserts of 1970.

        Raises
        ------
        PlanError
            For a streaming frame, if a column is unknown or occurs twice, and if a type
            cannot serve.

        See Also
        --------
        Table.from_changelog : Read a table that changes.

        Notes
        -----
        The rows come before all records of other inputs. A query reads them once, when it
        begins, and keeps them in its checkpoint. Started again, it goes on with those.
        They may give results without another input, such as the rows of an aggregate of
        the table. The sinks get these as a first micro-batch. With ``initial=``, they get
        them only if ``emit_initial`` is set.

        Examples
        --------
        >>> import dovetail as dt
        >>> rows = spark.createDataFrame([("NO", "Norway")], "code string, land string")
        >>> lands = dt.Table.from_static(rows, key="code", name="lands")
        >>> lands
        Table[lands; key code]
          code string, land string
        >>> lands.schema.names
        ['code', 'land', '_change', '_timestamp', '_position']
        """
        if frame.isStreaming:
            raise PlanError(
                f"table {name}" if name else "from_static",
                "its frame is a streaming one",
                "Read it with spark.read, or give its changes to from_changelog",
            )
        roles = dict.fromkeys(("timestamp=", "deleted=", "sequence=", "log_partition="))
        source = source_of(
            frame,
            key,
            {**roles, "timestamp=": F.timestamp_micros(F.lit(0))},
            shared_log=False,
            versioned=None,
            name=name,
            stream=False,
            static=True,
        )
        return cls(source if duplicates == "last" else _source_with_key_check(source, frame))


def _source_by_commit(
    changes: DeltaChanges | IcebergChanges | ConnectorChanges,
    key: str | Sequence[str],
    columns: str | Sequence[str] | None,
    timestamp: str | Column | None,
    versioned: Span | None,
    malformed: Malformed,
    max_ahead: Span | None,
) -> Source:
    """Return the source of a table's ``changes``, which take effect commit by commit.

    ``key``, ``columns``: the key columns, and the value columns, None for all. ``timestamp``: the
    time of an added row, None for the commit's. ``versioned``: the span of the history, None for
    none. ``malformed``: the effect of a row without an event time, or with one too far ahead.
    ``max_ahead``: the most that it may be ahead of the time of reading, None for no limit. Raises
    ``PlanError`` for columns that are unknown, named twice or of a type that cannot serve, and the
    errors of ``changes``.
    """
    keys = [key] if isinstance(key, str) else list(key)
    read = [columns] if isinstance(columns, str) else columns
    frame, time_text = changes.frame(keys, timestamp, read)
    roles = {
        "timestamp=": TIMESTAMP,
        "deleted=": DELETED,
        "sequence=": POSITION,
        "log_partition=": None,
    }
    source = source_of(
        frame, keys, roles, shared_log=False, versioned=versioned, name=changes.label, stream=False
    )
    order = replace(source.order, by_commit=True)
    return source_without_unplaced(
        replace(source, order=order, time_text=time_text), malformed, max_ahead
    )


def _source_with_key_check(source: Source, frame: DataFrame) -> Source:
    """Return the source with a frame that fails if two of its rows have the same key. The check
    runs as the frame is read; the error is Spark's own, which quotes this library's message.

    ``frame``: the source's frame, which is static. Rows with a null in the key are in no table, and
    are not checked.
    """
    key = [F.col(quoted(column)) for column in source.key.names]
    has_key = reduce(Column.__and__, (column.isNotNull() for column in key))
    rows = F.count(F.lit(1)).over(Window.partitionBy(*key))
    problem = F.concat(
        F.lit(f"{source.title}: its frame has the key "),
        F.to_json(F.struct(*key)),
        F.lit(" more than once. Leave one row per key, or take duplicates='last'."),
    )
    failure = F.when(has_key & (rows > 1), F.raise_error(problem).cast("boolean"))
    checked = frame.withColumn(_TWICE_COLUMN, failure)
    return replace(source, frame=checked.filter(F.col(_TWICE_COLUMN).isNull()).drop(_TWICE_COLUMN))
