"""The pages: their numbers are those of the documents, in any state; whatever others wrote is text in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dashboard.reading import figures, parsed, shape, tables, text_of
from tests.documents.test_markup import HOSTILE
from tests.documents.test_picture import every_kind
from tests.strategies import requests, sharing_views
from tranche.core.allocation import NodeView, Slice, WholeGpu, WithheldDevice
from tranche.core.errors import LedgerUnavailable, TrancheError
from tranche.core.events import Event, ShareGranted, StepDone
from tranche.core.request import MigSlice, Request, parse_request
from tranche.core.reservation import Reservation
from tranche.core.state import NodeState
from tranche.dashboard.acting.action_handler import plan_page
from tranche.dashboard.acting.actions import ActionPlan, ReleaseAction
from tranche.dashboard.frame import DashboardPage, live_part, whole_page
from tranche.dashboard.gauges_view import UseRecord
from tranche.dashboard.pages import page_at
from tranche.dashboard.parts import TableOrder, moment
from tranche.dashboard.snapshot import LONG_WAIT_SECONDS, MachineSnapshot
from tranche.documents.blocks import blocks_of
from tranche.documents.events import event_document
from tranche.documents.explanation import explanation_document
from tranche.documents.gauge_samples import KEPT_GAUGES, GaugeSample
from tranche.documents.machine import gpu_document
from tranche.documents.markup import Child, printable
from tranche.documents.overview import overview_data
from tranche.node.store.records import Waiter
from tranche.planning.decide.queue import WaitingRequest
from tranche.planning.explain.explanation import explain
from tranche.planning.layouts.named_layouts import generate_layouts
from tranche.planning.layouts.reconfigure import LayoutDecision, plan_layout
from tranche.planning.steps import CreateInstance
from tranche.planning.steps.plan import apply


def snapshot_of(view: NodeView, waiting: tuple[Request, ...] = (), command: str = "python train.py") -> MachineSnapshot:
    queue = tuple(Waiter(n, f"w-{n}", request, 100.0 + n, command, 4000 + n, 1000) for n, request in enumerate(waiting))
    return MachineSnapshot(1, 1000.0, view, queue, frozenset(), overview_data(view, queue, ()), None)


def page_of(path: str, seen: MachineSnapshot, events: tuple[Event, ...] = (), **query: str) -> DashboardPage:
    page = page_at(path, query, seen, lambda: [event_document(each) for each in events])
    assert page is not None
    return page


def tree_of(page: DashboardPage) -> ElementTree.Element:
    return parsed(whole_page(page, path="/", machine="here", version="a.1", taken=1000.0))


VIEWS = sharing_views(max_gpus=3)
QUEUES = st.lists(requests(), max_size=3).map(tuple)


def test_the_fleet_tells_how_much_each_gpu_and_slice_is_used() -> None:
    """Not each share of a device: the gauge is of the device."""
    view = every_kind()
    cut, parted, whole, *_ = view.node.gpus
    first = cut.instances[0].id
    readings = (
        _reading(cut.uuid, 5 * 2**30, None, {first: (2**30, 0.25)}),
        _reading(parted.uuid, 2**30, 0.5),
        _reading(whole.uuid, 3 * 2**30, 0.0),
    )
    page = tree_of(page_of("/", replace(snapshot_of(view), readings=readings)))
    said = text_of(page)
    assert all(words in said for words in ("5 GiB used", "50% busy", "0% busy")), said
    rows = tables(page)["The same as a table"]
    told = [(row[0], row[-3], row[-2]) for row in rows if row[-2] != "–"]
    assert told == [("GPU 0", "1 GiB", "25%"), ("GPU 2", "3 GiB", "0%")]


def test_the_fleet_says_for_how_long_a_share_is_idle() -> None:
    view = every_kind()
    share = view.allocations[0].id
    assert "idle 42m" not in text_of(tree_of(page_of("/", snapshot_of(view))))
    rows = tables(tree_of(page_of("/", snapshot_of(replace(view, idle={share: 2559})))))["The same as a table"]
    assert [share in " ".join(row) for row in rows if "idle 42m" in " ".join(row)] == [True]


def _reading(
    uuid: str, used: int, busy: float | None, slices: Mapping[int, tuple[int, float]] = MappingProxyType({})
) -> dict[str, Any]:
    inside = [{"gpuInstanceId": id, "memoryUsedBytes": memory, "busy": share} for id, (memory, share) in slices.items()]
    return {"gpuUUID": uuid, "memoryUsedBytes": used, "busy": busy, "slices": inside}


@given(VIEWS, QUEUES)
def test_the_numbers_of_the_fleet_are_those_of_the_document(view: NodeView, waiting: tuple[Request, ...]) -> None:
    seen = snapshot_of(view, waiting)
    page = tree_of(page_of("/", seen))
    slices = [each for gpu in seen.overview["gpus"] for each in gpu["slices"]]
    assert figures(page) == {
        "GPUs": str(len(seen.overview["gpus"])),
        "slices": str(len(slices)),
        "slices held": str(sum(each["state"] == "held" for each in slices)),
        "slices idle": str(sum(each["state"] == "idle" for each in slices)),
        "shares": str(len(seen.overview["allocations"])),
        "waiting": str(len(waiting)),
    }
    bars = [each for each in page.iter("svg") if each.get("class") == "bar"]
    assert len(bars) == len(seen.overview["gpus"])
    rows = tables(page)["The same as a table"]
    drawn = [block for each in bars for block in each.findall("svg")]
    assert len(rows) == len(drawn)


@given(VIEWS)
def test_a_gpus_page_has_every_slice_with_its_holders(view: NodeView) -> None:
    seen = snapshot_of(view)
    for gpu in seen.overview["gpus"]:
        page = tree_of(page_of(f"/gpus/{gpu['uuid']}", seen))
        rows = tables(page).get("Slices and holders", [])
        expected = [
            (f"{s['placement']['start']}:{s['placement']['size']}", s["profile"], s["state"]) for s in gpu["slices"]
        ]
        assert [tuple(row[:3]) for row in rows] == expected
        for row, each in zip(rows, gpu["slices"], strict=True):
            assert all(id in row[4] for id in each["allocationIds"])
        whole = tables(page).get("Who holds the whole GPU", [])
        assert [row[0].split()[-1] for row in whole] == gpu["allocationIds"]


@given(VIEWS, st.lists(requests(), min_size=1, max_size=4).map(tuple))
def test_the_queue_says_why_each_one_waits(view: NodeView, waiting: tuple[Request, ...]) -> None:
    seen = snapshot_of(view, waiting)
    rows = tables(tree_of(page_of("/queue", seen)))["Waiting requests, oldest first"]
    for row, each in zip(rows, seen.overview["waiters"], strict=True):
        assert row[0] == str(each["position"])
        assert row[1].endswith(each["id"])
        assert row[4].startswith(printable(each["why"]))
        assert all(f"GPU {one['gpuIndex']}" in row[4] and one["message"] in row[4] for one in each["obstacles"])
        assert all(id in row[4] for one in each["obstacles"] for id in one["allocationIds"])


@given(
    VIEWS, QUEUES, st.sampled_from([("gpu_memory", "4Gi"), ("gpus", "2"), ("gpu", "0.5"), ("mig_profile", "1g.10gb")])
)
def test_the_answer_to_a_question_is_that_of_explain(
    view: NodeView, waiting: tuple[Request, ...], asked: tuple[str, str]
) -> None:
    seen = snapshot_of(view, waiting)
    page = tree_of(page_of("/ask", seen, kind=asked[0], amount=asked[1]))
    request = parse_request(**{asked[0]: asked[1]})
    ahead = [WaitingRequest(each.id, each.request) for each in seen.queue]
    answer = explanation_document(explain(view, request, ahead), len(ahead))
    said = text_of(page)
    assert f"{answer['status']}: {printable(answer['message'])}" in said
    for remedy in answer["remedies"]:
        assert remedy["message"] in said
    if answer["status"] != "Startable":
        assert len(tables(page)["What each GPU lacks"]) == len(answer["gpus"])


@pytest.mark.parametrize(
    ("fields", "trouble"),
    [
        ({"kind": "", "amount": "4Gi"}, "choose what to request"),
        ({"kind": "isolation", "amount": "hard"}, "choose what to request"),
        ({"kind": "gpu_memory", "amount": "much"}, "'much' is not an amount of memory"),
        ({"kind": "gpu_memory", "amount": "16"}, "has no unit"),
        ({"kind": "gpus", "amount": "1", "isolation": "wall"}, "not 'wall'"),
    ],
)
def test_a_question_that_is_none_is_answered_with_what_is_wrong(fields: dict[str, Any], trouble: str) -> None:
    assert trouble in text_of(tree_of(page_of("/ask", snapshot_of(every_kind()), **fields)))


def test_a_page_on_which_nothing_was_asked_finds_no_fault() -> None:
    page = tree_of(page_of("/ask", snapshot_of(every_kind())))
    assert not [each for each in page.iter("p") if each.get("class") == "note"]
    (here,) = [each for each in page.iter("a") if each.get("href") == "/ask"]
    assert text_of(here) == "Ask"


def decided(view: NodeView, name: str) -> LayoutDecision | TrancheError:
    try:
        return plan_layout(view, generate_layouts(view.node).select(name))
    except TrancheError as error:
        return error


LAYOUTS = st.sampled_from(
    ["all-disabled", "all-enabled", "all-balanced", "all-1g.5gb", "all-1g.10gb", "all-2g.12gb", "none"]
)


@given(sharing_views(max_gpus=3), LAYOUTS)
def test_the_preview_of_a_layout_is_its_plan_and_the_machine_afterwards(view: NodeView, name: str) -> None:
    seen, decision = snapshot_of(view), decided(view, name)
    page = tree_of(page_of("/layouts", seen, layout=name))
    said = text_of(page)
    if isinstance(decision, TrancheError):
        assert printable(decision.message) in said
        return
    caption = "Steps on GPUs that are not blocked" if decision.blockers else "What would be done"
    steps = [[view.node.gpu(step.gpu_uuid).label, str(step)] for step in decision.plan.steps]
    assert tables(page).get(caption, []) == steps
    assert ("Refused now" in said) == bool(decision.blockers)
    assert all(printable(str(each)) in said for each in decision.blockers)
    after = apply(decision.plan, view)
    told = [
        str(each.get("aria-label")) for each in page.iter("svg") if str(each.get("aria-label")).startswith("After: ")
    ]
    shown = [gpu_document(after, after.node.gpu(change.gpu.uuid)) for change in decision.changes]
    assert told == [f"After: {printable(gpu.told)}" for gpu in blocks_of(shown, seen.overview["allocations"])]


EVENTS = (
    Event(1, 10.0, "ChangeBegun", "", "", "apply the layout all-1g.5gb", None),
    Event(2, 11.0, "CreateInstance", every_kind().node.gpus[0].uuid, "11111111", "GPU 0: create 1g.5gb at 0:1", 1),
    Event(3, 12.0, "Released", "", "99999999", "the command ended with exit code 0", 2),
)


def test_events_lead_to_what_caused_them() -> None:
    page = tree_of(page_of("/events", snapshot_of(every_kind()), EVENTS))
    rows = tables(page)["Events, newest first"]
    assert [row[0] for row in rows] == ["3", "2", "1"]
    links = [each.get("href") for each in page.iter("a")]
    assert {"#event-1", "#event-2", "/shares/11111111", "/shares/99999999"} <= set(links)
    assert {"event-1", "event-2", "event-3"} <= {each.get("id") for each in page.iter()}


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({}, ["3", "2", "1"]),
        ({"kind": "Released"}, ["3"]),
        ({"kind": "Nothing"}, []),
        ({"q": "gpu 0"}, ["2"]),
        ({"q": "99999999"}, ["3"]),
        ({"order": "oldest"}, ["1", "2", "3"]),
        ({"q": "APPLY", "kind": "ChangeBegun", "order": "oldest"}, ["1"]),
    ],
)
def test_events_are_chosen_and_ordered(query: dict[str, str], numbers: list[str]) -> None:
    page = tree_of(page_of("/events", snapshot_of(every_kind()), EVENTS, **query))
    order = "oldest" if query.get("order") else "newest"
    assert [row[0] for row in tables(page).get(f"Events, {order} first", [])] == numbers
    chosen = [each.get("value") for each in page.iter("option") if each.get("selected") is not None]
    assert chosen == [query.get("kind", ""), query.get("order", "")]
    if {"q", "kind"} & query.keys():
        assert f"{len(numbers)} of 3 events match." in text_of(page)


def test_a_slice_that_is_held_says_for_how_long() -> None:
    seen = replace(snapshot_of(every_kind()), taken=1e9)
    for gpu in seen.overview["gpus"]:
        rows = tables(tree_of(page_of(f"/gpus/{gpu['uuid']}", seen))).get("Slices and holders", [])
        assert [row[3] != "–" for row in rows] == [bool(each["allocationIds"]) for each in gpu["slices"]]


def test_what_nobody_holds_says_since_when() -> None:
    """It was held, or cut, or cordoned: its events tell when that ended or began."""
    view = every_kind()
    cut, cordoned = view.node.gpus[0], view.node.gpus[7]
    released, made = (cut.key(each) for each in cut.instances[1:3])
    created = CreateInstance(cut.uuid, made.profile, made.placement, (made.profile,))
    slot = Slice(released.gpu_uuid, released.profile, released.placement)
    granted = ShareGranted("", "p", Request(MigSlice(slot.profile)), (slot,))
    events = (
        Event(1, 100.0, "Granted", "", "99999999", "", None, granted),
        Event(2, 400.0, "Released", "", "99999999", "", 1),
        Event(3, 700.0, "CreateInstance", cut.uuid, "", "", None, StepDone("q", created.to_dict())),
        Event(4, 940.0, "Cordoned", cordoned.uuid, "", "cordoned by root"),
    )
    page = tree_of(page_of("/", snapshot_of(view), events))
    said = {(row[0], row[1]): row[3] for row in tables(page)["The same as a table"]}
    assert said["GPU 0", "1g.5gb at 1:1"] == "10m"
    assert said["GPU 0", "2g.10gb at 2:2"] == "5m"
    assert said["GPU 0", "1g.5gb at 5:1"] == "–", "nobody knows since when somebody else uses it"
    assert said["GPU 7", "3g.20gb at 0:4"] == "1m"


@pytest.mark.parametrize("hours", ["6", "24", "168"])
def test_the_use_of_a_gpu_over_days_is_drawn_where_it_was_written_down_and_nowhere_else(hours: str) -> None:
    uuid, now = every_kind().node.gpus[0].uuid, 1e9
    length = int(hours) * 3600

    def of(ago: float, watts: float) -> GaugeSample:
        gauges = dict.fromkeys(KEPT_GAUGES) | {"powerWatts": watts}
        return GaugeSample(now - ago * length, {uuid: gauges})

    def page(use: UseRecord) -> ElementTree.Element:
        seen = replace(snapshot_of(every_kind()), taken=now, use=use)
        return tree_of(page_of(f"/gpus/{uuid}", seen, hours=hours))

    shown = page(UseRecord((of(1.5, 900.0), of(0.75, 100.0), of(0.25, 300.0))))
    assert tables(shown)["Use since then"] == [["Power", "300 W", "100 W", "200 W", "300 W"]]
    (chart,) = (each for each in shown.iter("svg") if each.get("class") == "chart")
    starts = [
        float(each.split("L")[0].split()[0]) for path in chart.iter("path") for each in path.get("d", "").split("M")[1:]
    ]
    assert starts == [250, 750], "of a thousand; between them nobody looked"
    assert "Nothing was recorded during this time" in text_of(page(UseRecord((of(1.5, 900.0),))))
    assert "is not recorded: the disk is full" in text_of(page(UseRecord((), "the disk is full")))


@pytest.mark.parametrize(
    ("sort", "memories"),
    [
        ("gpus.memory", ["4 GiB", "6 GiB", "40 GiB"]),
        ("-gpus.memory", ["40 GiB", "6 GiB", "4 GiB"]),
    ],
)
def test_a_table_is_in_the_order_that_its_address_asks_for(sort: str, memories: list[str]) -> None:
    seen = snapshot_of(every_kind())
    page = tree_of(page_of("/", seen, sort=sort, q="held"))
    table = next(each for each in page.iter("table"))
    shown = [row[6] for row in tables(page)["The same as a table"]]
    named = [each for each in shown if each != "–"]
    assert shown == [*named, *["–"] * (len(shown) - len(named))]
    assert [each for each in dict.fromkeys(named) if each in memories] == memories
    heads = {text_of(each): each for each in table.iter("th") if each.get("scope") == "col"}
    (sorted_by,) = [(word, each.get("aria-sort")) for word, each in heads.items() if each.get("aria-sort")]
    down = sort.startswith("-")
    assert sorted_by == (("Memory ▼", "descending") if down else ("Memory ▲", "ascending"))
    ways = {
        text_of(each).rstrip(" ▲▼"): each.get("href")
        for each in table.iter("a")
        if str(each.get("id")).startswith("sort-")
    }
    assert ways["Memory"] == f"/?sort={'' if down else '-'}gpus.memory&q=held#gpus"
    assert ways["Held by"] == "/?sort=gpus.held-by&q=held#gpus"
    assert next(each for each in page.iter("details")).get("open") is not None


def test_columns_are_sorted_by_what_they_say() -> None:
    times = [moment("2026-11-23T08:00:00Z"), moment("2026-11-23T07:59:00Z")]
    rows: list[tuple[Child | None, ...]] = [
        ("GPU 10", "512 MiB", times[0]),
        ("GPU 9", "1 GiB", times[1]),
        ("GPU 11", None, None),
    ]

    def order(sort: str) -> list[str]:
        made = TableOrder("/", {"sort": sort}).table("t", "T", ("GPU", "Memory", "Held for"), rows, "")
        return [row[0] for row in tables(parsed(str(made)))["T"]]

    assert order("t.gpu") == ["GPU 9", "GPU 10", "GPU 11"]
    assert order("-t.gpu") == ["GPU 11", "GPU 10", "GPU 9"]
    assert order("t.memory") == ["GPU 10", "GPU 9", "GPU 11"]
    assert order("-t.memory") == ["GPU 9", "GPU 10", "GPU 11"]
    assert order("t.held-for") == ["GPU 9", "GPU 10", "GPU 11"]
    assert order("u.gpu") == order("t.nothing") == ["GPU 10", "GPU 9", "GPU 11"]


def test_a_share_has_a_page_while_it_lives_and_after() -> None:
    seen = snapshot_of(every_kind())
    alive = tree_of(page_of("/shares/11111111", seen, EVENTS))
    assert figures(alive)["state"] == "active"
    assert "1g.5gb at 0:1" in tables(alive)["What was granted"][0]
    assert figures(tree_of(page_of("/shares/99999999", seen, EVENTS)))["state"] == "ended"
    for path in ("/shares/none", "/gpus/none", "/nothing", "/gpus", "/gpus/a/b"):
        assert page_at(path, {}, seen, list) is None


def test_gpus_are_found_by_what_is_said_of_them() -> None:
    seen = snapshot_of(every_kind())
    page = tree_of(page_of("/", seen, q="TEAM-A/train"))
    assert [text_of(each) for each in page.iter("a") if str(each.get("id")).startswith("to-")] == ["GPU 2"]
    assert "1 of 10 GPUs match “TEAM-A/train”." in text_of(page)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "path", ["/", "/queue", "/events", "/ask", "/waste", "/shares/11111111", f"/gpus/{every_kind().node.gpus[0].uuid}"]
)
def test_whatever_others_wrote_is_text(path: str, text: str) -> None:
    def page(said: str) -> ElementTree.Element:
        view = every_kind()
        allocations = tuple(each._replace(command=said) for each in view.allocations)
        gpus = tuple(replace(gpu, name=f"{said} A100") for gpu in view.node)
        seen = snapshot_of(replace(view, node=replace(view.node, gpus=gpus), allocations=allocations), _waiting(), said)
        events = tuple(each._replace(message=said) for each in EVENTS)
        asked: dict[str, Any] = {"kind": "gpus", "amount": said, "gpu_model": said} if path == "/ask" else {}
        return tree_of(page_of(path, replace(seen, notes=(said,)), events, **asked))

    def without_drawing(found: ElementTree.Element) -> Any:
        return [each for each in shape(found) if each[0] not in ("rect", "text")]  # texts that do not fit are left out

    assert without_drawing(page(text)) == without_drawing(page("plain words"))
    assert printable(text).strip() in text_of(page(text)) or path == "/ask"


def _waiting() -> tuple[Request, ...]:
    return (parse_request(gpus="3"),)


def test_a_page_loads_only_what_this_server_has_and_runs_nothing_of_its_own() -> None:
    page = tree_of(page_of("/", snapshot_of(every_kind())))
    for each in page.iter():
        assert not any(name.startswith("on") or name == "style" for name in each.attrib)
        for name in ("href", "src", "action"):
            assert str(each.get(name, "/")).startswith(("/", "#"))
        if each.tag == "script":
            assert not each.text
        assert each.tag != "style"


def test_the_live_part_is_in_the_page_once_and_ids_are_unique() -> None:
    for path in ("/", "/queue", "/events", "/waste", "/layouts"):
        page = page_of(path, snapshot_of(every_kind(), _waiting()), EVENTS)
        whole = tree_of(page)
        ids = [each.get("id") for each in whole.iter() if each.get("id")]
        assert len(ids) == len(set(ids))
        assert "view" in ids
        assert parsed(str(live_part(page))).get("id") == "view"


def test_what_is_held_is_on_every_page_though_the_clock_was_put_back() -> None:
    """The machine was seen at 1000; every share began later."""
    view = every_kind()
    later = tuple(each._replace(created=5000.0 + n) for n, each in enumerate(view.allocations))
    seen = snapshot_of(replace(view, allocations=later))
    for gpu in seen.overview["gpus"]:
        ids = {each.id for each in later if any(grant.gpu_uuid == gpu["uuid"] for grant in each.grants)}
        page = tree_of(page_of(f"/gpus/{gpu['uuid']}", seen))
        rows = tables(page).get("Past holders, newest first", [])
        assert {row[0] for row in rows} == ids
        (history,) = [each for each in page.iter("svg") if "history" in str(each.get("class"))]
        drawn = [str(rect.get("class")) for rect in history.iter("rect")]
        assert drawn.count("tr-held") == len(rows)
    owners = tables(tree_of(page_of("/waste", seen)))["By user and namespace, largest first"]
    assert sum(int(row[1]) for row in owners) == len(later)


def test_a_reservation_is_told_beside_its_gpu_and_on_its_page_until_it_is_over() -> None:
    view = every_kind()
    uuid = view.node.gpus[0].uuid
    it = Reservation("r", (uuid,), 100.0, 200.0, ("1001",), "ann", "root")
    for time, told in ((50.0, True), (150.0, True), (200.0, False)):
        seen = snapshot_of(replace(view, reservations=(it,), time=time))
        for page in ("/", f"/gpus/{uuid}"):
            assert (str(it) in text_of(tree_of(page_of(page, seen)))) is told, page


def test_the_first_view_says_what_needs_somebody_and_where_it_is_shown() -> None:
    view, day = every_kind(), 86_400.0
    lost = next(gpu for gpu in view.node if gpu.lost)
    cordoned = next(gpu for gpu in view.node if not gpu.lost)
    view = replace(view, withheld=(WithheldDevice(WholeGpu(cordoned.uuid), "cordoned by ana: fans"),))
    seen = replace(snapshot_of(view, _waiting()), taken=3 * day)
    owner = view.allocations[0]
    happened = (
        Event(1, 1.0, "Cordoned", cordoned.uuid, "", "cordoned by ana", None),
        Event(2, 2.0, "LimitExceeded", "", owner.id, "nothing limits it", None),
        Event(3, 3.0, "ChangeBegun", "", "", "apply the layout", None),
        Event(4, 4.0, "Undone", "", "", "the layout is undone: GPU busy", 3),
        Event(5, 5.0, "LimitsLost", "", "99999999", "a share that has ended", None),
    )
    page = tree_of(page_of("/", seen, happened))
    (line,) = [each for each in page.iter("section") if each.get("class") == "needs"]
    ways = {str(each.get("href")): text_of(each) for each in line.iter("a")}
    assert ways[f"/gpus/{lost.uuid}"].endswith("the driver has lost it")
    assert ways[f"/gpus/{cordoned.uuid}"].endswith("cordoned by ana: fans")
    assert "nothing limits it" in ways[f"/shares/{owner.id}"]
    assert ways["/events#event-4"] == "a layout failed: the layout is undone: GPU busy"
    assert ways["/queue"] == "a request has waited longer than 30m"
    assert not any("99999999" in each for each in ways)
    mended = (*happened, Event(6, 6.0, "ChangeBegun", "", "", "apply the layout", None))
    assert "a layout failed" not in text_of(tree_of(page_of("/", seen, mended)))


def test_what_needs_somebody_comes_with_time_alone_and_is_not_denied_where_nobody_knows() -> None:
    calm = snapshot_of(NodeView(NodeState(())))
    assert "Nothing needs attention." in text_of(tree_of(page_of("/", calm)))
    young = replace(snapshot_of(every_kind(), _waiting()), taken=101.0)
    assert young.shows_the_same(replace(young, taken=102.0))
    assert not young.shows_the_same(replace(young, taken=101.0 + LONG_WAIT_SECONDS))

    def unread() -> list[Any]:
        raise LedgerUnavailable("the ledger is gone")

    page = page_at("/", {}, calm, unread)
    assert page is not None
    assert "Cannot tell what needs attention: the ledger is gone." in text_of(tree_of(page))


def test_the_button_that_kills_says_what_and_looks_like_it() -> None:
    plan = ActionPlan((("pid 7", "SIGTERM"),), (), "d", "tranche release 11111111", ends="pid 7: train.py")
    for ends, said, look in (("pid 7: train.py", "Kill pid 7: train.py", "danger"), ("", "Release it", None)):
        page = tree_of(plan_page(ReleaseAction("11111111"), replace(plan, ends=ends), "key", same=True, moved=False))
        (button,) = page.iter("button")
        assert (text_of(button), button.get("class")) == (said, look)
