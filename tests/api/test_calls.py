"""Every argument of every public function, given what it does not take: one of the library's errors
names the operator, the argument and the remedy.

``CALLS`` has a line for each argument. It says which values of ``POOL`` are right; all others of it
must be refused, and what the line adds as ``wrong``. A function or an option without a line fails.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import iceberg_tables
import pandas as pd
import pyarrow as pa
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from public_names import exported
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType
from pyspark.sql.window import Window
from small_session import SMALL_TABLES, applied

import dovetail as dt
from dovetail import testing


class World:
    """Frames, tables and streams of every kind; nothing of it runs."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        columns = "id long, amount long, at timestamp, gone boolean, n int, tags map<string,int>"
        (folder / "changes").mkdir()
        (folder / "file").write_text("no folder")
        self.static: DataFrame = spark.createDataFrame([], columns)
        self.live = spark.readStream.schema(columns).json(str(folder / "changes"))
        self.other = spark.range(3)
        self.records = spark.createDataFrame([], "key string, value string, timestamp timestamp")
        self.orders = self.table("orders", self.live)
        self.payments = self.table("payments", self.live)
        self.visits = self.visited("visits", self.live)
        self.past = self.table("past", self.live, versioned="1 day")
        self.clicks = self.stream("clicks", self.live)
        self.views = self.stream("views", self.live)
        self.hours = (
            self.clicks.group_by("id").window(dt.windows.tumbling("1 hour")).agg(n=dt.count())
        )
        week = dt.windows.tumbling("1 hour", retention="8 days")
        self.weekly = self.clicks.group_by("id").window(week).agg(n=dt.count())
        self.days = (
            self.clicks.group_by("id").window(dt.windows.tumbling("1 hour")).agg(m=dt.count())
        )
        schema = {"id": pa.int64(), "amount": pa.int64()}
        self.fed = testing.table("fed", key="id", schema=schema)
        self.driver = testing.Driver(self.fed)

    def table(self, name: str, frame: DataFrame, **options: Any) -> dt.Table:
        frame = frame.select("id", F.col("amount").alias(name), F.col("n").alias(f"{name}_n"), "at")
        return dt.Table.from_changelog(frame, key="id", timestamp="at", name=name, **options)

    def visited(self, name: str, frame: DataFrame) -> dt.Table:
        frame = frame.select("id", F.col("amount").alias(name), F.col("at").alias("t"), "at")
        return dt.Table.from_changelog(frame, key="id", timestamp="at", name=name)

    def stream(self, name: str, frame: DataFrame) -> dt.Stream:
        frame = frame.select("id", F.col("amount").alias(name), F.col("at").alias("t"), "at")
        return dt.Stream.from_changelog(frame, key="id", timestamp="at", name=name)

    def looked_up(self, name: str) -> dt.Table:
        return self.table(name, self.live).with_lookup(dt.lookups.sqlite("f.db", name, key="id"))

    def new_folder(self) -> str:
        return str(self.folder / uuid4().hex)

    @cached_property
    def query(self) -> Any:
        query = self.orders.write_stream(
            dt.to_memory("of_orders"),
            checkpoint=self.new_folder(),
            trigger={"availableNow": True},
            buckets=1,
        )
        query.awaitTermination()
        return query

    @property
    def letters(self) -> DataFrame:
        """Dead letters of orders with mended columns."""
        columns = (
            "_operator string, row string, _timestamp timestamp, id long, orders long, "
            "orders_n int, at timestamp"
        )
        return self.spark.createDataFrame([], columns)

    @cached_property
    def a(self) -> dt.SnapshotTable:
        return dt.SnapshotTable.from_delta(self.spark, self.snapshot("a"), key="id")

    @cached_property
    def b(self) -> dt.SnapshotTable:
        return dt.SnapshotTable.from_delta(self.spark, self.snapshot("b"), key="id")

    @cached_property
    def changelog(self) -> str:
        path = str(self.folder / "changelog")
        rows = "id", "'upsert' AS _change", "now() AS _timestamp", "id AS _position"
        self.spark.range(1).selectExpr(*rows).write.parquet(path)
        return path

    @cached_property
    def iceberg(self) -> dict[str, str]:
        catalog = iceberg_tables.properties(self.folder)
        schema = pa.schema([("id", pa.int64()), ("a", pa.int64())])
        iceberg_tables.opened(catalog).create_table("shop.orders", schema)
        return catalog

    @cached_property
    def changing(self) -> str:
        """The name of a Delta table whose changes are read by Spark's own call."""
        self.spark.conf.set("spark.databricks.delta.changelogV2.enabled", "true")
        table = f"delta.`{self.folder / 'changing'}`"
        tracked = "TBLPROPERTIES (delta.enableRowTracking = true)"
        self.spark.sql(f"CREATE TABLE {table} (id LONG, a LONG) USING delta {tracked}")
        return table

    def snapshot(self, name: str) -> str:
        path = str(self.folder / name)
        if not Path(path).exists():
            feed = "delta.enableChangeDataFeed"
            rows = self.spark.range(3).select("id", F.col("id").alias(name))
            rows.writeTo(f"delta.`{path}`").using("delta").tableProperty(feed, "true").create()
        return path


Of = Callable[[World], Any]


@dataclass(frozen=True)
class Given:
    """A value that the world has."""

    of: Of


POOL: dict[str, Any] = {
    "None": None,
    "empty text": "",
    "text": "nonsense",
    "column": "id",
    "span": "5 min",
    "zero": 0,
    "number": 3,
    "negative": -1,
    "huge": 2**80,
    "fraction": 1.5,
    "nan": math.nan,
    "True": True,
    "bytes": b"id",
    "empty list": [],
    "names": ["id"],
    "list of None": [None],
    "list of numbers": [3],
    "set": {"id"},
    "empty mapping": {},
    "mapping of numbers": {3: 3},
    "object": object(),
    "function": lambda *_: None,
    "class": dt.Table,
    "path": Path("folder"),
    "expression": Given(lambda _: F.lit(1)),
    "pandas frame": pd.DataFrame({"id": [1]}),
    "arrow table": pa.table({"id": [1]}),
    "static frame": Given(lambda w: w.static),
    "streaming frame": Given(lambda w: w.live),
    "table": Given(lambda w: w.orders),
    "stream": Given(lambda w: w.clicks),
    "windowed table": Given(lambda w: w.hours),
    "snapshot table": Given(lambda w: w.a),
    "aggregate": dt.count(),
    "session": Given(lambda w: w.spark),
}


@dataclass(frozen=True)
class Line:
    """The values of the pool that an argument takes; ``wrong``: others that it refuses.

    ``says``: what an error says instead of the name of an argument, such as that of a row.
    ``untried``: values of the pool that are wrong and left to another call.
    """

    right: frozenset[str]
    wrong: tuple[Any, ...]
    says: str | None
    untried: frozenset[str] = frozenset()


def line(*right: str, wrong: tuple[Any, ...] = (), says: str | None = None) -> Line:
    assert set(right) <= POOL.keys(), set(right) - POOL.keys()
    return Line(frozenset(right), wrong, says)


def passed_on(line: Line) -> Line:
    """Of an argument that goes on to code whose lines another call has: values of other types, and
    one wrong value. To try each takes a frame anew.
    """
    texts = {"empty text", "text", "column", "span"}
    return replace(line, wrong=line.wrong[:1], untried=frozenset(texts - line.right))


