"""Packages that only some users need, imported where they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dovetail.errors import ConfigurationError


def import_package(operator: str, extra: str, *modules: str) -> Any:
    """Import all ``modules`` of an optional package, and return the first one.

    ``operator``: the subject of the error, which needs the package. ``extra``: the extra of
    dovetail that installs it. ``modules``: full names, at least one, the package itself first.
    Raises ``ConfigurationError`` for any ``ImportError``, also for that of a module which they
    import. Other errors pass.

    >>> import_package("orders", "none", "json", "json.decoder").loads("[1]")
    [1]
    """
    try:
        imported, *_ = [import_module(module) for module in modules]
    except ImportError as error:
        raise ConfigurationError(
            operator,
            f"{modules[0].partition('.')[0]} is not installed where it is needed",
            f"Install dovetail[{extra}] for the driver and the workers",
        ) from error
    return imported
