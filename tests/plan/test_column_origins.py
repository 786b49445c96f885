"""The sources of a result's columns, without a query. ``test_lineage`` has those of queries."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import dovetail as dt
from dovetail.plan.column_origins import column_origins


def test_the_label_of_a_union_has_no_origin() -> None:
    """Though an input is named as one of its columns."""
    schema: Any = {"id": pa.int64(), "shop": pa.string()}
    shop, web = (dt.testing.table(name, key="id", schema=schema) for name in ("shop", "web"))
    origins = column_origins(shop.union(web, source="origin").plan)
    assert origins["origin"] == frozenset()
    assert {(of.source.name, of.column) for of in origins["shop"]} == {  # type: ignore[union-attr]
        ("shop", "shop"),
        ("web", "shop"),
    }
