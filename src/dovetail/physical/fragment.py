"""Fragments: the operators that run on one bucket's rows without an exchange between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import pyarrow as pa

from dovetail.arguments import Rule
from dovetail.columns import DELETED, EVENT_TIME, POSITION, VISIBLE, key_name, value_name
from dovetail.physical.law import Law, Store, table_of
from dovetail.physical.source import SourceSpec, unique
from dovetail.plan.metrics import metric
from dovetail.plan.spans import written
from dovetail.plan.windows import Windows

Emit: TypeAlias = Annotated[
    Literal["change", "batch"],
    Rule("'change' or 'batch' (windows come once by to_table(windows='on_close'))"),
]
Buckets: TypeAlias = Annotated[
    int, Rule("a whole number from 1 to 65536", lambda n: 1 <= n <= 1 << 16)
]


@dataclass(frozen=True)
class Feed:
    """How rows reach an operator's source within a fragment: those of the fragment's input
    ``number``, or of an earlier ``operator``. ``columns``: per column after the first three and
    ``_foreign`` its name there, and how many microseconds are added to it; None for rows that come
    as the source reads them; ``rehashed``: the hash is that of the source's own key; ``looks``: the
    last key columns name one of these windows, null where they do not or it is no longer kept.
    """

    number: int
    operator: bool
    columns: tuple[tuple[str, int], ...] | None
    rehashed: bool = True
    looks: Windows | None = None


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A law on its ``sources``, which have as many key columns, in the same order and types.

    ``emit``: each change, or of each key the last one of a batch; ``visible``: whether the output
    has the column ``_visible``; ``feeds``: as in ``Fragment``; ``buckets``: into how many its
    output is partitioned.

    In a fragment of several: ``reads``: per source, where its rows come from; ``clocks``: the
    inputs by whose time its windows close, the slowest of them. ``reads`` is empty where an
    operator is alone and its sources are the fragment's.
    """

    law: Law
    sources: tuple[SourceSpec, ...]
    emit: Emit = "change"
    visible: bool = False
    feeds: tuple[str, ...] = ()
    buckets: int = 1
    reads: tuple[Feed, ...] = ()
    clocks: tuple[int, ...] = ()

    @property
    def keys(self) -> int:
        """The number of key columns."""
        return self.sources[0].keys

    @property
    def key_columns(self) -> range:
        """The numbers of the key columns in every source's schema."""
        return self.sources[0].key_columns

    @property
    def key(self) -> list[pa.Field]:
        """The key columns of a change."""
        return self.law.key(self.sources)

    @property
    def names(self) -> list[str]:
        """What stores call its sources."""
        return unique([source.name for source in self.sources])

    @property
    def stores(self) -> Mapping[str, Store]:
        """What a bucket keeps for it, by name."""
        return self.law.stores(self.sources)

    def inputs_of(self, sources: tuple[int, ...]) -> tuple[int, ...]:
        """The fragment's inputs by whose time these sources go."""
        if not self.reads:
            return sources
        feeds = [self.reads[number] for number in sources]
        own = [() if feed.operator else (feed.number,) for feed in feeds]
        return tuple(n for one in own for n in (one or self.clocks))

    @property
    def output_schema(self) -> pa.Schema:
        """Keys as ``_k<number>``; per leaf its values as ``_<leaf>_<number>``; then ``_deleted``,
        ``_event_time``, ``_position`` and, where there are any, ``_visible``, a bit per leaf
        whether it contributes a row, and ``feeds``.
        """
        fields = [field.with_name(key_name(n)) for n, field in enumerate(self.key)]
        for leaf in range(len(self.law.leaves)):
            for number, type_ in enumerate(self.law.values(self.sources, leaf)):
                fields.append(pa.field(value_name(leaf, number), type_))
        fields += [
            pa.field(DELETED, pa.bool_()),
            pa.field(EVENT_TIME, pa.int64()),
            pa.field(POSITION, pa.int64()),
        ]
        if self.visible:
            fields.append(pa.field(VISIBLE, pa.int64()))
        fields += [pa.field(name, pa.int64()) for name in self.feeds]
        return pa.schema(fields)


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """One or more operators in the order in which they run; what the last one puts out is the
    fragment's.

    ``topology``: the fingerprint that its state is bound to; ``buckets``: how many share the key
    space; ``align_us``: how long, by the wall clock, a source waits for another that is behind it;
    ``feeds``: for the fragment that reads it, the columns that say of each change which record
    caused it: ``_sequence``, its place in the shared log; or ``_clock`` and ``_order``; and
    ``_stream_time``, less ``holds_us``, the longest that a result is held back. ``title`` and
    ``key_names``: what errors call it and its key.
    """

    topology: str
    buckets: int
    sources: tuple[SourceSpec, ...]
    operators: tuple[Operator, ...]
    align_us: int | None = None
    feeds: tuple[str, ...] = ()
    holds_us: int = 0
    title: str = "fragment"
    key_names: tuple[str, ...] = ()

    @property
    def key_columns(self) -> range:
        """The numbers of the key columns in every source's schema."""
        return self.sources[0].key_columns

    @property
    def last(self) -> Operator:
        """The operator whose output is the fragment's."""
        return self.operators[-1]

    @property
    def laws(self) -> list[Law]:
        """What its operators do."""
        return [operator.law for operator in self.operators]

    @property
    def stateful(self) -> bool:
        """Whether a bucket keeps anything."""
        return any(law.stateful for law in self.laws)

    @property
    def counts(self) -> list[str]:
        """The metrics of rows that had no use, of all operators."""
        names: dict[str, None] = {}
        for operator in self.operators:
            names |= dict.fromkeys(operator.law.counts(operator.sources))
            names |= dict.fromkeys(
                no_window(self.sources[feed.number]) for feed in operator.reads if feed.looks
            )
        names |= dict.fromkeys(replaced(source) for source in self.sources if source.logs)
        return list(names)

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of its changes."""
        schema = self.last.output_schema
        if not self.last.reads:
            return schema
        own = schema.names[: len(schema) - len(self.last.feeds)]
        fields = [schema.field(name) for name in own]
        return pa.schema([*fields, *(pa.field(name, pa.int64()) for name in self.feeds)])

    @property
    def stores(self) -> Mapping[str, Store]:
        """What a bucket keeps, by the manifest's names; their ``clocks`` are the fragment's."""
        alone = len(self.operators) == 1
        kept = {
            self.stored(number, name): replace(store, clocks=operator.inputs_of(store.clocks))
            for number, operator in enumerate(self.operators)
            for name, store in operator.stores.items()
        }
        assert alone or not any(store.beside for store in kept.values()), "stores by other names"
        if alone:
            kept = {name: store.with_key(self.key_names) for name, store in kept.items()}
        else:
            kept = {name: replace(store, hashed=False) for name, store in kept.items()}
        return {**kept, **self._ahead, **self._logs}

    @property
    def _ahead(self) -> Mapping[str, Store]:
        """The rows that wait for another input."""
        if self.align_us is None:
            return {}
        holds = f"what is ahead of another input, for up to {written(self.align_us)}"
        names = unique([source.name for source in self.sources])
        rows = {ahead_of(name): table_of(self.sources, n) for n, name in enumerate(names)}
        return {
            name: replace(store, holds=holds, kind="queue", span_us=0)
            for name, store in rows.items()
        }

    @property
    def _logs(self) -> Mapping[str, Store]:
        """From which log the row of each key is, where another may bring older ones."""
        names = unique([source.name for source in self.sources])
        holds = "per key, from which partition its row is"
        return {
            logs_of(name): Store(holds, of=source.name, whole=False)
            for name, source in zip(names, self.sources, strict=True)
            if source.logs and source.limited
        }

    def stored(self, operator: int, store: str) -> str:
        """What the manifest calls an operator's store."""
        return store if len(self.operators) == 1 else f"{operator + 1}. {store}"


def ahead_of(name: str) -> str:
    """The store of an input's rows that wait for another one (``align=``)."""
    return f"{name}: ahead"


def logs_of(name: str) -> str:
    """The store that says from which log an input's rows are."""
    return f"{name}: partitions"


def replaced(source: SourceSpec) -> str:
    """The metric of an input's rows that are older than the row of their key, which another log has
    brought.
    """
    return metric(source.name, "replaced")


def no_window(source: SourceSpec) -> str:
    """The metric of an input's rows that look in a window that is none or no longer kept."""
    return metric(source.name, "no_window")
