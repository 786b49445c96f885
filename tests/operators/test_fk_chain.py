"""Joins by foreign key within larger topologies: every commit is a consistent snapshot.

The law: after every micro-batch, the changes so far make the table that the static join gives of
all input so far (``fk_topologies``); however the input is cut, whatever was restarted in between,
in one bucket or several. Where a stream joins such a table, each of its records sees the table as
of its own place in the input.

``DOVETAIL_CASES`` says how many runs to draw; ``DOVETAIL_SEED`` draws others.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.parameters import slow_after
from bench.runners import write_file
from fk_topologies import (
    CASES,
    INPUTS,
    NUMBER,
    STREAMS,
    TEXT,
    Record,
    Rows,
    Tables,
    bank,
    chain,
    drawn,
    keep,
    named,
    put,
    total,
)

import dovetail as dt
from dovetail import testing
from dovetail.physical.fragment import Emit

RUNS = range(-(-int(os.environ.get("DOVETAIL_CASES", "200")) // 50))
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))


def made(name: str) -> Any:
    """A table or stream that a driver feeds."""
    input_ = INPUTS[name]
    make: Any = testing.stream if name in STREAMS else testing.table
    return make(name, key=input_.key, schema=input_.schema)


class Run:
    """A topology in the driver, fed with random records beside plain dictionaries.

    The number of the run says into how many buckets, and whether changes are net.
    """

    def __init__(
        self, topology: Callable[[Tables], Any], name: str, number: int, *, net: bool = True
    ) -> None:
        self.random = random.Random(f"{SEED} {name} {number}")
        self.inputs = {name: made(name) for name in INPUTS}
        self.topology = topology(self.inputs)
        self.emit: Emit = "batch" if net and number % 4 > 1 else "change"
        buckets = (1, 3)[number % 2]
        self.driver = testing.Driver(self.topology, emit=self.emit, buckets=buckets)
        used = {source.name for source in self.driver._sources}
        self.used = [name for name in INPUTS if name in used]
        self.rows: dict[str, Rows] = {name: {} for name in INPUTS}

    def batch(self) -> tuple[list[Record], list[testing.Change]]:
        """One micro-batch of a few records, after a restart or not."""
        if self.random.random() < 0.3:
            snapshot = self.driver.snapshot()
            self.driver = testing.Driver.restore(self.topology, snapshot, emit=self.emit)
        records = [drawn(self.random, self.used) for _ in range(self.random.randint(1, 12))]
        with self.driver.batch() as changes:
            for table, row, time, deleted in records:
                self.driver.pipe(self.inputs[table], row, timestamp=time, deleted=deleted)
        return records, changes


# Tables.


@pytest.mark.parametrize("number", slow_after(1, RUNS))
@pytest.mark.parametrize("name", [*CASES, "bank"])
def test_every_commit_is_the_join_of_all_input_so_far(name: str, number: int) -> None:
    """And in the bank no money comes or goes."""
    case = (CASES | {"bank": bank(cities=True)})[name]
    run = Run(case.topology, name, number)
    result: Rows = {}
    for _ in range(12):
        records, changes = run.batch()
        for record in records:
            keep(run.rows, record)
        for change in changes:
            put(result, tuple(change.key.values()), change.values)
        assert result == case.static(run.rows)
        assert name != "bank" or total(result) == 0
        if run.emit == "batch":
            keys = [tuple(change.key.values()) for change in changes]
            assert len(keys) == len(set(keys))


def test_a_row_moves_through_a_chain_at_once() -> None:
    """A plane changes its maker and two flights' rows follow, in one commit, under its time."""
    inputs = {name: made(name) for name in INPUTS}
    driver = testing.Driver(chain("inner", "inner").topology(inputs))
    makers = [{"name": "m1", "country": "US"}, {"name": "m2", "country": "FR"}]
    driver.pipe(inputs["makers"], makers, timestamp=1)
    driver.pipe(inputs["planes"], {"tail": "p1", "maker": "m1"}, timestamp=2)
    flights = [{"id": 1, "plane": "p1"}, {"id": 2, "plane": "p1"}]
    driver.pipe(inputs["flights"], flights, timestamp=3)
    changes = driver.pipe(inputs["planes"], {"tail": "p1", "maker": "m2"}, timestamp=4)
    assert [(c.key["id"], c.values and c.values["country"], c.timestamp_us) for c in changes] == [
        (1, "FR", 4),
        (2, "FR", 4),
    ]


