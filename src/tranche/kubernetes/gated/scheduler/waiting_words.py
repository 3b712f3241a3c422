"""Why a pod goes on waiting for its share, in one line for its events. Pure."""

from __future__ import annotations

import re

from tranche.core.printable import shortened
from tranche.kubernetes.gated.chosen_view import CHOSEN
from tranche.kubernetes.gated.scheduler.placer import UnplacedPod

_MOST_NODES = 6
_LONGEST_REASON = 160
_CHOSEN = re.compile(rf"\b{CHOSEN}[0-9a-zA-Z-]+")


def waiting_text(found: UnplacedPod) -> str:
    """`no node can give --gpu-memory 4Gi now: ...`, nodes with one reason together."""
    groups: dict[str, list[str]] = {}
    for node, reason in sorted(found.reasons.items()):
        groups.setdefault(_CHOSEN.sub("a pod that it was chosen for", reason), []).append(node)
    if not groups:
        return f"{found.pod.request} waits: no node has told of GPUs whose shares are chosen by demand"
    now = "now" if found.possible else "as they are"
    largest = sorted(groups.items(), key=lambda each: (-len(each[1]), each[1]))
    texts = [f"{_names(nodes)}: {shortened(reason, _LONGEST_REASON)}" for reason, nodes in largest[:_MOST_NODES]]
    left_out = sum(len(nodes) for _, nodes in largest[_MOST_NODES:])
    more = f"; and {left_out} more nodes" if left_out else ""
    return f"no node can give {found.pod.request} {now}: {'; '.join(texts)}{more}"


def _names(nodes: list[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"
