"""Topics read and written through a real broker: exact values, exact sequences, no silent loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

import dovetail as dt
from dovetail.errors import ConfigurationError, PlanError
from dovetail.io.formats.plain import ReadFormat, WriteFormat
from dovetail.io.sources.kafka import read_topic, to_records, topic_records, write_topic

NewTopic = Callable[[int], str]
Record = tuple[bytes | None, bytes | None]

EARLY = datetime(1, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc)
SKIPPED_HOUR = datetime(2024, 3, 10, 2, 30, 0, 1, tzinfo=timezone.utc)
LATE = datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=timezone.utc)

KEY = "id long, part struct<name: string, at: timestamp>"
VALUE = (
    "i64 long, i32 int, i16 short, i8 byte, tiny decimal(38, 38), huge decimal(38, 0), "
    "f64 double, f32 float, flag boolean, text string, blob binary, day date, at timestamp, "
    "wall timestamp_ntz, list array<struct<n: long, at: timestamp>>, map map<string, decimal(9, 3)>"
)
EVERY_TYPE: list[tuple[Any, ...]] = [
    (2**53 + 1, ("a", SKIPPED_HOUR), 2**63 - 1, 2**31 - 1, 2**15 - 1, 127, Decimal("1e-38"),
     Decimal("9" * 38), 0.1 + 0.2, 0.10000000149011612, True, 'é漢🕊 " \\ \n\0', bytes(range(256)),
     date(1, 1, 1), SKIPPED_HOUR, SKIPPED_HOUR.replace(tzinfo=None),
     [(2**53 + 1, BEFORE_1970), None, (None, None)], {"a.b": Decimal("1.000"), "": None},
     SKIPPED_HOUR),
    (-1, None, -(2**63), -(2**31), -(2**15), -128, Decimal("-0." + "9" * 38),
     Decimal("-" + "9" * 38), float("-inf"), 3.4028234663852886e38, False, "", b"",
     date(9999, 12, 31), LATE, EARLY.replace(tzinfo=None), [], {}, EARLY),
    (None, (None, None), *[None] * 16, BEFORE_1970),
]  # fmt: skip


def test_json_is_exact_whatever_the_time_zone(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    key, value = schema(KEY), schema(VALUE)
    written = kafka_spark.createDataFrame(EVERY_TYPE, f"{KEY}, {VALUE}, _timestamp timestamp")
    with time_zone(kafka_spark, "America/New_York"):
        changes = written.coalesce(1).withColumn("_change", F.lit("upsert"))
        records = to_records(changes, key_columns=key.names, value_columns=value.names)
        append(records, topic, kafka_servers)
    with time_zone(kafka_spark, "Asia/Kolkata"):
        read = stored(kafka_spark, topic, kafka_servers, key, value).orderBy("_offset").toArrow()
        assert read.select(written.columns).equals(written.toArrow())
    metadata = ["_deleted", "_partition", "_offset", "_malformed", "_problem"]
    assert read.select(metadata).to_pylist() == [
        dict(zip(metadata, (False, 0, offset, None, None), strict=True))
        for offset in range(len(EVERY_TYPE))
    ]
    assert set(read.column_names) == {*written.columns, *metadata}
    text = stored(kafka_spark, topic, kafka_servers, "string", "string")
    assert rows(text, "value")[2][0] == (
        "{" + ",".join(f'"{name}":null' for name in value.names) + "}"
    )


@pytest.mark.slow
def test_a_stream_keeps_each_keys_sequence_through_restarts(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target = new_topic(3), new_topic(4)
    history = [(f"k{n % 5}", None if n % 4 == 3 else f"v{n}") for n in range(40)]

    def run_what_is_there() -> int:
        """Runs the query over what the source holds, and counts its micro-batches."""
        read = read_topic(
            kafka_spark, source, servers=kafka_servers, key="string", value="string",
            max_per_trigger=7,
        )  # fmt: skip
        change = F.when(F.col("_deleted"), "delete").otherwise("upsert")
        query = (
            write_topic(
                read.withColumn("_change", change), key_columns=["key"], value_columns=["value"],
                topic=target, servers=kafka_servers,
            )
            .trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path))
            .start()
        )  # fmt: skip
        query.awaitTermination()
        return sum(progress["numInputRows"] > 0 for progress in query.recentProgress)

    micro_batches = 0
    for part in (history[:25], history[25:]):
        produce(kafka_spark, source, kafka_servers, [utf8(*record) for record in part])
        micro_batches += run_what_is_there()
    assert micro_batches >= 7

    columns = ("key", "value", "_deleted", "_timestamp", "_malformed")
    read = rows(stored(kafka_spark, source, kafka_servers, "string", "string"), *columns)
    objects = stored(
        kafka_spark, target, kafka_servers, {"key": StringType()}, {"value": StringType()}
    )
    written = rows(objects, *columns)
    for key in {key for key, _ in history}:
        sequence = [record for record in read if record[0] == key]
        assert [record[1] for record in sequence] == [value for k, value in history if k == key]
        assert [record for record in written if record[0] == key] == sequence
    assert len(written) == len(history)


OBJECT = {"a": IntegerType(), "t": StringType()}
MALFORMED = [
    "", "  ", "nul", "1", '"text"', "[]", '[{"a":1}]', '{"a":1', '{"a":1}}', '{"a":1}]', "{'a':1}",
    '{"a":1} and more', '{"a":1}\n{"a":2}', '{"a":1},{"a":2}', '{"a":1,}', '{"a":"x","t":"y"}',
    '{"a":1.5}', '{"a":4294967296}', '{"a":1}]}', '{"a":1}]} and more', '{"a":1}],"b":[1',
    '{"a":1}],"elements":[{"a":2}', '{"a":1},"object":{"a":2}', '{"a":1}} and more',
    '{"a":1},"object":{"a":2}} and more',
]  # fmt: skip
WELL_FORMED = {
    ' {"a": 1, "t": "x"}\n': (1, "x"),
    '{"a":null,"other":[{}]}': (None, None),
    '{"t":{"u":[1, 2]}}': (None, '{"u":[1,2]}'),
    "{}": (None, None),
}


def test_what_does_not_parse_is_distinct_from_null(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    records = [
        *((b'{"k":"bad"}', text.encode()) for text in MALFORMED),
        *((b'{"k":"good"}', text.encode()) for text in WELL_FORMED),
        (b'{"k":"gone"}', None),
        (b'{"k":"gone"}', b"null"),
        (b'{"k":"not UTF-8"}', b'{"t":"\xff"}'),
        (b"bad key", b'{"a":1}'),
        (b"bad key", None),
        (b"bad key", b"and value"),
        (None, b'{"a":1}'),
    ]
    produce(kafka_spark, topic, kafka_servers, records)
    read = stored(kafka_spark, topic, kafka_servers, {"k": StringType()}, OBJECT)
    assert rows(read, "k", "a", "t", "_deleted", "_malformed") == [
        *(("bad", None, None, False, text) for text in MALFORMED),
        *(("good", *fields, False, None) for fields in WELL_FORMED.values()),
        ("gone", None, None, True, None),
        ("gone", None, None, True, None),
        ("not UTF-8", None, None, False, '{"t":"\ufffd"}'),
        (None, 1, None, False, "bad key"),
        (None, None, None, True, "bad key"),
        (None, None, None, False, "bad key"),
        (None, 1, None, False, None),
    ]


def test_a_topic_is_previewed_and_an_empty_one_is_told(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    orders = dt.Table.from_topic(kafka_spark, topic, servers=kafka_servers, name="orders")
    assert orders.preview().notes == (
        "no rows of orders",
        "read: no row of orders, it has none now",
    )
    records = kafka_spark.createDataFrame(
        [("a", "1"), ("a", "2"), ("b", "3")], "key string, value string"
    )
    options = {"kafka.bootstrap.servers": kafka_servers, "topic": topic}
    records.coalesce(1).write.format("kafka").options(**options).save()
    assert [(row["key"], row["value"]) for row in orders.preview()] == [("a", "2"), ("b", "3")]
    assert orders.preview(input_rows=1).notes[-1] == "read: the first 1 row of orders"


def test_text_and_bytes(kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    changes = kafka_spark.createDataFrame(
        [
            (2**53 + 1, b"\xff\0", "upsert", LATE),
            (2**53 + 1, b"", "upsert", None),
            (2**53 + 1, b"old row", "delete", EARLY),
            (None, b"{}", "upsert", EARLY),
        ],
        "id long, row binary, _change string, _timestamp timestamp",
    ).coalesce(1)
    records = to_records(
        changes, key_columns=["id"], value_columns=["row"], key="string", value="bytes"
    )
    append(records, topic, kafka_servers)

    records_own_time = (
        kafka_spark.read.format("kafka")
        .options(**{"kafka.bootstrap.servers": kafka_servers, "subscribe": topic})
        .load()
        .orderBy("offset")
        .selectExpr("unix_micros(timestamp)")
        .collect()
    )
    read = stored(kafka_spark, topic, kafka_servers, "string", "bytes")
    columns = ("key", "value", "_deleted", "_malformed", "unix_micros(_timestamp)")
    assert rows(read, *columns) == [
        ("9007199254740993", b"\xff\0", False, None, micros_since_1970(LATE)),
        ("9007199254740993", b"", False, None, records_own_time[1][0]),
        ("9007199254740993", None, True, None, micros_since_1970(EARLY)),
        (None, b"{}", False, None, micros_since_1970(EARLY)),
    ]
    read = stored(kafka_spark, topic, kafka_servers, "string", "string")
    assert rows(read, "value", "_deleted", "_malformed") == [
        (None, False, "\ufffd\0"),
        ("", False, None),
        (None, True, None),
        ("{}", False, None),
    ]


@pytest.mark.parametrize(
    ("options", "wait", "polled"),
    [(None, "10", "10000"), ({"kafka.max.poll.records": "7"}, "10", "7")],
)
def test_ones_own_source_options_overrule_the_defaults(
    kafka_spark: SparkSession, options: dict[str, str] | None, wait: str, polled: str
) -> None:
    read = read_topic(
        kafka_spark, "any", servers="localhost:9", key="string", value="string", options=options
    )
    source = read._jdf.queryExecution().analyzed().collectLeaves().head().extraOptions()
    assert source.get("kafka.fetch.max.wait.ms") == wait
    assert source.get("kafka.max.poll.records") == polled


def test_only_committed_records_are_read(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """One transaction is committed, one aborted, one open: in a query, in a batch, and as asked."""
    topic, clients = new_topic(1), kafka_spark._jvm.org.apache.kafka.clients.producer
    serializer = "org.apache.kafka.common.serialization.StringSerializer"
    settings = {
        "bootstrap.servers": kafka_servers,
        "key.serializer": serializer,
        "value.serializer": serializer,
    }
    producers = {
        name: clients.KafkaProducer({**settings, "transactional.id": f"{topic}-{name}"})
        for name in ("committed", "aborted", "open")
    }
    for name, producer in producers.items():
        producer.initTransactions()
        producer.beginTransaction()
        producer.send(clients.ProducerRecord(topic, name, "v")).get()
        if name == "committed":
            producer.commitTransaction()
        elif name == "aborted":
            producer.abortTransaction()

    def read(**options: Any) -> set[str]:
        topic_ = {"servers": kafka_servers, "key": "string", "value": "string"}
        frame = read_topic(kafka_spark, topic, **topic_, **options)
        if frame.isStreaming:
            writer = frame.select("key").writeStream.trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer.start(str(tmp_path / "out"), "parquet").awaitTermination()
            frame = kafka_spark.read.parquet(str(tmp_path / "out"))
        return {row.key for row in frame.collect()}

    assert read() == read(streaming=False) == {"committed"}
    uncommitted = {"kafka.isolation.level": "read_uncommitted"}
    assert read(streaming=False, options=uncommitted) == {*producers}
    for producer in producers.values():
        producer.close()


def test_ones_own_sink_options_overrule_the_defaults(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    source = new_topic(1)
    produce(kafka_spark, source, kafka_servers, [utf8("k", "v")])
    read = read_topic(kafka_spark, source, servers=kafka_servers, key="string", value="string")
    query = (
        write_topic(
            read.withColumn("_change", F.lit("upsert")), key_columns=["key"],
            value_columns=["value"], topic=new_topic(1), servers=kafka_servers,
            options={"kafka.batch.size": "-1"},
        )
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )  # fmt: skip
    with pytest.raises(PySparkException, match=r"batch\.size"):
        query.awaitTermination()


def test_topics_are_compressed_unless_one_says_otherwise(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    source = new_topic(1)
    produce(kafka_spark, source, kafka_servers, [utf8(f"k{n}", "v" * 100) for n in range(1000)])
    read = read_topic(kafka_spark, source, servers=kafka_servers, key="string", value="string")
    topics = {}
    for kind, options in {"default": {}, "none": {"kafka.compression.type": "none"}}.items():
        topics[kind] = new_topic(1)
        write_topic(
            read.withColumn("_change", F.lit("upsert")), key_columns=["key"],
            value_columns=["value"], key="string", value="string", topic=topics[kind],
            servers=kafka_servers, options=options,
        ).trigger(availableNow=True).option(
            "checkpointLocation", str(tmp_path / kind)
        ).start().awaitTermination()  # fmt: skip
    sizes = log_sizes(kafka_spark, kafka_servers)
    assert 0 < 4 * sizes[topics["default"]] < sizes[topics["none"]]
    compressed, plain = (
        stored(kafka_spark, topic, kafka_servers, "string", "string") for topic in topics.values()
    )
    assert rows(compressed, "key", "value") == rows(plain, "key", "value")


def test_an_upsert_that_would_read_as_a_delete_fails(spark: SparkSession) -> None:
    changes = spark.sql(
        "select 'k' as k, cast(null as string) as v, _change, current_timestamp() as _timestamp "
        "from values ('delete'), ('upsert'), ('retract') as (_change)"
    )

    def values(change: str, value: WriteFormat) -> list[str | None]:
        chosen = changes.where(F.col("_change") == change)
        records = to_records(chosen, key_columns=["k"], value_columns=["v"], value=value)
        return [record.value for record in records.collect()]

    assert values("delete", "string") == [None]
    assert values("delete", "json") == [None]
    assert values("upsert", "json") == ['{"v":null}']
    with pytest.raises(PySparkException, match=r'write_topic: .* with value="json"'):
        values("upsert", "string")
    with pytest.raises(PySparkException, match="upsert or delete, not retract"):
        values("retract", "json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": {"key": LongType()}}, "'key' occurs twice"),
        ({"key": {"id": LongType()}, "value": {"ID": LongType()}}, "'ID' occurs twice"),
        ({"value": {"_deleted": LongType()}}, "'_deleted' occurs twice"),
        ({"key": "text"}, "key= is 'text'"),
        ({"max_per_trigger": 1, "streaming": False}, "max_per_trigger limits a micro-batch"),
        ({"topic": "a,b"}, "topic= is 'a,b'. Give the name of one topic"),
        ({"topic": " a"}, "topic= is ' a'"),
        ({"options": {"subscribe": "a,b"}}, "topic='a,b' is not"),
    ],
)
def test_a_read_that_makes_no_sense_is_refused(
    kafka_spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        read_topic(
            kafka_spark,
            servers="nowhere:1",
            **({"topic": "t", "key": "string", "value": "string"} | arguments),
        )


def test_a_missing_connector_is_told_on_spark_connect_too() -> None:
    """A frame there is looked up once its columns are asked for."""

    class Lazy:
        @property
        def schema(self) -> StructType:
            raise PySparkException("Failed to find the data source: kafka")

    reader = SimpleNamespace(load=Lazy)
    reader.format = reader.options = lambda *_, **__: reader
    spark: Any = SimpleNamespace(readStream=reader)
    limits: Any = {"max_per_trigger": None, "streaming": True, "options": None}
    told = r"topic shop cannot be read: .*data source: kafka.* Start the session with Spark's Kafka"
    with pytest.raises(ConfigurationError, match=told):
        topic_records("table t", spark, "shop", servers="a:1", starting="earliest", **limits)


def test_a_write_to_no_topic_is_refused(spark: SparkSession) -> None:
    changes = spark.createDataFrame([], "k string, v string, _change string, _timestamp timestamp")
    with pytest.raises(PlanError, match="write_topic: topic='a,b' is not the name of one topic"):
        write_topic(
            changes, key_columns=["k"], value_columns=["v"], topic="a,b", servers="nowhere:1"
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key_columns": ["id", "at"], "key": "string"}, "id bigint, at timestamp"),
        ({"key_columns": ["at"], "key": "string"}, "at timestamp"),
        ({"key_columns": ["id"], "key": "bytes"}, 'key="bytes" does not suit'),
        ({"key_columns": ["no"]}, "no column no among id, at, v"),
    ],
)
def test_a_write_that_makes_no_sense_is_refused(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    changes = spark.createDataFrame(
        [], "id long, at timestamp, v string, _change string, _timestamp timestamp"
    )
    with pytest.raises(PlanError, match=message):
        to_records(changes, **({"value_columns": ["v"]} | arguments))


def schema(ddl: str) -> StructType:
    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return parsed


def stored(
    spark: SparkSession, topic: str, servers: str, key: ReadFormat, value: ReadFormat
) -> DataFrame:
    """What the topic holds now."""
    return read_topic(spark, topic, servers=servers, key=key, value=value, streaming=False)


def rows(frame: DataFrame, *expressions: str) -> list[tuple[Any, ...]]:
    """The expressions over each record, in the topic's order."""
    ordered = frame.orderBy("_partition", "_offset").selectExpr(*expressions)
    return [tuple(row) for row in ordered.collect()]


