"""The laws of a star: several joins by foreign key of one table (``physical.stars``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from dovetail.base.columns import value_name
from dovetail.laws.joins.table_join import How
from dovetail.physical.source import SourceSpec
from dovetail.physical.specs.law import Law, Sources, Store, not_latest_metrics, table_store


@dataclass(frozen=True)
class StarSubscribeLaw(Law):
    """The fact by its key: each change becomes messages to the dimensions whose foreign key moves.

    The values of its input are, for each dimension, the hash of the foreign key and its columns.
    """

    REASON: ClassVar[str] = "a row may change its foreign keys, so those that it had are needed"

    places: tuple[tuple[int, ...], ...]
    """For each dimension, the places of its foreign key's columns (``shared_columns``)."""

    whole_keys = True

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the only store of a bucket by its name: the foreign keys of each row."""
        store = replace(table_store(sources, 0), holds="foreign keys per key", of="")
        return dict.fromkeys(super().stores(sources), store)


@dataclass(frozen=True)
class StarLookupLaw(Law):
    """The dimensions by their keys: each answers the messages to it, and its own changes answer all
    rows of the fact that refer to them.

    Source 0 has the messages to all dimensions, source n the rows of dimension n.
    """

    REASON: ClassVar[str] = "a change of a dimension's row needs all rows that refer to it"

    places: tuple[tuple[int, ...], ...]
    """For each dimension, the places of its key's columns (``shared_columns``)."""
    primary: int
    """The number of columns of the fact's key."""

    whole_keys = True

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the stores of a bucket by name: the fact's keys by the rows that they refer to,
        then the rows of each dimension.
        """
        fact, *dimensions = sources
        stores = {
            subscription_store_name(fact.name): Store(f"keys of {fact.name} by row referred to")
        }
        for dimension_number, dimension in enumerate(dimensions, start=1):
            stores[dimension.name] = table_store(sources, dimension_number)
        return stores

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the names of the metrics of the dimensions' records that do not change the latest
        version, as ``not_latest_metrics`` does. Empty unless a dimension is versioned.
        """
        return not_latest_metrics(sources[1:])


@dataclass(frozen=True)
class StarJoinLaw(Law):
    """The fact with the rows of all dimensions, by its key.

    Source 0 has the rows of the fact, source 1 the answers of the dimensions.
    """

    REASON: ClassVar[str] = "an answer of one dimension needs those that the others gave"

    hows: tuple[How, ...]
    """The kind of each join."""
    foreign: tuple[tuple[int, ...], ...]
    """The numbers of the columns of each foreign key in source 0."""
    left: tuple[tuple[int, int], ...]
    """The value columns of the last join's left side: each a part and a column there. Part 0 is
    the fact, with the numbers of its columns; part n is dimension n, whose columns count from 0.
    """
    widths: tuple[int, ...]
    """The number of user columns of each dimension, key columns included."""

    whole_keys = True

    @property
    def leaves(self) -> tuple[int, ...]:
        """The numbers 0 and 1: leaf 0 is the left side of the last join, leaf 1 its right side."""
        return (0, 1)

    def value_types(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """Return the types of the value columns of a side of the last join. ``leaf``: 0 for the
        left side, 1 for the right side, which is the last dimension with its key.
        """
        fact, answers = (source.shape for source in sources)
        if leaf == 1:
            last = answers.schema.types[len(answers.schema) - self.widths[-1] :]
            return [*last]
        return [
            (answers if part else fact).schema.field(self.column_index(sources, part, column)).type
            for part, column in self.left
        ]

    def column_index(self, sources: Sources, part: int, column: int) -> int:
        """Return the index of a column in the rows of the input that has it: the fact, or the
        answers.

        ``part``: 0 for the fact, n for dimension n. ``column``: of the fact, the index in its rows,
        which is returned; of a dimension, the number among its user columns, from 0.
        """
        if part == 0:
            return column
        return self.answer_columns(sources, part).start + 1 + column

    def answer_columns(self, sources: Sources, dimension_number: int) -> range:
        """Return the indices of a dimension's columns in the answers: the time of its row, then the
        row.

        ``dimension_number``: counted from 1. ``sources``: the fact, then the answers.
        """
        first = sources[1].shape.value_columns.start
        first += sum(1 + width for width in self.widths[: dimension_number - 1])
        return range(first, first + 1 + self.widths[dimension_number - 1])

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the only store of a bucket by its name: the fact's rows, each with the rows that
        it refers to.
        """
        (name, *_) = super().stores(sources)
        holds = "last row per key, beside the rows that it refers to"
        return {name: replace(table_store(sources, 0), holds=holds)}

    def match_counted_inputs(self, sources: Sources) -> list[str]:
        """Return the name of the fact alone: its rows are counted by whether they find rows of all
        dimensions.
        """
        return [sources[0].name]


# Customers have a name, products a maker and a number, shops a number. Their keys share two places:
#
# | dimension | key           | 0: string | 1: int64 | places |
# |-----------|---------------|-----------|----------|--------|
# | customers | name          | name      |          | (0,)   |
# | products  | maker, number | maker     | number   | (0, 1) |
# | shops     | number        |           | number   | (1,)   |
def shared_columns(
    keys: Sequence[Sequence[pa.DataType]],
) -> tuple[list[pa.DataType], tuple[tuple[int, ...], ...]]:
    """Return the types of columns in which the keys of all dimensions have room, one key a row.
    Also return the indices of the columns that each key takes.

    ``keys``: the types of each key. A key takes the first columns of its types, each once. Keys
    (int, text) and (text, text) share three columns: int, text, text.
    """
    types: list[pa.DataType] = []
    places = []
    for key in keys:
        taken: list[int] = []
        for type_ in key:
            free = (n for n, other in enumerate(types) if other == type_ and n not in taken)
            place = next(free, len(types))
            types[place:] = types[place:] or [type_]
            taken.append(place)
        places.append(tuple(taken))
    return types, tuple(places)


def left_input_of_dimensions(messages: SourceSpec) -> SourceSpec:
    """Return the messages of a star as the left input of one join by foreign key. Their key is the
    dimension's number with the foreign key. Their values are the key of the fact and the hash of
    that key.
    """
    schema = messages.shape.schema.append(pa.field(value_name(0, 0), pa.int64()))
    return replace(messages, shape=replace(messages.shape, schema=schema))


def subscription_store_name(fact: str) -> str:
    """Return the name of the store of the fact's keys by the dimensions' rows that they refer to.
    ``fact``: the fact's name.
    """
    return f"subscriptions of {fact}"
