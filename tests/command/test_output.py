"""What commands write, without a checkpoint."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from dovetail.command.output import (
    as_text,
    literal_console,
    plain_value,
    print_json,
    print_table,
)
from dovetail.command.top import QueryView, query_screen


def test_texts_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id", "[a]"], [["[draft] :x:", "[/b]\x1b[2J memo"]])
    store = {"stage": 1, "store": "[a]", "table": "[/b] :x:", "rows": 1, "bytes": 1}
    view = QueryView("[c]", stores=[{**store, "segments": 1, "stream_time": None}])
    literal_console(width=100).print(query_screen(view, datetime.now(timezone.utc)))
    _, header, _, row, _, headline, _, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["┃", "id", "┃", "[a]", "┃"]
    assert row.split() == ["│", "[draft]", ":x:", "│", r"[/b]\u001b[2J", "memo", "│"]
    assert headline.startswith("[c]  no micro-batch")
    assert line.split()[:4] == ["1.", "[a]", "[/b]", ":x:"]


def test_values_of_arrow_and_of_spark(capsys: pytest.CaptureFixture[str]) -> None:
    """Both give the same text, wherever this process is."""
    noon = datetime.fromisoformat("2024-07-01T12:00:00")
    instant, wall = pa.timestamp("us", "UTC"), pa.timestamp("us")
    nested = pa.struct([("m", pa.map_(instant, wall)), ("l", pa.list_(wall))])
    struct = pa.struct([("a", pa.int64())])
    here = noon.replace(tzinfo=timezone.utc).astimezone().replace(tzinfo=None)
    cases: list[tuple[Any, Any, pa.DataType, Any]] = [
        (noon.replace(tzinfo=timezone.utc), here, instant, "2024-07-01T12:00:00Z"),
        (noon, noon, wall, "2024-07-01T12:00:00"),
        ([(7, b"a")], {7: bytearray(b"a")}, pa.map_(pa.int64(), pa.binary()), {"7": "YQ=="}),
        (math.nan, math.nan, pa.float64(), "NaN"),
        ([-math.inf, None], [-math.inf, None], pa.list_(pa.float32()), ["-Infinity", None]),
        (
            {"m": [(noon.replace(tzinfo=timezone.utc), noon)], "l": [noon]},
            {"m": {here: noon}, "l": [noon]},
            nested,
            {"m": {"2024-07-01T12:00:00Z": "2024-07-01T12:00:00"}, "l": ["2024-07-01T12:00:00"]},
        ),
        (None, None, nested, None),
        ([({"a": 1}, 2)], {Row(a=1): 2}, pa.map_(struct, pa.int64()), [[{"a": 1}, 2]]),
    ]
    for of_arrow, of_spark, type_, expected in cases:
        for value in (of_arrow, of_spark):
            print_json({"v": plain_value(value, type_)})
            assert json.loads(capsys.readouterr().out) == {"v": expected}
    assert as_text(noon) == "2024-07-01T12:00:00"
