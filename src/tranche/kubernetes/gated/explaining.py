"""Why a gated pod waits, or what was chosen for it: in terms of GPUs, by the planning itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from tranche.core.allocation import Grant, NodeView
from tranche.core.errors import TrancheError
from tranche.core.json_text import read_json
from tranche.core.keeper import NOT_KNOWN_YET, ChosenFor, PodKeeper
from tranche.core.request import Request
from tranche.core.wire import grant_from_dict
from tranche.documents import describe
from tranche.kubernetes.claims.allocation_backend import BY_CLAIMS, AllocationBackend
from tranche.kubernetes.claims.vocabulary import SHARE_GATE, SHARE_RESOURCE
from tranche.kubernetes.fleet.answers import KEPT_OUT, NodeFit, NodeReason, kept_out
from tranche.kubernetes.fleet.explanation import FleetExplanation, WaitStatus, explain_answers, explain_pod
from tranche.kubernetes.fleet.fleet import Fleet
from tranche.kubernetes.fleet.objects import FleetPod
from tranche.kubernetes.gated.reading import GateFleet
from tranche.planning.decide.allocate import ChosenMachine, Granted, decide, decide_across
from tranche.planning.explain.explanation import explain

_NAMED = 3
_ADVICE = 4
_THEN = "the pod is gated until the controller chooses"
_MADE_ANEW = (
    "delete the pod and create it again, either with annotations in a namespace that the webhook serves, or with "
    f"the gate {SHARE_GATE}, one annotation that states the request, and 1 of {SHARE_RESOURCE} for a regular "
    "container"
)
LEFT_AT_GATE = (
    "it is gated by tranche.dev/share, but this cluster now assigns shares through claims, so no controller will "
    "choose one"
)
AT_GATE_ADVICE = "delete the pod, and its replacement gets a claim; delete jobs of tranche submit and submit them again"
_LEFT_WITH_CLAIM = (
    "it waits for a claim, but this cluster now assigns shares at scheduling gates, so no node will serve the claim"
)
_WITH_CLAIM_ADVICE = (
    "delete the pod, and its replacement with annotations is gated instead; delete jobs of tranche submit and "
    "submit them again"
)
_WAITS = frozenset((WaitStatus.PREPARING, WaitStatus.STARTABLE, WaitStatus.WAITING, WaitStatus.IMPOSSIBLE))


def explain_waiting(pod: FleetPod, fleet: Fleet | GateFleet, backend: AllocationBackend) -> FleetExplanation:
    """Why the pod waits, or what it has, in a cluster with that backend. Pods at the gate are explained from the nodes'
    reports. Pure.
    """
    found = explain_gated(pod, pod.by_gate, fleet) if isinstance(fleet, GateFleet) else explain_pod(pod, fleet)
    if found.status not in _WAITS or pod.node:
        return found
    if pod.asks_at_gate and pod.gated and backend in BY_CLAIMS:
        return _for_ever(pod, found.wanted, LEFT_AT_GATE, AT_GATE_ADVICE)
    if not pod.asks_at_gate and (pod.claims or pod.templates) and backend is AllocationBackend.GATES:
        return _for_ever(pod, found.wanted, _LEFT_WITH_CLAIM, _WITH_CLAIM_ADVICE)
    return found


def _for_ever(pod: FleetPod, wanted: tuple[str, ...], message: str, advice: str) -> FleetExplanation:
    """The explanation of a pod that waits for a backend its cluster no longer uses, and so waits forever."""
    return FleetExplanation(str(pod), WaitStatus.IMPOSSIBLE, message, wanted, remedies=(advice,))


def explain_gated(pod: FleetPod, request: Request | None, fleet: GateFleet) -> FleetExplanation:
    """Why the pod waits, or what was chosen for it. `request` is None when the pod's request is unknown. Pure."""
    wanted = () if request is None else (str(request),)
    notes = tuple(f"your account has no permission to read {what}" for what in fleet.unread)
    if pod.phase in ("Succeeded", "Failed"):
        return FleetExplanation(str(pod), WaitStatus.FINISHED, "it has ended and holds no devices", wanted)
    if not pod.gated:
        return _chosen(pod, wanted, fleet, notes)
    if request is None or pod.gate_problem:
        message = f"it will remain gated forever: {pod.gate_problem}"
        return FleetExplanation(str(pod), WaitStatus.IMPOSSIBLE, message, wanted, remedies=(_MADE_ANEW,), notes=notes)
    if not fleet.views:
        word = fleet.last_word or f"{_THEN} its share"
        return FleetExplanation(str(pod), WaitStatus.WAITING, word, wanted, notes=notes)
    return replace(explain_views(pod, request, fleet, then=_THEN), wanted=wanted, notes=notes)


def explain_views(pod: FleetPod, request: Request, fleet: GateFleet, then: str = "") -> FleetExplanation:
    """What the planning says about the request on the nodes' views; `then` as for `explain_answers`. Pure."""
    views = {name: _named(view) for name, view in fleet.views.items()}
    answers = _answers(pod, request, fleet, views)
    able = {each.node: views[each.node] for each in answers if each.reason == NodeReason.FITS}
    best = decide_across(able, request) if len(able) > 1 else None
    if isinstance(best, ChosenMachine):
        answers.sort(key=lambda each: each.node != best.name)
    found = explain_answers(str(pod), answers, fleet.whole, then)
    if able:
        return found
    remedies = (
        f"on node {each.node}: {remedy.text}"
        for each in answers
        if each.could and each.reason not in KEPT_OUT and each.node in views
        for remedy in explain(views[each.node], request).remedies
    )
    return replace(found, remedies=tuple(islice(remedies, _ADVICE)))


