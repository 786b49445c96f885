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
        """Return the only store of a bucket by its name: each key's last row, with the grouping and
        aggregated columns under the users' names.
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
        """Return the names of the metrics of rows that change no latest version, as
        ``not_latest_metrics`` does. That of rows with a null in their group follows,
        ``<table>.null_group``.
        """
        return [*not_latest_metrics(sources), metric_name(sources[0].name, "null_group")]


@dataclass(frozen=True)
class ResultColumn:
    """A result column of an aggregation."""

    name: str
    values: tuple[int, ...]
    """The numbers of the value columns that ``kernel`` aggregates."""
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
        """Return the grouping columns, then the start and end of the window, if any."""
        group_fields = super().key_fields(sources)
        if self.windows is None:
            return group_fields
        return group_fields + [pa.field(name, WINDOW_TYPE) for name in (WINDOW_START, WINDOW_END)]

    def value_types(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """Return the types of the aggregates' results, in order. ``leaf`` is 0: there is one
        leaf.
        """
        return [column.kernel.result for column in self.columns]

    @property
    def whole_keys(self) -> bool:
        """True if an aggregate (the last row with ``unique``) allows at most one row in a group at
        the end of a micro-batch. All rows of a key must be seen at once then.
        """
        return any(isinstance(c.kernel, LastRow) and c.kernel.unique for c in self.columns)

    @property
    def long_list_columns(self) -> list[int]:
        """The indices in ``columns`` of the aggregates whose long lists may be stored in parts.

        They keep a list, and either rows may leave it or a result reads none of it. Empty with
        windows.
        """
        columns = enumerate(self.columns) if self.windows is None else ()
        return [
            column_index
            for column_index, column in columns
            if isinstance(column.kernel, Listing)
            and (self.retracts or column.kernel.reads == "none")
        ]

    def list_store_names(self, column: int) -> tuple[str, str]:
        """Return the names of the stores of a column's long lists: the index, then the parts.
        ``column``: one of the numbers in ``long_list_columns``.
        """
        name = self.columns[column].name
        return f"{name}: index", f"{name}: parts"

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the stores of a bucket by name: the accumulators; for each column with long lists,
        their index and parts; with sliding windows, the records.
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
        """Return the description of the store of accumulators. ``holds``: the content in words.

        With a user-defined aggregate it has no kind, so the store is not read back: the state means
        something to the topology only.
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
        ``<stream>.late``; empty without windows.
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
        ``wait_us``, and one more with ``after``.
        """
        return self.wait_us + self.after

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the stores of a bucket by name: the rows of open windows, then the windows' keys
        by closing time.
        """
        holds = "last row per key and window, until it is closed"
        rows = replace(
            table_store(sources, 0), holds=holds, time=WINDOW_END, span_us=self.due_us - 1
        )
        return {self.OPEN: rows, self.CLOSING: Store("when each window closes")}

    def waiting_stores(self, sources: Sources) -> list[Wait]:
        """Return the store of keys of windows that are not closed yet, as the only element. Its
        rows are counted as ``<table>.open``.
        """
        store = replace(self.stores(sources)[self.CLOSING], clocks=(0,), span_us=0)
        return [Wait(self.CLOSING, metrics.waiting_metric(sources[0].name, "open"), store)]
