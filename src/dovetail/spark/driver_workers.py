"""Forks the Python processes that Spark starts on the driver when a query starts.

Spark starts one for each stage with state, and waits for it. Such a driver worker only asks for the
state variables, but first imports pyspark, which takes longer than all the rest. Here it is forked
from a server, a process that has the imports already.

The program is a shell script that the session has as its Python. It needs the server only for
driver workers. All else runs as without it, also after the server's death.

This module is the server if it is run as a script. It imports nothing of the library.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

DRIVER_WORKER = "pyspark.sql.streaming.transform_with_state_driver_worker"
"""The main module of a driver worker of a stage with state."""
ADDRESS = ("SOCK_PATH", "PORT", "SECRET")
"""How a driver worker reaches the JVM: variables of its environment that begin with ``PREFIX``."""
PREFIX = "PYTHON_WORKER_FACTORY_"
# query start ─▶ JVM ─▶ program ─┬─ a driver worker ─▶ its address, into a pipe ─▶ server ─▶ fork
#                                └─ anything else, or no server ─▶ the session's Python
PROGRAM = """#!/bin/sh
if [ "$2" = {driver_worker} ] && [ -p "{pipe}" ]; then
  printf '%s\\t%s\\t%s\\n' {address} > "{pipe}"
else
  exec "{python}" "$@"
fi
"""


def fork_driver_workers(context: SparkContext) -> None:
    """Let the driver workers of a session's further queries be forked from a server. A driver
    worker is a Python process that Spark starts on the driver, one for each stage with state, when
    a query starts.

    ``context``: that of the session, with a JVM on this machine. Its ``pythonExec`` becomes a
    program that asks the server (``make_program``). Contexts with the same Python share a server.
    Do nothing if that is done already, or if its Python is not there. Nor is anything done where
    programs or pipes cannot be made in the folder for temporary files.
    """
    python = shutil.which(context.pythonExec)
    if python is not None and not is_program(python):
        context.pythonExec = make_program(python) or context.pythonExec


def is_program(python: str) -> bool:
    """Return True if ``python`` is the path of a program that ``make_program`` has made in this
    process; False for any other text.
    """
    return python in _SERVERS


_SERVERS: dict[str, subprocess.Popen[bytes]] = {}
"""The servers of this process by the paths of their programs."""


@cache
def make_program(python: str) -> str | None:
    """Start a server, which ends with this process, and write a program that runs ``python``, but
    lets the server fork driver workers. Return the program's path; None where no program can be
    made.

    ``python``: an absolute path. A second call with the same path starts nothing and returns the
    same.
    """
    if not hasattr(os, "mkfifo") or find_spec(DRIVER_WORKER) is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="dovetail-python-"))
    pipe, path = folder / "requests", folder / "python"
    path.touch(0o700)
    if not os.access(path, os.X_OK):  # files there cannot be executed
        shutil.rmtree(folder)
        return None
    os.mkfifo(pipe, 0o600)
    server = subprocess.Popen(  # noqa: S603 -- the Python that the session runs anyway
        [python, __file__, str(pipe)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,  # which closes when this process ends
        stdout=subprocess.DEVNULL,
    )
    path.write_text(
        PROGRAM.format(
            driver_worker=DRIVER_WORKER,
            pipe=pipe,
            address=" ".join(f'"${PREFIX}{name}"' for name in ADDRESS),
            python=python,
        )
    )
    _SERVERS[str(path)] = server
    Thread(target=_close_after, args=(server, pipe), daemon=True).start()
    return str(path)


def _close_after(server: subprocess.Popen[bytes], pipe: Path) -> None:
    """Wait for the end of ``server``, then remove its pipe. Otherwise a program that opens the pipe
    to write would wait forever for a reader. It runs in a thread of its own.
    """
    server.wait()
    pipe.unlink(missing_ok=True)


def main(pipe: Path) -> None:
    """Fork a driver worker for each line of ``pipe``, until the standard input ends. Then remove
    the folder of ``pipe``. A line has the values of the variables ``ADDRESS``, in order, with tabs
    between them.
    """
    sys.path.remove(str(Path(__file__).parent))  # its modules are no top-level ones
    import_module(DRIVER_WORKER)
    with suppress(ImportError):  # they may have other names in another Spark
        import pyspark.sql.streaming.proto.StateMessage_pb2
        import pyspark.sql.streaming.stateful_processor_api_client  # noqa: F401

    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the console's, meant for the user's process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the driver workers
    lines = open(pipe, "r+b", buffering=0)  # noqa: PTH123, SIM115 -- never at its end
    waiting = b""
    while True:
        ready, _, _ = select.select([0, lines.fileno()], [], [])
        if 0 in ready:
            shutil.rmtree(pipe.parent, ignore_errors=True)
            return
        waiting += lines.read(4096)
        *whole, waiting = waiting.split(b"\n")
        for line in whole:
            if os.fork() == 0:
                run_driver_worker(line.decode().split("\t"))


def run_driver_worker(address: list[str]) -> None:
    """Do a driver worker's work, as Spark's own process does, and end this process with exit code
    0, also after an error. ``address``: the values of the variables ``ADDRESS``, in order, an empty
    text for a variable that is not set. They are put into this process's environment.
    """
    from pyspark.sql.streaming import transform_with_state_driver_worker
    from pyspark.worker_util import get_sock_file_to_executor

    variables = {PREFIX + name: text for name, text in zip(ADDRESS, address, strict=True) if text}
    try:
        os.environ.update(variables)
        with get_sock_file_to_executor() as file:
            transform_with_state_driver_worker.main(file, file)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
