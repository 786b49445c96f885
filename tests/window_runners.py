"""Every way to run a view of ``window_model``: one kind of input, one kind of answer.

A runner takes a view and its records cut into micro-batches and returns what each micro-batch
emits, named as ``window_model`` names it. The streams ``L`` and ``R`` have keys of their own and
are gathered by another column, so that rows are dealt out by what they are gathered by.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from fk_runners import write_file
from matrix_runners import ORACLE
from naive import Record
from runners import Batches, Hash
from window_gathering import Windows
from window_model import (
    GATHERED,
    STREAMS,
    WINDOWED,
    Joined,
    Result,
    Topology,
    View,
    has_windows,
    inputs_of,
    shown_group,
)

import dovetail as dt
from dovetail import testing
from dovetail.plan.aggregates import collect_list
from dovetail.plan.spec import Emit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Case: TypeAlias = "tuple[View, list[Record]]"
Answers: TypeAlias = "list[list[Result]]"

STREAM_INPUTS = (*WINDOWED, *STREAMS, "H")
NUMBER, TEXT, MOMENT = pa.int64(), pa.string(), pa.timestamp("us", "UTC")
SCHEMAS: dict[str, dict[str, pa.DataType]] = {
    "L": {"id": NUMBER, "k": TEXT, "v": TEXT},
    "R": {"id": NUMBER, "k": TEXT, "v": TEXT},
    "H": {"id": NUMBER, "g": TEXT, "v": TEXT},
    "G": {"id": TEXT, "g": TEXT, "v": TEXT},
    "T": {"k": TEXT, "t": TEXT},
    "S": {"k": TEXT, "at": MOMENT, "s": TEXT},
    "U": {"k": TEXT, "at": MOMENT, "u": TEXT},
}
CHANGELOG = {"_t": MOMENT, "_d": pa.bool_(), "_s": NUMBER}
SPARK = {NUMBER: "long", TEXT: "string", MOMENT: "timestamp", pa.bool_(): "boolean"}


def unit_us(view: View) -> int:
    """How many microseconds a time of the view's is: sliding windows need the smallest."""
    return 1 if any(w.kind == "sliding" for _, w in view.windows) else 1000


def driver(
    view: View,
    batches: Batches,
    *,
    emit: Emit = "change",
    restart: bool = False,
    buckets: int = 1,
    key_hash: Hash | None = None,
    as_stream: bool = False,
) -> Answers:
    """The public in-process driver. ``restart``: cut and restored before each micro-batch;
    ``as_stream``: a windowed table leaves as a stream.
    """
    inputs: dict[str, Any] = {
        name: (testing.stream if name in STREAM_INPUTS else testing.table)(
            name, key=next(iter(SCHEMAS[name])), schema=SCHEMAS[name]
        )
        for name in dict.fromkeys(inputs_of(view.topology))
    }
    topology = made(view, inputs, as_stream=as_stream)
    unit = unit_us(view)
    running = testing.Driver(topology, emit=emit, buckets=buckets, key_hash=key_hash)
    answers, number = [], 0
    for batch in batches:
        if restart:
            running = testing.Driver.restore(topology, running.cut(), emit=emit, key_hash=key_hash)
        with running.batch() as changes:
            for record in (record for record in batch if record.table in inputs):
                row = _row(record, number, unit)
                time = record.time * unit
                running.pipe(inputs[record.table], row, timestamp=time, deleted=record.deleted)
                number += 1
        answers.append(
            [
                _result(view, c.key | (c.values or {}), c.change == "delete", c.timestamp_us)
                for c in changes
            ]
        )
    return answers


