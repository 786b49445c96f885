"""A PostgreSQL server for tests, benchmarks and the demo: Debian's binaries, a folder and a port of
its own, gone with its data at the end.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 60


class MissingError(Exception):
    """What the server needs is not installed."""


@dataclass(frozen=True)
class Server:
    """A running server; ``run`` starts its programs as the user that owns it."""

    binaries: Path
    data: Path
    port: int
    settings: str

    def dsn(self, database: str = "postgres") -> str:
        """The connection string of a database."""
        return f"host=127.0.0.1 port={self.port} user=dovetail dbname={database}"

    def run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs to its end."""
        done = subprocess.run(
            [*as_user(), str(self.binaries / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS,
            cwd=self.data.parent,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-p {self.port} -h 127.0.0.1 -k '' {self.settings}"
        log = str(self.data.parent / "log")
        self.run("pg_ctl", "-D", str(self.data), "-w", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        """Stop it at once, as a crash does."""
        self.run("pg_ctl", "-D", str(self.data), "-w", "-m", "immediate", "stop")


def as_user() -> list[str]:
    """What comes before a command that does not run as root."""
    return ["runuser", "-u", "nobody", "--"] if os.geteuid() == 0 else []


@contextmanager
def running(settings: str = "-c fsync=off") -> Iterator[Server]:
    """A new server; ``MissingError`` where there is none. ``settings``: as its command line has
    them.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise MissingError("PostgreSQL is missing (Debian: apt install postgresql)")
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        raise MissingError("PostgreSQL does not run as root, and there is no runuser")
    with tempfile.TemporaryDirectory(prefix="dovetail-postgres-") as directory:
        Path(directory).chmod(0o777)
        server = Server(found[-1].parent, Path(directory) / "data", free_port(), settings)
        server.run("initdb", "-D", str(server.data), "-U", "dovetail", "--auth=trust", "--no-sync")
        server.start()
        try:
            yield server
        finally:
            server.stop()


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
