"""How rows get from stage to stage where a query's plan is a tree and stages are read more than
once.

A stage, or a source, may be read by several stages, and be a result besides. In a Spark query what
leaves an operator goes to one other. So all who read it stand in one line: the first takes its own
rows out of what comes and passes the others on, untouched. The line is the elimination tree of the
graph of stages: each stage's rows go to the first of those that want any of them, or of what it
passes on. A plan in which nothing is read twice is a tree as it is, and nothing passes anything on.

A stage that is read through several views, or through one and is a result, makes its rows once all
the same: those for a view go to a *relay*, right after it in the line, which makes the view.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dovetail.physical.stage import Port, Stage, stages
from dovetail.plan.nodes import Derived, Entry, Node, Source
from dovetail.plan.views import View, views_of


@dataclass(frozen=True, eq=False)
class Reading:
    """Input ``number`` of a stage, which is number ``reader`` in its plan; ``port``: how rows reach
    it; ``reported``: of how many of the views that it is, from the innermost, another reading
    reports the rows that they leave out; ``fails``: whether it reports on which rows its expression
    fails, which one of the same node's stages does.
    """

    stage: Stage
    reader: int
    number: int
    port: Port
    reported: int = 0
    fails: bool = False

    @property
    def reports(self) -> bool:
        """Whether there may be rows that views leave out and no other reading reports."""
        views = () if self.port.input is None else views_of(self.port.input.source)
        return any(view.letters is not None for view in views[self.reported :])

    @property
    def counts(self) -> list[str]:
        """The metrics of rows that are left out as they are packed, and that it reports."""
        counts = self.port.source.counts
        return counts if self.fails else counts[:1]

    @property
    def failure(self) -> str:
        """What a row has that is left out because something fails on it."""
        assert self.port.input is not None
        return f"{self.stage.argument} fails on a row of {self.port.input.source.name}"


@dataclass(frozen=True, eq=False)
class Relay:
    """Where the changes of a stage become those of a view."""

    stage: Stage
    view: View


@dataclass(frozen=True, eq=False)
class Step:
    """A source or a view of it, a stage or a relay in its line. ``number``: its own, but a
    source's; ``readings``: who reads its rows; ``relays``: the numbers of those to which a stage's
    rows go; ``result``: what results are addressed by that they are, None for none;
    ``letters``: the number of the dead letters where it may have some; ``unread``: whether those of
    its source's records that cannot be read are among them; ``passes``: whether rows for others
    come by; ``before``: from where it takes what comes, in the order of its inputs; ``beats``: who
    gets its heartbeats, where stages send some; ``hears``: those of its inputs to which some come.
    """

    origin: Entry | Stage | Relay
    number: int
    readings: tuple[Reading, ...]
    relays: tuple[int, ...]
    result: int | None
    letters: int | None
    unread: bool
    passes: bool
    before: tuple[Step, ...]
    beats: tuple[Reading, ...] = ()
    hears: frozenset[int] = frozenset()

    @property
    def stage(self) -> Stage:
        """The stage that it is, or whose changes a relay has."""
        if isinstance(self.origin, Relay):
            return self.origin.stage
        assert isinstance(self.origin, Stage)
        return self.origin

    @property
    def is_read(self) -> bool:
        """Whether stages read its rows, as they are or as views."""
        return bool(self.readings or self.relays)

    @property
    def entry(self) -> Entry:
        """As what its rows are read."""
        if isinstance(self.origin, Relay):
            return self.origin.view
        if not isinstance(self.origin, Stage):
            return self.origin
        ports = (one.port for one in self.readings)
        read = (port.input.source for port in ports if port.input is not None)
        return next(read, Derived(self.origin.node))

    @property
    def moves(self) -> Reading | None:
        """Who reads its rows by a hash that they name themselves; no one else reads them."""
        by_hash = [one for one in self.readings if one.port.hash_column is not None]
        assert len(by_hash) <= 1
        assert not by_hash or (len(self.readings) == 1 and self.result is None)
        return by_hash[0] if by_hash else None


@dataclass(frozen=True, eq=False)
class Result:
    """A stage's changes, read as ``views``, one after the other."""

    stage: Stage
    views: tuple[View, ...] = ()


