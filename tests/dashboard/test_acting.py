"""Acting from a page: what was shown is done, and nothing else is; whoever may not is refused, and nothing is changed."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable

import pytest

from tests.dashboard.reading import parsed, tables, text_of
from tests.dashboard.served import Dashboards, ServedDashboard
from tests.dashboard.visiting import PlanForm, Visitor
from tests.machines import TestMachine, wait_until
from tranche.cli.runtime import user_name

LAYOUT = "/act/layout?layout=all-1g.5gb"
HOSTILE = "<img src=x onerror=alert(1)>'\"&"


def share_of(machine: TestMachine) -> str:
    (allocation,) = machine.json("ps")["allocations"]
    return str(allocation["id"])


def actor_of(machine: TestMachine, kind: str) -> object:
    (event,) = [each for each in machine.json("events")["events"] if each["type"] == kind]
    return event["data"]["actor"]


def test_a_share_is_taken_back_from_what_runs_in_it(machine: TestMachine, acting: ServedDashboard) -> None:
    workload = machine.hold("--mig-profile", "1g.5gb")
    visitor, address = Visitor.of(acting), f"/act/release?id={share_of(machine)}"
    planned = tables(parsed(visitor.open(address).text))["What would be done"]
    assert [row[0] for row in planned] == [f"pid {workload.pid}", "share"]
    assert "SIGTERM" in planned[0][1]
    assert "1g.5gb at 6:1" in planned[1][1]
    said = visitor.outcome(visitor.send(visitor.form(address)))
    assert said == f"Done. The share was released after SIGTERM to pid {workload.pid}."
    assert workload.process.wait(60) == 128 + signal.SIGTERM
    assert machine.json("ps")["allocations"] == []
    actor = actor_of(machine, "ReleaseBegun")
    assert isinstance(actor, dict)
    assert actor["by"] == "dashboard"
    assert actor["user"]
    # Its own command gives it back as it ends, or the page does where the command is late.
    assert actor_of(machine, "Released") in (None, actor)


def test_a_request_that_waits_is_cancelled(machine: TestMachine, acting: ServedDashboard) -> None:
    machine.hold("--gpus", "2")
    waiting = machine.wait_in_queue("--gpus", "1")
    (waiter,) = machine.json("ps")["waiters"]
    visitor = Visitor.of(acting)
    way = f"/act/release?id={waiter['id']}"
    assert way in visitor.open("/queue").text
    assert visitor.outcome(visitor.send(visitor.form(way))).startswith("Done. The request was cancelled")
    waiting.wait(60)
    assert machine.json("ps")["waiters"] == []
    assert actor_of(machine, "Cancelled") is not None


def test_a_gpu_is_cordoned_and_given_away_again(machine: TestMachine, acting: ServedDashboard) -> None:
    visitor, gpu = Visitor.of(acting), machine.json("gpus")["gpus"][1]["uuid"]
    page = f"/gpus/{gpu}"
    there, back = f"/act/cordon?gpu={gpu}", f"/act/uncordon?gpu={gpu}"
    assert there in visitor.open(page).text
    assert 'method="post"' not in visitor.open(back).text
    stale = visitor.form(there)
    assert visitor.outcome(visitor.send(visitor.form(there))) == "Done. GPU 1 serves no new requests."
    assert machine.json("gpus")["gpus"][1]["withheld"] == f"cordoned by {user_name()}: from the dashboard"
    shown = visitor.open(page).text
    assert f"cordoned by {user_name()}: from the dashboard" in shown
    assert (there in shown, back in shown) == (False, True)
    assert "Nothing was done" in visitor.open(visitor.send(stale).headers["location"]).text
    assert visitor.outcome(visitor.send(visitor.form(back))) == "Done. GPU 1 serves new requests again."
    assert machine.json("gpus")["gpus"][1]["withheld"] is None
    for kind in ("Cordoned", "Uncordoned"):
        assert actor_of(machine, kind) == {"by": "dashboard", "user": user_name()}
    assert "no GPU nothing on this machine" in visitor.open("/act/cordon?gpu=nothing").text


@pytest.mark.parametrize(
    ("typed", "kept"), [("its fan", "its fan"), (" \n", "from the dashboard"), (f"{HOSTILE}\n2", f"{HOSTILE} 2")]
)
def test_a_cordon_has_the_reason_that_its_viewer_types_as_text(
    machine: TestMachine, acting: ServedDashboard, typed: str, kept: str
) -> None:
    visitor, gpu = Visitor.of(acting), machine.json("gpus")["gpus"][1]["uuid"]
    form = visitor.form(f"/act/cordon?gpu={gpu}&reason=of+the+link")
    assert form.fields["reason"] == ""
    assert visitor.outcome(visitor.send(form.with_fields(reason=typed))).startswith("Done.")
    assert machine.json("gpus")["gpus"][1]["withheld"] == f"cordoned by {user_name()}: {kept}"
    for path in (f"/gpus/{gpu}", f"/act/uncordon?gpu={gpu}", "/", "/events"):
        page = parsed(visitor.open(path).text)
        assert not list(page.iter("img")), path
    assert kept in text_of(parsed(visitor.open(f"/gpus/{gpu}").text))


def test_a_layout_is_applied_as_its_plan_says(machine: TestMachine, acting: ServedDashboard) -> None:
    visitor = Visitor.of(acting)
    assert LAYOUT.partition("?")[2] in visitor.open("/layouts?layout=all-1g.5gb").text
    planned = tables(parsed(visitor.open(LAYOUT).text))["What would be done"]
    answer = visitor.send(visitor.form(LAYOUT))
    assert visitor.outcome(answer).startswith("Done. The GPUs match the layout")
    page = parsed(visitor.open(answer.headers["location"]).text)
    (steps,) = [each for each in page.iter("ol") if each.get("id") == "steps"]
    assert sorted(map(text_of, steps)) == sorted(f"{gpu}: {step}" for gpu, step in planned)
    assert [len(gpu["slices"]) for gpu in machine.json("gpus")["gpus"]] == [7, 7]
    actor = actor_of(machine, "ChangeBegun")
    assert isinstance(actor, dict)
    assert actor["by"] == "dashboard"
    assert "form" not in [each.tag for each in parsed(visitor.open(LAYOUT).text).iter("form")], "nothing is to be done"


def test_a_layout_that_is_in_the_way_of_somebody_has_no_form(machine: TestMachine, acting: ServedDashboard) -> None:
    machine.hold("--mig-profile", "2g.10gb")
    page = Visitor.of(acting).open(LAYOUT).text
    assert "Refused now" in page
    assert 'method="post"' not in page


Forger = Callable[[PlanForm, Visitor, Visitor], tuple[PlanForm, dict[str, str]]]
FORGERIES: dict[str, tuple[int, Forger]] = {
    "no session": (401, lambda form, me, other: (form, {"Cookie": ""})),
    "a made-up session": (401, lambda form, me, other: (form, {"Cookie": me.cookie[:-1] + "x"})),
    "another site": (403, lambda form, me, other: (form, {"Origin": "http://evil.example"})),
    "another port": (403, lambda form, me, other: (form, {"Origin": "http://127.0.0.1:1"})),
    "a sandboxed frame": (403, lambda form, me, other: (form, {"Origin": "null"})),
    "a browser that says it is another site's": (403, lambda form, me, other: (form, {"Sec_Fetch_Site": "same-site"})),
    "another name of the machine": (421, lambda form, me, other: (form, {"Host": "evil.example"})),
    "another's session": (403, lambda form, me, other: (form, {"Cookie": other.cookie})),
    "another action": (403, lambda form, me, other: (form.with_fields(layout="all-2g.10gb"), {})),
    "another action's form": (
        403,
        lambda form, me, other: (form.with_fields(key=me.form(LAYOUT.replace("1g.5gb", "2g.10gb")).fields["key"]), {}),
    ),
    "another plan": (403, lambda form, me, other: (form.with_fields(plan="0" * 32), {})),
    "no key": (403, lambda form, me, other: (form.with_fields(key=""), {})),
    "a made-up key": (403, lambda form, me, other: (form.with_fields(key="0.x." + "0" * 64), {})),
    "a strange key": (403, lambda form, me, other: (form.with_fields(key="é.x.y"), {})),
    "a long form": (404, lambda form, me, other: (form.with_fields(more="x" * 20_000), {})),
    "too many fields": (404, lambda form, me, other: (form.with_fields(**{f"f{n}": "x" for n in range(50)}), {})),
    "nothing that can be done": (404, lambda form, me, other: (PlanForm("/act/reboot", form.fields), {})),
}


def test_a_form_that_does_not_count_changes_nothing(machine: TestMachine, acting: ServedDashboard) -> None:
    me, other = Visitor.of(acting), Visitor.of(acting)
    before = machine.changes()
    for name, (status, forge) in FORGERIES.items():
        forged, headers = forge(me.form(LAYOUT), me, other)
        answer = me.send(forged, **headers)
        assert (name, answer.status) == (name, status)
    assert machine.changes() == before
    assert machine.json("events")["events"] == []


def test_a_form_counts_once(machine: TestMachine, acting: ServedDashboard) -> None:
    me = Visitor.of(acting)
    form = me.form(LAYOUT)
    assert me.outcome(me.send(form)).startswith("Done.")
    before = machine.changes()
    again = me.send(form)
    assert (again.status, "already been sent" in again.text) == (403, True)
    assert machine.changes() == before


def test_the_form_of_an_earlier_start_does_not_count(machine: TestMachine, dashboards: Dashboards) -> None:
    first = dashboards.start(0, "--act")
    me = Visitor.of(first)
    form = me.form(LAYOUT)
    first.process.kill()
    first.process.wait()
    dashboards.start(first.port, "--act")
    before = machine.changes()
    assert me.send(form).status == 403
    assert machine.changes() == before


def test_a_dashboard_that_only_shows_shows_the_plan_and_does_nothing(
    machine: TestMachine, dashboard: ServedDashboard
) -> None:
    machine.hold("--mig-profile", "1g.5gb")
    release = f"/act/release?id={share_of(machine)}"
    me = Visitor.of(dashboard)
    before = machine.changes()
    for address, command in ((LAYOUT.replace("1g.5gb", "disabled"), ""), (release, "tranche release")):
        page = me.open(address).text
        assert 'method="post"' not in page
        assert command in page
    assert "/act/" not in me.open(f"/shares/{share_of(machine)}").text
    for form in (
        PlanForm("/act/layout", {"layout": "all-1g.5gb"}),
        PlanForm("/act/release", {"id": share_of(machine)}),
    ):
        answer = me.send(form)
        assert answer.status == 403
        assert "is read-only" in answer.text
    assert machine.changes() == before


def test_whoever_may_see_one_dashboard_may_not_act_in_another(
    dashboard: ServedDashboard, acting: ServedDashboard
) -> None:
    assert acting.ask(f"/enter?token={dashboard.token}", token=False).status == 401
    assert acting.ask("/", token=False, Authorization=f"Bearer {dashboard.token}").status == 401
    seeing = Visitor.of(dashboard).cookie.replace(str(dashboard.port), str(acting.port), 1)
    assert acting.ask("/", token=False, Cookie=seeing).status == 401
    assert Visitor.of(acting).open("/").status == 200


def test_a_plan_that_does_not_come_out_any_more_is_not_done_and_the_new_one_is_shown(
    machine: TestMachine, acting: ServedDashboard
) -> None:
    me = Visitor.of(acting)
    form = me.form(LAYOUT)
    machine.hold("--mig-profile", "1g.5gb")
    before = machine.changes()
    answer = me.send(form)
    assert answer.status == 303
    assert answer.headers["location"].startswith(LAYOUT)
    page = me.open(answer.headers["location"])
    assert "Nothing was done: the machine has changed since you saw the plan." in page.text
    assert machine.changes() == before
    fresh = me.form(answer.headers["location"])
    assert fresh.fields["plan"] != form.fields["plan"]
    assert me.outcome(me.send(fresh)).startswith("Done.")


def test_a_share_that_has_ended_meanwhile_is_told(machine: TestMachine, acting: ServedDashboard) -> None:
    workload = machine.hold("--mig-profile", "1g.5gb")
    me = Visitor.of(acting)
    form = me.form(f"/act/release?id={share_of(machine)}")
    workload.process.terminate()
    workload.process.wait()
    page = me.open(me.send(form).headers["location"])
    assert "Nothing was done" in page.text
    assert "no share or waiting request has the id" in page.text


def test_an_open_plan_says_that_another_one_comes_out(machine: TestMachine, acting: ServedDashboard) -> None:
    me = Visitor.of(acting)
    plan = me.form(LAYOUT).fields["plan"]
    address = f"{LAYOUT}&plan={plan}"

    def part() -> str:
        return acting.ask(address, token=False, Cookie=me.cookie, Tranche_Part="view").text

    assert "This plan is current." in part()
    machine.hold("--mig-profile", "1g.5gb")
    wait_until(lambda: me.open("/").status == 200 and "so this plan is no longer valid" in part())


def test_a_driver_that_hangs_in_the_middle_holds_up_no_page_and_a_kill_is_undone(
    machine: TestMachine, acting: ServedDashboard
) -> None:
    me = Visitor.of(acting)
    form = me.form(LAYOUT)
    machine.machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 3_600_000)
    answer = me.send(form)
    wait_until(lambda: "create" in me.open(answer.headers["location"]).text)
    assert me.state(answer).startswith("In progress.")
    for address in ("/events", "/queue", LAYOUT):
        assert me.open(address).status == 200
    acting.process.kill()
    acting.process.wait()
    machine.machine.clear_injections()
    assert [gpu["mig"]["mode"] for gpu in machine.json("gpus")["gpus"]] == ["disabled", "disabled"]
    (newest,) = machine.json("events", "--last", "1")["events"]
    assert newest["type"] == "Recovered"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_told_to_also_while_a_driver_hangs_in_what_was_begun(
    machine: TestMachine, acting: ServedDashboard, number: signal.Signals
) -> None:
    me = Visitor.of(acting)
    form = me.form(LAYOUT)
    machine.machine.inject_latency("nvmlDeviceCreateGpuInstanceWithPlacement", 3_600_000)
    answer = me.send(form)
    wait_until(lambda: "create" in me.open(answer.headers["location"]).text)
    acting.process.send_signal(number)
    assert acting.process.wait(60) in (0, 128 + number, -number)
    machine.machine.clear_injections()
    assert [gpu["mig"]["mode"] for gpu in machine.json("gpus")["gpus"]] == ["disabled", "disabled"]


def test_a_failure_is_told_and_undone(machine: TestMachine, acting: ServedDashboard) -> None:
    me = Visitor.of(acting)
    form = me.form(LAYOUT)
    machine.machine.inject_error("nvmlDeviceCreateGpuInstanceWithPlacement", 999)
    said = me.outcome(me.send(form))
    assert said.startswith("It failed.")
    machine.machine.clear_injections()
    assert [gpu["slices"] for gpu in machine.json("gpus")["gpus"]] == [[], []]


def test_whatever_others_wrote_is_text_on_the_pages_of_what_can_be_done(
    machine: TestMachine, acting: ServedDashboard
) -> None:
    machine.hold("--mig-profile", "1g.5gb", script=f"exec sleep 600; : {shlex.quote(HOSTILE)}")
    me = Visitor.of(acting)
    address = f"/act/release?id={share_of(machine)}"
    page = parsed(me.open(address).text)
    assert HOSTILE[:20] in text_of(page)
    assert not list(page.iter("img"))
    assert me.outcome(me.send(me.form(address))).startswith("Done.")
    for strange in (
        "/act/layout?layout=%3Cimg%20src%3Dx%3E",
        "/act/release?id=%3Cimg%20src%3Dx%3E",
        "/act/%3Cimg%3E?id=x",
    ):
        answer = me.open(strange)
        assert answer.status in (200, 404)
        assert not list(parsed(answer.text).iter("img"))
