"""A Delta table read as changes: its content first, then its change data feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dovetail.errors import ConfigurationError, PlanError
from dovetail.io.sources.change_feed import COMMIT_TIME, COMMIT_VERSION, KIND, changes_of
from dovetail.plan.types.expressions import text_of
from dovetail.platform import delta_tables
from dovetail.platform.sessions import cores
from dovetail.platform.spark_errors import convert_spark_errors

_UNLIMITED = str((1 << 31) - 1)
"""The most files of a micro-batch by which Delta's source has no limit."""
_TABLE_REMEDY = "Give the path of a Delta table in path=, or its name in the catalog in table="


@dataclass(frozen=True, eq=False)
class DeltaChanges:
    """A Delta table to be read as changes, with the arguments of ``Table.from_delta``."""

    session: SparkSession
    path: str
    """The full path of the table's folder."""
    label: str
    """The name of the table in errors."""
    version: int | None
    """The first version whose changes are read; None to begin with the content."""
    streaming: bool
    """True for a streaming frame; False to read what is there."""
    key_updates: bool
    """True if updates may change keys. False to leave out the former rows of updates."""
    options: Mapping[str, str]
    """Further options of Delta's source, which overrule the other fields."""

    @staticmethod
    def locate_table(session: SparkSession, path: object, table: str | None) -> tuple[str, str]:
        """Return (path, short name) of a table. The path is absolute, with its scheme, such as
        ``file:/data/t``. The name is the last part of the path or of the catalog's name, without
        backticks.

        ``path``: the table's folder, used if ``table`` is None. ``table``: the name in a catalog.
        Raises ``ConfigurationError`` for a catalog's table that cannot be found, and for a path
        whose file system cannot be reached. The path need not have a table.
        """
        if table is None:
            table_path = delta_tables.path_of(session, "from_delta", "path=", str(path))
            return table_path, table_path.rstrip("/").rsplit("/", 1)[-1]
        with convert_spark_errors("from_delta", f"table={table!r} cannot be read", _TABLE_REMEDY):
            return delta_tables.location(session, table), table.rsplit(".", 1)[-1].strip("`")

    def frame(
        self, keys: Sequence[str], timestamp: str | Column | None, columns: Sequence[str] | None
    ) -> tuple[DataFrame, str | None]:
        """Return the table's changes, and ``timestamp`` as text for plans, None for None. They are
        the change data feed or, for a batch without ``version``, the content. The options
        ``startingVersion`` and ``startingTimestamp`` count as ``version``.

        Columns: the table's, or ``keys`` and ``columns``; then ``_deleted`` (boolean),
        ``_timestamp`` and ``_commit_position`` (long), which orders the changes. ``timestamp``: the
        time of an added row, None for the commit's. A column named by it is dropped unless
        ``columns`` names it. ``columns``: the value columns, None for all.

        Raises ``ConfigurationError`` for a table that cannot be read, or whose feed is not enabled.
        Raises ``PlanError`` for unknown columns, for a key as ``timestamp``, and for options that
        split commits.
        """
        table = delta_tables.sql_name(self.path)
        with convert_spark_errors(
            f"table {self.label}", f"path={self.path!r} cannot be read", _TABLE_REMEDY
        ):
            starts = {"startingversion", "startingtimestamp"} & self._values_by_option.keys()
            if self.streaming or self.version is not None or starts:
                rows, nets = self._change_feed(table)
            else:
                rows, nets = self._present_rows(table), False
        operator = f"table {self.label}"
        changes = changes_of(
            rows,
            operator,
            keys,
            timestamp,
            columns,
            key_updates=self.key_updates,
            partitions=cores(self.session) if nets else None,
        )
        return changes, None if timestamp is None else text_of(self, timestamp, lambda: rows)

    def _change_feed(self, table: str) -> tuple[DataFrame, bool]:
        """Return the change data feed: the table's columns, ``_change_type``, ``_commit_version``
        and ``_commit_timestamp``. Also return True if rows can leave the table: False only if its
        properties say that it is append-only. ``table``: its name in SQL.

        Raises ``ConfigurationError`` if the feed is not enabled, and ``PlanError`` for options that
        split commits between micro-batches. Spark's errors pass.
        """
        properties = delta_tables.details(self.session, table)["properties"]
        if not delta_tables.records_changes(properties):
            raise ConfigurationError(
                f"table {self.label}",
                "its change data feed is not enabled",
                f"ALTER TABLE {table} SET TBLPROPERTIES ({delta_tables.FEED} = true); with "
                "streaming=False and no version= its content is read without",
            )
        options = {"readChangeFeed": "true"}
        if self.version is not None:
            options["startingVersion"] = str(self.version)
        loses = properties.get(delta_tables.APPEND_ONLY, "").lower() != "true"
        if self.streaming and loses:
            self._refuse_limits(table)
            options["maxFilesPerTrigger"] = _UNLIMITED
        reader = self.session.readStream if self.streaming else self.session.read
        rows = reader.format("delta").options(**options | dict(self.options)).load(self.path)
        return rows, loses

    def _refuse_limits(self, table: str) -> None:
        """Raise ``PlanError`` if ``options`` limit a micro-batch. Delta then splits a commit that
        adds and removes whole files, as an overwrite does: at any file, and by default after 1000.
        A row's removal may come in a later micro-batch than the row that replaces it. ``table``:
        its name in SQL.
        """
        for name in self.options:
            if name.lower() in ("maxfilespertrigger", "maxbytespertrigger"):
                raise PlanError(
                    f"table {self.label}",
                    f"options= has {name}, with which Delta splits the commits of an overwrite "
                    "between micro-batches, so that rows would be lost",
                    "Leave it out. If rows are only added to the table, ALTER TABLE "
                    f"{table} SET TBLPROPERTIES ({delta_tables.APPEND_ONLY} = true)",
                )

    @property
    def _values_by_option(self) -> Mapping[str, str]:
        """The value of each option by its name in lower case, as Delta reads names."""
        return {name.lower(): value for name, value in self.options.items()}

    def _present_rows(self, table: str) -> DataFrame:
        """Return the rows of the present version, then ``_change_type`` (``insert``),
        ``_commit_version`` and ``_commit_timestamp``, as if its commit had inserted them all. The
        options ``versionAsOf`` and ``timestampAsOf`` name another version than the present one.

        ``table``: its name in SQL. The version is fixed now; Spark's errors pass. Raises
        ``ConfigurationError`` for another version if the history does not have its commit.
        """
        values = self._values_by_option
        at, time_at = values.get("versionasof"), values.get("timestampasof")
        most = " LIMIT 1" if at is None and time_at is None else ""
        history = self.session.sql(f"DESCRIBE HISTORY {table}{most}")
        if at is not None:
            history = history.where(F.col("version") == F.lit(at).cast("long"))
        elif time_at is not None:
            history = history.where(F.col("timestamp") <= F.lit(time_at).cast("timestamp"))
        latest = history.orderBy(F.desc("version")).limit(1)
        commits = latest.select("version", F.unix_micros("timestamp")).collect()
        if not commits:
            raise ConfigurationError(
                f"table {self.label}",
                f"its history has no commit of {at or time_at}, whose content options= asks for",
                "Ask for a version that DESCRIBE HISTORY shows",
            )
        ((version, time),) = commits
        reader = self.session.read.format("delta").options(**self.options)
        if most:
            reader = reader.option("versionAsOf", str(version))
        feed_columns = {
            KIND: F.lit("insert"),
            COMMIT_VERSION: F.lit(version).cast("long"),
            COMMIT_TIME: F.timestamp_micros(F.lit(time)),
        }
        return reader.load(self.path).withColumns(feed_columns)
