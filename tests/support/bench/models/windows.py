"""Aggregates, windowed tables and what they are joined with by definition: slow, obvious, record by
record.

The inputs are records in arrival order; times are whole numbers, of which the next is one
later. The name of an input says what it is:

- ``L``, ``R``: streams grouped by key and by windows of time;
- ``H``, ``G``: a stream and a table whose value is the pair (group, value), grouped by the group;
- ``T``: a table; ``S``, ``U``: a stream and a table whose value is the pair (start, value): in
  which window of their key they look.

A stream's record that is ``deleted`` has no value; it is dropped.

The laws.

- Stream time of ``L`` or ``R`` is the largest time of its records with a key, the present one
  included. A tumbling or a hopping window holds the times from its start to before its end, and is
  closed when stream time reaches its end and the grace. A sliding one holds its end, too, and is
  closed when stream time is past its end and the grace; a session when it is past its end, the gap
  and the grace. What is closed takes no more records.
- A record gives a result for each open window that holds it, in the order of the windows' starts.
  Hopping windows begin before 0 only for records before 0.
- Sliding: there is a window of ``size`` that ends at each record and, if it has records, one that
  begins just after it. A record gives a result for each that it comes to or brings about. One for
  which all windows that could hold it are closed is as if it had not come.
- Sessions: a record and the key's open sessions not more than the gap from it become one. Those
  whose bounds change are deleted, in the order of time; then comes the new one's row, under its
  end's time. Where that is closed, nothing happens.
- Groups of a table: a record takes its old row out and puts the new one in: two results, the old
  group's first, or one if the group stays. A group without rows is deleted and forgotten. A result
  has the largest time of the records since the group came to be.
- Joins of two windowed tables on the same window are joins of tables by key and window. The others
  are of the kind of foreign keys: a left row looks at one right row; either's record gives results.
  What a record changes on the left comes before what it changes on the right. A stream looks as it
  comes, and never again.
- Retention: a window that begins before stream time (of the slowest of its inputs) less the
  retention is not found, and a table's record gives it no result; a session that ends before it.
- ``final``: a window's row comes once, when stream time (of the slowest) closes it; of those that
  close at once in the order of their closing, then of key and start. What comes later is not heard.
- ``shows``: what is shown of a group. ``top n``: of its values that are not null the ``n`` with the
  highest first letters, of those with the same one the lowest first; ``lowest n``: with the lowest
  ones; ``distinct``: how many different ones there are; otherwise all, in order of arrival.
- A batch (``each_batch``) gives per key the last of its records' results, and none where the row
  is what it was before the batch; a row of nulls is another than none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from bench.models.gathering import (
    Cells,
    Change,
    FixedTable,
    GroupedStream,
    GroupedTable,
    Key,
    Plain,
    SessionTable,
    SlidingTable,
    Windows,
)
from bench.records import Batches, Record, Result, accumulate, byte_order, ended, stepped

WINDOWED, GATHERED, TABLES, STREAMS = "LR", "GH", "TU", "S"
INPUTS = WINDOWED + GATHERED + TABLES + STREAMS

Topology: TypeAlias = "str | Joined"


@dataclass(frozen=True)
class Joined:
    """``shift``: how much later than the left one's the right one's window begins."""

    left: Topology
    how: str
    right: Topology
    shift: int = 0


@dataclass(frozen=True)
class View:
    """A topology over these windows, the same for both streams but for grace and retention;
    ``shows``: of one input what is shown of its groups.
    """

    topology: Topology
    windows: tuple[tuple[str, Windows], ...] = ()
    final: bool = False
    shows: str = ""


def seen(changes: Iterable[Change]) -> list[Result]:
    """What a changelog shows: a group as its values one after the other, each null a dot."""
    return [Result(c.key, c.cells and tuple(map(_shown, c.cells)), c.time) for c in changes]


def _shown(cell: Any) -> Any:
    if cell is None:
        return None
    return shown_group(cell) if isinstance(cell, list) else cell[-1]


def shown_group(values: Sequence[Any]) -> str:
    """The values in their order, then a dot for each null."""
    return "".join(v for v in values if v is not None) + "." * values.count(None)


def shown_as(shows: str, values: Sequence[Any]) -> str:
    """What a view that ``shows`` something else than all values has of a group.

    >>> [shown_as(s, ["2b", None, "1a", "2a", "2a"]) for s in ("top 2", "lowest 2", "distinct")]
    ['2a2a', '1a2a', '3']
    """
    known = sorted((v for v in values if v is not None), key=byte_order)
    if shows == "distinct":
        return str(len({*known}))
    which, n = shows.split()
    known.sort(key=lambda value: byte_order(value[:1]), reverse=which == "top")
    return "".join(known[: int(n)])


def each_record(view: View, records: Iterable[Record]) -> Iterator[list[Change]]:
    """What each record makes the view emit (``emit="change"``)."""
    yield from stepped(Running(view), records)


def at_end(view: View, records: Iterable[Record]) -> list[Change]:
    """What a batch run adds when its input has ended."""
    return ended(Running(view), records)


def each_batch(view: View, batches: Batches) -> Iterator[list[Change]]:
    """What each batch makes the view emit (``emit="batch"``), in the order of keys."""
    running = Running(view)
    rows: dict[Key, Cells] = {}
    for batch in batches:
        last = {change.key: change for record in batch for change in running.step(record)}
        changed = [
            change
            for change in last.values()
            if _compared(view, rows.get(change.key)) != _compared(view, change.cells)
        ]
        accumulate(rows, changed)
        yield in_key_order(changed)


def _compared(view: View, cells: Cells | None) -> Cells | None:
    """What makes a row another one: of a side that is a join itself, what it shows; of others also
    whether there is a row of nulls.
    """
    if cells is None or isinstance(view.topology, str):
        return cells
    left, right = view.topology.left, view.topology.right
    shows = [isinstance(s, Joined) for s in (left, right) for _ in inputs_of(s)]
    return tuple(_shown(c) if show else c for c, show in zip(cells, shows, strict=True))


def in_key_order(changes: Iterable[Any]) -> list[Any]:
    """Changes or results of one batch in an order that depends on their keys alone."""
    return sorted(changes, key=lambda c: _order(c.key))


def _order(key: Key) -> tuple[Any, ...]:
    return (key[0] is not None, byte_order(key[0]), *key[1:])


def inputs_of(topology: Topology) -> list[str]:
    """The inputs from left to right; one that is used twice comes twice."""
    if isinstance(topology, str):
        return [topology]
    return inputs_of(topology.left) + inputs_of(topology.right)


def has_windows(topology: Topology) -> bool:
    """Whether a topology's rows have windows."""
    return (topology if isinstance(topology, str) else inputs_of(topology)[0]) in (*WINDOWED,)


