"""A standalone cluster of Spark from the installed package: a master and its workers, each a
process of its own, with executors that tests kill.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark

HOME = Path(pyspark.__file__).parent
HOST = "127.0.0.1"
SETTINGS = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.ui.enabled": "false",
}
"""Those of a session on such a cluster."""
EXECUTOR = "CoarseGrainedExecutorBackend"
DAEMONS = {
    "SPARK_HOME": str(HOME),
    "SPARK_LOCAL_IP": HOST,
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false -Dspark.master.ui.port=0",
}


class Cluster:
    """A master, and workers of a core each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        port = _free_port()
        self.url = f"spark://{HOST}:{port}"
        self._start("master.Master", "--port", str(port), "--webui-port", "0")
        _wait_for(port)

    def add_worker(self) -> None:
        """One more, whose executors have their files in a folder of their own."""
        work = self._folder / f"worker-{len(self._processes)}"
        own = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(work))
        self._start("worker.Worker", *own, self.url)

    def executors(self) -> list[psutil.Process]:
        """Those that run."""
        found = []
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children():
                    with suppress(psutil.NoSuchProcess):
                        if EXECUTOR in " ".join(child.cmdline()):
                            found.append(child)
        return found

    def kill_executor(self) -> None:
        """Kill one with the Python processes that it has started; its worker starts another."""
        executor = random.Random().choice(self.executors())
        for process in (*executor.children(recursive=True), executor):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        """Kill all processes, executors too."""
        for process in reversed(self._processes):
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
            process.kill()
            process.wait()

    def _start(self, daemon: str, *arguments: str) -> None:
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{daemon}"]
        with (self._folder / "daemons.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, "--host", HOST, *arguments],
                    env=bare() | DAEMONS,
                    stdout=log,
                    stderr=log,
                )
            )


@contextmanager
def cluster(folder: Path, *, workers: int) -> Iterator[Cluster]:
    """A cluster of so many workers, which leaves no process behind."""
    folder.mkdir()
    made = Cluster(folder)
    try:
        for _ in range(workers):
            made.add_worker()
        yield made
    finally:
        made.stop()


def bare() -> dict[str, str]:
    """This environment, by which Python finds what is installed and no more."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return
        time.sleep(0.1)
    raise AssertionError("the master does not listen")
