"""Stages on Spark: pack, process per bucket, unpack, in a streaming query or over static frames.

Values cross as Arrow and never become Python objects. Packed rows have the columns of ``PACKED``:
each has a blob of rows (``payload``) for one ``bucket`` of one ``reader``. A reader is the index
of a stage or relay, or the address (a larger int) of a result. Rows that *pass* a step are packed
rows for other readers, which the step hands on.
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

from dovetail.arrays.casts import cast_rows
from dovetail.base.columns import FAILED, LEFT_OUT, PASSING
from dovetail.engine.batches.pack_time import PackTimer
from dovetail.engine.error_context import locate_errors
from dovetail.engine.flow import Flow
from dovetail.engine.pack import (
    DEAD_LETTERS,
    PACKED,
    Carrier,
    Letters,
    Packer,
    Packing,
    Strays,
    Tag,
    pack_partition,
    pack_whole_table,
)
from dovetail.operators.joins.foreign_key_order import merge_buckets
from dovetail.physical.output import Output, changelog_columns, output_of
from dovetail.physical.routing import InputEdge, OperatorStage, RouteStep
from dovetail.physical.specs.by_key import InOrderLaw
from dovetail.physical.specs.delta_join import DeltaJoinLaw, SettleLaw
from dovetail.plan.metrics import metric_name
from dovetail.plan.nodes import Entry, Node, Source, changelog_schema
from dovetail.plan.types.arrow import arrow_schema, in_timezone
from dovetail.plan.views import View
from dovetail.platform.arrow_batches import map_in_arrow
from dovetail.platform.spark_errors import refuse_stopped
from dovetail.spark import task
from dovetail.spark.execution import delta_join, projection
from dovetail.spark.execution.emission import (
    PACKED_COLUMNS,
    BlobEmission,
    Emission,
    FlatEmission,
    ToBuckets,
    cut_large,
    payloads,
)
from dovetail.spark.execution.observations import Observations
from dovetail.spark.execution.passthrough import let_rows_pass, pop_passing, with_passing_column
from dovetail.spark.execution.view_rows import InputRows
from dovetail.spark.execution.wire import SharedSource, Wire, rows_of_input

_FLAT_TYPES = (BinaryType, BooleanType, DateType, NumericType, StringType, TimestampType)


@dataclass
class Frames(Flow[DataFrame, DataFrame]):
    """The steps of a plan as Spark frames."""

    labels: Sequence[int]
    """The label of each bucket, by the bucket's index: the int under which it is shuffled."""
    partitions: int
    """The number of tasks of each shuffle."""
    sources: Mapping[Entry, Source] = field(default_factory=dict, kw_only=True)
    """The sources that are read in place of entries, or of the nodes below views."""
    bases: list[Source] = field(default_factory=list, init=False)
    """The sources that have been read so far, in order."""
    observations: Observations = field(default_factory=Observations, init=False)
    """The observed metrics that the frames have so far."""

    flat: ClassVar[bool]
    """True if flat rows may leave a stage without packing."""

    @abstractmethod
    def run_on_buckets(self, packed: DataFrame, step: RouteStep, emission: Emission) -> DataFrame:
        """Return the rows that the step's stage, which has state, emits for its input ``packed``.
        That has the columns of ``PACKED``: a blob of rows (``payload``) for one ``bucket`` of one
        ``reader`` in each row.

        ``emission``: the form of the rows that are returned, with columns ``emission.columns``.
        ``packed`` may have rows for other readers, because Spark sends an operator's output to only
        one other. If ``step.passes``, these are returned unchanged among the stage's own, and the
        emission must be one of ``PACKED`` rows.
        """

    def read_source(self, step: RouteStep) -> DataFrame:
        """Return rows of ``PACKED`` from the sources of a step, for all inputs that read it. Each
        row has a blob of rows (``payload``) for one ``bucket`` of one ``reader``, the index of a
        stage. Each source's frame is read once, however many views of it are read.

        The sources, or their replacements in ``sources``, are appended to ``bases``. The step must
        be a source's, with at least one reader.
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
        return union_frames(frames)

    def source_in_place(self, entry: Entry) -> Entry:
        """Return the source or view that is read in place of ``entry``, a source or view of the
        plan. If ``entry`` is a key of ``sources``, return the source there.

        Any other view is returned as a copy over its node, for which the same is done, down to the
        source. Any other source is returned itself.
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
        """Return rows of ``PACKED`` from the source ``base``, read in one pass and packed for all
        inputs that read it.

        ``readings``: by entry (the source or a view of it), the inputs that read that entry; not
        empty. ``unread``: True to add the dead letters of records that cannot be read.
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
        """Return rows of ``PACKED`` from ``rows``, the changelog of the step's stage or relay. (A
        relay applies a view to a stage's changes.) Each has a blob of rows for one ``bucket`` of
        one ``reader``. They are packed by key for each input that reads the step, and whole for
        each relay and result.

        ``rows`` has the columns of ``changelog_columns``. If ``step.passes``, it has also
        ``_passing``, a struct of ``PACKED`` with a row for another reader. These are returned
        unchanged among the others.
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
        """Return the changelog rows in the blobs of ``inputs``, for a relay: a step that applies a
        view to the changes of a stage. The columns are those of ``changelog_columns``: the key, the
        values, ``_change``, ``_timestamp``, ``_position`` and the columns of ``Fragment.feeds``.

        ``inputs``: one or more frames of ``PACKED``. If ``step.passes``, rows for other readers are
        in one more column, ``_passing``, the last, beside nulls.
        """
        return unpack_rows(union_frames(inputs), Output(changelog_columns(step.stage), {}), step)

    def _packings(
        self, step: RouteStep, readings: Sequence[InputEdge], wire: Wire, *, unread: bool = False
    ) -> list[Packing]:
        """Return the packings of the rows of ``wire`` for ``readings``, in order. Each reading has
        one. If its foreign key may fail and it reports that, a second one follows at once: that of
        the failing rows as dead letters (rows left out because of an error).

        The last packing is that of all other dead letters, if the step keeps them and the rows may
        have some. The columns that the packings need are placed in ``wire``. ``unread``: True to
        add the dead letters of records that cannot be read.
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
        """Return rows of ``PACKED`` from the rows of ``frame``, one frame in and one out, in the
        same partitions. ``packings``: one or more for each reader, with indices of columns in
        ``frame``. ``passing_index``: the index of the column with rows that pass the step, None if
        there is none.

        Rows with a null in the key, and records of a stream without a value, are dropped unless a
        reader keeps them. They are counted as observed metric ``<input>.dropped``, and rows whose
        foreign key fails as ``<input>.failed``, by the name of the stage's input. A null timestamp
        in a row that is not dropped, tombstones included, fails the task with a ``DataError``.
        """
        title = step.readings[0].port.source.title if step.readings else step.stage.fragment.title
        function = packing_function(packings, title, passing_index)
        packed = map_in_arrow(frame, function, PACKED_COLUMNS)
        for reading in step.readings:
            packed = self.observations.observe_input(
                packed, reading.metric_names, reading.reader, reading.number
            )
        return packed

    def _packings_of_input(
        self, reading: InputEdge, wire: Wire, letters: int | None
    ) -> Iterator[Packing]:
        """Yield the packing of the input ``reading``, and place its columns in ``wire``. If dead
        letters are wanted and the reading reports failures of its foreign key, also yield that of
        the failing rows.

        ``reading``: must be by key (``port.input``), else ``AssertionError``. ``letters``: the
        address of the dead letters' result, by which their packed rows are found (``reader``); None
        if they are not wanted.
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
        """Run a stage on its ``inputs``, one or more frames of ``PACKED`` (blobs). Return its
        changes as rows of ``PACKED``, partitioned over the buckets of its only reader by a hash
        column.

        A stage of the last changes before a delta join (``SettleLaw``) keeps no state and counts
        nothing. Any other has state, and its counts and reports become observed metrics.
        """
        packed = union_frames(inputs)
        if isinstance(step.stage.fragment.last.law, SettleLaw):
            return delta_join.last_by_primary_key(packed, step, self.labels, self.partitions)
        emission = self.emission_to_reader(step)
        rows = self.run_on_buckets(packed, step, emission)
        stages = self.stages_of_operator(step)
        return self.observations.observe_stages(rows, stages, emission.reader, emission.number)

    def emission_to_reader(self, step: RouteStep) -> ToBuckets:
        """Return the form in which the step's changes go to its only reader, by a hash column. The
        step must have such a reader (``hash_column_edge``).
        """
        reading = step.hash_column_edge
        assert reading is not None
        assert reading.port.hash_column is not None
        return ToBuckets(
            self.labels,
            reading.port.hash_column,
            reading.reader,
            reading.number,
            step.stage.fragment.metric_names,
        )

    def stages_of_operator(self, step: RouteStep) -> list[OperatorStage]:
        """Return the stages with state that the operator of ``step`` runs, in order. First are
        those that are fused with it, here none. Then comes its own if it has state.
        """
        return [OperatorStage(step, step)] if step.stage.fragment.stateful else []

    def run_to_result(self, step: RouteStep, inputs: list[DataFrame]) -> DataFrame:
        """Run a stage whose changes are a result and feed no other stage, on its ``inputs``: one or
        more frames of ``PACKED``.

        Return rows of ``PACKED``: the changes, whose ``reader`` is the address ``step.result``, and
        the rows that pass the step. The counts and reports of a stage with state become observed
        metrics.
        """
        fragment, result = step.stage.fragment, step.result
        assert result is not None
        stages = self.stages_of_operator(step)
        if stages:
            metrics = stages[-1].step.stage.fragment.metric_names
            emission = BlobEmission(output_of(step.stage), metrics, result)
            rows = self.run_on_buckets(union_frames(inputs), step, emission)
            return self.observations.observe_stages(rows, stages, result, 0)
        law, packed = fragment.last.law, union_frames(inputs)
        if isinstance(law, InOrderLaw):
            packed = packed.repartition(self.partitions, "bucket")
            function = merging_function(step, law, _result_packer(self.labels, result))
            return packed.mapInArrow(
                let_rows_pass(function, step.number, None) if step.passes else function,
                PACKED_COLUMNS,
            )
        return self._pack_result(step, self._run_stateless(step, packed), passes=step.passes)

    def _pack_result(self, step: RouteStep, rows: DataFrame, *, passes: bool) -> DataFrame:
        """Return rows of ``PACKED`` that carry ``rows``, the flat output of the step's stage, to
        the address ``step.result``. Columns are matched by position with ``output_of(step.stage)``.

        ``passes``: True if ``rows`` has one more column, the last, with the rows that pass the
        step. These are returned unchanged.
        """
        assert step.result is not None
        schema = output_of(step.stage).schema
        plain = rows.toDF(*(f"_c{column_index}" for column_index in range(len(rows.columns))))
        carrier = Carrier(step.result, schema, self.labels, range(len(schema)))
        passing_index = len(schema) if passes else None
        function = packing_function([carrier], step.stage.fragment.title, passing_index)
        return map_in_arrow(plain, function, PACKED_COLUMNS)

    def run_to_changelog(self, step: RouteStep, inputs: list[DataFrame]) -> DataFrame:
        """Run a stage on its ``inputs``, one or more frames of ``PACKED`` (blobs). Return the
        changelog of its node as flat rows: the key, the values, ``_change``, ``_timestamp``,
        ``_position`` and the columns of ``Fragment.feeds``. Selections that compute are computed
        here.

        If ``step.passes``, rows for other readers are in one more column, ``_passing``, the last.
        """
        stage, packed = step.stage, union_frames(inputs)
        stages = self.stages_of_operator(step)
        rows = (
            self._run_stateful(step, stages, packed)
            if stages
            else self._run_stateless(step, packed)
        )
        if output_of(stage).held is not None:
            return rows
        return projection.changelog(rows, stage, [PASSING] if step.passes else [])

    def _run_stateless(self, step: RouteStep, packed: DataFrame) -> DataFrame:
        """Return the flat rows that a fragment without state makes of ``packed``, rows of
        ``PACKED``, which are shuffled here by ``bucket``. The fragment is a delta join, or puts the
        results of a foreign-key join in order.

        The columns are those of ``output_of(step.stage)``. If ``step.passes``, rows for other
        readers are in one more column, ``_passing``, the last. A delta join's lookups are counted
        as an observed metric.
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

    def _run_stateful(
        self, step: RouteStep, stages: Sequence[OperatorStage], packed: DataFrame
    ) -> DataFrame:
        """Return the flat rows that an operator with state makes of ``packed``, rows of ``PACKED``.
        Its counts and reports become observed metrics. ``stages``: those of ``stages_of_operator``.

        The columns are those of ``output_of(step.stage)``. If ``step.passes``, rows for other
        readers are in one more column, ``_passing``, the last, beside nulls.
        """
        # Columns that do not pass through pandas' Arrow types leave in blobs.
        metrics, output = stages[-1].step.stage.fragment.metric_names, output_of(step.stage)
        if self.flat and _is_flat(output) and not step.passes:
            rows = self.run_on_buckets(packed, step, FlatEmission(output, metrics))
            return self.observations.observe_flat_stages(rows, stages)
        blobs = self.run_on_buckets(packed, step, BlobEmission(output, metrics, step.number))
        blobs = self.observations.observe_stages(blobs, stages, step.number, 0)
        return unpack_rows(blobs, output, step)


def _without_reported_rows(step: RouteStep, read: InputRows) -> InputRows:
    """Return ``read`` without the rows that have a dead letter in the column ``_failed``, and
    without that column. The step keeps no dead letters, and the views have counted these rows
    already.

    If the step keeps dead letters, return ``read`` itself, with all rows. The same holds if there
    is no column ``_failed``, or if the rows are shared with other views (column ``_left_out``).
    """
    columns = read.frame.columns
    if FAILED not in columns or step.letters is not None or LEFT_OUT in columns:
        return read
    return replace(read, frame=read.frame.where(F.col(FAILED).isNull()).drop(FAILED))


def packing_function(
    packings: Sequence[Packing], title: str, passing_index: int | None
) -> task.BatchFunction:
    """Return the ``mapInArrow`` function that reads flat rows once and packs them for all readers.
    It yields rows of ``PACKED``, each a blob with its ``bucket`` and ``reader``. There is one per
    bucket for an input, also for a bucket without rows, which hears the time. There is one for a
    result. More follow whenever about 32 MiB of Arrow data are held for a reader. A reader without
    rows and counts gets none.

    ``packings``: the columns and the form of each reader's rows. ``passing_index``: the index of
    the column with rows that pass, None if there is none. These come out unchanged, as rows of
    ``PACKED``. ``title``: the name of the input in errors. An error that is not the library's
    becomes a ``BatchError``.
    """

    @task.freezing_imports
    def pack_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the packed rows of ``batches`` for all readers. Rows that pass follow the next of
        these rows, or come at the end.
        """
        others: list[pa.RecordBatch] = []
        timer = PackTimer()

        def own_rows() -> Iterator[pa.RecordBatch]:
            """Yield each batch without the rows that pass. As a side effect, append those to
            ``others`` as a batch of ``PACKED``.
            """
            for batch in timer.time_reading(batches):
                rows = batch
                if passing_index is not None:
                    rows, passing = pop_passing(rows, passing_index)
                    others.append(passing.rename_columns(PACKED.names).cast(PACKED))
                yield rows

        with locate_errors(title, lambda _: f"input partition {task.partition()}"):
            packed_rows = pack_partition(packings, own_rows(), task.partition())
            for packed in timer.time_packing(packed_rows):
                yield cut_large(packed)
                yield from others
                others.clear()
            yield from others

    return pack_all


