"""The part of a plan that gives stored state its meaning, and its hash.

What is stored depends on all that rows go through before: how inputs are read, joins with their
options, the selections between stages. The last selection comes after all state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from dovetail.errors import CheckpointError, PlanError
from dovetail.plan.expressions import text_of
from dovetail.plan.nodes import Derived, Join, Node, Source
from dovetail.plan.select import row_columns
from dovetail.plan.views import View, at_rest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def fingerprint(*nodes: Node) -> str:
    """A short hash of what ``describe`` says."""
    return _hash(describe(*nodes))


def describe(*nodes: Node) -> dict[str, Any]:
    """All of a topology's results that stored state depends on, as JSON's own data: its inputs with
    their names and how each is read, and what is made of them, expressions by their text.

    Not part of it: the selection that comes last, the names of joins, how results are emitted, how
    long ``align=`` waits, look-up sources and caches, and what the inputs' frames do themselves.
    """
    description = _Description(origins_of(nodes))
    described = [description(at_rest(node)[0]) for node in nodes]
    made = described[0] if len(described) == 1 else {"results": described}
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


def describe_input(nodes: Sequence[Node], entry: Node) -> dict[str, Any]:
    """An input of a stage of their topology, as JSON's own data; another stage's result by its
    fingerprint.
    """
    return _with_hashes(_Description(origins_of(nodes))(entry))


def identity(described: Mapping[str, Any]) -> dict[str, Any]:
    """By what a described input is known from one topology to another: a source by its name and the
    names of its key, however it is read and whatever else it has.
    """
    if "view" in described:
        return {**described, "view": identity(described["view"])}
    if "result" in described:
        return dict(described)
    kind = "stream" if "stream" in described else "table"
    return {kind: described[kind], "key": [name for name, _ in described["key"]]}


def sources_in(described: Any) -> Iterator[Mapping[str, Any]]:
    """The sources in what ``describe`` has said."""
    if isinstance(described, dict):
        if "input" in described:
            yield described
        described = described.values()
    elif not isinstance(described, list):
        return
    for part in described:
        yield from sources_in(part)


def origins_of(nodes: Sequence[Node]) -> list[Source]:
    """The sources of a topology with these results, in the order of first use."""
    return list(dict.fromkeys(source for node in nodes for source in node.origins))


def in_one_order(nodes: Sequence[Node]) -> list[Node]:
    """Several results in the order that a checkpoint knows them by, whatever theirs is."""
    return sorted(nodes, key=fingerprint)


def refuse_other(
    nodes: Sequence[Node], title: str, fingerprint_then: str, then: Mapping[str, Any]
) -> None:
    """Refuse to go on with what another topology stored, whose description is ``then``."""
    if fingerprint(*nodes) == fingerprint_then:
        return
    now = describe(*nodes)
    before, here = (described.get("results", [described]) for described in (then, now))
    if len(before) == len(here):
        places = ["plan"] if len(nodes) == 1 else [f"result {n}" for n in range(1, len(here) + 1)]
        parts = zip(before, here, places, strict=True)
        differences = chain.from_iterable(_differences(*part) for part in parts)
        raise CheckpointError(
            title,
            f"the checkpoint belongs to another topology: {'; '.join(differences)}",
            "Start with a new checkpoint, which may go on with this one's state (initial=), or "
            "restore the topology that wrote it",
        )
    were, are = (", ".join(map(_short, results)) for results in (before, here))
    raise CheckpointError(
        title,
        f"the checkpoint is of a query with {len(before)} results, {were}, and this one has "
        f"{len(here)}, {are}",
        "Go on with the same results, or start with a new checkpoint, which may go on with this "
        "one's state (initial=)",
    )


def refuse_none_of(node: Node, fingerprint_then: str, then: Mapping[str, Any]) -> None:
    """Refuse a result that is none of those of the query that stored something."""
    results = then.get("results")
    if results is None:
        refuse_other([node], node.name, fingerprint_then, then)
    elif _numbered_anew(describe(node)) not in map(_numbered_anew, results):
        raise CheckpointError(
            node.name,
            f"the checkpoint is of a query with {len(results)} results, "
            f"{', '.join(map(_short, results))}, and this one, {_short(describe(node))}, is none "
            "of them",
            "Give one of these results, built as the query builds it",
        )


def _numbered_anew(described: Mapping[str, Any]) -> Any:
    """A description of one result, its inputs numbered in the order in which it names them."""
    numbers: dict[int, int] = {}

    def anew(part: Any) -> Any:
        if isinstance(part, dict):
            if "input" in part:
                part = part | {"input": numbers.setdefault(part["input"], len(numbers))}
            return {name: anew(part[name]) for name in sorted(part)}
        return [*map(anew, part)] if isinstance(part, list) else part

    return anew(described)


def refuse_alike(*nodes: Node) -> None:
    """Refuse inputs that differ in nothing that a checkpoint knows them by: exchanged, each would
    go on with the state of the other.
    """
    sources = origins_of(nodes)
    description = _Description(sources)
    described = [{**description(source)} | {"input": 0} for source in sources]
    for number, source in enumerate(sources):
        if described[number] in described[:number]:
            raise PlanError(
                source.title,
                "another one has the same name and the same columns, so a checkpoint could not "
                "tell them apart",
                "Give each a name of its own with name=",
            )


def _with_hashes(described: Mapping[str, Any]) -> dict[str, Any]:
    if "view" in described:
        return {**described, "view": _with_hashes(described["view"])}
    return {"result": _hash(described)} if "result" in described else dict(described)


def _hash(described: Mapping[str, Any]) -> str:
    text = json.dumps(described, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Description:
    """``inputs``: all inputs of the whole plan; which of a node's inputs are one is part of it."""

    def __init__(self, inputs: Sequence[Source]) -> None:
        self._inputs = inputs

    def __call__(
        self, node: Node, *, whole: bool = False, needed: Collection[str] | None = None
    ) -> Mapping[str, Any]:
        """``whole``: with the columns that the node's selections make; ``needed``: of a view or a
        source the columns that the view above it reads, None where there is none.
        """
        if isinstance(node, Source):
            return self._source(node, needed)
        if isinstance(node, View):
            return node.described(self, whole=whole, needed=needed)
        if isinstance(node, Derived):
            made = self(node.node, whole=True)
            return {"result": made, "key": _columns(node.key), "values": _columns(node.values)}
        return (
            self._join(node, whole) if isinstance(node, Join) else node.described(self, whole=whole)
        )

    def _source(self, source: Source, needed: Collection[str] | None) -> dict[str, Any]:
        values = source.values
        if needed is not None:
            names = sorted(name for name in values.names if name in needed)
            values = StructType([values[name] for name in names])
        described: dict[str, Any] = {
            "stream" if source.stream else "table": source.name,
            "input": self._inputs.index(source) + 1,
            "key": _columns(source.key),
            "values": _columns(values),
            "versioned_us": source.versioned_us,
        }
        for name in ("timestamp", "deleted", "sequence", "log_partition"):
            column = getattr(source, name)
            text = None if column is None else text_of(source, column, lambda: _frame(source))
            described[name] = text
        if source.time_text is not None:
            described["timestamp"] = source.time_text
        return described

    def _join(self, node: Join, whole: bool) -> dict[str, Any]:
        described: dict[str, Any] = {
            "join": node.how,
            "of": node.kind,
            "align": node.align_us is not None,
            **node.options(lambda item, row: self.text(node, item, row)),
            "left": self(node.left, whole=whole),
            "right": self(node.right, whole=whole),
        }
        if whole:
            row, _ = row_columns(node.left, node.right)
            described["select"] = [
                [s.name, s.ref if s.column is None else self.text(node, s.column, row)]
                for s in node.select
            ]
        return described

    def text(self, node: Node, item: str | Column, row: StructType) -> str:
        """A name, or the text of an expression over a row."""
        return text_of(node, item, lambda: self._empty(row))

    def _empty(self, row: StructType) -> DataFrame:
        frame = self._inputs[0].frame
        session = SparkSession.getActiveSession() if frame is None else frame.sparkSession
        assert session is not None, "an expression without a session"
        return session.createDataFrame([], row)


