"""Why a pod that wants GPUs waits, in terms of GPUs: a pure function of nodes, their offers, claims and the pod.

Nodes with the same answer form one group, so that the explanation of a thousand nodes is as short as that of three.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tranche.core.quantity import format_memory
from tranche.core.spelling import did_you_mean
from tranche.kubernetes.fleet.answers import NodeFit, NodeReason, node_answer, remedies
from tranche.kubernetes.fleet.device_request import DeviceRequest, demanded_by, demanded_by_limits, in_words
from tranche.kubernetes.fleet.fleet import Fleet, HeldDevice
from tranche.kubernetes.fleet.objects import FleetClaim, FleetNode, FleetPod

NOT_ASKED = "nodes that you have no permission to see were not checked"
_ASKED_AGAIN = "the kubelet retries automatically within 90 s"
_UNANSWERED = "rpc error: code ="
"""In the kubelet's words when the driver gave no answer, and so refused nothing."""
_NAMED = 3
_GROUPS = 12
_OVER_QUOTA = "exceeded quota"  # as the API server's quota controller begins its refusal
_DEVICES = 4
GROUP_COLUMNS = ("NODES", "REASON", "MISSING", "HELD BY", "WHY")


class WaitStatus(StrEnum):
    """FINISHED: the pod is over. HAS: it has its devices. PREPARING: its claims do not exist yet, or its node has not handed over
    its devices yet. STARTABLE: a node has what it wants. WAITING: others have it, or only the scheduler can say. IMPOSSIBLE: no
    node of the present cluster could ever serve it. NO_GPU: it wants none of Tranche's.
    """

    FINISHED = "Finished"
    HAS = "Has"
    PREPARING = "Preparing"
    STARTABLE = "Startable"
    WAITING = "Waiting"
    IMPOSSIBLE = "Impossible"
    NO_GPU = "NoGpu"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes with the same answer. `nodes` names the first of them, `count` says how many there are."""

    reason: str
    text: str
    nodes: tuple[str, ...]
    count: int
    missing: int = 0
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetExplanation:
    """The answer. `wanted` is what the pod asks for in words, `given` what it has, `get` what it would get now, with the node.

    `unnamed` counts the nodes of further groups. `remedies` are what would help, cheapest first; `notes` what the caller may not
    read or Tranche does not judge.
    """

    pod: str
    status: WaitStatus
    message: str
    wanted: tuple[str, ...] = ()
    given: tuple[HeldDevice, ...] = ()
    get: NodeFit | None = None
    groups: tuple[NodeGroup, ...] = ()
    unnamed: int = 0
    remedies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def explain_pod(pod: FleetPod, fleet: Fleet) -> FleetExplanation:
    """Why the pod waits, or what it has."""
    claims = fleet.claims_named(pod.namespace, pod.claims.values())
    demands = tuple(demand for claim in claims for demand in demanded_by(claim)) or demanded_by_limits(pod)
    wanted = _wanted(claims, demands)
    if pod.phase in ("Succeeded", "Failed"):
        return FleetExplanation(str(pod), WaitStatus.FINISHED, "it has ended and holds no devices", wanted)
    if (lacking := _lacking(pod, claims, demands, fleet)) is not None:
        status, message, advice = lacking
        return FleetExplanation(str(pod), status, message, wanted, remedies=advice, notes=tuple(_notes(demands, fleet)))
    if pod.node and pod.limits and not pod.claims and not pod.templates:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(pod.limits.items()))
        message = f"it has {counts} from the device plugin on node {pod.node}, and no claim"
        return FleetExplanation(str(pod), WaitStatus.HAS, message, wanted)
    foreign = next((each.foreign for each in demands if each.foreign), "")
    if foreign or (not demands and not pod.templates and not pod.claims):
        return FleetExplanation(str(pod), WaitStatus.NO_GPU, foreign or "it requests no GPU", wanted)
    if claims and all(each.allocated for each in claims):
        return _has(pod, claims, wanted, fleet)
    if pod.node and (lost := [each.name for each in claims if not each.allocated]):
        message = f"claim {_quoted(lost)} has no devices, but the pod is already bound to node {pod.node}"
        advice = ("delete the pod: the scheduler allocates devices only before it binds a pod",)
        return FleetExplanation(str(pod), WaitStatus.IMPOSSIBLE, message, wanted, remedies=advice)
    # Who refuses a claim from a template writes an event; the scheduler says why it cannot create one for a limit.
    refused = pod.message if demands and not claims else pod.refusal if not demands else ""
    over_quota = _OVER_QUOTA in (refused or "")
    if refused and (over_quota or not demands):
        message = f"Kubernetes cannot create the pod's claim: {refused}"
        remedy = "ask for less, wait until a pod in the namespace ends, or ask for a higher ResourceQuota"
        advice = (remedy,) if over_quota else ()
        return FleetExplanation(str(pod), WaitStatus.WAITING, message, wanted, remedies=advice)
    if not demands:
        message = "your account has no permission to read its claims"
        if fleet.knows_claims_of(pod.namespace):
            message = (
                "its claims do not exist yet; Kubernetes creates them from: "
                f"{', '.join(sorted(set(pod.templates.values())))}"
            )
        return FleetExplanation(str(pod), WaitStatus.PREPARING, message, wanted, notes=tuple(_notes(demands, fleet)))
    return _waits(pod, claims, demands, wanted, fleet)


def _lacking(
    pod: FleetPod, claims: Sequence[FleetClaim], demands: Sequence[DeviceRequest], fleet: Fleet
) -> tuple[WaitStatus, str, tuple[str, ...]] | None:
    """What the pod names and does not exist yet: status, message, and what would help; None where everything exists."""
    if fleet.knows_claims_of(pod.namespace):
        there = {each.name for each in claims}
        absent = [each for each in pod.made_by_others if each not in there]
        if absent:
            claim = "a claim that does not exist" if len(absent) == 1 else "claims that do not exist"
            message = f"the pod uses {claim} in namespace {pod.namespace}: {_quoted(absent)}"
            return WaitStatus.WAITING, message, ("create the claim, or use a claim template in the pod",)
    if fleet.classes is None or (claims and all(each.allocated for each in claims)):
        return None
    absent = list(dict.fromkeys(name for each in demands for name in each.classes if name not in fleet.classes))
    for each in demands:
        if each.classes and not set(each.classes) & fleet.classes:
            meant = did_you_mean(absent[0], sorted(fleet.classes))
            advice = ("use a class that exists: kubectl get deviceclasses", *([meant.strip()] if meant else []))
            return WaitStatus.IMPOSSIBLE, f"this cluster has no device class {_quoted(absent)}", advice
    return None


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{each}'" for each in names)


def _wanted(claims: Sequence[FleetClaim], demands: Sequence[DeviceRequest]) -> tuple[str, ...]:
    """What is asked for, in the user's own words where the claims have them."""
    if claims and all(each.asked for each in claims):
        return tuple(each.asked for each in claims)
    return tuple(" or ".join(dict.fromkeys(map(in_words, each.alternatives))) for each in demands if not each.foreign)


