"""The physical plan: stages, and the exchanges by which rows reach them.

A *stage* is a fragment together with the route to each of its inputs. An input gets the rows of a
source, or the changes of another stage, through an *exchange* that partitions them over buckets.

| exchange | rows are partitioned by | they travel |
|---|---|---|
| by key | the hash of the columns that the stage reads them by | packed anew from flat rows |
| by ``_hash`` | a key that they name themselves: a foreign key, a group | packed all the way |
| by ``_place`` | the primary key, each key's rows in their order | packed all the way |

Within a fragment there is no exchange: an operator reads the output of another directly
(``fragment.Feed``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dovetail.physical.fragment import Fragment
from dovetail.physical.inputs import Input
from dovetail.physical.source import SourceSpec
from dovetail.plan.joins.foreign_key_join import ForeignKeyJoin
from dovetail.plan.nodes import Derived, Entry, Node, Source


@dataclass(frozen=True, eq=False)
class Port:
    """The route of rows to one input of a fragment: by key (``input``), or by ``hash_column``."""

    source: SourceSpec
    """The layout of the rows in the fragment."""
    origin: Source | Stage
    """The source or stage that the rows come from."""
    input: Input | None = None
    """The columns that are read, for an exchange by key; else None."""
    by: tuple[str, ...] = ()
    """The columns that partition rows by key, if they are not the key itself."""
    hash_column: str | None = None
    """The column with the hash that rows bring; None for an exchange by key."""

    def __post_init__(self) -> None:
        """Assert that the route is by key or by a hash column, not both and not none."""
        assert (self.input is None) == (self.hash_column is not None)


@dataclass(frozen=True, eq=False)
class Stage:
    """A fragment that computes ``node``, or a part of it, with a port for each of its inputs."""

    node: Node
    fragment: Fragment
    ports: tuple[Port, ...]
    by: str
    """A description of what rows are shuffled by."""
    leaves: tuple[Input, ...] = ()
    """The inputs that name the output's columns, from left to right. Empty for a stage that feeds
    another one of the same node.
    """
    within: tuple[Node, ...] = ()
    """The nodes below ``node`` that it computes as well: the inner joins of a star."""

    @property
    def inputs(self) -> dict[str, Entry]:
        """The inputs that the stage's node reads by key, each by the name of its layout
        (``SourceSpec.name``). Those of the earlier stages of the same node are among them.
        """
        entries: dict[str, Entry] = {}
        for port in self.ports:
            if port.input is not None:
                entries[port.source.name] = port.input.source
            elif isinstance(port.origin, Stage):
                entries |= port.origin.inputs
        return entries

    def computes(self, node: Node) -> bool:
        """Return True if the stage computes ``node``: as its own node, as a node below that in the
        same stage, or as an inner join of its star. If a node has several stages, each of them
        does.
        """
        return node in self.node.walk_stage() or node in self.within

    @property
    def reasons(self) -> tuple[str, ...]:
        """The needs that the stage's shuffle and stores meet, in words: that of each operator, in
        order, then that of ``align=`` if inputs wait for each other. Each comes once.
        """
        needs = [law.reason for law in self.fragment.laws]
        if self.fragment.align_us is not None:
            needs.append("inputs wait for each other (align=), so what is ahead is stored")
        return tuple(dict.fromkeys(needs))

    @property
    def argument(self) -> str:
        """The argument of the user's call whose expressions may fail on a row of an input: ``on=``
        of a foreign-key join, else ``window_of=``.
        """
        return "on=" if isinstance(self.node, ForeignKeyJoin) else "window_of="


def stages_up_to(last: Stage) -> Iterator[Stage]:
    """Yield all stages that feed ``last``, at any depth, each after those before it, then ``last``.
    A stage that is read twice comes twice.
    """
    for port in last.ports:
        if isinstance(port.origin, Stage):
            yield from stages_up_to(port.origin)
    yield last


def count_readers(results: Sequence[Node]) -> Counter[Node]:
    """Return for each node the count of its readers: the nodes that have it as an input, and its
    listings in ``results``. A node is also read by an input that is the result of its stage
    (``Derived``).

    A reader counts once, even if it reads the node by both of its inputs. A node that nothing reads
    counts 0. ``results``: the last nodes of the plan. A node that is listed twice has two readers
    more.
    """
    parts = dict.fromkeys(part for node in results for part in node.walk())
    reading = {
        (part, below.node if isinstance(below, Derived) else below)
        for part in parts
        if not isinstance(part, Derived)
        for below in part.inputs
    }
    return Counter([below for _, below in reading]) + Counter(results)
