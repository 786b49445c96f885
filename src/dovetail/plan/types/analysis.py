"""Analysis of expressions and frames by Spark.

A classic session gives access to the objects of its plans. Spark Connect shows plans as text, and
the same facts are read from that text.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import functions as F

from dovetail.base.columns import FILE_METADATA
from dovetail.errors import ConfigurationError
from dovetail.platform import jvm
from dovetail.platform.sessions import is_remote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

# Spark draws a seed for each random function that is written without one.
_SEED = re.compile(r"\b(randn?)\(-?\d+L?\)")
# SQL omits details of these expressions. Spark's own text has them, with numbers in names.
_INCOMPLETE_SQL = re.compile(r"namedlambdavariable\(\)|update_fields\(|from_(json|csv|xml)\(")
_COLUMN_NUMBER = re.compile(r"(lambda \w+)?#\d+L?")


_UNRESOLVED = "DataFrameQueryContextLogger"
"""PySpark's logger of columns that a frame does not have."""


class FrameStep(NamedTuple):
    """A step of a frame's plan. ``columns``: for a filter, the columns that its condition reads."""

    name: str
    columns: Sequence[str] = ()


class Analysis(ABC):
    """The facts about one expression over a frame, as Spark resolves it."""

    @property
    @abstractmethod
    def of_one_row(self) -> bool:
        """True if the expression is computed from one row alone and makes one row."""

    @property
    @abstractmethod
    def repeatable(self) -> bool:
        """True if the expression depends neither on chance nor on the time or the user. So it is
        False for ``rand()``, ``now()`` and ``current_user()``.
        """

    @property
    @abstractmethod
    def random(self) -> str | None:
        """The text of the part that makes another value of the same row when it is computed again,
        such as ``rand()``. None without such a part.

        The time does not count: Spark records a micro-batch's time before it runs.
        """

    @property
    @abstractmethod
    def text(self) -> str:
        """The text of the expression, the same in every session of the same kind, however it is
        written.
        """


def analysis_of(frame: DataFrame, column: Column) -> Analysis:
    """Return the analysis of the expression ``column`` over a frame. Spark's own error passes if
    the expression does not resolve there.

    On Spark Connect, ``ConfigurationError`` is raised in a declarative pipeline whose setting
    ``spark.sql.debug.maxToStringFields`` is below 1048576. Only its specification can change that.
    """
    return (_ShownAnalysis if is_remote(frame.sparkSession) else _PlannedAnalysis)(frame, column)


def random_of(frame: DataFrame) -> str | None:
    """Return the first part of a frame that makes other rows when the frame is computed again, such
    as ``sample()``. None if no such part is known. Functions of the time do not count.

    On Spark Connect, ``ConfigurationError`` is raised in a declarative pipeline whose setting
    ``spark.sql.debug.maxToStringFields`` is below 1048576. Only its specification can change that.
    """
    if any(step.name == "Sample" for step in steps_of(frame)):
        return "sample()"
    if is_remote(frame.sparkSession):
        match = _RANDOM.search(_READ_ONCE_CONDITION.sub("", " ".join(_analysed_lines(frame))))
        return None if match is None else _SEED.sub(r"\1()", match[0])
    return _random_within(jvm.analyzed_plan(frame))


def steps_of(frame: DataFrame) -> Iterator[FrameStep]:
    """Yield the steps of a frame's plan as Spark has analysed it, each before its inputs. A filter
    has the columns of its condition; other steps have none.

    On Spark Connect, ``ConfigurationError`` is raised in a declarative pipeline whose setting
    ``spark.sql.debug.maxToStringFields`` is below 1048576. Only its specification can change that.
    """
    if not is_remote(frame.sparkSession):
        return _planned_steps(frame)
    return map(_shown_step, _analysed_lines(frame))


