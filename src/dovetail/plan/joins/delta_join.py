"""Joins of two tables without state, and the lookups that such a join needs.

A *delta join* answers each change of one table by a lookup in the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql.types import StructType

from dovetail.laws.joins.delta_join import Form
from dovetail.laws.joins.table_join import sides_preserved
from dovetail.lookup_sources.result_lookup import ChainLookup
from dovetail.lookup_sources.source import Index, LookupSource
from dovetail.plan.nodes import (
    ChangeKinds,
    Derived,
    Entry,
    JoinNode,
    Source,
    Text,
    right_key_name,
    with_right_key,
)
from dovetail.plan.types.arrow import arrow_schema


@dataclass(frozen=True, eq=False, kw_only=True)
class DeltaJoin(JoinNode):
    """A join of two tables without state: each change of one side is looked up in the other."""

    kind: ClassVar[str] = "tables by lookups"
    eventual = True
    has_own_key = True

    left: Entry
    right: Entry
    on: tuple[tuple[str, str], ...]
    """The join key: a left and a right column for each part."""
    form: Form
    """The form of the result's key, as ``delta_options.key_form`` returns it."""
    cache: tuple[int, int]
    """The most rows of the left and of the right side that a task keeps between batches."""

    @property
    def manner(self) -> str:
        """A few words for ``explain`` on how rows of both sides match, such as ``by lookups on
        city``.
        """
        on = (left if left == right else f"{left} = {right}" for left, right in self.on)
        return f"by lookups on {', '.join(on)}"

    @property
    def key(self) -> StructType:
        """The left key, followed by the right key if the left key does not identify a result
        (``has_right_key``). Right columns have ``right_`` before their names.
        """
        if not self.has_right_key:
            return self.left.key
        return with_right_key(self.left.key, self.right.key)

    @property
    def has_right_key(self) -> bool:
        """True if the right key is part of the result's key. It is in the form ``"pair"``, in which
        a left row may match several right ones. It is also in the form ``"left"``, one match for
        each left row, if right rows may appear alone. It never is in the form ``"key"``, in which
        both sides are joined by their whole keys.
        """
        return self.form == "pair" or (self.form == "left" and sides_preserved(self.how)[1])

    @property
    def null_keys(self) -> bool:
        """True if a row's key may contain nulls: if the key has both sides' keys and a side's row
        may appear alone, or if a side has null keys.
        """
        return (self.how != "inner" and self.has_right_key) or super().null_keys

    def options(self, text: Text) -> Mapping[str, Any]:
        """Return, as JSON data, the options on which stored state depends: ``on`` and ``form``.
        ``on`` has a pair of a left and a right column for each part of the join key. ``form`` is
        the form of the result's key: ``"pair"`` for both keys, ``"left"`` for the left one,
        ``"key"`` for one key of both sides. ``text`` is not used, as there are no expressions.
        """
        return {"on": [list(pair) for pair in self.on], "form": self.form}


def lookup_of(entry: Entry) -> LookupSource | None:
    """Return the store in which the rows of a join's side ``entry`` are looked up, or None if the
    side has none.

    A source has the one that ``with_lookup`` gave it. A delta join's result has a ``ChainLookup``
    over the stores of both sides, if both have one and the join selects by names only. Its indexes
    are those of both stores by whose columns a lookup can start, under the result's names. Other
    nodes, views among them, have none. No store is asked.
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
    columns = sides_of_columns(node)
    leading = {
        name: location for name, location in columns.items() if _can_start_lookup(node, name)
    }
    indexes = []
    for side, source in enumerate(sources):
        primary = Index("PRIMARY KEY", source.key)
        for index in (primary, *source.indexes):
            names = {location[1]: name for name, location in leading.items() if location[0] == side}
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
        columns=tuple((name, *location) for name, location in columns.items()),
        types=tuple(
            (side_index, field.name, field.type)
            for side_index, side in enumerate((node.left, node.right))
            for field in arrow_schema(side.row)
        ),
        leading=tuple(leading),
        indexes=tuple(indexes),
    )


def sides_of_columns(node: DeltaJoin) -> dict[str, tuple[int, str]]:
    """Return, for each column of a delta join's result by name, its side (0 left, 1 right) and the
    name of its column there. Key columns come first, then those of the selection in its order.

    The selection must have no expressions. A key column that both sides share counts as the left
    one.
    """
    columns = {name: (0, name) for name in node.left.key.names}
    if node.has_right_key:
        columns |= {right_key_name(name): (1, name) for name in node.right.key.names}
    for selected in node.select:
        assert selected.ref is not None
        columns[selected.name] = (int(selected.ref[0] == "right"), selected.ref[1])
    return columns


def _can_start_lookup(node: DeltaJoin, name: str) -> bool:
    """Return True if a lookup of the join's results by their column ``name`` can start with a
    lookup in the side that has the column. It can if all results with a value of the column stem
    from that side's rows with the value. The form is that of the result's key:

    | column | ``"pair"``: both keys | ``"left"``: left key | ``"key"``: one shared key |
    |---|---|---|---|
    | value column | True | True | True |
    | left key column | True | True | unless right rows may appear alone |
    | right key column (``right_…``) | True | False | not in the key |
    """
    if name not in node.key.names:
        return True
    if name in node.left.key.names:
        # With one key for both sides, a right row without a match has a key that no left row has.
        return node.form != "key" or not sides_preserved(node.how)[1]
    return node.form == "pair"


def changes_of(entry: Entry) -> ChangeKinds:
    """Return the changes that a join's side ``entry`` may have. ``"insert"``: each key's row comes
    once, and never changes or goes. ``"upsert"``: rows also change, but none is deleted. ``"all"``:
    rows are also deleted.

    For a source they are the user's declaration; by default ``"upsert"`` if it has no column for
    deletions, else ``"all"``. For a delta join's result they follow from the join and its sides.
    For any other node they are ``"all"``.
    """
    if isinstance(entry, Source):
        return entry.changes or ("upsert" if entry.deleted is None else "all")
    node = entry.node if isinstance(entry, Derived) else entry
    if not isinstance(node, DeltaJoin):
        return "all"
    kinds = {changes_of(node.left), changes_of(node.right)}
    alone = sides_preserved(node.how)
    taken_back = any(alone) if node.form == "pair" else node.form == "left" and alone[1]
    moving = node.form == "left" and not has_fixed_key(node.left, [left for left, _ in node.on])
    if "all" in kinds or taken_back or (moving and not alone[0]):
        return "all"
    return "insert" if kinds == {"insert"} and node.how == "inner" else "upsert"


def has_fixed_key(entry: Entry, columns: Sequence[str]) -> bool:
    """Return True if each row of the side ``entry`` keeps its values of ``columns``, its part of
    the join key, until its key's tombstone. It does if each of them is a column of the side's key,
    or if the side's rows are only inserted (``changes_of``).
    """
    return set(columns) <= set(entry.key.names) or changes_of(entry) == "insert"


def needed_columns(node: DeltaJoin) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the columns that a delta join reads of the left and of the right side, as
    a pair of sets.

    These are each side's key, its join key and its selected columns. If the selection has an
    expression, they are all columns of both sides.
    """
    needed = []
    for side_index, (name, side) in enumerate((("left", node.left), ("right", node.right))):
        columns = {*side.key.names, *(pair[side_index] for pair in node.on)}
        if any(selected.ref is None for selected in node.select):
            columns |= set(side.values.names)
        columns |= {s.ref[1] for s in node.select if s.ref is not None and s.ref[0] == name}
        needed.append(frozenset(columns))
    return needed[0], needed[1]
