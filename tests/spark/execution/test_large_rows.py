"""Rows that are larger than a part of a packed row, in all ways through a query."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from small_session import applied
from timed_files import timed_file

import dovetail as dt
from dovetail.platform.arrow_batches import UNIT_BYTES

BYTES = 4 * UNIT_BYTES
"""Of a text of hexadecimal digits, which LZ4 can at most halve."""


def text(name: str) -> str:
    return random.Random(name).randbytes(BYTES // 2).hex()


@pytest.mark.parametrize(("buckets", "large_types"), [(1, "false"), (2, "false"), (2, "true")])
def test_rows_of_several_parts_arrive_whole(
    spark: SparkSession, tmp_path: Path, buckets: int, large_types: str
) -> None:
    """Two results of two joins, whose rows pass each other's stages, over two micro-batches."""
    with applied(spark, {"spark.sql.execution.arrow.useLargeVarTypes": large_types}):
        _judge_rows_of_several_parts(spark, tmp_path, buckets)


def _judge_rows_of_several_parts(spark: SparkSession, tmp_path: Path, buckets: int) -> None:
    rows: dict[str, list[list[dict[str, Any]]]] = {
        "orders": [
            [{"id": n, "customer": n % 3, "v": text(f"order {n}")} for n in range(6)],
            [{"id": 1, "customer": 2, "v": text("changed")}],
        ],
        "customers": [
            [{"id": n, "w": text(f"customer {n}")} for n in range(3)],
            [{"id": 0, "w": text("moved")}],
        ],
    }
    tables = {}
    for name, columns in {"orders": "customer long, v string", "customers": "w string"}.items():
        (tmp_path / name).mkdir()
        for number, batch in enumerate(rows[name]):
            lines = (json.dumps(row | {"at": f"2024-05-01T10:0{number}:00Z"}) for row in batch)
            with timed_file(tmp_path / name / f"{number}.json", number) as path:
                path.write_text("\n".join(lines))
        read = spark.readStream.schema(f"id long, {columns}, at timestamp")
        frame = read.option("maxFilesPerTrigger", 1).json(str(tmp_path / name))
        tables[name] = dt.Table.from_changelog(frame, key="id", timestamp="at", name=name)
    orders, customers = tables["orders"], tables["customers"]
    by_customer = orders.join(customers, on="customer", how="left", name="by customer")
    by_id = orders.join(customers, how="left", select=["v", "w"], name="by id")
    latest: dict[str, dict[int, Any]] = defaultdict(dict)

    def take(name: str) -> dt.typing.Sink:
        def function(changes: DataFrame, _: int) -> None:
            for row in changes.collect():
                latest[name][row.id] = (row.v, row.w)

        return dt.to_foreach_batch(function)

    query = dt.run(
        {by_customer: take("by customer"), by_id: take("by id")},
        checkpoint=tmp_path / "checkpoint",
        trigger={"availableNow": True},
        buckets=buckets,
        partitions=1,
    )
    query.awaitTermination()
    assert len([p for p in query.recentProgress if p.numInputRows]) == 2
    last = {
        name: {row["id"]: row for batch in batches for row in batch}
        for name, batches in rows.items()
    }
    names = {n: row["w"] for n, row in last["customers"].items()}
    orders_last = last["orders"].values()
    assert latest["by customer"] == {o["id"]: (o["v"], names[o["customer"]]) for o in orders_last}
    assert latest["by id"] == {o["id"]: (o["v"], names.get(o["id"])) for o in orders_last}
