"""Long work shows a line where someone looks, and none elsewhere."""

from __future__ import annotations

import io
import re
import time

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from dovetail.platform import progress_bar as bars
from dovetail.platform.progress_bar import ASKED, progress_bar


def drawn(spark: SparkSession, *, terminal: bool, task_s: float = 0) -> str:
    """What is drawn while Spark runs eight tasks of so many seconds, two at a time."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, color_system=None)
    slow = F.udf(lambda n: time.sleep(task_s) or n)
    with progress_bar(spark, "orders [8]", console):
        assert spark.range(8, numPartitions=8).select(slow("id")).collect()
    return file.getvalue()


def test_a_terminal_shows_the_tasks_of_the_work(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "_draws_itself", lambda session: False)
    text = drawn(spark, terminal=True, task_s=0.3)
    assert "dovetail: orders [8]" in text
    done = {int(number) for number in re.findall(r"(\d)/8 tasks", text)}
    assert done
    assert done <= {*range(9)}
    assert text.endswith("\x1b[2K")  # the line is gone


def test_beside_bars_of_sparks_own_there_is_the_title_alone(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "_draws_itself", lambda session: True)
    assert drawn(spark, terminal=True) == "dovetail: orders [8]\n"


def test_without_a_terminal_nothing_is_shown_unless_asked(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "_draws_itself", lambda session: True)
    monkeypatch.delenv(ASKED, raising=False)
    assert drawn(spark, terminal=False) == ""
    monkeypatch.setenv(ASKED, "1")
    assert drawn(spark, terminal=False) == "dovetail: orders [8]\n"
    monkeypatch.setenv(ASKED, "0")
    assert drawn(spark, terminal=True) == ""
