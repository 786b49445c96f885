"""Cases that have a definition record by record: trees of tables (``naive``), joins of streams and
versioned tables (``matrix``), foreign keys (``fk_model``), aggregates and windows
(``window_model``). Each is drawn, run by the runners of the tests, and judged change by change.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import fk_model
import fk_runners
import matrix
import matrix_runners
import naive
import runners
import window_cases
import window_gathering
import window_model
import window_runners
from answers import by_key
from naive import Record

from fuzz import changelogs
from fuzz.case import Case
from fuzz.runs import HASHES, forced

KEYS: list[Sequence[str]] = [
    "k",
    "ab",
    "abc",
    ["", "a", "ab", "é"],
    ["ﬁ", "𝕒", "z", "\x7f"],
    [f"k{n}" for n in range(30)],
]
RETENTIONS = [None, None, 0, 1, 5, 20, 10**6]


@dataclass(frozen=True)
class Family:
    """``draw``: topology and records; ``read``: the topology of a case as the model's own;
    ``defined``: what each micro-batch emits by definition; ``run``: what dovetail emits;
    ``nets``: whether ``emit="batch"`` is defined; ``kafka``: what Kafka Streams emits for each of
    some cases, of those that ``asks`` says can be asked, and whether an answer agrees with it.
    """

    draw: Callable[[random.Random, int], tuple[Any, list[Record]]]
    read: Callable[[Any], Any]
    defined: Callable[[Any, list[list[Record]], str], list[list[Any]]]
    run: Callable[..., list[list[Any]]]
    nets: Callable[[Any], bool]
    asks: Callable[[Any, list[Record]], bool]
    kafka: Callable[[Sequence[tuple[Any, list[Record]]]], list[Any]]
    agree: Callable[[Any, list[Record], Any, Any], bool]


def drawn(random_: random.Random, name: str) -> Case:
    """A random case of a family."""
    family = FAMILIES[name]
    count = changelogs.size(random_, random_.choice([40, 40, 150]))
    topology, records = family.draw(random_, count)
    batches = changelogs.batches(random_, len(records))
    model = family.read(topology)
    emit = random_.choice(["change", "change", "batch"]) if family.nets(model) else "change"
    return Case(
        name,
        topology,
        [_listed(record) for record in records],
        batches,
        emit=emit,
        **changelogs.settings(random_, len(batches), len(records), 2),
    )


def _listed(told: Any) -> Any:
    return [_listed(one) for one in told] if isinstance(told, tuple) else told


def records(case: Case) -> list[Record]:
    """The case's records as the models have them."""
    return [
        Record(table, key, time, tuple(value) if isinstance(value, list) else value, deleted)
        for table, key, time, value, deleted in case.records
    ]


def difference(case: Case) -> str | None:
    """What is wrong with what dovetail makes of a case, None for nothing."""
    family = FAMILIES[case.family]
    model, batches = family.read(case.topology), list(case.cut(records(case)))
    expected = family.defined(model, batches, case.emit)
    options: dict[str, Any] = {} if case.emit == "change" else {"emit": case.emit}
    with forced(case.hash, case.limits):
        answers = family.run(
            model,
            batches,
            restart=bool(case.restarts),
            buckets=case.buckets,
            key_hash=HASHES[case.hash],
            **options,
        )
    for number, (told, wanted) in enumerate(zip(answers, expected, strict=True)):
        if not _same(case, told, wanted):
            return f"micro-batch {number}: {_first(told, wanted)}"
    return None


def _same(case: Case, told: list[Any], wanted: list[Any]) -> bool:
    """Exactly, but that several buckets, slices of some keys, and the net of a batch come in any
    order of keys.
    """
    if case.buckets == 1 and case.emit == "change" and "slice_bytes" not in case.limits:
        return told == wanted
    return by_key(told) == by_key(wanted)


def _first(told: Sequence[Any], wanted: Sequence[Any]) -> str:
    more = [one for one in told if one not in wanted]
    less = [one for one in wanted if one not in told]
    return f"too much {more[:3]}, missing {less[:3]}, of {len(told)} and {len(wanted)}"


def unlike_kafka(cases: Sequence[Case]) -> tuple[list[tuple[Case, str]], int]:
    """The cases for which Kafka Streams emits something else, met record by record; and how many
    it was asked for.
    """
    unlike, asked = [], 0
    for name, family in FAMILIES.items():
        own = []
        for case in (c for c in cases if c.family == name and c.emit == "change"):
            model, told = family.read(case.topology), records(case)
            if family.asks(model, told):
                if isinstance(model, matrix.StreamStream):
                    told = matrix_runners.flushed(model, told)
                own.append((case, model, told))
        answers = family.kafka([(model, told) for _, model, told in own]) if own else []
        asked += len(own)
        for (case, model, told), expected in zip(own, answers, strict=True):
            with forced(case.hash, case.limits):
                found = family.run(model, [[r] for r in told], key_hash=HASHES[case.hash])
            if not family.agree(model, told, found, expected):
                single = replace(case, batches=[1] * len(case.records), buckets=1)
                unlike.append((single, "Kafka Streams emits something else"))
    return unlike, asked


