"""Topics joined into a topic by a real broker: exact sequences, exact content after a failure."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple

import pytest
from bench.models import tables as naive
from bench.parameters import slow_after
from bench.records import Record
from committed_topics import committed
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import dovetail as dt

KEYS = 5
RECORDS = 60

Written = dict[str | None, list[tuple[str | None, int]]]
"""Per key the records in order: value, None for a tombstone, and event time in milliseconds."""


class Broker(NamedTuple):
    """Where topics are."""

    spark: SparkSession
    servers: str
    new_topic: Callable[[int], str]

    def produce(self, topic: str, records: Sequence[Record]) -> None:
        """Appends records in order, their event time in the header."""
        self.append(
            topic,
            (
                (
                    record.key,
                    None if record.deleted else record.value,
                    {"dovetail.timestamp_us": str(record.time * 1000)},
                )
                for record in records
            ),
        )

    def append(self, topic: str, rows: Iterable[tuple[Any, Any, dict[str, str]]]) -> None:
        """Appends keys, values and headers in order."""
        producer = Producer({"bootstrap.servers": self.servers, "partitioner": "murmur2_random"})
        for key, value, headers in rows:
            producer.produce(topic, key=key, value=value, headers=headers)
        assert producer.flush(60) == 0

    def written(self, topic: str) -> Written:
        """What a topic holds: read without dovetail."""
        sequences: Written = defaultdict(list)
        for message in chain(*committed(self.servers, topic)):
            (time_name, time), (change_name, change) = message.headers()
            assert (time_name, change_name) == ("dovetail.timestamp_us", "dovetail.change")
            assert change == (b"delete" if message.value() is None else b"upsert")
            key, value = (cell and cell.decode() for cell in (message.key(), message.value()))
            sequences[key].append((value, int(time) // 1000))
        return dict(sequences)

    def table(self, topic: str, **arguments: Any) -> dt.Table:
        """The topic as a table."""
        return dt.Table.from_topic(self.spark, topic, servers=self.servers, **arguments)


@pytest.fixture(scope="module")
def broker(
    kafka_spark: SparkSession, kafka_servers: str, new_topic: Callable[[int], str]
) -> Broker:
    return Broker(kafka_spark, kafka_servers, new_topic)


@pytest.fixture(scope="module")
def history() -> list[Record]:
    """Upserts and tombstones of two tables, some without a key, by ascending time."""
    rng = random.Random(1)
    return [
        Record(
            rng.choice(("users", "cities")),
            None if rng.random() < 0.05 else f"k{rng.randrange(KEYS)}",
            1000 + time,
            f"v{time}",
            rng.random() < 0.3,
        )
        for time in range(RECORDS)
    ]


@pytest.fixture(scope="module")
def topics(broker: Broker, history: Sequence[Record]) -> dict[str, str]:
    """The topic of each table, of two partitions and of three."""
    topics = {"users": broker.new_topic(2), "cities": broker.new_topic(3)}
    for name, topic in topics.items():
        broker.produce(topic, [record for record in history if record.table == name])
    return topics


@pytest.mark.parametrize("how", slow_after(1, ["left", "inner"]))
def test_each_keys_records_are_each_inputs_own_results(
    broker: Broker,
    history: Sequence[Record],
    topics: Mapping[str, str],
    tmp_path: Path,
    how: Any,
) -> None:
    target = broker.new_topic(3)
    users, cities = (broker.table(topic, name=name) for name, topic in topics.items())
    joined = users.join(cities, how=how, select={"pair": pair()})
    assert ran(joined, broker, target, tmp_path).numInputRows > 0
    assert broker.written(target) == expected(how, history)


def test_a_stream_becomes_the_table_that_its_topic_is(
    broker: Broker, history: Sequence[Record], topics: Mapping[str, str]
) -> None:
    users = broker.table(topics["users"], name="users", streaming=False)
    users_stream = dt.Stream.from_topic(
        broker.spark, topics["users"], servers=broker.servers, name="users", streaming=False
    )
    cities = broker.table(topics["cities"], name="cities", streaming=False)

    def changes(left: dt.Table) -> Written:
        joined = left.join(cities, how="left", select={"pair": pair()})
        sequences: Written = defaultdict(list)
        for row in joined.changelog().orderBy("_position").toArrow().to_pylist():
            value = row["pair"] if row["_change"] == "upsert" else None
            sequences[row["key"]].append((value, round(row["_timestamp"].timestamp() * 1000)))
        return dict(sequences)

    assert changes(users_stream.to_table()) == changes(users) == expected("left", history)


def test_objects_are_joined_as_they_are_written(broker: Broker, tmp_path: Path) -> None:
    users, cities, target = (broker.new_topic(1) for _ in range(3))
    record = partial(Record, "", '{"id":1,"part":"a"}', deleted=False)
    other = partial(Record, "", '{"id":1,"part":"b"}', deleted=False)
    broker.produce(
        users,
        [
            record(1, '{"name":"Ada","born":"1815-12-10"}'),
            record(4, None, deleted=True),
            other(5, '{"born":null}'),
            record(6, '{"name":"Åsa"}'),
        ],
    )
    broker.produce(
        cities,
        [other(2, '{"city":"Rome","rank":9007199254740993}'), record(3, '{"rank":0.50}')],
    )
    key = "id long, part string"
    located = broker.table(
        users, name="users", key=parsed(key), value=parsed("name string, born date")
    ).join(
        broker.table(
            cities,
            name="cities",
            key=parsed(key),
            value=parsed("city string, rank decimal(20, 2)"),
        ),
        how="left",
    )
    query = located.write_stream(
        dt.to_topic(target, servers=broker.servers),
        checkpoint=str(tmp_path),
        trigger={"availableNow": True},
        buckets=1,
    )
    query.awaitTermination()
    assert broker.written(target) == {
        '{"id":1,"part":"a"}': [
            ('{"name":"Ada","born":"1815-12-10","city":null,"rank":null}', 1),
            ('{"name":"Ada","born":"1815-12-10","city":null,"rank":0.50}', 3),
            (None, 4),
            ('{"name":"Åsa","born":null,"city":null,"rank":0.50}', 6),
        ],
        '{"id":1,"part":"b"}': [
            ('{"name":null,"born":null,"city":"Rome","rank":9007199254740993.00}', 5),
        ],
    }


@pytest.mark.slow
def test_a_batch_that_is_written_twice_repeats_and_nothing_else_changes(
    broker: Broker, history: Sequence[Record], tmp_path: Path
) -> None:
    """The second query dies between a batch's last record and its commit, with input to come."""
    sources = {"users": broker.new_topic(2), "cities": broker.new_topic(3)}
    unbroken, broken = broker.new_topic(3), broker.new_topic(3)
    half = len(history) // 2

    def run(target: str) -> int:
        """Goes on with what there is, and counts the micro-batches."""
        users, cities = (
            broker.table(topic, name=name, max_per_trigger=10) for name, topic in sources.items()
        )
        joined = users.join(cities, how="left", select={"pair": pair()})
        query = joined.write_stream(
            dt.to_topic(target, servers=broker.servers, key="string", value="string"),
            checkpoint=str(tmp_path / target),
            trigger={"availableNow": True},
        )
        query.awaitTermination()
        return sum(progress.numInputRows > 0 for progress in query.recentProgress)

    def produce(part: Sequence[Record]) -> None:
        for name, topic in sources.items():
            broker.produce(topic, [record for record in part if record.table == name])

    produce(history[:half])
    assert run(unbroken) == run(broken) >= 2
    before = broker.written(unbroken)
    assert broker.written(broken) == before
    lose_last_commit(tmp_path / broken)

    produce(history[half:])
    batches = run(unbroken)
    assert run(broken) == batches + 1 >= 3

    repeated = 0
    once, twice = broker.written(unbroken), broker.written(broken)
    assert once.keys() == twice.keys()
    for key, sequence in once.items():
        first = len(before.get(key, []))
        again = len(twice[key]) - len(sequence)
        assert 0 <= again <= first
        assert twice[key] == sequence[:first] + sequence[first - again :]
        repeated += again
    assert 0 < repeated < sum(map(len, before.values())), "one batch, and not all of them"
    assert compacted(twice) == compacted(once) == compacted(expected("left", history))


