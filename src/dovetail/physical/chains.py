"""Operators that follow one another, whether an exchange lies between them or none."""

from __future__ import annotations

from typing import NoReturn

import pyarrow as pa

from dovetail.columns import EPOCH, PLACE, SEQUENCE, STREAM_TIME
from dovetail.errors import PlanError
from dovetail.laws.table_join import How
from dovetail.physical import groups
from dovetail.physical import operators as ops
from dovetail.physical.fragment import Emit, Operator
from dovetail.physical.source import ROW_COLUMNS, SourceSpec
from dovetail.plan.aggregation import Aggregation
from dovetail.plan.nodes import Node


def subscriptions(left: SourceSpec, carries: tuple[str, ...]) -> SourceSpec:
    """What ``Subscribe`` sends on of its input: by foreign key, the primary key and the values."""
    primary, values = left.fields(left.key_columns), left.fields(left.value_columns)
    return _moved(left, [*primary, *values], carries, subscribed=True)


def retracted(read: SourceSpec, carries: tuple[str, ...]) -> SourceSpec:
    """What ``Retract`` sends on of its input: by group, what is aggregated."""
    return _moved(read, read.fields(read.value_columns), carries, retracted=True)


def _moved(
    source: SourceSpec,
    values: list[pa.Field],
    carries: tuple[str, ...],
    *,
    subscribed: bool = False,
    retracted: bool = False,
) -> SourceSpec:
    """Rows of a source under its other key."""
    own = [source.schema.field(name) for name in ROW_COLUMNS]
    key = source.fields(source.foreign_columns)[1:]
    return SourceSpec(
        name=source.name,
        schema=pa.schema([*own, *key, *values]),
        keys=source.foreign,
        sequence=source.ordered,
        retention_us=source.retention_us,
        window=source.window,
        subscribed=subscribed,
        retracted=retracted,
        origin=source.origin,
        carries=tuple(name for name in carries if name != SEQUENCE),
        stairs=source.stairs and STREAM_TIME in carries,
    )


def foreign_key(
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
    """The join of what ``Subscribe`` sends on of its input ``left`` with the table referred to."""
    return Operator(
        law=ops.ForeignKeyJoin(left.keys, how),
        sources=(subscriptions(left, carries), right),
        emit=emit,
        visible=visible,
        feeds=feeds,
        buckets=buckets,
    )


def in_order(answering: Operator, name: str) -> Operator:
    """Puts the results of a join by foreign key in order."""
    numbers = [pa.field(number, pa.int64()) for number in (PLACE, EPOCH)]
    results = SourceSpec(name=name, schema=pa.schema([*answering.output_schema, *numbers]), keys=0)
    left, right = (tuple(answering.law.values(answering.sources, leaf)) for leaf in (0, 1))
    return Operator(
        law=ops.InOrder(tuple(answering.key), (left, right), answering.emit == "batch"),
        sources=(results,),
        emit=answering.emit,
        visible=answering.visible,
        feeds=answering.feeds,
    )


def aggregation(node: Aggregation) -> groups.Aggregation:
    """What an aggregation makes of the columns that it uses."""
    return groups.Aggregation(
        node.name,
        tuple(
            groups.Column(c.name, tuple(node.used.index(name) for name in c.columns), c.kernel)
            for c in node.columns
        ),
        node.windows,
        retracts=not node.input.stream,
    )


def refuse_batch(node: Node) -> NoReturn:
    """Refuse ``emit="batch"`` for what has no current rows."""
    raise PlanError(
        node.name,
        "emit='batch' keeps a key's last change, which only a table's current rows have",
        "Use emit='change'",
    )
