"""The rows that differ between two snapshots, file by file.

A data file changes if it comes, goes, or is under other delete files than before. Its rows that
were live and are no longer are removed, the others that are live now have come:

| row of a data file | live before | live after | it is   |
|--------------------|-------------|------------|---------|
| 0                  | yes         | yes        | -       |
| 1                  | yes         | no         | removed |
| 2                  | no          | yes        | added   |

A row that moves to another file is removed and added. Both are taken as one further up
(``laws.net_changes``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata

from dovetail.arrays.grouping import Ints, Mask
from dovetail.errors import DataError
from dovetail.iceberg import deletion_vectors
from dovetail.iceberg.columns import columns_of
from dovetail.iceberg.live_files import LiveFile


@dataclass(frozen=True)
class FileChange:
    """A data file with the delete files that apply to it in two snapshots."""

    file: DataFile
    before: tuple[DataFile, ...] | None
    """The delete files of the former snapshot; None if it lacks the data file."""
    after: tuple[DataFile, ...] | None
    """The delete files of the later snapshot; None if it lacks the data file."""


def changed_files(
    before: Mapping[str, LiveFile], after: Mapping[str, LiveFile]
) -> Iterator[FileChange]:
    """Yield the data files whose rows may differ between two snapshots, in order of their paths:
    files that were added or removed, or that have other delete files. Equal snapshots yield none.

    ``before``, ``after``: all live files of each snapshot by their paths, of one table. Data files
    never change, so a file in both snapshots is described as in ``after``.
    """
    for path in sorted({*before, *after}):
        was, is_ = before.get(path), after.get(path)
        if was is None or is_ is None or was.delete_paths != is_.delete_paths:
            yield FileChange(
                (is_ or was).file,  # type: ignore[union-attr]
                None if was is None else was.deletes,
                None if is_ is None else is_.deletes,
            )


@dataclass(frozen=True)
class _LiveRows:
    """The rows of a data file that are live in a snapshot."""

    by_position: Mask
    """False for rows that are deleted by their positions, of all rows of the file; all False if the
    snapshot lacks the file."""
    deleted_values: Sequence[pa.Table]
    """Rows of values that delete all rows with these values, in columns named by their numbers as
    text. None of them counts for a file that the snapshot lacks.
    """

    def live_mask(self, batch: pa.RecordBatch, ids: Sequence[int], start: int) -> Mask:
        """Return the mask of the rows of a batch that no delete file removes: bool[n]. All are
        False if the snapshot lacks the data file.

        ``ids``: the Iceberg field id of each of the batch's columns, in order; all columns of
        ``deleted_values`` must be among them. ``start``: the position of the batch's first row in
        the file, from 0.
        """
        live: Mask = self.by_position[start : start + batch.num_rows].copy()
        for values in self.deleted_values:
            columns = [batch.column(ids.index(int(name))) for name in values.column_names]
            live &= ~find_equal_rows(columns, values.columns)
        return live


@dataclass(frozen=True)
class RowReader:
    """A reader of the data files of an Iceberg table, which returns the rows that a snapshot
    changes.
    """

    metadata: TableMetadata
    """The table's metadata, without its snapshots."""
    io: FileIO
    """The file system of the table's files."""
    schema: Schema
    """The columns that are read, at the top level, in order."""

    @classmethod
    def of(cls, table: Table, schema: Schema) -> RowReader:
        """Return a reader of a table as it is now. The reader travels to tasks, so its metadata has
        no list of snapshots. ``schema``: the columns to read, by their field ids in the table.
        """
        unread: dict[str, Any] = {
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
        }
        return cls(table.metadata.model_copy(update=unread), table.io, schema)

    def changed_rows(self, change: FileChange) -> Iterator[tuple[bool, pa.RecordBatch]]:
        """Yield (True, rows) for the rows of a data file that ``change`` removes, and (False, rows)
        for those that it adds. Yield nothing if no row differs. ``change``: the data file, and the
        delete files that apply to it before and after; None where the snapshot lacks the data file.

        Rows come batch by batch in the file's order, in each batch the removed ones first; none is
        empty. They have the columns of ``schema``. Delete files are always read. The data file is
        not read if both sides have the same rows by their positions, and no delete by values. So a
        file that is new, or gone, is read, unless no row of it is live. Files are read as the
        result is. Raises ``DataError`` then for a delete file in another format than Parquet and
        Puffin, and for deletes by a field within a struct.
        """
        was, is_ = (self._live_rows(change.file, side) for side in (change.before, change.after))
        deleted_values = [*was.deleted_values, *is_.deleted_values]
        if not deleted_values and np.array_equal(was.by_position, is_.by_position):
            return
        read_ids = [field.field_id for field in self.schema.fields]
        compared = dict.fromkeys(int(name) for rows in deleted_values for name in rows.column_names)
        further = columns_of(self.metadata, [id_ for id_ in compared if id_ not in read_ids])
        wanted = Schema(*self.schema.fields, *further.fields)
        ids = [field.field_id for field in wanted.fields]
        start = 0
        for batch in self.rows(change.file, wanted):
            before, after = was.live_mask(batch, ids, start), is_.live_mask(batch, ids, start)
            start += batch.num_rows
            rows = batch.select(range(len(read_ids)))
            for removed, mask in ((True, before & ~after), (False, after & ~before)):
                if mask.any():
                    yield removed, rows if mask.all() else rows.filter(pa.array(mask))

    def rows(self, file: DataFile, schema: Schema) -> Iterator[pa.RecordBatch]:
        """Yield all rows that a data or delete file has, batch by batch in order, whether they are
        deleted or not. ``schema``: the columns to read, found by their field ids; one that the file
        lacks is null.
        """
        scan = ArrowScan(self.metadata, self.io, schema, AlwaysTrue())
        return scan.to_record_batches([FileScanTask(file)])

    def _live_rows(self, file: DataFile, deletes: Sequence[DataFile] | None) -> _LiveRows:
        """Return the rows of a data file that stay under the delete files ``deletes``: no row for
        None, all rows for an empty list. The result has a mask of rows by their positions, and the
        values by which others are deleted. Delete files are read here, the data file is not. Raises
        ``DataError`` for one in another format than Parquet and Puffin, and for deletes by a field
        within a struct.
        """
        if deletes is None:
            return _LiveRows(np.zeros(file.record_count, np.bool_), [])
        live = np.ones(file.record_count, np.bool_)
        deleted_values = []
        for delete in deletes:
            if delete.content == DataFileContent.EQUALITY_DELETES:
                deleted_values.append(self._read_deleted_values(delete))
            else:
                live[_deleted_positions(self.io, delete, file.file_path)] = False
        return _LiveRows(live, deleted_values)

    def _read_deleted_values(self, delete: DataFile) -> pa.Table:
        """Return the rows of values that ``delete``, a file of equality deletes, deletes. Each
        column is named by its field id as text. Without rows their types are null. Raises
        ``DataError`` for a field within a struct.
        """
        schema = columns_of(self.metadata, delete.equality_ids or [])
        batches = list(self.rows(delete, schema))
        names = [str(field.field_id) for field in schema.fields]
        return pa.table(
            [
                pa.concat_arrays([batch.column(index) for batch in batches] or [pa.nulls(0)])
                for index in range(len(names))
            ],
            names=names,
        )


