"""Tables, streams and windowed tables, which users join, aggregate and select from.

The DSL checks arguments and builds plan nodes; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from dovetail.api.store_lookups import LooksUp
from dovetail.api.table_methods import TableRows
from dovetail.api.topology import AWindowedTable, Windowed
from dovetail.base.hints import HintedGroups
from dovetail.base.validation import ColumnName, ColumnNames, Text, validated
from dovetail.laws.joins.stream_join import Unmatched
from dovetail.laws.joins.table_join import How
from dovetail.plan import views
from dovetail.plan.changelog_source import Given
from dovetail.plan.joins.delta_options import ADelta, Delta, tables_joined
from dovetail.plan.joins.join_call import Call
from dovetail.plan.joins.join_keys import On, OnComputed
from dovetail.plan.joins.stream_join import AWithin, stream_join
from dovetail.plan.joins.stream_table_join import stream_table_join
from dovetail.plan.joins.window_join import window_join
from dovetail.plan.nodes import Late, Node
from dovetail.plan.select import Selection
from dovetail.plan.transforms.aggregation import aggregation
from dovetail.plan.transforms.deduplicate import deduplicated
from dovetail.plan.transforms.to_changes import KINDS, ChangeNames, to_changes
from dovetail.plan.transforms.union import union
from dovetail.plan.transforms.unwindow import WindowMode, as_stream, as_table
from dovetail.plan.types.aggregates import AnAggregate
from dovetail.plan.types.spans import Span
from dovetail.plan.types.windows import SomeWindows, Windows
from dovetail.plan.views import Errors, Item, of_join


class Table(TableRows):
    """A table that changes: at any time one row per key, given by the changelog so far.

    Made by ``from_changelog``, ``from_topic``, ``from_records``, ``from_delta``, ``from_static``,
    joins and aggregates. Equivalent to a Kafka Streams KTable.
    """

    @overload  # by key
    def join(
        self,
        right: Table,
        *,
        on: OnComputed | None = None,
        how: Literal["inner", "left", "outer"] | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        late: Late = "ignore",
        align: Span | None = None,
        name: Text | None = None,
    ) -> Table: ...

    @overload  # by foreign key
    def join(
        self,
        right: Table,
        *,
        on: OnComputed,
        how: How | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        name: Text | None = None,
    ) -> Table: ...

    @overload  # by look-ups, or in state if the options say so
    def join(
        self,
        right: Table,
        *,
        on: OnComputed | None = None,
        how: How | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        late: Late = "ignore",
        align: Span | None = None,
        delta: ADelta,
        name: Text | None = None,
    ) -> Table: ...

    @overload
    def join(
        self,
        right: WindowedTable,
        *,
        on: On | None = None,
        how: Literal["left"] | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        window_of: Given,
        name: Text | None = None,
    ) -> Table: ...

    @validated
    def join(
        self,
        right: Table | AWindowedTable,
        *,
        on: OnComputed | None = None,
        how: How | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        late: Late = "ignore",
        align: Span | None = None,
        window_of: Given | None = None,
        delta: ADelta | None = None,
        name: Text | None = None,
    ) -> Table:
        """Join two tables: at any time, the rows of both that belong together, side by side.

        ``on``: columns of this table, or Spark expressions over its row, that equal the right
        table's key, in its order. Or a mapping of this table's columns to the right one's, which
        are equal. Left out, both keys, which then have the same names. A null equals nothing.

        **By key**, where that is this table's key, too. ``how``: ``"inner"``, ``"left"`` (every
        left row, with nulls where the right has none) or ``"outer"`` (every row of either). Each
        record of either table gives its own result; a result that ceases is deleted by a tombstone
        (a change with the key and no values). The result's timestamp is the larger of both.

        **By foreign key**, where it is not. Many left rows may refer to one right row; the result
        has this table's key. A right record gives a result for each left row that refers to it,
        under its own timestamp. ``how="inner"`` leaves out rows whose foreign key is null or names
        no row, ``"left"`` keeps them. ``"right"`` and ``"outer"`` keep right rows to which no left
        row refers. Their key has both tables' key columns, the right's named ``right_<column>``;
        one table's are null. A left row for which an expression fails is left out and counted
        (metric ``<name>.failed``). ``late`` and ``align`` do not apply.

        **By look-ups**, without state, where both tables have look-up sources: ``delta``, as
        ``dt.delta`` describes. A mapping may then name any columns that an index finds. If the
        right table's key is named in full, the result has this table's key. With ``"right"`` and
        ``"outer"`` it also has the right one's as ``right_<column>``, unless both keys are joined.
        If the right key is not named in full, the result has both keys.

        **With a windowed table**, by both keys, ``how="left"``: each row beside the window that
        begins at ``window_of``, a timestamp column or a Spark expression over the row. Nulls where
        there is no such window, or not any longer. Both sides' records give results; ``late``,
        ``align`` and ``delta`` do not apply.

        ``select``: the result's value columns, all of both sides by default. Columns are named
        ``"left.x"``, ``"right.x"`` or just ``"x"``. A mapping gives new names, or has Spark
        expressions over the joined row (``F.col("left.x") + F.col("right.y")``). ``errors``: as in
        ``where``.

        ``late``: the effect of a versioned table's record that is older than its key's latest
        version. ``"ignore"``: it emits nothing. (An unversioned table's record replaces the row,
        whatever its time.) ``"history"``, for two versioned tables: it corrects the past. Every
        result is stamped with the time from which it holds. So the last result of each key and time
        is the history of the join, whatever the order of arrival.

        ``align``: as in ``Stream.join``. ``name``: the join's name in errors and ``explain``.

        Raises ``PlanError`` where types differ or names are unknown or ambiguous.
        Source: KIP-77 "KTable-KTable"; KIP-213; KIP-914; FLIP-486; spec/table_table,
        spec/foreign_key, spec/versioned.
        """
        call = Call(self.plan, right.plan, on, how, select, align, name)
        if isinstance(right, Windowed):
            others = {"late": None if late == "ignore" else late, "delta": delta}
            return Table(of_join(window_join(call, window_of=window_of, others=others), errors))
        call.refuse({"window_of": window_of}, "is for a windowed table")
        return Table(of_join(tables_joined(call, late, delta or Delta()), errors))

    @validated
    def union(self, *tables: Table, source: Text, name: Text | None = None) -> Table:
        """Return the rows of this table and others with the same columns, side by side.

        ``source``: the name of a further key column, with the name of the table from which a row
        is.
        """
        return Table(union([self.plan, *(one.plan for one in tables)], name, source))

    def to_stream(self) -> Stream:
        """Return the table's changes as a stream of records; a deleted row is a record without a
        value.
        """
        return Stream(views.as_records(self.plan))

    @validated
    def to_changes(self, *, column: Text = "kind", kinds: ChangeNames = KINDS) -> Stream:
        """Return the table's real changes as a stream: the row before each change and the row
        after it.

        Each of the two is a record, under the change's own time. A record that leaves the row as it
        was is no change. The table's last rows are kept.

        ``column``: the name of a further value column with the kind of the record. ``kinds``: the
        words for a new row, a replaced one, its replacement and a deleted one. By default they are
        Flink's ``+I``, ``-U``, ``+U`` and ``-D``.

        Source: spec/view/changes.
        """
        return Stream(to_changes(self.plan, column, kinds))

    @validated
    def group_by(self, *columns: ColumnName) -> GroupedTable:
        """Group the table's rows by other columns than its key, to be aggregated with ``agg``."""
        return GroupedTable(self.plan, columns)


