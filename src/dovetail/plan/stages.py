"""From nodes to stages: which joins run together, on which inputs, with which state.

Joins on one key need one shuffle and one copy of each table's state. So a tree of primary-key joins
of tables is one stage, whatever its depth, and so is a stream with all the tables that it looks up
by one key; an input that a stage reads twice is one input. A join by foreign key is two stages, the
first by primary key, the second by foreign key. What a stage makes, another may read (``Derived``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.types import BooleanType, DataType, LongType, StructField, StructType

from dovetail.columns import DELETED, EVENT_TIME, FOREIGN, HASH, foreign_name
from dovetail.errors import PlanError
from dovetail.kernels.table_join import Join, Leaf, Tree, preserved
from dovetail.plan.arrow import arrow_schema
from dovetail.plan.looked_up import eventual, needed_columns
from dovetail.plan.nodes import (
    DeltaJoin,
    Derived,
    Entry,
    ForeignKeyJoin,
    JoinNode,
    Materialized,
    Node,
    Source,
    StreamJoin,
    StreamTableJoin,
    TableJoin,
    distinct_entries,
    entries,
    has_null_keys,
    is_current,
    origins,
)
from dovetail.plan.spec import (
    Emit,
    ForeignKey,
    Histories,
    Interval,
    Lookup,
    Operator,
    SourceSpec,
    StageSpec,
    Subscribe,
    TableTree,
)


@dataclass(frozen=True, eq=False)
class Input:
    """A source, or another stage's result, as a stage reads it: by which of its columns rows are
    found; the others are their values, a key column that is not asked for among them.

    ``foreign``: where the rows are to become subscriptions, the columns or expressions that make
    the foreign key, each with its type. ``only``: the value columns that are of use, None for all.
    """

    source: Entry
    key: tuple[str, ...]
    foreign: tuple[tuple[str | Column, DataType], ...] = ()
    only: frozenset[str] | None = None

    @property
    def key_fields(self) -> list[StructField]:
        """The columns that make the stage's key."""
        columns = {f.name: f for f in (*self.source.key, *self.source.values)}
        return [columns[name] for name in self.key]

    @property
    def foreign_fields(self) -> list[StructField]:
        """The foreign key's hash and its columns, where there is one."""
        if not self.foreign:
            return []
        key = [
            StructField(foreign_name(number), type_)
            for number, (_, type_) in enumerate(self.foreign)
        ]
        return [StructField(FOREIGN, LongType()), *key]

    @property
    def value_fields(self) -> list[StructField]:
        """The columns that travel as values."""
        values = (f for f in self.source.values if self.only is None or f.name in self.only)
        return [f for f in (*self.source.key, *values) if f.name not in self.key]


@dataclass(frozen=True)
class Stage:
    """A node's stage: its distinct inputs, in the order of ``spec.sources``.

    ``first``: of a join by foreign key, the stage by primary key that makes subscriptions of the
    first input; ``one_log``: all sources are read from one log, whatever they say of themselves;
    ``told``: the inputs as the output has them, where that is not as they are read.
    """

    node: Node
    inputs: tuple[Input, ...]
    spec: StageSpec
    first: StageSpec | None = None
    one_log: bool = False
    told: tuple[Input, ...] = ()

    @property
    def leaves(self) -> list[Input]:
        """The input of each leaf, from left to right."""
        if self.told:
            return list(self.told)
        leaves = [self.inputs[source] for source in self.spec.operator.leaves]
        return leaves if self.first is None else [leaves[0], Input(leaves[1].source, ())]

    @property
    def upstream(self) -> list[tuple[int, Stage]]:
        """The stages that make inputs of this one, each with the number of the input."""
        spec = self.spec
        return [
            (
                number,
                plan_stage(
                    input_.source.node,
                    buckets=spec.buckets,
                    emit=spec.emit if _tells_net(input_.source) else "change",
                    feeds=spec.sources[number].ordered,
                    one_log=self.one_log,
                ),
            )
            for number, input_ in enumerate(self.inputs)
            if isinstance(input_.source, Derived)
        ]


