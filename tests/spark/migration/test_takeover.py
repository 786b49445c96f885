"""Queries that take over from others, which run until then."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bench.parameters import slow_after
from fuzz import upgraded
from pyspark.sql import DataFrame
from shops import CUSTOMERS, ORDERS, TOPOLOGY, KilledError, Shop
from typer.testing import CliRunner

import dovetail as dt
from dovetail import cli
from dovetail.command import changes
from dovetail.spark.checkpoints.checkpoint import FOLLOWS, SUCCESSOR, CheckpointFile
from dovetail.spark.migration import frozen_copy, row_files
from dovetail.spark.query import first_batch, takeover
from dovetail.spark.query.topology_query import TopologyQuery

DRAWN = int(os.environ.get("DOVETAIL_CASES", "100")) // 25
SEED = int(os.environ.get("DOVETAIL_SEED", "78"))


CITIES = {"a": "Oslo", "b": "Rome", "c": None}


class Program:
    """An old and a new version of a query, and what both have emitted: (version, number of the
    micro-batch) to the ids of its rows.
    """

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.emitted: dict[tuple[str, int], list[int]] = {}
        self.queries: list[Any] = []

    def topology(self, version: str) -> dt.Table:
        return self.shop.joined(how="left" if version == "old" else "outer")

    def start(self, version: str, **options: Any) -> Any:
        """A query that runs as fast as files come."""

        def collect(rows: DataFrame, number: int) -> None:
            ids = sorted(row["id"] for row in rows.select("id").collect())
            self.emitted[version, number] = ids

        buckets = {"buckets": 2, "partitions": 1} if version == "new" else {}
        query = self.topology(version).write_stream(
            dt.to_foreach_batch(collect),
            checkpoint=self.shop.folder / version,
            emit="batch",
            **(buckets | options),
        )
        self.queries.append(query)
        return query

    def order(self, number: int) -> None:
        self.shop.write("orders", {"id": number, "customer": "a", "amount": number})

    @property
    def ids(self) -> dict[str, list[int]]:
        """The ids that each version has emitted, in order."""
        versions = dict.fromkeys(version for version, _ in self.emitted)
        return {
            version: [i for (v, _), ids in self.emitted.items() if v == version for i in ids]
            for version in versions
        }

    def stop(self) -> None:
        for query in self.queries:
            query.stop()

    def content(self, checkpoint: str) -> list[tuple[Any, ...]]:
        frame = dt.checkpoints.read_state(
            self.shop.spark, self.shop.folder / checkpoint, topology=self.topology("new")
        )
        return sorted((tuple(row) for row in frame.collect()), key=str)

    def binding(self, version: str) -> dict[str, Any] | None:
        return CheckpointFile(self.shop.spark, str(self.shop.folder / version)).read("test")


@pytest.fixture
def program(shop: Shop) -> Iterator[Program]:
    made = Program(shop)
    yield made
    made.stop()


def before(monkeypatch: Any, owner: Any, name: str, act: Callable[[int], None]) -> None:
    """Let something happen before each call of a function, which is given its number."""
    real: Callable[..., Any] = getattr(owner, name)
    calls = iter(range(1000))

    def called(*arguments: Any, **named: Any) -> Any:
        act(next(calls))
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, called)


@pytest.mark.long
def test_a_query_takes_over_from_one_that_runs(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orders come before its state is copied, while it is built, and each time it follows."""
    old = program.start("old", buckets=1)
    old.processAllAvailable()

    def come(number: int) -> Callable[[int], None]:
        def act(call: int) -> None:
            if call == 0:
                program.order(number)
                old.processAllAvailable()

        return act

    before(monkeypatch, takeover, "copy_checkpoint", come(10))
    before(monkeypatch, row_files, "write_files", come(20))
    before(monkeypatch, takeover, "copy_sources", come(30))
    before(monkeypatch, TopologyQuery, "stop_after_batch", come(40))
    new = program.start("new", initial=old)
    assert not old.isActive
    program.order(50)
    new.processAllAvailable()
    new.stop()
    assert program.ids == {"old": [1, 2, 3, 4, 5, 10, 20, 30, 40], "new": [50]}
    binding, former = program.binding("new"), program.binding("old")
    assert binding is not None
    assert FOLLOWS not in binding
    assert former is not None
    assert SUCCESSOR in former
    assert not (program.shop.folder / "new/initial").exists()
    with pytest.raises(dt.errors.TakenOverError, match="has taken over from that of"):
        program.start("old")
    program.shop.run(program.topology("new"), "whole", buckets=1)
    assert program.content("new") == program.content("whole")


