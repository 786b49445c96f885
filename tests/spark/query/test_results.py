"""Several results in one query: each is what its own query gives, and what they share is there
once.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.feeds import pipe_all
from bench.parameters import slow_after
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from timed_files import timed_file

import dovetail as dt
from dovetail import testing
from dovetail.physical.planner import plan_of
from dovetail.physical.routing import walk_steps
from dovetail.testing import Change

TEXT, NUMBER = pa.string(), pa.int64()
ORDERS = {"id": NUMBER, "customer": TEXT, "boss": TEXT, "amount": NUMBER}
CUSTOMERS = {"name": TEXT, "city": TEXT}
CLICKS = {"click": NUMBER, "customer": TEXT}
COLUMNS = {"orders": ORDERS, "customers": CUSTOMERS, "clicks": CLICKS}
VALUES = {
    "id": range(6),
    "click": range(1000),
    "customer": ["a", "b", "c", None],
    "name": ["a", "b", "c"],
    "boss": ["1", "2", "x", None],
    "city": ["X", "Y", None],
    "amount": range(5),
}
Tables = dict[str, Any]
Results = Callable[[Tables], dict[str, Any]]


def given() -> Tables:
    """The inputs, fed by hand."""
    return {
        "orders": testing.table("orders", key="id", schema=ORDERS),
        "customers": testing.table("customers", key="name", schema=CUSTOMERS),
        "clicks": testing.stream("clicks", key="click", schema=CLICKS),
    }


def result_within_result(t: Tables) -> dict[str, Any]:
    """A join by foreign key, which two others read, and what comes of them."""
    located = t["orders"].join(t["customers"], on="customer", how="left", name="located")
    cities = located.group_by("city").agg(n=dt.count(), total=dt.sum("amount"))
    return {
        "located": located,
        "cities": cities,
        "both": located.join(cities, on="city", how="inner"),
    }


def one_source_for_all(t: Tables) -> dict[str, Any]:
    """By key, by group and by foreign key, and no result reads another."""
    select = {"amount": "left.amount", "same": "right.amount"}
    orders = t["orders"]
    return {
        "customers": orders.group_by("customer").agg(most=dt.max("amount")),
        "pairs": orders.join(orders, how="left", select=select),
        "named": t["customers"].join(
            orders.group_by("customer").agg(n=dt.count()), on={"name": "customer"}, how="left"
        ),
    }


def streams(t: Tables) -> dict[str, Any]:
    """A stream, a table that it looks up and that is a result besides, windows."""
    known = t["orders"].group_by("customer").agg(n=dt.count())
    clicked = t["clicks"].join(known, how="left", on="customer")
    windows = (
        t["clicks"].group_by("customer").window(dt.windows.tumbling("10 us")).agg(n=dt.count())
    )
    return {"clicked": clicked, "known": known, "windows": windows.to_table()}


def apart(t: Tables) -> dict[str, Any]:
    """Results with nothing in common."""
    return {
        "cities": t["customers"].group_by("city").agg(n=dt.count()),
        "orders": t["orders"].group_by("customer").agg(n=dt.count()),
    }


def views(t: Tables) -> dict[str, Any]:
    """Rows chosen and computed of a result, as results and as what others read."""
    located = t["orders"].join(t["customers"], on="customer", how="left", name="located")
    there = located.select("city", much="amount")
    return {
        "located": located,
        "selected": there,
        "cities": there.group_by("city").agg(n=dt.count()),
        "customers": located.group_by("customer").agg(n=dt.count()),
        "amounts": located.rename({"amount": "much"}).group_by("much").agg(n=dt.count()),
        "changed": located.to_stream().join(
            there.materialize(),
            on="id",
            how="left",
            select={"city": "left.city", "much": "right.much"},
        ),
    }


ALL: list[Results] = [result_within_result, one_source_for_all, streams, apart, views]


def drawn(random_: random.Random, time: int) -> tuple[str, dict[str, Any], bool]:
    table = random_.choice([*COLUMNS])
    row = {name: random_.choice(VALUES[name]) for name in COLUMNS[table]}
    if "click" in row:
        row["click"] = time
    return table, row, table != "clicks" and random_.random() < 0.25


def by_key(changes: Sequence[Change]) -> dict[str, list[str]]:
    """Each key's changes in their order; their positions are the bucket's."""
    found = defaultdict(list)
    for c in changes:
        found[str(c.key)].append(f"{c.change} {c.values} {c.timestamp_us}")
    return found


@pytest.mark.parametrize("buckets", slow_after(1, [3, 1]))
@pytest.mark.parametrize("results", slow_after(2, ALL), ids=lambda results: results.__name__)
def test_each_result_is_what_its_own_query_gives(results: Results, buckets: int) -> None:
    for seed in range(2):
        random_ = random.Random(seed)
        tables = given()
        topology = results(tables)
        together = testing.Driver(*topology.values(), buckets=buckets)
        alone = {n: testing.Driver(r, buckets=buckets) for n, r in topology.items()}
        seen = 0
        for batch in range(12):
            if batch == 6:
                restored = list(topology.values())
                together = testing.Driver.restore(restored, together.snapshot())
            records = [drawn(random_, 40 * batch + n) for n in range(random_.randint(1, 20))]
            emitted = []
            for driver in (together, *alone.values()):
                with driver.batch() as changes:
                    read = [
                        (table, row, 40 * batch + n, gone)
                        for n, (table, row, gone) in enumerate(records)
                        if tables[table].plan in driver._nodes
                    ]
                    pipe_all(driver, tables, read)
                emitted.append(changes)
            expected = {name: driver.read() for name, driver in alone.items()}
            for name, result in topology.items():
                own = together.read(result)
                assert by_key(own) == by_key(expected[name]), (seed, batch, name)
                if buckets == 1:
                    assert [str(c) for c in own] == [str(c) for c in expected[name]]
                seen += len(own)
            # By their text: positions have the driver's numbers of micro-batches with changes.
            at_once, *each = ([str(c) for c in changes] for changes in emitted)
            assert at_once == [c for changes in each for c in changes] or buckets > 1
        assert seen > 50


def test_what_results_share_is_there_once() -> None:
    """A line of stages, in which rows pass those that they are not for."""
    t = given()
    results = result_within_result(t)
    plan = plan_of([r.plan for r in results.values()], buckets=2, emit="change")
    # By foreign key three, the groups two, and again three.
    assert len(plan.stages) == 8
    assert len({stage.fragment.topology for stage in plan.stages}) == 8
    (last,) = plan.last_steps
    steps = list(walk_steps(plan.last_steps))
    assert len(steps) == 10  # with both sources
    assert [step.number for step in steps if step.passes] == [3, 4, 5, 6, 7]
    assert last.result == 15
    located = next(step for step in steps if step.number == 2)
    assert [reading.reader for reading in located.readings] == [3, 5]
    assert located.result == 10
    for result in results.values():
        own = plan_of([result.plan], buckets=2, emit="change")
        assert len(list(walk_steps(own.last_steps))) == len(set(own.stages)) + len(
            result.plan.origins
        )


def test_a_stage_that_is_read_as_views_is_there_once() -> None:
    """Its rows go on to a relay for each view, which no state has."""
    results = views(given())
    plan = plan_of([r.plan for r in results.values()], buckets=2, emit="change")
    topologies = [stage.fragment.topology for stage in plan.stages]
    assert len(topologies) == len(set(topologies))
    located = next(step for step in walk_steps(plan.last_steps) if step.relays)
    assert located.stage.node is results["located"].plan
    relays = [plan.stages_and_relays[number] for number in located.relays]
    assert [type(one).__name__ for one in relays] == ["Relay"] * len(relays)
    assert located.relays == tuple(range(located.number + 1, located.number + 1 + len(relays)))
    alone = plan_of([results["cities"].plan], buckets=2, emit="change")
    assert not any(step.relays for step in walk_steps(alone.last_steps))


def test_a_plan_without_forks_passes_nothing_on() -> None:
    t = given()
    plan = plan_of([t["orders"].join(t["customers"], on="customer").plan], buckets=2, emit="change")
    assert not any(step.passes for step in walk_steps(plan.last_steps))
    assert plan.has_one_result


def test_a_driver_of_several_is_asked_for_one() -> None:
    t = given()
    results = apart(t)
    driver = testing.Driver(*results.values())
    driver.pipe(t["orders"], {"id": 1, "customer": "a"}, timestamp=1)
    with pytest.raises(
        dt.errors.PlanError, match=r"read: result= is missing\. The results are aggregate"
    ):
        driver.read()
    with pytest.raises(dt.errors.PlanError, match="which is not a result"):
        driver.read(t["orders"])
    driver.assert_changes("time | customer | n | change\n1 | a | 1 | upsert", results["orders"])
    assert driver.read(results["cities"]) == driver.read(results["orders"]) == []


def test_explain_shows_what_is_shared_once(capsys: pytest.CaptureFixture[str]) -> None:
    t = given()
    known = t["orders"].group_by("customer").agg(n=dt.count())
    clicked = t["clicks"].join(known, how="left", on="customer", name="clicked")
    dt.explain(clicked, known)
    assert capsys.readouterr().out.splitlines() == [
        "Topology",
        "left join of a stream with a table on customer  (key click; customer, n)",
        "├─ clicks  (key click; customer)",
        "└─ aggregate by customer  (key customer; n)",
        "   └─ orders  (key id; customer, boss, amount)",
        "",
        "Topology",
        "aggregate by customer  (key customer; n), as above",
        "",
        "Stage 1",
        "  shuffle  orders by key (id bigint)",
        "  state    orders: last row per key, of it what is aggregated",
        "",
        "Stage 2",
        "  shuffle  orders by group (customer string)",
        "  state    groups: accumulators per key",
        "  result   aggregate of orders by customer",
        "",
        "Stage 3",
        "  shuffle  clicks, aggregate of orders by customer by (customer string)",
        "  state    aggregate of orders by customer: last row per key",
        "  result   clicked",
    ]


def nothing(changes: DataFrame, number: int) -> None:
    """A sink."""


def test_run_says_what_it_cannot_do(spark: SparkSession, tmp_path: Path) -> None:
    t = on_spark(spark, tmp_path)
    located = t["orders"].join(t["customers"], on="customer")
    sink = dt.to_foreach_batch(nothing)
    wrong: list[tuple[Any, str]] = [
        ({}, "run: results= is a dict. Give a mapping of Tables, Streams and dt.dead_letters"),
        ({located: []}, "run: results= is a dict. Give a mapping"),
        ({located: ()}, "run: results= is a dict. Give a mapping"),
        ({located: "out"}, "run: results= has 'out' for a Table"),
        ({dt.dead_letters: sink}, "run: results= has dead letters only"),
        (
            {located: dt.to_parquet("out"), t["orders"]: [sink, dt.to_parquet("out")]},
            r"run: results= has to_parquet\('out'\) twice",
        ),
        (
            {located: dt.to_delta("out"), t["orders"]: dt.to_parquet("./x/../out/")},
            r"run: results= has to_delta\('out'\) twice",
        ),
        ({located: sink, dt.Table(located.plan): sink}, "run: results= has one of them twice"),
    ]
    for results, message in wrong:
        with pytest.raises(dt.errors.PlanError, match=message):
            dt.run(results, checkpoint=tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


LOG = {"source": TEXT, "seq": NUMBER, "t": pa.timestamp("us", "UTC"), "gone": pa.bool_()}
LOG |= ORDERS | CUSTOMERS


def on_spark(spark: SparkSession, folder: Path) -> Tables:
    """Two tables, each a folder of files, whose rows have one order."""
    found: Tables = {}
    for name, columns in (("orders", ORDERS), ("customers", CUSTOMERS)):
        (folder / name).mkdir(exist_ok=True)
        kinds = {TEXT: "string", NUMBER: "long"}
        schema = ", ".join(f"{c} {kinds[type_]}" for c, type_ in columns.items())
        reader = spark.readStream.schema(f"{schema}, seq long, t timestamp, gone boolean")
        frame = reader.option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        found[name] = dt.Table.from_changelog(
            frame,
            key=next(iter(columns)),
            timestamp="t",
            deleted="gone",
            sequence="seq",
            shared_log=True,
            name=name,
        )
    return found


def drawn_for(batch: int) -> list[tuple[str, dict[str, Any], bool, int]]:
    """Random records of a micro-batch, each with its place among all."""
    random_ = random.Random(batch)
    records = (drawn(random_, 0) for _ in range(20))
    tables = [record for record in records if record[0] != "clicks"]
    return [(*record, 100 * batch + number) for number, record in enumerate(tables)]


def write(
    folder: Path, batch: int, records: Sequence[tuple[str, dict[str, Any], bool, int]]
) -> None:
    """A file of each table's rows, which one micro-batch reads."""
    for name, columns in (("orders", ORDERS), ("customers", CUSTOMERS)):
        fields = {"seq": NUMBER, "t": pa.timestamp("us", "UTC"), "gone": pa.bool_(), **columns}
        rows = [
            {**row, "seq": seq, "t": datetime.fromtimestamp(seq, timezone.utc), "gone": gone}
            for table, row, gone, seq in records
            if table == name
        ]
        path = folder / name / f"{batch}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(list(fields.items()))), path)


