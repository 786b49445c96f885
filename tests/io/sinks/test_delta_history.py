"""A Delta table with all versions of a table's rows: what they are, whatever the cuts and kills."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bench.parameters import slow_after
from parquet_rows import add_file
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from small_session import with_delta

import dovetail as dt
from dovetail.base.columns import quoted
from dovetail.io.sinks.delta import sink as delta
from dovetail.io.sinks.delta import tables
from dovetail.io.sinks.delta import versions as delta_history
from dovetail.platform import delta_tables, delta_upsert
from dovetail.platform.sessions import cloned_session

START = datetime(2024, 1, 1, tzinfo=timezone.utc)
SETTINGS = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
}
COLUMNS = ["id", "v", "_valid_from", "_valid_to", "_current"]

Versions = list[tuple[Any, ...]]


class Change(NamedTuple):
    """A change of a key at a second; ``value`` None with ``gone``: its delete."""

    key: Any
    second: int
    value: int | None
    gone: bool = False


@pytest.fixture(scope="module")
def delta_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, which must have been started with Delta Lake."""
    yield from with_delta(spark, SETTINGS)


def tracked(value: int | None) -> int | None:
    """What a value has in the column that is tracked: 0, 1 or null."""
    return None if value is None or value % 7 == 0 else value % 5 // 3


def model(changes: Sequence[Change], *, tracks: bool = False) -> Versions:
    """One change after the other: each key's versions, of which only the last one may be open."""
    histories: dict[Any, list[list[Any]]] = {}
    for change in changes:
        own = histories.setdefault(change.key, [])
        time = change.second
        stays = tracks and own and own[-1][2] is None and not change.gone
        if stays and tracked(own[-1][0]) == tracked(change.value):
            own[-1][0] = change.value
            continue
        if own:
            _, start, end = own[-1]
            time = max(time, start if end is None else end)
            if end is None and time == start:
                own.pop()
            elif end is None:
                own[-1][2] = time
        if not change.gone:
            own.append([change.value, time, None])
    return sorted(((key, *version) for key, own in histories.items() for version in own), key=repr)


def test_the_model_by_hand() -> None:
    assert model(
        [
            *(Change("a", 10, 1), Change("a", 20, 2), Change("a", 20, 3), Change("a", 5, 4)),
            *(Change("a", 30, None, gone=True), Change("a", 25, 5), Change("a", 40, 6)),
            *(Change("b", 1, None, gone=True), Change("b", 9, 1), Change("b", 8, None, gone=True)),
            Change("b", 7, 2),
        ]
    ) == [
        ("a", 1, 10, 20),
        ("a", 4, 20, 30),
        ("a", 5, 30, 40),
        ("a", 6, 40, None),
        ("b", 2, 7, None),
    ]


def moment(second: int | None) -> datetime | None:
    return None if second is None else START + timedelta(seconds=second)


def second(time: datetime | None) -> int | None:
    return None if time is None else round((time.astimezone(timezone.utc) - START).total_seconds())


def read(spark: SparkSession, path: Path | str, key: str = "id") -> Versions:
    """The table as the model has it; that what it says of currency is so."""
    found = spark.read.format("delta").load(str(path))
    rows = found.toArrow().to_pylist()
    assert all(row["_current"] == (row["_valid_to"] is None) for row in rows)
    return sorted(
        (
            (row[key], row["v"], second(row["_valid_from"]), second(row["_valid_to"]))
            for row in rows
        ),
        key=repr,
    )


