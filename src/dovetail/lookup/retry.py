"""Trying again: a source that fails delays its batch, then fails it; it never yields less."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from dovetail.errors import ConfigurationError

T = TypeVar("T")

_WAIT_MAX_S = 5.0


def persistently(
    title: str,
    action: Callable[[], T],
    *,
    passing: tuple[type[Exception], ...],
    retries: int,
    wait_s: float,
) -> T:
    """What ``action`` returns, tried again after errors of the ``passing`` types, each time after
    twice the wait, up to 5 s.

    Raises ``ConfigurationError`` when it has failed ``retries`` + 1 times; other errors at once.
    """
    for tried in range(retries):
        with suppress(*passing):
            return action()
        time.sleep(min(wait_s * 2**tried, _WAIT_MAX_S))
    try:
        return action()
    except passing as error:
        raise ConfigurationError(
            title,
            f"no answer after {retries + 1} attempts: {first_line(error)}",
            "See that it runs and can be reached from the workers, then start the query again; "
            "timeout_s= and retries= say how long to wait",
        ) from error


def first_line(error: object) -> str:
    """An error's message without the details that follow it."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