@dataclass(frozen=True)
class Call:
    """A right call, of which a test replaces one argument; ``arguments``: their lines. ``jar``: the
    one it needs, of Delta Lake or Kafka; ``runs``: a right call starts something, and is not made.
    """

    of: Callable[[World], Callable[..., Any]]
    arguments: Mapping[str, Line]
    jar: str | None
    runs: bool

    def made(self, world: World) -> Callable[[str, Any], Any]:
        """The call, as a function of one argument's name and value."""
        function = self.of(world)
        parameters = inspect.signature(inner(function)).parameters

        def replaced(argument: str, value: Any) -> Any:
            one = value.of(world) if isinstance(value, Given) else value
            if parameters[argument].kind is inspect.Parameter.VAR_POSITIONAL:
                return function(one)
            return function(**{argument: one})

        return replaced


def inner(function: Any) -> Any:
    return function.func if isinstance(function, partial) else function


def call(
    of: Callable[[World], Callable[..., Any]],
    /,
    *,
    jar: str | None = None,
    runs: bool = False,
    lines: Mapping[str, Line] | None = None,
    **arguments: Line,
) -> Call:
    return Call(of, {**(lines or {}), **arguments}, jar, runs)


FLAG = line("True")
PREVIEW = {
    "n": line("number"),
    "changes": FLAG,
    "input_rows": line("number"),
    "timeout_s": line("number", "fraction", wrong=(-1.0,)),
}
TRIGGERS = (
    *({"once": True}, {"continuous": "1 s"}, {"availableNow": False}, {"every": "1 s"}, {}),
    *({"processingTime": "10 bananas"}, {"processingTime": 5}, {"processingTime": None}),
    {"processingTime": "1 s", "availableNow": True},
)
TABLES = line("empty list", "empty mapping", "pandas frame", "arrow table", "static frame")
NAME = line("None", "text", "column", "span")
NAMED = line("text", "column", "span")
ANYTHING = line(*POOL)
CHANGE = testing.Change({"id": 1}, None, 1, "delete", 0)


def explaining(w: World) -> Callable[..., Any]:
    """A right call of ``Driver.explain_change``."""
    driver = testing.Driver(w.fed)
    (change,) = driver.pipe(w.fed, {"id": 1, "amount": 2}, timestamp=1)
    return partial(driver.explain_change, change=change)


COLUMN = line("text", "column", "span", "empty text")
SPAN = line("span", wrong=("soon", "-5 min", "5", "99999999999 days", "5 months"))
MAYBE_SPAN = line("None", "span", wrong=SPAN.wrong)
IDLE = line("None", wrong=(*SPAN.wrong, "1 min"), says="nothing waits for stream time")
POSITIVE = line("None", "number")
LISTS = ("empty list", "names", "list of None", "list of numbers")
NATURAL = line("zero", "number")
BUCKETS = line("None", "number", wrong=(1 << 17,))
EMIT = line(wrong=("final", "all"))
OPTIONS = line("None", "empty mapping", wrong=({"a": 1},))
SESSION = line("session")
KEY = line("column", "names", wrong=("nope", ["id", "id"], ["id", "ID"], "tags", "at"))
FOREIGN = Given(lambda w: w.other.id)
BEYOND_A_ROW = (
    Given(lambda _: F.max("n")),
    Given(lambda _: F.explode(F.array("n"))),
    Given(lambda _: F.row_number().over(Window.orderBy("n"))),
    Given(lambda _: F.col("*")),
    Given(lambda _: F.expr("nope(n)")),
)
ROLE = line("None", wrong=("nope", "tags", FOREIGN, *BEYOND_A_ROW))
MALFORMED = line(wrong=("skip",))
ROLES = {
    "frame": line("static frame", "streaming frame"),
    "key": KEY,
    "timestamp": line(wrong=ROLE.wrong),
    "deleted": ROLE,
    "sequence": line("None", "expression", wrong=ROLE.wrong),
    "log_partition": line("None", wrong=("n", *ROLE.wrong)),
    "shared_log": line(),
    "malformed": MALFORMED,
    "max_ahead": MAYBE_SPAN,
    "name": NAME,
}
TOPIC = {
    "spark": SESSION,
    "topic": line("text", "column", wrong=("a b", "a,b", "a/b", "x" * 250)),
    "servers": line(wrong=("localhost", "localhost:", ":9092", "a:1,,b:2")),
    "key": line(wrong=("json", {"a": "long"}, {"_offset": LongType()})),
    "value": line("empty mapping", wrong=("json", {"a": "long"}, {"_offset": LongType()})),
    "starting": line(wrong=("latest offset", "{")),
    "max_per_trigger": POSITIVE,
    "streaming": FLAG,
    "options": OPTIONS,
}
RECORDS = {
    "key": line("None", wrong=TOPIC["key"].wrong),
    "value": TOPIC["value"],
    "key_columns": line("None", "empty list", wrong=("nope", ["nope"])),
    "timestamp": line("None", wrong=ROLE.wrong),
    "deleted": ROLE,
    "metadata": line("None", "empty mapping", wrong=({"x": "lsn"}, {"value": "headers."})),
    "name": NAME,
    "malformed": MALFORMED,
    "max_ahead": MAYBE_SPAN,
}
TOPIC_TABLE = RECORDS | TOPIC | {"key": RECORDS["key"]}
TOPIC_TABLE |= {name: passed_on(RECORDS[name]) for name in RECORDS.keys() - TOPIC}
SELECT = line(
    "None",
    "empty list",
    "empty mapping",
    "names",
    wrong=(
        *(["nope"], ["left.nope"], ["left."], [""], {"x": "nope"}, {"id": "left.n"}, {"": "id"}),
        *({"_change": "id"}, {"a": "id", "A": "n"}),
        *(Given(lambda w, one=one: {"x": one.of(w)}) for one in (FOREIGN, *BEYOND_A_ROW)),
    ),
)
ITEM = line("column", "expression", wrong=("nope", FOREIGN, *BEYOND_A_ROW))
ERRORS = line(wrong=("drop", "raise"))
AS_ORDERS = {"payments": "orders", "payments_n": "orders_n"}
HOW = line("None", wrong=("full", "cross", "LEFT"))
UNREPEATABLE = tuple(
    Given(lambda _, text=text: {"x": F.expr(text)})
    for text in (
        "rand()",
        "uuid()",
        "current_timestamp()",
        "now()",
        "current_date()",
        "current_user()",
    )
)
UNREACHABLE = ("s3://bucket/folder", "nope://host/folder", "hdfs://", "a:b")
LOOKED_UP = {
    "table": NAMED,
    "key": line("text", "column", "span", "names", "empty text"),
    "indexes": line("empty list"),
    "where": line("None", "empty mapping", wrong=({"a": object()}, {"a": [[1]]})),
    "timeout_s": line("number", "fraction", wrong=(math.inf,)),
    "retries": NATURAL,
}
TARGETS = (*UNREACHABLE, "/proc/nothing", Given(lambda w: w.folder / "file"))
WINDOWS = {"grace": SPAN, "retention": line("None", wrong=(*SPAN.wrong, "1 s"))}
MOMENT = line("zero", "number", "negative")


def of_topic(read: Callable[..., Any], lines: Mapping[str, Line], **more: Line) -> Call:
    given = {"topic": "t", "servers": "localhost:9092", "key": "string", "value": "string"}
    return call(lambda w: partial(read, spark=w.spark, **given), lines=lines, jar="kafka", **more)


