"""The way of a step: the estimate, what it is made of, and that either way is exact."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from delta_rows import add_rows, rows_of
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType
from small_session import applied

import dovetail as dt
from dovetail.platform import delta_tables
from dovetail.platform.delta_log import ChangeSize, DeltaLog
from dovetail.snapshots import plan
from dovetail.snapshots.commit_records import Commit, CommitRecords, commit_of, step_of
from dovetail.snapshots.costs import (
    JOBS_S,
    RefreshStep,
    StepWork,
    TimedStep,
    Way,
    choose_way,
    estimated_s,
)

MB = 1 << 20


def work(megabytes: float, changed: float, *, few: bool = True, cores: int = 2) -> StepWork:
    return StepWork(int(megabytes * MB), int(changed * MB), None, few, cores)


def took(way: Way, seconds: float, estimated_s: float = 1.0) -> TimedStep:
    return TimedStep(RefreshStep(way, estimated_s, 0), seconds)


@pytest.mark.parametrize(
    ("step", "earlier", "way"),
    [
        # small tables are overwritten, however little has changed: that has fewer jobs
        (work(0, 0), [], "all"),
        (work(17, 0), [], "all"),
        (work(19, 0), [], "changes"),
        # the more cores, the larger the tables for which that is so
        (work(34, 0, cores=4), [], "all"),
        (work(37, 0, cores=4), [], "changes"),
        # much has changed: bytes, or rows that do not go through this process
        (work(70, 2.9), [], "changes"),
        (work(70, 3.1), [], "all"),
        (work(55, 0, few=False), [], "all"),
        (work(62, 0, few=False), [], "changes"),
        (work(1000, 1000, few=False), [], "all"),
        # steps took longer, or shorter, than estimated
        (work(70, 0), [took("all", 1), took("changes", 2)], "all"),
        (work(17, 0), [took("all", 1), took("changes", 0.9)], "changes"),
        (work(17, 0), [took("changes", 9, estimated_s=10), took("all", 2, estimated_s=2)],
         "changes"),
        # those of one way alone say how fast the machine is, which is so for both
        (work(19, 0), [took("changes", 9)] * 9, "changes"),
        (work(17, 0), [took("all", 0.1)] * 9, "all"),
        # an estimate that was not known says nothing
        (work(19, 0), [took("changes", 9, estimated_s=0), took("all", 1)], "changes"),
        # the median of the last three steps of a way
        (work(19, 0), [*(took("changes", s) for s in (1, 9, 1, 9, 9)), took("all", 1)], "changes"),
    ],
)  # fmt: skip
def test_the_cheaper_way_is_taken(step: StepWork, earlier: list[TimedStep], way: Way) -> None:
    assert choose_way(step, earlier).way == way


def test_a_choice_says_both_estimates() -> None:
    step = work(64, 0.64)
    assert estimated_s(step, "all") == pytest.approx(2.4 + 64 * MB / 7.4e6)
    assert estimated_s(step, "changes") == pytest.approx(4.4 + (0.2 * 64 + 14 * 0.64) * MB / 7.4e6)
    assert choose_way(step, [took("all", 2)]).reason == (
        "about 1.00% of the rows change, which takes an estimated 15.0 s to merge, and 22.9 s to "
        "compute and overwrite all"
    )


def test_a_step_of_another_format_is_not_read() -> None:
    """A target that was rebuilt has such commits in its history."""
    step = {"way": "all", "share": 1.0, "size": 1000, "started_ms": 0}
    table = {"name": "orders", "id": "x", "version": 3}
    record = {"dovetail": 1, "tables": [table], "base": 0, "step": step}
    assert commit_of(7, record) == Commit(7, {"orders": 3})
    orders = plan.source(
        path="o",
        table_id="x",
        schema=StructType([StructField("id", LongType())]),
        key="id",
        name="orders",
    )
    with pytest.raises(dt.errors.TargetError, match="it has format 1, this version reads 2"):
        CommitRecords("target t", orders).refuse_other_plan(record)
    present = {**record, "dovetail": 2, "step": {"way": "all", "estimated_s": 3.0, "started_ms": 5}}
    assert step_of(present) == RefreshStep("all", 3.0, 5)
    assert commit_of(7, present) == Commit(7, {"orders": 3}, way="all")


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("CREATE OR REPLACE TABLE AS SELECT", {}),
        ("REPLACE TABLE AS SELECT", None),
        ("WRITE", {"mode": "Overwrite"}),
        ("STREAMING UPDATE", {"outputMode": "Complete"}),
    ],
)
def test_a_commit_that_replaces_all_rows_says_how_many_are_deleted_or_nothing(
    operation: str, parameters: dict[str, str] | None
) -> None:
    metrics = {"numFiles": "1", "numOutputRows": "2"}
    add = {"path": "a", "size": 100, "stats": '{"numRecords": 2}'}
    for deleted, expected in (({}, None), ({"numDeletedRows": "8"}, ChangeSize(10, 500))):
        commit = {
            "operation": operation,
            "operationParameters": parameters,
            "operationMetrics": metrics | deleted,
        }
        lines = [json.dumps({"commitInfo": commit}), json.dumps({"add": add})]
        text = "\n".join(lines).encode()
        folder: Any = SimpleNamespace(read=lambda _, text=text: text)
        assert DeltaLog(1, "t", {}, None, folder).changes(0, 1) == expected


class Shop:
    """Orders of customers in tables with a change data feed, and a target without one."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.orders, self.customers, self.target = (
            str(folder / name) for name in ("orders", "customers", "target")
        )
        add_rows(
            self.orders, "id long, customer long, v string", *((i, i % 20, "o") for i in range(200))
        )
        self.write_customers(0, 20)
        self.joined = dt.SnapshotTable.from_delta(spark, self.orders, key="id").join(
            dt.SnapshotTable.from_delta(spark, self.customers, key="cid"), on="customer", how="left"
        )
        feed = "spark.databricks.delta.properties.defaults.enableChangeDataFeed"
        with applied(spark, {feed: "false"}):
            self.joined.refresh(self.target)

    def write_customers(self, first: int, count: int) -> None:
        rows = ((i, "c") for i in range(first, count))
        add_rows(self.customers, "cid long, w string", *rows, overwrite=True)

    def sql(self, text: str) -> None:
        self.spark.sql(text.format(o=f"delta.`{self.orders}`", c=f"delta.`{self.customers}`"))

    def refresh(self, **options: Any) -> list[tuple[str | None, int | None]]:
        """Refresh the target, which must be the join then: the way and the changes of each
        commit.
        """
        commits = self.joined.refresh(self.target, **options)
        orders, customers, stored = map(rows_of, (self.orders, self.customers, self.target))
        names = {row["cid"]: row["w"] for row in customers}
        expected = [{**row, "w": names.get(row["customer"])} for row in orders]
        assert sorted(map(str, stored)) == sorted(map(str, expected))
        assert [c.covered for c in self.joined.commits(self.target)][: len(commits)] == [
            c.covered for c in commits[::-1]
        ]
        return [(commit.way, commit.changed) for commit in commits]


