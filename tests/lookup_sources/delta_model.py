"""A world for delta joins: two tables in a store, their changelogs as files, and the join that a
dictionary program says they have.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail.plan.nodes import Node

Row = dict[str, Any]
TYPES = {"long": "integer", "string": "text"}


@dataclass
class TableOf:
    """A table of the world: its columns with their Spark types, its key, its indexes."""

    name: str
    columns: Mapping[str, str]
    key: Sequence[str]
    indexes: Sequence[Sequence[str]] = ()
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    files: int = 0


class World:
    """Tables in a SQLite file; what is written there also comes as JSON files, in order."""

    def __init__(self, directory: Path, *tables: TableOf) -> None:
        self.directory = directory
        self.path = directory / "store.db"
        self.tables = {table.name: table for table in tables}
        self.clock = 0
        self._pending: dict[str, list[Row]] = {table.name: [] for table in tables}
        with self.store() as store:
            store.execute("PRAGMA journal_mode = WAL")
            for table in tables:
                columns = ", ".join(f'"{n}" {TYPES[t]}' for n, t in table.columns.items())
                key = ", ".join(table.key)
                store.execute(f'CREATE TABLE "{table.name}" ({columns}, PRIMARY KEY ({key}))')
                for index in table.indexes:
                    store.execute(
                        f"CREATE INDEX {'_'.join(index)}_of_{table.name} ON "
                        f'"{table.name}" ({", ".join(index)})'
                    )
                (directory / table.name).mkdir()

    @contextmanager
    def store(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path)) as store:
            yield store
            store.commit()

    def write(self, name: str, *rows: Row, deleted: bool = False) -> None:
        """Change rows in the store; ``publish`` brings the changes into the changelog."""
        table = self.tables[name]
        with self.store() as store:
            for row in rows:
                key = tuple(row[column] for column in table.key)
                equal = " AND ".join(f'"{column}" = ?' for column in table.key)
                store.execute(f'DELETE FROM "{name}" WHERE {equal}', key)
                self.clock += 1
                if deleted:
                    table.rows.pop(key, None)
                    row = dict(zip(table.key, key, strict=True))
                else:
                    row = dict.fromkeys(table.columns) | row
                    table.rows[key] = row
                    marks = ", ".join("?" * len(row))
                    store.execute(
                        f'INSERT INTO "{name}" ({", ".join(row)}) VALUES ({marks})',
                        list(row.values()),
                    )
                at = f"2024-01-01T00:{self.clock // 60:02d}:{self.clock % 60:02d}Z"
                self._pending[name].append(row | {"_at": at, "_gone": deleted, "_n": self.clock})

    def publish(self, name: str, count: int | None = None) -> None:
        """Bring changes, all or the first ``count``, into the changelog."""
        pending, table = self._pending[name], self.tables[name]
        published, self._pending[name] = pending[:count], [] if count is None else pending[count:]
        if published:
            table.files += 1
            path = self.directory / name / f"{table.files:05d}.json"
            partial = self.directory / f"{name}.partial"
            partial.write_text("".join(json.dumps(row) + "\n" for row in published))
            partial.rename(path)

    def put(self, name: str, *rows: Row, deleted: bool = False) -> None:
        """Change rows in the store and in the changelog."""
        self.write(name, *rows, deleted=deleted)
        self.publish(name)

    def frame(self, spark: SparkSession, name: str, *, streaming: bool = True) -> DataFrame:
        table = self.tables[name]
        columns = ", ".join(f"{n} {t}" for n, t in table.columns.items())
        reader = spark.readStream if streaming else spark.read
        frame = reader.schema(f"{columns}, _at timestamp, _gone boolean, _n long").json(
            str(self.directory / name)
        )
        return frame.select(
            *table.columns,
            F.col("_at").alias("at"),
            F.col("_gone").alias("gone"),
            F.col("_n").alias("n_"),
        )

    def lookup(self, name: str, **options: Any) -> Any:
        table = self.tables[name]
        indexes = [dt.lookups.index(*index) for index in table.indexes]
        return dt.lookups.sqlite(
            self.path, name, **({"key": table.key, "indexes": indexes} | options)
        )

    def table(
        self,
        spark: SparkSession,
        name: str,
        *,
        changes: Any = None,
        streaming: bool = True,
        lookup: Any = None,
    ) -> dt.Table:
        table = dt.Table.from_changelog(
            self.frame(spark, name, streaming=streaming),
            key=self.tables[name].key,
            timestamp="at",
            deleted="gone",
            sequence="n_",
            shared_log=True,
            name=name,
        )
        return table.with_lookup(lookup or self.lookup(name), changes=changes)


class Results:
    """A sink that keeps the last change of each key, as a result table; and counts."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.changes = 0
        self.batches: list[list[Row]] = []

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> Any:
        def take(batch: DataFrame, _: int) -> None:
            rows = [row.asDict() for row in batch.collect()]
            rows.sort(key=lambda row: row["_position"])
            self.batches.append(rows)
            for row in rows:
                self.changes += 1
                key = tuple(row[name] for name in node.key.names)
                if row["_change"] == "delete":
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = {n: v for n, v in row.items() if not n.startswith("_")}

        return changes.writeStream.foreachBatch(take)

    @property
    def table(self) -> list[Row]:
        return sorted(self.rows.values(), key=shown)


