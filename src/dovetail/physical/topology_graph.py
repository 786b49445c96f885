"""The topology as a plain graph: inputs, views, operators by stage, and results.

All forms of ``explain`` are made from this value. It holds no plan nodes, only text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

from dovetail.physical.planner import plan_of
from dovetail.physical.routing import Result
from dovetail.physical.source import number_repeated_names
from dovetail.physical.specs.lookup import stage_lookups, store_lookup
from dovetail.physical.stage import Port, Stage
from dovetail.plan.fingerprint import in_checkpoint_order
from dovetail.plan.joins.lookup import Lookup
from dovetail.plan.nodes import Derived, Entry, Node, Source
from dovetail.plan.transforms.unwindow import windows_as_table
from dovetail.plan.views import View

GraphKind: TypeAlias = Literal["input", "view", "operator", "result", "sink"]
"""``"input"``: a source. ``"view"``: a row-by-row step before a shuffle or at the end.
``"operator"``: a step of a stage. ``"result"``: a table or a stream that leaves the topology.
``"sink"``: a target of a query.
"""


@dataclass(frozen=True)
class GraphNode:
    """One step of a topology in its graph: an input, an operator, a view or a sink."""

    id: str
    """A name that is unique in the graph: ``n1``, ``n2`` and so on, inputs before readers."""
    kind: GraphKind
    title: str
    """The name of an input, a result or a sink; of other steps what they do, in one line."""
    details: tuple[str, ...] = ()
    """Lines such as the key, the values and the stored rows."""
    stage: int | None = None
    """The index (from 1) of the stage in which the step runs; None outside of all stages."""


@dataclass(frozen=True)
class GraphStage:
    """One stage: a shuffle, and the state that operators keep behind it."""

    number: int
    """The index in the order in which stages run, from 1."""
    reads: tuple[str, ...]
    """The names of the inputs that are shuffled."""
    by: str
    """A description of what rows are shuffled by."""
    state: tuple[str, ...]
    """The stores: name and content. Empty for a stage without state."""
    lookups: tuple[str, ...]
    """The lookups in external stores."""
    reasons: tuple[str, ...]
    """For each of its operators the reason of the shuffle and of the stores."""
    result: str | None
    """The name of the result that the stage computes, if the topology has several results."""

    @property
    def title(self) -> str:
        """The stage's index from 1 and the columns by which rows are shuffled, in one line of text:
        ``Stage 1: by key (id bigint)``.
        """
        return f"Stage {self.number}: by {self.by}"


class EdgeFigure(NamedTuple):
    """The figure of a query's progress that counts the rows of an edge.

    | stage | input | figure |
    |---|---|---|
    | None | given | rows that are read from the input |
    | given | given | rows of this input that come to the stage |
    | given | None | changes that the stage emits |
    """

    stage: int | None
    """The index of the stage, from 1; None for rows that are read."""
    input: str | None
    """The name of the input; None for changes that a stage emits."""


@dataclass(frozen=True)
class TopologyGraph:
    """A topology as a graph without cycles."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[tuple[str, str], ...]
    """Pairs of ids: rows go from the first node to the second."""
    stages: tuple[GraphStage, ...]
    flows: Mapping[tuple[str, str], EdgeFigure] = field(default_factory=dict)
    """The figures of edges; an edge whose rows no figure counts is left out."""


def topology_graph(
    *nodes: Node, sinks: Mapping[Node, Sequence[str]] = MappingProxyType({})
) -> TopologyGraph:
    """Return the graph of a topology with the results ``nodes``, planned with ``emit="change"``.

    ``sinks``: the titles of the targets of each result. The sinks of a node that is no result, as
    of dead letters, have no edge. Their ``details`` have the name of that node. A stream that
    nothing reads is an input without a stage. If all results are such streams, or there are none,
    the graph has no sinks. Raises ``PlanError`` for results that cannot be planned together.
    """
    builder = _GraphBuilder()
    run = [node for node in nodes if not (node.stream and node in node.origins)]
    for node in nodes:
        if node not in run:
            builder.add_entry(node, None)
    if not run:
        return builder.graph()
    tables = [windows_as_table(node, "on_change") if node.windows else node for node in run]
    builder.hidden.update(set(tables) - set(run))
    results = in_checkpoint_order(tables) if len(tables) > 1 else tables
    plan = plan_of(results, buckets=1, emit="change")
    builder.steps.update(Counter(stage.node for stage in plan.stages))
    computing = [result.stage for result in plan.results] if len(results) > 1 else []
    for number, stage in enumerate(plan.stages, start=1):
        builder.add_stage(number, stage, is_result=stage in computing)
    planned = dict(zip(results, plan.results, strict=True))
    for node in tables:
        builder.last_of[node] = builder.add_result(node, planned[node])
    for node, titles in sinks.items():
        before = [builder.last_of[node]] if node in builder.last_of else []
        for title in titles:
            builder.add_node("sink", title, () if before else (node.name,), before)
    return builder.graph()


