"""The route of rows from stage to stage, if a plan is more than a tree of stages.

Several stages may read one stage or source, and it may be a result besides. In a Spark query the
output of an operator goes to only one other operator. So all readers stand in one line. The first
takes its own rows from what comes and passes the others on, untouched.

The line is the elimination tree of the graph of stages. Each step sends everything to the first
stage that wants any of its rows, or any of the rows that it passes on. In a plan without shared
inputs nothing passes. An example: A and B read source S, and C joins A with B.

| step | its own rows are for | it passes on | it sends all to |
|---|---|---|---|
| S | A, B | | A |
| A | C | rows of S for B | B |
| B | C | rows of A for C | C |
| C | the result | | the end |

A stage may be read through several views, or through one view and as a result. It still makes its
rows once. The rows for a view go to a *relay*, right after the stage in the line, which applies the
view.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dovetail.physical.specs.by_key import InOrderLaw
from dovetail.physical.stage import Port, Stage, stages_up_to
from dovetail.plan.nodes import Derived, Entry, Node, Source
from dovetail.plan.views import View, views_of


@dataclass(frozen=True, eq=False)
class InputEdge:
    """One input of a stage: an edge of the plan."""

    stage: Stage
    """The stage that reads the rows."""
    reader: int
    """The index of the stage in the line, from 0."""
    number: int
    """The index of the input in the stage, from 0."""
    port: Port
    """The route by which rows reach the input."""
    reported: int = 0
    """The count of views, from the innermost, whose dead letters another reading reports."""
    fails: bool = False
    """True if it reports the rows on which its foreign key's expression fails. Of several stages of
    a node that compute it, only the first does.
    """

    @property
    def reports_dead_letters(self) -> bool:
        """True if a view through which the input reads may leave out rows as dead letters that no
        other input of the plan reports. The innermost ``reported`` views are reported elsewhere
        and do not count. False for an input that is read by a hash column.
        """
        views = () if self.port.input is None else views_of(self.port.input.source)
        return any(view.letters is not None for view in views[self.reported :])

    @property
    def metric_names(self) -> list[str]:
        """The names of the metrics of rows left out during packing that this input reports:
        ``<input>.dropped``, then perhaps ``<input>.failed``. The latter is there if the foreign
        key's expression may fail on a row and this input reports such rows (``fails``). If several
        stages of a node compute the key, only the first of them reports them.

        Empty if another stage of the plan reads and counts the same rows (``Fragment.counted`` is
        False).
        """
        if not self.stage.fragment.counted:
            return []
        counts = self.port.source.metric_names
        return counts if self.fails else counts[:1]

    @property
    def failure_text(self) -> str:
        """The problem in a dead letter of a row on which the foreign key's expression fails, such
        as ``on= fails on a row of orders``. The reading must be by key (``port.input``).
        """
        assert self.port.input is not None
        return f"{self.stage.argument} fails on a row of {self.port.input.source.name}"


@dataclass(frozen=True, eq=False)
class Relay:
    """The place in the line where the changes of a stage become those of a view."""

    stage: Stage
    view: View


@dataclass(frozen=True, eq=False)
class RouteStep:
    """One place in the line: a source or a view of it, a stage, or a relay."""

    origin: Entry | Stage | Relay
    number: int
    """Its index in the line, from 0; -1 for a source."""
    readings: tuple[InputEdge, ...]
    """The inputs that read its rows."""
    relays: tuple[int, ...]
    """The indices in the line of the relays that get a stage's rows."""
    result: int | None
    """The address of its rows as a result; None if it is no result."""
    letters: int | None
    """The address of dead letters (rows left out because of an error); None if it makes none."""
    unread: bool
    """True if the unreadable records of its source are among its dead letters."""
    passes: bool
    """True if rows for other steps pass through it."""
    before: tuple[RouteStep, ...]
    """The steps that send to it, in the order of its inputs."""
    beats: tuple[InputEdge, ...] = ()
    """The inputs that get its heartbeats; empty if stages send none."""
    hears: frozenset[int] = frozenset()
    """The indices of its own inputs that get heartbeats."""
    is_fused: bool = False
    """True if the step's stage runs on Spark in the operator of the stage that it sends to
    (``_may_fuse``)."""

    @property
    def stage(self) -> Stage:
        """The stage at this step, or the stage whose changes a relay gets. A source's step raises
        ``AssertionError``.
        """
        if isinstance(self.origin, Relay):
            return self.origin.stage
        assert isinstance(self.origin, Stage)
        return self.origin

    @property
    def is_read(self) -> bool:
        """True if stages read the step's rows, directly or through relays. Being a result does not
        count.
        """
        return bool(self.readings or self.relays)

    @property
    def entry(self) -> Entry:
        """The source, view or stage result of the plan through which the step's rows are read.

        For a source's step it is that source or a view of it, for a relay its view. For a stage it
        is the input through which its first reader by key reads it. If none reads it by key, it is
        the stage's result, a ``Derived``.
        """
        if isinstance(self.origin, Relay):
            return self.origin.view
        if not isinstance(self.origin, Stage):
            return self.origin
        ports = (reading.port for reading in self.readings)
        read = (port.input.source for port in ports if port.input is not None)
        return next(read, Derived(self.origin.node))

    @property
    def hash_column_edge(self) -> InputEdge | None:
        """The one input that reads the step's rows partitioned by a hash column in them, or None. A
        step with such an input has no other reader, and is no result; else ``AssertionError`` is
        raised.
        """
        by_hash = [reading for reading in self.readings if reading.port.hash_column is not None]
        assert len(by_hash) <= 1
        assert not by_hash or (len(self.readings) == 1 and self.result is None)
        return by_hash[0] if by_hash else None


