"""Random topologies over random records, tables used twice among them, against the definition.

The laws: each record's results are the definition's; cutting changes nothing; and
f(join(T1, T2)) = join(f(T1), f(T2)), where f adds a changelog up to the table it describes.
"""

from __future__ import annotations

import os
import random
from functools import partial
from itertools import count
from typing import Any

import pytest
from bench import runners
from bench.families import tables as family
from bench.models.tables import Topology, each_batch, each_record, names, seen, static_join
from bench.records import Record, add_up, cut, flat, one_hash

kernel = partial(runners.kernel, family)
SEEDS = range(int(os.environ.get("DOVETAIL_CASES", "30")))


def draw_topology(random_: random.Random, tables: int) -> Topology:
    if tables == 1:
        return random_.choice("ABC")
    left = random_.randint(1, tables - 1)
    how = random_.choice(["inner", "left", "outer"])
    return draw_topology(random_, left), how, draw_topology(random_, tables - left)


def draw(seed: int) -> tuple[Topology, list[list[Record]]]:
    """A topology and its records, cut at random."""
    random_ = random.Random(seed)
    topology = draw_topology(random_, random_.randint(1, 5))
    known = sorted(set(names(topology)))
    serial = count()
    records = []
    for _ in range(random_.randint(1, 40)):
        value = random_.choice([None, "", f"v{next(serial)}"])
        key, time = random_.choice("xyz"), random_.randint(-9, 9)
        records.append(Record(random_.choice(known), key, time, value, random_.random() < 0.35))
    batches = []
    while records:
        size = random_.randint(1, 12)
        batches.append(records[:size])
        records = records[size:]
    return topology, batches


@pytest.mark.parametrize("key_hash", [None, one_hash], ids=["hashed", "colliding"])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_record_gives_its_own_results(seed: int, key_hash: Any) -> None:
    topology, batches = draw(seed)
    options = {} if key_hash is None else {"key_hash": key_hash}
    expected = [seen(changes) for changes in each_record(topology, flat(batches))]
    assert flat(kernel(topology, batches, **options)) == flat(expected)
    assert flat(kernel(topology, [flat(batches)], **options)) == flat(expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_batch_gives_its_net_results(seed: int) -> None:
    topology, batches = draw(seed)
    expected = [seen(changes) for changes in each_batch(topology, batches)]
    assert kernel(topology, batches, emit="batch") == expected
    assert kernel(topology, batches, emit="batch", key_hash=one_hash, restart=True) == expected


@pytest.mark.parametrize("emit", ["change", "batch"])
@pytest.mark.parametrize("seed", SEEDS)
def test_adding_up_and_joining_commute(seed: int, emit: Any) -> None:
    """After every micro-batch, not only at the end: each commit is a consistent snapshot."""
    topology, batches = draw(seed)
    made: dict[Any, Any] = {}
    for number, results in enumerate(kernel(topology, batches, emit=emit), 1):
        add_up(made, results)
        assert made == static_join(topology, flat(batches[:number]))
    assert number == len(batches)


def test_many_keys_in_small_batches() -> None:
    """Enough batches for several tiers of compaction."""
    random_ = random.Random(1)
    records = [
        Record(
            random_.choice("AB"),
            f"k{random_.randint(0, 60)}",
            i,
            f"v{i}",
            random_.random() < 0.3,
        )
        for i in range(700)
    ]
    topology = ("A", "outer", "B")
    expected = flat(seen(changes) for changes in each_record(topology, records))
    assert flat(kernel(topology, cut(records, 9))) == expected
    assert flat(kernel(topology, cut(records, 9), restart=True, key_hash=one_hash)) == expected
