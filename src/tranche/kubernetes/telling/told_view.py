"""The lease in which an agent tells of its node: the whole view, of which a page of the cluster makes the documents. Pure.

It tells people; nobody decides by it. What a controller decides by is another lease (`tranche.kubernetes.gates.leases`),
which has only what the node's mode offers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from tranche.core.allocation import Allocation, NodeView
from tranche.core.credible import credible
from tranche.core.devices import devices
from tranche.core.errors import TrancheError, UsageError
from tranche.core.keeper import ProcessKeeper
from tranche.core.printable import shortened
from tranche.core.state import GpuProcess, GpuState
from tranche.kubernetes.api.leases import Lease
from tranche.kubernetes.telling.packing import packed, unpacked
from tranche.kubernetes.telling.told_layouts import ToldLayouts, layouts_from_text, layouts_to_text
from tranche.planning.recording import view_from_dict, view_to_dict

TOLD_LABEL = "tranche.dev/told"
"""The label of these leases."""
VIEW = "view"
"""Its value."""
RENEWED_SECONDS = 60.0
"""So often a lease is written although nothing has changed: nobody else can tell a quiet node from one that is gone."""
SILENT_SECONDS = 150
"""Who has not renewed its lease for so long has been lost sight of: two renewals were missed. The lease itself says so."""

MOST_BYTES = 192 * 1024
"""Kubernetes takes 256 KiB of annotations of an object; the rest is left to others."""

_NODE = "tranche.dev/node"
_VIEW = "tranche.dev/view"
_SHORT = "tranche.dev/short"
_LAYOUTS = "tranche.dev/layouts"
_MARKED = "tranche.dev/marked"
_LONGEST_NAME = 200
_LONGEST_REASON = 300

_Shown = Callable[[tuple[GpuProcess, ...]], tuple[GpuProcess, ...]]


@dataclass(frozen=True, slots=True)
class ToldView:
    """What an agent tells of its node. `short` says that there was too much to tell, and that processes are left out.

    `layouts` is None where that is not told. `marked` are those of the GPUs that are being changed on which no change is at work
    yet: a layout waits for what is in use, and another one may still take its place.
    """

    node: str
    view: NodeView
    short: bool = False
    layouts: ToldLayouts | None = None
    marked: frozenset[str] = frozenset()


def view_lease_name(node: str) -> str:
    """The name of a node's lease."""
    word = node if len(node) <= _LONGEST_NAME else hashlib.sha256(node.encode()).hexdigest()[:32]
    return f"tranche-view-{word}"


def told(view: NodeView, condemned: Collection[str] = ()) -> NodeView:
    """The view without what is nobody else's business: commands of shares of the machine itself, keys of shares.

    GPUs of which a change may take away `condemned` devices are being changed.
    """
    changing = view.changing | marked(view, condemned)
    return replace(view, allocations=tuple(map(_discreet, view.allocations)), changing=changing)


def marked(view: NodeView, condemned: Collection[str]) -> frozenset[str]:
    """The GPUs of which a change may take away `condemned` devices, and on which none is at work."""
    by_uuid = devices(view.node)
    return frozenset(by_uuid[each].gpu_uuid for each in condemned if each in by_uuid) - view.changing


def steady(view: NodeView) -> NodeView:
    """The view without amounts of memory in use, which change all the time: they are told when a lease is written anyway."""
    return replace(view, node=replace(view.node, gpus=tuple(_without_amounts(gpu) for gpu in view.node)))


def told_to_lease(
    node: str,
    view: NodeView,
    owner: tuple[str, str],
    layouts: ToldLayouts | None = None,
    marked: Collection[str] = (),
) -> Lease:
    """The lease in which it is told; `owner` is name and uid of the node object. UsageError when it is too much for a lease."""
    text, short = packed(view_to_dict(view)), False
    if len(text) > MOST_BYTES:
        bare = replace(view, node=replace(view.node, gpus=tuple(_with_processes(gpu, _first) for gpu in view.node)))
        text, short = packed(view_to_dict(bare)), True
    if len(text) > MOST_BYTES:
        raise UsageError(f"node {node} has more to tell than a lease holds: {len(text):,} bytes of {MOST_BYTES:,}")
    annotations = {_NODE: node, _VIEW: text, **({_SHORT: "true"} if short else {})}
    if layouts is not None:
        annotations[_LAYOUTS] = layouts_to_text(layouts)
    if marked:
        annotations[_MARKED] = ",".join(sorted(marked))
    return Lease(
        view_lease_name(node),
        node,
        seconds=SILENT_SECONDS,
        labels={TOLD_LABEL: VIEW},
        annotations=annotations,
        owner_node=owner,
    )


def told_from_lease(lease: Lease) -> ToldView:
    """What an agent told; UsageError when it cannot be read or cannot be true: nothing is known of the node then."""
    try:
        if lease.annotations[_NODE] != told_node(lease):
            raise ValueError("it is not the lease of the node that it names")
        view = credible(view_from_dict(unpacked(lease.annotations[_VIEW])))
        marked = frozenset(lease.annotations.get(_MARKED, "").split(",")) & view.changing
        short = lease.annotations.get(_SHORT) == "true"
        return ToldView(lease.annotations[_NODE], view, short, _layouts(lease), marked)
    except (KeyError, ValueError, TypeError, AttributeError, OSError, EOFError, TrancheError) as error:
        why = shortened(str(error), _LONGEST_REASON)
        raise UsageError(f"lease {lease.name} does not say what the node has: {why}") from error


def told_node(lease: Lease) -> str:
    """The node that the lease is about, by its name, whatever is in it."""
    named = (lease.annotations.get(_NODE, ""), lease.holder)
    return next(
        (each for each in named if each and view_lease_name(each) == lease.name),
        lease.name.removeprefix("tranche-view-"),
    )


def _layouts(lease: Lease) -> ToldLayouts | None:
    """None where they are not told, or not in a way that is understood here: the view counts all the same."""
    try:
        return layouts_from_text(lease.annotations[_LAYOUTS]) if _LAYOUTS in lease.annotations else None
    except UsageError:
        return None


def _discreet(allocation: Allocation) -> Allocation:
    keeper = allocation.keeper
    if isinstance(keeper, ProcessKeeper):
        keeper = replace(keeper, key_digest="")
    return replace(allocation, command="", keeper=keeper)


def _without_amounts(gpu: GpuState) -> GpuState:
    return replace(_with_processes(gpu, _without_memory), memory_free=0)


def _with_processes(gpu: GpuState, shown: _Shown) -> GpuState:
    instances = tuple(
        replace(
            each,
            compute_instances=tuple(
                replace(piece, processes=shown(piece.processes)) for piece in each.compute_instances
            ),
            stray_processes=shown(each.stray_processes),
        )
        for each in gpu.instances
    )
    return replace(gpu, processes=shown(gpu.processes), instances=instances)


def _without_memory(processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    return tuple(replace(each, memory=None) for each in processes)


def _first(processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    return tuple(sorted(processes, key=lambda each: each.pid)[:1])
