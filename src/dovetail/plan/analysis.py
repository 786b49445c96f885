"""What Spark makes of a frame's expressions. A classic session has its plans' own objects in reach;
Spark Connect shows plans as text, from which the same is read.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

from dovetail.errors import ConfigurationError
from dovetail.sessions import is_remote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Spark draws a seed for each that is written without one.
_SEED = re.compile(r"\b(randn?)\(-?\d+L?\)")
# Of these SQL says less than Spark's own form, where names carry numbers.
_UNTOLD = re.compile(r"namedlambdavariable\(\)|update_fields\(|from_(json|csv|xml)\(")
_NUMBERED = re.compile(r"(lambda \w+)?#\d+L?")


class Step(NamedTuple):
    """A step of a frame's plan; ``columns``: of a filter, those that its condition reads."""

    name: str
    columns: Sequence[str] = ()


class Analysis(ABC):
    """What Spark makes of one expression over a frame."""

    @property
    @abstractmethod
    def of_one_row(self) -> bool:
        """Whether it is computed of each row by itself, and makes one."""

    @property
    @abstractmethod
    def repeatable(self) -> bool:
        """Whether nothing in it is random or of the moment, such as ``now()``."""

    @property
    @abstractmethod
    def random(self) -> str | None:
        """What in it makes another value of the same row when it is computed again, None for
        nothing. What is of the moment does not: Spark notes a micro-batch's time before it runs.
        """

    @property
    @abstractmethod
    def text(self) -> str:
        """The same text in every session of the same kind, however the expression is written."""


def analysis_of(frame: DataFrame, column: Column) -> Analysis:
    """That of an expression which Spark resolves over a frame."""
    return (_Shown if is_remote(frame.sparkSession) else _Planned)(frame, column)


def random_of(frame: DataFrame) -> str | None:
    """What makes the rows of a frame others when they are read again, None for nothing that Spark
    knows of.
    """
    if any(step.name == "Sample" for step in steps_of(frame)):
        return "sample()"
    if is_remote(frame.sparkSession):
        found = _RANDOM.search(_OF_ITS_OWN.sub("", " ".join(_analysed_lines(frame))))
        return None if found is None else _SEED.sub(r"\1()", found[0])
    return _random_within(_analysed(frame))


def steps_of(frame: DataFrame) -> Iterator[Step]:
    """The steps that a frame is made by, the last one first."""
    if not is_remote(frame.sparkSession):
        return _planned_steps(frame)
    return map(_shown_step, _analysed_lines(frame))


class _Planned(Analysis):
    def __init__(self, frame: DataFrame, column: Column) -> None:
        self._frame, self._plan = frame, _analysed(frame.select(column))

    @property
    def of_one_row(self) -> bool:
        nodes = self._plan.nodeName(), self._plan.child().nodeName()
        return nodes == ("Project", _analysed(self._frame).nodeName())

    @property
    def repeatable(self) -> bool:
        jvm: Any = self._frame.sparkSession._jvm  # noqa: SLF001 -- no public face
        moment = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
        expression = self._plan.expressions().head()
        return bool(expression.deterministic()) and not expression.containsPattern(moment)

    @property
    def random(self) -> str | None:
        return _random(self._plan.expressions().head())

    @property
    def text(self) -> str:
        expression = self._plan.expressions().head()
        while expression.getClass().getSimpleName() == "Alias":
            expression = expression.child()
        text = _SEED.sub(r"\1()", expression.sql())
        if _UNTOLD.search(text) is None:
            return text
        return f"{text}, {_without_numbers(expression.toString())}"


# A micro-batch that is run again reads the same files; aggregates are of what it reads.
_OF_ITS_OWN = re.compile(r"spark_partition_id\(\) >= 0", re.IGNORECASE)
"""A condition that is always true, by which readers of records keep Spark from reading twice."""
_REPEATED = re.compile(r"InputFile\w+|Collect(List|Set)|First|Last|AnyValue|Mode|ListAgg")


def _random(expression: Any) -> str | None:
    """The text of what makes an expression of Spark's another one each time."""
    if expression.deterministic() or _OF_ITS_OWN.fullmatch(str(expression.sql()).strip("()")):
        return None
    within = [child for child in _each(expression.children()) if not child.deterministic()]
    if within:
        return next(filter(None, map(_random, within)), None)
    name = str(expression.getClass().getSimpleName())
    return None if _REPEATED.fullmatch(name) else _SEED.sub(r"\1()", str(expression.sql()))


def _random_within(plan: Any) -> str | None:
    """The text of what makes the rows of a plan others each time."""
    if plan.deterministic():
        return None
    found = (*map(_random, _each(plan.expressions())), *map(_random_within, _each(plan.children())))
    return next(filter(None, found), None)


