"""Random topologies as plain data, and what dovetail makes of them.

A topology is a list of nodes, each a dict whose ``op`` is a key of ``BUILD``; a node names others
by their place in the list, and the last one is the result. ``columns``: per value column of a join
a side, 0 or 1, and one of that side's columns. Times are microseconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

import dovetail as dt
from dovetail import testing
from fuzz.columns import KEYS, TYPES, VALUES

Node: TypeAlias = "dict[str, Any]"
Fields: TypeAlias = "list[tuple[str, str]]"

LONG_US = 10**14
"""A grace or a retention that nothing outlasts."""
ALIGN = "1 min"
"""How long one side of a join waits for the other, where it does."""
HOWS = ("inner", "left", "outer")


@dataclass(frozen=True)
class Shape:
    """What a node has: ``kind`` (table, stream, windowed), its key's and its value columns, each
    with its type. ``whole``: its key has no nulls.
    """

    kind: str
    key: Fields
    values: Fields
    whole: bool = True

    @property
    def columns(self) -> Fields:
        return [*self.key, *self.values]

    def typed(self, names: Sequence[str]) -> list[str]:
        """The types of some columns."""
        return [dict(self.columns)[name] for name in names]


def shapes(nodes: Sequence[Node]) -> list[Shape]:
    """What each node has."""
    found: list[Shape] = []
    for number, node in enumerate(nodes):
        found.append(_shape(number, node, found))
    return found


def _shape(number: int, node: Node, known: Sequence[Shape]) -> Shape:
    op = node["op"]
    if op in ("table", "stream"):
        return Shape(op, _fields(node["key"]), _fields(node["values"]))
    if op == "where":
        return known[node["of"]]
    if op in ("group", "window"):
        of = known[node["of"]]
        key = list(zip(node["by"], of.typed(node["by"]), strict=True))
        types = dict(of.columns)
        values = [
            (f"c{number}_{i}", _result(function, column and types[column]))
            for i, (function, column) in enumerate(node["aggregates"])
        ]
        return Shape("windowed" if op == "window" else "table", key, values)
    if op == "as_table":
        of = known[node["of"]]
        bounds = [("window_start", "moment"), ("window_end", "moment")]
        return Shape("table", [*of.key, *bounds], of.values)
    sides = known[node["left"]], known[node["right"]]
    values = [
        (f"c{number}_{i}", dict(sides[side].columns)[name])
        for i, (side, name) in enumerate(node["columns"])
    ]
    key, whole = list(sides[0].key), sides[0].whole
    if op == "foreign" and node["how"] in ("right", "outer"):
        key += [(f"right_{name}", type_) for name, type_ in sides[1].key]
        whole = False
    return Shape(sides[0].kind, key, values, whole)


def _fields(given: Sequence[Sequence[str]]) -> Fields:
    return [(name, type_) for name, type_ in given]


def _result(function: str, type_: str | None) -> str:
    """The type of an aggregate: one of ``TYPES``, or one that nothing is made of."""
    if function == "count":
        return "long"
    if function == "sum":
        return {"decimal": "sum", "float": "float", "quarter": "float"}.get(str(type_), "long")
    if function == "mean":
        return "mean"
    if function == "count_distinct":
        return "long"
    if function == "own_sum":
        return "long"
    ends = ("first", "first_known", "last", "last_known")
    return str(type_) if function in ("min", "max", *ends) else "list"


# Building.


def build(nodes: Sequence[Node]) -> tuple[Any, dict[int, Any]]:
    """The topology in process, and its inputs by the places of their nodes."""
    inputs = {
        number: (testing.stream if node["op"] == "stream" else testing.table)(
            f"s{number}",
            key=[name for name, _ in node["key"]],
            schema={n: TYPES[t][0] for n, t in [*node["key"], *node["values"]]},
            **versioned(node),
        )
        for number, node in enumerate(nodes)
        if node["op"] in ("table", "stream")
    }
    return over(nodes, inputs), inputs


def versioned(node: Node) -> dict[str, Any]:
    """The argument that keeps a table's history."""
    kept = node.get("versioned")
    return {} if kept is None else {"versioned": timedelta(microseconds=kept)}


