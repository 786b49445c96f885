"""Reads the truth tables of streams and versioned tables; ``spec/README.md`` has the format."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matrix import Join, Result, StreamStream, StreamTable, VersionedTables
from naive import Record

FOLDER = Path(__file__).parents[2] / "spec"
OPERATORS: dict[str, type[Any]] = {
    "stream_table": StreamTable,
    "stream_stream": StreamStream,
    "versioned": VersionedTables,
}


@dataclass(frozen=True)
class MatrixTable:
    """One file.

    ``expected``: per join, per record, its results. ``at_end``: per join what a batch run adds.
    """

    name: str
    source: str
    joins: dict[str, Join]
    records: list[Record]
    expected: dict[str, list[list[Result]]]
    at_end: dict[str, list[Result]]

    @property
    def operator(self) -> str:
        return self.name.split("/")[0]


def read_all() -> list[MatrixTable]:
    """Every file of every operator's folder."""
    paths = [path for operator in OPERATORS for path in sorted((FOLDER / operator).glob("*.txt"))]
    return [parse(path.parent.name, path.stem, path.read_text(encoding="utf-8")) for path in paths]


def parse(operator: str, name: str, text: str) -> MatrixTable:
    """A table from its text; mistakes raise ``ValueError`` with the line."""
    source = ""
    joins: dict[str, Join] = {}
    body = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"# source: (.*)", line):
            source = found[1].strip()
        elif found := re.match(r"# join (\S+) *= *(.*)", line):
            joins[found[1]] = parse_join(operator, found[2])
        elif line.strip() and not line.startswith("#"):
            body.append((number, line))
    nothing: dict[str, list[Result]] = {join: [] for join in joins}
    table = MatrixTable(f"{operator}/{name}", source, joins, [], {j: [] for j in joins}, nothing)
    ended = False
    for number, line in body:
        try:
            if ended:
                raise ValueError("a line after the end")
            ended = _read_line(line, table)
        except (ValueError, IndexError) as error:  # noqa: PERF203
            raise ValueError(f"{table.name}.txt, line {number}: {error!r}: {line}") from error
    return table


def parse_join(operator: str, text: str) -> Join:
    """``L left R, before 10 after 5`` as the operator's description.

    >>> parse_join("stream_table", "L left R, versioned 10")
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
        join: Join = OPERATORS[operator](found[1], **options)
    except TypeError as error:
        raise ValueError(f"not a join of {operator}: {text}") from error
    return join


def _option(word: str) -> int | str:
    return int(word) if word.lstrip("-").isdigit() else word


def _read_line(line: str, table: MatrixTable) -> bool:
    """Whether the line is the one that ends the input."""
    first, *columns = (part.strip() for part in line.split("|"))
    ended = first == "---"
    key = None
    if not ended:
        _, side, word, time, value = first.split()
        if side not in ("L", "R"):
            raise ValueError(f"no side {side}")
        key = _value(word)
        table.records.append(Record(side, key, int(time), _value(value), value == "∅"))
    given = dict(column.split(None, 1) for column in columns)
    if given.keys() != table.joins.keys():
        raise ValueError(f"results for {sorted(given)}, the joins are {sorted(table.joins)}")
    for join, cell in given.items():
        results = [_result(key, text) for text in cell.split(", ") if text != "-"]
        if ended:
            table.at_end[join].extend(results)
        else:
            table.expected[join].append(results)
    return ended


def _result(key: str | None, text: str) -> Result:
    """``A+a@4``, ``k2 A+a@4`` of another key than the record's, ``-A+null@3`` withdrawn."""
    withdrawn = text.startswith("-")
    *words, text = text.removeprefix("-").split()
    if words:
        (word,) = words
        key = _value(word)
    values, _, time = text.rpartition("@")
    if values == "∅":
        return Result(key, None, int(time))
    left, right = map(_value, values.split("+"))
    return Result(key, (left, right), int(time), withdrawn)


def _value(text: str) -> str | None:
    return None if text in ("null", "∅") else "" if text == "''" else text
