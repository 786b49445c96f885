"""Merges by deltalake leave what Spark's leave, and whatever could differ is left to Spark."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import delta_rows
import deltalake
import pyarrow as pa
import pytest
from bench.parameters import slow_after
from parquet_rows import arrow_table
from pyspark.sql import SparkSession

import dovetail as dt
from dovetail.errors import DovetailWarning, TargetError
from dovetail.io.sinks.delta import merge, rewrite
from dovetail.io.sinks.delta.rewrite import Rewriter, reason_for_spark
from dovetail.platform import delta_tables
from dovetail.platform.sessions import cloned_session

NAN = float("nan")
UTC = pa.timestamp("us", "UTC")
VALUES: dict[str, tuple[str, list[Any]]] = {
    "a.b": ("tinyint", [-128, 127, 0]),
    "Short": ("smallint", [-(2**15), 5]),
    "select": ("int", [2**31 - 1, -1]),
    "whole": ("bigint", [-(2**63), 2**63 - 1, 2**53 + 1]),
    "single": ("float", [NAN, -0.0, 1.5]),
    "Double": ("double", [NAN, float("-inf"), -0.0, 0.1]),
    "exact": ("decimal(38,10)", [Decimal("1234567890123456789012345678.0123456789"), Decimal(0)]),
    "text": ("string", ["", 'it\'s "ü" \\ 雪', "x" * 300]),
    "bytes": ("binary", [b"", b"\x00\xff"]),
    "flag": ("boolean", [True, False]),
    "day": ("date", [date(1, 1, 1), date(9999, 12, 31)]),
    "at": (
        "timestamp",
        [
            datetime(1680, 1, 1, tzinfo=timezone.utc),
            datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=timezone.utc),
        ],
    ),
}
KEYS = {
    "k": ("bigint", [1, 2, -3, 2**60, 9, 10]),
    "Key.2": ("string", ["a", "A", "", "a ", "雪"]),
    "on": ("date", [date(1, 1, 1), date(2026, 5, 1)]),
    "price": ("decimal(9,2)", [Decimal("1.10"), Decimal("-2.00")]),
}
CHANGES = "_timestamp timestamp, _change string, _position long"


def columns(of: dict[str, tuple[str, list[Any]]]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, (kind, _) in of.items())


def content(spark: SparkSession, path: str) -> list[str]:
    """The rows as Spark reads them, as texts."""
    return texts(spark.read.format("delta").load(path).toArrow())


def texts(rows: pa.Table) -> list[str]:
    """Rows as texts, in which NaN equals NaN and -0.0 is not 0.0."""
    fields = [f.with_type(UTC) if pa.types.is_timestamp(f.type) else f for f in rows.schema]
    return sorted(map(repr, rows.cast(pa.schema(fields)).to_pylist()))


def engines(path: str) -> list[bool]:
    """Whether deltalake made each commit, the first one first."""
    commits = deltalake.DeltaTable(path).history()
    return ["delta-rs" in str(commit["engineInfo"]) for commit in commits][::-1]


def merged(
    spark: SparkSession,
    path: str,
    rows: Sequence[tuple[Any, ...]],
    schema: str,
    keys: list[str],
    *,
    by_spark: bool = False,
) -> None:
    """Merge changes into a table by deltalake, or by Spark alone."""
    own = cloned_session(spark)
    delta_tables.tune(own)
    merge.merge_changes(
        own,
        delta_rows.frame(spark, rows, schema),
        delta_tables.sql_name(path),
        keys,
        nulls=True,
        rewrite=None if by_spark else Rewriter("to_delta('t')", path, keys).merge,
    )


@pytest.mark.long
@pytest.mark.parametrize("batches", slow_after(1, [2, 5]))
def test_random_changes_leave_what_spark_leaves(
    delta_spark: SparkSession, tmp_path: Path, batches: int
) -> None:
    """Of all types, by keys of several columns. Spark's commit comes between those of deltalake.
    Spark merges all of it at once into a twin.
    """
    rng, path, twin = random.Random(3), str(tmp_path / "a table"), str(tmp_path / "a twin")
    schema = f"{columns(KEYS)}, {columns(VALUES)}"
    for table in (path, twin):
        delta_rows.create(table, f"{schema}, _timestamp timestamp")
    all_changes: list[tuple[Any, ...]] = []
    expected: dict[Any, tuple[Any, ...]] = {}
    for batch in range(batches):
        changes = [
            (
                *(rng.choice(values) for _, values in KEYS.values()),
                *(rng.choice([None, *values]) for _, values in VALUES.values()),
                datetime(2026, 1, 1, 0, 0, batch, tzinfo=timezone.utc),
                rng.choice(["upsert", "upsert", "delete"]),
                position,
            )
            for position in range(1000 * batch, 1000 * batch + 60)
        ]
        merged(delta_spark, path, changes, f"{schema}, {CHANGES}", list(KEYS))
        all_changes += changes
        for change in changes:
            expected.pop(change[: len(KEYS)], None)
            if change[-2] == "upsert":
                expected[change[: len(KEYS)]] = change[:-2]
        if batch == 0:
            delta_spark.sql(f"DELETE FROM delta.`{path}` WHERE k = 2")
            gone = [key for key in expected if key[0] == 2]
            all_changes += [
                (*expected.pop(key), "delete", 90 + number) for number, key in enumerate(gone)
            ]
    stored = content(delta_spark, path)
    assert stored == texts(arrow_table([*expected.values()], f"{schema}, _timestamp timestamp"))
    assert len(stored) > 20
    assert engines(path) == [False, True, False, *([True] * (batches - 1))]
    merged(delta_spark, twin, all_changes, f"{schema}, {CHANGES}", list(KEYS), by_spark=True)
    assert content(delta_spark, twin) == stored
    delta_spark.sql(f"DELETE FROM delta.`{path}` WHERE k = 9")  # with a deletion vector
    left = texts(delta_rows.read(path))
    assert 0 < len(left) < len(stored)
    Rewriter("to_delta('t')", path, list(KEYS)).compact()
    assert content(delta_spark, path) == left


FAR = datetime(9999, 12, 31, tzinfo=timezone.utc)
NEAR = datetime(2026, 1, 1, tzinfo=timezone.utc)
PLAIN = "k bigint, v bigint"
UNFIT = {
    "far times": (PLAIN, "", [(1, 1, FAR)], "times of _timestamp are, or may be, before 1678"),
    "partitions": (PLAIN, "PARTITIONED BY (v)", [(1, 1, NEAR)], "it has partitions"),
    "a check": (PLAIN, "check", [(1, 1, NEAR)], "it has the features checkConstraints"),
    "a feed": (PLAIN, "feed", [(1, 1, NEAR)], "it has"),
    "an array": ("k bigint, v array<int>", "", [(1, [1], NEAR)], None),
    "no zone": ("k bigint, v timestamp_ntz", "", [(1, NEAR.replace(tzinfo=None), NEAR)], None),
}


@pytest.mark.parametrize("what", slow_after(1, [*UNFIT]))
def test_what_could_differ_is_left_to_spark(
    delta_spark: SparkSession, tmp_path: Path, what: str
) -> None:
    schema, option, rows, reason = UNFIT[what]
    path, whole = str(tmp_path / "table"), f"{schema}, _timestamp timestamp"
    delta_spark.sql(
        f"CREATE TABLE delta.`{path}` ({whole}) USING delta "
        f"{option if option.startswith('P') else ''} "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    changes = {
        "check": "ADD CONSTRAINT positive CHECK (v > 0)",
        "feed": "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    }
    if option in changes:
        delta_spark.sql(f"ALTER TABLE delta.`{path}` {changes[option]}")
    frame = delta_rows.frame(delta_spark, rows, whole)
    frame.write.format("delta").mode("append").save(path)
    before = engines(path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", DovetailWarning)
        new = [(2, *rows[0][1:], "upsert", 0), (1, *rows[0][1:], "upsert", 1)]
        merged(delta_spark, path, new, f"{schema}, {CHANGES}", ["k"])
    warned = [str(one.message) for one in said if one.category is DovetailWarning]
    if reason is None:  # Spark merges what is not plain anyway
        assert warned == []
    else:
        assert len(warned) == 1
        assert warned[0].startswith(
            f"to_delta('t'): engine='deltalake' leaves the table to Spark, because {reason}"
        )
    assert engines(path) == [*before, False]
    expected = arrow_table([(key, *rows[0][1:]) for key in (1, 2)], whole)
    stored = delta_spark.read.format("delta").load(path).toArrow()
    assert texts(stored) == texts(expected)
    assert reason_for_spark(deltalake.DeltaTable(path)) is not None


def test_far_times_are_why_spark_keeps_them(delta_spark: SparkSession, tmp_path: Path) -> None:
    """deltalake wraps times that Spark has written, when it copies their rows. If this fails, a
    newer deltalake does not, and the rule may go.
    """
    path = str(tmp_path / "table")
    frame = delta_rows.frame(delta_spark, [(1, FAR), (2, NEAR)], "k long, at timestamp")
    frame.coalesce(1).write.format("delta").save(path)
    rows = pa.table({"k": [2], "at": [NEAR], "_deleted": [False]})
    rewrite._merge(deltalake.DeltaTable(path), rows, ["k"])
    stored = delta_spark.read.format("delta").load(path).collect()
    years = {row["k"]: row["at"].year for row in stored}
    assert years == {1: 1816, 2: 2026}


def test_a_null_in_a_key_is_left_to_spark(delta_spark: SparkSession, tmp_path: Path) -> None:
    path, whole = str(tmp_path / "table"), f"{PLAIN}, _timestamp timestamp"
    delta_rows.write(path, [(None, 1, NEAR), (1, 1, NEAR)], whole)
    rows = [(None, 2, NEAR, "upsert", 0), (1, 2, NEAR, "upsert", 1)]
    merged(delta_spark, path, rows, f"{PLAIN}, {CHANGES}", ["k"])
    assert engines(path) == [True, False]
    expected = [(None, 2, NEAR), (1, 2, NEAR)]
    assert texts(delta_rows.read(path)) == texts(arrow_table(expected, whole))


def test_names_in_another_case_are_those_of_the_table(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    path, whole = str(tmp_path / "table"), "V bigint, K bigint, _timestamp timestamp"
    delta_rows.write(path, [(1, 1, NEAR), (1, 2, NEAR)], whole)
    rows = [(1, 2, NEAR, "upsert", 0), (2, None, NEAR, "delete", 1), (3, 3, NEAR, "upsert", 2)]
    merged(delta_spark, path, rows, f"k bigint, v bigint, {CHANGES}", ["k"])
    assert engines(path) == [True, True]
    expected = [(2, 1, NEAR), (3, 3, NEAR)]
    assert content(delta_spark, path) == texts(arrow_table(expected, whole))


def test_a_faster_writer_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, pa.table({"k": [1], "v": [1], "_timestamp": [NEAR]}))
    opened, late = rewrite._open_table, [1]

    def slow(at: str) -> Any:
        """The table, which another writer changes before it is used."""
        table = opened(at)
        if late[0]:
            late[0] -= 1
            deltalake.DeltaTable(at).update({"v": "v + 10"})
        return table

    monkeypatch.setattr(rewrite, "_open_table", slow)
    rewriter = Rewriter("to_delta('t')", path, ["k"])
    rows = pa.table({"k": [1], "v": [7], "_timestamp": [NEAR], "_deleted": [False]})
    assert rewriter.merge(rows)
    assert delta_rows.read(path).to_pylist() == [{"k": 1, "v": 7, "_timestamp": NEAR}]
    late[0] = 2
    with pytest.raises(TargetError, match="another writer changes the table"):
        rewriter.merge(rows)


def test_files_have_no_bounds_by_which_spark_would_skip_their_rows(tmp_path: Path) -> None:
    """A long decimal would be rounded, and a NaN, the largest float to Spark, be left out."""
    path, long = str(tmp_path / "table"), Decimal("1234567890123456789012345678.0123456789")
    columns = {
        "k": pa.array([1, 2]),
        "a.b": pa.array([long, None], pa.decimal128(38, 10)),
        "cents": pa.array([Decimal("1234567890123.45"), None], pa.decimal128(15, 2)),
        "double": pa.array([NAN, 1.0]),
        "single": pa.array([1.0, NAN], pa.float32()),
    }
    rows = pa.table(columns)
    deltalake.DeltaTable.create(path, rows.schema)
    rewriter = Rewriter("to_delta('t')", path, ["k"])
    for start in (0, 1):  # two files, for compaction
        assert rewriter.merge(rows[start : start + 1].append_column("_deleted", pa.array([False])))
    rewriter.compact()
    files = (tmp_path / "table" / "_delta_log").glob("*.json")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    bounds = [json.loads(line["add"]["stats"]) for line in lines if "add" in line]
    assert len(bounds) == 3
    assert all({*of["minValues"], *of["maxValues"]} <= {"k", "cents"} for of in bounds)
    assert {"k": 1, "cents": 1234567890123.45} in [of["maxValues"] for of in bounds]
    stored = deltalake.DeltaTable(path).to_pyarrow_table().sort_by("k")
    assert stored["a.b"].to_pylist() == [long, None]


def test_a_table_of_another_query_is_left_to_it(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    rows = pa.table({"k": [1]})
    deltalake.DeltaTable.create(
        path, rows.schema, configuration={"dovetail.query": "q"}, raise_if_key_not_exists=False
    )
    rewriter, rows = (
        Rewriter("to_delta('t')", path, ["k"]),
        rows.append_column("_deleted", [[False]]),
    )
    assert rewriter.merge(rows, "q")
    with pytest.raises(TargetError, match="another query has taken the table over"):
        rewriter.merge(rows, "p")
    assert deltalake.DeltaTable(path).version() == 1


def test_the_folder_of_a_table_is_named_as_delta_names_it() -> None:
    for path in ("/a/b c", "/a/b%20c", "/a/b#c", "/a/b?c", "/a/b;c", "/"):
        assert delta_tables.local_path(f"file:{path}") == path
        assert delta_tables.local_path(f"file://{path}") == path
    for other in ("file://host/a", "s3a://bucket/table", "hdfs:/a", "/a"):
        assert delta_tables.local_path(other) is None


def test_it_is_for_current_rows_on_this_machine(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for others in ({"history": True}, {"deletes": "mark"}):
        with pytest.raises(dt.errors.PlanError, match="engine='deltalake' is given with"):
            dt.to_delta("out", engine="deltalake", **others)  # type: ignore[arg-type]
    with pytest.raises(dt.errors.ConfigurationError, match="machine's disks, and s3a://b"):
        rewrite.path_on_disk("t", delta_spark, "s3a://bucket/table")
    assert rewrite.path_on_disk("t", delta_spark, "file:/a/b #c") == "/a/b #c"
    with pytest.raises(dt.errors.ConfigurationError, match="reads '/b%20c' as '/b c'"):
        rewrite.path_on_disk("t", delta_spark, "file:/b%20c")
    monkeypatch.setattr(rewrite, "find_spec", lambda name: None)
    with pytest.raises(dt.errors.ConfigurationError, match="deltalake is not installed"):
        rewrite.path_on_disk("t", delta_spark, "file:/a")
