"""Checkpoints of queries: read their state, go back, change partitions, and upgrade topologies."""

from dovetail.api.results import upgrade
from dovetail.spark.checkpoints.state_lookup import lookup_state
from dovetail.spark.checkpoints.state_reader import read_state
from dovetail.spark.migration.repartition import repartition
from dovetail.spark.migration.rewind import rewind
from dovetail.spark.query.writer import settings

__all__ = ["lookup_state", "read_state", "repartition", "rewind", "settings", "upgrade"]


def __dir__() -> list[str]:
    return __all__
