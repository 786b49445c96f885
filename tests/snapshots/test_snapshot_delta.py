"""Targets in Delta Lake: at every commit the join of the sources at the versions that it covers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.parameters import slow_after
from delta_rows import add_rows, rows_of
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from snapshot_model import counted, naive

import dovetail as dt
from dovetail.snapshots import commit_records, refresh, target
from dovetail.snapshots.plan import distinct_sources

ORDERS = "id long, customer long, v string"
CUSTOMERS = "cid long, region long, w string"
REGIONS = "rid long, r string"

Changes = dict[int, tuple[Any, ...] | None]


class Lake:
    """Three Delta tables in a directory, and their changes."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self._schemas = {"orders": ORDERS, "customers": CUSTOMERS, "regions": REGIONS}

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def write(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        """Make or overwrite a table."""
        add_rows(self.path(name), self._schemas[name], *rows, overwrite=True)

    def change(self, name: str, changes: Changes) -> None:
        """One version: by key, the row to insert or to put in its place (under any key), or None
        to delete.
        """
        columns = [part.split()[0] for part in self._schemas[name].split(", ")]
        rows = [(key, row is None, *(row or [None] * len(columns))) for key, row in changes.items()]
        frame = self.spark.createDataFrame(rows, f"at long, gone boolean, {self._schemas[name]}")
        assigned = ", ".join(f"old.{column} = new.{column}" for column in columns)
        self.spark.sql(
            f"MERGE INTO delta.`{self.path(name)}` AS old USING {{new}} AS new "
            f"ON old.{columns[0]} = new.at WHEN MATCHED AND new.gone THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {assigned} WHEN NOT MATCHED AND NOT new.gone "
            f"THEN INSERT ({', '.join(columns)}) VALUES (new.{', new.'.join(columns)})",
            new=frame.coalesce(1),
        )

    def table(self, name: str) -> dt.SnapshotTable:
        key = self._schemas[name].split()[0]
        return dt.SnapshotTable.from_delta(self.spark, self.path(name), key=key)

    def located(self, how: str, **options: Any) -> dt.SnapshotTable:
        """Orders with their customers."""
        return self.table("orders").join(self.table("customers"), on="customer", how=how, **options)


def check(joined: dt.SnapshotTable, path: str) -> list[int]:
    """The law at every commit; the versions of the target, the first one first."""
    commits = joined.commits(path)[::-1]
    for commit in commits:
        inputs = {
            one.table_id: rows_of(one.path, commit.covered[one.name])
            for one in distinct_sources(joined.plan)
        }
        expected = naive(joined.plan, inputs)
        columns = joined.plan.columns
        stored = rows_of(path, commit.version)
        assert counted(stored, columns) == counted(expected, columns), commit
        assert stored, commit
    return [commit.version for commit in commits]


# What may befall an order and its customer, each case with keys of its own. Customer 10 n is the
# one of case n, 10 n + 1 another; orders 100 n and following are theirs.
NO_CHANGE: Changes = {}
CASES: dict[str, tuple[list[Any], list[Any], Callable[[int, int], tuple[Changes, Changes]]]] = {
    "order inserted": ([], [0], lambda o, c: ({o: (o, c, "n")}, {})),
    "second order inserted": ([0], [0], lambda o, c: ({o + 1: (o + 1, c, "n")}, {})),
    "order updated": ([0, 0], [0], lambda o, c: ({o: (o, c, "n")}, {})),
    "last order deleted": ([0], [0], lambda o, c: ({o: None}, {})),
    "one of two orders deleted": ([0, 0], [0], lambda o, c: ({o: None}, {})),
    "order moves to another customer": ([0], [0, 1], lambda o, c: ({o: (o, c + 1, "n")}, {})),
    "order moves to no customer": ([0], [0], lambda o, c: ({o: (o, c + 5, "n")}, {})),
    "order's key moves": ([0], [0], lambda o, c: ({o: (o + 7, c, "n")}, {})),
    "order comes to name one": ([None], [0], lambda o, c: ({o: (o, c, "n")}, {})),
    "order names none any more": ([0], [0], lambda o, c: ({o: (o, None, "n")}, {})),
    "customer inserted": ([0, 0], [], lambda o, c: ({}, {c: (c, 1, "n")})),
    "customer updated": ([0, 0], [0], lambda o, c: ({}, {c: (c, 2, "n")})),
    "customer deleted": ([0, 0], [0], lambda o, c: ({}, {c: None})),
    "customer's key moves": ([0, 1], [0], lambda o, c: ({}, {c: (c + 1, 1, "n")})),
    "both inserted": ([], [], lambda o, c: ({o: (o, c, "n")}, {c: (c, 1, "n")})),
    "both updated": ([0, 0], [0], lambda o, c: ({o: (o, c, "n")}, {c: (c, 2, "n")})),
    "both deleted": ([0], [0], lambda o, c: ({o: None}, {c: None})),
    "one of two and customer deleted": ([0, 0], [0], lambda o, c: ({o: None}, {c: None})),
    "order inserted, customer deleted": ([], [0], lambda o, c: ({o: (o, c, "n")}, {c: None})),
    "order deleted, customer inserted": ([0], [], lambda o, c: ({o: None}, {c: (c, 1, "n")})),
    "both keys move": ([0], [0], lambda o, c: ({o: (o + 7, c + 1, "n")}, {c: (c + 1, 1, "n")})),
    "order leaves, customer deleted": ([0], [0, 1], lambda o, c: ({o: (o, c + 1, "n")}, {c: None})),
    "order comes, customer inserted": ([1], [1], lambda o, c: ({o: (o, c, "n")}, {c: (c, 1, "n")})),
}  # fmt: skip


def begin(lake: Lake) -> tuple[Changes, Changes]:
    """The tables before all cases, and the changes of all of them."""
    orders: list[tuple[Any, ...]] = []
    customers: list[tuple[Any, ...]] = []
    changes: tuple[Changes, Changes] = ({}, {})
    for number, (left, right, change) in enumerate(CASES.values(), start=1):
        order, customer = 100 * number, 10 * number
        orders += [
            (order + i, None if at is None else customer + at, "o") for i, at in enumerate(left)
        ]
        customers += [(customer + at, at, "o") for at in right]
        for all_of_them, more in zip(changes, change(order, customer), strict=True):
            all_of_them.update(more)
    lake.write("orders", orders)
    lake.write("customers", customers)
    lake.write("regions", [(0, "zero"), (2, "two")])
    return changes


@pytest.fixture(scope="module")
def lake(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(delta_spark, tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="module")
def targets(lake: Lake, request: pytest.FixtureRequest) -> dict[str, dt.SnapshotTable]:
    """A target for each join that is tested, made of the first versions; then the tables change:
    all cases at once, back again in part, and a table overwritten with one other row.
    """
    tested = [item for item in request.session.items if "targets" in item.fixturenames]  # type: ignore[attr-defined]
    names = {item.callspec.params["name"] for item in tested}  # type: ignore[attr-defined]
    orders, customers = begin(lake)
    joins = {how: lake.located(how) for how in ("inner", "left", "right", "outer")}
    regional = {"on": {"customer": "region"}, "how": "outer"}
    joins["many to many"] = lake.table("orders").join(lake.table("customers"), **regional)
    joins["cascade"] = lake.located("left").join(lake.table("regions"), on="region", how="outer")
    regions = lake.located("left").group_by("region")
    joins["aggregate"] = regions.agg(n=F.count("*"), max_id=F.max("id"))
    for name in names:
        joined = joins[name]
        assert [one.version for one in joined.refresh(lake.path(name))] == [0]
    lake.change("orders", orders)
    lake.change("customers", customers)
    back = {key: (key, 20, "back") for key, row in orders.items() if row is None}
    lake.change("orders", {**back, 107: None})
    kept = rows_of(lake.path("customers"), 1)
    rows = [(row["cid"], row["region"], row["w"]) for row in kept if row["cid"] != 20]
    lake.write("customers", [*rows, (999, 2, "new")])
    if "cascade" in names:
        lake.change("regions", {0: None, 1: (1, "one")})
    return joins


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    slow_after(2, ["outer", "aggregate", "inner", "left", "right", "many to many", "cascade"]),
)
def test_every_commit_is_the_join_of_the_versions_that_it_covers(
    lake: Lake, targets: dict[str, dt.SnapshotTable], name: str
) -> None:
    steps = 2 if name in ("outer", "cascade") else 1
    commits = targets[name].refresh(lake.path(name), max_versions=1 if steps == 2 else None)
    assert [one.covered["orders"] for one in commits] == [1, 2][-steps:]
    assert check(targets[name], lake.path(name)) == list(range(steps + 1))


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_is_run_again(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each step of the first run and of a later one; then there is one commit."""
    lake = Lake(delta_spark, tmp_path)
    orders, customers = begin(lake)
    joined = lake.located("outer")
    path = lake.path("target")

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
                joined.refresh(path)

    dies(target.SnapshotTarget, "create", before=True)
    dies(commit_records.CommitRecords, "record_as_json", before=False)
    dies(target.SnapshotTarget, "create", before=False)
    assert joined.refresh(path) == []
    lake.change("orders", orders)
    lake.change("customers", customers)
    dies(target.SnapshotTarget, "present_state", before=False)
    dies(refresh.Deltas, "changes", before=False)
    dies(target.SnapshotTarget, "merge", before=True)
    dies(target.SnapshotTarget, "_present_commit", before=True)
    assert joined.refresh(path) == []
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path('orders')}` SET TBLPROPERTIES (team = 'me')")
    dies(target.SnapshotTarget, "advance_versions", before=True)
    dies(target.SnapshotTarget, "advance_versions", before=False)
    assert joined.refresh(path) == []
    assert check(joined, path) == [0, 1, 2]