class _PlannedAnalysis(Analysis):
    """The analysis of an expression by the plan of a classic session."""

    def __init__(self, frame: DataFrame, column: Column) -> None:
        """Let Spark resolve ``column`` over ``frame``, and keep the analysed plan. Spark's own
        error passes if it does not resolve.
        """
        self._frame, self._plan = frame, jvm.analyzed_plan(frame.select(column))

    @property
    def of_one_row(self) -> bool:
        """True if Spark plans the expression as a mere projection of the frame, without a step for
        aggregates, windows or generators.
        """
        nodes = self._plan.nodeName(), self._plan.child().nodeName()
        return nodes == ("Project", jvm.analyzed_plan(self._frame).nodeName())

    @property
    def repeatable(self) -> bool:
        """True if the expression is deterministic and has no function of the time or the user."""
        expression, session = self._plan.expressions().head(), self._frame.sparkSession
        return bool(expression.deterministic()) and not jvm.is_of_the_moment(session, expression)

    @property
    def random(self) -> str | None:
        """The part of the expression that makes another value each time, as SQL without seeds; None
        without one.
        """
        return _random_part(self._plan.expressions().head())

    @property
    def text(self) -> str:
        """The expression as SQL without seeds and alias. Where SQL does not tell all, Spark's own
        text follows, without the ids of columns.
        """
        expression = self._plan.expressions().head()
        while expression.getClass().getSimpleName() == "Alias":
            expression = expression.child()
        text = _SEED.sub(r"\1()", expression.sql())
        if _INCOMPLETE_SQL.search(text) is None:
            return text
        return f"{text}, {_without_numbers(expression.toString())}"


# A repeated micro-batch reads the same files and rows, so these functions repeat their values.
_READ_ONCE_CONDITION = re.compile(r"spark_partition_id\(\) >= 0", re.IGNORECASE)
"""A condition that is always true. Readers of records use it to keep Spark from reading twice."""
_REPEATED_EXPRESSIONS = re.compile(
    r"InputFile\w+|Collect(List|Set)|First|Last|AnyValue|Mode|ListAgg"
)


def _random_part(expression: Any) -> str | None:
    """Return the first innermost part of an expression that makes another value each time, as SQL
    without seeds, or None. Parts that Spark repeats for one row, such as file names, do not count.

    ``expression``: the JVM's Catalyst expression.
    """
    if expression.deterministic() or _READ_ONCE_CONDITION.fullmatch(
        str(expression.sql()).strip("()")
    ):
        return None
    within = [child for child in jvm.items(expression.children()) if not child.deterministic()]
    if within:
        return next(filter(None, map(_random_part, within)), None)
    name = str(expression.getClass().getSimpleName())
    return (
        None if _REPEATED_EXPRESSIONS.fullmatch(name) else _SEED.sub(r"\1()", str(expression.sql()))
    )


def _random_within(plan: Any) -> str | None:
    """Return the first part of a plan, its inputs included, that makes other rows each time, as SQL
    without seeds, or None. Parts that Spark repeats for one row do not count. ``plan``: the JVM's
    logical plan.
    """
    if plan.deterministic():
        return None
    random_parts = (
        *map(_random_part, jvm.items(plan.expressions())),
        *map(_random_within, jvm.items(plan.children())),
    )
    return next(filter(None, random_parts), None)


def _planned_steps(frame: DataFrame) -> Iterator[FrameStep]:
    """Yield the steps of a frame's analysed plan, each before its inputs. This needs a classic
    session.

    A step has the name of Spark's node. ``columns`` are those of a filter's condition, and empty
    for other steps.
    """
    waiting = [jvm.analyzed_plan(frame)]
    while waiting:
        step = waiting.pop()
        name, columns = str(step.nodeName()), []
        if name == "Filter":
            columns += [
                str(read.name()) for read in jvm.items(step.condition().references().toList())
            ]
        yield FrameStep(name, columns)
        waiting += jvm.items(step.children())


_ANALYSED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n\n== Optimized", re.DOTALL)
# A ``~`` marks the steps of a streaming frame.
_BRANCH = re.compile(r"^[ :|]*(?:\+- |:- )", re.MULTILINE)
_STEP_NAME = re.compile(r"~?(\w+)")
_COLUMN_READ = re.compile(r"(\w+)#\d+")
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


def names_moment(column: Column) -> bool:
    """Return True if the text of an expression names a function of the present time or the user,
    such as ``now()`` or ``current_user()``. Case is ignored.
    """
    return _MOMENT.search(str(column)) is not None


