"""The first step of a stage, in the JVM: an input's rows in the columns in which they travel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    LongType,
    StructField,
    StructType,
)

from dovetail.columns import (
    CHANGE,
    CLOCK,
    DELETE,
    DELETED,
    EVENT_TIME,
    FAILED,
    FILE_METADATA,
    LETTER,
    OPERATOR,
    ORDER,
    PASSING,
    PROBLEM,
    SEQUENCE,
    STREAM_TIME,
    TIE,
    TIMESTAMP,
    UNREAD,
    attempt_name,
    foreign_key_name,
    position_name,
    quoted,
)
from dovetail.physical.inputs import Input
from dovetail.physical.look_up import store_look_up
from dovetail.physical.source import SourceSpec
from dovetail.plan.look_up import LookUp
from dovetail.plan.nodes import Entry, Source
from dovetail.plan.views import View, said, views_of
from dovetail.sessions import attempted
from dovetail.spark.look_up import answered

Metric: TypeAlias = Callable[[str], str]
"""From the name of an observed metric to one that no other of the query has."""


class Wire:
    """The columns in which rows travel, for all that read them: what several need is there once.

    The columns' names are plain, for ``mapInArrow`` takes the dots of a user's names for nesting.
    """

    def __init__(self, read: Read) -> None:
        self._read, self._frame = read, read.frame
        self._columns: dict[Hashable, Column] = {}
        self._foreign_keys = 0

    @property
    def frame(self) -> DataFrame:
        """The rows, in columns that methods have told the places of."""
        columns = enumerate(self._columns.values())
        return self._frame.select(*(column.alias(f"_c{number}") for number, column in columns))

    def own(self, names: Iterable[str]) -> list[int]:
        """The places of columns as they are in the frame."""
        return [self._place(("own", name), F.col(quoted(name))) for name in names]

    def input(self, input_: Input, spec: SourceSpec, *, letters: bool) -> list[int]:
        """The places of an input's columns of ``SourceSpec.travel_schema``; without ``_deleted``
        where there are no tombstones. Where the foreign key may fail, also that of a column which
        is null where it does not; with ``letters`` it has the row as JSON.

        A key is canonical, the source's own too where it travels as a value. A stream's rows with a
        null in the key are spread over the buckets by their times.
        """
        read = self._read
        keys = [_canonical(F.col(quoted(f.name)), f.dataType) for f in input_.key_fields]
        spread = spec.stream and (spec.null_keys or spec.keeps_time)
        hash_ = F.xxhash64(*keys)
        if spread:
            hash_ = F.when(_any_null(keys), F.xxhash64(read.timestamp)).otherwise(hash_)
        places = [self._place(("hash", input_.key, spread), hash_), self.time()]
        if read.deleted is not None:
            places.append(self._place("deleted", F.coalesce(read.deleted, F.lit(False))))
        places += [self._canonical(field) for field in input_.key_fields]
        failed = []
        if input_.foreign:
            items, types = zip(*input_.foreign, strict=True)
            foreign = [F.col(quoted(item)) for item in items if isinstance(item, str)]
            what: Hashable = ("foreign", items)
            if spec.fallible:
                self._foreign_keys += 1
                name = foreign_key_name(self._foreign_keys)
                self._frame, foreign, fails = with_foreign_key(
                    self._frame, items, read.deleted, name
                )
                failure = F.when(fails, as_json(input_) if letters else F.lit(True))
                what = ("foreign", name)
                failed.append(self._place(("failed", name), failure))
            foreign = [_canonical(c, type_) for c, type_ in zip(foreign, types, strict=True)]
            columns = enumerate([F.xxhash64(*foreign), *foreign])
            places += [self._place((what, number), column) for number, column in columns]
        for field in input_.value_fields:
            own_key = field.name in input_.source.key.names
            places += [self._canonical(field)] if own_key else self.own([field.name])
        positions = enumerate(read.positions)
        places += [self._place(("position", n), p.cast(LongType())) for n, p in positions]
        if spec.files:
            file = F.col(FILE_METADATA)
            places.append(self._place("file time", F.unix_micros(file["file_modification_time"])))
            parts = ("file_path", "file_block_start")
            places += [self._place(part, file[part]) for part in parts]
        return places + failed

    def time(self) -> int:
        """The place of the event time."""
        return self._place("time", F.unix_micros(self._read.timestamp))

    def _canonical(self, field: StructField) -> int:
        own = F.col(quoted(field.name))
        column = _canonical(own, field.dataType)
        return self._place(("own" if column is own else "canonical", field.name), column)

    def _place(self, what: Hashable, column: Column) -> int:
        if what not in self._columns:
            self._columns[what] = column
        return [*self._columns].index(what)


@dataclass(frozen=True)
class Read:
    """A frame, its event time, which of its rows are tombstones, and what puts them in order."""

    frame: DataFrame
    timestamp: Column
    deleted: Column | None
    positions: list[Column]


def read_of(
    source: Entry,
    upstream: DataFrame | None,
    *,
    unread: bool = False,
    told: int = 0,
    metric: Metric | None = None,
) -> Read:
    """How an input is read; ``upstream``: the changelog, where another stage makes it; ``unread``:
    with the records that cannot be read, beside the rows (``Source.with_unread``); ``told``: as in
    ``Reading``; ``metric``: the name of an observed metric, of which look-ups have some.
    """
    base = source.base
    if isinstance(source, View):
        files = isinstance(base, Source) and base.files
        read = read_of(source.node, upstream, unread=unread, told=told, metric=metric)
        if isinstance(source, LookUp):
            return looked_up(source, read, files=files, metric=metric)
        return viewed(source, read, files=files, tells=len(views_of(source)) > told)
    if isinstance(source, Source):
        assert source.frame is not None
        assert source.timestamp is not None
        positions = [p for p in (source.sequence, source.log_partition) if p is not None]
        if not unread:
            return Read(source.frame, source.timestamp, source.deleted, positions)
        assert source.with_unread is not None
        assert source.deleted is not None  # every record says it
        deleted = source.deleted | F.col(UNREAD).isNotNull()  # nothing is computed of it
        return Read(source.with_unread, source.timestamp, deleted, positions)
    assert upstream is not None
    brought = (SEQUENCE, CLOCK, ORDER, TIE, STREAM_TIME)
    positions = [F.col(name) for name in brought if name in upstream.columns]
    return Read(upstream, F.col(TIMESTAMP), F.col(CHANGE) == DELETE, positions)


def viewed(view: View, read: Read, *, files: bool = False, tells: bool = False) -> Read:
    """The rows of a view from those that it is a view of, and what comes beside them (``PASSING``,
    ``UNREAD``, ``FAILED``) as it is; ``files``: with the files they are from.

    A tombstone, or a record without a value, has nulls for values, and nothing is computed of it.
    The rows on which the view fails, where it does not fail the query, are left out; if it
    ``tells``, they are beside the others, their dead letters in ``FAILED``.
    """
    frame, numbers, beside = _plain(read, view.node.row.names, files=files)
    carried = [*([FILE_METADATA] if files else []), *beside]
    gone, condition, columns = F.col(DELETED), view.condition, view.columns
    if view.letters is not None:
        frame, held, problems = _attempted(frame, view, beside)
        failed = reduce(Column.__or__, (problem.isNotNull() for problem in problems))
        condition = held.get(0, condition)
        columns = tuple(held.get(n, item) for n, item in enumerate(columns, start=1))
        if not tells:
            frame = frame.where(~failed)
        else:
            letter = F.when(failed, _letter(view, problems))
            if FAILED in beside:
                letter = F.coalesce(F.col(FAILED), letter)
            else:
                beside, carried = [*beside, FAILED], [*carried, FAILED]
            frame = frame.withColumn(FAILED, letter)
    if condition is not None:
        met = F.coalesce(F.when(~gone, _column(condition)), F.lit(False))
        kept = reduce(Column.__or__, _there(beside), met)
        frame = frame.filter(kept) if view.stream else frame.withColumn(DELETED, ~met)
    made, keys = [*map(_column, columns)], len(view.key)
    made = [*made[:keys], *(F.when(~gone, column) for column in made[keys:])]
    for there in _there(beside):
        made[:keys] = [F.when(~there, key) for key in made[:keys]]
    if view.exploded is not None:
        items = made[view.exploded]
        for there in _there(beside):
            items = F.when(there, F.array(F.lit(None))).otherwise(items)
        made[view.exploded] = F.explode(items)
    frame = frame.select(
        *(column.alias(name) for column, name in zip(made, view.row.names, strict=True)),
        *map(F.col, (TIMESTAMP, DELETED, *numbers, *carried)),
    )
    never = read.deleted is None and not view.loose
    deleted = None if never else gone
    return Read(frame, F.col(TIMESTAMP), deleted, [F.col(name) for name in numbers])


def looked_up(
    view: LookUp, read: Read, *, files: bool = False, metric: Metric | None = None
) -> Read:
    """A stream's records with what a store has of them, from the records; ``files``: as in
    ``viewed``; ``metric``: as in ``read_of``. A record without a value is left out.
    """
    law = store_look_up(view)
    frame, numbers, beside = _plain(read, law.needed, files=files)
    name = None if metric is None else metric(f"{view.label or view.name}.lookups")
    made = answered(frame, view, law, beside, name)
    positions = [F.col(number) for number in numbers]
    return Read(made, F.col(TIMESTAMP), None if read.deleted is None else F.col(DELETED), positions)


def _plain(
    read: Read, names: Sequence[str], *, files: bool
) -> tuple[DataFrame, list[str], list[str]]:
    """These columns of what is read with ``_timestamp``, ``_deleted`` and what comes along; of this
    the columns that put rows in order, and those that have something in place of rows.
    """
    numbers = [*map(position_name, range(len(read.positions)))]
    beside = [name for name in (PASSING, UNREAD, FAILED) if name in read.frame.columns]
    gone = F.lit(False) if read.deleted is None else F.coalesce(read.deleted, F.lit(False))
    places = [column.alias(name) for column, name in zip(read.positions, numbers, strict=True)]
    frame = read.frame.select(
        *(F.col(quoted(name)) for name in names),
        read.timestamp.alias(TIMESTAMP),
        reduce(Column.__or__, _there(beside), gone).alias(DELETED),
        *places,
        *map(F.col, [*([FILE_METADATA] if files else []), *beside]),
    )
    return frame, numbers, beside


def _there(beside: Sequence[str]) -> list[Column]:
    """Whether each of these columns has something in place of a row."""
    return [F.col(name).isNotNull() for name in beside]


def _attempted(
    frame: DataFrame, view: View, beside: Sequence[str]
) -> tuple[DataFrame, dict[int, Column], list[Column]]:
    """The frame with what each expression of a view makes in a column of its own; these columns, by
    the expression's number: 0, the condition, or from 1 on that of a column; and of each expression
    where it fails, in words, null on other rows.
    """
    items = (("condition", view.condition), *zip(view.row.names, view.columns, strict=True))
    absent = reduce(Column.__or__, _there(beside), F.lit(False))
    attempts: dict[str, Column] = {}
    held: dict[int, Column] = {}
    problems: list[Column] = []
    for number, (label, item) in enumerate(items):
        if isinstance(item, Column):
            name, of_key = attempt_name(number), 0 < number <= len(view.key)
            there = ~(absent if of_key else F.col(DELETED))
            attempts[name] = F.when(there, attempted(frame.sparkSession, [item]))
            held[number] = F.col(f"{name}._0")
            fails = F.lit(f"{label}= fails: {said(item).removesuffix(f' AS {label}')}")
            problems.append(F.when(there & F.col(name).isNull(), fails))
    return frame.withColumns(attempts), held, problems


def _letter(view: View, problems: Sequence[Column]) -> Column:
    """The dead letter of a row that a view leaves out."""
    row = F.struct(*(F.col(quoted(name)) for name in view.node.row.names))
    return F.struct(
        F.lit(view.letters).alias(OPERATOR),
        F.concat_ws("; ", *problems).alias(PROBLEM),
        F.to_json(row).alias(LETTER),
        F.unix_micros(TIMESTAMP).alias(EVENT_TIME),
    )


def _column(item: str | Column) -> Column:
    return F.col(quoted(item)) if isinstance(item, str) else item


def with_foreign_key(
    frame: DataFrame, items: Sequence[str | Column], deleted: Column | None, name: str
) -> tuple[DataFrame, list[Column], Column]:
    """The frame with the foreign key in a column of this name; the key's parts; and on which rows
    it fails: never on a tombstone, which has none.
    """
    key = attempted(frame.sparkSession, [_column(item) for item in items])
    failed = F.col(name).isNull()
    if deleted is not None:
        there = ~F.coalesce(deleted, F.lit(False))
        key, failed = F.when(there, key), failed & there
    held = [F.col(f"{name}._{number}") for number in range(len(items))]
    return frame.withColumn(name, key), held, failed


def as_json(input_: Input) -> Column:
    """A row of an input, as text."""
    return F.to_json(F.struct(*(F.col(quoted(name)) for name in input_.source.row.names)))


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
