"""``Table``: a table that changes, and what can be made of it.

The DSL checks arguments and builds plan nodes; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from dovetail.errors import PlanError
from dovetail.io.topics import Malformed, topic_source
from dovetail.plan.explain import explain
from dovetail.plan.nodes import Node, TableJoin, changelog_schema, refuse_differing_keys
from dovetail.plan.reading import source_of
from dovetail.plan.select import Selection, resolve, select_all
from dovetail.plan.spec import Emit
from dovetail.runtime import batch, query

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from dovetail.io.kafka import ReadFormat
    from dovetail.kernels.table_join import How
    from dovetail.runtime.query import Sink


class Table:
    """A table that changes: at any time one row per key, given by the changelog so far.

    Made by ``Table.from_changelog`` and by joins; never changed in place. The seeds' KTable.
    """

    def __init__(self, plan: Node) -> None:
        self.plan = plan

    @classmethod
    def from_changelog(
        cls,
        frame: DataFrame,
        *,
        key: str | Sequence[str],
        timestamp: str | Column,
        deleted: str | Column | None = None,
        sequence: str | Column | None = None,
        log_partition: str | Column | None = None,
        name: str | None = None,
    ) -> Table:
        """A table from its changes: each row of ``frame`` replaces or deletes the row of its key.

        ``key``: the primary key's columns; a row with a null among them is dropped and counted
        (metric ``<name>.dropped``). ``timestamp``: the event time, a column or an expression of
        type timestamp; a null fails the query. ``deleted``: a boolean, true for a tombstone. A
        column named in ``timestamp``, ``deleted``, ``sequence`` or ``log_partition`` is used up;
        every other column is a value of the table.

        ``sequence``: a whole number, the row's position in a log. With ``log_partition`` (Kafka:
        offset and partition) it orders the rows within each partition; alone, it is a position in
        one log that all tables of the topology share, and orders the rows of all of them. Without
        it, rows come in the order in which Spark reads each of its partitions.

        Raises ``PlanError`` for unknown or duplicate columns and for types that cannot serve.
        Source: Kafka Streams join design, "KTable".
        """
        return cls(
            source_of(
                frame,
                key=key,
                timestamp=timestamp,
                deleted=deleted,
                sequence=sequence,
                log_partition=log_partition,
                name=name,
            )
        )

    @classmethod
    def from_topic(
        cls,
        spark: SparkSession,
        topic: str,
        *,
        servers: str,
        key: ReadFormat = "string",
        value: ReadFormat = "string",
        name: str | None = None,
        starting: str = "earliest",
        max_per_trigger: int | None = None,
        malformed: Malformed = "fail",
        streaming: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> Table:
        """A table from a Kafka topic: a record replaces the row of its key, a null value deletes
        it.

        ``servers``: the brokers. ``key``, ``value``: ``"string"`` or ``"bytes"`` (one column, named
        ``key`` or ``value``), or the schema of a JSON object, whose fields become columns.
        ``starting``: ``"earliest"``, ``"latest"`` or Kafka's JSON of offsets. ``max_per_trigger``:
        at most so many records a micro-batch. ``malformed``: what a record that cannot be read
        does.
        ``streaming=False`` reads what the topic holds now, for ``to_batch``. ``options``: the Kafka
        source's own. Records keep their order within a partition.
        """
        return cls(
            topic_source(
                spark,
                topic,
                servers=servers,
                key=key,
                value=value,
                name=name,
                starting=starting,
                max_per_trigger=max_per_trigger,
                malformed=malformed,
                streaming=streaming,
                options=options,
            )
        )

    def join(self, right: Table, *, how: How = "inner", select: Selection | None = None) -> Table:
        """A primary-key join: at any time, the rows of both tables with equal keys, side by side.

        ``how``: ``"inner"``, ``"left"`` (every left row, with nulls where the right has none) or
        ``"outer"`` (every row of either). Each record of either table gives its own result; a
        result that ceases is deleted by a tombstone. The result's timestamp is the larger of both.

        ``select``: the result's value columns, all of both sides by default. Columns are named
        ``"left.x"``, ``"right.x"`` or just ``"x"``; a mapping gives new names; Spark expressions
        over the joined row (``F.col("left.x") + F.col("right.y")``) run in the JVM.

        Raises ``PlanError`` where the keys' types differ or names are unknown or ambiguous.
        Source: KIP-77 "KTable-KTable"; spec/table_table.
        """
        if not isinstance(right, Table):
            raise PlanError(
                "join", f"the right side is a {type(right).__name__}", "Make it a Table first"
            )
        name = f"{how} join of {self.plan.name} and {right.plan.name}"
        if how not in ("inner", "left", "outer"):
            raise PlanError(
                name,
                f"how={how!r} is not a join of tables by key",
                "Use 'inner', 'left' or 'outer'; for a right join swap the sides: "
                "right.join(left, how='left')",
            )
        refuse_differing_keys(name, self.plan, right.plan)
        if select is None:
            selected = select_all(name, self.plan, right.plan)
            values = StructType([*self.plan.values.fields, *right.plan.values.fields])
        else:
            selected, values = resolve(name, self.plan, right.plan, how, select)
        return Table(TableJoin(self.plan, right.plan, how, selected, values))

    @property
    def schema(self) -> StructType:
        """The columns of this table's changelog."""
        return changelog_schema(self.plan)

    def changelog(self, *, emit: Emit = "change", buckets: int | None = None) -> DataFrame:
        """The table's changes as a streaming frame that any Spark sink takes, in append mode.

        Columns: the key, the values, ``_change`` (``upsert`` or ``delete``), ``_timestamp``, and
        ``_position``, which orders the changes of a key. ``emit="change"``: every record's own
        result;
        ``emit="batch"``: per key and micro-batch the last one, and none where nothing changed.

        The session must have the settings of ``dovetail.settings``; ``write_stream`` sees to them.
        """
        return query.changelog(self.plan, emit=emit, buckets=buckets)

    def write_stream(
        self,
        sink: Sink,
        *,
        checkpoint: str,
        trigger: str | None = None,
        emit: Emit = "change",
        buckets: int | None = None,
        name: str | None = None,
    ) -> StreamingQuery:
        """Start a query that keeps ``sink`` up to date; an ordinary ``StreamingQuery``.

        ``checkpoint``: a directory for the query's state; started again with it, the query goes on
        where it stopped, having lost and doubled nothing. ``trigger``: ``"available now"`` (all
        there is, then stop), an interval such as ``"10 seconds"``, or None (as fast as data comes).
        ``buckets``: into how many parts the key space is cut (8 by default), fixed by the
        checkpoint.

        Raises ``CheckpointError`` where the checkpoint is another topology's.
        """
        return query.start(
            self.plan,
            sink,
            checkpoint=checkpoint,
            trigger=trigger,
            emit=emit,
            buckets=buckets,
            name=name,
        )

    def to_batch(self, *, emit: Emit = "change") -> DataFrame:
        """The changelog of the same topology over static frames, computed as one batch.

        With ``emit="batch"`` these are the rows of the final table.
        """
        return batch.changelog(self.plan, emit=emit)

    def explain(self) -> None:
        """Print the topology: its joins, its stages, their shuffles and their state."""
        print(explain(self.plan))

    def __repr__(self) -> str:
        names = ", ".join(self.plan.key.names)
        return f"Table[{self.plan.name}; key {names}]"
