"""Aggregation of rows by groups, and by windows of time: ``group_by(…).agg(…)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql.types import DataType, StructField, StructType

from dovetail.aggregates.aggregate import Aggregate
from dovetail.aggregates.user_defined import UserDefined
from dovetail.errors import PlanError
from dovetail.plan.joins.join_call import refuse_corrected, side_as_input
from dovetail.plan.nodes import WINDOW_FIELDS, Describe, Entry, Node
from dovetail.plan.types.aggregates import AggregateCall, resolve_aggregate
from dovetail.plan.types.arrow import nullable
from dovetail.plan.types.checks import known_field, refuse_duplicates, refuse_key_type, refuse_names
from dovetail.plan.types.windows import Windows

_ONE_GROUP_REMEDY = (
    "Name at least one. For one group of all rows, make a column for it: "
    "with_columns(all=F.lit(1)).group_by('all')"
)


@dataclass(frozen=True)
class AggregatedColumn:
    """One result column of an aggregation. ``kernel`` computes it from ``columns`` of each row."""

    name: str
    columns: tuple[str, ...]
    """The columns that the kernel reads, in its order; empty for a count of rows."""
    kernel: Aggregate
    type: DataType
    """The Spark type of the result."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Aggregation(Node):
    """A table with a row for each group of a table's rows or of a stream's records.

    A stream may also be grouped by ``windows`` of time. Each group and window has a row then.
    """

    null_keys = False

    input: Entry
    """The table or the stream that is aggregated."""
    by: tuple[str, ...]
    """The columns that rows are grouped by."""
    columns: tuple[AggregatedColumn, ...]
    """The aggregates, one for each value column."""
    windows: Windows | None = None
    """The windows of time, or None for groups alone."""
    label: str | None = None
    """The user's name for the aggregation, or None."""

    @property
    def name(self) -> str:
        """The label or, without one, the input and the groups: ``aggregate of orders by city``."""
        return self.label or f"aggregate of {self.input.name} by {', '.join(self.by)}"

    @property
    def summary(self) -> str:
        """The line of text that describes the aggregation in ``explain``: the groups and, if there
        are any, the windows.
        """
        over = "" if self.windows is None else f", windows {self.windows}"
        return f"aggregate by {', '.join(self.by)}{over}"

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The aggregated node, as the only element."""
        return (self.input,)

    @property
    def key(self) -> StructType:
        """The columns that rows are grouped by, then the window's start and end, if there are
        windows.
        """
        group_fields = [self.input.fields[name] for name in self.by]
        return StructType([*group_fields, *(WINDOW_FIELDS if self.windows is not None else ())])

    @property
    def values(self) -> StructType:
        """The result columns of the aggregates, in order, nullable."""
        return StructType([StructField(c.name, c.type, True) for c in self.columns])

    @property
    def used(self) -> tuple[str, ...]:
        """The names of the columns that the aggregates read, each once, in order of first use."""
        return tuple(dict.fromkeys(name for c in self.columns for name in c.columns))

    def state_properties(self, describe: Describe, *, whole: bool) -> Mapping[str, Any]:
        """Return, as JSON data for a topology's fingerprint (a hash), the parts on which the
        aggregation's state depends.

        - ``aggregate``: for each result its name, its columns and its kernel's text;
        - ``by``: the grouping columns;
        - ``over``: the windows as a dict, None for none;
        - ``of``: the input, as ``describe`` returns it.

        ``describe``: a function that returns such data of a node. ``whole``: True to include the
        columns that the node makes; here they are always included, since state depends on all of
        them.
        """
        return {
            "aggregate": [[c.name, list(c.columns), _kernel_text(c.kernel)] for c in self.columns],
            "by": list(self.by),
            "over": None if self.windows is None else asdict(self.windows),
            "of": describe(self.input),
        }


def aggregation(
    node: Node,
    by: Sequence[str],
    calls: Mapping[str, AggregateCall],
    windows: Windows | None,
    label: str | None = None,
) -> Aggregation:
    """Return the node that groups the rows of ``node`` by the columns ``by`` and, if given, by
    ``windows``. A row with a null in one of ``by`` is in no group.

    ``calls``: the aggregates by result name. ``windows``: for streams only, which is not checked.
    ``label``: the node's name, None for one made of the input and the columns. Raises ``PlanError``
    for no group, no aggregate, unknown or unusable names and unsuitable types. It also refuses a
    table joined with ``late="history"``, and a stream joined with ``unmatched="retract"``.
    """
    name = label or f"aggregate of {node.name} by {', '.join(by)}"
    refuse_corrected(name, node)
    if not by:
        raise PlanError(name, "group_by() names no column", _ONE_GROUP_REMEDY)
    refuse_duplicates(name, by, "Name it once in group_by()")
    for column in by:
        refuse_key_type(
            name, known_field(name, "group_by()", column, node.row, input_name=node.name)
        )
    if not calls:
        raise PlanError(name, "agg() has no aggregate", "Give one, for instance n=dt.count()")
    refuse_names(name, list(calls), "Use another")
    columns = []
    for result, call in calls.items():
        field, kernel = resolve_aggregate(name, result, call, node.row, retracts=not node.stream)
        columns.append(AggregatedColumn(result, call.columns, kernel, nullable(field.dataType)))
    bounds = [] if windows is None else [field.name for field in WINDOW_FIELDS]
    refuse_duplicates(name, [*bounds, *by], "Give the column another name by rename()")
    refuse_duplicates(name, [*bounds, *by, *calls], "Give the aggregate another name")
    return Aggregation(
        input=side_as_input(name, node),
        by=tuple(by),
        columns=tuple(columns),
        windows=windows,
        label=label,
    )


def _kernel_text(kernel: Aggregate) -> str:
    """Return the text of a kernel, which computes an aggregate, for a topology's hash: its
    ``repr``. For a user's aggregate it is the qualified names of its functions with the types of
    its state and result. The code of the functions is no part of the text.
    """
    if not isinstance(kernel, UserDefined):
        return repr(kernel)
    functions = kernel.functions
    callables = (
        functions.init,
        functions.add,
        functions.merge,
        functions.retract,
        functions.finish,
    )
    names = [getattr(f, "__qualname__", type(f).__name__) for f in callables if f is not None]
    state = ", ".join(f"{name} {type_}" for name, type_ in functions.columns)
    return f"user-defined by {', '.join(names)}: {state} to {kernel.result}"
