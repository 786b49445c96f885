"""What a task of a delta join remembers of one side: the rows of the join keys it last used.

An entry is a join key with all of its side's rows, or with none. A side's changes come to the task
that has their key, so entries are brought up to date by the rows of each micro-batch; a task that
missed a batch must forget them all. ``CacheFile`` sees to that: a batch reads what the batch before
it left, and nothing older.

Entries are columns: a batch costs by the size of the cache and of the batch, without a Python call
per key.
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
    """``keys``: the join keys of n entries; ``used``: int64[n], the batch that last used each;
    ``rows``: m rows; ``entry``: int64[m], the entry that each belongs to.
    """

    keys: pa.Table
    used: Ints
    rows: pa.Table
    entry: Ints

    @classmethod
    def empty(cls, schema: pa.Schema, keys: int) -> SideCache:
        """A cache of nothing; ``keys``: how many of the first columns are the join key."""
        key_schema = pa.schema([schema.field(i) for i in range(keys)])
        none = np.zeros(0, np.int64)
        return cls(key_schema.empty_table(), none, schema.empty_table(), none)

    def __len__(self) -> int:
        """How many rows it counts for: an entry without rows counts as one."""
        return int(self._weights().sum())

    def kept(self, entries: Mask, fresh: SideCache, size: int) -> SideCache:
        """The ``entries`` of this cache and those of another, at most ``size`` rows: those that
        were used last.
        """
        number = np.cumsum(entries) - 1
        rows = entries[self.entry]
        both = SideCache(
            keys=pa.concat_tables([self.keys.filter(pa.array(entries)), fresh.keys]),
            used=np.concatenate((self.used[entries], fresh.used)),
            rows=pa.concat_tables([self.rows.filter(pa.array(rows)), fresh.rows]),
            entry=np.concatenate((number[self.entry[rows]], entries.sum() + fresh.entry)),
        )
        return both._bounded(size)

    def _weights(self) -> Ints:
        return np.maximum(np.bincount(self.entry, minlength=len(self.used)), 1)

    def _bounded(self, size: int) -> SideCache:
        weights = self._weights()
        if weights.sum() <= size:
            return self
        # An entry larger than the whole cache would only drive the others out.
        order = np.lexsort((np.arange(len(self.used)), -self.used, weights > size))
        fits = np.cumsum(weights[order]) <= size
        chosen = np.zeros(len(self.used), np.bool_)
        chosen[order[fits]] = True
        number = np.cumsum(chosen) - 1
        rows = chosen[self.entry]
        return SideCache(
            keys=self.keys.filter(pa.array(chosen)),
            used=self.used[chosen],
            rows=self.rows.filter(pa.array(rows)),
            entry=number[self.entry[rows]],
        )


@dataclass(frozen=True)
class CacheFile:
    """The caches of one task of a query, in a directory of the executor's machine; named by the
    batch that left them.
    """

    directory: Path
    name: str

    def read(self, batch: int) -> list[SideCache] | None:
        """What the batch before this one left here, None where it ran elsewhere."""
        try:
            with self._path(batch - 1).open("rb") as file:
                parts = [pa.ipc.open_stream(file).read_all() for _ in range(4)]
        except (OSError, pa.ArrowException):
            return None
        return [_side(*parts[:2]), _side(*parts[2:])]

    def write(self, batch: int, caches: Sequence[SideCache]) -> None:
        """Leave the caches to the next batch, which goes without where they cannot be written, and
        drop what no batch will read.
        """

        def fill(file: IO[bytes]) -> None:
            for cache in caches:
                for table, name, column in (
                    (cache.keys, _USED, cache.used),
                    (cache.rows, _ENTRY, cache.entry),
                ):
                    stored = table.append_column(name, pa.array(column, pa.int64()))
                    with pa.ipc.new_stream(file, stored.schema) as writer:
                        writer.write_table(stored)

        local_files.write(self._path(batch), fill)
        # The batch before may be run again and read what the one before it left.
        local_files.remove(self._path(batch - 2))

    def _path(self, batch: int) -> Path:
        return self.directory / f"{self.name}-{batch}.arrow"


_USED, _ENTRY = "_used", "_entry"


def _side(keys: pa.Table, rows: pa.Table) -> SideCache:
    return SideCache(
        keys=keys.drop_columns([_USED]),
        used=keys.column(_USED).to_numpy(),
        rows=rows.drop_columns([_ENTRY]),
        entry=rows.column(_ENTRY).to_numpy(),
    )
