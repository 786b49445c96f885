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

import pyarrow as pa

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
from dovetail.plan.types.arrow import arrow_schema
from dovetail.plan.views import View
from dovetail.provenance.entries import Key, explanation_of, store_of, stores_of, unknown_row
from dovetail.provenance.explanation import RowExplanation, columns_in_words, readable_text
from dovetail.provenance.group_records import GroupRecords, group_records
from dovetail.provenance.stored_rows import StoredRow, matching, moment, sorted_rows
from dovetail.provenance.stream_results import StreamResults
from dovetail.provenance.view_keys import has_other_constant
from dovetail.provenance.window_keys import key_of_right_window, key_under_names


@dataclass(frozen=True)
class Walk(StreamResults):
    """The explanations of rows of one topology, from one state."""

    def row(self, node: Node, key: Key, stages: Sequence[Stage] = ()) -> RowExplanation:
        """Return the explanation of a node's row with a key: the presence ``"row"`` if there is
        one, ``"none"`` if not, ``"unknown"`` if the stores do not tell. It holds for the time
        ``at_us`` of this object, None for now.

        ``key``: a value for each of the node's key columns, by name. ``stages``: those that compute
        the node, or that read it if it is an input of stages; empty to look for them. If they do
        not store the row, the explanation is derived from the node's inputs. A source's row is
        ``"unknown"`` then.
        """
        stages = stages or self._stages_of(node)
        return (
            self.explain_input_row(stages, node, key)
            if isinstance(node, Entry)
            else self._explain(node, key, stages)
        )

    def explain_stored_result(
        self, node: Node, key: Key, row: StoredRow, stages: Sequence[Stage] = ()
    ) -> RowExplanation:
        """Explain a row of a node from ``row``, which a stage that reads the node has stored of it.

        The presence is always ``"row"``, with the time and the values of ``row``. Values that
        ``row`` lacks, and the rows that it is made of, come from the node's own stages. A union's
        explanation has the one table of the union that can have the key, or none of them if several
        can. ``key``: a value for each of the node's key columns, by name. ``stages``: those that
        compute the node; empty to look for them.
        """
        values = {name: row.values[name] for name in node.values.names if name in row.values}
        if isinstance(node, Union):
            parts = [part for part in node.parts if not _is_of_other_part(part, key)]
            inputs = tuple(self.explain_store_row(part, row) for part in parts[: len(parts) == 1])
            names = ", ".join(part.name for part in parts)
            reason = "" if inputs else f"the state does not tell which of {names} has the row"
            below = explanation_of(node, key, "row", inputs=inputs, reason=reason)
        else:
            # The stage that reads the row has stored what it needs of it.
            below = replace(self, expressions=None).row(node, key, stages)
        return replace(below, presence="row", values={**below.values, **values}, time=row.time)

    def _stages_of(self, node: Node) -> list[Stage]:
        """Return the stages whose own node is ``node``, in the order of the plan. Without such a
        stage, return those that compute ``node`` as a part of a larger node, or that read it as an
        input. Empty if there are none either.
        """
        alone = [stage for stage in self.stages if stage.node == node]
        return alone or [stage for stage in self.stages if stage.computes(node)]

    # Nodes.

    def _explain_input(self, node: Node, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain the row with this key of ``node``, an input of another node, or that there is
        none.

        ``key``: a value for each key column of ``node``, by name. ``stages``: those that compute
        the other node. They store its inputs, or compute ``node`` as well.
        """
        if isinstance(node, Entry):
            return self.explain_input_row(stages, node, key)
        return self._explain(node, key, stages)

    @singledispatchmethod
    def _explain(self, node: Node, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain the row of a node with this key, or that there is none. ``stages``: those that
        compute the node.

        One method is registered for each type of node. For all other types the explanation is
        ``"unknown"``.
        """
        return unknown_row(node, key, f"the state of {node.summary!r} does not name its rows")

    @_explain.register
    def _(self, node: TableJoin, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of a join of tables by key: by the rows with the same key values on both
        sides. Their presences and the kind of the join decide the presence. Key columns are taken
        by position, since the sides may name them differently. ``key``: a value for each key column
        of ``node``, by name, in order. ``stages``: those that compute it.
        """
        right = dict(zip(node.right.key.names, key.values(), strict=True))
        left = dict(zip(node.left.key.names, key.values(), strict=True))
        sides = (
            self._explain_input(node.left, left, stages),
            self._explain_input(node.right, right, stages),
        )
        return self.explain_joined_row(node, key, sides)

    @_explain.register
    def _(self, node: ForeignKeyJoin, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of a join by foreign key: by the left row with the left table's key, and
        the right row that it refers to. Their presences and the kind of the join decide the
        presence. If all columns of the left key are null, the result is that of a right row without
        a left row.

        ``key``: a value for each key column of ``node``, by name: those of the left table, then the
        right key's, under names of their own, if right rows may stay alone. ``stages``: those that
        compute it.
        """
        primary = {name: key[name] for name in node.left.key.names}
        theirs = {
            n: key[right_key_name(n)] for n in node.right.key.names if right_key_name(n) in key
        }
        if not stages or not isinstance(stages[-1].fragment.last.law, InOrderLaw):
            return self._explain_shared_join(node, key, stages)
        answering = _sending_stage(stages[-1])
        subscribing = _sending_stage(answering)
        if all(value is None for value in primary.values()) and theirs:
            return self._explain_unmatched_right_row(node, key, theirs, subscribing, answering)
        routes = self.rows(subscribing, _first_store_name(subscribing), primary)
        if not routes:
            return self.explain_joined_row(
                node, key, (self.explain_missing_row(node.left, primary),)
            )
        left = self._explain_left_row(node, primary, routes[0], answering)
        foreign = [routes[0].values[foreign_name(n)] for n in range(len(node.right.key))]
        return self._explain_reference(node, key, left, foreign, [answering])

    def _explain_shared_join(
        self, node: ForeignKeyJoin, key: Key, stages: Sequence[Stage]
    ) -> RowExplanation:
        """Explain the row with this key of a foreign key join whose stages also compute other joins
        of the same left table.

        ``key``: a value for each key column of the join. ``stages``: those that compute the join.
        If the left row is ``"none"`` or ``"unknown"``, so is the result, and no right row is looked
        for. The explanation is ``"unknown"``, too, if the foreign key is not among the known
        columns of the left row.
        """
        primary = {name: key[name] for name in node.left.key.names}
        inner = node.left.node if isinstance(node.left, Derived) else None
        shared = any(inner in stage.within for stage in stages)
        left = (
            self._explain(inner, primary, stages)
            if shared
            else self.explain_input_row(stages, node.left, primary)
        )
        row = {**left.key, **left.values}
        foreign = [row[name] for name in node.on if isinstance(name, str) and name in row]
        if left.presence != "row":
            return self.explain_joined_row(node, key, (left,))
        if len(foreign) < len(node.on):
            return unknown_row(
                node, key, f"the state does not name what {node.left.name} refers to"
            )
        return self._explain_reference(node, key, left, foreign, stages)

    def _explain_reference(
        self,
        node: ForeignKeyJoin,
        key: Key,
        left: RowExplanation,
        foreign: Sequence[Any],
        stages: Sequence[Stage],
    ) -> RowExplanation:
        """Explain the result of a left row, from the right row that it refers to. If there is no
        such right row, the presence depends on the kind of the join.

        ``key``: that of the result. ``left``: the explanation of the left row, which is there.
        ``foreign``: the left row's foreign key, in the order of the right key; a null in it refers
        to nothing. ``stages``: those that store the right rows.
        """
        referred = dict(zip(node.right.key.names, foreign, strict=True))
        refers = f"{node.left.name} with {columns_in_words(left.key)} refers to"
        if any(value is None for value in foreign):
            on = " or ".join(part if isinstance(part, str) else "foreign key" for part in node.on)
            nothing = f"{refers} no {node.right.name}, for its {on} is null"
            right = explanation_of(node.right, referred, "none", reason=nothing)
            right = replace(right, is_input=isinstance(node.right, Source))
            return self.explain_joined_row(node, key, (left, right), missing=nothing)
        right = self.explain_input_row(stages, node.right, referred)
        there = f"{node.right.name} with {columns_in_words(referred)}"
        missing = f"{refers} {there}, and {right.reason}"
        return self.explain_joined_row(node, key, (left, right), missing=missing)

    def _explain_left_row(
        self, node: ForeignKeyJoin, key: Key, route: StoredRow, answering: Stage
    ) -> RowExplanation:
        """Explain the left row with this key of a foreign key join, which is there: the presence is
        always ``"row"``.

        ``key``: that of the left row. ``route``: the stored row of the left row's key, foreign key
        and time, which proves that it is there. ``answering``: the stage that stores left rows by
        their foreign key. If it does not store this one, the known values come from the rows that
        the left row is made of. Only the time comes from ``route`` then.
        """
        rows = self.rows(answering, ForeignKeyJoinLaw.SUBSCRIPTIONS, key)
        if rows:
            return self.explain_store_row(node.left, rows[0])
        # A row that refers to nothing is of no use to an inner join, so it is not stored.
        below = self.explain_by_rows_below(node.left, key)
        return replace(below, presence="row", time=route.time)

    def _explain_unmatched_right_row(
        self,
        node: ForeignKeyJoin,
        key: Key,
        theirs: Key,
        subscribing: Stage,
        answering: Stage,
    ) -> RowExplanation:
        """Explain the result that a right row gives if no left row refers to it. The join keeps
        such rows.

        ``key``: that of the result. ``theirs``: the right row's key, by the right table's column
        names. ``subscribing``, ``answering``: the join's stages by primary key and by foreign key.
        The presence is ``"none"`` if the right row is not there or not known, or if a left row
        refers to it. Otherwise it is ``"row"``.
        """
        right = self.explain_input_row([answering], node.right, theirs)
        if right.presence != "row":
            return explanation_of(node, key, "none", reason=right.reason, inputs=(right,))
        foreign = {foreign_name(n): value for n, value in enumerate(theirs.values())}
        routes = self.rows(subscribing, _first_store_name(subscribing), foreign)
        if not routes:
            left = explanation_of(node.left, {}, "none")
            return replace(self.explain_joined_row(node, key, (left, right)), inputs=(right,))
        primary = {name: routes[0].values[name] for name in node.left.key.names}
        left = self._explain_left_row(node, primary, routes[0], answering)
        reason = f"{node.left.name} with {columns_in_words(primary)} refers to it, so it is joined"
        return explanation_of(node, key, "none", reason=reason, inputs=(left, right))

    @_explain.register
    def _(self, node: Aggregation, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of an aggregate: by the rows of its group, or the records of a stream if
        they are known.

        At most ``members``, an attribute of this object, of them are named: rows in the order of
        their key, records in that of arrival. The reason has the count of the others. The presence
        is ``"none"`` if a table has no row of the group. Values are empty if the aggregates are not
        stored.

        ``key``: the group columns and, with windows, the start and end of the window, by name.
        ``stages``: those that compute ``node``. Without any, as for an aggregate within another
        step, the presence is ``"unknown"``.
        """
        group = {name: key[name] for name in node.by}
        if not stages:
            return unknown_row(node, key, f"{node.name} is computed within another step")
        store = store_of(stages[-1], node.name, ("rows",), key)
        rows = None if store is None else self.rows(stages[-1], store, key)
        if node.input.stream:
            return self._explain_group_of_stream(node, key, rows, stages)
        retracting = _sending_stage(stages[-1])
        rows_of_groups = self.rows(retracting, _first_store_name(retracting), group)
        group_rows = sorted_rows(rows_of_groups, node.input.key.names)
        members = tuple(
            self.explain_store_row(node.input, row) for row in group_rows[: self.members]
        )
        if not group_rows:
            reason = f"{node.input.name} has no row with {columns_in_words(group)}"
            return explanation_of(node, key, "none", reason=reason)
        more = len(group_rows) - len(members)
        reason = f"{more:,} more rows are not named" if more else ""
        values = {} if not rows else {n: rows[0].values[n] for n in node.values.names}
        times = [row.time for row in (rows or group_rows) if row.time is not None]
        return explanation_of(
            node, key, "row", values=values, time=max(times), reason=reason, inputs=members
        )

    def _explain_group_of_stream(
        self,
        node: Aggregation,
        key: Key,
        rows: Sequence[StoredRow] | None,
        stages: Sequence[Stage],
    ) -> RowExplanation:
        """Explain the group with this key of a stream's records, of which only the aggregates are
        stored.

        ``rows``: the stored row of aggregates; empty for no group, None if it cannot be looked up.
        ``stages``: those that compute the aggregate. If all records are known,
        ``_explain_group_by_records`` answers. Otherwise the presence is:

        - ``"row"`` with a row of aggregates;
        - ``"unknown"`` if ``rows`` is None;
        - ``"unknown"``, too, if ``rows`` is empty and the group's window has closed, since groups
          of closed windows may have been dropped;
        - ``"none"`` in all other cases.
        """
        fixed = node.windows is None or node.windows.fixed
        # Records within a former session may belong to a longer one by now.
        all_records = self.records if fixed or rows else None
        records = None if all_records is None else group_records(all_records, node, key)
        if records is not None:
            return self._explain_group_by_records(node, key, rows, records)
        gone = f"the records of {node.input.name} are not stored, only what they come to"
        if rows:
            values = {name: rows[0].values[name] for name in node.values.names}
            return explanation_of(node, key, "row", values=values, time=rows[0].time, reason=gone)
        group = columns_in_words(key)
        if rows is not None and node.windows is not None and stages:
            due_us, now_us = self._close_and_stream_time_us(node, key, stages)
            if now_us is not None and now_us >= due_us:
                closed = f"its window closed at {readable_text(moment(due_us))} and may be gone"
                return unknown_row(node, key, closed)
        if rows is None:
            return unknown_row(node, key, gone)
        had = "had no record" if fixed else "has no session"
        return explanation_of(node, key, "none", reason=f"{node.input.name} {had} with {group}")

    def _explain_group_by_records(
        self,
        node: Aggregation,
        key: Key,
        rows: Sequence[StoredRow] | None,
        records: GroupRecords,
    ) -> RowExplanation:
        """Explain the group with this key by its records, of which the first ``members`` are named.

        ``rows``: its stored row of aggregates, None or empty for none. ``records``: those of the
        group. The presence is ``"none"`` if no record came in time. Otherwise it is ``"row"``, at
        the largest event time of the records.
        """
        taken = records.taken
        if not taken:
            none = f"{node.input.name} had no record with {columns_in_words(key)}"
            return explanation_of(node, key, "none", reason=records.late_in_words or none)
        members = tuple(
            self.explain_stored_record(node.input, row) for row in taken[: self.members]
        )
        more = len(taken) - len(members)
        values = {name: rows[0].values[name] for name in node.values.names} if rows else {}
        reasons = [f"{more:,} more records are not named"] if more else []
        reasons += [] if rows else ["what they come to is not stored"]
        reasons += [records.late_in_words] if records.late_in_words else []
        return explanation_of(
            node,
            key,
            "row",
            values=values,
            time=max(row.time for row in taken if row.time is not None),
            reason="; ".join(reasons),
            inputs=members,
        )

    @_explain.register(Materialized)
    @_explain.register(Expired)
    @_explain.register(Filled)
    @_explain.register(Transacted)
    def _(self, node: Any, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of an operator that keeps keys: by the row of its input with the same key.
        The explanation has the presence, the time and the known values of that row. ``key``: a
        value for each key column of ``node``, by name, in order. ``stages``: those that compute it.
        """
        below = self._explain_input(node.node, key, stages)
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

    @_explain.register
    def _(self, node: Exploded, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of an exploded table: by the row with the array.

        ``key``: a value for each key column of ``node``, by name, in order. The last one is the
        element's position from 0, or the element itself if positions are not kept. ``stages``:
        those that compute ``node``. The presence is ``"none"`` if the array is null or lacks the
        element. If the row with the array is not there or not known, so is the result.
        """
        *parent, element = key.values()
        below = self._explain_input(
            node.node, dict(zip(node.node.key.names, parent, strict=True)), stages
        )
        if below.presence != "row":
            return explanation_of(node, key, below.presence, reason=below.reason, inputs=(below,))
        array = below.values.get(node.column) or []
        values = {name: below.values[name] for name in node.values.names if name in below.values}
        if node.position is None:
            column = pa.array(array, arrow_schema(node.key).types[-1])
            present = bool(len(matching(pa.table({node.column: column}), {node.column: element})))
        else:
            present = 0 <= element < len(array)
            values |= {node.column: array[element]} if present else {}
        if not present:
            what = columns_in_words({node.key.names[-1]: element})
            reason = f"{node.column} of this row has no element with {what}"
            return explanation_of(node, key, "none", reason=reason, inputs=(below,))
        return explanation_of(node, key, "row", values=values, time=below.time, inputs=(below,))

    @_explain.register
    def _(self, node: Union, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of a union of tables: by the row of the one table that has the key. If no
        table is known to have it, the presence is ``"unknown"`` if one of the tables does not tell,
        else ``"none"``. A record of a union of streams is named without inputs if several of the
        streams can have had it. ``key``: a value for each key column of ``node``, by name, in
        order; of a record also its other known columns. ``stages``: those that compute it.
        """
        parts = [self._explain_input(part, key, stages) for part in node.parts]
        present = [part for part in parts if part.presence == "row"]
        names = ", ".join(part.name for part in node.parts)
        if node.stream and present and sum(part.presence != "none" for part in parts) > 1:
            shown = {name: key[name] for name in node.key.names if name in key}
            values = {name: key[name] for name in node.values.names if name in key}
            time = present[0].time
            reason = f"the state does not tell which of {names} had the record"
            return explanation_of(node, shown, "row", values=values, time=time, reason=reason)
        if present:
            (row,) = present
            return explanation_of(node, key, "row", values=row.values, time=row.time, inputs=(row,))
        if unknown := tuple(part for part in parts if part.presence == "unknown"):
            return replace(unknown_row(node, key, unknown[0].reason), inputs=unknown)
        reason = f"none of {names} has a row with {columns_in_words(key)}"
        return explanation_of(node, key, "none", reason=reason, inputs=tuple(parts))

    # Windows and streams.

    @_explain.register
    def _(self, node: Unwindowed, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of a windowed table read as a table: by the row of the window.

        ``key``: a value for each key column of ``node``, by name. ``stages``: those that compute
        it. The presence is ``"unknown"`` if the key lacks a key column of the windowed table. A row
        of a table with only final results is ``"none"`` before its window closes.
        """
        windowed = node.input.node
        origins = zip(node.row.names, node.columns, strict=True)
        shown = {
            origin: key[name] for name, origin in origins if isinstance(origin, str) and name in key
        }
        if not {*windowed.key.names} <= {*shown}:
            return unknown_row(node, key, f"a row of {windowed.name} is known by its window only")
        below = self._explain(windowed, {name: shown[name] for name in windowed.key.names}, stages)
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
        due_us, now_us = self._close_and_stream_time_us(windowed, shown, stages)
        if node.final and below.presence == "row" and (now_us is None or now_us < due_us):
            reason = f"it waits until stream time passes {readable_text(moment(due_us))}"
            return replace(explained, presence="none", values={}, time=None, reason=reason)
        return explained

    def _close_and_stream_time_us(
        self, windowed: Node, row: Key, stages: Sequence[Stage]
    ) -> tuple[int, int | None]:
        """Return the stream time from which the window in ``row`` is closed, and the smallest
        stream time of the inputs, both in microseconds.

        A window closes at its end plus the grace period. For a session, the gap is added. Windows
        that are not fixed, sessions and sliding ones, include their end, so they close a
        microsecond later.

        The second is None before the first row of an input, and if none of ``stages`` stores rows
        of ``windowed``. ``windowed``: the node with windows. ``row``: columns by name, at least
        ``window_end``, the end of the window.
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

    @_explain.register
    def _(self, node: WindowJoin, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a row of a join of windowed tables: by the left row and the right row that it
        meets.

        The right row is the one of the same window, of a shifted window, or with the same key. The
        presences of both and the kind of the join decide the presence. It is ``"unknown"`` if the
        right row's window is not known. ``key``: a value for each key column of ``node``, by name,
        in order. ``stages``: those that compute it.
        """
        left = self._explain_windowed_side(
            node.left, key_under_names(key, node.left.key.names), stages
        )
        if node.meets_by_key and not node.left.stream:
            right = self._explain_windowed_side(
                node.right, key_under_names(key, node.right.key.names), stages
            )
            return self.explain_joined_row(node, key, (left, right))
        if left.presence != "row":
            return self.explain_joined_row(node, key, (left,))
        match = key_of_right_window(node, {**key, **left.key, **left.values})
        if match is None:
            return unknown_row(node, key, "the window that the row looks in is not known")
        if None in match.values():
            reason = f"{node.left.name} looks in no window"
            return self.explain_joined_row(
                node, key, (left, explanation_of(node.right, match, "none")), missing=reason
            )
        return self.explain_joined_row(
            node, key, (left, self._explain_windowed_side(node.right, match, stages))
        )

    def _explain_windowed_side(
        self, entry: Entry, key: Key, stages: Sequence[Stage]
    ) -> RowExplanation:
        """Explain the row with this key of ``entry``, a side of a join of windowed tables, or that
        there is none.

        ``key``: a value for each key column of ``entry``, those of the window included if it has
        windows. ``stages``: those that compute the join, and perhaps the side. Their stores of the
        side are asked first, since the join keeps rows longer than the windows are open.
        """
        if entry.windows is None:
            return self.explain_input_row(stages, entry, key)
        assert isinstance(entry, Derived)
        for stage in stages:
            for name in stores_of(stage, entry.name, ("rows",), key):
                rows = self.rows(stage, name, key)
                if rows:
                    return self.explain_stored_result(entry.node, key, rows[0], stages)
        return self._explain(entry.node, key, stages)

    @_explain.register
    def _(self, node: StreamTableJoin, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain a result of a stream joined with a table: by the record and the table's row.

        ``key``: the known columns of the record, by name. Records are not stored, so it needs those
        by which the table is joined, else the presence is ``"unknown"``. A record with a null in
        one of them meets no row. Without a row of the table, the kind of the join decides.
        ``stages``: those that compute ``node``.
        """
        left = self._explain_input(node.left, key, stages)
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
            right = self._explain_input(node.right, match, stages)
        return self.explain_joined_row(
            node, {n: record.get(n) for n in node.key.names}, (left, right)
        )

    @_explain.register
    def _(self, node: StreamJoin, key: Key, stages: Sequence[Stage]) -> RowExplanation:
        """Explain the results of a join of two streams that have this key, by the stored records of
        both sides (``StreamResults``). ``key``: a value for each key column of ``node``, by name.
        ``stages``: those that compute it.
        """
        return self.explain_stream_results(node, key, stages)


def _sending_stage(stage: Stage) -> Stage:
    """Return the stage of the same node whose results are an input of ``stage``. There must be one;
    of several, the first counts.
    """
    return next(
        port.origin
        for port in stage.ports
        if isinstance(port.origin, Stage) and port.origin.node == stage.node
    )


def _first_store_name(stage: Stage) -> str:
    """Return the name of the first store of a stage, which has at least one. That store has the
    rows of the first input.
    """
    return next(iter(stage.fragment.stores))


def _is_of_other_part(entry: Entry, key: Key) -> bool:
    """Return True if ``entry``, one of the tables of a union, cannot have a row with this key. It
    is then a view with a constant column that differs from the key's value. ``key``: values by
    column.
    """
    return isinstance(entry, View) and has_other_constant(entry, key)
