"""Floats as keys: -0.0 is 0.0 and all NaNs are one, at any depth, in every runner; keys come out as
0.0 and the one NaN, a foreign key and other values as they are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.family import Source
from bench.parameters import slow_after
from bench.runners import CHANGELOG, GONE, PLACE, TIME, read, write_file
from pyspark.sql import DataFrame, SparkSession

import dovetail as dt
from dovetail import testing

Row = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A type of keys, and the key that has a float in it."""

    type: pa.DataType
    of: Callable[[float], Any]


KINDS = {
    "double": Kind(pa.float64(), lambda number: number),
    "struct": Kind(pa.struct([("d", pa.float32())]), lambda number: {"d": number}),
    "array": Kind(
        pa.list_(pa.struct([("d", pa.float64())])), lambda number: [{"d": 1.5}, {"d": number}]
    ),
}


def sources(kind: Kind) -> dict[str, Source]:
    """Two tables and two streams with a key k, and in some another column x of its type."""
    key, value = {"k": kind.type}, {"x": kind.type, "v": pa.float64()}
    return {
        "left": Source(False, key | value),
        "right": Source(False, key | {"w": pa.int64()}),
        "stream": Source(True, key | value),
        "other": Source(True, key | {"w": pa.int64()}),
    }


@dataclass(frozen=True)
class Case:
    """``odd``: the input whose k and x are -0.0 and some NaN; ``even``: the one that then brings
    0.0 and another NaN. Their v is -0.0, their w the number of the row.
    """

    build: Callable[[Mapping[str, Any]], dt.Table | dt.Stream]
    odd: str
    even: str | None
    rows: Sequence[Row]


NAN = math.nan
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
JOINED = [{"k": 0.0, "v": -0.0, "w": 0}, {"k": NAN, "v": -0.0, "w": 1}]
CASES = {
    "tables by key": Case(
        lambda of: of["left"].join(of["right"], select=["v", "w"]), "left", "right", JOINED
    ),
    "a side alone": Case(
        lambda of: of["left"].join(of["right"], how="outer", select=["v", "w"]),
        "left",
        None,
        [row | {"w": None} for row in JOINED],
    ),
    "by foreign key": Case(
        lambda of: of["left"].join(of["right"], on="x"),
        "left",
        "right",
        [row | {"x": x} for row, x in zip(JOINED, (-0.0, NAN), strict=True)],
    ),
    "right rows alone": Case(
        lambda of: of["left"].join(of["right"], on="x", how="right", select=["w"]),
        "right",
        None,
        [{"k": None, "right_k": 0.0, "w": 0}, {"k": None, "right_k": NAN, "w": 1}],
    ),
    "groups of a table": Case(
        lambda of: of["left"].group_by("x").agg(rows=dt.count(), least=dt.min("v")),
        "left",
        None,
        [{"x": 0.0, "rows": 1, "least": -0.0}, {"x": NAN, "rows": 1, "least": -0.0}],
    ),
    "groups of a stream": Case(
        lambda of: of["stream"].group_by("x").agg(keys=dt.count("k")),
        "stream",
        None,
        [{"x": 0.0, "keys": 1}, {"x": NAN, "keys": 1}],
    ),
    "windows": Case(
        lambda of: (
            of["stream"]
            .group_by("x")
            .window(dt.windows.tumbling("1 hour"))
            .agg(v=dt.min("v"))
            .join(of["right"], on="x", how="left")
            .to_stream(select=["x", "v", "w"], key="x")
        ),
        "right",
        "stream",
        [{"x": x, "v": -0.0, "w": w} for w, x in enumerate((0.0, NAN))],
    ),
    "streams": Case(
        lambda of: of["stream"].join(
            of["other"], within=dt.within(before="1 s", after="1 s"), select=["v", "w"]
        ),
        "stream",
        "other",
        JOINED,
    ),
    "looked up": Case(
        lambda of: of["stream"].join(of["right"], on="x", select=["v", "w"]),
        "right",
        "stream",
        JOINED,
    ),
    "looked up by another column": Case(
        lambda of: of["stream"].join(of["right"], on="x", how="left"),
        "stream",
        None,
        [{"k": x, "x": x, "v": -0.0, "w": None} for x in (0.0, NAN)],
    ),
}


def brought(case: Case, kind: Kind) -> list[tuple[str, Row]]:
    """The rows in their order, each with its input."""
    numbers = [(case.odd, (-0.0, OTHER_NAN))]
    numbers += [(case.even, (0.0, NAN))] if case.even else []
    return [
        (name, {"k": kind.of(x), "x": kind.of(x), "v": -0.0, "w": w})
        for name, pair in numbers
        for w, x in enumerate(pair)
    ]


def text(rows: Iterable[Row]) -> list[str]:
    """Rows as text in which -0.0 differs from 0.0."""
    return sorted(repr(sorted(row.items())) for row in rows)


def expected(case: Case, kind: Kind) -> list[str]:
    keys = ("k", "x", "right_k")
    return text(
        {n: kind.of(v) if n in keys and v is not None else v for n, v in row.items()}
        for row in case.rows
    )


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_in_the_driver(case: Case, kind: Kind) -> None:
    inputs = {
        name: (testing.stream if source.stream else testing.table)(
            name, key="k", schema=source.columns
        )
        for name, source in sources(kind).items()
    }
    driver = testing.Driver(case.build(inputs))
    for name, row in brought(case, kind):
        own = {column: row[column] for column in sources(kind)[name].columns}
        driver.pipe(inputs[name], own, timestamp=0)
    emitted = driver.read()
    assert text({**change.key, **(change.values or {})} for change in emitted) == expected(
        case, kind
    )


def frames(spark: SparkSession, folder: Path, case: Case, kind: Kind) -> dict[str, DataFrame]:
    """The inputs' rows as files, read as static frames."""
    for name, source in sources(kind).items():
        rows = [
            {column: row[column] for column in source.columns} | {TIME: 0, GONE: False, PLACE: n}
            for n, (own, row) in enumerate(brought(case, kind))
            if own == name
        ]
        write_file(folder / name, rows, source.columns | CHANGELOG, 0)
    return {name: spark.read.parquet(str(folder / name)) for name in sources(kind)}


def results(changes: DataFrame) -> list[str]:
    rows = changes.drop("_change", "_timestamp", "_position").collect()
    return text(row.asDict(recursive=True) for row in rows)


@pytest.mark.parametrize(
    ("case", "kind"),
    slow_after(3, zip(CASES.values(), cycle(KINDS.values()), strict=False)),
    ids=CASES,
)
def test_over_static_frames(spark: SparkSession, tmp_path: Path, case: Case, kind: Kind) -> None:
    static = frames(spark, tmp_path, case, kind)
    topology = case.build(read(sources(kind), static))
    assert results(topology.changelog(buckets=1)) == expected(case, kind)


def test_in_a_streaming_query(spark: SparkSession, tmp_path: Path) -> None:
    case, kind = CASES["looked up by another column"], KINDS["struct"]
    static = frames(spark, tmp_path, case, kind)
    streaming = {
        name: spark.readStream.schema(frame.schema).parquet(str(tmp_path / name))
        for name, frame in static.items()
    }
    emitted: list[str] = []
    query = case.build(read(sources(kind), streaming)).write_stream(
        dt.to_foreach_batch(lambda changes, _: emitted.extend(results(changes))),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger={"availableNow": True},
        buckets=1,
    )
    query.awaitTermination()
    assert emitted == expected(case, kind)
