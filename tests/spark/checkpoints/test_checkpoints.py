"""What a checkpoint holds is found again, belongs to one topology, and is bound to it at once."""

from __future__ import annotations

import json
import shutil
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.parameters import slow_after
from parquet_rows import rows_of
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from timed_files import timed_file

import dovetail as dt
from dovetail.plan.nodes import Node
from dovetail.platform import delta_tables
from dovetail.spark.checkpoints.checkpoint import CheckpointFile
from dovetail.spark.query import writer
from dovetail.spark.query.writer import StartRequest

ROWS = pa.schema(
    [("k", pa.int64()), ("v", pa.string()), ("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))]
)


def write(folder: Path, number: int, rows: Sequence[tuple[Any, ...]]) -> None:
    """A file of rows, the ``number``-th to be read."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    with timed_file(folder / f"{number:04}.parquet", number + 1) as path:
        pq.write_table(pa.table(columns, schema=ROWS), path)


def read(spark: SparkSession, folder: Path) -> DataFrame:
    folder.mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema("k long, v string, n long, t timestamp").parquet(str(folder))


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, whose settings are its own again afterwards."""
    before = dict(spark.conf.getAll)
    yield spark
    for name in dt.checkpoints.settings(partitions=1):
        spark.conf.set(name, before[name]) if name in before else spark.conf.unset(name)


@pytest.mark.parametrize(("first", "then"), slow_after(1, [(2, 4), (8, 200), (4, 2)]))
def test_state_is_found_again_under_other_shuffle_partitions(
    session: SparkSession, tmp_path: Path, first: int, then: int
) -> None:
    """Spark keeps a checkpoint's number of partitions, whatever the session says later."""
    users = dt.Table.from_changelog(
        read(session, tmp_path / "users"), key="k", timestamp="t", name="users"
    )
    clicks = dt.Stream.from_changelog(
        read(session, tmp_path / "clicks"), key="k", timestamp="t", name="clicks"
    )
    found = clicks.join(users, how="left", select={"v": "right.v"})

    def run(partitions: int) -> None:
        for name, value in dt.checkpoints.settings(partitions=partitions).items():
            session.conf.set(name, value)
        writer = found.changelog().writeStream.format("parquet").outputMode("append")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()

    write(tmp_path / "users", 0, [(k, f"user {k}", 0, 0) for k in range(40)])
    write(tmp_path / "clicks", 0, [(99, "", 0, 0)])
    run(first)
    write(tmp_path / "clicks", 1, [(k, "", 0, 1) for k in range(40)])
    run(then)
    rows = rows_of(tmp_path / "out", "k")
    assert [(row["k"], row["v"]) for row in rows] == [
        *((k, f"user {k}") for k in range(40)),
        (99, None),
    ]


def bound(folder: Path, topology: dt.Table | dt.Stream, **options: Any) -> None:
    """Run all there is, with the checkpoint of the folder."""
    sink = options.pop("sink", dt.to_parquet(str(folder / "out")))
    options = {"trigger": {"availableNow": True}, "buckets": 2} | options
    checkpoint = str(folder / "checkpoint")
    topology.write_stream(sink, checkpoint=checkpoint, **options).awaitTermination()


def tables(spark: SparkSession, folder: Path, *names: str | None) -> list[dt.Table]:
    """Tables over a folder each, with the columns of ``ROWS``."""
    return [
        dt.Table.from_changelog(
            read(spark, folder / f"table{number}"), key="k", timestamp="t", name=name
        )
        for number, name in enumerate(names)
    ]


def test_another_expression_under_an_aggregate_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its total would be of rows by the one and rows by the other."""
    write(tmp_path / "table0", 0, [(1, "a", 100, 0)])
    write(tmp_path / "table1", 0, [(1, "x", 0, 0)])

    def total(net: Column) -> dt.Table:
        orders, items = tables(spark, tmp_path, "orders", "items")
        joined = orders.join(items, select={"net": net, "kind": "right.v"})
        return joined.group_by("kind").agg(total=dt.sum("net"))

    bound(tmp_path, total(F.col("left.n") * 1.25))
    write(tmp_path / "table0", 1, [(1, "a", 200, 1)])
    message = r"plan.of.result.select was .* \* 1.25D\).* and is .* \* 2.0D\)"
    with pytest.raises(dt.errors.CheckpointError, match=message):
        bound(tmp_path, total(F.col("left.n") * 2.0))
    bound(tmp_path, total(F.col("left.n") * 1.25))
    rows = rows_of(tmp_path / "out", "_timestamp", "_position")
    assert [row["total"] for row in rows][-1] == 250.0


@pytest.mark.parametrize("retention", slow_after(1, ["1 s", None]))
def test_old_files_leave_the_list_of_a_folder(
    spark: SparkSession, tmp_path: Path, retention: str | None
) -> None:
    """The list is written anew by every second micro-batch here."""
    interval = "spark.sql.streaming.fileSink.log.compactInterval"
    spark.conf.set(interval, "2")
    try:
        sink = dt.to_parquet(tmp_path / "out", retention=retention)
        (orders,) = tables(spark, tmp_path, "orders")
        for number, value in enumerate("ab"):
            write(tmp_path / "table0", number, [(1, value, 100, number)])
            bound(tmp_path, orders, sink=sink)
            time.sleep(1.1 if value == "a" else 0)
    finally:
        spark.conf.unset(interval)
    assert (tmp_path / "out" / "_spark_metadata" / "1.compact").exists()
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("_position").collect()
    found = [row["v"] for row in rows]
    if retention is None:
        assert found == ["a", "b"]
    else:
        # On a slow machine the new file, too, is old by the time that it is listed.
        assert found in (["b"], [])


def test_a_retention_is_of_one_list() -> None:
    """A query with several results keeps no list of files."""
    sink = dt.to_parquet("out", retention="1 day")
    with pytest.raises(
        dt.errors.PlanError, match=r"to_parquet\('out'\): retention= is for the list"
    ):
        sink.batches(Mock(), Mock(), "checkpoint")


def test_a_folder_of_another_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would skip the micro-batches whose numbers the folder has, and succeed."""
    write(tmp_path / "table0", 0, [(1, "a", 100, 0)])
    (orders,) = tables(spark, tmp_path, "orders")
    bound(tmp_path, orders, sink=dt.to_parquet(tmp_path / "out"))
    write(tmp_path / "table0", 1, [(1, "b", 200, 1)])
    other = str(tmp_path / "other")
    sink = dt.to_parquet(str(tmp_path / "out"))
    with pytest.raises(
        dt.errors.TargetError, match=r"to_parquet\('.*/out'\): the folder has the changes"
    ):
        orders.write_stream(sink, checkpoint=other, trigger={"availableNow": True})
    bound(tmp_path, orders, sink=sink)
    # A first micro-batch that is killed after it has listed its files is run again.
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    bound(tmp_path, orders, sink=sink)
    assert [row["v"] for row in rows_of(tmp_path / "out", "_position")] == ["a", "b"]
    shutil.move(tmp_path / "out", tmp_path / "away")
    orders.write_stream(sink, checkpoint=other, trigger={"availableNow": True}).awaitTermination()
    assert len(rows_of(tmp_path / "out")) == 2


def test_another_last_selection_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that were written before stay as they are; all that is stored is still there."""
    write(tmp_path / "table0", 0, [(1, "a", 100, 0), (2, "b", 200, 0)])
    write(tmp_path / "table1", 0, [(1, "x", 1, 0), (2, "y", 2, 0)])

    def emitted(select: Any) -> list[tuple[Any, ...]]:
        orders, items = tables(spark, tmp_path, "orders", "items")
        rows: list[tuple[Any, ...]] = []
        sink = dt.to_foreach_batch(lambda batch, _: rows.extend(map(tuple, batch.collect())))
        bound(tmp_path, orders.join(items, select=select), sink=sink)
        return sorted(row[: -len(("_change", "_timestamp", "_position"))] for row in rows)

    assert emitted({"v": "left.v"}) == [(1, "a"), (2, "b")]
    write(tmp_path / "table1", 1, [(1, "xx", 3, 1)])
    assert emitted({"sum": F.col("left.n") + F.col("right.n"), "v": "left.v"}) == [(1, 103, "a")]
    write(tmp_path / "table0", 1, [(2, "bb", 300, 1)])
    assert emitted(["right.v"]) == [(2, "y")]


def test_sides_that_change_places_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    chosen = {"x": "left.v", "y": "right.v"}
    write(tmp_path / "table0", 0, [(1, "a", 0, 0)])
    a, b = tables(spark, tmp_path, "a", "b")
    bound(tmp_path, a.join(b, how="outer", select=chosen))
    with pytest.raises(
        dt.errors.CheckpointError, match=r'left.table was "a" and is "b"; .*right.table'
    ):
        bound(tmp_path, b.join(a, how="outer", select=chosen))
    unnamed, other = tables(spark, tmp_path, None, None)
    joined = unnamed.join(other, how="outer", select=chosen)
    with pytest.raises(dt.errors.PlanError, match=r"tell them apart. Give each a name of its own"):
        bound(tmp_path / "unnamed", joined)
    with pytest.raises(
        dt.errors.PlanError, match=r"table table\[k\]: another one has the same name"
    ):
        joined.changelog()


class Nowhere:
    """A sink of a format that is not there."""

    def writer(self, changes: DataFrame, node: Node, checkpoint: str) -> DataStreamWriter:
        return changes.writeStream.format("nowhere")


def test_a_start_that_fails_binds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Not its topology, not its number of buckets."""
    write(tmp_path / "table0", 0, [(1, "a", 0, 0)])
    users, others = tables(spark, tmp_path, "users", "others")
    with pytest.raises(Exception, match="nowhere"):
        bound(tmp_path, users, buckets=4, sink=Nowhere())
    chosen = users.join(others, how="left", select=["left.v"])
    bound(tmp_path, chosen, buckets=2)
    with pytest.raises(dt.errors.CheckpointError, match="another topology"):
        bound(tmp_path, users)
    with pytest.raises(dt.errors.CheckpointError, match="has 2 buckets, the query asks for 4"):
        bound(tmp_path, chosen, buckets=4)
    with pytest.raises(dt.errors.CheckpointError, match="has 2 partitions, the query asks for 1"):
        bound(tmp_path, chosen, partitions=1)


@pytest.mark.parametrize(
    ("there", "buckets", "partitions", "expected", "warns"),
    [
        *((there, None, None, (4, 2), there >= 8) for there in (1, 2, 7, 8, 64)),
        *(
            (64, 1, None, (1, 1), False),
            (64, 2, None, (2, 2), False),
            (64, 16, None, (16, 2), True),
        ),
        (64, None, 4, (4, 4), False),
    ],
)
def test_partitions_do_not_depend_on_the_cores_that_are_there(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: int,
    buckets: int | None,
    partitions: int | None,
    expected: tuple[int, int],
    warns: bool,
) -> None:
    """A session most of whose cores would be idle is told so."""
    monkeypatch.setattr(writer, "cores", lambda _: there)
    (users,) = tables(spark, tmp_path, "users")
    request = StartRequest("run", [users.plan], (), str(tmp_path), "change", buckets, partitions)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert request.bucket_and_partition_counts() == expected
    said = [str(one.message) for one in caught if one.category is dt.errors.DovetailWarning]
    assert len(said) == warns
    assert all(f"the session has {there} cores. Give partitions=" in text for text in said)


def test_state_has_as_many_partitions_as_are_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """More than there are cores, and never more than buckets."""
    write(tmp_path / "table0", 0, [(1, "a", 0, 0)])
    (users,) = tables(spark, tmp_path, "users")
    with pytest.raises(dt.errors.PlanError, match="partitions=3 is more than the 2 buckets"):
        bound(tmp_path, users.materialize(), buckets=2, partitions=3)
    bound(tmp_path, users.materialize(), buckets=6, partitions=5)
    state = tmp_path / "checkpoint" / "state" / "0"
    assert sorted(path.name for path in state.glob("[0-9]*")) == [*"01234"]
    bound(tmp_path, users.materialize(), buckets=None)


def test_a_checkpoint_is_bound_before_anything_is_stored(
    spark: SparkSession, tmp_path: Path
) -> None:
    """From the first micro-batch on, though it fails; and already by what a source remembers."""
    write(tmp_path / "table0", 0, [(1, "a", 0, 0)])
    users, others = tables(spark, tmp_path, "users", "others")

    def failing(batch: DataFrame, _: int) -> None:
        raise RuntimeError("the sink fails")

    with pytest.raises(StreamingQueryException, match="the sink fails"):
        bound(tmp_path, users, sink=dt.to_foreach_batch(failing))
    checkpoint = tmp_path / "checkpoint"
    assert not any((checkpoint / "commits").iterdir())
    with pytest.raises(dt.errors.CheckpointError, match=r'plan.table was "users" and is "others"'):
        bound(tmp_path, others)
    for begun in ("offsets", "state"):
        shutil.rmtree(checkpoint / begun)
    with pytest.raises(dt.errors.CheckpointError, match=r'plan.table was "users" and is "others"'):
        bound(tmp_path, others)
    shutil.rmtree(checkpoint / "sources")
    bound(tmp_path, others)


@pytest.mark.parametrize("torn", [None, "", '{"version": 2, "topo', "[]", '{"version": 99}'])
def test_a_checkpoint_that_nothing_binds_is_refused(
    spark: SparkSession, tmp_path: Path, torn: str | None
) -> None:
    write(tmp_path / "table0", 0, [(1, "a", 0, 0)])
    (users,) = tables(spark, tmp_path, "users")
    file = tmp_path / "checkpoint" / "dovetail.json"
    if torn is not None:
        # What a start left that came no further is not read.
        file.parent.mkdir()
        file.write_text(torn)
    bound(tmp_path, users)
    whole = file.read_text()
    file.unlink()
    if torn is not None:
        # A file that is written without its checksum.
        file.with_name(".dovetail.json.crc").unlink(missing_ok=True)
        file.write_text(torn)
    message = {None: "has no dovetail.json", '{"version": 99}': "has format 99, this version"}
    with pytest.raises(dt.errors.CheckpointError, match=message.get(torn, "json cannot be read")):
        bound(tmp_path, users)
    file.write_text(whole)
    bound(tmp_path, users)


def test_there_is_never_a_part_of_a_binding(spark: SparkSession, tmp_path: Path) -> None:
    file = CheckpointFile(spark, str(tmp_path / "checkpoint"))
    path = tmp_path / "checkpoint" / "dovetail.json"
    with delta_tables.temporary_settings(spark, file.settings()):
        file.write({"plan": "x" * 1_000_000})
    seen, done = [], threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.append(len(json.loads(path.read_text())["plan"]))

    thread = threading.Thread(target=look)
    thread.start()
    with delta_tables.temporary_settings(spark, file.settings()):
        for _ in range(10):
            file.write({"plan": "x" * 1_000_000})
    done.set()
    thread.join()
    assert set(seen) == {1_000_000}
    assert [p.name for p in path.parent.iterdir() if not p.name.startswith(".")] == [path.name]


def test_a_session_with_sparks_leak_is_warned_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the version of its JVM, with the sockets of a micro-batch: two tasks per stage."""
    joined = by_foreign_key(spark.newSession(), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert joined.changelog().isStreaming
    monkeypatch.setattr(writer, "spark_version", lambda _: "4.2.0")
    message = r"a socket of each task with state: 4 per micro-batch.* Spark 4\.2\.1 or later"
    with pytest.warns(dt.errors.DovetailWarning, match=message) as warned:
        joined.changelog()
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        joined.group_by("v").agg(n=dt.count()).changelog()
    with pytest.warns(dt.errors.DovetailWarning, match=r"state: 8 per micro-batch"):
        by_foreign_key(spark.newSession(), tmp_path).group_by("v").agg(n=dt.count()).changelog()


def by_foreign_key(session: SparkSession, folder: Path) -> dt.Table:
    for name, value in dt.checkpoints.settings(partitions=2).items():
        session.conf.set(name, value)
    left, right = tables(session, folder, "left", "right")
    return left.join(right, on="n", select={"v": "left.v"})