@dataclass(frozen=True, eq=False)
class Plan:
    """The stages that give ``results``, with all that feed them; ``dead_letters``: whether the rows
    that they leave out because something fails on them are a result, too, the last; ``idles``:
    whether stages send heartbeats to those that read them (``engine.idle``).

    Stages and relays are numbered in the order in which they run; then come the numbers by which
    stages' changes are addressed as results.
    """

    results: tuple[Result, ...]
    dead_letters: bool = False
    idles: bool = False

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, each once, those that feed it first."""
        return tuple(dict.fromkeys(one for result in self.results for one in stages(result.stage)))

    @property
    def reads(self) -> list[Source]:
        """What is read from outside, in the order in which Spark has it in the query's plan: a
        source as often as it is read.
        """
        sources = (step for step in walk(self.ends) if not isinstance(step.origin, Stage | Relay))
        bases = [step.entry.base for step in sources]
        return [base for base in bases if isinstance(base, Source)]

    @property
    def entries(self) -> list[Entry]:
        """Sources, and views of them, as stages read them: each once."""
        ports = (port for stage in self.stages for port in stage.ports)
        outside = (port for port in ports if isinstance(port.origin, Source))
        return list(dict.fromkeys(port.input.source for port in outside if port.input is not None))

    @property
    def buckets(self) -> int:
        """How many share each key space."""
        return self.results[0].stage.fragment.buckets

    @property
    def single(self) -> bool:
        """Whether there is one result, whose rows can leave as they are."""
        return len(self.results) == 1 and not self.dead_letters

    @property
    def addresses(self) -> list[int]:
        """What the rows of each result are addressed to; of one stage it is one; the dead letters'
        comes last.
        """
        count = len(self.line)
        found = [count + self.line.index(result.stage) for result in self.results]
        return [*found, *([2 * count] if self.dead_letters else [])]

    @cached_property
    def line(self) -> tuple[Stage | Relay, ...]:
        """All stages, and after each its relays."""
        read: dict[Stage, dict[Entry, None]] = defaultdict(dict)
        for port in (port for stage in self.stages for port in stage.ports):
            if isinstance(port.origin, Stage) and port.input is not None:
                read[port.origin][port.input.source] = None
        results = {result.stage for result in self.results}
        made: list[Stage | Relay] = []
        for stage in self.stages:
            made.append(stage)
            if stage in results or len(read[stage]) > 1:
                made += [Relay(stage, entry) for entry in read[stage] if isinstance(entry, View)]
        return tuple(made)

    @cached_property
    def ends(self) -> tuple[Step, ...]:
        """The ends of all lines."""
        return _steps(self)


def _steps(plan: Plan) -> tuple[Step, ...]:
    readings: dict[Entry | Stage | Relay, list[Reading]] = defaultdict(list)
    reported: set[View] = set()
    computed: set[tuple[Node, Entry | None]] = set()
    numbers: dict[Entry | Stage | Relay, int] = {one: n for n, one in enumerate(plan.line)}
    relays: dict[tuple[Stage, Entry], Relay] = {
        (one.stage, one.view): one for one in plan.line if isinstance(one, Relay)
    }
    for stage in plan.stages:
        number = numbers[stage]
        for place, port in enumerate(stage.ports):
            origin = _origin(port, relays)
            entry = None if port.input is None else port.input.source
            views = () if entry is None else views_of(entry)
            known = sum(view in reported for view in views)
            reported.update(views)
            fails = port.source.fallible and (stage.node, entry) not in computed
            if fails:
                computed.add((stage.node, entry))
            readings[origin].append(Reading(stage, number, place, port, known, fails))
    results: dict[Entry | Stage | Relay, int] = {
        one.stage: to for one, to in zip(plan.results, plan.addresses, strict=False)
    }
    letters = plan.addresses[-1] if plan.dead_letters else None
    sources = [origin for origin in readings if not isinstance(origin, Stage | Relay)]
    # The first that reads a source, if several do.
    keeping = {one.base: one for one in reversed(sources) if _keeps_unread(one.base)}
    beats = _beats(readings) if plan.idles else {}
    hearing = {(one.reader, one.number) for others in beats.values() for one in others}
    end = len(plan.line)
    arriving: dict[int, list[tuple[Step, set[tuple[int, int]]]]] = defaultdict(list)
    origins: list[Entry | Stage | Relay] = [*sources, *plan.line]
    for origin in origins:
        own = readings[origin]
        onward = tuple(numbers[one] for one in relays.values() if one.stage is origin)
        result, number = results.get(origin), numbers.get(origin, -1)
        unread = letters is not None and origin in keeping.values()
        fallible = unread or any(one.fails or one.reports for one in own)
        failing = letters if fallible else None
        comes = arriving[number]
        comes.sort(key=lambda one: _first_input(one[1], number))
        passed = {to for _, wanted in comes for to in wanted if to[0] != number}
        sent = beats.get(origin, ()) if isinstance(origin, Stage) else ()
        wanted = passed | {(one.reader, one.number) for one in (*own, *sent)}
        wanted |= {(to, 0) for to in (*onward, result, failing) if to is not None}
        step = Step(
            origin,
            number,
            tuple(own),
            onward,
            result,
            failing,
            unread,
            # Beside flat rows heartbeats can only pass.
            bool(passed or (onward and sent))
            or any(one.port.hash_column is None for one in own if sent),
            tuple(s for s, _ in comes),
            sent,
            frozenset(place for reader, place in hearing if reader == number),
        )
        arriving[min((to for to, _ in wanted if to < end), default=end)].append((step, wanted))
    return tuple(step for step, _ in arriving[end])


def _origin(port: Port, relays: Mapping[tuple[Stage, Entry], Relay]) -> Entry | Stage | Relay:
    """Where the rows of an input come from. A source is read once for all views of it, but for
    those that make several rows of one or ask a store.
    """
    if port.input is None:
        return port.origin
    entry = port.input.source
    if isinstance(port.origin, Stage):
        return relays.get((port.origin, entry), port.origin)
    return entry.base if all(view.row_by_row for view in views_of(entry)) else entry


def _beats(
    readings: Mapping[Entry | Stage | Relay, Sequence[Reading]],
) -> dict[Stage, tuple[Reading, ...]]:
    """Who gets the heartbeats of each stage with state: those with state that read it, and that
    read what others without state make of it.
    """
    reading: dict[Stage, list[Reading]] = defaultdict(list)
    for origin, own in readings.items():
        if isinstance(origin, Stage | Relay):
            reading[origin.stage if isinstance(origin, Relay) else origin] += own

    def stateful(origin: Stage) -> Iterator[Reading]:
        for one in reading.get(origin, ()):
            if one.stage.fragment.stateful:
                yield one
            else:
                yield from stateful(one.stage)

    made = {stage: tuple(stateful(stage)) for stage in reading}
    return {stage: found for stage, found in made.items() if found and stage.fragment.stateful}


def _keeps_unread(base: Entry) -> bool:
    return isinstance(base, Source) and base.with_unread is not None


def _first_input(wanted: set[tuple[int, int]], number: int) -> int:
    return min(place for to, place in wanted if to == number)


def walk(steps: Sequence[Step]) -> Iterator[Step]:
    """These steps and all before them, which come first."""
    for step in steps:
        yield from walk(step.before)
        yield step
