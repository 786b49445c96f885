"""Stored rows as the walk reads them: the interface of a reader of state, and tables of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Protocol

import pyarrow as pa

from dovetail.arrays.equality import canonical, rows_equal
from dovetail.base.columns import CHANGE, DUE, TIMESTAMP, UPSERT
from dovetail.physical.specs.law import Store
from dovetail.physical.stage import Stage

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST = datetime(9999, 12, 31, tzinfo=timezone.utc)


@dataclass(frozen=True)
class StoredRow:
    """A row of a store."""

    values: Mapping[str, Any]
    """The columns that the store has of it, the key's included."""
    time_us: int | None
    """Its event time in microseconds."""
    due_us: int | None = None
    """The stream time until which it waits; None if it does not wait."""

    @property
    def time(self) -> datetime | None:
        """The event time in UTC."""
        return None if self.time_us is None else moment(self.time_us)


class StateReader(Protocol):
    """A reader of the stores that the stages of a topology keep."""

    def rows(self, stage: Stage, store: str, match: Mapping[str, Any]) -> pa.Table:
        """Return the rows of a store (``store_contents.schema_of``) whose columns equal ``match``.

        A store that has no rows yet gives none.
        """

    def stream_times_us(self, stage: Stage) -> Sequence[int | None]:
        """Return the stream time of each input of a stage, None for one without rows."""


def current(store: Store, rows: pa.Table, at_us: int | None = None) -> list[StoredRow]:
    """Return the rows of a store that count now: of versions only the last one of a key, if it is
    no delete. ``rows``: as a ``StateReader`` returns them. ``at_us``: the time whose versions
    count, None for the latest.
    """
    stored_rows = [_stored(row) for row in rows.to_pylist()]
    if store.kind != "versions":
        return [row for row, _ in stored_rows]
    last: dict[str, tuple[StoredRow, str | None]] = {}
    for row, change in sorted(stored_rows, key=lambda pair: pair[0].time_us or 0):
        if at_us is not None and row.time_us is not None and row.time_us > at_us:
            continue
        last[repr([row.values[name] for name in store.key])] = row, change
    return [row for row, change in last.values() if change == UPSERT]


def _stored(row: dict[str, Any]) -> tuple[StoredRow, str | None]:
    """Return a row of ``store_contents.schema_of``, and the kind of its change."""
    time_us, due_us, change = row.pop(TIMESTAMP), row.pop(DUE, None), row.pop(CHANGE, None)
    return StoredRow(row, time_us, due_us), change


def in_microseconds(rows: pa.Table) -> pa.Table:
    """Return rows with their own times as int64, which Python can represent beyond the year
    9999.
    """
    for name in (TIMESTAMP, DUE):
        if name in rows.column_names:
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(index, name, rows.column(name).cast(pa.int64()))
    return rows


def matching(rows: pa.Table, match: Mapping[str, Any]) -> pa.Table:
    """Return the rows whose columns equal the values of ``match``; null equals null."""
    if not match or not len(rows):
        return rows
    columns = [canonical(rows.column(name).combine_chunks()) for name in match]
    values = key_columns([column.type for column in columns], [*match.values()], len(rows))
    return rows.filter(pa.array(rows_equal(columns, values)))


def key_columns(types: Sequence[pa.DataType], key: Sequence[Any], rows: int = 1) -> list[pa.Array]:
    """Return a key as columns of these types, repeated for a number of rows."""
    return [
        canonical(pa.array([value] * rows, type_)) for type_, value in zip(types, key, strict=True)
    ]


def moment(us: int) -> datetime:
    """Return a time in microseconds as a datetime in UTC, at most in the year 9999."""
    return (
        min(_EPOCH + timedelta(microseconds=us), _LAST) if us < 253_370_764_800_000_000 else _LAST
    )
