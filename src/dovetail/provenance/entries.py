"""Rows of a stage's inputs: sources, results of other stages, and views of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from dovetail.engine.local import Expressions
from dovetail.physical.specs.law import Kind
from dovetail.physical.stage import Stage
from dovetail.plan.nodes import Derived, Entry, Node, Source
from dovetail.plan.views import View
from dovetail.provenance.evaluation import computed_row
from dovetail.provenance.explanation import Presence, RowExplanation, columns_in_words
from dovetail.provenance.group_records import Records
from dovetail.provenance.stored_rows import (
    StateReader,
    StoredRow,
    columns_to_seek,
    current_rows,
    moment,
)
from dovetail.provenance.view_keys import (
    condition_of,
    has_other_constant,
    shown_columns,
    viewed_columns,
)

Key = Mapping[str, Any]
"""Columns and their values, by which rows are found."""


@dataclass(frozen=True)
class Entries:
    """The explanations of rows that stages read, from one state."""

    stages: Sequence[Stage]
    """All stages of the topology, each after those before it."""
    reader: StateReader
    """The reader of the stages' stores."""
    expressions: Expressions | None = None
    """The evaluator of Spark expressions; None to leave computed columns out."""
    members: int = 20
    """The largest number of rows of a group that are named."""
    at_us: int | None = None
    """The time of versions, in microseconds; None for the latest."""
    emitted: Mapping[str, Any] | None = None
    """The values of the change that is explained, to tell records of one key apart."""
    records: Records | None = None
    """All records of streams, where they are known: in a driver."""

    def row(self, node: Node, key: Key) -> RowExplanation:
        """Explain the row of a node with a key: a value for each of the node's key columns, by
        name. ``Walk`` implements it; here it raises ``NotImplementedError``.
        """
        raise NotImplementedError

    def explain_stored_result(self, node: Node, key: Key, row: StoredRow) -> RowExplanation:
        """Explain a row of a node from ``row``, which a stage that reads the node has stored of it.
        ``Walk`` implements it; here it raises ``NotImplementedError``.

        ``key``: a value for each of the node's key columns, by name.
        """
        raise NotImplementedError

    # Inputs of stages.

    def explain_input_row(
        self, stages: Sequence[Stage], entry: Entry, match: Key
    ) -> RowExplanation:
        """Explain the row of ``entry``, an input of these stages, that has the values ``match``. Of
        several such rows, the first one that is stored counts.

        A record of a stream is explained by its known columns alone. If none of the stages stores
        the input, the rows below it explain the row. ``match``: values by column; for a row of a
        table its whole key.
        """
        if entry.stream:
            return self.explain_record(entry, match)
        stored = self._find_stored_rows(stages, entry, match)
        if stored is None:
            return self.explain_by_rows_below(entry, match)
        if not stored:
            return self.explain_missing_row(entry, match)
        return self.explain_store_row(entry, stored[0])

    def explain_store_row(self, entry: Entry, row: StoredRow) -> RowExplanation:
        """Explain ``row``, a stored row of the input ``entry``: as a row that is there, with the
        rows below it. For a source, the reason names the values that are not stored.
        """
        key = {name: row.values.get(name) for name in entry.key.names}
        values = {name: row.values[name] for name in entry.values.names if name in row.values}
        explained = explanation_of(entry, key, "row", values=values, time=row.time)
        if isinstance(entry, Source):
            missing = [name for name in entry.values.names if name not in values]
            reason = f"not stored: {', '.join(missing)}" if missing else ""
            return replace(explained, is_input=True, reason=reason)
        if isinstance(entry, Derived):
            return self.explain_stored_result(entry.node, key, row)
        assert isinstance(entry, View)
        return replace(explained, inputs=(self._explain_viewed_row(entry, row.values, row),))

    def _explain_viewed_row(
        self, view: View, columns: Key, row: StoredRow | None
    ) -> RowExplanation:
        """Explain the row of the viewed node that makes a row of the view.

        ``columns``: the known columns of the view's row, by name. ``row``: the stored row of the
        view, None if there is none. If ``columns`` does not tell the viewed row's whole key, the
        presence is ``"unknown"``.

        A viewed row that a stage stores is preferred to ``row``. Without either, the rows below
        explain it, or the presence is ``"none"``.
        """
        node, viewed = view.node, viewed_columns(view, columns)
        key = {name: viewed[name] for name in node.key.names if name in viewed}
        if len(key) < len(node.key):
            return unknown_row(node, key, f"the key of {node.name} is not stored behind this step")
        if isinstance(node, Derived):
            return self.row(node.node, key)
        stored = self._find_stored_rows(self.stages, node, key)
        if stored:
            return self.explain_store_row(node, stored[0])
        if row is None:
            return (
                self.explain_by_rows_below(node, key)
                if stored is None
                else self.explain_missing_row(node, key)
            )
        return self.explain_store_row(node, replace(row, values=viewed))

    def explain_missing_row(self, entry: Entry, match: Key) -> RowExplanation:
        """Explain why no stored row of the input ``entry`` has the values ``match``. A stage must
        store these rows.

        ``match``: values by key column; the whole key if ``entry`` is another stage's result.
        """
        if isinstance(entry, Source):
            reason = f"{entry.name} has no row with {columns_in_words(match)}"
            return replace(explanation_of(entry, match, "none", reason=reason), is_input=True)
        if isinstance(entry, Derived):
            below = self.row(entry.node, match)
            if below.presence == "none":
                return below
            reason = f"{entry.name} has no row with {columns_in_words(match)}"
            return explanation_of(entry.node, match, "none", reason=reason)
        assert isinstance(entry, View)
        return explanation_of(entry, match, "none", **self._fields_of_missing_row(entry, match))

    def _fields_of_missing_row(self, view: View, match: Key) -> dict[str, Any]:
        """Return the field ``reason`` of an explanation: why a view has no row with the values
        ``match``. If the row below the view is known, return it as the field ``inputs``, too.

        The reason is another constant of the view, the reason below the view, or the view's
        condition. ``match``: values by column.
        """
        if has_other_constant(view, match):
            return {"reason": f"{view.name} has no row with {columns_in_words(match)}"}
        below = self._explain_viewed_row(view, match, None)
        condition = condition_of(view)
        if below.presence == "none":
            return {"reason": below.reason, "inputs": (below,)}
        if below.presence == "row" and condition:
            reason = f"dropped by the condition `{condition}`"
            return {"reason": reason, "inputs": (below,)}
        that = f", or none that meets `{condition}`" if condition else ""
        reason = f"{view.name} has no row with {columns_in_words(match)}{that}"
        return {"reason": reason, "inputs": () if below.presence == "unknown" else (below,)}

    def explain_by_rows_below(self, entry: Entry, match: Key) -> RowExplanation:
        """Explain the row of ``entry``, an input whose rows are not stored, by the rows below it in
        the plan.

        | ``entry`` | explanation |
        |---|---|
        | a source | unknown: its rows are not stored |
        | a result of another stage | that of the stage's row |
        | a view | the row below it, with the view's columns; unknown if a condition decides |

        Dead letters of a view count as a condition. ``match``: values of columns that the row has,
        by name.
        """
        if isinstance(entry, Source):
            reason = f"the rows of {entry.name} are not stored"
            return replace(unknown_row(entry, match, reason), is_input=True)
        if isinstance(entry, Derived):
            return self.row(entry.node, match)
        assert isinstance(entry, View)
        if has_other_constant(entry, match):
            return explanation_of(entry, match, "none", **self._fields_of_missing_row(entry, match))
        below = self._explain_viewed_row(entry, match, None)
        presence = below.presence
        if presence == "row" and (entry.condition is not None or entry.letters is not None):
            presence = "unknown"
        if presence != "row":
            return explanation_of(entry, match, presence, reason=below.reason, inputs=(below,))
        values = self._values_of_view_row(entry, below)
        return explanation_of(entry, match, "row", values=values, time=below.time, inputs=(below,))

    def _values_of_view_row(self, view: View, below: RowExplanation) -> dict[str, Any]:
        """Return the values of a view's row, by name, computed from ``below``, the explained row
        below it. Values that cannot be computed are left out.
        """
        row = {**below.key, **below.values}
        if view.computed and self.expressions is not None and has_all_columns(view.node, row):
            computed = computed_row(view, {"node": row}, self.expressions) or {}
        else:
            computed = shown_columns(view, row)
        return {name: computed[name] for name in view.values.names if name in computed}

    def explain_record(self, entry: Entry, record: Key) -> RowExplanation:
        """Explain a record of the stream ``entry``. ``record``: its known columns, by name.

        The record counts as one that came, at the time ``at_us`` of this object. For a source, the
        reason names the columns that are not known. A result of another stage is explained by that
        stage.

        A record of a view is explained by the one below it. If the view has a condition, the
        presence is ``"unknown"`` unless ``emitted`` is set. A record that a table's change made is
        not explained further.
        """
        key = {name: record[name] for name in entry.key.names if name in record}
        values = {name: record[name] for name in entry.values.names if name in record}
        if isinstance(entry, Derived):
            return self.row(entry.node, record)
        time = None if self.at_us is None else moment(self.at_us)
        explained = explanation_of(entry, key, "row", values=values, time=time)
        if isinstance(entry, Source):
            missing = [name for name in entry.row.names if name not in record]
            reason = f"not known: {', '.join(missing)}" if missing else ""
            return replace(explained, is_input=True, reason=reason)
        assert isinstance(entry, View)
        if not entry.node.stream:
            return replace(explained, reason="the row that changed is not named")
        below = self.explain_record(entry.node, {**viewed_columns(entry, record), **record})
        shown = shown_columns(entry, {**below.key, **below.values})
        if below.presence != "row":
            none = explanation_of(entry, key, below.presence, reason=below.reason)
            return replace(none, inputs=(below,))
        values = {name: shown[name] for name in entry.values.names if name in shown} | values
        condition = condition_of(entry)
        if condition and self.emitted is None:
            reason = f"it is a row only if it meets `{condition}`"
            explained = replace(explained, presence="unknown", reason=reason)
        return replace(explained, values=values, inputs=(below,))

    # Stores.

    def _find_stored_rows(
        self, stages: Sequence[Stage], entry: Entry, match: Key
    ) -> list[StoredRow] | None:
        """Return the stored rows of the input ``entry`` that have the values ``match``; empty if no
        row has them.

        The first of ``stages`` that stores the input with these columns counts. None if no stage
        does. ``match``: values by column.
        """
        for stage in stages:
            for port in stage.ports:
                if port.input is not None and port.input.source == entry:
                    name = store_of(stage, port.source.name, ("rows", "versions"), match)
                    if name is not None:
                        return self.rows(stage, name, match)
        return None

    def rows(self, stage: Stage, store: str, match: Key) -> list[StoredRow]:
        """Return the rows of a stage's store that are current at ``at_us`` and have the values
        ``match``, in no particular order. Empty without such rows.

        ``store``: the name of a store of the stage. ``match``: values by column.
        """
        described = stage.fragment.stores[store]
        rows = self.reader.rows(stage, store, columns_to_seek(described, match), self.at_us)
        return current_rows(described, rows, match, self.at_us)


