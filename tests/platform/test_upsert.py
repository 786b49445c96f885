"""A few rows of a Delta table are replaced by their keys, whatever these are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.parameters import slow_after
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StringType, StructField, StructType
from small_session import with_delta

from dovetail.base.columns import DELETED
from dovetail.errors import DataError
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.sessions import cloned_session

UTC = timezone.utc
KEYS: dict[str, list[Any]] = {
    "string": ["a", "A", "", " ", "it's", 'a"b', "\\", "\\'", "\\u0041", "%_", "${x}", "a\nb", "é"],
    "bigint": [0, -1, 2**63 - 1, -(2**63)],
    "int": [0, -(2**31)],
    "smallint": [0, -(2**15)],
    "tinyint": [0, -(2**7)],
    "boolean": [True, False],
    "decimal(5,2)": [Decimal("1.00"), Decimal("-1.10"), Decimal("999.99")],
    "date": [date(1, 1, 1), date(2026, 1, 1), date(9999, 12, 31)],
    "timestamp": [datetime(1600, 1, 1, 0, 0, 0, 1, UTC), datetime(2026, 7, 1, 12, tzinfo=UTC)],
    "binary": [b"", b"'", b"\x00\xff"],
}
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    settings = {"spark.databricks.delta.snapshotPartitions": "1"}
    for session in with_delta(spark, settings):
        own = cloned_session(session)
        delta_tables.tune(own)
        own.conf.set("spark.sql.session.timeZone", "America/New_York")
        yield own


def made(session: SparkSession, table: str, columns: str, **properties: str) -> StructType:
    empty = session.createDataFrame([], columns)
    delta_tables.create(empty, table, properties, replace=False)
    return empty.schema


def put(session: SparkSession, table: str, rows: list[Row], schema: StructType) -> None:
    """``rows``: all columns, ``v`` the last, and whether the key is deleted."""
    keys = [name for name in schema.names if name != "v"]
    schema = StructType([*schema, StructField(DELETED, BooleanType())])
    changes = session.createDataFrame(rows, schema).toArrow()
    delta_upsert.upsert(session, table, changes, schema, keys, nulls=True)


def stored(rows: DataFrame) -> list[Row]:
    return sorted(map(tuple, rows.collect()), key=repr)


@pytest.mark.parametrize("type_", slow_after(2, KEYS))
def test_a_condition_finds_the_rows_of_its_keys(own_session: SparkSession, type_: str) -> None:
    """Of values of any type, one at a time, and all but one."""
    values = [*KEYS[type_], None]
    frame = own_session.createDataFrame(
        [(value, number) for number, value in enumerate(values)], f"`k'` {type_}, n int"
    ).coalesce(1)
    column, kind = frame.toArrow()["k'"], frame.schema["k'"].dataType
    numbers = range(len(values))
    sought = [{n} for n in numbers] + [{*numbers} - {n} for n in numbers]
    conditions = [
        F.expr(delta_upsert.having_keys({"k'": (column.take([*those]), kind)})) for those in sought
    ]
    rows = frame.select("n", F.array(*conditions).alias("found")).collect()
    assert [{row["n"] for row in rows if row["found"][n]} for n in range(len(sought))] == sought


def test_a_text_that_is_no_utf8_is_no_key() -> None:
    """As Spark casts it of bytes."""
    octets = pa.array([b"a", None, b"\xff"])
    texts = pa.Array.from_buffers(pa.string(), len(octets), octets.buffers())
    given = {"a": (pa.chunked_array([texts[:2]]), StringType())}
    assert delta_upsert.having_keys(given) == "((`a` IN ('a')) OR (`a` IS NULL))"
    with pytest.raises(DataError, match=r"key column 'a' has a text that is no UTF-8\. Make a tex"):
        delta_upsert.having_keys({"a": (pa.chunked_array([texts]), StringType())})


def test_rows_are_replaced_by_their_keys(own_session: SparkSession, tmp_path: Path) -> None:
    """Of each three keys one goes, one is replaced, one stays; a null equals a null."""
    table = delta_tables.sql_name(str(tmp_path / "table"))
    pairs = [(key, other) for key in [*KEYS["string"], None] for other in (7, None)]
    schema = made(own_session, table, "k string, `o'ther` bigint, v int")
    put(own_session, table, [(*pair, 1, False) for pair in pairs], schema)
    assert stored(delta_tables.read(own_session, table)) == sorted(
        [(*p, 1) for p in pairs], key=repr
    )
    changes = [(*pair, 2, n % 3 == 0) for n, pair in enumerate(pairs) if n % 3 < 2]
    put(own_session, table, changes, schema)
    left = [(*pair, 2 if n % 3 == 1 else 1) for n, pair in enumerate(pairs) if n % 3]
    assert stored(delta_tables.read(own_session, table)) == sorted(left, key=repr)


def test_a_row_that_has_only_nulls_is_deleted_by_a_merge(
    own_session: SparkSession, tmp_path: Path
) -> None:
    """As an aggregate over snapshots may have one, of the null group."""
    table = delta_tables.sql_name(str(tmp_path / "table"))
    schema = made(own_session, table, "k int, v int", **{delta_tables.FEED: "true"})
    put(own_session, table, [(None, None, False), (1, 1, False)], schema)
    put(own_session, table, [(None, None, True), (1, 2, False)], schema)
    assert stored(delta_tables.read(own_session, table)) == [(1, 2)]


@pytest.mark.slow
def test_a_table_with_a_change_feed_tells_updates(
    own_session: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    table = delta_tables.sql_name(path)
    feeds = {"delta.enableChangeDataFeed": "true"}
    schema = made(own_session, table, "k int, v int", **feeds)
    for rows in ([(1, 1, False), (2, 2, False)], [(1, 5, False), (2, 2, True)]):
        put(own_session, table, rows, schema)
    feed = own_session.read.format("delta").option("readChangeFeed", "true")
    changes = feed.option("startingVersion", 2).load(path).select("k", "v", "_change_type")
    assert sorted(map(tuple, changes.collect())) == [
        (1, 1, "update_preimage"),
        (1, 5, "update_postimage"),
        (2, 2, "delete"),
    ]


@pytest.mark.slow
def test_rows_that_go_are_marked(own_session: SparkSession, tmp_path: Path) -> None:
    """No file is written anew for them; where all rows of files go, the files go."""
    table = delta_tables.sql_name(str(tmp_path / "table"))
    schema = made(own_session, table, "k int, v int")
    for first in (0, 100, 200):
        rows = [(k, 0, False) for k in range(first, first + 100)]
        put(own_session, table, rows, schema)
    before = set(delta_tables.read(own_session, table).inputFiles())
    put(own_session, table, [(150, 1, False)], schema)
    after = set(delta_tables.read(own_session, table).inputFiles())
    assert before < after
    assert len(after) == 4
    put(own_session, table, [(n, 1, True) for n in range(300)], schema)
    assert delta_tables.read(own_session, table).isEmpty()


def test_files_are_skipped_by_keys_of_any_name(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, 2), (3, 4)], "`a.b` int, `c``d` int")
    found = delta_tables.file_skipping_conditions(rows, {name: name for name in rows.columns})
    assert rows.where(found[0] & found[1]).count() == 2
