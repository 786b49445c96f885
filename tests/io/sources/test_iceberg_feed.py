"""An Iceberg table as a source: its content, then each snapshot, however rows come and go."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import iceberg_tables as iceberg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("part", pa.string()), ("v", pa.int64())]
)
Row = dict[str, Any]


class History:
    """A table that changes at random, in every way that Iceberg has, and its rows after each
    snapshot.
    """

    def __init__(self, draw: random.Random, folder: Path, *, partitioned: bool) -> None:
        self.draw = draw
        self.catalog = iceberg.properties(folder)
        fields = [
            NestedField(1, "id", LongType(), required=True),
            NestedField(2, "part", StringType()),
            NestedField(3, "v", LongType()),
        ]
        part = PartitionField(2, 1000, IdentityTransform(), "part")
        spec = PartitionSpec(part) if partitioned else PartitionSpec()
        catalog = iceberg.opened(self.catalog)
        self.table = catalog.create_table("shop.t", Schema(*fields), partition_spec=spec)
        self.rows: dict[int, Row] = {}
        self.states: dict[int, dict[int, Row]] = {0: {}}
        self.equality_deletes = False

    def step(self) -> None:
        """Commit one snapshot."""
        self.table.refresh()
        steps = [self.append, self.append_twice, self.delete_positions]
        steps += [self.delete_values, self.upsert_values]
        if not self.equality_deletes:  # pyiceberg does not read them
            steps += [self.overwrite, self.delete_rows, self.compact, self.delete_vectors]
        before = self.table.metadata.last_sequence_number
        while self.table.metadata.last_sequence_number == before:
            self.draw.choice(steps)()
            self.table.refresh()
        self.states[self.table.metadata.last_sequence_number] = dict(self.rows)

    def new_rows(self, ids: list[int]) -> pa.Table:
        """Rows of these ids, each with its part: a row never changes its partition here."""
        made = [{"id": i, "part": "ab"[i % 2], "v": self.draw.randrange(3)} for i in ids]
        self.rows.update((row["id"], row) for row in made)
        return pa.Table.from_pylist(made, SCHEMA)

    def some(self) -> list[int]:
        ids = sorted(self.rows)
        return self.draw.sample(ids, min(len(ids), self.draw.randint(1, 4)))

    def append(self) -> None:
        free = [i for i in range(30) if i not in self.rows]
        if free:
            self.table.append(self.new_rows(self.draw.sample(free, min(len(free), 5))))

    def append_twice(self) -> None:
        """Rows of a file, some deleted by the snapshot that adds it, as Flink does within one."""
        free = [i for i in range(30) if i not in self.rows]
        if len(free) > 1:
            ids = sorted(self.draw.sample(free, 2), key=lambda i: i % 2)
            new = self.new_rows(ids)
            files = iceberg.written(self.table, new)
            by_file = {files[0].file_path: [0]}
            self.gone(ids[:1])
            delete = iceberg.positions(self.table, by_file, files[0])
            iceberg.row_delta(self.table, [delete], files=files)

    def overwrite(self) -> None:
        """Rows replaced, by files written anew, with others that stay as they are."""
        if ids := self.some():
            self.new_rows(ids)
            self.rewritten()

    def delete_rows(self) -> None:
        if ids := self.some():
            self.gone(ids)
            self.rewritten()

    def rewritten(self) -> None:
        rows = pa.Table.from_pylist(list(self.rows.values()), SCHEMA)
        iceberg.rewrite(self.table, rows)

    def gone(self, ids: list[int]) -> list[Row]:
        return [self.rows.pop(i) for i in ids]

    def places(self, ids: list[int]) -> Iterator[tuple[Any, dict[str, list[int]]]]:
        """The positions of live rows in their files, with a file of each partition."""
        by_partition: dict[str, Any] = defaultdict(lambda: defaultdict(list))
        like = {}
        for entry in live_entries(self.table):
            found = iceberg_file(self.table, entry)
            for at, i in enumerate(found["id"].to_pylist()):
                if i in ids and self.newest[i] == entry.file_path:
                    key = repr(entry.partition)
                    by_partition[key][entry.file_path].append(at)
                    like[key] = entry
        for key, by_file in by_partition.items():
            yield like[key], dict(by_file)

    @property
    def newest(self) -> dict[int, str]:
        """The file with the live row of each id, which is the one that was added last."""
        found = {}
        for entry in live_entries(self.table):
            for i in iceberg_file(self.table, entry)["id"].to_pylist():
                found[i] = entry.file_path
        return found

    def delete_positions(self, write: Any = iceberg.positions) -> None:
        if ids := self.some():
            files = [write(self.table, by_file, like) for like, by_file in self.places(ids)]
            self.gone(ids)
            iceberg.row_delta(self.table, files)

    def delete_vectors(self) -> None:
        self.delete_positions(iceberg.vectors)

    def delete_values(self, rows: bool = False) -> None:
        if ids := self.some():
            self.equality_deletes = True
            gone = pa.Table.from_pylist(self.gone(ids), SCHEMA)
            by = self.draw.choice((["id"], ["id", "v"]))
            likes = {repr(e.partition): e for e in live_entries(self.table)}.values()
            files = [iceberg.values(self.table, by, gone, like) for like in likes]
            iceberg.row_delta(self.table, files, self.new_rows(ids) if rows else None)

    def upsert_values(self) -> None:
        """As Flink does: equality deletes, and new rows of the same keys, which they spare."""
        self.delete_values(rows=True)

    def compact(self) -> None:
        if self.rows:
            iceberg.rewrite(self.table)


def live_entries(table: Table) -> list[Any]:
    """The data files of the present snapshot, those that were added last at the end."""
    snapshot = table.current_snapshot()
    entries = [
        entry
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content == 0
    ]
    return [e.data_file for e in sorted(entries, key=lambda e: (e.sequence_number, e.snapshot_id))]


def iceberg_file(table: Table, file: Any) -> pa.Table:
    with table.io.new_input(file.file_path).open() as opened:
        return pq.read_table(opened)


def expected(states: dict[int, dict[int, Row]]) -> dict[int, Any]:
    found = {}
    versions = sorted(states)
    for former, version in itertools.pairwise(versions):
        before, after = states[former], states[version]
        sides = {i: (before.get(i), after.get(i)) for i in {*before, *after}}
        changed = {i: pair for i, pair in sides.items() if pair[0] != pair[1]}
        if changed:
            found[version] = changed
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_feed_is_the_difference_of_snapshots(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    history = History(draw, tmp_path, partitioned=seed % 2 == 0)
    for _ in range(12):
        history.step()
    found = iceberg.feed(history.catalog, iceberg.FIRST, draw.choice((None, 1, 5)))
    assert iceberg.differences(found) == expected(history.states)
    last = history.table.metadata.last_sequence_number
    content = iceberg.differences(iceberg.feed(history.catalog, iceberg.CONTENT))
    assert content == expected({0: {}, last: history.rows})


def test_rows_of_large_files_are_found_by_their_positions(tmp_path: Path) -> None:
    """Only rows that go are read out of a file that is read in several batches."""
    catalog = iceberg.properties(tmp_path)
    count = 300_000
    rows = pa.table({"id": pa.array(range(count)), "v": pa.array(range(count))})
    table = iceberg.opened(catalog).create_table("shop.t", rows.schema)
    table.append(rows)
    (file,) = live_entries(table)
    gone = [0, 5, 140_000, count - 1]
    iceberg.row_delta(table, [iceberg.positions(table, {file.file_path: gone}, file)])
    first = table.refresh().metadata.snapshots[0].snapshot_id
    found = iceberg.feed(catalog, {"snapshot": first, "content": False})
    assert [(row["_change_type"], row["id"], row["v"]) for row in found] == [
        ("delete", i, i) for i in gone
    ]
