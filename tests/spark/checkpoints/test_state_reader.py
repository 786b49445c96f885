"""``read_state``: what a checkpoint's stores hold after any of its micro-batches."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from timed_files import timed_file

import dovetail as dt
from dovetail import testing
from dovetail.arrays.spark_hash import spark_hash
from dovetail.physical.planner import plan_of
from dovetail.plan.types.arrow import arrow_schema
from dovetail.spark.checkpoints import state_lookup
from dovetail.spark.checkpoints.checkpoint import CheckpointFile
from dovetail.spark.checkpoints.state_results import stages_of_stored_union
from dovetail.spark.checkpoints.stores import CheckpointStores

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
LOG = pa.schema(
    [
        ("table", pa.string()),
        ("k", pa.string()),
        ("v", pa.int64()),
        ("f", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("gone", pa.bool_()),
        ("place", pa.int64()),
    ]
)
Row = dict[str, Any]


def micro_batches(names: str, count: int, size: int) -> list[list[Row]]:
    """Random changes, about in order of time."""
    random_ = random.Random(names)
    return [
        [
            {
                "table": random_.choice(names),
                "k": random_.choice("abcdefgh"),
                "v": random_.randrange(100),
                "f": random_.choice("xyz"),
                "at": AT + timedelta(minutes=number * size + place - random_.randrange(5)),
                "gone": random_.random() < 0.2,
                "place": number * size + place,
            }
            for place in range(size)
        ]
        for number in range(count)
    ]


def write(folder: Path, number: int, rows: Sequence[Row]) -> None:
    with timed_file(folder / f"{number}.parquet", number) as path:
        pq.write_table(pa.Table.from_pylist(list(rows), LOG), path)


def table(log: DataFrame, name: str, columns: Sequence[str], **options: Any) -> dt.Table:
    own = log.where(f"table = '{name}'").select(*columns, "at", "gone", "place")
    return dt.Table.from_changelog(
        own, key=columns[0], timestamp="at", deleted="gone", sequence="place", name=name, **options
    )


def read_log(spark: SparkSession, folder: Path) -> DataFrame:
    columns = "table string, k string, v long, f string, at timestamp, gone boolean, place long"
    reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(
        map(tuple, frame.withColumn("_timestamp", frame["_timestamp"].cast("double")).collect())
    )


def last_rows(given: Sequence[Row], name: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    found: dict[str, Row] = {}
    for row in given:
        if row["table"] == name:
            found.pop(row[columns[0]], None)
            if not row["gone"]:
                found[row[columns[0]]] = row
    return sorted((*(r[c] for c in columns), r["at"].timestamp()) for r in found.values())


def both(given: Sequence[Row]) -> list[list[tuple[Any, ...]]]:
    return [last_rows(given, name, columns) for name, columns in TABLES.items()]


def looked_up(checkpoint: Path, given: Sequence[Row]) -> list[list[tuple[Any, ...]]]:
    """The rows of all keys, and of one that never came: read from local files, and by Spark."""

    def found() -> list[list[tuple[Any, ...]]]:
        keys = [*"abcdefghxyz", "never"]
        return [
            arrow_rows(dt.checkpoints.lookup_state(checkpoint, name, keys=keys)) for name in TABLES
        ]

    local = found()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(state_lookup, "local_files", lambda _: None)
        assert found() == local
    return local


def arrow_rows(found: pa.Table) -> list[tuple[Any, ...]]:
    time = pc.divide(found.column("_timestamp").cast(pa.int64()).cast(pa.float64()), 1e6)
    found = found.set_column(found.schema.get_field_index("_timestamp"), "_timestamp", time)
    return sorted(tuple(row.values()) for row in found.to_pylist())


TABLES = {"l": ["k", "v", "f"], "r": ["f", "v"]}


@pytest.mark.slow
def test_each_micro_batch_of_a_query_beside_its_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = micro_batches("lr", 4, 40)
    for number, batch in enumerate(batches[:3]):
        write(tmp_path / "log", number, batch)
    log, checkpoint = read_log(spark, tmp_path / "log"), tmp_path / "checkpoint"
    left, right = table(log, "l", ["k", "v", "f"]), table(log, "r", ["f", "v"])
    joined = left.join(right, on="f", how="outer", select={"v": "left.v", "w": "right.v"})
    sink = dt.to_parquet(str(tmp_path / "out"))
    query = joined.write_stream(sink, checkpoint=checkpoint, buckets=3)
    try:
        query.processAllAvailable()
        for batch in (0, 2):
            given = [row for part in batches[: batch + 1] for row in part]
            for name, columns in (("l", ["k", "v", "f"]), ("r", ["f", "v"])):
                found = dt.checkpoints.read_state(spark, checkpoint, name, batch=batch)
                assert rows(found) == last_rows(given, name, columns)
        assert looked_up(checkpoint, given) == both(given)
        before = dt.checkpoints.read_state(spark, checkpoint, "l")
        write(tmp_path / "log", 3, batches[3])
        query.processAllAvailable()
        assert rows(before) == last_rows(given, "l", ["k", "v", "f"])
        given = [row for part in batches for row in part]
        assert rows(dt.checkpoints.read_state(spark, checkpoint, "l")) == last_rows(
            given, "l", ["k", "v", "f"]
        )
        with monkeypatch.context() as patched:
            patched.setattr(
                CheckpointStores, "read", None
            )  # what is new is read from its files alone
            assert looked_up(checkpoint, given) == both(given)
        assert query.exception() is None
    finally:
        query.stop()
    listed = {row["store"]: row for row in dt.checkpoints.read_state(spark, checkpoint).collect()}
    assert {name: row["table"] for name, row in listed.items()} == {
        "l": None,
        "subscriptions": "l",
        "right": "r",
        "references": None,
    }
    assert {name: row["stage"] for name, row in listed.items()} == {
        "l": 1,
        "subscriptions": 2,
        "right": 2,
        "references": 2,
    }
    joined.explain()
    for row in listed.values():
        assert row["operator"] == "outer join of l and r"
        assert row["bytes"] > 0
        assert 1 <= row["buckets"] <= row["segments"] <= row["rows"]
    assert listed["right"]["rows"] >= dt.checkpoints.read_state(spark, checkpoint, "right").count()
    assert listed["right"]["stream_time"].astimezone(timezone.utc) == max(
        row["at"] for row in given if row["table"] == "r"
    )
    for row in listed.values():
        assert row["batch"] == 3
        assert row["offsets"] == ['{"logOffset":3}'] * 2
    last = last_rows(given, "l", ["k", "v", "f"])
    some = dt.checkpoints.read_state(spark, checkpoint, "l", keys=["a", "b", "never"])
    assert rows(some) == [row for row in last if row[0] in "ab"]
    theirs = dt.checkpoints.read_state(spark, checkpoint, "r", keys=["x"], columns=["v"])
    assert [row.asDict() for row in theirs.collect()] == [
        {"v": row[1]} for row in last_rows(given, "r", ["f", "v"]) if row[0] == "x"
    ]
    only = dt.checkpoints.read_state(spark, checkpoint, "l", columns=["f", "k"])
    assert sorted(map(tuple, only.collect())) == sorted((row[2], row[0]) for row in last)
    for keys in ([1], [("a", "b")], [None], [{"v": "a"}]):
        with pytest.raises(dt.errors.PlanError, match="keys= has"):
            dt.checkpoints.read_state(spark, checkpoint, "l", keys=keys)
    refused = {
        "l has no column 'w'. It has k, v, f, _timestamp.": {"table": "l", "columns": "w"},
        "keys= goes with a table": {"keys": ["a"]},
        "holds no rows of 'orders'. It has l, subscriptions, r, right; a join": {"table": "orders"},
        "what 'references' holds cannot be read by itself": {"table": "references"},
        "which is not a versioned table": {"table": "l", "as_of": AT},
        "as_of= goes with a table": {"as_of": AT},
    }
    for problem, options in refused.items():
        with pytest.raises(dt.errors.ConfigurationError, match=problem):
            dt.checkpoints.read_state(spark, checkpoint, **options)
    with pytest.raises(
        dt.errors.CheckpointError, match=r"no micro-batch 4\. Spark has kept 0 to 3"
    ):
        dt.checkpoints.read_state(spark, checkpoint, "l", batch=4)
    with pytest.raises(dt.errors.PlanError, match="Give a datetime with its time zone"):
        dt.checkpoints.read_state(spark, checkpoint, "l", as_of=AT.replace(tzinfo=None))


@pytest.mark.slow
def test_results_of_joins_from_what_is_stored(spark: SparkSession, tmp_path: Path) -> None:
    """Each is what the changelog's last changes say after any micro-batch, of several, too."""
    batches = micro_batches("lru", 3, 40)
    for number, batch in enumerate(batches):
        write(tmp_path / "log", number, batch)
    log, checkpoint = read_log(spark, tmp_path / "log"), tmp_path / "checkpoint"
    left, right = table(log, "l", ["k", "v", "f"]), table(log, "r", ["f", "v"])
    versioned = table(log, "u", ["k", "v"], versioned="1 hour")
    sums = {"v": F.col("left.v") + F.coalesce("right.v", F.lit(0)), "f": "left.f"}
    first = left.join(right, on="f", how="left", select=sums, name="enriched l")
    whole = first.join(
        versioned, how="outer", select={"v": "left.v", "w": "right.v", "f": "left.f"}
    )
    counted = whole.group_by("f").agg(n=dt.count(), most=dt.max("w"))
    changes: list[Any] = []
    sink = dt.to_foreach_batch(lambda frame, batch: changes.append((batch, frame.collect())))
    counts = dt.to_foreach_batch(lambda *_: None)
    sinks = {counted: counts, whole: sink}
    dt.run(
        sinks, checkpoint=checkpoint, buckets=3, trigger={"availableNow": True}
    ).awaitTermination()
    last: dict[str, Any] = {}
    for batch, made in changes:
        for row in sorted(made, key=lambda row: row["_position"]):
            last.pop(row["k"], None)
            if row["_change"] == "upsert":
                last[row["k"]] = (row["k"], row["v"], row["w"], row["f"])
        found = dt.checkpoints.read_state(spark, checkpoint, topology=whole, batch=batch)
        assert found.columns == ["k", "v", "w", "f", "_timestamp"]
        assert sorted(map(tuple, found.drop("_timestamp").collect()), key=repr) == sorted(
            last.values(), key=repr
        )
    inner = dt.checkpoints.read_state(
        spark, checkpoint, "enriched l", topology=whole, columns=["k", "f"]
    )
    given = [row for batch in batches for row in batch]
    assert sorted(map(tuple, inner.collect())) == [
        (k, f) for k, _, f, _ in last_rows(given, "l", ["k", "v", "f"])
    ]
    stored = dt.checkpoints.read_state(spark, checkpoint, "u", topology=whole)
    assert stored.columns == ["k", "v", "_timestamp", "_change"]
    numbers = Counter(f for *_, f in last.values())
    groups = (
        dt.checkpoints.read_state(spark, checkpoint, topology=counted).select("f", "n").collect()
    )
    assert dict(groups) == {f: n for f, n in numbers.items() if f is not None}
    both = dt.checkpoints.read_state(spark, checkpoint, "enriched l", topology=[whole, counted])
    assert sorted(both.collect(), key=repr) == sorted(
        dt.checkpoints.read_state(spark, checkpoint, "enriched l", topology=whole).collect(),
        key=repr,
    )
    with pytest.raises(
        dt.errors.CheckpointError, match=r"a query with 2 results, .*, is none of them"
    ):
        dt.checkpoints.read_state(
            spark, checkpoint, topology=left.join(right, on="f", select=["left.v"])
        )
    stored = dt.checkpoints.read_state(spark, checkpoint, "enriched l", columns=["k", "f"])
    assert sorted(stored.collect()) == sorted(inner.collect())
    # The aggregate has stored the rows of which it is made.
    of_groups = dt.checkpoints.read_state(spark, checkpoint, whole.plan.name, columns=["k", "f"])
    assert sorted(map(tuple, of_groups.collect()), key=repr) == sorted(
        ((k, f) for k, _, _, f in last.values()), key=repr
    )


