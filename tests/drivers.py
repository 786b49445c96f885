"""Driver processes that tests kill: a test module run as a script, with all that it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

Driver = subprocess.Popen[bytes]
CHATTER = "Python worker finish init stage"
"""What Spark would print for each stage with state at each start of a query."""


@contextmanager
def running(script: str, *arguments: str, folder: Path) -> Iterator[Driver]:
    """The script in a process group of its own, in this folder; at the end the group is killed."""
    driver = subprocess.Popen(
        [sys.executable, script, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield driver
    finally:
        with suppress(ProcessLookupError):  # all have ended by themselves
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def wait_until(
    happened: Callable[[], bool], driver: Driver, what: str, *, within_s: float = 120
) -> None:
    """Wait for what the driver will do."""
    deadline = time.monotonic() + within_s
    while not happened():
        assert driver.poll() is None, "the driver ended by itself"
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.005)


def reported(script: str, *arguments: object, **environment: str) -> Any:
    """What the script prints last, as JSON, once it has run in a process of its own."""
    done = subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert CHATTER not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])
