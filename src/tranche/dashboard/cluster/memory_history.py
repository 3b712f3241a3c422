"""How much memory of each GPU was used of late, as agents have told it: with each word of theirs, once a minute at least.

How busy a GPU is they do not tell: it changes all the time, and each change would be written, told and drawn for everybody.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import partial

from tranche.dashboard.cluster.apart import apart
from tranche.dashboard.cluster.cluster_history import GpuPlace, UnreportedSpan, too_many_gone
from tranche.dashboard.cluster.snapshot import ClusterSnapshot, SeenNode
from tranche.dashboard.reading_log import KEPT_SECONDS, GaugeSample
from tranche.documents.blocks import Document

APART_SECONDS = 30.0
"""At least so long apart is what is kept; of what is told within that time, the last."""
TOLD_SECONDS = 60.0
"""So often an agent tells at least."""

_UNKNOWN = -1.0


class MemoryHistory:
    """Takes each snapshot, in the order in which they were seen. Of each GPU it keeps moments, each with the bytes used since."""

    def __init__(self) -> None:
        self._last: ClusterSnapshot | None = None
        self._told: dict[GpuPlace, array[float]] = {}

    def take(self, snapshot: ClusterSnapshot) -> None:
        """The cluster is as this one says."""
        change = None if self._last is None else snapshot.since(self._last.version)
        for name in () if self._last is None else self._last.nodes.keys() - snapshot.nodes.keys():
            for at in [each for each in self._told if each[0] == name]:
                del self._told[at]
        for node in snapshot.nodes.values() if change is None else change.nodes:
            if node.seen is not None and not node.trouble:
                apart(node.name, partial(self._hear, node, node.seen), lambda: None)
        self._last = snapshot

    def samples(self, node: str, uuid: str, until: float, silences: Sequence[UnreportedSpan]) -> list[GaugeSample]:
        """The last hour until then, but for what was not heard."""
        found: list[GaugeSample] = []
        for taken, value in _steps(self._told.get((node, uuid), array("d")), until):
            heard = all(taken <= each.since or (each.until is not None and taken >= each.until) for each in silences)
            if value != _UNKNOWN and heard and until - taken <= KEPT_SECONDS:
                found.append(GaugeSample(taken, {uuid: {"memoryUsedBytes": round(value), "busy": None}}))
        return found

    def _hear(self, node: SeenNode, seen: float) -> None:
        before = None if self._last is None else self._last.nodes.get(node.name)
        if before is not None:
            for at in too_many_gone(self._told, before, node):
                del self._told[at]
        for gpu in node.overview["gpus"]:
            told = self._told.setdefault((node.name, gpu["uuid"]), array("d"))
            used = _used(gpu)
            if told and (seen < told[-2] or seen - told[-2] > 2 * KEPT_SECONDS):
                del told[:]  # a clock that was set back begins anew
            if not told or (told[-1] != used and seen - told[-2] >= APART_SECONDS):
                told.extend((seen, used))
            else:
                told[-1] = used
            while len(told) > 2 and seen - told[2] > KEPT_SECONDS:
                del told[:2]


def _used(gpu: Document) -> float:
    free, memory = gpu["memoryFreeBytes"], gpu["memoryBytes"]
    return _UNKNOWN if gpu["lost"] or free is None or not memory else float(max(0, memory - free))


def _steps(told: array[float], until: float) -> Iterator[tuple[float, float]]:
    """The moments that were told, and between them one for each minute: what was told stands until something else is."""
    for place in range(0, len(told), 2):
        began, value = told[place], told[place + 1]
        ended = told[place + 2] if place + 2 < len(told) else until
        moment = max(began, until - KEPT_SECONDS)
        while moment < ended:
            yield moment, value
            moment += TOLD_SECONDS
        yield max(began, ended - 0.001), value
