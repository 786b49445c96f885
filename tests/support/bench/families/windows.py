"""Aggregates, windowed tables and what they are joined with (``models.windows``).

The streams ``L`` and ``R`` have keys of their own and are gathered by another column, so that rows
are partitioned by what they are grouped by.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

import dovetail as dt
from bench.families.tables import parsed
from bench.family import Row, Source, value_of
from bench.models import windows as model
from bench.models.gathering import Windows
from bench.models.windows import (
    GATHERED,
    INPUTS,
    STREAMS,
    WINDOWED,
    Joined,
    Topology,
    View,
    has_windows,
    in_key_order,
    inputs_of,
    seen,
    shown_group,
)
from bench.records import Answers, Batches, Record, Result, flat

FOLDERS = ("aggregate", "windowed")
FLUSHING = "~"
SHOWS = ("top", "lowest", "distinct")
NUMBER, TEXT, MOMENT = pa.int64(), pa.string(), pa.timestamp("us", "UTC")
COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "L": {"id": NUMBER, "k": TEXT, "v": TEXT},
    "R": {"id": NUMBER, "k": TEXT, "v": TEXT},
    "H": {"id": NUMBER, "g": TEXT, "v": TEXT},
    "G": {"id": TEXT, "g": TEXT, "v": TEXT},
    "T": {"k": TEXT, "t": TEXT},
    "S": {"k": TEXT, "at": MOMENT, "s": TEXT},
    "U": {"k": TEXT, "at": MOMENT, "u": TEXT},
}


def read_join(folder: str, text: str, windows: Mapping[str, str]) -> View:
    """``(L left T) inner R, shift -10, final`` or ``G, top 2`` over these windows.

    >>> read_join("windowed", "L left T", {"L": "session 5"}).topology
    Joined(left='L', how='left', right='T', shift=0)
    """
    expression, *options = (part.strip() for part in text.split(","))
    topology: Topology = parsed(expression, Joined, _input)
    final, shows = False, ""
    for option in options:
        word, *value = option.split()
        if word == "final":
            final = True
        elif word in SHOWS:
            shows = option
        elif word == "shift" and isinstance(topology, Joined):
            topology = replace(topology, shift=int(value[0]))
        else:
            raise ValueError(f"unknown option {option}")
    known = {name: read_windows(text) for name, text in windows.items()}
    return View(topology, tuple((n, known[n]) for n in _once(topology) if n in known), final, shows)


def _input(name: str) -> str:
    if name not in INPUTS:
        raise ValueError(f"no input {name}")
    return name


def _once(topology: Topology) -> list[str]:
    """The inputs, each once."""
    return list(dict.fromkeys(inputs_of(topology)))


def read_windows(text: str) -> Windows:
    """``hopping 10 advance 5 grace 2`` as a description.

    >>> read_windows("hopping 10 advance 5 grace 2")
    Windows(kind='hopping', size=10, advance=5, grace=2, retention=None)
    """
    kind, size, *words = text.split()
    options: dict[str, Any] = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    if kind == "tumbling":
        options["advance"] = int(size)
    try:
        return Windows(kind, int(size), **options)
    except TypeError as error:
        raise ValueError(f"not windows: {text}") from error


def read_value(name: str, word: str) -> Any:
    """With the group, or the start of the window that it looks at, before it."""
    if name not in "GHSU":
        return value_of(word)
    where, own = word.split(":")
    found = value_of(where)
    return (int(found) if found and name in "SU" else found, value_of(own))


def read_key(join: View, words: Sequence[str], record: Record | None) -> Any:
    """Of a windowed table with its window, ``0-10``."""
    words, bounds = list(words), ()
    if has_windows(join.topology):
        found = re.fullmatch(r"(-?\d+)-(-?\d+)", words.pop() if words else "")
        if found is None:
            raise ValueError("no window before a result")
        bounds = (int(found[1]), int(found[2]))  # type: ignore[assignment]
    if words:
        (word,) = words
        return (value_of(word), *bounds)
    if record is None or record.table in "GH":
        raise ValueError("no key before a result")
    return (record.key, *bounds)


def width(join: View) -> int:
    return len(inputs_of(join.topology))


def later(record: Record, by: int) -> Record:
    """With the window that it looks at."""
    value = record.value
    if record.table in "SU" and value is not None and value[0] is not None:
        value = (value[0] + by, value[1])
    return record._replace(time=record.time + by, value=value)


def each_record(join: View, records: Sequence[Record]) -> Iterator[list[Result]]:
    return map(seen, model.each_record(join, records))


def each_batch(join: View, batches: Batches) -> Iterator[list[Result]]:
    """A window's last row comes once, so its net is itself."""
    if join.final:
        changes = each_record(join, flat(batches))
        return (flat(next(changes) for _ in batch) for batch in batches)
    return map(seen, model.each_batch(join, batches))


