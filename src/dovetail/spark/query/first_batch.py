"""The start of a query that begins with initial rows.

They are rows of static frames, or the state of another query. Three phases decide how the query
begins, each a value that is handed on to the next:

1. ``CarriedOver``: what is taken over from another checkpoint. Stages that both queries have keep
   their state, and sources are read on from where the other query stopped.
2. ``InitialRows``: which rows are read. They are written to files in the checkpoint, in the folder
   ``initial``.
3. ``FirstBatch``: what the first micro-batch emits, which reads these files.

By default a separate query reads the files, into a checkpoint of its own. The first micro-batch of
the real query takes over that state. This needs only what Spark Connect has, too. There are two
reasons for the real query to read the files by itself: its sinks are to get the results, or it goes
on from another checkpoint. It then rewrites its checkpoint as if it had read the sources.

Each step can be repeated. ``dovetail.json`` lists the steps that are left. It binds nothing before
Spark has written ``sources`` or ``offsets`` beside it. A kill leaves what is on disk after the last
complete step.

| by itself  | step               | on disk afterwards            | a restart there               |
|------------|--------------------|-------------------------------|-------------------------------|
| prepared   | write the rows     | initial/rows/0, 1, …          | removes them, begins anew     |
|     │      | bind               | dovetail.json: "beginning"    | begins anew: nothing is bound |
|     ▼      |                    |                               |                               |
| finished   | plan micro-batch 0 | sources/, offsets/0           | runs it, on these rows        |
|     │      | run it             | state/, the sinks' output     | runs it again, on these rows  |
|     │      | commit it          | commits/0                     | skips it, does the rest       |
|     │      | copy the sources   | sources/ of the other query   | copies them again             |
|     │      | set the offsets    | offsets/0 of the other query  | sets them again               |
|     │      | note that          | dovetail.json: "positioned"   | skips these two, too          |
|     │      | remove the rows    | no initial/                   | finds none to remove          |
|     ▼      | bind               | dovetail.json: no "beginning" | goes on like any other query  |

| separately | step               | on disk afterwards            | a restart there               |
|------------|--------------------|-------------------------------|-------------------------------|
| prepared   | write the rows     | initial/rows/0, 1, …          | removes them, begins anew     |
|     │      | run the query      | initial/checkpoint/           | removes it, begins anew       |
|     │      | bind               | dovetail.json: "seeded"       | begins anew: nothing is bound |
|     ▼      |                    |                               |                               |
| the query  | plan micro-batch 0 | sources/, offsets/0           | takes over the state again    |
|     │      | commit it          | commits/0                     | removes initial/              |
|     ▼      | next start         | no initial/                   | goes on like any other query  |
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from os import PathLike, fspath
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from dovetail.arrays.bucket_labels import bucket_labels
from dovetail.errors import CheckpointError, ConfigurationError, DovetailWarning
from dovetail.physical.routing import Plan
from dovetail.plan.dead_letters import DeadLetters, nodes_with_dead_letters
from dovetail.plan.fingerprint import describe_input, input_identity, sources_of
from dovetail.plan.nodes import Node
from dovetail.plan.spark_sources import refuse_frames_with_state
from dovetail.platform import delta_tables
from dovetail.platform.files import files_of
from dovetail.platform.progress_bar import progress_bar
from dovetail.platform.sessions import cores, is_remote
from dovetail.platform.spark_errors import convert_folder_errors, convert_spark_errors
from dovetail.spark import time_zone
from dovetail.spark.checkpoints.checkpoint import (
    BEGINNING,
    FOLLOWS,
    SEEDED,
    TIMED,
    TIMEZONE,
    CheckpointFile,
    binding_of,
    refuse_following,
    refuse_other_query,
    refuse_other_stages,
    refuse_repartitioning,
)
from dovetail.spark.checkpoints.spark_files import refuse_unreadable
from dovetail.spark.checkpoints.stores import CheckpointStores
from dovetail.spark.execution.streaming_frames import Streaming
from dovetail.spark.metrics.query_parts import parts_of
from dovetail.spark.migration import first_load, initial_rows, row_files
from dovetail.spark.migration.carried_over import (
    CarriedOver,
    find_carried_over,
    identities_of_old_sources,
)
from dovetail.spark.migration.first_stages import FirstStages
from dovetail.spark.migration.forecast import Step, forecast
from dovetail.spark.migration.initial_rows import InitialRows, RowFrames
from dovetail.spark.query import folders
from dovetail.spark.query.end_of_input import refuse_ended
from dovetail.spark.query.options import TRIGGER_ALL
from dovetail.spark.query.topology_query import TopologyQuery
from dovetail.spark.query.writer import (
    SETTINGS_TO_END,
    START_LOCK,
    StartRequest,
    has_timers,
    query_settings,
    start_with_sources,
    writer_of,
)

_REMEDY = "Mend what it names"
_POSITIONED = "positioned"
"""Key of the entry ``BEGINNING``: sources and offsets are those that the query goes on from."""


@dataclass(frozen=True)
class FirstBatch:
    """Phase 3: the changes that the first micro-batch emits of the state and the rows that it
    begins with.
    """

    carried: CarriedOver
    """The state and the offsets that are taken over from another checkpoint."""
    rows: InitialRows
    """The files with the rows that it reads."""
    emits: bool
    """True if the sinks get the results. Dead letters go to their sink in any case."""
    separate: bool = False
    """True if a query without sinks runs it, whose state the real query takes over."""

    def as_json(self) -> dict[str, Any]:
        """Return the steps that are left, as JSON data: the entry ``BEGINNING`` of
        ``dovetail.json``. Its keys are ``offsets`` and ``sources`` (where sources go on), ``parts``
        and ``results`` (the files with rows), and ``emits``. With another checkpoint also ``from``,
        ``batch``, ``carried`` and ``begins``.
        """
        return {**self.carried.as_json(), **self.rows.as_json(), "emits": self.emits}

    @classmethod
    def of_json(cls, left: Mapping[str, Any]) -> FirstBatch:
        """Return the ``FirstBatch`` whose ``as_json`` returned ``left``. ``separate`` is False,
        because a separate query has no steps left.
        """
        return cls(CarriedOver.of_json(left), InitialRows.of_json(left), left["emits"])


def prepare_checkpoint(
    run: StartRequest,
    initial: Mapping[str, DataFrame] | str | PathLike[str] | None,
    *,
    emits: bool,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Write all initial rows of a new checkpoint, and its ``dovetail.json`` last. Return the
    content of that file.

    ``initial``: frames by the table's name, another checkpoint, or None for static tables alone.
    ``emits``: True if the sinks get the results of the initial rows. It is ignored if ``initial``
    is None: sinks then get them if static tables alone may give results. ``more``: further entries
    of the file; a separate query has none.

    Frames and static tables whose results no sink gets are processed here, by a *separate query*
    without sinks and with a checkpoint of its own. It is not used if a sink is to get dead letters
    of these rows. In all other cases ``finish_first_batch`` processes the rows.

    Raises ``PlanError`` for frames that do not fit, and for a source with state of Spark's own,
    unless a separate query is used. Raises ``CheckpointError`` for a checkpoint to go on from that
    cannot be used. Both are raised before anything is written.

    Raises ``ConfigurationError`` on Spark Connect unless a separate query reads the rows, and for
    rows that cannot be read or stored. A separate query raises its failure, too (``run_to_end``).
    """
    if initial is None:
        initial, emits = {}, any(map(_may_emit_alone, run.nodes))
    separate = isinstance(initial, Mapping) and not emits and not _may_have_letters(run)
    if not separate:
        _refuse_state_of_sources(run)
    frames, stored = _open_initial(run, initial, separate=separate)
    buckets, partitions = run.bucket_and_partition_counts(
        None if stored is None else stored.buckets
    )
    plan = replace(run, outcomes=()).plan(buckets) if separate else run.plan(buckets)

    # A separate query reads files alone, so no source has an offset to go on at.
    other = None if stored is None else _binding(run, stored.checkpoint)
    carried = CarriedOver() if separate else find_carried_over(stored, plan, run.nodes)
    read = _continued_folders(run, stored, other)
    # The other query's, since its state has what expressions gave in that zone.
    zone = time_zone.zone_of(run, other)
    with _in_zone(run, zone):
        if stored is not None:
            frames = initial_rows.rows_of_stores(stored, plan, run.nodes, carried, results=emits)
        with progress_bar(run.session, f"{run.title}: initial rows are stored"):
            rows = _write_initial_rows(run, plan, frames, separate=separate)
    first = FirstBatch(carried, rows, emits, separate)

    # The state of another checkpoint has the tables.
    loading = first_load.loading_entry(run.nodes) if stored is None else {}
    if not separate:
        return _write_binding(
            run,
            plan,
            partitions,
            {BEGINNING: first.as_json(), TIMEZONE: zone, **read, **loading, **more},
        )
    _run_separately(run, plan, partitions, first)
    return _write_binding(run, plan, partitions, {SEEDED: True, **loading})


