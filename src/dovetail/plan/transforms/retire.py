"""``retire``: rows that a feed's latest complete snapshot lacks leave the table.

The node is composed of other nodes. Rows that mark the begin and the end of a snapshot are
aggregated to the moments at which they were read. Each row refers, by a foreign key, to one of a
few copies of that aggregate. It is shown if it was read no earlier than the latest complete
snapshot began.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType

from dovetail.base.columns import quoted
from dovetail.errors import PlanError
from dovetail.plan import views
from dovetail.plan.joins.foreign_key_join import foreign_key_join
from dovetail.plan.joins.join_call import JoinCall
from dovetail.plan.nodes import Node
from dovetail.plan.select import session_for
from dovetail.plan.transforms.aggregation import aggregation
from dovetail.plan.types.aggregates import collect_set
from dovetail.plan.types.checks import known_field

_FIRST_MARKS: Final = ("first", "first_in_data_collection")
_LAST_MARKS: Final = ("last", "last_in_data_collection")
_MARK_BETWEEN: Final = "true"
"""The mark of Debezium's rows between the first and the last one of a snapshot."""
_BEFORE_ALL: Final = -(1 << 63)
"""A moment before all others."""
_COPIES: Final = 16
"""The count of copies of the aggregate. All rows that refer to one copy are in one bucket."""

_COPY, _MOMENTS = "snapshot_copy", "snapshot_moments"


def retire_rows(node: Node, snapshot: str, at: str) -> Node:
    """Return a view of the rows of the table ``node`` that were read when its latest complete
    snapshot began, or later. When a snapshot completes, rows read before it began are deleted by
    tombstones. Without a complete snapshot all rows are shown, as is a row whose moment is null.

    ``snapshot``: a text column that marks a snapshot's first row by ``first`` or
    ``first_in_data_collection``, and its last row by ``last`` or ``last_in_data_collection``.
    ``at``: a long column with the moment at which a row was read, in any unit.

    Raises ``PlanError`` for unknown columns, for columns of other types, for a table joined with
    ``late="history"``, and without a Spark session.
    """
    operator = f"retire of {node.name}"
    session_for(operator, "it")
    for argument, name, wanted in (("snapshot", snapshot, StringType()), ("at", at, LongType())):
        data_type = known_field(operator, f"{argument}=", name, node.values).dataType
        if data_type != wanted:
            raise PlanError(
                operator,
                f"{argument}= {name} is of type {data_type.simpleString()}, not "
                f"{wanted.simpleString()}",
                "Cast it with with_columns",
            )
    copy_name, moments_name = (_free_name(name, node) for name in (_COPY, _MOMENTS))
    mark, moment = F.col(quoted(snapshot)), F.col(quoted(at))
    marks = views.where(
        views.changes_as_stream(node), mark.isin(*_FIRST_MARKS, *_LAST_MARKS), "fail"
    )
    copies = F.sequence(F.lit(0), F.lit(_COPIES - 1))
    # Twice the moment, plus 1 for a last row, so that it sorts after a first row.
    coded = moment * 2 + F.when(mark.isin(*_LAST_MARKS), F.lit(1)).otherwise(F.lit(0))
    marks = views.select_columns(marks, (), {copy_name: copies, moments_name: coded}, "fail")
    copied = views.explode_records(marks, copy_name)
    snapshots = aggregation(copied, [copy_name], {moments_name: collect_set(moments_name)}, None)
    keys = (F.col(quoted(name)) for name in node.key.names)
    copy = F.pmod(F.xxhash64(*keys), F.lit(_COPIES)).cast("int")
    call = JoinCall(node, snapshots, [copy], "left", None, label=operator)
    joined = foreign_key_join(call, (copy,))
    is_read = _is_read_since_snapshot(F.col(moments_name), moment, mark)
    shown = views.where(joined, F.coalesce(is_read, F.lit(True)), "fail")
    return views.drop_columns(shown, (moments_name,))


def _free_name(name: str, node: Node) -> str:
    """Return ``name``, a text in lower case, with the fewest underscores behind it by which
    ``node`` has no column of that name. The case of columns is ignored.
    """
    taken = {column.lower() for column in node.row.names}
    while name in taken:
        name += "_"
    return name


# The first row of a snapshot may be missing: compaction has removed it since a later change of its
# row, it is a dead letter, or a condition leaves it out. Then rows with the mark "true" since the
# last row before are of the snapshot, too. The state after each mark of three snapshots:
#
# | mark     | open | whole | since       | ended |
# |----------|------|-------|-------------|-------|
# | first 10 | 10   |       |             |       |
# | last 12  |      | 10    | 10          | 12    |
# | last 33  |      | 33    | 12          | 33    |
# | first 40 | 40   | 33    | 12          | 33    |
def _is_read_since_snapshot(moments: Column, moment: Column, mark: Column) -> Column:
    """Return a boolean expression: a row was read since the latest complete snapshot began. It is
    null if there is no such snapshot, and for a null ``moment``.

    ``moments``: an array of the moments of a snapshot's first and last rows in any order, each
    doubled, plus 1 for a last row. ``moment``, ``mark``: those of the row. A last row may have no
    first row before it. Its snapshot then also has the rows with ``_MARK_BETWEEN`` that were read
    after the former last row.
    """
    none = F.lit(None).cast("long")
    start = F.struct(*(none.alias(name) for name in ("open", "whole", "since", "ended")))

    def state_after(state: Column, coded: Column) -> Column:
        """Return the state after the mark ``coded``, a doubled moment that is odd for a last row.

        The state is a struct of four moments, each of which may be null. ``open``: the snapshot
        that is being read began. ``whole``: the latest complete one began. ``since``: rows between
        first and last are of that one if they were read later. ``ended``: its last row was read.
        """
        at = F.shiftright(coded, 1)
        last = coded % 2 == 1
        before = F.coalesce(state["open"], state["ended"], F.lit(_BEFORE_ALL).cast("long"))
        return F.struct(
            F.when(~last, at).alias("open"),
            F.when(last, F.coalesce(state["open"], at)).otherwise(state["whole"]).alias("whole"),
            F.when(last, before).otherwise(state["since"]).alias("since"),
            F.when(last, at).otherwise(state["ended"]).alias("ended"),
        )

    def is_read(state: Column) -> Column:
        """Return the boolean result from ``state``, that after the last mark: the row was read
        since the latest complete snapshot began. It is null without such a snapshot.
        """
        between = mark.eqNullSafe(_MARK_BETWEEN) & (moment > state["since"])
        return (moment >= state["whole"]) | between

    return F.aggregate(F.array_sort(moments), start, state_after, is_read)