def plan_stage(
    node: Node, *, buckets: int, emit: Emit, feeds: bool = False, one_log: bool = False
) -> Stage:
    """The stage that computes a node; ``feeds``: for another stage, with the rows' sequence;
    ``one_log``: as in ``Stage``.
    """
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
    if isinstance(node, Derived):
        node = node.node
    if isinstance(node, ForeignKeyJoin):
        return _plan_foreign_key(node, buckets=buckets, emit=emit, feeds=feeds, one_log=one_log)
    if isinstance(node, DeltaJoin):
        return _plan_delta(node, buckets=buckets, emit=emit)
    inputs = _inputs(node)
    operator = _operator(node, inputs)
    if emit == "batch" and not isinstance(operator, TableTree):
        raise PlanError(
            node.name,
            "emit='batch' keeps a key's last change, which only a table's current rows have",
            "Use emit='change'",
        )
    align_us = _align(node)
    if not one_log:
        _refuse_partly_ordered(node, inputs, aligned=align_us is not None)
    spec = StageSpec(
        topology=fingerprint(node),
        buckets=buckets,
        sources=tuple(
            _source_spec(
                input_,
                name,
                one_log=one_log,
                alone=input_.source.stream and _appears_alone(node, input_.source),
                keeps_time=isinstance(operator, Interval),
            )
            for input_, name in zip(inputs, unique_names(inputs), strict=True)
        ),
        keys=len(inputs[0].key),
        operator=operator,
        emit=emit,
        visible=_computes(node),
        align_us=align_us,
        feeds=feeds,
    )
    return Stage(node, tuple(inputs), spec, one_log=one_log)


def _tells_net(source: Derived) -> bool:
    """Whether a result can be had as each key's last change, where it has changed."""
    return is_current(source) and not isinstance(source.node, DeltaJoin)


def _plan_foreign_key(
    node: ForeignKeyJoin, *, buckets: int, emit: Emit, feeds: bool, one_log: bool
) -> Stage:
    """The stages of a join by foreign key."""
    foreign_key = tuple(zip(node.on, (f.dataType for f in node.right.key), strict=True))
    left = Input(node.left, tuple(node.left.key.names), foreign_key)
    right = Input(node.right, tuple(node.right.key.names))
    inputs = (left, right)
    if not one_log:
        _refuse_partly_ordered(node, inputs, aligned=False)
    names = unique_names(inputs)
    topology = fingerprint(node)
    left_spec, right_spec = (
        _source_spec(side, name, one_log=one_log) for side, name in zip(inputs, names, strict=True)
    )
    first = StageSpec(
        topology=f"{topology}.1",
        buckets=buckets,
        sources=(replace(left_spec, fallible=node.fallible),),
        keys=len(left.key),
        operator=Subscribe(len(node.on), node.how),
        emit=emit,
        visible=False,
        feeds=left_spec.ordered,
    )
    foreign = [
        StructField(foreign_name(number), field.dataType)
        for number, field in enumerate(node.right.key)
    ]
    subscriptions = SourceSpec(
        name=names[0],
        schema=_carried(StructType([*foreign, *left.key_fields, *left.value_fields])),
        sequence=left_spec.ordered,
        subscribed=True,
    )
    spec = StageSpec(
        topology=f"{topology}.2",
        buckets=buckets,
        # A row with a null in its key is one to which no row refers.
        sources=(subscriptions, replace(right_spec, null_keys=False)),
        keys=len(right.key),
        operator=ForeignKey(len(left.key), node.how),
        emit=emit,
        visible=_computes(node),
        feeds=feeds,
    )
    return Stage(node, inputs, spec, first, one_log)


def _plan_delta(node: DeltaJoin, *, buckets: int, emit: Emit) -> Stage:
    """The stage of a delta join: both sides by join key, with the columns that the result needs."""
    needed = needed_columns(node)
    inputs = tuple(
        Input(side, tuple(pair[number] for pair in node.on), only=only)
        for number, (side, only) in enumerate(zip((node.left, node.right), needed, strict=True))
    )
    told = (
        Input(node.left, tuple(node.left.key.names), only=needed[0]),
        Input(node.right, (), only=needed[1]),
    )
    sources = tuple(
        replace(
            _source_spec(input_, name, one_log=False),
            null_keys=True,
            primary=() if has_null_keys(input_.source) else tuple(input_.source.key.names),
        )
        for input_, name in zip(inputs, unique_names(inputs), strict=True)
    )
    spec = StageSpec(
        topology=fingerprint(node),
        buckets=buckets,
        sources=sources,
        keys=len(node.on),
        operator=eventual(node, [source.schema for source in sources]),
        emit=emit,
        visible=_computes(node),
    )
    return Stage(node, inputs, spec, told=told)


