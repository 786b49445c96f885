"""Random aggregates and windowed tables: the driver against the definition (``window_model``), and
the law of table joins.

``DOVETAIL_CASES`` says how many cases to draw; ``DOVETAIL_SEED`` draws others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from answers import by_key, flat
from naive import Record
from runners import cut, one_hash
from window_cases import FIXED, KINDS, PLACED, SAME, cases
from window_gathering import Cells, Change, Key
from window_model import (
    Joined,
    View,
    accumulate,
    each_batch,
    each_record,
    has_windows,
    in_key_order,
    inputs_of,
    seen,
)
from window_runners import Answers, Case, driver

import dovetail.runtime.gather
import dovetail.runtime.sessions
import dovetail.runtime.sliding
import dovetail.runtime.steps

CASES = int(os.environ.get("DOVETAIL_CASES", "200"))
SEED = int(os.environ.get("DOVETAIL_SEED", "77"))

FAMILIES: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "groups": (("",), ["G", "H"]),
    "fixed": (FIXED, [*SAME]),
    "placed": (FIXED, [*PLACED]),
    "sliding": (("sliding",), [*SAME]),
    "session": (("session",), [*SAME]),
}
RUNNERS: dict[str, Callable[..., Answers]] = {
    "driver": driver,
    "restarted": partial(driver, restart=True),
    "colliding": partial(driver, key_hash=one_hash),
    "buckets": partial(driver, buckets=3, restart=True),
}


def drawn(family: str, name: str, emit: str) -> list[tuple[Case, list[list[Record]]]]:
    """Cases with their records cut; one by one where there are several buckets, each of which knows
    its own time within a batch.
    """
    kinds, names = FAMILIES[family]
    if emit == "batch":
        names = [n for n in names if not n.startswith("stream")]
    random_ = random.Random(f"{SEED} {family} {name} {emit}")
    found = cases(f"{SEED} {family} {name} {emit}", -(-CASES // 40), kinds, names)
    sizes = [1] if name == "buckets" else [1, 3, 7, 10**6]
    return [((view, rs), cut(rs, random_.choice(sizes))) for view, rs in found]


@pytest.fixture
def _hashes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys have one hash where they collide, between steps, too."""
    if name == "colliding":
        for module in ("steps", "gather", "sessions"):
            monkeypatch.setattr(getattr(dovetail.runtime, module), "stable_hash", one_hash)


@pytest.mark.usefixtures("_hashes")
@pytest.mark.parametrize("name", RUNNERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_single_changes(family: str, name: str) -> None:
    for (view, records), batches in drawn(family, name, "change"):
        changes = each_record(view, records)
        expected = [flat(seen(next(changes)) for _ in batch) for batch in batches]
        answers = RUNNERS[name](view, batches)
        if name == "buckets":
            assert [*map(by_key, answers)] == [*map(by_key, expected)], (view, batches)
        else:
            assert answers == expected, (view, batches)


@pytest.mark.usefixtures("_hashes")
@pytest.mark.parametrize("name", RUNNERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_batches(family: str, name: str) -> None:
    for (view, _), batches in drawn(family, name, "batch"):
        answers = RUNNERS[name](view, batches, emit="batch")
        if view.final:
            changes = each_record(view, flat(batches))
            expected = [flat(seen(next(changes)) for _ in batch) for batch in batches]
        else:
            expected = [seen(part) for part in each_batch(view, batches)]
        assert [*map(in_key_order, answers)] == [*map(in_key_order, expected)], (view, batches)


# The law: after all input, the table is the join of the sides' tables.


def final_rows(view: View, records: list[Record]) -> dict[Key, Any]:
    """The rows that the driver's changes leave, by what they show."""
    rows: dict[Key, Any] = {}
    for result in flat(driver(view, cut(records, 5))):
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
    for view, records in cases(f"{SEED} law {kind}", -(-CASES // 40), [kind], names, final=False):
        assert isinstance(view.topology, Joined)
        wide = tuple((n, replace(w, grace=10**9, retention=2 * 10**9)) for n, w in view.windows)
        view = replace(view, windows=wide)
        random.Random(len(records)).shuffle(records)
        expected = static_join(view.topology, view, records)
        assert final_rows(view, records) == expected, (view, records)
