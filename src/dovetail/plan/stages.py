"""From nodes to stages: which joins run together, on which inputs, with which state.

Joins on one key need one shuffle and one copy of each table's state. So a tree of primary-key joins
of tables is one stage, whatever its depth, and so is a stream with all the tables that it looks up
by one key; an input that a stage reads twice is one input. A join by foreign key is two stages, the
first by primary key, the second by foreign key. What a stage makes, another may read (``Derived``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import StructField, StructType

from dovetail.columns import SEQUENCE, foreign_name
from dovetail.errors import PlanError
from dovetail.kernels.interval_join import Window
from dovetail.kernels.table_join import Join, Leaf, Tree, preserved
from dovetail.plan.fingerprint import fingerprint
from dovetail.plan.inputs import (
    Arrival,
    Input,
    carried,
    is_numbered,
    refuse_partly_ordered,
    source_spec,
    unique_names,
)
from dovetail.plan.looked_up import eventual, needed_columns
from dovetail.plan.nodes import (
    Aggregation,
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
    Unwindowed,
    WindowJoin,
    distinct_entries,
    entries,
    has_null_keys,
    is_current,
)
from dovetail.plan.spec import (
    Emit,
    ForeignKey,
    Gather,
    Histories,
    Interval,
    Lookup,
    Operator,
    Regroup,
    SourceSpec,
    StageSpec,
    Steps,
    Subscribe,
    TableTree,
)
from dovetail.plan.steps import gather, plan_steps


@dataclass(frozen=True)
class Stage:
    """A node's stage: its distinct inputs, in the order of ``spec.sources``.

    ``leaves``: what the output's columns are named by, from left to right; ``first``: of a join by
    foreign key and of a table that is gathered, the stage by primary key that sends the first
    input's changes on.
    """

    node: Node
    inputs: tuple[Input, ...]
    spec: StageSpec
    leaves: tuple[Input, ...]
    arrival: Arrival
    first: StageSpec | None = None

    @property
    def merges(self) -> bool:
        """Whether the results of one key come from several buckets."""
        return isinstance(self.spec.operator, ForeignKey)

    @property
    def counts(self) -> dict[str, str]:
        """What the stage counts of its windows: the metric, and which of its counts it is."""
        if isinstance(self.node, StreamJoin):
            final = self.node.how != "inner" and self.node.unmatched == "on_close"
            return (
                {f"{self.node.left.name}-{self.node.right.name}.too_late": "too_late"}
                if final
                else {}
            )
        if not isinstance(self.spec.operator, Steps):
            return {}
        steps = self.spec.operator.steps
        gathered = [s.spec.sources[0].name for s in steps if isinstance(s.spec.operator, Gather)]
        looking = [f for s in steps for f in s.feeds if f.looks is not None]
        counts = {f"{gathered[0]}.late": "late"}
        if looking:
            counts[f"{self.inputs[looking[0].number].source.name}.astray"] = "astray"
        return counts

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
                    feeds=self.arrival.feeds(input_.source),
                    arrival=self.arrival,
                ),
            )
            for number, input_ in enumerate(self.inputs)
            if isinstance(input_.source, Derived)
        ]


def plan_stage(
    node: Node,
    *,
    buckets: int,
    emit: Emit,
    feeds: tuple[str, ...] = (),
    arrival: Arrival | None = None,
) -> Stage:
    """The stage that computes a node; ``feeds``: as in ``StageSpec``, for another stage that reads
    it; ``arrival``: of the whole topology, by default of this node as its last.
    """
    _refuse_unplanned(node)
    if isinstance(node, Derived):
        node = node.node
    if arrival is None:
        arrival = Arrival.of(node)
    if isinstance(node, ForeignKeyJoin):
        return _plan_foreign_key(node, arrival, buckets=buckets, emit=emit, feeds=feeds)
    if isinstance(node, Aggregation):
        return _plan_aggregation(node, arrival, buckets=buckets, emit=emit, feeds=feeds)
    if isinstance(node, (Unwindowed, WindowJoin)):
        planned = plan_steps(
            node, fingerprint(node), arrival, buckets=buckets, emit=emit, feeds=feeds
        )
        return Stage(node, planned.inputs, planned.spec, planned.sides, arrival)
    if isinstance(node, DeltaJoin):
        return _plan_delta(node, arrival, buckets=buckets, emit=emit)
    inputs = _inputs(node)
    operator = _operator(node, inputs)
    if emit == "batch" and not isinstance(operator, TableTree):
        raise PlanError(
            node.name,
            "emit='batch' keeps a key's last change, which only a table's current rows have",
            "Use emit='change'",
        )
    align_us = _align(node)
    if not arrival.one_log:
        refuse_partly_ordered(node, inputs, aligned=align_us is not None)
    numbered = is_numbered(inputs, arrival, feeds)
    spec = StageSpec(
        topology=fingerprint(node),
        buckets=buckets,
        sources=tuple(
            source_spec(
                input_,
                name,
                arrival,
                numbered=numbered,
                alone=input_.source.stream and _appears_alone(node, input_.source),
                keeps_time=isinstance(operator, Interval),
                stairs=align_us is None and _is_asked(operator, input_.source),
            )
            for input_, name in zip(inputs, unique_names(inputs), strict=True)
        ),
        keys=len(inputs[0].key),
        operator=operator,
        emit=emit,
        visible=_computes(node),
        align_us=align_us,
        feeds=feeds,
        holds_us=_holds(operator),
        title=node.name,
        key_names=inputs[0].key,
    )
    leaves = tuple(inputs[source] for source in operator.leaves)
    return Stage(node, tuple(inputs), spec, leaves, arrival)


def _is_asked(operator: Operator, source: Entry) -> bool:
    """Whether other sources' records go by this one's stream time."""
    if source.stream:
        return isinstance(operator, Lookup) and operator.grace_us is not None
    several = isinstance(operator, (Lookup, Histories)) or len(set(operator.leaves)) > 1
    return source.versioned_us is not None and several


def _holds(operator: Operator) -> int:
    """The longest, in stream time, that an operator holds a result back."""
    if isinstance(operator, Lookup):
        return operator.grace_us or 0
    if isinstance(operator, Interval) and operator.unmatched == "on_close":
        window = Window(operator.before_us, operator.after_us, operator.grace_us)
        kept = preserved(operator.how)
        return max((window.reach_us(side) for side in (0, 1) if kept[side]), default=0)
    return 0


def _refuse_unplanned(node: Node) -> None:
    if isinstance(node, Source) and node.stream:
        raise PlanError(
            node.title,
            "nothing is joined with it, so there is nothing to compute",
            "Join it, make it a table with to_table(), or write its frame itself",
        )


def _tells_net(source: Derived) -> bool:
    """Whether a result can be had as each key's last change, where it has changed."""
    return is_current(source) and not isinstance(source.node, DeltaJoin)


