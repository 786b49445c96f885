"""Joins between streams and changing tables, for PySpark."""

from __future__ import annotations

from typing import NoReturn

from dovetail.api.results import dead_letters, explain, run, upgrade
from dovetail.api.tables import (
    GroupedStream,
    GroupedTable,
    Stream,
    Table,
    WindowedStream,
    WindowedTable,
)
from dovetail.base.hints import OF_MODULE, MissingNameError, nearest
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
from dovetail.io.formats.avro import avro
from dovetail.io.formats.debezium import debezium
from dovetail.io.formats.dialects import canal, maxwell
from dovetail.io.formats.plain import json
from dovetail.io.formats.protobuf import protobuf
from dovetail.io.formats.registry import registry
from dovetail.io.sinks.delta.sink import to_delta
from dovetail.io.sinks.postgres.sink import to_postgres
from dovetail.io.sinks.spark_sinks import to_console, to_foreach_batch, to_memory, to_parquet
from dovetail.io.sinks.topics import to_topic
from dovetail.io.sources.current_rows import read_current
from dovetail.io.sources.kafka import read_topic
from dovetail.lookup.dbapi import dbapi
from dovetail.lookup.delta_files import delta_files
from dovetail.lookup.postgres import postgres
from dovetail.lookup.source import Index, LookupSource, index
from dovetail.lookup.sqlite import sqlite
from dovetail.plan.joins.delta_options import Delta, delta
from dovetail.plan.joins.look_up import cache
from dovetail.plan.joins.stream_join import Within, within
from dovetail.plan.types.aggregates import (
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
from dovetail.plan.types.windows import Windows, hopping, session, sliding, tumbling
from dovetail.snapshots.table import SnapshotTable
from dovetail.spark.checkpoints.state_lookup import lookup_state
from dovetail.spark.checkpoints.state_reader import read_state
from dovetail.spark.doctor import doctor
from dovetail.spark.migration.repartition import repartition
from dovetail.spark.migration.rewind import rewind
from dovetail.spark.query.results import BatchSink, Sink
from dovetail.spark.query.writer import settings
from dovetail.spark.session import configure

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
