"""Delta joins on Spark: both sides are shuffled by join key, then joined per micro-batch.

A delta join looks up the other side's rows in an external store, so the plan has no stateful
operator. The checkpoint holds the sources' offsets alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from dovetail.arrays.casts import cast_rows
from dovetail.base.columns import CLOCK, DELETED, FILE, HASH, LOG_PARTITION, ORDER, PASSING, quoted
from dovetail.engine.batches.parts import PartJoiner
from dovetail.engine.batches.pieces import batch_of, high_time_us
from dovetail.engine.error_context import locate_errors
from dovetail.engine.pack import PackedRow, Tag, pack_table, unpack_piece, whole_rows
from dovetail.errors import ConfigurationError, DovetailError, PlanError
from dovetail.lookup_sources.pool import open_reader
from dovetail.lookup_sources.source import Found
from dovetail.operators.joins.delta_join import join_batch, last_rows
from dovetail.operators.joins.lookup_cache import CacheFile, SideCache
from dovetail.physical.fragment import Fragment, Operator
from dovetail.physical.output import Output
from dovetail.physical.routing import Plan, RouteStep
from dovetail.physical.specs.delta_join import DeltaJoinLaw, SettleLaw
from dovetail.physical.specs.lookup import stage_lookups, store_lookup
from dovetail.plan.select import SIDES
from dovetail.spark import task
from dovetail.spark.execution.emission import PACKED_COLUMNS, cut_large
from dovetail.spark.execution.passthrough import let_rows_pass, with_passing_column
from dovetail.spark.workers import answer_of_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ARRIVAL_COLUMNS = (CLOCK, ORDER, FILE, LOG_PARTITION)
_COUNTS = [f"_{side}_{what}" for side in SIDES for what in ("hits", "misses", "unfit")]


def refuse_unreachable(session: SparkSession, plan: Plan) -> None:
    """Raise ``ConfigurationError`` if a Python worker cannot open or ask a lookup store of the
    query. A plan without such stores asks no worker.

    Each store is opened once in one worker, asked for the rows of no key, and closed. The first of
    the library's errors ends that. The error here has its operator, problem and remedy. Another
    error comes as Spark's own, as it does if no worker starts.
    """
    asked = [
        (side.lookup, side.index.columns, _returned_columns(operator, side_index))
        for operator in (stage.fragment.last for stage in plan.stages)
        if isinstance(operator.law, DeltaJoinLaw)
        for side_index, side in enumerate(operator.law.sides)
    ]
    laws = [store_lookup(view) for stage in plan.stages for view in stage_lookups(stage)]
    asked += [(law.lookup, law.by, law.schema) for law in laws]

    def ask_stores() -> str:
        """Ask each store for no key. Return the first error's operator, problem and remedy as a
        JSON list, an empty text without one.
        """
        try:
            for lookup, by, schema in asked:
                with closing(lookup.open(schema)) as reader:
                    reader.rows(by, pa.schema([schema.field(name) for name in by]).empty_table())
        except DovetailError as error:
            return json.dumps([error.operator, error.problem, error.remedy])
        return ""

    answer = answer_of_worker(session, ask_stores) if asked else ""
    if answer:
        raise ConfigurationError(*json.loads(answer))


def last_by_primary_key(
    rows: DataFrame, step: RouteStep, labels: Sequence[int], partitions: int
) -> DataFrame:
    """Return the change that arrived last, perhaps a tombstone, for each primary key of a stage's
    input in the micro-batch. The result has rows of ``PACKED``, for the buckets of the delta join
    that reads the stage. A change is in the bucket of its join key, also with a null there.

    ``rows``: the input packed by primary key, which is shuffled here by ``bucket`` into
    ``partitions`` tasks. ``step``: that of the stage, whose operator must be described by a
    ``SettleLaw``. ``labels``: the label of each bucket. Rows that pass the step to other readers
    are among the result, unchanged.
    """
    fragment, reading = step.stage.fragment, step.hash_column_edge
    assert reading is not None
    (source,), law = fragment.sources, fragment.last.law
    assert isinstance(law, SettleLaw)
    reader, source_index = reading.reader, reading.number

    @task.freezing_imports
    @_name_join_in_errors(fragment)
    def settle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one batch of ``PACKED`` with a row for each bucket of the delta join, also without
        any changes. A row's blob has those of the task's last changes whose join key lies in its
        bucket. It is null if there are none.
        """
        pieces = [*map(unpack_piece, _rows_of_batches(batches))]
        batch = batch_of(source, pieces, 0)
        clocked = batch.rows.drop_columns(
            [n for n in _ARRIVAL_COLUMNS if n in batch.rows.schema.names]
        )
        batch = replace(batch, rows=clocked.append_column(CLOCK, pa.array(batch.clock_us)))
        table = last_rows(source, law.primary, batch).select(list(law.columns))
        tag = Tag(reader, source_index, task.partition(), 0, high_time_us(pieces))
        yield cut_large(pack_table(table, labels, tag, by=HASH))

    function = let_rows_pass(settle, step.number, None) if step.passes else settle
    return rows.repartition(partitions, "bucket").mapInArrow(function, PACKED_COLUMNS)


