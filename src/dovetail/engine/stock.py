"""The rows of a bucket's micro-batch by their numbers, wherever they lie: in memory or on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dovetail.arrays.timeline import Ints
from dovetail.columns import is_reserved
from dovetail.state.ipc import from_ipc

AT = "_at"
"""In what orders a stock's rows: their numbers there."""


@dataclass(frozen=True)
class Spooled:
    """Rows on disk, as an Arrow IPC stream in an open file. ``ordering``: their columns that order
    them; ``nbytes``: their size in memory.
    """

    file: IO[bytes]
    offset: int
    length: int
    ordering: pa.Table
    nbytes: int

    @property
    def num_rows(self) -> int:
        """How many they are."""
        return int(self.ordering.num_rows)

    def read(self) -> pa.Table:
        """The rows."""
        return from_ipc(os.pread(self.file.fileno(), self.length, self.offset))


Stored: TypeAlias = "pa.Table | Spooled"


def table_of(rows: Stored) -> pa.Table:
    """The rows in memory."""
    return rows.read() if isinstance(rows, Spooled) else rows


def ordering_of(rows: Stored) -> pa.Table:
    """The columns of fixed width that dovetail adds: all that orders rows, and little memory."""
    if isinstance(rows, Spooled):
        return rows.ordering
    fixed = (pa.int64(), pa.bool_())
    return rows.select([f.name for f in rows.schema if is_reserved(f.name) and f.type in fixed])


@dataclass(frozen=True)
class Stock:
    """``pieces``: some rows each, of one source or of several, all numbered on."""

    pieces: Sequence[Stored]

    @cached_property
    def _first(self) -> Ints:
        return np.cumsum([0, *(rows.num_rows for rows in self.pieces)])

    @property
    def nbytes(self) -> int:
        """The size of all rows in memory."""
        return sum(rows.nbytes for rows in self.pieces)

    def ordering(self, piece: int) -> pa.Table:
        """What orders the rows of a piece, with their numbers."""
        table = ordering_of(self.pieces[piece])
        return table.append_column(AT, pa.array(np.arange(*self._first[piece : piece + 2])))

    def row_bytes(self, at: Ints) -> npt.NDArray[np.float64]:
        """About the size of each of these rows."""
        mean = np.array([rows.nbytes / max(rows.num_rows, 1) for rows in self.pieces])
        return np.asarray(mean[self._piece(at)], np.float64)

    def fetch(self, at: Ints, schema: pa.Schema) -> pa.Table:
        """The rows of these numbers, in this order, each column in one chunk."""
        order = np.argsort(at, kind="stable")
        sorted_ = at[order]
        piece = self._piece(sorted_)
        parts = [schema.empty_table()]
        for number in np.unique(piece):
            start, end = np.searchsorted(piece, (number, number + 1))
            row = sorted_[start:end] - self._first[number]
            table = table_of(self.pieces[number])
            whole = len(row) == len(table)
            parts.append(table if whole else table.take(pa.array(row)))
        rows = pa.concat_tables(parts).combine_chunks()
        if np.any(order[1:] < order[:-1]):
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order))
            rows = rows.take(pa.array(place))
        return rows

    def _piece(self, at: Ints) -> Ints:
        return np.searchsorted(self._first, at, side="right") - 1
