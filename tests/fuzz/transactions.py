"""Tables whose database checks its keys as late as a statement or a transaction ends.

Rows are inserted, changed, deleted and moved to keys that other rows are about to leave. Each event
names its row by the key alone. A connector that restarts sends again what it has sent last, and
numbers a transaction's events from 1.

Law: behind each transaction the table has the database's rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from bench.forced import HASHES, forced

import dovetail as dt
from dovetail import testing
from dovetail.plan.transforms.transact import without_replaced_rows
from dovetail.testing import Driver
from fuzz import changelogs
from fuzz.case import Case

FIELDS = {"op": pa.string(), "id": pa.string(), "total_order": pa.int64(), "place": pa.int64()}
SCHEMA = {"k": pa.int64(), "v": pa.string(), "_transaction": pa.struct([*FIELDS.items()])}
TOMBSTONE = ""


class Event(NamedTuple):
    """A record; ``row`` is the database's own name of the row, ``again``: it was sent before."""

    op: str
    key: int
    value: str
    row: int
    transaction: str
    order: int
    place: int
    again: bool = False

    @property
    def deletes(self) -> bool:
        """Whether the record is a delete or the tombstone behind one."""
        return self.op in ("d", TOMBSTONE)


class Base:
    """A database with rows by names of their own, and its connector, which may fail."""

    def __init__(self, random_: random.Random, *, tombstones: bool, fails: float) -> None:
        self.random, self.tombstones, self.fails = random_, tombstones, fails
        self.rows: dict[int, tuple[int, str]] = {}
        self.log: list[Event] = []
        self.sent: list[Event] = []
        self.named = self.place = self.order = self.transactions = self.begun = 0
        self.resumed, self.passed = 0, ("", 0)

    def transaction(self) -> None:
        """Run a transaction of some statements."""
        self.transactions, self.order, self.begun = self.transactions + 1, 0, len(self.log)
        moves = [self.move] * 3
        for _ in range(self.random.randint(1, 3)):
            self.random.choice([self.insert, self.insert, self.update, self.delete, *moves])()

    def insert(self) -> None:
        """Insert a row under a free key."""
        free = sorted(set(range(6)) - {key for key, _ in self.rows.values()})
        if free:
            self.named += 1
            self.rows[self.named] = self.random.choice(free), f"v{self.named}"
            self.send("c", self.named)

    def update(self) -> None:
        """Change the value of some rows."""
        for row in self.some():
            self.rows[row] = self.rows[row][0], f"u{self.place}"
            self.send("u", row)

    def delete(self) -> None:
        """Delete some rows."""
        for row in self.some():
            self.send("d", row)
            del self.rows[row]

    def move(self) -> None:
        """Give some rows each other's keys, or others, in the order in which they happen to lie."""
        rows = self.some()
        taken = {key for row, (key, _) in self.rows.items() if row not in rows}
        free = sorted(set(range(8)) - taken)
        self.random.shuffle(free)
        for row, key in zip(rows, free, strict=False):
            if key != self.rows[row][0]:
                self.send("d", row)
                self.rows[row] = key, self.rows[row][1]
                self.send("c", row, moved=True)

    def some(self) -> list[int]:
        """Some rows, in any order."""
        return self.random.sample([*self.rows], self.random.randint(0, len(self.rows)))

    def send(self, op: str, row: int, *, moved: bool = False) -> None:
        """Write an event of a row to the log. The two of a row that moves share their place."""
        self.order, self.place = self.order + 1, self.place + (not moved)
        key, value = self.rows[row]
        event = Event(op, key, value, row, str(self.transactions), self.order, self.place)
        self.log.append(event)
        self.emit(event)
        if self.random.random() < self.fails:
            self.restart()

    def emit(self, event: Event) -> None:
        """Send an event of the log."""
        transaction, passed = self.passed
        if event.transaction == transaction:
            event = event._replace(order=event.order - passed)
        self.sent.append(event)
        if event.op == "d" and self.tombstones:
            self.sent.append(event._replace(op=TOMBSTONE))

    def restart(self) -> None:
        """Send again what follows a place: one in this transaction, or where another one begins.

        It is no earlier than that of the last time. Of that transaction events count from there.
        """
        begins = [n for n, event in enumerate(self.log) if event.order == 1][-3:]
        places = [n for n in (*begins, *range(self.begun, len(self.log))) if n >= self.resumed]
        if not places:
            return
        self.resumed = self.random.choice(places)
        first = self.log[self.resumed]
        self.passed = first.transaction, first.order - 1
        for event in self.log[self.resumed :]:
            self.emit(event._replace(again=True))


def drawn(random_: random.Random, name: str) -> Case:
    """A random case."""
    fails = random_.choice([0.0, 0.1, 0.3])
    base = Base(random_, tombstones=random_.random() < 0.7, fails=fails)
    for _ in range(random_.choice([3, 8, 20])):
        base.transaction()
    batches = changelogs.batches(random_, len(base.sent))
    settings = changelogs.settings(random_, len(batches), len(base.sent))
    records = [[*event] for event in base.sent]
    return Case(name, {}, records, batches, emit=random_.choice(["change", "batch"]), **settings)


def topology_of(case: Case) -> tuple[Any, dict[str, Any]]:
    """The topology in process, and its inputs by name."""
    read = testing.table("t", key="k", schema=SCHEMA)
    return dt.Table(without_replaced_rows(read.plan, "_transaction")), {"t": read}


def difference(case: Case) -> str | None:
    """Say behind which micro-batch the table is not the database's; None if it is behind all."""
    parts = [[Event(*record) for record in part] for part in case.cut(case.records)]
    truth = dict(_truth([event for part in parts for event in part]))
    with forced(case.hash, case.limits):
        topology, inputs = topology_of(case)
        options: dict[str, Any] = {"emit": case.emit, "key_hash": HASHES[case.hash]}
        driver = Driver(topology, buckets=case.buckets, **options)
        table: dict[int, str] = {}
        count = 0
        for number, part in enumerate(parts):
            if number in case.restarts:
                driver = Driver.restore(topology, driver.snapshot(), **options)
            with driver.batch() as changes:
                for event in part:
                    driver.pipe(inputs["t"], _row(event), timestamp=1, deleted=event.deletes)
            for change in changes:
                if change.values is None:
                    table.pop(change.key["k"], None)
                else:
                    table[change.key["k"]] = change.values["v"]
            count += len(part)
            if count in truth and table != truth[count]:
                return f"after {count} records {table}, not {truth[count]}"
    return None


def _row(event: Event) -> dict[str, Any]:
    of = (event.op, event.transaction, event.order, event.place)
    own = None if event.op == TOMBSTONE else dict(zip(FIELDS, of, strict=True))
    return {"k": event.key, "v": None if event.deletes else event.value, "_transaction": own}


def _truth(events: Sequence[Event]) -> Iterator[tuple[int, dict[int, str]]]:
    """The database's rows by their keys, behind each number of records that ends a transaction.

    Nothing, where the events are of no database: a row that goes has been there under its key.
    """
    rows: dict[int, tuple[int, str]] = {}
    for number, event in enumerate(events, start=1):
        if event.op == "d" and not event.again:
            if rows.pop(event.row, (None, ""))[0] != event.key:
                return
        elif not (event.deletes or event.again):
            rows[event.row] = event.key, event.value
        following = events[number] if number < len(events) else None
        if following is None or not (following.again or following.transaction == event.transaction):
            table = dict(rows.values())
            if len(table) < len(rows):
                return
            yield number, table
