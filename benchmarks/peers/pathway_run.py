"""Pathway on the files of the benchmark, in a process of its own Python, which runs this file.

``pathway_run.py FOLDER TOPOLOGY [CSV]``: computes a topology, writes the rows at rest to a file if
one is named, and prints a line of JSON with the seconds that it took after all imports.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pathway as pw


class Order(pw.Schema):  # type: ignore[misc]
    order_id: int = pw.column_definition(primary_key=True)
    customer: int
    amount: int
    ordered_at: int


class Customer(pw.Schema):  # type: ignore[misc]
    customer_id: int = pw.column_definition(primary_key=True)
    city: int
    since: int


class Payment(pw.Schema):  # type: ignore[misc]
    payment_id: int = pw.column_definition(primary_key=True)
    paid: int
    paid_at: int


def topology(folder: str, name: str) -> Any:
    """Return the table of a topology over the files in a folder."""

    def read(kind: str, schema: type[pw.Schema]) -> Any:
        return pw.io.csv.read(f"{folder}/{kind}/", schema=schema, mode="static")

    orders = read("orders", Order)
    if name == "table_table":
        payments = read("payments", Payment)
        return orders.join(payments, orders.order_id == payments.payment_id).select(
            orders.order_id, orders.customer, orders.amount, payments.paid
        )
    if name == "aggregate":
        return orders.groupby(orders.customer).reduce(
            orders.customer, orders=pw.reducers.count(), total=pw.reducers.sum(orders.amount)
        )
    customers = read("customers", Customer)
    joined = orders.join(customers, orders.customer == customers.customer_id).select(
        orders.order_id, orders.customer, orders.amount, customers.city
    )
    if name == "foreign_key":
        return joined
    assert name == "foreign_key_aggregate"
    return joined.groupby(joined.city).reduce(
        joined.city, orders=pw.reducers.count(), total=pw.reducers.sum(joined.amount)
    )


def main() -> None:
    folder, name, *target = sys.argv[1:]
    table = topology(folder, name)
    if target:
        pw.io.csv.write(table, target[0])
    else:
        pw.io.null.write(table)
    begun = time.perf_counter()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    print(json.dumps({"seconds": time.perf_counter() - begun}), flush=True)


if __name__ == "__main__":
    main()
