"""Cases in which something waits: rows for the other side of a join (``align=``), or results for
stream time to go on by the wall clock (``idle=``).

Both are judged by the same models as what does not wait. Of rows that wait for the other side,
``let_through`` says in which order they come to the join. Time that goes on by the clock is to a
model a record of a key that nothing else has (``with_beats``).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from bench.family import Family
from bench.forced import HASHES, forced
from bench.records import Record, Result, by_key

from dovetail import testing
from fuzz import changelogs, families
from fuzz.case import Case

BEAT = "￿beat"
"""The key of records that are nothing but a time."""
_NEVER = -(10**18)


def drawn(random_: random.Random, name: str) -> Case:
    """A random case: ``topology`` has the join's, and ``pauses``, how long the wall clock goes on
    after each micro-batch, over and over.
    """
    count = changelogs.size(random_, 40)
    topology, records = DRAWN[name](random_, count)
    batches = changelogs.batches(random_, len(records))
    span = topology["span"]
    pauses = random_.choice([[0], [0, 0, span], [span // 2, span + 1], [1, 3 * span, 0, span]])
    return Case(
        name,
        topology | {"pauses": pauses},
        [list(record) for record in records],
        batches,
        **changelogs.settings(random_, 2 * len(batches), len(records), 2),
    )


def _aligned(random_: random.Random, count: int) -> tuple[Any, list[Record]]:
    """Each side in the order of time; one side, or now the one, now the other, is behind."""
    while True:
        topology, _ = families.FAMILIES["matrix"].draw(random_, 1)
        if not topology.get("self_join"):
            break
    keys = random_.choice(families.KEYS)
    steps = random_.choice([[0, 1], [1], [0, 1, 2, 9], [0, 0, 7]])
    now, records = changelogs.START, []
    for number in range(count):
        now += random_.choice(steps)
        side = random_.choice("LR")
        gone = random_.random() < 0.15 and not (side == "L" and topology["kind"] == "StreamTable")
        gone = gone and topology["kind"] != "StreamStream"
        value = None if gone else f"v{number}"
        records.append(Record(side, random_.choice(keys), now, value, gone))
    sides = {side: [r for r in records if r.table == side] for side in "LR"}
    weights = random_.choice([[1, 1], [1, 6], [6, 1]])
    came = []
    while any(sides.values()):
        (side,) = random_.choices("LR", weights)
        came += sides[side][:1]
        del sides[side][:1]
    return {"join": topology, "span": random_.choice([1, 10, 1000])}, came


def _idle(random_: random.Random, count: int) -> tuple[Any, list[Record]]:
    if random_.random() < 0.3:
        steps = [f"expire {random_.choice([0, 1, 3, 10, 50])}"]
        _, records = families.FAMILIES["expiring"].draw(random_, count)
        join: Any = {"steps": steps}
    else:
        while True:
            join, records = families.FAMILIES["matrix"].draw(random_, count)
            if join.get("grace") and (join["kind"] == "StreamTable" or _waits(join)):
                break
        if join["kind"] == "StreamTable":
            records = [record for record in records if record.key is not None]
    return {"join": join, "span": random_.choice([1, 5, 40])}, records


def _waits(join: dict[str, Any]) -> bool:
    """Whether a record without a match is held back: the end of its window may be behind it."""
    ends = {"left": [join["after"]], "right": [join["before"]]}
    ends["outer"] = [*ends["left"], *ends["right"]]
    held = [end + join["grace"] for end in ends.get(join["how"], [])]
    return join["unmatched"] == "on_close" and max(held, default=0) > 0


DRAWN = {"aligned": _aligned, "idle": _idle}


def family_of(case: Case) -> tuple[Family, Any]:
    """The family of the case's join, and the join."""
    join = case.topology["join"]
    known = families.FAMILIES["expiring" if "steps" in join else "matrix"]
    return known.family, known.read(join.get("steps", join))


def topology_of(case: Case) -> tuple[Any, dict[str, Any]]:
    """The topology in process, and its inputs by name."""
    family, join = family_of(case)
    inputs = families.inputs_of(family, join)
    if case.family == "aligned":
        span = timedelta(milliseconds=case.topology["span"])
        return _Aligning(family, join, span).built(inputs), inputs
    return family.build(join, inputs), inputs


@dataclass
class _Aligning:
    """A family's join with ``align=``: its left side passes the option on."""

    family: Family
    join: Any
    span: timedelta

    def built(self, inputs: dict[str, Any]) -> Any:
        left, span = inputs["L"], self.span

        class Left(type(left)):  # type: ignore[misc]
            def join(self, *given: Any, **options: Any) -> Any:
                return type(left).join(left, *given, align=span, **options)

        return self.family.build(self.join, {**inputs, "L": Left(left.plan)})


def difference(case: Case) -> str | None:
    """What is wrong with what dovetail makes of a case, None for nothing."""
    family, join = family_of(case)
    batches = list(case.cut(families.records(case)))
    pauses = case.topology["pauses"]
    pauses = [pauses[n % len(pauses)] for n in range(len(batches))] + [10**7]
    steps = [
        step for n, batch in enumerate([*batches, []]) for step in ((batch, 0), ([], pauses[n]))
    ]
    span = case.topology["span"]
    streams = {name for name, source in family.sources(join).items() if source.stream}
    timed = case.topology["join"].get("kind") == "StreamStream"
    reads = (
        let_through(span, steps, streams, join_grace(case))
        if case.family == "aligned"
        else with_beats(span, steps, streams, {2 * n for n in case.restarts}, timed=timed)
    )
    parts = list(reads)
    results = iter(family.each_record(join, [record for part in parts for record in part]))
    expected = [[result for _ in part for result in next(results)] for part in parts]
    found = _found(case, family, join, steps)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        wanted = [result for result in theirs if result.key != BEAT]
        if _by_key(ours, case.buckets) != _by_key(wanted, case.buckets):
            return f"step {number}: {families.first(ours, wanted)}"
    return None


