"""Two laws of records that reach no result, as cases.

- ``counted``: records in = records that had an effect + records counted. Judged on topologies that
  emit one result for each record that has an effect.
- ``guarded``: behind ``where`` of a table all is as if the rows that are left out had never been.
  So they move no clock.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from bench.forced import HASHES, forced

import dovetail as dt
from dovetail import testing
from dovetail.testing import Driver
from fuzz import changelogs
from fuzz.case import Case

SCHEMA = {"id": pa.int64(), "v": pa.string(), "ok": pa.bool_()}
HISTORY = 10
FUTURE = 10**15
BOTH = {"v": "left.v", "w": "right.v"}


class Row(NamedTuple):
    """A record of one of the inputs; ``ok``: whether it meets the condition."""

    of: str
    id: int | None
    time: int
    ok: bool = True
    deleted: bool = False


Inputs: TypeAlias = Mapping[str, Any]


def inputs() -> Inputs:
    """Streams ``s`` and ``u``; tables ``t`` and ``r``, and ``h`` and ``g`` with a history."""
    streams = {name: testing.stream(name, key="id", schema=SCHEMA) for name in "su"}
    tables = {name: testing.table(name, key="id", schema=SCHEMA) for name in "tr"}
    history = f"{HISTORY} us"
    histories = {
        name: testing.table(name, key="id", schema=SCHEMA, versioned=history) for name in "hg"
    }
    return {**streams, **tables, **histories}


def fed(driver: Driver, given: Inputs, rows: Sequence[Row]) -> list[Any]:
    """The changes of one micro-batch, without their positions."""
    with driver.batch() as changes:
        for row in rows:
            values = {} if row.deleted else {"v": f"v{row.time}", "ok": row.ok}
            record = {"id": row.id, **values}
            driver.pipe(given[row.of], record, timestamp=row.time, deleted=row.deleted)
    return [(c.change, *c.key.values(), c.values, c.timestamp_us) for c in changes]


def counted(driver: Driver) -> dict[str, int]:
    """All counters of a driver."""
    return driver.counts | ({"dropped": driver.dropped} if driver.dropped else {})


def referring(left: Any, right: Any, **options: Any) -> Any:
    """A join by foreign key, though both have the same key."""
    return left.join(right.rename({"id": "k"}), on={"id": "k"}, select=BOTH, **options)


ONE_RESULT: dict[str, Callable[[Any, Inputs], Any]] = {
    "look": lambda s, i: s.join(i["t"], how="left", select={"v": "left.v", "ok": "left.ok"}),
    "find": lambda s, i: s.join(i["h"], how="left", select={"v": "left.v", "ok": "left.ok"}),
    "key": lambda s, _: s.key_by("v").key_by("id"),
    "once": lambda s, _: s.deduplicate(within="3 us"),
    "union": lambda s, i: s.union(i["u"]),
}
"""Steps that emit one record for each that comes."""
ENDS: dict[str, Callable[[Any], Any]] = {
    "count": lambda s: s.group_by("id").agg(n=dt.count()),
    "tumbling": lambda s: (
        s.group_by("id").window(dt.windows.tumbling("4 us")).agg(n=dt.count()).to_table()
    ),
    "stream": lambda s: s,
    "once": lambda s: s.deduplicate(within="2 us"),
}

READERS: dict[str, Callable[[Any, Inputs], Any]] = {
    "as of": lambda t, i: i["s"].join(t, how="left", select=BOTH),
    "as of, with grace": lambda t, i: i["s"].join(t, how="left", grace="5 us", select=BOTH),
    "join": lambda t, i: t.join(i["r"], how="outer", select=BOTH),
    "both": lambda t, i: i["g"].join(t, how="outer", select=BOTH),
    "history": lambda t, i: t.join(i["g"], late="history", select=BOTH),
    "groups": lambda t, _: t.group_by("v").agg(n=dt.count()),
    "references": lambda t, i: referring(i["r"], t, how="left"),
    "itself": lambda t, _: t,
    "changes": lambda t, _: t.to_changes(),
    "twice": lambda t, i: i["s"].join(t.select("v", "ok").where("ok"), how="left", select=BOTH),
}
UNVERSIONED: dict[str, Callable[[Any, Inputs], Any]] = {
    "expire": lambda t, _: t.expire(after="5 us"),
    "expire, then join": lambda t, i: t.expire(after="5 us").join(i["r"], how="left", select=BOTH),
    "stored": lambda t, _: t.materialize().expire(after="5 us"),
    "align": lambda t, i: i["s"].join(t, how="left", align="1 min", select=BOTH),
}
_VERSIONED_ONLY = {"as of, with grace", "history"}
GUARDED = [
    *((name, "h") for name in READERS),
    *((name, "t") for name in (READERS | UNVERSIONED) if name not in _VERSIONED_ONLY),
]
"""What reads a table behind ``where``, with the table's name."""


