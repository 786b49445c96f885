"""Joins between streams and changing tables, for PySpark."""

from __future__ import annotations

from dovetail.errors import (
    CheckpointError,
    ConfigurationError,
    DataError,
    DovetailError,
    PlanError,
    StateError,
)
from dovetail.io.delta import to_delta
from dovetail.io.kafka import read_topic
from dovetail.io.sinks import to_function, to_memory, to_parquet
from dovetail.io.topics import to_topic
from dovetail.plan.aggregates import (
    AggregateCall,
    aggregate,
    approx_count_distinct,
    collect_list,
    collect_set,
    count,
    first,
    last,
    max,  # noqa: A004
    mean,
    min,  # noqa: A004
    sum,  # noqa: A004
)
from dovetail.plan.joins import Within, within
from dovetail.plan.windows import Windows, hopping, session, sliding, tumbling
from dovetail.runtime.query import settings
from dovetail.stream import Stream, WindowedTable
from dovetail.table import Table

__version__ = "0.1.0"

__all__ = [
    "AggregateCall",
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "DovetailError",
    "PlanError",
    "StateError",
    "Stream",
    "Table",
    "WindowedTable",
    "Windows",
    "Within",
    "aggregate",
    "approx_count_distinct",
    "collect_list",
    "collect_set",
    "count",
    "first",
    "hopping",
    "last",
    "max",
    "mean",
    "min",
    "read_topic",
    "session",
    "settings",
    "sliding",
    "sum",
    "to_delta",
    "to_function",
    "to_memory",
    "to_parquet",
    "to_topic",
    "tumbling",
    "within",
]
