"""The soak's own judge: it takes what should come out, and notices what should not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.soak import check, feed

SIZE = feed.Size(orders=60, customers=8, changed_orders=10, changed_customers=2)
BATCHES = 12
Rows = list[dict[str, Any]]


def written() -> dict[str, Rows]:
    """What the outputs hold: the joined rows, the totals' records, the joined changes."""
    tables: dict[str, dict[int, dict[str, Any]]] = {"orders": {}, "customers": {}}
    fed = [feed.beginning(SIZE), feed.changes(SIZE, BATCHES)]
    for topic, (key, _) in feed.COLUMNS.items():
        for rows in fed:
            for row in rows[topic].to_pylist():
                tables[topic].pop(row[key], None)
                if row["_change"] == "upsert":
                    tables[topic][row[key]] = row
    joined = []
    totals: dict[int, dict[str, Any]] = {}
    for order in tables["orders"].values():
        customer = tables["customers"][order["customer"]]
        at = max(order["_timestamp"], customer["_timestamp"])
        city = customer["city"]
        row = {"id": order["id"], "amount": order["amount"], "city": city, "_timestamp": at}
        joined.append(row)
        total = totals.setdefault(city, {"city": city, "orders": 0, "amount": 0})
        total["orders"] += 1
        total["amount"] += order["amount"]
    old = [{**row, "amount": 0, "_change": "upsert", "_position": 0} for row in joined]
    gone = [{**joined[0], "id": -1, "_change": "upsert", "_position": 0}]
    gone += [{**joined[0], "id": -1, "_change": "delete", "_position": 1}]
    new = [{**row, "_change": "upsert", "_position": 1} for row in joined]
    records = [{**row, "_deleted": False} for row in totals.values()]
    first = {**records[0], "orders": 99}
    empty = {"city": -1, "orders": None, "amount": None, "_deleted": True}
    return {
        "delta": joined,
        "topic": [{**row, "_offset": n} for n, row in enumerate([first, empty, *records])],
        "parquet": [*new, *old, *gone],
    }


def judged(place: Path, rows: dict[str, Rows]) -> dict[str, int]:
    for name, own in rows.items():
        pq.write_table(pa.Table.from_pylist(own), place / f"{name}.parquet")
    return check.differences(place, SIZE, BATCHES)


def test_what_should_come_out_is_equal(tmp_path: Path) -> None:
    rows = written()
    assert len(rows["delta"]) > 50
    assert not any(judged(tmp_path, rows).values())


@pytest.mark.parametrize(
    ("output", "index", "other", "found"),
    [
        ("delta", 5, {"amount": -1}, {"delta": 2}),
        ("delta", 0, {"id": -5}, {"delta": 2}),
        ("topic", -1, {"orders": 0}, {"topic": 2}),
        ("topic", 1, {"_deleted": False}, {"topic": 1}),
        ("parquet", 3, {"city": -1}, {"parquet": 2}),
        ("parquet", -1, {"_change": "upsert"}, {"parquet": 1}),
        ("parquet", -1, {"_position": 0}, {"doubled": 1}),
    ],
)
def test_another_row_is_a_difference(
    tmp_path: Path, output: str, index: int, other: dict[str, Any], found: dict[str, int]
) -> None:
    rows = written()
    rows[output][index] |= other
    judgement = judged(tmp_path, rows)
    assert found.items() <= judgement.items(), judgement


def test_a_missing_row_is_a_difference(tmp_path: Path) -> None:
    rows = written()
    del rows["delta"][7]
    assert judged(tmp_path, rows)["delta"] == 1
