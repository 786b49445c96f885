"""Rows from the stored state of another topology's query, for stages that are not carried over.

Such a stage begins with rows of two kinds. Those of a source come from some stage of the old query.
Those of a carried stage are its result. What a stage has made of a stream's records cannot be
obtained in this way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from dovetail.base.columns import CHANGE, TIMESTAMP, quoted
from dovetail.engine import store_contents
from dovetail.errors import ConfigurationError
from dovetail.physical.output import output_of
from dovetail.physical.routing import Plan
from dovetail.physical.specs.law import Store
from dovetail.physical.stage import Port, Stage
from dovetail.plan.fingerprint import describe_input, input_identity
from dovetail.plan.joins.stream_table_join import StreamTableJoin
from dovetail.plan.nodes import Entry, Node, Source
from dovetail.plan.types.arrow import spark_schema
from dovetail.plan.views import views_to_base
from dovetail.spark.checkpoints import state_results
from dovetail.spark.checkpoints.store_rows import last_versions, rows_of_store
from dovetail.spark.checkpoints.stores import CheckpointStores, StageStore
from dovetail.spark.migration import row_files
from dovetail.spark.migration.carried_over import (
    START,
    identities_of_old_sources,
    migration_error,
)
from dovetail.spark.migration.wider_types import cast_to_wider, widens

_NO_ROWS = "Leave out emit_initial=: the sinks then get what changes from now on"
_AS_BEFORE = "Leave {} as it was, with the same buckets=, or start with a new checkpoint"


@dataclass(frozen=True)
class _OldStore:
    """A store of the old query with an input's rows."""

    store: Store
    kept: StageStore | None
    """The store in the checkpoint; None if nothing is stored yet."""
    then: Mapping[str, Any]
    """The description of the input in the old query."""


def rows_of_tables(
    stored: CheckpointStores,
    plan: Plan,
    nodes: Sequence[Node],
    carried: Collection[Stage],
    *,
    results: bool,
) -> tuple[dict[Entry, DataFrame], dict[Stage, DataFrame]]:
    """Return the initial rows of stages that are not carried over, as two dicts of frames. The
    first is by input: the source or view that the rows are of. Its frames have the node's columns,
    ``_timestamp``, and ``_change`` if some rows are deletes. Inputs that the other query did not
    have, and streams, are absent. The second is by carried stage: the rows of its result, if
    another stage reads them. With ``results`` it also has the carried stages that compute a result
    of the plan. Streams are absent.

    ``stored``: the state of the other query. ``plan``: that of the new query; ``nodes``: its
    results. ``carried``: its stages that take over their state. ``results``: True if the rows of
    the plan's results are wanted.

    Raises ``CheckpointError`` for a stage that needs what the checkpoint does not have.
    """
    ends = [result.stage for result in plan.results if results]
    written = [stage for stage in ends if stage in carried]
    read: list[Stage] = []
    wanted: dict[Entry, list[Port]] = {}
    for stage in _stages_with_rows(plan, ends):
        if stage in carried:
            continue
        _refuse_stored_streams(stored, nodes, stage)
        for port in stage.ports:
            if isinstance(port.origin, Stage):
                _refuse_lost_rows(stored, nodes, stage, port)
                read += [port.origin] if port.origin in carried else []
            elif port.input is not None and not port.source.meaning.stream:
                wanted.setdefault(port.input.source, []).append(port)
    return _rows_by_input(stored, plan, nodes, wanted), _rows_by_stage(stored, plan, written, read)


def _rows_by_input(
    stored: CheckpointStores,
    plan: Plan,
    nodes: Sequence[Node],
    wanted: Mapping[Entry, Sequence[Port]],
) -> dict[Entry, DataFrame]:
    """Return frames of the stored rows of the wanted inputs that the other query had; other inputs
    are absent. A key of the dict is the source or view that the rows are of: the wanted one or, if
    only its rows are stored, a node below its views.

    ``wanted``: for each source or view, the inputs of new stages that read it. ``nodes``: the
    results of ``plan``. Raises ``CheckpointError`` if no store has the rows of such an input.
    """
    old = identities_of_old_sources(stored)
    rows_by_part: dict[Entry, DataFrame] = {}
    part_of: dict[Entry, Entry] = {}
    filled: dict[Entry, str] = {}
    for entry, ports in wanted.items():
        if input_identity(describe_input(nodes, entry.base)) not in old:
            continue
        fills = _filling_stage(plan, ports)
        part, frame = _rows_of_input(stored, nodes, entry, ports, _kept_parts(plan, ports), fills)
        part_of[entry] = part
        if fills is not None:
            filled[part] = fills
        # Rows for a view above have all columns, and none is left out.
        if part is not entry or part not in rows_by_part:
            rows_by_part[part] = frame
    for entry, part in part_of.items():
        nodes_below = views_to_base(entry)
        for nearer in nodes_below[: nodes_below.index(part)]:
            rows_by_part.pop(nearer, None)  # they lack what this input needs
    for part, fills in filled.items():
        if part not in rows_by_part or list(part_of.values()).count(part) > 1:
            raise migration_error(
                stored,
                f"has {part.name} with the former values that {fills} has kept, and other stages "
                "need it as it came",
                _AS_BEFORE.format(fills),
            )
    return rows_by_part


