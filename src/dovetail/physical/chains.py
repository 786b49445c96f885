"""Operators that follow one another, with an exchange between them or without."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
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
    """Return the layout of the output of ``SubscribeLaw``, as an input by foreign key. The foreign
    key is its key. The primary key and the value columns are its values, in this order. Then come
    ``_place`` (the primary key's hash), ``_epoch`` (the count of the change) and ``_instruction``:
    bits that tell the join if it must answer (``laws.joins.foreign_key_join``).

    ``left``: the layout that ``SubscribeLaw`` reads, which has a foreign key. ``carries``: the
    names of the arrival columns that the rows bring.
    """
    values = [*left.shape.key_fields, *left.shape.value_fields]
    return _source_by_foreign_key(left, values, carries, instruction=(PLACE, EPOCH, INSTRUCTION))


def retraction_source(read: SourceSpec, carries: tuple[str, ...]) -> SourceSpec:
    """Return the layout of the output of ``RetractLaw``, as an input by group. The group is its
    key, the columns to be aggregated are its values. A tombstone is a row that leaves its group.
    The column ``_instruction`` follows: 1 for a row that leaves a group which its new row enters,
    since the latter alone emits, else 0.

    ``read``: the layout that ``RetractLaw`` reads, whose foreign key is the group. ``carries``: the
    names of the arrival columns that the rows bring.
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
    """Return the layout of the rows of ``source`` under its foreign key, which becomes the key.
    Rows are upserts or tombstones of a table without a history. The retention of windows stays.

    ``values``: the value columns. ``carries``: the names of the arrival columns that the rows
    bring. ``instruction``: the names of the int64 columns that tell what a row does.
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
    """Return the arrival of rows that one stage of a node sends to the next: the columns
    ``instruction`` and ``carries``, and a shared log if ``source`` has one.

    ``source``: the input of the first stage. ``carries``: the names of the columns on arrival that
    rows bring, of which ``_sequence`` is left out, as a shared log has it already. ``instruction``:
    the names of the columns that tell what a row does.

    All buckets hear the steps of stream time (``stairs``) if they hear those of ``source`` and the
    rows bring ``_stream_time``.
    """
    return RowArrival(
        origin=source.arrival.origin,
        ordered_by="shared log" if source.arrival.by_shared_log else None,
        instruction=instruction,
        carries=tuple(name for name in carries if name != SEQUENCE),
        stairs=source.arrival.stairs and STREAM_TIME in carries,
    )


def spread_sources(sides: Iterable[SourceSpec], buckets: int) -> tuple[SourceSpec, SourceSpec]:
    """Return the layouts of both sides of a join by foreign key that spreads its left rows.

    ``sides``: the left table by primary key, with a foreign key; the right one by its key.
    ``buckets``: the count of buckets over which the left rows of one foreign key are spread. Each
    of them gets the right row. One bucket changes nothing.
    """
    left, right = sides
    return (
        replace(left, shape=replace(left.shape, spread=buckets)),
        replace(right, arrival=replace(right.arrival, copies=buckets)),
    )


def foreign_key_operator(
    left: SourceSpec,
    carries: tuple[str, ...],
    right: SourceSpec,
    how: How,
    *,
    emit: Emit,
    feeds: tuple[str, ...],
    on: tuple[str, ...] = (),
    visible: bool = False,
    buckets: int = 1,
) -> Operator:
    """Return the operator that joins subscriptions (left rows by foreign key) with the table that
    they refer to.

    ``left``: the layout that ``SubscribeLaw`` reads; the operator reads the output of that law.
    ``carries``: the names of the arrival columns that this output brings. ``right``: the layout of
    the table. ``how``: the kind of join. ``emit``: ``"change"`` or ``"batch"``. ``feeds``: the
    names of the columns that tell a reader which record caused a change. ``on``: the texts of the
    foreign key, by which a checkpoint knows which left rows it has. ``visible``: True if changes
    say in ``_visible`` which sides have a row. ``buckets``: the count of buckets of its output.
    """
    return Operator(
        law=ForeignKeyJoinLaw(left.shape.keys, how, on),
        sources=(subscription_source(left, carries), right),
        emit=emit,
        visible=visible,
        feeds=feeds,
        buckets=buckets,
    )


def in_order_operator(answering: Operator, name: str) -> Operator:
    """Return the operator that puts the results of a foreign-key join in order: those of each
    primary key by the change that caused them. Emission, ``_visible`` and ``feeds`` are those of
    the join.

    ``answering``: the join's operator. The new operator reads its output columns, then ``_place``
    (the key's hash) and ``_epoch`` (the count of the change), both int64. ``name``: the name of
    that input in errors.
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
    """Return the law of an aggregation node, with a column for each result. Its value columns are
    given by their indices in ``node.used``, from 0. Unless the input is a stream, the law takes
    rows back that leave their group.
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
    """Raise ``PlanError``, in any case: ``emit="batch"`` does not suit ``node``, such as a stream,
    because no row of it is the current one of its key.
    """
    raise PlanError(
        node.name,
        "emit='batch' keeps a key's last change, which only a table's current rows have",
        "Use emit='change'",
    )