def windows_of(view: View, topology: Topology) -> Windows:
    """The windows of a windowed table; of a join, closed when both sides' are."""
    if isinstance(topology, str):
        return dict(view.windows)[topology]
    left = windows_of(view, topology.left)
    if not has_windows(topology.right):
        return left
    right, shift = windows_of(view, topology.right), topology.shift
    grace = max(left.grace, right.grace + shift)
    kept = min(left.kept, right.kept - shift)
    return Windows(left.kind, left.size, left.advance, grace, kept)


class Running:
    """A view between records."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.nodes: dict[Topology, Any] = {}
        root = self.made(view.topology)
        self.final = Final(windows_of(view, view.topology)) if view.final else None
        self.clocks = self.clocks_of(view.topology) if view.final else None
        self.root = root

    def made(self, topology: Topology) -> Any:
        """The operator of a topology, each once."""
        if topology in self.nodes:
            return self.nodes[topology]
        if isinstance(topology, Joined):
            self.made(topology.left)
            self.made(topology.right)
            self.nodes[topology] = self.join_of(topology)
        elif topology in WINDOWED:
            windows = dict(self.view.windows)[topology]
            kinds = {"sliding": SlidingTable, "session": SessionTable}
            self.nodes[topology] = kinds.get(windows.kind, FixedTable)(windows)
        else:
            self.nodes[topology] = {"G": GroupedTable, "H": GroupedStream}.get(topology, Plain)()
        return self.nodes[topology]

    def join_of(self, join: Joined) -> Any:
        """The operator of a join."""
        left, right = has_windows(join.left), has_windows(join.right)
        width = len(inputs_of(join.left)), len(inputs_of(join.right))
        if left and right and not join.shift:
            return SameWindow(join, width)
        windows = windows_of(self.view, join.left if left else join.right)
        if join.left == "S":
            return LookedUp(width, windows, self.clocks_of(join))
        return Referring(join, width, windows, self.clocks_of(join))

    def clocks_of(self, topology: Topology) -> list[Any]:
        """What sets the stream time of the windowed inputs."""
        return [self.made(name) for name in inputs_of(topology) if name in WINDOWED]

    def step(self, record: Record) -> list[Change]:
        """What one record makes the view emit."""
        if record.table not in self.nodes:
            return []
        found: dict[int, list[Change]] = {}
        changes = self.changes(self.view.topology, record, found)
        if self.view.shows:
            changes = [
                c._replace(cells=c.cells and ((shown_as(self.view.shows, c.cells[0]),),))
                for c in changes
            ]
        if self.final is None:
            return changes
        assert self.clocks is not None
        return self.final.take(changes, clock_of(self.clocks))

    def end(self) -> list[Change]:
        """What comes when all waiting ends."""
        return [] if self.final is None else self.final.take([], 10**30)

    def changes(self, topology: Topology, record: Record, found: Any) -> list[Change]:
        """What a record changes in the result of one operator."""
        node = self.nodes[topology]
        if id(node) not in found:
            if isinstance(topology, Joined):
                left = self.changes(topology.left, record, found)
                right = self.changes(topology.right, record, found)
                found[id(node)] = node.take(left, right)
            else:
                own = topology == record.table
                found[id(node)] = node.take(record) if own else []
        return found[id(node)]  # type: ignore[no-any-return]


def clock_of(inputs: Sequence[Any]) -> int:
    """The stream time of the slowest."""
    return min(i.clock for i in inputs)


# Joins.

Row: TypeAlias = "tuple[Cells, int]"


def keep(rows: dict[Key, Row], change: Change) -> None:
    """The last row of a key."""
    rows.pop(change.key, None)
    if change.cells is not None:
        rows[change.key] = (change.cells, change.time)


class SameWindow:
    """Two tables by key and window; with itself, a change comes once on either side."""

    def __init__(self, join: Joined, width: tuple[int, int]) -> None:
        self.how, self.itself, self.width = join.how, join.left == join.right, width
        self.tables: list[dict[Key, Row]] = [{}, {}]

    def take(self, left: list[Change], right: list[Change]) -> list[Change]:
        found = []
        if self.itself:
            for change in left:
                was = self.tables[0].get(change.key)
                keep(self.tables[0], change)
                self.tables[1] = self.tables[0]
                found += self.emitted(0, change, was) + self.emitted(1, change, was)
            return found
        for side, changes in enumerate((left, right)):
            for change in changes:
                was = self.tables[side].get(change.key)
                keep(self.tables[side], change)
                found += self.emitted(side, change, was)
        return found

    def emitted(self, side: int, change: Change, was: Row | None) -> list[Change]:
        """KIP-77: with a row on the other side, or of a preserved side's own."""
        preserved = self.how == "outer" or (self.how == "left" and side == 0)
        other = self.tables[1 - side].get(change.key)
        answered = other is not None or (self.itself and was is not None)
        own = was is not None or change.cells is not None
        if not (answered or (preserved and own)):
            return []
        time = change.time if other is None else max(change.time, other[1])
        sides = [self.tables[n].get(change.key) for n in (0, 1)]
        keeps = self.how in ("left", "outer"), self.how == "outer"
        if None in sides and not any(row and kept for row, kept in zip(sides, keeps, strict=True)):
            return [Change(change.key, None, time)]
        return [Change(change.key, _beside(sides, self.width), time)]


