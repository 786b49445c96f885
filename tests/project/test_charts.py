"""The bar charts of the documentation: they show the figures of the benchmarks' file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def charts() -> ModuleType:
    """The hook of the site."""
    pytest.importorskip("mkdocs", reason="needs the dependency group docs: ./dev test installs it")
    sys.path.insert(0, str(ROOT / "tools" / "docs_site"))
    import charts

    return charts


def shown(charts: ModuleType, markdown: str) -> str:
    """What the hook makes of a page, without keeping a file."""
    files = SimpleNamespace(get_file_from_path=lambda path: object())
    page = SimpleNamespace(file=SimpleNamespace(src_uri="how/page.md"))
    text: str = charts.on_page_markdown(markdown, page, None, files)
    return text


def bars(charts: ModuleType, chart: Any) -> list[float]:
    """The widths of the bars that are drawn."""
    drawing = ET.fromstring(charts.svg_of(chart))
    return [float(one.attrib["width"]) for one in drawing.iter(f"{SVG}rect")]


def test_the_page_shows_each_chart_as_the_file_has_it(charts: ModuleType) -> None:
    text = PAGE.read_text("utf-8")
    figures = charts.charts_of(charts.FIGURES)
    assert re.findall(r"^```chart\n(.+)$", text, re.MULTILINE) == [*figures]
    assert charts.written(text, figures) == text, "run python tools/docs_site/charts.py"


def test_bars_are_as_long_as_their_values(charts: ModuleType) -> None:
    chart = charts.Chart("Speed", "x", 1, [("a", 2), ("b", 0.5)])
    import svg_charts

    longest, shortest = bars(charts, chart)
    assert longest == svg_charts.SVG_WIDTH - svg_charts.VALUE_ROOM
    assert shortest == pytest.approx(longest / 4, abs=0.1)
    assert charts.text_of(chart) == f"Speed\n\na  {'#' * 30} 2 x\nb  {'#' * 8} 0.5 x"


def test_marks_show_where_things_are_equal(charts: ModuleType) -> None:
    chart = charts.Chart("", "x", 1, [("a", 2), ("b", 1)])
    mark = ET.fromstring(charts.svg_of(chart)).find(f"{SVG}path")
    assert mark is not None
    places = {float(x) for x in re.findall(r"M(\S+)", mark.attrib["d"])}
    assert places == {4 + bars(charts, chart)[1]}
    unmarked = charts.Chart("", "x", None, [("a", 2)])
    assert ET.fromstring(charts.svg_of(unmarked)).find(f"{SVG}path") is None


def test_labels_are_text_and_not_markup(charts: ModuleType) -> None:
    chart = charts.Chart("<b>", "x", None, [("a & <i>", 1)])
    texts = [one.text for one in ET.fromstring(charts.svg_of(chart)).iter(f"{SVG}text")]
    assert texts == ["<b>", "a & <i>", "1 x"]


def test_a_block_becomes_a_picture_with_its_figures_as_text(charts: ModuleType) -> None:
    (name, chart), *_ = charts.charts_of(charts.FIGURES).items()
    block = f"```chart\n{name}\n{charts.text_of(chart)}\n```"
    picture = f"![{charts.sentence_of(chart)}](../assets/charts/{name}.svg)"
    assert shown(charts, f"Before\n\n{block}\n\nAfter") == f"Before\n\n{picture}\n\nAfter"
    assert all(label in picture for label, _ in chart.bars)


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("```chart\nnone\n```", r"how/page.md: figures.json has no chart 'none'"),
        ("```chart\nover_spark\nold\n```", r"the text below 'over_spark' is not that of"),
    ],
)
def test_the_build_fails_on_other_text(charts: ModuleType, block: str, problem: str) -> None:
    with pytest.raises(charts.PluginError, match=problem):
        shown(charts, block)


def test_lines_have_round_ticks(charts: ModuleType) -> None:
    import svg_charts

    chart = svg_charts.Lines("Late", "hour", {"EWR": [(5, 0), (23, 30.83)], "JFK": [(7, 2)]})
    texts = ET.fromstring(svg_charts.lines_svg_of(chart)).iter(f"{SVG}text")
    ticks = [text.text for text in texts if "tick" in text.get("class", "")]
    assert ticks == ["0", "10", "20", "30", "40", "5", "10", "15", "20", "hour"]
