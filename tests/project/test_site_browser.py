"""The site in a browser, opened as files: it works without a server and without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chromium import PHONE

DESK = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
NOT_FOUND = "404.html"
"""A server alone shows it, with links from its root."""


def open_page(browser: Any, page: Path, screen: dict[str, Any]) -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(page.as_uri())


def until(browser: Any, script: str) -> Any:
    """Wait until a script gives something."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 30, 0.02).until(lambda waiting: waiting.execute_script(script))


def severe_entries(browser: Any) -> list[Any]:
    """The console's errors since it was last asked."""
    return [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def open_search(browser: Any, text: str) -> None:
    from selenium.webdriver.common.by import By

    browser.find_element(By.CSS_SELECTOR, "label.md-header__button[for=__search]").click()
    until(browser, "return document.querySelector('#__search').checked")
    browser.find_element(By.CSS_SELECTOR, "input.md-search__input").send_keys(text)


def test_the_search_finds_a_page(browser: Any, site: Path) -> None:
    open_page(browser, site / "index.html", PHONE)
    open_search(browser, "foreign key")
    links = until(
        browser,
        "return [...document.querySelectorAll('a.md-search-result__link')].map(a => a.href)",
    )
    assert any("foreign_key" in link for link in links)


def test_dark_mode_switches(browser: Any, site: Path) -> None:
    browser.get_log("browser")
    open_page(browser, site / "index.html", DESK)
    seen = {}
    for _ in range(3):
        until(browser, "return document.querySelector('label[for^=__palette_]:not([hidden])')")
        scheme, colour = browser.execute_script(
            "document.querySelector('label[for^=__palette_]:not([hidden])').click();"
            "return [document.body.dataset.mdColorScheme,"
            " getComputedStyle(document.body).backgroundColor]"
        )
        seen[scheme] = colour
    assert {"default", "slate"} <= seen.keys()
    assert seen["default"] != seen["slate"]
    assert severe_entries(browser) == []


@pytest.mark.long
def test_pages_fit_a_phone_and_show_their_pictures_without_errors(browser: Any, site: Path) -> None:
    """Each picture has a text, too."""
    wrong = {}
    browser.get_log("browser")
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != NOT_FOUND]
    for page in pages:
        open_page(browser, page, PHONE)
        until(browser, "return document.readyState == 'complete'")
        excess, layout, pictures = browser.execute_script(
            "const images = [...document.querySelectorAll('article img')]"
            ".filter(i => !i.alt || (i.complete && !i.naturalWidth));"
            "const drawings = [...document.querySelectorAll('article svg[role=img]')]"
            ".filter(s => !s.getAttribute('aria-label') && !s.querySelector('title'));"
            "const root = document.documentElement;"
            "return [Math.max(root.scrollWidth, document.body.scrollWidth) - window.innerWidth,"
            " window.innerWidth, [...images, ...drawings].map(e => e.outerHTML)]"
        )
        severe = severe_entries(browser)
        if excess > 0 or layout != PHONE["width"] or pictures or severe:
            wrong[page.relative_to(site).as_posix()] = (excess, layout, pictures, severe)
    assert pages
    assert wrong == {}
