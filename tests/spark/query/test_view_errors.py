"""Rows on which a view fails: left out as if they had never come, counted, reported."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.feeds import pipe_all
from bench.parameters import slow_after
from parquet_rows import rows_of
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing
from dovetail.platform import delta_tables
from dovetail.platform.sessions import null_on_failure
from dovetail.testing import Change

NUMBER, TEXT = pa.int64(), pa.string()
ORDERS = {"id": NUMBER, "text": TEXT, "item": TEXT}
ITEMS = {"item": TEXT, "price": NUMBER}
CLICKS = {"id": NUMBER, "text": TEXT, "tags": pa.list_(TEXT)}
Inputs = dict[str, Any]
Feed = tuple[str, dict[str, Any], int, bool]
ASKED = {"errors": "dead_letter"}


def given() -> Inputs:
    """The inputs, fed by hand."""
    return {
        "orders": testing.table("orders", key="id", schema=ORDERS),
        "items": testing.table("items", key="item", schema=ITEMS),
        "clicks": testing.stream("clicks", key="id", schema=CLICKS),
    }


def number() -> Any:
    return F.col("text").cast("long")


def chained(t: Inputs, **errors: Any) -> Any:
    """One view after the other, of which each fails on rows of its own."""
    computed = t["orders"].with_columns(n=number(), m=number() + 1, **errors)
    return computed.where("100 / n > 0", **errors).select("item", half=F.col("n") / 2, **errors)


def joined(t: Inputs, **errors: Any) -> Any:
    """By foreign key, and the rows of its groups."""
    orders = t["orders"].where(number() > 0, **errors).drop("text")
    priced = orders.join(t["items"], on="item", how="left")
    return priced.group_by("item").agg(n=dt.count(), price=dt.sum("price"))


def rekeyed(t: Inputs, **errors: Any) -> Any:
    return t["orders"].key_by(n=number(), duplicates="last", **errors)


def records(t: Inputs, **errors: Any) -> Any:
    """A stream under another key, and what arrays of it hold, by windows of time."""
    keyed = t["clicks"].key_by("id", n=F.lit(12) / number(), **errors)
    tagged = keyed.explode("tags").where(F.length("tags") > 0, **errors)
    windows = tagged.group_by("tags").window(dt.windows.tumbling("5 us", grace="1 us"))
    return windows.agg(n=dt.sum("n")).to_table()


def beside(t: Inputs, **errors: Any) -> Any:
    """A stream that looks up a table by its key."""
    orders = t["orders"].with_columns(n=number(), **errors)
    clicks = t["clicks"].where(number() >= 0, **errors).drop("text")
    return clicks.join(orders, how="left")


ALL: list[Callable[..., Any]] = [chained, joined, rekeyed, records, beside]


def drawn(seed: int, records: int = 40) -> list[Feed]:
    random_ = random.Random(seed)
    made: list[Feed] = []
    for time in range(records):
        name = random_.choice(["orders", "orders", "orders", "items", "clicks", "clicks"])
        row = {
            "id": random_.randint(1, 4),
            "text": random_.choice(["1", "2", "3", "0", "x", "x", None]),
            "item": random_.choice("ab"),
            "price": random_.randint(1, 3),
            "tags": random_.choice([["u"], ["u", "v"], [], None]),
        }
        columns = {"orders": ORDERS, "items": ITEMS, "clicks": CLICKS}[name]
        deleted = name != "clicks" and random_.random() < 0.2
        made.append((name, {column: row[column] for column in columns}, time, deleted))
    return made


def fails(topology: Callable[..., Any], feed: Feed) -> bool:
    """Whether an expression fails on a record, by the record alone."""
    name, row, _, deleted = feed
    if deleted or name == "items":
        return False
    broken = row["text"] == "x"
    by_zero = row["text"] == "0" and (
        (topology is chained and name == "orders") or (topology is records and name == "clicks")
    )
    return broken or by_zero


def fed(driver: testing.Driver, inputs: Inputs, feeds: list[Feed]) -> list[str]:
    """What a micro-batch of these says."""
    with driver.batch() as changes:
        read = [feed for feed in feeds if inputs[feed[0]].plan in driver._nodes]
        pipe_all(driver, inputs, read)
    return list(map(str, changes))


@pytest.mark.parametrize("topology", slow_after(2, ALL), ids=lambda one: one.__name__)
def test_rows_that_fail_are_as_if_they_had_never_come(
    topology: Callable[..., Any], spark: SparkSession
) -> None:
    """With them, the topology says what it says without them where nothing may fail; each is one
    dead letter and counted once.
    """
    inputs = given()
    asked = topology(inputs, **ASKED)
    driver = testing.Driver(asked, dt.dead_letters, spark=spark)
    sound = testing.Driver(topology(inputs), spark=spark)
    feeds = drawn(20 + ALL.index(topology), 60)
    read = {name for name in inputs if inputs[name].plan in driver._nodes}
    for start in range(0, len(feeds), 30):
        some = feeds[start : start + 30]
        fed(driver, inputs, some)
        fed(sound, inputs, [one for one in some if not fails(topology, one)])
        assert list(map(str, driver.read(asked))) == list(map(str, sound.read()))
    failing = [one for one in feeds if fails(topology, one) and one[0] in read]
    letters = [(c.timestamp_us, json.loads(c.values["row"])) for c in driver.read(dt.dead_letters)]
    assert sorted((time, row["id"], row["text"]) for time, row in letters) == [
        (time, row["id"], row["text"]) for _, row, time, _ in failing
    ]
    counted = {name: n for name, n in driver.counts.items() if name.endswith(".failed")}
    assert counted == Counter(f"{name}.failed" for name, *_ in failing)
    assert len(failing) > 3


def priced(t: Inputs, **errors: Any) -> Any:
    """A view of a result, at its end."""
    both = t["orders"].join(t["items"], on="item", how="left")
    return both.select(part=F.lit(6) / number(), **errors)


def selected(t: Inputs, **errors: Any) -> Any:
    """The same as what a join selects."""
    part = F.lit(6) / F.col("left.text").cast("long")
    return t["orders"].join(t["items"], on="item", how="left", select={"part": part}, **errors)


@pytest.mark.parametrize("emit", ["change", "batch"])
@pytest.mark.parametrize("topology", [priced, selected], ids=lambda one: one.__name__)
def test_a_result_whose_view_fails_keeps_the_former_row(
    topology: Callable[..., Any], emit: Any, spark: SparkSession
) -> None:
    """However its changes are cut; what never came is not deleted either."""
    inputs = given()
    base = testing.Driver(
        inputs["orders"].join(inputs["items"], on="item", how="left"), spark=spark
    )
    feeds = [one for one in drawn(7, 60) if one[0] != "clicks"]
    fed(base, inputs, feeds)
    rows: dict[Any, Any] = {}
    expected: list[tuple[Any, Any]] = []
    for change in base.read():
        key, values = change.key["id"], change.values
        text = None if values is None else values["text"]
        if text in ("x", "0"):
            continue
        row = None if values is None else {"part": None if text is None else 6 / int(text)}
        if row is not None or rows.get(key) is not None:
            expected.append((key, row))
        rows[key] = row
    for size in (10, len(feeds)):
        inputs = given()
        driver = testing.Driver(topology(inputs, **ASKED), spark=spark, emit=emit)
        for start in range(0, len(feeds), size):
            fed(driver, inputs, feeds[start : start + size])
        emitted = [(change.key["id"], change.values) for change in driver.read()]
        for key, last in rows.items():
            own = [row for of, row in emitted if of == key]
            if emit == "change":
                assert own == [row for of, row in expected if of == key]
            assert (own or [None])[-1] == last


def on_spark(spark: SparkSession, folder: Path) -> Inputs:
    """The same inputs from files, whose records have one order."""
    found: Inputs = {}
    kinds = {TEXT: "string", NUMBER: "long"}
    for name, columns in (("orders", ORDERS), ("items", ITEMS), ("clicks", CLICKS)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        schema = ", ".join(
            f"{c} {kinds.get(type_, 'array<string>')}" for c, type_ in columns.items()
        )
        reader = spark.readStream.schema(f"{schema}, seq long, gone boolean")
        frame = reader.option("maxFilesPerTrigger", 1).json(str(folder / name))
        kind = dt.Stream if name == "clicks" else dt.Table
        found[name] = kind.from_changelog(
            frame,
            key=next(iter(columns)),
            timestamp=F.timestamp_micros("seq"),
            deleted="gone",
            sequence="seq",
            shared_log=True,
            name=name,
        )
    return found


def write(folder: Path, batch: int, feeds: list[Feed]) -> None:
    """A file of each input, which one micro-batch reads."""
    for name in ("orders", "items", "clicks"):
        rows = [
            row | {"seq": time, "gone": deleted} for of, row, time, deleted in feeds if of == name
        ]
        (folder / name / f"{batch}.json").write_text("\n".join(map(json.dumps, rows)))


def results(t: Inputs) -> dict[str, Any]:
    """Views that share one that fails, a view of a result that is another, what a join selects."""
    computed = t["orders"].with_columns(n=number(), **ASKED)
    large = computed.where("100 / n > 0", **ASKED).drop("item")
    both = large.join(t["orders"].select("item"), how="left")
    clicks = t["clicks"].where(number() >= 0, **ASKED).drop("text")
    part = F.lit(4) / (F.col("n") - 1)
    select = {"item": "item", "tags": "left.tags", "part": part}
    return {
        "numbers": computed.group_by("n").agg(rows=dt.count()),
        "both": both,
        "parts": both.select(part=part, **ASKED),
        "seen": clicks.join(computed, how="left", select=select, **ASKED),
    }


def by_key(changes: list[Change]) -> dict[str, list[str]]:
    """Each key's changes in their order."""
    found: dict[str, list[str]] = {}
    for c in changes:
        found.setdefault(str(c.key), []).append(f"{c.change} {c.values} {c.timestamp_us}")
    return found