def over(nodes: Sequence[Node], inputs: dict[int, Any]) -> Any:
    """The topology over these inputs."""
    made: list[Any] = []
    for number, node in enumerate(nodes):
        given = inputs.get(number)
        made.append(BUILD[node["op"]](number, node, made) if given is None else given)
    return made[-1]


def _selection(number: int, node: Node) -> dict[str, str]:
    sides = ("left", "right")
    return {f"c{number}_{i}": f"{sides[s]}.{name}" for i, (s, name) in enumerate(node["columns"])}


def _join(number: int, node: Node, made: list[Any], **options: Any) -> Any:
    if node.get("align"):
        options["align"] = ALIGN
    if node.get("name"):
        options["name"] = node["name"]
    left, right = made[node["left"]], made[node["right"]]
    if "on" not in options:
        keys = (side.plan.base_key.names for side in (left, right))
        options["on"] = dict(zip(*keys, strict=False))
    joined = left.join(right, how=node["how"], select=_selection(number, node), **options)
    return joined.materialize() if node.get("kept") else joined


def _named(number: int, node: Node, made: list[Any]) -> Any:
    return _join(number, node, made, on=node["on"])


def _foreign(number: int, node: Node, made: list[Any]) -> Any:
    return _join(number, node, made, on=node["on"], spread=node.get("spread"))


def _within(number: int, node: Node, made: list[Any]) -> Any:
    spans = {n: timedelta(microseconds=node[n]) for n in ("before", "after", "grace")}
    within = dt.within(**spans)
    return _join(number, node, made, within=within, unmatched=node["unmatched"])


def _shifted(number: int, node: Node, made: list[Any]) -> Any:
    return _join(number, node, made, shift=timedelta(microseconds=node["shift"]))


def _asked(number: int, node: Node, made: list[Any]) -> Any:
    return _join(number, node, made, window_of=node["window_of"])


def _sums(left: Any, right: Any) -> dict[str, Any]:
    return {"sum": pc.add(left["sum"], right["sum"])}


def _own_sum(column: str | None) -> dt.typing.AggregateCall:
    """The sum of whole numbers, nulls as nothing, by functions of its own."""
    made = dt.aggregate(
        init=lambda count: {"sum": pa.array([0] * count, pa.int64())},
        add=lambda state, value: _sums(state, {"sum": pc.fill_null(value, 0)}),
        merge=_sums,
        retract=lambda left, right: {"sum": pc.subtract(left["sum"], right["sum"])},
        finish=lambda state: state["sum"],
        state={"sum": pa.int64()},
        returns=pa.int64(),
    )
    return made(column)


def _aggregates(number: int, node: Node) -> dict[str, Any]:
    return {
        f"c{number}_{i}": _call(function, column)
        for i, (function, column) in enumerate(node["aggregates"])
    }


def _call(function: str, column: str | None) -> dt.typing.AggregateCall:
    """``top 2 c``, ``lowest 2 c``: what c is in the rows with the highest values of the column;
    ``first_known``: of those that are not null; ``own_sum``: by functions of its own.
    """
    if function == "own_sum":
        return _own_sum(column)
    if function in ("first_known", "last_known"):
        end: dt.typing.AggregateCall = getattr(dt, function[:-6])(column, ignore_nulls=True)
        return end
    word, *words = function.split()
    if words:
        n, shown = words
        assert column is not None
        return dt.top(int(n), shown, by=column, descending=word == "top")
    made: dt.typing.AggregateCall = getattr(dt, function)(*([] if column is None else [column]))
    return made


def _group(number: int, node: Node, made: list[Any]) -> Any:
    return made[node["of"]].group_by(*node["by"]).agg(**_aggregates(number, node))


def _window(number: int, node: Node, made: list[Any]) -> Any:
    spans = {n: timedelta(microseconds=node[n]) for n in ("grace", "retention")}
    if node["kind"] == "hopping":
        spans["advance"] = timedelta(microseconds=node["advance"])
    windows = getattr(dt.windows, node["kind"])(timedelta(microseconds=node["size"]), **spans)
    grouped = made[node["of"]].group_by(*node["by"]).window(windows)
    return grouped.agg(**_aggregates(number, node))


