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
from dovetail.plan.types.spans import Span, microseconds, span_as_text

Kind: TypeAlias = Literal["tumbling", "hopping", "sliding", "session"]


@validated_fields
@dataclass(frozen=True)
class Windows:
    """A kind of time windows, with its size, grace period and retention.

    ``tumbling``, ``hopping``, ``sliding`` and ``session`` make it, and users do not
    construct it. As text it reads as in ``explain``.

    See Also
    --------
    GroupedStream.window : Group a stream by windows of time, too.
    tumbling : Windows side by side.
    hopping : Windows of one size that overlap.
    sliding : A window for every set of records close in time.
    session : Windows between pauses.

    Examples
    --------
    >>> import dovetail as dt
    >>> windows = dt.windows.tumbling("1 hour", grace="10 min")
    >>> print(windows)
    tumbling, 1 hour, grace 10 min
    >>> windows.retention_us  # one hour and ten minutes
    4200000000
    """

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
        """True if the clock determines the windows, False if the records do.

        Tumbling and hopping windows are fixed, sliding windows and sessions are not.

        See Also
        --------
        tumbling : Windows side by side.
        session : Windows between pauses.

        Examples
        --------
        >>> import dovetail as dt
        >>> dt.windows.tumbling("1 hour").fixed, dt.windows.session("20 min").fixed
        (True, False)
        """
        return self.kind in ("tumbling", "hopping")

    @property
    def kept_by(self) -> str:
        """The column from which retention counts: the end of a session, else the start.

        A session that still changes may have begun long ago, so its start would not do.

        See Also
        --------
        tumbling : Describes ``retention``.

        Examples
        --------
        >>> import dovetail as dt
        >>> dt.windows.tumbling("1 hour").kept_by, dt.windows.session("20 min").kept_by
        ('window_start', 'window_end')
        """
        return WINDOW_END if self.kind == "session" else WINDOW_START

    @property
    def wait_us(self) -> int:
        """The stream time from the end of a window until the window is closed, in microseconds.

        It is the grace period; for a session, the gap and the grace period. Stream time is
        the highest event time seen so far.

        See Also
        --------
        tumbling : Describes ``grace``.

        Examples
        --------
        >>> import dovetail as dt
        >>> dt.windows.session("20 min", grace="10 min").wait_us  # half an hour
        1800000000
        """
        return self.grace_us + (self.size_us if self.kind == "session" else 0)

    def __str__(self) -> str:
        """Return the windows in words, as in ``explain``: ``tumbling, 1 hour, grace 10 min``."""
        every = f" every {span_as_text(self.advance_us)}" if self.kind == "hopping" else ""
        gap = "gap " if self.kind == "session" else ""
        size, grace = span_as_text(self.size_us), span_as_text(self.grace_us)
        return f"{self.kind}, {gap}{size}{every}, grace {grace}"


SomeWindows: TypeAlias = Annotated[Windows, Rule('windows, such as dt.windows.tumbling("1 hour")')]


@validated
def tumbling(size: Span, *, grace: Span = "0 s", retention: Span | None = None) -> Windows:
    """Return windows side by side, each from ``n * size`` until before ``(n + 1) * size``.

    Windows are counted from 1970-01-01 UTC. A window's start is included and its end is
    not, so each record is in one window. A span is a ``datetime.timedelta`` or a text such
    as ``"1 hour"``, in units from ``"us"`` to ``"weeks"``. *Stream time* is the highest
    event time seen so far.

    Parameters
    ----------
    size : str or timedelta
        The length of a window, above zero.
    grace : str or timedelta, default "0 s"
        The time after a window's end, in stream time, for which its records are still
        accepted.
    retention : str or timedelta, optional
        The largest time, inclusive, from a window's start to stream time at which the window
        is still joined. It is ``size + grace`` by default, and at least that.

    Returns
    -------
    Windows
        An argument of ``window`` of a grouped stream.

    Raises
    ------
    PlanError
        If a span cannot be read or is negative. Also if ``size`` is zero, or if
        ``retention`` is shorter than ``size + grace``.

    See Also
    --------
    hopping : Windows that overlap.
    session : Windows between pauses.
    GroupedStream.window : Group a stream by windows of time, too.

    Notes
    -----
    A window is closed once stream time has reached its end plus ``grace``. Later records of
    it are dropped and counted (metric ``<stream>.late``). Source: Kafka Streams join
    design, "Windowed Aggregate"; spec/windowed.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"user": pa.string(), "page": pa.string()}
    >>> views = testing.stream("views", key="user", schema=schema)
    >>> counts = views.group_by("page").window(dt.windows.tumbling("1 hour")).agg(views=dt.count())
    >>> driver = testing.Driver(counts.to_table(windows="on_close"))
    >>> minute = 60_000_000
    >>> rows = [{"user": "ann", "page": "home"}, {"user": "bob", "page": "home"}]
    >>> driver.pipe(views, rows, timestamp=[5 * minute, 59 * minute])
    []
    >>> driver.pipe(views, {"user": "cid", "page": "home"}, timestamp=60 * minute)[0].values
    {'views': 2}
    """
    return _build_windows("tumbling", size, size, grace, retention)


