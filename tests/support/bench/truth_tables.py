"""Reads the truth tables under ``spec/``; the format is described in ``spec/README.md``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.families import foreign_keys, streams, tables, views, windows
from bench.family import Family, value_of
from bench.records import Record, Result
from dovetail.physical.fragment import Emit

SPEC = Path(__file__).parents[3] / "spec"
FAMILIES: dict[str, Family] = {
    folder: family
    for family in (tables, streams, foreign_keys, windows, views)
    for folder in family.FOLDERS
}
"""By the folder of their tables."""
BORDER, END = "---", "==="


@dataclass(frozen=True)
class Column:
    """A join in one mode, and what is expected of it.

    ``results``: per record, or per micro-batch where it emits by batch. ``at_end``: what a batch
    run adds.
    """

    join: Any
    emit: Emit
    results: list[list[Result]] = field(default_factory=list)
    at_end: list[Result] = field(default_factory=list)


@dataclass(frozen=True)
class TruthTable:
    """One file: a list of records, and per join a column.

    ``batches``: the records between borders, or all as one where no column emits by batch.
    """

    name: str
    source: str
    columns: dict[str, Column]
    batches: list[list[Record]]

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

    def emitting(self, emit: Emit) -> dict[str, Column]:
        """The columns of this mode."""
        return {name: column for name, column in self.columns.items() if column.emit == emit}


def read(*folders: str) -> list[TruthTable]:
    """Every file of these folders, or of all."""
    paths = [
        path for folder in folders or FAMILIES for path in sorted((SPEC / folder).glob("*.txt"))
    ]
    return [parse(f"{p.parent.name}/{p.stem}", p.read_text(encoding="utf-8")) for p in paths]


def per_column(given: list[TruthTable], *emits: Emit) -> list[Any]:
    """Parameters: each table with each of its columns, or with those of these modes."""
    return [
        pytest.param(table, column, id=f"{table.name}-{name}")
        for table in given
        for name, column in table.columns.items()
        if column.emit in (emits or ("change", "batch"))
    ]


def parse(name: str, text: str) -> TruthTable:
    """A table from its text, ``name`` with its folder; mistakes raise ``ValueError`` with the
    line.
    """
    table = _header(name, text)
    ended = False
    for number, line in _lines(text):
        where = f"{name}.txt, line {number}"
        if ended:
            raise ValueError(f"{where}: a line after the end: {line}")
        try:
            ended = _read_line(line, table)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{where}: {error!r}: {line}") from error
    if table.emitting("batch") and table.batches.pop():
        raise ValueError(f"{name}.txt: the last batch has no border {BORDER}")
    return table


def _header(name: str, text: str) -> TruthTable:
    """A table without its records."""
    source = ""
    windows_: dict[str, str] = {}
    columns: dict[str, Column] = {}
    for line in text.splitlines():
        if found := re.match(r"# source: (.*)", line):
            source = found[1].strip()
        elif found := re.match(r"# windows (\S+) *= *(.*)", line):
            windows_ |= dict.fromkeys(found[1].split(","), found[2])
        elif found := re.match(r"# join (\S+) *= *(.*)", line):
            column = _column(name.split("/", maxsplit=1)[0], found[2], windows_)
            if column in columns.values() or found[1] in columns:
                raise ValueError(f"{name}.txt: twice the same: {line}")
            columns[found[1]] = column
    return TruthTable(name, source, columns, [[]])


def _column(folder: str, text: str, windows_: dict[str, str]) -> Column:
    """``L left R, emit batch``, without its results."""
    text = text.strip()
    join = re.sub(r",? emit batch$", "", text)
    made = FAMILIES[folder].read_join(folder, join, windows_)
    return Column(made, "change" if join == text else "batch")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """With their numbers; a line that begins with a bar belongs to the one before it."""
    held: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if held and line.lstrip().startswith("|"):
            held = (held[0], held[1] + line)
            continue
        if held:
            yield held
        held = (number, line)
    if held:
        yield held


def _read_line(line: str, table: TruthTable) -> bool:
    """Whether the line ends the input."""
    first, *cells = (part.strip() for part in line.split("|"))
    record = None
    if first not in (BORDER, END):
        record = _record(first, table)
        table.batches[-1].append(record)
    columns = table.emitting("batch" if first == BORDER else "change")
    given = dict(cell.split(None, 1) for cell in cells)
    if given.keys() != columns.keys() or (record is None and not columns):
        raise ValueError(f"results for {sorted(given)}, not for {sorted(columns)}")
    for name, cell in given.items():
        column = columns[name]
        results = [_result(table.family, column.join, record, t) for t in _results(cell)]
        if first == END:
            column.at_end.extend(results)
        else:
            column.results.append(results)
    if first == BORDER:
        table.batches.append([])
    return first == END


def _results(cell: str) -> list[str]:
    return [] if cell == "-" else cell.split(", ")


def _record(text: str, table: TruthTable) -> Record:
    """``1 L k 3 A``."""
    _, name, key, time, word = text.split()
    if not any(name in table.family.sources(column.join) for column in table.columns.values()):
        raise ValueError(f"no join reads {name}")
    value = None if word == "∅" else table.family.read_value(name, word)
    return Record(name, value_of(key), int(time), value, word == "∅")


def _result(family: Family, join: Any, record: Record | None, text: str) -> Result:
    """``A+a@4`` of the record's own key, ``k A+a@4`` of another, ``-A+null@3`` withdrawn."""
    withdrawn = re.match(r"-(?!\d+-)", text) is not None  # not a window that begins before 0
    *words, text = (text[1:] if withdrawn else text).split()
    key = family.read_key(join, words, record)
    values, _, time = text.rpartition("@")
    if values == "∅":
        return Result(key, None, int(time))
    found = tuple(map(value_of, values.split("+")))
    if len(found) != family.width(join):
        raise ValueError(f"{len(found)} values")
    return Result(key, found, int(time), withdrawn)
