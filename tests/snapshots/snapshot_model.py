"""The slow, obvious join of snapshots, random histories of many worlds at once, and a reader that
has its tables in memory.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dovetail.base.columns import quoted
from dovetail.snapshots.delta_reader import VersionReader, Versions
from dovetail.snapshots.delta_rules import FEED_VERSION
from dovetail.snapshots.plan import SIGN, SnapshotAggregate, SnapshotNode, SnapshotSource

Row = dict[str, Any]
State = dict[tuple[Any, ...], Row]


def naive(node: SnapshotNode, tables: Mapping[str, Iterable[Row]]) -> list[Row]:
    """The node's rows, by comparing; ``tables``: by table id."""
    if isinstance(node, SnapshotSource):
        return list(tables[node.table_id])
    if isinstance(node, SnapshotAggregate):
        return _aggregated(node, naive(node.input, tables))
    left, right = naive(node.left, tables), naive(node.right, tables)
    matching: dict[tuple[Any, ...], list[int]] = {}
    for number, row in enumerate(right):
        matching.setdefault(tuple(row[b] for _, b in node.on), []).append(number)
    alone = set(range(len(right)))
    pairs: list[tuple[Row | None, Row | None]] = []
    for row in left:
        wanted = tuple(row[a] for a, _ in node.on)
        found = [] if None in wanted else matching.get(wanted, [])
        alone.difference_update(found)
        pairs += [(row, right[number]) for number in found]
        if not found and node.how in ("left", "outer"):
            pairs.append((row, None))
    if node.how in ("right", "outer"):
        pairs += [(None, right[number]) for number in sorted(alone)]
    return [_result(node, left or {}, right or {}, left is not None) for left, right in pairs]


def _aggregated(node: SnapshotAggregate, rows: Iterable[Row]) -> list[Row]:
    """Aggregates are known by their names: ``n`` counts rows, ``sum_<column>`` and ``max_<column>``
    take the values of a column that are not null.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in node.key.names)
        if None not in key:
            groups.setdefault(key, []).append(row)
    return [
        dict(zip(node.key.names, key, strict=True))
        | {name: _aggregate(name, group) for name in node.values.names}
        for key, group in groups.items()
    ]


def _aggregate(name: str, group: Sequence[Row]) -> Any:
    kind, _, column = name.partition("_")
    if kind == "n":
        return len(group)
    values = [row[column] for row in group if row[column] is not None]
    return {"sum": sum, "max": max}[kind](values) if values else None


def _result(node: Any, left: Row, right: Row, has_left: bool) -> Row:
    row: Row = {}
    for column in node.key_columns:
        if column.left is not None and (has_left or column.right is None):
            row[column.name] = left.get(column.left)
        else:
            row[column.name] = right.get(column.right)
    for one in node.select:
        assert one.ref is not None
        side, name = one.ref
        row[one.name] = (left if side == "left" else right).get(name)
    return row


def counted(rows: Iterable[Row], columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """Rows as a multiset."""
    return Counter(tuple(row[name] for name in columns) for row in rows)


@dataclass
class Histories:
    """Tables of many worlds, each with a history of its own: rows of one world join only each
    other, so one job tries as many cases as there are worlds.

    ``versions``: by table, all its states.
    """

    rng: random.Random
    worlds: int
    versions: dict[str, list[State]] = field(default_factory=dict)

    def table(self, name: str, references: Mapping[str, int]) -> None:
        """A table with key (world, <name>) and for each reference a column with values up to it,
        or null; and a value.
        """
        self.versions[name] = [{}]
        self._references = {**getattr(self, "_references", {}), name: dict(references)}
        self.step(name, density=0.6)

    def step(self, name: str, density: float = 0.25) -> None:
        """A new version: rows come, change and go."""
        state = dict(self.versions[name][-1])
        for world in range(self.worlds):
            for number in range(3):
                if self.rng.random() >= density:
                    continue
                key = (world, number)
                if key in state and self.rng.random() < 0.4:
                    del state[key]
                else:
                    state[key] = self._row(name, key)
        self.versions[name].append(state)

    def _row(self, name: str, key: tuple[int, int]) -> Row:
        row: Row = {"world": key[0], name: key[1]}
        for column, up_to in self._references[name].items():
            row[column] = self.rng.choice([None, *range(up_to)])
        row[f"{name}_value"] = self.rng.randrange(3)
        return row

    def schema(self, name: str) -> str:
        """The table's columns."""
        columns = ["world", name, *self._references[name], f"{name}_value"]
        return ", ".join(f"{column} int" for column in columns)

    def rows(self, name: str, version: int) -> list[Row]:
        """The rows of a version."""
        return list(self.versions[name][version].values())

    def feed(self, name: str, old: int, new: int) -> list[tuple[Row, int, int]]:
        """The changes after ``old`` up to ``new``: row, sign and version. What is as it was comes
        as an update now and then, as tables that are overwritten have it.
        """
        changes = []
        for version in range(old + 1, new + 1):
            then, now = self.versions[name][version - 1], self.versions[name][version]
            for key in then.keys() | now.keys():
                before, after = then.get(key), now.get(key)
                if before == after and self.rng.random() < 0.8:
                    continue
                changes += [(row, s, version) for row, s in ((before, -1), (after, 1)) if row]
        self.rng.shuffle(changes)
        return changes


@dataclass(frozen=True)
class Memory(VersionReader):
    """Reads histories instead of Delta tables, whose ids are their names."""

    histories: Histories | None = None

    def _rows_of_source(self, source: SnapshotSource, versions: Versions) -> DataFrame:
        assert self.histories is not None
        rows = self.histories.rows(source.table_id, versions[source.table_id])
        return self._frame(source, rows).select(*map(quoted, self.columns(source)))

    def change_feed(self, source: SnapshotSource, old: Versions, new: Versions) -> DataFrame:
        assert self.histories is not None
        name = source.table_id
        changes = self.histories.feed(name, old[name], new[name])
        rows = [{**row, SIGN: sign, FEED_VERSION: v} for row, sign, v in changes]
        frame = self._frame(source, rows, f", {SIGN} int, {FEED_VERSION} int")
        return frame.select(*map(quoted, self.columns(source)), SIGN, FEED_VERSION)

    def _frame(self, source: SnapshotSource, rows: list[Row], also: str = "") -> DataFrame:
        assert self.histories is not None
        names = StructType.fromDDL(self.histories.schema(source.table_id) + also).names
        table = pa.Table.from_pylist(rows, pa.schema([(name, pa.int32()) for name in names]))
        return self.session.createDataFrame(table).withColumn("world", F.col("world"))


def applied(then: Iterable[Row], changes: DataFrame, key: Sequence[str]) -> list[Row]:
    """Rows after the changes (``law.pair``), each of which must fit what is there."""
    rows = {tuple(row[name] for name in key): row for row in then}
    for change in changes.collect():
        at = tuple(change[name] for name in key)
        old, new = (image and image.asDict() for image in (change["_row_old"], change["_row_new"]))
        assert rows.pop(at, None) == old
        assert old != new
        if new is not None:
            rows[at] = new
    return list(rows.values())
