"""Rows of many topologies, explained from a checkpoint as a driver with the same rows does."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail import testing

START = datetime(2026, 5, 1, 10, tzinfo=timezone.utc)
INPUTS: dict[str, tuple[str, list[tuple[int, dict[str, Any]]]]] = {
    "orders": (
        "id long, customer long, shop long, amount long, items array<string>",
        [
            (0, {"id": 1, "customer": 9, "shop": 5, "amount": 10, "items": ["pen", "ink"]}),
            (0, {"id": 2, "customer": 9, "shop": 6, "amount": 20, "items": ["cup"]}),
            (1, {"id": 3, "customer": None, "shop": 5, "amount": 30, "items": []}),
            (7200, {"id": 4, "customer": 8, "shop": 5, "amount": 40, "items": None}),
        ],
    ),
    "customers": (
        "id long, name string",
        [(0, {"id": 9, "name": "ann"}), (1, {"id": 7, "name": "bob"})],
    ),
    "shops": ("id long, city string", [(0, {"id": 5, "city": "Oslo"})]),
    "prices": (
        "id long, item string, price long",
        [
            (0, {"id": 1, "item": "pen", "price": 2}),
            (5, {"id": 1, "item": "cup", "price": 3}),
            (2, {"id": 1, "item": "pen", "price": 9}),
            (3, {"id": 2, "item": "cup", "price": 4}),
        ],
    ),
    "clicks": (
        "page string, customer long",
        [
            (60, {"page": "home", "customer": 9}),
            (70, {"page": "home", "customer": 7}),
            (3700, {"page": "help", "customer": 9}),
        ],
    ),
    "buys": (
        "page string, paid long",
        [(65, {"page": "home", "paid": 4}), (3690, {"page": "help", "paid": 5})],
    ),
    "pages": (
        "page string, title string",
        [(0, {"page": n, "title": n.title()}) for n in ("home", "help")],
    ),
}
STREAMS = {"clicks", "buys"}


def inputs(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """The inputs over folders with their rows."""
    made: dict[str, Any] = {}
    for name, (schema, rows) in INPUTS.items():
        (folder / name).mkdir()
        lines = [
            json.dumps({**row, "at": (START + timedelta(seconds=second)).isoformat()})
            for second, row in rows
        ]
        (folder / name / "1.json").write_text("\n".join(lines))
        frame = spark.readStream.schema(f"{schema}, at timestamp").json(str(folder / name))
        key = "id" if schema.startswith("id") else "page"
        kind: Any = dt.Stream if name in STREAMS else dt.Table
        options = {"versioned": "1 day"} if name == "prices" else {}
        made[name] = kind.from_changelog(frame, key=key, timestamp="at", name=name, **options)
    return made


def results_over(tables: dict[str, Any]) -> dict[str, Any]:
    """The results by name."""
    orders, customers, clicks = (tables[name] for name in ("orders", "customers", "clicks"))
    named = orders.join(customers, on="customer", how="left", select=["shop", "amount", "name"])
    hours = clicks.group_by("page").window(dt.windows.tumbling("1 hour")).agg(n=dt.count())
    return {
        "star": named.join(
            tables["shops"], on="shop", how="left", select=["amount", "name", "city"], name="star"
        ),
        "by_item": tables["prices"].group_by("item").agg(n=dt.count(), most=dt.max("price")),
        "latest": orders.select("customer", "amount").key_by("customer", duplicates="last"),
        "items": orders.select("items").explode("items", position="n"),
        "recent": orders.select("amount").expire(after="1 hour"),
        "both": customers.union(
            tables["shops"].rename({"city": "name"}), source="kind"
        ).materialize(),
        "open": hours.to_table(),
        "titled": hours.join(tables["pages"], select=["n", "title"]).to_table(),
        "pairs": clicks.join(tables["buys"], within=dt.within(before="1 minute", after="1 minute")),
    }


def window(hour: int, **key: Any) -> dict[str, Any]:
    """A key with the window that begins at an hour after the start."""
    start = START + timedelta(hours=hour)
    return {**key, "window_start": start, "window_end": start + timedelta(hours=1)}


KEYS: dict[str, list[Any]] = {
    "star": [1, 2, 3, 4, 5],
    "by_item": ["pen", "cup", "ink"],
    "latest": [9, 8, 1],
    "items": [(1, 1), (1, 2), (2, 0), (3, 0), (4, 0)],
    "recent": [1, 4],
    "both": [(9, "customers"), (5, "shops"), (5, "customers")],
    "open": [window(0, page="home"), window(1, page="help"), window(0, page="help")],
    "titled": [window(0, page="home"), window(1, page="help")],
    "pairs": [{"page": "home"}, {"page": "help"}],
}


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The checkpoint of a query that has ended, its inputs and its results."""
    folder = tmp_path_factory.mktemp("explained")
    tables = inputs(spark, folder)
    results = results_over(tables)
    query = dt.run(
        {result: dt.to_parquet(folder / f"{name}_out") for name, result in results.items()},
        checkpoint=folder / "checkpoint",
        trigger={"availableNow": True},
        buckets=1,
    )
    query.awaitTermination()
    return folder / "checkpoint", tables, results


def restored(spark: SparkSession, tables: dict[str, Any], result: Any) -> testing.Driver:
    """A driver with the state of the same rows, and nothing else, as a checkpoint."""
    driver = testing.Driver(result, spark=spark)
    start_us = int(START.timestamp()) * 1_000_000
    with driver.batch():
        for name, (_, rows) in INPUTS.items():
            if tables[name].plan in result.plan.origins:
                for second, row in rows:
                    driver.pipe(tables[name], row, timestamp=start_us + second * 1_000_000)
    return testing.Driver.restore(result, driver.snapshot(), spark=spark)


@pytest.mark.parametrize("name", KEYS)
def test_a_checkpoint_explains_as_a_driver_does(name: str, spark: SparkSession, ran: Any) -> None:
    checkpoint, tables, results = ran
    driver = restored(spark, tables, results[name])
    explanations = [driver.explain_row(key) for key in KEYS[name]]
    for key, expected in zip(KEYS[name], explanations, strict=True):
        assert dt.checkpoints.explain_row(checkpoint, results[name], key) == expected
    assert "row" in {explanation.presence for explanation in explanations}
    assert any(explanation.input_rows for explanation in explanations) == (name != "open")
