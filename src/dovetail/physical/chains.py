"""Operators that follow one another, with an exchange between them or without."""

from __future__ import annotations

from typing import NoReturn

import pyarrow as pa

from dovetail.base.columns import EPOCH, INSTRUCTION, PLACE, SEQUENCE, STREAM_TIME
from dovetail.errors import PlanError
from dovetail.laws.joins.table_join import How
from dovetail.physical.fragment import Emit, Operator
from dovetail.physical.source import (
    ROW_COLUMNS,
    RowArrival,
    RowMeaning,
    RowShape,
    SourceSpec,
)
from dovetail.physical.specs import by_key as ops
from dovetail.physical.specs import groups
from dovetail.physical.specs.foreign_key import ForeignKeyJoinLaw
from dovetail.plan.nodes import Node
from dovetail.plan.transforms.aggregation import Aggregation


def subscription_source(left: SourceSpec, carries: tuple[str, ...]) -> SourceSpec:
    """Return the output of ``SubscribeLaw`` as an input: by foreign key, with the primary key and
    the values as its values.

    ``left``: the input of ``SubscribeLaw``, which has a foreign key. ``carries``: the arrival
    columns that the rows bring.
    """
    values = [*left.shape.key_fields, *left.shape.value_fields]
    return _source_by_foreign_key(left, values, carries, instruction=(PLACE, EPOCH, INSTRUCTION))


def retraction_source(read: SourceSpec, carries: tuple[str, ...]) -> SourceSpec:
    """Return the output of ``RetractLaw`` as an input: by group, with the columns to be aggregated.

    ``read``: the input of ``RetractLaw``, whose foreign key is the group. ``carries``: the arrival
    columns that the rows bring.
    """
    return _source_by_foreign_key(
        read, read.shape.value_fields, carries, instruction=(INSTRUCTION,)
    )


def _source_by_foreign_key(
    source: SourceSpec,
    values: list[pa.Field],
    carries: tuple[str, ...],
    *,
    instruction: tuple[str, ...],
) -> SourceSpec:
    """Return an input with the rows of ``source`` under its foreign key, which becomes the key.

    ``values``: the value columns. ``carries``: the arrival columns that the rows bring.
    ``instruction``: the columns that tell what a row does.
    """
    row_fields = [source.shape.schema.field(name) for name in ROW_COLUMNS]
    key = source.shape.foreign_fields[1:]
    return SourceSpec(
        source.name,
        RowShape(
            pa.schema([*row_fields, *key, *values]),
            keys=source.shape.foreign,
            window=source.shape.window,
        ),
        RowMeaning(retention_us=source.meaning.retention_us),
        arrival_between_stages(source, carries, instruction),
    )


def arrival_between_stages(
    source: SourceSpec, carries: tuple[str, ...], instruction: tuple[str, ...]
) -> RowArrival:
    """Return the arrival of rows that one stage of a node sends to the next.

    ``source``: the input of the first stage. ``carries``: the columns on arrival that rows bring,
    of which ``_sequence`` is left out. ``instruction``: the columns that tell what a row does.
    """
    return RowArrival(
        origin=source.arrival.origin,
        ordered_by="shared log" if source.arrival.by_shared_log else None,
        instruction=instruction,
        carries=tuple(name for name in carries if name != SEQUENCE),
        stairs=source.arrival.stairs and STREAM_TIME in carries,
    )


def foreign_key_operator(
    left: SourceSpec,
    carries: tuple[str, ...],
    right: SourceSpec,
    how: How,
    *,
    emit: Emit,
    feeds: tuple[str, ...],
    visible: bool = False,
    buckets: int = 1,
) -> Operator:
    """Return the operator that joins subscriptions with the table that they refer to.

    ``left``: the input of ``SubscribeLaw``, whose output the operator reads. ``carries``: the
    arrival columns that this output brings. ``right``: the table. ``how``: the kind of join.
    ``emit``: the emission. ``feeds``: the columns that tell a reader which record caused a change.
    ``visible``: True if changes say which sides have a row. ``buckets``: the number of buckets of
    its output.
    """
    return Operator(
        law=ForeignKeyJoinLaw(left.shape.keys, how),
        sources=(subscription_source(left, carries), right),
        emit=emit,
        visible=visible,
        feeds=feeds,
        buckets=buckets,
    )


def in_order_operator(answering: Operator, name: str) -> Operator:
    """Return the operator that puts the results of a foreign-key join in order: those of each
    primary key by the change that caused them.

    ``answering``: the join's operator. ``name``: the name of the returned operator's input in
    errors.
    """
    numbers = [pa.field(column, pa.int64()) for column in (PLACE, EPOCH)]
    results = SourceSpec(name, RowShape(pa.schema([*answering.output_schema, *numbers]), keys=0))
    left, right = (tuple(answering.law.value_types(answering.sources, leaf)) for leaf in (0, 1))
    return Operator(
        law=ops.InOrderLaw(tuple(answering.key), (left, right), answering.emit == "batch"),
        sources=(results,),
        emit=answering.emit,
        visible=answering.visible,
        feeds=answering.feeds,
    )


def aggregation_law(node: Aggregation) -> groups.AggregationLaw:
    """Return the law of an aggregation node, with a column for each result. Value columns are
    numbered by their position in ``node.used``. Unless the input is a stream, the law takes rows
    back that leave their group.
    """
    return groups.AggregationLaw(
        node.name,
        tuple(
            groups.ResultColumn(
                c.name, tuple(node.used.index(name) for name in c.columns), c.kernel
            )
            for c in node.columns
        ),
        node.windows,
        retracts=not node.input.stream,
    )


def refuse_batch(node: Node) -> NoReturn:
    """Raise ``PlanError``, in any case, for ``emit="batch"`` on a node of which no row is the
    current one, such as a stream.
    """
    raise PlanError(
        node.name,
        "emit='batch' keeps a key's last change, which only a table's current rows have",
        "Use emit='change'",
    )
