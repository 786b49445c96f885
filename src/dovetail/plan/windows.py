"""Windows of time over which a stream is aggregated, as users write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from dovetail.arguments import Rule, validated, validated_fields
from dovetail.columns import WINDOW_END, WINDOW_START
from dovetail.errors import PlanError
from dovetail.plan.spans import Span, microseconds, written

Kind: TypeAlias = Literal["tumbling", "hopping", "sliding", "session"]


@validated_fields
@dataclass(frozen=True)
class Windows:
    """A kind of windows, in microseconds; made by ``tumbling``, ``hopping``, ``sliding`` and
    ``session``.

    ``size_us``: from a window's start to its end; of a session the gap that ends it.
    ``advance_us``: from one window's start to the next one's, 0 where records give the windows.
    ``retention_us``: how far behind stream time a window may begin, a session end, and still be
    found.
    """

    kind: Kind
    size_us: int
    advance_us: int
    grace_us: int
    retention_us: int

    @property
    def fixed(self) -> bool:
        """Whether the clock gives the windows, not the records."""
        return self.kind in ("tumbling", "hopping")

    @property
    def kept_by(self) -> str:
        """The column that says how far behind stream time a window is: a session may have begun
        long ago.
        """
        return WINDOW_END if self.kind == "session" else WINDOW_START

    @property
    def wait_us(self) -> int:
        """How long after a window's end stream time must be past it so that it is closed."""
        return self.grace_us + (self.size_us if self.kind == "session" else 0)

    def __str__(self) -> str:
        every = f" every {written(self.advance_us)}" if self.kind == "hopping" else ""
        gap = "gap " if self.kind == "session" else ""
        return f"{self.kind}, {gap}{written(self.size_us)}{every}, grace {written(self.grace_us)}"


SomeWindows: TypeAlias = Annotated[Windows, Rule('windows, such as dt.tumbling("1 hour")')]


@validated
def tumbling(size: Span, *, grace: Span = "0 s", retention: Span | None = None) -> Windows:
    """Windows side by side: ``[n * size, (n + 1) * size)``, counted from 1970-01-01 UTC.

    Spans are texts such as ``"1 hour"`` or ``datetime.timedelta``. ``grace``: how much later than a
    window's end, in stream time, its records may still come: a window is closed, and what comes for
    it is dropped and counted, once stream time has reached end + grace. ``retention``: how far
    behind stream time a window may begin and still be joined; size + grace by default.

    Raises ``PlanError`` for a size of zero and for a retention shorter than size + grace.
    Source: Kafka Streams join design, "Windowed Aggregate"; spec/windowed.
    """
    return _made("tumbling", size, size, grace, retention)


@validated
def hopping(
    size: Span, *, advance: Span, grace: Span = "0 s", retention: Span | None = None
) -> Windows:
    """Windows of one size that begin every ``advance``, so that each record is in several; the rest
    as in ``tumbling``. None begins before 1970 but for records before it.

    Raises ``PlanError`` for an advance of zero or one longer than the size, too.
    """
    return _made("hopping", size, advance, grace, retention)


@validated
def sliding(size: Span, *, grace: Span = "0 s", retention: Span | None = None) -> Windows:
    """A window for every set of records at most ``size`` apart: each record's ``[t - size, t]``
    and, where there are records in it, ``[t + 1 us, t + 1 us + size]``, both ends included.

    As the end is included, a window is closed once stream time has passed it by more than the
    grace period. The rest as in ``tumbling``. Source: as there; Kafka Streams' SlidingWindows.
    """
    return _made("sliding", size, "0 s", grace, retention)


@validated
def session(gap: Span, *, grace: Span = "0 s", retention: Span | None = None) -> Windows:
    """Windows from a first record to a last one between which no two neighbours are more than
    ``gap`` apart. A record between two sessions makes them one: they are deleted, the new one is
    added.

    A session is closed once stream time has passed its end by gap + grace; ``retention`` counts
    from its end. The rest as in ``tumbling``.
    """
    return _made("session", gap, "0 s", grace, retention)


def _made(kind: Kind, size: Span, advance: Span, grace: Span, retention: Span | None) -> Windows:
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
