"""Going back to an earlier micro-batch."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.parameters import slow_after
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from small_session import with_delta
from timed_files import timed_file

import dovetail as dt
from dovetail.io.sinks.spark_sinks import ParquetSink
from dovetail.platform.files import files_of
from dovetail.spark.migration.rewind import refuse_missing_state

ORDERS = "id long, customer string, amount long, gone boolean, at timestamp"
CUSTOMERS = "name string, city string, at timestamp"
BATCHES, BACK_TO = 6, 2


def write(folder: Path, first: int = 0, count: int = BATCHES) -> None:
    """A file of each table a micro-batch; orders come, change, go and come again."""
    for number in range(first, first + count):
        at = f"2024-05-01T10:00:0{number}Z"
        orders = [
            {
                "id": id_,
                "customer": "abc"[(id_ + number) % 3],
                "amount": 10 * number + id_,
                "gone": (id_ + number) % 4 == 0,
                "at": at,
            }
            for id_ in range(1 + number % 2, 7)
        ]
        customers = [{"name": "abc"[number % 3], "city": f"city {number}", "at": at}]
        for name, rows in (("orders", orders), ("customers", customers)):
            with timed_file(folder / name / f"{number}.json", number) as path:
                path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def joined(spark: SparkSession, folder: Path) -> dt.Table:
    """Orders and their customers, by foreign key."""
    read = {
        name: spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
        for name, columns in (("orders", ORDERS), ("customers", CUSTOMERS))
    }
    orders = dt.Table.from_changelog(
        read["orders"].json(str(folder / "orders")),
        key="id",
        timestamp="at",
        deleted="gone",
        name="orders",
    )
    customers = dt.Table.from_changelog(
        read["customers"].json(str(folder / "customers")), key="name", timestamp="at",
        name="customers",
    )  # fmt: skip
    return orders.join(customers, on="customer", how="left", select=["amount", "city"])


def run(table: dt.Table, folder: Path, sink: Any, checkpoint: str = "checkpoint") -> None:
    table.write_stream(
        sink,
        checkpoint=folder / checkpoint,
        trigger={"availableNow": True},
        buckets=2,
        partitions=1,
    ).awaitTermination()


class Emitted:
    """What a sink was given."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}

    def __call__(self, changes: DataFrame, number: int) -> None:
        rows = changes.orderBy("_position").collect()
        self.batches[number] = [str(row) for row in rows]

    def by_key(self, first: int = 0) -> dict[str, list[str]]:
        """Each key's changes from a micro-batch on."""
        found = defaultdict(list)
        for number in sorted(self.batches):
            for row in self.batches[number] if number >= first else ():
                found[row.partition(",")[0]].append(row.partition(", _position")[0])
        return found


@pytest.mark.long
def test_a_query_goes_on_from_an_earlier_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    """With the state of it, and of an aggregate of a join."""
    count, back_to = 4, 1
    write(tmp_path, count=count)
    totals = joined(spark, tmp_path).group_by("city").agg(total=dt.sum("amount"), n=dt.count())
    first, second = Emitted(), Emitted()
    run(totals, tmp_path, dt.to_foreach_batch(first))
    assert [*first.batches] == [*range(count)]
    checkpoint = tmp_path / "checkpoint"
    stored = dt.checkpoints.read_state(spark, checkpoint, "orders", batch=back_to).collect()
    query = (checkpoint / "metadata").read_text()

    dt.checkpoints.rewind(spark, checkpoint, batch=back_to)

    assert sorted(dt.checkpoints.read_state(spark, checkpoint, "orders").collect()) == sorted(
        stored
    )
    assert dt.checkpoints.read_state(spark, checkpoint).first()["batch"] == back_to  # type: ignore[index]
    assert (checkpoint / "metadata").read_text() != query
    run(totals, tmp_path, dt.to_foreach_batch(second))
    assert min(second.batches) == back_to + 1
    assert second.by_key() == first.by_key(back_to + 1)
    assert second.by_key()


