"""The sink of a Delta table: merges a changelog, so that the table has its current rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from os import fspath
from typing import TYPE_CHECKING

from pyspark import InheritableThread
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from dovetail.base.columns import TIMESTAMP
from dovetail.base.validation import ColumnNames, Path, Positive, Text, validated
from dovetail.errors import PlanError
from dovetail.io.sinks.delta import merge, tables, versions
from dovetail.io.sinks.delta.columns import refuse_columns, refuse_unstorable
from dovetail.io.sinks.delta.conflicts import conflicts_named, twice
from dovetail.io.sinks.ownership import (
    Existing,
    Owner,
    Standing,
    must_be_empty,
    progress,
    refuse_existing,
    refuse_gone,
    refuse_rows,
    refuse_taken,
    standing,
)
from dovetail.io.sinks.spark_sinks import WriteBatch
from dovetail.plan.nodes import Node, changelog_schema
from dovetail.plan.types.spans import Span, microseconds
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.sessions import apart, keep, moved, numbered, release
from dovetail.platform.spark_errors import refused

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

QUERY = "dovetail.query"
"""The table property with the id of the query that writes the table."""

_SETTINGS = {
    "spark.databricks.delta.optimize.minFileSize": str(32 << 20),
    "spark.databricks.delta.optimize.maxFileSize": str(128 << 20),
    # The table's log is small, so compiling code for it does not pay.
    delta_upsert.CODE: delta_upsert.INTERPRETED,
}


@dataclass(frozen=True)
class DeltaSink:
    """A Delta table, with the arguments of ``to_delta`` as fields.

    It merges each micro-batch's last change per key, or with ``history`` the versions that the
    changes make. It appends the changelogs of streams and histories.
    """

    path: str | None
    table: str | None
    existing: Existing = "refuse"
    compact_every: int | None = None
    retention_us: int | None = None
    log_retention_us: int | None = None
    partition_by: tuple[str, ...] = ()
    evolve: bool = False
    history: bool = False

    @property
    def properties(self) -> dict[str, str]:
        """The table properties of a table that the sink creates: the retentions that are set, in
        seconds.
        """
        spans = {
            tables.RETENTION: self.retention_us,
            tables.LOG_RETENTION: self.log_retention_us,
        }
        return {
            name: f"interval {max(span_us // 1_000_000, 1)} seconds"
            for name, span_us in spans.items()
            if span_us is not None
        }

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return the configured writer. Create the table if it is missing, or check that it fits.

        Raises ``TargetError`` where the table has other columns or other rows than this query's.
        """
        with refused(self.title, "it cannot be used", "Give a Delta table's path or its name"):
            return self._writer(changes, node, checkpoint)

    def _writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return the configured writer; see ``writer``."""
        session = apart(changes.sparkSession)
        delta_tables.refuse_without_delta(session, self.title)
        delta_tables.tune(session)
        table = delta_tables.called(session, self.title, "path=", self.path, self.table)
        if not node.current:
            self._prepare_appending(session, changes.schema, table)
            appended = changes.writeStream.format("delta").outputMode("append")
            return appended.option("path", delta_tables.location(session, table))
        target = self._kept(session, changes.schema, node, table, checkpoint)
        return changes.writeStream.foreachBatch(numbered(changes.sparkSession, target.take))

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Return the function that merges or appends a micro-batch; raise as ``writer`` does."""
        with refused(self.title, "it cannot be used", "Give a Delta table's path or its name"):
            session = apart(session)
            delta_tables.refuse_without_delta(session, self.title)
            delta_tables.tune(session)
            table = delta_tables.called(session, self.title, "path=", self.path, self.table)
            schema = changelog_schema(node)
            if node.current:
                return self._kept(session, schema, node, table, checkpoint).take
            self._prepare_appending(session, schema, table)
            return partial(
                _append, self.title, delta_tables.location(session, table), Owner(checkpoint)
            )

    def _kept(
        self, session: SparkSession, changes: StructType, node: Node, table: str, checkpoint: str
    ) -> KeptTable:
        """Return the table for merging, created or checked."""
        columns = [*node.key.names, *node.values.names]
        schema = StructType([changes[name] for name in columns])
        if self.history:
            versions.refuse_names(self.title, columns)
            schema = StructType([*schema, *versions.ADDED])
        else:
            schema.add(changes[TIMESTAMP])
        self._refuse_unstorable(session, table, schema)
        owner = Owner(checkpoint)
        target = KeptTable(self.title, table, schema, node.key.names, node.null_keys, self, owner)
        target.prepare(session, *progress(session, checkpoint))
        return target

    @property
    def title(self) -> str:
        """The call as written: ``to_delta('path or table')``."""
        return f"to_delta({self.path or self.table!r})"

    def is_gone(self, session: SparkSession, node: Node, *, alone: bool) -> bool:
        """Say whether the table that a query has appended to is missing.

        Always False for a merged table, because its property names the query that writes it.
        """
        if node.current:
            return False
        table = delta_tables.called(session, self.title, "path=", self.path, self.table)
        return not delta_tables.exists(session, table)

    def fit(self, session: SparkSession, table: str, schema: StructType, *, change: bool) -> None:
        """Raise ``TargetError`` if the table's columns differ. ``change``: add the columns that
        ``evolve`` allows.
        """
        present = delta_tables.read(session, table).schema
        new = refuse_columns(self.title, present, schema, evolve=self.evolve)
        if new and change:
            tables.add_columns(session, table, new)

    def create(
        self, rows: DataFrame, table: str, properties: Mapping[str, str], *, replace: bool = False
    ) -> None:
        """Create the table with these rows."""
        parts = self.partition_by
        delta_tables.create(rows, table, properties, replace=replace, partition_by=parts)

    def _refuse_unstorable(self, session: SparkSession, table: str, schema: StructType) -> None:
        """Raise ``PlanError`` for columns that the table cannot store."""
        mapped = tables.maps_columns(session, table)
        refuse_unstorable(self.title, schema, self.partition_by, mapped=mapped)

    def _prepare_appending(self, session: SparkSession, schema: StructType, table: str) -> None:
        """Create the table for appending, or check that it fits."""
        refuse_existing(self.title, self.existing)
        if self.history:
            raise PlanError(
                self.title,
                "history=True is for tables; records and histories are appended, which keeps all",
                "Leave it out, or read the stream as a table by to_table()",
            )
        self._refuse_unstorable(session, table, schema)
        if delta_tables.exists(session, table):
            self.fit(session, table, schema, change=True)
        else:
            self.create(session.createDataFrame([], schema), table, {})


