"""What the laws of all operators answer: an operator says for itself what it keeps, puts out and
counts, and where its code is. Plain data that travels to the workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

import pyarrow as pa

from dovetail.aggregates.aggregate import Aggregate
from dovetail.columns import EVENT_TIME, is_reserved
from dovetail.physical.source import SourceSpec, unique
from dovetail.plan.metrics import metric
from dovetail.plan.nodes import Entry

Sources: TypeAlias = Sequence[SourceSpec]
Kind: TypeAlias = Literal["rows", "versions", "records", "queue"]
"""How a store is read back: the last row of each key; each key's rows by time, tombstones included;
all records; those that have not been taken yet."""


@dataclass(frozen=True)
class Accumulated:
    """A result column that is read from accumulators. ``lists``: where these are long lists, the
    stores of their parts: the index, then the parts.
    """

    kernel: Aggregate
    lists: tuple[str, ...] = ()


@dataclass(frozen=True)
class Store:
    """What a bucket keeps under one name. ``holds``: in words; ``kind``: how its rows are read
    back, None where they are of no use to a reader, for they only say something of other rows.

    ``of``: the input whose rows it has, if it has any's; ``key``: the stored columns by which a row
    is the same one; ``fields``: the input's own columns; ``columns``: those that are stored for
    them, where these have other names; ``clocks``: the sources by whose stream
    time rows go, ``span_us`` behind it, by their column ``time``; a span of None keeps them for
    good; ``without``: the store that has the numbers of those that no longer count; ``results``: of
    accumulators the results, which are the last ones among the ``fields``; ``hashed``: whether rows
    lie by Spark's hash of their key, and with it in its bucket; ``through``: where they lie by
    another key, the store of the stage before that has this one of each row; ``whole``: whether all
    of the input's rows are in it that count.
    """

    holds: str
    kind: Kind | None = None
    of: str = ""
    key: tuple[str, ...] = ()
    fields: tuple[pa.Field, ...] = ()
    columns: tuple[str, ...] = ()
    clocks: tuple[int, ...] = ()
    span_us: int | None = None
    time: str = EVENT_TIME
    without: str = ""
    results: tuple[Accumulated, ...] = ()
    hashed: bool = False
    through: str = ""
    whole: bool = True

    @property
    def stored(self) -> tuple[str, ...]:
        """The stored columns behind the fields."""
        return self.columns or tuple(field.name for field in self.fields)

    @property
    def own_key(self) -> tuple[pa.Field, ...]:
        """The key as users know it: those of its columns that are the input's own."""
        if self.results:
            return self.fields[: len(self.key)]
        return tuple(field for field in self.fields if field.name in self.key)

    def only(self, columns: Sequence[str]) -> Store:
        """It without the values that are not among these columns, as far as they can be left
        unread.
        """
        needed = {*columns, *self.key, self.time}
        if self.results:
            return self
        kept = [place for place, field in enumerate(self.fields) if field.name in needed]
        return replace(
            self,
            fields=tuple(self.fields[place] for place in kept),
            columns=tuple(self.stored[place] for place in kept),
        )

    def with_key(self, names: Sequence[str]) -> Store:
        """The key of accumulators by the names of what is grouped by."""
        if not self.results:
            return self
        named = (field.with_name(name) for field, name in zip(self.fields, names, strict=False))
        return replace(self, fields=(*named, *self.fields[len(names) :]))

    @property
    def beside(self) -> tuple[str, ...]:
        """The stores that are read with it."""
        lists = (name for result in self.results for name in result.lists)
        return (*((self.without,) if self.without else ()), *lists)


def too_old(sources: Sequence[SourceSpec]) -> list[str]:
    """The metrics of records that the histories of versioned tables have gone past."""
    return [metric(s.name, "too_old") for s in sources if s.versioned_us is not None]


def not_latest(sources: Sequence[SourceSpec]) -> list[str]:
    """The metrics of records of versioned tables of which only the latest version is of use."""
    late = [metric(s.name, "late") for s in sources if s.versioned_us is not None]
    return [*too_old(sources), *late]


def table_of(sources: Sources, number: int, *, key: int | None = None) -> Store:
    """The store of a table, one of the sources; ``key``: how many columns make its key, where these
    are more than partition it.
    """
    source = sources[number]
    versioned, windowed = source.versioned_us, source.retention_us
    own = source.fields(source.user_columns)
    keys = source.keys if key is None else key
    return Store(
        source.kept,
        "rows" if versioned is None or key is not None else "versions",
        of=source.name,
        key=tuple(field.name for field in own[:keys]),
        fields=tuple(field for field in own if not is_reserved(field.name)),
        clocks=(number,),
        span_us=windowed if key is not None or versioned is None else versioned,
        time=EVENT_TIME if windowed is None else source.window,
        hashed=key is None and windowed is None,
        whole=windowed is None,
    )


@dataclass(frozen=True)
class Law:
    """What all operators answer for themselves, given their ``sources``."""

    stateful: ClassVar[bool] = True
    keeps_time: ClassVar[bool] = False
    """Whether records that it cannot use still move its stream time."""
    valueless: ClassVar[bool] = False
    """Whether streams' records without a value are of use."""
    nets: ClassVar[bool] = False
    """Whether it can put out of each key the last change of a batch."""
    names_columns: ClassVar[bool] = False
    """Whether its output has the columns of its node, not those of its inputs."""
    waits: ClassVar[bool] = False
    """Whether results wait for stream time."""

    @property
    def whole_keys(self) -> bool:
        """Whether it must see all of a key's rows of a micro-batch at once."""
        return False

    @property
    def room(self) -> str:
        """The module of ``operators`` that runs it."""
        raise NotImplementedError

    @property
    def leaves(self) -> tuple[int, ...]:
        """The source of each leaf: of each group of value columns in the output."""
        return (0,)

    @property
    def holds_us(self) -> int:
        """The longest, in stream time, that a result is held back."""
        return 0

    def key(self, sources: Sources) -> list[pa.Field]:
        """The key columns of a change."""
        return sources[0].fields(sources[0].key_columns)

    def values(self, sources: Sources, leaf: int) -> list[pa.DataType]:
        """The types of a leaf's values in a change."""
        source = sources[self.leaves[leaf]]
        return [field.type for field in source.fields(source.value_columns)]

    def stores(self, sources: Sources) -> Mapping[str, Store]:
        """What a bucket keeps, by the name of each store. By default the rows of each source."""
        names = unique([source.name for source in sources]) if self.stateful else []
        return {name: table_of(sources, number) for number, name in enumerate(names)}

    def looks_up(self, sources: Sources) -> list[str]:
        """What it asks of look-up sources, in words."""
        return []

    def goes_by(self, entry: Entry) -> bool:
        """Whether other inputs' records go by this one's stream time."""
        return entry.versioned_us is not None and len(set(self.leaves)) > 1

    def counts(self, sources: Sources) -> list[str]:
        """The metrics of rows that had no use."""
        return []
