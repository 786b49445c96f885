"""Tables that begin with static frames."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fuzz import seeded
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt

DRAWN = int(os.environ.get("DOVETAIL_CASES", "100")) // 50
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(DRAWN))
def test_a_seeded_query_goes_on_as_after_a_first_micro_batch(
    spark: SparkSession, number: int
) -> None:
    """``DOVETAIL_CASES`` says how many, ``DOVETAIL_SEED`` draws others."""
    assert seeded.difference(seeded.drawn(SEED, number)) is None


ORDERS = "id long, customer string, amount long, at timestamp"
CUSTOMERS = "name string, city string, at timestamp"


def given(folder: Path, name: str, number: int, *rows: dict[str, Any]) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / f"{number}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def totals(spark: SparkSession, folder: Path) -> dt.Table:
    """What is ordered per city: four stages."""
    read = {
        name: spark.readStream.schema(columns).json(str(folder / name))
        for name, columns in (("orders", ORDERS), ("customers", CUSTOMERS))
    }
    orders = dt.Table.from_changelog(read["orders"], key="id", timestamp="at", name="orders")
    customers = dt.Table.from_changelog(
        read["customers"], key="name", timestamp="at", name="customers"
    )
    joined = orders.join(customers, on="customer", select=["amount", "city"])
    return joined.group_by("city").agg(total=dt.sum("amount"), n=dt.count())


def frames(spark: SparkSession) -> dict[str, DataFrame]:
    time = "timestamp'2024-05-01 00:00:00'"
    history = [
        (1, "ann", 10, "upsert", 0),
        (2, "bob", 20, "upsert", 0),
        (3, "ann", 30, None, 0),
        (4, None, None, "delete", 1),
        (4, "ann", 40, "upsert", 0),
    ]
    orders = spark.createDataFrame(
        history, "id long, customer string, amount long, _change string, second int"
    )
    customers = spark.createDataFrame(
        [("ann", "Oslo"), ("bob", "Rome")], "name string, city string"
    )
    return {
        "orders": orders.selectExpr("*", f"{time} + make_dt_interval(0, 0, 0, second) AS at"),
        "customers": customers.selectExpr("*", f"{time} AS _timestamp"),
    }


@pytest.mark.slow
def test_a_start_that_fails_goes_on_with_what_was_stored(
    spark: SparkSession, tmp_path: Path
) -> None:
    at = {"at": "2024-05-01T10:00:00Z"}
    given(tmp_path, "orders", 1, {"id": 1, "customer": "ann", "amount": 11} | at)
    given(tmp_path, "customers", 1, {"name": "bob", "city": "Oslo"} | at)
    emitted: list[Any] = []

    def refuse(changes: DataFrame, batch: int) -> None:
        raise ValueError("the target is not there")

    def collect(changes: DataFrame, batch: int) -> None:
        rows = changes.orderBy("_position").collect()
        emitted.append([(r["city"], r["_change"], r["total"], r["n"]) for r in rows])

    def run(sink: Any, **options: Any) -> None:
        query = totals(spark, tmp_path).write_stream(
            dt.to_foreach_batch(sink),
            checkpoint=tmp_path / "checkpoint",
            buckets=1,
            trigger={"availableNow": True},
            emit="batch",
            **options,
        )
        query.awaitTermination()

    with pytest.raises(Exception, match="the target is not there"):
        run(refuse, initial=frames(spark))
    run(collect)
    assert sorted(emitted.pop()) == [("Oslo", "upsert", 61, 3), ("Rome", "delete", None, None)]
    assert (tmp_path / "checkpoint/initial").exists()
    given(tmp_path, "orders", 2, {"id": 4, "customer": "ann", "amount": 1} | at)
    run(collect, initial=frames(spark))
    assert emitted == [[("Oslo", "upsert", 62, 4)]]
    assert not (tmp_path / "checkpoint/initial").exists()


def test_frames_that_do_not_fit_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    given(tmp_path, "orders", 1)
    given(tmp_path, "customers", 1)
    topology, own = totals(spark, tmp_path), frames(spark)
    for initial, problem in (
        ({"order": own["orders"]}, "names 'order', which is no table of .* orders, customers"),
        ({"orders": own["orders"].drop("amount")}, "column 'amount' is missing"),
        ({"orders": own["orders"].selectExpr("*", "1 AS x").drop("at")}, "has no time"),
        (
            {"orders": own["orders"].withColumn("amount", own["orders"]["amount"].cast("int"))},
            "column 'amount' is int. Give it once, as bigint",
        ),
        ({"orders": own["orders"].drop("at").selectExpr("*", "1L AS at")}, "is no timestamp"),
        ({"orders": spark.readStream.format("rate").load()}, "is a streaming one"),
        ([own["orders"]], "Give a mapping of tables' names to frames"),
    ):
        with pytest.raises(dt.errors.PlanError, match=problem):
            topology.write_stream(
                dt.to_memory("none"), checkpoint=tmp_path / "checkpoint", initial=initial
            )
    with pytest.raises(dt.errors.ConfigurationError, match="its path has a ' '"):
        topology.write_stream(dt.to_memory("none"), checkpoint=tmp_path / "a b", initial=own)
    first, second = (
        dt.Table.from_changelog(
            spark.readStream.schema(f"id long, {name} long, at timestamp").json(
                str(tmp_path / "orders")
            ),
            key="id",
            timestamp="at",
        )
        for name in ("x", "y")
    )
    with pytest.raises(dt.errors.PlanError, match=r"'table\[id\]', as several inputs of .* called"):
        first.join(second).write_stream(
            dt.to_memory("none"),
            checkpoint=tmp_path / "checkpoint",
            initial={"table[id]": own["orders"]},
        )
    assert not {"checkpoint", "a b"} & {path.name for path in tmp_path.iterdir()}
