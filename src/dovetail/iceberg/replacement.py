"""Rows of an Iceberg table replaced by their keys: copy on write, in one commit.

Statistics of files say which may have one of the keys, and the rows of these are read. A file with
such rows is written anew without them, together with the new rows. All other files stay as they
are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    LessThanOrEqual,
)
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from dovetail.arrays.equality import canonical_key
from dovetail.arrays.grouping import Mask
from dovetail.iceberg.changed_rows import FileChange, RowReader, find_equal_rows
from dovetail.iceberg.live_files import LiveFile, ManifestReader, is_skipped_wrongly

CONFLICTS = (CommitFailedException, ValidationException)
"""Errors of a commit that conflicts with another writer's. It has changed nothing."""
QUERY, BATCH = "dovetail.query", "dovetail.batch"
"""The id of the query that has made a snapshot, in its summary, and its micro-batch. The former is
also the property that names a table's owner."""
_LISTED_MAX = 200
"""The most keys by which files are skipped one by one. More are skipped by their range alone."""


@dataclass(frozen=True)
class FileRows:
    """A data file with rows of some keys."""

    file: DataFile
    rows: pa.Table
    """All live rows of the file, in all columns of the table."""
    has_key: Mask
    """True for each row with one of the keys."""


def rows_of_keys(table: Table, keys: pa.Table, *, all_rows: bool = True) -> Iterator[FileRows]:
    """Yield the data files of the current snapshot that have live rows with one of the keys, in no
    particular order. A row is live if no delete file removes it. Each file comes as ``FileRows``:
    all its live rows, in all columns, and a mask of those with a key.

    ``keys``: a row for each key, in at least one column of the table, with their names and types. A
    null equals a null, a NaN a NaN, and -0.0 equals 0.0. Without keys or snapshots, nothing is read
    or yielded. ``all_rows``: False if only rows with a key count; deleted rows of other keys may
    then be among the live ones. Files are read as the result is. Raises ``DataError`` then for
    delete files that cannot be read.
    """
    if not keys.num_rows:
        return
    key = [canonical_key(column.combine_chunks()) for column in keys.columns]
    manifests = ManifestReader(table.metadata, table.io)
    files = manifests.live_files_matching(
        table.current_snapshot(), _condition_of_keys(keys, table.metadata), all_rows=all_rows
    )
    for live in files.values():
        compared = _live_rows(table, live, keys.column_names)
        has_key = find_equal_rows(
            [canonical_key(column.combine_chunks()) for column in compared.columns], key
        )
        if has_key.any():
            yield FileRows(live.file, _live_rows(table, live, table.schema().column_names), has_key)


def all_files(table: Table) -> list[DataFile]:
    """Return the descriptions of all data files of a table's current snapshot, without statistics;
    empty if there is no snapshot.
    """
    files = ManifestReader(table.metadata, table.io).live_files(table.current_snapshot())
    return [live.file for live in files.values()]


def commit(
    table: Table,
    rows: pa.Table,
    removed: Sequence[DataFile] = (),
    *,
    summary: Mapping[str, str],
    properties: Mapping[str, str],
    always: bool = False,
) -> None:
    """Add rows, remove data files and set properties of the table, all in one commit. Without
    anything to do there is no commit, and no snapshot if only properties change.

    ``rows``: in the table's columns. ``removed``: whole data files of the current snapshot.
    ``summary``: names and texts for the new snapshot's summary. ``properties``: texts by name; one
    that the table has with the same text is not set. ``always``: True to make a snapshot even
    without rows and files.

    ``table`` must be as it was when ``removed`` was chosen; the metadata of this handle is changed.
    Raises one of ``CONFLICTS`` if the catalog has a later state; nothing has changed then. Other
    errors of pyiceberg pass; the commit may then have happened.
    """
    new = {name: value for name, value in properties.items() if table.properties.get(name) != value}
    has_snapshot = bool(rows.num_rows or removed or always)
    if not (has_snapshot or new):
        return
    # By default pyiceberg puts a commit on top of those of other writers, and would double rows.
    once = {**table.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})
    with table.transaction() as transaction:
        if new:
            transaction.set_properties(new)
        if not has_snapshot:
            return
        update = transaction.update_snapshot(snapshot_properties=dict(summary))
        with update.overwrite() if removed else update.fast_append() as producer:
            for file in removed:
                producer.delete_data_file(file)
            if rows.num_rows:
                for file in _dataframe_to_data_files(table.metadata, rows, table.io):
                    producer.append_data_file(file)


