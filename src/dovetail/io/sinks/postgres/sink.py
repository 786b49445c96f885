"""The sink of a PostgreSQL table with a changelog's current rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dovetail.base import datasets
from dovetail.base.columns import TIMESTAMP
from dovetail.base.validation import Natural, Seconds, Text, validated
from dovetail.errors import PlanError
from dovetail.io.sinks.ownership import (
    Existing,
    Owner,
    query_of_checkpoint,
    refuse_existing,
    refuse_gone,
)
from dovetail.io.sinks.postgres.batch import PostgresTable, PostgresTables, SinkSettings
from dovetail.io.sinks.postgres.columns import postgres_types
from dovetail.io.sinks.postgres.tables import (
    TableShape,
    TargetTable,
    create_queries_table,
    create_table,
    find_table,
)
from dovetail.io.sinks.postgres.transactions import ServerConnection
from dovetail.io.sinks.spark_sinks import WriteBatch, WriteBatches
from dovetail.lookup_sources.postgres_connection import (
    connection_parameters,
    psycopg_for,
    refuse_names,
)
from dovetail.plan.nodes import Node, changelog_schema
from dovetail.platform.sessions import batch_writer

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_DATABASE_QUERY = (
    "SELECT pg_postmaster_start_time()::text, oid::bigint FROM pg_database "
    "WHERE datname = current_database()"
)
_USER_QUERY = "SELECT current_user::text"


@dataclass(frozen=True)
class PostgresSink:
    """A PostgreSQL table, with the arguments of ``to_postgres`` as fields.

    It upserts and deletes by each micro-batch's last change per key. It appends the changelogs of
    streams and histories.
    """

    dsn: str = field(repr=False)
    """The connection string or URL. It may have a password, so ``repr`` omits it."""
    table: str
    """The table's name, with or without its schema."""
    existing: Existing = "fail"
    """The treatment of a table with rows that is not this query's."""
    timeout_s: float = 600.0
    """The limit of a transaction in seconds."""
    retries: int = 10
    """The most further attempts if the server cannot be reached."""

    @property
    def title(self) -> str:
        """The call as written: ``to_postgres('table')``. It has no secrets."""
        return f"to_postgres({self.table!r})"

    @property
    def dataset(self) -> datasets.Dataset:
        """The namespace and the name of the table in lineage events, without secrets:
        ``postgres://host:port`` and ``database.schema.table``. By default they have ``localhost``,
        5432 and ``public``. The database is an empty text if the DSN has none.
        """
        given = connection_parameters(self.dsn) or {}
        server = f"{given.get('host', 'localhost')}:{given.get('port', 5432)}"
        table = self.table if "." in self.table else f"public.{self.table}"
        return datasets.Dataset(f"postgres://{server}", f"{given.get('dbname', '')}.{table}")

    @property
    def target(self) -> tuple[object, ...]:
        """The identity of the target: title, database, and server with port, as the DSN gives them.
        Two sinks of one table have equal ones if their DSNs name the table's server alike.
        """
        dsn_values = connection_parameters(self.dsn) or {}
        server = sorted((k, v) for k, v in dsn_values.items() if k in ("host", "hostaddr", "port"))
        return self.title, dsn_values.get("dbname"), tuple(server)

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """Return Spark's writer of the query's ``changes`` into the table, configured but not
        started. Create the table if it is missing, or check that it fits. ``node``: the result that
        changes. ``checkpoint``: the query's folder.

        Raises ``PlanError`` for unsuitable columns and arguments. Raises ``TargetError`` for a
        table that does not fit or that the query may not take. Raises ``ConfigurationError`` if no
        attempt reaches the server.
        """
        return batch_writer(changes, self.batches(changes.sparkSession, node, checkpoint))

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Return the function that writes a micro-batch's changes, given the changes and the
        micro-batch's id, in one transaction. Writing the same micro-batch again changes nothing.
        Create the table if it is missing, or check that it fits. ``node``: the result that changes.
        ``checkpoint``: the query's folder.

        Raises ``PlanError`` for unsuitable columns and arguments. Raises ``TargetError`` for a
        table that does not fit or that the query may not take. Raises ``ConfigurationError`` if no
        attempt reaches the server.
        """
        tables = PostgresTables([self.prepare_table(session, node, checkpoint)], Owner(checkpoint))
        return lambda batch, batch_id: tables.write([batch], batch_id)

    def database(self, session: SparkSession) -> tuple[Any, ...]:
        """Return the identity of the database, read from the server: its start time and the
        database's OID. All DSNs of one database give the same. ``session`` is not used. Raises
        ``ConfigurationError`` if no attempt succeeds.
        """
        return self.sink_settings.run_with_retries(lambda: self.query_one_row(_DATABASE_QUERY))

    @staticmethod
    def joint(
        session: SparkSession, sinks: Sequence[tuple[PostgresSink, Node]], checkpoint: str
    ) -> WriteBatches:
        """Return the function that writes a micro-batch to the tables of several sinks, all of one
        database. Tables are created if they are missing, else checked. The tables of one user are
        written in one transaction.

        ``sinks``: each with its result. ``checkpoint``: the query's folder. Raises ``PlanError``
        for a table that is given twice, and for unsuitable columns. Raises ``TargetError`` for a
        table that does not fit or that the query may not take. Also for a foreign key between
        tables of two users. Raises ``ConfigurationError`` if no attempt reaches the server.
        """
        members = [sink.prepare_table(session, node, checkpoint) for sink, node in sinks]
        names = [member.target.qualified_name for member in members]
        for member in members:
            if names.count(member.target.qualified_name) > 1:
                raise PlanError(
                    "run",
                    f"{member.sink_settings.title} is a table of two results",
                    "Give each its own",
                )
        users = [
            sink.sink_settings.run_with_retries(partial(sink.query_one_row, _USER_QUERY))
            for sink, _ in sinks
        ]
        for (table, user), (other, its) in combinations(zip(members, users, strict=True), 2):
            if user != its:
                table.sink_settings.run_with_retries(partial(_refuse_reference, table, other))
        groups = {
            user: PostgresTables(
                [m for m, its in zip(members, users, strict=True) if its == user], Owner(checkpoint)
            )
            for user in users
        }

        def write(batches: Sequence[DataFrame], batch_id: int) -> None:
            """Write micro-batch ``batch_id``, in one transaction for each user of the database, one
            after the other. ``batches``: a frame for each sink, in their order.

            If the transaction of a later user fails, those before stay committed; a repetition of
            the micro-batch leaves their tables out. Raises the errors of ``PostgresTables.write``:
            ``ConfigurationError``, ``TargetError`` and ``DataError``.
            """
            for user, group in groups.items():
                user_batches = [b for b, its in zip(batches, users, strict=True) if its == user]
                group.write(user_batches, batch_id)

        return write

    def query_one_row(self, question: str) -> tuple[Any, ...]:
        """Run the SQL query ``question`` on the sink's server, in a transaction, and return its
        first row. The query must have one: without a row the result would be None. Raises
        ``OSError`` if another attempt may help, else ``TargetError``.
        """
        with self.sink_settings.server.transaction() as cursor:
            answer: tuple[Any, ...] = cursor.execute(question).fetchone()
        return answer

    def prepare_table(self, session: SparkSession, node: Node, checkpoint: str) -> PostgresTable:
        """Return the table for the changelog of ``node``, created if missing, else checked. Also
        create ``dovetail_queries`` if it is missing, which has each query's last micro-batch.
        ``checkpoint``: the query's folder.

        Raises ``PlanError`` for unsuitable columns, and for ``existing=`` with a changelog that is
        appended. Raises ``TargetError`` for a table that does not fit, is gone, or has rows that
        ``existing`` refuses. Raises ``ConfigurationError`` if no attempt succeeds.
        """
        schema = changelog_schema(node)
        keys: list[str] = []
        if node.current:
            keys = node.key.names
            schema = StructType([schema[n] for n in (*keys, *node.values.names, TIMESTAMP)])
        else:
            refuse_existing(self.title, self.existing)
        types = postgres_types(self.title, schema, keys)
        layout = TableShape(self.title, types, keys, node.null_keys)
        begun = query_of_checkpoint(session, checkpoint)
        target = self.sink_settings.run_with_retries(lambda: self._prepare_target(layout, *begun))
        return PostgresTable(self.sink_settings, target, schema)

    @property
    def sink_settings(self) -> SinkSettings:
        """The connection, the count of retries, and the choice for existing rows, made of the
        sink's fields.
        """
        server = ServerConnection(self.title, self.dsn, self.timeout_s)
        return SinkSettings(server, self.retries, self.existing)

    def _prepare_target(self, layout: TableShape, query: str | None, begun: bool) -> TargetTable:
        """Return the table, found or created in one transaction, and create ``dovetail_queries``. A
        missing table without a key is created even if the query has begun, unless the query has
        written it.

        ``layout``: the columns and key that the table must have. ``query``: the id of the
        checkpoint's query, None before its first start. ``begun``: True if a micro-batch of it is
        complete.

        Raises ``TargetError`` for a table that does not fit or is not this query's. Also for a
        missing one that the query has written, or with a key if the query has begun. Also for one
        that was emptied since, unless rows are adopted. Raises ``OSError`` if another attempt may
        help.
        """
        with self.sink_settings.server.transaction() as cursor:
            target = find_table(cursor, layout, self.table)
            is_missing = target is None
            if target is None:
                if begun and layout.keys:
                    refuse_gone(self.title)
                target = create_table(cursor, layout, self.table)
            create_queries_table(cursor, target.schema)
            if is_missing and query in target.last_batches(cursor):
                refuse_gone(self.title)
            if layout.keys:
                self.sink_settings.replaces(cursor, target, query, begun=begun)
        return target


def _refuse_reference(table: PostgresTable, other: PostgresTable) -> None:
    """Raise ``TargetError`` if a foreign key connects ``table`` and ``other``, in either direction,
    which two users write. It asks the database in a transaction. Raises ``OSError`` if another
    attempt may help.
    """
    with table.sink_settings.server.transaction() as cursor:
        table.refuse_reference(cursor, other)


@validated
def to_postgres(
    dsn: str,
    table: Text,
    *,
    existing: Existing = "fail",
    timeout_s: Seconds = 600.0,
    retries: Natural = 10,
) -> PostgresSink:
    """Write a PostgreSQL table that equals the query's table after each micro-batch.

    The table has the key, the values and ``_timestamp``, the event time of the row's last
    change. It needs the package psycopg on the driver and the workers: ``pip install
    'dovetail[postgres]'``.

    Parameters
    ----------
    dsn : str
        A connection string or URL, as psycopg takes it. No error and no plan shows it.
    table : str
        The table's name. It includes the schema if the schema is not on the search path:
        ``"sales.orders"``. Its case counts. A name that itself has a dot cannot be given.
    existing : {"fail", "replace", "adopt"}, default "fail"
        The treatment of a table with rows that is not this checkpoint's. ``"fail"``
        raises ``TargetError`` before the query starts. ``"replace"`` deletes the rows in
        the first micro-batch's transaction. ``"adopt"`` goes on with the rows. Rows whose
        keys do not come stay.
    timeout_s : float, default 600.0
        The limit of a transaction and of each statement in it, in seconds. Connecting may
        take as long, but at most 10 s. Reaching the limit counts as a server that cannot be
        reached.
    retries : int, default 10
        The number of further attempts if the server cannot be reached. Waits double from
        0.1 s up to 5 s.

    Returns
    -------
    Sink
        The sink, for ``write_stream`` and ``dt.run``. Nothing connects yet.

    Raises
    ------
    PlanError
        If ``dsn`` is no connection string, or ``table`` is no name. The start of a query
        raises it for columns that PostgreSQL has no type for.
    ConfigurationError
        If psycopg is missing. The start of a query and each micro-batch raise it if the
        server cannot be reached after all attempts.
    TargetError
        At the start of a query, if the table has other columns, other keys, or rows that
        ``existing`` refuses. In a query, if PostgreSQL refuses a row, or another query has
        taken the table. In both, if the table of the query was truncated or created anew,
        unless ``existing`` is ``"adopt"``.
    DataError
        In a query, for a value that the column does not have, such as a text with a NUL
        character.

    See Also
    --------
    to_delta : Keep a Delta table equal to the query's table.
    postgres : A PostgreSQL table in which rows are looked up.
    Table.write_stream : Start a query that keeps a sink up to date.
    run : Start one query with several results.

    Notes
    -----
    *Transactions.* Each batch is one transaction. Its changes are copied in (``COPY``), and
    the last one per key is upserted or deletes its row. The batch's number is written to
    ``dovetail_queries`` in the table's schema. So a batch that is repeated after a failure
    changes nothing, and nothing is lost or doubled. Few rows go through the driver. If
    there are many, tasks copy their rows into a table ``dovetail_changes_…``, which is
    merged and dropped.

    *The table.* It is created when the query starts if it is missing. Its primary key is
    the key. For keys with nulls it is ``UNIQUE NULLS NOT DISTINCT`` instead (PostgreSQL 15
    or newer). An existing table must be unique by the key. It must have the same columns,
    of the types of a new table or of wider ones. Structs, maps and nested arrays are
    ``jsonb``.

    *Ownership.* The table belongs to the query's checkpoint. Started again, the query goes
    on for any ``existing``.

    *Streams.* A stream's records, and the points of a history (``late="history"``), are
    appended with all columns of the changelog, exactly once.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.to_postgres("postgresql://app:secret@db/shop", "sales.orders", retries=3)
    PostgresSink(table='sales.orders', existing='fail', timeout_s=600.0, retries=3)
    """
    sink = PostgresSink(dsn, table, existing, timeout_s, retries)
    psycopg_for(sink.title)
    refuse_names(sink.title, dsn, table)
    return sink
