"""One micro-batch on its way into an Iceberg table: one commit, made by the driver.

| step            | commits | after a kill                                                       |
|-----------------|---------|--------------------------------------------------------------------|
| start           | 0 or 1  | a table without rows, which any query may take                     |
| add columns     | 0 or 1  | no column is missing                                               |
| write files     | 0       | files that no snapshot has; the table's maintenance removes them   |
| commit          | 0 or 1  | the summary has the micro-batch's number, so it is skipped         |
| Spark's commit  | -       | the next micro-batch                                               |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from errno import ENAMETOOLONG
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from dovetail.base.columns import DELETED, quoted
from dovetail.errors import DataError, TargetError, line_of
from dovetail.io.sinks.delta.versions import CURRENT, renewed_versions
from dovetail.io.sinks.iceberg.columns import refuse_far_times
from dovetail.io.sinks.iceberg.tables import IcebergTarget
from dovetail.io.sinks.last_changes import last_rows
from dovetail.io.sinks.ownership import Owner
from dovetail.plan.types.arrow import arrow_schema
from dovetail.platform.sessions import stored_frame

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from dovetail.iceberg.replacement import FileRows

Replacement: TypeAlias = "tuple[list[DataFile], pa.Table]"
"""The data files that are removed, and the rows that are written in their place."""
MakeReplacement: TypeAlias = "Callable[[Table | None], Replacement]"
"""A function that makes the replacement for a table, or for None, a table without rows."""


@dataclass
class IcebergAppender:
    """A table to which a query appends each micro-batch's rows."""

    target: IcebergTarget
    """The table and its columns."""
    owner: Owner
    """The query that writes, by its checkpoint."""

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Append the rows of micro-batch ``batch_id``, in one commit, unless the table has this
        micro-batch. Without rows nothing is appended. Columns that the table lacks are added first,
        if ``evolve`` is set. Rows go through the driver. ``batch``: a changelog, all of whose
        columns are stored.

        Raises ``TargetError`` if another writer conflicts with it twice. Also if the table has
        other columns or a later micro-batch, or requires values where a row has nulls. Raises
        ``ConfigurationError`` if the table cannot be read, and ``DataError`` for a date or time
        outside the years 1 to 9999.
        """
        query = self.owner.query_id(batch.sparkSession)
        rows = batch.toArrow().cast(arrow_schema(self.target.schema))

        def append(table: Table, summary: Mapping[str, str]) -> None:
            """Append the rows to ``table`` in one commit with ``summary``, after adding columns
            that it lacks.
            """
            from dovetail.iceberg.replacement import commit

            table = self.target.with_all_columns(table)
            self.target.refuse_nulls(table, rows)
            refuse_far_times(self.target.title, rows)
            commit(table, rows, summary=summary, properties={})

        _write_once(self.target, query, batch_id, append)


@dataclass
class IcebergMerger:
    """A table that a query keeps equal to its own current rows, or to all their versions."""

    target: IcebergTarget
    """The table and its columns."""
    owner: Owner
    """The query that writes, by its checkpoint."""
    keys: Sequence[str]
    """The key columns, of plain types."""
    history: bool
    """True to keep all versions of the rows."""
    _taken: bool = field(default=False, init=False)
    """True once this start of the query has taken the table."""

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Merge micro-batch ``batch_id``, in one commit, unless the table has this micro-batch. The
        first one of a start may take over or replace a table that was there. Columns that the table
        lacks are added first, if ``evolve`` is set. Changes go through the driver. Without rows to
        add and files to replace there is no snapshot. ``batch``: a changelog, the table's columns,
        ``_change`` (``upsert`` or ``delete``) and ``_position``, which orders a key's changes.

        Raises ``TargetError`` if another writer conflicts with it twice, or if the table is another
        query's. Also if the table has other columns or a later micro-batch, or requires values
        where a row has nulls. Raises ``ConfigurationError`` if the table cannot be read, and
        ``DataError`` for delete files that cannot be. Also ``DataError`` for a date or time outside
        the years 1 to 9999.
        """
        query = self.owner.query_id(batch.sparkSession)
        with stored_frame(batch) as changes:
            # Spark must compute a micro-batch even if the table has it, or its state is lost.
            if self.history:
                keys = changes.select(*map(quoted, self.keys)).distinct().toArrow()
                renew: MakeReplacement = partial(self._versions, changes, keys)
            else:
                last = last_rows(changes.toArrow(), self.keys)
                renew = partial(merged_rows, changes=last, schema=self._schema, keys=self.keys)

            def merge(table: Table, summary: Mapping[str, str]) -> None:
                """Merge the micro-batch into ``table`` in one commit with ``summary``."""
                self._merge(table, renew, query, summary, begun=batch_id > 0)

            _write_once(self.target, query, batch_id, merge)
        self._taken = True

    def _merge(
        self,
        table: Table,
        renew: MakeReplacement,
        query: str,
        summary: Mapping[str, str],
        *,
        begun: bool,
    ) -> None:
        """Bring the table to the state after a micro-batch, in one commit, and name ``query`` as
        the owner.

        ``renew``: given the table, returns the data files to remove and the rows in their place. It
        is given None for a table to be replaced, and returns all rows as new. It is called once per
        attempt. ``summary``: that of the new snapshot. ``begun``: True if an earlier micro-batch is
        complete. Raises ``TargetError`` if the table is another query's, has other columns or
        refuses a null. Raises one of ``CONFLICTS`` if another writer was faster.
        """
        from dovetail.iceberg.replacement import QUERY, all_files, commit

        target = self.target
        relation = "kept"
        if self._taken:
            target.refuse_taken(table, query)
        else:
            relation = target.relation(table, query, begun=begun)
        table = target.with_all_columns(table)
        removed, rows = renew(None if relation == "replaced" else table)
        if relation == "replaced":
            removed = all_files(table)
        target.refuse_nulls(table, rows)
        refuse_far_times(target.title, rows)
        commit(table, rows, removed, summary=summary, properties={QUERY: query})

    def _versions(self, changes: DataFrame, keys: pa.Table, table: Table | None) -> Replacement:
        """Return the files with current versions of the changed keys, and the rows in their place.
        These are the files' other rows, the current versions with their new ends, and new versions.
        Files that have only ended versions of these keys stay.

        ``changes``: the micro-batch, a changelog. ``keys``: the distinct keys of ``changes``.
        ``table``: None for a table without rows. Raises ``DataError`` for delete files that cannot
        be read.
        """
        session, schema = changes.sparkSession, self.target.schema
        files = _files_with_keys(table, keys, self._schema, self.keys)
        stored = _concatenate(
            self._schema, [part.rows.filter(pa.array(part.has_key)) for part in files]
        )
        versions = session.createDataFrame(stored, schema)
        coming = renewed_versions(changes, versions, schema, self.keys).toArrow()
        removed, stay = [], []
        for part in files:
            is_current = part.rows[CURRENT].to_numpy() & part.has_key
            if is_current.any():
                removed.append(part.file)
                stay.append(part.rows.filter(pa.array(~is_current)))
        return removed, _concatenate(self._schema, [*stay, coming])

    @property
    def _schema(self) -> pa.Schema:
        """The Arrow schema of the target table."""
        return arrow_schema(self.target.schema)