def forecast_of(run: StartRequest, checkpoint: str, *, emits: bool = False) -> list[Step]:
    """Return a ``Step`` for each stage, in order: how it would begin with the state of another
    query, which may be running. It has the stage's index from 1, its name, the beginning in words,
    the rows to read and the estimated seconds. Nothing is written.

    ``checkpoint``: that of the other query. ``emits``: True if the sinks would get the results of
    the initial rows. Raises ``CheckpointError`` for a checkpoint to go on from that cannot be used,
    and ``ConfigurationError`` if Spark cannot read its state. Raises ``PlanError`` for a source
    with state of Spark's own.
    """
    _refuse_state_of_sources(run)
    other = _binding(run, checkpoint)
    time_zone.zone_of(run, other)
    stored = _state_after_last_batch(run, checkpoint, other)
    buckets, _ = run.bucket_and_partition_counts(stored.buckets)
    plan = run.plan(buckets)
    carried = find_carried_over(stored, plan, run.nodes)
    _continued_folders(run, stored, other)
    frames = initial_rows.rows_of_stores(stored, plan, run.nodes, carried, results=emits)
    assert frames.begins is not None
    return [*forecast(stored, plan, carried, frames.begins, cores(run.session))]


def _refuse_state_of_sources(run: StartRequest) -> None:
    """Raise ``PlanError`` for a source whose frame has a step for which Spark keeps state."""
    because = "which Spark refuses after a first micro-batch of initial rows"
    refuse_frames_with_state(run.title, sources_of(run.nodes), because)


