"""The graph of a topology: exact nodes, edges and stages, and the parts that results share."""

from __future__ import annotations

from sample_topologies import CITIES, CLICKS, HOURS, NAMED, ORDERS, PAID, SHIFTED, graph

from dovetail.physical.explain import explain
from dovetail.physical.topology_graph import (
    EdgeFigure,
    GraphNode,
    GraphStage,
    TopologyGraph,
    topology_graph,
)
from dovetail.plan.dead_letters import DeadLetters


def rows(of: TopologyGraph) -> list[tuple[str, str, str, int | None]]:
    """Each node without its details."""
    return [(node.id, node.kind, node.title, node.stage) for node in of.nodes]


def test_a_join_by_key_is_one_stage() -> None:
    assert graph(PAID) == TopologyGraph(
        nodes=(
            GraphNode("n1", "input", "orders", ("table", "key id", "customer, open")),
            GraphNode("n2", "input", "payments", ("table", "key id", "paid")),
            GraphNode(
                "n3",
                "operator",
                "left join by key",
                (
                    "key id",
                    "open, paid",
                    "state orders: last row per key",
                    "state payments: last row per key",
                ),
                1,
            ),
            GraphNode(
                "n4",
                "result",
                "left join of orders and payments",
                ("table", "key id", "open, paid"),
            ),
        ),
        edges=(("n1", "n3"), ("n2", "n3"), ("n3", "n4")),
        stages=(
            GraphStage(
                1,
                reads=("orders", "payments"),
                by="key (id bigint)",
                state=("orders: last row per key", "payments: last row per key"),
                lookups=(),
                reasons=("a change of any table needs the rows that the others have at its key",),
                result=None,
            ),
        ),
        flows={
            ("n1", "n3"): EdgeFigure(1, "orders"),
            ("n2", "n3"): EdgeFigure(1, "payments"),
            ("n3", "n4"): EdgeFigure(1, None),
        },
    )


def test_steps_of_one_node_are_in_several_stages() -> None:
    """A join by foreign key is three steps, an aggregate of a table two; a view has no stage."""
    found = graph(CITIES)
    assert rows(found) == [
        ("n1", "input", "orders", None),
        ("n2", "operator", "left join by foreign key customer", 1),
        ("n3", "input", "customers", None),
        ("n4", "operator", "left join by foreign key customer", 2),
        ("n5", "operator", "left join by foreign key customer", 3),
        ("n6", "view", "where open", None),
        ("n7", "operator", "aggregate by city", 4),
        ("n8", "operator", "aggregate by city", 5),
        ("n9", "result", "aggregate of left join of orders and customers by city", None),
    ]
    assert [f"{source}-{target}" for source, target in found.edges] == [
        *("n1-n2", "n2-n4", "n3-n4", "n4-n5", "n5-n6", "n6-n7", "n7-n8", "n8-n9")
    ]
    joined = "left join of orders and customers"
    assert list(found.flows.values()) == [
        *(
            EdgeFigure(1, "orders"),
            EdgeFigure(2, "orders"),
            EdgeFigure(2, "customers"),
            EdgeFigure(3, joined),
        ),
        *(EdgeFigure(3, None), EdgeFigure(4, joined), EdgeFigure(5, joined), EdgeFigure(5, None)),
    ]
    assert [node.details[0] for node in found.nodes if node.stage] == [
        *("step 1 of 3", "step 2 of 3", "step 3 of 3", "step 1 of 2", "step 2 of 2")
    ]
    assert [*found.flows] == [*found.edges]


def test_sinks_follow_their_results() -> None:
    """Those of dead letters follow nothing."""
    sinks = {PAID.plan: ["to_delta('a')", "to_topic('b')"], DeadLetters(): ["to_parquet('c')"]}
    found = topology_graph(PAID.plan, sinks=sinks)
    assert rows(found)[3:] == [
        ("n4", "result", "left join of orders and payments", None),
        ("n5", "sink", "to_delta('a')", None),
        ("n6", "sink", "to_topic('b')", None),
        ("n7", "sink", "to_parquet('c')", None),
    ]
    assert found.edges == (*graph(PAID).edges, ("n4", "n5"), ("n4", "n6"))
    assert found.nodes[-1].details == ("dead letters",)
    assert found.flows == graph(PAID).flows
    assert explain(PAID.plan, sinks=sinks).endswith(
        "\n\nSinks\n"
        "  left join of orders and payments → to_delta('a')\n"
        "  left join of orders and payments → to_topic('b')\n"
        "  dead letters → to_parquet('c')"
    )


def test_rows_within_a_stage_have_no_figure() -> None:
    found = graph(SHIFTED)
    assert found.edges == (("n1", "n2"), ("n2", "n3"), ("n3", "n4"))
    assert found.flows == {("n1", "n2"): EdgeFigure(1, "clicks"), ("n3", "n4"): EdgeFigure(1, None)}


def test_joined_windows_are_several_operators_of_one_stage() -> None:
    found = graph(SHIFTED.to_stream())
    assert rows(found) == [
        ("n1", "input", "clicks", None),
        ("n2", "operator", "aggregate by page, windows tumbling, 1 hour, grace 0 s", 1),
        ("n3", "operator", "left join of windows with those 1 hour earlier", 1),
        ("n4", "operator", "windows as a stream", 1),
        ("n5", "result", SHIFTED.plan.name, None),
    ]
    assert found.edges == (("n1", "n2"), ("n2", "n3"), ("n3", "n4"), ("n4", "n5"))


def test_a_windowed_table_ends_with_its_own_operator() -> None:
    found = graph(HOURS)
    assert [node.kind for node in found.nodes] == ["input", "operator", "result"]
    assert found.nodes[1].title.startswith("aggregate by page")
    assert found.nodes[2].details[0] == "windowed table"


def test_a_lone_stream_is_an_input_and_a_lone_table_keeps_its_rows() -> None:
    assert rows(graph(CLICKS)) == [("n1", "input", "clicks", None)]
    assert rows(graph(ORDERS)) == [
        ("n1", "input", "orders", None),
        ("n2", "operator", "rows by key", 1),
        ("n3", "result", "orders", None),
    ]


def test_results_share_inputs_and_stages() -> None:
    found = graph(NAMED, CITIES)
    assert [node.title for node in found.nodes if node.kind == "input"] == ["orders", "customers"]
    assert [stage.number for stage in found.stages] == [1, 2, 3, 4, 5]
    leaving = [target for source, target in found.edges if source == "n5"]
    assert sorted(found.nodes[int(node[1:]) - 1].kind for node in leaving) == ["result", "view"]


def test_text_shows_a_shared_part_once() -> None:
    trees, _, _ = explain(NAMED.plan, CITIES.plan).partition("\n\nStage 1")
    assert (
        trees
        == """\
Topology
left join by foreign key customer  (key id; open, city)
├─ orders  (key id; customer, open)
└─ customers  (key name; city)

Topology
aggregate by city  (key city; n)
└─ where open  (key id; open, city)
   └─ left join by foreign key customer  (key id; open, city), as above"""
    )


def test_text_of_one_result_repeats_its_parts() -> None:
    text = explain(SHIFTED.plan)
    assert text.count("└─ clicks  (key id; page)") == 2
    assert "as above" not in text
