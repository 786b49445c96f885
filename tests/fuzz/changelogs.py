"""Random changelogs: what comes, in which order, cut how, and under which settings."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

START = 1_000_000
"""The first time, far enough from zero for every window."""


@dataclass(frozen=True)
class Clock:
    """How time goes on from record to record, and how late records are."""

    steps: list[int]
    lates: list[int]

    def times(self, random_: random.Random, count: int) -> list[int]:
        """The times of so many records."""
        now, found = START, []
        for _ in range(count):
            now += random_.choice(self.steps)
            found.append(now - random_.choice(self.lates))
        return found


def clock(random_: random.Random) -> Clock:
    """Ties, bursts, idle times, jumps; on time, a little late, very late."""
    steps = [[0], [1], [0, 0, 1], [0, 1, 2, 5, 11], [0] * 20 + [500], [1, 3, 40, 10**5]]
    lates = [[0], [0], [0, 0, 0, 1, 3], [0, 2, 6, 21, 60], [*range(30)], [0] * 9 + [10**4]]
    return Clock(random_.choice(steps), random_.choice(lates))


@dataclass(frozen=True)
class Mix:
    """How often a record is deleted, has a null for a key or a value, repeats the one before."""

    deleted: float
    null_key: float
    null: float
    repeated: float


def mix(random_: random.Random) -> Mix:
    """Some mixture."""
    return Mix(
        random_.choice([0.0, 0.1, 0.3, 0.6]),
        random_.choice([0.0, 0.0, 0.1]),
        random_.choice([0.0, 0.1, 0.4]),
        random_.choice([0.0, 0.0, 0.1, 0.5]),
    )


BUCKETS = [1, 1, 2, 3, 8, 64]


def size(random_: random.Random, largest: int) -> int:
    """How many records: mostly few, now and then many."""
    limit = random_.choices([8, 40, 400, 4000, 40000], [20, 40, 15, 8, 17])[0]
    limit = min(limit, largest)
    return random_.randint(max(1, limit // 4), limit)


def batches(random_: random.Random, count: int) -> list[int]:
    """The lengths of the micro-batches: one by one, by a size, at random, all at once."""
    largest = max(1, count)
    kind = random_.choice(["one", "few", "random", "random", "all"])
    if count > 25 and kind == "one":
        kind = "random"
    floor = 1 + count // 15
    length: Callable[[], int] = {
        "one": lambda: 1,
        "few": lambda: max(floor, 4),
        "random": lambda: random_.randint(floor, max(floor, largest // 3)),
        "all": lambda: largest,
    }[kind]
    found = []
    while count:
        found.append(min(count, length()))
        count -= found[-1]
    return found


def small_batches(random_: random.Random, count: int) -> list[int]:
    """The lengths of micro-batches of a few records, and a larger one to begin with."""
    found = [max(1, count // 2)]
    while (left := count - sum(found)) > 0:
        found.append(min(left, random_.randint(1, max(3, count // 15))))
    return found


def settings(random_: random.Random, batches_: int, count: int, stages: int = 1) -> dict[str, Any]:
    """Buckets, restarts, hashes and forced sizes of a run, as many as a short time allows."""
    often = random_.choice([0.0, 0.0, 0.3, 1.0])
    if batches_ * stages > 20:
        often *= 0.2
    hashes = ["own", "own", "own", "one", "few", "low", "high"]
    found: dict[str, Any] = {
        "buckets": random_.choice([n for n in BUCKETS if n * batches_ * stages <= 150 or n == 1]),
        "restarts": [n for n in range(1, batches_) if random_.random() < often],
        "hash": random_.choice(hashes) if count <= 400 else "own",
    }
    if random_.random() < 0.6:
        large = count > 400
        found["limits"] = {
            "fanout": random_.choice([2, 2, 3, 8]),
            "segment_bytes": random_.choice([1 << 16] if large else [1, 64, 300, 4 << 20]),
            "compaction_bytes": random_.choice([0, 64, 1000]),
            "open_segments": random_.choice([1, 4, 4096]),
            "part": random_.choice([2, 3, 1024]),
            "flush_bytes": random_.choice([1 << 16] if large else [1, 200, 32 << 20]),
            "slice_bytes": random_.choice([1 << 16] if large else [1, 500, 5_000, 128 << 20]),
            "pairs": random_.choice([1 << 16] if large else [1, 10, 1 << 18]),
            "window_pairs": random_.choice([1, 1 << 18]),
        }
    return found
