"""The begin of a query with initial rows: the rows of static frames, or the state of another query.

The initial rows lie in files in the checkpoint (``spark.migration.row_files``). By default a
separate query reads them into a checkpoint of its own. The first micro-batch of the real query
takes over that state. This needs only what Spark Connect has, too.

There are two reasons for a first micro-batch of the real query to read the rows instead: its sinks
are to get the results, or it goes on where another query stopped
(``spark.migration.stored_inputs``). The checkpoint is then rewritten as if this micro-batch had
read the sources. Each step can be repeated; ``dovetail.json`` lists the steps that are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike, fspath
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from dovetail.errors import ConfigurationError
from dovetail.physical.routing import Plan
from dovetail.physical.stage import Stage
from dovetail.plan.dead_letters import DeadLetters, leaving_out
from dovetail.plan.fingerprint import origins_of
from dovetail.plan.nodes import Derived, Node
from dovetail.plan.views import parts_of
from dovetail.platform import delta_tables
from dovetail.platform.files import files_of
from dovetail.platform.sessions import is_remote
from dovetail.platform.spark_errors import reaching, refused
from dovetail.spark.checkpoints.checkpoint import (
    BEGINNING,
    SEEDED,
    TIMED,
    CheckpointFile,
    binding_of,
    reads_of,
    refuse_other_stages,
    refuse_repartitioning,
    refuse_unfit,
)
from dovetail.spark.checkpoints.stores import CheckpointStores, refuse_unreadable
from dovetail.spark.execution.buckets import bucket_labels
from dovetail.spark.migration import initial_rows, row_files, stored_inputs
from dovetail.spark.migration.first_stages import FirstStages
from dovetail.spark.query.end_of_input import refuse_ended
from dovetail.spark.query.topology_query import TopologyQuery
from dovetail.spark.query.writer import (
    STARTING,
    TO_END,
    StartRequest,
    has_timers,
    settings,
    writer_of,
)

_REMEDY = "Mend what it names"


def prepared(
    run: StartRequest, initial: Mapping[str, DataFrame] | str | PathLike[str] | None, *, emits: bool
) -> dict[str, Any]:
    """Return the binding of a checkpoint that has not begun, with all initial rows stored.

    ``emits``: whether the sinks get the results of the initial rows. Those of static tables alone
    always reach the sinks if they give rows.

    Raises ``PlanError`` for frames that do not fit, and ``CheckpointError`` for a checkpoint to go
    on from that cannot be used. Both are raised before anything is written.
    """
    if initial is None:
        initial, emits = {}, any(map(_says_by_itself, run.nodes))
    if isinstance(initial, Mapping) and not emits and not _has_letters(run):
        return _apart(run, initial_rows.rows_of(run.operator, run.nodes, initial))
    if is_remote(run.session):
        raise ConfigurationError(
            run.operator,
            "Spark Connect cannot write files into a checkpoint, as emit_initial=, initial= with a "
            "checkpoint and a static table whose rows come out by themselves need it",
            "Start the query in a classic session for the first time; it may go on here",
        )
    if isinstance(initial, Mapping):
        rows = initial_rows.rows_of(run.operator, run.nodes, initial)
        count, partitions = run.numbers()
        plan = run.plan(count)
        never = [None] * sum(leaves or 0 for leaves in reads_of(plan.reads)[0])
        left: dict[str, Any] = {"offsets": never, "sources": []} | _written(run, plan, rows)
    else:
        stored = _standing(run, fspath(initial))
        count, partitions = run.numbers(stored.buckets)
        plan = run.plan(count)
        left = _with_state(run, stored, plan, emits=emits)
    left["emits"] = emits
    return _bind(run, plan, partitions, {BEGINNING: left})


def _says_by_itself(node: Node) -> bool:
    """Say whether static tables may give results or dead letters without any other input."""
    return node.begins or any(entry.begins for part in leaving_out(node) for entry in part.inputs)


def _has_letters(run: StartRequest) -> bool:
    """Say whether the initial rows may give dead letters.

    Dead letters go to their sink even if the results are not emitted. On Spark Connect they do not,
    because it cannot begin with such a micro-batch.
    """
    asked = any(isinstance(outcome.node, DeadLetters) for outcome in run.outcomes)
    fail = any(True for node in run.nodes for _ in leaving_out(node))
    return asked and fail and not is_remote(run.session)


def finished(run: StartRequest, bound: Mapping[str, Any]) -> dict[str, Any]:
    """Run the first micro-batch, if it is not done; return the binding that holds from then on."""
    asked = {"buckets": run.buckets, "partitions": run.partitions}
    refuse_unfit(bound, run.nodes, run.title, asked)
    left = bound[BEGINNING]
    if not run.file.has_committed():
        plan = run.plan(bound["buckets"])
        refuse_other_stages(bound, plan, run.title)
        seeding = _seeding(run, plan, bound["partitions"], left)
        seeding.timed = TIMED in bound
        _complete(run, plan, seeding)
    _going_on(run.session, run.checkpoint, left)
    binding = {name: value for name, value in bound.items() if name != BEGINNING}
    run.file.write(binding)
    return binding


def steps(run: StartRequest, bound: Mapping[str, Any]) -> list[tuple[int, str, str]]:
    """Return for each stage its number (from 1), its node's name, and the way in which it
    begins.
    """
    stages = run.plan(bound["buckets"]).stages
    begins = zip(stages, bound[BEGINNING]["begins"], strict=True)
    return [
        (stage_number, stage.node.name, how)
        for stage_number, (stage, how) in enumerate(begins, start=1)
    ]


def taken_over(run: StartRequest) -> dict[str, DataFrame]:
    """Return the blobs that the first micro-batch takes over, by the fingerprint of a stage.

    Once that micro-batch is done, return none and remove the files.
    """
    if not run.file.has_committed():
        return row_files.blobs_of(run.operator, run.session, run.checkpoint)
    row_files.remove(run.session, run.checkpoint)
    return {}


def _apart(run: StartRequest, rows: Mapping[Any, DataFrame]) -> dict[str, Any]:
    """Process the initial rows in a checkpoint of their own; return the real checkpoint's
    binding.
    """
    refuse_unreadable(run.operator, run.checkpoint)
    sources = origins_of(run.nodes)
    frames = [
        rows[source] if source in rows else row_files.empty(run.session, source)
        for source in sources
    ]
    with refused(run.title, "the frames of initial= cannot be stored", _REMEDY):
        row_files.write(run.session, run.checkpoint, frames)
    apart = replace(run, outcomes=(), checkpoint=row_files.folder_of(run.checkpoint))
    count, partitions = apart.numbers()
    plan = apart.plan(count)
    begun = row_files.read(run.session, run.checkpoint, sources)
    seeding = FirstStages(bucket_labels(count), partitions, timers=True, sources=begun)
    apart.file.write(binding_of(run.nodes, plan, partitions=partitions))
    _complete(apart, plan, seeding)
    return _bind(run, plan, partitions, {SEEDED: True})


def _bind(
    run: StartRequest, plan: Plan, partitions: int, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the binding of a new checkpoint and return it."""
    timed = {} if run.idle is None else {TIMED: True}
    bound = binding_of(run.nodes, plan, partitions=partitions, **timed, **more)
    with reaching(run.operator, "checkpoint=", run.checkpoint):
        run.file.write(bound)
    return bound


