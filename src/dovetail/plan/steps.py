"""Windowed tables: the steps that compute one, and what it is joined with, in one stage.

A window is a part of a row's key, but rows are dealt out by the rest of it, so that all windows of
a key lie in one bucket. So every join of windowed tables runs there, as one of the joins of tables:
on the same window by the key of both; with a table without windows, or on a shifted window, by a
foreign key, which here never leaves the bucket.

Source: Kafka Streams join design, "Windowed Aggregate", "KStream-WTable", "KTable-WTable",
"WTable-KTable", "WTable-WTable".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import Column
from pyspark.sql.types import DataType, LongType, StructField, StructType, TimestampType

from dovetail.columns import (
    FOREIGN,
    SEQUENCE,
    WINDOW_END,
    WINDOW_START,
    foreign_name,
    gathered_name,
    key_name,
    value_name,
)
from dovetail.errors import PlanError
from dovetail.kernels.table_join import Join, Leaf, preserved
from dovetail.plan import spec as specs
from dovetail.plan.inputs import (
    Arrival,
    Input,
    carried,
    is_numbered,
    refuse_partly_ordered,
    source_spec,
    unique_names,
)
from dovetail.plan.nodes import (
    Aggregation,
    Derived,
    Entry,
    Unwindowed,
    WindowJoin,
    base_key,
    is_stream,
    windows_of,
)
from dovetail.plan.spec import (
    Emit,
    Feed,
    Final,
    ForeignKey,
    Gather,
    Lookup,
    Operator,
    SourceSpec,
    StageSpec,
    Step,
    Steps,
    Subscribe,
    TableTree,
)
from dovetail.plan.windows import Windows

WindowNode = Aggregation | WindowJoin | Unwindowed


@dataclass(frozen=True)
class Planned:
    """The stage of a windowed node: its inputs; its spec; and the last step's inputs as a join's
    two sides, by which its output's columns are named.
    """

    inputs: tuple[Input, ...]
    spec: StageSpec
    sides: tuple[Input, ...]


def plan_steps(
    node: WindowNode,
    topology: str,
    arrival: Arrival,
    *,
    buckets: int,
    emit: Emit,
    feeds: tuple[str, ...],
) -> Planned:
    """The steps of a node that is windowed or reads windows."""
    if emit == "batch" and is_stream(node):
        raise PlanError(
            node.name,
            "emit='batch' keeps a key's last change, which only a table's current rows have",
            "Use emit='change'",
        )
    builder = _Builder()
    computed = node.input.node if isinstance(node, Unwindowed) else node
    assert isinstance(computed, (Aggregation, WindowJoin))
    final = isinstance(node, Unwindowed) and node.final
    computes = isinstance(computed, WindowJoin) and any(s.ref is None for s in computed.select)
    if computes and final:
        raise PlanError(
            computed.name,
            "select= computes, and the windows are told when they are final",
            "Name columns only, and compute in to_stream()",
        )
    # A window's last row does not depend on where batches end. A fixed or sliding one takes nothing
    # more once it is closed, so its last row of the batch will do; a join goes on, and a key's
    # sessions are told of together.
    inner: Emit = emit
    if final:
        sessions = computed.windows is not None and computed.windows.kind == "session"
        alone = isinstance(computed, Aggregation) and not sessions
        inner = "batch" if alone else "change"
    made = builder.made(computed, inner)
    sides = builder.sides(computed)
    if final:
        builder.final(computed, made)
        builder.steps[:] = [_timed(step) for step in builder.steps]
        sides = (Input(Derived(computed), tuple(computed.key.names)),)
    inputs = builder.finished()
    if not arrival.one_log:
        refuse_partly_ordered(node, inputs, aligned=False)
    last = builder.steps[-1]
    visible = computes or (
        isinstance(node, Unwindowed) and not all(isinstance(c, str) for c in node.columns)
    )
    builder.steps[-1] = replace(last, spec=replace(last.spec, visible=visible))
    names = unique_names(inputs)
    numbered = is_numbered(inputs, arrival, feeds)
    clocks = {number for step in builder.steps for number in step.clocks}
    windows = windows_of(computed)
    assert windows is not None or not final
    spec = StageSpec(
        topology=topology,
        buckets=buckets,
        sources=tuple(
            replace(
                source_spec(
                    input_,
                    name,
                    arrival,
                    numbered=numbered,
                    stairs=len(inputs) > 1 and number in clocks,
                    alone=input_.source.stream and input_.used is None and _keeps_alone(computed),
                ),
                valueless=input_.used is not None and input_.source.stream,
                fallible=any(not isinstance(item, str) for item, _ in input_.foreign),
            )
            for number, (input_, name) in enumerate(zip(inputs, names, strict=True))
        ),
        keys=len(inputs[0].key),
        operator=Steps(tuple(builder.steps)),
        emit=emit,
        visible=visible,
        feeds=feeds,
        holds_us=windows.size_us + windows.wait_us if final and windows is not None else 0,
        title=node.name,
        key_names=inputs[0].key,
    )
    return Planned(inputs, spec, sides)


def _timed(step: Step) -> Step:
    """A step that tells of a group whose time alone has changed, too."""
    operator = step.spec.operator
    if not isinstance(operator, Gather):
        return step
    return replace(step, spec=replace(step.spec, operator=replace(operator, timed=True)))


def _meets_by_key(node: WindowJoin) -> bool:
    """Whether a join's sides meet by the key of both: on the same window, or as a stream comes."""
    left, right = windows_of(node.left), windows_of(node.right)
    if right is None:
        return False
    return node.left.stream if left is None else node.shift_us == 0