TARGET = line("text", "column", "span", "path", wrong=TARGETS)
CALLS: dict[str, Call] = {
    "Planned.explain": call(lambda w: w.orders.explain, format=line(wrong=("png",)), reasons=FLAG),
    "Planned.preview": call(lambda w: w.orders.preview, runs=True, lines=PREVIEW),
    "Planned.show": call(lambda w: w.orders.show, runs=True, lines=PREVIEW),
    "Planned.__init__": call(lambda _: dt.Table, plan=line()),
    "Topology.from_changelog": call(
        lambda w: partial(dt.Table.from_changelog, frame=w.static, key="id", timestamp="at"),
        lines=ROLES,
        versioned=MAYBE_SPAN,
    ),
    # One function reads tables and streams. Their arguments are checked as those of a table.
    "Topology.from_changelog (stream)": call(
        lambda w: partial(dt.Stream.from_changelog, frame=w.static, key="id", timestamp="at"),
        versioned=line("None"),
    ),
    "Topology.from_changelog (sequence)": call(
        lambda w: partial(
            dt.Table.from_changelog, frame=w.static, key="id", timestamp="at", sequence="n"
        ),
        log_partition=line("None", "expression", wrong=ROLE.wrong),
        shared_log=FLAG,
    ),
    "Topology.from_topic": of_topic(
        dt.Table.from_topic, TOPIC_TABLE, versioned=passed_on(MAYBE_SPAN)
    ),
    "Topology.from_topic (stream)": of_topic(dt.Stream.from_topic, {}, versioned=line("None")),
    "Topology.from_records": call(
        lambda w: partial(dt.Table.from_records, frame=w.records, key="string", value="string"),
        lines=RECORDS,
        frame=line(),
        sequence=passed_on(ROLES["sequence"]),
        log_partition=passed_on(ROLES["log_partition"]),
        versioned=passed_on(MAYBE_SPAN),
    ),
    "TableSources.from_static": call(
        lambda w: partial(dt.Table.from_static, frame=w.static, key="id", name="static"),
        frame=line("static frame", says="its frame is a streaming one"),
        key=line("column", "names", wrong=("nope", ["id", "id"], ["id", "ID"], "tags")),
        duplicates=line(wrong=("first",)),
        name=NAME,
    ),
    "TableSources.from_iceberg": call(
        lambda w: partial(
            dt.Table.from_iceberg,
            spark=w.spark,
            table="shop.orders",
            catalog=w.iceberg,
            key="id",
        ),
        spark=SESSION,
        table=line(wrong=("shop.none",)),
        catalog=line(wrong=({"type": "nonsense"},)),
        key=KEY,
        snapshot=line("None", wrong=(7,)),
        timestamp=passed_on(ROLE),
        malformed=MALFORMED,
        max_ahead=passed_on(MAYBE_SPAN),
        columns=line("None", "column", "names", "empty list", wrong=("nope", ["a", "a"])),
        versioned=passed_on(MAYBE_SPAN),
        name=NAME,
        streaming=FLAG,
        max_snapshots=line("None", "number"),
    ),
    "TableSources.from_changes": call(
        lambda w: partial(
            dt.Table.from_changes, spark=w.spark, table=w.changing, key="id", version=0
        ),
        jar="delta",
        spark=SESSION,
        table=line(wrong=("nothing",)),
        key=KEY,
        version=line("zero"),
        timestamp=passed_on(ROLE),
        malformed=MALFORMED,
        max_ahead=passed_on(MAYBE_SPAN),
        columns=line("None", "column", "names", "empty list", wrong=("nope", ["a", "a"])),
        versioned=passed_on(MAYBE_SPAN),
        name=NAME,
        streaming=FLAG,
        options=OPTIONS,
    ),
    "TableSources.from_delta": call(
        lambda w: partial(
            dt.Table.from_delta, spark=w.spark, path=w.snapshot("a"), key="id", version=0
        ),
        jar="delta",
        spark=SESSION,
        path=line(),
        table=line("None"),
        key=KEY,
        version=line("None", "zero", "number"),
        key_updates=FLAG,
        timestamp=passed_on(ROLE),
        malformed=MALFORMED,
        max_ahead=passed_on(MAYBE_SPAN),
        columns=line("None", "column", "names", "empty list", wrong=("nope", ["a", "a"])),
        versioned=passed_on(MAYBE_SPAN),
        name=NAME,
        streaming=FLAG,
        options=OPTIONS,
    ),
    "json": call(
        lambda _: partial(dt.formats.json, schema="at timestamp"),
        schema=line("None", "empty text", "empty mapping", wrong=("id lang", "long")),
        framed=FLAG,
        encodings=line("None", "empty mapping", wrong=({"at": "epoch_days"}, {"at": "millis"})),
    ),
    "maxwell": call(
        lambda _: dt.formats.maxwell,
        schema=line("empty text", "empty mapping", wrong=("id lang", "long")),
    ),
    "canal": call(
        lambda _: dt.formats.canal,
        schema=line("empty text", "empty mapping", wrong=("id lang", "long", "a array<int>")),
    ),
    "avro": call(
        lambda _: partial(dt.formats.avro, schema='"string"'),
        schema=line(wrong=("{", "[]")),
        registry=line("None"),
        subject=line("None"),
    ),
    "protobuf": call(
        lambda _: partial(dt.formats.protobuf, message=Timestamp),
        message=line(wrong=("google.protobuf.Timestamp",)),
        descriptors=line("None"),
        framed=FLAG,
        registry=line("None"),
        subject=NAME,
    ),
    "registry": call(
        lambda _: partial(dt.formats.registry, address="http://localhost:8081"),
        address=line("text", "column", "span", "path"),
        auth=line("None", "text", "column", "span", "empty text", wrong=(("a",), ("a", "b", "c"))),
        timeout_s=line("number", "fraction"),
    ),
    "debezium": call(
        lambda _: partial(dt.formats.debezium, schema="id long, at timestamp"),
        schema=line("empty text", "empty mapping", wrong=("id lang", "long")),
        avro=line("None"),
        encodings=line("None", "empty mapping", wrong=({"no": "Time"}, {"at": "Timestump"})),
        metadata=line("None", "empty mapping", wrong=({"lsn": "lsn"},)),
        truncate=line(wrong=("drop",)),
        tombstones=line(wrong=("drop",)),
        placeholder=line("text", "column", "span", wrong=("hex:no",)),
        framed=FLAG,
        unsent=line(wrong=("drop",)),
        transactions=FLAG,
    ),
    "read_topic": of_topic(dt.read_topic, TOPIC | {"key": TOPIC["value"]}),
    "Table.join": call(
        lambda w: partial(w.orders.join, right=w.payments, select=["orders", "payments"]),
        right=line(),
        on=line(
            *("None", "column", "names"),
            wrong=("nope", "n", ["id", "n"], {"id": "nope"}, FOREIGN, *BEYOND_A_ROW),
        ),
        how=HOW,
        select=SELECT,
        errors=ERRORS,
        late=line(wrong=("history", "drop")),
        align=MAYBE_SPAN,
        spread=line("None", wrong=(0, 4, 2.5)),
        window_of=line("None", wrong=("at",)),
        delta_join=line(
            "None", wrong=(dt.delta_join(strategy="force"),), says="limitations are broken"
        ),
        name=NAME,
    ),
    "Table.join (windows)": call(
        lambda w: partial(w.visits.join, right=w.hours, window_of="t"),
        on=line("None", "column", "names", wrong=("n", {"id": "n"})),
        how=line("None", wrong=("inner", "outer", "right")),
        window_of=line(wrong=("nope", "id", "visits", FOREIGN, *BEYOND_A_ROW)),
        late=line(wrong=("history",)),
        align=line("None"),
        delta_join=line("None", wrong=(dt.delta_join(),)),
    ),
    "Table.join (lookups)": call(
        lambda w: partial(
            w.looked_up("a").join,
            right=w.looked_up("b"),
            delta_join=dt.delta_join(strategy="force"),
        ),
        right=line(says="limitations are broken"),
        on=line(
            *("None", "column", "names"),
            wrong=("nope", ["id", "id"], {"id": "nope"}, {"a": "b"}),
            says="limitations are broken",
        ),
        how=HOW,
        select=passed_on(SELECT),
        name=NAME,
    ),
    **{
        name: call(
            lambda _, name=name: getattr(dt, name, dt.typing.DeltaJoinOptions),
            strategy=line(wrong=("always",)),
            left_cache=NATURAL,
            right_cache=NATURAL,
        )
        for name in ("delta_join", "DeltaJoinOptions.__init__")
    },
    "TableRows.with_lookup": call(
        lambda w: partial(
            w.orders.with_lookup, source=dt.lookups.sqlite("f.db", "orders", key="id")
        ),
        source=line(wrong=(dt.lookups.sqlite("f.db", "orders", key="n"),), says="sqlite orders"),
        changes=line("None", wrong=("retract",)),
    ),
    "StoreLookups.lookup": call(
        lambda w: partial(
            w.clicks.lookup,
            source=dt.lookups.sqlite("f.db", "users", key="id"),
            columns="id long, city string",
        ),
        source=line(wrong=(dt.lookups.sqlite("f.db", "users", key="nope"),), says="lacks 'nope'"),
        columns=line(wrong=("city string", "id", "id nope", {"id": 1}, {"city": pa.string()})),
        on=line(
            *("None", "column", "names"),
            wrong=("nope", ["id", "id"], {"id": "nope"}, {"id": "city"}),
        ),
        how=line(wrong=("outer", "right")),
        select=SELECT,
        errors=ERRORS,
        cache=line("None"),
        name=NAME,
    ),
    "cache": call(
        lambda _: partial(dt.lookups.cache, max_age="1 min"), max_age=SPAN, rows=line("number")
    ),
    "Topology.with_replays": call(
        lambda w: w.orders.with_replays,
        runs=True,  # a folder is made
        folder=line(
            *("text", "column", "span", "path"), wrong=(Given(lambda w: w.folder / "file"),)
        ),
    ),
    "replay": call(
        lambda w: partial(
            dt.replay,
            mended=w.letters,
            into=w.orders.with_replays(w.new_folder()),
        ),
        mended=line(wrong=(Given(lambda w: w.letters.drop("at")),)),
        into=line(),
    ),
    "Topology.where": call(
        lambda w: partial(w.orders.where, condition="orders > 1"),
        condition=line(wrong=("nope > 1", FOREIGN, *BEYOND_A_ROW)),
        errors=ERRORS,
    ),
    "Topology.expect": call(
        lambda w: partial(w.orders.expect, condition="orders > 1"),
        condition=line(wrong=("nope > 1", FOREIGN, *BEYOND_A_ROW)),
        on_fail=line(wrong=("ignore",)),
        name=line("text", "span", "column", "None", wrong=("a#b",), says="without #"),
    ),
    "Topology.select": call(lambda w: w.orders.select, columns=ITEM, errors=ERRORS, named=ITEM),
    "Topology.with_columns": call(lambda w: w.orders.with_columns, errors=ERRORS, named=ITEM),
    "Topology.drop": call(lambda w: w.orders.drop, columns=line(wrong=("nope",))),
    "Topology.rename": call(
        lambda w: w.orders.rename,
        names=line(
            "empty mapping",
            wrong=({"nope": "a"}, {"orders": ""}, {"orders": "_change"}, {"orders": "id"}),
            says="a name that changelogs use|occurs twice",
        ),
    ),
    "TableRows.key_by": call(
        lambda w: partial(w.orders.key_by, key=F.lit(1)),
        columns=line("column"),
        duplicates=line(wrong=("first",)),
        errors=ERRORS,
        named=ITEM,
    ),
    "Table.union": call(
        lambda w: partial(w.orders.union, w.payments.rename(AS_ORDERS), source="of"),
        tables=line(wrong=(Given(lambda w: w.payments),)),
        source=line("text", "span", wrong=("_change", "orders")),
        name=NAME,
    ),
    "Stream.union": call(
        lambda w: partial(w.clicks.union, w.views.rename({"views": "clicks"})),
        streams=line(wrong=(Given(lambda w: w.views),)),
        name=NAME,
    ),
    "Stream.key_by": call(
        lambda w: partial(w.clicks.key_by, key="clicks"),
        columns=line("column"),
        errors=ERRORS,
        named=ITEM,
    ),
    "Stream.deduplicate": call(lambda w: w.clicks.deduplicate, within=SPAN),
    "Table.to_changes": call(
        lambda w: w.orders.to_changes,
        column=line("text", "span", wrong=("id", "_change"), says="a name that changelogs use"),
        kinds=line(wrong=(["a", "b", "c"], [*"abca"], "ibad")),
    ),
    "TableRows.expire": call(lambda w: w.orders.expire, after=SPAN),
    "TableRows.explode": call(
        lambda w: partial(w.orders.with_columns(items=F.array("orders")).explode, column="items"),
        column=line(wrong=("nope", "orders")),
        position=line("text", "span", "None", wrong=("_change",), says="a name"),
    ),
    "TableRows.keep_former": call(
        lambda w: partial(
            w.orders.with_columns(gone=F.array(F.lit("orders"))).keep_former, unsent="gone"
        ),
        unsent=line(wrong=("nope", "orders")),
        missing=line(wrong=("error",)),
    ),
    "TableRows.ignore_null_updates": call(
        lambda w: w.orders.ignore_null_updates,
        columns=line("None", wrong=("nope", ["orders", "orders"])),
    ),
    "TableRows.retire": call(
        lambda w: partial(
            w.orders.with_columns(mark=F.lit("first"), n=F.lit(1).cast("long")).retire,
            snapshot="mark",
            at="n",
        ),
        snapshot=line(wrong=("nope", "n")),
        at=line(wrong=("nope", "mark")),
    ),
    "Stream.explode": call(lambda w: w.clicks.explode, column=line(wrong=("nope", "clicks"))),
    "Table.group_by": call(lambda w: w.orders.group_by, columns=COLUMN),
    "GroupedTable.agg": call(
        lambda w: w.orders.group_by("orders_n").agg, aggregates=line("aggregate")
    ),
    "Stream.group_by": call(lambda w: w.clicks.group_by, columns=COLUMN),
    "GroupedStream.agg": call(lambda w: w.clicks.group_by("id").agg, aggregates=line("aggregate")),
    "GroupedStream.window": call(lambda w: w.clicks.group_by("id").window, windows=line()),
    "WindowedStream.agg": call(
        lambda w: w.clicks.group_by("id").window(dt.windows.session("1 min")).agg,
        aggregates=line("aggregate"),
    ),
    "Stream.join": call(
        lambda w: partial(w.clicks.join, right=w.past),
        right=line("table"),
        how=HOW,
        on=line("None", "column", "names", wrong=("nope", "t", ["id", "clicks"])),
        within=line("None", wrong=(dt.within(after="0 s"),)),
        unmatched=line(wrong=("eager", "later")),
        grace=line("None", "span", wrong=(*SPAN.wrong, "2 days")),
        load=line("None", wrong=("last",)),
        select=passed_on(SELECT),
        errors=ERRORS,
        align=MAYBE_SPAN,
        window_of=line("None", wrong=("t",)),
        name=NAME,
    ),
    "Stream.join (streams)": call(
        lambda w: partial(
            w.clicks.join, right=w.views, within=dt.within(after="0 s"), select=["clicks"]
        ),
        within=line(),
        on=line("None", "column", "names", wrong=("t", {"id": "t"})),
        unmatched=line(wrong=("later",)),
        how=line("None", wrong=("right",)),
    ),
    "Stream.join (windows)": call(
        lambda w: partial(w.clicks.join, right=w.hours, window_of="t"),
        how=line("None", wrong=("inner", "outer", "right")),
        window_of=line(wrong=("nope", "id", "clicks", FOREIGN, *BEYOND_A_ROW)),
    ),
    "WindowedTable.join": call(
        lambda w: partial(w.hours.join, right=w.days),
        right=line("table", wrong=(Given(lambda w: w.hours),)),
        on=line("None", "column", "names", wrong=("n", {"id": "m"})),
        how=HOW,
        shift=line("None", wrong=(*SPAN.wrong, "5 min")),
        select=passed_on(SELECT),
        name=NAME,
    ),
    "WindowedTable.join (shifted)": call(
        lambda w: partial(w.weekly.join, right=w.weekly, shift="-1 day", select=["left.n"]),
        how=line("None", wrong=("inner", "outer", "right")),
        shift=line("None", wrong=(*SPAN.wrong, "5 min")),
    ),
    "WindowedTable.join (table)": call(
        lambda w: partial(w.hours.join, right=w.orders),
        how=line("None", wrong=("inner", "outer", "right")),
        shift=line("None", wrong=("1 hour",)),
    ),
    "WindowedTable.to_table": call(lambda w: w.hours.to_table, windows=line(wrong=("batch",))),
    "WindowedTable.to_stream": call(
        lambda w: w.hours.to_stream,
        key=line("None", "column", "names", wrong=("nope", ["id", "id"])),
        select=line("None", "names", wrong=SELECT.wrong),
        windows=line(wrong=("batch",)),
    ),
    "Topology.changelog": call(lambda w: w.orders.changelog, emit=EMIT, buckets=BUCKETS),
    "Topology.changelog (static)": call(
        lambda w: w.table("orders", w.static).changelog, emit=EMIT, buckets=BUCKETS
    ),
    "Topology.write_stream": call(
        lambda w: partial(w.orders.write_stream, sink=dt.to_memory("m"), checkpoint=w.new_folder()),
        runs=True,
        sink=line(
            wrong=(
                dt.to_parquet,
                *(dt.to_parquet(path) for path in UNREACHABLE),
                Given(lambda w: dt.to_parquet(w.folder / "file")),
                dt.to_parquet("/proc/nothing"),
                dt.to_topic("t", servers="localhost:9092", value="string"),
                *(dt.to_delta(path) for path in UNREACHABLE),
                dt.to_delta(table="no name"),
                dt.to_delta(table="a.b.c.d"),
            ),
            says="write_topic: |to_topic: |to_parquet: |to_parquet\\(.*path=|to_delta\\(",
        ),
        checkpoint=line(
            "text",
            "column",
            "span",
            "path",
            wrong=(*UNREACHABLE, "/proc/nothing", Given(lambda w: str(w.folder / "file"))),
        ),
        trigger=line("None", wrong=TRIGGERS),
        emit=EMIT,
        buckets=BUCKETS,
        partitions=BUCKETS,
        query_name=NAME,
        initial=line("None", "path", wrong=({"orders": 1},)),
        emit_initial=FLAG,
        close_at_end=FLAG,
        idle=IDLE,
    ),
    # Aggregates and windows.
    "aggregate": call(
        lambda _: partial(
            dt.aggregate,
            init=lambda n: {"a": pa.nulls(n, pa.int64())},
            add=lambda state, _: state,
            merge=lambda a, _: a,
            state={"a": "bigint"},
            returns="bigint",
        ),
        init=line("function", "class"),
        add=line("function", "class"),
        merge=line("function", "class"),
        retract=line("None", "function", "class"),
        finish=line("None", "function", "class"),
        state=line(wrong=({"a": "money"}, {"a": None}, {"a": "int"})),
        returns=line(wrong=("money", "int")),
    ),
    **{
        name: call(lambda _, name=name: getattr(dt, name), column=COLUMN)
        for name in (
            "sum",
            "mean",
            "min",
            "max",
            "collect_list",
            "collect_set",
            "count_distinct",
            "approx_count_distinct",
        )
    },
    "top": call(
        lambda _: partial(dt.top, n=2, column="n", by="n"),
        n=line("number"),
        column=line(*COLUMN.right, "names", wrong=(["n", "n"], ["n", "N"])),
        by=COLUMN,
        descending=FLAG,
    ),
    "count": call(lambda _: dt.count, column=line("None", *COLUMN.right)),
    **{
        name: call(
            lambda _, name=name: partial(getattr(dt, name), column="n"),
            column=COLUMN,
            ignore_nulls=FLAG,
        )
        for name in ("first", "last")
    },
    "AggregateCall.__init__": call(
        lambda _: partial(dt.typing.AggregateCall, function="sum", columns=("n",)),
        function=NAMED,
        columns=line(),
        ignore_nulls=FLAG,
        functions=line("None"),
        returns=line("None"),
        taken=line("None"),
    ),
    "tumbling": call(
        lambda _: partial(dt.windows.tumbling, size="1 hour"), size=SPAN, lines=WINDOWS
    ),
    "sliding": call(lambda _: partial(dt.windows.sliding, size="1 hour"), size=SPAN, lines=WINDOWS),
    "session": call(lambda _: partial(dt.windows.session, gap="1 hour"), gap=SPAN, lines=WINDOWS),
    "hopping": call(
        lambda _: partial(dt.windows.hopping, size="1 hour", advance="1 min"),
        size=line("span", wrong=(*SPAN.wrong, "1 s")),
        advance=line("span", wrong=(*SPAN.wrong, "0 s", "2 hours")),
        lines=WINDOWS,
    ),
    "Windows.__init__": call(
        lambda _: partial(
            dt.windows.Windows, kind="tumbling", size_us=1, advance_us=1, grace_us=0, retention_us=1
        ),
        kind=line(),
        **dict.fromkeys(
            ("size_us", "advance_us", "grace_us", "retention_us"),
            line("zero", "number", "negative", "huge"),
        ),
    ),
    "within": call(
        lambda _: partial(dt.within, before="0 s", after="0 s"),
        before=line("None", "span", wrong=(*SPAN.wrong,)),
        after=line("None", "span", wrong=(*SPAN.wrong,)),
        grace=SPAN,
    ),
    "Within.__init__": call(
        lambda _: partial(dt.typing.Within, before_us=0, after_us=0, grace_us=0),
        **dict.fromkeys(
            ("before_us", "after_us", "grace_us"), line("zero", "number", "negative", "huge")
        ),
    ),
    # Sinks, and lookup sources.
    "to_parquet": call(
        lambda _: partial(dt.to_parquet, path="path"),
        path=line("text", "column", "span", "path"),
        retention=MAYBE_SPAN,
    ),
    "to_memory": call(
        lambda _: dt.to_memory, name=line("text", "column", wrong=("a b", "a.b", "1"))
    ),
    "to_console": call(lambda _: dt.to_console, rows=line("number")),
    "to_foreach_batch": call(
        lambda _: dt.to_foreach_batch, function=line("function", wrong=(lambda changes: None,))
    ),
    "to_delta": call(
        lambda _: partial(dt.to_delta, path="path", retention="0 s"),
        path=line("text", "column", "span", "path"),
        table=line("None"),
        existing=line(wrong=("overwrite",)),
        compact_every=POSITIVE,
        retention=MAYBE_SPAN,
        log_retention=MAYBE_SPAN,
        partition_by=line("None", "text", "column", "names", "span", "empty text", "empty list"),
        evolve=FLAG,
        history=FLAG,
        track=line("None"),
        late=line(wrong=("drop", "correct")),
        deletes=line(wrong=("drop",)),
        engine=line(wrong=("rust",)),
    ),
    "to_iceberg": call(
        lambda _: partial(dt.to_iceberg, table="shop.orders"),
        table=line("text", "column", "span"),
        catalog=line("text", "column", "span"),
        existing=line(wrong=("overwrite",)),
        partition_by=line("None", "text", "column", "names", "span", "empty text", "empty list"),
        evolve=FLAG,
        history=FLAG,
    ),
    "to_postgres": call(
        lambda _: partial(dt.to_postgres, dsn="", table="t"),
        dsn=line("empty text"),
        table=line("text", "column", "span", wrong=("a.b.c", ".a")),
        existing=line(wrong=("overwrite",)),
        timeout_s=line("number", "fraction", wrong=(math.inf,)),
        retries=NATURAL,
    ),
    "to_topic": call(
        lambda _: partial(dt.to_topic, topic="t", servers="localhost:9092", exactly_once=True),
        topic=TOPIC["topic"],
        servers=TOPIC["servers"],
        key=line(wrong=("avro",)),
        value=line(wrong=("avro",)),
        headers=line(
            "None", "empty mapping", wrong=({"a": 1}, {"": "id"}, {"dovetail.change": "id"})
        ),
        options=OPTIONS,
        exactly_once=FLAG,
        transactions=line("number"),
    ),
    "settings": call(lambda _: dt.checkpoints.settings, partitions=line("number")),
    "configure": call(
        lambda _: partial(dt.configure, builder=SparkSession.builder),
        builder=line(),
        kafka=FLAG,
        delta=FLAG,
        avro=FLAG,
        jars=line("None", "empty list"),
        memory=NAME,
        memory_limit=line("None", wrong=("1g", "eight", "8 g")),
        archive=line(
            *("None", "text", "column", "span", "path"),
            wrong=(Given(lambda w: w.folder / "file"), "/proc/nothing/archive"),
        ),
        quiet=FLAG,
    ),
    "doctor": call(lambda _: dt.doctor, spark=SESSION),
    "progress": call(lambda w: partial(dt.progress, w.query), query=line()),
    "recent": call(lambda w: partial(dt.metrics.recent, w.query), query=line()),
    "record": call(
        lambda w: partial(dt.metrics.record, w.query, w.new_folder()),
        runs=True,
        query=line(),
        path=line("text", "column", "span", "path", wrong=("/proc/nothing/figures",)),
        keep=line("number"),
    ),
    "recorded": call(
        lambda _: dt.metrics.recorded, path=line(wrong=("/proc/nothing",), says="is not there")
    ),
    "serve": call(
        lambda w: partial(dt.serve, w.query),
        runs=True,
        query=line(),
        port=line("zero", "number", wrong=(-1, 1 << 16)),
        host=line("text", "column", "span"),
        token=line("None", "text", "column", "span"),
    ),
    "prometheus": call(
        lambda w: partial(dt.metrics.prometheus, w.query),
        runs=True,
        query=line(),
        port=line("zero", "number", wrong=(-1, 1 << 16)),
        host=line("text", "column", "span"),
    ),
    "lineage": call(
        lambda w: partial(dt.lineage, w.query),
        query=line(),
        client=line("None", wrong=("http",)),
        namespace=line("text", "column", "span"),
        job=line("None", "text", "column", "span"),
        every=line("number", "fraction"),
    ),
    "opentelemetry": call(
        lambda w: partial(dt.metrics.opentelemetry, w.query),
        query=line(),
        provider=line("None", wrong=("otlp",)),
    ),
    "read_current": call(
        lambda w: partial(dt.read_current, spark=w.spark, path=w.changelog, key="id"),
        spark=SESSION,
        path=line(wrong=("/proc/nothing", Given(lambda w: w.folder / "file"))),
        key=line("column", "names", wrong=("nope", ["id", "id"])),
    ),
    "read_state": call(
        lambda w: partial(dt.checkpoints.read_state, spark=w.spark, checkpoint=str(w.folder)),
        runs=True,
        spark=SESSION,
        checkpoint=line("text", "column", "span", "path"),
        table=NAME,
        batch=line("None", "zero", "number"),
        as_of=line("None", wrong=(datetime(2026, 1, 1),)),  # noqa: DTZ001
        keys=line("None", *LISTS),
        columns=line("None", "text", "column", "span", "empty text", "empty list", "names"),
        topology=line("None", "table", "stream"),
    ),
    "repartition": call(
        lambda w: partial(
            dt.checkpoints.repartition, spark=w.spark, checkpoint=w.folder, partitions=2
        ),
        runs=True,
        spark=SESSION,
        checkpoint=line("text", "column", "span", "path"),
        partitions=line("number"),
    ),
    "upgrade": call(
        lambda w: partial(
            dt.checkpoints.upgrade,
            spark=w.spark,
            old=w.folder,
            new=w.folder / "new",
            topology=w.table,
        ),
        runs=True,
        spark=SESSION,
        old=line("text", "column", "span", "path"),
        new=line("text", "column", "span", "path"),
        topology=line("table", "stream"),
        buckets=BUCKETS,
        partitions=BUCKETS,
        running=FLAG,
        dry_run=FLAG,
    ),
    "rewind": call(
        lambda w: partial(dt.checkpoints.rewind, spark=w.spark, checkpoint=w.folder, batch=0),
        runs=True,
        spark=SESSION,
        checkpoint=line("text", "column", "span", "path"),
        batch=NATURAL,
    ),
    "lookup_state": call(
        lambda w: partial(
            dt.checkpoints.lookup_state, checkpoint=w.folder, table="orders", keys=[1]
        ),
        runs=True,
        checkpoint=line("text", "column", "span", "path"),
        table=NAMED,
        keys=line(*LISTS),
        as_of=line("None", wrong=(datetime(2026, 1, 1),)),  # noqa: DTZ001
    ),
    "explain_row": call(
        lambda w: partial(dt.checkpoints.explain_row, checkpoint=w.folder, topology=w.table, key=1),
        runs=True,
        checkpoint=line("text", "column", "span", "path"),
        topology=line("table", "stream"),
        key=ANYTHING,
        result=NAME,
        members=line("number"),
    ),
    "index": call(lambda _: partial(dt.lookups.index, "a"), columns=COLUMN, unique=FLAG, name=NAME),
    "Index.__init__": call(
        lambda _: partial(dt.lookups.Index, name="i", columns=("a",)),
        name=NAMED,
        columns=line(),
        unique=FLAG,
    ),
    "sqlite": call(
        lambda _: partial(dt.lookups.sqlite, path="f.db", table="t", key="id"),
        path=line("text", "column", "span", "path"),
        lines=LOOKED_UP,
    ),
    "postgres": call(
        lambda _: partial(dt.lookups.postgres, dsn="", table="t", key="id"),
        dsn=line("empty text"),
        lines=LOOKED_UP | {"table": line("text", "column", "span", wrong=("a.b.c", ".a"))},
    ),
    "dbapi": call(
        lambda _: partial(dt.lookups.dbapi, driver="sqlite3", table="t", connect={}, key="id"),
        driver=line(wrong=("json", "nowhere_db"), says="PEP 249|cannot be imported"),
        connect=line("empty mapping", wrong=({"a": lambda: None},)),
        quote=line(wrong=("'", "]")),
        keys_max=line("number"),
        keep_open=FLAG,
        lines={n: LOOKED_UP[n] for n in ("table", "key", "indexes", "where", "retries")},
    ),
    "delta_files": call(
        lambda _: partial(dt.lookups.delta_files, path="folder", key="id"),
        path=line("text", "column", "span", "path"),
        lines={n: LOOKED_UP[n] for n in ("key", "indexes", "where", "retries")},
    ),
    "mongodb": call(
        lambda _: partial(
            dt.lookups.mongodb, uri="mongodb://db", collection="shop.orders", key="id"
        ),
        uri=line(wrong=("db:27017",)),
        collection=line(wrong=("orders", "shop.")),
        lines={n: LOOKED_UP[n] for n in ("key", "indexes", "where", "timeout_s", "retries")},
    ),
    "redis": call(
        lambda _: partial(dt.lookups.redis, url="redis://cache", pattern="t:{id}"),
        url=line(wrong=("cache:6379",)),
        pattern=line(wrong=("t", "{a}{b}")),
        form=line(wrong=("text",)),
        lines={n: LOOKED_UP[n] for n in ("timeout_s", "retries")},
    ),
    "iceberg": call(
        lambda _: partial(dt.lookups.iceberg, table="shop.orders", key="id"),
        table=line("text", "column", "span"),
        catalog=line("text", "column", "span"),
        lines={n: LOOKED_UP[n] for n in ("key", "indexes", "where", "retries")},
    ),
    # Joins over snapshots.
    "SnapshotTable.__init__": call(
        lambda w: partial(dt.SnapshotTable, session=w.spark, node=w.a.plan),
        jar="delta",
        session=SESSION,
        node=line(),
    ),
    "SnapshotTable.from_delta": call(
        lambda w: partial(
            dt.SnapshotTable.from_delta, spark=w.spark, path=w.snapshot("a"), key="id"
        ),
        jar="delta",
        spark=SESSION,
        path=line(wrong=(*UNREACHABLE, "/proc/nothing", Given(lambda w: w.folder / "file"))),
        table=line("None"),
        key=line("column", "names", wrong=("nope", ["id", "id"])),
        name=NAME,
    ),
    "SnapshotTable.from_iceberg": call(
        lambda w: partial(
            dt.SnapshotTable.from_iceberg,
            spark=w.spark,
            table="shop.orders",
            catalog=w.iceberg,
            key="id",
        ),
        spark=SESSION,
        table=line(wrong=("shop.none",)),
        catalog=line(wrong=({"type": "nonsense"},)),
        key=line("column", "names", wrong=("nope", ["id", "id"])),
        name=NAME,
    ),
    "SnapshotTable.join": call(
        lambda w: partial(w.a.join, right=w.b),
        jar="delta",
        right=line(),
        on=line("None", "column", "names", wrong=("nope", ["id", "a"], {"id": "nope"}, {"a": 3})),
        how=line(wrong=("full", "cross", "LEFT")),
        select=line(
            *("None", "empty list", "empty mapping", "names"),
            wrong=(
                *SELECT.wrong,
                *UNREPEATABLE,
            ),
        ),
        name=NAME,
    ),
    "SnapshotTable.group_by": call(lambda w: w.a.group_by, jar="delta", columns=COLUMN),
    "GroupedSnapshotTable.agg": call(
        lambda w: w.a.group_by("a").agg,
        jar="delta",
        aggregates=line(
            "expression",
            wrong=tuple(
                Given(lambda _, text=text: F.expr(text))
                for text in ("sum(nope)", "id", "max(now())", "sum(rand())", "sum(sum(id))")
            ),
        ),
    ),
    "SnapshotTable.to_batch": call(
        lambda w: w.a.to_batch,
        jar="delta",
        versions=line(
            "None", "empty mapping", wrong=({"nope": 0}, {"a": -1}, {"a": 99}, {"a": "0"})
        ),
    ),
    "SnapshotTable.refresh": call(
        lambda w: partial(w.a.join(w.b).refresh, target=w.new_folder()),
        jar="delta",
        runs=True,
        target=TARGET,
        table=line("None"),
        catalog=line("None", wrong=("default",)),
        max_versions=POSITIVE,
        way=line("None", wrong=("incremental", "CHANGES")),
        rebuild=FLAG,
    ),
    "SnapshotTable.maintain": call(
        lambda w: partial(w.a.join(w.b).maintain, target=w.new_folder()),
        jar="delta",
        runs=True,
        target=TARGET,
        table=line("None"),
        catalog=line("None", wrong=("default",)),
        every=SPAN,
        max_versions=POSITIVE,
    ),
    "SnapshotTable.commits": call(
        lambda w: w.a.join(w.b).commits,
        jar="delta",
        runs=True,
        target=TARGET,
        table=line(),
        catalog=line("None", wrong=("default",)),
    ),
    # The driver.
    "table": call(
        lambda _: partial(testing.table, name="t", key="id", schema={"id": pa.int64()}),
        name=NAMED,
        key=line("column", "names", wrong=("nope", ["id", "id"])),
        schema=line(
            wrong=(
                pa.schema([]),
                {"id": "long"},
                {"id": pa.month_day_nano_interval()},
                StructType(),
            )
        ),
        versioned=MAYBE_SPAN,
    ),
    "stream": call(
        lambda _: partial(testing.stream, name="t", key="id", schema={"id": pa.int64()}),
        name=NAMED,
        key=line("column", "names", wrong=("nope", ["id", "id"])),
        schema=line(
            wrong=(
                pa.schema([]),
                {"id": "long"},
                {"id": pa.month_day_nano_interval()},
                StructType(),
            )
        ),
    ),
    "assert_table_equal": call(
        lambda _: partial(testing.assert_table_equal, actual=[], expected=[]),
        runs=True,  # tables that are right are not all equal
        actual=TABLES,
        expected=TABLES,
        key=line("None", "names", "empty list", *COLUMN.right),
        ordered=FLAG,
        rel_tol=line("zero", "number", "fraction", "huge", wrong=(math.inf,)),
        abs_tol=line("zero", "number", "fraction", "huge", wrong=(math.inf,)),
        max_lines=line("number"),
    ),
    "timeline": call(
        lambda w: partial(testing.timeline, testing.Driver(w.fed)),
        driver=line(),
        limit=line("number"),
        width=line("number"),
    ),
    "Driver.__init__": call(
        lambda w: partial(testing.Driver, topology=w.fed),
        topology=line("table", says="nothing is joined"),
        emit=EMIT,
        buckets=line("number", wrong=(1 << 17,)),
        key_hash=line("None", "function", "class", wrong=(lambda: None,)),
        spark=line("None", "session"),
        idle=IDLE,
    ),
    "Driver.__init__ (several)": call(
        lambda w: partial(testing.Driver, w.fed), others=line("table", says="nothing is joined")
    ),
    "Driver.pipe": call(
        lambda w: partial(testing.Driver(w.fed).pipe, table=w.fed, rows={"id": 1}, timestamp=1),
        table=line(wrong=(Given(lambda w: w.orders.join(w.payments, select=[])),)),
        rows=line(
            "empty list",
            wrong=({"nope": 1}, {"id": "x"}, {"id": 2**80}, {"amount": 1}, [{}]),
            says="^table fed: ",
        ),
        timestamp=line(*MOMENT.right, "list of numbers", wrong=([1, 2], [None])),
        deleted=FLAG,
    ),
    "Driver.read": call(lambda w: testing.Driver(w.fed).read, result=line("None")),
    "Driver.as_text": call(
        lambda w: partial(testing.Driver(w.fed).as_text, changes=[]),
        changes=line("empty list"),
        result=line("None"),
    ),
    "Driver.assert_changes": call(
        lambda w: partial(testing.Driver(w.fed).assert_changes, text="time | id | amount"),
        text=line(wrong=("time | amount", "time | id\n1 | x")),
        result=line("None"),
    ),
    "Driver.table": call(
        lambda w: testing.Driver(w.fed).table, table=line(wrong=(Given(lambda w: w.orders),))
    ),
    "ExplainingDriver.explain_change": call(
        explaining,
        change=line(wrong=(CHANGE,)),
        result=line("None"),
        members=line("number"),
    ),
    "ExplainingDriver.explain_row": call(
        lambda w: partial(testing.Driver(w.fed).explain_row, key=1),
        key=line("zero", "number", "negative"),
        table=line("None", wrong=(Given(lambda w: w.orders),)),
        members=line("number"),
    ),
    "Driver.advance_stream_time": call(
        lambda w: testing.Driver(w.fed).advance_stream_time, timestamp=MOMENT
    ),
    "Driver.advance_wall_clock": call(
        lambda w: testing.Driver(w.fed).advance_wall_clock, span=SPAN
    ),
    "Driver.restore": call(
        lambda w: partial(
            testing.Driver.restore, topology=w.fed, snapshot=testing.Driver(w.fed).snapshot()
        ),
        topology=line(wrong=(Given(lambda w: w.orders),)),
        snapshot=line(wrong=(b"", b"\x03", b"\x03nonsense")),
        emit=EMIT,
        key_hash=line("None", "function", "class", wrong=(lambda: None,)),
        spark=line("None", "session"),
        idle=IDLE,
    ),
}
WRITTEN = CALLS["Topology.write_stream"]
CALLS["run"] = call(
    lambda w: partial(dt.run, results={w.orders: dt.to_memory("m")}, checkpoint=w.new_folder()),
    runs=True,
    lines={name: line for name, line in WRITTEN.arguments.items() if name != "sink"},
    results=line(wrong=({dt.dead_letters: dt.to_memory("m")},)),
)
CALLS["preview"] = call(
    lambda w: partial(dt.preview, frame=w.table("orders", w.static).changelog()),
    frame=line(says="has no column"),
    n=line("number"),
)
CALLS["explain"] = call(
    lambda w: partial(dt.explain, w.orders),
    results=line("table", "stream", "windowed table"),
    format=line(wrong=("png",)),
    reasons=FLAG,
)
UNCALLED = {
    "Change",
    "DriverTimeline",
    "Exporter",
    "Instruments",
    "Lineage",
    "Page",
    "Recorder",
    "Replayed",
    "RowExplanation",
    "GroupedSnapshotTable",
    "GroupedStream",
    "GroupedTable",
    "InputProgress",
    "Preview",
    "Progress",
    "StageProgress",
    "Unused",
    "WindowedStream",
}
"""Classes of what calls return; they are not made by users."""


