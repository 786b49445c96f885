"""The laws of operators on groups and windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from dovetail.aggregates.aggregate import Aggregate
from dovetail.aggregates.collect import LastRow
from dovetail.aggregates.multiset import Listing
from dovetail.aggregates.user_defined import UserDefined
from dovetail.base.columns import WINDOW_END, WINDOW_START
from dovetail.physical.specs.law import (
    AccumulatedColumn,
    Law,
    Sources,
    Store,
    Wait,
    not_latest_metrics,
    table_store,
)
from dovetail.plan import metrics
from dovetail.plan.metrics import metric_name
from dovetail.plan.types.windows import Windows

WINDOW_TYPE = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class RetractLaw(Law):
    """A table by primary key that is grouped by other columns.

    Each record becomes two rows: the old row leaves its group, and the new row enters its own.
    """

    REASON: ClassVar[str] = "a change takes the former row out of its group, so that row is needed"

    names: tuple[str, ...]
    """The users' names of the columns behind the key: the grouping, then the aggregated ones."""

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the description of a bucket's only store, by the name of the table. It has each
        key's last row: the key, then the grouping and the aggregated columns under the users'
        names. A column with the name of an earlier one is left out. ``sources``: the table, as the
        only input.
        """
        (source,) = sources
        stored = [*source.shape.foreign_fields[1:], *source.shape.value_fields]
        columns = {field.name: field for field in source.shape.key_fields}
        for name, field in zip(self.names, stored, strict=True):
            columns.setdefault(name, field)
        table = table_store(sources, 0)
        store = replace(
            table,
            holds=f"{table.holds}, of it what is aggregated",
            fields=tuple(field.with_name(name) for name, field in columns.items()),
            columns=tuple(field.name for field in columns.values()),
        )
        return dict.fromkeys(super().stores(sources), store)

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the names of the metrics of rows without use. ``sources``: the table, as the only
        input.

        For a versioned table, ``<table>.too_old`` and ``<table>.late`` come first: records older
        than the history, and those older than their key's latest version. Then comes
        ``<table>.null_group`` for rows with a null in a grouping column.
        """
        return [*not_latest_metrics(sources), metric_name(sources[0].name, "null_group")]


@dataclass(frozen=True)
class ResultColumn:
    """A result column of an aggregation."""

    name: str
    values: tuple[int, ...]
    """The indices (from 0) of the input's value columns that ``kernel`` aggregates."""
    kernel: Aggregate