@pytest.mark.slow
def test_a_record_that_cannot_be_read_stops_the_query_or_is_counted(
    broker: Broker, topics: Mapping[str, str], tmp_path: Path
) -> None:
    topic, target = broker.new_topic(1), broker.new_topic(1)
    records = [("k1", b"good"), ("k2", b"\xff"), ("k3", b"fine"), ("k3", b"\xfe")]
    broker.append(topic, ((key, value, {}) for key, value in records))

    def joined(malformed: Any) -> dt.Table:
        users = broker.table(topic, name="users", malformed=malformed)
        cities = broker.table(topics["cities"], name="cities")
        return users.join(cities, how="left", select={"user": F.col("left.value")})

    with pytest.raises(StreamingQueryException) as raised:
        ran(joined("fail"), broker, target, tmp_path / "fail")
    for part in ("table users", f"topic {topic}", "partition 0, offset 1", "malformed='drop'"):
        assert part in str(raised.value)
    assert broker.written(target) == {}

    progress = ran(joined("drop"), broker, target, tmp_path / "drop")
    assert progress.observedMetrics["users.malformed"].records == 2
    written = broker.written(target)
    assert {value for value, _ in written["k1"]} == {"good"}
    assert {value for value, _ in written["k3"]} == {"fine"}
    assert "k2" not in written


