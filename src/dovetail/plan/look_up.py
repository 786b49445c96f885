"""A stream whose records are looked up in a store that has no changelog."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeAlias

from pyspark.sql.types import StructType

from dovetail.arguments import Positive, Rule, validated
from dovetail.errors import PlanError
from dovetail.laws.look_up import HowAnswered
from dovetail.lookup.source import LookupSource, covering
from dovetail.plan.checks import keyed, refuse_duplicates, refuse_names
from dovetail.plan.joins import as_entry
from dovetail.plan.matching import On, pairs_of
from dovetail.plan.nodes import Describe, Node, Source
from dovetail.plan.schemas import Columns, schema_of
from dovetail.plan.select import SIDES, Selection, resolve, row_columns, select_all
from dovetail.plan.spans import Span, microseconds
from dovetail.plan.views import Errors, View, of_joined_row

Ref: TypeAlias = tuple[str, str | None]
"""A column of a side, ``"left"`` or ``"right"``; the whole side as a struct, with None."""


@dataclass(frozen=True)
class LookupCache:
    """What is kept of a store's answers; made by ``cache``."""

    rows: int
    max_age_us: int


ACache: TypeAlias = Annotated[LookupCache, Rule('options such as dt.cache(max_age="10 min")')]


@validated
def cache(*, max_age: Span, rows: Positive = 10_000) -> LookupCache:
    """That each worker process keeps what a store has said of keys, also that it has none of their
    rows, for at most ``max_age`` by the clock: ``rows`` rows, those last used; a key without rows
    counts as one. So a record may be answered by what the store had up to ``max_age`` ago.

    Raises ``PlanError`` for a span that is not above zero. Source: Flink, "Lookup Cache", PARTIAL.
    """
    max_age_us = microseconds("cache", "max_age=", max_age)
    if not max_age_us:
        raise PlanError("cache", "max_age= is zero, so nothing is kept", "Leave cache= out")
    return LookupCache(rows, max_age_us)


@dataclass(frozen=True, eq=False, kw_only=True)
class LookUp(View):
    """A stream's records, each beside the rows that a store has of it. ``on``: the record's and the
    store's column of each part of the look-up key; ``store``: the columns of the store; ``refs``:
    what is behind each value.
    """

    lookup: LookupSource
    on: tuple[tuple[str, str], ...]
    how: HowAnswered
    store: StructType
    refs: tuple[Ref, ...]
    cache: LookupCache | None
    label: str | None

    asks: ClassVar[bool] = True

    @property
    def summary(self) -> str:
        """What ``explain`` calls it."""
        on = (a if a == b else f"{a} = {b}" for a, b in self.on)
        return f"{self.how} look-up in {self.lookup.title} on {', '.join(on)}"

    def described(
        self, describe: Describe, *, whole: bool, needed: Collection[str] | None = None
    ) -> Mapping[str, Any]:
        """What is looked up, and what is made of it; not where."""
        return {
            "view": describe(self.node, whole=True),
            "look_up": self.how,
            "on": [list(pair) for pair in self.on],
            "columns": [
                [field.name, list(ref)] for field, ref in zip(self.values, self.refs, strict=True)
            ],
        }


def look_up(
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
    """A stream's records looked up in a store; a view of them where the selection computes."""
    name = label or f"look_up of {node.name}"
    source, row = as_entry(name, node), _row(name, lookup, columns)
    pairs = pairs_of(name, source, _store(name, lookup, row, lookup.key), on, whole=False)
    own = tuple((str(a), b) for a, b in pairs)
    by = [b for _, b in own]
    _refuse_unindexed(name, lookup, by)
    # The right side of a join by these columns, whose values all others are.
    store = _store(name, lookup, row, by)
    if select is None:
        selected = select_all(name, source, store)
        values = StructType([*source.values.fields, *store.values.fields])
    else:
        selected, values = resolve(name, source, store, how, select, one_key=False)
    computed = any(one.column is not None for one in selected)
    joined_row, plain = row_columns(source, store)
    joined = LookUp(
        node=source,
        key=source.key,
        values=StructType(joined_row.fields[len(source.key) :]) if computed else values,
        columns=(),
        stream=True,
        lookup=lookup,
        on=own,
        how=how,
        store=store.row,
        refs=(*((side, None) for side in SIDES), *plain.values())
        if computed
        else tuple(one.ref for one in selected if one.ref is not None),
        cache=cached,
        label=label,
    )
    if not computed:
        return joined
    view = of_joined_row(name, joined, plain, selected, values)
    return view if errors == "fail" else replace(view, letters=name)


def _row(name: str, lookup: LookupSource, columns: Columns) -> StructType:
    """The store's columns."""
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


def _store(name: str, lookup: LookupSource, row: StructType, key: Sequence[str]) -> Source:
    """The store as a side of a join, under a key."""
    own, values = keyed(name, key, row)
    return Source(name=lookup.title, key=own, values=values)


def _refuse_unindexed(name: str, lookup: LookupSource, by: Sequence[str]) -> None:
    refuse_duplicates(name, by, "Name each of the store's columns once in on=")
    if covering(lookup, by) is None:
        columns = ", ".join(map(repr, by))
        raise PlanError(
            name,
            f"no index of {lookup.title} is in on= {', '.join(by)}",
            f"Create one there and declare it with indexes=[dt.index({columns})]",
        )
