"""Repeated attempts. A failing source delays its batch, then fails it, but never
yields fewer rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from dovetail.errors import ConfigurationError

T = TypeVar("T")

_WAIT_MAX_S = 5.0


class Retried(Protocol):
    """A store that is asked again after a failure."""

    @property
    def title(self) -> str:
        """The store's name in errors."""

    @property
    def retries(self) -> int:
        """The number of further attempts after a failure."""

    @property
    def wait_s(self) -> float:
        """The wait in seconds before the first further attempt; it doubles each time."""


def ask_persistently(
    source: Retried,
    question: Callable[[], T],
    passing: tuple[type[Exception], ...] = (OSError,),
) -> T:
    """Return the result of ``question`` to a store, asked again as the store says. Arguments and
    errors are those of ``persistently``.
    """
    return persistently(
        source.title, question, passing=passing, retries=source.retries, wait_s=source.wait_s
    )


def persistently(
    title: str,
    action: Callable[[], T],
    *,
    passing: tuple[type[Exception], ...],
    retries: int,
    wait_s: float,
) -> T:
    """Return the result of ``action``, retried after errors of the types ``passing``.

    ``retries``: the number of further attempts. ``wait_s``: the first wait in seconds; waits
    double, up to 5 s. Raises ``ConfigurationError`` if the last attempt fails; other errors at
    once.
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
    """Return the first line of an error's message, or the name of its type if there is none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
