"""Rows that do not meet an expectation: counted, and left out, reported or refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing

SCHEMA = {"id": pa.int64(), "text": pa.string(), "paid": pa.bool_()}
FEED = [
    {"id": 1, "text": "5", "paid": True},
    {"id": 1, "text": "x", "paid": True},
    {"id": 2, "text": None, "paid": False},
    {"id": 1, "text": "0", "paid": True},
    {"id": 3, "text": "7", "paid": None},
    {"id": 1, "text": "6", "paid": True},
]
POSITIVE = "cast(text AS long) > 0"


def by_hand(spark: SparkSession, **expected: Any) -> tuple[dt.Table, dt.Table, testing.Driver]:
    orders = testing.table("orders", key="id", schema=SCHEMA)
    clean = orders.expect(POSITIVE, **expected)
    return orders, clean, testing.Driver(clean, dt.dead_letters, spark=spark)


@pytest.mark.parametrize("on_fail", ["drop", "dead_letter", "warn"])
def test_rows_are_counted_by_the_name_of_the_expectation(on_fail: Any, spark: SparkSession) -> None:
    """False, null, and a condition that cannot be computed are all one."""
    orders, clean, driver = by_hand(spark, on_fail=on_fail, name="positive")
    for time, row in enumerate(FEED):
        driver.pipe(orders, row, timestamp=time)
    driver.pipe(orders, {"id": 2}, timestamp=9, deleted=True)
    emitted = [(c.key["id"], c.values and c.values["text"]) for c in driver.read(clean)]
    kept = [(1, "5"), (1, "x"), (2, None), (1, "0"), (3, "7"), (1, "6"), (2, None)]
    assert emitted == (kept if on_fail == "warn" else [kept[n] for n in (0, 4, 5, 6)])
    assert driver.counts == {"orders.positive.unmet": 3}
    assert json.loads(driver.examples["orders.positive.unmet"]) == FEED[1]
    dead = [
        (c.key["_operator"], c.values["_problem"], json.loads(c.values["row"]), c.timestamp_us)
        for c in driver.read(dt.dead_letters)
    ]
    wanted = [
        ("expect of orders", "expectation 'positive' is not met", json.loads(row), time)
        for row, time in (
            ('{"id":1,"text":"x","paid":true}', 1),
            ('{"id":2,"paid":false}', 2),
            ('{"id":1,"text":"0","paid":true}', 3),
        )
    ]
    assert dead == (wanted if on_fail == "dead_letter" else [])


def test_an_error_names_input_expectation_and_row(spark: SparkSession) -> None:
    """The micro-batch has no effect then; another row is taken."""
    orders, _, driver = by_hand(spark)
    with pytest.raises(dt.errors.DataError) as error:
        driver.pipe(orders, FEED[1], timestamp=1)
    assert str(error.value) == (
        f"expect of orders: expectation {POSITIVE!r} is not met by the row "
        '{"id":1,"text":"x","paid":true}. Mend the row where it comes from, or give expect() '
        "another on_fail=."
    )
    assert len(driver.pipe(orders, FEED[0], timestamp=2)) == 1
    plain = testing.Driver(orders.expect("paid", name="is paid"))
    with pytest.raises(
        dt.errors.DataError, match=r"'is paid' is not met by the row id=3, text='7'"
    ):
        plain.pipe(orders, FEED[4], timestamp=1)


def on_spark(spark: SparkSession, folder: Path) -> dt.Table:
    (folder / "orders").mkdir(exist_ok=True)
    frame = spark.readStream.schema("id long, text string, paid boolean, n long")
    return dt.Table.from_changelog(
        frame.option("maxFilesPerTrigger", 1).json(str(folder / "orders")),
        key="id",
        timestamp=F.timestamp_micros("n"),
        sequence="n",
        name="orders",
    ).select("text", "paid")


def write(folder: Path, name: int, rows: list[dict[str, Any]], first: int) -> None:
    lines = [json.dumps({**row, "n": first + n}) for n, row in enumerate(rows)]
    (folder / "orders" / f"{name}.json").write_text("\n".join(lines))


def started(folder: Path, sinks: dict[Any, Any]) -> Any:
    query = dt.run(
        sinks,
        checkpoint=folder / "checkpoint",
        trigger={"availableNow": True},
        buckets=2,
        partitions=1,
    )
    query.awaitTermination()
    return query


def test_a_query_counts_each_row_once_though_two_stages_read_it(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that a query leaves out, for which expectation of three, and that it logs."""
    orders = on_spark(spark, tmp_path)
    clean = (
        orders.expect("text IS NOT NULL", on_fail="warn", name="sent")
        .expect("paid", on_fail="drop", name="is paid")
        .expect(POSITIVE, on_fail="dead_letter", name="positive")
    )
    by_text = clean.group_by("text").agg(n=dt.count())
    last = clean.expect("id < 9", on_fail="drop", name="known").to_stream()
    write(tmp_path, 0, [*FEED, {"id": 9, "text": "9", "paid": True}], 0)
    rows: dict[str, list[Any]] = {"groups": [], "last": [], "letters": []}

    def take(name: str) -> dt.typing.Sink:
        return dt.to_foreach_batch(lambda changes, _: rows[name].extend(changes.collect()))

    caplog.set_level(logging.WARNING, "dovetail.query")
    query = started(
        tmp_path,
        {by_text: take("groups"), last: take("last"), dt.dead_letters: take("letters")},
    )
    changes = sorted((r["_timestamp"], r["text"], r["n"]) for r in rows["groups"])
    assert [(text, n) for _, text, n in changes] == [("5", 1), ("5", None), ("6", 1), ("9", 1)]
    assert [(r["id"], r["text"]) for r in rows["last"]] == [(1, "5"), (1, "6")]
    assert [(r["_problem"], r["row"]) for r in rows["letters"]] == [
        ("expectation 'positive' is not met", f'{{"id":1,"text":"{text}","paid":true}}')
        for text in "x0"
    ]
    progress = dt.progress(query)
    assert progress is not None
    assert {name: counted.rows for name, counted in progress.unused.items()} == {
        "orders.sent.unmet": 1,
        "orders.is paid.unmet": 2,
        "orders.positive.unmet": 2,
        "orders.known.unmet": 1,
    }
    assert progress.unused["orders.sent.unmet"].example == '{"id":2,"paid":false}'
    ends = monotonic() + 30
    line = "orders.is paid.unmet counts 2 in micro-batch 0"
    while line not in caplog.text and monotonic() < ends:
        sleep(0.1)
    assert caplog.text.count(line) == 1


