"""The Spark sources that a streaming frame reads: their formats and options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.errors import PlanError
from dovetail.plan.nodes import Source
from dovetail.platform import jvm
from dovetail.platform.sessions import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_V1, _V2 = ".StreamingRelation", ".StreamingRelationV2"
_FORMATS_WITHOUT_FILES = frozenset({"delta", "kafka", "rate", "socket", "rate-micro-batch"})
_STEPS_WITH_STATE = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "GlobalLimit",
        "TransformWithState",
        "TransformWithStateInPySpark",
    }
)
"""The steps of a streaming frame for which Spark keeps state. A join of two streams is one, too."""


@dataclass(frozen=True)
class SparkSource:
    """One streaming source in the plan of a Spark frame. Two are equal if they have the same
    relation: Spark takes both for one source.
    """

    relation: Any
    """The relation in the frame's plan."""
    format: str = field(compare=False)
    """The short name of the format, such as ``json``, ``delta`` or ``kafka``."""
    options: Mapping[str, str] = field(compare=False)
    """The options, with names in lower case."""

    @property
    def folder(self) -> str | None:
        """The path that is read, from the option ``path``, which may be a pattern. None without."""
        return self.options.get("path")

    @property
    def of_files(self) -> bool:
        """True if the source reads each file of a folder once: it has a path, and its format is
        none of Delta, Kafka, rate and socket.
        """
        return self.folder is not None and self.format not in _FORMATS_WITHOUT_FILES

    @property
    def reads_several_topics(self) -> bool:
        """True if the source is given several of Kafka's topics, or a pattern of their names."""
        topics = self.options.get("subscribe", "").split(",")
        # Each topic in the JSON has a list of partitions.
        lists = self.options.get("assign", "").count("[")
        return "subscribepattern" in self.options or len(topics) > 1 or lists > 1


def spark_sources_of(frame: DataFrame) -> list[SparkSource]:
    """Return the streaming sources of a frame, in the order of its plan. A source that the plan has
    several times comes each time. The list is empty for a frame that does not stream.
    """
    if is_remote(frame.sparkSession):
        untyped_frame: Any = frame
        return [*_sources_of_connect_plan(untyped_frame._plan)]  # noqa: SLF001 -- no public face
    leaves = jvm.items(jvm.analyzed_plan(frame).collectLeaves())
    return [_source_of_relation(leaf) for leaf in leaves if leaf.isStreaming()]


def spark_sources_of_inputs(sources: Iterable[Source]) -> Iterator[tuple[Source, SparkSource]]:
    """Yield each pair of an input and a streaming Spark source that its frame reads: inputs in the
    order of ``sources``, each one's Spark sources in the order of its plan.

    A Spark source that several inputs read comes with each. Inputs that are static or without a
    frame are skipped.
    """
    for source in sources:
        if source.frame is not None and not source.static:
            for leaf in spark_sources_of(source.frame):
                yield source, leaf


def refuse_frames_with_state(operator: str, sources: Iterable[Source], because: str) -> None:
    """Raise ``PlanError`` for the first input whose frame has a step for which Spark keeps state,
    such as ``dropDuplicates`` or a join of two streams. Static inputs and those without a frame
    pass. On Spark Connect all pass.

    ``operator``: the subject of the error. ``because``: the end of its problem, after the step.
    """
    for source in sources:
        frame = None if source.static else source.frame
        if frame is None or is_remote(frame.sparkSession):
            continue
        waiting = [jvm.analyzed_plan(frame)]
        while waiting:
            step = waiting.pop()
            name = str(step.nodeName())
            # A frame that does not stream, as on one side of a join, has no state.
            inputs = [part for part in jvm.items(step.children()) if part.isStreaming()]
            joins = name == "Join" and len(inputs) > 1
            if joins or (inputs and name in _STEPS_WITH_STATE):
                raise PlanError(
                    operator,
                    f"{source.title} is read through a step with state of Spark's own ({name}), "
                    f"{because}",
                    "Do it with dovetail, as with Stream.deduplicate, or in a query of its own",
                )
            waiting += inputs


def is_limited(frame: DataFrame) -> bool:
    """Return True if a micro-batch of ``frame`` may read one log further in time than another.

    It may if one of its sources has the option ``maxOffsetsPerTrigger``, ``maxFilesPerTrigger`` or
    ``maxBytesPerTrigger``, by which rows are left for later. It also may if the frame has several
    sources or topics, whose writers do not wait for each other. False for a frame that does not
    stream.
    """
    if not frame.isStreaming:
        return False
    limits = {"maxoffsetspertrigger", "maxfilespertrigger", "maxbytespertrigger"}
    leaves = {*spark_sources_of(frame)}
    return len(leaves) > 1 or any(
        leaf.reads_several_topics or not limits.isdisjoint(leaf.options) for leaf in leaves
    )


def source_folder_indices(reads: Sequence[Sequence[SparkSource]]) -> list[list[int]]:
    """Return the indices of the folders in a checkpoint in which Spark keeps what each of its
    sources has read: a list for each of ``reads``, an index for each of its Spark sources.

    ``reads``: the Spark sources of each input of a plan, in the plan's order. They are counted from
    0 as they first come, and equal ones share an index.

    >>> a, b = SparkSource("a", "json", {}), SparkSource("b", "json", {})
    >>> source_folder_indices([[a, b], [a], [b]])
    [[0, 1], [0], [1]]
    """
    index_of: dict[SparkSource, int] = {}
    return [[index_of.setdefault(leaf, len(index_of)) for leaf in leaves] for leaves in reads]


def _source_of_relation(relation: Any) -> SparkSource:
    """Return the source of a streaming relation, a JVM object: a leaf of the plan of a session
    without Spark Connect.

    Names of options are in lower case. A relation that is neither of Spark's two kinds of streaming
    relations has no options, and its node's name in lower case as format.
    """
    if relation.getClass().getName().endswith(_V1):
        source = relation.dataSource()
        options, name = source.options(), str(source.className())
        option_values = {n: options.apply(n) for n in jvm.items(options.keySet().toSeq())}
    else:
        option_values, name = {}, str(relation.nodeName())
        if relation.getClass().getName().endswith(_V2):
            option_values = dict(relation.extraOptions().asCaseSensitiveMap())
            name = str(relation.sourceName())
    return SparkSource(
        relation,
        _short_format_name(name),
        {str(n).lower(): str(value) for n, value in option_values.items()},
    )


def _short_format_name(name: str) -> str:
    """Return a format's name in lower case. Of a name with dots, a class, return the last part."""
    return name.rpartition(".")[2].lower()


def _sources_of_connect_plan(plan: Any) -> Iterator[SparkSource]:
    """Yield the streaming sources in ``plan``, a logical plan of Spark Connect's client, in the
    plan's order; nothing if there are none.

    Names of options are in lower case. A reader's first path counts as the option ``path`` unless
    that is given. A reader without a format is one of ``parquet``.
    """
    if getattr(plan, "_is_streaming", False) and hasattr(plan, "_format"):
        options = {name.lower(): str(value) for name, value in (plan._options or {}).items()}  # noqa: SLF001
        for path in plan._paths or ():  # noqa: SLF001
            options.setdefault("path", str(path))
        yield SparkSource(id(plan), _short_format_name(plan._format or "parquet"), options)  # noqa: SLF001
        return
    for part in vars(plan).values():
        for child in part if isinstance(part, (list, tuple)) else (part,):
            if type(child).__module__ == type(plan).__module__ and hasattr(child, "plan"):
                yield from _sources_of_connect_plan(child)
