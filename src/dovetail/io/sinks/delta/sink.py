"""The sink of a Delta table: ``to_delta``, and what a query does with it before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from os import fspath
from typing import TYPE_CHECKING, Literal, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dovetail.base import datasets
from dovetail.base.columns import TIMESTAMP
from dovetail.base.validation import ColumnNames, Path, Positive, Text, validated
from dovetail.errors import PlanError
from dovetail.io.sinks.delta import tables, tombstones, versions
from dovetail.io.sinks.delta.batch import DeltaAppender, DeltaMerger, history_application
from dovetail.io.sinks.delta.columns import refuse_repeated_hours, refuse_unstorable
from dovetail.io.sinks.delta.rewrite import Rewriter, path_on_disk
from dovetail.io.sinks.delta.tables import DeltaTarget
from dovetail.io.sinks.ownership import Existing, Owner, query_of_checkpoint, refuse_existing
from dovetail.io.sinks.spark_sinks import WriteBatch
from dovetail.plan.nodes import Node, changelog_schema
from dovetail.plan.types.spans import Span, microseconds
from dovetail.platform import delta_tables
from dovetail.platform.sessions import batch_writer, cloned_session
from dovetail.platform.spark_errors import convert_spark_errors

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Deletes: TypeAlias = Literal["remove", "mark"]
"""The effect of a delete on the row of its key."""
Engine: TypeAlias = Literal["spark", "deltalake"]
"""What merges a few rows into a table."""
Late: TypeAlias = Literal["append", "correct"]
"""The place of a version whose change is older than the key's history."""
_UNUSABLE_TABLE = ("it cannot be used", "Give a Delta table's path or its name")


