"""Joins of streams and of versioned tables by definition: slow, obvious, record by record.

A join is one of three descriptions; its input is a list of records of the sides "L" and
"R", in arrival order, times in milliseconds. A record is ``deleted`` where it has no value: a
tombstone of a table, nothing to join for a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bench.records import Record, Result, byte_order, ended, stepped

Cell: TypeAlias = "tuple[Any] | None"

OTHER = {"L": "R", "R": "L"}
NEVER = -(10**18)  # a clock before the first record


@dataclass(frozen=True)
class StreamTable:
    """A stream L with a table R. ``versioned``: the table's history retention."""

    how: str
    versioned: int | None = None
    grace: int | None = None


@dataclass(frozen=True)
class StreamStream:
    """R joins L when ``L.time - before <= R.time <= L.time + after``.

    ``self_join``: the stream L is on both sides.
    """

    how: str
    before: int
    after: int
    grace: int = 0
    unmatched: str = "on_close"
    self_join: bool = False


@dataclass(frozen=True)
class VersionedTables:
    """Two tables, at least one of which is versioned."""

    how: str
    left_versioned: int | None = None
    right_versioned: int | None = None
    late: str = "ignore"


Join: TypeAlias = StreamTable | StreamStream | VersionedTables


def each_record(
    join: Join, records: Sequence[Record], *, kafka: bool = False
) -> Iterator[list[Result]]:
    """What each record makes the join emit; ``kafka``: by Kafka Streams' rules for two streams."""
    running = _running(join)
    if kafka and isinstance(join, StreamStream):
        running = _KafkaStreams(join)
    yield from stepped(running, records)


def at_end(join: Join, records: Sequence[Record]) -> list[Result]:
    """What a batch run adds when its input has ended."""
    return ended(_running(join), records)


def preserves(how: str, side: str) -> bool:
    """Whether this side's rows are in the result without a match."""
    return how == "outer" or (how == "left" and side == "L")


@dataclass
class Table:
    """The versions of each key: ``versions[key][time]`` is ``(value,)``, or None if deleted.

    Without a history retention, the last arrival is the one version.
    """

    retention: int | None
    clock: int = NEVER
    versions: dict[Any, dict[int, Cell]] = field(default_factory=dict)

    @property
    def horizon(self) -> int:
        """History is kept from here on."""
        assert self.retention is not None
        return self.clock - self.retention

    def put(self, record: Record) -> bool:
        """Whether the record is accepted: a versioned table refuses what its history has left."""
        self.clock = max(self.clock, record.time)
        if self.retention is None:
            self.versions[record.key] = {}
        elif record.time < self.horizon:
            return False
        cell = None if record.deleted else (record.value,)
        self.versions.setdefault(record.key, {})[record.time] = cell
        return True

    def times(self, key: Any) -> list[int]:
        """The times of a key's versions, ascending."""
        return sorted(self.versions.get(key, {}))

    def latest(self, key: Any) -> Cell:
        """The version with the largest time."""
        times = self.times(key)
        return self.versions[key][times[-1]] if times else None

    def as_of(self, key: Any, time: int) -> Cell:
        """The version that holds at a time; before the horizon only the latest is still known."""
        times = self.times(key)
        if self.retention is None:
            return self.latest(key)
        if time < self.horizon and times and time < times[-1]:
            return None
        past = [t for t in times if t <= time]
        return self.versions[key][past[-1]] if past else None


@dataclass
class _StreamTable:
    """Only the stream gives results; with a grace, once its own time is past theirs by as much."""

    join: StreamTable
    table: Table
    clock: int = NEVER
    waiting: list[Record] = field(default_factory=list)

    def step(self, record: Record) -> list[Result]:
        if record.table == "R":
            if record.key is not None:
                self.table.put(record)
            return []
        if record.deleted:
            return []
        if record.key is None or self.join.grace is None:
            return self.joined([record])
        self.clock = max(self.clock, record.time)
        ripe = self.clock - self.join.grace
        if record.time < ripe:
            return self.joined([record])
        self.waiting.append(record)
        due = [r for r in self.waiting if r.time <= ripe]
        self.waiting = [r for r in self.waiting if r.time > ripe]
        return self.joined(due)

    def end(self) -> list[Result]:
        return self.joined(self.waiting)

    def joined(self, records: list[Record]) -> list[Result]:
        found = []
        for record in sorted(records, key=lambda r: (r.time, byte_order(r.key))):
            cell = None if record.key is None else self.table.as_of(record.key, record.time)
            if cell is not None or self.join.how == "left":
                values = (record.value, cell and cell[0])
                found.append(Result(record.key, values, record.time))
        return found