def _has(pod: FleetPod, claims: Sequence[FleetClaim], wanted: tuple[str, ...], fleet: Fleet) -> FleetExplanation:
    rooms = fleet.rooms()
    given = tuple(each for room in rooms.values() for each in room.holdings if each.claim in claims)
    devices = [each for claim in claims for each in claim.given]
    if devices and not pod.prepared:
        return _preparing(pod, devices[0].node, wanted, given)
    if given:
        return FleetExplanation(
            str(pod), WaitStatus.HAS, f"it has its devices on node {given[0].given.node}", wanted, given
        )
    if not devices:
        return FleetExplanation(str(pod), WaitStatus.HAS, "it has another driver's devices", wanted)
    names, node = ", ".join(each.device for each in devices), devices[0].node
    message = (
        f"the pod has {names}, but node {node} no longer describes its devices: Tranche's agent is not running there"
    )
    return FleetExplanation(str(pod), WaitStatus.HAS, message, wanted)


def _preparing(pod: FleetPod, node: str, wanted: tuple[str, ...], given: tuple[HeldDevice, ...]) -> FleetExplanation:
    """What it was given, and why it does not have it yet."""
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    if not pod.node:
        message = f"its claim has devices on node {node}; the scheduler has not bound the pod yet"
        message += f": {pod.message}" if pod.message else ""
    elif pod.refusal and _UNANSWERED in pod.refusal:
        message = f"it was allocated devices, but node {node} did not prepare them in time: {pod.refusal}"
        advice = (f"wait: {_ASKED_AGAIN}",)
    elif pod.refusal:
        message = f"it was allocated devices, but node {node} refuses to prepare them: {pod.refusal}"
        advice = ("delete the pod, so that its replacement is scheduled onto available devices",)
        notes = (_ASKED_AGAIN,)
    else:
        message = f"it was allocated devices; node {node} has not prepared them yet"
    if pod.refusal is None:
        notes = (
            f"your account has no permission to read events in {pod.namespace}, where the node reports why it refuses",
        )
    return FleetExplanation(str(pod), WaitStatus.PREPARING, message, wanted, given, remedies=advice, notes=notes)


