"""The timelines of the documentation: they show rows of the truth tables, and nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from bench import truth_tables
from bench.records import Result

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```timeline\n(.+)$", re.MULTILINE)
PAGES = sorted((ROOT / "docs").rglob("*.md"))
REFERENCES = [
    pytest.param(reference, id=f"{page.stem}: {reference}")
    for page in PAGES
    for reference in FENCE.findall(page.read_text("utf-8"))
]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def timelines() -> ModuleType:
    """The hook of the site."""
    pytest.importorskip("mkdocs", reason="needs the dependency group docs: ./dev test installs it")
    sys.path.insert(0, str(ROOT / "tools" / "docs_site"))
    import timelines

    return timelines


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_picture_shows_the_rows_of_its_table(timelines: ModuleType, reference: str) -> None:
    layout = timelines.layout_of(reference)
    assert _drawn(timelines.svg_of(layout)) == _expected(reference)


def test_the_text_of_each_block_is_the_tables(timelines: ModuleType) -> None:
    stale = [
        page
        for page in PAGES
        if timelines.written(page.read_text("utf-8")) != page.read_text("utf-8")
    ]
    assert stale == [], "run python tools/docs_site/timelines.py"


def test_results_by_batch_stand_at_the_end_of_their_batch(timelines: ModuleType) -> None:
    layout = timelines.layout_of("spec/table_table/kip-77.txt left-batch rows 3-4")
    assert layout.unit == "batch"
    assert [(column.batch, column.label) for column in layout.columns] == [
        (1, "3"),
        (1, "end of batch"),
        (2, "4"),
    ]
    assert [*layout.lanes[-1].stacks] == [1]


def test_rows_of_inputs_that_no_column_reads_are_left_out(timelines: ModuleType) -> None:
    layout = timelines.layout_of("spec/view/group.txt count rows 5-7")
    assert [lane.name for lane in layout.lanes] == ["T", "count"]
    with pytest.raises(ValueError, match="has no rows 5-8"):
        timelines.layout_of("spec/view/group.txt count rows 5-8")


def test_the_end_of_the_input_is_a_column(timelines: ModuleType) -> None:
    layout = timelines.layout_of("spec/stream_table/kip-77.txt left-grace rows 15-end")
    assert [column.label for column in layout.columns] == ["15", "end of input"]
    assert [mark.label for mark in layout.lanes[-1].stacks[1]] == ["k: D, d @15"]


def test_a_withdrawn_result_is_crossed_out(timelines: ModuleType) -> None:
    layout = timelines.layout_of("spec/stream_stream/windows.txt left-retract rows 1-2")
    marks = layout.lanes[-1].stacks[1]
    assert [(mark.label, mark.deleted) for mark in marks] == [
        ("k: A, null @100", True),
        ("k: A, a @100", False),
    ]


def test_the_text_alternative_reads_the_rows(timelines: ModuleType) -> None:
    layout = timelines.layout_of("spec/table_table/kip-77.txt inner left rows 7-8")
    assert layout.title == (
        "Timeline of spec/table_table/kip-77.txt, rows 7 to 8. "
        "7: L k deleted at 7; inner deleted@7; left deleted@7. "
        "8: R k deleted at 8; inner nothing; left nothing."
    )
    assert f"<title>{layout.title}</title>" in timelines.svg_of(layout)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("spec/table_table/kip-77.txt inner", "is not 'spec/"),
        ("spec/table_table/none.txt inner rows 1-2", "there is no spec/table_table/none.txt"),
        ("spec/table_table/kip-77.txt full rows 1-2", "has no columns full"),
        ("spec/table_table/kip-77.txt inner rows 1-99", "has no rows 1-99"),
        ("spec/table_table/kip-77.txt inner rows 5-4", "has no rows 5-4"),
    ],
)
def test_a_block_that_names_nothing_is_refused(
    timelines: ModuleType, reference: str, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        timelines.layout_of(reference)


def test_a_page_gets_a_picture_with_a_text(timelines: ModuleType, tmp_path: Path) -> None:
    reference = "spec/table_table/kip-77.txt inner rows 4-5"
    site = _built(timelines.written(f"```timeline\n{reference}\n```\n"), tmp_path)
    layout = timelines.layout_of(reference)
    path = "assets/timelines/spec-table-table-kip-77-txt-inner-rows-4-5.svg"
    page = (site / "joins" / "page.html").read_text("utf-8")
    assert f'<img alt="{layout.title}" src="../{path}"' in page
    assert (site / path).read_text("utf-8") == timelines.svg_of(layout)


def test_a_block_that_is_wrong_fails_the_build(
    timelines: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from mkdocs.exceptions import Abort

    reference = "spec/table_table/kip-77.txt inner rows 4-5"
    stale = timelines.written(f"```timeline\n{reference}\n```\n").replace("A, a", "B, a")
    with pytest.raises(Abort):
        _built(stale, tmp_path)
    assert f"joins/page.md: the text below '{reference}' is not the table's" in caplog.text
    with pytest.raises(Abort):
        _built(stale.replace("rows 4-5", "rows 4-99"), tmp_path)
    assert "joins/page.md: spec/table_table/kip-77.txt has no rows 4-99" in caplog.text


def _built(markdown: str, folder: Path) -> Path:
    """Build a site of one page with the hook, and return its folder."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    page = folder / "docs" / "joins" / "page.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(markdown, "utf-8")
    (folder / "mkdocs.yml").write_text(
        "site_name: test\nplugins: []\nuse_directory_urls: false\n"
        f"markdown_extensions: [md_in_html]\nhooks: [{ROOT}/tools/docs_site/timelines.py]\n",
        "utf-8",
    )
    build(load_config(str(folder / "mkdocs.yml")))
    return folder / "site"