def test_a_query_that_has_failed_goes_on_without_the_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With the checkpoint that it had, and its table's former row."""

    def start(on_fail: Any) -> Any:
        orders = on_spark(spark, tmp_path).expect(POSITIVE, on_fail=on_fail)
        return started(
            tmp_path, {orders.group_by("text").agg(n=dt.count()): dt.to_parquet(tmp_path / "out")}
        )

    on_spark(spark, tmp_path)
    write(tmp_path, 0, FEED[:1], 0)
    start("fail")
    write(tmp_path, 1, FEED[1:2], 1)
    with pytest.raises(StreamingQueryException) as error:
        start("fail")
    said = str(error.value).partition("\n")[0]
    assert f"expect of orders: expectation {POSITIVE!r} is not met by the row" in said
    assert '{"id":1,"text":"x","paid":true}' in said
    write(tmp_path, 2, FEED[3:4], 3)
    assert list(dt.progress(start("drop")).unused) == [f"orders.{POSITIVE}.unmet"]
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert [(row["text"], row["n"]) for row in rows] == [("5", 1)]


def test_static_frames_leave_out_the_same(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = spark.createDataFrame(FEED, "id long, text string, paid boolean")
    orders = dt.Table.from_changelog(
        frame.withColumn("at", F.timestamp_seconds("id")), key="id", timestamp="at", name="orders"
    )
    clean = orders.expect("paid", on_fail="dead_letter").expect("id < 9", on_fail="drop", name="a")
    assert [row["id"] for row in clean.changelog().collect()] == [1, 1, 1, 1]
    letters = clean.dead_letters().orderBy("_timestamp").collect()
    assert [json.loads(row["row"])["id"] for row in letters] == [2, 3]
    clean.explain()
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "expect 'a': id < 9, else drop  (key id; text, paid)",
        "└─ expect paid, else dead letter  (key id; text, paid)",
    ]
