"""A Python for a session in which queries start sooner.

When a query starts, Spark starts a Python process for each stage with state. That process only asks
for the state variables, but first imports pyspark, which takes longer than all the rest. Here it is
forked from a process that has the imports. Run as a script, this module is that process.
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
from functools import cache
from pathlib import Path

ASKS = "pyspark.sql.streaming.transform_with_state_driver_worker"
"""The main module of a process that only asks for the state variables."""
ADDRESS = ("SOCK_PATH", "PORT", "SECRET")
"""How such a process reaches the JVM: variables of its environment that begin with ``PREFIX``."""
PREFIX = "PYTHON_WORKER_FACTORY_"
SCRIPT = """#!/bin/sh
if [ "$2" = {asks} ]; then
  printf '%s\\t%s\\t%s\\n' {address} > "{requests}"
else
  exec "{python}" "$@"
fi
"""


@cache
def program(python: str) -> str:
    """Start the process with the imports, which ends with this one. Return the program that a
    session has as its Python: it runs ``python``, but has those processes forked.
    """
    folder = Path(tempfile.mkdtemp(prefix="dovetail-python-"))
    requests, path = folder / "requests", folder / "python"
    os.mkfifo(requests)
    address = " ".join(f'"${PREFIX}{name}"' for name in ADDRESS)
    text = SCRIPT.format(asks=ASKS, address=address, requests=requests, python=python)
    path.write_text(text)
    path.chmod(0o755)
    subprocess.Popen(
        [sys.executable, __file__, str(requests)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,  # which closes when this process ends
        stdout=subprocess.DEVNULL,
    )
    return str(path)


def main(requests: Path) -> None:
    """Fork a process for each line of ``requests``, until the standard input ends."""
    import pyspark.sql.streaming.proto.StateMessage_pb2
    import pyspark.sql.streaming.stateful_processor_api_client
    import pyspark.sql.streaming.transform_with_state_driver_worker  # noqa: F401

    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes
    lines = open(requests, "r+b", buffering=0)  # noqa: PTH123, SIM115 -- never at its end
    waiting = b""
    while True:
        ready, _, _ = select.select([0, lines.fileno()], [], [])
        if 0 in ready:
            shutil.rmtree(requests.parent)
            return
        waiting += lines.read(4096)
        *whole, waiting = waiting.split(b"\n")
        for line in whole:
            if os.fork() == 0:
                ask(line.decode().split("\t"))


def ask(address: list[str]) -> None:
    """Ask for the state variables, as Spark's own process does, and end this process."""
    from pyspark.sql.streaming import transform_with_state_driver_worker as asking
    from pyspark.worker_util import get_sock_file_to_executor

    variables = {PREFIX + name: text for name, text in zip(ADDRESS, address, strict=True) if text}
    try:
        os.environ.update(variables)
        with get_sock_file_to_executor() as file:
            asking.main(file, file)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
