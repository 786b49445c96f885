"""Joins between streams and changing tables, for PySpark."""

from __future__ import annotations

from typing import NoReturn

from dovetail.dsl import GroupedStream, GroupedTable, Stream, Table, WindowedStream, WindowedTable
from dovetail.errors import (
    BatchError,
    CheckpointError,
    ConfigurationError,
    DataError,
    DovetailError,
    DovetailWarning,
    PlanError,
    StateError,
    StorageError,
    TargetError,
)
from dovetail.hints import OF_MODULE, MissingNameError, nearest
from dovetail.io.avro import avro
from dovetail.io.current_rows import read_current
from dovetail.io.debezium import debezium
from dovetail.io.delta import to_delta
from dovetail.io.dialects import canal, maxwell
from dovetail.io.formats import json
from dovetail.io.kafka import read_topic
from dovetail.io.postgres import to_postgres
from dovetail.io.protobuf import protobuf
from dovetail.io.registry import registry
from dovetail.io.sinks import to_console, to_foreach_batch, to_memory, to_parquet
from dovetail.io.topics import to_topic
from dovetail.lookup.dbapi import dbapi
from dovetail.lookup.delta_files import delta_files
from dovetail.lookup.postgres import postgres
from dovetail.lookup.source import Index, LookupSource, index
from dovetail.lookup.sqlite import sqlite
from dovetail.plan.aggregates import (
    AggregateCall,
    aggregate,
    approx_count_distinct,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max,  # noqa: A004
    mean,
    min,  # noqa: A004
    sum,  # noqa: A004
    top,
)
from dovetail.plan.delta import Delta, delta
from dovetail.plan.look_up import cache
from dovetail.plan.stream_join import Within, within
from dovetail.plan.windows import Windows, hopping, session, sliding, tumbling
from dovetail.results import dead_letters, explain, run, upgrade
from dovetail.snapshots.table import SnapshotTable
from dovetail.spark.doctor import doctor
from dovetail.spark.outcomes import BatchSink, Sink
from dovetail.spark.repartition import repartition
from dovetail.spark.rewind import rewind
from dovetail.spark.running import settings
from dovetail.spark.session import configure
from dovetail.spark.state_lookup import lookup_state
from dovetail.spark.state_reader import read_state

__version__ = "0.1.0"

__all__ = [
    "AggregateCall",
    "BatchError",
    "BatchSink",
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "Delta",
    "DovetailError",
    "DovetailWarning",
    "GroupedStream",
    "GroupedTable",
    "Index",
    "LookupSource",
    "PlanError",
    "Sink",
    "SnapshotTable",
    "StateError",
    "StorageError",
    "Stream",
    "Table",
    "TargetError",
    "WindowedStream",
    "WindowedTable",
    "Windows",
    "Within",
    "aggregate",
    "approx_count_distinct",
    "avro",
    "cache",
    "canal",
    "collect_list",
    "collect_set",
    "configure",
    "count",
    "count_distinct",
    "dbapi",
    "dead_letters",
    "debezium",
    "delta",
    "delta_files",
    "doctor",
    "explain",
    "first",
    "hopping",
    "index",
    "json",
    "last",
    "lookup_state",
    "max",
    "maxwell",
    "mean",
    "min",
    "postgres",
    "protobuf",
    "read_current",
    "read_state",
    "read_topic",
    "registry",
    "repartition",
    "rewind",
    "run",
    "session",
    "settings",
    "sliding",
    "sqlite",
    "sum",
    "to_console",
    "to_delta",
    "to_foreach_batch",
    "to_memory",
    "to_parquet",
    "to_postgres",
    "to_topic",
    "top",
    "tumbling",
    "upgrade",
    "within",
]


def __getattr__(name: str) -> NoReturn:
    if name.startswith("_"):
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    remedy = OF_MODULE.get(name) or nearest(name, __all__)
    raise MissingNameError("dovetail", f"there is no dt.{name}", remedy)