def _as_table(number: int, node: Node, made: list[Any]) -> Any:
    of, windows = made[node["of"]], "on_close" if node["emit"] == "final" else "on_change"
    if not node.get("streamed"):
        return of.to_table(windows=windows)
    key, values = ([field.name for field in part] for part in (of.plan.key, of.plan.values))
    return of.to_stream(key=key, select=[*key, *values], windows=windows).to_table()


def _where(number: int, node: Node, made: list[Any]) -> Any:
    return made[node["of"]].where(node["on"])


BUILD: dict[str, Callable[[int, Node, list[Any]], Any]] = {
    "join": _join,
    "foreign": _foreign,
    "lookup": _named,
    "within": _within,
    "same": _join,
    "beside": _join,
    "asks": _asked,
    "shift": _shifted,
    "group": _group,
    "window": _window,
    "as_table": _as_table,
    "where": _where,
}


# Drawing.


def drawn(random_: random.Random) -> list[Node]:
    """Some inputs, and operators over what there is; what the result does not read is left out."""
    theme = random_.choice([*2 * [OPERATORS], OF_WINDOWS, OF_GROUPS])
    domains = [random_.choices(KEYS, k=random_.choice([1, 1, 1, 2, 3])) for _ in range(2)]
    if theme is OF_WINDOWS:
        domains = [[random_.choice(KEYS)]]
    nodes = [_input(random_, number, domains) for number in range(random_.randint(1, 4))]
    if theme is OF_WINDOWS:
        nodes = [
            _input(random_, 0, domains, "stream"),
            *nodes[1:],
            _input(random_, len(nodes), domains, "table"),
        ]
    operators = random_.choice([1, 1, 2, 3, 4, 5, 7])
    if theme is OF_GROUPS:
        nodes = [_input(random_, 0, domains, "table")]
        nodes[0]["values"].append(["c0_9", "bool"])
        operators = 1
    for _ in range(20 * operators):
        if operators == 0:
            break
        known = shapes(nodes)
        fresh = random_.choice(theme)(random_, nodes, known)
        if fresh is not None:
            if "columns" in fresh and random_.random() < 0.1:
                fresh["name"] = f"join {len(nodes)}"
            nodes.append(fresh)
            operators -= 1
    known = shapes(nodes)
    if known[-1].kind == "windowed":
        node: Node = {"op": "as_table", "of": len(nodes) - 1, "emit": "change"}
        nodes.append(node | ({"streamed": True} if random_.random() < 0.5 else {}))
    return pruned(nodes)


def places(nodes: Sequence[Node]) -> dict[int, int]:
    """The nodes that the last one reads, itself among them, with their places once the others are
    gone.
    """
    used = {len(nodes) - 1}
    for number in reversed(range(len(nodes))):
        if number in used:
            used |= {nodes[number][side] for side in SIDES if side in nodes[number]}
    return {number: new for new, number in enumerate(sorted(used))}


def aligned(nodes: Sequence[Node]) -> bool:
    """Whether a join lets rows wait."""
    return any(node.get("align") for node in nodes)


def pruned(nodes: Sequence[Node]) -> list[Node]:
    """The nodes that the last one reads, columns named by their new places."""
    place = places(nodes)
    moved = [
        nodes[n] | {side: place[nodes[n][side]] for side in SIDES if side in nodes[n]}
        for n in place
    ]
    return _renamed(moved, {f"c{n}_": f"c{m}_" for n, m in place.items()})


SIDES = ("left", "right", "of")


def _renamed(nodes: list[Node], names: dict[str, str]) -> list[Node]:
    def name(given: Any) -> Any:
        if isinstance(given, str) and given.startswith(("c", "right_c")):
            head, _, tail = given.rpartition("_")
            bare = head.removeprefix("right_") + "_"
            if bare in names:
                return given[: len(head) + 1 - len(bare)] + names[bare] + tail
        return [name(one) for one in given] if isinstance(given, list) else given

    lists = ("on", "by", "columns", "aggregates", "values", "window_of")
    return [{k: name(v) if k in lists else v for k, v in node.items()} for node in nodes]


