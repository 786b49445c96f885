"""An operator's input, as plain data that travels to the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Literal, TypeAlias

import pyarrow as pa

from dovetail.base.columns import (
    CLOCK,
    COPY,
    DELETED,
    EVENT_TIME,
    FILE,
    FILE_BLOCK,
    FILE_PATH,
    FILE_TIME,
    HASH,
    LOG_PARTITION,
    ORDER,
    SEQUENCE,
    STREAM_TIME,
    WINDOW_START,
)
from dovetail.plan.metrics import MetricKind, metric_name
from dovetail.plan.types.spans import span_as_text

ROW_COLUMNS = (HASH, EVENT_TIME, DELETED)
"""The first columns of every input."""

OrderedBy: TypeAlias = Literal["shared log", "own logs", "file"]
"""The places by which the rows of an input are ordered.

| ordered by | rows have a place in | columns of the place |
|---|---|---|
| ``shared log`` | a log that all inputs share | ``_sequence`` |
| ``own logs`` | one of the logs of the input | ``_log_partition``, ``_sequence`` |
| ``file`` | the files that they are read from | ``_file``, before pack the file and its block |
"""


@dataclass(frozen=True)
class RowShape:
    """The columns of an input's rows, as an operator sees them."""

    schema: pa.Schema
    """First ``ROW_COLUMNS``, then the key, a foreign key if there is one, and the values."""
    keys: int
    """The count of key columns."""
    foreign: int = 0
    """The count of foreign key columns, which follow the key behind a column with their hash."""
    fallible: bool = False
    """True if its foreign key may fail on a row. A last column says so until the row is packed."""
    primary: tuple[str, ...] = ()
    """The columns besides the key that may not be null."""
    spread: int = 1
    """The count of buckets over which the rows of one foreign key are spread; 1 for one bucket."""
    window: str = WINDOW_START
    """The column of the window's time by which ``RowMeaning.retention_us`` goes."""

    @property
    def key_columns(self) -> range:
        """The indices of the key columns in ``schema``, from 3. They follow the first three
        columns, ``_hash``, ``_event_time`` and ``_deleted``.
        """
        return range(len(ROW_COLUMNS), len(ROW_COLUMNS) + self.keys)

    @property
    def foreign_columns(self) -> range:
        """The indices in ``schema`` of the foreign key: its hash, then its columns. They follow the
        key. Empty if there is no foreign key.
        """
        first = self.key_columns.stop
        return range(first, first + bool(self.foreign) + self.foreign)

    @property
    def value_columns(self) -> range:
        """The indices of the value columns in ``schema``: all columns after the key and the foreign
        key. Empty without values.
        """
        return range(self.foreign_columns.stop, len(self.schema))

    @property
    def user_columns(self) -> range:
        """The indices in ``schema`` of the key, the foreign key with its hash, and the values.
        These are all columns but the first three, ``_hash``, ``_event_time`` and ``_deleted``.
        """
        return range(len(ROW_COLUMNS), len(self.schema))

    @property
    def key_fields(self) -> list[pa.Field]:
        """The key columns with their names and types, in order."""
        return self.fields(self.key_columns)

    @property
    def foreign_fields(self) -> list[pa.Field]:
        """The foreign key's hash, then its columns, with their names and types; empty without a
        foreign key.
        """
        return self.fields(self.foreign_columns)

    @property
    def value_fields(self) -> list[pa.Field]:
        """The value columns with their names and types, in order; empty without values."""
        return self.fields(self.value_columns)

    @property
    def user_fields(self) -> list[pa.Field]:
        """The key, the foreign key with its hash, and the values, with their names and types, in
        order. These are all columns but the first three, ``_hash``, ``_event_time`` and
        ``_deleted``.
        """
        return self.fields(self.user_columns)

    def fields(self, columns: range) -> list[pa.Field]:
        """Return the fields (names and types) of the columns with the indices ``columns`` in
        ``schema``, in order.
        """
        return [self.schema.field(index) for index in columns]

    def schema_with(self, names: Sequence[str]) -> pa.Schema:
        """Return ``schema`` followed by an int64 column for each of ``names``, in order."""
        return pa.schema([*self.schema, *(pa.field(name, pa.int64()) for name in names)])


