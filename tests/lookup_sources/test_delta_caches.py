"""No entry of a cache outlives a micro-batch that its keeper did not see, wherever a delta join
stands: the stores change in step with their changelogs, tasks go from machine to machine, workers
are killed in and between micro-batches, and each micro-batch leaves the join of the tables as they
are.

Run as a script, this module is the driver process of the queries.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import pyarrow as pa
import pytest
import small_session
from delta_model import Results, Row, TableOf, World, shown
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt
from dovetail.lookup_sources.source import Found, LookupSource, Reader
from dovetail.operators.joins import lookup_cache
from dovetail.spark import task
from dovetail.state import local_files

FORCED = dt.delta_join(strategy="force")

ROUNDS = 6
KEYS = range(30)
MOMENTS = ("asked", "writing", "written", "idle")
"""When a worker is killed: as it asks a store, half through a file, after it, between batches."""


@dataclass(frozen=True)
class Mortal:
    """A lookup source whose workers are killed, once for each file ``<moment>-<number>`` in
    ``orders``, and whose tasks run on one of two machines.
    """

    inner: LookupSource
    orders: Path

    title = property(lambda self: self.inner.title)
    key = property(lambda self: self.inner.key)
    indexes = property(lambda self: self.inner.indexes)
    filters = property(lambda self: self.inner.filters)

    def open(self, schema: pa.Schema) -> MortalReader:
        return MortalReader(self.inner.open(schema), self.orders)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The source has come to a worker."""
        vars(self).update(state)
        if lookup_cache.local_files is local_files:
            lookup_cache.local_files = MortalFiles(self.orders)  # type: ignore[assignment]
            directory = task.temporary_directory
            task.temporary_directory = lambda name: directory(name) / machine()


@dataclass(frozen=True)
class MortalReader:
    inner: Reader
    orders: Path

    def rows(self, by: Sequence[str], keys: pa.Table) -> Found:
        die(self.orders, "asked")
        return self.inner.rows(by, keys)

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class MortalFiles:
    """``local_files`` for caches."""

    orders: Path

    def write(self, path: Path, fill: Callable[[IO[bytes]], None]) -> bool:
        def fill_half(file: IO[bytes]) -> None:
            fill(file)
            file.flush()
            die(self.orders, "writing")

        done = local_files.write_file(path, fill_half)
        die(self.orders, "written")
        return done

    def remove(self, path: Path) -> None:
        local_files.remove_file(path)


def die(orders: Path, moment: str) -> None:
    """Obey an order to be killed now, if there is one."""
    for order in sorted(orders.glob(f"{moment}-*")):
        with suppress(FileNotFoundError):
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def machine() -> str:
    """Where a task runs: some micro-batches here, some there, the last one here again."""
    return "aaabba"[task.micro_batch() % ROUNDS]


def tables() -> list[TableOf]:
    """``p`` has no store; by turns it is read in one partition and in two."""
    return [
        TableOf("l", {"k": "long", "i": "long", "a": "long"}, ["k", "i"], [["k"]]),
        TableOf("r", {"k": "long", "b": "long"}, ["k"]),
        TableOf("q", {"k": "long", "c": "long"}, ["k"]),
        TableOf("f", {"id": "long", "boss": "long", "d": "long"}, ["id"], [["boss"]]),
        TableOf("p", {"k": "long", "t": "string"}, ["k"]),
    ]


PLACES: dict[str, Callable[[Mapping[str, dt.Table]], dt.Table]] = {
    "left and right of joins, two in a query": lambda t: (
        t["r"]
        .join(t["q"], how="outer", delta_join=FORCED)
        .join(t["p"], how="left")
        .join(
            t["q"].join(t["r"], select={"x": "c"}, delta_join=FORCED),
            how="left",
            delta_join=dt.delta_join(strategy="none"),
        )
    ),
    "under an aggregate, over another": lambda t: (
        t["l"]
        .join(t["r"], on="k", delta_join=FORCED)
        .join(t["q"], on={"k": "k"}, delta_join=FORCED)
        .group_by("b")
        .agg(n=dt.count(), s=dt.sum("c"))
    ),
    "with itself": lambda t: t["f"].join(
        t["f"],
        on={"boss": "id"},
        how="left",
        select={"d": "left.d", "e": "right.d"},
        delta_join=FORCED,
    ),
}


def expected(place: str, world: World) -> list[Row]:
    """What a place has when everything has been read."""
    rows = {name: list(table.rows.values()) for name, table in world.tables.items()}
    b, c, t = (
        {row["k"]: row[column] for row in rows[name]}
        for name, column in (("r", "b"), ("q", "c"), ("p", "t"))
    )
    full = {k: {"b": b.get(k), "c": c.get(k)} for k in {*b, *c}}
    found: list[Row]
    if place.startswith("left"):
        found = [
            {"k": k} | row | {"t": t.get(k), "x": c[k] if k in b and k in c else None}
            for k, row in full.items()
        ]
    elif place.startswith("under"):
        groups: dict[Any, list[int]] = {}
        for row in rows["l"]:
            if row["k"] in b and row["k"] in c:
                groups.setdefault(b[row["k"]], []).append(c[row["k"]])
        found = [{"b": key, "n": len(own), "s": sum(own)} for key, own in groups.items()]
    else:
        d = {row["id"]: row["d"] for row in rows["f"]}
        found = [{"id": row["id"], "d": row["d"], "e": d.get(row["boss"])} for row in rows["f"]]
    return sorted(found, key=shown)