@dataclass(frozen=True, eq=False)
class Result:
    """One result of a plan: the changes of ``stage``, with ``views`` applied in order."""

    stage: Stage
    views: tuple[View, ...] = ()


@dataclass(frozen=True, eq=False)
class Plan:
    """The stages that compute the ``results``, with everything that feeds them.

    Stages and relays are numbered in the order in which they run. Larger numbers are the addresses
    of results.
    """

    results: tuple[Result, ...]
    dead_letters: bool = False
    """True if rows left out because of an error are an additional, last result."""
    idles: bool = False
    """True if stages send heartbeats to their readers (``engine.idle``)."""

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """All stages of the plan, each once, every stage after those that feed it, in the order of
        the results. The index of a stage here is not its index in the line, which counts relays as
        well.
        """
        return tuple(
            dict.fromkeys(stage for result in self.results for stage in stages_up_to(result.stage))
        )

    @property
    def source_reads(self) -> list[Source]:
        """The sources in the order in which Spark lists them, each as often as the query reads
        it.
        """
        sources = (
            step
            for step in walk_steps(self.last_steps)
            if not isinstance(step.origin, Stage | Relay)
        )
        bases = [step.entry.base for step in sources]
        return [base for base in bases if isinstance(base, Source)]

    @property
    def entries(self) -> list[Entry]:
        """The sources, and the views of sources, that stages read by key: each once, in the order
        of first use.
        """
        ports = (port for stage in self.stages for port in stage.ports)
        outside = (port for port in ports if isinstance(port.origin, Source))
        return list(dict.fromkeys(port.input.source for port in outside if port.input is not None))

    @property
    def buckets(self) -> int:
        """The count of buckets over which each stage's keys are spread, the same for all stages.
        The plan must have a result.
        """
        return self.results[0].stage.fragment.buckets

    @property
    def operators(self) -> list[list[OperatorStage]]:
        """The stages with state that each of Spark's operators with state runs, in the order in
        which they run. An operator has several if stages are fused (``RouteStep.is_fused``).
        """
        steps = (step for step in walk_steps(self.last_steps) if not step.is_fused)
        stages = (stages_of_operator(step) for step in steps if isinstance(step.origin, Stage))
        return [of_operator for of_operator in stages if of_operator]

    @property
    def has_one_result(self) -> bool:
        """True if the plan has one result, and dead letters are no further result. Rows need no
        address then.
        """
        return len(self.results) == 1 and not self.dead_letters

    @property
    def addresses(self) -> list[int]:
        """The address of each result, in order, then that of the dead letters if they are a result.
        Two results of one stage share an address.

        An address is larger than the index of any stage or relay in the line. With n stages and
        relays, that of a result is n plus its stage's index in the line. That of the dead letters
        is twice n.
        """
        count = len(self.stages_and_relays)
        result_addresses = [
            count + self.stages_and_relays.index(result.stage) for result in self.results
        ]
        return [*result_addresses, *([2 * count] if self.dead_letters else [])]

    @cached_property
    def stages_and_relays(self) -> tuple[Stage | Relay, ...]:
        """The line: all stages in the order in which they run, each followed by its relays. A relay
        applies a view to the stage's changes. The indices of these, from 0, name stages in
        ``InputEdge`` and ``RouteStep``.

        A stage that is a result, or is read by key in several ways, has a relay for each view that
        reads it.
        """
        read: dict[Stage, dict[Entry, None]] = defaultdict(dict)
        for port in (port for stage in self.stages for port in stage.ports):
            if isinstance(port.origin, Stage) and port.input is not None:
                read[port.origin][port.input.source] = None
        results = {result.stage for result in self.results}
        in_line: list[Stage | Relay] = []
        for stage in self.stages:
            in_line.append(stage)
            if stage in results or len(read[stage]) > 1:
                in_line += [Relay(stage, entry) for entry in read[stage] if isinstance(entry, View)]
        return tuple(in_line)

    @cached_property
    def last_steps(self) -> tuple[RouteStep, ...]:
        """The last step of each line of steps: those that send to no other. ``RouteStep.before``
        leads from them to all other steps; ``walk_steps`` yields them in order.
        """
        return _build_last_steps(self)


