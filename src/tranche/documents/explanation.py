"""Explanations as JSON data: why a request waits, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tranche.core.allocation import Allocation, NodeView
from tranche.core.user_quota import GROUP, is_group
from tranche.core.wire import grant_to_dict, request_to_dict
from tranche.documents import describe
from tranche.documents.holder_names import NO_NAMES, NameTable, owner_name
from tranche.documents.machine import key_document
from tranche.documents.overview import obstacle_document
from tranche.documents.reasons import summed_up
from tranche.planning.decide.allocate import Waiting
from tranche.planning.decide.answers import GpuFit
from tranche.planning.decide.fairness import FairOrder
from tranche.planning.explain.explanation import Explanation
from tranche.planning.explain.remedies import Remedy


def status(answer: Explanation) -> str:
    """One word: `Startable`, `Waiting`, or the reason word of the error that makes the request impossible."""
    if answer.granted is not None:
        return "Startable"
    return "Waiting" if answer.impossible is None else answer.impossible.reason


def reasons(answer: Explanation, names: NameTable) -> str:
    """What blocks a waiting request, each kind of obstacle once; "" without obstacles, or if it is impossible."""
    if answer.granted is not None or answer.impossible is not None:
        return ""
    found = answer.answers
    return summed_up(Waiting(found.obstacles, found.unnamed, found.ready), names)


def who_goes_first(order: FairOrder, uid: int, ahead: Iterable[int], user_name: Callable[[int], str]) -> list[str]:
    """Why a fair queue serves others before a user: a line for each user or group."""
    found = dict[str, str]()

    def rival(name: str) -> str:
        weight = order.weight(name)
        who = f"group {name.removeprefix(GROUP)}" if is_group(name) else user_name(int(name))
        return who if weight == 1 else f"{who} (weight {weight})"

    for other in ahead:
        if order.level(other) < order.level(uid):
            theirs, mine = order.rivals(other, uid)
            hours = f"{order.use_of(theirs) / 3600:.2f} GPU-hours used, {rival(mine)} {order.use_of(mine) / 3600:.2f}"
            found[theirs] = f"{rival(theirs)} goes first: {hours}"
    return list(found.values())


def idle_holders(answer: Explanation, view: NodeView) -> tuple[Allocation, ...]:
    """The idle shares that are in the way of a waiting request."""
    waits = answer.granted is None and answer.impossible is None
    ids = {id for each in answer.answers.obstacles for id in each.allocation_ids} if waits else set[str]()
    return tuple(each for each in view.allocations if each.id in ids and each.id in view.idle)


def told_idle(share: Allocation, view: NodeView, names: NameTable) -> str:
    """`ann has run nothing on GPU 3 for 42m: share 5d8fb96b`."""
    mine = {each.gpu_uuid for each in share.grants}
    where = describe.ranges(gpu.index for gpu in view.node if gpu.uuid in mine)
    who = owner_name(names.owners.get(share.id)) or "its user"
    idle = describe.idle(view.idle[share.id]).removeprefix("idle ")
    return f"{who} has run nothing on GPU {where} for {idle}: share {share.id}"


def fairness_document(order: FairOrder, uids: Iterable[int], user_name: Callable[[int], str]) -> list[dict[str, Any]]:
    """What decides the order of these users in a fair queue."""
    return [
        {
            "user": user_name(uid),
            "weight": order.weight(str(uid)),
            "gpuHours": round(order.use_of(str(uid)) / 3600, 3),
            "group": None if group is None else group.removeprefix(GROUP),
            "groupWeight": None if group is None else order.weight(group),
            "groupGpuHours": None if group is None else round(order.use_of(group) / 3600, 3),
        }
        for uid, group in ((uid, order.groups.get(uid)) for uid in dict.fromkeys(uids))
    ]


def explanation_document(
    answer: Explanation,
    waiters_ahead: int,
    names: NameTable = NO_NAMES,
    fairness: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """What a request would get now, and what would help; a long answer says what it omits."""
    granted, impossible = answer.granted, answer.impossible
    document = {
        "request": request_to_dict(answer.request),
        "status": status(answer),
        "exitCode": 0 if impossible is None else impossible.exit_code,
        "message": answer.summary,
        "reasons": reasons(answer, names) or None,
        "waitersAhead": waiters_ahead,
        "fairness": fairness,
        "startsBy": None if answer.starts_by is None else describe.timestamp(answer.starts_by),
        "grants": [] if granted is None else [grant_to_dict(each) for each in granted.grants],
        "steps": []
        if granted is None
        else [{"gpuUUID": step.gpu_uuid, "action": str(step)} for step in granted.plan.steps],
        "passedOver": [{"mechanism": str(sharing), "why": why} for sharing, why in answer.passed_over.items()],
        "gpus": [_gpu_document(each) for each in answer.gpus],
        "remedies": [_remedy_document(each) for each in answer.remedies],
        "hint": "" if impossible is None else impossible.hint,
    }
    if answer.answers.unnamed:
        document["otherGpus"] = answer.answers.unnamed
    if answer.advice.looked_at:
        document["gpusSearchedForRemedies"] = answer.advice.looked_at
    return document


def _gpu_document(answer: GpuFit) -> dict[str, Any]:
    document = {
        "index": answer.gpu.index,
        "uuid": answer.gpu.uuid,
        "fits": answer.obstacle is None,
        "obstacle": None if answer.obstacle is None else obstacle_document(answer.obstacle),
    }
    return document | ({"moreGpus": answer.alike} if answer.alike else {})


def _remedy_document(remedy: Remedy) -> dict[str, Any]:
    return {
        "kind": str(remedy.kind),
        "message": remedy.text,
        "request": None if remedy.request is None else request_to_dict(remedy.request),
        "allocationIds": list(remedy.allocation_ids),
        "processIds": list(remedy.process_ids),
        "instances": [key_document(key) for key in remedy.instances],
    }
