"""A PostgreSQL table that holds what a changelog says."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dovetail import errors
from dovetail.arguments import Natural, Seconds, Text, validated
from dovetail.columns import CHANGE, DELETE, DELETED, POSITION, TIMESTAMP
from dovetail.errors import DovetailError, TargetError
from dovetail.io.ownership import (
    Existing,
    Owner,
    progress,
    refuse_existing,
    refuse_gone,
    refuse_rows,
    refuse_taken,
    standing,
)
from dovetail.io.postgres_columns import csv_of, outgoing, refuse_values, types_of
from dovetail.io.postgres_line import Line
from dovetail.io.postgres_tables import TASK, Layout, Target, copy, found, made, make_queries
from dovetail.io.sinks import WriteBatch
from dovetail.lookup.postgres_line import parameters, psycopg_for, refuse_names
from dovetail.lookup.retry import persistently
from dovetail.plan.arrow import spark_schema
from dovetail.plan.nodes import Node, changelog_schema
from dovetail.sessions import keep, numbered, release

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

T = TypeVar("T")

_WAIT_S = 0.1
_FAILED = [(name, pa.string()) for name in ("kind", "problem", "remedy")]
_OFFERED = pa.schema([("text", pa.binary()), *_FAILED])
_COPIED = pa.schema([("task", pa.int64()), ("rows", pa.int64()), *_FAILED])
"""What tasks say: their rows, or which they have copied; and what has failed."""
_AGAIN = "OSError"
ROWS_MAX, BYTES_MAX = 2_000, 1 << 20
"""So many rows of a task come through the driver."""


@dataclass(frozen=True)
class PostgresSink:
    """Upserts and deletes by each micro-batch's last change per key; appends what is not a table's
    current rows.
    """

    dsn: str = field(repr=False)
    table: str
    existing: Existing = "refuse"
    timeout_s: float = 600.0
    retries: int = 10

    @property
    def title(self) -> str:
        """``to_postgres('table')``, as it is written."""
        return f"to_postgres({self.table!r})"

    @property
    def target(self) -> tuple[object, ...]:
        """What distinguishes it from another sink."""
        said = parameters(self.dsn) or {}
        server = sorted((k, v) for k, v in said.items() if k in ("host", "hostaddr", "port"))
        return self.title, said.get("dbname"), tuple(server)

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        """The configured writer; raises as ``batches`` does."""
        session = changes.sparkSession
        write = self.batches(session, node, checkpoint)
        return changes.writeStream.foreachBatch(numbered(session, write))

    def batches(self, session: SparkSession, node: Node, checkpoint: str) -> WriteBatch:
        """Writes a micro-batch. Makes the table where there is none, or sees that it fits.

        Raises ``TargetError`` where it has other columns, or other rows than this query's.
        """
        schema = changelog_schema(node)
        keys: list[str] = []
        if node.current:
            keys = node.key.names
            schema = StructType([schema[n] for n in (*keys, *node.values.names, TIMESTAMP)])
        else:
            refuse_existing(self.title, self.existing)
        types = types_of(self.title, schema, keys)
        layout = Layout(self.title, types, keys, node.null_keys)
        begun = progress(session, checkpoint)
        target = self.persistently(lambda: self._prepared(layout, *begun))
        return PostgresTable(self, target, schema, Owner(checkpoint)).take

    @property
    def line(self) -> Line:
        """The way to the server."""
        return Line(self.title, self.dsn, self.timeout_s)

    def persistently(self, action: Callable[[], T]) -> T:
        """What ``action`` returns, tried again after an ``OSError``."""
        return persistently(
            self.title, action, passing=(OSError,), retries=self.retries, wait_s=_WAIT_S
        )

    def _prepared(self, layout: Layout, query: str | None, begun: bool) -> Target:
        with self.line.transaction() as cursor:
            target = found(cursor, layout, self.table)
            if target is None:
                if begun and layout.keys:
                    refuse_gone(self.title)
                target = made(cursor, layout, self.table)
            make_queries(cursor, target.schema)
            if layout.keys:
                self.standing(cursor, target, query, begun=begun)
        return target

    def standing(self, cursor: Any, target: Target, query: str | None, *, begun: bool) -> bool:
        """Whether a table's rows are to go. Raises ``TargetError`` where it is not this query's and
        cannot become it.
        """
        owners = target.batches(cursor)
        owner = query if query in owners else next(iter(owners), None)
        kept = standing(self.title, self.existing, owner=owner, query=query, begun=begun)
        refuse_rows(self.title, self.existing, kept, lambda: target.is_empty(cursor))
        return kept == "replaced"


@dataclass
class PostgresTable:
    """The table that a query writes: one transaction per micro-batch.

    A query takes a table that it keeps with its first micro-batch: until then nothing of the table
    is changed.
    """

    sink: PostgresSink
    target: Target
    schema: StructType
    owner: Owner
    _taken: bool = field(default=False, init=False)

    def take(self, batch: DataFrame, number: int) -> None:
        """One micro-batch."""
        query = self.owner.query(batch.sparkSession)
        kept = keep(self._outgoing(batch))
        try:
            texts = self._texts(kept)
            write = self._write_by_tasks if texts is None else partial(self._write_here, texts)
            self.sink.persistently(lambda: write(kept, query, number))
        finally:
            release(kept)
        self._taken = True

    def _outgoing(self, batch: DataFrame) -> DataFrame:
        own = []
        if self.target.layout.keys:
            own = [(F.col(CHANGE) == DELETE).alias(DELETED), F.col(POSITION)]
        return batch.select(*outgoing(self.schema), *own)

    def _texts(self, kept: DataFrame) -> list[bytes] | None:
        """The rows as ``COPY`` reads them; None where they are many."""
        rows = self._collected(kept, partial(_offered, self, ROWS_MAX), _OFFERED)
        texts = [row["text"] for row in rows]
        return None if None in texts else [bytes(text) for text in texts]

    def _write_here(self, texts: list[bytes], kept: DataFrame, query: str, number: int) -> None:
        """Write rows from this process."""
        target = self.target
        with self.sink.line.transaction() as cursor:
            if not self._opened(cursor, query, number):
                return
            if not target.layout.keys:
                copy(cursor, target.called, kept.columns, texts)
            elif texts:
                staging = target.stage_here(cursor)
                copy(cursor, staging, kept.columns, texts)
                target.merge(cursor, staging, None)
            target.record(cursor, query, number)

    def _write_by_tasks(self, kept: DataFrame, query: str, number: int) -> None:
        """Write rows from where they are, by way of a table that is not logged."""
        target, line = self.target, self.sink.line
        staging = target.staging(query)
        try:
            with line.transaction() as cursor:
                target.stage(cursor, staging)
            rows = self._copied_by_task(kept, staging)
            with line.transaction() as cursor:
                if self._opened(cursor, query, number):
                    if target.count(cursor, staging, [*rows]) != sum(rows.values()):
                        raise OSError("the server has lost rows on their way, by a crash")
                    if target.layout.keys:
                        target.merge(cursor, staging, [*rows])
                    else:
                        target.append(cursor, staging, [*rows])
                    target.record(cursor, query, number)
                target.drop(cursor, staging)
        except Exception:
            with suppress(OSError, TargetError), line.transaction() as cursor:
                target.drop(cursor, staging)
            raise

    def _copied_by_task(self, kept: DataFrame, staging: str) -> dict[int, int]:
        """Copy rows from where they are: how many each task has copied."""
        rows = self._collected(kept, partial(_copied, self, staging, kept.columns), _COPIED)
        return {row["task"]: row["rows"] for row in rows}

    def _collected(self, kept: DataFrame, task: Any, columns: pa.Schema) -> list[Row]:
        """What tasks say; the first one's failure is raised."""
        rows = kept.mapInArrow(task, spark_schema(columns)).collect()
        for row in rows:
            if row["kind"] is not None:
                raise self._failure(row["kind"], row["problem"], row["remedy"])
        return rows

    def _failure(self, kind: str, problem: str, remedy: str) -> Exception:
        """What has failed in a task."""
        if kind == _AGAIN:
            return OSError(problem)
        own: type[DovetailError] = getattr(errors, kind)
        return own(self.sink.title, problem, remedy)

    def _opened(self, cursor: Any, query: str, number: int) -> bool:
        """Whether the micro-batch is to be written; False where the table has it."""
        self.target.lock(cursor, query)
        last = self.target.batches(cursor).get(query)
        if last == number:
            return False
        if last is not None and last != number - 1:
            raise TargetError(
                self.sink.title,
                f"the table has this query's micro-batches up to {last}, and the next one is "
                f"{number}: either the table or the checkpoint is an older copy",
                "Bring back the two of one time, or start with a new checkpoint; if the table is "
                f"right as it is, set its batch_id in dovetail_queries to {number - 1}",
            )
        if last is None and self.target.layout.keys:
            if self._taken:
                refuse_taken(self.sink.title)
            if self.sink.standing(cursor, self.target, query, begun=number > 0):
                self.target.clear(cursor)
            self.target.take(cursor, query)
        return True

    def text(self, rows: pa.Table, task: int | None = None) -> bytes:
        """Rows as ``COPY`` reads them. Raises ``DataError`` for values that PostgreSQL lacks."""
        target = self.target
        refuse_values(self.sink.title, rows, target.columns, target.layout.keys)
        if task is not None:
            rows = rows.append_column(TASK, pa.array([task] * rows.num_rows, pa.int64()))
        return csv_of(rows)


