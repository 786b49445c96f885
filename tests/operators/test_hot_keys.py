"""Many records of one key in a micro-batch: what is made of them at a time stays small, and what is
said does not depend on how much that is.

Families: the same whatever is made at a time (all aggregates, against one record a micro-batch);
windows that slide (how many pairs of a record and a window are made, and at a time); sessions (how
often accumulators are made); two streams (how many pairs of records are made at a time).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import chain, pairwise
from types import ModuleType
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bench.parameters import slow_after

import dovetail as dt
import dovetail.laws.joins.stream_join
import dovetail.laws.windows.sliding
import dovetail.operators.joins.stream_join_side
from dovetail import testing
from dovetail.aggregates.sums import Count
from dovetail.physical.fragment import Emit

SCHEMA = {"k": pa.string(), "v": pa.int64(), "f": pa.float64(), "d": pa.decimal128(9, 2)}
Record: TypeAlias = "tuple[str, int, dict[str, Any]]"
"""Key, time, values."""
Emitted: TypeAlias = "tuple[Any, str | None, int]"
"""Key, values, None for a tombstone, time."""

_text = dt.aggregate(
    init=lambda n: {"text": pa.array([""] * n)},
    add=lambda _, v: {"text": v.cast(pa.string()).fill_null("-")},
    merge=lambda a, b: {"text": pc.binary_join_element_wise(a["text"], b["text"], "")},
    state={"text": pa.string()},
    returns=pa.string(),
)
AGGREGATES: dict[str, Callable[[], dict[str, Any]]] = {
    "counts": lambda: {"n": dt.count(), "m": dt.count("f")},
    "sums": lambda: {"a": dt.sum("v"), "b": dt.sum("f"), "c": dt.sum("d"), "m": dt.mean("f")},
    "extremes": lambda: {"low": dt.min("f"), "high": dt.max("d")},
    "ends": lambda: {
        "first": dt.first("v"),
        "last": dt.last("v"),
        "some": dt.first("v", ignore_nulls=True),
        "latest": dt.last("v", ignore_nulls=True),
    },
    "collections": lambda: {"all": dt.collect_list("v"), "set": dt.collect_set("d")},
    "first few": lambda: {
        "top": dt.top(3, ["d", "v"], by="f"),
        "lowest": dt.top(2, "v", by="d", descending=False),
        "distinct": dt.count_distinct("f"),
    },
    "sketch": lambda: {"about": dt.approx_count_distinct("v")},
    "of one's own": lambda: {"text": _text("v")},
}
WINDOWS = {
    "sliding": lambda: dt.windows.sliding("6 us", grace="4 us"),
    "sliding far": lambda: dt.windows.sliding("40 us", grace="40 us"),
    "session": lambda: dt.windows.session("2 us", grace="1 us"),
    "session far": lambda: dt.windows.session("3 us", grace="40 us"),
}


def drawn(random_: random.Random, count: int, keys: str) -> list[Record]:
    """Some late, some at one time, some values null."""
    now, made = 0, []
    for _ in range(count):
        now += random_.choice([0, 0, 1, 1, 2, 4])
        late = random_.choice([0, 0, 0, 1, 2, 5, 9])
        value = random_.choice([None, *range(-3, 4)])
        values = {
            "v": value,
            "f": None if value is None else random_.choice([0.1, -0.0, 0.0, 1e300, float(value)]),
            "d": None if value is None else Decimal(value * 7).scaleb(-2),
        }
        made.append((random_.choice(keys), max(now - late, 0), values))
    return made


def emitted(
    windows: Any,
    aggregates: Any,
    batches: Sequence[Sequence[Record]],
    emit: Emit = "change",
    sizes: list[int] | None = None,
) -> list[list[Emitted]]:
    """What each micro-batch emits; ``sizes``: of the tables in which it comes, instead."""
    source = testing.stream("s", key="k", schema=SCHEMA)
    driver = testing.Driver(
        source.group_by("k").window(windows).agg(**aggregates).to_table(), emit=emit
    )
    answers: list[list[Emitted]] = []
    position = 0
    for batch in batches:
        with driver.batch() as changes:
            rows = [{"k": key, **values} for key, _, values in batch]
            driver.pipe(source, rows, timestamp=[time for _, time, _ in batch])
            if sizes is not None:
                sizes += (len(rows) for _, rows in driver._root.run_batch(0, 0))
        end = position + len(changes)
        assert [change.position for change in changes] == [*range(position, end)]
        position = end
        answers.append(
            [
                (
                    tuple(change.key.values()),
                    None if change.values is None else repr([*change.values.values()]),
                    change.timestamp_us,
                )
                for change in changes
            ]
        )
    return answers


def net(batches: Sequence[Sequence[Emitted]]) -> Iterator[list[Emitted]]:
    """The last change of each key in a micro-batch, where it changes something."""
    rows: dict[Any, str | None] = {}
    for batch in batches:
        last: dict[Any, Emitted] = {}
        for change in batch:
            last.pop(change[0], None)
            last[change[0]] = change
        yield [change for change in last.values() if change[1] != rows.get(change[0])]
        rows |= {key: values for key, values, _ in last.values()}


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("aggregates", slow_after(2, AGGREGATES))
def test_what_is_made_at_a_time_changes_nothing(
    windows: str, aggregates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_ = random.Random(f"{windows} {aggregates}")
    for keys, cuts in (("a", [0, 24]), ("ab", [0, 9, 24])):
        records = drawn(random_, 24, keys)
        given = WINDOWS[windows](), AGGREGATES[aggregates]()
        one_by_one = emitted(*given, [[record] for record in records])
        batches = [records[a:b] for a, b in pairwise(cuts)]
        expected = [[*chain(*one_by_one[a:b])] for a, b in pairwise(cuts)]
        for limit in (1, 10**6):
            monkeypatch.setattr(dovetail.laws.windows.sliding, "_PAIRS_MAX", limit)
            assert emitted(*given, batches) == expected
            assert ordered(windows, emitted(*given, batches, "batch")) == ordered(
                windows, [*net(expected)]
            )


def ordered(windows: str, batches: Sequence[Sequence[Emitted]]) -> list[list[Emitted]]:
    """Of sessions by key: with ``emit="batch"`` a key's tombstones come first."""
    if windows.startswith("session"):
        return [sorted(batch, key=repr) for batch in batches]
    return [*map(list, batches)]


