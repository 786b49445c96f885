"""Hypothesis strategies: what they draw can be piped in, and finds what is wrong."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, find, given, settings

from dovetail.errors import PlanError
from dovetail.testing import Change, Driver, strategies, stream, table

ORDERS = table("orders", key="id", schema={"id": pa.int64(), "amount": pa.int64()})
PAYMENTS = table("payments", key="id", schema={"id": pa.int64(), "paid": pa.bool_()})
CLICKS = stream("clicks", key="user", schema={"user": pa.string(), "page": pa.string()})
EVERY = table(
    "every",
    key=["s", "n"],
    schema={
        "s": pa.string(),
        "n": pa.int8(),
        "flag": pa.bool_(),
        "small": pa.int16(),
        "float": pa.float32(),
        "double": pa.float64(),
        "decimal": pa.decimal128(12, 2),
        "widest": pa.decimal128(38, 2),
        "binary": pa.binary(),
        "date": pa.date32(),
        "instant": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "span": pa.duration("us"),
        "items": pa.list_(pa.int32()),
        "pair": pa.struct({"x": pa.int64(), "y": pa.string()}),
        "tags": pa.map_(pa.string(), pa.int64()),
    },
)


@settings(max_examples=8, deadline=None)
@given(strategies.changelogs(EVERY))
def test_values_of_every_type_can_be_piped_in(changes: list[Change]) -> None:
    driver = Driver(EVERY)
    emitted = driver.pipe(EVERY, changes)
    assert [c.timestamp_us for c in emitted] == sorted(c.timestamp_us for c in changes)
    last = {tuple(c.key.values()): c.values for c in changes}
    assert driver.table(EVERY).keys() == {key for key, values in last.items() if values}


@settings(max_examples=12, deadline=None)
@given(strategies.histories(ORDERS, PAYMENTS, out_of_order=True))
def test_a_final_table_does_not_depend_on_the_cut(history: strategies.History) -> None:
    joined = ORDERS.join(PAYMENTS, how="outer")
    in_batches, at_once = Driver(joined), Driver(joined)
    for batch in history:
        with in_batches.batch():
            for source, changes in batch:
                in_batches.pipe(source, changes)
    for source in (PAYMENTS, ORDERS):
        changes = [c for batch in history for of, part in batch for c in part if of is source]
        at_once.pipe(source, changes)
    assert in_batches.table(joined) == at_once.table(joined)


def test_changes_of_all_kinds_are_drawn() -> None:
    def drawn(condition: Any, *more: Phase, **options: Any) -> list[Change]:
        phases = (Phase.generate, *more)
        few = settings(max_examples=200, deadline=None, database=None, phases=phases)
        return find(strategies.changelogs(ORDERS, **options), condition, settings=few)

    (deleted,) = drawn(lambda changes: any(c.change == "delete" for c in changes), Phase.shrink)
    assert deleted == Change({"id": 0}, None, 0, "delete", 0)
    nulls = drawn(lambda changes: any(c.values == {"amount": None} for c in changes))
    assert {c.change for c in nulls if c.values} <= {"upsert"}
    drawn(_goes_back, out_of_order=True)
    repeated = drawn(lambda changes: len(changes) == 3, keys=1)
    assert len({c.key["id"] for c in repeated}) == 1


@settings(max_examples=12, deadline=None)
@given(strategies.changelogs(CLICKS))
def test_a_stream_has_no_deletes(changes: list[Change]) -> None:
    assert all(c.values is not None for c in changes)


def _goes_back(changes: list[Change]) -> bool:
    times = [c.timestamp_us for c in changes]
    return times != sorted(times)


def test_changes_have_their_own_times_and_deletes() -> None:
    changes = [
        Change({"id": 1}, {"amount": 4}, 5, "upsert", 0),
        Change({"id": 1}, None, 6, "delete", 1),
    ]
    driver = Driver(ORDERS)
    assert driver.pipe(ORDERS, changes) == changes
    with pytest.raises(PlanError, match="rows= is changes, which have their own times and deletes"):
        driver.pipe(ORDERS, changes, timestamp=1)


def test_other_arguments_are_refused() -> None:
    with pytest.raises(PlanError, match=r"^changelogs: table= is Table.*, which is no input"):
        strategies.changelogs(ORDERS.join(PAYMENTS))
    with pytest.raises(PlanError, match=r"^histories: there are no tables"):
        strategies.histories()
    with pytest.raises(PlanError, match=r"^changelogs: keys= is 0"):
        strategies.changelogs(ORDERS, keys=0)


def test_without_hypothesis_an_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; import dovetail.testing.strategies"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.splitlines()[-1] == (
        "dovetail.errors.ConfigurationError: strategies: hypothesis is not installed. "
        "Install dovetail[hypothesis]."
    )
