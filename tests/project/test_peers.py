"""The benchmark of peers: its files, and its topologies beside DuckDB's answers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from benchmarks.nexmark.check import differences, queried
from benchmarks.peers import data
from benchmarks.peers.contest import in_memory
from benchmarks.peers.topologies import TOPOLOGIES
from dovetail import testing

ORDERS = 200


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    directory = tmp_path_factory.mktemp("peers")
    data.write(directory, ORDERS, files=3)
    return {name: in_memory(Path(directory / name)) for name in data.COLUMNS}


def test_keys_are_unique_and_half_of_the_payments_have_an_order(
    inputs: dict[str, pa.Table],
) -> None:
    keys = {name: table.column(0).to_pylist() for name, table in inputs.items()}
    assert {name: len(set(values)) for name, values in keys.items()} == {
        "orders": ORDERS,
        "customers": ORDERS // 10,
        "payments": ORDERS,
    }
    assert len(set(keys["orders"]) & set(keys["payments"])) == ORDERS // 2
    assert set(inputs["orders"]["customer"].to_pylist()) <= set(keys["customers"])
    assert data.records(("orders", "customers"), ORDERS) == ORDERS + ORDERS // 10


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_rows_at_rest_are_those_of_sql(
    name: str, inputs: dict[str, pa.Table], spark: SparkSession
) -> None:
    topology = TOPOLOGIES[name]
    tables = {
        kind: testing.table(kind, key=data.COLUMNS[kind][0], schema=inputs[kind].schema)
        for kind in topology.inputs
    }
    result = topology.ours(tables)
    driver = testing.Driver(result, spark=spark)
    for kind, table in tables.items():
        driver.pipe(table, inputs[kind].to_pylist(), timestamp=0)
    last = {tuple(change.key.values()): change for change in driver.read(result)}
    expected = queried(topology.sql, inputs)
    at_rest = [{**c.key, **c.values} for c in last.values() if c.values is not None]
    assert len(at_rest) == len(expected) > 0
    actual = pa.Table.from_pylist(at_rest, schema=expected.schema)
    assert differences(actual, expected) == {}
