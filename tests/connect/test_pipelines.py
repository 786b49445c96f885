"""A topology in a declarative pipeline: the page's own, run twice by Spark's command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from bench.parameters import slow_after
from connect_server import Client
from doc_examples import ROOT, blocks
from pyspark.sql import SparkSession

PAGE = ROOT / "docs" / "pipelines.md"
COMMAND = Path(pyspark.__file__).parent / "pipelines" / "cli.py"
SPECIFICATION = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FIRST = {
    "orders": [(1, "ann", 5, 0), (2, "bob", 7, 1), (3, "ann", 9, 2)],
    "customers": [("ann", "Oslo", 0), ("bob", "Rome", 0)],
}
THEN = {"orders": [(2, "ann", 70, 3), (3, None, None, 4)], "customers": [("ann", "Bergen", 5)]}
COLUMNS = {"orders": ("id", "customer", "amount"), "customers": ("name", "city")}


def come(folder: Path, number: int, given: dict[str, list[tuple[Any, ...]]]) -> None:
    """A file of changes for each table; an order without a customer deletes."""
    for table, rows in given.items():
        lines = [
            dict(zip(COLUMNS[table], row[:-1], strict=True))
            | {"at": f"2024-05-01T10:{row[-1]:02}:00Z", "gone": row[1] is None}
            for row in rows
        ]
        path = folder / "data" / table / f"{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(map(json.dumps, lines)))


def project(folder: Path, *, without: str = "") -> Path:
    """The page's pipeline; ``without``: a setting that is left out."""
    (code,) = blocks(PAGE)
    (found,) = SPECIFICATION.findall(PAGE.read_text())
    lines = [line for line in found.splitlines() if not without or without not in line]
    (folder / "transformations").mkdir()
    (folder / "transformations" / "orders.py").write_text(
        code.replace('"data/', f'"{folder}/data/')
    )
    path = folder / "spark-pipeline.yml"
    path.write_text("\n".join(lines).replace("/pipelines/orders", f"{folder}/storage"))
    return path


def run(client: Client, specification: Path) -> subprocess.CompletedProcess[str]:
    """As ``spark-pipelines run``, on the server."""
    return subprocess.run(
        [sys.executable, str(COMMAND), "run", "--spec", str(specification)],
        env=os.environ | {"SPARK_REMOTE": client.server.address},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def prepared(spark: SparkSession) -> None:
    """Make the catalog's schema, which is there when it has a table."""
    spark.sql("CREATE TABLE IF NOT EXISTS lake.shop.other (id long)").collect()


def stored(spark: SparkSession, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.table(f"lake.shop.{table}").select(*columns).collect()))


@pytest.mark.slow
def test_a_pipelines_table_has_the_present_rows_after_each_run(
    merging_client: Client, tmp_path: Path
) -> None:
    merging_client.run(prepared)
    specification = project(tmp_path)
    rows = ["id", "amount", "city"]
    come(tmp_path, 1, FIRST)
    ran = run(merging_client, specification)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    first = [(1, 5, "Oslo"), (2, 7, "Rome"), (3, 9, "Oslo")]
    assert merging_client.run(stored, "enriched_orders", rows) == first
    come(tmp_path, 2, THEN)
    ran = run(merging_client, specification)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert merging_client.run(stored, "enriched_orders", rows) == [
        (1, 5, "Bergen"),
        (2, 70, "Bergen"),
    ]
    history = merging_client.run(stored, "order_history", ["id", "_position", "_change", "city"])
    assert [(row[0], *row[2:]) for row in history] == [
        *((1, "upsert", "Oslo"), (1, "upsert", "Bergen")),
        *((2, "upsert", "Rome"), (2, "upsert", "Oslo"), (2, "upsert", "Bergen")),
        *((3, "upsert", "Oslo"), (3, "delete", None)),
    ]


@pytest.mark.parametrize(
    "setting", slow_after(1, ["providerClass", "spark.sql.debug.maxToStringFields"])
)
def test_a_setting_that_a_pipeline_lacks_is_named(
    merging_client: Client, tmp_path: Path, setting: str
) -> None:
    merging_client.run(prepared)
    come(tmp_path, 1, FIRST)
    ran = run(merging_client, project(tmp_path, without=setting))
    assert ran.returncode != 0
    said = [line for line in ran.stderr.splitlines() if "dovetail" in line and "Error" in line]
    assert any(setting in line for line in said), ran.stderr
