"""Reads the truth tables under ``spec/``; the format is described in ``spec/README.md``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from naive import Record, Result, Topology, names

FOLDER = Path(__file__).parents[2] / "spec"
HOWS = ("inner", "left", "outer")


@dataclass(frozen=True)
class TruthTable:
    """One file.

    ``batches``: the records between borders, or all as one where the emission is ``change``.
    ``expected``: per join, per record (``change``) or per batch (``batch``), its results.
    """

    name: str
    source: str
    emission: str
    joins: dict[str, Topology]
    batches: list[list[Record]]
    expected: dict[str, list[list[Result]]]

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in batch]


def read_all() -> list[TruthTable]:
    """Every file about tables; those of streams are ``matrix_tables``."""
    return [read(path) for path in sorted(FOLDER.glob("table_table/*.txt"))]


def read(path: Path) -> TruthTable:
    """One file."""
    name = str(path.relative_to(FOLDER).with_suffix("")) if FOLDER in path.parents else path.stem
    return parse(name, path.read_text(encoding="utf-8"))


def parse(name: str, text: str) -> TruthTable:
    """A table from its text; mistakes raise ``ValueError`` with the line."""
    header: dict[str, str] = {}
    joins: dict[str, Topology] = {}
    body = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"# (source|emission): (.*)", line):
            header[found[1]] = found[2].strip()
        elif found := re.match(r"# join (\S+) *= *(.*)", line):
            joins[found[1]] = parse_topology(found[2])
        elif line.strip() and not line.startswith("#"):
            body.append((number, line))
    if header["emission"] not in ("change", "batch"):
        raise ValueError(f"{name}.txt: unknown emission {header['emission']}")
    table = TruthTable(
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


def parse_topology(text: str) -> Topology:
    """``(A left B) outer C`` as nested tuples.

    >>> parse_topology("(A left B) outer C")
    (('A', 'left', 'B'), 'outer', 'C')
    """
    tokens = re.findall(r"[()]|[^\s()]+", text)

    def operand() -> Topology:
        token = tokens.pop(0)
        if token != "(":
            return token
        inner = expression()
        if not tokens or tokens.pop(0) != ")":
            raise ValueError("unbalanced parentheses")
        return inner

    def expression() -> Topology:
        left = operand()
        if not tokens or tokens[0] == ")":
            return left
        how = tokens.pop(0)
        if how not in HOWS:
            raise ValueError(f"unknown join {how}")
        return left, how, operand()

    topology = expression()
    if tokens:
        raise ValueError(f"unexpected {tokens[0]}")
    return topology


def _read_line(line: str, table: TruthTable) -> None:
    first, *columns = (part.strip() for part in line.split("|"))
    key = None
    if first == "---":
        if table.emission != "batch":
            raise ValueError("a border in a table of single changes")
        table.batches.append([])
    else:
        _, name, key, time, value = first.split()
        if not any(name in names(topology) for topology in table.joins.values()):
            raise ValueError(f"no join reads table {name}")
        table.batches[-1].append(Record(name, key, int(time), _value(value), value == "∅"))
        if table.emission == "batch":
            if columns:
                raise ValueError("results belong on the border")
            return
    given = dict(column.split(None, 1) for column in columns)
    if given.keys() != table.joins.keys():
        raise ValueError(f"results for {sorted(given)}, the joins are {sorted(table.joins)}")
    for join, results in given.items():
        table.expected[join].append([_result(key, r) for r in results.split(", ") if r != "-"])


def _result(key: str | None, text: str) -> Result:
    if key is None:
        key, text = text.split()
    values, _, time = text.rpartition("@")
    return Result(key, _values(values), int(time))


def _values(text: str) -> tuple[str | None, ...] | None:
    return None if text == "∅" else tuple(_value(value) for value in text.split("+"))


def _value(text: str) -> str | None:
    return None if text in ("null", "∅") else "" if text == "''" else text
