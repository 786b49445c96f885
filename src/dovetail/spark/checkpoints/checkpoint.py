"""The binding of a checkpoint to its query: ``dovetail.json`` beside Spark's own files.

The file is written whole, before Spark writes anything, and is in force once Spark has written. So
no state is ever unbound. A start that came no further leaves a file that binds nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dovetail.errors import CheckpointError, TakenOverError
from dovetail.physical.routing import Plan
from dovetail.plan.fingerprint import (
    describe,
    describe_input,
    fingerprint,
    input_identity,
    refuse_other,
)
from dovetail.plan.nodes import Node, Source
from dovetail.plan.spark_sources import SparkSource, source_folder_indices, spark_sources_of
from dovetail.platform import jvm, local_disk
from dovetail.platform.files import files_of
from dovetail.platform.sessions import is_remote, runs_in_one_jvm
from dovetail.spark.checkpoints.stage_layout import (
    BINDING_FILE,
    FORMAT_VERSION,
    OPERATORS,
    binding_of_text,
    stages_as_json,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEGINNING = "beginning"
"""Key of a binding: the steps that are left before the query can start.

See ``spark.query.first_batch``."""
SEEDED = "seeded"
"""Key of a binding: the first micro-batch takes over the state of another checkpoint."""
CLOSING = "closing"
"""Key of a binding: the query's last micro-batch is planned or done.

See ``spark.query.end_of_input``."""
LOADING = "loading"
"""Key of a binding: tables are read to their end before streams flow.

See ``spark.migration.first_load``."""
LOADED = "loaded"
"""Key of a binding: the last micro-batch in which tables were read before streams flowed."""
FOLLOWS = "follows"
"""Key of a binding: the query from which this one is to take over.

See ``spark.query.takeover``."""
SUCCESSOR = "successor"
"""Key of a binding: the checkpoint whose query has taken over from this one."""
TIMED = "timed"
"""Key of a binding: all stages have timers."""
RUNS = "runs"
"""Key of a binding with timers: the last starts of the query, in the form of ``engine.idle``."""
REPARTITIONING = "repartitioning"
"""Key of a binding: the number of partitions to which its state is being repartitioned."""

CHECKPOINT_PATH = "at"
"""Key of a binding: the checkpoint's own folder, to notice that it was moved."""
TIMEZONE = "timezone"
"""Key of a binding: the session's time zone, in which the query's expressions are computed."""
_STATE_SCHEMA = re.compile(r'"[^"]*(/state/[0-9]+/_stateSchema/)')

_FILE_SYSTEM = "fs.file.impl"
_LOCAL_CHECKPOINT = {
    # Spark finds Hive's file system by itself, which refuses to rename over a file. With the
    # manager below, a repeated micro-batch would then leave the state of its first run. So the
    # file system's settings are set first, and unset last.
    _FILE_SYSTEM: local_disk.HADOOP,
    "fs.file.impl.disable.cache": "true",
    "spark.sql.streaming.checkpointFileManagerClass": jvm.MANAGERS
    + "FileSystemBasedCheckpointFileManager",
}


def binding_of(
    nodes: Sequence[Node], plan: Plan, *, partitions: int, **more: Any
) -> dict[str, Any]:
    """Return the content of ``dovetail.json``, as JSON data, for the checkpoint of a query with the
    results ``nodes``, which runs as ``plan``. It binds the checkpoint to that query. Nothing is
    written.

    Its keys are ``version`` (of this format), ``topology`` (a fingerprint), ``plan`` (a
    description), ``buckets`` and ``partitions``. Further keys are ``operators``
    (``operators_of``), ``stages`` (``stages_as_json``) and ``reads``. ``reads`` has a list of three
    for each source: its identity (None for a static one) and the two results of ``reads_of``.

    ``partitions``: the count of each stage's partitions. ``more``: further entries by their keys,
    such as ``timed`` (``TIMED``); they replace entries of the same key. Sources of the plan that
    are not static must have a frame.
    """
    return {
        "version": FORMAT_VERSION,
        "topology": fingerprint(*nodes),
        "plan": describe(*nodes),
        "buckets": plan.buckets,
        "partitions": partitions,
        OPERATORS: operators_of(plan),
        "stages": stages_as_json(plan.stages, partial(describe_input, nodes)),
        "reads": [
            [
                None if source.static else input_identity(describe_input(nodes, source)),
                leaves,
                numbers,
            ]
            for source, leaves, numbers in zip(
                plan.source_reads, *reads_of(plan.source_reads), strict=True
            )
        ],
        **more,
    }


