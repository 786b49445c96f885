"""What the operators of groups and windows do: their laws' parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from dovetail.aggregates.aggregate import Aggregate
from dovetail.aggregates.collect import LastRow
from dovetail.aggregates.multiset import Listing
from dovetail.aggregates.user_defined import UserDefined
from dovetail.columns import WINDOW_END, WINDOW_START
from dovetail.physical.law import Accumulated, Law, Sources, Store, not_latest, table_of
from dovetail.plan.metrics import metric
from dovetail.plan.windows import Windows

WINDOW_TYPE = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Retract(Law):
    """A table by primary key, grouped by other columns of it: each record becomes the old row,
    which leaves its group, and the new one, which enters its own. ``names``: what users call the
    columns behind the key: those that it is grouped by, then those that are aggregated.
    """

    names: tuple[str, ...]

    room = "retract"

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Each row, as far as it is aggregated."""
        (source,) = sources
        stored = [
            *source.fields(source.foreign_columns)[1:],
            *source.fields(source.value_columns),
        ]
        columns = {field.name: field for field in source.fields(source.key_columns)}
        for name, field in zip(self.names, stored, strict=True):
            columns.setdefault(name, field)
        table = table_of(sources, 0)
        kept = replace(
            table,
            holds="last row per key, of it what is aggregated",
            kind="rows",
            span_us=None if source.retention_us is None else table.span_us,
            fields=tuple(field.with_name(name) for name, field in columns.items()),
            columns=tuple(field.name for field in columns.values()),
        )
        return dict.fromkeys(super().stores(sources), kept)

    def counts(self, sources: Sources) -> list[str]:
        """The rows that change no latest version, or have a null among what they are grouped by."""
        return [*not_latest(sources), metric(sources[0].name, "null_group")]


@dataclass(frozen=True)
class Column:
    """A result column: its name, the numbers of the value columns that ``kernel`` makes it of."""

    name: str
    values: tuple[int, ...]
    kernel: Aggregate


@dataclass(frozen=True)
class Aggregation(Law):
    """Rows aggregated by key and, where there are ``windows``, by window. ``name``: what errors
    call it; ``retracts``: rows that are ``_deleted`` leave their group; ``timed``: a group has
    changed in a batch where only its time has.
    """

    name: str
    columns: tuple[Column, ...]
    windows: Windows | None = None
    retracts: bool = False
    timed: bool = False

    GROUPS: ClassVar[str] = "groups"
    RECORDS: ClassVar[str] = "records"

    def key(self, sources: Sources) -> list[pa.Field]:
        """What is grouped by, then the bounds of the window."""
        own = super().key(sources)
        if self.windows is None:
            return own
        return own + [pa.field(name, WINDOW_TYPE) for name in (WINDOW_START, WINDOW_END)]

    def values(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """The types of the aggregates."""
        return [column.kernel.result for column in self.columns]

    @property
    def whole_keys(self) -> bool:
        """Where a group may have one row at most, of all that a micro-batch leaves."""
        return any(isinstance(c.kernel, LastRow) and c.kernel.unique for c in self.columns)

    @property
    def listed(self) -> list[int]:
        """The columns whose lists may lie in parts, of groups that are no windows: where rows may
        leave, or results are not made from the lists.
        """
        columns = enumerate(self.columns) if self.windows is None else ()
        return [
            number
            for number, column in columns
            if isinstance(column.kernel, Listing)
            and (self.retracts or column.kernel.reads == "none")
        ]

    def lists(self, column: int) -> tuple[str, str]:
        """The stores of a column's long lists: their index, and their parts."""
        name = self.columns[column].name
        return f"{name}: index", f"{name}: parts"

    @property
    def room(self) -> str:
        """By the kind of windows."""
        kind = None if self.windows is None else self.windows.kind
        return {"session": "sessions", "sliding": "sliding"}.get(kind or "", "aggregate")

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """The accumulators; the parts of long lists; of sliding windows the records, too."""
        window = "" if self.windows is None else " and window, until it is closed"
        kept = {self.GROUPS: self._groups(sources, f"accumulators per key{window}")}
        for column in self.listed:
            index, parts = self.lists(column)
            kept[index] = Store("which parts a long list has")
            kept[parts] = Store("the parts of long lists")
        if self.windows is not None and self.windows.kind == "sliding":
            kept[self.RECORDS] = Store("records, until their windows are closed")
        return kept

    def _groups(self, sources: Sources, holds: str) -> Store:
        """Those of functions of one's own can be read by the topology alone."""
        key, listed = self.key(sources), self.listed
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
                Accumulated(column.kernel, self.lists(number) if number in listed else ())
                for number, column in enumerate(self.columns)
            ),
            hashed=self.windows is None,
        )

    def counts(self, sources: Sources) -> list[str]:
        """The records that came for a window when it was closed."""
        return [] if self.windows is None else [metric(sources[0].name, "late")]


@dataclass(frozen=True)
class Final(Law):
    """Rows by window: each window's last one, once stream time has reached its end + ``wait_us``;
    ``after``: once it is past that.
    """

    wait_us: int
    after: bool

    waits: ClassVar[bool] = True
    room = "final"
    OPEN: ClassVar[str] = "open"
    CLOSING: ClassVar[str] = "closing"

    @property
    def due_us(self) -> int:
        """How long after its end a window is emitted."""
        return self.wait_us + self.after

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """The rows of windows that are open, and these by the time at which they close."""
        holds = "last row per key and window, until it is closed"
        rows = replace(table_of(sources, 0), holds=holds, time=WINDOW_END, span_us=self.due_us - 1)
        return {self.OPEN: rows, self.CLOSING: Store("when each window closes")}