def _waits(
    pod: FleetPod, claims: Sequence[FleetClaim], demands: Sequence[DeviceRequest], wanted: tuple[str, ...], fleet: Fleet
) -> FleetExplanation:
    rooms = fleet.rooms()
    nodes = fleet.nodes or tuple(FleetNode(name) for name in fleet.pools)
    answers = [node_answer(pod, demands, node, rooms.get(node.name)) for node in nodes]
    then = "it is gated until the controller chooses its place" if pod.gated else "the scheduler has not bound it yet"
    notes = tuple(_notes(demands, fleet, claims))
    found = explain_answers(str(pod), answers, fleet.whole, then=then)
    found = replace(found, wanted=wanted, notes=notes)
    if found.get is None:
        found = replace(found, remedies=remedies(pod, demands, answers, nodes, rooms))
    if not any(wanted.unread for demand in demands for wanted in demand.alternatives):
        return found
    found = replace(found, notes=(*notes, f"the scheduler reports: {pod.message or 'nothing yet'}"))
    if found.get is None:
        return found
    message = f"node {found.get.node} can serve it, subject to a condition that only the scheduler can evaluate"
    message += "" if fleet.whole else f"; {NOT_ASKED}"
    return replace(found, status=WaitStatus.WAITING, message=message, get=None)


def explain_answers(pod: str, answers: Sequence[NodeFit], whole: bool, then: str = "") -> FleetExplanation:
    """The nodes' answers, put together. `then` is what a pod still waits for that a node could serve now.

    Where the answers do not cover the `whole` cluster, another node could serve it, so nothing is impossible.
    """
    get = next((each for each in answers if each.reason == NodeReason.FITS), None)
    groups = _groups(each for each in answers if each.reason != NodeReason.FITS)
    status, message = _status(answers)
    if get is not None:
        note = f": {get.text}" if get.text else ""
        status = WaitStatus.STARTABLE
        message = f"node {get.node} can serve it now{note}" + (f"; {then}" if then else "")
    elif not whole:
        status = WaitStatus.WAITING
        message = f"{message if answers else 'you see no node that could be asked'}; {NOT_ASKED}"
    unnamed = sum(each.count for each in groups[_GROUPS:])
    named = get if get is not None and get.devices else None
    return FleetExplanation(pod, status, message, get=named, groups=groups[:_GROUPS], unnamed=unnamed)


def _status(answers: Sequence[NodeFit]) -> tuple[WaitStatus, str]:
    """The status where no node can serve it now."""
    if not answers:
        return WaitStatus.IMPOSSIBLE, "the cluster has no nodes"
    able = sum(each.could for each in answers)
    number = f"none of {len(answers):,} nodes can" if len(answers) > 1 else f"node {answers[0].node} cannot"
    if not able:
        return WaitStatus.IMPOSSIBLE, f"{number} serve it in the cluster's current setup"
    return WaitStatus.WAITING, f"{number} serve it now; {f'{able:,} of them' if len(answers) > 1 else 'it'} could later"


def _groups(answers: Iterable[NodeFit]) -> tuple[NodeGroup, ...]:
    together: dict[tuple[str, tuple[str, bool]], list[NodeFit]] = {}
    for each in answers:
        together.setdefault((each.reason, _shape(each)), []).append(each)
    groups = [_group(each) for each in together.values()]
    # Nodes that could serve come first, as people can act on them; then the larger groups.
    order = sorted(zip(together.values(), groups, strict=True), key=lambda pair: (not pair[0][0].could, -pair[1].count))
    return tuple(group for _, group in order)


def _shape(answer: NodeFit) -> tuple[str, bool]:
    """What is common to answers that differ only in amounts."""
    return ("" if answer.reason == NodeReason.HELD else answer.text, answer.missing > 0)


def _group(answers: Sequence[NodeFit]) -> NodeGroup:
    nearest = min(answers, key=lambda each: each.missing)
    holders = tuple(dict.fromkeys(name for each in answers[:_NAMED] for name in each.holders))
    return NodeGroup(
        nearest.reason,
        nearest.text,
        tuple(each.node for each in answers[:_NAMED]),
        len(answers),
        nearest.missing,
        holders[:_NAMED],
    )


