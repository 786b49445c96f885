"""Joins by foreign key whose left rows are spread over several buckets (``spread=``).

The law: they emit what they emit without it. So all that is asserted here is the same as of a join
in one bucket: each key's changes in each micro-batch, the counts, the explanations. What differs is
where rows lie.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bench.parameters import slow_after

import dovetail as dt
from dovetail import testing
from dovetail.arrays.grouping import bucket_of
from dovetail.base.columns import COPY, HASH
from dovetail.engine.batches.spread import _hash_of_share
from dovetail.engine.local_buckets import LocalBuckets
from dovetail.physical.fragment import Emit
from dovetail.state import manifest as manifests

NUMBER, TEXT = pa.int64(), pa.string()
ORDERS = {"id": NUMBER, "customer": TEXT, "shop": NUMBER, "n": NUMBER}
Changes = dict[str, list[tuple[str, int]]]
Inputs = dict[str, dt.Table]


def table(name: str, key: Any, schema: dict[str, pa.DataType], versioned: Any = None) -> dt.Table:
    return testing.table(name, key=key, schema=schema, versioned=versioned)


def inputs(versioned: str | None = None) -> Inputs:
    return {
        "orders": table("orders", "id", ORDERS),
        "customers": table("customers", "name", {"name": TEXT, "city": TEXT}, versioned),
        "branches": table(
            "branches", ["customer", "shop"], {"customer": TEXT, "shop": NUMBER, "city": TEXT}
        ),
        "cities": table("cities", "city", {"city": TEXT, "land": TEXT}),
        "shops": table("shops", "shop", {"shop": NUMBER, "open": TEXT}),
    }


def by_customer(of: Inputs, **options: Any) -> dt.Table:
    return of["orders"].join(of["customers"], on="customer", select=["n", "city"], **options)


def by_two_columns(of: Inputs, **options: Any) -> dt.Table:
    on = ["customer", "shop"]
    return of["orders"].join(of["branches"], on=on, select=["n", "right.city"], **options)


def to_a_result(of: Inputs, **options: Any) -> dt.Table:
    """The right side has a stage of its own, and spreads as well."""
    options_right = options | {"how": "left"}
    named = of["customers"].join(of["cities"], on="city", select=["land"], **options_right)
    return of["orders"].join(named, on="customer", select=["n", "land"], **options)


def of_a_result(of: Inputs, **options: Any) -> dt.Table:
    """A chain of two, which would be a star if nothing were spread."""
    placed = of["orders"].join(
        of["customers"], on="customer", select=["shop", "n", "city"], **options
    )
    return placed.join(of["shops"], on="shop", select=["n", "city", "open"], **options)


def to_itself(of: Inputs, **options: Any) -> dt.Table:
    """An order names another by ``n``."""
    select = {"customer": "left.customer", "other": "right.customer"}
    return of["orders"].join(of["orders"], on="n", select=select, **options)


TOPOLOGIES: dict[str, Callable[..., dt.Table]] = {
    "one column": by_customer,
    "two columns": by_two_columns,
    "to a result": to_a_result,
    "of a result": of_a_result,
    "to itself": to_itself,
}


def drawn(choose: random.Random, name: str) -> dict[str, Any]:
    hot = choose.choice(["ann", "ann", "ann", "bob", None])
    city = choose.choice(["Oslo", "Rome", None])
    rows = {
        "orders": {
            "id": choose.randrange(9),
            "customer": hot,
            "shop": choose.randrange(2),
            "n": choose.randrange(6),
        },
        "customers": {"name": hot or "cid", "city": city},
        "branches": {"customer": hot or "cid", "shop": choose.randrange(2), "city": city},
        "cities": {"city": city or "Bern", "land": choose.choice(["x", "y"])},
        "shops": {"shop": choose.randrange(2), "open": choose.choice(["x", "y"])},
    }
    return rows[name]


def run(
    made: Callable[..., dt.Table],
    seed: object,
    *,
    buckets: int = 1,
    emit: Emit = "change",
    versioned: str | None = None,
    **options: Any,
) -> tuple[list[Changes], testing.Driver]:
    """What each micro-batch emits, by key."""
    choose, of = random.Random(repr(seed)), inputs(versioned)
    topology = made(of, **options)
    driver = testing.Driver(topology, buckets=buckets, emit=emit)
    used = sorted({source.name for source in driver._sources})
    answers, now = [], 0
    for _ in range(6):
        with driver.batch() as changes:
            for _ in range(choose.randint(3, 14)):
                now += choose.choice([0, 1, 1, 3])
                name = choose.choice([*used, "orders"])
                row, gone = drawn(choose, name), choose.random() < 0.2
                late = choose.choice([0, 0, 4, 9])
                driver.pipe(of[name], row, timestamp=max(0, now - late), deleted=gone)
        found: Changes = defaultdict(list)
        for change in changes:
            found[repr(change.key)].append((repr(change.values), change.timestamp_us))
        answers.append(found)
        if choose.random() < 0.4:
            driver = testing.Driver.restore(topology, driver.snapshot(), emit=emit)
    return answers, driver


@pytest.mark.parametrize("name", slow_after(1, TOPOLOGIES))
@pytest.mark.parametrize("buckets", [1, 3, 8])
def test_what_is_spread_emits_the_same(name: str, buckets: int) -> None:
    for how in ("inner", "left"):
        for emit in ("change", "batch"):
            asked: dict[str, Any] = {"emit": emit, "how": how, "versioned": "5 us"}
            # In one bucket nothing is spread, but such a chain is no star, whose net changes may
            # have other times.
            chain = {"spread": 4} if (name, emit) == ("of a result", "batch") else {}
            expected, alone = run(TOPOLOGIES[name], name, **asked, **chain)
            found, driver = run(TOPOLOGIES[name], name, **asked, buckets=buckets, spread=4)
            assert found == expected
            assert driver.counts == alone.counts
            assert driver.dropped == alone.dropped
            for key in range(3):
                assert str(driver.explain_row(key)) == str(alone.explain_row(key))


def stores_of(stage: LocalBuckets) -> list[dict[str, int]]:
    """How many rows each store of each bucket has."""
    found = [manifests.read(blobs) for blobs in stage.blobs]
    return [
        {}
        if manifest is None
        else {
            name: sum(segment.rows for run in runs.runs for segment in run.segments)
            for name, runs in manifest.stores.items()
        }
        for manifest in found
    ]


def hot(buckets: int, spread: int | None) -> list[dict[str, int]]:
    """The stores by foreign key, after 80 orders of one customer."""
    of = inputs()
    driver = testing.Driver(by_customer(of, spread=spread), buckets=buckets)
    rows = [{"id": n, "customer": "ann"} for n in range(80)]
    driver.pipe(of["orders"], rows, timestamp=[1] * 80)
    assert len(driver.pipe(of["customers"], {"name": "ann", "city": "Oslo"}, timestamp=2)) == 80
    return stores_of(driver._root.buckets[1])


def test_rows_of_a_hot_key_lie_in_as_many_buckets() -> None:
    """And its right row lies once in ``right``, however many copies there are."""
    for buckets, spread in ((8, 8), (8, 3), (3, 50)):
        shares = min(buckets, spread)
        stores = hot(buckets, spread)
        subscriptions = [of.get("subscriptions", 0) for of in stores if of.get("subscriptions")]
        assert len(subscriptions) == shares
        assert sum(subscriptions) == 80
        assert max(subscriptions) < 2.5 * 80 / shares
        assert sum(of.get("right", 0) for of in stores) == 1
        assert sum(of.get("copies", 0) for of in stores) == shares - 1


def test_one_bucket_has_no_copies() -> None:
    for buckets, spread in ((8, None), (8, 1), (1, 8)):
        stores = hot(buckets, spread)
        assert [of for of in stores if "copies" in of] == []
        assert [of["subscriptions"] for of in stores if of.get("subscriptions")] == [80]


def test_shares_are_in_buckets_side_by_side() -> None:
    """Also of hashes at the end of int64, which have no larger one."""
    for buckets in (3, 7, 8):
        for key_hash in (0, 30, -5, 2**63 - 1, 2**63 - 2, -(2**63)):
            share = np.arange(buckets)
            hashes = _hash_of_share(np.full(buckets, key_hash), share, buckets)
            first = int(bucket_of(np.array([key_hash]), buckets)[0])
            assert hashes[0] == key_hash
            assert bucket_of(hashes, buckets).tolist() == [(first + s) % buckets for s in share]


def test_each_right_record_counts_once() -> None:
    """In the reports of buckets and among the records that come too late."""
    of = inputs(versioned="5 us")
    driver = testing.Driver(by_customer(of, spread=4), buckets=8)
    stage = driver._root.buckets[1]
    counted: list[int] = []
    process = stage.process

    def processed(pieces: Any, *given: Any) -> Any:
        for _, piece in pieces:
            if piece.source == 1 and piece.rows is not None:
                assert piece.rows.schema.names[0] == HASH
                counted.extend(piece.rows.column(COPY).to_pylist())
        return process(pieces, *given)

    stage.process = processed  # type: ignore[method-assign]
    driver.pipe(of["customers"], {"name": "ann", "city": "Oslo"}, timestamp=100)
    driver.pipe(of["customers"], {"name": "ann", "city": "Rome"}, timestamp=98)
    driver.pipe(of["customers"], {"name": "ann", "city": "Bern"}, timestamp=90)
    driver.pipe(of["customers"], {"name": None, "city": "Bern"}, timestamp=100)
    assert sorted(counted) == sorted([0, 1, 2, 3] * 3)
    assert driver.counts == {"customers.late": 1, "customers.too_old": 1}
    assert driver.dropped == 1


def test_a_checkpoint_with_another_spread_is_refused() -> None:
    of = inputs()
    driver = testing.Driver(by_customer(of, spread=4), buckets=8)
    driver.pipe(of["orders"], {"id": 1, "customer": "ann"}, timestamp=1)
    for other in (None, 2):
        with pytest.raises(dt.errors.CheckpointError, match="topology"):
            testing.Driver.restore(by_customer(of, spread=other), driver.snapshot())
    testing.Driver.restore(by_customer(of, spread=4), driver.snapshot())


def test_one_is_as_none(capsys: pytest.CaptureFixture[str]) -> None:
    """So a query goes on with ``spread=1``; ``explain`` tells more than one."""
    of = inputs()
    plain, one, four = (by_customer(of, spread=spread) for spread in (None, 1, 4))
    driver = testing.Driver(plain)
    driver.pipe(of["orders"], {"id": 1, "customer": "ann"}, timestamp=1)
    testing.Driver.restore(one, driver.snapshot())
    texts = []
    for topology in (plain, one, four):
        topology.explain()
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert "foreign key (name string), spread over 4 buckets" in texts[2]