@validated
def hopping(
    size: Span, *, advance: Span, grace: Span = "0 s", retention: Span | None = None
) -> Windows:
    """Return windows of one size that begin every ``advance`` and overlap.

    A record may be in several windows. A window's start is included and its end is not.
    Starts are multiples of ``advance``, counted from 1970-01-01 UTC. *Stream time* is the
    highest event time seen so far.

    Parameters
    ----------
    size : str or timedelta
        The length of a window, above zero.
    advance : str or timedelta
        The time from one window's start to the next, above zero and at most ``size``.
    grace : str or timedelta, default "0 s"
        The time after a window's end, in stream time, for which its records are still
        accepted.
    retention : str or timedelta, optional
        The largest time, inclusive, from a window's start to stream time at which the window
        is still joined. It is ``size + grace`` by default, and at least that.

    Returns
    -------
    Windows
        An argument of ``window`` of a grouped stream.

    Raises
    ------
    PlanError
        If a span cannot be read or is negative. Also if ``size`` or ``advance`` is zero,
        ``advance`` is longer than ``size``, or ``retention`` is shorter than ``size +
        grace``.

    See Also
    --------
    tumbling : Windows side by side.
    sliding : A window for every set of records close in time.
    GroupedStream.window : Group a stream by windows of time, too.

    Notes
    -----
    No window begins before 1970, except for records before 1970. A window is closed once
    stream time has reached its end plus ``grace``. Later records are left out of it and
    counted (metric ``<stream>.late``). Source: Kafka Streams join design, "Windowed
    Aggregate"; spec/windowed.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"user": pa.string(), "page": pa.string()}
    >>> views = testing.stream("views", key="user", schema=schema)
    >>> windows = dt.windows.hopping("1 hour", advance="30 min")
    >>> counts = views.group_by("page").window(windows).agg(views=dt.count())
    >>> driver = testing.Driver(counts.to_table())
    >>> minute = 60_000_000
    >>> changes = driver.pipe(views, {"user": "ann", "page": "home"}, timestamp=40 * minute)
    >>> [f"{change.key['window_start']:%H:%M}" for change in changes]
    ['00:00', '00:30']
    """
    return _build_windows("hopping", size, advance, grace, retention)


@validated
def sliding(size: Span, *, grace: Span = "0 s", retention: Span | None = None) -> Windows:
    """Return a window for every set of records that are at most ``size`` apart.

    Both ends of a window are included. A record at time t has the window from ``t - size``
    to t. It also has the window of the same size that begins 1 us after t, if there are
    records in it. *Stream time* is the highest event time seen so far.

    Parameters
    ----------
    size : str or timedelta
        The length of a window, above zero.
    grace : str or timedelta, default "0 s"
        The time after a window's end, in stream time, for which its records are still
        accepted.
    retention : str or timedelta, optional
        The largest time, inclusive, from a window's start to stream time at which the window
        is still joined. It is ``size + grace`` by default, and at least that.

    Returns
    -------
    Windows
        An argument of ``window`` of a grouped stream.

    Raises
    ------
    PlanError
        If a span cannot be read or is negative. Also if ``size`` is zero, or if
        ``retention`` is shorter than ``size + grace``.

    See Also
    --------
    hopping : Windows that begin at fixed times; a record is in fewer of them.
    session : Windows between pauses.
    GroupedStream.window : Group a stream by windows of time, too.

    Notes
    -----
    Since the end is included, a window is closed once stream time is past it by more than
    ``grace``. Later records are left out of it and counted (metric ``<stream>.late``). A
    window may begin before 1970. Source: Kafka Streams join design, "Windowed Aggregate";
    Kafka Streams' ``SlidingWindows``; spec/windowed.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"user": pa.string(), "page": pa.string()}
    >>> views = testing.stream("views", key="user", schema=schema)
    >>> counts = views.group_by("page").window(dt.windows.sliding("1 hour")).agg(views=dt.count())
    >>> driver = testing.Driver(counts.to_table())
    >>> minute = 60_000_000
    >>> rows = [{"user": "ann", "page": "home"}, {"user": "bob", "page": "home"}]
    >>> for change in driver.pipe(views, rows, timestamp=[60 * minute, 90 * minute]):
    ...     start, end = change.key["window_start"], change.key["window_end"]
    ...     print(f"{start:%H:%M:%S.%f} to {end:%H:%M:%S.%f}", change.values)
    00:00:00.000000 to 01:00:00.000000 {'views': 1}
    00:30:00.000000 to 01:30:00.000000 {'views': 2}
    01:00:00.000001 to 02:00:00.000001 {'views': 1}
    """
    return _build_windows("sliding", size, "0 s", grace, retention)


