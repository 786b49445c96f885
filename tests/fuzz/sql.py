"""A topology (``topologies``) as one query of DuckDB: what its result is after some records.

The inputs are tables ``s0``, ``s1``, … of all their records so far with ``_t`` (time), ``_d``
(deleted) and ``_a`` (arrival). Moments are numbers of microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from fuzz.topologies import Node, Shape, shapes


def connection() -> duckdb.DuckDBPyConnection:
    """A database in memory that sums floats exactly."""
    made = duckdb.connect(":memory:", config={"threads": "1"})
    made.create_function(
        "exact_sum",
        lambda lists: pa.array(map(_exact_sum, lists.to_pylist()), pa.float64()),
        ["DOUBLE[]"],
        "DOUBLE",
        type="arrow",
        null_handling="special",
    )
    return made


def _exact_sum(values: Sequence[float]) -> float | None:
    """The sum as if it were computed without rounding and rounded once."""
    numbers = [float(v) for v in values if v is not None]
    if not numbers:
        return None
    special = [v for v in numbers if not math.isfinite(v)]
    if special:
        return sum(special)
    try:
        return math.fsum(numbers)
    except OverflowError:
        scaled = math.fsum(v / 2**60 for v in numbers)
        return math.inf if scaled > 0 else -math.inf


def result(
    database: duckdb.DuckDBPyConnection, nodes: Sequence[Node], inputs: Mapping[int, pa.Table]
) -> pa.Table:
    """The rows of the topology's result, key columns first, then values; of a stream also its
    records' times, as ``_t``.
    """
    for number, rows in inputs.items():
        database.register(f"s{number}", rows)
    known = shapes(nodes)
    steps = [f"n{i} as ({SQL[node['op']](i, node, known, nodes)})" for i, node in enumerate(nodes)]
    last = known[-1]
    names = [name for name, _ in last.columns] + ["_t"] * (last.kind == "stream")
    selected = ", ".join(names)
    query = f"with {', '.join(steps)} select {selected} from n{len(nodes) - 1}"
    return database.sql(query).to_arrow_table()


def _names(shape: Shape) -> list[str]:
    return [name for name, _ in shape.key]


def _and(parts: Sequence[str]) -> str:
    return " and ".join(parts)


def _whole(columns: Sequence[str]) -> str:
    return _and([f"{column} is not null" for column in columns])


def _table(number: int, node: Node, known: list[Shape], nodes: Any) -> str:
    keys = _names(known[number])
    rows = f"select * from s{number} where {_whole(keys)}"
    kept = node.get("versioned")
    order = "_a desc"
    if kept is not None:
        clock = "max(_t) over (order by _a rows unbounded preceding)"
        rows = f"select * from (select *, {clock} _c from ({rows})) where _t >= _c - {kept}"
        order = "_t desc, _a desc"
    newest = f"row_number() over (partition by {', '.join(keys)} order by {order}) _r"
    return f"select * from (select *, {newest} from ({rows})) where _r = 1 and not _d"


def _where(number: int, node: Node, known: list[Shape], nodes: Any) -> str:
    return f"select * from n{node['of']} where {node['on']}"


def _stream(number: int, node: Node, known: list[Shape], nodes: Any) -> str:
    return f"select * from s{number}"


def _selected(number: int, node: Node) -> list[str]:
    return [f"{'lr'[s]}.{name} c{number}_{i}" for i, (s, name) in enumerate(node["columns"])]


KIND = {"inner": "join", "left": "left join", "right": "right join", "outer": "full join"}


def _joined(number: int, node: Node, keys: list[str], on: list[str], how: str) -> str:
    """These keys, and what the node selects, of its two inputs."""
    selected = ", ".join(keys + _selected(number, node))
    return f"select {selected} from n{node['left']} l {KIND[how]} n{node['right']} r on {_and(on)}"


def _join(number: int, node: Node, known: list[Shape], nodes: Any) -> str:
    left, right = known[node["left"]], known[node["right"]]
    pairs = list(zip(_names(left), _names(right), strict=True))
    keys = [f"coalesce(l.{mine}, r.{other}) {mine}" for mine, other in pairs]
    on = [f"l.{mine} = r.{other}" for mine, other in pairs]
    return _joined(number, node, keys, on, node["how"])


def _foreign(number: int, node: Node, known: list[Shape], nodes: Any) -> str:
    left, right = known[node["left"]], known[node["right"]]
    keys = [f"l.{name}" for name in _names(left)]
    if node["how"] in ("right", "outer"):
        alone = f"l.{_names(left)[0]} is null"
        keys += [f"case when {alone} then r.{name} end right_{name}" for name in _names(right)]
    on = [f"l.{c} = r.{k}" for c, k in zip(node["on"], _names(right), strict=True)]
    return _joined(number, node, keys, on, node["how"])


def _lookup(number: int, node: Node, known: list[Shape], nodes: Any) -> str:
    """Of a table that is read as it is: the last change before the record."""
    left, right = known[node["left"]], known[node["right"]]
    names = _names(right)
    pairs = list(zip(node["on"], names, strict=True))
    on = _and([f"l.{c} = r.{k}" for c, k in pairs] + ["l._a >= r._a"])
    gone = "r._d is distinct from false"
    rows = [f"l.{name}" for name in _names(left)]
    rows += [
        f"{'lr'[s]}.{name} c{number}_{i}"
        if s == 0
        else f"case when {gone} then null else r.{name} end c{number}_{i}"
        for i, (s, name) in enumerate(node["columns"])
    ]
    kept = ["not l._d"] + ([] if node["how"] == "left" else [f"not ({gone})"])
    table = f"(select * from s{node['right']} where {_whole(names)})"
    return (
        f"select {', '.join(rows)}, l._t, l._a, false _d from n{node['left']} l "
        f"asof left join {table} r on {on} where {_and(kept)}"
    )


def _within(number: int, node: Node, known: list[Shape], nodes: Any) -> str:
    left, right = known[node["left"]], known[node["right"]]
    pairs = list(zip(_names(left), _names(right), strict=True))
    on = _and([f"l.{mine} = r.{other}" for mine, other in pairs])
    on += f" and r._t between l._t - {node['before']} and l._t + {node['after']}"
    both = [f"(select * from n{node[side]} where not _d)" for side in ("left", "right")]
    eager = node["unmatched"] == "eager"
    keys = [f"l.{name}" for name in _names(left)]
    selected = ", ".join(keys + _selected(number, node))
    last = ", greatest(l._t, r._t) _t, greatest(l._a, r._a) _a, false _d"
    parts = [f"select {selected}{last} from {both[0]} l join {both[1]} r on {on}"]
    for side, (own, other) in enumerate(("lr", "rl")):
        if not (node["how"] == "outer" or (node["how"] == "left" and side == 0)):
            continue
        # a record of a stream joined with itself arrives on the left, then on the right
        before = f"{other}._a < {own}._a" if side == 0 else f"{other}._a <= {own}._a"
        met = f"{on} and {before}" if eager else on
        keys = [f"{own}.{pair[side]} {pair[0]}" for pair in pairs]
        columns = [
            f"{own}.{name} c{number}_{i}" if s == side else f"null c{number}_{i}"
            for i, (s, name) in enumerate(node["columns"])
        ]
        alone = ", ".join(keys + columns)
        parts.append(
            f"select {alone}, {own}._t, {own}._a, false _d from {both[side]} {own} "
            f"where not exists (select 1 from {both[1 - side]} {other} where {met})"
        )
    return " union all ".join(parts)


def _aggregates(number: int, node: Node, of: Shape) -> list[str]:
    types = dict(of.columns)
    return [
        f"{_aggregate(function, column, types)} c{number}_{i}"
        for i, (function, column) in enumerate(node["aggregates"])
    ]


def _aggregate(function: str, column: str | None, types: Mapping[str, str]) -> str:
    if column is None:
        return "count(*)"
    if function == "sum" and types[column] in ("float", "quarter"):
        return f"exact_sum(list({column}))"
    if function == "sum" and types[column] == "long":
        return f"sum({column})::bigint"
    if function == "sum" and types[column] == "int":
        return f"sum({column})::bigint"
    if function == "count_distinct":
        return f"count(distinct {column})"
    if function == "own_sum":
        return f"coalesce(sum({column}), 0)::bigint"
    if function.startswith(("first", "last")):
        word, _, known = function.partition("_")
        return f"{word}({column} order by _a)" + (f" filter ({column} is not null)" * bool(known))
    if " " in function:
        word, n, shown = function.split()
        order = f"{column} {'desc' if word == 'top' else 'asc'}, {shown} asc nulls first"
        rows = f"list({shown} order by {order}) filter (where {column} is not null)"
        return f"coalesce(list_slice({rows}, 1, {n}), [])"
    if function.startswith("collect"):
        distinct = "distinct " if function == "collect_set" else ""
        return f"coalesce(list({distinct}{column}) filter (where {column} is not null), [])"
    return f"{ {'mean': 'avg'}.get(function, function) }({column})"


def _group(number: int, node: Node, known: list[Shape], nodes: Any) -> str:
    by = ", ".join(node["by"])
    selected = ", ".join([by, *_aggregates(number, node, known[node["of"]])])
    return f"select {selected} from n{node['of']} where {_whole(node['by'])} group by {by}"


def _window(number: int, node: Node, known: list[Shape], nodes: Any) -> str:
    """With ``_now``, stream time at the end."""
    by, size, advance = ", ".join(node["by"]), node["size"], node["advance"]
    aggregates = ", ".join(_aggregates(number, node, known[node["of"]]))
    rows = f"select * from n{node['of']} where {_whole(node['by'])}"
    if node["kind"] == "session":
        same = f"partition by {by} order by _t"
        lag = f"_t - lag(_t) over (partition by {by} order by _t) <= {size}"
        begun = f"select *, case when {lag} then 0 else 1 end _b from ({rows})"
        rows = f"select *, sum(_b) over ({same}) _g from ({begun})"
        selected = f"{by}, min(_t) window_start, max(_t) window_end, 0 _now, {aggregates}"
        return f"select {selected} from ({rows}) group by {by}, _g"
    clock = "max(_t) over (order by _a rows unbounded preceding) _c, max(_t) over () _now"
    last = f"(_t // {advance}) * {advance}"
    starts = f"unnest(generate_series({last}, _t - {size} + 1, -{advance})) window_start"
    rows = f"select *, {starts} from (select *, {clock} from ({rows}))"
    selected = f"{by}, window_start, window_start + {size} window_end, max(_now) _now, {aggregates}"
    open_ = f"_c < window_start + {size + node['grace']}"
    return f"select {selected} from ({rows}) where {open_} group by {by}, window_start"


def _windows(number: int, node: Node, known: list[Shape], nodes: Any) -> str:
    """Windowed tables, on the same window or on a later one."""
    left, right = known[node["left"]], known[node["right"]]
    shift = node.get("shift", 0)
    pairs = [*zip(_names(left), _names(right), strict=True)]
    on = [f"l.{mine} = r.{other}" for mine, other in pairs]
    on += [f"l.{bound} + {shift} = r.{bound}" for bound in ("window_start", "window_end")]
    keys = [f"coalesce(l.{mine}, r.{other}) {mine}" for mine, other in pairs]
    keys += [f"coalesce(l.{b}, r.{b}) {b}" for b in ("window_start", "window_end")]
    return _joined(number, node, keys, on, node["how"])


def _beside(number: int, node: Node, known: list[Shape], nodes: Any) -> str:
    left, right = known[node["left"]], known[node["right"]]
    on = [f"l.{m} = r.{o}" for m, o in zip(_names(left), _names(right), strict=True)]
    keys = [f"l.{name}" for name in (*_names(left), "window_start", "window_end")]
    return _joined(number, node, keys, on, "left")


def _asks(number: int, node: Node, known: list[Shape], nodes: Any) -> str:
    left, right = known[node["left"]], known[node["right"]]
    pairs = [*zip(_names(left), _names(right), strict=True), (node["window_of"], "window_start")]
    on = [f"l.{mine} = r.{other}" for mine, other in pairs]
    return _joined(number, node, [f"l.{name}" for name in _names(left)], on, "left")


def _as_table(number: int, node: Node, known: list[Shape], nodes: list[Node]) -> str:
    if node["emit"] == "change":
        return f"select * from n{node['of']}"
    grace = nodes[node["of"]]["grace"]
    return f"select * from n{node['of']} where _now >= window_end + {grace}"


SQL: dict[str, Callable[[int, Node, list[Shape], Any], str]] = {
    "table": _table,
    "stream": _stream,
    "join": _join,
    "foreign": _foreign,
    "lookup": _lookup,
    "within": _within,
    "group": _group,
    "window": _window,
    "same": _windows,
    "shift": _windows,
    "beside": _beside,
    "asks": _asks,
    "where": _where,
    "as_table": _as_table,
}
