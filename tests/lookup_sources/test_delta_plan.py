"""The limitations of delta joins, one by one; strategies; what explain says; sources declared."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing
from dovetail.errors import ConfigurationError
from dovetail.lookup_sources.result_lookup import ChainLookup, ChainReader
from dovetail.physical.explain import explain
from dovetail.plan.joins.delta_join import DeltaJoin, changes_of, lookup_of
from dovetail.plan.joins.foreign_key_join import ForeignKeyJoin
from dovetail.plan.joins.table_join import TableJoin
from dovetail.plan.nodes import Derived

FORCED = dt.delta_join(strategy="force")

ORDERS = {"id": pa.int64(), "customer": pa.string(), "amount": pa.int64()}
CUSTOMERS = {"name": pa.string(), "city": pa.string()}
LINES = {"order": pa.int64(), "line": pa.int64(), "item": pa.string()}


def source(name: str, key: Any, *indexes: dt.lookups.Index, **options: Any) -> Any:
    return dt.lookups.sqlite("store.db", name, key=key, indexes=list(indexes), **options)


def orders(changes: Any = "all", *indexes: dt.lookups.Index) -> dt.Table:
    table = testing.table("orders", key="id", schema=ORDERS)
    return table.with_lookup(source("orders", "id", *indexes), changes=changes)


def customers(changes: Any = "all") -> dt.Table:
    table = testing.table("customers", key="name", schema=CUSTOMERS)
    return table.with_lookup(source("customers", "name"), changes=changes)


def lines(changes: Any = "all", key: Any = ("order", "line")) -> dt.Table:
    table = testing.table("lines", key=list(key), schema=LINES)
    return table.with_lookup(source("lines", list(key), dt.lookups.index("order")), changes=changes)


BY_CUSTOMER = dt.lookups.index("customer")
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "no index": (
        lambda: orders().join(customers(), on="customer", delta_join=FORCED),
        (
            r"inner join of orders and customers: a limitation is broken: \(1\) no index of sqlite "
            r"orders is in the join key customer. Create one there and declare it with "
            r"indexes=\[dt.lookups.index\('customer'\)\]"
        ),
    ),
    "a filter for a table of a test": (
        lambda: testing.table("orders", key="id", schema=ORDERS).with_lookup(
            source("orders", "id", where={"id": 1})
        ),
        r"orders: its lookup source has where=, .* a table of dt.testing has none",
    ),
    "an index with another column": (
        lambda: orders("all", dt.lookups.index("customer", "amount")).join(
            customers(), on="customer", delta_join=FORCED
        ),
        r"no index of sqlite orders is in the join key customer",
    ),
    "no lookup source": (
        lambda: orders("all", BY_CUSTOMER).join(
            testing.table("customers", key="name", schema=CUSTOMERS),
            on="customer",
            delta_join=FORCED,
        ),
        (
            r"2 limitations are broken: \(1\) no index finds rows of customers by name; "
            r"\(2\) customers has no lookup source. .*with_lookup\(dt.lookups.postgres"
        ),
    ),
    "the join key of pairs may change": (
        lambda: orders("upsert", BY_CUSTOMER).join(
            lines("insert"), on={"amount": "order"}, delta_join=FORCED
        ),
        (
            r"\(1\) no index of sqlite orders .*; \(2\) rows of orders change and the join key "
            r"amount is not part of its key, so a row's former join key is not known"
        ),
    ),
    "the foreign key may change and right rows stand alone": (
        lambda: orders("upsert", BY_CUSTOMER).join(
            customers(), on="customer", how="right", delta_join=FORCED
        ),
        r"rows of orders change .* customer is not part of its key to keep right rows alone",
    ),
    "both sides of pairs delete": (
        lambda: lines().join(
            lines(key=("line", "order")),
            on={"order": "order"},
            select=["left.item"],
            delta_join=FORCED,
        ),
        (
            r"both lines and lines delete rows; of a pair whose rows are both gone neither lookup "
            r"finds the other. Say changes='upsert' of the one"
        ),
    ),
    "unknown column": (
        lambda: orders().join(customers(), on={"client": "name"}, delta_join=FORCED),
        r"on= names an unknown column 'client'. Known in orders are id, customer, amount",
    ),
    "no column": (
        lambda: orders().join(customers(), on={}, delta_join=FORCED),
        r"on= names no column",
    ),
    "types": (
        lambda: orders().join(customers(), on={"id": "name"}, delta_join=FORCED),
        r"orders.id is bigint, customers.name is string. Cast one",
    ),
    "too many names": (
        lambda: orders().join(customers(), on=["customer", "amount"], delta_join=FORCED),
        r"on= has 2 parts, the key of customers is \(name string\). Give as many, in",
    ),
    "a history": (
        lambda: (
            testing.table("old", key="name", schema=CUSTOMERS, versioned="7 days")
            .with_lookup(source("old", "name"))
            .join(customers(), select=["left.city"], delta_join=FORCED)
        ),
        r"old is versioned. Read it without versioned=",
    ),
    "another key": (
        lambda: testing.table("customers", key="name", schema=CUSTOMERS).with_lookup(
            source("customers", "city")
        ),
        r"table customers: its key is name, that of sqlite customers city. Give both the same key",
    ),
    "an index of an unknown column": (
        lambda: orders("all", dt.lookups.index("client")),
        r"table orders: INDEX INDEX_client \(client\) names an unknown column 'client'",
    ),
    "a filter that a change can leave": (
        lambda: testing.table("orders", key="id", schema=ORDERS).with_lookup(
            source("orders", "id", where={"customer": "ann"})
        ),
        r"where= of sqlite orders has customer, of which a change could take a row out",
    ),
    "a lookup source of a result": (
        lambda: (
            orders("all", BY_CUSTOMER)
            .join(customers(), on="customer")
            .with_lookup(source("orders", "id"))
        ),
        r"a lookup source is given to the result of a join",
    ),
    "an index without columns": (dt.lookups.index, r"index INDEX: it has no columns"),
    "an index with a column twice": (
        lambda: dt.lookups.index("a", "a", name="i"),
        r"index i: column 'a' occurs twice. Name it once",
    ),
    "a source without a key": (lambda: source("t", []), r"sqlite t: no key column is given"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_when_the_plan_is_built(mistake: str) -> None:
    build, message = MISTAKES[mistake]
    with pytest.raises(dt.errors.PlanError, match=message):
        build()


def test_forcing_names_every_limitation() -> None:
    plain = testing.table("orders", key="id", schema=ORDERS)
    with pytest.raises(dt.errors.PlanError) as error:
        plain.join(customers(), on="customer", align="1 s", delta_join=FORCED)
    text = str(error.value)
    for part in (
        "3 limitations are broken: (1) align= keeps rows in state",
        "(2) no index finds rows of orders by customer",
        "(3) orders has no lookup source",
        "Leave it out; Declare one; Give each table its own",
    ):
        assert part in text


def test_auto_takes_a_delta_join_where_it_can_and_says_why_not() -> None:
    with_index, without = orders("all", BY_CUSTOMER), orders()
    chosen = with_index.join(customers(), on="customer")
    refused = without.join(customers(), on="customer")
    assert isinstance(chosen.plan, DeltaJoin)
    assert isinstance(refused.plan, ForeignKeyJoin)
    assert isinstance(
        with_index.join(customers(), on="customer", delta_join=dt.delta_join(strategy="none")).plan,
        ForeignKeyJoin,
    )
    assert isinstance(with_index.join(orders(), select=["left.amount"]).plan, DeltaJoin)
    late = with_index.join(orders(), select=["left.amount"], align="1 s")
    assert isinstance(late.plan, TableJoin)
    assert "index of orders: BROKEN, no index of sqlite orders is in the join key customer" in (
        explain(refused.plan)
    )
    assert "options: BROKEN, align= keeps rows in state" in explain(late.plan)


def test_tables_without_lookup_sources_are_joined_as_ever() -> None:
    left = testing.table("orders", key="id", schema=ORDERS)
    right = testing.table("customers", key="name", schema=CUSTOMERS)
    joined = left.join(right, on="customer")
    assert isinstance(joined.plan, ForeignKeyJoin)
    assert "Delta join" not in explain(joined.plan)


EXPLAINED = """\
Topology
left join by lookups on customer = name  (key id; amount, city)
├─ orders  (key id; customer, amount)
└─ customers  (key name; city)