def merged_rows(
    table: Table | None, changes: pa.Table, schema: pa.Schema, keys: Sequence[str]
) -> Replacement:
    """Return the data files that have rows of changed keys, and the rows in their place: the files'
    rows of other keys, then the changes that are no deletes.

    ``table``: None for a table without rows. ``changes``: one change of each key, in the columns of
    ``schema`` and ``_deleted``. ``schema``: the columns of the table. ``keys``: the key columns, in
    which a null equals a null. Raises ``DataError`` for delete files that cannot be read.
    """
    coming = changes.filter(pc.invert(changes[DELETED])).select(schema.names)
    files = _files_with_keys(table, changes, schema, keys)
    stay = [part.rows.filter(pa.array(~part.has_key)) for part in files]
    return [part.file for part in files], _concatenate(schema, [*stay, coming])


def _files_with_keys(
    table: Table | None, rows: pa.Table, schema: pa.Schema, keys: Sequence[str]
) -> list[FileRows]:
    """Return the data files of ``table`` in which a row has the key of one of ``rows``. Each comes
    with all its rows, without those that delete files remove, and a mask of those with a key. A
    null in a key equals a null. The list is empty if there are none, and for None. Without rows no
    file is read.

    ``schema``: the columns of the table. ``keys``: the key columns. Raises ``DataError`` for delete
    files that cannot be read.
    """
    from dovetail.iceberg.replacement import rows_of_keys

    if table is None:
        return []
    types = pa.schema([schema.field(name) for name in keys])
    return list(rows_of_keys(table, rows.select(keys).cast(types)))


def _concatenate(schema: pa.Schema, parts: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of ``parts`` in order as one table, with the columns and types of ``schema``;
    further columns are left out. Without parts the result is empty.
    """
    return pa.concat_tables(
        [schema.empty_table(), *(part.select(schema.names).cast(schema) for part in parts)]
    )


def _write_once(
    target: IcebergTarget,
    query: str,
    batch_id: int,
    write: Callable[[Table, Mapping[str, str]], None],
) -> None:
    """Call ``write`` with the table of ``target`` and the summary of the new snapshot, unless the
    table has micro-batch ``batch_id`` of this query. If another writer is faster, call it once
    more, with the table read anew. Raises ``TargetError`` if that fails as well, and if the table
    has a later micro-batch.

    ``query``: the query's id. ``write``: makes one commit with this summary, or raises one of
    ``CONFLICTS``; its other errors pass. Raises ``ConfigurationError`` if the table cannot be read,
    and ``DataError`` for a text of a partition that no folder can be named by.
    """
    from dovetail.iceberg.replacement import BATCH, CONFLICTS, QUERY, last_batch

    for is_last in (False, True):
        table = target.open()
        last = last_batch(table.metadata, query)
        if last == batch_id:
            return
        if last > batch_id:
            raise TargetError(
                target.title,
                f"the table has this query's micro-batches up to {last}, and the next one is "
                f"{batch_id}: the checkpoint is an older copy",
                "Bring back the checkpoint and the table of one time, or start with a new "
                "checkpoint",
            )
        try:
            write(table, {QUERY: query, BATCH: str(batch_id)})
            return
        except OSError as error:
            if error.errno != ENAMETOOLONG:
                raise
            raise DataError(
                target.title,
                "a row has a text that is too long for a folder's name in a column of "
                f"partition_by=: {line_of(error)[:200]}",
                "Put a shorter text there by with_columns(), or part the table by truncate(...)",
            ) from error
        except CONFLICTS as error:
            if is_last:
                raise TargetError(
                    target.title,
                    "another writer changes the table at the same time, also when the micro-batch "
                    f"is tried again: {line_of(error)}",
                    "Start the query again, which loses and doubles nothing, and let other writers "
                    "of the table wait, or leave it to this query",
                ) from error