class GroupedTable(HintedGroups):
    """A table's rows by the columns that they are grouped by."""

    def __init__(self, plan: Node, by: Sequence[str]) -> None:
        self._plan = plan
        self._by = by

    @validated
    def agg(self, **aggregates: AnAggregate) -> Table:
        """Return a table of one row per group, keyed by the grouping columns.

        Its rows are, at any time, the aggregates of the rows that the table has.

        A record that changes a row takes the old one out of its group and puts the new one into its
        own: two results, or one where both are the same group. A group without rows is deleted by a
        tombstone. A row with a null among the columns is in no group. A result's timestamp is the
        largest of the records that changed the group.

        Raises ``PlanError`` for unknown columns, types that an aggregate does not take, and an
        aggregate that cannot take rows back.
        Source: Kafka Streams join design, "KTable Aggregate"; spec/aggregate.
        """
        return Table(aggregation(self._plan, self._by, aggregates, None))


class Stream(LooksUp):
    """Keyed records in time. Unlike a table's, a record does not replace the one before it.

    Made by ``from_changelog``, ``from_topic`` and joins. With ``from_changelog``, ``deleted`` is
    true for a record without a value, which joins ignore. Equivalent to a Kafka Streams KStream.
    """

    _stream = True

    @overload
    def join(
        self,
        right: Table,
        *,
        on: On | None = None,
        how: Literal["inner", "left"] | None = None,
        grace: Span | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        align: Span | None = None,
        name: Text | None = None,
    ) -> Stream: ...

    @overload
    def join(
        self,
        right: Stream,
        *,
        on: On | None = None,
        how: Literal["inner", "left", "outer"] | None = None,
        within: AWithin,
        unmatched: Unmatched = "on_close",
        select: Selection | None = None,
        errors: Errors = "fail",
        align: Span | None = None,
        name: Text | None = None,
    ) -> Stream: ...

    @overload
    def join(
        self,
        right: WindowedTable,
        *,
        on: On | None = None,
        how: Literal["left"] | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        window_of: Given,
        name: Text | None = None,
    ) -> Stream: ...

    @validated
    def join(
        self,
        right: Table | Stream | AWindowedTable,
        *,
        on: On | None = None,
        how: How | None = None,
        within: AWithin | None = None,
        unmatched: Unmatched = "on_close",
        grace: Span | None = None,
        select: Selection | None = None,
        errors: Errors = "fail",
        align: Span | None = None,
        window_of: Given | None = None,
        name: Text | None = None,
    ) -> Stream:
        """Join this stream with a table, or with a stream within a window of time.

        ``on``: columns of this stream that equal the right side's key, in its order. Or a mapping
        of this stream's columns to that key's, which are equal. Left out, both keys, which then
        have the same names. Streams and windowed tables are joined by both whole keys.

        **With a table** only this stream's records are answered, each with the table's row as it
        stands when the record is processed. A versioned table answers with the version of the
        record's own time, or none past the table's history. ``how``: ``"inner"`` or ``"left"``. The
        result keeps this stream's key. ``grace``, for versioned tables: a record waits until stream
        time (the largest event time so far) has passed its own by so much. Records then come in
        order of time, late ones at once.

        **With a stream**: ``within=dt.within(before=, after=, grace=)``, and ``how`` may be
        ``"outer"``, too. A pair is emitted once, when its second record arrives, under the larger
        of both times. ``unmatched``: the time at which a record of a preserved side without a match
        comes out:

        - ``"on_close"``: once its window and grace period have passed in stream time; after that it
          joins nothing;
        - ``"eager"``: at once;
        - ``"retract"``: at once, and withdrawn by a ``delete`` when a match comes.

        A record with a null in its key or in ``on`` matches nothing: it is dropped and counted, or
        comes out at once where its side is preserved. One without a value is dropped and counted.

        **With a windowed table**, ``how="left"``: each record beside the window that begins at
        ``window_of``, a timestamp column or a Spark expression over the record. It is the window as
        it stands when the record comes; nulls where there is none, or not any longer. ``within``,
        ``unmatched``, ``grace`` and ``align`` do not apply.

        ``select``, ``errors``, ``name``: as in ``Table.join``. ``align``: let rows that are ahead
        of the other side's stream time wait, in state. They wait until it has caught up, or has
        brought nothing for so long by the clock. So a replay gives what the live run gave. (With
        ``availableNow=True`` they wait for the next run's, unless ``close_at_end=True``.)

        Raises ``PlanError`` for arguments that do not fit. Source: KIP-77; KIP-914; Kafka Streams
        join design; spec/stream_table, spec/stream_stream.
        """
        call = Call(self.plan, right.plan, on, how, select, align, name)
        two = {"within": within, "unmatched": None if unmatched == "on_close" else unmatched}
        if isinstance(right, Windowed):
            others = {"grace": grace, **two}
            return Stream(of_join(window_join(call, window_of=window_of, others=others), errors))
        call.refuse({"window_of": window_of}, "is for a windowed table")
        if isinstance(right, Stream):
            remedy = "A grace period of two streams belongs into within="
            call.refuse({"grace": grace}, "is for joins with a table", remedy)
            return Stream(of_join(stream_join(call, within, unmatched), errors))
        call.refuse(two, "is for joins of two streams")
        return Stream(of_join(stream_table_join(call, grace), errors))

    @validated
    def to_table(self) -> Table:
        """Return the table in which each record replaces the one before it of its key.

        A record without a value deletes its key's row. One with a null in its key is dropped and
        counted.
        """
        return Table(views.as_rows(self.plan))

    @validated
    def key_by(self, *columns: ColumnName, errors: Errors = "fail", **named: Item) -> Stream:
        """Return the records under another key: columns, and Spark expressions under names of their
        own.

        The former key's columns are values. ``errors``: as in ``where``.
        """
        return Stream(views.keyed_by(self.plan, columns, named, errors))

    @validated
    def union(self, *streams: Stream, name: Text | None = None) -> Stream:
        """Return the records of this stream and others with the same columns, in the order of
        arrival.

        Stream time is that of all of them.

        Raises ``PlanError`` where columns differ. Source: Kafka Streams, ``merge``.
        """
        return Stream(union([self.plan, *(one.plan for one in streams)], name))

    @validated
    def deduplicate(self, *, within: Span) -> Stream:
        """Return the records without those that repeat another.

        A record repeats another one of its key that came out before it, if their times are no
        further than ``within`` apart. It is left out and counted (metric ``<name>.repeated``). So
        of a key's records the first to arrive comes out, at once.

        A record that is further than ``within`` behind stream time is left out and counted
        (``<name>.late``). A record that it repeats may be forgotten. One without a value is
        dropped and counted (``<name>.dropped``); one with a null in its key comes out. Records
        repeat each other by their key: ``key_by`` gives them the key that identifies them. Source:
        spec/view.
        """
        return Stream(deduplicated(self.plan, within))

    @validated
    def explode(self, column: ColumnName) -> Stream:
        """Return a record for each element of an array, in its order, with the element in the
        array's place.

        A record whose array is null or empty gives none.
        """
        return Stream(views.exploded(self.plan, column))

    @validated
    def group_by(self, *columns: ColumnName) -> GroupedStream:
        """Group the stream's records by these columns, to be aggregated with ``agg``.

        They are aggregated over all time or, with ``window``, by windows of time.
        """
        return GroupedStream(self.plan, columns)


