"""An operator's input, as plain data that travels to the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from dovetail.base.columns import (
    CLOCK,
    DELETED,
    EPOCH,
    EVENT_TIME,
    FILE,
    FILE_BLOCK,
    FILE_PATH,
    FILE_TIME,
    HASH,
    INSTRUCTION,
    LOG_PARTITION,
    ORDER,
    PLACE,
    SEQUENCE,
    WINDOW_START,
)
from dovetail.plan.metrics import Kind, metric
from dovetail.plan.types.spans import written

ROW_COLUMNS = (HASH, EVENT_TIME, DELETED)
"""The first columns of every input."""


@dataclass(frozen=True)
class SourceSpec:
    """An input of an operator.

    Its ``schema`` begins with ``_hash``, ``_event_time`` and ``_deleted``. Then come ``keys`` key
    columns, a foreign key if there is one, and the values.
    """

    name: str
    schema: pa.Schema
    keys: int
    """The number of key columns."""
    foreign: int = 0
    """The number of foreign key columns, which follow the key behind a column with their hash."""
    sequence: bool = False
    """True if rows of a batch have ``_sequence``, their place in a log."""
    log_partition: bool = False
    """True if rows of a batch have ``_log_partition``, the log that they come from."""
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
    window: str = WINDOW_START
    """The column of the window's time by which ``retention_us`` goes."""
    subscribed: bool = False
    """True for subscriptions, which have ``_place``, ``_epoch`` and ``_instruction``."""
    retracted: bool = False
    """True for rows that enter and leave groups, which have ``_instruction``."""
    fallible: bool = False
    """True if its foreign key may fail on a row. A last column says so until the row is packed."""
    primary: tuple[str, ...] = ()
    """The columns besides the key that may not be null."""
    files: bool = False
    """True if rows are ordered by the files that they are read from."""
    origin: int = 0
    """Its number among the sources of the topology."""
    clocked: bool = False
    """True if pack adds each row's clock: the largest timestamp of its log so far in the batch."""
    numbered: bool = False
    """True if rows get ``_order``, their place among rows with equal clocks."""
    carries: tuple[str, ...] = ()
    """The arrival columns that rows of another stage bring with them, instead of those of pack."""
    stairs: bool = False
    """True if all buckets hear how its stream time rises."""
    logs: bool = False
    """True if rows of one key may come from several of its logs. The newest row counts."""
    limited: bool = False
    """True if a micro-batch may end before all of its logs are read equally far."""

    @property
    def kept(self) -> str:
        """The rows that a stage stores of it, in words."""
        if self.retention_us is not None:
            return f"rows per key and window, for {written(self.retention_us)}"
        if self.versioned_us is not None:
            return f"every version per key for {written(self.versioned_us)}"
        return "last row per key"

    @property
    def counts(self) -> list[str]:
        """The metrics of rows that are left out during packing."""
        kinds: tuple[Kind, ...] = ("dropped", "failed") if self.fallible else ("dropped",)
        return [metric(self.name, kind) for kind in kinds]

    @property
    def title(self) -> str:
        """The name after ``stream`` or ``table``, as errors use it."""
        return f"{'stream' if self.stream else 'table'} {self.name}"

    @property
    def key_columns(self) -> range:
        """The numbers of the key columns in ``schema``."""
        return range(len(ROW_COLUMNS), len(ROW_COLUMNS) + self.keys)

    @property
    def foreign_columns(self) -> range:
        """The numbers of the foreign key's hash and columns; empty if there is no foreign key."""
        first = self.key_columns.stop
        return range(first, first + bool(self.foreign) + self.foreign)

    @property
    def value_columns(self) -> range:
        """The numbers of the value columns."""
        return range(self.foreign_columns.stop, len(self.schema))

    @property
    def user_columns(self) -> range:
        """The numbers of all columns after ``ROW_COLUMNS``."""
        return range(len(ROW_COLUMNS), len(self.schema))

    def fields(self, columns: range) -> list[pa.Field]:
        """Return the fields of ``schema`` with these numbers."""
        return [self.schema.field(index) for index in columns]

    @property
    def wire_schema(self) -> pa.Schema:
        """The columns of rows that reach a bucket: ``schema``, then int64 columns of arrival."""
        arrival_columns = (
            (CLOCK, self.clocked),
            (ORDER, self.numbered and not self.log_partition),
            (FILE, self.files),
        )
        return self.schema_with([*self._brought, *(name for name, has in arrival_columns if has)])

    @property
    def travel_schema(self) -> pa.Schema:
        """The columns of rows on their way to pack, with the file and block that they come from."""
        schema = self.schema_with(self._brought)
        if not self.files:
            return schema
        file_columns = [(FILE_TIME, pa.int64()), (FILE_PATH, pa.string()), (FILE_BLOCK, pa.int64())]
        return pa.schema([*schema, *(pa.field(*column) for column in file_columns)])

    @property
    def _brought(self) -> list[str]:
        """The names of the int64 columns that rows have before pack."""
        brought = (
            (PLACE, self.subscribed),
            (EPOCH, self.subscribed),
            (INSTRUCTION, self.subscribed or self.retracted),
            (SEQUENCE, self.sequence),
            (LOG_PARTITION, self.log_partition),
        )
        return [*(name for name, has in brought if has), *self.carries]

    def schema_with(self, numbers: Sequence[str]) -> pa.Schema:
        """Return ``schema`` followed by an int64 column for each of the names ``numbers``."""
        return pa.schema([*self.schema, *(pa.field(name, pa.int64()) for name in numbers)])

    @property
    def ordered(self) -> bool:
        """True if its rows have a place in a log that all inputs share."""
        return self.sequence and not self.log_partition


def unique(names: Sequence[str]) -> list[str]:
    """Return the names, with ``#2``, ``#3`` and so on after repeated ones."""
    repeats = [names[:index].count(name) for index, name in enumerate(names)]
    return [f"{name}#{n + 1}" if n else name for name, n in zip(names, repeats, strict=True)]