@pytest.fixture
def shop(delta_spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(delta_spark, tmp_path)


@pytest.mark.long
def test_few_changes_are_merged_and_many_overwrite(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is where the number of jobs does not matter; else such small tables are overwritten. A
    target keeps its clustering.
    """
    shop.spark.sql(f"ALTER TABLE delta.`{shop.target}` CLUSTER BY (customer)")
    shop.sql("UPDATE {o} SET v = 'first' WHERE id = 1")
    assert shop.refresh() == [("all", None)]
    detail = delta_tables.details(shop.spark, f"delta.`{shop.target}`")
    assert detail["clusteringColumns"] == ["customer"]
    for kind in JOBS_S:
        monkeypatch.setitem(JOBS_S, kind, 0.0)
    shop.sql("UPDATE {o} SET v = 'few' WHERE id = 1")
    (commit,) = shop.joined.refresh(shop.target)
    assert (commit.way, commit.changed) == ("changes", 1)
    assert "of the rows change" in str(commit.reason)
    shop.sql("UPDATE {o} SET v = 'many' WHERE id >= 20")
    assert shop.refresh() == [("all", None)]
    shop.write_customers(1, 20)
    assert shop.refresh() == [("all", None)]
    shop.sql("ALTER TABLE {o} SET TBLPROPERTIES (team = 'me')")
    assert shop.refresh() == [(None, 0)]
    assert [commit.way for commit in shop.joined.commits(shop.target)] == [
        None, "all", "all", "changes", "all", "all",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_way_that_is_asked_for(shop: Shop) -> None:
    shop.sql("UPDATE {o} SET v = 'all' WHERE id = 1")
    shop.sql("DELETE FROM {o} WHERE id = 2")
    assert shop.refresh(way="all", max_versions=1) == [("all", None)] * 2
    shop.sql("UPDATE {o} SET v = 'many'")
    assert shop.refresh(way="changes") == [("changes", 199)]
    shop.spark.sql(
        f"ALTER TABLE delta.`{shop.target}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    shop.sql("UPDATE {o} SET v = 'again'")
    (commit,) = shop.joined.refresh(shop.target)
    assert (commit.way, commit.changed) == ("changes", 199)
    assert "change data feed" in str(commit.reason)


@pytest.mark.slow
def test_duplicate_keys_are_refused_by_either_way(shop: Shop) -> None:
    shop.sql("INSERT INTO {o} VALUES (5, 1, 'again')")
    for way in ("changes", "all"):
        with pytest.raises(dt.errors.DataError, match="1 keys occur more than once"):
            shop.joined.refresh(shop.target, way=way)
    shop.sql("DELETE FROM {o} WHERE v = 'again'")
    assert shop.refresh(way="all") == [("all", None)]


@pytest.mark.slow
def test_an_overwrite_after_which_another_writer_was_faster(shop: Shop, monkeypatch: Any) -> None:
    """Another process makes the same step while this one computes it."""
    from dovetail.snapshots import target

    replace = target.SnapshotTarget.replace

    def slow(self: Any, *arguments: Any) -> Any:
        monkeypatch.setattr(target.SnapshotTarget, "replace", replace)
        shop.joined.refresh(shop.target, way="changes")
        return replace(self, *arguments)

    shop.sql("UPDATE {o} SET v = 'all' WHERE id < 10")
    monkeypatch.setattr(target.SnapshotTarget, "replace", slow)
    assert shop.refresh(way="all") == [("all", None)]
    assert [commit.version for commit in shop.joined.commits(shop.target)] == [1, 0]


def test_commits_say_what_they_change(delta_spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    add_rows(path, "id long", *((i,) for i in range(100)))
    table = f"delta.`{path}`"
    for change in (
        f"INSERT INTO {table} SELECT id FROM range(100, 103)",
        f"UPDATE {table} SET id = -id WHERE id < 3",
        f"DELETE FROM {table} WHERE id IN (50, 60)",
        (
            f"MERGE INTO {table} t USING (SELECT explode(array(7L, 8L, 900L)) AS k) s "
            "ON t.id = s.k WHEN MATCHED AND s.k = 7 THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET id = -8 WHEN NOT MATCHED THEN INSERT (id) VALUES (k)"
        ),
        f"OPTIMIZE {table}",
        f"ALTER TABLE {table} SET TBLPROPERTIES (team = 'me')",
        f"INSERT OVERWRITE {table} SELECT id FROM range(5)",
    ):
        delta_spark.sql(change)
    log = DeltaLog.of(delta_spark, path)
    sizes = [log.changes(version, version + 1) for version in range(log.version)]
    assert [None if size is None else size.rows for size in sizes] == [3, 3, 2, 3, 0, 0, None]
    assert log.changes(0, 6) == ChangeSize(11, sum(s.size for s in sizes if s is not None))
    assert log.changes(0, 7) is None
    assert log.commit(8) is None
    files = sum(DeltaTable(path).get_add_actions()["size_bytes"].to_pylist())
    assert log.size == files
    (tmp_path / "t" / "_delta_log" / f"{log.version:020d}.crc").unlink()
    assert DeltaLog.of(delta_spark, path).size == files
