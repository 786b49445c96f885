"""A large packed row travels in parts, which may come in any order."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from dovetail.engine.batches.parts import PartJoiner, cut
from dovetail.engine.pack import PackedRow, Tag, pack_whole_table, whole_rows
from dovetail.platform.arrow_batches import UNIT_BYTES
from dovetail.spark.execution.emission import cut_large, payloads


def table(size: int, seed: int) -> pa.Table:
    """One row of ``size`` random bytes."""
    return pa.table({"v": pa.array([random.Random(seed).randbytes(size)], pa.binary())})


def test_parts_of_several_rows_in_any_order() -> None:
    contents = {bytes([n]) * 60: random.Random(n).randbytes(n * 37) for n in range(6)}
    parts = [part for facts, payload in contents.items() for part in cut(facts, payload, 50)]
    assert len(parts) == sum(1 + -(-len(payload) // 50) for payload in contents.values())
    assert all(len(content) <= 60 for _, content in parts)
    random.Random(7).shuffle(parts)
    joiner = PartJoiner()
    whole = [row for part in parts if (row := joiner.add(*part)) is not None]
    assert dict(whole) == contents
    assert joiner.add(b"f" * 60, None) == (b"f" * 60, None)
    assert len(whole) == len(contents)
    joiner.finish()


def test_a_row_that_lacks_a_part_is_an_error() -> None:
    parts = [*cut(b"f" * 60, b"x" * 101, 50)]
    joiner = PartJoiner()
    assert [joiner.add(*part) for part in parts[:-1]] == [None] * 3
    with pytest.raises(AssertionError, match="1 packed rows lack parts"):
        joiner.finish()


def test_only_large_rows_are_cut_and_come_back_whole() -> None:
    sizes = [10, 3 * UNIT_BYTES, None, UNIT_BYTES + 1]
    batches = [
        pack_whole_table(None if size is None else table(size, n), n, Tag(5, 1, 2, n))
        for n, size in enumerate(sizes)
    ]
    rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    cut_rows = cut_large(rows)
    # A compressed stream of random bytes is a little longer than they are.
    assert cut_rows["bucket"].to_pylist() == [0, *[1] * 5, 2, *[3] * 3]
    assert max(len(p) for p in cut_rows["payload"].to_pylist() if p) == UNIT_BYTES
    joiner = PartJoiner()
    frames = [cut_rows.slice(0, 4), cut_rows.slice(4)]
    joined = [row for f in frames for row in whole_rows(PackedRow.from_rows(f), joiner)]
    joiner.finish()
    assert joined == [*PackedRow.from_rows(rows)]
    assert [*payloads(frames)] == [table(s, n) for n, s in enumerate(sizes) if s is not None]
    assert cut_large(batches[0]) is batches[0]


def test_a_part_is_not_cut_again_where_it_passes() -> None:
    """Not even part 0 of a row with many facts, such as the runs of many files."""
    tag = Tag(5, 1, 2, 0, stairs=table(2 * UNIT_BYTES, 8))
    rows = pack_whole_table(table(2 * UNIT_BYTES, 9), 0, tag)
    once = cut_large(rows)
    assert max(len(part) for part in once["payload"].to_pylist()) > UNIT_BYTES
    twice = cut_large(once)
    assert twice == once
    assert [*whole_rows(PackedRow.from_rows(twice), PartJoiner())] == [*PackedRow.from_rows(rows)]
