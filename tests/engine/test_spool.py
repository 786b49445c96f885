"""The spool of a micro-batch that is larger than memory: its rows are what came, wherever they lie;
a disk that cannot be written is an error that says what to do, and nothing is left there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from disks import no_room

import dovetail as dt
from dovetail.engine.batches.pieces import Piece
from dovetail.engine.batches.row_store import SpooledRows, rows_in_memory
from dovetail.engine.batches.spool import Spool
from dovetail.state.ipc import to_ipc

ROWS = 2000


def piece(number: int) -> Piece:
    values = np.random.default_rng(number).integers(0, 1 << 60, ROWS)
    rows = pa.table({"_hash": np.arange(ROWS), "v": pa.array(values).cast(pa.string())})
    return Piece(source=0, partition=0, number=number, high_time_us=number, rows=rows)


def fill(spool: Spool, pieces: list[Piece]) -> None:
    for one in pieces:
        spool.add(one, to_ipc(one.rows))


def open_files(directory: Path) -> int:
    """How many files of a directory this process has open, those without a name included."""
    entries = Path("/proc/self/fd").iterdir()
    return sum(directory in entry.readlink().parents for entry in entries if entry.is_symlink())


def test_rows_are_what_came(tmp_path: Path) -> None:
    pieces = [piece(number) for number in range(5)]
    assert pieces[0].rows is not None
    size = pieces[0].rows.nbytes
    for room, on_disk in ((10 * size, 0), (3 * size, 5), (0, 5)):
        spool = Spool(tmp_path / "spool", room)
        fill(spool, pieces)
        assert sum(isinstance(one.rows, SpooledRows) for one in spool.pieces) == on_disk
        for given, kept in zip(pieces, spool.pieces, strict=True):
            assert kept.rows is not None
            assert rows_in_memory(kept.rows).equals(given.rows)
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize("already", [0, 2])
def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path: Path, already: int) -> None:
    spool = Spool(tmp_path / "spool", 0)
    fill(spool, [piece(number) for number in range(already)])
    with no_room(), pytest.raises(dt.errors.StorageError) as raised:
        spool.add(piece(9), to_ipc(piece(9).rows))
    for part in ("cannot be written to", str(tmp_path), "File too large", "maxFilesPerTrigger"):
        assert part in str(raised.value)
    assert open_files(tmp_path) == 0
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "spool").write_bytes(b"")
    with pytest.raises(dt.errors.StorageError, match=r"File exists\). Make room there"):
        fill(Spool(tmp_path / "spool", 0), [piece(0)])
