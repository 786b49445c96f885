"""A PostgreSQL server of the test process's own, and databases on it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tools import postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """A server of this process's own, gone with its data when the tests end."""
    pytest.importorskip("psycopg", reason="psycopg is missing: pip install 'dovetail[postgres]'")
    try:
        with postgres.running() as server:
            yield server
    except postgres.MissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def database(postgres_server: postgres.Server) -> str:
    """The connection string of a new, empty database."""
    import psycopg

    name = f"d{uuid4().hex}"
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_server.dsn(name)


@pytest.fixture
def pooled(postgres_server: postgres.Server, database: str, tmp_path: Path) -> Iterator[str]:
    """The connection string of the database through a pooler, whose clients share one connection
    and take turns by transaction.
    """
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is missing (Debian: apt install pgbouncer)")
    port = postgres.free_port()
    with tempfile.TemporaryDirectory(prefix="dovetail-pgbouncer-") as directory:
        Path(directory).chmod(0o777)
        users, settings = Path(directory) / "users", Path(directory) / "settings"
        users.write_text('"dovetail" ""\n')
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={postgres_server.port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {users}\n"
            "pool_mode = transaction\ndefault_pool_size = 1\n"
        )
        with (Path(directory) / "log").open("wb") as log:
            pooler = subprocess.Popen(
                [*postgres.as_user(), program, str(settings)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            _wait_for(port)
            yield f"{database} port={port}"
        finally:
            os.killpg(pooler.pid, signal.SIGTERM)
            pooler.wait(postgres.START_SECONDS)


def _wait_for(port: int) -> None:
    """Until someone listens."""
    deadline = time.monotonic() + postgres.START_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    pytest.fail("nobody listens")


def everything(error: BaseException) -> str:
    """All that an error and those in its chain say."""
    chain, waiting = [], [error]
    while waiting:
        chain.append(waiting.pop())
        waiting += [e for e in (chain[-1].__cause__, chain[-1].__context__) if e is not None]
    return "".join(f"{e!r} {e} {vars(e)} {''.join(getattr(e, '__notes__', []))}" for e in chain)
