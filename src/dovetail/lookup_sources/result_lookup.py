"""Lookups in the result of a delta join: first in one of its tables, then in the other.

The result of such a join is not stored. A lookup by columns of one table finds that table's rows
first. It then finds the rows of the other table with the same join keys, and joins both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import ABSENT, NO_TIME, Ints
from dovetail.laws.joins.delta_join import NO_GROUP, Form, SideRows, delta_join, key_rows
from dovetail.laws.joins.table_join import How
from dovetail.lookup_sources.keys import index_distinct_keys, positions_among
from dovetail.lookup_sources.pool import open_reader
from dovetail.lookup_sources.source import Found, Index, LookupSource, Reader, index_for


@dataclass(frozen=True, kw_only=True)
class ChainLookup:
    """The result of a delta join as a lookup source."""

    sides: tuple[LookupSource, LookupSource]
    """The lookup sources of the left and of the right table."""
    keys: tuple[tuple[str, ...], tuple[str, ...]]
    """The primary key of each side."""
    on: tuple[tuple[str, ...], tuple[str, ...]]
    """The join key of each side, in the same order."""
    how: How
    """The kind of join, such as ``"left"``."""
    form: Form
    """The form of the result's key: ``"left"`` for the left row's key, ``"pair"`` for both rows'
    keys, ``"key"`` for one key that both tables are joined by.
    """
    key: tuple[str, ...]
    """The key columns of the result."""
    columns: tuple[tuple[str, int, str], ...]
    """Each column of the result, with its side (0 left, 1 right) and its name there."""
    types: tuple[tuple[int, str, pa.DataType], ...]
    """The columns of both sides: side, name and type."""
    leading: tuple[str, ...]
    """The columns of the result by which a lookup can start: columns of one side that an index of
    it covers, under the result's names.
    """
    indexes: tuple[Index, ...]
    """The indexes of both sides under the result's column names."""
    filters: tuple[Any, ...] = field(default=(), init=False)
    """Empty: the sides apply their own filters."""

    @property
    def title(self) -> str:
        """The titles of both sides' sources, joined by ``⋈``, for errors and ``explain``."""
        return f"{self.sides[0].title} ⋈ {self.sides[1].title}"

    def open(self, schema: pa.Schema) -> Reader:
        """Return a reader whose rows have the columns of ``schema``, which are columns of the
        result. Nothing is opened yet. Lookups use this process's readers of both sides, and open
        them as needed.
        """
        return ChainReader(self, schema)


