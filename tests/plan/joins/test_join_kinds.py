"""The kind of a join whose call names none: inner, or left for a pair that joins left only."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail import testing

ORDERS = {"id": pa.int64(), "customer": pa.string(), "at": pa.timestamp("us", "UTC")}
orders = testing.table("orders", key="id", schema=ORDERS)
payments = testing.table("payments", key="id", schema={"id": pa.int64(), "paid": pa.int64()})
customers = testing.table(
    "customers", key="name", schema={"name": pa.string(), "city": pa.string()}
)
clicks = testing.stream("clicks", key="id", schema={**ORDERS, "page": pa.string()})
views = testing.stream("views", key="id", schema={"id": pa.int64(), "seen": pa.bool_()})
HOURS = dt.windows.tumbling("1 hour", retention="8 days")
clicked = clicks.group_by("id").window(HOURS).agg(clicked=dt.count())
viewed = views.group_by("id").window(HOURS).agg(viewed=dt.count())

KINDS = {
    "tables by key": (orders.join(payments), "inner"),
    "tables by foreign key": (orders.join(customers, on="customer"), "inner"),
    "tables joined in state": (
        orders.join(payments, delta_join=dt.delta_join(strategy="none")),
        "inner",
    ),
    "a table with a windowed table": (orders.join(clicked, window_of="at"), "left"),
    "a stream with a table": (clicks.join(customers, on="customer"), "inner"),
    "streams": (clicks.join(views, within=dt.within(after="1 min")), "inner"),
    "a stream with a windowed table": (clicks.join(clicked, window_of="at"), "left"),
    "windowed tables on the same window": (clicked.join(viewed), "inner"),
    "windowed tables without a shift": (clicked.join(viewed, shift="0 s"), "inner"),
    "windowed tables on shifted windows": (clicked.join(viewed, shift="-7 days"), "left"),
    "a windowed table with a table": (clicked.join(payments), "left"),
}


@pytest.mark.parametrize("pair", KINDS)
def test_a_join_without_how_has_the_kind_of_its_pair(pair: str) -> None:
    joined, kind = KINDS[pair]
    assert joined.plan.how == kind  # type: ignore[attr-defined]
    assert joined.plan.name.startswith(f"{kind} join of ")


def test_none_is_the_same_as_no_how() -> None:
    assert orders.join(payments, how=None).plan.how == "inner"  # type: ignore[attr-defined]
    assert clicked.join(payments, how=None).plan.how == "left"  # type: ignore[attr-defined]


def test_a_join_by_lookups_without_how_is_inner() -> None:
    left, right = (
        t.with_lookup(dt.lookups.sqlite("f.db", t.plan.name, key="id")) for t in (orders, payments)
    )
    joined = left.join(right, delta_join=dt.delta_join(strategy="force"))
    assert joined.plan.how == "inner"  # type: ignore[attr-defined]


@pytest.mark.parametrize("shift", ["-3 hours", "3 hours"])
def test_windows_joined_with_shifted_ones_join_others(shift: str) -> None:
    def hours(name: str, retention: str) -> dt.WindowedTable:
        windows = dt.windows.tumbling("1 hour", retention=retention)
        records = testing.stream(name, key="id", schema={"id": pa.int64()})
        return records.group_by("id").window(windows).agg(**{name: dt.count()})

    kept = "1 hour" if shift == "3 hours" else "4 hours"
    shifted = hours("a", "8 hours").join(hours("b", kept), shift=shift)
    assert shifted.join(hours("c", "8 hours")).plan.row.names[-3:] == ["a", "b", "c"]