def _plan_foreign_key(
    node: ForeignKeyJoin, arrival: Arrival, *, buckets: int, emit: Emit, feeds: tuple[str, ...]
) -> Stage:
    """The stages of a join by foreign key."""
    foreign_key = tuple(zip(node.on, (f.dataType for f in node.right.key), strict=True))
    left = Input(node.left, tuple(node.left.key.names), foreign_key)
    right = Input(node.right, tuple(node.right.key.names))
    inputs = (left, right)
    if not arrival.one_log:
        refuse_partly_ordered(node, inputs, aligned=False)
    names = unique_names(inputs)
    topology = fingerprint(node)
    left_spec, right_spec = (
        source_spec(side, name, arrival, numbered=True)
        for side, name in zip(inputs, names, strict=True)
    )
    first_feeds = arrival.first_feeds(node.left)
    first = StageSpec(
        topology=f"{topology}.1",
        buckets=buckets,
        sources=(replace(left_spec, fallible=node.fallible),),
        keys=len(left.key),
        operator=Subscribe(len(node.on), node.how),
        emit=emit,
        visible=False,
        feeds=first_feeds,
        title=node.name,
        key_names=left.key,
    )
    foreign = [
        StructField(foreign_name(number), field.dataType)
        for number, field in enumerate(node.right.key)
    ]
    subscriptions = SourceSpec(
        name=names[0],
        schema=carried(StructType([*foreign, *left.key_fields, *left.value_fields])),
        sequence=left_spec.ordered,
        subscribed=True,
        origin=left_spec.origin,
        carries=tuple(name for name in first_feeds if name != SEQUENCE),
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
        title=node.name,
        key_names=right.key,
    )
    return Stage(node, inputs, spec, (left, Input(node.right, ())), arrival, first)


