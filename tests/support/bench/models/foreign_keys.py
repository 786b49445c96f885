"""Foreign-key joins of tables by definition: slow, obvious, record by record.

A row of L names a row of R by its foreign key, or none where that is null. The input are
records of "L" and "R" in arrival order; a value of L is the pair (foreign key, value).
Inner and left are KIP-213's, as Kafka Streams runs them:

- A record without key says nothing, nor does a versioned table's that its history has left or that
  is older than its key's latest (KIP-914). Every other one does: a row as it was is a change too.
- A record of L gives at most one result, of its own key. Where the new row's right row is there,
  the joined row. Else left: the new row alone, or a tombstone of the old one if there was one. Else
  inner: a tombstone if the old row had a foreign key that the new one, if any, has not; whether
  there was anything to delete or not.
- A record of R gives one result to each left row that names it, ordered by the bytes of the left
  keys: the joined row or, if it is a tombstone, the left row alone (left) or a tombstone (inner);
  whether the right row was there before or not.
- Times: a result of R's record has that record's. One of L's has the larger of its record's and
  the right row's in it. A tombstone has its record's; but inner's, where the new row has no foreign
  key or is none, the larger of that and the old right row's, if that is there.

Right and outer, which Kafka Streams has not, are inner and left with one row more, keyed by (None,
right key), for each right row that no left row names:

- A record of R that no left row names gives this row, or its tombstone if it was there.
- The first left row to name a right row gives its tombstone; when the last one leaves, it is back.
  The old foreign key comes first, then the new one, then the left row's own result.
- Times: by R's record, that record's; by L's, the larger of that and the right row's.

A batch (``emit="batch"``) gives per key the last of its records' results, and none where the row is
what it was before the batch. A left row with another foreign key is another row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from bench.models.streams import Cell, Table
from bench.records import Batches, Record, Result, accumulate, byte_order, flat

Key: TypeAlias = "tuple[Any, Any]"
Cells: TypeAlias = "tuple[Cell, Cell]"

HOWS = ("inner", "left", "right", "outer")


@dataclass(frozen=True)
class ForeignKeyJoin:
    """Two tables; ``left_versioned``, ``right_versioned``: their history retention, in ms;
    ``spread``: over how many buckets the rows of a key lie, which changes no result.
    """

    how: str
    left_versioned: int | None = None
    right_versioned: int | None = None
    spread: int = 1


class Change(NamedTuple):
    """One change of the result.

    ``key``: (left key, None), or (None, right key) of a right row that no left row names.
    ``cells``: left ``((foreign key, value),)`` and right ``(value,)``, None for a side without row;
    None for a tombstone.
    """

    key: Key
    cells: Cells | None
    time: int


def seen(changes: Iterable[Change]) -> list[Result]:
    """What a changelog shows of these changes."""
    return [Result(key, _values(cells), time) for key, cells, time in changes]


def each_record(join: ForeignKeyJoin, records: Iterable[Record]) -> Iterator[list[Change]]:
    """What each record makes the join emit (``emit="change"``)."""
    running = Running(join)
    for record in records:
        yield running.step(record)


def each_batch(join: ForeignKeyJoin, batches: Batches) -> Iterator[list[Change]]:
    """What each batch makes the join emit (``emit="batch"``), ordered by key."""
    changes = each_record(join, flat(batches))
    rows: dict[Key, Cells] = {}
    for batch in batches:
        last = {change.key: change for _ in batch for change in next(changes)}
        changed = [change for change in last.values() if rows.get(change.key) != change.cells]
        accumulate(rows, changed)
        yield in_key_order(changed)


def in_key_order(changes: Iterable[Any]) -> list[Any]:
    """Changes or results of one batch in an order that depends on their keys alone."""
    return sorted(changes, key=lambda change: [(k is not None, byte_order(k)) for k in change.key])


class Running:
    """A join between records."""

    def __init__(self, join: ForeignKeyJoin) -> None:
        self.left = Table(join.left_versioned)
        self.right = Table(join.right_versioned)
        self.keeps_left = join.how in ("left", "outer")
        self.keeps_right = join.how in ("right", "outer")

    def step(self, record: Record) -> list[Change]:
        """What one record makes the join emit."""
        table = self.left if record.table == "L" else self.right
        if record.key is None:
            return []
        old = table.latest(record.key)
        if not table.put(record) or record.time < table.times(record.key)[-1]:
            return []
        return self.of_left(record, old) if table is self.left else self.of_right(record, old)

    def of_left(self, record: Record, old: Cell) -> list[Change]:
        """What happens to the old foreign key, to the new one, and to the left row itself."""
        new = self.left.latest(record.key)
        was, now = foreign_key(old), foreign_key(new)
        changes = []
        if was != now and self.keeps_right:
            for key, there in ((was, True), (now, False)):
                if self.row(key) is not None and not set(self.naming(key)) - {record.key}:
                    changes.append(self.alone(key, self.latest(record.time, key), there=there))
        right = self.row(now)
        if right is not None:
            changes.append(self.joined(record.key, new, right, self.latest(record.time, now)))
        elif self.keeps_left and (old is not None or new is not None):
            changes.append(self.joined(record.key, new, None, record.time))
        elif not self.keeps_left and was is not None and was != now:
            time = self.latest(record.time, was) if now is None else record.time
            changes.append(self.joined(record.key, None, None, time))
        return changes

    def of_right(self, record: Record, old: Cell) -> list[Change]:
        """A result for each left row that names the right row, or for the right row alone."""
        right = self.row(record.key)
        keys = self.naming(record.key)
        if not keys and self.keeps_right and (old is not None or right is not None):
            return [self.alone(record.key, record.time, there=right is not None)]
        return [self.joined(key, self.left.latest(key), right, record.time) for key in keys]

    def joined(self, key: Any, left: Cell, right: Cell, time: int) -> Change:
        """The result of a left key."""
        there = left is not None and (right is not None or self.keeps_left)
        return Change((key, None), (left, right) if there else None, time)

    def alone(self, key: Any, time: int, *, there: bool) -> Change:
        """The result of a right key that no left row names."""
        return Change((None, key), (None, self.row(key)) if there else None, time)

    def row(self, key: Any) -> Cell:
        """The right row of this foreign key."""
        return None if key is None else self.right.latest(key)

    def latest(self, time: int, key: Any) -> int:
        """The larger of a time and that of a right row, if there is one."""
        return time if self.row(key) is None else max(time, self.right.times(key)[-1])

    def naming(self, key: Any) -> list[Any]:
        """The left keys whose rows have this foreign key, in the order of their bytes."""
        keys = [k for k in self.left.versions if foreign_key(self.left.latest(k)) == key]
        return sorted(keys, key=byte_order)


def foreign_key(left: Cell) -> Any:
    """The foreign key of a left row, None where there is no row."""
    return None if left is None else left[0][0]


def _values(cells: Cells | None) -> tuple[Any, Any] | None:
    if cells is None:
        return None
    left, right = cells
    return left and left[0][1], right and right[0]