def at_end(join: View, records: Sequence[Record]) -> list[Result]:
    return seen(model.at_end(join, records))


def arranged(results: Sequence[Result]) -> list[Result]:
    """By key."""
    return in_key_order(results)


def unit_us(join: View) -> int:
    """Sliding windows need the smallest."""
    return 1 if any(w.kind == "sliding" for _, w in join.windows) else 1000


def sources(join: View) -> dict[str, Source]:
    streams = (*WINDOWED, *STREAMS, "H")
    more = {"b": TEXT} if join.shows else {}
    return {name: Source(name in streams, COLUMNS[name] | more) for name in _once(join.topology)}


def build(join: View, inputs: Mapping[str, Any]) -> Any:
    root = windowed(join, inputs)
    if not has_windows(join.topology):
        return root
    return root.to_table(windows="on_close" if join.final else "on_change")


def windowed(join: View, inputs: Mapping[str, Any]) -> Any:
    """The view before it leaves its windows."""
    return _made(join, join.topology, inputs, {})


def _made(view: View, topology: Topology, inputs: Mapping[str, Any], built: Any) -> Any:
    """Each operator once. Value columns are numbered by the input, from left to right."""
    if topology not in built:
        if isinstance(topology, Joined):
            sides = (_made(view, s, inputs, built) for s in (topology.left, topology.right))
            built[topology] = _joined(view, topology, *sides)
        elif topology in (*WINDOWED, *GATHERED):
            grouped = inputs[topology].group_by("k" if topology in WINDOWED else "g")
            if topology in WINDOWED:
                grouped = grouped.window(_windows(view, dict(view.windows)[topology]))
            built[topology] = grouped.agg(**_aggregates(view))
        else:
            built[topology] = inputs[topology]
    return built[topology]


def _aggregates(view: View) -> dict[str, dt.typing.AggregateCall]:
    if not view.shows:
        return {"n0": dt.count(), "v0": dt.collect_list("v")}
    if view.shows == "distinct":
        return {"v0": dt.count_distinct("v")}
    which, n = view.shows.split()
    return {"v0": dt.top(int(n), "v", by="b", descending=which == "top")}


def _joined(view: View, join: Joined, left: Any, right: Any) -> Any:
    """A join with its columns numbered anew."""
    keys = (side.plan.base_key.names for side in (left, right))
    options: dict[str, Any] = {"on": dict(zip(*keys, strict=True))}
    if join.shift:
        options["shift"] = timedelta(microseconds=join.shift * unit_us(view))
    if not has_windows(join.left):
        options["window_of"] = "at"
    select = {}
    ours = inputs_of(join.left)
    for side, names, first in (("left", ours, 0), ("right", inputs_of(join.right), len(ours))):
        alone = len(names) == 1
        for number, name in enumerate(names):
            for column in "nv" if name in WINDOWED else "v":
                held = {"T": "t", "S": "s", "U": "u"}.get(name) if alone else None
                source = held or f"{column}{number}"
                select[f"{column}{first + number}"] = f"{side}.{source}"
    return left.join(right, how=join.how, select=select, **options)


def _windows(view: View, windows: Windows) -> dt.windows.Windows:
    """Windows as users write them."""
    unit = unit_us(view)
    options = {"grace": timedelta(microseconds=windows.grace * unit)}
    if windows.retention is not None:
        options["retention"] = timedelta(microseconds=windows.retention * unit)
    if windows.kind == "hopping":
        options["advance"] = timedelta(microseconds=windows.advance * unit)
    made: dt.windows.Windows = getattr(dt.windows, windows.kind)(
        timedelta(microseconds=windows.size * unit), **options
    )
    return made


