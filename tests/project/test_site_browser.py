"""The site in a browser, opened as files: it works without a server and without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chromium import PHONE

DESK = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
KINDS = [
    "index.html",
    "quickstart.html",
    "questions.html",
    "glossary.html",
    "operations.html",
    "results.html",
    "recipes/index.html",
    "recipes/cdc_to_delta.html",
    "reference/index.html",
    "reference/tables.html",
    "reference/all_errors.html",
    "reference/command_line.html",
    "project/orders_example.html",
    "project/architecture.html",
    "recipes/read_state.html",
]
"""A page of each kind. (A server alone shows 404.html, with links from its root.)"""
NOT_FOUND = "404.html"


def pages(site: Path, *parts: str) -> list[Path]:
    """The pages that have one of these parts, or all."""
    found = (page for page in sorted(site.rglob("*.html")) if page.name != NOT_FOUND)
    return [p for p in found if not parts or any(part in p.read_text("utf-8") for part in parts)]


def open_page(browser: Any, page: Path, screen: dict[str, Any]) -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(page.as_uri())


def until(browser: Any, script: str) -> Any:
    """Wait until a script gives something."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 30).until(lambda waiting: waiting.execute_script(script))


def open_search(browser: Any, text: str) -> None:
    from selenium.webdriver.common.by import By

    browser.find_element(By.CSS_SELECTOR, "label.md-header__button[for=__search]").click()
    until(browser, "return document.querySelector('#__search').checked")
    browser.find_element(By.CSS_SELECTOR, "input.md-search__input").send_keys(text)


@pytest.mark.parametrize("path", KINDS)
def test_the_console_has_no_errors(browser: Any, site: Path, path: str) -> None:
    browser.get_log("browser")
    open_page(browser, site / path, DESK)
    until(browser, "return document.readyState == 'complete'")
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []


def test_the_search_finds_a_page(browser: Any, site: Path) -> None:
    open_page(browser, site / "index.html", PHONE)
    open_search(browser, "foreign key")
    links = until(
        browser,
        "return [...document.querySelectorAll('a.md-search-result__link')].map(a => a.href)",
    )
    assert any("foreign_key" in link for link in links)


def test_dark_mode_switches(browser: Any, site: Path) -> None:
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


def test_no_page_scrolls_sideways_on_a_phone(browser: Any, site: Path) -> None:
    wide = {}
    for page in pages(site):
        open_page(browser, page, PHONE)
        excess = browser.execute_script(
            "return Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
            " - window.innerWidth"
        )
        layout = browser.execute_script("return window.innerWidth")
        if excess > 0 or layout != PHONE["width"]:
            wide[page.relative_to(site).as_posix()] = (excess, layout)
    assert wide == {}


def test_each_picture_is_shown_and_has_a_text(browser: Any, site: Path) -> None:
    bad = []
    for page in pages(site, "<img", 'role="img"'):
        open_page(browser, page, DESK)
        until(browser, "return document.readyState == 'complete'")
        bad += browser.execute_script(
            "const images = [...document.querySelectorAll('article img')]"
            ".filter(i => !i.alt || (i.complete && !i.naturalWidth));"
            "const drawings = [...document.querySelectorAll('article svg[role=img]')]"
            ".filter(s => !s.getAttribute('aria-label') && !s.querySelector('title'));"
            "return [...images, ...drawings].map(e => location.pathname + ' ' + e.outerHTML)"
        )
    assert bad == []
