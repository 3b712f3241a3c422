"""Each node's answer to a pod that wants GPUs: the devices that it would get, or what keeps it out; and what would help. Pure.

What would help is sought on a bounded number of nodes, cheapest first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from tranche.core.quantity import MIB, format_memory
from tranche.kubernetes.api.node_rules import Taint, Toleration, meets, unmet, untolerated
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.spec import MOST_DEVICES
from tranche.kubernetes.claims.vocabulary import MODE_LABEL, DeviceType, TaintKey
from tranche.kubernetes.fleet.device_request import DeviceRequest, DeviceRequestOption
from tranche.kubernetes.fleet.devices import FleetDevice
from tranche.kubernetes.fleet.fleet import (
    PoolUsage,
    against,
    had_together,
    refused_by_node,
    room_of,
    served,
    served_together,
)
from tranche.kubernetes.fleet.objects import FleetNode, FleetPod


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
        return NodeFit(node.name, NodeReason.TOO_FEW, "even when free, it cannot serve all requests together")
    if refusals:
        return refusals[0]
    holders = tuple(dict.fromkeys(each.claim.holder for each in room.holdings))
    text = "it can serve each request separately, but not all together"
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
    nearest = max((each for each in misses if each is not None), key=lambda each: (each.rank, -each.missing))
    return NodeFit(node.name, nearest.reason, nearest.text, nearest.missing)


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


_MOST = 6
_ENDS = 3
_NODES = 50
_CLAIMS = 100


def remedies(
    pod: FleetPod,
    demands: Sequence[DeviceRequest],
    answers: Sequence[NodeFit],
    nodes: Sequence[FleetNode],
    rooms: Mapping[str, PoolUsage],
) -> tuple[str, ...]:
    """What would let a waiting pod start, cheapest first: at most six sentences."""
    by_name = {each.name: each for each in nodes}
    open_rooms = [
        rooms[each.node]
        for each in answers
        if each.node in rooms and each.reason not in KEPT_OUT and rooms[each.node].pool.complete
    ][:_NODES]

    def found() -> Iterator[str]:
        if any(each.reason == NodeReason.REFUSED for each in answers):
            yield "create the pod again with one claim for each part, or with one claim for a larger part"
        yield from islice(_ends(demands, open_rooms), _ENDS)
        yield from _less(demands, open_rooms)
        yield from _fewer(demands, answers, open_rooms)
        yield from _weaker(demands, open_rooms)
        yield from _nodes(pod, answers)
        yield from _destroyed(demands, open_rooms)
        yield from _modes(demands, answers, by_name, rooms)
        if not any(each.could for each in answers):
            yield from _offers(demands, open_rooms)

    return tuple(islice(found(), _MOST))


def _ends(demands: Sequence[DeviceRequest], rooms: Sequence[PoolUsage]) -> Iterator[str]:
    """Claims whose end alone would make enough room."""
    tried = 0
    for room in rooms:
        for claim in dict.fromkeys(each.claim for each in room.holdings):
            tried += 1
            if tried > _CLAIMS:
                return
            if _serves(room.without(claim), demands):
                yield f"wait for {claim.holder} on node {room.pool.node} to end; this frees enough room"


def _serves(room: PoolUsage, demands: Sequence[DeviceRequest]) -> bool:
    found = served_together(room, demands)
    return found is not None and not refused_by_node(demands, found)


def _less(demands: Sequence[DeviceRequest], rooms: Sequence[PoolUsage]) -> Iterator[str]:
    """The most memory available now."""
    wanted = [each for demand in demands for each in demand.alternatives if each.memory is not None and each.count == 1]
    if len(demands) != 1 or not wanted:
        return
    asked = max(each.memory or 0 for each in wanted)
    best = max(
        ((_most(room, replace(each, memory=1)), room.pool.node) for room in rooms for each in wanted),
        default=(0, ""),
    )
    if MIB <= best[0] < asked:
        yield f"ask for {format_memory(best[0] // MIB * MIB)}, which node {best[1]} has free now"


def _most(room: PoolUsage, wanted: DeviceRequestOption) -> int:
    found = 0
    for device in room.pool.devices:
        if wanted.misfit(device) is None and not against(device, wanted) and room.free(device, wanted):
            found = max(found, room.memory_left(device) if device.shared else device.memory)
    return found


def _fewer(demands: Sequence[DeviceRequest], answers: Sequence[NodeFit], rooms: Sequence[PoolUsage]) -> Iterator[str]:
    """The most devices available together."""
    if len(demands) != 1:
        return
    if any(each.reason == NodeReason.TOO_MANY for each in answers):
        yield f"ask for a fixed number (allocationMode: ExactCount, with a count of at most {MOST_DEVICES})"
        return
    several = [each for each in demands[0].alternatives if each.count > 1 and not each.every]
    had = max(((had_together(room, each), room.pool.node) for room in rooms for each in several), default=(0, ""))
    if had[0]:
        yield f"ask for {had[0]} of them, which node {had[1]} has free now"


def _weaker(demands: Sequence[DeviceRequest], rooms: Sequence[PoolUsage]) -> Iterator[str]:
    """A weaker isolation available now."""
    if not any(each.conditions.isolations for demand in demands for each in demand.alternatives):
        return
    weaker = _changed(demands, lambda each: replace(each, conditions=replace(each.conditions, isolations=frozenset())))
    for room in rooms:
        if _serves(room, weaker):
            yield f"with --isolation none, node {room.pool.node} can serve it now"
            return


def _changed(
    demands: Sequence[DeviceRequest], change: Callable[[DeviceRequestOption], DeviceRequestOption]
) -> list[DeviceRequest]:
    return [replace(each, alternatives=tuple(map(change, each.alternatives))) for each in demands]


def _nodes(pod: FleetPod, answers: Sequence[NodeFit]) -> Iterator[str]:
    """Nodes that could serve the pod if it were let onto them."""
    texts = {
        NodeReason.NODE_CORDONED: "kubectl uncordon {node}; the node can then serve the pod",
        NodeReason.NODE_SELECTOR: "remove the pod's node selector or affinity; node {node} can then serve it",
        NodeReason.NODE_TAINT: "add a toleration for the taint of node {node}; the node can then serve it",
    }
    for reason, text in texts.items():
        first = next((each for each in answers if each.reason == reason and each.could), None)
        if first is not None:
            yield text.format(node=first.node)


def _modes(
    demands: Sequence[DeviceRequest],
    answers: Sequence[NodeFit],
    nodes: Mapping[str, FleetNode],
    rooms: Mapping[str, PoolUsage],
) -> Iterator[str]:
    """A node whose GPUs the administrator gives away in another way, but could give in this one."""
    anyhow = _tolerating(TaintKey.MODE, demands)
    for each in answers[:_NODES]:
        node, room = nodes[each.node], rooms.get(each.node)
        if each.reason != NodeReason.NODE_MODE or node.mode is NodeMode.OFF:
            continue
        if room is None or _serves(room, anyhow):
            word = NodeMode.DYNAMIC if _only_alone(demands) else NodeMode.MIXED
            change = f"kubectl label node {each.node} {MODE_LABEL}={word} --overwrite"
            yield f"ask an administrator to change the mode of node {each.node}: {change}"
            return


def _tolerating(key: TaintKey, demands: Sequence[DeviceRequest]) -> list[DeviceRequest]:
    """The same demands, as if no device had that taint."""
    tolerant = Toleration(str(key), exists=True)
    return _changed(demands, lambda each: replace(each, tolerations=(*each.tolerations, tolerant)))


def _destroyed(demands: Sequence[DeviceRequest], rooms: Sequence[PoolUsage]) -> Iterator[str]:
    """A node where only instances that Tranche did not make are in the way."""
    anyhow = _tolerating(TaintKey.FOREIGN, demands)
    for room in rooms:
        foreign = any(taint.key == TaintKey.FOREIGN for device in room.pool.devices for taint in device.taints)
        if foreign and _serves(room, anyhow):
            yield (
                f"ask an administrator to destroy the GPU instances on node {room.pool.node} that Tranche did not "
                "create: nvidia-smi mig -dgi"
            )
            return


def _only_alone(demands: Sequence[DeviceRequest]) -> bool:
    """Whether only slices and whole GPUs are asked for."""
    types = {each.type for demand in demands for each in demand.alternatives}
    return types <= {DeviceType.SLICE, DeviceType.WHOLE}


def _offers(demands: Sequence[DeviceRequest], rooms: Sequence[PoolUsage]) -> Iterator[str]:
    """What the cluster does have, where it lacks what is asked for."""
    devices = [device for room in rooms for device in room.pool.devices if not device.taints]
    wanted = [each for demand in demands for each in demand.alternatives]
    if any(each.label for each in wanted):
        if any(each.misfit(device) is None for each in wanted for device in devices):
            return
        if profiles := sorted({device.profile for device in devices if device.profile and not device.shared}):
            yield f"ask for a profile that the cluster offers: {', '.join(profiles)}"
        return
    largest = max((device.memory for device in devices), default=0)
    if largest and any((each.memory or 0) > largest for demand in demands for each in demand.alternatives):
        yield f"ask for at most {format_memory(largest)}, the largest share in the cluster"
