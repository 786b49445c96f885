"""Large packed rows travel in parts, since Spark holds each row of a shuffle whole, several times.

Part 0 of a row has its facts as the payload, and the others have the slices of its payload. Each
part has a header in place of facts. A header has 24 bytes, and facts have 56 or more.

| part | facts | payload |
|---|---|---|
| 0 | header 0 of 3 | the row's facts |
| 1 | header 1 of 3 | the row's payload, its first 64 KiB |
| 2 | header 2 of 3 | the rest of the row's payload |
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from uuid import uuid4

_HEADER = struct.Struct("<16s2i")


def cut(facts: bytes, payload: bytes, bytes_max: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield facts and payload of each part of a row, in order: one part with ``facts``, then the
    slices of ``payload``, at most ``bytes_max`` bytes each. An empty ``payload`` has no slice.
    """
    starts = range(0, len(payload), bytes_max)
    name, count = uuid4().bytes, 1 + len(starts)
    yield _HEADER.pack(name, 0, count), facts
    for index, start in enumerate(starts, 1):
        yield _HEADER.pack(name, index, count), payload[start : start + bytes_max]


def is_part(facts: bytes) -> bool:
    """Return True if ``facts`` is the header of a part, False if it is a row's own."""
    return len(facts) == _HEADER.size


class PartJoiner:
    """The parts that have come of some rows, in any order, until each row is whole."""

    def __init__(self) -> None:
        """Begin without parts."""
        self._parts: dict[bytes, dict[int, bytes]] = {}

    def add(self, facts: bytes, payload: bytes | None) -> tuple[bytes, bytes | None] | None:
        """Return the facts and the payload of a whole row. They are ``facts`` and ``payload`` if
        these are no part. Of a part they are those of its row if no other part is missing, else
        the result is None.
        """
        if not is_part(facts):
            return facts, payload
        name, index, count = _HEADER.unpack(facts)
        assert payload is not None
        parts = self._parts.setdefault(name, {})
        parts[index] = payload
        if len(parts) < count:
            return None
        del self._parts[name]
        return parts[0], b"".join(parts[i] for i in range(1, count))

    def finish(self) -> None:
        """Raise ``AssertionError`` if a row is not whole. Spark brings all rows or fails."""
        assert not self._parts, f"{len(self._parts)} packed rows lack parts"
