"""Whatever reads a versioned table sees what ``materialize()`` of it would give."""

from __future__ import annotations

from itertools import islice

import pytest
from fuzz import judges
from fuzz.latest import LAST, table

from dovetail import testing


@pytest.mark.parametrize("last", LAST)
def test_readers_see_the_rows_that_are_kept(last: str) -> None:
    numbers = (n for n in range(10**3) if _last(n) == last)
    for number in islice(numbers, 3):
        assert judges.difference(judges.drawn(1, number, only="latest")) is None


def _last(number: int) -> str:
    return str(judges.drawn(1, number, only="latest").topology["last"])


def test_a_late_row_of_a_table_that_is_written_as_it_is_emits_nothing() -> None:
    versions = table("a", "1 h")
    driver = testing.Driver(versions)
    rows = [("first", 10, False), ("newest", 30, False), ("late", 20, False), ("", 15, True)]
    for value, time, deleted in rows:
        driver.pipe(versions, {"id": 1, "v": value}, timestamp=time, deleted=deleted)
    assert [c.values and c.values["v"] for c in driver.read()] == ["first", "newest"]