def _each(sequence: Any) -> Iterator[Any]:
    items = sequence.iterator()
    while items.hasNext():
        yield items.next()


def _analysed(frame: DataFrame) -> Any:
    plan: Any = frame
    return plan._jdf.queryExecution().analyzed()  # noqa: SLF001 -- no public face


def _planned_steps(frame: DataFrame) -> Iterator[Step]:
    waiting = [_analysed(frame)]
    while waiting:
        step = waiting.pop()
        name, columns = str(step.nodeName()), []
        if name == "Filter":
            columns += [str(read.name()) for read in _each(step.condition().references())]
        yield Step(name, columns)
        waiting += _each(step.children())


_ANALYSED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n\n== Optimized", re.DOTALL)
# Steps of a streaming frame are marked.
_BRANCH = re.compile(r"^[ :|]*(?:\+- |:- )", re.MULTILINE)
_NAME = re.compile(r"~?(\w+)")
_READ = re.compile(r"(\w+)#\d+")
_ITEM = "_dovetail_item"
_PROJECTED = re.compile(rf"~?Project \[(.*) AS {_ITEM}#\d+L?\]", re.DOTALL)
_MOMENT = re.compile(
    r"\b(current_\w+|now|localtimestamp|localtime|user|session_user)\(", re.IGNORECASE
)
_RANDOM = re.compile(
    r"\b(randn?|uuid|shuffle|monotonically_increasing_id|spark_partition_id|randstr|uniform)"
    r"\([^()]*\)",
    re.IGNORECASE,
)
_OF_FILES = re.compile(r"\binput_file_\w+\(", re.IGNORECASE)
_FIELDS, _FIELDS_MAX = "spark.sql.debug.maxToStringFields", 1 << 20


class _Shown(Analysis):
    def __init__(self, frame: DataFrame, column: Column) -> None:
        self._frame, self._column = frame, column
        self._lines = list(_analysed_lines(frame.select(column.alias(_ITEM))))

    @property
    def of_one_row(self) -> bool:
        names = [_shown_step(line).name for line in self._lines[:2]]
        return names == ["Project", next(steps_of(self._frame)).name]

    @property
    def repeatable(self) -> bool:
        return not _MOMENT.search(self.text) and self._deterministic

    @property
    def random(self) -> str | None:
        if self._deterministic:
            return None
        found = _RANDOM.search(self.text)
        if found is not None:
            return found[0]
        return None if _OF_FILES.search(self.text) else "a function that is not deterministic"

    @cached_property
    def _deterministic(self) -> bool:
        try:
            _ = self._frame.agg(F.count(self._column)).schema
        except AnalysisException as error:
            if error.getCondition() == "AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION":
                return False
            raise
        return True

    @property
    def text(self) -> str:
        found = _PROJECTED.match(self._lines[0])
        assert found is not None, self._lines
        return _without_numbers(_SEED.sub(r"\1()", found[1]))


def _analysed_lines(frame: DataFrame) -> Iterator[str]:
    """The steps of a frame's plan as Spark shows them, with all their columns."""
    remote: Any = frame
    with _all_fields(frame.sparkSession):
        shown = remote._explain_string(extended=True)  # noqa: SLF001 -- explain() prints it
    found = _ANALYSED.search(shown)
    assert found is not None, shown
    _, _, plan = found[1].partition("\n")
    return iter(_BRANCH.split(plan))


@contextmanager
def _all_fields(session: SparkSession) -> Iterator[None]:
    """Spark shows all columns. A declarative pipeline has its settings from its specification."""
    before = str(session.conf.get(_FIELDS))
    if int(before) >= _FIELDS_MAX:
        yield
        return
    try:
        session.conf.set(_FIELDS, str(_FIELDS_MAX))
    except PySparkException as error:
        if not str(error.getCondition()).startswith("SESSION_MUTATION"):
            raise
        raise ConfigurationError(
            "a declarative pipeline",
            f"its session shows {before} columns of a plan, and a pipeline changes no setting",
            f'Put {_FIELDS}: "{_FIELDS_MAX}" under configuration: in its specification',
        ) from None
    try:
        yield
    finally:
        session.conf.set(_FIELDS, before)


def _shown_step(line: str) -> Step:
    named = _NAME.match(line)
    name = line if named is None else named[1]
    return Step(name, _READ.findall(line) if name == "Filter" else ())


def _without_numbers(text: str) -> str:
    """An expression as Spark shows it, without the numbers that it gives to columns; those of
    lambda variables are counted anew.
    """
    numbers: dict[str, str] = {}

    def anew(found: re.Match[str]) -> str:
        if found[1] is None:
            return ""
        return numbers.setdefault(found[0], f"lambda {len(numbers)}")

    return _NUMBERED.sub(anew, text)
