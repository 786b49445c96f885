"""Every type that Delta stores comes through, from either side, written and merged."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.parameters import slow_after
from delta_rows import add_rows, rows_of
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import dovetail as dt

VALUES = {
    "truth": ("boolean", "true", "false"),
    "tiny": ("tinyint", "127Y", "-128Y"),
    "short": ("smallint", "32767S", "-32768S"),
    "whole": ("int", "2147483647", "-2147483648"),
    "long": ("bigint", "9223372036854775807L", "-9223372036854775808L"),
    "single": ("float", "float('-Infinity')", "float('NaN')"),
    "double": ("double", "0.0D", "-0.0D"),
    "exact": ("decimal(38,10)", "1234567890123456789012345678.0123456789", "-0.0000000001"),
    "text": ("string", "''", "'a''b \\u0000 ü'"),
    "bytes": ("binary", "X'00FF'", "X''"),
    "day": ("date", "DATE'0001-01-01'", "DATE'9999-12-31'"),
    "moment": ("timestamp", "TIMESTAMP'1969-12-31 23:59:59.999999Z'", "TIMESTAMP'2024-10-27'"),
    "local": ("timestamp_ntz", "TIMESTAMP_NTZ'2024-03-31 02:30:00'", "TIMESTAMP_NTZ'1900-01-01'"),
    "list": ("array<int>", "array(1, NULL)", "array()"),
    "pairs": ("map<string,array<double>>", "map('a', array(1D), 'b', NULL)", "map()"),
    "nested": ("struct<`a.b`:int,c:map<int,int>>", "struct(1, map(1, 2))", "struct(NULL, NULL)"),
    "any": ("variant", "parse_json('{\"a\": [1, null]}')", "parse_json('null')"),
    "dotted.name": ("string", "'x'", "'y'"),
}  # fmt: skip


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


NESTED = ("local", "list", "pairs", "nested", "any")
"""The columns whose types keep rows from being held in the driver."""
PLAIN = [name for name in VALUES if name not in NESTED]


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "few"),
    slow_after(2, [(PLAIN, True), ([*NESTED, "double", "dotted.name"], False), ([*VALUES], False)]),
    ids=["plain", "nested", "all"],
)
def test_all_types(delta_spark: SparkSession, tmp_path: Path, names: list[str], few: bool) -> None:
    """Rows of nulls, of the first values, of the second ones; then they change places. ``few``: the
    changes are held in the driver.
    """
    types = {name: VALUES[name] for name in names}
    kinds = delta_spark.sql(
        " UNION ALL ".join(
            f"SELECT {kind} AS kind, " + ", ".join(
                f"CAST({'NULL' if kind == 2 else values[1 + kind]} AS {values[0]}) "
                f"AS {quoted(name)}"
                for name, values in types.items()
            )
            for kind in range(3)
        )
    )  # fmt: skip
    by_kind = {row["kind"]: row.asDict() for row in kinds.collect()}
    assert len({str(row) for row in by_kind.values()}) == 3
    paths = {side: str(tmp_path / side) for side in ("left", "right")}

    def put(version: int) -> None:
        for side, path in paths.items():
            frame = kinds.select(
                F.expr(f"pmod(kind - {version}, 3)").alias(f"{side}_id"),
                *(F.col(quoted(name)).alias(side[0] + name) for name in types),
            ).coalesce(1)
            if few and version:
                delta_spark.sql(
                    f"MERGE INTO delta.`{path}` t USING {{new}} s ON t.{side}_id = s.{side}_id "
                    "WHEN MATCHED THEN UPDATE SET *",
                    new=frame,
                )
            else:
                frame.write.format("delta").mode("overwrite").save(path)

    put(0)
    left, right = (
        dt.SnapshotTable.from_delta(delta_spark, path, key=f"{side}_id")
        for side, path in paths.items()
    )
    joined = left.join(right, on="left_id", how="outer")
    target = str(tmp_path / "target")
    for version in (0, 1):
        if version:
            put(version)
        joined.refresh(target)
        rows = [by_kind[(key + version) % 3] for key in range(3)]
        expected = [
            {"left_id": key} | {side + name: row[name] for side in "lr" for name in types}
            for key, row in enumerate(rows)
        ]
        stored = delta_spark.read.format("delta").load(target).collect()
        assert [str(row.asDict()) for row in sorted(stored)] == [str(row) for row in expected]


@pytest.mark.parametrize("type_", slow_after(1, ["double", "float"]))
def test_a_zero_that_changes_its_sign_is_a_change(
    delta_spark: SparkSession, tmp_path: Path, type_: str
) -> None:
    path, target = str(tmp_path / "zeros"), str(tmp_path / "target")
    add_rows(path, f"id long, v {type_}", (1, 0.0))
    table = dt.SnapshotTable.from_delta(delta_spark, path, key="id")
    table.refresh(target)
    delta_spark.sql(f"UPDATE delta.`{path}` SET v = CAST('-0.0' AS {type_})")
    table.refresh(target)
    (row,) = rows_of(target)
    assert str(row["v"]) == "-0.0"


def test_columns_may_have_any_names_but_those_refused(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    """Such as those that other libraries take for ages, versions and counts."""
    left, right, target = (str(tmp_path / name) for name in ("left", "right", "target"))
    of_left, of_right = "image turns gone count", "_old _new come count"
    for path, names, age in ((left, of_left, 7), (right, of_right, 8)):
        keys_sql = "{} string, {} int, {} int, {} double".format(*names.split())
        add_rows(path, f"{keys_sql}, _age int, _version long", ("a", 1, 2, 0.5, age, 3))
    keys = dict(zip(of_left.split(), of_right.split(), strict=True))
    joined = dt.SnapshotTable.from_delta(delta_spark, left, key=[*keys]).join(
        dt.SnapshotTable.from_delta(delta_spark, right, key=[*keys.values()]),
        on=keys,
        select={"l": "left._age", "r": "right._age", "_version": "left._version"},
    )
    joined.refresh(target)
    for table, age in ((left, 70), (right, 80)):
        delta_spark.sql(f"UPDATE delta.`{table}` SET _age = {age}, _version = 30L")
    joined.refresh(target, way="changes")
    (row,) = rows_of(target)
    assert tuple(row.values()) == ("a", 1, 2, 0.5, 70, 80, 30)
