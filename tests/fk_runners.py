"""Every way to run a foreign-key join of ``fk_model``: one kind of input, one kind of answer.

A runner takes a join and its records cut into micro-batches and returns what each micro-batch
emits, named as ``fk_model`` names it, times in milliseconds. Kafka Streams' own
``TopologyTestDriver`` runs many cases at once, record by record.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import matrix_runners
import pyarrow as pa
import pyarrow.parquet as pq
from fk_model import ForeignKeyJoin, Result
from matrix import VersionedTables
from matrix_runners import ORACLE
from naive import Record
from runners import Batches, Hash

import dovetail as dt
from dovetail import testing
from dovetail.plan.spec import Emit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Case: TypeAlias = "tuple[ForeignKeyJoin, list[Record]]"
Answers: TypeAlias = "list[list[Result]]"

KEYS = {"L": "k", "R": "rk"}
SCHEMAS = {
    "L": {"k": pa.string(), "fk": pa.string(), "v": pa.string()},
    "R": {"rk": pa.string(), "w": pa.string()},
}
CHANGELOG = {"t": pa.timestamp("us", "UTC"), "d": pa.bool_(), "s": pa.int64()}
FILES = {
    "L": "k string, fk string, v string, t timestamp, d boolean, s long",
    "R": "rk string, w string, t timestamp, d boolean, s long",
}
SELECTION = {"fk": "left.fk", "v": "left.v", "named": "right.rk", "w": "right.w"}


def driver(
    join: ForeignKeyJoin,
    batches: Batches,
    *,
    emit: Emit = "change",
    restart: bool = False,
    buckets: int = 1,
    key_hash: Hash | None = None,
) -> Answers:
    """The public in-process driver. ``restart``: cut and restored before each micro-batch."""
    inputs = {
        side: testing.table(side, key=KEYS[side], schema=schema, versioned=_retentions(join)[side])
        for side, schema in SCHEMAS.items()
    }
    topology = joined(join, inputs)
    running = testing.Driver(topology, emit=emit, buckets=buckets, key_hash=key_hash)
    answers = []
    for batch in batches:
        if restart:
            running = testing.Driver.restore(topology, running.cut(), emit=emit, key_hash=key_hash)
        with running.batch() as changes:
            for record in batch:
                time = record.time * 1000
                running.pipe(
                    inputs[record.table], _row(record), timestamp=time, deleted=record.deleted
                )
        answers.append(
            [
                _result(c.key | (c.values or {}), c.change == "delete", c.timestamp_us // 1000)
                for c in changes
            ]
        )
    return answers


def stream(
    session: SparkSession,
    folder: Path,
    join: ForeignKeyJoin,
    batches: Batches,
    *,
    emit: Emit = "change",
    restart: bool = False,
) -> Answers:
    """A streaming query over files, one per side and micro-batch.

    ``restart``: a query for each micro-batch, on one checkpoint.
    """
    frames = {}
    for side, schema in FILES.items():
        (folder / side).mkdir(parents=True, exist_ok=True)
        reader = session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        frames[side] = reader.parquet(str(folder / side))
    topology = joined(join, _tables(join, frames))
    answers: dict[int, list[Result]] = {}

    def collect(changes: DataFrame, batch: int) -> None:
        answers[batch] = _collected(changes)

    for number, batch in enumerate(batches):
        write(folder, batch, number)
        if restart or number == len(batches) - 1:
            query = topology.write_stream(
                dt.to_function(collect),
                checkpoint=str(folder / "checkpoint"),
                trigger="available now",
                emit=emit,
                buckets=1,
            )
            query.awaitTermination()
    return [answers[batch] for batch in sorted(answers)]


def static(
    session: SparkSession,
    folder: Path,
    join: ForeignKeyJoin,
    records: Sequence[Record],
    *,
    emit: Emit = "change",
) -> list[Result]:
    """A batch run over static frames; the results of a key in their order, keys in any."""
    write(folder, records, 0)
    frames = {side: session.read.parquet(str(folder / side)) for side in FILES}
    return _collected(joined(join, _tables(join, frames)).to_batch(emit=emit, buckets=1))


def joined(join: ForeignKeyJoin, inputs: Mapping[str, dt.Table]) -> dt.Table:
    """The join over these inputs. The foreign key is a value: with another it is another row."""
    return inputs["L"].join(inputs["R"], on="fk", how=join.how, select=SELECTION)  # type: ignore[arg-type]


def write(folder: Path, records: Sequence[Record], number: int) -> None:
    """The files of one micro-batch."""
    for side, schema in SCHEMAS.items():
        rows = [
            _row(r) | {"t": r.time * 1000, "d": r.deleted, "s": place}
            for place, r in enumerate(records)
            if r.table == side
        ]
        write_file(folder / side, rows, schema | CHANGELOG, number)


def write_file(
    folder: Path, rows: Sequence[dict[str, Any]], schema: Mapping[str, pa.DataType], number: int
) -> None:
    """A file of one micro-batch. The file source reads the oldest first, so age is set."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:06}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(list(schema.items()))), path)
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _retentions(join: ForeignKeyJoin) -> dict[str, timedelta | None]:
    """The history retention of each side."""
    retentions = {"L": join.left_versioned, "R": join.right_versioned}
    return {
        side: None if span is None else timedelta(milliseconds=span)
        for side, span in retentions.items()
    }


