"""A Delta table that holds what a changelog says: the sink that merges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dovetail.columns import CHANGE, DELETE, POSITION, TIMESTAMP, UPSERT, quoted
from dovetail.errors import ConfigurationError
from dovetail.plan.nodes import Node, has_null_keys, is_current

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class DeltaSink:
    """Merges each micro-batch's last change per key into a Delta table; appends what is not a
    table's current rows.
    """

    path: str

    def writer(self, changes: DataFrame, node: Node) -> DataStreamWriter:
        """The configured writer; creates the table where there is none."""
        session = changes.sparkSession
        if "DeltaSparkSessionExtension" not in str(session.conf.get("spark.sql.extensions", "")):
            raise ConfigurationError(
                f"to_delta({self.path!r})",
                "the session does not know Delta Lake",
                "Build it with delta.configure_spark_with_delta_pip, its extension and catalog",
            )
        if not is_current(node):
            appended = changes.writeStream.format("delta").outputMode("append")
            return appended.option("path", self.path)
        from delta.tables import DeltaTable

        columns = [*node.key.names, *node.values.names, TIMESTAMP]
        creation = DeltaTable.createIfNotExists(session).location(self.path)
        creation.addColumns(changes.select(*map(quoted, columns)).schema).execute()
        keys, nulls = node.key.names, has_null_keys(node)
        path = self.path

        def merge(batch: DataFrame, _: int) -> None:
            merge_changes(batch, path, keys, nulls=nulls)

        return changes.writeStream.foreachBatch(merge)


def merge_changes(changes: DataFrame, path: str, keys: list[str], *, nulls: bool = False) -> None:
    """Bring the table at ``path`` to the state after ``changes``; merging them again changes
    nothing. ``nulls``: keys may have nulls in them.
    """
    from delta.tables import DeltaTable

    last = (
        changes.groupBy(*map(quoted, keys))
        .agg(F.max_by(F.struct("*"), POSITION).alias("last"))
        .select("last.*")
    )
    equals = "<=>" if nulls else "="
    same_key = " AND ".join(f"stored.{quoted(k)} {equals} last.{quoted(k)}" for k in keys)
    columns = [c for c in changes.columns if c not in (CHANGE, POSITION)]
    values: dict[str, str | Column] = {quoted(c): f"last.{quoted(c)}" for c in columns}
    (
        DeltaTable.forPath(changes.sparkSession, path)
        .alias("stored")
        .merge(last.alias("last"), same_key)
        .whenMatchedDelete(f"last.{CHANGE} = '{DELETE}'")
        .whenMatchedUpdate(set=values)
        .whenNotMatchedInsert(f"last.{CHANGE} = '{UPSERT}'", values)
        .execute()
    )


def to_delta(path: str) -> DeltaSink:
    """A Delta table at ``path`` that equals the table after each micro-batch: its key, its values
    and ``_timestamp``, the event time of the row's last change.

    Each batch is one MERGE of the last change per key; a batch that is repeated after a failure
    leaves the table as it is, so nothing is lost or doubled. The table is created on first use.

    A stream's records, and the points of a history (``late="history"``), are no such table: they
    are appended with all columns of the changelog, exactly once.
    """
    return DeltaSink(path)
