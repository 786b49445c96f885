"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]
PLUGIN = "_dovetail_pytest"
INSTALLED = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
OPTIONS = [] if INSTALLED else ["-p", PLUGIN]
HEADER = """
import pyarrow as pa
import pytest
from dovetail import testing

orders = testing.table("orders", key="id", schema={"id": pa.int64(), "amount": pa.int64()})
"""


def run(pytester: pytest.Pytester, tests: str) -> pytest.RunResult:
    pytester.makepyfile(HEADER + tests)
    return pytester.runpytest_inprocess(*OPTIONS, "-p", "no:cacheprovider")


def test_a_test_that_fails_shows_the_timeline_of_each_driver(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_two(dovetail_driver):
    first = dovetail_driver(orders, emit="batch")
    first.pipe(orders, {"id": 1, "amount": 40}, timestamp=3)
    second = dovetail_driver(orders)
    second.pipe(orders, {"id": 2}, timestamp=4, deleted=True)
    assert False
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*- dovetail driver 1 -*",
            "batch  | 1",
            "time   | 3",
            "orders | + 1: 40",
            "orders | + 1: 40",
            "*- dovetail driver 2 -*",
            "batch  | 1",
            "time   | 4",
            "orders | x 2",
            "orders | x 2",
        ],
        consecutive=True,
    )


def test_a_test_that_passes_shows_nothing(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_one(dovetail_driver):
    driver = dovetail_driver(orders)
    assert driver.pipe(orders, {"id": 1}, timestamp=3)

@pytest.mark.xfail(strict=True)
def test_expected(dovetail_driver):
    dovetail_driver(orders)
    assert False

def test_without():
    assert False
""",
    )
    result.assert_outcomes(passed=1, xfailed=1, failed=1)
    result.stdout.no_fnmatch_line("*dovetail driver*")


def test_a_timeline_that_fails_does_not_fail_the_report(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_one(dovetail_driver):
    driver = dovetail_driver(orders)
    driver.micro_batches = None
    assert False
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*- dovetail driver -*", "no timeline: TypeError*"])


def test_the_plugin_imports_neither_the_package_nor_spark() -> None:
    modules = "{'dovetail', 'pyspark', 'pandas', 'pyarrow'}"
    code = f"import sys, {PLUGIN}; print(sorted({modules} & {{*sys.modules}}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
