"""A Delta table that a query merges into: after every micro-batch the join of all input so far."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import delta_rows
import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.models import tables as naive
from bench.parameters import slow_after
from bench.records import Record
from parquet_rows import add_file
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import dovetail as dt
from dovetail.base.columns import quoted
from dovetail.io.sinks.delta import merge as delta_merge
from dovetail.io.sinks.delta import sink as delta
from dovetail.io.sinks.delta import tombstones
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.sessions import cloned_session

FILES, RECORDS, KEYS = 2, 20, 6
ENGINES: tuple[Any, ...] = ("spark", "deltalake")
OUTER = ("a", "outer", "b")
KEY = ["the-key", "n"]
START = datetime(2024, 1, 1, tzinfo=timezone.utc)

Key = tuple[str, int]
Content = dict[Key, tuple[Any, Any, datetime]]


@pytest.mark.long
def test_tables_are_the_join_of_all_input_so_far_whatever_fails(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each engine keeps a table. The second batch is merged into both, then the query dies before
    it can commit it: each merge is a version, and the versions show it merged twice. The first two
    are the table that is made and the table that is taken.
    """
    batches = list(history(random.Random(5)))
    for number, batch in enumerate(batches):
        write(batch, number, tmp_path)
    merges = []

    def fails_once(*arguments: Any, **options: Any) -> None:
        merge(*arguments, **options)
        merges.append(arguments)
        if len(merges) == 2 * len(ENGINES):
            raise RuntimeError("killed before the commit")

    merge = delta_merge.merge_changes
    monkeypatch.setattr(delta_merge, "merge_changes", fails_once)
    with pytest.raises(StreamingQueryException, match="killed before the commit"):
        run(delta_spark, tmp_path)
    run(delta_spark, tmp_path)

    assert len(merges) == (FILES + 1) * len(ENGINES)
    expected = list(contents(batches))
    assert len({str(content) for content in expected}) == FILES
    for engine in ENGINES:
        commits = deltalake.DeltaTable(str(tmp_path / engine)).history(FILES + 1)
        assert {"delta-rs" in str(commit["engineInfo"]) for commit in commits} == {
            engine == "deltalake"
        }
        versions = [stored(tmp_path / engine, version) for version in range(FILES + 3)]
        assert versions == [{}, {}, expected[0], expected[1], *expected[1:]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "few"),
    slow_after(1, [("last", False), ("a`b.c", True), ("k", True)]),
)
def test_merging_takes_the_last_change_of_a_key_and_twice_is_once(
    delta_spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    few: bool,
) -> None:
    """Few changes come through this process, many do not."""
    if not few:
        monkeypatch.setattr(delta_upsert, "ROWS_MAX", 0)
    table = str(tmp_path / "a`table")
    own = cloned_session(delta_spark)
    delta_tables.tune(own)
    name = quoted(key)
    schema = f"{name} string, v long, _timestamp timestamp, _change string, _position long"
    delta_rows.create(table, f"{name} string, v long, _timestamp timestamp")

    def merged(*changes: tuple[str, int | None, str]) -> list[tuple[Any, ...]]:
        """What the table holds after these changes, which come in the order of their positions but
        not of their times.
        """
        rows = [
            (at, value, START + timedelta(days=-position), change, position)
            for position, (at, value, change) in enumerate(changes)
        ]
        frame = delta_rows.frame(delta_spark, rows[::-1], schema)
        delta_merge.merge_changes(own, frame, delta_tables.sql_name(table), [key])
        return sorted((row[key], row["v"]) for row in delta_rows.read(table).to_pylist())

    first = (
        ("a", 1, "upsert"), ("a", 2, "upsert"), ("b", 3, "upsert"), ("b", None, "delete"),
        ("c", None, "delete"), ("c", 4, "upsert"), ("d", None, "delete"), ("e", None, "upsert"),
    )  # fmt: skip
    second = (("a", None, "delete"), ("c", 5, "upsert"), ("b", 6, "upsert"), ("e", None, "delete"))
    assert merged(*first) == [("a", 2), ("c", 4), ("e", None)]
    assert merged(*first) == [("a", 2), ("c", 4), ("e", None)]
    assert merged(*second) == [("b", 6), ("c", 5)]