@dataclass(frozen=True)
class RowMeaning:
    """The meaning of an input's rows: a stream or a table, what counts of it, and for how long."""

    stream: bool = False
    """True for a stream. Its records without a value are dropped, unless ``valueless``."""
    valueless: bool = False
    """True if stream records without a value are kept."""
    null_keys: bool = False
    """True if records with a null in the key travel; else they are dropped."""
    keeps_time: bool = False
    """True if records that no join can use travel, too, because they advance stream time."""
    loose: bool = False
    """True if it may have spurious tombstones: deletes of keys that had no row."""
    versioned_us: int | None = None
    """The history retention of a versioned table; None for other inputs."""
    in_order: bool = False
    """True if its times never go back (``operators.histories``)."""
    retention_us: int | None = None
    """The longest that a window's rows are kept behind stream time; None without windows."""

    @property
    def stored_rows_text(self) -> str:
        """The rows of the input that a stage stores, in words for ``explain``. Windowed tables have
        rows per key and window for their retention. Versioned tables have every version for their
        history. Other inputs have the last row per key.
        """
        if self.retention_us is not None:
            return f"rows per key and window, for {span_as_text(self.retention_us)}"
        if self.versioned_us is not None:
            return f"every version per key for {span_as_text(self.versioned_us)}"
        return "last row per key"


@dataclass(frozen=True)
class RowArrival:
    """The way in which an input's rows arrive: their order, and the columns that tell it."""

    origin: int = 0
    """The index of the input among the sources of the topology, from 0."""
    ordered_by: OrderedBy | None = None
    """None if rows come as tasks read them, or as the columns that they carry say."""
    clocked: bool = False
    """True if pack adds each row's clock: the largest timestamp of its log so far in the batch.
    Rows that are left out have their own (``orders_left_out``).
    """
    numbered: bool = False
    """True if rows get ``_order``, their place among rows with equal clocks."""
    instruction: tuple[str, ...] = ()
    """The columns that tell whether a row enters or leaves a group, or subscribes to a row."""
    carries: tuple[str, ...] = ()
    """The arrival columns that rows of another stage bring with them, instead of those of pack."""
    stairs: bool = False
    """True if all buckets hear how its stream time rises."""
    stair_period: tuple[int, int] | None = None
    """A span and an offset in microseconds: only steps that reach a time ``offset + k * span`` are
    told. None for all steps.
    """
    logs: bool = False
    """True if rows of one key may come from several of its logs. The newest row counts."""
    limited: bool = False
    """True if a micro-batch may end before all of its logs are read equally far."""
    orders_left_out: bool = False
    """True if rows that a condition leaves out come in the order of their own times, between the
    rows beside them in their log (``laws.arrival``). They do not advance stream time.
    """
    full_clock: bool = False
    """True if all rows of the source count for clocks: those that this reader leaves out, and those
    with a null in the key. So a row has one clock for all readers.
    """
    separate_time: bool = False
    """True if pack also adds ``_stream_time``, the stream time when the row has arrived. The full
    clock may be ahead of it, as not all rows that count for it advance stream time.
    """

    copies: int = 1
    """The count of buckets that get each row (``engine.batches.spread``). If there are several,
    pack adds ``_copy``: the number of the copy, from 0. Counts of rows leave out all others than
    0.
    """

    @property
    def by_shared_log(self) -> bool:
        """True if rows have a column ``_sequence``, their position in one log that all inputs
        share.
        """
        return self.ordered_by == "shared log"

    @property
    def by_own_logs(self) -> bool:
        """True if rows have the columns ``_log_partition``, the log of their input that they come
        from, and ``_sequence``, their position in it.
        """
        return self.ordered_by == "own logs"

    @property
    def by_file(self) -> bool:
        """True if rows are ordered by the files that they are read from, and then by their place in
        the file.
        """
        return self.ordered_by == "file"

    @property
    def brought_columns(self) -> list[str]:
        """The names of the int64 columns that rows have before they are packed, in order. First are
        those in the field ``instruction``. Then come ``_sequence`` if rows have a position in a
        log, and ``_log_partition`` if it is one of several logs. Last are those in the field
        ``carries``. Both fields may be empty. So the list is empty for rows that only have a time.
        """
        columns = (
            (SEQUENCE, self.by_shared_log or self.by_own_logs),
            (LOG_PARTITION, self.by_own_logs),
        )
        return [*self.instruction, *(name for name, has in columns if has), *self.carries]

    @property
    def added_columns(self) -> list[str]:
        """The names of the int64 columns that pack adds, in order: ``_clock``, ``_stream_time``,
        ``_order`` and ``_file``, as far as the rows need them. Empty for rows that bring all of
        them.
        """
        columns = (
            (CLOCK, self.clocked),
            (STREAM_TIME, self.separate_time),
            (ORDER, self.numbered and not self.by_own_logs),
            (FILE, self.by_file),
        )
        return [name for name, has in columns if has]


