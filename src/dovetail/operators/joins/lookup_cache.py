"""The memory of a delta join's task for one side: the rows of the join keys that it last used.

An entry is a join key with all of its side's rows, or with none. A side's changes go to the task
that has their key, so the rows of each micro-batch bring entries up to date. A task that missed a
batch must forget all entries. ``CacheFile`` ensures it: a batch reads the entries left by the batch
just before, and nothing older.

Entries are columns, so a batch costs by the size of the cache and of the batch, without a Python
call per key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import Ints, Mask
from dovetail.state import local_files


@dataclass(frozen=True)
class SideCache:
    """The n entries of one side, with m rows."""

    keys: pa.Table
    """The join keys of the n entries."""
    used: Ints
    """int64[n]: the id of the micro-batch (in ``TaskLookups``, the time) that last used each
    entry.
    """
    rows: pa.Table
    """The m rows of all entries."""
    entry: Ints
    """int64[m]: the index of the entry that each row belongs to."""

    @classmethod
    def empty(cls, schema: pa.Schema, keys: int) -> SideCache:
        """Return a cache without entries, for rows of ``schema`` whose first ``keys`` columns are
        the join key.
        """
        key_schema = pa.schema([schema.field(i) for i in range(keys)])
        none = np.zeros(0, np.int64)
        return cls(key_schema.empty_table(), none, schema.empty_table(), none)

    def __len__(self) -> int:
        """Return the size in rows; an entry without rows counts as one, so the size is at least the
        count of entries.
        """
        return int(self._entry_sizes().sum())

    def keep_entries(self, entries: Mask, fresh: SideCache, size: int) -> SideCache:
        """Return a new cache of the selected ``entries`` of this one, then all of ``fresh``, with
        at most ``size`` rows. If there are more, the entries used last stay.

        ``entries``: bool[n]. Both caches have the same columns, and no key in common. An entry
        without rows counts as one row; one of more than ``size`` rows never stays.
        """
        entry_index = np.cumsum(entries) - 1
        rows = entries[self.entry]
        merged = SideCache(
            keys=pa.concat_tables([self.keys.filter(pa.array(entries)), fresh.keys]),
            used=np.concatenate((self.used[entries], fresh.used)),
            rows=pa.concat_tables([self.rows.filter(pa.array(rows)), fresh.rows]),
            entry=np.concatenate((entry_index[self.entry[rows]], entries.sum() + fresh.entry)),
        )
        return merged._within_size(size)

    def _entry_sizes(self) -> Ints:
        """Return the size of each entry: int64[n], its count of rows, at least 1."""
        return np.maximum(np.bincount(self.entry, minlength=len(self.used)), 1)

    def _within_size(self, size: int) -> SideCache:
        """Return a cache of the entries that were used last and together have at most ``size``
        rows, in their order; this cache if all fit. Entries are taken by last use until one does
        not fit; older ones are not tried. Of entries used by the same batch the first ones stay. An
        entry of more than ``size`` rows never stays. An entry without rows counts as one row.
        """
        weights = self._entry_sizes()
        if weights.sum() <= size:
            return self
        # An entry larger than the whole cache goes last: it would only drive the others out.
        order = np.lexsort((np.arange(len(self.used)), -self.used, weights > size))
        fits = np.cumsum(weights[order]) <= size
        chosen = np.zeros(len(self.used), np.bool_)
        chosen[order[fits]] = True
        entry_index = np.cumsum(chosen) - 1
        rows = chosen[self.entry]
        return SideCache(
            keys=self.keys.filter(pa.array(chosen)),
            used=self.used[chosen],
            rows=self.rows.filter(pa.array(rows)),
            entry=entry_index[self.entry[rows]],
        )


@dataclass(frozen=True)
class CacheFile:
    """The caches of one task of a query, in a directory of the executor's machine. A file is named
    by the batch that wrote it.
    """

    directory: Path
    """The folder of the files, created when the first one is written."""
    name: str
    """The name of the task's files, without the micro-batch's id."""

    def read(self, batch: int) -> list[SideCache] | None:
        """Return the caches that the micro-batch before ``batch``, an id, wrote here: the left
        side's, then the right side's. Return None if there is no readable file.
        """
        try:
            with self._path(batch - 1).open("rb") as file:
                parts = [pa.ipc.open_stream(file).read_all() for _ in range(4)]
        except (OSError, pa.ArrowException):
            return None
        return [_cache_from_tables(*parts[:2]), _cache_from_tables(*parts[2:])]

    def write(self, batch: int, caches: Sequence[SideCache]) -> None:
        """Write ``caches``, those of the left and the right side, for the micro-batch after
        ``batch``, an id. Remove the file that was written two micro-batches before. The folder is
        created if missing. If the file cannot be written, no error is raised, and the next batch
        starts without caches.
        """

        def write_tables(file: IO[bytes]) -> None:
            """Write four tables to ``file`` as Arrow streams: the keys and the rows of each cache,
            left first.
            """
            for cache in caches:
                for table, name, column in (
                    (cache.keys, _USED, cache.used),
                    (cache.rows, _ENTRY, cache.entry),
                ):
                    stored = table.append_column(name, pa.array(column, pa.int64()))
                    with pa.ipc.new_stream(file, stored.schema) as writer:
                        writer.write_table(stored)

        local_files.write_file(self._path(batch), write_tables)
        # The batch before this one may run again, and then reads the file of its predecessor.
        local_files.remove_file(self._path(batch - 2))

    def _path(self, batch: int) -> Path:
        """Return the path of the cache's file after the micro-batch with the id ``batch``:
        ``<name>-<batch>.arrow`` in ``directory``.
        """
        return self.directory / f"{self.name}-{batch}.arrow"


_USED, _ENTRY = "_used", "_entry"


def _cache_from_tables(keys: pa.Table, rows: pa.Table) -> SideCache:
    """Return a cache from its two stored tables: ``keys`` with a last column ``_used``, and
    ``rows`` with a last column ``_entry``, the index of the entry that each belongs to.
    """
    return SideCache(
        keys=keys.drop_columns([_USED]),
        used=keys.column(_USED).to_numpy(),
        rows=rows.drop_columns([_ENTRY]),
        entry=rows.column(_ENTRY).to_numpy(),
    )
