"""Changes as tables in text: what is printed is read back, and what is expected is compared."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from datetime import time as clock
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.errors import DataError, PlanError
from dovetail.testing import Change, Driver, stream, table

UTC = timezone.utc
ORDERS = {"id": pa.int64(), "amount": pa.int64()}


@pytest.fixture
def orders() -> dt.Table:
    return table("orders", key="id", schema=ORDERS)


@pytest.fixture
def payments() -> dt.Table:
    return table("payments", key="id", schema={"id": pa.int64(), "paid": pa.bool_()})


def test_a_text_is_a_micro_batch(orders: dt.Table, payments: dt.Table) -> None:
    driver = Driver(orders.join(payments, how="left"), emit="batch")
    changes = driver.pipe(
        orders,
        """
        time | id | amount | change
        1    | 1  | 5      | upsert
        # A comment, and an empty line.

        2    | 2  |        |
        3    | 1  |        | delete
        """,
    )
    assert changes == [Change({"id": 2}, {"amount": None, "paid": None}, 2, "upsert", 0)]
    assert driver.pipe(payments, "time|paid|id\n4|true|2") == [
        Change({"id": 2}, {"amount": None, "paid": True}, 4, "upsert", 1)
    ]
    assert driver.pipe(payments, "time | id") == []


def test_changes_are_printed_aligned(orders: dt.Table, payments: dt.Table) -> None:
    driver = Driver(orders.join(payments, how="left"))
    driver.pipe(orders, {"id": 1, "amount": 12345}, timestamp=datetime(2024, 5, 1, 10, tzinfo=UTC))
    driver.pipe(orders, {"id": 1}, timestamp=86_399_999_999, deleted=True)
    assert driver.as_text(driver.read()).splitlines() == [
        "time                 | id | amount | paid | change",
        "2024-05-01T10:00:00Z | 1  | 12345  |      | upsert",
        "86399999999          | 1  |        |      | delete",
    ]
    assert driver.as_text([]) == "time | id | amount | paid | change"


def test_what_comes_is_compared_with_a_text(orders: dt.Table) -> None:
    driver = Driver(orders)
    rows = "time | id | amount\n1 | 1 | 5\n1 | 1 | 5\n2 | 2 | 6"
    driver.pipe(orders, rows)
    driver.assert_changes(rows)
    driver.assert_changes("time | id | amount")
    driver.pipe(orders, rows)
    with pytest.raises(AssertionError) as raised:
        driver.assert_changes("time | id | amount | change\n2 | 2 | 16 |\n1 | 1 | 5 |")
    assert str(raised.value).splitlines() == [
        "not the changes that are expected (-):",
        " time | id | amount | change",
        "-2    | 2  | 16     | upsert",
        " 1    | 1  | 5      | upsert",
        "+1    | 1  | 5      | upsert",
        "+2    | 2  | 6      | upsert",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "time | id | amount\n1 | 1 | 5",
        "time | id | amount\n2 | 2 | 6\n1 | 1 | 5",
        "time | id | amount\n1 | 1 | 5\n2 | 2 | 6\n2 | 2 | 6",
        "time | id | amount\n1 | 1 | 5\n3 | 2 | 6",
        "time | id | amount\n1 | 1 | 5\n2 | 2 | ",
        "time | id | change\n1 | 1 |\n2 | 2 | delete",
        "time | id",
    ],
    ids=["one less", "order", "twice", "time", "value", "change", "none"],
)
def test_any_difference_is_one(text: str, orders: dt.Table) -> None:
    driver = Driver(orders)
    driver.pipe(orders, "time | id | amount\n1 | 1 | 5\n2 | 2 | 6")
    with pytest.raises(AssertionError, match="not the changes that are expected"):
        driver.assert_changes(text)
    assert driver.read() == []


def test_a_tombstone_is_not_a_row_of_nulls(orders: dt.Table) -> None:
    driver = Driver(orders)
    driver.pipe(orders, {"id": 1}, timestamp=1, deleted=True)
    with pytest.raises(AssertionError):
        driver.assert_changes("time | id | change\n1 | 1 | upsert")
    driver.pipe(orders, {"id": 1}, timestamp=1, deleted=True)
    driver.assert_changes("time | id | change\n1 | 1 | delete")


def test_a_row_that_is_withdrawn_has_its_values() -> None:
    left = stream("left", key="k", schema={"k": pa.int64(), "a": pa.string()})
    right = stream("right", key="k", schema={"k": pa.int64(), "b": pa.string()})
    driver = Driver(
        left.join(right, how="left", within=dt.within(after="1 s"), unmatched="retract")
    )
    driver.pipe(left, "time | k | a\n1 | 1 | x")
    driver.pipe(right, "time | k | b\n2 | 1 | y")
    driver.assert_changes(
        """
        time | k | a | b | change
        1    | 1 | x |   | upsert
        1    | 1 | x |   | delete
        2    | 1 | x | y | upsert
        """
    )


def test_a_streams_record_without_a_value() -> None:
    clicks = stream("clicks", key="k", schema={"k": pa.int64(), "a": pa.string()})
    driver = Driver(clicks.group_by("k").agg(n=dt.count(), last=dt.last("a")))
    driver.pipe(clicks, "time | k | a | change\n1 | 1 | x |\n2 | 1 | | delete")
    driver.assert_changes("time | k | n | last\n1 | 1 | 1 | x")
    assert driver.dropped == 1


TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bool": pa.bool_(),
    "byte": pa.int8(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(38, 2),
    "date": pa.date32(),
    "instant": pa.timestamp("us", "UTC"),
    "wall": pa.timestamp("us"),
    "duration": pa.duration("us"),
    "list": pa.list_(pa.list_(pa.float64())),
    "map": pa.map_(pa.string(), pa.struct([("x", pa.int8())])),
    "struct": pa.struct([("d", pa.decimal128(4, 1)), ("t", pa.timestamp("us", "UTC"))]),
    "nested": pa.list_(
        pa.struct([("b", pa.binary()), ("s", pa.string()), ("d", pa.date32()), ("f", pa.bool_())])
    ),
}
VALUES = {
    "string": [
        "plain",
        "",
        " ",
        " a",
        "a ",
        "a b",
        "a | b",
        '"',
        '"a"',
        "\\",
        "\n",
        "é 世",
        "null",
    ],
    "binary": [b"", b"\x00\xff"],
    "bool": [True, False],
    "byte": [-128],
    "long": [2**63 - 1, -(2**63)],
    "float": [0.10000000149011612, float("inf")],
    "double": [0.1, -0.0, 5.0, 1e300, float("-inf"), float("nan")],
    "decimal": [Decimal("12345678901234567890.12"), Decimal("0.00"), Decimal("-5.00")],
    "date": [date(2024, 2, 29), date(1, 1, 1)],
    "instant": [
        datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
        datetime(1970, 1, 2, tzinfo=UTC),
        datetime(1969, 12, 31, tzinfo=UTC),
    ],
    "wall": [datetime(2024, 2, 29, 1, 2, 3, 4), datetime(1970, 1, 1)],  # noqa: DTZ001
    "duration": [timedelta(days=-1, microseconds=1), timedelta(0)],
    "list": [[], [[]], [None, [0.5, None, float("inf")]]],
    "map": [[], [("a", {"x": 1}), ("|", None)]],
    "struct": [
        {"d": Decimal("1.5"), "t": datetime(2024, 1, 1, tzinfo=UTC)},
        {"d": None, "t": datetime(1970, 1, 1, tzinfo=UTC)},
    ],
    "nested": [[{"b": b"\x01", "s": 'a "|"\n', "d": date(2024, 1, 1), "f": True}, None]],
}
CASES = [(name, value) for name, values in VALUES.items() for value in [*values, None]]


@pytest.mark.parametrize(("name", "value"), CASES, ids=[f"{n} {v!r}"[:40] for n, v in CASES])
def test_what_is_printed_is_read_back(name: str, value: Any) -> None:
    everything = table("everything", key="id", schema={"id": pa.int64(), **TYPES})
    driver = Driver(everything)
    changes = driver.pipe(everything, {"id": 1, name: value}, timestamp=-1)
    text = driver.as_text(changes)
    assert len({line.count("|") for line in text.splitlines()}) == 1 or "|" in repr(value)
    driver.read()
    (again,) = driver.pipe(everything, text)
    assert repr(again) == repr(changes[0])
    driver.assert_changes(text)


def test_how_values_are_written() -> None:
    columns = {"id": pa.int64(), **{n: TYPES[n] for n in ("string", "decimal", "bool", "struct")}}
    tasks = table("tasks", key="id", schema={**columns, "clock": pa.time64("ns")})
    driver = Driver(tasks)
    driver.pipe(
        tasks,
        """
        time                   | id | string  | decimal | bool | struct                    | clock
        2024-01-01             | 1  | a "b"   | 5       | true | {"d": 2.5, "t": 7}        | 10:30
        2024-01-01T01:00+01:00 | 2  | "a | b" | -0.5    | 0    | {"t": "2024-01-01 10:00"} |
        """,
    )
    instant = datetime(1970, 1, 1, microsecond=7, tzinfo=UTC)
    one, two = driver.read()
    assert one.timestamp == two.timestamp == datetime(2024, 1, 1, tzinfo=UTC)
    assert list(one.values.values()) == [  # type: ignore[union-attr]
        'a "b"',
        Decimal("5.00"),
        True,
        {"d": Decimal("2.5"), "t": instant},
        clock(10, 30),
    ]
    assert list(two.values.values()) == [  # type: ignore[union-attr]
        "a | b",
        Decimal("-0.50"),
        False,
        {"d": None, "t": datetime(2024, 1, 1, 10, tzinfo=UTC)},
        None,
    ]


def test_columns_named_as_the_tables_own() -> None:
    odd = table("odd", key="time", schema={"time": pa.int64(), "change": pa.string()})
    driver = Driver(odd)
    text = "time | time | change | change\n1    | 2    | up     | upsert"
    assert driver.as_text(driver.pipe(odd, text)) == text
    (change,) = driver.pipe(odd, "time | time | change\n1 | 2 | delete")
    assert change == Change({"time": 2}, {"change": "delete"}, 1, "upsert", 1)
    with pytest.raises(
        DataError, match="line 2 of the text has 'x' for time, which is not of type"
    ):
        driver.pipe(odd, "time | time\n1 | x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text has the header ''"),
        (
            "id | time\n1 | 1",
            r"header 'id \| time'.* Its columns are time \| id \| amount \| change",
        ),
        ("time | amount\n1 | 1", r"header 'time \| amount'"),
        ("time | id | amuont\n1 | 1 | 1", r"header 'time \| id \| amuont'"),
        ("time | id | id\n1 | 1 | 1", r"header 'time \| id \| id'"),
        ("time | id\n\n1 | 1 | 1", "line 3 of the text has 3 cells, the header has 2"),
        ("time | id\n1 | one", "line 2 of the text has 'one' for id, which is not of type int64"),
        ("time | id\n1 | 1.5", "'1.5' for id, which is not of type int64"),
        ("time | id\n | 1", "'' for time, which is not a time"),
        ("time | id\nnow | 1", "'now' for time, which is not a time"),
        (
            "time | id | change\n1 | 1 | insert",
            "'insert' for change, which is not upsert or delete",
        ),
    ],
)
def test_a_text_that_is_no_table(text: str, message: str, orders: dt.Table) -> None:
    driver = Driver(orders)
    driver.pipe(orders, {"id": 1}, timestamp=1)
    before = driver.snapshot()
    for take in (lambda: driver.pipe(orders, text), lambda: driver.assert_changes(text)):
        with pytest.raises(DataError, match=f"table orders: .*{message}"):
            take()
    assert driver.snapshot() == before
    assert len(driver.read()) == 1


def test_a_text_has_its_own_times(orders: dt.Table) -> None:
    for options in ({"timestamp": 1}, {"deleted": True}):
        with pytest.raises(PlanError, match="a text, which has its own times and deletes"):
            Driver(orders).pipe(orders, "time | id\n1 | 1", **options)
    with pytest.raises(DataError, match="a row of pipe has no time"):
        Driver(orders).pipe(orders, {"id": 1})