@validated
def session(gap: Span, *, grace: Span = "0 s", retention: Span | None = None) -> Windows:
    """Return windows from a first record to a last one, with neighbours at most ``gap`` apart.

    A session has its first and its last record's time as its start and end. A record
    within ``gap`` of sessions replaces them by one: the old ones are deleted, and the new
    one is added. So a session that only grows is deleted, too. One whose start and end stay
    is updated instead. *Stream time* is the highest event time seen so far.

    Parameters
    ----------
    gap : str or timedelta
        The longest time between two neighbours in a session, above zero.
    grace : str or timedelta, default "0 s"
        The time after a session's end and the gap, in stream time, for which records are
        still accepted.
    retention : str or timedelta, optional
        The largest time, inclusive, from a session's end to stream time at which the session
        is still joined. It is ``gap + grace`` by default, and at least that.

    Returns
    -------
    Windows
        An argument of ``window`` of a grouped stream.

    Raises
    ------
    PlanError
        If a span cannot be read or is negative. Also if ``gap`` is zero, or if
        ``retention`` is shorter than ``gap + grace``.

    See Also
    --------
    tumbling : Windows side by side.
    GroupedStream.window : Group a stream by windows of time, too.

    Notes
    -----
    A session is closed once stream time has passed its end by more than ``gap + grace``. A
    record that comes for a closed session is left out, and counted as ``<stream>.late``.
    Source: Kafka Streams join design, "Windowed Aggregate"; Kafka Streams'
    ``SessionWindows``; spec/windowed.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> schema = {"user": pa.string(), "page": pa.string()}
    >>> views = testing.stream("views", key="user", schema=schema)
    >>> windows = dt.windows.session("20 min", grace="1 hour")
    >>> counts = views.group_by("page").window(windows).agg(views=dt.count())
    >>> driver = testing.Driver(counts.to_table())
    >>> minute = 60_000_000
    >>> for at in 0, 40, 20:  # the last record merges the sessions of the other two
    ...     changes = driver.pipe(views, {"user": "ann", "page": "home"}, timestamp=at * minute)
    >>> for change in changes:
    ...     start, end = change.key["window_start"], change.key["window_end"]
    ...     print(f"{change.change} {start:%H:%M} to {end:%H:%M}", change.values)
    delete 00:00 to 00:00 None
    delete 00:40 to 00:40 None
    upsert 00:00 to 00:40 {'views': 3}
    """
    return _build_windows("session", gap, "0 s", grace, retention)


def _build_windows(
    kind: Kind, size: Span, advance: Span, grace: Span, retention: Span | None
) -> Windows:
    """Return windows of a kind, after all checks. ``size``: the length of a window, or the gap of
    sessions. ``advance``: the time from one window's start to the next, ``0 s`` if records
    determine the windows. ``retention``: None for the shortest, size and grace period together.

    Raises ``PlanError`` for what is no span or negative, for a size of zero, and for spans that do
    not fit together.
    """
    size_us = microseconds(kind, "gap=" if kind == "session" else "size=", size)
    advance_us = microseconds(kind, "advance=", advance)
    grace_us = microseconds(kind, "grace=", grace)
    if size_us == 0:
        raise PlanError(kind, "the windows have no length", "Give a span above zero")
    if kind == "hopping" and not 0 < advance_us <= size_us:
        raise PlanError(
            kind,
            f"advance={advance!r} would leave times without a window",
            f"Use more than zero and at most the size, {span_as_text(size_us)}",
        )
    shortest_us = size_us + grace_us
    retention_us = shortest_us
    if retention is not None:
        retention_us = microseconds(kind, "retention=", retention)
    if retention_us < shortest_us:
        raise PlanError(
            kind,
            f"retention={retention!r} forgets windows that still change",
            f"Use at least {span_as_text(shortest_us)}, the size and the grace period",
        )
    return Windows(kind, size_us, advance_us, grace_us, retention_us)