def _filling_stage(plan: Plan, ports: Sequence[Port]) -> str | None:
    """Return the name of a stage of ``plan`` that reads one of ``ports`` and fills in values that
    records leave out. None if none does.
    """
    return next(
        (
            stage.node.name
            for stage in plan.stages
            if stage.node.patches and any(port in ports for port in stage.ports)
        ),
        None,
    )


def _rows_by_stage(
    stored: CheckpointStores, plan: Plan, written: Sequence[Stage], read: Sequence[Stage]
) -> dict[Stage, DataFrame]:
    """Return a frame of the stored result of each carried stage in ``written``, which sinks get,
    and in ``read``, which new stages read. Both may have duplicates; stages whose result is a
    stream are absent.

    Raises ``CheckpointError`` for a stage whose result cannot be computed from stored rows. In a
    plan of several results, so it does for a stage that only a sink reads, if columns are computed
    on the way there.
    """
    tables = [stage for stage in dict.fromkeys([*written, *read]) if not stage.node.stream]
    for stage in tables:
        apart = not any(stage is port.origin for other in plan.stages for port in other.ports)
        if apart and not plan.has_one_result and output_of(stage).held is None:
            raise migration_error(
                stored,
                f"has {stage.node.name}, which computes its columns as it leaves",
                "Leave out emit_initial=, and begin its sink with read_state(topology=...)",
            )
    return {
        stage: _rows_of_carried_stage(stored, stage, START if stage in read else _NO_ROWS)
        for stage in tables
    }


def _stages_with_rows(plan: Plan, ends: Sequence[Stage]) -> list[Stage]:
    """Return the stages of ``plan`` that store something, are in ``ends``, or feed a stage that is
    returned, in the order of the plan. The list may be empty.
    """
    stages = list[Stage]()
    for stage in reversed(plan.stages):
        feeds = any(stage is port.origin for other in stages for port in other.ports)
        if stage.fragment.stores or stage in ends or feeds:
            stages.append(stage)
    return stages[::-1]


def _rows_of_carried_stage(stored: CheckpointStores, stage: Stage, remedy: str) -> DataFrame:
    """Return a frame of the current rows of the table that ``stage`` computes, whose state is taken
    over. Raises ``CheckpointError``, with ``remedy``, if these rows cannot be computed from stored
    rows.
    """
    try:
        return state_results.rows_of_result(stored, stage.node, stage.node)
    except ConfigurationError as error:
        raise migration_error(
            stored, f"does not say what rows there are: {error.problem}", remedy
        ) from error


def _refuse_stored_streams(stored: CheckpointStores, nodes: Sequence[Node], stage: Stage) -> None:
    """Raise ``CheckpointError`` if ``stage`` reads a stream and has a store of anything but rows of
    its tables. The checkpoint does not have what a new stage keeps of a stream.

    A stage without a stream among its inputs passes. So does one of whose streams the old query has
    read nothing: all of their records are still to come. ``nodes``: the results of the new plan.
    """
    ports = [port for port in stage.ports if port.source.meaning.stream]
    tables = {port.source.name for port in stage.ports} - {port.source.name for port in ports}
    old = identities_of_old_sources(stored)
    feeding = chain.from_iterable(
        stage.node.origins if port.input is None else _sources_of_records(port.input.source)
        for port in ports
    )
    if all(input_identity(describe_input(nodes, source)) not in old for source in feeding):
        return
    for store in stage.fragment.stores.values():
        if store.of not in tables:
            raise migration_error(
                stored,
                f"has not what {stage.node.name} keeps of the stream {ports[0].source.name}: "
                f"{store.holds}",
                _AS_BEFORE.format(stage.node.name),
            )


def _sources_of_records(node: Node) -> Iterator[Source]:
    """Yield each source whose rows cause records of the stream ``node``, perhaps several times. A
    table with which a stream is joined causes none.
    """
    if isinstance(node, Source):
        yield node
    for input_ in [node.left] if isinstance(node, StreamTableJoin) else node.inputs:
        yield from _sources_of_records(input_)