def _cut(changes: Iterable[list[Any]], batches: Sequence[Sequence[Any]]) -> list[list[Any]]:
    left = iter(changes)
    return [list(chain.from_iterable(next(left) for _ in batch)) for batch in batches]


def _plain(
    random_: random.Random, count: int, tables: Sequence[str], keys: Sequence[Any]
) -> list[Record]:
    """Records with distinct values."""
    mix = changelogs.mix(random_)
    found: list[Record] = []
    for number, time in enumerate(changelogs.clock(random_).times(random_, count)):
        if found and random_.random() < mix.repeated:
            found.append(found[-1]._replace(time=time))
            continue
        key = None if random_.random() < mix.null_key else random_.choice(keys)
        deleted = random_.random() < mix.deleted
        value = None if deleted else f"v{number}"
        found.append(Record(random_.choice(tables), key, time, value, deleted))
    return found


# Trees of tables.


def _draw_tree(random_: random.Random, count: int) -> tuple[Any, list[Record]]:
    def tree(depth: int) -> Any:
        if depth == 0 or random_.random() < 0.25:
            return random_.choice("ABC")
        return [tree(depth - 1), random_.choice(matrix_hows), tree(depth - 1)]

    matrix_hows = ["inner", "left", "outer"]
    found = [tree(random_.choice([0, 1, 2])), random_.choice(matrix_hows), tree(1)]
    tables = naive.names(_read_tree(found))
    return found, _plain(random_, count, tables, random_.choice(KEYS))


def _read_tree(told: Any) -> Any:
    return told if isinstance(told, str) else tuple(_read_tree(part) for part in told)


def _define_tree(tree: Any, batches: list[list[Record]], emit: str) -> list[list[Any]]:
    if emit == "batch":
        return [naive.seen(part) for part in naive.each_batch(tree, batches)]
    records_ = [record for batch in batches for record in batch]
    return _cut(map(naive.seen, naive.each_record(tree, records_)), batches)


# Streams and versioned tables.


def _draw_matrix(random_: random.Random, count: int) -> tuple[Any, list[Record]]:
    how = random_.choice(["inner", "left", "outer"])
    kind = random_.choice(["StreamTable", "StreamStream", "StreamStream", "VersionedTables"])
    told: dict[str, Any]
    if kind == "StreamTable":
        versioned = random_.choice(RETENTIONS)
        graces = [None] if versioned is None else [None, 0, min(versioned, 3), versioned]
        how = random_.choice(["inner", "left"])
        told = {"how": how, "versioned": versioned, "grace": random_.choice(graces)}
    elif kind == "StreamStream":
        spans = [(0, 0), (0, 1), (3, 0), (2, 5), (10, 10), (-2, 6), (7, -3), (50, 0)]
        before, after = random_.choice(spans)
        told = {"how": how, "before": before, "after": after}
        told |= {"grace": random_.choice([0, 1, 4, 30]), "self_join": random_.random() < 0.15}
        told["unmatched"] = random_.choice(["on_close", "on_close", "eager", "retract"])
    else:
        left, right = random_.choice(RETENTIONS), random_.choice(RETENTIONS[2:])
        told = {"how": how, "left_versioned": left, "right_versioned": right}
        told["late"] = random_.choice(["ignore", "history"]) if left is not None else "ignore"
    sides = "L" if told.get("self_join") else "LR"
    return {"kind": kind, **told}, _plain(random_, count, sides, random_.choice(KEYS))


def _read_matrix(told: Any) -> Any:
    options = dict(told)
    return getattr(matrix, options.pop("kind"))(**options)


def _define_matrix(join: Any, batches: list[list[Record]], emit: str) -> list[list[Any]]:
    records_ = [record for batch in batches for record in batch]
    return _cut(matrix.each_record(join, records_), batches)


# Foreign keys.


def _draw_foreign(random_: random.Random, count: int) -> tuple[Any, list[Record]]:
    keys = {"L": random_.choice(KEYS), "R": random_.choice(KEYS)}
    if random_.random() < 0.3:
        keys["R"] = keys["L"]
    nulls = random_.choice([0.0, 0.1, 0.3])
    found = []
    for record in _plain(random_, count, random_.choice(["LR", "LLLR", "LRRR"]), "k"):
        key = None if record.key is None else random_.choice(keys[record.table])
        value: Any = record.value
        if record.table == "L" and not record.deleted:
            foreign = None if random_.random() < nulls else random_.choice(keys["R"])
            value = (foreign, value)
        found.append(record._replace(key=key, value=value))
    told = {
        "how": random_.choice(fk_model.HOWS),
        "left_versioned": random_.choice(RETENTIONS),
        "right_versioned": random_.choice(RETENTIONS),
    }
    return told, found


