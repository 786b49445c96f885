"""The data files of a snapshot, each with the delete files that apply to it.

| a delete file with    | applies to a data file                                          |
|-----------------------|-----------------------------------------------------------------|
| positions, in Parquet | of its partition, not newer than it, whose path is in its range |
| positions, in Puffin  | of its partition, not newer than it, that it refers to          |
| values of columns     | of its partition, or any if it has none, older than it          |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.table import ManifestGroupPlanner
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import TruncateTransform, VoidTransform
from pyiceberg.typedef import Record

from dovetail.iceberg.deletion_vectors import data_files_of

_PATH_ID = 2147483546
"""The number that Iceberg reserves for the column ``file_path`` of position deletes."""

_LOWER_ENDS = (-(2**31), -(2**63))
"""The smallest whole numbers of Iceberg's two types of them."""

Partition = tuple[int, Record]
"""The id of a partition spec, and the values of its fields."""


@dataclass(frozen=True)
class LiveFile:
    """A data file of a snapshot, with the delete files that apply to it."""

    file: DataFile
    deletes: tuple[DataFile, ...]
    """The delete files that apply to it, by path."""

    @property
    def delete_paths(self) -> tuple[str, ...]:
        """The paths of the delete files that apply to the data file, ascending. They identify the
        delete files.
        """
        return tuple(delete.file_path for delete in self.deletes)