def _refuse_lost_rows(
    stored: CheckpointStores, nodes: Sequence[Node], stage: Stage, port: Port
) -> None:
    """Raise ``CheckpointError`` if rows that the new ``stage`` has read by ``port`` cannot be made
    again: records of a stream that are read as a table, or former values that a record left out.

    ``nodes``: the results of the new plan. A port passes that reads a source. So does one that
    reads what is made only of sources that the old query did not read.
    """
    if port.input is None or not isinstance(port.origin, Stage):
        return
    made_of: Iterable[Source] = port.input.source.origins
    if port.origin.node.stream and not port.source.meaning.stream:
        problem = f"has not the records of which {port.source.name} is made"
        made_of = _sources_of_records(port.origin.node)
    elif stage.node.patches:
        problem = f"has not the former values that {stage.node.name} has kept"
    else:
        return
    old = identities_of_old_sources(stored)
    if any(input_identity(describe_input(nodes, source)) in old for source in made_of):
        raise migration_error(stored, problem, _AS_BEFORE.format(stage.node.name))


def _kept_parts(plan: Plan, ports: Sequence[Port]) -> set[tuple[str, str]]:
    """Return which rows of the inputs ``ports`` the new stages' stores keep, as pairs of texts
    (``Store.holds`` and ``Store.only``). The set is empty if a store keeps all of them as they
    came, or if no store has them.
    """
    nodes = {
        (stage.node, port.source.name)
        for stage in plan.stages
        for port in stage.ports
        if port in ports
    }
    stores = [
        store
        for stage in plan.stages
        for store in stage.fragment.stores.values()
        if (stage.node, store.of) in nodes and store.kind in ("rows", "versions")
    ]
    return set() if any(store.whole for store in stores) else {*map(_part_of_rows, stores)}


def _part_of_rows(store: Store) -> tuple[str, str]:
    """Return the two texts that say which rows of its input a store has."""
    return store.holds, store.only


def _rows_of_input(
    stored: CheckpointStores,
    nodes: Sequence[Node],
    entry: Entry,
    ports: Sequence[Port],
    enough: Collection[tuple[str, str]],
    fills: str | None,
) -> tuple[Entry, DataFrame]:
    """Return (source or view, frame): the stored rows of ``entry``, a source or view that new
    stages read. If no store of it fits, they are those of a node below its views.

    ``nodes``: the results of the new plan. ``ports``: the inputs of new stages that read ``entry``.
    ``enough``: stores that keep only some rows fit if this set has their descriptions
    (``Store.holds`` and ``Store.only``), and no other. ``fills``: the name of the new stage that
    fills in former values, which only such a store has; None without one. Raises
    ``CheckpointError`` if no store fits, or if rows of one that fits wait for another input.
    Spark reads up to one row for that.
    """
    problems = [f"has no rows of {entry.name}"]
    for part in views_to_base(entry):
        needed = {*part.row.names}
        if part is entry:
            needed = set().union(*map(_needed_columns, ports))
        partial: dict[tuple[str, str], _OldStore] = {}
        for old_store in _old_stores(stored, input_identity(describe_input(nodes, part)), part):
            store = old_store.store
            has = _part_of_rows(store)
            is_enough = part is entry and has in enough
            if not store.whole and not is_enough:
                problems.append(f"has only {' '.join(filter(None, has))}")
                continue
            if store.whole and fills is not None:
                problems.append(f"has not the former values that {fills} has kept")
                continue
            misfit = _misfit(old_store, part, needed)
            if misfit is not None:
                problems.append(misfit)
                continue
            if store.whole or len(enough) == 1:
                _refuse_waiting(stored, old_store)
                return part, _fitted_rows(stored, old_store, part)
            problems.append(f"has only {' '.join(filter(None, has))}")
            partial.setdefault(has, old_store)
        if partial and fills is None and partial.keys() == {*enough}:
            for old_store in partial.values():
                _refuse_waiting(stored, old_store)
            frames = [_fitted_rows(stored, old_store, part) for old_store in partial.values()]
            # A row that several stores have is the same in all of them.
            return part, reduce(DataFrame.union, frames).dropDuplicates(part.key.names)
    raise migration_error(stored, problems[-1])


def _needed_columns(port: Port) -> set[str]:
    """Return the names of the columns without which a stage cannot begin on the input ``port``:
    those of its key, its foreign key and those that it uses. All, if it computes a foreign key or
    does not say what it uses.
    """
    input_ = port.input
    assert input_ is not None
    computed = any(not isinstance(item, str) for item, _ in input_.foreign)
    if input_.used is None or computed:
        return {*input_.source.row.names}
    return {*input_.key, *input_.used, *(str(item) for item, _ in input_.foreign)}


