"""Trees of tables joined by key (``models.tables``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from bench.families import streams
from bench.family import Row, Source, as_they_are, in_milliseconds, moved, own_key, value_of
from bench.models import tables
from bench.models.streams import VersionedTables
from bench.models.tables import Topology, names, seen
from bench.records import Answers, Batches, Record, Result

FOLDERS = ("table_table",)
HOWS = ("inner", "left", "outer")
flushed = as_they_are
later = moved
read_key = own_key
unit_us = in_milliseconds


def read_join(folder: str, text: str, windows: Mapping[str, str]) -> Topology:
    """``(A left B) outer C`` as nested tuples.

    >>> read_join("table_table", "(A left B) outer C", {})
    (('A', 'left', 'B'), 'outer', 'C')
    """
    return parsed(text, lambda left, how, right: (left, how, right), lambda name: name)


def parsed(text: str, joined: Any, named: Any) -> Any:
    """An expression of names, joins and parentheses, by what a join and a name are."""
    tokens = re.findall(r"[()]|[^\s()]+", text)

    def operand() -> Any:
        token = tokens.pop(0)
        if token != "(":
            return named(token)
        inner = expression()
        if not tokens or tokens.pop(0) != ")":
            raise ValueError("unbalanced parentheses")
        return inner

    def expression() -> Any:
        left = operand()
        if not tokens or tokens[0] == ")":
            return left
        how = tokens.pop(0)
        if how not in HOWS:
            raise ValueError(f"unknown join {how}")
        return joined(left, how, operand())

    found = expression()
    if tokens:
        raise ValueError(f"unexpected {tokens[0]}")
    return found


def read_value(name: str, word: str) -> str | None:
    return value_of(word)


def width(join: Topology) -> int:
    return len(names(join))


def each_record(join: Topology, records: Sequence[Record]) -> Iterator[list[Result]]:
    return map(seen, tables.each_record(join, records))


def each_batch(join: Topology, batches: Batches) -> Iterator[list[Result]]:
    return map(seen, tables.each_batch(join, batches))


def at_end(join: Topology, records: Sequence[Record]) -> list[Result]:
    return []


def arranged(results: Sequence[Result]) -> list[Result]:
    """In the order in which they were caused."""
    return list(results)


def sources(join: Topology) -> dict[str, Source]:
    columns = {"k": pa.string(), "v": pa.string()}
    return {name: Source(False, columns) for name in dict.fromkeys(names(join))}


def build(join: Topology, inputs: Mapping[str, Any]) -> Any:
    return _built(join, inputs)[0]


def _built(join: Topology, inputs: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """With the names of its value columns from left to right."""
    if isinstance(join, str):
        return inputs[join], ["v"]
    left, left_columns = _built(join[0], inputs)
    right, right_columns = _built(join[2], inputs)
    sides = [f"left.{c}" for c in left_columns] + [f"right.{c}" for c in right_columns]
    selection = {f"c{number}": column for number, column in enumerate(sides)}
    return left.join(right, how=join[1], select=selection), list(selection)


def row(join: Topology, record: Record, number: int) -> Row:
    return {"k": record.key, "v": record.value}


def result(join: Topology, row: Row, time: int, *, deleted: bool) -> Result:
    columns = ["v"] if isinstance(join, str) else [f"c{n}" for n in range(width(join))]
    return Result(row["k"], None if deleted else tuple(row[c] for c in columns), time)


def kafka_can(join: Topology, records: Sequence[Record]) -> bool:
    """Two tables; its values have no nulls."""
    if isinstance(join, str) or not (isinstance(join[0], str) and isinstance(join[2], str)):
        return False
    return join[0] != join[2] and streams.kafka_can(_pair(join), _on_sides(join, records))


def asked(join: Topology, records: Sequence[Record]) -> dict[str, Any]:
    return streams.asked(_pair(join), _on_sides(join, records))


def emitted(join: Topology, change: Mapping[str, Any]) -> Result:
    return streams.emitted(_pair(join), change)


def agree(join: Topology, records: Sequence[Record], given: Answers, kafka: Answers) -> bool:
    return given == kafka


def _pair(join: Topology) -> VersionedTables:
    """Two tables, neither versioned."""
    return VersionedTables(join[1])


def _on_sides(join: Topology, records: Sequence[Record]) -> list[Record]:
    """The records as Kafka Streams' left and right side; those of other tables are of none."""
    sides = {join[0]: "L", join[2]: "R"}
    return [r._replace(table=sides[r.table]) for r in records if r.table in sides]
