"""The plan of a join over snapshots: frozen nodes with their keys, checked when they are built.

A row of a node is known by its key, and every key is unique. A source's key is declared. A join's
is the left row's key where no left row has more than one result, and otherwise the keys of both
rows, the right's columns named ``right_<column>``, null where a side is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from pyspark.sql.types import StructField, StructType

from dovetail.columns import is_reserved
from dovetail.errors import PlanError
from dovetail.laws.table_join import How, preserved
from dovetail.plan.checks import keyed, refuse_duplicates, refuse_key_type
from dovetail.plan.matching import On, pairs_of
from dovetail.plan.nodes import Selected, Source, right_key
from dovetail.plan.select import Selection, resolve, select_all

SIGN, LEFT_AGE, RIGHT_AGE = "_sign", "_left_age", "_right_age"
OWN = (SIGN, LEFT_AGE, RIGHT_AGE, "_change_type", "_commit_version", "_commit_timestamp")


@dataclass(frozen=True, eq=False)
class SnapshotSource:
    """A Delta table: at every version, one row per key. ``table_id`` is Delta's own id of it."""

    name: str
    path: str
    table_id: str
    key: StructType
    values: StructType

    @property
    def columns(self) -> list[str]:
        """All columns, the key's first."""
        return [*self.key.names, *self.values.names]


@dataclass(frozen=True)
class KeyColumn:
    """A key column of a join's result and the columns that it holds: the left's, the right's, or
    where both are named the one that is there.
    """

    name: str
    left: str | None
    right: str | None


@dataclass(frozen=True, eq=False, kw_only=True)
class SnapshotJoin:
    """Two nodes joined where the columns of ``on``, pairs of a left and a right one, are equal."""

    left: SnapshotNode
    right: SnapshotNode
    on: tuple[tuple[str, str], ...]
    how: How
    select: tuple[Selected, ...]
    values: StructType
    name: str

    @cached_property
    def key_columns(self) -> tuple[KeyColumn, ...]:
        """Where the result's key comes from."""
        left, right = self.left.key.names, self.right.key.names
        if self.by_key:
            return tuple(KeyColumn(a, a, b) for a, b in zip(left, right, strict=True))
        columns = [KeyColumn(name, name, None) for name in left]
        if not (self.one_each(1) and not preserved(self.how)[1]):
            taken = {name.lower() for name in left}
            for name in right:
                free = right_key(name)
                while free.lower() in taken:
                    free = right_key(free)
                taken.add(free.lower())
                columns.append(KeyColumn(free, None, name))
        return tuple(columns)

    @cached_property
    def key(self) -> StructType:
        """The key columns with their types."""
        fields = []
        for column in self.key_columns:
            side, name = (
                (self.left, column.left) if column.left is not None else (self.right, column.right)
            )
            assert name is not None
            fields.append(StructField(column.name, side.key[name].dataType, True))
        return StructType(fields)

    @property
    def columns(self) -> list[str]:
        """All columns, the key's first."""
        return [*self.key.names, *self.values.names]

    @property
    def sides(self) -> tuple[SnapshotNode, SnapshotNode]:
        """Left and right, by their numbers."""
        return self.left, self.right

    @property
    def by_key(self) -> bool:
        """Whether both keys are joined, column by column: each row has at most one other."""
        keys = zip(self.left.key.names, self.right.key.names, strict=False)
        return len(self.left.key) == len(self.right.key) and set(self.on) == set(keys)

    def on_columns(self, side: int) -> list[str]:
        """The columns of a side that are compared."""
        return [pair[side] for pair in self.on]

    def one_each(self, side: int) -> bool:
        """Whether a value of a side's compared columns is at most one row's."""
        return set(self.sides[side].key.names) <= set(self.on_columns(side))

    def preserves(self, side: int) -> bool:
        """Whether a side's rows appear without a match."""
        return preserved(self.how)[side]

    @cached_property
    def origins(self) -> Mapping[str, tuple[str | None, str | None]]:
        """For each plain column of the result, the left or right column whose value it holds, or
        both where it holds the one that is there; (None, None) for an expression.
        """
        found: dict[str, tuple[str | None, str | None]] = {
            column.name: (column.left, column.right) for column in self.key_columns
        }
        for selected in self.select:
            if selected.ref is None:
                found[selected.name] = (None, None)
            else:
                side, name = selected.ref
                found[selected.name] = (name, None) if side == "left" else (None, name)
        return found


SnapshotNode: TypeAlias = SnapshotSource | SnapshotJoin


def source(
    *, path: str, table_id: str, schema: StructType, key: str | Sequence[str], name: str
) -> SnapshotSource:
    """A Delta table with its key, checked."""
    operator = f"snapshot {name}"
    own, values = keyed(operator, key, schema)
    if not own:
        raise PlanError(operator, "no key column is given", "Name at least one in key=")
    for column in schema.names:
        if is_reserved(column) or column.lower() in OWN:
            raise PlanError(
                operator,
                f"column {column!r} has a name that dovetail or the change feed uses itself",
                "Rename it in the table",
            )
    for field in own:
        refuse_key_type(operator, field)
    return SnapshotSource(name, path, table_id, own, values)


