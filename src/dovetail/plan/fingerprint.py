"""The part of a plan that gives stored state its meaning, and a hash of it.

Stored state depends on all that rows pass before: how inputs are read, the joins with their
options, and the selections between stages. It does not depend on the last selection, which comes
after all state.
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
from dovetail.plan.nodes import Derived, JoinNode, Node, Source
from dovetail.plan.select import joined_row_columns
from dovetail.plan.types.expressions import text_of
from dovetail.plan.views import View, split_result_views

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def fingerprint(*nodes: Node) -> str:
    """Return a hash of what ``describe`` returns for a topology: 16 hexadecimal digits, the same in
    every process. ``nodes``: the results, at least one; their order counts. Expressions need a
    Spark session.
    """
    return _description_hash(describe(*nodes))


def describe(*nodes: Node) -> dict[str, Any]:
    """Return, as JSON data, all parts of a topology that stored state depends on.

    These are the inputs with their names and how each is read, and all that is computed from them,
    with expressions as text. ``nodes``: the results, at least one. For one result the data is its
    description, nested from the result down to the sources. Several are a list in the order given,
    under the only name ``"results"``. Expressions need a Spark session.

    Not part of it are the last selection, the names of joins, and the way in which results are
    emitted. Nor are the length of ``align=``, lookup sources, caches, and the steps within an
    input's frame.
    """
    description = _Description(sources_of(nodes))
    described = [description(split_result_views(node)[0]) for node in nodes]
    data = described[0] if len(described) == 1 else {"results": described}
    return json.loads(json.dumps(data))  # type: ignore[no-any-return]


def describe_input(nodes: Sequence[Node], entry: Node) -> dict[str, Any]:
    """Return, as JSON data, the description of an input of a stage: all that stored state depends
    on in the input. Another stage's result in it is replaced by the hash of its description, under
    ``"result"``.

    ``nodes``: the results of the input's topology. A source's description has, under ``"input"``,
    its position from 1 among their sources. ``entry``: the input, a source, another stage's result
    or a view of either. Expressions need a Spark session.
    """
    return _hash_stage_results(_Description(sources_of(nodes))(entry))


def input_identity(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an input's description by which another topology recognizes that input.

    ``described``: a value that ``describe_input`` returned. A source is recognized by its name and
    the names of its key columns, however it is read: ``{"table": name, "key": [names]}``, with
    ``"stream"`` for a stream. A stage's result is recognized by its whole description. A view keeps
    its own part, with this identity of what it views.
    """
    if "view" in described:
        return {**described, "view": input_identity(described["view"])}
    if "result" in described:
        return dict(described)
    kind = "stream" if "stream" in described else "table"
    return {kind: described[kind], "key": [name for name, _ in described["key"]]}


