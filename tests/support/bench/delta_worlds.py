"""Delta joins without Spark: the code of the workers on stores in memory, with tasks that come and
go, changelogs that lag, and stores that change while they are asked.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

import dovetail as dt
from dovetail import testing
from dovetail.arrays.hashing import stable_hash
from dovetail.base.columns import CHANGE, DELETED, EVENT_TIME, HASH, TIMESTAMP
from dovetail.lookup_sources.pool import open_reader
from dovetail.lookup_sources.source import Found, Index
from dovetail.operators.job import Batch
from dovetail.operators.joins.delta_join import join_batch, last_rows
from dovetail.operators.joins.lookup_cache import SideCache
from dovetail.physical import planner
from dovetail.physical.output import output_of
from dovetail.physical.specs import delta_join
from dovetail.physical.stage import Port, Stage
from dovetail.plan.joins.delta_join import DeltaJoin
from dovetail.plan.nodes import Derived, Entry

Row = dict[str, Any]
HOWS = ("inner", "left", "right", "outer")
TYPES = {"long": pa.int64(), "double": pa.float64(), "string": pa.string()}


@dataclass(frozen=True)
class MemoryLookup:
    """A table of a ``World`` as a lookup source."""

    world: World = field(repr=False)
    table: str
    key: tuple[str, ...]
    indexes: tuple[Index, ...] = ()
    filters: tuple[Any, ...] = ()

    @property
    def title(self) -> str:
        return f"memory {self.table}"

    def open(self, schema: pa.Schema) -> MemoryReader:
        return MemoryReader(self, schema)


class MemoryReader:
    """Asks the world, which may change first."""

    def __init__(self, source: MemoryLookup, schema: pa.Schema) -> None:
        self.source, self.schema = source, schema

    def rows(self, by: Sequence[str], keys: pa.Table) -> Found:
        world = self.source.world
        world.asked(self.source.table)
        wanted = {tuple(row.values()): number for number, row in enumerate(keys.to_pylist())}
        assert len(wanted) == len(keys), "keys come twice"
        assert not any(None in key for key in wanted), "a null is asked for"
        world.looked_up += len(wanted)
        found = [
            ({name: row[name] for name in self.schema.names}, wanted[key])
            for row in world.tables[self.source.table].rows.values()
            if (key := tuple(row[column] for column in by)) in wanted
        ]
        return Found(
            pa.Table.from_pylist([row for row, _ in found], self.schema),
            np.array([number for _, number in found], np.int64),
            np.zeros(len(keys), np.bool_),
        )

    def close(self) -> None:
        pass


@dataclass
class TableOf:
    """A table of the world."""

    name: str
    columns: Mapping[str, str]
    key: Sequence[str]
    changes: str = "all"
    indexes: Sequence[Sequence[str]] = ()
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    pending: list[tuple[Row, bool, int]] = field(default_factory=list)


class World:
    """Stores that are written at once, and changelogs that have it later, in order."""

    def __init__(self, *tables: TableOf) -> None:
        self.tables = {table.name: table for table in tables}
        self.clock = 0
        self.looked_up = 0
        self.asked: Callable[[str], None] = lambda _: None

    def write(self, name: str, row: Row, *, deleted: bool = False) -> None:
        table = self.tables[name]
        key = tuple(row[column] for column in table.key)
        self.clock += 1
        if deleted:
            table.rows.pop(key, None)
            row = dict(zip(table.key, key, strict=True))
        else:
            table.rows[key] = row
        table.pending.append((row, deleted, self.clock))

    def publish(self, name: str, count: int | None = None) -> list[tuple[Row, bool, int]]:
        table = self.tables[name]
        count = len(table.pending) if count is None else count
        published, table.pending = table.pending[:count], table.pending[count:]
        return published

    def table(self, name: str) -> dt.Table:
        table = self.tables[name]
        schema = {column: TYPES[type_] for column, type_ in table.columns.items()}
        indexes = tuple(dt.lookups.index(*columns) for columns in table.indexes)
        source = MemoryLookup(self, name, tuple(table.key), indexes)
        made = testing.table(name, key=list(table.key), schema=schema)
        return made.with_lookup(source, changes=table.changes)  # type: ignore[arg-type]

    def random_write(self, rng: random.Random) -> None:
        """A change that its table may have; few keys, so that they meet."""
        table = self.tables[rng.choice(sorted(self.tables))]
        row = {column: rng.choice(VALUES[type_]) for column, type_ in table.columns.items()}
        for column in table.key:
            row[column] = rng.choice([v for v in VALUES[table.columns[column]] if v is not None])
        key = tuple(row[column] for column in table.key)
        if table.changes == "insert" and key in table.rows:
            return
        self.write(table.name, row, deleted=table.changes == "all" and rng.random() < 0.4)


VALUES: dict[str, list[Any]] = {"long": [1, 2, 3, None], "string": ["a", "b", None]}


class Tasks:
    """Runs a delta join batch by batch, in some tasks, and keeps its result table.

    ``amnesia``: how likely a task runs where the batch before did not.
    """

    def __init__(
        self, table: dt.Table, rng: random.Random, *, tasks: int = 2, amnesia: float = 0.3
    ) -> None:
        plan = planner.plan_of([table.plan], buckets=1, emit="change")
        self.stage = plan.results[0].stage
        self.rng, self.tasks, self.amnesia = rng, tasks, amnesia
        self.operator = self.stage.fragment.last
        law = self.operator.law
        assert isinstance(law, delta_join.DeltaJoinLaw)
        self.law = law
        self.ports = [read_by_key(port) for port in self.stage.ports]
        self.upstream = [
            Tasks(dt.Table(entry.node), rng, tasks=tasks, amnesia=amnesia)
            if isinstance(entry := port.input.source, Derived)
            else None
            for port in self.ports
        ]
        self.caches: list[list[SideCache]] = [self.cold() for _ in range(tasks)]
        self.counts = [[0, 0], [0, 0]]
        self.result: dict[str, Row] = {}
        self.batch = 0

    def cold(self) -> list[SideCache]:
        return [
            SideCache.empty(pa.schema(source.shape.user_fields), source.shape.keys)
            for source in self.operator.sources
        ]

    def run(self, published: Mapping[str, Sequence[tuple[Row, bool, int]]]) -> list[Row]:
        """One micro-batch: the changes, in an order of no meaning."""
        inputs = []
        for number, (port, upstream) in enumerate(zip(self.ports, self.upstream, strict=True)):
            entry = port.input.source
            rows = (
                published.get(entry.name, [])
                if upstream is None
                else [as_change(entry, row) for row in upstream.run(published)]
            )
            batch = wire(port, rows)
            if number == 0 and self.law.moving:
                batch = in_order(last_rows(port.source, self.law.sides[0].key, batch))
            inputs.append(batch)
        changes: list[Row] = []
        output = output_of(self.stage)
        for task in range(self.tasks):
            own = [part(batch, self.operator.keys, task, self.tasks) for batch in inputs]
            if self.rng.random() < self.amnesia:
                self.caches[task] = self.cold()
            done = join_batch(self.operator, own, self.caches[task], self.ask, self.batch)
            keys = set()
            for table in done.changes:
                rows = output.rows_of_changes(table).to_pylist()
                for row in rows:
                    key = shown({name: row[name] for name in self.stage.node.key.names})
                    assert key not in keys, f"two changes of {key} in one batch of a task"
                    keys.add(key)
                changes += rows
            self.caches[task] = done.caches
            for side, (hits, misses, _) in enumerate(done.counts):
                self.counts[side][0] += hits
                self.counts[side][1] += misses
        self.rng.shuffle(changes)
        self.batch += 1
        for row in changes:
            key = shown({name: row[name] for name in self.stage.node.key.names})
            if row[CHANGE] == "delete":
                self.result.pop(key, None)
            else:
                self.result[key] = {n: v for n, v in row.items() if not n.startswith("_")}
        return changes

    def ask(self, side: int, by: Sequence[str], keys: pa.Table) -> pa.Table:
        source = self.operator.sources[side]
        schema = pa.schema(source.shape.user_fields)
        return open_reader(self.law.sides[side].lookup, schema).rows(by, keys)

    @property
    def table(self) -> list[Row]:
        return sorted(self.result.values(), key=shown)


def as_change(entry: Entry, row: Row) -> tuple[Row, bool, int]:
    """A change of an inner join as its outer one reads it."""
    names = [*entry.key.names, *entry.values.names]
    time_us = row[TIMESTAMP].timestamp() * 1e6
    return {name: row[name] for name in names}, row[CHANGE] == "delete", round(time_us)


def read_by_key(port: Port) -> Port:
    """The port at which a side is read, where its changes meet by primary key before, too."""
    return (
        read_by_key(port.origin.ports[0])
        if isinstance(port.origin, Stage) and port.hash_column
        else port
    )


def wire(port: Port, rows: Iterable[tuple[Row, bool, int]]) -> Batch:
    """Changes in the columns in which they travel."""
    schema = port.source.shape.schema
    made = [
        {HASH: 0, EVENT_TIME: time, DELETED: gone}
        | {name: row.get(name) for name in schema.names[3:]}
        for row, gone, time in rows
    ]
    return in_order(pa.Table.from_pylist(made, schema))


def in_order(rows: pa.Table) -> Batch:
    """Rows in the order in which they come."""
    place = np.arange(len(rows))
    return Batch(rows, place, place)


def part(batch: Batch, keys: int, task: int, tasks: int) -> Batch:
    """The rows whose join key is a task's."""
    columns = [batch.rows.column(3 + number).combine_chunks() for number in range(keys)]
    own = np.mod(stable_hash(columns), tasks) == task
    return Batch.in_sequence(batch.rows.filter(pa.array(own)), batch.stream_us[own])


