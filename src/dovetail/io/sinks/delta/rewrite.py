"""Merges of few rows into a small table by the package deltalake: one commit, no job of Spark's.

The driver writes the files that the rows touch anew. Spark writes the new rows alone, with deletion
vectors, but each of its commits runs several jobs. Both find the table as the other left it.

A table is Spark's wherever the result could differ:

| what it has                                      | why                                           |
|--------------------------------------------------|-----------------------------------------------|
| partitions, a change feed, appended rows alone   | deltalake writes them by rules of its own     |
| any further feature of a writer                  | deltalake may not keep to it                  |
| structs, arrays, maps, times without a zone      | not examined                                  |
| times before 1678 or after 2261, or not bounded  | deltalake wraps those that Spark has written  |
| a null in a key                                  | nulls are equal here, and not to deltalake    |

Files of deltalake have no bounds of floats and of long decimals, for Spark would skip rows by them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.base.columns import DELETED, double_quoted
from dovetail.errors import ConfigurationError, DovetailWarning
from dovetail.io.sinks.delta.conflicts import conflict_error
from dovetail.io.sinks.delta.tables import QUERY_PROPERTY
from dovetail.io.sinks.ownership import refuse_taken
from dovetail.platform import delta_tables
from dovetail.platform.sessions import is_remote

if TYPE_CHECKING:
    from deltalake import DeltaTable, WriterProperties
    from pyspark.sql import SparkSession

_RULE_ERROR: Final = "failed validation check"
"""The text of deltalake's error for rows that a rule of the table forbids."""
_KNOWN_FEATURES: Final = {"appendOnly", "invariants", "deletionVectors"}
"""The features of writers that a table may have."""
_PLAIN_WRITER: Final = 2
"""The version of writers that has ``appendOnly`` and ``invariants`` without naming them."""
_NAMED_WRITER: Final = 7
"""The version of writers that names its features."""
_TIME: Final = "timestamp"
_KNOWN_TYPES: Final = {
    *("byte", "short", "integer", "long", "float", "double", "decimal"),
    *("string", "binary", "boolean", "date", _TIME),
}
"""The types of columns whose values deltalake writes as Spark does."""
_EXACT_DIGITS: Final = 15
"""The most digits of a decimal whose bounds deltalake writes exactly: it writes them as floats."""
_FIRST_TIME = datetime(1678, 1, 1, tzinfo=timezone.utc)
_LAST_TIME = datetime(2262, 1, 1, tzinfo=timezone.utc)
"""The times that nanoseconds from 1970 on have in 64 bits, in whole years. Spark writes times as
nanoseconds by default, and deltalake reads them so."""


@dataclass
class Rewriter:
    """The means of one query to merge rows into a Delta table on a local disk, by the package
    deltalake.
    """

    title: str
    """The sink's call as written, for errors."""
    path: str
    """The path of the table on this machine's disks."""
    keys: Sequence[str]
    """The key columns of the table."""
    _last_reason: str = field(default="", init=False)
    """The reason of the last warning; empty before the first."""

    def merge(self, rows: pa.Table, query: str | None = None) -> bool:
        """Merge ``rows`` in one commit and return True, or leave them to Spark: change nothing and
        return False. Rows are left to Spark in three cases: a key is null, deltalake cannot write
        the table (with a warning), or a rule of the table forbids a row.

        ``rows``: one per key: the table's columns and ``_deleted``, true if the key's row is to be
        deleted. ``query``: the id of the query that writes, None if the owner does not count.
        Raises ``TargetError`` if another writer conflicts twice, or another query is the owner of
        the table that is written. Deltalake's other errors pass.
        """
        if any(rows[name].null_count for name in self.keys):
            return False
        from deltalake.exceptions import CommitFailedError, DeltaError

        rows = _in_utc(rows)
        for last in (False, True):
            table = _open_table(self.path)
            owner = table.metadata().configuration.get(QUERY_PROPERTY)
            if query is not None and owner != query:
                refuse_taken(self.title)
            reason = reason_for_spark(table)
            if reason is not None:
                self._warn(reason)
                return False
            try:
                names = {field.name.lower(): field.name for field in table.schema().fields}
                named = rows.rename_columns([names.get(n.lower(), n) for n in rows.column_names])
                _merge(table, named, [names[key.lower()] for key in self.keys])
                break
            except CommitFailedError as error:
                if last:
                    raise conflict_error(self.title, str(error)) from error
            except DeltaError as error:
                if _RULE_ERROR not in str(error):
                    raise
                return False
        return True

    def compact(self) -> None:
        """Put small files together in one commit. The files stay as they are if another writer is
        faster, or if deltalake cannot write the table. Its other errors pass.
        """
        from deltalake.exceptions import CommitFailedError

        table = _open_table(self.path)
        if reason_for_spark(table) is None:
            try:
                table.optimize.compact(writer_properties=_writer_properties(table))
            except CommitFailedError:
                return

    def _warn(self, reason: str) -> None:
        """Warn that Spark merges, because of ``reason``. Do nothing if the last warning had the
        same reason.
        """
        if reason != self._last_reason:
            self._last_reason = reason
            warnings.warn(
                f"{self.title}: engine='deltalake' leaves the table to Spark, because {reason}",
                DovetailWarning,
                stacklevel=2,
            )


