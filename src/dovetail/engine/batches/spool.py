"""The pieces of a bucket's micro-batch as they come: in memory, or on disk once they are large."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

import pyarrow as pa

from dovetail.engine.batches.pieces import Piece
from dovetail.engine.batches.row_store import SpooledRows, ordering_columns
from dovetail.errors import StorageError
from dovetail.state import local_files
from dovetail.state.ipc import from_ipc, to_ipc


class Spool:
    """A collector of pieces.

    Once their rows take more than ``size_bytes`` in memory, they lie in a file in ``directory``.
    The file has no name, so it is gone with the pieces or the process. ``pieces``: all that came.
    """

    def __init__(self, directory: Path, size_bytes: int) -> None:
        """Begin without pieces; no file is created yet. ``directory``: the folder of the file,
        created when it is needed. ``size_bytes``: the most that the rows of all pieces may take in
        memory.
        """
        self.pieces: list[Piece] = []
        self._directory = directory
        self._room_bytes = size_bytes
        self._in_memory: list[tuple[int, bytes]] = []
        self._file: IO[bytes] | None = None

    def add(self, piece: Piece, payload: bytes | None) -> None:
        """Append ``piece`` to ``pieces``. Once the tables of all pieces take more than
        ``size_bytes`` together, move all rows in memory to the file, and so with each later piece.

        ``piece``: with its rows as a table. ``payload``: the same rows as an Arrow IPC stream, the
        bytes that the file gets; None for a heartbeat, which has no rows. Raises ``StorageError``
        if the file cannot be written.
        """
        self.pieces.append(piece)
        if payload is not None:
            assert piece.rows is not None
            self._room_bytes -= piece.rows.nbytes
            self._in_memory.append((len(self.pieces) - 1, payload))
            if self._room_bytes < 0:
                self._spill()

    def _spill(self) -> None:
        """Move all rows in memory to the file. On an ``OSError``, close the file and raise
        ``StorageError``.
        """
        try:
            self._write_rows()
        except OSError as error:
            if self._file is not None:
                with suppress(OSError):
                    self._file.close()
            raise StorageError(
                "micro-batch",
                f"its rows do not fit into memory and cannot be written to {self._directory} "
                f"({error.strerror})",
                "Make room there, or let a micro-batch read less (maxFilesPerTrigger, "
                "max_per_trigger)",
            ) from error

    def _write_rows(self) -> None:
        """Append all rows in memory to the file, which the first call creates. In ``pieces``, put
        ``SpooledRows`` in their place: the position in the file, and the columns that order rows.
        Raises ``OSError``.
        """
        if self._file is None:
            local_files.make_private_directory(self._directory)
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 -- kept open
        for piece_index, payload in self._in_memory:
            piece = self.pieces[piece_index]
            assert isinstance(piece.rows, pa.Table)
            # Copy these columns, because a view of them would keep the whole table in memory.
            ordering = from_ipc(to_ipc(ordering_columns(piece.rows)))
            rows = SpooledRows(
                self._file, self._file.tell(), len(payload), ordering, piece.rows.nbytes
            )
            self._file.write(payload)
            self.pieces[piece_index] = replace(piece, rows=rows)
        self._file.flush()
        self._in_memory.clear()
