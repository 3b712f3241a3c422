"""The lease of an agent's report on its node: its view, what a controller may choose, and what layouts would do. Pure.

Anyone who may read leases can read all of one. So it has processes and amounts of memory only if the report is for people. The
agents of a cluster mostly say the same of layouts, so a reader of a thousand reports keeps that once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tranche.core.allocation import Allocation, NodeView, WithheldDevice, devices
from tranche.core.credible import credible
from tranche.core.errors import LayoutInvalid, TrancheError, UsageError
from tranche.core.keeper import ProcessKeeper
from tranche.core.layout_format import layouts_to_data, parse_layouts
from tranche.core.printable import shortened
from tranche.core.state import GpuProcess, GpuState, NodeState
from tranche.kubernetes.api.object_client import Lease
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import PLACING_LABEL
from tranche.kubernetes.telling.packing import packed, unpacked
from tranche.kubernetes.telling.use_report import MOST_USE_BYTES
from tranche.planning.decide.recording import view_from_dict, view_to_dict, withheld_from_dict, withheld_to_dict
from tranche.planning.layouts.named_layouts import LayoutList

FORMAT = 1
"""Other formats are unreadable."""
MOST_LAYOUT_BYTES = 32 * 1024
"""With the view, this stays below Kubernetes' limit for an object's annotations."""

_KEPT = 64


@dataclass(frozen=True, slots=True)
class LayoutReport:
    """`managed`: whether the agent cuts GPUs by layouts at all. `in_use`: what it does about slices in use, as InUsePolicy.

    With `heeds_mode` only a node of mode static has layouts; with `turns` the node waits for its turn among all nodes. `offer` is
    None if there are too many layouts to report.
    """

    managed: bool = False
    in_use: str = ""
    heeds_mode: bool = False
    turns: bool = False
    offer: LayoutList | None = None


NOT_MANAGED = LayoutReport()
"""For an agent without a MIG manager."""


def layouts_to_text(layouts: LayoutReport) -> str:
    """The annotation's text, without the layouts themselves if there are too many."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "managed": layouts.managed,
        "inUse": layouts.in_use,
        "heedsMode": layouts.heeds_mode,
        "turns": layouts.turns,
        "offer": None,
    }
    if layouts.offer is None:
        return packed(data)
    text = packed({**data, "offer": _offer_data(layouts.offer)})
    return text if len(text) <= MOST_LAYOUT_BYTES else packed(data)


