"""The plan of a join or aggregate over snapshots: frozen nodes with their keys, checked as they are
built.

A row of a node is known by its key, and every key is unique. The key of a source is declared. The
key of a join is the left row's key if no left row has more than one result. Otherwise it is the
keys of both rows. The right columns are named ``right_<column>`` then, and the columns of a missing
side are null. The key of an aggregate is its group columns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql.types import StructField, StructType

from dovetail.base.columns import is_reserved, quoted
from dovetail.errors import PlanError
from dovetail.iceberg.catalogs import TableAddress
from dovetail.laws.joins.table_join import How, sides_preserved
from dovetail.plan.joins.join_keys import On, pairs_of
from dovetail.plan.nodes import Selected, Source, right_key_name
from dovetail.plan.select import Selection, resolve_selection, select_all, session_for
from dovetail.plan.types.analysis import names_moment
from dovetail.plan.types.arrow import nullable
from dovetail.plan.types.checks import (
    known_field,
    refuse_duplicates,
    refuse_key_type,
    split_key_and_values,
)
from dovetail.platform.spark_errors import reason

SIGN, AGE, LEFT_AGE, RIGHT_AGE = "_sign", "_row_age", "_left_age", "_right_age"
BEFORE, AFTER, APART = "_row_old", "_row_new", "_row_apart"
FAULTY, FRESH = "_row_faulty", "_row_fresh"
TURNS, GONE, COME = "_row_turns", "_row_gone", "_row_come"
IMAGE, COUNT = "_row_image", "_row_count"
INTERNAL_COLUMNS = (
    *(SIGN, AGE, LEFT_AGE, RIGHT_AGE, BEFORE, AFTER, APART, FAULTY, FRESH),
    *(TURNS, GONE, COME, IMAGE, COUNT),
)
"""Column names that stand beside a node's own columns while changes are computed."""
FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
OWN_COLUMNS = (*INTERNAL_COLUMNS, *FEED_COLUMNS)
"""Column names that sources must not have."""
REBUILD = "Let it be made anew with rebuild=True"
"""Advice on a target that must be computed anew."""
THEN_REBUILD = REBUILD[0].lower() + REBUILD[1:]
"""``REBUILD`` within a sentence."""
WRITE_ANEW = "Write the join anew from the present table, then " + THEN_REBUILD
"""Advice on a plan that no longer fits a source."""


@dataclass(frozen=True)
class IcebergTable:
    """An Iceberg table with the columns that it had when the plan was made."""

    address: TableAddress
    """The name of the table and its catalog."""
    columns: str
    """The columns as Iceberg's JSON of a schema."""
    ids: Mapping[str, int]
    """Iceberg's id of each column, by the column's name. No other column ever gets it."""


@dataclass(frozen=True, eq=False)
class SnapshotSource:
    """A Delta or Iceberg table with one row per key at every version.

    The versions of an Iceberg table are the ids of its snapshots; 0 is before the first one.
    """

    name: str
    """The name in errors and commits."""
    path: str
    """The folder of a Delta table; the name of an Iceberg table."""
    table_id: str
    """The id that Delta or Iceberg gives the table; a table made anew has another one."""
    key: StructType
    """The key columns with their types, at least one."""
    values: StructType
    """The other columns with their types, in the order of the table."""
    iceberg: IcebergTable | None = None
    """The Iceberg table; None for a Delta table."""

    @property
    def columns(self) -> list[str]:
        """The names of all columns, key columns first."""
        return [*self.key.names, *self.values.names]


