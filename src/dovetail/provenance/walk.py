"""The walk from a row of a result down to the rows of inputs that make it.

Each node turns the key of its row into the keys of its inputs' rows. Rows come from the stores
that the stages keep, so the walk reads only a few rows of each.

| node | rows of its inputs |
|---|---|
| join of tables by key | the rows with the same key |
| join by foreign key | the left row, and the right row that it refers to |
| aggregate of a table | the rows of the group |
| view | the viewed row, if the view shows its key |
| union of tables | the row of the table that has the key |
| exploded table | the row with the array |
| join of windowed tables | the rows of the same window, of a window beside it, or of the key |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import Any

from dovetail.base.columns import WINDOW_END, foreign_name
from dovetail.base.text_cells import microseconds_of
from dovetail.physical.specs.by_key import InOrderLaw
from dovetail.physical.specs.foreign_key import ForeignKeyJoinLaw
from dovetail.physical.stage import Stage
from dovetail.plan.joins.foreign_key_join import ForeignKeyJoin
from dovetail.plan.joins.join_call import Materialized
from dovetail.plan.joins.stream_join import StreamJoin
from dovetail.plan.joins.stream_table_join import StreamTableJoin
from dovetail.plan.joins.table_join import TableJoin
from dovetail.plan.joins.window_join import WindowJoin
from dovetail.plan.nodes import Derived, Entry, Node, Source, right_key_name
from dovetail.plan.transforms.aggregation import Aggregation
from dovetail.plan.transforms.expire import Expired
from dovetail.plan.transforms.explode import Exploded
from dovetail.plan.transforms.fill import Filled
from dovetail.plan.transforms.transact import Transacted
from dovetail.plan.transforms.union import Union
from dovetail.plan.transforms.unwindow import Unwindowed
from dovetail.plan.views import View
from dovetail.provenance.entries import Key, explanation_of, store_of, stores_of, unknown_row
from dovetail.provenance.explanation import RowExplanation, columns_in_words, in_words
from dovetail.provenance.group_records import GroupRecords, group_records
from dovetail.provenance.stored_rows import StoredRow, in_order_of, moment
from dovetail.provenance.stream_results import StreamResults
from dovetail.provenance.view_keys import excluded
from dovetail.provenance.window_keys import renamed, right_of_window


@dataclass(frozen=True)
class Walk(StreamResults):
    """The explanations of rows of one topology, from one state."""

    def row(self, node: Node, key: Key, stages: Sequence[Stage] = ()) -> RowExplanation:
        """Explain the row of a node with a key, or that there is none.

        ``key``: a value for each of the node's key columns, by name. ``stages``: those that compute
        the node; by default they are looked for.
        """
        stages = stages or self._stages_of(node)
        return (
            self.entry(stages, node, key)
            if isinstance(node, Entry)
            else self._of(node, key, stages)
        )

    def known(
        self, node: Node, key: Key, row: StoredRow, stages: Sequence[Stage] = ()
    ) -> RowExplanation:
        """Explain a row of a node from what a stage that reads the node has stored of it.

        The presence is always ``"row"``, with the time and the values of ``row``. Values that are
        not stored, and the rows below, come from the node's own stages. A union names its part that
        can have the key, or no part if several can. ``key``: a value for each of the node's key
        columns, by name. ``stages``: those that compute the node; by default they are looked for.
        """
        values = {name: row.values[name] for name in node.values.names if name in row.values}
        if isinstance(node, Union):
            parts = [part for part in node.parts if not _is_excluded(part, key)]
            inputs = tuple(self.stored_row(part, row) for part in parts[: len(parts) == 1])
            names = ", ".join(part.name for part in parts)
            reason = "" if inputs else f"the state does not tell which of {names} has the row"
            below = explanation_of(node, key, "row", inputs=inputs, reason=reason)
        else:
            # The stage that reads the row has stored what it needs of it.
            below = replace(self, expressions=None).row(node, key, stages)
        return replace(below, presence="row", values={**below.values, **values}, time=row.time)

    def _stages_of(self, node: Node) -> list[Stage]:
        """Return the stages that compute a node, in order: alone, or within a larger node. Empty
        for an input.
        """
        alone = [stage for stage in self.stages if stage.node == node]
        return alone or [stage for stage in self.stages if stage.computes(node)]

    # Nodes.

    def _part(self, node: Node, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain the row with this key of a node's input, or that there is none. ``stages``: those
        that compute the node, and so perhaps the input.
        """
        if isinstance(node, Entry):
            return self.entry(stages, node, key)
        return self._of(node, key, stages)

    @singledispatchmethod
    def _of(self, node: Node, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain the row of a node with this key, or that there is none. ``stages``: those that
        compute the node.

        By default the answer is that the state does not tell.
        """
        return unknown_row(node, key, f"the state of {node.summary!r} does not name its rows")

    @_of.register
    def _(self, node: TableJoin, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of a join of tables by key: by the rows with the same key on both sides."""
        right = dict(zip(node.right.key.names, key.values(), strict=True))
        left = dict(zip(node.left.key.names, key.values(), strict=True))
        sides = self._part(node.left, left, stages), self._part(node.right, right, stages)
        return self.joined(node, key, sides)

    @_of.register
    def _(self, node: ForeignKeyJoin, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of a join by foreign key: by the left row and the right row that it refers
        to.
        """
        primary = {name: key[name] for name in node.left.key.names}
        theirs = {
            n: key[right_key_name(n)] for n in node.right.key.names if right_key_name(n) in key
        }
        if not stages or not isinstance(stages[-1].fragment.last.law, InOrderLaw):
            return self._of_star(node, key, stages)
        answering = _before(stages[-1])
        subscribing = _before(answering)
        if all(value is None for value in primary.values()) and theirs:
            return self._alone(node, key, theirs, subscribing, answering)
        routes = self.rows(subscribing, _first_store(subscribing), primary)
        if not routes:
            return self.joined(node, key, (self.no_row(node.left, primary),))
        left = self._left(node, primary, routes[0], answering)
        foreign = [routes[0].values[foreign_name(n)] for n in range(len(node.right.key))]
        return self._referring(node, key, left, foreign, [answering])

    def _of_star(self, node: ForeignKeyJoin, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain the row with this key of a join that shares its stages with other joins of the
        same table.
        """
        primary = {name: key[name] for name in node.left.key.names}
        inner = node.left.node if isinstance(node.left, Derived) else None
        shared = any(inner in stage.within for stage in stages)
        left = (
            self._of(inner, primary, stages) if shared else self.entry(stages, node.left, primary)
        )
        row = {**left.key, **left.values}
        foreign = [row[name] for name in node.on if isinstance(name, str) and name in row]
        if left.presence != "row":
            return self.joined(node, key, (left,))
        if len(foreign) < len(node.on):
            return unknown_row(
                node, key, f"the state does not name what {node.left.name} refers to"
            )
        return self._referring(node, key, left, foreign, stages)

    def _referring(
        self,
        node: ForeignKeyJoin,
        key: Key,
        left: RowExplanation,
        foreign: Sequence[Any],
        stages: Sequence[Stage],
    ) -> RowExplanation:
        """Explain the result of a left row with this foreign key. ``stages``: those that store the
        right rows.
        """
        referred = dict(zip(node.right.key.names, foreign, strict=True))
        refers = f"{node.left.name} with {columns_in_words(left.key)} refers to"
        if any(value is None for value in foreign):
            on = " or ".join(part if isinstance(part, str) else "foreign key" for part in node.on)
            nothing = f"{refers} no {node.right.name}, for its {on} is null"
            right = explanation_of(node.right, referred, "none", reason=nothing)
            right = replace(right, is_input=isinstance(node.right, Source))
            return self.joined(node, key, (left, right), missing=nothing)
        right = self.entry(stages, node.right, referred)
        there = f"{node.right.name} with {columns_in_words(referred)}"
        missing = f"{refers} {there}, and {right.reason}"
        return self.joined(node, key, (left, right), missing=missing)

    def _left(
        self, node: ForeignKeyJoin, key: Key, route: StoredRow, answering: Stage
    ) -> RowExplanation:
        """Explain the left row with this key of a foreign key join, which is there. ``route``: its
        stored foreign key. ``answering``: the stage that stores left rows. A row that it does not
        store is explained by the rows below it.
        """
        rows = self.rows(answering, ForeignKeyJoinLaw.SUBSCRIPTIONS, key)
        if rows:
            return self.stored_row(node.left, rows[0])
        # A row that refers to nothing is of no use to an inner join, so it is not stored.
        below = self.below(node.left, key)
        return replace(below, presence="row", time=route.time)

    def _alone(
        self,
        node: ForeignKeyJoin,
        key: Key,
        theirs: Key,
        subscribing: Stage,
        answering: Stage,
    ) -> RowExplanation:
        """Explain a right row that comes out where no left row refers to it. ``key``: that of the
        result, ``theirs``: that of the right row.

        ``subscribing``, ``answering``: the join's stages by primary key and by foreign key. If a
        left row refers to the right row, the result has no such row.
        """
        right = self.entry([answering], node.right, theirs)
        if right.presence != "row":
            return explanation_of(node, key, "none", reason=right.reason, inputs=(right,))
        foreign = {foreign_name(n): value for n, value in enumerate(theirs.values())}
        routes = self.rows(subscribing, _first_store(subscribing), foreign)
        if not routes:
            left = explanation_of(node.left, {}, "none")
            return replace(self.joined(node, key, (left, right)), inputs=(right,))
        primary = {name: routes[0].values[name] for name in node.left.key.names}
        left = self._left(node, primary, routes[0], answering)
        reason = f"{node.left.name} with {columns_in_words(primary)} refers to it, so it is joined"
        return explanation_of(node, key, "none", reason=reason, inputs=(left, right))

    @_of.register
    def _(self, node: Aggregation, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of an aggregate: by the rows of the group, or the records if they are
        known. At most ``members`` are named. If no stage is given, the answer is that it is not
        known.
        """
        group = {name: key[name] for name in node.by}
        if not stages:
            return unknown_row(node, key, f"{node.name} is computed within another step")
        store = store_of(stages[-1], node.name, ("rows",), key)
        rows = None if store is None else self.rows(stages[-1], store, key)
        if node.input.stream:
            return self._of_stream(node, key, rows, stages)
        retracting = _before(stages[-1])
        rows_of_groups = self.rows(retracting, _first_store(retracting), group)
        found = in_order_of(rows_of_groups, node.input.key.names)
        members = tuple(self.stored_row(node.input, row) for row in found[: self.members])
        if not found:
            reason = f"{node.input.name} has no row with {columns_in_words(group)}"
            return explanation_of(node, key, "none", reason=reason)
        more = len(found) - len(members)
        reason = f"{more:,} more rows are not named" if more else ""
        values = {} if not rows else {n: rows[0].values[n] for n in node.values.names}
        times = [row.time for row in (rows or found) if row.time is not None]
        return explanation_of(
            node, key, "row", values=values, time=max(times), reason=reason, inputs=members
        )

    def _of_stream(
        self,
        node: Aggregation,
        key: Key,
        rows: Sequence[StoredRow] | None,
        stages: Sequence[Stage],
    ) -> RowExplanation:
        """Explain the group with this key of a stream's records, of which only the aggregates are
        stored. ``rows``: the stored aggregates, an empty sequence for no group, None if they cannot
        be looked up.
        """
        fixed = node.windows is None or node.windows.fixed
        # Records within a former session may belong to a longer one by now.
        all_records = self.records if fixed or rows else None
        records = None if all_records is None else group_records(all_records, node, key)
        if records is not None:
            return self._of_records(node, key, rows, records)
        gone = f"the records of {node.input.name} are not stored, only what they come to"
        if rows:
            values = {name: rows[0].values[name] for name in node.values.names}
            return explanation_of(node, key, "row", values=values, time=rows[0].time, reason=gone)
        group = columns_in_words(key)
        if rows is not None and node.windows is not None and stages:
            due_us, now_us = self._due_us(node, key, stages)
            if now_us is not None and now_us >= due_us:
                closed = f"its window closed at {in_words(moment(due_us))} and may be gone"
                return unknown_row(node, key, closed)
        if rows is None:
            return unknown_row(node, key, gone)
        had = "had no record" if fixed else "has no session"
        return explanation_of(node, key, "none", reason=f"{node.input.name} {had} with {group}")

    def _of_records(
        self,
        node: Aggregation,
        key: Key,
        rows: Sequence[StoredRow] | None,
        records: GroupRecords,
    ) -> RowExplanation:
        """Explain the group with this key by its ``records``, of which the first ``members`` are
        named. ``rows``: its stored aggregates, None or empty for none.
        """
        taken = records.taken
        if not taken:
            none = f"{node.input.name} had no record with {columns_in_words(key)}"
            return explanation_of(node, key, "none", reason=records.late or none)
        members = tuple(self.stored_record(node.input, row) for row in taken[: self.members])
        more = len(taken) - len(members)
        values = {name: rows[0].values[name] for name in node.values.names} if rows else {}
        reasons = [f"{more:,} more records are not named"] if more else []
        reasons += [] if rows else ["what they come to is not stored"]
        reasons += [records.late] if records.late else []
        return explanation_of(
            node,
            key,
            "row",
            values=values,
            time=max(row.time for row in taken if row.time is not None),
            reason="; ".join(reasons),
            inputs=members,
        )

    @_of.register(Materialized)
    @_of.register(Expired)
    @_of.register(Filled)
    @_of.register(Transacted)
    def _(self, node: Any, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of an operator that keeps keys: by the row of its input with the same
        key.
        """
        below = self._part(node.node, key, stages)
        reason = below.reason
        if isinstance(node, Expired) and below.presence == "none":
            reason = f"{reason}, or it has expired"
        values = {name: below.values[name] for name in node.values.names if name in below.values}
        return explanation_of(
            node,
            key,
            below.presence,
            values=values,
            time=below.time,
            reason=reason,
            inputs=(below,),
        )

    @_of.register
    def _(self, node: Exploded, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of an exploded table: by the row with the array. There is none if the array
        lacks the element.
        """
        *parent, element = key.values()
        below = self._part(node.node, dict(zip(node.node.key.names, parent, strict=True)), stages)
        if below.presence != "row":
            return explanation_of(node, key, below.presence, reason=below.reason, inputs=(below,))
        array = below.values.get(node.column) or []
        values = {name: below.values[name] for name in node.values.names if name in below.values}
        if node.position is None:
            present = element in array
        else:
            present = 0 <= element < len(array)
            values |= {node.column: array[element]} if present else {}
        if not present:
            what = columns_in_words({node.key.names[-1]: element})
            reason = f"{node.column} of this row has no element with {what}"
            return explanation_of(node, key, "none", reason=reason, inputs=(below,))
        return explanation_of(node, key, "row", values=values, time=below.time, inputs=(below,))

    @_of.register
    def _(self, node: Union, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of a union of tables: by the row of the one table that has the key. It is
        not known if no table is known to have it, and one of them does not tell.
        """
        parts = [self._part(part, key, stages) for part in node.parts]
        present = [part for part in parts if part.presence == "row"]
        if present:
            (part,) = present
            return explanation_of(
                node, key, "row", values=part.values, time=part.time, inputs=(part,)
            )
        unknown = tuple(part for part in parts if part.presence == "unknown")
        if unknown:
            return replace(unknown_row(node, key, unknown[0].reason), inputs=unknown)
        names = ", ".join(part.name for part in node.parts)
        reason = f"none of {names} has a row with {columns_in_words(key)}"
        return explanation_of(node, key, "none", reason=reason, inputs=tuple(parts))

    # Windows and streams.

    @_of.register
    def _(self, node: Unwindowed, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of a windowed table read as a table: by the row of the window. A row that
        is final does not exist before its window closes.
        """
        windowed = node.input.node
        origins = zip(node.row.names, node.columns, strict=True)
        shown = {
            origin: key[name] for name, origin in origins if isinstance(origin, str) and name in key
        }
        if not {*windowed.key.names} <= {*shown}:
            return unknown_row(node, key, f"a row of {windowed.name} is known by its window only")
        below = self._of(windowed, {name: shown[name] for name in windowed.key.names}, stages)
        row = {**below.key, **below.values}
        origins = zip(node.values.names, node.columns[len(node.key) :], strict=True)
        values = {name: row[o] for name, o in origins if isinstance(o, str) and o in row}
        explained = explanation_of(
            node,
            key,
            below.presence,
            values=values,
            time=below.time,
            reason=below.reason,
            inputs=(below,),
        )
        due_us, now_us = self._due_us(windowed, shown, stages)
        if node.final and below.presence == "row" and (now_us is None or now_us < due_us):
            reason = f"it waits until stream time passes {in_words(moment(due_us))}"
            return replace(explained, presence="none", values={}, time=None, reason=reason)
        return explained

    def _due_us(self, windowed: Node, row: Key, stages: Sequence[Stage]) -> tuple[int, int | None]:
        """Return the stream time from which the window in ``row`` is closed, and the stream time by
        which it closes: that of the slowest input, both in microseconds. The latter is None before
        the first row of an input, and if none of ``stages`` stores the windows. ``row``: columns by
        name, at least the end of the window.
        """
        windows = windowed.windows
        assert windows is not None
        due_us = microseconds_of(row[WINDOW_END]) + windows.wait_us + (not windows.fixed)
        times_us = [
            self.reader.stream_times_us(stage)[clock]
            for stage in stages
            for store in stage.fragment.stores.values()
            for clock in (store.clocks if store.of == windowed.name else ())
        ]
        known_us = [time_us for time_us in times_us if time_us is not None]
        return due_us, min(known_us) if len(known_us) == len(times_us) and times_us else None

    @_of.register
    def _(self, node: WindowJoin, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of a join of windowed tables: by the left row, and the right row of the
        same window or of one beside it.
        """
        left = self._windowed(node.left, renamed(key, node.left.key.names), stages)
        if node.meets_by_key and not node.left.stream:
            right = self._windowed(node.right, renamed(key, node.right.key.names), stages)
            return self.joined(node, key, (left, right))
        if left.presence != "row":
            return self.joined(node, key, (left,))
        match = right_of_window(node, {**key, **left.key, **left.values})
        if match is None:
            return unknown_row(node, key, "the window that the row looks in is not known")
        if None in match.values():
            reason = f"{node.left.name} looks in no window"
            return self.joined(
                node, key, (left, explanation_of(node.right, match, "none")), missing=reason
            )
        return self.joined(node, key, (left, self._windowed(node.right, match, stages)))

    def _windowed(self, entry: Entry, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain the row with this key of ``entry``, a side of a join of windowed tables, which
        its stage may compute, too.

        The join keeps rows longer than the windows are open, so its own stores are asked first.
        """
        if entry.windows is None:
            return self.entry(stages, entry, key)
        assert isinstance(entry, Derived)
        for stage in stages:
            for name in stores_of(stage, entry.name, ("rows",), key):
                rows = self.rows(stage, name, key)
                if rows:
                    return self.known(entry.node, key, rows[0], stages)
        return self._of(entry.node, key, stages)

    @_of.register
    def _(self, node: StreamTableJoin, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a result of a stream joined with a table: by the record and the table's row.

        ``key`` needs the record's columns that the table is joined by, since records are not
        stored. Without them the answer is that the row is not known.
        """
        left = self._part(node.left, key, stages)
        record = {**key, **left.key, **left.values}
        names = [name for name in node.on if name not in record]
        if names:
            return unknown_row(
                node, key, f"records are not stored; give the record's {', '.join(names)}"
            )
        match = dict(zip(node.right.key.names, [record[name] for name in node.on], strict=True))
        if any(value is None for value in match.values()):
            reason = f"{', '.join(node.on)} is null"
            right = explanation_of(node.right, match, "none", reason=reason)
        else:
            right = self._part(node.right, match, stages)
        return self.joined(node, {n: record.get(n) for n in node.key.names}, (left, right))

    @_of.register
    def _(self, node: StreamJoin, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain results of a join of two streams (``StreamResults``)."""
        return self.stream_results(node, key, stages)


def _before(stage: Stage) -> Stage:
    """Return the stage before ``stage`` that is of the same node and sends it messages. There must
    be one.
    """
    return next(
        port.origin
        for port in stage.ports
        if isinstance(port.origin, Stage) and port.origin.node == stage.node
    )


def _first_store(stage: Stage) -> str:
    """Return the name of the first store of a stage, which has at least one. It has the rows of the
    first input.
    """
    return next(iter(stage.fragment.stores))


def _is_excluded(entry: Entry, key: Key) -> bool:
    """Return True if an input cannot have a row with this key, as the key names another table."""
    return isinstance(entry, View) and excluded(entry, key)