def _beside(sides: Sequence[Row | None], width: tuple[int, int]) -> Cells:
    """The cells of both sides, None where one is missing."""
    return tuple(
        cell
        for row, count in zip(sides, width, strict=True)
        for cell in ((None,) * count if row is None else row[0])
    )


class Referring:
    """Left rows that each look at one right row: of their key, or of a window."""

    def __init__(
        self, join: Joined, width: tuple[int, int], windows: Windows, clocks: Sequence[Any]
    ) -> None:
        self.shift, self.width, self.windows, self.clocks = join.shift, width, windows, clocks
        self.windowed = has_windows(join.left), has_windows(join.right)
        self.left: dict[Key, tuple[Row, Key | None]] = {}
        self.right: dict[Key, Row] = {}

    def take(self, left: list[Change], right: list[Change]) -> list[Change]:
        found = []
        for change in left:
            found += self.of_left(change)
        for change in right:
            found += self.of_right(change)
        return found

    def refers(self, change: Change) -> Key | None:
        """The right key that a left row looks at."""
        if not self.windowed[1]:
            return change.key[:1]
        if self.windowed[0]:
            key, start, end = change.key
            return key, start + self.shift, end + self.shift
        assert change.cells is not None
        return looked_at(change.key[0], change.cells[0][0], self)

    def of_left(self, change: Change) -> list[Change]:
        if change.key[0] is None:
            return []
        was = self.left.pop(change.key, None)
        if change.cells is None:
            return [] if was is None else [change]
        row = (change.cells, change.time)
        refers = self.refers(change)
        self.left[change.key] = (row, refers)
        right = None if refers is None else self.right.get(refers)
        time = change.time if right is None else max(change.time, right[1])
        return [Change(change.key, _beside((row, right), self.width), time)]

    def of_right(self, change: Change) -> list[Change]:
        if change.key[0] is None:
            return []
        keep(self.right, change)
        right = self.right.get(change.key)
        found = []
        for key in sorted((k for k, (_, at) in self.left.items() if at == change.key), key=_order):
            if self.windowed[0] and not self.windows.found(*key[1:], clock_of(self.clocks)):
                continue
            row = self.left[key][0]
            found.append(Change(key, _beside((row, right), self.width), change.time))
        return found