def join(
    left: SnapshotNode,
    right: SnapshotNode,
    *,
    on: On | None,
    how: How,
    select: Selection | None,
    name: str | None,
) -> SnapshotJoin:
    """Two nodes joined: everything a user can get wrong is found here."""
    label = name or f"{how} join of {left.name} and {right.name}"
    pairs = tuple((str(a), b) for a, b in pairs_of(label, left, right, on, whole=False))
    shells = shell(left), shell(right)
    both_keys = zip(left.key.names, right.key.names, strict=False)
    one_key = len(left.key) == len(right.key) and set(pairs) == set(both_keys)
    if select is None:
        selected = select_all(label, *shells)
        values = StructType([*left.values.fields, *right.values.fields])
    else:
        selected, values = resolve(label, *shells, how, select, one_key=one_key, repeatable=True)
    node = SnapshotJoin(
        left=left, right=right, on=pairs, how=how, select=selected, values=values, name=label
    )
    refuse_duplicates(label, node.columns, "Leave it out or give it another name with select=")
    _refuse_same_names(label, node)
    return node


def sources(node: SnapshotNode) -> Iterator[SnapshotSource]:
    """The tables from which a node is computed, from left to right; one used twice comes twice."""
    if isinstance(node, SnapshotSource):
        yield node
    else:
        yield from sources(node.left)
        yield from sources(node.right)


def tables(node: SnapshotNode) -> dict[str, SnapshotSource]:
    """Each table that a node reads by its id: all uses of one table share one version of it."""
    return {one.table_id: one for one in sources(node)}


def used_columns(node: SnapshotNode) -> dict[SnapshotSource, frozenset[str]]:
    """The columns that a node needs of each source; changes to others do not concern it."""
    used: dict[SnapshotSource, frozenset[str]] = {}
    _use(node, frozenset(node.columns), used)
    return used


def describe(node: SnapshotNode) -> Any:
    """What a target depends on, as plain data: tables, the columns used, joins, selections."""
    return _describe(node, used_columns(node))


def differences(then: Any, now: Any, where: str = "") -> Iterator[str]:
    """The places where two descriptions differ, each with what was and what is."""
    if isinstance(then, dict) and isinstance(now, dict):
        for part in [*then, *(part for part in now if part not in then)]:
            inner = f"{where}.{part}" if where else part
            yield from differences(then.get(part), now.get(part), inner)
    elif then != now:
        yield f"{where} was {_short(then)} and is {_short(now)}"


def _describe(node: SnapshotNode, used: Mapping[SnapshotSource, frozenset[str]]) -> Any:
    if isinstance(node, SnapshotSource):
        return {
            "table": node.table_id,
            "key": node.key.names,
            "columns": {
                field.name: field.dataType.simpleString()
                for field in (*node.key, *node.values)
                if field.name in used[node]
            },
        }
    return {
        "how": node.how,
        "on": [list(pair) for pair in node.on],
        "select": {
            one.name: _text(str(one.column)) if one.ref is None else ".".join(one.ref)
            for one in node.select
        },
        "left": _describe(node.left, used),
        "right": _describe(node.right, used),
    }


def _refuse_same_names(label: str, node: SnapshotJoin) -> None:
    ids: dict[str, str] = {}
    for one in sources(node):
        if ids.setdefault(one.name, one.table_id) != one.table_id:
            raise PlanError(
                label,
                f"two tables are called {one.name!r}, and commits tell versions by name",
                "Name them with name= in from_delta",
            )


def _text(column: str) -> str:
    """An expression's text without what differs from one process to the next: addresses of Java
    objects, and the numbers of a lambda's variables.
    """
    column = re.sub(r"\[L[\w.$]+;@[0-9a-f]+", "", column)
    bound = re.findall(r"([xyz]_\d+)(?=(?:, [xyz]_\d+)*\)? ->)", column)
    for number, variable in enumerate(dict.fromkeys(bound)):
        column = re.sub(rf"\b{variable}\b", f"variable {number}", column)
    return column


def _use(
    node: SnapshotNode, wanted: frozenset[str], used: dict[SnapshotSource, frozenset[str]]
) -> None:
    if isinstance(node, SnapshotSource):
        used[node] = used.get(node, frozenset()) | wanted | frozenset(node.key.names)
        return
    computes = any(one.ref is None for one in node.select)
    for number, side in enumerate(node.sides):
        needed = {*node.on_columns(number), *side.key.names}
        needed |= {
            origin[number] or ""
            for name, origin in node.origins.items()
            if name in wanted and origin[number] is not None
        }
        _use(side, frozenset(side.columns) if computes else frozenset(needed), used)


def _short(part: Any) -> str:
    if isinstance(part, dict):
        return f"a {part['how']} join" if "how" in part else "a table"
    return "missing" if part is None else repr(part)


def shell(node: SnapshotNode) -> Source:
    """The node's columns as selections know them."""
    return Source(node.name, node.key, node.values)
