"""Joins of tables by definition: slow, obvious, and independent of the laws.

A topology is a table's name or a tuple (left, how, right). A table is a dict from key to row; a
row is (cells, time), a cell per table: ``(value,)``, or None where the table contributes no row.
Nothing here is shared with ``src``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from bench.records import Batches, Record, Result, accumulate, flat

Cells: TypeAlias = "tuple[tuple[Any] | None, ...]"
Topology: TypeAlias = "str | tuple[Topology, str, Topology]"
Row: TypeAlias = tuple[Cells, int]
Tables: TypeAlias = Mapping[str, Mapping[Any, Row]]


class Change(NamedTuple):
    """One change of a topology's result; ``cells`` is None for a tombstone."""

    key: Any
    cells: Cells | None
    time: int


def seen(changes: Iterable[Change]) -> list[Result]:
    """What a changelog shows of these changes."""
    return [
        Result(key, None if cells is None else tuple(c and c[0] for c in cells), time)
        for key, cells, time in changes
    ]


def names(topology: Topology) -> list[str]:
    """The tables from left to right; one that is used twice comes twice."""
    if isinstance(topology, str):
        return [topology]
    left, _, right = topology
    return names(left) + names(right)


def static_join(topology: Topology, records: Iterable[Record]) -> dict[Any, tuple[Any, ...]]:
    """By key the values of a static join of the tables that these records leave."""
    tables: dict[str, dict[Any, Row]] = {name: {} for name in names(topology)}
    for record in records:
        if record.deleted:
            tables.get(record.table, {}).pop(record.key, None)
        elif record.table in tables:
            tables[record.table][record.key] = (((record.value,),), record.time)
    keys = {key for rows in tables.values() for key in rows}
    found = {key: row(topology, tables, key) for key in keys}
    return {key: tuple(c and c[0] for c in made[0]) for key, made in found.items() if made}


def row(topology: Topology, tables: Tables, key: Any) -> Row | None:
    """The row a static join would give for this key."""
    if isinstance(topology, str):
        return tables[topology].get(key)
    left, how, right = topology
    return _joined(how, row(left, tables, key), row(right, tables, key), topology)


def each_record(topology: Topology, records: Sequence[Record]) -> Iterator[list[Change]]:
    """What each record makes the topology emit (``emit="change"``)."""
    tables: dict[str, dict[Any, Row]] = {name: {} for name in names(topology)}
    for record in records:
        if record.key is None or record.table not in tables:
            yield []
            continue
        before = {name: dict(rows) for name, rows in tables.items()}
        if record.deleted:
            tables[record.table].pop(record.key, None)
        else:
            tables[record.table][record.key] = (((record.value,),), record.time)
        found = (
            _through(topology, occurrence, before, tables, record)
            for occurrence, name in enumerate(names(topology))
            if name == record.table
        )
        yield [
            Change(record.key, None if new is None else new[0], time)
            for old, new, time in (change for change in found if change is not None)
        ]


def each_batch(topology: Topology, batches: Batches) -> Iterator[list[Change]]:
    """Per batch the last change of each key, without keys whose row is as it was before."""
    changes = each_record(topology, flat(batches))
    rows: dict[Any, Cells] = {}
    for batch in batches:
        last: dict[Any, Change] = {}
        for _ in batch:
            for change in next(changes):
                last.pop(change.key, None)
                last[change.key] = change
        yield [change for change in last.values() if rows.get(change.key) != change.cells]
        accumulate(rows, last.values())


def _joined(how: str, left: Row | None, right: Row | None, topology: Topology) -> Row | None:
    if left is not None and right is not None:
        return left[0] + right[0], max(left[1], right[1])
    if left is not None and how in ("left", "outer"):
        return left[0] + (None,) * len(names(topology[2])), left[1]
    if right is not None and how == "outer":
        return (None,) * len(names(topology[0])) + right[0], right[1]
    return None


def _through(
    topology: Topology, occurrence: int, before: Tables, after: Tables, record: Record
) -> tuple[Row | None, Row | None, int] | None:
    """(old row, new row, time) that a record gives through one occurrence of its table, or None.

    KIP-77: an inner join answers where the other side is there; the preserved side of a left or
    outer join also where it has, or had, a row of its own. "There" is before or after the record:
    they differ only where the record's table is on both sides.
    """
    if isinstance(topology, str):
        return before[topology].get(record.key), after[topology].get(record.key), record.time
    left, how, right = topology
    from_left = occurrence < len(names(left))
    own, other = (left, right) if from_left else (right, left)
    place = occurrence if from_left else occurrence - len(names(left))
    change = _through(own, place, before, after, record)
    if change is None:
        return None
    old, new, time = change
    other_old, other_new = row(other, before, record.key), row(other, after, record.key)
    preserved = how == "outer" or (how == "left" and from_left)
    answered = other_old is not None or other_new is not None
    if not (answered or (preserved and (old is not None or new is not None))):
        return None
    if from_left:
        sides = (old, other_old), (new, other_new)
    else:
        sides = (other_old, old), (other_new, new)
    if other_new is not None:
        time = max(time, other_new[1])
    was, now = (_joined(how, *side, topology) for side in sides)
    return was, now, time
