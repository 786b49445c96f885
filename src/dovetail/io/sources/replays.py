"""Mended dead letters: the folder to which they are sent, and the source that reads it.

The folder has a Parquet file for each sending, named by its index from 0. A file appears whole, and
none is replaced. Its rows have the columns of the source's frame, and two more:

| column    | value                                               |
|-----------|-----------------------------------------------------|
| `_letter` | the id of the dead letter, a hash of its columns    |
| `_number` | the row's position in the folder, in the order sent |

So the folder says which dead letters were sent. Spark's source of files reads each file once, and
its checkpoint says which.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from dovetail.base.columns import (
    DELETED,
    EVENT_TIME,
    FILE_METADATA,
    LETTER,
    OPERATOR,
    POSITION,
    PROBLEM,
    TIMESTAMP,
    UNREAD,
    quoted,
)
from dovetail.errors import DataError, PlanError
from dovetail.io.sources.records import OFFSET, PARTITION
from dovetail.laws.logs import REPLAY_LOG
from dovetail.plan.nodes import Node, Source
from dovetail.platform.files import files_of
from dovetail.platform.spark_errors import make_folder

_ID, _NUMBER = "_letter", "_number"
"""The columns of the folder's files: the id of a dead letter, and its row's position in the folder.
"""
_SUFFIX: Final = ".parquet"
_ROWS_BITS: Final = 32
"""The bits of a row's index within its file."""
_REQUIRED_COLUMNS: Final = (OPERATOR, LETTER, TIMESTAMP)
_LETTER_COLUMNS: Final = (OPERATOR, PROBLEM, LETTER, TIMESTAMP, POSITION)
"""The columns of a dead letter of which its id is a hash."""
_OF_LETTER: Final = (OPERATOR, PROBLEM, LETTER)
"""The columns of a dead letter that a source may have, too. Only one of both could be given."""
_FILE_FIELDS: Final = ("file_modification_time", "file_path", "file_block_start")
"""The fields of a file's metadata that a union of frames must keep, for the order of rows."""
_CREATION: Final = Lock()
"""Held while a file is created: local file systems look for a file, then rename."""
_OF_ANY_AGE: Final = ("maxFileAge", "36500d")
"""The option by which Spark reads a file however much older it is than the newest."""


@dataclass(frozen=True)
class Replayed:
    """The counts of dead letters that ``dt.replay`` returns.

    Attributes
    ----------
    sent : int
        The number of dead letters that were sent.
    skipped : int
        The number of dead letters that had been sent before, or that occur again in the
        same call.

    See Also
    --------
    replay : Send mended dead letters again.

    Examples
    --------
    >>> from dovetail.typing import Replayed
    >>> Replayed(sent=2, skipped=1)
    Replayed(sent=2, skipped=1)
    """

    sent: int
    skipped: int


def source_with_replays(node: Node, folder: str) -> Source:
    """Return a copy of the source ``node`` that also reads the mended dead letters in ``folder``.
    Its field ``replays`` names the folder, which is created if it is missing.

    Raises ``PlanError`` for a node that is no source read by Spark, and for a static one. Also for
    a source in a log that all inputs share, and for one that reads replays already. Raises
    ``ConfigurationError`` if the folder cannot be made.
    """
    title = f"with_replays of {node.name}"
    if not isinstance(node, Source) or node.frame is None or node.static:
        raise PlanError(
            title,
            f"{node.name} is not what a reader of changes or records has returned",
            "Call with_replays right after from_changelog, from_records or from_topic; their "
            "format must not have unsent='keep' or transactions=True",
        )
    if node.ordered:
        raise PlanError(
            title,
            "its rows have positions in one log that all inputs share, and replayed rows have none",
            "Send mended rows to that log, or read it without shared_log=",
        )
    if node.replays is not None:
        raise PlanError(title, f"it reads replays from {node.replays}", "Name one folder")
    session, frame = node.frame.sparkSession, node.frame
    make_folder(session, title, "folder=", folder)
    rows = _read_folder(session, frame, folder)
    unread = node.with_unread
    if node.order.by_files:
        frame, rows = _with_file_metadata(frame), _with_file_metadata(rows)
        unread = None if unread is None else _with_file_metadata(unread)
    if unread is not None:
        none = rows.withColumn(UNREAD, F.lit(None).cast(unread.schema[UNREAD].dataType))
        unread = unread.unionByName(none, allowMissingColumns=True)
    return replace(node, frame=frame.unionByName(rows), with_unread=unread, replays=folder)


