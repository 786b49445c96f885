"""Operators beside fixed work of numpy and Arrow, so that none gets slower unseen.

Everything runs in this process, without Spark, on one core. A ratio is the fixed work's processor
time over that of a micro-batch. So it hardly depends on the machine, nor on what else runs there.
``floors.json`` has the ratios of this revision. One that falls by more than ``MARGIN`` in each of
``TRIES`` tries ends the command with an error.

Large micro-batches show the cost of rows, small ones that of calls.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import dovetail as dt
from benchmarks import harness
from dovetail import testing
from dovetail.arrays.hashing import stable_hash
from dovetail.base.columns import DELETED, EVENT_TIME, SEQUENCE
from dovetail.engine.local import LocalRun
from dovetail.physical.inputs import Arrival
from dovetail.physical.planner import plan_of
from dovetail.plan.fingerprint import sources_of
from dovetail.testing.inputs import without_frames

FLOORS = Path(__file__).with_name("floors.json")
MARGIN, TRIES = 0.35, 3
"""Wide, since processors differ in how fast they copy and how fast they call."""
BUCKETS = 8
SIZES: Mapping[str, tuple[int, int]] = {"large": (100_000, 3), "small": (1_000, 10)}
"""Rows of each input in a micro-batch, and the number of micro-batches that are timed."""
WARM_UP = 2
DIMENSIONS = 3
_SPAN_US = 1_000
"""The time between two records."""

Topology: TypeAlias = "dt.Table | dt.Stream"
Inputs: TypeAlias = "Mapping[str, Topology]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", action="store_true", help="make these ratios the floors")
    parser.add_argument("--floors", type=Path, default=FLOORS, help="the file of floors")
    names = [f"{name}_{size}" for size in SIZES for name in TOPOLOGIES]
    parser.add_argument("--only", nargs="*", default=names, choices=names, help="by default all")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    floors = {} if arguments.write else json.loads(arguments.floors.read_text())
    ratios = {name: _ratio(name, floors.get(name, 0.0)) for name in arguments.only}
    rows = [("micro-batch", "fixed work over it", "floor")]
    rows += [(name, f"{ratio:.4f}", f"{floors.get(name, 0):.4f}") for name, ratio in ratios.items()]
    harness.show("operators beside fixed work, in one process", rows)
    if arguments.write:
        arguments.floors.write_text(json.dumps(ratios, indent=2) + "\n")
    slower = [name for name, ratio in ratios.items() if ratio < _least(floors.get(name, 0.0))]
    if slower:
        sys.exit(
            f"guard: slower than the floor by more than {MARGIN:.0%}: {', '.join(slower)}. Find "
            "the change that did it, or accept its price: ./dev bench guard --write"
        )
    return ratios


def _ratio(measured: str, floor: float) -> float:
    """Return the best ratio of up to ``TRIES`` tries; the first that is not below the floor.

    ``measured``: a topology and a size, such as ``star_small``.
    """
    name, size = measured.rsplit("_", 1)
    ratio = 0.0
    for _ in range(TRIES):
        ratio = max(ratio, round(fixed_work(size) / micro_batch(name, size), 4))
        if ratio >= _least(floor):
            break
    return ratio


def _least(floor: float) -> float:
    """Return the lowest ratio that is accepted."""
    return floor * (1 - MARGIN)


def micro_batch(name: str, size: str) -> float:
    """Return the processor time of a topology's fastest micro-batch, in seconds."""
    rows, count = SIZES[size]
    feeds = _Feeds(rows)
    topology = TOPOLOGIES[name](feeds.inputs)
    running = _Running.of(topology)
    times = [running.run(feeds, batch) for batch in range(WARM_UP + count)]
    return min(times[WARM_UP:])


def fixed_work(size: str) -> float:
    """Return the processor time of work that never changes, in seconds: sorts, hashes and copies
    of the rows of a micro-batch, in as many parts as there are buckets.
    """
    rows, _ = SIZES[size]
    random = np.random.default_rng(7)
    keys, values = random.integers(0, rows, rows), random.random(rows)
    repeats = 5 if size == "large" else 50
    return min(_timed(lambda: _fixed(keys, values)) for _ in range(repeats))


