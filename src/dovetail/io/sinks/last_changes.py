"""The last change of each key in a micro-batch, which alone counts for a table of current rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.base.columns import CHANGE, DELETE, DELETED, POSITION, ROW, key_name


def last_rows(changes: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the last change of each key by position, one row per key, in no particular order. The
    columns are those of ``changes`` in order without ``_change`` and ``_position``, then
    ``_deleted``, a boolean. A null equals a null. Values of a delete are those of its change.

    ``changes``: key, values and others, among them ``_change`` (``upsert`` or ``delete``) and
    ``_position`` (int64). ``keys``: its key columns, at least one. Positions of one key must
    differ. No changes give an empty table.
    """
    changes = changes.sort_by(POSITION)
    # Arrow would read a name that begins with a dot as a path.
    names = [key_name(index) for index in range(len(keys))]
    numbered = changes.select(keys).rename_columns(names)
    numbered = numbered.append_column(ROW, pa.array(range(len(changes))))
    last = numbered.group_by(names, use_threads=False).aggregate([(ROW, "max")])[f"{ROW}_max"]
    rows = changes.take(last)
    gone = pc.equal(rows[CHANGE], DELETE)
    return rows.drop_columns([CHANGE, POSITION]).append_column(DELETED, gone)