class GroupedStream(HintedGroups):
    """A stream's records by the columns that they are grouped by."""

    def __init__(self, plan: Node, by: Sequence[str]) -> None:
        self._plan = plan
        self._by = by

    @validated
    def agg(self, **aggregates: AnAggregate) -> Table:
        """Return a table of one row per group, keyed by the grouping columns: aggregates of all
        records.

        Each record gives a result, under the largest timestamp of its group. One with a null among
        the columns is dropped and counted; one without a value is counted by ``count()`` and is
        null to the other aggregates.

        Raises ``PlanError`` for unknown columns and types that an aggregate does not take.
        Source: Kafka Streams join design, "KTable Aggregate"; spec/aggregate.
        """
        return Table(aggregation(self._plan, self._by, aggregates, None))

    @validated
    def window(self, windows: SomeWindows) -> WindowedStream:
        """Group the records by windows of time, too.

        ``windows``: ``dt.tumbling``, ``dt.hopping``, ``dt.sliding`` or ``dt.session``.
        """
        return WindowedStream(self._plan, self._by, windows)


class WindowedStream(HintedGroups):
    """A stream's records by columns and windows of time."""

    def __init__(self, plan: Node, by: Sequence[str], windows: Windows) -> None:
        self._plan = plan
        self._by = by
        self._windows = windows

    @validated
    def agg(self, **aggregates: AnAggregate) -> WindowedTable:
        """Return a table of one row per group and window; the aggregates as in
        ``GroupedStream.agg``.

        A record that comes for a window when it is closed is left out of that window.
        Source: Kafka Streams join design, "Windowed Aggregate"; spec/windowed.
        """
        return WindowedTable(aggregation(self._plan, self._by, aggregates, self._windows))