def _source_spec(
    input_: Input, name: str, *, one_log: bool, alone: bool = False, keeps_time: bool = False
) -> SourceSpec:
    """``alone``: whether it is a stream whose records come out where nothing matches them."""
    source = input_.source
    own_log = isinstance(source, Source) and source.log_partition is not None and not one_log
    return SourceSpec(
        name=name,
        schema=wire_schema(input_),
        sequence=source.ordered or own_log or one_log,
        log_partition=own_log,
        stream=source.stream,
        null_keys=alone or has_null_keys(source),
        keeps_time=keeps_time,
        versioned_us=source.versioned_us,
    )


def _inputs(node: Node) -> list[Input]:
    """The inputs of a node's stage, each once, in the order of first use; a stream that looks
    tables up comes first.
    """
    on = looked_up(node)
    return [
        Input(source, on if source.stream and on else tuple(source.key.names))
        for source in distinct_entries(node)
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
    if isinstance(node, Materialized):
        return TableTree(_leaf(node.table, inputs), distinct=True)
    assert not isinstance(node, (ForeignKeyJoin, DeltaJoin))
    if isinstance(node, StreamTableJoin):
        return Lookup(_tree(node, inputs), node.grace_us)
    if isinstance(node, TableJoin) and node.late == "history":
        left, right = (_leaf(side, inputs).source for side in (node.left, node.right))
        return Histories((left, right), node.how)
    return TableTree(_tree(node, inputs))


def _tree(node: Node, inputs: Sequence[Input]) -> Tree:
    if isinstance(node, Entry):
        return _leaf(node, inputs)
    assert not isinstance(node, Materialized)
    return Join(_tree(node.left, inputs), _tree(node.right, inputs), node.how)


def _leaf(node: Node, inputs: Sequence[Input]) -> Leaf:
    return Leaf(next(i for i, input_ in enumerate(inputs) if input_.source is node))


def _align(node: Node) -> int | None:
    """How long the inputs wait for each other: the longest that any of the joins says."""
    if not isinstance(node, JoinNode):
        return None
    spans = [node.align_us, _align(node.left), _align(node.right)]
    return max((span for span in spans if span is not None), default=None)


def _refuse_partly_ordered(node: Node, inputs: Sequence[Input], *, aligned: bool) -> None:
    """A log that all inputs share must order the rows of all of them, and alone."""
    logs = [i.source.name for i in inputs if i.source.ordered]
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


def _appears_alone(node: Node, stream: Entry) -> bool:
    """Whether records of a stream come out where nothing matches them."""
    if not isinstance(node, JoinNode):
        return True
    keeps = preserved(node.how)
    return any(
        kept and stream in entries(side) and _appears_alone(side, stream)
        for kept, side in zip(keeps, (node.left, node.right), strict=True)
    )


def unique_names(inputs: Sequence[Input]) -> list[str]:
    """The inputs' names; where several share one, the later ones are numbered."""
    names = [input_.source.name for input_ in inputs]
    seen = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name}#{n + 1}" if n else name for name, n in zip(names, seen, strict=True)]


def wire_schema(input_: Input) -> pa.Schema:
    """The Arrow columns in which an input's rows travel, all nullable, in UTC."""
    columns = [*input_.key_fields, *input_.foreign_fields, *input_.value_fields]
    return _carried(StructType(columns))


def _carried(columns: StructType) -> pa.Schema:
    internal = [
        StructField(HASH, LongType()),
        StructField(EVENT_TIME, LongType()),
        StructField(DELETED, BooleanType()),
    ]
    return arrow_schema(StructType([*internal, *columns]))


def fingerprint(node: Node) -> str:
    """A short hash of all that gives stored state its meaning: types, joins, and which of its
    inputs are one input; not their names.
    """
    text = json.dumps(describe(node), separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(node: Node) -> dict[str, Any]:
    """The part of a node that stored state depends on, as plain data."""
    return _describe(node, origins(node))


def _describe(node: Node, inputs: Sequence[Source]) -> dict[str, Any]:
    if isinstance(node, Derived):
        return {"result": _describe(node.node, inputs)}
    if isinstance(node, Materialized):
        return {"materialized": _describe(node.table, inputs)}
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
    elif isinstance(node, DeltaJoin):
        options["looked up"] = [list(pair) for pair in node.on]
    elif isinstance(node, ForeignKeyJoin):
        options["on"] = [item if isinstance(item, str) else "an expression" for item in node.on]
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
    return isinstance(node, JoinNode) and (
        any(s.column is not None for s in node.select)
        or _computes(node.left)
        or _computes(node.right)
    )
