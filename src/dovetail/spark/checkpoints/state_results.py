"""Results of joins, computed from the tables that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dovetail.base.columns import CHANGE, POSITION, TIMESTAMP, UPSERT, quoted
from dovetail.errors import ConfigurationError
from dovetail.physical.planner import plan_of
from dovetail.physical.stage import Stage
from dovetail.plan.fingerprint import (
    fingerprint,
    in_checkpoint_order,
    refuse_other,
    refuse_unknown_result,
)
from dovetail.plan.joins.foreign_key_join import ForeignKeyJoin
from dovetail.plan.joins.join_call import materialize
from dovetail.plan.nodes import Derived, Entry, Node, RowsNode, Source
from dovetail.plan.transforms.aggregation import Aggregation
from dovetail.plan.transforms.union import Union
from dovetail.plan.transforms.unwindow import Unwindowed
from dovetail.spark.checkpoints.store_rows import last_versions, rows_of_store
from dovetail.spark.checkpoints.stores import CheckpointStores
from dovetail.spark.execution import static_frames


def find_result(
    stored: CheckpointStores, results: Sequence[Node], name: str | None
) -> tuple[Node, Node] | None:
    """Return the node called ``name``, and the element of ``results`` within which it is computed.
    Return None if no join, aggregate or view has the name, which may be an input's. If ``name`` is
    None, return the only result, twice.

    ``results``: one of the query's results, or all of them in any order. Raises ``CheckpointError``
    if they are not. Raises ``ConfigurationError`` for an ambiguous name, and if ``name`` is None
    with several results.
    """
    if len(results) == 1:
        refuse_unknown_result(results[0], *stored.topology)
    else:
        title = " and ".join(node.name for node in results)
        refuse_other(in_checkpoint_order(results), title, *stored.topology)
    if name is None and len(results) > 1:
        names = ", ".join(repr(node.name) for node in results)
        raise ConfigurationError(
            stored.caller, "topology= has several results", f"Name one of {names}, or give it alone"
        )
    if name is None:
        return results[0], results[0]
    parts = {node: whole for whole in reversed(results) for node in whole.walk()}
    matches = {n for n in parts if n.name == name and not isinstance(n, Entry)}
    matches -= {part for n in matches if isinstance(n, (RowsNode, Unwindowed)) for part in n.inputs}
    if len(matches) > 1:
        raise ConfigurationError(
            stored.caller, f"several results are called {name!r}", "Tell them apart by name="
        )
    return next(((node, parts[node]) for node in matches), None)


def stages_as_stored(stored: CheckpointStores, topology: Node) -> Sequence[Stage]:
    """Return the stages of the query's result ``topology`` as the query of the stores has them,
    each after those that feed it.

    Joins by foreign key are stages of their own, not parts of a star, if another result of that
    query reads them. So those with stages in the checkpoint count as results here.
    """
    made_by = {name.partition(".")[0] for name in stored.stages}
    joins = [
        part
        for part in dict.fromkeys(topology.walk())
        if isinstance(part, ForeignKeyJoin) and part is not topology
    ]
    read = [join for join in joins if fingerprint(join) in made_by]
    return plan_of([topology, *read], buckets=stored.buckets, emit="change").stages


def rows_of_result(stored: CheckpointStores, topology: Node, node: Node) -> DataFrame:
    """Return the current rows of ``node`` after the stores' micro-batch, one row per key, in no
    order. The frame has the key, the values and ``_timestamp``. ``topology``: the query's result
    within which the node is computed.

    The rows are the result of a batch run over the stored rows of its stage's inputs. Those of an
    aggregate, of a view that a stage stores, and of a union that is stored, are read as they are.

    Raises ``ConfigurationError`` for a result that depends on more than these rows, and if the rows
    that it needs are not stored (yet). Spark must read the checkpoint's files.
    """
    _refuse_uncomputable(stored, node)
    if isinstance(node, Aggregation):
        made_by = fingerprint(node)
        return rows_of_store(
            stored,
            stored.store_of(
                node.name, lambda stage_store: stage_store.stage.topology.startswith(made_by)
            ),
        )
    stages = [stage for stage in stages_as_stored(stored, topology) if stage.computes(node)]
    union = stages_of_stored_union(stored, node)
    as_stored = Derived(node) if union else node
    if isinstance(as_stored, Entry):  # a union, or a view, whose rows a stage stores
        frame = _stored_input(stored, union or stages, as_stored).frame
        assert frame is not None
        return frame
    within = {part for stage in stages for part in stage.within}
    replaced: dict[Node, Node] = {}

    def replace_inputs(part: Node) -> Node:
        """Return ``part`` with all inputs below it replaced by static tables of their stored rows,
        or a static table if it is an input itself. Nodes that the same stages compute are searched,
        too. ``part`` is not changed; the result is kept in ``replaced``.
        """
        if part not in replaced:
            if isinstance(part, Derived) and part.node in within:
                replaced[part] = replace(part, node=replace_inputs(part.node))
            elif isinstance(part, Entry):
                replaced[part] = _stored_input(stored, stages, part)
            else:
                values = {f.name: getattr(part, f.name) for f in fields(part)}
                inputs = {n: replace_inputs(v) for n, v in values.items() if isinstance(v, Node)}
                replaced[part] = replace(part, **inputs)
        return replaced[part]

    changes = static_frames.changelog(replace_inputs(node), emit="batch", buckets=stored.buckets)
    return changes.where(F.col(CHANGE) == UPSERT).drop(CHANGE, POSITION)


def stages_of_stored_union(stored: CheckpointStores, node: Node) -> Sequence[Stage]:
    """Return the stages of the union of tables ``node`` if the query stores the union's own rows,
    as it does with ``emit="batch"``: the last one reads the union and has them. Empty if it does
    not, and for any other node.
    """
    if not isinstance(node, Union):
        return ()
    kept = materialize(node)
    if fingerprint(kept) not in stored.stages:
        return ()
    return plan_of([kept], buckets=stored.buckets, emit="batch").stages


def _stored_input(stored: CheckpointStores, stages: Sequence[Stage], entry: Entry) -> Source:
    """Return the input ``entry`` (a source, or a view or result that a stage reads) as a static
    table of its stored rows. The frame has the columns of the entry's row, then ``_timestamp``. Of
    versions, it has each key's last one. ``stages``: those that may store it.

    Raises ``ConfigurationError`` if none of them reads just this entry, but for example a view of
    it, or if none has stored anything yet.
    """
    names = {
        port.source.name
        for stage in stages
        for port in stage.ports
        if port.input is not None and port.input.source == entry
    }
    topologies = {stage.fragment.topology for stage in stages}
    if not names:
        raise ConfigurationError(
            stored.caller,
            f"{entry.name} is not stored as such",
            "Ask for the join that it is made of, by its name",
        )
    stage_stores = [
        stored.store_of(name, lambda stage_store: stage_store.stage.topology in topologies)
        for name in names
    ]
    # There are two stores if the table refers to itself.
    stage_store = min(stage_stores, key=lambda stage_store: not stage_store.store.whole)
    frame = rows_of_store(stored, stage_store)
    if stage_store.store.kind == "versions":
        frame = last_versions(frame, stage_store)
    columns = [quoted(column) for column in (*entry.row.names, TIMESTAMP)]
    return Source(
        name=entry.name,
        key=entry.key,
        values=entry.values,
        frame=frame.select(columns),
        timestamp=F.col(TIMESTAMP),
    )


def _refuse_uncomputable(stored: CheckpointStores, node: Node) -> None:
    """Raise ``ConfigurationError`` if the rows of ``node`` cannot be computed from stored rows
    alone.

    Such a node is a stream, or a join by ``late="history"``, whose changes correct earlier ones. Or
    its stage has windows, or a delta join, which asks an outside store. Or it is a union that is
    not stored. ``stored``: the stores, whose ``caller`` begins the error.
    """
    parts = list(node.walk_stage())
    reasons: dict[str, Any] = {
        "is a stream, of which nothing is left once it is written": node.stream,
        "is looked up, so nothing of it is stored": any(part.eventual for part in parts),
        "corrects the past of its tables, so it has no present rows": node.corrects,
        "is a union, which stores no rows unless it is written with emit='batch'": (
            isinstance(node, Union) and not stages_of_stored_union(stored, node)
        ),
        "depends on stream time: rows go with their windows": any(
            part.windows is not None or isinstance(part, Unwindowed) for part in parts
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ConfigurationError(
                stored.caller,
                f"{node.name} {reason}",
                "Read the tables and groups that it is made of, by their names",
            )
