"""The origins of a result's columns, through the whole topology: columns of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import singledispatch
from typing import Literal, NamedTuple, TypeAlias

from pyspark.sql import Column

from dovetail.aggregates.collect import LastRow
from dovetail.base.columns import WINDOW_END, WINDOW_START
from dovetail.laws.joins.table_join import sides_preserved
from dovetail.lookup_sources.source import LookupSource
from dovetail.plan.joins.delta_join import DeltaJoin
from dovetail.plan.joins.foreign_key_join import ForeignKeyJoin
from dovetail.plan.joins.lookup import Lookup
from dovetail.plan.joins.stream_table_join import StreamTableJoin
from dovetail.plan.joins.window_join import WindowJoin
from dovetail.plan.nodes import Derived, JoinNode, Node, Source, right_key_name
from dovetail.plan.select import SIDES
from dovetail.plan.transforms.aggregation import Aggregation
from dovetail.plan.transforms.expectation import Expectation
from dovetail.plan.transforms.unwindow import Unwindowed
from dovetail.plan.view_columns import ColumnItem, Constant, FieldOf, item_as_text
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
    """Return for each column of a node, by name and key columns first, the origins of its values,
    through all stages. An origin is a ``source`` (a ``Source`` or a lookup store), its ``column``
    and the ``use`` made of it. The column has its name in the source, even if a view renames it.

    The use is ``"identity"``, ``"transformation"`` or ``"aggregation"``. The set is empty for a
    column that is made of none, such as a count of rows.
    """
    return {name: _origins_by_column(node)[name] for name in node.row.names}


def row_origins(node: Node) -> Origins:
    """Return the columns of sources and lookup stores that decide which rows a node has, at the
    node and all nodes below it: those that rows are joined, filtered and grouped by. Each is an
    ``Origin``: the source or store, its column there, and the use.

    Filters are ``where`` and an ``expect`` that drops rows. The use is ``"join"``, ``"filter"`` or
    ``"group_by"``. Empty if nothing decides on rows.
    """
    below = (origin for input_ in node.inputs for origin in row_origins(input_))
    return frozenset((*below, *_deciding_origins(node)))


@singledispatch
def _origins_by_column(node: Node) -> Mapping[str, Origins]:
    """Return the origins of each of a node's columns, by name. An origin is a column of a source or
    a lookup store, with the use made of it: ``"identity"``, ``"transformation"`` or
    ``"aggregation"``.

    This is the default for kinds of nodes without a function of their own: a column has the origins
    of the columns with the same name in the node's inputs. The set is empty if there are none.
    """
    inputs = [_origins_by_column(input_) for input_ in node.inputs]
    return {
        name: frozenset().union(*(columns.get(name, frozenset()) for columns in inputs))
        for name in node.row.names
    }


@_origins_by_column.register
def _source_origins(node: Source) -> Mapping[str, Origins]:
    """Return for each column of a source, by name, the column itself as its only origin, with the
    use ``"identity"``.
    """
    return {name: frozenset([Origin(node, name, "identity")]) for name in node.row.names}


@_origins_by_column.register
def _view_origins(node: View) -> Mapping[str, Origins]:
    """Return the origins of a view's columns, by name: those of the column or expression that each
    is made of (``View.columns``). An origin is a column of a source or lookup store, with its use.
    The columns that the view's condition reads are not among them.

    A field of a group's whole last row, as ``key_by`` makes it, has the origins of the column of
    that name in the grouped rows.
    """
    origins = _origins_of_items(node, _origins_by_column(node.node), node.columns)
    grouped = node.node.node if isinstance(node.node, Derived) else None
    if isinstance(grouped, Aggregation):
        rows = {c.name for c in grouped.columns if isinstance(c.kernel, LastRow)}
        row = _origins_by_column(grouped.input)
        origins |= {
            name: row[item.field]
            for name, item in zip(node.row.names, node.columns, strict=True)
            if isinstance(item, FieldOf) and item.struct in rows
        }
    return origins


@_origins_by_column.register
def _lookup_origins(node: Lookup) -> Mapping[str, Origins]:
    """Return the origins of each column of a lookup's result, by name: those of the stream's
    column, or the column of the store with the use ``"identity"``. An origin is a column of a
    source or lookup store, with its use. A column that has the whole record, or the store's whole
    row, as a struct has none.
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
    """Return the origins of the columns of a windowed table read as a table or stream, by their
    names there: those of the column or expression that each is made of. An origin is a column of a
    source or lookup store, with its use.
    """
    return _origins_of_items(node, _origins_by_column(node.input), node.columns)