def operators_of(plan: Plan) -> list[list[int]]:
    """Return the stages with state that each of Spark's operators runs, in the order in which they
    run, as indices in ``plan.stages``. Operators without such stages are absent; the others are
    ordered by their first stage.
    """
    index = {stage: stage_index for stage_index, stage in enumerate(plan.stages)}
    return sorted([index[stage.step.stage] for stage in stages] for stages in plan.operators)


def reads_of(sources: Sequence[Source]) -> tuple[list[int | None], list[list[int] | None]]:
    """Return two lists, each with a value for each of ``sources``. The first has the count of
    Spark's sources that the frame of that source reads. The second has the ids of their folders
    (``sources/<id>``), in which Spark keeps what they have read. Ids count from 0 over all
    ``sources``. A static source counts as one of Spark's sources, with a folder of its own.

    ``sources``: all that a plan reads, in the plan's order. One that is read twice comes twice.

    Spark Connect tells neither. If a source is of such a session, all folders are None, and so is
    the count of each source that is not static. A source that is not static must have a frame.
    """
    remote = [not source.static and is_remote(_frame_of(source).sparkSession) for source in sources]
    if any(remote):
        return [1 if source.static else None for source in sources], [None for _ in sources]
    # A static source is replaced by one source of its own.
    read = [
        [SparkSource(source, "", {})] if source.static else spark_sources_of(_frame_of(source))
        for source in sources
    ]
    folder_indices: list[list[int] | None] = [*source_folder_indices(read)]
    return [len(leaves) for leaves in read], folder_indices


def _frame_of(source: Source) -> DataFrame:
    """Return the frame of a source, which must have one."""
    assert source.frame is not None
    return source.frame


def refuse_other_query(
    binding: Mapping[str, Any], nodes: Sequence[Node], title: str, asked: Mapping[str, int | None]
) -> None:
    """Raise ``CheckpointError`` if the results ``nodes`` or the counts ``asked`` differ from those
    of ``binding``, the content of the checkpoint's ``dovetail.json``.

    Results are compared by one fingerprint of all, so they must be sorted as
    ``in_checkpoint_order`` does. ``asked``: the requested counts by their key in the binding,
    ``"buckets"`` or ``"partitions"``; None for any. Any other key raises ``KeyError``. ``title``:
    the subject of the error.
    """
    refuse_other(nodes, title, binding["topology"], binding["plan"])
    another = {
        "buckets": "is given by dt.checkpoints.upgrade",
        "partitions": "is given by dt.checkpoints.repartition",
    }
    for name, count in asked.items():
        if count is not None and count != binding[name]:
            raise CheckpointError(
                title,
                f"the checkpoint has {binding[name]} {name}, the query asks for {count}",
                f"Use {name}={binding[name]} or leave it out; another number {another[name]}",
            )


def refuse_other_stages(binding: Mapping[str, Any], plan: Plan, title: str) -> None:
    """Raise ``CheckpointError`` if the fingerprints of the plan's stages, in order, differ from
    those in ``binding``, the content of the checkpoint's ``dovetail.json``. Spark identifies the
    state of stages by their order. Raise it, too, if other stages share an operator. ``title``: the
    subject of the error.
    """
    before = [stage["topology"] for stage in binding["stages"]]
    now = [stage.fragment.topology for stage in plan.stages]
    if before != now:
        raise CheckpointError(
            title,
            f"the checkpoint has the state of {len(before)} stages, and the query has {len(now)}, "
            "as this version plans it",
            "Go on with the version that wrote it and, of a union of tables, the same emit=, or "
            "start with a new checkpoint",
        )
    operators = operators_of(plan)
    if binding.get(OPERATORS, [[stage] for stages in operators for stage in stages]) != operators:
        raise CheckpointError(
            title,
            "the checkpoint has stages of one bucket in operators of their own, and this version "
            "runs them in one",
            "Go on with the version that wrote it, or give the checkpoint to "
            "dt.checkpoints.upgrade, with a new one",
        )


