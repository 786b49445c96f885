"""Where the pieces of a bucket's micro-batch are kept as they come: in memory, and once they are
many, on disk.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

import pyarrow as pa

from dovetail.engine.pieces import Piece
from dovetail.engine.stock import Spooled, ordering_of
from dovetail.errors import StorageError
from dovetail.state import local_files
from dovetail.state.ipc import from_ipc, to_ipc


class Spool:
    """``pieces``: all that came. Where their rows are more than ``size_bytes`` in memory, they lie
    in a file in ``directory`` that has no name, and is gone with the pieces or the process.
    Raises ``StorageError`` where it cannot be written.
    """

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self.pieces: list[Piece] = []
        self._directory = directory
        self._room_bytes = size_bytes
        self._in_memory: list[tuple[int, bytes]] = []
        self._file: IO[bytes] | None = None

    def add(self, piece: Piece, payload: bytes | None) -> None:
        """Take a piece; ``payload``: its rows as an Arrow IPC stream."""
        self.pieces.append(piece)
        if payload is not None:
            assert piece.rows is not None
            self._room_bytes -= piece.rows.nbytes
            self._in_memory.append((len(self.pieces) - 1, payload))
            if self._room_bytes < 0:
                self._spill()

    def _spill(self) -> None:
        try:
            self._write()
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

    def _write(self) -> None:
        if self._file is None:
            local_files.own(self._directory)
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 -- the pieces'
        for number, payload in self._in_memory:
            piece = self.pieces[number]
            assert isinstance(piece.rows, pa.Table)
            # A copy, for else the whole stays in memory with it.
            ordering = from_ipc(to_ipc(ordering_of(piece.rows)))
            rows = Spooled(self._file, self._file.tell(), len(payload), ordering, piece.rows.nbytes)
            self._file.write(payload)
            self.pieces[number] = replace(piece, rows=rows)
        self._file.flush()
        self._in_memory.clear()
