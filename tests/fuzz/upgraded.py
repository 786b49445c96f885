"""The law of upgrades: a query that goes on with another one's state emits of each key what one
does that has run its topology from the beginning; and its table is there from the first commit on.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

import dovetail as dt
from fuzz import spark, topologies
from fuzz.case import Case
from fuzz.runs import Change, inputs
from fuzz.sessions import session
from fuzz.topologies import Node

CHANGES = ("same", "buckets", "how", "part")
"""What the query before had: all of it; other buckets; other kinds of join; not the last step."""
_BY_ARRIVAL = {"first", "last", "collect_list"}
"""Aggregates that say in which order rows came, which their table does not."""


def drawn(seed: int, number: int) -> tuple[Case, Case]:
    """The query before and the one after, which has at least two micro-batches: of the first one
    both read the same.
    """
    random_ = random.Random(f"{seed} {number} upgraded")
    change = CHANGES[number % len(CHANGES)]
    while True:
        case = spark.drawn(seed, random_.randrange(10**6))
        operators = [n for n, node in enumerate(case.topology) if node["op"] not in _INPUTS]
        if len(case.batches) < 2 or any(n.get("static") for n in case.topology) or not operators:
            continue
        case = replace(case, limits={"files": 1}, restarts=[])
        before = _before(case, change, random_)
        if before is not None:
            return before, case


_INPUTS = ("table", "stream")


def _before(case: Case, change: str, random_: random.Random) -> Case | None:
    """The query before, None where this one has nothing to change."""
    nodes: list[Node] = [dict(node) for node in case.topology]
    if change == "same":
        return case
    if change != "buckets":
        functions = {f for node in nodes for f, _ in node.get("aggregates", ())}
        if functions & _BY_ARRIVAL:
            return None
    if change == "buckets":
        if any(node["op"] == "group" for node in nodes):
            return None
        return replace(case, buckets={1: 2, 2: 8, 8: 2}[case.buckets])
    if change == "how":
        joins = [node for node in nodes if node["op"] in ("join", "foreign")]
        if not joins:
            return None
        joins[-1].pop("spread", None)
        joins[-1]["how"] = random_.choice([h for h in ("left", "outer") if h != joins[-1]["how"]])
        return replace(case, topology=nodes)
    used = [nodes[-1][side] for side in ("left", "right", "of") if side in nodes[-1]]
    last = max(used)
    if nodes[last]["op"] in _INPUTS or topologies.shapes(nodes)[last].kind == "windowed":
        return None
    here, there = (set(_inputs(nodes, n)) for n in (last, len(nodes) - 1))
    return replace(case, topology=nodes[: last + 1]) if here == there else None


def _inputs(nodes: Sequence[Node], number: int) -> Iterator[int]:
    node = nodes[number]
    if node["op"] in _INPUTS:
        yield number
    for side in ("left", "right", "of"):
        if side in node:
            yield from _inputs(nodes, node[side])


def difference(before: Case, case: Case) -> str | None:
    """What the upgraded query emits otherwise, None for nothing; ``refused`` where it is."""
    tables = inputs(case)
    with tempfile.TemporaryDirectory(prefix="dovetail-upgraded-") as folder:
        root = Path(folder)
        for number in tables:
            (root / f"s{number}").mkdir()
        spark._write(tables, root, range(case.batches[0]), 0, 1)
        _answers(before, case, tables, root, "before")
        expected = _answers(case, case, tables, root, "whole")
        windowed = any(node["op"] == "window" for node in case.topology)
        is_table = not windowed and topologies.shapes(case.topology)[-1].kind == "table"
        found = []
        try:
            found += _answers(
                case, case, tables, root, "after", initial=root / "before", emit_initial=is_table
            )
        except dt.errors.CheckpointError as error:
            return f"refused: {error.problem.partition('/before ')[2]}"
        start = case.batches[0]
        for number, length in enumerate(case.batches[1:], start=1):
            spark._write(tables, root, range(start, start + length), number, 1)
            start += length
            expected += _answers(case, case, tables, root, "whole")
            found += _answers(case, case, tables, root, "after")
    timed = not any(node["op"] == "group" for node in case.topology)
    emitted = [
        [_by_key(batch, timed=timed) for batch in answers[1:]] for answers in (expected, found)
    ]
    same = emitted[0] == emitted[1] and (not is_table or _net(expected[0]) == _net(found[0]))
    if same:
        return None
    return f"{before.to_json()}\n{case.to_json()}\nwhole: {expected}\nupgraded: {found}"


def followed_difference(before: Case, case: Case, times: int) -> str | None:
    """What a query emits otherwise that follows the one before for some micro-batches, and then
    takes over: in ``times`` calls, at the start and so on. None for nothing; ``refused`` where it
    is.
    """
    tables = inputs(case)
    with tempfile.TemporaryDirectory(prefix="dovetail-followed-") as folder:
        root = Path(folder)
        for number in tables:
            (root / f"s{number}").mkdir()
        expected: list[list[Change]] = []
        start = 0
        for number, length in enumerate(case.batches):
            spark._write(tables, root, range(start, start + length), number, 1)
            start += length
            emitted = _answers(case, case, tables, root, "whole")
            if number == len(case.batches) - 1:
                expected += emitted
                break
            _answers(before, case, tables, root, "before")
            if number < times:
                try:
                    dt.checkpoints.upgrade(
                        session(),
                        root / "before",
                        root / "after",
                        spark._over(case, tables, root, 1),
                        buckets=case.buckets,
                        running=True,
                    )
                except dt.errors.CheckpointError as error:
                    return f"refused: {error.problem.partition('/before ')[2]}"
        found = _answers(case, case, tables, root, "after")
    timed = not any(node["op"] == "group" for node in case.topology)
    whole, after = ([_by_key(batch, timed=timed) for batch in part] for part in (expected, found))
    if whole == after:
        return None
    return f"{before.to_json()}\n{case.to_json()}\nwhole: {expected}\nfollowed: {found}"


def _answers(
    own: Case, case: Case, tables: dict[int, pa.Table], root: Path, name: str, **begin: Any
) -> list[list[Change]]:
    """What each micro-batch emits of the files that have come."""
    answers: dict[int, list[Change]] = {}

    def collect(changes: DataFrame, batch: int) -> None:
        answers[batch] = list(spark._plain(own, changes))

    given = {n: table for n, table in tables.items() if n < len(own.topology)}
    topology = spark._over(own, given, root, 1)
    query = topology.write_stream(
        dt.to_foreach_batch(collect),
        checkpoint=str(root / name),
        trigger={"availableNow": True},
        emit=case.emit,
        buckets=own.buckets,
        **begin,
    )
    query.awaitTermination()
    return [answers[batch] for batch in sorted(answers)]


def _by_key(changes: Sequence[Change], *, timed: bool) -> list[Any]:
    emitted = [change if timed else change._replace(time=0) for change in changes]
    return sorted(emitted, key=lambda change: repr(change.key))


def _net(changes: Sequence[Change]) -> dict[str, Any]:
    """The rows that changes leave."""
    rows = {repr(change.key): change.values for change in changes}
    return {key: values for key, values in rows.items() if values is not None}