def _define_foreign(join: Any, batches: list[list[Record]], emit: str) -> list[list[Any]]:
    if emit == "batch":
        return [fk_model.seen(part) for part in fk_model.each_batch(join, batches)]
    records_ = [record for batch in batches for record in batch]
    return _cut(map(fk_model.seen, fk_model.each_record(join, records_)), batches)


# Aggregates and windows.


def _draw_windows(random_: random.Random, count: int) -> tuple[Any, list[Record]]:
    kind = random_.choice(["", *window_cases.KINDS, "session"])
    names = ["G", "H"] if not kind else [*window_cases.SAME]
    if kind in window_cases.FIXED:
        names += [*window_cases.PLACED]
    view = window_cases.views(random_, kind, random_.choice(names))
    told = json.loads(json.dumps(asdict(view)))
    return told, window_cases.records(random_, view)


def _read_view(told: Any) -> window_model.View:
    windows = tuple((name, window_gathering.Windows(**w)) for name, w in told["windows"])
    return window_model.View(_read_joined(told["topology"]), windows, told["final"])


def _read_joined(told: Any) -> Any:
    if isinstance(told, str):
        return told
    sides = {side: _read_joined(told[side]) for side in ("left", "right")}
    return window_model.Joined(**(told | sides))


def _define_view(view: Any, batches: list[list[Record]], emit: str) -> list[list[Any]]:
    if emit == "batch" and not view.final:
        return [window_model.seen(part) for part in window_model.each_batch(view, batches)]
    records_ = [record for batch in batches for record in batch]
    return _cut(map(window_model.seen, window_model.each_record(view, records_)), batches)


def _kafka_joins(join: matrix.Join, records_: list[Record]) -> bool:
    """Rows of streams are told apart by their values."""
    values = [record.value for record in records_ if not record.deleted]
    distinct = len({*values}) == len(values) or not isinstance(join, matrix.StreamStream)
    return distinct and matrix_runners.kafka_can(join, records_)


def _kafka_counts(view: Any, records_: list[Record]) -> bool:
    """Windows that are told when they are closed, Kafka Streams tells later than they are due."""
    return (
        view.topology == "L"
        and not view.final
        and view.windows[0][1].kind in ("tumbling", "hopping")
        and all(record.time >= 0 for record in records_)
    )


FAMILIES = {
    "tree": Family(
        _draw_tree,
        _read_tree,
        _define_tree,
        runners.driver,
        lambda tree: True,
        lambda tree, records_: _is_pair(tree),
        lambda cases: matrix_runners.kafka_streams([_on_sides(*case) for case in cases]),
        lambda tree, records_, found, expected: _pairs(found) == _pairs(expected),
    ),
    "matrix": Family(
        _draw_matrix,
        _read_matrix,
        _define_matrix,
        matrix_runners.driver,
        lambda join: False,
        _kafka_joins,
        matrix_runners.kafka_streams,
        matrix_runners.agree,
    ),
    "foreign": Family(
        _draw_foreign,
        lambda told: fk_model.ForeignKeyJoin(**told),
        _define_foreign,
        fk_runners.driver,
        lambda join: True,
        fk_runners.kafka_can,
        fk_runners.kafka_streams,
        lambda join, records_, found, expected: found == expected,
    ),
    "windows": Family(
        _draw_windows,
        _read_view,
        _define_view,
        window_runners.driver,
        lambda view: window_model.inputs_of(view.topology)[0] != "S",
        _kafka_counts,
        window_runners.kafka_streams,
        lambda view, records_, found, expected: window_runners.counted(found) == expected,
    ),
}


def _is_pair(tree: Any) -> bool:
    """Whether Kafka Streams' oracle has this tree: two tables."""
    return [isinstance(part, str) for part in tree] == [True] * 3 and tree[0] != tree[2]


def _on_sides(tree: Any, records_: list[Record]) -> tuple[matrix.Join, list[Record]]:
    """Two tables as Kafka Streams' left and right side."""
    sided = [r._replace(table="L" if r.table == tree[0] else "R") for r in records_]
    return matrix.VersionedTables(tree[1]), [r for r in sided if r.table in "LR"]


def _pairs(answers: Any) -> list[list[tuple[Any, ...]]]:
    """Results whatever model they are of."""
    return [[(r.key, r.values, r.time) for r in part] for part in answers]