@pytest.mark.slow
def test_a_versioned_table_as_of_a_time(spark: SparkSession, tmp_path: Path) -> None:
    batches = micro_batches("tu", 2, 60)
    for number, batch in enumerate(batches):
        write(tmp_path / "log", number, batch)
    log, checkpoint = read_log(spark, tmp_path / "log"), tmp_path / "checkpoint"
    times = {"t": table(log, "t", ["k", "v"], versioned="1 hour"), "u": table(log, "u", ["k", "v"])}
    joined = times["t"].join(times["u"], select={"v": "left.v", "w": "right.v"})
    sink = dt.to_parquet(str(tmp_path / "out"))
    joined.write_stream(
        sink, checkpoint=checkpoint, trigger={"availableNow": True}
    ).awaitTermination()
    given = sorted((r for b in batches for r in b if r["table"] == "t"), key=lambda r: r["at"])
    latest = given[-1]["at"]
    for back in (0, 7, 30, 59):
        then = latest - timedelta(minutes=back)
        found = dt.checkpoints.read_state(spark, checkpoint, "t", as_of=then)
        before = [row for row in given if row["at"] <= then]
        assert found.columns == ["k", "v", "_timestamp"]
        assert rows(found) == last_rows(before, "t", ["k", "v"])
        found = dt.checkpoints.lookup_state(checkpoint, "t", keys=list("abcdefgh"), as_of=then)
        assert arrow_rows(found) == last_rows(before, "t", ["k", "v"])
    found = dt.checkpoints.lookup_state(checkpoint, "t", keys=list("abcdefgh"))
    assert arrow_rows(found) == last_rows(given, "t", ["k", "v"])
    versions = dt.checkpoints.read_state(spark, checkpoint, "t")
    assert versions.columns == ["k", "v", "_timestamp", "_change"]
    assert {row["_change"] for row in versions.collect()} == {"upsert", "delete"}
    problem = "before the history of t, which begins at 2026"
    with pytest.raises(dt.errors.ConfigurationError, match=problem):
        dt.checkpoints.read_state(spark, checkpoint, "t", as_of=AT)
    with pytest.raises(dt.errors.ConfigurationError, match=problem):
        dt.checkpoints.lookup_state(checkpoint, "t", keys=["a"], as_of=AT)


