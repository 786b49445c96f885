"""What commands write, without a checkpoint."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from dovetail.command.output import literal_console, print_table
from dovetail.command.top import QueryView, query_screen


def test_texts_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id", "[a]"], [["[draft] :x:", "[/b] memo"]])
    store = {"stage": 1, "store": "[a]", "table": "[/b] :x:", "rows": 1, "bytes": 1}
    view = QueryView("[c]", stores=[{**store, "segments": 1, "stream_time": None}])
    literal_console(width=100).print(query_screen(view, datetime.now(timezone.utc)))
    _, header, _, row, _, headline, _, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["┃", "id", "┃", "[a]", "┃"]
    assert row.split() == ["│", "[draft]", ":x:", "│", "[/b]", "memo", "│"]
    assert headline.startswith("[c]  no micro-batch")
    assert line.split()[:4] == ["1.", "[a]", "[/b]", ":x:"]
