"""What all systems get: files of CSV with whole numbers alone, and two cores."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

COLUMNS = {
    "orders": ("order_id", "customer", "amount", "ordered_at"),
    "customers": ("customer_id", "city", "since"),
    "payments": ("payment_id", "paid", "paid_at"),
}
"""The columns of each input, the key first and the time, in seconds since 1970, last."""
BEGIN_S = 1_700_000_000
CITIES = 500
CORES = 2


def write(directory: Path, orders: int, *, files: int = 10) -> None:
    """Write n orders, n / 10 customers and n payments, in ``files`` files each.

    Keys are unique and in no order. Each order has a customer. Half of the payments have an order.
    """
    random, customers = np.random.default_rng(7), orders // 10
    columns = {
        "orders": (
            random.permutation(orders),
            random.integers(0, customers, orders),
            random.integers(0, 1000, orders),
        ),
        "customers": (random.permutation(customers), random.integers(0, CITIES, customers)),
        "payments": (
            random.permutation(orders) + orders // 2,
            random.integers(0, 1000, orders),
        ),
    }
    for name, arrays in columns.items():
        count = len(arrays[0])
        table = pa.table([*arrays, BEGIN_S + np.arange(count)], names=COLUMNS[name])
        (directory / name).mkdir()
        edges = np.linspace(0, count, files + 1).astype(int)
        for index, (start, end) in enumerate(pairwise(edges)):
            csv.write_csv(table.slice(start, end - start), directory / name / f"{index}.csv")


def records(joined: tuple[str, ...], orders: int) -> int:
    """Return the number of records of some inputs."""
    return sum(orders // 10 if name == "customers" else orders for name in joined)