def _may_emit_alone(node: Node) -> bool:
    """Return True if static tables may give results or dead letters of ``node`` without any row of
    another input.
    """
    return node.may_start_with_rows or any(
        entry.may_start_with_rows for part in nodes_with_dead_letters(node) for entry in part.inputs
    )


def _may_have_letters(run: StartRequest) -> bool:
    """Return True if the initial rows may give dead letters and the run has a sink for these.

    Dead letters go to their sink even if the results are not emitted. On Spark Connect they do not,
    because it cannot begin with such a micro-batch, so return False there.
    """
    asked = any(isinstance(outcome.node, DeadLetters) for outcome in run.outcomes)
    fail = any(True for node in run.nodes for _ in nodes_with_dead_letters(node))
    return asked and fail and not is_remote(run.session)


def finish_first_batch(run: StartRequest, bound: Mapping[str, Any]) -> dict[str, Any]:
    """Run the first micro-batch if it is not committed, set the offsets and remove the initial
    rows. Write ``dovetail.json`` without the entry ``BEGINNING``, and return its content.

    ``bound``: the content that ``prepare_checkpoint`` wrote, with the entry ``BEGINNING``. A call
    that was killed can be repeated. Raises ``CheckpointError`` if the query is not that of
    ``bound``, and the failure of the micro-batch (``run_to_end``).
    """
    asked = {"buckets": run.buckets, "partitions": run.partitions}
    refuse_other_query(bound, run.nodes, run.title, asked)
    first = FirstBatch.of_json(bound[BEGINNING])
    if not run.file.has_committed():
        plan = run.plan(bound["buckets"])
        refuse_other_stages(bound, plan, run.title)
        stages = _streaming_stages(run, plan, bound["partitions"], first, timed=TIMED in bound)
        zone = time_zone.time_zone_setting(run.session, time_zone.zone_of(run, bound))
        run_to_end(run, plan, stages, row_files.SETTINGS | zone)
    if _POSITIONED not in bound[BEGINNING]:
        _rewrite_offsets(run.session, run.checkpoint, first.carried)
        # The rows may be removed from here on, with the copy of the sources that lies beside them.
        run.file.write({**bound, BEGINNING: {**bound[BEGINNING], _POSITIONED: True}})
    row_files.remove_files(run.session, run.checkpoint)
    binding = {name: value for name, value in bound.items() if name != BEGINNING}
    run.file.write(binding)
    return binding


