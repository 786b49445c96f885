"""Writes a micro-batch into PostgreSQL: the rows of some tables, in one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dovetail import errors
from dovetail.base.columns import CHANGE, DELETE, DELETED, POSITION
from dovetail.errors import DovetailError, TargetError
from dovetail.io.sinks.ownership import (
    Existing,
    Owner,
    must_be_empty,
    refuse_rows,
    refuse_taken,
    relation_to_table,
)
from dovetail.io.sinks.postgres.columns import csv_of, outgoing_columns, refuse_values
from dovetail.io.sinks.postgres.staged_changes import StagedChanges, apply_changes
from dovetail.io.sinks.postgres.tables import (
    TASK_COLUMN,
    TargetTable,
    copy_texts,
    find_foreign_key,
)
from dovetail.io.sinks.postgres.transactions import Cursor, ServerConnection
from dovetail.lookup_sources.retry import call_with_retries
from dovetail.plan.types.arrow import spark_schema
from dovetail.platform.arrow_batches import map_in_arrow
from dovetail.platform.sessions import keep, release

T = TypeVar("T")
"""The type of an action's result."""

Task: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function that a task of Spark runs: from its record batches to others."""

_WAIT_S = 0.1
_FAILURE_COLUMNS = [(name, pa.string()) for name in ("kind", "problem", "remedy")]
_TEXT_REPORT = pa.schema([("text", pa.binary()), *_FAILURE_COLUMNS])
_COPY_REPORT = pa.schema([("task", pa.int64()), ("rows", pa.int64()), *_FAILURE_COLUMNS])
"""The results of tasks: their rows as text, or how many rows they copied; and a failure."""
_RETRY_KIND = "OSError"
ROWS_MAX, BYTES_MAX = 2_000, 1 << 20
"""The limits of rows and bytes up to which a task's rows go through the driver."""


@dataclass(frozen=True)
class SinkSettings:
    """The settings of a sink: the connection, the count of retries, and the choice for existing
    rows.
    """

    server: ServerConnection
    """The connection to the server."""
    retries: int
    """The most further attempts after a failure; 0 for none."""
    existing: Existing = "fail"
    """The treatment of a table with rows that is not this query's, as ``to_postgres`` has it."""

    @property
    def title(self) -> str:
        """The sink's name in errors, without secrets."""
        return self.server.title

    @property
    def wait_s(self) -> float:
        """The seconds to wait before the second attempt: always 0.1. ``call_with_retries`` doubles
        the wait before each further attempt, up to 5 s.
        """
        return _WAIT_S

    def run_with_retries(self, action: Callable[[], T]) -> T:
        """Run ``action`` and return its result; after an ``OSError`` run it again, up to
        ``retries`` times. Waits double from 0.1 s up to 5 s. Raises ``ConfigurationError`` if the
        last attempt fails so; other errors pass at once.
        """
        return call_with_retries(self, action)

    def replaces(
        self, cursor: Cursor, target: TargetTable, query: str | None, *, begun: bool
    ) -> bool:
        """Return True if the rows of ``target`` are to be deleted before the query writes. So it is
        with ``existing="replace"``, for a table that the query does not own. False for a table that
        the query owns, for any table with ``existing="adopt"``, and for an empty one with
        ``existing="fail"``. Nothing is changed.

        ``query``: its id, None before its first start. ``begun``: True if a micro-batch of it is
        complete. ``target`` and the table ``dovetail_queries``, which names the owners, must exist.

        Raises ``TargetError`` for a table that the query does not own in two cases. With
        ``existing="fail"``, the table has rows. With ``"fail"`` or ``"replace"``, the query has
        begun. Also, unless ``existing`` is ``"adopt"``, for a table that the query owns and that
        was emptied since.
        """
        owners = target.last_batches(cursor)
        owner = query if query in owners else next(iter(owners), None)
        relation = relation_to_table(
            self.title, self.existing, owner=owner, query=query, begun=begun
        )
        if must_be_empty(self.existing, relation):
            refuse_rows(self.title, is_empty=target.is_empty(cursor))
        if relation == "kept" and query is not None:
            self.refuse_lost_rows(lambda: target.is_emptied_since(cursor, query))
        return relation == "replaced"

    def refuse_lost_rows(self, is_emptied: Callable[[], bool]) -> None:
        """Raise ``TargetError`` if ``is_emptied`` returns True: the rows of a table that the query
        owns are gone. With ``existing="adopt"``, which goes on with what is there, do not ask it.
        """
        if self.existing != "adopt" and is_emptied():
            raise TargetError(
                self.title,
                "the table is empty, and was truncated, created anew or altered after this query's "
                "last micro-batch, so rows may be gone that the query does not write again",
                "Bring the rows back, or start with a new checkpoint. If no rows are missing, or "
                "you want it to go on without them, start once with existing='adopt'",
            )


