"""Runs as a restart finds them."""

from __future__ import annotations

from dovetail.state import manifest
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.runs import Runs


def restored(runs: Runs) -> Runs:
    """These runs, saved and loaded again."""
    blobs = MemoryBlobs()
    manifest.save(blobs, manifest.Manifest("t", 1, (None,), stores={"t": runs}))
    return manifest.load(blobs, "t", 1, 1).stores["t"]