def test_the_results_of_groups(spark: SparkSession, tmp_path: Path) -> None:
    batches = micro_batches("l", 2, 60)
    for number, batch in enumerate(batches):
        write(tmp_path / "log", number, batch)
    log, checkpoint = read_log(spark, tmp_path / "log"), tmp_path / "checkpoint"
    grouped = table(log, "l", ["k", "v", "f"]).group_by("f")
    own = dt.aggregate(
        init=lambda n: {"s": pa.array([0] * n)},
        add=lambda state, v: {"s": pc.add(state["s"], v)},
        merge=lambda a, b: {"s": pc.add(a["s"], b["s"])},
        retract=lambda a, b: {"s": pc.subtract(a["s"], b["s"])},
        state={"s": "long"},
        returns="long",
    )
    for name, calls in (("a", {"n": dt.count(), "most": dt.max("v")}), ("b", {"own": own("v")})):
        sink = dt.to_parquet(str(tmp_path / f"out {name}"))
        counted, folder = grouped.agg(**calls), checkpoint / name
        counted.write_stream(
            sink, checkpoint=folder, trigger={"availableNow": True}
        ).awaitTermination()
    expected: dict[str, list[Any]] = {}
    for _, v, f, _ in last_rows([r for b in batches for r in b], "l", ["k", "v", "f"]):
        expected.setdefault(f, []).append(v)
    found = dt.checkpoints.read_state(spark, checkpoint / "a", "aggregate of l by f")
    assert found.columns == ["f", "n", "most", "_timestamp"]
    assert {row["f"]: (row["n"], row["most"]) for row in found.collect()} == {
        f: (len(values), max(values)) for f, values in expected.items()
    }
    asked = dt.checkpoints.lookup_state(
        checkpoint / "a", "aggregate of l by f", keys=["x", "y", "never"]
    )
    assert {row["f"]: (row["n"], row["most"]) for row in asked.to_pylist()} == {
        f: (len(values), max(values)) for f, values in expected.items() if f in "xy"
    }
    with pytest.raises(
        dt.errors.ConfigurationError, match="'aggregate of l by f' holds cannot be read"
    ):
        dt.checkpoints.read_state(spark, checkpoint / "b", "aggregate of l by f")


