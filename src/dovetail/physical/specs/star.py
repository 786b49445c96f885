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
    """For each dimension, the indices of its foreign key's columns among those that all keys share
    (``shared_columns``).
    """

    whole_keys = True

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the description of a bucket's only store, by the name of the fact (the table with
        all foreign keys). It has the foreign keys of each row, by the fact's key. ``sources``: the
        fact, as the only input.
        """
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
    """For each dimension, the indices of its key's columns among those that all keys share
    (``shared_columns``).
    """
    primary: int
    """The count of columns of the fact's key."""

    whole_keys = True

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the descriptions of a bucket's stores by name. ``sources``: the messages of the
        fact (the table with all foreign keys), then the dimensions that it refers to.

        First comes ``subscriptions of <fact>``: the fact's keys by the rows that they refer to.
        Then come the rows of each dimension, under its name.
        """
        fact, *dimensions = sources
        stores = {
            subscription_store_name(fact.name): Store(f"keys of {fact.name} by row referred to")
        }
        for dimension_number, dimension in enumerate(dimensions, start=1):
            stores[dimension.name] = table_store(sources, dimension_number)
        return stores

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the names of the metrics of records that do not change their key's latest version.
        ``sources``: the messages of the fact (the table with all foreign keys), then the dimensions
        that it refers to.

        First comes ``<dimension>.too_old`` of each versioned dimension (records older than its
        history), then ``<dimension>.late`` of each (those older than the latest version). Empty
        unless a dimension is versioned.
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
    """The indices of the columns of each foreign key in the rows of source 0."""
    left: tuple[tuple[int, int], ...]
    """The value columns of the last join's left side: each a part and a column there. Part 0 is the
    fact, with indices in the rows of source 0. Part n is dimension n, with indices from 0 among its
    user columns, key columns first.
    """
    widths: tuple[int, ...]
    """The count of user columns of each dimension, key columns included."""

    whole_keys = True

    @property
    def leaves(self) -> tuple[int, ...]:
        """The two leaves of a change, ``(0, 1)``: the left side of the star's last join, then its
        right side. A star is a chain of joins by foreign key of one table, the fact, with others,
        the dimensions.
        """
        return (0, 1)

    def value_types(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """Return the types of the value columns of one side of the last join, in order.
        ``sources``: the fact (the table with all foreign keys), then the answers (the rows of the
        dimensions that it refers to).

        ``leaf``: 0 for the left side, with the columns ``left``. 1 for the right side, which is the
        last dimension, key columns included.
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
        """Return the index of a column in the schema of the input that has it: the rows of the fact
        (the table with all foreign keys), or the answers (the dimensions' rows beside each other).

        ``sources``: these two inputs, in this order. ``part``: 0 for the fact, n for dimension n.
        ``column``: of the fact, the index in its rows, which is returned as it is; of a dimension,
        the index among its user columns, from 0.
        """
        if part == 0:
            return column
        return self.answer_columns(sources, part).start + 1 + column

    def answer_columns(self, sources: Sources, dimension_number: int) -> range:
        """Return the indices of a dimension's columns in the schema of the answers: the time of its
        row, then its user columns. A dimension is a table that the fact refers to by foreign key.

        ``sources``: the fact, then the answers (the dimensions' rows beside each other).
        ``dimension_number``: the number of the dimension, counted from 1.
        """
        first = sources[1].shape.value_columns.start
        first += sum(1 + width for width in self.widths[: dimension_number - 1])
        return range(first, first + 1 + self.widths[dimension_number - 1])

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the description of a bucket's only store, by the name of the fact (the table with
        all foreign keys): its last row per key, beside the dimensions' rows that it refers to.
        ``sources``: the fact, then the answers of the dimensions.
        """
        (name, *_) = super().stores(sources)
        holds = "last row per key, beside the rows that it refers to"
        return {name: replace(table_store(sources, 0), holds=holds)}

    def match_counted_inputs(self, sources: Sources) -> list[str]:
        """Return the name of the fact (the table with all foreign keys), as the only element. Its
        rows are counted by whether they find rows of all dimensions, the tables that it refers to.
        ``sources``: the fact, then the answers of the dimensions.
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
    Also return for each key the indices (from 0) of the columns that it takes, one for each column
    of the key. Dimensions are the tables to which one table, the fact, refers by foreign keys.

    ``keys``: for each dimension, the types of its key columns. A key takes the first columns of its
    types, each once. Keys (int, text) and (text, text) share three columns: int, text, text. No
    keys give no columns.
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
    """Return the layout of a star's messages as the left input of one join by foreign key. Its last
    column is new: ``_0_0``, an int64.

    A star is a chain of joins by foreign key of one table, the fact, with others, the dimensions. A
    row of the fact sends a message to each dimension. The key of a message is the index of the
    dimension, from 0, and the foreign key. Its values are the key of the fact and, in the new
    column, the hash of that key. ``messages``: the layout as ``star_messages`` makes it.
    """
    schema = messages.shape.schema.append(pa.field(value_name(0, 0), pa.int64()))
    return replace(messages, shape=replace(messages.shape, schema=schema))


def subscription_store_name(fact: str) -> str:
    """Return the name of the store of a table's keys by the rows of other tables to which its
    foreign keys refer: ``subscriptions of <fact>``. ``fact``: the name of the table with the
    foreign keys.
    """
    return f"subscriptions of {fact}"
