"""The deltas of a plan's nodes, from the versions that a target covers to later ones.

A *delta* is the difference of two snapshots of a node (see ``snapshots.delta_rules``). Tables are
read at their new versions only. A node's old rows are its new ones without its delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from dovetail.base.columns import foreign_name, quoted
from dovetail.platform import delta_upsert
from dovetail.snapshots import delta_rules, few_rows
from dovetail.snapshots.delta_reader import (
    DistinctKeys,
    VersionReader,
    Versions,
    broadcast_if_small,
    count_keys,
    few_keys,
    keys_of,
    refuse_keys,
)
from dovetail.snapshots.few_rows import FewRows
from dovetail.snapshots.plan import (
    AFTER,
    AGE,
    APART,
    BEFORE,
    FAULTY,
    FRESH,
    SIGN,
    SnapshotAggregate,
    SnapshotJoin,
    SnapshotNode,
    SnapshotSource,
)


@dataclass(frozen=True)
class RowDelta:
    """The rows that a plan node loses and gains between two versions, and their count."""

    frame: DataFrame | None
    """The rows with ``_sign``: -1 for a row that goes, +1 for one that comes. None without rows."""
    rows: int
    """The count of rows; an update counts as two. A row that Spark cannot compare counts as
    updated.
    """
    few: FewRows | None = None
    """The same rows in this process; None if they are many, or if there are none."""


@dataclass(frozen=True)
class TargetChanges:
    """The changes of a target's rows between the versions that two commits cover."""

    frame: DataFrame | None
    """A row for each changed key, a result of ``delta_rules.paired_images``: the key, ``_row_old``
    and ``_row_new``. None if nothing changes.
    """
    rows: int
    """The count of changed keys."""
    few: bool
    """True if the changes are few and simple enough to be collected to this process."""