def _by_key(results: Sequence[Result], buckets: int) -> dict[Any, list[Result]]:
    """Each key's results; several buckets hear of the end of a window when a micro-batch ends."""
    found = by_key(results)
    for own in found.values() if buckets > 1 else ():
        own.sort(key=repr)
    return found


def _found(case: Case, family: Family, join: Any, steps: Sequence[Any]) -> list[list[Result]]:
    """What each step emits."""
    unit = family.unit_us(join)
    options: dict[str, Any] = {"key_hash": HASHES[case.hash]}
    if case.family == "idle":
        options["idle"] = timedelta(milliseconds=case.topology["span"])
    found, number = [], 0
    with forced(case.hash, case.limits):
        topology, inputs = topology_of(case)
        driver = testing.Driver(topology, buckets=case.buckets, **options)
        for step, (batch, pause) in enumerate(steps):
            if step // 2 in case.restarts and step % 2 == 0:
                driver = testing.Driver.restore(topology, driver.snapshot(), **options)
            if pause or step % 2:
                changes = driver.advance_wall_clock(timedelta(milliseconds=pause))
            else:
                with driver.batch() as changes:
                    for record in batch:
                        row = family.row(join, record, number)
                        at, gone = record.time * unit, record.deleted
                        driver.pipe(inputs[record.table], row, timestamp=at, deleted=gone)
                        number += 1
            found.append(
                [
                    family.result(
                        join,
                        {**change.key, **(change.values or {})},
                        change.timestamp_us // unit,
                        deleted=change.change == "delete",
                    )
                    for change in changes
                ]
            )
    return found


@dataclass
class _Side:
    """``read``: the largest time so far; ``heard``: by the wall clock, when something last came."""

    waiting: list[Record] = field(default_factory=list)
    read: int = _NEVER
    passed: int = _NEVER
    heard: int | None = None


def join_grace(case: Case) -> int:
    """The grace period of a stream joined to a table, 0 for other joins."""
    join = case.topology["join"]
    return (join.get("grace") or 0) if join.get("kind") == "StreamTable" else 0


def let_through(
    span: int, steps: Sequence[tuple[Sequence[Record], int]], streams: Collection[str], grace: int
) -> Iterator[list[Record]]:
    """The records that come to a join in each step, in their order: of each side those up to the
    time that the other one has reached, unless that has brought nothing for ``span``. Then the
    times up to which sides have been let through. A record that waits for a ``grace`` period comes
    out when its side has been let through to its due time, before records of that time. The other
    side's clock is then at that time, too, unless that side has been silent.
    """
    sides, now = {side: _Side() for side in "LR"}, 0
    due = set[int]()
    for batch, pause in steps:
        now += pause
        for name, side in sides.items():
            came = [record for record in batch if record.table == name]
            side.waiting += came
            side.read = max([side.read, *(record.time for record in came)])
            side.heard = now if came or side.heard is None else side.heard
        reached = {n: s.read for n, s in sides.items() if now - s.heard < max(span, 1)}  # type: ignore[operator]
        passing = []
        for name, side in sides.items():
            others = [time for other, time in reached.items() if other != name]
            side.passed = max(side.passed, min([*others, side.read]))
            passing += [record for record in side.waiting if record.time <= side.passed]
            side.waiting = [record for record in side.waiting if record.time > side.passed]
        if grace:
            due |= {record.time + grace for record in passing if record.table == "L"}
        reached_due = {time for time in due if time <= sides["L"].passed}
        due -= reached_due
        passing += [
            Record(name, BEAT, time, "", name not in streams)
            for due_time in reached_due
            for name, time in (("R", min(due_time, sides["R"].passed)), ("L", due_time))
        ]
        beats = [
            Record(name, BEAT, side.passed, "", name not in streams)
            for name, side in sides.items()
            if side.passed > _NEVER
        ]
        yield [*sorted(passing, key=_in_turn), *beats]


def _in_turn(record: Record) -> tuple[int, bool, str]:
    """The order of records that are let through; beats come first, the right side's before."""
    beat = record.key == BEAT
    return record.time, not beat, record.table if not beat else "LR"[record.table == "L"]


def with_beats(
    span: int,
    steps: Sequence[tuple[Sequence[Record], int]],
    streams: Collection[str],
    restarts: Collection[int],
    *,
    timed: bool,
) -> Iterator[list[Record]]:
    """The records of each step; once none has come for ``span``, times that go on from the largest
    one of each input as the wall clock does. What was before a restart is not waited for.
    ``timed``: whether a stream's record counts that has no key or no value.
    """
    sides, now = dict[str, _Side](), 0
    for number, (batch, pause) in enumerate(steps):
        now += pause
        for side in sides.values() if number in restarts else ():
            side.heard = now
        for record in batch:
            table = record.table not in streams
            if (record.key is None) if table else (record.deleted and not timed):
                continue
            side = sides.setdefault(record.table, _Side())
            side.read, side.heard = max(side.read, record.time), now
        quiet = sides and now - max(side.heard or 0 for side in sides.values()) >= span
        beats = [
            Record(name, BEAT, side.read + now - (side.heard or 0), "", name not in streams)
            for name, side in sides.items()
            if quiet and side.read > _NEVER
        ]
        # What waits is released before a table's history ends.
        yield [*batch, *sorted(beats, key=lambda beat: beat.table not in streams)]
