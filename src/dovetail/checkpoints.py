"""Checkpoints of queries: read state, explain rows, go back, change partitions or topologies."""

from dovetail.api.results import upgrade
from dovetail.spark.checkpoints.row_explanations import explain_row
from dovetail.spark.checkpoints.state_lookup import lookup_state
from dovetail.spark.checkpoints.state_reader import read_state
from dovetail.spark.migration.repartition import repartition
from dovetail.spark.migration.rewind import rewind
from dovetail.spark.query.writer import settings

__all__ = [
    "explain_row",
    "lookup_state",
    "read_state",
    "repartition",
    "rewind",
    "settings",
    "upgrade",
]


def __dir__() -> list[str]:
    return __all__
