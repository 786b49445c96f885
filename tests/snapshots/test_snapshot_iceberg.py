"""Joins over snapshots of Iceberg tables, kept in Iceberg or Delta: at every commit the join of the
sources at the snapshots that it covers.

``DOVETAIL_CASES`` says how many histories the slow test draws, a fiftieth of it; ``DOVETAIL_SEED``
draws others.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import iceberg_tables as iceberg
import pyarrow as pa
import pytest
from iceberg_histories import History, Row
from pyiceberg.types import LongType
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from snapshot_model import counted, naive

import dovetail as dt
from dovetail.snapshots import commit_records, iceberg_target, refresh
from dovetail.snapshots.plan import distinct_sources

CASES = -(-int(os.environ.get("DOVETAIL_CASES", "200")) // 50)
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))
HOWS = ("inner", "left", "right", "outer")
TARGET = "shop.target"


class Lake:
    """Two Iceberg tables that change at random, and targets of their joins in both formats."""

    def __init__(self, spark: SparkSession, seed: int, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.draw = random.Random(seed)
        self.histories = {}
        for name in ("orders", "customers"):
            (folder / name).mkdir(parents=True)
            self.histories[name] = History(
                self.draw,
                folder / name,
                partitioned=self.draw.random() < 0.5,
                values=(*range(9), None),
            )
        (folder / "targets").mkdir()
        self.targets = iceberg.properties(folder / "targets")

    def step(self, count: int) -> None:
        for _ in range(count):
            self.histories[self.draw.choice([*self.histories])].step()

    def table(self, name: str) -> dt.SnapshotTable:
        catalog = self.histories[name].catalog
        return dt.SnapshotTable.from_iceberg(
            self.spark, "shop.t", catalog=catalog, key="id", name=name
        )

    def joined(self, how: Any, on: dict[str, str]) -> dt.SnapshotTable:
        select = {"part": "left.part", "v": "left.v", "w": "right.v"}
        return self.table("orders").join(self.table("customers"), on=on, how=how, select=select)

    def rows_at(self, name: str, snapshot: int) -> list[Row]:
        """The rows of a table, as they were written."""
        history = self.histories[name]
        history.table.refresh()
        found = history.table.snapshot_by_id(snapshot)
        return [*history.states[found.sequence_number or 0].values()] if found else []

    def target(self, format_: str) -> dict[str, Any]:
        if format_ == "iceberg":
            return {"table": TARGET, "catalog": self.targets}
        return {"target": self.folder / "delta"}

    def stored(self, format_: str, version: int) -> list[Row]:
        """The rows of a target at a version."""
        if format_ == "iceberg":
            table = iceberg.opened(self.targets).load_table(TARGET)
            rows: list[Row] = table.scan(snapshot_id=version).to_arrow().to_pylist()
            return rows
        read = self.spark.read.format("delta").option("versionAsOf", version)
        return [row.asDict() for row in read.load(str(self.folder / "delta")).collect()]

    def assert_exact(self, joined: dt.SnapshotTable, format_: str) -> int:
        """Compare each commit of a target with the join of what it covers, and count them."""
        commits, count = joined.commits(**self.target(format_)), 0
        for commit in commits:
            inputs = {
                source.table_id: self.rows_at(source.name, commit.covered[source.name])
                for source in distinct_sources(joined.plan)
            }
            columns = joined.plan.columns
            expected = counted(naive(joined.plan, inputs), columns)
            assert counted(self.stored(format_, commit.version), columns) == expected, commit
            count += len(expected)
        assert count
        return len(commits)

    def latest(self) -> dict[str, int]:
        present = {}
        for name, history in self.histories.items():
            snapshot = history.table.refresh().current_snapshot()
            present[name] = snapshot.snapshot_id if snapshot else 0
        return present


def kept(lake: Lake, joined: dt.SnapshotTable, format_: str, rounds: int) -> None:
    """Refresh a target after each of some rounds of changes, the last one in small steps."""
    lake.step(3)
    joined.refresh(**lake.target(format_))
    for last in [*[False] * (rounds - 1), True]:
        lake.step(4)
        commits = joined.refresh(**lake.target(format_), max_versions=2 if last else None)
        assert commits[-1].covered == lake.latest()
    assert joined.refresh(**lake.target(format_)) == []
    assert lake.assert_exact(joined, format_) > rounds


def test_a_target_is_the_join_of_the_snapshots_that_it_covers(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(delta_spark, 5, tmp_path)
    kept(lake, lake.joined("outer", {"v": "id"}), "iceberg", 1)


@pytest.mark.slow
def test_an_aggregate_of_a_join(delta_spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(delta_spark, 6, tmp_path)
    groups = lake.joined("left", {"v": "id"}).group_by("part")
    kept(lake, groups.agg(n=F.count("*"), sum_w=F.sum("w"), max_v=F.max("v")), "iceberg", 2)


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["iceberg", "delta"])
@pytest.mark.parametrize("case", range(CASES))
def test_random_joins(delta_spark: SparkSession, tmp_path: Path, case: int, format_: str) -> None:
    on = {"v": "id"} if case % 3 else {"v": "v"}
    lake = Lake(delta_spark, SEED * 1000 + case, tmp_path)
    kept(lake, lake.joined(HOWS[case % 4], on), format_, 2)


class Small:
    """One table with two rows, and a target that is a copy of it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.catalog = iceberg.properties(folder)
        rows = pa.table({"id": [1, 2], "v": [10, 20]})
        self.opened = iceberg.opened(self.catalog)
        self.opened.create_table("shop.t", rows.schema).append(rows)

    @property
    def source(self) -> Any:
        return self.opened.load_table("shop.t")

    @property
    def target(self) -> Any:
        return self.opened.load_table(TARGET)

    def table(self) -> dt.SnapshotTable:
        return dt.SnapshotTable.from_iceberg(self.spark, "shop.t", catalog=self.catalog, key="id")

    def refresh(self, **arguments: Any) -> list[Any]:
        return self.table().refresh(table=TARGET, catalog=self.catalog, **arguments)

    def append(self, i: int) -> None:
        self.source.append(pa.table({"id": [i], "v": [10 * i]}))

    def rows(self) -> list[tuple[int, int]]:
        return sorted((row["id"], row["v"]) for row in self.target.scan().to_arrow().to_pylist())


