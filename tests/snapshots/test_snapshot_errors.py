"""Targets and sources that cannot be gone on with: what is refused, and what it says."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.parameters import slow_after
from delta_rows import add_rows, rows_of
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail.platform import delta_tables
from dovetail.snapshots import plan

LEFT, RIGHT = "id long, fk long, v string", "k long, w string"


class Tables:
    """Two tables and a target."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.left, self.right, self.target = (str(directory / n) for n in ("left", "right", "to"))

    def sql(self, text: str) -> None:
        self.spark.sql(text.format(l=f"delta.`{self.left}`", r=f"delta.`{self.right}`",
                                   t=f"delta.`{self.target}`"))  # fmt: skip

    def joined(self, how: str = "left", **options: Any) -> dt.SnapshotTable:
        left = dt.SnapshotTable.from_delta(self.spark, self.left, key="id")
        right = dt.SnapshotTable.from_delta(self.spark, self.right, key="k")
        return left.join(right, on="fk", how=how, **options)

    def stored(self) -> set[tuple[Any, ...]]:
        return {tuple(row.values()) for row in rows_of(self.target)}


@pytest.fixture
def tables(delta_spark: SparkSession, tmp_path: Path) -> Tables:
    made = Tables(delta_spark, tmp_path)
    add_rows(made.left, LEFT, (1, 10, "a"), (2, 20, "b"))
    add_rows(made.right, RIGHT, (10, "x"), (30, "z"))
    return made


def refused(error: type[Exception], run: Callable[[], Any], *parts: str) -> None:
    with pytest.raises(error) as raised:
        run()
    for part in parts:
        assert part in str(raised.value), raised.value


@pytest.mark.slow
def test_duplicate_keys_are_counted_and_refused_whenever_they_come(tables: Tables) -> None:
    joined = tables.joined()
    joined.refresh(tables.target)
    before = tables.stored()
    tables.sql("INSERT INTO {l} VALUES (2, 10, 'known'), (3, 10, 'new')")
    refused(
        dt.errors.DataError, lambda: joined.refresh(tables.target), "left", "1 keys occur more than"
    )
    tables.sql("DELETE FROM {l} WHERE v = 'known'")
    refused(
        dt.errors.DataError,
        lambda: joined.refresh(tables.target),
        "more than once (id) in version 2",
    )
    assert tables.stored() == before
    joined.refresh(tables.target, rebuild=True)
    assert tables.stored() == {(1, 10, "a", "x"), (2, 20, "b", None), (3, 10, "new", "x")}
    tables.sql("INSERT INTO {r} VALUES (40, 'm'), (40, 'n'), (50, 'm'), (50, 'n')")
    refused(dt.errors.DataError, lambda: joined.refresh(tables.target), "right: 2 keys occur")
    refused(
        dt.errors.DataError, lambda: joined.refresh(tables.target, rebuild=True), "right: 2 keys"
    )
    tables.sql("DELETE FROM {r} WHERE k >= 40")
    tables.sql("INSERT INTO {r} VALUES (NULL, 'm')")
    refused(
        dt.errors.DataError,
        lambda: joined.refresh(tables.target, rebuild=True),
        "1 rows have a null",
    )


@pytest.mark.long
def test_keys_of_one_hash_are_told_apart(tables: Tables) -> None:
    path, columns = f"{tables.left}-pairs", "a long, b long, v string"
    rows = [(1, None, "x"), (None, 1, "y")]  # a hash skips nulls
    add_rows(path, columns, *rows)
    pairs = dt.SnapshotTable.from_delta(tables.spark, path, key=["a", "b"])
    pairs.refresh(tables.target)
    assert tables.stored() == set(rows)
    add_rows(path, columns, (1, None, "z"))
    for options in ({"rebuild": True}, {"way": "all"}):
        again = lambda: pairs.refresh(tables.target, **options)  # noqa: B023, E731
        refused(dt.errors.DataError, again, "1 keys occur more than once (a, b) in version 1")