KILLS: list[tuple[Any, str, int, bool]] = [
    (CheckpointFile, "write", 5, True),
    (takeover, "copy_checkpoint", 0, False),
    (takeover, "copy_checkpoint", 0, True),
    (frozen_copy, "_copy_file", 7, True),
    (row_files, "write_files", 0, True),
    *((CheckpointFile, "write", call, True) for call in (0, 1, 2, 3, 4, 6)),
    *((first_batch, "run_to_end", call, after) for call in (0, 1) for after in (False, True)),
    (first_batch, "_rewrite_offsets", 0, False),
    *((takeover, "copy_sources", call, after) for call in (0, 1) for after in (False, True)),
    (takeover, "plan_batch", 0, True),
    (TopologyQuery, "stop_after_batch", 0, False),
    (TopologyQuery, "stop_after_batch", 0, True),
    (takeover, "take_over", 0, False),
    (takeover, "take_over", 0, True),
]


@pytest.mark.long
@pytest.mark.parametrize(("owner", "name", "call", "after"), slow_after(1, KILLS))
def test_a_program_that_is_killed_is_started_again(
    program: Program, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, after: bool
) -> None:
    old = program.start("old", buckets=1)
    old.processAllAvailable()
    real: Callable[..., Any] = getattr(owner, name)
    calls = iter(range(1000))

    def killed(*arguments: Any, **named: Any) -> Any:
        if next(calls) != call:
            return real(*arguments, **named)
        if after:
            real(*arguments, **named)
        raise KilledError

    def come(number: int) -> None:
        if number == 0:
            program.order(10)
            old.processAllAvailable()

    with monkeypatch.context() as patch:
        before(patch, takeover, "_follow_once", come)
        patch.setattr(owner, name, killed)
        with pytest.raises(KilledError):
            program.start("new", initial=old)
    program.stop()
    come_so_far = [1, 2, 3, 4, 5, *(i for i in program.ids["old"] if i >= 10)]
    former = program.binding("old")
    assert former is not None
    if SUCCESSOR in former:
        with pytest.raises(dt.errors.TakenOverError, match="has taken over from that of"):
            program.start("old")
        new = program.start("new")
    else:
        old = program.start("old")
        program.order(90)
        old.processAllAvailable()
        come_so_far.append(90)
        new = program.start("new", initial=old)
    program.order(99)
    new.processAllAvailable()
    assert program.ids == {"old": come_so_far, "new": [99]}
    rows = [(n, None, n, CITIES["abc"[n % 3] if n < 6 else "a"]) for n in (*come_so_far, 99)]
    assert [row[:4] for row in program.content("new")] == sorted(rows, key=str)


class Gate:
    """A sink that may be held within a micro-batch, once it has the rows, and then fails."""

    def __init__(self) -> None:
        self.emitted: dict[tuple[str, int], list[int]] = {}
        self.held: threading.Event | None = None
        self.begun = threading.Event()

    def sink(self, version: str) -> Any:
        def collect(rows: DataFrame, number: int) -> None:
            self.emitted[version, number] = sorted(r["id"] for r in rows.select("id").collect())
            if self.held is not None and self.emitted[version, number]:
                held, self.held = self.held, None
                self.begun.set()
                held.wait(60)
                raise KilledError

        return dt.to_foreach_batch(collect)

    def hold(self) -> threading.Event:
        """Hold the next micro-batch with rows until the event is set."""
        self.held, self.begun = threading.Event(), threading.Event()
        return self.held


