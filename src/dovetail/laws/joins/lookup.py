"""Join a stream's records with the rows that a store answers for their keys.

Each record is joined with the store's rows of its key, in their order. A record without rows is
emitted alone or dropped. A record with a null in its key matches nothing.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from dovetail.arrays.search import expand_ranges
from dovetail.arrays.timeline import ABSENT, Ints

HowAnswered: TypeAlias = Literal["inner", "left"]
"""``"inner"``: emit records that match rows. ``"left"``: emit the others, too, alone."""


def answer_records(key: Ints, sizes: Ints, how: HowAnswered) -> tuple[Ints, Ints]:
    """Return the results of n records, as pairs of a record's and a row's index: int64[m] each, by
    record, then by row.

    ``key``: int64[n], the index of the key that each record asks for, -1 for none. ``sizes``:
    int64[k], the count of rows of each key; rows are indexed from 0, key by key. ``how``:
    ``"left"`` gives a record without a row once, with the row ABSENT (-1); ``"inner"`` leaves it
    out.

    >>> record, row = answer_records(np.array([1, 0, -1, 1]), np.array([0, 2]), "left")
    >>> record.tolist(), row.tolist()
    ([0, 0, 1, 2, 3, 3], [0, 1, -1, -1, 0, 1])
    >>> answer_records(np.array([1, 0, -1, 1]), np.array([0, 2]), "inner")[0].tolist()
    [0, 0, 3, 3]
    """
    size = np.append(sizes, 0)[key]
    first = np.append(np.cumsum(sizes) - sizes, 0)[key]
    alone = (size == 0) & (how == "left")
    record, row = expand_ranges(first, first + size + alone)
    row[alone[record]] = ABSENT
    return record, row
