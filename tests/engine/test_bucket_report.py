"""A report of a bucket counts its changes as they are taken, and is read again as it was."""

from __future__ import annotations

from dataclasses import fields

import pyarrow as pa

from dovetail.base.columns import DELETED, DUE
from dovetail.engine.batches.pack_time import UNKNOWN, PackTime, PackTimer
from dovetail.engine.bucket_report import BucketReport
from dovetail.engine.pack import PACKED, PackedRow, Tag, pack_table, unpack_piece
from dovetail.operators.counts import Counts
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.queue import QueueState, count_waiting_rows
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache


def rows(*deleted: bool) -> pa.Table:
    return pa.table({DELETED: pa.array(deleted, pa.bool_())})


def test_changes_are_counted_as_they_are_taken() -> None:
    report = BucketReport.empty([None, 7])
    tables = [rows(False, True), rows()]
    taken = report.count_changes(iter(tables))
    assert (report.changes, report.deletes) == (0, 0)
    assert next(taken) is tables[0]
    assert (report.changes, report.deletes) == (2, 1)
    assert [*taken] == [tables[1]]
    assert (report.changes, report.deletes) == (2, 1)


def test_rows_and_tombstones_of_slices_add_up() -> None:
    report = BucketReport.empty([None, None])
    report.add_rows([rows(False, True, True), rows()])
    report.add_rows([rows(False), pa.concat_tables([rows(True), rows(False)])])
    assert report.rows == [4, 2]
    assert report.tombstones == [2, 1]


def test_pairs_are_those_of_the_names() -> None:
    report, counts = BucketReport.empty([None]), Counts()
    counts.pairs = {"orders": (2, 1), "payments": (0, 4)}
    report.add_pairs(counts, ["payments", "orders"])
    assert (report.matched, report.unmatched) == ([0, 2], [4, 1])


def test_times_of_packing_add_up() -> None:
    report = BucketReport.empty([None])
    report.add_times(50, 7, [PackTime(1, 2, 30), PackTime(0, 0, 40), PackTime(10, 20, 20)])
    assert (report.read_us, report.pack_us, report.packed_us) == (11, 22, 40)
    assert (report.began_us, report.receive_us) == (50, 7)


def test_the_text_has_all_of_it() -> None:
    lists = [[5, 6], [None, -8], [1, 2], [3], [4], [9, 10]]
    numbers = range(len(fields(BucketReport)) - len(lists))
    report = BucketReport(*lists, *numbers)
    assert BucketReport.from_text(report.as_text()) == report


def test_the_text_is_short() -> None:
    many, time_us = [10**6, 10**6], 10**15
    report = BucketReport(many, [time_us, time_us], many, many, many, many, 10**7, 10**9)
    report.changes = report.deletes = 10**6
    report.packed_us = report.began_us = report.ended_us = time_us
    report.work_us, report.state_us, report.state_calls = 10**6, 10**6, 10**3
    assert len(report.as_text()) < 250


def test_rows_wait_until_they_are_due() -> None:
    schema = pa.schema([(name, pa.int64()) for name in (DUE, "_event_time", "_hash")])
    blobs, cache = MemoryBlobs(), SegmentCache()
    queue = QueueState(schema, Runs(), blobs, cache, taken_us=0)
    for due in ([10, 20, 20, 30], [15, 40]):
        queue.append(pa.table([due, due, due], schema=schema))
    opened = []

    def waiting(taken_us: int) -> int:
        opened.clear()
        return count_waiting_rows(
            queue.runs, taken_us, lambda s: opened.append(s) or cache.open(s, blobs.get)
        )

    assert [(waiting(us), len(opened)) for us in (5, 10, 20, 35, 40)] == [
        *((6, 0), (5, 1), (2, 2), (1, 1), (0, 0))
    ]


def test_packing_tells_its_time_once() -> None:
    timer, tag = PackTimer(), Tag(1, 0, 0, 0, runs=rows(True), stairs=rows(False))
    batch = pack_table(None, [5, 6, 7], tag)
    batches = [*timer.time_packing(timer.time_reading([batch, batch]))]
    assert [told.schema for told in batches] == [PACKED] * 2
    for told in batches:
        first, *others = (unpack_piece(row) for row in PackedRow.from_rows(told))
        assert 0 <= first.time.read_us < 1_000_000
        assert 0 <= first.time.pack_us < 1_000_000
        assert {piece.time[:2] for piece in others} == {UNKNOWN[:2]}
        assert {piece.time.packed_us for piece in (first, *others)} == {first.time.packed_us}
        assert (first.runs, first.stairs) == (rows(True), rows(False))
        assert told.drop_columns("facts") == batch.drop_columns("facts")
    assert [*timer.time_packing(timer.time_reading([]))] == []


def test_packing_tells_how_long_it_took() -> None:
    """The clock of the timer is the only thing that moves."""
    batch = pack_table(None, [5, 6], Tag(1, 0, 0, 0))
    timer = PackTimer()
    timer._read_ns, timer._pack_ns = 3_000_000, 5_000_000
    (told,) = timer.time_packing([batch])
    first, other = (unpack_piece(row) for row in PackedRow.from_rows(told))
    assert first.time.read_us == 3000
    assert 2000 <= first.time.pack_us < 1_000_000
    assert other.time[:2] == (0, 0)
