"""Stages in this process, one after the other, on the bytes that Spark's workers would have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from itertools import chain
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.base.columns import (
    DELETED,
    EVENT_TIME,
    LETTER,
    STREAM_TIME,
)
from dovetail.base.validation import Rule, accepts_argument_count
from dovetail.engine import flow
from dovetail.engine.arrival import stairs_of
from dovetail.engine.batches.pieces import Piece
from dovetail.engine.flow import Flow
from dovetail.engine.fragment import Heartbeat
from dovetail.engine.idle import IdleRules
from dovetail.engine.local_buckets import LocalBuckets, Pieces
from dovetail.engine.pack import (
    DEAD_LETTERS,
    Letters,
    PackedRow,
    Packer,
    Tag,
    add_counted_text,
    pack_partition,
    pack_table,
    unpack_piece,
)
from dovetail.engine.view_rows import (
    Conditions,
    append_columns,
    apply_plain_view,
    check_expectation,
)
from dovetail.errors import PlanError
from dovetail.operators.counts import Counts
from dovetail.operators.joins.foreign_key_order import merge_buckets
from dovetail.operators.joins.lookup import Caches, TaskLookups
from dovetail.physical.inputs import Input
from dovetail.physical.output import Output, output_of
from dovetail.physical.routing import InputEdge, Plan, RouteStep, walk_steps
from dovetail.physical.specs.by_key import InOrderLaw
from dovetail.physical.specs.delta_join import DeltaJoinLaw
from dovetail.physical.specs.lookup import store_lookup
from dovetail.physical.stage import Port, Stage
from dovetail.physical.travel_columns import TravelColumns
from dovetail.plan.joins.lookup import Lookup
from dovetail.plan.metrics import metric_name
from dovetail.plan.nodes import Source
from dovetail.plan.transforms.expectation import Expectation
from dovetail.plan.types.arrow import arrow_schema
from dovetail.plan.views import View, views_of

Hash: TypeAlias = Annotated[
    Callable[[Sequence[pa.Array]], npt.NDArray[np.int64]],
    Rule("a function of a key's columns", partial(accepts_argument_count, 1)),
]
"""A function of a key's columns that returns their hash, int64[rows]. The hash chooses the bucket.
"""


class Parcel(NamedTuple):
    """The unit that travels: a piece for a bucket of stage ``reader``, or rows of a result."""

    reader: int
    """The index of the stage, or the address of the result or relay, that the parcel goes to."""
    bucket: int
    """The bucket of the piece; 0 for rows of a result or relay."""
    content: Piece | pa.Table


Packed: TypeAlias = "Iterable[Parcel]"


class StageOutput(NamedTuple):
    """The output of a stage, and the parcels for other steps that travel through it."""

    changes: Iterator[pa.Table]
    """Its changes (``LocalRun.changelog``)."""
    passing: list[Parcel]
    """The parcels for other stages and results that passed the stage unchanged."""


class Expressions(Conditions, Protocol):
    """An evaluator of a topology's Spark expressions."""

    def foreign_key(self, input_: Input, rows: pa.Table) -> list[pa.Array]:
        """Return the foreign key's columns for ``rows``, then a string column of failures: arrays
        of one element per row, in order.

        ``input_``: the input whose foreign key it is. ``rows``: its rows, with its views applied. A
        failure is the row as JSON if the key's expression fails on it, else null.
        """

    def changelog(self, stage: Stage, changes: pa.Table) -> pa.Table:
        """Return a stage's changes with its selections evaluated: one row per change, in the same
        order.

        ``changes``: a table of ``stage.fragment.output_schema``. The result has the columns of the
        stage's node first. Then come, in any order, ``_event_time`` (microseconds), ``_deleted``,
        ``_position`` and the columns ``Fragment.feeds``, which tell the causing record.
        ``_position`` is unchanged; it orders the changes of a bucket. A selection that fails on a
        change raises Spark's error.
        """

    def apply_view(self, view: View, rows: pa.Table) -> tuple[pa.Table, pa.Array, pa.Table]:
        """Apply a view with expressions to ``rows``. Return three values: the view's rows, their
        origins, and the dead letters.

        The view's rows have the view's columns, then ``_deleted``. An input row may give none or
        several. Origins are int64, the index in ``rows`` of each of the view's rows. An input row
        on which an expression fails is only in the dead letters (``DEAD_LETTERS``), as JSON. If the
        view makes none (``view.letters`` is None), the failure raises Spark's error.
        """


