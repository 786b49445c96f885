"""Refreshing a target table, one step after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from os import PathLike, fspath
from time import time

from pyspark.sql import SparkSession

from dovetail.errors import DovetailError, PlanError, TargetError
from dovetail.iceberg.catalogs import GivenCatalog, TableAddress
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.delta_tables import (
    fail_on_bad_files,
    folder_of,
    path_of,
    refuse_but_one,
    refuse_without_delta,
    temporary_settings,
    tune,
)
from dovetail.platform.progress_bar import progress_bar
from dovetail.platform.sessions import cloned_session, cores
from dovetail.snapshots.commit_records import Commit, TargetState
from dovetail.snapshots.costs import ChosenWay, RefreshStep, StepWork, Way, choose_way, estimated_s
from dovetail.snapshots.delta_reader import (
    DeltaState,
    StoredFrames,
    VersionReader,
    Versions,
    refuse_duplicates,
    says_version_is_gone,
    state_that_fits,
)
from dovetail.snapshots.deltas import Deltas
from dovetail.snapshots.iceberg_target import IcebergSnapshotTarget
from dovetail.snapshots.plan import REBUILD, SnapshotNode, SnapshotSource, distinct_sources
from dovetail.snapshots.target import SnapshotTarget

ANY_SCHEMA = (
    "spark.databricks.delta.changeDataFeed.unsafeBatchReadOnIncompatibleSchemaChanges.enabled"
)
"""A setting of Delta: read a change feed across versions of which one has other columns."""


class Refresher:
    """The refresher of one target of one plan, with a Spark session of its own."""

    def __init__(
        self,
        session: SparkSession,
        root: SnapshotNode,
        call: str,
        path: str | PathLike[str] | None,
        table: str | None,
        catalog: GivenCatalog | None,
    ) -> None:
        """Copy ``session``, and change those settings of the copy under which rows would be missed.
        Find the target, the table that is to hold the plan's rows. The folder of a path is created.

        ``root``: the plan's last node. ``call``: the user's method, for errors. ``path``: the
        folder of a Delta target. ``table``: the target's name in a catalog. ``catalog``: that of an
        Iceberg target, by its name or its properties; None for a Delta target.

        Raises ``PlanError`` unless exactly one of ``path`` and ``table`` is given. Raises it, too,
        for a path with a catalog, and for a key or type that Iceberg does not store. Raises
        ``ConfigurationError`` without Delta Lake if it is needed, and for a path that cannot be
        reached or made.
        """
        self._operator = f"target {table if path is None else fspath(path)}"
        self._session = cloned_session(session)
        fail_on_bad_files(self._session)
        tune(self._session)
        # The reader compares the used columns itself. Changes of other columns do not matter.
        self._session.conf.set(ANY_SCHEMA, "true")
        self._root = root
        self._sources = distinct_sources(root)
        self._states: dict[str, DeltaState] = {}
        self._target = target_of(self._session, root, call, path, table, catalog, make=True)

    def refresh(
        self, *, max_versions: int | None, rebuild: bool, way: Way | None = None
    ) -> list[Commit]:
        """Bring the target, the table that holds the plan's rows, to the sources' present versions.
        Return the commits made, in order; an empty list if no source has a new version.

        The present versions are those at the call. A target that does not exist is made in one
        commit, without regard to ``max_versions`` and ``way``. So is one with ``rebuild``.

        ``max_versions``: the most versions of each source that a commit covers; None for no limit.
        ``rebuild``: True to compute the whole target anew, even if it is the target of another
        plan. ``way``: how each step is made: ``"changes"`` merges changed rows, ``"all"``
        overwrites the target; None for the cheaper way.

        Raises ``TargetError`` if the target or a source does not allow it, or if another writer was
        faster. Raises ``DataError`` for a key that occurs twice or is null in all its columns.
        Raises ``ConfigurationError`` for a source without a change data feed, and for an Iceberg
        table that cannot be read.
        """
        with self._source_reader() as reader:
            self._states, latest = {}, dict[str, int]()
            for source in self._sources:
                # Sources of one table share the version that is read first.
                latest.setdefault(source.table_id, self._present_version(reader, source))
        if rebuild or not self._target.exists():
            choice = ChosenWay("all", "rebuild=True" if rebuild else "the target is made")
            with progress_bar(self._session, f"{self._operator} is made"):
                return [self._write_whole(latest, choice)]
        commits: list[Commit] = []
        while True:
            standing = self._target.present_state()
            until = self._next_versions(reader, standing.covered, latest, max_versions, way)
            if until == standing.covered:
                return commits
            work = self._work_of_step(standing.covered, until)
            choice = self._choose_way(way, work)
            title = f"{self._operator}, step {len(commits) + 1} by {choice.way}: {choice.reason}"
            with progress_bar(self._session, title):
                if choice.way == "all":
                    commits.append(self._overwrite(standing, until, choice, work))
                else:
                    commits.append(self._merge_changes(standing, until, choice, work))
            if until == latest:
                return commits

    def _present_version(self, reader: VersionReader, source: SnapshotSource) -> int:
        """Return a source's present version: the number of a Delta version, or the id of an Iceberg
        snapshot, 0 for none. Remember the state of a Delta table for ``_work_of_step``.

        Raises ``TargetError`` if the table was replaced, or if a used column is gone or has another
        type. Raises ``ConfigurationError`` for a Delta table without a change data feed, and for an
        Iceberg table that cannot be read.
        """
        if source.iceberg is not None:
            return reader.iceberg.latest_snapshot(source, reader.columns(source))
        state = state_that_fits(reader, source)
        self._states.setdefault(source.table_id, state)
        return state.version

    def _next_versions(
        self,
        reader: VersionReader,
        covered: Versions,
        latest: Versions,
        max_versions: int | None,
        way: Way | None,
    ) -> Versions:
        """Return the version of each source that the target has after the next step, by table id; a
        mapping equal to ``covered`` if there is nothing new.

        ``covered``, ``latest``: the version of each source that the target has, and the present
        one, by table id. Several sources of one table share its version. ``max_versions``: the most
        versions of each table that a step covers; None for all. ``way``: how the step is made; None
        if that is not decided yet. A Delta table whose present version is below the covered one
        stays at the covered one.

        Raises ``TargetError`` if an Iceberg table no longer has the snapshots in between, or was
        rolled back. It does not if ``way`` is ``"all"`` and one step covers all versions, because
        that needs only the present snapshot.
        """
        changes_count = way != "all" or max_versions is not None
        until = {}
        for source in self._sources:
            key = source.table_id
            start, end = covered[key], latest[key]
            if source.iceberg is not None and changes_count:
                until[key] = reader.iceberg.next_snapshot(source, start, end, max_versions)
            elif source.iceberg is not None:
                until[key] = end
            else:
                end = max(start, end)
                until[key] = end if max_versions is None else min(end, start + max_versions)
        return until

    def _work_of_step(self, old: Versions | None, new: Versions) -> StepWork | None:
        """Return the work of a step: the bytes of all sources, and the rows and bytes that changed.
        None if a source is not a Delta table, or on Spark Connect, where logs are not in reach.

        ``old``, ``new``: the version of each source by table id, the former exclusive, the latter
        inclusive. ``old`` is None for a target that is written anew. A source whose log does not
        say what changed counts as changed as a whole; ``rows`` is None then.
        """
        logs = {key: state.log for key, state in self._states.items() if state.log is not None}
        if len(logs) < len({source.table_id for source in self._sources}):
            return None
        sources = [
            (log.size, None if old is None else log.changes(old[key], new[key]))
            for key, log in logs.items()
        ]
        total = sum(size for size, _ in sources)
        share = sum(1.0 if c is None else c.size / max(size, 1) for size, c in sources)
        known = [changes for _, changes in sources if changes is not None]
        all_known = len(known) == len(sources)
        rows = sum(changes.rows for changes in known) if all_known else None
        few = (
            rows is not None
            and rows <= delta_upsert.ROWS_MAX
            and sum(changes.size for changes in known) <= delta_upsert.BYTES_MAX
        )
        return StepWork(total, int(min(share, 1.0) * total), rows, few, cores(self._session))

    def _choose_way(self, way: Way | None, work: StepWork | None) -> ChosenWay:
        """Return the way of a step and the reason: ``way`` itself, or the cheaper way if ``way`` is
        None.

        Without ``way``, ``"changes"`` is taken if ``work`` is None, or if no row has changed. It is
        taken, too, if the target gives a reason against an overwrite: ``objection`` of its class.
        ``work``: the bytes and rows of the step, None if they are not known.
        """
        if way is not None:
            return ChosenWay(way, f"way={way!r}")
        if work is None:
            return ChosenWay("changes", "the size of the changes is not known beforehand")
        if work.rows == 0:
            return ChosenWay("changes", "no row of a source has changed")
        objection = self._target.objection
        if objection is not None:
            return ChosenWay("changes", objection)
        return choose_way(work, self._target.earlier_steps())

    def _record_of_step(self, choice: ChosenWay, work: StepWork | None) -> RefreshStep:
        """Return the record of a step that begins now and goes the way of ``choice``, with the
        estimated seconds of this way. ``work``: None if it is not known; the estimate is then 0 s.
        """
        seconds = 0.0 if work is None else estimated_s(work, choice.way)
        return RefreshStep(choice.way, seconds, int(time() * 1000))

    def _write_whole(self, versions: Versions, choice: ChosenWay) -> Commit:
        """Write the whole join at these versions in one commit, to a new target or over an old one.
        Return the commit.

        ``versions``: the version of each source by table id. ``choice``: the way, ``"all"``, and
        its reason, which the commit tells. Raises ``TargetError`` if a table is there that no join
        over snapshots has made, or if another writer was faster. Raises ``DataError`` for a key
        that occurs twice or is null in all its columns.
        """
        work = self._work_of_step(None, versions)
        exists, step = self._target.exists(), self._record_of_step(choice, work)
        if exists and not self._target.is_of_snapshot_join():
            raise TargetError(
                self._operator,
                "the table there is not one of a join over snapshots",
                "Choose another one; it is not overwritten",
            )
        with self._source_reader() as reader:
            refuse_duplicates(reader, self._sources, versions, _bytes_of_work(work))
            rows = reader.rows(self._root, versions)
            if exists:
                commit = self._target.replace(rows, versions, None, step)
            else:
                commit = self._target.create(rows, versions, step)
            return replace(commit, way=choice.way, reason=choice.reason)

    def _overwrite(
        self,
        standing: TargetState,
        new: Versions,
        choice: ChosenWay,
        work: StepWork | None,
    ) -> Commit:
        """Overwrite all rows of the target by the join at the new versions, in one commit. Return
        the commit.

        ``standing``: the target before. ``new``: the version of each source by table id.
        ``choice``: the way and its reason, which the commit tells. ``work``: None if it is not
        known. Raises ``DataError`` for a key of a changed source that occurs twice or is null in
        all its columns. Raises ``TargetError`` if another writer was faster.
        """
        step = self._record_of_step(choice, work)
        with self._source_reader() as reader:
            covered = standing.covered  # the keys of sources that have not changed are known
            changed = [s for s in self._sources if new[s.table_id] != covered[s.table_id]]
            refuse_duplicates(reader, changed, new, _bytes_of_work(work))
            rows = reader.rows(self._root, new)
            commit = self._target.replace(rows, new, standing.version, step)
            return replace(commit, way=choice.way, reason=choice.reason)

    def _merge_changes(
        self,
        standing: TargetState,
        new: Versions,
        choice: ChosenWay,
        work: StepWork | None,
    ) -> Commit:
        """Merge the changes up to the new versions into the target in one commit, and return that
        commit.

        ``standing``: the target before. ``new``: the version of each source by table id.
        ``choice``: the way and its reason, which the commit tells. ``work``: None if it is not
        known. If no row of the target changes, the commit only records the versions, its ``way`` is
        None, and its reason says so.

        Raises ``DataError`` for a changed key that occurs twice or is null in all its columns.
        Raises ``TargetError`` if another writer was faster, or if a used column of a Delta table
        was replaced by another one. Raises ``ConfigurationError`` if Spark Connect does not show
        that.
        """
        step = self._record_of_step(choice, work)
        few = work is not None and work.few
        with self._source_reader() as reader, ExitStack() as settings:
            if few:
                settings.enter_context(temporary_settings(self._session, self._settings_for_few))
            deltas = Deltas(reader, standing.covered, new, few=few)
            changed = sum(deltas.delta_of(source).rows for source in self._sources)
            if not few and changed <= delta_upsert.ROWS_MAX:
                settings.enter_context(temporary_settings(self._session, self._settings_for_few))
            changes = deltas.changes(self._root)
            settings.close()
            if changes.frame is None:
                commit = self._target.advance_versions(new, standing.version)
                return replace(commit, reason="no row of the target changes")
            commit = self._target.merge(changes, new, standing.version, step)
            return replace(commit, way=choice.way, reason=choice.reason)

    @property
    def _settings_for_few(self) -> dict[str, str]:
        """The Spark settings, by name, for few changes: one shuffle partition for each core, and no
        adaptive plans.
        """
        return {
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": str(cores(self._session)),
        }

    @contextmanager
    def _source_reader(self) -> Iterator[VersionReader]:
        """Yield a reader of the sources; the frames that it stores are released at the end of the
        block.

        An error in the block that says that a version, file or change feed is gone becomes a
        ``TargetError``. Other errors pass.
        """
        scratch = StoredFrames()
        try:
            yield VersionReader(self._session, self._root, scratch)
        except Exception as error:
            if isinstance(error, DovetailError) or not says_version_is_gone(error):
                raise
            raise TargetError(
                self._operator,
                "a source no longer has its changes or its rows since the versions covered "
                f"({str(error).splitlines()[0]})",
                REBUILD,
            ) from error
        finally:
            scratch.release()


def _bytes_of_work(work: StepWork | None) -> int | None:
    """Return the bytes of the sources' data files; None if the work is not known."""
    return None if work is None else work.size


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
    """Return the target of a plan: an Iceberg table if ``catalog`` is given, else a Delta table.
    The table need not exist.

    ``root``: the plan's last node. ``call``: the method named in errors. ``path``: the folder of a
    Delta table. ``table``: the name of the table in a catalog. ``make``: True to create the folder
    of a path.

    Raises ``PlanError`` unless either a path or a table is given, or for a path with a catalog.
    Raises it, too, for a key or a type that Iceberg does not store. Raises ``ConfigurationError``
    without Delta Lake if it is needed, and for a path that cannot be reached or made.
    """
    refuse_but_one(call, path, table)
    operator = f"target {table if path is None else fspath(path)}"
    if catalog is None:
        refuse_without_delta(session, operator)
        if make and path is not None:
            path = folder_of(session, call, "target=", path)
        full = None if path is None else path_of(session, call, "target=", path)
        name = (table or "") if full is None else delta_tables.sql_name(full)
        return SnapshotTarget(session, operator, name, root, full)
    if table is None:
        raise PlanError(
            call,
            "catalog= is given, and an Iceberg table has no path",
            "Give the table's name in the catalog by table=, or leave catalog= out",
        )
    return IcebergSnapshotTarget(operator, TableAddress.of(table, catalog), root)
