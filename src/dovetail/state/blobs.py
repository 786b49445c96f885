"""The storage of a bucket's bytes: named blobs, written once or replaced whole.

On Spark they live in the query's state store (``spark.execution.buckets``), which commits them
with the batch. In the test driver and in batch runs they live in memory.
"""

from __future__ import annotations

from typing import Protocol


class Blobs(Protocol):
    """Named blobs of one bucket."""

    def get(self, name: str) -> bytes | None:
        """Return the blob of this name, None if there is none."""

    def put(self, name: str, blob: bytes) -> None:
        """Store a blob under ``name``, in place of a former one if there is any."""

    def delete(self, name: str) -> None:
        """Remove the blob of this name, which must exist."""


class MemoryBlobs:
    """Blobs in a dictionary, for tests and batch runs."""

    def __init__(self, blobs: dict[str, bytes] | None = None) -> None:
        """Hold the dictionary ``blobs`` itself, from name to bytes; by default a new, empty one."""
        self.blobs = {} if blobs is None else blobs

    def get(self, name: str) -> bytes | None:
        """Return the blob of this name, None if there is none."""
        return self.blobs.get(name)

    def put(self, name: str, blob: bytes) -> None:
        """Store a blob under ``name``, in place of a former one if there is any."""
        self.blobs[name] = blob

    def delete(self, name: str) -> None:
        """Remove the blob of this name. Raises ``KeyError`` if there is none."""
        del self.blobs[name]
