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
from dovetail.lookup_sources.keys import index_distinct_keys, positions_among, refuse_repeated_keys
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
    """The count of keys whose answer was known already."""
    misses: int = 0
    """The count of keys that were looked up."""
    unfit: int = 0
    """The count of keys looked up that the store could not have."""
    dropped: int = 0
    """The count of records left out because they are not live or, in an inner join, have a null in
    their key.
    """
    _task: SideCache | None = field(default=None, init=False)
    """The answers that the task keeps if the lookup has no cache; None before the first."""

    @property
    def counts(self) -> list[int]:
        """The counts so far in this task, in the order of ``COUNTS``: keys known already, keys
        looked up, keys among these that the types of the store's columns cannot hold, and dropped
        records. A key that could be in the store but is not counts as looked up only.
        """
        return [getattr(self, name) for name in COUNTS]

    def join_records(
        self, records: pa.Table, live: Mask
    ) -> Iterator[tuple[pa.Table, list[pa.Array]]]:
        """Join ``records`` with the store's rows. Yield pairs of a table and a list of arrays: the
        record of each result, then the value columns of the results (``law.values``). A pair has at
        most ``_RESULTS_A_TABLE`` (100,000) results. Nothing is asked or counted before the first is
        taken.

        ``records``: columns ``law.on``, the key, and any others. ``live``: bool[records], the
        record has a value; others are left out and counted as ``dropped``.

        Each live record comes in order, once for each row of its key, by the store's primary key.
        Without a row it comes once with nulls or, for an inner join, not at all. A null in the key
        matches nothing; 0.0 equals -0.0, and all NaNs are equal. An inner join counts records with
        a null in their key as ``dropped``, but not others without a row.

        Raises ``DataError`` if rows found do not fit the store's declared columns, or two have one
        primary key or one key of a unique index. Raises ``ConfigurationError`` if the store cannot
        be reached.
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
        Remember the answers, and raise ``hits``, ``misses`` and ``unfit``. Returns:

        - int64[records]: the index of each record's key among the distinct ones, ``NO_GROUP`` for a
          key with a null;
        - int64[distinct keys]: the count of rows of each;
        - the rows, key by key, those of one key by the store's primary key.

        Raises ``DataError`` if a unique index gives a key two rows, and the errors of
        ``_ask_store``.
        """
        law, now_us = self.law, self.clock_us()
        (key,), count, columns = index_distinct_keys([keys])
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
            refuse_repeated_keys(law.lookup.title, "a unique index", of_key)
        used = replace(cache, used=np.where(wanted, now_us, cache.used))
        self._keep_answers(used, asked, missing, chunks, answers, now_us)
        order = np.lexsort((_key_rank(law, rows), of_key))
        return key, np.bincount(of_key, minlength=count), rows.take(pa.array(order))

    def _ask_store(self, keys: pa.Table) -> Found:
        """Return the store's answer for ``keys``, distinct and without nulls, with the columns
        ``law.by``: the rows found, for each the index of its key in ``keys``, and a mask of keys
        that the store cannot hold. Open the process's reader of the store, if none is open.

        Raises ``DataError`` if two rows of the answer have one primary key, or a row does not fit
        the columns ``law.schema``. Raises ``ConfigurationError`` if the store cannot be reached.
        """
        law = self.law
        answer = open_reader(law.lookup, law.schema).rows(law.by, keys)
        refuse_repeated_keys(law.lookup.title, "its primary key", _key_rank(law, answer.rows))
        return answer

    def _known_answers(self, now_us: int) -> SideCache:
        """Return the process's known answers that are younger than ``law.age_max_us`` at the time
        ``now_us``, in microseconds. The caches of the process stay as they are. If ``law.rows_max``
        is 0, there is no such cache: return this task's answers, of any age. Without known answers
        the cache is empty.
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
        remember the result: for the process if ``law.rows_max``, else for this task. Of more than
        ``law.rows_max`` rows (100,000 for the task), the answers used last stay.

        ``asked``: all distinct keys. ``missing``: int64, the indices in ``asked`` of the keys that
        were looked up. ``chunks``: these indices as they were asked, each chunk with one of
        ``answers``.
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
    """Return a cache without keys and rows for the lookup ``law``. Its keys have a last column
    ``_since``, the time of the answer in microseconds.
    """
    none = np.zeros(0, np.int64)
    keys = law.key_schema.append(pa.field(_SINCE, pa.int64()))
    return SideCache(keys.empty_table(), none, law.schema.empty_table(), none)


def _key_rank(law: StoreLookup, rows: pa.Table) -> Ints:
    """Return the rank of each of ``rows`` by the primary key of the store of ``law``: int64[rows].
    It ascends with the key; equal keys have equal ranks.
    """
    columns = [combine_chunks(rows.column(name)) for name in law.lookup.key]
    return rank_of_keys(columns, stable_hash(columns))


def _value_columns(
    law: StoreLookup, records: pa.Table, rows: pa.Table, row: Ints
) -> list[pa.Array]:
    """Return the value columns of results, a row per result, chosen from ``records`` and the
    store's ``rows`` by ``law.values``.

    ``records``: the record of each result. ``row``: int64[results], the index in ``rows`` for each,
    ABSENT for none; the store's values are then null. A value without a column is the whole record
    or row as a struct.
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
    """Return the columns of ``side`` as one column of structs with these fields, in the order of
    its rows. ``missing``: bool[rows], true where the struct is null.
    """
    columns = [combine_chunks(column) for column in side.columns]
    return pa.StructArray.from_arrays(columns, fields=[*side.schema], mask=pa.array(missing))