def _answers(pod: FleetPod, request: Request, fleet: GateFleet, views: Mapping[str, NodeView]) -> list[NodeFit]:
    found = []
    for name in sorted({*fleet.nodes, *views, *fleet.unknown}):
        if name in fleet.unknown:
            answer = NodeFit(name, NodeReason.PUBLISHING, fleet.unknown[name], could=True)
        elif name in views:
            answer = _answer(name, views[name], request)
        else:
            answer = NodeFit(name, NodeReason.NO_DEVICES, "its agent reports no GPUs for gated pods")
        out = kept_out(pod, fleet.nodes[name]) if name in fleet.nodes and name not in fleet.unknown else None
        found.append(answer if out is None else NodeFit(name, *out, could=answer.could))
    return found


def _answer(name: str, view: NodeView, request: Request) -> NodeFit:
    """What the planning says about one node."""
    try:
        decision = decide(view, request)
    except TrancheError as error:
        return NodeFit(name, error.reason, error.message)
    if isinstance(decision, Granted):
        return NodeFit(name, NodeReason.FITS, decision.note, could=True)
    obstacles = decision.obstacles
    reason = str(obstacles[0].reason) if obstacles else NodeReason.HELD
    text = "; ".join(list(dict.fromkeys(each.text for each in obstacles))[:_NAMED])
    holders = dict.fromkeys(each for obstacle in obstacles for each in obstacle.allocation_ids)
    return NodeFit(name, reason, text, holders=tuple(holders), could=True)


def _named(view: NodeView) -> NodeView:
    """The view with each share's id replaced by its keeper's name, since ids mean something only on the node."""
    counts: Counter[str] = Counter()
    allocations = []
    for each in view.allocations:
        name = str(each.keeper) if each.keeper != NOT_KNOWN_YET else each.command or str(each.keeper)
        known = isinstance(each.keeper, ChosenFor) or (isinstance(each.keeper, PodKeeper) and each.keeper.admitted)
        counts[name] += not known  # a pod ends as one
        allocations.append(each._replace(id=f"{name} ({counts[name]})" if counts[name] > 1 else name))
    return replace(view, allocations=tuple(allocations))


def chosen_text(pod: FleetPod, fleet: GateFleet) -> str:
    """What was chosen for a pod: `1g.5gb at 6:1 of GPU 0 on node p4d`; "" when that cannot be read.

    The pod's annotation says it too, but anyone who may edit the pod can change it. So it counts only when nothing else is known.
    """
    found = _known_choice(pod, fleet) or (None if _is_known(pod, fleet) else _annotated(pod))
    if found is None:
        return ""
    view = fleet.views.get(found.node)
    return f"{'; '.join(_grant_text(each, view) for each in found.grants)} on node {found.node}"


class _Choice(NamedTuple):
    """What was chosen for a pod. `has` is True once the node's register says that the pod has it."""

    node: str
    grants: tuple[Grant, ...]
    has: bool = False


def _known_choice(pod: FleetPod, fleet: GateFleet) -> _Choice | None:
    """The choice as the node's agent reports it, else from the controller's lease."""
    for name, said in fleet.said.items():
        for each in said.view.allocations:
            if isinstance(each.keeper, ChosenFor) and each.keeper.uid == pod.uid:
                return _Choice(name, each.grants, has=True)
    return next((_Choice(name, each[pod.uid].grants) for name, each in fleet.chosen.items() if pod.uid in each), None)


def _is_known(pod: FleetPod, fleet: GateFleet) -> bool:
    """Whether the choice could be read: the pod's node has reported, or any node if the pod has none yet."""
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
        notes = (*notes, "its node's report cannot be read, so the choice comes from the pod's own annotation")
    refused = next((each.refused[pod.uid] for each in fleet.said.values() if pod.uid in each.refused), "")
    if known is None and _is_known(pod, fleet):
        why = pod.gate_problem or f"it was not gated by {SHARE_GATE}"
        message = f"the controller chose no share for it, and its node will not start it: {why}"
        return FleetExplanation(str(pod), WaitStatus.IMPOSSIBLE, message, wanted, remedies=(_MADE_ANEW,), notes=notes)
    if refused:
        message = f"the controller chose {text} for it, but the node cannot hand it over yet: {refused}"
        return FleetExplanation(str(pod), WaitStatus.PREPARING, message, wanted, notes=notes)
    if not pod.node:
        message = f"the controller chose {text} for it; the scheduler has not bound it yet" + (
            f": {pod.message}" if pod.message else ""
        )
        return FleetExplanation(str(pod), WaitStatus.PREPARING, message, wanted, notes=notes)
    if known is not None and not known.has and pod.phase == "Pending":
        message = f"the controller chose {text} for it; its node hands the share over when the container starts"
        return FleetExplanation(str(pod), WaitStatus.PREPARING, message, wanted, notes=notes)
    return FleetExplanation(str(pod), WaitStatus.HAS, f"it has {text}", wanted, notes=notes)


def _grant_text(grant: Grant, view: NodeView | None) -> str:
    if view is not None and any(gpu.uuid == grant.gpu_uuid for gpu in view.node):
        return describe.grant(grant, view.node)
    slot = grant.slot
    return grant.gpu_uuid if slot is None else f"{slot.profile} at {slot.placement} of {grant.gpu_uuid}"
