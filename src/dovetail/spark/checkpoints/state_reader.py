"""The content of a checkpoint, as frames."""

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

from dovetail.base.columns import quoted
from dovetail.base.validation import ColumnNames, Natural, Path, Rule, Text, validated
from dovetail.errors import ConfigurationError
from dovetail.plan.changelog_source import Session
from dovetail.plan.nodes import Node
from dovetail.spark.checkpoints.lookup_keys import Keys
from dovetail.spark.checkpoints.state_results import result, result_named
from dovetail.spark.checkpoints.store_rows import last_versions, rows
from dovetail.spark.checkpoints.stores import Stored, moment, refuse_other_times

Moment: TypeAlias = Annotated[
    datetime, Rule("a datetime with its time zone", lambda t: t.tzinfo is not None)
]


class _Planned(Protocol):
    """An object with a plan: a table or a stream."""

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
    """Read what a query's checkpoint holds after a micro-batch. The query may be running.

    ``batch``: one of the micro-batches that Spark has kept; by default the last one that is
    committed at the time of the call.

    Without ``table``, a row for each store:

    - ``stage``, as ``explain()`` numbers them, and ``operator``;
    - ``store``, and the ``table`` whose rows it has, null where it only helps another store;
    - ``holds``, in words;
    - ``rows``, the number that is stored, including rows that newer ones replace;
    - ``bytes`` before compression, ``segments``, and ``buckets`` that have any;
    - ``stream_time``, the latest event time of the store's inputs;
    - ``batch``, and ``offsets``: the end of that micro-batch in each of the query's sources, in
      their order, in Spark's own form.

    With ``table``, the name of an input or of a store: its rows, with the columns of its key, its
    values and ``_timestamp``:

    - of a table, the last row of each key;
    - of a versioned table, all versions that it still has, with ``_change`` (``upsert`` or
      ``delete``). With ``as_of=`` a time: the rows as they were then;
    - of a stream, the records that a window still needs;
    - of a store of records that wait, those records, with ``_due``, the stream time up to which
      they wait;
    - of an aggregate, by its name in errors, the result of each group, of windows until they are
      closed.

    A table that several stages store is the same in all of them.

    With ``topology``, a table that the query keeps (it may be one of several results), results can
    be read, too. They are computed from the stored rows. ``table`` then may name a join of tables
    within the topology (``name=``); without ``table`` the result is the whole. Its ``_timestamp``
    is the latest of the rows that make a row. ``topology`` may also be the list of all results of
    ``dt.run``.

    ``keys``: only the rows of these keys; pieces of the store that cannot hold them are not
    unpacked. ``columns``: only these, and of the values no others are unpacked.

    Until the frame is used, only the manifests of all buckets are read.

    Raises ``CheckpointError`` where the folder is no checkpoint of a query or has no such
    micro-batch. Raises ``ConfigurationError`` for what it does not hold, and ``PlanError`` for keys
    of another type.
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
    """Return these columns of a frame; raise ``ConfigurationError`` for unknown ones."""
    if columns is None:
        return frame
    unknown = [name for name in columns if name not in frame.columns]
    if unknown:
        problem = f"there is no column {unknown[0]!r}"
        raise ConfigurationError("read_state", problem, f"There are {', '.join(frame.columns)}")
    return frame.select([quoted(name) for name in columns])


def _refuse_for(what: str, given: Mapping[str, Any]) -> None:
    """Raise ``ConfigurationError`` for given arguments that need ``what``."""
    for name, value in given.items():
        if value is not None:
            raise ConfigurationError("read_state", f"{name}= goes with {what}", "Name one")


def _listing(stored: Stored) -> Iterator[tuple[Any, ...]]:
    """Yield a row of ``_LISTING`` for each store."""
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
