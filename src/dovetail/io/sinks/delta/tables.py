"""The table of a Delta sink: its columns, properties and owner, and its upkeep.

The property ``dovetail.query`` names the query that owns a table. A query takes a table with its
first micro-batch; before that it changes nothing. A table without rows can be taken from any owner,
because a query may be killed before it has written anything.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructField, StructType

from dovetail.errors import DovetailWarning, TargetError
from dovetail.io.sinks.delta.conflicts import commit_with_retry, is_conflict
from dovetail.io.sinks.ownership import (
    Existing,
    TableRelation,
    must_be_empty,
    refuse_gone,
    refuse_rows,
    refuse_taken,
    relation_to_table,
)
from dovetail.io.sinks.target_columns import find_missing_columns
from dovetail.platform import delta_tables, jvm
from dovetail.platform.files import files_of
from dovetail.platform.sessions import is_remote
from dovetail.platform.spark_errors import reason

QUERY_PROPERTY = "dovetail.query"
"""The table property with the id of the query that writes the table."""
RETENTION_PROPERTY = "delta.deletedFileRetentionDuration"
"""The property with the time for which a table's log keeps entries of removed files."""
LOG_RETENTION_PROPERTY = "delta.logRetentionDuration"
"""The property with the time for which a table's log keeps commits, and so past versions."""

MAPPING_PROPERTY = "delta.columnMapping.mode"
"""The property of a table with column mapping, which allows any name of a column."""
_RANDOM_FOLDERS = "delta.randomizeFilePrefixes"
"""The property of a table whose files lie in folders of random names, whatever its partitions."""
_FOLDER_NAME_BYTES_MAX = 255
"""The most bytes of a folder's name on disks and in HDFS."""


