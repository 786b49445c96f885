"""The join of two streams, or of one with itself, within a window of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, TypeAlias

from dovetail.base.validation import Rule, validated, validated_fields
from dovetail.errors import PlanError
from dovetail.laws.joins.stream_join import Unmatched
from dovetail.plan.joins.join_call import JoinCall, refuse_how, side_as_input
from dovetail.plan.joins.join_keys import refuse_other_keys
from dovetail.plan.nodes import JoinNode, Text
from dovetail.plan.types.spans import Span, microseconds, span_as_text


@validated_fields
@dataclass(frozen=True)
class Within:
    """The window of a join of two streams.

    ``within`` makes it, and users do not construct it.

    See Also
    --------
    within : Make a window from spans.
    Stream.join : Join two streams within a window.

    Examples
    --------
    >>> import dovetail as dt
    >>> dt.within(before="-1 min", after="5 min")
    Within(before_us=-60000000, after_us=300000000, grace_us=0)
    """

    before_us: int
    """The time in microseconds that a right record may be earlier than its left record."""
    after_us: int
    """The time in microseconds that a right record may be later than its left record."""
    grace_us: int
    """The grace period: microseconds of stream time that a record may arrive after its window."""


AWithin: TypeAlias = Annotated[Within, Rule('a window such as dt.within(before="5 min")')]


@validated
def within(*, before: Span | None = None, after: Span | None = None, grace: Span = "0 s") -> Within:
    """Return the window of time in which the records of two streams join.

    A right record R joins a left record L if ``L.ts - before <= R.ts <= L.ts + after``.
    Both ends are included. A span is a ``datetime.timedelta`` or a text such as ``"5
    min"``.

    Parameters
    ----------
    before : str or timedelta, optional
        The time that a right record may be earlier than its left record. It is ``"0 s"`` if
        only ``after`` is given.
    after : str or timedelta, optional
        The time that a right record may be later than its left record. It is ``"0 s"`` if
        only ``before`` is given.
    grace : str or timedelta, default "0 s"
        The stream time for which a record still joins late ones after its window. It does
        until it is more than ``before + after + grace`` behind stream time, a negative bound
        counting as zero. Stream time is the highest event time of both streams so far.

    Returns
    -------
    Within
        An argument of ``Stream.join``.

    Raises
    ------
    PlanError
        If neither ``before`` nor ``after`` is given, or if a span cannot be read. Also if
        the window is empty, ``before + after < 0``, or if ``grace`` is negative.

    See Also
    --------
    Stream.join : Join two streams within a window.
    tumbling : Windows of an aggregate, at fixed times.

    Notes
    -----
    ``before="0 s"`` alone joins equal times. One of the two bounds may be negative if the
    window is not empty. So ``within(before="-1 min", after="5 min")`` joins right records
    that are one to five minutes later. Source: Kafka Streams join design, "windowed join";
    KIP-77; spec/stream_stream.

    Examples
    --------
    >>> import pyarrow as pa
    >>> import dovetail as dt
    >>> from dovetail import testing
    >>> orders = testing.stream("orders", key="id", schema={"id": pa.int64(), "amount": pa.int64()})
    >>> schema = {"id": pa.int64(), "paid": pa.int64()}
    >>> payments = testing.stream("payments", key="id", schema=schema)
    >>> driver = testing.Driver(orders.join(payments, within=dt.within(after="5 us")))
    >>> driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=10)
    []
    >>> driver.pipe(payments, [{"id": 1, "paid": 30}, {"id": 1, "paid": 10}], timestamp=[15, 16])
    [<id=1: amount=40, paid=30 @15>]
    """
    if before is None and after is None:
        raise PlanError(
            "within",
            "neither before= nor after= is given",
            "Give at least one, such as after='5 min'; before='0 s', after='0 s' joins equal times",
        )
    before = "0 s" if before is None else before
    after = "0 s" if after is None else after
    before_us = microseconds("within", "before=", before, negative=True)
    after_us = microseconds("within", "after=", after, negative=True)
    grace_us = microseconds("within", "grace=", grace)
    if before_us + after_us < 0:
        raise PlanError(
            "within",
            f"the window from before={before!r} to after={after!r} is empty",
            "Let before + after be zero or more",
        )
    return Within(before_us, after_us, grace_us)


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamJoin(JoinNode):
    """A join of two streams, or of one with itself, where L.ts - before <= R.ts <= L.ts + after."""

    kind: ClassVar[str] = "streams"
    stream = True
    timed = True

    within: Within
    """The window in which records match."""
    unmatched: Unmatched
    """The time at which a record without a match is emitted, in left and outer joins."""

    @property
    def manner(self) -> str:
        """A few words for ``explain`` on how rows of both sides match: the window and, unless the
        join is inner, when unmatched rows come out.
        """
        before, after, grace = map(span_as_text, asdict(self.within).values())
        alone = "" if self.how == "inner" else f", unmatched {self.unmatched}"
        return f"of streams, before {before}, after {after}, grace {grace}{alone}"

    @property
    def withdraws(self) -> bool:
        """True if a record emitted without a match is withdrawn by a later record when a match
        arrives: in left and outer joins with ``unmatched="retract"``.
        """
        return self.how != "inner" and self.unmatched == "retract"

    @property
    def closes(self) -> bool:
        """True if records without a match are emitted as their windows close: in left and outer
        joins with ``unmatched="on_close"``.
        """
        return self.how != "inner" and self.unmatched == "on_close"

    def options(self, text: Text) -> Mapping[str, Any]:
        """Return, as JSON data, the options on which stored state depends. They are the window, as
        ``before_us``, ``after_us`` and ``grace_us``, and ``unmatched``, the treatment of records
        without a match. ``text`` is not used, as there are no expressions.
        """
        return {**asdict(self.within), "unmatched": self.unmatched}


def stream_join(call: JoinCall, within: Within | None, unmatched: Unmatched) -> StreamJoin:
    """Return the join of the two streams of ``call``, or of one with itself, within a window of
    time.

    ``unmatched``: the treatment of a record without a match in left and outer joins; an inner join
    emits none. ``"on_close"`` emits it once stream time is later than the end of its window plus
    the grace period. ``"eager"`` emits it as it arrives, and later matches in addition.
    ``"retract"`` emits it as it arrives, and withdraws it before its first match.

    Raises ``PlanError`` if ``within`` is None, for keys that ``on=`` does not pair as a whole, and
    for joins other than inner, left and outer. Also for a side that withdraws records (a join with
    ``unmatched="retract"``), and for columns that cannot be selected.
    """
    name = call.name
    refuse_how(name, call.how, ("inner", "left", "outer"), "streams")
    if within is None:
        raise PlanError(
            name,
            "a join of two streams needs a window",
            'Give one, for instance within=dt.within(before="5 min", after="1 min")',
        )
    refuse_other_keys(name, call.left, call.right, call.on)
    left, right = side_as_input(name, call.left), side_as_input(name, call.right)
    chosen = call.join_fields(left, right)
    return StreamJoin(left=left, right=right, within=within, unmatched=unmatched, **chosen)
