"""Acting in a real browser: by keyboard alone, in every look, with another page's form refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.browsing import NARROW, WIDE, Viewer, viewer_of
from tests.dashboard.served import ServedDashboard
from tests.machines import TestMachine, wait_until

pytestmark = pytest.mark.browser

PICTURE = Path(__file__).parents[2] / "docs/dashboard-plan.png"
LOOKS = [
    ("light", WIDE),
    pytest.param("dark", NARROW, marks=pytest.mark.long),
    pytest.param("dark", WIDE, marks=pytest.mark.long),
    pytest.param("light", NARROW, marks=pytest.mark.long),
]
_MOST_TABS = 60


def tab_to(viewer: Viewer, word: str) -> None:
    """Press the tab key until that has the focus, and can be seen to have it."""
    for _ in range(_MOST_TABS):
        if viewer.focused == word:
            outline = viewer.page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none"
            return
        viewer.page.keyboard.press("Tab")
    raise AssertionError(f"the tab key does not lead to {word}")


def test_the_keyboard_alone_leads_from_the_fleet_to_an_applied_layout(
    browser: Any, machine: TestMachine, acting: ServedDashboard
) -> None:
    with viewer_of(browser, acting) as viewer:
        keys = viewer.page.keyboard
        tab_to(viewer, "Layouts")
        keys.press("Enter")
        viewer.page.wait_for_url("**/layouts")
        tab_to(viewer, "layout")
        keys.type("all-1g.5gb")
        tab_to(viewer, "What would it do?")
        keys.press("Enter")
        viewer.page.wait_for_url("**/layouts?layout=all-1g.5gb")
        viewer.wait_for_live()
        tab_to(viewer, "way-layout-all-1g.5gb")
        keys.press("Enter")
        viewer.page.wait_for_url("**/act/layout?**plan=*")
        viewer.wait_for_live()
        assert "create 1g.5gb" in viewer.page.locator("main").inner_text()
        tab_to(viewer, "do")
        keys.press("Enter")
        viewer.page.wait_for_url("**/actions/*")
        viewer.page.locator("#state", has_text="Done. The GPUs match the layout").wait_for()
        tab_to(viewer, "The fleet")
        keys.press("Enter")
        viewer.page.locator(".bar text", has_text="1g.5gb").first.wait_for()
        assert viewer.complaints == []
    assert [len(gpu["slices"]) for gpu in machine.json("gpus")["gpus"]] == [7, 7]


@pytest.mark.parametrize(("scheme", "size"), LOOKS)
def test_what_can_be_done_keeps_nobody_out_in_any_look(
    browser: Any, machine: TestMachine, acting: ServedDashboard, scheme: str, size: tuple[int, int]
) -> None:
    machine.hold("--mig-profile", "1g.5gb")
    machine.hold("--gpus", "1")
    machine.wait_in_queue("--gpus", "2")
    share = machine.json("ps")["allocations"][0]["id"]
    machine.tranche("cordon", "1", "--reason", "its fan")
    given, gpu = (each["uuid"] for each in machine.json("gpus")["gpus"])
    waiter = machine.json("ps")["waiters"][0]["id"]
    with viewer_of(browser, acting, scheme=scheme, size=size) as viewer:

        def clean(path: str) -> None:
            assert viewer.violations() == [], path
            assert not viewer.overflows, path

        for path in (
            f"/act/release?id={share}",
            f"/act/release?id={share}&plan=old",
            f"/act/release?id={waiter}",
            f"/act/release?id={share}&moved=1",
            "/act/release?id=nobody",
            "/act/layout?layout=all-1g.5gb",
            "/layouts?layout=all-1g.5gb",
            f"/act/cordon?gpu={gpu}",
            f"/act/cordon?gpu={given}",
            f"/act/uncordon?gpu={gpu}",
            f"/gpus/{gpu}",
            "/",
            f"/shares/{share}",
            "/queue",
        ):
            viewer.open(path)
            clean(path)
        viewer.open(f"/act/cordon?gpu={given}")
        viewer.page.get_by_label("Reason, shown to users who wait because of it").fill("its fan")
        viewer.page.keyboard.press("Enter")
        viewer.page.locator("#state", has_text="Done.").wait_for()
        assert str(machine.json("gpus")["gpus"][0]["withheld"]).endswith(": its fan")
        viewer.open(f"/act/release?id={share}")
        viewer.page.locator("#do").click()
        viewer.page.locator("#state", has_text="Done.").wait_for()
        clean("/actions")
        assert viewer.complaints == []


@pytest.mark.long
def test_the_guides_picture_of_a_plan(
    browser: Any, machine: TestMachine, acting: ServedDashboard, pytestconfig: pytest.Config
) -> None:
    """Nobody compares pixels; a new picture is taken with the goldens."""
    running = machine.start("run", "-q", "--mig-profile", "2g.10gb", "--", "sleep", "600")
    wait_until(lambda: any(each["phase"] == "active" for each in machine.json("ps")["allocations"]), running)
    share = machine.json("ps")["allocations"][0]["id"]
    with viewer_of(browser, acting, size=(1000, 420)) as viewer:
        viewer.open(f"/act/release?id={share}")
        taken = viewer.page.screenshot()
    if pytestconfig.getoption("--update-goldens"):
        PICTURE.write_bytes(taken)
    assert PICTURE.read_bytes()[:8] == taken[:8]


def test_a_page_of_another_port_can_neither_send_a_form_nor_frame_one(
    browser: Any, machine: TestMachine, acting: ServedDashboard
) -> None:
    """A cookie is of a host, not of a port: this page's browser sends it along."""
    machine.hold("--mig-profile", "1g.5gb")
    share = machine.json("ps")["allocations"][0]["id"]
    with viewer_of(browser, acting) as viewer:
        viewer.open(f"/act/release?id={share}")
        fields = {
            each.get_attribute("name"): each.get_attribute("value") for each in viewer.page.locator("form input").all()
        }
        inputs = "".join(f"<input name='{name}' value='{value}'>" for name, value in fields.items())
        form = f"<form method=post action='{viewer.address}/act/release'>{inputs}<button>x</button></form>"
        frame = f"<iframe src='{viewer.address}/act/release?id={share}'></iframe>"
        viewer.page.route(
            "http://127.0.0.1:1/**", lambda route: route.fulfill(body=form + frame, content_type="text/html")
        )
        viewer.page.goto("http://127.0.0.1:1/")
        assert viewer.page.frames[1].locator("#do").count() == 0
        viewer.page.locator("button").click()
        viewer.page.get_by_text("Refused").wait_for()
    assert [each["id"] for each in machine.json("ps")["allocations"]] == [share]
