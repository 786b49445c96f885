"""A checkpoint is bound to all that what it stores depends on, and to nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing
from dovetail.api.topology import Topology
from dovetail.plan.fingerprint import describe, fingerprint
from dovetail.testing import Driver

Make: TypeAlias = "Callable[[], Topology]"
NUMBER, TEXT, MOMENT = pa.int64(), pa.string(), pa.timestamp("us", "UTC")
WITHIN = {"before": "5 min", "after": "1 min", "grace": "30 s"}


def orders(name: str = "orders", **options: Any) -> dt.Table:
    schema = {"id": NUMBER, "item": TEXT, "instead": TEXT, "n": NUMBER, "m": NUMBER, "at": MOMENT}
    return testing.table(name, key="id", schema=schema, **options)


def items(name: str = "items", **options: Any) -> dt.Table:
    return testing.table(name, key="sku", schema={"sku": TEXT, "title": TEXT}, **options)


def clicks(name: str = "clicks") -> dt.Stream:
    schema = {"id": NUMBER, "item": TEXT, "n": NUMBER, "m": NUMBER, "at": MOMENT}
    return testing.stream(name, key="id", schema=schema)


BOTH = {"n": "left.n", "m": "left.m"}


def totals(column: str = "n", select: Any = BOTH, result: str = "total") -> dt.Table:
    """Orders with their items, which are grouped: two stages, the selection between them."""
    joined = orders().join(items(), on="item", select={**select, "title": "right.title"})
    return joined.group_by("title").agg(**{result: dt.sum(column)})


def hours(size: str = "1 hour", **options: Any) -> dt.WindowedTable:
    return clicks().group_by("item").window(dt.windows.tumbling(size, **options)).agg(n=dt.count())


def emitted(**options: Any) -> dt.Table:
    """A windowed table's changes, gathered by hour alone."""
    stream = hours(retention="9 days").to_stream(key="item", **options)
    return stream.group_by("item").agg(n=dt.sum("n"))


def trend(shift: str = "-1 day", select: Any = None, windows: Any = "on_close") -> dt.Table:
    table = hours(retention="9 days")
    chosen = {"n": "left.n", "before": "right.n"} if select is None else select
    return table.join(table, how="left", shift=shift, select=chosen).to_table(windows=windows)


def looked(column: str | None = None, **options: Any) -> Any:
    schema = {"item": TEXT, "at": MOMENT, "since": MOMENT}
    asks = testing.table("asks", key="item", schema=schema)
    window_of = "at" if column is None else column
    return asks.join(hours(), how="left", window_of=window_of, select=["n"], **options)


def product(add: Any = None, state: str = "product") -> dt.Table:
    def multiplied(accumulator: Any, value: Any) -> Any:
        return {state: pc.multiply(accumulator[state], value)}

    made = dt.aggregate(
        init=lambda n: {state: pa.array([1] * n)},
        add=multiplied if add is None else add,
        merge=lambda a, b: {state: pc.multiply(a[state], b[state])},
        state={state: NUMBER},
        returns=NUMBER,
    )
    return clicks().group_by("item").agg(product=made("n"))


def streams(unmatched: Any = "on_close", **within: str) -> dt.Stream:
    right = testing.stream("views", key="id", schema={"id": NUMBER, "page": TEXT})
    window = dt.within(**WITHIN | within)
    return clicks().join(right, within=window, how="left", unmatched=unmatched)


def histories(**options: Any) -> dt.Table:
    left, right = (
        testing.table(n, key="k", schema={"k": NUMBER, n: TEXT}, versioned="1 h") for n in "ab"
    )
    return left.join(right, **options)


def priced(**options: Any) -> dt.Stream:
    versioned = items(versioned="2 hours")
    return clicks().join(versioned, **{"on": "item", "how": "left"} | options)


def by_pair(*key: str) -> dt.Table:
    return testing.table("pairs", key=key, schema={"a": NUMBER, "b": NUMBER, "c": TEXT})


def two(left: str = "a", right: str = "b", **select: str) -> dt.Table:
    sides = [testing.table(n, key="k", schema={"k": NUMBER, "v": TEXT}) for n in (left, right)]
    if select:
        sides[0] = sides[0].select(**select)
    return sides[0].join(sides[1], how="outer", select={"x": "left.v", "y": "right.v"})


