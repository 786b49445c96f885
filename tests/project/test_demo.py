"""The demo on a few days of flights: its check passes, and would not pass for a wrong table."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pytest
from pictures import refuse_another_look, see
from pyspark.sql import SparkSession

from examples.flights import __main__ as command
from examples.flights import check
from examples.flights import demo as flights
from examples.flights.demo import check_all, run
from examples.flights.joins import QUERIES

SLICES = 9


@pytest.fixture(scope="module")
def demo(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool, str]:
    """The directory of a demo that has run, whether its check passed, and what it printed."""
    directory = tmp_path_factory.mktemp("demo")
    with redirect_stdout(io.StringIO()) as out:
        page = directory / "flights.html"
        equal = run(spark, directory, rows=3000, slices=SLICES, page_path=page)
    return directory, equal, out.getvalue()


@pytest.fixture(scope="module")
def changes(demo: Any, spark: SparkSession) -> Iterator[Callable[[str], pl.DataFrame]]:
    """The changelog of each query, read once."""
    directory, _, _ = demo
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flights, "changes", cache(flights.changes))
        yield partial(flights.changes, spark, directory)


def test_what_was_streamed_equals_the_joins_of_the_whole_inputs(
    demo: tuple[Path, bool, str],
) -> None:
    _, equal, printed = demo
    assert equal
    assert "check: equal (15,275 rows)" in printed
    assert "The first cancellation: 2013-01-01 B6125 JFK" in printed


def test_the_report_is_a_page_of_one_file(demo: tuple[Path, bool, str]) -> None:
    directory, _, printed = demo
    page = directory / "flights.html"
    assert printed.endswith(f"\nthe report: {page.resolve()}\n")
    text = page.read_text("utf-8")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert text.count("<svg ") == text.count("</svg>") == 5
    (flight,) = re.findall("one change a micro-batch: (.+)", printed)
    assert f"The life of flight {flight.strip()}" in text
    history = text.partition("The life of flight")[2].partition("</table>")[0]
    changes_shown = history.count("<tr>") - 1
    assert (
        changes_shown
        == printed.partition("one change a micro-batch")[2].partition("\n\n")[0].strip().count("\n")
        - 1
    )
    for query in QUERIES:
        assert f">{query.name}</td>" in text


def test_the_report_in_a_browser(browser: Any, demo: tuple[Path, bool, str]) -> None:
    directory, _, _ = demo
    see(browser, 390, 844)
    browser.get((directory / "flights.html").as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    see(browser, 1280, 1100, scheme="dark")
    background = "return getComputedStyle(document.body).backgroundColor"
    assert browser.execute_script(background) == "rgb(20, 24, 28)"
    see(browser, 1280, 1100)
    refuse_another_look(browser, "demo.png")
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_departures_find_the_weather_and_their_landings(
    demo: tuple[Path, bool, str], changes: Callable[[str], pl.DataFrame]
) -> None:
    directory, _, _ = demo
    departures = pl.read_parquet(directory / "history" / "departures" / "*.parquet")
    weather = changes("weather")
    assert weather["visib"].null_count() == 28  # in the hours that nobody observed
    assert weather["_timestamp"].max() <= departures["time"].max() - timedelta(hours=6)
    assert len(departures) - len(weather) == 206  # those of the last six hours
    trips = changes("trips")
    assert trips["air_time"].null_count() == 18  # diverted flights
    assert len(trips) == len(departures)


def test_a_flight_changes_with_its_plane_its_airline_and_its_destination(
    demo: tuple[Path, bool, str], changes: Callable[[str], pl.DataFrame]
) -> None:
    _, _, printed = demo
    network = changes("network").sort("_position")
    rows = network.filter(pl.col("_change") == "upsert")
    for column in ("manufacturer", "seats", "name", "destination"):
        known = pl.col(column).is_not_null()
        learned = rows.group_by("flight_id").agg((~known).any() & known.any())
        assert learned[column].sum() > 100, column
    # An airport that was withdrawn is not known until it is entered again.
    destination = pl.col("destination")
    before = destination.shift(1).over("flight_id")
    lost = rows.filter(destination.is_null() & before.is_not_null())
    assert lost["dest"].n_unique() > 5
    last = rows.unique("flight_id", keep="last", maintain_order=True)
    assert last.join(lost, on="flight_id", how="semi")["destination"].null_count() == 0
    assert "The row that changed most, one change a micro-batch" in printed


def test_landings_and_the_weather_arrive_late_and_out_of_order(
    demo: tuple[Path, bool, str],
) -> None:
    directory, _, _ = demo
    for name in ("landings", "weather"):
        log = pl.read_parquet(directory / "history" / name / "*.parquet").sort("offset")
        assert not log["time"].is_sorted()
    assert log["deleted"].sum() == 2


def test_logs_are_cut_in_order_of_arrival(demo: tuple[Path, bool, str]) -> None:
    directory, _, _ = demo
    for table in filter(Path.is_dir, (directory / "history").iterdir()):
        files = sorted(table.iterdir(), key=lambda file: file.stat().st_mtime)
        assert len(files) == SLICES
        offsets = pl.concat([pl.read_parquet(file) for file in files])["offset"]
        assert offsets.to_list() == list(range(len(offsets)))


@pytest.mark.usefixtures("changes")
def test_check_shows_the_rows_that_differ(
    demo: tuple[Path, bool, str], spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, _, _ = demo
    newest = max((directory / "history" / "actuals").iterdir())
    log = pl.read_parquet(newest)
    last = pl.int_range(pl.len()) == pl.len() - 1
    falsified = log.with_columns(arr_delay=pl.when(last).then(4711).otherwise("arr_delay"))
    falsified.write_parquet(newest)
    try:
        assert not check_all(spark, directory)
    finally:
        log.write_parquet(newest)
    printed = capsys.readouterr().out
    assert "check: NOT equal (15,275 rows)" in printed
    assert "4,711" in printed
    assert printed.count("the first differing rows") == 2  # in flights and in network
    assert printed.count(log["flight_id"][-1]) == 4


@pytest.mark.usefixtures("changes")
@pytest.mark.parametrize(
    ("columns", "queries"),
    [
        (
            {"weather": "visib", "landings": "air_time", "airports": "altitude"},
            ["weather", "trips", "network"],
        ),
        ({"planes": "seats"}, ["network", "fleet"]),
    ],
)
def test_check_shows_the_streamed_rows_that_differ(
    demo: tuple[Path, bool, str],
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    columns: dict[str, str],
    queries: list[str],
) -> None:
    """``columns``: one of each log, falsified in its newest records."""
    directory, _, _ = demo
    logs = {}
    for log, column in columns.items():
        newest = max((directory / "history" / log).iterdir())
        logs[newest] = records = pl.read_parquet(newest)
        falsified = pl.lit(4711, records.schema[column]).alias(column)
        records.with_columns(falsified).write_parquet(newest)
    try:
        assert not check_all(spark, directory)
    finally:
        for newest, records in logs.items():
            records.write_parquet(newest)
    printed = capsys.readouterr().out
    assert "4,711" in printed
    assert printed.count("the first differing rows") == len(queries)
    for query in queries:
        assert f"{query}: the first differing rows" in printed


def test_differences_count_rows_and_compare_nulls() -> None:
    expected = pl.DataFrame({"k": ["a", "b", "c"], "v": [1, None, 3]})
    streamed = pl.DataFrame({"k": ["a", "b", "b", "d"], "v": [1, None, None, 3]})
    assert check.differences(streamed, expected).rows() == [
        ("streamed", "b", None),
        ("expected", "c", 3),
        ("streamed", "d", 3),
    ]
    assert check.differences(expected, expected[::-1]).is_empty()


@pytest.mark.parametrize(("equal", "code"), [(True, 0), (False, 1)])
def test_exit_code_says_whether_the_check_passed(
    monkeypatch: pytest.MonkeyPatch, equal: bool, code: int
) -> None:
    monkeypatch.setattr(command, "start_spark", Mock())
    monkeypatch.setattr(command, "run", Mock(return_value=equal))
    monkeypatch.setattr("sys.argv", ["flights"])
    assert command.main() == code