@dataclass
class PostgresTables:
    """Tables of one database that a query writes in one transaction per micro-batch.

    A query takes a table with its first micro-batch; before that it changes nothing.
    """

    members: Sequence[PostgresTable]
    """The tables, at least one, of one user of the database."""
    owner: Owner
    """The query that writes, by its checkpoint."""

    def write(self, batches: Sequence[DataFrame], batch_id: int) -> None:
        """Write micro-batch ``batch_id`` to all tables, in one transaction, which is retried.
        Tables that have this micro-batch already stay as they are.

        ``batches``: the changes of each table as changelogs, in the order of ``members``. Spark
        stores them until the call ends. Micro-batches must come in order. A call that succeeds sets
        ``taken`` of all members. Later calls then fail if another query has become the owner.

        Raises ``ConfigurationError`` if no attempt succeeds, ``DataError`` for a value that
        PostgreSQL lacks. Raises ``TargetError`` for a table of another query, and for rows or
        rights that PostgreSQL refuses. Also if a table's last micro-batch is not the one before:
        the table or the checkpoint is then an older copy.
        """
        session = batches[0].sparkSession
        query, before = self.owner.query_id(session), batch_id - 1
        if not all(member.taken for member in self.members):
            before = self.owner.batch_before(session, batch_id)
        all_settings = [member.sink_settings for member in self.members]
        parts: list[_TableRows] = []
        try:
            for member, batch in zip(self.members, batches, strict=True):
                parts.append(_TableRows(member, keep(member.outgoing_rows(batch)), query))
            for part in parts:
                part.texts = part.table.collect_texts(part.stored_rows)
            server = replace(
                all_settings[0].server,
                title=", ".join(settings.title for settings in all_settings),
                timeout_s=max(settings.server.timeout_s for settings in all_settings),
                titles={member.target.name: member.sink_settings.title for member in self.members},
            )
            joint_settings = SinkSettings(
                server, max(settings.retries for settings in all_settings)
            )
            joint_settings.run_with_retries(
                lambda: self._write_once(server, parts, batch_id, before)
            )
        finally:
            for part in parts:
                release(part.stored_rows)
        for member in self.members:
            member.taken = True

    def _write_once(
        self, server: ServerConnection, parts: Sequence[_TableRows], batch_id: int, before: int
    ) -> None:
        """Make one attempt to write micro-batch ``batch_id``, in one transaction over ``server``.
        Tables that have this micro-batch already stay as they are. ``parts``: the rows of each
        table. ``before``: the id of the micro-batch that was written before this one.

        The staging tables of tasks are dropped, also after a failure. Raises ``OSError`` if another
        attempt may help, else ``TargetError`` or ``DataError``.
        """
        try:
            for part in parts:
                part.copy_by_tasks()
            with server.transaction() as cursor:
                # Always in one order, so that two queries cannot deadlock.
                in_order = sorted(parts, key=lambda part: part.table.target.qualified_name)
                opened = [
                    (p, p.table.open_for_batch(cursor, p.query, batch_id, before)) for p in in_order
                ]
                self._apply_rows(
                    cursor, [(p, clears) for p, clears in opened if clears is not None]
                )
                for part, clears in opened:
                    if clears is not None:
                        part.table.target.record_batch(cursor, part.query, batch_id)
                    part.drop_staging(cursor)
        except Exception:
            if any(part.texts is None for part in parts):
                with suppress(OSError, TargetError), server.transaction() as cursor:
                    for part in parts:
                        part.drop_staging(cursor)
            raise

    def _apply_rows(self, cursor: Cursor, opened: Sequence[tuple[_TableRows, bool]]) -> None:
        """Bring the tables to the state after the rows of ``opened``, without a commit. Few rows of
        a single table without a key are appended without a staging table. Many rows must have been
        staged by tasks before.

        ``opened``: the rows of each table that lacks the micro-batch, and True if that table is
        emptied first, which one without a key never is. There may be none. The server's errors
        pass.
        """
        if len(opened) == 1 and opened[0][0].append_directly(cursor):
            return
        changes = [
            part.staged_changes(cursor, n, clears) for n, (part, clears) in enumerate(opened)
        ]
        apply_changes(cursor, [staged for staged in changes if staged is not None])


