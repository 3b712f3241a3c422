"""One GPU: what is on it, who has it, what runs there, and what happened to it."""

from __future__ import annotations

from collections.abc import Sequence

from tranche.dashboard.events_page import MOST, event_table
from tranche.dashboard.fleet_page import gpu_bar, key
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.gauges_view import KEPT_DAYS, LINE_SECONDS, LOOK_SECONDS, NO_RECORD, UseRecord, gauges_view
from tranche.dashboard.history_view import HOURS, StateHistory, history_view, hours_choice
from tranche.dashboard.parts import TableOrder, code, figures, maker, measured, memory, notes, share_and_user, table
from tranche.documents.blocks import BlockStatus, Document, blocks_of
from tranche.documents.gauge_samples import GaugeSample
from tranche.documents.history import events_by_gpu
from tranche.documents.markup import Child, Element, element

_COLUMNS = (
    *("Place", "Profile", "State", "For", "Held by", "User"),
    *("Memory", "Used", "Busy", "Made by", "MIG device"),
)
_NO_ORDER = TableOrder()
_BAR_PIXELS = 1200
_LATELY = (
    "This server reads the gauges once a minute, or more often while a page is open. It keeps the readings for an hour."
)
_OVER_DAYS = (
    "'tranche dashboard' records five-minute means while it runs, even when no page is open, "
    f"and keeps them for {KEPT_DAYS} days. A gap means that it did not run."
)


def gpu_page(
    uuid: str,
    overview: Document,
    readings: Sequence[Document],
    events: Sequence[Document],
    said: Sequence[str],
    now: float,
    hours: int = HOURS[0],
    samples: Sequence[GaugeSample] = (),
    use: UseRecord = NO_RECORD,
    plans: Sequence[Document] = (),
    past: Element | None = None,
    order: TableOrder = _NO_ORDER,
) -> DashboardPage | None:
    """The GPU of that UUID, with its last so many hours; None where the machine has none.

    `events` are all that are kept, `samples` what its gauges said of late, `use` what they said over days, `plans` those that run
    now. `past` is shown instead of its gauges and what events tell of it, where others than the machine itself know these.
    """
    gpu = next((each for each in overview["gpus"] if each["uuid"] == uuid), None)
    if gpu is None:
        return None
    since = StateHistory(overview, events, now)
    events = events_by_gpu(events).get(uuid, [])
    known = {each["id"]: each for each in overview["allocations"]}
    reading = next((each for each in readings if each["gpuUUID"] == uuid), None)
    inside = {} if reading is None else {each["gpuInstanceId"]: each for each in reading["slices"]}
    drawn = blocks_of([gpu], overview["allocations"])
    live = element(
        "div",
        notes(said),
        _facts(gpu, reading, since),
        key(drawn),
        element("div", gpu_bar(drawn[0], width=_BAR_PIXELS), class_="card"),
        [_running(plan, uuid) for plan in plans if any(each["gpuUUID"] == uuid for each in plan["steps"])],
        order.table(
            "slices",
            "Slices and holders",
            _COLUMNS,
            [
                (
                    f"{each['placement']['start']}:{each['placement']['size']}",
                    each["profile"],
                    each["state"],
                    since.said(gpu, each["state"], each["placement"], each["allocationIds"]),
                    *share_and_user(each["allocationIds"], known),
                    memory(each["memoryBytes"]),
                    memory(inside.get(each["gpuInstanceId"], _UNKNOWN)["memoryUsedBytes"]),
                    measured(inside.get(each["gpuInstanceId"], _UNKNOWN)["busy"], "%"),
                    maker(each["owned"]),
                    element("span", [code(device["uuid"]) for device in each["devices"]]) if each["devices"] else None,
                )
                for each in gpu["slices"]
            ],
            "This GPU has no slices.",
        ),
        _whole(gpu, since, order),
        _processes(gpu, order),
        _past(gpu, overview, events, now, hours, _use_of(gpu, samples, use, now, hours), order)
        if past is None
        else past,
    )
    return DashboardPage(f"GPU {gpu['index']}", live)


def _past(
    gpu: Document,
    overview: Document,
    events: Sequence[Document],
    now: float,
    hours: int,
    use: Sequence[Element | None],
    order: TableOrder,
) -> Element:
    shown = event_table(events[-MOST:], overview["gpus"])
    history = history_view(gpu, overview, events, now, hours, order)
    over_time = (element("h2", "Over time"), hours_choice(gpu["uuid"], hours))
    return element("div", over_time, [each for each in use if each], history, element("h2", "What happened"), shown)


