"""Nexmark: the proportions of its events, and its queries beside DuckDB."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dovetail as dt
from benchmarks.nexmark.check import differences, rows_at_rest
from benchmarks.nexmark.events import FIRST_ID, STEP_US, TURN, events
from benchmarks.nexmark.queries import QUERIES, SIDE_ROWS, Inputs, Topology
from dovetail import testing

COUNT = 9 * TURN * TURN
"""Events over two seconds, in which a hopping window closes."""


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    side = np.arange(SIDE_ROWS)
    return events(0, COUNT) | {"side": pa.table({"side": side, "value": side * 2})}


@pytest.fixture(scope="module")
def changes(
    tables: dict[str, pa.Table], spark: SparkSession
) -> dict[str, tuple[Topology, list[testing.Change]]]:
    """Each query's topology and changes. One driver runs all of them."""
    inputs = Inputs(
        testing.table("side", key="side", schema=tables["side"].schema),
        testing.table("persons", key="id", schema=tables["persons"].schema),
        testing.table("auctions", key="id", schema=tables["auctions"].schema),
        testing.stream("bids", key="bid", schema=tables["bids"].schema),
        testing.table("bid_rows", key="bid", schema=tables["bids"].schema),
    )
    topologies = {name: query.topology(inputs) for name, query in QUERIES.items()}
    driver = testing.Driver(*topologies.values(), spark=spark)
    rows = {name: table.to_pylist() for name, table in tables.items()}
    rows["bid_rows"] = rows["bids"]
    with driver.batch():
        for field in fields(Inputs):
            times = [row.get("time", 0) for row in rows[field.name]]
            driver.pipe(getattr(inputs, field.name), rows[field.name], timestamp=times)
    return {name: (topology, driver.read(topology)) for name, topology in topologies.items()}


def test_events_are_of_the_specified_proportions(tables: dict[str, pa.Table]) -> None:
    counts = [tables[name].num_rows for name in ("persons", "auctions", "bids")]
    assert counts == [COUNT // 50, 3 * COUNT // 50, 46 * COUNT // 50]
    for name, key in (("persons", "id"), ("auctions", "id"), ("bids", "bid")):
        ids = tables[name][key].to_numpy()
        assert np.all(np.diff(ids) > 0)
        assert ids[0] == (4 if name == "bids" else FIRST_ID)
    for key, hot in (("auction", 1 / 2), ("bidder", 3 / 4)):
        ids = tables["bids"][key].to_numpy()
        popular = (ids - FIRST_ID) % 100 == (key == "bidder")
        assert popular.mean() == pytest.approx(hot + (1 - hot) / 100, abs=0.02)
    time = tables["bids"]["time"].cast(pa.int64()).to_numpy()
    assert np.all(np.diff(time) % STEP_US == 0)
    price = tables["bids"]["price"].to_numpy()
    assert price.min() >= 100
    assert price.max() <= 100_000_000


def test_events_are_drawn_anew_alike_and_go_on_where_others_end() -> None:
    assert events(0, 4 * TURN) == events(0, 4 * TURN)
    later = events(4 * TURN, TURN)
    assert later["persons"]["id"].to_pylist() == [FIRST_ID + 4]
    assert later["bids"]["bid"].to_pylist() == list(range(4 * TURN + 4, 5 * TURN))


@pytest.mark.parametrize("name", QUERIES)
def test_rows_at_rest_are_those_of_sql(
    name: str,
    tables: dict[str, pa.Table],
    changes: dict[str, tuple[Topology, list[testing.Change]]],
) -> None:
    topology, emitted = changes[name]
    last = {
        number if isinstance(topology, dt.Stream) else tuple(change.key.values()): change
        for number, change in enumerate(emitted)
    }
    expected = rows_at_rest(QUERIES[name], tables)
    assert len(expected) > 0
    at_rest = [
        {**change.key, **change.values} for change in last.values() if change.values is not None
    ]
    actual = pa.Table.from_pylist(at_rest, schema=expected.schema)
    assert differences(actual, expected) == {}