def looked_at(key: Any, start: int | None, join: Any) -> Key | None:
    """The window that a row without windows looks at, None where it is not found."""
    size = join.windows.size
    if start is None or not join.windows.found(start, start + size, clock_of(join.clocks)):
        return None
    return key, start, start + size


class LookedUp:
    """A stream's records, each with a window as it stands."""

    def __init__(self, width: tuple[int, int], windows: Windows, clocks: Sequence[Any]) -> None:
        self.width, self.windows, self.clocks = width, windows, clocks
        self.right: dict[Key, Row] = {}

    def take(self, left: list[Change], right: list[Change]) -> list[Change]:
        for change in right:
            keep(self.right, change)
        found = []
        for change in (c for c in left if c.cells is not None):
            assert change.cells is not None
            refers = looked_at(change.key[0], change.cells[0][0], self)
            row = (change.cells, change.time)
            match = None if refers is None else self.right.get(refers)
            found.append(Change(change.key, _beside((row, match), self.width), change.time))
        return found


class Final:
    """Each window's last row, once it is closed."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.rows: dict[Key, Change] = {}
        self.emitted: set[Key] = set()

    def take(self, changes: Sequence[Change], clock: int) -> list[Change]:
        for change in changes:
            self.rows.pop(change.key, None)
            if change.cells is not None and change.key not in self.emitted:
                self.rows[change.key] = change
        closed = [key for key in self.rows if not self.windows.open(key[2], clock)]
        self.emitted.update(closed)
        return [self.rows.pop(key) for key in sorted(closed, key=lambda k: (k[2], _order(k)))]
