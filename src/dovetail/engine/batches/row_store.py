"""The rows of a bucket's micro-batch by their indices, whether they lie in memory or on disk."""

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
from dovetail.base.columns import is_reserved
from dovetail.state.ipc import from_ipc

AT = "_at"
"""The column with a row's index in its stock, beside the columns that order rows."""


@dataclass(frozen=True)
class SpooledRows:
    """Rows on disk, as an Arrow IPC stream in an open file."""

    file: IO[bytes]
    offset: int
    """The first byte of the stream in the file."""
    length: int
    """The count of bytes of the stream."""
    ordering: pa.Table
    """The columns that order the rows, in memory."""
    nbytes: int
    """The size of the rows in memory."""

    @property
    def num_rows(self) -> int:
        """The count of rows on disk."""
        return int(self.ordering.num_rows)

    def read(self) -> pa.Table:
        """Return all rows from disk as a table in memory, in order, with all columns. The file's
        position does not move.
        """
        return from_ipc(os.pread(self.file.fileno(), self.length, self.offset))


Stored: TypeAlias = "pa.Table | SpooledRows"


def rows_in_memory(rows: Stored) -> pa.Table:
    """Return ``rows`` as a table in memory. Rows on disk are read anew at each call; a table is
    returned as it is.
    """
    return rows.read() if isinstance(rows, SpooledRows) else rows


def ordering_columns(rows: Stored) -> pa.Table:
    """Return the internal columns of ``rows`` of type int64 or bool, in memory: all that orders
    rows. User columns are left out, and so are internal columns of other types.
    """
    if isinstance(rows, SpooledRows):
        return rows.ordering
    fixed = (pa.int64(), pa.bool_())
    return rows.select([f.name for f in rows.schema if is_reserved(f.name) and f.type in fixed])


@dataclass(frozen=True)
class Stock:
    """All rows of a micro-batch, with indices from 0 over all pieces."""

    pieces: Sequence[Stored]
    """The rows by piece, of one source or of several."""

    @cached_property
    def _first_row_of_pieces(self) -> Ints:
        """The index in the stock of the first row of each piece, then the count of all rows:
        int64[pieces + 1].
        """
        return np.cumsum([0, *(rows.num_rows for rows in self.pieces)])

    @property
    def nbytes(self) -> int:
        """The bytes that the rows of all pieces take in memory; rows on disk count as if they were
        in memory.
        """
        return sum(rows.nbytes for rows in self.pieces)

    def numbered_ordering_columns(self, piece: int) -> pa.Table:
        """Return the internal columns that order the rows of a piece, then ``_at``, each row's
        index in the stock.

        ``piece``: the index of the piece among those of the stock. Rows on disk are not read.
        """
        table = ordering_columns(self.pieces[piece])
        return table.append_column(
            AT, pa.array(np.arange(*self._first_row_of_pieces[piece : piece + 2]))
        )

    def row_bytes(self, row: Ints) -> npt.NDArray[np.float64]:
        """Estimate the bytes of some rows as the mean of each row's piece: float64[n]. ``row``:
        int64[n], indices into the stock.
        """
        mean = np.array([rows.nbytes / max(rows.num_rows, 1) for rows in self.pieces])
        return np.asarray(mean[self._piece_of_rows(row)], np.float64)

    # An example: rows 7, 2 and 5 are asked for, and the pieces begin at rows 0 and 4:
    #
    # | rows asked for, sorted | 2 | 5 | 7 |
    # |---|---|---|---|
    # | piece | 0 | 1 | 1 |
    # | row there | 2 | 1 | 3 |
    # | index among those asked for | 1 | 2 | 0 |
    #
    # Each piece is read once, and the rows are then taken in the order [2, 0, 1].
    def fetch(self, stock_row: Ints, schema: pa.Schema) -> pa.Table:
        """Return the rows with the indices ``stock_row`` in the stock, in this order, with all
        columns, one chunk each. Each piece is read at most once.

        ``stock_row``: int64, distinct. If empty, the result is an empty table of ``schema``, which
        all rows must have.
        """
        order = np.argsort(stock_row, kind="stable")
        sorted_ = stock_row[order]
        piece = self._piece_of_rows(sorted_)
        parts = [schema.empty_table()]
        for piece_index in np.unique(piece):
            start, end = np.searchsorted(piece, (piece_index, piece_index + 1))
            row = sorted_[start:end] - self._first_row_of_pieces[piece_index]
            table = rows_in_memory(self.pieces[piece_index])
            whole = len(row) == len(table)
            parts.append(table if whole else table.take(pa.array(row)))
        rows = pa.concat_tables(parts).combine_chunks()
        if np.any(order[1:] < order[:-1]):
            rank = np.empty(len(order), np.int64)
            rank[order] = np.arange(len(order))
            rows = rows.take(pa.array(rank))
        return rows

    def _piece_of_rows(self, row: Ints) -> Ints:
        """Return the index of the piece that has each of some rows: int64[n]. ``row``: int64[n],
        indices into the stock.
        """
        return np.searchsorted(self._first_row_of_pieces, row, side="right") - 1
