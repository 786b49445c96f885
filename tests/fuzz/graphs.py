"""Cases of ``topologies``: drawn, run, and judged by DuckDB and by laws.

The laws: after each micro-batch the changes so far make the table that the query gives of the
records so far; the changes of each key do not depend on buckets, cuts, restarts, hashes or sizes;
``emit="batch"`` is the net of ``emit="change"``.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.base.columns import DELETED, EVENT_TIME, SEQUENCE
from dovetail.errors import PlanError
from fuzz import changelogs, columns, sql, topologies
from fuzz.case import Case
from fuzz.runs import Answers, Change, arrived, in_process, inputs, partition_of

_DATABASE = sql.connection()


# Drawing.


def drawn(random_: random.Random, largest: int) -> Case:
    """A random case, of at most so many records, of a topology that can be planned."""
    count = changelogs.size(random_, largest)
    nodes = topologies.drawn(random_)
    while not _fits(nodes, count):
        nodes = topologies.drawn(random_)
    if _is_grouped(nodes):
        count = max(count, min(60, largest))
    partitions = random_.choice([0, 0, 1, 3]) if each_for_itself(nodes) else 0
    if random_.random() < 0.08:
        nodes, partitions = _aligned(random_, nodes), 0
    # What waits for a stage hears of its time by its changes, of which a net leaves some out.
    nets = _is_table(nodes) and not topologies.aligned(nodes)
    records = _records(random_, nodes, count, _groups(nodes) if partitions else set())
    batches = changelogs.batches(random_, count)
    if _is_grouped(nodes):
        batches = changelogs.small_batches(random_, count)
    settings = changelogs.settings(random_, len(batches), count, _stages(nodes))
    if _is_grouped(nodes):
        settings["limits"] = settings.get("limits", {}) | {"part": random_.choice([2, 2, 3, 1024])}
    case = Case(
        "graph",
        nodes,
        records,
        batches,
        emit=random_.choice(["change", "change", "batch"]) if nets else "change",
        partitions=partitions,
        **settings,
    )
    return _by_time(case) if partitions and _leaves_out(nodes) else case


def _leaves_out(nodes: Sequence[topologies.Node]) -> bool:
    """Whether rows of a table are left out. They do not advance the clock of their log."""
    read = [_read(nodes, n) for n, node in enumerate(nodes) if node["op"] == "where"]
    return any(nodes[number]["op"] == "table" for number in read)


def _by_time(case: Case) -> Case:
    """The case with the records of each log in the order of time, so that no row is held up by one
    before it. Then a row has the same place whether those before it are left out or not.
    """
    records: list[Any] = []
    for part in case.cut(case.records):
        logs: dict[tuple[int, int], list[int]] = {}
        for place, record in enumerate(part):
            logs.setdefault((record[0], partition_of(place, case.partitions)), []).append(place)
        ordered = list(part)
        for places in logs.values():
            by_time = sorted((part[place] for place in places), key=lambda record: record[2])
            for place, record in zip(places, by_time, strict=True):
                ordered[place] = record
        records += ordered
    return replace(case, records=records)


def _is_grouped(nodes: Sequence[topologies.Node]) -> bool:
    """Whether the topology makes groups of a table and no more, which then are large, and change by
    a few rows.
    """
    return {node["op"] for node in nodes} == {"table", "group"}


def _aligned(random_: random.Random, nodes: list[topologies.Node]) -> list[topologies.Node]:
    """The topology with a join whose sides wait for each other, where one can."""
    joins = [n for n, node in enumerate(nodes) if node["op"] in ("join", "lookup", "within")]
    if not joins:
        return nodes
    chosen = random_.choice(joins)
    tried = [node | {"align": True} if n == chosen else node for n, node in enumerate(nodes)]
    return tried if _planned(tried) else nodes


def _is_table(nodes: Sequence[topologies.Node]) -> bool:
    return topologies.shapes(nodes)[-1].kind == "table"


def each_for_itself(nodes: Sequence[topologies.Node]) -> bool:
    """Whether the result depends on the order within each input alone, not between them."""
    return all(node["op"] not in ("lookup", "within") for node in nodes)


def _groups(nodes: Sequence[topologies.Node]) -> set[tuple[int, str]]:
    """The columns of inputs that are grouped by: without a value in them a record has no place in
    the order of its log.
    """
    return {
        (_read(nodes, node["of"]), name)
        for node in nodes
        if node["op"] in ("group", "window")
        for name in node["by"]
    }


def _read(nodes: Sequence[topologies.Node], number: int) -> int:
    """The node of which another one chooses rows."""
    return _read(nodes, nodes[number]["of"]) if nodes[number]["op"] == "where" else number


def _stages(nodes: Sequence[topologies.Node]) -> int:
    """About how many stages the topology has."""
    dear = {"foreign": 3, "group": 2, "window": 2}
    return 1 + sum(dear.get(node["op"], 0) for node in nodes)


def _fits(nodes: Sequence[topologies.Node], count: int) -> bool:
    """Whether dovetail takes the topology, and so many records do not make too many results."""
    if nodes[-1]["op"] in ("table", "stream"):
        return False
    collects = any(f.startswith("collect") for n in nodes for f, _ in n.get("aggregates", []))
    if count > 60 and collects and any(node["op"] == "within" for node in nodes):
        return False  # each of up to count² / 4 changes would hold as many pairs
    if count > 400:
        if collects or sum(node["op"] not in ("table", "stream") for node in nodes) > 4:
            return False
        for number, node in enumerate(nodes):
            shape = topologies.shapes(nodes)[number]
            if node["op"] in ("group", "window") and shape.key[0][1] == "bool":
                return False
    return _planned(nodes)


def _planned(nodes: list[topologies.Node]) -> bool:
    """Whether dovetail takes the topology."""
    try:
        topologies.build(nodes)[0].schema  # noqa: B018
    except PlanError:
        return False
    return True


def _records(
    random_: random.Random,
    nodes: Sequence[topologies.Node],
    count: int,
    filled: Collection[tuple[int, str]],
) -> list[Any]:
    """``filled``: the inputs' columns that have no nulls."""
    mix = changelogs.mix(random_)
    codes = random_.choice([1, 3, 8, 30]) if count <= 400 else max(30, count // 4)
    keys, drains, half = codes, False, count // 2
    if _is_grouped(nodes):
        keys, drains = max(keys, count), random_.random() < 0.5
    missing = random_.choice([0, 1, codes // 3])
    sources = [n for n, node in enumerate(nodes) if node["op"] in ("table", "stream")]
    weights = [random_.choice([1, 1, 4]) for _ in sources]
    last: dict[int, Any] = {}
    found = []
    for time in changelogs.clock(random_).times(random_, count):
        number = random_.choices(sources, weights)[0]
        node = nodes[number]
        if number in last and random_.random() < mix.repeated:
            _, key, _, values, deleted = last[number]
        else:
            key = [random_.randrange(keys) for _ in node["key"]]
            if random_.random() < mix.null_key:
                at = random_.randrange(len(key))
                key[at] = key[at] if (number, node["key"][at][0]) in filled else None
            deleted = random_.random() < mix.deleted and (node["op"] == "table")
            if drains and len(found) >= half:  # the last row first
                key, deleted = found[max(0, 2 * half - 1 - len(found))][1], True
            values = [
                None
                if random_.random() < mix.null and (number, name) not in filled
                else random_.randrange(codes + missing)
                for name, _ in node["values"]
            ]
        last[number] = [number, key, time, None if deleted else values, deleted]
        found.append(last[number])
    return found


# Judging.


def topology_of(case: Case) -> tuple[Any, Any]:
    """The topology in process, and its inputs."""
    return topologies.build(case.topology)


def difference(case: Case) -> str | None:
    """What is wrong with what dovetail makes of a case, None for nothing."""
    tables = inputs(case)
    answers = in_process(case, tables)
    ordered = inputs(arrived(case))
    whole = len(case.batches)
    middle = random.Random(len(case.records)).randrange(whole) + 1
    # Rows that wait come in another order than the records.
    for upto in [] if topologies.aligned(case.topology) else sorted({middle, whole}):
        problem = of_sql(case, ordered, sum(case.batches[:upto]), answers[:upto])
        if problem is not None:
            return f"after micro-batch {upto} of {whole}: {problem}"
    other = _other(case)
    others = in_process(other, tables)
    stream = not _is_table(case.topology)
    problem = (
        _unlike(answers, others, stream=stream)
        if case.emit == "change"
        else _not_net(answers, others)
    )
    return problem and f"{problem}; other run: buckets={other.buckets}, batches={other.batches[:9]}"


def _other(case: Case) -> Case:
    """The same records otherwise: on one bucket, undisturbed, and cut otherwise but where the net
    of each batch is compared. The hash stays: what one record causes in several groups comes into
    the next stage in its order.
    """
    plain = replace(case, buckets=1, restarts=[], limits={}, emit="change")
    if case.emit == "batch" or case.partitions or topologies.aligned(case.topology):
        return plain
    count = len(case.records)
    length = max(1, count // 3 if len(case.batches) != 3 else count)
    if count <= 40 and len(case.batches) != count:
        length = 1
    batches = [min(length, count - start) for start in range(0, count, length)]
    return replace(plain, batches=batches)


def of_sql(case: Case, tables: Mapping[int, pa.Table], count: int, answers: Answers) -> str | None:
    """How the changes so far differ from what the query gives."""
    given = {number: _for_sql(table, count) for number, table in tables.items()}
    found = sql.result(_DATABASE, case.topology, given)
    shape = topologies.shapes(case.topology)[-1]
    names = [name for name, _ in shape.columns] + ["_t"] * (shape.kind == "stream")
    listed = [columns.plain(found.column(name)) for name in names]
    expected = Counter(map(_told, zip(*listed, strict=True)))
    if shape.kind == "stream":
        actual: Counter[Any] = Counter()
        for change in (change for part in answers for change in part):
            assert change.values is not None
            row = _told((*change.key, *change.values, change.time))
            actual[row] += -1 if change.withdrawn else 1
        if case.topology[-1].get("unmatched") == "retract":
            actual = Counter({row: n for row, n in actual.items() if n})
    else:
        rows: dict[Any, Any] = {}
        for part in answers:
            accumulate(rows, part)
        actual = Counter(_told((*key, *values)) for key, values in rows.items())
    if actual == expected:
        return None
    more, less = list((actual - expected).items()), list((expected - actual).items())
    return f"DuckDB: too much {more[:3]}, missing {less[:3]} ({len(more)}, {len(less)})"


def _told(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Floats as far as a mean is exact."""
    return tuple(float(f"{v:.14g}") if isinstance(v, float) else v for v in row)


def _for_sql(table: pa.Table, count: int) -> pa.Table:
    """The first records in the columns that the query reads."""
    table = table.filter(pc.less(table.column(SEQUENCE), count))
    names = {EVENT_TIME: "_t", DELETED: "_d", SEQUENCE: "_a"}
    table = table.rename_columns([names.get(name, name) for name in table.column_names])
    return pa.table(
        {
            name: column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
    )


def accumulate(rows: dict[Any, Any], changes: Iterable[Change]) -> None:
    """Apply changes to the table that they describe."""
    for change in changes:
        if change.values is None:
            rows.pop(change.key, None)
        else:
            rows[change.key] = change.values


def _by_key(answers: Answers) -> dict[Any, list[Change]]:
    found: dict[Any, list[Change]] = defaultdict(list)
    for part in answers:
        for change in part:
            found[change.key].append(change)
    return found


def _unlike(answers: Answers, others: Answers, *, stream: bool) -> str | None:
    """How two runs of the same records differ in any key's changes; those of a stream, whose
    records are partitioned by what they look up, in any order.
    """
    ours, theirs = _by_key(answers), _by_key(others)
    if stream:
        ours, theirs = ({k: sorted(c, key=repr) for k, c in r.items()} for r in (ours, theirs))
    for key in [*ours, *theirs]:
        if ours.get(key) != theirs.get(key):
            return f"key {key}: {_first(ours.get(key, []), theirs.get(key, []))}"
    return None


def _first(ours: Sequence[Change], theirs: Sequence[Change]) -> str:
    for place in range(max(len(ours), len(theirs))):
        pair = [list(batches[place : place + 1]) for batches in (ours, theirs)]
        if pair[0] != pair[1]:
            return f"change {place} is {pair[0]}, in the other run {pair[1]}"
    return "equal"


def _not_net(net: Answers, each: Answers) -> str | None:
    """How micro-batches of ``emit="batch"`` are not the net of those of ``emit="change"``. Times
    may differ: a stage hears only the net of the stages before it.
    """
    rows: dict[Any, Any] = {}
    netted: dict[Any, Any] = {}
    for number, (last, changes) in enumerate(zip(net, each, strict=True)):
        if len({change.key for change in last}) < len(last):
            return f"micro-batch {number}: a key comes twice"
        accumulate(rows, changes)
        accumulate(netted, last)
        for key in {*rows, *netted}:
            if rows.get(key) != netted.get(key):
                return f"micro-batch {number}: {key} is {netted.get(key)}, not {rows.get(key)}"
    return None
