"""The library on a session of Spark Connect, through a real server: what a classic session gives.

Each scenario is a function of a session and a folder.
"""

from __future__ import annotations

import io
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stdout
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.parameters import slow_after
from connect_server import Client, Server
from doc_examples import ROOT, blocks, promised
from parquet_rows import rows_of
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import dovetail as dt
from dovetail.platform.files import files_of

PAGE = ROOT / "docs" / "connect.md"
AT = datetime(2024, 5, 1, tzinfo=timezone.utc)
FLIGHTS = "id long, carrier string, late long, at timestamp, gone boolean"
CARRIERS = "carrier string, name string, at timestamp, gone boolean"
Rows = Sequence[tuple[Any, ...]]
SCHEDULED: Rows = [(1, "AA", 5, 0), (2, "UA", None, 1), (3, "XX", 9, 2), (4, None, 1, 3)]
NAMED: Rows = [("AA", "American", 0), ("UA", "United", 4)]
FLIGHTS_THEN: Rows = [(2, "AA", 7, 10), (1, None, None, 11), (5, "UA", 2, 12)]
NAMED_THEN: Rows = [("AA", "American Airlines", 13), ("UA", None, 14)]
"""With minutes at the end. Of what comes later, rows without a carrier, or a name, delete."""


def write(folder: Path, number: int, rows: Rows, columns: str) -> None:
    """A file of rows, the ``number``-th to be read."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [column.split()[0] for column in columns.split(", ")]
    times = [AT + timedelta(minutes=row[-1]) for row in rows]
    given = [list(column) for column in zip(*rows, strict=True)][:-1]
    gone = [row[1] is None and number > 0 for row in rows]
    made = dict(zip(names, [*given, times, gone], strict=True))
    types = {"long": pa.int64(), "string": pa.string(), "boolean": pa.bool_()}
    types["timestamp"] = pa.timestamp("us", "UTC")
    schema = pa.schema([(c.split()[0], types[c.split()[1]]) for c in columns.split(", ")])
    pq.write_table(pa.table(made, schema=schema), folder / f"{number}.parquet")


def first_rows(folder: Path) -> None:
    write(folder / "flights", 0, SCHEDULED, FLIGHTS)
    write(folder / "carriers", 0, NAMED, CARRIERS)
    with closing(sqlite3.connect(folder / "hubs.db")) as store:
        store.execute("CREATE TABLE IF NOT EXISTS hubs (code TEXT PRIMARY KEY, hub TEXT)")
        store.execute("REPLACE INTO hubs VALUES ('AA', 'Dallas')")
        store.commit()


def then_rows(folder: Path) -> None:
    write(folder / "flights", 1, FLIGHTS_THEN, FLIGHTS)
    write(folder / "carriers", 1, NAMED_THEN, CARRIERS)


def flights(spark: SparkSession, folder: Path) -> dt.Table:
    frame = spark.readStream.schema(FLIGHTS).parquet(str(folder / "flights"))
    return dt.Table.from_changelog(frame, key="id", timestamp="at", deleted="gone", name="flights")


def carriers(spark: SparkSession, folder: Path) -> dt.Table:
    frame = spark.readStream.schema(CARRIERS).parquet(str(folder / "carriers"))
    return dt.Table.from_changelog(
        frame, key="carrier", timestamp="at", deleted="gone", name="carriers"
    )


def departures(spark: SparkSession, folder: Path) -> dt.Stream:
    frame = spark.readStream.schema(FLIGHTS).parquet(str(folder / "flights"))
    return dt.Stream.from_changelog(frame.drop("gone"), key="id", timestamp="at", name="departures")


def network(spark: SparkSession, folder: Path) -> dt.Table:
    return named_flights(flights(spark, folder), carriers(spark, folder))


def named_flights(table: dt.Table, names: dt.Table) -> dt.Table:
    """Flights with their carriers, chosen and computed by expressions."""
    return (
        table.join(names, on="carrier", how="left")
        .where(F.coalesce("late", F.lit(0)) < 9)
        .with_columns(hours=F.round(F.col("late") / 60, 3), who=F.upper("name"))
    )


def results(spark: SparkSession, folder: Path) -> dict[str, dt.Table | dt.Stream]:
    """By foreign key, a stream with a store and a table, an aggregate."""
    table, names = flights(spark, folder), carriers(spark, folder)
    hubs = dt.lookups.sqlite(folder / "hubs.db", "hubs", key="code")
    located = departures(spark, folder).lookup(
        hubs, columns="code string, hub string", on="carrier", how="left"
    )
    seen = located.join(names, on="carrier", how="left", select=["name", "hub", "late"])
    counted = table.group_by("carrier").agg(flown=dt.count(), late=dt.sum("late"))
    return {
        "network": named_flights(table, names),
        "named": seen,
        "counted": counted,
    }


def emitted(frame: DataFrame) -> list[str]:
    """All its rows, in an order that does not depend on files."""
    return sorted(str(tuple(row)) for row in frame.collect())


def written(spark: SparkSession, path: Path) -> list[str]:
    """All rows that a query has written as Parquet."""
    return emitted(spark.read.parquet(str(path)))


Sinks = Callable[[dict[str, Any]], dict[Any, Any]]


def in_two_runs(spark: SparkSession, folder: Path, sinks: Sinks) -> None:
    """Run ``results`` into these sinks, in one query that stops and goes on."""
    first_rows(folder)
    for again in (False, True):
        chosen = sinks(results(spark, folder))
        made = dt.run(
            chosen, checkpoint=folder / "checkpoint", trigger={"availableNow": True}, buckets=2
        )
        made.awaitTermination()
        if not again:
            then_rows(folder)


def several_results(spark: SparkSession, folder: Path) -> dict[str, list[str]]:
    """Every kind of result into several kinds of sinks."""
    table, path = f"told_{uuid4().hex}", str(folder / "handed")

    def hand(changes: DataFrame, number: int) -> None:
        changes.withColumn("number", F.lit(number)).write.mode("append").parquet(path)

    def sinks(made: dict[str, Any]) -> dict[Any, Any]:
        return {
            made["network"]: [dt.to_delta(folder / "merged"), dt.to_parquet(folder / "files")],
            made["named"]: dt.to_delta(folder / "appended"),
            made["counted"]: [dt.to_memory(table), dt.to_foreach_batch(hand)],
        }

    in_two_runs(spark, folder, sinks)
    delta = spark.read.format("delta")
    found = {
        "merged": delta.load(str(folder / "merged")),
        "files": spark.read.parquet(str(folder / "files")),
        "appended": delta.load(str(folder / "appended")),
        "memory": spark.table(table),
        "handed": spark.read.parquet(path),
    }
    return {name: emitted(frame.drop("_timestamp", "_position")) for name, frame in found.items()}


@pytest.mark.slow
def test_several_results_into_several_sinks(delta_client: Client, tmp_path: Path) -> None:
    """Of a query that goes on; a table in memory has what came in its own run."""
    later = [
        "('AA', 1, 7, 'upsert')",
        "('AA', 2, 12, 'upsert')",
        "('UA', 1, 2, 'upsert')",
        "('UA', None, None, 'delete')",
    ]
    earlier = [
        "('AA', 1, 5, 'upsert')",
        "('UA', 1, None, 'upsert')",
        "('XX', 1, 9, 'upsert')",
    ]
    handed = [f"{row[:-1]}, {n})" for n, rows in enumerate((earlier, later)) for row in rows]
    assert delta_client.run(several_results, tmp_path) == {
        "merged": [
            "(2, 'AA', 7, 'American Airlines', 0.117, 'AMERICAN AIRLINES')",
            "(4, None, 1, None, 0.017, None)",
            "(5, 'UA', 2, None, 0.033, None)",
        ],
        "files": [
            "(1, 'AA', 5, 'American', 0.083, 'AMERICAN', 'upsert', 0)",
            "(1, 'AA', 5, None, 0.083, None, 'upsert', 0)",
            "(1, None, None, None, None, None, 'delete', 1)",
            "(2, 'AA', 7, 'American Airlines', 0.117, 'AMERICAN AIRLINES', 'upsert', 1)",
            "(2, 'AA', 7, 'American', 0.117, 'AMERICAN', 'upsert', 1)",
            "(2, 'UA', None, 'United', None, 'UNITED', 'upsert', 0)",
            "(2, 'UA', None, None, None, None, 'upsert', 0)",
            "(4, None, 1, None, 0.017, None, 'upsert', 0)",
            "(5, 'UA', 2, 'United', 0.033, 'UNITED', 'upsert', 1)",
            "(5, 'UA', 2, None, 0.033, None, 'upsert', 1)",
        ],
        "appended": [
            "(1, None, 'Dallas', 5, 'upsert')",
            "(1, None, None, None, 'upsert')",
            "(2, 'American', 'Dallas', 7, 'upsert')",
            "(2, None, None, None, 'upsert')",
            "(3, None, None, 9, 'upsert')",
            "(4, None, None, 1, 'upsert')",
            "(5, 'United', None, 2, 'upsert')",
        ],
        "memory": later,
        "handed": sorted(handed),
    }


def run(spark: SparkSession, folder: Path, sink: Any, topology: Any = network, **more: Any) -> Any:
    """All there is, in a query that stops then."""
    query = topology(spark, folder).write_stream(
        sink, checkpoint=folder / "checkpoint", trigger={"availableNow": True}, buckets=2, **more
    )
    query.awaitTermination()
    return query


def one_result(spark: SparkSession, folder: Path, begins: bool) -> None:
    """As Parquet, from where the checkpoint stands."""
    (first_rows if begins else then_rows)(folder)
    run(spark, folder, dt.to_parquet(folder / "out"), topology=by_name)


def by_name(spark: SparkSession, folder: Path) -> dt.Table:
    """Without an expression that a checkpoint knows."""
    table = flights(spark, folder)
    return table.join(carriers(spark, folder), on="carrier", how="left", select=["late", "name"])


@pytest.mark.long
@pytest.mark.parametrize("order", slow_after(1, ["classic, connect", "connect, classic"]))
def test_a_query_goes_on_in_either_kind_of_session(
    spark: SparkSession, client: Client, tmp_path: Path, order: str
) -> None:
    for place, kind in enumerate(order.split(", ")):
        if kind == "connect":
            client.run(one_result, tmp_path, place == 0)
        else:
            one_result(spark, tmp_path, place == 0)
    names = ("id", "late", "name", "_change")
    assert sorted(str(tuple(row[n] for n in names)) for row in rows_of(tmp_path / "out")) == [
        "(1, 5, 'American', 'upsert')",
        "(1, 5, None, 'upsert')",
        "(1, None, None, 'delete')",
        "(2, 7, 'American Airlines', 'upsert')",
        "(2, 7, 'American', 'upsert')",
        "(2, None, 'United', 'upsert')",
        "(2, None, None, 'upsert')",
        "(3, 9, None, 'upsert')",
        "(4, 1, None, 'upsert')",
        "(5, 2, 'United', 'upsert')",
        "(5, 2, None, 'upsert')",
    ]


def other_topology(spark: SparkSession, folder: Path) -> list[str]:
    """What a checkpoint of another expression says, and one of the same in other words."""
    first_rows(folder)

    def total(spark: SparkSession, folder: Path, late: Any) -> dt.Table:
        table = flights(spark, folder).with_columns(late=late)
        return table.group_by("carrier").agg(late=dt.sum("late"))

    def start(late: Any) -> None:
        run(spark, folder, dt.to_parquet(folder / "out"), lambda *of: total(*of, late))

    start(F.col("late") + 2)
    start(F.expr("late + 2"))
    try:
        start(F.col("late") + 3)
    except dt.errors.CheckpointError as error:
        return [str(error)]
    return []


def test_a_checkpoint_belongs_to_its_expressions(client: Client, tmp_path: Path) -> None:
    (error,) = client.run(other_topology, tmp_path)
    assert "the checkpoint belongs to another topology" in error
    assert "(late + cast(2 as bigint))" in error
    assert "(late + cast(3 as bigint))" in error


def mistakes(spark: SparkSession, folder: Path) -> list[str]:
    """What is said of expressions that cannot serve."""
    first_rows(folder)
    table, names = flights(spark, folder), carriers(spark, folder)
    calls: list[Callable[[], Any]] = [
        lambda: table.with_columns(x=F.col("nowhere")),
        lambda: table.with_columns(x=F.sum("late")),
        lambda: table.with_columns(x=F.explode(F.array("late"))),
        lambda: table.join(names, on=F.concat("carrier", F.rand().cast("string"))),
        lambda: table.join(names, on=F.concat("carrier", F.now().cast("string"))),
        lambda: table.where("late"),
    ]
    return [refused(call) for call in calls]


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except dt.errors.PlanError as error:
        return str(error)
    return "nothing is refused"


def test_mistakes_are_those_of_a_classic_session(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    found = client.run(mistakes, tmp_path)
    expected = mistakes(spark, tmp_path)
    assert [f.partition("[")[0] for f in found] == [e.partition("[")[0] for e in expected]
    assert "does not resolve" in found[0]


def explained(spark: SparkSession, folder: Path) -> str:
    text = io.StringIO()
    with redirect_stdout(text):
        network(spark, folder).explain()
    return text.getvalue()


def test_explain_is_that_of_a_classic_session(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    first_rows(tmp_path)
    assert client.run(explained, tmp_path) == explained(spark, tmp_path)


def left_out(spark: SparkSession, folder: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Views, one of which makes a map, and a foreign key that fail on rows; the dead letters are
    written beside the rest.
    """
    first_rows(folder)
    late = F.when(F.col("late") == 9, F.raise_error(F.lit("too late"))).otherwise(F.col("late"))
    seen = flights(spark, folder).with_columns(
        by=F.create_map(F.lit("late"), late), errors="dead_letter"
    )
    rated = seen.where(
        F.coalesce(100 / (F.col("late") - 1), F.lit(0)) > -1000, errors="dead_letter"
    )
    unknown = F.when(F.col("late").isNull(), F.raise_error(F.lit("no time")))
    known = carriers(spark, folder).expect("name <> 'United'", on_fail="dead_letter")
    result = rated.join(known, on=unknown.otherwise(F.col("carrier")), select=["by", "name"])
    sinks = {result: dt.to_parquet(folder / "out"), dt.dead_letters: dt.to_parquet(folder / "dead")}
    dt.run(
        sinks, checkpoint=folder / "checkpoint", trigger={"availableNow": True}
    ).awaitTermination()
    rows = spark.read.parquet(str(folder / "out")).select("id", "by", "name")
    letters = spark.read.parquet(str(folder / "dead")).select("_operator", "row")
    return emitted(rows), sorted((row["_operator"], row["row"]) for row in letters.collect())