# The module's example: S is a stream, A and B aggregate it, and C joins them. A pair (number,
# input) says for whom rows are. A step sends everything to the smallest number among its pairs:
#
# | step | number | its rows are for | it passes on | all of these   | it sends to |
# |------|--------|------------------|--------------|----------------|-------------|
# | S    | -1     | (0, 0), (1, 0)   |              | (0, 0), (1, 0) | 0: A        |
# | A    | 0      | (2, 0)           | (1, 0)       | (1, 0), (2, 0) | 1: B        |
# | B    | 1      | (2, 1)           | (2, 0)       | (2, 0), (2, 1) | 2: C        |
# | C    | 2      | (5, 0)           |              | (5, 0)         | the end     |
#
# 5 is the address of the result: the length of the line plus C's number. If A is a result as well,
# its rows are also for (3, 0). Then B and C pass them on to the end.
def _build_last_steps(plan: Plan) -> tuple[RouteStep, ...]:
    """Build the steps of a plan, and return those that send to no other step. All other steps are
    reached through ``before``.

    A step is a source, a view of a source, a stage or a relay. It sends all rows, its own and those
    that pass through it, to the first step of the line that wants any.
    """
    readings: dict[Entry | Stage | Relay, list[InputEdge]] = defaultdict(list)
    reported: set[View] = set()
    computed: set[tuple[Node, Entry | None]] = set()
    numbers: dict[Entry | Stage | Relay, int] = {
        item: n for n, item in enumerate(plan.stages_and_relays)
    }
    relays: dict[tuple[Stage, Entry], Relay] = {
        (item.stage, item.view): item for item in plan.stages_and_relays if isinstance(item, Relay)
    }
    for stage in plan.stages:
        stage_index = numbers[stage]
        for input_index, port in enumerate(stage.ports):
            origin = _rows_origin(port, relays)
            entry = None if port.input is None else port.input.source
            views = () if entry is None else views_of(entry)
            reported_before = sum(view in reported for view in views)
            reported.update(views)
            fails = port.source.shape.fallible and (stage.node, entry) not in computed
            if fails:
                computed.add((stage.node, entry))
            readings[origin].append(
                InputEdge(stage, stage_index, input_index, port, reported_before, fails)
            )
    results: dict[Entry | Stage | Relay, int] = {
        item.stage: to for item, to in zip(plan.results, plan.addresses, strict=False)
    }
    letters = plan.addresses[-1] if plan.dead_letters else None
    sources = [origin for origin in readings if not isinstance(origin, Stage | Relay)]
    # The first reader of each source, if there are several.
    keeping = {item.base: item for item in reversed(sources) if _keeps_unread(item.base)}
    beats = _heartbeat_inputs(readings) if plan.idles else {}
    hearing = {(item.reader, item.number) for others in beats.values() for item in others}
    end = len(plan.stages_and_relays)
    fused: dict[Stage, Stage] = {}
    arriving: dict[int, list[tuple[RouteStep, set[tuple[int, int]]]]] = defaultdict(list)
    origins: list[Entry | Stage | Relay] = [*sources, *plan.stages_and_relays]
    for origin in origins:
        origin_readings = readings[origin]
        onward = tuple(numbers[item] for item in relays.values() if item.stage is origin)
        result, stage_index = results.get(origin), numbers.get(origin, -1)
        unread = letters is not None and origin in keeping.values()
        fallible = unread or any(
            item.fails or item.reports_dead_letters for item in origin_readings
        )
        failing = letters if fallible else None
        arrivals = arriving[stage_index]
        arrivals.sort(key=lambda item: _first_input(item[1], stage_index))
        passed = {to for _, wanted in arrivals for to in wanted if to[0] != stage_index}
        sent = beats.get(origin, ()) if isinstance(origin, Stage) else ()
        wanted = passed | {(item.reader, item.number) for item in (*origin_readings, *sent)}
        wanted |= {(to, 0) for to in (*onward, result, failing) if to is not None}
        sends_to = min((to for to, _ in wanted if to < end), default=end)
        target = None if sends_to == end else plan.stages_and_relays[sends_to]
        is_fused = False
        if isinstance(origin, Stage) and isinstance(target, Stage) and not onward:
            is_fused = _may_fuse(origin, target, origin_readings, fused)
            fused |= {origin: target} if is_fused else {}
        step = RouteStep(
            origin,
            stage_index,
            tuple(origin_readings),
            onward,
            result,
            failing,
            unread,
            # Heartbeats cannot be among flat rows, so they travel like rows that pass.
            bool(passed or (onward and sent))
            or any(item.port.hash_column is None for item in origin_readings if sent),
            tuple(s for s, _ in arrivals),
            sent,
            frozenset(input_index for reader, input_index in hearing if reader == stage_index),
            is_fused,
        )
        arriving[sends_to].append((step, wanted))
    return tuple(step for step, _ in arriving[end])


