"""The lookup of a stream's records in an external store, as plain data for the workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from dovetail.laws.joins.lookup import HowAnswered
from dovetail.lookup_sources.source import Index, LookupSource, index_for
from dovetail.physical.stage import Stage
from dovetail.plan.joins.lookup import Lookup, Ref
from dovetail.plan.types.arrow import arrow_schema
from dovetail.plan.types.spans import span_as_text
from dovetail.plan.views import views_of


@dataclass(frozen=True)
class StoreLookup:
    """A lookup of stream records in a store."""

    name: str
    """The name of the lookup in errors."""
    stream: str
    """The title of the stream whose records it answers."""
    lookup: LookupSource
    """The store."""
    index: Index
    """The index of the store by which it finds rows."""
    how: HowAnswered
    on: tuple[str, ...]
    """The columns of the records that must equal the store's columns ``by``."""
    by: tuple[str, ...]
    schema: pa.Schema
    """The columns that are read from the store."""
    needed: tuple[str, ...]
    """The columns that are read of the records."""
    values: tuple[Ref, ...]
    """The side and the column behind each value of the result."""
    rows_max: int = 0
    """The largest number of store rows that a process caches between tasks; 0 for no cache."""
    age_max_us: int = 0
    """The longest that a cached answer is used; 0 for no cache."""

    @property
    def key_schema(self) -> pa.Schema:
        """The Arrow columns of the keys that the store is asked for, in the order of ``by``, with
        their types in ``schema``. Raises ``KeyError`` if ``schema`` lacks one.
        """
        return pa.schema([self.schema.field(name) for name in self.by])

    @property
    def summary(self) -> str:
        """The store, the index, the columns that are read and the cache, in words. Without a cache
        the text ends with ``cache none``.
        """
        cached = "none"
        if self.rows_max:
            cached = f"{self.rows_max:,} rows a process, for {span_as_text(self.age_max_us)}"
        columns = ", ".join(self.schema.names)
        return f"{self.lookup.title} by {self.index.summary}: {columns}; cache {cached}"


def stage_lookups(stage: Stage) -> Iterator[Lookup]:
    """Yield the lookup nodes that a stage's input rows go through, port by port: of each port's
    views from the innermost outwards, those that are lookups. Nothing without them.
    """
    for port in stage.ports:
        views = () if port.input is None else views_of(port.input.source)
        yield from (view for view in views if isinstance(view, Lookup))


def store_lookup(node: Lookup) -> StoreLookup:
    """Return the lookup of a plan node as data for the workers, with only the columns that results
    need.

    From the store these are its key, the columns compared and those selected; from the records,
    their key, the columns compared and those selected. A whole row selected needs all columns of
    its side. The store must have an index with all its columns among those compared; this is
    asserted.
    """
    on, store_columns = zip(*node.on, strict=True)
    whole = {side for side, column in node.refs if column is None}
    left_columns = [column for side, column in node.refs if side == "left" and column is not None]
    right_columns = [column for side, column in node.refs if side == "right" and column is not None]
    read = dict.fromkeys([*node.lookup.key, *store_columns, *right_columns])
    if "right" in whole:
        read |= dict.fromkeys(node.store.names)
    needed = node.node.row.names
    if "left" not in whole:
        needed = [name for name in needed if name in {*node.key.names, *on, *left_columns}]
    index = index_for(node.lookup, store_columns)
    assert index is not None, "no index covers the lookup"
    schema = arrow_schema(node.store)
    return StoreLookup(
        name=node.label or f"lookup of {node.name}",
        stream=node.node.title,
        lookup=node.lookup,
        index=index,
        how=node.how,
        on=on,
        by=store_columns,
        schema=pa.schema([field for field in schema if field.name in read]),
        needed=tuple(needed),
        values=node.refs,
        rows_max=0 if node.cache is None else node.cache.rows,
        age_max_us=0 if node.cache is None else node.cache.max_age_us,
    )
