"""An Iceberg table read as changes: its content first, then what each snapshot changes.

A Python data source of Spark reads it. Its offsets are snapshots. The driver compares the lists of
files of neighbouring snapshots, and tasks read the files that differ. Rows come as those of a Delta
table's change data feed do, so both are turned into changes by ``change_feed``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from dovetail.errors import PlanError, TargetError
from dovetail.iceberg.catalogs import TableAddress
from dovetail.io.sources.change_feed import COMMIT_TIME, COMMIT_VERSION, KIND, changes_of
from dovetail.plan.types.arrow import arrow_schema, spark_schema
from dovetail.plan.types.expressions import text_of
from dovetail.platform.sessions import cores, register

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from dovetail.iceberg.changed_rows import FileChange, RowReader
    from dovetail.iceberg.live_files import ManifestReader

FORMAT = "dovetail_iceberg"
"""The name of the data source in Spark."""
_REQUEST = "secret_request"
"""The option with all that the data source knows. Spark hides options of such names in plans."""
_TASK_BYTES, _OPEN_BYTES = 128 << 20, 4 << 20
"""The bytes of files that a task reads, and those that opening a file counts for."""
_FEED_COLUMNS = StructType(
    [
        StructField(KIND, StringType()),
        StructField(COMMIT_VERSION, LongType()),
        StructField(COMMIT_TIME, TimestampType()),
    ]
)


ColumnRange: TypeAlias = "tuple[int, int | str, int | str]"
"""The field id of a column, and its least and its greatest value."""


class FeedOffset(TypedDict):
    """The point up to which a table has been read."""

    snapshot: int | None
    """The id of the last snapshot that was read; None before the first one."""
    content: bool
    """True if the next read begins with the whole content."""


@dataclass(frozen=True)
class FeedRequest:
    """A query's demand on an Iceberg table, which travels as an option of Spark's data source."""

    operator: str
    """The name of the table in errors."""
    address: TableAddress
    """The name of the table and its catalog."""
    columns: str
    """The columns to read, as Iceberg's JSON of a schema."""
    start: FeedOffset
    """The point after which changes are read. If its ``content`` is true, the whole content is read
    first.
    """
    snapshots_max: int | None = None
    """The most snapshots of a micro-batch, None for no limit. The content is never divided. A batch
    read ignores it.
    """
    end: int | None = None
    """The id of the snapshot at which a batch read ends, inclusive; None for the present one. A
    stream ignores it.
    """
    content_ranges: Sequence[ColumnRange] = ()
    """Ranges, both ends inclusive, outside of which rows of the content may be left out. Empty to
    read all. Changes are not restricted.
    """

    @classmethod
    def from_json(cls, text: str) -> FeedRequest:
        """Return the request of which ``to_json`` returned ``text``."""
        parts = json.loads(text)
        return cls(**{**parts, "address": TableAddress.from_json(parts["address"])})

    def to_json(self) -> str:
        """Return the request as JSON text. It contains the catalog's secrets."""
        return json.dumps({**asdict(self), "address": self.address.to_json()})

    @property
    def schema(self) -> Schema:
        """The columns to read, in order, as a schema of Iceberg."""
        from pyiceberg.schema import Schema

        return Schema.model_validate_json(self.columns)


