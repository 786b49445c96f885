"""The demo on a few days of flights: its check passes, and would not pass for a wrong table."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import Mock

import polars as pl
import pytest
from pyspark.sql import SparkSession

from examples.flights import __main__ as command
from examples.flights import check
from examples.flights.demo import check_all, run


@pytest.fixture(scope="module")
def demo(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool, str]:
    """The directory of a demo that has run, whether its check passed, and what it printed."""
    directory = tmp_path_factory.mktemp("demo")
    with redirect_stdout(io.StringIO()) as out:
        equal = run(spark, directory, rows=3000, slices=4)
    return directory, equal, out.getvalue()


def test_streamed_tables_equal_the_joins_of_the_finished_tables(
    demo: tuple[Path, bool, str],
) -> None:
    _, equal, printed = demo
    assert equal
    assert "check: equal (6,527 rows)" in printed
    assert "The first cancellation: 2013-01-01 B6125 JFK" in printed


def test_changelogs_are_cut_in_order_of_arrival(demo: tuple[Path, bool, str]) -> None:
    directory, _, _ = demo
    for table in (directory / "history").iterdir():
        files = sorted(table.iterdir(), key=lambda file: file.stat().st_mtime)
        assert len(files) == 4
        offsets = pl.concat([pl.read_parquet(file) for file in files])["offset"]
        assert offsets.to_list() == list(range(len(offsets)))


def test_check_shows_the_rows_that_differ(
    demo: tuple[Path, bool, str], spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, _, _ = demo
    newest = max((directory / "history" / "actuals").iterdir())
    changes = pl.read_parquet(newest)
    last = pl.int_range(pl.len()) == pl.len() - 1
    falsified = changes.with_columns(arr_delay=pl.when(last).then(4711).otherwise("arr_delay"))
    falsified.write_parquet(newest)
    try:
        assert not check_all(spark, directory)
    finally:
        changes.write_parquet(newest)
    printed = capsys.readouterr().out
    assert "check: NOT equal (6,527 rows)" in printed
    assert "4,711" in printed
    assert printed.count(changes["flight_id"][-1]) == 2


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