def produce(spark: SparkSession, topic: str, servers: str, records: Sequence[Record]) -> None:
    append(
        spark.createDataFrame(list(records), "key binary, value binary").coalesce(1),
        topic,
        servers,
    )


@pytest.mark.slow
def test_a_stream_waits_in_its_topic_until_a_table_is_loaded(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Each topic is read from its beginning, and each record once; then both go on."""
    sales, prices = new_topic(2), new_topic(1)
    rows: list[Any] = []

    def sent(topic: str, *pairs: tuple[str, str]) -> None:
        records = kafka_spark.createDataFrame([*pairs], "key string, value string")
        append(records.coalesce(1), topic, kafka_servers)

    def run() -> list[Any]:
        options = {"servers": kafka_servers, "max_per_trigger": 2}
        stream = dt.Stream.from_topic(kafka_spark, sales, name="sales", **options)
        table = dt.Table.from_topic(kafka_spark, prices, name="prices", **options)
        joined = stream.rename({"value": "item"}).join(
            table.rename({"value": "price"}), on={"item": "key"}, how="left", load="first"
        )
        query = joined.write_stream(
            dt.to_foreach_batch(lambda changes, _: rows.extend(changes.collect())),
            checkpoint=tmp_path / "checkpoint",
            trigger={"availableNow": True},
            buckets=2,
            partitions=1,
        )
        query.awaitTermination()
        return sorted((row["key"], row["price"]) for row in rows)

    sent(sales, ("1", "pen"), ("2", "ink"), ("3", "pen"))
    sent(prices, *((item, f"{item} {n}") for n in range(3) for item in ("pen", "ink")))
    loaded = [("1", "pen 2"), ("2", "ink 2"), ("3", "pen 2")]
    assert run() == loaded
    sent(prices, ("pen", "pen 3"))
    assert run() == loaded
    sent(sales, ("4", "pen"))
    assert run() == [*loaded, ("4", "pen 3")]


def append(records: DataFrame, topic: str, servers: str) -> None:
    options = {"kafka.bootstrap.servers": servers, "topic": topic}
    records.write.format("kafka").options(**options).save()


def log_sizes(spark: SparkSession, servers: str) -> dict[str, int]:
    """The bytes that the broker keeps of each topic of one partition."""
    jvm: Any = spark._jvm
    admin = jvm.org.apache.kafka.clients.admin.Admin.create({"bootstrap.servers": servers})
    nodes = jvm.java.util.ArrayList(admin.describeCluster().nodes().get())
    brokers = [node.id() for node in nodes]
    described = admin.describeLogDirs(brokers).allDescriptions().get()
    sizes = {
        partition.topic(): replica.size()
        for of_broker in described.values()
        for directory in of_broker.values()
        for partition, replica in directory.replicaInfos().items()
    }
    admin.close()
    return sizes


def utf8(key: str, value: str | None) -> Record:
    return key.encode(), None if value is None else value.encode()


def micros_since_1970(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


@contextmanager
def time_zone(spark: SparkSession, zone: str) -> Iterator[None]:
    """The session in another time zone, for as long as the block lasts."""
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