@dataclass(frozen=True)
class SourceSpec:
    """An input of an operator: what its rows look like, what they mean, and how they arrive."""

    name: str
    shape: RowShape
    meaning: RowMeaning = RowMeaning()
    arrival: RowArrival = RowArrival()

    @property
    def metric_names(self) -> list[str]:
        """The names of the metrics of rows that are left out during packing: ``<name>.dropped``
        and, if the foreign key may fail on a row, ``<name>.failed``.
        """
        kinds: tuple[MetricKind, ...] = (
            ("dropped", "failed") if self.shape.fallible else ("dropped",)
        )
        return [metric_name(self.name, kind) for kind in kinds]

    @property
    def title(self) -> str:
        """The name after the word ``stream`` or ``table``, for errors: ``table orders``."""
        return f"{'stream' if self.meaning.stream else 'table'} {self.name}"

    @cached_property
    def wire_schema(self) -> pa.Schema:
        """The Arrow schema of rows that reach a bucket: the columns of ``shape``, then int64
        columns on their arrival. Those that rows bring come first, then those that pack adds. Last
        is ``_copy``, if several buckets get each row.
        """
        arrival = self.arrival
        copy = [COPY] if arrival.copies > 1 else []
        return self.shape.schema_with([*arrival.brought_columns, *arrival.added_columns, *copy])

    @cached_property
    def travel_schema(self) -> pa.Schema:
        """The Arrow schema of rows on their way to pack: the columns of ``shape``, then the int64
        columns on their order that rows bring (``brought_columns``).

        Rows ordered by files have three more: ``_file_time``, ``_file_path`` (a string) and
        ``_file_block``.
        """
        schema = self.shape.schema_with(self.arrival.brought_columns)
        if not self.arrival.by_file:
            return schema
        file_columns = [(FILE_TIME, pa.int64()), (FILE_PATH, pa.string()), (FILE_BLOCK, pa.int64())]
        return pa.schema([*schema, *(pa.field(*column) for column in file_columns)])


def number_repeated_names(names: Sequence[str]) -> list[str]:
    """Return the names in order, with a suffix after each repeated one, so that all differ.

    The first of equal names stays as it is. The others get ``#2``, ``#3`` and so on, but no suffix
    that would make one of ``names``: ``a, a, a#2`` become ``a, a#3, a#2``. Case counts. No names
    give an empty list.
    """
    taken = {*names}
    numbered = []
    for index, name in enumerate(names):
        if name in names[:index]:
            name = next(n for i in count(2) if (n := f"{name}#{i}") not in taken)
            taken.add(name)
        numbered.append(name)
    return numbered
