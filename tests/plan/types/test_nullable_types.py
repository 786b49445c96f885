"""What is computed may be null at every depth: a deleted row has no values."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing
from dovetail.plan.types.arrow import nullable


def nested(random_: random.Random, depth: int) -> Column:
    """An expression of which no part, at any depth, is null."""
    kind = random_.choice(["struct", "array", "map"]) if depth else "leaf"
    if kind == "leaf":
        return random_.choice([F.lit(1), F.coalesce("v", F.lit("?")), F.lit(True)])
    parts = [nested(random_, depth - 1) for _ in range(2)]
    if kind == "struct":
        return F.struct(*(part.alias(name) for part, name in zip(parts, "ab", strict=True)))
    if kind == "array":
        return F.array(F.struct(parts[0].alias("x")))
    return F.create_map(F.struct(F.lit(1).alias("k")), parts[1])


def table(name: str) -> dt.Table:
    return testing.table(name, key="id", schema={"id": pa.int64(), "v": pa.string()})


def test_a_delete_after_each_view(spark: SparkSession) -> None:
    """Through every reader of a table."""
    random_ = random.Random(8)
    a, b = table("a"), table("b")
    computed = {f"s{n}": nested(random_, depth) for n, depth in enumerate((1, 2, 3))}
    plain = {"s": F.struct(F.lit(1).alias("x"), F.struct(F.lit("y").alias("z")).alias("y"))}
    made, comparable = a.with_columns(**computed), a.with_columns(**plain)
    names = testing.table("names", key="word", schema={"word": pa.string(), "n": pa.int64()})
    results: list[Any] = [
        made,
        made.materialize(),
        made.where(F.col("id") > 0),
        made.union(b.with_columns(**computed), source="of"),
        made.to_stream(),
        made.to_changes(column="kind"),
        made.expire(after="1 h"),
        made.join(b, how="left", select=[*computed, "right.v"]),
        b.join(made, how="outer", select=[*computed, F.struct("right.id").alias("whole")]),
        made.join(names, on="v", how="left", select=[*computed, "n"]),
        comparable.key_by("v"),
        comparable.union(b.with_columns(**plain), source="of").key_by("v", duplicates="last"),
        comparable.group_by("v").agg(all=dt.collect_list("s"), some=dt.collect_set("s")),
        made.to_stream().to_table().select("s1"),
    ]
    driver = testing.Driver(*results, spark=spark)
    with driver.batch():
        driver.pipe(a, {"id": 5, "v": "old"}, timestamp=1)
        driver.pipe(a, {"id": 6, "v": "new"}, timestamp=2)
    there = [driver.read(result) for result in results]
    assert all(len({tuple(c.key.values()) for c in changes}) >= 2 for changes in there)
    driver.pipe(a, {"id": 5}, deleted=True, timestamp=3)
    for result in results:
        (*_, last) = driver.read(result)
        gone = last.change == "delete" or not last.values or last.values.get("kind") == "delete"
        assert gone or set(last.values.values()) == {None}


def test_a_changelog_says_so(spark: SparkSession) -> None:
    """Where the last stage computes it, too; and types differ in nothing else."""
    rows = spark.createDataFrame(
        [(1, "a", 1, "u"), (1, None, 2, "d")], "id long, v string, at long, op string"
    ).withColumn("at", F.timestamp_seconds("at"))
    read = dt.Table.from_changelog(
        rows, key="id", timestamp="at", deleted=F.col("op") == "d", name="rows"
    ).select("v")
    struct = F.struct(F.array(F.struct(F.lit(1).alias("x"))).alias("xs"))
    joined = read.join(read.materialize(), select={"s": struct})
    for topology in (read.with_columns(s=struct), joined):
        changes = topology.changelog(buckets=1).orderBy("_position")
        assert changes.schema["s"].dataType == nullable(changes.schema["s"].dataType)
        found = [(row["_change"], row["s"]) for row in changes.collect()]
        assert (found[0][0], found[0][1].xs[0].x) == ("upsert", 1)
        assert found[-1] == ("delete", None)
