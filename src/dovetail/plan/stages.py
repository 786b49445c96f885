"""From nodes to stages: which joins run together, on which inputs, with which state.

Joins on one key need one shuffle and one copy of each table's state, so a tree of primary-key joins
is one stage, whatever its depth; a table that it reads twice is an input once.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from dovetail.columns import DELETED, EVENT_TIME, HASH
from dovetail.errors import PlanError
from dovetail.kernels.table_join import Join, Leaf, Tree
from dovetail.plan.nodes import Node, Source, TableJoin, distinct_sources
from dovetail.plan.spec import Emit, SourceSpec, StageSpec


@dataclass(frozen=True)
class Stage:
    """A node's stage: its distinct inputs, in the order of ``spec.sources``."""

    node: Node
    inputs: tuple[Source, ...]
    spec: StageSpec


def plan_stage(node: Node, *, buckets: int, emit: Emit) -> Stage:
    """The stage that computes a node."""
    if emit not in ("change", "batch"):
        raise PlanError(node.name, f"emit={emit!r} is not a mode", "Use 'change' or 'batch'")
    if buckets < 1:
        raise PlanError(node.name, f"buckets={buckets}", "Use at least 1")
    inputs = distinct_sources(node)
    logs = [s.name for s in inputs if s.sequence is not None and s.log_partition is None]
    if logs and len(logs) < len(inputs):
        raise PlanError(
            node.name,
            f"sequence= without log_partition= orders the rows of all tables, but only "
            f"{', '.join(logs)} has it",
            "Give every table its position in the shared log, or a log_partition= to those that "
            "have a log of their own",
        )
    spec = StageSpec(
        topology=fingerprint(node),
        buckets=buckets,
        sources=tuple(
            SourceSpec(
                name=name,
                schema=stored_schema(source),
                sequence=source.sequence is not None,
                log_partition=source.log_partition is not None,
            )
            for source, name in zip(inputs, unique_names(inputs), strict=True)
        ),
        keys=len(node.key.fields),
        tree=_tree(node, inputs),
        emit=emit,
        visible=_computes(node),
    )
    return Stage(node, tuple(inputs), spec)


def unique_names(inputs: Sequence[Source]) -> list[str]:
    """The tables' names; where several share one, the later ones are numbered."""
    names = [source.name for source in inputs]
    seen = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name}#{n + 1}" if n else name for name, n in zip(names, seen, strict=True)]


def stored_schema(source: Source) -> pa.Schema:
    """The Arrow columns in which a table's rows travel and are stored, all nullable, in UTC."""
    internal = [
        StructField(HASH, LongType()),
        StructField(EVENT_TIME, LongType()),
        StructField(DELETED, BooleanType()),
    ]
    return arrow_schema(StructType([*internal, *source.key.fields, *source.values.fields]))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's Arrow types for these columns, timestamps in UTC, nullable, without metadata."""
    plain = StructType([StructField(f.name, f.dataType, True) for f in schema])
    # Spark 4.2 asks for the time zone; 4.1 knows only UTC.
    options: dict[str, Any] = (
        {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    )
    return to_arrow_schema(plain, **options)


def fingerprint(node: Node) -> str:
    """A short hash of all that gives stored state its meaning: types, joins, and which of its
    tables are one table; not their names.
    """
    text = json.dumps(describe(node), separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(node: Node) -> dict[str, Any]:
    """The part of a node that stored state depends on, as plain data."""
    return _describe(node, distinct_sources(node))


def _describe(node: Node, inputs: Sequence[Source]) -> dict[str, Any]:
    if isinstance(node, Source):
        return {
            "table": inputs.index(node) + 1,
            "key": [f.dataType.simpleString() for f in node.key],
            "values": [[f.name, f.dataType.simpleString()] for f in node.values],
        }
    return {
        "join": node.how,
        "left": _describe(node.left, inputs),
        "right": _describe(node.right, inputs),
    }


def _computes(node: Node) -> bool:
    """Whether a selection has expressions, which see which sides are there."""
    return isinstance(node, TableJoin) and (
        any(s.column is not None for s in node.select)
        or _computes(node.left)
        or _computes(node.right)
    )


def _tree(node: Node, inputs: list[Source]) -> Tree:
    if isinstance(node, Source):
        return Leaf(next(i for i, source in enumerate(inputs) if source is node))
    return Join(_tree(node.left, inputs), _tree(node.right, inputs), node.how)
