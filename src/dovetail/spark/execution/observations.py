"""Observed metrics of a query: the counts of rows without use, and the reports of stages.

Spark adds them up over all tasks of a micro-batch and shows them in the query's progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dovetail.base.columns import COUNTED
from dovetail.physical.routing import RouteStep
from dovetail.plan.metrics import metric


@dataclass
class Observations:
    """The observed metrics of one query."""

    reports: dict[int, str] = field(default_factory=dict)
    """The metric with the reports of each stage with state, by the stage's number in the line."""
    _names: Counter[str] = field(default_factory=Counter)

    def named(self, name: str) -> str:
        """Return a name for a metric that is unique in the query."""
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}#{self._names[name]}"

    def counting(self, rows: DataFrame, name: str, count: Column, example: Column) -> DataFrame:
        """Return the rows, with a counter as a metric.

        ``count``: how much each row adds, null for nothing. ``example``: a text, null for none.
        """
        total = F.coalesce(F.sum(count), F.lit(0)).alias("records")
        return rows.observe(self.named(name), total, F.min(example).alias("example"))

    def of_input(
        self, rows: DataFrame, metrics: Sequence[str], reader: int, source_index: int
    ) -> DataFrame:
        """Return the packed rows. Their counts for input ``source_index`` of ``reader``, one per
        name in ``metrics``, become metrics, each with an example.
        """
        for_input = (F.col("reader") == reader) & (F.col("source") == source_index)
        for metric_index, name in enumerate(metrics):
            count, example = (
                F.when(for_input, F.col(c)[metric_index]) for c in ("counts", "examples")
            )
            rows = self.counting(rows, name, count, example)
        return rows

    def of_stage(
        self, rows: DataFrame, step: RouteStep, reader: int, source_index: int
    ) -> DataFrame:
        """Return the rows that a stage emits, packed for input ``source_index`` of ``reader``. Its
        counts and the reports of its buckets become metrics.
        """
        for_input = (F.col("reader") == reader) & (F.col("source") == source_index)
        rows = self._reporting(rows, step, F.when(for_input, F.col("report")))
        return self.of_input(rows, step.stage.fragment.counts, reader, source_index)

    def of_flat_stage(self, rows: DataFrame, step: RouteStep) -> DataFrame:
        """Return the changes among rows of ``FlatEmission``. The counts and reports in the other
        rows become metrics.
        """
        metrics = step.stage.fragment.counts
        report = F.get_json_object(F.col(COUNTED), f"$[{len(metrics)}]")
        rows = self._reporting(rows, step, report)
        for metric_index, name in enumerate(metrics):
            count, example = (
                F.get_json_object(F.col(COUNTED), f"$[{metric_index}][{part}]") for part in (0, 1)
            )
            rows = self.counting(rows, name, count.cast("long"), example)
        return rows.where(F.col(COUNTED).isNull()).drop(COUNTED)

    def _reporting(self, rows: DataFrame, step: RouteStep, report: Column) -> DataFrame:
        """Return the rows, with the reports of a stage's buckets as metric ``<title>.stage``.

        ``report``: a text, null for none.
        """
        name = self.named(metric(step.stage.fragment.title, "stage"))
        self.reports[step.number] = name
        return rows.observe(name, F.collect_list(report).alias("buckets"))
