"""A source is read once for all views of it, and each of them is what it is alone."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from timed_files import timed_file

import dovetail as dt

KINDS = ("order", "paid", "customer", "gone", None)
Results = dict[str, "dt.Table | dt.Stream"]
COUNTED: dict[str, Callable[[int], bool]] = {
    "v > 0": lambda v: v > 0,
    "v is not null": lambda _: True,
    "v % 2 = 1": lambda v: v % 2 == 1,
}
"""Conditions in SQL, and of values that are not null."""


def records(spark: SparkSession, folder: Path, name: str = "records") -> dt.Stream:
    """All kinds of records of one topic; some cannot be read."""
    return dt.Stream.from_records(
        spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder)),
        key_columns="id",
        value=dt.formats.json("id long, kind string, amount string, `at me` string, at timestamp"),
        timestamp="at",
        malformed="dead_letter",
        name=name,
    )


def results(read: dt.Stream) -> Results:
    """By views that leave out records, that fail on some, that make a table, and by none."""
    orders = read.where("kind = 'order'")
    amounts = orders.with_columns(
        errors="dead_letter", amount=F.col("amount").cast("long"), word=F.col("at me")
    )
    customers = read.where(F.col("kind") == "customer").to_table()
    gone = read.to_table().where("kind = 'gone'")
    double = amounts.select("word", twice=F.assert_true(F.col("amount") != 3), errors="dead_letter")
    return {
        "kinds": read.group_by("kind").agg(n=dt.count()),
        "orders": orders.group_by("id").agg(n=dt.count()),
        "amounts": amounts.group_by("word").agg(total=dt.sum("amount")),
        "known": amounts.join(
            customers, how="left", select={"much": "left.amount", "known": "right.kind"}
        ),
        "gone": gone.group_by("kind").agg(n=dt.count()),
        "double": double.group_by("id").agg(n=dt.count()),
        "items": read.with_columns(one=F.split("amount", "")).explode("one").to_table(),
    }


def send(folder: Path) -> None:
    """Files of records, in their order."""
    folder.mkdir()
    draw = random.Random(3)
    for number in range(4):
        lines = []
        for place in range(draw.choice([0, 12, 25])):
            row: dict[str, Any] = {
                "id": draw.choice([1, 2, 3, None]),
                "kind": draw.choice(KINDS),
                "amount": draw.choice(["1", "3", "44", "", "x", None]),
                "at me": draw.choice("ab"),
                "at": f"2024-05-0{number + 1}T10:00:{place:02}Z",
            }
            lines.append(draw.choice([json.dumps(row)] * 9 + ["no record"]))
        with timed_file(folder / f"{number}.txt", number) as path:
            path.write_text("\n".join(lines))


@pytest.mark.slow
def test_views_of_a_source_are_made_of_one_reading(spark: SparkSession, tmp_path: Path) -> None:
    """Records that a view leaves out, or fails on, are the others' all the same."""
    send(tmp_path / "lines")
    emitted: dict[str, list[Row]] = defaultdict(list)

    def take(name: str) -> dt.typing.Sink:
        def function(changes: DataFrame, number: int) -> None:
            rows = changes.drop("_position").collect()
            emitted[name] += [Row(batch=number, **row.asDict()) for row in rows]

        return dt.to_foreach_batch(function)

    def run(made: Results, to: str) -> list[dict[str, Any]]:
        sinks = {result: take(f"{to} {name}") for name, result in made.items()}
        query = dt.run(
            sinks | {dt.dead_letters: take(f"{to} letters")},
            checkpoint=tmp_path / f"of {to}",
            trigger={"availableNow": True},
            buckets=2,
            partitions=1,
        )
        query.awaitTermination()
        offsets = (tmp_path / f"of {to}" / "offsets" / "0").read_text().splitlines()[2:]
        # What is exploded is read once more.
        assert len(offsets) == (2 if to == "together" else len(made))
        return [json.loads(progress.json) for progress in query.recentProgress]

    together = results(records(spark, tmp_path / "lines"))
    apart = {name: results(records(spark, tmp_path / "lines", name))[name] for name in together}
    progress = run(together, "together")
    run(apart, "apart")
    for name in together:
        one, other = emitted[f"together {name}"], emitted[f"apart {name}"]
        assert sorted(map(str, one)) == sorted(map(str, other)), name
        assert by_key(one) == by_key(other), name
        assert one, name
    letters = [*map(text, emitted["together letters"])]
    assert set(letters) == set(map(text, emitted["apart letters"]))
    assert len(letters) < len(emitted["apart letters"])
    operators = Counter(row["_operator"] for row in emitted["together letters"])
    assert operators.keys() == {"stream records", "with_columns of records", "select of records"}
    lines = [line for file in (tmp_path / "lines").iterdir() for line in file.open()]
    assert operators["stream records"] == sum("no record" in line for line in lines) > 2
    failed = sum(
        count["records"]
        for one in progress
        for metric, count in one["observedMetrics"].items()
        if metric.startswith("records.failed")
    )
    assert failed == operators.total() - operators["stream records"] > 2