@pytest.mark.slow
def test_a_table_whose_rows_expire(spark: SparkSession, tmp_path: Path) -> None:
    """It has the rows that are young enough; of what it is joined with all stay."""
    batches, after = micro_batches("lr", 3, 40), timedelta(minutes=15)
    for number, batch in enumerate(batches):
        write(tmp_path / "log", number, batch)
    log, checkpoint = read_log(spark, tmp_path / "log"), tmp_path / "checkpoint"
    young = table(log, "l", ["k", "v", "f"]).expire(after=after)
    right = table(log, "r", ["f", "v"])
    joined = young.join(right, on="f", how="left", select={"v": "left.v", "w": "right.v"})
    sink = dt.to_parquet(str(tmp_path / "out"))
    joined.write_stream(
        sink, checkpoint=checkpoint, trigger={"availableNow": True}, buckets=3
    ).awaitTermination()
    for number in range(3):
        given = [row for part in batches[: number + 1] for row in part]
        now = max(row["at"] for row in given if row["table"] == "l")
        expected = [
            row
            for row in last_rows(given, "l", ["k", "v", "f"])
            if row[-1] >= (now - after).timestamp()
        ]
        assert rows(dt.checkpoints.read_state(spark, checkpoint, "l", batch=number)) == expected
    assert len(expected) < len(last_rows(given, "l", ["k"]))
    found = dt.checkpoints.lookup_state(checkpoint, "l", keys=[*"abcdefgh"])
    assert arrow_rows(found) == expected
    result = dt.checkpoints.read_state(spark, checkpoint, topology=joined)
    assert [(row[0], row[1]) for row in rows(result)] == [(row[0], row[1]) for row in expected]