def described_sources(described: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the descriptions of sources within ``described``, at any depth, in their order there.

    ``described``: a value that ``describe`` returned, or a part of it. A source is a dict with the
    name ``"input"``. One that is read twice comes twice. Values that are neither dicts nor lists
    yield nothing.
    """
    if isinstance(described, dict):
        if "input" in described:
            yield described
        described = described.values()
    elif not isinstance(described, list):
        return
    for part in described:
        yield from described_sources(part)


def sources_of(nodes: Sequence[Node]) -> list[Source]:
    """Return the sources of a topology with the results ``nodes``, through all stages, each once,
    in the order of first use. Empty without results.
    """
    return list(dict.fromkeys(source for node in nodes for source in node.origins))


def in_checkpoint_order(nodes: Sequence[Node]) -> list[Node]:
    """Return a topology's results, ``nodes``, in the order in which its checkpoint lists them:
    sorted by the fingerprint of each alone. Equal ones keep their order.
    """
    return sorted(nodes, key=fingerprint)


def refuse_other(
    nodes: Sequence[Node], title: str, fingerprint_then: str, then: Mapping[str, Any]
) -> None:
    """Raise ``CheckpointError`` with the differences if a checkpoint belongs to another topology
    than ``nodes``. Return None if the fingerprints are equal.

    ``nodes``: the results, sorted by ``in_checkpoint_order``, at least one. ``fingerprint_then``,
    ``then``: the checkpoint's topology, as ``fingerprint`` and ``describe`` returned it. ``title``:
    the subject of the error.
    """
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
    were, are = (", ".join(map(_part_in_words, results)) for results in (before, here))
    raise CheckpointError(
        title,
        f"the checkpoint is of a query with {len(before)} results, {were}, and this one has "
        f"{len(here)}, {are}",
        "Go on with the same results, or start with a new checkpoint, which may go on with this "
        "one's state (initial=)",
    )


def refuse_unknown_result(node: Node, fingerprint_then: str, then: Mapping[str, Any]) -> None:
    """Raise ``CheckpointError`` if ``node`` is none of the results of a checkpoint's topology.

    ``fingerprint_then``, ``then``: that topology, as ``fingerprint`` and ``describe`` returned it.
    It may have one result or several.
    """
    results = then.get("results")
    if results is None:
        refuse_other([node], node.name, fingerprint_then, then)
    elif _renumber_inputs(describe(node)) not in map(_renumber_inputs, results):
        raise CheckpointError(
            node.name,
            f"the checkpoint is of a query with {len(results)} results, "
            f"{', '.join(map(_part_in_words, results))}, and this one, "
            f"{_part_in_words(describe(node))}, is none of them",
            "Give one of these results, built as the query builds it",
        )


def _renumber_inputs(described: Mapping[str, Any]) -> Any:
    """Return a copy of a result's description with its names sorted, and its sources renumbered
    under ``"input"``. The new numbers count from 0 as sources are met in the sorted description,
    depth first; one source keeps one number. Two results that differ only in these numbers become
    equal.
    """
    numbers: dict[int, int] = {}

    def renumber(part: Any) -> Any:
        """Return a copy of a part of the description, at any depth, with its names sorted and its
        sources renumbered. Numbers given to former parts are remembered for the next ones.
        """
        if isinstance(part, dict):
            if "input" in part:
                part = part | {"input": numbers.setdefault(part["input"], len(numbers))}
            return {name: renumber(part[name]) for name in sorted(part)}
        return [*map(renumber, part)] if isinstance(part, list) else part

    return renumber(described)


def refuse_alike(*nodes: Node) -> None:
    """Raise ``PlanError`` if two sources have the same name and columns and are read alike, by the
    same expressions. ``nodes``: the results of the topology.

    A checkpoint could not tell such sources apart. If they were exchanged, each would continue with
    the state of the other.
    """
    sources = sources_of(nodes)
    description = _Description(sources)
    described = [{**description(source)} | {"input": 0} for source in sources]
    for source_index, source in enumerate(sources):
        if described[source_index] in described[:source_index]:
            raise PlanError(
                source.title,
                "another one has the same name and the same columns, so a checkpoint could not "
                "tell them apart",
                "Give each a name of its own with name=",
            )


def _hash_stage_results(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a stage's input with another stage's result, below any views,
    replaced by ``{"result": hash}``. The description of a source is returned as an equal dict.

    ``described``: JSON data, all that stored state depends on in the input.
    """
    if "view" in described:
        return {**described, "view": _hash_stage_results(described["view"])}
    return {"result": _description_hash(described)} if "result" in described else dict(described)


def _description_hash(described: Mapping[str, Any]) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 hash of a description, which must be
    JSON data. The order of names within JSON objects does not count.
    """
    text = json.dumps(described, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Description:
    """Callback that describes the nodes of a plan. ``inputs``: all sources of the whole plan, at
    least one. A source's description has its position among them, from 1.
    """

    def __init__(self, inputs: Sequence[Source]) -> None:
        self._inputs = inputs

    def __call__(
        self, node: Node, *, whole: bool = False, needed: Collection[str] | None = None
    ) -> Mapping[str, Any]:
        """Return the description of a node and of all nodes below it, as JSON data: a dict whose
        names depend on the kind of node. A stage's result has ``result``, ``key`` and ``values``.

        ``whole``: True to include the columns that the selections of joins make; below a stage's
        result it is always True. ``needed``: for a view or a source, the names of the columns that
        the view above it reads; None if there is no such view. Other nodes do not use it.
        """
        if isinstance(node, Source):
            return self._source(node, needed)
        if isinstance(node, View):
            return node.state_properties(self, whole=whole, needed=needed)
        if isinstance(node, Derived):
            result = self(node.node, whole=True)
            return {
                "result": result,
                "key": _names_and_types(node.key),
                "values": _names_and_types(node.values),
            }
        return (
            self._join(node, whole)
            if isinstance(node, JoinNode)
            else node.state_properties(self, whole=whole)
        )

    def _source(self, source: Source, needed: Collection[str] | None) -> dict[str, Any]:
        """Return the description of a source as JSON data: ``table`` or ``stream`` (its name),
        ``input`` (its position from 1), ``key`` and ``values`` (names and types), ``versioned_us``
        (the history). ``timestamp``, ``deleted``, ``sequence`` and ``log_partition`` are the texts
        of the expressions by which it is read, None for none.

        ``needed``: the names of columns; value columns that are not among them are left out, and
        the others are sorted by name. None keeps all in their order. An expression needs the
        source's frame.
        """
        values = source.values
        if needed is not None:
            names = sorted(name for name in values.names if name in needed)
            values = StructType([values[name] for name in names])
        described: dict[str, Any] = {
            "stream" if source.stream else "table": source.name,
            "input": self._inputs.index(source) + 1,
            "key": _names_and_types(source.key),
            "values": _names_and_types(values),
            "versioned_us": source.versioned_us,
        }
        read = {
            "timestamp": source.timestamp,
            "deleted": source.deleted,
            "sequence": source.order.sequence,
            "log_partition": source.order.log_partition,
        }
        for name, column in read.items():
            text = (
                None
                if column is None
                else text_of(source, column, lambda: _frame_of_source(source))
            )
            described[name] = text
        if source.time_text is not None:
            described["timestamp"] = source.time_text
        return described

    def _join(self, node: JoinNode, whole: bool) -> dict[str, Any]:
        """Return the description of the join ``node`` and of its sides, as JSON data: ``join`` (its
        kind), ``of`` (its sides in words), ``align``, ``left``, ``right``, and the options of this
        kind of join. ``align`` says only that ``align=`` is given, not how long.

        ``whole``: True to include ``select``, the selection of the join, and that of each join
        below it in the same stage.
        """
        described: dict[str, Any] = {
            "join": node.how,
            "of": node.kind,
            "align": node.align_us is not None,
            **node.options(lambda item, row: self.text(node, item, row)),
            "left": self(node.left, whole=whole),
            "right": self(node.right, whole=whole),
        }
        if whole:
            row, _ = joined_row_columns(node.left, node.right)
            described["select"] = [
                [s.name, s.ref if s.column is None else self.text(node, s.column, row)]
                for s in node.select
            ]
        return described

    def text(self, node: Node, item: str | Column, row: StructType) -> str:
        """Return the text of ``item``: a column name, quoted where SQL needs it, or an expression
        of ``node`` over a row of schema ``row``. The text is the same in every process. An
        expression needs a Spark session: that of the first source's frame or, if it has none, the
        active one. Its text is cached as long as ``node`` lives.
        """
        return text_of(node, item, lambda: self._empty_frame(row))

    def _empty_frame(self, row: StructType) -> DataFrame:
        """Return an empty frame with the columns ``row``. Its session is that of the first source's
        frame. If the first source has no frame, it is the active session, though another source may
        have one. Without an active session ``AssertionError`` is raised.
        """
        frame = self._inputs[0].frame
        session = SparkSession.getActiveSession() if frame is None else frame.sparkSession
        assert session is not None, "an expression without a session"
        return session.createDataFrame([], row)


def _frame_of_source(source: Source) -> DataFrame:
    """Return the frame of a source, which must have one."""
    assert source.frame is not None
    return source.frame


def _names_and_types(fields: StructType) -> list[list[str]]:
    """Return, for each column in order, its name and its type in Spark's short form, such as
    ``["id", "bigint"]``.
    """
    return [[f.name, f.dataType.simpleString()] for f in fields]


def _differences(then: Any, now: Any, where: str = "plan") -> Iterator[str]:
    """Yield a text for each innermost part in which the descriptions ``then`` and ``now`` differ,
    such as ``plan.left.table was "a" and is "b"``; nothing if they are equal.

    Two dicts with other names, and two lists, differ as a whole. ``where``: the path from the whole
    description to these parts, such as ``plan.left``.
    """
    if isinstance(then, dict) and isinstance(now, dict) and then.keys() == now.keys():
        for part in then:
            yield from _differences(then[part], now[part], f"{where}.{part}")
    elif then != now:
        yield f"{where} was {_part_in_words(then)} and is {_part_in_words(now)}"


_WORDS_OF_PARTS = dict.fromkeys(("result", "materialized", "windows"), "the result of {}")
_WORDS_OF_PARTS["view"] = "a view of {}"
_WORDS_OF_PARTS["expired"] = "{} with rows that expire"
_WORDS_OF_PARTS["transacted"] = "{} with transactions=True"


def _part_in_words(part: Any) -> str:
    """Return a part of a description in a few words, for errors, such as ``a left join of tables by
    key``. A part that is no dict, or for which there are no words, is returned as JSON.
    """
    if not isinstance(part, dict):
        return json.dumps(part)
    if "join" in part:
        article = "an" if part["join"] in ("inner", "outer") else "a"
        return f"{article} {part['join']} join of {part['of']}"
    if "aggregate" in part:
        return f"an aggregate by {', '.join(part['by'])}"
    for kind in ("stream", "table"):
        if isinstance(part.get(kind), str):  # a view has a bool under "stream"
            return f"{kind} {part[kind]}"
    for entry, template in _WORDS_OF_PARTS.items():
        if entry in part:
            return template.format(_part_in_words(part[entry]))
    return json.dumps(part)