def expanded(monkeypatch: pytest.MonkeyPatch, kernel: ModuleType) -> list[int]:
    """How many pairs a kernel makes, each time."""
    made: list[int] = []
    expand = kernel.expand_ranges

    def counted(first: Any, end: Any) -> Any:
        which, member = expand(first, end)
        made.append(len(member))
        return which, member

    monkeypatch.setattr(kernel, "expand_ranges", counted)
    return made


def pairs(monkeypatch: pytest.MonkeyPatch, records: int, emit: Emit, aggregates: str) -> list[int]:
    """How many pairs of a record and a window are made, each time."""
    made = expanded(monkeypatch, dovetail.laws.windows.sliding)
    times = random.Random(3).sample(range(records), records)
    batch = [("a", time, {"v": 1}) for time in times]
    changes = emitted(
        dt.windows.sliding("1 s", grace="1 s"), AGGREGATES[aggregates](), [batch], emit
    )
    assert len(changes[0]) >= records
    monkeypatch.undo()
    return made


@pytest.mark.parametrize("aggregates", ["counts", "sums", "extremes", "ends", "sketch"])
def test_a_batch_of_one_key_is_not_squared(
    aggregates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``emit="batch"`` two windows are emitted for each record, not all pairs."""
    assert sum(pairs(monkeypatch, 600, "batch", aggregates)) <= 2 * 2 * 600


@pytest.mark.parametrize("aggregates", ["counts", "of one's own"])
@pytest.mark.parametrize("emit", ["change", "batch"])
def test_pairs_are_made_some_at_a_time(
    emit: Emit, aggregates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dovetail.laws.windows.sliding, "_PAIRS_MAX", 10**3, raising=False)
    # No fewer than four times the windows, and what one record makes.
    assert max(pairs(monkeypatch, 150, emit, aggregates), default=0) <= (4 + 1) * 2 * 150


def test_what_slides_is_emitted_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dovetail.laws.windows.sliding, "_PAIRS_MAX", 10**3, raising=False)
    sizes: list[int] = []
    batch = [("a", time, {"v": 1}) for time in range(300)]
    emitted(dt.windows.sliding("1 s", grace="1 s"), {"n": dt.count()}, [batch], sizes=sizes)
    # Four times as many as there are windows.
    assert max(sizes) <= 4 * 2 * 300
    assert sum(sizes) == 300 * 301 // 2


ORDERS: dict[str, Callable[[int], list[int]]] = {
    "in order": lambda n: [*range(n)],
    "backwards": lambda n: [*reversed(range(n))],
    "every second one first": lambda n: [*range(0, n, 2), *range(1, n, 2)],
    "at random": lambda n: random.Random(3).sample(range(n), n),
}


@pytest.mark.parametrize("grace", ["1 s", "2 us"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("emit", ["change", "batch"])
def test_sessions_are_merged_together(
    emit: Emit, order: str, grace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are of one key, and in whatever order its records come."""
    calls = 0
    for name in ("scan", "fold", "merged"):
        method = getattr(Count, name)

        def counted(*given: Any, method: Any = method) -> Any:
            nonlocal calls
            calls += 1
            return method(*given)

        monkeypatch.setattr(Count, name, counted)
    batch = [("a", time, {"v": 1}) for time in ORDERS[order](256)]
    emitted(dt.windows.session("1 us", grace=grace), {"n": dt.count()}, [batch], emit)
    assert calls <= 6 * 8 + 6


JOINS: dict[str, dict[str, Any]] = {
    "inner": {"how": "inner"},
    "left": {"how": "left"},
    "outer": {"how": "outer"},
    "eager": {"how": "outer", "unmatched": "eager"},
    "retract": {"how": "outer", "unmatched": "retract"},
    "itself": {"how": "left"},
}


def joined(
    name: str, within: Any, batches: Sequence[Sequence[Record]], sizes: list[int] | None = None
) -> list[list[Any]]:
    """What each micro-batch emits; ``sizes``: of the tables in which it comes, instead."""
    left, right = (testing.stream(side, key="k", schema=SCHEMA) for side in "lr")
    select = {"a": "left.v", "b": "right.v"}
    other = left if name == "itself" else right
    driver = testing.Driver(left.join(other, within=within, select=select, **JOINS[name]))
    answers = []
    for batch in batches:
        with driver.batch() as changes:
            for number, (key, time, values) in enumerate(batch):
                side = other if number % 3 == 2 else left
                driver.pipe(side, {"k": key, **values}, timestamp=time)
            if sizes is not None:
                sizes += (len(rows) for _, rows in driver._root.run_batch(0, 0))
        answers.append([(c.key, c.values, c.timestamp_us, c.change, c.position) for c in changes])
    return answers


@pytest.mark.parametrize("name", JOINS)
def test_pairs_made_at_a_time_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        records = drawn(random.Random(f"{name} {seed}"), 60, "ab"[: seed + 1])
        within = dt.within(before="4 us", after="3 us", grace="1 us")
        batches = [records[:45], records[45:]]
        expected = joined(name, within, batches)
        assert len(expected[0]) > 15
        monkeypatch.setattr(dovetail.operators.joins.stream_join_side, "_PAIRS_MAX", 5)
        assert joined(name, within, batches) == expected
        monkeypatch.undo()


@pytest.mark.parametrize("name", JOINS)
def test_pairs_of_records_are_made_some_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dovetail.operators.joins.stream_join_side, "_PAIRS_MAX", 500, raising=False)
    sizes: list[int] = []
    made = expanded(monkeypatch, dovetail.laws.joins.stream_join)
    batch = [("a", time, {"v": time}) for time in range(300)]
    joined(name, dt.within(before="1 s", after="1 s"), [batch], sizes)
    # No fewer than one record joins.
    assert max(made) <= 500
    assert max(sizes) <= 500
    assert sum(sizes) >= 200 * 100
