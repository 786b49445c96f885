"""The rows of a bucket's micro-batch by their numbers, whether they lie in memory or on disk."""

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
"""The column with a row's number in its stock, beside the columns that order rows."""


@dataclass(frozen=True)
class SpooledRows:
    """Rows on disk, as an Arrow IPC stream in an open file."""

    file: IO[bytes]
    offset: int
    """The first byte of the stream in the file."""
    length: int
    """The number of bytes of the stream."""
    ordering: pa.Table
    """The columns that order the rows, in memory."""
    nbytes: int
    """The size of the rows in memory."""

    @property
    def num_rows(self) -> int:
        """The number of rows on disk."""
        return int(self.ordering.num_rows)

    def read(self) -> pa.Table:
        """Read all rows from disk and return them in order, with all columns."""
        return from_ipc(os.pread(self.file.fileno(), self.length, self.offset))


Stored: TypeAlias = "pa.Table | SpooledRows"


def rows_in_memory(rows: Stored) -> pa.Table:
    """Return rows as a table in memory; rows on disk are read."""
    return rows.read() if isinstance(rows, SpooledRows) else rows


def ordering_columns(rows: Stored) -> pa.Table:
    """Return the internal columns of ``rows`` of type int64 or bool: all that orders rows, at
    little memory. User columns are left out.
    """
    if isinstance(rows, SpooledRows):
        return rows.ordering
    fixed = (pa.int64(), pa.bool_())
    return rows.select([f.name for f in rows.schema if is_reserved(f.name) and f.type in fixed])


@dataclass(frozen=True)
class Stock:
    """All rows of a micro-batch, numbered from 0 over all pieces."""

    pieces: Sequence[Stored]
    """The rows by piece, of one source or of several."""

    @cached_property
    def _first_row_of_pieces(self) -> Ints:
        """The number of the first row of each piece, then the number of rows: int64[pieces + 1]."""
        return np.cumsum([0, *(rows.num_rows for rows in self.pieces)])

    @property
    def nbytes(self) -> int:
        """The bytes that the rows of all pieces take in memory, those on disk included."""
        return sum(rows.nbytes for rows in self.pieces)

    def numbered_ordering_columns(self, piece: int) -> pa.Table:
        """Return the columns that order the rows of the piece with index ``piece``. The column
        ``AT`` follows, each row's number in the stock.
        """
        table = ordering_columns(self.pieces[piece])
        return table.append_column(
            AT, pa.array(np.arange(*self._first_row_of_pieces[piece : piece + 2]))
        )

    def row_bytes(self, row: Ints) -> npt.NDArray[np.float64]:
        """Estimate the bytes of each of the rows with the numbers ``row``, as the mean of the row's
        piece: float64[row].
        """
        mean = np.array([rows.nbytes / max(rows.num_rows, 1) for rows in self.pieces])
        return np.asarray(mean[self._piece_of_rows(row)], np.float64)

    # An example: rows 7, 2 and 5 are asked for, and the pieces begin at rows 0 and 4:
    #
    # | numbers, sorted | 2 | 5 | 7 |
    # |---|---|---|---|
    # | piece | 0 | 1 | 1 |
    # | row there | 2 | 1 | 3 |
    # | place in numbers | 1 | 2 | 0 |
    #
    # Each piece is read once, and the rows are then taken in the order [2, 0, 1].
    def fetch(self, numbers: Ints, schema: pa.Schema) -> pa.Table:
        """Return the rows with the distinct ``numbers``, in this order, with all columns. Each
        column is in one chunk. No numbers give an empty table of ``schema``. Each piece is read
        once.
        """
        order = np.argsort(numbers, kind="stable")
        sorted_ = numbers[order]
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
        """Return the index of the piece that has each of the rows with the numbers ``row``:
        int64[row].
        """
        return np.searchsorted(self._first_row_of_pieces, row, side="right") - 1