@dataclass(frozen=True)
class AggregationLaw(Law):
    """Rows aggregated by key and, if there are ``windows``, by window."""

    REASON: ClassVar[str] = "rows of one group meet in its accumulators"

    name: str
    """The name of the aggregation in errors."""
    columns: tuple[ResultColumn, ...]
    """The results, in the order of the output's value columns."""
    windows: Windows | None = None
    """The windows by which each key's rows are grouped; None without windows."""
    retracts: bool = False
    """True if rows may be ``_deleted``, which means that they leave their group."""
    timed: bool = False
    """True if a group is emitted even if only its time has changed."""

    GROUPS: ClassVar[str] = "groups"
    """The name of the store of accumulators."""
    RECORDS: ClassVar[str] = "records"
    """The name of the store of records, for sliding windows."""

    def key_fields(self, sources: Sources) -> list[pa.Field]:
        """Return the key columns of a group: those of the input, which are the grouping columns.
        With ``windows``, ``window_start`` and ``window_end`` follow, timestamps in UTC.
        ``sources``: the rows to be aggregated, as the only input.
        """
        group_fields = super().key_fields(sources)
        if self.windows is None:
            return group_fields
        return group_fields + [pa.field(name, WINDOW_TYPE) for name in (WINDOW_START, WINDOW_END)]

    def value_types(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """Return the types of the aggregates' results, in the order of ``columns``. ``sources``
        does not matter. ``leaf`` is 0: there is one leaf.
        """
        return [column.kernel.result for column in self.columns]

    @property
    def whole_keys(self) -> bool:
        """True if an aggregate gives a group's last row (``LastRow``) and its flag ``unique`` is
        set. Then a group with two rows at the end of a micro-batch is an error, so all rows of a
        key must come at once.
        """
        return any(isinstance(c.kernel, LastRow) and c.kernel.unique for c in self.columns)

    @property
    def long_list_columns(self) -> list[int]:
        """The indices in ``columns``, from 0, of the aggregates whose long lists may be stored in
        parts; empty with windows.

        Such an aggregate keeps its values as a list (``Listing``), and one of two conditions holds.
        Either rows may leave their group (``retracts``), or its result needs only the values that
        come (``reads`` is ``"none"``).
        """
        columns = enumerate(self.columns) if self.windows is None else ()
        return [
            column_index
            for column_index, column in columns
            if isinstance(column.kernel, Listing)
            and (self.retracts or column.kernel.reads == "none")
        ]

    def list_store_names(self, column: int) -> tuple[str, str]:
        """Return the names of the two stores of a column's long lists: ``<name>: index``, then
        ``<name>: parts``. ``column``: an index in ``columns``, one of ``long_list_columns``.
        """
        name = self.columns[column].name
        return f"{name}: index", f"{name}: parts"

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the descriptions of a bucket's stores by name, in this order. ``sources``: the
        rows to be aggregated, as the only input.

        - ``groups``: the accumulators of each key and window;
        - for each of ``long_list_columns``: the index of its long lists, and their parts;
        - ``records``, with sliding windows only: the records until their windows are closed.
        """
        window = "" if self.windows is None else " and window, until it is closed"
        stores = {self.GROUPS: self._accumulator_store(sources, f"accumulators per key{window}")}
        for column in self.long_list_columns:
            index, parts = self.list_store_names(column)
            stores[index] = Store("which parts a long list has")
            stores[parts] = Store("the parts of long lists")
        if self.windows is not None and self.windows.kind == "sliding":
            stores[self.RECORDS] = Store("records, until their windows are closed")
        return stores

    def _accumulator_store(self, sources: Sources, holds: str) -> Store:
        """Return the description of the store of accumulators, whose reader gets the key and the
        results. ``sources``: the rows to be aggregated, as the only input. ``holds``: the content
        in words.

        Rows of windows expire by the input's stream time, others never. With a user-defined
        aggregate the store has no kind, so it is not read back: its accumulators mean something to
        the topology only.
        """
        key, listed = self.key_fields(sources), self.long_list_columns
        fields = [pa.field(c.name, c.kernel.result) for c in self.columns]
        return Store(
            holds,
            None if any(isinstance(c.kernel, UserDefined) for c in self.columns) else "rows",
            of=self.name,
            key=tuple(field.name for field in key),
            fields=(*key, *fields),
            clocks=(0,),
            span_us=None if self.windows is None else self.windows.wait_us,
            results=tuple(
                AccumulatedColumn(
                    column.kernel,
                    self.list_store_names(column_index) if column_index in listed else (),
                )
                for column_index, column in enumerate(self.columns)
            ),
            hashed=self.windows is None,
        )

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the name of the metric of records that came after their window had closed,
        ``<stream>.late``, as the only element. Empty without windows. ``sources``: the rows to be
        aggregated, as the only input.
        """
        return [] if self.windows is None else [metric_name(sources[0].name, "late")]


@dataclass(frozen=True)
class FinalLaw(Law):
    """The last row of each window, emitted once stream time is ``wait_us`` past its end."""

    REASON: ClassVar[str] = "a window leaves once, when it has closed, so its last row waits"

    wait_us: int
    """The microseconds of stream time after a window's end until it is closed."""
    after: bool
    """True if stream time must pass that limit, not just reach it."""

    waits: ClassVar[bool] = True
    OPEN: ClassVar[str] = "open"
    """The name of the store of the rows of open windows."""
    CLOSING: ClassVar[str] = "closing"
    """The name of the store of the windows' closing times."""

    @property
    def due_us(self) -> int:
        """The microseconds of stream time from a window's end until its row is emitted:
        ``wait_us``. With ``after``, it is one more, as stream time must pass the limit.
        """
        return self.wait_us + self.after

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the descriptions of a bucket's two stores by name. ``open`` has the last row of
        each key and window until the window is closed. ``closing`` has the windows' keys by closing
        time. ``sources``: the windowed table, as the only input.
        """
        holds = "last row per key and window, until it is closed"
        rows = replace(
            table_store(sources, 0), holds=holds, time=WINDOW_END, span_us=self.due_us - 1
        )
        return {self.OPEN: rows, self.CLOSING: Store("when each window closes")}

    def waiting_stores(self, sources: Sources) -> list[Wait]:
        """Return the store ``closing`` as the only element: the keys of windows that are not closed
        yet. They are counted as ``<table>.open``. ``sources``: the windowed table, as the only
        input.
        """
        store = replace(self.stores(sources)[self.CLOSING], clocks=(0,), span_us=0)
        return [Wait(self.CLOSING, metrics.waiting_metric(sources[0].name, "open"), store)]