@dataclass(eq=False)
class _Row:
    """A stored row of a stream.

    ``pending``: its unmatched result is still to come. ``alone``: it has been emitted and stands.
    """

    side: str
    record: Record
    pending: bool = False
    alone: bool = False

    @property
    def time(self) -> int:
        return self.record.time

    @property
    def unmatched(self) -> Result:
        value = self.record.value
        values = (value, None) if self.side == "L" else (None, value)
        return Result(self.record.key, values, self.time)


@dataclass
class _StreamStream:
    """Both sides join what the other has stored and still keeps.

    Every record advances the clock, one without key or value too. A row is kept until the clock is
    past its time by ``before + after + grace``, where a negative bound counts as none.

    ``unmatched="on_close"``: an unmatched row waits until the clock is past the end of its window
    by the grace; one that comes when it is already does not wait. A row that has been emitted alone
    joins nothing.
    """

    join: StreamStream
    clock: int = NEVER
    rows: dict[str, list[_Row]] = field(default_factory=lambda: {"L": [], "R": []})

    def step(self, record: Record) -> list[Result]:
        if self.join.self_join:
            return self.arrive("L", record) + self.arrive("R", record)
        return self.arrive(record.table, record)

    def end(self) -> list[Result]:
        return self.close(lambda row: True)

    def arrive(self, side: str, record: Record) -> list[Result]:
        self.clock = max(self.clock, record.time)
        emitted = self.close(lambda row: self.last_moment(row) < self.clock)
        if record.deleted:
            return emitted
        row = _Row(side, record)
        preserved = preserves(self.join.how, side)
        if record.key is None:
            return emitted + [row.unmatched] * preserved
        matches = self.matches(row)
        self.rows[side].append(row)
        if not matches and preserved:
            if self.join.unmatched == "on_close" and self.waits(row):
                row.pending = True
            else:
                row.alone = True
                emitted.append(row.unmatched)
        for other in matches:
            if other.alone and self.join.unmatched == "retract":
                emitted.append(other.unmatched._replace(withdrawn=True))
            other.pending = other.alone = False
            values = tuple(r.record.value for r in sorted((row, other), key=lambda r: r.side))
            emitted.append(Result(record.key, values, max(row.time, other.time)))  # type: ignore[arg-type]
        return emitted

    def close(self, ended: Callable[[_Row], bool]) -> list[Result]:
        """The unmatched results of these pending rows, the right one first at equal times."""
        due = [row for side in "RL" for row in self.rows[side] if row.pending and ended(row)]
        for row in due:
            row.pending, row.alone = False, True
        due.sort(key=lambda row: (row.time, row.side == "L", byte_order(row.record.key)))
        return [row.unmatched for row in due]

    def last_moment(self, row: _Row) -> int:
        """Where the clock may stand at the latest when a match of this row is still in time."""
        return self.window_end(row) + self.join.grace

    def window_end(self, row: _Row) -> int:
        """The last time of the other side that matches this row."""
        return row.time + (self.join.after if row.side == "L" else self.join.before)

    def waits(self, row: _Row) -> bool:
        """Whether a match of a row that has just come may still come."""
        return self.clock <= self.last_moment(row)

    def matches(self, row: _Row) -> list[_Row]:
        """What a row that has just come joins, by time, then by arrival."""
        found = [
            other
            for other in self.rows[OTHER[row.side]]
            if other.record.key == row.record.key
            and self.joinable(other)
            and self.in_window(*((row, other) if row.side == "L" else (other, row)))
        ]
        return sorted(found, key=lambda other: other.time)

    def joinable(self, row: _Row) -> bool:
        """Whether a stored row is kept, and not closed."""
        closed = row.alone and self.join.unmatched == "on_close"
        return not closed and row.time + kept(self.join) >= self.clock

    def in_window(self, left: _Row, right: _Row) -> bool:
        return left.time - self.join.before <= right.time <= left.time + self.join.after