def _input(
    random_: random.Random, number: int, domains: list[list[str]], op: str | None = None
) -> Node:
    key = random_.choice(domains)
    op = op or random_.choice(["table", "table", "stream"])
    types = random_.choices([*VALUES, "start"], k=random_.randint(1, 3))
    if random_.random() < 0.6:
        types += [*random_.choice(domains), "start"]
    if random_.random() < 0.3:
        types.append("bool")
    node: Node = {
        "op": op,
        "key": [[f"k{number}_{i}", type_] for i, type_ in enumerate(key)],
        "values": [[f"c{number}_{i}", type_] for i, type_ in enumerate(types)],
    }
    if op == "table" and random_.random() < 0.25:
        node["versioned"] = random_.choice([0, 5, 50, LONG_US])
    return node


def _columns(random_: random.Random, *sides: Shape) -> list[list[Any]]:
    known = [[s, name] for s, shape in enumerate(sides) for name, _ in shape.values]
    return random_.sample(known, min(len(known), random_.randint(1, 4)))


def _two(
    random_: random.Random, known: Sequence[Shape], fits: Callable[[Shape, Shape], bool]
) -> tuple[int, int] | None:
    """Two nodes that fit, the later ones rather."""
    pairs = [
        (i, j) for i, left in enumerate(known) for j, right in enumerate(known) if fits(left, right)
    ]
    return random_.choices(pairs, [1 + i + j for i, j in pairs])[0] if pairs else None


def _types(fields: Fields) -> list[str]:
    return [type_ for _, type_ in fields]


def _draw_join(random_: random.Random, nodes: list[Node], known: list[Shape]) -> Node | None:
    def fits(left: Shape, right: Shape) -> bool:
        tables = left.kind == right.kind == "table" and left.whole and right.whole
        return tables and _types(left.key) == _types(right.key)

    pair = _two(random_, known, fits)
    if pair is None:
        return None
    node = {"op": "join", "left": pair[0], "right": pair[1], "how": random_.choice(HOWS)}
    columns = _columns(random_, known[pair[0]], known[pair[1]])
    return node | {"columns": columns, "kept": random_.random() < 0.15}


def _draw_foreign(random_: random.Random, nodes: list[Node], known: list[Shape]) -> Node | None:
    def fits(left: Shape, right: Shape) -> bool:
        tables = left.kind == right.kind == "table" and left.whole and right.whole
        return tables and all(t in _types(left.values) for t in _types(right.key))

    pair = _two(random_, known, fits)
    if pair is None:
        return None
    left, right = known[pair[0]], known[pair[1]]
    on = [random_.choice([n for n, t in left.values if t == type_]) for _, type_ in right.key]
    how = random_.choice([*HOWS, "right", "left", "inner"])
    node = {"op": "foreign", "left": pair[0], "right": pair[1], "how": how, "on": on}
    columns = _columns(random_, left, right)
    if how in ("inner", "left") and random_.random() < 0.3:
        node["spread"] = random_.choice([1, 2, 3, 8, 20])
    return node | {"columns": columns, "kept": random_.random() < 0.1}


AGGREGATES = {
    "sum": ("long", "int", "decimal", "quarter", "float"),
    "mean": ("long", "int", "quarter"),
    "min": tuple(TYPES),
    "max": tuple(TYPES),
    "collect_set": tuple(t for t in TYPES if t != "float"),
    "collect_list": tuple(TYPES),
    "count": tuple(TYPES),
    "count_distinct": tuple(TYPES),
    "top": tuple(TYPES),
    "lowest": tuple(TYPES),
    "own_sum": ("long",),
    **dict.fromkeys(("first", "first_known", "last", "last_known"), tuple(TYPES)),
}
IN_ORDER = ("first", "first_known", "last", "last_known")
"""Aggregates of a stream's records in the order of their arrival."""


def _draw_aggregates(
    random_: random.Random, of: Shape, *, ordered: bool = False
) -> list[list[Any]]:
    """``ordered``: whether the query knows in which order the rows come."""
    found: list[list[Any]] = [["count", None]]
    for _ in range(random_.randint(0, 4)):
        function = random_.choice([*AGGREGATES, "min", "max", *(ordered * IN_ORDER)])
        if function in IN_ORDER and not ordered:
            continue
        columns = [name for name, type_ in of.columns if type_ in AGGREGATES[function]]
        if function in ("top", "lowest"):
            # DuckDB has no order of zeros of either sign.
            shown = [name for name, type_ in of.columns if type_ in TYPES and type_ != "float"]
            function += f" {random_.choice([1, 2, 3, 40])} {random_.choice(shown)}" if shown else ""
            columns = columns if shown else []
        if columns:
            found.append([function, random_.choice(columns)])
    return found


