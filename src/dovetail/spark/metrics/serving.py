"""The common part of the servers of a query's figures: their port, and the packages they need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, TypeAlias

from dovetail.base.validation import Rule
from dovetail.errors import ConfigurationError

Port: TypeAlias = Annotated[int, Rule("a port from 0 to 65535", lambda n: 0 <= n <= 65535)]


@contextmanager
def address_errors(operator: str, host: str, port: int) -> Iterator[None]:
    """Return a context that turns an ``OSError`` of its block into a ``ConfigurationError``, which
    says that ``host`` and ``port`` cannot be bound. Other errors pass. ``operator``: the user's
    call, to begin the error.
    """
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            operator,
            f"{host}:{port} cannot be bound: {error.strerror or error}",
            "Give another port=, or 0 for any free one",
        ) from error


def import_optional(operator: str, module: str, extras: str) -> Any:
    """Import and return the module named ``module``, such as ``"openlineage.client"``.
    ``operator``: the user's call, to begin the error.

    Raises ``ConfigurationError`` if it cannot be imported. Its remedy is to install this package
    with ``extras``, the name of a group of optional dependencies.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            operator,
            f"{module.partition('.')[0].replace('_', '-')} is not installed",
            f"Install it: pip install 'dovetail[{extras}]'",
        ) from error
