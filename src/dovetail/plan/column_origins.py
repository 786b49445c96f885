"""The origins of a result's columns, through the whole topology: columns of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import singledispatch
from typing import Literal, NamedTuple, TypeAlias

from pyspark.sql import Column

from dovetail.base.columns import WINDOW_END, WINDOW_START
from dovetail.laws.joins.table_join import sides_preserved
from dovetail.lookup_sources.source import LookupSource
from dovetail.plan.joins.delta_join import DeltaJoin
from dovetail.plan.joins.foreign_key_join import ForeignKeyJoin
from dovetail.plan.joins.lookup import Lookup
from dovetail.plan.joins.stream_table_join import StreamTableJoin
from dovetail.plan.nodes import JoinNode, Node, Source, right_key
from dovetail.plan.select import SIDES
from dovetail.plan.transforms.aggregation import Aggregation
from dovetail.plan.transforms.expectation import Expectation
from dovetail.plan.transforms.unwindow import Unwindowed
from dovetail.plan.view_columns import FieldOf, Made, said
from dovetail.plan.views import View, in_text

Use: TypeAlias = Literal["identity", "transformation", "aggregation", "join", "filter", "group_by"]
"""How a column is used. The first three make values, the others decide on rows."""
_MAKES: tuple[Use, ...] = ("identity", "transformation", "aggregation")


class Origin(NamedTuple):
    """A column of an input, and what is made of it."""

    source: Source | LookupSource
    column: str
    use: Use


Origins: TypeAlias = "frozenset[Origin]"


def column_origins(node: Node) -> dict[str, Origins]:
    """Return for each column of a node, by name and in order, the columns of inputs that its values
    are made of. The set is empty for a column that is made of none, such as a count of rows.
    """
    return {name: _columns(node)[name] for name in node.row.names}


def row_origins(node: Node) -> Origins:
    """Return the columns of inputs that decide which rows a node has: those that rows are joined,
    filtered (``where``, ``expect``) and grouped by.
    """
    below = (origin for input_ in node.inputs for origin in row_origins(input_))
    return frozenset((*below, *_deciding(node)))


@singledispatch
def _columns(node: Node) -> Mapping[str, Origins]:
    """Return the origins of each of a node's columns, by name. By default a column has those of the
    columns of its name in the node's inputs; the set is empty if there are none.
    """
    inputs = [_columns(input_) for input_ in node.inputs]
    return {
        name: frozenset().union(*(columns.get(name, frozenset()) for columns in inputs))
        for name in node.row.names
    }


@_columns.register
def _of_source(node: Source) -> Mapping[str, Origins]:
    """Return for each column of a source, by name, the column itself as its only origin."""
    return {name: frozenset([Origin(node, name, "identity")]) for name in node.row.names}


@_columns.register
def _of_view(node: View) -> Mapping[str, Origins]:
    """Return the origins of a view's columns, by name: those of what each is made of."""
    return _made(node, _columns(node.node), node.columns)


@_columns.register
def _of_lookup(node: Lookup) -> Mapping[str, Origins]:
    """Return the origins of each column of a lookup's result: those of the record's column, or the
    column of the store. A column that is a whole side has none.
    """
    below = _columns(node.node)
    origins = {name: below[name] for name in node.key.names}
    for field, (side, column) in zip(node.values, node.refs, strict=True):
        if column is None:
            origins[field.name] = frozenset()
        elif side == SIDES[0]:
            origins[field.name] = below[column]
        else:
            origins[field.name] = frozenset([Origin(node.lookup, column, "identity")])
    return origins


@_columns.register
def _of_windows(node: Unwindowed) -> Mapping[str, Origins]:
    """Return the origins of the columns of a windowed table read as a table or stream, by their new
    names.
    """
    return _made(node, _columns(node.input), node.columns)


