"""Starts a topology as a streaming query, bound to its checkpoint.

A table above ``start_query`` has the steps. Its words mean:

- prepare: ``prepare_checkpoint``; finish: ``finish_first_batch``;
- store: ``store_running_state``; catch up: ``catch_up``; columns: ``_with_former_columns``;
- to end: ``TRIGGER_ALL``; once: ``TRIGGER_ONCE``.

The *binding* of a checkpoint is the content of its file ``dovetail.json``, a dict by the keys in
``checkpoints.checkpoint``.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import fspath
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from dovetail.arrays.bucket_labels import bucket_labels
from dovetail.base.validation import Path, Rule
from dovetail.engine.idle import IdleRules, idle_us
from dovetail.errors import CheckpointError, ConfigurationError, DovetailWarning, PlanError
from dovetail.physical.fragment import Emit
from dovetail.physical.planner import plan_of
from dovetail.physical.routing import Plan
from dovetail.plan.begun_columns import without_new_columns
from dovetail.plan.dead_letters import DeadLetters
from dovetail.plan.fingerprint import in_checkpoint_order, refuse_alike, sources_of
from dovetail.plan.joins.stream_table_join import sources_that_wait
from dovetail.plan.nodes import Node
from dovetail.plan.types.spans import Span
from dovetail.platform import delta_tables, spark_errors
from dovetail.spark import time_zone
from dovetail.spark.checkpoints.checkpoint import (
    BEGINNING,
    CHECKPOINT_PATH,
    FOLLOWS,
    LOADING,
    RUNS,
    SEEDED,
    TIMED,
    TIMEZONE,
    binding_of,
    refuse_other_query,
    refuse_other_stages,
    refuse_repartitioning,
)
from dovetail.spark.execution.delta_join import refuse_unreachable
from dovetail.spark.execution.frames import session_of
from dovetail.spark.execution.static_frames import changelog as static_changelog
from dovetail.spark.execution.streaming_frames import Streaming
from dovetail.spark.log_lines import quieten
from dovetail.spark.metrics.query_parts import QueryParts, parts_of
from dovetail.spark.migration import first_load, row_files
from dovetail.spark.query import end_of_input, first_batch, folders, query_log, takeover
from dovetail.spark.query.options import (
    BUCKETS_DEFAULT,
    TRIGGER_ALL,
    TRIGGER_ONCE,
    QueryOptions,
    trigger_arguments,
    with_defaults,
)
from dovetail.spark.query.planned_batches import is_planned, plan_wake_up
from dovetail.spark.query.results import Outcome, Sink, outcomes_for_both_runs
from dovetail.spark.query.topology_query import StartNext, TopologyQuery
from dovetail.spark.query.writer import (
    PARTITIONS,
    PROVIDER,
    ROCKSDB,
    SETTINGS_TO_END,
    START_LOCK,
    StartRequest,
    has_several_sinks,
    has_timers,
    query_settings,
    rows_of_plan,
    start_with_sources,
    writer_of,
)
from dovetail.spark.workers import prepare_workers

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_RUNS_KEPT = 20
"""The number of starts that a binding remembers. More may not pass before one repeats a micro-batch
that another has planned."""
A_SINK = "what dt.to_parquet(...), dt.to_delta(...) or another of dovetail's sinks returns"
ASink: TypeAlias = Annotated[Sink, Rule(A_SINK)]


def changelog(node: Node, *, emit: Emit, buckets: int | None) -> DataFrame:
    """Return the changelog of ``node`` as a frame of key, values, ``_change``, ``_timestamp`` and
    ``_position``. It streams, under the session's own settings, unless all inputs are static; then
    it is one batch. Nothing is started.

    ``emit``: ``"change"`` for each change, ``"batch"`` for the last change of each key in a
    micro-batch. ``buckets``: the count of buckets. None stands for ``BUCKETS_DEFAULT``, over static
    inputs for the session's count of shuffle partitions.

    Raises ``ConfigurationError`` if the session was stopped and, if the frame streams, if the
    session's state store is not RocksDB. Raises ``PlanError`` for a streaming node with
    ``load="first"``, and for static inputs beside streaming ones. Also for inputs that cannot be
    told apart, and for a node that cannot be emitted so.
    """
    session_of(node)
    if is_static(node):
        return static_changelog(node, emit=emit, buckets=buckets)
    session = streaming_session(node)
    refuse_static("changelog", node)
    if sources_that_wait(node):
        raise PlanError(
            node.name,
            "load='first' needs two queries on one checkpoint, which a frame cannot start",
            "Use write_stream or dt.run, or leave load= out",
        )
    if session.conf.get(PROVIDER) != ROCKSDB:
        raise ConfigurationError(
            node.name,
            "the session's state store is not RocksDB, which the stage needs",
            f"Set {PROVIDER} to {ROCKSDB}, or use write_stream, which does it for its query",
        )
    partitions = int(str(session.conf.get(PARTITIONS)))
    count = BUCKETS_DEFAULT if buckets is None else buckets
    plan = plan_of([node], buckets=count, emit=emit)
    streaming = Streaming(bucket_labels(count), partitions, timers=False)
    return rows_of_plan(plan, session, streaming, packed=False)


def is_static(node: Node) -> bool:
    """Return True if each source at or below ``node`` has a static frame. A source with a streaming
    frame or without a frame makes it False.
    """
    frames = [source.frame for source in node.origins]
    return all(frame is not None and not frame.isStreaming for frame in frames)


# The steps of a start, by its arguments and by what the checkpoint's file records:
#
# | checkpoint             | arguments              | before the query | trigger          |
# |------------------------|------------------------|------------------|------------------|
# | new                    | others                 |                  | as given         |
# | new                    | ``initial=``           | prepare, finish  | as given         |
# | new                    | a table that is static | prepare, finish  | as given         |
# | new                    | a running query        | store, catch up  | as given         |
# | following              | any                    | catch up         | as given         |
# | prepared, not finished | any                    | columns, finish  | as given         |
# | begun                  | others                 | columns          | as given         |
# | new                    | ``load="first"``       |                  | to end, as given |
# | begun, still loading   | others                 | columns          | to end, as given |
# | begun                  | ``close_at_end=True``  | columns          | to end, once     |
# | begun, its end planned | ``close_at_end=True``  | columns          | once             |
#
# So a start that was killed between two steps is taken up by the next start.
def start_query(
    operator: str,
    outcomes: Sequence[Outcome],
    checkpoint: Path,
    options: QueryOptions,
) -> StreamingQuery:
    """Start the query of these results, bound to its checkpoint, and return it as a
    ``TopologyQuery``. A checkpoint with initial rows first runs its first micro-batch.

    ``operator``: the call, for errors. ``outcomes``: each result with its sinks. ``checkpoint``:
    its folder. ``options``: those of the user's call; missing ones get their defaults.

    | raises | for |
    |---|---|
    | ``PlanError`` | options or inputs that do not fit together, folders that overlap |
    | ``CheckpointError`` | a checkpoint of another query, that has ended, or whose query runs |
    | ``TakenOverError`` | a checkpoint that was taken over |
    | ``ConfigurationError`` | what the session lacks, or what Spark refuses |
    | ``TargetError`` | a target that is gone, or cannot take the result |
    | ``StreamingQueryException`` | a first micro-batch that fails |
    """
    given = with_defaults(options)
    trigger = trigger_arguments(operator, given["trigger"])
    initial, emit_initial, name = given["initial"], given["emit_initial"], given["query_name"]
    close_at_end, idle = given["close_at_end"], given["idle"]
    _refuse_options_of_end(operator, trigger, close_at_end, idle)
    if emit_initial and initial is None:
        raise PlanError(operator, "emit_initial= is given without initial=", "Give both")
    former, initial = takeover.running_query(operator, initial)
    outcomes = _in_checkpoint_order(outcomes)
    nodes = [outcome.node for outcome in outcomes if not isinstance(outcome.node, DeadLetters)]
    session = streaming_session(*nodes)
    prepare_workers(session)
    if close_at_end:
        end_of_input.refuse_remote(operator, session)
    outcomes = outcomes_for_both_runs(outcomes, name, closes=close_at_end)
    run = StartRequest(
        operator,
        nodes,
        outcomes,
        fspath(checkpoint),
        given["emit"],
        given["buckets"],
        given["partitions"],
        idle,
    )
    with spark_errors.convert_folder_errors(operator, "checkpoint=", run.checkpoint):
        bound = run.file.read(run.title)
    if bound is not None:
        run.file.refuse_succeeded(bound, run.title)
    _refuse_second_query(run)
    folders.refuse_overlaps(run)
    folders.warn_of_files(run)
    if bound is not None:
        run = _with_former_columns(run, bound)
    if former is not None:
        takeover.refuse_taken_over(run, bound, former, emits=emit_initial)
    if bound is None:
        bound = takeover.prepare_initial_rows(run, former, initial, emits=emit_initial)
    begins = query_log.describe_beginning(bound)
    if bound is not None:
        run, bound = _run_first_batch(run, bound, former)
    asked = _CallOptions(trigger, name, close_at_end)
    if bound is not None and end_of_input.is_closing(run, bound, asked=close_at_end):
        query, parts = _start_query(run, bound, TRIGGER_ONCE, name, closes=True)
        query_log.log_start(run, query, begins)
        return TopologyQuery.of(query, run.title, parts, run.checkpoint)
    if LOADING in (first_load.loading_entry(run.nodes) if bound is None else bound):
        first_load.refuse_remote(operator, session)
        return _start_with_load(run, bound, asked, begins)
    query, parts = _start_query(run, bound, trigger, name)
    query_log.log_start(run, query, begins)
    return TopologyQuery.of(
        query,
        run.title,
        parts,
        run.checkpoint,
        asked.closing_queries(run),
        closes=close_at_end,
        rest=asked.completing_query(run),
    )


def _run_first_batch(
    run: StartRequest, bound: dict[str, Any], former: TopologyQuery | None
) -> tuple[StartRequest, dict[str, Any]]:
    """Do the steps that are left before the query can start, as ``bound`` lists them. Return the
    run and the new content of ``dovetail.json`` with which it starts.

    ``bound``: the present content of that file. With the entry ``BEGINNING``, run the first
    micro-batch. The returned run then has sinks that go on after another Spark query
    (``Outcome.across_runs``). With ``FOLLOWS``, catch up with the query that this one follows, and
    stop that one. Without both, return the arguments. ``former``: the running query given as
    ``initial=``; None if there is none.

    Errors are those of ``first_batch.finish_first_batch`` and ``takeover.catch_up``. Raises
    ``CheckpointError`` if this query follows another one than ``former``.
    """
    follows = FOLLOWS in bound
    if BEGINNING in bound:
        run = replace(run, outcomes=[outcome.across_runs() for outcome in run.outcomes])
        bound = first_batch.finish_first_batch(replace(run, outcomes=()) if follows else run, bound)
    if follows:
        if former is not None:
            takeover.refuse_another(run, bound, former.checkpoint)
        takeover.catch_up(run, bound, former)
    return run, bound


class _CallOptions(NamedTuple):
    """The trigger, the name and the end of a query, as its call gives them."""

    trigger: Mapping[str, Any]
    name: str | None
    close_at_end: bool

    def closing_queries(self, run: StartRequest) -> list[StartNext]:
        """Return a list with the function that starts the query that closes the end of the input.
        Without ``close_at_end`` the list is empty. Nothing is started here. ``run``: the request of
        the query that has read all input.

        That function plans the end, starts the query and returns it. It returns None if no end can
        be planned (``plan_end``), and raises the errors of ``_start_query``.
        """

        def close() -> StreamingQuery | None:
            """Plan the end of the input, start its micro-batch and return the query. Return None if
            no end can be planned.
            """
            if not end_of_input.plan_end(run):
                return None
            bound = run.file.read(run.title)
            last, _ = _start_query(run, bound, TRIGGER_ONCE, self.name, closes=True)
            query_log.log_start(run, last, "it closes the end of its input")
            return last

        return [close] if self.close_at_end else []

    def completing_query(self, run: StartRequest) -> StartNext:
        """Return a function that starts a query of the one micro-batch that is planned and not
        complete. Nothing is started here. ``run``: the request of a query that must have been
        stopped when the function is called.

        That function returns the query, or None if all planned micro-batches are complete. It
        raises the errors of ``_start_query``, and ``ConfigurationError`` on Spark Connect.
        """

        def complete() -> StreamingQuery | None:
            """Start a query of the incomplete micro-batch and return it; None if there is none."""
            if not is_planned(run.session, run.checkpoint):
                return None
            query, _ = _start_query(run, run.file.read(run.title), TRIGGER_ONCE, self.name)
            return query

        return complete


def _start_with_load(
    run: StartRequest, bound: Mapping[str, Any] | None, asked: _CallOptions, begins: str
) -> StreamingQuery:
    """Start the query that reads tables to their end, and return it as a ``TopologyQuery``. The
    real query follows it, and with ``close_at_end`` the one that closes the input. Streams that
    wait for these tables are held back until the real query starts.

    ``bound``: the content of ``dovetail.json``, None for a new checkpoint. ``asked``: the user's
    options for the real query. ``begins``: the beginning of the query in words, for the log. Errors
    are those of ``_start_query``.
    """
    run = replace(run, outcomes=[outcome.across_runs() for outcome in run.outcomes])

    def begin() -> StreamingQuery:
        """Write to ``dovetail.json`` that the tables are loaded, start the real query and return
        it.
        """
        real, _ = _start_query(run, first_load.note_loaded(run), asked.trigger, asked.name)
        query_log.log_start(run, real, "its tables are loaded")
        return real

    query, parts = _start_query(run, bound, TRIGGER_ALL, asked.name, loads=True)
    query_log.log_start(run, query, f"{begins}; {first_load.describe_held_sources(run.nodes)}")
    follow = [begin, *asked.closing_queries(run)]
    return TopologyQuery.of(
        query,
        run.title,
        parts,
        run.checkpoint,
        follow,
        closes=asked.close_at_end,
        loads=True,
    )


def _with_former_columns(run: StartRequest, bound: Mapping[str, Any]) -> StartRequest:
    """Return the run with the columns that its checkpoint began with; the run itself if there are
    no new ones. ``bound``: the content of the checkpoint's ``dovetail.json``.

    Columns that have come since, as from a registry, are left out with a ``DovetailWarning``.
    """
    began, new = without_new_columns(run.nodes, bound["topology"], bound["plan"])
    if not new:
        return run
    warnings.warn(
        f"{run.title}: the checkpoint began without {', '.join(new)}, so it goes on without. Go on "
        "in a new checkpoint, with initial= this one, to have what is new.",
        DovetailWarning,
        stacklevel=2,
    )
    outcomes = _in_checkpoint_order(
        [replace(outcome, node=began.get(outcome.node, outcome.node)) for outcome in run.outcomes]
    )
    nodes = [outcome.node for outcome in outcomes if not isinstance(outcome.node, DeadLetters)]
    return replace(run, nodes=nodes, outcomes=outcomes)


def _refuse_options_of_end(
    operator: str, trigger: Mapping[str, Any], close_at_end: bool, idle: Span | None
) -> None:
    """Raise ``PlanError`` if ``close_at_end`` is True and ``trigger`` is not ``TRIGGER_ALL``, or if
    ``idle`` is given and ``trigger`` is ``TRIGGER_ALL``. ``operator``: the user's call, to begin
    errors. ``trigger``: arguments of ``DataStreamWriter.trigger``.
    """
    if close_at_end and trigger != TRIGGER_ALL:
        raise PlanError(
            operator,
            "close_at_end= is given without trigger={'availableNow': True}, so there is no end",
            "Give both, or neither",
        )
    if idle is not None and trigger == TRIGGER_ALL:
        raise PlanError(
            operator,
            "idle= is given with trigger={'availableNow': True}, which waits for nothing",
            "Leave it out; close_at_end=True ends all waiting",
        )


def _start_query(
    run: StartRequest,
    bound: Mapping[str, Any] | None,
    trigger: Mapping[str, Any],
    name: str | None,
    *,
    closes: bool = False,
    loads: bool = False,
) -> tuple[StreamingQuery, QueryParts]:
    """Start the query and return it as Spark does, with its parts for progress figures. Before
    that, write ``dovetail.json`` of a new checkpoint, or its changed entries of a begun one. With
    the entry ``FOLLOWS``, take over from the other query, with which this one must have caught up.

    ``bound``: the content of ``dovetail.json``, None for a new checkpoint. ``trigger``: arguments
    of ``DataStreamWriter.trigger``. ``name``: the query's name in Spark, None for none. ``closes``:
    True to run the planned micro-batch that ends all inputs. ``loads``: True to hold back the
    streams that wait for tables.

    While it starts, the session has the query's settings, and other starts wait.

    Raises ``CheckpointError`` if ``bound`` does not fit, and ``PlanError`` for the name of a
    running query. Raises ``ConfigurationError`` if Spark refuses or a lookup store cannot be
    reached, and ``TargetError`` for a target that is gone. Sinks raise their own errors.
    """
    if bound is None:
        count, partitions = run.bucket_and_partition_counts()
        plan = run.plan(count)
    else:
        refuse_repartitioning(bound, run.title)
        asked = {"buckets": run.buckets, "partitions": run.partitions}
        refuse_other_query(bound, run.nodes, run.title, asked)
        count, partitions = bound["buckets"], bound["partitions"]
        plan = run.plan(count)
        refuse_other_stages(bound, plan, run.title)
    timed = run.idle is not None if bound is None else TIMED in bound
    timers, ends = has_timers(plan, timed=timed), trigger in (TRIGGER_ALL, TRIGGER_ONCE)
    idle = _idle_rules(run, bound, plan, timed=timed)
    plan = replace(plan, idles=idle is not None)
    refuse_unreachable(run.session, plan)
    entries = _binding_entries(run, bound)
    used = query_settings(run.session, partitions) | (SETTINGS_TO_END if ends and timers else {})
    used |= time_zone.time_zone_setting(run.session, entries[TIMEZONE])
    # Queries that start at the same time take turns, so that each sees the session unchanged.
    with START_LOCK, delta_tables.temporary_settings(run.session, used | run.file.settings()):
        _refuse_used_name(run.operator, run.session, name)
        if idle is not None:
            entries[RUNS] = idle.runs
        if bound is not None and any(bound.get(name) != value for name, value in entries.items()):
            run.file.write({**bound, **entries})
        if bound is not None and not ends and timers:
            plan_wake_up(run)
        blobs = first_batch.blobs_taken_over(run) if bound is not None and SEEDED in bound else {}
        sources = row_files.stored_static_sources(
            run.session, run.checkpoint, sources_of(run.nodes)
        )
        if loads:
            sources |= first_load.held_back_sources(run.session, run.checkpoint, run.nodes)
        streaming = Streaming(
            bucket_labels(count),
            partitions,
            timers=True,
            initial=blobs,
            sources=sources,
            closing=closes,
            timed=timed,
            idle=idle,
        )
        writer = writer_of(run.outcomes, plan, streaming, run.checkpoint).trigger(**trigger)
        if name is not None:
            writer = writer.queryName(name)
        if bound is not None and FOLLOWS in bound:
            takeover.take_over(run, {**bound, **entries})
        if bound is None:
            # Before Spark writes anything there, so that no state is ever unbound.
            with spark_errors.convert_folder_errors(run.operator, "checkpoint=", run.checkpoint):
                more = entries if idle is None else {**entries, TIMED: True}
                more |= {LOADING: True} if loads else {}
                run.file.write(binding_of(run.nodes, plan, partitions=partitions, **more))
        with spark_errors.convert_spark_errors(
            run.title, "Spark does not start its query", "Mend what it names"
        ):
            return start_with_sources(writer), parts_of(
                plan, streaming, run.nodes, run.outcomes, run.title
            )


def _binding_entries(run: StartRequest, bound: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the entries of ``dovetail.json`` on the surroundings of a query, by key. Nothing is
    written.

    - ``at``: the checkpoint's present full path.
    - ``timezone``: the zone that the checkpoint began in; that of the session for a new one.
    - ``read``: a list of the full paths of the folders whose files the query reads.
    - ``written``: the targets by identity: the full path of a folder, else the sink's title. Each
      has the id of the last micro-batch before it became a target, -1 for none. Former targets are
      dropped.

    ``bound``: the file's content before, None for a new checkpoint. Raises ``TargetError`` for a
    target that was written and is gone. Raises ``CheckpointError`` for files read from another
    folder, and for expressions that are bound to another time zone.
    """
    zone = time_zone.zone_of(run, bound)
    return {
        CHECKPOINT_PATH: run.file.full_path(),
        TIMEZONE: zone,
        folders.READ: folders.folders_read(run, bound),
        folders.WRITTEN: folders.written_targets(
            run, bound, alone=not has_several_sinks(run.outcomes)
        ),
    }