@pytest.mark.long
def test_rows_on_which_an_expression_fails_are_dead_letters(client: Client, tmp_path: Path) -> None:
    rows, letters = client.run(left_out, tmp_path)
    assert rows == ["(1, {'late': 5}, 'American')"]
    assert letters == [
        ("expect of carriers", '{"carrier":"UA","name":"United"}'),
        ("inner join of flights and carriers", '{"id":2,"carrier":"UA","by":{"late":null}}'),
        ("where of flights", '{"id":4,"late":1,"by":{"late":1}}'),
        ("with_columns of flights", '{"id":3,"carrier":"XX","late":9}'),
    ]


def in_postgres(spark: SparkSession, folder: Path, dsn: str) -> None:
    """A table of PostgreSQL; the changes are shown, too."""
    in_two_runs(
        spark, folder, lambda made: {made["counted"]: [dt.to_postgres(dsn, "t"), dt.to_console()]}
    )


@pytest.mark.slow
def test_a_table_in_postgres(client: Client, database: str, tmp_path: Path) -> None:
    client.run(in_postgres, tmp_path, database)
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(database) as connection:
        kept = connection.execute("SELECT carrier, flown, late FROM t ORDER BY carrier").fetchall()
    assert kept == [("AA", 1, 7), ("UA", 1, 2), ("XX", 1, 9)]


