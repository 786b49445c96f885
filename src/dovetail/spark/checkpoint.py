"""What binds a checkpoint to its query: ``dovetail.json`` beside what Spark writes there.

It is written whole, before Spark writes anything, and is in force once Spark has: so no state is
ever unbound, and what a start leaves that came no further binds nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.errors import CheckpointError
from dovetail.files import MANAGERS, files_of
from dovetail.physical.line import Plan
from dovetail.plan.fingerprint import (
    describe,
    describe_input,
    fingerprint,
    identity,
    refuse_other,
)
from dovetail.plan.leaves import Leaf, leaves_of, numbered
from dovetail.plan.nodes import Node, Source
from dovetail.sessions import is_remote
from dovetail.spark.layout import described

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT_VERSION = 3
NAME = "dovetail.json"
BEGINNING = "beginning"
"""Of a binding what is left to do before the query can start (``spark.beginning``)."""
SEEDED = "seeded"
"""In a binding where the first micro-batch takes over the state of another checkpoint."""
CLOSING = "closing"
"""In a binding where the query's last micro-batch is planned, or was (``spark.closing``)."""
TIMED = "timed"
"""In a binding where all stages have timers."""
RUNS = "runs"
"""Of such a binding the last runs, as ``engine.idle`` knows them."""
REPARTITIONING = "repartitioning"
"""Of a binding the number of partitions over which its state is being repartitioned."""

AT = "at"
"""In a binding the checkpoint's own folder, by which one that was moved is known."""
TIMEZONE = "timezone"
"""In a binding the session's time zone, in which the query's expressions are computed."""
_STATE_SCHEMA = re.compile(r'"[^"]*(/state/[0-9]+/_stateSchema/)')

_LOCAL_CHECKPOINT = {
    # The one that Spark finds by itself is Hive's, which refuses to rename over a file: under the
    # manager below a micro-batch that is run again would leave the state of its first run where it
    # is. So these come first, and go last.
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "fs.file.impl.disable.cache": "true",
    "spark.sql.streaming.checkpointFileManagerClass": MANAGERS
    + "FileSystemBasedCheckpointFileManager",
}


def binding_of(
    nodes: Sequence[Node], plan: Plan, *, partitions: int, **more: Any
) -> dict[str, Any]:
    """What ties a checkpoint to a query whose results are ``nodes``, and which runs as ``plan``;
    ``more``: what is to be said besides.
    """
    return {
        "version": FORMAT_VERSION,
        "topology": fingerprint(*nodes),
        "plan": describe(*nodes),
        "buckets": plan.buckets,
        "partitions": partitions,
        "stages": described(plan.stages, nodes),
        "reads": [
            [None if one.static else identity(describe_input(nodes, one)), leaves, numbers]
            for one, leaves, numbers in zip(plan.reads, *reads_of(plan.reads), strict=True)
        ],
        **more,
    }


def reads_of(sources: Sequence[Source]) -> tuple[list[int | None], list[list[int] | None]]:
    """How many of Spark's sources each one reads, and the numbers of the folders in which Spark
    keeps what these have read; None on Spark Connect, which does not say.
    """
    remote = [not one.static and is_remote(_frame(one).sparkSession) for one in sources]
    if any(remote):
        return [1 if one.static else None for one in sources], [None for _ in sources]
    # In place of a static one its own source is read.
    read = [[Leaf(one, "", {})] if one.static else leaves_of(_frame(one)) for one in sources]
    numbers: list[list[int] | None] = [*numbered(read)]
    return [len(leaves) for leaves in read], numbers


def _frame(source: Source) -> Any:
    assert source.frame is not None
    return source.frame


def refuse_unfit(
    binding: Mapping[str, Any], nodes: Sequence[Node], title: str, asked: Mapping[str, int | None]
) -> None:
    """Refuse to run these results, or with other numbers than the binding's; ``asked``: by what
    they are called there.
    """
    refuse_other(nodes, title, binding["topology"], binding["plan"])
    another = {"buckets": "is given by dt.upgrade", "partitions": "is given by dt.repartition"}
    for name, number in asked.items():
        if number is not None and number != binding[name]:
            raise CheckpointError(
                title,
                f"the checkpoint has {binding[name]} {name}, the query asks for {number}",
                f"Use {name}={binding[name]} or leave it out; another number {another[name]}",
            )


