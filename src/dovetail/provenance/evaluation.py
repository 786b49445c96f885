"""Columns that a step computes by expressions, from the rows that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dovetail.arrays.spark_hash import spark_hash
from dovetail.base.columns import DELETED, EVENT_TIME, SEQUENCE
from dovetail.engine.local import Expressions, LocalRun
from dovetail.physical.planner import plan_of
from dovetail.plan.nodes import Node, Source
from dovetail.plan.types.arrow import arrow_schema


def computed_row(
    node: Node, inputs: Mapping[str, Mapping[str, Any] | None], expressions: Expressions
) -> dict[str, Any] | None:
    """Return the row that a step makes of one row of each input, by column; None if it makes none.

    ``node``: a view, or a join of tables. ``inputs``: the row of each input with all its columns,
    by the field of ``node`` that has the input: ``node`` of a view, ``left`` and then ``right`` of
    a join. None stands for no row. ``expressions``: evaluates Spark expressions. The step runs in
    this process, on these rows alone, at time 0.

    An expression that fails raises Spark's error. But a view that makes dead letters leaves the row
    out, so the result is None. Other errors of the step pass, too.
    """
    sources = {
        name: Source(name=name, key=getattr(node, name).key, values=getattr(node, name).values)
        for name in inputs
    }
    local = LocalRun(
        plan_of([replace(node, **sources)], buckets=1, emit="change"), spark_hash, expressions
    )
    # Right rows come first, so that each left row finds its match.
    for sequence, (name, row) in enumerate(reversed([*inputs.items()])):
        if row is not None:
            local.accept_rows(sources[name], _one_row(sources[name], row, sequence))
    changes = [row for result in local.run_batch(0, 0) for row in result.rows.to_pylist()]
    live = [row for row in changes if not row[DELETED]]
    return None if not live else {name: live[-1][name] for name in node.row.names}


def _one_row(source: Source, row: Mapping[str, Any], sequence: int) -> pa.Table:
    """Return a table of one row in the form in which ``LocalRun`` takes rows of ``source``: its
    columns, ``_event_time`` 0, ``_deleted`` false and ``_sequence``. ``row``: all columns of the
    source. ``sequence``: the row's position in the order of arrival.
    """
    columns = {
        field.name: pa.array([row[field.name]], field.type) for field in arrow_schema(source.row)
    }
    columns[EVENT_TIME] = pa.array([0], pa.int64())
    columns[DELETED] = pa.array([False])
    columns[SEQUENCE] = pa.array([sequence], pa.int64())
    return pa.table(columns)