def _may_fuse(
    origin: Stage, target: Stage, readings: Sequence[InputEdge], fused: Mapping[Stage, Stage]
) -> bool:
    """Return True if one operator of Spark's can run ``origin`` and then ``target``, the next stage
    in the line that it sends to. Both must have state and one bucket, so that nothing is exchanged
    between them. The workers must be able to make all rows that leave ``origin`` without Spark.

    ``readings``: the inputs that read ``origin``. The result is False if one that reads by key has
    a view, or a foreign key with expressions. So it is if the selection of ``origin`` has them.
    ``fused``: by each stage before that is fused, the next one. A stage that puts the results of a
    join by foreign key in order has no state. It is run with the join's stage.
    """
    ordering = isinstance(origin.fragment.last.law, InOrderLaw)
    joins = origin.ports[0].origin if ordering else origin
    if not isinstance(joins, Stage) or not joins.fragment.stateful or joins.fragment.buckets > 1:
        return False
    if ordering and fused.get(joins) is not origin:
        return False
    if isinstance(target.fragment.last.law, InOrderLaw):
        return target.ports[0].origin is origin
    by_key = [reading.port for reading in readings if reading.port.input is not None]
    if by_key and origin.fragment.last.visible:
        return False
    return target.fragment.stateful and all(
        isinstance(port.input.source, Derived) and not port.source.shape.fallible
        for port in by_key
        if port.input is not None
    )