def stream(
    session: SparkSession,
    folder: Path,
    view: View,
    batches: Batches,
    *,
    emit: Emit = "change",
    restart: bool = False,
    buckets: int = 1,
) -> Answers:
    """A streaming query over files, one per input and micro-batch.

    ``restart``: a query for each micro-batch, on one checkpoint.
    """
    frames = {}
    for name in dict.fromkeys(inputs_of(view.topology)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        types = (SCHEMAS[name] | CHANGELOG).items()
        schema = ", ".join(f"{column} {SPARK[type_]}" for column, type_ in types)
        reader = session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        frames[name] = reader.parquet(str(folder / name))
    topology = made(view, _inputs(frames))
    answers: dict[int, list[Result]] = {}

    def collect(changes: DataFrame, batch: int) -> None:
        answers[batch] = _collected(view, changes)

    for number, batch in enumerate(batches):
        write(folder, view, batch, number)
        if restart or number == len(batches) - 1:
            query = topology.write_stream(
                dt.to_function(collect),
                checkpoint=str(folder / "checkpoint"),
                trigger="available now",
                emit=emit,
                buckets=buckets,
            )
            query.awaitTermination()
    return [answers[batch] for batch in sorted(answers)]


def static(
    session: SparkSession,
    folder: Path,
    view: View,
    records: Sequence[Record],
    *,
    emit: Emit = "change",
) -> list[Result]:
    """A batch run over static frames; the results of a key in their order, keys in any."""
    write(folder, view, records, 0)
    frames = {
        name: session.read.parquet(str(folder / name))
        for name in dict.fromkeys(inputs_of(view.topology))
    }
    return _collected(view, made(view, _inputs(frames)).to_batch(emit=emit, buckets=1))


def made(view: View, inputs: Mapping[str, Any], *, as_stream: bool = False) -> Any:
    """The view over these inputs."""
    built: dict[Topology, Any] = {}
    root = _made(view, view.topology, inputs, built)
    if not has_windows(view.topology):
        return root
    leave = root.to_stream if as_stream else root.to_table
    return leave(emit="final" if view.final else "change")


def _made(view: View, topology: Topology, inputs: Mapping[str, Any], built: Any) -> Any:
    """Each operator once. Value columns are numbered by the input, from left to right."""
    if topology not in built:
        if isinstance(topology, Joined):
            sides = (_made(view, s, inputs, built) for s in (topology.left, topology.right))
            built[topology] = _joined(view, topology, *sides)
        elif topology in (*WINDOWED, *GATHERED):
            grouped = inputs[topology].group_by("k" if topology in WINDOWED else "g")
            if topology in WINDOWED:
                grouped = grouped.window(windows(view, dict(view.windows)[topology]))
            built[topology] = grouped.agg(n0=dt.count(), v0=collect_list("v"))
        else:
            built[topology] = inputs[topology]
    return built[topology]


def _joined(view: View, join: Joined, left: Any, right: Any) -> Any:
    """A join with its columns numbered anew."""
    options: dict[str, Any] = {}
    if join.shift:
        options["shift"] = timedelta(microseconds=join.shift * unit_us(view))
    if not has_windows(join.left):
        options["window_of"] = "at"
    select = {}
    ours = inputs_of(join.left)
    for side, names, first in (("left", ours, 0), ("right", inputs_of(join.right), len(ours))):
        alone = len(names) == 1
        for number, name in enumerate(names):
            for column in "nv" if name in WINDOWED else "v":
                held = {"T": "t", "S": "s", "U": "u"}.get(name) if alone else None
                source = held or f"{column}{number}"
                select[f"{column}{first + number}"] = f"{side}.{source}"
    return left.join(right, how=join.how, select=select, **options)


def windows(view: View, told: Windows) -> dt.Windows:
    """Windows as users write them."""
    unit = unit_us(view)
    options = {"grace": timedelta(microseconds=told.grace * unit)}
    if told.retention is not None:
        options["retention"] = timedelta(microseconds=told.retention * unit)
    if told.kind == "hopping":
        options["advance"] = timedelta(microseconds=told.advance * unit)
    made: dt.Windows = getattr(dt, told.kind)(timedelta(microseconds=told.size * unit), **options)
    return made


def write(folder: Path, view: View, records: Sequence[Record], number: int) -> None:
    """The files of one micro-batch."""
    unit = unit_us(view)
    for name in dict.fromkeys(inputs_of(view.topology)):
        rows = [
            _row(r, place, unit) | {"_t": r.time * unit, "_d": r.deleted, "_s": place}
            for place, r in enumerate(records)
            if r.table == name
        ]
        write_file(folder / name, rows, SCHEMAS[name] | CHANGELOG, number)


def _inputs(frames: Mapping[str, DataFrame]) -> dict[str, dt.Stream | dt.Table]:
    columns = {"timestamp": "_t", "deleted": "_d", "sequence": "_s"}
    return {
        name: dt.Stream.from_df(frame, key=next(iter(SCHEMAS[name])), **columns, name=name)
        if name in STREAM_INPUTS
        else dt.Table.from_changelog(frame, key=next(iter(SCHEMAS[name])), **columns, name=name)
        for name, frame in frames.items()
    }


def _row(record: Record, number: int, unit: int) -> dict[str, Any]:
    """The columns of a record."""
    key = "id" if "id" in SCHEMAS[record.table] else "k"
    if record.table in WINDOWED:
        return {"id": number, "k": record.key, "v": record.value}
    own = {key: number if record.table == "H" else record.key}
    if record.table == "T":
        return own | {"t": record.value}
    where, value = record.value or (None, None)
    if record.table in GATHERED:
        return own | {"g": where, "v": value}
    at = None if where is None else where * unit
    return own | {"at": at, record.table.lower(): value}


def _result(view: View, row: Mapping[str, Any], deleted: bool, time_us: int) -> Result:
    unit = unit_us(view)
    names = inputs_of(view.topology)
    key: tuple[Any, ...] = (row["g" if names[0] in GATHERED else "k"],)
    if has_windows(view.topology) and "window_start" in row:
        bounds = (row["window_start"], row["window_end"])
        key += tuple(_since_epoch_us(moment) // unit for moment in bounds)
    time = time_us // unit
    values = []
    for number, name in enumerate(names):
        value = row.get(f"v{number}")
        if name in (*WINDOWED, *GATHERED):
            count = row.get(f"n{number}")
            value = _shown(name, view, count, value)
        values.append(value)
    return Result(key, None if deleted else tuple(values), time)


def _shown(name: str, view: View, count: int | None, value: Sequence[str] | None) -> str | None:
    if count is None:
        return None
    found = list(value or ())
    if name in WINDOWED and dict(view.windows)[name].kind == "session":
        found.sort()
    return shown_group(found + [None] * (count - len(found)))


def _since_epoch_us(moment: Any) -> int:
    if isinstance(moment, int):
        return moment
    return int(pa.scalar(moment, MOMENT).cast(pa.int64()).as_py())


def _collected(view: View, changes: DataFrame) -> list[Result]:
    shown = [
        f"unix_micros({name}) as {name}" if name.startswith("window_") else name
        for name in changes.columns
    ]
    rows = changes.selectExpr(*shown, "unix_micros(_timestamp) us").collect()
    return [
        _result(view, row.asDict(), row["_change"] == "delete", row["us"])
        for row in sorted(rows, key=lambda row: row["_position"])
    ]


def kafka_streams(cases: Sequence[Case]) -> list[Answers]:
    """Per case and record what Kafka Streams emits; one process answers all cases.

    It counts, so a result's value is a number as text: ``counted`` makes ours so.
    """
    lines = "".join(json.dumps(_asked(*case)) + "\n" for case in cases)
    told = subprocess.run([ORACLE], input=lines, capture_output=True, text=True, check=True)
    found = []
    for case, line in zip(cases, told.stdout.splitlines(), strict=True):
        answer = json.loads(line)
        assert "out" in answer, (case, answer)
        size = case[0].windows[0][1].size
        found.append([[_told(change, size) for change in part] for part in answer["out"]])
    return found


def _asked(view: View, records: Sequence[Record]) -> dict[str, Any]:
    """A case as the oracle reads it."""
    ((_, windows),) = view.windows
    case: dict[str, Any] = {
        "id": "",
        "op": f"windowed_agg_count_{windows.kind}",
        "size_ms": windows.size,
        "grace_ms": windows.grace,
        "events": [
            {"side": r.table, "key": r.key, "value": r.value, "ts": r.time} for r in records
        ],
    }
    if windows.kind == "hopping":
        case["advance_ms"] = windows.advance
    return case | ({"emit": "on_window_close"} if view.final else {})


def _told(change: dict[str, Any], size: int) -> Result:
    key, _, start = change["key"].rpartition("@")
    return Result((key, int(start), int(start) + size), (change["value"],), change["ts"])


def counted(answers: Answers) -> Answers:
    """Groups as the count of their values."""
    return [
        [r._replace(values=r.values and tuple(str(len(v)) for v in r.values)) for r in part]
        for part in answers
    ]
