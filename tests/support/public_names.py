"""The public names: those of ``dt`` and of its modules by topic."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import dovetail as dt
from dovetail.testing import strategies

MODULES: tuple[ModuleType, ...] = (
    dt,
    *(part for name in dt.__all__ if isinstance(part := getattr(dt, name), ModuleType)),
    strategies,
)


def exported() -> Iterator[tuple[str, Any]]:
    """Each name as a user writes it after ``dt.``, with its object; no modules."""
    for module in MODULES:
        prefix = module.__name__.partition(".")[2]
        for name in module.__all__:
            value = getattr(module, name)
            if not isinstance(value, ModuleType):
                yield f"{prefix}.{name}".lstrip("."), value