def _complete(run: StartRequest, plan: Plan, seeding: FirstStages) -> None:
    """Run the query of the initial rows to its end."""
    used = settings(seeding.partitions) | run.file.settings() | row_files.SETTINGS
    used |= TO_END if has_timers(plan, timed=seeding.timed) else {}
    with STARTING, delta_tables.setting(run.session, used):
        writer = writer_of(run.outcomes, plan, seeding, run.checkpoint)
        with refused(run.title, "Spark does not start its query", _REMEDY):
            query = writer.trigger(availableNow=True).start()
    TopologyQuery.of(query, run.title).awaitTermination()


def _standing(run: StartRequest, checkpoint: str) -> CheckpointStores:
    """Return the stored state of a query that is not running.

    Raises ``CheckpointError`` for one that runs, has ended, or is partly repartitioned.
    """
    with reaching(run.operator, "initial=", checkpoint):
        bound = CheckpointFile(run.session, checkpoint).at_rest(run.operator)
    refuse_repartitioning(bound, run.title)
    refuse_ended(run.session, checkpoint, bound, run.title)
    stored = CheckpointStores.of(run.operator, run.session, checkpoint, None)
    if stored.batch is not None:
        return stored
    # There is no state, so only the offsets carry over.
    done = files_of(run.session).numbers(f"{checkpoint.rstrip('/')}/commits")
    return replace(stored, batch=max(done))


