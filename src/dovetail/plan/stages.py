"""From nodes to stages: which joins run together, on which inputs, with which state.

Joins on one key need one shuffle and one copy of each table's state. So a tree of primary-key joins
of tables is one stage, whatever its depth, and so is a stream with all the tables that it looks up
by one key; an input that a stage reads twice is one input.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from dovetail.columns import DELETED, EVENT_TIME, HASH
from dovetail.errors import PlanError
from dovetail.kernels.table_join import Join, Leaf, Tree, preserved
from dovetail.plan.nodes import (
    JoinNode,
    Node,
    Source,
    StreamJoin,
    StreamTableJoin,
    TableJoin,
    distinct_sources,
    sources,
)
from dovetail.plan.spec import (
    Emit,
    Histories,
    Interval,
    Lookup,
    Operator,
    SourceSpec,
    StageSpec,
    TableTree,
)


@dataclass(frozen=True)
class Input:
    """A source as a stage reads it: by which of its columns rows are found; the others are their
    values, a key column that is not asked for among them.
    """

    source: Source
    key: tuple[str, ...]

    @property
    def key_fields(self) -> list[StructField]:
        """The columns that make the stage's key."""
        columns = {f.name: f for f in (*self.source.key, *self.source.values)}
        return [columns[name] for name in self.key]

    @property
    def value_fields(self) -> list[StructField]:
        """The columns that travel as values."""
        return [f for f in (*self.source.key, *self.source.values) if f.name not in self.key]


@dataclass(frozen=True)
class Stage:
    """A node's stage: its distinct inputs, in the order of ``spec.sources``."""

    node: Node
    inputs: tuple[Input, ...]
    spec: StageSpec

    @property
    def leaves(self) -> list[Input]:
        """The input of each leaf, from left to right."""
        return [self.inputs[source] for source in self.spec.operator.leaves]


def plan_stage(node: Node, *, buckets: int, emit: Emit) -> Stage:
    """The stage that computes a node."""
    if emit not in ("change", "batch"):
        raise PlanError(node.name, f"emit={emit!r} is not a mode", "Use 'change' or 'batch'")
    if buckets < 1:
        raise PlanError(node.name, f"buckets={buckets}", "Use at least 1")
    if isinstance(node, Source) and node.stream:
        raise PlanError(
            node.title,
            "nothing is joined with it, so there is nothing to compute",
            "Join it, make it a table with to_table(), or write its frame itself",
        )
    inputs = _inputs(node)
    operator = _operator(node, inputs)
    if emit == "batch" and not isinstance(operator, TableTree):
        raise PlanError(
            node.name,
            "emit='batch' keeps a key's last change, which only a table's current rows have",
            "Use emit='change'",
        )
    align_us = _align(node)
    _refuse_partly_ordered(node, inputs, aligned=align_us is not None)
    spec = StageSpec(
        topology=fingerprint(node),
        buckets=buckets,
        sources=tuple(
            SourceSpec(
                name=name,
                schema=wire_schema(input_),
                sequence=input_.source.sequence is not None,
                log_partition=input_.source.log_partition is not None,
                stream=input_.source.stream,
                null_keys=input_.source.stream and _appears_alone(node, input_.source),
                keeps_time=isinstance(operator, Interval),
                versioned_us=input_.source.versioned_us,
            )
            for input_, name in zip(inputs, unique_names(inputs), strict=True)
        ),
        keys=len(inputs[0].key),
        operator=operator,
        emit=emit,
        visible=_computes(node),
        align_us=align_us,
    )
    return Stage(node, tuple(inputs), spec)


def _inputs(node: Node) -> list[Input]:
    """The inputs of a node's stage, each once, in the order of first use; a stream that looks
    tables up comes first.
    """
    on = looked_up(node)
    return [
        Input(source, on if source.stream and on else tuple(source.key.names))
        for source in distinct_sources(node)
    ]


def looked_up(node: Node) -> tuple[str, ...]:
    """The stream's columns by which a stream-table join finds its rows, none for other nodes."""
    return node.on if isinstance(node, StreamTableJoin) else ()


def _operator(node: Node, inputs: Sequence[Input]) -> Operator:
    if isinstance(node, StreamJoin):
        left, right = (_leaf(side, inputs).source for side in (node.left, node.right))
        return Interval(
            (left, right), node.how, node.before_us, node.after_us, node.grace_us, node.unmatched
        )
    if isinstance(node, StreamTableJoin):
        return Lookup(_tree(node, inputs), node.grace_us)
    if isinstance(node, TableJoin) and node.late == "history":
        left, right = (_leaf(side, inputs).source for side in (node.left, node.right))
        return Histories((left, right), node.how)
    return TableTree(_tree(node, inputs))