def _draw_group(random_: random.Random, nodes: list[Node], known: list[Shape]) -> Node | None:
    of = random_.choice([n for n, s in enumerate(known) if s.kind != "windowed"])
    if known[of].kind == "stream" and nodes[of].get("unmatched") == "retract":
        return None
    columns = [name for name, type_ in known[of].columns if type_ in (*KEYS, "bool")]
    if not columns:
        return None
    by = random_.sample(columns, random_.choice([1, 1, min(2, len(columns))]))
    if random_.random() < 0.7:  # few groups
        by = [name for name, type_ in known[of].columns if type_ == "bool"][:1] or by
    aggregates = _draw_aggregates(random_, known[of], ordered=nodes[of]["op"] == "stream")
    return {"op": "group", "of": of, "by": by, "aggregates": aggregates}


def _draw_window(random_: random.Random, nodes: list[Node], known: list[Shape]) -> Node | None:
    streams = [n for n, s in enumerate(known) if s.kind == "stream"]
    if not streams:
        return None
    of = random_.choice(streams)
    if nodes[of].get("unmatched") == "retract":
        return None
    # What is late in a stream that is a result is a question of its own.
    graces = [0, 0, 3, 30, LONG_US] if nodes[of]["op"] == "stream" else [LONG_US]
    grace = random_.choice(graces)
    columns = [name for name, type_ in known[of].columns if type_ in KEYS]
    if not columns:
        return None
    advance = random_.choice([1, 2, 5, 20])
    kind = random_.choice(["tumbling", "hopping", "session"])
    size = advance * (random_.randint(1, 4) if kind == "hopping" else 1)
    if kind == "session":
        size, grace = random_.choice([1, 4, 25]), LONG_US
    return {
        "op": "window",
        "of": of,
        "by": [random_.choice(columns)],
        "kind": kind,
        "size": size,
        "advance": advance,
        "grace": grace,
        "retention": 10 * LONG_US,
        "aggregates": _draw_aggregates(random_, known[of]),
    }


def _draw_same(random_: random.Random, nodes: list[Node], known: list[Shape]) -> Node | None:
    windows = [n for n, node in enumerate(nodes) if node["op"] == "window"]
    if not windows:
        return None
    alike = ("kind", "size", "advance")
    left = random_.choice(windows)
    rights = [
        n
        for n in windows
        if [nodes[n][k] for k in alike] == [nodes[left][k] for k in alike]
        and _types(known[n].key) == _types(known[left].key)
    ]
    right = random_.choice(rights)
    node = {"op": "same", "left": left, "right": right, "how": random_.choice(HOWS)}
    columns = _columns(random_, known[left], known[right])
    if nodes[left]["kind"] != "session" and random_.random() < 0.4:
        shift = nodes[left]["advance"] * random_.choice([-3, -1, 1, 2])
        node = {"op": "shift", "left": left, "right": right, "how": "left", "shift": shift}
    return node | {"columns": columns}


def _draw_beside(random_: random.Random, nodes: list[Node], known: list[Shape]) -> Node | None:
    def fits(left: Shape, right: Shape) -> bool:
        kinds = left.kind == "windowed" and right.kind == "table" and right.whole
        return kinds and _types(left.key) == _types(right.key)

    pair = _two(random_, known, fits)
    if pair is None:
        return None
    columns = _columns(random_, known[pair[0]], known[pair[1]])
    return {"op": "beside", "left": pair[0], "right": pair[1], "how": "left", "columns": columns}


