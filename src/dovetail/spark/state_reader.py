"""What a checkpoint holds, as frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from os import fspath
from typing import Annotated, Any, Protocol, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dovetail.arguments import ColumnNames, Natural, Path, Rule, Text, validated
from dovetail.columns import quoted
from dovetail.errors import ConfigurationError
from dovetail.plan.nodes import Node
from dovetail.plan.reading import Session
from dovetail.spark.keys import Keys
from dovetail.spark.state_results import result, result_named
from dovetail.spark.stored import Stored, moment, refuse_other_times
from dovetail.spark.stored_rows import last_versions, rows

Moment: TypeAlias = Annotated[
    datetime, Rule("a datetime with its time zone", lambda t: t.tzinfo is not None)
]


class _Planned(Protocol):
    plan: Node


ATopology: TypeAlias = Annotated[
    _Planned, Rule("a Table or a Stream", lambda it: isinstance(getattr(it, "plan", None), Node))
]

Topologies: TypeAlias = Annotated[
    ATopology | Sequence[ATopology],
    Rule("a Table or a Stream, or a list of them", lambda given: given not in ([], ())),
]

_LISTING = StructType(
    [
        StructField("stage", LongType(), False),
        StructField("operator", StringType(), False),
        StructField("store", StringType(), False),
        StructField("table", StringType()),
        StructField("holds", StringType(), False),
        StructField("rows", LongType(), False),
        StructField("bytes", LongType(), False),
        StructField("segments", LongType(), False),
        StructField("buckets", LongType(), False),
        StructField("stream_time", TimestampType()),
        StructField("batch", LongType(), False),
        StructField("offsets", ArrayType(StringType()), False),
    ]
)


@validated
def read_state(
    spark: Session,
    checkpoint: Path,
    table: Text | None = None,
    *,
    batch: Natural | None = None,
    as_of: Moment | None = None,
    keys: Keys | None = None,
    columns: ColumnNames | None = None,
    topology: Topologies | None = None,
) -> DataFrame:
    """What a query's checkpoint holds after a micro-batch: ``batch``, of those that Spark has kept,
    or the last one that is committed when this is called. The query may be running.

    Without ``table`` the stores, one a row: ``stage``, as ``explain()`` numbers them, and
    ``operator``; ``store``, and the ``table`` whose rows it has, null where it only says something
    of another store's; ``holds``, in words; how many ``rows`` are stored, those that newer ones
    replace included, ``bytes`` before compression, ``segments``, ``buckets`` that have any, and
    ``stream_time``, the latest of the store's inputs; ``batch``, and ``offsets``, up to where that
    micro-batch has read the query's sources, in their order, as Spark writes it down.

    With ``table``, the name of an input or of a store: its rows, with the columns of its key, its
    values and ``_timestamp``. Of a table the last row of each key; of a versioned table all
    versions that it still has, with ``_change`` (``upsert`` or ``delete``), or with ``as_of=`` a
    time the rows as they were then; of a stream the records that a window still needs; of a store
    of records that wait those records, with ``_due``, the stream time up to which they do; of an
    aggregate, which is named as errors name it, the result of each group, of windows until they are
    closed. A table that several stages store is the same in all of them.

    With ``topology``, a table that the query keeps, one of several results too, also the result of
    a join of tables that it is made of, by its name (``name=``), or of the whole where ``table`` is
    left out: it is computed of the rows that are stored. Its ``_timestamp`` is the latest of the
    rows that make a row. ``topology`` may be the list of all results of ``dt.run``, too.

    ``keys``: only the rows of these keys; pieces of the store that cannot hold them are not
    unpacked. ``columns``: only these, and of the values no others are unpacked.

    Nothing is read before the frame is used but the manifests of all buckets.

    Raises ``CheckpointError`` where the folder is no checkpoint of a query or has no such
    micro-batch, ``ConfigurationError`` for what it does not hold, ``PlanError`` for keys of another
    type.
    """
    stored = Stored.of("read_state", spark, fspath(checkpoint), batch)
    names = [columns] if isinstance(columns, str) else columns
    if topology is not None:
        given = topology if isinstance(topology, Sequence) else [topology]
        meant = result_named(stored, [one.plan for one in given], table)
        if meant is not None:
            node, whole = meant
            _refuse_for("a stored table", {"as_of": as_of, "keys": keys})
            return _only(result(stored, whole, node), names)
    if table is None:
        _refuse_for("a table", {"as_of": as_of, "keys": keys, "columns": columns})
        return spark.createDataFrame(list(_listing(stored)), _LISTING)
    kept = stored.named(table)
    if as_of is not None:
        refuse_other_times("read_state", table, kept, as_of)
    frame = rows(stored, kept, keys=keys, columns=names)
    return _only(frame if as_of is None else last_versions(frame, kept, as_of), names)


def _only(frame: DataFrame, columns: Sequence[str] | None) -> DataFrame:
    if columns is None:
        return frame
    unknown = [name for name in columns if name not in frame.columns]
    if unknown:
        problem = f"there is no column {unknown[0]!r}"
        raise ConfigurationError("read_state", problem, f"There are {', '.join(frame.columns)}")
    return frame.select([quoted(name) for name in columns])


def _refuse_for(what: str, given: Mapping[str, Any]) -> None:
    """Refuse arguments that only go with something else."""
    for name, value in given.items():
        if value is not None:
            raise ConfigurationError("read_state", f"{name}= goes with {what}", "Name one")


def _listing(stored: Stored) -> Iterator[tuple[Any, ...]]:
    """A row for each store."""
    stores = stored.stores
    offsets = stored.offsets() if stores else []
    for kept in stores:
        runs = [kept.runs(bucket) for bucket in kept.buckets]
        segments = [segment for own in runs for run in own.runs for segment in run.segments]
        times = [
            own.stream_time_us[clock]
            for own in kept.buckets.values()
            for clock in kept.store.clocks or range(len(own.stream_time_us))
        ]
        yield (
            kept.stage.number,
            kept.stage.title,
            kept.name,
            kept.store.of or None,
            kept.store.holds,
            sum(segment.rows for segment in segments),
            sum(segment.size_bytes for segment in segments),
            len(segments),
            sum(bool(own.runs) for own in runs),
            max((moment(time) for time in times if time is not None), default=None),
            stored.batch,
            offsets,
        )
