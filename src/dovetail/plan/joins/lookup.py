"""A stream joined by lookups in a store that has no changelog."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeAlias

from pyspark.sql.types import StructType

from dovetail.base.validation import Positive, Rule, validated
from dovetail.errors import PlanError
from dovetail.laws.joins.lookup import HowAnswered
from dovetail.lookup_sources.source import LookupSource, index_for
from dovetail.plan.joins.join_call import side_as_input
from dovetail.plan.joins.join_keys import On, pairs_of
from dovetail.plan.nodes import Describe, Node, Source
from dovetail.plan.select import SIDES, Selection, joined_row_columns, resolve_selection, select_all
from dovetail.plan.types.checks import refuse_duplicates, refuse_names, split_key_and_values
from dovetail.plan.types.schemas import Columns, schema_of
from dovetail.plan.types.spans import Span, microseconds
from dovetail.plan.views import Errors, View, joined_row_view

Ref: TypeAlias = tuple[str, str | None]
"""The side of a value, ``"left"`` or ``"right"``, and its column. None for the whole side as a
struct.
"""


@dataclass(frozen=True)
class LookupCache:
    """A cache of a store's answers; made by ``cache``."""

    rows: int
    """The most rows that a worker process keeps for one lookup."""
    max_age_us: int
    """The age in microseconds, by the clock, at which an answer is dropped."""


ACache: TypeAlias = Annotated[
    LookupCache, Rule('options such as dt.lookups.cache(max_age="10 min")')
]


@validated
def cache(*, max_age: Span, rows: Positive = 10_000) -> LookupCache:
    """Cache a store's answers in each worker process.

    An answer without rows is cached, too. Without a cache, a task asks for each key once in
    a micro-batch.

    Parameters
    ----------
    max_age : str or timedelta
        The time by the clock for which an answer is kept, above zero: ``"10 min"``. A
        record may be answered by rows that the store had up to ``max_age`` ago.
    rows : int, default 10000
        The most rows that a worker process keeps for one lookup, over all of its keys. The
        answers used last stay. A key without rows counts as one row.

    Returns
    -------
    LookupCache
        The options, for ``cache=`` of ``Stream.lookup``.

    Raises
    ------
    PlanError
        If ``max_age`` is zero, negative or no span of time.

    See Also
    --------
    Stream.lookup : Join each record with the rows of a source.

    Notes
    -----
    A micro-batch that runs again may be answered otherwise. Source: Flink, "Lookup Cache",
    PARTIAL.

    Examples
    --------
    >>> import sqlite3, tempfile
    >>> import dovetail as dt
    >>> import pyarrow as pa
    >>> from dovetail import testing
    >>> folder = tempfile.TemporaryDirectory()
    >>> store = sqlite3.connect(f"{folder.name}/shop.db", isolation_level=None)
    >>> _ = store.execute("CREATE TABLE users (name TEXT PRIMARY KEY, city TEXT)")
    >>> users = dt.lookups.sqlite(f"{folder.name}/shop.db", "users", key="name")
    >>> clicks = testing.stream("clicks", key="id", schema={"id": pa.int64(), "user": pa.string()})
    >>> columns = {"name": pa.string(), "city": pa.string()}
    >>> cache = dt.lookups.cache(max_age="10 min", rows=1000)
    >>> found = clicks.lookup(users, columns=columns, on="user", how="left", cache=cache)
    >>> driver = testing.Driver(found)
    >>> driver.pipe(clicks, {"id": 1, "user": "ann"}, timestamp=1)
    [<id=1: user='ann', city=None @1>]
    >>> _ = store.execute("INSERT INTO users VALUES ('ann', 'Oslo')")
    >>> driver.pipe(clicks, {"id": 2, "user": "ann"}, timestamp=2)
    [<id=2: user='ann', city=None @2>]
    """
    max_age_us = microseconds("cache", "max_age=", max_age)
    if not max_age_us:
        raise PlanError("cache", "max_age= is zero, so nothing is kept", "Leave cache= out")
    return LookupCache(rows, max_age_us)


@dataclass(frozen=True, eq=False, kw_only=True)
class Lookup(View):
    """A stream's records, each with the rows of a store that match it."""

    lookup: LookupSource
    """The store."""
    on: tuple[tuple[str, str], ...]
    """The lookup key: the record's column and the store's column for each part."""
    how: HowAnswered
    """The kind of join: it decides on records without a match."""
    store: StructType
    """The columns of the store."""
    refs: tuple[Ref, ...]
    """The origin of each value column."""
    cache: LookupCache | None
    """The cache of answers, or None for none."""
    label: str | None
    """The user's name for the lookup, or None."""

    asks: ClassVar[bool] = True

    @property
    def summary(self) -> str:
        """The line of text that describes the lookup in ``explain``: the kind, the store and the
        lookup key.
        """
        on = (a if a == b else f"{a} = {b}" for a, b in self.on)
        return f"{self.how} lookup in {self.lookup.title} on {', '.join(on)}"

    def state_properties(
        self, describe: Describe, *, whole: bool, needed: Collection[str] | None = None
    ) -> Mapping[str, Any]:
        """Return, as JSON data for a topology's fingerprint (a hash), the parts on which state
        above the lookup depends: ``view`` (the viewed node), ``look_up`` (the kind of join), ``on``
        and ``columns``.

        ``on`` has pairs of a stream's and a store's column. ``columns`` has, for each value column,
        its name and its origin: a side, ``left`` for the stream or ``right`` for the store, and a
        column there. The column is None for the side's whole row. ``describe``: describes the
        viewed node. The store's address is no part of it. ``whole`` and ``needed`` change nothing.
        """
        return {
            "view": describe(self.node, whole=True),
            "look_up": self.how,
            "on": [list(pair) for pair in self.on],
            "columns": [
                [field.name, list(ref)] for field, ref in zip(self.values, self.refs, strict=True)
            ],
        }


