"""``SnapshotTable``: Delta tables with snapshots, their joins, and the targets that hold these."""

from __future__ import annotations

from collections.abc import Mapping
from time import sleep
from typing import NoReturn

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dovetail.base.validation import ColumnNames, Natural, Path, Positive, Text, validated
from dovetail.errors import PlanError
from dovetail.laws.joins.table_join import How
from dovetail.plan.changelog_source import Session
from dovetail.plan.joins.join_keys import On
from dovetail.plan.select import Selection
from dovetail.plan.types.spans import Span, microseconds
from dovetail.platform import delta_tables
from dovetail.platform.sessions import apart
from dovetail.platform.spark_errors import refused
from dovetail.snapshots import plan
from dovetail.snapshots.delta_reader import Present, Reader, Scratch
from dovetail.snapshots.refresh import Keeper
from dovetail.snapshots.target import Commit, Target

_GIVEN = "Give a Delta table's path, or its name in a catalog"


class SnapshotTable:
    """A Delta table at its versions, or a join of such tables; immutable.

    It is made by ``SnapshotTable.from_delta`` and by ``join``, and kept in a Delta table by
    ``refresh`` and ``maintain``. This is the strong form of the delta join. At every commit, the
    target equals the join of its sources at the versions that the commit covers.
    """

    @validated
    def __init__(self, session: SparkSession, node: plan.SnapshotNode) -> None:
        self._session = session
        self.plan = node

    @classmethod
    @validated
    def from_delta(
        cls,
        spark: Session,
        path: Path | None = None,
        *,
        table: Text | None = None,
        key: ColumnNames,
        name: Text | None = None,
    ) -> SnapshotTable:
        """Return the Delta table at ``path``, or called ``table`` in a catalog.

        Its change data feed must be enabled. ``key``: the columns that tell its rows apart at every
        version. A refresh raises ``DataError`` if a key occurs twice or all of its columns are
        null. ``name``: the name in errors and commits, by default the last part of the path or
        name.

        Raises ``PlanError`` for unknown columns and for types that cannot be keys. Source:
        FLIP-486, "What is Delta Join" (snapshots of the source table).
        """
        delta_tables.refuse_but_one("from_delta", path, table)
        operator = f"snapshot {name or table or path}"
        delta_tables.refuse_without_delta(spark, operator)
        with refused(
            operator,
            f"{f'{path=!s}' if table is None else f'{table=!s}'} cannot be read",
            _GIVEN,
        ):
            if table is None:
                place = delta_tables.path_of(spark, operator, "path=", path or "")
                label = name or place.rstrip("/").rsplit("/", 1)[-1]
            else:
                place = delta_tables.location(spark, table)
                label = name or table.rsplit(".", 1)[-1].strip("`")
            schema = delta_tables.read(spark, delta_tables.named(place)).schema
            table_id = Present.of(spark, place).table_id
        return cls(
            spark, plan.source(path=place, table_id=table_id, schema=schema, key=key, name=label)
        )

    @property
    def schema(self) -> StructType:
        """The columns of the target: the key, then the values."""
        return StructType([*self.plan.key.fields, *self.plan.values.fields])

    @validated
    def join(
        self,
        right: SnapshotTable,
        *,
        on: On | None = None,
        how: How = "inner",
        select: Selection | None = None,
        name: Text | None = None,
    ) -> SnapshotTable:
        """Join two tables: at any versions of them, the rows that match.

        ``on``: columns of this table that equal the right table's key, in the key's order. A
        mapping pairs this table's columns with the right table's. Without it the keys of both are
        equal and must have the same names. A null equals nothing. ``how``: ``"inner"``, ``"left"``,
        ``"right"`` or ``"outer"``.

        ``select``: the result's value columns, as in ``Table.join``: names (``"left.x"``,
        ``"right.x"``, ``"x"``), a mapping of new names, or deterministic Spark expressions over the
        joined row.

        The result's key is this table's key if each of its rows has at most one result. That is so
        if ``on`` has the whole right key and right rows do not appear alone, or if both keys are
        joined. Otherwise it is both tables' keys, the right columns as ``right_<column>``. Results
        are joined further in the same way.

        Raises ``PlanError`` for unknown or ambiguous names and for different types. Source:
        FLIP-486, "Future Work" (strong consistency, cascading joins).
        """
        node = plan.join(self.plan, right.plan, on=on, how=how, select=select, name=name)
        return SnapshotTable(self._session, node)

    @validated
    def refresh(
        self,
        target: Path | None = None,
        *,
        table: Text | None = None,
        max_versions: Positive | None = None,
        rebuild: bool = False,
    ) -> list[Commit]:
        """Bring a target to the present versions of the sources. Return the commits made, maybe
        none.

        The target is the Delta table at the path ``target``, or called ``table`` in a catalog. At
        first it is made by a plain batch join. Later runs read only changes: the change data feeds
        since the versions covered, and the other tables' rows with the same join keys. Rows and the
        versions that they cover are one commit, so a run that was killed is simply run again.

        ``max_versions``: the number of versions of each source that a commit covers at most, for a
        backlog in steps. ``rebuild``: True to replace the target by a batch join, even that of
        another join. A table of another kind is never overwritten.

        Raises ``ConfigurationError`` without a change data feed, and ``DataError`` for keys that
        occur twice. Raises ``TargetError`` for a target of another join, or one that others
        changed. The same error is raised for a source that was replaced, has other types, or lost
        its changes. Source: FLIP-486, "Future Work" (strong consistency, batch-stream fusion).
        """
        keeper = Keeper(self._session, self.plan, "refresh", target, table)
        return keeper.refresh(max_versions=max_versions, rebuild=rebuild)

    @validated
    def maintain(
        self,
        target: Path | None = None,
        *,
        table: Text | None = None,
        every: Span = "10 s",
        max_versions: Positive | None = None,
    ) -> NoReturn:
        """Call ``refresh`` again and again, until it fails or the process ends.

        ``every``: the wait between the end of one refresh and the next one. The other arguments and
        errors are those of ``refresh``.
        """
        interval_s = microseconds("maintain", "every=", every) / 1e6
        keeper = Keeper(self._session, self.plan, "maintain", target, table)
        while True:
            keeper.refresh(max_versions=max_versions, rebuild=False)
            sleep(interval_s)

    @validated
    def commits(self, target: Path | None = None, *, table: Text | None = None) -> list[Commit]:
        """Return the commits of a target that its history still has, the last one first.

        Each has the versions of the sources that it covers.
        """
        operator = f"target {target or table}"
        delta_tables.refuse_but_one("commits", target, table)
        delta_tables.refuse_without_delta(self._session, operator)
        named = delta_tables.called(self._session, "commits", "target=", target, table)
        with refused("commits", f"{operator} cannot be read", _GIVEN):
            return list(Target(self._session, operator, named, self.plan).commits())

    @validated
    def to_batch(self, versions: Mapping[str, Natural] | None = None) -> DataFrame:
        """Return the join of the tables at their present versions.

        ``versions``: other versions, by the tables' names. Raises ``PlanError`` for unknown names.
        """
        known = plan.tables(self.plan)
        names = {one.name for one in known.values()}
        unknown = [name for name in versions or {} if name not in names]
        if unknown:
            raise PlanError(
                "to_batch",
                f"versions= names an unknown table {unknown[0]!r}",
                f"Known are {', '.join(sorted(names))}",
            )
        session = apart(self._session)
        delta_tables.strict(session)
        chosen = {key: (versions or {}).get(one.name) for key, one in known.items()}
        present = {
            key: Present.of(session, known[key].path).version if version is None else version
            for key, version in chosen.items()
        }
        with refused("to_batch", "versions= cannot be read", "Give versions that the tables have"):
            return Reader(session, self.plan, Scratch()).rows(self.plan, present)

    def __repr__(self) -> str:
        return f"SnapshotTable[{self.plan.name}; key {', '.join(self.plan.key.names)}]"
