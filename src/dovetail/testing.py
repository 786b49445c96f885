"""Run a topology inside the process, row by row: no Spark session, no Java, no files.

What ``TopologyTestDriver`` is to Kafka Streams. A ``Driver`` runs the code that Spark's workers
run, on the same stored bytes; what a query does with a record, the driver does with it too.

>>> import pyarrow as pa
>>> orders = table("orders", key="id", schema={"id": pa.int64(), "amount": pa.int64()})
>>> payments = table("payments", key="id", schema={"id": pa.int64(), "paid": pa.bool_()})
>>> driver = Driver(orders.join(payments, how="left"))
>>> driver.pipe(orders, {"id": 1, "amount": 5}, timestamp=3)
[<id=1: amount=5, paid=None @3>]
>>> driver.pipe(payments, {"id": 1, "paid": True}, timestamp=2)
[<id=1: amount=5, paid=True @3>]
>>> driver.pipe(orders, {"id": 1}, timestamp=7, deleted=True)
[<id=1: deleted @7>]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dovetail.arguments import ColumnNames, Rule, Text, validated
from dovetail.arrays.hashing import stable_hash
from dovetail.columns import DELETED, EVENT_TIME, LOG_PARTITION, POSITION, SEQUENCE
from dovetail.engine.local import Hash, Local
from dovetail.errors import CheckpointError, DataError, PlanError
from dovetail.physical.fragment import Buckets, Emit
from dovetail.physical.inputs import Arrival
from dovetail.physical.output import held_columns
from dovetail.physical.planner import physical_plan
from dovetail.plan.arrow import arrow_schema
from dovetail.plan.checks import refuse_duplicates
from dovetail.plan.fingerprint import describe, fingerprint, refuse_alike, refuse_other
from dovetail.plan.nodes import Node, Source, is_stream, joins, origins
from dovetail.plan.spans import Span, microseconds
from dovetail.state.ipc import from_ipc, to_ipc
from dovetail.stream import Stream
from dovetail.table import Table
from dovetail.topology import ATopology, Topology

Schema: TypeAlias = Annotated[
    pa.Schema | StructType | Mapping[str, pa.DataType],
    Rule("a pyarrow schema, a Spark StructType, or a mapping of names to pyarrow types"),
]
Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Annotated[
    Row | Sequence[Row], Rule("a row, a mapping of columns to values, or a list of rows")
]
Timestamp: TypeAlias = Annotated[
    datetime | int,
    Rule(
        "a datetime or microseconds since 1970",
        lambda moment: isinstance(moment, datetime) or abs(moment) < 1 << 63,
    ),
]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SNAPSHOT = pa.schema(
    [("stage", pa.int32()), ("bucket", pa.int32()), ("name", pa.string()), ("blob", pa.binary())]
)
_SNAPSHOT_VERSION = 3


@validated
def table(name: Text, *, key: ColumnNames, schema: Schema, versioned: Span | None = None) -> Table:
    """A table that a ``Driver`` feeds; it joins like any other.

    ``schema``: all its columns, key included, as a pyarrow schema, a Spark ``StructType``, or a
    mapping of names to pyarrow types. ``versioned``: as in ``Table.from_changelog``. Raises
    ``PlanError`` for types that Spark does not have and for a key that is not among the columns.
    """
    return Table(_source(name, key, schema, versioned=versioned))


@validated
def stream(name: Text, *, key: ColumnNames, schema: Schema) -> Stream:
    """A stream that a ``Driver`` feeds; its arguments are those of ``table``."""
    return Stream(_source(name, key, schema, stream=True))


def _source(
    name: str,
    key: str | Sequence[str],
    schema: Schema,
    *,
    stream: bool = False,
    versioned: Span | None = None,
) -> Source:
    operator = f"{'stream' if stream else 'table'} {name}"
    keys = [key] if isinstance(key, str) else list(key)
    columns = _struct(operator, schema)
    for column in keys:
        if column not in columns.names:
            raise PlanError(
                operator,
                f"key= names an unknown column {column!r}",
                f"Known are {', '.join(columns.names)}",
            )
    refuse_duplicates(operator, keys, "Name it once in key=")
    return Source(
        name=name,
        key=StructType([columns[column] for column in keys]),
        values=StructType([field for field in columns if field.name not in keys]),
        stream=stream,
        versioned_us=None if versioned is None else microseconds(operator, "versioned=", versioned),
    )


@dataclass(frozen=True, repr=False)
class Change:
    """One change of a topology's result.

    ``key``: the key columns; ``values``: the value columns, None for a tombstone; a row that a
    stream withdraws (``unmatched="retract"``) is a ``delete`` with its values. ``timestamp_us``:
    event time in microseconds; ``change``: what the row says of its key;
    ``position``: orders the changes of a key.
    """

    key: dict[str, Any]
    values: dict[str, Any] | None
    timestamp_us: int
    change: Literal["upsert", "delete"]
    position: int

    @property
    def timestamp(self) -> datetime:
        """The event time in UTC."""
        return _EPOCH + timedelta(microseconds=self.timestamp_us)

    def __repr__(self) -> str:
        values = "deleted" if self.values is None else _show(self.values)
        withdrawn = "withdrawn " if self.values is not None and self.change == "delete" else ""
        return f"<{_show(self.key)}: {withdrawn}{values} @{self.timestamp_us}>"


class Driver:
    """One topology, fed by hand: each ``pipe`` is a micro-batch.

    Rows are read in the order given; where a join aligns its sides, in the order of time, as far as
    it lets them through. ``emit``: as in ``Table.write_stream``. ``buckets``: into how many parts
    the key space is cut; the changes of a micro-batch come bucket by bucket, so with one, the
    default, they come in the order of the records that cause them. ``key_hash``: the function from
    key columns to int64 that places keys; tests give a constant one to make all keys collide.

    ``dropped`` counts the rows that no join can use: those with a null in their key, but for
    streams whose records appear without a match, and a stream's records without a value.
    ``counts`` has others that had no use, by the metric that a query observes them by:
    ``<stream>.late``, for how many windows records came that were closed; ``<left>.no_window``,
    rows that look in a window that is none or is no longer kept; ``<table>.null_group``, rows with
    a null among the columns that a table is grouped by; ``<left>-<right>.too_late``, pairs of
    streams' records of which one had come out unmatched.
    """

    @validated
    def __init__(
        self,
        topology: ATopology,
        *,
        emit: Emit = "change",
        buckets: Buckets = 1,
        key_hash: Hash | None = None,
    ) -> None:
        node = topology.plan
        # Rows come in the order given, so from one log, but where a join orders them by time.
        arrival = Arrival.of(node, one_log=not _aligned(node))
        stage = physical_plan(node, buckets=buckets, emit=emit, arrival=arrival)
        self._node = node
        self._sources = {source: _columns(source) for source in origins(node)}
        self._root = Local(stage, stable_hash if key_hash is None else key_hash)
        self._columns = held_columns(stage)
        self._unread: list[Change] = []
        self._inside_batch = False
        self._sequence = self._now_us = self._batches = 0
        self.dropped = 0

    @property
    def counts(self) -> dict[str, int]:
        """How many rows had no use, by metric."""
        return dict(sum((buckets.counts for buckets in self._root.buckets), Counter()))

    @validated
    def pipe(
        self,
        table: ATopology,
        rows: Rows,
        *,
        timestamp: Timestamp | Sequence[Timestamp | None] | None,
        deleted: bool = False,
    ) -> list[Change]:
        """Feed rows of one table or stream; returns the changes they cause (inside ``batch``: none
        yet).

        ``rows``: one row or several, which make one micro-batch; a value column that a row leaves
        out is null. ``timestamp``: a datetime (naive ones are UTC) or microseconds, one for all
        rows or one each. ``deleted``: the rows are tombstones and need no more than their key; a
        stream's are records without a value.

        Raises ``PlanError`` for an input that the topology does not read, ``DataError`` for a null
        timestamp, an unknown column or a value of the wrong type; then nothing has happened.
        """
        source = self._source(table)
        given = [rows] if isinstance(rows, Mapping) else list(rows)
        times = list(timestamp) if isinstance(timestamp, Sequence) else [timestamp] * len(given)
        if len(times) != len(given):
            raise DataError(
                source.title,
                f"{len(given)} rows come with {len(times)} timestamps",
                "Give one timestamp for all rows, or one each",
            )
        self.dropped += self._root.accept(source, self._rows(source, given, times, deleted))
        self._sequence += len(given)
        return [] if self._inside_batch else self._run()

    @contextmanager
    def batch(self) -> Iterator[list[Change]]:
        """Group what is piped in the block into one micro-batch, run when the block ends.

        Yields a list that then holds the changes. A block that raises leaves everything as it was.
        """
        self._refuse_inside("batch()")
        changes: list[Change] = []
        self._inside_batch = True
        try:
            yield changes
        except BaseException:
            self._root.forget()
            raise
        finally:
            self._inside_batch = False
        changes += self._run()

    @validated
    def advance_stream_time(self, timestamp: Timestamp) -> list[Change]:
        """Move the stream time of all inputs to ``timestamp``, by a batch without rows."""
        self._refuse_inside("advance_stream_time()")
        return self._run(_microseconds(timestamp))

    @validated
    def advance_wall_clock(self, span: Span) -> list[Change]:
        """Let time pass by the wall clock, then run a batch without rows, for ``align=``."""
        self._refuse_inside("advance_wall_clock()")
        self._now_us += microseconds("advance_wall_clock", "span=", span)
        return self._run()

    def read(self) -> list[Change]:
        """All changes since the last ``read``."""
        changes, self._unread = self._unread, []
        return changes

    def snapshot(self) -> bytes:
        """The stored state after the last micro-batch, as a query's checkpoint would hold it."""
        self._refuse_inside("snapshot()")
        rows = [
            (stage, bucket, name, blob)
            for stage, buckets in enumerate(self._root.buckets)
            for bucket, blobs in enumerate(buckets.blobs)
            for name, blob in sorted(blobs.blobs.items())
        ]
        stored = pa.Table.from_pylist(
            [dict(zip(_SNAPSHOT.names, row, strict=True)) for row in rows], schema=_SNAPSHOT
        )
        told = {
            "buckets": self._root.stage.fragment.buckets,
            "batches": self._batches,
            "topology": fingerprint(self._node),
            "plan": describe(self._node),
        }
        stored = stored.replace_schema_metadata({"driver": json.dumps(told)})
        return bytes([_SNAPSHOT_VERSION]) + to_ipc(stored)

    @classmethod
    @validated
    def restore(
        cls,
        topology: ATopology,
        snapshot: bytes,
        *,
        emit: Emit = "change",
        key_hash: Hash | None = None,
    ) -> Driver:
        """A driver that goes on from a snapshot as a restarted query does, in any process.

        ``topology`` may be built anew from tables of the same names and columns; if it is not the
        one that was cut, ``CheckpointError`` names the differences. Its last ``select=`` may be
        another. Unread changes and ``dropped`` do not travel.
        """
        try:
            if snapshot[:1] != bytes([_SNAPSHOT_VERSION]):
                raise ValueError
            stored = from_ipc(pa.py_buffer(snapshot)[1:])
        except ValueError as error:
            raise CheckpointError(
                "driver snapshot",
                "snapshot= is not one of this version's",
                "Give restore() what snapshot() returned",
            ) from error
        told = json.loads(stored.schema.metadata[b"driver"])
        refuse_alike(topology.plan)
        refuse_other(topology.plan, told["topology"], told["plan"])
        driver = cls(topology, emit=emit, buckets=told["buckets"], key_hash=key_hash)
        driver._batches = told["batches"]
        stages = driver._root.buckets
        for row in stored.to_pylist():
            stages[row["stage"]].blobs[row["bucket"]].put(row["name"], row["blob"])
        return driver

    def _source(self, table: Topology) -> Source:
        if isinstance(table.plan, Source) and table.plan in self._sources:
            return table.plan
        raise PlanError(
            "pipe",
            f"table= is {table!r}, which is not an input of the topology",
            f"Its inputs are {', '.join(source.name for source in self._sources)}",
        )

    def _rows(
        self,
        source: Source,
        rows: Sequence[Row],
        times: Sequence[Timestamp | None],
        deleted: bool,
    ) -> pa.Table:
        """The rows as a stage's inputs take them."""
        schema = self._sources[source]
        _check_columns(source, rows)
        columns = {field.name: _array(source, field.name, rows, field.type) for field in schema}
        time = [None if moment is None else _microseconds(moment) for moment in times]
        columns[EVENT_TIME] = pa.array(time, pa.int64())
        columns[DELETED] = pa.array([deleted] * len(rows), pa.bool_())
        columns[SEQUENCE] = pa.array(np.arange(self._sequence, self._sequence + len(rows)))
        columns[LOG_PARTITION] = pa.array(np.zeros(len(rows), np.int64))
        return pa.table(columns)

    def _run(self, beat_us: int | None = None) -> list[Change]:
        """One micro-batch."""
        tables = self._root.run(self._batches, self._now_us, beat_us)
        self._batches += bool(tables)
        changes = [change for table in tables for change in self._changes(table)]
        self._unread += changes
        return changes

    def _refuse_inside(self, call: str) -> None:
        if self._inside_batch:
            raise PlanError(call, "a batch is open", "Call it after the with block")

    def _changes(self, output: pa.Table) -> Iterator[Change]:
        for row in output.to_pylist():
            deleted = row[DELETED]
            held = {name: row[column] for name, column in self._columns.items()}
            key = {name: held.pop(name) for name in self._node.key.names}
            yield Change(
                key=key,
                values=None if deleted and not is_stream(self._node) else held,
                timestamp_us=row[EVENT_TIME],
                change="delete" if deleted else "upsert",
                position=row[POSITION],
            )


