"""An operator's input, as plain data that travels to the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from dovetail.columns import (
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
from dovetail.plan.spans import written

ROW_COLUMNS = (HASH, EVENT_TIME, DELETED)
"""What the columns of every input begin with."""


@dataclass(frozen=True)
class SourceSpec:
    """An input of an operator: its name, and the columns ``_hash``, ``_event_time``, ``_deleted``,
    ``keys`` key columns, values; then, in a batch, ``_sequence`` and ``_log_partition`` where the
    source names them.

    ``stream``: whether it is a stream, whose records without a value are dropped but where
    ``valueless``; ``null_keys``: whether records with a null in the key travel; ``keeps_time``:
    whether even those that no join can use do, because they move stream time; ``loose``: whether
    there are tombstones of keys that had no row, which say nothing; ``versioned_us``: the
    history retention of a versioned table; ``in_order``: whether times never go back in it
    (``operators.histories``); ``retention_us``: how far behind stream time the windows
    may be whose rows are kept, by their column ``window``, None where rows have no windows;
    ``foreign``: how many columns of another key come after the key, behind a column with its hash;
    ``subscribed``: whether its rows are subscriptions by foreign key, which have ``_place``,
    ``_epoch`` and ``_instruction``, too; ``retracted``: whether they are a table's rows as they
    enter and leave groups, which have ``_instruction``; ``fallible``: whether its foreign key may
    fail on a row, which a last column says until the row is packed; ``primary``: columns that may
    not be null besides the key.

    Logs: ``logs``: whether a key may have rows in several of its logs, of which the newest counts;
    ``limited``: whether a micro-batch may end before all of these have been read as far.

    Arrival: ``files``: whether its rows are ordered by the files that they are read from;
    ``origin``: its number among the topology's sources; ``clocked``: whether pack gives its rows
    their clocks, and where ``numbered`` their places; ``carries``: the columns that rows of another
    stage bring instead; ``stairs``: whether all buckets hear how its stream time rises.
    """

    name: str
    schema: pa.Schema
    keys: int
    foreign: int = 0
    sequence: bool = False
    log_partition: bool = False
    stream: bool = False
    valueless: bool = False
    null_keys: bool = False
    keeps_time: bool = False
    loose: bool = False
    versioned_us: int | None = None
    in_order: bool = False
    retention_us: int | None = None
    window: str = WINDOW_START
    subscribed: bool = False
    retracted: bool = False
    fallible: bool = False
    primary: tuple[str, ...] = ()
    files: bool = False
    origin: int = 0
    clocked: bool = False
    numbered: bool = False
    carries: tuple[str, ...] = ()
    stairs: bool = False
    logs: bool = False
    limited: bool = False

    @property
    def kept(self) -> str:
        """What a stage that stores its rows keeps of them."""
        if self.retention_us is not None:
            return f"rows per key and window, for {written(self.retention_us)}"
        if self.versioned_us is not None:
            return f"every version per key for {written(self.versioned_us)}"
        return "last row per key"

    @property
    def counts(self) -> list[str]:
        """The metrics of rows that are left out as they are packed."""
        kinds: tuple[Kind, ...] = ("dropped", "failed") if self.fallible else ("dropped",)
        return [metric(self.name, kind) for kind in kinds]

    @property
    def title(self) -> str:
        """Its name, after ``stream`` or ``table``."""
        return f"{'stream' if self.stream else 'table'} {self.name}"

    @property
    def key_columns(self) -> range:
        """The numbers of the key columns in ``schema``."""
        return range(len(ROW_COLUMNS), len(ROW_COLUMNS) + self.keys)

    @property
    def foreign_columns(self) -> range:
        """The numbers of the other key's columns, its hash the first; none where there is none."""
        first = self.key_columns.stop
        return range(first, first + bool(self.foreign) + self.foreign)

    @property
    def value_columns(self) -> range:
        """The numbers of the value columns."""
        return range(self.foreign_columns.stop, len(self.schema))

    @property
    def user_columns(self) -> range:
        """The numbers of all columns but those that every row has."""
        return range(len(ROW_COLUMNS), len(self.schema))

    def fields(self, columns: range) -> list[pa.Field]:
        """The columns of these numbers."""
        return [self.schema.field(number) for number in columns]

    @property
    def wire_schema(self) -> pa.Schema:
        """The columns of a batch's rows."""
        given = (
            (CLOCK, self.clocked),
            (ORDER, self.numbered and not self.log_partition),
            (FILE, self.files),
        )
        return self.schema_with([*self._brought, *(name for name, has in given if has)])

    @property
    def travel_schema(self) -> pa.Schema:
        """The columns of rows on their way to pack."""
        schema = self.schema_with(self._brought)
        if not self.files:
            return schema
        places = [(FILE_TIME, pa.int64()), (FILE_PATH, pa.string()), (FILE_BLOCK, pa.int64())]
        return pa.schema([*schema, *(pa.field(*place) for place in places)])

    @property
    def _brought(self) -> list[str]:
        """The numbers that rows come with."""
        brought = (
            (PLACE, self.subscribed),
            (EPOCH, self.subscribed),
            (INSTRUCTION, self.subscribed or self.retracted),
            (SEQUENCE, self.sequence),
            (LOG_PARTITION, self.log_partition),
        )
        return [*(name for name, has in brought if has), *self.carries]

    def schema_with(self, numbers: Sequence[str]) -> pa.Schema:
        """The stored columns and, after them, these of int64."""
        return pa.schema([*self.schema, *(pa.field(name, pa.int64()) for name in numbers)])

    @property
    def ordered(self) -> bool:
        """Whether its rows have a place in a log that all inputs share."""
        return self.sequence and not self.log_partition


def unique(names: Sequence[str]) -> list[str]:
    """The names; where several are the same, the later ones are numbered."""
    seen = [names[:number].count(name) for number, name in enumerate(names)]
    return [f"{name}#{n + 1}" if n else name for name, n in zip(names, seen, strict=True)]