@pytest.mark.parametrize(
    ("committed", "listed"), [(4, "0 1 2 3"), (10, "9.compact"), (23, "19.compact 20 21 22")]
)
def test_a_new_folder_lists_nothing_for_what_was_written_elsewhere(
    spark: SparkSession, tmp_path: Path, committed: int, listed: str
) -> None:
    """As Spark's own list would: it reads from the last ``.compact`` on."""
    commits = tmp_path / "checkpoint/commits"
    commits.mkdir(parents=True)
    for number in range(committed):
        (commits / str(number)).touch()
    sink = ParquetSink(str(tmp_path / "out"))
    for _ in range(2):
        sink._complete_list(files_of(spark), str(tmp_path / "checkpoint"), interval=10)
        found = (tmp_path / "out/_spark_metadata").iterdir()
        assert sorted(path.name for path in found if path.suffix != ".crc") == listed.split()
    next_ = tmp_path / f"out/_spark_metadata/{committed}"
    next_.write_text("v1")
    assert spark.read.schema("id long").parquet(str(tmp_path / "out")).count() == 0


def test_the_whole_list_is_written_where_it_is_due(spark: SparkSession, tmp_path: Path) -> None:
    """Micro-batch 9 wrote nothing, and Spark reads ``9.compact`` from then on."""
    commits, listed = tmp_path / "checkpoint/commits", tmp_path / "out/_spark_metadata"
    commits.mkdir(parents=True)
    listed.mkdir(parents=True)
    for number in range(12):
        (commits / str(number)).touch()
        file = tmp_path / f"out/{number}.parquet"
        pq.write_table(pa.table({"id": [number]}), file)
        entry = {"path": file.as_uri(), "size": file.stat().st_size, "isDir": False}
        entry |= {"modificationTime": 0, "blockReplication": 1, "blockSize": 1, "action": "add"}
        if number != 9:
            (listed / str(number)).write_text(f"v1\n{json.dumps(entry)}")
    sink = ParquetSink(str(tmp_path / "out"))
    sink._complete_list(files_of(spark), str(tmp_path / "checkpoint"), interval=10)
    assert not (listed / "9").exists()
    assert len((listed / "9.compact").read_text().splitlines()) == 1 + 9
    rows = spark.read.schema("id long").parquet(str(tmp_path / "out")).collect()
    assert sorted(row["id"] for row in rows) == [*range(9), 10, 11]


@pytest.mark.slow
@pytest.mark.parametrize("done", slow_after(1, [1, -1, 0, 8, 14]))
def test_a_call_that_is_killed_is_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """After so many files are deleted, -1 for all but one. If the query is started then, it fails
    or goes on from a micro-batch whose state is there.
    """
    write(tmp_path)
    table = joined(spark, tmp_path)
    run(table, tmp_path, dt.to_foreach_batch(Emitted()))
    kind: Any = type(files_of(spark))
    remove, given, most = kind.remove, list[str](), 0

    def until(files: Any, path: str) -> None:
        if len(given) >= most > 0:
            raise KeyboardInterrupt
        given.append(path)
        if most:
            remove(files, path)

    checkpoint = tmp_path / "checkpoint"
    with monkeypatch.context() as patched:
        patched.setattr(kind, "remove", until)
        dt.checkpoints.rewind(spark, checkpoint, batch=BACK_TO)  # nothing is deleted yet
        assert len(given) > 14
        most = done if done >= 0 else len(given) - 1
        given.clear()
        with pytest.raises(KeyboardInterrupt) if most else nullcontext():
            dt.checkpoints.rewind(spark, checkpoint, batch=BACK_TO)
    write(tmp_path, BATCHES, 1)
    whole, half, rest = Emitted(), Emitted(), Emitted()
    run(table, tmp_path, dt.to_foreach_batch(whole), "another")
    failed = False
    try:
        run(table, tmp_path, dt.to_foreach_batch(half))
    except StreamingQueryException:
        failed = True
    assert failed == (not half.batches) == (done > 0)
    assert half.by_key() == (whole.by_key(min(half.batches)) if half.batches else {})
    dt.checkpoints.rewind(spark, checkpoint, batch=BACK_TO)
    run(table, tmp_path, dt.to_foreach_batch(rest))
    assert rest.by_key() == whole.by_key(BACK_TO + 1)


@pytest.fixture(scope="module")
def delta_spark(spark: SparkSession) -> Iterator[SparkSession]:
    yield from with_delta(spark, {})


