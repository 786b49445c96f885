"""Driver processes that tests kill: a test module run as a script, with all that it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from inspect import getattr_static
from pathlib import Path
from typing import Any

import pytest

CHATTER = "Python worker finish init stage"
"""What Spark would print for each stage with state at each start of a query."""


class Driver(subprocess.Popen[bytes]):
    """A script in a process group of its own, in this folder; ``log``: what it prints."""

    def __init__(self, script: str, *arguments: str, folder: Path) -> None:
        self.log = folder / "driver.log"
        with self.log.open("wb") as log:
            super().__init__(
                [sys.executable, script, *arguments],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def refuse_ended(self) -> None:
        """Fail with what it has printed, if it has ended by itself."""
        if self.poll() is not None:
            text = self.log.read_text(errors="replace")
            pytest.fail(f"the driver ended by itself with {self.returncode}:\n{text[-20_000:]}")


@contextmanager
def running(script: str, *arguments: str, folder: Path) -> Iterator[Driver]:
    """The script, until its group is killed at the end."""
    driver = Driver(script, *arguments, folder=folder)
    try:
        yield driver
    finally:
        with suppress(ProcessLookupError):  # all have ended by themselves
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def wait_until(
    happened: Callable[[], bool], driver: Driver, what: str, *, within_s: float = 240
) -> None:
    """Wait for what the driver will do."""
    deadline = time.monotonic() + within_s
    while not happened():
        driver.refuse_ended()
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.005)


def die_at(
    owners: Sequence[Any],
    name: str,
    turn: int,
    *,
    first: bool,
    counts: Callable[..., bool] = lambda *_, **__: True,
) -> None:
    """Let this process kill itself at a call of a function: before it, or else behind it.

    ``turn``: which of the calls that count, from 1. ``counts``: say by the arguments whether a call
    counts. ``owners``: those that have the function of this name.
    """
    turns = 0

    def dying(called: Callable[..., Any]) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal turns
            turns += counts(*arguments, **options)
            if first and turns == turn:
                os.kill(os.getpid(), signal.SIGKILL)
            returned = called(*arguments, **options)
            if turns == turn:
                os.kill(os.getpid(), signal.SIGKILL)
            return returned

        return call

    for owner in owners:
        function = dying(getattr(owner, name))
        is_static = isinstance(getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(function) if is_static else function)


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
