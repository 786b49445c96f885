"""The manifest: the list of everything that a bucket's state consists of.

It is the commit point, replaced whole at the end of each batch. It is one blob beside the segments:
a version byte, then JSON. It names its topology and number of buckets, so a checkpoint cannot be
read as that of another query.

A run's list of segments only grows at its end, while a merge writes it. So every ``_PAGE`` segments
are a *page*, a blob of its own. A page is written once and named after its last segment: another
page may begin alike, if a batch is run again or two queries go on from one state. The manifest has
the names of the pages and only the rest of each list. So the bytes that a batch writes hardly grow
with the state.

The format covers the meaning of segments, too. With another ``arrays.hashing.stable_hash`` stored
rows would not be found, so a change of it changes ``FORMAT_VERSION``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeAlias

from dovetail.errors import CheckpointError, StateError
from dovetail.state.blobs import Blobs
from dovetail.state.runs import Merge, Runs, SortedRun
from dovetail.state.segment import Segment

NAME, PAGE = "manifest", "page-"
"""The manifest, and what the names of its pages begin with."""
FORMAT_VERSION = 4

_PAGE = 32
_entry = attrgetter(*(column.name for column in fields(Segment)))
"""The stored form of a segment: its fields. ``astuple`` copies each value."""

Segments: TypeAlias = "tuple[Segment, ...]"
Logs: TypeAlias = "Mapping[int, tuple[int, int]]"
Pages: TypeAlias = "Mapping[str, Segments]"


@dataclass(frozen=True)
class Manifest:
    """The state of one bucket after a batch."""

    topology: str
    """The fingerprint of the stage's plan."""
    buckets: int
    """The count of buckets that share the key space."""
    stream_time_us: tuple[int | None, ...]
    """For each source the largest timestamp processed, in microseconds; None before the first."""
    read_us: tuple[int | None, ...] = ()
    """For each source the largest timestamp read, in microseconds. It is larger if rows wait for
    another source.
    """
    heard_us: tuple[int | None, ...] = ()
    """For each source the wall-clock time, in microseconds, at which it last brought something."""
    position: int = 0
    """The count of changes that the bucket has emitted."""
    rows: int = 0
    """The count of stream rows to which the bucket has given a row number."""
    stores: Mapping[str, Runs] = field(default_factory=dict)
    """The runs of each store, by its name."""
    logs: tuple[Logs, ...] = ()
    """For each source, by the log's id, the largest timestamp read and when the log last brought
    something, both in microseconds.

    Empty if logs are not waited for one by one.
    """
    pages: Pages = field(default_factory=dict, compare=False)
    """The pages that are stored, by name."""


def load(
    blobs: Blobs,
    topology: str,
    buckets: int,
    sources: int,
    stored_pages: Pages = MappingProxyType({}),
) -> Manifest:
    """Return the manifest in a bucket's ``blobs``, or an empty one for ``sources`` sources before
    its first batch.

    ``topology``: the stage's fingerprint. ``buckets``: the count of its buckets. ``sources``: the
    count of its inputs; a stored manifest is not compared with it. ``stored_pages``: segments by
    page name, of pages that need not be read. A page is a part of the manifest, a list of segments
    in a blob of its own. Raises ``CheckpointError`` if the manifest belongs to another topology or
    count of buckets. Raises ``StateError`` if it or a page has another format version, and
    ``AssertionError`` if a page is missing.
    """
    manifest = read(blobs, stored_pages)
    if manifest is None:
        never = (None,) * sources
        return Manifest(topology, buckets, never, never, never)
    if (manifest.topology, manifest.buckets) != (topology, buckets):
        raise CheckpointError(
            "stage state",
            f"the checkpoint holds topology {manifest.topology} in {manifest.buckets} buckets, "
            f"the query is topology {topology} in {buckets}",
            "Use a new checkpoint, or the topology and the number of buckets it was written with",
        )
    return manifest


