"""A batch that is worked on in slices gives what it gives at once: the truth tables of all
operators, every batch cut into slices of a row or of a key.

By arrival the results are the same in the same order. Where slices are made by key, they are the
same for each key.
"""

from __future__ import annotations

from typing import Any

import answers
import fk_runners
import matrix_runners
import pytest
import runners
import test_foreign_key as foreign
import test_matrix as matrix
import test_truth_tables as tables
import test_windowed as windowed
import window_runners

from dovetail.runtime import slices, stage


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of more than a row is cut."""
    monkeypatch.setattr(stage, "SLICE_BYTES", 1)


WHOLE = 10**6


@pytest.mark.parametrize(("table", "join"), tables.per_join(tables.CHANGE))
def test_tables(table: Any, join: str) -> None:
    found = runners.driver(table.joins[join], runners.cut(table.records, WHOLE))
    assert found == [answers.flat(table.expected[join])]


@pytest.mark.parametrize(("table", "join"), tables.per_join(tables.BATCH))
def test_the_last_changes_of_tables(table: Any, join: str) -> None:
    found = runners.driver(table.joins[join], table.batches, emit="batch")
    expected = table.expected[join]
    assert [*map(answers.by_key, found)] == [*map(answers.by_key, expected)]


@pytest.mark.parametrize(("table", "join"), matrix.per_join(matrix.TABLES))
def test_streams_and_histories(table: Any, join: str) -> None:
    found = matrix_runners.driver(table.joins[join], runners.cut(table.records, WHOLE))
    assert found == [answers.flat(table.expected[join])]


@pytest.mark.parametrize(("table", "join"), windowed.per_join(windowed.CHANGE))
def test_windows(table: Any, join: str) -> None:
    found = window_runners.driver(table.joins[join], runners.cut(table.records, WHOLE))
    assert found == windowed.parts_of(table.expected[join], WHOLE)


@pytest.mark.parametrize(
    ("table", "join"),
    [
        case
        for case in answers.per_join(foreign.CHANGE)
        if not foreign.kind_of(case.values[0].joins[case.values[1]])[1]
    ],
)
def test_foreign_keys(table: Any, join: str) -> None:
    expected = answers.flat(table.expected[join])
    batches = runners.cut(table.records, WHOLE)
    (found,) = fk_runners.driver(table.joins[join], batches, buckets=2)
    assert answers.by_key(found) == answers.by_key(expected)


@pytest.mark.parametrize(("table", "join"), answers.per_join(foreign.BATCH))
def test_the_last_changes_of_foreign_keys(table: Any, join: str) -> None:
    found = fk_runners.driver(table.joins[join], table.batches, emit="batch", buckets=2)
    assert foreign.ordered(found) == foreign.ordered(table.expected[join])


def test_batches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests would pass without any slices: there are."""
    made = []
    jobs = slices.Slices.jobs

    def counted(self: slices.Slices) -> Any:
        for made_job in jobs(self):
            made.append(made_job)
            yield made_job

    monkeypatch.setattr(slices.Slices, "jobs", counted)
    table, join = tables.per_join(tables.CHANGE)[0].values
    runners.driver(table.joins[join], runners.cut(table.records, WHOLE))
    assert len(made) > 2
