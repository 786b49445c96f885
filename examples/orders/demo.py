"""The demo itself: start all, trade, kill the query and start it again, compare, stop all."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import psycopg
from pyspark.sql import SparkSession

from examples.orders import check
from examples.orders.query import ENRICHED, Place, command, topic_of
from examples.orders.shop import MARK, SCHEMA, TABLES, Trade
from tools import debezium, postgres

ROOT = Path(__file__).parents[2]
LOGICAL = "-c fsync=off -c wal_level=logical"
_SHOWN_EVERY_S = 10.0
_BATCHES_BEFORE_KILL = 3
_END_SECONDS = 300
_LOG_CHARS = 3000
_CHANGES_PER_BROKEN = 150


def run(spark: SparkSession, place: Place, *, changes: int, per_second: int) -> bool:
    """Run the demo: do the three targets hold what PostgreSQL joins?"""
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        connection.execute(SCHEMA)
    for topic in (*map(topic_of, TABLES), ENRICHED):
        make_topic(spark, place.servers, topic)
    trade = Trade(place.dsn, changes, per_second)
    tables = ",".join(f"shop.{table}" for table in (*TABLES, MARK))
    connector = debezium.postgres(place.dsn, tables, prefix="pg")
    query = Query(place)
    query.say("Debezium starts")
    with debezium.running(Path(place.directory) / "debezium", place.servers, connector) as worker:
        try:
            trade.start()
            broken = follow(trade, Capture(spark, place, worker), query)
            query.finish()
        finally:
            query.kill()
    return report(spark, place, trade, broken)


@dataclass
class Capture:
    """Debezium, which sends the changes to the topics, and records that nobody can read."""

    spark: SparkSession
    place: Place
    worker: debezium.Worker
    broken: int = 0

    def spoil(self, wanted: int) -> None:
        """Send truncated records until there are as many as wanted."""
        self.worker.refuse_failed()
        if self.broken < wanted:
            topics = [topic_of(list(TABLES)[n % 3]) for n in range(self.broken, wanted)]
            records = [(topic, '{"order_id":1}', '{"before":null,"aft') for topic in topics]
            frame = self.spark.createDataFrame(records, "topic string, key string, value string")
            writer = frame.write.format("kafka")
            writer.option("kafka.bootstrap.servers", self.place.servers).save()
            self.broken = wanted

    def drain(self) -> None:
        """Wait until Debezium has sent all that has been committed so far."""
        with psycopg.connect(self.place.dsn, autocommit=True) as connection:
            (end,) = connection.execute("SELECT pg_current_wal_lsn()").fetchone() or ()
            asked = "SELECT bool_and(confirmed_flush_lsn > %s::pg_lsn) FROM pg_replication_slots"
            deadline = time.monotonic() + _END_SECONDS
            while connection.execute(asked, [end]).fetchone() != (True,):
                self.worker.refuse_failed()
                if time.monotonic() > deadline:
                    raise SystemExit(f"Debezium does not come to its end: {self.worker.log}")
                # It confirms a transaction when a later one has come.
                connection.execute(f"INSERT INTO shop.{MARK} DEFAULT VALUES")
                time.sleep(1)


@dataclass
class Query:
    """The query's process, and how far it is."""

    place: Place
    started: float = field(default_factory=time.monotonic)
    kills: int = 0
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again."""
        with (Path(self.place.directory) / "query.log").open("ab") as log:
            self._process = subprocess.Popen(
                command(self.place), stdout=log, stderr=log, cwd=ROOT, start_new_session=True
            )

    def kill(self) -> None:
        """Kill it with all that it has started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def finish(self) -> None:
        """Wait until it has read all there is."""
        assert self._process is not None
        self.place.finished.touch()
        self.say("all changes are in the topics; the query reads to their end")
        if self._process.wait(_END_SECONDS) != 0:
            self.fail()
        self.say(f"the query has ended after micro-batch {self.batch()}")

    def fail(self) -> NoReturn:
        """Say what the query said last."""
        log = (Path(self.place.directory) / "query.log").read_text()
        raise SystemExit(f"{log[-_LOG_CHARS:]}\nthe query failed")

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def batch(self) -> int:
        """The last micro-batch that its table in PostgreSQL has, -1 before the first."""
        with psycopg.connect(self.place.dsn) as connection:
            (there,) = connection.execute(
                "SELECT to_regclass('reports.dovetail_queries') IS NOT NULL"
            ).fetchall()
            if not there[0]:
                return -1
            asked = "SELECT coalesce(max(batch_id), -1) FROM reports.dovetail_queries"
            return int(connection.execute(asked).fetchall()[0][0])

    def say(self, text: str) -> None:
        """A line of progress."""
        print(f"{time.monotonic() - self.started:5.0f} s  {text}", flush=True)


