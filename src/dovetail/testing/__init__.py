"""Run a topology inside the process, row by row, without a query and without files.

Spark is needed only for the expressions that use it. This module is what ``TopologyTestDriver``
is to Kafka Streams. A ``Driver`` runs the code that Spark's workers run, on the same stored bytes.
It treats a record as a query would.

>>> import pyarrow as pa
>>> orders = table("orders", key="id", schema={"id": pa.int64(), "amount": pa.int64()})
>>> payments = table("payments", key="id", schema={"id": pa.int64(), "paid": pa.bool_()})
>>> driver = Driver(orders.join(payments, how="left"))
>>> driver.pipe(orders, {"id": 1, "amount": 5}, timestamp=3)
[<id=1: amount=5, paid=None @3>]
>>> driver.pipe(payments, {"id": 1, "paid": True}, timestamp=2)
[<id=1: amount=5, paid=True @3>]
>>> driver.pipe(orders, {"id": 1}, timestamp=7, deleted=True)
[<id=1: deleted @7>]
>>> print(driver.as_text(driver.read()))
time | id | amount | paid | change
3    | 1  | 5      |      | upsert
3    | 1  | 5      | true | upsert
7    | 1  |        |      | delete
"""

from __future__ import annotations

from dovetail.testing.changes import Change
from dovetail.testing.driver import Driver
from dovetail.testing.inputs import Schema, stream, table
from dovetail.testing.table_difference import assert_table_equal
from dovetail.testing.timelines import DriverTimeline, timeline

__all__ = [
    "Change",
    "Driver",
    "DriverTimeline",
    "Schema",
    "assert_table_equal",
    "stream",
    "table",
    "timeline",
]