def _read_folder(session: SparkSession, frame: DataFrame, folder: str) -> DataFrame:
    """Return the rows of ``folder`` with the columns of a source's ``frame``, streaming if the
    frame is. The folder must exist.

    A frame may have ``_partition`` and ``_offset``. The rows then have ``REPLAY_LOG`` (2**31 - 1),
    a log of their own, and their position in the folder, in the order sent.
    """
    fields = [*_sent_fields(frame.schema), StructField(_NUMBER, LongType())]
    reader = session.readStream if frame.isStreaming else session.read
    rows = reader.schema(StructType(fields)).option(*_OF_ANY_AGE).parquet(folder)
    places = {PARTITION: F.lit(REPLAY_LOG), OFFSET: F.col(_NUMBER)}
    columns = [places.get(n, F.col(quoted(n))).alias(n) for n in frame.columns]
    return rows.select(*columns)


def _with_file_metadata(rows: DataFrame) -> DataFrame:
    """Return rows with Spark's metadata of their file as a plain struct column ``_metadata``, which
    a union then keeps: the file's modification time, path and block start. Spark must read the rows
    from files.
    """
    file = F.col(FILE_METADATA)
    return rows.select(
        "*", F.struct(*(file[p].alias(p) for p in _FILE_FIELDS)).alias(FILE_METADATA)
    )


def _sent_fields(schema: StructType) -> list[StructField]:
    """Return the columns of a source's frame that a mended dead letter has: all but partition,
    offset and the metadata of a file. ``schema``: the frame's.
    """
    return [f for f in schema.fields if f.name not in (PARTITION, OFFSET, FILE_METADATA)]


def send_letters(title: str, mended: DataFrame, source: Source) -> Replayed:
    """Write mended dead letters to the folder of ``source``, in one new file. Leave out those whose
    id the folder has, and repetitions within ``mended``. Return how many were sent and how many
    left out. Without new ones no file is written. Several processes may send at once: the slower
    one looks again at what the folder has.

    ``title``: the call in errors. ``source``: a result of ``source_with_replays``. ``mended``: a
    static frame with ``_operator``, ``row`` and ``_timestamp`` of dead letters, perhaps their
    ``_problem`` and ``_position``. It also has the columns of the source's frame but partition,
    offset and file. Rows are written in the order of their micro-batch, which is the upper 32 bits
    of ``_position``. Within it they are in the order of ``_timestamp``, ``_position`` and ``row``.

    Raises ``PlanError`` for columns that do not fit, or that dead letters have as well, and
    ``DataError`` for a row without an event time. Raises ``ConfigurationError`` on Spark Connect.
    """
    assert source.replays is not None
    folder, files = source.replays.rstrip("/"), files_of(mended.sparkSession)
    letters = _letters_to_send(title, mended, source).toArrow()
    untimed = letters.column(EVENT_TIME).null_count
    if untimed:
        raise DataError(
            title, f"{untimed} of the rows have no event time", "Give each row its event time"
        )
    rows = letters.drop_columns([EVENT_TIME])
    while True:
        # The number comes first. If another sender writes its file after that, ours is refused.
        file_number = 1 + max(files.numbers(folder, suffix=_SUFFIX), default=-1)
        sent_before = _stored_ids(mended.sparkSession, folder)
        new = rows.filter(pc.invert(pc.is_in(rows.column(_ID), sent_before)))
        new = new.take(_first_indices(new.column(_ID)))
        counts = Replayed(len(new), len(rows) - len(new))
        if not counts.sent:
            return counts
        with _CREATION:
            if files.create(
                f"{folder}/{file_number:020d}{_SUFFIX}", _parquet_bytes(new, file_number)
            ):
                return counts


