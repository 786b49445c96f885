"""Windows of time over which a stream is aggregated, as users write them.

*Stream time* is the highest event time seen so far. The *grace period* is the time after a window's
end for which its records are still accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from dovetail.base.columns import WINDOW_END, WINDOW_START
from dovetail.base.validation import Rule, validated, validated_fields
from dovetail.errors import PlanError
from dovetail.plan.types.spans import Span, microseconds, written

Kind: TypeAlias = Literal["tumbling", "hopping", "sliding", "session"]


@validated_fields
@dataclass(frozen=True)
class Windows:
    """A kind of windows; made by ``tumbling``, ``hopping``, ``sliding`` and ``session``."""

    kind: Kind
    size_us: int
    """The length of a window in microseconds; for a session, the gap that ends it."""
    advance_us: int
    """The time from one window's start to the next, in microseconds; 0 if records determine the
    windows.
    """
    grace_us: int
    """The grace period in microseconds."""
    retention_us: int
    """The time behind stream time, in microseconds, for which a window is found. It counts from the
    window's start; for a session, from its end.
    """

    @property
    def fixed(self) -> bool:
        """Say whether the clock determines the windows, not the records."""
        return self.kind in ("tumbling", "hopping")

    @property
    def kept_by(self) -> str:
        """The column that retention counts from: the window's end for sessions, else its start.

        A session that still changes may have begun long ago.
        """
        return WINDOW_END if self.kind == "session" else WINDOW_START

    @property
    def wait_us(self) -> int:
        """The stream time from a window's end until the window is closed, in microseconds."""
        return self.grace_us + (self.size_us if self.kind == "session" else 0)

    def __str__(self) -> str:
        every = f" every {written(self.advance_us)}" if self.kind == "hopping" else ""
        gap = "gap " if self.kind == "session" else ""
        return f"{self.kind}, {gap}{written(self.size_us)}{every}, grace {written(self.grace_us)}"


SomeWindows: TypeAlias = Annotated[Windows, Rule('windows, such as dt.tumbling("1 hour")')]


@validated
def tumbling(size: Span, *, grace: Span = "0 s", retention: Span | None = None) -> Windows:
    """Return windows side by side: ``[n * size, (n + 1) * size)``, counted from 1970-01-01 UTC.

    Spans are texts such as ``"1 hour"`` or ``datetime.timedelta``. ``grace``: the stream time after
    a window's end for which its records are still accepted. A window is closed once stream time has
    reached end + grace. Later records of it are dropped and counted. ``retention``: the time behind
    stream time at which a window may begin and still be joined; size + grace by default.

    Raises ``PlanError`` for a size of zero and for a retention shorter than size + grace. Source:
    Kafka Streams join design, "Windowed Aggregate"; spec/windowed.
    """
    return _made("tumbling", size, size, grace, retention)


@validated
def hopping(
    size: Span, *, advance: Span, grace: Span = "0 s", retention: Span | None = None
) -> Windows:
    """Return windows of one size that begin every ``advance``. They overlap: a record may be in
    several.

    No window begins before 1970, except for records before 1970. Other arguments and errors are
    those of ``tumbling``. Raises ``PlanError`` also for an advance of zero or longer than the size.
    """
    return _made("hopping", size, advance, grace, retention)


@validated
def sliding(size: Span, *, grace: Span = "0 s", retention: Span | None = None) -> Windows:
    """Return a window for every set of records at most ``size`` apart, both ends included.

    Each record at time t has a window ``[t - size, t]``. It also has ``[t + 1 us, t + 1 us +
    size]`` if there are records in it. Since the end is included, a window is closed once stream
    time is past it by more than the grace period. Other arguments and errors are those of
    ``tumbling``. Source: as there; Kafka Streams' SlidingWindows.
    """
    return _made("sliding", size, "0 s", grace, retention)


@validated
def session(gap: Span, *, grace: Span = "0 s", retention: Span | None = None) -> Windows:
    """Return windows from a first record to a last one, with neighbours at most ``gap`` apart.

    A record between two sessions merges them: both are deleted, and the new one is added. A session
    is closed once stream time has passed its end by gap + grace. ``retention`` counts from its end.
    Other arguments and errors are those of ``tumbling``.
    """
    return _made("session", gap, "0 s", grace, retention)


def _made(kind: Kind, size: Span, advance: Span, grace: Span, retention: Span | None) -> Windows:
    """Return windows of a kind, with all spans checked."""
    size_us = microseconds(kind, "gap=" if kind == "session" else "size=", size)
    advance_us = microseconds(kind, "advance=", advance)
    grace_us = microseconds(kind, "grace=", grace)
    if size_us == 0:
        raise PlanError(kind, "the windows have no length", "Give a span above zero")
    if kind == "hopping" and not 0 < advance_us <= size_us:
        raise PlanError(
            kind,
            f"advance={advance!r} would leave times without a window",
            f"Use more than zero and at most the size, {written(size_us)}",
        )
    shortest_us = size_us + grace_us
    retention_us = shortest_us
    if retention is not None:
        retention_us = microseconds(kind, "retention=", retention)
    if retention_us < shortest_us:
        raise PlanError(
            kind,
            f"retention={retention!r} forgets windows that still change",
            f"Use at least {written(shortest_us)}, the size and the grace period",
        )
    return Windows(kind, size_us, advance_us, grace_us, retention_us)
