"""Keys that are given as texts."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.physical.specs.law import Store
from dovetail.spark.checkpoints.lookup_keys import key_of_column_texts, keys_of_text


def store(*types: pa.DataType) -> Store:
    fields = tuple(pa.field("abc"[number], type_) for number, type_ in enumerate(types))
    return Store("", key=tuple(field.name for field in fields), fields=fields)


TEXTS = store(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("of", "text", "key"),
    [
        (store(pa.string()), "null", "null"),
        (store(pa.int64()), "7", 7),
        (TEXTS, '["x", "y"]', ("x", "y")),
        (TEXTS, '["x", ""]', ("x", "")),
        (TEXTS, "[1.50, true]", ("1.50", "true")),
        (store(pa.int64(), pa.string()), '[7, "7"]', (7, "7")),
        (store(pa.int64(), pa.bool_()), '["7", false]', (7, False)),
        (
            store(pa.decimal128(30, 3), pa.float64()),
            "[12345678901234567890.123, 1e3]",
            (Decimal("12345678901234567890.123"), 1000.0),
        ),
    ],
)
def test_a_text_is_a_key(of: Store, text: str, key: Any) -> None:
    assert keys_of_text("state", of, [text]) == [key]


@pytest.mark.parametrize(
    "text",
    [
        '["x", null]',
        '"ab"',
        '{"q": 1, "r": 2}',
        '["x", ["y"]]',
        '["x", {"y": 1}]',
        '["x"]',
        '["x", "y", "z"]',
        "[]",
        "12",
        "null",
        "x, y",
        "",
    ],
)
def test_a_text_that_is_no_key_of_several_columns(text: str) -> None:
    with pytest.raises(dt.errors.PlanError) as raised:
        keys_of_text("state", TEXTS, [text])
    assert str(raised.value) == (
        f"state: {text} is no key, which is a, b. Give a JSON list of the values of its columns."
    )


def test_a_text_for_each_column() -> None:
    assert key_of_column_texts("search", TEXTS, ["x", "null"]) == ("x", "null")
    assert key_of_column_texts("search", store(pa.string()), ['["x"]']) == '["x"]'
    each = "Give a value for each of its columns"
    for of, texts, shown in [
        (TEXTS, ["x"], f"x is no key, which is a, b. {each}"),
        (TEXTS, ["x", "y", "z"], f"x, y, z is no key, which is a, b. {each}"),
        (TEXTS, [], f"nothing is no key, which is a, b. {each}"),
        (store(pa.string()), ["x", "y"], "x, y is no key, which is a. Give its value"),
        (store(pa.int64()), ["x"], "x is no key, which is a. Give its value"),
    ]:
        with pytest.raises(dt.errors.PlanError) as raised:
            key_of_column_texts("search", of, texts)
        assert str(raised.value) == f"search: {shown}."