def _letters_to_send(title: str, mended: DataFrame, source: Source) -> DataFrame:
    """Return mended dead letters with the columns of the source's frame but partition, offset and
    file, then ``_letter`` and ``_event_time``: the letter's id and the row's event time. They are
    in the order in which they are sent. Without a column ``_deleted`` no row is a delete.

    An id is a text, the SHA-256 of five columns of the letter, as far as ``mended`` has them:
    ``_operator``, ``_problem``, ``row``, ``_timestamp``, ``_position``. Mended columns do not
    count.

    ``title``: the call in errors. Raises ``PlanError`` if ``mended`` is a streaming frame, or lacks
    a column or has it in another type. Also if the source has a column of the name of a letter's.
    """
    assert source.frame is not None
    assert source.timestamp is not None
    if mended.isStreaming:
        raise PlanError(title, "mended is a streaming frame", "Give the rows that are there now")
    given = {field.name: field.dataType for field in mended.schema}
    for name in _REQUIRED_COLUMNS:
        if name not in given:
            raise PlanError(
                title,
                f"mended has no column {name!r} of dead letters, among {', '.join(given)}",
                "Add mended columns to the rows of dt.dead_letters, and keep theirs",
            )
    fields = _sent_fields(source.frame.schema)
    columns = {name: F.col(quoted(name)) for name in given}
    columns.setdefault(DELETED, F.lit(False))
    for field in fields:
        if field.name.lower() in _OF_LETTER:
            raise PlanError(
                title,
                f"{source.title} has a column {field.name!r}, and so have dead letters",
                "Give it another name in the frame or the format that is read",
            )
        type_ = given.get(field.name, BooleanType() if field.name == DELETED else None)
        if type_ != field.dataType:
            held = "no such column" if type_ is None else type_.simpleString()
            raise PlanError(
                title,
                f"{source.title} has {field.name!r} of type {field.dataType.simpleString()}, and "
                f"mended has {held}",
                f"Give mended the columns {', '.join(f.name for f in fields)}",
            )
    position = POSITION in given
    batch = [F.shiftright(POSITION, _ROWS_BITS)] if position else []
    ordered = mended.orderBy(*batch, TIMESTAMP, *([POSITION] if position else []), LETTER)
    # As a number, because the text of a time depends on the session's zone.
    parts = {name: F.col(name) for name in _LETTER_COLUMNS if name in given}
    parts[TIMESTAMP] = F.unix_micros(TIMESTAMP)
    of_letter = F.to_json(F.struct(*(part.alias(name) for name, part in parts.items())))
    rows = ordered.select(
        *(columns[field.name].alias(field.name) for field in fields),
        F.sha2(of_letter, 256).alias(_ID),
    )
    return rows.withColumn(EVENT_TIME, source.timestamp)


def _stored_ids(session: SparkSession, folder: str) -> pa.ChunkedArray:
    """Return the ids of the dead letters in the files of ``folder``; empty for a folder without
    files. Spark's error passes if the folder does not exist.
    """
    return session.read.schema(f"{_ID} string").parquet(folder).toArrow().column(_ID)


def _first_indices(ids: pa.ChunkedArray) -> pa.Array:
    """Return the indices in ``ids``, from 0 and ascending, at which an id occurs for the first
    time: int64, one per distinct id. Empty for no ids.
    """
    places = pa.table({"id": ids, "place": np.arange(len(ids))})
    firsts = places.group_by("id").aggregate([("place", "min")]).column("place_min")
    return pa.array(np.sort(firsts.to_numpy()))


def _parquet_bytes(rows: pa.Table, file_number: int) -> bytes:
    """Return rows as the bytes of a Parquet file. The added column ``_number`` (int64) has
    ``file_number`` in its upper 32 bits, and the index of the row, from 0, in the lower ones. There
    must be fewer than 2**32 rows.
    """
    row_numbers = (file_number << _ROWS_BITS) + np.arange(len(rows))
    sink = pa.BufferOutputStream()
    pq.write_table(rows.append_column(_NUMBER, pa.array(row_numbers)), sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