def plan_of(table: dt.Table) -> DeltaJoin:
    assert isinstance(table.plan, DeltaJoin)
    return table.plan


def shown(row: Row) -> str:
    return json.dumps(row, sort_keys=True, default=str)


def joined(left: list[Row], right: list[Row], on: Mapping[str, str], how: str) -> list[Row]:
    """The join of two lists of rows with names of their own, row by row."""
    rows, alone_left = [], []
    met: set[int] = set()
    for a in left:
        own = [
            (n, b)
            for n, b in enumerate(right)
            if all(a[x] is not None and a[x] == b[y] for x, y in on.items())
        ]
        met |= {n for n, _ in own}
        rows += [a | b for _, b in own]
        if not own:
            alone_left.append(dict.fromkeys(right[0] if right else []) | a)
    if how in ("left", "outer"):
        rows += alone_left
    if how in ("right", "outer"):
        rows += [b for n, b in enumerate(right) if n not in met]
    return rows


@dataclass(frozen=True)
class Shape:
    """Two tables, what is joined, and how the columns of the result are named."""

    left: Callable[[], TableOf]
    right: Callable[[], TableOf]
    on: Mapping[str, str]
    form: str
    hows: tuple[str, ...] = HOWS


def left(key: list[str], changes: str) -> Callable[[], TableOf]:
    columns = {"i": "long", "x": "long", "a": "string"}
    return lambda: TableOf("left", columns, key, changes, [["x"], ["x", "a"]])


