"""A stream's records joined with a store's answers, on the records of one task, some at a time.

An answer of the store holds for the rest of the task, so a task asks for no key twice within a
micro-batch. With a cache, it also holds for later tasks of the process, until it is too old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dovetail.arrays.grouping import rank_of_keys
from dovetail.arrays.hashing import stable_hash
from dovetail.arrays.timeline import ABSENT, Ints, Mask
from dovetail.laws.joins.delta_join import NO_GROUP
from dovetail.laws.joins.lookup import answer_records
from dovetail.lookup_sources.keys import number_keys, positions_among, refuse_twice
from dovetail.lookup_sources.pool import open_reader
from dovetail.lookup_sources.source import Found
from dovetail.operators.job import combine_chunks
from dovetail.operators.joins.lookup_cache import SideCache
from dovetail.physical.specs.lookup import StoreLookup

COUNTS = ("hits", "misses", "unfit", "dropped")
"""The counts of ``TaskLookups``, in the order in which they are reported."""

Caches: TypeAlias = MutableMapping[StoreLookup, SideCache]
"""The answers of stores that a process keeps, by lookup."""

_KEYS_A_QUERY = 10_000
_RESULTS_A_TABLE = 100_000
_REMEMBERED = 100_000
_SINCE = "_since"


@dataclass
class TaskLookups:
    """The lookups of one task in a store, with the answers that it keeps and its counts."""

    law: StoreLookup
    """The store, the join and the limits of the cache."""
    caches: Caches
    """The caches of the process."""
    clock_us: Callable[[], int]
    """The wall clock, a function that returns microseconds."""
    hits: int = 0
    """The number of keys whose answer was known already."""
    misses: int = 0
    """The number of keys that were looked up."""
    unfit: int = 0
    """The number of keys looked up that the store could not have."""
    dropped: int = 0
    """The number of records left out because they are not live or, in an inner join, have a null in
    their key.
    """
    _task: SideCache | None = field(default=None, init=False)
    """The answers that the task keeps if the lookup has no cache; None before the first."""

    @property
    def counts(self) -> list[int]:
        """The numbers of keys and records so far in this task, in the order of ``COUNTS``."""
        return [getattr(self, name) for name in COUNTS]

    def join_records(
        self, records: pa.Table, live: Mask
    ) -> Iterator[tuple[pa.Table, list[pa.Array]]]:
        """Join ``records`` with the store's rows: yield tables of at most ``_RESULTS_A_TABLE``
        records, each with its value columns.

        Each live record comes in order, once for each answer; without an answer, once with nulls
        or, for an inner join, not at all. ``live``: bool[records], the record has a value; others
        are left out and counted as ``dropped``. So are records with a null key in an inner join,
        but not those without an answer. Raises ``DataError`` if answers do not fit or have a key
        twice, ``ConfigurationError`` if the store cannot be reached.
        """
        law = self.law
        live_row = np.flatnonzero(live)
        keys = records.select(law.on).take(pa.array(live_row)).rename_columns(list(law.by))
        key, sizes, rows = self._find_rows(keys.cast(law.key_schema))
        record, row = answer_records(key, sizes, law.how)
        self.dropped += len(live) - len(live_row)
        if law.how == "inner":
            self.dropped += int((key == NO_GROUP).sum())
        for start in range(0, len(record), _RESULTS_A_TABLE):
            part = slice(start, start + _RESULTS_A_TABLE)
            part_records = records.take(pa.array(live_row[record[part]]))
            yield part_records, _value_columns(law, part_records, rows, row[part])

    def _find_rows(self, keys: pa.Table) -> tuple[Ints, Ints, pa.Table]:
        """Find the rows for ``keys``, the key of each record, in the cache or else in the store.

        Returns the number of each record's key among the distinct ones, int64[records],
        ``NO_GROUP`` for a key with a null; the number of rows of each distinct key, int64; and the
        rows. The rows come key by key, those of one key by the store's primary key. Answers are
        remembered, and ``hits``, ``misses`` and ``unfit`` go up. Raises ``DataError`` if a unique
        index gives a key two rows, and the errors of ``_ask_store``.
        """
        law, now_us = self.law, self.clock_us()
        (key,), count, columns = number_keys([keys])
        asked = pa.table(columns, schema=law.key_schema)
        cache = self._known_answers(now_us)
        key_of_entry = positions_among(asked, cache.keys.select(law.by))
        wanted = key_of_entry != NO_GROUP
        is_cached = np.zeros(count, np.bool_)
        is_cached[key_of_entry[wanted]] = True
        missing = np.flatnonzero(~is_cached)
        chunks = [missing[at : at + _KEYS_A_QUERY] for at in range(0, len(missing), _KEYS_A_QUERY)]
        answers = [self._ask_store(asked.take(pa.array(chunk))) for chunk in chunks]
        self.hits += count - len(missing)
        self.misses += len(missing)
        self.unfit += sum(int(answer.unfit.sum()) for answer in answers)
        from_cache = wanted[cache.entry]
        rows = pa.concat_tables(
            [cache.rows.filter(pa.array(from_cache)), *(answer.rows for answer in answers)]
        )
        of_key = np.concatenate(
            [
                key_of_entry[cache.entry[from_cache]],
                *(chunk[answer.key] for chunk, answer in zip(chunks, answers, strict=True)),
            ]
        )
        if law.index.unique:
            refuse_twice(law.lookup.title, "a unique index", of_key)
        used = replace(cache, used=np.where(wanted, now_us, cache.used))
        self._keep_answers(used, asked, missing, chunks, answers, now_us)
        order = np.lexsort((_key_rank(law, rows), of_key))
        return key, np.bincount(of_key, minlength=count), rows.take(pa.array(order))

    def _ask_store(self, keys: pa.Table) -> Found:
        """Return the store's answer for distinct ``keys`` without nulls. Raises ``DataError`` if
        two rows of the answer have one primary key or a row does not fit. Raises
        ``ConfigurationError`` if the store cannot be reached.
        """
        law = self.law
        answer = open_reader(law.lookup, law.schema).rows(law.by, keys)
        refuse_twice(law.lookup.title, "its primary key", _key_rank(law, answer.rows))
        return answer

    def _known_answers(self, now_us: int) -> SideCache:
        """Return the process's known answers that are younger than ``law.age_max_us`` at the time
        ``now_us``. If ``law.rows_max`` is 0, there is no such cache: return this task's answers, of
        any age.
        """
        law = self.law
        if not law.rows_max:
            return _empty_cache(law) if self._task is None else self._task
        cache = self.caches.get(law)
        if cache is None:
            return _empty_cache(law)
        age_us = now_us - cache.keys.column(_SINCE).to_numpy()
        young = (age_us >= 0) & (age_us < law.age_max_us)
        return cache if young.all() else cache.keep_entries(young, _empty_cache(law), law.rows_max)

    def _keep_answers(
        self,
        cache: SideCache,
        asked: pa.Table,
        missing: Ints,
        chunks: Sequence[Ints],
        answers: Sequence[Found],
        now_us: int,
    ) -> None:
        """Add the answers of the ``missing`` keys to ``cache`` with the time ``now_us``, and
        remember the result: for the process if ``law.rows_max``, else for this task. If there are
        too many rows, the answers used last stay.

        ``asked``: all distinct keys. ``missing``: indices of the keys that were looked up.
        ``chunks``: these indices as they were asked, with an answer each.
        """
        law = self.law
        first = np.cumsum([0, *map(len, chunks)])
        entries = [at + answer.key for at, answer in zip(first, answers, strict=False)]
        since = pa.array(np.full(len(missing), now_us), pa.int64())
        fresh = SideCache(
            keys=asked.take(pa.array(missing)).append_column(_SINCE, since),
            used=np.full(len(missing), now_us),
            rows=pa.concat_tables([law.schema.empty_table(), *(answer.rows for answer in answers)]),
            entry=np.concatenate([np.zeros(0, np.int64), *entries]),
        )
        if len(missing):
            every_entry = np.ones(len(cache.used), np.bool_)
            cache = cache.keep_entries(every_entry, fresh, law.rows_max or _REMEMBERED)
        if law.rows_max:
            self.caches[law] = cache
        else:
            self._task = cache


def _empty_cache(law: StoreLookup) -> SideCache:
    """Return a cache without keys and rows for the lookup ``law``."""
    none = np.zeros(0, np.int64)
    keys = law.key_schema.append(pa.field(_SINCE, pa.int64()))
    return SideCache(keys.empty_table(), none, law.schema.empty_table(), none)


def _key_rank(law: StoreLookup, rows: pa.Table) -> Ints:
    """Return a number for each of ``rows``, int64[rows], that ascends with the primary key of the
    store of ``law``. Equal keys have equal numbers.
    """
    columns = [combine_chunks(rows.column(name)) for name in law.lookup.key]
    return rank_of_keys(columns, stable_hash(columns))


def _value_columns(
    law: StoreLookup, records: pa.Table, rows: pa.Table, row: Ints
) -> list[pa.Array]:
    """Return the value columns of results, a row per result, chosen from ``records`` and the
    store's ``rows`` by ``law.values``.

    ``row``: int64[records], the index in ``rows`` for each record, ABSENT for none; the store's
    values are then null. A value without a column is the whole record or row as a struct.
    """
    absent = row == ABSENT
    matched_rows = rows.take(pa.array(row, mask=absent))
    sides = {"left": records, "right": matched_rows}
    missing = {"left": np.zeros(len(row), np.bool_), "right": absent}
    return [
        _struct_column(sides[side], missing[side])
        if column is None
        else combine_chunks(sides[side].column(column))
        for side, column in law.values
    ]


def _struct_column(side: pa.Table, missing: Mask) -> pa.Array:
    """Return the columns of ``side`` as one column of structs with these fields, null where
    ``missing``, bool[rows], is true.
    """
    columns = [combine_chunks(column) for column in side.columns]
    return pa.StructArray.from_arrays(columns, fields=[*side.schema], mask=pa.array(missing))