def test_a_small_merge_compiles_hardly_any_code(delta_spark: SparkSession, tmp_path: Path) -> None:
    schema = "k long, v long, _timestamp timestamp, _change string, _position long"
    table = str(tmp_path / "table")
    rows = [(n, n, START, "upsert", n) for n in range(20)]
    frame = delta_rows.frame(delta_spark, rows, schema)
    there = [row[:3] for row in rows[:9]]
    delta_rows.write(table, there, "k long, v long, _timestamp timestamp")
    own = cloned_session(delta_spark)
    delta_tables.tune(own)
    for name, value in {"wholeStage": "true", "factoryMode": "FALLBACK"}.items():
        own.conf.set(f"spark.sql.codegen.{name}", value)
    metrics = delta_spark._jvm.org.apache.spark.metrics.source
    compiled = getattr(getattr(metrics, "CodegenMetrics$"), "MODULE$").METRIC_COMPILATION_TIME()
    before = compiled.getCount()
    delta_merge.merge_changes(own, frame, delta_tables.sql_name(table), ["k"])
    assert compiled.getCount() < before + 10
    assert delta_rows.read(table).num_rows == 20


@pytest.mark.slow
@pytest.mark.parametrize("chosen", slow_after(1, ["w IS NULL OR w > ''", "w != '1'", None]))
def test_rows_whose_keys_have_nulls_are_merged(
    delta_spark: SparkSession, tmp_path: Path, chosen: str | None
) -> None:
    """An outer join by foreign key: a right row alone has no left key, the others no right one."""
    table = str(tmp_path / "table")
    left = [[("k", "x", "a", False)], [("k", None, None, True)], [("j", "y", "b", False)]]
    right = [[("x", "1")], [("y", "2")], [("x", "3")]]
    schemas = {
        "left": "id string, fk string, v string, gone boolean, at timestamp",
        "right": "rk string, w string, at timestamp",
    }
    sides = {}
    for name, files in (("left", left), ("right", right)):
        for number, rows in enumerate(files):
            moment = START + timedelta(seconds=number)
            path = add_file(tmp_path / name, [(*row, moment) for row in rows], schemas[name])
            os.utime(path, (1_700_000_000 + number,) * 2)
        reader = delta_spark.readStream.schema(schemas[name]).option("maxFilesPerTrigger", 1)
        sides[name] = dt.Table.from_changelog(
            reader.parquet(str(tmp_path / name)),
            key=schemas[name].split()[0],
            timestamp="at",
            deleted="gone" if name == "left" else None,
            name=name,
        )
    joined = sides["left"].join(sides["right"], on="fk", how="outer")
    rows = joined if chosen is None else joined.select("v", "w").where(chosen)
    rows.write_stream(
        dt.to_delta(table), checkpoint=str(tmp_path / "checkpoint"), trigger={"availableNow": True}
    ).awaitTermination()
    stored = delta_rows.read(table).to_pylist()
    assert sorted(((r["id"], r["right_rk"], r["v"], r["w"]) for r in stored), key=repr) == [
        ("j", None, "b", "2"),
        (None, "x", None, "3"),
    ]


@pytest.mark.parametrize("marks", [False, True])
def test_a_delete_of_a_null_key_that_the_table_lacks_does_nothing(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: bool
) -> None:
    """Delta would take the nulls that stand for no row of the table for those of the key."""
    monkeypatch.setattr(delta_upsert, "ROWS_MAX", 0)
    own = cloned_session(delta_spark)
    delta_tables.tune(own)
    path = str(tmp_path / "table")
    table = delta_tables.sql_name(path)
    columns = "k string, v long, _timestamp timestamp"
    schema = StructType.fromDDL(columns + (", _deleted boolean" if marks else ""))
    delta_rows.create(path, schema)
    stored = [("a", 1, "upsert"), ("b", 2, "upsert")]
    for changes in (stored, [(None, None, "delete"), ("a", 3, "upsert")]):
        rows = [(key, value, START, change, at) for at, (key, value, change) in enumerate(changes)]
        frame = delta_rows.frame(delta_spark, rows, f"{columns}, _change string, _position long")
        if marks:
            tombstones.mark_changes(own, frame, table, schema, ["k"], nulls=True)
        else:
            delta_merge.merge_changes(own, frame, table, ["k"], nulls=True)
    found = sorted((row["k"], row["v"]) for row in delta_rows.read(path).to_pylist())
    assert found == [("a", 3), ("b", 2)]