def follow(trade: Trade, capture: Capture, query: Query) -> int:
    """Watch until all changes are in the topics, and kill the query once on the way.

    Returns how many records nobody can read.
    """
    query.start()
    query.say("the query starts")
    shown = time.monotonic()
    over = False
    while not over or not query.kills:
        over = not trade.is_alive()
        capture.spoil(trade.changed // _CHANGES_PER_BROKEN)
        if over:
            capture.drain()
        batch = query.batch()
        if batch >= 0 and not trade.opened.is_set():
            query.say("customers and products are in; the shop opens")
            trade.opened.set()
        if not query.kills and (over or batch >= _BATCHES_BEFORE_KILL - 1):
            query.kill()
            query.kills += 1
            query.say(f"the query is killed after micro-batch {query.batch()}, and started again")
            query.start()
        if not query.is_running():
            query.fail()
        if time.monotonic() - shown > _SHOWN_EVERY_S:
            shown = time.monotonic()
            done = "no micro-batch yet" if batch < 0 else f"micro-batch {batch} is in PostgreSQL"
            query.say(f"{trade.changed:,} rows changed in the shop; {done}")
        time.sleep(0.3)
    return capture.broken


def report(spark: SparkSession, place: Place, trade: Trade, broken: int) -> bool:
    """Print what the targets hold beside what they should: is it the same?"""
    wanted = check.expected(place)
    letters = spark.read.parquet(place.letters).count()
    print(f"\n{trade.changed:,} changes of 3 tables became {len(wanted):,} orders with their joins")
    equal = letters == broken
    print(f"dead letters: {letters:,} of {broken:,} malformed records")
    for name, found in check.targets(spark, place).items():
        differing = check.differences(found, wanted)
        equal = equal and not differing
        print(f"{name:10}  {len(found):,} rows, {'NOT equal' if differing else 'equal'}")
        for line in differing[:10]:
            print(f"  {line}")
    print(f"check: {'equal' if equal else 'NOT equal'}")
    return equal


def make_topic(spark: SparkSession, servers: str, topic: str) -> None:
    """A compacted topic of two partitions."""
    kafka = spark._jvm.org.apache.kafka.clients.admin  # type: ignore[union-attr]  # noqa: SLF001
    admin = kafka.Admin.create({"bootstrap.servers": servers})
    declared = kafka.NewTopic(topic, 2, 1).configs({"cleanup.policy": "compact"})
    admin.createTopics([declared]).all().get()
    admin.close()


@contextmanager
def services() -> Iterator[tuple[str, str]]:
    """A PostgreSQL server and a broker, which leave nothing behind: its DSN, its address."""
    with postgres.running(LOGICAL) as server, broker() as servers:
        yield server.dsn(), servers


@contextmanager
def broker() -> Iterator[str]:
    """The address of a broker of the demo's own."""
    own = os.environ | {"DOVETAIL_KAFKA_PORT": str(random.randrange(20_000, 30_000))}
    tool = ROOT / "tools" / "broker"
    started = subprocess.run([tool, "start"], env=own, check=True, capture_output=True, text=True)
    try:
        yield started.stdout.split()[0]
    finally:
        subprocess.run([tool, "wipe"], env=own, check=True)
