"""Tables that Iceberg's own library in Java has written, with deletes of each kind."""

from __future__ import annotations

from pathlib import Path

import iceberg_tables as iceberg
import pytest
from bench.parameters import slow_after
from iceberg_java import JavaTable, java


@pytest.mark.parametrize(
    ("version", "partitioned"),
    slow_after(1, [(3, True), (2, True), (2, False), (3, False)]),
)
def test_java_tables_are_read(version: int, partitioned: bool, tmp_path: Path) -> None:
    with java() as gateway:
        made = JavaTable(gateway, tmp_path / "tables", version, partitioned=partitioned)
        table = made.table
        x = made.data("x", [(1, 1), (2, 2), (3, 3), (4, 4)])
        y = made.data("y", [(11, 1), (12, 2)])
        table.newAppend().appendFile(x).appendFile(y).commit()
        upsert = table.newRowDelta().addDeletes(made.equality_deletes("x", [2]))
        upsert.addRows(made.data("x", [(2, 9)])).commit()
        for deletes in made.positions("x", x.location(), [0, 2]):
            table.newRowDelta().addDeletes(deletes).commit()
        same = made.data("y", [(11, 1), (12, 2)])
        table.newRewrite().rewriteFiles(made.set(y), made.set(same)).commit()
        other = made.data("y", [(11, 1), (12, 5)])
        table.newOverwrite().deleteFile(same).addFile(other).commit()
        for deletes in made.positions("y", other.location(), [1]):
            table.newRowDelta().addDeletes(deletes).commit()
        table.newDelete().deleteFile(x).commit()
        location = made.location

    (tmp_path / "catalog").mkdir()
    catalog = iceberg.properties(tmp_path / "catalog")
    iceberg.opened(catalog).register_table("shop.t", location)
    changes = {
        version: {i: tuple(row and row["v"] for row in sides) for i, sides in changed.items()}
        for version, changed in iceberg.differences(iceberg.feed(catalog, iceberg.FIRST)).items()
    }
    assert changes == {
        1: {1: (None, 1), 2: (None, 2), 3: (None, 3), 4: (None, 4), 11: (None, 1), 12: (None, 2)},
        2: {2: (2, 9)},
        3: {1: (1, None), 3: (3, None)},
        5: {12: (2, 5)},
        6: {12: (5, None)},
        7: {4: (4, None)},
    }
    assert sorted((row["id"], row["v"]) for row in iceberg.feed(catalog, iceberg.CONTENT)) == [
        (2, 9),
        (11, 1),
    ]