def _old_stores(
    stored: CheckpointStores, wanted: Mapping[str, Any], part: Entry
) -> list[_OldStore]:
    """Return the old stores with the rows of the source or view ``part``, the best first; empty if
    there are none. ``wanted``: the identity of ``part`` (``input_identity``).

    Those that lack fewest of its columns come first. Of these, stores of a history come first for a
    versioned table, stores of last rows for another one.
    """
    by_name = {
        (stage_store.stage.topology, stage_store.name): stage_store for stage_store in stored.stores
    }
    old_stores = [
        _OldStore(store, by_name.get((stage.topology, name)), stage.inputs[store.of])
        for stage in stored.stages.values()
        for name, store in stage.stores.items()
        if store.kind in ("rows", "versions")
        and store.of in stage.inputs
        and input_identity(stage.inputs[store.of]) == wanted
    ]
    kind = "rows" if part.versioned_us is None else "versions"

    def fit_rank(old_store: _OldStore) -> tuple[int, bool]:
        """Return the sort key of a store: (count of columns of ``part`` that it lacks, True if it
        is of the other kind).
        """
        has = {field.name for field in old_store.store.fields}
        return len({*part.row.names} - has), old_store.store.kind != kind

    return sorted(old_stores, key=fit_rank)


def _refuse_waiting(stored: CheckpointStores, old_store: _OldStore) -> None:
    """Raise ``CheckpointError`` if rows of the table in ``old_store`` wait for another input, in
    the same stage of the old query. A store before its first rows passes. Spark reads up to one
    row.
    """
    topology = None if old_store.kept is None else old_store.kept.stage.topology
    for stage_store in stored.stores:
        waits = stage_store.store.kind == "queue" and stage_store.store.of == old_store.store.of
        if (
            waits
            and stage_store.stage.topology == topology
            and rows_of_store(stored, stage_store).head(1)
        ):
            raise migration_error(
                stored,
                f"has rows of {old_store.store.of} that wait for another input (align=)",
                "Start it once more, until they have come out, then call again",
            )


def _misfit(old_store: _OldStore, part: Entry, needed: set[str]) -> str | None:
    """Return why the columns of ``old_store`` do not fit the source or view ``part``, in words;
    None if they fit. The type of a stored column may be narrower. A column may be missing if
    ``needed``, names of columns, lacks it, or if it is new to the input and no key.
    """
    stored = spark_schema(store_contents.schema_of(old_store.store))
    old_columns = {name for name, _ in _columns_of_input(old_store.then)}
    for field in part.row:
        if field.name in stored.names:
            was = stored[field.name].dataType
            if not widens(was, field.dataType):
                is_ = field.dataType.simpleString()
                return f"has {part.name}.{field.name} as {was.simpleString()}, not as {is_}"
        elif field.name in needed and (field.name in old_columns or field.name in part.key.names):
            return f"has not stored {part.name}.{field.name}"
    return None


def _columns_of_input(described: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return [name, type] of each column of an input, key columns first; the type is a text.
    ``described``: the description of the input in ``dovetail.json``, a view or a source.
    """
    parts = ("columns",) if "view" in described else ("key", "values")
    return [column for part in parts for column in described[part]]


def _fitted_rows(stored: CheckpointStores, old_store: _OldStore, part: Entry) -> DataFrame:
    """Return a frame of the rows of ``old_store`` with the columns and types of ``part``, then
    ``_timestamp`` and ``_change`` if it has them. Columns that it lacks are null. Before anything
    is stored the frame is empty. Of a history only the last versions are returned, unless ``part``
    is versioned.
    """
    if old_store.kept is None:
        return row_files.empty_frame(stored.spark, part)
    frame = rows_of_store(stored, old_store.kept)
    if old_store.store.kind == "versions" and part.versioned_us is None:
        frame = last_versions(frame, old_store.kept)
    beside = [name for name in (TIMESTAMP, CHANGE) if name in frame.columns]

    def fitted_column(field: StructField) -> Column:
        """Return the column ``field`` in its new type, null if the store lacks it."""
        if field.name not in frame.columns:
            return F.lit(None).cast(field.dataType).alias(field.name)
        was = frame.schema[field.name].dataType
        return cast_to_wider(F.col(quoted(field.name)), was, field.dataType).alias(field.name)

    return frame.select(*map(fitted_column, part.row), *map(F.col, beside))
