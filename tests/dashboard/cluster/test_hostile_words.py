"""What others wrote is text on every page of a cluster: names of pods and nodes, labels, messages, models, layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from bench.simulated_cluster import SimulatedCluster

from tests.dashboard.cluster.test_cluster_server import held_by
from tests.dashboard.reading import parsed, shape, text_of
from tests.documents.test_markup import HOSTILE
from tests.kubernetes.devices.test_order import a100s
from tranche.core.errors import UsageError
from tranche.core.layout import Layout, LayoutFile, LayoutSpec
from tranche.core.profile import parse_profile
from tranche.dashboard.cluster.cluster_action import (
    ClusterAction,
    layout_act,
    node_acts,
    node_plan,
    plan_page,
    refused_page,
    release_plan,
    share_act,
)
from tranche.dashboard.cluster.cluster_history import GpuHistory, UnreportedSpan, past_view
from tranche.dashboard.cluster.cluster_waste import WasteHistory, cluster_waste_page, waste_data
from tranche.dashboard.cluster.kube_event import decode_kube_event
from tranche.dashboard.cluster.node_layouts import NodeLayoutView, node_layouts_page
from tranche.dashboard.cluster.node_page import node_gpu_page, node_page, node_share_page
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, KubeNodeState, NameVisibility, SeenNode
from tranche.dashboard.cluster.waiting_page import (
    answered,
    cluster_events_page,
    cluster_queue_page,
)
from tranche.dashboard.frame import DashboardPage, whole_page
from tranche.dashboard.queue_page import ask_page
from tranche.documents.history import HistoryPlace, HistorySpan
from tranche.documents.markup import Child, printable
from tranche.kubernetes.api.objects import KubePod, PodRef
from tranche.kubernetes.fleet.explanation import FleetExplanation, NodeGroup, WaitStatus
from tranche.kubernetes.fleet.objects import FleetPod
from tranche.kubernetes.telling.told_view import LayoutReport, ViewReport
from tranche.planning.layouts.named_layouts import LayoutList

ALL = NameVisibility(everywhere=True)
NOW = 2e9


def node_of(said: str) -> SeenNode:
    """A node of which everything that somebody else can name is called so."""
    (plain,) = SimulatedCluster(1).snapshot(1.0).nodes.values()
    held = [
        {**each, "id": f"a{place}", "keeper": {"kind": "pod", "namespace": said, "name": said}}
        for place, each in enumerate(plain.overview["allocations"])
    ]
    known = {each["id"]: f"a{place}" for place, each in enumerate(plain.overview["allocations"])}

    def named(found: Any) -> Any:
        match found:
            case dict():
                return {name: named(value) for name, value in found.items()}
            case list():
                return [named(each) for each in found]
            case str():
                return known.get(found, found)
            case _:
                return found

    gpus = [{**named(gpu), "name": said, "withheld": said} for gpu in plain.overview["gpus"]]
    standing = KubeNodeState(mode=said, labels={said: said, "nvidia.com/mig.config": said})
    return SeenNode(said, standing, {**plain.overview, "gpus": gpus, "allocations": held}, 1.0, said)


def answer(said: str) -> FleetExplanation:
    groups = (NodeGroup(said, said, (said,), 1, holders=(said,)),)
    return FleetExplanation(said, WaitStatus.WAITING, said, (said,), groups=groups, remedies=(said,), notes=(said,))


def refused(said: str) -> Iterator[Child]:
    raise UsageError(said)


def pages(said: str) -> dict[str, DashboardPage | None]:
    node = node_of(said)
    seen = ClusterSnapshot().after([node], 1.0, notes=(said,))
    book = WasteHistory()
    book.take(ClusterSnapshot().after([SeenNode(said, overview=node.overview, seen=1.0)], 1.0))
    report = book.report()
    assert report is not None
    gpu = node.overview["gpus"][0]
    uuid = gpu["uuid"]
    ended = HistorySpan(HistoryPlace(said, 0, 1), 1.0, NOW, "a9", said, said)
    past = GpuHistory(1.0, (ended, replace(ended, allocation_id="")), {}, (UnreportedSpan(1.0, None),))
    event = decode_kube_event(
        {
            "metadata": {"uid": said, "namespace": said, "name": said},
            "involvedObject": {"kind": said, "namespace": said, "name": said},
            "reason": said,
            "message": said,
            "lastTimestamp": "2026-11-22T10:00:00Z",
        }
    )
    waiting = FleetPod(said, said), answer(said)
    layout = node_plan(ClusterAction("layout", said, "all-1g.5gb"), node)
    last = f"z {said}"
    named = Layout(last, (LayoutSpec(True, ((parse_profile("1g.5gb"), 7),)),))
    offer = LayoutList(said, LayoutFile((named,)))
    told = ViewReport(said, held_by(a100s(8), ("blue", 0)), layouts=LayoutReport(True, "wait", offer=offer))
    layouts = NodeLayoutView(node, told, ALL)
    release = release_plan(ClusterAction("release", said, share="a0"), [KubePod(PodRef(said, said), said)])
    return {
        "node": node_page(node, (said,), NOW, node_acts(node)),
        "gpu": node_gpu_page(node, uuid, (said,), NOW, past_view(node, gpu, past, ALL, NOW, 1)),
        "share": node_share_page([node], "a0", NOW, share_act),
        "queue": cluster_queue_page([waiting], 1, 1, (said,), NOW),
        "ask": ask_page({"kind": "gpus", "amount": "1"}, lambda _: answered(answer(said))),
        "no answer": ask_page({"kind": "gpus", "amount": "1"}, lambda _: refused(said)),
        "strange form": ask_page({"kind": "gpus", "amount": said}, lambda _: refused(said)),
        "events": cluster_events_page([event], (said,), True, {}),
        "waste": cluster_waste_page(waste_data(report, ALL, True), seen, ALL),
        "layout": plan_page(layout, "key", "", said, moved=said),
        "release": plan_page(release, "", said, said),
        "refused": refused_page(said, said),
        "layouts": node_layouts_page(layouts, last, layouts.outlook(last), "", layout_act),
        "no layout": node_layouts_page(layouts, said, None, said, layout_act),
    }


def tree_of(page: DashboardPage | None) -> ElementTree.Element:
    assert page is not None
    return parsed(whole_page(page, path="/", machine="here", version="a.1", taken=1.0))


# No half characters: the API server writes none, and what an agent tells is not read where it has any.
@pytest.mark.parametrize("text", [each for each in HOSTILE if each.encode(errors="ignore")])
def test_what_others_wrote_is_text_on_every_page(text: str) -> None:
    plain, hostile = pages("plain words"), pages(text)
    for name, page in hostile.items():
        found = tree_of(page)
        # What does not fit into a block is left out of a drawing.
        drawn = ("rect", "text")
        shapes = [[each for each in shape(tree) if each[0] not in drawn] for tree in (found, tree_of(plain[name]))]
        assert shapes[0] == shapes[1], name
        assert printable(text).strip() in text_of(found), name