Stage 1
  shuffle  orders by key (id bigint), the last change of each
  state    none

Stage 2
  shuffle  orders, customers by (customer string)
  state    none
  lookup   sqlite orders by INDEX INDEX_customer (customer): id, customer, amount; cache none
           sqlite customers by UNIQUE INDEX PRIMARY KEY (name): name, city; cache 70 rows a task

Delta join: chosen for left join of orders and customers
  eventual consistency: met, with_lookup and the strategy accept it
  index of orders: met, INDEX INDEX_customer (customer)
  index of customers: met, UNIQUE INDEX PRIMARY KEY (name)
  lookup source of orders: met, sqlite orders
  lookup source of customers: met, sqlite customers
  only stateless steps before orders: met, its rows are those of the source
  only stateless steps before customers: met, its rows are those of the source
  updates of orders: met, not needed: the result has its key and replaces its rows
  updates of customers: met, the join key is part of its key
  no update-before rows: met, a changelog has upserts and tombstones only
  deletes: met, not limited: the result has one table's key"""


def test_explain_shows_what_is_looked_up_and_each_limitation() -> None:
    table = orders("all", BY_CUSTOMER).join(
        customers(),
        on="customer",
        how="left",
        select=["amount", "city"],
        delta_join=dt.delta_join(strategy="force", right_cache=70),
    )
    assert explain(table.plan) == EXPLAINED


