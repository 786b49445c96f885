"""The manifest: what a bucket's state consists of, replaced whole at the end of each batch.

It is the commit point. It is one blob beside the segments: a version byte, then JSON. It names the
topology and the number of buckets it belongs to, so that a checkpoint cannot be read as another's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from dovetail.errors import CheckpointError, StateError
from dovetail.state.blobs import Blobs
from dovetail.state.runs import Merge, Run, Runs
from dovetail.state.segment import Segment

NAME = "manifest"
FORMAT_VERSION = 2


@dataclass(frozen=True)
class Manifest:
    """One bucket after a batch.

    ``topology``: the fingerprint of the stage's plan; ``buckets``: how many share the key space;
    ``stream_time_us``: per source the largest timestamp processed, None before the first;
    ``read_us``: the largest one read, which differs where rows wait for another source;
    ``heard_us``: the wall-clock time at which the source last brought something; ``position``: how
    many changes the bucket has emitted; ``rows``: how many stream rows it has numbered; ``stores``:
    the runs of each of the stage's stores.
    """

    topology: str
    buckets: int
    stream_time_us: tuple[int | None, ...]
    read_us: tuple[int | None, ...] = ()
    heard_us: tuple[int | None, ...] = ()
    position: int = 0
    rows: int = 0
    stores: tuple[Runs, ...] = ()


def load(blobs: Blobs, topology: str, buckets: int, sources: int, stores: int) -> Manifest:
    """The bucket's manifest, or an empty one before its first batch."""
    blob = blobs.get(NAME)
    if blob is None:
        never = (None,) * sources
        return Manifest(topology, buckets, never, never, never, stores=(Runs(),) * stores)
    manifest = decode(blob)
    if (manifest.topology, manifest.buckets) != (topology, buckets):
        raise CheckpointError(
            "stage state",
            f"the checkpoint holds topology {manifest.topology} in {manifest.buckets} buckets, "
            f"the query is topology {topology} in {buckets}",
            "Use a new checkpoint, or the topology and the number of buckets it was written with",
        )
    return manifest


def save(blobs: Blobs, manifest: Manifest) -> None:
    """Make the manifest the bucket's state."""
    blobs.put(NAME, encode(manifest))


def encode(manifest: Manifest) -> bytes:
    """The stored form."""
    body = {
        "topology": manifest.topology,
        "buckets": manifest.buckets,
        "stream_time_us": manifest.stream_time_us,
        "read_us": manifest.read_us,
        "heard_us": manifest.heard_us,
        "position": manifest.position,
        "rows": manifest.rows,
        "stores": [
            {
                "runs": [[run.tier, _segments(run.segments)] for run in runs.runs],
                "merges": [
                    [merge.tier, merge.read, _segments(merge.done)]
                    for merge in runs.merges
                ],
            }
            for runs in manifest.stores
        ],
    }
    return bytes([FORMAT_VERSION]) + json.dumps(body, separators=(",", ":")).encode()


def decode(blob: bytes) -> Manifest:
    """The manifest of a stored form."""
    if blob[0] != FORMAT_VERSION:
        raise StateError(
            "state manifest",
            f"format version {blob[0]}, this version of dovetail reads {FORMAT_VERSION}",
            "Run the version that wrote the checkpoint, or start from a new checkpoint",
        )
    body = json.loads(blob[1:])
    return Manifest(
        topology=body["topology"],
        buckets=body["buckets"],
        stream_time_us=tuple(body["stream_time_us"]),
        read_us=tuple(body["read_us"]),
        heard_us=tuple(body["heard_us"]),
        position=body["position"],
        rows=body["rows"],
        stores=tuple(
            Runs(
                runs=tuple(Run(tier, _parse(segments)) for tier, segments in store["runs"]),
                merges=tuple(
                    Merge(tier, tuple(read), _parse(done))
                    for tier, read, done in store["merges"]
                ),
            )
            for store in body["stores"]
        ),
    )


def _segments(segments: Sequence[Segment]) -> list[list[Any]]:
    return [list(astuple(s)) for s in segments]


def _parse(segments: Sequence[Sequence[Any]]) -> tuple[Segment, ...]:
    return tuple(Segment(*fields) for fields in segments)
