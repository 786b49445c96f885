"""A program that puts a new query in the place of a running one is killed, and started again. Its
sinks have each change once: those of an unbroken old query, then those of an unbroken new one.

``DOVETAIL_KILLS=20 ./dev test -m slow tests/spark/migration/test_takeover_kills.py`` is a
campaign. Run as a script, this module is the program.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import drivers
import pyarrow as pa
import pytest
import small_session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from timed_files import timed_file

import dovetail as dt
from dovetail import testing
from dovetail.errors import TakenOverError
from dovetail.spark.checkpoints.checkpoint import FOLLOWS, SUCCESSOR
from dovetail.spark.query import takeover
from dovetail.spark.query.topology_query import TopologyQuery

KILLS = int(os.environ.get("DOVETAIL_KILLS", "6"))
START = datetime(2024, 1, 1, tzinfo=timezone.utc)
COLUMNS = {
    "id": (pa.int64(), "long"),
    "customer": (pa.string(), "string"),
    "amount": (pa.int64(), "long"),
    "city": (pa.string(), "string"),
}
ORDERS, CUSTOMERS = ("id", "customer", "amount"), ("customer", "city")
NAMES = "abcde"
EACH = 3
"""The number of orders in a file."""
AHEAD, MORE = 2, 2
"""The numbers of files that wait for the query while the program runs, and that come in the end."""
MOMENTS: dict[str, tuple[Any, str, bool, float]] = {
    "builds": (takeover, "store_running_state", False, 6.0),
    "follows": (takeover, "_follow_once", False, 3.0),
    "stops the other": (TopologyQuery, "stop_after_batch", False, 3.0),
    "takes over": (takeover, "take_over", False, 0.1),
    "has taken over": (takeover, "take_over", True, 3.0),
}
"""The function at whose call, or behind which, a span of time begins, and its length in seconds. A
kill comes at any moment of it.
"""
Changes = list[str]
Kill = tuple[str, float]
"""A moment, and the seconds after it."""


class Log:
    """The files of the query's only source, which has orders and their customers."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder, self._draw = folder / "log", draw
        self.folder.mkdir()
        self.files: list[list[dict[str, Any]]] = []

    def add(self) -> None:
        """Write one more file, of a customer and some orders."""
        number = len(self.files)
        draw = self._draw
        rows: list[dict[str, Any]] = [
            {"customer": draw.choice(NAMES), "city": f"c{draw.randrange(3)}"},
            *(
                {"id": order, "customer": draw.choice(NAMES), "amount": number}
                for order in draw.sample(range(12), EACH)
            ),
        ]
        self.files.append(rows)
        at = (START + timedelta(seconds=number)).isoformat()
        places = (json.dumps({"at": at, "seq": number * 10 + n} | r) for n, r in enumerate(rows))
        with timed_file(self.folder / f"{number}.json", 1_700_000_000 + number) as path:
            path.write_text("\n".join(places))

    def expected(self, version: str) -> list[Changes]:
        """The changes of an unbroken query by each file."""
        schemas = [{name: COLUMNS[name][0] for name in names} for names in (ORDERS, CUSTOMERS)]
        orders = testing.table("orders", key="id", schema=schemas[0])
        customers = testing.table("customers", key="customer", schema=schemas[1])
        sold = testing.stream("sold", key="id", schema=schemas[0])
        named = results(orders, customers, sold, version)
        driver = testing.Driver(*named.values())
        changes: list[Changes] = []
        for number, rows in enumerate(self.files):
            of_orders = [row for row in rows if "id" in row]
            with driver.batch():
                pipe = partial(driver.pipe, timestamp=START + timedelta(seconds=number))
                pipe(customers, [row for row in rows if "id" not in row])
                pipe(orders, of_orders)
                pipe(sold, of_orders)
            changes.append(
                sorted(
                    described(name, change.change, change.key | (change.values or {}))
                    for name, result in named.items()
                    for change in driver.read(result)
                )
            )
        return changes


def described(result: str, change: str, columns: Mapping[str, Any]) -> str:
    """A change in words; columns of a tombstone that are null are left out, and so are all."""
    filled = {name: value for name, value in sorted(columns.items()) if value is not None}
    return json.dumps([result, change, filled])


def results(orders: Any, customers: Any, sold: Any, version: str) -> dict[str, Any]:
    """A join of tables, which differs from version to version, and sums of a stream."""
    how: Any = {"old": "left", "new": "outer"}[version]
    joined = orders.join(customers, on="customer", how=how, select=["amount", "city"])
    summed = sold.group_by("customer").agg(orders=dt.count(), total=dt.sum("amount"))
    return {"joined": joined, "summed": summed}


def start(spark: SparkSession, folder: Path, version: str, **options: Any) -> StreamingQuery:
    """The query of a version. It reads one file in each micro-batch; after a kill, two if Spark has
    noted one that it has not yet planned.
    """
    schema = ", ".join(f"{name} {type_}" for name, (_, type_) in COLUMNS.items())
    reader = spark.readStream.schema(f"{schema}, at timestamp, seq long")
    log = reader.option("maxFilesPerTrigger", 1).json(str(folder / "log"))

    def read(kind: Any, name: str, condition: str, columns: Iterable[str], key: str) -> Any:
        frame = log.where(condition).select(*columns, "at", "seq")
        return kind.from_changelog(
            frame, key=key, timestamp="at", sequence="seq", shared_log=True, name=name
        )

    named = results(
        read(dt.Table, "orders", "id IS NOT NULL", ORDERS, "id"),
        read(dt.Table, "customers", "id IS NULL", CUSTOMERS, "customer"),
        read(dt.Stream, "sold", "id IS NOT NULL", ORDERS, "id"),
        version,
    )
    sinks = {
        result: dt.to_foreach_batch(partial(keep, folder / "emitted" / version, name))
        for name, result in named.items()
    }
    return dt.run(sinks, checkpoint=folder / version, **options)