def _keeps_alone(node: Aggregation | WindowJoin) -> bool:
    """Whether a stream's records come out where they find no window."""
    return isinstance(node, WindowJoin) and node.how == "left"


@dataclass(frozen=True)
class _Made:
    """The rows of an input, or of a ``step``; the column there of each column of the node; and the
    inputs by whose time its windows close.
    """

    number: int
    step: bool
    columns: Mapping[str, str]
    clocks: tuple[int, ...]

    def feed(
        self,
        names: list[tuple[str, int]],
        *,
        rehashed: bool = True,
        foreign: int = 0,
        looks: Windows | None = None,
    ) -> Feed:
        """These columns of it, each with the microseconds that are added."""
        columns = tuple((self.columns[name], by_us) for name, by_us in names)
        return Feed(self.number, self.step, columns, rehashed, foreign, looks)


@dataclass
class _Read:
    """An input while the stage is planned; ``used`` grows."""

    source: Entry
    key: tuple[str, ...]
    foreign: tuple[tuple[str | Column, DataType], ...]
    used: dict[str, int] | None


@dataclass
class _Builder:
    reads: list[_Read] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    _known: dict[int, _Made] = field(default_factory=dict)

    def finished(self) -> tuple[Input, ...]:
        """The inputs, once all steps are planned."""
        return tuple(
            Input(r.source, r.key, r.foreign, None if r.used is None else tuple(r.used))
            for r in self.reads
        )

    def sides(self, node: Aggregation | WindowJoin) -> tuple[Input, ...]:
        """The inputs of a node's last step."""
        if isinstance(node, Aggregation):
            return (Input(Derived(node), tuple(node.key.names)),)
        left = Input(node.left, tuple(node.left.key.names))
        # By foreign key, the right row's own key is one of its values.
        by_key = _meets_by_key(node)
        return left, Input(node.right, tuple(node.right.key.names) if by_key else ())

    def made(self, node: Aggregation | WindowJoin, emit: Emit) -> _Made:
        """The steps that compute a node, each node once."""
        if id(node) not in self._known:
            if isinstance(node, Aggregation):
                made = self._gathered(node, emit)
            else:
                made = self._joined(node, emit)
            self._known[id(node)] = made
        return self._known[id(node)]

    def final(self, node: Aggregation | WindowJoin, made: _Made) -> _Made:
        """The step that tells each window's last row."""
        windows = windows_of(node)
        assert windows is not None
        values = [*node.key.fields, *node.values.fields]
        source = SourceSpec(
            name=node.name,
            schema=carried(StructType(values)),
            sequence=True,
            retention_us=windows.size_us + windows.grace_us,
            window=windows.kept_by,
        )
        operator = Final(windows.wait_us, after=not windows.fixed)
        feed = made.feed([(f.name, 0) for f in values])
        spec = _of_step((source,), len(node.key), operator, "change")
        return self._step(spec, (feed,), made.clocks, _named(node.key.names, node.values.names))

    def _read(
        self,
        source: Entry,
        key: tuple[str, ...],
        foreign: tuple[tuple[str | Column, DataType], ...] = (),
        used: tuple[str, ...] | None = None,
    ) -> _Made:
        """An input, shared by all steps that read it so."""
        alike = (source, key, foreign, used is None)
        known = [(r.source, r.key, r.foreign, r.used is None) for r in self.reads]
        number = known.index(alike) if alike in known else len(known)
        if number == len(known):
            self.reads.append(_Read(source, key, foreign, None if used is None else {}))
        read = self.reads[number]
        columns = {name: name for name in key}
        if read.used is None:
            columns = {f.name: f.name for f in (*source.key, *source.values)}
        else:
            for name in used or ():
                read.used.setdefault(name, len(read.used))
            gathered = {name: gathered_name(n) for name, n in read.used.items()}
            columns = gathered | columns
        columns |= {foreign_name(n): foreign_name(n) for n in range(len(foreign))}
        return _Made(number, False, columns, (number,))

    def _step(
        self,
        spec: StageSpec,
        feeds: tuple[Feed, ...],
        clocks: tuple[int, ...],
        columns: Mapping[str, str],
    ) -> _Made:
        self.steps.append(Step(spec, feeds, clocks))
        return _Made(len(self.steps) - 1, True, columns, clocks)

    def _gathered(self, node: Aggregation, emit: Emit) -> _Made:
        used = tuple(dict.fromkeys(name for c in node.columns for name in c.columns))
        read = self._read(node.input, node.by, used=used)
        known = {f.name: f for f in (*node.input.key, *node.input.values)}
        fields = [known[name] for name in node.by]
        fields += [StructField(gathered_name(n), known[u].dataType) for n, u in enumerate(used)]
        source = SourceSpec(
            name=node.input.name,
            schema=carried(StructType(fields)),
            sequence=True,
            stream=True,
            valueless=True,
        )
        spec = _of_step((source,), len(node.by), gather(node, used), emit)
        feed = read.feed([(name, 0) for name in (*node.by, *used)], rehashed=False)
        return self._step(spec, (feed,), read.clocks, _named(node.key.names, node.values.names))

    def _joined(self, node: WindowJoin, emit: Emit) -> _Made:
        if not _meets_by_key(node):
            return self._referred(node, emit)
        if node.left.stream:
            return self._looked_up(node, emit)
        return self._on_same_window(node, emit)

    def _side(self, entry: Entry, emit: Emit) -> _Made:
        if windows_of(entry) is None:
            return self._read(entry, tuple(entry.key.names))
        assert isinstance(entry, Derived)
        node = entry.node
        assert isinstance(node, (Aggregation, WindowJoin))
        made = self.made(node, emit)
        if isinstance(node, WindowJoin) and any(s.ref is None for s in node.select):
            raise PlanError(
                node.name,
                "select= computes, and another join of windows reads the result",
                "Name columns only, and compute in the last select= or in to_stream()",
            )
        return made

    def _on_same_window(self, node: WindowJoin, emit: Emit) -> _Made:
        sides = [self._side(entry, emit) for entry in (node.left, node.right)]
        entries = [node.left, node.right]
        if sides[0] == sides[1]:
            sides, entries = sides[:1], entries[:1]
        feeds, sources = [], []
        for made, entry in zip(sides, entries, strict=True):
            fields = [*entry.key.fields, *entry.values.fields]
            sources.append(_source(entry, StructType(fields)))
            feeds.append(made.feed([(f.name, 0) for f in fields]))
        tree = Join(Leaf(0), Leaf(len(sides) - 1), node.how)
        spec = _of_step(tuple(sources), len(node.key), TableTree(tree), emit)
        return self._step(spec, tuple(feeds), _clocks(sides), self._selected(node))

    def _referred(self, node: WindowJoin, emit: Emit) -> _Made:
        """By foreign key: the left row's key with another window, or without its own."""
        windows = windows_of(node.right)
        own = list(node.left.key)
        base = [(name, 0) for name in base_key(node.left).names]
        looks = None
        if windows is None:
            left, names = self._side(node.left, emit), base
        elif windows_of(node.left) is not None:
            left = self._side(node.left, emit)
            names = [*base, (WINDOW_START, node.shift_us), (WINDOW_END, node.shift_us)]
        else:
            left, column = self._window_of(node)
            names = [*base, (column, 0), (column, windows.size_us)]
            looks = windows
        right = self._side(node.right, emit)
        theirs = list(node.right.key)
        foreign = [StructField(foreign_name(n), f.dataType) for n, f in enumerate(theirs)]
        values = [*node.left.values.fields]
        source = _source(
            node.left, StructType([*own, StructField(FOREIGN, LongType()), *foreign, *values])
        )
        subscribe = _of_step((source,), len(own), Subscribe(len(foreign), node.how), emit)
        told = [(f.name, 0) for f in own], [(f.name, 0) for f in values]
        feed = left.feed([*told[0], *names, *told[1]], foreign=len(names), looks=looks)
        clocks = _clocks(
            [side for side, w in ((left, windows_of(node.left)), (right, windows)) if w]
        )
        said = self._step(subscribe, (feed,), clocks, {})
        subscriptions = replace(
            source,
            schema=carried(StructType([*foreign, *own, *values])),
            versioned_us=None,
            subscribed=True,
        )
        answered = _source(node.right, StructType([*theirs, *node.right.values.fields]))
        joined = _of_step(
            (subscriptions, answered), len(theirs), ForeignKey(len(own), node.how), emit
        )
        feeds = (
            said.feed([]),
            right.feed([(f.name, 0) for f in (*theirs, *node.right.values.fields)]),
        )
        return self._step(joined, feeds, clocks, self._selected(node))

    def _looked_up(self, node: WindowJoin, emit: Emit) -> _Made:
        windows = windows_of(node.right)
        assert windows is not None
        left, column = self._window_of(node)
        right = self._side(node.right, emit)
        own = list(node.left.key)
        asked = [StructField(name, TimestampType()) for name in (WINDOW_START, WINDOW_END)]
        values = [*node.left.values.fields]
        source = replace(
            _source(node.left, StructType([*own, *asked, *values])),
            stream=True,
            null_keys=preserved(node.how)[0],
        )
        theirs = _source(
            node.right, StructType([*node.right.key.fields, *node.right.values.fields])
        )
        spec = _of_step(
            (source, theirs),
            len(own) + len(asked),
            Lookup(Join(Leaf(0), Leaf(1), node.how)),
            "change",
        )
        names = [*((f.name, 0) for f in own), (column, 0), (column, windows.size_us)]
        feeds = (
            left.feed([*names, *((f.name, 0) for f in values)], looks=windows),
            right.feed([(f.name, 0) for f in (*node.right.key, *node.right.values)]),
        )
        return self._step(spec, feeds, right.clocks, self._selected(node))

    def _window_of(self, node: WindowJoin) -> tuple[_Made, str]:
        """The left side without windows, and the column that says where its window begins."""
        looks = node.window_of
        assert looks is not None
        key = tuple(node.left.key.names)
        if isinstance(looks, str):
            return self._read(node.left, key), looks
        return self._read(node.left, key, ((looks, TimestampType()),)), foreign_name(0)

    def _selected(self, node: WindowJoin) -> Mapping[str, str]:
        """The output's column behind each column of the join."""
        left, right = self.sides(node)
        held = {
            side: {f.name: key_name(n) for n, f in enumerate(input_.key_fields)}
            | {f.name: value_name(leaf, n) for n, f in enumerate(input_.value_fields)}
            for leaf, (side, input_) in enumerate((("left", left), ("right", right)))
        }
        own = {name: key_name(n) for n, name in enumerate(node.key.names)}
        return own | {s.name: held[s.ref[0]][s.ref[1]] for s in node.select if s.ref is not None}


