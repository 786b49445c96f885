"""``Stream``: records that stand for themselves, their joins, and the table they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dovetail.errors import PlanError
from dovetail.io.topics import Malformed, topic_source
from dovetail.plan.joins import Within, stream_join, stream_table_join
from dovetail.plan.nodes import Source
from dovetail.plan.reading import source_of
from dovetail.plan.select import Selection
from dovetail.table import Table
from dovetail.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from dovetail.io.kafka import ReadFormat
    from dovetail.kernels.interval_join import Unmatched
    from dovetail.kernels.table_join import How
    from dovetail.plan.spans import Span


class Stream(Topology):
    """Keyed records in time. Unlike a table's, a record does not replace the one before it.

    The seeds' KStream.
    """

    @classmethod
    def from_df(
        cls,
        frame: DataFrame,
        *,
        key: str | Sequence[str],
        timestamp: str | Column,
        deleted: str | Column | None = None,
        sequence: str | Column | None = None,
        log_partition: str | Column | None = None,
        name: str | None = None,
    ) -> Stream:
        """A stream of a frame's rows; the arguments are those of ``Table.from_changelog``.

        ``deleted``: true for a record without a value, which joins ignore.
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
                stream=True,
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
    ) -> Stream:
        """A stream of a topic's records; the arguments are those of ``Table.from_topic``."""
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
                stream=True,
            )
        )

    def join(
        self,
        right: Table | Stream,
        *,
        how: How = "inner",
        on: str | Sequence[str] | None = None,
        within: Within | None = None,
        unmatched: Unmatched = "on_close",
        grace: Span | None = None,
        select: Selection | None = None,
        align: Span | None = None,
    ) -> Stream:
        """A join with a table, or with a stream within a window of time.

        **With a table** only this stream's records are answered, each with the table's row as it
        stands when the record is processed; of a versioned table, with the version of the record's
        own time, or none past the table's history. ``how``: ``"inner"`` or ``"left"``. ``on``: the
        columns of this stream to look the table's key up by, the key's by default; the result keeps
        this stream's key. ``grace``, for versioned tables: a record waits until stream time has
        passed its own by so much; records then come in order of time, late ones at once.

        **With a stream**: ``within=dt.within(before=, after=, grace=)``, and ``how`` may be
        ``"outer"``, too. A pair is emitted once, when its second record arrives, under the larger
        of both times. ``unmatched`` says when a record of a preserved side without a match comes
        out: ``"on_close"``, once its window and grace have passed in stream time; ``"eager"``, at
        once; ``"retract"``, at once, and withdrawn by a ``delete`` when a match comes.

        A record with a null in its key or in ``on`` matches nothing: it is dropped and counted, or
        comes out at once where its side is preserved. One without a value is dropped and counted.

        ``select``: the result's value columns, as in ``Table.join``. ``align``: let rows that are
        ahead of the other side's stream time wait, in state, until it has caught up or has brought
        nothing for so long by the clock; so that a replay gives what the live run gave. (With the
        trigger ``"available now"`` they wait, at the end of the data, for the next run's.)

        Raises ``PlanError`` for arguments that do not fit. Source: KIP-77; KIP-914; Kafka Streams
        join design; spec/stream_table, spec/stream_stream.
        """
        if isinstance(right, Stream):
            for argument, given in (("on=", on), ("grace=", grace)):
                if given is not None:
                    raise PlanError(
                        "join",
                        f"{argument} is for joins with a table",
                        "Two streams join by their keys; a grace period belongs into within=",
                    )
            return Stream(
                stream_join(
                    self.plan,
                    right.plan,
                    how=how,
                    within=within,
                    unmatched=unmatched,
                    select=select,
                    align=align,
                )
            )
        if not isinstance(right, Table):
            raise PlanError(
                "join", f"the right side is a {type(right).__name__}", "Give a Table or a Stream"
            )
        if within is not None or unmatched != "on_close":
            raise PlanError(
                "join", "within= and unmatched= are for joins of two streams", "Leave them out"
            )
        return Stream(
            stream_table_join(
                self.plan, right.plan, how=how, on=on, grace=grace, select=select, align=align
            )
        )

    def to_table(self) -> Table:
        """The table in which each record replaces the one before it of its key.

        A record without a value deletes its key's row.
        """
        if not isinstance(self.plan, Source):
            raise PlanError(
                self.plan.name,
                "the result of a join does not become a table here",
                "Write it to a topic or a table and read it from there",
            )
        return Table(replace(self.plan, stream=False))

    def __repr__(self) -> str:
        return f"Stream[{self.plan.name}; key {', '.join(self.plan.key.names)}]"
