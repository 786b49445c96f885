"""A change feed, rows that say what commits did to a table, turned into changes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import LongType, StructType, TimestampType

from dovetail.arrays.grouping import bucket_of
from dovetail.arrays.hashing import stable_hash
from dovetail.base.columns import DELETED, TIMESTAMP, quoted, wire_name
from dovetail.errors import PlanError
from dovetail.laws.net_changes import find_net_changes
from dovetail.plan.changelog_source import expression_of
from dovetail.plan.types.checks import known_field, refuse_duplicates

POSITION = "_commit_position"
"""The column with the position of a change: twice the commit's version, and one more for an added
row.
"""
KIND, COMMIT_VERSION, COMMIT_TIME = "_change_type", "_commit_version", "_commit_timestamp"
"""The columns of a feed beside the table's, as Delta Lake calls them."""
_ROW_TIME, _NEXT_TIME = "_row_time", "_next_time"
"""Columns for ``_net_partition``: the time that a row itself has, and the result of
``_times_of_next``."""
HELD_BYTES_MAX = 256 << 20
"""The bytes of an input partition that are held in memory; more are split into files."""
_PARTS = 64
"""The count of files for an input partition over ``HELD_BYTES_MAX``. They are netted one by one.
"""


def changes_of(
    rows: DataFrame,
    operator: str,
    keys: Sequence[str],
    timestamp: str | Column | None,
    columns: Sequence[str] | None = None,
    *,
    key_updates: bool = True,
    partitions: int | None = None,
) -> DataFrame:
    """Return the rows of a change data feed as changes. ``rows``: the table's columns and those of
    a feed: ``_change_type``, ``_commit_version``, ``_commit_timestamp``. ``operator``: the table in
    errors.

    Columns of the result: the table's, or of these ``keys`` and ``columns``, in the table's order;
    then ``_deleted``, ``_timestamp`` and ``_commit_position``. The position is twice the commit's
    version, and one more for an added row. So it orders commits, and within a commit removed rows
    before added ones. Several rows of a key with one position have no order.

    ``timestamp``: the time of an added row, by default the commit's; a null stays null. A column
    named here is dropped from the result, unless ``columns`` names it. A removed row has the
    commit's time, or its own if that is later. Where an update changes the key, the former row has
    the time of the new one.

    ``key_updates``: False if no update changes a key; former rows of updates are then left out.
    Leave it True if that is not known. ``partitions``: how many tasks net each key's changes of a
    commit, so that rows that change nothing are left out (``laws.net_changes``). None, for a table
    that cannot lose rows, nets nothing.

    Raises ``PlanError`` for unknown columns, for one named twice in ``columns``, and for a key as
    ``timestamp``. Also for an expression that is random or no timestamp, and for columns with the
    names of the three that are added.
    """
    for key in keys:
        known_field(operator, "key=", key, rows.schema)
        if isinstance(timestamp, str) and key == timestamp:
            problem = f"timestamp= names {key!r}, a column of key="
            raise PlanError(operator, problem, "Give an expression, such as F.col(...), there")
    refuse_duplicates(operator, columns or (), "Name it once in columns=")
    for name in columns or ():
        known_field(operator, "columns=", name, rows.schema)
    event_time, kind = F.col(COMMIT_TIME), F.col(KIND)
    if timestamp is not None:
        event_time = expression_of(operator, rows, timestamp, "timestamp=", TimestampType)
    leaves = F.greatest(event_time, COMMIT_TIME)
    if not key_updates:
        rows = rows.where(kind != "update_preimage")
    elif timestamp is not None and partitions is not None:
        # Made here, because Spark Connect has another kind of function. Rows must be filtered after
        # it: it looks at the following row.
        following: Any = arrow_udf(_times_of_next, LongType())  # type: ignore[call-overload]
        follows = following(F.struct(kind, F.col(COMMIT_VERSION), F.unix_micros(event_time)))
        rows = rows.withColumn(_NEXT_TIME, follows)
        leaves = F.coalesce(F.timestamp_micros(_NEXT_TIME), leaves)
    is_delete = kind.isin("delete", "update_preimage")
    used = {COMMIT_TIME, KIND, COMMIT_VERSION, _NEXT_TIME}
    if columns is None and isinstance(timestamp, str):
        used.add(timestamp)
    names = [name for name in rows.columns if name not in used]
    if columns is not None:
        names = [name for name in names if name in {*keys, *columns}]
    _refuse_names_of_changes(operator, names)
    row = [F.col(quoted(name)) for name in names]
    change = [
        is_delete.alias(DELETED),
        F.when(is_delete, leaves).otherwise(event_time).alias(TIMESTAMP),
        (F.col(COMMIT_VERSION) * 2 + F.when(is_delete, 0).otherwise(1)).alias(POSITION),
    ]
    if partitions is None:
        return rows.select(*row, *change)
    row_time = F.lit(None) if timestamp is None else event_time
    rows = rows.select(*row, *change, row_time.cast(TimestampType()).alias(_ROW_TIME))
    parted = rows.repartition(partitions, *(F.col(quoted(key)) for key in keys))
    # Plain names, because mapInArrow takes the dots of a user's names for nesting.
    plain = parted.toDF(*map(wire_name, range(len(rows.columns))))
    key_indices = [names.index(key) for key in keys]
    schema = StructType(plain.schema.fields[:-1])
    return plain.mapInArrow(partial(_net_partition, keys=key_indices), schema).toDF(
        *rows.columns[:-1]
    )


