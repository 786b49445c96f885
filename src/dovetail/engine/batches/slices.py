"""Slices of a bucket's micro-batch that is too large to be worked on at once.

**In order of arrival.** A slice is the next rows of all sources. It is processed like a micro-batch
of its own, with the clocks of the last record that came. The laws' answers do not depend on such
cuts. So the stage's do not either, even if clocks span keys or rows wait. And no key is too large.

**By key**, if an answer depends on the whole micro-batch. One such answer is the last change of
each key (``emit="batch"``). Another is that of a foreign-key join on a left row that moves within
the batch. A slice is all rows of a range of key hashes, as if there were more buckets. Only the
last slice moves the clocks on, so no slice drops what another may still ask for. A left row that
moves from slice to slice is marked like one that moves from bucket to bucket.

Operators whose rows wait in a queue are cut by arrival even so, for the queue is not kept by key.

Only the rows at work are in memory. Of the other rows only the columns that order them are in
memory. The rest is read where it lies (``engine.batches.row_store``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from dovetail.arrays.grouping import lexsort, start_mask
from dovetail.arrays.timeline import Ints, arrival_keys
from dovetail.base.columns import HASH, INSTRUCTION, PLACE
from dovetail.engine.batches.row_store import AT, Stock
from dovetail.laws.joins.foreign_key_join import MOVED
from dovetail.operators.job import Batch, Share
from dovetail.physical.fragment import Fragment
from dovetail.physical.specs.foreign_key import ForeignKeyJoinLaw


@dataclass(frozen=True)
class Slices:
    """The slices of a bucket's micro-batch that is too large to be worked on at once."""

    share: Share
    """The columns that order the batch's rows."""
    stock: Stock
    """The rows themselves."""
    size_bytes: int
    """About the size of a slice."""

    def shares(self) -> Iterator[tuple[Share, bool]]:
        """Yield pairs: the share of each slice, in order, and True for the last one only. A share
        has the slice's rows by source (``batches``), which are read when it is taken.

        Slices are cut by key if an answer depends on the whole micro-batch, else by arrival. Each
        slice by arrival has the stream time of its last row as ``final_us``. Slices by key have the
        stream time before the batch. The last slice has that after the batch.

        A share has the manifest before the batch, not that of the slice before it; the caller
        replaces it.
        """
        by_key = _needs_whole_keys(self.share.fragment)
        parts = self._cut_by_key() if by_key else self._cut_by_arrival()
        moved = (
            self._moved_key_hashes(parts)
            if isinstance(self.share.fragment.operators[0].law, ForeignKeyJoinLaw)
            else None
        )
        for slice_index, part in enumerate(parts):
            batches = [self._read_batch(source, which, moved) for source, which in enumerate(part)]
            share, last = replace(self.share, batches=batches), slice_index == len(parts) - 1
            if not last:
                reached_us = self.share.initial_us if by_key else self._reached_us(part)
                share = replace(share, final_us=reached_us)
            yield share, last

    def _cut_by_arrival(self) -> list[list[Ints]]:
        """Return for each slice, and for each source in it, the indices of the source's rows,
        ascending: int64. Slices are cut in order of arrival, at about ``size_bytes`` each.

        An earlier stage may send several rows for one record's change of one row. An example is the
        old row, which leaves a group, and the new one, which enters it. They stay in one slice.
        """
        rows = [
            self.share.source_rows(source, keyed=False) for source in range(len(self.share.batches))
        ]
        keys = arrival_keys(rows)
        order = lexsort(keys)
        if all(of.tie is None for of in rows):
            return self._cut_rows(order, None)
        return self._cut_rows(order, np.cumsum(start_mask(*(key[order] for key in keys))))

    def _reached_us(self, part: Sequence[Ints]) -> list[int]:
        """Return for each source its stream time in microseconds when the last row of a slice
        arrives. It is at least that before the batch, at most that at its end.

        ``part``: for each source the indices of the slice's rows.
        """
        reached_us = []
        for source, (initial_us, final_us) in enumerate(
            zip(self.share.initial_us, self.share.final_us, strict=True)
        ):
            clocks = (self._clock_by_sources[source, by][rows] for by, rows in enumerate(part))
            highest_us = max(int(clock_us.max(initial=initial_us)) for clock_us in clocks)
            reached_us.append(min(highest_us, final_us))
        return reached_us

    @cached_property
    def _clock_by_sources(self) -> Mapping[tuple[int, int], Ints]:
        """The stream time of each source when each row of any source arrives: int64[rows], in
        microseconds. A key is (index of the source, index of the source of the rows). All pairs are
        there, those of equal indices, too. The mapping is computed once.
        """
        sources = range(len(self.share.batches))
        return {(of, by): self.share.clock_at_rows(of, by) for of in sources for by in sources}

    def _cut_by_key(self) -> list[list[Ints]]:
        """Return for each slice, and for each source in it, the indices of the source's rows,
        ascending: int64. Slices are cut in order of key hashes, at about ``size_bytes`` each, so
        rows of one key are in one slice.
        """
        hash_ = np.concatenate([b.rows.column(HASH).to_numpy() for b in self.share.batches])
        order = np.argsort(hash_, kind="stable")
        return self._cut_rows(order, hash_[order])

    # An example of five rows with 40 bytes each and slices of 100 bytes:
    #
    # | row in order | bytes so far | slice | together | slice, with together |
    # |---|---|---|---|---|
    # | 0 | 40 | 0 | 0 | 0 |
    # | 1 | 80 | 0 | 0 | 0 |
    # | 2 | 120 | 1 | 0 | 0 |
    # | 3 | 160 | 1 | 1 | 1 |
    # | 4 | 200 | 2 | 1 | 1 |
    #
    # Rows with equal ``together`` go with the first of them.
    def _cut_rows(self, order: Ints, together: Ints | None) -> list[list[Ints]]:
        """Cut the rows of all sources into slices of about ``size_bytes``. Return for each slice,
        and for each source in it, the indices of the source's rows, ascending: int64.

        ``order``: int64[rows], indices into the rows of all sources, concatenated, in the order in
        which to cut them. ``together``: int64[rows] in this order; neighbours with equal values
        stay in one slice, however large. None cuts anywhere.
        """
        at = np.concatenate([_rows_in_stock(batch) for batch in self.share.batches])
        filled = np.cumsum(self.stock.row_bytes(at[order])) // self.size_bytes
        if together is not None:
            begins = start_mask(together)
            filled = filled[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]
        edges = np.flatnonzero(np.diff(filled)) + 1
        first = np.cumsum([0, *(len(batch.rows) for batch in self.share.batches)])
        parts = []
        for part in np.split(order, edges):
            row = np.sort(part)
            ends = np.searchsorted(row, first)
            parts.append(
                [row[ends[s] : ends[s + 1]] - first[s] for s in range(len(self.share.batches))]
            )
        return parts

    # Five messages with the hashes of their primary keys, in three slices:
    #
    # | message     | 0  | 1  | 2  | 3  | 4  |
    # |-------------|----|----|----|----|----|
    # | primary key | 70 | 71 | 70 | 72 | 71 |
    # | slice       | 0  | 0  | 1  | 1  | 2  |
    #
    # 70 and 71 have moved. Messages of 72 are in one slice, whose order is that of the key.
    def _moved_key_hashes(self, parts: Sequence[Sequence[Ints]]) -> Ints:
        """Return the hashes of primary keys that have rows of source 0 (messages) in several
        slices, distinct and ascending: int64, empty if none do.

        ``parts``: for each slice, and for each source in it, the indices of the source's rows.
        """
        key_hash = self.share.batches[0].rows.column(PLACE).to_numpy()
        slices = np.empty(len(key_hash), np.int64)
        for slice_index, part in enumerate(parts):
            slices[part[0]] = slice_index
        order = np.lexsort((slices, key_hash))
        key_hash, slices = key_hash[order], slices[order]
        several = (key_hash[1:] == key_hash[:-1]) & (slices[1:] != slices[:-1])
        return np.unique(key_hash[1:][several])

    def _read_batch(self, source: int, which: Ints, moved: Ints | None) -> Batch:
        """Return a batch of some rows of one source, read from the stock with all columns.

        ``source``: the index of the source. ``which``: int64, the indices of its rows to read, in
        the result's order. ``moved``: hashes of primary keys; rows of source 0 with such a
        ``_place`` get the bit ``MOVED`` in ``_instruction``. It says that the results of the
        primary key come from several slices, so they must be put in order later. None marks no
        rows.
        """
        batch = self.share.batches[source]
        schema = self.share.sources[source].wire_schema
        rows = self.stock.fetch(_rows_in_stock(batch)[which], schema)
        if moved is not None and source == 0:
            is_moved = np.isin(rows.column(PLACE).to_numpy(), moved)
            instruction = rows.column(INSTRUCTION).to_numpy() | np.where(is_moved, MOVED, 0)
            column_index = rows.schema.get_field_index(INSTRUCTION)
            rows = rows.set_column(column_index, INSTRUCTION, pa.array(instruction))
        return batch.take(which, rows)


def _rows_in_stock(batch: Batch) -> Ints:
    """Return the index of each of a batch's rows in the micro-batch's stock, the column ``_at``:
    int64[rows], empty for a batch without that column, which has no rows.
    """
    if AT not in batch.rows.schema.names:
        return np.zeros(0, np.int64)
    numbers: Ints = batch.rows.column(AT).to_numpy()
    return numbers


def _needs_whole_keys(fragment: Fragment) -> bool:
    """Return True if all rows of a key must be in one slice, so slices are cut by key. False means
    that they may be cut by arrival.

    It is True if the fragment has one operator alone, with a law of ``whole_keys``. It is also True
    if the last operator has ``emit="batch"``, unless a law of the fragment lets rows wait in a
    queue.
    """
    first = fragment.operators[0]
    if not first.reads and first.law.whole_keys:
        return True
    return fragment.last.emit == "batch" and not any(law.waits for law in fragment.laws)