@_origins_by_column.register
def _join_origins(node: JoinNode) -> Mapping[str, Origins]:
    """Return the origins of each column of a join's result, by name: key columns, then selected
    ones. An origin is a column of a source or lookup store, with its use.

    A key column has the origins of the left or right key column that it stems from. If right rows
    may appear alone in a join by the same key, those of the right column are added to the left
    one's. An expression has those of all columns that its text names, at least as
    ``"transformation"``.
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
    """Return the origins of each column of an aggregation's result, by name. An origin is a column
    of a source or lookup store, with its use. A grouping column has those of the input's column. An
    aggregate has those of the columns that it reads, with the use ``"aggregation"``. The bounds of
    windows and a count of rows have none.
    """
    below = _origins_by_column(node.input)
    windows = dict.fromkeys((WINDOW_START, WINDOW_END) if node.windows else (), frozenset[Origin]())
    origins = {**windows, **{name: below[name] for name in node.by}}
    for aggregated in node.columns:
        of = [below[name] for name in aggregated.columns]
        origins[aggregated.name] = _with_use(frozenset().union(*of), "aggregation")
    return origins


def _deciding_origins(node: Node) -> Iterator[Origin]:
    """Yield the columns of sources and stores by which ``node`` itself decides which rows it has,
    without the nodes below it.

    The use is ``"join"`` for columns of the keys of joins and lookups, and for those of a join's
    ``window_of``. It is ``"filter"`` for the conditions of ``where`` and of an ``expect`` that
    drops rows, ``"group_by"`` for groups. Other nodes yield none. A column may come several times.
    """
    if isinstance(node, JoinNode):
        left, right = (_origins_by_column(side) for side in node.inputs)
        on = [*getattr(node, "on", node.left.key.names)]
        if isinstance(node, WindowJoin) and node.window_of is not None:
            on.append(node.window_of)
        paired = [item[1] for item in on if isinstance(item, tuple)]
        yield from _origins_of_names(right, paired or node.right.key.names, "join")
        for item in on:
            if isinstance(item, Column):
                yield from _with_use(_origins_of_expression(item_as_text(item), left), "join")
            else:
                yield from _origins_of_names(
                    left, [item if isinstance(item, str) else item[0]], "join"
                )
    elif isinstance(node, Lookup):
        below = _origins_by_column(node.node)
        yield from _origins_of_names(below, [column for column, _ in node.on], "join")
        yield from (Origin(node.lookup, column, "join") for _, column in node.on)
    elif isinstance(node, View) and node.condition is not None:
        below = _origins_by_column(node.node)
        yield from _with_use(_origins_of_item(node.condition, below), "filter")
    elif isinstance(node, Expectation) and node.drops:
        yield from _with_use(
            _origins_of_item(node.expected, _origins_by_column(node.node)), "filter"
        )
    elif isinstance(node, Aggregation):
        yield from _origins_of_names(_origins_by_column(node.input), node.by, "group_by")


def _origins_of_items(
    node: Node, below: Mapping[str, Origins], columns: Iterable[ColumnItem]
) -> dict[str, Origins]:
    """Return the origins of the columns of ``node``, by name, in the order of ``node.row``. An
    origin is a column of a source or lookup store, with the ``use`` made of it. A column that is
    copied has the uses in ``below``. Any other has at least ``"transformation"``.

    ``below``: the origins of its input's columns, by name. ``columns``: the item that each column
    of ``node.row`` is made of, in the same order. It is a column's name, an expression, a field of
    a struct, or a constant. An expression has the origins of the columns that its text names as
    words, and a constant has none.
    """
    return {
        name: _origins_of_item(item, below)
        for name, item in zip(node.row.names, columns, strict=True)
    }


def _origins_of_item(item: ColumnItem, below: Mapping[str, Origins]) -> Origins:
    """Return the origins of ``item``, which makes a column: the name of a column, an expression or
    its SQL, a field of a struct, or a constant. An origin is a column of a source or lookup store,
    with the ``use`` made of it.

    A name in ``below`` has the origins given there. A field of a struct has those of the struct,
    and a constant has none. Everything else has those of the columns that its text names as words.
    The use is then at least ``"transformation"``. ``below``: the origins of the columns that
    ``item`` may use, by name.
    """
    if isinstance(item, str) and item in below:
        return below[item]
    if isinstance(item, FieldOf):
        return _with_use(below[item.struct], "transformation")
    if isinstance(item, Constant):
        return frozenset()
    return _origins_of_expression(item if isinstance(item, str) else item_as_text(item), below)


def _origins_of_expression(text: str, below: Mapping[str, Origins]) -> Origins:
    """Return the origins of an expression: those of the columns in ``below`` that its text names.
    An origin is a column of a source or lookup store, with its use. The use becomes
    ``"transformation"``, or stays ``"aggregation"``. A text that names no column gives an empty
    set. ``below``: the origins of columns, by name.
    """
    named = (origins for name, origins in below.items() if is_named_in(name, text))
    return _with_use(frozenset().union(*named), "transformation")


def _origins_of_names(
    columns: Mapping[str, Origins], names: Iterable[str], use: Use
) -> Iterator[Origin]:
    """Yield the origins that ``columns`` has for each of ``names``, in order, with the use ``use``
    as ``_with_use`` gives it. An origin is a column of a source or lookup store, with its use.
    Names that are not in ``columns`` yield none.
    """
    for name in names:
        yield from _with_use(columns.get(name, frozenset()), use)


def _with_use(origins: Origins, use: Use) -> Origins:
    """Return the origins with a further use, ``use``.

    ``"identity"``, ``"transformation"`` and ``"aggregation"`` only replace a weaker use, one before
    them in this order: an aggregated column that is transformed stays aggregated. All origins must
    have one of these three then. Any other ``use`` replaces every use.
    """
    if use not in _VALUE_USES:
        return frozenset(origin._replace(use=use) for origin in origins)
    return frozenset(
        origin._replace(use=max(origin.use, use, key=_VALUE_USES.index)) for origin in origins
    )
