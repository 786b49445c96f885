"""The pictures of the live page in the documentation, beside a real query."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pictures import refuse_another_look, see
from pyspark.sql import SparkSession

import dovetail as dt

pytestmark = pytest.mark.slow
BATCHES = 8
SCHEMAS = {
    "orders": "id long, customer long, amount long, at timestamp",
    "payments": "id long, paid long, at timestamp",
    "customers": "id long, city string, at timestamp",
}
CITIES = ["Oslo", "Lima", "Pune", "Kyiv"]


def write(folder: Path) -> None:
    """The files of a shop: a file of each input for each micro-batch."""
    drawn = random.Random(7)
    for batch in range(BATCHES):
        count = drawn.randint(300, 900)
        ids = [1000 * batch + n for n in range(count)]
        rows: dict[str, list[dict[str, Any]]] = {
            "orders": [
                {"id": n, "customer": drawn.randrange(80), "amount": drawn.randint(5, 90)}
                for n in ids
            ],
            "payments": [{"id": n, "paid": drawn.randint(5, 90)} for n in ids[:: 1 + batch % 3]],
            "customers": [{"id": 10 * batch + n, "city": drawn.choice(CITIES)} for n in range(10)],
        }
        if batch == BATCHES - 2:
            rows["orders"] += [{"id": 7, "customer": 3, "amount": 0}, {"customer": 4, "amount": 9}]
        for name, lines in rows.items():
            at = f"2026-05-01T10:{batch:02}:00Z"
            (folder / name).mkdir(exist_ok=True)
            text = "\n".join(json.dumps({**row, "at": at}) for row in lines)
            (folder / name / f"{batch}.json").write_text(text)


@pytest.fixture(scope="module")
def query(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("shop")
    write(folder)
    reader = spark.readStream.option("maxFilesPerTrigger", 1)
    orders, payments, customers = (
        dt.Table.from_changelog(
            reader.schema(schema).json(f"{folder}/{name}"),
            key="id",
            timestamp="at",
            name=name,
        )
        for name, schema in SCHEMAS.items()
    )
    paid = orders.where("100 / amount > 0", errors="dead_letter").join(
        payments, how="left", select=["customer", "amount", "paid"], name="paid"
    )
    named = paid.join(customers, on="customer", how="left", name="named")
    query = dt.run(
        {
            named: dt.to_parquet(folder / "named"),
            dt.dead_letters: dt.to_parquet(folder / "letters"),
        },
        checkpoint=folder / "checkpoint",
        buckets=2,
        query_name="shop",
    )
    query.processAllAvailable()
    yield query
    query.stop()


def test_the_page_is_as_the_documentation_shows_it(browser: Any, query: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    def shown(script: str) -> Any:
        return WebDriverWait(browser, 60, 0.05).until(
            lambda b: b.execute_script(f"return {script}")
        )

    page = dt.serve(query, port=0)
    try:
        see(browser, 1280, 1180)
        browser.get(page.url)
        assert shown("document.querySelectorAll('#rows circle').length == 3")
        assert shown("document.querySelector('#letters tbody').rows.length == 1")
        for scheme in ("light", "dark"):
            see(browser, 1280, 1180, scheme=scheme)
            shown("new Promise(done => setTimeout(() => done(true), 200))")
            refuse_another_look(browser, f"page-{scheme}.png")
        see(browser, 390, 844)
        assert shown("document.documentElement.scrollWidth") <= 390
        browser.execute_script(
            "const form = document.querySelector('#why form');"
            "form.elements.key.value = '1003'; form.requestSubmit();"
        )
        assert shown("document.querySelectorAll('.tree li').length > 3")
        browser.execute_script("document.querySelector('#why').scrollIntoView()")
        refuse_another_look(browser, "page-why.png")
        assert browser.get_log("browser") == []
    finally:
        page.stop()
