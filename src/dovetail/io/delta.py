"""A Delta table that holds what a changelog says: the sink that merges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dovetail import lake
from dovetail.columns import CHANGE, DELETE, POSITION, TIMESTAMP, key_name, quoted
from dovetail.plan.nodes import Node, has_null_keys, is_current

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
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
        lake.refuse_without_delta(session, f"to_delta({self.path!r})")
        if not is_current(node):
            appended = changes.writeStream.format("delta").outputMode("append")
            return appended.option("path", self.path)
        columns = [*node.key.names, *node.values.names, TIMESTAMP]
        empty = session.createDataFrame([], changes.select(*map(quoted, columns)).schema)
        empty.write.format("delta").mode("ignore").save(self.path)
        keys, nulls = node.key.names, has_null_keys(node)
        path = self.path

        def merge(batch: DataFrame, _: int) -> None:
            merge_changes(batch, path, keys, nulls=nulls)

        return changes.writeStream.foreachBatch(merge)


def merge_changes(changes: DataFrame, path: str, keys: list[str], *, nulls: bool = False) -> None:
    """Bring the table at ``path`` to the state after ``changes``; merging them again changes
    nothing. ``nulls``: keys may have nulls in them.
    """
    key = [F.col(quoted(name)).alias(key_name(i)) for i, name in enumerate(keys)]
    last = changes.groupBy(*key).agg(F.max_by(F.struct("*"), POSITION).alias("last"))
    values = [name for name in changes.columns if name not in (*keys, CHANGE, POSITION)]
    lake.merge(
        last,
        lake.named(path),
        key={name: F.col(key_name(i)) for i, name in enumerate(keys)},
        values={name: F.col(f"last.{quoted(name)}") for name in values},
        gone=F.col(f"last.{CHANGE}") == DELETE,
        nulls=nulls,
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
