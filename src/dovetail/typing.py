"""Types of the values that calls take and return, for annotations."""

from dovetail.api.previews import Preview
from dovetail.api.tables import GroupedStream, GroupedTable, WindowedStream
from dovetail.io.sources.replays import Replayed
from dovetail.page.server import Page
from dovetail.plan.joins.delta_options import DeltaJoinOptions
from dovetail.plan.joins.stream_join import Within
from dovetail.plan.types.aggregates import AggregateCall
from dovetail.provenance.explanation import RowExplanation
from dovetail.snapshots.table import GroupedSnapshotTable
from dovetail.spark.lineage.reporter import Lineage
from dovetail.spark.query.options import QueryOptions, TriggerOptions
from dovetail.spark.query.results import BatchSink, Sink

__all__ = [
    "AggregateCall",
    "BatchSink",
    "DeltaJoinOptions",
    "GroupedSnapshotTable",
    "GroupedStream",
    "GroupedTable",
    "Lineage",
    "Page",
    "Preview",
    "QueryOptions",
    "Replayed",
    "RowExplanation",
    "Sink",
    "TriggerOptions",
    "WindowedStream",
    "Within",
]


def __dir__() -> list[str]:
    return __all__
