"""Counts of rows that an operator has no use for, with the first of each kind in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dovetail.arrays.timeline import Ints, Mask
from dovetail.base.columns import COPY, EVENT_TIME
from dovetail.physical.source import SourceSpec

_SHOWN_MAX = 80


@dataclass
class Counts:
    """Counts of rows without use by metric, each with an example, and of records with and without a
    match.
    """

    number: Counter[str] = field(default_factory=Counter)
    """The count of unused rows, by metric."""
    examples: dict[str, str] = field(default_factory=dict)
    """One row of each metric in words: its key and its time. A metric may have none."""
    pairs: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By input name, the count of records that found rows on all other sides of a join, then that
    of records that did not.
    """

    def add(self, metric: str, count: int, example: str | None = None) -> None:
        """Add ``count`` rows, perhaps 0, to ``metric``, a name by ``plan.metrics.metric_name``.
        Remember ``example``, a row in words, if the metric has none yet.
        """
        self.number[metric] += count
        if example is not None:
            self.examples.setdefault(metric, example)

    def add_rows(self, metric: str, source: SourceSpec, rows: pa.Table, row: Ints) -> None:
        """Add the rows of ``rows`` at the indices ``row`` to ``metric``; an index listed twice
        counts twice. Of a row that several buckets have (``_copy``), only the first copy
        counts.

        ``source``: the input of the rows, which names their key columns. The row with the smallest
        index becomes the example, unless the metric has one. Without indices the count stays, and
        there is no example.
        """
        if COPY in rows.schema.names:
            row = row[rows.column(COPY).to_numpy()[row] == 0]
        first = rows.slice(int(row.min()), 1) if len(row) else None
        self.add(metric, len(row), None if first is None else example_of(first, source))

    def add_matches(self, source: SourceSpec, matched: Mask) -> None:
        """Count records of the input ``source``, under its name, by whether they found rows on all
        other sides of a join. ``matched``: bool[records].
        """
        pairs = int(np.count_nonzero(matched))
        self._add_pairs(source.name, pairs, len(matched) - pairs)

    def _add_pairs(self, name: str, matched: int, unmatched: int) -> None:
        """Add ``matched`` and ``unmatched``, counts of records, to those of the input ``name``."""
        matched_before, unmatched_before = self.pairs.get(name, (0, 0))
        self.pairs[name] = matched_before + matched, unmatched_before + unmatched

    def update(self, other: Counts) -> None:
        """Add all counts of ``other`` to these; ``other`` stays. If both have an example of a
        metric, that of ``self`` remains.
        """
        self.number.update(other.number)
        for name, (matched, unmatched) in other.pairs.items():
            self._add_pairs(name, matched, unmatched)
        self.examples = {**other.examples, **self.examples}

    def copy(self) -> Counts:
        """Return a copy of all counts, examples and pairs that can be changed independently."""
        return Counts(self.number.copy(), {**self.examples}, {**self.pairs})


def example_of(rows: pa.Table, source: SourceSpec) -> str:
    """Return the key and the time of the first of ``rows`` in words; a null time is ``no time``.
    ``rows``: at least one row of ``source``, with its key columns and ``_event_time``.

    >>> from dovetail.physical.source import RowShape
    >>> schema = pa.schema([(name, pa.int64()) for name in ("_h", "_t", "_d", "id")])
    >>> source = SourceSpec("t", RowShape(schema, keys=1))
    >>> example_of(pa.table({"_event_time": [1], "id": [7]}), source)
    'id=7 at 1970-01-01T00:00:00.000001Z'
    """
    names = [field.name for field in source.shape.key_fields]
    columns = [rows.schema.get_field_index(name) for name in names]
    time_us = rows.column(EVENT_TIME)[0].as_py()
    at = "no time" if time_us is None else f"{np.datetime64(time_us, 'us')}Z"
    return f"{first_row_as_text(rows, columns, names)} at {at}"


def first_row_as_text(rows: pa.Table, columns: Sequence[int], names: Sequence[str]) -> str:
    """Return the first row's values of ``columns`` as text: ``name=value``, separated by a comma
    and a space. A value is its ``repr``, cut at 80 characters without a mark.

    ``rows``: at least one. ``columns``: indices of its columns. ``names``: a name for each of
    these, else ``ValueError`` is raised; if empty, the columns' own names are used.
    """
    values = (repr(rows.column(column)[0].as_py()) for column in columns)
    labels = names or [rows.schema.names[column] for column in columns]
    return ", ".join(f"{n}={v[:_SHOWN_MAX]}" for n, v in zip(labels, values, strict=True))
