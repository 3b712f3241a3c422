"""The real server of a cluster's page: whom it answers, what each is shown, and what it says when Kubernetes is silent."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard import asking
from tests.dashboard.asking import Answered
from tests.dashboard.cluster.reviewing import People
from tests.dashboard.cluster.served_cluster import (
    ServedClusterPage,
    forget_told,
    pending_pod,
    served_cluster_page,
    tell,
    tell_garbage,
)
from tests.dashboard.reading import figures, parsed, tables, text_of
from tests.kubernetes.devices.test_order import A100, a100s
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.fleet.clusters import node as node_object
from tests.kubernetes.telling.garbling import with_value
from tests.last_look import last_look
from tests.machines import TRANCHE
from tests.strategies import instance_of, placed
from tranche.core.allocation import Allocation, NodeView, Phase, Slice
from tranche.core.grid import Placement
from tranche.core.keeper import PodKeeper
from tranche.core.profile import parse_profile
from tranche.core.request import MigSlice, Request
from tranche.core.state import GpuProcess
from tranche.dashboard.access import HEADERS
from tranche.dashboard.cluster.snapshot import HIDDEN
from tranche.kubernetes.api.connection import SILENT_SECONDS
from tranche.planning.decide.recording import view_to_dict

ADDRESSES = (
    "/",
    "/live",
    "/live?rows=1",
    "/queue",
    "/ask",
    "/ask?kind=gpu_memory&amount=4Gi",
    "/events",
    "/waste",
    "/you",
    "/nodes/n1",
    "/nodes/n2",
    "/nodes/n1/layouts",
    "/nodes/n1/layouts?layout=all-7g.40gb",
    "/nodes/n2/layouts?layout=all-disabled",
    "/gpus/GPU-00000000-0000-4000-8000-000000000000",
    "/shares/a1b1c1d1",
    "/shares/a0b0c0d0",
    "/?q=zebra",
    "/?namespace=zebra",
    "/api/nodes",
    "/api/nodes/n1",
    "/api/nodes/n2",
    "/api/events",
    "/api/waste",
)


def held_by(view: NodeView, *holders: tuple[str, int]) -> NodeView:
    """Slices of the first GPU for pods of these namespaces, each with a process."""
    (gpu, *rest) = view.node.gpus
    profile = parse_profile("1g.5gb")
    allocations = tuple(
        Allocation(
            f"a{place}b{place}c{place}d{place}",
            Request(MigSlice(profile)),
            (Slice(gpu.uuid, profile, Placement(place, 1)),),
            Phase.ACTIVE,
            1.7e9,
            keeper=PodKeeper("nvidia.com/mig-1g.5gb", team, f"{team}-train-{place}", "main", f"{team}-uid-{place}"),
        )
        for team, place in holders
    )
    assert A100 is not None
    (size,) = (each for each in placed(A100) if each.name == profile)
    there = tuple(instance_of(size, Placement(place, 1)) for _, place in holders)
    busy = replace(gpu, processes=(GpuProcess(9, "zebra-tool", 1),), instances=there)
    owned = frozenset(gpu.key(each) for each in there)
    return replace(view, node=replace(view.node, gpus=(busy, *rest)), allocations=allocations, owned=owned)


def fill_cluster(server: FakeApiServer) -> None:
    for name in ("n1", "n2"):
        server.put(f"/api/v1/nodes/{name}", node_object(name, labels={"nvidia.com/gpu.present": "true"}))
    server.put("/api/v1/nodes/plain", node_object("plain"))
    tell(server, "n1", held_by(a100s(2), ("blue", 0), ("zebra", 1)))
    tell(server, "n2", held_by(a100s(1), ("zebra", 0)), datetime.now(UTC) - timedelta(hours=1))
    for team in ("blue", "zebra"):
        server.put(f"/api/v1/namespaces/{team}/pods/{team}-waits", pending_pod(team, f"{team}-waits"))
        event = {
            "involvedObject": {"kind": "Pod", "namespace": team, "name": f"{team}-waits"},
            "reason": "WaitsForShare",
            "message": "pod zebra/zebra-train-1 and pod blue/blue-train-0 hold what would serve",
            "source": {"component": "tranche-controller"},
            "lastTimestamp": "2026-11-22T10:00:00Z",
        }
        server.put(f"/api/v1/namespaces/{team}/events/{team}-1", event)
    about = {
        "involvedObject": {"kind": "Node", "name": "n1"},
        "reason": "MigLayoutApplied",
        "message": "zebra's layout",
    }
    server.put("/api/v1/namespaces/default/events/n1-1", about)


@pytest.fixture(scope="module")
def page() -> Iterator[ServedClusterPage]:
    """Two nodes: one that two teams share, and one of which nobody has heard for an hour.

    Ana is of blue, and so is Nils, who may not list nodes; Olga sees all, and Eve nothing.
    """
    people = People({"t-ana": "ana", "t-olga": "olga", "t-eve": "eve", "t-nils": "nils"})
    people.let("ana", "list pods", namespaces=["blue"])
    people.let("ana", "list nodes")
    people.let("nils", "list pods", namespaces=["blue"])
    people.let("olga", "list pods", "list nodes")
    with served_cluster_page(people, "--host=gpus.example.org", "--name=lab") as served:
        served.api.change(fill_cluster)
        wait_until(served, lambda: len(served.json("/api/nodes", "t-olga")["nodes"]) == 2)
        wait_until(served, lambda: len(served.json("/api/events", "t-olga")["events"]) == 3)
        yield served


def wait_until(page: ServedClusterPage, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            if holds():
                return
        except AssertionError:
            pass
        assert time.monotonic() < end, last_look(holds)
        assert page.process.poll() is None, last_look(holds)
        time.sleep(0.05)


def test_without_a_token_that_kubernetes_knows_nothing_is_told(page: ServedClusterPage) -> None:
    for address in ADDRESSES:
        for token in ("", "unknown", "t-ana,t-olga"):
            answer = page.ask(address, token)
            assert answer.status == 401
            assert "zebra" not in answer.text
            assert "n1" not in answer.text
    assert page.ask("/", Cookie="tranche-cluster=guessed").status == 401
    # Nobody is trusted to say who asks unless the server was told so.
    assert page.ask("/", X_Remote_User="olga", X_Tranche_Proxy_Secret="").status == 401
    assert page.ask("/static/page.css").status == 200


def test_nothing_of_a_hidden_namespace_is_in_any_answer(page: ServedClusterPage) -> None:
    for token in ("t-ana", "t-nils", "t-eve"):
        for address in ADDRESSES:
            if address.startswith("/live"):
                with page.news(token, address) as news:
                    text = json.dumps(next(news))
            else:
                answer = page.ask(address, token)
                text = answer.text + json.dumps(dict(answer.headers))
            # What somebody looks for stands in the form, as he typed it himself.
            if "zebra" in address:
                text = text.replace('value="zebra"', "").replace(">zebra<", "").replace("=zebra", "")
            assert "zebra" not in text, (token, address)
    assert page.ask("/?q=zebra", "t-ana").text.count("<tr") == page.ask("/?q=no-such-thing", "t-ana").text.count("<tr")


def test_each_sees_what_is_his(page: ServedClusterPage) -> None:
    (n1, n2) = page.json("/api/nodes", "t-ana")["nodes"]
    mine, other = n1["overview"]["allocations"]
    assert (mine["keeper"]["namespace"], mine["keeper"]["name"]) == ("blue", "blue-train-0")
    assert (other["keeper"], other["command"]) == ({"kind": "hidden"}, HIDDEN)
    assert n2["overview"]["allocations"][0]["command"] == HIDDEN
    every = page.json("/api/nodes/n1", "t-olga")["overview"]
    assert [each["keeper"]["namespace"] for each in every["allocations"]] == ["blue", "zebra"]
    assert every["gpus"][0]["processes"][0]["name"] == "zebra-tool"
    # Who may not list nodes is shown those on which something of his is.
    assert [each["name"] for each in page.json("/api/nodes", "t-nils")["nodes"]] == ["n1"]
    assert page.ask("/nodes/n2", "t-nils").status == 404
    assert page.json("/api/nodes", "t-eve")["nodes"] == []
    assert "You have no permission to list this cluster's nodes" in page.ask("/", "t-eve").text
    assert [each["name"] for each in page.json("/api/events", "t-ana")["events"]] == ["blue-waits"]
    assert "names of namespaces" in page.ask("/you", "t-ana").text
    assert figures(parsed(page.ask("/you", "t-ana").text))["names of namespaces"] == "blue"
    assert "This page is read-only." in page.ask("/you", "t-ana").text


def test_a_node_that_nobody_has_heard_is_not_shown_as_empty_or_as_of_now(page: ServedClusterPage) -> None:
    (n1, n2) = page.json("/api/nodes", "t-olga")["nodes"]
    assert n1["trouble"] is None
    assert n2["trouble"] == "its agent has not renewed its report"
    assert n2["seen"] < n1["seen"]
    shown = text_of(parsed(page.ask("/nodes/n2", "t-olga").text))
    assert "No report since" in shown
    assert "The page shows the state at that time" in shown
    page.api.change(
        lambda server: server.put("/api/v1/nodes/mute", node_object("mute", labels={"tranche.dev/gpu": "true"}))
    )
    wait_until(page, lambda: page.ask("/nodes/mute", "t-olga").status == 200)
    assert "Its GPUs are unknown" in page.ask("/nodes/mute", "t-olga").text
    assert page.json("/api/nodes/mute", "t-olga")["overview"] is None
    page.api.change(lambda server: server.delete("/api/v1/nodes/mute"))
    wait_until(page, lambda: page.ask("/nodes/mute", "t-olga").status == 404)


def test_the_queue_says_why_pods_wait_and_how_many_others_do(page: ServedClusterPage) -> None:
    shown = parsed(page.ask("/queue", "t-ana").text)
    (row,) = tables(shown)["Pods that wait for GPUs, oldest first"]
    assert row[0] == "blue/blue-waits"
    assert "1 more pod waits in other namespaces" in text_of(shown)
    rows = tables(parsed(page.ask("/queue", "t-olga").text))["Pods that wait for GPUs, oldest first"]
    assert {each[0] for each in rows} == {"blue/blue-waits", "zebra/zebra-waits"}
    assert "choose what to request" in page.ask("/ask?amount=4Gi", "t-ana").text
    assert "choose what to request" not in page.ask("/ask", "t-ana").text
    assert page.ask("/ask?kind=gpu_memory&amount=4Gi", "t-ana").status == 200


def test_whoever_may_see_nothing_is_not_told_that_others_wait(page: ServedClusterPage) -> None:
    assert "more pod" not in page.ask("/queue", "t-eve").text
    assert "1 more pod waits" in page.ask("/queue", "t-nils").text


def test_events_that_somebody_forges_are_neither_about_nodes_nor_of_the_future(page: ServedClusterPage) -> None:
    event = {
        "involvedObject": {"kind": "Pod", "namespace": "zebra", "name": "forged"},
        "reason": "DoneFromDashboard",
        "message": "done",
        "reportingComponent": "tranche-dashboard",
        "lastTimestamp": "2199-01-01T00:00:00Z",
        "metadata": {"creationTimestamp": "2026-11-22T09:00:00Z"},
    }
    node = {**event, "involvedObject": {"kind": "Node", "name": "n1", "namespace": "zebra"}}
    paths = [f"/api/v1/namespaces/zebra/events/forged-{each}" for each in range(2)]
    page.api.change(lambda server: server.put(paths[0], node))
    page.api.change(lambda server: server.put(paths[1], event))
    try:
        wait_until(page, lambda: len(page.json("/api/events", "t-olga")["events"]) == 4)
        found = page.json("/api/events", "t-olga")["events"]
        assert [each["name"] for each in found if each["kind"] == "Node"] == ["n1"]
        (forged,) = (each for each in found if each["name"] == "forged")
        assert (forged["last"], forged["writtenIn"]) == ("2026-11-22T09:00:00Z", "zebra")
        assert "Users who may write events in a namespace can write any" in page.ask("/events", "t-ana").text
    finally:
        for path in paths:
            page.api.change(lambda server, path=path: server.delete(path))  # type: ignore[misc]
        wait_until(page, lambda: len(page.json("/api/events", "t-olga")["events"]) == 3)


def test_watches_of_events_which_have_no_bookmarks_end_before_they_count_as_lost(page: ServedClusterPage) -> None:
    asked = [each for each in page.api.server.watches() if each.path == "/api/v1/events"]
    assert asked
    assert all(int(each.query["timeoutSeconds"]) < SILENT_SECONDS for each in asked)


def test_after_a_change_of_how_shares_are_given_the_queue_says_who_waits_in_vain(page: ServedClusterPage) -> None:
    paths = {name: f"/api/v1/namespaces/blue/pods/{name}" for name in ("at-gate", "with-claim")}
    gated = pending_pod("blue", "at-gate", "tranche.dev/share", **{"tranche.dev/gpu-memory": "4Gi"})
    gated["spec"]["schedulingGates"] = [{"name": "tranche.dev/share"}]
    claiming = pending_pod("blue", "with-claim")
    claiming["spec"] = {"containers": [{}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "a-claim"}]}
    before = page.api.server.objects["/api/v1/nodes/n1"]

    def told(pod: str, word: str) -> bool:
        rows = tables(parsed(page.ask("/queue", "t-ana").text))["Pods that wait for GPUs, oldest first"]
        return any(row[0] == f"blue/{pod}" and f"this cluster now assigns shares {word}" in row[4] for row in rows)

    page.api.change(lambda server: server.put(paths["at-gate"], gated))
    page.api.change(lambda server: server.put(paths["with-claim"], claiming))
    try:
        wait_until(page, lambda: told("at-gate", "through claims"))
        assert not told("with-claim", "at scheduling gates")
        handing = {**before, "status": {**before.get("status", {}), "capacity": {"tranche.dev/share": "250"}}}
        page.api.change(lambda server: server.put("/api/v1/nodes/n1", handing))
        wait_until(page, lambda: told("with-claim", "at scheduling gates"))
        assert not told("at-gate", "through claims")
    finally:
        page.api.change(lambda server: server.delete(paths["at-gate"]))
        page.api.change(lambda server: server.delete(paths["with-claim"]))
        page.api.change(lambda server: server.put("/api/v1/nodes/n1", before))


def test_a_change_is_told_at_once_to_whom_it_concerns(page: ServedClusterPage) -> None:
    with page.news("t-olga") as news:
        before = next(news)["version"]
        page.api.change(lambda server: tell(server, "n1", held_by(a100s(2), ("blue", 0), ("zebra", 1), ("blue", 2))))
        assert any(each["version"] != before for each in news)
    assert len(page.json("/api/nodes/n1", "t-ana")["overview"]["allocations"]) == 3
    page.api.change(lambda server: tell(server, "n1", held_by(a100s(2), ("blue", 0), ("zebra", 1))))
    wait_until(page, lambda: len(page.json("/api/nodes/n1", "t-ana")["overview"]["allocations"]) == 2)


def test_viewers_with_the_same_cookie_have_streams_of_their_own(page: ServedClusterPage) -> None:
    def news(token: str) -> AbstractContextManager[Iterator[Any]]:
        return asking.news(page.port, "/live", token, Cookie="language=en")

    with ExitStack() as streams:
        lasting = [streams.enter_context(news("t-olga")) for _ in range(4)]
        assert all(next(each)["version"] for each in lasting)
        assert isinstance(next(streams.enter_context(news("t-olga"))), int), "she is told in turns"
        assert next(streams.enter_context(news("t-ana")))["version"]


def test_who_enters_gets_a_cookie_and_never_his_token_back(page: ServedClusterPage) -> None:
    assert page.enter("wrong").status == 401
    assert page.ask("/login", method="POST", form={"token": "t-ana"}).status == 403
    assert page.ask("/login", method="POST", form={"token": "t-ana"}, Origin="http://evil.example").status == 403
    entered = page.enter("t-ana")
    assert entered.status == 200
    cookie, *flags = entered.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict"} <= set(flags)
    assert "t-ana" not in entered.text + json.dumps(dict(entered.headers))
    assert page.ask("/", Cookie=cookie).status == 200
    assert "ana" in page.ask("/you", Cookie=cookie).text
    left = page.ask("/leave", method="POST", Cookie=cookie, Origin=f"http://{page.host}")
    assert "Max-Age=0" in left.headers["set-cookie"]
    assert page.ask("/", Cookie=cookie).status == 401


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (421, {"Host": "evil.example"}),
        (403, {"Origin": "https://evil.example"}),
        (403, {"Origin": "null"}),
        (403, {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}),
        (200, {"Host": "gpus.example.org", "Origin": "https://gpus.example.org"}),
    ],
)
def test_another_sites_page_gets_nothing_even_with_the_token(
    page: ServedClusterPage, status: int, headers: dict[str, Any]
) -> None:
    for address in ("/", "/api/nodes", "/queue"):
        assert page.ask(address, "t-olga", **headers).status == status


def test_every_answer_forbids_what_the_page_does_not_need_and_nothing_is_changed(page: ServedClusterPage) -> None:
    for address in (*ADDRESSES, "/no/such/page", "/login"):
        if not address.startswith("/live"):
            answer = page.ask(address, "t-olga")
            assert {name: answer.headers[name.lower()] for name in HEADERS} == HEADERS
    for method in ("POST", "PUT", "DELETE"):
        assert page.ask("/", "t-olga", method=method).status == 403
        assert page.ask("/", "t-olga", method=method, Origin=f"http://{page.host}").status == 405


def test_a_proxy_with_its_secret_says_who_asks(tmp_path: Path) -> None:
    people = People()
    people.let("olga", "list pods", "list nodes")
    secret, file = "0123456789-0123456789", tmp_path / "secret"
    file.write_text(f"{secret}\n")
    with served_cluster_page(people, f"--proxy-secret={file}") as served:
        wait_until(served, lambda: served.ask("/", X_Remote_User="olga", X_Tranche_Proxy_Secret=secret).status == 200)
        assert served.ask("/", X_Remote_User="olga", X_Tranche_Proxy_Secret="0123").status == 401
        assert served.ask("/", X_Remote_User="olga").status == 401
        masters: dict[str, Any] = {
            "X_Remote_User": "olga",
            "X_Remote_Group": "system:masters",
            "X_Tranche_Proxy_Secret": secret,
        }
        assert served.ask("/", **masters).status == 403


def raw_answer(page: ServedClusterPage, path: str, *headers: bytes) -> tuple[int, str]:
    """Status and content of the answer to a request with these bytes."""
    with socket.create_connection(("127.0.0.1", page.port), timeout=60) as client:
        lines = [f"GET {path} HTTP/1.1".encode(), f"Host: {page.host}".encode(), b"Connection: close", *headers]
        client.sendall(b"\r\n".join([*lines, b"", b""]))
        head, _, content = client.makefile("rb").read().partition(b"\r\n\r\n")
        return int(head.split()[1]), content.decode()


def test_a_proxys_names_are_bytes_of_utf_8_and_nothing_that_cannot_be_seen(tmp_path: Path) -> None:
    people = People()
    secret, file = "0123456789-0123456789", tmp_path / "secret"
    file.write_text(secret)
    people.let("jürgen", "list pods", "list nodes")
    people.let("@größe", "list pods", "list nodes")
    shown = f"X-Tranche-Proxy-Secret: {secret}".encode()
    with served_cluster_page(people, f"--proxy-secret={file}") as page:
        page.api.change(fill_cluster)

        def asked_by(user: bytes, *groups: bytes) -> int:
            every = (b"X-Remote-Group: " + each for each in groups)
            status, text = raw_answer(page, "/nodes/n2", shown, b"X-Remote-User: " + user, *every)
            assert ("zebra" in text) is (status == 200)
            return status

        wait_until(page, lambda: asked_by("jürgen".encode()) == 200)
        assert asked_by("jürgen".encode("latin-1")) == 401
        # Whoever reads the bytes as Latin-1 would judge another user, who is nobody here.
        assert asked_by("jÃ¼rgen".encode()) == 404
        assert asked_by(b"other", "größe".encode()) == 200
        assert asked_by(b"other", "größe".encode("latin-1")) == 403
        for bad in (b"a\x01b", b"a\x1fb", b"a\xc2\x85b", b"\xed\xa0\x80", b"\xc0\xafb"):
            assert asked_by(bad) in (400, 401), bad
            assert asked_by("jürgen".encode(), bad) in (400, 403), bad


def test_who_asks_in_two_ways_is_refused_and_the_browser_forgets_its_session(page: ServedClusterPage) -> None:
    cookie = page.enter("t-ana").headers["set-cookie"].partition(";")[0]
    assert page.ask("/", Cookie=cookie).status == 200
    twice = page.ask("/", "t-ana", Cookie=cookie)
    assert twice.status == 401
    assert "Max-Age=0" in twice.headers["set-cookie"]
    assert page.ask("/", Cookie=f"{cookie}; {cookie}").status == 401
    # Whoever leaves ends every session that his browser has.
    other = page.enter("t-ana").headers["set-cookie"].partition(";")[0]
    page.ask("/leave", method="POST", Cookie=f"{cookie}; {other}", Origin=page.address)
    assert [page.ask("/", Cookie=each).status for each in (cookie, other)] == [401, 401]


def test_programs_are_refused_in_json(page: ServedClusterPage) -> None:
    asked: list[tuple[Answered, int, str]] = [
        (page.ask("/api/nodes"), 401, "Unauthorized"),
        (page.ask("/api/nodes", "t-olga", Origin="http://evil.example"), 403, "Forbidden"),
        (page.ask("/api/nodes", "t-olga", Host="evil.example"), 421, "MisdirectedRequest"),
        (page.ask("/api/nodes/none", "t-olga"), 404, "NotFound"),
        (page.ask("/api/none", "t-olga"), 404, "NotFound"),
        (page.ask("/api/nodes", "t-olga", method="POST", Origin=page.address), 405, "MethodNotAllowed"),
    ]
    for answer, status, reason in asked:
        assert answer.headers["content-type"] == "application/json"
        found = json.loads(answer.text)
        assert (answer.status, found.pop("message") != "") == (status, True)
        assert found == {"apiVersion": "tranche.dev/v1", "kind": "Error", "reason": reason, "status": status}


def test_when_kubernetes_falls_silent_the_page_says_since_when_and_lets_nobody_new_in() -> None:
    people = People({"t-olga": "olga", "t-late": "late"})
    for name in ("olga", "late"):
        people.let(name, "list pods", "list nodes")
    with served_cluster_page(people) as served:
        served.api.change(fill_cluster)
        wait_until(served, lambda: len(served.json("/api/nodes", "t-olga")["nodes"]) == 2)
        with served.news("t-olga") as news:
            assert next(news)["trouble"] == ""

            def silence(server: FakeApiServer) -> None:
                server.failures += [(503, {"message": "not now"})] * 100_000
                server.end_watches()

            served.api.change(silence)
            troubled = next(each for each in news if each["trouble"])
            again = next(news)
            assert again["taken"] == troubled["taken"]
            assert served.ask("/", "t-late").status == 503
            for address in ("/api/nodes", "/api/nodes/n1", "/api/events", "/api/waste"):
                found = served.ask(address, "t-late")
                assert (found.status, json.loads(found.text)["reason"]) == (503, "ServiceUnavailable")
            assert "n1" in served.ask("/", "t-olga").text
            served.api.change(lambda server: server.failures.clear())
            assert any(not each["trouble"] for each in news)


def test_what_one_node_tells_is_trouble_of_that_node_alone(page: ServedClusterPage) -> None:
    path = "/api/v1/nodes/odd"
    page.api.change(lambda server: server.put(path, node_object("odd", labels={"nvidia.com/gpu.present": "true"})))
    data = view_to_dict(a100s(1))
    texts = (
        "[" * 100_000,
        json.dumps(with_value(data, ("node", "gpus", 0, "memory"), 10**400)),
        json.dumps(with_value(data, ("node", "gpus", 0, "index"), -1)),
    )
    try:
        for text in texts:
            page.api.change(lambda server: tell(server, "odd", a100s(1)))
            wait_until(page, lambda: page.json("/api/nodes/odd", "t-olga")["overview"] is not None)
            before = page.json("/api/nodes/n1", "t-olga")
            page.api.change(partial(tell_garbage, node="odd", text=text))
            wait_until(page, lambda: "cannot be read" in (page.json("/api/nodes/odd", "t-olga")["trouble"] or ""))
            assert page.json("/api/nodes/n1", "t-olga")["overview"] == before["overview"]
            for address in ("/", "/nodes/odd", "/nodes/n1", "/queue", "/events", "/waste"):
                assert page.ask(address, "t-olga").status == 200
            assert page.json("/api/nodes", "t-olga")["trouble"] is None
            assert page.readiness()[0] == 200
            # What is gone from the cluster is gone here, whatever it was.
            page.api.change(lambda server: forget_told(server, "odd"))
            wait_until(page, lambda: "sent no report" in (page.json("/api/nodes/odd", "t-olga")["trouble"] or ""))
    finally:
        page.api.change(lambda server: server.delete(path))
        page.api.change(lambda server: forget_told(server, "odd"))
        wait_until(page, lambda: page.ask("/nodes/odd", "t-olga").status == 404)


def test_a_fault_of_the_page_itself_is_said_wherever_it_is_asked_after() -> None:
    people = People({"t-olga": "olga"})
    people.let("olga", "list pods", "list nodes")
    # No API server gives such an object: it stands for a mistake of ours.
    path, odd = "/api/v1/namespaces/blue/pods/odd", {**pending_pod("blue", "odd"), "spec": {"containers": 7}}
    with served_cluster_page(people) as served:
        served.api.change(lambda server: server.put(path, odd))
        wait_until(served, lambda: "TypeError" in served.readiness()[1])
        served.api.change(lambda server: server.delete(path))
        served.api.change(fill_cluster)
        wait_until(served, lambda: len(served.json("/api/nodes", "t-olga")["nodes"]) == 2)
        wait_until(served, lambda: served.readiness()[0] == 200)
        with served.news("t-olga") as news:
            assert next(news)["trouble"] == ""
            served.api.change(lambda server: server.put(path, odd))
            assert "cannot read the cluster's data" in next(each for each in news if each["trouble"])["trouble"]
            status, said = served.readiness()
            assert (status, "TypeError" in said) == (503, True)
            listed = served.json("/api/nodes", "t-olga")
            assert {each["trouble"] is None for each in (listed, *listed["nodes"])} == {False}
            assert "cannot read the cluster's data" in text_of(parsed(served.ask("/nodes/n1", "t-olga").text))
            served.api.change(lambda server: server.delete(path))
            assert any(not each["trouble"] for each in news)
        wait_until(served, lambda: served.readiness()[0] == 200)
        assert served.json("/api/nodes", "t-olga")["trouble"] is None


def test_a_secret_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("""{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],
        clusters: [{name: k, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: u, user: {token: t}}]}""")
    file = tmp_path / "secret"
    for content, said in (("short", "must have at least"), (None, "cannot read it")):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_text(content)
        options = [f"--proxy-secret={file}", f"--kubeconfig={kubeconfig}", "--port=0", "--health-port=0"]
        found = subprocess.run([*TRANCHE, "cluster-dashboard", *options], capture_output=True, text=True, check=False)
        assert found.returncode == 2
        assert said in found.stderr
