"""What the topics get: tables at the beginning, and how they change after it. Always the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

START_US = 1_767_225_600_000_000
CITIES = 200
DELETED_EVERY = 50
COLUMNS = {"orders": ("id", ["customer", "amount"]), "customers": ("name", ["city"])}
"""Of each topic, its key and its values."""

Numbers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Size:
    """How many rows there are, and how many of them each micro-batch changes."""

    orders: int = 60_000
    customers: int = 5_000
    changed_orders: int = 300
    changed_customers: int = 5


def beginning(size: Size) -> dict[str, pa.Table]:
    """All rows of both tables, once."""
    rng = np.random.default_rng(1)
    return {
        "orders": _orders(np.arange(size.orders), 0, size, rng),
        "customers": _customers(np.arange(size.customers), 0, rng),
    }


def changes(size: Size, batches: int) -> dict[str, pa.Table]:
    """What changes after it, one micro-batch's changes after the other's: of orders most are
    updates, which also move them to other customers, some deletes and some new ones.
    """
    rng = np.random.default_rng(2)

    def orders(batch: int) -> pa.Table:
        new = size.changed_orders // 10
        ids = rng.integers(0, size.orders, size.changed_orders - new)
        # They take their ids in turns, so that the table stays about as large.
        first = size.orders + (batch * new) % (size.orders // 10)
        return _orders(np.concatenate([ids, first + np.arange(new)]), batch, size, rng)

    def customers(batch: int) -> pa.Table:
        return _customers(rng.integers(0, size.customers, size.changed_customers), batch, rng)

    return {"orders": _all(orders, batches), "customers": _all(customers, batches)}


def _all(of: Callable[[int], pa.Table], batches: int) -> pa.Table:
    def each() -> Iterator[pa.Table]:
        for batch in range(1, batches + 1):
            yield of(batch)

    return pa.concat_tables(each()).combine_chunks()


def _orders(ids: np.ndarray, batch: int, size: Size, rng: np.random.Generator) -> pa.Table:
    count = len(ids)
    deleted = rng.integers(0, DELETED_EVERY, count) == 0 if batch else np.zeros(count, bool)
    numbers = {
        "id": ids,
        "customer": rng.integers(0, size.customers, count),
        "amount": rng.integers(1, 1000, count),
    }
    return _dated(numbers, deleted, batch)


def _customers(names: np.ndarray, batch: int, rng: np.random.Generator) -> pa.Table:
    numbers = {"name": names, "city": rng.integers(0, CITIES, len(names))}
    return _dated(numbers, np.zeros(len(names), bool), batch)


def _dated(numbers: Numbers, deleted: np.ndarray, batch: int) -> pa.Table:
    at = pa.array(np.full(len(deleted), START_US + batch * 1_000_000), pa.timestamp("us", "UTC"))
    change = pc.if_else(pa.array(deleted), "delete", "upsert")
    return pa.table(
        {**{name: pa.array(own) for name, own in numbers.items()}, "_change": change}
        | {"_timestamp": at}
    )
