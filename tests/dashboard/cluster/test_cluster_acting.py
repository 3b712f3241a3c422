"""What is done from a cluster's page: with the viewer's own token, by the plan that he saw, once, and by no other site's form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.dashboard.asking import Answered
from tests.dashboard.cluster.reviewing import People
from tests.dashboard.cluster.served_cluster import WAITING, ServedClusterPage, served_cluster_page, tell
from tests.dashboard.cluster.test_cluster_server import fill_cluster, held_by, wait_until
from tests.dashboard.reading import parsed, text_of
from tests.kubernetes.devices.test_order import a100s
from tests.kubernetes.fake_api_server import FakeApiServer, Seen
from tranche.core.errors import UsageError
from tranche.dashboard.cluster.cluster_action import ClusterAction
from tranche.kubernetes.telling.told_view import NOT_MANAGED, LayoutReport

POD = "/api/v1/namespaces/blue/pods/blue-train-0"
NODE = "/api/v1/nodes/n1"
CORDON = "/act?kind=cordon&node=n1"
RELEASE = "/act?kind=release&node=n1&share=a0b0c0d0"


@contextmanager
def two_teams_served(people: People, *options: str) -> Iterator[ServedClusterPage]:
    """A cluster in which a pod each of blue and zebra runs on n1. Olga, who has a token, sees both nodes."""
    with served_cluster_page(people, *options) as served:
        served.api.change(fill_cluster)
        for team, place in (("blue", 0), ("zebra", 1)):
            path = f"/api/v1/namespaces/{team}/pods/{team}-train-{place}"
            served.api.change(
                lambda server, path=path: server.put(path, {"metadata": {"uid": "now"}, "status": {"phase": "Running"}})  # type: ignore[misc]
            )
        wait_until(served, lambda: len(served.json("/api/nodes", "t-olga")["nodes"]) == 2)
        yield served


@pytest.fixture
def page() -> Iterator[ServedClusterPage]:
    """Ana may list and delete blue's pods, and Olga may do everything; Nils may look."""
    people = People({"t-ana": "ana", "t-olga": "olga", "t-nils": "nils"})
    people.let("ana", "list pods", "delete pods", namespaces=["blue"])
    people.let("olga", "delete pods", "patch nodes")
    for name in ("olga", "nils"):
        people.let(name, "list pods", "list nodes")
    with two_teams_served(people, "--act") as served:
        yield served


def fields_of(answer: Answered) -> dict[str, str]:
    """The hidden fields of the form that carries the plan out; none where there is no such form."""
    form = next((each for each in parsed(answer.text).iter("form") if each.get("method") == "post"), None)
    inputs: Any = () if form is None else form.iter("input")
    return {str(each.get("name")): str(each.get("value")) for each in inputs if isinstance(each, ElementTree.Element)}


def send(page: ServedClusterPage, token: str, fields: dict[str, str], **headers: str) -> Answered:
    given: Any = {"Origin": f"http://{page.host}", **headers}
    return page.ask("/act", token, method="POST", form=fields, **given)


def changes(page: ServedClusterPage) -> list[Seen]:
    """What was asked of the API server that changes something, but for reviews and events."""
    found: list[Seen] = []
    page.api.change(lambda server: found.extend(server.requests))
    return [each for each in found if each.method in ("PATCH", "DELETE", "PUT")]


def events(page: ServedClusterPage) -> list[Any]:
    found: list[Any] = []
    page.api.change(lambda server: found.extend(each for path, each in server.objects.items() if "/events/" in path))
    return [each for each in found if each["reason"] == "DoneFromDashboard"]


