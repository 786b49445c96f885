"""The planner: nodes become operators, fragments and stages.

Joins on one key need one shuffle and one copy of each table's state. So these are one operator:

- a tree of primary-key joins of tables, whatever its depth;
- a stream with all tables that it looks up by one key.

An input that is read twice is one input. Windowed tables and their joins are several operators of
one fragment (``physical.windows``). A join by foreign key has an exchange between its operators,
and so has an aggregate of a table. Joins by foreign key of one table with others may be a star
(``physical.stars``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod

from pyspark.sql.types import StructType

from dovetail.base.columns import HASH, PLACE
from dovetail.errors import PlanError
from dovetail.physical import chains
from dovetail.physical.dispatch import law_of
from dovetail.physical.fragment import Emit, Fragment, Operator
from dovetail.physical.inputs import (
    Arrival,
    Input,
    is_numbered,
    refuse_partly_ordered,
    source_spec,
    unique_names,
)
from dovetail.physical.routing import Plan, Result
from dovetail.physical.source import SourceSpec
from dovetail.physical.specs.delta_join import (
    SettleLaw,
    delta_join_law,
    join_key_input,
    settled_source,
)
from dovetail.physical.specs.foreign_key import SubscribeLaw
from dovetail.physical.specs.groups import RetractLaw
from dovetail.physical.specs.star import (
    StarJoinLaw,
    StarLookupLaw,
    StarSubscribeLaw,
    shared_columns,
)
from dovetail.physical.stage import Port, Stage, count_readers
from dovetail.physical.stars import Star, star_answers, star_messages, star_of
from dovetail.physical.windows import plan_windowed_fragment
from dovetail.plan.fingerprint import describe, fingerprint
from dovetail.plan.joins.delta_join import DeltaJoin, needed_columns
from dovetail.plan.joins.foreign_key_join import ForeignKeyJoin
from dovetail.plan.joins.join_call import materialize
from dovetail.plan.joins.window_join import WindowJoin
from dovetail.plan.nodes import Derived, Node, Source
from dovetail.plan.repeat_checks import refuse_random_state
from dovetail.plan.transforms.aggregation import Aggregation
from dovetail.plan.transforms.union import Union
from dovetail.plan.transforms.unwindow import Unwindowed
from dovetail.plan.types.checks import columns_as_text
from dovetail.plan.views import View, sees_each_change, split_result_views, views_of


def plan_of(
    nodes: Sequence[Node],
    *,
    buckets: int,
    emit: Emit,
    arrival: Arrival | None = None,
    dead_letters: bool = False,
) -> Plan:
    """Return the plan of the stages that compute the results ``nodes``, in their order. Stages that
    several nodes need are planned once.

    ``buckets``: the count of buckets of each stage. ``emit``: ``"change"`` for each change,
    ``"batch"`` for the last change of a key in a micro-batch. ``arrival``: the order of rows, by
    default that of these nodes. ``dead_letters``: True if these are one more result. A windowed
    table must come as what reads it: an ``Unwindowed``, or a join of a stream with it.

    Raises ``PlanError`` for a source that is a stream, and for random values in state or in keys.
    Also for ``emit="batch"`` of a node without current rows, and of a table's changes as records.
    Also if only some inputs of a stage share a log, or if inputs that wait for each other
    (``align=``) share one. A side of a delta join must have a lookup source. ``select=`` must not
    compute in a windowed table that another join of windows reads, or whose windows are emitted
    once closed.
    """
    for node in nodes:
        if isinstance(node, Source) and node.stream:
            raise PlanError(
                node.title,
                "nothing is joined with it, so there is nothing to compute",
                "Join it, make it a table with to_table(), or write its frame itself",
            )
    for node in nodes:
        refuse_random_state(node)
    resting = [_materialize_union(*split_result_views(node), emit) for node in nodes]
    for node, (computed, _) in zip(nodes, resting, strict=True):
        if emit == "batch" and node.stream and not computed.stream:
            chains.refuse_batch(node)  # each change that the stage left out would be a record
    readers = count_readers([node for node, _ in resting])
    planner = _Planner(arrival or Arrival.of(*nodes), buckets, readers)
    # Larger nodes come first. So a node that another one reads is planned by its reader, which
    # knows what the stage must emit.
    for computed, _ in sorted(
        resting, key=lambda node_and_views: -sum(1 for _ in node_and_views[0].walk())
    ):
        planner.stage_of(computed, emit, ())
    results = (Result(planner.stage_of(computed, emit, ()), views) for computed, views in resting)
    return Plan(tuple(results), dead_letters)


def _materialize_union(
    node: Node, views: tuple[View, ...], emit: Emit
) -> tuple[Node, tuple[View, ...]]:
    """Return a result's node and its views as a pair. Under ``emit="batch"`` a union of tables
    becomes a node that stores its rows; any other node stays, as do ``views``.

    ``node``: the result without the views on top of it. ``views``: these views, passed on
    unchanged. A union keeps no rows by itself, so it could not tell the last change of a key.
    """
    stores = emit == "batch" and isinstance(node, Union) and not node.stream
    return (materialize(node) if stores else node), views


@dataclass(frozen=True)
class _Planner:
    """The state of one planning: the stages so far."""

    arrival: Arrival
    """The order of rows in the whole topology."""
    buckets: int
    """The count of buckets of each key space."""
    readers: Mapping[Node, int]
    """The count of nodes and results that read each node."""
    made: dict[tuple[Node, Emit], Stage] = field(default_factory=dict)
    """The stages so far, by node and emission."""

    def stage_of(self, node: Node, emit: Emit, feeds: tuple[str, ...]) -> Stage:
        """Return the stage that computes ``node`` with the emission ``emit``, planning it on first
        use.

        A node has a second stage only if a reader needs each of its changes and others do not.
        ``feeds``: the columns that tell a reader which record caused a change; those of the first
        call count. Raises ``PlanError`` if the stage, or one behind it, cannot be planned.
        """
        if (node, emit) not in self.made:
            self.made[node, emit] = self.plan_stage(node, emit, feeds)
        return self.made[node, emit]

    def _plan_port(
        self, input_: Input, source: SourceSpec, emit: Emit, by: tuple[str, ...] = ()
    ) -> Port:
        """Return the port (the route of rows) of an input that is read by key. If the input is
        another node's result, plan the stage that computes that node.

        ``source``: the layout of the input's rows. ``emit``: the emission of the reader. ``by``:
        the names of the user's columns that partition rows, the key if empty. Raises ``PlanError``
        if a stage behind cannot be planned.

        The stage behind emits as the reader does if three conditions hold. Its node is a table with
        current rows, and no delta join. No view of the input leaves out or counts single rows. No
        view reads the table's changes as records. Else that stage emits each change.
        """
        base = input_.source.base
        if isinstance(base, Source):
            return Port(source, base, input_, by)
        # Rows that a view leaves out must not depend on which changes share a micro-batch, so the
        # view needs each change. So do records that are made of changes.
        exact = base.node.current and not base.node.eventual
        records = any(view.stream for view in views_of(input_.source))
        nets = exact and not records and not sees_each_change(input_.source)
        origin = self.stage_of(
            base.node,
            emit if nets else "change",
            self.arrival.cause_columns(base),
        )
        return Port(source, origin, input_, by)

    def _fragment_of_operator(
        self,
        node: Node,
        topology: str,
        operator: Operator,
        *,
        key_names: tuple[str, ...] = (),
        align_us: int | None = None,
    ) -> Fragment:
        """Return a fragment of one operator, titled with the node's name.

        ``topology``: the fingerprint to which the fragment's stored state belongs. ``key_names``:
        the users' names of the key's columns. ``align_us``: the longest wall-clock time that an
        input waits for another one, None for no waiting.
        """
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

    @singledispatchmethod
    def plan_stage(self, node: Node, emit: Emit, feeds: tuple[str, ...]) -> Stage:
        """Return a new stage for ``node``, and plan the stages behind it. Nodes with several
        operators register their own method.

        By default the stage is one operator, with each input once in the order of first use. It
        covers tables by key, streams, and a stream with tables. ``emit``: the emission of the
        node's changes. ``feeds``: the columns that tell a reader which record caused a change.

        Raises ``PlanError`` for ``emit="batch"`` without current rows, if only some inputs share a
        log, and if aligned inputs share one. Also if a stage behind cannot be planned.
        """
        entries = list(dict.fromkeys(node.entries))
        inputs = [Input(entry, node.read_by(entry)) for entry in entries]
        law = law_of(node, entries)
        # Parts of rows must not be netted, though their reader nets the rows. Nor must rows that
        # expire: each change moves stream time, and restarts the time of its row.
        read: Emit = "change" if node.patches or node.expires else emit
        if isinstance(node, Union) and not node.stream:
            # A union keeps no rows, so its reader nets them: it keeps the last change of each key.
            # The inputs may be netted.
            emit = "change"
        if emit == "batch" and not law.nets:
            chains.refuse_batch(node)
        align_us = node.longest_align_us
        if not self.arrival.one_log:
            refuse_partly_ordered(node, inputs, aligned=align_us is not None)
        numbered = is_numbered(inputs, self.arrival, feeds)
        sources = tuple(
            source_spec(
                input_,
                name,
                self.arrival,
                numbered=numbered,
                alone=input_.source.stream and node.keeps_unmatched(input_.source),
                valueless=law.valueless and input_.source.stream,
                keeps_time=law.keeps_time,
                stairs=align_us is None and law.depends_on_time_of(input_.source, node, feeds),
                aligned=align_us is not None,
            )
            for input_, name in zip(inputs, unique_names(inputs), strict=True)
        )
        operator = Operator(
            law=law,
            sources=sources,
            emit=emit,
            visible=node.selects_expressions,
            feeds=feeds,
            buckets=self.buckets,
        )
        fragment = self._fragment_of_operator(
            node, fingerprint(node), operator, key_names=inputs[0].key, align_us=align_us
        )
        ports = (self._plan_port(*pair, read) for pair in zip(inputs, sources, strict=True))
        leaves = tuple(inputs[leaf] for leaf in law.leaves)
        if law.names_columns:
            leaves = (Input(Derived(node), tuple(node.key.names)),)
        return Stage(node, fragment, tuple(ports), inputs[0].key_text, leaves)

    @plan_stage.register
    def _plan_foreign_key_join(
        self, node: ForeignKeyJoin, emit: Emit, feeds: tuple[str, ...]
    ) -> Stage:
        """Plan a foreign-key join: by primary key, by foreign key, then by primary key in order.
        Return the last stage; the others feed it. If ``node`` ends several joins that are a star,
        plan that instead.

        ``emit``: the emission of the join's changes. ``feeds``: the columns that tell a reader
        which record caused a change. Raises ``PlanError`` if only one side has its position in a
        shared log, or if a stage behind cannot be planned.
        """
        if (star := star_of(node, self.readers)) is not None:
            return self._plan_star(star, emit, feeds)
        foreign_key = tuple(zip(node.on, (f.dataType for f in node.right.key), strict=True))
        left = Input(node.left, tuple(node.left.key.names), foreign_key)
        right = Input(node.right, tuple(node.right.key.names))
        if not self.arrival.one_log:
            refuse_partly_ordered(node, (left, right), aligned=False)
        sides = (
            source_spec(side, name, self.arrival, numbered=True)
            for side, name in zip((left, right), unique_names((left, right)), strict=True)
        )
        left_source, right_source = chains.spread_sources(sides, min(node.spread, self.buckets))
        between = self.arrival.first_cause_columns(node.left)
        topology = fingerprint(node)
        subscribing = Operator(
            law=SubscribeLaw(node.how),
            sources=(left_source,),
            emit=emit,
            feeds=between,
            buckets=self.buckets,
        )
        # No row refers to a row with a null in its key, so it is a result only by itself.
        alone = right_source.meaning.null_keys and node.how in ("right", "outer")
        answering = chains.foreign_key_operator(
            left_source,
            between,
            replace(right_source, meaning=replace(right_source.meaning, null_keys=alone)),
            node.how,
            emit=emit,
            on=tuple(describe(node)["on"]),
            visible=node.selects_expressions,
            feeds=feeds,
            buckets=self.buckets,
        )
        ordering = chains.in_order_operator(answering, node.name)
        first = Stage(
            node,
            self._fragment_of_operator(node, f"{topology}.1", subscribing, key_names=left.key),
            (self._plan_port(left, left_source, emit),),
            left.key_text,
        )
        second = Stage(
            node,
            self._fragment_of_operator(node, f"{topology}.2", answering, key_names=right.key),
            (
                Port(answering.sources[0], first, hash_column=HASH),
                self._plan_port(right, answering.sources[1], emit),
            ),
            f"foreign {right.key_text}{node.spread_text}",
        )
        return Stage(
            node,
            self._fragment_of_operator(node, topology, ordering),
            (Port(ordering.sources[0], second, hash_column=PLACE),),
            f"{left.key_text}, each key's changes in order",
            (left, Input(node.right, ())),
        )

    def _plan_star(self, star: Star, emit: Emit, feeds: tuple[str, ...]) -> Stage:
        """Plan a star's joins: by the key of its fact (the table with all foreign keys), by all
        foreign keys, then by the fact's key again. Return the last stage; the others feed it.

        ``emit``: the emission of the last join's changes. ``feeds``: the columns that tell a reader
        which record caused a change. Raises ``PlanError`` if only some of the tables have their
        position in a shared log, or if a stage behind cannot be planned.
        """
        node = star.joins[-1]
        primary = tuple(star.fact.key.names)
        keys = Input(star.fact, primary, references=star.references)
        fact = Input(star.fact, primary)
        others = [Input(join.right, tuple(join.right.key.names)) for join in star.joins]
        if not self.arrival.one_log:
            refuse_partly_ordered(node, (fact, *others), aligned=False)
        names = unique_names((fact, *others))
        key_source, fact_source = (
            source_spec(input_, names[0], self.arrival, numbered=True) for input_ in (keys, fact)
        )
        dimensions = []
        for input_, name in zip(others, names[1:], strict=True):
            read = source_spec(input_, name, self.arrival, numbered=True)
            # No row refers to a row with a null in its key.
            dimensions.append(replace(read, meaning=replace(read.meaning, null_keys=False)))
        between = self.arrival.first_cause_columns(star.fact)
        types, places = shared_columns(
            [[field.type for field in dimension.shape.key_fields] for dimension in dimensions]
        )
        # The number is that of the form in which a star stores its rows.
        topology = f"{fingerprint(node)}.star2"
        subscribing = Operator(
            law=StarSubscribeLaw(places),
            sources=(key_source,),
            feeds=between,
            buckets=self.buckets,
        )
        messages = star_messages(key_source, types, between)
        looking_up = Operator(
            law=StarLookupLaw(places, len(primary)),
            sources=(messages, *dimensions),
            emit=emit,
            feeds=between,
            buckets=self.buckets,
        )
        answers = star_answers(key_source, dimensions, between)
        shape = fact_source.shape
        columns = [dimension.shape.user_fields for dimension in dimensions]
        joining = Operator(
            law=StarJoinLaw(
                tuple(join.how for join in star.joins),
                tuple(tuple(map(shape.schema.get_field_index, n)) for n in star.foreign),
                tuple(
                    (part, [f.name for f in columns[part - 1]].index(name))
                    if part
                    else (0, shape.schema.get_field_index(name))
                    for part, name in star.left
                ),
                tuple(map(len, columns)),
            ),
            sources=(fact_source, answers),
            emit=emit,
            visible=node.selects_expressions,
            feeds=feeds,
            buckets=self.buckets,
        )
        within = star.joins[:-1]
        first = Stage(
            node,
            replace(
                self._fragment_of_operator(node, f"{topology}.1", subscribing, key_names=primary),
                counted=False,
            ),
            (self._plan_port(keys, key_source, emit),),
            keys.key_text,
            within=within,
        )
        second = Stage(
            node,
            self._fragment_of_operator(node, f"{topology}.2", looking_up),
            (
                Port(messages, first, hash_column=HASH),
                *(self._plan_port(*pair, emit) for pair in zip(others, dimensions, strict=True)),
            ),
            f"foreign {' and '.join(dict.fromkeys(other.key_text for other in others))}",
            within=within,
        )
        return Stage(
            node,
            self._fragment_of_operator(node, f"{topology}.3", joining, key_names=primary),
            (self._plan_port(fact, fact_source, emit), Port(answers, second, hash_column=HASH)),
            fact.key_text,
            (Input(node.left, tuple(node.left.key.names)), Input(node.right, ())),
            within,
        )

    @plan_stage.register
    def _plan_aggregation(self, node: Aggregation, emit: Emit, feeds: tuple[str, ...]) -> Stage:
        """Plan an aggregation and return its last stage, which has the rows of each group in one
        bucket.

        A table has a stage by its own key before it, which knows the group that each row leaves. A
        stream has none. ``emit``: the emission of the groups. ``feeds``: the columns that tell a
        reader which record caused a change. Raises ``PlanError`` if a stage behind cannot be
        planned.
        """
        entry = node.input
        topology = fingerprint(node)
        leaves = (Input(Derived(node), tuple(node.key.names)),)
        if entry.stream:
            input_ = Input(entry, node.by, used=node.used)
            numbered = is_numbered((input_,), self.arrival, feeds)
            read = source_spec(input_, entry.name, self.arrival, numbered=numbered)
            # A record whose own key may be null must still have a group.
            read = replace(read, meaning=replace(read.meaning, null_keys=False))
            port = self._plan_port(input_, read, emit)
        else:
            by = tuple((name, entry.fields[name].dataType) for name in node.by)
            input_ = Input(entry, tuple(entry.key.names), by, node.used)
            read = source_spec(input_, entry.name, self.arrival, numbered=True)
            between = self.arrival.first_cause_columns(entry)
            names = (*node.by, *(field.name for field in input_.value_fields))
            leaving = Operator(
                law=RetractLaw(names), sources=(read,), feeds=between, buckets=self.buckets
            )
            first = Stage(
                node,
                self._fragment_of_operator(node, f"{topology}.1", leaving, key_names=input_.key),
                (self._plan_port(input_, read, emit),),
                input_.key_text,
            )
            topology = f"{topology}.2"
            port = Port(chains.retraction_source(read, between), first, hash_column=HASH)
        aggregating = Operator(
            law=chains.aggregation_law(node),
            sources=(port.source,),
            emit=emit,
            feeds=feeds,
            buckets=self.buckets,
        )
        fragment = self._fragment_of_operator(node, topology, aggregating, key_names=node.by)
        group = columns_as_text(StructType([entry.fields[name] for name in node.by]))
        return Stage(node, fragment, (port,), f"group {group}", leaves)

    @plan_stage.register
    def _plan_delta_join(self, node: DeltaJoin, emit: Emit, feeds: tuple[str, ...]) -> Stage:
        """Plan a delta join: both sides by join key, with only the columns that the result needs.
        Return the stage that joins, which keeps no state.

        If a left row may change its join key, a stage by primary key comes first. ``emit``: the
        emission of the join and of the sides' stages. ``feeds`` is not used: the results are put in
        order anew. Raises ``PlanError`` if a side has no lookup source, or if a stage behind
        cannot be planned.
        """
        needed = needed_columns(node)
        inputs = tuple(
            Input(side, tuple(pair[side_index] for pair in node.on), only=needed_names)
            for side_index, (side, needed_names) in enumerate(
                zip((node.left, node.right), needed, strict=True)
            )
        )
        sources = tuple(
            join_key_input(
                source_spec(input_, name, self.arrival),
                () if input_.source.null_keys else tuple(input_.source.key.names),
            )
            for input_, name in zip(inputs, unique_names(inputs), strict=True)
        )
        law = delta_join_law(node, sources)
        left, right = (
            self._plan_port(*port_pair, emit) for port_pair in zip(inputs, sources, strict=True)
        )
        if law.moving:
            meeting = settled_source(left.source)
            settle = SettleLaw(law.sides[0].key, tuple(meeting.wire_schema.names))
            settling = Operator(law=settle, sources=(left.source,))
            first = Stage(
                node,
                self._fragment_of_operator(node, "", settling),
                (replace(left, by=tuple(node.left.key.names)),),
                f"key {columns_as_text(node.left.key)}, the last change of each",
            )
            left = Port(meeting, first, hash_column=HASH)
        joining = Operator(
            law=law,
            sources=(left.source, right.source),
            emit=emit,
            visible=node.selects_expressions,
            buckets=self.buckets,
        )
        fragment = self._fragment_of_operator(
            node, fingerprint(node), joining, key_names=inputs[0].key
        )
        leaves = (
            Input(node.left, tuple(node.left.key.names), only=needed[0]),
            Input(node.right, (), only=needed[1]),
        )
        return Stage(node, fragment, (left, right), inputs[0].key_text, leaves)

    @plan_stage.register(Unwindowed)
    @plan_stage.register(WindowJoin)
    def _plan_windows(
        self, node: Unwindowed | WindowJoin, emit: Emit, feeds: tuple[str, ...]
    ) -> Stage:
        """Plan windowed tables as one fragment of several operators, and return the stage with it.

        ``emit``: the emission of the node's changes. ``feeds``: the columns that tell a reader
        which record caused a change. Raises ``PlanError`` for ``emit="batch"`` on a stream, and if
        only some inputs share a log. Also for ``select=`` that computes where it may not, and if a
        stage behind cannot be planned.
        """
        planned = plan_windowed_fragment(
            node, self.arrival, buckets=self.buckets, emit=emit, feeds=feeds
        )
        # A window meets the row that a table has before the window closes or is no longer kept.
        # That may be within a micro-batch.
        ports = (
            self._plan_port(*pair, "change")
            for pair in zip(planned.inputs, planned.fragment.sources, strict=True)
        )
        return Stage(
            node, planned.fragment, tuple(ports), planned.inputs[0].key_text, planned.leaves
        )