def shared(t: Tables) -> dict[str, Any]:
    """Three results: a stage that is a result and that another reads, a view of it, a source that
    three stages read, expressions.
    """
    select = {
        "amount": "left.amount",
        "boss": "left.boss",
        "city": "right.city",
        "up": F.lower("right.city"),
    }
    located = t["orders"].join(t["customers"], on="customer", how="left", select=select)
    return {
        "located": located,
        "cities": located.group_by("up").agg(n=dt.count(), amount=dt.sum("amount")),
        "bosses": located.where(F.col("amount") > 0).join(
            t["orders"],
            on=F.col("boss").cast("long"),
            how="left",
            select={"amount": "left.amount", "theirs": "right.amount"},
            name="bosses",
        ),
    }


@pytest.mark.slow
def test_on_spark_each_result_is_exact_though_sinks_fail(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two micro-batches and a third after a restart; once a sink fails after others have written.

    What each key's changes are, the driver says.
    """
    hand = given()
    driver = testing.Driver(*shared(hand).values(), dt.dead_letters, spark=spark)
    on_spark(spark, tmp_path)
    for batch in range(3):
        records = drawn_for(batch)
        write(tmp_path, batch, records)
        with driver.batch():
            feeds = [(table, row, 1_000_000 * at, gone) for table, row, gone, at in records]
            pipe_all(driver, hand, feeds)
    expected = {name: by_key(driver.read(r)) for name, r in shared_of(driver).items()}
    letters = sorted((c.values["row"], c.timestamp_us) for c in driver.read(dt.dead_letters))
    emitted: dict[str, list[Row]] = defaultdict(list)
    failing = {"at": 1}

    def take(name: str) -> dt.typing.Sink:
        def function(changes: DataFrame, number: int) -> None:
            rows = changes.collect()
            if name == "cities" and failing["at"] == number:
                raise RuntimeError("the sink fails once")
            emitted[name] = [row for row in emitted[name] if row["batch"] != number]
            emitted[name] += [Row(batch=number, **row.asDict()) for row in rows]

        return dt.to_foreach_batch(function)

    def start() -> Any:
        results = shared(on_spark(spark, tmp_path))
        return dt.run(
            {
                results["cities"]: [take("cities"), dt.to_parquet(tmp_path / "out")],
                results["located"]: [dt.to_memory("located"), take("located")],
                results["bosses"]: take("bosses"),
                dt.dead_letters: take("letters"),
            },
            checkpoint=tmp_path / "checkpoint",
            trigger={"availableNow": True},
            buckets=3,
        )

    with pytest.raises(StreamingQueryException) as failed:
        start().awaitTermination()
    assert str(failed.value).startswith(
        "to_foreach_batch(function): micro-batch 1 of aggregate of left join of orders and "
        "customers by up cannot be written: RuntimeError: the sink fails once. "
    )
    failing["at"] = -1
    query = start()
    query.awaitTermination()

    for name, wanted in expected.items():
        came = by_key(as_changes(emitted[name], shared(hand)[name]))
        if name == "cities":
            # One record may change several rows of a group; their order is that of hashes, which
            # are Spark's own.
            came, wanted = map(last_at_each_time, (came, wanted))
        assert came == wanted, name
    left_out = [(r["row"], int(r["_timestamp"].timestamp() * 1e6)) for r in emitted["letters"]]
    assert sorted(left_out) == letters
    assert letters
    written = spark.read.parquet(str(tmp_path / "out")).withColumnRenamed("_batch", "batch")
    assert sorted(map(str, written.collect())) == sorted(
        str(Row(**{name: row[name] for name in written.columns})) for row in emitted["cities"]
    )
    progress = [p for p in query.recentProgress if p.numInputRows]
    inputs = [sum(1 for _ in read_back(tmp_path, batch)) for batch in (1, 2)]
    assert [p.numInputRows for p in progress] == inputs
    assert {len(p.stateOperators) for p in progress} == {6}  # the view's stage is the result's
    results = shared(on_spark(spark, tmp_path))
    with pytest.raises(
        dt.errors.CheckpointError, match=r"of a query with 3 results.* and this one has 2"
    ):
        dt.run(
            {results["cities"]: take("cities"), results["bosses"]: take("bosses")},
            checkpoint=tmp_path / "checkpoint",
        )


SENT = [
    ['{"id": 1, "amount": "5", "items": ["x", "y"], "at": 1}', "no record", '{"id": 2}'],
    ['{"id": 3, "amount": "none", "items": ["z"], "at": 3}', '{"id": "4", "at": []}'],
    ['{"id": 1, "amount": "6", "items": ["x"], "at": 5}', '{"amount": "7"}', "", "no record"],
]
"""Records as they come, file by file; what cannot be read has no ``at``."""


@pytest.mark.slow
def test_records_that_cannot_be_read_are_dead_letters_of_the_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each once, whatever reads its source: a stream's views, a group, an expression that fails.
    The results are those of the other records alone.
    """
    for number, lines in enumerate(SENT):
        sound = [line for line in lines if '"at": ' in line and '"4"' not in line]
        for folder, text in (("lines", lines), ("sound", sound)):
            with timed_file(tmp_path / folder / f"{number}.txt", number) as path:
                path.write_text("\n".join(text))
    emitted: dict[str, list[Row]] = defaultdict(list)

    def take(name: str) -> dt.typing.Sink:
        def function(changes: DataFrame, number: int) -> None:
            emitted[name] += [Row(batch=number, **row.asDict()) for row in changes.collect()]

        return dt.to_foreach_batch(function)

    def results(folder: str) -> dict[dt.Table | dt.Stream, dt.typing.Sink]:
        orders, records = (
            kind.from_records(
                spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / folder)),
                key_columns="id",
                value=dt.formats.json(
                    "id long, amount string, items array<string>, at timestamp",
                    encodings={"at": "epoch_seconds"},
                ),
                timestamp="at",
                malformed="dead_letter",
                name=f"{kind.__name__}s",
            )
            for kind in (dt.Table, dt.Stream)
        )
        there = F.when(F.col("id").isNull(), F.raise_error("computed")).otherwise(F.col("id"))
        items = (
            records.where("amount <> '0'").explode("items").key_by("items", own=there.cast("long"))
        )
        return {
            orders.group_by("amount").agg(n=dt.count()): take(f"{folder} groups"),
            records.group_by("id").agg(n=dt.count()): take(f"{folder} records"),
            items.group_by("items").agg(n=dt.sum("own")): take(f"{folder} items"),
            orders.join(
                orders, on=F.col("amount").cast("long"), how="left", select={"to": "right.amount"}
            ): take(f"{folder} joined"),
        }

    for folder in ("lines", "sound"):
        dt.run(
            results(folder) | {dt.dead_letters: take(f"{folder} letters")},
            checkpoint=tmp_path / f"of {folder}",
            trigger={"availableNow": True},
            buckets=2,
        ).awaitTermination()
    for name in ("groups", "records", "items", "joined"):
        assert emitted[f"lines {name}"] == emitted[f"sound {name}"], name
        assert emitted[f"lines {name}"], name
    (failing,) = emitted["sound letters"]
    assert failing["_problem"] == "on= fails on a row of Tables"
    letters = [row for row in emitted["lines letters"] if row["row"] != failing["row"]]
    assert len(letters) == len(emitted["lines letters"]) - 1
    malformed = [
        (number, line)
        for number, lines in enumerate(SENT)
        for line in lines
        if line not in (tmp_path / "sound" / f"{number}.txt").read_text().split("\n")
    ]
    found = sorted((r["batch"], json.loads(r["row"])["value"], r["_operator"]) for r in letters)
    assert found == sorted(
        (number, line, of)
        for number, line in malformed
        for of in ("stream Streams", "table Tables")
    )
    assert all(f"lines/{row['batch']}.txt" in row["_problem"] for row in letters)
    assert all(row["_change"] == "upsert" and row["_timestamp"] for row in letters)


