"""The figures of a query are those of its rows, by input and by stage."""

from __future__ import annotations

import json
import re
import sqlite3
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from bench.parameters import slow_after
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from timed_files import timed_file

import dovetail as dt
from dovetail.engine.bucket_report import BucketReport
from dovetail.spark.metrics import history
from dovetail.spark.metrics.figures import COUNTERS, GAUGES
from dovetail.spark.metrics.progress import (
    ProgressFollower,
    _figures_of_reports,
    _numeric_metrics,
)
from dovetail.spark.metrics.query_parts import StagePart

SCHEMA = "id long, customer long, amount long, note string, at timestamp, gone boolean"


def write(folder: Path, number: int, rows: Sequence[dict[str, Any]]) -> None:
    lines = [json.dumps({"at": f"2024-05-01T10:00:{number:02}Z"} | row) for row in rows]
    # Spark reads the oldest file first. Files of one millisecond have no order.
    with timed_file(folder / f"{number}.json", 1_700_000_000 + number) as file:
        file.write_text("\n".join(lines))


def table(spark: SparkSession, folder: Path, name: str, *columns: str) -> dt.Table:
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / name))
    return dt.Table.from_changelog(
        frame.select("id", *columns, "at", "gone"),
        key="id",
        timestamp="at",
        deleted="gone",
        name=name,
    )


def ran(query: Any) -> Any:
    query.awaitTermination()
    return query


NOW = {"trigger": {"availableNow": True}, "buckets": 2}


def test_rows_changes_and_times_are_those_of_the_stage(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "orders", 1, [{"id": n, "amount": n} for n in (1, 2, 3)] + [{"amount": 9}])
    write(tmp_path / "orders", 2, [{"id": 1, "amount": 5}, {"id": 2, "gone": True}])
    write(tmp_path / "payments", 1, [{"id": n, "note": "paid"} for n in (1, 2)])
    write(tmp_path / "payments", 2, [])
    orders = table(spark, tmp_path, "orders", "amount")
    payments = table(spark, tmp_path, "payments", "note")
    query = ran(
        orders.join(payments).write_stream(
            dt.to_parquet(tmp_path / "out"), checkpoint=tmp_path / "checkpoint", **NOW
        )
    )
    first, second = dt.metrics.recent(query)
    assert [(i.name, i.rows) for i in first.inputs] == [("orders", 4), ("payments", 2)]
    assert [(i.name, i.rows) for i in second.inputs] == [("orders", 2), ("payments", 0)]
    assert (first.rows, second.rows) == (6, 2)
    assert first.unused == {
        "orders.dropped": dt.metrics.Unused(1, "id=None at 2024-05-01T10:00:01.000000Z")
    }
    assert second.unused == {}
    stages = [*first.stages, *second.stages]
    assert [stage.title for stage in stages] == ["inner join of orders and payments"] * 2
    assert [stage.rows for stage in stages] == [
        {"orders": 3, "payments": 2},
        {"orders": 2, "payments": 0},
    ]
    assert [(stage.changes, stage.deletes) for stage in stages] == [(2, 0), (2, 1)]
    assert [stage.stream_time["orders"] for stage in stages] == [
        datetime(2024, 5, 1, 10, 0, second, tzinfo=timezone.utc) for second in (1, 2)
    ]
    assert [stage.tombstones for stage in stages] == [
        {"orders": 0, "payments": 0},
        {"orders": 1, "payments": 0},
    ]
    # Orders come before their payments. Then the new order 1 finds one.
    assert [(stage.matched, stage.unmatched) for stage in stages] == [
        ({"orders": 0, "payments": 2}, {"orders": 3, "payments": 0}),
        ({"orders": 1, "payments": 0}, {"orders": 0, "payments": 0}),
    ]
    assert [(stage.waiting, stage.stored_rows) for stage in stages] == [({}, 5), ({}, 7)]
    for progress, stage in zip((first, second), stages, strict=True):
        assert stage.buckets == 2
        assert 0 < stage.began_ms < stage.ended_ms < progress.total_ms
        assert stage.stored_bytes > 0
        assert [*progress.steps_ms] == [
            *("read", "pack", "shuffle", "receive", "load", "operators", "state", "commit", "sink")
        ]
        assert all(ms >= 0 for ms in progress.steps_ms.values())
        assert sum(progress.steps_ms.values()) > 0
        assert progress.steps_ms["state"] == stage.state_ms
        assert progress.steps_ms["shuffle"] < stage.began_ms
        assert progress.steps_ms["sink"] < progress.phases_ms["work"]
        for input_ in progress.inputs:
            ended = progress.started + timedelta(milliseconds=progress.total_ms)
            assert input_.lag_s == (ended - stage.stream_time[input_.name]).total_seconds()
        assert 0 < stage.state_ms < stage.work_ms
        assert stage.work_ms / 2 <= stage.slowest_ms < stage.work_ms
        assert stage.state_bytes > 0
        assert progress.phases_ms.keys() == {"offsets", "planning", "work", "log"}
        assert sum(progress.phases_ms.values()) <= progress.total_ms
    last = dt.progress(query)
    assert last == second
    assert str(last).splitlines()[1:3] == ["  orders: 2 rows read", "  payments: 0 rows read"]


