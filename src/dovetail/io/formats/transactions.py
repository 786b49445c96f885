"""Debezium's events as parts of their transactions.

| field | of an event |
|---|---|
| ``op`` | its kind |
| ``id`` | its transaction |
| ``total_order`` | its position among the transaction's events, from 1 |
| ``place`` | its place in the database's log, null where that is unknown |

An update of the key is an event ``d`` of the former key and an event ``c`` of the new one.

PostgreSQL's connector writes an id of two numbers, ``729:26407824``. The first one is the
transaction, the second one the event's place in the log. A connector that restarts within a
transaction numbers the rest of its events from 1. So only the place tells a new event from one that
was there before. It grows along a transaction: ``lsn`` of PostgreSQL, ``pos`` and ``row`` of MySQL
and MariaDB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

TRANSACTION: Final = "_transaction"
"""The column with the part of an event in its transaction."""
TRANSACTION_TYPE: Final = StructType(
    [
        StructField("op", StringType()),
        StructField("id", StringType()),
        StructField("total_order", LongType()),
        StructField("place", LongType()),
    ]
)
"""The type of that column."""
TRANSACTION_PATHS: Final = (
    "transaction.id",
    "transaction.total_order",
    "source.lsn",
    "source.pos",
    "source.row",
)
"""The parts of an envelope that the column is made of, besides ``op``."""
NO_TRANSACTION: Final = "no field 'transaction', which transactions=True reads"
"""The problem of an envelope without the field, behind "has"."""
TRANSACTION_REMEDY: Final = "set provide.transaction.metadata=true in the connector"
"""The remedy for it."""
_ROWS_MAX: Final = 1 << 24
"""The most rows of an event in MySQL's log."""


def transaction_of(op: Column, part_at: Callable[[str], Column]) -> Column:
    """Return an event's part in its transaction: a struct of ``op``, ``id``, ``total_order`` and
    ``place`` (``TRANSACTION_TYPE``), whose fields are null where the envelope has none. Of an id of
    two numbers, such as ``729:26407824``, the first one is kept.

    ``place`` is the event's place in the database's log: ``source.lsn``, else ``source.pos`` * 2^24
    + ``source.row``. A missing row counts as 0; without ``lsn`` and ``pos`` the place is null.
    ``op``: the kind of the event. ``part_at``: a function that returns the part of the envelope at
    a path of ``TRANSACTION_PATHS``, in its type of ``events.METADATA``.
    """
    id_ = F.regexp_replace(part_at("transaction.id"), r"^(\d+):\d+$", "$1")
    row = F.coalesce(part_at("source.row"), F.lit(0))
    place = F.coalesce(part_at("source.lsn"), part_at("source.pos") * _ROWS_MAX + row)
    parts = (op, id_, part_at("transaction.total_order"), place)
    return F.struct(
        *(part.alias(name) for part, name in zip(parts, TRANSACTION_TYPE.names, strict=True))
    )


def lacks_transaction(text: Column) -> Column:
    """Return a boolean column: a JSON text is an envelope without the field ``transaction``. A null
    in that field counts as there. The result is null for a null text, and for one that is no JSON
    object. The envelope may lie in ``payload``.
    """
    payload = F.coalesce(F.get_json_object(text, "$.payload"), text)
    return ~F.array_contains(F.json_object_keys(payload), "transaction")
