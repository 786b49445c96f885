"""Spark's own sources, of which a streaming frame is made: what they read, and by which options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.plan.nodes import Source
from dovetail.sessions import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_V1, _V2 = ".StreamingRelation", ".StreamingRelationV2"
_NO_FILES = frozenset({"delta", "kafka", "rate", "socket", "rate-micro-batch"})


@dataclass(frozen=True)
class Leaf:
    """One source of Spark's, equal to another where Spark takes both for one."""

    relation: Any
    """The relation in the frame's plan."""
    format: str = field(compare=False)
    """Such as ``json``, ``delta`` or ``kafka``."""
    options: Mapping[str, str] = field(compare=False)
    """Its options, their names in lower case."""

    @property
    def folder(self) -> str | None:
        """The path that is read, which may be a pattern; None for what is no file system's."""
        return self.options.get("path")

    @property
    def of_files(self) -> bool:
        """Whether it reads each file of a folder once."""
        return self.folder is not None and self.format not in _NO_FILES


def leaves_of(frame: DataFrame) -> list[Leaf]:
    """The streaming sources of a frame, in the order of its plan."""
    given: Any = frame
    if is_remote(frame.sparkSession):
        return [*_of_remote(given._plan)]  # noqa: SLF001 -- no public face
    leaves = given._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001
    found = (leaves.apply(number) for number in range(leaves.size()))
    return [_of_classic(leaf) for leaf in found if leaf.isStreaming()]


def all_leaves(sources: Iterable[Source]) -> Iterator[tuple[Source, Leaf]]:
    """Each streaming source of some inputs, with the input that it is of."""
    for source in sources:
        if source.frame is not None and not source.static:
            for leaf in leaves_of(source.frame):
                yield source, leaf


def is_limited(frame: DataFrame) -> bool:
    """Whether a micro-batch of a frame may leave some of what is there unread."""
    if not frame.isStreaming:
        return False
    limits = ("maxoffsetspertrigger", "maxfilespertrigger", "maxbytespertrigger")
    return any(limit in leaf.options for leaf in leaves_of(frame) for limit in limits)


def numbered(reads: Sequence[Sequence[Leaf]]) -> list[list[int]]:
    """The numbers of the folders in which Spark keeps what leaves have read, in the order of a
    plan's reads. Equal leaves share one.

    >>> a, b = Leaf("a", "json", {}), Leaf("b", "json", {})
    >>> numbered([[a, b], [a], [b]])
    [[0, 1], [0], [1]]
    """
    numbers: dict[Leaf, int] = {}
    return [[numbers.setdefault(leaf, len(numbers)) for leaf in leaves] for leaves in reads]


def _of_classic(relation: Any) -> Leaf:
    if relation.getClass().getName().endswith(_V1):
        source = relation.dataSource()
        options, name = source.options(), str(source.className())
        names = options.keySet().toSeq()
        given = {n: options.apply(n) for n in (names.apply(i) for i in range(names.size()))}
    else:
        given, name = {}, str(relation.nodeName())
        if relation.getClass().getName().endswith(_V2):
            given = dict(relation.extraOptions().asCaseSensitiveMap())
            name = str(relation.sourceName())
    return Leaf(relation, _short(name), {str(n).lower(): str(value) for n, value in given.items()})


def _short(name: str) -> str:
    """A format's name, of a class its last part."""
    return name.rpartition(".")[2].lower()


def _of_remote(plan: Any) -> Iterator[Leaf]:
    """The streaming sources in a plan of Spark Connect."""
    if getattr(plan, "_is_streaming", False) and hasattr(plan, "_format"):
        options = {name.lower(): str(value) for name, value in (plan._options or {}).items()}  # noqa: SLF001
        for path in plan._paths or ():  # noqa: SLF001
            options.setdefault("path", str(path))
        yield Leaf(id(plan), _short(plan._format or "parquet"), options)  # noqa: SLF001
        return
    for part in vars(plan).values():
        for child in part if isinstance(part, (list, tuple)) else (part,):
            if type(child).__module__ == type(plan).__module__ and hasattr(child, "plan"):
                yield from _of_remote(child)
