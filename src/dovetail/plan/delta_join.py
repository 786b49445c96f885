"""Two tables joined without state; and these tables as the join looks them up: where, by what, and
how they may change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql.types import StructType

from dovetail.laws.delta_join import Form
from dovetail.laws.table_join import preserved
from dovetail.lookup.chain import ChainLookup
from dovetail.lookup.source import Index, LookupSource
from dovetail.plan.arrow import arrow_schema
from dovetail.plan.nodes import (
    ChangeKinds,
    Derived,
    Entry,
    Join,
    Source,
    Text,
    right_key,
    with_right_key,
)


@dataclass(frozen=True, eq=False, kw_only=True)
class DeltaJoin(Join):
    """Two tables joined without state, each looked up where the other changes. ``on``: the left and
    the right column of each part of the join key; ``form``: what the result's key is; ``cache``:
    how many rows of each side a task keeps between batches.
    """

    kind: ClassVar[str] = "tables by look-ups"
    eventual = True
    has_own_key = True

    left: Entry
    right: Entry
    on: tuple[tuple[str, str], ...]
    form: Form
    cache: tuple[int, int]

    @property
    def manner(self) -> str:
        """How the sides meet, in words."""
        on = (left if left == right else f"{left} = {right}" for left, right in self.on)
        return f"by look-ups on {', '.join(on)}"

    @property
    def key(self) -> StructType:
        """The left side's key and, where it does not tell the results apart, the right side's."""
        if not self.has_right_key:
            return self.left.key
        return with_right_key(self.left.key, self.right.key)

    @property
    def has_right_key(self) -> bool:
        """Whether the right side's key is part of the result's."""
        return self.form == "pair" or (self.form == "left" and preserved(self.how)[1])

    @property
    def null_keys(self) -> bool:
        """Where a side's rows appear alone, or a side's keys have nulls."""
        return (self.how != "inner" and self.has_right_key) or super().null_keys

    def options(self, text: Text) -> Mapping[str, Any]:
        """What is equal, and the key."""
        return {"on": [list(pair) for pair in self.on], "form": self.form}


def lookup_of(entry: Entry) -> LookupSource | None:
    """Where a side's rows are looked up, None for nowhere: a table's own source, or, of a delta
    join's result, both of its tables, one after the other.
    """
    if isinstance(entry, Source):
        return entry.lookup
    node = entry.node if isinstance(entry, Derived) else entry
    if not isinstance(node, DeltaJoin) or any(s.ref is None for s in node.select):
        return None
    left, right = lookup_of(node.left), lookup_of(node.right)
    if left is None or right is None:
        return None
    sources = (left, right)
    columns = held_columns(node)
    known = {name: held for name, held in columns.items() if _leads(node, name)}
    indexes = []
    for side, source in enumerate(sources):
        primary = Index("PRIMARY KEY", source.key)
        for index in (primary, *source.indexes):
            names = {held[1]: name for name, held in known.items() if held[0] == side}
            if all(column in names for column in index.columns):
                renamed = tuple(names[column] for column in index.columns)
                indexes.append(Index(f"{index.name} of {source.title}", renamed))
    return ChainLookup(
        sides=sources,
        keys=(tuple(node.left.key.names), tuple(node.right.key.names)),
        on=tuple(zip(*node.on, strict=True)),  # type: ignore[arg-type]
        how=node.how,
        form=node.form,
        key=tuple(node.key.names),
        columns=tuple((name, *held) for name, held in columns.items()),
        types=tuple(
            (number, field.name, field.type)
            for number, side in enumerate((node.left, node.right))
            for field in arrow_schema(side.row)
        ),
        leading=tuple(known),
        indexes=tuple(indexes),
    )


def held_columns(node: DeltaJoin) -> dict[str, tuple[int, str]]:
    """The side, 0 or 1, and the column behind each column of a result that computes none."""
    held = {name: (0, name) for name in node.left.key.names}
    if node.has_right_key:
        held |= {right_key(name): (1, name) for name in node.right.key.names}
    for selected in node.select:
        assert selected.ref is not None
        held[selected.name] = (int(selected.ref[0] == "right"), selected.ref[1])
    return held


def _leads(node: DeltaJoin, name: str) -> bool:
    """Whether the rows with a value of a result's column are those of its side's table with it."""
    if name not in node.key.names:
        return True
    if name in node.left.key.names:
        # Under one key for both sides, right rows that stand alone have a key without a left row.
        return node.form != "key" or not preserved(node.how)[1]
    return node.form == "pair"


def changes_of(entry: Entry) -> ChangeKinds:
    """Which changes a side may have: what is said of a table, by default all that its changelog can
    say; of a delta join's result what its law gives.
    """
    if isinstance(entry, Source):
        return entry.changes or ("upsert" if entry.deleted is None else "all")
    node = entry.node if isinstance(entry, Derived) else entry
    if not isinstance(node, DeltaJoin):
        return "all"
    kinds = {changes_of(node.left), changes_of(node.right)}
    alone = preserved(node.how)
    taken_back = any(alone) if node.form == "pair" else node.form == "left" and alone[1]
    moving = node.form == "left" and not has_fixed_key(node.left, [left for left, _ in node.on])
    if "all" in kinds or taken_back or (moving and not alone[0]):
        return "all"
    return "insert" if kinds == {"insert"} and node.how == "inner" else "upsert"


def has_fixed_key(entry: Entry, columns: Sequence[str]) -> bool:
    """Whether each of a side's rows has one join key as long as it is there, and its tombstones
    tell it.
    """
    return set(columns) <= set(entry.key.names) or changes_of(entry) == "insert"


def needed_columns(node: DeltaJoin) -> tuple[frozenset[str], frozenset[str]]:
    """The columns of each side that a result needs: keys, join keys and what is selected; all,
    where a selection computes.
    """
    needed = []
    for number, (name, side) in enumerate((("left", node.left), ("right", node.right))):
        columns = {*side.key.names, *(pair[number] for pair in node.on)}
        if any(selected.ref is None for selected in node.select):
            columns |= set(side.values.names)
        columns |= {s.ref[1] for s in node.select if s.ref is not None and s.ref[0] == name}
        needed.append(frozenset(columns))
    return needed[0], needed[1]
