"""The stages of a topology, judged by what they emit. No session is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import testing
from dovetail.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dovetail.testing.changes import Change

ROWS = [{"id": 1, "x": 1, "y": True}, {"id": 1, "x": 2, "y": False}, {"id": 2, "x": 2, "y": True}]


def left_join() -> tuple[dt.Table, dt.Table]:
    """A table of the columns of ``ROWS``, and its left join with another one."""
    number = pa.int64()
    left = testing.table("left", key="id", schema={"id": number, "x": number, "y": pa.bool_()})
    right = testing.table("right", key="id", schema={"id": number, "z": number})
    return left, left.join(right, how="left", select=["x", "y"])


def last_rows(changes: list[Change]) -> dict[tuple[object, ...], object]:
    return {tuple(change.key.values()): change.values for change in changes}


@pytest.mark.parametrize(
    "made",
    [
        lambda joined: joined.to_stream().group_by("id").agg(n=dt.count(), xs=dt.collect_list("x")),
        lambda joined: joined.to_stream().where("y").to_table(),
        lambda joined: joined.to_stream().key_by("x").to_table(),
    ],
    ids=["counted", "left out", "under another key"],
)
def test_records_of_changes_do_not_depend_on_micro_batches(
    made: Callable[[dt.Table], dt.Table],
) -> None:
    """``emit="batch"`` is of the result: a stream within the topology has all records."""
    left, joined = left_join()
    each = testing.Driver(made(joined)).pipe(left, ROWS, timestamp=[1, 2, 3])
    net = testing.Driver(made(joined), emit="batch").pipe(left, ROWS, timestamp=[1, 2, 3])
    assert last_rows(net) == last_rows(each)
    assert len(net) == len(last_rows(net))


def test_a_result_that_is_also_read_change_by_change_has_two_stages() -> None:
    left, _ = left_join()
    sums = left.group_by("y").agg(xs=dt.collect_list("x"), last=dt.max("x"))
    filled = sums.ignore_null_updates().rename({"xs": "former", "last": "largest"})
    both = sums.join(filled)
    kinds = sums.to_changes().group_by("kind").agg(n=dt.count())
    tables = []
    for emit in ("change", "batch"):
        driver = testing.Driver(both, sums, kinds, emit=emit)
        driver.pipe(left, [*ROWS, {"id": 2, "x": None, "y": False}], timestamp=1)
        tables.append([driver.table(table) for table in (both, sums, kinds)])
    assert tables[1] == tables[0]


@pytest.mark.parametrize(
    "made",
    [
        lambda table: table.materialize().to_stream(),
        lambda table: table.materialize().to_stream().where("y").key_by("x"),
        lambda table: table.group_by("x").agg(n=dt.count()).to_stream().select("n"),
    ],
    ids=["stored", "left out", "grouped"],
)
def test_a_stream_of_changes_is_not_netted(made: Callable[[dt.Table], dt.Stream]) -> None:
    """Each change is a record of the stream, also beside a table that is netted."""
    left, joined = left_join()
    stream, refused = made(left), r"emit='batch' keeps a key's last change, which only a table's"
    for results in ([stream], [joined, stream]):
        with pytest.raises(PlanError, match=refused):
            testing.Driver(*results, emit="batch")