def test_only_the_columns_that_are_needed_are_looked_up() -> None:
    from dovetail.plan.joins.delta_join import needed_columns

    table = orders("all", BY_CUSTOMER).join(
        customers(), on="customer", select=["city"], delta_join=FORCED
    )
    assert isinstance(table.plan, DeltaJoin)
    assert needed_columns(table.plan) == ({"id", "customer"}, {"name", "city"})


def test_a_name_that_both_tables_have_is_both_tables_column() -> None:
    table = lines("insert").join(
        lines("insert", ("line", "order")),
        on={"order": "order"},
        select={"a": "left.item", "b": "right.item"},
        delta_join=FORCED,
    )
    assert isinstance(table.plan, DeltaJoin)
    assert table.plan.on == (("order", "order"),)
    assert table.plan.key.names == ["order", "line", "right_line", "right_order"]


def test_kinds_of_changes_of_results() -> None:
    def kind(table: dt.Table) -> str:
        assert isinstance(table.plan, DeltaJoin)
        return changes_of(Derived(table.plan))

    some = orders("insert", BY_CUSTOMER)
    assert kind(some.join(customers("insert"), on="customer", delta_join=FORCED)) == "insert"
    assert kind(some.join(customers("upsert"), on="customer", delta_join=FORCED)) == "upsert"
    assert (
        kind(some.join(customers("insert"), on="customer", how="left", delta_join=FORCED))
        == "upsert"
    )
    assert (
        kind(some.join(customers("insert"), on="customer", how="outer", delta_join=FORCED)) == "all"
    )
    assert (
        kind(
            orders("upsert", BY_CUSTOMER).join(
                customers("insert"), on="customer", delta_join=FORCED
            )
        )
        == "all"
    )
    pairs = some.join(lines("insert"), on={"id": "order"}, how="left", delta_join=FORCED)
    assert kind(pairs) == "all"


def test_a_result_is_looked_up_in_both_tables() -> None:
    table = orders("insert", BY_CUSTOMER).join(
        customers("insert"), on="customer", delta_join=FORCED
    )
    assert isinstance(table.plan, DeltaJoin)
    looked_up = lookup_of(Derived(table.plan))
    assert looked_up is not None
    assert looked_up.title == "sqlite orders ⋈ sqlite customers"
    assert [index.columns for index in looked_up.indexes] == [("id",), ("customer",)]


def test_a_chain_asks_first_the_table_whose_index_serves() -> None:
    left = testing.table("a", key="i", schema={"i": pa.int64(), "x": pa.int64(), "p": pa.int64()})
    right = testing.table("b", key="j", schema={"j": pa.int64(), "x": pa.int64(), "q": pa.int64()})
    left = left.with_lookup(source("a", "i", dt.lookups.index("x")), changes="insert")
    right = right.with_lookup(
        source("b", "j", dt.lookups.index("x"), dt.lookups.index("q")), changes="insert"
    )
    pairs = left.join(right, on={"x": "x"}, delta_join=FORCED)
    assert isinstance(pairs.plan, DeltaJoin)
    looked_up = lookup_of(Derived(pairs.plan))
    assert isinstance(looked_up, ChainLookup)
    reader = looked_up.open(pa.schema([("i", pa.int64())]))
    assert isinstance(reader, ChainReader)
    assert reader._first_side(["p", "q"]) == (1, ["q"])
    assert reader._first_side(["x", "q"]) == (0, ["x"])


