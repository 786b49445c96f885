"""The stages of the first micro-batch, on initial rows.

So the stored state is the same as if a first micro-batch had brought these rows, through all
stages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dovetail.base.columns import (
    CHANGE,
    CLOCK,
    ORDER,
    POSITION,
    SEQUENCE,
    STREAM_TIME,
    TIE,
    TIMESTAMP,
    quoted,
)
from dovetail.physical.output import output_of
from dovetail.physical.routing import OperatorStage, RouteStep
from dovetail.physical.stage import Stage
from dovetail.spark.execution.buckets import StageWork
from dovetail.spark.execution.emission import Emission
from dovetail.spark.execution.streaming_frames import Streaming


@dataclass
class FirstStages(Streaming):
    """The stages of a query on the initial rows of their inputs, in ``sources``."""

    carried: Collection[Stage] = ()
    """The stages that take over their state (``initial``). They take no rows."""
    results: Mapping[Stage, DataFrame] = field(default_factory=dict)
    """The rows that carried stages have made, for the stages that read them."""

    def read_source(self, step: RouteStep) -> DataFrame:
        """Return packed rows (``PACKED``) from the sources of a ``step``, without those that go to
        the stages ``carried``.
        """
        packed = super().read_source(step)
        begun = {reading.reader for reading in step.readings if reading.stage in self.carried}
        return packed.where(~F.col("reader").isin(begun)) if begun else packed

    def work_of_stage(self, stage: OperatorStage, emission: Emission, *, shared: bool) -> StageWork:
        """Return the work of ``stage`` as in other micro-batches, but a stage of ``carried`` takes
        no rows: its state has what another stage has made of the initial rows.
        """
        work = super().work_of_stage(stage, emission, shared=shared)
        return replace(work, takes_rows=stage.step.stage not in self.carried)

    def fused_inputs(self, step: RouteStep, inputs: list[DataFrame]) -> DataFrame | None:
        """Return all ``inputs``, rows of ``PACKED``, if the step's stage is fused: the operator of
        the stage that it sends to runs it. Else return None. The stage's rows in ``results``
        follow, packed for those that read the stage, if there are any.
        """
        packed = super().fused_inputs(step, inputs)
        if packed is None or step.stage not in self.results:
            return packed
        if step.is_read:
            rows = self._carried_result(step.stage)
            return packed.union(self.pack_rows(replace(step, passes=False), rows))
        return packed.union(self._pack_carried_result(step))

    def run_to_changelog(self, step: RouteStep, inputs: list[DataFrame]) -> DataFrame:
        """Return the changelog of the stage at ``step``, a frame of changes, from its packed
        ``inputs``. The stage's rows in ``results`` follow, if there are any; columns that they lack
        are null.
        """
        changelog = super().run_to_changelog(step, inputs)
        if step.stage not in self.results:
            return changelog
        return changelog.unionByName(self._carried_result(step.stage), allowMissingColumns=True)

    def run_to_result(self, step: RouteStep, inputs: list[DataFrame]) -> DataFrame:
        """Return packed rows (``PACKED``) of the changes of the stage at ``step``, with the rows
        that pass it. The changes are a result and feed no stage. ``inputs``: its packed inputs.
        The stage's rows in ``results`` follow, if there are any.
        """
        packed = super().run_to_result(step, inputs)
        if step.stage not in self.results:
            return packed
        return packed.union(self._pack_carried_result(step))

    def _pack_carried_result(self, step: RouteStep) -> DataFrame:
        """Return packed rows (``PACKED``) of the rows in ``results`` of the step's stage, for its
        result. ``results`` must have the stage.
        """
        names = output_of(step.stage).columns.names
        rows = self._carried_result(step.stage).select(*map(quoted, names))
        return self._pack_result(step, rows, passes=False)

    def _carried_result(self, stage: Stage) -> DataFrame:
        """Return the rows of a carried stage's result as changes before all others, each caused by
        a record of its own. ``results`` must have the stage. Columns are those of the stage's row,
        ``_change``, ``_timestamp``, ``_position``, and those on the causing record that
        ``Fragment.feeds`` names. ``_position`` is the row's ``_sequence``, which grows with its
        time, less 2**62. The causing record has the row's time as its sequence, clock and stream
        time, and the row's ``_sequence`` as its order.
        """
        rows, sequence = self.results[stage], F.col(SEQUENCE)
        time = F.unix_micros(TIMESTAMP)
        caused = {SEQUENCE: time, CLOCK: time, STREAM_TIME: time, ORDER: sequence}
        caused[TIE] = F.lit(0).cast("long")
        return rows.select(
            *map(quoted, stage.node.row.names),
            CHANGE,
            TIMESTAMP,
            (sequence - (1 << 62)).alias(POSITION),
            *(caused[name].alias(name) for name in stage.fragment.feeds),
        )