# Streams.


def found(key: Any, row: Mapping[str, Any]) -> Any:
    """A result, nulls left out."""
    return key, tuple(sorted((c, v) for c, v in row.items() if v is not None))


def emitted(changes: Iterable[testing.Change]) -> Counter[Any]:
    return Counter(found(change.key["flight"], change.values or {}) for change in changes)


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("how", ["left", "right", "outer"])
def test_a_right_row_with_a_null_in_its_key_is_a_result_by_itself(how: str, buckets: int) -> None:
    """The right side is an outer join, so each of its rows without a partner has such a key."""
    left = testing.table("left", key="id", schema={"id": TEXT, "f": TEXT})
    right = testing.table("right", key="k", schema={"k": TEXT, "v": TEXT})
    pairs = left.join(right, on="f", how="outer", select=["v"])
    named = testing.table("named", key="n", schema={"n": TEXT, "id": TEXT, "k": TEXT})
    joined = named.join(pairs, on={"id": "id", "k": "right_k"}, how=how, select={"v": "right.v"})
    driver, rows = testing.Driver(joined, buckets=buckets), dict[Any, Any]()
    feed: list[tuple[Any, dict[str, str | None], bool]] = [
        (left, {"id": "1", "f": "x"}, False),
        (right, {"k": "y", "v": "lone"}, False),
        (named, {"n": "half", "id": "1", "k": None}, False),
        (named, {"n": "whole", "id": "1", "k": "x"}, False),
        (right, {"k": "x", "v": "met"}, False),
        (right, {"k": "z", "v": "gone"}, False),
        (right, {"k": "z"}, True),
        (left, {"id": "1"}, True),
        (named, {"n": "whole"}, True),
    ]
    for time, (table, row, deleted) in enumerate(feed):
        for change in driver.pipe(table, row, timestamp=time, deleted=deleted):
            rows.pop(tuple(change.key.values()), None)
            if change.values is not None:
                rows[tuple(change.key.values())] = change.values["v"]
    lone = {(None, None, "y"): "lone", (None, None, "x"): "met"}
    half = {("half", None, None): None}
    expected = {"left": {("half",): None}, "right": lone, "outer": lone | half}
    assert rows == expected[how]


@pytest.mark.parametrize("number", slow_after(2, RUNS))
def test_a_stream_sees_the_join_as_of_its_record(number: int) -> None:
    """Also of the records of its own micro-batch, those before it."""
    case = chain("left", "left")
    run = Run(
        lambda t: t["clicks"].join(case.topology(t), on="flight", how="left"),
        "stream",
        number,
        net=False,
    )
    for _ in range(12):
        expected = Counter[Any]()
        records, changes = run.batch()
        for record in records:
            if record.table == "clicks":
                key, click = record.row.values()
                match = case.static(run.rows).get((key,), {})
                expected[found(key, {"click": click} | match)] += 1
            else:
                keep(run.rows, record)
        assert emitted(changes) == expected


