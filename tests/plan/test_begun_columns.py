"""A topology of growing sources as its checkpoint began, without a session."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

import dovetail as dt
from dovetail import testing
from dovetail.plan.begun_columns import without_new_columns
from dovetail.plan.fingerprint import describe, fingerprint


def table(name: str, *more: str) -> dt.Table:
    schema = {"id": pa.int64(), **dict.fromkeys(("city", *more), pa.string())}
    return dt.Table(replace(testing.table(name, key="id", schema=schema).plan, grows=True))


def test_a_union_that_says_whose_a_row_is_loses_new_columns() -> None:
    then, now = (
        table("shops", *more).union(table("webs", *more), source="of").plan
        for more in ((), ("mayor",))
    )
    narrowed, new = without_new_columns([now], fingerprint(then), describe(then))
    assert new == ["shops.mayor", "webs.mayor"]
    assert narrowed[now].row.names == ["id", "of", "city"]