def last_batch(metadata: TableMetadata, query: str) -> int:
    """Return the index, from 0, of the last micro-batch that the query with the id ``query`` has
    committed to a table, -1 for none. Only the snapshots that have led to the present one count,
    and that have not expired.
    """
    numbers = [
        int(snapshot.summary[BATCH] or -1)
        for snapshot in _snapshots_to_present(metadata)
        if snapshot.summary is not None and snapshot.summary.get(QUERY) == query
    ]
    return max(numbers, default=-1)


def _snapshots_to_present(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield a table's present snapshot and those before it, the latest first; nothing without one.
    Snapshots that were rolled back, or are of other branches, are left out. Behind a snapshot that
    has expired the line is not known. All older snapshots then follow, in the metadata's order.
    """
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = last = metadata.current_snapshot()
    while snapshot is not None:
        yield snapshot
        last = snapshot
        # A parent that has expired is missing; pyiceberg then removes its id, too.
        snapshot = by_id.get(snapshot.parent_snapshot_id or 0)
    if last is not None:
        yield from (other for other in by_id.values() if _place_of(other) < _place_of(last))


def _place_of(snapshot: Snapshot) -> tuple[int, int]:
    """Return the sequence number of a snapshot and its time in milliseconds. By these pairs,
    snapshots are ordered as they were made. The first is 0 in tables of format version 1, which
    number no snapshots, so the time decides there.
    """
    return snapshot.sequence_number or 0, snapshot.timestamp_ms


def _live_rows(table: Table, live: LiveFile, names: Sequence[str]) -> pa.Table:
    """Return the rows of a data file that no delete file removes, in the file's order. They have
    the top-level columns of the table with these ``names``, in the order of ``names``.

    Unknown names are left out. A file without such rows gives an empty table. ``live``: the file
    and its delete files, which are read. Raises ``DataError`` for delete files that cannot be read.
    """
    fields = {field.name: field for field in table.schema().fields}
    wanted = [fields[name] for name in names if name in fields]
    reader = RowReader.of(table, Schema(*wanted))
    batches = [rows for _, rows in reader.changed_rows(FileChange(live.file, None, live.deletes))]
    columns = schema_to_pyarrow(reader.schema, include_field_ids=False)
    parts = [pa.Table.from_batches([batch]) for batch in batches]
    # Batches differ in the widths of their offsets.
    return pa.concat_tables([columns.empty_table(), *(part.cast(columns) for part in parts)])


def _condition_of_keys(keys: pa.Table, metadata: TableMetadata) -> BooleanExpression:
    """Return a condition that all rows with one of the keys fulfil, by which files are skipped.
    ``keys``: a row for each key, at least one, in columns named as in the table. ``metadata``: that
    of the table.

    The condition restricts key columns of integers or texts without nulls: to their values, or to
    their range if they have more than ``_LISTED_MAX`` (200) distinct ones. Without such columns it
    is always true. A column by which pyiceberg would skip wrong files is left out
    (``is_skipped_wrongly``).
    """
    conditions: list[BooleanExpression] = [AlwaysTrue()]
    for name, column in zip(keys.column_names, keys.columns, strict=True):
        type_ = column.type
        has_range = pa.types.is_integer(type_) or pa.types.is_string(type_)
        if not has_range or column.null_count:
            continue
        ends = pc.min_max(column)
        if is_skipped_wrongly(metadata, ends["min"].as_py()):
            continue
        values: list[Any] = column.unique().to_pylist()
        if len(values) <= _LISTED_MAX:
            conditions.append(In(name, values))
        else:
            conditions.append(GreaterThanOrEqual(name, ends["min"].as_py()))
            conditions.append(LessThanOrEqual(name, ends["max"].as_py()))
    return reduce(And, conditions)
