"""A cluster's page in a real browser: one enters with a token, sees what is his, and is told when he may not any more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.browsing import NARROW, WIDE, Viewer, entered
from tests.dashboard.cluster.reviewing import People
from tests.dashboard.cluster.served_cluster import ServedClusterPage, served_cluster_page, tell
from tests.dashboard.cluster.test_cluster_acting import events
from tests.dashboard.cluster.test_cluster_server import fill_cluster, held_by, wait_until
from tests.dashboard.cluster.test_proxied_acting import named, served
from tests.kubernetes.devices.test_order import a100s
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.fleet.clusters import node as node_object
from tranche.documents.gauge_samples import KEPT_GAUGES
from tranche.kubernetes.telling.use_report import UseReport, use_to_text

pytestmark = pytest.mark.browser

VIEWS = (
    "/",
    "/nodes/n1",
    "/nodes/n2",
    "/nodes/n1/layouts",
    "/nodes/n1/layouts?layout=all-balanced",
    "/nodes/n1/layouts?layout=all-7g.40gb",
    "/shares/a0b0c0d0",
    "/shares/a0b0c0d0?node=n1",
    "/queue",
    "/ask?kind=gpu_memory&amount=4Gi",
    "/events",
    "/waste",
    "/you",
    "/act?kind=cordon&node=n1",
    "/act?kind=layout&node=n1&layout=all-1g.5gb",
    "/act?kind=release&node=n1&share=a0b0c0d0",
    "/gpus/GPU-00000000-0000-4000-8000-000000000000",
)


@pytest.fixture
def page() -> Iterator[ServedClusterPage]:
    people = People({"t-ana": "ana", "t-olga": "olga"})
    people.let("ana", "list pods", namespaces=["blue"])
    people.let("ana", "list nodes")
    people.let("olga", "list pods", "list nodes", "patch nodes")
    with served_cluster_page(people, "--name=lab", "--act") as served:
        served.api.change(fill_cluster)
        pod = {"metadata": {"uid": "now"}, "status": {"phase": "Running"}}
        served.api.change(lambda server: server.put("/api/v1/namespaces/blue/pods/blue-train-0", pod))
        wait_until(served, lambda: len(served.json("/api/nodes", "t-olga")["nodes"]) == 2)
        yield served


@pytest.mark.parametrize(
    ("token", "scheme", "size"),
    [
        pytest.param("t-ana", "light", WIDE, marks=pytest.mark.long),
        pytest.param("t-ana", "dark", WIDE, marks=pytest.mark.long),
        pytest.param("t-olga", "light", NARROW, marks=pytest.mark.long),
        ("t-olga", "dark", NARROW),
    ],
)
def test_who_enters_sees_what_is_his_in_every_look(
    browser: Any, page: ServedClusterPage, token: str, scheme: str, size: tuple[int, int]
) -> None:
    viewer = entered(browser, page.address, token, scheme, size)
    for address in VIEWS:
        viewer.open(address)
        assert viewer.violations() == [], address
        assert not viewer.overflows, address
        if token == "t-ana":
            assert "zebra" not in viewer.page.content(), address
    assert viewer.complaints == []
    assert token not in viewer.page.url
    assert viewer.page.evaluate("() => document.cookie") == ""


def test_the_page_says_when_its_viewer_is_not_let_in_any_more(browser: Any, page: ServedClusterPage) -> None:
    viewer = entered(browser, page.address, "t-ana")
    viewer.open("/nodes/n1")
    cordoned = node_object("n1", unschedulable=True, labels={"nvidia.com/gpu.present": "true"})
    page.api.change(lambda server: server.put("/api/v1/nodes/n1", cordoned))
    viewer.page.locator("#view", has_text="no new pods (cordoned)").wait_for()
    viewer.open("/you")
    viewer.page.get_by_role("button", name="Sign out").click()
    viewer.page.get_by_text("You have signed out.").wait_for()
    viewer.page.goto(f"{viewer.address}/queue")
    viewer.page.get_by_role("heading", name="Sign in").wait_for()


def test_an_open_page_shows_what_is_used_now_though_nothing_else_has_changed(
    browser: Any, page: ServedClusterPage
) -> None:
    viewer = entered(browser, page.address, "t-olga")
    viewer.page.clock.install()
    viewer.open("/nodes/n1")
    view = held_by(a100s(2), ("blue", 0), ("zebra", 1))
    before = viewer.page.evaluate("document.body.dataset.version")
    reading: dict[str, Any] = {
        "gpuUUID": view.node.gpus[0].uuid,
        **dict.fromkeys(KEPT_GAUGES),
        "busy": 0.93,
        "slices": [],
    }
    use = use_to_text(UseReport(time.time(), (reading,)))
    page.api.change(lambda server: tell(server, "n1", view, use=use))
    wait_until(page, lambda: "93% busy" in page.ask("/nodes/n1", "t-olga").text)
    again = entered(browser, page.address, "t-olga")
    again.open("/nodes/n1")
    assert again.page.evaluate("document.body.dataset.version") == before, "it is no change of the node"
    viewer.page.clock.fast_forward(61_000)
    viewer.page.locator("#view", has_text="93% busy").wait_for()


def test_a_node_is_cordoned_after_its_plan_was_seen(browser: Any, page: ServedClusterPage) -> None:
    viewer = entered(browser, page.address, "t-olga")
    viewer.open("/nodes/n1")
    viewer.page.get_by_role("link", name="Cordon: show the plan").click()
    viewer.page.get_by_text("No new pods can be scheduled on node n1").wait_for()
    viewer.page.get_by_role("button", name="Cordon node n1").click()
    viewer.page.wait_for_url(f"{viewer.address}/nodes/n1")
    viewer.page.locator("#view", has_text="no new pods (cordoned)").wait_for()
    assert viewer.complaints == []


def test_a_layout_is_previewed_and_set_by_the_keyboard_alone(browser: Any, page: ServedClusterPage) -> None:
    viewer = entered(browser, page.address, "t-olga")
    viewer.open("/nodes/n1")
    viewer.page.get_by_role("link", name="What would a layout do?").press("Enter")
    viewer.page.locator("#layout").focus()
    viewer.page.keyboard.type("all-7g")
    viewer.page.keyboard.press("Tab")
    viewer.page.keyboard.press("Enter")
    viewer.page.locator("#view", has_text="in use by pod blue/blue-train-0").wait_for()
    viewer.page.get_by_role("link", name="Apply layout all-7g.40gb to node n1: show the plan").press("Enter")
    viewer.page.get_by_text("Immediately on GPU 1").wait_for()
    viewer.page.get_by_role("button", name="Apply layout all-7g.40gb to node n1").press("Enter")
    viewer.page.wait_for_url(f"{viewer.address}/nodes/n1")
    viewer.page.locator("#view", has_text="all-7g.40gb").wait_for()
    assert viewer.complaints == []


@pytest.mark.long
def test_whom_a_proxy_names_cordons_a_node_in_every_look(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path, "--proxy-act") as page:
        for scheme, size, action in (("light", WIDE, "Cordon"), ("dark", NARROW, "Uncordon")):
            said = {name.replace("_", "-"): value for name, value in named("ana", "ops").items()}
            context = browser.new_context(
                color_scheme=scheme, viewport={"width": size[0], "height": size[1]}, extra_http_headers=said
            )
            viewer = Viewer(context.new_page(), page.address)
            viewer.open("/you")
            assert "a proxy, which names you" in viewer.view
            assert (viewer.violations(), viewer.overflows) == ([], False)
            viewer.open("/nodes/n1")
            viewer.page.get_by_role("link", name=f"{action}: show the plan").click()
            viewer.page.get_by_text("with its own account").wait_for()
            assert (viewer.violations(), viewer.overflows) == ([], False)
            viewer.page.get_by_role("button", name=f"{action} node n1").click()
            viewer.page.wait_for_url(f"{viewer.address}/nodes/n1")
            seen = ":has-text('no new pods (cordoned)')"
            viewer.page.locator(f"#view{seen}" if action == "Cordon" else f"#view:not({seen})").wait_for()
            context.close()
        assert [each["message"] for each in events(page)] == [
            f"{action} node n1: done by ana (named by a proxy) from the dashboard" for action in ("Cordon", "Uncordon")
        ]


@pytest.mark.long
def test_a_token_that_ends_ends_what_it_opened(browser: Any, page: ServedClusterPage) -> None:
    viewer = entered(browser, page.address, "t-ana")

    def ended(server: FakeApiServer) -> None:
        del page.people.users["t-ana"]

    page.api.change(ended)
    viewer.says("your session has expired; sign in again")


def test_an_agent_that_is_killed_is_said_and_its_return_is_seen(browser: Any, page: ServedClusterPage) -> None:
    view = held_by(a100s(2), ("blue", 0))
    page.api.change(lambda server: tell(server, "n1", view, lasts=5))
    viewer = entered(browser, page.address, "t-olga")
    row = viewer.page.locator("#node-n1")
    row.get_by_text("its agent has not renewed its report: last seen").wait_for()
    # Not what is rendered: the page leaves that out of a row until the browser knows that the row is on the screen.
    assert row.locator("td[data-label=Free]").text_content() == "unknown"
    viewer.open("/nodes/n1")
    viewer.page.locator("#view", has_text="The page shows the state at that time.").wait_for()
    page.api.change(lambda server: tell(server, "n1", view))
    viewer.page.locator("#view:not(:has-text('The page shows the state at that time.'))").wait_for()
    viewer.open("/")
    viewer.page.locator("#node-n1 td[data-label=Free]:has-text('%')").wait_for()
    assert viewer.complaints == []
