"""Timelines of a driver: what stands where, as text and as SVG."""

from __future__ import annotations

from textwrap import dedent
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

import dovetail as dt
from dovetail.testing import Driver, stream, table, timeline

MINUTE, HOUR = 60_000_000, 3_600_000_000
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def orders() -> dt.Table:
    return table("orders", key="id", schema={"id": pa.int64(), "amount": pa.int64()})


@pytest.fixture
def payments() -> dt.Table:
    return table("payments", key="id", schema={"id": pa.int64(), "paid": pa.int64()})


@pytest.fixture
def views() -> dt.Stream:
    return stream("views", key="user", schema={"user": pa.string(), "page": pa.string()})


def drawn(driver: Driver, text: str, **options: int) -> None:
    assert timeline(driver, **options).text == dedent(text).strip("\n")


def test_changes_stand_under_the_record_that_caused_them(
    orders: dt.Table, payments: dt.Table
) -> None:
    driver = Driver(orders.join(payments, how="left", name="due"))
    driver.pipe(orders, {"id": 1, "amount": 40}, timestamp=1)
    driver.pipe(payments, {"id": 1, "paid": 15}, timestamp=2)
    with driver.batch():
        driver.pipe(orders, [{"id": 2, "amount": 7}, {"id": 3}], timestamp=4)
        driver.pipe(payments, {"id": 2, "paid": 7}, timestamp=3)
    driver.pipe(orders, {"id": 1}, timestamp=5, deleted=True)
    driver.read()  # what is read is drawn, too
    drawn(
        driver,
        """
        batch    | 1             | 2           | 3
        time     | 1             | 2           | 4        4           3
        orders   | + 1: 40       |             | + 2: 7   + 3: null
        payments |               | + 1: 15     |                      + 2: 7
        due      | + 1: 40, null | + 1: 40, 15 |                               + 2: 7, null @4
                 |               |             |                               + 3: null, null @4
                 |               |             |                               + 2: 7, 7 @4

        batch    | 4
        time     | 5
        orders   | x 1
        payments |
        due      | x 1
        """,
        width=90,
    )


def test_earlier_records_are_left_out_with_a_word(orders: dt.Table) -> None:
    driver = Driver(orders)
    for n in range(5):
        driver.pipe(orders, [{"id": n}, {"id": n + 10}], timestamp=n)
    text = """
    left out: 4 of 5 micro-batches, 8 of 10 records

    batch  | 5
    time   | 4           4
    orders | + 4: null   + 14: null
    orders |                          + 4: null @4
           |                          + 14: null @4
    """
    drawn(driver, text, limit=2)
    drawn(driver, text, limit=3)
    assert timeline(driver, limit=1).text.splitlines()[:2] == [
        "left out: 4 of 5 micro-batches, 8 of 10 records",
        "left out: 1 of 2 records of micro-batch 5",
    ]
    driver.pipe(orders, [{"id": n} for n in range(30)], timestamp=9)
    assert "+ 22 more" in timeline(driver, limit=1).text


def test_what_has_no_record_is_drawn_as_a_clock(orders: dt.Table, payments: dt.Table) -> None:
    driver = Driver(orders.join(payments, how="left", align="5 s", name="due"))
    drawn(driver, "nothing has been piped in\n")
    driver.pipe(orders, {"id": None}, timestamp=None)
    driver.pipe(orders, {"id": 1}, timestamp=1)
    driver.advance_wall_clock("5 s")
    driver.advance_wall_clock("0 s")
    driver.advance_stream_time(7)
    driver.end_input()
    drawn(
        driver,
        """
        batch    | 1            | 2         | 3                  | 4          | 5         | 6
        time     | no time      | 1         | clock +5 s         | no records | time to 7 | end of input
        orders   | + null: null | + 1: null |                    |            |           |
        payments |              |           |                    |            |           |
        due      |              |           | + 1: null, null @1 |            |           |
        """,  # noqa: E501
        width=120,
    )


def test_windows_are_open_and_then_in_their_grace_period(views: dt.Stream) -> None:
    windows = dt.windows.tumbling("10 min", grace="5 min")
    counts = views.group_by("page").window(windows).agg(n=dt.count())
    driver = Driver(counts.to_table(windows="on_close"))
    for minute in (1, 9, 11, 4, 15, 3):
        driver.pipe(views, {"user": "a", "page": "b"}, timestamp=minute * MINUTE)
    driver.advance_stream_time(HOUR)
    drawn(
        driver,
        """
        batch                      | 1        | 2         | 3         | 4         | 5                    | 6
        time                       | 60000000 | 540000000 | 660000000 | 240000000 | 900000000            | 180000000
        views                      | + a: b   | + a: b    | + a: b    | + a: b    | + a: b               | + a: b
        aggregate of views by page |          |           |           |           | + b, 0: 3 @540000000 |
        0, 10 min                  | ======== | ========= | --------- | --------- |                      |
        600000000, 10 min          |          |           | ========= | ========= | ==================== | =========

        batch                      | 7
        time                       | time to 3600000000
        views                      |
        aggregate of views by page | + b, 600000000: 2 @900000000
        0, 10 min                  |
        600000000, 10 min          |
        """,  # noqa: E501
        width=120,
    )


def test_sessions_are_drawn_as_the_result_has_them(views: dt.Stream) -> None:
    sessions = views.group_by("page").window(dt.windows.session("20 min")).agg(n=dt.count())
    driver = Driver(sessions.to_table(windows="on_change"))
    for minute in (0, 10, 50):
        driver.pipe(views, {"user": "a", "page": "b"}, timestamp=minute * MINUTE)
    drawn(
        driver,
        """
        batch                      | 1         | 2         | 3
        time                       | 0         | 600000000 | 3000000000
        views                      | + a: b    | + a: b    | + a: b
        aggregate of views by page | + b, 0: 1 | x b, 0 @0 | + b, 3000000000: 1
                                   |           | + b, 0: 2 |
        0, 10 min                  | ========= | ========= |
        3000000000, 0 s            |           |           | ==================
        """,
    )


