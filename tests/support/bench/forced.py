"""Sizes and hashes forced on the code: tiny segments, deep merges, small slices, colliding keys."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pyarrow as pa

import dovetail.aggregates.list_parts
import dovetail.engine.fragment
import dovetail.engine.pack
import dovetail.laws.windows.sliding
import dovetail.operators.joins.stream_join_side
import dovetail.state.run_state
import dovetail.state.runs
import dovetail.state.segment
from bench.records import Hash, one_hash
from dovetail.arrays.hashing import stable_hash
from dovetail.operators import registry  # noqa: F401 -- of which none may keep a forced hash
from dovetail.operators.joins import delta_join, lookup  # noqa: F401 -- nor of these

LIMITS = {
    "fanout": (dovetail.state.runs, "FANOUT"),
    "segment_bytes": (dovetail.state.run_state, "SEGMENT_BYTES_MAX"),
    "compaction_bytes": (dovetail.state.run_state, "_COMPACTION_BYTES_MIN"),
    "open_segments": (dovetail.state.segment, "_OPEN_SEGMENTS_MAX"),
    "flush_bytes": (dovetail.engine.pack, "_FLUSH_BYTES"),
    "slice_bytes": (dovetail.engine.fragment, "SLICE_BYTES"),
    "pairs": (dovetail.operators.joins.stream_join_side, "_PAIRS_MAX"),
    "window_pairs": (dovetail.laws.windows.sliding, "_PAIRS_MAX"),
    "part": (dovetail.aggregates.list_parts, "PART_MAX"),
}


def _few(keys: Sequence[pa.Array]) -> Any:
    return stable_hash(keys) % 3


def _low(keys: Sequence[pa.Array]) -> Any:
    """Upper halves alike: combined keys of all foreign keys fall into one range."""
    return stable_hash(keys) & 0xFFFFFFFF


def _high(keys: Sequence[pa.Array]) -> Any:
    """Lower halves alike: combined keys of one foreign key are one."""
    return stable_hash(keys) & ~0xFFFFFFFF


HASHES: dict[str, Hash] = {
    "own": stable_hash,
    "one": one_hash,
    "few": _few,
    "low": _low,
    "high": _high,
}

_SKETCH = "dovetail.aggregates.hyperloglog"  # counts by the hash itself


@contextmanager
def forced(hash_: str, limits: Mapping[str, int]) -> Iterator[None]:
    """Keys are placed by one of ``HASHES``, also between stages; ``limits``: as in ``LIMITS``."""
    with ExitStack() as stack:
        for name, value in limits.items():
            module, constant = LIMITS[name]
            stack.enter_context(mock.patch.object(module, constant, value))
        if hash_ != "own":
            for name, module in list(sys.modules.items()):
                hashes = name.startswith("dovetail.") and name != _SKETCH
                if hashes and getattr(module, "stable_hash", None) is stable_hash:
                    stack.enter_context(mock.patch.object(module, "stable_hash", HASHES[hash_]))
        yield
