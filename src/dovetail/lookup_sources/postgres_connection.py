"""A connection to PostgreSQL that never waits without end, and whose secrets no error shows."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dovetail.base.packages import package
from dovetail.errors import PlanError

_GRACE_S = 1.0
"""The time in seconds that the server has after its own time-out, before the connection is cut."""


def psycopg_for(title: str) -> Any:
    """Return the package ``psycopg``. Raises ``ConfigurationError`` if it is not installed."""
    return package(title, "postgres", "psycopg", "psycopg.sql")


def refuse_names(title: str, dsn: str, table: str) -> None:
    """Raise ``PlanError`` if ``dsn`` is no connection string, or ``table`` is not of the form
    ``table`` or ``schema.table``.
    """
    if parameters(dsn) is None:
        raise PlanError(
            title,
            "its dsn is not a connection string",
            "Write 'host=… dbname=…' or 'postgresql://user:password@host/database', with % codes "
            "for special characters in a password",
        )
    if not 1 <= len(table.split(".")) <= 2 or not all(table.split(".")):
        raise PlanError(title, "its name is not one", "Write 'table' or 'schema.table'")


def parameters(dsn: str) -> dict[str, Any] | None:
    """Return the parameters of the connection string or URL ``dsn`` by name, or None if it cannot
    be parsed.
    """
    import psycopg

    with suppress(psycopg.Error):
        return psycopg.conninfo.conninfo_to_dict(dsn)
    return None


def connected(dsn: str, timeout_s: float, name: str = "dovetail lookup") -> Any:
    """Return a new connection to ``dsn``. Each statement is a transaction, unless one is begun. A
    lost connection is noticed after about ``timeout_s``, at least 2 s.

    ``name``: the application's name on the server. Raises psycopg's error without a connection.
    """
    import psycopg

    seconds = max(2, round(timeout_s))
    lost = {
        "keepalives": 1,
        "keepalives_idle": seconds,
        "keepalives_interval": seconds,
        "keepalives_count": 3,
        "tcp_user_timeout": milliseconds(timeout_s),
    }
    # Prepared plans would remain in a session that others may share through a pooler.
    options: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}
    overrides = {"connect_timeout": seconds, "application_name": name}
    return psycopg.connect(**{**lost, **(parameters(dsn) or {}), **overrides, **options})


@contextmanager
def deadline(connection: Any, timeout_s: float) -> Iterator[None]:
    """Cut the connection if the block takes a second longer than ``timeout_s``.

    The server stops a query after ``timeout_s`` by itself. If it does not, the server or the
    network hangs. Raises psycopg's ``OperationalError`` then.
    """
    import psycopg

    # A duplicate of the descriptor, since psycopg may close its own meanwhile.
    line = socket.socket(fileno=os.dup(connection.fileno()))
    late = threading.Event()

    def cut() -> None:
        late.set()
        with suppress(Exception):
            if psycopg.capabilities.has_cancel_safe():
                connection.cancel_safe(timeout=_GRACE_S)
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s + _GRACE_S, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except psycopg.Error as error:
        if late.is_set():
            raise psycopg.OperationalError(f"no answer within timeout_s={timeout_s:g}") from error
        raise
    finally:
        timer.cancel()
        line.close()
        if late.is_set():
            connection.close()


def without_parameters(dsn: str, message: str) -> str:
    """Return a message in which ``…`` replaces texts in double quotes, and the values of the
    connection string ``dsn``.

    A password that was not escaped may be parsed as the host, so an error may show it.
    """
    dsn_values = {str(value) for value in (parameters(dsn) or {}).values()} - {""}
    words = (re.escape(value) for value in sorted(dsn_values, key=len, reverse=True))
    hidden = ['"[^"]*"', *(rf"(?<!\w){word}(?!\w)" for word in words)]
    return re.sub("|".join(hidden), "…", message)


def milliseconds(seconds: float) -> int:
    """Return a time for PostgreSQL's settings: at least 1, since 0 would mean no limit."""
    return max(1, round(1000 * seconds))