def _frame(source: Source) -> DataFrame:
    assert source.frame is not None
    return source.frame


def _columns(fields: StructType) -> list[list[str]]:
    return [[f.name, f.dataType.simpleString()] for f in fields]


def _differences(then: Any, now: Any, where: str = "plan") -> Iterator[str]:
    """The places where two plans differ, each with what was and what is."""
    if isinstance(then, dict) and isinstance(now, dict) and then.keys() == now.keys():
        for part in then:
            yield from _differences(then[part], now[part], f"{where}.{part}")
    elif then != now:
        yield f"{where} was {_short(then)} and is {_short(now)}"


_MADE = dict.fromkeys(("result", "materialized", "windows"), "the result of {}")
_MADE["expired"] = "{} with rows that expire"


def _short(part: Any) -> str:
    """A part of a plan in a few words."""
    if not isinstance(part, dict):
        return json.dumps(part)
    if "join" in part:
        article = "an" if part["join"] in ("inner", "outer") else "a"
        return f"{article} {part['join']} join of {part['of']}"
    if "aggregate" in part:
        return f"an aggregate by {', '.join(part['by'])}"
    for kind in ("stream", "table"):
        if kind in part:
            return f"{kind} {part[kind]}"
    for made, said in _MADE.items():
        if made in part:
            return said.format(_short(part[made]))
    return json.dumps(part)
