"""Cases that have a definition record by record (``bench.families``): drawn, run, and judged change
by change.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import window_cases
from bench import kafka_streams, runners
from bench.families import foreign_keys, streams, tables, views, windows
from bench.family import Family
from bench.forced import HASHES, forced
from bench.models import windows as window_models
from bench.models.foreign_keys import HOWS, ForeignKeyJoin
from bench.models.gathering import Windows
from bench.models.tables import names
from bench.models.views import Pipeline
from bench.models.windows import Joined, View
from bench.records import Record, by_key, cut, per_batch

from dovetail import testing
from fuzz import changelogs, sessions
from fuzz.case import Case

KEYS: list[Sequence[str]] = [
    "k",
    "ab",
    "abc",
    ["", "a", "ab", "é"],
    ["ﬁ", "𝕒", "z", "\x7f"],
    [f"k{n}" for n in range(30)],
]
KINDS = {kind.__name__: kind for kind in streams.OPERATORS.values()}
RETENTIONS = [None, None, 0, 1, 5, 20, 10**6]


@dataclass(frozen=True)
class Drawn:
    """A family as it is drawn: a random topology, as plain data, and records for it; ``read``: the
    topology of a case as the family's own; ``nets``: whether ``emit="batch"`` is defined.
    """

    family: Family
    draw: Callable[[random.Random, int], tuple[Any, list[Record]]]
    read: Callable[[Any], Any]
    nets: Callable[[Any], bool]


def drawn(random_: random.Random, name: str) -> Case:
    """A random case of a family."""
    family = FAMILIES[name]
    count = changelogs.size(random_, random_.choice([40, 40, 150]))
    topology, records = family.draw(random_, count)
    batches = changelogs.batches(random_, len(records))
    nets = family.nets(family.read(topology))
    return Case(
        name,
        topology,
        [_listed(record) for record in records],
        batches,
        emit=random_.choice(["change", "change", "batch"]) if nets else "change",
        **changelogs.settings(random_, len(batches), len(records), 2),
    )


def _listed(given: Any) -> Any:
    return [_listed(one) for one in given] if isinstance(given, tuple) else given


def records(case: Case) -> list[Record]:
    """The case's records as the models have them."""
    return [
        Record(table, key, time, tuple(value) if isinstance(value, list) else value, deleted)
        for table, key, time, value, deleted in case.records
    ]


def inputs_of(family: Family, join: Any) -> dict[str, Any]:
    """A family's inputs in process, by name."""
    return {
        name: testing.stream(name, key=source.key, schema=source.columns)
        if source.stream
        else testing.table(name, key=source.key, schema=source.columns, versioned=source.versioned)
        for name, source in family.sources(join).items()
    }


def topology_of(case: Case) -> tuple[Any, dict[str, Any]]:
    """The topology in process, and its inputs by name."""
    known = FAMILIES[case.family]
    join = known.read(case.topology)
    inputs = inputs_of(known.family, join)
    return known.family.build(join, inputs), inputs


def difference(case: Case) -> str | None:
    """Say which micro-batch dovetail gets wrong, and how; None if all are right."""
    family = FAMILIES[case.family].family
    join, batches = FAMILIES[case.family].read(case.topology), list(case.cut(records(case)))
    if case.emit == "batch":
        expected = list(family.each_batch(join, batches))
    else:
        expected = per_batch(family.each_record(join, records(case)), batches)
    with forced(case.hash, case.limits):
        answers = runners.driver(
            family,
            join,
            batches,
            emit=case.emit,  # type: ignore[arg-type]
            restart=bool(case.restarts),
            buckets=case.buckets,
            key_hash=HASHES[case.hash],
            session=sessions.session() if case.family == "computed" else None,
        )
    for number, (found, wanted) in enumerate(zip(answers, expected, strict=True)):
        if not _same(case, found, wanted):
            return f"micro-batch {number}: {first(found, wanted)}"
    return None


def _same(case: Case, found: list[Any], wanted: list[Any]) -> bool:
    """Exactly, but that several buckets, slices of some keys, the net of a batch, and what one row
    changes in two groups come in any order of keys.
    """
    steps = {*case.topology["steps"]} if case.family in ("views", "computed") else set()
    keyed = steps & {"key_by", "fails_key"}
    groups = keyed and steps & {"table_key", "count"}
    exact = case.buckets == 1 and case.emit == "change" and "slice_bytes" not in case.limits
    if found == wanted or (exact and not groups):
        return found == wanted
    ours, theirs = by_key(found), by_key(wanted)
    for answers in (ours, theirs):
        answers.setdefault(None, [])
        for key in answers if keyed else [None]:  # whose records may come from several buckets
            answers[key].sort(key=repr)
    return ours == theirs


