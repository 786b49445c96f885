"""Net changes of commits: the changes of a key that remain when each commit is one moment.

If a commit removes a key's row and brings another, the row is replaced, and only the new row is a
change. If both are equal, the commit has rewritten the row, and nothing has changed. So a table
that is overwritten, or loaded anew, changes only by the rows that differ.

| commit | key | row     | net change |
|--------|-----|---------|------------|
| 7      | 1   | gone a  | -          |
| 7      | 1   | comes b | b          |
| 7      | 2   | gone c  | -          |
| 7      | 2   | comes c | -          |
| 7      | 3   | gone d  | gone d     |
| 8      | 3   | comes e | e          |
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dovetail.arrays.equality import rows_equal
from dovetail.arrays.grouping import Ints, Mask, by_key
from dovetail.arrays.hashing import stable_hash


def find_net_changes(
    keys: Sequence[pa.Array], commit: Ints, removes: Mask, row: Sequence[pa.Array]
) -> Mask:
    """Return a mask of the changes that stay when each commit counts as one moment: bool[n]. The
    changes may lie in any order.

    ``keys``: the key columns, n rows each. ``commit``: int64[n], the id of each change's commit.
    ``removes``: bool[n], the change removes its row; else it brings one. ``row``: at least one
    column, n rows each, by which rows are compared. In keys and rows null equals null, and floats
    are compared by their bits.

    A removal stays if its commit brings no row of the key. The change that brings a row is dropped
    only if its commit removes just one row of the key and brings no other. Both rows must be equal.
    If a commit names a key more than twice, all changes that bring rows stay.
    """
    stays = np.ones(len(commit), np.bool_)
    at = np.flatnonzero(np.isin(commit, np.unique(commit[removes])))
    if len(at) == 0:
        return stays
    named = [*(key.take(pa.array(at)) for key in keys), pa.array(commit[at])]
    order, new, _ = by_key(stable_hash(named), named, np.arange(len(at)))
    at, group = at[order], np.cumsum(new) - 1
    goes = removes[at]
    going, coming = (
        np.bincount(group[selected], minlength=group[-1] + 1) for selected in (goes, ~goes)
    )
    stays[at[goes & (coming[group] > 0)]] = False
    pair = ((going == 1) & (coming == 1))[group]
    was, is_ = at[pair & goes], at[pair & ~goes]
    then, now = ([column.take(pa.array(selected)) for column in row] for selected in (was, is_))
    stays[is_[rows_equal(then, now)]] = False
    return stays
