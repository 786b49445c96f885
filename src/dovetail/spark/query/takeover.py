"""A query that takes over from another one, which goes on running until then.

Its state is built beside that query, from a copy of the checkpoint (``migration.frozen_copy``).
Then it *follows*: it processes what the other query has processed since, in micro-batches of its
own that end where one of the other query has ended. These have no sinks.

::

    other query  ─▶ n ─▶ … ─▶ n+20 ─▶ … ─▶ n+23 ─▶ stopped
                    └─▶ 0       └─▶ 1        └─▶ 2 ─▶ 3 ─▶ …

The entry ``FOLLOWS`` in ``dovetail.json`` says which query is the true one. Each step can be
repeated, by the same call or by the start of the query.

| step                     | on disk afterwards                | a restart there            |
|--------------------------|-----------------------------------|----------------------------|
| copy the checkpoint      | initial/former                    | removes it, begins anew    |
| bind, run micro-batch 0  | dovetail.json: "follows", …       | as in ``first_batch``      |
| copy what sources note   | sources/ of the other query       | copies it again            |
| plan a micro-batch       | offsets/1 of the other query      | runs it                    |
| run it                   | state/, commits/1                 | follows further            |
| stop the other query     | its last micro-batch is complete  | follows up to it           |
| take over                | "successor" in the other one's    | follows, and takes over    |
|                          | no "follows" in this one's        | goes on like any query     |

From the entry ``SUCCESSOR`` on, the other query does not start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.query import StreamingQuery

from dovetail.arrays.bucket_labels import bucket_labels
from dovetail.errors import CheckpointError, ConfigurationError, PlanError
from dovetail.physical.routing import Plan
from dovetail.plan.fingerprint import sources_of
from dovetail.plan.spark_sources import spark_sources_of_inputs
from dovetail.platform.files import files_of
from dovetail.platform.progress_bar import progress_bar
from dovetail.platform.sessions import is_remote
from dovetail.platform.spark_errors import convert_folder_errors
from dovetail.spark import time_zone
from dovetail.spark.checkpoints.checkpoint import (
    BEGINNING,
    FOLLOWS,
    SUCCESSOR,
    TIMED,
    CheckpointFile,
    refuse_other_query,
    refuse_other_stages,
)
from dovetail.spark.checkpoints.spark_files import SparkFiles
from dovetail.spark.checkpoints.stores import CheckpointStores
from dovetail.spark.execution.streaming_frames import Streaming
from dovetail.spark.migration import row_files
from dovetail.spark.migration.carried_over import source_positions
from dovetail.spark.migration.forecast import Step
from dovetail.spark.migration.frozen_copy import copy_checkpoint, copy_sources
from dovetail.spark.query import first_batch
from dovetail.spark.query.end_of_input import refuse_ended
from dovetail.spark.query.options import TRIGGER_ONCE
from dovetail.spark.query.planned_batches import is_planned, plan_batch
from dovetail.spark.query.topology_query import TopologyQuery

if TYPE_CHECKING:
    from dovetail.spark.query.writer import StartRequest

ROUNDS: Final = 10
"""The largest count of rounds in which a query follows another one that runs."""
_STOP: Final = "Stop it first, and upgrade as it stands still"


def running_query(operator: str, initial: Any) -> tuple[TopologyQuery | None, Any]:
    """Return a pair. It is (the running query, None) if ``initial`` is a running query, else (None,
    ``initial``). A query that has ended becomes the path of its checkpoint.

    ``operator``: the user's call, to begin errors. Raises ``PlanError`` for a Spark query that
    dovetail has not started.
    """
    if not isinstance(initial, StreamingQuery):
        return None, initial
    if not isinstance(initial, TopologyQuery):
        raise PlanError(
            operator,
            "initial= is a query that write_stream or dt.run has not started",
            "Give one of theirs, or the path of a checkpoint",
        )
    return (initial, None) if initial.isActive else (None, initial.checkpoint)


def refuse_taken_over(
    run: StartRequest, bound: Mapping[str, Any] | None, former: TopologyQuery, *, emits: bool
) -> None:
    """Raise ``CheckpointError`` if ``run`` has begun, is no longer to take over from ``former`` and
    ``former`` still runs: both would write the same changes to the sinks of ``run``. A begun run
    without the entry ``FOLLOWS`` has taken over, or has never followed another query.

    ``former``: the running query given as ``initial=``. ``bound``: the content of ``dovetail.json``
    of ``run``, None before it has begun. ``emits``: True if its sinks also get the initial rows.
    Then it never takes over, and nothing is raised.
    """
    if bound is not None and FOLLOWS not in bound and not emits:
        raise CheckpointError(
            run.title,
            f"the query of {run.checkpoint} has begun, and that of {former.checkpoint}, given as "
            "initial=, runs beside it",
            "Stop the former one, and start this one without initial=",
        )


def prepare_initial_rows(
    run: StartRequest, former: TopologyQuery | None, initial: Any, *, emits: bool
) -> dict[str, Any] | None:
    """Write all initial rows and ``dovetail.json`` of a new checkpoint, and return the content of
    that file. Write nothing and return None if there are no initial rows: no ``former``, no
    ``initial`` and no static source.

    ``former``: the running query that the checkpoint begins with, None for none. ``initial``: the
    value of ``initial=`` if ``former`` is None. ``emits``: True if the sinks get the results of the
    initial rows.

    Errors are those of ``first_batch.prepare_checkpoint``, with a running query those of
    ``store_running_state``. Raises ``TargetError`` if a sink cannot go on with the rows that the
    running query has written.
    """
    if former is not None:
        if not emits:
            refuse_targets(run)
        return store_running_state(run, former.checkpoint, emits=emits)
    if initial is None and not any(source.static for source in sources_of(run.nodes)):
        return None
    return first_batch.prepare_checkpoint(run, initial, emits=emits)


def forecast_of(run: StartRequest, checkpoint: str, *, emits: bool = False) -> list[Step]:
    """Return a ``Step`` for each stage, in order: how it would begin with the state of a running
    query, from which this query would take over. It has the stage's index from 1, its name, the
    beginning in words, the rows to read and the estimated seconds. Nothing is written.

    ``checkpoint``: that of the running query. ``emits``: True if the sinks would get the results of
    the initial rows; then rows that wait are allowed. Raises ``ConfigurationError`` on Spark
    Connect, and for a folder that cannot be read.

    Raises ``CheckpointError`` for a query that has not completed a micro-batch, has rows that wait,
    or removes the files that it has read. Further errors are those of ``first_batch.forecast_of``.
    """
    _refuse_remote(run)
    with convert_folder_errors(run.operator, "initial=", checkpoint):
        bound = CheckpointFile(run.session, checkpoint).binding_of_begun(run.operator)
    if BEGINNING in bound or not files_of(run.session).numbers(f"{checkpoint.rstrip('/')}/commits"):
        raise CheckpointError(
            run.title,
            f"the query of {checkpoint} has not completed a micro-batch yet",
            "Wait until it has",
        )
    if not emits:
        _refuse_waiting(run, checkpoint, bound)
    _refuse_cleaned(run, checkpoint)
    return first_batch.forecast_of(run, checkpoint, emits=emits)


def store_running_state(run: StartRequest, checkpoint: str, *, emits: bool) -> dict[str, Any]:
    """Copy the state of a running query, and store it as the initial rows of a new checkpoint.
    Write ``dovetail.json`` there, and return its content. ``checkpoint``: that of the running
    query.

    ``emits``: True if the sinks get the results of the initial rows. They are then another target,
    so this query does not wait for the other one to stop, and the entry ``FOLLOWS`` is missing.

    Raises the errors of ``forecast_of`` before anything is written, and later those of
    ``first_batch.prepare_checkpoint``.
    """
    steps = forecast_of(run, checkpoint, emits=emits)
    files = files_of(run.session)
    root = files.qualified(checkpoint).rstrip("/")
    former = row_files.folder_of_copy(run.checkpoint)
    with progress_bar(run.session, f"{run.title}: the state of {checkpoint} is copied"):
        copy_checkpoint(run.operator, run.session, root, former)
    if emits:
        return first_batch.prepare_checkpoint(run, former, emits=True)
    follows = {
        "from": root,
        "query": _query_id(run, root),
        "begins": [step.begins for step in steps],
    }
    silent = replace(run, outcomes=())
    return first_batch.prepare_checkpoint(silent, former, emits=False, more={FOLLOWS: follows})


def refuse_targets(run: StartRequest) -> None:
    """Raise ``TargetError`` for a sink of ``run`` that cannot go on with the rows that another
    query has written to its target. Sinks without the method ``refuse_others`` pass.
    """
    for outcome in run.outcomes:
        for sink in outcome.sinks:
            if hasattr(sink, "refuse_others"):
                sink.refuse_others(run.session)


def refuse_another(run: StartRequest, bound: Mapping[str, Any], checkpoint: str) -> None:
    """Raise ``CheckpointError`` unless the query ``run`` is to take over from that of
    ``checkpoint``, by the full path of its folder. ``bound``: the content of ``dovetail.json`` of
    ``run``, with the entry ``FOLLOWS``, which has that path.
    """
    root = bound[FOLLOWS]["from"]
    if files_of(run.session).qualified(checkpoint).rstrip("/") != root:
        raise CheckpointError(
            run.title,
            f"{run.checkpoint} follows the query of {root}, not that of {checkpoint}",
            "Name that one, or begin with a new folder",
        )


def follow_running(run: StartRequest, bound: Mapping[str, Any]) -> None:
    """Process, without sinks, all that a running query has processed, round by round
    (``_follow_once``). Stop after a round that took more than half as long as the one before. So
    there are at least two rounds, and at most ``ROUNDS`` (10). ``bound``: the content of
    ``dovetail.json`` of ``run``. Errors are those of ``_follow_once``.
    """
    before_s = inf
    for _ in range(ROUNDS):
        began_s = monotonic()
        _follow_once(run, bound)
        took_s = monotonic() - began_s
        if took_s > before_s / 2:
            break
        before_s = took_s


def catch_up(run: StartRequest, bound: Mapping[str, Any], query: TopologyQuery | None) -> None:
    """Process, without sinks, all that the other query has processed until its end, so that this
    one may take over. If it runs, stop it first, after some rounds; the micro-batch that it is
    stopped within is completed.

    ``bound``: the content of ``dovetail.json`` of ``run``, with the entry ``FOLLOWS``. The entry
    stays: ``take_over`` must follow. ``query``: the other query, or None if no query of this
    application is the other one.

    Raises ``CheckpointError`` if the other query runs elsewhere, or was stopped within a
    micro-batch. Further errors are those of ``_follow_once`` and ``refuse_targets``, and the
    failure of a micro-batch of either query.
    """
    refuse_targets(run)
    root = bound[FOLLOWS]["from"]
    if query is not None and query.isActive:
        follow_running(run, bound)
        query.stop_after_batch()
    if CheckpointFile(run.session, root).is_running():
        raise CheckpointError(
            run.title,
            f"the query of {root} is running, from which this one takes over",
            "Stop it first, or give it as initial=",
        )
    if is_planned(run.session, root):
        raise CheckpointError(
            run.title,
            f"the query of {root} runs elsewhere, or was stopped within a micro-batch, of which "
            "its sinks may have some",
            "Let it complete that one: start it once more with trigger={'availableNow': True}",
        )
    batch = _follow_once(run, bound)
    if max(files_of(run.session).numbers(f"{root}/commits")) != batch:
        raise CheckpointError(
            run.title,
            f"the query of {root} still runs, in another application",
            "Stop it there, then start this one again",
        )


def take_over(run: StartRequest, bound: Mapping[str, Any]) -> None:
    """Let a query that has caught up replace the one that it follows: that one does not start any
    more. Write the entry ``SUCCESSOR`` to ``dovetail.json`` of the other query, then remove
    ``FOLLOWS`` from its own.

    ``bound``: the content of that file of ``run``, with ``FOLLOWS``. Raises ``CheckpointError`` if
    the checkpoint of the other query is gone.
    """
    other = CheckpointFile(run.session, bound[FOLLOWS]["from"])
    other.write({**other.binding_of_begun(run.title), SUCCESSOR: run.file.full_path()})
    run.file.write({name: value for name, value in bound.items() if name != FOLLOWS})


def _follow_once(run: StartRequest, bound: Mapping[str, Any]) -> int:
    """Process, without sinks, all that the other query, from which ``run`` is to take over, has
    processed since the last call. Wait for that. Return the id of the other query's last committed
    micro-batch.

    ``bound``: the content of ``dovetail.json`` of ``run``, with the entry ``FOLLOWS``. The other
    query must have committed a micro-batch. Raises ``CheckpointError`` if the plan or the time zone
    of ``run`` has changed. So it does if the other query is gone, has begun anew or has ended.
    Raises ``ConfigurationError`` if Spark does not start a query, and ``StreamingQueryException``
    if a micro-batch fails.
    """
    run = replace(run, outcomes=())
    session, root = run.session, bound[FOLLOWS]["from"]
    refuse_other_query(bound, run.nodes, run.title, {"buckets": run.buckets})
    plan = run.plan(bound["buckets"])
    refuse_other_stages(bound, plan, run.title)
    if is_planned(session, run.checkpoint):
        _run_planned(run, bound, plan)
    if _query_id(run, root) != bound[FOLLOWS]["query"]:
        raise CheckpointError(
            run.title,
            f"the query of {root} was set back or begun anew since {run.checkpoint} follows it",
            "Begin again, with a new folder",
        )
    other = CheckpointFile(session, root).binding_of_begun(run.title)
    refuse_ended(session, root, other, run.title)
    batch = max(files_of(session).numbers(f"{root}/commits"))
    stored = CheckpointStores.without_state(run.operator, SparkFiles(session, root), other, batch)
    offsets, pairs = source_positions(stored, plan, run.nodes)
    copy_sources(run.operator, session, root, run.checkpoint, pairs)
    if plan_batch(session, run.checkpoint, until=offsets):
        _run_planned(run, bound, plan)
    return batch


def _run_planned(run: StartRequest, bound: Mapping[str, Any], plan: Plan) -> None:
    """Run the micro-batch of ``run`` that is planned, without sinks, and wait for its end. A
    progress bar shows it. ``run`` must have no outcomes, and follow another query. ``bound``: the
    content of its ``dovetail.json``, with the entry ``FOLLOWS``; ``plan``: its plan.

    The empty file that is read in place of static tables is written if it is missing. Raises
    ``ConfigurationError`` if Spark does not start the query, and ``StreamingQueryException`` if the
    micro-batch fails. Raises ``CheckpointError`` for another time zone (``time_zone.zone_of``).
    """
    session, sources = run.session, sources_of(run.nodes)
    stages = Streaming(
        bucket_labels(plan.buckets),
        bound["partitions"],
        timers=True,
        sources=row_files.stored_static_sources(session, run.checkpoint, sources),
    )
    zone = time_zone.time_zone_setting(session, time_zone.zone_of(run, bound))
    doing = f"it follows the query of {bound[FOLLOWS]['from']}"
    first_batch.run_to_end(run, plan, stages, zone, TRIGGER_ONCE, doing)


def _query_id(run: StartRequest, root: str) -> str:
    """Return Spark's id of the query whose checkpoint is the folder ``root``. Raises
    ``CheckpointError`` if the folder has no such query, as when it was removed.
    """
    text = files_of(run.session).text(f"{root}/metadata")
    if text is None:
        raise CheckpointError(
            run.title,
            f"the checkpoint {root} is gone, whose query this one follows",
            "Bring it back, or begin again with a new folder",
        )
    return str(json.loads(text)["id"])


def _refuse_remote(run: StartRequest) -> None:
    """Raise ``ConfigurationError`` if the request's session is one of Spark Connect."""
    if is_remote(run.session):
        raise ConfigurationError(
            run.operator,
            "Spark Connect cannot write files into a checkpoint, as it is needed to take over from "
            "a query",
            "Start the query in a classic session for the first time; it may go on here",
        )


