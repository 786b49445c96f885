"""What a join over snapshots is: its key, its columns, and what is refused when it is written."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import dovetail as dt
from dovetail.snapshots import plan
from dovetail.snapshots.iceberg_reader import SnapshotReader
from dovetail.snapshots.plan import SnapshotSource

TYPES = {
    "int": IntegerType(),
    "long": LongType(),
    "string": StringType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "map": MapType(IntegerType(), IntegerType()),
}


def table(name: str, columns: str, key: Any, *, table_id: str | None = None) -> SnapshotSource:
    parts = [column.split() for column in columns.split(", ")]
    schema = StructType([StructField(column, TYPES[of]) for column, of in parts])
    table_id = name if table_id is None else table_id
    return plan.source(path=f"/lake/{name}", table_id=table_id, schema=schema, key=key, name=name)


ORDERS = table("orders", "id long, customer long, kind string", "id")
CUSTOMERS = table("customers", "cid long, kind_of string, since date", "cid")
LINES = table("lines", "id long, line int, item string", ["id", "line"])


def join(left: Any, right: Any, how: str = "inner", **options: Any) -> plan.SnapshotJoin:
    options = {"on": None, "select": None, "name": None} | options
    return plan.join(left, right, how=how, **options)


@pytest.mark.parametrize(
    ("how", "key"),
    [
        ("inner", ["id"]),
        ("left", ["id"]),
        ("right", ["id", "right_cid"]),
        ("outer", ["id", "right_cid"]),
    ],
)
def test_the_key_of_a_join_by_the_right_key(how: str, key: list[str]) -> None:
    node = join(ORDERS, CUSTOMERS, how, on="customer")
    assert node.key.names == key
    assert node.values.names == ["customer", "kind", "kind_of", "since"]


def test_other_keys() -> None:
    assert join(ORDERS, CUSTOMERS, "outer", on="id").key.names == ["id"]
    assert join(ORDERS, CUSTOMERS, on={"kind": "kind_of"}).key.names == ["id", "right_cid"]
    assert join(ORDERS, LINES, on={"id": "id"}).key.names == ["id", "right_id", "right_line"]
    twice = join(join(ORDERS, CUSTOMERS, "outer", on="customer"), CUSTOMERS, "outer", on="customer",
                 select=["customer"])  # fmt: skip
    assert twice.key.names == ["id", "right_cid", "right_right_cid"]


def test_a_join_shows_its_key_and_its_columns(spark: SparkSession) -> None:
    shown = dt.SnapshotTable(spark, join(ORDERS, CUSTOMERS, "right", on="customer"))
    assert repr(shown) == (
        "SnapshotTable[right join of orders and customers; key id, right_cid]\n"
        "  id bigint, right_cid bigint, customer bigint, kind string, kind_of string, since date"
    )
    html = shown._repr_html_()
    assert html.count("<td>key</td>") == 2
    assert "<tr><td>since</td><td>date</td><td></td></tr>" in html


def test_only_what_is_used_is_read_and_described() -> None:
    node = join(ORDERS, CUSTOMERS, on="customer", select=["kind_of"])
    assert plan.used_columns(node) == {
        ORDERS: {"id", "customer"},
        CUSTOMERS: {"cid", "kind_of"},
    }
    described = plan.describe(node)
    assert described["right"]["columns"] == {"cid": "bigint", "kind_of": "string"}
    wider = table("customers", "cid long, kind_of string, since timestamp, new int", "cid")
    assert plan.describe(join(ORDERS, wider, on="customer", select=["kind_of"])) == described


def test_differences_are_named() -> None:
    then = plan.describe(join(ORDERS, CUSTOMERS, on="customer"))
    other = table("customers", "cid long, kind_of int, since date", "cid")
    now = plan.describe(join(ORDERS, other, "left", on="customer"))
    assert list(plan.differences(then, now)) == [
        "how was 'inner' and is 'left'",
        "right.columns.kind_of was 'string' and is 'int'",
    ]
    assert list(plan.differences(plan.describe(ORDERS), then)) == ["it was a table and is a join"]
    items = table("items", "id long, item string", "id")
    nested = join(join(ORDERS, CUSTOMERS, on="customer"), items, on="id", select=["item"])
    flat = join(ORDERS, items, on="id", select=["item"])
    assert list(plan.differences(plan.describe(flat), plan.describe(nested))) == [
        "left was a table and is a join"
    ]


@pytest.mark.parametrize("name", ["how", "by", "table"])
def test_columns_with_names_of_parts_are_columns(name: str) -> None:
    orders = table("orders", f"id long, customer long, {name} string", "id")
    without, with_ = (
        plan.describe(join(orders, CUSTOMERS, on="customer", select=select))
        for select in (["kind_of"], ["kind_of", name])
    )
    assert list(plan.differences(without, with_)) == [
        f"select.{name} was missing and is 'left.{name}'",
        f"left.columns.{name} was missing and is 'string'",
    ]


def test_an_expression_has_one_text_in_every_process() -> None:
    udf = "f(Origin(Some([Ljava.lang.StackTraceElement;@513566f)))"
    assert plan._stable_text(udf) == plan._stable_text(udf.replace("513566f", "77ab"))
    first, second = (f"transform(a, x_{n} -> +(x_{n}, x_1a))" for n in (1, 12))
    assert (
        plan._stable_text(first)
        == plan._stable_text(second)
        != plan._stable_text(first.replace("x_1a", "b"))
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"on": "buyer"}, "on= names an unknown column 'buyer'. Known in orders are id, customer"),
        ({"on": {"customer": "id"}}, "unknown column 'id'. Known in customers are cid, kind_of"),
        ({"on": "kind"}, "orders.kind is string, customers.cid is bigint. Cast one"),
        (
            {"on": ["id", "customer"]},
            "on= has 2 parts, the key of customers is (cid bigint)",
        ),
        ({"on": {}}, "on= names no column"),
        ({"on": "customer", "select": ["city"]}, "select= names an unknown column 'city'"),
        ({"on": "customer", "select": {"id": "kind_of"}}, "column 'id' occurs twice"),
        (
            {"on": "customer", "select": {"_Sign": "kind_of"}},
            "column '_Sign' has a name that dovetail or the change feed uses itself. Give",
        ),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(dt.errors.PlanError) as raised:
        join(ORDERS, CUSTOMERS, **arguments)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("columns", "key", "problem"),
    [
        ("a int", "b", "key= names an unknown column 'b'. Known are a"),
        ("a int", [], "no key column is given"),
        ("a map", "a", "cannot be a key"),
        (
            "a int, _sign int",
            "a",
            "column '_sign' has a name that dovetail or the change feed uses",
        ),
        ("a int, b int", ["a", "a"], "column 'a' occurs twice"),
    ],
)
def test_a_source_is_checked(columns: str, key: Any, problem: str) -> None:
    with pytest.raises(dt.errors.PlanError) as raised:
        table("t", columns, key)
    assert problem in str(raised.value)


def test_two_tables_of_one_name_are_refused() -> None:
    other = table("orders", "x long", "x", table_id="2")
    with pytest.raises(dt.errors.PlanError, match="two tables are called 'orders'"):
        join(ORDERS, other, on={"id": "x"})


@pytest.mark.parametrize(
    ("by", "aggregates", "message"),
    [
        ([], {"n": "count(*)"}, "no group column is given"),
        (["kind"], {}, "no aggregate is given"),
        (["nope"], {"n": "count(*)"}, "group_by() names an unknown column 'nope'"),
        (["kind"], {"Kind": "count(*)"}, "column 'Kind' occurs twice"),
        (
            ["kind"],
            {"_sign": "count(*)"},
            "column '_sign' has a name that dovetail or the change feed uses itself",
        ),
        (["kind"], {"n": "id"}, "n= does not resolve"),
        (["kind"], {"n": "sum(nope)"}, "n= does not resolve"),
        (["kind"], {"n": "max(current_date())"}, "n= does not make the same"),
    ],
)
def test_aggregates_that_are_refused(
    spark: SparkSession, by: list[str], aggregates: dict[str, str], message: str
) -> None:
    columns = {name: F.expr(text) for name, text in aggregates.items()}
    with pytest.raises(dt.errors.PlanError, match=re.escape(message)):
        plan.aggregate(ORDERS, by, columns)


def test_an_aggregate_has_its_groups_as_key_and_says_what_it_is_made_of(
    spark: SparkSession,
) -> None:
    aggregates = {"n": F.count("*"), "last": F.max("id")}
    node = plan.aggregate(ORDERS, ["kind", "customer"], aggregates)
    assert (node.key.simpleString(), node.values.simpleString()) == (
        "struct<kind:string,customer:bigint>",
        "struct<n:bigint,last:bigint>",
    )
    assert all(field.nullable for field in node.values)
    described = plan.describe(node)
    assert (described["by"], [*described["aggregates"]]) == (["kind", "customer"], ["n", "last"])
    other = plan.aggregate(ORDERS, ["kind", "customer"], {**aggregates, "last": F.min("id")})
    assert [*plan.differences(described, plan.describe(other))] == [
        "aggregates.last was \"Column<'max(id)'>\" and is \"Column<'min(id)'>\""
    ]
    joined = join(ORDERS, CUSTOMERS, on={"customer": "cid"})
    assert [*plan.differences(plan.describe(joined), described)] == [
        "it was a join and is an aggregate"
    ]


def test_an_iceberg_table_that_has_lost_its_snapshots_is_refused() -> None:
    reader = SnapshotReader(None)  # type: ignore[arg-type]
    assert reader.next_snapshot(ORDERS, 0, 0, None) == 0
    with pytest.raises(dt.errors.TargetError, match="it has no snapshot, and snapshot 7 is cov"):
        reader.next_snapshot(ORDERS, 7, 0, None)
