"""The join of a stream with a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from dovetail.errors import PlanError
from dovetail.plan.joins.join_call import (
    JoinCall,
    refuse_corrected,
    refuse_how,
    side_as_input,
    table_side,
)
from dovetail.plan.joins.join_keys import pairs_of
from dovetail.plan.nodes import Entry, JoinNode, Node, Source, Text
from dovetail.plan.types.spans import Span, microseconds, span_as_text

Load: TypeAlias = Literal["first"]
"""``"first"`` lets the stream's records wait until the table has been read to the end that it had
when the query began.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamTableJoin(JoinNode):
    """A stream, the left side, joined with a table. The result keeps the stream's key."""

    kind: ClassVar[str] = "a stream with a table"
    stream = True

    on: tuple[str, ...]
    """The left columns that are looked up in the table's key."""
    grace_us: int | None = None
    """The stream time in microseconds for which a record waits for the table, or
    None for no wait.
    """
    load: Load | None = None
    """The way in which a query begins. It is no part of what the stage stores."""

    @property
    def manner(self) -> str:
        """A few words for ``explain`` on how rows of both sides match: the stream's columns, then
        ``grace=`` and ``load=`` if they are given.
        """
        grace = "" if self.grace_us is None else f", grace {span_as_text(self.grace_us)}"
        load = "" if self.load is None else f", load {self.load}"
        return f"of a stream with a table on {', '.join(self.on)}{grace}{load}"

    @property
    def timed(self) -> bool:
        """True if records wait for a grace period, or if a side depends on stream time."""
        return self.grace_us is not None or super().timed

    def read_by(self, entry: Entry) -> tuple[str, ...]:
        """Return the names of the columns by which rows of the input ``entry`` are partitioned, in
        order: for a stream those that are looked up in the table's key (``on``), for a table its
        key columns.
        """
        return self.on if entry.stream else super().read_by(entry)

    def options(self, text: Text) -> Mapping[str, Any]:
        """Return, as JSON data, the options on which stored state depends: ``on``, the stream's
        columns that equal the table's key, and ``grace_us``, the grace period, None for none.
        ``text`` is not used, as there are no expressions.
        """
        return {"on": list(self.on), "grace_us": self.grace_us}


def stream_table_join(call: JoinCall, grace: Span | None, load: Load | None) -> StreamTableJoin:
    """Return the left or inner join of the stream and the table of ``call``. ``grace``: a record
    waits until the largest event time of the stream reaches its own plus this; None for no waiting.
    ``load``: ``"first"`` to read the table before the stream; None to read both at once.

    Raises ``PlanError`` for outer joins, if ``on=`` does not pair the table's key, and for columns
    that cannot be selected. It refuses a table that is a join of histories (``late="history"``).
    With ``grace``, it refuses one without a history, or with a shorter one. It refuses a stream
    that withdraws records (``unmatched="retract"``). With ``load="first"``, a source of the stream
    must not feed the table, which would make it wait for itself.
    """
    name, left, right = call.name, call.left, call.right
    refuse_how(name, call.how, ("inner", "left"), "a stream with a table")
    refuse_corrected(name, right)
    columns = tuple(str(column) for column, _ in pairs_of(name, left, right, call.on))
    if grace is not None or not _has_same_lookup(left, columns):
        left = side_as_input(name, left)
    right = table_side(right)
    grace_us = None
    if grace is not None:
        grace_us = microseconds(name, "grace=", grace)
        _refuse_short_history(name, right, grace, grace_us)
    chosen = call.join_fields(left, right, paired=columns)
    join = StreamTableJoin(
        left=left, right=right, on=columns, grace_us=grace_us, load=load, **chosen
    )
    sources_that_wait(join)
    return join


def sources_that_wait(*nodes: Node) -> dict[Source, None]:
    """Return the sources of all streams whose records wait for a table to be loaded
    (``load="first"``), through all stages below ``nodes``. They are the keys of a dict, in the
    order of first use; empty without such joins.

    Raises ``PlanError`` if such a source also feeds a table that is loaded first.
    """
    loading = [
        node
        for node in dict.fromkeys(part for node in nodes for part in node.walk())
        if isinstance(node, StreamTableJoin) and node.load is not None
    ]
    waiting = {source: None for join in loading for source in join.left.origins}
    for join in loading:
        for source in join.right.origins:
            if source in waiting:
                raise PlanError(
                    join.name,
                    f"load='first' lets {source.name} wait for a table that is made of it",
                    "Leave load= out, or compute the table in a query of its own",
                )
    return waiting


def _has_same_lookup(left: Node, columns: tuple[str, ...]) -> bool:
    """Return True if the left side is itself a join of a stream with a table without ``grace=``. It
    must be by the same ``columns`` of the stream in the same order. Its result must have these
    columns under their names. Both joins can share one stage then.
    """
    if not isinstance(left, StreamTableJoin) or left.grace_us is not None:
        return False
    refs = {s.name: s.ref for s in left.select}
    return columns == left.on and all(
        column in left.key.names or refs.get(column) == ("left", column) for column in columns
    )


def _refuse_short_history(name: str, right: Node, grace: Span, grace_us: int) -> None:
    """Raise ``PlanError`` if an input of the table ``right`` has no history, or one shorter than
    the grace period; equal lengths pass. ``name``: the join in errors. ``grace``: the period as the
    user wrote it; ``grace_us``: in microseconds.
    """
    for source in right.entries:
        if source.versioned_us is None:
            raise PlanError(
                name,
                f"grace= lets records wait, and {source.name} forgets what it was when they came",
                "Read it as a versioned table, for instance versioned='7 days'",
            )
        if source.versioned_us < grace_us:
            raise PlanError(
                name,
                f"grace={grace!r} is longer than the history of {source.name}",
                "Let the table's versioned= be at least as long",
            )
