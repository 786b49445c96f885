"""The laws of views: a view of a changelog is the changelog of the view of the table; whoever reads
a filtered table does as with one that never had the rows left out.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate, chain, pairwise
from typing import Any

import pyarrow as pa
import pytest
from bench import runners
from bench.families import views
from bench.forced import forced
from bench.parameters import slow_after
from bench.records import WHOLE, Record, Result, cut, parts

import dovetail as dt
from dovetail import testing
from dovetail.testing import Change

ROWS = {"k": pa.string(), "ok": pa.bool_(), "v": pa.int64(), "fk": pa.string()}
Op = tuple[str, dict[str, Any], int, bool]


def table(name: str, **options: Any) -> dt.Table:
    return testing.table(name, key="k", schema=ROWS, **options)


def drawn(seed: int) -> list[Op]:
    """Records of T, L and S in any order of time."""
    random_ = random.Random(seed)
    made: list[Op] = []
    for _ in range(random_.randint(1, 30)):
        name, key = random_.choice("TTLS"), random_.choice("abc")
        row = {
            "k": key,
            "ok": random_.choice([True, False, None]),
            "v": random_.randint(0, 3),
            "fk": random_.choice(["a", "b", "c", None]),
        }
        made.append((name, row, random_.randint(0, 12), random_.random() < 0.25))
    return made


def filtered(ops: list[Op]) -> list[Op | None]:
    """The records of T as a table's that has only what meets the condition."""
    present: set[str] = set()
    made: list[Op | None] = []
    for name, row, time, deleted in ops:
        op: Op | None = (name, row, time, deleted)
        if name == "T":
            met = not deleted and row["ok"] is True
            if not met:
                op = (name, row, time, True) if row["k"] in present else None
            (present.add if met else present.discard)(row["k"])
        made.append(op)
    return made


def driven(
    topology: dt.Table | dt.Stream, inputs: dict[str, Any], ops: list[Op | None]
) -> list[list[Change]]:
    """What each record emits."""
    driver = testing.Driver(topology)
    answers: list[list[Change]] = []
    for op in ops:
        changes: list[Change] = []
        if op is not None and op[0] in inputs:
            name, row, time, deleted = op
            changes = driver.pipe(inputs[name], row, timestamp=time, deleted=deleted)
        answers.append(changes)
    return answers


def shown(answers: list[list[Change]]) -> list[list[tuple[Any, ...]]]:
    """Without positions, which count what a table without the rows never had."""
    return [[(c.key, c.values, c.timestamp_us, c.change) for c in part] for part in answers]


READERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "itself": lambda t, u, s: t,
    "materialized": lambda t, u, s: t.materialize(),
    **{
        f"{how} of keys": lambda t, u, s, how=how: u.join(
            t, how=how, select={"a": "left.v", "b": "right.v"}
        )
        for how in ("inner", "left", "outer")
    },
    "outer of keys, left": lambda t, u, s: t.join(
        u, how="outer", select={"a": "left.v", "b": "right.v"}
    ),
    **{
        f"{how} of {side}": (
            (lambda t, u, s, how=how: u.join(t, on="fk", how=how, select={"b": "right.v"}))
            if side == "references"
            else (lambda t, u, s, how=how: t.join(u, on="fk", how=how, select={"b": "right.v"}))
        )
        for how in ("inner", "left", "right", "outer")
        for side in ("references", "referring")
    },
    **{
        f"stream {how}": lambda t, u, s, how=how: s.join(
            t, how=how, select={"a": "left.v", "b": "right.v"}
        )
        for how in ("inner", "left")
    },
    "count": lambda t, u, s: t.group_by("fk").agg(n=dt.count(), v=dt.sum("v")),
    "largest": lambda t, u, s: t.group_by("fk").agg(v=dt.max("v"), all=dt.collect_list("v")),
    "first few": lambda t, u, s: t.group_by("fk").agg(
        top=dt.top(2, "k", by="v"), distinct=dt.count_distinct("v")
    ),
    "stream": lambda t, u, s: t.to_stream(),
    "windows": lambda t, u, s: (
        t.to_stream()
        .group_by("k")
        .window(dt.windows.tumbling("1 second", grace="1 hour"))
        .agg(n=dt.count())
        .to_table()
    ),
    "beside windows": lambda t, u, s: (
        s.group_by("k")
        .window(dt.windows.tumbling("1 second", grace="1 hour"))
        .agg(n=dt.count())
        .join(t, how="left")
        .to_table()
    ),
    "twice": lambda t, u, s: t.join(t, how="outer", select={"a": "left.v", "b": "right.v"}),
    "filtered again": lambda t, u, s: t.rename({"v": "w"}).where("ok").select("w", "fk"),
}


