"""Pods and commands that came while a layout waits, and were given what the layout was to leave alone.

Several cuts can give one layout, and which of them ends the fewest users changes with every pod that ends. A pod or command that
was given an unmarked slice must not stand in the way of the next such choice: a backlog would keep the layout waiting.
"""

from __future__ import annotations

from collections.abc import Collection

from tranche.core.allocation import Allocation, NodeView, devices, overlap


class NewPodTracker:
    """Tracks them for the layout wanted at the time; a change of the wanted layout starts over."""

    def __init__(self) -> None:
        self._layout = ""
        self._known: frozenset[str] | None = None
        self._protected: frozenset[str] = frozenset()

    def after(self, layout: str, view: NodeView, marked: Collection[str]) -> frozenset[str]:
        """The ids of the allocations to leave where they are. `marked` are the devices closed to everyone since the last look.

        While nothing is marked there are no newcomers: what a pod is given then may be what the layout takes first.
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
