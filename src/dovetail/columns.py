"""The names of the columns that dovetail adds to a user's own, in one place.

Inside a stage: ``_hash`` (xxhash64 of the key), ``_event_time`` (microseconds), ``_deleted``, and
``_sequence`` and ``_log_partition`` where a source names them. Of a record, or of the one that
caused a change: ``_clock`` (the largest timestamp that its log has had by then in the micro-batch),
``_order`` (its place among records of one clock), ``_tie`` (the hash of the key that was changed,
which orders the changes of one record) and ``_stream_time`` (that of the stage which made the
change). On the way to pack: ``_file_time``, ``_file_path`` and ``_file_block``, from which a
row was read; from there ``_file``, the number of its run. Of a run: ``_first`` and ``_last``, its
ends in the log, and ``_high``, its largest timestamp. In the stores of a stream's rows: ``_due``
(the time a row waits for; of a table's rows that expire, by which one and all that it hides are
gone), ``_row`` (its number in the bucket) and ``_pending`` (whether it came without a match).
Between the two stages of a foreign-key join: the foreign key as ``_f0``
and so on, ``_foreign`` (its hash), ``_place`` (the primary key's hash), ``_epoch`` (which change of
the primary key's row) and ``_instruction`` (what is to be emitted); in the JVM before it,
``_foreign_key_1`` and so on (what expressions make of the row) and, of a view, ``_position_0`` and
so on (what orders its rows) and ``_attempt_0`` and so on (what an expression makes that may fail).
Where views of a source are made of one reading: its columns as ``_shared_0`` and so on, and what
travels of the views that are made, ``_wire_0`` and so on.
Beside a stage's rows in the JVM: ``_passing`` (what is on its way to another), ``_unread`` and
``_failed`` (the dead letter of a record that cannot be read, and of a row on which a view fails),
``_left_out`` (whether it is another view's row only).
On the way to an aggregate: the columns it is made of as ``_v0`` and so on. On a stage's way out:
the keys as ``_k0`` and so on, the values of leaf 0 as ``_0_0``, ``_0_1`` and so on, ``_position``,
and ``_visible``, a bit per leaf.
In a changelog: ``_change``, ``_timestamp``, ``_position``. In the key of a windowed table:
``window_start``, ``window_end``. Of a dead letter: ``_operator``, ``_problem``, ``_timestamp``,
``row``.
"""

from __future__ import annotations

import re

HASH, EVENT_TIME, DELETED = "_hash", "_event_time", "_deleted"
SEQUENCE, LOG_PARTITION = "_sequence", "_log_partition"
CLOCK, ORDER, TIE, STREAM_TIME = "_clock", "_order", "_tie", "_stream_time"
FIRST, LAST, HIGH = "_first", "_last", "_high"
FILE, FILE_TIME, FILE_PATH, FILE_BLOCK = "_file", "_file_time", "_file_path", "_file_block"
DUE, ROW, PENDING = "_due", "_row", "_pending"
PLACE, EPOCH, INSTRUCTION, FOREIGN = "_place", "_epoch", "_instruction", "_foreign"
PASSING, UNREAD, FAILED, LEFT_OUT = "_passing", "_unread", "_failed", "_left_out"
POSITION, VISIBLE = "_position", "_visible"
FILE_METADATA = "_metadata"  # Spark's own, hidden until it is asked for
CHANGE, TIMESTAMP = "_change", "_timestamp"
WINDOW_START, WINDOW_END = "window_start", "window_end"

OPERATOR, PROBLEM, LETTER = "_operator", "_problem", "row"

UPSERT, DELETE = "upsert", "delete"

_OWN = (
    HASH,
    EVENT_TIME,
    DELETED,
    SEQUENCE,
    LOG_PARTITION,
    CLOCK,
    ORDER,
    TIE,
    STREAM_TIME,
    FIRST,
    LAST,
    HIGH,
    FILE,
    FILE_TIME,
    FILE_PATH,
    FILE_BLOCK,
    DUE,
    ROW,
    PENDING,
    PLACE,
    EPOCH,
    INSTRUCTION,
    FOREIGN,
    PASSING,
    UNREAD,
    FAILED,
    LEFT_OUT,
    POSITION,
    VISIBLE,
    CHANGE,
    TIMESTAMP,
)
_NUMBERED = re.compile(r"_[kfv]\d+|_\d+_\d+|_(foreign_key|position|attempt|shared|wire)_\d+")


def key_name(number: int) -> str:
    """The column that holds a key column in a stage's output."""
    return f"_k{number}"


def foreign_name(number: int) -> str:
    """The column that holds a foreign key's column between the two stages of its join."""
    return f"_f{number}"


def foreign_key_name(number: int) -> str:
    """The column that holds what the expressions of a foreign key make of a row."""
    return f"_foreign_key_{number}"


def position_name(number: int) -> str:
    """The column that holds what puts a view's rows in order."""
    return f"_position_{number}"


def attempt_name(number: int) -> str:
    """The column that holds what an expression of a view makes of a row, null where it fails."""
    return f"_attempt_{number}"


def shared_name(number: int) -> str:
    """The column that holds one of a source's columns while views are made of its rows."""
    return f"_shared_{number}"


def wire_name(number: int) -> str:
    """The column in which something travels, by the number of its place."""
    return f"_wire_{number}"


def aggregated_name(number: int) -> str:
    """The column that holds an aggregate's input on its way to it."""
    return f"_v{number}"


def value_name(leaf: int, number: int) -> str:
    """The column that holds value ``number`` of a leaf in a stage's output."""
    return f"_{leaf}_{number}"


def is_reserved(name: str) -> bool:
    """Whether a user's column may not have this name."""
    return name.lower() in _OWN or _NUMBERED.fullmatch(name) is not None


def quoted(name: str) -> str:
    """A column name as Spark reads it whatever its characters: dots and backticks are its own."""
    return "`" + name.replace("`", "``") + "`"