def failing(spark: SparkSession, folder: Path) -> str:
    first_rows(folder)

    def hand(changes: DataFrame, number: int) -> None:
        raise RuntimeError("the sink fails")

    try:
        run(spark, folder, dt.to_foreach_batch(hand))
    except StreamingQueryException as error:
        return str(error).partition("\n")[0]
    return ""


def test_a_failure_says_first_what_has_failed(client: Client, tmp_path: Path) -> None:
    found = client.run(failing, tmp_path)
    assert found.endswith("a micro-batch fails with RuntimeError: the sink fails")


def by_floats(spark: SparkSession, folder: Path) -> list[list[str]]:
    """A table whose keys are floats, which Spark itself must merge, and all its versions; those of
    another, whose rows are few.
    """

    def sinks(made: dict[str, Any]) -> dict[Any, Any]:
        table = flights(spark, folder)
        parts = table.with_columns(part=F.col("late") / 4)
        versions = dt.to_delta(folder / "versions", history=True)
        return {
            parts.group_by("part").agg(n=dt.count()): [dt.to_delta(folder / "rows"), versions],
            table.group_by("carrier").agg(n=dt.count()): dt.to_delta(folder / "few", history=True),
        }

    in_two_runs(spark, folder, sinks)
    rows, versions, few = (
        spark.read.format("delta").load(str(folder / name)) for name in ("rows", "versions", "few")
    )
    times = [*(F.minute(name) for name in ("_valid_from", "_valid_to")), "_current"]
    return [
        emitted(rows.drop("_timestamp")),
        emitted(versions.select("part", "n", *times)),
        emitted(few.select("carrier", "n", *times)),
    ]