class LocalRun:
    """A run of a plan in this process, through all stages that feed its results.

    Input rows are tables of their source's columns with ``_event_time``, ``_deleted`` and
    ``_sequence``. ``failed`` counts, by metric, the rows that views leave out and those on which a
    foreign key fails. ``dropped`` is the count of rows that packing leaves out for other reasons.
    """

    def __init__(self, plan: Plan, key_hash: Hash, expressions: Expressions | None = None) -> None:
        """Build the stages of ``plan`` with empty state; nothing runs yet.

        ``key_hash``: a function of a key's canonical columns that returns int64[rows]; the hash
        chooses the bucket. ``expressions``: the evaluator of the topology's Spark expressions, None
        for none.

        Raises ``PlanError`` for a topology that cannot run here: one with a delta join, or with
        Spark expressions and no evaluator.
        """
        self.plan, self.hash, self._expressions = plan, key_hash, expressions
        self.idle: IdleRules | None = None
        self.failed, self.dropped = Counts(), 0
        self.by_stage: dict[Stage, LocalBuckets] = {}
        self.given: dict[Port, Pieces] = {}
        self.letters: list[pa.Table] = []
        self._caches: Caches = {}
        self._outputs: dict[Stage, Output] = {}
        for stage in plan.stages:
            views = [v for result in plan.results if result.stage is stage for v in result.views]
            _refuse_unrunnable(stage, views, expressions is not None)
            self.given |= {port: [] for port in stage.ports}
            if stage.fragment.stateful:
                self.by_stage[stage] = LocalBuckets(stage.fragment)
        self._readings = [
            reading for step in walk_steps(plan.last_steps) for reading in step.readings
        ]

    def let_time_go_on(self, idle: IdleRules) -> None:
        """Let stream time go on by the rules ``idle`` while no rows arrive, in all later
        micro-batches. Rules given earlier are replaced, and stages send heartbeats from now on.
        """
        self.plan, self.idle = replace(self.plan, idles=True), idle
        self._readings = [
            reading for step in walk_steps(self.plan.last_steps) for reading in step.readings
        ]

    @property
    def buckets(self) -> list[LocalBuckets]:
        """The buckets of each stage with state, one ``LocalBuckets`` per stage, in the order in
        which the stages run. They are the live objects, not copies.
        """
        return list(self.by_stage.values())

    @property
    def total_counts(self) -> Counts:
        """The counts by metric of all stages and views since the start, as a new ``Counts``. Rows
        that packing dropped are only in ``dropped``.
        """
        counts = self.failed.copy()
        for buckets in self.buckets:
            counts.update(buckets.counts)
        return counts

    def accept_rows(self, source: Source, rows: pa.Table, partition: int = 0) -> None:
        """Pack ``rows`` of ``source`` for the next micro-batch, once for each stage input that
        reads the source. They follow the rows accepted before; nothing is run.

        ``rows``: the source's columns with ``_event_time`` (microseconds), ``_deleted`` and
        ``_sequence``. ``partition``: the index of the input partition that they count as. Rows that
        packing leaves out are added to ``failed`` or ``dropped``.

        Raises ``DataError`` for a row without a timestamp or that an expectation refuses, and any
        error of a lookup's store or a Spark expression. Then no row is accepted, but counts of
        views may have advanced (``all_or_nothing``).
        """
        offers = [
            (self.given[reading.port], *self.pack_pieces(reading, [rows], partition))
            for reading in self._readings
            if reading.port.origin is source
        ]
        for accepted, pieces, counts in offers:
            self.add_counts(counts)
            # Pieces of one input come in the order of their numbers.
            first = len(accepted)
            accepted += [(b, replace(piece, number=first + piece.number)) for b, piece in pieces]

    def add_counts(self, counts: Counts) -> None:
        """Add the counts and examples of rows that packing left out to ``failed``.

        Metrics that end in ``.dropped`` are removed from ``counts``, and added to the attribute
        ``dropped`` instead.
        """
        for name in [name for name in counts.number if name.endswith(".dropped")]:
            self.dropped += counts.number.pop(name)
        self.failed.update(counts)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Return a context manager that undoes everything done in its block if the block raises,
        then raises the error again.

        After an error, state and counts are as before the block. All accepted rows are forgotten,
        those accepted before the block too, and so are dead letters not yet returned. Cached
        answers of stores stay.
        """
        failed, dropped, buckets = self.failed.copy(), self.dropped, self.buckets
        before = [(b.counts.copy(), [dict(state.blobs) for state in b.blobs]) for b in buckets]
        try:
            yield
        except BaseException:
            self.failed, self.dropped, self.letters = failed, dropped, []
            self.given = {port: [] for port in self.given}
            for state, (counts, blobs) in zip(buckets, before, strict=True):
                state.restore(counts, blobs)
            raise

    def changelog(self, stage: Stage, changes: pa.Table) -> pa.Table:
        """Return a stage's changes under the column names of its node, one row per change, in
        order. Selections with Spark expressions are evaluated.

        ``changes``: a table of ``stage.fragment.output_schema``. The result has the node's columns,
        then in any order ``_event_time`` (microseconds), ``_deleted``, ``_position`` and the
        columns ``Fragment.feeds``, which tell the causing record. ``_position`` is unchanged; it
        orders the changes of a bucket. A selection that fails on a change raises Spark's error.
        """
        if stage.fragment.last.visible:
            assert self._expressions is not None
            rows = self._expressions.changelog(stage, changes)
        else:
            if stage not in self._outputs:
                self._outputs[stage] = output_of(stage)
            rows = self._outputs[stage].rows_by_name(changes)
        return rows

    def _apply_view(self, rows: pa.Table, view: View, *, reports: bool = False) -> pa.Table:
        """Return the rows of ``view`` made of ``rows``: the view's columns, then the columns of
        ``rows`` that are not of the viewed node. Rows may be dropped, repeated or become
        tombstones.

        ``rows``: columns of the viewed node, ``_event_time``, ``_deleted`` and perhaps more.
        ``reports``: True to count the rows that fail in the view or that a lookup drops, and to
        keep their dead letters.

        Raises ``DataError`` for a row that an expectation with ``on_fail="fail"`` refuses. Errors
        of a lookup's store are raised. So is Spark's error if an expression fails, unless the view
        makes dead letters of such rows.
        """
        if isinstance(view, Lookup):
            return self._look_up(rows, view, reports=reports)
        if isinstance(view, Expectation):
            checked_rows, texts, letters = check_expectation(rows, view, self._expressions)
            if reports:
                self._report_rows(view.counter, texts, letters)
            return checked_rows
        if view.computed:
            assert self._expressions is not None
            view_rows, which, letters = self._expressions.apply_view(view, rows)
            if reports:
                self._report_rows(metric_name(view.name, "failed"), letters.column(LETTER), letters)
            carried = rows.drop_columns([*view.node.row.names, DELETED]).take(which)
            return append_columns(view_rows, carried)
        return apply_plain_view(rows, view)

    def _report_rows(self, name: str, texts: pa.Array, letters: pa.Table) -> None:
        """Add the count of ``texts`` to the metric ``name`` in ``failed``, with the first text as
        the example; nothing if there are none. Keep ``letters`` if dead letters are a result of the
        plan.

        ``texts``: the rows on which a view fails, each as JSON. ``letters``: the same rows as
        ``DEAD_LETTERS``; without rows if the view makes no dead letters.
        """
        if len(texts):
            self.failed.add(name, len(texts), texts[0].as_py())
        self.letters += [letters] if len(letters) and self.plan.dead_letters else []

    def _look_up(self, rows: pa.Table, view: Lookup, *, reports: bool) -> pa.Table:
        """Return the rows after the lookup ``view``: each record beside each row that the store has
        for it, in the order of ``rows``. Without such a row, a record comes once with nulls or, for
        an inner join, not at all.

        The columns are the view's key, then all of ``rows`` that are not of the viewed node, then
        the looked-up values. Deleted rows are left out. ``reports``: True to count these rows, and
        those dropped for a null key of an inner join.

        Store answers are cached in this run. Raises ``DataError`` if answers do not fit or repeat a
        key, ``ConfigurationError`` if the store cannot be reached.
        """
        law = store_lookup(view)
        answering = TaskLookups(law, self._caches, lambda: time.time_ns() // 1000)
        live = pc.invert(rows.column(DELETED)).to_numpy()
        carried = [*view.key.names, *(n for n in rows.schema.names if n not in view.node.row.names)]
        answered = [
            append_columns(records.select(carried), pa.table(values, names=view.values.names))
            for records, values in answering.join_records(rows, live)
        ]
        if reports and answering.dropped:
            self.failed.add(metric_name(view.label or view.name, "dropped"), answering.dropped)
        columns = [*carried, *view.values.names]
        types = dict(zip(rows.schema.names, rows.schema.types, strict=True))
        types |= {field.name: field.type for field in arrow_schema(view.values)}
        empty = pa.schema([(name, types[name]) for name in columns]).empty_table()
        return pa.concat_tables([empty, *answered])

    def run_batch(self, batch: int, now_us: int, beat_us: int | None = None) -> list[ResultRows]:
        """Run a micro-batch on all accepted rows, and return the rows of its results in the order
        of results; dead letters come last. A result without rows is left out; one with rows may
        come several times.

        ``batch``: the micro-batch's id, which only goes into the positions of joins by foreign key.
        ``now_us``: its wall-clock time in microseconds. ``beat_us``: an event time in microseconds
        up to which all inputs count as read, without effect if they are further on; None for none.

        Accepted rows are consumed and the state of the buckets advances. Raises ``DataError`` for a
        row that an operator or an expectation refuses, and ``BatchError`` for other errors of an
        operator. Errors of lookup stores and Spark expressions pass. State may then be half
        advanced (``all_or_nothing``).
        """
        return [
            result for result in self.run_batch_lazily(batch, now_us, beat_us) if len(result.rows)
        ]

    def run_batch_lazily(
        self, batch: int, now_us: int, beat_us: int | None = None
    ) -> Iterator[ResultRows]:
        """Run a micro-batch on all accepted rows, and yield the rows of its results as they are
        computed; dead letters come last. A result may come in several tables, some of them empty.

        ``batch``: the micro-batch's id, which only goes into the positions of joins by foreign key.
        ``now_us``: its wall-clock time in microseconds. ``beat_us``: an event time in microseconds
        up to which all inputs count as read, without effect if they are further on; None for none.

        State has advanced once the iterator is exhausted. Dead letters are yielded only if they are
        a result of the plan (``Plan.dead_letters``).

        Raises ``DataError`` for a row that an operator or an expectation refuses, and
        ``BatchError`` for other errors of an operator. Errors of lookup stores and Spark
        expressions pass. State may then be half advanced (``all_or_nothing``).
        """
        pieces_by_port, self.given = self.given, {port: [] for port in self.given}
        micro_batch = _MicroBatch(self, pieces_by_port, batch, now_us, beat_us)
        results = self.plan.results
        if self.plan.has_one_result:
            for table in flow.run_single_result(self.plan, micro_batch).changes:
                yield ResultRows(0, reduce(self._apply_view, results[0].views, table))
            return
        for parcel in chain(*flow.run_results(self.plan, micro_batch)):
            for result_index, (result, to) in enumerate(
                zip(results, self.plan.addresses, strict=False)
            ):
                if parcel.reader == to:
                    yield ResultRows(
                        result_index, reduce(self._apply_view, result.views, parcel.content)
                    )
        letters, self.letters = self.letters, []
        yield from (ResultRows(len(results), table) for table in letters)

    def pack_pieces(
        self, reading: InputEdge, tables: Sequence[pa.Table], partition: int = 0
    ) -> tuple[Pieces, Counts]:
        """Pack the rows of an input for every bucket, through the bytes that Spark would move.
        Return (bucket, piece) pairs, and the counts of rows left out in packing.

        ``reading``: the input of a stage that reads the rows; its views are applied first.
        ``tables``: the rows, as those of the input partition with the index ``partition``. A bucket
        without rows gets a heartbeat piece. If no rows come to packing, there are no pieces.

        The counts are not added to ``failed``; those of views are. If dead letters are a result,
        the rows on which the foreign key fails are kept for it. Raises ``DataError`` for a row
        without a timestamp or that an expectation refuses, and any error of a lookup's store or a
        Spark expression.
        """
        port = reading.port
        wire_tables = [self._wire_rows(reading, table) for table in tables]
        batches = [batch for table in wire_tables for batch in table.to_batches()]
        labels = range(reading.stage.fragment.buckets)
        packer = Packer(reading.reader, reading.number, port.source, labels, port.by)
        rows = list(pack_partition([packer], batches, partition))
        counted = Counts()
        for text in (text for batch in rows for text in batch["counted"].drop_null().to_pylist()):
            add_counted_text(counted, reading.metric_names, text)
        if reading.fails:
            self._keep_dead_letters(reading, batches)
        return [piece for batch in rows for piece in _unpack_pieces(batch)], counted

    def _keep_dead_letters(self, reading: InputEdge, batches: Sequence[pa.RecordBatch]) -> None:
        """Keep the rows on which the foreign key of the input ``reading`` fails, if dead letters
        are a result of the plan; else do nothing.

        ``batches``: the rows as they are packed. Their second column is the event time. Their last
        one is the row as text if the key fails on it, else null.
        """
        if not self.plan.dead_letters:
            return
        title, places = reading.stage.fragment.title, [1, -1]
        letters = Letters(0, DEAD_LETTERS, [0], operator=title, problem=reading.failure_text)
        for batch in batches:
            letter_rows = letters.result_rows(
                batch.select([places[0], batch.num_columns + places[1]])
            )
            self.letters += [pa.Table.from_batches([letter_rows])] if letter_rows.num_rows else []

    def _wire_rows(self, reading: InputEdge, rows: pa.Table) -> pa.Table:
        """Return ``rows`` of the input ``reading`` in the columns in which they travel
        (``SourceSpec.travel_schema``): views applied, keys canonical and hashed.

        If the foreign key may fail, a last column ``failed`` follows: the row as JSON if it fails,
        else null. Views count their failures and keep dead letters unless another input reports
        them. Raises ``DataError`` for a row that an expectation refuses, and any error of a
        lookup's store or a Spark expression. On Spark ``spark.execution.wire`` does this.
        """
        input_, source = reading.port.input, reading.port.source
        assert input_ is not None
        for index, view in enumerate(views_of(input_.source)):
            rows = self._apply_view(rows, view, reports=index >= reading.reported)
        foreign, failed = None, None
        if source.shape.fallible:
            assert self._expressions is not None
            *foreign, failed = self._expressions.foreign_key(input_, rows)
        table = TravelColumns.of(input_, source).travelling_rows(rows, self.hash, foreign)
        return table if failed is None else table.append_column("failed", failed)


class ResultRows(NamedTuple):
    """Rows of the result with index ``number``: of its changelog (``LocalRun.changelog``) or dead
    letters.
    """

    number: int
    """The index of the result in ``Plan.results``; their count for dead letters."""
    rows: pa.Table


class _MicroBatch(Flow[StageOutput, Packed]):
    """One micro-batch: the stages on ``pieces_by_port``, the pieces accepted for it."""

    def __init__(
        self,
        local: LocalRun,
        pieces_by_port: Mapping[Port, Pieces],
        batch: int,
        now_us: int,
        beat_us: int | None,
    ) -> None:
        """Prepare one micro-batch of ``local``; nothing runs yet.

        ``pieces_by_port``: for each stage input the accepted (bucket, piece) pairs. ``batch``: the
        micro-batch's id. ``now_us``: its wall-clock time in microseconds. ``beat_us``: an event
        time up to which all inputs count as read, None for none.
        """
        self._local, self._given = local, pieces_by_port
        self._batch, self._now_us, self._beat_us = batch, now_us, beat_us

    def read_source(self, step: RouteStep) -> Packed:
        """Yield the accepted pieces of the source of ``step`` as parcels, input by input for each
        stage input that reads the source.
        """
        for reading in step.readings:
            for bucket, piece in self._given[reading.port]:
                yield Parcel(reading.reader, bucket, piece)

    def pack_rows(self, step: RouteStep, rows: StageOutput) -> Packed:
        """Yield the parcels for other steps that travel through ``step``, then its own changes:
        packed for each stage input that reads them, then as whole tables of bucket 0. These are for
        relays, which apply a view to the changes, and for a result.

        ``rows``: the stage's output; all its changes are computed first. Rows that no reader can
        use are added to the counts of the run.
        """
        tables = [*rows.changes]
        yield from rows.passing
        for reading in step.readings:
            pieces, counts = self._local.pack_pieces(reading, tables)
            self._local.add_counts(counts)
            yield from (Parcel(reading.reader, *bucket_piece) for bucket_piece in pieces)
        for to in (*step.relays, step.result):
            if to is not None:
                yield from (Parcel(to, 0, table) for table in tables)

    def run_partitioned(self, step: RouteStep, inputs: list[Packed]) -> Packed:
        """Run the stage of ``step`` on the parcels ``inputs``. Yield its changes as parcels, table
        by table on demand, then the parcels among ``inputs`` that are for other steps.

        Each table of a bucket's changes becomes one piece for every bucket of the only reader, a
        heartbeat where it has no rows. Rows go by the hash column of ``step.hash_column_edge``.
        """
        stage, reading = step.stage, step.hash_column_edge
        assert reading is not None
        assert reading.port.hash_column is not None
        labels = range(stage.fragment.buckets)
        contents, passing = self._split_off_passing(step, inputs)
        for piece_index, (bucket, table) in enumerate(
            self._process_buckets(step, contents, passing)
        ):
            time = STREAM_TIME if STREAM_TIME in table.schema.names else EVENT_TIME
            time_us, stairs = pc.max(table.column(time)).as_py(), stairs_of(table)
            tag = Tag(reading.reader, reading.number, bucket, piece_index, time_us, stairs=stairs)
            rows = pack_table(table, labels, tag, by=reading.port.hash_column)
            yield from (Parcel(reading.reader, *piece) for piece in _unpack_pieces(rows))
        yield from passing

    def run_to_result(self, step: RouteStep, inputs: list[Packed]) -> Packed:
        """Run the stage of ``step`` on the parcels ``inputs``. Yield its changelog, table by table
        on demand, as parcels of bucket 0 for its result. The parcels among ``inputs`` that are for
        other steps follow.
        """
        output = self.run_to_changelog(step, inputs)
        assert step.result is not None
        for table in output.changes:
            yield Parcel(step.result, 0, table)
        yield from output.passing

    def run_to_changelog(self, step: RouteStep, inputs: list[Packed]) -> StageOutput:
        """Run the stage of ``step`` on the parcels ``inputs``. Return its changelog, non-empty
        tables in the order of buckets computed on demand, and the parcels for other steps.

        A stage without state merges the tables that its input brings. The parcels for other steps
        are complete only after all changes are read, since heartbeats are added to them.
        """
        stage, last = step.stage, step.stage.fragment.last
        contents, passing = self._split_off_passing(step, inputs)
        if stage.fragment.stateful:
            tables: Iterable[pa.Table] = (
                t for _, t in self._process_buckets(step, contents, passing)
            )
        else:
            assert isinstance(last.law, InOrderLaw)
            piece_rows = (piece.rows for _, piece in contents if piece.rows is not None)
            tables = merge_buckets(piece_rows, last.law, last.output_schema.names, self._batch)
        changelogs = (self._local.changelog(stage, table) for table in tables if len(table))
        return StageOutput(changelogs, passing)

    def relayed_rows(self, step: RouteStep, inputs: list[Packed]) -> StageOutput:
        """Return the tables in ``inputs`` that are for the relay ``step``, unchanged and in order,
        and the parcels for other steps. A relay is a step that applies a view to a stage's changes.
        """
        contents, passing = self._split_off_passing(step, inputs)
        return StageOutput((table for _, table in contents), passing)

    def _split_off_passing(
        self, step: RouteStep, inputs: list[Packed]
    ) -> tuple[Iterable[tuple[int, Any]], list[Parcel]]:
        """Separate the parcels ``inputs`` into (bucket, content) pairs for ``step`` and the parcels
        for other steps. A content is a piece (rows of one source for one bucket) if the step is a
        stage, a table if it is a relay.

        If ``step.passes`` is false, no parcels for others can be among them. Then all are for this
        step, read lazily, and the list is empty.
        """
        parcels = chain(*inputs)
        if not step.passes:
            return ((parcel.bucket, parcel.content) for parcel in parcels), []
        parcel_list = [*parcels]
        contents = [(p.bucket, p.content) for p in parcel_list if p.reader == step.number]
        return contents, [parcel for parcel in parcel_list if parcel.reader != step.number]

    def _process_buckets(
        self, step: RouteStep, contents: Iterable[tuple[int, Piece]], passing: list[Parcel]
    ) -> Iterator[tuple[int, pa.Table]]:
        """Run the stage of ``step`` on its buckets, one after the other, as the iterator is read.
        Yield (bucket, table of changes) in the order of buckets; a bucket may give no table or
        several. A bucket without input does nothing, unless ``idle=`` or ``align=`` lets it run on
        its own.

        ``contents``: (bucket, piece) pairs, the stage's input, all read first. If the micro-batch
        has a time ``beat_us``, all buckets have input: each first hears that time of each input. A
        heartbeat that a bucket sends is not yielded. Each input in ``step.beats`` gets a parcel of
        it, appended to ``passing``, which is complete once the iterator has ended.
        """
        pieces: Pieces = []
        stage, idle = step.stage, self._local.idle
        if self._beat_us is not None:
            beats = [
                Piece.source_heartbeat(source_index, self._beat_us)
                for source_index in range(len(stage.ports))
            ]
            pieces = [(b, beat) for b in range(stage.fragment.buckets) for beat in beats]
        pieces += contents
        idle = None if idle is None else replace(idle, hears=step.hears)
        for bucket, output in self._local.by_stage[stage].process(pieces, self._now_us, idle):
            if not isinstance(output, Heartbeat):
                yield bucket, output
                continue
            for to in step.beats:
                beat = Piece.source_heartbeat(to.number, output.stream_us, heard_us=output.heard_us)
                passing.append(Parcel(to.reader, bucket, beat))


def _refuse_unrunnable(stage: Stage, views: Sequence[View], evaluates: bool) -> None:
    """Raise ``PlanError`` if this process cannot run ``stage``: for a delta join, or for Spark
    expressions without an evaluator. Else do nothing.

    ``views``: those between the stage and its results; the views that it reads are looked at too.
    ``evaluates``: True if there is an evaluator of Spark expressions.
    """
    if isinstance(stage.fragment.last.law, DeltaJoinLaw):
        raise PlanError(
            stage.node.name,
            "a delta join asks stores that the test driver does not have",
            "Run the topology with write_stream(), or join with "
            "delta_join=dt.delta_join(strategy='none')",
        )
    if evaluates:
        return
    read = (view for port in stage.ports if port.input for view in views_of(port.input.source))
    computed = [view for view in (*read, *views) if view.computed]
    computes = any(source.shape.fallible for source in stage.fragment.sources)
    if computes or computed or stage.fragment.last.visible:
        argument = f"{computed[0].summary}:" if computed else "select="
        argument = stage.argument if computes else argument
        raise PlanError(
            stage.node.name,
            f"{argument} has a Spark expression, and the driver has no session to evaluate it",
            "Give it one with spark=, or name columns only",
        )


def _unpack_pieces(rows: pa.RecordBatch) -> Pieces:
    """Decode rows of ``PACKED`` into (bucket, piece) pairs, in order. The column ``bucket`` must
    have the indices of the buckets, not other labels. A row without a payload gives a heartbeat.
    """
    return [(row.bucket, unpack_piece(row)) for row in PackedRow.from_rows(rows)]
