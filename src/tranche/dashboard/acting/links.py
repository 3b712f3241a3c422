"""The ways from the views to what can be done about what they show; only where the server acts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tranche.dashboard.acting.action import DashboardAction
from tranche.dashboard.acting.cordon import CordonAction, UncordonAction
from tranche.dashboard.acting.layout import LayoutAction
from tranche.dashboard.acting.pages import plan_address
from tranche.dashboard.acting.release import ReleaseAction
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.documents.markup import Element, element
from tranche.documents.slices import why_withheld


def with_ways(page: DashboardPage, path: str, query: Mapping[str, str], seen: MachineSnapshot) -> DashboardPage:
    """The page, which leads to the plan of each action that belongs there; the plan is shown before anything is done."""
    ways = [_way(action) for action in _deeds(path, query, seen)]
    if not ways:
        return page
    listed = element("nav", element("ul", ways, class_="choices acts"), aria_label="What can be done")
    return replace(page, live=element("div", page.live, listed))


def _way(action: DashboardAction) -> Element:
    link = element(
        "a", f"{action.label.title}…", href=plan_address(action), id=f"way-{action.label.name.replace(' ', '-')}"
    )
    return element("li", link)


def _deeds(path: str, query: Mapping[str, str], seen: MachineSnapshot) -> Iterator[DashboardAction]:
    match path.strip("/").split("/"):
        case ["shares", id] if any(each.id == id for each in seen.view.allocations):
            yield ReleaseAction(id)
        case ["gpus", uuid]:
            for gpu in seen.view.node:
                if gpu.uuid == uuid:
                    yield UncordonAction(uuid) if why_withheld(seen.view, gpu) else CordonAction(uuid)
        case ["queue"]:
            for waiter in seen.queue:
                yield ReleaseAction(waiter.id)
        case ["layouts"] if layout := query.get("layout", ""):
            yield LayoutAction(layout)
        case _:
            return
