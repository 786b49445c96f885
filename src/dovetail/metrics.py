"""Metrics of running queries: rows, changes, stream time and durations, by input and by stage."""

from dovetail.spark.metrics.history import Recorder, record, recorded
from dovetail.spark.metrics.opentelemetry import Instruments, opentelemetry
from dovetail.spark.metrics.progress import (
    InputProgress,
    Progress,
    StageProgress,
    Unused,
    recent,
)
from dovetail.spark.metrics.prometheus import Exporter, prometheus

__all__ = [
    "Exporter",
    "InputProgress",
    "Instruments",
    "Progress",
    "Recorder",
    "StageProgress",
    "Unused",
    "opentelemetry",
    "prometheus",
    "recent",
    "record",
    "recorded",
]


def __dir__() -> list[str]:
    return __all__
