"""Small topologies of each kind, which need no Spark session."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import dovetail as dt
from dovetail import testing
from dovetail.physical.topology_graph import TopologyGraph, topology_graph

WHOLE, TEXT = pa.int64(), pa.string()
ORDERS = testing.table(
    "orders", key="id", schema={"id": WHOLE, "customer": TEXT, "open": pa.bool_()}
)
PAYMENTS = testing.table("payments", key="id", schema={"id": WHOLE, "paid": WHOLE})
CUSTOMERS = testing.table("customers", key="name", schema={"name": TEXT, "city": TEXT})
CLICKS = testing.stream("clicks", key="id", schema={"id": WHOLE, "page": TEXT})
PAID = ORDERS.join(PAYMENTS, how="left", select=["open", "paid"])
NAMED = ORDERS.join(CUSTOMERS, on="customer", how="left", select=["open", "city"])
HOURS = (
    CLICKS.group_by("page")
    .window(dt.windows.tumbling("1 hour", retention="3 hours"))
    .agg(n=dt.count())
)
CITIES = NAMED.where("open").group_by("city").agg(n=dt.count())
SHIFTED = HOURS.join(
    HOURS, shift="-1 hour", how="left", select={"n": "left.n", "before": "right.n"}
)


def graph(*results: Any) -> TopologyGraph:
    return topology_graph(*(result.plan for result in results))
