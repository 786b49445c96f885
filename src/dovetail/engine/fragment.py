"""A fragment on one bucket: decode a batch's rows, run its operators over state, emit, store.

No Spark here: the same code runs under ``transformWithState``, over static frames and in the test
driver; what differs is how rows come and go (``engine.flow``) and where the blobs lie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from time import time

import pyarrow as pa

from dovetail.arrays.timeline import NO_TIME
from dovetail.engine import feeds
from dovetail.engine.align import align
from dovetail.engine.blame import blamed, culprit, place_of
from dovetail.engine.pieces import Piece, batch_of
from dovetail.engine.slices import Slices
from dovetail.engine.stock import Stock, table_of
from dovetail.operators.job import Batch, Share
from dovetail.physical.fragment import Fragment
from dovetail.state import manifest as manifests
from dovetail.state.blobs import Blobs
from dovetail.state.manifest import Manifest
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache

SLICE_BYTES = 128 << 20
"""Where a batch has more rows, about as much is worked on at a time."""


@dataclass(frozen=True)
class Processed:
    """What a micro-batch leaves: the changes (``Fragment.output_schema``) in their order, in tables
    of one row or more; ``waiting``: whether rows wait for another source;
    ``counts``: of rows that had no use, by metric.

    State has advanced, and all is counted, when the last table has been asked for.
    """

    changes: Iterable[pa.Table]
    waiting: bool = False
    counts: Counter[str] = field(default_factory=Counter)


def process(
    fragment: Fragment,
    pieces: Sequence[Piece],
    blobs: Blobs,
    cache: SegmentCache,
    now_us: int = 0,
    bucket: int = 0,
) -> Processed:
    """Run one micro-batch of one bucket: state in ``blobs`` advances, the changes are returned.

    ``now_us``: the batch's time by the wall clock, for sources that are waited for; ``bucket``: its
    number. What fails is shown as ``blame`` does.
    """
    with blamed(fragment.title, lambda _: place_of(fragment, bucket)):
        return _process(fragment, pieces, blobs, cache, now_us, bucket)


def _process(
    fragment: Fragment,
    pieces: Sequence[Piece],
    blobs: Blobs,
    cache: SegmentCache,
    now_us: int,
    bucket: int,
) -> Processed:
    sources = fragment.sources
    before = manifests.load(blobs, fragment.topology, fragment.buckets, len(sources), cache.pages)
    read_us = _advance(before.read_us, pieces)
    after = replace(before, stream_time_us=read_us, read_us=read_us)
    stock = Stock([piece.rows for piece in pieces if piece.rows is not None])
    sliced = fragment.align_us is None and stock.nbytes > SLICE_BYTES
    pieces = _in_memory(pieces, stock if sliced else None)
    batches: Sequence[Batch] = [batch_of(source, pieces, n) for n, source in enumerate(sources)]
    held: Mapping[str, Runs] = {}
    if fragment.align_us is not None:
        heard = [any(piece.source == number for piece in pieces) for number in range(len(sources))]
        aligned = align(fragment, batches, heard, after, before, now_us, blobs, cache)
        batches, after, held = aligned.batches, aligned.manifest, aligned.stores
    share = Share(
        fragment=fragment,
        sources=sources,
        batches=batches,
        manifest=before,
        final_us=[NO_TIME if time is None else time for time in after.stream_time_us],
        blobs=blobs,
        cache=cache,
    )
    shares = Slices(share, stock, SLICE_BYTES).shares() if sliced else iter([(share, True)])
    counts: Counter[str] = Counter()
    changes = _worked(shares, before, after, held, counts, bucket)
    first = next(changes, None)
    waiting = any(runs.runs for runs in held.values())
    return Processed(chain(() if first is None else (first,), changes), waiting, counts)


def _worked(
    shares: Iterator[tuple[Share, bool]],
    manifest: Manifest,
    after: Manifest,
    held: Mapping[str, Runs],
    counts: Counter[str],
    bucket: int,
) -> Iterator[pa.Table]:
    """The changes that shares make, one after the other, each on the state that the one before it
    left; ``after``: what the last leaves but for what operators do, with the stores ``held``
    besides.
    """
    for part, last in shares:
        share = replace(part, manifest=manifest)
        with blamed(share.fragment.title, partial(_place, share, bucket)):
            done = feeds.run(share)
            counts.update(done.counts)
            emitted = [] if done.output is None else [done.output]
            manifest = replace(
                manifest,
                stream_time_us=tuple(None if time == NO_TIME else time for time in share.final_us),
                position=manifest.position + sum(map(len, emitted)) + done.later,
                rows=done.rows,
                stores=done.stores,
            )
            if last:
                stores = {**manifest.stores, **held}
                after = replace(
                    after, position=manifest.position, rows=manifest.rows, stores=stores
                )
                share.cache.see(manifests.save(share.blobs, after))
                runs = stores.values()
                share.cache.settle((s for of in runs for s in of.segments), time())
            yield from emitted
            yield from done.chunks


def _place(share: Share, bucket: int, error: Exception) -> str:
    """Where a share has failed, with the key where it can be found."""
    return place_of(share.fragment, bucket, culprit(share, feeds.run, error))


def _in_memory(pieces: Sequence[Piece], stock: Stock | None) -> Sequence[Piece]:
    """The pieces with their rows; of a stock, with what orders them."""
    number, found = 0, []
    for piece in pieces:
        if piece.rows is not None:
            rows = table_of(piece.rows) if stock is None else stock.ordering(number)
            piece, number = replace(piece, rows=rows), number + 1
        found.append(piece)
    return found


def _advance(read_us: tuple[int | None, ...], pieces: Sequence[Piece]) -> tuple[int | None, ...]:
    highest: list[int | None] = list(read_us)
    for piece in pieces:
        if piece.high_time_us == NO_TIME:
            continue
        known = highest[piece.source]
        highest[piece.source] = (
            piece.high_time_us if known is None else max(known, piece.high_time_us)
        )
    return tuple(highest)
