"""The first step of a stage, in the JVM: an input's rows in the columns in which they travel."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import reduce

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

from dovetail.base.columns import (
    CHANGE,
    CLOCK,
    DELETE,
    DELETED,
    FAILED,
    FILE_METADATA,
    LEFT_OUT,
    ORDER,
    PASSING,
    SEQUENCE,
    STREAM_TIME,
    TIE,
    TIMESTAMP,
    UNREAD,
    foreign_key_name,
    position_name,
    quoted,
    shared_name,
    wire_name,
)
from dovetail.physical.inputs import Input
from dovetail.physical.source import SourceSpec
from dovetail.plan.joins.lookup import Lookup
from dovetail.plan.nodes import Entry, Source
from dovetail.plan.transforms.expectation import Expectation
from dovetail.plan.view_columns import column_of
from dovetail.plan.views import views_of
from dovetail.platform.arrow_batches import SHORT
from dovetail.platform.sessions import null_on_failure
from dovetail.spark.execution.observations import Observations
from dovetail.spark.execution.view_rows import (
    InputRows,
    as_json,
    non_row_columns,
    non_row_conditions,
    rows_of_expectation,
    rows_of_lookup,
    rows_of_view,
)


class Wire:
    """The columns in which an input's rows travel to all their readers; a shared column travels
    once.

    A column that is *placed* gets an index, from ``first`` on in the order of first use. Its name
    in the frame is that index (``wire_name``), because ``mapInArrow`` takes the dots of a user's
    names for nesting. A column that is placed again keeps its index.
    """

    def __init__(self, read: InputRows, first: int = 0) -> None:
        """Begin with the rows of ``read`` and no columns. ``first``: the index of the first column
        placed.
        """
        self._read, self._frame, self._first = read, read.frame, first
        self._columns: dict[Hashable, Column] = {}
        self._foreign_keys = 0

    def __len__(self) -> int:
        """Return the count of columns placed so far."""
        return len(self._columns)

    def frame(self, *carried: str) -> DataFrame:
        """Return the rows with the columns placed so far, named ``_wire_<index>``, with indices
        that begin at ``first``. The columns named ``carried`` precede them, under their own names.
        """
        columns = enumerate(self._columns.values(), start=self._first)
        numbered = (column.alias(wire_name(column_index)) for column_index, column in columns)
        return self._frame.select(*carried, *numbered)

    def place_columns(self, names: Iterable[str]) -> list[int]:
        """Add the columns ``names`` of the rows, unchanged, to those that travel, and return their
        indices in that order. A column that is there already keeps its index.
        """
        return [self._place(("own", name), F.col(quoted(name))) for name in names]

    def place_input(self, input_: Input, spec: SourceSpec, *, letters: bool) -> list[int]:
        """Place the columns of the input ``input_`` in the order of ``SourceSpec.travel_schema``,
        and return their indices. Hash of the key, event time in microseconds, ``_deleted`` and key
        come first. Each foreign key (its hash, its parts), values and the columns that order the
        rows follow. If files order the rows, the file's time, path and block start come next.

        ``_deleted`` is absent if there are no tombstones. If the foreign key may fail, there is one
        more index, the last. Its column is null where the key does not fail; else it is true or,
        with ``letters``, the row as JSON. ``letters`` changes nothing else.

        A key is canonical (one NaN, no negative zero), also a source's own key that travels as a
        value. A hash is never null, since it skips nulls in the key. But a stream's rows with a
        null in the key, if they are kept, are spread over the buckets by a hash of their times.
        """
        read = self._read
        keys = [_canonical_key(F.col(quoted(f.name)), f.dataType) for f in input_.key_fields]
        spread = spec.meaning.stream and (spec.meaning.null_keys or spec.meaning.keeps_time)
        hash_ = F.xxhash64(*keys)
        if spread:
            hash_ = F.when(_any_null(keys), F.xxhash64(read.timestamp)).otherwise(hash_)
        places = [self._place(("hash", input_.key, spread), hash_), self.place_time()]
        if read.deleted is not None:
            places.append(self._place("deleted", read.deleted))
        places += [self._place_canonical(field) for field in input_.key_fields]
        failed = []
        if input_.foreign:
            items, types = zip(*input_.foreign, strict=True)
            foreign = [F.col(quoted(item)) for item in items if isinstance(item, str)]
            what: Hashable = ("foreign", items)
            if spec.shape.fallible:
                self._foreign_keys += 1
                name = foreign_key_name(self._foreign_keys)
                self._frame, foreign, fails = with_foreign_key(
                    self._frame, items, read.deleted, name
                )
                failure = F.when(fails, as_json(input_.source) if letters else F.lit(True))
                what = ("foreign", name)
                failed.append(self._place(("failed", name), failure))
            foreign = [_canonical_key(c, type_) for c, type_ in zip(foreign, types, strict=True)]
            columns = enumerate([F.xxhash64(*foreign), *foreign])
            places += [self._place((what, part_index), column) for part_index, column in columns]
        for reference in input_.references:
            named = [_canonical_key(F.col(quoted(name)), type_) for name, type_ in reference]
            columns = enumerate([F.xxhash64(*named), *named])
            places += [self._place((reference, part), column) for part, column in columns]
        for field in () if input_.references else input_.value_fields:
            own_key = field.name in input_.source.key.names
            if own_key:
                places.append(self._place_canonical(field))
            else:
                places += self.place_columns([field.name])
        positions = enumerate(read.positions)
        places += [self._place(("position", n), p.cast(LongType())) for n, p in positions]
        if spec.arrival.by_file:
            file = F.col(FILE_METADATA)
            places.append(self._place("file time", F.unix_micros(file["file_modification_time"])))
            path = file["file_path"].alias("path", metadata=SHORT)
            places.append(self._place("file path", path))
            places.append(self._place("file block start", file["file_block_start"]))
        return places + failed

    def place_absence(self) -> int | None:
        """Add a column to those that travel, null for rows and true for all else: unreadable
        records, dead letters and rows left out for other views. Return its index; None if the rows
        have nothing else. Rows that pass to other stages do not count. A second call returns the
        same index.
        """
        beside = [name for name in non_row_columns(self._read.frame) if name != PASSING]
        if not beside:
            return None
        return self._place(
            "out", F.when(reduce(Column.__or__, non_row_conditions(beside)), F.lit(True))
        )

    def place_letters(self, *, unread: bool) -> int | None:
        """Add a column to those that travel, with each dead letter, null in all other rows, and
        return its index. A dead letter is the struct of a row that was left out because of an
        error. Return None if the rows have no column of dead letters.

        ``unread``: True to add the dead letters of records that cannot be read, which precede
        others. A second call returns the same index, whatever ``unread`` is.
        """
        names = ([UNREAD] if unread else []) + [FAILED]
        letters = [F.col(name) for name in names if name in self._read.frame.columns]
        return self._place("letters", F.coalesce(*letters)) if letters else None

    def place_time(self) -> int:
        """Add the event time, in microseconds since 1970, to the columns that travel, and return
        its index. A second call returns the same index.
        """
        return self._place("time", F.unix_micros(self._read.timestamp))

    def _place_canonical(self, field: StructField) -> int:
        """Place the column ``field`` with one NaN and no negative zero (``_canonical_key``), and
        return its index. A column that is neither nested nor a float shares the index of
        ``place_columns``.
        """
        raw = F.col(quoted(field.name))
        column = _canonical_key(raw, field.dataType)
        return self._place(("own" if column is raw else "canonical", field.name), column)

    def _place(self, what: Hashable, column: Column) -> int:
        """Return the index of ``column``, which is added on first use. ``what``: a hashable name of
        the column's content. If it was used before, return that column's index and ignore
        ``column``.
        """
        if what not in self._columns:
            self._columns[what] = column
        return self._first + [*self._columns].index(what)


class SharedSource:
    """A source's rows, read once, from which several views are made one after the other.

    The travelling columns of each view are beside the source's columns. A view makes at most one
    row of a row. If it makes none, the row is only for other views, and ``_left_out`` is set. For
    each view: ``read``, then ``wire``, place columns, then ``keep_columns``.
    """

    def __init__(self, source: Source, *, unread: bool) -> None:
        """Begin with the rows of ``source`` and no view. ``unread``: True to add its unreadable
        records beside the rows; the source must keep them.
        """
        read = _rows_of_source(source, unread=unread)
        columns: dict[str, Column] = {name: F.col(quoted(name)) for name in source.row.names}
        columns[TIMESTAMP] = read.timestamp
        if read.deleted is not None:
            columns[DELETED] = read.deleted
        self._positions = [*map(position_name, range(len(read.positions)))]
        columns |= zip(self._positions, read.positions, strict=True)
        columns |= {name: F.col(name) for name in (*read.carried, *non_row_columns(read.frame))}
        self._names, self._carried = [*columns], read.carried
        self._shared_names = [shared_name(column_index) for column_index in range(len(columns))]
        named_columns = zip(columns.values(), self._shared_names, strict=True)
        self._frame = read.frame.select(*(column.alias(name) for column, name in named_columns))
        self._width = 0

    def read(self, entry: Entry, *, reported: int, observations: Observations | None) -> InputRows:
        """Return the shared source's rows, or those of the view ``entry`` of it, beside the columns
        that travel so far. Each call begins with all rows of the source, so views may come in any
        order. No row is missing: the column ``_left_out`` is true for rows that this view leaves
        out, else null.

        ``reported``: the count of views, from the one nearest the source, whose left-out rows
        another reading counts and reports. ``observations``: takes the counts of the other views,
        None to drop them.
        """
        name_pairs = zip(self._shared_names, self._names, strict=True)
        frame = self._frame.select(
            *self._frame_columns,
            *(F.col(shared).alias(name) for shared, name in name_pairs),
            F.lit(None).cast("boolean").alias(LEFT_OUT),
        )
        positions = [*map(F.col, self._positions)]
        deleted = F.col(DELETED) if DELETED in self._names else None
        carried = (*self._frame_columns, *self._carried)
        read = InputRows(frame, F.col(TIMESTAMP), deleted, positions, carried)
        return _rows_of_views(entry, read, reported=reported, observations=observations)

    def wire(self, read: InputRows) -> Wire:
        """Return a ``Wire`` without columns for ``read``, the rows that were read last. Its indices
        follow those of the columns that were kept before.
        """
        return Wire(read, self._width)

    def keep_columns(self, wire: Wire) -> None:
        """Add the travelling columns of ``wire`` to the frame, after those of earlier reads.
        ``wire`` must be the last one that ``wire()`` returned, with all its columns placed.
        """
        self._frame = wire.frame(*self._frame_columns)
        self._width += len(wire)

    @property
    def _frame_columns(self) -> list[str]:
        """The names of the frame's columns: first the source's (``_shared_0`` and so on), then the
        travelling ones so far (``_wire_0`` and so on).
        """
        return [*self._shared_names, *map(wire_name, range(self._width))]

    @property
    def frame(self) -> DataFrame:
        """The rows with the travelling columns of all that was read, named ``_wire_0`` and so on,
        without the source's columns.
        """
        return self._frame.select(*map(wire_name, range(self._width)))


def rows_of_input(
    source: Entry,
    upstream: DataFrame | None,
    *,
    unread: bool = False,
    reported: int = 0,
    observations: Observations | None = None,
) -> InputRows:
    """Return the rows of an input after its views: of a source's frame, or of another stage's
    changelog ``upstream``.

    ``source``: the source, the other stage's result, or a view of either. ``upstream``: None for a
    source, which must have a frame and an event time. ``unread``: True to add the records that
    cannot be read, beside the rows; the source must keep them.

    ``reported``: the count of views, from the one nearest the source, whose left-out rows another
    reading counts and reports; a count beyond all views means all. ``observations``: takes the
    counts of the other views; None counts nothing.
    """
    base = source.base
    if isinstance(base, Source):
        read = _rows_of_source(base, unread=unread)
    else:
        assert upstream is not None
        brought = (SEQUENCE, CLOCK, ORDER, TIE, STREAM_TIME)
        positions = [F.col(name) for name in brought if name in upstream.columns]
        read = InputRows(upstream, F.col(TIMESTAMP), F.col(CHANGE) == DELETE, positions)
    return _rows_of_views(source, read, reported=reported, observations=observations)


def _rows_of_source(source: Source, *, unread: bool) -> InputRows:
    """Return the rows of a source's frame, before any view. The source must have a frame and an
    event time. A null in its ``deleted`` counts as not deleted. A row with a null position in its
    log fails the query when it is read.

    ``unread``: True to add its unreadable records, with a dead letter in ``_unread``. The source
    must keep them. They count as deleted and need no position.
    """
    assert source.frame is not None
    assert source.timestamp is not None
    unreadable = F.col(UNREAD).isNotNull() if unread else F.lit(False)
    positions = [
        F.when(position.isNotNull() | unreadable, position).otherwise(
            F.raise_error(
                F.lit(
                    f"{source.title}: a row has a null in {argument}, so no place in its log. Give "
                    "it a position with F.coalesce, or leave such rows out."
                )
            )
        )
        for argument, position in source.order.positions.items()
    ]
    carried = (FILE_METADATA,) if source.order.by_files else ()
    deleted = None if source.deleted is None else F.coalesce(source.deleted, F.lit(False))
    if not unread:
        return InputRows(source.frame, source.timestamp, deleted, positions, carried)
    assert source.with_unread is not None
    assert deleted is not None  # sources of records always have the column
    deleted = deleted | F.col(UNREAD).isNotNull()  # nothing is computed of it
    return InputRows(source.with_unread, source.timestamp, deleted, positions, carried)


def _rows_of_views(
    entry: Entry, read: InputRows, *, reported: int, observations: Observations | None
) -> InputRows:
    """Return the rows of ``entry``: ``read``, the rows of its base, after the entry's views, the
    one nearest the base first. Without views that is ``read`` itself.

    ``reported``: the count of views, from the first, that another reading reports. These neither
    count rows nor keep dead letters here. A lookup counts its requests in any case, since each
    reading makes requests of its own. ``observations``: takes the counts; None counts nothing.
    """
    for view_index, view in enumerate(views_of(entry)):
        reports = view_index >= reported
        if isinstance(view, Lookup):
            read = rows_of_lookup(view, read, observations=observations)
        elif isinstance(view, Expectation):
            read = rows_of_expectation(view, read, reports=reports, observations=observations)
        else:
            read = rows_of_view(view, read, reports=reports, observations=observations)
    return read


def with_foreign_key(
    frame: DataFrame, items: Sequence[str | Column], deleted: Column | None, name: str
) -> tuple[DataFrame, list[Column], Column]:
    """Return three values. The first is the frame with the foreign key in a new struct column
    ``name``. The second has a column for each part of the key, in order. The third is a condition
    that is true where computing the key fails; the parts are null then. A part that is null by its
    data is no failure.

    ``items``: the parts, names of columns or expressions. ``deleted``: the condition of a
    tombstone; None if there are none. Null counts as true: it marks a row that a view's condition
    has made a tombstone. A tombstone has a null key, which never fails.
    """
    key = null_on_failure(frame.sparkSession, [column_of(item) for item in items])
    failed = F.col(name).isNull()
    if deleted is not None:
        there = ~F.coalesce(deleted, F.lit(True))
        key, failed = F.when(there, key), failed & there
    key_parts = [F.col(f"{name}._{part_index}") for part_index in range(len(items))]
    return frame.withColumn(name, key), key_parts, failed


def _any_null(columns: list[Column]) -> Column:
    """Return the condition that any of the columns is null. There is at least one column."""
    return reduce(Column.__or__, (column.isNull() for column in columns))


def _canonical_key(column: Column, type_: DataType) -> Column:
    """Return a key column in which equal values have equal bits: one NaN and no negative zero, at
    any depth of arrays and structs. Null stays null. ``type_``: the type of ``column``. A type
    without floats gives ``column`` itself if it is not nested.
    """
    if isinstance(type_, (FloatType, DoubleType)):
        zero = F.lit(0.0).cast(type_)
        nan = F.lit(float("nan")).cast(type_)
        return F.when(F.isnan(column), nan).when(column == zero, zero).otherwise(column)
    if isinstance(type_, ArrayType):
        element_type = type_.elementType
        return F.transform(column, lambda element: _canonical_key(element, element_type))
    if isinstance(type_, StructType):
        fields = (_canonical_key(column.getField(f.name), f.dataType).alias(f.name) for f in type_)
        return F.when(column.isNotNull(), F.struct(*fields))
    return column
