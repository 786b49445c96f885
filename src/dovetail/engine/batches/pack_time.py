"""The time that packing takes: it travels at the beginning of packed rows' ``facts``."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from time import perf_counter_ns
from typing import NamedTuple

import pyarrow as pa

_TIMES = struct.Struct("<3q")
_FACTS = "facts"


class PackTime(NamedTuple):
    """The time of packing. It tells nothing about the rows."""

    read_us: int = 0
    """The time in which the task waited for rows. Only one bucket hears it, as the next."""
    pack_us: int = 0
    """The time in which the task packed rows."""
    packed_us: int = 0
    """The wall-clock time at which rows were packed."""

    @property
    def encoded(self) -> bytes:
        """The three times as 24 bytes, which ``decode`` reads."""
        return _TIMES.pack(*self)

    @classmethod
    def decode(cls, facts: bytes) -> PackTime:
        """Return the times in the first 24 bytes of ``facts``, as ``encoded`` writes them. Later
        bytes are ignored; too few raise ``struct.error``.
        """
        return cls(*_TIMES.unpack_from(facts))


UNKNOWN = PackTime()
SIZE_BYTES = _TIMES.size


class PackTimer:
    """The time of one task that packs rows. It leaves the task in the facts of packed rows."""

    def __init__(self) -> None:
        """Begin with no time spent on reading and packing."""
        self._read_ns = self._pack_ns = 0

    def time_reading(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield ``batches`` unchanged, and add the time spent waiting for each of them, and for
        their end, to the time of reading.
        """
        rows = iter(batches)
        while True:
            begun_ns = perf_counter_ns()
            batch = next(rows, None)
            self._read_ns += perf_counter_ns() - begun_ns
            if batch is None:
                return
            yield batch

    def time_packing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield ``batches`` of packed rows, at least one row each. The facts of a batch's first row
        get the time spent on reading and on packing since the batch before.

        Use it around a generator that reads through ``time_reading``; the time of reading is not
        counted as packing. Time after the last batch is lost.
        """
        rows = iter(batches)
        while True:
            begun_ns = perf_counter_ns()
            batch = next(rows, None)
            self._pack_ns += perf_counter_ns() - begun_ns
            if batch is None:
                return
            read_us, pack_us = self._read_ns // 1000, (self._pack_ns - self._read_ns) // 1000
            self._read_ns = self._pack_ns = 0
            yield _with_task_times(batch, read_us, pack_us)


def _with_task_times(batch: pa.RecordBatch, read_us: int, pack_us: int) -> pa.RecordBatch:
    """Return the packed rows ``batch``, at least one, with ``read_us`` and ``pack_us``, in
    microseconds, in the facts of the first row. Its former times of reading and packing are
    replaced. The time at which rows were packed and the other rows stay.
    """
    index = batch.schema.get_field_index(_FACTS)
    facts = batch.column(index)
    first = facts[0].as_py()
    time = PackTime.decode(first)._replace(read_us=read_us, pack_us=pack_us)
    told = pa.array([time.encoded + first[SIZE_BYTES:]], pa.binary())
    facts = pa.concat_arrays([told, facts.slice(1)])
    return batch.set_column(index, batch.schema.field(index), facts)
