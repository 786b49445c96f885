"""Joins between streams and changing tables, for PySpark.

The common names are here. Others are in modules by topic:

- ``dt.windows``: windows of event time, for aggregates.
- ``dt.formats``: formats of records, such as JSON, Avro and Debezium's.
- ``dt.lookups``: stores in which rows are looked up.
- ``dt.checkpoints``: the state of queries: read it, go back, upgrade.
- ``dt.metrics``: rows, changes, stream time and durations of running queries.
- ``dt.testing``: a driver that runs a topology row by row, without Spark.
- ``dt.errors`` and ``dt.typing``: errors to catch and types for annotations.

A name's module is imported when the name is first used. So programs that need a part of the
library, such as Spark's workers and ``dovetail state``, import no more than that part.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dovetail.base.hints import OF_MODULE, MissingNameError, nearest, topic_module_remedy

if TYPE_CHECKING:
    from dovetail import checkpoints, errors, formats, lookups, metrics, typing, windows
    from dovetail.api.previews import preview
    from dovetail.api.replays import replay
    from dovetail.api.results import dead_letters, explain, run
    from dovetail.api.tables import Stream, Table, WindowedTable
    from dovetail.io.sinks.delta.sink import to_delta
    from dovetail.io.sinks.iceberg.sink import to_iceberg
    from dovetail.io.sinks.kafka.sink import to_topic
    from dovetail.io.sinks.postgres.sink import to_postgres
    from dovetail.io.sinks.spark_sinks import to_console, to_foreach_batch, to_memory, to_parquet
    from dovetail.io.sources.current_rows import read_current
    from dovetail.io.sources.kafka import read_topic
    from dovetail.page.server import serve
    from dovetail.plan.joins.delta_options import delta_join
    from dovetail.plan.joins.stream_join import within
    from dovetail.plan.types.aggregates import (
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
    from dovetail.snapshots.table import SnapshotTable
    from dovetail.spark.doctor import doctor
    from dovetail.spark.lineage.reporter import lineage
    from dovetail.spark.metrics.progress import progress
    from dovetail.spark.session import configure

__version__ = "0.1.0"

__all__ = [
    "SnapshotTable",
    "Stream",
    "Table",
    "WindowedTable",
    "aggregate",
    "approx_count_distinct",
    "checkpoints",
    "collect_list",
    "collect_set",
    "configure",
    "count",
    "count_distinct",
    "dead_letters",
    "delta_join",
    "doctor",
    "errors",
    "explain",
    "first",
    "formats",
    "last",
    "lineage",
    "lookups",
    "max",
    "mean",
    "metrics",
    "min",
    "preview",
    "progress",
    "read_current",
    "read_topic",
    "replay",
    "run",
    "serve",
    "sum",
    "testing",
    "to_console",
    "to_delta",
    "to_foreach_batch",
    "to_iceberg",
    "to_memory",
    "to_parquet",
    "to_postgres",
    "to_topic",
    "top",
    "typing",
    "windows",
    "within",
]

_TOPICS = ("windows", "formats", "lookups", "checkpoints", "metrics", "errors", "typing")
"""The modules of names by topic."""
_NAMES = {
    "api.previews": ("preview",),
    "api.replays": ("replay",),
    "api.results": (
        "dead_letters",
        "explain",
        "run",
    ),
    "api.tables": (
        "Stream",
        "Table",
        "WindowedTable",
    ),
    "io.sinks.delta.sink": ("to_delta",),
    "io.sinks.iceberg.sink": ("to_iceberg",),
    "io.sinks.kafka.sink": ("to_topic",),
    "io.sinks.postgres.sink": ("to_postgres",),
    "io.sinks.spark_sinks": (
        "to_console",
        "to_foreach_batch",
        "to_memory",
        "to_parquet",
    ),
    "io.sources.current_rows": ("read_current",),
    "io.sources.kafka": ("read_topic",),
    "page.server": ("serve",),
    "plan.joins.delta_options": ("delta_join",),
    "plan.joins.stream_join": ("within",),
    "plan.types.aggregates": (
        "aggregate",
        "approx_count_distinct",
        "collect_list",
        "collect_set",
        "count",
        "count_distinct",
        "first",
        "last",
        "max",
        "mean",
        "min",
        "sum",
        "top",
    ),
    "snapshots.table": ("SnapshotTable",),
    "spark.doctor": ("doctor",),
    "spark.lineage.reporter": ("lineage",),
    "spark.metrics.progress": ("progress",),
    "spark.session": ("configure",),
}
"""The modules that define the names, below ``dovetail``."""
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Return the public name ``name``, and import its module at first use. Raise
    ``MissingNameError`` with advice for an unknown name, a plain ``AttributeError`` for a private
    one. The first is an ``AttributeError``, too, so ``hasattr`` and ``getattr`` with a default
    work.
    """
    if name in _MODULE_OF:
        value = getattr(import_module(f"dovetail.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    if name in (*_TOPICS, "testing"):
        return import_module(f"dovetail.{name}")
    if name.startswith("_"):
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    topics = [import_module(f"dovetail.{topic}") for topic in _TOPICS]
    remedy = (
        OF_MODULE.get(name) or topic_module_remedy(name, __all__, topics) or nearest(name, __all__)
    )
    raise MissingNameError("dovetail", f"there is no dt.{name}", remedy)


def __dir__() -> list[str]:
    return __all__