@dataclass(frozen=True, eq=False)
class IcebergChanges:
    """An Iceberg table to be read as changes, with the arguments of ``Table.from_iceberg``."""

    session: SparkSession
    label: str
    """The name of the table in errors."""
    address: TableAddress
    snapshot: int | None
    """The id of the first snapshot whose changes are read; None to begin with the content."""
    streaming: bool
    """True for a streaming frame; False to read what is there."""
    snapshots_max: int | None
    """The most snapshots of a micro-batch; None for no limit."""

    def frame(
        self, keys: Sequence[str], timestamp: str | Column | None, columns: Sequence[str] | None
    ) -> tuple[DataFrame, str | None]:
        """Return the table's changes, and ``timestamp`` as text for plans, None for None.

        Columns: the table's, or ``keys`` and ``columns``; then ``_deleted`` (boolean),
        ``_timestamp`` and ``_commit_position`` (long), which orders the changes. ``timestamp``: the
        time of an added row, None for the commit's. A column named by it is dropped unless
        ``columns`` names it. ``columns``: the value columns, None for all. Nothing is read yet but
        metadata.

        Raises ``ConfigurationError`` for a table that cannot be read, or of Iceberg's format
        version 1, which does not number commits. Raises ``PlanError`` for an unknown snapshot, a
        type that Spark lacks, unknown columns, and a key as ``timestamp``.
        """
        rows = self._rows(keys, timestamp, columns)
        changes = changes_of(
            rows,
            f"table {self.label}",
            keys,
            timestamp,
            columns,
            key_updates=False,
            partitions=cores(self.session),
        )
        return changes, None if timestamp is None else text_of(self, timestamp, lambda: rows)

    def _rows(
        self, keys: Sequence[str], timestamp: str | Column | None, columns: Sequence[str] | None
    ) -> DataFrame:
        """Return a frame of the table's added and removed rows with the columns that are needed:
        ``keys``, ``columns`` and ``timestamp``, then the kind, version and time of the change.
        Unknown names are left out. All columns are read if ``columns`` is None. With an expression
        as ``timestamp``, all columns of types that Spark has are read besides.

        Raises ``ConfigurationError`` for a table that cannot be read, or of Iceberg's format
        version 1, which does not number commits. Raises ``PlanError`` for an unknown snapshot, for
        a type that Spark lacks and for a name of the last three columns.
        """
        operator = f"table {self.label}"
        table = self.address.open(operator)
        from dovetail.iceberg import columns as iceberg_columns
        from dovetail.iceberg.lineage import refuse_unnumbered

        refuse_unnumbered(operator, table.metadata)
        names = None
        if columns is not None:
            names = [*keys, *columns]
            if isinstance(timestamp, Column):
                readable = iceberg_columns.readable_names(table.schema())
                names += [name for name in readable if name.lower() not in _FEED_COLUMNS.names]
            elif timestamp is not None:
                names.append(timestamp)
        wanted = iceberg_columns.projected(table.schema(), names)
        for field in wanted.fields:
            if field.name.lower() in _FEED_COLUMNS.names:
                raise PlanError(
                    operator,
                    f"column {field.name!r} has a name that the changes of a table have themselves",
                    "Name the other columns in columns=, or rename it in the table",
                )
        request = FeedRequest(
            operator,
            self.address,
            wanted.model_dump_json(),
            self._start(operator, table),
            self.snapshots_max,
        )
        return feed_frame(self.session, request, streaming=self.streaming)

    def _start(self, operator: str, table: Table) -> FeedOffset:
        """Return the offset at which a query begins, a dict of ``snapshot`` and ``content``.
        Without ``snapshot=`` it is before the content: None and True, also for a table without
        snapshots. With it, it is the id of that snapshot's parent, None for the table's first one,
        and False.

        ``operator``: the table in errors. Raises ``PlanError`` for a snapshot that is unknown or
        has expired; its parent is not checked.
        """
        if self.snapshot is None:
            return {"snapshot": None, "content": True}
        snapshot = table.snapshot_by_id(self.snapshot)
        if snapshot is None:
            raise PlanError(
                operator,
                f"snapshot={self.snapshot} is no snapshot of the table, or has expired",
                "Give the id of one in its metadata table 'snapshots'",
            )
        return {"snapshot": snapshot.parent_snapshot_id, "content": False}