def _rows_of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[PackedRow]:
    """Yield the rows of ``batches``, which have the columns of ``PACKED``, with parts joined."""
    joiner = PartJoiner()
    for batch in batches:
        yield from whole_rows(PackedRow.from_rows(batch), joiner)
    joiner.finish()


def _name_join_in_errors(fragment: Fragment) -> Callable[[task.BatchFunction], task.BatchFunction]:
    """Return a decorator for ``mapInArrow`` functions. It names the fragment's join and its tables
    in failures. An error that is not the library's becomes a ``BatchError``.
    """

    def name_join(function: task.BatchFunction) -> task.BatchFunction:
        """Return ``function`` with failures that name the join."""

        def run(record_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            """Yield all that ``function`` yields. An error gets the join's name."""
            where = f"in {fragment.title}, of {' and '.join(s.title for s in fragment.sources)}"
            with locate_errors(fragment.title, lambda _: where):
                yield from function(record_batches)

        return run

    return name_join


def joined_rows(
    rows: DataFrame,
    step: RouteStep,
    output: Output,
    schema: pa.Schema,
    *,
    partitions: int,
    metric: str,
) -> DataFrame:
    """Return the rows that a delta join emits from its inputs, in the columns of ``output``. If
    rows pass the ``step`` to other readers, they are in one more column, ``_passing``, the last.
    Static inputs ask no store and give upserts alone.

    ``rows``: the rows of both inputs, packed (``PACKED``) by join key; they are shuffled here by
    ``bucket`` into ``partitions`` tasks. ``schema``: ``output.schema`` in the session's time zone.

    If ``rows`` streams, counts of each task's distinct join keys without nulls are observed under
    ``metric``. ``left_hits`` were in the cache and ``left_misses`` were looked up; ``left_unfit``
    of the misses cannot be in the store. The right side has the same counts. The rows that carry
    counts are dropped here. Raises ``PlanError`` for a stream with ``emit="batch"``.
    """
    live, query = rows.isStreaming, uuid4().hex
    fragment, passes = step.stage.fragment, step.passes
    operator, sources = fragment.last, fragment.sources
    if live and operator.emit == "batch":
        raise PlanError(
            metric.removesuffix(".lookups"),
            "emit='batch' leaves out what has not changed, which a delta join does not know",
            "Use emit='change', which gives each key at most one change per micro-batch",
        )

    @task.freezing_imports
    @_name_join_in_errors(fragment)
    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the changes of the join, then one row with the counts. After the last row, write
        the task's caches to disk.
        """
        heard = [*_rows_of_batches(batches)]
        pieces = [unpack_piece(row) for row in heard]
        buckets = [row.bucket for row in heard]
        asking = TaskStores(operator, query, buckets) if live else None
        side_batches = [
            batch_of(source, pieces, source_index) for source_index, source in enumerate(sources)
        ]
        caches = _empty_caches(operator) if asking is None else asking.caches()
        ask, batch = (None, 0) if asking is None else (asking.ask, asking.batch)
        done = join_batch(operator, side_batches, caches, ask, batch)
        for table in done.changes:
            changes = output.rows_of_changes(table if live else _without_tombstones(table))
            sent = cast_rows(changes, schema)
            yield from _with_counts(sent, None).to_batches()
        counts = [count for of_side in done.counts for count in of_side]
        yield from _with_counts(_blank_row(schema, output.columns), counts).to_batches()
        if asking is not None:
            asking.store_caches(done.caches)

    counted = StructType(
        [*output.columns.fields, *(StructField(name, LongType()) for name in _COUNTS)]
    )
    names = output.columns.names
    function: task.BatchFunction = join
    if passes:
        arrow = pa.schema([*schema, *(pa.field(name, pa.int64()) for name in _COUNTS)])
        function, counted = let_rows_pass(join, step.number, arrow), with_passing_column(counted)
        names = [*names, PASSING]
    out = rows.repartition(partitions, "bucket").mapInArrow(function, counted)
    if live:
        sums = (F.coalesce(F.sum(name), F.lit(0)).alias(name[1:]) for name in _COUNTS)
        out = out.observe(metric, *sums)
    columns = (F.col(quoted(name)) for name in names)
    return out.where(F.col(_COUNTS[0]).isNull()).select(*columns)


class TaskStores:
    """A task of a streaming query in its micro-batch: its caches, and the stores it asks.

    The task's ``buckets`` name its caches, because the same buckets meet in one task in each
    micro-batch. The task's index will not do: it depends on how many partitions other inputs have.
    All buckets get a piece in each micro-batch in which the join has any input. In a micro-batch
    without input no cache is left.
    """

    def __init__(self, operator: Operator, query: str, buckets: Collection[int]) -> None:
        """Begin the present micro-batch of this task. ``operator``: the delta join. ``query``: an
        id of the query's start. ``buckets``: the labels of the task's buckets; if empty, nothing is
        cached.
        """
        assert isinstance(operator.law, DeltaJoinLaw)
        self._operator = operator
        self._sides = operator.law.sides
        self.batch = task.micro_batch()
        name = f"{query}-{task.run_id()}-{min(buckets, default=None)}"
        self._file = CacheFile(task.temporary_directory("dovetail-lookups"), name)
        self._caching = bool(buckets) and any(side.cache for side in self._sides)

    def caches(self) -> list[SideCache]:
        """Return the caches of the left and of the right side, in this order, that the micro-batch
        before left on this machine. Caches of an earlier micro-batch, of an earlier start of the
        query or of other buckets do not count. Without caches, or without caching, return empty
        ones.
        """
        left = self._file.read(self.batch) if self._caching else None
        return _empty_caches(self._operator) if left is None else left

    def ask(self, side: int, by: Sequence[str], keys: pa.Table) -> Found:
        """Return the rows of a side that have one of ``keys`` in the columns ``by``, as its store
        has them now: ``rows`` in any order, and ``key``, the index among ``keys`` of each row's
        key. Keys without rows give none. The store is asked once for all keys. The worker's open
        reader of the store is used, or a new one is opened and kept.

        ``side``: 0 for the left, 1 for the right. ``keys``: distinct keys without nulls, in columns
        in the order of ``by``. Errors of the store pass.
        """
        return open_reader(self._sides[side].lookup, _returned_columns(self._operator, side)).rows(
            by, keys
        )

    def store_caches(self, caches: Sequence[SideCache]) -> None:
        """Write ``caches``, those of the left and of the right side, to this machine's disk for the
        next micro-batch. Without caching, do nothing.
        """
        if self._caching:
            self._file.write(self.batch, caches)


def _returned_columns(operator: Operator, side: int) -> pa.Schema:
    """Return the Arrow columns of the rows that a side's store returns: the user's columns of that
    side. ``side``: 0 for the left, 1 for the right.
    """
    source = operator.sources[side]
    return pa.schema(source.shape.user_fields)


def _empty_caches(operator: Operator) -> list[SideCache]:
    """Return a list of two caches without entries, of the left side and of the right side."""
    return [SideCache.empty(_returned_columns(operator, side), operator.keys) for side in (0, 1)]


def _without_tombstones(table: pa.Table) -> pa.Table:
    """Return the rows of ``table`` whose ``_deleted`` is false. A static result had no rows before,
    so nothing is taken back from it.
    """
    return table.filter(pc.invert(table.column(DELETED)))


def _with_counts(table: pa.Table, counts: Sequence[int] | None) -> pa.Table:
    """Return ``table`` with an int64 column for each of ``_COUNTS``: null if ``counts`` is None,
    else the counts in that order. With counts the table must have one row, which is no change.
    """
    for index, name in enumerate(_COUNTS):
        column = pa.nulls(len(table), pa.int64()) if counts is None else pa.array([counts[index]])
        table = table.append_column(name, column)
    return table


def _blank_row(schema: pa.Schema, columns: StructType) -> pa.Table:
    """Return a table of one row that is no change, to carry the counts. Its columns are those of
    ``schema``, null, or zero where ``columns`` allows no null. Both have the same columns in order.
    """
    values = [
        pa.nulls(1, field.type)
        if declared.nullable
        else pa.array([0]).cast(pa.int64()).cast(field.type)
        for field, declared in zip(schema, columns, strict=True)
    ]
    return pa.table(values, schema=schema)
