"""A checkpoint on a local disk, read without Spark: no JVM, no job.

A partition of Spark's state store is a snapshot and the changelog files that follow it. The
snapshot is a RocksDB database: a ``.zip`` file, and files in ``SSTs``. The package rocksdict opens
it; ``changelog_files`` reads the rest. This is a shortcut: files that are not as known raise
``UnreadableFile``, and the caller asks Spark instead. Nothing in the checkpoint is written.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from dovetail.arrays.bucket_labels import bucket_labels, bucket_number
from dovetail.spark.checkpoints.changelog_files import UnreadableFile, blob_changes, blob_of
from dovetail.spark.checkpoints.state_files import (
    STATE_OPERATOR,
    CommittedBatches,
    ManifestBlobs,
    StatefulOperator,
)
from dovetail.state import manifest as manifests
from dovetail.state.blobs import MemoryBlobs

_VERSION = "v1\n"
_FAMILY = "blobs"
"""The state variable in which buckets keep their blobs."""


class LocalFiles:
    """The files of a checkpoint on a local disk, read without Spark. Implements ``StateFiles``."""

    has_frames = False
    reads_pieces = True

    def __init__(self, folder: Path) -> None:
        """Take ``folder``, the checkpoint's. Nothing is read yet."""
        self.checkpoint, self._folder = str(folder), folder

    def text(self, caller: str, name: str) -> str | None:
        """Return the text of the file ``name``, a path within the folder, as UTF-8; None if there
        is no such file. Errors of reading and decoding pass. ``caller`` is not used.
        """
        data = self.read(name)
        return None if data is None else data.decode()

    def has(self, name: str) -> bool:
        """Return True if the folder has the file ``name``, a path within it."""
        return (self._folder / name).is_file()

    def read(self, name: str) -> bytes | None:
        """Return the bytes of the file ``name``, a path within the folder; None if there is no such
        file. ``name`` must not be that of a folder. Other errors of reading pass.
        """
        with suppress(FileNotFoundError, NotADirectoryError):
            return (self._folder / name).read_bytes()
        return None

    def modified(self, name: str) -> datetime:
        """Return the time at which the file ``name``, a path within the folder, was last written,
        in UTC. The file must exist.
        """
        return datetime.fromtimestamp((self._folder / name).stat().st_mtime, timezone.utc)

    def with_present_path(self, bound: dict[str, Any], caller: str) -> dict[str, Any]:
        """Return ``bound`` unchanged: paths in Spark's metadata are not needed here. ``caller`` is
        not used.
        """
        return bound

    def committed_batches(self, caller: str) -> CommittedBatches | None:
        """Return the operators that run stages with state, and the names of other operators. Also
        return the ids of the first and the last micro-batch that have a file in ``commits``. None
        if none is committed or no stage has stored anything yet.

        ``caller`` is not used. Raises ``UnreadableFile`` for an operator in another format.
        """
        batches = _numbers_in_folder(self._folder / "commits")
        folders = _numbers_in_folder(self._folder / "state")
        if not batches:
            return None
        described = [(number, *self._describe_operator(number, batches[-1])) for number in folders]
        operators = [
            StatefulOperator(n, count) for n, name, count in described if name == STATE_OPERATOR
        ]
        others = tuple(name for _, name, _ in described if name != STATE_OPERATOR)
        return CommittedBatches(operators, batches[0], batches[-1], others) if operators else None

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
        may go on in further blobs, its pages. There is a key for each of ``operators``, with its
        partitions of that time, and each of ``prefixes``, perhaps with no bucket. A bucket without
        a manifest is absent.

        ``buckets``: the count of buckets. ``prefixes``: the texts that may stand before the names
        of a stage's blobs. ``caller`` is not used. Raises ``UnreadableFile`` for files that are
        missing or in another format, ``StateError`` for a manifest of another version.
        """
        read: dict[StatefulOperator, dict[int, MemoryBlobs]] = {}
        for last in operators:
            _, partitions = self._describe_operator(last.number, batch)
            operator = last._replace(partitions=partitions)
            labels: list[list[int]] = [[] for _ in range(operator.partitions)]
            for bucket, label in enumerate(bucket_labels(buckets)):
                labels[bucket % operator.partitions].append(label)
            stages = [operator._replace(prefix=prefix) for prefix in prefixes]
            read |= {stage: {} for stage in stages}
            for partition, there in enumerate(labels):
                with self._open_partition(operator, partition, batch) as blobs:
                    for stage in stages:
                        read[stage] |= blobs.manifests(there, stage.prefix)
        return {**read}

    def segments(
        self,
        caller: str,
        operator: StatefulOperator,
        batch: int,
        buckets: int,
        labels_by_name: Mapping[str, int],
    ) -> Iterator[tuple[str, bytes]]:
        """Yield (name, blob) for each name in ``labels_by_name``, as they are after the micro-batch
        with the id ``batch``. They come partition by partition, in the order given within a
        partition.

        ``labels_by_name``: by the segment's name, the label of its bucket, the int under which
        Spark stores it. ``buckets``: the count of buckets. ``caller`` is not used. Raises
        ``UnreadableFile`` for a missing segment and for another format.
        """
        by_partition: dict[int, list[str]] = {}
        for name, label in labels_by_name.items():
            partition = bucket_number(label, buckets) % operator.partitions
            by_partition.setdefault(partition, []).append(name)
        for partition, there in by_partition.items():
            with self._open_partition(operator, partition, batch) as blobs:
                for name in there:
                    blob = blobs.get(labels_by_name[name], operator.prefix + name)
                    if blob is None:
                        raise UnreadableFile(f"no segment {name}")
                    yield name, blob

    def _describe_operator(self, number: int, batch: int) -> tuple[str, int]:
        """Return Spark's name of the operator with the id ``number``, and the count of its
        partitions after the micro-batch with the id ``batch``. Raises ``UnreadableFile`` if its
        metadata is missing or has another format.

        Operators that run stages have versions of their metadata, by micro-batch. Others of Spark's
        have one file.
        """
        folder = f"state/{number}/_metadata"
        versions = [v for v in _numbers_in_folder(self._folder / folder / "v2") if v <= batch]
        data = self.read(f"{folder}/v2/{versions[-1]}" if versions else f"{folder}/metadata")
        head, _, body = (data or b"").decode().partition("\n")
        if head not in ("v1", "v2"):
            raise UnreadableFile("metadata of another version")
        described = json.loads(body)
        first, *_ = described["stateStoreInfo"]
        return described["operatorInfo"]["operatorName"], first["numPartitions"]

    @contextmanager
    def _open_partition(
        self, operator: StatefulOperator, partition: int, batch: int
    ) -> Iterator[_Partition]:
        """Return a context with the blobs of one partition after the micro-batch with the id
        ``batch``. They are those of the last snapshot up to then, replaced by those of the later
        changelog files up to ``batch``, inclusive.

        ``partition``: its index, from 0. The snapshot is unpacked into a temporary folder, which is
        deleted after the block. Raises ``UnreadableFile`` if a file is missing or in another
        format.
        """
        folder = self._folder / f"state/{operator.number}/{partition}"
        version = batch + 1
        snapshots = [n for n in _numbers_in_folder(folder, ".zip") if n <= version]
        first = snapshots[-1] if snapshots else 0
        written: dict[tuple[int, str], bytes | None] = {}
        for later in range(first + 1, version + 1):
            try:
                file = (folder / f"{later}.changelog").read_bytes()
            except FileNotFoundError as error:
                raise UnreadableFile("no such file") from error
            written.update(((label, name), blob) for label, name, blob in blob_changes(file))
        with tempfile.TemporaryDirectory(prefix="dovetail-state-") as copy:
            snapshot = _open_snapshot(folder, first, Path(copy)) if first else None
            try:
                yield _Partition(snapshot, written)
            finally:
                if snapshot is not None:
                    snapshot[0].close()


class _Partition:
    """The blobs of one partition: those of a snapshot, and those written since."""

    def __init__(
        self, snapshot: tuple[Any, int] | None, written: Mapping[tuple[int, str], bytes | None]
    ) -> None:
        """Take the blobs of one partition. ``snapshot``: its RocksDB database and the id of the
        state variable with the blobs; None if there is none. ``written``: the blobs written since
        by (label, name), None for a deleted one.
        """
        self._snapshot, self._written = snapshot, written

    def get(self, label: int, name: str) -> bytes | None:
        """Return the blob ``name`` of the bucket with this label; None if there is none or if it
        was deleted. Raises ``UnreadableFile`` if RocksDB cannot read it, or for a value of another
        shape.
        """
        if (label, name) in self._written:
            return self._written[label, name]
        if self._snapshot is None:
            return None
        database, family = self._snapshot
        try:
            value = database.get(_rocksdb_key(family, label, name))
        except Exception as error:
            # rocksdict raises plain exceptions.
            raise UnreadableFile(str(error)) from error
        return None if value is None else blob_of(memoryview(value))

    def manifests(self, labels: Iterable[int], prefix: str) -> Iterator[tuple[int, MemoryBlobs]]:
        """Yield (label, blobs) for each of the buckets ``labels`` that has a manifest, in that
        order. The blobs are the manifest, which lists all that the bucket has stored, and the
        further blobs in which it goes on. ``prefix``: the text before their names here. Raises
        ``UnreadableFile`` if a blob cannot be read, and ``StateError`` for a manifest of another
        version.
        """
        for label in labels:
            blobs = _RecordingBlobs(self, label, prefix)
            if blobs.get(manifests.NAME) is not None:
                manifests.read(blobs)
                yield label, MemoryBlobs(blobs.blobs)


class _RecordingBlobs(MemoryBlobs):
    """The blobs of a bucket that have been read, in memory."""

    def __init__(self, partition: _Partition, label: int, prefix: str) -> None:
        """Begin without blobs. ``label``: that of the bucket in ``partition`` from which blobs are
        read. ``prefix``: the text before their names there.
        """
        super().__init__()
        self._partition, self._label, self._prefix = partition, label, prefix

    def get(self, name: str) -> bytes | None:
        """Return the blob ``name`` of the bucket, None if there is none. Keep a copy of each blob
        that was read in ``blobs``.
        """
        blob = self._partition.get(self._label, self._prefix + name)
        if blob is not None:
            self.put(name, blob)
        return blob


def local_files(checkpoint: str) -> LocalFiles | None:
    """Return the files of a checkpoint on this machine; None if no local folder of that name has a
    ``dovetail.json``, or if rocksdict is not installed. ``checkpoint``: a path or a ``file:`` URI.
    """
    try:
        import rocksdict  # noqa: F401
    except ImportError:
        return None
    folder = Path(checkpoint.removeprefix("file://").removeprefix("file:"))
    return LocalFiles(folder) if (folder / "dovetail.json").is_file() else None


def _open_snapshot(folder: Path, version: int, copy: Path) -> tuple[Any, int]:
    """Open the snapshot ``version`` in a partition's folder, the state after the micro-batch with
    the id ``version - 1``. Return the RocksDB database, read only, which the caller closes, and the
    id of the state variable that has the blobs.

    ``copy``: an empty folder, into which the snapshot is unpacked and its files are linked. Raises
    ``UnreadableFile`` for a snapshot that is missing or in another format.
    """
    from rocksdict import AccessType, Options, Rdict

    try:
        with ZipFile(folder / f"{version}.zip") as archive:
            archive.extractall(copy)
        text = (copy / "metadata").read_text()
        described = json.loads(text.removeprefix(_VERSION))
        if not text.startswith(_VERSION) or described.get("logFiles"):
            raise UnreadableFile("metadata of another version")
        for file in described["sstFiles"]:
            (copy / file["localFileName"]).symlink_to(
                (folder / "SSTs" / file["dfsSstFileName"]).absolute()
            )
        family = int(described["columnFamilyMapping"][_FAMILY])
        database = Rdict(
            str(copy), options=Options(raw_mode=True), access_type=AccessType.read_only()
        )
    except UnreadableFile:
        raise
    except Exception as error:  # rocksdict raises plain exceptions
        raise UnreadableFile(str(error)) from error
    return database, family


def _rocksdb_key(family: int, label: int, name: str) -> bytes:
    """Return the bytes under which RocksDB has the blob ``name`` of the bucket ``label``, the int
    under which Spark stores it. ``family``: the id of the state variable.
    """
    row = _unsafe_row(struct.pack("<qi4x", 0, label))
    return (
        struct.pack("<hi", family, len(row) + 1)
        + b"\0"
        + row
        + b"\0"
        + _unsafe_row(_unsafe_row(name.encode()))
    )


def _unsafe_row(data: bytes) -> bytes:
    """Return Spark's unsafe row with one value of variable length, padded to 8 bytes."""
    return struct.pack("<qii", 0, len(data), 16) + data + bytes(-len(data) % 8)


def _numbers_in_folder(folder: Path, suffix: str = "") -> list[int]:
    """Return as ints, ascending, the names in ``folder`` that are digits followed by ``suffix``.
    Other names are left out. A missing folder has none.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        names = (p.name.removesuffix(suffix) for p in folder.iterdir() if p.name.endswith(suffix))
        return sorted(int(name) for name in names if name.isdigit())
    return []
