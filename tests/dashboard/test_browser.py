"""The page in a real browser: every view and theme, live, by keyboard, through failures of all that it depends on."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.busy_machine import set_to_work
from tests.dashboard.browsing import LARGE, NARROW, WIDE, Viewer, keep_pictures, listen, viewer_of
from tests.dashboard.served import Dashboards, ServedDashboard
from tests.machines import TestMachine, machine_in, short_folder
from tests.support.length import some_of

pytestmark = pytest.mark.browser

# Every look with some machine, every machine in some look.
LOOKS = {
    "p4d.24xlarge": [("light", WIDE), ("dark", NARROW)],
    "p5.48xlarge": [("dark", LARGE)],
    "g4dn.xlarge": [("light", NARROW)],
}


def views_of(machine: TestMachine) -> list[str]:
    gpu = machine.json("gpus")["gpus"][0]["uuid"]
    share = machine.json("ps")["allocations"][0]["id"]
    asked = "/ask?kind=gpus&amount=3&isolation=soft&gpu_model="
    return [
        "/",
        "/?q=held",
        "/queue",
        "/events",
        "/waste",
        "/layouts",
        "/layouts?layout=all-balanced",
        asked,
        "/ask",
        f"/gpus/{gpu}",
        f"/shares/{share}",
    ]


@pytest.mark.parametrize("machine_type", some_of(LOOKS, 1))
def test_every_view_in_every_look_keeps_nobody_out_and_asks_nothing_of_others(browser: Any, machine_type: str) -> None:
    with short_folder() as folder, machine_in(folder, machine_type=machine_type) as machine:
        machine.hold("--gpu-memory", "4Gi")
        machine.hold("--gpu-memory", "6Gi")
        gpus = len(machine.json("gpus")["gpus"])
        if gpus > 1:
            machine.hold("--gpus", "1")
            machine.tranche("run", "-q", "--gpu-memory", "6Gi", "--", "true")
        machine.wait_in_queue("--gpus", str(gpus))
        dashboards = Dashboards(machine)
        try:
            dashboard = dashboards.start()
            for scheme, size in LOOKS[machine_type]:
                with viewer_of(browser, dashboard, scheme=scheme, size=size) as viewer:
                    asked: list[str] = []
                    viewer.page.on("request", lambda request, asked=asked: asked.append(request.url))
                    for path in views_of(machine):
                        viewer.open(path)
                        assert viewer.violations() == [], (path, scheme, size)
                        assert not viewer.overflows, (path, size)
                    assert {url.split("/")[2] for url in asked} == {dashboard.host}
                    assert viewer.complaints == []
        finally:
            dashboards.end()


@pytest.mark.long
def test_the_guides_pictures(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """Nobody compares pixels; new pictures are taken with the goldens."""
    taken: dict[str, bytes] = {}
    with short_folder() as folder, machine_in(folder, machine_type="p4d.24xlarge") as machine:
        set_to_work(machine, tmp_path, monkeypatch)
        machine.wait_in_queue("--gpus", "8")
        gpu = machine.json("ps")["allocations"][0]["grants"][0]["gpuUUID"]
        views = {"gpu": f"/gpus/{gpu}", "queue": "/queue", "waste": "/waste", "layouts": "/layouts?layout=all-balanced"}
        dashboards = Dashboards(machine)
        try:
            served = dashboards.start()
            with viewer_of(browser, served, size=(1000, 700)) as viewer:
                taken["dashboard.png"] = viewer.page.screenshot(full_page=True)
                for name, path in views.items():
                    viewer.open(path)
                    taken[f"pictures/dashboard-{name}.png"] = viewer.page.screenshot(full_page=name == "waste")
            with viewer_of(browser, served, scheme="dark", size=NARROW) as viewer:
                taken["pictures/dashboard-dark-narrow.png"] = viewer.page.screenshot()
        finally:
            dashboards.end()
    keep_pictures(taken, pytestconfig)


def test_a_slice_that_a_command_cuts_appears_by_itself(
    browser: Any, machine: TestMachine, dashboard: ServedDashboard
) -> None:
    with viewer_of(browser, dashboard) as viewer:
        viewer.page.locator("details#as-table summary").click()
        viewer.page.locator(".gpu a").first.focus()
        held = viewer.focused
        machine.hold("--mig-profile", "1g.5gb")
        viewer.page.locator(".bar text", has_text="1g.5gb").wait_for()
        assert viewer.focused == held
        assert viewer.page.locator("details#as-table").get_attribute("open") is not None
        assert viewer.complaints == []


def test_a_table_keeps_the_order_that_was_asked_for_while_the_machine_changes(
    browser: Any, machine: TestMachine, dashboard: ServedDashboard
) -> None:
    machine.hold("--mig-profile", "3g.20gb")
    with viewer_of(browser, dashboard) as viewer:
        viewer.page.locator("details#as-table summary").click()
        for _ in range(2):
            viewer.page.locator("#gpus thead a", has_text="Memory").click()
            viewer.wait_for_live()
        assert viewer.page.locator("#gpus th[aria-sort=descending]").inner_text() == "Memory ▼"
        assert viewer.violations() == []
        scrolled = viewer.page.evaluate("() => { scrollTo(0, 50); return scrollY; }")
        machine.hold("--mig-profile", "1g.5gb")
        # A GPU instance is seen before its compute instance, and has no memory of its own until then.
        viewer.page.locator("#gpus tbody tr", has_text="1g.5gb").filter(has_text="4.75 GiB").wait_for()
        amounts = viewer.page.locator("#gpus td[data-label=Memory]").all_inner_texts()
        assert [each for each in amounts if each != "–"] == ["19.62 GiB", "4.75 GiB"]
        assert viewer.page.evaluate("() => scrollY") == scrolled
        assert viewer.complaints == []


def test_a_server_that_is_killed_is_said_and_its_return_is_seen(
    browser: Any, machine: TestMachine, dashboards: Dashboards
) -> None:
    first = dashboards.start()
    with viewer_of(browser, first) as viewer:
        viewer.keep_what_is_said()
        first.process.kill()
        viewer.says("the dashboard server does not answer")
        assert "driver" not in "".join(viewer.said_meanwhile)
        assert "not live since" in viewer.page.locator("#live").inner_text()
        machine.hold("--mig-profile", "1g.5gb")
        dashboards.start(first.port)
        viewer.wait_for_live()
        viewer.page.locator(".bar text", has_text="1g.5gb").wait_for()


def test_a_driver_that_hangs_is_said_and_its_return_is_seen(
    browser: Any, machine: TestMachine, dashboard: ServedDashboard
) -> None:
    with viewer_of(browser, dashboard) as viewer:
        machine.machine.inject_latency("nvmlDeviceGetCount_v2", 15)
        viewer.says("the driver does not answer")
        machine.machine.clear_injections()
        viewer.wait_for_live()


def test_a_register_that_is_lost_is_said(browser: Any, machine: TestMachine, dashboard: ServedDashboard) -> None:
    machine.tranche("run", "-q", "--gpus", "1", "--", "true")
    with viewer_of(browser, dashboard) as viewer:
        for file in machine.state_dir.glob("ledger.db*"):
            file.unlink()
        viewer.says("removed or replaced")
        machine.hold("--mig-profile", "1g.5gb")
        viewer.wait_for_live()


def test_a_token_that_is_taken_back_ends_what_is_open(
    browser: Any, machine: TestMachine, dashboards: Dashboards
) -> None:
    first = dashboards.start()
    with viewer_of(browser, first) as viewer:
        first.process.kill()
        first.process.wait()
        (machine.folder / "xdg/tranche/dashboard-token").unlink()
        dashboards.start(first.port)
        viewer.says("your session has expired; sign in again")


def test_a_viewers_clock_that_is_wrong_is_said(browser: Any, dashboard: ServedDashboard) -> None:
    with viewer_of(browser, dashboard) as viewer:
        an_hour_ago = datetime.datetime.now(tz=datetime.UTC) - datetime.timedelta(hours=1)
        viewer.page.clock.set_system_time(an_hour_ago)
        viewer.says("ahead of this one")
        assert "live, but the server's clock is" in viewer.page.locator("#live").inner_text()
        viewer.page.clock.set_system_time(datetime.datetime.now(tz=datetime.UTC))
        viewer.page.locator("#live:not(:has-text('clock'))").wait_for()
        viewer.wait_for_live()


def test_the_keyboard_alone_suffices(browser: Any, machine: TestMachine, dashboard: ServedDashboard) -> None:
    machine.hold("--mig-profile", "1g.5gb")
    with viewer_of(browser, dashboard) as viewer:
        keys = viewer.page.keyboard
        keys.press("Tab")
        assert viewer.focused == "Skip to the content"
        keys.press("Enter")
        assert viewer.focused == "main"
        for word in ("q", "Show", "Save the picture", "GPU 0"):
            keys.press("Tab")
            assert word in viewer.focused or viewer.focused.startswith("to-")
        keys.press("Enter")
        viewer.page.wait_for_url("**/gpus/*")
        viewer.wait_for_live()
        for word in ("Skip to the content", "Fleet", "Queue"):
            keys.press("Tab")
            assert viewer.focused == word
        keys.press("Enter")
        viewer.page.wait_for_url("**/queue")
        viewer.wait_for_live()
        while viewer.focused != "kind":
            keys.press("Tab")
        keys.press("w")  # whole GPUs
        keys.press("Tab")
        keys.type("2")
        keys.press("Enter")
        viewer.page.wait_for_url("**/ask?*")
        assert "Waiting: --gpus 2 waits" in viewer.view


def test_moments_are_in_the_viewers_zone(browser: Any, machine: TestMachine, dashboard: ServedDashboard) -> None:
    machine.tranche("run", "-q", "--mig-profile", "1g.5gb", "--", "true")
    (newest,) = machine.json("events", "--last", "1")["events"]
    told = datetime.datetime.fromisoformat(newest["time"])
    for zone, hours in (("Asia/Tokyo", 9), ("UTC", 0)):
        with viewer_of(browser, dashboard, zone=zone) as viewer:
            viewer.open("/events")
            there = (told + datetime.timedelta(hours=hours)).strftime("%H:%M:%S")
            assert there in viewer.page.locator("time.moment").first.inner_text()


def test_hostile_names_are_text(browser: Any, machine: TestMachine, dashboard: ServedDashboard) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    machine.hold("--mig-profile", "1g.5gb", script=f"exec sleep 600; : '{hostile}'")
    with viewer_of(browser, dashboard) as viewer:
        for path in views_of(machine):
            viewer.open(path)
            assert viewer.page.locator("img").count() == 0
        assert hostile in viewer.page.content().replace("&lt;", "<").replace("&gt;", ">")
        assert viewer.complaints == []


def test_a_page_that_nobody_sees_asks_nothing(browser: Any, dashboard: ServedDashboard) -> None:
    """Browsers have six connections for one server: ten open pages must not keep the eleventh out."""
    with viewer_of(browser, dashboard) as viewer:
        others = [viewer.page.context.new_page() for _ in range(9)]
        for page in others:
            page.goto(f"{viewer.address}/events")
            # Every page of a headless browser counts as seen.
            page.evaluate("() => { Object.defineProperty(document, 'hidden', {value: true}); }")
            page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
        viewer.open("/queue")
        assert "No request is waiting." in viewer.view


@pytest.mark.long
def test_the_eighth_page_that_is_seen_is_live_and_says_that_it_is_told_in_turns(
    browser: Any, machine: TestMachine, dashboard: ServedDashboard
) -> None:
    with viewer_of(browser, dashboard) as viewer:
        pages = [viewer.page.context.new_page() for _ in range(7)]
        for page in pages:
            page.goto(f"{viewer.address}/queue")
            page.locator("#live.live").wait_for()
        pages[-1].locator("#live", has_text="this browser has many pages open").wait_for()
        machine.hold("--gpus", "2")
        machine.wait_in_queue("--gpus", "1")
        for page in pages:
            page.locator("#view", has_text="1 whole GPU").wait_for()
        for page in pages[:-1]:
            page.close()
        pages[-1].locator("#live:not(:has-text('many pages'))").wait_for()
        assert viewer.complaints == []


def test_whoever_is_refused_finds_a_way_on(browser: Any, dashboard: ServedDashboard) -> None:
    context = browser.new_context(color_scheme="dark")
    try:
        refused = Viewer(context.new_page(), f"http://{dashboard.host}")
        listen(refused, refused.page)
        refused.page.goto(f"{refused.address}/queue")
        assert refused.violations() == []
        assert refused.page.evaluate("() => getComputedStyle(document.querySelector('main')).maxWidth") == "608px"
        refused.page.keyboard.press("Tab")
        refused.page.keyboard.type(dashboard.token)
        refused.page.keyboard.press("Enter")
        refused.wait_for_live()
        refused.page.goto(f"{refused.address}/nothing")
        assert refused.violations() == []
        refused.page.get_by_text("Open the dashboard").click()
        refused.wait_for_live()
        assert not [each for each in refused.complaints if "Content Security Policy" in each]
    finally:
        context.close()
