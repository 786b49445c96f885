"""Idle inputs (``idle=``): stream time goes on with the wall clock while nothing comes.

It starts once no input of a stage has brought anything for the given wall-clock time. It stops when
an input brings something.

A stage that hears nothing from another one does not know why: the other may have made no results of
its input. So each stage sends heartbeats to those that read it. A heartbeat says since when nothing
has come to the stage. It also says the stage's stream time, less the longest that it may hold a
result back.

Times are those of micro-batches, and those at which runs of the query began. Nothing is waited for
before its run began. A micro-batch belongs to the run that planned it, so it does the same if it is
run again. All buckets of a stage hear the same and go on in the same micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dovetail.arrays.timeline import NO_TIME
from dovetail.engine.batches.pieces import Piece
from dovetail.errors import PlanError
from dovetail.operators.job import subtract_span
from dovetail.physical.fragment import Fragment
from dovetail.physical.routing import Plan
from dovetail.plan.types.spans import Span, microseconds
from dovetail.state.manifest import Manifest

LOOK_US = 10_000_000
"""The longest that a stage does not look again before stream time goes on."""

Times: TypeAlias = "tuple[int | None, ...]"
"""A time for each input; None before its first."""


@dataclass(frozen=True)
class IdleRules:
    """The rules of a query for when nothing comes."""

    runs: tuple[tuple[int, int | None], ...]
    """For each run of the query its start and the time without input before stream time goes on.

    The second is None if stream time never goes on. Runs are in the order of their starts.
    """
    hears: frozenset[int] = frozenset()
    """The inputs of a stage to which heartbeats come."""

    def run_span_at(self, now_us: int) -> tuple[int, int | None]:
        """Return the start of the query's run that planned a micro-batch at ``now_us``, and the
        time without input before stream time goes on. Both are in microseconds; the second is None
        if stream time never goes on.

        The run is the latest that began at or before ``now_us``. Without such a run, return
        ``now_us`` and None.
        """
        begun = (run for run in reversed(self.runs) if run[0] <= now_us)
        return next(begun, (now_us, None))


def idle_us(operator: str, span: Span, plan: Plan) -> int:
    """Return ``span``, the value of ``idle=``, in microseconds.

    ``operator``: the name of the call, for errors. ``plan``: the plan of the query. Raises
    ``PlanError`` if nothing in the plan waits for stream time, or if ``span`` is not a span of
    time.
    """
    if not any(stage.fragment.holds_us or stage.node.expires for stage in plan.stages):
        raise PlanError(
            operator,
            "idle= is given, and nothing waits for stream time",
            "Leave it out (align= says itself for how long it waits)",
        )
    return microseconds(operator, "idle=", span)


@dataclass(frozen=True)
class Pause:
    """The time for which nothing has come to a stage."""

    heard_us: int
    """The wall-clock time at which something last came."""
    moves: bool
    """True if stream time goes on."""
    again_us: int
    """The wall-clock time at which to look again at the latest."""


def heard_times(
    known_us: Times, pieces: Sequence[Piece], now_us: int, hears: frozenset[int]
) -> Times:
    """Return for each input the wall-clock time in microseconds at which it last brought something,
    this micro-batch included. The latest time counts, so it never goes back. For an input that
    never has, it is ``now_us``.

    - ``known_us``: the times before the micro-batch, None for never.
    - ``pieces``: those of the micro-batch, of all inputs. A piece without a record
      (``high_time_us`` is ``NO_TIME``) does not count, unless its input is in ``hears``.
    - ``now_us``: the micro-batch's wall-clock time, at which its pieces count.
    - ``hears``: the indices of the inputs to which heartbeats come. Their pieces count at their own
      ``heard_us``, or not at all if it is ``NO_TIME``.
    """
    times = [*known_us]
    for piece in pieces:
        if piece.high_time_us == NO_TIME and piece.source not in hears:
            continue  # it has only rows that are no records
        at_us = piece.heard_us if piece.source in hears else now_us
        times[piece.source] = max(at_us, times[piece.source] or NO_TIME)
    return tuple(now_us if time in (None, NO_TIME) else time for time in times)


# An example with idle= of 60 s and the last record at 12:00:00:
#
# | now | quiet for | moves | look again |
# |---|---|---|---|
# | 12:00:20 | 20 s | no | after 10 s: LOOK_US |
# | 12:00:55 | 55 s | no | after 5 s, when 60 s are over |
# | 12:02:00 | 120 s | yes | after 12 s: a tenth of the pause |
def pause_at(idle: IdleRules, heard_us: Times, now_us: int) -> Pause:
    """Return the pause of a stage at ``now_us``. It has the wall-clock time since which no input
    has brought anything (``heard_us``). It also has the time at which to look again (``again_us``).
    ``moves`` is true if stream time goes on.

    ``idle``: the rules of the query. ``heard_us``: the wall-clock time at which each input last
    brought something. An input with None has been silent since the query's run began. All times are
    in microseconds. A pause exactly as long as the span of ``idle`` lets time go on.

    While stream time goes on, the stage looks again whenever the pause is longer by a tenth. So a
    long silence costs little. Before, and if it never goes on, the stage looks at least every
    ``LOOK_US`` (10 s). The query may meanwhile run with another ``idle=``, and nothing else would
    show it.
    """
    last_us = max(_silence_starts_us(idle, heard_us, now_us))
    quiet_us, (_, span_us) = now_us - last_us, idle.run_span_at(now_us)
    if span_us is not None and quiet_us >= span_us:
        return Pause(last_us, moves=True, again_us=now_us + quiet_us // 10)
    left_us = LOOK_US if span_us is None else span_us - quiet_us
    return Pause(last_us, moves=False, again_us=now_us + min(left_us, LOOK_US))


def idle_stream_times(idle: IdleRules, manifest: Manifest, now_us: int) -> Times:
    """Return the stream time of each input at the wall-clock time ``now_us`` while nothing comes,
    in microseconds, None for an input that has had none. It never goes back.

    That is the largest timestamp read plus the wall-clock time since the input last brought
    something. It counts from the start of the query's run if that is later. For an input in
    ``idle.hears``, the wall-clock time is not added, since its heartbeats say the time. The caller
    must know that time goes on (``pause_at``); the span of ``idle`` is not looked at here.
    ``manifest``: the bucket's, with the times that were read and heard.
    """
    since_us = _silence_starts_us(idle, manifest.heard_us, now_us)
    times: list[int | None] = []
    for input_index, (stream_us, read_us) in enumerate(
        zip(manifest.stream_time_us, manifest.read_us, strict=True)
    ):
        if read_us is not None and input_index not in idle.hears:
            read_us += now_us - since_us[input_index]
        known_us = [time for time in (stream_us, read_us) if time is not None]
        times.append(max(known_us, default=None))
    return tuple(times)


def result_time(fragment: Fragment, times: Times) -> int:
    """Return the stream time of a fragment's results in microseconds, less the longest that a
    result is held back; ``NO_TIME`` before the first record.

    ``times``: the stream time of each input, None before its first. The result goes by the smallest
    time of the inputs in the last operator's ``clocks``, and is ``NO_TIME`` if one of these has
    none. Without clocks it goes by the largest of streams, or of all inputs if none is a stream.
    """
    known_us = [NO_TIME if time is None else time for time in times]
    if fragment.last.clocks:
        time_us = min(known_us[input_index] for input_index in fragment.last.clocks)
    else:
        streams = [
            time
            for time, source in zip(known_us, fragment.sources, strict=True)
            if source.meaning.stream
        ]
        time_us = max(streams or known_us)
    return subtract_span(time_us, fragment.holds_us)


def _silence_starts_us(idle: IdleRules, heard_us: Times, now_us: int) -> list[int]:
    """Return for each input the wall-clock time in microseconds since which it has brought nothing.
    It is no earlier than the start of the query's run at ``now_us``.

    ``heard_us``: the time at which each last brought something. For an input with None, the start
    of the run is returned.
    """
    start_us, _ = idle.run_span_at(now_us)
    return [max(start_us, time or start_us) for time in heard_us]
