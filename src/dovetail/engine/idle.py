"""When nothing comes (``idle=``): once no input of a stage has brought anything for so long, by the
wall clock, their stream times go on with it, until one of them brings something.

A stage that has heard nothing from another one does not know why: it may have made nothing of what
came to it. So each says, to those that read it, since when nothing has come, and what time it is by
its own stream time, less what it may still hold back.

The times are those of micro-batches, and those at which runs of the query began, before which
nothing was waited for. A micro-batch goes by the run that planned it, so that one that is run again
does what it did. All buckets of a stage hear the same, and go on in the same micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dovetail.arrays.timeline import NO_TIME
from dovetail.engine.pieces import Piece
from dovetail.errors import PlanError
from dovetail.operators.job import minus
from dovetail.physical.fragment import Fragment
from dovetail.physical.line import Plan
from dovetail.plan.spans import Span, microseconds
from dovetail.state.manifest import Manifest

LOOK_US = 10_000_000
"""How long a stage does not look, at most, before stream time goes on."""

Times: TypeAlias = "tuple[int | None, ...]"
"""A time for each input, None before its first."""


@dataclass(frozen=True)
class Idle:
    """``runs``: of the query's runs when each began, and for how long nothing comes before stream
    time goes on, None for ever; ``hears``: the inputs of a stage to which heartbeats come.
    """

    runs: tuple[tuple[int, int | None], ...]
    hears: frozenset[int] = frozenset()

    def run(self, now_us: int) -> tuple[int, int | None]:
        """The run that planned a micro-batch."""
        begun = (run for run in reversed(self.runs) if run[0] <= now_us)
        return next(begun, (now_us, None))


def idle_us(operator: str, span: Span, plan: Plan) -> int:
    """The span of ``idle=``; ``PlanError`` where nothing in the plan waits for stream time."""
    if not any(stage.fragment.holds_us or stage.node.expires for stage in plan.stages):
        raise PlanError(
            operator,
            "idle= is given, and nothing waits for stream time",
            "Leave it out (align= says itself for how long it waits)",
        )
    return microseconds(operator, "idle=", span)


@dataclass(frozen=True)
class Pause:
    """How long nothing has come. ``heard_us``: by the wall clock, when something last did;
    ``moves``: whether stream time goes on; ``again_us``: when to look again.
    """

    heard_us: int
    moves: bool
    again_us: int


def heard(known_us: Times, pieces: Sequence[Piece], now_us: int, hears: frozenset[int]) -> Times:
    """When each input has last brought something, by the wall clock; one that never has, when it
    was first waited for. ``known_us``: before the micro-batch, which has these pieces.
    """
    times = [*known_us]
    for piece in pieces:
        if piece.high_time_us == NO_TIME and piece.source not in hears:
            continue  # nothing but rows that are no records
        at_us = piece.heard_us if piece.source in hears else now_us
        times[piece.source] = max(at_us, times[piece.source] or NO_TIME)
    return tuple(now_us if time in (None, NO_TIME) else time for time in times)


def pause(idle: Idle, heard_us: Times, now_us: int) -> Pause:
    """How long nothing has come to a stage. Once stream time goes on, it looks again each time that
    this is longer by a tenth, so that a long silence costs little; before, also now and then: the
    query may run with another ``idle=`` by then, and nothing else would show it.
    """
    last_us = max(_since(idle, heard_us, now_us))
    quiet_us, (_, span_us) = now_us - last_us, idle.run(now_us)
    if span_us is not None and quiet_us >= span_us:
        return Pause(last_us, moves=True, again_us=now_us + quiet_us // 10)
    left_us = LOOK_US if span_us is None else span_us - quiet_us
    return Pause(last_us, moves=False, again_us=now_us + min(left_us, LOOK_US))


def moved(idle: Idle, manifest: Manifest, now_us: int) -> Times:
    """The stream time of each input once it goes on: what it was when the last record came, and as
    much more as has passed since; of one that hears heartbeats, what they say.
    """
    since_us = _since(idle, manifest.heard_us, now_us)
    times: list[int | None] = []
    for number, (stream_us, read_us) in enumerate(
        zip(manifest.stream_time_us, manifest.read_us, strict=True)
    ):
        if read_us is not None and number not in idle.hears:
            read_us += now_us - since_us[number]
        times.append(stream_us if read_us is None else max(read_us, stream_us or read_us))
    return tuple(times)


def time_of(fragment: Fragment, times: Times) -> int:
    """The stream time of a fragment's results, less what it may hold back."""
    known = [NO_TIME if time is None else time for time in times]
    if fragment.last.clocks:
        time_us = min(known[number] for number in fragment.last.clocks)
    else:
        streams = [
            time for time, source in zip(known, fragment.sources, strict=True) if source.stream
        ]
        time_us = max(streams or known)
    return minus(time_us, fragment.holds_us)


def _since(idle: Idle, heard_us: Times, now_us: int) -> list[int]:
    """Since when nothing has come of each input in this run."""
    start_us, _ = idle.run(now_us)
    return [max(start_us, time or start_us) for time in heard_us]
