"""``load="first"``: a stream's records wait until the table has been read to its present end."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import pyarrow as pa
import pytest
from bench.parameters import slow_after
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from timed_files import timed_file

import dovetail as dt
from dovetail import testing
from dovetail.errors import CheckpointError, PlanError
from dovetail.platform import progress_bar as bars

SALES, PRICES = "id long, item string, n long", "item string, price long, n long"
Rows = list[dict[str, Any]]


class World:
    """A stream of sales and a table of prices, in files that a micro-batch each reads."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.files = spark, folder, 0
        self.began = time() - 1000
        for name in ("sales", "prices"):
            (folder / name).mkdir()

    def write(self, name: str, *files: Rows) -> None:
        for rows in files:
            self.files += 1
            self.put(name, self.files, "\n".join(map(json.dumps, rows)))

    def put(self, name: str, number: int, text: str) -> None:
        """Write a file. Spark orders files by their times."""
        with timed_file(self.folder / name / f"{number}.json", self.began + number) as path:
            path.write_text(text)

    def frame(self, name: str, schema: str) -> Any:
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.option("mode", "FAILFAST").json(str(self.folder / name))

    def sales(self) -> dt.Stream:
        return dt.Stream.from_changelog(
            self.frame("sales", SALES), key="id", timestamp=F.timestamp_micros("n"), name="sales"
        ).drop("n")

    def prices(self, **options: Any) -> dt.Table:
        return dt.Table.from_changelog(
            self.frame("prices", PRICES),
            key="item",
            timestamp=F.timestamp_micros("n"),
            name="prices",
            **options,
        ).drop("n")

    def start(self, result: Any, rows: list[Row], **options: Any) -> Any:
        """Begin, or go on; the rows that come out are appended."""
        sink = dt.to_foreach_batch(lambda changes, _: rows.extend(changes.collect()))
        return result.write_stream(
            sink, checkpoint=self.folder / "checkpoint", buckets=2, partitions=1, **options
        )

    def binding(self) -> Any:
        return json.loads((self.folder / "checkpoint" / "dovetail.json").read_text())


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path)


def price(item: str, price: int, n: int) -> dict[str, Any]:
    return {"item": item, "price": price, "n": n}


def sale(number: int, item: str, n: int) -> dict[str, Any]:
    return {"id": number, "item": item, "n": n}


def pairs(rows: list[Row]) -> list[tuple[int, int | None]]:
    return [(row["id"], row["price"]) for row in rows]


ALL = {"trigger": {"availableNow": True}}