@pytest.mark.slow
def test_a_target_changed_by_others_is_refused_until_it_is_rebuilt(tables: Tables) -> None:
    joined = tables.joined()
    joined.refresh(tables.target)
    tables.sql("OPTIMIZE {t}")
    tables.sql("ALTER TABLE {t} SET TBLPROPERTIES (team = 'me')")
    assert joined.refresh(tables.target) == []
    tables.sql("DELETE FROM {t} WHERE id = 1")
    parts = ("is a DELETE of somebody else", "rebuild=True")
    refused(dt.errors.TargetError, lambda: joined.refresh(tables.target), *parts)
    (commit,) = joined.refresh(tables.target, rebuild=True)
    assert tables.stored() == {(1, 10, "a", "x"), (2, 20, "b", None)}
    assert joined.refresh(tables.target) == []
    assert [one.version for one in joined.commits(tables.target)] == [commit.version, 0]


@pytest.mark.long
def test_another_join_and_a_table_that_is_none(tables: Tables) -> None:
    tables.joined().refresh(tables.target)
    parts = ("holds another join", "how was 'left' and is 'inner'", "rebuild=True")
    refused(dt.errors.TargetError, lambda: tables.joined("inner").refresh(tables.target), *parts)
    tables.joined("inner").refresh(tables.target, rebuild=True)
    assert tables.stored() == {(1, 10, "a", "x")}
    foreign = tables.target + "-foreign"
    add_rows(foreign, RIGHT, (1, "mine"))
    parts = ("has no commit of a join over snapshots",)
    refused(dt.errors.TargetError, lambda: tables.joined().refresh(foreign), *parts)
    run = lambda: tables.joined().refresh(foreign, rebuild=True)  # noqa: E731
    refused(dt.errors.TargetError, run, "is not one of a join over snapshots", "not overwritten")


@pytest.mark.slow
def test_a_source_whose_schema_changes(tables: Tables) -> None:
    joined = tables.joined(select=["v", "w"])
    joined.refresh(tables.target)
    add_rows(tables.left, LEFT + ", more int", (3, 10, "c", 1))
    joined.refresh(tables.target)
    assert tables.stored() == {(1, "a", "x"), (2, "b", None), (3, "c", "x")}
    tables.joined(select=["v", "w"]).refresh(tables.target)
    wide = "id long, fk long, v int"
    add_rows(tables.left, wide, (1, 10, 5), overwrite=True)
    parts = ("snapshot left", "column 'v' was string when the join was written and now is int")
    refused(dt.errors.TargetError, lambda: joined.refresh(tables.target), *parts)
    again = tables.joined(select=["v", "w"])
    parts = ("left.columns.v was 'string' and is 'int'", "rebuild=True")
    refused(dt.errors.TargetError, lambda: again.refresh(tables.target), *parts)
    again.refresh(tables.target, rebuild=True)
    assert tables.stored() == {(1, 5, "x")}