@dataclass
class _TableRows:
    """The rows of a micro-batch for one PostgreSQL table, on their way into it."""

    table: PostgresTable
    """The table and the way to write it."""
    stored_rows: DataFrame
    """The rows as ``PostgresTable.outgoing_rows`` returns them, stored by Spark."""
    query: str
    """The id of the query that writes."""
    texts: list[bytes] | None = None
    """The rows as ``COPY`` reads them, a text per task; empty for no rows. None for many rows:
    tasks copy them into an unlogged staging table.
    """
    _rows: dict[int, int] = field(default_factory=dict)
    """How many rows each task has copied in the last attempt, by the task's id."""

    @property
    def _staging(self) -> str:
        """The name in SQL of the staging table that tasks fill."""
        return self.table.target.staging_name(self.query)

    def copy_by_tasks(self) -> None:
        """Let the tasks copy their rows into a new staging table, if the rows are many; else do
        nothing. Raises ``OSError`` if another attempt may help, else ``TargetError`` or
        ``DataError``.
        """
        if self.texts is None:
            with self.table.sink_settings.server.transaction() as cursor:
                self.table.target.create_staging(cursor, self._staging)
            self._rows = self.table.run_copy_tasks(self.stored_rows, self._staging)

    def append_directly(self, cursor: Cursor) -> bool:
        """Append the rows to the table itself and return True, if they are few and the table has no
        key; else do nothing and return False.
        """
        if self.table.target.layout.keys or self.texts is None:
            return False
        copy_texts(cursor, self.table.target.sql_name, self.stored_rows.columns, self.texts)
        return True

    def staged_changes(
        self, cursor: Cursor, table_index: int, clears: bool
    ) -> StagedChanges | None:
        """Return the rows in their staging table; None if there are none and the table is not
        emptied. Few rows are first copied into a temporary one; many must have been copied by
        ``copy_by_tasks``.

        ``table_index``: the table's index among those that the transaction writes. ``clears``: True
        if the table's former rows are to be deleted. Raises ``OSError`` if the server has lost
        staged rows.
        """
        target = self.table.target
        if self.texts is not None:
            if not self.texts and not clears:
                return None
            staging = target.create_temporary_staging(cursor, table_index)
            copy_texts(cursor, staging, self.stored_rows.columns, self.texts)
            return StagedChanges(target, staging, None, clears)
        tasks = [*self._rows]
        if target.count_staged(cursor, self._staging, tasks) != sum(self._rows.values()):
            raise OSError("the server has lost rows on their way, by a crash")
        return StagedChanges(target, self._staging, tasks, clears)

    def drop_staging(self, cursor: Cursor) -> None:
        """Drop the staging table that tasks have filled, if the rows are many. Few have none."""
        if self.texts is None:
            self.table.target.drop_staging(cursor, self._staging)