def _use_of(
    gpu: Document, samples: Sequence[GaugeSample], use: UseRecord, now: float, hours: int
) -> tuple[Element | None, ...]:
    """The charts of the last hour, of what this server has read, or of more hours, of what was written down."""
    if hours == HOURS[0]:
        return (gauges_view(gpu, samples, LOOK_SECONDS, _LATELY),)
    since = now - hours * 3600
    written = [each for each in use.samples if since <= each.taken <= now]
    charts = gauges_view(gpu, written, LINE_SECONDS, _OVER_DAYS, (since, now))
    if use.trouble:
        return charts, element("p", f"GPU use is not recorded: {use.trouble}.", class_="note")
    return (charts or element("p", f"Nothing was recorded during this time. {_OVER_DAYS}", class_="muted"),)


_PROGRESS = {"pending": "to do", "intended": "now", "done": "done", "needless": "already done"}


def _running(plan: Document, uuid: str) -> Element:
    """The steps of a plan on this GPU, and how far it is."""
    steps = [each for each in plan["steps"] if each["gpuUUID"] == uuid]
    what = "Being undone" if plan["status"] == "undoing" else "Being changed"
    rows = [(each["step"], _PROGRESS.get(each["status"], each["status"])) for each in steps]
    return table(f"{what}: {plan['purpose']}", ("Step", "Progress"), rows, "No step.")


_UNKNOWN: Document = {"memoryUsedBytes": None, "busy": None}
_GAUGES = (("busy", "busy", "%"), ("power", "powerWatts", " W"), ("temperature", "temperatureCelsius", " °C"))


def _facts(gpu: Document, reading: Document | None, since: StateHistory) -> Element:
    mode, pending = gpu["mig"]["mode"], gpu["mig"]["pendingMode"]
    room = [f"{each['count']}×{each['profile']}" for each in gpu["room"] if each["count"]]
    pairs: list[tuple[str, Child]] = [
        ("model", gpu["name"]),
        ("memory", memory(gpu["memoryBytes"])),
        ("memory free", memory(gpu["memoryFreeBytes"])),
        ("MIG mode", mode if mode == pending else f"{mode}, {pending} after a reset"),
        ("UUID", code(gpu["uuid"])),
        ("bus", code(gpu["pciBusId"])),
    ]
    if reading is not None:
        pairs += [(word, measured(reading[name], unit)) for word, name, unit in _GAUGES]
    if gpu["withheld"]:
        cordoned = since.said(gpu, BlockStatus.CORDONED, None, ())
        pairs.insert(0, ("withheld", element("span", gpu["withheld"], [" for ", cordoned] if cordoned else None)))
    if gpu.get("reserved"):
        pairs.insert(0, ("reservation", gpu["reserved"]))
    if gpu["lost"]:
        pairs.insert(0, ("health", "lost by the driver"))
    if gpu["mig"]["mode"] == "enabled":
        pairs.append(("room for one of", ", ".join(room) or "nothing more"))
    return figures(pairs)


def _whole(gpu: Document, since: StateHistory, order: TableOrder) -> Element | None:
    if not gpu["allocationIds"]:
        return None
    rows = [
        (
            *share_and_user([each], since.known),
            _amount(gpu, since.known.get(each)),
            since.said(gpu, BlockStatus.HELD, None, [each]),
        )
        for each in gpu["allocationIds"]
    ]
    return order.table("whole", "Who holds the whole GPU", ("Held by", "User", "Memory", "For"), rows, "No one.")


def _amount(gpu: Document, allocation: Document | None) -> str:
    grants = [] if allocation is None else [each for each in allocation["grants"] if each["gpuUUID"] == gpu["uuid"]]
    return memory(sum(each.get("memoryBytes", gpu["memoryBytes"]) for each in grants)) if grants else ""


def _processes(gpu: Document, order: TableOrder) -> Element:
    rows: list[tuple[Child | None, ...]] = []
    places = [("the whole GPU", gpu)] + [
        (f"{each['profile']} at {each['placement']['start']}", each) for each in gpu["slices"]
    ]
    for place, device in places:
        rows += [(str(each["pid"]), each["name"], place, memory(each["memoryBytes"])) for each in device["processes"]]
    columns = ("Pid", "Program", "Where", "Memory")
    return order.table("processes", "Processes", columns, rows, "No process runs on it.")