def store_of(stage: Stage, name: str, kinds: Sequence[Kind], match: Key) -> str | None:
    """Return the name of the first store of a stage with the rows of an input or a node, None if
    there is none.

    ``name``: the name of the input or node. ``kinds``: the kinds of store that serve, such as
    ``"rows"``. ``match``: columns that the store must have; the values do not count.
    """
    return next(stores_of(stage, name, kinds, match), None)


def stores_of(stage: Stage, name: str, kinds: Sequence[Kind], match: Key) -> Iterator[str]:
    """Yield the names of a stage's stores with the rows of an input or a node, in the order of the
    stage. Each of them has all columns of ``match``; its values do not count.

    ``name``: the name of the input or node. ``kinds``: the kinds of store that serve, such as
    ``"rows"``.
    """
    for store_name, store in stage.fragment.stores.items():
        columns = {field.name for field in store.fields}
        if store.of == name and store.kind in kinds and columns.issuperset(match):
            yield store_name


def explanation_of(
    node: Node,
    key: Key,
    presence: Presence,
    *,
    values: Mapping[str, Any] | None = None,
    time: datetime | None = None,
    reason: str = "",
    inputs: tuple[RowExplanation, ...] = (),
) -> RowExplanation:
    """Return the explanation of a row of a node, with the node's name and step. ``is_input`` is
    False.

    ``key``: values by key column. ``presence``: ``"row"``, ``"none"`` or ``"unknown"``. ``values``,
    ``time``: those of the row, None for none. ``reason``: why it is so, in words, empty if nothing
    is to be said. ``inputs``: the explained rows below it.
    """
    step = "table" if isinstance(node, Source) else node.summary
    label = getattr(node, "label", None)
    step = step if label is None else f"{label}, {step}"
    return RowExplanation(
        name=node.name,
        step=step,
        key=dict(key),
        presence=presence,
        values=values or {},
        time=time,
        reason=reason,
        inputs=inputs,
    )


def unknown_row(node: Node, key: Key, reason: str) -> RowExplanation:
    """Return the explanation ``"unknown"`` of a row, without values. ``key``: the columns by which
    it was sought. ``reason``: why it is not known, in words.
    """
    return explanation_of(node, key, "unknown", reason=reason)


def has_all_columns(node: Node, row: Mapping[str, Any]) -> bool:
    """Return True if ``row``, values by column, has all columns of ``node``, keys and values. A
    null counts.
    """
    return all(name in row for name in node.row.names)
