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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dovetail.columns import DELETED, EVENT_TIME, HASH, POSITION, SEQUENCE
from dovetail.errors import CheckpointError, DataError, PlanError
from dovetail.kernels.hashing import stable_hash
from dovetail.plan.nodes import Source, is_stream
from dovetail.plan.output import held_columns
from dovetail.plan.spans import Span, microseconds
from dovetail.plan.spec import Emit
from dovetail.plan.stages import plan_stage
from dovetail.runtime.pack import Packer, unpack_piece
from dovetail.runtime.stage import Piece, process, store_count
from dovetail.state import manifest
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.segment import SegmentCache
from dovetail.stream import Stream
from dovetail.table import Table
from dovetail.topology import Topology

Schema: TypeAlias = "pa.Schema | StructType | Mapping[str, pa.DataType]"
Row: TypeAlias = "Mapping[str, Any]"
Timestamp: TypeAlias = "datetime | int"
Hash: TypeAlias = "Callable[[Sequence[pa.Array]], npt.NDArray[np.int64]]"

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SNAPSHOT = pa.schema([("bucket", pa.int32()), ("name", pa.string()), ("blob", pa.binary())])
_SNAPSHOT_VERSION = 1


def table(
    name: str, *, key: str | Sequence[str], schema: Schema, versioned: Span | None = None
) -> Table:
    """A table that a ``Driver`` feeds; it joins like any other.

    ``schema``: all its columns, key included, as a pyarrow schema, a Spark ``StructType``, or a
    mapping of names to pyarrow types. ``versioned``: as in ``Table.from_changelog``. Raises
    ``PlanError`` for types that Spark does not have and for a key that is not among the columns.
    """
    return Table(_source(name, key, schema, versioned=versioned))