class OperatorStage(NamedTuple):
    """A stage with state in an operator of Spark's, which may run several."""

    step: RouteStep
    emits: RouteStep
    """The step whose rows the stage emits: its own or, for a join by foreign key whose results are
    put in order by the same operator, that of the ordering."""


def stages_of_operator(step: RouteStep) -> list[OperatorStage]:
    """Return the stages with state that the operator of ``step``, a stage's step, runs, in order:
    those that are fused with it, then its own. The list is empty if its stage has no state and none
    is fused with it.
    """
    stages = [
        stage for before in step.before if before.is_fused for stage in stages_of_operator(before)
    ]
    if step.stage.fragment.stateful:
        return [*stages, OperatorStage(step, step)]
    joins = step.stage.ports[0].origin
    return [one._replace(emits=step) if one.step.origin is joins else one for one in stages]


def _rows_origin(port: Port, relays: Mapping[tuple[Stage, Entry], Relay]) -> Entry | Stage | Relay:
    """Return the origin of the rows that come to ``port``, an input of a stage: a source, a view of
    a source, a stage or a relay.

    A source is read once for all its row-by-row views. A view that makes several rows of one, or
    asks a store, reads the source separately, so it is an origin itself. ``relays``: each relay by
    its stage and its view.
    """
    if port.input is None:
        return port.origin
    entry = port.input.source
    if isinstance(port.origin, Stage):
        return relays.get((port.origin, entry), port.origin)
    return entry.base if all(view.row_by_row for view in views_of(entry)) else entry


def _heartbeat_inputs(
    readings: Mapping[Entry | Stage | Relay, Sequence[InputEdge]],
) -> dict[Stage, tuple[InputEdge, ...]]:
    """Return for each stage with state the inputs that get its heartbeats (messages without rows
    that tell the time). Stages whose heartbeats no input gets are left out.

    ``readings``: the inputs that read each source, stage and relay. The returned inputs belong to
    stages with state. They read the sending stage directly, or through stages without state.
    """
    reading: dict[Stage, list[InputEdge]] = defaultdict(list)
    for origin, edges in readings.items():
        if isinstance(origin, Stage | Relay):
            reading[origin.stage if isinstance(origin, Relay) else origin] += edges

    def stateful_readers(origin: Stage) -> Iterator[InputEdge]:
        """Yield the inputs of stages with state that read ``origin`` directly, or through stages
        without state.
        """
        for edge in reading.get(origin, ()):
            if edge.stage.fragment.stateful:
                yield edge
            else:
                yield from stateful_readers(edge.stage)

    edges_by_stage = {stage: tuple(stateful_readers(stage)) for stage in reading}
    return {
        stage: hearing
        for stage, hearing in edges_by_stage.items()
        if hearing and stage.fragment.stateful
    }


def _keeps_unread(base: Entry) -> bool:
    """Return True if ``base`` is a source that passes on, as dead letters, the records that it
    cannot read.
    """
    return isinstance(base, Source) and base.with_unread is not None


def _first_input(wanted: set[tuple[int, int]], stage_index: int) -> int:
    """Return the smallest index of an input of the stage with index ``stage_index`` in ``wanted``.

    ``wanted``: pairs (index of the stage in the line, index of its input). It must have one of that
    stage, else ``ValueError`` is raised.
    """
    return min(input_index for to, input_index in wanted if to == stage_index)


def walk_steps(steps: Sequence[RouteStep]) -> Iterator[RouteStep]:
    """Yield each of ``steps`` after all steps that send to it, at any depth, in the order of
    ``steps``. A step sends to one other step only, so none comes twice.
    """
    for step in steps:
        yield from walk_steps(step.before)
        yield step