def _idle_rules(
    run: StartRequest, bound: Mapping[str, Any] | None, plan: Plan, *, timed: bool
) -> IdleRules | None:
    """Return the rules by which stages let stream time go on when no input comes; None if not
    ``timed``. They list the last ``_RUNS_KEPT`` (20) starts of the query, this one last. Each start
    is a pair of its wall-clock time and its ``idle=``, both in microseconds; the latter is None
    without it.

    ``bound``: the content of ``dovetail.json``, None for a new checkpoint. ``timed``: True if all
    stages have timers, as in a query that began with ``idle=``.

    Raises ``CheckpointError`` for ``idle=`` if the query has begun without it. Raises ``PlanError``
    for ``idle=`` that is no span, or if nothing waits for stream time.
    """
    if run.idle is not None and not timed:
        raise CheckpointError(
            run.title,
            f"idle= is given, and the query of {run.checkpoint} has begun without",
            "Leave it out, or go on in a new checkpoint: initial= the former one, with idle=",
        )
    if not timed:
        return None
    span_us = None if run.idle is None else idle_us(run.operator, run.idle, plan)
    before = [tuple(past_run) for past_run in (bound or {}).get(RUNS, [])]
    return IdleRules((*before[1 - _RUNS_KEPT :], (time.time_ns() // 1000, span_us)))


def _in_checkpoint_order(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes sorted by the fingerprints of their results, as a checkpoint lists them,
    the dead letters last. No two outcomes may have the same result.
    """
    letters = [outcome for outcome in outcomes if isinstance(outcome.node, DeadLetters)]
    by_node = {outcome.node: outcome for outcome in outcomes if outcome not in letters}
    return [*(by_node[node] for node in in_checkpoint_order([*by_node])), *letters]


def _refuse_second_query(run: StartRequest) -> None:
    """Raise ``CheckpointError`` if a query of the run's checkpoint is running (``is_running``).
    Spark would silently stop that query.
    """
    if run.file.is_running():
        raise CheckpointError(
            run.title,
            f"a query of the checkpoint {run.checkpoint} is running",
            "Stop it first, or give this one another checkpoint=",
        )


def _refuse_used_name(operator: str, session: SparkSession, name: str | None) -> None:
    """Raise ``PlanError`` if a running query of the session has this name. Without a name, do
    nothing. ``operator``: the call, for the error.
    """
    if name is not None and any(query.name == name for query in session.streams.active):
        raise PlanError(
            operator,
            f"query_name={name!r} is that of a query that runs",
            "Stop that one, or give this one another name",
        )


def streaming_session(*nodes: Node) -> SparkSession:
    """Return the Spark session of ``nodes``, one or more, and turn off log lines of Spark that
    mislead (``quieten``).

    Raises ``PlanError`` for an input without a streaming frame, apart from static ones beside
    streaming ones, and for inputs that cannot be told apart. Raises ``ConfigurationError`` for a
    stopped session.
    """
    sources = sources_of(nodes)
    for source in sources:
        if source.frame is not None:
            spark_errors.refuse_stopped(source.title, source.frame.sparkSession)
    changing = [source for source in sources if not source.static] or sources
    for source in changing:
        if source.frame is None or not source.frame.isStreaming:
            raise PlanError(
                source.title,
                "its frame is not a streaming one",
                "Read it with spark.readStream; over frames that all are static, use changelog()",
            )
    refuse_alike(*nodes)
    session = session_of(nodes[0])
    quieten(session)
    return session


def refuse_static(operator: str, node: Node) -> None:
    """Raise ``PlanError`` if ``node`` has a static input beside one that is not: a query without a
    checkpoint cannot keep the static rows. ``operator``: the call, for errors.
    """
    for source in node.origins:
        if source.static and not is_static(node):
            raise PlanError(
                operator,
                f"{source.name} is static, so its rows must be kept in a query's checkpoint",
                "Use write_stream, or dt.run, where dt.dead_letters is a result",
            )
