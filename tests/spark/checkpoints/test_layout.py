"""What a checkpoint's file says of stores, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import testing
from dovetail.aggregates.aggregate import Aggregate
from dovetail.aggregates.user_defined import UserDefined
from dovetail.api.tables import Table
from dovetail.physical.planner import plan_of
from dovetail.plan.fingerprint import describe_input
from dovetail.spark.checkpoints.stage_layout import _KERNELS, stages_as_json, stages_of_json

COLUMNS = {
    "k": pa.string(),
    "v": pa.int64(),
    "x": pa.float64(),
    "d": pa.decimal128(10, 2),
    "at": pa.timestamp("us"),
    "s": pa.struct([("a", pa.list_(pa.timestamp("us", "UTC")))]),
    "s2": pa.struct([("a", pa.struct([("b", pa.decimal128(5, 1))]))]),
}
CALLS = {
    "count": dt.count(),
    "sum": dt.sum("v"),
    "float_sum": dt.sum("x"),
    "mean": dt.mean("d"),
    "float_mean": dt.mean("x"),
    "min": dt.min("at"),
    "max": dt.max("d"),
    "list": dt.collect_list("s"),
    "set": dt.collect_set("d"),
    "top": dt.top(3, "s2", by="d"),
    "lowest": dt.top(3, ["at", "s2"], by="x", descending=False),
    "number": dt.count_distinct("s"),
}
OF_STREAMS = {
    "first": dt.first("s"),
    "last": dt.last("at"),
    "distinct": dt.approx_count_distinct("d"),
}


def topologies() -> dict[str, Table]:
    table = testing.table("t", key="k", schema=COLUMNS)
    stream = testing.stream("s", key="k", schema=COLUMNS)
    return {
        "table": table.group_by("k").agg(**CALLS),
        "stream": stream.group_by("k").agg(**CALLS, **OF_STREAMS),
    }


@pytest.mark.parametrize("kind", topologies())
def test_stores_are_read_as_they_were_written(kind: str) -> None:
    nodes = [topologies()[kind].plan]
    plan = plan_of(nodes, buckets=2, emit="change")
    (read,) = [
        one.stores["groups"]
        for one in stages_of_json(
            json.loads(json.dumps(stages_as_json(plan.stages, partial(describe_input, nodes))))
        )
        if "groups" in one.stores
    ]
    assert read == plan.stages[-1].fragment.stores["groups"]
    assert len(read.results) == len(CALLS) + len(OF_STREAMS) * (kind == "stream")


def kinds(of: type[Aggregate]) -> Iterator[type[Aggregate]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


def test_every_aggregate_has_its_name() -> None:
    concrete = {kind for kind in kinds(Aggregate) if not kind.__abstractmethods__}
    assert {*_KERNELS.values()} == concrete - {UserDefined}
