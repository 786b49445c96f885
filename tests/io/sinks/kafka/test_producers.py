"""Transactions of tasks, without Spark: who commits, who is fenced, and what markers say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from committed_topics import by_key, committed
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from dovetail import to_topic
from dovetail.errors import CheckpointError, ConfigurationError, PlanError, TargetError
from dovetail.io.sinks.kafka import producers, transactional
from dovetail.io.sinks.kafka.client import client_settings, permanent_error, refuse_settings
from dovetail.io.sinks.kafka.producers import BatchWrite, Marker, PermanentError
from dovetail.io.sinks.kafka.transactional import TransactionalSink

NewTopics = Callable[[int], list[str]]
COLUMNS = pa.schema(
    [
        ("topic", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@pytest.fixture
def new_topics(kafka_servers: str) -> NewTopics:
    """Creates so many topics of two partitions."""
    admin = AdminClient({"bootstrap.servers": kafka_servers})

    def create(count: int) -> list[str]:
        names = [f"topic-{uuid4().hex}" for _ in range(count)]
        made = admin.create_topics([NewTopic(name, 2, 1) for name in names])
        for future in made.values():
            future.result()
        return names

    return create


@pytest.fixture(autouse=True)
def no_producers() -> Iterator[None]:
    """Each test is a process of its own to the others' producers."""
    producers._PRODUCERS.clear()
    yield
    producers._PRODUCERS.clear()


def order(
    servers: str,
    topics: list[str],
    batch: int = 0,
    *,
    query: str,
    plan: str = "",
    expired: bool = False,
    options: Mapping[str, str] | None = None,
) -> BatchWrite:
    return BatchWrite(
        "sink",
        client_settings("sink", servers, options or {}),
        query,
        Marker(batch, plan or f"plan {batch}"),
        expired,
        topics,
    )


def records(*rows: tuple[int, str, str | None]) -> list[pa.RecordBatch]:
    """Records of topics by their number; a first batch has one of them."""
    fields = [
        {
            "topic": topic,
            "key": key.encode(),
            "value": None if value is None else value.encode(),
            "headers": [{"key": f"h{number}", "value": key.encode()} for number in range(topic)],
        }
        for topic, key, value in rows
    ]
    return [pa.RecordBatch.from_pylist(part, COLUMNS) for part in (fields[:1], fields[1:]) if part]


def write(what: BatchWrite, *rows: tuple[int, str, str | None]) -> int:
    return producers.commit_records(what, 0, records(*rows))


def test_topics_get_their_records_and_headers_once(
    kafka_servers: str, new_topics: NewTopics
) -> None:
    topics, query = new_topics(3), uuid4().hex
    rows = [(0, "a", "1"), (2, "a", None), (0, "b", "2"), (2, "a", "3"), (0, "a", "4")]
    first = order(kafka_servers, topics, query=query)
    assert write(first, *rows) == 5
    assert write(first, *rows) == 0
    producers._PRODUCERS.clear()  # another worker
    assert write(first, *rows) == 0
    assert write(order(kafka_servers, topics, 2, query=query), (0, "a", "5")) == 1
    assert by_key(kafka_servers, topics[0]) == {b"a": [b"1", b"4", b"5"], b"b": [b"2"]}
    assert committed(kafka_servers, topics[1]) == [[], []]
    headed = [m for part in committed(kafka_servers, topics[2]) for m in part]
    assert [(m.value(), m.headers()) for m in headed] == [
        (None, [("h0", b"a"), ("h1", b"a")]),
        (b"3", [("h0", b"a"), ("h1", b"a")]),
    ]


def test_a_topic_that_lacks_the_micro_batch_gets_it_alone(
    kafka_servers: str, new_topics: NewTopics
) -> None:
    """As a topic that a query got between two starts."""
    one, two = new_topics(2)
    query = uuid4().hex
    assert write(order(kafka_servers, [one], query=query), (0, "a", "1")) == 1
    both = order(kafka_servers, [two, one], query=query)
    assert write(both, (1, "a", "1"), (0, "a", "2"), (1, "b", "3")) == 1
    assert by_key(kafka_servers, one) == {b"a": [b"1"]}
    assert by_key(kafka_servers, two) == {b"a": [b"2"]}