@dataclass
class PostgresTable:
    """One table that a query writes. It travels to tasks."""

    sink_settings: SinkSettings
    """The connection, the count of retries, and the choice for existing rows."""
    target: TargetTable
    """The table in the database."""
    schema: StructType
    """The columns of the changelog that the table has, with Spark's types."""
    taken: bool = field(default=False, init=False)
    """True once this start of the query has written a micro-batch."""
    files: str | None = field(default=None, init=False)
    """The table's files (``TargetTable.storage_files``) as the last micro-batch of this start saw
    them; None before the first one.
    """

    def outgoing_rows(self, batch: DataFrame) -> DataFrame:
        """Return a micro-batch's changes in the form in which they leave the JVM: the table's
        columns, maps and structs as JSON. If the table has a key, ``_deleted`` and ``_position``
        follow.
        """
        change_columns = []
        if self.target.layout.keys:
            change_columns = [(F.col(CHANGE) == DELETE).alias(DELETED), F.col(POSITION)]
        return batch.select(*outgoing_columns(self.schema), *change_columns)

    def collect_texts(self, stored_rows: DataFrame) -> list[bytes] | None:
        """Return the rows as CSV that ``COPY`` reads, a text for each task with rows; no texts for
        no rows. Return None if a task has more than 2,000 rows or 1 MiB (``ROWS_MAX``,
        ``BYTES_MAX``). Raises ``DataError`` for a value that PostgreSQL lacks.

        ``stored_rows``: the result of ``outgoing_rows``, stored by Spark, of which this runs a job.
        """
        rows = self._collect_reports(
            stored_rows, partial(_offer_texts, self, ROWS_MAX), _TEXT_REPORT
        )
        texts = [row["text"] for row in rows]
        return None if None in texts else [bytes(text) for text in texts]

    def run_copy_tasks(self, stored_rows: DataFrame, staging: str) -> dict[int, int]:
        """Let each task copy its rows into the staging table ``staging``, a name in SQL. Return how
        many rows it copied, by an id that the task has drawn. Tasks without rows are absent.

        ``stored_rows``: the result of ``outgoing_rows``, stored by Spark. Raises the first failure
        that a task reports: ``OSError`` if another attempt may help, else a ``DovetailError``.
        """
        rows = self._collect_reports(
            stored_rows, partial(_copy_rows, self, staging, stored_rows.columns), _COPY_REPORT
        )
        return {row["task"]: row["rows"] for row in rows}

    def _collect_reports(self, stored_rows: DataFrame, task: Task, columns: pa.Schema) -> list[Row]:
        """Run ``task`` on ``stored_rows`` by ``mapInArrow``, and return the rows that it yields;
        none for no rows. ``columns``: the schema of the yielded rows. It ends with ``kind``,
        ``problem`` and ``remedy`` of a failure, null for none.

        Raises the first failure that a task reports: ``OSError`` if another attempt may help, else
        a ``DovetailError``.
        """
        # Plain names, because mapInArrow does not quote backticks in a user's names.
        plain = stored_rows.toDF(*(f"_c{n}" for n in range(len(stored_rows.columns))))
        named = partial(_run_with_names, task, stored_rows.columns)
        rows = map_in_arrow(plain, named, spark_schema(columns)).collect()
        for row in rows:
            if row["kind"] is not None:
                raise self._failure(row["kind"], row["problem"], row["remedy"])
        return rows

    def _failure(self, kind: str, problem: str, remedy: str) -> Exception:
        """Return, not raise, the exception for a task's failure: ``OSError`` for one that another
        attempt may mend, else a ``DovetailError``. ``kind``: the name of its class. ``problem``,
        ``remedy``: its text; ``OSError`` has no ``remedy``.
        """
        if kind == _RETRY_KIND:
            return OSError(problem)
        error_type: type[DovetailError] = getattr(errors, kind)
        return error_type(self.sink_settings.title, problem, remedy)

    def open_for_batch(self, cursor: Cursor, query: str, batch_id: int, before: int) -> bool | None:
        """Lock the table for micro-batch ``batch_id``, until the transaction ends. Return True if
        its former rows are to be deleted, False if they stay, and None if the table has the
        micro-batch already. ``before``: the id of the one that was written before it.

        A table with a key belongs to ``query``, the query's id, alone from then on. Raises
        ``TargetError`` if the table's last micro-batch is earlier than ``before`` or later than
        ``batch_id``, because table or checkpoint is an older copy. Also if another query has taken
        the table, or if the table has rows that the query may not take over. Also if the table was
        emptied, or its columns no longer store each value of the query's.
        """
        self.target.lock(cursor, query)
        last = self.target.last_batches(cursor).get(query)
        if last == batch_id:
            return None
        self.target.lock_columns(cursor)
        if last is not None and not before <= last < batch_id:
            raise TargetError(
                self.sink_settings.title,
                f"the table has this query's micro-batches up to {last}, and the next one is "
                f"{batch_id}: either the table or the checkpoint is an older copy",
                "Bring back the two of one time, or start with a new checkpoint; if the table is "
                f"right as it is, set its batch_id in dovetail_queries to {batch_id - 1}",
            )
        if not self.target.layout.keys:
            return False
        clears = False
        if last is None:
            if self.taken:
                refuse_taken(self.sink_settings.title)
            clears = self.sink_settings.replaces(cursor, self.target, query, begun=batch_id > 0)
            self.target.remove_other_queries(cursor, query)
        files = self.target.storage_files(cursor)
        if last is not None and files != self.files:
            is_emptied = self.target.is_empty
            if self.files is None:
                is_emptied = partial(self.target.is_emptied_since, query=query)
            self.sink_settings.refuse_lost_rows(lambda: is_emptied(cursor))
        self.files = files
        return clears

    def refuse_reference(self, cursor: Cursor, other: PostgresTable) -> None:
        """Raise ``TargetError`` if a foreign key connects this table and ``other``, in either
        direction. Another user writes ``other``, so not in the same transaction.
        """
        between = find_foreign_key(cursor, self.target, other.target)
        if between is not None:
            name, child, parent = between
            raise TargetError(
                f"{self.sink_settings.title}, {other.sink_settings.title}",
                f"foreign key {name} of {child} refers to {parent}, and two users write the two, "
                "so not in one transaction",
                "Give both the dsn of one user",
            )

    def csv_text(self, rows: pa.Table, task: int | None = None) -> bytes:
        """Return ``rows`` as CSV that ``COPY`` reads, without a header; an empty text for no rows.
        ``rows``: in the columns of ``outgoing_rows``. ``task``: the id of the task for a last
        column, None for no such column. Raises ``DataError`` for values that PostgreSQL lacks.
        """
        target = self.target
        refuse_values(self.sink_settings.title, rows, target.columns, target.layout.keys)
        if task is not None:
            rows = rows.append_column(TASK_COLUMN, pa.array([task] * rows.num_rows, pa.int64()))
        return csv_of(rows)


