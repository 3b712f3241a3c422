"""Why a pod whose share a controller chooses waits, or what was chosen for it: in terms of GPUs, by the planning itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from tranche.core.allocation import Grant, NodeView
from tranche.core.errors import TrancheError
from tranche.core.json_text import read_json
from tranche.core.keeper import ChosenFor
from tranche.core.request import Request
from tranche.core.wire import grant_from_dict
from tranche.documents import describe
from tranche.kubernetes.claims.vocabulary import SHARE_GATE, SHARE_RESOURCE
from tranche.kubernetes.fleet.answers import NodeReason, kept_out
from tranche.kubernetes.fleet.explanation import FleetExplanation, NodeGroup, WaitStatus, as_far_as_seen
from tranche.kubernetes.fleet.objects import FleetPod
from tranche.kubernetes.gates.reading import GateFleet
from tranche.planning.explain import Explanation, explain

_NAMED = 3
_GROUPS = 12
_ADVICE = 4
_MADE_ANEW = (
    "delete the pod and make it anew: by annotations in a namespace whose pods the webhook sees, or with the gate "
    f"{SHARE_GATE}, one annotation that says for what, and one of {SHARE_RESOURCE} for a container that stays"
)


def explain_gated(pod: FleetPod, request: Request | None, fleet: GateFleet) -> FleetExplanation:
    """Why the pod waits, or what was chosen for it; `request` is None where it cannot be told what it asks for. Pure."""
    wanted = () if request is None else (str(request),)
    notes = tuple(f"your account may not read {what}" for what in fleet.unread)
    if pod.phase in ("Succeeded", "Failed"):
        return FleetExplanation(str(pod), WaitStatus.FINISHED, "it has ended, and holds nothing", wanted)
    if not pod.gated:
        return _chosen(pod, wanted, fleet, notes)
    if request is None or pod.gate_problem:
        message = f"it waits at the gate for ever: {pod.gate_problem}"
        return FleetExplanation(str(pod), WaitStatus.IMPOSSIBLE, message, wanted, remedies=(_MADE_ANEW,), notes=notes)
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
    if not fleet.whole:
        status, message = as_far_as_seen(status, message)
    advice = tuple(
        f"on node {name}: {_told(remedy.text, remedy.allocation_ids, fleet.views[name])}"
        for name in could
        for remedy in answers[name].remedies
        if name not in outs
    )
    return FleetExplanation(
        str(pod), status, message, wanted, groups=shown, unnamed=unnamed, remedies=advice[:_ADVICE], notes=notes
    )


def chosen_text(pod: FleetPod, fleet: GateFleet) -> str:
    """What was chosen for a pod: `1g.5gb at 6:1 of GPU 0 on node p4d`; "" where that cannot be read.

    The annotation on the pod says it as well, and whoever may edit the pod may change it: it counts where nothing else is known.
    """
    found = _known_choice(pod, fleet) or (None if _is_known(pod, fleet) else _annotated(pod))
    if found is None:
        return ""
    view = fleet.views.get(found.node)
    return f"{'; '.join(_grant_text(each, view) for each in found.grants)} on node {found.node}"


class _Choice(NamedTuple):
    """What was chosen for a pod; `has` once the node's register says that it has it."""

    node: str
    grants: tuple[Grant, ...]
    has: bool = False


def _known_choice(pod: FleetPod, fleet: GateFleet) -> _Choice | None:
    """By what the node's agent says, else by the controller's lease."""
    for name, said in fleet.said.items():
        for each in said.view.allocations:
            if isinstance(each.keeper, ChosenFor) and each.keeper.uid == pod.uid:
                return _Choice(name, each.grants, has=True)
    return next((_Choice(name, each[pod.uid].grants) for name, each in fleet.chosen.items() if pod.uid in each), None)


def _is_known(pod: FleetPod, fleet: GateFleet) -> bool:
    """Whether what was chosen could be read: the node of the pod has told, or some node where it has none yet."""
    return bool(fleet.said) and not fleet.unknown and (not pod.node or pod.node in fleet.said)


def _annotated(pod: FleetPod) -> _Choice | None:
    try:
        data = read_json(pod.chosen)
        return _Choice(str(data["node"]), tuple(map(grant_from_dict, data["grants"])))
    except (ValueError, KeyError, TypeError, AttributeError, TrancheError):
        return None


def _chosen(pod: FleetPod, wanted: tuple[str, ...], fleet: GateFleet, notes: tuple[str, ...]) -> FleetExplanation:
    known = _known_choice(pod, fleet)
    text = chosen_text(pod, fleet) or "a share"
    if known is None and not _is_known(pod, fleet):
        notes = (*notes, "what was chosen is by the pod's own annotation: what its node says cannot be read")
    refused = next((each.refused[pod.uid] for each in fleet.said.values() if pod.uid in each.refused), "")
    if known is None and _is_known(pod, fleet):
        why = pod.gate_problem or f"it has not waited at the gate {SHARE_GATE}"
        message = f"no share was chosen for it, and its node does not start it: {why}"
        return FleetExplanation(str(pod), WaitStatus.IMPOSSIBLE, message, wanted, remedies=(_MADE_ANEW,), notes=notes)
    if refused:
        message = f"{text} was chosen for it, and the node cannot hand it over yet: {refused}"
        return FleetExplanation(str(pod), WaitStatus.PREPARING, message, wanted, notes=notes)
    if not pod.node:
        message = f"{text} was chosen for it; the scheduler has yet to bind it" + (
            f": {pod.message}" if pod.message else ""
        )
        return FleetExplanation(str(pod), WaitStatus.PREPARING, message, wanted, notes=notes)
    if known is not None and not known.has and pod.phase == "Pending":
        message = f"{text} was chosen for it; its node hands it over when its container starts"
        return FleetExplanation(str(pod), WaitStatus.PREPARING, message, wanted, notes=notes)
    return FleetExplanation(str(pod), WaitStatus.HAS, f"it has {text}", wanted, notes=notes)


def _grant_text(grant: Grant, view: NodeView | None) -> str:
    if view is not None and any(gpu.uuid == grant.gpu_uuid for gpu in view.node):
        return describe.grant(grant, view.node)
    slot = grant.slot
    return grant.gpu_uuid if slot is None else f"{slot.profile} at {slot.placement} of {grant.gpu_uuid}"


def _told(text: str, ids: Collection[str], view: NodeView) -> str:
    """The text with pods in the place of ids that mean something on the node alone."""
    for each in view.allocations:
        if each.id in ids:
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
    texts = (_told(each.text, each.allocation_ids, view) for each in obstacles)
    text = "; ".join(list(dict.fromkeys(texts))[:_NAMED])
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