class WindowedTable(Windowed):
    """A table whose rows belong to a key and a window of time: ``window_start``, ``window_end``.

    It is joined by its key, without a shuffle, and leaves as a table or a stream: it cannot be
    written itself. Equivalent to a windowed KTable of Kafka Streams.
    """

    @overload  # on the same window
    def join(
        self,
        right: WindowedTable,
        *,
        on: On | None = None,
        how: Literal["inner", "left", "outer"] | None = None,
        select: Selection | None = None,
        name: Text | None = None,
    ) -> WindowedTable: ...

    @overload  # on a shifted window
    def join(
        self,
        right: WindowedTable,
        *,
        on: On | None = None,
        how: Literal["left"] | None = None,
        shift: Span,
        select: Selection | None = None,
        name: Text | None = None,
    ) -> WindowedTable: ...

    @overload
    def join(
        self,
        right: Table,
        *,
        on: On | None = None,
        how: Literal["left"] | None = None,
        select: Selection | None = None,
        name: Text | None = None,
    ) -> WindowedTable: ...

    @validated
    def join(
        self,
        right: Table | AWindowedTable,
        *,
        on: On | None = None,
        how: How | None = None,
        shift: Span | None = None,
        select: Selection | None = None,
        name: Text | None = None,
    ) -> WindowedTable:
        """Join this table with another windowed table, or with a table, by the key.

        With a windowed table of the same windows: rows of the same key and window, ``how="inner"``,
        ``"left"`` or ``"outer"``. Or with ``shift``, ``how="left"``: the right side's window that
        begins so much later, ``"-7 days"`` for the same hour a week before.

        With a table, ``how="left"``: the table's row of the key beside every window of it. A record
        of the table gives a result for each window that is retained.

        Both sides' records give results, as in joins of tables: a late record corrects them.
        ``on``: as in ``Stream.join``, the keys without their windows. ``select``, ``name``: as in
        ``Table.join``.

        Raises ``PlanError`` where the sides' keys or windows differ. It is also raised for a window
        that its side would no longer keep (``retention=``).
        Source: Kafka Streams join design, "WTable-KTable", "WTable-WTable"; spec/windowed.
        """
        call = Call(self.plan, right.plan, on, how, select, label=name)
        return WindowedTable(window_join(call, shift=shift))

    @validated
    def to_table(self, *, windows: WindowMode = "on_change") -> Table:
        """Return the table whose key is the key and the window.

        ``windows="on_close"``: only each window's last row, once, when stream time has reached its
        end and the grace period. It comes even if its key has no record then.
        """
        return Table(as_table(self.plan, windows))

    @validated
    def to_stream(
        self,
        *,
        key: ColumnNames | None = None,
        select: Selection | None = None,
        windows: WindowMode = "on_change",
    ) -> Stream:
        """Return the windowed table's changes as a stream, by default under its key.

        The window is then among the values.

        ``select``: the stream's columns, made of those of key, window and row. They are names or
        Spark expressions, in a mapping or a list. ``key``: which of them are its key. A deleted row
        is a record without a value. ``windows``: as in ``to_table``.

        Raises ``PlanError`` for unknown columns. Source: Kafka Streams join design, "WTable".
        """
        return Stream(as_stream(self.plan, windows, key, select))