@pytest.mark.slow
def test_delta_tables_are_merged_by_spark(delta_client: Client, tmp_path: Path) -> None:
    assert delta_client.run(by_floats, tmp_path) == [
        ["(0.25, 1)", "(0.5, 1)", "(1.75, 1)", "(2.25, 1)"],
        [
            "(0.25, 1, 3, None, True)",
            "(0.5, 1, 12, None, True)",
            "(1.25, 1, 0, 11, False)",
            "(1.75, 1, 10, None, True)",
            "(2.25, 1, 2, None, True)",
        ],
        [
            "('AA', 1, 0, 10, False)",
            "('AA', 1, 11, None, True)",
            "('AA', 2, 10, 11, False)",
            "('UA', 1, 1, 10, False)",
            "('UA', 1, 12, None, True)",
            "('XX', 1, 2, None, True)",
        ],
    ]


def other_rows_in_delta(spark: SparkSession, folder: Path) -> str:
    first_rows(folder)
    spark.range(3).write.format("delta").save(str(folder / "table"))
    try:
        run(spark, folder, dt.to_delta(folder / "table"))
    except dt.errors.TargetError as error:
        return str(error)
    return ""


@pytest.mark.long
def test_a_delta_table_of_others_is_refused(delta_client: Client, tmp_path: Path) -> None:
    assert "the table has other columns" in delta_client.run(other_rows_in_delta, tmp_path)