def text(letter: Row) -> str:
    """What it says, wherever it came."""
    return f"{letter['batch']} {letter['_problem']} {letter['row']}"


def by_key(rows: list[Row]) -> dict[str, list[str]]:
    """Each key's changes in their order."""
    found = defaultdict(list)
    for row in rows:
        found[str(row[1])].append(str(row))
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("ordered_by", "back", "counted"),
    [
        pytest.param(
            ordered_by,
            back,
            counted,
            marks=[] if (first + back + second) % 3 == 0 else pytest.mark.slow,
        )
        for first, ordered_by in enumerate(["reading", "logs", "files"])
        for second, counted in enumerate(COUNTED)
        for back in (False, True)
    ],
)
def test_a_record_comes_before_what_it_changes(
    spark: SparkSession, tmp_path: Path, ordered_by: str, back: bool, counted: str
) -> None:
    """A stream is joined with counts of some of its own records. The first records, one log and one
    file have none of these. With ``back``, times go back behind those that are not counted. Results
    may depend on stream time, which those do not advance.
    """
    values = [None, 0, 2, 2, 0, 1, None, 3, 1, 2, 3, 0, 1, 2]
    logs = [(v or 0) % 2 if ordered_by == "logs" else 0 for v in values]
    seconds = [n + 9 * (back and not value) for n, value in enumerate(values)]
    rows = [
        {"id": n, "log": log, "v": value, "at": f"2024-05-01T10:00:{second:02}Z"}
        for n, (log, value, second) in enumerate(zip(logs, values, seconds, strict=True))
    ]
    for number in range(0, len(rows), 3):
        with timed_file(tmp_path / f"{number:02}.json", number) as path:
            path.write_text("\n".join(map(json.dumps, rows[number : number + 3])))
    read = spark.read.schema("id long, log int, v long, at timestamp")
    frame = read.json(sorted(map(str, tmp_path.glob("*.json")))).withColumn("place", F.col("id"))
    options: dict[str, Any] = {}
    if ordered_by == "logs":
        options = {"sequence": "place", "log_partition": "log"}
    if ordered_by == "reading":
        frame = spark.createDataFrame(frame.orderBy("id").collect(), frame.schema).coalesce(1)
    read_stream = dt.Stream.from_changelog(frame, key="id", timestamp="at", name="s", **options)
    counts = read_stream.where(counted).group_by("v").agg(n=dt.count())
    timed = counts.expire(after="1 day")

    clocks = {0: 0, 1: 0}
    arrival = []
    for number, log in enumerate(logs):
        clocks[log] = max(clocks[log], seconds[number])
        arrival.append((clocks[log], log, number))
    expected, seen = {}, Counter[Any]()
    for *_, number in sorted(arrival):
        value = values[number]
        expected[number] = (value, seen[value] or None)
        seen[value] += value is not None and COUNTED[counted](value)
    for buckets, table in ((1, counts), (3, counts), (3, timed)):
        joined = read_stream.join(table, how="left", on="v", select=["v", "n"])
        found = joined.changelog(buckets=buckets).collect()
        assert {row.id: (row.v, row.n) for row in found} == expected
        assert len(found) == len(rows)


def test_a_record_without_a_key_comes_at_its_own_time(spark: SparkSession) -> None:
    """It does not advance stream time, but its log is as far as that."""
    rows = [(0, 0, 7, "a", 1), (0, 1, None, "c", 20), (1, 0, 1, "b", 10), (1, 1, 2, "d", 21)]
    frame = spark.createDataFrame(rows, "log int, place long, id long, v string, at long")
    frame = frame.coalesce(1).withColumns({"one": F.lit(1), "at": F.timestamp_seconds("at")})
    read: dict[str, Any] = {"key": "id", "timestamp": "at", "name": "s"}
    stream = dt.Stream.from_changelog(frame, **read, sequence="place", log_partition="log")
    merged = stream.deduplicate(within="1 s").group_by("one").agg(all=dt.collect_list("v"))
    assert [row["all"] for row in merged.changelog(buckets=1).orderBy("_position").collect()] == [
        [*"abcd"[:count]] for count in (1, 2, 3, 4)
    ]