@pytest.mark.parametrize("load", slow_after(1, ["first", None]))
def test_records_meet_the_whole_table(
    world: World, load: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though they are older. The table is read file by file, and afterwards side by side. A
    progress bar says so meanwhile.
    """
    monkeypatch.setenv(bars.ASKED, "1")
    monkeypatch.setattr(bars, "_draws_itself", lambda session: True)
    world.write("sales", [sale(1, "pen", 1)], [sale(2, "ink", 2)])
    world.write("prices", *([price("pen", n, 10 + n)] for n in range(3)), [price("ink", 9, 30)])
    joined = world.sales().join(world.prices(), on="item", how="left", load=load)
    rows: list[Row] = []
    query = world.start(joined, rows, **ALL)
    query.awaitTermination()
    bar = "dovetail: left join of sales and prices: tables are loaded\n"
    assert capsys.readouterr().err.count(bar) == (1 if load else 0)
    assert pairs(rows) == ([(1, 2), (2, 9)] if load else [(1, None), (2, None)])
    read = [
        {
            source.description.rpartition("/")[2].strip("]"): source.numInputRows
            for source in p.sources
        }
        for p in query.recentProgress
        if p.numInputRows
    ]
    if load:
        assert [sum(p.values()) for p in read] == [1] * 6
        assert [p.get("prices", 0) for p in read] == [1, 1, 1, 1, 0, 0]
    assert "loading" not in world.binding()
    if load:
        with pytest.raises(
            CheckpointError, match=r"after micro-batch 2 .* Name micro-batch 3 or a"
        ):
            dt.checkpoints.rewind(world.spark, world.folder / "checkpoint", batch=2)
    world.write("prices", [price("pen", 50, 50)])
    world.write("sales", [sale(3, "pen", 40)])
    world.start(joined, rows, **ALL).awaitTermination()
    assert bar not in capsys.readouterr().err
    assert pairs(rows[2:]) == [(3, 2)]


def test_a_start_after_a_failure_loads_the_rest(world: World) -> None:
    """Also what has come meanwhile. Nobody goes on with a table that is not loaded."""
    world.write("sales", [sale(1, "pen", 1)])
    world.write("prices", [price("pen", 1, 10)], [price("ink", 2, 11)], [])
    world.put("prices", 4, "{no json")
    rows: list[Row] = []
    joined = world.sales().join(world.prices(), on="item", how="left", load="first")
    with pytest.raises(StreamingQueryException, match=r"MALFORMED|FAILED_READ_FILE"):
        world.start(joined, rows, **ALL).awaitTermination()
    assert world.binding()["loading"] is True
    assert rows == []
    with pytest.raises(CheckpointError, match=r"not read its tables to their end, by load='first'"):
        dt.checkpoints.upgrade(
            world.spark, world.folder / "checkpoint", world.folder / "other", joined
        )
    world.put("prices", 4, json.dumps(price("pen", 3, 12)))
    world.write("prices", [price("pen", 4, 13)])
    world.start(joined, rows, **ALL).awaitTermination()
    assert pairs(rows) == [(1, 4)]
    assert "loading" not in world.binding()


def test_a_query_without_end_begins_after_the_load(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It says in its log what it waits for, and is one query to those who hold it."""
    caplog.set_level(logging.INFO, "dovetail.query")
    world.write("sales", [sale(1, "pen", 1)])
    world.write("prices", [price("pen", 1, 10)], [price("pen", 2, 20)])
    joined = world.sales().join(world.prices(), on="item", load="first")
    rows: list[Row] = []
    query = world.start(joined, rows, query_name="sold")
    query.processAllAvailable()
    assert pairs(rows) == [(1, 2)]
    assert query.isActive
    assert query.name == "sold"
    world.write("sales", [sale(2, "pen", 30)])
    query.processAllAvailable()
    assert pairs(rows) == [(1, 2), (2, 2)]
    query.stop()
    assert not query.isActive
    started = [line for line in caplog.messages if "started" in line]
    assert len(started) == 2
    assert started[0].endswith(
        "it begins anew; it reads prices to the present end, while sales wait."
    )
    assert started[1].endswith("its tables are loaded.")


def test_a_query_that_is_stopped_while_it_loads_goes_on_loading(world: World) -> None:
    world.write("sales", [sale(1, "pen", 1)])
    world.write("prices", *([price("pen", n, 10 + n)] for n in range(12)))
    joined = world.sales().join(world.prices(), on="item", load="first")
    rows: list[Row] = []
    query, until = world.start(joined, rows), monotonic() + 120
    while not (query.lastProgress and query.lastProgress.numInputRows):
        assert monotonic() < until
        sleep(0.05)
    query.stop()
    assert world.binding()["loading"] is True
    assert rows == []
    world.start(joined, rows, **ALL).awaitTermination()
    assert pairs(rows) == [(1, 11)]


def test_the_end_of_the_input_comes_last(world: World) -> None:
    """Of a versioned table whose records wait, and with a table that is made in another stage."""
    world.write("sales", [sale(1, "pen", 15), sale(2, "pen", 16)])
    world.write("prices", [price("pen", 1, 10)], [price("ink", 5, 20)])
    prices = world.prices(versioned="1 hour")
    counted = world.sales().join(prices, on="item", how="left", load="first", grace="1 min")
    rows: list[Row] = []
    world.start(counted, rows, close_at_end=True, **ALL).awaitTermination()
    assert pairs(rows) == [(1, 1), (2, 1)]
    with pytest.raises(CheckpointError, match="has ended"):
        world.start(counted, rows, close_at_end=True, **ALL)


def static(spark: SparkSession, world: World) -> tuple[dt.Stream, dt.Table]:
    sales = spark.createDataFrame([(1, "pen", 1), (2, "ink", 25)], SALES)
    prices = spark.createDataFrame([("pen", 3, 20), ("ink", 4, 30), ("pen", 5, 40)], PRICES)
    at = F.timestamp_micros("n")
    return (
        dt.Stream.from_changelog(sales, key="id", timestamp=at, name="sales").drop("n"),
        dt.Table.from_changelog(prices, key="item", timestamp=at, name="prices").drop("n"),
    )


def test_a_batch_takes_the_tables_rows_first(spark: SparkSession, world: World) -> None:
    """Also where another stage makes the table."""
    sales, prices = static(spark, world)
    plain = sales.join(prices, on="item", how="left").changelog().orderBy("id").collect()
    assert pairs(plain) == [(1, None), (2, None)]
    joined = sales.join(prices, on="item", how="left", load="first").changelog()
    assert sorted(pairs(joined.collect())) == [(1, 5), (2, 4)]
    largest = prices.group_by("item").agg(price=dt.max("price"))
    made = sales.join(largest, on="item", how="left", load="first")
    counted = made.group_by("price").agg(n=dt.count())
    assert sorted((r["price"], r["n"]) for r in counted.changelog().collect()) == [(4, 1), (5, 1)]


def test_what_cannot_be_loaded_first_is_refused(world: World) -> None:
    sales, prices = world.sales(), world.prices()
    latest = sales.select(last="item").to_table()
    with pytest.raises(PlanError, match=r"load='first' lets sales wait for a table .* made of it"):
        sales.join(latest, load="first")
    joined = sales.join(prices, on="item", load="first")
    with pytest.raises(PlanError, match=r"load='first' needs two queries"):
        joined.changelog()
    named = testing.table("items", key="item", schema={"item": pa.string(), "name": pa.string()})
    fed = testing.stream("fed", key="id", schema={"id": pa.int64(), "item": pa.string()})
    driver = testing.Driver(fed.join(named, on="item", load="first"))
    driver.pipe(named, {"item": "pen", "name": "Pen"}, timestamp=9)
    (change,) = driver.pipe(fed, {"id": 1, "item": "pen"}, timestamp=1)
    assert change.values == {"item": "pen", "name": "Pen"}


def test_a_stream_that_waits_has_no_state_of_sparks_own(world: World) -> None:
    """Its operator would be missing in the micro-batches in which it waits."""
    sales = dt.Stream.from_changelog(
        world.frame("sales", SALES).dropDuplicates(["id"]),
        key="id",
        timestamp=F.timestamp_micros("n"),
    )
    world.write("prices", [{"item": "a", "price": 1, "n": 1}])
    world.write("sales", [{"id": 1, "item": "a", "n": 2}])
    joined = sales.join(world.prices(), on="item", load="first")
    with pytest.raises(PlanError, match=r"a step with state of Spark's own \(Deduplicate\)"):
        world.start(joined, [], **ALL).awaitTermination()
    assert not (world.folder / "checkpoint").exists()