@pytest.mark.parametrize("number", slow_after(2, RUNS))
def test_pairs_of_streams_see_the_join_as_of_the_second(number: int) -> None:
    """Clicks and bookings of a flight that are near each other, with the plane and its maker."""
    span = timedelta(microseconds=10)
    near = dt.within(before=span, after=span, grace="1 hour")

    def topology(t: Tables) -> Any:
        planes = t["planes"].join(t["makers"], on="maker", how="left")
        return t["clicks"].join(t["bookings"], within=near).join(planes, how="left", on="tail")

    run = Run(topology, "pairs", number, net=False)
    seen: list[Record] = []
    for _ in range(12):
        expected = Counter[Any]()
        records, changes = run.batch()
        for record in records:
            if record.table not in STREAMS:
                keep(run.rows, record)
                continue
            planes = named(run.rows["planes"], "maker", run.rows["makers"], "left")
            for other in seen:
                if other.table != record.table and abs(other.time - record.time) <= 10:
                    row = other.row | record.row
                    if other.row["flight"] == row.pop("flight"):
                        match = planes.get((row["tail"],), {})
                        expected[found(other.row["flight"], row | match)] += 1
            seen.append(record)
        assert emitted(changes) == expected


# Streaming queries.


def read(spark: Any, folder: Path) -> dict[str, Any]:
    """Tables over files, a file per table and micro-batch; their rows have no common order."""
    tables = {}
    for name, input_ in INPUTS.items():
        (folder / name).mkdir()
        types = {NUMBER: "long", TEXT: "string"}
        columns = [f"{column} {types[type_]}" for column, type_ in input_.schema.items()]
        reader = spark.readStream.schema(", ".join([*columns, "t timestamp", "d boolean"]))
        frame = reader.option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        tables[name] = dt.Table.from_changelog(
            frame, key=input_.key, timestamp="t", deleted="d", name=name
        )
    return tables


def write(folder: Path, records: Iterable[Record], tables: Iterable[str], number: int) -> None:
    for name in tables:
        rows = [r.row | {"t": r.time, "d": r.deleted} for r in records if r.table == name]
        columns = {"t": pa.timestamp("us", "UTC"), "d": pa.bool_()}
        write_file(folder / name, rows, INPUTS[name].schema | columns, number)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "emit", "tables", "stops"),
    slow_after(
        1,
        [
            ("bank", "change", ["accounts", "transfers"], [2]),
            ("chain-outer", "batch", ["flights", "planes", "makers"], [1, 2]),
        ],
    ),
)
def test_every_batch_of_a_query_is_a_snapshot(
    name: str, emit: Emit, tables: list[str], stops: list[int], spark: Any, tmp_path: Path
) -> None:
    """In several buckets, a query for the batches up to each stop; the bank's total is zero each
    time.
    """
    case = (CASES | {"bank": bank(cities=False)})[name]
    random_ = random.Random(f"{SEED} {name}")
    batches = [[drawn(random_, tables) for _ in range(30)] for _ in range(3)]
    topology = case.topology(read(spark, tmp_path))
    result: Rows = {}
    snapshots: dict[int, Rows] = {}

    def collect(changes: Any, number: int) -> None:
        rows = [row.asDict() for row in changes.collect()]
        for row in sorted(rows, key=lambda row: row["_position"]):
            key = tuple(row.pop(column) for column in topology.plan.key.names)
            deleted = row["_change"] == "delete"
            values = {c: v for c, v in row.items() if not c.startswith("_")}
            put(result, key, None if deleted else values)
        snapshots[number] = dict(result)

    for number, batch in enumerate(batches):
        write(tmp_path, batch, tables, number)
        if number in stops:
            query = topology.write_stream(
                dt.to_foreach_batch(collect),
                checkpoint=str(tmp_path / "checkpoint"),
                trigger={"availableNow": True},
                emit=emit,
                buckets=3,
            )
            query.awaitTermination()
    rows: dict[str, Rows] = {table: {} for table in INPUTS}
    for number, batch in enumerate(batches):
        for record in batch:
            keep(rows, record)
        assert snapshots[number] == case.static(rows), number
        assert name != "bank" or total(snapshots[number]) == 0
    assert len(snapshots) == len(batches)
