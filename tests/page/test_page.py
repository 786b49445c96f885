"""The live page beside a real query: over HTTP, and in a browser."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chromium import PHONE
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import dovetail as dt
from benchmarks import harness
from dovetail.cli import app
from dovetail.page.figures import LiveFigures
from dovetail.page.search import exact_for_browsers, latest_letters
from dovetail.page.server import serve_checkpoint
from dovetail.physical.topology_graph import topology_graph

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
    checked = joined.where("100 / amount > 0", errors="dead_letter")
    query = dt.run(
        {
            checked: dt.to_parquet(folder / "due"),
            dt.dead_letters: dt.to_parquet(folder / "letters"),
        },
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
    assert states == [{"words": "running", "active": True, "failure": None}]
    read = [batch for batch in batches if any(one["rows"] for one in batch["inputs"])]
    assert [batch["stages"][0]["changes"] for batch in read] == [
        progress.stages[0].changes for progress in expected
    ]
    assert read[0]["unused"]["orders.dropped"]["rows"] == 1


@pytest.mark.parametrize(
    ("failure", "shown"),
    [(None, None), (OSError("no file\nat 1"), "no file"), (OSError(), "OSError")],
)
def test_a_failure_is_one_line(failure: Exception | None, shown: str | None) -> None:
    query: Any = SimpleNamespace(exception=lambda: failure, isActive=False)
    words = "ended" if failure is None else "failed"
    assert json.loads(LiveFigures(query).state()) == {
        "words": words,
        "active": False,
        "failure": shown,
    }


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
            for path in ("", "events", "tables", "rows", "why", "letters"):
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


def look_up(browser: Any, table: str, key: object) -> None:
    """Use the form by the keyboard alone."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select, WebDriverWait

    options = "return document.querySelector('#table').options.length"
    WebDriverWait(browser, 60, 0.05).until(lambda b: b.execute_script(options))
    Select(browser.find_element(By.ID, "table")).select_by_value(table)
    field = browser.find_element(By.NAME, "key")
    field.clear()
    field.send_keys(str(key), Keys.ENTER)


def answer_of(url: str, path: str, **parameters: str | list[str]) -> Any:
    asked = urlencode(parameters, doseq=True)
    with urllib.request.urlopen(f"{url}{path}?{asked}", timeout=60) as answer:
        return json.load(answer)


def test_rows_are_searched_by_key(query: Any, page: Any) -> None:
    assert answer_of(page.url, "tables") == {
        "tables": [
            {"name": name, "key": ["id"], "holds": "last row per key"}
            for name in ("orders", "<payments>", "left join of orders and <payments>")
        ]
    }
    batch = query.lastProgress["batchId"]
    found = answer_of(page.url, "rows", table="<payments>", key="3")
    assert found["header"] == ["time", "id", "paid"]
    assert found["rows"] == [["2024-05-01T10:00:01Z", "3", "3"]]
    assert found["count"] == 1
    assert found["batch"] <= batch
    assert answer_of(page.url, "rows", table="orders", key="77")["rows"] == []
    unknown = answer_of(page.url, "rows", table="none", key="1")["error"]
    assert "holds no rows of 'none'. It has " in unknown
    several = answer_of(page.url, "rows", table="orders", key=["1", "2"])["error"]
    assert several == "1, 2 is no key, which is id. Give its value."


def test_a_row_is_explained(query: Any, page: Any) -> None:
    result = query.parts.results[0].name
    reason = answer_of(page.url, "why", result=result, key="5")
    assert (reason["presence"], reason["key"], reason["values"]) == (
        "row",
        {"id": 5},
        {"amount": 5, "paid": None},
    )
    missing = answer_of(page.url, "why", result=result, key="77")
    assert missing["presence"] == "none"
    assert "orders" in missing["reason"]
    assert answer_of(page.url, "why", result="none", key="1") == {
        "error": f"the query has no result 'none'. It has {result}."
    }
    assert "is no int64" in answer_of(page.url, "why", result=result, key="x")["error"]
    several = answer_of(page.url, "why", result=result, key=["5", "6"])["error"]
    assert several == "5, 6 is no key, which is id. Give its value."


def test_numbers_that_a_browser_lacks_are_text() -> None:
    row = {"id": 2**53 + 1, "x": float("nan"), "of": [{"y": -float("inf")}, 2**53, True, 0.5, None]}
    assert exact_for_browsers(row) == {
        "id": "9007199254740993",
        "x": "nan",
        "of": [{"y": "-inf"}, 2**53, True, 0.5, None],
    }


