"""Stages on Spark: pack, process per bucket, unpack, in a streaming query or over static frames.

Values cross as Arrow and never become Python objects.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    TimestampType,
)

from dovetail.base.columns import FAILED, LEFT_OUT, PASSING
from dovetail.engine.batches.pack_time import PackTimer
from dovetail.engine.error_context import locate_errors
from dovetail.engine.flow import Flow
from dovetail.engine.idle import IdleRules
from dovetail.engine.pack import (
    DEAD_LETTERS,
    PACKED,
    Carrier,
    Letters,
    Packer,
    Packing,
    Strays,
    Tag,
    pack_end,
    pack_partition,
    pack_whole_table,
)
from dovetail.operators.joins.in_order import merge_buckets
from dovetail.physical.output import Output, changelog_columns, output_of
from dovetail.physical.routing import InputEdge, RouteStep
from dovetail.physical.specs.by_key import InOrderLaw
from dovetail.physical.specs.delta_join import DeltaJoinLaw, SettleLaw
from dovetail.plan.metrics import metric_name
from dovetail.plan.nodes import Entry, Node, Source, changelog_schema
from dovetail.plan.types.arrow import arrow_schema, in_timezone
from dovetail.plan.views import View
from dovetail.platform.spark_errors import refuse_stopped
from dovetail.spark import task
from dovetail.spark.execution import delta_join, projection
from dovetail.spark.execution.buckets import StageWork
from dovetail.spark.execution.emission import (
    PACKED_COLUMNS,
    BlobEmission,
    Emission,
    FlatEmission,
    ToBuckets,
    payloads,
)
from dovetail.spark.execution.observations import Observations
from dovetail.spark.execution.passthrough import let_rows_pass, split_passing, with_passing_column
from dovetail.spark.execution.processor import BucketProcessor
from dovetail.spark.execution.view_rows import InputRows
from dovetail.spark.execution.wire import SharedSource, Wire, rows_of_input

_FLAT_TYPES = (BinaryType, BooleanType, DateType, NumericType, StringType, TimestampType)


@dataclass
class Frames(Flow[DataFrame, DataFrame]):
    """The steps of a plan as Spark frames."""

    labels: Sequence[int]
    """The label of each bucket, under which it is shuffled."""
    partitions: int
    """The number of tasks."""
    sources: Mapping[Entry, Source] = field(default_factory=dict, kw_only=True)
    """The sources that are read in place of entries, or of the nodes below views."""
    bases: list[Source] = field(default_factory=list, init=False)
    """The sources that have been read so far, in order."""
    observations: Observations = field(default_factory=Observations, init=False)

    flat: ClassVar[bool]
    """True if flat rows may leave a stage without packing."""

    @abstractmethod
    def run_on_buckets(self, packed: DataFrame, step: RouteStep, emission: Emission) -> DataFrame:
        """Return the rows that the step's stage, which has state, emits for its input ``packed``:
        rows of ``PACKED``. ``emission``: the form of the rows that are returned.
        """

    def read_source(self, step: RouteStep) -> DataFrame:
        """Return rows of ``PACKED`` from the sources of a step, for all its readers. Each source's
        frame is read once. The sources that were read are added to ``bases``.
        """
        replacements: dict[Entry, Entry] = {}
        by_base: dict[Entry, dict[Entry, list[InputEdge]]] = defaultdict(lambda: defaultdict(list))
        for reading in step.readings:
            assert reading.port.input is not None
            source = reading.port.input.source
            entry = replacements.setdefault(source, self.source_in_place(source))
            by_base[entry.base][entry].append(reading)
        frames = list[DataFrame]()
        for base, readings in by_base.items():
            assert isinstance(base, Source)
            self.bases.append(base)
            frames.append(self._read_base(step, base, readings, unread=step.unread and not frames))
        return _union(frames)

    def source_in_place(self, entry: Entry) -> Entry:
        """Return what is read in place of ``entry``. An entry in ``sources`` is replaced by that
        source. A view stays, over its node replaced in the same way. Any other entry is returned
        itself.
        """
        if entry in self.sources:
            return self.sources[entry]
        if isinstance(entry, View):
            return replace(entry, node=self.source_in_place(entry.node))
        return entry

    def _read_base(
        self,
        step: RouteStep,
        base: Source,
        readings: Mapping[Entry, Sequence[InputEdge]],
        *,
        unread: bool,
    ) -> DataFrame:
        """Return rows of ``PACKED`` from the source ``base``, read in one pass. ``readings``: the
        inputs that read it, by the entry (the source or a view of it) that they read. ``unread``:
        True to add the dead letters of records that cannot be read.
        """
        if len(readings) == 1:
            ((entry, edges),) = readings.items()
            read = rows_of_input(
                entry,
                None,
                unread=unread,
                reported=edges[0].reported,
                observations=self.observations,
            )
            wire = Wire(_without_reported_rows(step, read))
            packings = self._packings(step, edges, wire, unread=unread)
            return self._pack_frame(step, wire.frame(), packings)
        shared, packings = SharedSource(base, unread=unread), []
        for entry, edges in readings.items():
            read = shared.read(entry, reported=edges[0].reported, observations=self.observations)
            wire = shared.wire(_without_reported_rows(step, read))
            packings += self._packings(step, edges, wire, unread=unread and not packings)
            shared.keep_columns(wire)
        return self._pack_frame(step, shared.frame, packings)

    def pack_rows(self, step: RouteStep, rows: DataFrame) -> DataFrame:
        """Return rows of ``PACKED`` from a stage's changelog ``rows``, for each input, relay and
        result that reads the step. If rows pass the step, they are among these, unchanged.
        """
        columns_by_reader = dict.fromkeys(step.relays, changelog_columns(step.stage))
        if step.result is not None:
            columns_by_reader[step.result] = changelog_schema(step.stage.node)
        readings = step.readings
        reported = readings[0].reported if readings else 0
        read = rows_of_input(step.entry, rows, reported=reported, observations=self.observations)
        wire = Wire(_without_reported_rows(step, read))
        packings = self._packings(step, readings, wire)
        for to, columns in columns_by_reader.items():
            places = wire.place_columns(columns.names)
            packings.append(Carrier(to, arrow_schema(columns), self.labels, places))
        passing_index = wire.place_columns([PASSING])[0] if step.passes else None
        return self._pack_frame(step, wire.frame(), packings, passing_index)

    def relayed_rows(self, step: RouteStep, inputs: list[DataFrame]) -> DataFrame:
        """Return the changelog rows in the blobs of ``inputs``, for a step that applies a view to
        them. If rows pass the step, they are in one more column, the last.
        """
        return unpack_rows(_union(inputs), Output(changelog_columns(step.stage), {}), step)

    def _packings(
        self, step: RouteStep, readings: Sequence[InputEdge], wire: Wire, *, unread: bool = False
    ) -> list[Packing]:
        """Return a packing of the rows of ``wire`` for each of ``readings``, in order, and for dead
        letters of foreign keys that fail. The last is that of all other dead letters, if the step
        keeps them and there may be some.

        ``unread``: True to add the dead letters of records that cannot be read.
        """
        packings = [
            packing
            for reading in readings
            for packing in self._packings_of_input(reading, wire, step.letters)
        ]
        letters = None if step.letters is None else wire.place_letters(unread=unread)
        if letters is not None:
            assert step.letters is not None
            packings.append(Strays(step.letters, DEAD_LETTERS, self.labels, [letters]))
        return packings

    def _pack_frame(
        self,
        step: RouteStep,
        frame: DataFrame,
        packings: Sequence[Packing],
        passing_index: int | None = None,
    ) -> DataFrame:
        """Return rows of ``PACKED`` from the rows of ``frame``. ``packings``: one per reader.
        ``passing_index``: the index of the column with rows that pass the step, None if there is
        none.

        Rows with a null in the key, and records of a stream without a value, are dropped unless a
        reader keeps them. They are counted as observed metric ``<name>.dropped``; failing foreign
        keys as ``<name>.failed``.
        """
        title = step.readings[0].port.source.title if step.readings else step.stage.fragment.title
        packed = frame.mapInArrow(packing_function(packings, title, passing_index), PACKED_COLUMNS)
        for reading in step.readings:
            packed = self.observations.observe_input(
                packed, reading.metric_names, reading.reader, reading.number
            )
        return packed

    def _packings_of_input(
        self, reading: InputEdge, wire: Wire, letters: int | None
    ) -> Iterator[Packing]:
        """Yield the packing of the input ``reading``, and register its columns in ``wire``. If dead
        letters are wanted and the foreign key may fail, also yield that of the failing rows.

        ``letters``: the address of dead letters, None if they are not wanted.
        """
        port, source = reading.port, reading.port.source
        assert port.input is not None
        places = wire.place_input(port.input, source, letters=letters is not None)
        out = wire.place_absence()
        yield Packer(reading.reader, reading.number, source, self.labels, port.by, places, out)
        if letters is not None and reading.fails:
            yield Letters(
                letters,
                DEAD_LETTERS,
                self.labels,
                [wire.place_time(), places[-1]],
                out,
                operator=reading.stage.fragment.title,
                problem=reading.failure_text,
            )

    def run_partitioned(self, step: RouteStep, inputs: list[DataFrame]) -> DataFrame:
        """Run a stage on its packed ``inputs``. Return its changes as rows of ``PACKED``, already
        partitioned for its only reader.

        A stage of the last changes before a delta join (``SettleLaw``) keeps no state and counts
        nothing. Any other has state, and its counts are observed metrics.
        """
        packed, fragment, reading = _union(inputs), step.stage.fragment, step.hash_column_edge
        assert reading is not None
        assert reading.port.hash_column is not None
        if isinstance(fragment.last.law, SettleLaw):
            return delta_join.last_by_primary_key(packed, step, self.labels, self.partitions)
        emission = ToBuckets(
            self.labels,
            reading.port.hash_column,
            reading.reader,
            reading.number,
            fragment.metric_names,
        )
        rows = self.run_on_buckets(packed, step, emission)
        return self.observations.observe_stage(rows, step, reading.reader, reading.number)

    def run_to_result(self, step: RouteStep, inputs: list[DataFrame]) -> DataFrame:
        """Run a stage whose changes are a result and feed no other stage, on its packed ``inputs``.
        Return rows of ``PACKED``: the changes, with the address of that result, and the rows that
        pass the step.
        """
        fragment, result = step.stage.fragment, step.result
        assert result is not None
        if fragment.stateful:
            output = output_of(step.stage)
            rows = self.run_on_buckets(
                _union(inputs), step, BlobEmission(output, fragment.metric_names, result)
            )
            return self.observations.observe_stage(rows, step, result, 0)
        law, packed = fragment.last.law, _union(inputs)
        if isinstance(law, InOrderLaw):
            packed = packed.repartition(self.partitions, "bucket")
            function = merging_function(step, law, _result_packer(self.labels, result))
            return packed.mapInArrow(
                let_rows_pass(function, step.number, None) if step.passes else function,
                PACKED_COLUMNS,
            )
        return self._pack_result(step, self._run_stateless(step, packed), passes=step.passes)

    def _pack_result(self, step: RouteStep, rows: DataFrame, *, passes: bool) -> DataFrame:
        """Return rows of ``PACKED`` that carry the flat ``rows`` of the step's result. ``passes``:
        True if ``rows`` has one more column, the last, with the rows that pass the step.
        """
        assert step.result is not None
        schema = output_of(step.stage).schema
        plain = rows.toDF(*(f"_c{column_index}" for column_index in range(len(rows.columns))))
        carrier = Carrier(step.result, schema, self.labels, range(len(schema)))
        passing_index = len(schema) if passes else None
        return plain.mapInArrow(
            packing_function([carrier], step.stage.fragment.title, passing_index), PACKED_COLUMNS
        )

    def run_to_changelog(self, step: RouteStep, inputs: list[DataFrame]) -> DataFrame:
        """Run a stage on its packed ``inputs``. Return the changelog of its node as flat rows,
        after the projection that computes its columns, if one is needed. If rows pass the step,
        they are in one more column, the last.
        """
        stage, packed = step.stage, _union(inputs)
        stateful = stage.fragment.stateful
        rows = self._run_stateful(step, packed) if stateful else self._run_stateless(step, packed)
        if output_of(stage).held is not None:
            return rows
        return projection.changelog(rows, stage, [PASSING] if step.passes else [])

    def _run_stateless(self, step: RouteStep, packed: DataFrame) -> DataFrame:
        """Return the flat rows that a fragment without state makes of the ``packed`` input. The
        fragment is a delta join, or puts the results of a foreign-key join in order. If rows pass
        the step, they are in one more column, the last.
        """
        fragment, output = step.stage.fragment, output_of(step.stage)
        law, schema = fragment.last.law, _in_session_timezone(packed, output)
        if isinstance(law, DeltaJoinLaw):
            return delta_join.joined_rows(
                packed,
                step,
                output,
                schema,
                partitions=self.partitions,
                metric=self.observations.unique_name(metric_name(law.name, "lookups")),
            )
        assert isinstance(law, InOrderLaw)
        rows = merging_function(step, law, lambda tables: _record_batches(tables, schema))
        return _map_to_flat_rows(packed.repartition(self.partitions, "bucket"), rows, step, output)

    def _run_stateful(self, step: RouteStep, packed: DataFrame) -> DataFrame:
        """Return the flat rows that a fragment with state makes of the ``packed`` input. If rows
        pass the step, they are in one more column, the last.
        """
        # Columns that do not pass through pandas' Arrow types leave in blobs.
        fragment, output = step.stage.fragment, output_of(step.stage)
        if self.flat and _is_flat(output) and not step.passes:
            rows = self.run_on_buckets(packed, step, FlatEmission(output, fragment.metric_names))
            return self.observations.observe_flat_stage(rows, step)
        blobs = self.run_on_buckets(
            packed, step, BlobEmission(output, fragment.metric_names, step.number)
        )
        blobs = self.observations.observe_stage(blobs, step, step.number, 0)
        return unpack_rows(blobs, output, step)


def _without_reported_rows(step: RouteStep, read: InputRows) -> InputRows:
    """Return ``read`` without the rows that its views report as dead letters.

    These rows stay if the step keeps dead letters, or if other views share the rows.
    """
    columns = read.frame.columns
    if FAILED not in columns or step.letters is not None or LEFT_OUT in columns:
        return read
    return replace(read, frame=read.frame.where(F.col(FAILED).isNull()).drop(FAILED))


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
    """The number of stages with state that have been built so far."""

    flat = True

    def run_on_buckets(self, packed: DataFrame, step: RouteStep, emission: Emission) -> DataFrame:
        """Return the rows that the step's stage, which has state, emits by ``transformWithState``,
        in the form of ``emission``. ``packed``: the stage's input, rows of ``PACKED``. As a side
        effect, count the stage in ``stateful``.
        """
        self.stateful += 1
        fragment = step.stage.fragment
        timers = self.timers and (self.timed or fragment.align_us is not None)
        idle = None if self.idle is None else replace(self.idle, hears=step.hears)
        if self.closing:
            # A shuffle gives all partitions, also those without rows.
            function = end_of_input_function(
                step.number, len(fragment.sources), self.labels, self.partitions
            )
            packed = packed.repartition(self.partitions, "bucket")
            packed = packed.mapInArrow(function, PACKED_COLUMNS)
        if fragment.align_us is not None or idle is not None:
            # The time of the micro-batch is the same when the batch is repeated. It is added only
            # if rows may wait, because the projection copies every blob.
            packed = packed.withColumn("now_us", F.unix_micros(F.current_timestamp()))
        initial = self.initial.get(fragment.topology)
        beats = tuple((to.reader, to.number) for to in step.beats)
        return packed.groupBy("bucket").transformWithStateInPandas(
            BucketProcessor(
                StageWork(fragment, emission, step.number, step.passes, timers, idle, beats)
            ),
            emission.columns,
            "append",
            "processingTime" if timers else "none",
            initialState=None if initial is None else initial.groupBy("bucket"),
        )


def packing_function(
    packings: Sequence[Packing], title: str, passing_index: int | None
) -> task.BatchFunction:
    """Return the ``mapInArrow`` function that reads flat rows once and packs them for all readers,
    one of ``packings`` for each.

    ``passing_index``: the index of the column with rows that pass, None if there is none. These
    come out unchanged, as rows of ``PACKED``. ``title``: the name of the input in errors. An error
    that is not the library's becomes a ``BatchError``.
    """

    @task.freezing_imports
    def pack_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the packed rows of ``batches`` for all readers, and the rows that pass."""
        others: list[pa.RecordBatch] = []
        timer = PackTimer()

        def own_rows() -> Iterator[pa.RecordBatch]:
            """Yield the rows of each batch without those that pass, which go to ``others``."""
            for batch in timer.time_reading(batches):
                rows = batch
                if passing_index is not None:
                    rows, passing = split_passing(rows, passing_index)
                    others.append(passing.rename_columns(PACKED.names))
                yield rows

        with locate_errors(title, lambda _: f"input partition {task.partition()}"):
            packed_rows = pack_partition(packings, own_rows(), task.partition())
            for packed in timer.time_packing(packed_rows):
                yield packed
                yield from others
                others.clear()
            yield from others

    return pack_all