def kept(join: StreamStream) -> int:
    """How far the clock may be past a row that still joins."""
    return max(join.before, 0) + max(join.after, 0) + join.grace


@dataclass
class _KafkaStreams(_StreamStream):
    """Kafka Streams' rules: what is kept of a side goes by the largest time stored on that side,
    which what is kept is less than ``before + after + grace`` behind. A row does not wait that
    comes when its window, grace aside, has ended. What has been emitted alone joins all the same.
    """

    side_clock: dict[str, int] = field(default_factory=lambda: {"L": NEVER, "R": NEVER})

    def matches(self, row: _Row) -> list[_Row]:
        self.side_clock[row.side] = max(self.side_clock[row.side], row.time)
        return super().matches(row)

    def waits(self, row: _Row) -> bool:
        return self.clock <= self.window_end(row)

    def joinable(self, row: _Row) -> bool:
        retention = self.join.before + self.join.after + self.join.grace
        return row.time > self.side_clock[row.side] - retention


@dataclass
class _VersionedTables:
    """KIP-914: a record that is not its key's latest says nothing, or corrects the history."""

    join: VersionedTables
    tables: dict[str, Table]

    def step(self, record: Record) -> list[Result]:
        own, other = self.tables[record.table], self.tables[OTHER[record.table]]
        if record.key is None:
            return []
        if self.join.late == "history":
            return self.corrected(own, other, record)
        was = own.latest(record.key)
        if not own.put(record) or own.times(record.key)[-1] != record.time:
            return []
        now, beside = own.latest(record.key), other.latest(record.key)
        preserved = preserves(self.join.how, record.table)
        if beside is None and not (preserved and (was is not None or now is not None)):
            return []
        times = [record.time] if beside is None else [record.time, other.times(record.key)[-1]]
        return [Result(record.key, self.row(record.table, now, beside), max(times))]

    def end(self) -> list[Result]:
        return []

    def corrected(self, own: Table, other: Table, record: Record) -> list[Result]:
        """The changed points of the joined history.

        The record holds until its key's next version, so the row changes at its own time and at
        the other side's versions until then. Each point is emitted where there is a row, where
        there was one, and where it ends one. A row that now lasts up to the next version, where
        none did, is ended there if nothing follows.
        """
        key, start = record.key, record.time

        def row(time: int) -> tuple[Any, Any] | None:
            return self.row(record.table, own.as_of(key, time), other.as_of(key, time))

        later = [t for t in own.times(key) if t > start]
        end = later[0] if later else None
        points = [start]
        for time in other.times(key):
            lasts = time == other.times(key)[-1] and other.latest(key) is not None
            known = time >= other.horizon or lasts
            if known and time > start and (end is None or time < end):
                points.append(time)
        before = [row(time) for time in points]
        if not own.put(record):
            return []
        emitted = []
        there = False
        for time, was in zip(points, before, strict=True):
            now = row(time)
            if now is not None or was is not None or there:
                emitted.append(Result(key, now, time))
            there = now is not None
        if end is not None and there and before[-1] is None and row(end) is None:
            emitted.append(Result(key, None, end))
        return emitted

    def row(self, side: str, own: Cell, other: Cell) -> tuple[Any, Any] | None:
        """The joined values, or None where the join has no row."""
        left, right = (own, other) if side == "L" else (other, own)
        if left is not None and right is not None:
            return left[0], right[0]
        if left is not None and preserves(self.join.how, "L"):
            return left[0], None
        if right is not None and preserves(self.join.how, "R"):
            return None, right[0]
        return None


def _running(join: Join) -> _StreamTable | _StreamStream | _VersionedTables:
    if isinstance(join, StreamTable):
        return _StreamTable(join, Table(join.versioned))
    if isinstance(join, StreamStream):
        return _StreamStream(join)
    return _VersionedTables(
        join, {"L": Table(join.left_versioned), "R": Table(join.right_versioned)}
    )