def through_a_topic(spark: SparkSession, folder: Path, servers: str) -> tuple[list[str], list[str]]:
    """Written to a topic, and read from it as a table; and the records' headers after their first,
    the time.
    """
    first_rows(folder)
    topic = f"flights-{uuid4().hex}"
    headers = {"who": "who", "half": F.col("late") / 2}
    run(spark, folder, dt.to_topic(topic, servers=servers, headers=headers))
    key, value = ("id long", "late long, name string, who string")
    read = dt.Table.from_topic(
        spark,
        topic,
        servers=servers,
        key=StructType.fromDDL(key),
        value=StructType.fromDDL(value),
    )
    run(spark, folder / "again", dt.to_parquet(folder / "out"), lambda *_: read)
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "includeHeaders": "true"}
    records = spark.read.format("kafka").options(**options).load()
    texts = "transform(slice(headers, 2, 9), h -> h.key || '=' || string(h.value))"
    headed = records.selectExpr(f"array_join({texts}, ',') AS text").collect()
    read_back = spark.read.parquet(str(folder / "out")).select("id", "late", "name", "_change")
    return emitted(read_back), sorted(row["text"] for row in headed)


@pytest.mark.slow
def test_topics_are_written_and_read(
    delta_client: Client, kafka_servers: str, tmp_path: Path
) -> None:
    rows, headers = delta_client.run(through_a_topic, tmp_path, kafka_servers)
    assert rows == [
        "(1, 5, 'American', 'upsert')",
        "(1, 5, None, 'upsert')",
        "(2, None, 'United', 'upsert')",
        "(2, None, None, 'upsert')",
        "(4, 1, None, 'upsert')",
    ]
    assert headers == sorted(
        [
            "dovetail.change=upsert,who=AMERICAN,half=2.5",
            "dovetail.change=upsert,half=2.5",
            "dovetail.change=upsert,who=UNITED",
            "dovetail.change=upsert",
            "dovetail.change=upsert,half=0.5",
        ]
    )


