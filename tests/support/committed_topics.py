"""Topics as readers of committed records see them, by Kafka's own client for Python."""

from __future__ import annotations

import time
from uuid import uuid4

from confluent_kafka import Consumer, Message, TopicPartition

WAIT_S = 30


def committed(servers: str, topic: str) -> list[list[Message]]:
    """The committed records of each partition, in order. A transaction that is open holds back what
    comes behind it, so the partition's end must be reached.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid4().hex,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        count = len(consumer.list_topics(topic, WAIT_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in range(count)])
        records: list[list[Message]] = [[] for _ in range(count)]
        reading, deadline = set(range(count)), time.monotonic() + WAIT_S
        while reading:
            assert time.monotonic() < deadline, f"{topic} has no end"
            for message in consumer.consume(5000, 0.2):
                if message.error() is None:
                    records[message.partition()].append(message)
                else:
                    reading.discard(message.partition())
        return records
    finally:
        consumer.close()


def by_key(servers: str, topic: str) -> dict[bytes | None, list[bytes | None]]:
    """The committed values of each key, in order. A key is in one partition."""
    values: dict[bytes | None, list[bytes | None]] = {}
    for number, partition in enumerate(committed(servers, topic)):
        here: dict[bytes | None, list[bytes | None]] = {}
        for message in partition:
            here.setdefault(message.key(), []).append(message.value())
        assert values.keys().isdisjoint(here), f"partition {number} shares keys with another"
        values |= here
    return values