@pytest.mark.slow
def test_columns_that_the_join_does_not_use_are_renamed_and_dropped(tables: Tables) -> None:
    """Between changes that one step reads."""
    tables.sql("ALTER TABLE {l} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    tables.sql("ALTER TABLE {l} ADD COLUMNS (note string, more int)")
    joined = tables.joined(select=["v", "w"])
    joined.refresh(tables.target)
    for change in ("RENAME COLUMN note TO remark", "DROP COLUMN more", "ADD COLUMN more string"):
        tables.sql("UPDATE {l} SET v = concat(v, '+') WHERE id = 1")
        tables.sql("ALTER TABLE {l} " + change)
    tables.sql("INSERT INTO {l} VALUES (3, 10, 'c', 'n', 'm')")
    tables.sql("DELETE FROM {l} WHERE id = 2")
    assert len(joined.refresh(tables.target)) == 1
    assert tables.stored() == {(1, "a+++", "x"), (3, "c", "x")}
    tables.sql("UPDATE {l} SET v = 'd' WHERE id = 3")
    tables.sql("ALTER TABLE {l} RENAME COLUMN v TO was")
    tables.sql("ALTER TABLE {l} ADD COLUMN v string")
    tables.sql("INSERT INTO {l} (id, fk, v) VALUES (4, 10, 'e')")
    parts = ("snapshot left: column 'v' is not the one that version 10 has", "rebuild=True")
    refused(dt.errors.TargetError, lambda: joined.refresh(tables.target), *parts)
    joined.refresh(tables.target, rebuild=True)
    assert tables.stored() == {(1, None, "x"), (3, None, "x"), (4, "e", "x")}


@pytest.mark.slow
def test_an_unused_column_of_a_source_that_is_overwritten(tables: Tables) -> None:
    add_rows(tables.left, LEFT + ", more int", (3, 10, "c", 1))
    joined = tables.joined(select=["v", "w"])
    joined.refresh(tables.target)
    rows = [(1, 10, "d", "now text"), (3, 30, "c", None)]
    add_rows(tables.left, LEFT + ", more string", *rows, overwrite=True)
    add_rows(tables.left, LEFT, (4, 10, "e"), overwrite=True)
    add_rows(tables.left, LEFT, (5, 10, "f"))
    joined.refresh(tables.target)
    assert tables.stored() == {(4, "e", "x"), (5, "f", "x")}


@pytest.mark.slow
def test_a_source_without_its_changes(tables: Tables) -> None:
    tables.sql("ALTER TABLE {l} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    joined = tables.joined()
    parts = ("snapshot left: its change data feed is not enabled", "ALTER TABLE delta.`",
             "SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")  # fmt: skip
    refused(dt.errors.ConfigurationError, lambda: joined.refresh(tables.target), *parts)
    tables.sql("ALTER TABLE {l} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    joined.refresh(tables.target)
    tables.sql("ALTER TABLE {l} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    add_rows(tables.left, LEFT, (3, 30, "c"))
    tables.sql("ALTER TABLE {l} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    parts = ("no longer has its changes", "rebuild=True")
    refused(dt.errors.TargetError, lambda: joined.refresh(tables.target), *parts)
    joined.refresh(tables.target, rebuild=True)
    tables.sql("UPDATE {l} SET v = 'c2' WHERE id = 3")
    shutil.rmtree(Path(tables.left) / "_change_data")
    refused(dt.errors.TargetError, lambda: joined.refresh(tables.target), *parts)


@pytest.mark.long
def test_missing_files_are_errors_whatever_the_session_says(tables: Tables) -> None:
    joined = tables.joined()
    joined.refresh(tables.target)
    tables.sql("UPDATE {l} SET v = 'c' WHERE id = 1")
    shutil.rmtree(Path(tables.left) / "_change_data")
    for ignored in ("Missing", "Corrupt"):
        tables.spark.conf.set(f"spark.sql.files.ignore{ignored}Files", "true")
    try:
        parts = ("no longer has its changes", "rebuild=True")
        refused(dt.errors.TargetError, lambda: joined.refresh(tables.target), *parts)
        for file in Path(tables.left).glob("*.parquet"):
            file.unlink()
        with pytest.raises(Exception, match="FILE_NOT_EXIST"):
            joined.to_batch().collect()
    finally:
        for ignored in ("Missing", "Corrupt"):
            tables.spark.conf.unset(f"spark.sql.files.ignore{ignored}Files")


@pytest.mark.long
def test_a_source_that_is_another_table(tables: Tables) -> None:
    joined = tables.joined()
    joined.refresh(tables.target)
    shutil.rmtree(tables.right)
    tables.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    add_rows(tables.right, RIGHT, (10, "other"))
    refused(
        dt.errors.TargetError, lambda: joined.refresh(tables.target), "right", "has been replaced"
    )
    parts = ("snapshot right", "has been replaced", "Write the join anew from the present table")
    refused(dt.errors.TargetError, joined.to_batch, *parts)
    assert tables.joined().to_batch({"left": 0}).columns == joined.schema.names
    again = tables.joined()
    refused(dt.errors.TargetError, lambda: again.refresh(tables.target), "right.table was")


@pytest.mark.long
@pytest.mark.parametrize("swapped", slow_after(1, [True, False]))
def test_one_table_under_two_names_and_keys(tables: Tables, swapped: bool) -> None:
    path = f"{tables.left}-one"
    add_rows(path, "id long, g long", (1, 10), (2, 20))
    left = dt.SnapshotTable.from_delta(tables.spark, path, key="g", name="left")
    right = dt.SnapshotTable.from_delta(tables.spark, path, key="id", name="right")
    sides = (right, left) if swapped else (left, right)
    joined = sides[0].join(sides[1], on={"id": "id"}, select=[])
    (commit,) = joined.refresh(tables.target)
    assert commit.covered == {"left": 0, "right": 0}
    tables.sql(f"INSERT INTO delta.`{path}` VALUES (3, 10)")
    assert joined.to_batch({"left": 0}).count() == 2
    both = lambda: joined.to_batch({"left": 0, "right": 1})  # noqa: E731
    refused(dt.errors.PlanError, both, "two versions of one table")
    for options in ({}, {"rebuild": True}):
        again = lambda: joined.refresh(tables.target, **options)  # noqa: B023, E731
        refused(dt.errors.DataError, again, "snapshot left: 1 keys occur more than once (g)")


@pytest.mark.parametrize("same_step", [True, False])
def test_a_writer_that_comes_between_is_noticed(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, same_step: bool
) -> None:
    """Another process goes on from the same version after this one has read what is covered.

    Its step is this one's if it covers the same versions. Else this one is refused, and the next
    refresh goes on from there.
    """
    from dovetail.snapshots import refresh

    joined = tables.joined()
    joined.refresh(tables.target)
    tables.sql("INSERT INTO {l} VALUES (3, 30, 'c')")
    changes = refresh.Deltas.changes
    covered = 1 if same_step else 2

    def slow(self: Any, root: Any) -> Any:
        monkeypatch.setattr(refresh.Deltas, "changes", changes)
        if not same_step:
            tables.sql("INSERT INTO {l} VALUES (4, 30, 'd')")
        joined.refresh(tables.target)
        return changes(self, root)

    monkeypatch.setattr(refresh.Deltas, "changes", slow)
    again = lambda: joined.refresh(tables.target, way="changes")  # noqa: E731
    if same_step:
        (step,) = again()
        assert step.covered == {"left": 1, "right": 0}
    else:
        refused(dt.errors.TargetError, again, "another writer has committed meanwhile")
    assert again() == []
    assert [one.covered for one in joined.commits(tables.target)] == [
        {"left": covered, "right": 0},
        {"left": 0, "right": 0},
    ]


@pytest.mark.slow
def test_maintaining_goes_on_until_it_fails(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[set[tuple[Any, ...]]] = []
    changes = iter(["UPDATE {l} SET fk = 30 WHERE id = 1", "DELETE FROM {t}"])

    def between(seconds: float) -> None:
        assert seconds == 0.1
        found.append(tables.stored())
        tables.sql(next(changes))

    monkeypatch.setattr("dovetail.snapshots.table.sleep", between)
    with pytest.raises(dt.errors.TargetError):
        tables.joined().maintain(tables.target, every="100 ms")
    assert found == [
        {(1, 10, "a", "x"), (2, 20, "b", None)},
        {(1, 30, "a", "z"), (2, 20, "b", None)},
    ]


@pytest.mark.slow
def test_tables_of_a_catalog_and_relative_paths(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of a target: made, followed, advanced, rebuilt, maintained."""
    own = [tables.left, tables.right, tables.target]
    tables.spark.sql(f"CREATE DATABASE shop LOCATION '{Path(tables.target).parent}/shop'")
    try:
        for name, path in zip(("orders", "`customers`"), own[:2], strict=True):
            tables.spark.sql(f"CREATE TABLE shop.{name} USING delta LOCATION '{path}'")
        left = dt.SnapshotTable.from_delta(tables.spark, table="shop.orders", key="id")
        right = dt.SnapshotTable.from_delta(tables.spark, table="shop.`customers`", key="k")
        assert [left.plan.name, right.plan.name] == ["orders", "customers"]
        by_name = left.join(right, on="fk", how="left")
        relative = tables.joined()
        paths = {"left": tables.left, "right": tables.right}
        for name, path in paths.items():
            setattr(tables, name, os.path.relpath(path))
        by_path = tables.joined()
        for name, path in paths.items():
            setattr(tables, name, path)
        assert [one.path for one in plan.sources(by_path.plan)] == [
            one.path for one in plan.sources(relative.plan)
        ]
        target = Path(os.path.relpath(tables.target))

        def stored() -> set[tuple[Any, ...]]:
            rows = {tuple(row) for row in tables.spark.table("shop.located").collect()}
            assert rows == tables.stored()
            return rows

        def refresh(**options: Any) -> list[int | None]:
            made = by_name.refresh(table="shop.located", **options)
            assert [c.version for c in by_path.refresh(target, **options)] == [
                c.version for c in made
            ]
            return [commit.changed for commit in made]

        assert refresh() == [None]
        assert stored() == {(1, 10, "a", "x"), (2, 20, "b", None)}
        tables.sql("UPDATE {l} SET fk = 30 WHERE id = 1")
        assert refresh() == [1]
        assert stored() == {(1, 30, "a", "z"), (2, 20, "b", None)}
        tables.sql("INSERT INTO {r} VALUES (40, 'n')")
        assert refresh() == [0]
        tables.spark.sql("ALTER TABLE shop.located SET TBLPROPERTIES (team = 'me')")
        assert delta_tables.property_of(tables.spark, "shop.located", "team") == "me"
        assert by_name.refresh(table="shop.located", rebuild=True)[0].version == 4
        assert delta_tables.property_of(tables.spark, "shop.located", "team") == "me"
        assert len(by_name.commits(table="shop.located")) == 4
        assert len(by_path.commits(target)) == 3
        tables.sql("DELETE FROM {l} WHERE id = 2")
        monkeypatch.setattr("dovetail.snapshots.table.sleep", _end)
        with pytest.raises(KeyboardInterrupt):
            by_name.maintain(table="shop.located")
        by_path.refresh(target)
        assert stored() == {(1, 30, "a", "z")}
    finally:
        tables.spark.sql("DROP DATABASE shop CASCADE")


def _end(seconds: float) -> None:
    raise KeyboardInterrupt


def test_arguments(tables: Tables) -> None:
    joined = tables.joined()
    refused(
        dt.errors.PlanError,
        lambda: joined.refresh(tables.target, max_versions=0),
        "max_versions= is 0",
    )
    refused(dt.errors.PlanError, lambda: joined.maintain(tables.target, every="soon"), "not a span")
    refused(
        dt.errors.PlanError, lambda: joined.to_batch({"up": 1}), "unknown table 'up'", "left, right"
    )
    assert len(joined.to_batch({"left": 0}).collect()) == 2
    refused(
        dt.errors.ConfigurationError,
        lambda: joined.to_batch({"left": 1 << 40}),
        "versions= cannot be read",
    )
    for given in ({}, {"target": "a", "table": "b"}):
        for run in (joined.refresh, joined.maintain, joined.commits):
            message = f"{run.__name__}: it needs a path or table="
            refused(dt.errors.PlanError, lambda: run(**given), message)  # noqa: B023
    refused(
        dt.errors.PlanError,
        lambda: dt.SnapshotTable.from_delta(tables.spark, key="id"),
        "needs a path",
    )