@pytest.mark.slow
def test_no_cache_entry_outlives_a_micro_batch_that_its_keeper_did_not_see(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    report = json.loads((tmp_path / "report").read_text())
    assert list(report["hits"]) == list(PLACES)
    assert all(hits > 10 for hits in report["hits"].values()), report
    assert report["kills"] > 3 * report["idle"] > 3, report
    assert set(report["modes"]) == {"0o700", "0o600"}


class Kills:
    """Orders that workers be killed, and those that were."""

    def __init__(self, folder: Path, jvm: int) -> None:
        self.folder, self.jvm = folder, jvm
        self.given = self.idle = 0
        folder.mkdir()

    @property
    def done(self) -> int:
        return self.given - len(list(self.folder.iterdir()))

    def order(self) -> None:
        """Between two micro-batches: kill what is idle, or have the next one's workers killed."""
        moment = MOMENTS[self.given % len(MOMENTS)]
        self.given += 1
        if moment != "idle":
            (self.folder / f"{moment}-{self.given}").touch()
            return
        self.idle += 1
        for daemon in psutil.Process(self.jvm).children():
            for worker in daemon.children():
                with suppress(psutil.NoSuchProcess):
                    worker.kill()


def play(
    spark: SparkSession, folder: Path, place: str, kills: Kills, rng: random.Random
) -> tuple[int, set[str]]:
    """A query of some rounds of changes; how many join keys its caches had, and the modes of their
    files.
    """
    folder.mkdir()
    world = World(folder, *tables())
    made = {}
    for name, table in world.tables.items():
        source = dt.Table.from_changelog(
            world.frame(spark, name).drop("n_"),
            key=table.key,
            timestamp="at",
            deleted="gone",
            name=name,
        )
        lookup = None if name == "p" else Mortal(world.lookup(name, retries=0), kills.folder)
        made[name] = source if lookup is None else source.with_lookup(lookup)
    joined = PLACES[place](made)
    caches = Path(SparkFiles.getRootDirectory()) / "dovetail-lookups"
    rounds, modes = 0, set()

    class Sink(Results):
        def writer(self, changes: DataFrame, node: Any, checkpoint: str) -> Any:
            def take(batch: DataFrame, _: int) -> None:
                nonlocal rounds
                for row in sorted(batch.collect(), key=lambda row: row["_position"]):
                    key = tuple(row[name] for name in node.key.names)
                    if row["_change"] == "delete":
                        self.rows.pop(key, None)
                    else:
                        self.rows[key] = {n: v for n, v in row.asDict().items() if n[0] != "_"}
                assert self.table == expected(place, world), (place, rounds)
                for path in caches.rglob("*"):
                    with suppress(FileNotFoundError):
                        modes.add(oct(path.stat().st_mode & 0o777))
                rounds += 1
                if rounds < ROUNDS:
                    change(world, rng, rounds)
                    kills.order()

            return changes.writeStream.foreachBatch(take)

    change(world, rng, 0)
    sink = Sink()
    query = joined.write_stream(sink, checkpoint=str(folder / "checkpoint"), buckets=3)
    try:
        while rounds < ROUNDS:
            before = rounds
            query.processAllAvailable()
            if rounds == before:  # nothing that the query reads has changed
                change(world, rng, rounds)
    finally:
        query.stop()
    metrics = [m for p in query.recentProgress for m in p.observedMetrics.items()]
    counts = [count for name, count in metrics if ".lookups" in name]
    return sum(count.left_hits + count.right_hits for count in counts), modes


def change(world: World, rng: random.Random, number: int) -> None:
    """Change some rows of some tables."""
    text = f"{number}" * (900 if number % 2 else 1)
    world.put("p", *({"k": k, "t": text} for k in KEYS))
    for name in ("lrqf", "lrqf", "lrqf", "rf", "lf", "lqf")[number]:
        table = world.tables[name]
        rows = []
        for key in rng.sample(KEYS, 15):
            row = dict.fromkeys(table.columns, number) | {table.key[0]: key}
            rows.append(row | {"i": rng.randrange(2)} if name == "l" else row)
            if name == "f":
                rows[-1]["boss"] = rng.choice(KEYS)
        world.write(name, *rows[:3], deleted=True)
        world.write(name, *rows[3:])
        world.publish(name)


def main(folder: Path) -> None:
    os.umask(0)
    spark = (
        small_session.builder()
        .master("local[2, 20]")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.files.maxPartitionBytes", "16k")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    rng = random.Random(5)
    jvm: Any = spark.sparkContext._jvm
    kills = Kills(folder / "kills", jvm.java.lang.ProcessHandle.current().pid())
    hits, modes = {}, set()
    for number, place in enumerate(PLACES):
        started = time.monotonic()
        hits[place], seen = play(spark, folder / str(number), place, kills, rng)
        modes |= seen
        print(place, round(time.monotonic() - started, 1), "s", flush=True)
    report = {"hits": hits, "modes": sorted(modes), "kills": kills.done, "idle": kills.idle}
    (folder / "report").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