def _plan_delta(node: DeltaJoin, arrival: Arrival, *, buckets: int, emit: Emit) -> Stage:
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
            source_spec(input_, name, arrival),
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
        title=node.name,
        key_names=inputs[0].key,
    )
    return Stage(node, inputs, spec, told, arrival)


def _plan_aggregation(
    node: Aggregation, arrival: Arrival, *, buckets: int, emit: Emit, feeds: tuple[str, ...]
) -> Stage:
    """A stream's records by group; or a table's, after the stage by its own key that knows from
    which group each row comes.
    """
    entry = node.input
    used = tuple(dict.fromkeys(name for c in node.columns for name in c.columns))
    known = {f.name: f for f in (*entry.key, *entry.values)}
    by = tuple((name, known[name].dataType) for name in node.by)
    if entry.stream:
        input_ = Input(entry, node.by, used=used)
    else:
        input_ = Input(entry, tuple(entry.key.names), by, used)
    topology = fingerprint(node)
    numbered = not entry.stream or is_numbered((input_,), arrival, feeds)
    read = replace(
        source_spec(input_, entry.name, arrival, numbered=numbered), valueless=entry.stream
    )
    source, first = read, None
    if not entry.stream:
        first_feeds = arrival.first_feeds(entry)
        first = StageSpec(
            topology=f"{topology}.1",
            buckets=buckets,
            sources=(read,),
            keys=len(entry.key),
            operator=Regroup(len(by)),
            emit="change",
            visible=False,
            feeds=first_feeds,
            title=node.name,
            key_names=tuple(entry.key.names),
        )
        fields = [StructField(foreign_name(n), type_) for n, (_, type_) in enumerate(by)]
        values = input_.gathered_fields
        source = SourceSpec(
            name=entry.name,
            schema=carried(StructType([*fields, *values])),
            sequence=read.ordered,
            regrouped=True,
            origin=read.origin,
            carries=tuple(name for name in first_feeds if name != SEQUENCE),
        )
    spec = StageSpec(
        topology=topology if first is None else f"{topology}.2",
        buckets=buckets,
        sources=(source,),
        keys=len(by),
        operator=gather(node, used, retracts=first is not None),
        emit=emit,
        visible=False,
        feeds=feeds,
        title=node.name,
        key_names=node.by,
    )
    told = Input(Derived(node), tuple(node.key.names))
    return Stage(node, (input_,), spec, (told,), arrival, first)


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
    assert not isinstance(node, (ForeignKeyJoin, DeltaJoin, WindowJoin, Aggregation, Unwindowed))
    if isinstance(node, StreamTableJoin):
        return Lookup(_tree(node, inputs), node.grace_us)
    if isinstance(node, TableJoin) and node.late == "history":
        left, right = (_leaf(side, inputs).source for side in (node.left, node.right))
        return Histories((left, right), node.how)
    return TableTree(_tree(node, inputs))


def _tree(node: Node, inputs: Sequence[Input]) -> Tree:
    if isinstance(node, Entry):
        return _leaf(node, inputs)
    assert isinstance(node, JoinNode)
    return Join(_tree(node.left, inputs), _tree(node.right, inputs), node.how)


def _leaf(node: Node, inputs: Sequence[Input]) -> Leaf:
    return Leaf(next(i for i, input_ in enumerate(inputs) if input_.source == node))


def _align(node: Node) -> int | None:
    """How long the inputs wait for each other: the longest that any of the joins says."""
    if not isinstance(node, JoinNode):
        return None
    spans = [node.align_us, _align(node.left), _align(node.right)]
    return max((span for span in spans if span is not None), default=None)


def _appears_alone(node: Node, stream: Entry) -> bool:
    """Whether records of a stream come out where nothing matches them."""
    if not isinstance(node, JoinNode):
        return True
    keeps = preserved(node.how)
    return any(
        kept and stream in entries(side) and _appears_alone(side, stream)
        for kept, side in zip(keeps, (node.left, node.right), strict=True)
    )


def _computes(node: Node) -> bool:
    """Whether a selection has expressions, which see which sides are there."""
    return isinstance(node, JoinNode) and (
        any(s.column is not None for s in node.select)
        or _computes(node.left)
        or _computes(node.right)
    )
