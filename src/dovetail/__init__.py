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
from dovetail.io.sinks import to_function, to_memory, to_parquet
from dovetail.runtime.query import settings
from dovetail.table import Table

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "DovetailError",
    "PlanError",
    "StateError",
    "Table",
    "settings",
    "to_function",
    "to_memory",
    "to_parquet",
]
