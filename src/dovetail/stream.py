"""``Stream``: records that stand for themselves, and the table they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dovetail.io.topics import Malformed, topic_source
from dovetail.plan.nodes import Source
from dovetail.plan.reading import source_of
from dovetail.table import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from dovetail.io.kafka import ReadFormat


class Stream:
    """Keyed records in time. Unlike a table's, a record does not replace the one before it.

    The seeds' KStream.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    @classmethod
    def from_df(
        cls,
        frame: DataFrame,
        *,
        key: str | Sequence[str],
        timestamp: str | Column,
        sequence: str | Column | None = None,
        log_partition: str | Column | None = None,
        name: str | None = None,
    ) -> Stream:
        """A stream of a frame's rows; the arguments are those of ``Table.from_changelog``."""
        return cls(
            source_of(
                frame,
                key=key,
                timestamp=timestamp,
                deleted=None,
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
            )
        )

    def to_table(self) -> Table:
        """The table in which each record replaces the one before it of its key.

        A record of a topic without a value deletes its key's row.
        """
        return Table(self._source)

    def __repr__(self) -> str:
        return f"Stream[{self._source.name}; key {', '.join(self._source.key.names)}]"
