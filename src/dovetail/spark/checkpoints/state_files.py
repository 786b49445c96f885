"""The files of a checkpoint: its own file, Spark's logs, and the blobs in Spark's state store.

``spark_files`` reads those on any file system, for sessions of any kind. ``local_state`` reads
those on a local disk, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from dovetail.state.blobs import MemoryBlobs

STATE_OPERATOR = "transformWithStateInPandasExec"
"""Spark's name of the operators that run stages. Sources may have other operators with state."""


class StatefulOperator(NamedTuple):
    """An operator of Spark's that runs stages with state: its id, which names the folder
    ``state/<number>``, and the count of its partitions. Or one of the stages that share it.
    """

    number: int
    partitions: int
    prefix: str = ""
    """The text before the names of a stage's blobs: the stage's fingerprint and a slash if the
    operator runs several stages, else empty."""


class CommittedBatches(NamedTuple):
    """The operators with state, and the ids of the first and the last micro-batch (both inclusive)
    whose state can be read.
    """

    operators: list[StatefulOperator]
    first: int
    last: int
    others: tuple[str, ...] = ()
    """Spark's names of other operators with state, such as ``dedupe``, which sources may have. A
    name may come twice. Nothing reads their state."""


ManifestBlobs = Mapping[int, MemoryBlobs]
"""The manifest (the list of a bucket's stored segments) and its pages of each bucket, as blobs by
name. The keys are bucket labels, under which Spark shuffles buckets.
"""


def split_blob_name(name: str) -> tuple[str, str]:
    """Return the prefix and the rest of a blob's name in Spark's state store. The prefix ends in
    the name's last slash; it is empty for a stage that shares its operator with no other.
    """
    prefix, slash, rest = name.rpartition("/")
    return prefix + slash, rest


class StateFiles(Protocol):
    """The files of one checkpoint.

    Files on a local disk raise ``UnreadableFile`` (``changelog_files``) where they are not as
    known. Files that Spark reads raise ``ConfigurationError`` if it cannot, or Spark's own error if
    they have been deleted.
    """

    checkpoint: str
    """The folder of the checkpoint."""

    def text(self, caller: str, name: str) -> str | None:
        """Return the text of the file ``name``, a path within the checkpoint, as UTF-8; None if
        there is no such file. ``caller``: the user's call, to begin errors.

        Raises ``ConfigurationError`` if Spark cannot read it. The reader of a local disk uses no
        Spark: its own errors pass, and ``caller`` is not used.
        """

    def has(self, name: str) -> bool:
        """Return True if there is a file ``name``, a path within the checkpoint. ``name`` must not
        be that of a folder.
        """

    def read(self, name: str) -> bytes | None:
        """Return the bytes of the file ``name``, a path within the checkpoint; None if there is no
        such file. ``name`` must not be that of a folder. Other errors of reading pass.
        """

    def with_present_path(self, bound: dict[str, Any], caller: str) -> dict[str, Any]:
        """Return ``bound``, the content of ``dovetail.json``. If the checkpoint was moved and the
        reader needs its path, write the present path to the files first, and return a corrected
        copy.

        ``caller``: the user's call, to begin errors. Raises ``CheckpointError`` for a moved
        checkpoint on Spark Connect.
        """

    def committed_batches(self, caller: str) -> CommittedBatches | None:
        """Return the operators that run stages with state (``operators``), each an id and its count
        of partitions. Also return the ids of the first and the last micro-batch whose state can be
        read (``first``, ``last``, both inclusive). ``others`` has the names of other operators.
        None if none is committed or no stage has stored anything yet.

        ``caller``: the user's call, to begin errors. Raises ``ConfigurationError`` if Spark cannot
        read the checkpoint, and ``UnreadableFile`` for local files in another format.
        """

    def manifests(
        self,
        caller: str,
        operators: Iterable[StatefulOperator],
        batch: int,
        buckets: int,
        prefixes: Sequence[str],
    ) -> dict[StatefulOperator, ManifestBlobs]:
        """Return the manifests of all buckets after the micro-batch with the id ``batch``, as
        blobs: by operator, then by bucket label. A manifest lists all that a bucket has stored, and
        may go on in further blobs, its pages. There is a key for each of ``operators`` and each of
        ``prefixes``, perhaps with no bucket. A bucket without a manifest is absent.

        ``batch``: an id within ``committed_batches``. ``caller``: the user's call, to begin errors.
        ``buckets``: the count of buckets. ``prefixes``: all texts that stand before the names of a
        stage's blobs.

        On a local disk, raises ``UnreadableFile`` for a missing file or one in another format, and
        ``StateError`` for a manifest of another version. Spark's reader raises
        ``ConfigurationError`` if it cannot read the checkpoint, or Spark's own error if files were
        deleted.
        """

    def segments(
        self,
        caller: str,
        operator: StatefulOperator,
        batch: int,
        buckets: int,
        labels_by_name: Mapping[str, int],
    ) -> Iterator[tuple[str, bytes]]:
        """Yield (name, blob) for each name in ``labels_by_name``, in any order, as they are after
        the micro-batch with the id ``batch``. ``labels_by_name``: by the name of a blob, the label
        of its bucket. ``buckets``: the count of buckets. ``caller``: the user's call, to begin
        errors.

        Errors are raised as blobs are read, not by the call. On a local disk a missing blob, or a
        file in another format, raises ``UnreadableFile``. Spark's reader leaves out a missing blob,
        and raises ``ConfigurationError`` or Spark's own error if it cannot read.
        """

    has_frames: bool
    """True if Spark reads the files, so that their rows can be read as frames."""
    reads_pieces: bool
    """True if a segment costs by its own size alone, False if each call has a high price."""