@dataclass
class ManifestReader:
    """A reader of the files of snapshots, which reads each manifest once."""

    metadata: TableMetadata
    """The table's metadata, which must have the specs of all partitions that are read."""
    io: FileIO
    """The file system of the table's files."""
    _entries: dict[str, list[ManifestEntry]] = field(default_factory=dict, init=False)
    """The entries of the manifests of the snapshot that ``live_files`` read last, by path."""
    _referenced: dict[str, frozenset[str]] = field(default_factory=dict, init=False)
    """The data files that a Puffin file has deletion vectors of, by its path."""

    def live_files(self, snapshot: Snapshot | None) -> dict[str, LiveFile]:
        """Return all data files of a snapshot by their paths, each with the delete files that apply
        to it; empty for None. Descriptions of files have no statistics.

        Manifests that the snapshot shares with the one read last come from memory; others are read,
        and older ones are forgotten. So neighbouring snapshots should follow each other. Errors of
        the file system pass.
        """
        manifests = [] if snapshot is None else snapshot.manifests(self.io)
        self._entries = {m.manifest_path: self._entries_of(m) for m in manifests}
        return self._live_files_among(chain.from_iterable(self._entries.values()))

    def live_files_matching(
        self, snapshot: Snapshot | None, condition: BooleanExpression, *, all_rows: bool = False
    ) -> dict[str, LiveFile]:
        """Return the data files of a snapshot that may have rows which fulfil ``condition``, by
        their paths; empty for None. Each has the delete files that apply to it and may concern such
        rows.

        ``condition``: on columns of ``metadata``'s present schema, by name. Statistics of manifests
        and files decide. ``all_rows``: True if other rows of these files count, too. Each then has
        all delete files that apply to it. Manifests are read anew, and those in memory stay. Errors
        of the file system pass.
        """
        if snapshot is None:
            return {}
        planner = ManifestGroupPlanner(self.metadata, self.io, row_filter=condition)
        planned: list[ManifestFile] = []
        whole: list[ManifestFile] = []
        for manifest in snapshot.manifests(self.io):
            is_whole = all_rows and manifest.content == ManifestContent.DELETES
            (whole if is_whole else planned).append(manifest)
        entries = [*planner.plan_manifest_entries(planned), *map(self._entries_of, whole)]
        return self._live_files_among(chain.from_iterable(entries))

    def _live_files_among(self, entries: Iterable[ManifestEntry]) -> dict[str, LiveFile]:
        """Return the data files among ``entries`` by their paths, each with the delete files among
        them that apply to it. Without data files the result is empty.

        ``entries``: descriptions of data and delete files in the manifests of one snapshot, without
        those that it has removed.
        """
        is_data: dict[bool, list[ManifestEntry]] = defaultdict(list)
        for entry in entries:
            is_data[entry.data_file.content == DataFileContent.DATA].append(entry)
        deletes = self._deletes_by_partition(is_data[False])
        return {
            entry.data_file.file_path: LiveFile(
                without_statistics(entry.data_file), self._deletes_of(entry, deletes)
            )
            for entry in is_data[True]
        }

    def _entries_of(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Return the descriptions of files in a manifest, without those that it marks as removed.
        They come from memory if the snapshot read last has this manifest.
        """
        entries = self._entries.get(manifest.manifest_path)
        return manifest.fetch_manifest_entry(self.io) if entries is None else entries

    def _deletes_by_partition(
        self, entries: Iterable[ManifestEntry]
    ) -> Mapping[Partition | None, list[ManifestEntry]]:
        """Return delete files by the partition, (spec id, values), that they apply to. Under None
        are deletes by equality of an unpartitioned spec, which apply to all partitions.
        ``entries``: of delete files alone; without any the mapping is empty.
        """
        # A field that left a spec of format version 1 is still in it, as void.
        unpartitioned = {
            id_
            for id_, spec in self.metadata.specs().items()
            if all(isinstance(part.transform, VoidTransform) for part in spec.fields)
        }
        by_partition: dict[Partition | None, list[ManifestEntry]] = defaultdict(list)
        for entry in entries:
            file = entry.data_file
            is_global = (
                file.content == DataFileContent.EQUALITY_DELETES and file.spec_id in unpartitioned
            )
            by_partition[None if is_global else _partition_of(file)].append(entry)
        return by_partition

    def _deletes_of(
        self, data: ManifestEntry, deletes: Mapping[Partition | None, list[ManifestEntry]]
    ) -> tuple[DataFile, ...]:
        """Return the delete files that apply to the data file that ``data`` describes, in order of
        their paths, without statistics.

        ``deletes``: the delete files of a snapshot by their partition, and under None those for all
        partitions.
        """
        near = [*deletes.get(_partition_of(data.data_file), ()), *deletes.get(None, ())]
        applying = {e.data_file.file_path: e.data_file for e in near if self._applies(e, data)}
        return tuple(without_statistics(applying[path]) for path in sorted(applying))

    def _applies(self, delete: ManifestEntry, data: ManifestEntry) -> bool:
        """Return True if a delete file applies to a data file. The delete file must be for the data
        file's partition, or for all, which is not checked.

        Deletes by equality apply to all files with a lower sequence number. Deletes by position
        apply to files that they may name, with a lower or the same sequence number. A missing one
        is 0. Source: Iceberg's specification, "Scan Planning".
        """
        after, before = delete.sequence_number or 0, data.sequence_number or 0
        if delete.data_file.content == DataFileContent.EQUALITY_DELETES:
            return after > before
        return after >= before and self._may_name(delete.data_file, data.data_file.file_path)

    def _may_name(self, delete: DataFile, path: str) -> bool:
        """Return True if ``delete``, a file of position deletes, may name the data file at
        ``path``. A Puffin file is read for its data files, once. A Parquet file goes by its bounds
        of paths; without bounds it may name any.
        """
        if delete.file_format == FileFormat.PUFFIN:
            if delete.file_path not in self._referenced:
                self._referenced[delete.file_path] = data_files_of(self.io, delete.file_path)
            return path in self._referenced[delete.file_path]
        lower = (delete.lower_bounds or {}).get(_PATH_ID)
        upper = (delete.upper_bounds or {}).get(_PATH_ID)
        if lower is None or upper is None:
            return True
        # Bounds may be shortened, the upper one to a text above all paths.
        name = path.encode()
        return lower <= name and (name <= upper or name.startswith(upper))


def without_statistics(file: DataFile) -> DataFile:
    """Return a new description of a file without its statistics. Content, path, format, partition
    and its spec, row count, size in bytes, and the ids of columns with deleted values are kept.
    """
    plain = DataFile.from_args(
        content=file.content,
        file_path=file.file_path,
        file_format=file.file_format,
        partition=file.partition,
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
        equality_ids=file.equality_ids,
    )
    plain.spec_id = file.spec_id
    return plain


def is_skipped_wrongly(metadata: TableMetadata, smallest: Any) -> bool:
    """Return True if files must not be skipped by a column. Rows with the smallest value that is
    wanted of it, ``smallest``, may be in a partition where pyiceberg does not look.

    A partition field that truncates whole numbers takes those at the lower end of their type to one
    below it. pyiceberg writes this number wrapped around, as a large one. It looks for the number
    itself. ``metadata``: the table's, with all its partition specs. False for texts.
    """
    widths = [
        partition_field.transform.width
        for spec in metadata.partition_specs
        for partition_field in spec.fields
        if isinstance(partition_field.transform, TruncateTransform)
    ]
    return isinstance(smallest, int) and any(
        end <= smallest < end + width for end in _LOWER_ENDS for width in widths
    )


def _partition_of(file: DataFile) -> Partition:
    """Return the partition of a file: (id of its partition spec, values of the partition's
    fields).
    """
    return file.spec_id, file.partition
