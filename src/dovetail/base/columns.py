"""The names of the columns that dovetail adds to a user's own, in one place.

Inside a stage:

- ``_hash``: xxhash64 of the key; ``_event_time``: microseconds; ``_deleted``;
- ``_sequence`` and ``_log_partition``, if a source names them.

Of a record, or of the record that caused a change:

- ``_clock``: the largest timestamp of its log up to the record, within the micro-batch;
- ``_order``: its place among records of one clock;
- ``_tie``: the hash of the changed key, which orders the changes of one record;
- ``_stream_time``: the stream time of the stage that made the change.

On the way to pack: ``_file_time``, ``_file_path`` and ``_file_block``, the place from which a row
was read. They become ``_file``, the number of its log's run. Of such a run: ``_first`` and
``_last``, its ends in the log, and ``_high``, its largest timestamp.

In the stores of a stream's rows:

- ``_due``: the time for which a row waits. For a table's rows that expire, it is the time by which
  a row and all that it hides are gone;
- ``_row``: its number in the bucket;
- ``_pending``: whether it came without a match.

Between the two stages of a foreign-key join:

- ``_f0`` …: the foreign key; ``_foreign``: its hash; ``_place``: the primary key's hash;
- ``_epoch``: the number of the change of the primary key's row;
- ``_instruction``: what is to be emitted;
- ``_copy``: of a right row that several buckets have, the number of its copy, from 0.

In the JVM before that join: ``_foreign_key_1`` …, the results of expressions. Of a view:
``_position_0`` …, which order its rows, and ``_attempt_0`` …, the results of expressions that may
fail. If several views are made of one reading of a source: its columns as ``_shared_0`` …, and the
travelling columns of the views as ``_wire_0`` ….

Beside a stage's rows in the JVM:

- ``_passing``: a row that is on its way to another stage;
- ``_unread``: the dead letter of a record that cannot be read;
- ``_failed``: the dead letter of a row on which a view fails;
- ``_left_out``: whether the row is for other views only;
- ``_counted``: the counts of a stage, in a row that is no change.

On the way to an aggregate: its input columns as ``_v0`` …. On a stage's way out: the keys as
``_k0`` …, the values of leaf 0 as ``_0_0``, ``_0_1`` …, ``_position``, and ``_visible``, a bit per
leaf.

In a changelog: ``_change``, ``_timestamp``, ``_position``. In the key of a windowed table:
``window_start``, ``window_end``. Of a dead letter: ``_operator``, ``_problem``, ``_timestamp``,
``row``.
"""

from __future__ import annotations

import re

HASH, EVENT_TIME, DELETED = "_hash", "_event_time", "_deleted"
SEQUENCE, LOG_PARTITION = "_sequence", "_log_partition"
CLOCK, ORDER, TIE, STREAM_TIME = "_clock", "_order", "_tie", "_stream_time"
FIRST, LAST, HIGH, LOW, TRAIL = "_first", "_last", "_high", "_low", "_trail"
FILE, FILE_TIME, FILE_PATH, FILE_BLOCK = "_file", "_file_time", "_file_path", "_file_block"
DUE, ROW, PENDING = "_due", "_row", "_pending"
PLACE, EPOCH, INSTRUCTION, FOREIGN = "_place", "_epoch", "_instruction", "_foreign"
COPY = "_copy"
PASSING, UNREAD, FAILED, LEFT_OUT = "_passing", "_unread", "_failed", "_left_out"
POSITION, VISIBLE = "_position", "_visible"
COUNTED = "_counted"
FILE_METADATA = "_metadata"  # Spark's hidden column of file sources
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
    LOW,
    TRAIL,
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
    COPY,
    PASSING,
    UNREAD,
    FAILED,
    LEFT_OUT,
    POSITION,
    VISIBLE,
    COUNTED,
    CHANGE,
    TIMESTAMP,
)
_NUMBERED = re.compile(r"_[kfv]\d+|_\d+_\d+|_(foreign_key|position|attempt|shared|wire)_\d+")


def key_name(index: int) -> str:
    """Return the internal name of key column ``index``, from 0, in a stage's output, such as
    ``_k0``.
    """
    return f"_k{index}"


def foreign_name(index: int) -> str:
    """Return the internal name of column ``index``, from 0, of a foreign key between the two stages
    of its join, such as ``_f0``.
    """
    return f"_f{index}"


def foreign_key_name(index: int) -> str:
    """Return the internal name of the column with the result of a foreign key's expression, in the
    JVM before the join, such as ``_foreign_key_1``. ``index``: any count that is unique within the
    frame.
    """
    return f"_foreign_key_{index}"


def position_name(index: int) -> str:
    """Return the internal name of column ``index``, from 0, among those that order a view's rows,
    such as ``_position_0``.
    """
    return f"_position_{index}"


def attempt_name(index: int) -> str:
    """Return the internal name of the column with the result of a view's expression, null where it
    fails, such as ``_attempt_0``. ``index``: a count from 0 within the view.
    """
    return f"_attempt_{index}"


def shared_name(index: int) -> str:
    """Return the internal name of a source's column ``index``, from 0, while several views are made
    of its rows, such as ``_shared_0``.
    """
    return f"_shared_{index}"


def wire_name(index: int) -> str:
    """Return the internal name of column ``index``, from 0, on the way to a stage, such as
    ``_wire_0``. It stands in place of the user's name.
    """
    return f"_wire_{index}"


def aggregated_name(index: int) -> str:
    """Return the internal name of an aggregate's input column ``index``, from 0, on its way to the
    aggregate, such as ``_v0``.
    """
    return f"_v{index}"


def value_name(leaf: int, index: int) -> str:
    """Return the internal name of a value column in a stage's output, such as ``_0_1``. ``leaf``:
    the index, from 0, of an input of the stage's join, from left to right. ``index``: that of the
    column among the input's values, from 0.
    """
    return f"_{leaf}_{index}"


def is_reserved(name: str) -> bool:
    """Return True if ``name`` is a name of dovetail's own columns, numbered ones included, so that
    a user's column may not have it. Case does not count.

    Names of windows (``window_start``, ``window_end``) and of dead letters (``_operator``,
    ``_problem``, ``row``) are not reserved.
    """
    return name.lower() in _OWN or _NUMBERED.fullmatch(name.lower()) is not None


def quoted(name: str) -> str:
    """Return a column name in backticks for Spark, which then reads dots and backticks in it as
    part of the name.
    """
    return "`" + name.replace("`", "``") + "`"


def double_quoted(name: str) -> str:
    """Return one name in double quotes for SQL, those within it doubled."""
    return '"' + name.replace('"', '""') + '"'