def rows_of(random_: random.Random, of: str, count: int, *, deletes: float) -> Iterator[Row]:
    """Records in a rough order of time, some of the far future, some without a key."""
    for number in range(count):
        far = 1000 if random_.random() < 0.03 else 0
        time = 100 + number // 2 + random_.randint(-14, 0) + far
        key = random_.choice([1, 2, 3, None])
        yield Row(of, key, time, random_.random() < 0.7, random_.random() < deletes)


def drawn(random_: random.Random, name: str) -> Case:
    """A random case."""
    if name == "guarded":
        return guarded(random_, *random_.choice(GUARDED))
    return _case(random_, name, *_counted(random_))


def guarded(random_: random.Random, reader: str, of: str) -> Case:
    """A random case of what reads the table ``of`` behind ``where``: a pair of ``GUARDED``."""
    return _case(random_, "guarded", *_guarded(random_, reader, of))


def _case(random_: random.Random, name: str, topology: Any, rows: Sequence[Row]) -> Case:
    batches = changelogs.batches(random_, len(rows))
    settings = changelogs.settings(random_, len(batches), len(rows), 2)
    return Case(name, topology, [[*row] for row in rows], batches, **settings)


def _counted(random_: random.Random) -> tuple[Any, list[Row]]:
    steps = random_.sample([*ONE_RESULT], k=random_.randint(0, 2))
    end = random_.choice([*ENDS])
    if not steps and end == "stream":
        steps = ["look"]
    topology = {"steps": steps, "end": end}
    read = {source.name for source in _made(topology, inputs()).plan.origins}
    rows = [row for of in "su" if of in read for row in rows_of(random_, of, 30, deletes=0.1)]
    random_.shuffle(rows)
    return topology, rows


def _guarded(random_: random.Random, reader: str, of: str) -> tuple[Any, list[Row]]:
    topology = {"reader": reader, "of": of}
    read = sorted(source.name for source in _made(topology, inputs()).plan.origins)
    rows = [row for one in read for row in rows_of(random_, one, 16, deletes=0.1)]
    rows = [row._replace(ok=True) for row in rows if row.id is not None]
    random_.shuffle(rows)
    for _ in range(8):
        time = random_.choice([0, 100, 110, 5000, FUTURE])
        left_out = Row(of, random_.choice([7, 8]), time, ok=False)
        rows.insert(random_.randint(0, len(rows)), left_out)
    return topology, rows


def _made(topology: Any, given: Inputs) -> Any:
    if "reader" in topology:
        table = given[topology["of"]].where("ok")
        return (READERS | UNVERSIONED)[topology["reader"]](table, given)
    made = given["s"].where("ok")
    for step in topology["steps"]:
        made = ONE_RESULT[step](made, given)
    return ENDS[topology["end"]](made)


def topology_of(case: Case) -> tuple[Any, dict[str, Any]]:
    """The topology in process, and its inputs by name."""
    given = inputs()
    return _made(case.topology, given), dict(given)


def difference(case: Case) -> str | None:
    """Say where dovetail breaks the law of a case; None if it keeps it."""
    parts = [[Row(*row) for row in part] for part in case.cut(case.records)]
    with forced(case.hash, case.limits):
        changes, counts = _ran(case, parts)
        if case.family == "guarded":
            without = [[row for row in part if row.ok] for part in parts]
            if (changes, counts) != (other := _ran(case, without)):
                return f"{changes} and {counts}, without the rows left out {other}"
            return None
    # ``where`` leaves rows out because the topology says so, and records without a value with them.
    came = sum(row.of != "s" or (row.ok and not row.deleted) for part in parts for row in part)
    if came != len(changes) + sum(counts.values()):
        return f"{came} records came, {len(changes)} had an effect, counted are {counts}"
    return None


def _ran(case: Case, parts: Sequence[Sequence[Row]]) -> tuple[list[Any], dict[str, int]]:
    """The changes of all micro-batches, and the counters."""
    topology, given = topology_of(case)
    key_hash = HASHES[case.hash]
    driver = Driver(topology, buckets=case.buckets, key_hash=key_hash)
    found, counts = [], Counter[str]()
    for number, part in enumerate(parts):
        if number in case.restarts:
            counts.update(counted(driver))
            driver = Driver.restore(topology, driver.snapshot(), key_hash=key_hash)
        found += fed(driver, given, part)
    waited = driver.advance_wall_clock("1 min")
    found += [(c.change, *c.key.values(), c.values, c.timestamp_us) for c in waited]
    counts.update(counted(driver))
    return found, dict(counts)
