"""What the readers, the runners and Kafka Streams must know of a family of operators.

Each module of ``families`` is one. Its topologies are of a type of its own, called join here, be it
an aggregate or a tree of joins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from bench.records import Answers, Batches, Record, Result

Join: TypeAlias = Any
Row: TypeAlias = "dict[str, Any]"


class Source(NamedTuple):
    """An input: a stream or a table, maybe versioned, of these columns, key first."""

    stream: bool
    columns: dict[str, pa.DataType]
    versioned: timedelta | None = None

    @property
    def key(self) -> str:
        """The key's column."""
        return next(iter(self.columns))


class Family(Protocol):
    """The functions of a family's module."""

    FOLDERS: Sequence[str]
    """Those of ``spec/``."""

    # As text.

    def read_join(self, folder: str, text: str, windows: Mapping[str, str]) -> Join:
        """A join from a table's header, where inputs have these windows."""

    def read_value(self, name: str, word: str) -> Any:
        """The value of an input's record."""

    def read_key(self, join: Join, words: Sequence[str], record: Record | None) -> Any:
        """A result's key from the words before its values, else from the record that causes it."""

    def width(self, join: Join) -> int:
        """How many values a result has."""

    def later(self, record: Record, by: int) -> Record:
        """The record by so much later."""

    # By definition.

    def each_record(self, join: Join, records: Sequence[Record]) -> Iterator[list[Result]]:
        """What each record makes the join emit."""

    def each_batch(self, join: Join, batches: Batches) -> Iterator[list[Result]]:
        """What each micro-batch makes it emit with ``emit="batch"``."""

    def at_end(self, join: Join, records: Sequence[Record]) -> list[Result]:
        """What a batch run adds when its input has ended."""

    def arranged(self, results: Sequence[Result]) -> list[Result]:
        """The net changes of a batch in the order of the definition, if any order is promised."""

    # In dovetail.

    def unit_us(self, join: Join) -> int:
        """How many microseconds a record's time counts."""

    def sources(self, join: Join) -> dict[str, Source]:
        """The inputs by name."""

    def build(self, join: Join, inputs: Mapping[str, Any]) -> Any:
        """The join over these tables and streams."""

    def row(self, join: Join, record: Record, number: int) -> Row:
        """A record's columns, of which those that are missing are null; ``number``: its place."""

    def result(self, join: Join, row: Row, time: int, *, deleted: bool) -> Result:
        """A change from the columns that it has."""

    # In Kafka Streams.

    def kafka_can(self, join: Join, records: Sequence[Record]) -> bool:
        """Whether Kafka Streams has the join, can be asked, and is not known to fail."""

    def flushed(self, join: Join, records: Sequence[Record]) -> list[Record]:
        """The records, and others of another key by which all that is pending comes."""

    def asked(self, join: Join, records: Sequence[Record]) -> dict[str, Any]:
        """The case as the oracle reads it."""

    def emitted(self, join: Join, change: Mapping[str, Any]) -> Result:
        """A result from what the oracle says."""

    def agree(self, join: Join, records: Sequence[Record], given: Answers, kafka: Answers) -> bool:
        """Whether what is given is what Kafka Streams answers, record by record."""


def value_of(word: str) -> str | None:
    """A value as truth tables write it."""
    return None if word in ("null", "∅") else "" if word == "''" else word


def own_key(join: Join, words: Sequence[str], record: Record | None) -> Any:
    """``read_key`` where a key is one word."""
    if words:
        (word,) = words
        return value_of(word)
    if record is None:
        raise ValueError("no key before a result")
    return record.key


def in_milliseconds(join: Join) -> int:
    """``unit_us`` of milliseconds."""
    return 1000


def moved(record: Record, by: int) -> Record:
    """``later`` where only the record's own time moves."""
    return record._replace(time=record.time + by)


def as_they_are(join: Join, records: Sequence[Record]) -> list[Record]:
    """``flushed`` where nothing is pending."""
    return list(records)


def span(milliseconds: int | None) -> timedelta | None:
    """A time span as dovetail takes it."""
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)