def feed_frame(session: SparkSession, request: FeedRequest, *, streaming: bool) -> DataFrame:
    """Return a frame of the rows that ``request`` asks for: its columns, all nullable, then
    ``_change_type``, ``_commit_version`` (long) and ``_commit_timestamp``. A change type is
    ``insert`` or ``delete``.

    ``streaming``: True for a streaming frame. Nothing is read yet. Raises ``PlanError`` for a
    column of a type that Spark lacks.
    """
    from dovetail.iceberg.columns import arrow_schema as columns_in_arrow

    columns = spark_schema(columns_in_arrow(request.operator, request.schema.fields)).toNullable()
    register(session, IcebergSource)
    reader = session.readStream if streaming else session.read
    asked = reader.format(FORMAT).schema(StructType([*columns.fields, *_FEED_COLUMNS.fields]))
    return asked.option(_REQUEST, request.to_json()).load()


class IcebergSource(DataSource):
    """The data source of Spark for the content and the changes of an Iceberg table."""

    @classmethod
    def name(cls) -> str:
        """Return the name by which Spark's readers know the data source."""
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch, up to the request's ``end``. ``schema``: the columns of the
        frame, those of the request and then those of the feed.
        """
        return IcebergBatchReader(self._request, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 -- Spark's
        """Return the reader of a stream, whose micro-batches end at snapshots. ``schema``: the
        columns of the frame, those of the request and then those of the feed.
        """
        return IcebergStreamReader(self._request, schema)

    @property
    def _request(self) -> FeedRequest:
        """The request in the data source's options."""
        return FeedRequest.from_json(self.options[_REQUEST])


