"""Stored rows as the walk reads them: the interface of a reader of state, and tables of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.equality import canonical_key, rows_equal
from dovetail.base.columns import CHANGE, DUE, TIMESTAMP, UPSERT
from dovetail.physical.specs.law import Store
from dovetail.physical.stage import Stage

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST = datetime(9999, 12, 31, tzinfo=timezone.utc)


@dataclass(frozen=True)
class StoredRow:
    """A row of a stage's store, as the explanation of rows reads it."""

    values: Mapping[str, Any]
    """The columns that the store has of it, the key's included."""
    time_us: int | None
    """Its event time in microseconds."""
    due_us: int | None = None
    """The stream time until which it waits; None if it does not wait."""

    @property
    def time(self) -> datetime | None:
        """The event time of the row in UTC; None without one."""
        return None if self.time_us is None else moment(self.time_us)


class StateReader(Protocol):
    """A reader of the stores that the stages of a topology keep."""

    def rows(
        self, stage: Stage, store: str, match: Mapping[str, Any], at_us: int | None = None
    ) -> pa.Table:
        """Return the rows of a store (``store_contents.schema_of``) whose columns equal ``match``.

        Null equals null, and times are int64 in microseconds. A store that has no rows yet gives
        none. ``at_us``: the time of the versions that are needed at least, None for the latest.
        Other versions may be among the rows.
        """

    def stream_times_us(self, stage: Stage) -> Sequence[int | None]:
        """Return the stream time of each input of a stage with stores, in microseconds; None for an
        input without rows.
        """


def current(
    store: Store, rows: pa.Table, match: Mapping[str, Any], at_us: int | None = None
) -> list[StoredRow]:
    """Return the rows of a store that count now and whose columns equal ``match``: of versions only
    the last one of a key, if it is no delete.

    ``rows``: as a ``StateReader`` returns them, all versions of their keys. ``at_us``: the time
    whose versions count, inclusive; None for the latest. Other kinds of row count at any time.
    """
    counting = _last_versions(store, rows, at_us) if store.kind == "versions" else rows
    return [
        StoredRow(row, row.pop(TIMESTAMP), row.pop(DUE, None))
        for row in matching(counting, match).to_pylist()
    ]


def sought(store: Store, match: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the columns of ``match`` by which rows of a store are read.

    Versions are read by their keys alone: a later version may have other values.
    """
    if store.kind != "versions":
        return match
    return {name: value for name, value in match.items() if name in store.key}


def _last_versions(store: Store, rows: pa.Table, at_us: int | None) -> pa.Table:
    """Return the last version of each key up to ``at_us``, inclusive, without ``_change``. Of two
    versions with one time, the later row in ``rows`` counts.

    Keys whose last version is a delete are left out. ``at_us``: None takes all versions. The result
    has no particular order.
    """
    if at_us is not None:
        rows = rows.filter(pc.less_equal(rows.column(TIMESTAMP), at_us))
    rows = rows.sort_by(TIMESTAMP)
    keys = (canonical_key(rows.column(name).combine_chunks()).to_pylist() for name in store.key)
    last = {repr(key): index for index, key in enumerate(zip(*keys, strict=True))}
    versions = rows.take(pa.array([*last.values()], pa.int64()))
    return versions.filter(pc.equal(versions.column(CHANGE), UPSERT)).drop_columns([CHANGE])


def in_microseconds(rows: pa.Table) -> pa.Table:
    """Return rows with ``_timestamp`` and ``_due``, if they have these columns, as int64 in
    microseconds. Python can represent such a time beyond the year 9999, too.
    """
    for name in (TIMESTAMP, DUE):
        if name in rows.column_names:
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(index, name, rows.column(name).cast(pa.int64()))
    return rows


def matching(rows: pa.Table, match: Mapping[str, Any]) -> pa.Table:
    """Return the rows whose columns equal the values of ``match``, in order; all for an empty
    ``match``. Null equals null. Raises ``KeyError`` for an unknown column.
    """
    if not match or not len(rows):
        return rows
    columns = [canonical_key(rows.column(name).combine_chunks()) for name in match]
    values = key_columns([column.type for column in columns], [*match.values()], len(rows))
    return rows.filter(pa.array(rows_equal(columns, values)))


def key_columns(types: Sequence[pa.DataType], key: Sequence[Any], rows: int = 1) -> list[pa.Array]:
    """Return a key as columns of these types, repeated for a number of rows. ``key``: a value for
    each type, in order. Raises an error of Arrow for a value of another type.
    """
    return [
        canonical_key(pa.array([value] * rows, type_))
        for type_, value in zip(types, key, strict=True)
    ]


def moment(us: int) -> datetime:
    """Return a time in microseconds as a datetime in UTC, at most in the year 9999."""
    return (
        min(_EPOCH + timedelta(microseconds=us), _LAST) if us < 253_370_764_800_000_000 else _LAST
    )


def in_order_of(rows: Sequence[StoredRow], names: Sequence[str]) -> list[StoredRow]:
    """Return rows in ascending order of these columns, null first. If values of a column have no
    order, all rows go by the text of the columns. Each row must have all of ``names``.
    """
    try:
        return sorted(rows, key=lambda row: [(v is not None, v) for v in _values(row, names)])
    except TypeError:
        return sorted(rows, key=lambda row: repr(_values(row, names)))


def _values(row: StoredRow, names: Sequence[str]) -> list[Any]:
    """Return the values of a row's columns ``names``, in that order."""
    return [row.values[name] for name in names]
