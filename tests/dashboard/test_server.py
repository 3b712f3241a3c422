"""The real server on loopback: whom it answers, what it says, and that it comes back."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from itertools import islice
from typing import Any

import pytest

from tests.dashboard import asking
from tests.dashboard.asking import Answered
from tests.dashboard.reading import figures, parsed, tables, text_of
from tests.dashboard.served import Dashboards, ServedDashboard
from tests.machines import TRANCHE, TestMachine, run_without_driver, wait_until
from tranche.dashboard import watch
from tranche.dashboard.access import HEADERS
from tranche.documents.describe import timestamp

ADDRESSES = (
    "/",
    "/queue",
    "/ask",
    "/events",
    "/waste",
    "/layouts",
    "/picture.svg",
    "/gpus/x",
    "/shares/x",
    "/live",
    "/api/overview",
    "/api/events",
    "/static/page.js",
)


def test_without_the_token_nothing_is_told(dashboard: ServedDashboard) -> None:
    for address in ADDRESSES:
        answer = dashboard.ask(address, token=False)
        assert answer.status == 401
        assert "GPU" not in answer.text
    wrong = dashboard.ask(
        "/", token=False, Authorization="Bearer wrong", Cookie=f"tranche-{dashboard.port}={dashboard.token}"
    )
    assert wrong.status == 401
    assert dashboard.ask("/enter?token=wrong", token=False).status == 401
    assert "set-cookie" not in dashboard.ask("/enter?token=wrong", token=False).headers


def test_the_address_with_the_token_gives_a_cookie_that_opens_the_page(dashboard: ServedDashboard) -> None:
    entered = dashboard.ask(f"/enter?token={dashboard.token}", token=False)
    assert entered.status == 200
    cookie, *flags = entered.headers["set-cookie"].split("; ")
    assert set(flags) == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert dashboard.token not in entered.text + cookie
    assert dashboard.ask("/", token=False, Cookie=cookie).status == 200


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (421, {"Host": "evil.example"}),
        (421, {"Host": "evil.example:80"}),
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "null"}),
        (403, {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"}),
    ],
)
def test_another_sites_page_gets_nothing_even_with_the_token(
    dashboard: ServedDashboard, status: int, headers: dict[str, Any]
) -> None:
    for address in (*ADDRESSES, f"/enter?token={dashboard.token}"):
        assert dashboard.ask(address, **headers).status == status


def test_what_is_sent_to_a_page_changes_nothing(dashboard: ServedDashboard) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert dashboard.ask("/", method=method).status == 403
        assert dashboard.ask("/", method=method, Origin=f"http://{dashboard.host}").status == 405


def test_every_answer_forbids_what_the_page_does_not_need(dashboard: ServedDashboard) -> None:
    for address in (*ADDRESSES, "/no/such/page", "/static/../access.py"):
        if address != "/live":
            answer = dashboard.ask(address)
            assert {name: answer.headers[name.lower()] for name in HEADERS} == HEADERS
    refused = dashboard.ask("/", token=False)
    assert {name: refused.headers[name.lower()] for name in HEADERS} == HEADERS


def refused_documents(dashboard: ServedDashboard) -> dict[str, Answered]:
    ours: dict[str, Any] = {"Origin": f"http://{dashboard.host}"}
    return {
        "Unauthorized": dashboard.ask("/api/overview", token=False),
        "MisdirectedRequest": dashboard.ask("/api/overview", Host="evil.example"),
        "Forbidden": dashboard.ask("/api/events", Origin="http://evil.example"),
        "NotFound": dashboard.ask("/api/nothing"),
        "MethodNotAllowed": dashboard.ask("/api/waste", method="POST", **ours),
    }


def test_programs_are_refused_with_a_document_that_has_the_reason(dashboard: ServedDashboard) -> None:
    for reason, answer in refused_documents(dashboard).items():
        assert answer.headers["content-type"] == "application/json", reason
        found = json.loads(answer.text)
        assert (found["kind"], found["reason"], found["status"]) == ("Error", reason, answer.status)
        assert found["message"].endswith(".")


def test_a_page_that_is_refused_has_a_style_and_a_way_on(dashboard: ServedDashboard) -> None:
    sealed = HEADERS["Content-Security-Policy"]
    for answer, way in (
        (dashboard.ask("/", token=False), "/enter"),
        (dashboard.ask("/enter?token=wrong", token=False), "/enter"),
        (dashboard.ask("/", Host=f"evil.example:{dashboard.port}"), f"http://{dashboard.host}/"),
        (dashboard.ask("/", Host="evil.example:x'><b>"), "http://127.0.0.1/"),
        (dashboard.ask("/", Origin="http://evil.example"), "/"),
        (dashboard.ask("/nothing"), "/"),
        (dashboard.ask("/static/none.js"), "/"),
        (dashboard.ask("/", method="PUT", Origin=f"http://{dashboard.host}"), "/"),
    ):
        assert answer.status >= 400
        page = parsed(answer.text)
        assert way in [each.get("href") or each.get("action") for each in page.iter() if each.tag in ("a", "form")]
        (style,) = page.iter("style")
        digest = base64.b64encode(hashlib.sha256(text_of(style).encode()).digest()).decode()
        assert f"style-src 'self' 'sha256-{digest}'" in sealed


def test_a_browser_has_four_streams_and_is_told_in_turns_beside_them(dashboard: ServedDashboard) -> None:
    """It keeps six connections to a server: with a seventh stream its seventh page would wait for ever."""
    cookie = dashboard.ask(f"/enter?token={dashboard.token}", token=False).headers["set-cookie"].split(";")[0]

    def news() -> AbstractContextManager[Iterator[dict[str, Any]]]:
        return asking.news(dashboard.port, "/live", "", Cookie=cookie)

    with ExitStack() as streams:
        lasting = [streams.enter_context(news()) for _ in range(4)]
        assert all(next(each)["version"] for each in lasting)
        for _ in range(2):
            with news() as more:
                assert [type(each) for each in islice(more, 3)] == [int, dict], (
                    "how many there are, the newest, and the end"
                )
        with dashboard.news() as of_a_program:
            assert len(list(islice(of_a_program, 2))) == 2
        assert all(next(each)["version"] for each in lasting)
    wait_until(lambda: _lasts(news()))


def _lasts(news: AbstractContextManager[Iterator[dict[str, Any]]]) -> bool:
    with news as found:
        return isinstance(next(found), dict)


def test_what_is_not_there_is_not_found(dashboard: ServedDashboard) -> None:
    for address in ("/nothing", "/gpus/x", "/shares/x", "/static/none.js", "/static/..%2faccess.py", "/static/"):
        assert dashboard.ask(address).status == 404
    for name, kind in (
        ("page.js", "text/javascript"),
        ("page.css", "text/css"),
        ("picture.css", "text/css"),
        ("icon.svg", "image/svg+xml"),
    ):
        assert dashboard.ask(f"/static/{name}").headers["content-type"].startswith(kind)


def test_the_page_shows_what_the_commands_print(machine: TestMachine, dashboard: ServedDashboard) -> None:
    machine.hold("--mig-profile", "1g.5gb")
    machine.hold("--gpus", "1")
    machine.wait_in_queue("--gpus", "1")
    # Ages are not in the document, and the machine does not change between the two.
    assert dashboard.json("/api/overview") == machine.json("top")
    assert dashboard.json("/api/events")["events"] == machine.json("events")["events"]
    page = parsed(dashboard.ask("/").text)
    assert figures(page)["shares"] == "2"
    assert figures(page)["waiting"] == "1"
    why = machine.json("ps")["waiters"][0]["why"]
    assert tables(parsed(dashboard.ask("/queue").text))["Waiting requests, oldest first"][0][4].startswith(why)
    explained = machine.json("explain", "--gpu-memory", "4Gi")
    assert explained["message"] in text_of(parsed(dashboard.ask("/ask?kind=gpu_memory&amount=4Gi").text))
    gpu = machine.json("gpus")["gpus"][0]["uuid"]
    assert "1g.5gb" in text_of(parsed(dashboard.ask(f"/gpus/{gpu}").text))


def test_the_picture_is_a_file_for_a_ticket(machine: TestMachine, dashboard: ServedDashboard) -> None:
    machine.hold("--mig-profile", "1g.5gb")
    saved = dashboard.ask("/picture.svg")
    assert saved.headers["content-disposition"] == 'attachment; filename="gpus.svg"'
    printed = machine.tranche("gpus", "-o", "svg").stdout

    def without_caption(svg: str) -> str:
        return re.sub(r">[^<>]*, [\d-]+ [\d:]+ UTC<", "><", svg)

    assert without_caption(saved.text) == without_caption(printed)


def test_a_gpus_page_tells_who_held_what(machine: TestMachine, dashboard: ServedDashboard) -> None:
    machine.tranche("run", "-q", "--mig-profile", "1g.5gb", "--", "true")
    machine.hold("--mig-profile", "1g.5gb")
    gpu = machine.json("gpus")["gpus"][0]["uuid"]
    page = parsed(dashboard.ask(f"/gpus/{gpu}?hours=6").text)
    rows = tables(page)["Past holders, newest first"]
    assert [row[1] for row in rows] == ["1g.5gb at 6:1", "1g.5gb at 6:1"]
    assert [row[4] == "still held" for row in rows] == [True, False]
    (history,) = [each for each in page.iter("svg") if "history" in str(each.get("class"))]
    drawn = [str(rect.get("class")) for rect in history.iter("rect")]
    assert (drawn.count("tr-idle"), drawn.count("tr-held")) == (1, 2)


def test_events_are_never_those_of_a_register_that_was_replaced(
    machine: TestMachine, dashboard: ServedDashboard
) -> None:
    """The new one's newest event has the position that the old one's had, and the machine looks the same."""

    def happen(reason: str) -> list[dict[str, Any]]:
        machine.tranche("cordon", "0", "--reason", reason)
        machine.tranche("uncordon", "0")
        events: list[dict[str, Any]] = machine.json("events")["events"]
        return events

    before = happen("first-register")
    assert dashboard.json("/api/events")["events"] == before
    with dashboard.news() as news:
        version = next(news)["version"]
        for each in machine.state_dir.glob("ledger.db*"):
            each.unlink()
        after, then = happen("second-register"), timestamp(time.time())
        assert [each["position"] for each in after] == [each["position"] for each in before]
        # Whoever asks meanwhile is told of one of both registers, or that it cannot be read.
        seen = next(each for each in news if each["trouble"] == "" and each["taken"] > then)
    assert seen["version"] != version
    assert dashboard.json("/api/events")["events"] == after
    assert "second-register" in dashboard.ask("/events").text
    assert "first-register" not in text_of(parsed(dashboard.ask("/events").text))


def test_a_change_is_told_as_it_happens_and_the_fresh_part_has_it(
    machine: TestMachine, dashboard: ServedDashboard
) -> None:
    with dashboard.news() as news:
        first = next(news)
        assert first["trouble"] == ""
        machine.hold("--mig-profile", "1g.5gb")
        changed = next(each for each in news if each["version"] != first["version"])
        assert changed["taken"] > first["taken"]
        part = parsed(dashboard.ask("/", Tranche_Part="view").text)
        while figures(part)["slices held"] != "1":  # what was told first may be a step of the way there
            next(news)
            part = parsed(dashboard.ask("/", Tranche_Part="view").text)
    assert part.get("id") == "view"


def test_the_plan_that_runs_is_on_the_page_of_its_gpu(machine: TestMachine, dashboard: ServedDashboard) -> None:
    uuid = machine.json("gpus")["gpus"][0]["uuid"]
    machine.machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 4)
    machine.start("run", "-q", "--mig-profile", "1g.5gb", "--", "sleep", "600")
    title = "Being changed: serve --mig-profile 1g.5gb"

    def steps() -> list[list[str]]:
        return tables(parsed(dashboard.ask(f"/gpus/{uuid}").text)).get(title, [])

    while (found := steps())[-1:] != [["create 1g.5gb at 6:1", "now"]]:
        assert dashboard.process.poll() is None
    assert found == [["enable MIG mode", "done"], ["reset the GPU", "done"], ["create 1g.5gb at 6:1", "now"]]
    machine.machine.clear_injections()
    while steps():
        assert dashboard.process.poll() is None


def test_a_machine_that_does_not_change_has_one_version_and_says_that_it_lives(dashboard: ServedDashboard) -> None:
    with dashboard.news() as news:
        first, *more = [next(news) for _ in range(3)]
    assert {each["version"] for each in more} == {first["version"]}
    assert more[-1]["taken"] > first["taken"]


def test_a_lost_register_is_told_and_a_new_one_is_seen(machine: TestMachine, dashboard: ServedDashboard) -> None:
    machine.tranche("run", "-q", "--gpus", "1", "--", "true")
    with dashboard.news() as news:
        next(news)
        for file in machine.state_dir.glob("ledger.db*"):
            file.unlink()
        trouble = next(each for each in news if each["trouble"])
        assert "removed or replaced" in trouble["trouble"]
        machine.hold("--mig-profile", "1g.5gb")
        assert next(each for each in news if not each["trouble"])["taken"] > trouble["taken"]
    assert figures(parsed(dashboard.ask("/").text))["slices held"] == "1"


def test_a_driver_that_hangs_ages_the_picture_and_nothing_else(
    machine: TestMachine, dashboards: Dashboards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_PATIENCE_SECONDS", 2.0)  # the server is a fork of this process
    dashboard = dashboards.start()
    assert dashboard.ask("/").status == 200
    machine.machine.inject_latency("nvmlDeviceGetCount_v2", 3_600_000)
    with dashboard.news() as news:
        seen = [next(news) for _ in range(4)]
    assert seen[-1]["taken"] == seen[-2]["taken"]
    assert seen[-1]["now"] > seen[-2]["now"]
    assert dashboard.ask("/events").status == 200
    dashboard.process.terminate()
    assert dashboard.process.wait(60) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)


def test_a_server_that_comes_back_knows_its_pages_and_they_know_that_it_is_another(dashboards: Dashboards) -> None:
    first = dashboards.start()
    cookie = first.ask(f"/enter?token={first.token}", token=False).headers["set-cookie"].split(";")[0]
    with first.news() as news:
        before = next(news)["version"]
        first.process.kill()
        first.process.wait()
    second = dashboards.start(first.port)
    assert second.token == first.token
    assert second.ask("/", token=False, Cookie=cookie).status == 200
    with second.news() as news:
        assert next(news)["version"] != before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_told_to_also_while_pages_are_open(dashboard: ServedDashboard, number: signal.Signals) -> None:
    with dashboard.news() as news:
        next(news)
        dashboard.process.send_signal(number)
        assert dashboard.process.wait(60) in (0, 128 + number, -number)


def test_it_listens_on_loopback_alone(dashboard: ServedDashboard) -> None:
    sockets = subprocess.run(
        ["cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True, check=True
    ).stdout
    ours = [line.split()[1] for line in sockets.splitlines() if f":{dashboard.port:04X} 00000000:0000 0A" in line]
    assert ours == [f"0100007F:{dashboard.port:04X}"]


def test_the_token_is_in_a_file_of_the_owner(machine: TestMachine, dashboard: ServedDashboard) -> None:
    file = machine.folder / "xdg/tranche/dashboard-token"
    assert file.read_text().strip() == dashboard.token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_port_that_is_taken_is_refused(machine: TestMachine, dashboard: ServedDashboard) -> None:
    state = str(machine.folder / "xdg")
    refused = machine.tranche("dashboard", "--port", str(dashboard.port), code=2, XDG_STATE_HOME=state)
    assert "another program already uses this port" in refused.stderr


def test_a_machine_without_a_driver_has_no_page() -> None:
    assert "NVIDIA driver" in run_without_driver("dashboard", "--port", "0", code=20).stderr


def test_without_the_extra_it_says_what_is_missing(machine: TestMachine) -> None:
    hidden = "import sys; sys.modules['starlette'] = None; sys.modules['starlette.applications'] = None; "
    python, option, script = TRANCHE
    done = subprocess.run(
        [python, option, hidden + script, "dashboard"],
        env=machine.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert (
        "'tranche dashboard' needs the Python package 'starlette.applications', which is not installed" in done.stderr
    )
    assert "[dashboard]" in done.stderr