@dataclass(frozen=True)
class KeyColumn:
    """A key column of a join's result, with the column of each side that it comes from.

    With both a left and a right column, it has the value of the side that is present.
    """

    name: str
    left: str | None
    """The left key column, or None."""
    right: str | None
    """The right key column, or None. At least one of both is given."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SnapshotJoin:
    """A join of two plan nodes by equal columns. A null equals nothing."""

    left: SnapshotNode
    right: SnapshotNode
    on: tuple[tuple[str, str], ...]
    """Pairs of a left and a right column that are equal, at least one."""
    how: How
    """The rows kept without a match: ``"inner"`` none, ``"left"``, ``"right"`` or ``"outer"`` both.
    """
    select: tuple[Selected, ...]
    """The value columns of the result, each a column of a side or an expression."""
    values: StructType
    """The names and types of the value columns, in the order of ``select``."""
    name: str
    """The name in errors."""

    @cached_property
    def key_columns(self) -> tuple[KeyColumn, ...]:
        """The key columns of the result in order, each with the left and the right column that it
        comes from. One of these may be None.

        If ``on`` pairs the two keys column by column, and nothing else, each is a pair of both
        sides' columns under the left name. Otherwise the left key is followed by the right key,
        whose columns are named ``right_<column>``, with more prefixes until the name is free. The
        right key is left out if each left row has at most one match and right rows never stay
        alone.
        """
        left, right = self.left.key.names, self.right.key.names
        if self.joins_whole_keys:
            return tuple(KeyColumn(a, a, b) for a, b in zip(left, right, strict=True))
        columns = [KeyColumn(name, name, None) for name in left]
        if not (self.has_one_match(1) and not sides_preserved(self.how)[1]):
            taken = {name.lower() for name in left}
            for name in right:
                free = right_key_name(name)
                while free.lower() in taken:
                    free = right_key_name(free)
                taken.add(free.lower())
                columns.append(KeyColumn(free, None, name))
        return tuple(columns)

    @cached_property
    def key(self) -> StructType:
        """The key columns of the result in order, with their types; each may be null."""
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
        """The names of all columns, key columns first."""
        return [*self.key.names, *self.values.names]

    @property
    def sides(self) -> tuple[SnapshotNode, SnapshotNode]:
        """The left and the right plan node: index 0 is the left side, 1 the right."""
        return self.left, self.right

    @property
    def joins_whole_keys(self) -> bool:
        """True if both sides' whole keys are joined, column by column in order, and nothing else.
        Each row then has at most one match.
        """
        keys = zip(self.left.key.names, self.right.key.names, strict=False)
        return len(self.left.key) == len(self.right.key) and set(self.on) == set(keys)

    def on_columns(self, side: int) -> list[str]:
        """Return the compared columns of a side, in the order of ``on``. ``side``: 0 for the left,
        1 for the right.
        """
        return [pair[side] for pair in self.on]

    def has_one_match(self, side: int) -> bool:
        """Return True if the compared columns of a side contain its whole key. Each row of the
        other side then matches at most one row of this side. ``side``: 0 for the left, 1 for the
        right.
        """
        return set(self.sides[side].key.names) <= set(self.on_columns(side))

    def preserves(self, side: int) -> bool:
        """Return True if rows of a side without a match appear in the result. ``side``: 0 for the
        left, 1 for the right.
        """
        return sides_preserved(self.how)[side]

    @cached_property
    def origins(self) -> Mapping[str, tuple[str | None, str | None]]:
        """The left and the right column behind each column of the result, by the result's name.
        None stands for no column of that side.

        A key column with both has the value of the side that is present. An expression has ``(None,
        None)``.
        """
        origins: dict[str, tuple[str | None, str | None]] = {
            column.name: (column.left, column.right) for column in self.key_columns
        }
        for selected in self.select:
            if selected.ref is None:
                origins[selected.name] = (None, None)
            else:
                side, name = selected.ref
                origins[selected.name] = (name, None) if side == "left" else (None, name)
        return origins


@dataclass(frozen=True, eq=False, kw_only=True)
class SnapshotAggregate:
    """A row for each group of a node's rows. Rows with a null in a group column have no group."""

    input: SnapshotNode
    """The node whose rows are aggregated."""
    key: StructType
    """The group columns, which are the key of the result."""
    aggregates: tuple[Column, ...]
    """The aggregates as Spark expressions, in the order of ``values``."""
    values: StructType
    """The fields of the aggregates."""
    name: str
    """The name in errors."""

    @property
    def columns(self) -> list[str]:
        """The names of all columns, group columns first."""
        return [*self.key.names, *self.values.names]


SnapshotNode: TypeAlias = SnapshotSource | SnapshotJoin | SnapshotAggregate