def public() -> Iterator[tuple[str, Any]]:
    """Every function and method that takes an argument, by its name."""
    named = [value for name, value in exported() if not name.startswith("testing.")]
    named += [
        one
        for name, one in vars(testing).items()
        if not name.startswith("_") and getattr(one, "__module__", "").startswith(testing.__name__)
    ]
    for one in named:
        if inspect.isfunction(one):
            yield one.__name__, one
        elif inspect.isclass(one) and not (
            issubclass(one, Exception) or getattr(one, "_is_protocol", False)
        ):
            for name, method in inspect.getmembers(one, inspect.isroutine):
                own = getattr(method, "__module__", "") or ""
                made = name == "__init__" and one.__name__ not in UNCALLED
                if own.startswith("dovetail") and (made or not name.startswith("_")):
                    yield method.__qualname__, method


def has(spark: SparkSession, jar: str | None) -> bool:
    return jar is None or f"/{jar}/" in (spark.conf.get("spark.jars", "") or "")


def needs(spark: SparkSession, jar: str | None) -> None:
    if not has(spark, jar):
        missing = pytest.fail if os.environ.get("CI") and shutil.which("mvn") else pytest.skip
        missing(f"Spark runs without a jar: tools/jars/fetch {jar}")


def arguments_of(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with applied(spark, SMALL_TABLES):
        yield World(spark, tmp_path_factory.mktemp("calls"))


PUBLIC = {name: function for name, function in public() if arguments_of(function)}
LINES = [(name, argument) for name, one in CALLS.items() for argument in one.arguments]


def test_every_argument_has_its_line() -> None:
    lines: dict[str, set[str]] = {}
    for name, argument in LINES:
        lines.setdefault(name.partition(" ")[0], set()).add(argument)
    assert lines == {name: set(arguments_of(function)) for name, function in PUBLIC.items()}


@pytest.mark.parametrize(("name", "argument"), LINES)
def test_a_wrong_argument_is_named(name: str, argument: str, world: World) -> None:
    one, known = CALLS[name], dict(POOL)
    needs(world.spark, one.jar)
    if not has(world.spark, "delta"):
        del known["snapshot table"]
    line, call = one.arguments[argument], one.made(world)
    wrong = [
        (what, value) for what, value in known.items() if what not in line.right | line.untried
    ]
    wrong += [(repr(value), value) for value in line.wrong]
    others = [f"{other}=" for other in arguments_of(inner(one.of(world)))]
    words = "|".join([argument, *others, *([line.says] if line.says else [])])
    unfit = [
        f"{what}: {problem}"
        for what, value in wrong
        if (problem := _unfit(call, argument, value, words))
    ]
    assert not unfit, "\n".join([f"{len(unfit)} of {len(wrong)}", *unfit])


def _unfit(call: Any, argument: str, value: Any, words: str) -> str | None:
    """Say why a refusal is unfit, None if it is fit; ``words``: a pattern for its message."""
    try:
        made = call(argument, value)
    except dt.errors.DovetailError as error:
        message = str(error)
        complete = error.operator and error.problem and error.remedy and "\n" not in message
        return None if complete and re.search(words, message) else message
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    if hasattr(made, "stop"):
        made.stop()
    return "accepted"


@pytest.mark.parametrize("name", [name for name, one in CALLS.items() if not one.runs])
def test_a_call_is_right_but_for_what_is_replaced(name: str, world: World) -> None:
    needs(world.spark, CALLS[name].jar)
    function = CALLS[name].of(world)
    needed = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty or parameter.kind is parameter.VAR_POSITIONAL
    ]
    if not needed:
        function()


