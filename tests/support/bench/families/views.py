"""Views of tables and streams (``models.views``)."""

from __future__ import annotations

import atexit
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

import dovetail as dt
from bench.family import Row, Source, as_they_are, in_milliseconds, moved, own_key, span, value_of
from bench.models import views
from bench.models.views import Pipeline
from bench.records import Answers, Batches, Record, Result

FOLDERS = ("view",)
flushed = as_they_are
later = moved
read_key = own_key
unit_us = in_milliseconds

STEPS = (
    *("deduplicate", "expire", "where", "swap", "to_stream", "to_table", "key_by", "explode"),
    *("positions", "former", "nulls", "nulls_of_v"),
    *("count", "lookup", "lookup_left", "to_changes", "columns", "materialize"),
    *(
        "table_key",
        "computed",
        "fails",
        "fails_where",
        "fails_select",
        "fails_key",
        "fails_table_key",
    ),
    *("lookup_cached", "told"),
    *("expect_drop", "expect_warn", "expect_letter"),
)
ARRAYS = ("A", "L")
_COLUMNS = {"k": pa.string(), "v": pa.string(), "ok": pa.bool_()}
_ARRAYS = {"k": pa.string(), "v": pa.list_(pa.string())}
_PATCHES = {"k": pa.string(), "v": pa.string(), "w": pa.string(), "u": pa.list_(pa.string())}
_OTHERS = {"A": _ARRAYS, "L": _ARRAYS, "P": _PATCHES}


def read_join(folder: str, text: str, windows: Mapping[str, str]) -> Pipeline:
    """``S union R where to_table``.

    >>> read_join("view", "S union R where to_table", {})
    Pipeline(inputs=('S', 'R'), steps=('where', 'to_table'))
    >>> read_join("view", "S deduplicate 3 where", {})
    Pipeline(inputs=('S',), steps=('deduplicate 3', 'where'))
    """
    words = text.split()
    inputs = [words.pop(0)]
    while words[:1] == ["union"]:
        inputs.append(words[1])
        del words[:2]
    steps: list[str] = []
    for word in words:
        if word.isdigit() and steps:
            steps[-1] += f" {word}"
        else:
            steps.append(word)
    if not set(inputs) <= set("TUSRALP") or not {s.split()[0] for s in steps} <= set(STEPS):
        raise ValueError(f"not a view: {text}")
    return Pipeline(tuple(inputs), tuple(steps))


def read_value(name: str, word: str) -> Any:
    """``x.y`` of arrays; ``+x`` and ``-x`` of rows that do and do not meet the condition."""
    if name == "P":
        return tuple(map(value_of, word.split(".")))
    if name in ARRAYS:
        return (None if word == "null" else tuple(one for one in word.split(".") if one),)
    met = {"+": True, "-": False}.get(word[0])
    return value_of(word if met is None else word[1:]), met


def width(join: Pipeline) -> int:
    return 1


def each_record(join: Pipeline, records: Sequence[Record]) -> Iterator[list[Result]]:
    return views.each_record(join, records)


def each_batch(join: Pipeline, batches: Batches) -> Iterator[list[Result]]:
    return views.each_batch(join, batches)


def at_end(join: Pipeline, records: Sequence[Record]) -> list[Result]:
    return []


def arranged(results: Sequence[Result]) -> list[Result]:
    """In the order in which they were caused."""
    return list(results)


def sources(join: Pipeline) -> dict[str, Source]:
    return {name: Source(name in "SRA", _OTHERS.get(name, _COLUMNS)) for name in join.inputs}


def build(join: Pipeline, inputs: Mapping[str, Any]) -> Any:
    first, *others = (inputs[name] for name in join.inputs)
    made = first.union(*others, name="both") if others else first
    for step in join.steps:
        word, *numbers = step.split()
        made = _STEPS[word](made, *numbers) if word in _STEPS else getattr(made, word)()
    return made


def _lookup(made: Any, how: str, **options: Any) -> Any:
    return made.lookup(
        dt.lookups.sqlite(
            _store(), "found", key="id", indexes=[dt.lookups.index("name", name="by name")]
        ),
        columns={"id": pa.int64(), "name": pa.string(), "found": pa.string()},
        on={"v": "name"},
        how=how,
        select={"v": "found", "ok": "ok"},
        **options,
    )


def _keyed(made: Any) -> Any:
    """With the former key as the value."""
    return made.select("ok", v="k").rename({"w": "k"})


def _fails(item: str) -> Any:
    """The item, but for one value of which nothing can be made."""
    return F.expr(f"if(v = 'b', raise_error('not b'), {item})")


