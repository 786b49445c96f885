"""``Table``: a table that changes, and what can be made of it.

The DSL checks arguments and builds plan nodes; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StructType,
    TimestampType,
)

from dovetail.errors import PlanError
from dovetail.plan.explain import explain
from dovetail.plan.nodes import Node, Source, TableJoin, changelog_schema, refuse_differing_keys
from dovetail.plan.select import Selection, resolve, select_all
from dovetail.plan.spec import Emit
from dovetail.runtime import batch, query

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from dovetail.kernels.table_join import How
    from dovetail.runtime.query import Sink

_WHOLE_NUMBERS = (ByteType, ShortType, IntegerType, LongType)


class Table:
    """A table that changes: at any time one row per key, given by the changelog so far.

    Made by ``Table.from_changelog`` and by joins; never changed in place. The seeds' KTable.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

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
        (metric ``<name>.dropped``). ``timestamp``: the event time, a column or an expression of type
        timestamp; a null fails the query. ``deleted``: a boolean, true for a tombstone. A column
        named in ``timestamp``, ``deleted``, ``sequence`` or ``log_partition`` is used up; every other
        column is a value of the table.

        ``sequence``: a whole number, the row's position in a log. With ``log_partition`` (Kafka:
        offset and partition) it orders the rows within each partition; alone, it is a position in one
        log that all tables of the topology share, and orders the rows of all of them. Without it, rows
        come in the order in which Spark reads each of its partitions.

        Raises ``PlanError`` for unknown or duplicate columns and for types that cannot serve.
        Source: Kafka Streams join design, "KTable".
        """
        keys = [key] if isinstance(key, str) else list(key)
        label = name or f"table[{', '.join(keys)}]"
        columns = _Columns(f"table {label}", frame)
        for column in keys:
            columns.require(column, "key=")
        roles = {
            "timestamp": columns.expression(timestamp, "timestamp=", TimestampType),
            "deleted": columns.expression(deleted, "deleted=", BooleanType),
            "sequence": columns.expression(sequence, "sequence=", *_WHOLE_NUMBERS),
            "log_partition": columns.expression(log_partition, "log_partition=", *_WHOLE_NUMBERS),
        }
        used = {c for c in (timestamp, deleted, sequence, log_partition) if isinstance(c, str)}
        for column in keys:
            if column in used:
                raise PlanError(
                    f"table {label}",
                    f"key column {column!r} also has another role",
                    "Copy it with withColumn and name the copy there",
                )
        schema = frame.schema
        return cls(
            Source(
                name=label,
                key=StructType([schema[k] for k in keys]),
                values=StructType([f for f in schema if f.name not in used and f.name not in keys]),
                frame=frame,
                **roles,
            )
        )

    def join(self, right: Table, *, how: How = "inner", select: Selection | None = None) -> Table:
        """A primary-key join: at any time, the rows of both tables with equal keys, side by side.

        ``how``: ``"inner"``, ``"left"`` (every left row, with nulls where the right has none) or
        ``"outer"`` (every row of either). Each record of either table gives its own result; a result
        that ceases is deleted by a tombstone. The result's timestamp is the larger of both.

        ``select``: the result's value columns, all of both sides by default. Columns are named
        ``"left.x"``, ``"right.x"`` or just ``"x"``; a mapping gives new names; Spark expressions over
        the joined row (``F.col("left.x") + F.col("right.y")``) run in the JVM.

        Raises ``PlanError`` where the keys' types differ or names are unknown or ambiguous.
        Source: KIP-77 "KTable-KTable"; spec/table_table.
        """
        if not isinstance(right, Table):
            raise PlanError(
                "join", f"the right side is a {type(right).__name__}", "Make it a Table first"
            )
        name = f"{how} join of {self._node.name} and {right._node.name}"
        if how not in ("inner", "left", "outer"):
            raise PlanError(
                name,
                f"how={how!r} is not a join of tables by key",
                "Use 'inner', 'left' or 'outer'; for a right join swap the sides: "
                "right.join(left, how='left')",
            )
        refuse_differing_keys(name, self._node, right._node)
        if select is None:
            selected = select_all(name, self._node, right._node)
            values = StructType([*self._node.values.fields, *right._node.values.fields])
        else:
            selected, values = resolve(name, self._node, right._node, select)
        return Table(TableJoin(self._node, right._node, how, selected, values))

    @property
    def schema(self) -> StructType:
        """The columns of this table's changelog."""
        return changelog_schema(self._node)

    def changelog(self, *, emit: Emit = "change", buckets: int | None = None) -> DataFrame:
        """The table's changes as a streaming frame that any Spark sink takes, in append mode.

        Columns: the key, the values, ``_change`` (``upsert`` or ``delete``), ``_timestamp``, and
        ``_position``, which orders the changes of a key. ``emit="change"``: every record's own result;
        ``emit="batch"``: per key and micro-batch the last one, and none where nothing changed.

        The session must have the settings of ``dovetail.settings``; ``write_stream`` sees to them.
        """
        return query.changelog(self._node, emit=emit, buckets=buckets)

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
        where it stopped, having lost and doubled nothing. ``trigger``: ``"available now"`` (all there
        is, then stop), an interval such as ``"10 seconds"``, or None (as fast as data comes).
        ``buckets``: into how many parts the key space is cut (8 by default), fixed by the checkpoint.

        Raises ``CheckpointError`` where the checkpoint is another topology's.
        """
        return query.start(
            self._node,
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
        return batch.changelog(self._node, emit=emit)

    def explain(self) -> None:
        """Print the topology: its joins, its stages, their shuffles and their state."""
        print(explain(self._node))

    def __repr__(self) -> str:
        names = ", ".join(self._node.key.names)
        return f"Table[{self._node.name}; key {names}]"


class _Columns:
    """A frame's columns, asked for by the arguments of ``from_changelog``."""

    def __init__(self, operator: str, frame: DataFrame) -> None:
        self._operator = operator
        self._frame = frame

    def require(self, name: str, argument: str) -> None:
        count = self._frame.columns.count(name)
        if count == 0:
            raise PlanError(
                self._operator,
                f"{argument} names an unknown column {name!r}",
                f"Known are {', '.join(self._frame.columns)}",
            )
        if count > 1:
            raise PlanError(
                self._operator, f"column {name!r} occurs twice", "Drop or rename one of them"
            )

    def expression(
        self, given: str | Column | None, argument: str, *types: type[DataType]
    ) -> Column | None:
        """The column an argument means, of one of these types."""
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as F

        if given is None:
            return None
        if isinstance(given, str):
            self.require(given, argument)
            column = F.col(f"`{given}`")
        else:
            column = given
        try:
            found = self._frame.select(column).schema[0].dataType
        except AnalysisException as error:
            raise PlanError(
                self._operator,
                f"{argument} does not resolve: {error.getMessage().splitlines()[0]}",
                f"Known columns are {', '.join(self._frame.columns)}",
            ) from error
        if not isinstance(found, types):
            wanted = " or ".join(t.typeName() for t in types)
            shown = given if isinstance(given, str) else "the expression"
            raise PlanError(
                self._operator,
                f"{argument} {shown} is of type {found.simpleString()}, not {wanted}",
                f"Cast it, for instance with .cast('{types[-1]().simpleString()}')",
            )
        return column
