"""The ways from the views to what can be done about what they show; only where the server acts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tranche.dashboard.acting.cordon import CordonDeed, UncordonDeed
from tranche.dashboard.acting.deed import DashboardDeed
from tranche.dashboard.acting.layout import LayoutDeed
from tranche.dashboard.acting.pages import plan_address
from tranche.dashboard.acting.release import ReleaseDeed
from tranche.dashboard.frame import DashboardPage
from tranche.dashboard.snapshot import MachineSnapshot
from tranche.documents.markup import Element, element
from tranche.documents.slices import why_withheld


def with_ways(page: DashboardPage, path: str, query: Mapping[str, str], seen: MachineSnapshot) -> DashboardPage:
    """The page, which leads to the plan of each deed that belongs there; the plan is shown before anything is done."""
    ways = [_way(deed) for deed in _deeds(path, query, seen)]
    if not ways:
        return page
    listed = element("nav", element("ul", ways, class_="choices"), aria_label="What can be done")
    return replace(page, live=element("div", page.live, listed))


def _way(deed: DashboardDeed) -> Element:
    link = element("a", f"{deed.label.title}…", href=plan_address(deed), id=f"way-{deed.label.name.replace(' ', '-')}")
    return element("li", link)


def _deeds(path: str, query: Mapping[str, str], seen: MachineSnapshot) -> Iterator[DashboardDeed]:
    match path.strip("/").split("/"):
        case ["shares", id] if any(each.id == id for each in seen.view.allocations):
            yield ReleaseDeed(id)
        case ["gpus", uuid]:
            for gpu in seen.view.node:
                if gpu.uuid == uuid:
                    yield UncordonDeed(uuid) if why_withheld(seen.view, gpu) else CordonDeed(uuid)
        case ["queue"]:
            for waiter in seen.queue:
                yield ReleaseDeed(waiter.id)
        case ["layouts"] if layout := query.get("layout", ""):
            yield LayoutDeed(layout)
        case _:
            return
