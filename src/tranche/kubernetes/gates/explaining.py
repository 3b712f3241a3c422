"""Why a pod whose share a controller chooses waits, or what was chosen for it: in terms of GPUs, by the planning itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tranche.core.allocation import Grant, NodeView
from tranche.core.errors import TrancheError
from tranche.core.request import Request
from tranche.core.wire import grant_from_dict
from tranche.documents import describe
from tranche.kubernetes.fleet.answers import NodeReason, kept_out
from tranche.kubernetes.fleet.explanation import FleetExplanation, NodeGroup, WaitStatus
from tranche.kubernetes.fleet.objects import FleetPod
from tranche.kubernetes.gates.reading import GateFleet
from tranche.planning.explain import Explanation, explain
from tranche.planning.remedies import Remedy

_NAMED = 3
_GROUPS = 12
_ADVICE = 4


def explain_gated(pod: FleetPod, request: Request, fleet: GateFleet) -> FleetExplanation:
    """Why the pod waits, or what was chosen for it. Pure."""
    wanted = (str(request),)
    notes = tuple(f"your account may not read {what}" for what in fleet.unread)
    if pod.phase in ("Succeeded", "Failed"):
        return FleetExplanation(str(pod), WaitStatus.FINISHED, "it has ended, and holds nothing", wanted)
    if not pod.gated:
        return _chosen(pod, wanted, fleet, notes)
    if not fleet.views:
        word = fleet.last_word or "it waits at the gate until the controller chooses its share"
        return FleetExplanation(str(pod), WaitStatus.WAITING, word, wanted, notes=notes)
    answers = {name: explain(view, request) for name, view in fleet.views.items()}
    outs = {name: out for name, node in fleet.nodes.items() if (out := kept_out(pod, node)) is not None}
    able = [name for name, each in sorted(answers.items()) if each.fits and name not in outs]
    groups = _groups(_rows(answers, outs, fleet))
    shown, hidden = groups[:_GROUPS], groups[_GROUPS:]
    unnamed = sum(each.count for each in hidden)
    if able:
        found = answers[able[0]].granted
        note = "" if found is None else f": {found.note}"
        message = f"node {able[0]} has what it wants{note}; it waits at the gate until the controller chooses"
        return FleetExplanation(
            str(pod), WaitStatus.STARTABLE, message, wanted, groups=shown, unnamed=unnamed, notes=notes
        )
    could = [name for name, each in answers.items() if each.impossible is None]
    number = f"none of {len(fleet.nodes) or len(answers):,} nodes can"
    status = WaitStatus.WAITING if could else WaitStatus.IMPOSSIBLE
    message = (
        f"{number} serve it now; {len(could):,} of them could later" if could else f"{number} ever serve it as they are"
    )
    advice = tuple(
        f"on node {name}: {_advice_text(remedy, fleet.views[name])}"
        for name in could
        for remedy in answers[name].remedies
        if name not in outs
    )
    return FleetExplanation(
        str(pod), status, message, wanted, groups=shown, unnamed=unnamed, remedies=advice[:_ADVICE], notes=notes
    )


def chosen_text(pod: FleetPod, fleet: GateFleet) -> str:
    """What was chosen for a pod: `1g.5gb at 6:1 of GPU 0 on node p4d`; "" where that cannot be read."""
    try:
        data = json.loads(pod.chosen)
        node, grants = str(data["node"]), tuple(map(grant_from_dict, data["grants"]))
    except (ValueError, KeyError, TypeError, AttributeError, TrancheError):
        return ""
    view = fleet.views.get(node)
    return f"{'; '.join(_grant_text(each, view) for each in grants)} on node {node}"


def _chosen(pod: FleetPod, wanted: tuple[str, ...], fleet: GateFleet, notes: tuple[str, ...]) -> FleetExplanation:
    text = chosen_text(pod, fleet) or "a share"
    refused = next((each.refused[pod.uid] for each in fleet.said.values() if pod.uid in each.refused), "")
    if refused:
        message = f"{text} was chosen for it, and the node cannot hand it over yet: {refused}"
        return FleetExplanation(str(pod), WaitStatus.PREPARING, message, wanted, notes=notes)
    if not pod.node:
        message = f"{text} was chosen for it; the scheduler has yet to bind it" + (
            f": {pod.message}" if pod.message else ""
        )
        return FleetExplanation(str(pod), WaitStatus.PREPARING, message, wanted, notes=notes)
    return FleetExplanation(str(pod), WaitStatus.HAS, f"it has {text}", wanted, notes=notes)


def _grant_text(grant: Grant, view: NodeView | None) -> str:
    if view is not None and any(gpu.uuid == grant.gpu_uuid for gpu in view.node):
        return describe.grant(grant, view.node)
    slot = grant.slot
    return grant.gpu_uuid if slot is None else f"{slot.profile} at {slot.placement} of {grant.gpu_uuid}"


def _advice_text(remedy: Remedy, view: NodeView) -> str:
    """What would help, with pods in the place of ids that mean something on the node alone."""
    text = remedy.text
    for each in view.allocations:
        if each.id in remedy.allocation_ids:
            text = text.replace(each.id, str(each.keeper))
    return text


class _Row(NamedTuple):
    """Why a node cannot serve now, and who has what would serve."""

    node: str
    reason: str
    text: str
    holders: tuple[str, ...] = ()


def _rows(
    answers: Mapping[str, Explanation], outs: Mapping[str, tuple[NodeReason, str]], fleet: GateFleet
) -> Iterator[_Row]:
    for name in sorted({*fleet.nodes, *answers, *fleet.unknown}):
        if name in fleet.unknown:
            yield _Row(name, NodeReason.PUBLISHING, fleet.unknown[name])
        elif name in outs:
            yield _Row(name, *outs[name])
        elif name not in answers:
            yield _Row(name, NodeReason.NO_DEVICES, "it has told of no GPUs whose shares are chosen by demand")
        elif not answers[name].fits:
            yield _refusal(name, answers[name], fleet.views[name])


def _refusal(name: str, found: Explanation, view: NodeView) -> _Row:
    if found.impossible is not None:
        return _Row(name, found.impossible.reason, found.summary)
    obstacles = [each.obstacle for each in found.gpus if each.obstacle is not None]
    reason = str(obstacles[0].reason) if obstacles else NodeReason.HELD
    text = "; ".join(list(dict.fromkeys(each.text for each in obstacles))[:_NAMED])
    ids = {each for obstacle in obstacles for each in obstacle.allocation_ids}
    holders = dict.fromkeys(str(each.keeper) for each in view.allocations if each.id in ids)
    return _Row(name, reason, text, tuple(holders))


def _groups(rows: Iterator[_Row]) -> tuple[NodeGroup, ...]:
    together: dict[tuple[str, str], list[_Row]] = {}
    for each in rows:
        together.setdefault((each.reason, each.text), []).append(each)
    return tuple(sorted(map(_group, together.values()), key=lambda each: -each.count))


def _group(rows: Sequence[_Row]) -> NodeGroup:
    names = tuple(each.node for each in rows[:_NAMED])
    holders = tuple(dict.fromkeys(name for each in rows[:_NAMED] for name in each.holders))
    return NodeGroup(rows[0].reason, rows[0].text, names, len(rows), holders=holders[:_NAMED])