@pytest.mark.slow
def test_a_query_that_is_stopped_within_a_micro_batch_completes_it_first(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sink has that micro-batch already."""
    gate = Gate()

    def start(version: str, **options: Any) -> Any:
        topology = shop.joined(how="left" if version == "old" else "outer")
        return topology.write_stream(
            gate.sink(version), checkpoint=shop.folder / version, emit="batch", **options
        )

    def order(number: int) -> None:
        shop.write("orders", {"id": number, "customer": "a", "amount": 1})

    old = start("old", buckets=1)
    old.processAllAvailable()
    folders = shop.folder / "old", shop.folder / "new"
    outer = shop.joined(how="outer")
    steps = dt.checkpoints.upgrade(shop.spark, *folders, outer, running=True)
    assert steps.collect()[0]["begins"] == "with the rows of orders"
    with pytest.raises(dt.errors.CheckpointError, match="is running, from which this one takes"):
        start("new")
    held = gate.hold()
    order(10)
    assert gate.begun.wait(60)
    held.set()
    with pytest.raises(Exception, match="KilledError"):
        old.awaitTermination()
    with pytest.raises(dt.errors.CheckpointError, match="was stopped within a micro-batch"):
        start("new")
    old = start("old")
    old.processAllAvailable()
    assert [*gate.emitted.values()] == [[1, 2, 3, 4, 5], [10]]
    steps = dt.checkpoints.upgrade(shop.spark, *folders, outer, running=True)
    assert steps.collect()[0]["begins"] == "with the rows of orders"
    held = gate.hold()
    order(11)
    assert gate.begun.wait(60)
    before(monkeypatch, TopologyQuery, "stop_after_batch", lambda _: held.set())
    new = start("new", initial=old)
    assert not old.isActive
    order(12)
    new.processAllAvailable()
    new.stop()
    ids = [(version, ids) for (version, _), ids in gate.emitted.items() if ids]
    assert ids == [("old", [1, 2, 3, 4, 5]), ("old", [10]), ("old", [11]), ("new", [12])]


@pytest.mark.long
def test_what_cannot_be_followed_is_refused(shop: Shop) -> None:
    old, new = shop.folder / "old", shop.folder / "new"
    shop.run(shop.joined(), "old", buckets=1)

    def upgrade(topology: Any, former: Any = old, to: Any = new, **options: Any) -> Any:
        return dt.checkpoints.upgrade(shop.spark, former, to, topology, running=True, **options)

    def refuses(problem: str) -> Any:
        return pytest.raises(dt.errors.CheckpointError, match=problem)

    texts = shop.orders(ORDERS.replace("id long", "id string"))
    aligned = texts.join(shop.customers(), on={"id": "name"}, how="left", align="1 hour")
    for result in (aligned, aligned.drop("city"), aligned.group_by("city").agg(n=dt.count())):
        with refuses(r"wait for other inputs \(align=, idle=\).* Stop it first"):
            upgrade(result)
    with refuses("no_such has no micro-batch"):
        upgrade(shop.joined(), shop.folder / "no_such")
    cleaned = shop.spark.readStream.schema(ORDERS).option("cleanSource", "delete")
    orders = dt.Table.from_changelog(
        cleaned.json(str(shop.folder / "orders")), key="id", timestamp="at", name="orders"
    )
    with refuses("removes files of orders once it has read them"):
        upgrade(orders.join(shop.customers(), on="customer", how="left"))
    narrow = shop.customers(CUSTOMERS.replace("city string", "city int"))
    with refuses(f"the checkpoint {old} has customers.city as string, not as int"):
        upgrade(shop.orders().join(narrow, on="customer", how="outer"))
    assert not new.exists()

    upgrade(shop.joined(how="outer"))
    with refuses("new has begun"):
        dt.checkpoints.upgrade(shop.spark, old, new, shop.joined(how="outer"))
    with refuses("new follows the query of .*old, and has not taken over"):
        upgrade(shop.joined(), new, shop.folder / "third")
    shop.run(shop.joined(), "other", buckets=1)
    with refuses("follows the query of .*old, not that of .*other"):
        upgrade(shop.joined(how="outer"), shop.folder / "other")
    plain = shop.orders().changelog().writeStream.format("noop")
    running = plain.option("checkpointLocation", str(shop.folder / "plain")).start()
    with pytest.raises(dt.errors.PlanError, match="a query that write_stream or dt"):
        shop.run(shop.joined(), "new", initial=running, buckets=1)
    running.stop()
    dt.checkpoints.rewind(shop.spark, old, batch=0)
    with refuses("was set back or begun anew"):
        shop.run(shop.joined(how="outer"), "new", buckets=1)


def test_a_new_target_gets_all_rows_once_though_its_start_is_killed(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other query runs on. What the new one's sources go on from is in the copy of the other
    checkpoint, which is removed then.
    """
    old = program.start("old", buckets=1)
    old.processAllAvailable()
    real = row_files.remove_files

    def killed(*arguments: Any) -> None:
        real(*arguments)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(row_files, "remove_files", killed)
        with pytest.raises(KilledError):
            program.start("new", initial=old, emit_initial=True)
    program.order(10)
    old.processAllAvailable()
    new = program.start("new", initial=old, emit_initial=True)
    program.order(11)
    old.processAllAvailable()
    new.processAllAvailable()
    rows = [1, 2, 3, 4, 5, 10, 11]
    assert program.ids == {"old": rows, "new": rows}
    assert old.isActive
    program.stop()
    assert not (program.shop.folder / "new/initial").exists()
    program.start("old").processAllAvailable()


def test_the_plan_is_shown_and_asked_for(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.run(shop.orders().materialize(), "old")
    (shop.folder / "followed.py").write_text(TOPOLOGY)
    monkeypatch.chdir(shop.folder)
    folders = [str(shop.folder / name) for name in ("old", "new")]

    def call(*more: str, says: str = "") -> Any:
        arguments = ["upgrade", *folders, "followed:totals", "--running", *more]
        return CliRunner().invoke(cli.app, arguments, input=says, catch_exceptions=False)

    step = {
        "computes": "aggregate of orders by customer",
        "begins": "with the rows of orders",
        "rows": 5,
        "seconds": 0.0,
    }
    shown = json.loads(call("--dry-run", "--json").output)
    stages = [{"stage": 1, **step}, {"stage": 2, **step}]
    assert shown == {"checkpoint": folders[1], "stages": stages, "seconds": 3.0}
    same = dt.checkpoints.upgrade(
        shop.spark, *folders, shop.orders().materialize(), dry_run=True
    ).collect()
    assert [tuple(row) for row in same] == [(1, "orders", "carried over", 5, 0.0)]
    monkeypatch.setattr(changes, "at_terminal", lambda: True)
    declined = call(says="n\n")
    assert declined.exit_code == 1
    assert "It takes about 3 s" in declined.output
    assert not (shop.folder / "new").exists()
    assert call(says="y\n").exit_code == 0
    assert (shop.folder / "new").exists()
    again = call("--yes")
    assert again.exit_code == 0
    assert "Stop the query of" in again.output


@pytest.mark.slow
def test_a_copy_is_made_again_when_its_micro_batch_is_gone(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query goes on for more micro-batches than it keeps, while its files are copied."""
    program.shop.spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    try:
        old = program.start("old", buckets=1)
    finally:
        program.shop.spark.conf.unset("spark.sql.streaming.minBatchesToRetain")
    old.processAllAvailable()

    def come(call: int) -> None:
        if call == 3:
            for number in range(10, 16):
                program.order(number)
                old.processAllAvailable()

    before(monkeypatch, frozen_copy, "_copy_file", come)
    copies: list[int] = []
    before(monkeypatch, frozen_copy, "_paths_to_copy", copies.append)
    new = program.start("new", initial=old)
    program.order(99)
    new.processAllAvailable()
    assert copies == [0, 1]
    assert program.ids == {"old": [1, 2, 3, 4, 5, *range(10, 16)], "new": [99]}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(DRAWN))
def test_a_follower_emits_what_a_query_does_that_ran_from_the_beginning(number: int) -> None:
    """``DOVETAIL_CASES`` says how many, ``DOVETAIL_SEED`` draws others."""
    before, case = upgraded.drawn(SEED, number)
    difference = upgraded.followed_difference(before, case, 1 + number % 2)
    assert difference is None or difference.startswith("refused: has not what"), difference
