"""What goes into a topology and what comes out, whatever the topology."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

T = TypeVar("T")
Hash: TypeAlias = "Callable[[Sequence[pa.Array]], Any]"


class Record(NamedTuple):
    """One record of an input; ``deleted``: a table's tombstone, a stream's record without value."""

    table: str
    key: Any
    time: int
    value: Any
    deleted: bool


class Result(NamedTuple):
    """A change as people see it: ``values`` has None for a side without row, and is None for a
    tombstone; ``withdrawn``: a stream's result that no longer holds.
    """

    key: Any
    values: tuple[Any, ...] | None
    time: int
    withdrawn: bool = False


Batches: TypeAlias = "Sequence[Sequence[Record]]"
Answers: TypeAlias = "list[list[Result]]"

WHOLE = 10**6
"""As a size of micro-batches: all records at once."""


def cut(records: Sequence[T], size: int) -> list[list[T]]:
    """Micro-batches of ``size`` records."""
    return [list(records[start : start + size]) for start in range(0, len(records), size)]


def flat(parts: Iterable[Iterable[T]]) -> list[T]:
    """The results of several records or batches as one list."""
    return [result for part in parts for result in part]


def parts(results: Sequence[Iterable[T]], size: int) -> list[list[T]]:
    """The results of so many records each."""
    return [flat(part) for part in cut(results, size)]


def by_key(results: Iterable[Any]) -> dict[Any, list[Any]]:
    """The results of each key, in their order."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for result in results:
        found[result.key].append(result)
    return dict(found)


def accumulate(rows: dict[Any, Any], changes: Iterable[Any]) -> None:
    """Apply a model's changes to the table of cells that they describe."""
    for change in changes:
        if change.cells is None:
            rows.pop(change.key, None)
        else:
            rows[change.key] = change.cells


def add_up(rows: dict[Any, Any], results: Iterable[Result]) -> None:
    """Apply a changelog to the table of values that it describes."""
    for result in results:
        if result.values is None:
            rows.pop(result.key, None)
        else:
            rows[result.key] = result.values


def stepped(running: Any, records: Iterable[Record]) -> Iterator[list[Any]]:
    """What each record makes a definition say that goes record by record."""
    for record in records:
        yield running.step(record)


def ended(running: Any, records: Iterable[Record]) -> list[Any]:
    """What such a definition adds when its input has ended."""
    for record in records:
        running.step(record)
    return running.end()


def per_batch(results: Iterable[Sequence[T]], batches: Batches) -> list[list[T]]:
    """The results of single records, batch by batch."""
    left = iter(results)
    return [flat(next(left) for _ in batch) for batch in batches]


def byte_order(key: Any) -> bytes:
    """Keys are ordered as their bytes are."""
    return str(key).encode()


def one_hash(keys: Sequence[pa.Array]) -> Any:
    """The hash under which all keys collide."""
    return np.full(len(keys[0]), 7)
