"""An Iceberg table that a query keeps: after every micro-batch the rows of all input so far."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import iceberg_tables as iceberg
import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail.iceberg import replacement
from dovetail.iceberg.catalogs import TableAddress
from dovetail.io.sinks.iceberg.columns import refuse_far_times
from dovetail.io.sinks.iceberg.tables import IcebergTarget
from dovetail.plan.types.arrow import spark_schema

START = datetime(2024, 1, 1, tzinfo=timezone.utc)
NAME = "shop.orders"
TIME = pa.timestamp("us", "UTC")
SCHEMA = "k string, n long, v long, at timestamp, op string"

Content = dict[tuple[str, int], tuple[int, datetime]]


class Query:
    """Changes in files, and a query that keeps a table of their rows, file by file."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.catalog = iceberg.properties(folder)
        self.draw = random.Random(3)
        self.rows: Content = {}
        self.log: list[tuple[tuple[str, int], int | None, datetime]] = []
        self.files = 0
        (folder / "in").mkdir()

    def add(self, count: int = 8) -> Content:
        """Write a file of random changes, and return the rows after it."""
        lines = []
        for _ in range(count):
            key = self.draw.choice("abc'"), self.draw.randrange(3)
            time = START + timedelta(minutes=self.draw.randrange(100))
            gone, v = self.draw.random() < 0.3, self.draw.randrange(50)
            row = {"k": key[0], "n": key[1], "v": v, "at": time.isoformat()}
            lines.append(json.dumps({**row, "op": "d" if gone else "u"}))
            self.rows.pop(key, None)
            self.log.append((key, None if gone else v, time))
            if not gone:
                self.rows[key] = v, time
        path = self.folder / f"in/{self.files}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + self.files,) * 2)  # which Spark reads first
        self.files += 1
        return dict(self.rows)

    def changes(self) -> dt.Table:
        frame = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return dt.Table.from_changelog(
            frame.json(str(self.folder / "in")),
            key=["k", "n"],
            timestamp="at",
            deleted=F.col("op") == "d",
            name="orders",
        )

    def run(
        self, table: dt.Table | dt.Stream | None = None, checkpoint: str = "c", **arguments: Any
    ) -> None:
        sink = dt.to_iceberg(NAME, catalog=self.catalog, **arguments)
        (table or self.changes()).write_stream(
            sink,
            checkpoint=self.folder / checkpoint,
            trigger={"availableNow": True},
            buckets=1,
            partitions=1,
        ).awaitTermination()

    def forget_commit(self, checkpoint: str = "c") -> None:
        """Undo Spark's note of the last micro-batch, as a kill before it does."""
        commits = self.folder / checkpoint / "commits"
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        (commits / str(last)).unlink()

    @property
    def table(self) -> Table:
        return iceberg.opened(self.catalog).load_table(NAME)

    def content(self) -> Content:
        return content(self.table.scan().to_arrow())

    def states(self) -> Iterator[Content]:
        """The rows of each snapshot, in order."""
        for snapshot in self.table.metadata.snapshots:
            yield content(self.table.scan(snapshot_id=snapshot.snapshot_id).to_arrow())