@pytest.mark.slow
def test_a_delta_table_is_restored_to_the_time_that_is_returned(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path)
    table, target = joined(delta_spark, tmp_path), str(tmp_path / "target")
    columns = ["id", "amount", "city"]

    def rows(frame: DataFrame) -> list[str]:
        return sorted(str(row) for row in frame.select(columns).collect())

    run(table, tmp_path, dt.to_delta(target))
    checkpoint = tmp_path / "checkpoint"
    last = rows(delta_spark.read.format("delta").load(target))
    stored = dt.checkpoints.read_state(delta_spark, checkpoint, batch=BACK_TO, topology=table)
    then = rows(stored)
    assert then != last
    committed = dt.checkpoints.rewind(delta_spark, checkpoint, batch=BACK_TO)
    with pytest.raises(dt.errors.TargetError, match="existing='adopt'"):
        run(table, tmp_path, dt.to_delta(target))
    delta_spark.sql(f"RESTORE TABLE delta.`{target}` TO TIMESTAMP AS OF '{committed.isoformat()}'")
    assert rows(delta_spark.read.format("delta").load(target)) == then
    run(table, tmp_path, dt.to_delta(target, existing="adopt"))
    assert rows(delta_spark.read.format("delta").load(target)) == last
    run(table, tmp_path, dt.to_delta(target))


def test_what_cannot_be_gone_back_to_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, count=1)
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(dt.errors.CheckpointError, match=r"has no micro-batch\. Name a query's"):
        dt.checkpoints.rewind(spark, checkpoint, batch=0)
    query = joined(spark, tmp_path).write_stream(
        dt.to_parquet(tmp_path / "out"), checkpoint=checkpoint, buckets=1
    )
    try:
        query.processAllAvailable()
        with pytest.raises(dt.errors.CheckpointError, match=r"is running\. Stop it first"):
            dt.checkpoints.rewind(spark, checkpoint, batch=0)
    finally:
        query.stop()
    before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    with pytest.raises(
        dt.errors.CheckpointError, match=r"no micro-batch 99\. Spark has kept 0 to "
    ):
        dt.checkpoints.rewind(spark, checkpoint, batch=99)
    assert before == {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_record_of_the_future_is_recovered_from(spark: SparkSession, tmp_path: Path) -> None:
    """The recipe of docs/sources.md: rewind, and read again with a limit."""
    folder, checkpoint = tmp_path / "prices", tmp_path / "checkpoint"
    rows = [("pen", 2, "2024-05-01"), ("ink", 9, "2099-01-01"), ("pen", 3, "2024-05-09")]
    for n, (item, price, day) in enumerate(rows):
        at = f"{day}T10:00:00Z"
        with timed_file(folder / f"{n}.json", n) as path:
            path.write_text(json.dumps({"item": item, "price": price, "at": at}))

    names = dt.Table.from_static(
        spark.createDataFrame([("pen", "a pen")], "item string, name string"), key="item", name="n"
    )
    prices: dict[str, int] = {}

    def keep(changes: DataFrame, _: int) -> None:
        prices.update((row.item, row.price) for row in changes.orderBy("_position").collect())

    def read(**options: Any) -> None:
        frame = spark.readStream.schema("item string, price long, at timestamp")
        table = dt.Table.from_changelog(
            frame.option("maxFilesPerTrigger", 1).json(str(folder)),
            key="item",
            timestamp="at",
            versioned="7 days",
            name="prices",
            **options,
        )
        run(table.join(names, how="left"), tmp_path, dt.to_foreach_batch(keep))

    read()
    assert prices["pen"] == 2  # the later price came behind the year 2099
    dt.checkpoints.rewind(spark, checkpoint, batch=0)
    prices.clear()
    read(max_ahead="1 day", malformed="drop")
    assert prices == {"pen": 3}


def test_partitions_that_repartition_has_given_up_do_not_count() -> None:
    """Spark leaves their folders as they were."""
    names = {"c/state/0/0": {3: ["3.zip"], 4: [], 5: []}, "c/state/0/1": {2: [], 3: []}}
    names["c/state/1/0/left-keyToNumValues"] = names["c/state/0/0"]
    names["c/state/1/1/left-keyToNumValues"] = names["c/state/0/1"]
    for batch in (3, 4):
        refuse_missing_state(names, 1, batch)
    with pytest.raises(dt.errors.CheckpointError, match="repartitioned after micro-batch 2"):
        refuse_missing_state(names, 1, 2)
    with pytest.raises(dt.errors.CheckpointError, match="c/state/0/1 has no state"):
        refuse_missing_state(names, 2, 3)
