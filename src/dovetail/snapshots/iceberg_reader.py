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
from dovetail.io.sources.iceberg_feed import ColumnRange, Offset, Request, feed
from dovetail.platform.delta_tables import Range
from dovetail.snapshots.delta_rules import FEED_VERSION
from dovetail.snapshots.plan import REBUILD, SIGN, IcebergTable, SnapshotSource

if TYPE_CHECKING:
    from pyiceberg.table import Table

EMPTY = 0
"""The version of a table before its first snapshot."""


@dataclass
class SnapshotReader:
    """A reader of Iceberg tables, which asks the catalog once for each."""

    session: SparkSession
    _tables: dict[str, Table] = field(default_factory=dict, init=False)

    def latest(self, source: SnapshotSource, columns: Sequence[str]) -> int:
        """Return the present version of a table, which must still fit the plan.

        Raises ``TargetError`` if the table was replaced, or if one of ``columns`` was dropped or
        has another type.
        """
        operator, table, iceberg = _operator(source), self._table(source), _iceberg(source)
        if str(table.metadata.table_uuid) != source.table_id:
            raise TargetError(operator, f"the table {source.path!r} has been replaced", REBUILD)
        present = {column.field_id: column for column in table.schema().fields}
        request = _request(source, columns)
        for column in request.schema.fields:
            now = present.get(iceberg.ids[column.name])
            if now is None or now.field_type != column.field_type:
                state = "is missing" if now is None else f"is {now.field_type}"
                raise TargetError(
                    operator,
                    f"column {column.name!r} was {column.field_type} when the join was written and "
                    f"now {state}",
                    f"Write the join anew from the present table, then {_lowered(REBUILD)}",
                )
        snapshot = table.current_snapshot()
        return EMPTY if snapshot is None else snapshot.snapshot_id

    def following(
        self, source: SnapshotSource, covered: int, latest: int, versions_max: int | None
    ) -> int:
        """Return the version that a step covers next: the latest, or the last of the next
        ``versions_max``.

        Raises ``TargetError`` if the covered snapshot has expired, or if the table was rolled back.
        """
        from dovetail.iceberg.lineage import snapshots_after

        if covered == latest:
            return covered
        metadata, start = self._table(source).metadata, covered or None
        line = snapshots_after(_operator(source), metadata, start, latest, REBUILD)
        return line[:versions_max][-1].snapshot_id

    def rows(
        self,
        source: SnapshotSource,
        columns: Sequence[str],
        version: int,
        ranges: Mapping[str, Range | None],
    ) -> DataFrame:
        """Return the rows of a snapshot, without files that have none within ``ranges``.

        Raises ``ConfigurationError`` if the snapshot is not there.
        """
        ids = _iceberg(source).ids
        near: list[ColumnRange] = [
            (ids[name], *ends)
            for name, ends in ranges.items()
            if ends is not None and isinstance(ends[0], (int, str))
        ]
        if version == EMPTY:
            fields = {part.name: part for part in (*source.key, *source.values)}
            return self.session.createDataFrame([], StructType([fields[name] for name in columns]))
        if self._table(source).snapshot_by_id(version) is None:
            raise ConfigurationError(
                _operator(source),
                f"snapshot {version} is not there, or has expired",
                "Give the id of one in its metadata table 'snapshots', or 0 for the empty table",
            )
        request = _request(source, columns, end=version, near=near)
        frame = feed(self.session, request, streaming=False)
        return frame.select(*map(quoted, columns))

    def changes(
        self, source: SnapshotSource, columns: Sequence[str], old: int, new: int
    ) -> DataFrame:
        """Return what the snapshots after ``old`` up to ``new`` change, for
        ``delta_rules.images``.
        """
        start: Offset = {"snapshot": old or None, "content": False}
        rows = feed(self.session, _request(source, columns, start, new), streaming=False)
        return rows.select(
            *map(quoted, columns),
            F.when(F.col(KIND) == "insert", 1).otherwise(-1).alias(SIGN),
            F.col(COMMIT_VERSION).alias(FEED_VERSION),
        )

    def _table(self, source: SnapshotSource) -> Table:
        if source.table_id not in self._tables:
            self._tables[source.table_id] = _iceberg(source).address.open(_operator(source))
        return self._tables[source.table_id]


def _request(
    source: SnapshotSource,
    columns: Sequence[str],
    start: Offset | None = None,
    end: int | None = None,
    near: Sequence[ColumnRange] = (),
) -> Request:
    """Return the request for columns of a table: by default for its content."""
    from pyiceberg.schema import Schema

    iceberg = _iceberg(source)
    planned = {part.name: part for part in Schema.model_validate_json(iceberg.columns).fields}
    return Request(
        _operator(source),
        iceberg.address,
        Schema(*(planned[name] for name in columns)).model_dump_json(),
        start or {"snapshot": None, "content": True},
        end=end,
        near=near,
    )


def _iceberg(source: SnapshotSource) -> IcebergTable:
    assert source.iceberg is not None
    return source.iceberg


def _operator(source: SnapshotSource) -> str:
    return f"snapshot {source.name}"


def _lowered(text: str) -> str:
    return text[0].lower() + text[1:]
