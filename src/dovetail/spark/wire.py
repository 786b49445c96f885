"""The first step of a stage, in the JVM: an input's rows in the columns in which they travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, LongType, StructType

from dovetail.columns import (
    CHANGE,
    CLOCK,
    DELETE,
    DELETED,
    FILE_METADATA,
    FOREIGN_KEY,
    ORDER,
    SEQUENCE,
    STREAM_TIME,
    TIE,
    TIMESTAMP,
    quoted,
)
from dovetail.physical.inputs import Input
from dovetail.physical.source import SourceSpec
from dovetail.plan.nodes import Entry, Source
from dovetail.plan.views import View

_POSITION = "_position_"
"""Of what puts a view's rows in order, the columns' names, which numbers end."""


def wire_rows(input_: Input, spec: SourceSpec, upstream: DataFrame | None) -> DataFrame:
    """An input's rows in the columns of ``SourceSpec.travel_schema``; without ``_deleted`` where
    the source has no tombstones; with whether the foreign key fails where it may. ``upstream``: the
    changelog that another stage makes, if it is one.

    A key is canonical, the source's own too where it travels as a value. A stream's rows with a
    null in the key are spread over the buckets by their times. The columns' names are plain, for
    ``mapInArrow`` takes the dots of a user's names for nesting.
    """
    read = read_of(input_.source, upstream)
    keys = [_canonical(F.col(quoted(f.name)), f.dataType) for f in input_.key_fields]
    hash_ = F.xxhash64(*keys)
    if spec.stream and (spec.null_keys or spec.keeps_time):
        hash_ = F.when(_any_null(keys), F.xxhash64(read.timestamp)).otherwise(hash_)
    columns = [hash_, F.unix_micros(read.timestamp)]
    if read.deleted is not None:
        columns.append(F.coalesce(read.deleted, F.lit(False)))
    columns += keys
    frame, failed = read.frame, []
    if input_.foreign:
        items, types = zip(*input_.foreign, strict=True)
        foreign = [F.col(quoted(item)) for item in items if isinstance(item, str)]
        if spec.fallible:
            frame, foreign, fails = with_foreign_key(frame, items, read.deleted)
            failed.append(fails)
        foreign = [_canonical(c, type_) for c, type_ in zip(foreign, types, strict=True)]
        columns += [F.xxhash64(*foreign), *foreign]
    for field in input_.value_fields:
        value = F.col(quoted(field.name))
        own_key = field.name in input_.source.key.names
        columns.append(_canonical(value, field.dataType) if own_key else value)
    columns += [position.cast(LongType()) for position in read.positions]
    if spec.files:
        file = F.col(FILE_METADATA)
        columns.append(F.unix_micros(file["file_modification_time"]))
        columns += [file["file_path"], file["file_block_start"]]
    columns += failed
    plain = (column.alias(f"_c{number}") for number, column in enumerate(columns))
    return frame.select(*plain)


@dataclass(frozen=True)
class Read:
    """A frame, its event time, which of its rows are tombstones, and what puts them in order."""

    frame: DataFrame
    timestamp: Column
    deleted: Column | None
    positions: list[Column]


def read_of(source: Entry, upstream: DataFrame | None) -> Read:
    """How an input is read; ``upstream``: the changelog, where another stage makes it."""
    base = source.base
    if isinstance(source, View):
        files = isinstance(base, Source) and base.files
        return viewed(source, read_of(source.node, upstream), files=files)
    if isinstance(source, Source):
        assert source.frame is not None
        assert source.timestamp is not None
        positions = [p for p in (source.sequence, source.log_partition) if p is not None]
        return Read(source.frame, source.timestamp, source.deleted, positions)
    assert upstream is not None
    brought = (SEQUENCE, CLOCK, ORDER, TIE, STREAM_TIME)
    positions = [F.col(name) for name in brought if name in upstream.columns]
    return Read(upstream, F.col(TIMESTAMP), F.col(CHANGE) == DELETE, positions)


def viewed(view: View, read: Read, *, files: bool = False) -> Read:
    """The rows of a view from those that it is a view of; ``files``: with the files they are from.

    A tombstone, or a record without a value, has nulls for values, and nothing is computed of it.
    """
    numbers = [f"{_POSITION}{number}" for number in range(len(read.positions))]
    gone = F.lit(False) if read.deleted is None else F.coalesce(read.deleted, F.lit(False))
    places = [column.alias(name) for column, name in zip(read.positions, numbers, strict=True)]
    carried = [F.col(FILE_METADATA)] if files else []
    frame = read.frame.select(
        *(F.col(quoted(name)) for name in view.node.row.names),
        read.timestamp.alias(TIMESTAMP),
        gone.alias(DELETED),
        *places,
        *carried,
    )
    gone = F.col(DELETED)
    if view.condition is not None:
        met = F.coalesce(F.when(~gone, _column(view.condition)), F.lit(False))
        frame = frame.filter(met) if view.stream else frame.withColumn(DELETED, ~met)
    made, keys = [*map(_column, view.columns)], len(view.key)
    made = [*made[:keys], *(F.when(~gone, column) for column in made[keys:])]
    if view.exploded is not None:
        made[view.exploded] = F.explode(made[view.exploded])
    frame = frame.select(
        *(column.alias(name) for column, name in zip(made, view.row.names, strict=True)),
        *map(F.col, (TIMESTAMP, DELETED, *numbers)),
        *carried,
    )
    never = read.deleted is None and not view.loose
    deleted = None if never else gone
    return Read(frame, F.col(TIMESTAMP), deleted, [F.col(name) for name in numbers])


def _column(item: str | Column) -> Column:
    return F.col(quoted(item)) if isinstance(item, str) else item


def with_foreign_key(
    frame: DataFrame, items: Sequence[str | Column], deleted: Column | None
) -> tuple[DataFrame, list[Column], Column]:
    """The frame with the foreign key in a column of its own; the key's parts; and on which rows it
    fails: never on a tombstone, which has none.
    """
    parts = (_column(item).alias(f"_{number}") for number, item in enumerate(items))
    key = attempted(F.struct(*parts))
    failed = F.col(FOREIGN_KEY).isNull()
    if deleted is not None:
        there = ~F.coalesce(deleted, F.lit(False))
        key, failed = F.when(there, key), failed & there
    held = [F.col(f"{FOREIGN_KEY}._{number}") for number in range(len(items))]
    return frame.withColumn(FOREIGN_KEY, key), held, failed


def attempted(column: Column) -> Column:
    """The column, null where computing it fails. (Python functions raise all the same.)"""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 -- no public face for either
    assert context is not None
    jvm: Any = context._jvm  # noqa: SLF001
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    expression = utils.expression(column._jc)  # noqa: SLF001
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(expression)
    return Column(utils.column(tried))


def _any_null(columns: list[Column]) -> Column:
    return reduce(Column.__or__, (column.isNull() for column in columns))


def _canonical(column: Column, type_: DataType) -> Column:
    """A key in which equal values have equal bits: one NaN and no negative zero, at any depth."""
    if isinstance(type_, (FloatType, DoubleType)):
        zero = F.lit(0.0).cast(type_)
        nan = F.lit(float("nan")).cast(type_)
        return F.when(F.isnan(column), nan).when(column == zero, zero).otherwise(column)
    if isinstance(type_, ArrayType):
        element_type = type_.elementType
        return F.transform(column, lambda element: _canonical(element, element_type))
    if isinstance(type_, StructType):
        fields = (_canonical(column.getField(f.name), f.dataType).alias(f.name) for f in type_)
        return F.when(column.isNotNull(), F.struct(*fields))
    return column
