"""An explanation in words."""

from __future__ import annotations

from collections.abc import Iterator

from tranche.core.quantity import format_memory
from tranche.kubernetes.fleet.explanation import FleetExplanation, NodeGroup, WaitStatus, given_text

_DEVICES = 4
GROUP_COLUMNS = ("NODES", "REASON", "MISSING", "HELD BY", "WHY")


def head_lines(found: FleetExplanation) -> Iterator[str]:
    """What comes before the nodes: the answer, what is asked for, what it has or would get."""
    yield f"{found.status}: {found.message}"
    for each in found.wanted:
        yield f"  asks for: {each}"
    has = "has" if found.status is WaitStatus.HAS else "was given"
    for holding in found.given:
        yield f"  {has}: {given_text(holding)}"
    if found.get is not None:
        names = ", ".join(each.name for each in found.get.devices[:_DEVICES])
        more = len(found.get.devices) - _DEVICES
        yield f"  would get: {names}{f' and {more} more' if more > 0 else ''} on node {found.get.node}"


def group_row(group: NodeGroup) -> tuple[object, ...]:
    """Nodes that say the same, as a row."""
    more = group.count - len(group.nodes)
    nodes = ", ".join(group.nodes) + (f" and {more:,} more" if more else "")
    missing = format_memory(group.missing) if group.missing else ""
    return (nodes, group.reason, missing, ", ".join(group.holders), group.text)


def tail_lines(found: FleetExplanation) -> Iterator[str]:
    """What comes after the nodes: how many were not named, what would help, and what is not known."""
    if found.unnamed:
        yield f"and {found.unnamed:,} more nodes, for other reasons"
    if found.remedies:
        yield ""
        yield "what would help, cheapest first:"
        yield from (f"  {number}. {each}" for number, each in enumerate(found.remedies, start=1))
    yield from (f"note: {each}" for each in found.notes)
