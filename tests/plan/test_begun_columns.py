"""A topology of growing sources as its checkpoint began, without a session."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import testing
from dovetail.plan.begun_columns import without_new_columns
from dovetail.plan.fingerprint import describe, fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable


def table(name: str, *more: str) -> dt.Table:
    schema = {"id": pa.int64(), **dict.fromkeys(("city", *more), pa.string())}
    return dt.Table(replace(testing.table(name, key="id", schema=schema).plan, grows=True))


FORCED = dt.delta_join(strategy="force")


def looked_up(given: dt.Table) -> dt.Table:
    store = dt.lookups.sqlite("f.db", given.plan.name, key="id", indexes=[dt.lookups.index("city")])
    return given.with_lookup(store, changes="insert")


@pytest.mark.parametrize(
    "made",
    [
        lambda shops: shops.ignore_null_updates(),
        lambda shops: shops.key_by("city"),
        lambda shops: shops.key_by("city", "id"),
        lambda shops: shops.key_by("city", duplicates="last").group_by("id").agg(n=dt.count()),
        lambda shops: table("towns").join(shops.key_by("city").rename({"id": "shop"}), on="city"),
        lambda shops: looked_up(table("towns")).join(
            looked_up(shops), on={"city": "city"}, delta_join=FORCED
        ),
    ],
)
def test_calls_that_take_all_columns_leave_out_new_ones(
    made: Callable[[dt.Table], dt.Table],
) -> None:
    then, now = (made(table("shops", *more)).plan for more in ((), ("mayor",)))
    narrowed, new = without_new_columns([now], fingerprint(then), describe(then))
    assert new == ["shops.mayor"]
    assert narrowed[now].row == then.row
    assert fingerprint(narrowed[now]) == fingerprint(then)


def test_nulls_that_are_ignored_in_a_new_column_are_another_topology() -> None:
    then = table("shops").ignore_null_updates(["city"]).plan
    now = table("shops", "mayor").ignore_null_updates(["mayor"]).plan
    assert without_new_columns([now], fingerprint(then), describe(then)) == ({now: now}, [])


def test_a_union_that_says_whose_a_row_is_loses_new_columns() -> None:
    then, now = (
        table("shops", *more).union(table("webs", *more), source="of").plan
        for more in ((), ("mayor",))
    )
    narrowed, new = without_new_columns([now], fingerprint(then), describe(then))
    assert new == ["shops.mayor", "webs.mayor"]
    assert narrowed[now].row.names == ["id", "of", "city"]