def of_static_frames(spark: SparkSession, folder: Path) -> list[str]:
    first_rows(folder)
    frame = spark.read.parquet(str(folder / "flights"))
    table = dt.Table.from_changelog(frame, key="id", timestamp="at", deleted="gone", name="flights")
    counted = table.group_by("carrier").agg(n=dt.count(), late=dt.sum("late"))
    shown = repr(counted.preview()).splitlines()
    return [*shown, *emitted(counted.changelog(emit="batch", buckets=2))]


def test_static_frames_are_a_batch(spark: SparkSession, client: Client, tmp_path: Path) -> None:
    assert client.run(of_static_frames, tmp_path) == of_static_frames(spark, tmp_path)


def previewed(spark: SparkSession, folder: Path) -> str:
    first_rows(folder)
    try:
        flights(spark, folder).preview()
    except dt.errors.ConfigurationError as error:
        return str(error)
    return ""


def test_a_preview_reads_no_streaming_input(client: Client, tmp_path: Path) -> None:
    assert client.run(previewed, tmp_path) == (
        "preview: a streaming input is not read on Spark Connect. Read the same source by "
        "spark.read, or write to dt.to_memory."
    )


def begun_with_rows(spark: SparkSession, folder: Path) -> list[list[str]]:
    """A table that begins with a frame, beside a static one, then what its checkpoint holds and
    looks up.
    """
    first_rows(folder)
    names = spark.createDataFrame(
        [("UA", "United"), ("AA", "American")], "carrier string, name string"
    )

    def beside(spark: SparkSession, folder: Path) -> dt.Table:
        static = dt.Table.from_static(names, key="carrier", name="carriers")
        select = ["late", "name"]
        return flights(spark, folder).join(static, on="carrier", how="left", select=select)

    columns = "id long, carrier string, late long, _timestamp timestamp"
    frame = spark.createDataFrame([(9, "UA", 60, AT), (1, "UA", 61, AT)], columns)
    for again in (False, True):
        initial = {"flights": frame}
        run(spark, folder, dt.to_parquet(folder / "out"), topology=beside, initial=initial)
        if not again:
            then_rows(folder)
    checkpoint = folder / "checkpoint"
    found = (
        dt.checkpoints.lookup_state(checkpoint, "flights", keys=[1, 2, 9]).sort_by("id").to_pylist()
    )
    state = dt.checkpoints.read_state(spark, checkpoint, "flights")
    held = dt.checkpoints.read_state(spark, checkpoint, topology=beside(spark, folder))
    lists = [emitted(frame.drop("_timestamp")) for frame in (state, held)]
    out = spark.read.parquet(str(folder / "out")).drop("_timestamp", "_position")
    return [emitted(out), *lists, [str((row["id"], row["late"])) for row in found]]


@pytest.mark.slow
def test_a_table_begins_with_rows_and_state_is_read(client: Client, tmp_path: Path) -> None:
    assert client.run(begun_with_rows, tmp_path) == [
        [
            "(1, 5, 'American', 'upsert')",
            "(1, None, None, 'delete')",
            "(2, 7, 'American', 'upsert')",
            "(2, None, 'United', 'upsert')",
            "(3, 9, None, 'upsert')",
            "(4, 1, None, 'upsert')",
            "(5, 2, 'United', 'upsert')",
        ],
        ["(2, 'AA', 7)", "(3, 'XX', 9)", "(4, None, 1)", "(5, 'UA', 2)", "(9, 'UA', 60)"],
        [
            "(2, 7, 'American')",
            "(3, 9, None)",
            "(4, 1, None)",
            "(5, 2, 'United')",
            "(9, 60, 'United')",
        ],
        ["(2, 7)", "(9, 60)"],
    ]