def source(
    *,
    path: str,
    table_id: str,
    schema: StructType,
    key: str | Sequence[str],
    name: str,
    iceberg: IcebergTable | None = None,
) -> SnapshotSource:
    """Return a plan node for a table with the columns ``schema`` and this key. Nothing is read.

    ``path``: the folder of a Delta table, or the name of an Iceberg table. ``table_id``: the id
    that Delta or Iceberg gives the table, by which a table made anew is recognized. ``key``: the
    names of one column or several. ``name``: the name in errors and commits. ``iceberg``: None for
    a Delta table.

    Raises ``PlanError`` for an empty key, unknown, repeated or reserved column names, and types
    that cannot be keys.
    """
    operator = f"snapshot {name}"
    key_fields, values = split_key_and_values(operator, key, schema)
    if not key_fields:
        raise PlanError(operator, "no key column is given", "Name at least one in key=")
    _refuse_own_names(operator, schema.names, "Rename it in the table")
    for field in key_fields:
        refuse_key_type(operator, field)
    return SnapshotSource(name, path, table_id, key_fields, values, iceberg)


def join(
    left: SnapshotNode,
    right: SnapshotNode,
    *,
    on: On | None,
    how: How,
    select: Selection | None,
    name: str | None,
) -> SnapshotJoin:
    """Return the join of two plan nodes.

    ``on``: left column names, one for each column of the right key, in its order. Or a mapping of
    left columns to right columns, of which any may be named. None pairs the columns of both keys,
    which must have the same names. ``how``: the rows kept without a match: ``"inner"`` none,
    ``"left"``, ``"right"``, or ``"outer"`` both. ``select``: the value columns, None for those of
    both sides. ``name``: None for a name made of both sides' names.

    Raises ``PlanError`` for unknown, ambiguous or duplicate column names, in the result as well,
    and for two tables of one name. Also for compared columns of different types, or of a type that
    cannot be a key. Also for a selection that Spark does not resolve, that depends on chance or the
    time, or that computes without an active session.
    """
    label = name or f"{how} join of {left.name} and {right.name}"
    pairs = tuple((str(a), b) for a, b in pairs_of(label, left, right, on, whole=False))
    shells = plan_source(left), plan_source(right)
    both_keys = zip(left.key.names, right.key.names, strict=False)
    one_key = len(left.key) == len(right.key) and set(pairs) == set(both_keys)
    if select is None:
        selected = select_all(label, *shells)
        values = StructType([*left.values.fields, *right.values.fields])
    else:
        selected, values = resolve_selection(
            label, *shells, how, select, one_key=one_key, repeatable=True
        )
    _refuse_own_names(label, values.names, "Give it another name in select=", INTERNAL_COLUMNS)
    node = SnapshotJoin(
        left=left, right=right, on=pairs, how=how, select=selected, values=values, name=label
    )
    refuse_duplicates(label, node.columns, "Leave it out or give it another name with select=")
    _refuse_same_names(label, node)
    return node


def aggregate(
    node: SnapshotNode, by: Sequence[str], aggregates: Mapping[str, Column]
) -> SnapshotAggregate:
    """Return the aggregate of a node's rows by the columns ``by``, which become its key.

    ``aggregates``: Spark expressions by the names of their result columns. Raises ``PlanError``
    without a group column or an aggregate, and for names that are unknown, reserved or duplicate.
    Also for a group column of a type that cannot be a key, and without an active session. Also for
    an aggregate that depends on the present time or the user, or that Spark does not resolve.
    """
    label = f"aggregate of {node.name} by {', '.join(by)}"
    row = StructType([*node.key, *node.values])
    if not by:
        raise PlanError(label, "no group column is given", "Name at least one in group_by()")
    if not aggregates:
        raise PlanError(label, "no aggregate is given", 'Give one, such as total=F.sum("amount")')
    key = [known_field(label, "group_by()", name, row, input_name=node.name) for name in by]
    for field in key:
        refuse_key_type(label, field)
    _refuse_own_names(label, aggregates, "Give the aggregate another name")
    refuse_duplicates(label, [*by, *aggregates], "Give the aggregate another name")
    values = [_aggregate_field(label, row, by, *item) for item in aggregates.items()]
    return SnapshotAggregate(
        input=node,
        key=StructType(key),
        aggregates=tuple(aggregates.values()),
        values=StructType(values),
        name=label,
    )