@pytest.mark.parametrize(("name", "argument"), LINES)
def test_a_right_argument_is_taken(name: str, argument: str, world: World) -> None:
    one = CALLS[name]
    needs(world.spark, one.jar)
    call = None if one.runs else one.made(world)
    for what in sorted(one.arguments[argument].right) if call else ():
        call(argument, POOL[what])


def test_paths_are_taken(world: World) -> None:
    rows = world.spark.createDataFrame([(1, 2)], "id long, amount long")
    rows.withColumn("at", F.lit("2024-05-01 10:00:00").cast("timestamp")).write.json(
        str(world.folder / "changes"), mode="append"
    )
    query = world.orders.write_stream(
        dt.to_parquet(world.folder / "out"),
        checkpoint=world.folder / "checkpoint",
        trigger={"availableNow": True},
        buckets=1,
    )
    query.awaitTermination()
    assert world.spark.read.parquet(str(world.folder / "out")).count() == 1


@pytest.mark.slow
def test_snapshots_take_paths(world: World) -> None:
    needs(world.spark, "delta")
    read = dt.SnapshotTable.from_delta(world.spark, Path(world.snapshot("a")), key="id")
    joined, target = read.join(world.b), world.folder / "target"
    (commit,) = joined.refresh(target)
    assert joined.commits(target)[0].version == commit.version
