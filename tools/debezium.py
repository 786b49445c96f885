"""Debezium for tests and the demo: its connectors in a Kafka Connect worker of one process.

The worker is Kafka Connect's own (`ConnectStandalone`), the connectors are Debezium's own, and
both come from Maven by ``tools/jars/fetch debezium``. The worker keeps its place in the
database's log in a file, so that it goes on there after a kill, as a real one does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools.postgres import MissingError, free_port

START_SECONDS = 90
_JARS = Path(__file__).parent / "jars" / "fetch"
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_CONNECTORS = {
    "postgres": "io.debezium.connector.postgresql.PostgresConnector",
    "mariadb": "io.debezium.connector.mariadb.MariaDbConnector",
}
_STREAMS = (
    "Starting streaming",
    "Keepalive thread is running",
    "Searching for WAL resume position",
)
_LOG_CHARS = 3000


@dataclass
class Worker:
    """A Kafka Connect worker with one connector.

    ``folder`` has its log and its place in the database's log; a new worker on the same folder
    goes on there.
    """

    folder: Path
    servers: str
    connector: Mapping[str, str]
    schemas: bool = False
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def log(self) -> Path:
        """The file to which the worker writes what it does."""
        return self.folder / "connect.log"

    def start(self) -> None:
        """Start the worker, and wait until it follows the database's log."""
        self.folder.mkdir(parents=True, exist_ok=True)
        written = [
            self._written("worker.properties", self._worker()),
            self._written("connector.properties", dict(self.connector)),
        ]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *("java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                    *("-cp", f"{jars()}/*", "org.apache.kafka.connect.cli.ConnectStandalone"),
                    *written,
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not any(line in self._said() for line in _STREAMS):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"Debezium did not start:\n{self._said()[-_LOG_CHARS:]}")
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill the worker, as a machine that dies does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def refuse_failed(self) -> None:
        """Raise where the worker or its task has ended by itself."""
        assert self._process is not None
        if self._process.poll() is not None or "Task is being killed" in self._said():
            raise RuntimeError(f"Debezium failed:\n{self._said()[-_LOG_CHARS:]}")

    def _said(self) -> str:
        return self.log.read_text(errors="replace")

    def _written(self, name: str, properties: Mapping[str, str]) -> str:
        path = self.folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return str(path)

    def _worker(self) -> dict[str, str]:
        own = {
            "bootstrap.servers": self.servers,
            "listeners": f"http://127.0.0.1:{free_port()}",
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "offset.flush.interval.ms": "200",
            "plugin.discovery": "service_load",
            "plugin.path": jars(),
        }
        for part in ("key", "value"):
            own[f"{part}.converter"] = _JSON
            own[f"{part}.converter.schemas.enable"] = str(self.schemas).lower()
            # By default a null arrives as the default of its column.
            own[f"{part}.converter.replace.null.with.default"] = "false"
        return own


def jars() -> str:
    """The folder with the jars; ``MissingError`` where they cannot be had."""
    if shutil.which("java") is None:
        raise MissingError("Java is missing (Debian: apt install openjdk-17-jre-headless)")
    fetched = subprocess.run(
        [_JARS, "debezium"], env=os.environ, capture_output=True, text=True, check=False
    )
    if fetched.returncode != 0:
        raise MissingError(f"Debezium's jars are missing: {fetched.stderr.strip()[-_LOG_CHARS:]}")
    return fetched.stdout.split()[-1]


def postgres(dsn: str, tables: str, *, prefix: str = "shop", **options: str) -> dict[str, str]:
    """A connector for tables of a PostgreSQL database; ``options``: with ``_`` for dots."""
    given = dict(part.split("=", 1) for part in dsn.split())
    return {
        "name": prefix,
        "connector.class": _CONNECTORS["postgres"],
        "topic.prefix": prefix,
        "database.hostname": given["host"],
        "database.port": given["port"],
        "database.user": given["user"],
        "database.password": "none",
        "database.dbname": given["dbname"],
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "filtered",
        "table.include.list": tables,
        "poll.interval.ms": "50",
    } | _dotted(options)


def mariadb(
    port: int, tables: str, servers: str, *, prefix: str = "shop", **options: str
) -> dict[str, str]:
    """A connector for tables of a MariaDB server; its schema history is a topic of ``servers``."""
    return {
        "name": prefix,
        "connector.class": _CONNECTORS["mariadb"],
        "topic.prefix": prefix,
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": "debezium",
        "database.password": "none",
        "database.server.id": "4711",
        "table.include.list": tables,
        "schema.history.internal.kafka.bootstrap.servers": servers,
        "schema.history.internal.kafka.topic": f"{prefix}.schemas",
        "poll.interval.ms": "50",
    } | _dotted(options)


def _dotted(options: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in options.items()}


@contextmanager
def running(
    folder: Path, servers: str, connector: Mapping[str, str], *, schemas: bool = False
) -> Iterator[Worker]:
    """A started worker, killed at the end."""
    worker = Worker(folder, servers, connector, schemas)
    worker.start()
    try:
        yield worker
    finally:
        worker.kill()
