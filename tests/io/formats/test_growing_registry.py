"""A registry's subject gets fields while queries live: a checkpoint keeps the columns that it began
with, until the user asks for more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parquet_rows import rows_of
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from test_avro import avro_spark, encoded, records

import dovetail as dt
from dovetail.plan.begun_columns import without_new_columns
from dovetail.plan.fingerprint import describe, fingerprint

__all__ = ["avro_spark"]

FORMER: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "amount", "type": ["null", "long"], "default": None},
    {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line",
     "fields": [{"name": "n", "type": "int"}]}}, "default": []},
]  # fmt: skip
LINE = {"type": "record", "name": "Line", "fields": [
    {"name": "text", "type": ["null", "string"], "default": None}, {"name": "n", "type": "int"},
]}  # fmt: skip
EMAIL = {"name": "email", "type": ["null", "string"], "default": None}
LATTER = [EMAIL, FORMER[0], FORMER[1], {**FORMER[2], "type": {"type": "array", "items": LINE}}]
NEW = ["t.email", "t.lines"]

Made = Callable[[dt.Table, dt.Table], Any]
UNCHANGED: dict[str, Made] = {
    "a table": lambda t, o: t,
    "views": lambda t, o: t.where(F.col("amount") > 1).with_columns(x=F.col("amount") + 1),
    "rename": lambda t, o: t.rename({"amount": "sum"}).drop("lines"),
    "select": lambda t, o: t.select("amount", y=F.col("lines")[0]).materialize(),
    "a join": lambda t, o: t.join(o, how="left").materialize(),
    "a computed join": lambda t, o: t.join(
        o, how="left", select={"both": F.col("left.amount") + F.col("right.x"), "lines": "lines"}
    ).join(o.rename({"x": "x2"}), how="inner"),
    "by foreign key": lambda t, o: t.join(o, on="amount", how="left").to_stream(),
    "an aggregate": lambda t, o: t.group_by("amount").agg(n=dt.count()),
    "a stream": lambda t, o: t.to_stream().explode("lines").key_by("amount"),
    "windows": lambda t, o: t.to_stream().group_by("id").window(
        dt.windows.tumbling("1 hour")
    ).agg(n=dt.sum("amount")).to_table(),
    "changes": lambda t, o: t.to_changes().deduplicate(within="1 hour"),
    "expire": lambda t, o: t.expire(after="1 hour"),
}  # fmt: skip
ASKED: dict[str, Made] = {
    "select": lambda t, o: t.select("amount", "email").materialize(),
    "an expression": lambda t, o: t.with_columns(x=F.upper("email")).materialize(),
    "a condition": lambda t, o: t.where("email IS NULL").materialize(),
    "a join": lambda t, o: t.join(o, how="left", select=["email"]),
    "an aggregate": lambda t, o: t.group_by("email").agg(n=dt.count()),
}


@pytest.fixture(scope="module")
def tables(
    avro_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dt.Table, dt.Table, dt.Table]:
    """The table as it was and as it is, and another one."""
    path = tmp_path_factory.mktemp("registry")
    schemas = [{"type": "record", "name": "Row", "fields": fields} for fields in (FORMER, LATTER)]
    made = []
    for number in (1, 2):
        listed = [
            {"subject": "s", "version": n, "id": n, "schema": json.dumps(schema)}
            for n, schema in enumerate(schemas[:number], 1)
        ]
        (path / f"{number}.json").write_text(json.dumps(listed))
        avro = dt.formats.avro(dt.formats.registry(path / f"{number}.json"), subject="s")
        row = {"id": 1, "amount": 5, "lines": [{"n": 7, "text": "a"}], "email": "e"}
        frame = records(avro_spark, [encoded(schemas[number - 1], row, number)])
        made.append(dt.Table.from_records(frame, key_columns="id", value=avro, name="t"))
    other = dt.Table.from_changelog(
        avro_spark.createDataFrame([], "id long, x long, at timestamp"),
        key="id", timestamp="at", name="o",
    )  # fmt: skip
    return made[0], made[1], other


@pytest.mark.parametrize("name", UNCHANGED)
def test_an_unchanged_program_is_what_its_checkpoint_began_with(
    tables: tuple[dt.Table, dt.Table, dt.Table], name: str
) -> None:
    former, latter, other = tables
    then, now = (UNCHANGED[name](table, other).plan for table in (former, latter))
    made, new = without_new_columns([now], fingerprint(then), describe(then))
    assert fingerprint(made[now]) == fingerprint(then)
    assert made[now].row == then.row
    assert new == NEW


@pytest.mark.parametrize("name", ASKED)
def test_a_program_that_asks_for_what_is_new_is_refused(
    tables: tuple[dt.Table, dt.Table, dt.Table], name: str
) -> None:
    former, latter, other = tables
    then = former.materialize().plan
    now = ASKED[name](latter, other).plan
    assert without_new_columns([now], fingerprint(then), describe(then)) == ({now: now}, [])


def test_narrowed_rows_have_the_values_of_the_columns_that_are_left(
    tables: tuple[dt.Table, dt.Table, dt.Table],
) -> None:
    former, latter, _ = tables
    then, now = former.plan, latter.plan
    made, _ = without_new_columns([now], fingerprint(then), describe(then))
    (row,) = dt.Table(made[now]).changelog().collect()
    assert row.asDict(recursive=True)["lines"] == [{"n": 7}]
    assert "email" not in row


def test_a_query_goes_on_with_the_columns_that_it_began_with(
    avro_spark: SparkSession, tmp_path: Path
) -> None:
    """It stops at a record of a newer schema, and reads it once it is started again."""
    schemas = [{"type": "record", "name": "Row", "fields": fields} for fields in (FORMER, LATTER)]

    def put(number: int) -> Any:
        row = {"id": number, "amount": number, "lines": [{"n": 1, "text": "a"}], "email": "e"}
        frame = records(avro_spark, [encoded(schemas[number - 1], row, number)])
        frame.write.mode("append").parquet(str(tmp_path / "topic"))
        return frame.schema

    def run(versions: int) -> None:
        listed = [
            {"subject": "s", "version": n, "id": n, "schema": json.dumps(schema)}
            for n, schema in enumerate(schemas[:versions], 1)
        ]
        (tmp_path / "schemas.json").write_text(json.dumps(listed))
        avro = dt.formats.avro(dt.formats.registry(tmp_path / "schemas.json"), subject="s")
        frame = avro_spark.readStream.schema(columns).parquet(str(tmp_path / "topic"))
        table = dt.Table.from_records(frame, key_columns="id", value=avro, name="t")
        table.materialize().write_stream(
            dt.to_parquet(str(tmp_path / "out")),
            checkpoint=str(tmp_path / "check"),
            trigger={"availableNow": True},
            buckets=1,
        ).awaitTermination()

    columns = put(1)
    run(1)
    put(2)
    with pytest.warns(
        dt.errors.DovetailWarning, match=r"began without t\.email, t\.lines.*initial="
    ):
        run(2)
    found = rows_of(tmp_path / "out")
    assert "email" not in found[0]
    assert sorted((row["id"], row["amount"]) for row in found) == [(1, 1), (2, 2)]
