"""From nodes to the physical plan: which operators run together, and what lies between them.

Joins on one key need one shuffle and one copy of each table's state. So a tree of primary-key joins
of tables is one operator, whatever its depth, and so is a stream with all the tables that it looks
up by one key; an input that is read twice is one input. Windowed tables and their joins are several
operators of one fragment (``physical.windows``). A join by foreign key, and an aggregate of a
table, have an exchange between their operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dovetail.columns import HASH, PLACE
from dovetail.errors import PlanError
from dovetail.laws.table_join import Join, Leaf, Tree, preserved
from dovetail.physical import chains
from dovetail.physical import operators as ops
from dovetail.physical.delta import eventual, settled
from dovetail.physical.fragment import Emit, Fragment, Operator
from dovetail.physical.inputs import (
    Arrival,
    Input,
    is_numbered,
    refuse_partly_ordered,
    source_spec,
    unique_names,
)
from dovetail.physical.source import SourceSpec
from dovetail.physical.stage import Port, Stage
from dovetail.physical.windows import windowed
from dovetail.plan.fingerprint import fingerprint
from dovetail.plan.looked_up import needed_columns
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


def physical_plan(node: Node, *, buckets: int, emit: Emit, arrival: Arrival | None = None) -> Stage:
    """The stage that computes a node, and with it all that feed it; ``arrival``: how the rows of
    the topology are put in order, by default as its sources say.
    """
    if isinstance(node, Source) and node.stream:
        raise PlanError(
            node.title,
            "nothing is joined with it, so there is nothing to compute",
            "Join it, make it a table with to_table(), or write its frame itself",
        )
    node = node.node if isinstance(node, Derived) else node
    planner = _Planner(arrival or Arrival.of(node), buckets)
    return planner.stage(node, emit, ())


@dataclass(frozen=True)
class _Planner:
    """``arrival``: of the whole topology; ``buckets``: how many share each key space."""

    arrival: Arrival
    buckets: int

    def stage(self, node: Node, emit: Emit, feeds: tuple[str, ...]) -> Stage:
        """The stage of a node; ``feeds``: as in ``Fragment``."""
        if isinstance(node, ForeignKeyJoin):
            return self._foreign_key(node, emit, feeds)
        if isinstance(node, Aggregation):
            return self._aggregation(node, emit, feeds)
        if isinstance(node, (Unwindowed, WindowJoin)):
            return self._windows(node, emit, feeds)
        if isinstance(node, DeltaJoin):
            return self._delta(node, emit)
        return self._by_key(node, emit, feeds)

    def _port(
        self, input_: Input, source: SourceSpec, emit: Emit, by: tuple[str, ...] = ()
    ) -> Port:
        """An input that is read by key, and the stage that makes it, if one does."""
        entry = input_.source
        if isinstance(entry, Source):
            return Port(source, entry, input_, by)
        origin = self.stage(
            entry.node, emit if _emits_net(entry) else "change", self.arrival.feeds(entry)
        )
        return Port(source, origin, input_, by)

    def _fragment(
        self,
        node: Node,
        topology: str,
        operator: Operator,
        *,
        key_names: tuple[str, ...] = (),
        align_us: int | None = None,
    ) -> Fragment:
        """A fragment of one operator."""
        return Fragment(
            topology=topology,
            buckets=self.buckets,
            sources=operator.sources,
            operators=(operator,),
            align_us=align_us,
            feeds=operator.feeds,
            holds_us=operator.law.holds_us,
            title=node.name,
            key_names=key_names,
        )

    def _by_key(self, node: Node, emit: Emit, feeds: tuple[str, ...]) -> Stage:
        """Tables by key, streams, a stream with tables: one operator on its inputs."""
        inputs = _inputs(node)
        law = _law(node, inputs)
        if emit == "batch" and not isinstance(law, ops.TableJoin):
            chains.refuse_batch(node)
        align_us = _align(node)
        if not self.arrival.one_log:
            refuse_partly_ordered(node, inputs, aligned=align_us is not None)
        numbered = is_numbered(inputs, self.arrival, feeds)
        sources = tuple(
            source_spec(
                input_,
                name,
                self.arrival,
                numbered=numbered,
                alone=input_.source.stream and _appears_alone(node, input_.source),
                keeps_time=isinstance(law, ops.StreamJoin),
                stairs=align_us is None and _is_asked(law, input_.source),
            )
            for input_, name in zip(inputs, unique_names(inputs), strict=True)
        )
        operator = Operator(
            law=law,
            sources=sources,
            emit=emit,
            visible=_computes(node),
            feeds=feeds,
            buckets=self.buckets,
        )
        fragment = self._fragment(
            node, fingerprint(node), operator, key_names=inputs[0].key, align_us=align_us
        )
        ports = (self._port(*both, emit) for both in zip(inputs, sources, strict=True))
        return Stage(node, fragment, tuple(ports), tuple(inputs[leaf] for leaf in law.leaves))

    def _foreign_key(self, node: ForeignKeyJoin, emit: Emit, feeds: tuple[str, ...]) -> Stage:
        """By primary key, by foreign key, and by primary key again, in order."""
        foreign_key = tuple(zip(node.on, (f.dataType for f in node.right.key), strict=True))
        left = Input(node.left, tuple(node.left.key.names), foreign_key)
        right = Input(node.right, tuple(node.right.key.names))
        if not self.arrival.one_log:
            refuse_partly_ordered(node, (left, right), aligned=False)
        left_source, right_source = (
            source_spec(side, name, self.arrival, numbered=True)
            for side, name in zip((left, right), unique_names((left, right)), strict=True)
        )
        between = self.arrival.first_feeds(node.left)
        topology = fingerprint(node)
        subscribing = Operator(
            law=ops.Subscribe(node.how),
            sources=(left_source,),
            emit=emit,
            feeds=between,
            buckets=self.buckets,
        )
        # A row with a null in its key is one to which no row refers.
        answering = chains.foreign_key(
            left_source,
            between,
            replace(right_source, null_keys=False),
            node.how,
            emit=emit,
            visible=_computes(node),
            feeds=feeds,
            buckets=self.buckets,
        )
        ordering = chains.in_order(answering, node.name)
        first = Stage(
            node,
            self._fragment(node, f"{topology}.1", subscribing, key_names=left.key),
            (self._port(left, left_source, emit),),
        )
        second = Stage(
            node,
            self._fragment(node, f"{topology}.2", answering, key_names=right.key),
            (
                Port(answering.sources[0], first, hash_column=HASH),
                self._port(right, answering.sources[1], emit),
            ),
        )
        return Stage(
            node,
            self._fragment(node, topology, ordering),
            (Port(ordering.sources[0], second, hash_column=PLACE),),
            (left, Input(node.right, ())),
        )

    def _aggregation(self, node: Aggregation, emit: Emit, feeds: tuple[str, ...]) -> Stage:
        """A stream's records by group; or a table's, after the stage by its own key that knows from
        which group each row comes.
        """
        entry = node.input
        used = tuple(dict.fromkeys(name for c in node.columns for name in c.columns))
        topology = fingerprint(node)
        leaves = (Input(Derived(node), tuple(node.key.names)),)
        if entry.stream:
            input_ = Input(entry, node.by, used=used)
            numbered = is_numbered((input_,), self.arrival, feeds)
            read = replace(
                source_spec(input_, entry.name, self.arrival, numbered=numbered), valueless=True
            )
            port = self._port(input_, read, emit)
        else:
            known = {f.name: f for f in (*entry.key, *entry.values)}
            by = tuple((name, known[name].dataType) for name in node.by)
            input_ = Input(entry, tuple(entry.key.names), by, used)
            read = source_spec(input_, entry.name, self.arrival, numbered=True)
            between = self.arrival.first_feeds(entry)
            leaving = Operator(
                law=ops.Retract(), sources=(read,), feeds=between, buckets=self.buckets
            )
            first = Stage(
                node,
                self._fragment(node, f"{topology}.1", leaving, key_names=input_.key),
                (self._port(input_, read, emit),),
            )
            topology = f"{topology}.2"
            port = Port(chains.retracted(read, between), first, hash_column=HASH)
        aggregating = Operator(
            law=chains.aggregation(node, used),
            sources=(port.source,),
            emit=emit,
            feeds=feeds,
            buckets=self.buckets,
        )
        fragment = self._fragment(node, topology, aggregating, key_names=node.by)
        return Stage(node, fragment, (port,), leaves)

    def _delta(self, node: DeltaJoin, emit: Emit) -> Stage:
        """Both sides by join key, with the columns that the result needs; a left side whose rows
        may change theirs by primary key before.
        """
        needed = needed_columns(node)
        inputs = tuple(
            Input(side, tuple(pair[number] for pair in node.on), only=only)
            for number, (side, only) in enumerate(zip((node.left, node.right), needed, strict=True))
        )
        sources = tuple(
            replace(
                source_spec(input_, name, self.arrival),
                null_keys=True,
                primary=() if has_null_keys(input_.source) else tuple(input_.source.key.names),
            )
            for input_, name in zip(inputs, unique_names(inputs), strict=True)
        )
        law = eventual(node, sources)
        left, right = (self._port(*both, emit) for both in zip(inputs, sources, strict=True))
        if law.moving:
            meeting = settled(left.source)
            settle = ops.Settle(law.sides[0].key, tuple(meeting.wire_schema.names))
            settling = Operator(law=settle, sources=(left.source,))
            first = Stage(
                node,
                self._fragment(node, "", settling),
                (replace(left, by=tuple(node.left.key.names)),),
            )
            left = Port(meeting, first, hash_column=HASH)
        joining = Operator(
            law=law,
            sources=(left.source, right.source),
            emit=emit,
            visible=_computes(node),
            buckets=self.buckets,
        )
        fragment = self._fragment(node, fingerprint(node), joining, key_names=inputs[0].key)
        leaves = (
            Input(node.left, tuple(node.left.key.names), only=needed[0]),
            Input(node.right, (), only=needed[1]),
        )
        return Stage(node, fragment, (left, right), leaves)

    def _windows(self, node: Unwindowed | WindowJoin, emit: Emit, feeds: tuple[str, ...]) -> Stage:
        """Windowed tables: operators of one fragment."""
        made = windowed(node, self.arrival, buckets=self.buckets, emit=emit, feeds=feeds)
        ports = (
            self._port(*both, emit) for both in zip(made.inputs, made.fragment.sources, strict=True)
        )
        return Stage(node, made.fragment, tuple(ports), made.leaves)


def _emits_net(source: Derived) -> bool:
    """Whether a result can be had as each key's last change, where it has changed."""
    return is_current(source) and not isinstance(source.node, DeltaJoin)


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


