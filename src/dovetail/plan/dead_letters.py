"""The rows that a query leaves out because something fails on them, as a stream of their own."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import StringType, StructField, StructType

from dovetail.columns import LETTER, OPERATOR, PROBLEM
from dovetail.plan.nodes import Node


@dataclass(frozen=True)
class DeadLetters(Node):
    """Of each such row the operator that left it out, the problem, and the row as JSON."""

    name = "dead letters"
    key = StructType([StructField(OPERATOR, StringType(), False)])
    values = StructType([StructField(name, StringType(), False) for name in (PROBLEM, LETTER)])
    stream = True