def test_a_zombie_is_fenced_before_and_within_its_transaction(
    kafka_servers: str, new_topics: NewTopics
) -> None:
    topics, query = new_topics(1), uuid4().hex
    what = order(kafka_servers, topics, query=query)
    zombie = producers._Producer(what, what.producer_name(0))
    assert zombie.begin_transaction(what) == topics
    later = producers._Producer(what, what.producer_name(0))
    with pytest.raises(TargetError, match="another process has taken over the transaction dovetai"):
        zombie.commit(what, topics, records((0, "a", "zombie")))
    assert later.begin_transaction(what) == topics
    assert later.commit(what, topics, records((0, "a", "later"))) == 1
    with pytest.raises(KafkaException):
        producers._Producer.begin_transaction(zombie, order(kafka_servers, topics, 1, query=query))
    assert by_key(kafka_servers, topics[0]) == {b"a": [b"later"]}


def test_a_worker_whose_producer_was_fenced_since_begins_anew(
    kafka_servers: str, new_topics: NewTopics
) -> None:
    """As a task that another worker ran in the meantime, and then this one again."""
    topics, query = new_topics(1), uuid4().hex
    assert write(order(kafka_servers, topics, query=query), (0, "a", "1")) == 1
    here = dict(producers._PRODUCERS)
    producers._PRODUCERS.clear()
    second = order(kafka_servers, topics, 1, query=query)
    assert write(second, (0, "a", "2")) == 1
    producers._PRODUCERS.update(here)
    assert write(second, (0, "a", "2")) == 0
    assert write(order(kafka_servers, topics, 2, query=query), (0, "a", "3")) == 1
    assert by_key(kafka_servers, topics[0]) == {b"a": [b"1", b"2", b"3"]}


def test_a_task_killed_before_its_commit_leaves_nothing(
    kafka_servers: str, new_topics: NewTopics
) -> None:
    """Its records are on the broker, and the next attempt ends their transaction."""
    topics, query = new_topics(1), uuid4().hex
    what = order(kafka_servers, topics, query=query)
    killed = producers._Producer(what, what.producer_name(0))
    killed.begin_transaction(what)
    killed._send(what, topics, records((0, "a", "killed"))[0])
    killed._producer.flush()
    assert write(what, (0, "a", "1"), (0, "b", "2")) == 2
    assert by_key(kafka_servers, topics[0]) == {b"a": [b"1"], b"b": [b"2"]}


@pytest.mark.parametrize(
    ("batch", "plan", "expired", "message"),
    [
        (3, "", False, "has micro-batch 4 of this query by another run, and the next one is 3"),
        (4, "other", False, "has micro-batch 4 of this query by another run, and the next one is"),
    ],
)
def test_an_older_or_another_copy_of_the_checkpoint_is_refused(
    kafka_servers: str,
    new_topics: NewTopics,
    batch: int,
    plan: str,
    expired: bool,
    message: str,
) -> None:
    topics, query = new_topics(1), uuid4().hex
    assert write(order(kafka_servers, topics, 4, query=query), (0, "a", "1")) == 1
    with pytest.raises(PermanentError, match=message):
        write(order(kafka_servers, topics, batch, query=query, plan=plan), (0, "a", "2"))
    assert by_key(kafka_servers, topics[0]) == {b"a": [b"1"]}


def test_an_old_micro_batch_needs_a_marker(kafka_servers: str, new_topics: NewTopics) -> None:
    topics, query = new_topics(1), uuid4().hex
    old = order(kafka_servers, topics, 1, query=query, expired=True)
    with pytest.raises(
        PermanentError, match="micro-batch 1 was begun longer ago than the brokers k"
    ):
        write(old, (0, "a", "1"))
    assert write(order(kafka_servers, topics, 0, query=query), (0, "a", "0")) == 1
    assert write(old, (0, "a", "1")) == 1
    assert by_key(kafka_servers, topics[0]) == {b"a": [b"0", b"1"]}


