"""What views of tables and streams say, by definition: record by record, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.records import Batches, Record, Result

STORE = {"A": ["a"], "B": ["b", "c"]}
"""What a store has of each value that it knows, in the order of its primary key."""
_BEFORE = -(10**18)
"""As a stream time: before any record."""


@dataclass(frozen=True)
class Pipeline:
    """Inputs, read as one where they are several, and the steps that their rows go through.

    ``T``, ``U``: tables; ``S``, ``R``: streams; ``A``: a stream of arrays, ``L``: a
    table of them; ``P``: a table of two values, of which ``_`` is not sent. Every row of the others
    has ``v`` and whether it meets the condition of ``where``. Numbers of steps are milliseconds.
    """

    inputs: tuple[str, ...]
    steps: tuple[str, ...]


class Row(NamedTuple):
    """A row on its way; ``value`` is None where it is deleted, ``[v]`` or ``[v, met]`` else;
    ``clock``: stream time as it comes.
    """

    key: Any
    value: list[Any] | None
    time: int
    clock: int


class Running:
    """The steps, with what they remember."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._present: list[set[Any]] = [set() for _ in pipeline.steps]
        self._stream_time, self._clock, self._united = -1, _BEFORE, _BEFORE
        self._standing: list[dict[Any, Row]] = [{} for _ in pipeline.steps]
        self._rows: dict[Any, list[Any]] = {}
        self._last: dict[Any, list[Any] | None] = {}
        self._kept: dict[Any, list[Any] | None] = {}
        self._counts: dict[Any, tuple[int, int]] = {}
        self._groups: dict[Any, dict[Any, Any]] = {}
        self._times: dict[Any, int] = {}
        self.failed = self.unmet = 0

    def step(self, record: Record) -> list[Result]:
        stream = record.table in "SRA"
        if record.table not in self._pipeline.inputs or (record.key is None and not stream):
            return []
        value = None if record.deleted else list(record.value)
        if record.key is not None:
            self._united = max(self._united, record.time)
        if record.key is not None and not (not stream and self._left_out(value)):
            self._clock = max(self._clock, record.time)
        rows = [Row(record.key, value, record.time, self._clock)]
        for number, words in enumerate(self._pipeline.steps):
            step, *numbers = words.split()
            if step == "expire":
                # What brings no row moves time all the same, but for what a condition leaves out.
                views = {*self._pipeline.steps[:number]} <= {"where", "swap"}
                clock = self._clock if views and not stream else _BEFORE
                rows = [*self._expire(rows, clock, number, int(numbers[0]))]
                continue
            options = (self._present[number], stream, *map(int, numbers))
            rows = [made for row in rows for made in getattr(self, f"_{step}")(row, *options)]
            stream = {"to_stream": True, "to_changes": True, "to_table": False, "count": False}.get(
                step, stream
            )
        return [
            Result(row.key, None if row.value is None else (row.value[0],), row.time)
            for row in rows
        ]

    def _left_out(self, value: list[Any] | None) -> bool:
        """Whether a condition in front of ``expire`` leaves a row out."""
        before, _, rest = " ".join(self._pipeline.steps).partition("expire")
        return bool(rest) and "where" in before and value is not None and value[1] is not True

    def _where(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        met = row.value is not None and row.value[1] is True
        if met:
            present.add(row.key)
            yield row
        elif not stream and row.key in present:
            present.remove(row.key)
            yield row._replace(value=None)

    def _to_stream(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        yield row

    _swap = _columns = _to_stream

    def _materialize(self, row: Row, present: set[Any], _: bool) -> Iterator[Row]:
        """Real changes only."""
        before, self._kept[row.key] = self._kept.get(row.key), row.value
        if before != row.value:
            yield row

    def _computed(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        """Rows whose condition is known, or that have a value that is not empty."""
        met = row.value is not None and (row.value[1] is not None or bool(row.value[0]))
        chosen = None if row.value is None else [row.value[0], met]
        for made in self._where(row._replace(value=chosen), present, stream):
            yield made._replace(value=made.value and row.value)

    def _fails(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        """A row of the value b is as if it had never come."""
        if row.value is not None and row.value[0] == "b":
            self.failed += 1
        else:
            yield row

    _fails_select = _fails

    def _expect_drop(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        """A row that does not meet the condition is as if it had never come."""
        if row.value is not None and row.value[1] is not True:
            self.unmet += 1
        else:
            yield row

    def _expect_warn(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        self.unmet += row.value is not None and row.value[1] is not True
        yield row

    def _expect_letter(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        """One on which the condition fails does not meet it either."""
        if row.value is not None and row.value[0] == "b":
            self.unmet += 1
        else:
            yield from self._expect_drop(row, present, stream)

    def _fails_key(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        for whole in self._fails(row, present, stream):
            yield from self._key_by(whole, present, stream)

    def _fails_table_key(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        for whole in self._fails(row, present, stream):
            yield from self._table_key(whole, present, stream)

    def _fails_where(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        for whole in self._fails(row, present, stream):
            yield from self._where(whole, present, stream)

    def _table_key(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        """By the value; of several rows the last that came, and the one before when it goes."""
        before, self._rows[row.key] = self._rows.get(row.key) or [None], row.value or []
        old, new = before[0], row.value and row.value[0]
        for group in [old] if old is not None and old != new else []:
            self._groups[group].pop(row.key)
            yield self._newest(group, row)
        if new is not None:
            group = self._groups.setdefault(new, {})
            group.pop(row.key, None)
            group[row.key] = row.value
            yield self._newest(new, row)

    def _newest(self, group: Any, row: Row) -> Row:
        """The group's row, at the largest time of what has changed the group."""
        last = next(reversed(self._groups[group].items()), None)
        time = self._times[group] = max(self._times.get(group, row.time), row.time)
        if last is None:
            del self._times[group]
        return row._replace(key=group, value=last and [last[0], *last[1][1:]], time=time)

    def _to_table(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        if row.key is not None:
            yield row

    def _key_by(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        """By the value; the former key is the value."""
        if row.value is None:
            yield row._replace(key=None)
        else:
            value, *met = row.value
            yield row._replace(key=value, value=[row.key, *met])

    def _deduplicate(self, row: Row, present: set[Any], _: bool, within: int) -> Iterator[Row]:
        """``present``: key and time of each record that came out."""
        if row.value is None:
            return
        if row.key is None:
            yield row
            return
        united = len(self._pipeline.inputs) > 1  # whose stream time is that of all that is read
        self._stream_time = max(self._stream_time, self._united if united else row.time)
        near = (time for key, time in present if key == row.key and abs(time - row.time) <= within)
        if row.time >= self._stream_time - within and next(near, None) is None:
            present.add((row.key, row.time))
            yield row

    def _expire(self, rows: list[Row], clock: int, number: int, after: int) -> Iterator[Row]:
        """Of a table's rows those that are no more than ``after`` behind stream time."""
        standing = self._standing[number]
        for row in rows:
            yield from self._due(standing, row.clock, after)
            gone = row.value is None or row.time + after < row.clock
            if not gone:
                standing[row.key] = row
                yield row
            elif standing.pop(row.key, None) is not None:
                time = row.time if row.value is None else row.time + after
                yield row._replace(value=None, time=time)
        yield from self._due(standing, clock, after)

    def _due(self, standing: dict[Any, Row], clock: int, after: int) -> Iterator[Row]:
        """The tombstones of the rows that are gone at this stream time."""
        gone = [row for row in standing.values() if row.time + after < clock]
        for row in sorted(gone, key=lambda row: (row.time, row.key)):
            del standing[row.key]
            yield Row(row.key, None, row.time + after, row.time + after + 1)

    def _explode(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        if not stream:
            yield from self._elements(row, lambda _, one: one)
            return
        for one in (row.value or [None])[0] or []:
            yield row._replace(value=[one])

    def _positions(self, row: Row, present: set[Any], _: bool) -> Iterator[Row]:
        yield from self._elements(row, lambda place, _: place)

    def _elements(self, row: Row, known: Callable[[int, Any], Any]) -> Iterator[Row]:
        """A table's elements, each known as ``known`` says by its place and itself."""
        before, after = (
            {known(place, one): one for place, one in enumerate((side or [None])[0] or [])}
            for side in (self._last.get(row.key), row.value)
        )
        self._last[row.key] = row.value
        for own in (one for one in before if one not in after):
            yield row._replace(key=f"{row.key}.{own}", value=None)
        for own, one in after.items():
            yield row._replace(key=f"{row.key}.{own}", value=[one])

    def _former(self, row: Row, present: set[Any], _: bool) -> Iterator[Row]:
        """Both values, one that is not sent as it was."""
        if row.value is not None:
            before = self._last.get(row.key) or [None, None]
            both = zip(row.value, before, strict=True)
            row = row._replace(value=[was if now == "_" else now for now, was in both])
        self._last[row.key] = row.value
        yield row if row.value is None else row._replace(value=[".".join(map(str, row.value))])

    def _nulls(self, row: Row, present: set[Any], _: bool, columns: int = 2) -> Iterator[Row]:
        """Both values; of the first ``columns`` one that is null as it was."""
        if row.value is not None:
            before = self._last.get(row.key) or [None, None]
            now = [None if value == "_" else value for value in row.value]
            row = row._replace(
                value=[
                    before[n] if n < columns and value is None else value
                    for n, value in enumerate(now)
                ]
            )
        self._last[row.key] = row.value
        yield row if row.value is None else row._replace(value=[".".join(map(str, row.value))])

    def _nulls_of_v(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        """Both values, the first one as it was if it is null."""
        yield from self._nulls(row, present, stream, columns=1)

    def _to_changes(self, row: Row, present: set[Any], _: bool) -> Iterator[Row]:
        """The kind of the change, then the value."""
        before, after = self._last.get(row.key), row.value
        self._last[row.key] = after
        if before == after:
            return
        if before is not None:
            yield row._replace(value=[f"{'d' if after is None else 'b'}{before[0]}"])
        if after is not None:
            yield row._replace(value=[f"{'i' if before is None else 'a'}{after[0]}"])

    def _lookup(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        """What the store has of the value, in its place."""
        if row.value is not None:
            for one in STORE.get(row.value[0], []):
                yield row._replace(value=[one, *row.value[1:]])

    def _lookup_left(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        if row.value is not None:
            for one in STORE.get(row.value[0], [None]):  # type: ignore[list-item]
                yield row._replace(value=[one, *row.value[1:]])

    _lookup_cached, _told = _lookup_left, _to_changes

    def _count(self, row: Row, present: set[Any], stream: bool) -> Iterator[Row]:
        """How many rows of a table each value has, at the largest time of what changed it."""
        before, after = self._rows.get(row.key), row.value
        if after is None:
            self._rows.pop(row.key, None)
        else:
            self._rows[row.key] = after
        old, new = (None if one is None else one[0] for one in (before, after))
        for group, by in ((old, -1), (new, 1)) if old != new else ((new, 0),):
            if group is not None:
                count, time = self._counts.get(group, (0, row.time))
                count, time = self._counts[group] = count + by, max(time, row.time)
                yield Row(group, [str(count)] if count else None, time, row.clock)
                if not count:
                    del self._counts[group]


def each_record(pipeline: Pipeline, records: Sequence[Record]) -> Iterator[list[Result]]:
    running = Running(pipeline)
    return (running.step(record) for record in records)


def each_batch(pipeline: Pipeline, batches: Batches) -> Iterator[list[Result]]:
    """The last of each key, where it changes the row."""
    running, rows = Running(pipeline), dict[Any, Any]()
    for batch in batches:
        last: dict[Any, Result] = {}
        for record in batch:
            for result in running.step(record):
                last.pop(result.key, None)
                last[result.key] = result
        yield [result for result in last.values() if result.values != rows.get(result.key)]
        rows |= {key: result.values for key, result in last.items()}