def columns_of(node: Node) -> tuple[str, str]:
    """Return the names of the key columns and those of the value columns of a node, as two texts:
    ``key id``, and ``amount, paid`` or ``no values``.
    """
    return f"key {', '.join(node.key.names)}", ", ".join(node.values.names) or "no values"


@dataclass
class _GraphBuilder:
    """The graph of a topology while steps are added to it."""

    nodes: list[GraphNode] = field(default_factory=list)
    edges: dict[tuple[str, str], EdgeFigure | None] = field(default_factory=dict)
    """The figure of each edge, by the ids of its ends; None if no figure counts its rows."""
    stages: list[GraphStage] = field(default_factory=list)
    ids: dict[tuple[int | None, Node], str] = field(default_factory=dict)
    """The ids of inputs and views, with None, and of operators, with their stage's index from 1."""
    last: dict[Stage, str] = field(default_factory=dict)
    """The id of the operator whose rows leave a stage."""
    hidden: set[Node] = field(default_factory=set)
    """Nodes that ``explain`` adds to windowed tables, so that they can be planned."""
    steps: Counter[Node] = field(default_factory=Counter)
    """The count of stages of each node."""
    planned: Counter[Node] = field(default_factory=Counter)
    """The count of stages of each node that were added so far."""
    last_of: dict[Node, str] = field(default_factory=dict)
    """The id of each result."""
    arriving: dict[Port, str] = field(default_factory=dict)
    """The names of the inputs of the stage that is added, as its figures have them."""
    arrivals: dict[tuple[int, str], EdgeFigure] = field(default_factory=dict)
    """The figures of rows that come to a stage, by its index from 1 and the id of their node."""

    def graph(self) -> TopologyGraph:
        """Return the graph of all steps and stages that were added."""
        flows = {edge: flow for edge, flow in self.edges.items() if flow is not None}
        return TopologyGraph(tuple(self.nodes), tuple(self.edges), tuple(self.stages), flows)

    def add_node(
        self,
        kind: GraphKind,
        title: str,
        details: tuple[str, ...],
        sources: list[str],
        stage: int | None = None,
    ) -> str:
        """Add a node with an edge from each of ``sources`` (ids of nodes added before), and return
        its id, ``n1`` for the first.

        An edge gets an ``EdgeFigure``, which names the metric that counts its rows by a stage and
        an input. It is that of rows that come to the stage from the source, else that of rows that
        leave the source, else None. ``kind``: such as ``"view"``. ``title``: its name, or what it
        does in one line. ``details``: lines of text on the node. ``stage``: the index of its stage
        from 1, None outside of stages.
        """
        node = GraphNode(f"n{len(self.nodes) + 1}", kind, title, details, stage)
        self.nodes.append(node)
        for source in sources:
            arrival = None if stage is None else self.arrivals.get((stage, source))
            self.edges[source, node.id] = arrival or self._output_figure(source)
        return node.id

    def _output_figure(self, source: str) -> EdgeFigure | None:
        """Return the figure that counts the rows that leave a node; None if no figure does, as for
        views. ``source``: the id of the node, which must have been added.
        """
        node = next(node for node in self.nodes if node.id == source)
        if node.kind == "input":
            return EdgeFigure(None, node.title)
        return EdgeFigure(node.stage, None) if source in self.last.values() else None

    def add_entry(self, entry: Node, origin: Source | Stage | None) -> str:
        """Return the id of ``entry``, an input of a stage. Add a node for ``entry``, and for the
        views and the source below it, as far as the graph has none yet. The result of another stage
        gets no node: its id is that of that stage's operator.

        ``origin``: the source or the stage that the rows come from; None for a lone source. A stage
        must have been added before, else ``KeyError`` is raised.
        """
        if isinstance(entry, Derived):
            assert isinstance(origin, Stage)
            return self.last[origin]
        if (None, entry) not in self.ids:
            if isinstance(entry, View):
                below = [self.add_entry(entry.node, origin)]
                looked_up = (store_lookup(entry).summary,) if isinstance(entry, Lookup) else ()
                node_id = self.add_node(
                    "view", entry.summary, (*columns_of(entry), *looked_up), below
                )
            else:
                node_id = self.add_node(
                    "input", entry.name, (_node_kind(entry), *columns_of(entry)), []
                )
            self.ids[None, entry] = node_id
        return self.ids[None, entry]

    def add_stage(self, number: int, stage: Stage, *, is_result: bool) -> None:
        """Add the stage with index ``number``, counted from 1, with its operators, and with all
        inputs that are new. The stages that feed it must have been added. ``is_result``: True if it
        computes one of several results.
        """
        described = _describe_stage(number, stage, is_result=is_result)
        self.stages.append(described)
        self.planned[stage.node] += 1
        top = stage.node.inputs[0] if stage.node in self.hidden else stage.node
        top = top.node if isinstance(top, Derived) else top
        names = number_repeated_names([source.name for source in stage.fragment.sources])
        self.arriving = dict(zip(stage.ports, names, strict=False))
        before = [
            self._record_arrivals(number, port, self.last[port.origin])
            for port in stage.ports
            if port.input is None and isinstance(port.origin, Stage)
        ]
        ports = {port.input.source: port for port in stage.ports if port.input is not None}
        sources = [
            node_id
            for part in (*stage.within, top)
            for node_id in self._add_sources(number, part, ports)
        ]
        state = (*(f"state {line}" for line in described.state), *_lookup_texts(stage))
        title = "rows by key" if isinstance(top, Entry) else top.summary
        if stage.within:
            title = f"star: {'; '.join(part.summary for part in (*stage.within, top))}"
        details: tuple[str, ...] = columns_of(top)
        step, steps = self.planned[stage.node], self.steps[stage.node]
        if steps > 1:
            details = (f"step {step} of {steps}", *(details if step == steps else ()))
        self.last[stage] = self.add_node(
            "operator", title, (*details, *state), before + sources, number
        )

    def _add_sources(self, number: int, node: Node, ports: Mapping[Entry, Port]) -> list[str]:
        """Return the ids of the nodes whose rows ``node`` reads in stage ``number`` (from 1), in
        the order of its inputs. Add those that are new, and store the figures of arriving rows.

        ``ports``: the stage's ports, by input. Inputs that an earlier stage of the same node reads
        are left out, so the list may be empty.
        """
        sources: list[str] = []
        for child in (node,) if node in ports else node.inputs:
            if isinstance(child, Entry) and child in ports:
                port = ports[child]
                sources.append(
                    self._record_arrivals(number, port, self.add_entry(child, port.origin))
                )
            elif not isinstance(child, Entry) or child.windows is not None:
                inner = child.node if isinstance(child, Derived) else child
                sources.append(self._add_inner_node(number, inner, ports))
        return sources

    def _record_arrivals(self, number: int, port: Port, source: str) -> str:
        """Store the figure of the rows that come from node ``source``, an id, to a port of stage
        ``number`` (from 1). The edge that is added for them has this figure. Return ``source``.
        """
        self.arrivals[number, source] = EdgeFigure(number, self.arriving.get(port))
        return source

    def _add_inner_node(self, number: int, node: Node, ports: Mapping[Entry, Port]) -> str:
        """Return the id of a node that runs within stage ``number`` (from 1) and is not its last.
        Add the node, and its inputs, if they are new. ``ports``: the stage's ports, by input.
        """
        if (number, node) not in self.ids:
            sources = self._add_sources(number, node, ports)
            added = self.add_node("operator", node.summary, columns_of(node), sources, number)
            self.ids[number, node] = added
        return self.ids[number, node]

    def add_result(self, node: Node, result: Result) -> str:
        """Add the node of a result, behind the stage and the views that make it, and return the
        added node's id. The stage must have been added. Views that are new are added as well.
        """
        last = self.last[result.stage]
        if result.views:
            last = self.add_entry(result.views[-1], result.stage)
        sort = "windowed table" if node in self.hidden else _node_kind(node)
        return self.add_node("result", node.name, (sort, *columns_of(node)), [last])