def _tree(node: Node, inputs: Sequence[Input]) -> Tree:
    if isinstance(node, Source):
        return _leaf(node, inputs)
    return Join(_tree(node.left, inputs), _tree(node.right, inputs), node.how)


def _leaf(node: Node, inputs: Sequence[Input]) -> Leaf:
    return Leaf(next(i for i, input_ in enumerate(inputs) if input_.source is node))


def _align(node: Node) -> int | None:
    """How long the inputs wait for each other: the longest that any of the joins says."""
    if isinstance(node, Source):
        return None
    spans = [node.align_us, _align(node.left), _align(node.right)]
    return max((span for span in spans if span is not None), default=None)


def _refuse_partly_ordered(node: Node, inputs: Sequence[Input], *, aligned: bool) -> None:
    """A log that all inputs share must order the rows of all of them, and alone."""
    logs = [
        i.source.name
        for i in inputs
        if i.source.sequence is not None and i.source.log_partition is None
    ]
    if logs and aligned:
        raise PlanError(
            node.name,
            f"align= orders rows by time, sequence= of {', '.join(logs)} by their place in a log",
            "Leave one of them out, or say with log_partition= that each input has its own log",
        )
    if logs and len(logs) < len(inputs):
        raise PlanError(
            node.name,
            f"sequence= without log_partition= orders the rows of all inputs, but only "
            f"{', '.join(logs)} has it",
            "Give every input its position in the shared log, or a log_partition= to those that "
            "have a log of their own",
        )


def _appears_alone(node: Node, stream: Source) -> bool:
    """Whether records of a stream come out where nothing matches them."""
    if isinstance(node, Source):
        return True
    keeps = preserved(node.how)
    return any(
        kept and stream in sources(side) and _appears_alone(side, stream)
        for kept, side in zip(keeps, (node.left, node.right), strict=True)
    )


def unique_names(inputs: Sequence[Input]) -> list[str]:
    """The inputs' names; where several share one, the later ones are numbered."""
    names = [input_.source.name for input_ in inputs]
    seen = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name}#{n + 1}" if n else name for name, n in zip(names, seen, strict=True)]


def wire_schema(input_: Input) -> pa.Schema:
    """The Arrow columns in which an input's rows travel, all nullable, in UTC."""
    internal = [
        StructField(HASH, LongType()),
        StructField(EVENT_TIME, LongType()),
        StructField(DELETED, BooleanType()),
    ]
    return arrow_schema(StructType([*internal, *input_.key_fields, *input_.value_fields]))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's Arrow types for these columns, timestamps in UTC, nullable, without metadata."""
    plain = StructType([StructField(f.name, f.dataType, True) for f in schema])
    # Spark 4.2 asks for the time zone; 4.1 knows only UTC.
    options: dict[str, Any] = (
        {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    )
    return to_arrow_schema(plain, **options)


def fingerprint(node: Node) -> str:
    """A short hash of all that gives stored state its meaning: types, joins, and which of its
    inputs are one input; not their names.
    """
    text = json.dumps(describe(node), separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(node: Node) -> dict[str, Any]:
    """The part of a node that stored state depends on, as plain data."""
    return _describe(node, distinct_sources(node))


def _describe(node: Node, inputs: Sequence[Source]) -> dict[str, Any]:
    if isinstance(node, Source):
        told = {
            "stream" if node.stream else "table": inputs.index(node) + 1,
            "key": [f.dataType.simpleString() for f in node.key],
            "values": [[f.name, f.dataType.simpleString()] for f in node.values],
        }
        return told if node.versioned_us is None else told | {"versioned_us": node.versioned_us}
    return {
        "join": node.how,
        **_options(node),
        "left": _describe(node.left, inputs),
        "right": _describe(node.right, inputs),
    }


def _options(node: JoinNode) -> dict[str, Any]:
    """What a join is besides its kind, where it is more than the plainest."""
    options: dict[str, Any] = {}
    if node.align_us is not None:
        options["align"] = True
    if isinstance(node, TableJoin) and node.late != "ignore":
        options["late"] = node.late
    elif isinstance(node, StreamTableJoin):
        options |= {"on": list(node.on), "grace_us": node.grace_us}
    elif isinstance(node, StreamJoin):
        options |= {
            "within_us": [node.before_us, node.after_us, node.grace_us],
            "unmatched": node.unmatched,
        }
    return options


def _computes(node: Node) -> bool:
    """Whether a selection has expressions, which see which sides are there."""
    return not isinstance(node, Source) and (
        any(s.column is not None for s in node.select)
        or _computes(node.left)
        or _computes(node.right)
    )