def _fixed(keys: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> None:
    for part in range(BUCKETS):
        rows = np.flatnonzero(keys % BUCKETS == part)
        table = pa.table({"k": keys[rows], "v": values[rows]})
        order = np.lexsort([np.arange(len(rows)), keys[rows]])
        stable_hash([table.column("k").combine_chunks()])
        table.take(pa.array(order)).sort_by("v")


def _timed(work: Callable[[], Any]) -> float:
    """Return the processor time of some work, in seconds."""
    gc.collect()
    before = process_time()
    work()
    return process_time() - before


class _Feeds:
    """The inputs of all topologies, and the rows of each micro-batch."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        integer = pa.int64()
        references = {f"d{n}": integer for n in range(DIMENSIONS)}
        self._schemas = {
            "orders": {"id": integer, "amount": integer, **references},
            "payments": {"id": integer, "paid": integer},
            **{f"d{n}": {f"d{n}": integer, f"v{n}": integer} for n in range(DIMENSIONS)},
        }
        self.inputs: dict[str, Topology] = {
            name: testing.table(name, key=next(iter(schema)), schema=schema)
            for name, schema in self._schemas.items()
        }
        clicks = {"id": integer, "d0": integer, "amount": integer}
        self._schemas["clicks"] = clicks
        self.inputs["clicks"] = testing.stream("clicks", key="id", schema=clicks)

    def batch(self, name: str, batch: int) -> pa.Table:
        """Return the rows of an input in a micro-batch, with random keys."""
        random = np.random.default_rng((batch, len(name), ord(name[-1])))
        start = batch * self.rows
        sequence = np.arange(start, start + self.rows)
        drawn = {column: random.integers(0, self.rows, self.rows) for column in self._schemas[name]}
        return pa.table(
            drawn
            | {
                EVENT_TIME: sequence * _SPAN_US,
                DELETED: np.zeros(self.rows, np.bool_),
                SEQUENCE: sequence,
            }
        )


@dataclass(frozen=True)
class _Running:
    """A topology with its state."""

    local: LocalRun
    sources: Mapping[str, Any]

    @classmethod
    def of(cls, topology: Topology) -> _Running:
        """Plan a topology as a query does, with ``emit="batch"`` for tables."""
        node = without_frames(topology.plan, {})
        emit = "batch" if isinstance(topology, dt.Table) else "change"
        plan = plan_of([node], buckets=BUCKETS, emit=emit, arrival=Arrival.of(node, one_log=False))
        sources = {source.name: source for source in sources_of([node])}
        return cls(LocalRun(plan, stable_hash), sources)

    def run(self, feeds: _Feeds, batch: int) -> float:
        """Run a micro-batch, and return its processor time in seconds."""
        rows = {name: feeds.batch(name, batch) for name in self.sources}
        return _timed(partial(self._run, rows, batch))

    def _run(self, rows: Mapping[str, pa.Table], batch: int) -> None:
        for name, table in rows.items():
            self.local.accept_rows(self.sources[name], table)
        for _ in self.local.run_batch_lazily(batch, 0):
            pass


def _star(inputs: Inputs) -> Topology:
    joined: Any = inputs["orders"]
    for n in range(DIMENSIONS):
        joined = joined.join(inputs[f"d{n}"], on=f"d{n}")
    return joined  # type: ignore[no-any-return]


def _of_tables(inputs: Any) -> Topology:
    return inputs["orders"].join(inputs["payments"])  # type: ignore[no-any-return]


def _by_foreign_key(inputs: Any) -> Topology:
    return inputs["orders"].join(inputs["d0"], on="d0")  # type: ignore[no-any-return]


def _of_stream(inputs: Any) -> Topology:
    return inputs["clicks"].join(inputs["d0"], on="d0")  # type: ignore[no-any-return]


def _windowed(inputs: Any) -> Topology:
    windows = dt.windows.tumbling("20 seconds")
    counts = inputs["clicks"].group_by("d0").window(windows).agg(amount=dt.sum("amount"))
    return counts.to_table()  # type: ignore[no-any-return]


def _aggregate(inputs: Any) -> Topology:
    return inputs["orders"].group_by("d0").agg(amount=dt.sum("amount"))  # type: ignore[no-any-return]


TOPOLOGIES: Mapping[str, Callable[[Inputs], Topology]] = {
    "table_table": _of_tables,
    "foreign_key": _by_foreign_key,
    "star": _star,
    "stream_table": _of_stream,
    "windowed": _windowed,
    "aggregate": _aggregate,
}
