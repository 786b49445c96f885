"""Every type as value and as key: exact through stored state, whatever the session's time zone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt

# Per type: values that other representations lose. A null is added to each.
FLAT = {
    "byte": ["-128y", "127y"],
    "short": ["-32768s", "32767s"],
    "int": ["cast(-2147483648 as int)", "2147483647"],
    "long": ["cast(-9223372036854775808 as long)", "9007199254740993L"],
    "decimal(38,18)": ["-99999999999999999999.999999999999999999", "0.000000000000000001"],
    "decimal(10,2)": ["-12345678.90", "0.10"],
    "float": ["'NaN'", "'-0.0'", "'-Infinity'", "'3.4028235E38'", "'1.4E-45'", "'0.1'"],
    "double": ["'NaN'", "'-0.0'", "'Infinity'", "'1.7976931348623157E308'", "'4.9E-324'", "'0.1'"],
    "boolean": ["true", "false"],
    "string": ["''", "'äß\\u0301 🦊 \\u0000 \\n'"],
    "binary": ["X''", "X'00ff80'"],
    "date": ["'0001-01-01'", "'1969-12-31'", "'9999-12-31'"],
    "timestamp": [
        "'0001-01-03 00:00:00.000001Z'",
        "'1969-12-31 23:59:59.999999Z'",
        "'2024-03-10 07:30:00.000001Z'",
        "'2024-11-03 05:30:00Z'",
        "'2024-11-03 06:30:00Z'",
    ],
}
NESTED = {
    "timestamp_ntz": ["'1969-12-31 23:59:59.999999'", "'2024-03-10 02:30:00'"],
    "interval day to second": ["interval '-1 02:03:04.000005' day to second"],
    "struct<a: long, s: struct<at: timestamp, b: binary>>": [
        "struct(9007199254740993L, struct(timestamp'1969-12-31 23:59:59.999999Z', X'00'))",
        "struct(null, struct(null, X''))",
        "struct(1L, null)",
    ],
    "array<double>": ["array(double('NaN'), double('-0.0'), null)", "array()"],
    "array<timestamp>": ["array(timestamp'1969-12-31 23:59:59.999999Z', null)"],
    "map<string, int>": ["map('', 1, 'a', null)", "map()"],
    "map<timestamp, decimal(38,18)>": [
        "map(timestamp'1960-01-01 00:00:00.000001Z', 0.000000000000000001bd)"
    ],
    "map<struct<a: int, b: date>, array<string>>": [
        "map(struct(1, date'1960-02-29'), array('', null), struct(2, null), null)"
    ],
    "array<struct<n: int, m: map<long, struct<wall: timestamp_ntz, d: decimal(10,2)>>>>": [
        "array(struct(1, map(9007199254740993L, struct(timestamp_ntz'1969-12-31', -0.01bd))))",
        "array(null, struct(2, null), struct(null, map(-1L, null)))",
    ],
}
ALL = {"flat": FLAT, "nested": FLAT | NESTED}

# Per type of key: equal pairs first, then one value each that only one side has.
KEYS = {
    "string": (["''", "'a '", "'ä'"], ["'a'", "'A '"]),
    "byte": (["-128"], ["1", "2"]),
    "int": (["-2147483648", "0"], ["1", "2"]),
    "long": (["9007199254740993", "-9223372036854775808"], ["9007199254740992", "0"]),
    "decimal(38,18)": (["0.000000000000000001", "-1.5"], ["0.000000000000000002", "1.5"]),
    "decimal(10,2)": (["0.10"], ["0.11", "0.01"]),
    "date": (["'1969-12-31'", "'2024-02-29'"], ["'1970-01-01'", "'1970-01-02'"]),
    "timestamp": (
        ["'1969-12-31 23:59:59.999999Z'", "'2024-11-03 05:30:00Z'"],
        ["'2024-11-03 06:30:00Z'", "'1970-01-01 00:00:00Z'"],
    ),
    "timestamp_ntz": (["'2024-03-10 02:30:00.000001'"], ["'2024-03-10 02:30:00'", "'1960-01-01'"]),
    "interval day to second": (
        ["interval '-1 02:03:04.000005' day to second"],
        ["interval '1 02:03:04.000005' day to second", "interval '0' day"],
    ),
    "binary": (["X''", "X'00'"], ["X'0000'", "X'ff'"]),
    "boolean": (["true"], ["false"]),
    "float": (["'NaN'", "'0.0'", "'Infinity'"], ["'0.1'", "'1.4E-45'"]),
    "double": (["'NaN'", "'0.0'", "'-Infinity'"], ["'0.1'", "'4.9E-324'"]),
    "struct<a: int, d: double>": (
        ["struct(1, 0D)", "struct(null, double('NaN'))", "struct(1, null)"],
        ["struct(2, 0D)", "struct(null, null)"],
    ),
    "array<double>": (
        ["array(0D, 1D)", "array()", "array(null, double('NaN'))"],
        ["array(0D)", "array(1D, 0D)"],
    ),
    "array<struct<b: binary>>": (["array(struct(X'00'), null)"], ["array(null)", "array()"]),
}


@pytest.fixture(autouse=True)
def _zone(spark: SparkSession) -> Iterator[None]:
    """Not UTC, and with hours that summer time skips and repeats."""
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ALL)
def test_values_are_exact_though_they_were_stored(
    spark: SparkSession, tmp_path: Path, kinds: str
) -> None:
    columns = {f"{kind[:5]}_{i}": (kind, v) for i, (kind, v) in enumerate(ALL[kinds].items())}
    size = 1 + max(len(values) for _, values in columns.values())
    rows = spark.sql(" union all ".join(_value_row(columns, i) for i in range(size))).cache()
    other = rows.select("id", *(F.col(f"`{c}`").alias(f"r_{c}") for c in columns), "t")
    inputs = {"left": [rows, rows.limit(0)], "right": [other.limit(0), other]}
    left, right = (
        dt.Table.from_changelog(
            _Input(spark, tmp_path / name, batches).frame, key="id", timestamp="t", name=name
        )
        for name, batches in inputs.items()
    )
    batches = _run(left.join(right).changelog(buckets=2), tmp_path)

    assert [batch.num_rows for batch in batches] == [0, size]
    values = [*columns, *(f"r_{c}" for c in columns)]
    expected = rows.join(other.drop("t"), "id").select("id", *values)
    got = batches[1].select(["id", *values])
    assert _exact(got) == _exact(expected.toArrow())
    assert got.schema.types == expected.toArrow().schema.types


@pytest.mark.parametrize("kinds", ALL)
def test_values_are_exact_where_state_is_read(
    spark: SparkSession, tmp_path: Path, kinds: str
) -> None:
    columns = {f"c_{i}": (kind, v) for i, (kind, v) in enumerate(ALL[kinds].items())}
    size = 1 + max(len(values) for _, values in columns.values())
    rows = spark.sql(" union all ".join(_value_row(columns, i) for i in range(size))).cache()
    table = dt.Table.from_changelog(
        _Input(spark, tmp_path / "in", [rows]).frame, key="id", timestamp="t", name="all"
    )
    checkpoint, sink = tmp_path / "checkpoint", dt.to_foreach_batch(lambda rows, _: rows.count())
    query = table.materialize().write_stream(
        sink, checkpoint=checkpoint, trigger={"availableNow": True}
    )
    query.awaitTermination()
    got = dt.checkpoints.read_state(spark, checkpoint, "all").select("id", *columns)
    expected = rows.select("id", *columns)
    assert [f.dataType for f in got.schema] == [f.dataType for f in expected.schema]
    assert _exact(got.toArrow()) == _exact(expected.toArrow())


@pytest.mark.slow
def test_a_variant_may_be_null(spark: SparkSession) -> None:
    """In a row, in a row that is missing and in a deleted one."""
    values = "(1L, parse_json('[1]'), 0), (2L, null, 0), (1L, null, 1)"
    rows = spark.sql(f"SELECT * FROM VALUES {values} AS (id, any, gone)").coalesce(1)
    rows = rows.withColumn("t", F.timestamp_seconds(F.col("gone")))
    left, right = (
        dt.Table.from_changelog(
            rows.where(taken).withColumnRenamed("any", name),
            key="id",
            timestamp="t",
            deleted=F.col("gone") == 1,
            name=name,
        ).drop("gone")
        for name, taken in (("left", "true"), ("right", "id = 2"))
    )
    changes = left.join(right, how="left").changelog(buckets=1)
    got = changes.select("id", *(F.col(n).cast("string") for n in ("left", "right")), "_change")
    assert [tuple(row) for row in got.collect()] == [
        (1, "[1]", None, "upsert"),
        (2, None, None, "upsert"),
        (2, None, None, "upsert"),
        (1, None, None, "delete"),
    ]


def _value_row(columns: dict[str, tuple[str, list[str]]], number: int) -> str:
    """Row ``number``: each column's value of that number, or null when it has no more."""
    cells = (
        f"cast({values[number] if number < len(values) else 'null'} as {kind}) as `{name}`"
        for name, (kind, values) in columns.items()
    )
    return f"select {number}L as id, {', '.join(cells)}, timestamp'2024-01-01 00:00:00' as t"