@pytest.fixture
def small(delta_spark: SparkSession, tmp_path: Path) -> Small:
    return Small(delta_spark, tmp_path)


def test_a_table_at_a_snapshot_that_its_id_names(small: Small) -> None:
    first = small.source.current_snapshot().snapshot_id
    assert first > 1 << 31
    small.append(3)

    def rows(version: int) -> list[tuple[int, int]]:
        return sorted(map(tuple, small.table().to_batch({"t": version}).collect()))

    assert rows(first) == [(1, 10), (2, 20)]
    assert rows(0) == []
    with pytest.raises(dt.errors.ConfigurationError) as gone:
        rows((1 << 63) - 1)
    assert gone.value.problem == "snapshot 9223372036854775807 is not there, or has expired"
    with pytest.raises(dt.errors.PlanError) as too_large:
        rows(1 << 63)
    assert too_large.value.problem == "versions= has 9223372036854775808 for 't'"


@pytest.mark.long
def test_what_cannot_be_gone_on_with_says_so(small: Small) -> None:
    assert [commit.changed for commit in small.refresh()] == [None]
    small.append(3)
    small.refresh()
    assert small.rows() == [(1, 10), (2, 20), (3, 30)]

    # The same rows in other files are no change, and others' compaction of the target is none.
    iceberg.rewrite(small.source)
    iceberg.rewrite(small.target)
    small.append(4)
    assert [commit.changed for commit in small.refresh()] == [1]
    small.target.delete("id = 4")
    with pytest.raises(dt.errors.TargetError, match=r"snapshot \d+ is of somebody else"):
        small.refresh()
    small.refresh(rebuild=True)
    assert small.rows() == [(1, 10), (2, 20), (3, 30), (4, 40)]

    # A column that is dropped and added again under its name is another one.
    with small.source.update_schema() as update:
        update.delete_column("v")
    with pytest.raises(dt.errors.TargetError, match="v was 'bigint, column 2' and is missing"):
        small.refresh()
    with pytest.raises(dt.errors.TargetError, match="Drop it, or choose another table"):
        small.refresh(rebuild=True)
    with small.source.update_schema() as update:
        update.add_column("v", LongType())
    with pytest.raises(dt.errors.TargetError, match="column 2' and is 'bigint, column 3"):
        small.refresh()
    small.refresh(rebuild=True)
    assert {v for _, v in small.rows()} == {None}

    first = small.source.current_snapshot().snapshot_id
    small.append(5)
    small.append(5)
    with pytest.raises(dt.errors.DataError, match="1 keys occur more than once"):
        small.refresh()
    small.source.manage_snapshots().rollback_to_snapshot(first).commit()
    small.append(6)
    small.refresh()
    assert [i for i, _ in small.rows()] == [1, 2, 3, 4, 6]
    small.source.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(dt.errors.TargetError, match="rolled back"):
        small.refresh()
    small.refresh(way="all")  # this needs no changes
    assert [i for i, _ in small.rows()] == [1, 2, 3, 4]
    small.append(7)
    covered = small.source.current_snapshot().snapshot_id
    small.refresh()
    small.append(8)
    small.append(9)
    small.source.maintenance.expire_snapshots().by_id(covered).commit()
    with pytest.raises(dt.errors.TargetError, match="has expired"):
        small.refresh()
    small.refresh(way="all")
    assert [i for i, _ in small.rows()] == [1, 2, 3, 4, 7, 8, 9]


def test_a_run_that_is_killed_anywhere_is_run_again(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    def dies(owner: Any, name: str, *, before: bool) -> None:
        original = getattr(owner, name)

        def step(*arguments: Any, **options: Any) -> Any:
            if not before:
                original(*arguments, **options)
            raise KilledError

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, step)
            with pytest.raises(KilledError):
                small.refresh()

    target = iceberg_target.IcebergSnapshotTarget
    dies(target, "_make_snapshot", before=True)  # the table is made, without rows
    dies(target, "_make_snapshot", before=False)
    assert small.refresh() == []
    small.append(3)
    dies(refresh.Deltas, "changes", before=False)
    dies(commit_records.CommitRecords, "record_as_json", before=False)
    dies(target, "merge", before=False)
    assert small.refresh() == []
    assert small.rows() == [(1, 10), (2, 20), (3, 30)]
    assert len(small.target.metadata.snapshots) == 2


def test_a_commit_that_another_writer_overtakes_is_refused(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.refresh()
    small.append(3)
    merge = iceberg_target.merged_rows

    def overtaken(*arguments: Any) -> Any:
        """Another process refreshes the target between the reading and the commit."""
        monkeypatch.setattr(iceberg_target, "merged_rows", merge)
        removed = merge(*arguments)
        small.refresh()
        return removed

    monkeypatch.setattr(iceberg_target, "merged_rows", overtaken)
    with pytest.raises(dt.errors.TargetError, match="another writer has committed meanwhile"):
        small.refresh()
    assert small.rows() == [(1, 10), (2, 20), (3, 30)]
    assert small.refresh() == []
