"""Joins of streams, of streams with tables and of versioned tables (``models.streams``)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

import dovetail as dt
from bench.family import Row, Source, in_milliseconds, moved, own_key, span, value_of
from bench.models import streams
from bench.models.streams import (
    NEVER,
    OTHER,
    Join,
    StreamStream,
    StreamTable,
    Table,
    VersionedTables,
    kept,
)
from bench.records import Answers, Batches, Record, Result

OPERATORS: dict[str, type[Any]] = {
    "stream_table": StreamTable,
    "stream_stream": StreamStream,
    "versioned": VersionedTables,
}
FOLDERS = tuple(OPERATORS)
FLUSHING = "~"
later = moved
read_key = own_key
unit_us = in_milliseconds


def read_join(folder: str, text: str, windows: Mapping[str, str]) -> Join:
    """``L left R, before 10 after 5`` as the operator's description.

    >>> read_join("stream_table", "L left R, versioned 10", {})
    StreamTable(how='left', versioned=10, grace=None)
    """
    found = re.fullmatch(r"L (inner|left|outer) (L|R)(?:, *(.*))?", text.strip())
    if not found:
        raise ValueError(f"not a join: {text}")
    words = (found[3] or "").split()
    options: dict[str, Any] = dict(zip(words[::2], map(_option, words[1::2]), strict=True))
    if found[2] == "L":
        options["self_join"] = True
    try:
        join: Join = OPERATORS[folder](found[1], **options)
    except TypeError as error:
        raise ValueError(f"not a join of {folder}: {text}") from error
    return join


def _option(word: str) -> int | str:
    return int(word) if word.lstrip("-").isdigit() else word


def read_value(name: str, word: str) -> str | None:
    return value_of(word)


def width(join: Join) -> int:
    return 2


def each_record(join: Join, records: Sequence[Record]) -> Iterator[list[Result]]:
    return streams.each_record(join, records)


def each_batch(join: Join, batches: Batches) -> Iterator[list[Result]]:
    raise NotImplementedError("the net of a stream")


at_end = streams.at_end


def arranged(results: Sequence[Result]) -> list[Result]:
    return list(results)


def sources(join: Join) -> dict[str, Source]:
    columns = {"k": pa.string(), "v": pa.string()}
    return {
        side: Source(True, columns)
        if is_stream(join, side)
        else Source(False, columns, _retention(join, side))
        for side in sides(join)
    }


def sides(join: Join) -> list[str]:
    """The inputs of a join."""
    return ["L"] if isinstance(join, StreamStream) and join.self_join else ["L", "R"]


def is_stream(join: Join, side: str) -> bool:
    """Whether this side is a stream."""
    return isinstance(join, StreamStream) or (isinstance(join, StreamTable) and side == "L")


def _retention(join: Join, side: str) -> timedelta | None:
    """The history retention of the table on this side."""
    if isinstance(join, VersionedTables):
        return span(join.left_versioned if side == "L" else join.right_versioned)
    assert isinstance(join, StreamTable)
    return span(join.versioned)


def build(join: Join, inputs: Mapping[str, Any]) -> dt.Stream | dt.Table:
    left, right = inputs["L"], inputs[sides(join)[-1]]
    options: dict[str, Any]
    if isinstance(join, StreamTable):
        options = {"grace": span(join.grace)}
    elif isinstance(join, StreamStream):
        spans = {name: span(getattr(join, name)) for name in ("before", "after", "grace")}
        options = {"within": dt.within(**spans), "unmatched": join.unmatched}
    else:
        options = {"late": join.late}
    select = {"l": "left.v", "r": "right.v"}
    result: dt.Stream | dt.Table = left.join(right, how=join.how, select=select, **options)
    return result


def row(join: Join, record: Record, number: int) -> Row:
    return {"k": record.key, "v": record.value}


def result(join: Join, row: Row, time: int, *, deleted: bool) -> Result:
    values = None if deleted and not is_stream(join, "L") else (row["l"], row["r"])
    return Result(row["k"], values, time, deleted and values is not None)


def kafka_can(join: Join, records: Sequence[Record]) -> bool:
    """Its values have no nulls, a null key with a grace ends its processor, and it takes what ends
    before the epoch to end there. Rows of two streams differ by their values. It forgets a
    tombstone that overwrites a key's only version at the same time: an older row comes back.
    """
    if any(record.value is None and not record.deleted for record in records):
        return False
    if isinstance(join, StreamStream):
        low = min((record.time for record in records), default=0)
        values = [record.value for record in records if not record.deleted]
        distinct = len({*values}) == len(values)
        return distinct and join.unmatched == "on_close" and low + min(join.before, join.after) >= 0
    if isinstance(join, VersionedTables):
        tables = {"L": Table(join.left_versioned), "R": Table(join.right_versioned)}
        return join.late == "ignore" and not any(_forgotten(tables, records))
    null_keys = any(r.table == "L" and r.key is None and not r.deleted for r in records)
    if null_keys and join.grace is not None and join.how == "left":
        return False
    return not any(_forgotten({"R": Table(join.versioned)}, records))


def _forgotten(tables: Mapping[str, Table], records: Sequence[Record]) -> Iterator[bool]:
    """Per tombstone of its key's latest time: whether no row is before it."""
    for record in records:
        if record.table in tables and record.key is not None:
            table = tables[record.table]
            times = table.times(record.key)
            if table.retention is not None and record.deleted and record.time in times[-1:]:
                yield len(times) == 1 or table.versions[record.key][times[-2]] is None
            table.put(record)


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


def asked(join: Join, records: Sequence[Record]) -> dict[str, Any]:
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
        for side in arrivals(join, r)
    ]
    given = {name: option for name, option in options.items() if option is not None}
    return {"op": f"{op}_{join.how}", **given, "events": events}


def arrivals(join: Join, record: Record) -> str:
    """The sides as which a record arrives, in order."""
    return "LR" if isinstance(join, StreamStream) and join.self_join else record.table


def emitted(join: Join, change: Mapping[str, Any]) -> Result:
    """The oracle's joiner writes ``left+right``, and ``null`` for a missing side."""
    if change["value"] is None:
        return Result(change["key"], None, change["ts"])
    left, right = (None if v == "null" else v for v in change["value"].split("+"))
    return Result(change["key"], (left, right), change["ts"])


def agree(join: Join, records: Sequence[Record], given: Answers, kafka: Answers) -> bool:
    """Of a join of streams, but where its rules differ. What these are, ``models.streams`` says."""
    if not isinstance(join, StreamStream):
        return given == kafka
    by_its_rules = list(streams.each_record(join, records, kafka=True))
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
        for side in arrivals(join, record):
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


def _pairs(part: Sequence[Result]) -> list[Result]:
    return [r for r in part if r.values is not None and None not in r.values]


def _unmatched(part: Sequence[Result]) -> Counter[Result]:
    """Without the records that ``flushed`` adds."""
    return Counter(r for r in part if r.values and None in r.values and r.key != FLUSHING)
