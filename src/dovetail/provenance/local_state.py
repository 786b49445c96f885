"""The state of a run in this process, as the walk reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from dovetail.engine import store_contents
from dovetail.engine.fragment import latest_times
from dovetail.engine.local import LocalRun
from dovetail.physical.stage import Stage
from dovetail.provenance.stored_rows import in_microseconds, matching
from dovetail.state import manifest as manifests
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.manifest import Manifest
from dovetail.state.runs import Runs
from dovetail.state.segment import SegmentCache


class LocalState:
    """The stores of a ``LocalRun``, as they are when they are read."""

    def __init__(
        self, local: LocalRun, blobs: Mapping[Stage, Sequence[MemoryBlobs]] | None = None
    ) -> None:
        """Take the stores of ``local``. ``blobs``: by each stage the blobs of its buckets at one
        moment; None for the present ones at each call.
        """
        self._local, self._blobs = local, blobs

    def copy(self) -> LocalState:
        """Return the stores as they are now. Later micro-batches do not change them."""
        stages = self._local.by_stage
        blobs = {s: [MemoryBlobs(dict(b.blobs)) for b in self._buckets(s)] for s in stages}
        return LocalState(self._local, blobs)

    def rows(
        self, stage: Stage, store: str, match: Mapping[str, Any], at_us: int | None = None
    ) -> pa.Table:
        """Return the rows of a stage's store whose columns equal ``match``, all versions included,
        in undefined order. Without such rows the table is empty. The columns are those of the
        store, then ``_timestamp``, and ``_change`` of versions or ``_due`` of rows that wait. Null
        equals null, and times are int64 in microseconds.

        ``stage``: one of the run that keeps a state. ``store``: the name of a store of the stage.
        ``match``: values by column. ``at_us`` changes nothing.
        """
        described = stage.fragment.stores[store]
        tables = [in_microseconds(store_contents.schema_of(described).empty_table())]
        for bucket, blobs in enumerate(self._buckets(stage)):
            manifest = self._manifest(stage, bucket)
            if manifest is None:
                continue
            runs = _runs(manifest, store)
            beside = {name: _runs(manifest, name) for name in described.companion_stores}
            horizon_us = store_contents.horizon_us(described, manifest)
            read = store_contents.read_rows(
                described, runs, beside, horizon_us, blobs, SegmentCache()
            )
            tables += [matching(in_microseconds(table), match) for table in read]
        return pa.concat_tables(tables)

    def stream_times_us(self, stage: Stage) -> Sequence[int | None]:
        """Return the stream time of each input of a stage that keeps a state, in microseconds: the
        largest of all buckets. None for an input without rows.
        """
        manifests = (self._manifest(stage, bucket) for bucket in range(stage.fragment.buckets))
        none = (None,) * len(stage.fragment.sources)
        return latest_times(none, *(m.stream_time_us for m in manifests if m is not None))

    def _buckets(self, stage: Stage) -> Sequence[MemoryBlobs]:
        """Return the blobs of each bucket of a stage, in order: those that ``copy`` has taken, else
        the present ones.
        """
        return self._local.by_stage[stage].blobs if self._blobs is None else self._blobs[stage]

    def _manifest(self, stage: Stage, bucket: int) -> Manifest | None:
        """Return the manifest of a bucket of a stage; None before the bucket's first micro-batch.
        ``bucket``: its index, from 0.
        """
        return manifests.read(self._buckets(stage)[bucket])


def _runs(manifest: Manifest, store: str) -> Runs:
    """Return the sorted runs of the store named ``store`` in a manifest, without incomplete merges.
    Empty if the manifest lacks the store.
    """
    return Runs(manifest.stores.get(store, Runs()).runs)
