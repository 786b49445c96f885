"""Stages in a streaming query, with their state in Spark's state store.

With one bucket, some stages are fused with their readers (``RouteStep.is_fused``): one operator of
Spark's runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dovetail.engine.idle import IdleRules
from dovetail.engine.pack import Carrier, Packer, pack_end
from dovetail.physical.output import output_of
from dovetail.physical.routing import OperatorStage, RouteStep, stages_of_operator
from dovetail.physical.specs.by_key import InOrderLaw
from dovetail.physical.travel_columns import TravelColumns
from dovetail.plan.nodes import changelog_schema
from dovetail.plan.types.arrow import arrow_schema
from dovetail.spark import task
from dovetail.spark.execution.buckets import Ordering, StageWork
from dovetail.spark.execution.emission import (
    PACKED_COLUMNS,
    BlobEmission,
    Emission,
    Reading,
    ToReaders,
)
from dovetail.spark.execution.frames import Frames, union_frames
from dovetail.spark.execution.processor import BucketProcessor


@dataclass
class Streaming(Frames):
    """The steps of a plan in a streaming query."""

    timers: bool
    """True if stages that may wait for another source have timers. A timer releases waiting rows
    without new data, and lets stream time go on by ``idle``. A query with timers runs micro-batches
    without end, except with ``writer.SETTINGS_TO_END``."""
    initial: Mapping[str, DataFrame] = field(default_factory=dict, kw_only=True)
    """By a stage's fingerprint: the blobs with which its buckets begin (``bucket``, ``name``,
    ``blob``). The first micro-batch takes them over."""
    silent: bool = field(default=False, kw_only=True)
    """True if no result is emitted."""
    closing: bool = field(default=False, kw_only=True)
    """True if all inputs have ended, in a micro-batch without rows."""
    timed: bool = field(default=False, kw_only=True)
    """True if all stages have timers, not only those that wait for a source."""
    idle: IdleRules | None = field(default=None, kw_only=True)
    """The behavior of stages when no input comes; None to wait."""
    stateful: int = field(default=0, init=False)
    """The number of Spark's operators with state that have been built so far."""

    flat = True

    def fused_inputs(self, step: RouteStep, inputs: list[DataFrame]) -> DataFrame | None:
        """Return all ``inputs``, rows of ``PACKED``, unchanged if the step's stage is fused: the
        operator of the stage that it sends to runs it. Else return None.
        """
        return union_frames(inputs) if step.is_fused else None

    def stages_of_operator(self, step: RouteStep) -> list[OperatorStage]:
        """Return the stages with state that the operator of ``step`` runs, in order: those that are
        fused with it, then its own if it has state.
        """
        return stages_of_operator(step)

    def run_on_buckets(self, packed: DataFrame, step: RouteStep, emission: Emission) -> DataFrame:
        """Return the rows that the step's operator emits by ``transformWithState``, in the form of
        ``emission``. ``packed``: rows of ``PACKED``, the input of the step's stage and of those
        fused with it.

        The state begins with the blobs that ``initial`` has for the stages. With ``closing``, all
        buckets also hear that all inputs have ended. As a side effect, add 1 to ``stateful``.
        """
        self.stateful += 1
        *before, last = self.stages_of_operator(step)
        fused = tuple(
            self.work_of_stage(stage, self._emission_in_operator(stage.emits), shared=True)
            for stage in before
        )
        work = replace(
            self.work_of_stage(last, emission, shared=bool(before)),
            passes=step.passes,
            fused=fused,
        )
        works = (*fused, work)
        if self.closing:
            # A shuffle gives all partitions, also those without rows.
            packed = packed.repartition(self.partitions, "bucket")
            for one in works:
                function = end_of_input_function(
                    one.number, len(one.fragment.sources), self.labels, self.partitions
                )
                packed = packed.mapInArrow(function, PACKED_COLUMNS)
        if any(one.fragment.align_us is not None or one.idle is not None for one in works):
            # The time of the micro-batch is the same when the batch is repeated. It is added only
            # if rows may wait, because the projection copies every blob.
            packed = packed.withColumn("now_us", F.unix_micros(F.current_timestamp()))
        initial = [
            blobs.withColumn("name", F.concat(F.lit(one.prefix), "name")) if one.prefix else blobs
            for one in works
            if (blobs := self.initial.get(one.fragment.topology)) is not None
        ]
        return packed.groupBy("bucket").transformWithStateInPandas(
            BucketProcessor(work),
            emission.columns,
            "append",
            "processingTime" if any(one.timers for one in works) else "none",
            initialState=union_frames(initial).groupBy("bucket") if initial else None,
        )

    def _emission_in_operator(self, step: RouteStep) -> Emission:
        """Return the form in which the changes of ``step``, which is fused with a later one, leave
        their stage.
        """
        if step.hash_column_edge is not None:
            return self.emission_to_reader(step)
        output = output_of(step.stage)
        if not step.is_read:
            assert step.result is not None
            return BlobEmission(output, (), step.result)
        readings = []
        for reading in step.readings:
            port, source = reading.port, reading.port.source
            assert port.input is not None
            packer = Packer(reading.reader, reading.number, source, self.labels, port.by)
            readings.append(Reading(TravelColumns.of(port.input, source), packer))
        result = None
        if step.result is not None:
            columns = arrow_schema(changelog_schema(step.stage.node))
            result = Carrier(step.result, columns, self.labels)
        return ToReaders(output, result, readings)

    def work_of_stage(self, stage: OperatorStage, emission: Emission, *, shared: bool) -> StageWork:
        """Return the work of ``stage``, by itself: no rows pass it, and none is fused with it.

        ``emission``: the form of its changes. ``shared``: True if several stages share the
        operator's state.
        """
        step, fragment = stage.step, stage.step.stage.fragment
        return StageWork(
            fragment,
            emission,
            step.number,
            passes=False,
            timers=self.timers and (self.timed or fragment.align_us is not None),
            idle=None if self.idle is None else replace(self.idle, hears=step.hears),
            beats=tuple((to.reader, to.number) for to in step.beats),
            prefix=f"{fragment.topology}/" if shared else "",
            ordering=None if stage.emits is step else _ordering_of(stage.emits),
        )


def _ordering_of(step: RouteStep) -> Ordering:
    """Return the work of the stage at ``step``, which puts the results of a join by foreign key in
    order.
    """
    law = step.stage.fragment.last.law
    assert isinstance(law, InOrderLaw)
    return Ordering(law, step.stage.fragment.output_schema.names)


def end_of_input_function(
    reader: int, sources: int, labels: Sequence[int], partitions: int
) -> task.BatchFunction:
    """Return the ``mapInArrow`` function that tells each bucket of a stage that all its inputs have
    ended. Its input, rows of ``PACKED`` (blobs), comes out unchanged, and then such messages, rows
    without a blob.

    ``reader``: the stage's index, from 0, among stages and relays, as in the column ``reader``.
    ``sources``: the count of its inputs. ``labels``: the label of each bucket, by the bucket's
    index. ``partitions``: the count of tasks. Task p tells the buckets with the indices p, p +
    ``partitions`` and so on.
    """

    @task.freezing_imports
    def end_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield ``batches``, then one batch with the ends of all inputs for this task's buckets.
        Without buckets for this task, yield no such batch.
        """
        yield from batches
        task_labels = labels[task.partition() :: partitions]
        if task_labels:
            yield pack_end(reader, sources, task_labels)

    return end_all
