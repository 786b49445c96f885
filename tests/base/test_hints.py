"""Names and calls of Spark, pandas and Kafka Streams: each is answered with the call to make."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import dovetail as dt
from dovetail import testing
from dovetail.base import hints

ORDERS = testing.table(
    "orders", key="id", schema={"id": pa.int64(), "customer": pa.string(), "amount": pa.int64()}
)
PAID = testing.table("paid", key="id", schema={"id": pa.int64(), "sum": pa.int64()})
CLICKS = testing.stream("clicks", key="id", schema={"id": pa.int64(), "customer": pa.string()})
HOURLY = CLICKS.group_by("customer").window(dt.windows.tumbling("1 hour")).agg(n=dt.count())
SPARKS = {name for name in dir(DataFrame) if not name.startswith("_")}
NO_COUNTERPART = {
    "approxQuantile", "asTable", "colRegex", "corr", "cov", "createGlobalTempView",
    "createOrReplaceGlobalTempView", "createOrReplaceTempView", "createTempView", "crosstab",
    "exceptAll", "executionInfo", "exists", "foreachPartition", "freqItems", "groupingSets",
    "hint", "inputFiles", "intersect", "intersectAll", "isLocal", "mergeInto", "metadataColumn",
    "observe", "offset", "pandas_api", "plot", "randomSplit", "rdd", "registerTempTable",
    "repartitionById", "repartitionByRange", "replace", "sameSemantics", "sampleBy", "scalar",
    "semanticHash", "stat", "storageLevel", "subtract", "summary", "to_koalas", "toJSON",
    "toLocalIterator", "transpose", "unpersist", "unpivot", "melt", "zipWithIndex", "coalesce",
}  # fmt: skip
"""What a frame of Spark's can, and no table or stream has a call for."""


@pytest.mark.parametrize("name", sorted(SPARKS - NO_COUNTERPART))
def test_a_name_of_sparks_frames_is_known_or_answered(name: str) -> None:
    if not hasattr(dt.Table, name):
        assert name in hints.OF_TABLES


@pytest.mark.parametrize("name", sorted(hints.OF_TABLES))
def test_no_hint_hides_a_call(name: str) -> None:
    for one in (ORDERS, CLICKS):
        if not hasattr(type(one), name):
            with pytest.raises(AttributeError, match=re.escape(hints.OF_TABLES[name])):
                getattr(one, name)


def change() -> testing.Change:
    """A change of the orders."""
    return testing.Driver(ORDERS).pipe(ORDERS, {"id": 1}, timestamp=1)[0]


def calls_named(text: str) -> set[str]:
    """The calls that a remedy names."""
    return set(re.findall(r"(?<![.\w])(\w+)\(", text))


@pytest.mark.parametrize("text", sorted({*hints.OF_TABLES.values(), *hints.OF_GROUPS.values()}))
def test_a_remedy_names_calls_that_are_there(text: str) -> None:
    kinds = (dt.Table, dt.Stream, dt.typing.GroupedTable, dt.typing.GroupedStream, dt.WindowedTable)
    known = {name for kind in kinds for name in dir(kind)}
    assert calls_named(text) - known - {"count", "show"} <= {"SparkSession"}
    assert all(hasattr(dt, name) for name in re.findall(r"\bdt\.(\w+)", text))


@pytest.mark.parametrize("text", sorted(set(hints.OF_MODULE.values())))
def test_a_remedy_for_the_package_names_what_is_there(text: str) -> None:
    assert all(hasattr(dt, name) for name in re.findall(r"\bdt\.(\w+)", text))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ORDERS.customer, 'Name a column by its name, "customer"'),
        (lambda: ORDERS["customer"], 'Name a column by its name, "customer"'),
        (lambda: ORDERS[0], "it holds no rows"),
        (lambda: len(ORDERS), "dt.count()"),
        (lambda: list(CLICKS), "it holds no rows to go through"),
        (lambda: "id" in ORDERS, "it holds no rows to search"),
        (lambda: ORDERS.wehre("amount > 1"), "The nearest name is 'where'"),
        (lambda: ORDERS.withcolumns, "The nearest name is 'with_columns'"),
        (lambda: ORDERS.group_by("customer").window(dt.windows.tumbling("1 hour")), "date_trunc"),
        (lambda: CLICKS.group_by("customer").count(), "agg(n=dt.count())"),
        (lambda: HOURLY.write_stream(dt.to_memory("x"), checkpoint="x"), "to_table()"),
        (lambda: HOURLY.where("n > 1"), "to_stream()"),
        (lambda: testing.Driver(ORDERS).send, "Write pipe(table"),
        (lambda: change().amount, "Read values['amount']"),
        (lambda: change()["id"], "key['id']"),
        (lambda: dt.tumblng, "Write dt.windows.tumbling"),
        (lambda: dt.PlanError, "Write dt.errors.PlanError"),
        (lambda: dt.delta, "Write dt.delta_join"),
        (lambda: dt.rnu, "The nearest name is 'run'"),
        (lambda: dt.STREAM, "The nearest name is 'Stream'"),
        (lambda: dt.avg, "dt.mean"),
    ],
)
def test_names(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(dt.errors.PlanError, match=re.escape(words)):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ORDERS.join(PAID, within=dt.within(after="1 s")), "within= joins two streams"),
        (lambda: ORDERS.join(PAID, hwo="left"), "The nearest name is 'how'"),
        (ORDERS.join, "right= is missing. Call it as join(right)"),
        (lambda: ORDERS.join(PAID, "id"), "Give the others by name: on=, how="),
        (lambda: ORDERS.with_columns("amount"), "Give each a name: with_columns(name=...)"),
        (lambda: ORDERS.group_by("id").agg(dt.count()), "Give each a name: agg(name=...)"),
        (lambda: dt.checkpoints.upgrade("old", "new"), "Call it as upgrade(spark, "),
        (lambda: ORDERS.write_stream(dt.to_memory("x")), "checkpoint= is missing"),
        (lambda: PAID.join(CLICKS), "stream.join(table)"),
        (lambda: dt.Table.from_static(pd.DataFrame({"id": [1]}), key="id"), "createDataFrame"),
        (lambda: dt.Table(pd.DataFrame({"id": [1]})), "createDataFrame"),
        (lambda: ORDERS.union(PAID.group_by("id"), source="s"), "Aggregate it first"),
        (lambda: ORDERS.rename(amount="sum"), "Write rename({'old': 'new'})"),
        (lambda: ORDERS.join(PAID, select=["left.amont"]), "the nearest is 'left.amount'"),
        (dt.explain, "no result is given"),
        (lambda: ORDERS.group_by("custmer").agg(n=dt.count()), "the nearest is 'customer'"),
        (
            lambda: ORDERS.group_by("amount > 1").agg(n=dt.count()),
            'with_columns(name=F.expr("amount > 1"))',
        ),
        (lambda: ORDERS.group_by().agg(n=dt.count()), "F.lit(1)"),
        (lambda: testing.Driver(ORDERS).pipe(ORDERS, {"id": 1}), "Give pipe(..., timestamp=...)"),
    ],
)
def test_arguments(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(dt.errors.DovetailError, match=re.escape(words)):
        call()


def test_a_table_is_true_and_keeps_pythons_own_protocols() -> None:
    assert ORDERS
    assert HOURLY
    assert not hasattr(ORDERS, "__array__")
    assert not hasattr(ORDERS, "_repr_png_")
    assert not hasattr(ORDERS, "nothing_of_that_kind")
    assert inspect.ismethod(ORDERS.where)
