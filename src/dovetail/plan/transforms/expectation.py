"""A condition that each row of a table or a stream is expected to meet, and what happens else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pyspark.sql import Column

from dovetail.base.validation import Rule
from dovetail.plan.metrics import metric_name
from dovetail.plan.nodes import Describe, Node
from dovetail.plan.view_columns import item_as_text
from dovetail.plan.views import View, columns_read_by, condition_over, expression_row, view_input

OnFail: TypeAlias = Literal["fail", "drop", "dead_letter", "warn"]
"""Treatment of a row that does not meet an expectation. ``"fail"`` stops the query. ``"drop"``
leaves the row out, ``"dead_letter"`` also makes it a dead letter. ``"warn"`` keeps it. All but
``"fail"`` count it in the metric ``<name>.<expectation>.unmet``.
"""
ExpectationName: TypeAlias = Annotated[
    str, Rule("a text that is not empty, without #", lambda name: bool(name) and "#" not in name)
]


@dataclass(frozen=True, eq=False, kw_only=True)
class Expectation(View):
    """The rows of ``node``, with or without those that do not meet a condition.

    A row on which the condition is false, null or fails does not meet it. A tombstone, and a
    record without a value, meet every condition. A row that is left out is as if it had never
    come: a table's former row stays.
    """

    expected: str | Column
    """The condition: a boolean column's name, or an expression."""
    label: str
    """The name of the expectation, for counters, errors and dead letters."""
    on_fail: OnFail
    """The treatment of rows that do not meet the condition."""

    @property
    def checks(self) -> bool:
        """True: the view sees each change, since it counts rows that do not meet the condition."""
        return True

    @property
    def drops(self) -> bool:
        """True if the view leaves out rows that do not meet the condition."""
        return self.on_fail in ("drop", "dead_letter")

    @property
    def computed(self) -> bool:
        """True if Spark evaluates the condition, or writes a dead letter's row."""
        return isinstance(self.expected, Column) or self.on_fail == "dead_letter"

    @property
    def counter(self) -> str:
        """The name of the metric that counts the rows that do not meet the condition:
        ``<name>.<label>.unmet``. ``on_fail="fail"`` does not count them.
        """
        return metric_name(f"{self.name}.{self.label}", "unmet")

    @property
    def problem(self) -> str:
        """The problem of a row that does not meet the condition, in words for errors and dead
        letters.
        """
        return f"expectation {self.label!r} is not met"

    @property
    def remedy(self) -> str:
        """The advice in the error for a row that does not meet the condition."""
        return "Mend the row where it comes from, or give expect() another on_fail="

    @property
    def _operation(self) -> str:
        """The expectation in words, for ``explain``: its label unless that is the condition, the
        condition, and ``on_fail``. An example is ``expect 'paid': amount > 0, else drop``.
        """
        condition = item_as_text(self.expected)
        named = "" if self.label == condition else f" {self.label!r}:"
        return f"expect{named} {condition}, else {self.on_fail.replace('_', ' ')}"

    @property
    def summary(self) -> str:
        """The line of text that describes the view in ``explain``, such as ``expect paid, else
        drop``.
        """
        return self._operation

    def state_properties(
        self, describe: Describe, *, whole: bool, needed: Collection[str] | None = None
    ) -> Mapping[str, Any]:
        """Return, as JSON data for a topology's fingerprint (a hash), the parts on which state
        above the view depends. ``view`` is the viewed node, ``expect`` the condition's text.
        ``kept`` is True if rows that do not meet the condition are kept. The label is not part of
        it.

        ``describe``: describes the node and makes the condition's text. ``needed``: the columns of
        the view that are read, or None for all. The viewed node is described with these columns and
        those that the condition reads. ``whole`` changes nothing.
        """
        text = describe.text(self, self.expected, expression_row(self.node))
        read = None if needed is None else {*needed, *columns_read_by(text, self.node)}
        return {
            "view": describe(self.node, whole=True, needed=read),
            "expect": text,
            "kept": self.on_fail == "warn",
        }


def expectation(node: Node, condition: str | Column, on_fail: OnFail, label: str | None) -> View:
    """Return a view of the rows of ``node``, with or without those that do not meet a condition. A
    row on which the condition is false, null or fails does not meet it. A tombstone, and a record
    without a value, always do.

    ``on_fail``: at a row that does not meet the condition, ``"fail"`` stops the query. ``"drop"``
    leaves the row out, ``"dead_letter"`` also makes it a dead letter, and ``"warn"`` keeps it.
    These three count it. ``condition``: a boolean column, an expression, or SQL. ``label``: the
    name of the expectation, None for the text of the condition; it may repeat that of another one.
    Raises ``PlanError`` if the condition is random, not boolean or not resolved. So it does for a
    table joined with ``late="history"``, and for a stream joined with ``unmatched="retract"``.
    """
    name = f"expect of {node.name}"
    source = view_input(name, node)
    expected = condition_over(name, source, condition)
    return Expectation(
        node=source,
        key=source.key,
        values=source.values,
        columns=tuple(source.row.names),
        stream=source.stream,
        letters=name if on_fail == "dead_letter" else None,
        expected=expected,
        label=label or _default_name(condition),
        on_fail=on_fail,
    )


def _default_name(condition: str | Column) -> str:
    """Return the name of an expectation by default: the text of its condition, with one space for
    each run of ``#`` and white space, and none at its ends.
    """
    return " ".join(item_as_text(condition).replace("#", " ").split())
