"""One micro-batch of a delta join, on the join keys of one task.

Each side has the batch's changes, the rows in the cache, and the rows looked up for the rest.
``laws.joins.delta_join`` computes the results on row indices, and values are gathered once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dovetail.arrays.equality import canonical_key
from dovetail.arrays.grouping import by_key
from dovetail.arrays.hashing import stable_hash
from dovetail.arrays.timeline import (
    ABSENT,
    NO_TIME,
    Ints,
    Mask,
    SourceRows,
    last_of_source,
    timeline,
)
from dovetail.base.columns import DELETED, EVENT_TIME, SEQUENCE
from dovetail.errors import DataError
from dovetail.laws.joins import delta_join
from dovetail.lookup_sources.keys import index_distinct_keys, positions_among, refuse_repeated_keys
from dovetail.lookup_sources.source import Found
from dovetail.operators.job import Batch, Cause, combine_chunks, output_table, take_rows
from dovetail.operators.joins.lookup_cache import SideCache
from dovetail.physical.fragment import Operator
from dovetail.physical.source import SourceSpec
from dovetail.physical.specs.delta_join import DeltaJoinLaw, DeltaJoinSide

Ask: TypeAlias = "Callable[[int, Sequence[str], pa.Table], Found]"
"""``ask(side, columns, keys)``: return the side's rows whose ``columns`` are one of ``keys``."""

_KEYS_A_QUERY = 10_000
_RESULTS_A_TABLE = 100_000
_BATCH_SHIFT = 32


@dataclass(frozen=True)
class DeltaJoinOutcome:
    """The changes of a delta join in one micro-batch, and the caches that it leaves."""

    changes: Iterator[pa.Table]
    """The changes (``Operator.output_schema``), at most one per key."""
    caches: list[SideCache]
    """The caches of both sides after the batch."""
    counts: list[tuple[int, int, int]]
    """Per side, three counts: join keys found in the cache, keys looked up, and looked-up keys that
    the store could not have.
    """


@dataclass(frozen=True)
class _SideBatch:
    """One side's rows of a batch: the columns, and what the law knows of each row."""

    rows: delta_join.SideRows
    """What the law knows of each row, in the order of ``table``."""
    table: pa.Table
    """The user columns of each row, the join key first."""


def join_batch(
    operator: Operator,
    batches: Sequence[Batch],
    caches: Sequence[SideCache],
    ask: Ask | None,
    batch: int,
) -> DeltaJoinOutcome:
    """Join one micro-batch of both sides of the delta join ``operator``. The tables of changes are
    built as they are iterated, once. Without ``ask``, the caches stay and all counts are 0.

    ``batches``: the rows of each side with the columns of its source, left first. ``caches``: one
    per side, as the batch before left them. ``ask``: looks up rows of a side, None if the batch has
    all rows of both tables. ``batch``: the id of the micro-batch, from which positions and the age
    of cache entries follow.

    Returns the changes, each side's cache after the batch, and each side's counts. The call itself,
    not the iteration, raises all errors: ``DataError`` for a tombstone of a table without deletes,
    or if a lookup finds two rows with one key. Errors of ``ask`` pass.
    """
    law = operator.law
    assert isinstance(law, DeltaJoinLaw)
    changed = [
        _last_changes(operator, side, last, source)
        for source, (side, last) in enumerate(zip(law.sides, batches, strict=True))
    ]
    groups, count, keys = index_distinct_keys(
        [c.table.select(range(operator.keys)) for c in changed]
    )
    fresh = [
        _SideBatch(delta_join.SideRows(group, c.rows.fresh, c.rows.gone, c.rows.time_us), c.table)
        for group, c in zip(groups, changed, strict=True)
    ]
    sides, next_caches, counts = list(fresh), list(caches), [(0, 0, 0), (0, 0, 0)]
    if ask is not None:
        unique = (law.sides[0].unique, law.sides[1].unique)
        needed = delta_join.groups_to_look_up(
            count, (fresh[0].rows, fresh[1].rows), law.how, unique
        )
        for side_index in (0, 1):
            sides[side_index], next_caches[side_index], counts[side_index] = _add_other_rows(
                operator,
                side_index,
                fresh[side_index],
                keys,
                needed[side_index],
                caches[side_index],
                ask,
                batch,
            )
    results = delta_join.delta_join(
        count,
        (sides[0].rows, sides[1].rows),
        law.how,
        law.form,
        moving=law.moving,
        deletes=(law.sides[0].deletes, law.sides[1].deletes),
    )
    return DeltaJoinOutcome(
        _result_tables(operator, law, sides, keys, results, batch), next_caches, counts
    )