@pytest.mark.slow
def test_a_transaction_that_takes_too_long_is_ended(
    kafka_servers: str, new_topics: NewTopics
) -> None:
    topics, query = new_topics(1), uuid4().hex
    limits = {"kafka.transaction.timeout.ms": "2000", "kafka.socket.timeout.ms": "1500"}
    what = order(kafka_servers, topics, query=query, options=limits)
    slow = producers._Producer(what, what.producer_name(0))
    slow.begin_transaction(what)
    slow._send(what, topics, records((0, "a", "slow"))[0])
    slow._producer.flush()
    time.sleep(15)  # the broker looks for such transactions every 10 s
    with pytest.raises(TargetError, match=r"took 1\d s, and the brokers end one after 2 s"):
        slow.commit(what, topics, records((0, "a", "slow")))
    assert write(what, (0, "a", "1")) == 1
    assert by_key(kafka_servers, topics[0]) == {b"a": [b"1"]}


def test_more_records_than_the_buffer_takes_wait_for_it(
    kafka_servers: str, new_topics: NewTopics
) -> None:
    topics, query = new_topics(1), uuid4().hex
    few = {"kafka.queue.buffering.max.messages": "10"}
    what = order(kafka_servers, topics, query=query, options=few)
    assert write(what, *((0, "a", str(number)) for number in range(150))) == 150
    expected = [str(number).encode() for number in range(150)]
    assert by_key(kafka_servers, topics[0]) == {b"a": expected}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "Grant it WRITE and DESCRIBE on the transaction"),
        ("GROUP_AUTHORIZATION_FAILED", "Grant it READ and DESCRIBE on the groups that begin with"),
        ("TOPIC_AUTHORIZATION_FAILED", "Grant it WRITE, READ and DESCRIBE on the topic"),
        ("INVALID_TRANSACTION_TIMEOUT", "transaction.max.timeout.ms, or raise that"),
        ("_UNSUPPORTED_FEATURE", "Write to brokers with transactions"),
    ],
)
def test_a_failure_that_lasts_names_its_remedy(code: str, message: str) -> None:
    error = permanent_error("sink", KafkaException(KafkaError(getattr(KafkaError, code))))
    with pytest.raises(ConfigurationError, match=message):
        raise error or AssertionError
    assert permanent_error("sink", KafkaException(KafkaError(KafkaError._TRANSPORT))) is None


def test_settings_that_the_client_lacks_are_refused() -> None:
    settings: Any = client_settings("sink", "localhost:1", {"kafka.nope": "x"})
    with pytest.raises(ConfigurationError, match=r'refuses its settings: No such .* "nope"'):
        refuse_settings("sink", settings)
    for name in ("topic", "kafka.transactional.id"):
        with pytest.raises(PlanError, match=f"options= has '{name}', which exactly_once= does not"):
            client_settings("sink", "localhost:1", {name: "x"})


class Folder:
    """The files of a checkpoint, in memory."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.text, self.put = self.texts.get, self.texts.__setitem__

    def has_files(self, folder: str) -> bool:
        return any(name.startswith(f"{folder}/") for name in self.texts)


def test_each_cluster_has_its_count_of_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder()
    monkeypatch.setattr(transactional, "files_of", lambda session: folder)

    def start(**counts: int) -> None:
        for cluster, count in counts.items():
            transactional._record_transactions(None, "sink", "c", cluster, count)  # type: ignore[arg-type]

    start(a=3, b=2)  # killed before it plans a micro-batch
    start(a=1, b=4)
    folder.texts["c/offsets/0"] = ""
    start(a=1, b=4)
    with pytest.raises(CheckpointError, match=r"micro-batches have 1 transactions, and .* for 4"):
        start(a=4)
    folder.texts[f"c/{transactional.FILE_NAME}"] = '{"transactions": 2}'  # of an earlier version
    start(a=2)
    with pytest.raises(CheckpointError, match=r"micro-batches have 2 transactions, and .* for 4"):
        start(b=4)


def test_a_topic_is_that_of_its_brokers() -> None:
    sinks = [to_topic("t", servers=s, exactly_once=True) for s in ("a:1,b:1", "b:1, a:1", "c:1")]
    assert sinks[0].target == sinks[1].target != sinks[2].target
    assert sinks[0].target != to_topic("u", servers="a:1,b:1").target
    with pytest.raises(PlanError, match=r"to_topic\('t'\) is a topic of two results"):
        TransactionalSink.joint(None, [(sinks[0], None), (sinks[2], None)], "c")  # type: ignore[arg-type, list-item]