def _draw_asks(random_: random.Random, nodes: list[Node], known: list[Shape]) -> Node | None:
    """Rows of a table that name the start of a window."""

    def fits(left: Shape, right: Shape) -> bool:
        kinds = left.kind == "table" and left.whole and right.kind == "windowed"
        return kinds and "start" in _types(left.columns) and _types(left.key) == _types(right.key)

    fixed = [
        Shape("", [], []) if nodes[n].get("kind") == "session" else s for n, s in enumerate(known)
    ]
    pair = _two(random_, fixed, fits)
    if pair is None or any(n["op"] == "window" and n["kind"] == "session" for n in nodes):
        return None
    left, right = known[pair[0]], known[pair[1]]
    node = {"op": "asks", "left": pair[0], "right": pair[1], "how": "left"}
    node["window_of"] = random_.choice([n for n, t in left.columns if t == "start"])
    return node | {"columns": _columns(random_, left, right)}


def _draw_as_table(random_: random.Random, nodes: list[Node], known: list[Shape]) -> Node | None:
    windowed = [n for n, shape in enumerate(known) if shape.kind == "windowed"]
    if not windowed:
        return None
    of = random_.choice(windowed)
    final = nodes[of]["op"] == "window" and nodes[of]["kind"] != "session"
    final = final and nodes[nodes[of]["of"]]["op"] == "stream" and random_.random() < 0.3
    node = {"op": "as_table", "of": of, "emit": "final" if final else "change"}
    return node | ({"streamed": True} if random_.random() < 0.5 else {})


def _draw_lookup(random_: random.Random, nodes: list[Node], known: list[Shape]) -> Node | None:
    def fits(left: Shape, right: Shape) -> bool:
        kinds = left.kind == "stream" and right.kind == "table"
        return kinds and all(t in _types(left.columns) for t in _types(right.key))

    sources = [
        s
        if n["op"] == "stream" or (n["op"] == "table" and "versioned" not in n)
        else Shape("", [], [])
        for n, s in zip(nodes, known, strict=True)
    ]
    pair = _two(random_, sources, fits)
    if pair is None:
        return None
    left, right = known[pair[0]], known[pair[1]]
    on = [random_.choice([n for n, t in left.columns if t == type_]) for _, type_ in right.key]
    if len(set(on)) < len(on):
        return None
    node = {"op": "lookup", "left": pair[0], "right": pair[1], "how": random_.choice(HOWS[:2])}
    return node | {"on": on, "columns": _columns(random_, left, right)}


def _draw_within(random_: random.Random, nodes: list[Node], known: list[Shape]) -> Node | None:
    def fits(left: Shape, right: Shape) -> bool:
        return left.kind == right.kind == "stream" and _types(left.key) == _types(right.key)

    sources = [
        s if n["op"] == "stream" else Shape("", [], []) for n, s in zip(nodes, known, strict=True)
    ]
    pair = _two(random_, sources, fits)
    if pair is None:
        return None
    before, after = random_.choice([(0, 0), (0, 5), (3, 0), (20, 40), (-2, 6)])
    return {
        "op": "within",
        "left": pair[0],
        "right": pair[1],
        "how": random_.choice(HOWS),
        "before": before,
        "after": after,
        "grace": LONG_US,
        "unmatched": random_.choice(["eager", "retract"]),
        "columns": _columns(random_, known[pair[0]], known[pair[1]]),
    }


def _draw_where(random_: random.Random, nodes: list[Node], known: list[Shape]) -> Node | None:
    """Rows of a table or a stream of which a column is true."""
    of = random_.choice([n for n, s in enumerate(known) if s.kind != "windowed"])
    columns = [name for name, type_ in known[of].values if type_ == "bool"]
    if not columns or nodes[of].get("unmatched") == "retract":
        return None
    return {"op": "where", "of": of, "on": random_.choice(columns)}


OPERATORS = [
    *4 * [_draw_where],
    _draw_join,
    _draw_join,
    _draw_foreign,
    _draw_foreign,
    _draw_group,
    _draw_group,
    _draw_window,
    _draw_same,
    _draw_beside,
    _draw_asks,
    _draw_as_table,
    _draw_lookup,
    _draw_within,
]

OF_WINDOWS = [
    _draw_window,
    _draw_window,
    _draw_same,
    _draw_beside,
    _draw_beside,
    _draw_asks,
    _draw_asks,
    _draw_as_table,
    _draw_join,
]
"""Windows, and what stands beside them."""

OF_GROUPS = [_draw_group]
"""Large groups of a table."""
