"""Pictures of topologies: mermaid, SVG, HTML, and what notebooks show."""

from __future__ import annotations

import sys
from itertools import combinations
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_topologies import CITIES, CLICKS, HOURS, NAMED, ORDERS, PAID, graph

import dovetail as dt
from dovetail import testing
from dovetail.physical.topology_graph import GraphNode, GraphStage, TopologyGraph
from dovetail.pictures.layout import Box, layout
from dovetail.pictures.svg import svg

SVG = "{http://www.w3.org/2000/svg}"
FORMS: list[Any] = ["mermaid", "svg", "html"]
TOPOLOGIES = {"join": [PAID], "windows": [HOURS], "stream": [CLICKS], "two": [NAMED, CITIES]}


def meet(one: Box, other: Box) -> bool:
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


@pytest.mark.parametrize("results", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_rates_have_places_beside_their_edges(results: Any) -> None:
    """Each figure has an empty text, and no two of them lie in one place."""
    found = graph(*results)
    picture = ET.fromstring(svg(found, rates=True))
    rates = [part for part in picture.iter(f"{SVG}text") if part.get("class") == "dt-rate"]
    assert len(rates) == len(found.flows)
    assert not any(rate.text for rate in rates)
    places = [(rate.get("x"), rate.get("y")) for rate in rates]
    assert len({*places}) == len(places)
    assert "dt-rate" not in [part.get("class") for part in ET.fromstring(svg(found)).iter()]


def test_mermaid_is_a_flowchart_with_a_box_for_each_stage() -> None:
    assert (
        PAID.explain(format="mermaid")
        == """\
flowchart TD
  n1[("orders<br/>table<br/>key id<br/>customer, open")]
  n2[("payments<br/>table<br/>key id<br/>paid")]
  n4(["left join of orders and payments<br/>table<br/>key id<br/>open, paid"])
  subgraph s1["Stage 1: by key (id bigint)"]
    n3["left join by key<br/>key id<br/>open, paid<br/>state orders: last row per key\
<br/>state payments: last row per key"]
  end
  n1 --> n3
  n2 --> n3
  n3 --> n4"""
    )


def test_mermaid_codes_its_own_signs() -> None:
    odd = testing.table('a "b" <c> #1', key="id", schema={"id": pa.int64()})
    assert 'n1[("a #34;b#34; #60;c#62; #35;1<br/>table' in odd.explain(format="mermaid")


def test_what_cannot_be_printed_is_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    odd = testing.table("a\x1b[31m\x00<b>", key="id", schema={"id": pa.int64(), "\x9b": pa.int64()})
    titles = [part.text or "" for part in ET.fromstring(odd.explain(format="svg")).iter()]
    assert any("a\\u001b[31m\\u0000<b>" in title for title in titles)
    odd.explain()
    printed = capsys.readouterr().out
    shown = [printed, repr(odd), odd._repr_html_(), *(odd.explain(format=f) for f in FORMS)]
    for text in shown:
        assert not {"\x1b", "\x00", "\x9b"} & {*text}
        assert "\\u001b[31m" in text


@pytest.mark.parametrize("results", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_svg_is_xml_with_a_title_for_each_node(results: Any) -> None:
    picture = ET.fromstring(dt.explain(*results, format="svg"))
    assert picture.tag == f"{SVG}svg"
    boxes = [part for part in picture.iter(f"{SVG}g") if "dt-node" in part.get("class", "")]
    titles = [box.findtext(f"{SVG}title") or "" for box in boxes]
    nodes = graph(*results).nodes
    assert titles == ["\n".join([f"{n.kind}: {n.title}", *n.details]) for n in nodes]
    stages = [title.text or "" for title in picture.iterfind(f".//{SVG}g/{SVG}title")]
    assert stages[: len(graph(*results).stages)] == [
        "\n".join([stage.title, *stage.reasons]) for stage in graph(*results).stages
    ]
    edges = [part for part in picture.iter(f"{SVG}path") if part.get("class") == "dt-edge"]
    assert len(edges) == len(graph(*results).edges)
    style = picture.findtext(f"{SVG}style") or ""
    assert "prefers-color-scheme: dark" in style
    assert "url(" not in style
    assert picture.find(f".//{SVG}script") is None


@st.composite
def graphs(draw: st.DrawFn) -> TopologyGraph:
    """A graph whose nodes are outside of stages first, then stage by stage."""
    owners = draw(st.lists(st.integers(0, 3), min_size=1, max_size=12).map(sorted))
    nodes = [GraphNode(f"n{n}", "view", "v", stage=owner or None) for n, owner in enumerate(owners)]
    edges = {
        (f"n{draw(st.integers(0, n - 1))}", f"n{n}")
        for n in range(1, len(nodes))
        for _ in range(draw(st.integers(0, 2)))
    }
    stages = [GraphStage(n, (), "key", (), (), (), None) for n in sorted({*owners} - {0})]
    return TopologyGraph(tuple(nodes), tuple(sorted(edges)), tuple(stages))


@given(graphs(), st.data())
def test_boxes_do_not_overlap(drawn: TopologyGraph, data: st.DataObject) -> None:
    lengths = st.tuples(st.integers(40, 300), st.integers(20, 120))
    places = layout(drawn, {node.id: data.draw(lengths) for node in drawn.nodes})
    for one, other in combinations(places.nodes.values(), 2):
        assert not meet(one, other)
    for node in drawn.nodes:
        for number, box in places.stages.items():
            assert meet(places.nodes[node.id], box) == (node.stage == number)
    for (source, target), points in places.edges.items():
        assert points[0] == places.nodes[source].exit
        assert points[-1] == places.nodes[target].entrance


def test_html_is_a_page_with_a_table_of_the_nodes() -> None:
    page = PAID.explain(format="html")
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("<svg ") == 1
    assert "<td>operator</td><td>left join by key</td><td>1</td><td>key id<br>open, paid" in page
    assert "<td>Stage 1: by key (id bigint)</td><td>a change of any table needs" in page


def test_without_the_library_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grandalf.graphs", None)
    with pytest.raises(dt.errors.ConfigurationError) as caught:
        PAID.explain(format="svg")
    assert str(caught.value) == (
        "explain: grandalf, which places boxes, is not installed. Install dovetail[pictures]."
    )
    assert PAID.explain(format="mermaid").startswith("flowchart")
    shown = PAID._repr_html_()
    assert "<table>" in shown
    assert "<svg" not in shown


def test_notebooks_show_columns_and_picture() -> None:
    shown = HOURS._repr_html_()
    assert "<strong>WindowedTable[aggregate of clicks by page; key page, window_start" in shown
    assert "<tr><td>page</td><td>string</td><td>key</td></tr>" in shown
    assert "<tr><td>n</td><td>bigint</td><td></td></tr>" in shown
    assert "<svg " in shown


def test_notebooks_get_the_picture_alone_too() -> None:
    forms = HOURS._repr_mimebundle_(include=None, exclude=None)
    assert forms["text/plain"] == repr(HOURS)
    assert forms["text/html"] == HOURS._repr_html_()
    assert forms["image/svg+xml"] == HOURS.explain(format="svg")
    assert forms["text/vnd.mermaid"].startswith("flowchart TD\n")


def test_what_cannot_be_planned_is_shown_by_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise dt.errors.PlanError("a", "b", "c")

    monkeypatch.setattr("dovetail.pictures.formats.topology_graph", refused)
    assert "<svg" not in ORDERS._repr_html_()


def test_repr_has_columns_and_types_in_three_lines_at_most() -> None:
    assert repr(PAID) == (
        "Table[left join of orders and payments; key id]\n  id bigint, open boolean, paid bigint"
    )
    wide = testing.table(
        "wide", key="id", schema={"id": pa.int64()} | {f"c{n}": pa.string() for n in range(99)}
    )
    lines = repr(wide).splitlines()
    assert len(lines) == 3
    assert lines[-1].endswith(" …")
    assert max(map(len, lines)) <= 100
