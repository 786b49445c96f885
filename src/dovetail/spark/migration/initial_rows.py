"""The second phase of a query that begins with initial rows: which rows are read, and from where.

Rows come from the frames of ``initial=``, from static tables, or from the stores of another
checkpoint (``spark.migration.stored_inputs``). All of them are written to files
(``spark.migration.row_files``). One micro-batch of the stages reads the files
(``spark.migration.first_stages``), so their state is as if the rows had come from the sources.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Annotated, Any, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import TimestampType

from dovetail.base.columns import CHANGE, DELETE, TIMESTAMP, UPSERT, quoted
from dovetail.base.validation import Rule
from dovetail.errors import PlanError
from dovetail.physical.routing import Plan
from dovetail.physical.stage import Stage
from dovetail.plan.fingerprint import sources_of
from dovetail.plan.nodes import Derived, Entry, Node, Source
from dovetail.plan.types.arrow import nullable
from dovetail.plan.views import views_to_base
from dovetail.spark.checkpoints.stores import CheckpointStores
from dovetail.spark.migration import row_files
from dovetail.spark.migration.carried_over import CarriedOver
from dovetail.spark.migration.stored_inputs import rows_of_tables

Initial: TypeAlias = Annotated[
    Mapping[str, Annotated[DataFrame, Rule("a DataFrame")]] | str | PathLike[str] | StreamingQuery,
    Rule("a mapping of tables' names to frames, the path of a checkpoint, or a query", bool),
]


@dataclass(frozen=True)
class InitialRows:
    """Phase 2: the rows that the first micro-batch reads from files.

    The files are numbered. Those of the plan's inputs come first, then those of results.
    """

    parts: Sequence[int]
    """For each input of the plan, the depth of the view whose rows are in its files."""
    results: Sequence[int]
    """The indices of the carried stages whose results are in the files that follow."""
    begins: Sequence[str] | None = None
    """For each stage the way in which it begins, in words; None without another checkpoint."""

    def as_json(self) -> dict[str, Any]:
        """Return which rows are read as a dict of JSON data, a part of the entry ``BEGINNING`` in
        ``dovetail.json``. It has ``parts``: for each input of the plan, the index from 0 of the
        node whose rows are in its file. That node is one of ``views_to_base``, from the input down
        to its source. It has ``results``: the indices, from 0, of the carried stages whose results
        are in the files that follow. It has ``begins``, unless that is None: a text for each stage
        on the way in which it begins.
        """
        begins = {} if self.begins is None else {"begins": self.begins}
        return begins | {"parts": self.parts, "results": self.results}

    @classmethod
    def of_json(cls, left: Mapping[str, Any]) -> InitialRows:
        """Return the ``InitialRows`` whose ``as_json`` returned ``left``. Further entries of
        ``left`` have no effect. Raises ``KeyError`` without ``parts`` or ``results``. Without
        ``begins``, that is None.
        """
        return cls(left["parts"], left["results"], left.get("begins"))

    def inputs_of(self, plan: Plan) -> list[Entry]:
        """Return the sources and views whose rows are in the files, one for each file, in their
        order. Inputs of the plan that read the same one share its file. ``plan``: the one for which
        the files were written.
        """
        depths = zip(plan.entries, self.parts, strict=True)
        return list(dict.fromkeys(views_to_base(entry)[depth] for entry, depth in depths))

    def results_of(self, plan: Plan) -> list[Stage]:
        """Return the stages, carried over from another checkpoint, whose results are in the files,
        in the order of these files. Empty if there are none. ``plan``: the one for which the files
        were written.
        """
        return [plan.stages[index] for index in self.results]


@dataclass(frozen=True)
class RowFrames:
    """The frames of initial rows, before they are written."""

    inputs: Mapping[Entry, DataFrame]
    """The rows of sources and of views."""
    results: Mapping[Stage, DataFrame] = field(default_factory=dict)
    """The results of carried stages."""
    begins: Sequence[str] | None = None
    """As in ``InitialRows``."""


def rows_of_stores(
    stored: CheckpointStores,
    plan: Plan,
    nodes: Sequence[Node],
    carried: CarriedOver,
    *,
    results: bool,
) -> RowFrames:
    """Return frames of the rows with which stages that are not carried over begin. Nothing is
    written. The result has the rows of sources and views in ``inputs``, and the results of carried
    stages in ``results``. In ``begins`` it has a text on each stage.

    Rows come from another checkpoint. Those of a static table come from its frame in ``nodes``, if
    the checkpoint does not have them. ``stored``: the state of the other query. ``plan``: that of
    the new query; ``nodes``: its results. ``carried``: what it takes over. ``results``: True if the
    rows of results are wanted, which the sinks then get.

    Raises ``CheckpointError`` for a stage that needs what the checkpoint does not have, and
    ``PlanError`` for a static table's frame that does not fit. Raises ``ConfigurationError`` if
    Spark cannot read the checkpoint.
    """
    carried_stages = carried.stages_of(plan)
    inputs, result_rows = rows_of_tables(stored, plan, nodes, carried_stages, results=results)
    stored_tables = {entry.base for entry in inputs}
    static = static_rows(sources_of(nodes))
    read_first = {table: rows for table, rows in static.items() if table not in stored_tables}
    tables = {*stored_tables, *static}
    begins = [_beginning_in_words(stage, carried_stages, tables) for stage in plan.stages]
    return RowFrames({**read_first, **inputs}, result_rows, begins)


def _beginning_in_words(stage: Stage, carried: Collection[Stage], tables: Collection[Entry]) -> str:
    """Return the way in which ``stage`` begins: ``carried over``, ``with the rows of`` its tables
    by name, or ``empty``. ``carried``: the stages that are carried over. ``tables``: the sources
    that have initial rows. A table that another stage computes counts as having rows.
    """
    if stage in carried:
        return "carried over"
    read = [table for table in stage.inputs.values() if not table.stream]
    names = [
        table.name for table in read if table.base in tables or isinstance(table.base, Derived)
    ]
    return f"with the rows of {', '.join(dict.fromkeys(names))}" if names else "empty"


def write_rows(
    session: SparkSession, checkpoint: str, plan: Plan, frames: RowFrames
) -> InitialRows:
    """Write the initial rows ``frames`` as Parquet to files below ``checkpoint``, in place of
    former ones: a folder for each source or view that is read, then one for each result. The
    checkpoint of a separate query that read former ones is removed. Return which input or result of
    ``plan`` reads which folder.

    Inputs of the plan that read the same source or view share its folder. A source or result
    without rows has a folder of its own, whose files have none. Frames that no input reads are not
    written. Spark's own errors pass.
    """
    rows = frames.inputs
    parts_read = [
        next((p for p in views_to_base(node) if p in rows), node.base) for node in plan.entries
    ]
    inputs = [
        rows[part] if part in rows else row_files.empty_frame(session, part)
        for part in dict.fromkeys(parts_read)
    ]
    row_files.write_files(session, checkpoint, [*inputs, *frames.results.values()])
    entries_and_parts = zip(plan.entries, parts_read, strict=True)
    return InitialRows(
        parts=[views_to_base(entry).index(part) for entry, part in entries_and_parts],
        results=[plan.stages.index(stage) for stage in frames.results],
        begins=frames.begins,
    )


def rows_by_table(
    operator: str, nodes: Sequence[Node], initial: Mapping[str, DataFrame]
) -> dict[Entry, DataFrame]:
    """Return frames of the initial rows by table, static ones included: the table's columns, then
    ``_timestamp``. Frames of ``initial`` that say which rows are deletes have ``_change``, too.
    Tables without initial rows are absent. Spark computes nothing yet.

    ``operator``: the call, for errors; ``nodes``: the results of the query. ``initial``: frames by
    the table's name. Raises ``PlanError`` for frames that do not fit the tables, and for names that
    are no table's or several inputs'. So it does if a result has a join without state.
    """
    for node in nodes:
        if any(part.eventual for part in node.walk()):
            raise PlanError(
                node.name,
                "initial= and from_static are for tables that are kept, a join by lookups keeps "
                "none",
                "Leave them out, or join them in state with "
                "delta_join=dt.delta_join(strategy='none')",
            )
    inputs = sources_of(nodes)
    tables = {source.name: source for source in inputs if not (source.stream or source.static)}
    for name in initial:
        if name not in tables:
            raise PlanError(
                operator,
                f"initial= names {name!r}, which is no table of {nodes[0].name}",
                f"Its tables are {', '.join(tables) or 'none'}",
            )
        if [source.name for source in inputs].count(name) > 1:
            raise PlanError(
                operator,
                f"initial= names {name!r}, as several inputs of {nodes[0].name} are called",
                "Give each a name of its own with name=",
            )
    named_rows: dict[Entry, DataFrame] = {
        tables[name]: _rows_of_source(tables[name], frame, changes=True)
        for name, frame in initial.items()
    }
    return static_rows(inputs) | named_rows


def static_rows(sources: Sequence[Source]) -> dict[Entry, DataFrame]:
    """Return the rows of each static source that has a frame: its columns, then ``_timestamp``.
    Other sources are left out. Raises ``PlanError`` for a frame that does not fit its source.
    """
    frames = [(source, source.frame) for source in sources if source.static]
    return {source: _rows_of_source(source, frame) for source, frame in frames if frame is not None}


def _rows_of_source(source: Source, frame: DataFrame, *, changes: bool = False) -> DataFrame:
    """Return the frame's rows with the columns of ``source``, then ``_timestamp``: the frame's own
    column of this name or, without one, what ``timestamp=`` of the source reads.

    ``changes``: True to return the frame's column ``_change``, too, if it has one. A history that
    ``read_state`` has read tells deletes by it. Any value but ``delete`` is taken for ``upsert``.

    Raises ``PlanError`` for a streaming frame. Also for a column that is missing, is there twice or
    has another type, and for a time that is missing or no timestamp.
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
    if changes and CHANGE in frame.columns:
        deleted = F.coalesce(F.col(CHANGE) == DELETE, F.lit(False))
        columns.append(F.when(deleted, DELETE).otherwise(UPSERT).alias(CHANGE))
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