def read(blobs: Blobs, stored_pages: Pages = MappingProxyType({})) -> Manifest | None:
    """Return the manifest in a bucket's ``blobs``, of any topology, or None before its first batch.

    ``stored_pages``: segments by page name, of pages that need not be read. A page is a part of the
    manifest, a list of segments in a blob of its own. It never changes. Raises ``StateError`` if
    the manifest or a page has another format version, and ``AssertionError`` if a page is missing.
    """
    blob = blobs.get(NAME)
    if blob is None:
        return None
    body = _from_blob(blob)
    pages: dict[str, Segments] = {}

    def read_segments(stored: Sequence[Any]) -> Segments:
        """Return the segments of a stored list: those of its pages, in order, then the others. Add
        the pages to ``pages``. ``stored``: the names of the pages, then the other segments in JSON
        form.
        """
        names, unpaged = stored
        for name in names:
            pages[name] = stored_pages[name] if name in stored_pages else _read_page(blobs, name)
        return (*chain.from_iterable(pages[name] for name in names), *_parse_segments(unpaged))

    return Manifest(
        topology=body["topology"],
        buckets=body["buckets"],
        stream_time_us=tuple(body["stream_time_us"]),
        read_us=tuple(body["read_us"]),
        heard_us=tuple(body["heard_us"]),
        position=body["position"],
        rows=body["rows"],
        stores={
            name: Runs(
                runs=tuple(
                    SortedRun(tier, read_segments(stored)) for tier, stored in store["runs"]
                ),
                merges=tuple(
                    Merge(tier, tuple(ends), read_segments(done))
                    for tier, ends, done in store["merges"]
                ),
            )
            for name, store in body["stores"].items()
        },
        logs=tuple(
            {int(log): (high, heard) for log, (high, heard) in logs.items()}
            for logs in body.get("logs", ())
        ),
        pages=pages,
    )


def save(blobs: Blobs, manifest: Manifest) -> Pages:
    """Write ``manifest`` to a bucket's ``blobs``, in place of a former one, and return the pages
    that are stored now, by name. A page is a list of ``_PAGE`` (32) segments in a blob of its own.

    ``manifest.pages``: the pages that were stored before. Pages that are not among them are written
    first, and pages no longer needed are deleted last.
    """
    pages: dict[str, Segments] = {}

    def to_stored_form(segments: Segments) -> list[Any]:
        """Return a list of segments in its stored form: the names of its pages, then its other
        segments as lists of field values. Add its pages to ``pages``.
        """
        whole = len(segments) - len(segments) % _PAGE
        starts = range(0, whole, _PAGE)
        parts = (segments[start : start + _PAGE] for start in starts)
        segments_by_page = {f"{PAGE}{part[-1].id}": part for part in parts}
        pages.update(segments_by_page)
        return [list(segments_by_page), [*map(_entry, segments[whole:])]]

    body = {
        "topology": manifest.topology,
        "buckets": manifest.buckets,
        "stream_time_us": manifest.stream_time_us,
        "read_us": manifest.read_us,
        "heard_us": manifest.heard_us,
        "position": manifest.position,
        "rows": manifest.rows,
        "stores": {
            name: {
                "runs": [[run.tier, to_stored_form(run.segments)] for run in runs.runs],
                "merges": [
                    [merge.tier, merge.read, to_stored_form(merge.done)] for merge in runs.merges
                ],
            }
            for name, runs in manifest.stores.items()
        },
    }
    if any(manifest.logs):
        body["logs"] = manifest.logs
    for name in pages.keys() - manifest.pages.keys():
        blobs.put(name, _to_blob([*map(_entry, pages[name])]))
    blobs.put(NAME, _to_blob(body))
    for name in manifest.pages.keys() - pages.keys():
        blobs.delete(name)
    return pages


def _read_page(blobs: Blobs, name: str) -> Segments:
    """Return the segments in the page ``name``, a blob with a part of the manifest. Raises
    ``StateError`` for another format version, and ``AssertionError`` if ``blobs`` lacks the page.
    """
    blob = blobs.get(name)
    assert blob is not None, f"{name} is in the manifest but not in the store"
    return _parse_segments(_from_blob(blob))


def _to_blob(body: Any) -> bytes:
    """Return ``body``, a value that JSON can hold, as bytes: the byte of the format's version, then
    JSON.
    """
    return bytes([FORMAT_VERSION]) + json.dumps(body, separators=(",", ":")).encode()


def _from_blob(blob: bytes) -> Any:
    """Return the value that ``_to_blob`` wrote. Raises ``StateError`` if the first byte is another
    format version.
    """
    if blob[0] != FORMAT_VERSION:
        raise StateError(
            "state manifest",
            f"format version {blob[0]}, this version of dovetail reads {FORMAT_VERSION}",
            "Run the version that wrote the checkpoint, or start from a new checkpoint",
        )
    return json.loads(blob[1:])


def _parse_segments(segments: Sequence[Sequence[Any]]) -> Segments:
    """Return segments from their JSON form, in order. Each is a list of the values of the fields of
    ``Segment``, in the order of the fields.
    """
    return tuple(Segment(*fields) for fields in segments)
