"""What tables, streams and windowed tables have in common once their plan is made; ``Topology``:
it can be run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from dovetail.arguments import Path, Rule, Text, validated
from dovetail.physical.explain import explain
from dovetail.physical.fragment import Buckets, Emit
from dovetail.plan.nodes import Node, changelog_schema
from dovetail.plan.spans import Span
from dovetail.spark import query
from dovetail.spark.dead_letters import dead_letters
from dovetail.spark.query import ASink

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class Planned:
    """A table, a stream or a windowed table with all that it is made from. Never changed in
    place.
    """

    @validated
    def __init__(self, plan: Node) -> None:
        self.plan = plan

    def explain(self) -> None:
        """Print the topology: its joins, its stages, their shuffles and their state."""
        print(explain(self.plan))

    def __repr__(self) -> str:
        names = ", ".join(self.plan.key.names)
        return f"{type(self).__name__}[{self.plan.name}; key {names}]"


class Windowed(Planned):
    """What a windowed table is to those that it is joined with."""


AWindowedTable: TypeAlias = Annotated[Windowed, Rule("a WindowedTable")]


class Topology(Planned):
    """What can be run: a table or a stream."""

    @property
    def schema(self) -> StructType:
        """The columns of this node's changelog."""
        return changelog_schema(self.plan)

    @validated
    def changelog(self, *, emit: Emit = "change", buckets: Buckets | None = None) -> DataFrame:
        """The changes as a frame: over streaming frames one that any Spark sink takes, in append
        mode; over static ones the same topology as one batch, in which the end of the input ends
        all waiting: windows close, grace periods are over.

        Columns: the key, the values, ``_change`` (``upsert`` or ``delete``), ``_timestamp``, and
        ``_position``, which orders the changes of a key. A stream's records are all upserts, but
        for the rows that a join with ``unmatched="retract"`` withdraws: a ``delete`` with the row's
        own values.

        ``emit="change"``: every record's own result; ``emit="batch"``, for tables: per key and
        micro-batch the last one, and none where nothing changed; of static frames these are the
        rows of the final table. ``buckets``: into how many parts the key space is cut, 8 by default
        and of static frames the session's number of shuffle partitions.

        For a streaming frame the session must have the settings of ``dovetail.settings``;
        ``write_stream`` sees to them.
        """
        return query.changelog(self.plan, emit=emit, buckets=buckets)

    @validated
    def write_stream(
        self,
        sink: ASink,
        *,
        checkpoint: Path,
        processingTime: Span | None = None,  # noqa: N803 -- as in DataStreamWriter.trigger
        availableNow: bool = False,  # noqa: N803
        emit: Emit = "change",
        buckets: Buckets | None = None,
        name: Text | None = None,
    ) -> StreamingQuery:
        """Start a query that keeps ``sink`` up to date; an ordinary ``StreamingQuery``.

        ``checkpoint``: a directory for the query's state; started again with it, the query goes on
        where it stopped, having lost and doubled nothing. ``processingTime``,
        ``availableNow``: as in ``DataStreamWriter.trigger``, a micro-batch every so long (``"10
        seconds"``), or all there is and then stop; with neither of them as fast as data comes.
        ``buckets``: into how many parts the key space is cut (8 by default), fixed by the
        checkpoint.

        Raises ``CheckpointError`` where the checkpoint is another topology's, ``PlanError`` where
        two inputs have one name and the same columns.
        """
        return query.start(
            self.plan,
            sink,
            checkpoint=checkpoint,
            trigger=query.trigger_of(processingTime, availableNow),
            emit=emit,
            buckets=buckets,
            name=name,
        )

    def dead_letters(self) -> DataFrame:
        """The rows that the topology leaves out because a foreign key's expression fails on them,
        as a frame for a query of its own, streaming where the inputs are.

        Columns: ``_operator``, the join; ``_problem``; ``_timestamp``; ``row``, the row as JSON.
        Raises ``PlanError`` where no join has an expression in ``on=``.
        """
        return dead_letters(self.plan)


ATopology: TypeAlias = Annotated[
    Topology, Rule("a Table or a Stream (a WindowedTable becomes one by to_table() or to_stream())")
]
