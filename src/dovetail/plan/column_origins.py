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
from dovetail.plan.nodes import JoinNode, Node, Source, right_key_name
from dovetail.plan.select import SIDES
from dovetail.plan.transforms.aggregation import Aggregation
from dovetail.plan.transforms.expectation import Expectation
from dovetail.plan.transforms.unwindow import Unwindowed
from dovetail.plan.view_columns import ColumnItem, FieldOf, item_as_text
from dovetail.plan.views import View, is_named_in

Use: TypeAlias = Literal["identity", "transformation", "aggregation", "join", "filter", "group_by"]
"""How a column is used. The first three make values, the others decide on rows."""
_VALUE_USES: tuple[Use, ...] = ("identity", "transformation", "aggregation")


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
    return {name: _origins_by_column(node)[name] for name in node.row.names}


def row_origins(node: Node) -> Origins:
    """Return the columns of inputs that decide which rows a node has: those that rows are joined,
    filtered (``where``, ``expect``) and grouped by.
    """
    below = (origin for input_ in node.inputs for origin in row_origins(input_))
    return frozenset((*below, *_deciding_origins(node)))


@singledispatch
def _origins_by_column(node: Node) -> Mapping[str, Origins]:
    """Return the origins of each of a node's columns, by name.

    By default, a column has the origins of the columns with the same name in the node's inputs. The
    set is empty if no input has such a column.
    """
    inputs = [_origins_by_column(input_) for input_ in node.inputs]
    return {
        name: frozenset().union(*(columns.get(name, frozenset()) for columns in inputs))
        for name in node.row.names
    }


@_origins_by_column.register
def _source_origins(node: Source) -> Mapping[str, Origins]:
    """Return for each column of a source, by name, the column itself as its only origin."""
    return {name: frozenset([Origin(node, name, "identity")]) for name in node.row.names}


@_origins_by_column.register
def _view_origins(node: View) -> Mapping[str, Origins]:
    """Return the origins of a view's columns, by name: those of the column or expression that each
    is made of (``View.columns``). The condition is not among them.
    """
    return _origins_of_items(node, _origins_by_column(node.node), node.columns)


@_origins_by_column.register
def _lookup_origins(node: Lookup) -> Mapping[str, Origins]:
    """Return the origins of each column of a lookup's result, by name: those of the record's
    column, or the column of the store. A column that has a whole side as a struct has none.
    """
    below = _origins_by_column(node.node)
    origins = {name: below[name] for name in node.key.names}
    for field, (side, column) in zip(node.values, node.refs, strict=True):
        if column is None:
            origins[field.name] = frozenset()
        elif side == SIDES[0]:
            origins[field.name] = below[column]
        else:
            origins[field.name] = frozenset([Origin(node.lookup, column, "identity")])
    return origins


@_origins_by_column.register
def _unwindowed_origins(node: Unwindowed) -> Mapping[str, Origins]:
    """Return the origins of the columns of a windowed table read as a table or stream, by their new
    names.
    """
    return _origins_of_items(node, _origins_by_column(node.input), node.columns)


@_origins_by_column.register
def _join_origins(node: JoinNode) -> Mapping[str, Origins]:
    """Return the origins of each column of a join's result, by name: key columns, then selected
    ones.

    A key column has the origins of the left column. In a join by the same key that preserves right
    rows, those of the right column are added. An expression has those of all columns that its text
    names.
    """
    sides = dict(zip(SIDES, map(_origins_by_column, node.inputs), strict=True))
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
            theirs = {right_key_name(column): right[column] for column in right_names}
            origins[name] = theirs.get(name, frozenset())
    joined = {f"{side}.{name}": of for side, names in sides.items() for name, of in names.items()}
    joined = {**right, **left, **joined}
    for selected in node.select:
        if selected.ref is not None:
            side, column = selected.ref
            origins[selected.name] = sides[side][column]
        else:
            assert selected.column is not None
            origins[selected.name] = _origins_of_expression(item_as_text(selected.column), joined)
    return origins