@pytest.mark.parametrize("swapped", slow_after(1, [False, True]))
def test_stages_of_several_lines_have_their_own_figures(
    spark: SparkSession, tmp_path: Path, swapped: bool
) -> None:
    """Two aggregates of two inputs are joined. The state of each has its own size."""
    small = [{"id": 1, "customer": 1, "amount": 1}]
    large = [{"id": n, "customer": n % 3, "note": f"{n:050}{n * n:050}"} for n in range(9_000)]
    for name, rows in (("few", small), ("many", large)):
        write(tmp_path / name, 1, rows)
    few = table(spark, tmp_path, "few", "customer", "amount")
    many = table(spark, tmp_path, "many", "customer", "note")
    left, right = (many, few) if swapped else (few, many)
    names = [left.plan.name, right.plan.name]
    counted = left.group_by("customer").agg(a=dt.count())
    others = right.group_by("customer").agg(b=dt.max("note" if right is many else "amount"))
    joined = counted.join(others)
    query = ran(
        joined.write_stream(
            dt.to_memory(f"joined_{names[0]}"), checkpoint=tmp_path / "checkpoint", **NOW
        )
    )
    (progress,) = dt.metrics.recent(query)
    assert [i.name for i in progress.inputs] == names
    # A table is grouped in two stages. The first, by its own key, stores its rows.
    first = {name: next(s for s in progress.stages if [*s.rows] == [name]) for name in names}
    assert (first["many"].rows, first["few"].rows) == ({"many": 9_000}, {"few": 1})
    assert first["many"].state_bytes > 5 * first["few"].state_bytes
    assert [stage.number for stage in progress.stages] == [1, 2, 3, 4, 5]
    last = progress.stages[-1]
    assert [*last.rows.values()] == ([9_000, 1] if swapped else [1, 9_000])
    assert last.title == f"inner join of {' and '.join(last.rows)}"


def stream(spark: SparkSession, folder: Path, name: str) -> dt.Stream:
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / name))
    return dt.Stream.from_changelog(
        frame.select("id", "amount", "at"), key="id", timestamp="at", name=name
    )