@pytest.mark.parametrize("missing", [None, "orders", "customers"])
def test_a_chain_without_keys_asks_both_tables(tmp_path: Path, missing: str | None) -> None:
    """So the start of a query finds a store that cannot be reached, whichever it is."""

    def stored(name: str, key: str, /, *indexes: dt.lookups.Index, **columns: Any) -> dt.Table:
        path = tmp_path / f"{name}.db"
        if name != missing:
            with closing(sqlite3.connect(path)) as store:
                store.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
        store = dt.lookups.sqlite(path, name, key=key, indexes=indexes, retries=0)
        table = testing.table(name, key=key, schema=columns)
        return table.with_lookup(store, changes="insert")

    sold = stored("orders", "id", BY_CUSTOMER, id=pa.int64(), customer=pa.string())
    known = stored("customers", "name", name=pa.string(), city=pa.string())
    joined = sold.join(known, on={"customer": "name"}, delta_join=FORCED)
    assert isinstance(joined.plan, DeltaJoin)
    looked_up = lookup_of(Derived(joined.plan))
    assert looked_up is not None
    reader = looked_up.open(pa.schema([("id", pa.int64()), ("city", pa.string())]))
    keys = pa.table({"id": pa.array([], pa.int64())})
    if missing is None:
        assert len(reader.rows(["id"], keys).rows) == 0
        return
    with pytest.raises(ConfigurationError, match=f"sqlite {missing}: no answer after 1 attempts"):
        reader.rows(["id"], keys)


def test_the_driver_refuses_a_delta_join() -> None:
    table = orders("all", BY_CUSTOMER).join(customers(), on="customer")
    with pytest.raises(dt.errors.PlanError, match="asks stores that the test driver does not have"):
        testing.Driver(table)


STEPS: dict[str, tuple[Callable[[Any], Any], str | None]] = {
    "columns": (lambda f: f.select("id", F.upper("customer").alias("customer"), "at"), None),
    "a watermark": (lambda f: f.withWatermark("at", "1 hour"), None),
    "partitions": (lambda f: f.repartition(3), None),
    "a filter": (lambda f: f.where("customer <> 'x'"), "filter on customer"),
    "a filter of constants": (
        lambda f: f.where("current_date() > '1999-01-01'"),
        "filter without columns",
    ),
    "duplicates dropped": (lambda f: f.dropDuplicates(["id"]), "Deduplicate"),
    "an aggregation": (
        lambda f: f.groupBy("id").agg(F.max("customer").alias("customer"), F.max("at").alias("at")),
        "Aggregate",
    ),
    "a union": (lambda f: f.union(f), "Union"),
    "rows multiplied": (
        lambda f: f.select("id", "at", F.explode(F.array("customer")).alias("customer")),
        "Generate",
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_steps_before_the_join_are_stateless_ones(spark: SparkSession, step: str) -> None:
    make, offending = STEPS[step]
    frame = spark.createDataFrame([], "id long, customer string, at timestamp")
    table = dt.Table.from_changelog(make(frame), key="id", timestamp="at", name="orders")
    table = table.with_lookup(source("orders", "id", BY_CUSTOMER))
    joined = table.join(customers(), on="customer")
    assert isinstance(joined.plan, DeltaJoin) == (offending is None)
    if offending is not None:
        problem = rf"orders is read through a step \({offending}\) that a lookup does not"
        with pytest.raises(dt.errors.PlanError, match=problem):
            table.join(customers(), on="customer", delta_join=FORCED)


def test_where_restricts_the_changelog_too(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(1, "ann"), (2, "bob"), (3, None)], "id long, customer string"
    ).withColumn("at", F.current_timestamp())
    table = dt.Table.from_changelog(frame, key="id", timestamp="at", name="orders")
    restricted = table.with_lookup(
        source("orders", "id", BY_CUSTOMER, where={"customer": ["ann", None]}), changes="insert"
    )
    assert isinstance(restricted.join(customers(), on="customer").plan, DeltaJoin)
    rows = restricted.plan.frame.collect()  # type: ignore[union-attr]
    assert [row.id for row in rows] == [1, 3]


def test_an_expression_is_no_index(spark: SparkSession) -> None:
    left = orders("all", BY_CUSTOMER)
    on = F.lower("customer")
    assert isinstance(left.join(customers(), on=on).plan, ForeignKeyJoin)
    with pytest.raises(dt.errors.PlanError, match="on= has an expression, which no index finds"):
        left.join(customers(), on=on, delta_join=FORCED)