class Deltas:
    """The deltas of all nodes of a plan between two versions of its sources, each computed once.

    A node whose inputs did not change reads nothing. ``reader``: that of the plan, whose stored
    frames the caller releases after use. ``old``, ``new``: the version of each source by its table
    id, of which ``old`` is covered already. ``few``: True if the sources' changes are few and
    small, so that this process holds them.
    """

    def __init__(
        self, reader: VersionReader, old: Versions, new: Versions, *, few: bool = False
    ) -> None:
        self._reader = reader
        self._old = old
        self._new = new
        self._few = few
        self._known: dict[SnapshotNode, RowDelta] = {}

    def delta_of(self, node: SnapshotNode) -> RowDelta:
        """Return the rows that a plan node loses and gains from the old versions to the new ones.
        Without any, the ``RowDelta`` has 0 rows and no frame.

        The first call for a node computes them by Spark jobs, later calls return the same delta.
        Raises ``DataError`` if a changed key of a source has several rows, or is null in all its
        columns. Raises ``TargetError`` if a used column of a Delta table is not the same one in
        both versions. Raises ``ConfigurationError`` if Spark Connect does not show that.
        """
        if node not in self._known:
            if isinstance(node, SnapshotSource):
                self._known[node] = self._source_delta(node)
            else:
                self._known[node] = self._store_delta(self._computed_rows(node))
        return self._known[node]

    def changes(self, root: SnapshotNode) -> TargetChanges:
        """Return the keys of ``root`` whose rows differ between the old and the new versions.
        ``root``: the plan's last node. The result has their count, and a frame of the key,
        ``_row_old`` and ``_row_new``: the rows before and after, as structs. It has 0 rows and no
        frame if nothing changes.

        Runs Spark jobs, each time anew, and stores the rows in the reader's ``scratch``. Raises
        ``DataError`` if a changed key of a source has several rows, or is null in all its columns.
        Raises ``TargetError`` if a used column of a Delta table was replaced, and
        ``ConfigurationError`` if Spark Connect does not show that.
        """
        frame = (
            self.delta_of(root).frame
            if isinstance(root, SnapshotSource)
            else self._computed_rows(root)
        )
        if frame is None:
            return TargetChanges(None, 0, few=True)
        key, values = root.key.names, root.values.names
        pairs = self._reader.scratch.keep(delta_rules.paired_images(frame, key))
        rows, few = delta_upsert.measure(delta_rules.changes_after(pairs, key, values))
        return TargetChanges(pairs if rows else None, rows, few)

    def _source_delta(self, source: SnapshotSource) -> RowDelta:
        """Return the rows that a source loses and gains, from its change feed. Without any, the
        ``RowDelta`` has 0 rows and no frame. Nothing is read if the version stays the same.

        Raises ``DataError`` if a changed key has several rows, or is null in all its columns.
        Raises ``TargetError`` if a used column of a Delta table is not the same one in both
        versions. Raises ``ConfigurationError`` if Spark Connect does not show that.
        """
        old, new = (versions[source.table_id] for versions in (self._old, self._new))
        if old == new:
            return RowDelta(None, 0)
        keep, key = self._reader.scratch.keep, source.key.names
        images = delta_rules.images_of_feed(
            self._reader.change_feed(source, self._old, self._new), key
        )
        row_type = images.schema[BEFORE].dataType
        assert isinstance(row_type, StructType)
        if self._few and all(delta_upsert.is_plain(field.dataType) for field in row_type):
            return self._source_delta_of_few(source, images, row_type)
        images = keep(images)
        nulls = delta_rules.all_of(F.col(quoted(name)).isNull() for name in key)
        has_row = F.col(AFTER).isNotNull()
        present = sum(F.col(image).isNotNull().cast("int") for image in (BEFORE, AFTER))
        row = images.agg(
            F.count(F.when(F.col(FAULTY) & ~nulls, True)).alias("faulty"),
            F.count(F.when(F.col(FRESH), True)).alias("fresh"),
            F.count(F.when(F.col(FRESH) & has_row, True)).alias("come"),
            F.count(F.when(nulls & has_row, True)).alias("nulls"),
            F.coalesce(F.sum(F.when(F.col(APART), present)), F.lit(0)).alias("rows"),
        ).first()
        assert row is not None
        refuse_keys(source, self._new, row["faulty"], row["nulls"])
        if row["fresh"]:
            names = [F.col(quoted(n)).alias(foreign_name(i)) for i, n in enumerate(key)]
            fresh = keep(images.where(FRESH).select(*names))
            self._refuse_known_keys(source, count_keys(fresh), row["come"])
        return RowDelta(delta_rules.signed_rows(images) if row["rows"] else None, row["rows"])

    def _source_delta_of_few(
        self, source: SnapshotSource, images: DataFrame, row_type: StructType
    ) -> RowDelta:
        """Return the rows that a source with few changes loses and gains, held in this process.
        Without any, the ``RowDelta`` has 0 rows and no frame.

        ``images``: the result of ``delta_rules.images_of_feed`` for the source. ``row_type``: the
        columns of its rows, all of plain types. Raises ``DataError`` if a changed key has several
        rows, or is null in all its columns.
        """
        held, key = images.toArrow(), source.key.names
        counts = few_rows.count_images(held, key)
        refuse_keys(source, self._new, counts.faulty, counts.nulls)
        if counts.fresh:
            fresh = held.filter(held[FRESH])
            keys = few_rows.numbered_columns(fresh, key)
            types = [field.dataType for field in source.key]
            come = fresh.num_rows - fresh[AFTER].null_count
            self._refuse_known_keys(source, few_keys(self._reader.session, keys, types), come)
        sign = StructField(SIGN, IntegerType())
        return self._delta_of_few(
            FewRows(few_rows.signed_rows(held), StructType([*row_type.fields, sign]))
        )

    def _delta_of_few(self, few: FewRows) -> RowDelta:
        """Return ``few`` as a ``RowDelta``: rows of this process that go (``_sign`` -1) and come
        (+1). Without rows it has no frame and no ``few``.
        """
        rows = few.table.num_rows
        return RowDelta(few.frame(self._reader.session), rows, few) if rows else RowDelta(None, 0)

    def _refuse_known_keys(self, source: SnapshotSource, fresh: DistinctKeys, come: int) -> None:
        """Raise ``DataError`` if a key that the change feed reports as new had a row before. Runs a
        job.

        ``fresh``: the keys reported as new. ``come``: the count of those that have a row after the
        changes. If more rows than these have such a key at the new version, one of them was there
        before.
        """
        rows = self._reader.source_rows_with_keys(source, self._new, fresh).count()
        refuse_keys(source, self._new, rows - come, 0)

    def _computed_rows(self, node: SnapshotJoin | SnapshotAggregate) -> DataFrame | None:
        """Return the rows that a join or an aggregate loses and gains: its columns, and ``_sign``
        -1 or +1. None if no input has changed.
        """
        return (
            self._join_rows(node) if isinstance(node, SnapshotJoin) else self._aggregate_rows(node)
        )

    def _aggregate_rows(self, node: SnapshotAggregate) -> DataFrame | None:
        """Return the rows that an aggregate loses and gains, with ``_sign`` -1 and +1: those of the
        groups that have changed rows, computed anew. A group may go and come as it was. Return
        None, and read nothing, if the input has not changed.
        """
        reader, by = self._reader, node.key.names
        delta = self.delta_of(node.input)
        if delta.frame is None:
            return None
        keys = self._keys_of_delta(delta, by)
        now = reader.scratch.keep(reader.rows(node.input, self._new, by, keys))
        before = self._former_rows(node.input, now, by, keys)
        return delta_rules.delta_of_aggregate(node, before, now)

    def _keys_of_delta(self, delta: RowDelta, columns: Sequence[str]) -> DistinctKeys:
        """Return the distinct values of ``columns`` in all rows of ``delta``, as columns ``_f0``,
        ``_f1`` … in this order. Values that contain a null are left out, so there may be none.

        ``delta``: rows that go and come, at least one, else ``AssertionError``. If this process
        holds its rows, it also holds the keys, as ``few``. Else a job stores and counts them, and
        ``few`` is None.
        """
        assert delta.frame is not None
        if delta.few is None:
            return keys_of(self._reader.scratch, delta.frame, columns)
        types = [delta.few.schema[name].dataType for name in columns]
        return few_keys(self._reader.session, few_rows.keys_of(delta.few.table, columns), types)

    def _join_rows(self, node: SnapshotJoin) -> DataFrame | None:
        """Return the rows that a join loses and gains: its columns, and ``_sign`` -1 or +1. Return
        None, and read nothing, if neither side has changed.
        """
        deltas = [self.delta_of(side) for side in node.sides]
        terms = [
            self._term_of_side(node, side, delta)
            for side, delta in enumerate(deltas)
            if delta.frame is not None
        ]
        if not terms:
            return None
        return delta_rules.net_delta(node, reduce(lambda a, b: a.unionByName(b), terms))

    def _term_of_side(self, node: SnapshotJoin, side: int, delta: RowDelta) -> DataFrame:
        """Return the joined rows that go and come by one side's changes. Rows that are in neither
        version may be among them; ``delta_rules.net_delta`` cancels them.

        ``side``: 0 for the left, 1 for the right. Changes of the left side meet the right side's
        new rows. Changes of the right side meet the left side's old rows. ``delta``: the side's
        changes, at least one.

        The columns are ``_0_<i>`` of the left side and ``_1_<i>`` of the right one, ``_sign`` (-1
        or +1), ``_left_age`` and ``_right_age``. An age is ``o`` for a row of the old version
        alone, ``n`` for one of the new version alone, else ``u``.
        """
        assert delta.frame is not None
        reader, other, columns = self._reader, 1 - side, node.on_columns(side)
        few, keys = delta.few, self._keys_of_delta(delta, columns)
        others = self._other_rows(node.sides[other], node.on_columns(other), keys, old=side == 1)
        if not node.preserves(other):
            return delta_rules.term_of_side(node, side, delta.frame, others, None)
        now = None
        if not node.has_one_match(side):
            now = reader.rows(node.sides[side], self._new, columns, keys)
        elif few is not None and not delta_upsert.has_floats(few.schema, columns):
            moved = few_rows.values_gained_or_lost(few.table, columns)
            if not moved.num_rows:
                return delta_rules.term_of_side(node, side, delta.frame, others, None)
        moved = delta_rules.values_gained_or_lost(delta.frame, columns, now)
        return delta_rules.term_of_side(node, side, delta.frame, reader.scratch.keep(others), moved)

    def _other_rows(
        self, node: SnapshotNode, columns: list[str], keys: DistinctKeys, *, old: bool
    ) -> DataFrame:
        """Return the rows of ``node`` whose ``columns`` have the values of one of the keys, each
        with ``_row_age``. ``node``: the other side of a join. ``columns``: one for each column of
        ``keys``.

        ``old``: True for the node's rows before the changes, aged ``o`` if the changes remove them,
        else ``u``. False for those after them, aged ``n`` if the changes bring them, else ``u``.
        All rows of a node without changes are aged ``u``.
        """
        rows = self._reader.rows(node, self._new, columns, keys)
        delta = self.delta_of(node)
        if delta.frame is None:
            return rows.withColumn(AGE, F.lit(delta_rules.UNCHANGED))
        if old:
            return self._former_rows(node, rows, columns, keys)
        return delta_rules.rows_with_age(
            rows, broadcast_if_small(delta.frame, delta.rows), node.key.names
        )

    def _former_rows(
        self, node: SnapshotNode, now: DataFrame, columns: Sequence[str], keys: DistinctKeys
    ) -> DataFrame:
        """Return the rows of a changed node at the old versions whose ``columns`` have the values
        of one of the keys. Each has ``_row_age``: ``o`` for rows that go, else ``u``.

        ``now``: the node's rows with these values at the new versions.
        """
        delta = self.delta_of(node)
        assert delta.frame is not None
        gone = keys.rows_with_keys(delta.frame.where(F.col(SIGN) < 0), columns)
        return delta_rules.former_rows(
            now, broadcast_if_small(delta.frame, delta.rows), node.key.names, gone
        )

    def _store_delta(self, frame: DataFrame | None) -> RowDelta:
        """Return ``frame``, rows that go (``_sign`` -1) and come (+1), as a ``RowDelta``. A job
        computes, stores and counts them. None gives one without rows.

        The rows are collected to this process if ``delta_upsert.measure`` finds them few, and if
        the sources' changes are few (``few`` of this object).
        """
        if frame is None:
            return RowDelta(None, 0)
        stored_rows = self._reader.scratch.keep(frame)
        rows, few = delta_upsert.measure(stored_rows)
        if self._few and few:
            return self._delta_of_few(FewRows(stored_rows.toArrow(), frame.schema))
        return RowDelta(stored_rows if rows else None, rows)
