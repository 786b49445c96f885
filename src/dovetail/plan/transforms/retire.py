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
    begun = _latest_snapshot_start(F.col(moments_name))
    shown = views.where(joined, F.coalesce(moment >= begun, F.lit(True)), "fail")
    return views.drop_columns(shown, (moments_name,))


def _free_name(name: str, node: Node) -> str:
    """Return ``name`` with as many underscores as ``node`` needs to have no such column."""
    taken = {column.lower() for column in node.row.names}
    while name in taken:
        name += "_"
    return name


def _latest_snapshot_start(moments: Column) -> Column:
    """Return an expression of the moment at which the latest complete snapshot began, a long, null
    if there is none.

    ``moments``: an array of the moments of a snapshot's first and last rows in any order, each
    doubled, plus 1 for a last row. A last row without a first row before it is a snapshot of its
    own.
    """
    none = F.lit(None).cast("long")
    start = F.struct(none.alias("open"), none.alias("whole"))

    def state_after(state: Column, coded: Column) -> Column:
        """Return the state after the mark ``coded`` (a doubled moment, odd for a last row), a
        struct of two fields. ``open`` is the moment at which the snapshot that is being read began,
        ``whole`` that of the latest complete one. Either may be null.
        """
        moment = F.shiftright(coded, 1)
        last = coded % 2 == 1
        return F.struct(
            F.when(~last, moment).alias("open"),
            F.when(last, F.coalesce(state["open"], moment))
            .otherwise(state["whole"])
            .alias("whole"),
        )

    return F.aggregate(F.array_sort(moments), start, state_after, lambda state: state["whole"])
