"""Running a case: what every micro-batch emits, in process under forced sizes and hashes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeAlias
from unittest import mock

import numpy as np
import pyarrow as pa

import dovetail.runtime.pack
import dovetail.state.run_state
import dovetail.state.runs
import dovetail.state.segment
from dovetail import testing
from dovetail.columns import DELETED, EVENT_TIME, SEQUENCE
from dovetail.kernels.hashing import stable_hash
from fuzz import columns, topologies
from fuzz.case import Case

Hash: TypeAlias = "Callable[[Sequence[pa.Array]], Any]"


class Change(NamedTuple):
    """One change: ``values`` is None for a tombstone; a stream's row that is withdrawn has them."""

    key: tuple[Any, ...]
    values: tuple[Any, ...] | None
    time: int
    withdrawn: bool = False


Answers: TypeAlias = "list[list[Change]]"

LIMITS = {
    "fanout": (dovetail.state.runs, "FANOUT"),
    "segment_bytes": (dovetail.state.run_state, "SEGMENT_BYTES_MAX"),
    "compaction_bytes": (dovetail.state.run_state, "_COMPACTION_BYTES_MIN"),
    "open_segments": (dovetail.state.segment, "_OPEN_SEGMENTS_MAX"),
    "flush_bytes": (dovetail.runtime.pack, "_FLUSH_BYTES"),
}


def _one(keys: Sequence[pa.Array]) -> Any:
    return np.full(len(keys[0]), 7)


def _few(keys: Sequence[pa.Array]) -> Any:
    return stable_hash(keys) % 3


def _low(keys: Sequence[pa.Array]) -> Any:
    """Upper halves alike: combined keys of all foreign keys fall into one range."""
    return stable_hash(keys) & 0xFFFFFFFF


def _high(keys: Sequence[pa.Array]) -> Any:
    """Lower halves alike: combined keys of one foreign key are one."""
    return stable_hash(keys) & ~0xFFFFFFFF


HASHES: dict[str, Hash] = {
    "own": stable_hash,
    "one": _one,
    "few": _few,
    "low": _low,
    "high": _high,
}

_SKETCH = "dovetail.kernels.sketch"  # counts by the hash itself


@contextmanager
def forced(hash_: str, limits: Mapping[str, int]) -> Iterator[None]:
    """Keys are placed by one of ``HASHES``, also between stages; ``limits``: as in ``LIMITS``."""
    with ExitStack() as stack:
        for name, value in limits.items():
            module, constant = LIMITS[name]
            stack.enter_context(mock.patch.object(module, constant, value))
        if hash_ != "own":
            for name, module in list(sys.modules.items()):
                hashes = name.startswith("dovetail.") and name != _SKETCH
                if hashes and getattr(module, "stable_hash", None) is stable_hash:
                    stack.enter_context(mock.patch.object(module, "stable_hash", HASHES[hash_]))
        yield


class BulkDriver(testing.Driver):
    """A driver that takes rows as Arrow tables and gives changes as they leave the stage."""

    def feed(self, input_: Any, rows: pa.Table) -> None:
        """Rows of an input for the next micro-batch, with their place in the common log."""
        self.dropped += self._root.accept(input_.plan, rows)

    def work(self) -> list[Change]:
        """One micro-batch of what was fed."""
        tables = self._root.run(self._batches, self._now_us)
        self._batches += bool(tables)
        return [change for table in tables for change in self._plain(table)]

    def _plain(self, table: pa.Table) -> Iterator[Change]:
        names = [*self._node.key.names]
        held = {**self._columns}
        key = [columns.plain(table.column(held.pop(name))) for name in names]
        values = [columns.plain(table.column(column)) for column in held.values()]
        deleted = [bool(d) for d in table.column(DELETED).to_pylist()]
        times = table.column(EVENT_TIME).to_pylist()
        stream = testing.is_stream(self._node)
        rows = zip(*values, strict=True) if values else iter([()] * len(table))
        for one_key, row, gone, time in zip(
            zip(*key, strict=True), rows, deleted, times, strict=True
        ):
            yield Change(one_key, None if gone and not stream else row, time, gone and stream)


def inputs(case: Case) -> dict[int, pa.Table]:
    """The records of each input, with ``_event_time``, ``_deleted`` and ``_sequence``."""
    found = {}
    for number, node in enumerate(case.topology):
        if node["op"] not in ("table", "stream"):
            continue
        own = [(place, r) for place, r in enumerate(case.records) if r[0] == number]
        made: dict[str, pa.Array] = {}
        for part, fields in ((1, node["key"]), (3, node["values"])):
            for i, (name, type_) in enumerate(fields):
                codes = [None if r[part] is None else r[part][i] for _, r in own]
                made[name] = columns.array(type_, codes)
        made[EVENT_TIME] = pa.array([r[2] for _, r in own], pa.int64())
        made[DELETED] = pa.array([r[4] for _, r in own], pa.bool_())
        made[SEQUENCE] = pa.array([place for place, _ in own], pa.int64())
        found[number] = pa.table(made)
    return found


def in_process(case: Case, tables: Mapping[int, pa.Table]) -> Answers:
    """What each micro-batch of a graph emits."""
    with forced(case.hash, case.limits):
        topology, given = topologies.build(case.topology)
        options: dict[str, Any] = {"emit": case.emit, "key_hash": HASHES[case.hash]}
        driver = BulkDriver(topology, buckets=case.buckets, **options)
        places = {n: table.column(SEQUENCE).to_numpy() for n, table in tables.items()}
        answers, start = [], 0
        for number, length in enumerate(case.batches):
            if number in case.restarts:
                topology, given = topologies.build(case.topology)
                driver = BulkDriver.restore(topology, driver.cut(), **options)  # type: ignore[assignment]
            for n, table in tables.items():
                low, high = np.searchsorted(places[n], (start, start + length))
                if high > low:
                    driver.feed(given[n], table.slice(low, high - low))
            answers.append(driver.work())
            start += length
        return answers
