"""The pytest plugin: a fixture that makes drivers, and shows their timelines when a test fails.

pytest imports this module at its start, in each project that has the package installed. So it lies
beside the package, and imports the package only in a test that asks for a driver.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dovetail.testing import Driver

_DRIVERS = pytest.StashKey[list["Driver"]]()
"""The key under which a test keeps its drivers."""


@pytest.fixture
def dovetail_driver(request: pytest.FixtureRequest) -> Callable[..., Driver]:
    """Return a function that makes a driver, with the arguments of ``dovetail.testing.Driver``.

    If the test fails, its report has the timeline of each driver that the function has made.
    """
    from dovetail.testing import Driver

    drivers: list[Driver] = request.node.stash.setdefault(_DRIVERS, [])

    def make_driver(topology: Any, *others: Any, **options: Any) -> Driver:
        """Return a new driver, and keep it for the report."""
        drivers.append(Driver(topology, *others, **options))
        return drivers[-1]

    return make_driver


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Attach the timelines of a test's drivers to its report if the test itself has failed, not its
    setup or teardown.
    """
    outcome = yield
    report = outcome.get_result()
    drivers = item.stash.get(_DRIVERS, [])
    if report.when == "call" and report.failed:
        for number, driver in enumerate(drivers, 1):
            which = f" {number}" if len(drivers) > 1 else ""
            report.sections.append((f"dovetail driver{which}", _timeline_text(driver)))


def _timeline_text(driver: Driver) -> str:
    """Return a driver's timeline as text. If it cannot be drawn, return a line with the error,
    since no report may fail.
    """
    from dovetail.testing import timeline

    try:
        return timeline(driver).text
    except Exception as error:
        return f"no timeline: {error!r}"
