"""Events of OpenLineage are those of the run, and its columns those of the inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import RunEvent, RunState
from openlineage.client.transport.file import FileConfig, FileTransport
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing
from dovetail.plan.column_origins import column_origins, row_origins

NOW = {"trigger": {"availableNow": True}, "buckets": 1}


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"at": "2024-05-01T10:00:00Z"} | row) for row in rows]
    (folder / f"{len([*folder.iterdir()])}.json").write_text("\n".join(lines))


def table(spark: SparkSession, folder: Path, columns: str) -> dt.Table:
    frame = spark.readStream.schema(f"{columns}, at timestamp").json(str(folder))
    return dt.Table.from_changelog(frame, key="id", timestamp="at", name=folder.name)


def client(path: Path) -> OpenLineageClient:
    return OpenLineageClient(transport=FileTransport(FileConfig(str(path), append=True)))


def events(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for event in found:
        # The package's classes check what they are given.
        RunEvent(
            eventTime=event["eventTime"],
            producer=event["producer"],
            eventType=RunState[event["eventType"]],
            run=event["run"],
            job=event["job"],
        )
    return found


def test_a_query_reports_its_run_and_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "orders", [{"id": n, "customer": n % 2, "amount": n} for n in range(4)])
    write(tmp_path / "customers", [{"id": n, "city": f"c{n}"} for n in range(2)])
    orders = table(spark, tmp_path / "orders", "id long, customer long, amount long")
    customers = table(spark, tmp_path / "customers", "id long, city string")
    due = orders.join(
        customers,
        on="customer",
        select=["city", (F.col("amount") * 2).alias("twice")],
    ).where("twice > 0")
    log = tmp_path / "events.json"
    query = due.write_stream(dt.to_parquet(tmp_path / "out"), checkpoint=tmp_path / "c", **NOW)
    lineage = dt.lineage(query, client=client(log), namespace="shop", job="due", every=0.001)
    query.awaitTermination()
    lineage._reporting.join()
    lineage.stop()
    first, *_, last = events(log)
    assert (first["eventType"], last["eventType"]) == ("START", "COMPLETE")
    for event in (first, last):
        assert event["run"]["runId"] == str(query.runId)
        assert (event["job"]["namespace"], event["job"]["name"]) == ("shop", "due")
        names = [(dataset["namespace"], dataset["name"]) for dataset in event["inputs"]]
        assert names == [("file", f"{tmp_path}/{name}") for name in ("orders", "customers")]
    counts: dict[str, int] = {}
    for event in events(log):
        for dataset in event["inputs"]:
            rows = dataset["inputFacets"].get("inputStatistics", {}).get("rowCount", 0)
            counts[dataset["name"]] = counts.get(dataset["name"], 0) + rows
    assert counts == {f"{tmp_path}/orders": 4, f"{tmp_path}/customers": 2}
    (output,) = last["outputs"]
    assert (output["namespace"], output["name"]) == ("file", f"{tmp_path}/out")
    fields = output["facets"]["schema"]["fields"]
    assert [(field["name"], field["type"]) for field in fields] == [
        *(("id", "bigint"), ("city", "string"), ("twice", "bigint"))
    ]
    lineage_facet = output["facets"]["columnLineage"]
    made_of = {
        name: [
            (Path(of["name"]).name, of["field"], of["transformations"][0]["subtype"])
            for of in field["inputFields"]
        ]
        for name, field in lineage_facet["fields"].items()
    }
    assert made_of == {
        "id": [("orders", "id", "IDENTITY")],
        "city": [("customers", "city", "IDENTITY")],
        "twice": [("orders", "amount", "TRANSFORMATION")],
    }
    decided = [
        (Path(of["name"]).name, of["field"], of["transformations"][0]["subtype"])
        for of in lineage_facet["dataset"]
    ]
    assert decided == [
        ("customers", "id", "JOIN"),
        ("orders", "amount", "FILTER"),
        ("orders", "customer", "JOIN"),
    ]


def test_rows_of_all_frames_of_an_input_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "orders", [{"id": n} for n in range(3)])
    first, second = (
        spark.readStream.schema("id long, at timestamp").json(str(tmp_path / "orders"))
        for _ in range(2)
    )
    both = dt.Table.from_changelog(first.union(second), key="id", timestamp="at", name="both")
    log = tmp_path / "events.json"
    query = both.materialize().write_stream(
        dt.to_parquet(tmp_path / "out"), checkpoint=tmp_path / "c", **NOW
    )
    lineage = dt.lineage(query, client=client(log), namespace="shop", job="both", every=0.001)
    query.awaitTermination()
    lineage._reporting.join()
    facets = [dataset["inputFacets"] for event in events(log) for dataset in event["inputs"]]
    counted = [
        facet["inputStatistics"]["rowCount"] for facet in facets if "inputStatistics" in facet
    ]
    assert sum(counted) == 6


def test_a_failed_query_reports_its_error(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "orders", [{"id": 1, "amount": 1}])
    orders = table(spark, tmp_path / "orders", "id long, amount long")

    def fail(batch: Any, number: int) -> None:
        raise ValueError("the shop is closed")

    query = orders.materialize().write_stream(
        dt.to_foreach_batch(fail), checkpoint=tmp_path / "c", **NOW
    )
    lineage = dt.lineage(query, client=client(tmp_path / "events.json"))
    with pytest.raises(Exception, match="the shop is closed"):
        query.awaitTermination()
    lineage._reporting.join()
    first, last = events(tmp_path / "events.json")
    assert (first["eventType"], last["eventType"]) == ("START", "FAIL")
    assert "the shop is closed" in last["run"]["facets"]["errorMessage"]["message"]
    assert last["job"]["name"] == "orders"


def uses(origins: Any) -> list[tuple[str, str, str]]:
    return sorted((origin.source.name, origin.column, origin.use) for origin in origins)


def test_columns_are_followed_through_aggregates_and_outer_joins() -> None:
    left = testing.table("left", key="id", schema={"id": pa.int64(), "a": pa.int64()})
    right = testing.table("right", key="key", schema={"key": pa.int64(), "b": pa.int64()})
    joined = left.join(right, how="outer", on={"id": "key"})
    columns = column_origins(joined.plan)
    assert {name: uses(of) for name, of in columns.items()} == {
        "id": [("left", "id", "identity"), ("right", "key", "identity")],
        "a": [("left", "a", "identity")],
        "b": [("right", "b", "identity")],
    }
    assert uses(row_origins(joined.plan)) == [("left", "id", "join"), ("right", "key", "join")]
    totals = joined.group_by("b").agg(total=dt.sum("a"), rows=dt.count())
    columns = column_origins(totals.plan)
    assert {name: uses(of) for name, of in columns.items()} == {
        "b": [("right", "b", "identity")],
        "total": [("left", "a", "aggregation")],
        "rows": [],
    }
    assert ("right", "b", "group_by") in uses(row_origins(totals.plan))


def test_a_delta_join_is_decided_by_the_columns_that_it_pairs() -> None:
    left, right = (
        testing.table(name, key="id", schema={"id": pa.int64(), column: pa.int64()}).with_lookup(
            dt.lookups.sqlite("f.db", name, key="id", indexes=[dt.lookups.index(column)]),
            changes="insert",
        )
        for name, column in (("left", "a"), ("right", "b"))
    )
    joined = left.join(right, on={"a": "b"}, delta_join=dt.delta_join(strategy="force"))
    assert uses(row_origins(joined.plan)) == [("left", "a", "join"), ("right", "b", "join")]


def test_a_join_with_windows_is_decided_by_the_window_that_a_row_looks_in(
    spark: SparkSession,
) -> None:
    clicks = testing.stream("clicks", key="shop", schema={"shop": pa.int64()})
    counts = clicks.group_by("shop").window(dt.windows.tumbling("1 hour")).agg(n=dt.count())
    hour = pa.timestamp("us", "UTC")
    orders = testing.table("orders", key="shop", schema={"shop": pa.int64(), "hour": hour})
    for window_of in ("hour", F.date_trunc("hour", "hour")):
        joined = orders.join(counts, window_of=window_of)
        assert uses(row_origins(joined.plan)) == [
            ("clicks", "shop", "group_by"),
            ("clicks", "shop", "join"),
            ("orders", "hour", "join"),
            ("orders", "shop", "join"),
        ]


@pytest.mark.parametrize(("on_fail", "decides"), [("drop", True), ("warn", False)])
def test_an_expectation_that_drops_rows_decides_which_there_are(
    on_fail: Any, decides: bool
) -> None:
    clicks = testing.stream("clicks", key="id", schema={"id": pa.int64(), "ok": pa.bool_()})
    expected = clicks.expect("ok", on_fail=on_fail)
    assert uses(row_origins(expected.plan)) == [("clicks", "ok", "filter")] * decides


def test_columns_under_another_key_are_those_of_the_row() -> None:
    schema = {"id": pa.int64(), "city": pa.string(), "mayor": pa.string()}
    towns = testing.table("towns", key="id", schema=schema).key_by("city").plan
    origins = {name: {origin[1:] for origin in of} for name, of in column_origins(towns).items()}
    assert origins == {name: {(name, "identity")} for name in ("city", "id", "mayor")}