@pytest.mark.parametrize("seeds", slow_after(1, [range(3), range(3, 8)]), ids=str)
@pytest.mark.parametrize("reader", READERS)
def test_a_filtered_table_is_one_without_the_rows(reader: str, seeds: range) -> None:
    """Exactly: every record's results, their order and times."""
    for seed in seeds:
        ops = drawn(seed)
        inputs = {
            "T": table("T"),
            "L": table("L"),
            "S": testing.stream("S", key="k", schema=ROWS),
        }
        answers = []
        for where, given in ((True, list(ops)), (False, filtered(ops))):
            read = inputs["T"].where("ok") if where else inputs["T"]
            topology = READERS[reader](read, inputs["L"], inputs["S"])
            names = {source.name for source in topology.plan.origins}
            known = {name: input_ for name, input_ in inputs.items() if name in names}
            answers.append(shown(driven(topology, known, given)))
        assert answers[0] == answers[1], seed


def rows(answers: list[list[Change]]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for change in (change for part in answers for change in part):
        if change.values is None:
            made.pop(change.key["k"], None)
        else:
            made[change.key["k"]] = change.values
    return made


@pytest.mark.parametrize("seeds", slow_after(1, [range(6), range(6, 15)]), ids=str)
def test_filtering_before_a_join_is_filtering_after_it(seeds: range) -> None:
    for seed in seeds:
        ops: list[Any] = drawn(seed)
        t, other = table("T"), table("L")
        both = {"ok": "left.ok", "ok_2": "right.ok", "a": "left.v", "b": "right.v"}
        before = t.where("ok").join(other.where("ok"), select=both)
        after = t.join(other, select=both).where("ok").where("ok_2")
        inputs = {"T": t, "L": other}
        found = [rows(driven(one, inputs, ops)) for one in (before, after)]
        assert found[0] == found[1], seed


def in_time(random_: random.Random, count: int) -> list[int]:
    """Times that never fall, that nearly do not, that jump to and fro."""
    steps = random_.choice([(0, 1, 1, 2, 9), (-1, 0, 1, 2, 3), (-8, -2, 0, 3, 8)])
    return [max(time, 0) for time in accumulate(random_.choice(steps) for _ in range(count))]


@pytest.mark.parametrize("seed", slow_after(4, range(24)))
def test_of_records_that_repeat_each_other_the_first_to_arrive_comes_out(seed: int) -> None:
    """However they are cut, restarted and spread, and though state lies in many small segments; and
    no two of a key that come out are as near.
    """
    random_ = random.Random(seed)
    within = random_.choice([0, 1, 3, 10])
    pipeline = views.read_join("view", f"S deduplicate {within}", {})
    count = random_.choice([5, 40, 120])
    keys = random_.choice([["a"], ["a", "b", "c", None], [*"abcdefghijkl"]])
    records = [
        Record("S", random_.choice(keys), time, (str(n), True), random_.random() < 0.05)
        for n, time in enumerate(in_time(random_, count))
    ]
    wanted = list(views.each_record(pipeline, records))
    refuse_other_results(pipeline, records, wanted)
    times: dict[Any, list[int]] = defaultdict(list)
    for result in chain.from_iterable(wanted):
        times[result.key].append(result.time)
    for key, own in times.items():
        gaps = [later - time for time, later in pairwise(sorted(own))]
        assert key is None or all(gap > within for gap in gaps)


def test_a_versioned_view_keeps_the_history() -> None:
    """A row that did not meet the condition stood there all the same, and hides an older one."""
    prices = testing.table(
        "prices",
        key="k",
        schema={"k": pa.string(), "ok": pa.bool_(), "v": pa.int64()},
        versioned="1 day",
    )
    sales = testing.stream("sales", key="k", schema={"k": pa.string()})
    driver = testing.Driver(sales.join(prices.where("ok"), how="left", select=["v"]))
    driver.pipe(prices, {"k": "a", "ok": True, "v": 1}, timestamp=10)
    driver.pipe(prices, {"k": "a", "ok": False, "v": 2}, timestamp=20)
    driver.pipe(prices, {"k": "a", "ok": True, "v": 3}, timestamp=30)
    for time in (15, 25, 35):
        driver.pipe(sales, {"k": "a"}, timestamp=time)
    assert [change.values for change in driver.read()] == [{"v": 1}, {"v": None}, {"v": 3}]


@pytest.mark.parametrize("seed", slow_after(3, range(12)))
def test_changes_make_the_table_again(seed: int) -> None:
    """Of random records, however they are cut, restarted and spread: a row comes once before it is
    replaced or goes, and then as it was.
    """
    random_ = random.Random(seed)
    pipeline = views.read_join("view", random_.choice(["T to_changes", "T where to_changes"]), {})
    keys = random_.choice([["a"], [*"abc", None], [*"abcdefghijkl"]])
    count = random_.choice([5, 40, 120])
    records = [
        Record("T", random_.choice(keys), n, (random_.choice("xy"), True), random_.random() < 0.3)
        for n in range(count)
    ]
    wanted = list(views.each_record(pipeline, records))
    refuse_other_results(pipeline, records, wanted)
    rows: dict[Any, str] = {}
    for result in chain.from_iterable(wanted):
        kind, value = str(result.values[0])[0], str(result.values[0])[1:]
        assert rows.pop(result.key, None) == (value if kind in "bd" else None)
        if kind in "ia":
            rows[result.key] = value
    last = {record.key: record for record in records if record.key is not None}
    assert rows == {key: r.value[0] for key, r in last.items() if not r.deleted}


@pytest.mark.parametrize("seed", slow_after(3, range(6)))
def test_elements_of_arrays_are_rows(seed: int) -> None:
    """The exploded rows are those of the table's rows, however records are cut, restarted, spread
    and emitted; and each change of them is one.
    """
    random_ = random.Random(seed)
    pipeline = views.read_join("view", random_.choice(["L explode", "L positions"]), {})
    keys = random_.choice([["a"], [*"abc", None], [*"abcdefghijkl"]])
    records = [
        Record("L", random_.choice(keys), random_.randint(0, 9), (array,), random_.random() < 0.2)
        for _ in range(random_.choice([5, 40]))
        for array in [
            random_.choice([None, tuple(random_.choices("xyz", k=random_.randint(0, 4)))])
        ]
    ]
    wanted = list(views.each_record(pipeline, records))
    refuse_other_results(pipeline, records, wanted)
    last = {record.key: record for record in records if record.key is not None}
    rows = {
        f"{key}.{own}": (element,)
        for key, record in last.items()
        for place, element in enumerate((not record.deleted and record.value[0]) or ())
        for own in [place if "positions" in pipeline.steps else element]
    }
    assert rows_left(wanted) == rows
    for size in (1, 7, WHOLE):
        batches = cut(records, size)
        found = runners.driver(views, pipeline, batches, emit="batch", restart=size == 7)
        assert found == [*views.each_batch(pipeline, batches)], size
        assert rows_left(found) == rows


@pytest.mark.parametrize(
    ("seed", "step"), [*((n, "former") for n in range(4)), (4, "nulls"), (5, "nulls_of_v")]
)
def test_values_that_are_not_sent_stay(seed: int, step: str) -> None:
    """However the records are cut, restarted, spread and emitted."""
    random_ = random.Random(seed)
    pipeline = views.read_join("view", f"P {step}", {})
    keys = random_.choice([["a"], [*"abc", None], [*"abcdefghijkl"]])
    records = [
        Record("P", random_.choice(keys), n % 7, tuple(random_.choices("xy__", k=2)), gone)
        for n in range(random_.choice([5, 40]))
        for gone in [random_.random() < 0.2]
    ]
    wanted = list(views.each_record(pipeline, records))
    refuse_other_results(pipeline, records, wanted)
    assert "_" not in str(wanted)
    for size in (1, 7, WHOLE):
        batches = cut(records, size)
        found = runners.driver(views, pipeline, batches, emit="batch", restart=size == 7)
        assert found == [*views.each_batch(pipeline, batches)], size


def test_a_value_without_a_former_row_fails_the_query_or_is_counted_as_null() -> None:
    people = testing.table(
        "people",
        key="id",
        schema={"id": pa.int64(), "note": pa.string(), "gone": pa.list_(pa.string())},
    )
    row = {"id": 7, "gone": ["note", "no column"]}
    driver = testing.Driver(people.keep_former("gone"))
    with pytest.raises(
        dt.errors.DataError, match=r"keep_former of people: .* column note.* id=7"
    ) as error:
        driver.pipe(people, row, timestamp=1)
    assert "missing='null'" in str(error.value)
    driver = testing.Driver(people.keep_former("gone", missing="null"))
    driver.pipe(people, [row, row], timestamp=1)
    assert [change.values for change in driver.read()] == [{"note": None}] * 2
    assert driver.counts["people.unsent"] == 1
    with pytest.raises(dt.errors.PlanError, match=r"array<string>"):
        people.keep_former("note")


def test_nulls_of_columns_that_there_are_are_ignored() -> None:
    """Of every type, also of a struct, which is taken whole, and of lists."""
    pair = pa.struct({"a": pa.int64(), "b": pa.int64()})
    schema = {"id": pa.int64(), "n": pa.float64(), "pair": pair, "list": pa.list_(pa.string())}
    people = testing.table("people", key="id", schema=schema)
    driver = testing.Driver(people.ignore_null_updates())
    first = {"n": 0.5, "pair": {"a": 1, "b": 2}, "list": ["x"]}
    driver.pipe(people, {"id": 1, **first}, timestamp=1)
    driver.pipe(people, {"id": 1, "pair": {"a": 3}, "list": []}, timestamp=2)
    pair_now = {"a": 3, "b": None}
    wanted = [first, {"n": 0.5, "pair": pair_now, "list": []}]
    assert [change.values for change in driver.read()] == wanted
    assert driver.counts == {}
    for columns, message in (
        ("town", "columns= names an unknown column 'town'"),
        (["n", "n"], "column 'n' occurs twice"),
        ([], "no column is named"),
    ):
        with pytest.raises(dt.errors.PlanError, match=message):
            people.ignore_null_updates(columns)
    versioned = testing.table("v", key="id", schema={"id": pa.int64()}, versioned="1 day")
    with pytest.raises(dt.errors.PlanError, match="v is versioned: the row before is another one"):
        versioned.ignore_null_updates()


def test_former_values_are_found_among_the_changes_of_a_micro_batch() -> None:
    """Also behind a stage whose own changes would be netted."""
    types = {"id": pa.int64(), "a": pa.string(), "b": pa.string(), "gone": pa.list_(pa.string())}
    people = testing.table("people", key="id", schema=types)
    driver = testing.Driver(people.materialize().keep_former("gone"), emit="batch")
    rows = [{"id": 1, "a": "x", "b": "y"}, {"id": 1, "a": "z", "gone": ["b"]}]
    driver.pipe(people, rows, timestamp=1)
    assert [change.values for change in driver.read()] == [{"a": "z", "b": "y"}]


def test_each_change_is_a_record_also_within_a_micro_batch() -> None:
    """Records of changes do not depend on micro-batches, and those with a null key are no rows."""
    people = testing.table("people", key="id", schema={"id": pa.int64(), "n": pa.int64()})
    sums = people.group_by("id").agg(n=dt.sum("n"))
    by_sum = sums.to_stream().key_by("n")
    results = [by_sum.group_by("id").agg(changes=dt.count()), by_sum.to_table(), sums]
    driver = testing.Driver(*results, emit="batch")
    driver.pipe(people, [{"id": 1, "n": n} for n in (5, 6, None, 7)], timestamp=1)
    found = [[change.values for change in driver.read(result)] for result in results]
    assert found == [[{"changes": 4}], [{"id": 1}] * 3, [{"n": 7}]]
    assert driver.dropped == 1


def test_a_record_and_a_window_meet_the_row_that_a_result_has_when_they_come() -> None:
    """Also with ``emit="batch"``, and beside a reader for which the last row is enough."""
    types = {"id": pa.int64(), "n": pa.int64()}
    people, asked = testing.table("people", key="id", schema=types), dt.windows.tumbling("10 us")
    asks = testing.stream("asks", key="id", schema={"id": pa.int64(), "of": pa.string()})
    sums = people.group_by("id").agg(n=dt.sum("n"))
    both = sums.union(people, source="of")
    results = [
        asks.join(both, on=["id", "of"], select=["n"]).to_table(),
        asks.group_by("id").window(asked).agg(asks=dt.count()).join(sums).to_table(),
        both,
    ]
    driver = testing.Driver(*results, emit="batch")
    with driver.batch():
        driver.pipe(people, {"id": 1, "n": 5}, timestamp=1)
        driver.pipe(asks, {"id": 1, "of": "aggregate of people by id"}, timestamp=2)
        driver.pipe(asks, {"id": 2}, timestamp=30)
        driver.pipe(people, {"id": 1, "n": 6}, timestamp=31)
    found = [[change.values for change in driver.read(result)] for result in results]
    assert found == [[{"n": 5}], [{"asks": 1, "n": 5}, {"asks": 1, "n": None}], [{"n": 6}] * 2]


def rows_left(answers: list[list[Result]]) -> dict[Any, Any]:
    """The last values of the keys that have some."""
    last = {result.key: result.values for result in chain.from_iterable(answers)}
    return {key: values for key, values in last.items() if values is not None}


def refuse_other_results(
    pipeline: views.Pipeline, records: list[Record], wanted: list[list[Result]]
) -> None:
    """However the records are cut, restarted and spread, and though state lies in many small
    segments: each key's results are the wanted ones, in their order, and in one bucket all are.
    """
    for size, restart, buckets, limits in (
        (WHOLE, False, 1, {}),
        (1, True, 1, {"fanout": 2, "segment_bytes": 1}),
        (7, True, 4, {"slice_bytes": 1}),
    ):
        with forced("own", limits):
            found = runners.driver(
                views, pipeline, cut(records, size), restart=restart, buckets=buckets
            )
        for one, other in zip(found, parts(wanted, size), strict=True):
            same = one == other if buckets == 1 else by_key(one) == by_key(other)
            assert same, (size, one, other)


def by_key(results: Any) -> dict[Any, list[Any]]:
    """Each key's results in their order."""
    made = defaultdict(list)
    for result in results:
        made[result.key].append(result)
    return made
