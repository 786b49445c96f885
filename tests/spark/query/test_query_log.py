"""The lines that a query logs: its start, its micro-batches, and what it could not use."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail.spark.query.query_log import EVERY


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "dovetail.query" and record.levelno == level
    ]


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def _nothing_is_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EVERY, "0")


def test_starts_losses_and_micro_batches_are_logged(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(number: int, *ids: int | None) -> None:
        rows = [json.dumps({"id": id_, "at": "2024-05-01T10:00:00Z"}) for id_ in ids]
        (tmp_path / "orders" / f"{number}.json").write_text("\n".join(rows))

    def start() -> None:
        sink = dt.to_parquet(tmp_path / "out")
        query = orders.write_stream(sink, checkpoint=checkpoint, buckets=1)
        query.processAllAvailable()
        write(len(list((tmp_path / "orders").iterdir())), 3, None)
        query.processAllAvailable()
        query.stop()

    (tmp_path / "orders").mkdir()
    write(0, 1, 2, None)
    checkpoint = str(tmp_path / "checkpoint")
    live = spark.readStream.schema("id long, at timestamp").json(str(tmp_path / "orders"))
    orders = dt.Table.from_changelog(live, key="id", timestamp="at", name="orders").materialize()
    caplog.set_level(logging.DEBUG, "dovetail")
    start()
    wait_for(lambda: len(lines(caplog, logging.DEBUG)) == 2)
    (first,) = lines(caplog, logging.INFO)
    query_id = first.split()[2]
    assert first == (
        f"orders: query {query_id} started. Inputs: orders. "
        f"Sinks: to_parquet('{tmp_path}/out'). Checkpoint: {checkpoint}; it begins anew."
    )
    assert lines(caplog, logging.WARNING) == [
        "orders: orders.dropped counts 1 in micro-batch 0. The query's progress has an example."
    ]
    for number, (line, rows) in enumerate(zip(lines(caplog, logging.DEBUG), (3, 2), strict=True)):
        assert line.startswith(f"orders: micro-batch {number} read {rows} rows in ")
    caplog.clear()
    monkeypatch.setenv(EVERY, "0.001")
    start()
    wait_for(lambda: bool(lines(caplog, logging.WARNING)))
    again, summed_up = lines(caplog, logging.INFO)
    assert re.fullmatch(
        r"orders: 1 micro-batch read 2 rows in \d+ s; the longest took \d+\.\d\d s", summed_up
    )
    assert again.endswith("; it goes on where it stopped.")
    assert again.split()[2] == query_id


def test_state_that_is_carried_over_is_logged(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders/0.json").write_text('{"id": 1, "at": "2024-05-01T10:00:00Z"}')
    live = spark.readStream.schema("id long, at timestamp").json(str(tmp_path / "orders"))
    orders = dt.Table.from_changelog(live, key="id", timestamp="at", name="orders").materialize()
    once = {"availableNow": True}
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    caplog.set_level(logging.INFO, "dovetail")
    orders.write_stream(
        dt.to_parquet(tmp_path / "a"), checkpoint=old, trigger=once, buckets=1
    ).awaitTermination()
    orders.write_stream(
        dt.to_parquet(tmp_path / "b"), checkpoint=new, trigger=once, buckets=1, initial=old
    ).awaitTermination()
    # A later line may say that there was nothing new to read.
    starts = [line for line in lines(caplog, logging.INFO) if " started. " in line]
    assert starts[-1].endswith(
        f"Checkpoint: {new}; it goes on from {old} after micro-batch 0, "
        "with the state of stages: 1."
    )


def test_a_query_with_nothing_to_do_says_so_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interval = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(interval, "100ms")
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders/0.json").write_text('{"id": 1, "at": "2024-05-01T10:00:00Z"}')
    live = spark.readStream.schema("id long, at timestamp").json(str(tmp_path / "orders"))
    orders = dt.Table.from_changelog(live, key="id", timestamp="at", name="orders").materialize()
    sink, checkpoint = dt.to_parquet(tmp_path / "out"), str(tmp_path / "checkpoint")
    caplog.set_level(logging.INFO, "dovetail")
    query = orders.write_stream(sink, checkpoint=checkpoint, buckets=1)
    pause = "orders: nothing new to read. It waits for its inputs."
    try:
        wait_for(lambda: pause in lines(caplog, logging.INFO))
        time.sleep(1)
    finally:
        query.stop()
        spark.conf.unset(interval)
    assert lines(caplog, logging.INFO)[1:] == [pause]
    caplog.clear()
    once = {"availableNow": True}
    orders.write_stream(sink, checkpoint=checkpoint, trigger=once, buckets=1).awaitTermination()
    wait_for(lambda: len(lines(caplog, logging.INFO)) == 2)
    assert lines(caplog, logging.INFO)[1] == (
        "orders: it ended without a micro-batch: its inputs have nothing new."
    )