def _with_state(
    run: StartRequest, stored: CheckpointStores, plan: Plan, *, emits: bool
) -> dict[str, Any]:
    """Return the steps to begin with a query's state: the ``beginning`` part of a binding."""
    offsets, same = stored_inputs.offsets(stored, plan, run.nodes)
    begun = stored_inputs.succession(stored, plan, run.nodes, results=emits)
    sources_with_rows = {entry.base for entry in begun.rows}
    static = initial_rows.static_rows(origins_of(run.nodes))
    rows: dict[Any, DataFrame] = {
        table: frame for table, frame in static.items() if table not in sources_with_rows
    }
    rows |= begun.rows
    sources_with_rows |= static.keys()

    def how(stage: Stage) -> str:
        if stage in begun.carried:
            return "carried over"
        read = [table for table in stage.inputs.values() if not table.stream]
        names = [
            table.name
            for table in read
            if table.base in sources_with_rows or isinstance(table.base, Derived)
        ]
        return f"with the rows of {', '.join(dict.fromkeys(names))}" if names else "empty"

    return {
        "offsets": offsets,
        "sources": same,
        "from": stored.checkpoint,
        "batch": stored.batch,
        "carried": [plan.stages.index(stage) for stage in begun.carried],
        "begins": [how(stage) for stage in plan.stages],
        **_written(run, plan, rows, begun.results),
    }


def _written(
    run: StartRequest,
    plan: Plan,
    rows: Mapping[Any, DataFrame],
    results: Mapping[Any, DataFrame] | None = None,
) -> dict[str, Any]:
    """Write the initial rows to files and return their part of the binding.

    ``parts``: for each input of the plan the depth of the view whose rows are read from files.
    ``results``: the numbers of the stages whose rows follow in the files.
    """
    parts_read = [
        next((p for p in parts_of(node) if p in rows), node.base) for node in plan.entries
    ]
    distinct_parts, results = list(dict.fromkeys(parts_read)), results or {}
    frames = [
        rows[node] if node in rows else row_files.empty(run.session, node)
        for node in distinct_parts
    ]
    with refused(run.title, "what initial= names cannot be stored", _REMEDY):
        row_files.write(run.session, run.checkpoint, [*frames, *results.values()])
    entries_and_parts = zip(plan.entries, parts_read, strict=True)
    return {
        "parts": [parts_of(entry).index(part) for entry, part in entries_and_parts],
        "results": [plan.stages.index(stage) for stage in results],
    }


def _seeding(
    run: StartRequest, plan: Plan, partitions: int, left: Mapping[str, Any]
) -> FirstStages:
    """Return the stages of the first micro-batch, reading the files."""
    entries_and_depths = zip(plan.entries, left["parts"], strict=True)
    parts = list(dict.fromkeys(parts_of(entry)[depth] for entry, depth in entries_and_depths))
    begun = row_files.read(run.session, run.checkpoint, parts)
    stages = [plan.stages[index] for index in left["results"]]
    results = {
        stage: row_files.read_rows(run.session, run.checkpoint, index)
        for index, stage in enumerate(stages, start=len(parts))
    }
    seeding = FirstStages(
        bucket_labels(plan.buckets),
        partitions,
        timers=True,
        silent=not left["emits"],
        sources=begun,
        results=results,
    )
    if left.get("carried"):
        states = CheckpointStores.of(
            run.operator, run.session, left["from"], left["batch"]
        ).states()
        seeding.carried = [plan.stages[index] for index in left["carried"]]
        topologies = [stage.fragment.topology for stage in seeding.carried]
        seeding.initial = {
            topology: states[topology] for topology in topologies if topology in states
        }
    return seeding


def _going_on(session: SparkSession, checkpoint: str, left: Mapping[str, Any]) -> None:
    """Rewrite the checkpoint as if it had read its sources up to where the query goes on."""
    files, root = files_of(session), checkpoint.rstrip("/")
    last = max(files.numbers(f"{root}/offsets"))
    text = files.text(f"{root}/offsets/{last}")
    assert text is not None
    head = text.splitlines()[:2]  # the version, and the micro-batch's settings
    files.clear(f"{root}/sources")
    for before, now in left["sources"]:
        files.copy(f"{left['from'].rstrip('/')}/sources/{before}", f"{root}/sources/{now}")
    files.put(f"{root}/offsets/{last}", "\n".join([*head, *(o or "-" for o in left["offsets"])]))
    row_files.remove(session, checkpoint)
