"""Reports count what passes, and come back from their text."""

from __future__ import annotations

import pyarrow as pa

from dovetail.base.columns import DELETED
from dovetail.engine.bucket_report import BucketReport


def test_changes_are_counted_as_they_are_taken() -> None:
    report = BucketReport([0, 0], [None, 7])
    tables = [pa.table({DELETED: [False, True]}), pa.table({DELETED: pa.array([], pa.bool_())})]
    taken = report.watching(iter(tables))
    assert (report.changes, report.deletes) == (0, 0)
    assert next(taken) is tables[0]
    assert (report.changes, report.deletes) == (2, 1)
    assert [*taken] == [tables[1]]
    assert (report.changes, report.deletes) == (2, 1)


def test_rows_of_slices_add_up() -> None:
    report = BucketReport([0, 0], [None, None])
    report.add_rows([3, 0])
    report.add_rows([1, 2])
    assert report.rows == [4, 2]


def test_the_text_has_all_of_it() -> None:
    report = BucketReport([1], [None], 2, 1, 300, 200, 4)
    assert BucketReport.read(report.as_text()) == report


def test_the_text_is_short() -> None:
    report = BucketReport([10**6, 10**6], [10**15, 10**15], 10**6, 10**6, 10**7, 10**7, 10**3)
    assert len(report.as_text()) < 120