def _node_kind(node: Node) -> str:
    """Return ``stream``, ``table`` or, for a source whose rows never change, ``static table``."""
    static = "static " if isinstance(node, Source) and node.static else ""
    return f"{static}{'stream' if node.stream else 'table'}"


def _describe_stage(number: int, stage: Stage, *, is_result: bool) -> GraphStage:
    """Return the description of the stage with index ``number``, counted from 1: its inputs, stores
    and lookups. With ``is_result`` it also has the name of the stage's node, as one of several
    results.
    """
    lookups_of_views = (store_lookup(view).summary for view in stage_lookups(stage))
    return GraphStage(
        number,
        reads=tuple(dict.fromkeys(port.source.name for port in stage.ports)),
        by=stage.by,
        state=tuple(f"{name}: {store.holds}" for name, store in stage.fragment.stores.items()),
        lookups=(*_lookup_texts(stage), *lookups_of_views),
        reasons=stage.reasons,
        result=stage.node.name if is_result else None,
    )


def _lookup_texts(stage: Stage) -> tuple[str, ...]:
    """Return the lookups in external stores that a stage's operators make, in words, one text for
    each side that is looked up; empty for none.
    """
    operators = stage.fragment.operators
    return tuple(line for o in operators for line in o.law.lookup_texts(o.sources))