def find_equal_rows(rows: Sequence[pa.Array], values: Sequence[pa.Array | pa.ChunkedArray]) -> Mask:
    """Find the rows that equal one of ``values`` in all columns: bool[n], for n rows. A null equals
    a null. Floats are equal by their bits, so -0.0 does not equal 0.0.

    ``rows``, ``values``: at least one column, as many in both, paired by position; ``ValueError``
    otherwise. Values are cast to the rows' types; Arrow's error passes if they do not fit.

    >>> find_equal_rows([pa.array([1, None, 2])], [pa.array([None, 2, 3])]).tolist()
    [False, True, True]
    """
    count = len(rows[0])
    code = np.zeros(count + len(values[0]), np.int64)
    for row_column, value_column in zip(rows, values, strict=True):
        both = pa.chunked_array(
            [
                chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk  # such as UUIDs
                for chunk in (row_column, *_chunks(value_column, row_column.type))
            ]
        )
        encoded = both.combine_chunks().dictionary_encode("encode")
        column_code = encoded.indices.to_numpy().astype(np.int64)
        code = np.unique(code * len(encoded.dictionary) + column_code, return_inverse=True)[1]
    return np.isin(code[:count], code[count:])


def _chunks(column: pa.Array | pa.ChunkedArray, type_: pa.DataType) -> Sequence[pa.Array]:
    """Return a column as chunks of the type ``type_``, perhaps none. Raises Arrow's error for
    values that do not fit the type.
    """
    column = column.cast(type_)
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _deleted_positions(io: FileIO, delete: DataFile, data_file: str) -> Ints:
    """Return the positions of a data file, from 0, that a delete file names: int64[m], in the order
    of the delete file; empty if it names none.

    ``data_file``: the path of the data file, as the delete file writes it. Raises ``DataError`` for
    a delete file of another format than Parquet and Puffin.
    """
    if delete.file_format == FileFormat.PUFFIN:
        return deletion_vectors.deleted_positions(io, delete.file_path, data_file)
    if delete.file_format != FileFormat.PARQUET:
        raise DataError(
            "from_iceberg",
            f"the delete file {delete.file_path} is in the format {delete.file_format.name}",
            "Let the table write Parquet ('write.delete.format.default'), and rewrite this file",
        )
    with io.new_input(delete.file_path).open() as file:
        rows = pq.read_table(
            file, columns=["pos"], filters=pc.field("file_path") == data_file, partitioning=None
        )
    positions: Ints = rows["pos"].to_numpy()
    return positions
