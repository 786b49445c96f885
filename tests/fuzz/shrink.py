"""A smaller case that fails, too: fewer records, plainer settings, less topology, lower numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fuzz import topologies
from fuzz.case import Case


def shrunk(case: Case, fails: Callable[[Case], bool], seconds: float = 60.0) -> Case:
    """The smallest case that is found in the time: pass by pass, while any step is accepted."""
    end = time.monotonic() + seconds
    steps = (_settings, _fewer_records, _less_topology, _fewer_batches, _smaller_numbers)
    moved = True
    while moved and time.monotonic() < end:
        moved = False
        for step in steps:
            accepted = True
            while accepted and time.monotonic() < end:
                accepted = False
                for smaller in step(case):
                    if time.monotonic() > end:
                        break
                    if smaller != case and fails(smaller):
                        case, accepted, moved = smaller, True, True
                        break
    return case


def _settings(case: Case) -> Iterator[Case]:
    for change in (
        {"restarts": [], "limits": {}, "hash": "own", "buckets": 1},
        {"restarts": []},
        {"limits": {}},
        {"hash": "own"},
        {"partitions": 0},
        {"buckets": 1},
        {"buckets": min(case.buckets, 2)},
        {"emit": "change"},
    ):
        yield replace(case, **change)  # type: ignore[arg-type]
    for name in case.limits:
        yield replace(case, limits={k: v for k, v in case.limits.items() if k != name})
    for restart in case.restarts:
        yield replace(case, restarts=[n for n in case.restarts if n != restart])


def _fewer_records(case: Case) -> Iterator[Case]:
    """Without half of them, a quarter, …, one."""
    count = len(case.records)
    length = (count + 1) // 2
    while length:
        for start in range(0, count, length):
            yield without(case, start, start + length)
        length //= 2


def without(case: Case, start: int, end: int) -> Case:
    """The case without some records, and without micro-batches that have none then."""
    lengths, place, gone = [], 0, []
    for number, length in enumerate(case.batches):
        kept = sum(not start <= n < end for n in range(place, place + length))
        place += length
        if kept:
            lengths.append(kept)
        else:
            gone.append(number)
    restarts = sorted({n - sum(g < n for g in gone) for n in case.restarts})
    return replace(
        case,
        records=case.records[:start] + case.records[end:],
        batches=lengths,
        restarts=[n for n in restarts if 0 < n < len(lengths)],
    )


def _fewer_batches(case: Case) -> Iterator[Case]:
    """All in one, or two neighbours in one."""
    yield replace(case, batches=[sum(case.batches)] if case.batches else [], restarts=[])
    for n in range(len(case.batches) - 1):
        joined = [*case.batches[:n], case.batches[n] + case.batches[n + 1], *case.batches[n + 2 :]]
        restarts = sorted({r - (r > n) for r in case.restarts} - {0})
        yield replace(case, batches=joined, restarts=[r for r in restarts if r < len(joined)])


def _less_topology(case: Case) -> Iterator[Case]:
    """Of a graph: what a node before the last gives; fewer columns, aggregates, options."""
    if case.family != "graph":
        return
    nodes = case.topology
    for number in range(len(nodes) - 1):
        if nodes[number]["op"] not in ("table", "stream", "window"):
            yield _pruned(case, nodes[: number + 1])
    for number, node in enumerate(nodes):
        for side in topologies.SIDES:  # an operator's place taken by one of its sides
            if side in node and number < len(nodes) - 1:
                yield _pruned(case, _bypassed(nodes, number, node[side]))
    for number, node in enumerate(nodes):
        yield from _plainer(case, number, node)


def _plainer(case: Case, number: int, node: dict[str, Any]) -> Iterator[Case]:
    """With less of one node."""
    for name in ("columns", "aggregates"):
        if len(node.get(name, ())) > 1:
            yield _with(case, number, {name: node[name][:-1]})
    for name in ("kept", "versioned", "spread"):
        if node.get(name):
            yield _with(case, number, {name: None})


def _with(case: Case, number: int, change: dict[str, Any]) -> Case:
    nodes = [*case.topology]
    nodes[number] = nodes[number] | change
    return replace(case, topology=nodes)


def _bypassed(nodes: Sequence[Any], number: int, side: int) -> list[Any]:
    return [node | {s: side for s in topologies.SIDES if node.get(s) == number} for node in nodes]


def _pruned(case: Case, nodes: Sequence[Any]) -> Case:
    """The case with these nodes, as far as the last needs them, and the records they read."""
    place = topologies.places(nodes)
    records = [[place[r[0]], *r[1:]] for r in case.records if r[0] in place]
    lengths = [sum(r[0] in place for r in part) for part in case.cut(case.records)]
    kept = [n for n in lengths if n]
    return replace(
        case,
        topology=topologies.pruned(nodes),
        records=records,
        batches=kept,
        restarts=[n for n in case.restarts if n < len(kept)],
    )


def _smaller_numbers(case: Case) -> Iterator[Case]:
    """Times closer together, codes smaller."""
    for gap in (True, False):
        for n in range(1, len(case.records)):
            step = case.records[n][2] - case.records[n - 1][2]
            if gap and abs(step) > 1:
                less = step - (1 if step > 0 else -1)
                records = [[*r[:2], r[2] - less, *r[3:]] if i >= n else r
                           for i, r in enumerate(case.records)]  # fmt: skip
                yield replace(case, records=records)
    if case.family == "graph":
        for n, record in enumerate(case.records):
            for part in (1, 3):
                for i, code in enumerate(record[part] or ()):
                    if code not in (None, 0):
                        changed = [*record]
                        changed[part] = [*record[part][:i], 0, *record[part][i + 1 :]]
                        records = [*case.records[:n], changed, *case.records[n + 1 :]]
                        yield replace(case, records=records)
