"""Delta joins: two tables in stores, changelogs that lag, tasks that come and go
(``bench.delta_worlds``). When the input rests, the result is the join of both tables.
"""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

from bench import delta_worlds
from bench.delta_worlds import SHAPES, Tasks, World
from bench.forced import forced

import dovetail as dt
from dovetail.operators.joins import delta_join
from fuzz import changelogs
from fuzz.case import Case


def drawn(random_: random.Random, name: str) -> Case:
    """A random case. It has no records: stores change while they are asked, so that a seed says
    what happens.
    """
    shape = random_.choice([*SHAPES])
    caches = [random_.choice([0, 1, 4, 10_000]) for _ in range(2)]
    topology = {
        "shape": shape,
        "how": random_.choice(SHAPES[shape].hows),
        "caches": caches,
        "keys_a_query": random_.choice([1, 2, 500]),
        "tasks": random_.choice([1, 2, 3]),
        "seed": random_.randrange(10**9),
    }
    found = changelogs.settings(random_, 1, 1)
    return Case(name, topology, [], [], hash=found["hash"])


def topology_of(case: Case) -> tuple[Any, World]:
    """The join, and the world whose tables it joins."""
    shape, how = SHAPES[case.topology["shape"]], case.topology["how"]
    world = World(shape.left(), shape.right())
    left_cache, right_cache = case.topology["caches"]
    option = dt.delta_join(strategy="force", left_cache=left_cache, right_cache=right_cache)
    table = world.table("left").join(
        world.table("right"), on=dict(shape.on), how=how, delta_join=option
    )
    return table, world


def difference(case: Case) -> str | None:
    """What is wrong with what dovetail makes of a case, None for nothing."""
    shape, how = SHAPES[case.topology["shape"]], case.topology["how"]
    random_ = random.Random(case.topology["seed"])
    keys_a_query = case.topology["keys_a_query"]
    with forced(case.hash, {}), mock.patch.object(delta_join, "_KEYS_A_QUERY", keys_a_query):
        table, world = topology_of(case)
        tasks = Tasks(table, random_, tasks=case.topology["tasks"])
        delta_worlds.play(world, tasks, random_)
        expected = delta_worlds.expected(world, shape, how)
        if tasks.table != expected:
            return f"at rest {tasks.table}, not {expected}"
        changes = tasks.run({})
    return f"an empty micro-batch gives {changes}" if changes else None