def row(join: View, record: Record, number: int) -> Row:
    key = "id" if "id" in COLUMNS[record.table] else "k"
    if record.table in WINDOWED:
        return {"id": number, "k": record.key, **_valued(join, record.value)}
    own = {key: number if record.table == "H" else record.key}
    if record.table == "T":
        return own | {"t": record.value}
    where, value = record.value or (None, None)
    if record.table in GATHERED:
        return own | {"g": where, **_valued(join, value)}
    at = None if where is None else where * unit_us(join)
    return own | {"at": at, record.table.lower(): value}


def _valued(join: View, value: str | None) -> Row:
    """A value and, where rows are ordered by it, its first letter."""
    return {"v": value} | ({"b": value and value[:1]} if join.shows else {})


def result(join: View, row: Row, time: int, *, deleted: bool) -> Result:
    names = inputs_of(join.topology)
    key: tuple[Any, ...] = (row["g" if names[0] in GATHERED else "k"],)
    if has_windows(join.topology) and "window_start" in row:
        bounds = (row["window_start"], row["window_end"])
        key += tuple(_since_epoch_us(moment) // unit_us(join) for moment in bounds)
    if deleted:
        return Result(key, None, time)
    return Result(key, tuple(_shown(join, row, n, name) for n, name in enumerate(names)), time)


def _shown(view: View, row: Row, number: int, name: str) -> Any:
    """A value; a group as its values one after the other."""
    value = row.get(f"v{number}")
    if view.shows:
        return "".join(value) if isinstance(value, list) else str(value)
    if name not in (*WINDOWED, *GATHERED):
        return value
    count = row.get(f"n{number}")
    if count is None:
        return None
    found = list(value or ())
    if name in WINDOWED and dict(view.windows)[name].kind == "session":
        found.sort()
    return shown_group(found + [None] * (count - len(found)))


def _since_epoch_us(moment: Any) -> int:
    if isinstance(moment, int):
        return moment
    return int(pa.scalar(moment, MOMENT).cast(pa.int64()).as_py())


def kafka_can(join: View, records: Sequence[Record]) -> bool:
    """Counts of tumbling and hopping windows, none before the epoch. Windows that are emitted when
    they are final it emits later than they are due, and loses some where stream time jumps by more
    than 1.
    """
    if join.topology != "L" or join.shows or join.windows[0][1].kind not in ("tumbling", "hopping"):
        return False
    clock, steady = None, True
    for record in (r for r in records if r.key is not None):
        steady &= clock is None or record.time <= clock + 1
        clock = record.time if clock is None else max(clock, record.time)
    return all(r.time >= 0 for r in records) and (steady or not join.final)


def flushed(join: View, records: Sequence[Record]) -> list[Record]:
    """Windows that come when they are closed are closed one by one."""
    if not join.final:
        return list(records)
    windows = join.windows[0][1]
    last = max([r.time for r in records if r.key is not None], default=0)
    end = last + 2 * (windows.size + windows.grace) + 3
    return [*records, *(Record("L", FLUSHING, time, "v", False) for time in range(last, end))]


def asked(join: View, records: Sequence[Record]) -> dict[str, Any]:
    """Return the question for Kafka Streams.

    It counts records without a value in windows. Here they are dropped, so they go to it without a
    key: it drops such records.
    """
    ((_, windows),) = join.windows
    case: dict[str, Any] = {
        "op": f"windowed_agg_count_{windows.kind}",
        "size_ms": windows.size,
        "grace_ms": windows.grace,
        "events": [
            {"side": r.table, "key": None if r.deleted else r.key, "value": r.value, "ts": r.time}
            for r in records
        ],
    }
    if windows.kind == "hopping":
        case["advance_ms"] = windows.advance
    return case | ({"emit": "on_window_close"} if join.final else {})


def emitted(join: View, change: Mapping[str, Any]) -> Result:
    """It counts, so a result's value is a number as text."""
    key, _, start = change["key"].rpartition("@")
    bounds = (int(start), int(start) + join.windows[0][1].size)
    return Result((key, *bounds), (change["value"],), change["ts"])


def agree(join: View, records: Sequence[Record], given: Answers, kafka: Answers) -> bool:
    """Of final windows, whether they are the same in the end."""
    if not join.final:
        return counted(given) == kafka
    ours, theirs = (
        Counter(r for r in flat(answers) if r.key[0] != FLUSHING)
        for answers in (counted(given), kafka)
    )
    return ours == theirs


def counted(answers: Answers) -> Answers:
    """Groups as the count of their values."""
    return [
        [r._replace(values=r.values and tuple(str(len(v)) for v in r.values)) for r in part]
        for part in answers
    ]