def test_the_sessions_of_each_aggregation_are_its_own(views: dt.Stream) -> None:
    clicks = stream("clicks", key="user", schema={"user": pa.string(), "page": pa.string()})
    of_views = views.group_by("page").window(dt.windows.session("20 min")).agg(n=dt.count())
    of_clicks = clicks.group_by("page").window(dt.windows.session("5 min")).agg(n=dt.count())
    driver = Driver(of_views.to_table(windows="on_change"), of_clicks.to_table(windows="on_change"))
    driver.pipe(clicks, {"user": "a", "page": "b"}, timestamp=9)
    driver.pipe(views, {"user": "a", "page": "b"}, timestamp=10)
    driver.pipe(clicks, {"user": "a", "page": "b"}, timestamp=11)
    drawn(
        driver,
        """
        batch                       | 1         | 2          | 3
        time                        | 9         | 10         | 11
        views                       |           | + a: b     |
        clicks                      | + a: b    |            | + a: b
        aggregate of views by page  |           | + b, 10: 1 |
        aggregate of clicks by page | + b, 9: 1 |            | x b, 9 @9
                                    |           |            | + b, 9: 2
        9, 2 us                     | ========= | ========== | =========
        10, 0 s                     |           | ========== | =========
        """,
    )


def test_sessions_of_sessions_are_not_drawn_for_those_within(views: dt.Stream) -> None:
    inner = views.group_by("page").window(dt.windows.session("5 min")).agg(n=dt.count())
    records = inner.to_stream(windows="on_change")
    outer = records.group_by("page").window(dt.windows.session("20 min")).agg(n=dt.count())
    driver = Driver(outer.to_table(windows="on_change"))
    driver.pipe(views, {"user": "a", "page": "b"}, timestamp=1)
    name = "aggregate of aggregate of views by page by page"
    assert [bar.title for bar in timeline(driver).layout.bars] == [
        f"{name}, session, gap 20 min, grace 0 s: window 1 to 1, not closed"
    ]


def test_windows_without_room_are_left_out_with_a_word(views: dt.Stream) -> None:
    counts = views.group_by("page").window(dt.windows.tumbling("1 min")).agg(n=dt.count())
    driver = Driver(counts.to_table(windows="on_close"))
    rows = [{"user": "a", "page": "b"}] * 20
    driver.pipe(views, rows, timestamp=[n * MINUTE for n in range(20)])
    assert timeline(driver).text.startswith("left out: 8 of 20 windows\n")
    assert len(timeline(driver).layout.bars) == 12


def test_a_restored_driver_begins_anew(orders: dt.Table) -> None:
    driver = Driver(orders)
    driver.pipe(orders, {"id": 1}, timestamp=1)
    restored = Driver.restore(orders, driver.snapshot())
    restored.pipe(orders, {"id": 2}, timestamp=1)
    drawn(restored, "batch  | 1\ntime   | 1\norders | + 2: null\norders | + 2: null")


def test_a_batch_that_fails_is_not_drawn(orders: dt.Table) -> None:
    driver = Driver(orders)
    with pytest.raises(dt.errors.DataError), driver.batch():
        driver.pipe(orders, [{"id": 1}, {"nope": 1}], timestamp=1)
    assert driver.micro_batches == []


def test_the_svg_has_a_mark_with_a_title_for_each_record_and_change(views: dt.Stream) -> None:
    counts = views.group_by("page").window(dt.windows.tumbling("10 min")).agg(n=dt.count())
    driver = Driver(counts.to_table(windows="on_change"))
    driver.pipe(views, {"user": '<"&\x00>', "page": "é" * 40}, timestamp=1)
    driver.pipe(views, {"user": "a", "page": "b"}, timestamp=HOUR)
    drawing = timeline(driver, limit=2)
    root = ET.fromstring(drawing.svg)
    name = "aggregate of views by page"
    marks = [g for g in root.iter(f"{SVG}g") if g.find(f"{SVG}circle") is not None]
    assert [mark.findtext(f"{SVG}title") for mark in marks] == [
        'views: user="<\\"&\\u0000>", page=' + "é" * 40 + ", time 1",
        "views: user=a, page=b, time 3600000000",
        f"{name}: page={'é' * 40}, window_start=0, window_end=600000000, n=1, time 1",
        f"{name}: page=b, window_start={HOUR}, window_end=4200000000, n=1, time {HOUR}",
    ]
    bars = [g.findtext(f"{SVG}title") for g in root.iter(f"{SVG}g") if g not in marks]
    windows = f"{name}, tumbling, 10 min, grace 0 s: window"
    assert bars == [
        f"{windows} 0 to 600000000, closed",
        f"{windows} 3600000000 to 4200000000, not closed",
    ]
    assert "prefers-color-scheme: dark" in drawing.svg
    assert drawing.svg in drawing._repr_html_()
    assert repr(drawing) == str(drawing) == drawing.text


def test_a_deleted_key_is_a_cross_in_the_svg(orders: dt.Table) -> None:
    driver = Driver(orders)
    driver.pipe(orders, {"id": 1}, timestamp=1, deleted=True)
    root = ET.fromstring(timeline(driver).svg)
    crosses = [g for g in root.iter(f"{SVG}g") if g.find(f"{SVG}path") is not None]
    titles = [cross.findtext(f"{SVG}title") for cross in crosses]
    assert titles == ["orders: id=1, deleted, time 1"] * 2
    ET.fromstring(timeline(Driver(orders)).svg)