@_origins_by_column.register
def _aggregation_origins(node: Aggregation) -> Mapping[str, Origins]:
    """Return the origins of each column of an aggregation's result, by name. A grouping column has
    those of the input's column. An aggregate has those of the columns that it reads, with the use
    ``aggregation``. The bounds of windows and a count of rows have none.
    """
    below = _origins_by_column(node.input)
    windows = dict.fromkeys((WINDOW_START, WINDOW_END) if node.windows else (), frozenset[Origin]())
    origins = {**windows, **{name: below[name] for name in node.by}}
    for aggregated in node.columns:
        of = [below[name] for name in aggregated.columns]
        origins[aggregated.name] = _with_use(frozenset().union(*of), "aggregation")
    return origins


def _deciding_origins(node: Node) -> Iterator[Origin]:
    """Yield the columns of inputs by which ``node`` itself decides which rows it has, without the
    nodes below it. They are the keys of joins and lookups, the conditions of ``where``, those of
    ``expect`` that drop rows, and groups. Other nodes yield none. A column may come several times.
    """
    if isinstance(node, JoinNode):
        left, right = (_origins_by_column(side) for side in node.inputs)
        on = getattr(node, "on", node.left.key.names)
        paired = [item[1] for item in on if isinstance(item, tuple)]
        yield from _named_origins(right, paired or node.right.key.names, "join")
        for item in on:
            if isinstance(item, Column):
                yield from _with_use(_origins_of_expression(item_as_text(item), left), "join")
            else:
                yield from _named_origins(
                    left, [item if isinstance(item, str) else item[0]], "join"
                )
    elif isinstance(node, Lookup):
        below = _origins_by_column(node.node)
        yield from _named_origins(below, [column for column, _ in node.on], "join")
        yield from (Origin(node.lookup, column, "join") for _, column in node.on)
    elif isinstance(node, View) and node.condition is not None:
        below = _origins_by_column(node.node)
        yield from _with_use(_origins_of_item(node.condition, below), "filter")
    elif isinstance(node, Expectation) and node.drops:
        yield from _with_use(
            _origins_of_item(node.expected, _origins_by_column(node.node)), "filter"
        )
    elif isinstance(node, Aggregation):
        yield from _named_origins(_origins_by_column(node.input), node.by, "group_by")


def _origins_of_items(
    node: Node, below: Mapping[str, Origins], columns: Iterable[ColumnItem]
) -> dict[str, Origins]:
    """Return the origins of the columns of ``node``, by name.

    ``below``: the origins of its input's columns, by name. ``columns``: what each column of
    ``node.row`` is made of, in the same order.
    """
    return {
        name: _origins_of_item(item, below)
        for name, item in zip(node.row.names, columns, strict=True)
    }


def _origins_of_item(item: ColumnItem, below: Mapping[str, Origins]) -> Origins:
    """Return the origins of ``item``, which makes a column: the name of a column, an expression or
    its text, or a field of a struct.

    A name among ``below`` has the origins given there. Everything else transforms the columns that
    it names. ``below``: the origins of the columns that it may use, by name.
    """
    if isinstance(item, str) and item in below:
        return below[item]
    if isinstance(item, FieldOf):
        return _with_use(below[item.struct], "transformation")
    return _origins_of_expression(item if isinstance(item, str) else item_as_text(item), below)


def _origins_of_expression(text: str, below: Mapping[str, Origins]) -> Origins:
    """Return the origins of an expression: those of the columns of ``below`` that its text names,
    each with at least the use ``transformation``. A text that names none gives an empty set.
    """
    named = (origins for name, origins in below.items() if is_named_in(name, text))
    return _with_use(frozenset().union(*named), "transformation")


def _named_origins(
    columns: Mapping[str, Origins], names: Iterable[str], use: Use
) -> Iterator[Origin]:
    """Yield the origins of the columns ``names``, each with this use. Unknown columns have none."""
    for name in names:
        yield from _with_use(columns.get(name, frozenset()), use)


def _with_use(origins: Origins, use: Use) -> Origins:
    """Return the origins with a further use, ``use``.

    ``identity``, ``transformation`` and ``aggregation`` only replace a weaker use, one before them
    in this order: an aggregated column that is transformed stays aggregated. Any other use replaces
    all.
    """
    if use not in _VALUE_USES:
        return frozenset(origin._replace(use=use) for origin in origins)
    return frozenset(
        origin._replace(use=max(origin.use, use, key=_VALUE_USES.index)) for origin in origins
    )