def union_frames(inputs: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames, with duplicates. There is at least one, and all have the same
    columns in the same order.
    """
    return reduce(DataFrame.union, inputs)


def _is_flat(output: Output) -> bool:
    """Return True if pandas' Arrow types carry all columns of ``output``: numbers, texts, bytes,
    booleans, dates, and timestamps with a zone. Only such rows may leave a stage flat.
    """
    return all(isinstance(f.dataType, _FLAT_TYPES) for f in output.columns)


def unpack_rows(packed: DataFrame, output: Output, step: RouteStep | None = None) -> DataFrame:
    """Return the rows in the blobs of ``packed``, rows of ``PACKED``, as flat rows in the columns
    of ``output``. Rows without a blob (a null ``payload``) are skipped.

    ``step``: the step that reads the blobs; None if no rows can pass. If ``step.passes``, rows for
    other readers are in one more column, ``_passing``, the last, beside nulls.
    """
    schema = _in_session_timezone(packed, output)

    @task.freezing_imports
    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the blobs of ``batches``, in order, as batches with the Arrow types of
        the output.
        """
        yield from _record_batches(payloads(batches), schema)

    return _map_to_flat_rows(packed, unpack, step, output)


def merging_function(
    step: RouteStep,
    law: InOrderLaw,
    to_batches: Callable[[Iterator[pa.Table]], Iterator[pa.RecordBatch]],
) -> task.BatchFunction:
    """Return the ``mapInArrow`` function that merges a foreign-key join's results, which come as
    rows of ``PACKED``. The results of each primary key come out in the order of the changes of its
    left row, in the columns of ``output_of``. All results of a key in a micro-batch must come to
    one task.

    ``step``: that of the stage that puts results in order. ``law``: its key columns, value types,
    and ``net``, True if a key that has moved between buckets emits its last result alone.
    ``to_batches``: turns the merged tables into the batches that the function yields. An error that
    is not the library's becomes a ``BatchError``.
    """
    fragment, output = step.stage.fragment, output_of(step.stage)
    title, columns = fragment.sources[0].title, fragment.output_schema.names

    @task.freezing_imports
    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results of the blobs in ``batches``, merged and in order of each primary key's
        changes.
        """
        with locate_errors(fragment.title, lambda _: title):
            tables = merge_buckets(payloads(batches), law, columns, task.micro_batch())
            yield from to_batches(map(output.rows_of_changes, tables))

    return merge


def _record_batches(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all tables as record batches, in order, with columns cast to ``schema``.
    The columns must have its names in its order.
    """
    for table in tables:
        yield from cast_rows(table, schema).to_batches()


def _result_packer(
    labels: Sequence[int], result: int
) -> Callable[[Iterable[pa.Table]], Iterator[pa.RecordBatch]]:
    """Return a function that yields a row of ``PACKED`` for each table that it is given, in order.
    ``result``: the address of the result, which becomes the ``reader`` of the rows.

    ``labels``: the label of each bucket. All rows of a task get the one at the index of the task's
    partition, modulo their count. There may be more partitions than buckets.
    """

    def pack_tables(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Yield a row of ``PACKED`` for each table, a large one in parts. Its ``number`` counts
        the tables from 0.
        """
        partition = task.partition()
        for piece_index, table in enumerate(tables):
            label = labels[partition % len(labels)]
            tag = Tag(result, 0, partition, piece_index)
            yield cut_large(pack_whole_table(table, label, tag))

    return pack_tables


def _map_to_flat_rows(
    packed: DataFrame, function: task.BatchFunction, step: RouteStep | None, output: Output
) -> DataFrame:
    """Return the flat rows that ``function`` makes of ``packed``, rows of ``PACKED``, in the
    columns of ``output``. ``function``: for ``mapInArrow``, from batches of ``PACKED`` to batches
    of the output.

    ``step``: the step that reads them; None if no rows can pass. If ``step.passes``, there is one
    more column, the last, even if no row passes: ``_passing``. It has the rows for other readers,
    which ``function`` does not get, beside nulls in all other columns. It is null in the rows of
    ``function``.
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
    """Return the Arrow schema of ``output``, whose timestamps are in the time zone that the session
    of ``frame`` has now.
    """
    timezone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    return in_timezone(output.schema, str(timezone))


def session_of(node: Node) -> SparkSession:
    """Return the Spark session of the first source of ``node``, which must have a frame. Raises
    ``ConfigurationError`` if the session was stopped.
    """
    frame = node.origins[0].frame
    assert frame is not None
    session: SparkSession = frame.sparkSession
    refuse_stopped(node.name, session)
    return session
