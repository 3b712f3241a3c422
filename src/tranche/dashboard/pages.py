"""Maps addresses to pages: the first of them with what needs attention on the machine, and what is wasted there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from tranche.core.allocation import NodeView, WholeGpu
from tranche.core.errors import TrancheError
from tranche.core.quantity import GIB
from tranche.core.request import Request
from tranche.dashboard.events_page import events_page, share_page
from tranche.dashboard.fleet_page import fleet_page
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.gpu_page import gpu_page
from tranche.dashboard.history_view import StateHistory, hours_asked
from tranche.dashboard.layouts_page import layouts_page
from tranche.dashboard.parts import (
    DashboardFinding,
    TableOrder,
    figures,
    maker,
    memory,
    needs_line,
    notes,
    share_and_user,
)
from tranche.dashboard.queue_page import ask_page, explained, queue_page
from tranche.dashboard.snapshot import LONG_WAIT_SECONDS, MachineSnapshot, waits_long
from tranche.documents import describe
from tranche.documents.blocks import BlockStatus, Document, holder_without_id
from tranche.documents.explanation import explanation_document
from tranche.documents.history import seconds_of
from tranche.documents.layout_change import preview_data
from tranche.documents.markup import Child, element
from tranche.documents.waste import use_over_time, waste_by_owner, waste_data
from tranche.planning.decide.queue import WaitingRequest
from tranche.planning.explain.explanation import explain
from tranche.planning.layouts.named_layouts import generate_layouts
from tranche.planning.layouts.reconfigure import plan_layout

_DAY_HOURS = 24

Events = Callable[[], Sequence[Document]]
"""Gives all events that the register keeps, oldest first."""


AsSaid = Callable[[NodeView], NodeView]
"""Asks the MPS daemons and returns the view as they answer now, which may take two seconds."""
OLD_CORDON_SECONDS = 86_400.0

_LIMITS = frozenset({"LimitsLost", "LimitExceeded"})
_FAILED = frozenset({"Undone", "UndoIncomplete"})


def page_at(
    path: str, query: Mapping[str, str], seen: MachineSnapshot, events: Events, as_said: AsSaid = lambda view: view
) -> DashboardPage | None:
    """The page at that path, from what was seen; None where there is none."""
    match path.strip("/").split("/"):
        case [""]:
            return _fleet(seen, events, TableOrder(path, query))
        case ["gpus", uuid]:
            hours = hours_asked(query.get("hours", ""))
            history = (seen.samples, seen.use, seen.plans)
            shown = (seen.overview, seen.readings, events(), seen.notes, seen.taken, hours, *history)
            return gpu_page(uuid, *shown, order=TableOrder(path, query))
        case ["shares", allocation_id]:
            of_it = [each for each in events() if each["allocationId"] == allocation_id]
            return share_page(allocation_id, seen.overview, of_it, seen.taken)
        case ["queue"]:
            return queue_page(seen.overview, seen.notes, seen.taken)
        case ["ask"]:
            return ask_page(query, lambda request: explained(_answer(seen, as_said(seen.view), request), seen.overview))
        case ["events"]:
            return events_page(events(), seen.overview["gpus"], query)
        case ["waste"]:
            since = StateHistory(seen.overview, events(), seen.taken)
            return waste_page(waste_of(seen, events()), seen.overview, seen.notes, since, TableOrder(path, query))
        case ["layouts"]:
            return _previewed(query.get("layout", ""), seen)
        case _:
            return None


def _fleet(seen: MachineSnapshot, events: Events, order: TableOrder) -> DashboardPage:
    """With what needs attention, or a note that this is unknown because the register cannot be read."""
    known: Sequence[Document] = ()
    try:
        known = events()
        needs = needs_line(machine_needs(seen.view, seen.overview, known, seen.taken), seen.taken)
    except TrancheError as error:
        needs = element("p", f"Cannot tell what needs attention: {error.message}.", class_="note")
    return fleet_page(seen.overview, seen.notes, seen.taken, order, needs, known, seen.readings)


def waste_of(seen: MachineSnapshot, events: Sequence[Document]) -> Mapping[str, Any]:
    """The fields of a Waste document: waste now, and who held what and each GPU's use over the last day."""
    gpus, allocations = seen.overview["gpus"], seen.overview["allocations"]
    now = waste_data(seen.view.node, gpus, seen.readings, allocations)
    since = seen.taken - _DAY_HOURS * 3600
    use = use_over_time(gpus, events, allocations, since, seen.taken)
    owners = waste_by_owner(seen.view.node, gpus, events, allocations, now, since, seen.taken)
    return {**now, "hours": _DAY_HOURS, "gpus": use, "owners": owners}


