"""Observed metrics of a query: the counts of rows without use, and the reports of stages.

Spark adds them up over all tasks of a micro-batch and shows them in the query's progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dovetail.base.columns import COUNTED
from dovetail.physical.routing import OperatorStage, RouteStep
from dovetail.plan.metrics import metric_name


@dataclass
class Observations:
    """The observed metrics of one query. The frames that its methods return observe them."""

    reports: dict[int, str] = field(default_factory=dict)
    """The name of the metric with the reports of each stage with state. The keys are the stages'
    indices among all stages and relays (``RouteStep.number``).
    """
    _names: Counter[str] = field(default_factory=Counter)
    """The count of calls of ``unique_name`` with each name."""

    def unique_name(self, name: str) -> str:
        """Return a name for a metric that is unique in the query: ``name`` in the first call with
        it, then ``name#2`` and so on.
        """
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}#{self._names[name]}"

    def observe_counter(
        self, rows: DataFrame, name: str, count: Column, example: Column
    ) -> DataFrame:
        """Return the rows unchanged, with an observed metric ``name``. Its fields are ``records``,
        the sum of ``count`` (0 without rows), and ``example``, the smallest text, null without any.

        ``name``: made unique here (``unique_name``), so a repeated one gets a suffix. ``count``:
        the addend of each row, null for nothing. ``example``: a text, null for none.
        """
        total = F.coalesce(F.sum(count), F.lit(0)).alias("records")
        return rows.observe(self.unique_name(name), total, F.min(example).alias("example"))

    def observe_input(
        self, rows: DataFrame, metrics: Sequence[str], reader: int, source_index: int
    ) -> DataFrame:
        """Return ``rows`` of ``PACKED`` unchanged. The counts in the rows for input
        ``source_index``, from 0, of the stage with the index ``reader`` become metrics. Each has
        the fields ``records``, a sum, and ``example``, the smallest text.

        ``metrics``: a name for each count in the column ``counted``, in order; a repeated name gets
        a suffix.
        """
        return self._observe_counts(rows, metrics, _counts_in_packed_rows(reader, source_index))

    def observe_stages(
        self, rows: DataFrame, stages: Sequence[OperatorStage], reader: int, source_index: int
    ) -> DataFrame:
        """Return ``rows`` of ``PACKED`` unchanged: the output of an operator that runs ``stages``,
        in order. Their counts and the reports of their buckets become metrics.

        They are read from the rows for input ``source_index`` of ``reader`` alone, because ``rows``
        may have those of other readers, with other counts. ``reader``: the index of a stage or
        relay, or the address of a result, with ``source_index`` 0. The names of the reports'
        metrics are added to ``reports``.
        """
        return self._observe_operator(rows, stages, _counts_in_packed_rows(reader, source_index))

    def observe_flat_stages(self, rows: DataFrame, stages: Sequence[OperatorStage]) -> DataFrame:
        """Return the changes among ``rows``, without the column ``_counted``. ``rows`` are the
        output of an operator that runs ``stages``, in order.

        Other rows have the counts and reports as JSON in that column, and are left out. These
        become metrics; the names of the reports' metrics are added to ``reports``.
        """
        rows = self._observe_operator(rows, stages, COUNTED)
        return rows.where(F.col(COUNTED).isNull()).drop(COUNTED)

    def _observe_operator(
        self, rows: DataFrame, stages: Sequence[OperatorStage], counted: str
    ) -> DataFrame:
        """Return ``rows`` unchanged, with the counts and reports of ``stages`` as metrics.
        ``rows``: the output of the operator that runs them, in order.

        ``counted``: an SQL expression for the JSON text of the last stage (``counted_text``), null
        in other rows. Those of the stages before are nested in it. Each is followed by those of the
        inputs that read it by key.
        """
        *fused, last = stages
        rows = self._observe_step(rows, last.step, counted)
        nested_at = len(last.step.stage.fragment.metric_names) + 1
        nested = (f"get_json_object({counted}, '$[{nested_at}][{index}]')" for index in count())
        for stage in fused:
            rows = self._observe_step(rows, stage.step, next(nested))
            for reading in stage.emits.readings:
                if reading.port.input is not None:
                    rows = self._observe_counts(rows, reading.metric_names, next(nested))
        return rows

    def _observe_step(self, rows: DataFrame, step: RouteStep, counted: str) -> DataFrame:
        """Return the output ``rows`` of the stage at ``step`` unchanged, with its counts and
        reports as metrics. ``counted``: the column or SQL expression that has both as JSON
        (``counted_text``), null in other rows. The name of the reports' metric is added to
        ``reports``.
        """
        metrics = step.stage.fragment.metric_names
        report = f"get_json_object({counted}, '$[{len(metrics)}]')"
        return self._observe_counts(self._observe_reports(rows, step, report), metrics, counted)

    def _observe_counts(self, rows: DataFrame, metrics: Sequence[str], counted: str) -> DataFrame:
        """Return ``rows`` unchanged, with an observed metric for each of ``metrics``. Its
        ``records`` is the sum of the counts at its index in ``counted``, 0 for none; ``example`` is
        the smallest example.

        ``counted``: an SQL expression for the JSON text ``[[count, example], ...]``, null in rows
        without counts. A name that is taken gets a suffix.
        """
        # The sums are SQL, because each function of PySpark would be several calls of the JVM.
        for metric_index, name in enumerate(metrics):
            count, example = (
                f"get_json_object({counted}, '$[{metric_index}][{part}]')" for part in (0, 1)
            )
            total = F.expr(f"coalesce(sum(cast({count} as bigint)), 0L) as records")
            # A null within a list is the text null to get_json_object.
            smallest = F.expr(f"min(if({example} = 'null', null, {example})) as example")
            rows = rows.observe(self.unique_name(name), total, smallest)
        return rows

    def _observe_reports(self, rows: DataFrame, step: RouteStep, report: str) -> DataFrame:
        """Return the rows unchanged, with the list ``buckets`` of the reports of a stage's buckets
        as metric ``<title>.stage``. A name that is taken gets a suffix. Put the metric's name into
        ``reports``, under the index of the step.

        ``report``: an SQL expression for a report's text, null in rows without one.
        """
        name = self.unique_name(metric_name(step.stage.fragment.title, "stage"))
        self.reports[step.number] = name
        # A null within a list is the text null to get_json_object.
        return rows.observe(name, F.expr(f"collect_list(nullif({report}, 'null')) as buckets"))


def unused_rows(observed: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, str | None]]:
    """Return the counters of rows without use that are not at zero, by name: (count of rows,
    example). The example is None if the metric has none. The result is empty if all rows were of
    use.

    ``observed``: the observed metrics of a micro-batch, by name, each a mapping of its fields.
    Metrics without a field ``records`` are ignored.
    """
    return {
        name: (row["records"], row.get("example"))
        for name, row in observed.items()
        if row.get("records")
    }


def _counts_in_packed_rows(reader: int, source_index: int) -> str:
    """Return an expression in SQL for the column ``counted`` of ``PACKED`` rows for input
    ``source_index`` of the stage or result ``reader``. It is null in other rows.
    """
    return f"if(reader = {reader} and source = {source_index}, counted, null)"