def content(rows: pa.Table) -> Content:
    found = {(r["k"], r["n"]): (r["v"], r["_timestamp"]) for r in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


@pytest.mark.long
def test_each_micro_batch_is_one_snapshot_whatever_fails(query: Query) -> None:
    expected = [query.add() for _ in range(3)]
    query.run(partition_by=["bucket(2, k)", "n"])
    assert list(query.states()) == expected
    assert [field.name for field in query.table.spec().fields] == ["k_bucket_2", "n"]

    # Killed after the commit of the table, before that of the checkpoint.
    query.forget_commit()
    expected.append(query.add())
    query.run()
    assert list(query.states()) == expected
    summaries = [snapshot.summary for snapshot in query.table.metadata.snapshots]
    assert [summary["dovetail.batch"] for summary in summaries if summary] == list("0123")

    # Read back, its snapshots are the changes of its rows.
    first = query.table.metadata.snapshots[0].snapshot_id
    back = dt.Table.from_iceberg(
        query.spark,
        NAME,
        catalog=query.catalog,
        key=["k", "n"],
        timestamp="_timestamp",
        snapshot=first,
        streaming=False,
    )
    rows: Content = {}
    changes = sorted(back.changelog().collect(), key=lambda row: row["_position"])
    for row in changes:
        rows.pop((row["k"], row["n"]), None)
        if row["_change"] == "upsert":
            rows[row["k"], row["n"]] = row["v"], row["_timestamp"].astimezone(timezone.utc)
    assert rows == expected[-1]


def versions(log: list[tuple[tuple[str, int], int | None, datetime]]) -> list[tuple[Any, ...]]:
    """The versions of each key, change by change, of which only the last one may be open."""
    histories: dict[tuple[str, int], list[list[Any]]] = {}
    for key, v, time in log:
        own = histories.setdefault(key, [])
        if own:
            _, start, end = own[-1]
            time = max(time, end or start)
            if end is None and time == start:
                own.pop()
            elif end is None:
                own[-1][2] = time
        if v is not None:
            own.append([v, time, None])
    return sorted(((*key, *version) for key, own in histories.items() for version in own), key=repr)


def test_all_versions_are_kept_once(query: Query) -> None:
    def stored() -> list[tuple[Any, ...]]:
        rows = query.table.scan().to_arrow().to_pylist()
        assert all(row["_current"] == (row["_valid_to"] is None) for row in rows)
        names = ("k", "n", "v", "_valid_from", "_valid_to")
        return sorted((tuple(row[name] for name in names) for row in rows), key=repr)

    for _ in range(2):
        query.add()
    query.run(history=True, partition_by="_current")
    assert stored() == versions(query.log)
    query.forget_commit()
    query.add()
    query.run(history=True)
    assert stored() == versions(query.log)
    assert len(query.table.metadata.snapshots) == 3


def test_what_becomes_of_a_table_that_is_there(query: Query) -> None:
    query.add()
    query.run()
    with pytest.raises(dt.errors.TargetError, match="rows that this query has not written"):
        query.run(checkpoint="other")
    query.run(checkpoint="other", existing="replace")
    assert query.content() == query.rows
    query.add()
    with pytest.raises(dt.errors.TargetError, match="another query has taken it"):
        query.run()

    wider = query.changes().with_columns(w=F.col("v") + 1)
    with pytest.raises(dt.errors.TargetError, match="w is missing"):
        query.run(wider, checkpoint="third", existing="adopt")
    query.run(wider, checkpoint="third", existing="adopt", evolve=True)
    assert query.content() == query.rows
    found = query.table.scan().to_arrow().to_pylist()
    assert all(row["w"] == row["v"] + 1 for row in found)

    iceberg.opened(query.catalog).drop_table(NAME)
    with pytest.raises(dt.errors.TargetError, match="is gone"):
        query.run(wider, checkpoint="third")


@pytest.mark.parametrize("appends", [False, True])
def test_an_older_copy_of_the_checkpoint_is_refused(query: Query, *, appends: bool) -> None:
    def run(checkpoint: str = "c") -> None:
        query.run(query.changes().to_stream() if appends else None, checkpoint=checkpoint)

    query.add()
    run()
    shutil.copytree(query.folder / "c", query.folder / "older")
    for _ in range(2):
        query.add()
    run()
    problem = "has this query's micro-batches up to 2, and the next one is 1: the checkpoint is an"
    with pytest.raises(StreamingQueryException, match=problem):
        run("older")
    assert len(query.table.metadata.snapshots) == 3


def test_micro_batches_that_were_rolled_back_are_written_again(tmp_path: Path) -> None:
    table = iceberg.opened(iceberg.properties(tmp_path)).create_table(
        NAME, schema=pa.schema([("v", pa.int64())])
    )

    def commit(batch: int) -> int:
        """Append a row as a query's micro-batch, and return the snapshot's id."""
        summary = {replacement.QUERY: "q", replacement.BATCH: str(batch)}
        replacement.commit(table, pa.table({"v": [batch]}), summary=summary, properties={})
        snapshot = table.refresh().current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    first, second, _ = map(commit, range(3))
    table.append(pa.table({"v": [9]}))
    of_others = table.current_snapshot()
    assert of_others is not None
    table.append(pa.table({"v": [9]}))
    assert replacement.last_batch(table.metadata, "q") == 2
    table.maintenance.expire_snapshots().by_id(of_others.snapshot_id).commit()
    assert replacement.last_batch(table.refresh().metadata, "q") == 2

    for batch, snapshot_id in ((1, second), (0, first)):
        table.manage_snapshots().set_current_snapshot(snapshot_id).commit()
        assert replacement.last_batch(table.refresh().metadata, "q") == batch
    commit(1)
    assert replacement.last_batch(table.metadata, "q") == 1
    assert replacement.last_batch(table.metadata, "p") == -1


def test_a_conflict_is_tried_once_more(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    query.add()
    query.run()
    others = []

    def overtaken(table: Table, *arguments: Any, **options: Any) -> None:
        """Another writer writes the files anew between the reading and the commit."""
        if len(others) < limit:
            others.append(table)
            iceberg.rewrite(query.table)
        commit(table, *arguments, **options)

    commit = replacement.commit
    monkeypatch.setattr(replacement, "commit", overtaken)
    limit = 1
    query.add()
    query.run()
    assert query.content() == query.rows
    assert len(others) == 1
    limit = 9
    query.add()
    with pytest.raises(StreamingQueryException, match="another writer changes the table"):
        query.run()
    limit = 0
    query.run()
    assert query.content() == query.rows


def test_a_commit_is_not_put_on_top_of_another_one(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former process of the query, which was taken for dead, commits the micro-batch between the
    look at the table and the commit.
    """

    def overtaken(table: Table, *arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(replacement, "commit", commit)
        commit(query.table, *arguments, **options)
        commit(table, *arguments, **options)

    commit = replacement.commit
    monkeypatch.setattr(replacement, "commit", overtaken)
    query.add()
    query.run(query.changes().to_stream())
    assert query.table.scan().to_arrow().num_rows == 8
    assert len(query.table.metadata.snapshots) == 1


def test_records_of_streams_are_appended_once(query: Query) -> None:
    query.add()
    stream = query.changes().to_stream()
    query.run(stream)
    assert query.table.scan().to_arrow().num_rows == 8
    query.forget_commit()
    query.add()
    query.run(query.changes().to_stream())
    assert query.table.scan().to_arrow().num_rows == 16


def test_what_cannot_be_stored_is_refused(query: Query) -> None:
    odd = query.changes().with_columns(w=F.expr("make_dt_interval(1)"))
    with pytest.raises(dt.errors.PlanError, match="column 'w' is of type interval"):
        query.run(odd)
    with pytest.raises(dt.errors.PlanError, match="partition_by="):
        query.run(partition_by="day(v)")
    with pytest.raises(dt.errors.PlanError, match="partition_by="):
        query.run(partition_by="nothing")


def test_names_in_another_case_are_other_columns(query: Query) -> None:
    query.add()
    texts = [(name, pa.string()) for name in ("K", "op")]
    fields = [*texts, ("n", pa.int64()), ("v", pa.int64()), ("_timestamp", TIME)]
    iceberg.opened(query.catalog).create_table(NAME, schema=pa.schema(fields))
    with pytest.raises(dt.errors.TargetError, match="k is missing, K is not among the query's"):
        query.run(existing="adopt")


def test_a_null_in_a_column_that_requires_values_is_refused(query: Query) -> None:
    query.add()
    others = [("k", pa.string()), ("n", pa.int64()), ("op", pa.string()), ("_timestamp", TIME)]
    schema = pa.schema([*others, pa.field("v", pa.int64(), nullable=False)])
    iceberg.opened(query.catalog).create_table(NAME, schema=schema)
    query.run()
    assert query.content() == query.rows
    query.add()
    nulls = query.changes().with_columns(v=F.expr("nullif(v, v)"))
    with pytest.raises(StreamingQueryException, match="requires values in column 'v', and rows"):
        query.run(nulls, checkpoint="other", existing="adopt")


@pytest.mark.parametrize(
    "values",
    [
        pa.array([None, -719_163], pa.date32()),
        pa.array([None, 253_402_300_800_000_000], TIME),
        pa.array([[0], None, [0, -62_135_596_800_000_001]], pa.list_(pa.timestamp("us"))),
        pa.array([{"a": 2_932_897}], pa.struct([("a", pa.date32())])),
        pa.array([[("a", 2_932_897)]], pa.map_(pa.string(), pa.date32())),
    ],
)
def test_a_time_that_pyiceberg_does_not_write_is_refused(values: pa.Array) -> None:
    rows = pa.table({"n": pa.nulls(len(values), TIME), "v": values})
    with pytest.raises(dt.errors.DataError, match="value of column 'v' outside the years 1 to 99"):
        refuse_far_times("to_iceberg('t')", rows)
    refuse_far_times("to_iceberg('t')", rows.slice(0, 0))
    ends = [datetime(1, 1, 1, tzinfo=timezone.utc), datetime.max.replace(tzinfo=timezone.utc)]
    days = pa.array([time.date() for time in ends], pa.date32())
    refuse_far_times("to_iceberg('t')", pa.table({"v": pa.array(ends, TIME), "d": days}))


def test_values_that_cannot_be_written_fail_the_query(query: Query) -> None:
    query.add()
    long = query.changes().with_columns(w=F.repeat("op", 256))
    with pytest.raises(StreamingQueryException, match="has a text that is too long for a folder"):
        query.run(long, partition_by="w")
    iceberg.opened(query.catalog).drop_table(NAME)
    far = query.changes().with_columns(w=F.make_date(F.lit(10_000), F.lit(1), F.lit(1)))
    with pytest.raises(StreamingQueryException, match="value of column 'w' outside the years 1 to"):
        query.run(far, checkpoint="far")


def test_partitions_by_floats_are_refused(query: Query) -> None:
    """Pyiceberg takes 0.0 and -0.0 for two partitions, and writes the rows of both to each."""
    query.add()
    floats = query.changes().with_columns(v=F.col("v").cast("double"))
    with pytest.raises(dt.errors.PlanError, match="partition_by= names 'v' of type double"):
        query.run(floats, partition_by="v")
    query.run(floats)
    with query.table.update_spec() as spec:
        spec.add_field("v", "identity")
    with pytest.raises(dt.errors.TargetError, match="has partitions by 'v' of type double"):
        query.run(floats)


def test_a_table_of_a_version_that_is_not_written_is_refused(tmp_path: Path) -> None:
    catalog, schema = iceberg.properties(tmp_path), pa.schema([("v", pa.int64())])
    table = iceberg.opened(catalog).create_table(NAME, schema)
    address = TableAddress.of(NAME, catalog)
    target = IcebergTarget("sink", address, spark_schema(schema), "fail", (), evolve=False)
    target.refuse_unwritable(table)
    # pyiceberg itself cannot make such a table
    table.metadata = table.metadata.model_copy(update={"format_version": 3})
    with pytest.raises(dt.errors.TargetError, match="format version 3, and pyiceberg writes up to"):
        target.refuse_unwritable(table)


def test_rows_that_others_have_deleted_stay_deleted(query: Query) -> None:
    """Another writer deletes by values; the files that the query writes anew leave these out."""
    query.add(20)
    query.run()
    table = query.table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (entry,) = snapshot.manifests(table.io)[0].fetch_manifest_entry(table.io)
    rows = table.scan().to_arrow()
    gone = content(rows.slice(0, 2))
    deletes = iceberg.values(table, ["k", "n"], rows.slice(0, 2), entry.data_file)
    iceberg.row_delta(table, [deletes])
    log = len(query.log)
    query.add(3)
    query.run()
    again = {key for key, _, _ in query.log[log:]}
    stored = iceberg.feed(query.catalog, iceberg.CONTENT, table=NAME)  # pyiceberg refuses to
    assert {(row["k"], row["n"]): (row["v"], row["_timestamp"]) for row in stored} == {
        key: row for key, row in query.rows.items() if key not in gone or key in again
    }


def test_rows_whose_keys_no_change_has_stay_deleted_in_files_that_are_written_anew(
    tmp_path: Path,
) -> None:
    rows = pa.table({"k": [1, 2, 3], "v": [1, 2, 3]})
    table = iceberg.opened(iceberg.properties(tmp_path)).create_table(NAME, schema=rows.schema)
    table.append(rows)
    deletes = iceberg.values(table, ["k"], rows.slice(1, 1), iceberg.data_files(table)[0])
    iceberg.row_delta(table, [deletes])
    (part,) = replacement.rows_of_keys(table.refresh(), pa.table({"k": [1]}))
    assert part.rows["k"].to_pylist() == [1, 3]
    assert part.has_key.tolist() == [True, False]
    assert not list(replacement.rows_of_keys(table, pa.table({"k": [2]})))


@pytest.mark.parametrize("bits", [32, 64])
def test_rows_are_found_where_a_partition_wraps_around(tmp_path: Path, bits: int) -> None:
    """Truncated, the smallest numbers of a type are below it, and pyiceberg writes large ones."""
    catalog, type_ = iceberg.opened(iceberg.properties(tmp_path)), f"int{bits}"
    rows = pa.table({"k": pa.array([-(2 ** (bits - 1)), -3, 7], type_)})
    table = catalog.create_table(NAME, schema=rows.schema)
    with table.update_spec() as spec:
        spec.add_field("k", "truncate[10]")
    table.append(rows)
    for further in (0, 300):
        keys = pa.table({"k": pa.array([-(2 ** (bits - 1)), *range(8, 8 + further)], type_)})
        (part,) = replacement.rows_of_keys(table.refresh(), keys)
        assert part.rows["k"].to_pylist() == [-(2 ** (bits - 1))]
    (part,) = replacement.rows_of_keys(table, rows.slice(1, 1))
    assert part.rows["k"].to_pylist() == [-3]
