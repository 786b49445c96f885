"""Rows of one foreign key spread over several buckets (``spread=`` of a join by foreign key).

Without it, all left rows that refer to a right row are in the bucket of that row's key, however
many they are. With it, they are dealt over several *shares*, by the hash of their own key. Each
right row goes to all shares, as copies that differ in their hash alone.

An example with ``spread=3`` and eight buckets. Orders 4, 5 and 6 refer to Ann, whose hash is 30:

| row     | its own hash | share   | hash by which it is found | bucket  |
|---------|--------------|---------|---------------------------|---------|
| order 4 | 16           | 1       | 31                        | 7       |
| order 5 | 20           | 2       | 32                        | 0       |
| order 6 | 42           | 0       | 30                        | 6       |
| Ann     | 30           | 0, 1, 2 | 30, 31, 32                | 6, 7, 0 |

So shares lie in buckets side by side, and no bucket has two shares of a key. A key's share 0 lies
where all its rows would lie without ``spread=``, under the same hash. Whoever looks a right row up
by its key finds that copy.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import Ints
from dovetail.base.columns import COPY, FOREIGN, HASH
from dovetail.physical.source import SourceSpec

_HASH_MAX = int(np.iinfo(np.int64).max)


def spread_rows(source: SourceSpec, rows: pa.Table, buckets: int) -> pa.Table:
    """Return an input partition's rows as a join by foreign key spreads them over buckets. Rows of
    other inputs are returned as they are.

    A left row's ``_foreign``, the hash of its foreign key, becomes that of the row's share. Each
    right row comes ``source.arrival.copies`` times, side by side. The column ``_copy``, an int64 at
    the end, has the share, from 0, and ``_hash`` becomes that of the share.

    ``rows``: with the columns of ``source.wire_schema``, ``_copy`` left out. ``buckets``: the count
    of buckets, at least that of shares.
    """
    if source.shape.spread > 1:
        own_hash = rows.column(HASH).to_numpy()
        share = np.mod(own_hash, source.shape.spread)
        foreign = rows.column(FOREIGN)
        hash_ = _hash_of_share(foreign.fill_null(0).to_numpy(), share, buckets)
        spread = pa.array(hash_, mask=foreign.is_null().to_numpy())
        rows = rows.set_column(rows.schema.get_field_index(FOREIGN), FOREIGN, spread)
    copies = source.arrival.copies
    if copies > 1:
        share = np.tile(np.arange(copies), len(rows))
        rows = rows.take(pa.array(np.repeat(np.arange(len(rows)), copies)))
        hash_ = _hash_of_share(rows.column(HASH).to_numpy(), share, buckets)
        rows = rows.set_column(rows.schema.get_field_index(HASH), HASH, pa.array(hash_))
        rows = rows.append_column(COPY, pa.array(share))
    return rows


def _hash_of_share(key_hash: Ints, share: Ints, buckets: int) -> Ints:
    """Return the hash under which a share of a key's rows is found: int64[n]. It is the key's own
    for share 0. Modulo ``buckets``, it is larger by 1 for each next share, also where the sum would
    leave int64.

    ``key_hash``: int64[n], the hash of each key. ``share``: int64[n], from 0 to ``buckets - 1``.

    >>> _hash_of_share(np.array([30, 30, 2**63 - 1]), np.array([0, 2, 1]), 8).tolist()
    [30, 32, 9223372036854775800]
    """
    room = np.where(key_hash > _HASH_MAX - share, buckets, 0)
    return key_hash - room + share
