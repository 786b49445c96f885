"""The laws of a join of tables by foreign key, on its two keys: parameters, as plain data for the
workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from dovetail.laws.joins.table_join import How, sides_preserved
from dovetail.physical.specs.law import Law, Sources, Store, not_latest_metrics, table_store


@dataclass(frozen=True)
class SubscribeLaw(Law):
    """A table by primary key that has a foreign key: the first operator of a foreign-key join.

    Each record becomes messages to its former and its present foreign key. The store has the
    foreign key of each row.
    """

    REASON: ClassVar[str] = "a row may change its foreign key, so the one that it had is needed"

    how: How

    whole_keys = True

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the description of a bucket's only store, by the name of the left table: the
        foreign key of each row, with its hash, by primary key. ``sources``: the left table, as the
        only input.
        """
        (source,) = sources
        store = replace(
            table_store(sources, 0),
            holds="foreign key per key",
            of="",
            fields=tuple(source.shape.key_fields + source.shape.foreign_fields),
        )
        return dict.fromkeys(super().stores(sources), store)

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the names of the metrics of records that do not change their key's latest version.
        ``sources``: the left table, as the only input.

        ``<table>.too_old`` counts records older than the table's history, ``<table>.late`` those
        older than the latest version. Empty unless the table is versioned.
        """
        return not_latest_metrics(sources)


@dataclass(frozen=True)
class ForeignKeyJoinLaw(Law):
    """Subscriptions by foreign key, joined with the table that they refer to."""

    REASON: ClassVar[str] = "a change of a right row needs all left rows that refer to it"

    primary: int
    """The count of primary key columns, with which the subscriptions' values begin."""
    how: How
    on: tuple[str, ...] = ()
    """The texts of the columns and expressions of the foreign key, in order, if they are known."""

    whole_keys = True
    SUBSCRIPTIONS: ClassVar[str] = "subscriptions"
    RIGHT: ClassVar[str] = "right"
    COPIES: ClassVar[str] = "copies"
    REFERENCES: ClassVar[str] = "references"

    @property
    def leaves(self) -> tuple[int, ...]:
        """The two leaves of a change, ``(0, 1)``: the left row, from input 0 (the subscriptions),
        and the right row, from input 1.
        """
        return (0, 1)

    def primary_columns(self, sources: Sources) -> range:
        """Return the indices of the left table's primary key columns in the schema of the
        subscriptions. ``sources``: the subscriptions (left rows by foreign key), then the right
        table.
        """
        first = sources[0].shape.value_columns.start
        return range(first, first + self.primary)

    def leaf_columns(self, sources: Sources, leaf: int) -> range:
        """Return the indices of a leaf's value columns in the schema of its input. ``sources``: the
        subscriptions (left rows by foreign key), then the right table.

        ``leaf``: 0 for the left row, whose primary and foreign key are no values here. 1 for the
        right row, whose key counts as a value, because the row may be missing.
        """
        if leaf == 1:
            return sources[1].shape.user_columns
        return range(self.primary_columns(sources).stop, sources[0].shape.value_columns.stop)

    def key_fields(self, sources: Sources) -> list[pa.Field]:
        """Return the key columns of a change: the left table's primary key. The right key follows
        in a right or outer join, where right rows also come out alone.

        ``sources``: the subscriptions (left rows by foreign key), then the right table.
        """
        primary = sources[0].shape.fields(self.primary_columns(sources))
        theirs = sources[1].shape.key_fields
        return primary + (theirs if sides_preserved(self.how)[1] else [])

    def value_types(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """Return the types of a leaf's value columns in a change, in order. ``leaf``: 0 for the
        left row, without its keys; 1 for the right row, key columns first.

        ``sources``: the subscriptions (left rows by foreign key), then the right table.
        """
        return [
            field.type for field in sources[leaf].shape.fields(self.leaf_columns(sources, leaf))
        ]

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """Return the descriptions of a bucket's stores by name. ``sources``: the subscriptions
        (left rows by foreign key), then the right table.

        - ``subscriptions``: the last left row per foreign key and primary key;
        - ``right``: the right table's rows;
        - ``copies``, if several buckets get each right row: copies of rows that lie in the store
          ``right`` of another bucket;
        - ``references``, in a right or outer join only: how many left rows refer to each right key.
        """
        left, right = sources
        rows = table_store(sources, 0, key=left.shape.keys + self.primary)
        theirs = table_store(sources, 1)
        stores = {
            self.SUBSCRIPTIONS: replace(
                rows,
                holds=f"{left.name}, last row per foreign key and key",
                through=left.name,
                whole=sides_preserved(self.how)[0],
                only="" if sides_preserved(self.how)[0] else f"with {', '.join(self.on)}",
            ),
            self.RIGHT: replace(theirs, holds=f"{right.name}, {theirs.holds}"),
        }
        if right.arrival.copies > 1:
            stores[self.COPIES] = Store(f"copies of {right.name}'s rows of other buckets")
        if sides_preserved(self.how)[1]:
            stores[self.REFERENCES] = Store(f"how many rows of {left.name} refer to each")
        return stores

    def metric_names(self, sources: Sources) -> list[str]:
        """Return the names of the metrics of right records that do not change their key's latest
        version. ``sources``: the subscriptions (left rows by foreign key), then the right table.

        ``<right>.too_old`` counts records older than the table's history, ``<right>.late`` those
        older than the latest version. Empty unless the right table is versioned.
        """
        return not_latest_metrics(sources[1:])

    def match_counted_inputs(self, sources: Sources) -> list[str]:
        """Return the name of the left table, as the only element: its records are counted by
        whether they find a right row. ``sources``: the subscriptions (left rows by foreign key),
        then the right table.
        """
        return [sources[0].name]
