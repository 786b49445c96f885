"""Dead letters: the rows that a topology leaves out. They are records that cannot be read, and rows
on which an expression fails.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dovetail.base.columns import (
    EVENT_TIME,
    FAILED,
    LETTER,
    OPERATOR,
    PROBLEM,
    TIMESTAMP,
    UNREAD,
    foreign_key_name,
    quoted,
)
from dovetail.errors import PlanError
from dovetail.plan.dead_letters import nodes_with_dead_letters, row_as_json
from dovetail.plan.joins.foreign_key_join import ForeignKeyJoin
from dovetail.plan.joins.window_join import WindowJoin
from dovetail.plan.nodes import Derived, Entry, Node
from dovetail.plan.views import View, views_of
from dovetail.spark.execution.wire import rows_of_input, with_foreign_key
from dovetail.spark.query import start


def dead_letters(node: Node) -> DataFrame:
    """Return the dead letters of ``node`` and of all below it. They are the unreadable records that
    a source keeps, and the rows on which a view, a foreign key or ``window_of=`` fails.

    Columns: the texts ``_operator`` and ``_problem``, the timestamp ``_timestamp``, which may be
    null, and the text ``row``: the whole row as JSON, or the unreadable record. Rows are in no
    order. The frame streams if the sources do; nothing is started.

    Raises ``PlanError`` if nothing in the topology keeps dead letters, and for static inputs beside
    streaming ones. Stages below a view raise the errors of ``start.changelog``.
    """
    start.refuse_static("dead_letters", node)
    sources = [source.with_unread for source in node.origins]
    unread = [_letters_in_column(frame) for frame in sources if frame is not None]
    parts = nodes_with_dead_letters(node)
    failed = [
        _letters_of_view(part) if isinstance(part, View) else _letters_of_join(part)
        for part in parts
    ]
    letters = [*unread, *failed]
    if not letters:
        raise PlanError(
            node.name,
            "no source or view of it keeps dead letters, and no join has an expression in on= or "
            "window_of=, so it leaves no row out",
            "Read a source with malformed='dead_letter', give where() or select() "
            "errors='dead_letter', or leave dead_letters() out",
        )
    return reduce(DataFrame.unionByName, letters)


def _letters_in_column(frame: DataFrame, column: str = UNREAD) -> DataFrame:
    """Return the dead letters that ``frame`` has in its struct column ``column``, one row each, in
    no order. Rows with null in that column are left out. The columns are the texts ``_operator``
    and ``_problem``, the timestamp ``_timestamp``, which may be null, and the text ``row``.
    """
    letter = F.col(column)
    return frame.where(letter.isNotNull()).select(
        letter[OPERATOR].alias(OPERATOR),
        letter[PROBLEM].alias(PROBLEM),
        F.timestamp_micros(letter[EVENT_TIME]).alias(TIMESTAMP),
        letter[LETTER].alias(LETTER),
    )


def _letters_of_view(view: View) -> DataFrame:
    """Return the dead letters of a view, one row each, in the columns of ``dead_letters``. They are
    rows on which its expressions fail, or which do not meet its expectation. Those of views below
    it are not among them.
    """
    read = rows_of_input(view, _upstream_changelog(view), reported=len(views_of(view)) - 1)
    return _letters_in_column(read.frame, FAILED)


def _upstream_changelog(entry: Entry) -> DataFrame | None:
    """Return the changelog that the views of ``entry`` read, if a stage makes it, as a frame of
    every change; None if they read a source.

    It has key, values, ``_change``, ``_timestamp`` and ``_position``, and streams unless all inputs
    are static. Errors of ``start.changelog`` pass.
    """
    derived = isinstance(entry.base, Derived)
    return start.changelog(entry.base, emit="change", buckets=None) if derived else None


def _letters_of_join(join: ForeignKeyJoin | WindowJoin) -> DataFrame:
    """Return a dead letter for each left row on which a join's foreign key, or the start of its
    window, fails: its operator, problem, time and row as JSON. The frame has no rows if it never
    fails.
    """
    left = join.left
    argument, items = "on=", join.on if isinstance(join, ForeignKeyJoin) else ()
    if isinstance(join, WindowJoin) and join.window_of is not None:
        argument, items = "window_of=", (join.window_of,)
    read = rows_of_input(left, _upstream_changelog(left))
    frame, _, failed = with_foreign_key(read.frame, items, read.deleted, foreign_key_name(0))
    names = [*left.key.names, *left.values.names]
    return frame.filter(failed).select(
        F.lit(join.name).alias(OPERATOR),
        F.lit(f"{argument} fails on a row of {left.name}").alias(PROBLEM),
        read.timestamp.alias(TIMESTAMP),
        row_as_json([F.col(quoted(name)) for name in names]).alias(LETTER),
    )