def last_rows(source: SourceSpec, primary: Sequence[int], batch: Batch) -> pa.Table:
    """Return the row that arrived last of each primary key in ``batch``, tombstones included. Rows
    arrive in the order of the shared log or, without one, of their clocks; equal ones as they lie
    in ``batch``. The result keeps the order of rows in ``batch``, and its columns. Without rows it
    is empty.

    ``source``: the layout of the batch's rows. ``primary``: the key columns, as indices from 0
    among the user columns, those after ``ROW_COLUMNS``. Nulls in them count as equal.
    """
    table = batch.rows
    columns = source.shape.user_columns
    keys = [combine_chunks(table.column(columns[column_index])) for column_index in primary]
    sequence = table.column(SEQUENCE).to_numpy() if source.arrival.by_shared_log else None
    events = timeline(
        [
            SourceRows(
                keys=keys,
                hash=stable_hash(keys),
                event_time_us=table.column(EVENT_TIME).to_numpy(),
                deleted=combine_chunks(table.column(DELETED)).to_numpy(zero_copy_only=False),
                clock_us=batch.clock_us,
                sequence=sequence,
            )
        ]
    )
    return table.take(pa.array(np.sort(events.row[last_of_source(events, 0)])))


def _last_changes(operator: Operator, side: DeltaJoinSide, batch: Batch, source: int) -> _SideBatch:
    """Return the last change of each primary key in ``batch``, tombstones included, in the order of
    the batch's rows: the user columns, and of each row its time and a mark if it is a tombstone.
    Equal values of a primary key column get equal bits. All rows are in group 0: the caller sets
    the groups of their join keys.

    ``side``: the description of the side. ``source``: its index, 0 for left, 1 for right. Raises
    ``DataError`` for a tombstone of a table without deletes.
    """
    spec = operator.sources[source]
    table = last_rows(spec, side.key, batch)
    gone = combine_chunks(table.column(DELETED)).to_numpy(zero_copy_only=False).astype(np.bool_)
    if gone.any() and not side.deletes:
        raise DataError(
            spec.title,
            "a tombstone came, and the table is said to have no deletes",
            "Say changes='all' in with_lookup, or filter tombstones out",
        )
    rows = delta_join.SideRows(
        group=np.zeros(len(table), np.int64),
        fresh=np.ones(len(table), np.bool_),
        gone=gone,
        time_us=table.column(EVENT_TIME).to_numpy(),
    )
    return _SideBatch(
        rows, _canonical_columns(table.select(list(spec.shape.user_columns)), side.key)
    )


def _canonical_columns(table: pa.Table, column_indices: Iterable[int]) -> pa.Table:
    """Return ``table`` with equal bits for equal values in the columns with the indices
    ``column_indices``: -0.0 becomes 0.0, for instance. Only floats and nested columns are
    rewritten.
    """
    for column_index in column_indices:
        field = table.schema.field(column_index)
        if pa.types.is_floating(field.type) or pa.types.is_nested(field.type):
            table = table.set_column(
                column_index, field, canonical_key(combine_chunks(table.column(column_index)))
            )
    return table


