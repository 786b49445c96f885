"""Spark's own call for changes as a source: Delta's connector beside its change data feed, and a
stream of the catalog that Spark tests the call with.

Run as a script, this module reads that catalog, whose jar other sessions do not have.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import drivers
import pytest
import small_session
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail.plan.nodes import Source

SETTING = "spark.databricks.delta.changelogV2.enabled"
SETTINGS = {
    **small_session.RECORDING_CHANGES,
    SETTING: "true",
    "spark.databricks.delta.properties.defaults.enableRowTracking": "true",
}
JARS = small_session.CACHE / "jars" / "row-level"
CATALOG = "org.apache.spark.sql.connector.catalog.InMemoryChangelogCatalog"


@pytest.fixture(scope="module")
def delta_spark(spark: SparkSession) -> Iterator[SparkSession]:
    yield from small_session.with_delta(spark, SETTINGS)


def changes(table: dt.Table) -> list[tuple[Any, ...]]:
    """The changes by key, each key's in order."""
    rows = sorted(table.changelog().collect(), key=lambda row: (row["id"], row["_position"]))
    return [(row["id"], row["_change"], row["v"], row["_timestamp"]) for row in rows]


@pytest.mark.long
def test_deltas_changes_are_those_of_its_feed(delta_spark: SparkSession, tmp_path: Path) -> None:
    name = f"t{uuid4().hex}"
    delta_spark.sql(f"CREATE TABLE {name} (id LONG, v STRING) USING delta LOCATION '{tmp_path}/t'")
    for statement in (
        "INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')",
        "UPDATE {t} SET v = 'B' WHERE id = 2",
        "DELETE FROM {t} WHERE id = 1",
        "INSERT OVERWRITE {t} VALUES (2, 'B'), (3, 'C'), (5, 'e')",
        "UPDATE {t} SET id = 6 WHERE id = 5",
        "OPTIMIZE {t}",
    ):
        delta_spark.sql(statement.format(t=name))

    def read(**arguments: Any) -> dt.Table:
        return dt.Table.from_changes(delta_spark, name, key="id", version=1, **arguments)

    feed = dt.Table.from_delta(delta_spark, table=name, key="id", version=1, streaming=False)
    expected = changes(feed)
    assert [change[:3] for change in expected] == [
        (1, "upsert", "a"),
        (1, "delete", None),
        (2, "upsert", "b"),
        (2, "upsert", "B"),
        (3, "upsert", "c"),
        (3, "upsert", "C"),
        (4, "upsert", "d"),
        (4, "delete", None),
        (5, "upsert", "e"),
        (5, "delete", None),
        (6, "upsert", "e"),
    ]
    for options in ({}, {"computeUpdates": "true"}, {"deduplicationMode": "none"}):
        assert changes(read(streaming=False, options=options)) == expected
    timed = read(streaming=False, timestamp=F.timestamp_seconds("id"))
    assert isinstance(timed.plan, Source)
    assert timed.plan.time_text == f"timestamp_seconds(spark_catalog.default.{name}.id)"

    with pytest.raises(StreamingQueryException, match="Micro-batch scan is not supported"):
        read().write_stream(
            dt.to_parquet(tmp_path / "out"),
            checkpoint=tmp_path / "c",
            trigger={"availableNow": True},
        ).awaitTermination()
    delta_spark.conf.set(SETTING, "false")
    try:
        with pytest.raises(dt.errors.ConfigurationError, match="Change Data Capture"):
            read(streaming=False)
    finally:
        delta_spark.conf.set(SETTING, "true")
    delta_spark.sql(f"DROP TABLE {name}")


@pytest.mark.slow
def test_a_stream_of_changes_goes_on_after_a_restart(tmp_path: Path) -> None:
    if not [*JARS.glob("*.jar")]:
        pytest.skip("Spark's own test catalogs are not there: tools/jars/fetch row-level")
    assert drivers.reported(__file__, tmp_path) == [
        [["1", "upsert", "a"], ["2", "upsert", "b"]],
        [["1", "upsert", "A"], ["2", "delete", "None"]],
    ]


def main(folder: Path) -> None:
    """Two starts of one query over the catalog in memory, with changes before each."""
    spark = (
        small_session.builder()
        .config("spark.jars", ",".join(map(str, JARS.glob("*.jar"))))
        .config("spark.sql.catalog.mem", CATALOG)
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sql("CREATE TABLE mem.ns.t (id LONG, v STRING)")
    jvm: Any = spark._jvm
    catalog = spark._jsparkSession.sessionState().catalogManager().catalog("mem")  # type: ignore[attr-defined]
    space = spark.sparkContext._gateway.new_array(jvm.String, 1)  # type: ignore[union-attr]
    space[0] = "ns"
    ident = jvm.org.apache.spark.sql.connector.catalog.Identifier.of(space, "t")

    def add(*rows: tuple[int, str, str, int]) -> None:
        schema = "id long, v string, _change_type string, _commit_version long"
        frame = spark.createDataFrame(rows, schema).coalesce(1)
        frame = frame.withColumn("_commit_timestamp", F.timestamp_seconds("_commit_version"))
        made = jvm.java.util.ArrayList()
        plan = frame._jdf.queryExecution().executedPlan()  # type: ignore[attr-defined]
        for row in plan.executeCollect():
            made.add(row)
        catalog.addChangeRows(
            ident, jvm.scala.jdk.javaapi.CollectionConverters.asScala(made).toSeq()
        )

    found: list[list[list[str]]] = []
    seen = 0
    for rows in (
        [(1, "a", "insert", 1), (2, "b", "insert", 1)],
        [
            (1, "a", "update_preimage", 2),
            (1, "A", "update_postimage", 2),
            (2, "b", "delete", 2),
        ],
    ):
        add(*rows)
        dt.Table.from_changes(spark, "mem.ns.t", key="id", version=0).write_stream(
            dt.to_parquet(folder / "out"),
            checkpoint=folder / "checkpoint",
            trigger={"availableNow": True},
            buckets=1,
        ).awaitTermination()
        written = spark.read.parquet(str(folder / "out")).orderBy("_position", "id").collect()
        found.append(
            sorted([str(row["id"]), row["_change"], str(row["v"])] for row in written[seen:])
        )
        seen = len(written)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