def test_without_a_folder_of_dead_letters_none_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of a folder that has the form of one and happens to be the working directory."""
    (tmp_path / "_batch=0").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "_batch=0" / "part.parquet")
    monkeypatch.chdir(tmp_path)
    assert latest_letters(None) == {"header": [], "rows": []}


def test_figures_move_in_a_browser(
    browser: Any, query: Any, page: Any, folder: Path, tmp_path: Path
) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    def shown(script: str) -> Any:
        return WebDriverWait(browser, 60, 0.05).until(
            lambda b: b.execute_script(f"return {script}")
        )

    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", DESK)
    browser.get(page.url)
    assert shown("document.querySelector('#state').textContent == 'running'")
    rows = "document.querySelector('#inputs').textContent"
    assert shown(f"{rows}.includes('orders6')")
    assert "orders.dropped1id=None" in shown("document.querySelector('#unused').textContent")
    write(folder / "orders", 2, [{"id": n, "amount": 7 * n - 7} for n in (1, 2)])
    assert shown(f"{rows}.includes('orders8')")
    letters = "document.querySelector('#letters').textContent"
    assert shown(f'{letters}.includes(\'{{"id":1,"amount":0\')')
    stages = "document.querySelector('#stages').textContent"
    assert shown(f"{stages}.includes('orders 2')")
    edges = "[...document.querySelectorAll('.dt-rate')].map(text => text.textContent)"
    texts = shown(edges)
    assert len(texts) == len(topology_graph(*query.parts.results).flows)
    assert all(text.endswith("/s") for text in texts)
    assert float(texts[0].removesuffix("/s")) > 0
    words = "document.querySelector('.dt-topology').getAttribute('aria-label')"
    assert "<payments> to left join by key: 0/s; left join by key to " in shown(words)
    look_up(browser, "orders", 2)
    assert shown("document.querySelector('#found tbody').textContent").startswith("2024-05-01")
    rows = "[...document.querySelectorAll('#found tr')]"
    found = f"{rows}.map(row => [...row.cells].map(cell => cell.textContent))"
    assert shown(found) == [
        ["time", "id", "amount", "result"],
        ["2024-05-01T10:00:02Z", "2", "7", "why?"],
    ]
    answer = "document.querySelector('#answer').textContent"
    assert shown(answer).startswith("One row of orders with id 2, after micro-batch ")
    for scheme, background in (("light", "rgb(246, 248, 249)"), ("dark", "rgb(20, 24, 28)")):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        assert shown("getComputedStyle(document.body).backgroundColor") == background
        for name, screen in (("desk", DESK), ("phone", PHONE)):
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            assert shown("document.documentElement.scrollWidth") <= screen["width"]
            browser.save_screenshot(str(tmp_path / f"{name}-{scheme}.png"))
    look_up(browser, "<payments>", 9)
    assert shown(f"{answer}.startsWith('<payments> has no row with id 9, after')")
    look_up(browser, "<payments>", "x")
    assert shown(f"{answer} == 'x is no key, which is id. Give its value.'")
    look_up(browser, "orders", 2)
    assert shown(f"{answer}.startsWith('One row of orders with id 2, after')")
    browser.find_element(By.CSS_SELECTOR, "#found td button").click()
    tree = "[...document.querySelectorAll('.tree li')].map(item => item.firstChild.textContent)"
    assert shown(tree)[-2:] == ["orders", "<payments>"]
    reason = "document.querySelector('.tree').textContent"
    assert "orders with id 2: amount 7" in shown(reason)
    assert "<payments> with id 2: paid 2" in shown(reason)
    browser.save_screenshot(str(tmp_path / "why.png"))
    assert browser.get_log("browser") == []
    assert query.isActive


def test_what_waits_is_shown_with_the_reason(
    spark: SparkSession, browser: Any, tmp_path: Path
) -> None:
    """Views wait until the window closes in which a click may come."""
    from selenium.webdriver.support.ui import WebDriverWait

    write(tmp_path / "views", 1, [{"id": 1, "page": 7}, {"id": 2, "page": 8}, {"id": 3, "page": 9}])
    write(tmp_path / "clicks", 1, [{"id": 4, "page": 8}])

    def stream(name: str) -> dt.Stream:
        columns = "id long, page long, at timestamp"
        frame = spark.readStream.schema(columns).json(str(tmp_path / name))
        return dt.Stream.from_changelog(frame, key="page", timestamp="at", name=name)

    joined = stream("views").join(
        stream("clicks"), how="left", within=dt.within(after="10 minutes"), select=["left.id"]
    )
    query = joined.write_stream(
        harness.Nowhere(), checkpoint=tmp_path / "checkpoint", buckets=1, query_name="<clicks>"
    )
    try:
        query.processAllAvailable()
        progress = next(p for p in reversed(dt.metrics.recent(query)) if p.rows)
        (stage,) = progress.stages
        assert (stage.matched, stage.unmatched) == (
            {"views": 0, "clicks": 1},
            {"views": 3, "clicks": 0},
        )
        assert stage.waiting == {"views.on_close": 2}
        assert "views.on_close: 2 rows wait" in progress._repr_html_()
        page = dt.serve(query, port=0)
        try:
            browser.get(page.url)
            rows = "[...document.querySelectorAll('#waiting tr')]"
            cells = f"{rows}.map(row => [...row.cells].map(cell => cell.textContent))"
            wait = WebDriverWait(browser, 60, 0.05)
            assert wait.until(lambda b: b.execute_script(f"return {cells}.length && {cells}")) == [
                ["views", "2", "their window closes"]
            ]
            found = "document.querySelector('#stages').rows[0].cells[2].textContent"
            assert browser.execute_script(f"return {found}") == "views 0 of 3\nclicks 1 of 1"
            assert browser.get_log("browser") == []
        finally:
            page.stop()
    finally:
        query.stop()


def test_the_page_of_a_checkpoint(
    spark: SparkSession, browser: Any, query: Any, folder: Path, tmp_path: Path
) -> None:
    """With its topology and a record of its figures; without both, the page says so."""
    from selenium.webdriver.support.ui import WebDriverWait

    def shown(script: str) -> Any:
        return WebDriverWait(browser, 60, 0.05).until(
            lambda b: b.execute_script(f"return {script}")
        )

    record, checkpoint = str(tmp_path / "figures.sqlite"), str(folder / "checkpoint")
    dt.metrics.record(query, record).stop()
    options: dict[str, Any] = {"session": spark, "port": 0, "host": "127.0.0.1", "token": None}
    page = serve_checkpoint(checkpoint, query.parts.results, record=record, **options)
    try:
        browser.get(page.url)
        state = "document.querySelector('#state').textContent"
        assert shown(f"{state}.startsWith('after micro-batch')")
        assert shown("document.querySelector('#inputs').textContent.includes('orders')")
        assert shown("[...document.querySelectorAll('.dt-rate')].every(t => t.textContent)")
        look_up(browser, "<payments>", 3)
        assert shown("document.querySelector('#found tbody').textContent").endswith("33why?")
    finally:
        page.stop()
    page = serve_checkpoint(checkpoint, [], record=None, **options)
    try:
        browser.get(page.url)
        assert shown(f"{state}.startsWith('after micro-batch')")
        assert shown("document.querySelector('#unrecorded').checkVisibility()")
        assert not browser.execute_script(
            "return document.querySelector('.charts').checkVisibility()"
        )
        assert "needs the topology" in browser.execute_script("return document.body.textContent")
        titles = shown("[...document.querySelectorAll('ol li')].map(item => item.textContent)")
        assert titles == [stage.title for stage in query.parts.stages]
        assert {*titles} == {"left join of orders and <payments>"}
    finally:
        page.stop()
    assert browser.get_log("browser") == []
    wide = {"COLUMNS": "160"}
    shown_once = CliRunner().invoke(app, ["top", checkpoint, "--record", record], env=wide)
    assert "1. left join of orders and <payments>" in shown_once.output
    assert "rows/s, up to " in shown_once.output
    view = json.loads(CliRunner().invoke(app, ["top", "--record", record, "--json"]).output)
    assert view["progress"]["inputs"][0]["name"] == "orders"
    assert view["stores"] == []


def test_a_page_of_other_results_or_another_file_is_refused(
    spark: SparkSession, folder: Path, query: Any
) -> None:
    options: dict[str, Any] = {"session": spark, "port": 0, "host": "127.0.0.1", "token": None}
    checkpoint, (result, *_) = str(folder / "checkpoint"), query.parts.results
    other = result.inputs[0]
    with pytest.raises(dt.errors.CheckpointError, match="topology"):
        serve_checkpoint(checkpoint, [other], record=None, **options)
    with pytest.raises(dt.errors.ConfigurationError, match="/nowhere is not there"):
        serve_checkpoint(checkpoint, [result], record="/nowhere", **options)