def test_what_is_no_checkpoint_or_has_nothing_yet(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(dt.errors.CheckpointError, match=r"has no dovetail\.json"):
        dt.checkpoints.read_state(spark, tmp_path)
    (tmp_path / "log").mkdir()
    log, checkpoint = read_log(spark, tmp_path / "log"), tmp_path / "checkpoint"
    sink = dt.to_parquet(str(tmp_path / "out"))
    own = table(log, "l", ["k", "v"]).materialize()
    own.write_stream(sink, checkpoint=checkpoint, trigger={"availableNow": True}).awaitTermination()
    assert dt.checkpoints.read_state(spark, checkpoint).count() == 0
    with pytest.raises(dt.errors.ConfigurationError, match="It has none yet"):
        dt.checkpoints.read_state(spark, checkpoint, "l")


def test_a_checkpoint_before_its_first_commit(spark: SparkSession, tmp_path: Path) -> None:
    """The first micro-batch is planned, and its sink fails."""

    def fail(batch: DataFrame, number: int) -> None:
        batch.count()
        raise RuntimeError("the sink fails")

    write(tmp_path / "log", 0, micro_batches("l", 1, 9)[0])
    log, checkpoint = read_log(spark, tmp_path / "log"), tmp_path / "checkpoint"
    own = table(log, "l", ["k", "v"]).materialize()
    now: dict[str, Any] = {"trigger": {"availableNow": True}, "buckets": 2}
    query = own.write_stream(dt.to_foreach_batch(fail), checkpoint=checkpoint, **now)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    assert dt.checkpoints.read_state(spark, checkpoint).collect() == []
    with pytest.raises(dt.errors.ConfigurationError, match="It has none yet"):
        dt.checkpoints.read_state(spark, checkpoint, "l")
    with pytest.raises(dt.errors.ConfigurationError, match="It has none yet"):
        dt.checkpoints.lookup_state(checkpoint, "l", keys=["a"])
    sink, following = dt.to_parquet(str(tmp_path / "out")), tmp_path / "next"
    for begin in (
        lambda: own.write_stream(sink, checkpoint=following, initial=checkpoint, **now),
        lambda: dt.checkpoints.upgrade(spark, checkpoint, following, own),
        lambda: dt.checkpoints.upgrade(spark, checkpoint, following, own, dry_run=True),
    ):
        with pytest.raises(dt.errors.CheckpointError, match="not completed a micro-batch yet"):
            begin()


def test_a_query_without_state_before_its_first_commit(spark: SparkSession, tmp_path: Path) -> None:
    def fail(batch: DataFrame, number: int) -> None:
        raise RuntimeError("the sink fails")

    write(tmp_path / "log", 0, micro_batches("l", 1, 9)[0])
    log, checkpoint = read_log(spark, tmp_path / "log"), tmp_path / "checkpoint"
    with closing(sqlite3.connect(tmp_path / "store")) as store, store:
        store.execute("CREATE TABLE names (k TEXT PRIMARY KEY, name TEXT)")
    names = dt.lookups.sqlite(str(tmp_path / "store"), "names", key="k")
    records = dt.Stream.from_changelog(log, key="k", timestamp="at", name="l").lookup(
        names, columns="k string, name string", how="left"
    )
    now: dict[str, Any] = {"trigger": {"availableNow": True}, "buckets": 2}
    query = records.write_stream(dt.to_foreach_batch(fail), checkpoint=checkpoint, **now)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    assert dt.checkpoints.read_state(spark, checkpoint).collect() == []
    with pytest.raises(dt.errors.CheckpointError, match="not completed a micro-batch yet"):
        dt.checkpoints.upgrade(spark, checkpoint, tmp_path / "next", records)


def test_a_checkpoint_that_is_to_begin_with_initial_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its offsets may still be those of the files with these rows."""
    write(tmp_path / "log", 0, micro_batches("l", 1, 9)[0])
    log, checkpoint = read_log(spark, tmp_path / "log"), tmp_path / "checkpoint"
    own, sink = table(log, "l", ["k", "v"]).materialize(), dt.to_parquet(str(tmp_path / "out"))
    now: dict[str, Any] = {"trigger": {"availableNow": True}, "buckets": 2}
    own.write_stream(sink, checkpoint=checkpoint, **now).awaitTermination()
    file = CheckpointFile(spark, str(checkpoint))
    file.write({**file.binding_of_begun("test"), "beginning": {}})
    with pytest.raises(dt.errors.CheckpointError, match="not completed a micro-batch yet"):
        dt.checkpoints.upgrade(spark, checkpoint, tmp_path / "next", own)


def test_a_checkpoint_that_spark_cannot_read(spark: SparkSession) -> None:
    path = "nowhere://bucket/checkpoint"
    problem = f"Spark cannot read {path}/dovetail.json: .*nowhere"
    with pytest.raises(dt.errors.ConfigurationError, match=f"read_state: {problem}"):
        dt.checkpoints.read_state(spark, path)
    with pytest.raises(dt.errors.ConfigurationError, match=f"lookup_state: {problem}"):
        dt.checkpoints.lookup_state(path, "l", keys=[1])


def test_keys_are_hashed_as_spark_does(spark: SparkSession) -> None:
    """Each type at its ends, nested ones and nulls too."""
    day, moment = date(2026, 1, 31), datetime(1969, 1, 1, tzinfo=timezone.utc)
    small, large = Decimal("-123.45"), Decimal("-98765432109876543210.123")
    ends = (2**63 - 1, -(2**31), -(2**15), -128, True, "", 0.1, b"")
    others = (-1, 7, 7, 7, False, "漢" * 40, -1e300, b"\x00" * 33)
    rows = [
        (*ends, day, moment, small, large, (1, "é"), []),
        (*others, day, moment, -small, -large, (2, None), [3, None]),
        (None,) * 14,
    ]
    columns = (
        "a long, b int, c short, d byte, e boolean, f string, g double, h binary, i date, "
        "j timestamp, k decimal(10,2), l decimal(30,3), m struct<x:int,y:string>, n array<int>"
    )
    frame = spark.createDataFrame(rows, columns)
    arrow = frame.toArrow().cast(arrow_schema(frame.schema)).combine_chunks()
    keys = [column.chunk(0) for column in arrow.columns]
    hashes = [F.xxhash64(name) for name in frame.columns] + [F.xxhash64(*frame.columns)]
    expected = zip(*frame.select(*hashes).collect(), strict=True)
    assert [*map(list, expected)] == [
        spark_hash(own).tolist() for own in [*([k] for k in keys), keys]
    ]


def test_a_union_is_read_from_the_stage_that_stores_it() -> None:
    schema = {"id": pa.int64(), "v": pa.string()}
    first, second = (testing.table(name, key="id", schema=schema) for name in "ab")
    union = first.union(second, source="of").plan
    for emit, stores in (("change", []), ("batch", [["union of a, b"]])):
        stages = plan_of([union], buckets=1, emit=emit).stages  # type: ignore[arg-type]
        stored: Any = SimpleNamespace(stages={s.fragment.topology: s for s in stages}, buckets=1)
        found = stages_of_stored_union(stored, union)
        assert [[*s.fragment.stores] for s in found if s.fragment.stores] == stores