def stage_beginnings(run: StartRequest, bound: Mapping[str, Any]) -> list[tuple[int, str, str]]:
    """Return (index from 1, name of its node, beginning in words) for each stage, in the order in
    which they run. ``bound``: the content of ``dovetail.json`` that ``prepare_checkpoint`` wrote
    for the state of another query. The words are ``carried over``, ``empty``, or such as ``with the
    rows of orders``.
    """
    stages = run.plan(bound["buckets"]).stages
    begins = zip(stages, bound.get(FOLLOWS, bound.get(BEGINNING))["begins"], strict=True)
    return [
        (stage_number, stage.node.name, how)
        for stage_number, (stage, how) in enumerate(begins, start=1)
    ]


def blobs_taken_over(run: StartRequest) -> dict[str, DataFrame]:
    """Return the blobs that the first micro-batch takes over from the separate query of initial
    rows, by the fingerprint of a stage. They are frames of ``bucket`` (the bucket's label),
    ``name`` and ``blob`` (the blob's name and bytes).

    Once that micro-batch is committed, return an empty dict and remove the files. ``dovetail.json``
    must have the entry ``SEEDED``. Raises ``CheckpointError`` if the files are gone, and
    ``ConfigurationError`` if Spark cannot read them.
    """
    if not run.file.has_committed():
        return row_files.blobs_of(run.operator, run.session, run.checkpoint)
    row_files.remove_files(run.session, run.checkpoint)
    return {}


def _open_initial(
    run: StartRequest, initial: Mapping[str, DataFrame] | str | PathLike[str], *, separate: bool
) -> tuple[RowFrames, CheckpointStores | None]:
    """Return two values for ``initial=``. For frames by table they are their rows and None, for
    another checkpoint no rows and its stored state.

    ``separate``: True if a separate query reads the rows. Raises ``ConfigurationError`` on Spark
    Connect without a separate query, and with one for a path that Spark's reader of state does not
    find. Raises ``PlanError`` for frames that do not fit. For a checkpoint, errors are those of
    ``_state_at_rest``.
    """
    if is_remote(run.session) and not separate:
        raise ConfigurationError(
            run.operator,
            "Spark Connect cannot write files into a checkpoint, as emit_initial=, initial= with a "
            "checkpoint and a static table whose rows come out by themselves need it",
            "Start the query in a classic session for the first time; it may go on here",
        )
    if not isinstance(initial, Mapping):
        return RowFrames({}), _state_at_rest(run, fspath(initial))
    rows = initial_rows.rows_by_table(run.operator, run.nodes, initial)
    if separate:
        refuse_unreadable(run.operator, run.checkpoint)
    return RowFrames(rows), None


def _state_at_rest(run: StartRequest, checkpoint: str) -> CheckpointStores:
    """Return the stored state, after its last micro-batch, of the stopped query of ``checkpoint``.

    Raises ``CheckpointError`` for a folder without a query, for a query that runs, and for one
    whose state cannot be taken over (``_state_after_last_batch``). Raises ``ConfigurationError`` if
    the folder cannot be read.
    """
    with convert_folder_errors(run.operator, "initial=", checkpoint):
        bound = CheckpointFile(run.session, checkpoint).binding_at_rest(run.operator)
    return _state_after_last_batch(run, checkpoint, bound)


