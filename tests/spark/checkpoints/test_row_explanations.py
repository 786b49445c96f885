"""``explain_row`` of queries and checkpoints: the same as a driver that is fed the same rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing
from dovetail.command.why import why
from dovetail.errors import CheckpointError, ConfigurationError, PlanError

ORDERS = [
    {"id": 1, "customer": 9, "amount": 10},
    {"id": 2, "customer": 9, "amount": 20},
    {"id": 3, "customer": 8, "amount": 30},
    {"id": 4, "customer": None, "amount": 40},
]
PAYMENTS = [{"id": 2, "paid": 5}]
CUSTOMERS = [{"id": 9, "name": "ann"}, {"id": 7, "name": "bob"}]
FED = {"orders": ORDERS, "payments": PAYMENTS, "customers": CUSTOMERS}
SCHEMAS = {
    "orders": "id long, customer long, amount long",
    "payments": "id long, paid long",
    "customers": "id long, name string",
}


def put(folder: Path, name: str, rows: list[dict[str, Any]], second: int) -> None:
    at = f"2026-05-01T10:00:0{second}Z"
    lines = [json.dumps({**row, "at": at}) for row in rows]
    (folder / name).mkdir(exist_ok=True)
    (folder / name / f"{second}.json").write_text("\n".join(lines))


def shop(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """The inputs, and the results ``named`` and ``totals``."""
    tables: dict[str, Any] = {
        name: dt.Table.from_changelog(
            spark.readStream.schema(f"{schema}, at timestamp").json(str(folder / name)),
            key="id",
            timestamp="at",
            name=name,
        )
        for name, schema in SCHEMAS.items()
    }
    due = (F.col("amount") - F.coalesce("paid", F.lit(0))).alias("due")
    paid = (
        tables["orders"]
        .where("amount > 10")
        .join(tables["payments"], how="left", select=["customer", due], name="paid")
    )
    named = paid.join(
        tables["customers"], how="outer", on="customer", select=["due", "name"], name="named"
    )
    return {**tables, "paid": paid, "named": named, "totals": totals_of(paid)}


def totals_of(paid: dt.Table) -> dt.Table:
    return paid.group_by("customer").agg(total=dt.sum("due"), orders=dt.count())


KEYS: dict[str, list[Any]] = {
    "named": [(1, None), (2, None), (3, None), (4, None), (None, 7), (None, 9), (5, None)],
    "totals": [9, 8, 5],
    "paid": [1, 2, 5],
}


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A query that has ended, its tables, its checkpoint, and a driver that was fed the same."""
    folder = tmp_path_factory.mktemp("explained")
    for second, (name, rows) in enumerate(FED.items()):
        put(folder, name, rows, second)
    tables = shop(spark, folder)
    sinks = {tables[name]: dt.to_parquet(folder / f"{name}_out") for name in ("named", "totals")}
    query = dt.run(
        sinks, checkpoint=folder / "checkpoint", trigger={"availableNow": True}, buckets=2
    )
    query.awaitTermination()
    driver = testing.Driver(tables["named"], tables["totals"], spark=spark)
    start_us = 1_777_629_600_000_000
    for second, (name, rows) in enumerate(FED.items()):
        driver.pipe(tables[name], rows, timestamp=start_us + second * 1_000_000)
    return query, tables, folder / "checkpoint", driver


@pytest.mark.parametrize("name", KEYS)
def test_a_query_explains_its_rows_as_a_driver_does(name: str, ran: Any) -> None:
    query, tables, _, driver = ran
    for key in KEYS[name]:
        expected = driver.explain_row(key, tables[name])
        assert query.explain_row(key, tables[name].plan.name) == expected, f"{expected}"


def test_rows_and_their_reasons(ran: Any) -> None:
    query, *_ = ran
    assert repr(query.explain_row((2, None), "named")) == (
        "named, outer join by foreign key customer: "
        "id 2, right_id null: due=15, name='ann' @2026-05-01T10:00:02Z\n"
        "├─ paid, left join by key: id 2: customer=9, due=15 @2026-05-01T10:00:01Z\n"
        "│  ├─ where amount > 10: id 2: customer=9, amount=20 @2026-05-01T10:00:00Z\n"
        "│  │  └─ orders: id 2: customer=9, amount=20 @2026-05-01T10:00:00Z\n"
        "│  └─ payments: id 2: paid=5 @2026-05-01T10:00:01Z\n"
        "└─ customers: id 9: name='ann' @2026-05-01T10:00:02Z"
    )
    assert query.explain_row((1, None), "named").reason == (
        "orders has no row with id 1, or none that meets `amount > 10`"
    )
    assert query.explain_row((None, 9), "named").presence == "none"
    assert query.explain_row((None, 7), "named").values == {"due": None, "name": "bob"}


def test_a_checkpoint_explains_them_too(ran: Any) -> None:
    _, tables, checkpoint, driver = ran
    results = [tables["named"], tables["totals"]]
    expected = driver.explain_row(9, tables["totals"])
    name = tables["totals"].plan.name
    assert dt.checkpoints.explain_row(checkpoint, results, 9, result=name) == expected
    assert dt.checkpoints.explain_row(checkpoint, tables["totals"], {"customer": 9}) == expected
    assert [row.key for row in expected.input_rows] == [{"id": 2}, {"id": 2}]


def test_the_command_prints_it(
    ran: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, tables, checkpoint, driver = ran
    module = ModuleType("explained_shop")
    vars(module)["totals"] = tables["totals"]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    expected = driver.explain_row(9, tables["totals"])
    why(str(checkpoint), "explained_shop:totals", ["customer=9"])
    assert capsys.readouterr().out == f"{expected}\n"
    why(str(checkpoint), "explained_shop:totals", ["customer=9"], as_json=True)
    assert json.loads(capsys.readouterr().out) == expected.to_dict()
    with pytest.raises(PlanError, match="customer=x is no int64"):
        why(str(checkpoint), "explained_shop:totals", ["customer=x"])


def test_other_names_and_topologies_are_refused(ran: Any) -> None:
    query, tables, checkpoint, _ = ran
    with pytest.raises(ConfigurationError, match="several results"):
        query.explain_row(1)
    with pytest.raises(ConfigurationError, match="nothing in the topology is called 'nope'"):
        query.explain_row(1, "nope")
    with pytest.raises(CheckpointError):
        dt.checkpoints.explain_row(checkpoint, tables["paid"].drop("due"), 1)