def _aggregate_field(
    label: str, row: StructType, by: Sequence[str], name: str, column: Column
) -> StructField:
    """Return the field of the aggregate ``column`` of rows in groups ``by``: its name and type,
    nullable at every depth.

    ``label``: the subject of errors. ``row``: the columns of the rows. ``name``: that of the result
    column. Raises ``PlanError`` for an aggregate that depends on the present time or the user, or
    that Spark does not resolve. Also without an active session.
    """
    if names_moment(column):
        raise PlanError(
            label,
            f"{name}= does not make the same of the same rows each time",
            "Leave out the time of the moment and the user, or store them in the table itself",
        )
    rows = session_for(label, "agg()").createDataFrame([], row)
    try:
        field = rows.groupBy(*map(quoted, by)).agg(column.alias(name)).schema.fields[-1]
    except PySparkException as error:
        raise PlanError(
            label,
            f"{name}= does not resolve: {reason(error)}",
            f"Aggregate columns of this table: {', '.join(row.names)}",
        ) from error
    return StructField(name, nullable(field.dataType), True)


def sources(node: SnapshotNode) -> Iterator[SnapshotSource]:
    """Yield the tables below a plan node, from left to right. A table used twice comes twice. A
    node that is a table yields itself.
    """
    if isinstance(node, SnapshotSource):
        yield node
    elif isinstance(node, SnapshotAggregate):
        yield from sources(node.input)
    else:
        yield from sources(node.left)
        yield from sources(node.right)


def distinct_sources(node: SnapshotNode) -> list[SnapshotSource]:
    """Return each source below a plan node once, from left to right.

    Several of them may read one table, under different names or by different keys. They share its
    table id, and so one version of it.
    """
    return [*dict.fromkeys(sources(node))]


def used_columns(node: SnapshotNode) -> dict[SnapshotSource, frozenset[str]]:
    """Return the names of the columns that a plan node needs of each source below it, key columns
    included. Changes of other columns do not matter.

    Two sources that read one table have an entry each. A source that the plan uses twice has all
    columns that either use needs.
    """
    used: dict[SnapshotSource, frozenset[str]] = {}
    _add_used(node, frozenset(node.columns), used)
    return used


def describe(node: SnapshotNode) -> Any:
    """Return all that the rows of a plan node depend on, as nested dictionaries of JSON data. They
    have the ids of tables, the used columns with types, joins, selections and aggregates.

    A target keeps this description. Equal ones mean that the target is of the same plan. Names of
    tables and joins do not count.
    """
    return _describe(node, used_columns(node))


def differences(then: Any, now: Any, where: str = "") -> Iterator[str]:
    """Yield a text for each part in which two descriptions differ, such as ``left.how was 'inner'
    and is 'left'``. Nodes of different kinds are one part. Nothing is yielded if both are equal.

    ``then``, ``now``: results of ``describe``, or parts of them, the former and the present one;
    None for a part that is missing. ``where``: the path to these parts, its names joined by dots;
    empty for whole descriptions, which a text calls ``it``.
    """
    if isinstance(then, dict) and isinstance(now, dict) and _kind_of(then) == _kind_of(now):
        for part in [*then, *(part for part in now if part not in then)]:
            inner = f"{where}.{part}" if where else part
            yield from differences(then.get(part), now.get(part), inner)
    elif then != now:
        yield f"{where or 'it'} was {_part_in_words(then)} and is {_part_in_words(now)}"


def _describe(node: SnapshotNode, used: Mapping[SnapshotSource, frozenset[str]]) -> Any:
    """Return the description of a plan node and of all nodes below it, as JSON data. ``used``: by
    source, the names of the columns to describe; other columns are left out.
    """
    if isinstance(node, SnapshotSource):
        return {
            "table": node.table_id,
            "key": node.key.names,
            "columns": {
                field.name: _described_type(node, field)
                for field in (*node.key, *node.values)
                if field.name in used[node]
            },
        }
    if isinstance(node, SnapshotAggregate):
        return {
            "by": node.key.names,
            "aggregates": {
                name: _stable_text(str(column))
                for name, column in zip(node.values.names, node.aggregates, strict=True)
            },
            "input": _describe(node.input, used),
        }
    return {
        "how": node.how,
        "on": [list(pair) for pair in node.on],
        "select": {
            selected.name: _stable_text(str(selected.column))
            if selected.ref is None
            else ".".join(selected.ref)
            for selected in node.select
        },
        "left": _describe(node.left, used),
        "right": _describe(node.right, used),
    }


