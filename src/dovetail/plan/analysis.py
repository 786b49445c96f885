"""What Spark makes of a frame's expressions. A classic session has its plans' own objects in reach;
Spark Connect shows plans as text, from which the same is read.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    def text(self) -> str:
        """The same text in every session of the same kind, however the expression is written."""


def analysis_of(frame: DataFrame, column: Column) -> Analysis:
    """That of an expression which Spark resolves over a frame."""
    return (_Shown if is_remote(frame.sparkSession) else _Planned)(frame, column)


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
    def text(self) -> str:
        expression = self._plan.expressions().head()
        while expression.getClass().getSimpleName() == "Alias":
            expression = expression.child()
        text = _SEED.sub(r"\1()", expression.sql())
        if _UNTOLD.search(text) is None:
            return text
        return f"{text}, {_without_numbers(expression.toString())}"


def _analysed(frame: DataFrame) -> Any:
    plan: Any = frame
    return plan._jdf.queryExecution().analyzed()  # noqa: SLF001 -- no public face


def _planned_steps(frame: DataFrame) -> Iterator[Step]:
    waiting = [_analysed(frame)]
    while waiting:
        step = waiting.pop()
        name, columns = str(step.nodeName()), []
        if name == "Filter":
            read = step.condition().references().iterator()
            while read.hasNext():
                columns.append(str(read.next().name()))
        yield Step(name, columns)
        children = step.children().iterator()
        while children.hasNext():
            waiting.append(children.next())


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
        if _MOMENT.search(self.text):
            return False
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
