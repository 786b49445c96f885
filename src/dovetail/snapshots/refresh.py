"""Refreshing a target table, one step after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from os import PathLike, fspath

from pyspark.sql import SparkSession

from dovetail.base.columns import foreign_name, quoted
from dovetail.errors import DovetailError, PlanError, TargetError
from dovetail.iceberg.catalogs import GivenCatalog, TableAddress
from dovetail.platform import delta_upsert
from dovetail.platform.delta_tables import (
    called,
    folder_of,
    refuse_but_one,
    refuse_without_delta,
    setting,
    strict,
    tune,
)
from dovetail.platform.progress_bar import progress_bar
from dovetail.platform.sessions import apart, cores
from dovetail.snapshots.commit_records import Commit
from dovetail.snapshots.delta_reader import (
    Scratch,
    VersionReader,
    Versions,
    counted,
    fit_version,
    refuse_duplicates,
    unreachable,
)
from dovetail.snapshots.deltas import Deltas
from dovetail.snapshots.iceberg_target import IcebergSnapshotTarget
from dovetail.snapshots.plan import REBUILD, SnapshotNode, tables
from dovetail.snapshots.target import SnapshotTarget

ANY_SCHEMA = (
    "spark.databricks.delta.changeDataFeed.unsafeBatchReadOnIncompatibleSchemaChanges.enabled"
)
"""A setting of Delta: read a change feed across versions of which one has other columns."""


class Refresher:
    """The refresher of one target of one plan, with a Spark session of its own.

    The session has the settings of the given one, except those under which rows would be missed.
    ``call``: the method named in errors.
    """

    def __init__(
        self,
        session: SparkSession,
        root: SnapshotNode,
        call: str,
        path: str | PathLike[str] | None,
        table: str | None,
        catalog: GivenCatalog | None,
    ) -> None:
        """Make the session and find the target. Raises ``PlanError`` unless a path or a table is
        given, ``ConfigurationError`` without Delta Lake if the target needs it.
        """
        self._operator = f"target {table if path is None else fspath(path)}"
        self._session = apart(session)
        strict(self._session)
        tune(self._session)
        # The reader compares the used columns itself. Changes of other columns do not matter.
        self._session.conf.set(ANY_SCHEMA, "true")
        self._root = root
        self._target = target_of(self._session, root, call, path, table, catalog, make=True)

    def refresh(self, *, max_versions: int | None, rebuild: bool) -> list[Commit]:
        """Bring the target to the sources' present versions, step by step. Return the commits made.

        ``max_versions``: the number of versions of each source that a commit covers at most; None
        for no limit. ``rebuild``: True to compute the whole target anew.
        """
        with self._reading() as reader:
            latest = {
                key: fit_version(reader, source) for key, source in tables(self._root).items()
            }
        if rebuild or not self._target.exists():
            with progress_bar(self._session, f"{self._operator} is made"):
                return [self._make(latest)]
        commits: list[Commit] = []
        while True:
            standing = self._target.standing()
            until = self._next(reader, standing.covered, latest, max_versions)
            if until == standing.covered:
                return commits
            with progress_bar(self._session, f"{self._operator}, step {len(commits) + 1}"):
                commits.append(self._follow(standing.covered, until, standing.version))
            if until == latest:
                return commits

    def _next(
        self, reader: VersionReader, covered: Versions, latest: Versions, max_versions: int | None
    ) -> Versions:
        """Return the versions that the next step covers: the latest, but at most ``max_versions``
        more of each source. No version of a Delta table goes back.

        Raises ``TargetError`` if an Iceberg table no longer has the snapshots in between.
        """
        until = {}
        for key, source in tables(self._root).items():
            start, end = covered[key], latest[key]
            if source.iceberg is not None:
                until[key] = reader.iceberg.following(source, start, end, max_versions)
            else:
                end = max(start, end)
                until[key] = end if max_versions is None else min(end, start + max_versions)
        return until

    def _make(self, versions: Versions) -> Commit:
        """Write the whole join at these versions in one commit.

        Raises ``TargetError`` if the target is a table of another kind, ``DataError`` for keys that
        are not unique.
        """
        replace = self._target.exists()
        if replace and not self._target.belongs():
            raise TargetError(
                self._operator,
                "the table there is not one of a join over snapshots",
                "Choose another one; it is not overwritten",
            )
        with self._reading() as reader:
            for source in tables(self._root).values():
                refuse_duplicates(reader, source, versions)
            rows = reader.rows(self._root, versions)
            return self._target.create(rows, versions, replace=replace)

    def _follow(self, old: Versions, new: Versions, base: int) -> Commit:
        """Merge the changes from the old to the new versions into the target in one commit, also if
        no row changes.

        ``base``: the target's version that the commit continues from.
        """
        with self._reading() as reader:
            deltas = Deltas(reader, old, new)
            changed = sum(deltas.of(source).rows for source in tables(self._root).values())
            few = changed <= delta_upsert.ROWS_MAX
            with setting(self._session, self._for_few) if few else nullcontext():
                delta = deltas.changes(self._root)
            if delta.frame is None:
                return self._target.advance(new, base)
            names = self._root.key.names
            numbered = [(quoted(name), foreign_name(i)) for i, name in enumerate(names)]
            keys = counted(delta.frame.selectExpr(*(f"{a} AS {b}" for a, b in numbered)))
            return self._target.merge(delta.frame, keys, delta.rows, new, base)

    @property
    def _for_few(self) -> dict[str, str]:
        """The Spark settings for a small number of changes, whose work is known to be small."""
        return {
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": str(cores(self._session)),
        }

    @contextmanager
    def _reading(self) -> Iterator[VersionReader]:
        """Yield a reader whose frames are released at the end of the block.

        Raises ``TargetError`` if a source no longer has its rows or its changes.
        """
        scratch = Scratch()
        try:
            yield VersionReader(self._session, self._root, scratch)
        except Exception as error:
            if isinstance(error, DovetailError) or not unreachable(error):
                raise
            raise TargetError(
                self._operator,
                "a source no longer has its changes or its rows since the versions covered "
                f"({str(error).splitlines()[0]})",
                REBUILD,
            ) from error
        finally:
            scratch.release()


def target_of(
    session: SparkSession,
    root: SnapshotNode,
    call: str,
    path: str | PathLike[str] | None,
    table: str | None,
    catalog: GivenCatalog | None,
    *,
    make: bool = False,
) -> SnapshotTarget | IcebergSnapshotTarget:
    """Return the target of a plan: an Iceberg table if there is a catalog, else a Delta table.

    ``make``: create the folder of a path. Raises ``PlanError`` unless a path or a table is given,
    or for a path with a catalog, ``ConfigurationError`` without Delta Lake if it is needed.
    """
    refuse_but_one(call, path, table)
    operator = f"target {table if path is None else fspath(path)}"
    if catalog is None:
        refuse_without_delta(session, operator)
        if make and path is not None:
            path = folder_of(session, call, "target=", path)
        named = called(session, call, "target=", path, table)
        return SnapshotTarget(session, operator, named, root)
    if table is None:
        raise PlanError(
            call,
            "catalog= is given, and an Iceberg table has no path",
            "Give the table's name in the catalog by table=, or leave catalog= out",
        )
    return IcebergSnapshotTarget(operator, TableAddress.of(table, catalog), root)
