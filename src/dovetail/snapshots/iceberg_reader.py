"""Reading Iceberg tables: their snapshots, what these change, and the rows of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dovetail.base.columns import quoted
from dovetail.errors import ConfigurationError, TargetError
from dovetail.io.sources.change_feed import COMMIT_VERSION, KIND
from dovetail.io.sources.iceberg_feed import ColumnRange, FeedOffset, FeedRequest, feed_frame
from dovetail.platform.delta_tables import Range
from dovetail.snapshots.delta_rules import FEED_VERSION
from dovetail.snapshots.plan import REBUILD, SIGN, WRITE_ANEW, IcebergTable, SnapshotSource

if TYPE_CHECKING:
    from pyiceberg.table import Table

NO_SNAPSHOT = 0
"""The version of a table before its first snapshot."""


@dataclass
class SnapshotReader:
    """A reader of Iceberg tables, which opens each table once and then goes by its state of that
    moment.
    """

    session: SparkSession
    _tables: dict[str, Table] = field(default_factory=dict, init=False)

    def latest_snapshot(self, source: SnapshotSource, columns: Sequence[str]) -> int:
        """Return the id of a source's present snapshot, 0 if it has none.

        ``columns``: the names of columns that must be as they were when the plan was made in
        Python, as ``source`` has them; a new name in the table does not matter. Raises
        ``TargetError`` if the table was replaced, or if one of ``columns`` was dropped or has
        another type. Raises ``ConfigurationError`` if the table cannot be read.
        """
        operator, table, iceberg = (
            _title_of(source),
            self._opened_table(source),
            _iceberg_table(source),
        )
        if str(table.metadata.table_uuid) != source.table_id:
            raise TargetError(operator, f"the table {source.path!r} has been replaced", WRITE_ANEW)
        present = {column.field_id: column for column in table.schema().fields}
        request = _feed_request(source, columns)
        for column in request.schema.fields:
            now = present.get(iceberg.ids[column.name])
            if now is None or now.field_type != column.field_type:
                state = "is missing" if now is None else f"is {now.field_type}"
                raise TargetError(
                    operator,
                    f"column {column.name!r} was {column.field_type} when the join was written and "
                    f"now {state}",
                    WRITE_ANEW,
                )
        snapshot = table.current_snapshot()
        return NO_SNAPSHOT if snapshot is None else snapshot.snapshot_id

    def next_snapshot(
        self, source: SnapshotSource, covered: int, latest: int, versions_max: int | None
    ) -> int:
        """Return the id of the snapshot that a step covers next. It is ``latest``, or the last of
        the next ``versions_max`` snapshots after ``covered`` if that comes before.

        ``covered``: the id of the snapshot that is covered, 0 for the table before its first one.
        ``versions_max``: at least 1, None for no limit. Unless ``covered`` is ``latest``, raise
        ``TargetError`` if the covered snapshot or one after it has expired. So it does if the table
        was rolled back, or replaced and has no snapshot.
        """
        from dovetail.iceberg.lineage import lost_snapshots_error, snapshots_after

        if covered == latest:
            return covered
        if latest == NO_SNAPSHOT:
            done = f"snapshot {covered} is covered"
            raise lost_snapshots_error(_title_of(source), done, REBUILD)
        metadata, start = self._opened_table(source).metadata, covered or None
        line = snapshots_after(_title_of(source), metadata, start, latest, REBUILD)
        return line[:versions_max][-1].snapshot_id

    def rows(
        self,
        source: SnapshotSource,
        columns: Sequence[str],
        version: int,
        ranges: Mapping[str, Range | None],
    ) -> DataFrame:
        """Return columns of a source at a snapshot, in undefined order. Files without rows within
        ``ranges`` are not read.

        ``version``: the id of the snapshot; 0 gives no rows. ``ranges``: the smallest and the
        largest value of a column, both inclusive, by its name. A null lies in no range. None, and
        values other than integers and texts, restrict nothing. Rows outside the ranges may be among
        the result. Raises ``ConfigurationError`` if the snapshot does not exist, or if the table
        cannot be read.
        """
        ids = _iceberg_table(source).ids
        content_ranges: list[ColumnRange] = [
            (ids[name], *ends)
            for name, ends in ranges.items()
            if ends is not None and isinstance(ends[0], (int, str))
        ]
        if version == NO_SNAPSHOT:
            fields = {part.name: part for part in (*source.key, *source.values)}
            return self.session.createDataFrame([], StructType([fields[name] for name in columns]))
        if self._opened_table(source).snapshot_by_id(version) is None:
            raise ConfigurationError(
                _title_of(source),
                f"snapshot {version} is not there, or has expired",
                "Give the id of one in its metadata table 'snapshots', or 0 for the empty table",
            )
        request = _feed_request(source, columns, end=version, content_ranges=content_ranges)
        frame = feed_frame(self.session, request, streaming=False)
        return frame.select(*map(quoted, columns))

    def changes(
        self, source: SnapshotSource, columns: Sequence[str], old: int, new: int
    ) -> DataFrame:
        """Return the rows that the snapshots after ``old``, exclusive, up to ``new``, inclusive,
        remove from a source and add to it.

        The columns are ``columns``, ``_sign`` (-1 a row that goes, +1 one that comes) and
        ``_commit_version``. That is the sequence number of the change's snapshot, which rises from
        snapshot to snapshot. ``old``, ``new``: ids of snapshots; ``old`` is 0 for the table before
        its first one. Nothing is checked or read yet; a job that reads the frame fails if a
        snapshot in between has expired.
        """
        start: FeedOffset = {"snapshot": old or None, "content": False}
        rows = feed_frame(self.session, _feed_request(source, columns, start, new), streaming=False)
        return rows.select(
            *map(quoted, columns),
            F.when(F.col(KIND) == "insert", 1).otherwise(-1).alias(SIGN),
            F.col(COMMIT_VERSION).alias(FEED_VERSION),
        )

    def _opened_table(self, source: SnapshotSource) -> Table:
        """Return the opened Iceberg table of a source. The first call for a table asks the catalog,
        and raises ``ConfigurationError`` if the table cannot be read. Later calls return the same
        object, which is never refreshed, so later snapshots are not seen.
        """
        if source.table_id not in self._tables:
            self._tables[source.table_id] = _iceberg_table(source).address.open(_title_of(source))
        return self._tables[source.table_id]


def _feed_request(
    source: SnapshotSource,
    columns: Sequence[str],
    start: FeedOffset | None = None,
    end: int | None = None,
    content_ranges: Sequence[ColumnRange] = (),
) -> FeedRequest:
    """Return the request to read ``columns`` of a source: by default for the rows of its present
    snapshot.

    ``start``: to read changes in place of rows: ``snapshot``, the id of the last snapshot that is
    left out, and ``content``, False. ``end``: the id of the last snapshot, inclusive; None for the
    present one. ``content_ranges``: ranges by which files are skipped: the column's id, its
    smallest and its largest value.
    """
    from pyiceberg.schema import Schema

    iceberg = _iceberg_table(source)
    planned = {part.name: part for part in Schema.model_validate_json(iceberg.columns).fields}
    return FeedRequest(
        _title_of(source),
        iceberg.address,
        Schema(*(planned[name] for name in columns)).model_dump_json(),
        start or {"snapshot": None, "content": True},
        end=end,
        content_ranges=content_ranges,
    )


def _iceberg_table(source: SnapshotSource) -> IcebergTable:
    """Return the Iceberg table of a source, which must be one."""
    assert source.iceberg is not None
    return source.iceberg


def _title_of(source: SnapshotSource) -> str:
    """Return the name of a source in errors, such as ``snapshot orders``."""
    return f"snapshot {source.name}"