@_columns.register
def _of_join(node: JoinNode) -> Mapping[str, Origins]:
    """Return the origins of each column of a join's result: of the keys of both sides, and of the
    selected columns.
    """
    sides = dict(zip(SIDES, map(_columns, node.inputs), strict=True))
    left, right = sides.values()
    origins: dict[str, Origins] = {}
    right_names = node.right.key.names
    for index, name in enumerate(node.key.names):
        if name in left:
            origins[name] = left[name]
            by_key = not isinstance(node, ForeignKeyJoin | StreamTableJoin | DeltaJoin)
            if by_key and sides_preserved(node.how)[1] and index < len(right_names):
                origins[name] |= right[right_names[index]]
        else:
            theirs = {right_key(column): right[column] for column in right_names}
            origins[name] = theirs.get(name, frozenset())
    joined = {f"{side}.{name}": of for side, names in sides.items() for name, of in names.items()}
    joined = {**right, **left, **joined}
    for selected in node.select:
        if selected.ref is not None:
            side, column = selected.ref
            origins[selected.name] = sides[side][column]
        else:
            assert selected.column is not None
            origins[selected.name] = _of_text(said(selected.column), joined)
    return origins


@_columns.register
def _of_aggregation(node: Aggregation) -> Mapping[str, Origins]:
    """Return the origins of each column of an aggregation's result: of the groups, and of what is
    aggregated. The bounds of windows and a count of rows have none.
    """
    below = _columns(node.input)
    windows = dict.fromkeys((WINDOW_START, WINDOW_END) if node.windows else (), frozenset[Origin]())
    origins = {**windows, **{name: below[name] for name in node.by}}
    for aggregated in node.columns:
        of = [below[name] for name in aggregated.columns]
        origins[aggregated.name] = _used(frozenset().union(*of), "aggregation")
    return origins


def _deciding(node: Node) -> Iterator[Origin]:
    """Yield the columns of inputs by which a node itself decides which rows it has: join keys,
    conditions and groups. Other nodes yield none. A column may come several times.
    """
    if isinstance(node, JoinNode):
        left, right = (_columns(side) for side in node.inputs)
        yield from _all(right, node.right.key.names, "join")
        on = getattr(node, "on", node.left.key.names)
        for item in on:
            if isinstance(item, Column):
                yield from _used(_of_text(said(item), left), "join")
            else:
                yield from _all(left, [item if isinstance(item, str) else item[0]], "join")
    elif isinstance(node, Lookup):
        below = _columns(node.node)
        yield from _all(below, [column for column, _ in node.on], "join")
        yield from (Origin(node.lookup, column, "join") for _, column in node.on)
    elif isinstance(node, View) and node.condition is not None:
        below = _columns(node.node)
        yield from _used(_of(node.condition, below), "filter")
    elif isinstance(node, Expectation) and node.drops:
        yield from _used(_of(node.expected, _columns(node.node)), "filter")
    elif isinstance(node, Aggregation):
        yield from _all(_columns(node.input), node.by, "group_by")


def _made(node: Node, below: Mapping[str, Origins], columns: Iterable[Made]) -> dict[str, Origins]:
    """Return the origins of a node's columns, by name.

    ``below``: the origins of the columns of its input. ``columns``: what each column is made of.
    """
    return {name: _of(item, below) for name, item in zip(node.row.names, columns, strict=True)}


def _of(item: Made, below: Mapping[str, Origins]) -> Origins:
    """Return the origins of ``item``, which makes a column: the name of a column, an expression or
    its text, or a field of a struct.

    A name among ``below`` has the origins given there. Everything else transforms the columns that
    it names. ``below``: the origins of the columns that it may use, by name.
    """
    if isinstance(item, str) and item in below:
        return below[item]
    if isinstance(item, FieldOf):
        return _used(below[item.struct], "transformation")
    return _of_text(item if isinstance(item, str) else said(item), below)


def _of_text(text: str, below: Mapping[str, Origins]) -> Origins:
    """Return the origins of an expression, by the columns that its text names."""
    named = (origins for name, origins in below.items() if in_text(name, text))
    return _used(frozenset().union(*named), "transformation")


def _all(columns: Mapping[str, Origins], names: Iterable[str], use: Use) -> Iterator[Origin]:
    """Yield the origins of the columns ``names``, each with this use. Unknown columns have none."""
    for name in names:
        yield from _used(columns.get(name, frozenset()), use)


def _used(origins: Origins, use: Use) -> Origins:
    """Return the origins with a further use. A use that makes a column only replaces a weaker one:
    an aggregated column stays so, whatever follows. Any other use replaces all.
    """
    if use not in _MAKES:
        return frozenset(origin._replace(use=use) for origin in origins)
    return frozenset(
        origin._replace(use=max(origin.use, use, key=_MAKES.index)) for origin in origins
    )
