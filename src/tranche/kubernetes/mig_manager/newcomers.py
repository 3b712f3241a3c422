"""Pods and commands that came while a layout waits, and were given what it was to leave as it is.

Several cuts can give one layout, and which of them takes the fewest ends changes with every pod that ends. Whoever was
given a slice that nobody had marked must not stand in the way of the next such choice: a backlog would keep the layout waiting.
"""

from __future__ import annotations

from collections.abc import Collection

from tranche.core.allocation import Allocation, NodeView, devices, overlap


class NewPodTracker:
    """Who they are, for the layout that is wanted at the time; another layout begins without any."""

    def __init__(self) -> None:
        self._layout = ""
        self._known: frozenset[str] | None = None
        self._protected: frozenset[str] = frozenset()

    def after(self, layout: str, view: NodeView, marked: Collection[str]) -> frozenset[str]:
        """The ids of the allocations to leave where they are. `marked` are the devices that nobody was given since the last look.

        While nothing is marked nobody is a newcomer: what a pod is given then may be what the layout takes first.
        """
        present = frozenset(each.id for each in view.allocations)
        if layout != self._layout or not marked:
            self._layout, self._known, self._protected = layout, None, frozenset()
        if not marked:
            return self._protected
        known = present if self._known is None else self._known
        new = {each.id for each in view.allocations if each.id not in known and not _is_marked(each, view, marked)}
        self._known = known | present
        self._protected = (self._protected | new) & present
        return self._protected


def _is_marked(allocation: Allocation, view: NodeView, marked: Collection[str]) -> bool:
    by_uuid = devices(view.node)
    gone = [by_uuid[uuid] for uuid in marked if uuid in by_uuid]
    return any(overlap(grant, each) for grant in allocation.grants for each in gone)
