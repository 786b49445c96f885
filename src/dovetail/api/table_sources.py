"""Sources of tables that streams lack: Delta tables with their changes, and rows that never
change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dovetail.api.topology import Topology
from dovetail.base.columns import DELETED, TIMESTAMP, quoted
from dovetail.base.validation import ColumnNames, Natural, Path, Text, validated
from dovetail.errors import PlanError
from dovetail.io.sources.delta_feed import POSITION, DeltaChanges
from dovetail.io.sources.records import Malformed, sound_source
from dovetail.plan.changelog_source import Given, Session, source_of
from dovetail.plan.nodes import Source
from dovetail.plan.transforms.rekey import Duplicates
from dovetail.plan.types.spans import Span
from dovetail.platform import delta_tables

if TYPE_CHECKING:
    from typing_extensions import Self

_TWICE = "_dovetail_twice"


class TableSources(Topology):
    """The readers of tables."""

    @classmethod
    @validated
    def from_delta(
        cls,
        spark: Session,
        path: Path | None = None,
        *,
        table: Text | None = None,
        key: ColumnNames,
        version: Natural | None = None,
        key_updates: bool = True,
        timestamp: Given | None = None,
        malformed: Malformed = "fail",
        max_ahead: Span | None = None,
        columns: ColumnNames | None = None,
        versioned: Span | None = None,
        name: Text | None = None,
        streaming: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> Self:
        """Read the Delta table at ``path``, or called ``table`` in a catalog, with its changes.

        The present content comes first, then the changes, commit by commit. The table must have its
        change data feed enabled.

        ``key``: the columns that tell its rows apart. ``version``: instead of the content, the
        changes of this version and those after it. ``streaming=False`` reads what there is now, for
        a batch run: the content, or the changes from ``version`` on.

        A commit is one change of each key at most. Rows that it rewrites as they are change
        nothing, and a row that it replaces is an upsert. So is an update, unless it changes the
        key: then the former key's row is deleted. ``key_updates=False``: no update does, so that
        former rows need not be read.

        ``timestamp``: the event time of the rows, a column, which is used up, or an expression over
        the table's columns and ``_commit_timestamp``; by default the time of the commit. A deleted
        row ends at the commit's time, or at its own where that is later. One whose key has changed
        ends when its new key's row begins. ``columns``: the value columns that are read, all by
        default; others may be added, dropped and altered as if they were not there.

        ``malformed``, ``max_ahead``: as in ``from_changelog``.

        ``versioned``: as in ``from_changelog``. A row that is not later than its key's history
        takes effect where the history ends. So the table's present row is always the latest
        version. ``name``: by default the last part of the path or name. ``options``: the Delta
        source's own.

        Raises ``PlanError`` for unknown columns, ``ConfigurationError`` where the table has no
        change data feed or cannot be read.
        """
        delta_tables.refuse_but_one("from_delta", path, table)
        delta_tables.refuse_without_delta(spark, "from_delta")
        place, called = DeltaChanges.located(spark, path, table)
        label = name or called
        changes = DeltaChanges(
            spark, place, label, version, streaming, key_updates, dict(options or {})
        )
        keys = [key] if isinstance(key, str) else list(key)
        read = [columns] if isinstance(columns, str) else columns
        frame, time = changes.frame(keys, timestamp, read)
        roles = {
            "timestamp=": TIMESTAMP,
            "deleted=": DELETED,
            "sequence=": POSITION,
            "log_partition=": None,
        }
        source = source_of(
            frame, keys, roles, shared_log=False, versioned=versioned, name=label, stream=False
        )
        source = replace(source, by_commit=True, time_text=time)
        return cls(sound_source(source, malformed, max_ahead))

    @classmethod
    @validated
    def from_static(
        cls,
        frame: DataFrame,
        *,
        key: ColumnNames,
        duplicates: Duplicates = "error",
        name: Text | None = None,
    ) -> Self:
        """Return a table that does not change, from the rows of a frame that is not a streaming
        one.

        Law: its rows come before all records of other inputs, as upserts of 1970. A query reads
        them once, when it begins, and keeps them in its checkpoint; started again, it goes on with
        those. They may give results without another input, such as the rows of a table that is
        their aggregate. The sinks get these as a first micro-batch; with ``initial=``, where
        ``emit_initial`` is set. An input that changes is ``from_changelog``.

        ``key``: the columns that tell its rows apart. ``duplicates``: the effect of a key that is
        there twice: ``"error"`` refuses the rows as they are read, ``"last"`` takes the row that
        Spark reads last, which may be another one each time. ``name``: as in ``from_changelog``.

        Raises ``PlanError`` for a streaming frame and as ``from_changelog`` does.
        """
        if frame.isStreaming:
            raise PlanError(
                f"table {name}" if name else "from_static",
                "its frame is a streaming one",
                "Read it with spark.read, or give its changes to from_changelog",
            )
        roles = dict.fromkeys(("timestamp=", "deleted=", "sequence=", "log_partition="))
        source = source_of(
            frame,
            key,
            {**roles, "timestamp=": F.timestamp_micros(F.lit(0))},
            shared_log=False,
            versioned=None,
            name=name,
            stream=False,
            static=True,
        )
        return cls(source if duplicates == "last" else _with_each_key_once(source, frame))


def _with_each_key_once(source: Source, frame: DataFrame) -> Source:
    """Return the source with a frame that fails, as it is read, if it has a key twice.

    Rows with a null in the key are in no table, and are not checked.
    """
    key = [F.col(quoted(column)) for column in source.key.names]
    there = reduce(Column.__and__, (column.isNotNull() for column in key))
    rows = F.count(F.lit(1)).over(Window.partitionBy(*key))
    problem = F.concat(
        F.lit(f"{source.title}: its frame has the key "),
        F.to_json(F.struct(*key)),
        F.lit(" more than once. Leave one row per key, or take duplicates='last'."),
    )
    failure = F.when(there & (rows > 1), F.raise_error(problem).cast("boolean"))
    checked = frame.withColumn(_TWICE, failure)
    return replace(source, frame=checked.filter(F.col(_TWICE).isNull()).drop(_TWICE))
