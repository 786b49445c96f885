"""The names by which a stage tells its inputs apart."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dovetail import testing
from dovetail.physical.source import number_repeated_names


@pytest.mark.parametrize(
    ("names", "numbered"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "b", "a", "a"], ["a", "b", "a#2", "a#3"]),
        (["a", "a", "a#2"], ["a", "a#3", "a#2"]),
        (["a#2", "a", "a", "a#2"], ["a#2", "a", "a#3", "a#2#2"]),
        (["a", "a", "a#2", "a", "a#2"], ["a", "a#3", "a#2", "a#4", "a#2#2"]),
    ],
)
def test_repeated_names_are_numbered(names: list[str], numbered: list[str]) -> None:
    assert number_repeated_names(names) == numbered
    assert number_repeated_names(numbered) == numbered


def test_a_table_may_have_the_number_of_another_one() -> None:
    columns = {"x": "a", "y": "a", "z": "a#2"}
    tables = {
        column: testing.table(name, key="id", schema={"id": pa.int64(), column: pa.int64()})
        for column, name in columns.items()
    }
    driver = testing.Driver(tables["x"].join(tables["y"]).join(tables["z"]))
    for column, table in tables.items():
        driver.pipe(table, {"id": 1, column: 5}, timestamp=1)
    assert driver.explain_row(1).values == {"x": 5, "y": 5, "z": 5}
    driver.pipe(tables["z"], {"id": 1}, timestamp=2, deleted=True)
    assert driver.explain_row(1).reason == "a#2 has no row with id 1"