def _state_after_last_batch(
    run: StartRequest, checkpoint: str, bound: Mapping[str, Any]
) -> CheckpointStores:
    """Return the stored state of the query of ``checkpoint`` after its last micro-batch. ``bound``:
    the content of its ``dovetail.json``. A query without state gives stores without rows, with the
    id of that micro-batch.

    Raises ``CheckpointError`` for one that has not completed a micro-batch, has ended by
    ``close_at_end`` or is partly repartitioned. Also for one that follows another query, or whose
    tables are not yet loaded. Raises ``ConfigurationError`` if Spark cannot read the state. Gives a
    ``DovetailWarning`` for state of other operators of Spark's, which is not taken over.
    """
    refuse_repartitioning(bound, run.title)
    refuse_following(bound, checkpoint, run.title)
    first_load.refuse_loading(bound, checkpoint, run.title)
    refuse_ended(run.session, checkpoint, bound, run.title)
    if BEGINNING in bound or not CheckpointFile(run.session, checkpoint).has_committed():
        raise CheckpointError(
            run.title,
            f"the query of {checkpoint} has not completed a micro-batch yet",
            "Start that query, and stop it when it has",
        )
    stored = CheckpointStores.read_with_spark(run.operator, run.session, checkpoint, None)
    if stored.other_operators:
        warnings.warn(
            f"{run.title}: a source of {checkpoint} has state of Spark's own "
            f"({', '.join(dict.fromkeys(stored.other_operators))}), which is not taken over: there "
            "the new query begins without it. Where this matters, start with a new checkpoint, and "
            "read its sources from their beginning.",
            DovetailWarning,
            stacklevel=2,
        )
    if stored.batch is not None:
        return stored
    # There is no state, so only the offsets carry over.
    done = files_of(run.session).numbers(f"{checkpoint.rstrip('/')}/commits")
    return replace(stored, batch=max(done))


