"""Reads the truth tables of foreign-key joins; ``spec/README.md`` has the format."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fk_model import ForeignKeyJoin, Key, Result
from naive import Record

FOLDER = Path(__file__).parents[2] / "spec" / "foreign_key"


@dataclass(frozen=True)
class ForeignKeyTable:
    """One file.

    ``batches``: the records between borders, or all as one where the emission is ``change``.
    ``expected``: per join, per record (``change``) or per batch (``batch``), its results.
    """

    name: str
    source: str
    emission: str
    joins: dict[str, ForeignKeyJoin]
    batches: list[list[Record]]
    expected: dict[str, list[list[Result]]]

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in batch]


def read_all() -> list[ForeignKeyTable]:
    """Every file."""
    return [parse(p.stem, p.read_text(encoding="utf-8")) for p in sorted(FOLDER.glob("*.txt"))]


def parse(name: str, text: str) -> ForeignKeyTable:
    """A table from its text; mistakes raise ``ValueError`` with the line."""
    header: dict[str, str] = {}
    joins: dict[str, ForeignKeyJoin] = {}
    body = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"# (source|emission): (.*)", line):
            header[found[1]] = found[2].strip()
        elif found := re.match(r"# join (\S+) *= *(.*)", line):
            joins[found[1]] = parse_join(found[2])
        elif line.strip() and not line.startswith("#"):
            body.append((number, line))
    if header["emission"] not in ("change", "batch"):
        raise ValueError(f"{name}.txt: unknown emission {header['emission']}")
    table = ForeignKeyTable(
        name, header["source"], header["emission"], joins, [[]], {j: [] for j in joins}
    )
    for number, line in body:
        try:
            _read_line(line, table)
        except (ValueError, IndexError) as error:  # noqa: PERF203
            raise ValueError(f"{name}.txt, line {number}: {error!r}: {line}") from error
    if table.emission == "batch" and table.batches.pop():
        raise ValueError(f"{name}.txt: the last batch has no border ---")
    return table


def parse_join(text: str) -> ForeignKeyJoin:
    """``L left R, right_versioned 10`` as a description.

    >>> parse_join("L left R, right_versioned 10")
    ForeignKeyJoin(how='left', left_versioned=None, right_versioned=10)
    """
    found = re.fullmatch(r"L (inner|left|right|outer) R(?:, *(.*))?", text.strip())
    if not found:
        raise ValueError(f"not a join: {text}")
    words = (found[2] or "").split()
    try:
        return ForeignKeyJoin(found[1], **dict(zip(words[::2], map(int, words[1::2]), strict=True)))
    except TypeError as error:
        raise ValueError(f"not a join: {text}") from error


def parse_record(text: str) -> Record:
    """``1 L k 3 x:A`` or ``1 R x 3 a``.

    >>> parse_record("1 L k 3 x:A")
    Record(table='L', key='k', time=3, value=('x', 'A'), deleted=False)
    """
    _, side, key, time, word = text.split()
    if side not in ("L", "R"):
        raise ValueError(f"no side {side}")
    value: Any = _value(word)
    if side == "L" and word != "∅":
        foreign_key, own = word.split(":")
        value = (_value(foreign_key), _value(own))
    return Record(side, _value(key), int(time), value, word == "∅")


def _read_line(line: str, table: ForeignKeyTable) -> None:
    first, *columns = (part.strip() for part in line.split("|"))
    own: Key | None = None
    if first == "---":
        if table.emission != "batch":
            raise ValueError("a border in a table of single changes")
        table.batches.append([])
    else:
        record = parse_record(first)
        table.batches[-1].append(record)
        if table.emission == "batch":
            if columns:
                raise ValueError("results belong on the border")
            return
        own = (record.key, None) if record.table == "L" else (None, record.key)
    given = dict(column.split(None, 1) for column in columns)
    if given.keys() != table.joins.keys():
        raise ValueError(f"results for {sorted(given)}, the joins are {sorted(table.joins)}")
    for join, cell in given.items():
        table.expected[join].append([_result(own, r) for r in cell.split(", ") if r != "-"])


def _result(own: Key | None, text: str) -> Result:
    """``A+a@4`` of the record's own key, ``k A+a@4`` of a left one, ``/x null+a@4`` of a right."""
    *words, text = text.split()
    if words:
        (word,) = words
        own = (None, _value(word[1:])) if word.startswith("/") else (_value(word), None)
    if own is None:
        raise ValueError(f"no key before {text}")
    values, _, time = text.rpartition("@")
    if values == "∅":
        return Result(own, None, int(time))
    left, right = map(_value, values.split("+"))
    return Result(own, (left, right), int(time))


def _value(text: str) -> str | None:
    return None if text in ("null", "∅") else "" if text == "''" else text