def path_on_disk(title: str, session: SparkSession, location: str) -> str:
    """Return the path of the table at ``location``, if it lies on this machine's disks. ``title``:
    the sink's name in errors. Raises ``ConfigurationError`` for a table elsewhere, on Spark
    Connect, and if deltalake is not installed. Also for a path with an escape such as ``%20``.
    """
    if find_spec("deltalake") is None:
        raise ConfigurationError(
            title, "deltalake is not installed", "Install dovetail[deltalake] for the driver"
        )
    path = None if is_remote(session) else delta_tables.local_path(location)
    if path is None:
        raise ConfigurationError(
            title,
            f"engine='deltalake' is for tables on this machine's disks, and {location} is not",
            "Leave engine= out",
        )
    if unquote(path) != path:
        raise ConfigurationError(
            title, f"deltalake reads {path!r} as {unquote(path)!r}", "Leave engine= out"
        )
    return path


def reason_for_spark(table: DeltaTable) -> str | None:
    """Return in words the first reason why only Spark may merge into ``table``; None if deltalake
    may.
    """
    return next(chain(_unfit_rules(table), _unfit_columns(table)), None)


def _unfit_rules(table: DeltaTable) -> Iterator[str]:
    """Yield the properties of ``table`` that deltalake may not keep to, in words, such as ``it has
    partitions``; nothing if it keeps to all.
    """
    protocol, metadata = table.protocol(), table.metadata()
    version, features = protocol.min_writer_version, {*(protocol.writer_features or ())}
    if version > _PLAIN_WRITER and version != _NAMED_WRITER:
        yield f"it has version {version} of Delta's protocol"
    if features - _KNOWN_FEATURES:
        yield f"it has the features {', '.join(sorted(features - _KNOWN_FEATURES))}"
    if metadata.partition_columns:
        yield "it has partitions"
    if metadata.configuration.get(delta_tables.APPEND_ONLY, "").lower() == "true":
        yield "rows can only be appended"
    if delta_tables.records_changes(metadata.configuration):
        yield "it has a change feed"


def _unfit_columns(table: DeltaTable) -> Iterator[str]:
    """Yield a sentence on each column of ``table`` whose type or rules deltalake may not keep to.
    Then yield one on the first column with times that it may write otherwise than Spark. Yield
    nothing if there are none.
    """
    fields = table.schema().fields
    kinds = {column.name: column.type.type for column in fields}
    for column in fields:
        if column.metadata or kinds[column.name].partition("(")[0] not in _KNOWN_TYPES:
            yield f"the column {column.name} has rules or is of a type that is not examined"
    times = [name for name, kind in kinds.items() if kind == _TIME]
    wrapped = _unfit_times(pa.table(table.get_add_actions(flatten=True)), times)
    if wrapped is not None:
        yield wrapped


