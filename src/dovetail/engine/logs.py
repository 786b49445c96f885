"""Rows of a table that come from several logs: rows without effect are left out (``laws.logs``).

A row has no effect if a row of its key from another log came before it and is newer. Operators do
not see such rows.

Micro-batches may end before all logs are read equally far. Then a store remembers for each key the
age and the log of its current row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dovetail.arrays.casts import cast_rows
from dovetail.arrays.grouping import by_key
from dovetail.arrays.timeline import NO_TIME, Ints, arrival_order
from dovetail.base.columns import DELETED, EVENT_TIME, HASH, LOG_PARTITION, SEQUENCE
from dovetail.laws.logs import REPLAY_LOG, find_effective_rows
from dovetail.operators.counts import Counts
from dovetail.operators.job import Share
from dovetail.physical.fragment import log_store_name, replaced_metric
from dovetail.physical.source import SourceSpec, number_repeated_names
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.run_state import Located
from dovetail.state.runs import Merge, Runs
from dovetail.state.segment import SegmentCache
from dovetail.state.table_state import TableState, newest_of_key

FORGOTTEN_US = 7 * 24 * 3600 * 1_000_000
"""The time behind stream time after which it is forgotten from which log a key was deleted."""
_BEFORE_ALL = int(np.iinfo(np.int64).min)


@dataclass
class LogsOfSlices:
    """The logs of keys in the slices of one micro-batch so far, in memory.

    They stand in for the stores of sources that need none between micro-batches.
    """

    stores: dict[str, Runs] = field(default_factory=dict)
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    cache: SegmentCache = field(default_factory=SegmentCache)


def drop_rows_without_effect(
    share: Share, counts: Counts, slices: LogsOfSlices | None = None
) -> tuple[Share, dict[str, Runs]]:
    """Return ``share``, a bucket's rows in a micro-batch, without the rows that have no effect.
    Also return the stores on the logs of keys, by the stores' names. Rows left out are added to
    ``counts``.

    A row has no effect if a newer row of its key, from another log, came before it. Of two rows of
    a key the newer one has the larger age or, of equal ages, the larger log. A row's age is the
    largest time in its log of the key so far. Replayed rows, those of ``REPLAY_LOG``, always have
    an effect. The metric is ``<input>.replaced``.

    Only sources with ``RowArrival.logs`` are looked at. A source gets a store if its micro-batches
    may end before all logs are read equally far (``RowArrival.limited``). Then a later batch may
    bring older rows. A source that has a store keeps it. If nothing is left out, ``share`` itself
    is returned.

    ``slices``: given if ``share`` is a slice of a micro-batch, the same for all its slices in turn.
    It is changed in place.
    """
    stores: dict[str, Runs] = {}
    batches = list(share.batches)
    names = number_repeated_names([source.name for source in share.sources])
    for source_index, (source, name) in enumerate(zip(share.sources, names, strict=True)):
        if not source.arrival.logs:
            continue
        runs = share.manifest.stores.get(log_store_name(name))
        key_logs, lasting = None, source.arrival.limited or runs is not None
        if lasting:
            key_logs = _KeyLogs(source, runs or Runs(), share, share.final_us[source_index])
        elif slices is not None:
            within = replace(share, blobs=slices.blobs, cache=slices.cache)
            key_logs = _KeyLogs(source, slices.stores.get(name, Runs()), within, NO_TIME)
        rows = batches[source_index].rows
        if len(rows) and (key_logs is not None or _any_key_from_several_logs(rows)):
            kept_row = _apply_key_logs(share, source_index, key_logs)
            if len(kept_row) < len(rows):
                lost_row = np.delete(np.arange(len(rows)), kept_row)
                counts.add_rows(replaced_metric(source), source, rows, lost_row)
                batches[source_index] = batches[source_index].take(
                    kept_row, rows.take(pa.array(kept_row))
                )
        if key_logs is not None and lasting:
            stores[log_store_name(name)] = key_logs.runs
        elif key_logs is not None and slices is not None:
            slices.stores[name] = key_logs.runs
    if any(new is not old for new, old in zip(batches, share.batches, strict=True)):
        share = replace(share, batches=batches)
    return share, stores


class _KeyLogs(TableState):
    """The age of each key's current row, as ``_event_time``, and its log.

    A deleted key is forgotten ``FORGOTTEN_US`` behind stream time.
    """

    def __init__(self, source: SourceSpec, runs: Runs, share: Share, stream_us: int) -> None:
        """Open the store as it was before the batch. ``source``: the input whose keys it has.
        ``runs``: the store's sorted runs in the manifest. ``share``: the rows at work, with the
        blobs. ``stream_us``: the source's stream time at the end of the batch in microseconds,
        ``NO_TIME`` before its first record.
        """
        keys = source.shape.key_fields
        schema = pa.schema(
            [
                *(source.shape.schema.field(name) for name in (HASH, EVENT_TIME, DELETED)),
                *keys,
                pa.field(LOG_PARTITION, pa.int64()),
            ]
        )
        super().__init__(schema, len(keys), runs, share.blobs, share.cache)
        self._forgotten_us = NO_TIME if stream_us == NO_TIME else stream_us - FORGOTTEN_US

    def stored_logs(self, located: Located, which: Ints) -> Ints:
        """Return the id of the log that the stored row of each asked key came from: int64[m].

        ``located``: the result of a search for keys. ``which``: int64[m], indices of keys in it.
        Each must have a stored row, perhaps a tombstone.
        """
        column = len(self.schema) - 1
        log: Ints = located.fetch(which, [column]).column(0).to_numpy()
        return log

    def _merge_slices(self, pieces: Sequence[pa.Table], merge: Merge) -> pa.Table:
        """Return the last row of each key in ``pieces``, in hash order. If the store's oldest
        sorted run is merged, too, drop tombstones more than ``FORGOTTEN_US`` (7 days) behind stream
        time.

        ``pieces``: the next rows of each sorted run that is merged, a table of the store's schema
        each, the oldest run first.
        """
        merged = newest_of_key(pieces, self.key_columns)
        if self.runs.runs[0].tier != merge.tier:
            return merged
        late = pc.greater_equal(merged.column(EVENT_TIME), self._forgotten_us)
        return merged.filter(pc.or_(pc.invert(merged.column(DELETED)), late))


def _any_key_from_several_logs(rows: pa.Table) -> bool:
    """Return True if two rows of equal key hashes come from different logs. ``rows``: at least one,
    with ``_hash`` and ``_log_partition``.
    """
    log = rows.column(LOG_PARTITION).to_numpy()
    if not (log != log[0]).any():
        return False
    hash_ = rows.column(HASH).to_numpy()
    order = np.argsort(hash_, kind="stable")
    hash_, log = hash_[order], log[order]
    return bool(np.any((hash_[1:] == hash_[:-1]) & (log[1:] != log[:-1])))


# An example of one key, whose current row came from log 3. Then log 0 brings an old row and a new
# one. The age of a row is the largest time that its log has had of the key by then:
#
# | arrived | log | position | age | effect |
# |---|---|---|---|---|
# | -1, stored before | 3 | before all | 101 | |
# | 0 | 0 | 7 | 100 | no: 101 came before it |
# | 1 | 0 | 8 | 102 | yes, and it is the row that stays |
def _apply_key_logs(share: Share, source_index: int, key_logs: _KeyLogs | None) -> Ints:
    """Return the indices of the rows of a source in ``share`` that have an effect, ascending:
    int64. Put the age and log of each key's new current row into ``key_logs``.

    ``source_index``: the index of the source. ``key_logs``: the store on the logs of keys, as it
    was before the batch. None looks at the rows of this batch alone, and stores nothing.

    A row's age is a time in microseconds: the largest time in its log of the key so far. A row has
    no effect if a row of its key that is later by age, log and position arrived before it. Replayed
    rows, those of ``REPLAY_LOG``, all have an effect, and ``key_logs`` does not know them.
    """
    source, rows = share.sources[source_index], share.batches[source_index].rows
    mended = rows.column(LOG_PARTITION).to_numpy() == REPLAY_LOG
    if mended.all():
        return np.flatnonzero(mended)
    keyed = share.source_rows(source_index)
    arrival_row = arrival_order([keyed])
    arrival_row = arrival_row[~mended[arrival_row]]
    order, new, columns = by_key(keyed.hash, keyed.keys, arrival_row)
    at = arrival_row[order]
    group, starts = np.cumsum(new) - 1, np.flatnonzero(new)
    log, position = (rows.column(name).to_numpy()[at] for name in (LOG_PARTITION, SEQUENCE))
    time_us, arrived = keyed.event_time_us[at], np.arange(len(at))
    there = np.zeros(0, np.int64)
    if key_logs is not None:
        keys = [column.take(pa.array(starts)) for column in columns]
        located = key_logs.locate(keyed.hash[at[starts]], keys)
        there = np.flatnonzero(located.segment >= 0)
        group = np.append(there, group)
        log = np.append(key_logs.stored_logs(located, there), log)
        position = np.append(np.full(len(there), _BEFORE_ALL), position)
        time_us = np.append(located.event_time_us[there], time_us)
        arrived = np.append(np.full(len(there), -1), arrived)
    arranged = np.lexsort((arrived, group))
    effect, age_us, last = find_effective_rows(
        *(a[arranged] for a in (group, log, position, time_us))
    )
    in_batch = arrived[arranged] >= 0
    row = np.full(len(arranged), -1)
    row[in_batch] = at[arrived[arranged][in_batch]]
    if key_logs is not None:
        changed = last[in_batch[last]]
        stored = rows.select(range(source.shape.key_columns.stop)).take(pa.array(row[changed]))
        stored = stored.set_column(1, EVENT_TIME, pa.array(age_us[changed]))
        logs = pa.array(log[arranged][changed])
        key_logs.store(cast_rows(stored.append_column(LOG_PARTITION, logs), key_logs.schema))
    kept_row: Ints = np.sort(np.append(row[effect & in_batch], np.flatnonzero(mended)))
    return kept_row
