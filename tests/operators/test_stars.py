"""Stars: joins by foreign key of one table with several others, beside the same joins as a chain.

The law: with ``emit="change"`` each record has its own results, the same as in the chain, in the
same order for each key. With ``emit="batch"`` each micro-batch leaves the same rows.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from bench.feeds import pipe_all
from bench.parameters import slow_after

import dovetail as dt
from dovetail import testing
from dovetail.physical import planner
from dovetail.physical.fragment import Emit
from dovetail.physical.specs.star import shared_columns

TEXT, NUMBER = pa.string(), pa.int64()
RUNS = range(-(-int(os.environ.get("DOVETAIL_CASES", "200")) // 5))
SEED = int(os.environ.get("DOVETAIL_SEED", "7"))


KINDS = {
    "text": [pa.string()],
    "number": [pa.int64()],
    "both": [pa.int64(), pa.string()],
    "pair": [pa.string(), pa.string()],
}
"""Types of keys that share columns, or parts of them."""


def tables(kinds: list[str], versioned: list[bool]) -> dict[str, dt.Table]:
    """The fact, with a foreign key to each dimension, and the dimensions. ``kinds``: those of their
    keys. ``versioned``: whether each keeps a history.
    """
    references = {
        f"r{n}_{part}": type_
        for n, kind in enumerate(kinds)
        for part, type_ in enumerate(KINDS[kind])
    }
    columns = pa.schema({"id": pa.int64(), **references, "amount": pa.int64()})
    made = {"facts": testing.table("facts", key="id", schema=columns)}
    for n, kind in enumerate(kinds):
        key = {f"k{n}_{part}": type_ for part, type_ in enumerate(KINDS[kind])}
        schema = pa.schema({**key, f"v{n}": pa.int64()})
        history = "10 seconds" if versioned[n] else None
        made[f"d{n}"] = testing.table(f"d{n}", key=[*key], schema=schema, versioned=history)
    return made


def joined(
    inputs: dict[str, dt.Table], kinds: list[str], hows: list[Any], *, twice: bool
) -> dt.Table:
    """All dimensions; if ``twice``, the first one a second time in place of the last."""
    result, columns = inputs["facts"], [*inputs["facts"].plan.values.names]
    for n, how in enumerate(hows):
        again = twice and n == len(hows) - 1
        value = "v0" if again else f"v{n}"
        select = {name: f"left.{name}" for name in columns} | {f"w{n}": f"right.{value}"}
        right = 0 if again else n
        on = {f"r{n}_{part}": f"k{right}_{part}" for part in range(len(KINDS[kinds[n]]))}
        result = result.join(inputs[f"d{right}"], on=on, how=how, select=select)
        columns.append(f"w{n}")
    return result


def record(
    choose: random.Random, inputs: dict[str, dt.Table], kinds: list[str]
) -> tuple[str, dict[str, Any], bool]:
    def key(name: str, kind: str, *, null: bool) -> dict[str, Any]:
        values = [0, 1, 2, *([None] if null else [])]
        drawn = (choose.choice(values) for _ in KINDS[kind])
        return {
            f"{name}_{part}": value if value is None or type_ == pa.int64() else "abc"[value]
            for part, (type_, value) in enumerate(zip(KINDS[kind], drawn, strict=True))
        }

    name = choose.choice(["facts", *inputs])
    deleted = choose.random() < 0.2
    if name == "facts":
        row: dict[str, Any] = {"id": choose.randrange(4), "amount": choose.randrange(3)}
        for n, kind in enumerate(kinds):
            row |= key(f"r{n}", kind, null=True)
        return name, row, deleted
    n = int(name[1:])
    return name, {**key(f"k{n}", kinds[n], null=False), f"v{n}": choose.randrange(3)}, deleted


class Pair:
    """The same joins in two drivers: as a star and as a chain."""

    def __init__(self, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.choose = random.Random(f"{SEED} {number}")
        dimensions = self.choose.randint(2, 4)
        hows = [self.choose.choice(["inner", "left"]) for _ in range(dimensions)]
        twice = self.choose.random() < 0.3
        self.kinds = [self.choose.choice([*KINDS]) for _ in range(dimensions)]
        if twice:
            self.kinds[-1] = self.kinds[0]
        self.inputs = tables(self.kinds, [self.choose.random() < 0.2 for _ in self.kinds])
        self.emit: Emit = "batch" if number % 3 == 2 else "change"
        topology = joined(self.inputs, self.kinds, hows, twice=twice)
        buckets = self.choose.choice([1, 3])
        self.star = testing.Driver(topology, emit=self.emit, buckets=buckets)
        assert len(self.star._root.plan.stages) == 3
        with monkeypatch.context() as context:
            context.setattr(planner, "star_of", lambda *_: None)
            self.chain = testing.Driver(topology, emit=self.emit, buckets=buckets)
        assert len(self.chain._root.plan.stages) == 3 * dimensions
        self.topology, self.time = topology, 0

    def batch(self) -> tuple[list[testing.Change], list[testing.Change]]:
        count = self.choose.randint(1, 12)
        records = [record(self.choose, self.inputs, self.kinds) for _ in range(count)]
        outcomes = []
        times = [self.time + self.choose.randint(-3, 5) for _ in records]
        self.time = max(self.time, *times)
        for driver in (self.star, self.chain):
            with driver.batch() as changes:
                names = {source.name for source in driver._sources}
                feeds = [
                    (name, row, 100 + time, deleted)
                    for (name, row, deleted), time in zip(records, times, strict=True)
                    if name in names
                ]
                pipe_all(driver, self.inputs, feeds)
            outcomes.append(changes)
        return outcomes[0], outcomes[1]


def by_key(changes: list[testing.Change]) -> dict[Any, list[Any]]:
    kept: dict[Any, list[Any]] = defaultdict(list)
    for change in changes:
        kept[tuple(change.key.values())].append((change.values, change.timestamp))
    return kept


@pytest.mark.parametrize("number", slow_after(6, RUNS))
def test_a_star_emits_what_its_joins_emit_one_after_the_other(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(number, monkeypatch)
    rows: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
    for _ in range(12):
        star, chain = pair.batch()
        if pair.emit == "change":
            assert by_key(star) == by_key(chain)
        for kept, changes in zip(rows, (star, chain), strict=True):
            for change in changes:
                kept[tuple(change.key.values())] = change.values
        assert {k: v for k, v in rows[0].items() if v is not None} == {
            k: v for k, v in rows[1].items() if v is not None
        }


@pytest.mark.parametrize(
    ("keys", "types", "places"),
    [
        ([[TEXT], [TEXT]], [TEXT], ((0,), (0,))),
        ([[TEXT], [TEXT, NUMBER], [NUMBER]], [TEXT, NUMBER], ((0,), (0, 1), (1,))),
        ([[NUMBER], [TEXT, TEXT]], [NUMBER, TEXT, TEXT], ((0,), (1, 2))),
        ([[NUMBER, TEXT], [TEXT, NUMBER]], [NUMBER, TEXT], ((0, 1), (1, 0))),
    ],
)
def test_keys_share_columns_of_their_types(keys: Any, types: Any, places: Any) -> None:
    assert shared_columns(keys) == (types, places)


@pytest.mark.parametrize("type_", [pa.float64(), pa.list_(pa.float64())])
def test_a_foreign_key_whose_bits_change_stays_the_same(type_: pa.DataType) -> None:
    def key(value: float) -> Any:
        return [value] if pa.types.is_list(type_) else value

    facts = testing.table("facts", key="id", schema={"id": NUMBER, "a": TEXT, "b": type_})
    names = testing.table("names", key="a", schema={"a": TEXT, "name": TEXT})
    rates = testing.table("rates", key="b", schema={"b": type_, "rate": NUMBER})
    driver = testing.Driver(facts.join(names, on="a").join(rates, on="b"))
    driver.pipe(names, {"a": "x", "name": "X"}, timestamp=1)
    driver.pipe(facts, {"id": 1, "a": "x", "b": key(0.0)}, timestamp=2)
    assert driver.pipe(facts, {"id": 1, "a": "x", "b": key(-0.0)}, timestamp=3) == []
