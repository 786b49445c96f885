"""Joins between streams and changing tables, for PySpark."""

from __future__ import annotations

from dovetail.errors import (
    CheckpointError,
    ConfigurationError,
    DataError,
    DovetailError,
    PlanError,
    StateError,
    TargetError,
)
from dovetail.io.delta import to_delta
from dovetail.io.kafka import read_topic
from dovetail.io.sinks import to_function, to_memory, to_parquet
from dovetail.io.topics import to_topic
from dovetail.plan.joins import Within, within
from dovetail.runtime.query import settings
from dovetail.snapshots.table import SnapshotTable
from dovetail.stream import Stream
from dovetail.table import Table

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "DovetailError",
    "PlanError",
    "SnapshotTable",
    "StateError",
    "Stream",
    "Table",
    "TargetError",
    "Within",
    "read_topic",
    "settings",
    "to_delta",
    "to_function",
    "to_memory",
    "to_parquet",
    "to_topic",
    "within",
]
