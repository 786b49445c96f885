"""What streams and tables gathered by group and window become, record by record: the first half of
``windows``, which has the laws.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from bench.models.streams import NEVER
from bench.records import Record

Key: TypeAlias = "tuple[Any, ...]"
Cells: TypeAlias = "tuple[Any, ...]"
Bounds: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True)
class Windows:
    """``size``: of a session the gap. ``retention``: size and grace if it is not given."""

    kind: str
    size: int
    advance: int = 0
    grace: int = 0
    retention: int | None = None

    @property
    def kept(self) -> int:
        return self.size + self.grace if self.retention is None else self.retention

    def found(self, start: int, end: int, clock: int) -> bool:
        """Whether a window is still looked up; a session may have begun long ago."""
        return (end if self.kind == "session" else start) >= clock - self.kept

    def open(self, end: int, clock: int) -> bool:
        """Whether a window with this end takes records at this stream time."""
        if self.kind in ("tumbling", "hopping"):
            return clock < end + self.grace
        return clock <= end + self.grace + (self.size if self.kind == "session" else 0)


class Change(NamedTuple):
    """One change: ``key``: key or group, then of a windowed table start and end.
    ``cells``: per input the row, None where it has none; None for a tombstone.
    """

    key: Key
    cells: Cells | None
    time: int


@dataclass
class Group:
    """The values of a group, and its time."""

    time: int = NEVER
    values: list[Any] = field(default_factory=list)

    def add(self, record: Record) -> None:
        self.values.append(record.value)
        self.time = max(self.time, record.time)

    def change(self, key: Key) -> Change:
        return Change(key, ([*self.values],), self.time)


class Plain:
    """A table or a stream as it is."""

    def take(self, record: Record) -> list[Change]:
        cell = record.value if isinstance(record.value, tuple) else (record.value,)
        return [Change((record.key,), None if record.deleted else (cell,), record.time)]


class GroupedStream:
    """A stream by group."""

    def __init__(self) -> None:
        self.groups: dict[Any, Group] = {}

    def take(self, record: Record) -> list[Change]:
        group, value = (None, None) if record.deleted else record.value
        if group is None:
            return []
        self.groups.setdefault(group, Group()).add(record._replace(value=value))
        return [self.groups[group].change((group,))]


class GroupedTable:
    """A table by group."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}
        self.groups: dict[Any, Group] = {}

    def take(self, record: Record) -> list[Change]:
        if record.key is None:
            return []
        old, old_value = self.rows.pop(record.key, (None, None))
        new, new_value = (None, None) if record.deleted else record.value
        if not record.deleted:
            self.rows[record.key] = record.value
        if old is not None:
            self.groups[old].values.remove(old_value)
            self.groups[old].time = max(self.groups[old].time, record.time)
        if new is not None:
            self.groups.setdefault(new, Group()).add(record._replace(value=new_value))
        groups = [group for group in dict.fromkeys((old, new)) if group is not None]
        return [self.emitted(group) for group in groups]

    def emitted(self, name: Any) -> Change:
        if self.groups[name].values:
            return self.groups[name].change((name,))
        return Change((name,), None, self.groups.pop(name).time)


class WindowedTable:
    """A stream by key and window: ``rows[key][start, end]``."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.clock = NEVER
        self.rows: dict[Any, dict[Bounds, Group]] = {}
        self.records: dict[Any, list[Record]] = {}

    def take(self, record: Record) -> list[Change]:
        if record.key is None or record.deleted:
            return []
        self.clock = max(self.clock, record.time)
        return self.entered(self.rows.setdefault(record.key, {}), record)

    def entered(self, rows: dict[Bounds, Group], record: Record) -> list[Change]:
        raise NotImplementedError


class FixedTable(WindowedTable):
    def entered(self, rows: dict[Bounds, Group], record: Record) -> list[Change]:
        size, advance = self.windows.size, self.windows.advance
        starts = range(record.time - size + 1, record.time + 1)
        found = []
        for start in (s for s in starts if s % advance == 0 and (s >= 0 or record.time < 0)):
            if self.windows.open(start + size, self.clock):
                group = rows.setdefault((start, start + size), Group())
                group.add(record)
                found.append(group.change((record.key, start, start + size)))
        return found


class SlidingTable(WindowedTable):
    def entered(self, rows: dict[Bounds, Group], record: Record) -> list[Change]:
        size, time = self.windows.size, record.time
        if not self.windows.open(time + size, self.clock):
            return []
        held = self.records.setdefault(record.key, [])
        held.append(record)
        touched = {bounds for bounds in rows if bounds[0] <= time <= bounds[1]}
        touched.add((time - size, time))
        for other in held:
            bounds = (other.time + 1, other.time + 1 + size)
            comes = bounds[0] <= time <= bounds[1] or other.time == time
            if comes and any(bounds[0] <= r.time <= bounds[1] for r in held):
                touched.add(bounds)
        found = []
        for start, end in sorted(touched):
            fresh = (start, end) not in rows
            if not self.windows.open(end, self.clock) or not (fresh or start <= time <= end):
                continue
            group = rows.setdefault((start, end), Group())
            for one in [r for r in held if start <= r.time <= end] if fresh else [record]:
                group.add(one)
            found.append(group.change((record.key, start, end)))
        return found


class SessionTable(WindowedTable):
    def entered(self, rows: dict[Bounds, Group], record: Record) -> list[Change]:
        time, gap = record.time, self.windows.size
        near = [
            (start, end)
            for start, end in sorted(rows)
            if start - gap <= time <= end + gap and self.windows.open(end, self.clock)
        ]
        bounds = min([time, *(s for s, _ in near)]), max([time, *(e for _, e in near)])
        if not self.windows.open(bounds[1], self.clock):
            return []
        merged = Group(bounds[1])
        for session in near:
            merged.values += rows[session].values
        merged.add(record)
        merged.values.sort(key=lambda v: (v is None, v))
        gone = [session for session in near if session != bounds]
        for session in near:
            del rows[session]
        rows[bounds] = merged
        deleted = [Change((record.key, *session), None, session[1]) for session in gone]
        return [*deleted, merged.change((record.key, *bounds))]