def shown(row: Row) -> str:
    return json.dumps(row, sort_keys=True, default=str)


def run(table: dt.Table, sink: Results, checkpoint: Path, **options: Any) -> Any:
    """All there is, in a query that ends."""
    query = table.write_stream(
        sink, checkpoint=str(checkpoint), trigger={"availableNow": True}, buckets=2, **options
    )
    query.awaitTermination()
    return query


def joined(
    left: TableOf,
    right: TableOf,
    on: Sequence[tuple[str, str]],
    how: str,
) -> list[Row]:
    """The join of two tables as they are, row by row: all columns of the left, then of the right
    under ``right_<name>`` for its key and their own names for its values.
    """
    rows: list[Row] = []
    matched = set()
    for a, b in product(left.rows.values(), right.rows.values()):
        values = [(a[x], b[y]) for x, y in on]
        if all(x is not None and x == y for x, y in values):
            rows.append(_row(left, right, a, b))
            matched |= {("left", shown(a)), ("right", shown(b))}
    if how in ("left", "outer"):
        rows += [
            _row(left, right, a, None)
            for a in left.rows.values()
            if ("left", shown(a)) not in matched
        ]
    if how in ("right", "outer"):
        rows += [
            _row(left, right, None, b)
            for b in right.rows.values()
            if ("right", shown(b)) not in matched
        ]
    return sorted(rows, key=shown)


def _row(left: TableOf, right: TableOf, a: Row | None, b: Row | None) -> Row:
    row = {name: (a or {}).get(name) for name in left.columns}
    for name in right.columns:
        row[f"right_{name}" if name in right.key else name] = (b or {}).get(name)
    return row


def random_history(world: World, rng: random.Random, kinds: Mapping[str, str], keys: int) -> None:
    """Some changes of the tables, of the kinds that each may have, some of them late."""
    for _ in range(rng.randrange(1, 8)):
        name = rng.choice(sorted(world.tables))
        table = world.tables[name]
        row = {column: rng.choice(VALUES[type_]) for column, type_ in table.columns.items()}
        for column in table.key:
            known = VALUES[table.columns[column]]
            row[column] = rng.choice(known[: keys + 1])
            if row[column] is None:
                row[column] = known[0]
        key = tuple(row[column] for column in table.key)
        kind = kinds[name]
        if kind == "insert" and key in table.rows:
            continue
        world.write(name, row, deleted=kind == "all" and rng.random() < 0.35)
    for name in world.tables:
        if rng.random() < 0.7:
            world.publish(name, rng.choice([1, 2, None, None]))


VALUES: dict[str, list[Any]] = {"long": [1, 2, 3, 4, 5, None], "string": ["a", "b", "c", None]}
