"""One micro-batch on its way into a Delta table.

``DeltaMerger.write`` has the steps of a micro-batch of a table's changes, in order. Calls go one
way. This module decides. ``merge``, ``tombstones``, ``versions`` and ``corrections`` make the
commit. ``tables`` has the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from dovetail.io.sinks.delta import corrections, merge, tables, tombstones, versions
from dovetail.io.sinks.delta.columns import fail_on_unfit_partitions, refuse_repeated_hours
from dovetail.io.sinks.delta.conflicts import translate_conflicts
from dovetail.io.sinks.delta.rewrite import Rewriter
from dovetail.io.sinks.delta.tables import DeltaTarget
from dovetail.io.sinks.ownership import Owner
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.sessions import cloned_session, frame_in_session, stored_frame

# The steps of a micro-batch, the commits that each makes, and what a restarted query finds after a
# kill behind the step. Spark repeats a micro-batch, under its number, until it has committed it.
#
#   step                                     commits    after a kill
#   ─────────────────────────────────────────────────────────────────────────────────────────────
#   start    create the table, empty         0 or 1     a table without rows: any query may take it
#     ▼
#   first micro-batch of a start:
#     │    read the owner's name             -          as before
#     │    add columns (evolve)              0 or 1     no column is missing
#     │    name the query as the owner       0 or 1     its own name, with the rows that were there
#     │    or replace rows and owner,        1          its own name, with the new rows; the rest is
#     │    and leave out the other steps                as after a merge
#     ▼
#   compute  the changes                     -          as before
#     ▼
#   owner    read the owner's name           -          as before
#     ├─ if it is another:
#     │    fail                              -          the same name
#     ▼
#   merge    current rows                    0 or 1     the same rows, which are merged once more
#            or versions                     0 or 1     the micro-batch's number: Delta skips it
#     ▼
#   upkeep   each n-th micro-batch:
#            compact small files             0 or 1     a merge as above, then little to compact
#            remove old commits              -          fewer old commits
#     ▼
#   log      read it ahead, in a thread      -          as before
#     ▼
#   Spark commits the micro-batch            -          the next micro-batch

_MERGE_SETTINGS = {
    # Compaction rewrites smaller files. By default it is 1 GB, all of a small table each time.
    "spark.databricks.delta.optimize.minFileSize": str(32 << 20),
    "spark.databricks.delta.optimize.maxFileSize": str(128 << 20),
    # The table's log is small, so compiling code for it does not pay.
    delta_upsert.CODE: delta_upsert.INTERPRETED,
}


@dataclass
class DeltaMerger:
    """A table that a query merges into, with one commit per micro-batch."""

    target: DeltaTarget
    """The table and the columns that the query gives it."""
    owner: Owner
    """The query that writes, by its checkpoint."""
    keys: Sequence[str]
    """The key columns of the table, at least one."""
    nulls: bool
    """True if keys may have nulls in them; a null then equals a null."""
    history: bool
    """True to keep all versions of the rows."""
    track: Sequence[str]
    """The columns whose changes make versions; empty if every upsert makes one."""
    marks: bool
    """True to keep deleted rows, with a mark."""
    corrects: bool
    """With ``history``, True if late changes correct the past; ``track`` is then empty."""
    compact_every: int | None
    """The count of micro-batches from one compaction to the next; None for none."""
    rewriter: Rewriter | None = None
    """What merges few rows in place of Spark; None to leave all to it."""
    _session: SparkSession | None = field(default=None, init=False)
    """The session for merges, made for the first micro-batch."""
    _taken: bool = field(default=False, init=False)
    """True once this start of the query has taken the table."""
    _partition_columns: Sequence[str] = field(default=(), init=False)
    """The columns by which the table is laid out, once the query has taken it."""
    _name_bytes_max: int | None = field(default=None, init=False)
    """The most bytes of a folder's name in the table; None for no limit."""

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Merge micro-batch ``batch_id`` into the table, in one commit, or none without changes.
        The first micro-batch of a start may take over or replace a table that was there. Merging
        the last micro-batch again changes nothing. ``batch``: its changes.

        With ``compact_every`` = n, a micro-batch whose ``batch_id`` + 1 is a multiple of n also
        compacts small files. Unless there is a ``rewriter``, it removes old commits, too. Without a
        ``rewriter``, each micro-batch ends by starting a thread that reads the table's log ahead. A
        micro-batch that replaces the table does none of this.

        Micro-batches must come in order: this is not checked, and an older one would leave wrong
        rows, or be skipped with ``history``. Raises ``TargetError`` if another writer conflicts
        twice, has become the table's owner, or if a rule of the table forbids a row. The first
        micro-batch also raises it for a table with other columns, or with rows that it may not take
        over. It raises ``PlanError`` for a table partitioned by a timestamp, unless clocks of the
        session's zone are never set back. Other errors of Spark pass.
        """
        target, table = self.target, self.target.table
        with translate_conflicts(target.title):
            query = self.owner.query_id(batch.sparkSession)
            if self._session is None:
                self._session = _merge_session(batch.sparkSession)
            session = self._session
            # Only merges of versions must not be done twice.
            settings: dict[str, str] = {}
            if self.history:
                settings = delta_tables.commit_once_settings(history_application(query), batch_id)

            if not self._taken:
                relation = target.relation(session, query, begun=batch_id > 0)
                if relation == "replaced":
                    self._partition_columns = target.partition_by
                    details = delta_tables.details(session, table)
                    self._name_bytes_max = tables.folder_name_bytes_max(details)
                    batch = self._refuse_unfit_partitions(batch)
                    with (
                        delta_upsert.settings_for_many_rows(session),
                        delta_tables.temporary_settings(session, settings),
                    ):
                        self._replace(session, batch, query)
                    self._taken = True
                    return
                target.claim(session, query, relation, begun=batch_id > 0)
                self._taken = True
                details = delta_tables.details(session, table)
                self._partition_columns = list(details["partitionColumns"])
                self._name_bytes_max = tables.folder_name_bytes_max(details)
                zone = str(session.conf.get("spark.sql.session.timeZone"))
                refuse_repeated_hours(target.title, zone, target.schema, self._partition_columns)
            batch = self._refuse_unfit_partitions(batch)

            with delta_tables.temporary_settings(session, settings):
                self._merge(session, batch, query)

            compacts = self.compact_every and (batch_id + 1) % self.compact_every == 0
            if self.rewriter is not None:
                if compacts:
                    self.rewriter.compact()
                return
            if compacts:
                with delta_upsert.settings_for_many_rows(session):
                    tables.compact(session, table)
                tables.clean_log(session, delta_tables.location(session, table))
            tables.read_log_ahead(session, table)

    def _refuse_unfit_partitions(self, batch: DataFrame) -> DataFrame:
        """Return the changes of a micro-batch such that the query fails at texts in a partition
        column that Delta cannot store (``fail_on_unfit_partitions``). Deletes pass, unless they
        are stored, and rows and their order stay.
        """
        return fail_on_unfit_partitions(
            self.target.title,
            batch,
            self._partition_columns,
            deletes=self.corrects,  # a delete that ends no version is a row
            name_bytes_max=self._name_bytes_max,
        )

    def _merge(self, session: SparkSession, batch: DataFrame, query: str) -> None:
        """Merge a micro-batch into the table in one commit; make none without changes. ``session``:
        the session for merges. ``query``: the id of the query that writes.

        Raises ``TargetError`` if another query owns the table. The owner is read once the changes
        are computed, which may take long, and again before a second attempt.
        """
        read_details = partial(self.target.details_if_owned, session, query)
        table, schema, keys, nulls = self.target.table, self.target.schema, self.keys, self.nulls
        if self.corrects:
            corrections.merge_corrections(
                session, batch, table, schema, keys, nulls=nulls, read_details=read_details
            )
        elif self.history:
            versions.merge_versions(
                *(session, batch, table, schema, keys),
                nulls=nulls,
                track=self.track,
                read_details=read_details,
            )
        elif self.marks:
            tombstones.mark_changes(
                session, batch, table, schema, keys, nulls=nulls, read_details=read_details
            )
        else:
            rewrite = None
            if self.rewriter is not None:
                rewrite = partial(self.rewriter.merge, query=query)
            merge.merge_changes(
                *(session, batch, table, keys),
                nulls=nulls,
                read_details=read_details,
                rewrite=rewrite,
            )

    def _replace(self, session: SparkSession, batch: DataFrame, query: str) -> None:
        """Put the first micro-batch's rows in place of the table, in one commit that also makes the
        query with the id ``query`` the owner. An empty micro-batch leaves an empty table.
        ``session``: the session for merges.
        """
        schema, keys = self.target.schema, self.keys
        if not self.history:
            rows = tombstones.marked_rows if self.marks else merge.current_rows
            self.target.replace(rows(batch, schema, keys), query)
            return
        # In the sink's own session, because the settings apply to all commits of a session.
        with stored_frame(batch) as stored_batch, frame_in_session(stored_batch, session) as source:
            if self.corrects:
                new = corrections.corrected_versions(source, schema, keys)
            else:
                new = versions.new_versions(source, schema, keys, self.track)
            self.target.replace(new, query)


def history_application(query: str) -> str:
    """Return the name under which the log of a table with all versions has the number of the last
    micro-batch that a query has written. ``query``: the query's id.
    """
    return f"dovetail-{query}"


def _merge_session(session: SparkSession) -> SparkSession:
    """Return a new session for merges, beside ``session``, which stays as it is. It begins with
    copies of the settings, functions and temporary views of ``session``, and has the same catalogs.
    It has Delta's settings for fast small merges, sizes for compaction, no compiled code for the
    log, and Spark's own count of shuffle partitions.
    """
    merging = cloned_session(session)
    delta_tables.tune(merging)
    for name, value in _MERGE_SETTINGS.items():
        merging.conf.set(name, value)
    # Drop the streaming query's settings: Spark finds the number of tasks by itself.
    for name in ("spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions"):
        merging.conf.unset(name)
    return merging


@dataclass
class DeltaAppender:
    """A table that a query appends to, with one commit per micro-batch."""

    title: str
    """The sink's call as written, for errors."""
    location: str
    """The path of the table."""
    partition_columns: Sequence[str]
    """The columns that partition the table; empty for none."""
    name_bytes_max: int | None
    """The most bytes of a folder's name in the table; None for no limit."""
    owner: Owner
    """The query that writes, by its checkpoint."""

    def refuse_unfit_partitions(self, changes: DataFrame) -> DataFrame:
        """Return the changes such that the query fails at texts in a partition column that Delta
        cannot store (``fail_on_unfit_partitions``). Deletes are rows of the table, so they fail,
        too. Rows and their order stay.
        """
        return fail_on_unfit_partitions(
            self.title,
            changes,
            self.partition_columns,
            deletes=True,
            name_bytes_max=self.name_bytes_max,
        )

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Append the rows of micro-batch ``batch_id``, with all their columns, in one commit.

        Delta's log stores this id under the query's id, so appending the same micro-batch again, or
        an earlier one, changes nothing. Raises ``TargetError`` for a conflict with another writer,
        and for a row that a rule of the table forbids. Other errors of Spark pass.
        """
        # The name that Spark's sink gives, so that a restart of the query may change between them.
        query = self.owner.query_id(batch.sparkSession)
        write_once = {"txnAppId": query, "txnVersion": str(batch_id)}
        with translate_conflicts(self.title):
            rows = self.refuse_unfit_partitions(batch)
            rows.write.format("delta").mode("append").options(**write_once).save(self.location)