def _drawn(svg: str) -> list[str]:
    """Return the labels of the marks, lane by lane, with a cross before a deleted one."""
    groups = [*ET.fromstring(svg).iter(f"{SVG}g")]
    texts = [group.findtext(f"{SVG}text", "") for group in groups]
    crosses = [group.find(f"{SVG}path") is not None for group in groups]
    return [f"x {text}" if cross else text for text, cross in zip(texts, crosses, strict=True)]


def _expected(reference: str) -> list[str]:
    """Return the same from the reader of truth tables that the runners use."""
    path, columns, first, last = re.findall(r"spec/(.+)\.txt (.+) rows (.+)-(.+)", reference)[0]
    text = (ROOT / "spec" / f"{path}.txt").read_text("utf-8")
    table = truth_tables.parse(path, text)
    records = re.findall(r"^ *(\d+) +([A-Z]) +(\S+) +(-?\d+) +(\S+)", text, re.MULTILINE)
    assert len(records) == len(table.records)
    shown = [
        n
        for n, (step, *_) in enumerate(records)
        if int(first) <= int(step) <= (len(records) if last == "end" else int(last))
    ]
    headers = [re.findall(rf"^# join {c} *= (.+)$", text, re.MULTILINE)[0] for c in columns.split()]
    labels = []
    for name in dict.fromkeys(re.findall(r"\b[A-Z]\b", " ".join(headers))):
        for _, source, key, _, value in (records[n] for n in shown):
            if source == name:
                labels.append(f"x {key}" if value == "∅" else f"{key}: {value}")
    ends = [sum(map(len, table.batches[: n + 1])) - 1 for n in range(len(table.batches))]
    for column in map(table.columns.__getitem__, columns.split()):
        for n in shown:
            if column.emit == "change":
                labels += [_label(result, records[n][3]) for result in column.results[n]]
            elif n in ends:
                labels += [_label(result) for result in column.results[ends.index(n)]]
        labels += [_label(result) for result in column.at_end if last == "end"]
    return labels


def _label(result: Result, record_time: str = "") -> str:
    at = "" if str(result.time) == record_time else f" @{result.time}"
    key = result.key
    if isinstance(key, tuple) and len(key) == 3:
        words = f"{_word(key[0])} {key[1]}-{key[2]}"
    elif isinstance(key, tuple) and len(key) == 2:
        words = f"/{key[1]}" if key[0] is None else key[0]
    else:
        words = _word(key[0] if isinstance(key, tuple) else key)
    if result.values is None:
        return f"x {words}{at}"
    return f"{'x ' * result.withdrawn}{words}: {', '.join(map(_word, result.values))}{at}"


def _word(value: Any) -> str:
    return "null" if value is None else value or "''"