def test_a_node_is_cordoned_and_uncordoned_in_the_name_of_its_viewer(page: ServedClusterPage) -> None:
    assert CORDON.replace("&", "&amp;") in page.ask("/nodes/n1", "t-olga").text
    shown = page.ask(CORDON, "t-olga")
    assert "No new pods can be scheduled on node n1" in shown.text
    assert changes(page) == []
    done = send(page, "t-olga", fields_of(shown))
    assert (done.status, done.headers["location"]) == (303, "/nodes/n1")
    (change,) = changes(page)
    assert (change.method, change.path, change.body) == ("PATCH", NODE, {"spec": {"unschedulable": True}})
    assert change.headers["authorization"] == "Bearer t-olga"
    (event,) = events(page)
    assert event["message"] == "Cordon node n1: done by olga from the dashboard"
    wait_until(page, lambda: "no new pods (cordoned)" in page.ask("/nodes/n1", "t-olga").text)
    again = page.ask(CORDON, "t-olga")
    assert again.status == 400
    assert "already cordoned" in again.text
    # Who has the plan before him is told by the page that is open, which asks for nothing that fails.
    open_still = page.ask(CORDON, "t-olga", tranche_part="view")
    assert open_still.status == 200
    assert "already cordoned" in open_still.text
    send(page, "t-olga", fields_of(page.ask("/act?kind=uncordon&node=n1", "t-olga")))
    assert changes(page)[-1].body == {"spec": {"unschedulable": None}}


def test_a_layout_is_a_label_of_the_node(page: ServedClusterPage) -> None:
    shown = page.ask("/act?kind=layout&node=n1&layout=all-balanced", "t-olga")
    assert send(page, "t-olga", fields_of(shown)).status == 303
    assert changes(page)[-1].body == {"metadata": {"labels": {"nvidia.com/mig.config": "all-balanced"}}}


def test_the_plan_of_a_layout_says_what_it_takes_from_whom_and_is_another_when_that_changes(
    page: ServedClusterPage,
) -> None:
    address = "/act?kind=layout&node=n1&layout=all-7g.40gb"
    assert address.replace("&", "&amp;") in page.ask("/nodes/n1/layouts?layout=all-7g.40gb", "t-olga").text
    shown = page.ask(address, "t-olga")
    said = text_of(parsed(shown.text))
    assert "1g.5gb at 0:1 of GPU 0" in said
    assert "in use by pod blue/blue-train-0" in said
    assert "Immediately on GPU 1: create 7g.40gb" in said
    assert 'aria-label="After: ' in shown.text
    # Ana's plan is the same, without the names of others.
    assert "zebra" not in page.ask(address, "t-ana").text
    fields = fields_of(shown)
    page.api.change(lambda server: tell(server, "n1", held_by(a100s(2), ("zebra", 1))))
    wait_until(page, lambda: "blue-train-0" not in page.ask("/nodes/n1", "t-olga").text)
    moved = send(page, "t-olga", fields)
    assert moved.status == 409
    assert changes(page) == []
    assert send(page, "t-olga", fields_of(moved)).status == 303


@pytest.mark.parametrize(
    ("layouts", "says"),
    [
        (None, "The effect of a layout is unknown"),
        (NOT_MANAGED, "it runs without the MIG manager"),
        (WAITING, "The agent would do nothing: selected mig-config not present: no-such"),
    ],
)
def test_a_plan_of_which_nobody_knows_the_end_says_so(
    page: ServedClusterPage, layouts: LayoutReport | None, says: str
) -> None:
    page.api.change(lambda server: tell(server, "n1", held_by(a100s(3), ("blue", 0)), layouts=layouts))
    wait_until(page, lambda: len(page.json("/api/nodes/n1", "t-olga")["overview"]["gpus"]) == 3)
    assert says in page.ask("/act?kind=layout&node=n1&layout=no-such", "t-olga").text


