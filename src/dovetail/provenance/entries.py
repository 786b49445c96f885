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
    """The most rows of a group that are named."""
    at_us: int | None = None
    """The time, in microseconds, for which versions of rows are looked up; None for the latest
    ones.
    """
    emitted: Mapping[str, Any] | None = None
    """The values, by column, of the emitted change that is explained; None if a row is explained.
    They tell records of one key apart.
    """
    records: Records | None = None
    """All records of streams; None if they are not known, as in a checkpoint. A driver of tests has
    them.
    """

    def row(self, node: Node, key: Key) -> RowExplanation:
        """Explain the row of a node with a key. ``Walk`` implements it; here it raises
        ``NotImplementedError``.

        ``key``: a value for each of the node's key columns, by name.
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
        """Explain the row of ``entry`` that has the values ``match``, or that there is none.
        ``entry``: an input of these stages, which is a source, another stage's result, or a view of
        one.

        If several stored rows have these values, any one of them is explained. A record of a stream
        is explained by its known columns alone. If none of ``stages`` stores the input, the row is
        explained by the rows of the plan that it is made of. ``match``: values by column; for a row
        of a table its whole key.
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
        """Explain ``row``, a stored row of the input ``entry``, as a row that is there, with the
        rows that it is made of. Values that the store lacks are left out.

        For a source, the reason lists the columns that the store lacks, and is empty if it has all.
        For another stage's result, that stage's explanation gives the reason. A view's row has
        none.
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
        presence is ``"unknown"``. A viewed row of another stage's result is explained by that
        stage. Any other is explained by the first of these that applies:

        - a stored row of the viewed node with this key;
        - ``row``, which proves that the viewed row is there; its values are those that the view
          shows;
        - that a stage stores the viewed node's rows and has none with this key: ``"none"``;
        - the rows of the plan that the viewed row is made of.
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
        """Explain why no stored row of the input ``entry`` has the values ``match``: the presence
        is always ``"none"``. A stage must store these rows.

        ``match``: values by key column, which become the ``key`` of the explanation; the whole key
        if ``entry`` is another stage's result.
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
        """Return fields of an explanation, by name. ``reason`` says why a view has no row with the
        values ``match``. ``inputs`` has the explained viewed row; it may be empty or missing.

        The reason is the first of these that applies. A constant column of the view has another
        value than in ``match``. There is no viewed row. The view's condition drops it. Otherwise
        the reason just says that there is no such row. ``match``: values by column of the view.
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
        """Explain the row of ``entry``, an input whose rows are not stored, by the rows of the plan
        that it is made of.

        | ``entry`` | explanation |
        |---|---|
        | a source | unknown: its rows are not stored |
        | a result of another stage | that of the stage's row |
        | a view | the viewed row, with the view's columns; unknown if a condition decides |

        A view's row is unknown, too, if ``match`` does not tell the viewed row's whole key. It is
        ``"none"`` if there is no viewed row, or if ``match`` differs from a constant of the view.
        Dead letters of a view count as a condition. ``match``: values of columns that the row has,
        by name; for a result of another stage its whole key.
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
        """Return the values of a view's row, by name, computed from ``below``, the explanation of
        the viewed row. Values that cannot be computed are left out.
        """
        row = {**below.key, **below.values}
        if view.computed and self.expressions is not None and has_all_columns(view.node, row):
            computed = computed_row(view, {"node": row}, self.expressions) or {}
        else:
            computed = shown_columns(view, row)
        return {name: computed[name] for name in view.values.names if name in computed}

    def explain_record(self, entry: Entry, record: Key) -> RowExplanation:
        """Explain a record of the stream ``entry``. ``record``: its known columns, by name; at
        least the key if ``entry`` is another stage's result, which that stage explains.

        The record counts as one that came, at the time ``at_us`` of this object. For a source, the
        reason names the columns that are not known. A record of a view is explained by the record
        that it shows. If the view has a condition, the presence is ``"unknown"`` unless
        ``emitted``, an attribute of this object, is set.

        A record that stands for a change of a table has the presence ``"row"`` and no inputs. The
        reason says that the changed row is not named.
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
        """Return the stored rows of the input ``entry`` that have the values ``match`` and are
        current at ``at_us`` of this object, None for now. They come in no particular order. Empty
        if no row has them.

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
        """Return the rows of a stage's store that are current at ``at_us`` of this object, None for
        now. All of them have the values ``match``. They come in no particular order, and may be
        none.

        In a store of versions, the last version of each key up to ``at_us``, inclusive, is current
        unless it deletes the key. In other stores all rows are current, of any time.
        ``store``: the name of a store of the stage. ``match``: values by column.
        """
        described = stage.fragment.stores[store]
        rows = self.reader.rows(stage, store, columns_to_seek(described, match), self.at_us)
        return current_rows(described, rows, match, self.at_us)


def store_of(stage: Stage, name: str, kinds: Sequence[Kind], match: Key) -> str | None:
    """Return the name of a stage's store with the rows of an input or a node, the first one in the
    order of the stage. None if there is none.

    ``name``: the name of the input or node. ``kinds``: the kinds of store that serve, of
    ``"rows"``, ``"versions"``, ``"records"`` and ``"queue"``, in any order. ``match``: columns that
    the store must have; the values do not count.
    """
    return next(stores_of(stage, name, kinds, match), None)


def stores_of(stage: Stage, name: str, kinds: Sequence[Kind], match: Key) -> Iterator[str]:
    """Yield the names of a stage's stores with the rows of an input or a node, in the order of the
    stage. Each of them has all columns of ``match``; its values do not count.

    ``name``: the name of the input or node. ``kinds``: the kinds of store that serve, of
    ``"rows"``, ``"versions"``, ``"records"`` and ``"queue"``, in any order.
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
    """Return the explanation of a row of a node, with the node's name and step. The step of a
    source is ``table`` or ``stream``. ``is_input`` is False.

    ``key``: values by key column. ``presence``: ``"row"``, ``"none"`` or ``"unknown"``. ``values``,
    ``time``: those of the row, None for none. ``reason``: why it is so, in words, empty if nothing
    is to be said. ``inputs``: the explained rows that it is made of.
    """
    kind = "stream" if node.stream else "table"
    step = kind if isinstance(node, Source) else node.summary
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
