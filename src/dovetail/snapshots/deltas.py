"""The deltas of a plan's nodes, from the versions that a target covers to later ones.

A *delta* is the difference of two snapshots of a node (see ``snapshots.delta_rules``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dovetail.base.columns import foreign_name, quoted
from dovetail.snapshots import delta_rules
from dovetail.snapshots.delta_reader import (
    Keys,
    VersionReader,
    Versions,
    counted,
    keys_of,
    refuse_keys,
    small,
)
from dovetail.snapshots.plan import SnapshotJoin, SnapshotNode, SnapshotSource


@dataclass(frozen=True)
class RowDelta:
    """The delta of a node, and the number of its rows."""

    frame: DataFrame | None
    """The rows with their signs, or None if there are none."""
    rows: int
    """The number of rows."""


class Deltas:
    """The delta of each node, computed once. A node whose inputs did not change reads nothing."""

    def __init__(self, reader: VersionReader, old: Versions, new: Versions) -> None:
        self._reader = reader
        self._old = old
        self._new = new
        self._known: dict[SnapshotNode, RowDelta] = {}

    def of(self, node: SnapshotNode) -> RowDelta:
        """Return the delta of a node. Raises ``DataError`` if a source has several
        rows of one key.
        """
        if node not in self._known:
            if isinstance(node, SnapshotSource):
                self._known[node] = self._source(node)
            else:
                self._known[node] = self._join(node)
        return self._known[node]

    def changes(self, root: SnapshotNode) -> RowDelta:
        """Return the root's keys whose rows differ, each with its row before and after."""
        delta = self.of(root)
        if delta.frame is None:
            return delta
        return self._counted(delta_rules.pair(delta.frame, root.key.names))

    def _source(self, source: SnapshotSource) -> RowDelta:
        """Return the delta of a table, from its change feed. Raises ``DataError`` for keys that are
        not unique.
        """
        old, new = (versions[source.table_id] for versions in (self._old, self._new))
        if old == new:
            return RowDelta(None, 0)
        keep, key = self._reader.scratch.keep, source.key.names
        feed = self._reader.feed(source, self._old, self._new)
        images = keep(delta_rules.images(feed, key))
        nulls = delta_rules.all_of(F.col(quoted(name)).isNull() for name in key)
        present = sum(
            F.col(image).isNotNull().cast("int")
            for image in (delta_rules.BEFORE, delta_rules.AFTER)
        )
        row = images.agg(
            F.count(F.when(F.col(delta_rules.FAULTY) & ~nulls, True)).alias("faulty"),
            F.count(F.when(F.col(delta_rules.FRESH), True)).alias("fresh"),
            F.count(F.when(nulls & F.col(delta_rules.AFTER).isNotNull(), True)).alias("nulls"),
            F.coalesce(F.sum(F.when(F.col(delta_rules.APART), present)), F.lit(0)).alias("rows"),
        ).first()
        assert row is not None
        refuse_keys(source, self._new, row["faulty"], row["nulls"])
        if row["fresh"]:
            self._refuse_known(source, images.where(delta_rules.FRESH))
        return RowDelta(delta_rules.signed(images) if row["rows"] else None, row["rows"])

    def _refuse_known(self, source: SnapshotSource, fresh: DataFrame) -> None:
        """Raise ``DataError`` if a key that the change feed reports as new had a row in the old
        snapshot.
        """
        names = [F.col(quoted(n)).alias(foreign_name(i)) for i, n in enumerate(source.key.names)]
        keys = counted(self._reader.scratch.keep(fresh.select(*names)))
        old_rows = self._reader.having_keys(source, self._old, keys)
        refuse_keys(source, self._new, old_rows.count(), 0)

    def _join(self, node: SnapshotJoin) -> RowDelta:
        """Return the delta of a join: the sum of both sides' terms. Without a changed side nothing
        is read.
        """
        terms = [
            self._term(node, side, delta.frame)
            for side, delta in enumerate([self.of(side) for side in node.sides])
            if delta.frame is not None
        ]
        if not terms:
            return RowDelta(None, 0)
        united_terms = reduce(lambda a, b: a.unionByName(b), terms)
        return self._counted(delta_rules.netted(node, united_terms))

    def _term(self, node: SnapshotJoin, side: int, delta: DataFrame) -> DataFrame:
        """Return the effect of one side's changes on the join.

        Changes of the left side meet the right side's new rows. Changes of the right side meet the
        left side's old rows.
        """
        reader, other = self._reader, 1 - side
        standing = self._new if side == 0 else self._old
        keys = keys_of(reader.scratch, delta, node.on_columns(side))
        others = self._aged(node.sides[other], standing, node.on_columns(other), keys)
        if not node.preserves(other):
            return delta_rules.term(node, side, delta, others, None)
        now = None
        if not node.one_each(side):
            now = reader.rows(node.sides[side], self._new, node.on_columns(side), keys)
        moved = delta_rules.moves(delta, node.on_columns(side), now)
        return delta_rules.term(node, side, delta, reader.scratch.keep(others), moved)

    def _aged(
        self, node: SnapshotNode, standing: Versions, columns: list[str], keys: Keys
    ) -> DataFrame:
        """Return a node's rows of some keys at the versions ``standing``, each with ``_age``: old,
        new or unchanged.
        """
        rows = self._reader.rows(node, standing, columns, keys)
        delta = self.of(node)
        if delta.frame is None:
            return rows.withColumn("_age", F.lit(delta_rules.UNCHANGED))
        changed = small(delta.frame, delta.rows)
        return delta_rules.aged(rows, changed, node.key.names, new=standing is self._new)

    def _counted(self, frame: DataFrame) -> RowDelta:
        """Return a frame as a delta, computed once and counted."""
        stored_rows = self._reader.scratch.keep(frame)
        rows = stored_rows.count()
        return RowDelta(stored_rows if rows else None, rows)