def test_rows_that_wait_are_counted_with_their_reason(spark: SparkSession, tmp_path: Path) -> None:
    """An order waits for its window to close until a later record moves stream time on."""
    for name, ids in (("orders", (1, 2, 3)), ("payments", (1,))):
        write(tmp_path / name, 1, [{"id": n, "amount": n} for n in ids])
        write(tmp_path / name, 2, [])
    write(tmp_path / "orders", 2, [{"id": 9, "amount": 9, "at": "2024-05-01T10:00:09Z"}])
    orders, payments = (stream(spark, tmp_path, name) for name in ("orders", "payments"))
    joined = orders.join(
        payments,
        within=dt.within(before="5 seconds", after="5 seconds"),
        how="left",
        select=["left.amount"],
    )
    per_minute = orders.group_by("amount").window(dt.windows.tumbling("1 minute"))
    windows = per_minute.agg(n=dt.count()).to_table(windows="on_close")
    results = {joined: dt.to_memory("closed_joined"), windows: dt.to_memory("closed_windows")}
    query = ran(dt.run(results, checkpoint=tmp_path / "c", **NOW))
    first, second = dt.metrics.recent(query)
    waiting = [
        {name: rows for stage in progress.stages for name, rows in stage.waiting.items()}
        for progress in (first, second)
    ]
    # Order 1 has a payment. Orders 2 and 3 close when order 9 comes. The minute is open.
    windows_open = "aggregate of orders by amount.open"
    assert waiting == [
        {"orders.on_close": 2, windows_open: 3},
        {"orders.on_close": 1, windows_open: 4},
    ]
    pairs = [(s.matched, s.unmatched) for s in first.stages if s.matched]
    assert pairs == [({"orders": 0, "payments": 1}, {"orders": 3, "payments": 0})]


def test_several_results_and_types_that_travel_packed(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "orders", 1, [{"id": n, "customer": n % 2, "amount": n} for n in range(6)])
    orders = table(spark, tmp_path, "orders", "customer", "amount")
    amounts = orders.group_by("customer").agg(amounts=dt.collect_list("amount"))
    counts = orders.group_by("amount").agg(n=dt.count())
    results = {amounts: dt.to_memory("amounts_of"), counts: dt.to_memory("counts_of")}
    (progress,) = dt.metrics.recent(ran(dt.run(results, checkpoint=tmp_path / "c", **NOW)))
    assert [(i.name, i.rows) for i in progress.inputs] == [("orders", 6)]
    # A table is grouped in two stages: by its own key, then by the group's.
    assert [(stage.rows, stage.changes) for stage in progress.stages] == [({"orders": 6}, 6)] * 4


def test_what_a_source_says_of_its_lag_is_kept_where_it_is_a_number() -> None:
    metrics: Any = {"maxOffsetsBehindLatest": "12", "avgOffsetsBehindLatest": "2.5", "state": "ok"}
    assert _numeric_metrics(metrics) == {
        "maxOffsetsBehindLatest": 12,
        "avgOffsetsBehindLatest": 2.5,
    }
    assert _numeric_metrics(metrics | {"none": None}) == _numeric_metrics(metrics)


@pytest.mark.parametrize(("sign", "ends"), [(1, (9999, 12, 31)), (-1, (1, 1, 1))])
def test_a_stream_time_outside_the_years_1_to_9999_is_a_day_at_their_end(
    sign: int, ends: tuple[int, int, int]
) -> None:
    """As of milliseconds that are taken for seconds."""
    report = BucketReport.empty([sign * 1_714_557_600_000 * 1_000_000])
    part, began = StagePart(1, "union", ("orders",), ""), datetime(2024, 5, 1, tzinfo=timezone.utc)
    times = _figures_of_reports(part, [report], began).stream_time
    assert times == {"orders": datetime(*ends, tzinfo=timezone.utc)}


