"""Initial rows of tables: those of frames, with the columns of their tables.

They are written to files (``spark.migration.row_files``). One micro-batch of the stages reads the
files (``spark.migration.first_stages``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Annotated, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from dovetail.base.columns import (
    TIMESTAMP,
    quoted,
)
from dovetail.base.validation import Rule
from dovetail.errors import PlanError
from dovetail.plan.fingerprint import origins_of
from dovetail.plan.nodes import Node, Source
from dovetail.plan.types.arrow import nullable

Initial: TypeAlias = Annotated[
    Mapping[str, Annotated[DataFrame, Rule("a DataFrame")]] | str | PathLike[str],
    Rule("a mapping of tables' names to frames, or the path of a checkpoint", bool),
]


def rows_of(
    operator: str, nodes: Sequence[Node], initial: Mapping[str, DataFrame]
) -> dict[Source, DataFrame]:
    """Return the initial rows by table, static ones included: key, values and ``_timestamp``.

    ``operator``: the call. Raises ``PlanError`` for frames that do not fit the tables, and for
    unknown names.
    """
    for node in nodes:
        if any(part.eventual for part in node.walk()):
            raise PlanError(
                node.name,
                "initial= and from_static are for tables that are kept, a join by look-ups keeps "
                "none",
                "Leave them out, or join them in state with delta=dt.delta(strategy='none')",
            )
    inputs = origins_of(nodes)
    tables = {source.name: source for source in inputs if not (source.stream or source.static)}
    for name in initial:
        if name not in tables:
            raise PlanError(
                operator,
                f"initial= names {name!r}, which is no table of {nodes[0].name}",
                f"Its tables are {', '.join(tables) or 'none'}",
            )
    named_rows = {tables[name]: _rows(tables[name], frame) for name, frame in initial.items()}
    return static_rows(inputs) | named_rows


def static_rows(sources: Sequence[Source]) -> dict[Source, DataFrame]:
    """Return the rows of the static sources."""
    frames = [(source, source.frame) for source in sources if source.static]
    return {source: _rows(source, frame) for source, frame in frames if frame is not None}


def _rows(source: Source, frame: DataFrame) -> DataFrame:
    """Return the frame's rows with a source's columns and ``_timestamp``; ``PlanError`` if they do
    not fit.
    """
    if frame.isStreaming:
        raise PlanError(
            source.title, "its frame of initial= is a streaming one", "Read it with spark.read"
        )
    for column in source.row:
        matches = [candidate for candidate in frame.schema if candidate.name == column.name]
        if len(matches) != 1 or nullable(matches[0].dataType) != column.dataType:
            has = f"is {matches[0].dataType.simpleString()}" if matches else "is missing"
            raise PlanError(
                source.title,
                f"in its frame of initial= column {column.name!r} {has}",
                f"Give it once, as {column.dataType.simpleString()}",
            )
    assert source.timestamp is not None
    time = F.col(TIMESTAMP) if TIMESTAMP in frame.columns else source.timestamp
    columns = [F.col(quoted(name)) for name in source.row.names]
    try:
        rows = frame.select(*columns, time.alias(TIMESTAMP))
    except AnalysisException as error:
        raise PlanError(
            source.title,
            "its frame of initial= has no time",
            f"Give it a column {TIMESTAMP}, or what timestamp= reads",
        ) from error
    if rows.schema[TIMESTAMP].dataType != TimestampType():
        raise PlanError(
            source.title, f"{TIMESTAMP} of its frame of initial= is no timestamp", "Cast it"
        )
    return rows
