"""The physical plan: stages, and the exchanges by which rows reach them.

A *stage* is a fragment with what reaches each of its inputs: the rows of a source or the changes of
another stage, through an *exchange* that partitions them over buckets.

| exchange | rows are partitioned by | they travel |
|---|---|---|
| by key | the hash of the columns that the stage reads them by | packed anew from flat rows |
| by ``_hash`` | the key that they say themselves: a foreign key, a group | packed all the way |
| by ``_place`` | the primary key, each key's in their order | packed all the way |

Within a fragment there is none: an operator reads what another has made (``fragment.Feed``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dovetail.physical.fragment import Fragment
from dovetail.physical.inputs import Input
from dovetail.physical.source import SourceSpec
from dovetail.plan.foreign_key_join import ForeignKeyJoin
from dovetail.plan.nodes import Entry, Node, Source


@dataclass(frozen=True, eq=False)
class Port:
    """How rows reach one input of a fragment. ``source``: how they lie there; ``origin``: where
    they come from. By key: ``input``, which columns are read, and ``by``, those that partition rows
    where it is not the key; else ``hash_column``, the hash that they come with.
    """

    source: SourceSpec
    origin: Source | Stage
    input: Input | None = None
    by: tuple[str, ...] = ()
    hash_column: str | None = None

    def __post_init__(self) -> None:
        assert (self.input is None) == (self.hash_column is not None)


@dataclass(frozen=True, eq=False)
class Stage:
    """A fragment that computes ``node``, or a part of it, with a port for each of its inputs.
    ``by``: what its rows are shuffled by, in words; ``leaves``: what the output's columns are named
    by, from left to right.
    """

    node: Node
    fragment: Fragment
    ports: tuple[Port, ...]
    by: str
    leaves: tuple[Input, ...] = ()

    @property
    def inputs(self) -> dict[str, Entry]:
        """What its node reads, by the names that its stores know them by."""
        found: dict[str, Entry] = {}
        for port in self.ports:
            if port.input is not None:
                found[port.source.name] = port.input.source
            elif isinstance(port.origin, Stage):
                found |= port.origin.inputs
        return found

    @property
    def argument(self) -> str:
        """The argument that has the expressions which may fail on a row of an input."""
        return "on=" if isinstance(self.node, ForeignKeyJoin) else "window_of="


def stages(last: Stage) -> Iterator[Stage]:
    """A stage and all that feed it, these first."""
    for port in last.ports:
        if isinstance(port.origin, Stage):
            yield from stages(port.origin)
    yield last
