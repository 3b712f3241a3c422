"""Each node's answer to a pod that wants GPUs: the devices that it would get, or what keeps it out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tranche.core.quantity import format_memory
from tranche.kubernetes.api.node_rules import Taint, meets, unmet, untolerated
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import TaintKey
from tranche.kubernetes.fleet.device_request import DeviceMismatch, DeviceRequest, DeviceRequestOption
from tranche.kubernetes.fleet.devices import FleetDevice
from tranche.kubernetes.fleet.objects import FleetNode, FleetPod
from tranche.kubernetes.fleet.pool_usage import (
    MOST_DEVICES,
    PoolUsage,
    against,
    had_together,
    refused_by_node,
    room_of,
    served,
    served_together,
)


class NodeReason(StrEnum):
    """Why a node is out, besides the reasons of single GPUs (`tranche.planning.decide.obstacle`); FITS: it is not.

    NODE_SELECTOR and NODE_TAINT concern only pod and node. NODE_MODE: the administrator gives its GPUs away in another way.
    NO_DEVICES: it offers none. TOO_FEW: fewer than the pod wants together, even if all were free. TOO_MANY: more than one claim
    can have. DEVICE_TAINT: suitable devices are not available now. HELD: others have the suitable devices. REFUSED: the scheduler
    chooses what the node then refuses.
    """

    FITS = "Fits"
    NODE_NOT_READY = "NodeNotReady"
    NODE_CORDONED = "NodeCordoned"
    NODE_SELECTOR = "NodeSelectorMismatch"
    NODE_TAINT = "NodeTaint"
    NODE_MODE = "NodeMode"
    NO_DEVICES = "NoDevices"
    PUBLISHING = "Publishing"
    TOO_FEW = "TooFewDevices"
    TOO_MANY = "TooManyDevices"
    DEVICE_TAINT = "DeviceTaint"
    HELD = "NoRoom"
    REFUSED = "RefusedByNode"


KEPT_OUT = (
    NodeReason.NODE_NOT_READY,
    NodeReason.NODE_CORDONED,
    NodeReason.NODE_SELECTOR,
    NodeReason.NODE_TAINT,
)
"""The reasons that concern only pod and node: they keep a pod off every device there."""


@dataclass(frozen=True, slots=True)
class NodeFit:
    """A node's answer. `reason` is a stable word. `devices` are what the pod would get by a claim; where a controller chooses,
    `text` says it. `missing` is memory in bytes.

    `holders` are those that have the suitable devices, for people. `could` says that the node could serve if it were free.
    """

    node: str
    reason: str
    text: str
    missing: int = 0
    devices: tuple[FleetDevice, ...] = ()
    holders: tuple[str, ...] = ()
    could: bool = False


def node_answer(pod: FleetPod, demands: Sequence[DeviceRequest], node: FleetNode, room: PoolUsage | None) -> NodeFit:
    """The node's answer to the pod's demands."""
    out = kept_out(pod, node)
    found = _of_devices(demands, node, room)
    if out is None or found.reason in (NodeReason.NO_DEVICES, NodeReason.NODE_MODE):
        return found
    return NodeFit(node.name, out[0], out[1], could=found.could)


def kept_out(pod: FleetPod, node: FleetNode) -> tuple[NodeReason, str] | None:
    """What keeps the pod off the node, regardless of its GPUs."""
    if not node.ready:
        return NodeReason.NODE_NOT_READY, "its kubelet does not respond"
    if node.unschedulable:
        return NodeReason.NODE_CORDONED, "it is cordoned"
    if lacking := unmet(pod.node_selector, node.labels):
        return NodeReason.NODE_SELECTOR, f"it lacks the label {', '.join(lacking)}"
    if not meets(pod.affinity, node.name, node.labels):
        return NodeReason.NODE_SELECTOR, "it does not match the pod's node affinity"
    if taints := untolerated(node.taints, pod.tolerations):
        return NodeReason.NODE_TAINT, f"the pod does not tolerate its taint {', '.join(map(str, taints))}"
    return None


def _of_devices(demands: Sequence[DeviceRequest], node: FleetNode, room: PoolUsage | None) -> NodeFit:
    if room is None or not room.pool.devices:
        if node.resources and node.mode is NodeMode.STATIC:
            text = "its GPUs are reserved for layouts and the device plugin (mode static)"
            return NodeFit(node.name, NodeReason.NODE_MODE, text)
        return NodeFit(node.name, NodeReason.NO_DEVICES, "it offers no GPUs to claims")
    if not room.pool.complete:
        return NodeFit(node.name, NodeReason.PUBLISHING, "it is still publishing its devices", could=True)
    given = served_together(room, demands)
    if why := _refused_parts(demands, room, given):
        return NodeFit(node.name, NodeReason.REFUSED, why[0], could=why[1])
    if given is not None:
        devices = tuple(each for several in given for each in several)
        return NodeFit(node.name, NodeReason.FITS, "", devices=devices, could=True)
    refusals = [_refused(each, node, room) for each in demands if served_together(room, (each,)) is None]
    if never := next((each for each in refusals if not each.could), None):
        return never
    if any(each.reason != NodeReason.HELD for each in refusals):
        return next(each for each in refusals if each.reason != NodeReason.HELD)
    if served_together(room_of(room.pool, ()), demands) is None:
        return NodeFit(node.name, NodeReason.TOO_FEW, "even when free, it cannot serve all requests at once")
    if refusals:
        return refusals[0]
    holders = tuple(dict.fromkeys(each.claim.holder for each in room.holdings))
    text = "it can serve each request alone, but not all at once"
    return NodeFit(node.name, NodeReason.HELD, text, holders=holders, could=True)


def _refused_parts(
    demands: Sequence[DeviceRequest], room: PoolUsage, given: Sequence[Sequence[FleetDevice]] | None
) -> tuple[str, bool] | None:
    """Why the node refuses what the scheduler gives, now or if it were free, and whether it could serve later."""
    several = len(demands) > 1 or any(
        each.count > 1 or each.every for demand in demands for each in demand.alternatives
    )
    if not several:
        return None
    text = "it would refuse the scheduler's choice for one claim"
    now = "" if given is None else refused_by_node(demands, given)
    if given is not None and not now:
        return None
    empty = served_together(room_of(room.pool, ()), demands)
    later = "" if empty is None else refused_by_node(demands, empty)
    why = now or later
    return (f"{text}: {why}", not later) if why else None


def _refused(demand: DeviceRequest, node: FleetNode, room: PoolUsage) -> NodeFit:
    """The reason of the alternative that came nearest."""
    fitting = [
        (each, device) for each in demand.alternatives for device in room.pool.devices if not each.misfit(device)
    ]
    if not fitting:
        return _never(demand, node, room)
    offered = [(each, device) for each, device in fitting if not against(device, each)]
    if not offered:
        return _tainted(node, [taint for each, device in fitting for taint in against(device, each)])
    empty = room_of(room.pool, ())
    if not any(served(empty, each) is not None for each in demand.alternatives):
        if any(each.every for each in demand.alternatives):
            number = len({device.name for _, device in fitting})
            kept = [taint for each, device in fitting for taint in against(device, each)]
            return _tainted(node, kept) if kept and number <= MOST_DEVICES else _never_every(node, number)
        number = max(each.count for each, _ in offered)
        return NodeFit(node.name, NodeReason.TOO_FEW, f"it has fewer than the {number} devices requested together")
    busy = [(each, device) for each, device in offered if not room.free(device, each)]
    holders = tuple(dict.fromkeys(held.claim.holder for _, device in busy for held in room.holders(device)))
    missing, text = _lacking(demand, room, busy)
    text += _withheld(fitting)
    return NodeFit(node.name, NodeReason.HELD, text, missing, holders=holders, could=True)


def _never_every(node: FleetNode, number: int) -> NodeFit:
    text = f"the claim asks for all {number:,} suitable devices"
    if number > MOST_DEVICES:
        return NodeFit(node.name, NodeReason.TOO_MANY, f"{text}, but a claim can have at most {MOST_DEVICES}")
    return NodeFit(node.name, NodeReason.TOO_FEW, f"{text}, but they cannot exist together")


def _withheld(fitting: Sequence[tuple[DeviceRequestOption, FleetDevice]]) -> str:
    """The suitable devices that are withheld, and why."""
    kept = {device.name: (device, taints) for each, device in fitting if (taints := against(device, each))}
    texts = _texts(taint.key for _, taints in kept.values() for taint in taints)
    if not texts:
        return ""
    kept = {name: each for name, each in kept.items() if _texts(taint.key for taint in each[1])}
    places = _places([device for device, _ in kept.values()], "more ")
    return f"; {places} are unavailable: {'; '.join(texts)}"


def _places(devices: Collection[FleetDevice], more: str = "") -> str:
    """`35 places on 5 GPUs`; the devices are different ones."""
    gpus = len({device.uuid for device in devices})
    return f"{len(devices)} {more}place{'s' if len(devices) > 1 else ''} on {gpus} GPU{'s' if gpus > 1 else ''}"


def _lacking(
    demand: DeviceRequest, room: PoolUsage, busy: Sequence[tuple[DeviceRequestOption, FleetDevice]]
) -> tuple[int, str]:
    shared = [(each, device) for each, device in busy if device.shared and device.name in room.by_device]
    if shared:
        lacking = [device.consumed(each.memory) - room.memory_left(device) for each, device in shared]
        if least := min((each for each in lacking if each > 0), default=0):
            return least, f"its shared GPUs lack {format_memory(least)} of free memory"
    several = [(had_together(room, each), each.count) for each in demand.alternatives if not each.every]
    had, count = max(several, default=(0, 0))
    devices = {device.name: device for _, device in busy}.values()
    if had:
        places = _places(devices)
        return 0, f"{had} of the {count} requested devices are free; others hold {places} that would also fit"
    gpus, number = len({device.uuid for device in devices}), len(devices)
    on = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    return 0, f"others hold everything suitable on its {on} ({number} place{'s' if number > 1 else ''})"


def _never(demand: DeviceRequest, node: FleetNode, room: PoolUsage) -> NodeFit:
    misses = [each.misfit(device) for each in demand.alternatives for device in room.pool.devices]
    nearest = max((each for each in misses if each is not None), key=_nearness)
    return NodeFit(node.name, nearest.reason, nearest.text, nearest.missing)


def _nearness(each: DeviceMismatch) -> tuple[int, int]:
    return each.rank, -each.missing


_TAINT_TEXTS = {
    TaintKey.LOST: "the driver has lost its GPU",
    TaintKey.FAULTY: "its GPU reported an error",
    TaintKey.FOREIGN: "a GPU instance that Tranche did not create is in the way",
    TaintKey.HELD: "it is in use without a claim",
    TaintKey.RESERVED: "it is reserved for larger requests",
}


def _tainted(node: FleetNode, taints: Iterable[Taint]) -> NodeFit:
    keys = {taint.key for taint in taints}
    if keys == {TaintKey.MODE}:
        mode = f"mode {node.mode}" if node.mode is not None else f"unknown mode '{node.labels.get('tranche.dev/mode')}'"
        return NodeFit(node.name, NodeReason.NODE_MODE, f"its {mode} does not offer suitable devices")
    text = "; ".join(_texts(keys))
    return NodeFit(node.name, NodeReason.DEVICE_TAINT, f"its suitable devices are unavailable: {text}", could=True)


def _texts(taints: Iterable[str]) -> list[str]:
    """The meanings of taint keys, except the node's mode."""
    keys = set(taints) - {TaintKey.MODE}
    known = [text for key, text in _TAINT_TEXTS.items() if key in keys]
    return [*known, *(f"taint {key}" for key in sorted(keys - set(_TAINT_TEXTS)))]
