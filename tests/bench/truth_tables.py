"""Reads the truth tables under ``spec/``; the format is described in ``spec/README.md``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.families import foreign_keys, streams, tables, windows
from bench.family import Family, value_of
from bench.records import Record, Result

SPEC = Path(__file__).parents[2] / "spec"
FAMILIES: dict[str, Family] = {
    folder: family
    for family in (tables, streams, foreign_keys, windows)
    for folder in family.FOLDERS
}
"""By the folder of their tables."""


@dataclass(frozen=True)
class TruthTable:
    """One file.

    ``batches``: the records between borders, or all as one where the emission is ``change``.
    ``expected``: per join, per record (``change``) or per batch (``batch``), its results.
    ``at_end``: per join what a batch run adds.
    """

    name: str
    source: str
    emission: str
    joins: dict[str, Any]
    batches: list[list[Record]]
    expected: dict[str, list[list[Result]]]
    at_end: dict[str, list[Result]]

    @property
    def records(self) -> list[Record]:
        """All records."""
        return [record for batch in self.batches for record in batch]

    @property
    def folder(self) -> str:
        """The operator's."""
        return self.name.split("/")[0]

    @property
    def family(self) -> Family:
        """What knows of its joins."""
        return FAMILIES[self.folder]


def read(*folders: str) -> list[TruthTable]:
    """Every file of these folders, or of all."""
    paths = [
        path for folder in folders or FAMILIES for path in sorted((SPEC / folder).glob("*.txt"))
    ]
    return [parse(f"{p.parent.name}/{p.stem}", p.read_text(encoding="utf-8")) for p in paths]


def per_join(given: list[TruthTable]) -> list[Any]:
    """Parameters: each table with each of its joins."""
    return [
        pytest.param(table, join, id=f"{table.name}-{join}")
        for table in given
        for join in table.joins
    ]


def parse(name: str, text: str) -> TruthTable:
    """A table from its text, ``name`` with its folder; mistakes raise ``ValueError`` with the
    line.
    """
    table = _header(name, text)
    ended = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if ended:
                raise ValueError("a line after the end")
            ended = _read_line(line, table)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{name}.txt, line {number}: {error!r}: {line}") from error
    if table.emission == "batch" and table.batches.pop():
        raise ValueError(f"{name}.txt: the last batch has no border ---")
    return table


def _header(name: str, text: str) -> TruthTable:
    """A table without its records."""
    header = {"source": "", "emission": "change"}
    windows_: dict[str, str] = {}
    joins: dict[str, Any] = {}
    folder = name.split("/", maxsplit=1)[0]
    for line in text.splitlines():
        if found := re.match(r"# (source|emission): (.*)", line):
            header[found[1]] = found[2].strip()
        elif found := re.match(r"# windows (\S+) *= *(.*)", line):
            windows_ |= dict.fromkeys(found[1].split(","), found[2])
        elif found := re.match(r"# join (\S+) *= *(.*)", line):
            joins[found[1]] = FAMILIES[folder].read_join(folder, found[2], windows_)
    if header["emission"] not in ("change", "batch"):
        raise ValueError(f"{name}.txt: unknown emission {header['emission']}")
    expected: dict[str, list[list[Result]]] = {join: [] for join in joins}
    at_end: dict[str, list[Result]] = {join: [] for join in joins}
    return TruthTable(name, header["source"], header["emission"], joins, [[]], expected, at_end)


def _read_line(line: str, table: TruthTable) -> bool:
    """Whether the line ends the input."""
    first, *columns = (part.strip() for part in line.split("|"))
    record = None
    border = first == "---"
    if border and table.emission == "batch":
        table.batches.append([])
    elif not border:
        record = _record(first, table)
        table.batches[-1].append(record)
        if table.emission == "batch":
            if columns:
                raise ValueError("results belong on the border")
            return False
    given = dict(column.split(None, 1) for column in columns)
    if given.keys() != table.joins.keys():
        raise ValueError(f"results for {sorted(given)}, the joins are {sorted(table.joins)}")
    ended = border and table.emission == "change"
    for join, cell in given.items():
        results = [_result(table, join, record, t) for t in cell.split(", ") if t != "-"]
        if ended:
            table.at_end[join].extend(results)
        else:
            table.expected[join].append(results)
    return ended


def _record(text: str, table: TruthTable) -> Record:
    """``1 L k 3 A``."""
    _, name, key, time, word = text.split()
    if not any(name in table.family.sources(join) for join in table.joins.values()):
        raise ValueError(f"no join reads {name}")
    value = None if word == "∅" else table.family.read_value(name, word)
    return Record(name, value_of(key), int(time), value, word == "∅")


def _result(table: TruthTable, join: str, record: Record | None, text: str) -> Result:
    """``A+a@4`` of the record's own key, ``k A+a@4`` of another, ``-A+null@3`` withdrawn."""
    withdrawn = re.match(r"-(?!\d+-)", text) is not None  # not a window that begins before 0
    *words, text = (text[1:] if withdrawn else text).split()
    key = table.family.read_key(table.joins[join], words, record)
    values, _, time = text.rpartition("@")
    if values == "∅":
        return Result(key, None, int(time))
    found = tuple(map(value_of, values.split("+")))
    if len(found) != table.family.width(table.joins[join]):
        raise ValueError(f"{len(found)} values")
    return Result(key, found, int(time), withdrawn)
