"""What would let a waiting pod start, cheapest first. Pure; it looks at a bounded number of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from tranche.core.quantity import MIB, format_memory
from tranche.kubernetes.api.node_rules import Toleration
from tranche.kubernetes.claims.node_mode import NodeMode
from tranche.kubernetes.claims.vocabulary import MODE_LABEL, DeviceType, TaintKey
from tranche.kubernetes.fleet.answers import KEPT_OUT, NodeFit, NodeReason
from tranche.kubernetes.fleet.device_request import DeviceRequest, DeviceRequestOption
from tranche.kubernetes.fleet.objects import FleetNode, FleetPod
from tranche.kubernetes.fleet.pool_usage import (
    MOST_DEVICES,
    PoolUsage,
    against,
    had_together,
    refused_by_node,
    served_together,
)

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
    """At most six sentences."""
    by_name = {each.name: each for each in nodes}
    open_rooms = [
        rooms[each.node]
        for each in answers
        if each.node in rooms and each.reason not in KEPT_OUT and rooms[each.node].pool.complete
    ][:_NODES]
    found = _all(pod, demands, answers, by_name, rooms, open_rooms)
    return tuple(islice(found, _MOST))


def _all(
    pod: FleetPod,
    demands: Sequence[DeviceRequest],
    answers: Sequence[NodeFit],
    nodes: Mapping[str, FleetNode],
    rooms: Mapping[str, PoolUsage],
    open_rooms: Sequence[PoolUsage],
) -> Iterator[str]:
    if any(each.reason == NodeReason.REFUSED for each in answers):
        yield "create the pod again with one claim for each part, or with one claim for a larger part"
    yield from islice(_ends(demands, open_rooms), _ENDS)
    yield from _less(demands, open_rooms)
    yield from _fewer(demands, answers, open_rooms)
    yield from _weaker(demands, open_rooms)
    yield from _nodes(pod, answers)
    yield from _destroyed(demands, open_rooms)
    yield from _modes(demands, answers, nodes, rooms)
    if not any(each.could for each in answers):
        yield from _offers(demands, open_rooms)


def _ends(demands: Sequence[DeviceRequest], rooms: Sequence[PoolUsage]) -> Iterator[str]:
    """Claims whose end alone would make enough room."""
    tried = 0
    for room in rooms:
        for claim in dict.fromkeys(each.claim for each in room.holdings):
            tried += 1
            if tried > _CLAIMS:
                return
            if _serves(room.without(claim), demands):
                yield f"wait for {claim.holder} on node {room.pool.node} to end, which makes enough room"


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
    weaker = [replace(demand, alternatives=tuple(map(_unisolated, demand.alternatives))) for demand in demands]
    for room in rooms:
        if _serves(room, weaker):
            yield f"with --isolation none, node {room.pool.node} can serve it now"
            return


def _unisolated(wanted: DeviceRequestOption) -> DeviceRequestOption:
    return replace(wanted, conditions=replace(wanted.conditions, isolations=frozenset()))


def _nodes(pod: FleetPod, answers: Sequence[NodeFit]) -> Iterator[str]:
    """Nodes that could serve the pod if it were let onto them."""
    texts = {
        NodeReason.NODE_CORDONED: "kubectl uncordon {node}: then it can serve the pod",
        NodeReason.NODE_SELECTOR: "remove the pod's node selector or affinity: then node {node} can serve it",
        NodeReason.NODE_TAINT: "add a toleration for the taint of node {node}, which can then serve it",
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
    return [
        replace(
            demand,
            alternatives=tuple(
                replace(each, tolerations=(*each.tolerations, tolerant)) for each in demand.alternatives
            ),
        )
        for demand in demands
    ]


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