def _unfit_times(files: pa.Table, times: Sequence[str]) -> str | None:
    """Return in words the first column of ``times`` whose values deltalake would wrap, or may wrap
    because they have no bounds; None if there is none.

    ``files``: the statistics of the table's files, one row each; there may be none. Its columns are
    ``num_records`` and, per column ``c``, ``null_count.c``, ``min.c`` and ``max.c``, the bounds as
    timestamps. ``times``: the names of the columns of timestamps.
    """
    for name in times:
        columns = [f"{part}.{name}" for part in ("null_count", "min", "max")]
        if not {*columns} <= {*files.column_names}:
            if len(files):
                return f"the times of {name} have no bounds"
            continue
        nulls, low, high = (files[column] for column in columns)
        bounded = pc.and_(pc.greater_equal(low, _FIRST_TIME), pc.less(high, _LAST_TIME))
        empty = pc.equal(nulls, files["num_records"])
        if not pc.all(pc.or_kleene(empty, bounded).fill_null(False), min_count=0).as_py():
            return f"times of {name} are, or may be, before 1678 or after 2261"
    return None


def _open_table(path: str) -> DeltaTable:
    """Return the table at ``path`` in its latest version. Raises deltalake's error if there is
    none.
    """
    import deltalake

    return deltalake.DeltaTable(path)


def _merge(table: DeltaTable, rows: pa.Table, keys: Sequence[str]) -> None:
    """Merge ``rows`` into ``table`` by one commit of deltalake. A row replaces that of its key, or
    deletes it if ``_deleted`` is true; a new key is inserted. Raises deltalake's errors,
    ``CommitFailedError`` for a conflict.

    ``keys``: the key columns, without nulls; no two rows may have the same key.
    """
    names = {name: double_quoted(name) for name in rows.column_names}
    gone = f"made.{names[DELETED]}"
    values = {quoted: f"made.{quoted}" for name, quoted in names.items() if name != DELETED}
    (
        table.merge(
            rows,
            " AND ".join(f"stored.{names[key]} = made.{names[key]}" for key in keys),
            source_alias="made",
            target_alias="stored",
            writer_properties=_writer_properties(table),
        )
        .when_matched_delete(gone)
        .when_matched_update(values)
        .when_not_matched_insert(values, predicate=f"NOT {gone}")
        .execute()
    )


def _writer_properties(table: DeltaTable) -> WriterProperties | None:
    """Return the properties of files that deltalake writes for ``table``, None for its own. Columns
    whose bounds would be wrong to Spark get none: it would skip a file that has the rows it seeks.
    These are decimals of more than 15 digits, whose bounds are rounded, and floats: to Spark, NaN
    is the largest one, and deltalake leaves it out.
    """
    from deltalake import ColumnProperties, WriterProperties

    unbounded = {
        column.name: ColumnProperties(statistics_enabled="NONE")
        for column in table.schema().fields
        if _has_wrong_bounds(column.type.type)
    }
    if not unbounded:
        return None
    return WriterProperties(compression="SNAPPY", column_properties=unbounded)


def _has_wrong_bounds(kind: str) -> bool:
    """Return True if bounds that deltalake writes may be wrong to Spark. ``kind``: the name of a
    column's type, such as ``long`` or ``decimal(9,2)``.
    """
    name, _, digits = kind.rstrip(")").partition("(")
    long = name == "decimal" and int(digits.partition(",")[0]) > _EXACT_DIGITS
    return long or name in ("float", "double")


def _in_utc(rows: pa.Table) -> pa.Table:
    """Return rows with the zone UTC and microseconds as the type of all columns of timestamps, as a
    Delta table has them. Timestamps without a zone count as UTC; those within structs and arrays
    stay. Raises Arrow's error for a time that is finer than microseconds.
    """
    utc = pa.timestamp("us", "UTC")
    fields = [f.with_type(utc) if pa.types.is_timestamp(f.type) else f for f in rows.schema]
    return rows.cast(pa.schema(fields))