def snapshots(spark: SparkSession, folder: Path) -> list[Any]:
    """A join of Delta tables, kept over a change and a commit that changes no row of it."""
    feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    for name in ("a", "b"):
        table = f"delta.`{folder / name}`"
        spark.sql(f"CREATE TABLE {table} (id BIGINT, {name} STRING) USING delta {feed}")
        spark.sql(f"INSERT INTO {table} VALUES (1, 'x'), (2, 'y')")
    sides = [
        dt.SnapshotTable.from_delta(spark, folder / name, key="id", name=name) for name in "ab"
    ]
    joined = sides[0].join(sides[1], how="left")
    made = joined.refresh(folder / "target")
    spark.sql(f"DELETE FROM delta.`{folder / 'b'}` WHERE id = 2")
    spark.sql(f"INSERT INTO delta.`{folder / 'b'}` VALUES (7, 'z')")
    made += joined.refresh(folder / "target", max_versions=1)
    rows = spark.read.format("delta").load(str(folder / "target"))
    commits = [(one.version, dict(one.covered), one.changed) for one in made]
    return [commits, emitted(rows)]


@pytest.mark.slow
def test_snapshots_are_joined(delta_client: Client, tmp_path: Path) -> None:
    commits, rows = delta_client.run(snapshots, tmp_path)
    assert commits == [
        (0, {"a": 1, "b": 1}, None),
        (1, {"a": 1, "b": 2}, 1),
        (2, {"a": 1, "b": 3}, 0),
    ]
    assert rows == ["(1, 'x', 'x')", "(2, 'y', None)"]


def mapped_columns(spark: SparkSession, folder: Path) -> str:
    mapping = "delta.enableChangeDataFeed = true, delta.columnMapping.mode = 'name'"
    for name in ("a", "b"):
        table = f"delta.`{folder / name}`"
        columns = f"(id BIGINT, {name} STRING) USING delta TBLPROPERTIES ({mapping})"
        spark.sql(f"CREATE TABLE {table} {columns}")
        spark.sql(f"INSERT INTO {table} VALUES (1, 'x')")
    sides = [dt.SnapshotTable.from_delta(spark, folder / name, key="id") for name in "ab"]
    joined = sides[0].join(sides[1])
    joined.refresh(folder / "target")
    spark.sql(f"INSERT INTO delta.`{folder / 'a'}` VALUES (2, 'y')")
    try:
        joined.refresh(folder / "target")
    except dt.errors.ConfigurationError as error:
        return str(error)
    return ""


def rewound(spark: SparkSession, folder: Path) -> str:
    (folder / "orders").mkdir()
    (folder / "orders" / "1.json").write_text('{"id": 1, "at": "2024-05-01T10:00:00Z"}')
    read = spark.readStream.schema("id long, at timestamp").json(str(folder / "orders"))
    orders = dt.Table.from_changelog(read, key="id", timestamp="at")
    orders.materialize().write_stream(
        dt.to_parquet(folder / "out"),
        checkpoint=folder / "checkpoint",
        trigger={"availableNow": True},
    ).awaitTermination()
    try:
        dt.checkpoints.rewind(spark, folder / "checkpoint", batch=0)
    except dt.errors.ConfigurationError as error:
        return str(error)
    return ""


def upgraded(spark: SparkSession, folder: Path) -> str:
    one_result(spark, folder, begins=True)
    try:
        dt.checkpoints.upgrade(spark, folder / "checkpoint", folder / "new", by_name(spark, folder))
    except dt.errors.ConfigurationError as error:
        return str(error)
    return ""