class _ShownAnalysis(Analysis):
    """The analysis of an expression by the text of a plan in Spark Connect."""

    def __init__(self, frame: DataFrame, column: Column) -> None:
        """Let Spark resolve ``column`` over ``frame``, and keep the text of the analysed plan, step
        by step. Spark's own error passes if it does not resolve.

        Raises ``ConfigurationError`` in a declarative pipeline whose setting
        ``spark.sql.debug.maxToStringFields`` is below 1048576. Only its specification can change
        that.
        """
        self._frame, self._column = frame, column
        self._lines = list(_analysed_lines(frame.select(column.alias(_ITEM))))

    @property
    def of_one_row(self) -> bool:
        """True if the first step of the plan is a projection and the second is the frame's first
        step.
        """
        names = [_shown_step(line).name for line in self._lines[:2]]
        return names == ["Project", next(steps_of(self._frame)).name]

    @property
    def repeatable(self) -> bool:
        """True if the expression is deterministic and its text names no function of the time or the
        user.
        """
        return not _MOMENT.search(self.text) and self._deterministic

    @property
    def random(self) -> str | None:
        """The part of the expression that makes another value each time, in words if its name is
        not known. None without such a part, and if only names of files are not deterministic.
        """
        if self._deterministic:
            return None
        match = _RANDOM.search(self.text)
        if match is not None:
            return match[0]
        return None if _OF_FILES.search(self.text) else "a function that is not deterministic"

    @cached_property
    def _deterministic(self) -> bool:
        """True if Spark takes the expression within an aggregate, which Spark refuses for an
        expression that is not deterministic. Its other errors pass.
        """
        try:
            _ = self._frame.agg(F.count(self._column)).schema
        except AnalysisException as error:
            if error.getCondition() == "AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION":
                return False
            raise
        return True

    @property
    def text(self) -> str:
        """The expression as the plan shows it, without seeds, alias and the ids of columns."""
        match = _PROJECTED.match(self._lines[0])
        assert match is not None, self._lines
        return _without_numbers(_SEED.sub(r"\1()", match[1]))


def _analysed_lines(frame: DataFrame) -> Iterator[str]:
    """Return the steps of a frame's analysed plan as the lines of text that Spark shows, the last
    step first, with all columns. Each line lacks the marks of the tree before the step. The frame
    must be of Spark Connect.

    Raises ``ConfigurationError`` in a declarative pipeline whose setting
    ``spark.sql.debug.maxToStringFields`` is below 1048576.
    """
    remote: Any = frame
    with _all_fields(frame.sparkSession):
        shown = remote._explain_string(extended=True)  # noqa: SLF001 -- explain() prints it
    match = _ANALYSED.search(shown)
    assert match is not None, shown
    _, _, plan = match[1].partition("\n")
    return iter(_BRANCH.split(plan))


@contextmanager
def _all_fields(session: SparkSession) -> Iterator[None]:
    """Let Spark show up to 1048576 columns of a plan within the block, and restore the setting
    ``spark.sql.debug.maxToStringFields`` after it. A higher setting stays.

    Raises ``ConfigurationError`` in a declarative pipeline, whose session has fixed settings,
    unless the setting is that high already.
    """
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


def _shown_step(line: str) -> FrameStep:
    """Return the step that a line of a plan's text shows. ``line``: the step's own text, without
    the marks of the tree. Only a filter has columns: those that its condition reads, as often as
    the line names them.
    """
    named = _STEP_NAME.match(line)
    name = line if named is None else named[1]
    return FrameStep(name, _COLUMN_READ.findall(line) if name == "Filter" else ())


def _without_numbers(text: str) -> str:
    """Return an expression's text without the ids that Spark gives to columns, such as ``#17``.
    Lambda variables are counted from 0 in the order of first use: ``lambda x#17`` becomes ``lambda
    0``.
    """
    numbers: dict[str, str] = {}

    def renumbered(match: re.Match[str]) -> str:
        """Return the text for one id: nothing for a column, else the lambda variable with its own
        count.
        """
        if match[1] is None:
            return ""
        return numbers.setdefault(match[0], f"lambda {len(numbers)}")

    return _COLUMN_NUMBER.sub(renumbered, text)


def file_metadata(frame: DataFrame, *names: str) -> list[DataType] | None:
    """Return the types of the fields ``names`` of Spark's file metadata (``_metadata``) over a
    frame, in their order. Spark's log of unknown columns is off meanwhile.

    The result is None if Spark does not know the file of each row, or lacks one of the fields.
    """
    # PySpark logs an unknown column as an error.
    logger = PySparkLogger.getLogger(_UNRESOLVED)
    disabled, logger.disabled = logger.disabled, True
    try:
        fields = frame.select(*(f"{FILE_METADATA}.{name}" for name in names)).schema
    except AnalysisException:
        return None
    finally:
        logger.disabled = disabled
    return [field.dataType for field in fields]
