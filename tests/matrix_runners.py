"""Every way to run a join of ``matrix``: one kind of input, one kind of answer.

A runner takes a join and its records cut into micro-batches and returns what each micro-batch
emits. All of them name keys, values and times as ``matrix`` does, times in milliseconds.

Kafka Streams' own ``TopologyTestDriver`` runs many cases at once, record by record, and is met by
``agree``.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from matrix import (
    NEVER,
    OTHER,
    Join,
    Result,
    StreamStream,
    StreamTable,
    Table,
    VersionedTables,
    each_record,
    kept,
)
from naive import Record
from runners import Batches, Hash, write

import dovetail as dt
from dovetail import testing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Case: TypeAlias = "tuple[Join, list[Record]]"
Answers: TypeAlias = "list[list[Result]]"

ORACLE = Path(__file__).parents[2] / "shared" / "kafka-streams" / "oracle"
FLUSHING = "~"

SCHEMA = {"k": pa.string(), "v": pa.string()}
FILES = "k string, v string, t timestamp, d boolean, s long"
SELECTION = {"l": "left.v", "r": "right.v"}


def driver(
    join: Join,
    batches: Batches,
    *,
    restart: bool = False,
    buckets: int = 1,
    key_hash: Hash | None = None,
) -> list[list[Result]]:
    """The public in-process driver. ``restart``: cut and restored before each micro-batch."""
    inputs: dict[str, Any] = {
        side: testing.stream(side, key="k", schema=SCHEMA)
        if is_stream(join, side)
        else testing.table(side, key="k", schema=SCHEMA, versioned=retention(join, side))
        for side in sides(join)
    }
    topology = joined(join, inputs)
    running = testing.Driver(topology, buckets=buckets, key_hash=key_hash)
    answers = []
    for batch in batches:
        if restart:
            running = testing.Driver.restore(topology, running.cut(), key_hash=key_hash)
        with running.batch() as changes:
            for record in batch:
                row = {"k": record.key, "v": record.value}
                time = record.time * 1000
                running.pipe(inputs[record.table], row, timestamp=time, deleted=record.deleted)
        answers.append([_result(join, change) for change in changes])
    return answers


def stream(
    session: SparkSession,
    folder: Path,
    join: Join,
    batches: Batches,
    *,
    restart: bool = False,
) -> list[list[Result]]:
    """A streaming query over files, one per side and micro-batch.

    ``restart``: a query for each micro-batch, on one checkpoint.
    """
    frames = {}
    for side in sides(join):
        (folder / side).mkdir(parents=True, exist_ok=True)
        frames[side] = (
            session.readStream.schema(FILES)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(folder / side))
        )
    topology = joined(join, _inputs(join, frames))
    answers: dict[int, list[Result]] = {}

    def collect(changes: DataFrame, batch: int) -> None:
        answers[batch] = _collected(join, changes)

    for number, batch in enumerate(batches):
        write(folder, sides(join), batch, number)
        if restart or number == len(batches) - 1:
            query = topology.write_stream(
                dt.to_function(collect),
                checkpoint=str(folder / "checkpoint"),
                trigger="available now",
                buckets=1,
            )
            query.awaitTermination()
    return [answers[batch] for batch in sorted(answers)]


def static(
    session: SparkSession, folder: Path, join: Join, records: Sequence[Record]
) -> list[list[Result]]:
    """A batch run over static frames: all as one; the results of a key in order, keys in any."""
    write(folder, sides(join), records, 0)
    frames = {side: session.read.parquet(str(folder / side)) for side in sides(join)}
    return [_collected(join, joined(join, _inputs(join, frames)).to_batch(buckets=1))]


def sides(join: Join) -> list[str]:
    """The inputs of a join."""
    return ["L"] if isinstance(join, StreamStream) and join.self_join else ["L", "R"]


def is_stream(join: Join, side: str) -> bool:
    return isinstance(join, StreamStream) or (isinstance(join, StreamTable) and side == "L")


def retention(join: Join, side: str) -> timedelta | None:
    """The history retention of the table on this side."""
    if isinstance(join, VersionedTables):
        return _span(join.left_versioned if side == "L" else join.right_versioned)
    assert isinstance(join, StreamTable)
    return _span(join.versioned)


def joined(join: Join, inputs: Mapping[str, Any]) -> dt.Stream | dt.Table:
    """The join over these inputs; its columns are those of ``SELECTION``."""
    left, right = inputs["L"], inputs[sides(join)[-1]]
    options: dict[str, Any]
    if isinstance(join, StreamTable):
        options = {"grace": _span(join.grace)}
    elif isinstance(join, StreamStream):
        spans = {name: _span(getattr(join, name)) for name in ("before", "after", "grace")}
        options = {"within": dt.within(**spans), "unmatched": join.unmatched}
    else:
        options = {"late": join.late}
    result: dt.Stream | dt.Table = left.join(right, how=join.how, select=SELECTION, **options)
    return result


def _inputs(join: Join, frames: Mapping[str, DataFrame]) -> dict[str, dt.Stream | dt.Table]:
    """Streams and tables over frames with the columns of ``runners.FILES``."""
    columns = {"key": "k", "timestamp": "t", "deleted": "d", "sequence": "s"}
    return {
        side: dt.Stream.from_df(frame, **columns, name=side)
        if is_stream(join, side)
        else dt.Table.from_changelog(frame, **columns, name=side, versioned=retention(join, side))
        for side, frame in frames.items()
    }


def _result(join: Join, change: testing.Change) -> Result:
    values = None if change.values is None else (change.values["l"], change.values["r"])
    assert (values is None) == (change.change == "delete" and not is_stream(join, "L")), change
    withdrawn = change.change == "delete" and values is not None
    return Result(change.key["k"], values, change.timestamp_us // 1000, withdrawn)


def _collected(join: Join, changes: DataFrame) -> list[Result]:
    rows = changes.selectExpr("k", "l", "r", "_change", "unix_millis(_timestamp) ms", "_position")
    found = []
    for row in sorted(rows.collect(), key=lambda row: row["_position"]):
        deleted = row["_change"] == "delete"
        values = None if deleted and not is_stream(join, "L") else (row["l"], row["r"])
        found.append(Result(row["k"], values, row["ms"], deleted and values is not None))
    return found


def _span(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def kafka_streams(cases: Sequence[Case]) -> list[Answers]:
    """Per case and record what Kafka Streams emits; one process answers all cases."""
    lines = "".join(json.dumps(_asked(join, records)) + "\n" for join, records in cases)
    told = subprocess.run([ORACLE], input=lines, capture_output=True, text=True, check=True)
    found = []
    for (join, records), line in zip(cases, told.stdout.splitlines(), strict=True):
        answer = json.loads(line)
        assert "out" in answer, (join, records, answer)
        parts = iter([_told(change) for change in part] for part in answer["out"])
        found.append(
            [[r for _ in _arrivals(join, record) for r in next(parts)] for record in records]
        )
    return found


def kafka_can(join: Join, records: Sequence[Record]) -> bool:
    """Whether Kafka Streams can be asked, and is not known to fail.

    Its values have no nulls, a null key with a grace ends its processor, and it takes what ends
    before the epoch to end there. It forgets a tombstone that overwrites a key's only version at
    the same time, so that an older row comes back.
    """
    if any(record.value is None and not record.deleted for record in records):
        return False
    if isinstance(join, StreamStream):
        low = min(record.time for record in records)
        return join.unmatched == "on_close" and low + min(join.before, join.after) >= 0
    if isinstance(join, VersionedTables):
        tables = {"L": Table(join.left_versioned), "R": Table(join.right_versioned)}
        return join.late == "ignore" and not any(_forgotten(tables, records))
    null_keys = any(r.table == "L" and r.key is None and not r.deleted for r in records)
    if null_keys and join.grace is not None and join.how == "left":
        return False
    return not any(_forgotten({"R": Table(join.versioned)}, records))


def flushed(join: Join, records: Sequence[Record]) -> list[Record]:
    """With records of another key, far in the future: whatever was pending has come by then."""
    if not isinstance(join, StreamStream):
        return list(records)
    far = [
        Record(side, FLUSHING, 10**13 * number, f"{side}{number}", False)
        for number in (1, 2, 3)
        for side in sides(join)
    ]
    return [*records, *far]


def agree(join: Join, records: Sequence[Record], given: Answers, kafka: Answers) -> bool:
    """Whether what is given is what Kafka Streams answers, record by record; of a join of streams,
    but where its rules differ. What these are, ``matrix`` says.
    """
    if not isinstance(join, StreamStream):
        return given == kafka
    by_its_rules = list(each_record(join, records, kafka=True))
    return _are_kafkas(by_its_rules, kafka) and _differ_by_rules(join, records, given, kafka)


def _differ_by_rules(
    join: StreamStream, records: Sequence[Record], given: Answers, kafka: Answers
) -> bool:
    """Whether each pair that only one has is one that the other's rules forbid: here what is kept
    goes by the clock of all records, there by the clock of the side, and here what has been emitted
    alone joins nothing. And whether rows that are in no pair have been emitted alone by both.
    """
    alone: set[tuple[int, Any]] = set()
    clock, clocks = NEVER, {"L": NEVER, "R": NEVER}
    time = {record.value: record.time for record in records}
    for record, ours, theirs in zip(records, given, kafka, strict=True):
        clock = max(clock, record.time)
        alone |= {_lone(r) for r in ours if r.values and None in r.values}
        differing = {r.values for r in _pairs(ours)} ^ {r.values for r in _pairs(theirs)}
        for side in _arrivals(join, record):
            if record.key is not None and not record.deleted:
                clocks[side] = max(clocks[side], record.time)
            place = "LR".index(OTHER[side])
            for pair in [p for p in differing if p and p[1 - place] == record.value]:
                if side == "L" and pair[0] == pair[1]:
                    continue  # of a stream with itself: it arrives on the right later
                other = pair[place]
                here = time[other] >= clock - kept(join) and (place, other) not in alone
                span = join.before + join.after + join.grace
                there = time[other] > clocks[OTHER[side]] - span
                if here == there:
                    return False
    paired = {
        (place, value)
        for answers in (given, kafka)
        for pair in _pairs([*chain(*answers)])
        for place, value in enumerate(pair.values or ())
    }
    lone = [
        {r: n for r, n in _unmatched([*chain(*answers)]).items() if _lone(r) not in paired}
        for answers in (given, kafka)
    ]
    return lone[0] == lone[1]


def _lone(result: Result) -> tuple[int, Any]:
    """Of an unmatched row, its side, 0 for the left, and its value."""
    assert result.values is not None
    left, right = result.values
    return (0, left) if right is None else (1, right)


def _are_kafkas(given: Answers, kafka: Answers) -> bool:
    """Whether what Kafka Streams' rules give is what it answers.

    The pairs are; of the unmatched rows, it never has more by any record, and lacks in the end only
    some that matched a late record, after they were due but before it emitted them.
    """
    if list(map(_pairs, given)) != list(map(_pairs, kafka)):
        return False
    ours, theirs = (list(accumulate(map(_unmatched, answers))) for answers in (given, kafka))
    matched = {value for part in kafka for pair in _pairs(part) for value in pair.values or ()}
    return all(few <= many for few, many in zip(theirs, ours, strict=True)) and all(
        set(row.values or ()) & matched for row in ours[-1] - theirs[-1]
    )


def _asked(join: Join, records: Sequence[Record]) -> dict[str, Any]:
    """A case as the oracle reads it."""
    options: dict[str, int | None]
    if isinstance(join, StreamTable):
        op, options = "stream_table", {"versioned_ms": join.versioned, "grace_ms": join.grace}
    elif isinstance(join, StreamStream):
        op = "stream_stream"
        options = {"before_ms": join.before, "after_ms": join.after, "grace_ms": join.grace}
    else:
        op, left, right = "table_table", join.left_versioned, join.right_versioned
        options = {"left_versioned_ms": left, "right_versioned_ms": right}
    events = [
        {"side": side, "key": r.key, "value": r.value, "ts": r.time}
        for r in records
        for side in _arrivals(join, r)
    ]
    given = {name: option for name, option in options.items() if option is not None}
    return {"id": "", "op": f"{op}_{join.how}", **given, "events": events}


def _arrivals(join: Join, record: Record) -> str:
    """The sides as which a record arrives, in order."""
    return "LR" if isinstance(join, StreamStream) and join.self_join else record.table


def _told(change: dict[str, Any]) -> Result:
    """The oracle's joiner writes ``left+right``, and ``null`` for a missing side."""
    if change["value"] is None:
        return Result(change["key"], None, change["ts"])
    left, right = (None if v == "null" else v for v in change["value"].split("+"))
    return Result(change["key"], (left, right), change["ts"])


def _forgotten(tables: Mapping[str, Table], records: Sequence[Record]) -> Iterator[bool]:
    """Per tombstone of its key's latest time: whether no row is before it."""
    for record in records:
        if record.table in tables and record.key is not None:
            table = tables[record.table]
            times = table.times(record.key)
            if table.retention is not None and record.deleted and record.time in times[-1:]:
                yield len(times) == 1 or table.versions[record.key][times[-2]] is None
            table.put(record)


def _pairs(part: Sequence[Result]) -> list[Result]:
    return [r for r in part if r.values is not None and None not in r.values]


def _unmatched(part: Sequence[Result]) -> Counter[Result]:
    """Without the records that ``flushed`` adds."""
    return Counter(r for r in part if r.values and None in r.values and r.key != FLUSHING)