def lookup(
    node: Node,
    lookup: LookupSource,
    *,
    columns: Columns,
    on: On | None,
    how: HowAnswered,
    select: Selection | None,
    errors: Errors,
    cached: LookupCache | None,
    label: str | None,
) -> View:
    """Return a view of the records of the stream ``node`` under their key, each with the rows of
    the store ``lookup`` that match it. A record that matches several rows comes once with each, in
    the order of the store's key. A record with a null in a column of ``on`` matches none.

    - ``columns``: the store's columns and types, its key among them: a text as in SQL, a
      ``StructType``, an Arrow schema or a mapping of names to types.
    - ``on``: one stream column for each column of the store's key, in the key's order; or a mapping
      of stream to store columns. None needs keys of the same names in the same order. All columns
      of the store's key, or of one of its indexes, must be in ``on``.
    - ``how``: ``"left"`` keeps records without a row, their store columns null; ``"inner"`` drops
      them.
    - ``select``: None for all value columns, the record's first.
    - ``errors``: ``"fail"`` stops the query at a record on which an expression of ``select`` fails,
      ``"dead_letter"`` leaves it out. It has no effect on failures of the store.
    - ``cached``: None for no cache.
    - ``label``: the name in errors and dead letters, None for ``lookup of`` and the stream's name.
      The view itself has the stream's name.

    If the selection has expressions, a second view computes it from the joined row. Raises
    ``PlanError`` if ``columns`` does not parse, lacks a column of the store's key, or has reserved
    or repeated names. So it does for unknown or repeated columns in ``on`` and ``select``, and for
    types that differ. It refuses expressions that do not resolve, and a stream that withdraws
    records (``unmatched="retract"``). The store is not asked.
    """
    name = label or f"lookup of {node.name}"
    source, row = side_as_input(name, node), _store_schema(name, lookup, columns)
    pairs = pairs_of(name, source, _store_side(name, lookup, row, lookup.key), on, whole=False)
    named_pairs = tuple((str(a), b) for a, b in pairs)
    store_columns = [b for _, b in named_pairs]
    _refuse_unindexed(name, lookup, store_columns)
    # The right side of the join: the lookup columns are its key, all others its values.
    store = _store_side(name, lookup, row, store_columns)
    if select is None:
        selected = select_all(name, source, store)
        values = StructType([*source.values.fields, *store.values.fields])
    else:
        selected, values = resolve_selection(name, source, store, how, select, one_key=False)
    computed = any(item.column is not None for item in selected)
    joined_row, plain = joined_row_columns(source, store)
    joined = Lookup(
        node=source,
        key=source.key,
        values=StructType(joined_row.fields[len(source.key) :]) if computed else values,
        columns=(),
        stream=True,
        lookup=lookup,
        on=named_pairs,
        how=how,
        store=store.row,
        refs=(*((side, None) for side in SIDES), *plain.values())
        if computed
        else tuple(item.ref for item in selected if item.ref is not None),
        cache=cached,
        label=label,
    )
    if not computed:
        return joined
    view = joined_row_view(name, joined, plain, selected, values)
    return view if errors == "fail" else replace(view, letters=name)


def _store_schema(name: str, lookup: LookupSource, columns: Columns) -> StructType:
    """Return ``columns``, those of the store ``lookup`` as the user declares them, as a nullable
    schema. ``columns``: a text as in SQL (``'id long, city string'``), a ``StructType``, an Arrow
    schema, or a mapping of names to types.

    ``name``: the lookup in errors. Raises ``PlanError`` for a text that is no list of columns, and
    for reserved or repeated names. So it does if a column of the store's key is not among them.
    """
    row = schema_of(name, "columns=", columns)
    refuse_names(name, row.names, "Give the store a view that has it under another name")
    refuse_duplicates(name, row.names, "Name it once in columns=")
    missing = [column for column in lookup.key if column not in row.names]
    if missing:
        raise PlanError(
            name,
            f"columns= lacks {missing[0]!r}, which is in the key of {lookup.title}",
            "Name it with its type",
        )
    return row


def _store_side(name: str, lookup: LookupSource, row: StructType, key: Sequence[str]) -> Source:
    """Return the store as a side of a join: a source without a frame, named by the store's title.
    The columns ``key`` are its key, the others of ``row``, the store's columns, its values. Raises
    ``PlanError`` if ``row`` lacks a column of ``key``, if one is named twice, or for types that
    cannot be kept. ``name``: the lookup in errors.
    """
    key_fields, values = split_key_and_values(name, key, row)
    return Source(name=lookup.title, key=key_fields, values=values)


def _refuse_unindexed(name: str, lookup: LookupSource, by: Sequence[str]) -> None:
    """Raise ``PlanError`` if one of the store's columns ``by``, by which rows are looked up, is
    named twice. So it does unless all columns of some index of the store, or of its primary key,
    are among ``by``. ``name``: the lookup in errors.
    """
    refuse_duplicates(name, by, "Name each of the store's columns once in on=")
    if index_for(lookup, by) is None:
        columns = ", ".join(map(repr, by))
        raise PlanError(
            name,
            f"no index of {lookup.title} is in on= {', '.join(by)}",
            f"Create one there and declare it with indexes=[dt.lookups.index({columns})]",
        )
