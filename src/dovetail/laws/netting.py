"""What commits change of each key, where they say more of it than what becomes of its row.

A commit is one moment. Where it takes a key's row away and brings another one, the row is replaced:
only what comes is a change. Where both are equal, the commit has rewritten the row, and nothing has
changed. So a table that is overwritten, or loaded anew, changes by the rows that differ.

::

    commit  key  row       is
    7       1    gone a    -
    7       1    comes b   b
    7       2    gone c    -
    7       2    comes c   -
    7       3    gone d    gone d
    8       3    comes e   e
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.grouping import Ints, Mask, by_key
from dovetail.arrays.hashing import stable_hash


def net(keys: Sequence[pa.Array], commit: Ints, gone: Mask, row: Sequence[pa.Array]) -> Mask:
    """Which of n changes stay: bool[n].

    ``keys``: the key columns; ``commit``: int64[n], in which each lies; ``gone``: bool[n], whether
    the row goes; ``row``: the columns by which rows are equal. Of keys that a commit names more
    than twice, which are no keys of a table, all rows that come stay.
    """
    stays = np.ones(len(commit), np.bool_)
    at = np.flatnonzero(np.isin(commit, np.unique(commit[gone])))
    if len(at) == 0:
        return stays
    named = [*(key.take(pa.array(at)) for key in keys), pa.array(commit[at])]
    order, new, _ = by_key(stable_hash(named), named, np.arange(len(at)))
    at, group = at[order], np.cumsum(new) - 1
    goes = gone[at]
    going, coming = (np.bincount(group[one], minlength=group[-1] + 1) for one in (goes, ~goes))
    stays[at[goes & (coming[group] > 0)]] = False
    pair = ((going == 1) & (coming == 1))[group]
    was, is_ = at[pair & goes], at[pair & ~goes]
    then, now = ([column.take(pa.array(one)) for column in row] for one in (was, is_))
    stays[is_[rows_equal(then, now)]] = False
    return stays
