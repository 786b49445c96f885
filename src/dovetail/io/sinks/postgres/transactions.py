"""Transactions of a sink in PostgreSQL, and the errors of their failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dovetail.base.error_text import first_line
from dovetail.errors import TargetError
from dovetail.lookup_sources.postgres_connection import (
    connect,
    deadline,
    milliseconds,
    psycopg_for,
    without_secrets,
)

Cursor: TypeAlias = Any
"""A cursor of psycopg, in a transaction."""
CONNECTING_MAX_S = 10.0
"""The most seconds to wait for a connection."""


@dataclass(frozen=True)
class ServerConnection:
    """The way to connect to a server, for one transaction at a time.

    Each transaction has a connection of its own. So no state stays in a session that others may
    share through a pooler. A connection that breaks between transactions is no failure.
    """

    title: str
    """The sink's name in errors."""
    dsn: str = field(repr=False)
    """The connection string or URL. It may have a password, so ``repr`` omits it."""
    timeout_s: float
    """The time limit of a transaction, in seconds."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """The names of sinks in errors by the names of their tables, without schemas; for other tables
    ``title`` is used.
    """

    @contextmanager
    def transaction(self) -> Iterator[Cursor]:
        """Open a transaction on a connection of its own, and yield its cursor. The transaction is
        committed at the end of the block, or rolled back on an exception.

        A failure of psycopg becomes an ``OSError`` if a retry may help, else a ``TargetError``.
        Psycopg's error is not in the chain, because it may show what the DSN says. Other exceptions
        of the block pass. Raises ``ConfigurationError`` without psycopg.
        """
        psycopg = psycopg_for(self.title)
        try:
            with (
                self._connection(psycopg) as connection,
                deadline(connection, self.timeout_s),
                connection.transaction(),
                connection.cursor() as cursor,
            ):
                cursor.execute(self._settings())
                yield cursor
        except psycopg.Error as error:
            failure = self._failure(psycopg, error)
        else:
            return
        raise failure

    @contextmanager
    def _connection(self, psycopg: Any) -> Iterator[Any]:
        """Open a connection for one transaction, and close it at the end of the block. Raises
        psycopg's error if the server cannot be reached within the smaller of ``timeout_s`` and 10
        s. ``psycopg``: the package.
        """
        connection = connect(self.dsn, min(self.timeout_s, CONNECTING_MAX_S), "dovetail sink")
        try:
            # So that commits of others, made while this one waits for a lock, are visible.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            yield connection
        finally:
            connection.close()

    def _settings(self) -> str:
        """Return SQL that sets, for the transaction, the text form of values and the time limit of
        a statement. It also makes a commit wait for the disk, if that is off.
        """
        return (
            "SET LOCAL TimeZone = 'UTC'; SET LOCAL DateStyle = 'ISO'; "
            "SET LOCAL client_encoding = 'UTF8'; "
            f"SET LOCAL statement_timeout = {milliseconds(self.timeout_s)}; "
            "SELECT set_config('synchronous_commit', 'on', true) "
            "WHERE current_setting('synchronous_commit') = 'off'"
        )

    def _failure(self, psycopg: Any, error: Any) -> Exception:
        """Return, not raise, the exception for psycopg's ``error``, without the connection's
        secrets: ``OSError`` if a retry may help, else ``TargetError``. ``psycopg``: the package.
        """
        line = first_line(error)
        if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return OSError(without_secrets(self.dsn, line))
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return TargetError(
                self.title,
                f"PostgreSQL does not let this user write: {line}",
                "GRANT it USAGE and CREATE on the schema, TEMPORARY on the database, and SELECT, "
                "INSERT, UPDATE and DELETE on the table and on dovetail_queries",
            )
        detail, table = error.diag.message_detail, error.diag.table_name
        remedy = "ALTER the table so that it takes the rows, or change them by with_columns() or "
        if isinstance(error, psycopg.errors.ForeignKeyViolation):
            remedy = (
                "See that a row comes with, or after, the row that it refers to: write both tables "
                "by one query (dt.run), of one dsn. Or ALTER the table, change the rows by "
                "with_columns() or "
            )
        return TargetError(
            self.titles.get(table, self.title),
            f"PostgreSQL refuses what is written: {line}"
            + (f" ({detail.strip().rstrip('.')})" if detail else ""),
            f"{remedy}where(), and start the query again",
        )