def first(found: Sequence[Any], wanted: Sequence[Any]) -> str:
    more = [one for one in found if one not in wanted]
    less = [one for one in wanted if one not in found]
    return f"too much {more[:3]}, missing {less[:3]}, of {len(found)} and {len(wanted)}"


def unlike_kafka(cases: Sequence[Case]) -> tuple[list[tuple[Case, str]], int]:
    """The cases for which Kafka Streams emits something else, met record by record; and how many
    it was asked for.
    """
    unlike, asked = [], 0
    for name, known in FAMILIES.items():
        family, own = known.family, []
        for case in (c for c in cases if c.family == name and c.emit == "change"):
            join, given = known.read(case.topology), records(case)
            if family.kafka_can(join, given):
                own.append((case, join, family.flushed(join, given)))
        answers = kafka_streams.answers(family, [given for _, *given in own]) if own else []
        asked += len(own)
        for (case, join, given), expected in zip(own, answers, strict=True):
            with forced(case.hash, case.limits):
                found = runners.driver(family, join, cut(given, 1), key_hash=HASHES[case.hash])
            if not family.agree(join, given, found, expected):
                single = replace(case, batches=[1] * len(case.records), buckets=1)
                unlike.append((single, "Kafka Streams emits something else"))
    return unlike, asked


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
    tables = names(_read_tree(found))
    return found, _plain(random_, count, tables, random_.choice(KEYS))


def _read_tree(given: Any) -> Any:
    return given if isinstance(given, str) else tuple(_read_tree(part) for part in given)


# Streams and versioned tables.


def _draw_streams(random_: random.Random, count: int) -> tuple[Any, list[Record]]:
    how = random_.choice(["inner", "left", "outer"])
    kind = random_.choice(["StreamTable", "StreamStream", "StreamStream", "VersionedTables"])
    given: dict[str, Any]
    if kind == "StreamTable":
        versioned = random_.choice(RETENTIONS)
        graces = [None] if versioned is None else [None, 0, min(versioned, 3), versioned]
        how = random_.choice(["inner", "left"])
        given = {"how": how, "versioned": versioned, "grace": random_.choice(graces)}
    elif kind == "StreamStream":
        spans = [(0, 0), (0, 1), (3, 0), (2, 5), (10, 10), (-2, 6), (7, -3), (50, 0)]
        before, after = random_.choice(spans)
        given = {"how": how, "before": before, "after": after}
        given |= {"grace": random_.choice([0, 1, 4, 30]), "self_join": random_.random() < 0.15}
        given["unmatched"] = random_.choice(["on_close", "on_close", "eager", "retract"])
    else:
        left, right = random_.choice(RETENTIONS), random_.choice(RETENTIONS[2:])
        given = {"how": how, "left_versioned": left, "right_versioned": right}
        given["late"] = random_.choice(["ignore", "history"]) if left is not None else "ignore"
    sides = "L" if given.get("self_join") else "LR"
    return {"kind": kind, **given}, _plain(random_, count, sides, random_.choice(KEYS))


def _read_streams(given: Any) -> Any:
    options = dict(given)
    return KINDS[options.pop("kind")](**options)


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
    given = {
        "how": random_.choice(HOWS),
        "left_versioned": random_.choice(RETENTIONS),
        "right_versioned": random_.choice(RETENTIONS),
    }
    if given["how"] in ("inner", "left"):
        given["spread"] = random_.choice([1, 1, 2, 3, 8])
    return given, found


# Aggregates and windows.


def _draw_windows(random_: random.Random, count: int) -> tuple[Any, list[Record]]:
    kind = random_.choice(["", *window_cases.KINDS, "session"])
    names = ["G", "H"] if not kind else [*window_cases.SAME]
    if kind in window_cases.FIXED:
        names += [*window_cases.PLACED]
    view = window_cases.views(random_, kind, random_.choice(names))
    given = json.loads(json.dumps(asdict(view)))
    return given, window_cases.records(random_, view)


def _read_view(given: Any) -> View:
    windows = tuple((name, Windows(**w)) for name, w in given["windows"])
    return View(_read_joined(given["topology"]), windows, given["final"], given.get("shows", ""))


def _read_joined(given: Any) -> Any:
    if isinstance(given, str):
        return given
    sides = {side: _read_joined(given[side]) for side in ("left", "right")}
    return Joined(**(given | sides))


# Views.