def _notes(demands: Sequence[DeviceRequest], fleet: Fleet, claims: Sequence[FleetClaim] = ()) -> Iterable[str]:
    for claim in claims:
        if claim.ignored:
            yield f"the configuration of claim {claim.namespace}/{claim.name} is not for Tranche: {claim.ignored}"
    for what in fleet.unread:
        yield (
            f"your account has no permission to read {what}; devices that they hold count as free"
            if "claims" in what
            else (f"your account has no permission to read {what}")
        )
    for each in dict.fromkeys(text for demand in demands for wanted in demand.alternatives for text in wanted.unread):
        yield f"Tranche cannot evaluate a condition of the claim, and treats it as met: {each}"


def head_lines(found: FleetExplanation) -> Iterator[str]:
    """The lines before the nodes: the answer, what is asked for, what the pod has or would get."""
    yield f"{found.status}: {found.message}"
    for each in found.wanted:
        yield f"  asks for: {each}"
    has = "has" if found.status is WaitStatus.HAS else "was given"
    for holding in found.given:
        yield f"  {has}: {device_text(holding)} on node {holding.given.node}"
    if found.get is not None:
        names = ", ".join(each.name for each in found.get.devices[:_DEVICES])
        more = len(found.get.devices) - _DEVICES
        yield f"  would get: {names}{f' and {more} more' if more > 0 else ''} on node {found.get.node}"


def group_row(group: NodeGroup) -> tuple[object, ...]:
    """Nodes with the same answer, as a row."""
    more = group.count - len(group.nodes)
    nodes = ", ".join(group.nodes) + (f" and {more:,} more" if more else "")
    missing = format_memory(group.missing) if group.missing else ""
    return (nodes, group.reason, missing, ", ".join(group.holders), group.text)


def tail_lines(found: FleetExplanation) -> Iterator[str]:
    """The lines after the nodes: how many were not named, what would help, and what is not known."""
    if found.unnamed:
        yield f"and {found.unnamed:,} more nodes, for other reasons"
    if found.remedies:
        yield ""
        yield "what would help, cheapest first:"
        yield from (f"  {number}. {each}" for number, each in enumerate(found.remedies, start=1))
    yield from (f"note: {each}" for each in found.notes)


def device_text(holding: HeldDevice) -> str:
    """What a claim has, for people: `slice 1g.5gb of GPU 3`."""
    device = holding.device
    gpu = f"GPU {device.minor}"
    if device.shared:
        memory = held_memory(holding)
        inside = f"slice {device.profile} of {gpu}" if device.profile else gpu
        return f"{memory} of {inside}, shared by {device.mechanism}"
    return f"slice {device.profile} of {gpu}" if device.profile else f"all of {gpu}"


def held_memory(holding: HeldDevice) -> str:
    """How much memory it has, for people."""
    return "an impossible part" if holding.memory is None else format_memory(holding.memory)


def share_text(holding: HeldDevice) -> str:
    """What kind of share it is, for people: `slice 1g.5gb`, `part by mps`."""
    device = holding.device
    if not device.shared:
        return f"slice {device.profile}" if device.profile else "whole"
    return f"part of slice {device.profile} by {device.mechanism}" if device.profile else f"part by {device.mechanism}"


def explanation_document(found: FleetExplanation) -> dict[str, Any]:
    """Why a pod waits, or what it has."""
    return {
        "pod": found.pod,
        "status": str(found.status),
        "message": found.message,
        "wanted": list(found.wanted),
        "given": [given_document(each) for each in found.given],
        "wouldGet": None
        if found.get is None
        else {"node": found.get.node, "devices": [each.name for each in found.get.devices]},
        "nodes": [_group_document(each) for each in found.groups],
        "unnamedNodes": found.unnamed,
        "remedies": list(found.remedies),
        "notes": list(found.notes),
    }


def given_document(holding: HeldDevice) -> dict[str, object]:
    """A device that a claim has."""
    device, given = holding.device, holding.given
    return {
        "node": given.node,
        "device": given.device,
        "gpuUUID": device.uuid,
        "type": device.type,
        "profile": device.profile or None,
        "mechanism": device.mechanism,
        "isolation": device.isolation,
        "memoryBytes": device.memory if given.memory is None else given.memory,
        "computePercent": given.compute or None,
        "claim": f"{holding.claim.namespace}/{holding.claim.name}" if holding.claim.name else None,
        "pods": [f"{holding.claim.namespace}/{name}" for name in holding.claim.pods],
    }


def _group_document(group: NodeGroup) -> dict[str, object]:
    return {
        "reason": group.reason,
        "message": group.text,
        "nodes": list(group.nodes),
        "count": group.count,
        "missingMemoryBytes": group.missing,
        "holders": list(group.holders),
    }
