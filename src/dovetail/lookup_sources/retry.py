"""Repeated attempts. A failing source delays its batch, then fails it, but never
yields fewer rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from dovetail.base.error_text import first_line
from dovetail.errors import ConfigurationError

T = TypeVar("T")

_WAIT_MAX_S = 5.0


class RetriedStore(Protocol):
    """A store that is asked again after a failure."""

    @property
    def title(self) -> str:
        """The store's name in errors."""

    @property
    def retries(self) -> int:
        """The number of further attempts after a failure; 0 for none."""

    @property
    def wait_s(self) -> float:
        """The wait in seconds before the first further attempt; it doubles each time, up to 5 s."""


def call_with_retries(
    store: RetriedStore,
    action: Callable[[], T],
    retried_errors: tuple[type[Exception], ...] = (OSError,),
) -> T:
    """Return the result of ``action``, which is called again after errors of ``retried_errors``.

    ``store``: gives its name for the error, the count of further attempts, and the wait before
    each, in which the thread sleeps; it doubles up to 5 s. Raises ``ConfigurationError`` if the
    last of 1 + ``retries`` attempts fails with such an error. All other errors are raised at once.
    """
    for tried in range(store.retries):
        with suppress(*retried_errors):
            return action()
        time.sleep(min(store.wait_s * 2**tried, _WAIT_MAX_S))
    try:
        return action()
    except retried_errors as error:
        raise ConfigurationError(
            store.title,
            f"no answer after {store.retries + 1} attempts: {first_line(error)}",
            "See that it runs and can be reached from the workers, then start the query again; "
            "timeout_s= and retries= say how long to wait",
        ) from error