def _previewed(chosen: str, seen: MachineSnapshot) -> DashboardPage:
    names: list[str] = []
    try:
        offered = generate_layouts(seen.view.node)
        names = [layout.name for layout in offered.layouts]
        plan = plan_layout(seen.view, offered.select(chosen)) if chosen else None
    except TrancheError as error:
        return layouts_page(names, chosen, None, f"{error.message}. {error.hint}".strip(), seen.overview)
    preview = None if plan is None else preview_data(plan, seen.view)
    return layouts_page(names, chosen, preview, "", seen.overview)


def _answer(seen: MachineSnapshot, view: NodeView, request: Request) -> Document:
    """The request's Explanation document; MPS daemons in `view` are as they answer now."""
    waiters = [WaitingRequest(each.id, each.request, each.uid) for each in seen.queue if each.id not in seen.away]
    return explanation_document(explain(view, request, waiters), len(waiters))


def machine_needs(view: NodeView, overview: Document, events: Sequence[Document], now: float) -> list[DashboardFinding]:
    """What needs attention; `events` are all that are kept, oldest first."""
    return [
        *_of_gpus(view, overview["gpus"]),
        *_of_shares(overview["allocations"], events),
        *_of_changes(events),
        *_of_queue(overview["waiters"], now),
        *_of_cordons(view, events, now),
    ]


def _of_gpus(view: NodeView, gpus: Sequence[Document]) -> Iterator[DashboardFinding]:
    faulty = {each.place.gpu_uuid: each.why for each in view.withheld if each.faulty}
    for gpu in gpus:
        address = f"/gpus/{quote(gpu['uuid'], safe='')}"
        if gpu["lost"]:
            yield DashboardFinding(f"GPU {gpu['index']}: the driver has lost it", address)
        elif gpu["uuid"] in faulty:
            yield DashboardFinding(f"GPU {gpu['index']}: {faulty[gpu['uuid']]}", address)


def _of_shares(allocations: Sequence[Document], events: Sequence[Document]) -> Iterator[DashboardFinding]:
    unlimited = {each["allocationId"]: each for each in events if each["type"] in _LIMITS}
    for each in allocations:
        address = f"/shares/{quote(each['id'], safe='')}"
        name = holder_without_id(each) or f"share {each['id']}"
        if each["missingInstances"]:
            yield DashboardFinding(f"{name}: one of its slices is missing", address)
        if (event := unlimited.get(each["id"])) is not None:
            yield DashboardFinding(f"{name}: {event['message']}", address, event["time"])
        elif each["unavailable"]:
            yield DashboardFinding(f"{name} accepts no more programs: {each['unavailable']}", address)


def _of_changes(events: Sequence[Document]) -> Iterator[DashboardFinding]:
    """The newest declared change if it failed, and the cut at boot if it failed and nothing was changed since."""
    begun: set[int] = set()
    failed: Document | None = None
    for each in events:
        if each["type"] == "ChangeBegun":
            begun.add(each["position"])
            failed = None
        elif (each["type"] in _FAILED and each["cause"] in begun) or (
            each["type"] == "BootEnded" and (each["data"] or {}).get("reason")
        ):
            failed = each
    if failed is not None:
        yield DashboardFinding(
            f"a layout failed: {failed['message']}", f"/events#event-{failed['position']}", failed["time"]
        )


def _of_queue(waiters: Sequence[Document], now: float) -> Iterator[DashboardFinding]:
    late = waits_long(waiters, now)
    if late:
        many = f"{len(late)} requests have" if len(late) > 1 else "a request has"
        first = min((each["created"] for each in late), key=seconds_of)
        yield DashboardFinding(f"{many} waited longer than {describe.age(LONG_WAIT_SECONDS)}", "/queue", first)


