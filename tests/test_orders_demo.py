"""The demo of a shop's orders: its capture of changes, its check, and, slow, all of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools import postgres

psycopg = pytest.importorskip("psycopg")

ROOT = Path(__file__).parent.parent
A = (1, 2, 3, 1, 10, "ann", "Oslo", "pen", "1.00", "1.00")
B = (2, *A[1:])


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    """The connection string of a server that decodes its log."""
    from examples.orders import demo

    try:
        with postgres.running(demo.LOGICAL) as server:
            yield server.dsn()
    except postgres.MissingError as missing:
        pytest.skip(str(missing))


def test_changes_are_captured_as_debezium_sends_them(
    shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:

    from examples.orders import capture
    from examples.orders.shop import SCHEMA

    monkeypatch.setattr(capture, "_BROKEN_EVERY", 4)
    sent: list[tuple[str, Any, Any]] = []
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute(SCHEMA)
        capturing = capture.Capture(Kept(sent), shop, "servers")
        connection.execute("INSERT INTO shop.customers VALUES (1, 'Łódź \"x\"', NULL)")
        connection.execute("INSERT INTO shop.products VALUES (2, 'pen', 1.50)")
        connection.execute(
            "INSERT INTO shop.orders VALUES (3, 1, 2, 4, '2024-05-01 12:00:00.25+02')"
        )
        with connection.transaction():
            connection.execute("UPDATE shop.customers SET customer_id = 5, city = ''")
            connection.execute("DELETE FROM shop.orders")
        assert capturing.send() == 5
        assert capturing.send() == 0
        capturing.close()
    broken = sent.pop(3)
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken[2])
    events = [(topic, json.loads(key), value and json.loads(value)) for topic, key, value in sent]
    emitted = [(t, key, v and (v["op"], v["before"], v["after"])) for t, key, v in events]
    customer = {"customer_id": 1, "name": 'Łódź "x"', "city": None}
    placed = {"quantity": 4, "placed_at": "2024-05-01T10:00:00.25Z"}
    assert emitted == [
        ("customers", {"customer_id": 1}, ("c", None, customer)),
        (
            "products",
            {"product_id": 2},
            ("c", None, {"product_id": 2, "title": "pen", "price": "1.50"}),
        ),
        (
            "orders",
            {"order_id": 3},
            ("c", None, {"order_id": 3, "customer_id": 1, "product_id": 2, **placed}),
        ),
        (
            "customers",
            {"customer_id": 5},
            (
                "u",
                {"customer_id": 1, "name": None, "city": None},
                {**customer, "customer_id": 5, "city": ""},
            ),
        ),
        (
            "orders",
            {"order_id": 3},
            ("d", {"order_id": 3, **dict.fromkeys(("customer_id", "product_id", *placed))}, None),
        ),
        ("orders", {"order_id": 3}, None),
    ]
    sources = [value["source"] for _, _, value in events if value]
    positions = [source["lsn"] for source in sources]
    assert positions == sorted(set(positions))
    assert sources[3]["ts_us"] == sources[4]["ts_us"] > sources[0]["ts_us"]


class Kept:
    """In place of Spark: what is written to topics is kept."""

    def __init__(self, sent: list[tuple[str, Any, Any]]) -> None:
        self._sent = sent

    def createDataFrame(self, records: Any, schema: str) -> Any:  # noqa: N802
        self._sent.extend(records)
        return self

    def __getattr__(self, name: str) -> Any:
        return self if name == "write" else lambda *_: self


@pytest.mark.parametrize(
    ("found", "differences"),
    [
        ([A, B], []),
        ([B, A], []),
        ([A], [f"missing: {B}"]),
        ([A, B, B], [f"more than once: {B}"]),
        ([A, (9, *B[1:])], [f"wrong: {(9, *B[1:])}", f"missing: {B}"]),
    ],
)
def test_the_check_finds_what_differs(found: Any, differences: list[str]) -> None:
    from examples.orders import check

    assert check.differences(found, [A, B]) == differences


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven is missing")
def test_all_targets_equal_what_postgresql_joins(shop: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.orders", "--changes", "400", "--per-second", "40"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert lines[-1] == "check: equal"
    assert [line.split()[0] for line in lines[-4:-1]] == ["Delta", "topic", "PostgreSQL"]
    assert "the query is killed after micro-batch" in ran.stdout
    assert "dead letters: 2 of 2 malformed records" in lines