def _described_type(source: SnapshotSource, field: StructField) -> str:
    """Return a column's type in Spark's words. For an Iceberg table, Iceberg's id of the column
    follows, such as ``bigint, column 3``.
    """
    type_ = field.dataType.simpleString()
    return type_ if source.iceberg is None else f"{type_}, column {source.iceberg.ids[field.name]}"


def _refuse_own_names(
    operator: str, columns: Iterable[str], remedy: str, own: Collection[str] = OWN_COLUMNS
) -> None:
    """Raise ``PlanError`` for the first of ``columns``, names, that users must not give. These are
    the names in ``own``, all in small letters, and those of dovetail's own columns
    (``is_reserved``). The case of ``columns`` does not count.

    ``operator``, ``remedy``: the subject and the advice of the error.
    """
    for column in columns:
        if is_reserved(column) or column.lower() in own:
            raise PlanError(
                operator,
                f"column {column!r} has a name that dovetail or the change feed uses itself",
                remedy,
            )


def _refuse_same_names(label: str, node: SnapshotJoin) -> None:
    """Raise ``PlanError`` if two different tables below a join have one name, because commits
    record versions by name. One table may be used twice. ``label``: the join's name in errors.
    """
    ids: dict[str, str] = {}
    for table in sources(node):
        if ids.setdefault(table.name, table.table_id) != table.table_id:
            raise PlanError(
                label,
                f"two tables are called {table.name!r}, and commits tell versions by name",
                "Name them with name=, in from_delta or from_iceberg",
            )


def _stable_text(column: str) -> str:
    """Return an expression's text without parts that differ between processes.

    The addresses of Java arrays are removed. Variables of lambdas become ``variable 0``,
    ``variable 1`` and so on, in the order in which they are bound.
    """
    column = re.sub(r"\[L[\w.$]+;@[0-9a-f]+", "", column)
    bound = re.findall(r"([xyz]_\d+)(?=(?:, [xyz]_\d+)*\)? ->)", column)
    for index, variable in enumerate(dict.fromkeys(bound)):
        column = re.sub(rf"\b{variable}\b", f"variable {index}", column)
    return column


def _add_used(
    node: SnapshotNode, wanted: frozenset[str], used: dict[SnapshotSource, frozenset[str]]
) -> None:
    """Add to ``used`` the source columns that the columns ``wanted`` of a plan node need.

    ``used``: column names by source, changed in place. Keys and compared columns are always needed.
    An aggregate needs all columns of its input, and a join with a computed selection all columns of
    both sides.
    """
    if isinstance(node, SnapshotSource):
        used[node] = used.get(node, frozenset()) | wanted | frozenset(node.key.names)
        return
    if isinstance(node, SnapshotAggregate):
        _add_used(node.input, frozenset(node.input.columns), used)
        return
    computes = any(selected.ref is None for selected in node.select)
    for side_index, side in enumerate(node.sides):
        needed = {*node.on_columns(side_index), *side.key.names}
        needed |= {
            origin[side_index] or ""
            for name, origin in node.origins.items()
            if name in wanted and origin[side_index] is not None
        }
        _add_used(side, frozenset(side.columns) if computes else frozenset(needed), used)


def _part_in_words(part: Any) -> str:
    """Return a part of a description (``describe``) in a few words, for an error: the kind of a
    plan node, ``missing`` for None, and Python's ``repr`` for all else.
    """
    if part is None:
        return "missing"
    return (_kind_of(part) if isinstance(part, dict) else None) or repr(part)


def _kind_of(part: Mapping[str, Any]) -> str | None:
    """Return the kind of plan node that a dictionary of a description stands for, such as ``a
    join``. None for columns, selections and aggregates, whose values are all texts.
    """
    kinds = {"key": "a table", "by": "an aggregate", "on": "a join"}
    return next((kind for name, kind in kinds.items() if isinstance(part.get(name), list)), None)


def plan_source(node: SnapshotNode) -> Source:
    """Return a ``Source`` without rows that has a node's name, key and values. It stands for the
    node where selections of joins are resolved.
    """
    return Source(node.name, node.key, node.values)