def refuse_other_stages(binding: Mapping[str, Any], plan: Plan, title: str) -> None:
    """Refuse a plan that has other stages than the binding's, for Spark knows their state by their
    numbers.
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


def refuse_repartitioning(binding: Mapping[str, Any], title: str) -> None:
    """Refuse a checkpoint whose state is partly repartitioned."""
    partitions = binding.get(REPARTITIONING)
    if partitions is not None:
        raise CheckpointError(
            title,
            "a call of repartition was killed, and its checkpoint is as it left it",
            f"Repeat the call: dovetail repartition CHECKPOINT --partitions {partitions}",
        )


class CheckpointFile:
    """``dovetail.json`` in a checkpoint directory, on any file system that Spark can write."""

    def __init__(self, session: SparkSession, checkpoint: str) -> None:
        self._session, self._files = session, files_of(session)
        self._root = checkpoint.rstrip("/")
        self._path = f"{self._root}/{NAME}"

    def settings(self) -> dict[str, str]:
        """Further settings of the query, where the directory is one of this machine's and the
        session has none of them.

        Spark writes a file of a checkpoint, then renames it. Its usual way to do so starts five
        processes on a local disk, a ``chmod`` and a ``readlink`` for each end of each renaming; its
        other way starts one, and replaces a file at once instead of deleting it first.
        """
        chosen = any(self._files.setting(key) for key in _LOCAL_CHECKPOINT)
        return {} if chosen or self._files.scheme(self._root) != "file" else _LOCAL_CHECKPOINT

    def read(self, title: str) -> dict[str, Any] | None:
        """The binding, or None in a checkpoint that has not begun; ``CheckpointError`` for one that
        has begun without a binding, or with one that cannot be read.
        """
        if not self._has_begun():
            return None
        problem = f"the checkpoint {self._root} has no {NAME}, which says whose it is"
        text = self._files.text(self._path)
        if text is not None:
            problem = f"{self._path} cannot be read"
            try:
                binding = json.loads(text)
            except ValueError:
                binding = {}
            if binding.get("version") == FORMAT_VERSION:
                return self.in_its_place(binding, title)
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

    def in_its_place(self, binding: dict[str, Any], title: str) -> dict[str, Any]:
        """The binding of a checkpoint that may have been moved. Spark writes into its state in
        which folder that lies; there the paths become those of now.
        """
        here, before = self._files.qualified(self._root), binding.get(AT)
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
                mended = _STATE_SCHEMA.sub(lambda found: f'"{here}{found[1]}', text)
                if mended != text:
                    self._files.put(f"{folder}/{name}", mended)
        binding = {**binding, AT: here}
        self.write(binding)
        return binding

    def place(self) -> str:
        """The folder in full, as a binding has it."""
        return self._files.qualified(self._root)

    def at_rest(self, title: str) -> dict[str, Any]:
        """The binding of a query that has begun and stands still; ``CheckpointError`` for a folder
        without one, and for one whose query runs in this session.
        """
        binding = self.read(title)
        if binding is None:
            raise CheckpointError(
                title, f"{self._root} has no micro-batch", "Name a query's checkpoint="
            )
        if self.is_running():
            raise CheckpointError(title, f"the query of {self._root} is running", "Stop it first")
        return binding

    def is_running(self) -> bool:
        """Whether its query runs in this application; of Spark Connect's, in this session."""
        text = self._files.text(f"{self._root}/metadata")
        if text is None:
            return False
        query = json.loads(text)["id"]
        if is_remote(self._session):
            return any(str(one.id) == query for one in self._session.streams.active)
        own: Any = self._session
        running = own._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
        return bool(running.containsKey(own._jvm.java.util.UUID.fromString(query)))  # noqa: SLF001

    def write(self, binding: Mapping[str, Any]) -> None:
        """Bind a checkpoint, at once: there is never a part of the file."""
        self._files.put(self._path, json.dumps(binding, indent=1))

    def has_committed(self) -> bool:
        """Whether a micro-batch is done."""
        return self._files.has_files(f"{self._root}/commits")

    def _has_begun(self) -> bool:
        """Whether Spark has planned a micro-batch, or a source what will be its first."""
        return any(self._files.has_files(f"{self._root}/{name}") for name in ("offsets", "sources"))