@dataclass(frozen=True)
class DeltaTarget:
    """A Delta table that a query writes, and the treatment of one that is there."""

    title: str
    """The sink's call as written, for errors."""
    table: str
    """The table's name in SQL."""
    schema: StructType
    """The columns that the query writes."""
    properties: Mapping[str, str]
    """The properties of a table that the sink creates or replaces."""
    existing: Existing
    """The treatment of a table that is not this query's."""
    partition_by: tuple[str, ...]
    """The columns that partition a table that the sink creates or replaces; empty for none."""
    evolve: bool
    """True to add columns that the table lacks."""

    def prepare(self, session: SparkSession, query: str | None, begun: bool) -> None:
        """Create the table for merging if it is missing, without an owner; else check that it fits
        and that the query may write it.

        ``query``: the id of the checkpoint's query, None before its first start. ``begun``: True if
        a micro-batch of it is complete. Raises ``TargetError`` for a table that does not fit, or is
        gone although the query has begun. Spark's errors pass.
        """
        if delta_tables.exists(session, self.table):
            self.relation(session, query, begun=begun)
        elif begun:
            refuse_gone(self.title)
        else:
            self._create_empty(session)

    def prepare_appending(self, session: SparkSession) -> None:
        """Create the table for appending if it is missing, else check its columns and add those
        that it lacks. Raises ``TargetError`` if the columns differ in another way than ``evolve``
        allows. Spark's errors pass.
        """
        if delta_tables.exists(session, self.table):
            self.add_columns(session)
        else:
            self._create_empty(session)

    def _create_empty(self, session: SparkSession) -> None:
        """Create the table without rows, with the properties and partitions of the target. Spark's
        error passes if the table exists.
        """
        empty = session.createDataFrame([], self.schema)
        parts = self.partition_by
        delta_tables.create(empty, self.table, self.properties, replace=False, partition_by=parts)

    def relation(self, session: SparkSession, query: str | None, *, begun: bool) -> TableRelation:
        """Return the relation of a query to the table. Nothing is changed.

        - ``"kept"``: the query owns the table.
        - ``"replaced"``: it does not, and replaces the table, by ``existing="replace"``.
        - ``"adopted"``: it does not, and goes on with the table as it is. With ``existing="fail"``
          the table has no rows then.

        ``query``: the id of the checkpoint's query, None before its first start. ``begun``: True if
        a micro-batch of it is complete. Raises ``TargetError`` for other columns, unless the table
        is to be replaced. Also for rows in a table that the query does not own, with
        ``existing="fail"``. Also if a query that has begun does not own the table, unless
        ``existing`` is ``"adopt"``. Also for a table whose rows can only be appended, unless it is
        to be replaced. Spark's error passes for a missing table.
        """
        properties = delta_tables.details(session, self.table)["properties"]
        owner = properties.get(QUERY_PROPERTY)
        relation = relation_to_table(
            self.title, self.existing, owner=owner, query=query, begun=begun
        )
        if relation != "replaced":
            self._missing_columns(session)
            self._refuse_append_only(properties)
        if must_be_empty(self.existing, relation):
            refuse_rows(self.title, is_empty=session.table(self.table).isEmpty())
        return relation

    def _refuse_append_only(self, properties: Mapping[str, str]) -> None:
        """Raise ``TargetError`` if the table with these ``properties`` forbids that rows leave it:
        each merge replaces rows.
        """
        if properties.get(delta_tables.APPEND_ONLY, "").lower() == "true":
            raise TargetError(
                self.title,
                f"the table is append-only ({delta_tables.APPEND_ONLY}), and a query replaces rows",
                f"ALTER TABLE {self.table} SET TBLPROPERTIES ({delta_tables.APPEND_ONLY} = false), "
                "or choose another table",
            )

    def claim(
        self, session: SparkSession, query: str, relation: TableRelation, *, begun: bool
    ) -> None:
        """With ``evolve``, add the columns that the table lacks. Then make the query with the id
        ``query`` the table's owner if ``relation`` is ``"adopted"``. With ``"kept"`` and
        ``"replaced"`` (``DeltaTarget.relation``) the owner stays. ``begun``: True if a micro-batch
        of the query is complete.

        If another writer conflicts with the change of the owner, ``relation`` is called again, for
        its ``TargetError``: another query may have filled the table. Spark's error is raised if
        that change conflicts twice, or that of the columns once. With ``evolve``, raises
        ``TargetError`` if the columns differ in another way. For a missing table raises Spark's
        error, unless there is nothing to do.
        """
        if self.evolve:
            self.add_columns(session)
        if relation == "adopted":
            check = partial(self.relation, session, query, begun=begun)
            set_property = delta_tables.set_property
            commit_with_retry(check, set_property, session, self.table, QUERY_PROPERTY, query)

    def replace(self, rows: DataFrame, query: str) -> None:
        """Put ``rows`` in place of the table's rows, columns, properties and partitions, in one
        commit. The query with the id ``query`` then owns the table. Spark's errors pass.
        """
        properties = {QUERY_PROPERTY: query, **self.properties}
        parts = self.partition_by
        delta_tables.create(rows, self.table, properties, replace=True, partition_by=parts)

    def details_if_owned(self, session: SparkSession, query: str) -> Row:
        """Return Delta's details of the table, a row with ``location``, ``properties`` and more, if
        the query with the id ``query`` owns it. Raise ``TargetError`` if another query has become
        the owner. Spark's error passes for a table that is gone.
        """
        details = delta_tables.details(session, self.table)
        if details["properties"].get(QUERY_PROPERTY) != query:
            refuse_taken(self.title)
        return details

    def add_columns(self, session: SparkSession) -> None:
        """With ``evolve``, add the columns that the table lacks, null in all its rows, in a commit
        without rows. Make no commit if there are none.

        Raises ``TargetError`` if the columns differ in another way than ``evolve`` allows. Spark's
        error passes if another writer is faster.
        """
        fields = self._missing_columns(session)
        if fields:
            added = StructType([StructField(f.name, f.dataType) for f in fields]).toDDL()
            session.sql(f"ALTER TABLE {self.table} ADD COLUMNS ({added})")

    def _missing_columns(self, session: SparkSession) -> list[StructField]:
        """Return the columns of the query that the table lacks, in order. Raises ``TargetError`` if
        the columns differ in another way; without ``evolve``, also if one is missing.
        """
        present = session.table(self.table).schema
        return find_missing_columns(self.title, present, self.schema, evolve=self.evolve)