@dataclass
class KeptTable:
    """A table that a query merges into: its owner, and one merge per micro-batch.

    The property ``dovetail.query`` names the query that owns a table. A query takes a table with
    its first micro-batch; before that it changes nothing. A table without rows can be taken from
    any owner, because a query may be killed before it has written anything.
    """

    title: str
    table: str
    schema: StructType
    keys: list[str]
    nulls: bool
    sink: DeltaSink
    owner: Owner
    _session: SparkSession | None = field(default=None, init=False)
    _taken: bool = field(default=False, init=False)

    def prepare(self, session: SparkSession, query: str | None, begun: bool) -> None:
        """Create the table, or check the existing one.

        ``query``: the id of the checkpoint's query, None before its first start. ``begun``: whether
        a micro-batch of it is complete. Raises ``TargetError`` for a table that does not fit or is
        gone.
        """
        if delta_tables.exists(session, self.table):
            self._standing(session, query, begun=begun)
        elif begun:
            refuse_gone(self.title)
        else:
            empty = session.createDataFrame([], self.schema)
            self.sink.create(empty, self.table, self.sink.properties)

    def take(self, batch: DataFrame, batch_id: int) -> None:
        """Merge one micro-batch; raise ``TargetError`` if another writer conflicts with it
        twice.
        """
        with conflicts_named(self.title):
            self._take(batch, batch_id)

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        """Take the table with the first micro-batch, then merge each batch; compact as often as
        set.
        """
        query = self.owner.query(batch.sparkSession)
        if self._session is None:
            self._session = apart(batch.sparkSession)
            delta_tables.tune(self._session)
            for name, value in _SETTINGS.items():
                self._session.conf.set(name, value)
            # Drop the streaming query's settings: Spark finds the number of tasks by itself.
            for name in ("spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions"):
                self._session.conf.unset(name)
        session, details = self._session, None
        # Only merges of versions must not be done twice.
        once = delta_tables.once(f"dovetail-{query}", batch_id) if self.sink.history else {}
        if not self._taken:
            relation = self._standing(session, query, begun=batch_id > 0)
            if relation == "replaced":
                with delta_upsert.for_many(session):
                    self._replace(session, batch, query, once)
                self._taken = True
                return
            if self.sink.evolve:
                self.sink.fit(session, self.table, self.schema, change=True)
            if relation == "adopted":
                twice(delta_tables.set_property, session, self.table, QUERY, query)
            self._taken = True
        else:
            details = delta_tables.details(session, self.table)
            if details["properties"].get(QUERY) != query:
                refuse_taken(self.title)
        with delta_tables.setting(session, once):
            self._merge(session, batch, details)
        every = self.sink.compact_every
        if every is not None and (batch_id + 1) % every == 0:
            with delta_upsert.for_many(session):
                tables.compact(session, self.table)
            details = details or delta_tables.details(session, self.table)
            tables.clean_log(session, details["location"])
        self._read_ahead(session)

    def _merge(self, session: SparkSession, batch: DataFrame, details: Row | None) -> None:
        """Merge a micro-batch's changes, or with ``history`` the versions that they make."""
        table, schema, keys, nulls = self.table, self.schema, self.keys, self.nulls
        if not self.sink.history:
            merge.merge_changes(session, batch, table, keys, nulls=nulls, details=details)
            return
        versions.merge_versions(session, batch, table, schema, keys, nulls=nulls, details=details)

    def _read_ahead(self, session: SparkSession) -> None:
        """Read the table's log in a thread while Spark prepares the next micro-batch, which needs
        the log.
        """

        def read() -> None:
            with suppress(Exception):  # the next micro-batch reports the problem
                delta_tables.details(session, self.table)

        name = "dovetail-delta-log"
        InheritableThread(target=read, daemon=True, name=name, session=session).start()

    def _standing(self, session: SparkSession, query: str | None, *, begun: bool) -> Standing:
        """Return the relation of the query to the table: ``"kept"``, ``"replaced"`` or
        ``"adopted"``.

        Raises ``TargetError`` for other columns, and for rows that may be neither replaced nor
        adopted.
        """
        owner = delta_tables.property_of(session, self.table, QUERY)
        relation = standing(self.title, self.sink.existing, owner=owner, query=query, begun=begun)
        if relation != "replaced":
            self.sink.fit(session, self.table, self.schema, change=False)
        if must_be_empty(self.sink.existing, relation):
            refuse_rows(self.title, is_empty=session.table(self.table).isEmpty())
        return relation

    def _replace(
        self, session: SparkSession, batch: DataFrame, query: str, once: Mapping[str, str]
    ) -> None:
        """Put the first micro-batch's rows in place of the table's rows, in one commit."""
        properties = {QUERY: query, **self.sink.properties}
        if not self.sink.history:
            rows = merge.current_rows(batch, self.schema, self.keys)
            self.sink.create(rows, self.table, properties, replace=True)
            return
        # In the sink's own session, because the settings apply to all commits of a session.
        stored_batch = keep(batch)
        try:
            with moved(stored_batch, session) as source, delta_tables.setting(session, once):
                rows = versions.new_versions(source, self.schema, self.keys)
                self.sink.create(rows, self.table, properties, replace=True)
        finally:
            release(stored_batch)