def _refuse_names_of_changes(operator: str, names: Sequence[str]) -> None:
    """Raise ``PlanError`` if one of ``names``, those of a table's columns, is that of a column that
    ``changes_of`` adds. ``operator``: the table in errors.
    """
    for name in names:
        if name in (DELETED, TIMESTAMP, POSITION):
            problem = f"the table's column {name!r} has the name of a part of each change"
            remedy = "Name the columns to read in columns="
            if name == TIMESTAMP:
                remedy += f", or pass timestamp={TIMESTAMP!r}, the event time of to_delta's rows"
            raise PlanError(operator, problem, remedy)


def _net_partition(
    batches: Iterator[pa.RecordBatch], keys: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an input partition, ``batches``, without those that change nothing within a
    commit, and without the last column. ``keys``: the indices of the key columns. No batches yield
    nothing.

    A removed row is dropped if its commit adds a row of its key. An added row is dropped if its
    commit adds no other row of the key and removes just one that is equal, ``_row_time`` included.

    The partition has all rows of its keys. Rows end with ``_deleted``, ``_timestamp``,
    ``_commit_position`` and ``_row_time``, the row's own time or null. They keep their order. But a
    partition of more than 256 MiB (``HELD_BYTES_MAX``) is split into 64 temporary files by key.
    Each file is read as a whole and netted on its own. Then only the rows of a file keep their
    order.
    """
    pending_batches: list[pa.RecordBatch] = []
    size = 0
    with ExitStack() as files:
        parts: list[_SpooledRows] = []
        for batch in batches:
            pending_batches.append(batch)
            size += batch.nbytes
            if size > HELD_BYTES_MAX:
                parts = parts or [_SpooledRows(files, batch.schema) for _ in range(_PARTS)]
                _split_by_key(pending_batches, keys, parts)
                pending_batches, size = [], 0
        if not parts:
            yield from _net_changes(pending_batches, keys)
            return
        _split_by_key(pending_batches, keys, parts)
        for part in parts:
            yield from _net_changes(part.read(), keys)


class _SpooledRows:
    """Rows in an unnamed temporary file, which is deleted when ``files``, a stack of contexts, is
    left.
    """

    def __init__(self, files: ExitStack, schema: pa.Schema) -> None:
        """Open the temporary file for rows of ``schema``. ``files`` closes it."""
        self._file = files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 -- the stack's
        self._writer = pa.ipc.new_stream(self._file, schema)

    def write(self, rows: pa.Table) -> None:
        """Append rows of the file's schema. It must not be called after ``read``."""
        self._writer.write_table(rows)

    def read(self) -> list[pa.RecordBatch]:
        """Return all rows that were written, in order; an empty list if there are none. It ends the
        writing, and must be called at most once.
        """
        self._writer.close()
        self._file.seek(0)
        return list(pa.ipc.open_stream(self._file))


def _split_by_key(
    batches: Sequence[pa.RecordBatch], keys: Sequence[int], parts: Sequence[_SpooledRows]
) -> None:
    """Append each row of ``batches`` to one of ``parts``, chosen by the hash of its key. Rows keep
    their order within a part, and all rows of a key are in one. ``keys``: the indices of the key
    columns. No batches append nothing.
    """
    if not batches:
        return
    rows = pa.Table.from_batches(batches)
    columns = [rows.column(index).combine_chunks() for index in keys]
    index = bucket_of(stable_hash(columns), len(parts))
    for part_index, part in enumerate(parts):
        part.write(rows.filter(pa.array(index == part_index)))


def _net_changes(
    batches: Sequence[pa.RecordBatch], keys: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``batches`` that remain after netting the changes of each key and commit,
    in their order, without the last column. No batches yield nothing.

    A removed row is dropped if its commit adds a row of its key. An added row is dropped if its
    commit adds no other row of the key and removes just one that is equal, ``_row_time`` included.

    ``keys``: the indices of the key columns. Rows end with ``_deleted``, ``_timestamp``,
    ``_commit_position`` (twice the commit's version, and one more for an added row) and
    ``_row_time``. The last is the time that ``timestamp=`` gives the row, null if it is not given.
    The batches must have all rows of their keys.
    """
    if not batches:
        return
    rows = pa.Table.from_batches(batches)
    columns = [column.combine_chunks() for column in rows.columns]
    is_delete, _, position, time = columns[-4:]
    stays = find_net_changes(
        [columns[column_index] for column_index in keys],
        position.to_numpy() >> 1,
        is_delete.to_numpy(zero_copy_only=False),
        [*columns[:-4], time],
    )
    changes = rows.select(range(rows.num_columns - 1))
    yield from (changes if stays.all() else changes.filter(pa.array(stays))).to_batches()


def _times_of_next(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """Yield an array for each batch with rows, one time in microseconds per row. For the former row
    of an update, the time is that of its new row, which Delta writes right behind it. For all other
    rows, and where no such row follows, it is null.

    ``batches``: structs of three fields in this order: the row's kind (a text: ``insert``,
    ``delete``, ``update_preimage`` or ``update_postimage``), commit version, and time in
    microseconds. Nothing is yielded for an empty batch.
    """
    before: pa.Array | None = None
    for batch in filter(len, batches):
        if before is not None:
            yield _times_of_batch(before, batch)
        before = batch
    if before is not None:
        yield _times_of_batch(before, before[:0])


def _times_of_batch(rows: pa.Array, following: pa.Array) -> pa.Array:
    """Return int64 times in microseconds, one per row of the batch ``rows``. They are null but for
    the former row of an update (kind ``update_preimage``). That has the time of the row right
    behind it, if it is an ``update_postimage`` of the same commit version.

    ``rows``: structs of three fields in this order: kind (a text), commit version, and time in
    microseconds. ``following``: the next batch with rows, of which the first row counts; empty
    after the last.
    """
    kind, version, time_us = pa.concat_arrays([rows, following[:1]]).flatten()
    pair = pc.and_(
        pc.and_(pc.equal(kind[:-1], "update_preimage"), pc.equal(kind[1:], "update_postimage")),
        pc.equal(version[:-1], version[1:]),
    )
    times_us = pc.if_else(pair, time_us[1:], pa.scalar(None, pa.int64()))
    return times_us if len(following) else pa.concat_arrays([times_us, pa.nulls(1, pa.int64())])
