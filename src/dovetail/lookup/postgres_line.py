"""A connection to PostgreSQL that is never waited for without end, and whose parameters no error
shows.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dovetail.errors import ConfigurationError, PlanError

_GRACE_S = 1.0


def psycopg_for(title: str) -> Any:
    """The package; ``ConfigurationError`` where it is missing."""
    try:
        import psycopg
        import psycopg.sql
    except ImportError as error:
        raise ConfigurationError(
            title,
            "psycopg is not installed where it is needed",
            "Install dovetail[postgres] for the driver and the workers",
        ) from error
    return psycopg


def refuse_names(title: str, dsn: str, table: str) -> None:
    """``PlanError`` for what is no connection string, or no table's name."""
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
    """What a connection string or URL says, None where it cannot be read."""
    import psycopg

    with suppress(psycopg.Error):
        return psycopg.conninfo.conninfo_to_dict(dsn)
    return None


def connected(dsn: str, timeout_s: float, name: str = "dovetail look-up") -> Any:
    """A new connection, or psycopg's error; on it every statement is a transaction but where one
    is begun. ``name``: what the server calls the application.
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
    # Plans that are prepared would stay in a session that others may share.
    options: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}
    own = {"connect_timeout": seconds, "application_name": name}
    return psycopg.connect(**{**lost, **(parameters(dsn) or {}), **own, **options})


@contextmanager
def deadline(connection: Any, timeout_s: float) -> Iterator[None]:
    """Give up what is within, with psycopg's ``OperationalError``, where it takes a second longer
    than the server's own ``timeout_s``: the server, its machine or the way there stands still.
    """
    import psycopg

    # A descriptor of its own, for psycopg may close the other one meanwhile.
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
    """A message without what it quotes, and without what the connection string says: a password
    that was not escaped may be read as the host.
    """
    said = {str(value) for value in (parameters(dsn) or {}).values()} - {""}
    words = (re.escape(value) for value in sorted(said, key=len, reverse=True))
    hidden = ['"[^"]*"', *(rf"(?<!\w){word}(?!\w)" for word in words)]
    return re.sub("|".join(hidden), "…", message)


def milliseconds(seconds: float) -> int:
    """A time as PostgreSQL's settings have it, where 0 would be no limit."""
    return max(1, round(1000 * seconds))
