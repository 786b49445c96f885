"""Types of columns. Records hold small whole numbers; a type says what value each stands for, so
that a case stays plain and shrinks to small numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

TEXTS = ["", "a", "ab", "é", "𝕒", "z\x00", "ﬁ", "B"]
FLOATS = [0.0, -0.0, float("nan"), float("inf"), 1e17, 0.1, -1e17, 1.0, 1e308]


def _text(code: int) -> str:
    return TEXTS[code] if code < len(TEXTS) else f"t{code}"


def _float(code: int) -> float:
    return FLOATS[code] if code < len(FLOATS) else code / 4


def _wide(code: int) -> str:
    """Longer than what Arrow would hold in place, all with one beginning."""
    return "the same beginning of a long text " * 3 + str(code)


TYPES: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "long": (pa.int64(), lambda code: code),
    "int": (pa.int32(), lambda code: -code),
    "text": (pa.string(), _text),
    "wide": (pa.string(), _wide),
    "bytes": (pa.binary(), lambda code: _text(code).encode()),
    "bool": (pa.bool_(), lambda code: code % 2 == 1),
    "decimal": (pa.decimal128(10, 2), lambda code: Decimal(code).scaleb(-2)),
    "date": (pa.date32(), lambda code: date(2024, 2, 28) + timedelta(days=code)),
    "moment": (pa.timestamp("us", "UTC"), lambda code: code * 1000),
    "start": (pa.timestamp("us", "UTC"), lambda code: 1_000_000 + 10 * code),
    "quarter": (pa.float64(), lambda code: code / 4),
    "float": (pa.float64(), _float),
}
KEYS = ["long", "int", "text", "wide", "bytes", "date", "decimal", "moment"]
VALUES = [*TYPES]


def array(name: str, codes: Sequence[int | None]) -> pa.Array:
    """The values that these numbers stand for."""
    type_, decode = TYPES[name]
    known: dict[int | None, Any] = {None: None}
    for code in codes:
        if code not in known:
            known[code] = decode(code)  # type: ignore[arg-type]
    return pa.array([known[code] for code in codes], type_)


def plain(column: pa.ChunkedArray) -> list[Any]:
    """Values that are equal where they mean the same: moments as numbers, one NaN, and lists in
    one order.
    """
    type_ = column.type
    if pa.types.is_timestamp(type_):
        return column.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    values = column.to_pylist()
    if pa.types.is_list(type_):
        element = type_.value_type
        flat = (None if v is None else plain(pa.chunked_array([v], element)) for v in values)
        return [None if v is None else tuple(sorted(v, key=repr)) for v in flat]
    if pa.types.is_floating(type_):
        return ["nan" if v is not None and v != v else v for v in values]
    return values  # type: ignore[no-any-return]
