"""The live page beside a real query: over HTTP, and in a browser."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from chromium import PHONE
from pyspark.sql import SparkSession

import dovetail as dt

DESK = {"width": 1280, "height": 1100, "deviceScaleFactor": 1, "mobile": False}


def write(folder: Path, number: int, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    at = f"2024-05-01T10:00:{number:02}Z"
    (folder / f"{number}.json").write_text("\n".join(json.dumps({"at": at} | r) for r in rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write(folder / "orders", 1, [{"id": n, "amount": n} for n in range(1, 6)] + [{"amount": 9}])
    write(folder / "<payments>", 1, [{"id": n, "amount": n} for n in range(1, 4)])
    return folder


@pytest.fixture(scope="module")
def query(spark: SparkSession, folder: Path) -> Iterator[Any]:
    def table(name: str, column: str) -> dt.Table:
        columns = "id long, amount long, at timestamp"
        frame = spark.readStream.schema(columns).json(str(folder / name))
        frame = frame.withColumnRenamed("amount", column)
        return dt.Table.from_changelog(frame, key="id", timestamp="at", name=name)

    joined = table("orders", "amount").join(table("<payments>", "paid"), how="left")
    query = joined.write_stream(
        dt.to_parquet(folder / "due"),
        checkpoint=folder / "checkpoint",
        buckets=2,
        query_name="due <now>",
    )
    query.processAllAvailable()
    yield query
    query.stop()


@pytest.fixture
def page(query: Any) -> Iterator[Any]:
    page = dt.serve(query, port=0)
    yield page
    page.stop()


def events(url: str, count: int) -> list[tuple[str, Any]]:
    """The first server-sent events."""
    found: list[tuple[str, Any]] = []
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        kind = ""
        for line in answer:
            name, _, value = line.decode().strip().partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                found.append((kind, json.loads(value)))
                if len(found) == count:
                    return found
    return found


def test_events_are_the_progress(query: Any, page: Any) -> None:
    expected = [progress for progress in dt.metrics.recent(query) if progress.rows]
    found = events(page.url + "events", 1 + len(dt.metrics.recent(query)))
    batches = [batch for kind, batch in found if kind == "batch"]
    states = [state for kind, state in found if kind == "state"]
    assert states == [{"active": True, "failure": None}]
    read = [batch for batch in batches if any(one["rows"] for one in batch["inputs"])]
    assert [batch["stages"][0]["changes"] for batch in read] == [
        progress.stages[0].changes for progress in expected
    ]
    assert read[0]["unused"]["orders.dropped"]["rows"] == 1


def test_names_are_escaped(page: Any) -> None:
    with urllib.request.urlopen(page.url) as answer:
        text = answer.read().decode()
    assert "<h1>due &lt;now&gt;</h1>" in text
    assert "<payments>" not in text
    assert "&lt;payments&gt;" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_others_need_the_token(query: Any) -> None:
    page = dt.serve(query, port=0, host="0.0.0.0")
    try:
        base, _, token = page.url.partition("?token=")
        assert len(token) > 16
        for wrong in ("", "?token=nonsense"):
            for path in ("", "events"):
                with pytest.raises(HTTPError, match="403"):
                    urllib.request.urlopen(base + path + wrong)
        assert urllib.request.urlopen(page.url).status == 200
    finally:
        page.stop()


def test_a_port_in_use_is_named_and_a_stopped_page_is_gone(query: Any) -> None:
    page = dt.serve(query, port=0)
    port = int(page.url.rpartition(":")[2].strip("/"))
    with pytest.raises(dt.errors.ConfigurationError, match=f"127.0.0.1:{port} cannot be bound"):
        dt.serve(query, port=port)
    page.stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(page.url)
    assert query.isActive


def test_figures_move_in_a_browser(
    browser: Any, query: Any, page: Any, folder: Path, tmp_path: Path
) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    def shown(script: str) -> Any:
        return WebDriverWait(browser, 60).until(lambda b: b.execute_script(f"return {script}"))

    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", DESK)
    browser.get(page.url)
    assert shown("document.querySelector('#state').textContent == 'running'")
    rows = "document.querySelector('#inputs').textContent"
    assert shown(f"{rows}.includes('orders6')")
    assert "orders.dropped1id=None" in shown("document.querySelector('#unused').textContent")
    write(folder / "orders", 2, [{"id": n, "amount": 7} for n in (1, 2)])
    assert shown(f"{rows}.includes('orders8')")
    stages = "document.querySelector('#stages').textContent"
    assert shown(f"{stages}.includes('orders 2')")
    for scheme, background in (("light", "rgb(246, 248, 249)"), ("dark", "rgb(20, 24, 28)")):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        assert shown("getComputedStyle(document.body).backgroundColor") == background
        for name, screen in (("desk", DESK), ("phone", PHONE)):
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            assert shown("document.documentElement.scrollWidth") <= screen["width"]
            browser.save_screenshot(str(tmp_path / f"{name}-{scheme}.png"))
    assert browser.get_log("browser") == []
