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
_FIRST = datetime(1, 1, 1, tzinfo=timezone.utc)
_LAST = datetime(9999, 12, 31, tzinfo=timezone.utc)


@dataclass(frozen=True)
class StoredRow:
    """A row of a stage's store, as the explanation of rows reads it."""

    values: Mapping[str, Any]
    """The columns that the store has of it, the key's included."""
    time_us: int | None
    """Its event time in microseconds."""
    due_us: int | None = None
    """The stream time in microseconds until which it waits; None if it does not wait."""

    @property
    def time(self) -> datetime | None:
        """The event time of the row in UTC, within the years 1 to 9999; None without one."""
        return None if self.time_us is None else moment(self.time_us)


class StateReader(Protocol):
    """A reader of the stores that the stages of a topology keep."""

    def rows(
        self, stage: Stage, store: str, match: Mapping[str, Any], at_us: int | None = None
    ) -> pa.Table:
        """Return the rows of a stage's store whose columns equal ``match``, in undefined order. The
        columns are those of the store, then ``_timestamp``, and ``_change`` of versions or ``_due``
        of rows that wait. Null equals null, and times are int64 in microseconds.

        A store that has no rows yet gives an empty table. ``store``: the name of the store.
        ``match``: values by column. ``at_us``: the time for which versions are needed, in
        microseconds, None for the latest.

        The version of each key that is in force at ``at_us`` is among the rows. If it deletes the
        key, it may be missing, together with all earlier ones. Other versions may be there, too,
        but no two of a key with one time.
        """

    def stream_times_us(self, stage: Stage) -> Sequence[int | None]:
        """Return the stream time of each input of a stage with stores, in the order of its inputs:
        the largest timestamp read so far, in microseconds. None for an input without rows.
        """


def current_rows(
    store: Store, rows: pa.Table, match: Mapping[str, Any], at_us: int | None = None
) -> list[StoredRow]:
    """Return the rows of a store that count at ``at_us`` and whose columns equal ``match``, in no
    particular order.

    In a store of versions, the last version of each key up to ``at_us``, inclusive, counts unless
    it is a delete. ``at_us`` is in microseconds; None stands for the latest version. In other kinds
    of store all rows count. ``rows``: as a ``StateReader`` returns them for the keys, with
    ``_timestamp`` and perhaps ``_due`` as int64. In a store of versions they must have ``_change``.
    """
    counting = _last_versions(store, rows, at_us) if store.kind == "versions" else rows
    return [
        StoredRow(row, row.pop(TIMESTAMP), row.pop(DUE, None))
        for row in matching(counting, match).to_pylist()
    ]


def columns_to_seek(store: Store, match: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of ``match`` by which a reader seeks rows of a store. In a store of versions
    these are the key columns in ``match``, perhaps none. A later version of a key may have other
    values. In any other store it is all of ``match``.
    """
    if store.kind != "versions":
        return match
    return {name: value for name, value in match.items() if name in store.key}


def _last_versions(store: Store, rows: pa.Table, at_us: int | None) -> pa.Table:
    """Return the last version of each key up to ``at_us``, inclusive, without the column
    ``_change``, in no particular order. Keys whose last version is a delete are left out.

    ``rows``: versions of a store, with ``_timestamp`` as int64 and ``_change``, ``"upsert"`` or
    ``"delete"``. Of two versions with one time, the later row in ``rows`` counts. ``at_us``: in
    microseconds; None takes all versions.
    """
    if at_us is not None:
        rows = rows.filter(pc.less_equal(rows.column(TIMESTAMP), at_us))
    rows = rows.sort_by(TIMESTAMP)
    keys = (canonical_key(rows.column(name).combine_chunks()).to_pylist() for name in store.key)
    last = {repr(key): index for index, key in enumerate(zip(*keys, strict=True))}
    versions = rows.take(pa.array([*last.values()], pa.int64()))
    return versions.filter(pc.equal(versions.column(CHANGE), UPSERT)).drop_columns([CHANGE])


def in_microseconds(rows: pa.Table) -> pa.Table:
    """Return the rows with their columns ``_timestamp`` and ``_due`` cast to int64, in
    microseconds; a missing column stays missing. Python has no datetime beyond the year 9999, but
    int64 has.
    """
    for name in (TIMESTAMP, DUE):
        if name in rows.column_names:
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(index, name, rows.column(name).cast(pa.int64()))
    return rows


def matching(rows: pa.Table, match: Mapping[str, Any]) -> pa.Table:
    """Return the rows whose columns equal the values of ``match``, in order; all for an empty
    ``match``. Null equals null, NaN equals NaN, and -0.0 equals 0.0.

    ``match``: values by column. If there are rows, an unknown column raises ``KeyError``, and a
    value of another type Arrow's error.
    """
    if not match or not len(rows):
        return rows
    columns = [canonical_key(rows.column(name).combine_chunks()) for name in match]
    values = key_columns([column.type for column in columns], [*match.values()], len(rows))
    return rows.filter(pa.array(rows_equal(columns, values)))


def key_columns(types: Sequence[pa.DataType], key: Sequence[Any], rows: int = 1) -> list[pa.Array]:
    """Return one key as Arrow columns of these types, each of ``rows`` equal values. Values are in
    canonical form: equal keys have equal bytes. ``key``: a value for each type, in order. Raises an
    error of Arrow for a value of another type.
    """
    return [
        canonical_key(pa.array([value] * rows, type_))
        for type_, value in zip(types, key, strict=True)
    ]


def moment(us: int) -> datetime:
    """Return a time in microseconds since 1970 as the nearest datetime in UTC from midnight of
    0001-01-01 to that of 9999-12-31, both included.
    """
    return _EPOCH + min(max(timedelta(microseconds=us), _FIRST - _EPOCH), _LAST - _EPOCH)


def sorted_rows(rows: Sequence[StoredRow], names: Sequence[str]) -> list[StoredRow]:
    """Return rows in ascending order of the columns ``names``, null first; equal rows keep their
    order. If values of a column cannot be compared, rows go by the ``repr`` of these columns. Each
    row must have all of ``names``.
    """
    try:
        return sorted(
            rows, key=lambda row: [(v is not None, v) for v in _column_values(row, names)]
        )
    except TypeError:
        return sorted(rows, key=lambda row: repr(_column_values(row, names)))


def _column_values(row: StoredRow, names: Sequence[str]) -> list[Any]:
    """Return the values of a row's columns ``names``, in that order. Raises ``KeyError`` for a
    missing column.
    """
    return [row.values[name] for name in names]