def test_a_share_is_taken_back_by_deleting_its_pod_and_no_other_of_its_name(page: ServedClusterPage) -> None:
    assert RELEASE.replace("&", "&amp;") in page.ask("/shares/a0b0c0d0?node=n1", "t-ana").text
    shown = page.ask(RELEASE, "t-ana")
    assert "Kubernetes deletes pod blue/blue-train-0" in shown.text
    fields = fields_of(shown)
    page.api.change(lambda server: server.put(POD, {"metadata": {"uid": "later"}}))
    moved = send(page, "t-ana", fields)
    assert moved.status == 409
    assert "Nothing was done: the cluster has changed" in moved.text
    assert changes(page) == []
    assert send(page, "t-ana", fields_of(moved)).status == 303
    (change,) = changes(page)
    assert (change.method, change.path, change.body["preconditions"]) == ("DELETE", POD, {"uid": "later"})
    assert change.headers["authorization"] == "Bearer t-ana"
    assert events(page)[0]["involvedObject"]["name"] == "blue-train-0"


def test_who_has_not_the_right_gets_no_form_and_his_form_does_nothing(page: ServedClusterPage) -> None:
    for address, what in ((CORDON, "patch nodes n1"), (RELEASE, "delete pods blue-train-0 in blue")):
        shown = page.ask(address, "t-nils")
        assert f"You have no permission to {what}." in shown.text
        assert fields_of(shown) == {}
    # A form of somebody else's, and one that was given before a right was taken.
    fields = fields_of(page.ask(CORDON, "t-olga"))
    assert "does not belong to this page" in send(page, "t-nils", fields).text
    # What a viewer may not see he cannot take either: neither the holder nor the node.
    hidden = page.ask("/act?kind=release&node=n1&share=a1b1c1d1", "t-ana")
    assert hidden.status == 400
    assert "a namespace that you have no permission to see" in hidden.text
    assert page.ask("/act?kind=cordon&node=n2", "t-ana").status == 400
    assert changes(page) == []


def test_the_api_server_has_the_last_word(page: ServedClusterPage) -> None:
    fields = fields_of(page.ask(CORDON, "t-olga"))
    said = {"message": 'nodes "n1" is forbidden: User "olga" cannot patch'}
    page.api.change(lambda server: server.refusals.update({("PATCH", "/n1"): (403, said)}))
    refused = send(page, "t-olga", fields)
    assert refused.status == 403
    assert "cannot patch" in refused.text
    assert events(page) == []


def test_no_form_counts_twice_or_from_elsewhere_or_for_another_plan(page: ServedClusterPage) -> None:
    fields = fields_of(page.ask(CORDON, "t-olga"))
    assert send(page, "t-olga", fields, Origin="https://evil.example").status == 403
    assert page.ask("/act", "t-olga", method="POST", form=fields).status == 403
    assert send(page, "", fields).status == 401
    for wrong in ({**fields, "key": "x"}, {**fields, "kind": "layout", "layout": "x"}, {**fields, "node": "n2"}):
        assert send(page, "t-olga", wrong).status == 409
    assert changes(page) == []
    assert send(page, "t-olga", fields).status == 303
    page.api.change(lambda server: _uncordon(server))
    wait_until(page, lambda: page.ask(CORDON, "t-olga").status == 200)
    again = send(page, "t-olga", fields)
    assert (again.status, "has already been sent" in text_of(parsed(again.text))) == (409, True)
    assert len(changes(page)) == 1


def _uncordon(server: FakeApiServer) -> None:
    node = server.objects[NODE]
    node["spec"].pop("unschedulable")
    server.put(NODE, node)


def test_a_page_that_only_shows_has_no_such_address() -> None:
    people = People({"t-olga": "olga"})
    people.let("olga", "list pods", "list nodes", "patch nodes")
    with served_cluster_page(people) as served:
        served.api.change(fill_cluster)
        wait_until(served, lambda: len(served.json("/api/nodes", "t-olga")["nodes"]) == 2)
        assert served.ask(CORDON, "t-olga").status == 404
        assert "/act" not in served.ask("/nodes/n1", "t-olga").text


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kind": "destroy", "node": "n1"},
        {"kind": "cordon"},
        {"kind": "layout", "node": "n1"},
        {"kind": "layout", "node": "n1", "layout": "a/b"},
        {"kind": "layout", "node": "n1", "layout": "x" * 64},
    ],
)
def test_what_is_no_deed_is_none(fields: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        ClusterAction.asked(fields)
