"""A connection to PostgreSQL that never waits without end, and whose secrets no error shows."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dovetail.base.packages import import_package
from dovetail.errors import PlanError

_GRACE_S = 1.0
"""The time in seconds that the server has after its own time-out, before the connection is cut."""


def psycopg_for(title: str) -> Any:
    """Return the module ``psycopg``, with ``psycopg.sql`` imported. Raises ``ConfigurationError``
    if it is not installed. ``title``: the source's or sink's name in errors.
    """
    return import_package(title, "postgres", "psycopg", "psycopg.sql")


def refuse_names(title: str, dsn: str, table: str) -> None:
    """Raise ``PlanError`` if ``dsn`` is no connection string, or ``table`` is not of the form
    ``table`` or ``schema.table``. A name with a dot in it cannot be given. ``title``: the source's
    or sink's name in errors. Needs psycopg.
    """
    if connection_parameters(dsn) is None:
        raise PlanError(
            title,
            "its dsn is not a connection string",
            "Write 'host=… dbname=…' or 'postgresql://user:password@host/database', with % codes "
            "for special characters in a password",
        )
    if not 1 <= len(table.split(".")) <= 2 or not all(table.split(".")):
        raise PlanError(title, "its name is not one", "Write 'table' or 'schema.table'")


def connection_parameters(dsn: str) -> dict[str, Any] | None:
    """Return the parameters of the connection string or URL ``dsn`` by name, or None if it cannot
    be parsed. An empty string gives an empty dict. Needs psycopg, else ``ImportError`` is raised.
    """
    import psycopg

    with suppress(psycopg.Error):
        return psycopg.conninfo.conninfo_to_dict(dsn)
    return None


def connect(dsn: str, timeout_s: float, name: str = "dovetail lookup") -> Any:
    """Return a new psycopg connection to ``dsn``, a valid connection string or URL. Each statement
    is a transaction, unless one is begun. The caller closes the connection.

    Connecting may take ``timeout_s``, rounded to whole seconds, but never less than 2. A lost
    connection is noticed after about that time; settings of keep-alives in ``dsn`` override this.
    ``name``: the application's name on the server. Raises psycopg's error, which may show ``dsn``,
    if no connection is made.
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
    return psycopg.connect(**{**lost, **(connection_parameters(dsn) or {}), **overrides, **options})


@contextmanager
def deadline(connection: Any, timeout_s: float) -> Iterator[None]:
    """Cut the connection if the block takes a second longer than ``timeout_s``. The connection is
    closed afterwards, if it was cut.

    The block must let the server stop a query after ``timeout_s`` by itself. If that does not
    happen, the server or the network hangs. Any error of psycopg in the block becomes its
    ``OperationalError`` once the connection was cut. A block that ends without an error raises
    nothing.
    """
    import psycopg

    # A duplicate of the descriptor, since psycopg may close its own meanwhile.
    line = socket.socket(fileno=os.dup(connection.fileno()))
    late = threading.Event()

    def cut_connection() -> None:
        """Set ``late``, cancel the query if psycopg can, and shut the connection's socket down.
        Errors are ignored. Runs in the timer's thread.
        """
        late.set()
        with suppress(Exception):
            if psycopg.capabilities.has_cancel_safe():
                connection.cancel_safe(timeout=_GRACE_S)
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s + _GRACE_S, cut_connection)
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


def without_secrets(dsn: str, message: str) -> str:
    """Return ``message`` with ``…`` in place of texts in double quotes, and of the values of the
    connection string ``dsn`` where they are whole words.

    All values are replaced: a password that was not escaped may be parsed as the host, so an error
    may show it. If ``dsn`` cannot be parsed, only texts in quotes are. Needs psycopg.
    """
    dsn_values = {str(value) for value in (connection_parameters(dsn) or {}).values()} - {""}
    words = (re.escape(value) for value in sorted(dsn_values, key=len, reverse=True))
    hidden = ['"[^"]*"', *(rf"(?<!\w){word}(?!\w)" for word in words)]
    return re.sub("|".join(hidden), "…", message)


def milliseconds(seconds: float) -> int:
    """Return seconds as milliseconds for PostgreSQL's settings, rounded: at least 1, since 0 would
    mean no limit.
    """
    return max(1, round(1000 * seconds))