def _add_other_rows(
    operator: Operator,
    side_index: int,
    fresh: _SideBatch,
    keys: Sequence[pa.Array],
    needed: Mask,
    cache: SideCache,
    ask: Ask,
    batch: int,
) -> tuple[_SideBatch, SideCache, tuple[int, int, int]]:
    """Add to the ``fresh`` rows of side ``side_index`` the other rows of the batch's groups: those
    in ``cache``, and of ``needed`` groups that it lacks those that ``ask`` finds.

    A group is one distinct join key of the batch. ``fresh``: the batch's rows of the side, with the
    groups of their join keys. ``keys``: the join key columns, one row per group. ``needed``:
    bool[groups]. ``batch``: the id of the micro-batch.

    Returns the side, its cache after the batch, and three counts: needed groups in the cache,
    groups looked up, and those of them that the types of the store's columns cannot hold. Such a
    group has no other rows. A side that caches nothing keeps ``cache``. Raises ``DataError`` if
    lookups find two rows with one key; errors of ``ask`` pass.
    """
    law = operator.law
    assert isinstance(law, DeltaJoinLaw)
    side, schema = law.sides[side_index], fresh.table.schema
    groups = len(needed)
    names = schema.names[: operator.keys]
    asked = pa.table(list(keys), schema=pa.schema([schema.field(name) for name in names]))
    entry_group = positions_among(asked, cache.keys)
    in_cache = np.zeros(groups, np.bool_)
    in_cache[entry_group[entry_group != delta_join.NO_GROUP]] = True
    missing = np.flatnonzero(needed & ~in_cache)
    chunks = [missing[at : at + _KEYS_A_QUERY] for at in range(0, len(missing), _KEYS_A_QUERY)]
    answers = [ask(side_index, names, asked.take(pa.array(chunk))) for chunk in chunks]
    unfit = sum(int(answer.unfit.sum()) for answer in answers)
    counts = int((needed & in_cache).sum()), len(missing), unfit
    cached_group = entry_group[cache.entry]
    cached = cached_group != delta_join.NO_GROUP
    tables = [cache.rows.filter(pa.array(cached)), *(answer.rows for answer in answers)]
    other_rows = _canonical_columns(pa.concat_tables(tables), [*range(operator.keys), *side.key])
    looked_up_groups = (chunk[answer.key] for chunk, answer in zip(chunks, answers, strict=True))
    group = np.concatenate([cached_group[cached], *looked_up_groups])
    answer = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    stays = _staying_rows(
        operator.sources[side_index].title, side, fresh, other_rows, group, answer
    )
    joined = _append_rows(fresh, other_rows.filter(pa.array(stays)), group[stays])
    if side.cache == 0:
        return joined, cache, counts
    complete = in_cache.copy()
    complete[missing] = True
    if side.unique:
        complete[fresh.rows.group[fresh.rows.group != delta_join.NO_GROUP]] = True
    fresh_cache = _new_cache(joined, asked, complete, batch)
    others = entry_group == delta_join.NO_GROUP
    return joined, cache.keep_entries(others, fresh_cache, side.cache), counts


def _staying_rows(
    title: str,
    side: DeltaJoinSide,
    fresh: _SideBatch,
    other_rows: pa.Table,
    group: Ints,
    answer: Ints,
) -> Mask:
    """Find the rows of ``other_rows`` that stay: bool[rows]. A row leaves if a fresh row, perhaps a
    tombstone, has its primary key.

    The cache and lookups may hold one row under several join keys, because its join key changed
    between them. Then the last one stays. ``title``: the table, for errors. ``group``: int64[rows],
    the index of each row's join key. ``answer``: int64[rows], 0 for a row of the cache, else the
    index of its lookup, from 1. Raises ``DataError`` if one answer has a primary key twice. It is
    also raised if ``group`` has a value twice although the side's index is unique; fresh rows do
    not count.

    | primary key | from         | fresh row | stays                   |
    |-------------|--------------|-----------|-------------------------|
    | 1           | cache        | none      | yes                     |
    | 2           | cache        | yes       | no: replaced            |
    | 3           | cache        | none      | no: lookup 1 has it     |
    | 3           | lookup 1     | none      | yes                     |
    """
    key = list(side.key)
    all_rows = pa.concat_tables([fresh.table.select(key), other_rows.select(key)])
    columns = [combine_chunks(column) for column in all_rows.columns]
    order, new, _ = by_key(stable_hash(columns), columns, np.arange(len(all_rows)))
    primary_rank = np.empty(len(all_rows), np.int64)
    primary_rank[order] = np.cumsum(new) - 1
    other_rank = primary_rank[len(fresh.table) :]
    refuse_repeated_keys(
        title, "its primary key", other_rank * (answer.max(initial=0) + 1) + answer
    )
    if side.index.unique:
        refuse_repeated_keys(title, "a unique index", group)
    last = np.full(int(new.sum()), ABSENT)
    last[other_rank] = np.arange(len(other_rank))
    last[primary_rank[: len(fresh.table)]] = ABSENT
    stays: Mask = last[other_rank] == np.arange(len(other_rank))
    return stays


