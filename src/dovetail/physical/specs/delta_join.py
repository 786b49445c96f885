"""The law of a delta join: how it looks each side up, and the columns that reach it.

A delta join stores nothing. It looks up the other side of each change in a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from dovetail.base.columns import CLOCK
from dovetail.errors import PlanError
from dovetail.laws.joins.delta_join import Form
from dovetail.laws.joins.table_join import How
from dovetail.lookup_sources.source import Index, LookupSource, index_for
from dovetail.physical.source import SourceSpec
from dovetail.physical.specs.law import Law, Sources
from dovetail.plan.joins import delta_join


@dataclass(frozen=True)
class DeltaJoinSide:
    """One side of a delta join. Columns are given by their indices, from 0, among the user columns
    of its source.
    """

    lookup: LookupSource
    """The store that has its rows."""
    key: tuple[int, ...]
    """The columns of its primary key."""
    values: tuple[int, ...]
    """The columns that its leaf has as values; those of the right side begin with ``key``."""
    unique: bool
    """True if at most one of its rows has a given join key."""
    index: Index
    """The index by which the store finds its rows."""
    deletes: bool
    """True if it may have tombstones."""
    cache: int
    """The count of its rows that a task caches at most; 0 for no cache."""


@dataclass(frozen=True)
class SettleLaw(Law):
    """The last change of each primary key in a batch.

    It comes before a delta join whose left rows may change their join key.
    """

    REASON: ClassVar[str] = "only a key's last change looks rows up"

    primary: tuple[int, ...]
    """The indices of the primary key's columns, from 0, among the user columns."""
    columns: tuple[str, ...]
    """The names of the columns that the join reads."""

    stateful: ClassVar[bool] = False


@dataclass(frozen=True)
class DeltaJoinLaw(Law):
    """A join that looks each side up in a store."""

    REASON: ClassVar[str] = "rows of one key are looked up once"

    name: str
    """The name that its metric begins with."""
    how: How
    form: Form
    right_key: bool
    """True if the right primary key is part of the result's key."""
    moving: bool
    """True if a left row may change its join key."""
    sides: tuple[DeltaJoinSide, DeltaJoinSide]
    """The left side, then the right side."""

    stateful: ClassVar[bool] = False

    @property
    def leaves(self) -> tuple[int, ...]:
        """The indices of the inputs behind the two leaves of a change, ``(0, 1)``: the left row,
        then the right row.
        """
        return (0, 1)

    def key_fields(self, sources: Sources) -> list[pa.Field]:
        """Return the key columns of a change: the left primary key, then the right one if
        ``right_key`` is set. In the form ``"key"`` the join key is the left primary key, in its
        order. ``sources``: the left and the right side, by join key.
        """
        sides = self.sides if self.right_key else self.sides[:1]
        return [
            source.shape.user_fields[column]
            for source, side in zip(sources, sides, strict=False)
            for column in side.key
        ]

    def value_types(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """Return the types of a leaf's columns that the result needs, in order. ``leaf``: 0 for the
        left row; 1 for the right row, whose primary key columns come first. ``sources``: the left
        and the right side, by join key.
        """
        fields = sources[leaf].shape.user_fields
        return [fields[column].type for column in self.sides[leaf].values]

    def lookup_texts(self, sources: Sources) -> list[str]:
        """Return two lines of text, left side first: the store, its index, the columns read and the
        rows that a task caches, such as ``cache 1,000 rows a task`` or ``cache none``. ``sources``:
        the left and the right side, by join key.
        """
        lines = []
        for source, side in zip(sources, self.sides, strict=True):
            fields = source.shape.user_fields
            read = dict.fromkeys(fields[column].name for column in (*side.key, *side.values))
            cached = f"{side.cache:,} rows a task" if side.cache else "none"
            where = f"{side.lookup.title} by {side.index.summary}"
            lines.append(f"{where}: {', '.join(read)}; cache {cached}")
        return lines


def join_key_input(source: SourceSpec, primary: tuple[str, ...]) -> SourceSpec:
    """Return the layout ``source`` as an input of a delta join: rows with nulls in their join key
    stay. Rows with a null in a ``primary`` column do not. Of a delete, only those ``primary``
    columns count that are also in the join key.

    ``primary``: the names of the primary key's columns; empty if these may be null, too.
    """
    return replace(
        source,
        shape=replace(source.shape, primary=primary),
        meaning=replace(source.meaning, null_keys=True),
    )


def settled_source(source: SourceSpec) -> SourceSpec:
    """Return the layout of the rows that ``SettleLaw`` emits for ``source``, the last change of
    each key. The columns of ``shape`` are the same. Of the columns on order, only ``_sequence`` of
    a log that all inputs share stays. A new one is ``_clock``, for each row the largest timestamp
    of its log so far, so pack adds no clock.
    """
    arrival = replace(
        source.arrival,
        ordered_by="shared log" if source.arrival.by_shared_log else None,
        clocked=False,
        numbered=False,
        carries=(CLOCK,),
    )
    return replace(source, arrival=arrival)


def delta_join_law(node: delta_join.DeltaJoin, sources: Sequence[SourceSpec]) -> DeltaJoinLaw:
    """Return the law of a delta join: for each side its store, the columns read, and the count of
    rows that a task may cache.

    ``sources``: the layouts of the left and the right side, by join key, with the columns that
    ``needed_columns`` names. The value columns of the right side begin with its primary key. The
    count is that of ``node.cache``, 0 for no cache. It is also 0 for a side whose rows may change
    their join key.

    Raises ``PlanError`` if a side has no lookup source. Its lookup source must have an index whose
    columns are part of the join key; this is asserted.
    """
    needed = delta_join.needed_columns(node)
    sides = []
    for side_index, entry in enumerate((node.left, node.right)):
        source, on = sources[side_index], [pair[side_index] for pair in node.on]
        value_names = [name for name in entry.values.names if name in needed[side_index]]
        lookup = delta_join.lookup_of(entry)
        if lookup is None:
            raise PlanError(node.name, f"{entry.name} has no lookup source", "Use with_lookup")
        index = index_for(lookup, on)
        assert index is not None, "a limitation is broken"
        sides.append(
            DeltaJoinSide(
                lookup=lookup,
                key=_user_column_numbers(source, entry.key.names),
                values=_user_column_numbers(
                    source, value_names if side_index == 0 else [*entry.key.names, *value_names]
                ),
                unique=node.form == "key" or (node.form == "left" and side_index == 1),
                index=index,
                deletes=delta_join.changes_of(entry) == "all",
                cache=node.cache[side_index] if delta_join.has_fixed_key(entry, on) else 0,
            )
        )
    return DeltaJoinLaw(
        name=node.label or f"{node.left.name}-{node.right.name}",
        how=node.how,
        form=node.form,
        right_key=node.has_right_key,
        moving=not delta_join.has_fixed_key(node.left, [left for left, _ in node.on]),
        sides=(sides[0], sides[1]),
    )


def _user_column_numbers(source: SourceSpec, names: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of the columns ``names`` among the user columns of a source, in the order
    of ``names``. User columns are those after ``ROW_COLUMNS`` and count from 0. Raises
    ``ValueError`` for an unknown name.
    """
    columns = [field.name for field in source.shape.user_fields]
    return tuple(columns.index(name) for name in names)