def gather(node: Aggregation, used: tuple[str, ...], *, retracts: bool = False) -> Gather:
    """What an aggregation makes of the columns ``used``."""
    return Gather(
        node.name,
        tuple(
            specs.Column(c.name, tuple(used.index(name) for name in c.columns), c.kernel)
            for c in node.columns
        ),
        node.windows,
        retracts,
    )


def _of_step(
    sources: tuple[SourceSpec, ...], keys: int, operator: Operator, emit: Emit
) -> StageSpec:
    """What a step does as a stage of its own would, in the bucket of the one it is part of."""
    return StageSpec("", 1, sources, keys, operator, emit, visible=False, feeds=(SEQUENCE,))


def _source(entry: Entry, columns: StructType) -> SourceSpec:
    windows = windows_of(entry)
    return SourceSpec(
        name=entry.name,
        schema=carried(columns),
        sequence=True,
        versioned_us=entry.versioned_us,
        retention_us=None if windows is None else windows.retention_us,
        window=WINDOW_START if windows is None else windows.kept_by,
    )


def _clocks(sides: list[_Made]) -> tuple[int, ...]:
    return tuple(sorted({clock for side in sides for clock in side.clocks}))


def _named(key: list[str], values: list[str]) -> dict[str, str]:
    own = {name: key_name(number) for number, name in enumerate(key)}
    return own | {name: value_name(0, number) for number, name in enumerate(values)}
