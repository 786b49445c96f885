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
    """Turn an ``OSError`` of the block into a ``ConfigurationError``, which says that ``host`` and
    ``port`` cannot be bound. Other errors pass. ``operator``: the subject of the error.
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
    """Return the module named ``module``. Raises ``ConfigurationError`` if it cannot be imported,
    with the advice to install ``extras`` of this package. ``operator``: the subject of the error.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            operator,
            f"{module.partition('.')[0].replace('_', '-')} is not installed",
            f"Install it: pip install 'dovetail[{extras}]'",
        ) from error