def closed(spark: SparkSession, folder: Path) -> str:
    folder.mkdir()
    read = spark.readStream.schema("id long, at timestamp").json(str(folder))
    orders = dt.Table.from_changelog(read, key="id", timestamp="at")
    ends = {"trigger": {"availableNow": True}, "close_at_end": True}
    try:
        orders.write_stream(dt.to_memory("m"), checkpoint=folder / "checkpoint", **ends)
    except dt.errors.ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_what_is_lacking_is_said(delta_client: Client, tmp_path: Path) -> None:
    assert "Spark Connect does not show under which names" in delta_client.run(
        mapped_columns, tmp_path
    )
    refused = delta_client.run(rewound, tmp_path)
    assert refused.startswith("Spark Connect: it has no call that lists a folder. Do this in a ")
    refused = delta_client.run(upgraded, tmp_path / "upgraded")
    assert refused.startswith("upgrade: Spark Connect cannot write files into a checkpoint")
    refused = delta_client.run(closed, tmp_path / "closed")
    assert refused.startswith("write_stream: Spark Connect cannot write files into a checkpoint")


def documented(spark: SparkSession, folder: Path, address: str) -> list[tuple[str, list[str]]]:
    """What the examples of the page print, with what they say."""
    orders = folder / "data" / "orders"
    orders.mkdir(parents=True)
    rows = [f'{{"id": {n}, "amount": {n * 8}, "at": "2024-05-01T10:00:00Z"}}' for n in (1, 2)]
    (orders / "1.json").write_text("\n".join(rows))
    found = []
    for block in blocks(PAGE):
        placed = block.replace('"sc://localhost:15002"', repr(address))
        for name in ("data", "out"):
            placed = placed.replace(f'"{name}/', f'"{folder}/{name}/')
        text = io.StringIO()
        with redirect_stdout(text):
            exec(compile(placed, str(PAGE), "exec"), {})
        found.append((text.getvalue(), promised(block)))
    return found


def test_the_examples_of_the_page_run(client: Client, tmp_path: Path) -> None:
    found = client.run(documented, tmp_path, client.server.address)
    assert found
    for printed, said in found:
        assert printed.splitlines() == said


def diagnosed(spark: SparkSession) -> list[str]:
    return [finding.what for finding in dt.doctor(spark).missing]


def test_doctor_knows_a_server(delta_client: Client) -> None:
    found = delta_client.run(diagnosed)
    assert "Unix sockets" in found
    assert not {"Spark", "workers' Python", "Kafka", "Delta Lake", "warm workers"} & {*found}


def published(spark: SparkSession, folder: Path) -> list[list[tuple[int, int]]]:
    """The rows of all partitions after each writing of one."""
    rows = spark.createDataFrame([(1,), (2,)], "id int")
    tables = []
    for batch_id, one in ((0, rows), (1, rows), (1, rows.where("id = 2")), (1, rows.limit(0))):
        assert files_of(spark).publish(one, str(folder), "batch", batch_id)
        read = spark.read.schema("id int, batch int").parquet(str(folder))
        tables.append(sorted((row["id"], row["batch"]) for row in read.collect()))
    return tables


def test_a_partition_that_is_written_again_has_the_new_rows_alone(
    client: Client, tmp_path: Path
) -> None:
    """Also if there are none: Spark itself overwrites only partitions that get rows."""
    first = [(1, 0), (2, 0)]
    assert client.run(published, tmp_path / "out") == [
        first,
        sorted([*first, (1, 1), (2, 1)]),
        sorted([*first, (2, 1)]),
        first,
    ]


def started(spark: SparkSession, folder: Path) -> None:
    """A query that runs, once it has written its first micro-batch."""
    network(spark, folder).write_stream(
        dt.to_parquet(folder / "out"), checkpoint=folder / "checkpoint", buckets=2
    )
    deadline = time.monotonic() + 180
    while not list((folder / "checkpoint" / "commits").glob("[0-9]*")):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def goes_on(spark: SparkSession, folder: Path) -> list[str]:
    run(spark, folder, dt.to_parquet(folder / "out"))
    return written(spark, folder / "out")


@pytest.mark.slow
def test_a_server_that_is_killed_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Between two micro-batches; what comes meanwhile is read by the next server's query."""
    folder = tmp_path / "killed"
    first_rows(folder)
    for function in (started, goes_on):
        server = Server(tmp_path)
        client = Client(server)
        try:
            found = client.run(function, folder)
        finally:
            server.kill()
            client.close()
        if function is started:
            then_rows(folder)
    other = tmp_path / "classic"
    first_rows(other)
    run(spark, other, dt.to_parquet(other / "out"))
    then_rows(other)
    assert found == goes_on(spark, other)