def _continued_folders(
    run: StartRequest, stored: CheckpointStores | None, bound: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the entry ``READ`` of ``dovetail.json``: the folders of the files of all inputs that
    go on where another query stopped, so that the first start notices if they were moved. Without
    another query the dict is empty.

    ``stored``: that query's state; ``bound``: the content of its ``dovetail.json``. Both are None
    without it. Raises ``CheckpointError`` for an input whose files were moved since that query.
    """
    if stored is None or bound is None:
        return {}
    then, sources = identities_of_old_sources(stored), sources_of(run.nodes)
    same = [s for s in sources if input_identity(describe_input(run.nodes, s)) in then]
    return {folders.READ: folders.folders_continued(run, same, bound.get(folders.READ))}


def _binding(run: StartRequest, checkpoint: str) -> dict[str, Any]:
    """Return the content of the ``dovetail.json`` of another query, which has begun.
    ``checkpoint``: that of the other query.
    """
    return CheckpointFile(run.session, checkpoint).binding_of_begun(run.operator)


@contextmanager
def _in_zone(run: StartRequest, zone: str) -> Iterator[None]:
    """Let the session have the time zone ``zone`` within the block. If it has another one, starts
    of queries wait meanwhile.
    """
    setting = time_zone.time_zone_setting(run.session, zone)
    with (
        START_LOCK if setting else nullcontext(),
        delta_tables.temporary_settings(run.session, setting),
    ):
        yield


def _write_initial_rows(
    run: StartRequest, plan: Plan, frames: RowFrames, *, separate: bool
) -> InitialRows:
    """Write the initial rows in ``frames`` to files of the checkpoint. Return which rows each of
    these files has: by their order, the inputs of ``plan`` and then the results of carried stages.

    ``separate``: True if a separate query is to read the files; it only changes the words of an
    error. Raises ``ConfigurationError`` if the rows cannot be stored.
    """
    what = "the frames of initial=" if separate else "what initial= names"
    with convert_spark_errors(run.title, f"{what} cannot be stored", _REMEDY):
        return initial_rows.write_rows(run.session, run.checkpoint, plan, frames)


def _write_binding(
    run: StartRequest, plan: Plan, partitions: int, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Write ``dovetail.json`` of a new checkpoint and return its content. ``partitions``: the count
    of tasks of each stage. ``more``: further entries. Raises ``ConfigurationError`` if the file
    cannot be written.
    """
    timed = {} if run.idle is None else {TIMED: True}
    bound = binding_of(run.nodes, plan, partitions=partitions, **timed, **more)
    with convert_folder_errors(run.operator, "checkpoint=", run.checkpoint):
        run.file.write(bound)
    return bound


def _run_separately(run: StartRequest, plan: Plan, partitions: int, first: FirstBatch) -> None:
    """Run the first micro-batch to its end as a query without sinks. Its checkpoint is a folder
    within that of initial rows, from which the real query takes the state. The checkpoint gets a
    ``dovetail.json``, too.

    ``plan``: without dead letters. ``partitions``: the count of tasks of each stage. Raises the
    failure of the query (``run_to_end``).
    """
    folder = row_files.folder_of_separate_query(run.checkpoint)
    separate_run = replace(run, outcomes=(), checkpoint=folder)
    stages = _streaming_stages(run, plan, partitions, first, timed=False)
    separate_run.file.write(binding_of(run.nodes, plan, partitions=partitions))
    run_to_end(separate_run, plan, stages, row_files.SETTINGS)


def _streaming_stages(
    run: StartRequest, plan: Plan, partitions: int, first: FirstBatch, *, timed: bool
) -> FirstStages:
    """Return the stages of the first micro-batch, which read the files of initial rows.
    ``partitions``: the count of tasks of each. ``timed``: True if all stages have timers, not only
    those that wait for an input. No job runs.
    """
    session, inputs = run.session, first.rows.inputs_of(plan)
    results = enumerate(first.rows.results_of(plan), start=len(inputs))
    return FirstStages(
        bucket_labels(plan.buckets),
        partitions,
        timers=True,
        timed=timed,
        silent=not (first.emits or first.separate),
        sources=row_files.read_sources(session, run.checkpoint, inputs),
        results={
            stage: row_files.read_rows(session, run.checkpoint, index) for index, stage in results
        },
        carried=first.carried.stages_of(plan),
        initial=first.carried.states(run.operator, session, plan),
    )


def run_to_end(
    run: StartRequest,
    plan: Plan,
    stages: Streaming,
    used: Mapping[str, str],
    trigger: Mapping[str, Any] = TRIGGER_ALL,
    doing: str = "initial rows are joined",
) -> None:
    """Run a query of ``stages`` until it ends by itself, with a progress bar, and wait for it. If
    the wait is interrupted, the query is not stopped here.

    ``used``: Spark settings beside those of all queries. ``trigger``: arguments of
    ``DataStreamWriter.trigger``, by default all input that there is. ``doing``: the text of the
    bar. The session has the settings only while the query starts; other starts of this process wait
    meanwhile.

    Raises ``ConfigurationError`` if Spark does not start it, its sinks' errors before that, and
    ``StreamingQueryException`` if a micro-batch fails.
    """
    used = {**query_settings(run.session, stages.partitions), **run.file.settings(), **used}
    used |= SETTINGS_TO_END if has_timers(plan, timed=stages.timed) else {}
    with START_LOCK, delta_tables.temporary_settings(run.session, used):
        writer = writer_of(run.outcomes, plan, stages, run.checkpoint)
        with convert_spark_errors(run.title, "Spark does not start its query", _REMEDY):
            query = start_with_sources(writer.trigger(**trigger))
    parts = parts_of(plan, stages, run.nodes, run.outcomes, run.title)
    with progress_bar(run.session, f"{run.title}: {doing}"):
        TopologyQuery.of(query, run.title, parts, run.checkpoint).awaitTermination()


def _rewrite_offsets(session: SparkSession, checkpoint: str, carried: CarriedOver) -> None:
    """Set the last planned offsets of ``checkpoint`` to those in ``carried``, up to which the query
    has then read its sources. Replace the folder ``sources`` there by the notes on the sources that
    both queries have. They are copied from the other checkpoint (``carried.checkpoint``).

    A micro-batch must be planned in ``checkpoint``. Sources without an offset in ``carried`` are
    read from their start.
    """
    files, root = files_of(session), checkpoint.rstrip("/")
    last = max(files.numbers(f"{root}/offsets"))
    text = files.text(f"{root}/offsets/{last}")
    assert text is not None
    head = text.splitlines()[:2]  # the version, and the micro-batch's settings
    files.clear(f"{root}/sources")
    for before, now in carried.sources:
        assert carried.checkpoint is not None
        other_root = carried.checkpoint.rstrip("/")
        files.copy(f"{other_root}/sources/{before}", f"{root}/sources/{now}")
    offsets = (offset or "-" for offset in carried.offsets)
    files.put(f"{root}/offsets/{last}", "\n".join([*head, *offsets]))