def column_mapping(session: SparkSession, table: str) -> str | None:
    """Return the mode of a table's column mapping, ``name`` or ``id``; None without it. For a
    missing table, return the mode that the session's defaults give a new one. ``table``: its name
    in SQL.
    """
    if delta_tables.exists(session, table):
        mode = delta_tables.property_of(session, table, MAPPING_PROPERTY)
    else:
        mode = session.conf.get(
            f"spark.databricks.delta.properties.defaults.{MAPPING_PROPERTY[6:]}", None
        )
    return _mapping_mode(mode)


def _mapping_mode(value: str | None) -> str | None:
    """Return the value of ``MAPPING_PROPERTY`` if it stands for column mapping, else None."""
    return value if value in ("name", "id") else None


def folder_name_bytes_max(details: Row) -> int | None:
    """Return the most bytes that the name of a partition's folder may have: 255 on disks and in
    HDFS. Return None where no such limit is known, as in an object store, and for a table whose
    folders have random names. ``details``: Delta's details of the table.
    """
    properties = details["properties"]
    random = properties.get(_RANDOM_FOLDERS, "").lower() == "true"
    mapped = _mapping_mode(properties.get(MAPPING_PROPERTY)) is not None
    limited = details["location"].partition(":")[0] in ("file", "hdfs")
    return _FOLDER_NAME_BYTES_MAX if limited and not random and not mapped else None


def refuse_older_checkpoint(
    session: SparkSession, title: str, table: str, application: str, checkpoint: str
) -> None:
    """Raise ``TargetError`` if a table has later micro-batches than a checkpoint has planned. Delta
    would skip the next ones, whose numbers it has. On Spark Connect do nothing.

    ``title``: the sink's call, for the error. ``table``: the table's name in SQL. ``application``:
    the name under which the table's log has the numbers of the query's micro-batches. Without such
    numbers nothing is raised. ``checkpoint``: the query's folder.
    """
    if is_remote(session):
        return
    last = jvm.delta_transaction(session, delta_tables.location(session, table), application)
    planned = max(files_of(session).numbers(f"{checkpoint}/offsets"), default=-1)
    if last is not None and last > planned:
        raise TargetError(
            title,
            f"the table has this query's micro-batches up to {last}, and the next one is "
            f"{planned + 1}: the checkpoint is an older copy",
            "Bring back the checkpoint and the table of one time, or start with a new checkpoint",
        )


def compact(session: SparkSession, table: str) -> None:
    """Put files of a table together in one commit that are smaller than the session's setting
    ``minFileSize``. A larger file is rewritten if more of its rows are deleted than Delta allows,
    by default 5 %. ``table``: its name in SQL.

    If another writer is faster, the files stay as they are. Other errors of Spark pass.
    """
    try:
        session.sql(f"OPTIMIZE {table}").collect()
    except (Py4JError, PySparkException) as error:
        if not is_conflict(error):
            raise


def clean_log(session: SparkSession, location: str) -> None:
    """Remove commits of the table at the path ``location`` that are older than its property
    ``LOG_RETENTION_PROPERTY`` allows, to the minute. Without the property, that is Delta's default
    of 30 days. On Spark Connect do nothing.

    Commits that cannot be removed stay, with a ``DovetailWarning``.
    """
    if is_remote(session):
        return
    try:
        jvm.clean_delta_log(session, location)
    except (Py4JError, TypeError) as error:  # TypeError: another Delta Lake lacks the class
        message = f"old commits of {location} stay, which makes new ones slow: {reason(error)}"
        warnings.warn(message, DovetailWarning, stacklevel=2)


def read_log_ahead(session: SparkSession, table: str) -> None:
    """Start a thread that reads a table's log while Spark prepares the next micro-batch, which then
    finds it in memory. A failure of the thread is ignored. ``table``: its name in SQL.
    """

    def read() -> None:
        """Read the table's log, and ignore a failure."""
        with suppress(Exception):  # the next micro-batch reports the problem
            delta_tables.details(session, table)

    name = "dovetail-delta-log"
    InheritableThread(target=read, daemon=True, name=name, session=session).start()
