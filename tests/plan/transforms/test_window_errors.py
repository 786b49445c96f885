"""Mistakes in aggregates and windowed tables are named when the plan is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import dovetail as dt
from dovetail import testing
from dovetail.testing import Driver

NUMBER, TEXT, MOMENT = pa.int64(), pa.string(), pa.timestamp("us", "UTC")
clicks = testing.stream(
    "clicks",
    key="id",
    schema={"id": NUMBER, "page": TEXT, "at": MOMENT, "n": NUMBER, "tags": pa.map_(TEXT, NUMBER)},
)
views = testing.stream("views", key="id", schema={"id": NUMBER, "page": TEXT})
asks = testing.stream("asks", key="page", schema={"page": TEXT, "at": MOMENT, "n": NUMBER})
pages = testing.table("pages", key="page", schema={"page": TEXT, "at": MOMENT, "title": TEXT})
old, new = (
    testing.table(name, key="page", schema={"page": TEXT, name: TEXT}, versioned="1 hour")
    for name in ("old", "new")
)
starts = testing.stream("starts", key="id", schema={"id": NUMBER, "window_start": TEXT})
HOUR = dt.windows.tumbling("1 hour")
by_page = clicks.group_by("page")
clicked = by_page.window(HOUR).agg(clicks=dt.count())
viewed = views.group_by("page").window(HOUR).agg(views=dt.count())
sessions = by_page.window(dt.windows.session("1 hour", retention="9 days")).agg(clicks=dt.count())
sliding = by_page.window(dt.windows.sliding("1 hour", retention="9 days")).agg(clicks=dt.count())
retracting = clicks.join(
    views, within=dt.within(before="1 min"), how="left", unmatched="retract", select=["at"]
)
OF_CLICKS = "aggregate of clicks by page"

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    # Windows.
    "no length": (
        lambda: dt.windows.tumbling("0 s"),
        r"^tumbling: the windows have no length. Give a span above zero",
    ),
    "no gap": (
        lambda: dt.windows.session("0 s"),
        r"^session: the windows have no length. Give a span above zero",
    ),
    "a gap below zero": (
        lambda: dt.windows.session("-1 s"),
        r"^session: gap='-1 s' is negative. Use",
    ),
    "no advance": (
        lambda: dt.windows.hopping("1 hour", advance="0 s"),
        (
            r"^hopping: advance='0 s' would leave times without a window. Use more than zero and "
            "at most the size, 1 hour"
        ),
    ),
    "an advance beyond the size": (
        lambda: dt.windows.hopping("1 hour", advance="2 hours"),
        r"^hopping: advance='2 hours' would leave times without a window",
    ),
    "a grace below zero": (
        lambda: dt.windows.tumbling("1 hour", grace="-1 s"),
        r"^tumbling: grace='-1 s' is negative. Use zero or more",
    ),
    "a retention that is too short": (
        lambda: dt.windows.tumbling("1 hour", grace="1 hour", retention="1 hour"),
        r"^tumbling: retention='1 hour' forgets windows that still change. Use at least 2 hours",
    ),
    # Groups.
    "no group": (
        lambda: clicks.group_by().agg(n=dt.count()),
        r"group_by\(\) names no column. Name at least one",
    ),
    "an unknown group": (
        lambda: pages.group_by("titel").agg(n=dt.count()),
        (
            r"^aggregate of pages by titel: group_by\(\) names an unknown column 'titel'. Known in "
            "pages are page, at, title"
        ),
    ),
    "a group twice": (
        lambda: clicks.group_by("page", "page").agg(n=dt.count()),
        r"column 'page' occurs twice. Name it once in group_by\(\)",
    ),
    "a group that is no key": (
        lambda: clicks.group_by("tags").agg(n=dt.count()),
        r"aggregate of clicks by tags: key column 'tags' of type map<string,bigint> cannot be",
    ),
    "a group named as the window is": (
        lambda: starts.group_by("window_start").window(HOUR).agg(n=dt.count()),
        r"by window_start: column 'window_start' occurs twice. Give the column .* by rename\(\)",
    ),
    "no aggregate": (by_page.agg, rf"{OF_CLICKS}: agg\(\) has no aggregate. Give one"),
    "an aggregate of an unknown column": (
        lambda: by_page.agg(n=dt.sum("m")),
        rf"{OF_CLICKS}: n=sum\(m\) names an unknown column 'm'. Known are",
    ),
    "an aggregate named as a changelog's column": (
        lambda: by_page.agg(_change=dt.count()),
        r"column '_change' has a name that changelogs use themselves. Use another",
    ),
    "an aggregate named as the group is": (
        lambda: by_page.agg(Page=dt.count()),
        r"column 'Page' occurs twice. Give the aggregate another name",
    ),
    "an aggregate named as the window is": (
        lambda: by_page.window(HOUR).agg(window_end=dt.count()),
        r"column 'window_end' occurs twice. Give the aggregate another name",
    ),
    "groups of corrections": (
        lambda: old.join(new, late="history").group_by("old").agg(n=dt.count()),
        r"emits corrections of its past \(late='history'\). Join its inputs with late='ignore'",
    ),
    "groups of rows that are withdrawn": (
        lambda: retracting.group_by("at").agg(n=dt.count()),
        r"withdraws rows \(unmatched='retract'\), which a stream's reader cannot. Use",
    ),
    # What a windowed table is read as.
    "the last change of a stream of windows": (
        lambda: Driver(clicked.to_stream(), emit="batch"),
        r"emit='batch' keeps a key's last change, which only a table's current rows have. Use",
    ),
    "the last change of a stream beside windows": (
        lambda: Driver(asks.join(clicked, how="left", window_of="at"), emit="batch"),
        r"emit='batch' keeps a key's last change",
    ),
    "an unknown key": (
        lambda: clicked.to_stream(key="pge"),
        (
            rf"^to_stream of {OF_CLICKS}: key= names 'pge', which select= leaves out. Known are "
            "page, window_start, window_end, clicks"
        ),
    ),
    "a key that is left out": (
        lambda: clicked.to_stream(key="page", select=["clicks"]),
        r"key= names 'page', which select= leaves out. Known are clicks",
    ),
    "no key": (
        lambda: clicked.to_stream(key=[]),
        r"key= names no column. Name at least one, or leave it out",
    ),
    "a key twice": (
        lambda: clicked.to_stream(key=["page", "page"]),
        r"column 'page' occurs twice. Name it once in key=",
    ),
    "an unknown column selected": (
        lambda: clicked.to_stream(select=["page", "n"]),
        r"select= names an unknown column 'n'. Known are page, window_start, window_end, clicks",
    ),
    "a column twice": (
        lambda: clicked.to_stream(select=["page", "clicks", "clicks"]),
        r"column 'clicks' occurs twice. Name each once, or give them names in a mapping",
    ),
    "two columns that differ by case": (
        lambda: clicked.to_stream(select={"page": "page", "c": "clicks", "C": "clicks"}),
        r"column 'C' occurs twice. Give each its own name in select=",
    ),
    "a changelog's column": (
        lambda: clicked.to_stream(select={"page": "page", "_hash": "clicks"}),
        r"column '_hash' has a name that changelogs use themselves. Give",
    ),
    # Joins.
    "other windows": (
        lambda: clicked.join(
            views.group_by("page").window(dt.windows.tumbling("1 day")).agg(v=dt.count())
        ),
        r"the sides have different windows: tumbling, 1 hour, grace 0 s; tumbling, 1 day, grace",
    ),
    "windows of another kind": (
        lambda: clicked.join(sessions, select=["left.clicks"]),
        r"different windows: .*; session, gap 1 hour, grace 0 s. Aggregate both over the same",
    ),
    "another key": (
        lambda: clicked.join(views.group_by("id").window(HOUR).agg(v=dt.count())),
        (
            r"the key of aggregate of clicks by page is \(page string\), of aggregate of views by "
            r"id \(id bigint\). Name in on= the columns of aggregate of clicks by page that equal"
        ),
    ),
    "right": (
        lambda: clicked.join(viewed, how="right"),
        (
            r"^right join of .*: how='right' is not a join of windowed tables on the same window. "
            "Use 'inner' or 'left' or 'outer'"
        ),
    ),
    "both have the column": (
        lambda: clicked.join(clicked),
        r"both sides have a value column 'clicks'. Choose and rename with select=",
    ),
    "a shift that is no span": (
        lambda: clicked.join(viewed, how="left", shift="last week"),
        r"shift='last week' is not a span of time. Write it as",
    ),
    "an inner join with a shift": (
        lambda: clicked.join(viewed, how="inner", shift="-1 hour"),
        r"how='inner' is not a join of these. Use 'left', and leave out .* with a filter",
    ),
    "a shift between windows": (
        lambda: clicked.join(viewed, how="left", shift="-90 min"),
        r"shift=90 min falls between windows that begin every 1 hour. Shift by a multiple",
    ),
    "a shift of sessions": (
        lambda: sessions.join(sessions, how="left", shift="1 hour", select=["left.clicks"]),
        r"session windows have no fixed places to shift to. Use fixed windows",
    ),
    "a shift of sliding windows": (
        lambda: sliding.join(sliding, how="left", shift="1 hour", select=["left.clicks"]),
        r"sliding windows have no fixed places to shift to",
    ),
    "a shift beyond the retention": (
        lambda: clicked.join(viewed, how="left", shift="-7 days"),
        (
            r"the right side keeps windows for 1 hour, and they are asked for after 169 hours. "
            "Give its windows retention='169 hours' or more"
        ),
    ),
    "a shift beyond the left side's retention": (
        lambda: clicked.join(viewed, how="left", shift="2 hours"),
        r"the left side keeps windows for 1 hour, and they are asked for after 3 hours",
    ),
    "a grace beyond the retention": (
        lambda: (
            by_page.window(dt.windows.tumbling("1 hour", grace="1 day"))
            .agg(clicks=dt.count())
            .join(viewed)
        ),
        r"the right side keeps windows for 1 hour, and they are asked for after 25 hours",
    ),
    "an inner join with a table": (
        lambda: clicked.join(pages, how="inner"),
        r"^inner join of aggregate of clicks by page and pages: how='inner' is not a join of these",
    ),
    "a shift with a table": (
        lambda: clicked.join(pages, how="left", shift="1 hour"),
        r"shift= is for two windowed tables. Leave it out, or say with window_of=",
    ),
    "no window to look in": (
        lambda: asks.join(clicked, how="left"),
        (
            r"^left join of asks and .*: nothing says which window a row looks in. window_of= is "
            "missing. Give a timestamp"
        ),
    ),
    "an unknown window_of": (
        lambda: asks.join(clicked, how="left", window_of="att"),
        r"window_of= names an unknown column 'att'. Known in asks are page, at, n",
    ),
    "a window_of of another type": (
        lambda: pages.join(clicked, how="left", window_of="title"),
        r"window_of= is of type string. Give a timestamp, the start of a window",
    ),
    "window_of of a session": (
        lambda: asks.join(sessions, how="left", window_of="at"),
        r"session windows begin where records are, so no row can name one. Use tumbling or hopping",
    ),
    "window_of of a windowed table": (
        lambda: window_join_of(clicked, viewed),
        r"window_of= is for a left side without windows. Leave it out, or use shift=",
    ),
    "window_of with a table": (
        lambda: asks.join(pages, how="left", window_of="at"),
        r"^join: window_of= is for a windowed table. Leave it out",
    ),
    "window_of of two tables": (
        lambda: pages.join(old, window_of="at"),
        r"^join: window_of= is for a windowed table. Leave it out",
    ),
    "a stream of another key": (
        lambda: clicks.join(clicked, how="left", window_of="at"),
        r"the key of clicks is \(id bigint\), of aggregate of clicks by page \(page string\)",
    ),
    "an inner join of a stream": (
        lambda: asks.join(clicked, how="inner", window_of="at"),
        r"^inner join of asks and .*: how='inner' is not a join of these. Use 'left'",
    ),
    "another join's argument": (
        lambda: asks.join(clicked, how="left", window_of="at", grace="1 s"),
        r"^join: grace= does not apply to a windowed table. Leave it out",
    ),
    "unmatched": (
        lambda: asks.join(clicked, how="left", window_of="at", unmatched="eager"),
        r"^join: unmatched= does not apply to a windowed table. Leave it out",
    ),
    "lookups": (
        lambda: pages.join(clicked, how="left", window_of="at", delta_join=dt.delta_join()),
        r"^join: delta_join= does not apply to a windowed table. Leave it out",
    ),
}


def window_join_of(left: dt.WindowedTable, right: dt.WindowedTable) -> Any:
    """``WindowedTable.join`` itself has no ``window_of``."""
    from dovetail.plan.joins.join_call import JoinCall
    from dovetail.plan.joins.window_join import window_join

    return window_join(JoinCall(left.plan, right.plan, None, "left", None), window_of="clicks")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(dt.errors.PlanError, match=message):
        make()


EXPRESSIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "window_of of another type": (
        lambda: asks.join(clicked, how="left", window_of=F.col("n") + 1),
        r"window_of= is of type bigint. Give a timestamp",
    ),
    "window_of of an unknown column": (
        lambda: asks.join(clicked, how="left", window_of=F.date_trunc("hour", "att")),
        r"an expression in window_of= does not resolve: .*`att`.* of asks: page, at, n",
    ),
    "window_of in the driver": (
        lambda: Driver(asks.join(clicked, how="left", window_of=F.date_trunc("hour", "at"))),
        r"window_of= has a Spark expression, and the driver has no session",
    ),
    "an expression that does not resolve": (
        lambda: clicked.to_stream(select=["page", F.upper("pge")]),
        r"an expression in select= does not resolve: .*`pge`.* page, window_start, window_end",
    ),
    "final of what computes": (
        lambda: Driver(
            clicked.join(pages, how="left", select={"t": F.upper("right.title")}).to_table(
                windows="on_close"
            )
        ),
        r"select= computes, which goes with windows=.on_change. only. Name columns only, and",
    ),
    "a join of what computes": (
        lambda: Driver(
            clicked.join(pages, how="left", select={"t": F.upper("right.title")})
            .join(viewed)
            .to_table()
        ),
        r"select= computes, and another join of windows reads the result. Name columns only",
    ),
}


@pytest.mark.parametrize("mistake", EXPRESSIONS)
def test_a_mistake_in_an_expression_is_named(mistake: str, spark: Any) -> None:
    make, message = EXPRESSIONS[mistake]
    with pytest.raises(dt.errors.PlanError, match=message):
        make()


OTHERS = {
    "another size": dt.windows.tumbling("2 hours"),
    "another grace": dt.windows.tumbling("1 hour", grace="1 s"),
    "another retention": dt.windows.tumbling("1 hour", retention="2 hours"),
    "another kind": dt.windows.session("1 hour"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_other_windows_is_refused(other: str) -> None:
    driver = Driver(clicked.to_table())
    driver.pipe(clicks, {"id": 1, "page": "a"}, timestamp=1)
    topology = by_page.window(OTHERS[other]).agg(clicks=dt.count()).to_table()
    with pytest.raises(dt.errors.CheckpointError, match="topology"):
        Driver.restore(topology, driver.snapshot())


def test_a_checkpoint_of_another_aggregate_is_refused() -> None:
    driver = Driver(by_page.agg(n=dt.sum("n")))
    driver.pipe(clicks, {"id": 1, "page": "a", "n": 1}, timestamp=1)
    with pytest.raises(dt.errors.CheckpointError, match="topology"):
        Driver.restore(by_page.agg(n=dt.max("n")), driver.snapshot())


def test_what_no_group_takes_is_counted() -> None:
    """A null among the columns that a stream is grouped by; a record without a value."""
    driver = Driver(clicked.to_table())
    driver.pipe(clicks, {"id": 1, "page": None}, timestamp=1)
    driver.pipe(clicks, {"id": 2, "page": "a"}, timestamp=1, deleted=True)
    assert driver.dropped == 2