def changes_of(rows: list[Row], result: Any) -> list[Change]:
    """Rows of a changelog, as a driver says them."""
    return [
        Change(
            key={name: row[name] for name in result.plan.key.names},
            values={name: row[name] for name in result.plan.values.names}
            if row["_change"] == "upsert"
            else None,
            timestamp_us=round(row["_timestamp"].timestamp() * 1e6),
            change=row["_change"],
            position=row["_position"],
        )
        for row in rows
    ]


def failed(query: Any) -> Counter[str]:
    """What a query counted, by name."""
    found = Counter[str]()
    for progress in query.recentProgress:
        for name, row in progress.observedMetrics.items():
            if ".failed" in name:
                found[name.partition("#")[0]] += row["records"]
    return found


@pytest.mark.slow
def test_on_spark_each_row_that_fails_is_one_dead_letter(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whatever reads the view, and through a restart: the driver says which, and the results."""
    hand = given()
    by_hand = results(hand)
    driver = testing.Driver(*by_hand.values(), dt.dead_letters, spark=spark)
    emitted: dict[str, list[Row]] = {name: [] for name in (*by_hand, "letters")}
    counted = Counter[str]()

    def take(name: str) -> dt.typing.Sink:
        return dt.to_foreach_batch(
            lambda changes, _: emitted[name].extend(changes.orderBy("_position").collect())
        )

    feeds = [(name, row, time + 1, gone) for name, row, time, gone in drawn(11, 75)]
    mended = ("orders", {"id": 9, "text": "2", "item": "a"}, 100, False)
    feeds = [("orders", {"id": 9, "text": "x", "item": "a"}, 0, False), *feeds, mended]
    for batch, start in enumerate((0, 25, 50)):
        some = feeds[start : start + 25] if batch < 2 else feeds[start:]
        inputs = on_spark(spark, tmp_path)
        write(tmp_path, batch, some)
        fed(driver, hand, some)
        if batch:
            topology = results(inputs)
            sinks = {one: take(name) for name, one in topology.items()}
            query = dt.run(
                {**sinks, dt.dead_letters: take("letters")},
                checkpoint=tmp_path / "checkpoint",
                trigger={"availableNow": True},
                buckets=2,
                partitions=1,
            )
            query.awaitTermination()
            counted += failed(query)
    for name, result in by_hand.items():
        assert by_key(changes_of(emitted[name], result)) == by_key(driver.read(result)), name
        assert emitted[name], name
    letters = Counter(
        (row["_operator"], row["_problem"], row["row"], round(row["_timestamp"].timestamp() * 1e6))
        for row in emitted["letters"]
    )
    expected = driver.read(dt.dead_letters)
    assert letters == Counter(
        (c.key["_operator"], c.values["_problem"], c.values["row"], c.timestamp_us)
        for c in expected
    )
    computed = [row for name, row, _, gone in feeds if name == "orders" and not gone]
    broken = sum(row["text"] == "x" for row in computed)
    operators = Counter(operator for operator, *_ in letters.elements())
    assert operators["with_columns of orders"] == broken > 1
    assert operators["where of orders"] == sum(row["text"] == "0" for row in computed) > 1
    assert len(operators) == 5
    assert counted == {name: n for name, n in driver.counts.items() if name.endswith(".failed")}
    assert any(json.loads(str(row["row"])).get("id") == 9 for row in emitted["letters"])
    assert any(row["id"] == 9 for row in emitted["both"])


def test_a_query_that_has_failed_goes_on_without_the_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With the checkpoint that it had; nobody takes the dead letters."""

    def start(**errors: Any) -> Any:
        orders = on_spark(spark, tmp_path)["orders"].with_columns(n=number(), **errors)
        return (
            orders.group_by("n")
            .agg(rows=dt.count())
            .write_stream(
                dt.to_parquet(tmp_path / "out"),
                checkpoint=tmp_path / "checkpoint",
                trigger={"availableNow": True},
                buckets=1,
            )
        )

    on_spark(spark, tmp_path)
    order = {"text": "5", "item": "a"}
    write(tmp_path, 0, [("orders", {"id": 1, **order}, 1, False)])
    start().awaitTermination()
    broken = {"id": 1, "text": "x", "item": "a"}
    some = [("orders", broken, 2, False), ("orders", {"id": 2, **order}, 3, False)]
    write(tmp_path, 1, some)
    with pytest.raises(StreamingQueryException, match="CAST_INVALID_INPUT"):
        start().awaitTermination()
    query = start(**ASKED)
    query.awaitTermination()
    assert failed(query) == {"orders.failed": 1}
    rows = rows_of(tmp_path / "out", "_position")
    assert [(row["n"], row["rows"]) for row in rows] == [(5, 1), (5, 2)]


def test_static_frames_leave_out_the_same(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(1, "5", "a"), (2, "x", "a"), (3, "0", None), (4, None, "b")]
    frame: DataFrame = spark.createDataFrame(rows, "id long, text string, item string")
    orders = dt.Table.from_changelog(
        frame.withColumn("at", F.timestamp_seconds("id")), key="id", timestamp="at", name="orders"
    )
    view = chained({"orders": orders}, **ASKED)
    made = view.changelog().orderBy("id").collect()
    assert [(row["id"], row["half"]) for row in made] == [(1, 2.5)]
    letters = view.dead_letters().orderBy("_timestamp").collect()
    assert [
        (row["_operator"], row["_problem"], json.loads(row["row"])["id"]) for row in letters
    ] == [
        (
            "with_columns of orders",
            "n= fails: CAST(text AS BIGINT); m= fails: +(CAST(text AS BIGINT), 1)",
            2,
        ),
        ("where of orders", "condition= fails: 100 / n > 0", 3),
    ]
    view.explain()
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "select, computed, dead letters where it fails  (key id; item, half)",
        "└─ where 100 / n > 0, dead letters where it fails  (key id; text, item, n, m)",
    ]
    with pytest.raises(dt.errors.PlanError, match="no source or view of it keeps dead letters"):
        chained({"orders": orders}).dead_letters()


def test_a_foreign_key_that_several_views_read_fails_once(spark: SparkSession) -> None:
    """Both read the one stage of the join."""
    inputs = given()
    items = testing.table("prices", key="n", schema={"n": NUMBER, "price": NUMBER})
    both = inputs["orders"].join(items, on=number(), how="left")
    groups = [both.select(by).group_by(by).agg(n=dt.count()) for by in ("item", "price")]
    driver = testing.Driver(*groups, dt.dead_letters, spark=spark)
    driver.pipe(inputs["orders"], {"id": 1, "text": "x"}, timestamp=1)
    assert len(driver.read(dt.dead_letters)) == 1
    assert driver.counts["orders.failed"] == 1


def test_what_expressions_have_in_common_fails_with_them(spark: SparkSession) -> None:
    """In compiled code, too, which would compute it before them."""
    frame = spark.createDataFrame([("1",), ("x",)], "text string").repartition(1)
    tried = frame.select(null_on_failure(spark, [number(), number() + 1]).alias("made"))
    with delta_tables.temporary_settings(spark, {"spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}):
        rows = tried.select("made._0", "made._1").collect()
    assert [(row["_0"], row["_1"]) for row in rows] == [(1, 2), (None, None)]