class ChainReader:
    """A reader that looks up one side, then the other, and joins the rows found."""

    def __init__(self, source: ChainLookup, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema
        self._held = {name: (side, column) for name, side, column in source.columns}

    def rows(self, by: Sequence[str], keys: pa.Table) -> Found:
        """Return all rows of the joined result whose columns ``by`` equal one of ``keys``, in any
        order, with the position of each row's key. The sides are read one after the other, not at
        one moment.

        ``by``: columns of the result. ``keys``: these columns, under their names, distinct rows
        without nulls. Without keys each side is asked for no key, so it must be reachable. A key is
        unfit if the side that is read first cannot have it. All columns of an index of one side
        must be among ``by``, else ``AssertionError`` is raised. The schema must have all of ``by``.
        Raises ``DataError`` and ``ConfigurationError`` of the sides' readers.
        """
        source, checks = self._source, keys.num_rows == 0
        side, asked = self._first_side(by)
        distinct_index, distinct = _index_keys_of_table(keys.select(asked))
        names = [self._held[name][1] for name in asked]
        first = self._look_up_side(side, names, distinct, checks=checks)
        _, join_keys = _index_keys_of_table(first.rows.select(list(source.on[side])))
        second = self._look_up_side(1 - side, source.on[1 - side], join_keys, checks=checks)
        sides = (first, second) if side == 0 else (second, first)
        rows = self._join_rows((sides[0].rows, sides[1].rows))
        key = positions_among(keys, rows.select(list(by)))
        answers = key != NO_GROUP
        return Found(rows.filter(pa.array(answers)), key[answers], first.unfit[distinct_index])

    def close(self) -> None:
        """Do nothing: the readers of both sides stay open for all lookups of this process."""

    def _first_side(self, by: Sequence[str]) -> tuple[int, list[str]]:
        """Return the side to look up first, 0 (left) or 1 (right), and the columns of ``by`` for
        the lookup there, under the result's names.

        These are the side's columns by which a lookup can start (``ChainLookup.leading``). All
        columns of an index of the side must be among them. The left side is first if both can be.
        Raises ``AssertionError`` if neither can.
        """
        source = self._source
        for side in (0, 1):
            names = [n for n in by if n in source.leading and self._held[n][0] == side]
            if index_for(source.sides[side], [self._held[n][1] for n in names]) is not None:
                return side, names
        raise AssertionError("no index covers the lookup")

    def _look_up_side(self, side: int, by: Sequence[str], keys: pa.Table, *, checks: bool) -> Found:
        """Return the rows of a side whose columns ``by`` have one of ``keys``, with the columns
        that the join and the result need.

        ``side``: 0 left, 1 right. ``by``: columns of the side, under its own names. ``keys``:
        distinct, one column for each of ``by``; the positions found are rows of it. ``checks``:
        True to ask the store even without keys, to see that it can be read; else no keys give no
        rows. Raises ``DataError`` and ``ConfigurationError`` of the side's reader.
        """
        source = self._source
        types = {column: type_ for s, column, type_ in source.types if s == side}
        origins = (self._held[name] for name in self._schema.names)
        wanted = [column for s, column in origins if s == side]
        names = dict.fromkeys([*source.on[side], *source.keys[side], *by, *wanted])
        schema = pa.schema([pa.field(name, types[name]) for name in names])
        if keys.num_rows == 0 and not checks:
            return Found(schema.empty_table(), np.zeros(0, np.int64), np.zeros(0, np.bool_))
        return open_reader(source.sides[side], schema).rows(by, keys.rename_columns(list(by)))

    def _join_rows(self, sides: tuple[pa.Table, pa.Table]) -> pa.Table:
        """Return the join of both sides' rows in the columns of the reader's schema, in no
        particular order. ``sides``: the left rows and the right rows, under the sides' own column
        names, with their primary keys, join keys and the columns selected.

        A side without a row is null if the kind of join lets the other side's row appear alone.
        Results are right for the keys that were looked up, since both sides have all rows of these.
        Results of other keys may be among them, perhaps wrong ones, and the caller drops them.
        """
        source = self._source
        groups, count, keys = index_distinct_keys(
            [t.select(list(on)) for t, on in zip(sides, source.on, strict=True)]
        )
        rows = [_as_new_rows(group) for group in groups]
        results = delta_join(
            count,
            (rows[0], rows[1]),
            source.how,
            source.form,
            moving=False,
            deletes=(False, False),
        )
        of_key = key_rows(results, source.form)
        arrays = []
        for column in self._schema:
            side, name = self._held[column.name]
            if source.form == "key" and column.name in source.key:
                key_index = source.on[0].index(name)
                arrays.append(keys[key_index].take(pa.array(results.group)))
                continue
            refs = of_key[side] if column.name in source.key else results.row[side]
            index = pa.array(refs, mask=refs == ABSENT)
            arrays.append(sides[side].column(name).take(index))
        return pa.table(arrays, schema=self._schema)


def _index_keys_of_table(keys: pa.Table) -> tuple[Ints, pa.Table]:
    """Return the position of each row of ``keys`` among the distinct rows, int64[rows] from 0. Also
    return a table of the distinct rows in that order, with the same columns. A row with a null has
    the position ``NO_GROUP``, -1, and is not among them.
    """
    (group,), _, columns = index_distinct_keys([keys])
    return group, pa.table(columns, names=keys.schema.names)


def _as_new_rows(group: Ints) -> SideRows:
    """Return rows as the function ``delta_join`` takes them: all new, none of them a tombstone,
    without event times. ``group``: the index of each row's join key, int64[rows], or ``NO_GROUP``
    for a key with a null.
    """
    fresh = np.ones(len(group), np.bool_)
    return SideRows(group, fresh, ~fresh, np.full(len(group), NO_TIME))