def _append_rows(fresh: _SideBatch, other_rows: pa.Table, group: Ints) -> _SideBatch:
    """Return a side's fresh rows, then ``other_rows``, which the batch does not change. The time of
    appended rows is ``NO_TIME``. ``group``: int64, the index of the join key of each appended row.
    """
    none = np.zeros(len(group), np.bool_)
    rows = delta_join.SideRows(
        group=np.concatenate((fresh.rows.group, group)),
        fresh=np.concatenate((fresh.rows.fresh, none)),
        gone=np.concatenate((fresh.rows.gone, none)),
        time_us=np.concatenate((fresh.rows.time_us, np.full(len(group), NO_TIME))),
    )
    return _SideBatch(rows, pa.concat_tables([fresh.table, other_rows]))


def _new_cache(side: _SideBatch, asked: pa.Table, complete: Mask, batch: int) -> SideCache:
    """Return a cache with an entry per ``complete`` group, in their order, and the group's rows in
    ``side`` that are not deleted. An entry may have no rows.

    ``asked``: the join key of each group. ``complete``: bool[groups], all rows of the group are in
    ``side``. ``batch``: the id of the micro-batch, noted as the last that used the entries. Rows
    without a group (``NO_GROUP``) are left out.
    """
    entry_of_group = np.append(np.where(complete, np.cumsum(complete) - 1, delta_join.NO_GROUP), -1)
    entry = entry_of_group[side.rows.group]
    rows = np.flatnonzero((entry != delta_join.NO_GROUP) & side.rows.alive)
    return SideCache(
        keys=asked.filter(pa.array(complete)),
        used=np.full(int(complete.sum()), batch),
        rows=side.table.take(pa.array(rows)),
        entry=entry[rows],
    )


def _result_tables(
    operator: Operator,
    law: DeltaJoinLaw,
    sides: Sequence[_SideBatch],
    keys: Sequence[pa.Array],
    results: delta_join.Results,
    batch: int,
) -> Iterator[pa.Table]:
    """Yield ``results`` as changes in tables of at most ``_RESULTS_A_TABLE`` (100,000) rows, in
    order; yield nothing for no results. The columns are those of ``Operator.output_schema``. A
    result is a tombstone if ``results.deleted`` says so; its values are null.

    ``sides``: the rows that results refer to, left first. ``keys``: the join key columns, one row
    per group. ``batch``: the id of the micro-batch. The first position is this id shifted left by
    32 bits; the others follow it without gaps.
    """
    for start in range(0, len(results), _RESULTS_A_TABLE):
        part = slice(start, start + _RESULTS_A_TABLE)
        part_results = delta_join.Results(
            row=(results.row[0][part], results.row[1][part]),
            group=results.group[part],
            deleted=results.deleted[part],
            time_us=results.time_us[part],
        )
        references = [np.where(part_results.deleted, ABSENT, row) for row in part_results.row]
        yield output_table(
            operator,
            _result_keys(law, sides, keys, part_results),
            [
                take_rows(
                    [side.table.column(column_index) for column_index in declared.values], refs
                )
                for side, declared, refs in zip(sides, law.sides, references, strict=True)
            ],
            references,
            deleted=part_results.deleted,
            event_time_us=part_results.time_us,
            position=(batch << _BATCH_SHIFT) + start,
            cause=Cause({}),
        )


def _result_keys(
    law: DeltaJoinLaw,
    sides: Sequence[_SideBatch],
    keys: Sequence[pa.Array],
    results: delta_join.Results,
) -> list[pa.Array]:
    """Return the key columns of ``results``, one row per result.

    If ``law.form`` is ``"key"``, they are the join key, taken from ``keys`` by group. For
    ``"pair"`` and ``"left"`` they are the left row's primary key, then the right row's if
    ``law.right_key``; null where a side has no row. For ``"left"``, the right row's is also null
    where there is a left row. ``sides``: the rows that results refer to, left first. ``keys``: the
    join key columns, one row per group.
    """
    if law.form == "key":
        return [column.take(pa.array(results.group)) for column in keys]
    columns = []
    for side_index, refs in enumerate(delta_join.key_rows(results, law.form)):
        if side_index == 0 or law.right_key:
            table = sides[side_index].table
            columns += take_rows(
                [table.column(column_index) for column_index in law.sides[side_index].key], refs
            )
    return columns
