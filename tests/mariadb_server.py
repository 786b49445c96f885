"""A MariaDB server of the test process's own, and databases on it."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

_START_S = 60


@pytest.fixture(scope="session")
def mariadb_socket() -> Iterator[str]:
    """The socket of a server of this process's own, gone with its data when the tests end."""
    path = "/usr/sbin:/usr/bin:/usr/local/bin"
    server, install = (shutil.which(n, path=path) for n in ("mariadbd", "mariadb-install-db"))
    if server is None or install is None:
        pytest.skip("MariaDB is missing (Debian: apt install mariadb-server-core)")
    pymysql = pytest.importorskip("pymysql", reason="pymysql is missing: pip install pymysql")
    with tempfile.TemporaryDirectory(prefix="dovetail-mariadb-") as directory:
        data, socket = f"{directory}/data", f"{directory}/socket"
        options = ["--no-defaults", f"--user={getpass.getuser()}", f"--datadir={data}"]
        subprocess.run(
            [install, *options, "--auth-root-authentication-method=normal", "--skip-test-db"],
            check=True,
            capture_output=True,
        )
        with (Path(directory) / "log").open("wb") as log:
            process = subprocess.Popen(
                [server, *options, f"--socket={socket}", "--skip-networking"],
                stdout=log,
                stderr=log,
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


@pytest.fixture
def mariadb(mariadb_socket: str) -> dict[str, Any]:
    """How to connect to a new, empty database."""
    import pymysql

    name = f"d{uuid4().hex}"
    arguments: dict[str, Any] = {"unix_socket": mariadb_socket, "user": "root"}
    with pymysql.connect(**arguments) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    return arguments | {"database": name}