_STEPS: dict[str, Callable[..., Any]] = {
    "where": lambda made: made.where("ok"),
    "swap": lambda made: made.rename({"v": "w"}).select("ok", v="w"),
    "columns": lambda made: (
        made.with_columns(w="v", spare="ok").drop("v", "spare").rename({"w": "v"})
    ),
    "key_by": lambda made: made.key_by("v").rename({"k": "v", "v": "k"}),
    "table_key": lambda made: made.key_by("v", duplicates="last").rename({"k": "v", "v": "k"}),
    "deduplicate": lambda made, within: made.deduplicate(within=span(int(within))),
    "expire": lambda made, after: made.expire(after=span(int(after))),
    "explode": lambda made: made.explode("v"),
    "positions": lambda made: made.explode("v", position="n"),
    "former": lambda made: made.keep_former(unsent="u", missing="null"),
    "nulls": lambda made: made.drop("u").ignore_null_updates(),
    "nulls_of_v": lambda made: made.drop("u").ignore_null_updates("v"),
    "count": lambda made: made.group_by("v").agg(n=dt.count()).rename({"v": "k", "n": "v"}),
    "lookup": lambda made: _lookup(made, "inner"),
    "lookup_left": lambda made: _lookup(made, "left"),
    "lookup_cached": lambda made: _lookup(
        made, "left", cache=dt.lookups.cache(max_age="1 hour", rows=2), name="cached"
    ),
    "told": lambda made: made.to_changes(column="what", kinds=("i", "b", "a", "d")).rename(
        {"what": "kind"}
    ),
    "fails_select": lambda made: made.select("ok", v=_fails("v"), errors="dead_letter"),
    "fails_key": lambda made: _keyed(made.key_by(w=_fails("v"), errors="dead_letter")),
    "fails_table_key": lambda made: _keyed(
        made.key_by(w=_fails("v"), duplicates="last", errors="dead_letter")
    ),
    "computed": lambda made: made.with_columns(v=F.concat("v", F.lit(""))).where(
        "ok IS NOT NULL OR v <> ''"
    ),
    "expect_drop": lambda made: made.expect("ok", on_fail="drop", name="is ok"),
    "expect_warn": lambda made: made.expect("ok", on_fail="warn"),
    "expect_letter": lambda made: made.expect(_fails("ok"), on_fail="dead_letter", name="ok"),
    "fails": lambda made: made.with_columns(v=_fails("v"), errors="dead_letter"),
    "fails_where": lambda made: made.where(_fails("ok"), errors="dead_letter"),
}
"""The steps that are not calls of their names without arguments."""


@cache
def _store() -> Path:
    """A SQLite file with what ``models.views.STORE`` says, as long as the process."""
    folder = tempfile.TemporaryDirectory(prefix="dovetail-store-")
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "store.db"
    with closing(sqlite3.connect(path)) as store:
        store.execute("CREATE TABLE found (id INTEGER PRIMARY KEY, name TEXT, found TEXT)")
        pairs = [(name, one) for name, found in views.STORE.items() for one in found]
        rows = [(number, *pair) for number, pair in enumerate(pairs)]
        store.executemany("INSERT INTO found VALUES (?, ?, ?)", reversed(rows))
        store.commit()
    return path


def row(join: Pipeline, record: Record, number: int) -> Row:
    if record.table == "P":
        pair = dict(zip("vw", record.value or (None, None), strict=True))
        unsent = [name for name, one in pair.items() if one == "_"]
        return {"k": record.key, "u": unsent} | {n: None if n in unsent else pair[n] for n in pair}
    value, *met = record.value or (None,)
    return {"k": record.key, "v": value} | (
        {} if record.table in ARRAYS else {"ok": (*met, None)[0]}
    )


def result(join: Pipeline, row: Row, time: int, *, deleted: bool) -> Result:
    value = None if deleted else (None if row["v"] is None else str(row["v"]),)
    if join.inputs == ("P",) and not deleted:
        value = (f"{row['v']}.{row['w']}",)
    if join.inputs == ("L",):
        return Result(f"{row['k']}.{row['n' if 'positions' in join.steps else 'v']}", value, time)
    if "kind" in row:
        kind = row["kind"].removeprefix("update_")[0]
        value = (f"{kind}{row['v']}",)
    return Result(row["k"], value, time)


def kafka_can(join: Pipeline, records: Sequence[Record]) -> bool:
    """The oracle has joins and windows only."""
    return False


def asked(join: Pipeline, records: Sequence[Record]) -> dict[str, Any]:
    raise NotImplementedError


def emitted(join: Pipeline, change: Mapping[str, Any]) -> Result:
    raise NotImplementedError


def agree(join: Pipeline, records: Sequence[Record], given: Answers, kafka: Answers) -> bool:
    raise NotImplementedError
