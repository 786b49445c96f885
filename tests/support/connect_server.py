"""Spark Connect servers for tests, and processes that are their clients: a process has one kind of
session for good.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pyspark
import small_session
from pyspark.sql import SparkSession

from dovetail.spark import driver_workers

P = ParamSpec("P")
R = TypeVar("R")

MERGING = "row-level"
"""The jars of a catalog that keeps tables in memory, into which Spark itself can merge."""
_HOME = Path(pyspark.__file__).parent
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_STARTED = re.compile(r"Spark Connect server started at: .*:(\d+)")


class Server:
    """A server of two cores on a port of its own, with the jars that tests have."""

    def __init__(self, folder: Path) -> None:
        jars = small_session.CACHE / "jars"
        names = ("kafka", "delta", MERGING)
        groups = {name: jars / name for name in names if (jars / name).is_dir()}
        self.has_jars = {"kafka", "delta"} <= groups.keys()
        self.merges = MERGING in groups
        settings = dict(small_session.builder()._options)
        settings |= {
            "spark.connect.grpc.binding.port": "0",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.jars": ",".join(
                str(j) for group in groups.values() for j in group.glob("*.jar")
            ),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
        }
        if self.has_jars:
            settings["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
            catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
            settings["spark.sql.catalog.spark_catalog"] = catalog
        if self.merges:
            kind = "SharedTablesInMemoryRowLevelOperationTableCatalog"
            settings["spark.sql.catalog.lake"] = f"org.apache.spark.sql.connector.catalog.{kind}"
        options = [part for item in settings.items() for part in ("--conf", "=".join(item))]
        self.log = folder / "server.log"
        python = driver_workers.make_program(sys.executable) or sys.executable
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [_HOME / "bin" / "spark-submit", "--class", _CLASS, *options, "spark-internal"],
                env=os.environ | {"SPARK_HOME": str(_HOME), "PYSPARK_PYTHON": python},
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.address = f"sc://127.0.0.1:{self._port()}"

    def _port(self) -> str:
        deadline = time.monotonic() + 180
        while (found := _STARTED.search(self.log.read_text())) is None:
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        return found[1]

    def kill(self) -> None:
        """End it at once, with its Python workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Client:
    """A process with a session of a server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._process = ProcessPoolExecutor(
            1, get_context("spawn"), initializer=_connect, initargs=(server.address,)
        )

    def run(self, function: Callable[..., R], *arguments: Any) -> R:
        """What a function of a module makes of the session there and these arguments."""
        return self._process.submit(_called, function, arguments).result()

    def close(self) -> None:
        """End the process at once: of itself it would ask for a server that is gone, and wait."""
        for process in [*self._process._processes.values()]:
            process.kill()
        self._process.shutdown()


_SESSIONS: list[SparkSession] = []


def _connect(address: str) -> None:
    _SESSIONS.append(SparkSession.builder.remote(address).getOrCreate())


def _called(function: Callable[..., R], arguments: tuple[Any, ...]) -> R:
    return function(_SESSIONS[0], *arguments)