@dataclass(frozen=True)
class DeltaSink:
    """A Delta table, with the arguments of ``to_delta`` as fields.

    It merges each micro-batch's last change per key, or with ``history`` the versions that the
    changes make. It appends the changelogs of streams and histories.
    """

    path: str | None
    """The table's folder; None for a table of a catalog."""
    table: str | None
    """The table's name in a catalog; None for a folder."""
    existing: Existing = "fail"
    """The treatment of a table with rows that is not this query's."""
    compact_every: int | None = None
    """The count of micro-batches from one compaction to the next; None for none."""
    retention_us: int | None = None
    """The time of ``retention=`` in microseconds; None for Delta's own."""
    log_retention_us: int | None = None
    """The time of ``log_retention=`` in microseconds, at least ``retention_us``; None for Delta's
    own.
    """
    partition_by: tuple[str, ...] = ()
    """The columns that partition a new table; empty for none."""
    evolve: bool = False
    """True to add columns of the query that the table lacks."""
    history: bool = False
    """True to keep all versions of the rows."""
    track: tuple[str, ...] = ()
    """With ``history``, the columns whose changes make versions; empty if every upsert makes one.
    """
    marks: bool = False
    """True for ``deletes="mark"``."""
    corrects: bool = False
    """True for ``late="correct"``."""
    engine: Engine = "spark"
    """What merges a few rows: Spark, or the package deltalake."""

    @property
    def dataset(self) -> datasets.Dataset:
        """The namespace and the name of the table in lineage events: those of its folder, such as
        ``s3a://lake`` and ``orders``. For a table of a catalog they are ``spark`` and its name.
        """
        if self.path is None:
            return datasets.Dataset("spark", str(self.table))
        return datasets.folder(self.path)

    @property
    def target(self) -> datasets.Dataset:
        """The identity of the table, by which two sinks of one table are recognized: its folder
        without ``.`` and ``..``, or its name in small letters without backticks. A folder and a
        name never equal each other, even if they are of one table.
        """
        if self.path is None:
            return datasets.Dataset("spark", str(self.table).lower().replace("`", ""))
        return datasets.normal_folder(self.path)

    @property
    def title(self) -> str:
        """The call as written: ``to_delta(...)`` with the path, else with the table's name."""
        return f"to_delta({self.path or self.table!r})"

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a table that the sink creates, by name: the retentions that are set, as
        ``interval <n> seconds``. Parts of a second are cut off, but n is at least 1. The mapping is
        empty if none is set. With ``retention=`` of more than 30 days alone, ``to_delta`` has set
        both.
        """
        spans = {
            tables.RETENTION_PROPERTY: self.retention_us,
            tables.LOG_RETENTION_PROPERTY: self.log_retention_us,
        }
        return {
            name: f"interval {max(span_us // 1_000_000, 1)} seconds"
            for name, span_us in spans.items()
            if span_us is not None
        }

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return Spark's writer of ``changes`` into the table, configured but not started. Create
        the table if it is missing, or check that it fits. ``node``: the result that changes.
        ``checkpoint``: the folder of the query, which owns the table from its first micro-batch on.

        Raises ``TargetError`` if the table has other columns or other rows than this query's, or is
        gone. Raises ``PlanError`` for arguments, names and types that do not suit. Raises
        ``ConfigurationError`` without Delta Lake, and for a table that cannot be used.
        """
        with convert_spark_errors(self.title, *_UNUSABLE_TABLE):
            target = self._prepare_writer(changes.sparkSession, changes.schema, node, checkpoint)
            if isinstance(target, DeltaAppender):
                changes = target.refuse_unfit_partitions(changes)
                appended = changes.writeStream.format("delta").outputMode("append")
                return appended.option("path", target.location)
            return batch_writer(changes, target.write)

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Return a function that merges or appends a micro-batch's changes, given the changes and
        the micro-batch's id. Create the table if it is missing, or check that it fits. ``node``:
        the result that changes. ``checkpoint``: the folder of the query.

        Raises ``TargetError`` if the table has other columns or other rows than this query's, or is
        gone. Raises ``PlanError`` for arguments, names and types that do not suit. Raises
        ``ConfigurationError`` without Delta Lake, and for a table that cannot be used.
        """
        with convert_spark_errors(self.title, *_UNUSABLE_TABLE):
            return self._prepare_writer(session, changelog_schema(node), node, checkpoint).write

    def _prepare_writer(
        self, session: SparkSession, changes: StructType, node: Node, checkpoint: str
    ) -> DeltaMerger | DeltaAppender:
        """Return the writer of the changelog of ``node``, its table created or checked. It appends
        the changelog of a stream, and that of a join with ``late="history"``, else it merges.
        ``changes``: the columns of the changelog. ``checkpoint``: the query's folder.

        Raises ``TargetError`` if the table has other columns or other rows than this query's, or is
        gone. Raises ``PlanError`` for arguments, names and types that do not suit,
        ``ConfigurationError`` without Delta Lake. Spark's errors pass.
        """
        session = cloned_session(session)
        delta_tables.refuse_without_delta(session, self.title)
        delta_tables.tune(session)
        table = delta_tables.target_sql_name(session, self.title, "path=", self.path, self.table)
        schema = self._table_schema(changes, node)
        mode = tables.column_mapping(session, table)
        refuse_unstorable(self.title, schema, self.partition_by, mapped=mode is not None)
        zone = str(session.conf.get("spark.sql.session.timeZone"))
        refuse_repeated_hours(self.title, zone, schema, self.partition_by)
        target = DeltaTarget(
            self.title,
            table,
            schema,
            properties=(self.properties if node.current else {})
            | ({} if mode is None else {tables.MAPPING_PROPERTY: mode}),
            existing=self.existing,
            partition_by=self.partition_by,
            evolve=self.evolve,
        )
        owner = Owner(checkpoint)
        query, begun = query_of_checkpoint(session, checkpoint)
        if not node.current:
            target.prepare_appending(session)
            details = delta_tables.details(session, table)
            location, partition_columns = details["location"], list(details["partitionColumns"])
            refuse_repeated_hours(self.title, zone, schema, partition_columns)
            if query is not None:
                tables.refuse_older_checkpoint(session, self.title, table, query, checkpoint)
            name_bytes_max = tables.folder_name_bytes_max(details)
            return DeltaAppender(self.title, location, partition_columns, name_bytes_max, owner)
        target.prepare(session, query, begun)
        if query is not None and self.history:
            application = history_application(query)
            tables.refuse_older_checkpoint(session, self.title, table, application, checkpoint)
        rewriter = None
        if self.engine == "deltalake":
            path = path_on_disk(self.title, session, delta_tables.location(session, table))
            rewriter = Rewriter(self.title, path, node.key.names)
        return DeltaMerger(
            target,
            owner,
            keys=node.key.names,
            nulls=node.null_keys,
            history=self.history,
            track=self.track,
            marks=self.marks,
            corrects=self.corrects,
            compact_every=self.compact_every,
            rewriter=rewriter,
        )

    def _table_schema(self, changes: StructType, node: Node) -> StructType:
        """Return the columns of the target table. For a table of current rows, they are key, values
        and ``_timestamp``, then ``_deleted`` if rows are marked. With ``history`` they are key,
        values, ``_valid_from``, ``_valid_to`` and ``_current``. For a stream, and for a table of
        ``late="history"``, whose late changes emit corrections, they are all of ``changes``.

        ``changes``: the columns of the changelog of ``node``, the query's result. Raises
        ``PlanError`` for arguments and names that do not suit them.
        """
        if not node.current:
            refuse_existing(self.title, self.existing)
            if self.history or self.marks:
                argument = "history=True" if self.history else "deletes='mark'"
                raise PlanError(
                    self.title,
                    f"{argument} is for tables; records and histories are appended, which keeps "
                    "all",
                    "Leave it out, or read the stream as a table by to_table()",
                )
            return changes
        columns = [*node.key.names, *node.values.names]
        if not self.history:
            marks = [tombstones.MARK_FIELD] if self.marks else []
            return StructType([*(changes[name] for name in (*columns, TIMESTAMP)), *marks])
        versions.refuse_names(self.title, columns)
        versions.refuse_tracked(self.title, self.track, node.values)
        return StructType([*(changes[name] for name in columns), *versions.VERSION_FIELDS])

    def location(self, session: SparkSession) -> str:
        """Return the full path, with its scheme, of the table's folder. It is the same whether the
        table is given by its name or by its path. The table must exist: Spark's error passes.
        Raises ``ConfigurationError`` if the file system of the folder cannot be reached.
        """
        table = delta_tables.target_sql_name(session, self.title, "path=", self.path, self.table)
        return delta_tables.location(session, table)

    def is_gone(self, session: SparkSession, node: Node, *, alone: bool) -> bool:
        """Return True if the table that a query has appended to is missing. Always False for a
        merged table, whose property names the query that writes it. ``node``: the query's result.
        ``alone`` is not used; other sinks need it. Raises ``ConfigurationError`` if the file system
        of the table's folder cannot be reached.
        """
        if node.current:
            return False
        table = delta_tables.target_sql_name(session, self.title, "path=", self.path, self.table)
        return not delta_tables.exists(session, table)


@validated
def to_delta(
    path: Path | None = None,
    *,
    table: Text | None = None,
    existing: Existing = "fail",
    compact_every: Positive | None = 25,
    retention: Span | None = None,
    log_retention: Span | None = None,
    partition_by: ColumnNames | None = None,
    evolve: bool = False,
    history: bool = False,
    track: ColumnNames | None = None,
    late: Late = "append",
    deletes: Deletes = "remove",
    engine: Engine = "spark",
) -> DeltaSink:
    """Write a Delta table that equals the query's table after each micro-batch.

    The table has the key, the values and ``_timestamp``, the event time of the row's last
    change. The session needs Delta Lake's jar and settings.

    Parameters
    ----------
    path : str or Path, optional
        The table's folder. Give either ``path`` or ``table``.
    table : str, optional
        The table's name in a catalog: ``"sales.orders"``.
    existing : {"fail", "replace", "adopt"}, default "fail"
        The treatment of a table with rows that is not this checkpoint's. ``"fail"``
        raises ``TargetError`` before the query starts. ``"replace"`` puts the first
        micro-batch in place of the table, in one commit. ``"adopt"`` merges into the table.
        Rows whose keys do not come stay.
    compact_every : int or None, default 25
        The number of micro-batches between compactions of small files (``OPTIMIZE``). None
        leaves compaction to you.
    retention : str or timedelta, optional
        The time for which the log of a new table keeps entries of removed files. A
        ``VACUUM`` without ``RETAIN`` spares the files as long. By default it is Delta's
        own, 7 days.
    log_retention : str or timedelta, optional
        The time for which the log of a new table keeps its commits, and so past versions.
        It must be at least ``retention``. By default it is Delta's own, 30 days, or
        ``retention`` if that is longer.
    partition_by : str or list of str, optional
        The columns that partition a new table. By default it has no partitions. An empty
        text or ``__HIVE_DEFAULT_PARTITION__`` in one of them fails the query, because Delta
        stores null for it. So does a text that is too long for a folder's name.
    evolve : bool, default False
        True to add columns of the query that the table lacks, null in its present rows.
        Other differences are refused all the same.
    history : bool, default False
        True to keep all versions of the rows, as a slowly changing dimension of type 2.
    track : str or list of str, optional
        With ``history``, the value columns whose changes make a version. A change of other
        columns alone replaces their values in the current version. By default every upsert
        makes a version.
    late : {"append", "correct"}, default "append"
        With ``history``, the place of a change that is older than its key's history.
        ``"append"`` puts it at the end of the history. ``"correct"`` puts it at its event
        time, where it cuts the version that was there.
    deletes : {"remove", "mark"}, default "remove"
        The effect of a delete. ``"remove"`` removes the row. ``"mark"`` keeps it with its
        last values, with true in the column ``_deleted`` and the time of the delete in
        ``_timestamp``.
    engine : {"spark", "deltalake"}, default "spark"
        What merges a micro-batch of up to 10,000 changes. ``"deltalake"`` is for small
        tables on this machine's disks. The package of that name commits without a job of
        Spark's.

    Returns
    -------
    Sink
        The sink, for ``write_stream`` and ``dt.run``.

    Raises
    ------
    PlanError
        If not exactly one of ``path`` and ``table`` is given, or ``track`` without
        ``history``, or ``deletes="mark"`` with it. If ``late="correct"`` is given without
        ``history``, or with ``track``. If a retention is no span of time, or
        ``log_retention`` is shorter than ``retention``. If ``engine="deltalake"`` is given
        with ``history`` or with ``deletes="mark"``. The start of a query raises it for names
        and types of columns that Delta does not store. With ``history`` also for columns
        with the names of the three that are added. Tracked columns must be values that can
        be compared.
    TargetError
        At the start of a query, if the table has other columns than the query, or rows that
        ``existing`` refuses. In a query, if another writer conflicts twice with a commit,
        or another query has taken the table. Also if a rule of the table forbids a row.
    ConfigurationError
        At the start of a query, if the session lacks Delta Lake. With
        ``engine="deltalake"`` also if the package is not installed, on Spark Connect, and
        for a table that lies elsewhere.

    See Also
    --------
    Table.from_delta : Read a Delta table and its changes as a table.
    to_parquet : Write the changelog as Parquet files.
    to_postgres : Keep a PostgreSQL table equal to the query's table.
    Table.write_stream : Start a query that keeps a sink up to date.

    Notes
    -----
    *Commits.* Each batch is one commit of the last change per key. A batch that is repeated
    after a failure leaves the table as it is, so nothing is lost or doubled. Another writer
    may change the table at the same time. A commit that conflicts is made once more, and
    fails the query if it conflicts again.

    *Ownership.* The table is created on first use. It belongs to the query's checkpoint:
    the property ``dovetail.query`` names the query. Started again, the query goes on for
    any ``existing``.

    *The log.* Each commit reads the entries of removed files and lists the commits. A query
    with a micro-batch every few seconds stays faster with short retentions, such as
    ``retention="1 hour", log_retention="2 days"``. Past versions go back by
    ``log_retention``, and so do changes for readers of the table's change feed. Older commits
    are removed with each compaction, on Spark Connect by whole days.

    *Versions.* With ``history``, each version has ``_valid_from``, ``_valid_to`` (event
    times) and ``_current`` in place of ``_timestamp``. ``_valid_to`` is exclusive, and null
    in the current version. An upsert begins a version, and the key's next change ends it. A
    delete begins no other. A change that is not later than the version before it takes its
    place. Versions of no length are left out, and ``_valid_from`` does not decrease within
    a key. A batch is one commit, and repeating it changes nothing.

    *Late changes.* With ``late="correct"``, a version begins at its change's time and ends at
    the key's next change in time. The current version is the latest by event time. Of
    several changes at one time the last one counts. A delete that ends no version is a row
    of no length with nulls, which holds at no moment.

    *Tracked columns.* A change that leaves them as they are has no effect on times. The
    columns may be others at the next start, for the changes from then on.

    *Marked rows.* An upsert of a deleted key takes the mark away. A row that was upserted
    and deleted since the last micro-batch is there, too. A delete of a key that never had a
    row leaves none.

    *Engine.* Spark writes the new rows alone, and marks the old ones as deleted. ``"deltalake"``
    writes each file anew that has one of the keys. So it is for tables of some megabytes, and
    their ``retention`` should be short. What it could write otherwise than Spark is left to
    Spark, with a warning: partitions, a change feed, nested columns, times before 1678 or
    after 2261.

    *Streams.* A stream's records, and the points of a history (``late="history"``), have no
    current rows. They are appended with all columns of the changelog, exactly once.
    ``partition_by`` and ``evolve`` apply to them. ``compact_every``, ``engine`` and the two
    retentions have no effect. The start of a query refuses ``history``, ``deletes="mark"``
    and another ``existing`` than ``"fail"``.

    Examples
    --------
    >>> import dovetail as dt
    >>> sink = dt.to_delta("out/orders", partition_by="region")
    >>> sink.title, sink.partition_by
    ("to_delta('out/orders')", ('region',))
    >>> sink = dt.to_delta("out/orders", retention="1 hour", log_retention="1 hour")
    >>> for name, value in sink.properties.items():
    ...     print(name, value)
    delta.deletedFileRetentionDuration interval 3600 seconds
    delta.logRetentionDuration interval 3600 seconds
    """
    delta_tables.refuse_but_one("to_delta", path, table)
    spans_us = [
        microseconds("to_delta", name, default if span is None else span)
        for name, span, default in (
            ("retention=", retention, "7 days"),
            ("log_retention=", log_retention, "30 days"),
        )
    ]
    files_us, log_us = spans_us
    if log_us < files_us and log_retention is not None:
        raise PlanError(
            "to_delta",
            f"log_retention= is shorter than retention=, {retention or '7 days'}",
            "Give both, retention= the shorter one: Delta needs the commits of all removed files",
        )
    if track is not None and not history:
        raise PlanError(
            "to_delta",
            "track= is given without history=True",
            "Give both, or leave it out: a table without history has current rows alone",
        )
    if late == "correct" and (not history or track is not None):
        raise PlanError(
            "to_delta",
            "late='correct' is given " + ("without history=True" if not history else "with track="),
            "Give it with history=True alone: changes that begin no version leave no time behind",
        )
    if history and deletes == "mark":
        raise PlanError(
            "to_delta",
            "history=True and deletes='mark' are both given",
            "Leave deletes= out: the last version of a deleted row says when it ended",
        )
    if engine == "deltalake" and (history or deletes == "mark"):
        raise PlanError(
            "to_delta",
            "engine='deltalake' is given with history=True or deletes='mark'",
            "Leave it out: it merges current rows alone",
        )
    folder = None if path is None else fspath(path)
    tracked = (track,) if isinstance(track, str) else tuple(track or ())
    parts = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
    return DeltaSink(
        folder,
        table,
        existing,
        compact_every,
        None if retention is None else files_us,
        None if log_retention is None and files_us <= log_us else max(files_us, log_us),
        partition_by=parts,
        evolve=evolve,
        history=history,
        track=tracked,
        marks=deletes == "mark",
        corrects=late == "correct",
        engine=engine,
    )
