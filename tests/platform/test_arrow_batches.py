"""Arrow batches for Python are bounded, whatever rows are large, and lose and change no row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from small_session import applied

import dovetail as dt
from dovetail.platform.arrow_batches import (
    ARROW_SETTINGS,
    ROWS_MAX,
    SHORT,
    UNIT_BYTES,
    map_in_arrow,
)

LARGE = {
    "a text": "repeat('ä', {n} div 2)",
    "a binary": "cast(repeat('b', {n}) as binary)",
    "a struct": "named_struct('x.y', 1, 't', repeat('c', {n}))",
    "an array": "array(null, repeat('d', {n} div 2), repeat('e', {n} div 2))",
    "an array of numbers": "sequence(1L, greatest(1, {n} div 8))",
    "an array of structs": "array(named_struct('l', array(repeat('f', {n}))), null)",
    "arrays in arrays": "array(array(array('i', null), array(repeat('j', {n}))), null)",
    "a map": "map(repeat('g', {n}), array(1), 'h', null)",
    "no large value": "id",
}
SMALL = "cast(null as string)"


def rows_of(spark: SparkSession) -> DataFrame:
    """In one task, 4,000 rows; each 50th has 400,000 bytes in one of the columns, in turn."""
    columns = [
        f"if(id % 50 = 0 and id div 50 % {len(LARGE)} = {number}, "
        f"{value.format(n=400_000)}, null) as c{number}"
        for number, value in enumerate(LARGE.values())
    ]
    small = [f"{SMALL} as {name}" for name in ("element", "total")]
    return spark.range(0, 4000, 1, 1).selectExpr("id", *columns, *small)


def test_batches_are_bounded_and_rows_stay(spark: SparkSession) -> None:
    frame = rows_of(spark)
    names = frame.columns

    def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each batch: its columns, ids, bytes, and the sizes of its texts."""
        for batch in batches:
            assert batch.schema.names == names
            ids = batch.column("id").to_pylist()
            large = [ids[row] for c in batch.columns[1:] for row, v in enumerate(c) if v.is_valid]
            yield pa.record_batch(
                {"ids": [ids], "large": [large], "bytes": [batch.nbytes]},
                schema=pa.schema(
                    {"ids": pa.list_(pa.int64()), "large": pa.list_(pa.int64()), "bytes": "int64"}
                ),
            )

    with applied(spark, ARROW_SETTINGS):
        schema = "ids array<long>, large array<long>, bytes long"
        batches = map_in_arrow(frame, measure, schema).collect()
    assert [id_ for batch in batches for id_ in batch.ids] == [*range(4000)]
    assert sorted(id_ for batch in batches for id_ in batch.large) == [*range(0, 4000, 50)]
    # 70 rows are of six units more, so one batch has at most a thousand of 4,420 rows.
    assert len(batches) == 5
    assert all(batch.bytes <= ROWS_MAX * UNIT_BYTES + 500_000 for batch in batches)
    assert max(batch.bytes for batch in batches) < 12_000_000


def test_rows_of_one_size_have_no_padding(spark: SparkSession) -> None:
    numbers = spark.range(0, 2500, 1, 1).selectExpr("id", "now() as t", "id % 2 = 0 as even")
    frame = numbers.select("*", F.lit("a path").alias("path", metadata=SHORT))

    def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the count of rows of each batch."""
        for batch in batches:
            yield pa.record_batch({"rows": [len(batch)]})

    with applied(spark, ARROW_SETTINGS):
        mapped = map_in_arrow(frame, measure, "rows long")
        assert [row.rows for row in mapped.collect()] == [1000, 1000, 500]
    assert not pads(mapped)
    assert pads(map_in_arrow(numbers.select("*", F.lit("a text")), measure, "rows long"))


def test_files_of_numbers_have_no_padding(spark: SparkSession, tmp_path: Path) -> None:
    """The path of the file that orders their rows is no text that may be large."""
    rows = spark.range(5).selectExpr("id", "now() as at", "id as v", "string(id) as w")
    rows.write.mode("append").parquet(str(tmp_path))
    for columns, padded in (["id", "at", "v"], False), (["id", "at", "w"], True):
        frame = spark.read.schema(rows.select(*columns).schema).parquet(str(tmp_path))
        table = dt.Table.from_changelog(frame, key="id", timestamp="at", name="rows")
        changes = table.changelog()
        assert changes.count() == 5
        assert pads(changes) == padded


def pads(frame: DataFrame) -> bool:
    """Return whether rows of ``frame`` get padding."""
    return "Generate explode" in frame._jdf.queryExecution().toString()
