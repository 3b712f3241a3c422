"""What needs attention on one machine, worst first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

from tranche.core.allocation import NodeView, WholeGpu
from tranche.dashboard.parts import DashboardFinding
from tranche.documents import describe
from tranche.documents.blocks import Document, holder_without_id
from tranche.documents.history import seconds_of

LONG_WAIT_SECONDS = 1800.0
OLD_CORDON_SECONDS = 86_400.0

_LIMITS = frozenset({"LimitsLost", "LimitExceeded"})
_FAILED = frozenset({"Undone", "UndoIncomplete"})


def waits_long(waiters: Iterable[Document], now: float) -> Sequence[Document]:
    """The waiters that have waited too long."""
    return [each for each in waiters if now - seconds_of(each["created"]) >= LONG_WAIT_SECONDS]


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
            yield DashboardFinding(f"{name}: a slice of it is missing", address)
        if (event := unlimited.get(each["id"])) is not None:
            yield DashboardFinding(f"{name}: {event['message']}", address, event["time"])
        elif each["fenced"]:
            yield DashboardFinding(f"{name}: it accepts no more programs: {each['fenced']}", address)


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