def stream(name: str, *, key: str | Sequence[str], schema: Schema) -> Stream:
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
    """

    def __init__(
        self,
        topology: Topology,
        *,
        emit: Emit = "change",
        buckets: int = 1,
        key_hash: Hash | None = None,
    ) -> None:
        node = topology.plan
        stage = plan_stage(node, buckets=buckets, emit=emit)
        if stage.spec.visible:
            raise PlanError(
                node.name,
                "select= computes with a Spark expression, which needs Spark",
                "Run the topology with to_batch() or write_stream(), or name columns only",
            )
        in_order = stage.spec.align_us is None
        sources = tuple(
            replace(source, sequence=in_order, log_partition=False) for source in stage.spec.sources
        )
        self._node = node
        self._inputs = stage.inputs
        self._spec = replace(stage.spec, sources=sources)
        self._columns = held_columns(stage)
        self._hash = stable_hash if key_hash is None else key_hash
        self._blobs = [MemoryBlobs() for _ in range(buckets)]
        self._cache = SegmentCache()
        self._unread: list[Change] = []
        self._held: list[tuple[int, pa.RecordBatch]] | None = None
        self._sequence = self._now_us = 0
        self.dropped = 0

    def pipe(
        self,
        table: Topology,
        rows: Row | Sequence[Row],
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
        number = self._number(table)
        given = [rows] if isinstance(rows, Mapping) else list(rows)
        times = list(timestamp) if isinstance(timestamp, Sequence) else [timestamp] * len(given)
        if len(times) != len(given):
            raise DataError(
                self._inputs[number].source.title,
                f"{len(given)} rows come with {len(times)} timestamps",
                "Give one timestamp for all rows, or one each",
            )
        batch = self._wire_rows(number, given, times, deleted)
        pieces, dropped = self._pack(number, [batch])
        self._sequence += batch.num_rows
        self.dropped += dropped
        if self._held is None:
            return self._run(pieces)
        self._held.append((number, batch))
        return []

    @contextmanager
    def batch(self) -> Iterator[list[Change]]:
        """Group what is piped in the block into one micro-batch, run when the block ends.

        Yields a list that then holds the changes. A block that raises leaves everything as it was.
        """
        if self._held is not None:
            raise _inside_batch("batch()")
        changes: list[Change] = []
        self._held = []
        try:
            yield changes
            held = self._held
        finally:
            self._held = None
        pieces = [
            piece
            for number in range(len(self._inputs))
            for piece in self._pack(number, [rows for source, rows in held if source == number])[0]
        ]
        changes += self._run(pieces)

    def advance(self, timestamp: Timestamp) -> list[Change]:
        """Move the stream time of all inputs to ``timestamp``, by a batch without rows."""
        if self._held is not None:
            raise _inside_batch("advance()")
        time = _microseconds(timestamp)
        beats = [Piece(number, 0, 0, time, None) for number in range(len(self._inputs))]
        return self._run([(bucket, beat) for bucket in range(len(self._blobs)) for beat in beats])

    def wait(self, span: Span) -> list[Change]:
        """Let time pass by the wall clock, then run a batch without rows, for ``align=``."""
        if self._held is not None:
            raise _inside_batch("wait()")
        self._now_us += microseconds("wait", "span=", span)
        return self._run([])

    def read(self) -> list[Change]:
        """All changes since the last ``read``."""
        changes, self._unread = self._unread, []
        return changes

    def cut(self) -> bytes:
        """The stored state after the last micro-batch, as a query's checkpoint would hold it."""
        if self._held is not None:
            raise _inside_batch("cut()")
        rows = [
            (bucket, name, blob)
            for bucket, blobs in enumerate(self._blobs)
            for name, blob in sorted(blobs.blobs.items())
        ]
        stored = pa.Table.from_pylist(
            [dict(zip(_SNAPSHOT.names, row, strict=True)) for row in rows], schema=_SNAPSHOT
        )
        stored = stored.replace_schema_metadata({"buckets": str(len(self._blobs))})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, stored.schema) as writer:
            writer.write_table(stored)
        return bytes([_SNAPSHOT_VERSION]) + sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    @classmethod
    def restore(
        cls,
        topology: Topology,
        snapshot: bytes,
        *,
        emit: Emit = "change",
        key_hash: Hash | None = None,
    ) -> Driver:
        """A driver that goes on from a snapshot as a restarted query does, in any process.

        ``topology`` may be built anew from tables of the same types; if it is not the one that was
        cut, ``CheckpointError`` is raised. Unread changes and ``dropped`` do not travel.
        """
        if snapshot[:1] != bytes([_SNAPSHOT_VERSION]):
            raise CheckpointError(
                "driver snapshot",
                "these bytes are not one of this version's",
                "Give restore() what cut() returned",
            )
        stored = pa.ipc.open_stream(pa.py_buffer(snapshot)[1:]).read_all()
        buckets = int(stored.schema.metadata[b"buckets"])
        driver = cls(topology, emit=emit, buckets=buckets, key_hash=key_hash)
        for row in stored.to_pylist():
            driver._blobs[row["bucket"]].put(row["name"], row["blob"])
        spec = driver._spec
        for blobs in driver._blobs:
            manifest.load(blobs, spec.topology, spec.buckets, len(spec.sources), store_count(spec))
        return driver

    def _number(self, table: Topology) -> int:
        for number, input_ in enumerate(self._inputs):
            if input_.source is table.plan:
                return number
        raise PlanError(
            "pipe",
            f"{table!r} is not an input of the topology",
            f"Its inputs are {', '.join(input_.source.name for input_ in self._inputs)}",
        )

    def _wire_rows(
        self,
        number: int,
        rows: Sequence[Row],
        times: Sequence[Timestamp | None],
        deleted: bool,
    ) -> pa.RecordBatch:
        """The rows as the stage reads them."""
        source = self._inputs[number].source
        schema = self._spec.sources[number].wire_schema
        _check_columns(source, rows)
        names = [*source.key.names, *source.values.names]
        columns = {name: _array(source, name, rows, schema.field(name).type) for name in names}
        key = self._inputs[number].key
        keys = [_canonical(columns[name]) for name in key]
        columns |= zip(key, keys, strict=True)
        columns[HASH] = pa.array(self._hash(keys), pa.int64())
        time = [None if moment is None else _microseconds(moment) for moment in times]
        columns[EVENT_TIME] = pa.array(time, pa.int64())
        columns[DELETED] = pa.array([deleted] * len(rows), pa.bool_())
        columns[SEQUENCE] = pa.array(np.arange(self._sequence, self._sequence + len(rows)))
        return pa.record_batch([columns[field.name] for field in schema], schema=schema)

    def _pack(
        self, number: int, batches: Sequence[pa.RecordBatch]
    ) -> tuple[list[tuple[int, Piece]], int]:
        """What every bucket gets of these rows, through the bytes that Spark would move, and how
        many rows were dropped.
        """
        source = self._spec.sources[number]
        packer = Packer(number, source, self._spec.keys, range(len(self._blobs)))
        packed = [row for rows in packer(iter(batches), 0) for row in rows.to_pylist()]
        pieces = [
            (
                row["bucket"],
                unpack_piece(
                    row["source"],
                    row["partition"],
                    row["number"],
                    row["high_time_us"],
                    row["payload"],
                ),
            )
            for row in packed
        ]
        return pieces, sum(row["dropped"] for row in packed)

    def _run(self, pieces: Sequence[tuple[int, Piece]]) -> list[Change]:
        """One micro-batch."""
        changes: list[Change] = []
        for number, blobs in enumerate(self._blobs):
            own = [piece for bucket, piece in pieces if bucket == number]
            output = self._process(own, blobs) if own or self._spec.align_us is not None else None
            if output is not None:
                changes += self._changes(output)
        self._unread += changes
        return changes

    def _process(self, pieces: Sequence[Piece], blobs: MemoryBlobs) -> pa.Table | None:
        return process(self._spec, pieces, blobs, self._cache, self._now_us).output

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


def _canonical(key: pa.Array) -> pa.Array:
    """Equal keys have equal bits: one NaN, and no negative zero (as on Spark)."""
    if not pa.types.is_floating(key.type):
        return key
    key = pc.if_else(pc.is_nan(key), pa.scalar(float("nan"), key.type), key)
    return pc.if_else(pc.equal(key, pa.scalar(0.0, key.type)), pa.scalar(0.0, key.type), key)


def _microseconds(moment: Timestamp) -> int:
    if not isinstance(moment, datetime):
        return moment
    aware = moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _inside_batch(call: str) -> PlanError:
    return PlanError(call, "a batch is open", "Call it after the with block")


def _show(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