@lru_cache(_KEPT)
def layouts_from_text(text: str) -> LayoutReport:
    """Parses the annotation; UsageError if it is unreadable or has another format."""
    try:
        data = unpacked(text)
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']} is unknown")
        return LayoutReport(
            managed=data["managed"] is True,
            in_use=str(data["inUse"]),
            heeds_mode=data["heedsMode"] is True,
            turns=data["turns"] is True,
            offer=None if data["offer"] is None else _offer_from(data["offer"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError, OSError, EOFError, RecursionError, LayoutInvalid) as error:
        raise UsageError(f"cannot read an agent's layout report: {error}") from error


def _offer_data(offer: LayoutList) -> dict[str, Any]:
    return {
        "configMap": offer.config_map,
        "layouts": None if offer.declared is None else layouts_to_data(offer.declared),
        "broken": offer.broken,
        "hint": offer.hint,
    }


def _offer_from(data: dict[str, Any]) -> LayoutList:
    name = str(data["configMap"])
    told = data["layouts"]
    declared = None if told is None else parse_layouts(told, source=f"ConfigMap {name}")
    return LayoutList(name, declared, str(data["broken"]), str(data["hint"]))


REPORT = "report"
"""The word for these leases in their names."""
TOLD_LABEL = "tranche.dev/told"
"""The label of reports for people."""
VIEW = "view"
"""Its value."""
GPUS = "gpus"
"""The value of the label `tranche.dev/placing` for nodes where a controller may choose shares."""
RENEWED_SECONDS = 60.0
"""How often an unchanged lease is written: otherwise readers cannot tell a quiet node from one that is gone."""
SILENT_SECONDS = 150
"""A lease without a renewal for so long counts as silent: it missed two renewals. The lease itself states this time."""

MOST_BYTES = 192 * 1024
"""Kubernetes takes 256 KiB of annotations of an object; the rest is left to others."""

NODE = "tranche.dev/node"
_GENERATION = "tranche.dev/generation"
_OFFER = "tranche.dev/offer"
_VIEW = "tranche.dev/view"
_SHORT = "tranche.dev/short"
_LAYOUTS = "tranche.dev/layouts"
_MARKED = "tranche.dev/marked"
_USE = "tranche.dev/use"
_LONGEST_NAME = 200
_LONGEST_REASON = 300
_LONGEST_NUMBER = 18


@dataclass(frozen=True, slots=True)
class ShareOffer:
    """What a controller may choose of the node's GPUs: by its mode, and without what is withheld from the controller's pods.

    `refused` says why pods, by uid, cannot have what was chosen for them.
    """

    mode: NodeMode
    withheld: tuple[WithheldDevice, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ViewReport:
    """An agent's report on its node. `short` says that the report was too long, and leaves out processes.

    `layouts` is None if not reported. `marked` are those of the GPUs under change whose change has not begun: a layout waits for
    what is in use, and another layout may still take its place. `offer` is None if no controller chooses. `to_people` is whether
    the report is for people, or for a controller alone. `generation` grows with each change except of amounts. `use` is the text
    that `use_from_text` reads; "" if not reported.
    """

    node: str
    view: NodeView
    short: bool = False
    layouts: LayoutReport | None = None
    marked: frozenset[str] = frozenset()
    offer: ShareOffer | None = None
    to_people: bool = True
    generation: int = 0
    use: str = ""


def lease_name(kind: str, node: str) -> str:
    """The name of a node's lease of that kind."""
    word = node if len(node) <= _LONGEST_NAME else hashlib.sha256(node.encode()).hexdigest()[:32]
    return f"tranche-{kind}-{word}"


def told(view: NodeView, draining: Collection[str] = ()) -> NodeView:
    """The view without private details: the commands of the machine's own shares, and keys of shares.

    GPUs with `draining` devices, which a change may take away, count as changing.
    """
    changing = view.changing | marked(view, draining)
    return replace(view, allocations=tuple(map(_discreet, view.allocations)), changing=changing)


def marked(view: NodeView, draining: Collection[str]) -> frozenset[str]:
    """The GPUs with `draining` devices on which no change is at work yet."""
    by_uuid = devices(view.node)
    return frozenset(by_uuid[each].gpu_uuid for each in draining if each in by_uuid) - view.changing


def steady(view: NodeView) -> NodeView:
    """The view without amounts of memory in use. They change all the time, so they wait for the next write of the lease."""
    return replace(view, node=replace(view.node, gpus=tuple(_without_amounts(gpu) for gpu in view.node)))


def bare(view: NodeView) -> NodeView:
    """The view with no more than a controller needs: no amounts of memory, one process for each device, no names of its owner."""
    gpus = tuple(_without_amounts(gpu.with_processes(_first)) for gpu in view.node)
    return replace(
        view, node=replace(view.node, gpus=gpus), allocations=tuple(_anonymous(each) for each in view.allocations)
    )


def told_to_lease(said: ViewReport, owner: tuple[str, str]) -> Lease:
    """The lease with the report; `owner` is name and uid of the node object. UsageError if the report is too long for a lease."""
    view, annotations = said.view, {NODE: said.node, _GENERATION: str(said.generation)}
    if said.offer is not None:
        annotations[_OFFER] = packed(_offer_to_dict(said.offer))
    most = MOST_BYTES - len(annotations.get(_OFFER, ""))
    text = _view_text(view, most)
    if text is None:
        few = replace(view, node=replace(view.node, gpus=tuple(gpu.with_processes(_first) for gpu in view.node)))
        text, annotations[_SHORT] = _view_text(few, most), "true"
    if text is None:
        raise UsageError(f"the report of node {said.node} is larger than a lease can hold ({most:,} bytes)")
    annotations[_VIEW] = text
    if said.layouts is not None:
        annotations[_LAYOUTS] = layouts_to_text(said.layouts)
    if said.use:
        annotations[_USE] = said.use
    if said.marked:
        annotations[_MARKED] = ",".join(sorted(said.marked))
    offered = {} if said.offer is None else {PLACING_LABEL: GPUS}
    return Lease(
        lease_name(REPORT, said.node),
        said.node,
        seconds=SILENT_SECONDS,
        labels={**offered, **({TOLD_LABEL: VIEW} if said.to_people else {})},
        annotations=annotations,
        owner_node=owner,
    )


def _view_text(view: NodeView, most: int) -> str | None:
    """None if it is too long for a lease, or for its readers."""
    try:
        text = packed(view_to_dict(replace(view, quotas={}, groups={}, recent={})))  # pods have none
    except ValueError:
        return None
    return text if len(text) <= most else None


def told_from_lease(lease: Lease) -> ViewReport:
    """An agent's report; UsageError if it is unreadable or cannot be true. Then nothing is known of the node."""
    try:
        if lease.annotations[NODE] != told_node(lease):
            raise ValueError("it is another node's lease")
        view = credible(view_from_dict(unpacked(lease.annotations[_VIEW])))
        marked = frozenset(lease.annotations.get(_MARKED, "").split(",")) & view.changing
        short = lease.annotations.get(_SHORT) == "true"
        to_people = TOLD_LABEL in lease.labels
        layouts, offer, use = _layouts(lease), _offer(lease), use_of_lease(lease)
        return ViewReport(told_node(lease), view, short, layouts, marked, offer, to_people, generation_of(lease), use)
    except (KeyError, ValueError, TypeError, AttributeError, OSError, EOFError, TrancheError) as error:
        why = shortened(str(error), _LONGEST_REASON)
        raise UsageError(f"lease {lease.name} does not describe the node's GPUs: {why}") from error


def told_node(lease: Lease) -> str:
    """The node of the lease, by its name, even if the rest is unreadable."""
    named = (lease.annotations.get(NODE, ""), lease.holder)
    return next(
        (each for each in named if each and lease_name(REPORT, each) == lease.name),
        lease.name.removeprefix(lease_name(REPORT, "")),
    )


def generation_of(lease: Lease) -> int:
    """The generation that the lease names, even if the rest is unreadable; 0 if it names none."""
    text = lease.annotations.get(_GENERATION, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _LONGEST_NUMBER else 0


def use_of_lease(lease: Lease) -> str:
    """The use of the GPUs as the lease has it, readable or not; "" if it has none."""
    text = lease.annotations.get(_USE, "")
    return text if len(text) <= MOST_USE_BYTES else ""


def _offer(lease: Lease) -> ShareOffer | None:
    """None if it is missing or unreadable: the view counts all the same."""
    try:
        data = unpacked(lease.annotations[_OFFER]) if _OFFER in lease.annotations else None
        return None if data is None else _offer_from_dict(data)
    except (KeyError, ValueError, TypeError, AttributeError, OSError, EOFError, TrancheError):
        return None


def _offer_to_dict(offer: ShareOffer) -> dict[str, Any]:
    return {
        "mode": str(offer.mode),
        "withheld": [withheld_to_dict(each) for each in offer.withheld],
        "refused": {uid: shortened(reason, _LONGEST_REASON) for uid, reason in offer.refused.items()},
    }


def _offer_from_dict(data: Mapping[str, Any]) -> ShareOffer:
    withheld = tuple(withheld_from_dict(each) for each in data["withheld"])
    refused = {str(uid): str(reason) for uid, reason in data["refused"].items()}
    return ShareOffer(NodeMode(data["mode"]), credible(NodeView(NodeState(()), withheld=withheld)).withheld, refused)


def _layouts(lease: Lease) -> LayoutReport | None:
    """None if they are missing or unreadable: the view counts all the same."""
    try:
        return layouts_from_text(lease.annotations[_LAYOUTS]) if _LAYOUTS in lease.annotations else None
    except UsageError:
        return None


def _discreet(allocation: Allocation) -> Allocation:
    keeper = allocation.keeper
    if isinstance(keeper, ProcessKeeper):
        keeper = keeper._replace(key_digest="")
    return allocation._replace(command="", keeper=keeper)


def _anonymous(allocation: Allocation) -> Allocation:
    keeper = allocation.keeper
    if isinstance(keeper, ProcessKeeper):
        keeper = ProcessKeeper(keeper.pid, keeper.started)
    return allocation._replace(command="", keeper=keeper)


def _without_amounts(gpu: GpuState) -> GpuState:
    return replace(gpu.with_processes(_without_memory), memory_free=0)


def _without_memory(processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    return tuple(each._replace(memory=None) for each in processes)


def _first(processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    return tuple(sorted(processes, key=lambda each: each.pid)[:1])
