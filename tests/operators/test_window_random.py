"""Random aggregates and windowed tables: the driver against the definition
(``bench.models.windows``), and the law of table joins.

``DOVETAIL_CASES`` says how many cases to draw; ``DOVETAIL_SEED`` draws others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from bench.families import windows as family
from bench.forced import HASHES, forced
from bench.models.gathering import Cells, Change, Key
from bench.models.windows import Joined, View, accumulate, each_record, has_windows, inputs_of, seen
from bench.records import Record, by_key, cut, flat, per_batch
from bench.runners import driver
from window_cases import FIXED, KINDS, PLACED, SAME, cases

CASES = int(os.environ.get("DOVETAIL_CASES", "200"))
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))

FAMILIES: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "groups": (("",), ["G", "H"]),
    "fixed": (FIXED, [*SAME]),
    "placed": (FIXED, [*PLACED]),
    "sliding": (("sliding",), [*SAME]),
    "session": (("session",), [*SAME]),
}
RUNNERS: dict[str, dict[str, Any]] = {
    "driver": {},
    "restarted": {"restart": True},
    "colliding": {"key_hash": HASHES["one"]},
    "buckets": {"buckets": 3, "restart": True},
}


def drawn(kind: str, name: str, emit: str) -> list[tuple[View, list[list[Record]]]]:
    """Cases with their records cut."""
    kinds, names = FAMILIES[kind]
    if emit == "batch":
        names = [n for n in names if not n.startswith("stream")]
    random_ = random.Random(f"{SEED} {kind} {name} {emit}")
    found = cases(f"{SEED} {kind} {name} {emit}", -(-CASES // 70), kinds, names)
    return [(view, cut(rs, random_.choice([1, 3, 7, 10**6]))) for view, rs in found]


@pytest.fixture
def _hashes(name: str) -> Iterator[None]:
    """All keys have one hash where they collide, between steps, too."""
    with forced("one" if name == "colliding" else "own", {}):
        yield


@pytest.mark.usefixtures("_hashes")
@pytest.mark.parametrize("name", RUNNERS)
@pytest.mark.parametrize("kind", FAMILIES)
def test_single_changes(kind: str, name: str) -> None:
    for view, batches in drawn(kind, name, "change"):
        expected = per_batch(family.each_record(view, flat(batches)), batches)
        answers = driver(family, view, batches, **RUNNERS[name])
        if name == "buckets":
            assert [*map(by_key, answers)] == [*map(by_key, expected)], (view, batches)
        else:
            assert answers == expected, (view, batches)


@pytest.mark.usefixtures("_hashes")
@pytest.mark.parametrize("name", RUNNERS)
@pytest.mark.parametrize("kind", FAMILIES)
def test_batches(kind: str, name: str) -> None:
    for view, batches in drawn(kind, name, "batch"):
        answers = driver(family, view, batches, emit="batch", **RUNNERS[name])
        found, expected = (
            [*map(family.arranged, emitted)]
            for emitted in (answers, family.each_batch(view, batches))
        )
        assert found == expected, (view, batches)


# The law: after all input, the table is the join of the sides' tables.


def final_rows(view: View, records: list[Record]) -> dict[Key, Any]:
    """The rows that the driver's changes leave, by what they show."""
    rows: dict[Key, Any] = {}
    for result in flat(driver(family, view, cut(records, 5))):
        rows.pop(result.key, None)
        if result.values is not None:
            rows[result.key] = result.values
    return rows


def static_join(join: Joined, view: View, records: list[Record]) -> dict[Key, Any]:
    """The join of both sides as they are after all records."""
    left, right = (side_rows(side, view, records) for side in (join.left, join.right))
    keeps = join.how in ("left", "outer"), join.how == "outer"
    found = {}
    width = len(inputs_of(join.left)), len(inputs_of(join.right))
    met = set()
    for key, values in left.items():
        other = key[:1] if not has_windows(join.right) else key
        if join.shift:
            other = (key[0], key[1] + join.shift, key[2] + join.shift)
        met.add(other)
        if other in right or keeps[0]:
            found[key] = values + right.get(other, (None,) * width[1])
    for key, values in right.items():
        if keeps[1] and key not in met:
            found[key] = (None,) * width[0] + values
    return found


def side_rows(side: Any, view: View, records: list[Record]) -> dict[Key, Any]:
    """A side's table after all its records: a join's again as the join of its sides."""
    if isinstance(side, Joined):
        return static_join(side, view, records)
    if side == "T":
        rows: dict[Key, Any] = {}
        for record in (r for r in records if r.table == "T" and r.key is not None):
            rows.pop((record.key,), None)
            if not record.deleted:
                rows[record.key,] = (record.value,)
        return rows
    alone = View(side, view.windows)
    cells: dict[Key, Cells] = {}
    for part in each_record(alone, records):
        accumulate(cells, part)
    return {key: seen_values(key, row) for key, row in cells.items()}


def seen_values(key: Key, row: Cells) -> Any:
    (result,) = seen([Change(key, row, 0)])
    return result.values


@pytest.mark.parametrize("kind", KINDS)
def test_the_law_of_tables(kind: str) -> None:
    """join(f(T1), f(T2)) = f(join(T1, T2)), in whatever order records come."""
    names = [n for n in SAME if n != "windows"]
    if kind in FIXED:
        names += ["shift", "shift-itself", "shift-table", "shift-of-join"]
    for view, records in cases(f"{SEED} law {kind}", -(-CASES // 70), [kind], names, final=False):
        assert isinstance(view.topology, Joined)
        wide = tuple((n, replace(w, grace=10**9, retention=2 * 10**9)) for n, w in view.windows)
        view = replace(view, windows=wide)
        random.Random(len(records)).shuffle(records)
        expected = static_join(view.topology, view, records)
        assert final_rows(view, records) == expected, (view, records)