def end_of_input_function(
    reader: int, sources: int, labels: Sequence[int], partitions: int
) -> task.BatchFunction:
    """Return the ``mapInArrow`` function that tells the buckets of the stage ``reader`` that all
    their inputs have ended. ``sources``: the number of these inputs.

    Rows of ``PACKED`` come out unchanged, before these messages. ``labels``: those of the buckets.
    ``partitions``: the number of tasks of the input, each of which tells a share of the buckets.
    """

    @task.freezing_imports
    def end_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield ``batches``, then the ends of all inputs for this task's buckets, if it has any."""
        yield from batches
        task_labels = labels[task.partition() :: partitions]
        if task_labels:
            yield pack_end(reader, sources, task_labels)

    return end_all


def _union(inputs: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames, one or more, which have the same columns."""
    return reduce(DataFrame.union, inputs)


def _is_flat(output: Output) -> bool:
    """Return True if all columns of ``output`` have types that pandas' Arrow types carry."""
    return all(isinstance(f.dataType, _FLAT_TYPES) for f in output.columns)


def unpack_rows(packed: DataFrame, output: Output, step: RouteStep | None = None) -> DataFrame:
    """Return the changes in the blobs of ``packed`` as flat rows in the columns of ``output``. If
    rows pass the ``step``, they are in one more column, the last. ``step``: None if no rows can
    pass.
    """
    schema = _in_session_timezone(packed, output)

    @task.freezing_imports
    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the blobs of ``batches``."""
        yield from _record_batches(payloads(batches), schema)

    return _map_to_flat_rows(packed, unpack, step, output)


def merging_function(
    step: RouteStep,
    law: InOrderLaw,
    to_batches: Callable[[Iterator[pa.Table]], Iterator[pa.RecordBatch]],
) -> task.BatchFunction:
    """Return the ``mapInArrow`` function that merges a foreign-key join's packed results. The
    results of each primary key come out in order.

    ``step``: that of the stage with the law ``law``. ``to_batches``: turns the merged tables into
    the batches that the function yields. An error that is not the library's becomes a
    ``BatchError``.
    """
    fragment, output = step.stage.fragment, output_of(step.stage)
    title, columns = fragment.sources[0].title, fragment.output_schema.names

    @task.freezing_imports
    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the merged results of the blobs in ``batches``."""
        with locate_errors(fragment.title, lambda _: title):
            tables = merge_buckets(payloads(batches), law, columns, task.micro_batch())
            yield from to_batches(map(output.rows_of_changes, tables))

    return merge


def _record_batches(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all tables as record batches, in order, with columns cast to ``schema``."""
    for table in tables:
        yield from table.cast(schema).to_batches()


def _result_packer(
    labels: Sequence[int], result: int
) -> Callable[[Iterable[pa.Table]], Iterator[pa.RecordBatch]]:
    """Return a function from tables to rows of ``PACKED`` for the result with the address
    ``result``, one row per table. All rows of a task have the same of the bucket ``labels`` and
    keep their order.
    """

    def pack_tables(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Yield a row of ``PACKED`` for each table, numbered in their order."""
        partition = task.partition()
        for piece_index, table in enumerate(tables):
            label = labels[partition % len(labels)]
            yield pack_whole_table(table, label, Tag(result, 0, partition, piece_index))

    return pack_tables


def _map_to_flat_rows(
    packed: DataFrame, function: task.BatchFunction, step: RouteStep | None, output: Output
) -> DataFrame:
    """Return the flat rows, in the columns of ``output``, that ``function`` makes of packed rows.
    If rows pass the ``step``, they are in one more column, the last. ``step``: None if no rows can
    pass.
    """
    columns = output.columns
    if step is not None and step.passes:
        schema = _in_session_timezone(packed, output)
        function, columns = (
            let_rows_pass(function, step.number, schema),
            with_passing_column(columns),
        )
    return packed.mapInArrow(function, columns)


def _in_session_timezone(frame: DataFrame, output: Output) -> pa.Schema:
    """Return the schema of ``output`` with timestamps in the time zone of ``frame``'s session."""
    timezone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    return in_timezone(output.schema, str(timezone))


def session_of(node: Node) -> SparkSession:
    """Return the Spark session of a node's first input, which must have a frame. Raises
    ``ConfigurationError`` if the session was stopped.
    """
    frame = node.origins[0].frame
    assert frame is not None
    session: SparkSession = frame.sparkSession
    refuse_stopped(node.name, session)
    return session