STEPS_OF = {
    "stream": [
        *["where", "swap", "columns", "key_by", "to_table", "lookup", "lookup_left"],
        *["deduplicate", "lookup_cached", "expect_drop", "expect_warn"],
    ],
    "table": [
        *["where", "swap", "columns", "to_stream", "to_changes", "told", "materialize", "count"],
        *["expect_drop", "expect_warn"],
    ],
}
"""The steps that a stream's and a table's rows may take without a session of Spark."""
COMPUTED = {
    "stream": ["computed", "fails", "fails_where", "fails_select", "fails_key", "expect_letter"],
    "table": [
        *["computed", "fails", "fails_where", "fails_select", "table_key", "fails_table_key"],
        "expect_letter",
    ],
}
"""Those that need one."""
ENDS = ("count", "to_changes", "told", "fails_table_key", "fails_key")


def _draw_views(random_: random.Random, count: int) -> tuple[Any, list[Record]]:
    return _draw_pipeline(random_, count, STEPS_OF)


def _draw_computed(random_: random.Random, count: int) -> tuple[Any, list[Record]]:
    """Some steps, of which one at least is computed."""
    steps = {kind: [*STEPS_OF[kind], *4 * COMPUTED[kind]] for kind in STEPS_OF}
    computed = {step for kind in COMPUTED.values() for step in kind}
    while True:
        given, found = _draw_pipeline(random_, min(count, 12), steps)
        if computed & {*given["steps"]}:
            return given, found


def _draw_pipeline(
    random_: random.Random, count: int, known: dict[str, list[str]]
) -> tuple[Any, list[Record]]:
    """Some steps; of those that remember rows at most one of each."""
    inputs = random_.choice(["S", "SR", "T", "T", "A", "L", "P"])
    kind = "table" if inputs in ("T", "L", "P") else "stream"
    begins = {
        "A": ["explode"],
        "L": ["explode", "positions"],
        "P": ["former", "nulls", "nulls_of_v"],
    }.get(inputs)
    steps = [random_.choice(begins)] if begins else []
    for _ in range(random_.choice([1, 1, 2, 3, 4])):
        if begins or (steps and steps[-1] in ENDS):
            break
        step = random_.choice(known[kind])
        if step in steps and step not in ("where", "swap", "columns", "computed"):
            continue
        if (step == "table_key" and "count" in steps) or (step == "count" and "table_key" in steps):
            continue
        if step == "to_stream" and "to_table" in steps:
            continue
        kind = {"to_table": "table", "to_stream": "stream"}.get(step, kind)
        steps.append(f"{step} {random_.choice([0, 1, 3, 20])}" if step == "deduplicate" else step)
    keys = random_.choice(KEYS)
    values = random_.choice(["ab", "abA", "aABb"])
    found = []
    for record in _plain(random_, count, inputs, keys):
        value = None if record.deleted else _value(random_, inputs, values)
        found.append(record._replace(value=value))
    return {"inputs": [*inputs], "steps": steps or ["swap"]}, found


def _value(random_: random.Random, inputs: str, values: str) -> Any:
    """A record's value: of inputs with arrays, of those that leave values out, of others."""
    if inputs == "P":
        return (random_.choice("ab_"), random_.choice("ab_"))
    if inputs in ("A", "L"):
        return (random_.choice([None, (), ("a",), ("b", "a"), ("a", "b", "a")]),)
    text = random_.choice([*values, None]) if random_.random() < 0.9 else ""
    return (text, random_.choice([True, True, False, None]))


def _read_views(given: Any) -> Pipeline:
    return Pipeline(tuple(given["inputs"]), tuple(given["steps"]))


# Tables whose rows expire.


def _draw_expiring(random_: random.Random, count: int) -> tuple[Any, list[Record]]:
    step = f"expire {random_.choice([0, 1, 3, 10, 50, 1000, 10**6])}"
    steps = random_.choice([[step], ["where", step], [step, "to_stream"]])
    found = _plain(random_, count, "T", random_.choice(KEYS))
    met = {record.value: random_.choice([True, True, False, None]) for record in found}
    return steps, [
        record if record.deleted else record._replace(value=(record.value, met[record.value]))
        for record in found
    ]


FAMILIES = {
    "views": Drawn(views, _draw_views, _read_views, lambda view: False),
    "computed": Drawn(views, _draw_computed, _read_views, lambda view: False),
    "expiring": Drawn(
        views,
        _draw_expiring,
        lambda steps: Pipeline(("T",), tuple(steps)),
        lambda expiring: expiring.steps[-1] != "to_stream",
    ),
    "tree": Drawn(tables, _draw_tree, _read_tree, lambda tree: True),
    "matrix": Drawn(streams, _draw_streams, _read_streams, lambda join: False),
    "foreign": Drawn(
        foreign_keys, _draw_foreign, lambda given: ForeignKeyJoin(**given), lambda join: True
    ),
    "windows": Drawn(
        windows,
        _draw_windows,
        _read_view,
        lambda view: window_models.inputs_of(view.topology)[0] != "S",
    ),
}
