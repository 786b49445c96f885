"""What the tests of truth tables share: a test per join of each table, and answers rearranged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import pytest

R = TypeVar("R", bound="Keyed")


class Keyed(Protocol):
    """A result, whatever else it has."""

    @property
    def key(self) -> Any: ...


class Joins(Protocol):
    """A truth table, whatever its format."""

    @property
    def name(self) -> str: ...

    @property
    def joins(self) -> dict[str, Any]: ...


def per_join(tables: Iterable[Joins]) -> list[Any]:
    """Parameters: each table with each of its joins."""
    return [
        pytest.param(table, join, id=f"{table.name}-{join}")
        for table in tables
        for join in table.joins
    ]


def flat(parts: Iterable[Iterable[R]]) -> list[R]:
    """The results of several records or batches as one list."""
    return [result for part in parts for result in part]


def by_key(results: Iterable[R]) -> dict[Any, list[R]]:
    """The results of each key, in their order."""
    found: dict[Any, list[R]] = defaultdict(list)
    for result in results:
        found[result.key].append(result)
    return dict(found)
