"""The reasons of stages: each law has one, and each stage says those of its operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sample_topologies import CITIES, CLICKS, ORDERS, PAID, graph

import dovetail as dt
from dovetail.physical.specs.law import Law


def kinds(law: type[Law]) -> Iterator[type[Law]]:
    """Yield the classes of laws that operators have: those without subclasses."""
    below = law.__subclasses__()
    if not below:
        yield law
    for kind in below:
        yield from kinds(kind)


def test_each_law_has_a_reason() -> None:
    reasons = [kind.REASON for kind in kinds(Law)]
    assert len(reasons) == 22
    assert len({*reasons}) == len(reasons)


def test_a_stage_says_why_its_rows_are_shuffled_and_stored() -> None:
    assert [stage.reasons for stage in graph(PAID).stages] == [
        ("a change of any table needs the rows that the others have at its key",)
    ]
    assert [stage.reasons for stage in graph(ORDERS).stages] == [
        ("a change needs the row that it replaces",)
    ]
    assert [stage.reasons for stage in graph(CITIES).stages] == [
        ("a row may change its foreign key, so the one that it had is needed",),
        ("a change of a right row needs all left rows that refer to it",),
        ("changes of a key come from several right rows, and leave in one order",),
        ("a change takes the former row out of its group, so that row is needed",),
        ("rows of one group meet in its accumulators",),
    ]


def test_operators_of_one_stage_have_a_reason_each() -> None:
    counted = CLICKS.group_by("page").window(dt.windows.tumbling("1 hour")).agg(n=dt.count())
    closed = counted.to_table(windows="on_close")
    (stage,) = graph(closed).stages
    assert stage.reasons == (
        "rows of one group meet in its accumulators",
        "a window leaves once, when it has closed, so its last row waits",
    )


def test_reasons_are_printed_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    PAID.explain()
    short = capsys.readouterr().out
    PAID.explain(reasons=True)
    long = capsys.readouterr().out
    reason = "  reason   a change of any table needs the rows that the others have at its key\n"
    assert reason not in short
    assert long.replace(reason, "") == short
