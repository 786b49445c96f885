"""Stars: joins by foreign key of one table with several others, planned as three stages.

``orders.join(customers, on="customer").join(products, on="product")`` is a chain of two joins. Each
would take two stages with state. All foreign keys are columns of orders, so they can be looked up
beside each other, for any number of tables:

| stage | rows are partitioned by | it stores |
|---|---|---|
| 1 | the key of orders | the foreign keys of each order |
| 2 | each foreign key | the other tables, and the orders that refer to each row |
| 3 | the key of orders | orders, each with the rows that it refers to |

A chain whose foreign key comes from another table's columns is no star, and stays a chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import DataType

from dovetail.base.columns import EPOCH, INSTRUCTION, PLACE, foreign_name, value_name
from dovetail.laws.joins.table_join import sides_preserved
from dovetail.physical.chains import arrival_between_stages
from dovetail.physical.source import ROW_COLUMNS, RowShape, SourceSpec
from dovetail.plan.joins.foreign_key_join import ForeignKeyJoin
from dovetail.plan.nodes import Derived, Entry, Node, Source
from dovetail.plan.views import views_of


@dataclass(frozen=True, eq=False)
class Star:
    """A chain of joins by foreign key that can run as a star."""

    joins: tuple[ForeignKeyJoin, ...]
    """The joins, the innermost first."""
    fact: Entry
    """The table that has all foreign keys: the left side of the innermost join."""
    foreign: tuple[tuple[str, ...], ...]
    """The foreign key of each join, as columns of ``fact``."""
    left: tuple[tuple[int, str], ...]
    """The value columns of the last join's left side. Each is a column of part 0, ``fact``, or of
    part n, the right side of join n, counted from 1.
    """

    @property
    def references(self) -> tuple[tuple[tuple[str, DataType], ...], ...]:
        """The foreign key of each join, in order: pairs of a column of ``fact`` and the type of the
        right key column that it refers to.
        """
        return tuple(
            tuple(zip(names, (field.dataType for field in join.right.key), strict=True))
            for names, join in zip(self.foreign, self.joins, strict=True)
        )


def star_of(node: ForeignKeyJoin, readers: Mapping[Node, int]) -> Star | None:
    """Return the star whose last join is ``node``: the chain of foreign-key joins down the left
    sides, all foreign keys of which are columns of the innermost left table.

    None if the chain has not at least two joins, or is no star. ``readers``: the count of readers
    of each node; a node that is missing has one. An inner join that others read as well, or whose
    selection computes, makes the chain no star.
    """
    joins = [node]
    while isinstance(joins[0].left, Derived):
        inner = joins[0].left.node
        if not isinstance(inner, ForeignKeyJoin) or inner.selects_expressions:
            return None
        if readers.get(inner, 1) > 1:
            return None
        joins.insert(0, inner)
    fact = joins[0].left
    if len(joins) == 1 or not _is_fact(fact) or any(map(_needs_own_stage, joins)):
        return None
    foreign = [
        [_column_origin(joins[:index], str(name)) for name in join.on]
        for index, join in enumerate(joins)
    ]
    if any(part for columns in foreign for part, _ in columns):
        return None
    left = node.left
    values = [field.name for field in left.values if field.name not in left.key.names]
    return Star(
        tuple(joins),
        fact,
        tuple(tuple(name for _, name in columns) for columns in foreign),
        tuple(_column_origin(joins[:-1], name) for name in values),
    )


def _is_fact(entry: Entry) -> bool:
    """Return True if ``entry`` can be the fact of a star, the table with all foreign keys. Its rows
    must be those of a source, at most one for each record, without windows and without a history.
    """
    return (
        isinstance(entry.base, Source)
        and all(view.row_by_row for view in views_of(entry))
        and entry.windows is None
        and entry.versioned_us is None
    )


def _needs_own_stage(join: ForeignKeyJoin) -> bool:
    """Return True if a join must be a stage of its own. This is so if its right rows may appear
    alone or its foreign key is computed. It is also so if its rows are spread over buckets, or if
    its right table has windows. So it is if that is versioned with rows that take effect in the
    order of arrival.
    """
    return (
        sides_preserved(join.how)[1]
        or join.fallible
        or join.spread > 1
        or join.right.in_order
        or bool(join.right.windows)
    )


def _column_origin(joins: Sequence[ForeignKeyJoin], name: str) -> tuple[int, str]:
    """Return the pair (part, column) behind the column ``name`` of the last join's result. Part 0
    is the fact, the innermost left table. Part n is the right side of join n, counted from 1.

    ``joins``: the joins, the innermost first; without any, the pair is (0, ``name``). Their
    selections only name columns. A name that is not selected is a column of the left side.
    """
    if not joins:
        return 0, name
    selected = {item.name: item.ref for item in joins[-1].select}
    side, column = selected.get(name) or ("left", name)
    return (len(joins), column) if side == "right" else _column_origin(joins[:-1], column)


def star_messages(
    keys: SourceSpec, types: Sequence[pa.DataType], carries: tuple[str, ...]
) -> SourceSpec:
    """Return the layout of the first stage's messages, which the second stage reads.

    The key of a message is the index of a dimension (the right side of a join, an int16 from 0),
    then its foreign key. All dimensions share the columns of the foreign key. The values are the
    key of the fact.

    ``keys``: the layout that the first stage reads. ``types``: those of the shared columns
    (``shared_columns``). ``carries``: the names of the arrival columns that rows bring.
    """
    columns = [pa.field(foreign_name(n), type_) for n, type_ in enumerate([pa.int16(), *types])]
    instruction = (PLACE, EPOCH, INSTRUCTION)
    return _source_between_stages(
        keys, [*columns, *keys.shape.key_fields], len(columns), instruction, carries
    )


def star_answers(
    keys: SourceSpec, dimensions: Sequence[SourceSpec], carries: tuple[str, ...]
) -> SourceSpec:
    """Return the layout of the second stage's answers, which the third stage reads: by the key of
    the fact. The values are, for each dimension, the time and the columns of its row.

    An answer has the values of one dimension. It is a tombstone if the dimension has no such row.
    ``keys``: the layout that the first stage reads. ``dimensions``: those of the right side of each
    join, in order. ``carries``: the names of the arrival columns that rows bring.
    """
    columns = [
        *keys.shape.key_fields,
        *(
            field
            for dimension_number, spec in enumerate(dimensions, 1)
            for field in _answer_fields(dimension_number, spec)
        ),
    ]
    return _source_between_stages(keys, columns, keys.shape.keys, (EPOCH, INSTRUCTION), carries)


def _answer_fields(dimension_number: int, dimension: SourceSpec) -> Iterator[pa.Field]:
    """Yield the columns of a dimension in answers, under internal names: the time of its row, an
    int64, then its user columns, key columns first. ``dimension_number``: the number of the
    dimension, counted from 1, which is part of the names.
    """
    yield pa.field(value_name(dimension_number, 0), pa.int64())
    for column_index, field in enumerate(dimension.shape.user_fields, start=1):
        yield pa.field(value_name(dimension_number, column_index), field.type)


def _source_between_stages(
    keys: SourceSpec,
    columns: Sequence[pa.Field],
    count: int,
    instruction: tuple[str, ...],
    carries: tuple[str, ...],
) -> SourceSpec:
    """Return the layout of rows that a stage of the star sends to the next one.

    ``keys``: the layout that the first stage reads, whose name and order the rows have.
    ``columns``: the columns after ``ROW_COLUMNS``, of which the first ``count`` are the key.
    ``instruction``: the names of the int64 columns that tell what a row does. ``carries``: the
    names of the arrival columns that rows bring.
    """
    row_fields = [keys.shape.schema.field(name) for name in ROW_COLUMNS]
    return SourceSpec(
        keys.name,
        RowShape(pa.schema([*row_fields, *columns]), keys=count),
        arrival=arrival_between_stages(keys, carries, instruction),
    )