def test_a_query_of_sparks_own_is_refused(spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load()
    query = rate.writeStream.format("noop").start()
    try:
        with pytest.raises(dt.errors.PlanError, match=r"^progress: query="):
            dt.progress(query)
    finally:
        query.stop()


def scraped(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for name, value in sample.labels.items() if name != "query")
            found.setdefault(family.name, {})[labels] = sample.value
    return found


def measured(reader: InMemoryMetricReader) -> dict[str, dict[tuple[str, ...], float]]:
    """What a reader of OpenTelemetry has, under the names and labels of Prometheus."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    (resource,) = data.resource_metrics
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "dovetail"
    return {
        metric.name.replace(".", "_"): {
            tuple(value for name, value in point.attributes.items() if name != "query"): point.value
            for point in metric.data.data_points
        }
        for metric in scope.metrics
    }


def test_prometheus_scrapes_what_progress_says(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "orders", 1, [{"id": n, "customer": n % 2} for n in range(4)] + [{}])
    orders = table(spark, tmp_path, "orders", "customer")
    counts = orders.group_by("customer").agg(n=dt.count())
    query = counts.write_stream(
        dt.to_memory("counts"), checkpoint=tmp_path / "checkpoint", buckets=2, query_name="counts"
    )
    exporter = dt.metrics.prometheus(query, port=0)
    reader = InMemoryMetricReader()
    instruments = dt.metrics.opentelemetry(query, provider=MeterProvider([reader]))
    try:
        query.processAllAvailable()
        with pytest.raises(dt.errors.ConfigurationError, match="cannot be bound"):
            dt.metrics.prometheus(query, port=int(exporter.url.split(":")[2].split("/")[0]))
        write(tmp_path / "orders", 2, [{"id": 1, "customer": 0}])
        query.processAllAvailable()
        found, totals = scraped(exporter.url), Counter[str]()
        for progress in dt.metrics.recent(query):
            totals["rows"] += progress.rows
            for stage in progress.stages:
                totals["changes"] += stage.changes
                totals["deletes"] += stage.deletes
        last = dt.progress(query)
        assert last is not None
        stage = last.stages[0]
        assert found["dovetail_rows"] == {("orders",): totals["rows"]} == {("orders",): 6}
        assert sum(found["dovetail_changes"].values()) == totals["changes"]
        assert sum(found["dovetail_deletes"].values()) == totals["deletes"]
        assert found["dovetail_stage_rows"]["orders", f"1. {stage.title}"] == 5
        assert found["dovetail_unused_rows"] == {("orders.dropped",): 1}
        moment = stage.stream_time["orders"].timestamp()
        assert found["dovetail_stream_time_seconds"]["orders", f"1. {stage.title}"] == moment
        assert found["dovetail_active"] == {(): 1}
        assert found.keys() <= {f"dovetail_{name}" for name in (*COUNTERS, *GAUGES)}
        assert found["dovetail_stored_rows"][f"1. {stage.title}",] == stage.stored_rows
        assert found["dovetail_lag_seconds"]["orders",] == last.inputs[0].lag_s
        again = scraped(exporter.url)
        assert again["dovetail_rows"] == found["dovetail_rows"]
        query.stop()
        final, observed = scraped(exporter.url), measured(reader)
        assert final["dovetail_active"] == observed["dovetail_active"] == {(): 0}
        served = {
            name: {(*sorted(labels),): v for labels, v in of.items()} for name, of in final.items()
        }
        assert {
            name: {(*sorted(labels),): v for labels, v in of.items()}
            for name, of in observed.items()
        } == served
        instruments.stop()
        instruments.stop()
        assert measured(reader) == {}
    finally:
        query.stop()
        exporter.stop()
    with pytest.raises(OSError, match="refused"):
        scraped(exporter.url)


def test_a_record_outlives_the_query_and_is_bounded(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "orders", number, [{"id": number, "customer": 1}] + [{}] * number)
    orders = table(spark, tmp_path, "orders", "customer")
    counts, file = orders.group_by("customer").agg(n=dt.count()), tmp_path / "figures"
    query = counts.write_stream(dt.to_memory("kept"), checkpoint=tmp_path / "c", **NOW)
    recorder = dt.metrics.record(query, file)
    ran(query)
    recorder.stop()
    expected = dt.metrics.recent(query)
    assert [progress.rows for progress in expected] == [1, 2, 3]
    assert dt.metrics.recorded(file) == expected
    dt.metrics.record(query, file, keep=4).stop()
    assert dt.metrics.recorded(file) == [expected[-1], *expected]


def test_another_file_is_not_written(tmp_path: Path) -> None:
    text, database = tmp_path / "text", tmp_path / "database"
    text.write_text("figures" * 1000)
    with closing(sqlite3.connect(database)) as other, other:
        other.execute("CREATE TABLE mine (id INTEGER)")
    before = database.read_bytes()
    for file in (text, database):
        problem = f"^recorded: {file} cannot be used: .* Give a file of record\\(\\)\\.$"
        with pytest.raises(dt.errors.ConfigurationError, match=problem):
            dt.metrics.recorded(file)
    assert database.read_bytes() == before
    with pytest.raises(dt.errors.ConfigurationError, match=r"^recorded: .*nowhere is not there"):
        dt.metrics.recorded(tmp_path / "nowhere")


def test_a_record_that_cannot_be_written_is_tried_again(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def logged() -> list[str]:
        of_metrics = (record for record in caplog.records if record.name == "dovetail.metrics")
        return [record.getMessage() for record in of_metrics]

    monkeypatch.setattr(history, "_EVERY_S", 0.05)
    write(tmp_path / "orders", 1, [{"id": 1, "customer": 1}])
    file, orders = tmp_path / "figures", table(spark, tmp_path, "orders", "customer")
    query = orders.write_stream(dt.to_memory("tried"), checkpoint=tmp_path / "c", buckets=2)
    try:
        recorder = dt.metrics.record(query, file)
        file.unlink()
        file.mkdir()
        query.processAllAvailable()
        deadline = time.monotonic() + 60
        while not logged() and time.monotonic() < deadline:
            time.sleep(0.05)
        (message,) = logged()
        assert message.startswith(f"record: {file} cannot be used: ")
        file.rmdir()
        recorder.stop()
        assert [progress.rows for progress in dt.metrics.recorded(file)] == [1]
        recorder = dt.metrics.record(query, file)
        file.unlink()
        file.mkdir()
        recorder.stop()
        assert logged()[-1].endswith("1 micro-batches are not recorded.")
    finally:
        query.stop()


def test_a_micro_batch_after_a_pause_is_not_taken_for_the_report_of_the_pause(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark reports a pause under the number of the micro-batch that follows it."""
    interval = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(interval, "300ms")
    write(tmp_path / "orders", 1, [{"id": 1, "customer": 1}])
    counts = table(spark, tmp_path, "orders", "customer").group_by("customer").agg(n=dt.count())
    query = counts.write_stream(dt.to_memory("paused"), checkpoint=tmp_path / "c", buckets=2)

    def paused(number: int) -> bool:
        last = query.lastProgress
        return last is not None and (last.batchId, last.numInputRows) == (number, 0)

    def wait(number: int) -> None:
        deadline = time.monotonic() + 60
        while not paused(number):
            assert time.monotonic() < deadline, query.lastProgress
            time.sleep(0.1)

    follower = ProgressFollower(query)  # type: ignore[arg-type]
    try:
        followed = []
        for number in (1, 2):
            wait(number)
            followed += follower.new_batches()
            assert follower.new_batches() == []
            last = dt.progress(query)
            assert last is not None
            assert (last.batch, last.rows) == (number - 1, number)
            if number == 1:
                write(tmp_path / "orders", 2, [{"id": n, "customer": 1} for n in (2, 3)])
                query.processAllAvailable()
        assert [(one.batch, one.rows) for one in followed] == [(0, 1), (1, 2)]
        assert dt.metrics.recent(query) == followed
        reports = query.progress_since("")  # type: ignore[attr-defined]
        new = query.progress_since(reports[-2].timestamp)  # type: ignore[attr-defined]
        assert [report.timestamp for report in new] == [reports[-1].timestamp]
    finally:
        query.stop()
        spark.conf.unset(interval)


def test_the_dashboard_and_the_page_name_metrics_that_exist() -> None:
    served = {f"dovetail_{name}_total" for name in COUNTERS} | {f"dovetail_{n}" for n in GAUGES}
    root = Path(__file__).parents[3]
    dashboard = (root / "examples/monitoring/grafana.json").read_text()
    page = (root / "docs/metrics.md").read_text()
    assert set(re.findall(r"dovetail_\w+", page)) == served
    assert set(re.findall(r"dovetail_\w+", dashboard)) <= served
    exprs = [t["expr"] for panel in json.loads(dashboard)["panels"] for t in panel["targets"]]
    assert all('{query="$query"}' in expr for expr in exprs)