OTHERS: dict[str, tuple[Make, Make, str]] = {
    "columns between stages that change places": (
        totals,
        lambda: totals(select={"m": "left.m", "n": "left.n"}),
        r'plan.of.values was \[\["n", "bigint"\], \["m", .* and is \[\["m", "bigint"\]',
    ),
    "other columns under the same names": (
        totals,
        lambda: totals(select={"n": "left.m", "m": "left.n"}),
        r'plan.of.result.select was .* and is \[\["n", \["left", "m"\]\]',
    ),
    "another aggregate's column": (totals, lambda: totals("m"), r"plan.aggregate was"),
    "another name of an aggregate": (totals, lambda: totals(result="sum"), r"plan.aggregate was"),
    "a selection between stages": (
        lambda: emitted(select={"item": "item", "n": "n"}),
        lambda: emitted(select={"item": "item", "n": "n", "at": "window_start"}),
        r"plan.of.values was",
    ),
    "a column of a windowed table that is another": (
        lambda: emitted(select={"item": "item", "n": "n", "at": "window_start"}),
        lambda: emitted(select={"item": "item", "n": "n", "at": "window_end"}),
        r'plan.of.result.columns was .*"window_start"\] and is .*"window_end"\]',
    ),
    "other columns that wait for their window": (
        trend,
        lambda: trend(select={"n": "right.n", "before": "left.n"}),
        r"plan.windows.select was",
    ),
    "windows when they are final": (
        trend,
        lambda: trend(windows="on_change"),
        r"plan.final was true",
    ),
    "another shift": (
        trend,
        lambda: trend("-2 days"),
        r"plan.windows.shift_us was -86400000000 and is -172800000000",
    ),
    "another window to look in": (looked, lambda: looked("since"), r'window_of was "at" and is "s'),
    "another retention": (
        lambda: hours().to_table(),
        lambda: hours(retention="1 day").to_table(),
        r"plan.windows.over.retention_us was 3600000000 and is 86400000000",
    ),
    "another length of windows": (
        lambda: hours().to_table(),
        lambda: hours("2 hours").to_table(),
        r"plan.windows.over.size_us was",
    ),
    "a table's key in another order": (
        lambda: by_pair("a", "b"),
        lambda: by_pair("b", "a"),
        r'plan.key was \[\["a", "bigint"\], \["b", "bigint"\]\] and is \[\["b"',
    ),
    "another group": (
        lambda: by_pair("a").group_by("b").agg(n=dt.count()),
        lambda: by_pair("a").group_by("c").agg(n=dt.count()),
        r'plan.by was \["b"\] and is \["c"\]',
    ),
    "another foreign key": (
        lambda: orders().join(items(), on="item"),
        lambda: orders().join(items(), on="instead"),
        r'plan.on was \["item"\] and is \["instead"\]',
    ),
    "another lookup": (
        lambda: priced(on="item"),
        lambda: priced(on="item", grace="1 hour"),
        r"plan.grace_us was null and is 3600000000",
    ),
    "a history": (
        lambda: orders().join(items(), on="item"),
        lambda: orders().join(items(versioned="1 hour"), on="item"),
        r"plan.right.versioned_us was null and is 3600000000",
    ),
    "another window of streams": (
        streams,
        lambda: streams(before="6 min"),
        r"plan.before_us was 300000000 and is 360000000",
    ),
    "another grace of streams": (streams, lambda: streams(grace="1 min"), r"plan.grace_us was"),
    "another mode of what has no match": (
        streams,
        lambda: streams(unmatched="eager"),
        r'plan.unmatched was "on_close" and is "eager"',
    ),
    "late records that correct the past": (
        histories,
        lambda: histories(late="history"),
        r'plan.of was "tables by key" and is "histories by key"',
    ),
    "rows that wait": (
        histories,
        lambda: histories(align="1 s"),
        r"plan.align was false and is true",
    ),
    "a result that is kept": (
        lambda: orders().join(items(), on="item"),
        lambda: orders().join(items(), on="item").materialize(),
        r"plan was an inner join of tables by foreign key and is the result of the result of",
    ),
    "another selection of a result that is kept": (
        lambda: orders().join(items(), on="item", select=["n"]).materialize(),
        lambda: orders().join(items(), on="item", select={"n": "left.m"}).materialize(),
        r'plan.materialized.result.select was \[\["n", \["left", "n"\]\]\] and is',
    ),
    "another time to live": (
        lambda: orders().expire(after="1 day"),
        lambda: orders().expire(after="2 days"),
        r"plan.after_us was 86400000000 and is 172800000000",
    ),
    "a table that no longer expires": (
        lambda: orders().expire(after="1 day").join(items(), on="item"),
        lambda: orders().materialize().join(items(), on="item"),
        r"left.result was table orders with rows that expire and is the result of table orders",
    ),
    "sides that change places": (two, lambda: two("b", "a"), r'left.table was "a" and is "b"'),
    "a view of a table": (
        two,
        lambda: two(v="v"),
        r"plan.left was table a and is a view of table a",
    ),
    "another name of a table": (two, lambda: two("a", "c"), r'right.table was "b" and is "c"'),
    "another accumulator": (
        product,
        lambda: product(state="result"),
        r"user-defined by .*: product int64 to int64.* and is .*: result int64 to int64",
    ),
    "a user's function of another name": (
        product,
        lambda: product(add=lambda state, value: state),
        r"plan.aggregate was .*multiplied.* and is .*lambda",
    ),
    "a result in place of a table": (
        lambda: orders().group_by("item").agg(n=dt.sum("n")),
        lambda: orders().join(items(), on="item").group_by("item").agg(n=dt.sum("n")),
        r"plan.of was table orders and is the result of an inner join of tables by foreign key",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_topology_is_refused_with_the_differences(case: str) -> None:
    """Also by a driver that nothing was piped into."""
    then, now, message = OTHERS[case]
    snapshot = Driver(then()).snapshot()
    with pytest.raises(dt.errors.CheckpointError, match=f"another topology: .*{message}"):
        Driver.restore(now(), snapshot)
    Driver.restore(then(), snapshot)


SAME: dict[str, tuple[Make, Make]] = {
    "another last selection by foreign key": (
        lambda: orders().join(items(), on="item"),
        lambda: orders().join(items(), on="item", select={"title": "right.title"}),
    ),
    "another selection in a tree by key": (
        lambda: two().join(items(), on="x"),
        lambda: two().join(items(), on="x", select=["title"]),
    ),
    "another selection of streams": (
        streams,
        lambda: clicks().join(
            testing.stream("views", key="id", schema={"id": NUMBER, "page": TEXT}),
            within=dt.within(**WITHIN),
            how="left",
            select=["page"],
            align=None,
        ),
    ),
    "another selection of windows": (
        lambda: trend(windows="on_change"),
        lambda: trend(windows="on_change", select={"now": "left.n"}),
    ),
    "another stream of windows": (
        lambda: hours().to_stream(),
        lambda: hours().to_stream(select={"item": "item", "hits": "n"}),
    ),
    "another span to wait": (lambda: histories(align="1 s"), lambda: histories(align="2 s")),
    "another name of a join": (histories, lambda: histories(name="joined")),
}


@pytest.mark.parametrize("case", SAME)
def test_what_no_state_depends_on_may_change(case: str) -> None:
    then, now = SAME[case]
    Driver.restore(now(), Driver(then()).snapshot())


def test_a_query_goes_on_with_another_last_selection() -> None:
    """With all that is stored, also of columns that it did not select before."""
    left, right = orders(), items()
    driver = Driver(left.join(right, on="item", select=["n"]))
    driver.pipe(left, {"id": 1, "item": "a", "n": 2, "m": 3}, timestamp=1)
    joined = left.join(right, on="item", select=["m", "title"])
    driver = Driver.restore(joined, driver.snapshot())
    (change,) = driver.pipe(right, {"sku": "a", "title": "A"}, timestamp=2)
    assert (change.key, change.values) == ({"id": 1}, {"m": 3, "title": "A"})


def test_tables_that_nothing_tells_apart_are_refused() -> None:
    driver = Driver(two("a", "a"))
    with pytest.raises(
        dt.errors.PlanError, match=r"^table a: another one has the same name and the same"
    ):
        Driver.restore(two("a", "a"), driver.snapshot())


def expressed(net: Column) -> dt.Table:
    joined = orders().join(items(), on="item", select={"net": net, "title": "right.title"})
    return joined.group_by("title").agg(total=dt.sum("net"))


EXPRESSIONS: dict[str, tuple[Make, Make, str, str]] = {
    "a selection between stages": (
        lambda: expressed(F.col("left.n") * 1.25),
        lambda: expressed(F.col("left.n") * 2.0),
        "CAST(left.`n` AS DOUBLE) * 1.25D",
        "CAST(left.`n` AS DOUBLE) * 2.0D",
    ),
    "a foreign key": (
        lambda: orders().join(by_pair("a"), on=F.col("n") + 0),
        lambda: orders().join(by_pair("a"), on=F.col("m") + 0),
        "(n + CAST(0 AS BIGINT))",
        "(m + CAST(0 AS BIGINT))",
    ),
    "a window": (
        lambda: looked(F.date_trunc("hour", "at")),
        lambda: looked(F.date_trunc("hour", "since")),
        "date_trunc('hour', at)",
        "date_trunc('hour', since)",
    ),
    "a windowed table's columns": (
        lambda: emitted(select={"item": "item", "n": F.col("n") * 2}),
        lambda: emitted(select={"item": "item", "n": F.col("n") * 3}),
        "(n * CAST(2 AS BIGINT))",
        "(n * CAST(3 AS BIGINT))",
    ),
    "a function of elements": (
        lambda: expressed(F.transform(F.array("left.n", "left.m"), lambda x, i: x - i)[0]),
        lambda: expressed(F.transform(F.array("left.n", "left.m"), lambda x, i: i - x)[0]),
        "(lambda 0 - cast(lambda 1 as bigint))",
        "(cast(lambda 0 as bigint) - lambda 1)",
    ),
}


@pytest.mark.parametrize("case", EXPRESSIONS)
def test_expressions_are_compared_by_their_text(spark: SparkSession, case: str) -> None:
    then, now, was, is_ = EXPRESSIONS[case]
    old, new = (str(describe(make().plan)) for make in (then, now))
    assert was in old
    assert is_ in new
    assert fingerprint(then().plan) == fingerprint(then().plan) != fingerprint(now().plan)


def test_texts_do_not_depend_on_when_they_are_made(spark: SparkSession) -> None:
    """Spark counts columns, lambdas and calls of Python functions through a session."""

    @F.udf("long", useArrow=False)
    def twice(number: int) -> int:
        return 2 * number

    def made() -> list[str]:
        array = F.array("left.n", "left.m")
        expressions = [
            F.aggregate(array, F.lit(0).cast("long"), lambda total, x: total + x),
            F.element_at(F.transform(array, lambda x: F.size(F.filter(array, lambda y: y > x))), 1),
            twice(F.col("left.n") + 1) + twice("left.m"),
            F.col("left.n") + (F.rand() * 10).cast("long"),
            F.expr("left.n + 1"),
        ]
        return [fingerprint(expressed(expression.cast("long")).plan) for expression in expressions]

    first = made()
    assert len(set(first)) == len(first)
    assert made() == first


def test_how_a_table_is_read_is_part_of_it(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "k long, v string, op string, t timestamp, u timestamp")

    def read(timestamp: Any = "t", deleted: Any = None, key: str = "k") -> str:
        rows = frame.select("k", "v", "op", "t", "u")
        table = dt.Table.from_changelog(
            rows, key=key, timestamp=timestamp, deleted=deleted, name="rows"
        )
        return fingerprint(table.plan)

    gone = F.col("op") == "d"
    texts = [read(), read(F.col("u")), read(deleted=gone), read(deleted=F.col("op") == "x")]
    assert len({*texts, read(key="v")}) == 5
    assert texts == [read(), read(F.col("u")), read(deleted=gone), read(deleted=F.expr("op = 'x'"))]
