"""Running a case: what every micro-batch emits, in process under forced sizes and hashes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from bench.forced import HASHES, forced

from dovetail import testing
from dovetail.base.columns import DELETED, EVENT_TIME, SEQUENCE
from dovetail.engine.local import LocalRun
from dovetail.physical.inputs import Arrival
from dovetail.physical.planner import plan_of
from fuzz import columns, topologies
from fuzz.case import Case


class Change(NamedTuple):
    """One change: ``values`` is None for a tombstone; a stream's row that is withdrawn has them."""

    key: tuple[Any, ...]
    values: tuple[Any, ...] | None
    time: int
    withdrawn: bool = False


Answers: TypeAlias = "list[list[Change]]"


class BulkDriver(testing.Driver):
    """A driver that takes rows as Arrow tables and gives changes as they leave the stage."""

    def read_in_partitions(self) -> None:
        """Inputs have logs of their own, as on Spark without ``sequence=``; called first."""
        given, hash_ = self._root.plan, self._root.hash
        plan = plan_of(
            [self._node],
            buckets=given.buckets,
            emit=given.results[0].stage.fragment.last.emit,
            arrival=Arrival.of(self._node),
        )
        blobs = [buckets.blobs for buckets in self._root.buckets]
        self._root = LocalRun(plan, hash_)
        for buckets, known in zip(self._root.buckets, blobs, strict=True):
            buckets.blobs = known

    def feed(self, input_: Any, rows: pa.Table, partition: int = 0) -> None:
        """Rows of an input's partition for the next micro-batch."""
        self._root.accept_rows(input_.plan, rows, partition)

    def work(self) -> list[Change]:
        """One micro-batch of what was fed."""
        results = self._root.run_batch(self._batches, self._now_us)
        self._batches += bool(results)
        return [change for _, table in results for change in self._plain(table)]

    def work_later(self) -> list[Change]:
        """One micro-batch without rows, after as long as any row waits."""
        self._now_us += 60_000_000
        return self.work()

    def _plain(self, table: pa.Table) -> Iterator[Change]:
        key, values = (
            [columns.plain(table.column(name)) for name in part.names]
            for part in (self._node.key, self._node.values)
        )
        deleted = [bool(d) for d in table.column(DELETED).to_pylist()]
        times = table.column(EVENT_TIME).to_pylist()
        stream = self._node.stream
        rows = zip(*values, strict=True) if values else iter([()] * len(table))
        for one_key, row, gone, time in zip(
            zip(*key, strict=True), rows, deleted, times, strict=True
        ):
            yield Change(one_key, None if gone and not stream else row, time, gone and stream)


def arrived(case: Case) -> Case:
    """The case as one log: where inputs have partitions, of those that a micro-batch has of any
    input the one whose next record is oldest goes first, on a tie the earlier.
    """
    if not case.partitions:
        return case
    tables = {n for n, node in enumerate(case.topology) if node["op"] == "table"}
    parts = case.cut(case.records)
    records = [r for part in parts for r in _merged(part, case.partitions, tables)]
    return replace(case, records=records, partitions=0)


def _merged(part: list[Any], count: int, tables: Collection[int]) -> Iterator[Any]:
    """A table's records with a null in their key are of no use, wherever they come."""
    logs: dict[tuple[int, int], list[Any]] = {}
    for place, record in enumerate(part):
        if record[0] in tables and None in record[1]:
            yield record
            continue
        logs.setdefault((record[0], partition_of(place, count)), []).append(record)
    while logs:
        first = min(logs, key=lambda log: (logs[log][0][2], log))
        yield logs[first].pop(0)
        logs = {log: left for log, left in logs.items() if left}


def partition_of(place: int, count: int) -> int:
    """The partition of a record, by its place in the micro-batch."""
    return (place * 7919 + place // 3) % count


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
    """What each micro-batch of a graph emits; ``tables``: the ``inputs`` of the case."""
    with forced(case.hash, case.limits):
        options: dict[str, Any] = {"emit": case.emit, "key_hash": HASHES[case.hash]}
        topology, given = topologies.build(case.topology)
        driver = BulkDriver(topology, buckets=case.buckets, **options)
        if case.partitions:
            driver.read_in_partitions()
        places = {n: table.column(SEQUENCE).to_numpy() for n, table in tables.items()}
        answers, start = [], 0
        for number, length in enumerate(case.batches):
            if number in case.restarts:
                topology, given = topologies.build(case.topology)
                driver = BulkDriver.restore(topology, driver.snapshot(), **options)  # type: ignore[assignment]
                if case.partitions:
                    driver.read_in_partitions()
            for n, table in tables.items():
                low, high = np.searchsorted(places[n], (start, start + length))
                rows = table.slice(low, high - low)
                for partition in range(max(1, case.partitions)):
                    own = rows
                    if case.partitions:
                        at = partition_of(places[n][low:high] - start, case.partitions)
                        own = rows.filter(pa.array(at == partition))
                    if len(own):
                        driver.feed(given[n], own, partition)
            answers.append(driver.work())
            start += length
        if topologies.aligned(case.topology):
            answers.append(driver.work_later())
        return answers
