"""Reads the truth tables of aggregates and windowed tables; ``spec/README.md`` has the format."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from naive import Record
from window_gathering import Key, Windows
from window_model import INPUTS, Joined, Result, Topology, View, has_windows, inputs_of

FOLDER = Path(__file__).parents[2] / "spec"
FOLDERS = ("aggregate", "windowed")


@dataclass(frozen=True)
class WindowTable:
    """One file.

    ``batches``: the records between borders, or all as one where the emission is ``change``.
    ``expected``: per join, per record (``change``) or per batch (``batch``), its results.
    ``at_end``: per join what a batch run adds.
    """

    name: str
    source: str
    emission: str
    joins: dict[str, View]
    batches: list[list[Record]]
    expected: dict[str, list[list[Result]]]
    at_end: dict[str, list[Result]]

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in batch]


def read_all() -> list[WindowTable]:
    """Every file."""
    paths = [path for folder in FOLDERS for path in sorted((FOLDER / folder).glob("*.txt"))]
    return [parse(f"{p.parent.name}/{p.stem}", p.read_text(encoding="utf-8")) for p in paths]


def parse(name: str, text: str) -> WindowTable:
    """A table from its text; mistakes raise ``ValueError`` with the line."""
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


def _header(name: str, text: str) -> WindowTable:
    """A table without its records."""
    header: dict[str, str] = {}
    windows: dict[str, Windows] = {}
    joins: dict[str, View] = {}
    for line in text.splitlines():
        if found := re.match(r"# (source|emission): (.*)", line):
            header[found[1]] = found[2].strip()
        elif found := re.match(r"# windows (\S+) *= *(.*)", line):
            windows |= dict.fromkeys(found[1].split(","), parse_windows(found[2]))
        elif found := re.match(r"# join (\S+) *= *(.*)", line):
            joins[found[1]] = parse_view(found[2], windows)
    if header["emission"] not in ("change", "batch"):
        raise ValueError(f"{name}.txt: unknown emission {header['emission']}")
    expected: dict[str, list[list[Result]]] = {join: [] for join in joins}
    at_end: dict[str, list[Result]] = {join: [] for join in joins}
    return WindowTable(name, header["source"], header["emission"], joins, [[]], expected, at_end)


def parse_windows(text: str) -> Windows:
    """``hopping 10 advance 5 grace 2`` as a description.

    >>> parse_windows("hopping 10 advance 5 grace 2")
    Windows(kind='hopping', size=10, advance=5, grace=2, retention=None)
    """
    kind, size, *words = text.split()
    options: dict[str, Any] = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    if kind == "tumbling":
        options["advance"] = int(size)
    try:
        return Windows(kind, int(size), **options)
    except TypeError as error:
        raise ValueError(f"not windows: {text}") from error


def parse_view(text: str, windows: dict[str, Windows]) -> View:
    """``(L left T) inner R, shift -10, final`` over these windows.

    >>> parse_view("L left T", {"L": Windows("session", 5)}).topology
    Joined(left='L', how='left', right='T', shift=0)
    """
    expression, *options = (part.strip() for part in text.split(","))
    topology = _topology(expression)
    final = False
    for option in options:
        word, *value = option.split()
        if word == "final":
            final = True
        elif word == "shift" and isinstance(topology, Joined):
            topology = replace(topology, shift=int(value[0]))
        else:
            raise ValueError(f"unknown option {option}")
    known = {name: windows[name] for name in inputs_of(topology) if name in windows}
    return View(topology, tuple(known.items()), final)


def _topology(text: str) -> Topology:
    tokens = re.findall(r"[()]|[^\s()]+", text)

    def operand() -> Topology:
        token = tokens.pop(0)
        if token != "(":
            if token not in INPUTS:
                raise ValueError(f"no input {token}")
            return token
        inner = joined()
        if not tokens or tokens.pop(0) != ")":
            raise ValueError("unbalanced parentheses")
        return inner

    def joined() -> Topology:
        left = operand()
        if not tokens or tokens[0] == ")":
            return left
        how = tokens.pop(0)
        if how not in ("inner", "left", "outer"):
            raise ValueError(f"unknown join {how}")
        return Joined(left, how, operand())

    topology = joined()
    if tokens:
        raise ValueError(f"unexpected {tokens[0]}")
    return topology


def parse_record(text: str) -> Record:
    """``1 L k 3 A``, ``1 G a 3 x:A`` or ``1 S k 3 10:A``.

    >>> parse_record("1 S k 3 10:A")
    Record(table='S', key='k', time=3, value=(10, 'A'), deleted=False)
    """
    _, name, key, time, word = text.split()
    if name not in INPUTS:
        raise ValueError(f"no input {name}")
    value: Any = _value(word)
    if name in "GHSU" and word != "∅":
        where, own = word.split(":")
        found = _value(where)
        value = (int(found) if found and name in "SU" else found, _value(own))
    return Record(name, _value(key), int(time), value, word == "∅")


def _read_line(line: str, table: WindowTable) -> bool:
    """Whether the line ends the input."""
    first, *columns = (part.strip() for part in line.split("|"))
    own = None
    border = first == "---"
    if border and table.emission == "batch":
        table.batches.append([])
    elif not border:
        record = parse_record(first)
        own = record
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
        view = table.joins[join]
        results = [_result(view, own, text) for text in cell.split(", ") if text != "-"]
        if ended:
            table.at_end[join].extend(results)
        else:
            table.expected[join].append(results)
    return ended


def _result(view: View, own: Record | None, text: str) -> Result:
    """``AB+x@4`` of the record's own key, ``j AB@4`` of another, ``j 0-10 AB@4`` of a window."""
    *words, text = text.split()
    bounds: tuple[int, ...] = ()
    if has_windows(view.topology):
        found = re.fullmatch(r"(-?\d+)-(-?\d+)", words.pop())
        if found is None:
            raise ValueError(f"no window before {text}")
        bounds = (int(found[1]), int(found[2]))
    if words:
        (word,) = words
        key: Key = (_value(word),)
    elif own is None or own.table in "GH":
        raise ValueError(f"no key before {text}")
    else:
        key = (own.key,)
    values, _, time = text.rpartition("@")
    if values == "∅":
        return Result(key + bounds, None, int(time))
    return Result(key + bounds, tuple(map(_value, values.split("+"))), int(time))


def _value(text: str) -> str | None:
    return None if text in ("null", "∅") else "" if text == "''" else text