@dataclass
class IcebergBatchReader(DataSourceReader):
    """A reader of a table in one batch: its content, or its changes after ``start``."""

    request: FeedRequest
    """The rows to read. Its ``end``, if given, is the last snapshot that is read."""
    columns: StructType
    """The columns of the frame: those of the request, then those of the feed."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks that read the batch, each a group of files; an empty list if there are
        no changes, or the table has no snapshot.

        Raises ``ConfigurationError`` for a table that cannot be read, or a column with another
        type. Raises ``TargetError`` if a snapshot has expired, if the table has lost all, or if the
        start does not precede the end.
        """
        plan = _ChangePlanner(self.request)
        end: FeedOffset = {"snapshot": self.request.end, "content": False}
        if self.request.end is None:
            end = plan.latest_offset(self.request.start)
        return plan.tasks(self.request.start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task as Arrow batches in the columns of the frame: added and
        removed rows of its files. ``partition``: a ``FileTask``, or Spark's own partition if there
        are no tasks, which has no rows. Raises ``DataError`` for a delete file that cannot be read.
        """
        return _read_task(partition, self.columns)


class IcebergStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of a table as a stream, whose micro-batches end at snapshots.

    ``request``: the columns, the start and the limit. ``columns``: the columns of the frame, those
    of the request and then those of the feed.
    """

    def __init__(self, request: FeedRequest, columns: StructType) -> None:
        """Keep the arguments. Nothing is read yet."""
        self.request = request
        self.columns = columns
        self._last: FeedOffset | None = None
        """The offset at which a query of what is available ends; None for other queries."""
        self._plan: _ChangePlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields that travel to tasks: all but the planner, which the driver has."""
        return {**self.__dict__, "_plan": None}

    @property
    def _planner(self) -> _ChangePlanner:
        """The planner of this reader, made on first use. Tasks do not use it."""
        if self._plan is None:
            self._plan = _ChangePlanner(self.request)
        return self._plan

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's
        """Return the offset at which a new query begins, the request's ``start``: a new dict of
        ``snapshot`` and ``content``.
        """
        return dict(self.request.start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 -- Spark's
        """Return the limit of a micro-batch: a count of snapshots, which Spark calls files, or no
        limit if the request has none.
        """
        most = self.request.snapshots_max
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 -- Spark's
        """Make the query end at the table's present snapshot, so that it reads no later one. Raises
        ``ConfigurationError`` if the table cannot be read. Raises ``TargetError`` if the request
        starts after a snapshot and the table has none.
        """
        self._last = self._planner.latest_offset(self.request.start)

    def latestOffset(  # noqa: N802 -- Spark's
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the offset, inclusive, at which the micro-batch after the offset ``start`` ends;
        ``start`` itself if there is nothing new. An offset is a dict of ``snapshot``, an id or
        None, and ``content``, true before the whole content is read.

        ``limit``: the most snapshots of the micro-batch, or no limit. Raises ``ConfigurationError``
        if the table cannot be read, and ``TargetError`` if it has lost all snapshots. With a limit,
        raises ``TargetError``, too, if a snapshot has expired, or if ``start`` does not precede the
        table's present snapshot.
        """
        begin = cast(FeedOffset, start)
        end = self._planner.latest_offset(begin) if self._last is None else self._last
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        return dict(self._planner.limited_offset(begin, end, most))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks that read the changes after the offset ``start`` up to the offset
        ``end``, inclusive, each a group of files. The list is empty if nothing changed. Raises
        ``ConfigurationError`` if the table cannot be read, or a column has another type. Raises
        ``TargetError`` if a snapshot has expired, or if ``start`` does not precede ``end``.
        """
        return self._planner.tasks(cast(FeedOffset, start), cast(FeedOffset, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task as Arrow batches in the columns of the frame: added and
        removed rows of its files. ``partition``: a ``FileTask``, or Spark's own partition if there
        are no tasks, which has no rows. Raises ``DataError`` for a delete file that cannot be read.
        """
        return _read_task(partition, self.columns)


@dataclass
class CommittedChange:
    """A data file whose rows a snapshot adds, removes or changes."""

    change: FileChange
    """The file, with its delete files before and after the snapshot."""
    version: int
    """The snapshot's sequence number."""
    time_us: int
    """The time of its commit in microseconds since 1970."""

    @property
    def size(self) -> int:
        """The bytes that count when files are grouped into tasks: those of the data file, and 4 MiB
        for opening it.
        """
        return _OPEN_BYTES + int(self.change.file.file_size_in_bytes)


@dataclass
class FileTask(InputPartition):
    """The files that a task reads, and the means to do so."""

    reader: RowReader
    """The means to read rows of the table's files."""
    changes: list[CommittedChange]
    """The files to read, in the order of their commits."""


class _ChangePlanner:
    """The driver's view of a table: its snapshots, and the files that differ between them."""

    def __init__(self, request: FeedRequest) -> None:
        """Open the table of ``request``. Raises ``ConfigurationError`` if it cannot be read."""
        from dovetail.iceberg.live_files import ManifestReader

        self._request = request
        self._table: Table = request.address.open(request.operator)
        self._manifests: ManifestReader = ManifestReader(self._table.metadata, self._table.io)
        self._is_fresh = True
        """True until the first refresh, as the table has just been opened."""

    def latest_offset(self, start: FeedOffset) -> FeedOffset:
        """Return the offset of the snapshot that the table has now; ``start`` if it has none. An
        offset is a dict of ``snapshot``, an id or None, and ``content``, true before the whole
        content is read: here False. Raises ``ConfigurationError`` if the catalog cannot be asked,
        and ``TargetError`` if the table has lost the snapshot of ``start``, and all others.
        """
        self._refresh()
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            self._refuse_lost(start)
            return start
        return {"snapshot": snapshot.snapshot_id, "content": False}

    def limited_offset(
        self, start: FeedOffset, end: FeedOffset, snapshots_max: int | None
    ) -> FeedOffset:
        """Return the offset ``end`` or, if it comes first, the one ``snapshots_max`` snapshots
        after ``start``. If ``start`` is before the content, or ``snapshots_max`` is None, the
        result is ``end``. An offset is a dict of ``snapshot`` and ``content``: the id of the last
        snapshot that was read (or None), and True before the whole content is read.

        ``snapshots_max``: at least 1, None for no limit. With a limit, raises ``TargetError`` if a
        snapshot has expired, or if ``start`` does not precede ``end``. So it does if ``start`` has
        a snapshot and ``end`` has none, as of a table that was replaced by an empty one.
        """
        if end["snapshot"] is None:
            self._refuse_lost(start)
        if snapshots_max is None or start["content"] or start == end:
            return end
        line = self._snapshots_between(start, end)[:snapshots_max]
        return {"snapshot": line[-1].snapshot_id, "content": False} if line else start

    def tasks(self, start: FeedOffset, end: FeedOffset) -> list[FileTask]:
        """Return the tasks that read the rows after the offset ``start`` up to ``end``, inclusive,
        each a group of files in commit order. They are all rows of the content of the snapshot
        ``end`` if ``start["content"]`` is true. If the two offsets are equal, or nothing changed,
        the list is empty.

        Raises ``ConfigurationError`` if the table cannot be read, or if a column has another type
        than when the query was built. Raises ``TargetError`` if a snapshot has expired, or if
        ``start`` does not precede ``end``.
        """
        from dovetail.iceberg.changed_rows import RowReader
        from dovetail.iceberg.columns import refuse_other_types

        if start == end:
            return []
        if self._table.snapshot_by_id(end["snapshot"] or 0) is None:
            self._refresh()
        schema = self._request.schema
        refuse_other_types(self._request.operator, schema, self._table.schema())
        reader = RowReader.of(self._table, schema)
        changes = list(
            self._content_files(end) if start["content"] else self._changed_files(start, end)
        )
        return [FileTask(reader, group) for group in _task_groups(changes)]

    def _refresh(self) -> None:
        """Read the table's metadata anew from the catalog, into this planner. The first call does
        nothing, because the table has just been opened. Raises ``ConfigurationError`` if the
        catalog cannot be asked.
        """
        if not self._is_fresh:
            self._table = self._request.address.open(self._request.operator, self._table)
            self._manifests.metadata, self._manifests.io = self._table.metadata, self._table.io
        self._is_fresh = False

    def _refuse_lost(self, start: FeedOffset) -> None:
        """Raise ``TargetError`` if the offset ``start`` has a snapshot. It is for a table without
        snapshots, which must have lost that one.
        """
        from dovetail.iceberg.lineage import lost_snapshots_error

        if start["snapshot"] is not None:
            done = f"snapshot {start['snapshot']} has been read"
            raise lost_snapshots_error(self._request.operator, done)

    def _snapshots_between(self, start: FeedOffset, end: FeedOffset) -> list[Snapshot]:
        """Return the snapshots after the offset ``start`` up to ``end``, inclusive, the oldest
        first; none if both have the same snapshot. If ``start`` has no snapshot, they are all from
        the table's first one. ``end`` must have a snapshot.

        Raises ``TargetError`` if one has expired, ``start`` included, or if ``start`` does not
        precede ``end``.
        """
        from dovetail.iceberg.lineage import snapshots_after

        assert end["snapshot"] is not None
        operator, metadata = self._request.operator, self._table.metadata
        return snapshots_after(operator, metadata, start["snapshot"], end["snapshot"])

    def _content_files(self, end: FeedOffset) -> Iterator[CommittedChange]:
        """Yield all data files of the snapshot at ``end``, each with its delete files, as files
        that this snapshot adds. With ``content_ranges`` in the request, files that have no row in
        them may be left out. Raises ``TargetError`` if the snapshot has expired.
        """
        snapshot = self._table.snapshot_by_id(end["snapshot"] or 0)
        if snapshot is None:
            raise TargetError(
                self._request.operator,
                f"snapshot {end['snapshot']}, with whose content the query begins, has expired",
                "Read the table into a new checkpoint, which begins with its present content",
            )
        if self._request.content_ranges:
            files = self._manifests.live_files_matching(snapshot, self._range_condition())
        else:
            files = self._manifests.live_files(snapshot)
        yield from self._committed_changes(snapshot, {}, files)

    def _range_condition(self) -> BooleanExpression:
        """Return one condition on the table's present columns, by which files without wanted rows
        are skipped: each column lies in all its ranges of ``request.content_ranges``, both ends
        inclusive. A null lies in no range. The condition is always true without ranges.

        A range has the id of its column, so a renamed column is found. A column that the table has
        dropped is left out. So is one by which pyiceberg would skip wrong files
        (``is_skipped_wrongly``).
        """
        from pyiceberg.expressions import (
            AlwaysTrue,
            And,
            GreaterThanOrEqual,
            LessThanOrEqual,
        )

        from dovetail.iceberg.live_files import is_skipped_wrongly

        schema = self._table.schema()
        conditions: list[BooleanExpression] = []
        for id_, least, greatest in self._request.content_ranges:
            name = schema.find_column_name(id_)
            if name is not None and not is_skipped_wrongly(self._table.metadata, least):
                conditions += [GreaterThanOrEqual(name, least), LessThanOrEqual(name, greatest)]
        return reduce(And, conditions, AlwaysTrue())

    def _changed_files(self, start: FeedOffset, end: FeedOffset) -> Iterator[CommittedChange]:
        """Yield the files that each snapshot after ``start`` up to ``end``, inclusive, adds,
        removes, or changes by delete files. The oldest snapshot comes first. Snapshots that only
        rewrite files yield none. Raises ``TargetError`` if a snapshot has expired, ``start``
        included, or if ``start`` does not precede ``end``.
        """
        from dovetail.iceberg.lineage import changes_rows

        first = self._table.snapshot_by_id(start["snapshot"] or 0)
        before = self._manifests.live_files(first)
        for snapshot in self._snapshots_between(start, end):
            after = self._manifests.live_files(snapshot)
            if changes_rows(snapshot):
                yield from self._committed_changes(snapshot, before, after)
            before = after

    def _committed_changes(
        self, snapshot: Snapshot, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> Iterator[CommittedChange]:
        """Yield the files that differ between ``before`` and ``after``, in order of their paths,
        one change for each. It has the file, its delete files before and after, and the sequence
        number and the commit time of ``snapshot``, which made the difference.

        ``before``, ``after``: the live data files by path, each with its delete files.
        """
        from dovetail.iceberg.changed_rows import changed_files

        version, time_us = snapshot.sequence_number or 0, snapshot.timestamp_ms * 1000
        for change in changed_files(before, after):
            yield CommittedChange(change, version, time_us)


def _task_groups(changes: Sequence[CommittedChange]) -> Iterator[list[CommittedChange]]:
    """Yield the changes in order, in groups whose sizes add up to at most 128 MiB
    (``_TASK_BYTES``); a larger file is a group of its own. No changes yield nothing.
    """
    group: list[CommittedChange] = []
    size = 0
    for change in changes:
        if group and size + change.size > _TASK_BYTES:
            yield group
            group, size = [], 0
        group.append(change)
        size += change.size
    if group:
        yield group


def _read_task(partition: InputPartition, columns: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task's files as Arrow batches: the columns of the request, then
    ``_change_type`` (``insert`` or ``delete``), ``_commit_version`` and ``_commit_timestamp``. A
    partition that is no ``FileTask`` yields nothing; Spark makes one up where there are no tasks.

    ``columns``: the columns of the frame. Raises ``DataError`` for a delete file that cannot be
    read.
    """
    if not isinstance(partition, FileTask):
        return
    schema = arrow_schema(columns)
    feed_types = schema.types[-len(_FEED_COLUMNS) :]
    for committed in partition.changes:
        for removed, rows in partition.reader.changed_rows(committed.change):
            kind = "delete" if removed else "insert"
            feed = zip((kind, committed.version, committed.time_us), feed_types, strict=True)
            added = [pa.repeat(pa.scalar(value, type_), rows.num_rows) for value, type_ in feed]
            batch = pa.RecordBatch.from_arrays([*rows.columns, *added], schema.names)
            yield batch.cast(schema)
