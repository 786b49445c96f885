"""What all systems compute: in the API of dovetail and Spark, and in SQL.

The SQL is that of DuckDB, which says what is right, and of Apache Flink. No input has two records
of one key, so each system has the same rows at rest whatever it emits meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import dovetail as dt

_JOINED = (
    "SELECT order_id, customer, amount, city FROM orders JOIN customers ON customer = customer_id"
)
_SUMS = "COUNT(*) AS orders, SUM(amount) AS total"


@dataclass(frozen=True)
class Topology:
    """A topology that each system computes."""

    inputs: tuple[str, ...]
    ours: Callable[[Mapping[str, dt.Table]], dt.Table]
    sql: str
    spark: Callable[[Mapping[str, DataFrame]], DataFrame] | None = None
    """Spark's own streaming query, which has the same rows where no row changes; None if it has
    none."""
    spark_mode: str = "append"


def _joined(tables: Mapping[str, dt.Table]) -> dt.Table:
    """Return the orders with their customers' cities."""
    columns = ["customer", "amount", "city"]
    return tables["orders"].join(tables["customers"], on="customer", select=columns)


TOPOLOGIES = {
    "table_table": Topology(
        inputs=("orders", "payments"),
        ours=lambda tables: tables["orders"].join(
            tables["payments"], on={"order_id": "payment_id"}, select=["customer", "amount", "paid"]
        ),
        sql="SELECT order_id, customer, amount, paid FROM orders JOIN payments "
        "ON order_id = payment_id",
        spark=lambda frames: (
            frames["orders"]
            .join(frames["payments"], F.expr("order_id = payment_id"))
            .select("order_id", "customer", "amount", "paid")
        ),
    ),
    "foreign_key": Topology(
        inputs=("orders", "customers"),
        ours=_joined,
        sql=_JOINED,
        spark=lambda frames: (
            frames["orders"]
            .join(frames["customers"], F.expr("customer = customer_id"))
            .select("order_id", "customer", "amount", "city")
        ),
    ),
    "aggregate": Topology(
        inputs=("orders",),
        ours=lambda tables: (
            tables["orders"].group_by("customer").agg(orders=dt.count(), total=dt.sum("amount"))
        ),
        sql=f"SELECT customer, {_SUMS} FROM orders GROUP BY customer",
        spark=lambda frames: (
            frames["orders"]
            .groupBy("customer")
            .agg(F.count("*").alias("orders"), F.sum("amount").alias("total"))
        ),
        spark_mode="update",
    ),
    "foreign_key_aggregate": Topology(
        inputs=("orders", "customers"),
        ours=lambda tables: (
            _joined(tables).group_by("city").agg(orders=dt.count(), total=dt.sum("amount"))
        ),
        sql=f"SELECT city, {_SUMS} FROM ({_JOINED}) GROUP BY city",
    ),
}
