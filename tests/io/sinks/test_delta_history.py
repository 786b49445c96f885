"""A Delta table with all versions of a table's rows: what they are, whatever the cuts and kills."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import delta_rows
import pytest
from bench.parameters import slow_after
from delta_changes import Change, Place, Rows, Versions, changelog, second_of, versions
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import dovetail as dt
from dovetail.base.columns import quoted
from dovetail.io.sinks.delta import tables
from dovetail.io.sinks.delta import versions as delta_history
from dovetail.platform import delta_tables, delta_upsert


def tracked(value: int | None) -> int | None:
    """What a value has in the column that is tracked: 0, 1 or null."""
    return None if value is None or value % 7 == 0 else value % 5 // 3


def model(changes: Sequence[Change], *, tracks: bool = False) -> Rows:
    """One change after the other: each key's versions, of which only the last one may be open."""
    histories: dict[Any, list[list[Any]]] = {}
    for change in changes:
        own = histories.setdefault(change.key, [])
        time = change.second
        stays = tracks and own and own[-1][2] is None and not change.gone
        if stays and tracked(own[-1][0]) == tracked(change.value):
            own[-1][0] = change.value
            continue
        if own:
            _, start, end = own[-1]
            time = max(time, start if end is None else end)
            if end is None and time == start:
                own.pop()
            elif end is None:
                own[-1][2] = time
        if not change.gone:
            own.append([change.value, time, None])
    return sorted(((key, *version) for key, own in histories.items() for version in own), key=repr)


def test_the_model_by_hand() -> None:
    assert model(
        [
            *(Change("a", 10, 1), Change("a", 20, 2), Change("a", 20, 3), Change("a", 5, 4)),
            *(Change("a", 30, None, gone=True), Change("a", 25, 5), Change("a", 40, 6)),
            *(Change("b", 1, None, gone=True), Change("b", 9, 1), Change("b", 8, None, gone=True)),
            Change("b", 7, 2),
        ]
    ) == [
        ("a", 1, 10, 20),
        ("a", 4, 20, 30),
        ("a", 5, 30, 40),
        ("a", 6, 40, None),
        ("b", 2, 7, None),
    ]