def _run_with_names(
    task: Task,
    names: Sequence[str],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Return the results of ``task`` on ``batches``, whose columns are renamed to ``names``, in
    order.
    """
    return task(pa.RecordBatch.from_arrays(batch.columns, names) for batch in batches)


def _offer_texts(
    table: PostgresTable, rows_max: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield one row for a task (``_TEXT_REPORT``): ``text``, its rows as one CSV that ``COPY``
    reads, and a failure or nulls. The text is null if the rows are more than ``rows_max`` or larger
    than 1 MiB (``BYTES_MAX``). A task without rows yields nothing.

    ``table``: writes the CSV. ``batches``: the rows of the task. A value that PostgreSQL lacks
    makes the result a failure. Once there are too many rows, values are no longer examined.
    """
    texts: list[bytes] | None = []
    count = size = 0
    failure: Exception | None = None
    for batch in batches:
        count += batch.num_rows
        size += batch.nbytes
        if texts is None or count > rows_max or size > BYTES_MAX:
            texts = None
            continue
        try:
            texts.append(table.csv_text(pa.Table.from_batches([batch])))
        except DovetailError as error:
            failure, texts = error, None
    if count:
        yield _task_report(_TEXT_REPORT, failure, text=None if texts is None else b"".join(texts))


def _copy_rows(
    table: PostgresTable, staging: str, columns: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Copy the rows ``batches`` of one task into the table ``staging``, a name in SQL, in a
    transaction of their own. Yield one row (``_COPY_REPORT``): ``task``, a new random id, ``rows``,
    their count, and a failure or nulls. A task without rows yields nothing and does not connect.

    ``columns``: the names of the columns of ``batches``, to which the task's id is added.
    """
    rows = (batch for batch in batches if batch.num_rows)
    first = next(rows, None)
    if first is None:
        return
    # Unique among all tasks, including former attempts and killed queries that still run.
    task, count = secrets.randbits(62), 0

    def row_texts() -> Iterator[bytes]:
        """Yield the rows as CSV with the task's id as the last column, a text per batch, and count
        them in ``count``. Raises ``DataError`` for a value that PostgreSQL lacks.
        """
        nonlocal count
        for batch in chain([first], rows):
            count += batch.num_rows
            yield table.csv_text(pa.Table.from_batches([batch]), task)

    failure: Exception | None = None
    try:
        with table.sink_settings.server.transaction() as cursor:
            copy_texts(cursor, staging, [*columns, TASK_COLUMN], row_texts())
    except (OSError, DovetailError) as error:
        failure = error
    yield _task_report(_COPY_REPORT, failure, task=task, rows=count)


def _task_report(columns: pa.Schema, failure: Exception | None, **values: Any) -> pa.RecordBatch:
    """Return one row of ``columns``: ``values`` by name, and a failure as ``kind``, ``problem`` and
    ``remedy``, all null for None. ``kind`` is the class of a ``DovetailError``, ``OSError`` for
    others.

    A failure is reported, not raised, because Spark would run the task again.
    """
    kind = problem = remedy = None
    if isinstance(failure, DovetailError):
        kind, problem, remedy = type(failure).__name__, failure.problem, failure.remedy
    elif failure is not None:
        kind, problem = _RETRY_KIND, str(failure)
    fields = {**values, "kind": kind, "problem": problem, "remedy": remedy}
    return pa.RecordBatch.from_pylist([fields], columns)