@pytest.mark.slow
def test_the_console_shows_the_first_changes_of_each_micro_batch(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside another result and by itself; one without changes is passed over."""
    amounts = [[1, 2, 3], [], [4]]
    tables = on_spark(spark, tmp_path)
    for batch, of_batch in enumerate(amounts):
        rows = [
            ("orders", {"id": n, "customer": "a", "boss": None, "amount": n}, False, n)
            for n in of_batch
        ]
        write(
            tmp_path, batch, [*rows, ("customers", {"name": "a", "city": "X"}, False, 10 + batch)]
        )
    shown = tables["orders"].select("amount").materialize()
    cities = tables["customers"].group_by("city").agg(n=dt.count())
    dt.run(
        {shown: dt.to_console(rows=2), cities: dt.to_memory("cities")},
        checkpoint=tmp_path / "several",
        trigger={"availableNow": True},
    ).awaitTermination()
    several = capsys.readouterr().out
    shown.write_stream(
        dt.to_console(rows=2), checkpoint=tmp_path / "alone", trigger={"availableNow": True}
    ).awaitTermination()
    for printed in (several, capsys.readouterr().out):
        lines = printed.splitlines()
        titles = [line for line in lines if line.startswith("micro-batch")]
        assert titles == [
            f"micro-batch {n} of orders: {count} changes" for n, count in ((0, 3), (2, 1))
        ]
        assert lines[1] == "time    | id | amount | change"
        assert lines[4] == "the first 2 of 3 changes"
        shown_ids = [line.split(" | ")[1].strip() for line in lines if line.endswith("| upsert")]
        assert len(shown_ids) == 3
        assert {*shown_ids[:2]} < {"1", "2", "3"}
        assert shown_ids[2] == "4"


def last_at_each_time(changes: dict[str, list[str]]) -> dict[str, tuple[int, list[str]]]:
    """How many changes each key has, and the last at each time."""
    return {
        key: (len(own), list({change.rpartition(" ")[2]: change for change in own}.values()))
        for key, own in changes.items()
    }


def shared_of(driver: testing.Driver) -> dict[str, Any]:
    """The driver's results by their names."""
    return dict(zip(("located", "cities", "bosses"), map(dt.Table, driver._results), strict=False))


def read_back(folder: Path, batch: int) -> list[Any]:
    return [
        row
        for name in ("orders", "customers")
        for row in pq.read_table(folder / name / f"{batch}.parquet").to_pylist()
    ]


def as_changes(rows: Sequence[Row], result: dt.Table) -> list[Change]:
    """Rows of a changelog in the order of micro-batches and positions."""
    return [
        Change(
            key={name: row[name] for name in result.plan.key.names},
            values=None
            if row["_change"] == "delete"
            else {name: row[name] for name in result.plan.values.names},
            timestamp_us=round(row["_timestamp"].timestamp() * 1_000_000),
            change=row["_change"],
            position=row["_position"],
        )
        for row in sorted(rows, key=lambda row: (row["batch"], row["_position"]))
    ]
