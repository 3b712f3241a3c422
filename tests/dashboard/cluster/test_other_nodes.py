"""Whatever one node's view says, the other nodes' rows, pages and documents are as if it had said nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.dashboard.cluster.teams import OUR_SIGHT, shared_machines
from tests.dashboard.cluster.test_cluster_server import held_by
from tests.dashboard.reading import parsed, text_of
from tests.kubernetes.devices.test_order import a100s
from tests.kubernetes.fleet.clusters import node as node_object
from tests.kubernetes.telling.garbling import garbled, lease_of
from tranche.core.allocation import NodeView
from tranche.core.request import parse_request
from tranche.dashboard.cluster.cluster_history import MOST_GONE, ClusterHistory
from tranche.dashboard.cluster.cluster_routes import ClusterPages
from tranche.dashboard.cluster.nodes_page import RowCache
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, NameVisibility, SeenNode, heard, seen_node
from tranche.dashboard.cluster.source import ClusterObservation
from tranche.dashboard.cluster.user_view import UserView, ViewerPermission
from tranche.dashboard.cluster.waiting_page import explain_pending, explain_request
from tranche.dashboard.frame import DashboardPage, whole_page
from tranche.documents.markup import element
from tranche.documents.overview import overview_data
from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.claims.allocation_backend import AllocationBackend
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.objects import FleetPod, decode_fleet_node
from tranche.kubernetes.telling.told_view import ViewReport, told

GOOD = held_by(a100s(2), ("blue", 0), ("zebra", 1))
NODES = {
    name: replace(decode_fleet_node(node_object(name, labels={"tranche.dev/mode": "mixed"})), hands_out=True)
    for name in ("bad", "good")
}
RIGHTS = [
    ViewerPermission(NameVisibility(everywhere=True), True),
    ViewerPermission(OUR_SIGHT, True),
    ViewerPermission(OUR_SIGHT),
]


def cluster_with(*others: tuple[SeenNode, ViewReport | None]) -> ClusterObservation:
    good = SeenNode("good", overview=overview_data(told(GOOD), (), ()), seen=1.0)
    nodes = [(good, ViewReport("good", told(GOOD))), *others]
    snapshot = ClusterSnapshot().after([node for node, _ in nodes], 2.0)
    return ClusterObservation(snapshot, {node.name: said for node, said in nodes if said is not None}, NODES)


class Admitted(ClusterPages):
    """The pages of one viewer, who was let in."""

    def __init__(self, view: UserView) -> None:
        super().__init__("here", None)  # type: ignore[arg-type]
        self._view = view

    def strange(self, method: str, headers: Mapping[str, str]) -> None:
        return None

    async def admit(self, scope: Any, headers: Mapping[str, str]) -> str:
        scope["view"] = self._view
        return ""


def answers(seen: ClusterObservation, rights: ViewerPermission, *paths: str) -> dict[str, tuple[int, str]]:
    """What somebody is answered at those addresses, without a server between."""
    user_view = UserView(rights)
    user_view.take(seen)
    app = Admitted(user_view)
    app.waste.take(seen.snapshot)
    app.past.take(seen.snapshot)

    async def ask(path: str) -> tuple[int, str]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        path, _, query = path.partition("?")
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "headers": [], "root_path": "", "scheme": "http", "server": ("here", 80),
        }  # fmt: skip
        await app(scope, receive, send)
        text = b"".join(each.get("body", b"") for each in sent[1:]).decode()
        return sent[0]["status"], re.sub(r'data-version="[^"]*"', "", text)

    async def every() -> dict[str, tuple[int, str]]:
        return {path: await ask(path) for path in paths}

    return asyncio.run(every())


def row_of(page: str, node: str) -> bytes:
    (row,) = (each for each in parsed(page).iter("tr") if each.get("id") == f"node-{node}")
    row.attrib.pop("data-changed", None)
    return ElementTree.tostring(row)


GPU = f"/gpus/{GOOD.node.gpus[1].uuid}"
ALONE = "/nodes/good", "/nodes/good/layouts", "/shares/a0b0c0d0", GPU, f"{GPU}?node=good", "/api/nodes/good"
TOGETHER = "/", "/nodes/bad", "/waste", "/api/nodes", "/api/waste", "/events"


def check_the_other_node(seen: ClusterObservation, rights: ViewerPermission) -> dict[str, tuple[int, str]]:
    plain, found = (answers(each, rights, *ALONE, *TOGETHER) for each in (cluster_with(), seen))
    for path in ALONE:
        if "Several nodes" not in found[path][1]:
            assert found[path] == plain[path], path
    assert {path: found[path][0] for path in TOGETHER if found[path][0] != 200} in ({}, {"/nodes/bad": 404})
    assert row_of(found["/"][1], "good") == row_of(plain["/"][1], "good")
    (mine,) = (each for each in json.loads(found["/api/nodes"][1])["nodes"] if each["name"] == "good")
    assert [mine] == json.loads(plain["/api/nodes"][1])["nodes"]
    return found


@given(garbled(shared_machines()), st.sampled_from(RIGHTS))
@example("[" * 100_000, RIGHTS[0])
def test_a_garbled_view_is_of_its_node_alone(text: str, rights: ViewerPermission) -> None:
    said = heard(lease_of(text, "bad"), None, 2.0)
    seen = cluster_with((seen_node("bad", said, NODES["bad"], 2.0), said.told))
    check_the_other_node(seen, rights)
    user_view = UserView(rights)
    user_view.take(seen)
    explain_request(
        parse_request(gpu_memory="30Gi"), user_view.gates(Fleet(), AllocationBackend.GATES), AllocationBackend.GATES
    )


def broken(kind: str) -> tuple[SeenNode, ViewReport | None]:
    """A node that came through the reading and fails where it is shown."""
    overview = overview_data(told(GOOD), (), ())
    match kind:
        case "no id":
            del overview["allocations"][0]["id"]
        case "no grants":
            del overview["allocations"][0]["grants"]
        case "no uuid":
            del overview["gpus"][0]["uuid"]
        case "no number":
            overview["gpus"][0]["memoryBytes"] = 10**400
        case _:
            overview["gpus"][0]["slices"] = 7
    return SeenNode("bad", overview=overview, seen=1.0), ViewReport("bad", NodeView(None))  # type: ignore[arg-type]


@pytest.mark.parametrize("rights", RIGHTS)
@pytest.mark.parametrize("kind", ["no id", "no grants", "no uuid", "no number", "no slices"])
def test_a_node_that_cannot_be_shown_is_marked_alone(
    kind: str, rights: ViewerPermission, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        found = check_the_other_node(cluster_with(broken(kind)), rights)
    marked = [each for each in caplog.records if each.message == "a node cannot be shown"]
    assert {each.__dict__["node"] for each in marked} == {"bad"}
    if rights.all_nodes:
        assert "cannot be shown" in found["/nodes/bad"][1]
        assert ("cannot be shown" in found["/"][1]) == (kind != "no number")


def test_what_fails_in_the_making_of_a_node_makes_it_unreadable_and_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lease = lease_of("{}", "bad")
    with patch("tranche.dashboard.cluster.snapshot.told_from_lease", side_effect=ZeroDivisionError("of a kind")):
        first = heard(lease, None, 2.0)
        again = heard(lease, first, 3.0)
    assert (first.overview, first.told, again.overview) == (None, None, None)
    assert "cannot be read" in seen_node("bad", again, NODES["bad"], 3.0).trouble
    assert [each.__dict__["error"] for each in caplog.records] == ["ZeroDivisionError: of a kind"]


def test_who_tells_of_anothers_gpu_does_not_take_its_page() -> None:
    liar = overview_data(told(a100s(2)), (), ())
    seen = cluster_with((SeenNode("a-liar", overview=liar, seen=1.0), None))
    paths = (GPU, f"{GPU}?node=good", f"{GPU}?node=a-liar", f"{GPU}?node=nobody")
    both, mine, its, nobodys = answers(seen, RIGHTS[0], *paths).values()
    assert "Several nodes have a GPU with that UUID" in both[1]
    ways = {each.get("href") for each in parsed(both[1]).iter("a")}
    assert {f"{GPU}?node=good", f"{GPU}?node=a-liar"} <= ways
    assert mine == answers(cluster_with(), RIGHTS[0], GPU)[GPU]
    assert its[1] != mine[1]
    assert nobodys[0] == 404
    again = {each.get("href") for each in parsed(mine[1]).iter("a") if (each.get("id") or "").startswith("hours-")}
    assert again == {f"{GPU}?hours={hours}&node=good" for hours in (1, 6, 24, 168)}


def test_a_pod_about_which_nothing_can_be_said_waits_like_others() -> None:
    # What is written on a pod as the choice for it, somebody else may have written.
    grants = [{"mechanism": "whole", "gpuUUID": ["x"], "placement": None}]
    texts = ["[" * 100_000, json.dumps({"node": "good", "grants": grants}), json.dumps({"node": {}, "grants": [7]})]
    gates = UserView(RIGHTS[0]).gates(Fleet(), AllocationBackend.GATES)
    for text in texts:
        pod = FleetPod("blue", "odd", gated=True, by_gate=parse_request(gpus="1"), chosen=text)
        found = explain_pending(pod, Fleet(), gates, AllocationBackend.GATES)
        assert found is not None
        with patch("tranche.dashboard.cluster.waiting_page.explain_waiting", side_effect=KeyError("x")):
            failed = explain_pending(pod, Fleet(), gates, AllocationBackend.GATES)
        assert failed is not None
        assert "the reason is unknown" in failed.message


def test_who_tells_of_new_gpus_all_the_time_does_not_fill_the_memory() -> None:
    past, seen = ClusterHistory(), ClusterSnapshot()
    (gpu,) = overview_data(told(a100s(1)), (), ())["gpus"]
    for turn in range(3 * MOST_GONE):
        overview = {"gpus": [{**gpu, "uuid": f"GPU-{turn}"}], "allocations": [], "waiters": []}
        seen = seen.after([SeenNode("bad", overview=overview, seen=float(turn))], float(turn))
        past.take(seen)
    assert len(past._reached) == MOST_GONE + 1
    assert ("bad", f"GPU-{turn}") in past._reached


@pytest.mark.parametrize("lease", [None, lease_of("[" * 100_000, "bad")])
def test_what_is_unknown_is_not_shown_as_empty(lease: Lease | None) -> None:
    said = None if lease is None else heard(lease, None, 2.0)
    found = answers(cluster_with((seen_node("bad", said, NODES["bad"], 2.0), None)), RIGHTS[0], "/nodes/bad", "/")
    shown = text_of(parsed(found["/nodes/bad"][1]))
    assert "Its GPUs are unknown: " in shown
    for wrong in ("?.", "Nobody has", "given away"):
        assert wrong not in shown
    assert "unknown" in found["/"][1]


def test_both_kinds_of_page_say_in_their_own_words_that_they_see_nothing_newer() -> None:
    (live,) = (
        each for each in parsed(answers(cluster_with(), RIGHTS[0], "/")["/"][1]).iter("p") if each.get("id") == "live"
    )
    assert "from the cluster" in str(live.get("data-unseen"))
    machines = whole_page(DashboardPage("Fleet", element("div")), path="/", machine="m", version="1", taken=1.0)
    (live,) = (each for each in parsed(machines).iter("p") if each.get("id") == "live")
    assert live.get("data-unseen") == "the driver does not answer"


def test_a_row_that_cannot_be_made_is_made_again_when_the_node_is_another() -> None:
    book, (bad, _) = RowCache(), broken("no uuid")
    assert "cannot be shown" in str(book.row(bad).shown)
    whole = ClusterSnapshot().after([SeenNode("bad", overview=overview_data(GOOD, (), ()), seen=1.0)], 1.0).nodes["bad"]
    assert "cannot be shown" not in str(book.row(whole).shown)
