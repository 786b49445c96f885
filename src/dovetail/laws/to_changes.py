"""The rows before and after each change of a table (``ToChanges``).

A change that leaves a row as it was emits nothing. Any other emits the former row, if any, then the
present row, if any:

| former | present | emitted                     |
|--------|---------|-----------------------------|
| -      | a       | ``INSERT`` a                |
| a      | b       | ``BEFORE`` a, ``AFTER`` b   |
| b      | b       | -                           |
| b      | -       | ``DELETE`` b                |

Source: Flink, the changelog of a table with update-before rows; spec/view/changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays.timeline import Ints, Mask

INSERT, BEFORE, AFTER, DELETE = range(4)


@dataclass(frozen=True)
class BeforeAndAfterRows:
    """The rows that m changes emit, and their kinds."""

    before: Mask
    """bool[m]: the former row is emitted."""
    after: Mask
    """bool[m]: the present row is emitted."""
    kind_before: Ints
    """int64[m]: ``BEFORE`` or ``DELETE``."""
    kind_after: Ints
    """int64[m]: ``AFTER`` or ``INSERT``."""


def before_and_after_rows(old: Mask, new: Mask, same: Mask) -> BeforeAndAfterRows:
    """Return the rows that m changes emit, and their kinds. A change emits the row before, if any,
    then the row after, if any; it emits none if both rows are equal.

    ``old``, ``new``: bool[m], there is a row before, after. ``same``: bool[m], both rows have equal
    values; it counts only if both are there. The kind of the row before is ``BEFORE`` if there is a
    row after, else ``DELETE``. That of the row after is ``AFTER`` if there was a row before, else
    ``INSERT``. The kind of a row that is not emitted means nothing.
    """
    changed = ~(old & new & same)
    return BeforeAndAfterRows(
        old & changed,
        new & changed,
        np.where(new, BEFORE, DELETE),
        np.where(old, AFTER, INSERT),
    )
