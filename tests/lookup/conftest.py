"""A PostgreSQL server for the tests: Debian's binaries, a directory and a port of its own."""

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
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

_START_SECONDS = 60


@dataclass(frozen=True)
class Server:
    """A running server; ``run`` starts its programs as the user that owns it."""

    binaries: Path
    data: Path
    port: int

    def dsn(self, database: str = "postgres") -> str:
        return f"host=127.0.0.1 port={self.port} user=dovetail dbname={database}"

    def run(self, program: str, *arguments: str) -> None:
        as_user = ["runuser", "-u", "nobody", "--"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [*as_user, str(self.binaries / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=_START_SECONDS,
            cwd=self.data.parent,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k '' -c fsync=off"
        log = str(self.data.parent / "log")
        self.run("pg_ctl", "-D", str(self.data), "-w", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-D", str(self.data), "-w", "-m", "immediate", "stop")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A server of this process's own, gone with its data when the tests end."""
    pytest.importorskip("psycopg", reason="psycopg is missing: pip install 'dovetail[postgres]'")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is missing (Debian: apt install postgresql)")
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no runuser")
    with tempfile.TemporaryDirectory(prefix="dovetail-postgres-") as directory:
        Path(directory).chmod(0o777)
        server = Server(found[-1].parent, Path(directory) / "data", _free_port())
        server.run("initdb", "-D", str(server.data), "-U", "dovetail", "--auth=trust", "--no-sync")
        server.start()
        yield server
        server.stop()


@pytest.fixture
def database(postgres_server: Server) -> str:
    """The connection string of a new, empty database."""
    import psycopg

    name = f"d{uuid4().hex}"
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_server.dsn(name)


@pytest.fixture
def pooled(postgres_server: Server, database: str, tmp_path: Path) -> Iterator[str]:
    """The connection string of the database through a pooler, whose clients share one connection
    and take turns by transaction.
    """
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is missing (Debian: apt install pgbouncer)")
    port = _free_port()
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
        as_user = ["runuser", "-u", "nobody", "--"] if os.geteuid() == 0 else []
        with (Path(directory) / "log").open("wb") as log:
            pooler = subprocess.Popen(
                [*as_user, program, str(settings)], stdout=log, stderr=log, start_new_session=True
            )
        try:
            _wait_for(port)
            yield f"{database} port={port}"
        finally:
            os.killpg(pooler.pid, signal.SIGTERM)
            pooler.wait(_START_SECONDS)


def _wait_for(port: int) -> None:
    """Until someone listens."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    pytest.fail("nobody listens")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
