"""A Chromium without a screen, for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """The browser of the test's file. After the test it shows no page, which would go on to ask a
    server that is gone, and its log is empty.
    """
    yield chromium
    chromium.get("about:blank")
    chromium.get_log("browser")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if not (CHROMIUM and DRIVER):
        pytest.skip("no browser (Debian: apt-get install chromium chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the dependency group docs")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.page_load_strategy = "eager"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()
