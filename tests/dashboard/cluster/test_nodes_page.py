"""The page of nodes: its numbers are the documents', names are for those who may see them, what others wrote is text."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from urllib.parse import parse_qsl
from xml.etree import ElementTree

import pytest
from bench.simulated_cluster import SimulatedCluster
from hypothesis import given
from hypothesis import strategies as st

from tests.dashboard.reading import figures, parsed, shape, text_of
from tests.documents.test_markup import HOSTILE
from tests.documents.test_picture import every_kind
from tests.strategies import sharing_views, uncuttable_gpu, view_of
from tranche.core.allocation import NodeView
from tranche.dashboard.cluster.nodes_page import NodeFilter, RowCache, node_row, nodes_page, rows_message
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, KubeNodeState, NameVisibility, SeenNode
from tranche.dashboard.frame import whole_page
from tranche.dashboard.live import PageUpdate
from tranche.documents.blocks import BlockStatus, blocks_of
from tranche.documents.overview import overview_data

ALL = NameVisibility(everywhere=True)
EVERY = NodeFilter()
VIEWS = st.lists(sharing_views(max_gpus=3), min_size=1, max_size=3)


def snapshot_of(views: list[NodeView]) -> ClusterSnapshot:
    return ClusterSnapshot().after(
        [SeenNode(f"n{place}", overview=overview_data(view, (), ()), seen=1.0) for place, view in enumerate(views)], 1.0
    )


def tree_of(seen: ClusterSnapshot, choice: NodeFilter = EVERY, sight: NameVisibility = ALL) -> ElementTree.Element:
    page = nodes_page(RowCache().rows(seen), seen.notes, choice, sight)
    return parsed(whole_page(page, path="/", machine="here", version="a.1", taken=1.0))


def rows_of(page: ElementTree.Element) -> list[ElementTree.Element]:
    return [each for each in page.iter("tr") if each.get("id")]


@given(VIEWS)
def test_the_numbers_are_those_of_the_documents(views: list[NodeView]) -> None:
    seen = snapshot_of(views)
    gpus = [gpu for node in seen.nodes.values() for gpu in node.overview["gpus"]]
    slices = Counter(each["state"] for gpu in gpus for each in gpu["slices"])
    page = tree_of(seen)
    assert figures(page) == {
        "nodes": str(len(views)),
        "nodes not seen": "0",
        "GPUs": str(len(gpus)),
        "slices": str(slices.total()),
        "slices held": str(slices["held"]),
        "slices idle": str(slices["idle"]),
        "slices unknown": "0",
        "shares": str(sum(len(view.allocations) for view in views)),
    }
    for row, node in zip(rows_of(page), seen.nodes.values(), strict=True):
        blocks = [
            block for gpu in blocks_of(node.overview["gpus"], node.overview["allocations"]) for block in gpu.blocks
        ]
        looks = Counter(each.look for each in blocks)
        cells = {each.get("data-label"): text_of(each) for each in row.iter("td")}
        assert cells["Held"] == str(looks[BlockStatus.HELD] + looks[BlockStatus.SHARED])
        assert cells["Idle"] == str(looks[BlockStatus.IDLE])
        drawn = [each.get("d", "") for each in row.iter("path") if "tr-box" in each.get("class", "")]
        assert sum(each.count("M") for each in drawn) == len(blocks), "each block is drawn once"


def test_gpus_that_are_alike_are_told_once() -> None:
    cluster = SimulatedCluster(1, idle=0.0)
    (picture,) = (each for each in tree_of(cluster.snapshot(1.0)).iter("svg") if each.get("class") == "bars")
    assert picture.get("aria-label") == "GPU 0 to 7: 7 held, 1 unusable"


@given(st.integers(0, 10_000), st.sampled_from(["", "node-0001", "vision/", "train-7", "idle"]), st.booleans())
def test_who_takes_in_what_the_stream_says_has_the_page_as_it_is(seed: int, text: str, narrow: bool) -> None:
    cluster, book = SimulatedCluster(4, seed), RowCache()
    sight = NameVisibility(frozenset({"vision"})) if narrow else ALL
    choice = NodeFilter(q=text)
    seen = cluster.snapshot(1.0)
    shown = {each.get("id"): ElementTree.tostring(each) for each in rows_of(tree_of(seen, choice, sight))}
    for turn in range(4):
        before, seen = (
            seen,
            seen.after(cluster.changes(9, 2.0 + turn), 2.0 + turn, gone=["node-0003"] if turn == 2 else []),
        )
        news = PageUpdate(f"r.{seen.version}", seen, "", before.version)
        told = json.loads(rows_message(news, book, choice, sight).partition("data: ")[2])
        for name in told["gone"]:
            shown.pop(f"node-{name}", None)
        for each in parsed(f"<tbody>{told['rows']}</tbody>"):
            shown[each.get("id")] = ElementTree.tostring(each)
        page = tree_of(seen, choice, sight)
        assert {each.get("id"): ElementTree.tostring(each) for each in rows_of(page)} == shown
        (summary,) = (each for each in page.iter("div") if each.get("id") == "summary")
        assert ElementTree.tostring(parsed(told["summary"])) == ElementTree.tostring(summary)


def test_nodes_are_in_the_order_that_is_asked_for_and_what_is_unknown_comes_last() -> None:
    views = [every_kind(), every_kind(), view_of(uncuttable_gpu(1))]
    empty, *others = snapshot_of([views[2], *views[:2]]).nodes.values()
    unheard = replace(others[0], trouble="its agent does not answer")
    seen = ClusterSnapshot().after([empty, unheard, others[1]], 2.0)

    def order(sort: str) -> list[str]:
        page = tree_of(seen, NodeFilter(sort=sort))
        assert "data-feed" not in {name for each in page.iter("body") for name in each.attrib}
        return [str(each.get("id")).removeprefix("node-") for each in rows_of(page)]

    low, gone, high = empty.name, unheard.name, others[1].name
    assert order("nodes.held") == [low, high, gone]
    assert order("-nodes.held") == [high, low, gone]
    assert order("nodes.state")[-1] == low
    assert order("-nodes.node") == sorted((low, gone, high), reverse=True)
    assert order("nodes.nothing") == sorted((low, gone, high))


def test_nothing_is_told_of_what_is_as_it_was() -> None:
    seen = SimulatedCluster(2).snapshot(1.0)
    unchanged = PageUpdate("r.1", seen, "", seen.version)
    assert rows_message(unchanged, RowCache(), NodeFilter(), ALL) == ""


def test_names_of_other_namespaces_are_neither_shown_nor_found() -> None:
    seen = SimulatedCluster(3).snapshot(1.0)
    mine = NameVisibility(frozenset({"vision"}))
    shown = text_of(tree_of(seen, sight=mine))
    assert "vision" in shown
    assert "train-" not in shown
    for other in ("speech", "ranking", "search", "ads"):
        assert other not in shown
        assert rows_of(tree_of(seen, NodeFilter(q=f"{other}/"), mine)) == []
        assert rows_of(tree_of(seen, NodeFilter(namespace=other), mine)) == []
        assert len(rows_of(tree_of(seen, NodeFilter(q=f"{other}/")))) == 3
    assert len(rows_of(tree_of(seen, NodeFilter(namespace="vision"), mine))) == 3


def test_nodes_are_found_by_what_is_said_of_them() -> None:
    one, two, three = (SimulatedCluster(3, idle=0.0).snapshot(1.0)).nodes.values()
    two = replace(two, trouble="its agent does not answer", standing=KubeNodeState(ready=False, unschedulable=True))
    three = replace(three, standing=KubeNodeState(ready=True, labels={"zone": "east-1"}))
    seen = ClusterSnapshot().after([one, two, three, SeenNode("never")], 2.0)

    def found(**asked: str) -> list[str]:
        return [str(each.get("id")) for each in rows_of(tree_of(seen, NodeFilter(**asked)))]

    assert found(q="EAST-1") == ["node-node-0002"]
    assert found(state="cordoned") == ["node-node-0001"]
    assert found(state="trouble") == ["node-never", "node-node-0001"]
    assert found(q="does not answer") == ["node-node-0001"]
    assert found(model="A100-SXM4-40GB", state="idle") == []
    assert len(found(model="A100-SXM4-40GB")) == 3
    (row,) = (each for each in rows_of(tree_of(seen)) if each.get("id") == "node-node-0001")
    assert "not ready; cordoned; its agent does not answer: last seen" in text_of(row)
    (never,) = (each for each in rows_of(tree_of(seen)) if each.get("id") == "node-never")
    assert "its agent is silent" in text_of(never)
    assert "1 of 4 nodes match." in text_of(tree_of(seen, NodeFilter(state="cordoned")))


@given(VIEWS)
def test_what_a_node_that_is_not_heard_had_is_unknown_and_neither_held_nor_free(views: list[NodeView]) -> None:
    seen = snapshot_of(views)
    *heard, last = seen.nodes.values()
    seen = seen.after([replace(last, trouble="its agent does not answer")], 2.0)
    slices = {
        node.name: Counter(each["state"] for gpu in node.overview["gpus"] for each in gpu["slices"])
        for node in seen.nodes.values()
    }
    page = tree_of(seen)
    told = figures(page)
    assert (told["nodes"], told["nodes not seen"]) == (str(len(views)), "1")
    assert told["slices"] == str(sum(each.total() for each in slices.values()))
    assert told["slices unknown"] == str(slices[last.name].total())
    assert told["slices held"] == str(sum(slices[each.name]["held"] for each in heard))
    assert told["slices idle"] == str(sum(slices[each.name]["idle"] for each in heard))
    (row,) = (each for each in rows_of(page) if each.get("id") == f"node-{last.name}")
    cells = {each.get("data-label"): text_of(each) for each in row.iter("td")}
    assert (cells["Held"], cells["Idle"], cells["Free"]) == ("unknown", "unknown", "unknown")
    assert all(str(each.get("aria-label")).startswith("as last seen: ") for each in row.iter("svg"))
    for state in ("free", "idle"):
        assert row.get("id") not in {each.get("id") for each in rows_of(tree_of(seen, NodeFilter(state=state)))}


def test_gpus_that_change_or_are_not_given_away_are_marked_and_nobody_is_named() -> None:
    (node,) = SimulatedCluster(1, idle=0.0).snapshot(1.0).nodes.values()
    first, second, *rest = node.overview["gpus"]
    marked = [{**first, "withheld": "cordoned by ada: smells"}, {**second, "changing": True}, *rest]
    seen = ClusterSnapshot().after([replace(node, overview={**node.overview, "gpus": marked})], 1.0)
    (row,) = rows_of(tree_of(seen))
    assert "1 GPU withheld; 1 GPU being changed" in text_of(row)
    assert "8 × A100-SXM4-40GB" in text_of(row)
    assert [each.get("class") for each in row.iter("path")].count("tr-changing") == 1
    assert "ada" not in text_of(tree_of(seen))
    assert rows_of(tree_of(seen, NodeFilter(q="smells"))) == []
    for state in ("withheld", "being changed"):
        assert len(rows_of(tree_of(seen, NodeFilter(state=state)))) == 1
    assert len(rows_of(tree_of(seen, NodeFilter(model="A100-SXM4-40GB")))) == 1


def test_rows_are_made_again_only_where_something_has_changed() -> None:
    cluster, book = SimulatedCluster(5), RowCache()
    seen = cluster.snapshot(1.0)
    before = book.rows(seen)
    later = seen.after([*cluster.changes(1, 2.0), *seen.nodes.values()][:1], 2.0)
    changed = {each.name for each in later.nodes.values() if each.changed == later.version}
    assert {new.name for old, new in zip(before, book.rows(later), strict=True) if old is not new} == changed


def test_no_rows_are_no_numbers() -> None:
    assert set(figures(tree_of(ClusterSnapshot())).values()) == {"0"}


@pytest.mark.parametrize("text", HOSTILE)
def test_what_others_wrote_is_text(text: str) -> None:
    def page(said: str) -> ElementTree.Element:
        (plain,) = SimulatedCluster(1).snapshot(1.0).nodes.values()
        gpus = [{**gpu, "name": said} for gpu in plain.overview["gpus"]]
        holders = [
            {**each, "keeper": {"kind": "pod", "namespace": said, "name": said}}
            for each in plain.overview["allocations"]
        ]
        node = SeenNode(
            said,
            KubeNodeState(labels={said: said}),
            {**plain.overview, "gpus": gpus, "allocations": holders},
            1.0,
            said,
        )
        return tree_of(ClusterSnapshot().after([node], 1.0, notes=(said,)), NodeFilter(q=said))

    assert shape(page(text)) == shape(page("plain"))
    row = node_row(SeenNode(text))
    news = PageUpdate("r.1", ClusterSnapshot().after([SeenNode(text)], 1.0), "", 0)
    message = rows_message(news, RowCache(), NodeFilter(), ALL)
    assert message.count("\n") == 3, "a line of the stream ends where the message ends"
    assert str(row.shown).startswith("<tr ")


def test_the_first_view_leads_to_the_nodes_that_are_in_trouble() -> None:
    calm = overview_data(every_kind(), (), ())
    calm = {
        **calm,
        "gpus": [{**gpu, "lost": False, "slices": [], "vacant": []} for gpu in calm["gpus"]],
        "allocations": [],
    }
    lost = {**calm, "gpus": [{**gpu, "lost": True} for gpu in calm["gpus"]]}
    ready, away = KubeNodeState(ready=True), "its agent does not answer"
    nodes = [SeenNode("n0", ready, calm, 1.0)]
    page = tree_of(ClusterSnapshot().after(nodes, 1.0))
    assert "No node that you can see is in trouble." in text_of(page)
    nodes += [
        SeenNode("n1", ready, lost, 1.0),
        SeenNode("n2", ready, lost, 1.0),
        SeenNode("n3", ready, calm, 1.0, away),
    ]
    nodes += [SeenNode("n4", KubeNodeState(ready=False), calm, 1.0)]
    seen = ClusterSnapshot().after(nodes, 1.0)
    (line,) = [each for each in tree_of(seen).iter("section") if each.get("class") == "needs"]
    ways = {text_of(each): str(each.get("href")) for each in line.iter("a")}
    assert list(ways) == ["2 nodes: a GPU is lost", "1 node: not seen", "1 node: not ready"]
    found = []
    for way in ways.values():
        choice = NodeFilter.asked(dict(parse_qsl(way.removeprefix("/?"))))
        found.append([str(each.get("id")) for each in rows_of(tree_of(seen, choice))])
    assert found == [["node-n1", "node-n2"], ["node-n3"], ["node-n4"]]
