"""The last change of each key in a micro-batch, which alone counts for a table of current rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.base.columns import CHANGE, DELETE, DELETED, POSITION, ROW


def last_rows(changes: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the last change of each key by position, with ``_deleted`` in place of ``_change`` and
    ``_position``. There is one row per key, in no particular order. A null equals a null. Values of
    a delete are as the changelog has them.

    ``changes``: a changelog in Arrow; ``keys``: its key columns, at least one. Positions of one key
    must differ. No changes give an empty table.
    """
    changes = changes.sort_by(POSITION)
    numbered = changes.select(keys).append_column(ROW, pa.array(range(len(changes))))
    last = numbered.group_by(keys, use_threads=False).aggregate([(ROW, "max")])[f"{ROW}_max"]
    rows = changes.take(last)
    gone = pc.equal(rows[CHANGE], DELETE)
    return rows.drop_columns([CHANGE, POSITION]).append_column(DELETED, gone)
