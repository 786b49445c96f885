"""The manifest comes back as it was stored, and another topology's is refused."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from dovetail.errors import CheckpointError, StateError
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.manifest import NAME, Manifest, load, save
from dovetail.state.runs import Merge, Runs, SortedRun
from dovetail.state.segment import Segment

LOWEST, HIGHEST = -(2**63), 2**63 - 1
FULL = Manifest(
    topology="0123",
    buckets=8,
    stream_time_us=(None, -5, HIGHEST),
    read_us=(None, 8, 9),
    heard_us=(None, 7, LOWEST),
    position=2**60,
    rows=2**61,
    stores={
        "empty": Runs(),
        "orders": Runs(
            (
                SortedRun(
                    1,
                    (
                        Segment("a", 1, 2, LOWEST, 0, 2, 3),
                        Segment("b", 1, 2, 1, HIGHEST, LOWEST, LOWEST),
                    ),
                ),
                SortedRun(0, ()),
            )
        ),
        "left: waiting": Runs(
            (SortedRun(0, (Segment("c", 3, 4, 5, 6, 7, HIGHEST),)),),
            (Merge(0, (3, 0), (Segment("d", 1, 1, 1, 1, 1, 1),)),),
        ),
    },
)


def test_a_bucket_begins_empty() -> None:
    never = (None, None)
    assert load(MemoryBlobs(), "t", 4, 2) == Manifest("t", 4, never, never, never)


def test_what_was_saved_is_loaded() -> None:
    blobs = MemoryBlobs()
    save(blobs, FULL)
    assert load(blobs, "0123", 8, 3) == FULL


@pytest.mark.parametrize(("topology", "buckets"), [("0124", 8), ("0123", 9)])
def test_another_topology_or_number_of_buckets_is_refused(topology: str, buckets: int) -> None:
    blobs = MemoryBlobs()
    save(blobs, FULL)
    with pytest.raises(CheckpointError, match="holds topology 0123 in 8 buckets"):
        load(blobs, topology, buckets, 3)


def test_another_version_is_refused() -> None:
    blobs = MemoryBlobs()
    save(blobs, FULL)
    blobs.put(NAME, bytes([3]) + blobs.blobs[NAME][1:])
    with pytest.raises(StateError, match="format version 3, this version of dovetail reads 4"):
        load(blobs, "0123", 8, 3)


class Counted(MemoryBlobs):
    """Blobs that count what is read and written."""

    read = written = 0

    def get(self, name: str) -> bytes | None:
        found = super().get(name)
        self.read += 0 if found is None else len(found)
        return found

    def put(self, name: str, blob: bytes) -> None:
        super().put(name, blob)
        self.written += len(blob)


def segments(count: int) -> tuple[Segment, ...]:
    return tuple(
        Segment(uuid.uuid4().hex, 40_000, 4 << 20, i, HIGHEST - i, LOWEST, HIGHEST)
        for i in range(count)
    )


def test_a_batch_writes_little_however_large_the_state() -> None:
    """10 GB of state, a merge of half of it under way; each batch appends and merges a little."""
    blobs = Counted()
    runs = Runs(
        (
            SortedRun(3, segments(1_200)),
            SortedRun(3, segments(1_100)),
            *(SortedRun(0, segments(1)),) * 5,
        ),
        (Merge(3, (0, 0), ()),),
    )
    manifest = Manifest("t", 1, (None,), (None,), (None,), stores={"t": runs})
    save(blobs, manifest)
    assert blobs.written > 200_000
    known: dict[str, tuple[Segment, ...]] = {}
    most = 0
    for _ in range(300):
        blobs.written = blobs.read = 0
        manifest = load(blobs, "t", 1, 1, known)
        known |= manifest.pages
        assert manifest.stores == {"t": runs}
        runs = runs.append(segments(1)).without_runs(runs.runs_of_tier(0)[:1])
        (merge,) = runs.merges
        runs = runs.replace_merge(merge, replace(merge, done=(*merge.done, *segments(4))))
        known |= save(blobs, replace(manifest, stores={"t": runs}))
        most = max(most, blobs.written)
    assert most < 24_000
    assert blobs.read < 24_000
    assert load(blobs, "t", 1, 1).stores == {"t": runs}
    manifest = load(blobs, "t", 1, 1)
    runs = runs.complete_merge(runs.merges[0])
    save(blobs, replace(manifest, stores={"t": runs}))
    assert len(blobs.blobs) == 1 + 1_200 // 32
    assert load(blobs, "t", 1, 1).stores == {"t": runs}
    save(blobs, replace(load(blobs, "t", 1, 1), stores={"t": Runs()}))
    assert list(blobs.blobs) == [NAME]


def test_two_ways_on_from_one_state_share_no_page() -> None:
    """As two queries go on, one with the state of the other, or a micro-batch is repeated after a
    kill: processes that see both remember the pages of both.
    """
    begun = segments(31)
    state = MemoryBlobs()
    save(state, Manifest("t", 1, (None,), stores={"t": Runs((SortedRun(1, begun),))}))
    known: dict[str, tuple[Segment, ...]] = {}
    ways = []
    for _ in range(2):
        blobs, runs = MemoryBlobs(dict(state.blobs)), Runs((SortedRun(1, begun + segments(1)),))
        known |= save(blobs, replace(load(blobs, "t", 1, 1, known), stores={"t": runs}))
        ways.append((blobs, runs))
    for blobs, runs in ways:
        assert load(blobs, "t", 1, 1, known).stores == {"t": runs}