def _append(title: str, location: str, owner: Owner, batch: DataFrame, batch_id: int) -> None:
    """Append a micro-batch's rows.

    Delta's log stores the batch's number under the query's name, so appending it again changes
    nothing.
    """
    once = {"txnAppId": f"dovetail-{owner.query(batch.sparkSession)}", "txnVersion": str(batch_id)}
    with conflicts_named(title):
        batch.write.format("delta").mode("append").options(**once).save(location)


@validated
def to_delta(
    path: Path | None = None,
    *,
    table: Text | None = None,
    existing: Existing = "refuse",
    compact_every: Positive | None = 25,
    retention: Span | None = "1 hour",
    log_retention: Span | None = "2 days",
    partition_by: ColumnNames | None = None,
    evolve: bool = False,
    history: bool = False,
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
    existing : {"refuse", "replace", "adopt"}, default "refuse"
        The treatment of a table with rows that is not this checkpoint's. ``"refuse"``
        raises ``TargetError`` before the query starts. ``"replace"`` puts the first
        micro-batch in place of the table, in one commit. ``"adopt"`` merges into the table.
        Rows whose keys do not come stay.
    compact_every : int or None, default 25
        The number of micro-batches between compactions of small files (``OPTIMIZE``). None
        leaves compaction to you.
    retention : str, timedelta or None, default "1 hour"
        The time for which the log of a new table keeps entries of removed files. A
        ``VACUUM`` without ``RETAIN`` spares the files as long. None is Delta's default, 7
        days.
    log_retention : str, timedelta or None, default "2 days"
        The time for which the log of a new table keeps its commits, and so past versions.
        It is at least ``retention``. None is Delta's default, 30 days.
    partition_by : str or list of str, optional
        The columns that partition a new table. By default it has no partitions.
    evolve : bool, default False
        True to add columns of the query that the table lacks, null in its present rows.
        Other differences are refused all the same.
    history : bool, default False
        True to keep all versions of the rows, as a slowly changing dimension of type 2.

    Returns
    -------
    Sink
        The sink, for ``write_stream`` and ``dt.run``.

    Raises
    ------
    PlanError
        If not exactly one of ``path`` and ``table`` is given, or a retention is no span of
        time. The start of a query raises it for names and types of columns that Delta does
        not store. With ``history`` it also refuses columns with the names of the three that
        are added.
    TargetError
        At the start of a query, if the table has other columns than the query, or rows that
        ``existing`` refuses. In a query, if another writer conflicts twice with a commit.
    ConfigurationError
        At the start of a query, if the session lacks Delta Lake.

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

    *The log.* Each commit reads the entries of removed files and lists the commits, so both
    retentions are short. Past versions go back by ``log_retention``, and so do changes for
    readers of the table's change feed. Older commits are removed with each compaction, on
    Spark Connect by whole days.

    *Versions.* With ``history``, each version has ``_valid_from``, ``_valid_to`` (event
    times) and ``_current`` in place of ``_timestamp``. ``_valid_to`` is exclusive, and null
    in the current version. An upsert begins a version, and the key's next change ends it. A
    delete begins no other. A change that is not later than the version before it takes its
    place. Versions of no length are left out, and ``_valid_from`` does not decrease within
    a key. A batch is one commit, and repeating it changes nothing.

    *Streams.* A stream's records, and the points of a history (``late="history"``), have no
    current rows. They are appended with all columns of the changelog, exactly once.
    ``existing``, ``compact_every`` and the two retentions do not apply to them, and
    ``history`` is refused.

    Examples
    --------
    >>> import dovetail as dt
    >>> sink = dt.to_delta("out/orders", log_retention="1 hour", partition_by="region")
    >>> sink.title, sink.partition_by
    ("to_delta('out/orders')", ('region',))
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
    files_us = None if retention is None else spans_us[0]
    log_us = None if log_retention is None else max(spans_us)  # as Delta demands
    folder = None if path is None else fspath(path)
    parts = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
    return DeltaSink(
        folder,
        table,
        existing,
        compact_every,
        files_us,
        log_us,
        partition_by=parts,
        evolve=evolve,
        history=history,
    )
