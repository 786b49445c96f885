"""Without a jar that a call needs, the error says which."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import small_session
from drivers import reported

import dovetail as dt
from dovetail.platform import delta_tables

KAFKA = "topic t cannot be read: .*Start the session with Spark's Kafka connector: spark.jars.pack"
DELTA = (
    "the session has Delta Lake's settings and not its jar. Build it with spark.jars.packages=io"
)
EXPECTED = {
    "read a topic": f"from_topic: {KAFKA}",
    "write a topic": "to_topic: topic t cannot be written: .*Start the session with Spark's Kafka",
    "write Delta": rf"to_delta\('t'\): {DELTA}",
    "read Delta": f"snapshot t: {DELTA}",
    "read a Delta table's changes": f"from_delta: {DELTA}",
    "read Avro": "table t: value= is Avro, which the session does not know. Start the session with",
}


def errors(folder: Path) -> dict[str, str]:
    # The catalog is left out: without its class a session computes nothing at all.
    spark = (
        small_session.builder().config("spark.sql.extensions", delta_tables.EXTENSION).getOrCreate()
    )
    (folder / "in").mkdir()
    live = spark.readStream.schema("id long, at timestamp").json(str(folder / "in"))
    table = dt.Table.from_changelog(live, key="id", timestamp="at", name="orders")
    topic = dt.to_topic("t", servers="localhost:9092")
    calls = {
        "read a topic": lambda: dt.Table.from_topic(spark, "t", servers="localhost:9092"),
        "write a topic": lambda: table.write_stream(topic, checkpoint=folder / "c"),
        "write Delta": lambda: table.write_stream(dt.to_delta("t"), checkpoint=folder / "c"),
        "read Delta": lambda: dt.SnapshotTable.from_delta(spark, "t", key="id"),
        "read a Delta table's changes": lambda: dt.Table.from_delta(spark, "t", key="id"),
        "read Avro": lambda: dt.Table.from_records(
            spark.createDataFrame([], "key string, value string, timestamp timestamp"),
            value=dt.formats.avro('"string"'),
            name="t",
        ),
    }
    messages = {}
    for name, call in calls.items():
        with pytest.raises(dt.errors.ConfigurationError) as raised:
            call()
        messages[name] = str(raised.value)
    return messages


@pytest.mark.slow
def test_a_missing_jar_is_named(tmp_path: Path) -> None:
    """In a process of its own: a session has its jars from its start."""
    messages = reported(__file__, tmp_path)
    assert messages.keys() == EXPECTED.keys()
    for name, message in messages.items():
        assert re.search(EXPECTED[name], message), message


if __name__ == "__main__":
    print(json.dumps(errors(Path(sys.argv[1]))))