def _tables(join: ForeignKeyJoin, frames: Mapping[str, DataFrame]) -> dict[str, dt.Table]:
    """Tables over frames with the columns of ``FILES``."""
    columns = {"timestamp": "t", "deleted": "d", "sequence": "s"}
    return {
        side: dt.Table.from_changelog(
            frame, key=KEYS[side], **columns, name=side, versioned=_retentions(join)[side]
        )
        for side, frame in frames.items()
    }


def _row(record: Record) -> dict[str, Any]:
    """The columns of a record; a tombstone needs no more than its key."""
    key = {KEYS[record.table]: record.key}
    if record.deleted:
        return key
    if record.table == "R":
        return key | {"w": record.value}
    foreign_key, value = record.value
    return key | {"fk": foreign_key, "v": value}


def _result(row: Mapping[str, Any], deleted: bool, time: int) -> Result:
    """A change of the result, checked for its foreign key."""
    key = (row["k"], row.get("right_rk"))
    if deleted:
        return Result(key, None, time)
    named = (key[1],) if key[0] is None else (row["fk"], None)
    assert row["named"] in named, row
    return Result(key, (row["v"], row["w"]), time)


def _collected(changes: DataFrame) -> list[Result]:
    rows = changes.selectExpr("*", "unix_millis(_timestamp) ms").collect()
    return [
        _result(row.asDict(), row["_change"] == "delete", row["ms"])
        for row in sorted(rows, key=lambda row: row["_position"])
    ]


def kafka_streams(cases: Sequence[Case]) -> list[Answers]:
    """Per case and record what Kafka Streams emits; one process answers all cases."""
    lines = "".join(json.dumps(_asked(join, records)) + "\n" for join, records in cases)
    told = subprocess.run([ORACLE], input=lines, capture_output=True, text=True, check=True)
    found = []
    for case, line in zip(cases, told.stdout.splitlines(), strict=True):
        answer = json.loads(line)
        assert "out" in answer, (case, answer)
        found.append([[_told(change) for change in part] for part in answer["out"]])
    return found


def kafka_can(join: ForeignKeyJoin, records: Sequence[Record]) -> bool:
    """Whether Kafka Streams can be asked, and is not known to fail.

    It has no right and no outer, its cases no null value and no empty foreign key. It takes a right
    row whose value is empty for none, and forgets tombstones as ``matrix_runners.kafka_can`` says.
    """
    tables = VersionedTables("inner", join.left_versioned, join.right_versioned)
    rows = [r for r in records if not r.deleted]
    return (
        join.how in ("inner", "left")
        and not any(r.table == "L" and (r.value[1] is None or r.value[0] == "") for r in rows)
        and not any(r.table == "R" and r.value in (None, "") for r in rows)
        and matrix_runners.kafka_can(tables, records)
    )


def _asked(join: ForeignKeyJoin, records: Sequence[Record]) -> dict[str, Any]:
    """A case as the oracle reads it."""
    options = {"left_versioned_ms": join.left_versioned, "right_versioned_ms": join.right_versioned}
    given = {name: option for name, option in options.items() if option is not None}
    events = [{"side": r.table, "key": r.key, "value": _value(r), "ts": r.time} for r in records]
    return {"id": "", "op": f"fk_{join.how}", **given, "events": events}


def _value(record: Record) -> str | None:
    """A left row as ``foreign key|value``, without a bar where it has no foreign key."""
    if record.deleted:
        return None
    parts = record.value if record.table == "L" else (None, record.value)
    return "|".join(part for part in parts if part is not None)


def _told(change: dict[str, Any]) -> Result:
    """The oracle's joiner writes ``left+right``, and ``null`` for a missing right row."""
    key = (change["key"], None)
    if change["value"] is None:
        return Result(key, None, change["ts"])
    left, right = change["value"].split("+")
    return Result(key, (left.rpartition("|")[2], None if right == "null" else right), change["ts"])
