"""``Table``: a table that changes, and what can be made of it.

The DSL checks arguments and builds plan nodes; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.arguments import ColumnName, Natural, Text, validated
from dovetail.errors import PlanError
from dovetail.laws.table_join import How
from dovetail.lookup.source import LookupSource
from dovetail.plan.aggregates import AnAggregate
from dovetail.plan.delta import (
    CACHE_SIZE,
    Caching,
    DeltaHow,
    On,
    Strategy,
    chosen,
    delta_join,
    with_lookup,
)
from dovetail.plan.grouping import aggregation
from dovetail.plan.joins import ForeignKeyParts, foreign_key, foreign_key_join, kept, table_join
from dovetail.plan.nodes import ChangeKinds, Late, Node
from dovetail.plan.reading import Given
from dovetail.plan.select import Selection
from dovetail.plan.spans import Span
from dovetail.plan.window_joins import window_join
from dovetail.topology import AWindowedTable, Topology, Windowed


class Table(Topology):
    """A table that changes: at any time one row per key, given by the changelog so far.

    Made by ``from_changelog``, ``from_topic``, joins and aggregates. The seeds' KTable.
    """

    @validated
    def join(
        self,
        right: Table | AWindowedTable,
        *,
        on: ForeignKeyParts | None = None,
        how: How = "inner",
        select: Selection | None = None,
        late: Late = "ignore",
        align: Span | None = None,
        window_of: Given | None = None,
        name: Text | None = None,
        materialized: bool = False,
        strategy: Strategy = "auto",
        cache: bool = True,
        left_cache_size: Natural = CACHE_SIZE,
        right_cache_size: Natural = CACHE_SIZE,
    ) -> Table:
        """A join of two tables, by their keys or, with ``on``, by foreign key: at any time, the
        rows of both that belong together, side by side.

        **By key**, also where ``on`` names this table's key. ``how``: ``"inner"``, ``"left"``
        (every left row, with nulls where the right has none) or ``"outer"`` (every row of either).
        Each record of either table gives its own result; a result that ceases is deleted by a
        tombstone. The result's timestamp is the larger of both.

        **By foreign key.** ``on``: what names the right table's key, in its types and order:
        columns of this table, or Spark expressions over its key and columns. Many left rows may
        refer to one right row; the result has this table's key. A right record gives a result for
        each left row that refers to it, under its own timestamp. ``how="inner"`` leaves out rows
        whose foreign key is null or names no row, ``"left"`` keeps them. ``"right"`` and
        ``"outer"`` keep right rows to which no left row refers, under a key of both tables' key
        columns, the right's named ``right_<column>``, of which one table's are null. A left row for
        which an expression fails is left out and counted (metric ``<name>.failed``). ``late`` and
        ``align`` do not apply.

        **With a windowed table**, by its key, ``how="left"``: each row beside the window that
        begins at ``window_of``, a timestamp column or a Spark expression over the row; nulls where
        there is no such window (any longer). Both sides' records give results; ``late``, ``align``,
        ``on`` and ``materialized`` do not apply.

        ``select``: the result's value columns, all of both sides by default. Columns are named
        ``"left.x"``, ``"right.x"`` or just ``"x"``; a mapping gives new names; Spark expressions
        over the joined row (``F.col("left.x") + F.col("right.y")``) run in the JVM.

        ``late``: what a versioned table's record does that is older than its key's latest version.
        ``"ignore"``: it emits nothing (an unversioned table's replaces the row, whatever its time).
        ``"history"``, for two versioned tables: it corrects the past, every result being stamped
        with the time from which it holds, so that the last result of each key and time is the
        history of the join, whatever the order of arrival.

        ``align``: as in ``Stream.join``. ``name``: what errors and ``explain`` call the join.
        ``materialized``: keep the result's rows, too, in a stage of their own, and emit real
        changes only: no row that is as it was, no tombstone where there was no row.

        ``strategy``: ``"auto"`` joins tables that have look-up sources (``with_lookup``) by a delta
        join, without state, where none of its limitations is broken, and all others in state;
        ``"force"`` raises a ``PlanError`` that names every limitation that is broken; ``"none"``
        joins in state. ``explain`` says what was chosen and why. ``cache``, ``left_cache_size``,
        ``right_cache_size``: as in ``delta_join``.

        Raises ``PlanError`` where the keys' types differ or names are unknown or ambiguous.
        Source: KIP-77 "KTable-KTable"; KIP-213; KIP-914; spec/table_table, spec/foreign_key,
        spec/versioned.
        """
        if isinstance(right, Windowed):
            for argument, given in (
                ("on=", on is not None),
                ("late=", late != "ignore"),
                ("align=", align is not None),
                ("materialized=", materialized),
            ):
                if given:
                    raise PlanError(
                        name or "join",
                        f"{argument} does not apply to a windowed table",
                        "Leave it out",
                    )
            joined_window = window_join(
                self.plan, right.plan, how=how, select=select, window_of=window_of, label=name
            )
            return Table(joined_window)
        if window_of is not None:
            raise PlanError(name or "join", "window_of= is for a windowed table", "Leave it out")
        caching = Caching(cache, left_cache_size, right_cache_size)
        columns = foreign_key(self.plan, on)
        if columns is None:
            by_key = table_join(
                self.plan,
                right.plan,
                how=how,
                select=select,
                late=late,
                align=align,
                label=name,
            )
            made = chosen(by_key, strategy=strategy, caching=caching, kept=materialized)
            return Table(kept(made) if materialized else made)
        for argument, given in (("late=", late != "ignore"), ("align=", align is not None)):
            if given:
                raise PlanError(
                    name or "join", f"{argument} is for joins by key", "Leave it or on= out"
                )
        joined = foreign_key_join(
            self.plan, right.plan, how=how, on=columns, select=select, label=name
        )
        made = chosen(joined, strategy=strategy, caching=caching, kept=materialized)
        return Table(kept(made) if materialized else made)

    @validated
    def with_lookup(self, source: LookupSource, *, changes: ChangeKinds | None = None) -> Table:
        """This table with a store of the same rows, in which delta joins look them up.

        ``source``: ``dt.postgres(...)``, ``dt.sqlite(...)`` or ``dt.delta_files(...)``, with this
        table's key and columns of the same names and types. Law: at any time it has at least the
        changes that the changelog has brought, so write it first, or read the changelog from its
        own log. Where its ``where=`` names constants, the changelog is restricted to them, too.

        ``changes``: what may come: ``"insert"`` (each key's row comes once and stays), ``"upsert"``
        (rows are replaced), ``"all"`` (and deleted); by default ``"all"`` where ``deleted=`` is
        given and ``"upsert"`` where not. A tombstone against it fails the batch.

        Raises ``PlanError`` where keys or columns do not fit, and on the result of a join.
        Source: FLIP-486 "Limitations".
        """
        return Table(with_lookup(self.plan, source, changes))

    @validated
    def delta_join(
        self,
        right: Table,
        *,
        on: On | None = None,
        how: DeltaHow = "inner",
        select: Selection | None = None,
        cache: bool = True,
        left_cache_size: Natural = CACHE_SIZE,
        right_cache_size: Natural = CACHE_SIZE,
        name: Text | None = None,
    ) -> Table:
        """A join of two tables that keeps no state: each change of one is joined with the rows that
        the other's look-up source has at that time. Eventual: once the input rests, the result is
        the join of both tables; until then it may be ahead of the changelogs.

        ``on``: the columns that are equal: a name or several that both tables have, or else the
        left table's columns in the order of the right table's key; or a mapping of left columns to
        right columns; by default both keys. An index of each source must be among them. ``how``:
        ``"full"`` and ``"outer"`` are one.

        The result has the left table's key where the right one's key is joined by whole, and with
        ``"right"`` and ``"full"`` also the right one's as ``right_<column>``, as in ``join``;
        where not, it has both. Per micro-batch a key has at most one change; a row that is
        unchanged may come again, and a tombstone where there was no row.

        ``select``, ``name``: as in ``join``. ``cache``: whether tasks keep rows that they looked
        up, at most ``left_cache_size`` rows of the left table and ``right_cache_size`` of the right
        one, those last used; a side whose rows may change their join key is not kept.

        Raises ``PlanError`` that names every limitation that is broken.
        Source: FLIP-486; docs/delta_joins.md.
        """
        caching = Caching(cache, left_cache_size, right_cache_size)
        return Table(
            delta_join(
                self.plan,
                right.plan,
                on=on,
                how=how,
                select=select,
                caching=caching,
                label=name,
            )
        )

    @validated
    def group_by(self, *columns: ColumnName) -> GroupedTable:
        """The table's rows by other columns than its key, to be aggregated with ``agg``."""
        return GroupedTable(self.plan, columns)


class GroupedTable:
    """A table's rows by the columns that they are grouped by."""

    def __init__(self, plan: Node, by: Sequence[str]) -> None:
        self._plan = plan
        self._by = by

    @validated
    def agg(self, **aggregates: AnAggregate) -> Table:
        """A table of one row per group, keyed by the columns it is grouped by: at any time, the
        aggregates of the rows that the table has.

        A record that changes a row takes the old one out of its group and puts the new one into its
        own: two results, or one where both are the same group. A group without rows is deleted by a
        tombstone. A row with a null among the columns is in no group. A result's timestamp is the
        largest of the records that changed the group.

        Raises ``PlanError`` for unknown columns, types that an aggregate does not take, and an
        aggregate that cannot take rows back.
        Source: Kafka Streams join design, "KTable Aggregate"; spec/aggregate.
        """
        return Table(aggregation(self._plan, self._by, aggregates, None))
