"""Whatever reads a versioned table sees what ``materialize()`` of it would give."""

from __future__ import annotations

import random

import pytest
from fuzz import judges
from fuzz.latest import LAST, drawn_for, last_rows, table

from dovetail import testing


@pytest.mark.parametrize("last", LAST)
def test_readers_see_the_rows_that_are_kept(last: str) -> None:
    random_ = random.Random(last)
    cases = [drawn_for(random_, last) for _ in range(2)]
    for case in cases:
        assert judges.difference(case) is None
    assert any(last_rows(case) for case in cases)


def test_a_late_row_of_a_table_that_is_written_as_it_is_emits_nothing() -> None:
    versions = table("a", "1 h")
    driver = testing.Driver(versions)
    rows = [("first", 10, False), ("newest", 30, False), ("late", 20, False), ("", 15, True)]
    for value, time, deleted in rows:
        driver.pipe(versions, {"id": 1, "v": value}, timestamp=time, deleted=deleted)
    assert [c.values and c.values["v"] for c in driver.read()] == ["first", "newest"]
