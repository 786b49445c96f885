"""Spans of time as users write them: what is accepted, what is refused, and how they read back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import PlanError
from dovetail.plan.types.spans import microseconds, span_as_text

SECOND, MINUTE, HOUR, DAY = 10**6, 60 * 10**6, 3_600 * 10**6, 86_400 * 10**6


@pytest.mark.parametrize(
    ("span", "length_us"),
    [
        ("7 us", 7),
        ("1 microsecond", 1),
        ("2 microseconds", 2),
        ("5 ms", 5_000),
        ("1 millisecond", 1_000),
        ("20 milliseconds", 20_000),
        ("30 s", 30 * SECOND),
        ("1 sec", SECOND),
        ("2 seconds", 2 * SECOND),
        ("5 min", 5 * MINUTE),
        ("1 minute", MINUTE),
        ("90 minutes", 90 * MINUTE),
        ("3 h", 3 * HOUR),
        ("1 hour", HOUR),
        ("24 hours", DAY),
        ("2 d", 2 * DAY),
        ("1 day", DAY),
        ("7 days", 7 * DAY),
        ("2 weeks", 14 * DAY),
        ("0 s", 0),
        ("-0 s", 0),
        ("+5 s", 5 * SECOND),
        ("5s", 5 * SECOND),
        ("  5   min ", 5 * MINUTE),
        (timedelta(days=1, seconds=2, microseconds=3), DAY + 2 * SECOND + 3),
        (timedelta(0), 0),
    ],
)
def test_a_span_is_read(span: str | timedelta, length_us: int) -> None:
    assert microseconds("join", "grace=", span) == length_us


@pytest.mark.parametrize(
    "span",
    [
        *(
            "",
            " ",
            "5",
            "min",
            "5 months",
            "5 minss",
            "1 year",
            "5 m",
            "5 S",
            "5 Min",
            "1.5 s",
            "1e3 s",
        ),
        *(
            "1,000 s",
            "- 5 s",
            "--5 s",
            "5 min 30 s",
            "5 min;",
            "five s",
            "5 s\n5 s",
            "INTERVAL 5 s",
        ),
    ],
)
def test_what_is_no_span_is_refused(span: Any) -> None:
    with pytest.raises(PlanError, match="is not a span of time") as refused:
        microseconds("within", "before=", span, negative=True)
    assert refused.value.operator == "within"
    assert f"before={span!r}" in str(refused.value)


@pytest.mark.parametrize("span", ["-5 s", "-1us", timedelta(microseconds=-1)])
def test_a_negative_span_is_for_windows_only(span: str | timedelta) -> None:
    with pytest.raises(PlanError, match="is negative"):
        microseconds("join", "grace=", span)
    assert microseconds("within", "before=", span, negative=True) in (-5 * SECOND, -1)


@pytest.mark.parametrize(
    ("length_us", "text"),
    [
        (0, "0 s"),
        (1, "1 us"),
        (1_500, "1500 us"),
        (2_000, "2 ms"),
        (SECOND, "1 s"),
        (90 * SECOND, "90 s"),
        (MINUTE, "1 min"),
        (HOUR, "1 hour"),
        (36 * HOUR, "36 hours"),
        (DAY, "1 day"),
        (14 * DAY, "14 days"),
        (-DAY, "-1 day"),
        (-2 * HOUR, "-2 hours"),
    ],
)
def test_a_span_is_written_in_its_largest_whole_unit(length_us: int, text: str) -> None:
    assert span_as_text(length_us) == text


@given(st.integers(-(10**5), 10**5), st.sampled_from([1, 1_000, SECOND, MINUTE, HOUR, DAY]))
def test_what_is_written_is_read_back(count: int, unit_us: int) -> None:
    span_us = count * unit_us
    assert microseconds("within", "after=", span_as_text(span_us), negative=True) == span_us
