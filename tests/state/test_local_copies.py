"""Local copies of segments: they can be missing, garbage or impossible to write, and the rows are
read all the same; and none outlives its use.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pytest
from disks import no_room

from dovetail.state import local_files
from dovetail.state import segment as segments
from dovetail.state.blobs import MemoryBlobs
from dovetail.state.segment import SegmentCache, describe_segment, encode

NOW_S = 1_000_000.0
HOUR_S = 3600.0


class Store:
    """Some segments of 1,000 rows and their blobs; counts what is fetched."""

    def __init__(self, count: int = 3) -> None:
        self.tables = [
            pa.table({"_hash": np.arange(1000) + i, "_event_time": np.arange(1000)})
            for i in range(count)
        ]
        self.segments = [describe_segment(table, "_hash", "_event_time") for table in self.tables]
        self.blobs = MemoryBlobs()
        self.fetched = 0
        for segment, table in zip(self.segments, self.tables, strict=True):
            self.blobs.put(segment.id, encode(table))

    def check(self, cache: SegmentCache) -> int:
        """All segments are what they were; returns how many had to be fetched."""

        def fetch(name: str) -> bytes | None:
            self.fetched += 1
            return self.blobs.get(name)

        before = self.fetched
        for segment, table in zip(self.segments, self.tables, strict=True):
            assert cache.open(segment, fetch).equals(table)
        return self.fetched - before


def mapped_deleted() -> int:
    """How many deleted files this process holds in its memory map."""
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return sum("/copies/" in line and line.endswith("(deleted)") for line in lines)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "a" / "copies"


def test_copies_are_read_instead_of_blobs(directory: Path) -> None:
    store = Store()
    assert store.check(SegmentCache(directory)) == 3
    assert store.check(SegmentCache(directory)) == 0


def test_the_directory_may_be_deleted_at_any_time(directory: Path) -> None:
    store, cache = Store(), SegmentCache(directory)
    store.check(cache)
    shutil.rmtree(directory.parent)
    assert store.check(SegmentCache(directory)) == 3
    shutil.rmtree(directory.parent)
    cache.clean_up(store.segments, NOW_S)
    assert store.check(cache) == 3
    shutil.rmtree(directory.parent)
    cache.add(store.segments[0], store.tables[0])
    cache.drop(store.segments[0])
    cache.clean_up(store.segments, NOW_S)
    shutil.rmtree(directory.parent)
    cache.drop(store.segments[1])
    assert store.check(cache) == 2  # the third is still open


def garbage(path: Path, other: Path) -> None:
    path.write_bytes(b"no Arrow file at all")


def empty(path: Path, other: Path) -> None:
    path.write_bytes(b"")


def torn(path: Path, other: Path) -> None:
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[: len(whole) // 2])


def zeros(path: Path, other: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def of_another(path: Path, other: Path) -> None:
    shutil.copy(other, path)


def folder(path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [garbage, empty, torn, zeros, of_another, folder])
def test_what_is_no_copy_is_fetched_again(spoil: object, directory: Path) -> None:
    store = Store()
    store.check(SegmentCache(directory))
    first, second, _ = store.segments
    spoil(directory / first.id, directory / second.id)  # type: ignore[operator]
    assert store.check(SegmentCache(directory)) == 1
    assert store.check(SegmentCache(directory)) == (spoil is folder)


def test_a_file_in_the_place_of_the_directory(directory: Path) -> None:
    directory.parent.mkdir()
    directory.write_bytes(b"")
    store, cache = Store(), SegmentCache(directory)
    assert store.check(cache) == 3
    cache.clean_up(store.segments, NOW_S)
    assert store.check(cache) == 0


def test_without_room_rows_stay_in_memory(directory: Path) -> None:
    store, cache = Store(), SegmentCache(directory)
    with no_room():
        assert store.check(cache) == 3
    assert list(directory.iterdir()) == []
    cache.clean_up(store.segments, NOW_S)
    assert store.check(cache) == 0


def test_rows_in_memory_have_a_bound(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_MEMORY_BYTES_MAX", 2 * 16_000)
    store, cache = Store(9), SegmentCache(directory)
    with no_room():
        assert store.check(cache) == 9
        assert len(cache.segments) == 2
        assert store.check(cache) == 9
    assert store.check(cache) == 9 - 2
    assert store.check(cache) == 0


def test_mapped_copies_have_a_bound(directory: Path) -> None:
    """Those used longest ago are closed, and mapped again without a fetch."""
    store, cache = Store(9), SegmentCache(directory, mapped_bytes_max=3.5 * 16_000)
    assert store.check(cache) == 9
    assert cache.segments == {segment.id for segment in store.segments[-3:]}
    first, used, _ = store.segments[-3:]
    cache.open(first, store.blobs.get)
    cache.open(store.segments[0], store.blobs.get)
    assert cache.segments == {first.id, store.segments[-1].id, store.segments[0].id}
    assert store.check(cache) == 0
    cache.drop(store.segments[-1])
    assert len(cache.segments) == 2
    assert used.id in cache.segments


def test_a_copy_above_the_bound_is_open_all_the_same(directory: Path) -> None:
    store, cache = Store(2), SegmentCache(directory, mapped_bytes_max=1)
    assert store.check(cache) == 2
    assert cache.segments == {store.segments[1].id}


def test_copies_are_their_users_alone(directory: Path) -> None:
    before = os.umask(0)
    try:
        Store().check(SegmentCache(directory))
    finally:
        os.umask(before)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


def test_a_directory_that_others_may_read_is_closed_to_them(directory: Path) -> None:
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    Store().check(SegmentCache(directory))
    assert directory.stat().st_mode & 0o777 == 0o700


def test_what_another_process_has_deleted_is_closed(directory: Path) -> None:
    store = Store()
    mine, others = SegmentCache(directory), SegmentCache(directory)
    store.check(mine)
    store.check(others)
    gone, *kept = store.segments
    others.drop(gone)
    assert mapped_deleted() > 0
    mine.clean_up([], NOW_S)  # at the end of another bucket's batch
    assert mine.segments == {segment.id for segment in kept}
    assert mapped_deleted() == 0


def test_copies_that_no_bucket_keeps_are_deleted_after_an_hour(directory: Path) -> None:
    store = Store()
    mine, others = SegmentCache(directory), SegmentCache(directory)
    store.check(mine)
    (directory / "tmpleft").write_bytes(b"what a killed process had begun")
    left, *kept = store.segments
    for path in directory.iterdir():
        os.utime(path, (NOW_S, NOW_S))

    def names() -> set[str]:
        return {path.name for path in directory.iterdir()}

    for minutes in range(0, 60, 2):
        others.clean_up(kept, NOW_S + 60 * minutes)
    assert names() == {*(s.id for s in store.segments), "tmpleft"}
    for minutes in range(60, 80, 2):
        others.clean_up(kept, NOW_S + 60 * minutes)
    assert names() == {s.id for s in kept}
    mine.clean_up([], NOW_S + 80 * 60)
    assert mapped_deleted() == 0
    assert store.check(mine) == 1
    others.clean_up([], NOW_S + 4 * HOUR_S)
    assert names() == {left.id}  # written just now, by the clock of this machine


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give it away")
def test_a_directory_of_another_user_is_not_written(directory: Path) -> None:
    directory.mkdir(parents=True, mode=0o700)
    os.chown(directory, 65534, 65534)
    assert not local_files.write_file(directory / "copy", lambda file: file.write(b"secret"))
    assert not list(directory.iterdir())


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
def test_an_error_while_a_file_is_written_leaves_nothing(
    directory: Path, error: type[BaseException]
) -> None:
    def fill(file: IO[bytes]) -> None:
        file.write(b"half")
        raise error

    if error is OSError:
        assert not local_files.write_file(directory / "copy", fill)
    else:
        with pytest.raises(error):
            local_files.write_file(directory / "copy", fill)
    assert not list(directory.iterdir())