def _refuse_waiting(run: StartRequest, checkpoint: str, bound: Mapping[str, Any]) -> None:
    """Raise ``CheckpointError`` if the topology of ``run`` or of ``checkpoint`` holds rows back by
    the clock (``align=``, ``idle=``). Only the running query knows which of them have come out.
    ``bound``: the content of ``dovetail.json`` of ``checkpoint``.
    """
    parts = (part for node in run.nodes for part in node.walk())
    here = run.idle is not None or any(part.longest_align_us is not None for part in parts)
    there = TIMED in bound or '"align": true' in json.dumps(bound["plan"])
    if here or there:
        raise CheckpointError(
            run.title,
            f"rows of {run.title if here else f'the query of {checkpoint}'} wait for other inputs "
            "(align=, idle=), so nobody knows where another query takes over",
            _STOP,
        )


def _refuse_cleaned(run: StartRequest, checkpoint: str) -> None:
    """Raise ``CheckpointError`` if ``run`` has a source of files that Spark removes or moves once
    they are read (``cleanSource``). ``checkpoint``: the name in the error.
    """
    for source, leaf in spark_sources_of_inputs(sources_of(run.nodes)):
        if leaf.options.get("cleansource", "off").lower() != "off":
            raise CheckpointError(
                run.title,
                f"the query of {checkpoint} removes files of {source.name} once it has read them "
                "(cleanSource)",
                _STOP,
            )
