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


@pytest.fixture
def dovetail_driver(request: pytest.FixtureRequest) -> Callable[..., Driver]:
    """Return a function that makes a driver, with the arguments of ``dovetail.testing.Driver``.

    If the test fails, its report has the timeline of each driver.
    """
    from dovetail.testing import Driver

    drivers: list[Driver] = request.node.stash.setdefault(_DRIVERS, [])

    def make(topology: Any, *others: Any, **options: Any) -> Driver:
        drivers.append(Driver(topology, *others, **options))
        return drivers[-1]

    return make


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Attach the timelines to the report of a test that fails, once for each report."""
    outcome = yield
    report = outcome.get_result()
    drivers = item.stash.get(_DRIVERS, [])
    if report.when == "call" and report.failed:
        for number, driver in enumerate(drivers, 1):
            which = f" {number}" if len(drivers) > 1 else ""
            report.sections.append((f"dovetail driver{which}", _text(driver)))


def _text(driver: Driver) -> str:
    """Return a driver's timeline, or the reason why there is none: no report may fail."""
    from dovetail.testing import timeline

    try:
        return timeline(driver).text
    except Exception as error:
        return f"no timeline: {error!r}"
