"""The examples of the README and of docs/, run as they stand, and what they say they print."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from doc_examples import BLOCK, ROOT, promised, without_broker
from pyspark.sql import SparkSession
from small_session import RECORDING_CHANGES, SMALL_TABLES, applied

PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    ROOT / "docs" / "quickstart.md",
    ROOT / "docs" / "look.md",
    ROOT / "docs" / "which_join.md",
    ROOT / "docs" / "coming_from_kafka_streams.md",
    ROOT / "docs" / "coming_from_flink.md",
    ROOT / "docs" / "coming_from_spark.md",
    ROOT / "docs" / "coming_from_databricks.md",
    ROOT / "docs" / "coming_from_pathway.md",
    ROOT / "docs" / "changelogs.md",
    ROOT / "docs" / "sources.md",
    ROOT / "docs" / "sinks.md",
    ROOT / "docs" / "testing.md",
    ROOT / "docs" / "results.md",
    ROOT / "docs" / "postgres.md",
    ROOT / "docs" / "iceberg.md",
    ROOT / "docs" / "operations.md",
    ROOT / "docs" / "metrics.md",
    ROOT / "docs" / "page.md",
    ROOT / "docs" / "reliability.md",
    ROOT / "docs" / "state.md",
    ROOT / "docs" / "upgrades.md",
    ROOT / "docs" / "why.md",
    ROOT / "docs" / "troubleshooting.md",
    *(page for page in sorted((ROOT / "docs" / "recipes").glob("*.md")) if without_broker(page)),
    *sorted((ROOT / "docs" / "joins").glob("*.md")),
    *sorted((ROOT / "docs" / "transformations").glob("*.md")),
]
PAGES.remove(ROOT / "docs" / "joins" / "snapshots.md")  # runs in tests/snapshots, with Delta
LONG = ("sinks", "sources", "state", "upgrades")
TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"
EXTENSIONS = "spark.sql.extensions"
DSN = "postgresql://dovetail@localhost/shop"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=str(page.relative_to(ROOT)),
            marks=pytest.mark.long if page.stem in LONG else (),
        )
        for page in PAGES
    ],
)
def test_examples_run_and_print_what_they_say(
    page: Path,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    for name in ("orders", "payments"):
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "data/orders/1.json").write_text(
        '{"id": 1, "amount": 40, "at": "2024-05-01T10:00:00Z", "op": "c"}\n'
    )
    (tmp_path / "data/payments/1.json").write_text(
        '{"id": 1, "paid": 15, "at": "2024-05-01T11:00:00Z"}\n'
    )
    (tmp_path / "out").mkdir()
    names = {"spark": spark}
    dsn = request.getfixturevalue("database") if DSN in page.read_text() else DSN
    examples = without_broker(page)
    assert examples
    with applied(spark, RECORDING_CHANGES if page.parent.name == "recipes" else SMALL_TABLES):
        for block in examples:
            if "to_delta(" in block and "Delta" not in str(spark.conf.get(EXTENSIONS, "")):
                continue
            capsys.readouterr()
            # The JVM has a working directory of its own, so paths are made absolute.
            placed = block.replace('"data/', f'"{tmp_path}/data/').replace(
                '"out/', f'"{tmp_path}/out/'
            )
            placed = placed.replace(DSN, dsn)
            exec(compile(placed, str(page), "exec"), names)
            printed = capsys.readouterr().out.rstrip("\n").splitlines()
            if promised(block):
                assert printed == promised(block)
    if page.name == "README.md":
        rows = spark.read.parquet(str(tmp_path / "out/open_orders")).collect()
        assert [(row.id, row.amount, row.due, row["_change"]) for row in rows][-1:] == [
            (1, 40, 25, "upsert")
        ]


def test_pictures_are_what_the_examples_before_them_print() -> None:
    drawn = 0
    for page in PAGES:
        parts = re.split(
            r"^```mermaid\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE
        )
        for before, picture in zip(parts[::2], parts[1::2], strict=False):
            drawn += 1
            assert promised(BLOCK.findall(before)[-1]) == picture.splitlines()
    assert drawn


def test_errors_that_are_explained_are_raised() -> None:
    """Each text is one of the package's, with `…` for its values."""
    own = TROUBLESHOOTING.read_text().partition("### Errors of Spark")[0]
    texts = re.findall(r"^\| `([^`]+)` \|", own.partition("In the tables `…`")[2], re.MULTILINE)
    source = "\n".join(
        node.value
        for path in (ROOT / "src" / "dovetail").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    parts = [part.strip() for text in texts for part in text.split("…")]
    assert texts
    assert [part for part in parts if part not in source] == []