@pytest.mark.parametrize(
    ("seed", "cuts", "few", "nulls", "key", "track"),
    slow_after(
        1,
        [
            (0, 1, True, True, "id", ["t"]),
            (1, 2, True, False, "a`b.c", []),
            (2, 2, False, True, "stored", []),
            (3, 2, False, True, "id", ["t"]),
            (4, 2, True, True, "id", ["t"]),
        ],
    ),
)
def test_versions_are_those_of_the_changelog_however_it_is_cut(
    delta_spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    cuts: int,
    few: bool,
    nulls: bool,
    key: str,
    track: list[str],
) -> None:
    """Times repeat and go back, deletes come twice and first; each commit is tried twice."""
    if not few:
        monkeypatch.setattr(delta_upsert, "ROWS_MAX", 0)
    rng = random.Random(seed)
    keys = [*"abcde", None if nulls else "f"]
    changes = [
        Change(rng.choice(keys), rng.randrange(12) + at // 6, at, rng.random() < 0.35)
        for at in range(90)
    ]
    own = cloned_session(delta_spark)
    delta_tables.tune(own)
    declared, tracks = f"{quoted(key)} string, v long, t long", bool(track)
    schema = StructType([*StructType.fromDDL(declared), *delta_history.VERSION_FIELDS])
    path = tmp_path / "table"
    table = delta_tables.sql_name(str(path))
    delta_tables.create(delta_spark.createDataFrame([], schema), table, {}, replace=False)

    def frame(first: int, last: int) -> DataFrame:
        rows = [
            (
                c.key,
                *((None, None) if c.gone else (c.value, tracked(c.value))),
                "delete" if c.gone else "upsert",
                moment(c.second),
                at,
            )
            for at, c in enumerate(changes[first:last], first)
        ]
        rng.shuffle(rows)
        return delta_spark.createDataFrame(
            rows, f"{declared}, _change string, _timestamp timestamp, _position long"
        )

    places = [0, *sorted(rng.sample(range(1, 90), cuts)), 90]
    for number, (first, last) in enumerate(pairwise(places)):
        for _ in range(2):
            with delta_tables.temporary_settings(
                own, delta_tables.commit_once_settings("query", number)
            ):
                delta_history.merge_versions(
                    own, frame(first, last), table, schema, [key], nulls=nulls, track=track
                )
        assert read(delta_spark, path, key) == model(changes[:last], tracks=tracks)
    # A commit for each, and the first.
    assert len(list(path.glob("_delta_log/*.json"))) == len(places)
    whole = delta_history.new_versions(frame(0, 90), schema, [key], track)
    whole.write.format("delta").save(str(tmp_path / "whole"))
    assert read(delta_spark, tmp_path / "whole", key) == model(changes, tracks=tracks)


class Place:
    """Files of a table, one for each micro-batch, a checkpoint and a target."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.target = directory / "target"
        self.changes: list[Change] = []
        self._files = 0

    def come(self, *changes: Change) -> None:
        self.changes += changes
        rows = [(c.key, c.value, moment(c.second), c.gone) for c in changes]
        columns = "id string, v long, at timestamp, gone boolean"
        file = add_file(self.directory / "in", rows, columns)
        os.utime(file, (1_700_000_000 + self._files,) * 2)
        self._files += 1

    def table(self) -> dt.Table:
        reader = self.spark.readStream.option("maxFilesPerTrigger", 1)
        files = reader.schema("id string, v long, at timestamp, gone boolean")
        return dt.Table.from_changelog(
            files.parquet(str(self.directory / "in")),
            key="id",
            timestamp="at",
            deleted="gone",
            name="t",
        )

    def run(self, checkpoint: str = "checkpoint", of: Any = None, **options: Any) -> None:
        (of or self.table()).write_stream(
            dt.to_delta(self.target, history=True, **options),
            checkpoint=str(self.directory / checkpoint),
            trigger={"availableNow": True},
            buckets=2,
        ).awaitTermination()

    def stored(self) -> Versions:
        return read(self.spark, self.target)


@pytest.fixture
def place(delta_spark: SparkSession, tmp_path: Path) -> Place:
    made = Place(delta_spark, tmp_path)
    made.come(Change("a", 1, 1), Change("b", 2, 2), Change("a", 3, 3), Change("a", 3, 4))
    made.come(Change("b", 4, None, gone=True), Change("a", 2, 5), Change("c", 5, 6))
    made.come(Change("b", 3, 7), Change("c", 6, None, gone=True), Change("c", 9, 8))
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("existing", "step"),
    slow_after(
        1,
        [
            ("fail", "merge_versions"),
            ("fail", "create"),
            ("fail", "set_property"),
            ("replace", "create"),
        ],
    ),
)
def test_a_query_that_is_killed_after_any_commit_has_the_versions_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, existing: str, step: str
) -> None:
    """The current ones are the table, too."""
    if existing == "replace":
        place.spark.range(3).write.format("delta").save(str(place.target))
    owner: Any = delta_history if step == "merge_versions" else delta_tables
    original = getattr(owner, step)
    calls = []

    def dies(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        calls.append(step)
        if len(calls) in (1, 3):
            raise RuntimeError("killed")

    monkeypatch.setattr(owner, step, dies)
    deaths = 0
    while True:
        with suppress(RuntimeError, StreamingQueryException):
            place.run(existing=existing)
            break
        deaths += 1
        assert deaths == len(calls) // 2 + 1, calls
    assert deaths
    expected = model(place.changes)
    assert place.stored() == expected
    assert len({row[0] for row in expected}) == 3
    place.table().write_stream(
        dt.to_delta(place.directory / "plain"),
        checkpoint=str(place.directory / "plain checkpoint"),
        trigger={"availableNow": True},
        buckets=2,
    ).awaitTermination()
    plain = place.spark.read.format("delta").load(str(place.directory / "plain"))
    current = [row[:2] for row in expected if row[3] is None]
    assert sorted(tuple(row) for row in plain.select("id", "v").collect()) == current


@pytest.mark.slow
def test_what_to_delta_takes_holds_for_versions(place: Place) -> None:
    place.run(partition_by="_current", compact_every=2)
    details = place.spark.sql(f"DESCRIBE DETAIL delta.`{place.target}`").first()
    assert details is not None
    assert details["partitionColumns"] == ["_current"]
    assert details["properties"][tables.RETENTION_PROPERTY] == "interval 3600 seconds"
    done = place.spark.sql(f"DESCRIBE HISTORY delta.`{place.target}`").collect()
    assert [row["operation"] for row in done][::-1] == [
        *("CREATE TABLE AS SELECT", "SET TBLPROPERTIES", "WRITE", "WRITE", "OPTIMIZE", "WRITE")
    ]
    expected = place.stored()
    assert expected == model(place.changes)
    # Another query refuses the table, or goes on with its rows.
    with pytest.raises(dt.errors.TargetError, match="has rows that this query has not written"):
        place.run("another")
    shutil.rmtree(place.directory / "in")
    shutil.rmtree(place.directory / "another", ignore_errors=True)
    place.come(Change("a", 50, 9))
    more = place.table().with_columns(w=F.lit("x"))
    with pytest.raises(dt.errors.TargetError, match="w is missing"):
        place.run("another", more, existing="adopt")
    place.run("another", more, existing="adopt", evolve=True)
    assert place.stored() == model(place.changes)
    rows = place.spark.read.format("delta").load(str(place.target))
    assert [row["id"] for row in rows.where("w = 'x'").collect()] == ["a"]
    place.run("third", existing="replace")
    assert place.stored() == [("a", 9, 50, None)]


@pytest.mark.slow
def test_versions_of_groups(place: Place) -> None:
    """A group that is there at no time between two changes has no version."""
    counted = place.table().group_by("v").agg(n=dt.count())
    counted.write_stream(
        dt.to_delta(place.target, history=True),
        checkpoint=str(place.directory / "checkpoint"),
        trigger={"availableNow": True},
        buckets=2,
    ).awaitTermination()
    rows = place.spark.read.format("delta").load(str(place.target))
    assert rows.columns == ["v", "n", *COLUMNS[2:]]
    assert sorted(
        (row["v"], row["n"], second(row["_valid_from"]), second(row["_valid_to"]))
        for row in rows.collect()
    ) == sorted(
        [
            (1, 1, 1, 3),
            (2, 1, 2, 4),
            (5, 1, 2, None),
            (6, 1, 5, 6),
            (7, 1, 3, None),
            (8, 1, 9, None),
        ]
    )


def test_what_has_no_versions_is_refused(place: Place) -> None:
    stream = place.table().to_stream()
    with pytest.raises(dt.errors.PlanError, match="history=True is for tables"):
        place.run(of=stream)
    named = place.table().rename({"v": "_Valid_To"})
    with pytest.raises(dt.errors.PlanError, match="'_Valid_To' has a name that history=True gives"):
        place.run(of=named)
    for track, message in (
        ("id", "track= names an unknown column 'id'"),
        (["v", "v"], "column 'v' occurs twice"),
        ("w", "track= names 'w', which is of type map"),
    ):
        with_map = place.table().with_columns(w=F.create_map("v", "v"))
        with pytest.raises(dt.errors.PlanError, match=message):
            place.run(of=with_map, track=track)
    assert not place.target.exists()
    place.spark.range(3).write.format("delta").save(str(place.target))
    with pytest.raises(dt.errors.TargetError, match="_valid_from is missing"):
        place.run(existing="adopt")


@pytest.mark.slow
def test_a_table_of_rows_is_no_table_of_versions(place: Place) -> None:
    sink = dt.to_delta(place.target)
    place.table().write_stream(
        sink, checkpoint=str(place.directory / "checkpoint"), trigger={"availableNow": True}
    ).awaitTermination()
    with pytest.raises(dt.errors.TargetError, match="_timestamp is not among the query's"):
        place.run("another", existing="adopt")
    assert isinstance(sink, delta.DeltaSink)
