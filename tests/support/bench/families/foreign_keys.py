"""Joins of tables by foreign key (``models.foreign_keys``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from bench.families import streams
from bench.family import Row, Source, as_they_are, in_milliseconds, moved, span, value_of
from bench.models import foreign_keys
from bench.models.foreign_keys import ForeignKeyJoin, in_key_order, seen
from bench.models.streams import VersionedTables
from bench.records import Answers, Batches, Record, Result

FOLDERS = ("foreign_key",)
COLUMNS = {
    "L": {"k": pa.string(), "fk": pa.string(), "v": pa.string()},
    "R": {"rk": pa.string(), "w": pa.string()},
}
flushed = as_they_are
later = moved
unit_us = in_milliseconds


def read_join(folder: str, text: str, windows: Mapping[str, str]) -> ForeignKeyJoin:
    """``L left R, right_versioned 10`` as a description.

    >>> read_join("foreign_key", "L left R, right_versioned 10", {})
    ForeignKeyJoin(how='left', left_versioned=None, right_versioned=10, spread=1)
    """
    found = re.fullmatch(r"L (inner|left|right|outer) R(?:, *(.*))?", text.strip())
    if not found:
        raise ValueError(f"not a join: {text}")
    words = (found[2] or "").split()
    try:
        return ForeignKeyJoin(found[1], **dict(zip(words[::2], map(int, words[1::2]), strict=True)))
    except TypeError as error:
        raise ValueError(f"not a join: {text}") from error


def read_value(name: str, word: str) -> Any:
    """Of the left table the foreign key and the value."""
    if name == "R":
        return value_of(word)
    foreign_key, own = word.split(":")
    return value_of(foreign_key), value_of(own)


def read_key(join: ForeignKeyJoin, words: Sequence[str], record: Record | None) -> Any:
    """``k`` is a left row's, ``/x`` a right one's."""
    if words:
        (word,) = words
        right = word.startswith("/")
        return (None, value_of(word[1:])) if right else (value_of(word), None)
    if record is None:
        raise ValueError("no key before a result")
    return (record.key, None) if record.table == "L" else (None, record.key)


def width(join: ForeignKeyJoin) -> int:
    return 2


def each_record(join: ForeignKeyJoin, records: Sequence[Record]) -> Iterator[list[Result]]:
    return map(seen, foreign_keys.each_record(join, records))


def each_batch(join: ForeignKeyJoin, batches: Batches) -> Iterator[list[Result]]:
    return map(seen, foreign_keys.each_batch(join, batches))


def at_end(join: ForeignKeyJoin, records: Sequence[Record]) -> list[Result]:
    return []


def arranged(results: Sequence[Result]) -> list[Result]:
    """By key."""
    return in_key_order(results)


def sources(join: ForeignKeyJoin) -> dict[str, Source]:
    kept = {"L": join.left_versioned, "R": join.right_versioned}
    return {side: Source(False, COLUMNS[side], span(kept[side])) for side in "LR"}


def build(join: ForeignKeyJoin, inputs: Mapping[str, Any]) -> Any:
    """The foreign key is a value: with another it is another row."""
    select = {"fk": "left.fk", "v": "left.v", "named": "right.rk", "w": "right.w"}
    return inputs["L"].join(inputs["R"], on="fk", how=join.how, select=select, spread=join.spread)


def row(join: ForeignKeyJoin, record: Record, number: int) -> Row:
    if record.table == "R":
        return {"rk": record.key} | ({} if record.deleted else {"w": record.value})
    foreign_key, value = (None, None) if record.deleted else record.value
    return {"k": record.key, "fk": foreign_key, "v": value}


def result(join: ForeignKeyJoin, row: Row, time: int, *, deleted: bool) -> Result:
    """Checked for its foreign key."""
    key = (row["k"], row.get("right_rk"))
    if deleted:
        return Result(key, None, time)
    named = (key[1],) if key[0] is None else (row["fk"], None)
    assert row["named"] in named, row
    return Result(key, (row["v"], row["w"]), time)


def kafka_can(join: ForeignKeyJoin, records: Sequence[Record]) -> bool:
    """It has no right and no outer, its cases no null value and no empty foreign key. It takes a
    right row whose value is empty for none, and forgets tombstones as ``streams.kafka_can`` says.
    """
    tables = VersionedTables("inner", join.left_versioned, join.right_versioned)
    rows = [r for r in records if not r.deleted]
    return (
        join.how in ("inner", "left")
        and not any(r.table == "L" and (r.value[1] is None or r.value[0] == "") for r in rows)
        and not any(r.table == "R" and r.value in (None, "") for r in rows)
        and streams.kafka_can(tables, records)
    )


def asked(join: ForeignKeyJoin, records: Sequence[Record]) -> dict[str, Any]:
    options = {"left_versioned_ms": join.left_versioned, "right_versioned_ms": join.right_versioned}
    given = {name: option for name, option in options.items() if option is not None}
    events = [{"side": r.table, "key": r.key, "value": _value(r), "ts": r.time} for r in records]
    return {"op": f"fk_{join.how}", **given, "events": events}


def _value(record: Record) -> str | None:
    """A left row as ``foreign key|value``, without a bar where it has no foreign key."""
    if record.deleted:
        return None
    parts = record.value if record.table == "L" else (None, record.value)
    return "|".join(part for part in parts if part is not None)


def emitted(join: ForeignKeyJoin, change: Mapping[str, Any]) -> Result:
    """The oracle's joiner writes ``left+right``, and ``null`` for a missing right row."""
    key = (change["key"], None)
    if change["value"] is None:
        return Result(key, None, change["ts"])
    left, right = change["value"].split("+")
    return Result(key, (left.rpartition("|")[2], None if right == "null" else right), change["ts"])


def agree(join: ForeignKeyJoin, records: Sequence[Record], given: Answers, kafka: Answers) -> bool:
    return given == kafka