@pytest.mark.slow
@pytest.mark.parametrize("there", [1, 5])
def test_a_topic_that_is_deleted_and_made_anew_is_another_log(
    broker: Broker, tmp_path: Path, there: int
) -> None:
    """What docs/kafka.md says of it: with fewer records than were read the query stops, with as
    many or more it goes on behind those that were read.
    """
    topic, target = broker.new_topic(1), broker.new_topic(1)
    kafka = broker.spark._jvm.org.apache.kafka.clients.admin
    admin = kafka.Admin.create({"bootstrap.servers": broker.servers})

    def produce(*names: str) -> None:
        broker.produce(topic, [naive.Record("", name, 1, name, deleted=False) for name in names])

    def run() -> None:
        ran(broker.table(topic, name="users"), broker, target, tmp_path)

    produce("a", "b", "c")
    run()
    admin.deleteTopics([topic]).all().get()
    with pytest.raises(StreamingQueryException, match="UnknownTopicOrPartition"):
        run()
    while topic in admin.listTopics().names().get():
        sleep(0.1)
    admin.createTopics([kafka.NewTopic(topic, 1, 1)]).all().get()
    admin.close()
    produce(*"vwxyz"[-there:])
    if there < 3:
        with pytest.raises(StreamingQueryException, match="offset was changed from 3 to 1"):
            run()
        assert broker.written(target).keys() == {"a", "b", "c"}
    else:
        run()
        assert broker.written(target).keys() == {"a", "b", "c", "y", "z"}


def pair() -> Column:
    """Both values as text; just the left one where there is no right row."""
    return F.concat_ws("+", F.col("left.value"), F.col("right.value"))


def ran(table: dt.Table, broker: Broker, target: str, checkpoint: Path) -> Any:
    """The progress of a query that has written all there is in its one micro-batch."""
    query = table.write_stream(
        dt.to_topic(target, servers=broker.servers, key="string", value="string"),
        checkpoint=str(checkpoint),
        trigger={"availableNow": True},
        buckets=2,
    )
    query.awaitTermination()
    (progress,) = (progress for progress in query.recentProgress if progress.numInputRows > 0)
    return progress


def lose_last_commit(checkpoint: Path) -> None:
    """The checkpoint as a query leaves it that dies after its sink has written, before it could
    say so.
    """
    commits = checkpoint / "commits"
    last = max(
        (file for file in commits.iterdir() if file.name.isdigit()), key=lambda f: int(f.name)
    )
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def expected(how: str, records: Sequence[Record]) -> Written:
    """By definition: each record's own result, as text."""
    sequences: Written = defaultdict(list)
    for changes in naive.each_record(("users", how, "cities"), records):
        for key, cells, time in changes:
            value = None if cells is None else "+".join(cell[0] for cell in cells if cell)
            sequences[key].append((value, time))
    return dict(sequences)


def compacted(written: Written) -> dict[str | None, str | None]:
    """The last value of each key."""
    return {key: sequence[-1][0] for key, sequence in written.items()}


def parsed(ddl: str) -> StructType:
    """A schema from its text."""
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


@pytest.mark.slow
def test_a_query_goes_on_with_the_state_and_the_offsets_of_another(
    broker: Broker, tmp_path: Path
) -> None:
    """With other buckets, another join and a topic of its own, filled from the first commit on;
    what the topics have brought is not read again.
    """
    users, cities = broker.new_topic(2), broker.new_topic(3)
    first, second = broker.new_topic(2), broker.new_topic(2)

    def produced(topic: str, *rows: tuple[str, str | None, int]) -> None:
        broker.produce(topic, [Record("", key, time, v or "", v is None) for key, v, time in rows])

    def run(how: Any, target: str, checkpoint: str, **begin: Any) -> int:
        one, other = (
            broker.table(topic, key="string", value="string", name=name)
            for topic, name in ((users, "users"), (cities, "cities"))
        )
        both = one.join(
            other, how=how, select={"value": F.concat_ws("-", "left.value", "right.value")}
        )
        query = both.write_stream(
            dt.to_topic(target, servers=broker.servers, key="string", value="string"),
            checkpoint=tmp_path / checkpoint,
            emit="batch",
            trigger={"availableNow": True},
            **begin,
        )
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    produced(users, ("a", "u1", 1), ("b", "u2", 2), ("c", "u3", 3), ("c", None, 4))
    produced(cities, ("a", "c1", 1))
    assert run("inner", first, "first", buckets=2) == 5
    assert broker.written(first) == {"a": [("u1-c1", 1)]}
    produced(users, ("b", "u5", 5))
    produced(cities, ("b", "c6", 6), ("d", "c7", 7))
    begin = {"initial": tmp_path / "first", "emit_initial": True, "buckets": 3}
    assert run("outer", second, "second", **begin) == 3
    assert broker.written(second) == {
        "a": [("u1-c1", 1)],
        "b": [("u2", 2), ("u5-c6", 6)],
        "d": [("c7", 7)],
    }
    produced(cities, ("a", None, 8))
    assert run("outer", second, "second") == 1
    assert broker.written(second)["a"] == [("u1-c1", 1), ("u1", 8)]
