"""From a reader's arguments to a ``Source``: find and check the columns of a frame
by their roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from dovetail.base.columns import quoted
from dovetail.base.validation import Rule
from dovetail.errors import PlanError
from dovetail.plan.nodes import RowOrder, Source
from dovetail.plan.spark_sources import is_limited
from dovetail.plan.types.analysis import file_metadata, random_of
from dovetail.plan.types.checks import known_field, refuse_duplicates
from dovetail.plan.types.expressions import RANDOM_REMEDY, REPEATED_PROBLEM, field_of, refuse_random
from dovetail.plan.types.spans import Span, microseconds
from dovetail.platform.sessions import is_stopped

Given: TypeAlias = Annotated[str | Column, Rule("the name of a column or a Spark expression")]
"""A column that has a role in a row, such as the event time."""

Session: TypeAlias = Annotated[
    SparkSession,
    Rule("a SparkSession that was not stopped", lambda session: not is_stopped(session)),
]

_WHOLE_NUMBERS = (ByteType, ShortType, IntegerType, LongType)


# A frame with the columns id, at, gone, offset, part and amount, read with ``key="id"`` and
# ``timestamp="at"``. A column that an argument names is used up, and a log puts rows in order:
#
# | further arguments                       | values               | sequence | log_partition |
# |-----------------------------------------|----------------------|----------|---------------|
# | deleted="gone"                          | offset, part, amount | None     | None          |
# | sequence="offset"                       | gone, part, amount   | offset   | 0: one log    |
# | sequence="offset", shared_log=True      | gone, part, amount   | offset   | None: shared  |
# | sequence="offset", log_partition="part" | gone, amount         | offset   | part          |
#
# ``log_partition="part"`` alone is refused, because nothing orders the rows of a log. A role that
# is an expression uses up no column.
def source_of(
    frame: DataFrame,
    key: str | Sequence[str],
    roles: Mapping[str, str | Column | None],
    *,
    shared_log: bool,
    versioned: Span | None,
    name: str | None,
    stream: bool,
    static: bool = False,
    with_unread: DataFrame | None = None,
) -> Source:
    """Return the source that reads ``frame`` with these key columns. Raises ``PlanError`` for
    unsuitable arguments, and for a streaming frame that makes random values.

    ``roles``: by each of the names ``"timestamp="``, ``"deleted="``, ``"sequence="`` and
    ``"log_partition="``, all of which must be there, a column, an expression or None. They must be
    a timestamp, a boolean and whole numbers. All columns that are neither named there nor in the
    key are values.

    Without ``"timestamp="`` the source has no event time, and Spark cannot run it; this is not
    checked here. Without ``"deleted="`` no row is a tombstone. Without ``"sequence="`` files are
    read in their order, and other rows as Spark reads them. With it alone, all rows are one log.

    ``shared_log``: True if ``sequence=`` is a position in one log that all inputs share. It is
    refused without ``"sequence="``, as is ``"log_partition="``, and both are refused together.
    ``versioned``: the length of a table's history, None for none; refused for a stream. ``name``:
    None for one made of the key. ``stream``: True for a stream, False for a table. ``static``: True
    if all rows are present when a query begins and never change. ``with_unread``: the rows of
    ``frame`` and the unreadable records, each with its dead letter in the column ``_unread``. It is
    stored in the source as it is; None if those are not kept.
    """
    keys = [key] if isinstance(key, str) else list(key)
    kind = "stream" if stream else "table"
    label = name or f"{kind}[{', '.join(keys)}]"
    operator = f"{kind} {label}"
    columns = _FrameColumns(operator, frame)
    for column in keys:
        columns.require_column(column, "key=")
    refuse_duplicates(operator, keys, "Name it once in key=")
    sequence, log_partition = roles["sequence="], roles["log_partition="]
    logs = {"log_partition=": log_partition is not None, "shared_log=": shared_log}
    for argument, is_given in logs.items():
        if is_given and sequence is None:
            raise PlanError(
                operator,
                f"{argument} is given without sequence=",
                "Name the column that orders the rows of the log in sequence=",
            )
    if all(logs.values()):
        raise PlanError(
            operator,
            "log_partition= and shared_log= are both given",
            "Leave log_partition= out of a position in one log that all inputs share, and "
            "shared_log= where each partition is a log of its own",
        )
    if versioned is not None and stream:
        raise PlanError(
            operator, "versioned= is for tables, a stream's records replace none", "Leave it out"
        )
    used = {c: role for role, c in roles.items() if isinstance(c, str)}
    for column in keys:
        if column in used:
            raise PlanError(
                operator,
                f"{used[column]} names {column!r}, a column of key=",
                "Copy it with withColumn and name the copy there",
            )
    if sequence is not None and log_partition is None and not shared_log:
        log_partition = F.lit(0)
    random = random_of(frame) if frame.isStreaming else None
    if random is not None:
        raise PlanError(operator, f"its frame has {random}, {REPEATED_PROBLEM}", RANDOM_REMEDY)
    schema = frame.schema.toNullable()
    partitioned = roles["log_partition="] is not None
    return Source(
        name=label,
        key=StructType([schema[k] for k in keys]),
        values=StructType([f for f in schema if f.name not in used and f.name not in keys]),
        frame=frame,
        timestamp=columns.expression(roles["timestamp="], "timestamp=", TimestampType),
        deleted=columns.expression(roles["deleted="], "deleted=", BooleanType),
        order=RowOrder(
            sequence=columns.expression(sequence, "sequence=", *_WHOLE_NUMBERS),
            log_partition=columns.expression(log_partition, "log_partition=", *_WHOLE_NUMBERS),
            by_files=sequence is None and not static and _is_read_from_files(frame),
            partitioned=partitioned,
            limited=partitioned and not stream and is_limited(frame),
        ),
        stream=stream,
        static=static,
        versioned_us=None if versioned is None else microseconds(operator, "versioned=", versioned),
        with_unread=with_unread,
    )


def expression_of(
    operator: str, frame: DataFrame, value: str | Column, argument: str, *types: type[DataType]
) -> Column:
    """Return the column of ``frame`` that a reader's argument names or computes, as an expression.

    ``operator``: the reader in errors. ``value``: a column's name or an expression. ``argument``:
    the argument in errors, such as ``timestamp=``. ``types``: the allowed types, at least one.
    Raises ``PlanError`` if the column is unknown, occurs twice, does not resolve, is random, or is
    of another type.
    """
    column = _FrameColumns(operator, frame).expression(value, argument, *types)
    assert column is not None
    return column


def _is_read_from_files(frame: DataFrame) -> bool:
    """Return True if Spark can tell from which file each row of ``frame`` was read: its path, the
    time of its last change, and the offset of the block with the row.
    """
    places = ("file_modification_time", "file_path", "file_block_start")
    return file_metadata(frame, *places) == [TimestampType(), StringType(), LongType()]


class _FrameColumns:
    """The columns of a frame, as a reader's arguments name them. ``operator``: the reader in
    errors.
    """

    def __init__(self, operator: str, frame: DataFrame) -> None:
        self._operator = operator
        self._frame = frame

    def require_column(self, name: str, argument: str) -> None:
        """Raise ``PlanError`` for a name that the frame lacks or has twice. Case counts.

        ``argument``: the argument that has the name, for errors, such as ``key=``.
        """
        if self._frame.columns.count(name) > 1:
            raise PlanError(
                self._operator, f"column {name!r} occurs twice", "Drop or rename one of them"
            )
        known_field(self._operator, argument, name, self._frame.schema)

    def expression(
        self, value: str | Column | None, argument: str, *types: type[DataType]
    ) -> Column | None:
        """Return the column that the value of an argument means, or None if the value is None.

        ``value``: a column's name, which becomes an expression, or an expression, returned as it
        is. ``argument``: the argument in errors, such as ``timestamp=``. ``types``: the allowed
        types, at least one. Raises ``PlanError`` if the column is unknown, occurs twice, does not
        resolve, is random, or is of another type.
        """
        if value is None:
            return None
        if isinstance(value, str):
            self.require_column(value, argument)
            column = F.col(quoted(value))
        else:
            column = value
        remedy = f"Known columns are {', '.join(self._frame.columns)}"
        field = field_of(self._operator, argument, self._frame, column, remedy)
        refuse_random(self._operator, argument, field)
        data_type = field.dataType
        if not isinstance(data_type, types):
            wanted = " or ".join(t.typeName() for t in types)
            shown = value if isinstance(value, str) else "the expression"
            raise PlanError(
                self._operator,
                f"{argument} {shown} is of type {data_type.simpleString()}, not {wanted}",
                f"Cast it, for instance with .cast('{types[-1]().simpleString()}')",
            )
        return column
