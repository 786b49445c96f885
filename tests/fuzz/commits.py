"""Tables whose changes come in commits, as those of a Delta table do.

A table is overwritten, merged into and deleted from. Each commit says which rows it takes away and
which it brings, in any order. Law: the history as of a time has the rows that stood then, and a
commit that leaves a row as it was changes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from bench.forced import HASHES, forced

import dovetail as dt
from dovetail import testing
from dovetail.laws.net_changes import find_net_changes
from dovetail.plan.nodes import RowOrder
from dovetail.testing import Driver
from fuzz import changelogs
from fuzz.case import Case


class Row(NamedTuple):
    """One row of a commit, which goes or comes; ``commit``: the commit's time."""

    commit: int
    key: str
    time: int
    value: str
    gone: bool

    @property
    def goes_us(self) -> int:
        """The time at which a row goes: the commit's, or its own if that is later."""
        return max(self.commit, self.time)


def drawn(random_: random.Random, name: str) -> Case:
    """A random case; each micro-batch has whole commits."""
    keys = random_.choice(["k", "ab", "abcd"])
    now, rows = changelogs.START, []
    table: dict[str, tuple[int, str]] = {}
    lengths: list[int] = []
    for _ in range(random_.choice([1, 3, 8, 20])):
        now += random_.choice([1, 1, 3, 10])
        after = dict(table)
        kind = random_.choice(["overwrite", "merge", "merge", "delete"])
        for key in keys:
            if kind == "delete" and random_.random() < 0.4:
                after.pop(key, None)
            elif kind != "delete" and random_.random() < 0.5:
                after[key] = (now - random_.choice([0, 0, 1, 5, 40]), random_.choice("xyz"))
        touched = [key for key in keys if kind == "overwrite" or table.get(key) != after.get(key)]
        found = [
            Row(now, key, *state[key], gone)
            for state, gone in ((table, True), (after, False))
            for key in touched
            if key in state
        ]
        random_.shuffle(found)
        rows += found
        lengths.append(len(found))
        table = after
    batches = _grouped(random_, lengths)
    settings = changelogs.settings(random_, len(batches), len(rows))
    kind = random_.choice(["itself", "as of", "view"])
    return Case(name, {"reader": kind}, [[*row] for row in rows], batches, **settings)


def _grouped(random_: random.Random, lengths: Sequence[int]) -> list[int]:
    """The lengths of micro-batches, each of some commits."""
    found: list[int] = []
    for length in lengths:
        if found and random_.random() < 0.5:
            found[-1] += length
        else:
            found.append(length)
    return found


def topology_of(case: Case) -> tuple[Any, dict[str, Any]]:
    """The topology in process, and its inputs by name."""
    schema = {"k": pa.string(), "v": pa.string()}
    plan: Any = testing.table("t", key="k", schema=schema, versioned="1 hour").plan
    table = dt.Table(replace(plan, order=RowOrder(by_commit=True)))
    asked = testing.stream("s", key="n", schema={"n": pa.int64(), "k": pa.string()})
    inputs = {"t": table, "s": asked}
    if case.topology["reader"] == "itself":
        return table, inputs
    seen = table if case.topology["reader"] == "as of" else table.select("v").rename({"v": "w"})
    name = "v" if case.topology["reader"] == "as of" else "w"
    return asked.join(seen, on="k", how="left", select={"v": f"right.{name}"}), inputs


def difference(case: Case) -> str | None:
    """Say which micro-batch dovetail gets wrong, and how; None if all are right."""
    parts = [[Row(*row) for row in part] for part in case.cut(case.records)]
    with forced(case.hash, case.limits):
        topology, inputs = topology_of(case)
        key_hash = HASHES[case.hash]
        driver = Driver(topology, buckets=case.buckets, key_hash=key_hash)
        history, number = History(), 0
        for place, part in enumerate(parts):
            if place in case.restarts:
                driver = Driver.restore(topology, driver.snapshot(), key_hash=key_hash)
            with driver.batch():
                for row in _netted(part):
                    values = {"k": row.key} | ({} if row.gone else {"v": row.value})
                    driver.pipe(inputs["t"], values, timestamp=row.time, deleted=row.gone)
            said = history.take(part)
            if case.topology["reader"] == "itself":
                expected = sorted((c.key, c.value or "", c.time) for c in said)
                answers = [
                    (c.key["k"], (c.values or {}).get("v") or "", c.timestamp_us)
                    for c in driver.read()
                ]
                found: Any = sorted(answers)
            else:
                driver.read()
                asked = {number + n: one for n, one in enumerate(history.questions())}
                number += len(asked)
                with driver.batch():
                    for n, (key, time) in asked.items():
                        driver.pipe(inputs["s"], {"n": n, "k": key}, timestamp=time)
                expected = [
                    (key, time, history.standing(key, time)) for key, time in asked.values()
                ]
                found = [
                    (*asked[c.key["n"]], c.values["v"])
                    for c in sorted(driver.read(), key=lambda c: c.key["n"])
                    if c.values is not None
                ]
            if found != expected:
                return f"micro-batch {place}: {found}, not {expected}"
    return None


class Began(NamedTuple):
    """From when on a key has a value, None for no row."""

    key: str
    time: int
    value: str | None


class History:
    """The law, row by row: what stood when."""

    def __init__(self) -> None:
        self.table: dict[str, tuple[int, str]] = {}
        self.began: list[Began] = []

    def take(self, rows: Sequence[Row]) -> list[Began]:
        """Take whole commits; say what they change."""
        found = []
        for commit in sorted({row.commit for row in rows}):
            own = [row for row in rows if row.commit == commit]
            comes = {row.key: (row.time, row.value) for row in own if not row.gone}
            goes = {row.key: row.goes_us for row in own if row.gone and row.key not in comes}
            for key, new in comes.items():
                if self.table.get(key) != new:
                    found.append(self._begins(key, *new))
            found += [self._begins(key, time, None) for key, time in goes.items()]
            self.table = {k: v for k, v in (self.table | comes).items() if k not in goes}
        return found

    def _begins(self, key: str, time: int, value: str | None) -> Began:
        end = max([one.time for one in self.began if one.key == key], default=time)
        self.began.append(Began(key, max(time, end), value))
        return self.began[-1]

    def standing(self, key: str, time: int) -> str | None:
        """The value that a key has at a time."""
        own = [one.value for one in self.began if one.key == key and one.time <= time]
        return own[-1] if own else None

    def questions(self) -> list[tuple[str, int]]:
        """Each key about the moments around the last changes."""
        times = {one.time - before for one in self.began[-8:] for before in (0, 1)}
        keys = {one.key for one in self.began}
        return [(key, time) for key in sorted(keys) for time in sorted(times)]


def _netted(rows: Sequence[Row]) -> list[Row]:
    """The rows that stay, as the reader of a Delta table has them."""
    if not rows:
        return []
    commit, key, time, value, gone = (list(column) for column in zip(*rows, strict=True))
    stays = find_net_changes(
        [pa.array(key)],
        np.array(commit, np.int64),
        np.array(gone, np.bool_),
        [pa.array(time), pa.array(value)],
    )
    kept = [row for row, stay in zip(rows, stays.tolist(), strict=True) if stay]
    return [row._replace(time=row.goes_us) if row.gone else row for row in kept]
