"""A Delta table of versions in which late changes correct the past: what it is, however changes are
ordered and cut, and whatever is killed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import delta_rows
import pytest
from bench.parameters import slow_after
from delta_changes import Change, Place, Rows, Versions, changelog, versions
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt
from dovetail.base.columns import quoted
from dovetail.errors import PlanError
from dovetail.io.sinks.delta import corrections, tables
from dovetail.platform import delta_tables, delta_upsert, sessions


def model(changes: Sequence[Change]) -> Rows:
    """The last change of each key and second, in the order of time: an upsert holds until the next
    one. A delete that follows no upsert is a row of no length.
    """
    points: dict[Any, dict[int, Change]] = {}
    for change in changes:
        points.setdefault(change.key, {})[change.second] = change
    rows: Rows = []
    for key, by_second in points.items():
        before: Change | None = None
        seconds = sorted(by_second)
        for second, after in zip(seconds, [*seconds[1:], None], strict=True):
            change = by_second[second]
            if not change.gone:
                rows.append((key, change.value, second, after))
            elif before is None or before.gone:
                rows.append((key, None, second, second))
            before = change
    return sorted(rows, key=repr)


def test_the_model_by_hand() -> None:
    late = [Change("a", 10, 1), Change("a", 30, 3), Change("a", 20, 2)]
    assert model(late) == [("a", 1, 10, 20), ("a", 2, 20, 30), ("a", 3, 30, None)]
    assert model([*late, Change("a", 25, None, gone=True), Change("a", 10, 4)]) == [
        *(("a", 2, 20, 25), ("a", 3, 30, None), ("a", 4, 10, 20))
    ]
    first = [Change("b", 9, None, gone=True), Change("b", 5, None, gone=True)]
    assert model(first) == [("b", None, 5, 5), ("b", None, 9, 9)]
    assert model([*first, Change("b", 7, 1)]) == [("b", 1, 7, 9), ("b", None, 5, 5)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "cuts", "few", "nulls", "key"),
    slow_after(
        1,
        [
            (0, 1, True, True, "id"),
            (1, 2, False, False, "a`b.c"),
            (2, 2, False, True, "until"),
            (3, 2, True, True, "id"),
        ],
    ),
)
def test_versions_lie_where_their_times_are_however_changes_come(
    delta_spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    cuts: int,
    few: bool,
    nulls: bool,
    key: str,
) -> None:
    """Times are drawn without order, and repeat; deletes come first and twice. The last micro-batch
    is merged twice, with nothing that keeps the second merge from its work.
    """
    if not few:
        monkeypatch.setattr(delta_upsert, "ROWS_MAX", 0)
    rng = random.Random(seed)
    keys = [*"abcd", None if nulls else "e"]
    changes = [
        Change(rng.choice(keys), rng.randrange(25), *((None, True) if gone else (at,)))
        for at in range(100)
        for gone in [rng.random() < 0.35]
    ]
    declared = f"{quoted(key)} string, v long"
    to = Versions.empty(delta_spark, tmp_path / "table", declared)

    batches = [*pairwise([0, *sorted(rng.sample(range(1, 100), cuts)), 100])]
    for first, last in [*batches, batches[-1]]:
        frame = changelog(delta_spark, changes[first:last], first, declared)
        corrections.merge_corrections(to.session, frame, to.name, to.schema, [key], nulls=nulls)
        assert versions(delta_rows.read(to.path), key) == model(changes[:last])
    frame = changelog(delta_spark, changes, 0, declared)
    whole = corrections.corrected_versions(frame, to.schema, [key])
    assert versions(whole.toArrow(), key) == model(changes)


@pytest.mark.long
def test_a_value_that_another_writer_changes_meanwhile_stays_changed(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = Versions.empty(delta_spark, tmp_path / "table", "id string, v long")

    def merge(first: int, *changes: Change) -> None:
        frame = changelog(delta_spark, changes, first, "id string, v long")
        corrections.merge_corrections(to.session, frame, to.name, to.schema, ["id"], nulls=False)

    merge(0, Change("a", 1, 10), Change("a", 5, 15))

    @contextmanager
    def stored_frame(rows: DataFrame) -> Iterator[DataFrame]:
        """Store rows, and change the table once the actions on it are known."""
        with sessions.stored_frame(rows) as stored_rows:
            if "_position" not in rows.columns:
                delta_spark.sql(f"UPDATE {to.name} SET v = NULL WHERE v = 10")
            yield stored_rows

    monkeypatch.setattr(corrections, "stored_frame", stored_frame)
    merge(2, Change("a", 3, 13))
    assert versions(delta_rows.read(to.path)) == [
        ("a", 13, 3, 5),
        ("a", 15, 5, None),
        ("a", None, 1, 3),
    ]


def written(
    spark: SparkSession, folder: Path, checkpoint: str, *coming: Change, **options: Any
) -> Rows:
    """The table after a query of the checkpoint has read these changes, too."""
    place = Place(spark, folder / checkpoint)
    place.come(*coming)
    place.target = folder / "target"
    place.run(**options)
    return place.stored()


@pytest.mark.long
def test_a_query_corrects_versions_that_another_one_has_written_in_order(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    run = partial(written, delta_spark, tmp_path)
    in_order = [Change("a", 10, 1), Change("a", 30, 3), Change("b", 5, 1)]
    assert run("first", *in_order) == model(in_order)
    late = [
        *(Change("a", 20, 2), Change("b", 40, None, gone=True), Change("b", 3, 0)),
        *(Change("c", 50, None, gone=True), Change("a", 30, 4)),
    ]
    assert run("second", *late, existing="adopt", late="correct") == [
        *(("a", 1, 10, 20), ("a", 2, 20, 30), ("a", 4, 30, None)),
        *(("b", 0, 3, 5), ("b", 1, 5, 40), ("c", None, 50, 50)),
    ]


@pytest.mark.slow
def test_a_query_starts_again_and_replaces(delta_spark: SparkSession, tmp_path: Path) -> None:
    run = partial(written, delta_spark, tmp_path)
    first = [Change("a", 10, 1), Change("c", 50, None, gone=True)]
    assert run("first", *first, late="correct") == [("a", 1, 10, None), ("c", None, 50, 50)]
    assert run("first", Change("c", 45, 1), late="correct") == [
        *(("a", 1, 10, None), ("c", 1, 45, 50))
    ]
    replaced = [Change("a", 9, 1), Change("a", 7, 2), Change("d", 1, None, gone=True)]
    assert run("second", *replaced, existing="replace", late="correct") == [
        *(("a", 1, 9, None), ("a", 2, 7, 9), ("d", None, 1, 1))
    ]


COMMITS: list[tuple[Any, str]] = [
    (corrections, "merge_corrections"),
    (delta_tables, "create"),
    (delta_tables, "set_property"),
    (tables, "compact"),
]
"""The functions that each make a commit of a micro-batch, if there is anything to do."""


class Killer:
    """Ends the process, in the way of an error, before or after one of the calls of ``COMMITS``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.at: tuple[int, bool] | None = None
        for owner, name in COMMITS:
            monkeypatch.setattr(owner, name, self._killing(getattr(owner, name), name))

    def _killing(self, called: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> None:
            number = len(self.calls)
            self.calls.append(name)
            if self.at == (number, False):
                raise RuntimeError("killed")
            called(*arguments, **options)
            if self.at == (number, True):
                raise RuntimeError("killed")

        return call


@pytest.mark.slow
@pytest.mark.parametrize(("existing", "commits", "merges"), [("fail", 6, 3), ("replace", 4, 2)])
def test_a_query_that_is_killed_around_any_commit_has_the_history_of_an_unbroken_one(
    delta_spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    existing: str,
    commits: int,
    merges: int,
) -> None:
    """Its content, and the operations of its log. It is killed before and after each commit."""
    killer = Killer(monkeypatch)

    def operations(name: str, at: tuple[int, bool] | None) -> list[str]:
        place = Place(delta_spark, tmp_path / name)
        place.come(Change("a", 10, 1), Change("b", 5, 2), Change("a", 30, 3))
        place.come(Change("a", 20, 4), Change("b", 7, None, True), Change("c", 9, None, True))
        place.come(Change("a", 25, None, True), Change("c", 8, 5), Change("b", 5, 6))
        if existing == "replace":
            delta_rows.write(place.target, [(0,), (1,)], "id long")
        run = partial(place.run, existing=existing, late="correct", compact_every=2)
        killer.calls, killer.at = [], at
        if at is not None:
            with suppress(RuntimeError, StreamingQueryException):
                run()
            assert len(killer.calls) == at[0] + 1, "it was not killed"
            killer.at = None
        run()
        assert place.stored() == model(place.changes)
        return delta_rows.operations(place.target)

    unbroken, calls = operations("unbroken", None), killer.calls
    assert len(calls) == commits
    assert unbroken.count("MERGE") == merges
    for at, after in product(range(commits), (False, True)):
        assert operations(f"{at} {after}", (at, after)) == unbroken, (calls[at], after)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "late='correct' is given without history=True"),
        ({"history": True, "track": "v"}, "late='correct' is given with track="),
    ],
)
def test_corrections_need_all_points_of_a_history(options: Any, problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        dt.to_delta("path", late="correct", **options)