def refuse_repartitioning(binding: Mapping[str, Any], title: str) -> None:
    """Raise ``CheckpointError`` if a call of ``repartition`` on a checkpoint was killed, and has
    not been repeated. ``binding``: the content of its ``dovetail.json``. ``title``: the subject of
    the error.
    """
    partitions = binding.get(REPARTITIONING)
    if partitions is not None:
        raise CheckpointError(
            title,
            "a call of repartition was killed, and its checkpoint is as it left it",
            f"Repeat the call: dovetail repartition CHECKPOINT --partitions {partitions}",
        )


def refuse_following(binding: Mapping[str, Any], checkpoint: str, title: str) -> None:
    """Raise ``CheckpointError`` if the query of ``checkpoint`` follows another one and has not
    taken over from it. (To follow is to process the same input, in order to take over.)
    ``binding``: the content of its ``dovetail.json``. ``title``: the subject of the error.
    """
    if FOLLOWS in binding:
        raise CheckpointError(
            title,
            f"{checkpoint} follows the query of {binding[FOLLOWS]['from']}, and has not taken over",
            "Start its own query first, or name the checkpoint that it follows",
        )


class CheckpointFile:
    """``dovetail.json`` in a checkpoint directory, on any file system that Spark can write.

    Its content is the *binding*, a dict of JSON data. ``title``, an argument of many methods, is
    the subject of their errors.
    """

    def __init__(self, session: SparkSession, checkpoint: str) -> None:
        """Take the folder ``checkpoint``, which may not exist yet. Nothing is read or written."""
        self._session, self._files = session, files_of(session)
        self._root = checkpoint.rstrip("/")
        self._path = f"{self._root}/{BINDING_FILE}"

    def settings(self) -> dict[str, str]:
        """Return Spark settings by which files of a checkpoint on a local disk are written with
        fewer processes: the file system's class, its cache, and Spark's file manager. Files are
        still renamed into place. The dict is empty on another file system, and if any of these
        settings has a value in the session already. Nothing is set here.
        """
        # Spark writes a file of a checkpoint, then renames it. Its usual way to rename starts five
        # processes on a local disk: a chmod and a readlink for each end. Its other way starts one,
        # and replaces a file at once instead of deleting it first. The class of local_disk starts
        # none.
        chosen = any(self._files.setting(key) for key in _LOCAL_CHECKPOINT)
        if chosen or self._files.scheme(self._root) != "file":
            return {}
        # Executors write state, too, and no class of the driver's class path reaches them.
        if runs_in_one_jvm(self._session) and self._files.has_class(local_disk.CLASS):
            return _LOCAL_CHECKPOINT | {_FILE_SYSTEM: local_disk.CLASS}
        return _LOCAL_CHECKPOINT

    def read(self, title: str) -> dict[str, Any] | None:
        """Return the content of ``dovetail.json``; None, even with such a file, if the checkpoint
        has not begun: no micro-batch is planned in it. If the checkpoint was moved, its paths are
        corrected first (``with_present_path``). ``title``: the subject of errors.

        Raises ``CheckpointError`` for a checkpoint that has begun without this file, or with one
        that is unreadable or has another format. Also for a moved one on Spark Connect.
        """
        if not self._has_begun():
            return None
        problem = f"the checkpoint {self._root} has no {BINDING_FILE}, which says whose it is"
        text = self._files.text(self._path)
        if text is not None:
            problem = f"{self._path} cannot be read"
            try:
                binding = binding_of_text(text)
            except ValueError:
                binding = {}
            if binding.get("version") == FORMAT_VERSION:
                return self.with_present_path(binding, title)
            if "version" in binding:
                problem = (
                    f"the checkpoint has format {binding['version']}, this version reads "
                    f"{FORMAT_VERSION}"
                )
        raise CheckpointError(
            title,
            problem,
            "Run what wrote it (changelog() writes no such file), or start with a new checkpoint",
        )

    def with_present_path(self, binding: dict[str, Any], title: str) -> dict[str, Any]:
        """Return ``binding``, the content of ``dovetail.json``, with the present path of the
        checkpoint: itself if its path is right or if it has none, else a changed copy. Before that,
        write the present path to ``dovetail.json`` and to Spark's metadata of the state.

        ``title``: the subject of errors. Raises ``CheckpointError`` for a moved checkpoint on Spark
        Connect, which cannot write there.
        """
        here, before = self._files.qualified(self._root), binding.get(CHECKPOINT_PATH)
        if before in (None, here):
            return binding
        if is_remote(self._session):
            raise CheckpointError(
                title,
                f"the checkpoint was at {before} and was moved to {here}, where Spark Connect "
                "cannot mend what its state says of that",
                "Start it there once in a classic session, or move it back",
            )
        for operator in self._files.names(f"{self._root}/state"):
            folder = f"{self._root}/state/{operator}/_metadata/v2"
            for name in self._files.names(folder):
                text = self._files.text(f"{folder}/{name}") or ""
                mended = _STATE_SCHEMA.sub(lambda match: f'"{here}{match[1]}', text)
                if mended != text:
                    self._files.put(f"{folder}/{name}", mended)
        binding = {**binding, CHECKPOINT_PATH: here}
        self.write(binding)
        return binding

    def full_path(self) -> str:
        """Return the full path of the checkpoint's folder with its scheme, such as ``file:/tmp/c``.
        The binding has it under ``CHECKPOINT_PATH``.
        """
        return self._files.qualified(self._root)

    def binding_at_rest(self, title: str) -> dict[str, Any]:
        """Return the content of ``dovetail.json``, as JSON data, of a query that has begun and is
        not running. A moved checkpoint's paths are corrected first. ``title``: the subject of
        errors.

        Raises ``CheckpointError`` for a query that runs (``is_running``), and for a folder without
        a planned micro-batch. Also if the file is missing, unreadable or of another format, and for
        a moved checkpoint on Spark Connect.
        """
        binding = self.binding_of_begun(title)
        if self.is_running():
            raise CheckpointError(title, f"the query of {self._root} is running", "Stop it first")
        return binding

    def binding_of_begun(self, title: str) -> dict[str, Any]:
        """Return the content of ``dovetail.json``, as JSON data, of a query that has begun, running
        or not. A moved checkpoint's paths are corrected first. ``title``: the subject of errors.

        Raises ``CheckpointError`` for a folder without a planned micro-batch. Also if the file is
        missing, unreadable or of another format, and for a moved checkpoint on Spark Connect.
        """
        binding = self.read(title)
        if binding is None:
            raise CheckpointError(
                title, f"{self._root} has no micro-batch", "Name a query's checkpoint="
            )
        return binding

    def refuse_succeeded(self, binding: Mapping[str, Any], title: str) -> None:
        """Raise ``TakenOverError`` if another query has taken over from this checkpoint's.
        ``binding``: the content of its ``dovetail.json``. ``title``: the subject of errors.

        Raise nothing once ``dovetail.json`` of that other query is gone, on any file system.
        """
        successor = binding.get(SUCCESSOR)
        if successor is not None and self._files.exists(f"{successor}/{BINDING_FILE}"):
            raise TakenOverError(
                title,
                f"the query of {successor} has taken over from that of {self._root}",
                "Start that one. To go back to this one, remove that folder",
            )

    def is_running(self) -> bool:
        """Return True if the checkpoint's query runs in this application, on Spark Connect in this
        session. A query of another application is not seen. Return False if the query has not
        begun.
        """
        text = self._files.text(f"{self._root}/metadata")
        if text is None:
            return False
        query = json.loads(text)["id"]
        if is_remote(self._session):
            return any(str(active.id) == query for active in self._session.streams.active)
        return jvm.has_active_query(self._session, query)

    def write(self, binding: Mapping[str, Any]) -> None:
        """Replace ``dovetail.json`` by one with ``binding``, a mapping of JSON data, atomically: no
        reader sees a part of it. The file is made if it is missing.
        """
        self._files.put(self._path, json.dumps(binding, indent=1))

    def has_committed(self) -> bool:
        """Return True if the query has committed a micro-batch. ``dovetail.json`` is not read."""
        return self._files.has_files(f"{self._root}/commits")

    def _has_begun(self) -> bool:
        """Return True if there is a file in ``offsets`` or ``sources``: Spark has planned a
        micro-batch, or a source has noted the content of the first.
        """
        return any(self._files.has_files(f"{self._root}/{name}") for name in ("offsets", "sources"))
