"""Fragments: operators that run on the rows of one bucket without an exchange between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal, TypeAlias

import pyarrow as pa

from dovetail.base.columns import DELETED, EVENT_TIME, POSITION, VISIBLE, key_name, value_name
from dovetail.base.validation import Rule
from dovetail.physical.source import SourceSpec, number_repeated_names
from dovetail.physical.specs.law import Law, Store, Wait, table_store
from dovetail.plan import metrics
from dovetail.plan.metrics import metric_name
from dovetail.plan.types.spans import span_as_text
from dovetail.plan.types.windows import Windows

Emit: TypeAlias = Annotated[
    Literal["change", "batch"],
    Rule("'change' or 'batch' (windows come once by to_table(windows='on_close'))"),
]
Buckets: TypeAlias = Annotated[
    int, Rule("a whole number from 1 to 65536", lambda n: 1 <= n <= 1 << 16)
]


@dataclass(frozen=True)
class Feed:
    """The route of rows to an operator's source within a fragment."""

    number: int
    """The index (from 0) of the fragment's input, or of the earlier operator, that the rows come
    from.
    """
    operator: bool
    """True if the rows come from an operator."""
    columns: tuple[tuple[str, int], ...] | None
    """For each column after ``ROW_COLUMNS`` and ``_foreign``: its name there, and a shift.

    A shift is a number of microseconds. None for rows that already have the columns of the source.
    """
    rehashed: bool = True
    """True if ``_hash`` is computed anew from the source's own key; else the rows keep theirs."""
    looks: Windows | None = None
    """The windows that the last two key columns name; None if rows look in no window.

    If there is a foreign key, they are its last two columns. They become null if they name no
    window, or one that is no longer kept.
    """


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A law with its sources. All sources have the same key columns, in order and type. Only those
    of a ``StarLookupLaw`` have keys of their own.
    """

    law: Law
    sources: tuple[SourceSpec, ...]
    emit: Emit = "change"
    """``"change"`` emits each change, ``"batch"`` the last change of each key in a batch."""
    visible: bool = False
    """True if the output has ``_visible``, a bit for each leaf that contributes a row."""
    feeds: tuple[str, ...] = ()
    """The columns on the record that caused a change, as in ``Fragment``."""
    buckets: int = 1
    """The count of buckets of its output."""
    reads: tuple[Feed, ...] = ()
    """For each source the route of its rows. Empty if the operator is alone in its fragment.

    An operator that is alone has the fragment's sources.
    """
    clocks: tuple[int, ...] = ()
    """The fragment's inputs by whose stream time its windows close; the slowest counts.

    Empty if the operator is alone in its fragment, and never else.
    """

    @property
    def keys(self) -> int:
        """The count of key columns of the first source. All sources have as many, except those of a
        ``StarLookupLaw``.
        """
        return self.sources[0].shape.keys

    @property
    def key_columns(self) -> range:
        """The indices of the first source's key columns in its schema. They begin at 3, behind
        ``_hash``, ``_event_time`` and ``_deleted``. They are the same for all sources, except those
        of a ``StarLookupLaw``.
        """
        return self.sources[0].shape.key_columns

    @property
    def key(self) -> list[pa.Field]:
        """The key columns of a change with their types, in order, under the names that the law
        gives them.
        """
        return self.law.key_fields(self.sources)

    @cached_property
    def names(self) -> list[str]:
        """The names of the sources, in order, under which their rows are stored. Repeated names get
        ``#2``, ``#3`` and so on.
        """
        return number_repeated_names([source.name for source in self.sources])

    @property
    def stores(self) -> Mapping[str, Store]:
        """The descriptions of a bucket's stores, by the names that the operator gives them. Their
        ``clocks`` are indices of the operator's sources.
        """
        return self.law.stores(self.sources)

    def time_inputs_of(self, sources: tuple[int, ...]) -> tuple[int, ...]:
        """Return the indices of the fragment's inputs by whose stream time the rows of these
        ``sources`` expire, in the order of ``sources``, perhaps repeated.

        ``sources``: indices of the operator's sources. A source that an input feeds gives the index
        of that input. One that an earlier operator feeds gives all of this operator's ``clocks``,
        which are indices of the fragment's inputs, perhaps several. For an operator alone in its
        fragment the result is ``sources`` themselves.
        """
        if not self.reads:
            return sources
        feeds = [self.reads[source] for source in sources]
        inputs_by_feed = [() if feed.operator else (feed.number,) for feed in feeds]
        return tuple(n for inputs in inputs_by_feed for n in (inputs or self.clocks))

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of a change, with internal names. Indices count from 0; a leaf is one
        group of value columns (``Law.leaves``).

        | columns | content |
        |---|---|
        | ``_k<index>`` | the key |
        | ``_<leaf>_<index>`` | the values of each leaf |
        | ``_deleted`` | bool: the change is a tombstone |
        | ``_event_time`` | int64: microseconds |
        | ``_position`` | int64: it orders the changes of a key |
        | ``_visible``, only if ``visible`` | int64: bit n is set if leaf n contributes a row |
        | ``feeds`` | the record that caused the change, int64 each |
        """
        fields = [field.with_name(key_name(n)) for n, field in enumerate(self.key)]
        for leaf in range(len(self.law.leaves)):
            for value_index, type_ in enumerate(self.law.value_types(self.sources, leaf)):
                fields.append(pa.field(value_name(leaf, value_index), type_))
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
    """One or more operators in the order in which they run.

    The last one's output is the fragment's.
    """

    topology: str
    """The fingerprint of the plan that its state belongs to."""
    buckets: int
    """The count of buckets of the key space."""
    sources: tuple[SourceSpec, ...]
    operators: tuple[Operator, ...]
    align_us: int | None = None
    """The longest wall-clock time that a source waits for one behind it; None for no waiting."""
    feeds: tuple[str, ...] = ()
    """The columns that tell a reading fragment which record caused a change.

    They are ``_sequence``, the place in the shared log, or ``_clock`` and ``_order``; then ``_tie``
    and ``_stream_time``. ``_stream_time`` is less by ``holds_us``.
    """
    holds_us: int = 0
    """The longest, in stream time, that a result is held back."""
    title: str = "fragment"
    """The name of the fragment in errors."""
    key_names: tuple[str, ...] = ()
    """The names of the key columns in errors."""
    counted: bool = True
    """False if another fragment counts the rows of its inputs that have no use."""

    @property
    def key_columns(self) -> range:
        """The indices of the first input's key columns in its schema. They begin at 3, behind
        ``_hash``, ``_event_time`` and ``_deleted``. They are the same for all inputs, except those
        of a ``StarLookupLaw``.
        """
        return self.sources[0].shape.key_columns

    @property
    def last(self) -> Operator:
        """The operator whose output is the fragment's."""
        return self.operators[-1]

    @property
    def laws(self) -> list[Law]:
        """The laws of all operators, in the order in which they run."""
        return [operator.law for operator in self.operators]

    @property
    def stateful(self) -> bool:
        """True if each bucket keeps a state: a manifest, and the stores if there are any. False if
        no operator's law is stateful.
        """
        return any(law.stateful for law in self.laws)

    @property
    def metric_names(self) -> list[str]:
        """The names of the metrics of rows without use, each once. First come those of each
        operator's law, and ``<input>.no_window`` of its inputs that look in windows, operator by
        operator. Then comes ``<input>.replaced`` of each input whose rows may come from several
        logs, unless another fragment counts its rows.
        """
        names: dict[str, None] = {}
        for operator in self.operators:
            names |= dict.fromkeys(operator.law.metric_names(operator.sources))
            names |= dict.fromkeys(
                no_window_metric(self.sources[feed.number]) for feed in operator.reads if feed.looks
            )
        logs = (source for source in self.sources if self.counted and source.arrival.logs)
        names |= dict.fromkeys(map(replaced_metric, logs))
        return list(names)

    @cached_property
    def match_counted_inputs(self) -> list[str]:
        """The names of the inputs whose records are counted by whether they find rows on all other
        sides. Each comes once, in the order of operators; empty without joins.
        """
        return [
            *dict.fromkeys(n for o in self.operators for n in o.law.match_counted_inputs(o.sources))
        ]

    @cached_property
    def waits(self) -> list[Wait]:
        """The stores with rows that wait for a time, under their names in the manifest. Those of
        each operator come first, then those of ``align=``; empty if nothing waits. Their ``clocks``
        are indices of the fragment's inputs.
        """
        waits = [
            Wait(
                self.manifest_name(operator_index, wait.name),
                wait.metric,
                replace(wait.store, clocks=operator.time_inputs_of(wait.store.clocks)),
            )
            for operator_index, operator in enumerate(self.operators)
            for wait in operator.law.waiting_stores(operator.sources)
        ]
        names = number_repeated_names([source.name for source in self.sources])
        ahead = [
            Wait(alignment_store_name(name), metrics.waiting_metric(source.name, "ahead"), store)
            for source, name in zip(self.sources, names, strict=True)
            if (store := self._alignment_stores.get(alignment_store_name(name))) is not None
        ]
        return [*waits, *ahead]

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of the fragment's changes: that of its last operator. If that reads
        another operator, the fragment's ``feeds`` replace its own.
        """
        schema = self.last.output_schema
        if not self.last.reads:
            return schema
        column_names = schema.names[: len(schema) - len(self.last.feeds)]
        fields = [schema.field(name) for name in column_names]
        return pa.schema([*fields, *(pa.field(name, pa.int64()) for name in self.feeds)])

    @property
    def stores(self) -> Mapping[str, Store]:
        """The descriptions of a bucket's stores, by their names in the manifest. Their ``clocks``
        are indices of the fragment's inputs. Empty for a fragment without state, and perhaps for a
        union.

        Those of the operators come first, then those of ``align=`` and of logs. Stores of
        accumulators have the users' key names if the operator is alone.
        """
        alone = len(self.operators) == 1
        stores = {
            self.manifest_name(operator_index, name): replace(
                store, clocks=operator.time_inputs_of(store.clocks)
            )
            for operator_index, operator in enumerate(self.operators)
            for name, store in operator.stores.items()
        }
        assert alone or not any(store.companion_stores for store in stores.values()), (
            "stores by other names"
        )
        if alone:
            stores = {name: store.with_key(self.key_names) for name, store in stores.items()}
        else:
            stores = {name: replace(store, hashed=False) for name, store in stores.items()}
        return {**stores, **self._alignment_stores, **self._log_stores}

    @property
    def _alignment_stores(self) -> Mapping[str, Store]:
        """The stores of rows that wait for another input, by name (``<input>: ahead``), one for
        each input. Empty without ``align_us``.
        """
        if self.align_us is None:
            return {}
        holds = f"what is ahead of another input, for up to {span_as_text(self.align_us)}"
        names = number_repeated_names([source.name for source in self.sources])
        rows = {
            alignment_store_name(name): table_store(self.sources, n) for n, name in enumerate(names)
        }
        return {
            name: replace(store, holds=holds, kind="queue", span_us=0)
            for name, store in rows.items()
        }

    @property
    def _log_stores(self) -> Mapping[str, Store]:
        """The stores that know from which log each row comes, by name (``<input>: partitions``).
        There is one for each input whose logs may bring older rows, because a micro-batch may leave
        some unread. Empty if none does.
        """
        names = number_repeated_names([source.name for source in self.sources])
        holds = "per key, from which partition its row is"
        return {
            log_store_name(name): Store(holds, of=source.name, whole=False)
            for name, source in zip(names, self.sources, strict=True)
            if source.arrival.logs and source.arrival.limited
        }

    def manifest_name(self, operator: int, store: str) -> str:
        """Return the manifest's name for the store that the operator with index ``operator``, from
        0, calls ``store``. It is ``"2. left"`` for the second operator's ``"left"``. The name of a
        lone operator's store stays as it is.
        """
        return store if len(self.operators) == 1 else f"{operator + 1}. {store}"


def alignment_store_name(name: str) -> str:
    """Return the name of the store of an input's rows that are ahead and wait for another input
    (``align=``): ``<name>: ahead``. ``name``: the input's name.
    """
    return f"{name}: ahead"


def log_store_name(name: str) -> str:
    """Return the name of the store that knows from which log each row of an input comes: ``<name>:
    partitions``. ``name``: the input's name.
    """
    return f"{name}: partitions"


def replaced_metric(source: SourceSpec) -> str:
    """Return the name of the metric of rows that are older than their key's row from another log:
    ``<input>.replaced``. ``source``: the input whose name it has.
    """
    return metric_name(source.name, "replaced")


def no_window_metric(source: SourceSpec) -> str:
    """Return the name of the metric of rows that look in no window, or in one that is no longer
    kept: ``<input>.no_window``. ``source``: the input whose name it has.
    """
    return metric_name(source.name, "no_window")
