"""A MariaDB server of the test process's own, and databases on it."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

_START_S = 60


@contextmanager
def running(*options: str) -> Iterator[str]:
    """Start a server and give its socket; its data is gone at the end."""
    path = "/usr/sbin:/usr/bin:/usr/local/bin"
    names = ("mariadbd", "mariadb-install-db", "my_print_defaults")
    server, install, defaults = (shutil.which(name, path=path) for name in names)
    if server is None or install is None or defaults is None:
        missing = "MariaDB is missing (Debian: apt install mariadb-server-core mariadb-client-core)"
        pytest.skip(missing)
    pymysql = pytest.importorskip("pymysql", reason="pymysql is missing: pip install pymysql")
    with tempfile.TemporaryDirectory(prefix="dovetail-mariadb-") as directory:
        data, socket = f"{directory}/data", f"{directory}/socket"
        own = ["--no-defaults", f"--user={getpass.getuser()}", f"--datadir={data}"]
        subprocess.run(
            [install, *own, "--auth-root-authentication-method=normal", "--skip-test-db"],
            check=True,
            capture_output=True,
        )
        with (Path(directory) / "log").open("wb") as log:
            process = subprocess.Popen(
                [server, *own, f"--socket={socket}", *options], stdout=log, stderr=log
            )
        try:
            deadline = time.monotonic() + _START_S
            while True:
                try:
                    pymysql.connect(unix_socket=socket, user="root").close()
                    break
                except pymysql.err.OperationalError:
                    assert process.poll() is None, (Path(directory) / "log").read_text()
                    assert time.monotonic() < deadline, "MariaDB does not start"
                    time.sleep(0.1)
            yield socket
        finally:
            process.terminate()
            process.wait(timeout=_START_S)


@pytest.fixture(scope="session")
def mariadb_socket() -> Iterator[str]:
    """The socket of a server of this process's own, which no network reaches."""
    with running("--skip-networking") as socket:
        yield socket


@pytest.fixture
def mariadb(mariadb_socket: str) -> dict[str, Any]:
    """How to connect to a new, empty database."""
    import pymysql

    name = f"d{uuid4().hex}"
    arguments: dict[str, Any] = {"unix_socket": mariadb_socket, "user": "root"}
    with pymysql.connect(**arguments) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    return arguments | {"database": name}