def test_keys_are_equal_where_sparks_own_join_says_so(spark: SparkSession, tmp_path: Path) -> None:
    # One composite key has all the types; each row differs from the first in one of them.
    names = [f"k{number}" for number in range(len(KEYS))]
    left_rows, right_rows = (
        spark.sql(" union all ".join(_key_rows(side))).toDF("n", *names, "t").cache()
        for side in (0, 1)
    )
    left, right = (
        dt.Table.from_changelog(
            _Input(spark, tmp_path / name, batches).frame, key=names, timestamp="t", name=name
        )
        for name, batches in {
            "left": [left_rows, left_rows.limit(0)],
            "right": [right_rows.limit(0), right_rows],
        }.items()
    )
    joined = left.join(right, select={"l": "left.n", "r": "right.n"})
    batches = _run(joined.changelog(buckets=2).select(*names, "l", "r"), tmp_path)

    both = left_rows.alias("l").join(right_rows.alias("r"), names)
    expected = both.select(*names, F.col("l.n").alias("l"), F.col("r.n").alias("r")).toArrow()
    assert expected.num_rows == 1 + sum(len(equal) - 1 for equal, _ in KEYS.values())
    assert [batch.num_rows for batch in batches] == [0, expected.num_rows]
    assert _exact(batches[1]) == _exact(expected)