def keep(folder: Path, result: str, changes: DataFrame, number: int) -> None:
    """Write the changes of a micro-batch as a file, in place of one that is there."""
    rows = [row.asDict() for row in changes.collect()]
    lines = [
        described(result, row["_change"], {n: v for n, v in row.items() if n[0] != "_"})
        for row in rows
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:05}.{result}"
    hidden = folder / f".{path.name}"
    hidden.write_text("".join(f"{line}\n" for line in lines))
    hidden.rename(path)


def emitted(folder: Path, version: str) -> list[Changes]:
    """The changes of each micro-batch of a version that has any."""
    by_batch: dict[str, Changes] = {}
    for path in sorted((folder / "emitted" / version).glob("[0-9]*")):
        by_batch.setdefault(path.stem, []).extend(path.read_text().splitlines())
    return [sorted(lines) for lines in by_batch.values() if lines]


def assert_in_order(batches: list[Changes], files: list[Changes]) -> int:
    """Compare micro-batches with the changes of files, of each of which they have some in order.
    Return how many these are.
    """
    done = 0
    for changes in batches:
        count, rest = divmod(sum(line.startswith('["summed"') for line in changes), EACH)
        assert rest == 0
        assert changes == sorted(chain(*files[done : done + count]))
        done += count
    return done


def program(spark: SparkSession, folder: Path) -> StreamingQuery:
    """Start the old query, unless another one has taken over from it, and the new one."""
    options = {}
    with suppress(TakenOverError):
        options["initial"] = start(spark, folder, "old", buckets=1, partitions=1)
    while not [*(folder / "old/commits").glob("[0-9]*")]:
        time.sleep(0.01)
    return start(spark, folder, "new", partitions=1, **options)


def killed(folder: Path, log: Log, moment: str, wait_s: float) -> None:
    """Run the program until it is killed, and write files meanwhile."""
    mark = folder / moment
    mark.unlink(missing_ok=True)
    ends = time.monotonic() + 300
    with drivers.running(__file__, str(folder), folder=folder) as running:
        while time.monotonic() < ends:
            if mark.exists():
                ends = min(ends, mark.stat().st_mtime + wait_s - time.time() + time.monotonic())
            done = len([*(folder / "emitted").glob("*/[0-9]*.summed")])
            if len(log.files) < done + AHEAD:
                log.add()
            running.refuse_ended()
            time.sleep(0.005)
        assert mark.exists(), f"not in time: {moment}"
    assert running.returncode == -signal.SIGKILL


def binding(folder: Path, version: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((folder / version / "dovetail.json").read_text())
    return made


def assert_exact(spark: SparkSession, folder: Path, draw: random.Random, kills: list[Kill]) -> None:
    """Kill the program at each of these moments that comes, let it end, and compare."""
    log = Log(folder, draw)
    for moment, wait_s in kills:
        taken_over = SUCCESSOR in (folder / "old/dovetail.json").read_text() if log.files else False
        if taken_over and FOLLOWS not in binding(folder, "new"):
            break
        killed(folder, log, moment, wait_s)
        print(f"killed {wait_s:.2f} s after: {moment}")
    query = program(spark, folder)
    for _ in range(MORE):
        log.add()
    query.processAllAvailable()
    query.stop()
    border = assert_in_order(emitted(folder, "old"), log.expected("old"))
    after = assert_in_order(emitted(folder, "new"), log.expected("new")[border:])
    assert border + after == len(log.files)
    assert after >= MORE
    assert SUCCESSOR in binding(folder, "old")
    assert not {FOLLOWS, SUCCESSOR} & binding(folder, "new").keys()
    assert not (folder / "new/initial").exists()


@pytest.mark.slow
def test_a_killed_program_takes_over_when_it_is_started_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    draw = random.Random()
    assert_exact(
        spark, tmp_path, draw, [(moment, draw.uniform(0, MOMENTS[moment][3])) for moment in MOMENTS]
    )


@pytest.mark.slow
def test_random_kills(spark: SparkSession, tmp_path: Path) -> None:
    """Some takeovers after one another, each of whose kills come later and later."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for takeover_index in range(-(-KILLS // 3)):
        moments = sorted(draw.choices([*MOMENTS], k=3), key=[*MOMENTS].index)
        kills = [(moment, draw.uniform(0, MOMENTS[moment][3])) for moment in moments]
        folder = tmp_path / str(takeover_index)
        folder.mkdir()
        assert_exact(spark, folder, draw, kills)


def main(folder: Path) -> None:
    def marking(called: Callable[..., Any], mark: Path, *, behind: bool) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if not behind:
                mark.touch()
            returned = called(*arguments, **options)
            if behind:
                mark.touch()
            return returned

        return call

    for moment, (owner, name, behind, _) in MOMENTS.items():
        setattr(owner, name, marking(getattr(owner, name), folder / moment, behind=behind))
    spark = small_session.builder().config("spark.sql.shuffle.partitions", "1").getOrCreate()
    program(spark, folder).awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