def _law(node: Node, inputs: Sequence[Input]) -> ops.Law:
    if isinstance(node, StreamJoin):
        return ops.StreamJoin(
            _sides(node, inputs),
            node.how,
            node.before_us,
            node.after_us,
            node.grace_us,
            node.unmatched,
        )
    if isinstance(node, Materialized):
        return ops.TableJoin(_leaf(node.table, inputs), distinct=True)
    if isinstance(node, StreamTableJoin):
        return ops.StreamTableJoin(_tree(node, inputs), node.grace_us)
    if isinstance(node, TableJoin) and node.late == "history":
        return ops.HistoryJoin(_sides(node, inputs), node.how)
    return ops.TableJoin(_tree(node, inputs))


def _sides(node: StreamJoin | TableJoin, inputs: Sequence[Input]) -> tuple[int, int]:
    return _leaf(node.left, inputs).source, _leaf(node.right, inputs).source


def _tree(node: Node, inputs: Sequence[Input]) -> Tree:
    if isinstance(node, Entry):
        return _leaf(node, inputs)
    assert isinstance(node, JoinNode)
    return Join(_tree(node.left, inputs), _tree(node.right, inputs), node.how)


def _leaf(node: Node, inputs: Sequence[Input]) -> Leaf:
    return Leaf(next(i for i, input_ in enumerate(inputs) if input_.source == node))


def _is_asked(law: ops.Law, source: Entry) -> bool:
    """Whether other sources' records go by this one's stream time."""
    if source.stream:
        return isinstance(law, ops.StreamTableJoin) and law.grace_us is not None
    several = isinstance(law, (ops.StreamTableJoin, ops.HistoryJoin)) or len(set(law.leaves)) > 1
    return source.versioned_us is not None and several


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
