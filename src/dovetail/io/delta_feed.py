"""A Delta table as changes: its content, then its change data feed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dovetail import lake
from dovetail.columns import DELETED, TIMESTAMP, quoted
from dovetail.errors import ConfigurationError
from dovetail.refusals import refused

POSITION = "_commit_position"
_GIVEN = "Give the path of a Delta table in path=, or its name in the catalog in table="
_KIND, _VERSION, _TIME = "_change_type", "_commit_version", "_commit_timestamp"


@dataclass(frozen=True)
class DeltaChanges:
    """How a Delta table is read as changes, as ``Table.from_delta`` says."""

    session: SparkSession
    path: str
    label: str
    version: int | None
    streaming: bool
    key_updates: bool
    options: Mapping[str, str]

    @staticmethod
    def located(session: SparkSession, path: object, table: str | None) -> tuple[str, str]:
        """Where a table is, and what it is called."""
        if table is None:
            place = lake.path_of(session, "from_delta", "path=", str(path))
            return place, place.rstrip("/").rsplit("/", 1)[-1]
        with refused("from_delta", f"table={table!r} cannot be read", _GIVEN):
            return lake.location(session, table), table.rsplit(".", 1)[-1].strip("`")

    def frame(self) -> DataFrame:
        """The changes: the table's columns, ``_deleted``, ``_timestamp`` (of the commit) and
        ``_commit_position``, by which the commits come one after the other, and of one commit what
        goes before what comes.
        """
        table = lake.named(self.path)
        with refused(f"table {self.label}", f"path={self.path!r} cannot be read", _GIVEN):
            rows = self._feed(table) if self.streaming or self.version is not None else None
            rows = self._content(table) if rows is None else rows
        if not self.key_updates:
            rows = rows.where(F.col(_KIND) != "update_preimage")
        gone = F.col(_KIND).isin("delete", "update_preimage")
        position = F.col(_VERSION) * 2 + F.when(gone, 0).otherwise(1)
        return rows.select(
            *(F.col(quoted(name)) for name in rows.columns if name not in _OWN),
            gone.alias(DELETED),
            F.col(_TIME).alias(TIMESTAMP),
            position.alias(POSITION),
        )

    def _feed(self, table: str) -> DataFrame:
        if lake.property_of(self.session, table, lake.FEED) != "true":
            raise ConfigurationError(
                f"table {self.label}",
                "its change data feed is not enabled",
                f"ALTER TABLE {table} SET TBLPROPERTIES ({lake.FEED} = true); with "
                "streaming=False and no version= its content is read without",
            )
        options = {"readChangeFeed": "true"}
        if self.version is not None:
            options["startingVersion"] = str(self.version)
        reader = self.session.readStream if self.streaming else self.session.read
        return reader.format("delta").options(**options | dict(self.options)).load(self.path)

    def _content(self, table: str) -> DataFrame:
        """The rows of the present version, as if its commit had inserted them all."""
        history = self.session.sql(f"DESCRIBE HISTORY {table} LIMIT 1")
        ((version, time),) = history.select("version", F.unix_micros("timestamp")).collect()
        reader = self.session.read.format("delta").option("versionAsOf", str(version))
        rows = reader.options(**self.options).load(self.path)
        own = {
            _KIND: F.lit("insert"),
            _VERSION: F.lit(version).cast("long"),
            _TIME: F.timestamp_micros(F.lit(time)),
        }
        return rows.withColumns(own)


_OWN = (_KIND, _VERSION, _TIME)
