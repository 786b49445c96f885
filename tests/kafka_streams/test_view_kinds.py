"""Random views of tables and streams: the definition against Kafka Streams itself, which
``kafka_streams/Views.java`` runs. Every record's changes must be equal, but for this:

- Kafka Streams' filter of a table emits the deletion of rows that it never emitted. A tombstone of
  a key that has no row is left out of both.
- Its counts of a table's rows keep the largest time that they have seen. Where rows are counted,
  times do not go back.
- It counts zero where a group has no row; that is a tombstone.

``DOVETAIL_CASES`` says how many cases to draw; ``DOVETAIL_SEED`` draws others.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from bench.families.views import each_record, read_join
from bench.kafka_streams import javac_needed, needed, run_java
from bench.models.views import Pipeline
from bench.records import Answers, Record, Result

CASES = int(os.environ.get("DOVETAIL_CASES", "200"))
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))
SOURCE = Path(__file__).with_name("Views.java")
PIPELINES = [
    "S where",
    "S swap where",
    "S where key_by",
    "S key_by",
    "S to_table",
    "S to_table to_stream",
    "S where to_table",
    "S to_table where",
    "S to_table swap where",
    "S key_by to_table",
    "T where",
    "T swap where",
    "T where swap",
    "T where to_stream",
    "T to_stream key_by",
    "T count",
    "T where count",
    "S where to_table count",
    "S to_table where count",
    "S union R",
    "S union R where",
    "S union R to_table where",
    "S union R key_by to_table",
    "A explode",
    "A explode to_table",
    "A explode key_by",
    "A explode key_by to_table",
]

pytestmark = [needed, javac_needed]


def draw(random_: random.Random, pipeline: Pipeline) -> list[Record]:
    """Few keys and values, times that repeat and, unless rows are counted, fall back."""
    keys = ["k", "j", *([None] if random_.random() < 0.5 else [])]
    backs = [0] if "count" in pipeline.steps else [0, 0, 3]
    records, now = [], 100
    for _ in range(random_.randint(1, 30)):
        now += random_.choice([0, 1])
        table = random_.choice(pipeline.inputs)
        word, met = random_.choice(["A", "B", None]), random_.choice([True, False])
        value = (word, met)
        if table == "A":
            value = (random_.choice([["x", "y"], ["x"], ["y", "y"], [], None]),)  # type: ignore[assignment]
        time = now - random_.choice(backs)
        records.append(Record(table, random_.choice(keys), time, value, random_.random() < 0.25))
    return records


def said(record: Record) -> str:
    """A record as Views.java reads it."""
    if record.deleted:
        value = "~"
    elif record.table == "A":
        (items,) = record.value
        value = "null" if items is None else ".".join(items) or "."
    else:
        word, met = record.value
        value = ("+" if met else "-") + ("~" if word is None else word)
    return f"{record.table} {record.key or '~'} {record.time} {value}"


def kafka_streams(cases: list[tuple[Pipeline, list[Record]]]) -> list[Answers]:
    """What Kafka Streams emits for each record of each case."""
    asked = [
        (" ".join([",".join(pipeline.inputs), *pipeline.steps]), [*map(said, records)])
        for pipeline, records in cases
    ]
    return [[_changes(line) for line in emitted] for emitted in run_java(SOURCE, asked)]


def _changes(line: str) -> list[Result]:
    changes = []
    for change in filter(None, line.split(",")):
        key, value, time = change.split(" ")
        word = None if value[1:] == "~" else value[1:]
        key = None if key == "~" else key
        changes.append(Result(key, None if value == "~" else (word,), int(time)))
    return changes


def of_rows(answers: Answers) -> Answers:
    """Without the tombstones of keys that have no row."""
    there, found = set(), []
    for part in answers:
        kept = []
        for change in part:
            if change.values is not None:
                there.add(change.key)
            elif change.key not in there:
                continue
            else:
                there.remove(change.key)
            kept.append(change)
        found.append(kept)
    return found


def test_kafka_streams_has_the_same_views() -> None:
    random_ = random.Random(SEED)
    cases = []
    for number in range(CASES):
        pipeline = read_join("view", PIPELINES[number % len(PIPELINES)], {})
        cases.append((pipeline, draw(random_, pipeline)))
    compared = 0
    for (pipeline, records), kafka in zip(cases, kafka_streams(cases), strict=True):
        defined = [*each_record(pipeline, records)]
        if pipeline.inputs[0] == "T" or {"to_table", "count"} & {*pipeline.steps}:
            defined, kafka = of_rows(defined), of_rows(kafka)
        assert defined == kafka, (pipeline, records)
        compared += sum(map(len, kafka))
    assert compared > 5 * CASES
