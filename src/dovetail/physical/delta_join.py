"""What a delta join does: how it looks each side up, and what reaches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from dovetail.columns import CLOCK
from dovetail.errors import PlanError
from dovetail.laws.delta_join import Form
from dovetail.laws.table_join import How
from dovetail.lookup.source import Index, LookupSource, covering
from dovetail.physical.law import Law, Sources
from dovetail.physical.source import SourceSpec
from dovetail.plan import delta_join


@dataclass(frozen=True)
class LookedUp:
    """One side of a delta join: ``lookup``, where its rows are found; ``key``: the numbers of its
    primary key's columns among its source's user columns; ``values``: of those that its leaf has as
    values; ``unique``: whether the join key tells its rows apart; ``index``: by which it finds
    them; ``deletes``: whether it may have tombstones; ``cache``: how many rows of it a task keeps.
    """

    lookup: LookupSource
    key: tuple[int, ...]
    values: tuple[int, ...]
    unique: bool
    index: Index
    deletes: bool
    cache: int


@dataclass(frozen=True)
class Settle(Law):
    """The last change of each primary key, whose columns have the numbers ``primary`` among the
    user columns: before a delta join whose left rows may change their join key. ``columns``: what
    the join reads.
    """

    primary: tuple[int, ...]
    columns: tuple[str, ...]

    stateful: ClassVar[bool] = False
    room = "delta_join"


@dataclass(frozen=True)
class DeltaJoin(Law):
    """A delta join. ``name``: what its metric is called; ``right_key``: whether the right primary
    key is part of the result's; ``moving``: whether a left row may change its join key.
    """

    name: str
    how: How
    form: Form
    right_key: bool
    moving: bool
    sides: tuple[LookedUp, LookedUp]

    stateful: ClassVar[bool] = False
    room = "delta_join"

    @property
    def leaves(self) -> tuple[int, ...]:
        """The left row, then the right one."""
        return (0, 1)

    def key(self, sources: Sources) -> list[pa.Field]:
        """The left side's primary key and, where it does not tell results apart, the right's."""
        sides = self.sides if self.right_key else self.sides[:1]
        return [
            source.fields(source.user_columns)[column]
            for source, side in zip(sources, sides, strict=False)
            for column in side.key
        ]

    def values(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """The types of the columns that the result needs."""
        held = sources[leaf].fields(sources[leaf].user_columns)
        return [held[column].type for column in self.sides[leaf].values]

    def looks_up(self, sources: Sources) -> list[str]:
        """Each side: where, by which index, which columns of it, and how many rows are cached."""
        lines = []
        for source, side in zip(sources, self.sides, strict=True):
            held = source.fields(source.user_columns)
            read = dict.fromkeys(held[column].name for column in (*side.key, *side.values))
            kept = f"{side.cache:,} rows a task" if side.cache else "none"
            where = f"{side.lookup.title} by {side.index.summary}"
            lines.append(f"{where}: {', '.join(read)}; cache {kept}")
        return lines


def settled(source: SourceSpec) -> SourceSpec:
    """A source whose changes have met by primary key: they have their clocks."""
    return replace(
        source,
        files=False,
        log_partition=False,
        sequence=source.ordered,
        carries=(CLOCK,),
        clocked=False,
        numbered=False,
    )


def eventual(node: delta_join.DeltaJoin, sources: Sequence[SourceSpec]) -> DeltaJoin:
    """What a delta join does, on these sources."""
    needed = delta_join.needed_columns(node)
    sides = []
    for number, entry in enumerate((node.left, node.right)):
        source, on = sources[number], [pair[number] for pair in node.on]
        own = [name for name in entry.values.names if name in needed[number]]
        lookup = delta_join.lookup_of(entry)
        if lookup is None:
            raise PlanError(node.name, f"{entry.name} has no look-up source", "Use with_lookup")
        index = covering(lookup, on)
        assert index is not None, "a limitation is broken"
        sides.append(
            LookedUp(
                lookup=lookup,
                key=_places(source, entry.key.names),
                values=_places(source, own if number == 0 else [*entry.key.names, *own]),
                unique=node.form == "key" or (node.form == "left" and number == 1),
                index=index,
                deletes=delta_join.changes_of(entry) == "all",
                cache=node.cache[number] if delta_join.has_fixed_key(entry, on) else 0,
            )
        )
    return DeltaJoin(
        name=node.label or f"{node.left.name}-{node.right.name}",
        how=node.how,
        form=node.form,
        right_key=node.has_right_key,
        moving=not delta_join.has_fixed_key(node.left, [left for left, _ in node.on]),
        sides=(sides[0], sides[1]),
    )


def _places(source: SourceSpec, names: Sequence[str]) -> tuple[int, ...]:
    columns = [field.name for field in source.fields(source.user_columns)]
    return tuple(columns.index(name) for name in names)
