"""Readers of versioned tables: each sees what ``materialize()`` of the table would give.

So of a key's rows the one with the latest time wins, however late the others come.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from bench.forced import HASHES, forced

import dovetail as dt
from dovetail import testing
from fuzz import changelogs
from fuzz.case import Case

COLUMNS = {"id": pa.int64(), "v": pa.string(), "n": pa.int64(), "is": pa.bool_()}

STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "select": lambda t, _: t.select("v", "n", "is"),
    "where": lambda t, _: t.where("is"),
    "as a stream": lambda t, _: t.to_stream().to_table(),
    "join": lambda t, o: t.join(o, how="left", select=["left.v", "left.n", "left.is"]),
    "union": lambda t, o: t.union(o.select("is", "n", "v"), source="part"),
    "stored": lambda t, _: t.materialize(),
}
LAST: dict[str, Callable[[Any], Any]] = {
    "itself": lambda t: t,
    "stream": lambda t: t.to_stream(),
    "changes": lambda t: t.to_changes(column="kind"),
    "count of changes": lambda t: t.to_stream().group_by("v").agg(n=dt.count()),
    "groups": lambda t: t.group_by("v").agg(
        n=dt.count(), most=dt.max("n"), all=dt.collect_set("n")
    ),
    "table_key": lambda t: t.key_by("v", duplicates="last"),
    "expire": lambda t: t.materialize().expire(after="1 h"),
    "references": lambda t: t.join(_names(), on="v", how="left", select=["n", "long"]),
}


def table(name: str, versioned: str | None = None) -> dt.Table:
    """A table of the family's columns."""
    return testing.table(name, key="id", schema=COLUMNS, versioned=versioned)


def _names() -> dt.Table:
    return testing.table("names", key="word", schema={"word": pa.string(), "long": pa.string()})


def drawn(random_: random.Random, name: str) -> Case:
    """A random case."""
    return drawn_for(random_, random_.choice([*LAST]))


def drawn_for(random_: random.Random, last: str) -> Case:
    """A random case with one of ``LAST``: many rows are late, none is equal to another one."""
    steps = random_.choices([*STEPS], k=random_.randrange(4))
    if "union" in steps:  # whose key is another one
        steps = [step for step in steps[: steps.index("union")] if step != "join"] + ["union"]
    if last == "count of changes":  # a join repeats its row at a delete of what is not there
        steps = [step for step in steps if step != "join"]
    topology = {"steps": steps, "last": last}
    records = []
    for number in range(random_.choice([10, 40])):
        of, key = random_.choice("aaab"), random_.randrange(3)
        row = [random_.choice("xyz"), number, random_.random() < 0.7]
        records.append([of, key, random_.randrange(1, 30), row, random_.random() < 0.25])
    batches = changelogs.batches(random_, len(records))
    settings = changelogs.settings(random_, len(batches), len(records), 3)
    is_table = not LAST[last](table("a")).plan.stream
    emit = random_.choice(["change", "batch"]) if is_table else "change"
    return Case("latest", topology, records, batches, emit=emit, **settings)


def topology_of(case: Case) -> tuple[Any, dict[str, Any]]:
    """The topology in process, and its inputs by name."""
    return _made(case, materialized=False)


def _made(case: Case, *, materialized: bool) -> tuple[Any, dict[str, Any]]:
    inputs = {name: table(name, "1 h") for name in "ab"}
    made, other = (one.materialize() if materialized else one for one in inputs.values())
    for step in case.topology["steps"]:
        made = STEPS[step](made, other)
    return LAST[case.topology["last"]](made), inputs


def difference(case: Case) -> str | None:
    """Say how a reader differs from one of ``materialize()``; None if it does not."""
    found, expected = last_rows(case), last_rows(case, materialized=True)
    return None if found == expected else f"{found}, of materialize() {expected}"


def last_rows(case: Case, *, materialized: bool = False) -> dict[Any, Any]:
    """Each key's last row, if it has one; of a stream its last record, if it has values."""
    topology, inputs = _made(case, materialized=materialized)
    options: dict[str, Any] = {"emit": case.emit, "key_hash": HASHES[case.hash]}
    last: dict[Any, Any] = {}
    with forced(case.hash, case.limits):
        driver = testing.Driver(topology, buckets=case.buckets, **options)
        for place, part in enumerate(case.cut(case.records)):
            if place in case.restarts:
                driver = testing.Driver.restore(topology, driver.snapshot(), **options)
            with driver.batch() as changes:
                for of, key, time, values, deleted in part:
                    if inputs[of].plan in topology.plan.origins:
                        row = {"id": key, **dict(zip(["v", "n", "is"], values, strict=True))}
                        driver.pipe(inputs[of], row, timestamp=time, deleted=deleted)
            for change in changes:
                last[(*change.key.values(),)] = change.values
    if topology.plan.stream:
        return {key: row for key, row in last.items() if row and row.get("n") is not None}
    return {key: row for key, row in last.items() if row is not None}