def test_a_session_without_delta_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    changes, session = Mock(), Mock()
    session.conf.get.return_value = "some.other.Extension"
    monkeypatch.setattr(delta, "cloned_session", lambda _: session)
    with pytest.raises(dt.errors.ConfigurationError) as raised:
        dt.to_delta("/tables/users").writer(changes, Mock(), "/checkpoint")
    for part in ("to_delta('/tables/users')", "does not know Delta Lake", "delta-spark_4.2_2.13:"):
        assert part in str(raised.value)
    changes.writeStream.foreachBatch.assert_not_called()


def history(rng: random.Random) -> Iterator[list[Record]]:
    """Upserts and deletes of both tables, a file of each at a time; times are out of order."""
    for number in range(FILES):
        yield [
            Record(
                rng.choice(("a", "b")),
                (f"k{rng.randrange(KEYS // 2)}", rng.randrange(2)),
                rng.randrange(100_000),
                rng.choice((None, 100 * number + at)),
                rng.random() < 0.35,
            )
            for at in range(RECORDS)
        ]


def write(batch: Sequence[Record], number: int, directory: Path) -> None:
    """A file of each table, whose rows share one log."""
    for name in ("a", "b"):
        rows = [(i, record) for i, record in enumerate(batch) if record.table == name]
        columns = {
            "the-key": pa.array([record.key[0] for _, record in rows], pa.string()),
            "n": pa.array([record.key[1] for _, record in rows], pa.int64()),
            name: pa.array([record.value for _, record in rows], pa.int64()),
            "at": pa.array(
                [START + timedelta(milliseconds=record.time) for _, record in rows],
                pa.timestamp("us", "UTC"),
            ),
            "gone": pa.array([record.deleted for _, record in rows], pa.bool_()),
            "position": pa.array([number * RECORDS + i for i, _ in rows], pa.int64()),
        }
        path = directory / name / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1_700_000_000 + number,) * 2)


def run(spark: SparkSession, directory: Path) -> None:
    """Joins what there is, a file of each side per micro-batch, into a table of each engine."""
    a, b = (
        dt.Table.from_changelog(
            spark.readStream.schema(
                f"`the-key` string, n long, `{name}` long, at timestamp, gone boolean, "
                "position long"
            )
            .option("maxFilesPerTrigger", 1)
            .parquet(str(directory / name)),
            key=KEY,
            timestamp="at",
            deleted="gone",
            sequence="position",
            shared_log=True,
            name=name,
        )
        for name in ("a", "b")
    )
    sinks = [dt.to_delta(directory / engine, engine=engine) for engine in ENGINES]
    dt.run(
        {a.join(b, how="outer"): sinks},
        checkpoint=directory / "checkpoint",
        trigger={"availableNow": True},
    ).awaitTermination()


def contents(batches: Sequence[Sequence[Record]]) -> Iterator[Content]:
    """After each batch: the static join of both tables, each row with its last change's time."""
    tables: dict[str, dict[Key, naive.Row]] = {"a": {}, "b": {}}
    times: dict[Key, datetime] = {}
    answers = naive.each_record(OUTER, [record for batch in batches for record in batch])
    for batch in batches:
        for record in batch:
            if record.deleted:
                tables[record.table].pop(record.key, None)
            else:
                tables[record.table][record.key] = (((record.value,),), record.time)
            for change in next(answers):
                times[change.key] = START + timedelta(milliseconds=change.time)
        content = {}
        for key in tables["a"].keys() | tables["b"].keys():
            row = naive.row(OUTER, tables, key)
            assert row is not None
            a, b = (cell and cell[0] for cell in row[0])
            content[key] = (a, b, times[key])
        yield content


def stored(table: Path, version: int) -> Content:
    """What a version of a Delta table holds."""
    rows = delta_rows.read(table, version)
    assert set(rows.column_names) == {*KEY, "a", "b", "_timestamp"}
    content = {
        (row[KEY[0]], row[KEY[1]]): (row["a"], row["b"], row["_timestamp"])
        for row in rows.to_pylist()
    }
    assert len(content) == rows.num_rows
    return content