def _of_cordons(view: NodeView, events: Sequence[Document], now: float) -> Iterator[DashboardFinding]:
    since = {each["gpuUUID"]: each["time"] for each in events if each["type"] == "Cordoned"}
    for each in view.withheld:
        gpu = next((gpu for gpu in view.node if each.place == WholeGpu(gpu.uuid)), None)
        if not each.by_administrator or gpu is None:
            continue
        began = since.get(gpu.uuid, "")
        if not began or now - seconds_of(began) >= OLD_CORDON_SECONDS:
            yield DashboardFinding(f"{gpu.label}: {each.why}", f"/gpus/{quote(gpu.uuid, safe='')}", began)


def waste_page(
    waste: Document, overview: Document, said: Sequence[str], since: StateHistory, order: TableOrder
) -> DashboardPage:
    """A Waste document: waste now, and who held what and each GPU's use over some hours."""
    known = since.known
    gpus = {each["index"]: each for each in overview["gpus"]}
    unused = [
        (
            *_held_by(each, known),
            since.said(gpus[each["gpuIndex"]], BlockStatus.HELD, each["placement"], each["allocationIds"]),
        )
        for each in waste["unused"]
    ]
    too_large = [
        (
            *_held_by(each, known),
            memory(each["memoryUsedBytes"]),
            f"{each['enough']['profile']}, {memory(each['enough']['memoryBytes'])}",
        )
        for each in waste["tooLarge"]
    ]
    idle = [
        (
            _place(each),
            memory(each["memoryBytes"]),
            maker(each["owned"]),
            since.said(gpus[each["gpuIndex"]], BlockStatus.IDLE, each["placement"], ()),
        )
        for each in waste["idle"]
    ]
    over_time = [
        (
            f"GPU {each['gpuIndex']}",
            f"{each['held']:.0%}",
            f"{each['idle']:.0%}",
            f"{1 - each['held'] - each['idle']:.0%}",
        )
        for each in waste["gpus"]
    ]
    live = element(
        "div",
        notes(said),
        figures([(word, memory(_sum(waste[kind]))) for word, kind in _WORDS]),
        order.table(
            "unused",
            "Held, but without a running process",
            ("What", "Memory", "Held by", "User", "For"),
            unused,
            "All held devices are in use.",
        ),
        order.table(
            "too-large",
            "Held, but larger than its processes need",
            ("What", "Memory", "Held by", "User", "Used now", "Enough"),
            too_large,
            "As far as Tranche can measure, no slice is larger than its processes need.",
        ),
        order.table(
            "idle",
            "Idle slices",
            ("What", "Memory", "Made by", "For"),
            idle,
            "Every slice is held or in use.",
        ),
        element("h2", f"The last {waste['hours']} hours"),
        order.table(
            "owners",
            "By user and namespace, largest first",
            ("Owner", "Shares", "Held", "Unused now", "More than needed now"),
            [_owned(each) for each in waste["owners"]],
            "Nothing was held.",
        ),
        order.table(
            "use",
            "Fractions of each GPU over time",
            ("GPU", "Held, at least in part", "Partitioned by Tranche, but not held", "Neither"),
            over_time,
            "No GPU.",
        ),
        element(
            "p",
            "A program may have used more memory a moment ago. The page shows only whether a program runs in a share now; "
            "the events show how long the share was held.",
            class_="muted",
        ),
    )
    return DashboardPage("Waste", live)


_WORDS = (("held and unused", "unused"), ("held and larger than needed", "tooLarge"), ("idle slices", "idle"))


def _owned(each: Document) -> Sequence[Child | None]:
    owner = each["owner"]
    whose = "not known" if owner is None else f"{owner['kind']} {owner['name']}"
    hours = f"{each['heldByteSeconds'] / GIB / 3600:,.1f} GiB·h"
    return whose, str(each["shares"]), hours, memory(each["unusedBytes"]), memory(each["spareBytes"])


def _sum(found: Sequence[Document]) -> int:
    return sum((each["memoryBytes"] or 0) - each.get("enough", {}).get("memoryBytes", 0) for each in found)


def _place(each: Document) -> str:
    if each["placement"] is None:
        return f"GPU {each['gpuIndex']}"
    return f"{each['profile']} at {each['placement']['start']}:{each['placement']['size']} of GPU {each['gpuIndex']}"


def _held_by(each: Document, known: Mapping[str, Document]) -> tuple[Child | None, ...]:
    return _place(each), memory(each["memoryBytes"]), *share_and_user(each["allocationIds"], known)