def _struct(operator: str, schema: Schema) -> StructType:
    if isinstance(schema, StructType):
        return schema
    try:
        arrow = schema if isinstance(schema, pa.Schema) else pa.schema(list(schema.items()))
        return from_arrow_schema(arrow, prefer_timestamp_ntz=True)
    except PySparkException as error:
        raise PlanError(
            operator,
            f"schema= has a type that Spark does not have: {error}",
            "Use a type that a Spark column can have, for instance pa.timestamp('us', 'UTC')",
        ) from error


def _check_columns(source: Source, rows: Sequence[Row]) -> None:
    known = {*source.key.names, *source.values.names}
    for row in rows:
        unknown = sorted(row.keys() - known)
        missing = [name for name in source.key.names if name not in row]
        if unknown or missing:
            what = f"unknown columns {', '.join(unknown)}" if unknown else "no key column"
            raise DataError(
                source.title,
                f"a row has {what}{'' if unknown else ' ' + ', '.join(missing)}",
                f"Its columns are {', '.join([*source.key.names, *source.values.names])}",
            )


def _array(source: Source, name: str, rows: Sequence[Row], type_: pa.DataType) -> pa.Array:
    try:
        return pa.array([row.get(name) for row in rows], type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            source.title,
            f"column {name!r} is of type {type_}: {error}",
            "Give a value of that type",
        ) from error


def _microseconds(moment: Timestamp) -> int:
    if not isinstance(moment, datetime):
        return moment
    aware = moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _aligned(node: Node) -> bool:
    """Whether any join of a topology lets rows wait for others."""
    return any(join.align_us is not None for join in joins(node))


def _columns(source: Source) -> pa.Schema:
    return arrow_schema(StructType([*source.key.fields, *source.values.fields]))


def _show(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
