"""``Stream``: records that stand for themselves, their joins, the table they become, and the
``WindowedTable`` that they are aggregated in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.arguments import ColumnName, ColumnNames, Text, validated
from dovetail.errors import PlanError
from dovetail.laws.stream_join import Unmatched
from dovetail.laws.table_join import How
from dovetail.plan.aggregates import AnAggregate
from dovetail.plan.aggregation import aggregation
from dovetail.plan.joins import Call
from dovetail.plan.matching import On
from dovetail.plan.nodes import Node, Source
from dovetail.plan.reading import Given
from dovetail.plan.select import Selection
from dovetail.plan.spans import Span
from dovetail.plan.stream_join import AWithin, stream_join
from dovetail.plan.stream_table_join import stream_table_join
from dovetail.plan.unwindowed import WindowMode, as_stream, as_table
from dovetail.plan.window_join import window_join
from dovetail.plan.windows import SomeWindows, Windows
from dovetail.table import Table
from dovetail.topology import AWindowedTable, Topology, Windowed


class Stream(Topology):
    """Keyed records in time. Unlike a table's, a record does not replace the one before it.

    Made by ``from_changelog``, where ``deleted`` is true for a record without a value, which joins
    ignore, ``from_topic`` and joins. The seeds' KStream.
    """

    _stream = True

    @validated
    def join(
        self,
        right: Table | Stream | AWindowedTable,
        *,
        on: On | None = None,
        how: How = "inner",
        within: AWithin | None = None,
        unmatched: Unmatched = "on_close",
        grace: Span | None = None,
        select: Selection | None = None,
        align: Span | None = None,
        window_of: Given | None = None,
        name: Text | None = None,
    ) -> Stream:
        """A join with a table, or with a stream within a window of time.

        ``on``: columns of this stream that equal the right side's key, in its order; or a mapping
        of this stream's columns to that key's, which are equal; left out, both keys, which then
        have the same names. Streams and windowed tables are joined by both whole keys.

        **With a table** only this stream's records are answered, each with the table's row as it
        stands when the record is processed; of a versioned table, with the version of the record's
        own time, or none past the table's history. ``how``: ``"inner"`` or ``"left"``. The
        result keeps this stream's key. ``grace``, for versioned tables: a record waits until stream
        time has passed its own by so much; records then come in order of time, late ones at once.

        **With a stream**: ``within=dt.within(before=, after=, grace=)``, and ``how`` may be
        ``"outer"``, too. A pair is emitted once, when its second record arrives, under the larger
        of both times. ``unmatched`` says when a record of a preserved side without a match comes
        out: ``"on_close"``, once its window and grace have passed in stream time, after which it
        joins nothing; ``"eager"``, at once; ``"retract"``, at once, and withdrawn by a ``delete``
        when a match comes.

        A record with a null in its key or in ``on`` matches nothing: it is dropped and counted, or
        comes out at once where its side is preserved. One without a value is dropped and counted.

        **With a windowed table**, ``how="left"``: each record beside the window that begins at
        ``window_of``, a timestamp column or a Spark expression over the record, as the window
        stands when the record comes; nulls where there is no such window (any longer). ``within``,
        ``unmatched``, ``grace`` and ``align`` do not apply.

        ``select``, ``name``: as in ``Table.join``. ``align``: let rows that are
        ahead of the other side's stream time wait, in state, until it has caught up or has brought
        nothing for so long by the clock; so that a replay gives what the live run gave. (With
        ``availableNow=True`` they wait, at the end of the data, for the next run's.)

        Raises ``PlanError`` for arguments that do not fit. Source: KIP-77; KIP-914; Kafka Streams
        join design; spec/stream_table, spec/stream_stream.
        """
        call = Call(self.plan, right.plan, on, how, select, align, name)
        eager = None if unmatched == "on_close" else unmatched
        two = {"within": within, "unmatched": eager}
        if isinstance(right, Windowed):
            others = {"grace": grace, **two}
            return Stream(window_join(call, window_of=window_of, others=others))
        call.refuse({"window_of": window_of}, "is for a windowed table")
        if isinstance(right, Stream):
            remedy = "A grace period of two streams belongs into within="
            call.refuse({"grace": grace}, "is for joins with a table", remedy)
            return Stream(stream_join(call, within, unmatched))
        call.refuse(two, "is for joins of two streams")
        return Stream(stream_table_join(call, grace))

    @validated
    def to_table(self) -> Table:
        """The table in which each record replaces the one before it of its key.

        A record without a value deletes its key's row.
        """
        if not isinstance(self.plan, Source):
            raise PlanError(
                self.plan.name,
                "the result of a join does not become a table here",
                "Write it to a topic or a table and read it from there",
            )
        return Table(replace(self.plan, stream=False))

    @validated
    def group_by(self, *columns: ColumnName) -> GroupedStream:
        """The stream's records by these columns, to be aggregated with ``agg``, over all time or,
        with ``window``, by windows of time.
        """
        return GroupedStream(self.plan, columns)


class GroupedStream:
    """A stream's records by the columns that they are grouped by."""

    def __init__(self, plan: Node, by: Sequence[str]) -> None:
        self._plan = plan
        self._by = by

    @validated
    def agg(self, **aggregates: AnAggregate) -> Table:
        """A table of one row per group, keyed by the columns it is grouped by: the aggregates of
        all records so far.

        Each record gives a result, under the largest timestamp of its group. One with a null among
        the columns is dropped and counted; one without a value is counted by ``count()`` and is
        null to the other aggregates.

        Raises ``PlanError`` for unknown columns and types that an aggregate does not take.
        Source: Kafka Streams join design, "KTable Aggregate"; spec/aggregate.
        """
        return Table(aggregation(self._plan, self._by, aggregates, None))

    @validated
    def window(self, windows: SomeWindows) -> WindowedStream:
        """The records by windows of time, too: ``dt.tumbling``, ``dt.hopping``, ``dt.sliding`` or
        ``dt.session``.
        """
        return WindowedStream(self._plan, self._by, windows)


class WindowedStream:
    """A stream's records by columns and windows of time."""

    def __init__(self, plan: Node, by: Sequence[str], windows: Windows) -> None:
        self._plan = plan
        self._by = by
        self._windows = windows

    @validated
    def agg(self, **aggregates: AnAggregate) -> WindowedTable:
        """A table of one row per group and window; the aggregates as in ``GroupedStream.agg``.

        A record that comes for a window when it is closed is left out of that window.
        Source: Kafka Streams join design, "Windowed Aggregate"; spec/windowed.
        """
        return WindowedTable(aggregation(self._plan, self._by, aggregates, self._windows))


class WindowedTable(Windowed):
    """A table whose rows belong to a key and a window of time: ``window_start``, ``window_end``.

    It is joined by its key, without a shuffle, and leaves as a table or a stream: it cannot be
    written itself. The seeds' WTable.
    """

    @validated
    def join(
        self,
        right: Table | AWindowedTable,
        *,
        on: On | None = None,
        how: How = "inner",
        shift: Span | None = None,
        select: Selection | None = None,
        name: Text | None = None,
    ) -> WindowedTable:
        """A join with another windowed table, or with a table, by the key.

        With a windowed table of the same windows: rows of the same key and window, ``how="inner"``,
        ``"left"`` or ``"outer"``; or with ``shift``, ``how="left"``: the right side's window that
        begins so much later, ``"-7 days"`` for the same hour a week before. With a table,
        ``how="left"``: the table's row of the key beside every window of it; a record of the table
        gives a result for each window that is retained.

        Both sides' records give results, as in joins of tables: what comes late corrects them.
        ``on``: as in ``Stream.join``, the keys without their windows. ``select``, ``name``: as in
        ``Table.join``.

        Raises ``PlanError`` where the sides' keys or windows differ, and where a window would be
        asked for that its side no longer keeps (``retention=``).
        Source: Kafka Streams join design, "WTable-KTable", "WTable-WTable"; spec/windowed.
        """
        call = Call(self.plan, right.plan, on, how, select, label=name)
        return WindowedTable(window_join(call, shift=shift))

    @validated
    def to_table(self, *, windows: WindowMode = "on_change") -> Table:
        """The table whose key is the key and the window.

        ``windows="on_close"``: only each window's last row, once, when stream time has reached its
        end and the grace period, whether or not its key has a record then.
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
        """The stream of the windowed table's changes, by default under its key, the window among
        the values.

        ``select``: the stream's columns, made of those of key, window and row: names, or Spark
        expressions, in a mapping or a list; ``key``: which of them are its key. A row that is
        deleted is a record without a value. ``windows``: as in ``to_table``.

        Raises ``PlanError`` for unknown columns. Source: Kafka Streams join design, "WTable".
        """
        return Stream(as_stream(self.plan, windows, key, select))
