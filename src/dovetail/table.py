"""``Table``: a table that changes, and what can be made of it.

The DSL checks arguments and builds plan nodes; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.arguments import ColumnName, Text, validated
from dovetail.laws.table_join import How
from dovetail.lookup.source import LookupSource
from dovetail.plan.aggregates import AnAggregate
from dovetail.plan.aggregation import aggregation
from dovetail.plan.delta import ADelta, Delta, tables_joined, with_lookup
from dovetail.plan.joins import Call
from dovetail.plan.matching import OnComputed
from dovetail.plan.nodes import ChangeKinds, Late, Node
from dovetail.plan.reading import Given
from dovetail.plan.select import Selection
from dovetail.plan.spans import Span
from dovetail.plan.table_join import materialized
from dovetail.plan.window_join import window_join
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
        on: OnComputed | None = None,
        how: How = "inner",
        select: Selection | None = None,
        late: Late = "ignore",
        align: Span | None = None,
        window_of: Given | None = None,
        delta: ADelta | None = None,
        name: Text | None = None,
    ) -> Table:
        """A join of two tables: at any time, the rows of both that belong together, side by side.

        ``on``: columns of this table, or Spark expressions over its row, that equal the right
        table's key, in its order; or a mapping of this table's columns to the right one's, which
        are equal; left out, both keys, which then have the same names. A null equals nothing.

        **By key**, where that is this table's key, too. ``how``: ``"inner"``, ``"left"`` (every
        left row, with nulls where the right has none) or ``"outer"`` (every row of either). Each
        record of either table gives its own result; a result that ceases is deleted by a tombstone.
        The result's timestamp is the larger of both.

        **By foreign key**, where it is not. Many left rows may refer to one right row; the result
        has this table's key. A right record gives a result for each left row that refers to it,
        under its own timestamp. ``how="inner"`` leaves out rows whose foreign key is null or names
        no row, ``"left"`` keeps them. ``"right"`` and ``"outer"`` keep right rows to which no left
        row refers, under a key of both tables' key columns, the right's named ``right_<column>``,
        of which one table's are null. A left row for which an expression fails is left out and
        counted (metric ``<name>.failed``). ``late`` and ``align`` do not apply.

        **By look-ups**, without state, where both tables have look-up sources: ``delta``, as
        ``dt.delta`` says. A mapping may then name any columns that an index finds. The result has
        this table's key where the right one's is named in full, and with ``"right"`` and
        ``"outer"`` also the right one's as ``right_<column>``, unless both keys are joined; where
        it is not, it has both.

        **With a windowed table**, by both keys, ``how="left"``: each row beside the window that
        begins at ``window_of``, a timestamp column or a Spark expression over the row; nulls where
        there is no such window (any longer). Both sides' records give results; ``late``, ``align``
        and ``delta`` do not apply.

        ``select``: the result's value columns, all of both sides by default. Columns are named
        ``"left.x"``, ``"right.x"`` or just ``"x"``; a mapping gives new names; Spark expressions
        over the joined row (``F.col("left.x") + F.col("right.y")``) run in the JVM.

        ``late``: what a versioned table's record does that is older than its key's latest version.
        ``"ignore"``: it emits nothing (an unversioned table's replaces the row, whatever its time).
        ``"history"``, for two versioned tables: it corrects the past, every result being stamped
        with the time from which it holds, so that the last result of each key and time is the
        history of the join, whatever the order of arrival.

        ``align``: as in ``Stream.join``. ``name``: what errors and ``explain`` call the join.

        Raises ``PlanError`` where types differ or names are unknown or ambiguous.
        Source: KIP-77 "KTable-KTable"; KIP-213; KIP-914; FLIP-486; spec/table_table,
        spec/foreign_key, spec/versioned.
        """
        call = Call(self.plan, right.plan, on, how, select, align, name)
        if isinstance(right, Windowed):
            others = {"late": None if late == "ignore" else late, "delta": delta}
            return Table(window_join(call, window_of=window_of, others=others))
        call.refuse({"window_of": window_of}, "is for a windowed table")
        return Table(tables_joined(call, late, delta or Delta()))

    def materialize(self) -> Table:
        """This table with its rows kept, in a stage of their own: it emits real changes only, no
        row that is as it was and no tombstone where there was no row. It has no history.

        Raises ``PlanError`` for a join of histories (``late="history"``).
        """
        return Table(materialized(self.plan))

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