def right(key: list[str], changes: str) -> Callable[[], TableOf]:
    columns = {"j": "long", "y": "long", "b": "string"}
    return lambda: TableOf("right", columns, key, changes, [["y"], ["y", "b"]])


SHAPES = {
    "many to many, rows that stay": Shape(
        left(["i"], "insert"), right(["j"], "insert"), {"x": "y"}, "pair"
    ),
    "many to many by two columns": Shape(
        left(["i"], "insert"), right(["j"], "insert"), {"x": "y", "a": "b"}, "pair"
    ),
    "the join key in both keys, the left deletes": Shape(
        left(["x", "i"], "all"), right(["y", "j"], "upsert"), {"x": "y"}, "pair"
    ),
    "the join key in both keys, the right deletes": Shape(
        left(["x", "i"], "upsert"), right(["j", "y"], "all"), {"x": "y"}, "pair"
    ),
    "rows that stay with rows that come and go": Shape(
        left(["i"], "insert"), right(["y", "j"], "all"), {"x": "y"}, "pair"
    ),
    "the left key with many right rows": Shape(
        left(["x"], "all"), right(["y", "j"], "upsert"), {"x": "y"}, "pair"
    ),
    "a foreign key that changes": Shape(
        left(["i"], "all"), right(["y"], "all"), {"x": "y"}, "left", ("inner", "left")
    ),
    "a foreign key that stays": Shape(
        left(["i"], "insert"), right(["y"], "all"), {"x": "y"}, "left"
    ),
    "a foreign key in the key": Shape(
        left(["i", "x"], "all"), right(["y"], "all"), {"x": "y"}, "left"
    ),
    "by key": Shape(left(["x"], "all"), right(["y"], "all"), {"x": "y"}, "key"),
    "by two columns of the key": Shape(
        left(["x", "i"], "all"), right(["y", "j"], "all"), {"x": "y", "i": "j"}, "key"
    ),
}


def play(world: World, tasks: Tasks, rng: random.Random, *, writes: int = 1) -> None:
    """Random writes, changelogs that lag, and up to ``writes`` before each answer of a store; then
    rest.
    """

    def write_sometimes(_: str) -> None:
        for _ in range(writes):
            if rng.random() < 0.5:
                world.random_write(rng)

    world.asked = write_sometimes
    for _ in range(rng.randrange(2, 9)):
        for _ in range(rng.randrange(6)):
            world.random_write(rng)
        tasks.run(
            {
                name: world.publish(name, rng.choice([0, 1, 2, None]))
                for name in rng.sample(sorted(world.tables), rng.randrange(len(world.tables) + 1))
            }
        )
    world.asked = lambda _: None
    tasks.run({name: world.publish(name) for name in world.tables})


def expected(world: World, shape: Shape, how: str) -> list[Row]:
    """The join, under the result's names."""
    tables = (world.tables["left"], world.tables["right"])
    rows = joined(*(list(t.rows.values()) for t in tables), shape.on, how)
    made = []
    for row in rows:
        own = {name: row.get(name) for name in (*tables[0].columns, *tables[1].columns)}
        keys = {name: own.pop(name) for name in tables[1].key}
        if shape.form == "key":
            own |= {x: own[x] if own[x] is not None else keys[y] for x, y in shape.on.items()}
        elif shape.form == "pair":
            own |= {f"right_{name}": value for name, value in keys.items()}
        elif how in ("right", "outer"):
            alone = all(own[name] is None for name in tables[0].key)
            own |= {f"right_{name}": keys[name] if alone else None for name in keys}
        made.append(own)
    return sorted(made, key=shown)
