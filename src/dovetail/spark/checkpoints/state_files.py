"""The files of a checkpoint: its own file, Spark's logs, and the blobs in Spark's state store.

``spark_files`` reads those on any file system, for sessions of any kind. ``local_state`` reads
those on a local disk, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from dovetail.state.blobs import MemoryBlobs


class StatefulOperator(NamedTuple):
    """One of Spark's operators with state: its number, and the number of its partitions."""

    number: int
    partitions: int


class CommittedBatches(NamedTuple):
    """The operators with state, and the first and the last micro-batch (both inclusive) that can be
    read.
    """

    operators: list[StatefulOperator]
    first: int
    last: int


ManifestBlobs = Mapping[int, MemoryBlobs]
"""The manifest and its pages of each bucket, by label."""


class StateFiles(Protocol):
    """The files of one checkpoint.

    Files on a local disk raise ``UnreadableFile`` (``changelog_files``) where they are not as
    known. Files that Spark reads raise ``ConfigurationError`` if it cannot, or Spark's own error if
    they have been deleted.
    """

    checkpoint: str

    def text(self, caller: str, name: str) -> str | None:
        """Return the text of the file ``name``, a path within the checkpoint; None if there is no
        such file. ``caller``: the call in errors. Raises ``ConfigurationError`` if Spark cannot
        read it.
        """

    def has(self, name: str) -> bool:
        """Return True if there is a file ``name``, a path within the checkpoint."""

    def read(self, name: str) -> bytes | None:
        """Return the bytes of the file ``name``, a path within the checkpoint; None if there is no
        such file.
        """

    def with_present_path(self, bound: dict[str, Any], caller: str) -> dict[str, Any]:
        """Return ``bound``, the checkpoint's own file, corrected if the checkpoint was moved and a
        reader needs that. ``caller``: the call in errors. Raises ``CheckpointError`` for a moved
        one on Spark Connect.
        """

    def committed_batches(self, caller: str) -> CommittedBatches | None:
        """Return the operators with state, and the first and the last micro-batch whose state can
        be read. None if none is committed or no state is stored yet. ``caller``: the call in
        errors.

        Raises ``ConfigurationError`` if Spark cannot read the checkpoint, and ``UnreadableFile``
        for local files in another format.
        """

    def manifests(
        self, caller: str, operators: Iterable[StatefulOperator], batch: int, buckets: int
    ) -> dict[StatefulOperator, ManifestBlobs]:
        """Return the manifests of all buckets after the micro-batch ``batch``: by operator, then by
        bucket label. A bucket without a manifest is absent.

        ``batch`` must be one that ``committed_batches`` spans. ``caller``: the call in errors.
        ``buckets``: the number of buckets. Errors are those of the class, on a local disk
        ``StateError`` for a manifest of another version, too.
        """

    def segments(
        self,
        caller: str,
        operator: StatefulOperator,
        batch: int,
        buckets: int,
        names: Mapping[str, int],
    ) -> Iterator[tuple[str, bytes]]:
        """Yield (name, blob) for each of ``names``, in any order, as they are after the micro-batch
        ``batch``. ``names``: the label of the bucket that has each blob. ``buckets``: the number of
        buckets. ``caller``: the call in errors.

        A missing blob raises ``UnreadableFile`` on a local disk; Spark's reader leaves it out.
        Other errors are those of the class, raised as blobs are read.
        """

    has_frames: bool
    """True if Spark reads the files, so that their rows can be read as frames."""
    reads_pieces: bool
    """True if a segment costs by its own size alone, False if each call has a high price."""