@pytest.mark.parametrize(
    ("seed", "cuts", "few", "nulls", "key", "track"),
    slow_after(
        1,
        [
            (0, 1, True, True, "id", ["t"]),
            (1, 2, True, False, "a`b.c", []),
            (2, 2, False, True, "stored", []),
            (3, 2, False, True, "id", ["t"]),
            (4, 2, True, True, "id", ["t"]),
        ],
    ),
)
def test_versions_are_those_of_the_changelog_however_it_is_cut(
    delta_spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    cuts: int,
    few: bool,
    nulls: bool,
    key: str,
    track: list[str],
) -> None:
    """Times repeat and go back, deletes come twice and first; the last commit is tried twice."""
    if not few:
        monkeypatch.setattr(delta_upsert, "ROWS_MAX", 0)
    rng = random.Random(seed)
    keys = [*"abcde", None if nulls else "f"]
    changes = [
        Change(rng.choice(keys), rng.randrange(12) + at // 6, at, rng.random() < 0.35)
        for at in range(90)
    ]
    declared, tracks = f"{quoted(key)} string, v long, t long", bool(track)
    to = Versions.empty(delta_spark, tmp_path / "table", declared)

    def frame(first: int, last: int) -> DataFrame:
        coming = changes[first:last]
        return changelog(delta_spark, coming, first, declared, lambda v: (v, tracked(v)))

    batches = [*enumerate(pairwise([0, *sorted(rng.sample(range(1, 90), cuts)), 90]))]
    for number, (first, last) in [*batches, batches[-1]]:
        with delta_tables.temporary_settings(
            to.session, delta_tables.commit_once_settings("query", number)
        ):
            delta_history.merge_versions(
                *(to.session, frame(first, last), to.name, to.schema, [key]),
                nulls=nulls,
                track=track,
            )
        assert versions(delta_rows.read(to.path), key) == model(changes[:last], tracks=tracks)
    # A commit for each, and the first.
    assert len(delta_rows.operations(to.path)) == len(batches) + 1
    whole = delta_history.new_versions(frame(0, 90), to.schema, [key], track)
    assert versions(whole.toArrow(), key) == model(changes, tracks=tracks)


def test_a_version_that_another_writer_deletes_meanwhile_does_not_come_back(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = Versions.empty(delta_spark, tmp_path / "table", "id string, v long")

    def merge(first: int, *changes: Change) -> None:
        frame = changelog(delta_spark, changes, first, "id string, v long")
        delta_history.merge_versions(to.session, frame, to.name, to.schema, ["id"], nulls=False)

    merge(0, Change("a", 1, 10), Change("b", 1, 20))
    replace = delta_tables.replace

    def replace_late(*arguments: Any) -> None:
        delta_spark.sql(f"DELETE FROM {to.name} WHERE id = 'a'")
        replace(*arguments)

    monkeypatch.setattr(delta_tables, "replace", replace_late)
    merge(2, Change("a", 2, 11), Change("b", 2, 21))
    assert delta_rows.operations(to.path)[-2] == "DELETE"
    assert versions(delta_rows.read(to.path)) == [
        ("a", 11, 2, None),
        ("b", 20, 1, 2),
        ("b", 21, 2, None),
    ]


@pytest.fixture
def place(delta_spark: SparkSession, tmp_path: Path) -> Place:
    made = Place(delta_spark, tmp_path)
    made.come(Change("a", 1, 1), Change("b", 2, 2), Change("a", 3, 3), Change("a", 3, 4))
    made.come(Change("b", 4, None, gone=True), Change("a", 2, 5), Change("c", 5, 6))
    made.come(Change("b", 3, 7), Change("c", 6, None, gone=True), Change("c", 9, 8))
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("existing", "step"),
    slow_after(
        1,
        [
            ("fail", "merge_versions"),
            ("fail", "create"),
            ("fail", "set_property"),
            ("replace", "create"),
        ],
    ),
)
def test_a_query_that_is_killed_after_any_commit_has_the_versions_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, existing: str, step: str
) -> None:
    """The current ones are the table, too."""
    if existing == "replace":
        delta_rows.write(place.target, [(0,), (1,)], "id long")
    owner: Any = delta_history if step == "merge_versions" else delta_tables
    original = getattr(owner, step)
    calls = []

    def dies(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        calls.append(step)
        if len(calls) in (1, 3):
            raise RuntimeError("killed")

    monkeypatch.setattr(owner, step, dies)
    deaths = 0
    while True:
        with suppress(RuntimeError, StreamingQueryException):
            place.run(existing=existing)
            break
        deaths += 1
        assert deaths == len(calls) // 2 + 1, calls
    assert deaths
    expected = model(place.changes)
    assert place.stored() == expected
    assert len({row[0] for row in expected}) == 3
    place.target = place.directory / "plain"
    place.run("plain checkpoint", history=False)
    current = [row[:2] for row in expected if row[3] is None]
    plain = delta_rows.read(place.target).to_pylist()
    assert sorted((row["id"], row["v"]) for row in plain) == current


@pytest.mark.slow
def test_what_to_delta_takes_holds_for_versions(place: Place) -> None:
    place.run(partition_by="_current", compact_every=2, retention="1 hour")
    details = place.spark.sql(f"DESCRIBE DETAIL delta.`{place.target}`").first()
    assert details is not None
    assert details["partitionColumns"] == ["_current"]
    assert details["properties"][tables.RETENTION_PROPERTY] == "interval 3600 seconds"
    assert delta_rows.operations(place.target) == [
        *("CREATE TABLE AS SELECT", "SET TBLPROPERTIES", "WRITE", "WRITE", "OPTIMIZE", "WRITE")
    ]
    expected = place.stored()
    assert expected == model(place.changes)
    # Another query refuses the table, or goes on with its rows.
    with pytest.raises(dt.errors.TargetError, match="has rows that this query has not written"):
        place.run("another")
    shutil.rmtree(place.directory / "in")
    shutil.rmtree(place.directory / "another", ignore_errors=True)
    place.come(Change("a", 50, 9))
    more = place.table().with_columns(w=F.lit("x"))
    with pytest.raises(dt.errors.TargetError, match="w is missing"):
        place.run("another", more, existing="adopt")
    place.run("another", more, existing="adopt", evolve=True)
    assert place.stored() == model(place.changes)
    rows = delta_rows.read(place.target).to_pylist()
    assert [row["id"] for row in rows if row["w"] == "x"] == ["a"]
    place.run("third", existing="replace")
    assert place.stored() == [("a", 9, 50, None)]


@pytest.mark.slow
def test_versions_of_groups(place: Place) -> None:
    """A group that is there at no time between two changes has no version."""
    counted = place.table().group_by("v").agg(n=dt.count())
    place.run(of=counted)
    rows = delta_rows.read(place.target)
    assert rows.column_names == ["v", "n", "_valid_from", "_valid_to", "_current"]
    assert sorted(
        (row["v"], row["n"], second_of(row["_valid_from"]), second_of(row["_valid_to"]))
        for row in rows.to_pylist()
    ) == sorted(
        [
            (1, 1, 1, 3),
            (2, 1, 2, 4),
            (5, 1, 2, None),
            (6, 1, 5, 6),
            (7, 1, 3, None),
            (8, 1, 9, None),
        ]
    )


def test_what_has_no_versions_is_refused(place: Place) -> None:
    stream = place.table().to_stream()
    with pytest.raises(dt.errors.PlanError, match="history=True is for tables"):
        place.run(of=stream)
    named = place.table().rename({"v": "_Valid_To"})
    with pytest.raises(dt.errors.PlanError, match="'_Valid_To' has a name that history=True gives"):
        place.run(of=named)
    for track, message in (
        ("id", "track= names an unknown column 'id'"),
        (["v", "v"], "column 'v' occurs twice"),
        ("w", "track= names 'w', which is of type map"),
    ):
        with_map = place.table().with_columns(w=F.create_map("v", "v"))
        with pytest.raises(dt.errors.PlanError, match=message):
            place.run(of=with_map, track=track)
    assert not place.target.exists()
    delta_rows.write(place.target, [(0,), (1,)], "id long")
    with pytest.raises(dt.errors.TargetError, match="_valid_from is missing"):
        place.run(existing="adopt")


@pytest.mark.slow
def test_a_table_of_rows_is_no_table_of_versions(place: Place) -> None:
    place.run(history=False)
    with pytest.raises(dt.errors.TargetError, match="_timestamp is not among the query's"):
        place.run("another", existing="adopt")
