"""What the laws of all operators answer: an operator says for itself what it keeps, puts out and
counts, and where its code is. Plain data that travels to the workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import pyarrow as pa

from dovetail.physical.source import SourceSpec, unique
from dovetail.plan.nodes import Entry

Sources: TypeAlias = Sequence[SourceSpec]


@dataclass(frozen=True)
class Law:
    """What all operators answer for themselves, given their ``sources``."""

    stateful: ClassVar[bool] = True
    keeps_time: ClassVar[bool] = False
    """Whether records that it cannot use still move its stream time."""
    nets: ClassVar[bool] = False
    """Whether it can put out of each key the last change of a batch."""
    waits: ClassVar[bool] = False
    """Whether results wait for stream time."""
    whole_keys: ClassVar[bool] = False
    """Whether it must see all of a key's rows of a micro-batch at once."""

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

    def stores(self, sources: Sources) -> Mapping[str, str]:
        """What a bucket keeps: the name of each store, and in words what it holds. By default the
        rows of each source.
        """
        names = unique([source.name for source in sources]) if self.stateful else []
        return {name: source.kept for name, source in zip(names, sources, strict=False)}

    def looks_up(self, sources: Sources) -> list[str]:
        """What it asks of look-up sources, in words."""
        return []

    def goes_by(self, entry: Entry) -> bool:
        """Whether other inputs' records go by this one's stream time."""
        return entry.versioned_us is not None and len(set(self.leaves)) > 1

    def counts(self, sources: Sources) -> list[str]:
        """The metrics of rows that had no use."""
        return []
