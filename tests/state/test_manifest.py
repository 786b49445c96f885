"""The manifest comes back as it was stored, and another topology's is refused."""

from __future__ import annotations

import pytest

from dovetail.errors import CheckpointError, StateError
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.manifest import NAME, Manifest, decode, encode, load, save
from dovetail.state.runs import Merge, Run, Runs
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
    stores=(
        Runs(),
        Runs(
            (
                Run(
                    1,
                    (
                        Segment("a", 1, 2, LOWEST, 0, 2, 3),
                        Segment("b", 1, 2, 1, HIGHEST, LOWEST, LOWEST),
                    ),
                ),
                Run(0, ()),
            )
        ),
        Runs(
            (Run(0, (Segment("c", 3, 4, 5, 6, 7, HIGHEST),)),),
            (Merge(0, 8, LOWEST, (Segment("d", 1, 1, 1, 1, 1, 1),)),),
        ),
    ),
)


def test_a_round_trip() -> None:
    assert decode(encode(FULL)) == FULL


def test_a_bucket_begins_empty() -> None:
    assert load(MemoryBlobs(), "t", 4, 2, 3) == Manifest(
        "t", 4, (None, None), (None, None), (None, None), stores=(Runs(), Runs(), Runs())
    )


def test_what_was_saved_is_loaded() -> None:
    blobs = MemoryBlobs()
    save(blobs, FULL)
    assert load(blobs, "0123", 8, 3, 3) == FULL


@pytest.mark.parametrize(("topology", "buckets"), [("0124", 8), ("0123", 9)])
def test_another_topology_or_number_of_buckets_is_refused(topology: str, buckets: int) -> None:
    blobs = MemoryBlobs()
    save(blobs, FULL)
    with pytest.raises(CheckpointError, match="holds topology 0123 in 8 buckets"):
        load(blobs, topology, buckets, 3, 3)


def test_another_version_is_refused() -> None:
    blobs = MemoryBlobs({NAME: bytes([3]) + encode(FULL)[1:]})
    with pytest.raises(StateError, match="format version 3, this version of dovetail reads 2"):
        load(blobs, "0123", 8, 3, 3)
