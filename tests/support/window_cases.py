"""Random views of ``bench.models.windows`` and random records for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from bench.models.gathering import Windows
from bench.models.windows import GATHERED, WINDOWED, Joined, Topology, View, has_windows, inputs_of
from bench.records import Record

KINDS = ("tumbling", "hopping", "sliding", "session")
FIXED = KINDS[:2]

SAME: dict[str, Topology] = {
    "windows": "L",
    "inner": Joined("L", "inner", "R"),
    "left": Joined("L", "left", "R"),
    "outer": Joined("L", "outer", "R"),
    "itself": Joined("L", "outer", "L"),
    "table": Joined("L", "left", "T"),
    "table-inner": Joined(Joined("L", "left", "T"), "inner", "R"),
    "outer-table": Joined(Joined("L", "outer", "R"), "left", "T"),
    "left-of-outer": Joined("L", "left", Joined("R", "outer", "L")),
}
"""Those that any windows allow."""

PLACED: dict[str, Topology] = {
    "stream": Joined("S", "left", "L"),
    "row": Joined("U", "left", "L"),
    "stream-of-join": Joined("S", "left", Joined("L", "outer", "R")),
    "row-of-join": Joined("U", "left", Joined("L", "left", "T")),
    "shift": Joined("L", "left", "R", 1),
    "shift-itself": Joined("L", "left", "L", 1),
    "shift-table": Joined(Joined("L", "left", "R", 1), "left", "T"),
    "shift-of-join": Joined(Joined("L", "inner", "R"), "left", "L", 1),
}
"""Those that need fixed windows; a shift of 1 is replaced by a random one."""


def views(
    random_: random.Random,
    kind: str,
    name: str,
    *,
    final: bool | None = None,
    shows: str | None = None,
) -> View:
    """A random view of this topology; ``kind`` is ``""`` where there are no windows."""
    if shows is None:
        shows = random_.choice(["", "top", "lowest", "distinct"])
        shows += f" {random_.choice([1, 2, 2, 3, 9])}" * (shows in ("top", "lowest"))
    if not kind:
        return View(name, shows=shows)
    advance = random_.choice([1, 2, 5])
    size = {"tumbling": advance, "hopping": advance * random_.randint(1, 4)}.get(
        kind, random_.choice([1, 3, 6])
    )
    topology = (SAME | PLACED)[name]
    shift = random_.choice([n for n in range(-3, 4) if n]) * advance
    topology = _shifted(topology, shift)
    away = sum(map(abs, _shifts(topology)))
    grace = max(0, shift) if away else 0
    made = []
    for side in dict.fromkeys(inputs_of(topology)):
        if side in WINDOWED:
            own = random_.choice([0, 0, 1, 4, 20])
            kept = size + own + grace + random_.choice([0, 0, 3, 50])
            made.append((side, Windows(kind, size, advance * (kind in FIXED), own, kept)))
    # Each side keeps its windows for as long as the other asks for them.
    if len(made) > 1 or away:
        kept = size + max(w.grace for _, w in made) + 2 * away + random_.choice([0, 0, 7])
        made = [(s, Windows(w.kind, w.size, w.advance, w.grace, kept)) for s, w in made]
    if final is None:
        final = random_.random() < 0.4
    shown = shows if isinstance(topology, str) else ""
    return View(topology, tuple(made), final and has_windows(topology), shown)


def _shifted(topology: Topology, shift: int) -> Topology:
    if isinstance(topology, str):
        return topology
    left, right = _shifted(topology.left, shift), _shifted(topology.right, shift)
    return Joined(left, topology.how, right, topology.shift and shift)


def _shifts(topology: Topology) -> list[int]:
    if isinstance(topology, str):
        return []
    return [topology.shift, *_shifts(topology.left), *_shifts(topology.right)]


def records(random_: random.Random, view: View) -> list[Record]:
    """Few keys, times that repeat, fall back and jump; values are distinct letters; a few
    where not all are shown.
    """
    keys = random_.choice(["k", "ab", ["", "a", "ab", "é"]])
    windows = [w for _, w in view.windows]
    size = max([w.size for w in windows], default=5)
    advance = max([w.advance for w in windows], default=1) or 1
    steps = random_.choice([[0, 1], [0, 0, 1, size], [0, size, 3 * size], [1, 10**6]])
    backs = random_.choice([[0], [0, 0, 1, size], [0, 1, size, 2 * size, 5 * size]])
    nulls, null_keys = random_.choice([0.0, 0.2]), random_.choice([0.0, 0.1])
    deletes = random_.choice([0.0, 0.2, 0.5])
    letters = iter("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    now = random_.choice([0, 0, 100, -7])
    found = []
    for _ in range(random_.randint(1, 35)):
        now += random_.choice(steps)
        name = random_.choice(inputs_of(view.topology))
        key = None if random_.random() < null_keys else random_.choice(keys)
        value: Any = next(letters)
        if view.shows:
            value = random_.choice("123") + random_.choice("ab")
        if random_.random() < nulls:
            value = None
        if name in GATHERED:
            value = (random_.choice(["x", "y", None]), value)
        elif name in "SU":
            start = (now - random_.choice([0, 0, size, 9 * size])) // advance * advance
            value = (None if random_.random() < 0.1 else start, value)
        deleted = random_.random() < (deletes if name in "GTU" else nulls)
        if name == "H":
            deleted = False
        time = now - random_.choice(backs)
        found.append(Record(name, key, time, None if deleted else value, deleted))
    return found


def cases(
    seed: str, count: int, kinds: Sequence[str], names: Sequence[str], *, final: bool | None = None
) -> list[tuple[View, list[Record]]]:
    """Random cases of each of these."""
    random_ = random.Random(seed)
    found = []
    for _ in range(count):
        view = views(random_, random_.choice(kinds), random_.choice(names), final=final)
        found.append((view, records(random_, view)))
    return found