def _key_rows(side: int) -> Iterator[str]:
    """What a side holds: all the equal keys and every other one of those that differ.

    Zeros are negative on the right.
    """
    first = {kind: equal[0] for kind, (equal, _) in KEYS.items()}
    keys = [first] + [
        first | {kind: key}
        for kind, (equal, only) in KEYS.items()
        for key in (*equal[1:], *only[side::2])
    ]
    for number, key in enumerate(keys):
        cells = ", ".join(f"cast({text} as {kind})" for kind, text in key.items())
        if side == 1:
            cells = cells.replace("'0.0'", "'-0.0'").replace("0D", "double('-0.0')")
        yield f"select {number}, {cells}, timestamp'2024-01-01 00:00:00'"


class _Input:
    """A streaming frame that reads one of ``batches`` in each micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path, batches: list[DataFrame]) -> None:
        folder.mkdir()
        for number, rows in enumerate(batches):
            written = folder.with_name(f"{folder.name}-{number}")
            rows.coalesce(1).write.parquet(str(written))
            (part,) = written.glob("*.parquet")
            os.utime(part.rename(folder / f"{number}.parquet"), (number, number))
        reader = spark.readStream.schema(batches[0].schema).option("maxFilesPerTrigger", 1)
        self.frame = reader.parquet(str(folder))


def _run(changes: DataFrame, folder: Path) -> list[pa.Table]:
    """What each micro-batch emits."""
    batches = []
    query = (
        changes.writeStream.foreachBatch(lambda batch, _: batches.append(batch.toArrow()))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches


def _exact(table: pa.Table) -> list[str]:
    """The rows as text in which NaN equals NaN and -0.0 differs from 0.0."""
    return sorted(map(repr, table.to_pylist()))
