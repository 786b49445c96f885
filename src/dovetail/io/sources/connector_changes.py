"""A table of any connector read as changes, by the call ``changes`` that Spark has since 4.2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType

from dovetail.errors import ConfigurationError, PlanError
from dovetail.io.sources.change_feed import COMMIT_VERSION, KIND, changes_of
from dovetail.plan.types.expressions import text_of
from dovetail.platform.sessions import cores
from dovetail.platform.spark_errors import convert_spark_errors

_METADATA = "_metadata"
"""The column in which connectors identify rows."""
_TABLE_REMEDY = (
    "Name a table of a catalog whose connector implements TableCatalog.loadChangelog: Delta Lake "
    "4.4 does with the setting spark.databricks.delta.changelogV2.enabled=true, for tables with "
    "delta.enableRowTracking; or read the table by from_delta or from_iceberg"
)


@dataclass(frozen=True, eq=False)
class ConnectorChanges:
    """A table to be read as changes, with the arguments of ``Table.from_changes``."""

    session: SparkSession
    table: str
    """The name of the table in a catalog."""
    label: str
    """The name of the table in errors."""
    version: int
    """The first version whose changes are read, inclusive."""
    streaming: bool
    """True for a streaming frame; False to read what is there."""
    options: Mapping[str, str]
    """Further options of Spark's reader, which overrule ``version``."""

    def frame(
        self, keys: Sequence[str], timestamp: str | Column | None, columns: Sequence[str] | None
    ) -> tuple[DataFrame, str | None]:
        """Return the table's changes, and ``timestamp`` as text for plans, None for None.

        Columns: the table's, or ``keys`` and ``columns``; then ``_deleted`` (boolean),
        ``_timestamp`` and ``_commit_position`` (long), which orders the changes. ``timestamp``: the
        time of an added row, None for the commit's. A column named by it is dropped unless
        ``columns`` names it. ``columns``: the value columns, None for all.

        Raises ``ConfigurationError`` for a Spark before 4.2, whose readers have no method
        ``changes``, and for a table whose connector has no changes. Raises ``PlanError`` if its
        versions are no integers, for unknown columns, and for a key as ``timestamp``.
        """
        rows = self._rows()
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

    def _rows(self) -> DataFrame:
        """Return the rows that come and go: the table's columns, ``_change_type`` (``delete`` or
        ``insert``), ``_commit_version`` (long) and ``_commit_timestamp``. The two rows of an
        update, before and after it, are here a ``delete`` and an ``insert``. The connector's column
        of row ids, ``_metadata``, is dropped.

        Raises ``ConfigurationError`` for a Spark before 4.2, whose readers have no method
        ``changes``, and for a table that cannot be read so. Raises ``PlanError`` if the connector's
        versions are no integers.
        """
        operator = f"table {self.label}"
        reader = self.session.readStream if self.streaming else self.session.read
        if not hasattr(reader, "changes"):
            raise ConfigurationError(
                operator,
                "this Spark has no call changes",
                "Take Spark 4.2 or later, or read the table by from_delta or from_iceberg",
            )
        options = {"startingVersion": str(self.version), **self.options}
        asked = f"the changes of table={self.table!r} from version={self.version} on"
        with convert_spark_errors(operator, f"{asked} cannot be read", _TABLE_REMEDY):
            rows: DataFrame = reader.options(**options).changes(self.table)
            version = rows.schema[COMMIT_VERSION].dataType
        if not isinstance(version, IntegralType):
            raise PlanError(
                operator,
                f"its connector's versions are of type {version.simpleString()}, not numbers",
                "Read the table by a source of its own",
            )
        is_removed = F.col(KIND).isin("delete", "update_preimage")
        return rows.drop(_METADATA).withColumns(
            {
                KIND: F.when(is_removed, "delete").otherwise("insert"),
                COMMIT_VERSION: F.col(COMMIT_VERSION).cast("long"),
            }
        )
