"""Report on the work of one bucket in one micro-batch: rows, stream time and duration.

A stage emits one report per bucket beside its changes. Spark collects them as an observed metric.
``spark.query.progress`` reads them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from time import perf_counter_ns

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.base.columns import DELETED

_VERSION = 1


@dataclass
class BucketReport:
    """The work of one bucket. It is complete once all changes have been taken."""

    rows: list[int]
    """The number of rows that came, by input."""
    stream_us: list[int | None]
    """The stream time at the end of the micro-batch, by input; None before its first row."""
    changes: int = 0
    """The number of emitted changes, deletes among them."""
    deletes: int = 0
    work_us: int = 0
    """The time that the operators took, the store's among it."""
    state_us: int = 0
    """The time that reads and writes of the state store took."""
    state_calls: int = 0
    """The number of reads and writes of the state store."""

    def add_rows(self, counts: Sequence[int]) -> None:
        """Add rows that came: one number per input."""
        self.rows = [sum(pair) for pair in zip(self.rows, counts, strict=True)]

    def watching(self, changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the changes, and count them. Add the time until each table is there, without the
        time in which the caller works on it.
        """
        tables = iter(changes)
        while True:
            begun = perf_counter_ns()
            table = next(tables, None)
            self.work_us += (perf_counter_ns() - begun) // 1000
            if table is None:
                return
            self.changes += len(table)
            self.deletes += pc.sum(table.column(DELETED)).as_py() or 0
            yield table

    def as_text(self) -> str:
        """Return the report as ``read`` reads it: a JSON list of the version and all fields. It is
        short, since Spark keeps one of each bucket for the last 100 micro-batches.
        """
        return json.dumps([_VERSION, *astuple(self)], separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> BucketReport:
        """Return the report that ``as_text`` wrote."""
        version, *values = json.loads(text)
        assert version == _VERSION, version
        return cls(*values)
