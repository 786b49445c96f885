"""A stream's records answered by what a store says of their keys: a pure function on numbers.

Each record is answered by the store's rows of its key, in their order; one that meets none comes
out alone, or not at all. A record without a key, of which a part is null, meets nothing.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from dovetail.arrays.search import expand
from dovetail.arrays.timeline import ABSENT, Ints

HowAnswered: TypeAlias = Literal["inner", "left"]
"""``"inner"``: records that meet rows; ``"left"``: the others, too, alone."""


def answered(key: Ints, sizes: Ints, how: HowAnswered) -> tuple[Ints, Ints]:
    """What comes of n records. ``key``: int64[n], which key each asks for, -1 for none; ``sizes``:
    int64[k], how many rows each key has, where rows are numbered key by key.

    Returns the record, int64[m], ascending, and the row, int64[m], ``ABSENT`` for none, of each
    result.

    >>> record, row = answered(np.array([1, 0, -1, 1]), np.array([0, 2]), "left")
    >>> record.tolist(), row.tolist()
    ([0, 0, 1, 2, 3, 3], [0, 1, -1, -1, 0, 1])
    >>> answered(np.array([1, 0, -1, 1]), np.array([0, 2]), "inner")[0].tolist()
    [0, 0, 3, 3]
    """
    size = np.append(sizes, 0)[key]
    first = np.append(np.cumsum(sizes) - sizes, 0)[key]
    alone = (size == 0) & (how == "left")
    record, row = expand(first, first + size + alone)
    row[alone[record]] = ABSENT
    return record, row