def _offered(
    table: PostgresTable, rows_max: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One task: its rows as ``COPY`` reads them; a null where they are many."""
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
            texts.append(table.text(pa.Table.from_batches([batch])))
        except DovetailError as error:
            failure, texts = error, None
    if count:
        yield _said(_OFFERED, failure, text=None if texts is None else b"".join(texts))


def _copied(
    table: PostgresTable, staging: str, columns: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One task: copies its rows, and says how many they are."""
    rows = (batch for batch in batches if batch.num_rows)
    first = next(rows, None)
    if first is None:
        return
    # No other has it, of whichever query that still runs or attempt at this task.
    task, count = secrets.randbits(62), 0

    def texts() -> Iterator[bytes]:
        nonlocal count
        for batch in chain([first], rows):
            count += batch.num_rows
            yield table.text(pa.Table.from_batches([batch]), task)

    failure: Exception | None = None
    try:
        with table.sink.line.transaction() as cursor:
            copy(cursor, staging, [*columns, TASK], texts())
    except (OSError, DovetailError) as error:
        failure = error
    yield _said(_COPIED, failure, task=task, rows=count)


def _said(columns: pa.Schema, failure: Exception | None, **values: Any) -> pa.RecordBatch:
    """What a task says. (What is raised in one, Spark would try again, however often it fails.)"""
    kind = problem = remedy = None
    if isinstance(failure, DovetailError):
        kind, problem, remedy = type(failure).__name__, failure.problem, failure.remedy
    elif failure is not None:
        kind, problem = _AGAIN, str(failure)
    fields = {**values, "kind": kind, "problem": problem, "remedy": remedy}
    return pa.RecordBatch.from_pylist([fields], columns)


@validated
def to_postgres(
    dsn: str,
    table: Text,
    *,
    existing: Existing = "refuse",
    timeout_s: Seconds = 600.0,
    retries: Natural = 10,
) -> PostgresSink:
    """A PostgreSQL table that equals the table after each micro-batch: its key, its values and
    ``_timestamp``, the event time of the row's last change.

    ``dsn``, ``table``: as of ``dt.postgres``. Each batch is one transaction: its changes are
    copied in (``COPY``), the last one per key is upserted or deletes its row, and the batch's
    number is written to ``dovetail_queries`` in the table's schema. So a batch that is repeated
    after a failure changes nothing, and nothing is lost or doubled. Few rows go through the driver;
    of many, tasks copy their own into a table ``dovetail_changes_…``, which is merged and dropped.

    The table is made when the query starts if it is not there, with the key as its primary key, or
    as ``UNIQUE NULLS NOT DISTINCT`` where it may have nulls (PostgreSQL 15 or newer); one that is
    there must have the same columns, of the types that it would have been made with or of wider
    ones, and be unique by the key. Structs, maps and nested arrays are ``jsonb``. The table belongs
    to the query's checkpoint.

    ``existing``: what becomes of a table that has rows and is not this checkpoint's: ``"refuse"``
    raises ``TargetError`` before the query starts; ``"replace"`` deletes them in the first
    micro-batch's transaction; ``"adopt"`` goes on with them, and rows whose keys do not come stay.
    Started again, the query goes on whatever ``existing`` says. ``timeout_s``: for a transaction;
    ``retries``: how often one that fails for want of the server is tried again, after waits that
    double up to 5 s.

    A stream's records, and the points of a history (``late="history"``), are appended with all
    columns of the changelog, exactly once.

    Raises ``PlanError`` for arguments that cannot serve and columns that PostgreSQL has no type
    for, ``TargetError`` where the table does not fit, ``ConfigurationError`` where psycopg is
    missing (``dovetail[postgres]``) or the server cannot be reached; the query fails with
    ``DataError`` for a value that the column does not have, such as a text with a NUL character.
    """
    sink = PostgresSink(dsn, table, existing, timeout_s, retries)
    psycopg_for(sink.title)
    refuse_names(sink.title, dsn, table)
    return sink
