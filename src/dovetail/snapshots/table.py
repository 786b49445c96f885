"""``SnapshotTable``: tables with snapshots, their joins, and the targets that hold these."""

from __future__ import annotations

from collections.abc import Mapping
from time import sleep
from typing import NoReturn

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from dovetail import lake
from dovetail.arguments import ColumnNames, Natural, Path, Positive, Text, validated
from dovetail.errors import PlanError
from dovetail.laws.table_join import How
from dovetail.plan.matching import On
from dovetail.plan.reading import Session
from dovetail.plan.select import Selection
from dovetail.plan.spans import Span, microseconds
from dovetail.refusals import refused
from dovetail.sessions import apart
from dovetail.snapshots import plan
from dovetail.snapshots.driver import Keeper
from dovetail.snapshots.reading import Present, Reader, Scratch
from dovetail.snapshots.target import Commit, Target

_GIVEN = "Give a Delta table's path, or its name in a catalog"


class SnapshotTable:
    """A Delta table at its versions, or a join of such tables. Never changed in place.

    Made by ``SnapshotTable.from_delta`` and by ``join``; kept in a Delta table by ``refresh`` and
    ``maintain``. The strong form of the delta join: the target equals the join of its sources, as
    they were at the versions that the commit covers, at every commit.
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
        """The Delta table at ``path``, or called ``table`` in a catalog, which must have its change
        data feed enabled.

        ``key``: the columns that tell its rows apart at every version; a key that occurs twice, or
        whose columns are all null, is refused with ``DataError`` when the target is brought up to
        date. ``name``: what errors and commits call the table, by default the last part of its path
        or name.

        Raises ``PlanError`` for unknown columns and for types that cannot be keys.
        Source: FLIP-486, "What is Delta Join" (snapshots of the source table).
        """
        lake.refuse_but_one("from_delta", path, table)
        operator = f"snapshot {name or table or path}"
        lake.refuse_without_delta(spark, operator)
        with refused(
            operator,
            f"{f'{path=!s}' if table is None else f'{table=!s}'} cannot be read",
            _GIVEN,
        ):
            if table is None:
                place = lake.path_of(spark, operator, "path=", path or "")
                label = name or place.rstrip("/").rsplit("/", 1)[-1]
            else:
                place = lake.location(spark, table)
                label = name or table.rsplit(".", 1)[-1].strip("`")
            schema = lake.read(spark, lake.named(place)).schema
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
        """A join of two tables: at any versions of them, the rows that belong together.

        ``on``: columns of this table that equal the right one's key, in its order; or a mapping of
        this table's columns to the right one's, which are equal; left out, both keys, which then
        have the same names. A null equals nothing. ``how``: ``"inner"``, ``"left"``, ``"right"`` or
        ``"outer"``.

        ``select``: the result's value columns, as in ``Table.join``: names (``"left.x"``,
        ``"right.x"``, ``"x"``), a mapping of new names, or deterministic Spark expressions over
        the joined row.

        The result's key is this table's, where each of its rows has at most one result: the right
        key is named in full, and right rows do not appear alone, or both keys are joined. Otherwise
        it is both tables' keys, the right's columns as ``right_<column>``. Results are joined
        further in the same way.

        Raises ``PlanError`` where names are unknown or ambiguous and where types differ.
        Source: FLIP-486, "Future Work" (strong consistency, cascading joins).
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
        """Bring the Delta table at the path ``target``, or called ``table`` in a catalog, to the
        present versions of the sources; the commits made, none where there is nothing new.

        The first time the table is made by a plain batch join. Later only what has changed is
        read: the change data feeds since the versions covered and, of the other tables, the rows
        with the same join keys. Rows and the versions they cover are one commit, so a run that is
        killed anywhere is simply run again.

        ``max_versions``: cover at most so many versions of each source with a commit, so that a
        long backlog goes in steps. ``rebuild``: replace the target by a batch join, whatever join
        it was of; a table that is none is never overwritten.

        Raises ``ConfigurationError`` where a change data feed is not enabled; ``DataError`` for
        keys that occur twice; ``TargetError`` where the target is another join's or was changed by
        others, or where a source was replaced, has other types, or no longer has its changes.
        Source: FLIP-486, "Future Work" (strong consistency, batch-stream fusion).
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
        """``refresh`` again and again, ``every`` so long after the last one ended, until it fails
        or the process is ended.
        """
        interval_s = microseconds("maintain", "every=", every) / 1e6
        keeper = Keeper(self._session, self.plan, "maintain", target, table)
        while True:
            keeper.refresh(max_versions=max_versions, rebuild=False)
            sleep(interval_s)

    @validated
    def commits(self, target: Path | None = None, *, table: Text | None = None) -> list[Commit]:
        """The commits of a target that its history still has, the last one first, each with the
        versions of the sources that it covers.
        """
        operator = f"target {target or table}"
        lake.refuse_but_one("commits", target, table)
        lake.refuse_without_delta(self._session, operator)
        named = lake.called(self._session, "commits", "target=", target, table)
        with refused("commits", f"{operator} cannot be read", _GIVEN):
            return list(Target(self._session, operator, named, self.plan).commits())

    @validated
    def to_batch(self, versions: Mapping[str, Natural] | None = None) -> DataFrame:
        """The join of the tables at their present versions, or at those given by name."""
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
        lake.strict(session)
        chosen = {key: (versions or {}).get(one.name) for key, one in known.items()}
        present = {
            key: Present.of(session, known[key].path).version if version is None else version
            for key, version in chosen.items()
        }
        with refused("to_batch", "versions= cannot be read", "Give versions that the tables have"):
            return Reader(session, self.plan, Scratch()).rows(self.plan, present)

    def __repr__(self) -> str:
        return f"SnapshotTable[{self.plan.name}; key {', '.join(self.plan.key.names)}]"
