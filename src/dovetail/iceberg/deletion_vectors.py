"""Deletion vectors: bitmaps of deleted rows, one for each data file, in Puffin files."""

from __future__ import annotations

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from dovetail.arrays.grouping import Ints

_REFERENCE = "referenced-data-file"
"""The property of a blob with the path of its data file."""
_HEADER, _CHECKSUM = 8, 4
"""Bytes around a bitmap: its length and magic number, then its checksum."""


def data_files_of(io: FileIO, path: str) -> frozenset[str]:
    """Return the paths of the data files that the Puffin file at ``path`` has deletion vectors of.
    A blob without such a path counts as the empty text.
    """
    return frozenset(
        blob.properties.get(_REFERENCE, "") for blob in _read_puffin(io, path).footer.blobs
    )


def deleted_positions(io: FileIO, path: str, data_file: str) -> Ints:
    """Return the positions, from 0, of the rows of ``data_file`` that the Puffin file at ``path``
    says are deleted: int64[m], ascending. Empty if it has no deletion vector of that file. It must
    have at most one, which is not checked. The Puffin file is read whole.

    ``data_file``: the path of the data file, as the Puffin file writes it.
    """
    puffin = _read_puffin(io, path)
    vectors = [
        puffin.get_blob_payload(blob)[_HEADER:-_CHECKSUM]
        for blob in puffin.footer.blobs
        if blob.properties.get(_REFERENCE) == data_file
    ]
    bitmaps = [np.asarray(BitMap64.deserialize(vector).to_array(), np.int64) for vector in vectors]
    return np.concatenate([np.empty(0, np.int64), *bitmaps])


def _read_puffin(io: FileIO, path: str) -> PuffinFile:
    """Return the parsed Puffin file at ``path``, read whole. Errors of the file system and of
    pyiceberg pass.
    """
    with io.new_input(path).open() as file:
        return PuffinFile(file.read())
