"""Columns of an input that no select reads do not bind a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing
from dovetail.plan.fingerprint import fingerprint

NUMBER, TEXT = pa.int64(), pa.string()
COLUMNS = {"a": NUMBER, "b": TEXT, "c": NUMBER, "d": TEXT, "e": NUMBER}
Make: TypeAlias = Callable[[dt.Table], Any]
TABLES: dict[str, tuple[Any, ...]] = {
    "names": (lambda t: t.select("a", x="c"), {"a", "c"}),
    "aggregate": (lambda t: t.select("b", "c").group_by("b").agg(n=dt.sum("c")), {"b", "c"}),
    "two": (lambda t: t.select("a", "b", "c").select("b"), {"b"}, {"a", "b", "c"}),
    "renamed": (lambda t: t.rename({"a": "z"}).select("z"), {"a"}),
    "join": (lambda t: t.select("a").join(t.select("b"), how="left"), {"a", "b"}),
    "records": (lambda t: t.select("a").to_stream().key_by("a"), {"a"}),
}
EXPRESSIONS: dict[str, tuple[Any, ...]] = {
    "computed": (lambda t: t.select(x=F.col("a") + F.col("C")), {"a", "c"}),
    "where in front": (lambda t: t.where("e > 0").select("a"), {"a", "e"}),
    "where behind": (lambda t: t.select("a", "e").where("e > 0"), {"a", "e"}),
    "in between": (
        lambda t: t.with_columns(x=F.upper("b"), y=F.col("c")).select("x"),
        {"b"},
        {"b", "c"},
    ),
    "letters": (
        lambda t: t.with_columns(errors="dead_letter", x=F.col("d").cast("int")).select("a"),
        set(COLUMNS),
    ),
    "no select": (lambda t: t.where("e > 0"), set(COLUMNS)),
}


def of(make: Make, columns: dict[str, pa.DataType]) -> str:
    table = testing.table("t", key="id", schema={"id": NUMBER, **columns})
    return fingerprint(make(table).plan)


def test_a_dropped_column_binds_nothing() -> None:
    def make(table: dt.Table) -> dt.Table:
        return table.drop("a")

    assert of(make, COLUMNS) == of(make, {**COLUMNS, "a": pa.int16()})
    assert of(make, COLUMNS) != of(make, {**COLUMNS, "b": pa.int16()})


def judge(make: Make, read: set[str], named: set[str] | None = None) -> None:
    """``named``: the columns that must be there, by default those that are read."""
    named = named or read
    before = of(make, COLUMNS)
    if read != set(COLUMNS):
        others = {name: type_ for name, type_ in COLUMNS.items() if name in named}
        assert of(make, others) == before, "dropped"
        more = [*COLUMNS.items(), ("new", TEXT)]
        random.Random(1).shuffle(more)
        assert of(make, dict(more)) == before, "added, and in another order"
        wider = {name: COLUMNS[name] if name in read else pa.float64() for name in COLUMNS}
        assert of(make, wider) == before, "altered"
    for name in read - {"d"}:
        assert of(make, {**COLUMNS, name: pa.int16()}) != before, name
    if read == set(COLUMNS):
        assert of(make, {**COLUMNS, "new": TEXT}) != before


@pytest.mark.parametrize("shape", TABLES)
def test_only_what_is_read_binds(shape: str) -> None:
    judge(*TABLES[shape])


def test_only_what_expressions_read_binds(spark: SparkSession) -> None:
    for make, *columns in EXPRESSIONS.values():
        judge(make, *columns)
