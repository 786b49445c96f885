"""Random histories of Iceberg tables: the changes that are read add up to what DuckDB reads of each
snapshot.

``DOVETAIL_CASES`` says how many histories to draw, a tenth of it; ``DOVETAIL_SEED`` draws others.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import iceberg_tables as iceberg
import pytest
from iceberg_histories import History
from iceberg_java import JavaTable, java
from iceberg_sql import rows_at, scanned
from pyiceberg.table import Table
from pyspark.sql import SparkSession

import dovetail as dt

HISTORIES = -(-int(os.environ.get("DOVETAIL_CASES", "200")) // 10)
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))
STEPS = 14

Rows = list[tuple[Any, ...]]


def drawn(seed: int, folder: Path, *, vectors: bool) -> History:
    history = History(
        random.Random(seed), folder, partitioned=seed % 2 == 0, evolving=True, vectors=vectors
    )
    for _ in range(STEPS):
        history.step()
    return history


def by_duckdb(table: Table) -> Iterator[tuple[int, Rows]]:
    """The number of each snapshot and its rows, by the rules of the format in SQL."""
    ids = [field.field_id for field in table.schema().fields]
    for snapshot in table.metadata.snapshots:
        yield snapshot.sequence_number or 0, sorted(rows_at(table, snapshot, ids), key=repr)


def by_its_reader(table: Table) -> Iterator[tuple[int, Rows]]:
    """The number of each snapshot and its rows, by DuckDB's reader of Iceberg tables: a snapshot
    has the columns of its time.
    """
    snapshots = table.metadata.snapshots
    read = scanned(table.metadata_location, [snapshot.snapshot_id for snapshot in snapshots])
    for snapshot, (names, rows) in zip(snapshots, read, strict=True):
        schema = table.schemas()[snapshot.schema_id or 0]
        places = {schema.find_field(name).field_id: names.index(name) for name in names}
        taken = [places.get(field.field_id) for field in table.schema().fields]
        yield (
            snapshot.sequence_number or 0,
            sorted(
                (tuple(None if at is None else row[at] for at in taken) for row in rows), key=repr
            ),
        )


def assert_feed_is(catalog: dict[str, str], expected: Iterator[tuple[int, Rows]]) -> None:
    """Check that the changes up to each snapshot make its rows, and take only rows that are
    there.
    """
    changes: dict[int, list[tuple[bool, tuple[Any, ...]]]] = {}
    for row in iceberg.feed(catalog, iceberg.FIRST):
        version, is_new = row.pop("_commit_version"), row.pop("_change_type") == "insert"
        del row["_commit_timestamp"]
        changes.setdefault(version, []).append((is_new, tuple(row.values())))
    rows: Counter[tuple[Any, ...]] = Counter()
    count = 0
    for version, present in expected:
        for is_new, row in sorted(changes.pop(version, ()), key=lambda change: change[0]):
            rows[row] += 1 if is_new else -1
            assert rows[row] in (0, 1), (version, is_new, row)
        assert sorted(rows.elements(), key=repr) == present, version
        count += len(present)
    assert not changes
    assert count


@pytest.mark.parametrize("seed", range(2))
def test_changes_add_up_to_the_rows_of_each_snapshot(seed: int, tmp_path: Path) -> None:
    history = drawn(seed, tmp_path, vectors=True)
    assert_feed_is(history.catalog, by_duckdb(history.table))


@pytest.mark.slow
@pytest.mark.parametrize("case", range(HISTORIES))
def test_changes_of_more_histories(case: int, tmp_path: Path) -> None:
    history = drawn(SEED * 1000 + case, tmp_path, vectors=case % 3 == 0)
    expected = [*by_duckdb(history.table)]
    assert_feed_is(history.catalog, iter(expected))
    if case % 3:  # deletion vectors are of format version 3, which pyiceberg does not write
        assert [*by_its_reader(history.table)] == expected


def test_a_table_has_the_rows_of_each_snapshot_in_turn(spark: SparkSession, tmp_path: Path) -> None:
    history = drawn(5, tmp_path, vectors=True)
    snapshots = history.table.metadata.snapshots
    read = dt.Table.from_iceberg(
        spark,
        "shop.t",
        catalog=history.catalog,
        key="id",
        snapshot=snapshots[0].snapshot_id,
        streaming=False,
    )
    names = [field.name for field in history.table.schema().fields]
    changes = sorted(read.changelog().collect(), key=lambda row: row["_position"])
    times = [datetime.fromtimestamp(s.timestamp_ms / 1000, timezone.utc) for s in snapshots]
    assert len({*times}) == len(times)
    rows: dict[int, tuple[Any, ...]] = {}
    for time, (_, present) in zip(times, by_duckdb(history.table), strict=True):
        for change in changes:
            if change["_timestamp"].astimezone(timezone.utc) == time:
                is_new = change["_change"] == "upsert"
                assert is_new or change["id"] in rows
                rows.pop(change["id"], None)
                if is_new:
                    rows[change["id"]] = tuple(change[name] for name in names)
        assert sorted(rows.values(), key=repr) == present
    assert {change["_timestamp"].astimezone(timezone.utc) for change in changes} <= {*times}


class JavaHistory:
    """A table that Iceberg's own library writes at random: deletes beside the data in both kinds of
    its format version, files written anew, and compaction.
    """

    def __init__(self, draw: random.Random, made: JavaTable) -> None:
        self.draw, self.made, self.table = draw, made, made.table
        self.files: dict[str, list[tuple[Any, dict[int, int], dict[int, int], list[Any]]]] = {
            "x": [],
            "y": [],
        }
        """Each part's data files: the rows by id, the position of each row, and vectors of it."""

    def step(self) -> None:
        part = self.draw.choice("xy")
        steps = [self.append, self.append, self.upsert, self.delete, self.rewrite]
        self.draw.choice(steps)(part)

    def live(self, part: str) -> list[int]:
        return sorted(i for _, rows, _, _ in self.files[part] for i in rows)

    def file(self, part: str, ids: list[int]) -> Any:
        rows = [(i, self.draw.randrange(5)) for i in ids]
        data = self.made.data(part, rows)
        self.files[part].append((data, dict(rows), {i: at for at, i in enumerate(ids)}, []))
        return data

    def some(self, part: str) -> list[int]:
        live = self.live(part)
        return self.draw.sample(live, min(len(live), self.draw.randint(1, 3)))

    def append(self, part: str) -> None:
        free = {*range(0 if part == "x" else 100, 20 if part == "x" else 120)} - {*self.live(part)}
        if free:
            ids = self.draw.sample(sorted(free), min(len(free), 4))
            self.table.newAppend().appendFile(self.file(part, ids)).commit()

    def upsert(self, part: str) -> None:
        """Equality deletes, and new rows of these keys, as Flink does."""
        if ids := self.some(part):
            for _, rows, _, _ in self.files[part]:
                for i in ids:
                    rows.pop(i, None)
            delta = self.table.newRowDelta().addDeletes(self.made.equality_deletes(part, ids))
            delta.addRows(self.file(part, ids)).commit()

    def delete(self, part: str) -> None:
        """Position deletes, or a deletion vector in place of the former one."""
        files = [file for file in self.files[part] if file[1]]
        if files:
            data, rows, places, vectors = self.draw.choice(files)
            ids = self.draw.sample(sorted(rows), self.draw.randint(1, len(rows)))
            for i in ids:
                del rows[i]
            gone = sorted(at for i, at in places.items() if i not in rows)
            present = self.table.currentSnapshot().snapshotId()
            delta = self.table.newRowDelta().validateFromSnapshot(present)
            for former in vectors:
                delta.removeDeletes(former)
            vectors.clear()
            for deletes in self.made.positions(part, data.location(), gone):
                delta.addDeletes(deletes)
                if self.made.version >= 3:
                    vectors.append(deletes)
            delta.commit()

    def rewrite(self, part: str) -> None:
        """All rows of a part in one file, some with other values, or as they are."""
        former, self.files[part] = self.files[part], []
        rows = {i: v for _, old, _, _ in former for i, v in old.items()}
        if not rows:
            self.files[part] = former
            return
        if self.draw.random() < 0.5:
            data = self.made.data(part, [*rows.items()])
            places = {i: at for at, i in enumerate(rows)}
            self.files[part] = [(data, rows, places, [])]
            old = self.made.set(*(file[0] for file in former))
            self.table.newRewrite().rewriteFiles(old, self.made.set(data)).commit()
        else:
            overwrite = self.table.newOverwrite().addFile(self.file(part, [*rows]))
            for file in former:
                overwrite.deleteFile(file[0])
            overwrite.commit()


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_changes_of_tables_that_java_has_written(version: int, tmp_path: Path) -> None:
    with java() as gateway:
        for case in range(max(HISTORIES // 5, 2)):
            draw = random.Random(SEED * 1000 + case)
            folder = tmp_path / str(case)
            made = JavaTable(gateway, folder / "tables", version, partitioned=case % 2 == 0)
            history = JavaHistory(draw, made)
            history.append("x")
            for _ in range(STEPS):
                history.step()
            (folder / "catalog").mkdir()
            catalog = iceberg.properties(folder / "catalog")
            table = iceberg.opened(catalog).register_table("shop.t", made.location)
            expected = [*by_its_reader(table)]
            assert_feed_is(catalog, iter(expected))
            assert [*by_duckdb(table)] == expected
